"""The monitor of timers in random lives: it has nothing to say of ours, and something of each broken one."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import Any

import msgspec
import pytest

from duly import Event
from duly.clock import Step
from duly.config.schema import Calendar, Timer
from duly.cron import CronExpression
from duly.events import LEVELS
from duly.instant import instant_of
from duly.store.history import Result
from duly.supervisor.results import RunResult
from duly.timers import calendar, dues, reconciliation
from duly.timers import timer as transitions
from duly.verify.timers import TIMER_PROPERTIES, TimerMonitor, ZonedTimer, zoned_timer
from tests.property.test_timers import Life, Plan, plan_of
from tests.worlds.timers import FakeTargets

_replace = msgspec.structs.replace

BOTH_DAYS = Calendar(minute=(0,), hour=(3, 15), day_of_month=tuple(range(1, 32, 2)), day_of_week=(0, 1, 4, 5))


class Told(list[Any]):
    """A list that passes on whatever is added to it."""

    def __init__(self, hear: Callable[[Any], object]) -> None:
        super().__init__()
        self._hear = hear

    def append(self, item: Any) -> None:
        """Pass it on, and keep it."""
        super().append(item)
        self._hear(item)


class WatchedLife(Life):
    """A life with a monitor in each of its processes, and the events that a daemon would tell besides."""

    def __init__(self, plan: Plan, *, is_compared: bool = True) -> None:
        super().__init__(plan)
        self.is_compared = is_compared
        self.violations: list[Event] = []
        self.checked: Counter[str] = Counter()
        self.shift_us = 0
        self.ours.clock.watch(self._note_step)
        self.monitor = self._new_monitor()
        self.ours.events = Told(self._hear)
        self.began: dict[int, tuple[Any, int]] = {}
        self.ours.targets.began = Told(self._run_began)
        self._wrap()

    def steady_us(self) -> int:
        """Time that no step changes."""
        return instant_of(self.ours.clock.now()) - self.shift_us

    def _note_step(self, step: Step) -> None:
        self.shift_us += step.after_us - step.before_us

    def _new_monitor(self) -> TimerMonitor:
        def declared() -> list[ZonedTimer]:
            return [
                zoned_timer(
                    state.definition, UTC, answered_us=state.answered_us, missed_us=state.last_missed_us
                )
                for state in self.ours.timers.all()
            ]

        return TimerMonitor(declared, [self.violations.append], steady_us=self.steady_us)

    def emit(self, name: str, **fields: Any) -> None:
        """Let the monitor hear what the daemon would tell."""
        self.monitor.listener(Event(name, LEVELS[name], self.ours.clock.now(), fields))

    def _wrap(self) -> None:
        ours, targets = self.ours, self.ours.targets
        begin, shut, stop, new, end = ours.begin, ours.shut, ours.stop, ours._new, targets.end

        async def begun(*definitions: Timer, **options: Any) -> Any:
            self.count()
            self.monitor = self._new_monitor()
            self.emit("SupervisorStarted", services=2, duration=0)
            return await begin(*definitions, **options)

        async def shut_down() -> None:
            self.emit("TimersDisabled")
            await shut()

        async def stopped() -> None:
            self.emit("SupervisorStopping")
            await stop()

        def new_timers() -> Any:
            timers: Any = new()
            start = timers.start

            async def started(*args: Any, **options: Any) -> Any:
                outcome = await start(*args, **options)
                self.emit("TimersEnabled", timers=len(self.plan.definitions))
                return outcome

            timers.start = started
            return timers

        def ended(service_id: str, how: RunResult) -> None:
            run_id = targets.live[service_id][0]
            run, begun_us = self.began[run_id]
            timer = {} if run.timer is None else {"timer": run.timer}
            self.emit(
                "ServiceRunEnded",
                service=service_id,
                runId=run_id,
                reason=run.reason,
                result=how.result.value,
                duration=(self.steady_us() - begun_us) / 1000,
                **timer,
            )
            end(service_id, how)

        ours.begin, ours.shut, ours.stop = begun, shut_down, stopped  # type: ignore[method-assign]
        ours._new, targets.end = new_timers, ended  # type: ignore[method-assign, assignment]

    def _run_began(self, run: Any) -> None:
        self.began[run.run_id] = (run, self.steady_us())
        timer = {} if run.timer is None else {"timer": run.timer}
        self.emit(
            "ServiceRunStarted", service=run.service, runId=run.run_id, reason=run.reason, pid=1, **timer
        )

    def _hear(self, event: Event) -> None:
        self.monitor.listener(event)

    async def do_switch(self, name: str) -> None:
        """Switch a timer, and tell who did."""
        await super().do_switch(name)
        action = "enable" if self.ours.state(name).is_enabled else "disable"
        self.emit("OperatorAction", action=action, id=name, who="somebody")

    def compare(self, when: str) -> None:
        """Let the monitor look, and compare with the model if this is a life that should be as it says."""
        self.monitor.look(self.ours.clock.now())
        if self.is_compared:
            super().compare(when)

    def count(self) -> None:
        """Add up what the monitor of this process has checked."""
        self.checked.update({finding.property: finding.checked for finding in self.monitor.findings()})


@pytest.mark.heavy
@pytest.mark.parametrize("decade", range(6))
async def test_nothing_to_say_of_ours(decade: int) -> None:
    """In random lives with steps, crashes, stops and switches the monitor looks, and objects to nothing."""
    checked: Counter[str] = Counter()
    for seed in range(10 * decade, 10 * decade + 10):
        life = WatchedLife(plan_of(seed))
        await life.live()
        life.count()
        checked += life.checked
        assert [event.fields for event in life.violations] == [], f"seed {seed}"
    assert set(checked) == set(TIMER_PROPERTIES), "every property was put to the test"


@pytest.mark.heavy
async def test_nothing_to_say_of_days_that_match_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calendars with a day of the month and a day of the week are read alike by timers and monitor."""
    monkeypatch.setattr("tests.property.test_timers.some_calendar", lambda _random: BOTH_DAYS)
    for seed in range(20):
        life = WatchedLife(plan_of(seed))
        await life.live()
        assert [event.fields for event in life.violations] == [], f"seed {seed}"


