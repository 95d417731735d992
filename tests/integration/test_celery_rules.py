"""What the Celery engine decides, without Celery: identities, time left, what is certain, what is said."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duly import Scheduler
from duly.core.task import cut_off, started
from duly.engine.runs import ActiveRun, current_run
from duly.integrations import RunIdentity, current, is_overdue
from duly.integrations.celery import celery_id, remaining_s, task, what_is_known
from duly.integrations.celery_connection import Order, Sent, is_certainly_unsent
from duly.integrations.celery_slips import UNREADABLE, Slip
from duly.integrations.errors import NoRunError
from duly.store import MemoryStore
from duly.testing import VirtualClock
from duly.testing.conformance import NOW_US, sample_task

SECOND_US = 1_000_000


async def nothing() -> None: ...


def identity(before: Any, started_us: int, called_us: int = 0) -> RunIdentity:
    """The identity of a run of the task *before* that starts then."""
    token = current_run.set(
        ActiveRun(before.name, nothing, before, started_us, called_us=called_us or started_us)
    )
    try:
        found = current()
    finally:
        current_run.reset(token)
    assert found is not None
    return found


def test_identity_outlasts_crashes() -> None:
    """A run and those that carry it on have one identity; the next due, a retry and other tasks do not."""
    fresh = sample_task(1)
    first = identity(fresh, NOW_US)
    cut = cut_off(started(fresh, NOW_US, is_retry=False))
    second = identity(cut, NOW_US + 5)
    third = identity(cut_off(started(cut, NOW_US + 5, is_retry=False)), NOW_US + 9)
    assert first.id == second.id == third.id
    assert [run.is_continuation for run in (first, second, third)] == [False, True, True]
    assert (third.started_us, third.origin_us) == (NOW_US + 9, NOW_US)
    assert third.origin == datetime(2026, 1, 1, tzinfo=UTC)
    assert third.started - third.origin == timedelta(microseconds=9)
    elsewhere = msgspec.structs.replace(fresh, scheduler_id="other")
    others = [identity(fresh, NOW_US + 1), identity(sample_task(2), NOW_US), identity(elsewhere, NOW_US)]
    assert len({first.id, *(run.id for run in others)}) == 4


def test_identity_is_for_ever() -> None:
    """The id of a run never changes between versions: another duly may have sent what this one waits for."""
    run = identity(sample_task(1, "a"), NOW_US)
    assert str(run.id) == "2aec878d-044e-53a4-b315-6006a30781b3"
    assert celery_id(run, "reports.build") == "c17a696f-8de0-511a-ae7b-3c54aaa53a80"


def test_any_name_has_an_identity() -> None:
    """A task's name may hold what UTF-8 cannot."""
    odd = identity(sample_task(1, "\ud800"), NOW_US)
    assert odd.id != identity(sample_task(1, "\\ud800"), NOW_US).id


def test_parts_differ() -> None:
    """Each Celery task of a run, and each part of it, has an id of its own."""
    run = identity(sample_task(1), NOW_US)
    ids = {celery_id(run, "a"), celery_id(run, "b"), celery_id(run, "a", "2"), celery_id(run, "a2")}
    assert len(ids) == 4


async def test_identity_in_a_callback() -> None:
    """A callback, and what it starts, learn the identity of their run; nobody else has one."""
    found: list[RunIdentity | None] = []

    async def callback() -> None:
        found.append(current())
        found.append(await asyncio.create_task(asyncio.to_thread(current)))

    clock = VirtualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))
    scheduler = Scheduler(MemoryStore(), clock=clock, timezone=UTC)
    await scheduler.initialize([("a", "* * * * *", callback, timedelta(0))])
    await clock.advance(timedelta(seconds=1))
    await scheduler.stop()
    assert found[0] is not None
    assert (found[0].name, found[0].is_continuation, found[0]) == ("a", False, found[1])
    assert current() is None


