"""One node of a cluster as a real process: a scheduler on a database that says what it does, line by line.

python -m tests.worlds.cluster_program URL TASKS [options]. TASKS is a list in JSON: [name, cron, retry
delay in seconds]. What a task does is the first word of its name: `quick` returns, `flaky` raises, `long`
waits for an order, `deaf` too and ignores that it is cancelled, `block` blocks the event loop for 8 s,
`poison` ends the process.

Every line begins with microseconds of a clock that all processes of this host share:

    T start NAME RUN ID TOKEN    its callback was called
    T end NAME RUN HOW           it is over: ok, failed, or cancelled
    T event KIND JSON            the scheduler said so
    T ready, T stopped, T refused SENTENCE

Orders come as lines on its standard input: `end NAME`, `fail NAME`, `list TASKS`, `stop`. SIGTERM is `stop`.
"""

import argparse
import asyncio
import datetime as dt
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from duly import Event, Scheduler

KINDS = ("quick", "flaky", "long", "deaf", "block", "poison")
NOT_TOLD = {"PollStarted", "PollCompleted", "TaskScheduled"}
BLOCKED_S = 8.0


def say(*words: object) -> None:
    """Write a line past every buffer, so that what was said before a kill was heard."""
    line = " ".join(map(str, (time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000, *words)))
    os.write(1, f"{line}\n".encode(errors="surrogatepass"))


def set_host_clock_ahead(seconds: float) -> None:
    """Let the wall clock of this process be wrong, for all modules that are imported after this."""
    true_datetime, true_ns = dt.datetime, time.time_ns  # noqa: TID251 (this is what is tested)
    ahead = dt.timedelta(seconds=seconds)

    class Wrong(true_datetime):  # type: ignore[valid-type, misc] # it is a class
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return true_datetime.now(tz) + ahead

    dt.datetime = Wrong  # type: ignore[misc]
    time.time_ns = lambda: true_ns() + round(seconds * 1e9)  # noqa: TID251
    time.time = lambda: true_ns() / 1e9 + seconds  # noqa: TID251


class FailedOnPurposeError(Exception):
    """What a task raises that is to fail."""


class Program:
    """The tasks of one process, and its orders."""

    def __init__(self) -> None:
        self._orders: dict[str, asyncio.Queue[str]] = {}
        self._runs = 0
        self._heard = b""
        self._lists: asyncio.Queue[list[Any] | None] = asyncio.Queue()

    async def run(self, scheduler: "Scheduler", tasks: list[Any]) -> int:
        """Serve until the order to stop."""
        from duly import SchedulerError  # noqa: PLC0415 (the clock is made wrong first)

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._lists.put_nowait, None)
        loop.add_reader(0, self._listen)
        wanted: list[Any] | None = tasks
        while wanted is not None:
            try:
                await scheduler.initialize([self._registration(*task) for task in wanted])
            except SchedulerError as error:
                say("refused", error)
                return 1
            say("ready")
            wanted = await self._lists.get()
        await scheduler.stop()
        say("stopped")
        return 0

    def _registration(
        self, name: str, cron: str, delay_s: float
    ) -> tuple[str, str, Callable[[], Awaitable[None]], dt.timedelta]:
        return name, cron, partial(self._called, name), dt.timedelta(seconds=delay_s)

    async def _called(self, name: str) -> None:
        from duly.integrations import current  # noqa: PLC0415

        self._runs += 1
        number, how = self._runs, "cancelled"
        run = current()
        assert run is not None
        say("start", name, number, run.id, run.token)
        try:
            await self._do(name)
            how = "ok"
        except FailedOnPurposeError:
            how = "failed"
            raise
        finally:
            say("end", name, number, how)

    async def _do(self, name: str) -> None:
        kind = name.split("-", maxsplit=1)[0]
        assert kind in KINDS
        if kind == "quick":
            return
        if kind == "flaky":
            raise FailedOnPurposeError
        if kind == "block":
            time.sleep(BLOCKED_S)  # noqa: ASYNC251 (this is what is tested)
            return
        if kind == "poison":
            os._exit(66)
        orders = self._orders.setdefault(name, asyncio.Queue())
        while True:
            try:
                order = await orders.get()
                break
            except asyncio.CancelledError:
                if kind != "deaf":
                    raise
        if order == "fail":
            raise FailedOnPurposeError

    def _listen(self) -> None:
        heard = os.read(0, 65536)
        if not heard:
            asyncio.get_running_loop().remove_reader(0)
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            order, _, rest = line.decode().partition(" ")
            if order == "list":
                self._lists.put_nowait(json.loads(rest))
            elif order == "stop":
                self._lists.put_nowait(None)
            else:
                self._orders.setdefault(rest, asyncio.Queue()).put_nowait(order)


def on_event(event: "Event") -> None:
    """Say what the scheduler says."""
    if event.name not in NOT_TOLD:
        say("event", event.name, json.dumps(event.fields, default=str))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tasks", type=json.loads)
    parser.add_argument("--lease-ms", type=int, default=2_000)
    parser.add_argument("--zone", default="UTC")
    parser.add_argument("--more", type=int, default=0, help="so many tasks that are never due")
    parser.add_argument("--replace", action="store_true")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--clock-ahead-s", type=float, default=0.0)
    given = parser.parse_args()
    given.tasks += [[f"quick-more-{number}", "0 0 29 2 *", 1] for number in range(given.more)]
    if given.clock_ahead_s:
        set_host_clock_ahead(given.clock_ahead_s)
    logging.getLogger("duly").addHandler(logging.NullHandler())  # the lines say all that
    from duly import Scheduler  # noqa: PLC0415 (the clock is made wrong first)
    from duly.cluster import PostgresStore  # noqa: PLC0415
    from duly.verify import Recorder  # noqa: PLC0415

    async def serve() -> int:
        store = PostgresStore(
            given.url, lease=dt.timedelta(milliseconds=given.lease_ms), replace=given.replace
        )
        scheduler = Scheduler(store, timezone=ZoneInfo(given.zone), listeners=[on_event])
        recorder = Recorder(given.trace, proc=given.name, tick=dt.timedelta(seconds=1))
        try:
            return await Program().run(recorder.wrap(scheduler), given.tasks)
        finally:
            recorder.close()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())
