"""Tasks that are added at run time, and named limits: on every store, in virtual time."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from duly import App, Retry, Run, Scheduler, daily, every, once
from duly.errors import EntryNameError, NoSuchTaskError
from duly.store import MemoryStore, SQLiteStore
from duly.store.reading import records_in
from duly.testing import VirtualClock
from tests.worlds.apps import START, Programs
from tests.worlds.stores import StoreFactory

Call = Callable[[str], None]


def with_invoices(app: App, call: Call) -> None:
    """Declare a kind whose entries call their number."""

    @app.kind(retry=Retry("10s", attempts=2), tags=["money"])
    async def invoice(number: int, run: Run) -> None:
        call(f"invoice {number}")
        if number < 0:
            raise ValueError(f"{run.task} is negative")


def with_nothing(app: App, call: Call) -> None:
    """Declare nothing."""


async def test_an_entry_survives_restarts(same_store: StoreFactory) -> None:
    """An entry runs with its arguments, and goes on after a restart: a list of tasks does not orphan it."""
    programs = Programs(same_store, with_invoices)
    app = programs.app()
    async with app:
        await app.add("a", kind="invoice", schedule=every("40s"), args={"number": 1})
        await programs.advance(90)
    assert programs.times("invoice 1") == [40, 80]
    app = programs.app()
    app.declare(lambda: None, every("1d"), name="other")
    async with app:
        await programs.advance(50)
        assert [(task.name, task.kind, task.args, task.tags) for task in await app.tasks()] == [
            ("other", None, None, ()),
            ("a", "invoice", {"number": 1}, ("money",)),
        ]
    assert programs.times("invoice 1") == [40, 80, 120]
    assert not programs.told("TaskOrphaned")
    assert programs.told("EntryAdded") == [
        {"taskName": "a", "kind": "invoice", "cronExpression": "@every 40s", "retryDelayMs": 10_000}
    ]


async def test_entries_come_and_go(same_store: StoreFactory) -> None:
    """An entry can be added when nothing else is there, changed and removed; the same again is nothing."""
    programs = Programs(same_store, with_invoices)
    app = programs.app()
    async with app:
        for _ in range(2):
            await app.add("a", kind="invoice", schedule=every("60s"), args={"number": 1})
        await programs.advance(70)
        await app.add("a", kind="invoice", schedule=every("60s"), args={"number": 2})
        await programs.advance(60)
        await app.add("a", kind="invoice", schedule=every("30s"), args={"number": 3})
        await programs.advance(40)
        await app.remove("a")
        await programs.advance(300)
        assert await app.tasks() == []
    assert programs.times("invoice 1") == [60]
    assert programs.times("invoice 2") == [120], "other arguments are no other schedule"
    assert programs.times("invoice 3") == [160], "another schedule starts over"
    names = [event.name for event in programs.events if event.name.startswith("Entry")]
    assert names == ["EntryAdded", "EntryChanged", "EntryChanged", "EntryRemoved"]
    assert programs.told("EntryRemoved") == [{"taskName": "a"}]


async def test_an_entry_waits_for_its_kind(same_store: StoreFactory) -> None:
    """Without its kind an entry waits, and is shown so; what was due runs once when the kind is back."""
    programs = Programs(same_store, with_invoices)
    app = programs.app()
    async with app:
        await app.add("a", kind="invoice", schedule=every("1h"), args={"number": 1})
    programs = without = Programs(same_store, with_nothing, is_old=True)
    app = without.app()
    async with app:
        await without.clock.advance_to(START + timedelta(hours=2, minutes=30))
        assert [(task.name, task.state) for task in await app.tasks()] == [("a", "waiting for its kind")]
        await app.add("b", kind="invoice", schedule=every("1h"), args={"number": 2})
    with_kind = Programs(same_store, with_invoices, is_old=True)
    with_kind.clock = without.clock
    async with with_kind.app():
        await with_kind.advance(60)
    assert with_kind.calls == [("invoice 1", START + timedelta(hours=2, minutes=30))]


async def test_an_entry_has_its_zone_spread_and_switch(same_store: StoreFactory) -> None:
    """Zone, spread and enabled belong to the entry; without a zone it has that of the app that added it."""
    programs = Programs(same_store, with_invoices)
    app = programs.app(timezone="Europe/Berlin")
    async with app:
        add = app.add
        await add("berlin", kind="invoice", schedule=daily("14:00"), args={"number": 1})
        await add("tokyo", kind="invoice", schedule=daily("23:00"), args={"number": 2}, timezone="Asia/Tokyo")
        await add("off", kind="invoice", schedule=every("1m"), args={"number": 3}, enabled=False)
        await add("late", kind="invoice", schedule=daily("16:30"), args={"number": 4}, spread="1h")
    app = programs.app(timezone="UTC")
    async with app:
        await programs.clock.advance_to(datetime(2026, 1, 1, 15, tzinfo=UTC))
        states = {task.name: task.state for task in await app.tasks()}
        assert states == {"berlin": "waiting", "tokyo": "waiting", "off": "disabled", "late": "waiting"}
        await app.add("off", kind="invoice", schedule=every("1m"), args={"number": 3}, enabled=True)
        await programs.advance(10)
        await app.remove("off")
        await programs.clock.advance_to(START + timedelta(hours=5))
    assert dict(programs.calls[:2]) == {
        "invoice 1": datetime(2026, 1, 1, 13, tzinfo=UTC),
        "invoice 2": datetime(2026, 1, 1, 14, tzinfo=UTC),
    }
    assert programs.times("invoice 3")[0] == (datetime(2026, 1, 1, 15, tzinfo=UTC) - START).total_seconds()
    (late,) = programs.times("invoice 4")
    assert 0 < late - (datetime(2026, 1, 1, 15, 30, tzinfo=UTC) - START).total_seconds() < 3_600


async def test_options_of_a_kind_hold_for_its_entries(same_store: StoreFactory) -> None:
    """Entries are retried and cut off as their kind says, also as it says after the next start."""

    def declare(app: App, call: Call) -> None:
        @app.kind(timeout="30s", retry=policies.pop())
        async def slow(number: int) -> None:
            call(f"slow {number}")
            await programs.clock.sleep_until(programs.clock.now() + timedelta(hours=1))

    policies = [Retry("20s", attempts=2), Retry("10s", attempts=3)]
    programs = Programs(same_store, declare)
    app = programs.app()
    async with app:
        await app.add("a", kind="slow", schedule=every("1h"), args={"number": 1})
        await programs.clock.advance_to(START + timedelta(minutes=90))
    assert programs.times("slow 1") == [3_600, 3_640, 3_680]
    async with programs.app():
        await programs.clock.advance_to(START + timedelta(minutes=150))
    assert programs.times("slow 1")[3:] == [7_200, 7_250]


async def test_an_entry_is_controlled_like_a_task(same_store: StoreFactory) -> None:
    """Run now, pause and resume work on entries; names that are nobody's are refused."""
    programs = Programs(same_store, with_invoices)
    app = programs.app()
    async with app:
        await app.add("a", kind="invoice", schedule=every("1h"), args={"number": 1})
        handle = await app.run_now("a")
        await programs.advance(1)
        await handle
        await app.pause("a")
        await programs.advance(4_000)
        assert programs.times("invoice 1") == [0]
        await app.resume("a")
        await programs.advance(1)
        assert len(programs.times("invoice 1")) == 2
        for control in (app.run_now, app.pause, app.resume, app.remove):
            with pytest.raises(NoSuchTaskError):
                await control("b")


