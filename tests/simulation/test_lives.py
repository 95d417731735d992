"""Random lives: the same seed is the same life, none violates the model, and what is broken is found out."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.core.task import Task
from duly.instant import MINUTE_US, SECOND_US, instant_of
from duly.marks import MARKS
from duly.verify import judged
from tests.simulation import (
    NO_FAULTS,
    Cut,
    Faults,
    Numbers,
    Plan,
    Point,
    UnsoundLifeError,
    drawn,
    lived,
    numbers_of,
    shrunk,
    simulate,
    story,
)
from tests.simulation.drawing import HOUR_US
from tests.simulation.host import Host, SimulatedProcess
from tests.simulation.plan import Behaviour, Crash, How, Initialize, PlannedTask, Step
from tests.simulation.scenarios import SCENARIOS

START_US = instant_of(datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC))
EACH_MINUTE = PlannedTask("a", "* * * * *", 45 * SECOND_US)


def planned(*actions: Any, items: tuple[PlannedTask, ...] = (EACH_MINUTE,), **knobs: Any) -> Plan:
    knobs = {"seed": 1, "zone": "UTC", "start_us": START_US, "duration_us": 10 * MINUTE_US, **knobs}
    return Plan(items=items, actions=actions, **knobs)


SEEDS = int(os.environ.get("DULY_SEEDS", "300"))
"""How many lives the suite lives; more of them are slow tests."""


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_no_life_violates_the_model(first: int) -> None:
    """Whatever goes wrong in a life, what must happen happens, and what must not does not."""
    for seed in range(first, first + 50):
        lived(drawn(seed)).check()


@pytest.mark.slow
@pytest.mark.parametrize("first", [*range(300, 2_100, 200), *range(10_000, 14_000, 200)])
def test_no_life_of_thousands_violates_the_model(first: int) -> None:
    """Nor in thousands of others."""
    for seed in range(first, first + 200):
        lived(drawn(seed)).check()


_HASHES = "from tests.simulation import drawn, lived\nprint([lived(drawn(seed)).hash for seed in range(40)])"


def test_same_seed_same_life() -> None:
    """Two processes that hash differently live the same lives, to the last byte of the trace."""
    hashes = [
        subprocess.run(
            [sys.executable, "-c", _HASHES],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0].split())) == 40


@pytest.mark.parametrize("seed", range(20))
def test_life_is_judged_as_its_trace(seed: int) -> None:
    """What is said of a life is what the checker says of its trace, read line by line."""
    life = lived(drawn(seed))
    assert life.outcome == judged(life.trace_lines)


def test_families_are_independent() -> None:
    """Leaving a family of faults out leaves the others as they were."""
    everything = drawn(7)
    only = drawn(7, Faults.only("clock"))
    steps = [action for action in everything.actions if isinstance(action, Step)]
    assert list(only.actions) == steps
    assert only.items == everything.items


def test_unknown_family_is_refused() -> None:
    """A family that does not exist is named, and so are those that do."""
    with pytest.raises(ValueError, match="no such family of faults: gremlins; there are crash, disk"):
        Faults.only("gremlins")


def test_healthy_life_is_exact() -> None:
    """Without faults every minute has its one start, at its beginning."""
    life = lived(planned())
    starts = [msgspec.json.decode(line)["t"] for line in life.trace_lines if b"RunStart" in line]
    assert starts[1:] == [START_US // 1000 + 30_000 + 60_000 * number for number in range(len(starts) - 1)]
    assert life.counts["callback return"] == life.starts == len(starts)
    assert msgspec.json.decode(life.trace_lines[0])["persist_window_ms"] == 1


def test_short_and_long_troubles_are_declared() -> None:
    """The persist window is the smallest that is true: the longest trouble and the longest pause after it."""
    plan = drawn(1, NO_FAULTS)
    assert plan.persist_window_us == 1_000
    assert lived(plan).is_sound


_TELLING = (0, 4, 5, 6, 8, 16, 20, 24, 25, 70, 135, 164, 397, 875, 7946)
"""Seeds that took rare paths when this was written; others are tried if they do so no more."""


def test_every_rare_path_is_taken() -> None:
    """Each of the scheduler's rare paths is taken by some life."""
    missing = set(MARKS)
    for seed in chain(_TELLING, range(3_000)):
        missing -= lived(drawn(seed)).marks.keys()
        if not missing:
            return
    pytest.fail(f"no life ever took: {', '.join(sorted(missing))}")


