"""`duly.App` on every store, in virtual time."""

import asyncio
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import duly
from duly import App, Retry, Run, crontab, current_run, daily, every, monthly, once, weekly
from duly.errors import (
    ForeignEventLoopError,
    InvalidScheduleError,
    NoSuchTaskError,
    ScheduleDuplicateTaskError,
    SchedulerError,
    StoreError,
    StoreInUseError,
)
from duly.store import MemoryStore, SQLiteStore
from duly.testing import FaultyStore, VirtualClock, crash
from tests.worlds.apps import START, Programs
from tests.worlds.stores import StoreFactory, fail_over


async def test_every_keeps_its_anchor(same_store: StoreFactory) -> None:
    """A fixed rate counts from the first registration, also after a restart, and makes up for a miss once."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("beat"), every("40s"), name="beat")

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance(timedelta(seconds=90))
    assert programs.times("beat") == [40, 80]
    await programs.clock.advance(timedelta(seconds=110))  # 120, 160 and 200 pass without a program
    async with programs.app():
        await programs.clock.advance(timedelta(seconds=50))
    assert programs.times("beat") == [40, 80, 200, 240]


async def test_after_end_counts_from_the_end(same_store: StoreFactory) -> None:
    """A fixed delay counts from the end of the last run, however long that took."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        async def slow() -> None:
            call("slow")
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=25))

        app.declare(slow, every("60s", after_end=True))

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance(timedelta(seconds=260))
    assert programs.times("slow") == [60, 145, 230]


async def test_once(same_store: StoreFactory) -> None:
    """A moment comes once, also after a downtime; one that has passed at the registration never comes."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("past"), once(START - timedelta(seconds=1)), name="past")
        app.declare(lambda: call("soon"), once(START + timedelta(seconds=10)), name="soon")
        app.declare(lambda: call("later"), once("2026-01-01 12:02"), name="later")

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance(timedelta(seconds=60))
    await programs.clock.advance(timedelta(seconds=60))
    async with programs.app():
        await programs.clock.advance(timedelta(days=400))
    assert programs.calls == [
        ("soon", START + timedelta(seconds=10)),
        ("later", START + timedelta(seconds=120)),
    ]


async def test_zones_and_calendars(same_store: StoreFactory) -> None:
    """Every task has its own zone and its own days."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("berlin"), daily("03:30"), name="berlin", timezone="Europe/Berlin")
        app.declare(lambda: call("tokyo"), "30 3 * * *", name="tokyo", timezone=ZoneInfo("Asia/Tokyo"))
        app.declare(lambda: call("monday"), weekly("mon 09:00"), name="monday")
        app.declare(lambda: call("office"), crontab("0 9-17/8 * * mon-fri"), name="office")

    programs = Programs(same_store, declare)
    async with programs.app() as app:
        await programs.clock.advance_to(datetime(2026, 1, 5, 12, tzinfo=UTC))
        zones = {
            task.name: (task.timezone, task.next_due and task.next_due.hour) for task in await app.tasks()
        }
    assert zones["berlin"] == ("Europe/Berlin", 3)
    assert zones["tokyo"] == ("Asia/Tokyo", 3)
    assert zones["monday"] == ("UTC", 9)
    assert dict(reversed(programs.calls)) == {
        "berlin": datetime(2026, 1, 2, 2, 30, tzinfo=UTC),
        "tokyo": datetime(2026, 1, 1, 18, 30, tzinfo=UTC),
        "monday": datetime(2026, 1, 5, 9, tzinfo=UTC),
        "office": datetime(2026, 1, 1, 17, tzinfo=UTC),
    }


async def test_last_day_of_a_month(same_store: StoreFactory) -> None:
    """The last day of a month is the last one, in leap years as well."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("last"), monthly(day="last", at="08:00"), name="last")

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance_to(datetime(2028, 3, 1, tzinfo=UTC))
    last = [at for _, at in programs.calls]
    assert [at.day for at in last[:3]] == [31, 28, 31]
    assert last[25] == datetime(2028, 2, 29, 8, tzinfo=UTC)
    assert len(last) == 26


async def test_fixed_delay_goes_on_after_a_downtime(same_store: StoreFactory) -> None:
    """What is due after the end of a run is never skipped: nothing else would be due."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("a"), every("5m", after_end=True), name="a", catch_up="skip")

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance(timedelta(minutes=6))
    await programs.clock.advance(timedelta(minutes=30))
    async with programs.app():
        await programs.clock.advance(timedelta(minutes=6))
    assert programs.times("a") == [300, 2160, 2460]


