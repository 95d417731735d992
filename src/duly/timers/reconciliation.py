"""What a list of declared timers makes of the known ones: each is added, kept, changed or removed.

The answer is one value that the store applies whole or not at all. A timer that is declared as before keeps
everything; a changed one keeps what it did and forgets what it was about to do. A new one owes nothing from
before: only what comes after its declaration counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from duly.events import Announcer
from duly.instant import Instant
from duly.store.history import Result
from duly.timers.calendar import slot_after
from duly.timers.record import REMEDY, DeclaredTimer, TimerRecordError
from duly.timers.timer import (
    TimerState,
    anchored,
    cut_off,
    declared_anew,
    is_ahead_of_clock,
    moved_back,
    released,
    span_us,
)

RUNNING = "running"


@dataclass(frozen=True, slots=True)
class TimerReconciliation:
    """The outcome, timer by timer, and what of it must be written."""

    timers: list[TimerState] = field(default_factory=list)
    """Every declared timer as it will be, in order of declaration."""
    added: list[TimerState] = field(default_factory=list)
    kept: list[TimerState] = field(default_factory=list)
    changed: list[tuple[TimerState, TimerState]] = field(default_factory=list)
    removed: list[TimerState] = field(default_factory=list)
    touched: list[TimerState] = field(default_factory=list)
    """Timers declared as before that must be written all the same."""
    restored: list[TimerState] = field(default_factory=list)
    """Timers declared as before that were not at work, because their definition was invalid meanwhile."""
    unreadable: list[TimerRecordError] = field(default_factory=list)
    """Of declared timers that do not run, because their row is damaged."""

    @property
    def fresh(self) -> set[str]:
        return {timer.name for timer in self.added} | {after.name for _, after in self.changed}

    @property
    def put(self) -> list[TimerState]:
        return [*self.added, *(after for _, after in self.changed), *self.touched, *self.restored]


class ReconciliationContext(NamedTuple):
    """What a reconciliation must know beyond the two lists."""

    now_us: Instant
    started_up_us: Instant | None
    """When start-up was complete; None when it is not."""
    is_start_up: bool
    """This is the list that the supervisor has started with: the start-up triggers of what is new in it are
    not to come late, but to come."""
    next_id: int
    last_end_us: Callable[[TimerState], Instant | None]
    """When the last run of the target of a timer ended."""


def reconciliation_of(
    declared: Sequence[DeclaredTimer], known: Mapping[str, TimerState], context: ReconciliationContext
) -> TimerReconciliation:
    outcome = TimerReconciliation()
    next_id = context.next_id
    for order, item in enumerate(declared):
        before = known.get(item.definition.id)
        if before is None:
            timer = _new_timer(item, next_id, order, context)
            next_id += 1
            outcome.added.append(timer)
        elif before.text == item.text:
            timer = msgspec.structs.replace(before, definition=item.definition, order=order)
            outcome.kept.append(timer)
        else:
            timer = _changed_timer(before, item, order, context)
            outcome.changed.append((before, timer))
        outcome.timers.append(timer)
    names = {item.definition.id for item in declared}
    outcome.removed.extend(timer for name, timer in known.items() if name not in names)
    return outcome


def resumed_timer(
    timer: TimerState, outcome_of: Callable[[int, str], str | None], context: ReconciliationContext
) -> TimerState:
    """A stored timer as a new session finds it: its run resolved, its deadlines worked out.

    A run that goes on, or has ended, is a run of the service by now and says nothing more of the timer. One
    that nobody knows of, or that was cut off, was interrupted.
    """
    if timer.running_run is not None:
        became = outcome_of(timer.running_run, timer.name)
        timer = cut_off(timer) if became in {None, Result.INTERRUPTED.value} else released(timer)
    if is_ahead_of_clock(timer, context.now_us):
        timer = moved_back(timer, context.now_us)
    timer = anchored(timer, context.last_end_us(timer), context.now_us)
    return with_startup(timer, context, has_fired=False)


def _new_timer(item: DeclaredTimer, timer_id: int, order: int, context: ReconciliationContext) -> TimerState:
    timer = TimerState(
        id=timer_id,
        name=item.definition.id,
        definition=item.definition,
        text=item.text,
        calendars=item.calendars,
        order=order,
        registered_us=context.now_us,
        answered_us=context.now_us,
        slot_us=slot_after(item.calendars, context.now_us, context.now_us),
    )
    timer = anchored(timer, context.last_end_us(timer), context.now_us)
    return with_startup(timer, context, has_fired=False)


def _changed_timer(
    before: TimerState, item: DeclaredTimer, order: int, context: ReconciliationContext
) -> TimerState:
    timer = msgspec.structs.replace(
        before, definition=item.definition, text=item.text, calendars=item.calendars, order=order
    )
    if before.target != timer.target or timer.anchor_us is None:
        timer = anchored(timer, context.last_end_us(timer), context.now_us)
    has_fired = before.startup_at_us is not None and before.startup_triggered
    return with_startup(declared_anew(timer, context.now_us), context, has_fired=has_fired)


def with_startup(timer: TimerState, context: ReconciliationContext, *, has_fired: bool) -> TimerState:
    """The timer with its start-up trigger set; one whose instant has passed does not come any more."""
    after_sec = timer.definition.on_startup_sec
    if after_sec is None or context.started_up_us is None:
        return msgspec.structs.replace(timer, startup_at_us=None, startup_triggered=False)
    at_us = context.started_up_us + span_us(after_sec)
    has_passed = at_us <= context.now_us and not context.is_start_up
    return msgspec.structs.replace(timer, startup_at_us=at_us, startup_triggered=has_fired or has_passed)


def emit_outcome(announcer: Announcer, outcome: TimerReconciliation) -> None:
    """Emit which timers were added, changed, repaired and removed, and which do not run."""
    announce = announcer.announce
    for timer in outcome.added:
        announce("TimerAdded", timer=timer.name, target=timer.target)
    for before, after in outcome.changed:
        announce(
            "TimerOverridden", timer=after.name, target=after.target, before=before.text, after=after.text
        )
    for timer in outcome.restored:
        announce("TimerRecalled", timer=timer.name, target=timer.target)
    for timer in outcome.removed:
        announce("TimerRemoved", timer=timer.name, target=timer.target)
    for error in outcome.unreadable:
        announce("TimerUnreadable", timer=error.name, reason=error.reason, remedy=REMEDY)