async def test_an_interrupted_entry_starts_again(same_store: StoreFactory) -> None:
    """A run of an entry that a crash cuts off starts again in the next life."""

    def declare(app: App, call: Call) -> None:
        @app.kind()
        async def slow() -> None:
            call("slow")
            await programs.clock.sleep_until(programs.clock.now() + timedelta(minutes=10))

    programs = Programs(same_store, declare)
    app = programs.app()
    await app.start()
    await app.add("a", kind="slow", schedule=once(START + timedelta(seconds=60)))
    await programs.advance(65)
    await programs.crash(app)
    async with programs.app():
        await programs.advance(1)
        assert [seen["cause"] for seen in programs.told("TaskRunStarted")] == ["cron", "interrupted"]
        await programs.advance(700)


async def test_an_entry_changes_while_it_runs(same_store: StoreFactory) -> None:
    """Other arguments leave the run in flight alone, and its end counts: the due is not run twice."""

    def declare(app: App, call: Call) -> None:
        @app.kind()
        async def slow(number: int) -> None:
            call(f"slow {number}")
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=20))

    programs = Programs(same_store, declare)
    app = programs.app()
    async with app:
        await app.add("a", kind="slow", schedule=every("100s"), args={"number": 1})
        await programs.advance(105)
        await app.add("a", kind="slow", schedule=every("100s"), args={"number": 2})
        await programs.advance(100)
        await app.remove("a")
        await programs.advance(200)
    assert programs.calls == [
        ("slow 1", START + timedelta(seconds=100)),
        ("slow 2", START + timedelta(seconds=200)),
    ]
    assert len(programs.told("TaskRunCompleted")) == 2