# --- what is broken is found out ---


def test_disk_that_lies_about_syncs_is_found_out() -> None:
    """A disk that acknowledges syncs and does nothing loses what was promised, and the life fails."""

    def lie(host: Host) -> None:
        host.disk.is_sync_ignored = True

    plan = planned(Crash(5 * MINUTE_US, cut=Cut.LOSE))
    assert lived(plan).is_sound
    assert not lived(plan, configure=lie).is_sound


def test_store_that_acknowledges_before_writing_is_found_out() -> None:
    """A store that says "done" and writes later starts a run twice, or never, after some crash."""

    def be_hasty(process: SimulatedProcess) -> None:
        write = process.simulated_store.save

        async def save(tasks: Any) -> None:
            asyncio.get_running_loop().call_later(1, lambda: asyncio.ensure_future(write(tasks)))

        process.simulated_store.save = save  # type: ignore[method-assign]

    plans = [
        planned(
            Crash(90 * SECOND_US + after, downtime_us=SECOND_US, items=()),
            Initialize(200 * SECOND_US, (EACH_MINUTE,)),
            items=(PlannedTask("a", "1,2 * * * *", 45 * SECOND_US),),
            behaviours={"a": (Behaviour(How.RETURN, lasts_us),)},
        )
        for after in (0, 1_000, SECOND_US // 2)
        for lasts_us in (0, 10 * SECOND_US)
    ]
    plans += [replace(plan, actions=(Crash(90 * SECOND_US + 1_000), *plan.actions[1:])) for plan in plans]
    assert all(lived(plan).is_sound for plan in plans)
    assert not all(lived(plan, wire=be_hasty).is_sound for plan in plans)


def test_list_written_in_two_steps_is_found_out() -> None:
    """A store that writes a list in two transactions leaves half of it after some crash."""

    def write_in_steps(process: SimulatedProcess) -> None:
        write = process.simulated_store.replace

        async def replace_in_steps(*, put: Any, removed: Any) -> None:
            await write(put=(), removed=removed)
            await write(put=put, removed=())

        process.simulated_store.replace = replace_in_steps  # type: ignore[method-assign]

    plans = [
        replace(SCENARIOS["changing-lists"], actions=(Crash(-1, Point.UNACKNOWLEDGED, after), *actions))
        for after in range(12)
        for actions in [SCENARIOS["changing-lists"].actions]
    ]
    assert all(lived(plan).is_sound for plan in plans)
    faults = [fault for plan in plans for fault in lived(plan, wire=write_in_steps).faults]
    assert any("none of the lists" in fault for fault in faults)


def forgets_interrupted(task: Task) -> Task:
    return msgspec.structs.replace(task, running_since_us=None)


def retries_successes(task: Task, now_us: int) -> Task:
    return msgspec.structs.replace(task, running_since_us=None, retry_at_us=now_us + task.retry_delay_us)


def never_retries(task: Task, now_us: int, **_options: object) -> Task:
    return msgspec.structs.replace(task, running_since_us=None, last_failure_us=now_us)


def answers_nothing(task: Task, now_us: int, *, is_retry: bool) -> Task:
    return msgspec.structs.replace(task, running_since_us=now_us, last_attempt_us=now_us)


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("duly.core.reconciliation.cut_off", forgets_interrupted),
        ("duly.engine.tasks.succeeded", retries_successes),
        ("duly.engine.tasks.failed", never_retries),
        ("duly.core.causes.started", answers_nothing),
    ],
)
def test_wrong_scheduler_is_found_out(where: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that decides one thing wrong fails within a few dozen lives, and says why."""
    monkeypatch.setattr(where, wrong)
    with pytest.raises(UnsoundLifeError, match=r"(S1d|L1|T3|T4|T6)[\s\S]*reproduce with seed \d+"):
        for seed in range(60):
            lived(replace(drawn(seed, Faults.only("crash", "callback")), duration_us=20 * MINUTE_US)).check()


def test_shrinking_leaves_only_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that fails because of one crash is shortened to little more than that crash."""
    monkeypatch.setattr("duly.core.reconciliation.cut_off", forgets_interrupted)
    plan = planned(
        Step(60 * SECOND_US, 2 * SECOND_US),
        Initialize(100 * SECOND_US),
        Crash(200 * SECOND_US),
        Initialize(301 * SECOND_US),
        items=(PlannedTask("a", "3 * * * *", 0), PlannedTask("b", "0 3 * * *", 0)),
        behaviours={"a": (Behaviour(How.RETURN, HOUR_US), Behaviour()), "b": (Behaviour(How.RAISE),)},
    )
    assert not lived(plan).is_sound
    short = shrunk(plan, lambda each: not lived(each).is_sound)
    assert len(short.actions) == 1
    assert isinstance(short.actions[0], Crash)
    assert [item.name for item in short.items] == ["a"]
    assert "crash" in story(short)


# --- particular lives ---


def test_damaged_row_of_a_registered_task_is_repaired() -> None:
    """A row that somebody damaged fails `initialize` by name; repaired, the program goes on."""
    life = lived(planned(Crash(100 * SECOND_US, damaged="a")))
    life.check()
    assert life.counts["repaired"] == 1
    assert life.counts["initialize failed"] == 1


def test_damaged_row_of_another_task_is_removed() -> None:
    """A damaged row of a task that is no longer registered does not keep the program from starting."""
    other = PlannedTask("b", "* * * * *", 0)
    life = lived(planned(Crash(100 * SECOND_US, damaged="a", items=(other,))))
    life.check()
    assert life.counts["damaged row"] == 1
    assert not life.counts["initialize failed"]


def test_damaged_row_outlasts_a_second_crash() -> None:
    """A process that dies before anybody has repaired the row leaves the list as it was."""
    life = lived(planned(Crash(100 * SECOND_US, damaged="a", then=Crash(0, after=3))))
    life.check()
    assert life.outcome.crashes == 2
    assert life.counts["damaged row"] == life.counts["repaired"] == 1


def test_second_crash_in_the_recovery_from_the_first() -> None:
    """A process that comes back can be killed while it recovers."""
    life = lived(planned(Crash(100 * SECOND_US, then=Crash(0, after=20))))
    life.check()
    assert life.outcome.crashes == 2


def test_numbers_add_up() -> None:
    """The numbers of two processes together are the sum of both."""
    one, two = numbers_of(lived(planned())), numbers_of(lived(planned(Crash(100 * SECOND_US))))
    both = Numbers().merged(one).merged(two)
    assert both.lives == 2
    assert both.starts == one.starts + two.starts
    assert both.crashes == 1
    assert both.failed == 0


# --- users' own registrations ---


@pytest.mark.parametrize("seed", range(5))
def test_own_registrations(seed: int) -> None:
    """A user's own callbacks live through a week with everything going wrong, in virtual time."""
    sent: list[str] = []

    async def send_report() -> None:
        await asyncio.sleep(90)  # noqa: TID251 (in virtual time)
        sent.append("report")

    async def clean_up() -> None:
        if len(sent) % 2:
            raise OSError("the disk is busy")

    registrations = [
        ("report", "0 6 * * *", send_report, timedelta(minutes=10)),
        ("clean up", "30 * * * *", clean_up, timedelta(minutes=5)),
    ]
    life = simulate(
        registrations,
        seed=seed,
        duration=timedelta(days=7),
        timezone=ZoneInfo("Europe/Berlin"),
        start=datetime(2026, 3, 25, tzinfo=UTC),
    )
    life.check()
    assert len(sent) >= 5
    assert life.starts > 7 * 24


def test_simulate_needs_an_aware_start() -> None:
    """A start without a zone is refused, with what to write instead."""
    with pytest.raises(ValueError, match="aware start"):
        simulate([], seed=1, duration=timedelta(days=1), timezone=UTC, start=datetime(2026, 1, 1))  # noqa: DTZ001


def test_standstill_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that goes round and round within one instant fails, instead of going on for ever."""
    monkeypatch.setattr("duly.core.causes.started", answers_nothing)
    behaviours = {"a": (Behaviour(How.RETURN, HOUR_US), *(Behaviour(),) * 100_000)}
    life = lived(planned(Crash(100 * SECOND_US), is_durable=False, behaviours=behaviours))
    assert any(fault.startswith("time stands still") for fault in life.faults)
    assert any(fault.startswith("S1d") for fault in life.faults)


def test_exit_of_a_left_task_is_a_crash() -> None:
    """A task that a callback left behind and that exits takes the process with it, as it would in earnest."""

    async def leave() -> None:
        raise SystemExit(3)

    left: list[asyncio.Task[None]] = []

    async def callback() -> None:
        if not left:
            left.append(asyncio.get_running_loop().create_task(leave()))

    life = lived(planned(), {"a": callback})
    life.check()
    assert life.outcome.crashes == 1
