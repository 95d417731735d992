"""Timers against a model that walks from minute to minute and keeps lists where they keep one number.

The model shares no code with them: slots are matched field by field, each minute; lengths of time are kept
on a clock of their own that no step touches; what is owed is a list. A life is drawn from a seed, which a
failure names: slots, overlaps, failures, retries, switches, triggers, downtimes, crashes, gates, clock steps.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from duly.config.schema import Calendar, Timer
from duly.instant import instant_of
from duly.supervisor.results import RunResult
from tests.worlds.timers import EXIT, KILLED, SUCCESS, TimerWorld, timer

S = 1_000_000
MIN = 60 * S
HOUR = 60 * MIN
NEVER = 1 << 62
TARGETS = ("job", "other")


@dataclass
class Plan:
    """A life, drawn beforehand."""

    definitions: list[Timer]
    ends: dict[str, list[tuple[int, RunResult]]]
    """Of each target, how long each run lasts and how it ends, one by one."""
    actions: list[tuple[int, str, Any]]
    """How long to wait, what to do, and with what."""


def plan_of(seed: int) -> Plan:
    """The life of a seed."""
    random = Random(seed)
    definitions = [some_timer(random, f"t{n}") for n in range(random.randint(1, 4))]
    ends = {}
    for number, target in enumerate(TARGETS):
        # Odd fractions, so that an end never falls on a slot, or on anything else by chance.
        spans = (random.choice([5, 40, 100, 900, 5000]) * S + 1_001 * (n + 1) + number for n in range(4000))
        ends[target] = [(span, random.choice([SUCCESS, SUCCESS, EXIT, EXIT, KILLED])) for span in spans]
    names = [item.id for item in definitions]
    actions = [some_action(random, names) for _ in range(random.randint(3, 14))]
    return Plan(definitions, ends, actions)


def some_timer(random: Random, name: str) -> Timer:
    """A timer with at least one trigger."""
    triggers: dict[str, Any] = {}
    while not triggers:
        if random.random() < 0.7:
            triggers["on_calendar"] = [some_calendar(random) for _ in range(random.choice([1, 1, 2]))]
        if random.random() < 0.3:
            triggers["on_startup_sec"] = random.choice([10, 600, 4000])
        if random.random() < 0.4:
            triggers["on_unit_active_sec"] = random.choice([61, 1200, 9000])
    return timer(
        name,
        random.choice(TARGETS),
        **triggers,
        enabled=random.random() < 0.9,
        persistent=random.random() < 0.7,
        catch_up_window_sec=random.choice([0, 1800, 86400]),
        retry_intervals_sec=random.choice([(), (30,), (30, 120, 600)]),
    )


def some_calendar(random: Random) -> Calendar:
    return random.choice(
        [
            Calendar(minute=(0, 20, 40)),
            Calendar(minute=(0,)),
            Calendar(minute=tuple(range(7, 60, 13)), hour=(random.randrange(24), random.randrange(24))),
            Calendar(minute=(30,), hour=(random.randrange(24),)),
            Calendar(minute=(0,), hour=(3, 15), day_of_week=(4, 5)),
        ]
    )


def some_action(random: Random, names: list[str]) -> tuple[int, str, Any]:
    wait = random.choice([40 * S, 10 * MIN, 2 * HOUR, 9 * HOUR]) + random.randrange(60) * S + 300_017
    kind = random.choice(["crash", "stop", "off", "switch", "switch", "step", "step", "trigger", "restart"])
    if kind in {"crash", "stop", "off"}:
        return wait, kind, random.choice([1 * S, 50 * S, 20 * MIN, 3 * HOUR, 70 * HOUR])
    if kind in {"switch", "trigger"}:
        return wait, kind, random.choice(names)
    if kind == "step":
        sizes = [30 * S, 90 * S, 2 * HOUR, 30 * HOUR, -100 * S, -290 * S, -2 * HOUR, -30 * HOUR]
        return wait, kind, random.choice(sizes)
    return wait, kind, None


# --- the model ---


@dataclass
class Run:
    """A run in flight."""

    target: str
    owner: "Model | None"
    ends_at: int
    how: RunResult


@dataclass
class Model:
    """One timer. Names with `_real` are on the clock that no step touches, the others on the wall."""

    definition: Timer
    is_on: bool
    owed: list[int] = field(default_factory=list)
    """Slots that have come and that nothing has answered."""
    high: int = 0
    """Minutes up to here have been had."""
    startup_real: int = NEVER
    anchor: tuple[str, int] | None = None
    """On which clock, and when."""
    retry_real: int = NEVER
    retries: int = 0
    run: Run | None = None
    cut_off: bool = False
    last_run: int = 0
    is_asked: bool = False
    last_miss: int = 0
    told: int = 0
    """The last miss of the session before, until there is one in this."""


class World:
    """The model of everything: all timers are looked at, at every minute and at every instant of interest."""

    def __init__(self, plan: Plan, start: int) -> None:
        self.plan = plan
        self.ends = {target: list(ends) for target, ends in plan.ends.items()}
        self.real = 0
        self.offset = start
        self.timers = [Model(item, item.enabled, high=start) for item in plan.definitions]
        self.live: dict[str, Run] = {}
        self.last_end: dict[str, int] = {}
        self.started_real = 0
        self.is_up = False
        self.runs: list[tuple[str, str, int]] = []
        self.misses: list[tuple[str, int, str]] = []

    @property
    def wall(self) -> int:
        """What the wall clock reads."""
        return self.real + self.offset

    # --- time ---

    def pass_time(self, span: int) -> None:
        """Let time pass, from one instant of interest to the next."""
        until = self.real + span
        while self.real < until:
            minute = self.wall // MIN * MIN + MIN - self.offset
            at = min([until, minute, *self.instants()])
            self.real = at
            for target, run in list(self.live.items()):
                if run.ends_at <= at:
                    self.end(target, run, run.how)
            self.come_due(self.wall, self.wall)
            self.look()

    def instants(self) -> list[int]:
        """What may happen before the next minute."""
        found = [run.ends_at for run in self.live.values()]
        for item in self.timers:
            found += [item.startup_real, item.retry_real, self.interval_real(item)]
        return [at for at in found if at > self.real]

    def come_due(self, first: int, last: int) -> None:
        """The minutes from *first* to *last* are had now."""
        for minute in range(-(-first // MIN) * MIN, last + 1, MIN):
            moment = datetime.fromtimestamp(minute // S, UTC)
            for item in self.timers:
                if minute > item.high and any(matches(c, moment) for c in item.definition.on_calendar):
                    item.owed.append(minute)
        for item in self.timers:
            item.high = max(item.high, last)

    def step(self, by: int) -> None:
        """Set the wall clock."""
        before = self.wall
        self.offset += by
        if by > 0:
            self.come_due(before, self.wall)
        elif by < -5 * MIN:
            for item in self.timers:
                item.high = min(item.high, self.wall - 1)
                item.owed = [slot for slot in item.owed if slot < self.wall]
            self.come_due(self.wall, self.wall)
        for item in self.timers:
            if item.anchor is not None and item.anchor[0] == "wall":
                self.anchor_on_wall(item, item.anchor[1])
        self.look()

    # --- runs ---

    def end(self, target: str, run: Run, how: RunResult) -> None:
        del self.live[target]
        self.last_end[target] = self.wall
        if not self.is_up:
            return
        for item in self.timers:
            if item.definition.target == target:
                item.anchor = ("real", self.real)
        item = run.owner  # type: ignore[assignment]
        if item is not None:
            item.run = None
            if how is SUCCESS:
                item.retries = 0
            intervals = item.definition.retry_intervals_sec
            if how is EXIT and item.is_on and item.retries < len(intervals):
                item.retry_real = self.real + int(intervals[item.retries] * S)
                item.retries += 1

    def interval_real(self, item: Model) -> int:
        """When the interval has passed."""
        every = item.definition.on_unit_active_sec
        if every is None or item.anchor is None:
            return NEVER
        clock, at = item.anchor
        return at + int(every * S) - (self.offset if clock == "wall" else 0)

    def anchor_on_wall(self, item: Model, at: int | None) -> None:
        """Count the interval from a wall time, unless that is far ahead."""
        if at is None:
            item.anchor = None
        else:
            item.anchor = ("wall", self.wall if at > self.wall + 5 * MIN else at)

    # --- looking ---

    def look(self) -> None:
        """Look at all timers."""
        if self.is_up:
            for item in self.timers:
                self.look_at(item)

    def look_at(self, item: Model) -> None:
        """Fire a timer, or have it miss what is due."""
        definition = item.definition
        is_busy = definition.target in self.live
        if item.owed and self.wall - max(item.owed) > MIN and not self.may_make_up(item, max(item.owed)):
            # What the session before noted last, perhaps while it was stopping, is not noted again.
            if item.told != max(item.owed):
                self.miss(item, max(item.owed), "shutdown" if item.is_on else "disabled")
            item.owed.clear()
            lost = True
        else:
            lost = False
        why, at = self.due(item, is_busy)
        if not why:
            if item.cut_off and not lost:
                self.miss(item, item.last_run, "shutdown")
            item.cut_off = False
            return
        is_interval_due = self.interval_real(item) <= self.real
        if self.startup_due(item):
            item.startup_real = NEVER
        if item.retry_real <= self.real:
            item.retry_real = NEVER
        item.owed.clear()
        item.cut_off = False
        if not item.is_on and not item.is_asked:
            self.miss(item, at, "disabled")
        elif is_busy:
            self.miss(item, at, "overlap")
        else:
            self.fire(item, why)
            return
        if is_interval_due:
            item.anchor = ("real", self.real)

    def due(self, item: Model, is_busy: bool) -> tuple[str, int]:
        """Why a timer is to fire, and since when."""
        if item.is_asked:
            return "trigger", self.wall
        if item.owed:
            slot = max(item.owed)
            return ("schedule" if self.wall - slot <= MIN else "catch-up"), slot
        if item.cut_off and self.may_make_up(item, item.last_run):
            return "catch-up", item.last_run
        if self.startup_due(item):
            return "startup", item.startup_real + self.offset
        if item.is_on and not is_busy and self.interval_real(item) <= self.real:
            return "interval", self.interval_real(item) + self.offset
        if item.retry_real <= self.real:
            return "retry", item.retry_real + self.offset
        return "", 0

    def startup_due(self, item: Model) -> bool:
        """Whether the start-up trigger has come."""
        return item.startup_real <= self.real

    def may_make_up(self, item: Model, at: int) -> bool:
        """Whether what was missed then is made up for."""
        window = int(item.definition.catch_up_window_sec * S)
        return item.definition.persistent and item.is_on and window > 0 and self.wall - at <= window

    def fire(self, item: Model, why: str) -> None:
        """Start a run."""
        target = item.definition.target
        assert target not in self.live
        span, how = self.ends[target].pop(0)
        item.run = self.live[target] = Run(target, item, self.real + span, how)
        item.last_run = self.wall
        item.retry_real = NEVER
        item.retries = item.retries if why == "retry" else 0
        item.is_asked = False
        self.runs.append((item.definition.id, why, self.wall))

    def miss(self, item: Model, at: int, why: str) -> None:
        """Note a miss."""
        self.misses.append((item.definition.id, at, why))
        item.last_miss, item.told = at, 0

    # --- what is done to it ---

    def begin(self, *, is_start_up: bool) -> None:
        """Start the supervisor, or switch the timers on."""
        self.is_up = True
        if is_start_up:
            self.started_real = self.real
        for item in self.timers:
            item.retry_real, item.retries = NEVER, 0
            item.told = item.last_miss
            after = item.definition.on_startup_sec
            item.startup_real = NEVER if after is None else self.started_real + int(after * S)
            if item.startup_real <= self.real and not is_start_up:
                item.startup_real = NEVER
            self.anchor_on_wall(item, self.last_end.get(item.definition.target))
        self.look()

    def go_down(self, *, is_crash: bool) -> None:
        """End the supervisor, and all runs with it."""
        for target, run in list(self.live.items()):
            if not is_crash:
                self.last_end[target] = self.wall
            if run.owner is not None and run.owner.run is run:
                run.owner.cut_off, run.owner.run = True, None
            del self.live[target]
        self.is_up = False

    def switch_off(self) -> None:
        """Switch the timers off: runs go on and are nobody's."""
        self.is_up = False
        for run in self.live.values():
            run.owner = None
        for item in self.timers:
            item.run = None

    def switch(self, name: str) -> bool:
        """Switch a timer, and say how it is now."""
        (item,) = (item for item in self.timers if item.definition.id == name)
        item.is_on = not item.is_on
        if not item.is_on:
            item.retry_real, item.retries = NEVER, 0
        self.look()
        return item.is_on

    def trigger(self, name: str) -> bool:
        """Trigger a timer, if that can be."""
        (item,) = (item for item in self.timers if item.definition.id == name)
        if item.definition.target in self.live:
            return False
        item.is_asked = True
        self.look()
        return True