async def test_retry_policy(same_store: StoreFactory) -> None:
    """Each retry waits longer, up to a limit, until the attempts are used up; the next due starts over."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        async def fails(run: Run) -> None:
            call(f"fails {run.attempt} {run.cause}")
            raise ValueError("no luck")

        policy = Retry("10s", factor=3, max_delay="60s", attempts=4)
        app.declare(fails, every("1h"), retry=policy)

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance(timedelta(hours=2, minutes=30))
    found = [(name, (at - START).total_seconds()) for name, at in programs.calls]
    assert found == [
        *[("fails 1 cron", 3600), ("fails 2 retry", 3610), ("fails 3 retry", 3640), ("fails 4 retry", 3700)],
        *[("fails 1 cron", 7200), ("fails 2 retry", 7210), ("fails 3 retry", 7240), ("fails 4 retry", 7300)],
    ]
    last = programs.told("TaskRunFailed")[3]
    assert "nextRetryAt" not in last
    assert isinstance(next(e for e in programs.events if e.name == "TaskRunFailed").exception, ValueError)


async def test_timeout(same_store: StoreFactory) -> None:
    """A run beyond the time limit of its own task is cancelled and has failed; others go on."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        async def long() -> None:
            call("long")
            await programs.clock.sleep_until(programs.clock.now() + timedelta(hours=1))

        app.declare(long, every("1d"), name="limited", timeout="90s", retry=Retry(attempts=1))
        app.declare(long, every("1d"), name="free")

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance(timedelta(days=1, hours=1, minutes=1))
        failed = programs.told("TaskRunFailed")
        assert [(told["taskName"], told["error"]) for told in failed] == [
            ("limited", "TimeoutError: cancelled after 90 s (timeout)")
        ]
        assert [told["taskName"] for told in programs.told("TaskRunCompleted")] == ["free"]


async def test_catch_up(same_store: StoreFactory) -> None:
    """What passed during a downtime runs once, or not at all, or if it is young enough."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("once"), "0 * * * *", name="once")
        app.declare(lambda: call("skip"), "0 * * * *", name="skip", catch_up="skip")
        app.declare(lambda: call("young"), "0 * * * *", name="young", catch_up="2h")

    programs = Programs(same_store, declare)
    async with programs.app():
        pass
    await programs.clock.advance(timedelta(hours=3, minutes=30))  # 13:00, 14:00 and 15:00 pass
    async with programs.app():
        await programs.clock.advance(timedelta(minutes=1))
        assert sorted(name for name, _ in programs.calls) == ["once", "young"]
        assert [told["taskName"] for told in programs.told("TaskMissed")] == ["skip"]
        await programs.clock.advance(timedelta(minutes=40))
    assert sorted(name for name, _ in programs.calls) == ["once", "once", "skip", "young", "young"]


async def test_run_now(same_store: StoreFactory) -> None:
    """A requested run begins at once, or after the run that is under way, and can be awaited."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        async def job() -> None:
            run = current_run()
            assert run is not None
            call(run.cause)
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=10))

        app.declare(job, every("1d"))

    programs = Programs(same_store, declare)
    app = programs.app()
    async with app:
        await programs.clock.advance(timedelta(seconds=5))
        first = await app.run_now("job")
        await programs.clock.advance(timedelta(seconds=5))
        second = await app.run_now("job")
        third = await app.run_now("job")  # before the second has begun: both are answered by one run
        await programs.clock.advance(timedelta(seconds=30))
        await asyncio.gather(first, second, third)
    assert [(name, (at - START).total_seconds()) for name, at in programs.calls] == [
        ("manual", 5),
        ("manual", 15),
    ]