async def test_a_declared_task_is_no_entry(same_store: StoreFactory) -> None:
    """An entry cannot have the name of a declared task; a task that is declared later takes the name."""
    programs = Programs(same_store, with_invoices)
    app = programs.app()
    app.declare(lambda: None, every("1d"), name="mine")
    async with app:
        with pytest.raises(EntryNameError, match="'mine' is declared by the program"):
            await app.add("mine", kind="invoice", schedule=every("1h"), args={"number": 1})
        with pytest.raises(EntryNameError):
            await app.remove("mine")
        await app.add("a", kind="invoice", schedule=every("1h"), args={"number": 1})
    app = programs.app()
    app.declare(lambda: programs.calls.append(("declared", programs.clock.now())), every("1h"), name="a")
    async with app:
        await programs.advance(3_700)
        assert [(task.name, task.kind) for task in await app.tasks()] == [("a", None)]
    assert [name for name, _ in programs.calls] == ["declared"]
    assert [seen["taskName"] for seen in programs.told("TaskOverridden")] == ["a"]


async def test_a_scheduler_leaves_entries_alone(same_store: StoreFactory) -> None:
    """`Scheduler` on the store of an app neither runs its entries nor orphans them."""
    programs = Programs(same_store, with_invoices)
    app = programs.app()
    async with app:
        await app.add("a", kind="invoice", schedule=every("1m"), args={"number": 1})
    events: list[Any] = []
    called = []

    async def mine() -> None:
        called.append("mine")

    scheduler = Scheduler(same_store(), clock=programs.clock, timezone=UTC, listeners=[events.append])
    await scheduler.initialize([("mine", "* * * * *", mine, timedelta(minutes=1))])
    await programs.advance(130)
    await scheduler.initialize([])
    await programs.advance(130)
    await scheduler.stop()
    assert called == ["mine"] * 3
    assert {event.fields["taskName"] for event in events if "taskName" in event.fields} == {"mine"}
    async with programs.app():
        await programs.advance(1)
    assert [name for name, _ in programs.calls] == ["invoice 1"]


async def test_a_limit_holds_and_keeps_the_order(same_store: StoreFactory) -> None:
    """Of the tasks of a named limit so many run at once; the others start in the order of their dues."""
    running = most = 0

    def declare(app: App, call: Call) -> None:
        async def job(number: int) -> None:
            nonlocal running, most
            call(f"job {number}")
            running, most = running + 1, max(most, running + 1)
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=60))
            running -= 1

        for number in range(6):
            at = START + timedelta(seconds=10 + number)
            app.declare(job, once(at), name=f"job-{number}", kwargs={"number": number}, limit="db")
        app.declare(lambda: call("free"), once(START + timedelta(seconds=12)), name="free")

    programs = Programs(same_store, declare)
    async with programs.app(limits={"db": 2}):
        await programs.advance(300)
    assert most == 2
    first = {name: (at - START).total_seconds() for name, at in programs.calls}
    assert first == {
        "job 0": 10,
        "job 1": 11,
        "free": 12,
        "job 2": 70,
        "job 3": 71,
        "job 4": 130,
        "job 5": 131,
    }


async def test_a_limit_counts_entries_failures_and_retries(same_store: StoreFactory) -> None:
    """A failed run gives its room back; a retry that finds none waits like a due."""

    def declare(app: App, call: Call) -> None:
        @app.kind(limit="one", retry="5s")
        async def job(name: str, seconds: int) -> None:
            call(name)
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=seconds))
            if name == "bad" and len(programs.times("bad")) == 1:
                raise ValueError

    programs = Programs(same_store, declare)
    app = programs.app(limits={"one": 1})
    async with app:
        await app.add(
            "bad",
            kind="job",
            schedule=once(START + timedelta(seconds=10)),
            args={"name": "bad", "seconds": 1},
        )
        await app.add(
            "good",
            kind="job",
            schedule=once(START + timedelta(seconds=11)),
            args={"name": "good", "seconds": 30},
        )
        await programs.advance(100)
    assert [(name, (at - START).total_seconds()) for name, at in programs.calls] == [
        ("bad", 10),
        ("good", 11),
        ("bad", 41),
    ]


async def test_what_waits_for_room_may_go(same_store: StoreFactory) -> None:
    """Who waits for room and is paused, removed or changed meanwhile does not hold up the others."""

    def declare(app: App, call: Call) -> None:
        @app.kind(limit="one")
        async def job(name: str) -> None:
            call(name)
            await programs.clock.sleep_until(programs.clock.now() + timedelta(seconds=60))

    programs = Programs(same_store, declare)
    app = programs.app(limits={"one": 1})
    async with app:
        for number, name in enumerate(("first", "paused", "gone", "last")):
            at = START + timedelta(seconds=10 + number)
            await app.add(name, kind="job", schedule=once(at), args={"name": name})
        await programs.advance(30)
        await app.pause("paused")
        await app.remove("gone")
        await programs.advance(120)
        await app.resume("paused")
        await programs.advance(100)
    assert [(name, (at - START).total_seconds()) for name, at in programs.calls] == [
        ("first", 10),
        ("last", 70),
        ("paused", 150),
    ]