def matches(calendar: Calendar, moment: datetime) -> bool:
    """Whether a minute is one of a calendar."""
    pairs = (
        (calendar.minute, moment.minute),
        (calendar.hour, moment.hour),
        (calendar.day_of_month, moment.day),
        (calendar.month, moment.month),
        (calendar.day_of_week, moment.isoweekday() % 7),
    )
    return all(chosen is None or value in chosen for chosen, value in pairs)


# --- both, side by side ---


class Life:
    """The timers and the model of them, living the same life."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ours = TimerWorld("12:00:30")
        self.model = World(plan, instant_of(self.ours.clock.now()))
        self.misses: list[tuple[str, int, str]] = []
        self.ours._on_miss = lambda *miss: self.misses.append(miss)  # type: ignore[method-assign]
        self.steps: dict[Any, timedelta] = {}
        self.stepped = asyncio.Event()
        self.script(self.ours.targets)

    def script(self, targets: Any) -> None:
        """Have runs last and end as planned. A run is a length of time, whatever the clock reads."""
        left = {target: list(ends) for target, ends in self.plan.ends.items()}
        clock = targets.clock

        async def last(service: str, end: Any) -> None:
            span, how = left[service].pop(0)
            until = clock.now() + timedelta(microseconds=span)
            self.steps[end] = timedelta(0)
            while not end.done() and clock.now() < until + self.steps[end]:
                sleeping = asyncio.ensure_future(clock.sleep_until(until + self.steps[end]))
                stepping = asyncio.ensure_future(self.stepped.wait())
                await asyncio.wait([sleeping, stepping, end], return_when=asyncio.FIRST_COMPLETED)
                sleeping.cancel()
                stepping.cancel()
            if not end.done():
                targets.end(service, how)

        targets._last = last

    async def live(self) -> None:
        """Live the whole life."""
        await self.ours.begin(*self.plan.definitions)
        self.model.begin(is_start_up=True)
        for wait, kind, what in self.plan.actions:
            await self.wait(wait)
            await getattr(self, f"do_{kind}")(what)
            self.compare(f"after {kind} {what}")
        await self.wait(5 * HOUR)
        self.compare("at the end")

    async def wait(self, span: int) -> None:
        """Let time pass."""
        await self.ours.after(timedelta(microseconds=span))
        self.model.pass_time(span)
        self.compare(f"after {span / S} s")

    def compare(self, when: str) -> None:
        """See that both are the same so far."""
        ran = [(item.timer, item.reason) for item in self.ours.targets.began]
        assert ran == [run[:2] for run in self.model.runs], when
        assert self.misses == self.model.misses, when
        assert self.ours.targets.collisions == 0, "never two runs of a target at once"
        for item in self.model.timers:
            if self.model.is_up:
                state = self.ours.state(item.definition.id)
                assert (state.running_run is not None) == (item.run is not None), when
                assert (state.last_run_us or 0) == item.last_run, when

    async def down(self, span: int) -> None:
        """Be down for a while, and start again."""
        await self.wait(span)
        await self.ours.begin(*self.plan.definitions)
        self.model.begin(is_start_up=True)

    async def do_crash(self, span: int) -> None:
        """Kill the supervisor."""
        await self.ours.crash()
        self.model.go_down(is_crash=True)
        await self.down(span)

    async def do_stop(self, span: int) -> None:
        """Stop the supervisor."""
        await self.ours.stop()
        self.model.go_down(is_crash=False)
        await self.down(span)

    async def do_restart(self, _: None) -> None:
        """Stop, and start again at once."""
        await self.do_stop(0)

    async def do_off(self, span: int) -> None:
        """Switch the timers off for a while."""
        await self.ours.shut()
        self.model.switch_off()
        await self.wait(span)
        await self.ours.open(*self.plan.definitions)
        self.model.begin(is_start_up=False)

    async def do_switch(self, name: str) -> None:
        """Switch a timer."""
        is_on = self.model.switch(name)
        await (self.ours.timers.enable if is_on else self.ours.timers.disable)(name)
        await self.ours.rest()

    async def do_trigger(self, name: str) -> None:
        """Trigger a timer."""
        if self.model.trigger(name):
            await self.ours.timers.trigger(name)
            await self.ours.rest()

    async def do_step(self, by: int) -> None:
        """Set the clock."""
        for end in self.steps:
            self.steps[end] += timedelta(microseconds=by)
        self.ours.clock.step(timedelta(microseconds=by))
        self.stepped.set()
        self.stepped = asyncio.Event()
        await self.ours.rest()
        self.model.step(by)


@pytest.mark.parametrize("seed", range(60))
async def test_a_life_is_as_the_model_says(seed: int) -> None:
    """Every run and every miss of a random life is as the model, which walks all minutes, has it."""
    await Life(plan_of(seed)).live()


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(20))
async def test_many_lives_are_as_the_model_says(hundred: int) -> None:
    """The same for two thousand lives."""
    for seed in range(100 * hundred + 1_000, 100 * hundred + 1_100):
        await Life(plan_of(seed)).live()
