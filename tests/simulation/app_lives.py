"""Lives of an app in virtual time, drawn from seeds, with every kind of schedule and every option.

Tasks are paused and asked for; the app crashes, and comes back with other lists. What is called when is
compared with what `app_model` says, run by run.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Literal

import msgspec

from duly import App, Retry, Run, Schedule, every, monthly, once
from duly.app import TaskStatus
from duly.cluster.tasks import ClusterTasks
from duly.events import Event
from duly.instant import MINUTE_US, SECOND_US, datetime_at, instant_of
from duly.store import MemoryStore
from duly.testing import VirtualClock, crash
from duly.verify import Outcome, Recorder, judged
from duly.verify.cluster import judged_together
from duly.verify.trace import Header, NodeJoined, Tick
from tests.simulation.app_model import AppModel, AppTask, Called, Ending, Shown
from tests.simulation.drawing import DAY_US, HOUR_US, ZONES, start_near_change_us
from tests.worlds.stores import HookedCluster, Place, StoreFactory

_TEXT = re.compile(r"(?:TZ=(?P<zone>\S+) )?(?:\+(?P<offset>[0-9]+)s )?(?P<body>.*)")
_NAMES = "abcde"
_KINDS = "mail", "bill"
_LASTS_US = (0, 0, 0, 1_000, SECOND_US, 5_000_123, 20 * SECOND_US, 61 * SECOND_US, 10 * MINUTE_US)
_DELAYS_US = (SECOND_US, 7 * SECOND_US, 45 * SECOND_US, 5 * MINUTE_US)
_WINDOWS: tuple[Literal["once", "skip"] | int, ...] = ("once", "once", "skip", 5 * SECOND_US, 10 * MINUTE_US)
_DOWNTIMES_US = (0, SECOND_US, 50 * SECOND_US, 5 * MINUTE_US, 3 * HOUR_US)


@dataclass(frozen=True)
class _Shape:
    """What kind of life: busy minutes, days around a change of the clocks, or months."""

    longest_us: int
    crons: tuple[str, ...]
    lengths_us: tuple[int, ...]
    kinds: tuple[Literal["cron", "last", "every", "after", "at"], ...]


_SHAPES = (
    _Shape(
        HOUR_US,
        ("* * * * *", "0,5,10,20,40 * * * *", "30 * * * *"),
        (10 * SECOND_US, 45 * SECOND_US, 90_500_000, 10 * MINUTE_US),
        ("cron", "every", "every", "after", "after", "at"),
    ),
    _Shape(
        3 * DAY_US,
        ("30 * * * *", "0,30 1-3 * * *", "15 2 * * *", "59 23 * * *", "0 9-17 * * 1-5"),
        (25 * MINUTE_US, 90 * MINUTE_US, 7 * HOUR_US, DAY_US),
        ("cron", "cron", "every", "after", "at"),
    ),
    _Shape(
        100 * DAY_US,
        ("0 3 * * *", "30 2 * * 0", "0 0 1 * *", "0 12 13 * 5"),
        (DAY_US, 7 * DAY_US, 11 * DAY_US),
        ("cron", "last", "last", "every", "at"),
    ),
)


@dataclass(frozen=True)
class Act:
    """What is done to an app, so long after the last thing."""

    wait_us: int
    what: Literal["pause", "resume", "request", "cancel", "crash", "stop", "step", "add", "remove", "sweep"]
    """A sweep: the program cancels the next start of a task before that is called."""
    name: str = ""
    by_us: int = 0
    """How long it is down, or how far the clock is set forward."""
    items: int | None = None
    """Which list it comes back with; None for the same."""
    entry: AppTask | None = None
    """What is added."""


@dataclass(frozen=True)
class AppPlan:
    """A life, before it is lived."""

    seed: int
    zone: str
    start_us: int
    lists: tuple[tuple[AppTask, ...], ...]
    acts: tuple[Act, ...]
    endings: dict[str, tuple[Ending, ...]]
    rest_us: int
    """How long it goes on after the last act."""
    kinds: tuple[tuple[AppTask, ...], ...] = ((), ())
    """Of which kinds entries can be, with each of the lists."""
    limits: Mapping[str, int] = field(default_factory=dict)


# --- drawing ---


def app_drawn(seed: int, *, has_entries: bool = False) -> AppPlan:
    """The plan of a seed."""
    rng = random.Random(f"app {seed}")
    shape = rng.choice((_SHAPES[0], _SHAPES[0], *_SHAPES))
    duration_us = rng.randrange(shape.longest_us // 4, shape.longest_us)
    zone = rng.choice(ZONES)
    start_us = start_near_change_us(rng, zone, duration_us)
    first = tuple(_task(rng, name, shape, start_us, duration_us) for name in _NAMES[: rng.randrange(1, 4)])
    lists = (first, _varied(rng, first, shape, start_us, duration_us))
    plan = AppPlan(
        seed,
        zone,
        start_us,
        lists,
        tuple(_acts(rng, duration_us)),
        {name: tuple(_endings(rng)) for name in _NAMES},
        duration_us // 4,
    )
    return _with_entries(rng, plan, shape, duration_us) if has_entries else plan


def entries_drawn(seed: int) -> AppPlan:
    """The plan of a seed in which entries come and go, too."""
    return app_drawn(seed, has_entries=True)


def limited_drawn(seed: int, *, has_sweeps: bool = True) -> AppPlan:
    """A plan of tasks that wait for each other, no two of which are due at the same instant."""
    rng = random.Random(f"limited {seed}")
    start_us = start_near_change_us(rng, "UTC", HOUR_US)
    items = tuple(
        AppTask(
            name,
            "at" if is_once else "every",
            length_us=start_us + instant_us if is_once else 2 * instant_us,
            delay_us=1_000_003 * number,
            attempts=rng.choice((1, 3)),
            limit=rng.choice(("db", "db", "db", None)),
        )
        for number, name in enumerate(_NAMES, 7)
        for is_once in (rng.random() < 0.5,)
        for instant_us in (rng.randrange(10 * SECOND_US, 60 * SECOND_US),)
    )
    acts = []
    for _ in range(rng.randrange(6)):
        what: Any = rng.choice(("request", "request", "cancel", "cancel", "crash", "stop"))
        name = "" if what in {"crash", "stop"} else rng.choice(_NAMES)
        acts.append(Act(rng.randrange(MINUTE_US), what, name, rng.randrange(MINUTE_US)))
    sweeps = random.Random(f"sweeps {seed}")
    for _ in range(sweeps.randrange(4) if has_sweeps else 0):
        act = Act(sweeps.randrange(20 * SECOND_US), "sweep", sweeps.choice(_NAMES))
        acts.insert(sweeps.randrange(len(acts) + 1), act)
    endings = {
        name: tuple(
            Ending(rng.randrange(1, 30 * SECOND_US), rng.random() < 0.7) for _ in range(rng.randrange(1, 5))
        )
        for name in _NAMES
    }
    limits = {"db": rng.choice((1, 1, 2))}
    return AppPlan(seed, "UTC", start_us, (items, items), tuple(acts), endings, 5 * MINUTE_US, limits=limits)


def _with_entries(rng: random.Random, plan: AppPlan, shape: _Shape, duration_us: int) -> AppPlan:
    """The plan with kinds in its lists, and entries that are added, changed and removed between its acts."""

    def task(name: str) -> AppTask:
        return _task(rng, name, shape, plan.start_us, duration_us)

    kinds = tuple(tuple(task(name) for name in rng.sample(_KINDS, rng.choice((1, 2, 2)))) for _ in plan.lists)
    # A list may have a task of the name, with the schedule and with the delay of an entry.
    delay_us = kinds[0][0].delay_us
    lists = tuple(
        tuple(replace(item, spread_us=0, delay_us=delay_us) if item.name == "d" else item for item in items)
        for items in plan.lists
    )
    listed = [item for items in lists for item in items if item.name == "d"]
    schedules = {"d": [task("d"), *(listed or [task("d")])], "e": [task("e"), task("e")]}
    acts = list(plan.acts)
    for _ in range(rng.randrange(2, 10)):
        name, wait_us = rng.choice("de"), rng.choice((0, SECOND_US, rng.randrange(duration_us // 8)))
        what: Any = rng.choice(("add", "add", "add", "remove", "pause", "resume", "request", "cancel"))
        drawn = rng.choice(schedules[name])
        zone = drawn.zone or (plan.zone if drawn.cron else None)
        entry = replace(drawn, zone=zone, spread_us=0, entry_of=rng.choice(_KINDS), is_on=rng.random() < 0.85)
        acts.insert(
            rng.randrange(len(acts) + 1), Act(wait_us, what, name, entry=entry if what == "add" else None)
        )
    return replace(plan, lists=lists, kinds=kinds, acts=tuple(acts))


def _task(rng: random.Random, name: str, shape: _Shape, start_us: int, duration_us: int) -> AppTask:
    kind = rng.choice(shape.kinds)
    length_us = rng.choice(shape.lengths_us)
    if kind == "at":
        length_us = start_us + rng.randrange(-duration_us // 4, duration_us)
    cron = rng.choice(shape.crons)
    if kind == "last":
        cron = f"{rng.choice((0, 30))} {rng.choice((0, 2, 8, 23))} * * *"
    is_civil = kind in {"cron", "last"}
    return AppTask(
        name,
        kind,
        cron if is_civil else "",
        0 if is_civil else length_us,
        rng.choice((None, *ZONES)) if is_civil else None,
        rng.choice((0, 0, 20 * SECOND_US, 10 * MINUTE_US)),
        rng.choice(_DELAYS_US),
        rng.choice((1, 1, 2, 3.5)),
        rng.choice((None, 30 * SECOND_US, HOUR_US)),
        rng.choice(
            (1, 2, 4) if duration_us > 3 * DAY_US else (None, 1, 2, 4)
        ),  # months of retries tell nothing
        rng.choice(_WINDOWS),
        rng.random() < 0.85,
        rng.choice((None, None, 15_000_001)),
    )


def _varied(
    rng: random.Random, items: tuple[AppTask, ...], shape: _Shape, start_us: int, duration_us: int
) -> tuple[AppTask, ...]:
    """Another list: of *items* some stay, some get other options, some are changed, some are gone."""
    varied = []
    for item in items:
        other = _task(rng, item.name, shape, start_us, duration_us)
        options = replace(item, enabled=not item.enabled, catch_up=other.catch_up, attempts=other.attempts)
        varied += rng.choice(([item], [item], [options], [options], [other], []))
    return (*varied, _task(rng, "d", shape, start_us, duration_us)) if rng.random() < 0.5 else tuple(varied)


def _acts(rng: random.Random, duration_us: int) -> Iterator[Act]:
    for _ in range(rng.randrange(14)):
        wait_us = rng.choice((0, SECOND_US, rng.randrange(duration_us // 8), rng.randrange(duration_us // 6)))
        name = rng.choice(_NAMES[:3])
        match rng.choice(("pause", "resume", "request", "request", "cancel", "crash", "stop", "step")):
            case "crash" | "stop" as what:
                downtime_us = rng.choice((*_DOWNTIMES_US, rng.randrange(duration_us // 4)))
                yield Act(wait_us, what, "", downtime_us, rng.choice((None, None, 0, 1)))
            case "step" as what:
                yield Act(wait_us, what, "", rng.choice((2, 61, 600, 7_200)) * SECOND_US)
            case "pause" | "resume" | "request" | "cancel" as what:
                yield Act(wait_us, what, name)


def _endings(rng: random.Random) -> Iterator[Ending]:
    for _ in range(rng.choice((1, 3, 7))):
        yield Ending(rng.choice(_LASTS_US), rng.random() < 0.5)
    yield Ending(rng.choice(_LASTS_US), is_ok=True)


# --- living ---


class _Lived:
    """A life that is being lived, and the model beside it."""

    def __init__(self, plan: AppPlan, place: StoreFactory, nodes: int = 1) -> None:
        self._plan = plan
        self._place = place
        self._nodes = nodes
        self._rng = random.Random(f"nodes {plan.seed}")
        self._clock = VirtualClock(datetime_at(plan.start_us, UTC))
        self._model = AppModel(plan.start_us, plan.zone, self._ending, limits=plan.limits)
        self._numbers: Counter[str] = Counter()
        self._calls: list[Called] = []
        self._list = 0
        self._apps: list[App] = []
        self._lines: list[list[bytes]] = [[] for _ in range(nodes)]
        """The trace of each node."""
        self._lives = 0
        self._surprises: list[str] = []
        self._sweeps: set[str] = set()
        """The tasks whose next start is cancelled before it is called."""

    @property
    def outcome(self) -> Outcome:
        """What the checker says of the traces."""
        return judged(self._lines[0]) if self._nodes == 1 else judged_together(chain(*self._lines))

    async def live(self) -> list[str]:
        await self._start()
        for act in self._plan.acts:
            await self._pass(act.wait_us)
            await self._act(act)
            await self._pass(0)
        await self._pass(self._plan.rest_us)
        faults = self._surprises + self._disagreements() + self._differences(await self._app.tasks())
        await self._crash()
        return faults

    @property
    def _items(self) -> tuple[AppTask, ...]:
        """What is declared now."""
        return self._plan.lists[self._list]

    @property
    def _app(self) -> App:
        """Any node."""
        return self._rng.choice(self._apps)

    async def _crash(self) -> None:
        for app, trace in zip(self._apps, self._lines, strict=True):
            await crash(app)
            alive = Tick(t=instant_of(self._clock.now()) / 1_000, proc=f"p{self._lives - 1}")
            trace.extend([_encoded(alive)] if self._nodes > 1 else [])  # else it seems to have died earlier

    async def _start(self) -> None:
        places = [self._place() for _ in range(self._nodes)]
        if isinstance(places[0], HookedCluster):
            places[0].fence_all()
        self._apps = []
        for number, place in enumerate(places):
            if isinstance(place, HookedCluster):
                place.go_by(self._clock)
            self._apps.append(await self._started(place, self._lines[number], f"n{number}"))
        self._lives += 1
        declared = {item.name for item in self._items}
        tasks = [status for status in await self._app.tasks() if status.name in declared]
        offsets_us = {status.name: self._offset_us(status) for status in tasks}
        self._model.start(self._items, offsets_us, self._plan.kinds[self._list])
        await self._pass(0)

    async def _started(self, place: Place, lines: list[bytes], node: str) -> App:
        """One node, with a recorder around it."""
        recorder = Recorder(
            store="fresh",
            persist_window=timedelta(microseconds=1_000),
            tick=None,
            proc=f"p{self._lives}",
            listeners=[lambda event: lines.append(_encoded(event))],
        )
        app = App(
            place,
            clock=self._clock,
            timezone=self._plan.zone,
            limits=self._plan.limits,
            listeners=[self._sweep] if any(act.what == "sweep" for act in self._plan.acts) else [],
        )
        if isinstance(app._backend, ClusterTasks):
            app._backend.node.name = node
        app = recorder.wrap(app)
        if not lines:
            lines.append(_encoded(recorder.header))
        for item in self._items:
            self._declare(app, item)
        for kind in self._plan.kinds[self._list]:
            app.kind(name=kind.name, **_run_options(kind))(self._behave)
        await app.start()
        return app

    def _declare(self, app: App, item: AppTask) -> None:
        async def body(run: Run) -> None:
            await self._behave(run)

        app.declare(
            body,
            _schedule(item),
            name=item.name,
            timezone=item.zone,
            spread=None if not item.spread_us else timedelta(microseconds=item.spread_us),
            enabled=item.enabled,
            **_run_options(item),
        )

    def _sweep(self, event: Event) -> None:
        name = event.fields.get("taskName")
        if event.name == "TaskRunStarted" and name in self._sweeps:
            self._sweeps.remove(name)
            # Once the task of the run is there, and before its first step.
            asyncio.get_running_loop().call_soon(_cancel, name)

    def _offset_us(self, status: TaskStatus) -> int:
        """By how much the dues of a task are moved, as its text says; what else that says must be so."""
        (item,) = (item for item in self._items if item.name == status.name)
        parts = _TEXT.fullmatch(status.text)
        assert parts is not None
        assert parts["zone"] == item.zone
        assert item.cron == parts["body"] or item.kind != "cron"
        offset_us = int(parts["offset"] or 0) * SECOND_US
        assert offset_us <= max(item.spread_us - 1, 0)
        return offset_us

    async def _behave(self, run: Run) -> None:
        now = self._clock.now()
        self._calls.append(Called(instant_of(now), run.task, run.cause, run.attempt, instant_of(run.due)))
        ending = self._ending(run.task, self._numbers[run.task])
        self._numbers[run.task] += 1
        if ending.lasts_us:
            await self._clock.sleep_until(now + timedelta(microseconds=ending.lasts_us))
        if not ending.is_ok:
            raise ValueError("as planned")

    def _ending(self, name: str, number: int) -> Ending:
        endings = self._plan.endings[name]
        return endings[number % len(endings)]

    async def _act(self, act: Act) -> None:
        model = self._model
        match act.what:
            case "crash":
                await self._crash()
                model.crash()
                await self._come_back(act)
            case "stop":
                stopping = asyncio.gather(*(app.stop() for app in self._apps))
                await self._pass(model.stop() - model.now_us)
                if not stopping.done():  # a run that the model does not know
                    await self._clock.advance(timedelta(days=1))
                await stopping
                await self._come_back(act)
            case "step" if model.is_idle:
                self._clock.step(timedelta(microseconds=act.by_us))
                model.step(act.by_us)
            case "sweep":
                self._sweeps.add(act.name)
            case "add" if act.entry is not None and act.name not in {item.name for item in self._items}:
                await self._add(act.entry)
            case "remove" if act.name in self._model.names - {item.name for item in self._items}:
                await self._app.remove(act.name)
                self._model.remove(act.name)
            case "pause" | "resume" | "request" | "cancel" if act.name in self._model.names:
                await self._control(act)

    async def _add(self, entry: AppTask) -> None:
        await self._app.add(
            entry.name,
            kind=entry.entry_of or "",
            schedule=_schedule(entry),
            timezone=entry.zone,
            enabled=entry.is_on,
        )
        self._model.add(entry)

    async def _control(self, act: Act) -> None:
        if act.what == "request":
            await self._app.run_now(act.name)
            self._model.request(act.name)
            return
        if act.what == "cancel":
            hit, meant = await self._app.cancel(act.name), self._model.cancel(act.name)
            self._surprises += [] if hit == meant else [f"cancel says {hit}; the model says {meant}"]
            return
        app = self._app
        await (app.pause if act.what == "pause" else app.resume)(act.name)
        self._model.pause(act.name, is_paused=act.what == "pause")

    async def _come_back(self, act: Act) -> None:
        await self._pass(act.by_us)
        self._list = self._list if act.items is None else act.items
        await self._start()

    async def _pass(self, for_us: int) -> None:
        await self._clock.advance(timedelta(microseconds=for_us))
        self._model.advance_to(self._model.now_us + for_us)

    # --- comparing ---

    def _disagreements(self) -> list[str]:
        faults = []
        for name in _NAMES:
            seen = [call for call in self._calls if call.task == name]
            meant = [call for call in self._model.calls if call.task == name]
            pairs = zip([*seen, None], [*meant, None], strict=False)
            number, (one, other) = next(
                (pair for pair in enumerate(pairs) if pair[1][0] != pair[1][1]), (0, (None, None))
            )
            if one != other:
                faults.append(f"run {number} of {name}: {_told(one)}; the model says {_told(other)}")
        return faults

    def _differences(self, tasks: list[TaskStatus]) -> list[str]:
        seen = {task.name: _shown(task) for task in tasks}
        meant = self._model.shown()
        return [
            f"{name} is shown as {seen.get(name)}; the model says {meant.get(name)}"
            for name in seen | meant
            if seen.get(name) != meant.get(name)
        ]


def app_lived(plan: AppPlan, place: StoreFactory, nodes: int = 1) -> list[str]:
    """Live *plan* on the store that *place* opens each time, once for each node. What is wrong."""
    return asyncio.run(_Lived(plan, place, nodes).live())


def app_judged(plan: AppPlan, place: StoreFactory | None = None, nodes: int = 1) -> Outcome:
    """What the checker says of a life that nobody compares with the model."""
    return app_faults(plan, place, nodes)[1]


def app_faults(plan: AppPlan, place: StoreFactory | None = None, nodes: int = 1) -> tuple[list[str], Outcome]:
    """In what a life differs from the model, and what the checker says of it."""
    store = MemoryStore()
    life = _Lived(plan, place or (lambda: store), nodes)
    return asyncio.run(life.live()), life.outcome


def _cancel(name: str) -> None:
    for task in asyncio.all_tasks():
        if task.get_name() == name:
            task.cancel()


def _encoded(event: Any) -> bytes:
    """As a line of the trace. The lease of the suite is longer than any life: nothing would ever be owed."""
    if isinstance(event, NodeJoined):
        event = msgspec.structs.replace(event, lease_ms=6_000)
    if isinstance(event, Header) and event.node is not None:
        event = msgspec.structs.replace(event, failover_ms=18_000)
    return msgspec.json.encode(event) + b"\n"


def _schedule(item: AppTask) -> Schedule | str:
    match item.kind:
        case "every":
            return every(timedelta(microseconds=item.length_us))
        case "after":
            return every(timedelta(microseconds=item.length_us), after_end=True)
        case "at":
            return once(datetime_at(item.length_us, UTC))
        case "last":
            minute, hour, *_ = item.cron.split()
            return monthly(day="last", at=f"{int(hour):02}:{int(minute):02}")
        case _:
            return item.cron


def _run_options(item: AppTask) -> dict[str, Any]:
    """What a task and a kind may both say."""
    return {
        "timeout": _length(item.timeout_us),
        "retry": Retry(
            timedelta(microseconds=item.delay_us), item.factor, _length(item.longest_us), item.attempts
        ),
        "catch_up": item.catch_up
        if isinstance(item.catch_up, str)
        else timedelta(microseconds=item.catch_up),
        "limit": item.limit,
    }


def _length(length_us: int | None) -> timedelta | None:
    return None if length_us is None else timedelta(microseconds=length_us)


def _shown(task: TaskStatus) -> Shown:
    moments = task.last_start, task.last_success, task.last_failure, task.next_due
    return Shown(task.state, *(None if moment is None else instant_of(moment) for moment in moments))


def _told(call: Called | None) -> str:
    if call is None:
        return "no run"
    at, due = (datetime.fromtimestamp(us / SECOND_US, UTC).isoformat() for us in (call.at_us, call.due_us))
    return f"{call.cause} at {at} for {due}, attempt {call.attempt}"