@pytest.mark.parametrize("seed", [5066, 6164, 6606, 5167, 5172, 5349])
async def test_nothing_to_say_of_what_a_session_before_did(seed: int) -> None:
    """Lives with restarts after steps back: a minute comes again that was answered, or told as missed."""
    life = WatchedLife(plan_of(seed))
    await life.live()
    assert [event.fields for event in life.violations] == []


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(20))
async def test_nothing_to_say_of_many(hundred: int) -> None:
    """The same for two thousand lives."""
    for seed in range(100 * hundred + 5_000, 100 * hundred + 5_100):
        life = WatchedLife(plan_of(seed))
        await life.live()
        assert [event.fields for event in life.violations] == [], f"seed {seed}"


# --- broken on purpose ---

Patch = Callable[[pytest.MonkeyPatch], None]


def forgets_every_third_slot(patch: pytest.MonkeyPatch) -> None:
    real: Any = calendar.slot_after

    def slot_after(calendars: Any, at_us: int, anchor_us: int) -> int:
        slot_us: int = real(calendars, at_us, anchor_us)
        return int(real(calendars, slot_us, anchor_us)) if slot_us // 60_000_000 % 3 == 0 else slot_us

    patch.setattr(transitions, "slot_after", slot_after)


def lies_in_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """What the store says was answered is taken to reach two hours further."""
    real = reconciliation.resumed_timer

    def resumed_timer(timer: Any, *args: Any) -> Any:
        after = real(timer, *args)
        answered_us = after.answered_us + 7_200_000_000
        slot_us = calendar.slot_after(after.calendars, answered_us, after.registered_us)
        return _replace(after, answered_us=answered_us, slot_us=slot_us)

    patch.setattr("duly.timers.loading.resumed_timer", resumed_timer)


def fires_a_minute_late(patch: pytest.MonkeyPatch) -> None:
    real: Any = calendar.slot_after
    patch.setattr(transitions, "slot_after", lambda *args: real(*args) + 60_000_000)


def retries_everything(patch: pytest.MonkeyPatch) -> None:
    real = transitions.ended

    def ended(timer: Any, how: RunResult, at_us: int, **options: Any) -> Any:
        how = RunResult(Result.EXIT, 1) if how.result is Result.SIGNAL else how
        return real(timer, how, at_us, **options)

    patch.setattr(transitions, "ended", ended)