async def test_a_request_survives_a_crash(same_store: StoreFactory) -> None:
    """A requested run that a crash cuts off starts again, and one that is pending is not lost."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        async def job() -> None:
            call("job")
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=10))

        app.declare(job, every("365d"))

    programs = Programs(same_store, declare)
    app = programs.app()
    await app.start()
    await app.run_now("job")
    await programs.clock.advance(timedelta(seconds=1))
    await app.run_now("job")
    await crash(app)
    fail_over(same_store())
    async with programs.app():
        await programs.clock.advance(timedelta(seconds=60))
    causes = [told["cause"] for told in programs.told("TaskRunStarted")]
    assert causes[0] == "manual"
    assert causes[1] == "interrupted"
    assert len(programs.calls) == 2, "one start answers the interruption and the request"


async def test_a_requested_run_keeps_its_id_after_a_crash(same_store: StoreFactory) -> None:
    """A run that had to wait for its start has one id, also when a crash has cut it off."""
    ids: list[object] = []

    def declare(app: App, _call: Callable[[str], None]) -> None:
        async def job(run: Run) -> None:
            ids.append(run.id)
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=10))

        app.declare(job, every("365d"))

    programs = Programs(same_store, declare)
    app = programs.app()
    await app.start()
    await app.run_now("job")
    await programs.advance(4)
    await app.run_now("job")
    await programs.advance(8)
    await programs.crash(app)
    async with programs.app():
        await programs.advance(60)
    assert len(ids) == 3
    assert ids[0] != ids[1] == ids[2]


async def test_pause_survives_a_restart(same_store: StoreFactory) -> None:
    """A paused task rests, also in the next life; what was due meanwhile runs once when it goes on."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("job"), every("1m"), name="job")

    programs = Programs(same_store, declare)
    app = programs.app()
    async with app:
        await app.pause("job")
        await programs.clock.advance(timedelta(minutes=5))
    app = programs.app()
    async with app:
        await programs.clock.advance(timedelta(seconds=30))
        assert programs.calls == []
        assert [task.state for task in await app.tasks()] == ["paused"]
        await app.resume("job")
        await programs.clock.advance(timedelta(seconds=40))
    assert programs.times("job") == [330, 360]


async def test_a_disabled_task_runs_by_request_only(same_store: StoreFactory) -> None:
    """`enabled=False` stops the dues of a task and nothing else."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("job"), every("1m"), name="job", enabled=False)

    programs = Programs(same_store, declare)
    app = programs.app()
    async with app:
        await programs.clock.advance(timedelta(minutes=5))
        await app.run_now("job")
        await programs.clock.advance(timedelta(minutes=5))
        assert [task.state for task in await app.tasks()] == ["disabled"]
    assert programs.times("job") == [300]


async def test_a_disabled_task_rests_when_the_clock_is_set_back(same_store: StoreFactory) -> None:
    """A due that came before the clock was set back does not start a disabled task, and a request does."""

    def declare(app: App, call: Callable[[str], None]) -> None:
        app.declare(lambda: call("rest"), "* * * * *", name="rest", enabled=False)

    programs = Programs(same_store, declare)
    async with programs.app() as app:
        await programs.clock.advance(timedelta(minutes=5))
        programs.clock.step(-timedelta(minutes=3))
        await programs.clock.advance(timedelta(minutes=10))
        assert not programs.calls
        await app.run_now("rest")
        await programs.clock.advance(timedelta(seconds=5))
    assert [name for name, _ in programs.calls] == ["rest"]


async def test_options_come_with_the_list(same_store: StoreFactory) -> None:
    """Another time limit or retry policy is no other task: its state stays, and the new option holds."""
    attempts = [2, 3]

    def declare(app: App, call: Callable[[str], None]) -> None:
        async def fails() -> None:
            call("fails")
            raise ValueError

        app.declare(fails, every("1h"), retry=Retry("10s", attempts=attempts.pop()))

    programs = Programs(same_store, declare)
    async with programs.app():
        await programs.clock.advance(timedelta(minutes=90))
    assert programs.times("fails") == [3600, 3610, 3620]
    async with programs.app():
        await programs.clock.advance(timedelta(hours=1))
    assert programs.times("fails")[3:] == [7200, 7210]
    assert not programs.told("TaskOverridden")


async def test_bodies() -> None:
    """Coroutines, plain functions in threads, bound methods, arguments and lambdas are called as declared."""
    clock = VirtualClock(START)
    seen: list[tuple[object, ...]] = []
    app = App(":memory:", clock=clock, timezone="UTC")

    class Mailer:
        def send(self, to: str, *, run: Run) -> None:
            seen.append(("send", to, run.task, threading.current_thread() is threading.main_thread()))

    async def work(number: int) -> None:
        seen.append(("work", number))

    @app.task(every("1m"))
    def plain() -> None:
        run = current_run()
        assert run is not None
        assert run.node == f"{socket.gethostname()}:{os.getpid()}"
        seen.append(("plain", run.task, run.due, threading.current_thread() is threading.main_thread()))

    app.declare(Mailer().send, every("1m"), name="mail", args=["a@example.com"])
    app.declare(work, every("1m"), kwargs={"number": 7})
    app.declare(lambda: work(8), every("1m"), name="lambda")
    async with app:
        await clock.advance(timedelta(minutes=1))
    assert sorted(seen, key=str) == [
        ("plain", "plain", START + timedelta(minutes=1), False),
        ("send", "a@example.com", "mail", False),
        ("work", 7),
        ("work", 8),
    ]
    assert current_run() is None


LATE_ANNOTATIONS = """
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Optional