@pytest.mark.parametrize(
    ("is_timed_out", "is_dropped", "is_so"), [(False, False, False), (True, False, True), (True, True, False)]
)
def test_overdue(is_timed_out: bool, is_dropped: bool, is_so: bool) -> None:
    """A run is overdue that its time limit cancels, unless it was lost: then another carries it on."""
    run = ActiveRun("a", nothing, sample_task(1), NOW_US, is_timed_out=is_timed_out, is_dropped=is_dropped)
    token = current_run.set(run)
    try:
        assert is_overdue() is is_so
    finally:
        current_run.reset(token)


async def test_outside_of_a_run() -> None:
    """A callback that nobody registered says so."""
    with pytest.raises(NoRunError, match="register it"):
        await task("add", timeout=timedelta(seconds=1))()


@pytest.mark.parametrize(
    ("called_s", "slip", "left_s"),
    [
        (0, Slip(NOW_US, NOW_US), 60),
        (10, Slip(NOW_US, NOW_US), 50),
        (10, Slip(NOW_US + 4 * SECOND_US, NOW_US), 54),
        (10, None, 50),
        (10, UNREADABLE, 50),
        (61, Slip(NOW_US, NOW_US), 0),
        (-99, Slip(NOW_US, NOW_US), 60),
    ],
)
def test_time_left(called_s: int, slip: Slip | None, left_s: float) -> None:
    """The time counts from the sending, else from the origin; a clock that was set changes little."""
    cut = cut_off(started(sample_task(1), NOW_US, is_retry=False))
    called_us = NOW_US + called_s * SECOND_US
    assert remaining_s(identity(cut, called_us), slip, 60) == left_s


@pytest.mark.parametrize(
    ("is_continuation", "era", "age_s", "is_certain"),
    [
        (False, None, 0, True),
        (True, Slip(NOW_US, 0), 5, True),
        (True, Slip(NOW_US - 1, 0), 99, True),
        (True, Slip(NOW_US - 1, 0), 100, False),
        (True, Slip(NOW_US + 1, 0), 5, False),
        (True, None, 5, False),
    ],
)
def test_what_is_certain(is_continuation: bool, era: Slip | None, age_s: int, is_certain: bool) -> None:
    """No slip means "never sent" only to a backend that remembers that long."""
    slip = Slip(NOW_US + age_s * SECOND_US, 1)
    order = Order("t", "id", (), {}, {}, "s", NOW_US, slip, is_continuation, 100)
    assert is_certainly_unsent(order, era, 100) is is_certain


def test_what_is_said() -> None:
    """A timeout says the most that is known."""
    sent, doubtful = Sent(Slip(1, 1)), Sent(Slip(1, 1), "who knows")
    assert "cannot be read (down)" in what_is_known("PENDING", sent, "down", is_slip_there=True)
    assert "in state STARTED" in what_is_known("STARTED", doubtful, "", is_slip_there=False)
    assert "lost what it held" in what_is_known("PENDING", doubtful, "", is_slip_there=False)
    assert what_is_known("PENDING", doubtful, "", is_slip_there=True) == "who knows"
    assert "is one running" in what_is_known("PENDING", sent, "", is_slip_there=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": ""}, "has a name"),
        ({"timeout": 5}, "timedelta above zero"),
        ({"timeout": timedelta(0)}, "timedelta above zero"),
        ({"args": "ab"}, "list or a tuple"),
        ({"kwargs": [1]}, "a dict"),
        ({"task_id": "x", "retry": True}, "retry, task_id cannot be given"),
    ],
)
def test_bad_arguments(wrong: dict[str, Any], said: str) -> None:
    """What cannot work is refused when the callback is made, not when it is due."""
    with pytest.raises(TypeError, match=said):
        task(**{"name": "a", "timeout": timedelta(seconds=1), **wrong})


def test_without_celery() -> None:
    """The module can be imported without Celery; the run says what to install."""
    program = """
import sys; sys.modules["celery"] = None
import duly.integrations.celery as engine
loaded = {name.split(".")[0] for name, module in sys.modules.items() if module}
assert not loaded & {"celery", "kombu", "redis"}
try: engine._app(None)
except ImportError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'duly[celery]'" in done.stdout