def retries_too_soon(patch: pytest.MonkeyPatch) -> None:
    real = transitions._with_retry

    def retried(timer: Any, at_us: int) -> Any:
        after = real(timer, at_us)
        if after.retry_at_us is None:
            return after
        return _replace(after, retry_at_us=at_us + (after.retry_at_us - at_us) // 2)

    patch.setattr(transitions, "_with_retry", retried)


def retries_for_ever(patch: pytest.MonkeyPatch) -> None:
    def retried(timer: Any, at_us: int) -> Any:
        delays = timer.definition.retry_intervals_sec
        if not delays:
            return timer
        delay_us = transitions.span_us(delays[min(timer.retry_attempt, len(delays) - 1)])
        return _replace(timer, retry_at_us=at_us + delay_us, retry_attempt=timer.retry_attempt + 1)

    patch.setattr(transitions, "_with_retry", retried)


def halves_intervals(patch: pytest.MonkeyPatch) -> None:
    real = transitions.interval_us

    def interval_us(timer: Any) -> int:
        at_us = real(timer)
        return at_us if timer.anchor_us is None else timer.anchor_us + (at_us - timer.anchor_us) // 2

    for module in (transitions, dues):
        patch.setattr(module, "interval_us", interval_us)
    patch.setattr("duly.timers.local.interval_us", interval_us)


def catches_up_with_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dues, "may_make_up", lambda timer, at_us, now_us: timer.is_enabled)


def starts_up_twice(patch: pytest.MonkeyPatch) -> None:
    real, seen = transitions.answered, set[tuple[str, int | None]]()

    def answered(timer: Any, now_us: int) -> Any:
        after = real(timer, now_us)
        key = (timer.name, timer.startup_at_us)
        if after.startup_triggered == timer.startup_triggered or key in seen:
            return after
        again_us = now_us + 7_200_000_000  # when no run of this start-up is left to be in its way
        seen.update({key, (timer.name, again_us)})
        return _replace(after, startup_triggered=False, startup_at_us=again_us)

    patch.setattr(transitions, "answered", answered)


def takes_either_day(patch: pytest.MonkeyPatch) -> None:
    """As cron does: a day of the month or a day of the week, where a calendar wants both."""

    def expression_of(declared: Any) -> CronExpression:
        fields = (
            declared.minute,
            declared.hour,
            declared.day_of_month,
            declared.month,
            declared.day_of_week,
        )
        return CronExpression.parse(
            " ".join("*" if each is None else ",".join(map(str, each)) for each in fields)
        )

    patch.setattr(calendar, "expression_of", expression_of)
    patch.setattr("tests.property.test_timers.some_calendar", lambda _random: BOTH_DAYS)


def forgets_that_it_fired(patch: pytest.MonkeyPatch) -> None:
    """A slot is due once more when the run that answered it has ended, as schedule or as catch-up."""
    real, seen = transitions.ended, set[tuple[str, int]]()

    def ended(timer: Any, how: RunResult, at_us: int, **options: Any) -> Any:
        after, slot_us = real(timer, how, at_us, **options), timer.running_at_us
        if timer.running_reason != "schedule" or (timer.name, slot_us) in seen:
            return after
        seen.add((timer.name, slot_us))
        return _replace(after, answered_us=slot_us - 1, slot_us=slot_us)

    patch.setattr(transitions, "ended", ended)


def runs_beside_a_run(patch: pytest.MonkeyPatch) -> None:
    """The services let a second run of a target begin while the first is under way."""
    patch.setattr(FakeTargets, "target_state", lambda targets, name: targets.states.get(name, "missing"))


BROKEN: list[tuple[Patch, set[str]]] = [
    (forgets_every_third_slot, {"V1"}),
    (lies_in_after_a_restart, {"V1"}),
    (fires_a_minute_late, {"V1", "V2"}),
    (retries_everything, {"V5"}),
    (retries_too_soon, {"V5"}),
    (retries_for_ever, {"V5"}),
    (halves_intervals, {"V2"}),
    (catches_up_with_everything, {"V2"}),
    (starts_up_twice, {"V2"}),
    (takes_either_day, {"V2"}),
    (forgets_that_it_fired, {"V3"}),
    (runs_beside_a_run, {"V4"}),
]


def test_a_fault_for_every_property() -> None:
    """Of every property there is a fault that is found by it and by no other."""
    assert {next(iter(found)) for _, found in BROKEN if len(found) == 1} == set(TIMER_PROPERTIES)


@pytest.mark.parametrize(("broken", "found"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
async def test_broken_timers_are_found(
    broken: Patch, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers that are broken in one way are objected to, by the property that forbids it."""
    broken(monkeypatch)
    objections: set[str] = set()
    for seed in range(80):
        life = WatchedLife(plan_of(seed), is_compared=False)
        try:
            await asyncio.wait_for(life.live(), 60)
        except Exception:
            # What is broken may break the world around it; what the monitor said until then counts.
            assert life.violations or seed < 79
        objections |= {event.fields["property"] for event in life.violations}
        if objections & found:
            break
        await life.ours.clock.advance(timedelta(0))
    assert objections & found