async def test_a_file_of_format_5(tmp_path: Path) -> None:
    """A file from before entries is read as it is, keeps every state, and takes entries when it is opened."""
    path = tmp_path / "state.db"
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(Path(__file__).with_name("store_of_format_5.sql").read_text())
    assert [(record[1], record[-1]) for record in records_in(path)] == [
        (name, None) for name in ("beat", "paused", "slow", "fails")
    ]

    def declare(app: App, call: Call) -> None:
        app.declare(lambda: call("beat"), every("40s"), name="beat")
        app.declare(lambda: call("paused"), daily("03:30"), name="paused", timezone="Europe/Berlin")
        app.declare(lambda: call("slow"), every("60s"), name="slow")
        app.declare(lambda: call("fails"), every("50s"), name="fails", retry="5m")
        with_invoices(app, call)

    programs = Programs(lambda: SQLiteStore(path), declare, is_old=True)
    await programs.clock.advance_to(START + timedelta(seconds=95))  # it was killed at 90
    app = programs.app()
    async with app:
        assert [(task.name, task.state) for task in await app.tasks()][1] == ("paused", "paused")
        await app.add("a", kind="invoice", schedule=every("1s"), args={"number": 7})
        await programs.advance(4)
        await app.remove("a")
        await programs.advance(2)
        await app.add("a", kind="invoice", schedule=every("1h"), args={"number": 8})
    assert [(name, (at - START).total_seconds()) for name, at in programs.calls] == [
        *[("slow", 95), *(("invoice 7", second) for second in range(96, 100)), ("fails", 100)],
    ]
    assert programs.told("TaskRunStarted")[0]["cause"] == "interrupted"
    assert not programs.told("TaskOverridden")
    assert records_in(path)[-1][-1] == '{"kind":"invoice","args":{"number":8}}'


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"kind": "invoice", "schedule": 5},
            TypeError,
            "entry 'a': expected a schedule such as every('5m'), got int",
        ),
        ({"kind": len, "schedule": every("1h")}, ValueError, "entry 'a': <built-in function len> is no kind"),
        (
            {"args": {"number": 1, "more": 2}},
            TypeError,
            "entry 'a': got an unexpected keyword argument 'more'",
        ),
        ({"args": {"number": {1}}}, TypeError, "entry 'a': args must be JSON"),
        ({"args": {"number": float("nan")}}, TypeError, "entry 'a': args must be JSON"),
        ({"args": [1]}, TypeError, "entry 'a': args must be a dict such as {'id': 42}, not list"),
        ({"timezone": "Mars"}, ValueError, "entry 'a': timezone: there is no time zone 'Mars'"),
        ({"enabled": 1}, TypeError, "entry 'a': enabled must be True or False, not 1"),
        ({"spred": "1m"}, TypeError, "entry 'a': there is no option 'spred'; did you mean spread?"),
    ],
)
async def test_mistakes_in_entries(options: dict[str, Any], error: type[Exception], words: str) -> None:
    """A wrong entry is refused in terms of Python that name the entry, the argument and the remedy."""
    app = App(MemoryStore(), clock=VirtualClock(START), timezone="UTC")
    with_invoices(app, lambda _name: None)
    async with app:
        given = {"kind": "invoice", "schedule": every("1h"), "args": {"number": 1}, **options}
        with pytest.raises(error) as raised:
            await app.add("a", **given)
        assert words in str(raised.value)
        assert await app.tasks() == []


def test_mistakes_in_limits() -> None:
    """A limit that the app does not have is refused, with the task, the argument and the known limits."""
    app = App(":memory:", limits={"db": 3, "mail": 1})
    with pytest.raises(ValueError, match=r"task 'job': limit='bd' is not among .* \('db', 'mail'\)"):
        app.declare(lambda: None, every("1m"), name="job", limit="bd")
    with pytest.raises(ValueError, match="kind 'job': limit='bd'"):
        app.kind(name="job", limit="bd")(print)
    with pytest.raises(ValueError, match="must be at least 1, not 0"):
        App(":memory:", limits={"db": 0})
    with pytest.raises(TypeError, match=r"needs a whole number, not 1\.5"):
        App(":memory:", limits={"db": 1.5})  # type: ignore[dict-item]