from duly import every

if TYPE_CHECKING:
    from elsewhere import Session
    from duly import Run

def plain(run: Run) -> Session: seen.append(("plain", run))
def optional(session: Session | None = None, run: Optional[Run] = None): seen.append(("optional", run))
async def union(*, run: Run | None = None): seen.append(("union", run))
def argument(number: int, run: Run): seen.append(("argument", run))
def bound(run: Run, number: int = 0): seen.append(("bound", run))
def other(runs: list[Run] = ()): seen.append(("other", None if runs else run_of_other))

for function in (plain, optional, union, other):
    app.declare(function, every("1m"))
app.declare(partial(argument, 7), every("1m"), name="argument")
app.declare(partial(bound, run_of_other), every("1m"), name="bound")
"""


async def test_run_is_known_by_its_annotation() -> None:
    """A parameter gets the run however its annotation is written, and whatever else cannot be resolved."""
    clock = VirtualClock(START)
    app = App(":memory:", clock=clock, timezone="UTC")
    seen: list[tuple[str, Run]] = []
    run_of_other = Run(uuid.UUID(int=1), "of another", START, 1, "cron", None, "")
    exec(LATE_ANNOTATIONS, {"app": app, "seen": seen, "run_of_other": run_of_other})
    async with app:
        await clock.advance(timedelta(minutes=1))
    names = {name: run.task for name, run in seen}
    own = {name: name for name in ("plain", "optional", "union", "argument")}
    assert names == own | {"bound": "of another", "other": "of another"}


async def test_run_in_threads() -> None:
    """The run is known below the body in tasks and in threads that get the context, and in no other."""
    clock = VirtualClock(START)
    app = App(":memory:", clock=clock, timezone="UTC")
    seen: list[Run | None] = []

    def look() -> None:
        seen.append(current_run())

    @app.task(every("1m"))
    async def body() -> None:
        async def below() -> None:
            look()

        await asyncio.create_task(below())
        await asyncio.to_thread(look)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    async with app:
        await clock.advance(timedelta(minutes=1))
    assert [run and run.task for run in seen] == ["body", "body", None]


async def test_tasks_of_an_app() -> None:
    """The list of tasks says in words when each is due, and how it is."""
    clock = VirtualClock(START)
    app = App(MemoryStore(), clock=clock, timezone="UTC")
    app.declare(lambda: None, every("90s"), name="ping", tags=["net"])
    app.declare(lambda: 1 / 0, daily("13:00"), name="broken")
    async with app:
        await clock.advance_to(datetime(2026, 1, 1, 13, 0, 5, tzinfo=UTC))
        ping, broken = await app.tasks()
    assert (ping.last_result, broken.last_result) == ("success", "failure")
    assert (ping.schedule, ping.state, ping.tags) == ("every 1m 30s", "waiting", ("net",))
    assert ping.next_due == datetime(2026, 1, 1, 13, 0, 30, tzinfo=UTC)
    assert (broken.state, broken.last_success) == ("retrying", None)
    assert broken.next_due == datetime(2026, 1, 1, 13, 1, tzinfo=UTC)


def test_in_the_background(tmp_path: Path) -> None:
    """A program without an event loop runs its tasks in a thread, and its controls block."""
    seen: list[str] = []
    app = App(f"sqlite:///{tmp_path}/jobs.db", timezone="Europe/Berlin")
    app.declare(lambda: seen.append("ran"), every("1d"), name="job")
    app.declare(lambda: 1 / 0, every("1d"), name="broken")
    with app.background() as controls:
        controls.run_now("job")
        assert seen == ["ran"]
        with pytest.raises(ZeroDivisionError):
            controls.run_now("broken")
        controls.pause("job")
        assert [task.state for task in controls.tasks()] == ["paused", "retrying"]
    assert (tmp_path / "jobs.db").exists()


async def test_standby_takes_over(tmp_path: Path) -> None:
    """A second program waits while the first holds the store, and goes on when that has ended."""
    seen: list[str] = []

    def program(name: str) -> App:
        app = App(SQLiteStore(tmp_path / "state.db"), timezone="UTC", standby=True)
        app.declare(lambda: seen.append(name), every("1d"), name="job")
        return app

    first, second = program("first"), program("second")
    await first.start()
    await second.start()
    await (await first.run_now("job"))
    await first.stop()
    assert second._standing_by is not None
    await second._standing_by
    await (await second.run_now("job"))
    await second.stop()
    assert seen == ["first", "second"]


async def test_without_standby_the_store_is_refused(tmp_path: Path) -> None:
    """The error says who holds the store, and what would have helped."""
    apps = [App(tmp_path / "state.db") for _ in range(2)]
    async with apps[0]:
        with pytest.raises(StoreInUseError) as refused:
            await apps[1].start()
    assert "standby=True" in refused.value.__notes__[0]


BAD: list[tuple[Callable[[App], object], type[Exception], str]] = [
    (lambda app: app.task(5), TypeError, "task 'f': expected a schedule such as every('5m'), got int"),  # type: ignore[call-overload]
    (lambda app: app.task("*/5 * * * *"), SchedulerError, "crontab('*/5 * * * *')"),
    (
        lambda app: app.task(every("5m"), timeout="soon"),
        ValueError,
        "task 'f': timeout needs a length of time",
    ),
    (
        lambda app: app.task(every("5m"), timezone="Mars"),
        ValueError,
        "task 'f': timezone: there is no time zone 'Mars'",
    ),
    (lambda app: app.task(every("5m"), args=[1]), TypeError, "task 'f': too many positional arguments"),
    (lambda app: app.task, TypeError, "task 'f' has no schedule; write @app.task(every('5m'))"),
    (lambda app: app.task(every("5m"), tags="slow"), TypeError, "task 'f': tags needs a list of texts"),
    (
        lambda app: app.task(every("5m"), catch_up="never"),
        ValueError,
        "task 'f': catch_up (if not 'once' or 'skip') needs a length of time",
    ),
    (
        lambda app: app.task(every("5m"), colour="red"),  # type: ignore[call-overload]
        TypeError,
        "there is no option 'colour'; there are name, timeout, retry",
    ),
    (lambda app: app.task("5m"), SchedulerError, "it is a length of time; write every('5m')"),
    (lambda app: app.task("0 0 L * *"), SchedulerError, "monthly(day='last', at=...)"),
    (
        lambda app: app.task(every("5m"), timezone="Europe/Berlni"),
        ValueError,
        "task 'f': timezone: there is no time zone 'Europe/Berlni'; did you mean Europe/Berlin",
    ),
    (
        lambda app: app.task(daily("03:30"), timezone=timezone(timedelta(hours=2))),
        ValueError,
        "task 'f': timezone: there is no time zone 'UTC+02:00'; write one such as 'Europe/Berlin'",
    ),
    (lambda app: app.task(every("5m"), retry=None), TypeError, "Retry(attempts=1)"),  # type: ignore[call-overload]
    (lambda app: app.task(every("5m"), args="ab"), TypeError, "task 'f': args needs a list such as [42]"),
    (lambda app: app.task(every("5m"), args={"a": 1}), TypeError, "task 'f': args needs a list"),  # type: ignore[call-overload]
    (lambda app: app.task(every("5m"), kwargs=[1]), TypeError, "task 'f': kwargs needs a dict"),  # type: ignore[call-overload]
    (lambda app: app.task(every("5m"), tags=[5]), TypeError, "task 'f': each of tags must be a text, not 5"),  # type: ignore[list-item]
    (lambda app: app.task(every("5m"), enabled="no"), TypeError, "task 'f': enabled must be True or False"),  # type: ignore[call-overload]
    (lambda app: lambda _: app.declare(_yields, every("5m")), TypeError, "_yields is a generator"),
]


def _yields() -> Iterator[None]:
    yield


@pytest.mark.parametrize(("declare", "kind", "message"), BAD)
def test_mistakes_are_named(declare: Callable[[App], Any], kind: type[Exception], message: str) -> None:
    """A bad declaration names the task, the argument and the remedy."""

    def f() -> None: ...

    with pytest.raises(kind) as caught:
        declare(App(":memory:"))(f)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: every("5x"), "every() needs a length of time such as '5m'"),
        (every, "every() needs a length such as '5m', or units such as minutes=5"),
        (lambda: every("0s"), "every() needs a length of time"),
        (lambda: crontab("0 0 L * *"), "monthly(day='last', at=...)"),
        (lambda: crontab("0 0 * * 5#2"), "nth weekday"),
        (lambda: crontab("*/30 * * * * *"), "every('30s')"),
        (lambda: daily("25:00"), "daily() needs a time of day such as '03:30'"),
        (lambda: weekly("someday 09:00"), "weekly() needs a day and a time such as 'mon 09:00'"),
        (lambda: daily(3), "daily() needs a text such as '03:30', not int"),  # type: ignore[arg-type]
        (lambda: weekly(3), "weekly() needs a text such as 'mon 09:00', not int"),  # type: ignore[arg-type]
        (lambda: App(":memory:", limits=3), "needs a dict such as {'db': 3}, not int"),  # type: ignore[arg-type]
        (lambda: App(":memory:", history_count="9"), "needs a whole number, not '9'"),  # type: ignore[arg-type]
        (lambda: monthly(day=32, at="08:00"), "monthly() needs a day from 1 to 31 or 'last'"),
        (lambda: once("tomorrow"), "once() needs a time such as '2026-12-24 18:00'"),
        (lambda: every("999999999999w"), "every() needs a length of time"),
        (lambda: every(minute=5), "every() needs a length such as '5m', or weeks, days, hours"),  # type: ignore[call-overload]
        (lambda: weekly("mon-xyz 09:00"), "weekly() needs a day and a time such as 'mon 09:00'"),
        (lambda: weekly("1 09:00"), "weekly() needs a day and a time such as 'mon 09:00'"),
        (lambda: crontab("@fortnightly"), "there is no such macro; there are @hourly, @daily"),
        (lambda: crontab("@every 5m"), "write every('5m')"),
        (lambda: crontab("@reboot"), "call the function before app.run()"),
        (lambda: crontab("TZ=Asia/Tokyo 0 9 * * *"), "say timezone='Asia/Tokyo' where the task is declared"),
        (lambda: crontab("0 0 * *"), "it has 4 fields; crontab has five: minute hour day month weekday"),
        (lambda: crontab("0 0 15W * *"), "nearest weekday"),
        (lambda: crontab("0 0 * * wed,x"), "weekday field has 'wed,x'; it takes *, 0-7, sun-sat, lists"),
        (lambda: crontab("0 0 30 feb *"), "can never match: no such day in any of its months"),
        (lambda: crontab("*/0 * * * *"), "minute field has '*/0'; it takes *, 0-59, lists, ranges and steps"),
        (lambda: crontab("0 0 */2 * mon"), "crons do not agree on what day and weekday mean together"),
        (lambda: App(":memory:", listeners=print), "App(listeners=...) needs a list of functions"),  # type: ignore[arg-type]
    ],
)
def test_bad_schedules(make: Callable[[], object], message: str) -> None:
    """A bad schedule, or argument of an app, is refused where it is written."""
    with pytest.raises((ValueError, TypeError, InvalidScheduleError)) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("days", "field"),
    [("mon", "1"), ("Mon, thu", "1,4"), ("mon-fri", "1-5"), ("friday-mon", "0,1,5,6"), ("mon-sun", "*")],
)
def test_days_of_a_week(days: str, field: str) -> None:
    """A weekly schedule takes lists and ranges of days, also across the end of the week."""
    assert weekly(f"{days} 09:00").text == f"0 9 * * {field}"


def test_spread_is_stable() -> None:
    """An offset depends on the name of the task and on nothing else, and is below the spread."""
    app = App(":memory:", timezone="UTC")
    for name in ("a", "b", "c"):
        app.declare(lambda: None, daily("03:00"), name=name, spread="10m")
    texts = [item.expression.text for item in app._declarations.tasks.values()]
    offsets = [int(text.split("s")[0].removeprefix("+")) for text in texts]
    assert offsets == [250, 346, 530]


async def test_controls_need_a_running_app(tmp_path: Path) -> None:
    """An app that is not started says so; a request that a stop overtakes is cancelled."""
    app = App(tmp_path / "state.db")
    app.declare(lambda: None, every("1d"), name="job", enabled=False)
    with pytest.raises(RuntimeError, match="start it first"):
        await app.tasks()
    async with app:
        with pytest.raises(NoSuchTaskError, match="did you mean job"):
            await app.pause("jobs")
        with pytest.raises(TypeError, match="a control needs the name of a task, such as 'ping'"):
            await app.run_now(test_public_names)  # type: ignore[arg-type]
        await app.pause("job")
        handle = await app.run_now("job")
    with pytest.raises(asyncio.CancelledError):
        await handle


async def test_a_running_app_takes_no_more_tasks() -> None:
    """A task that is declared too late is refused, not left out in silence; the next life may have it."""
    app = App(":memory:", clock=VirtualClock(START))
    async with app:
        with pytest.raises(RuntimeError, match=r"task 'late' is declared while the app runs; .*\(app.add\)"):
            app.declare(lambda: None, every("1m"), name="late")
    app.declare(lambda: None, every("1m"), name="late")


async def test_run_needs_signals_and_no_loop() -> None:
    """`run` says what to write instead where it cannot work."""
    app = App(":memory:")
    with pytest.raises(RuntimeError, match="write `async with app:` there"):
        app.run()
    with pytest.raises(RuntimeError, match=r"needs the main thread, .* use app.background\(\) here"):
        await asyncio.to_thread(app.run)


def test_controls_from_another_loop(tmp_path: Path) -> None:
    """A control is refused on a loop that the app does not run on, and after its block has ended."""
    app = App(tmp_path / "state.db")
    with app.background() as controls, pytest.raises(ForeignEventLoopError) as caught:
        asyncio.run(app.tasks())
    assert "call the controls that background() gives" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match=r"the block of background\(\) has ended"):
        controls.tasks()


def test_two_tasks_of_one_name() -> None:
    """A name is given once."""
    app = App(":memory:")
    app.declare(lambda: None, every("1m"), name="job")
    with pytest.raises(ScheduleDuplicateTaskError):
        app.declare(lambda: None, every("1m"), name="job")


def test_public_names() -> None:
    """What the first page of the manual imports is there."""
    for name in (
        "App",
        "Retry",
        "Run",
        "crontab",
        "current_run",
        "daily",
        "every",
        "monthly",
        "once",
        "weekly",
    ):
        assert name in duly.__all__
        assert getattr(duly, name) is not None


async def test_a_control_that_failed_does_nothing_later() -> None:
    """A pause or a request that the store did not take is raised, and nothing comes of it once it is well."""
    clock, store = VirtualClock(START), FaultyStore(MemoryStore())
    calls: list[str] = []

    def program() -> App:
        app = App(store, clock=clock, timezone="UTC")
        app.declare(lambda: calls.append("job"), every("1d"), name="job")
        return app

    for fail in (store.fail, store.lose_answers):
        app = program()
        await app.start()
        fail(StoreError(store="it", reason="is full"))
        with pytest.raises(StoreError, match="is full"):
            await app.pause("job")
        with pytest.raises(StoreError, match="is full"):
            await app.run_now("job")
        store.heal()
        await clock.advance(timedelta(minutes=1))
        assert [task.state for task in await app.tasks()] == ["waiting"]
        await crash(app)
        async with program() as app:
            await clock.advance(timedelta(minutes=1))
            assert [task.state for task in await app.tasks()] == ["waiting"]
    assert calls == []
