"""Timers as rows of a cluster store: what a row keeps of a timer, and what it may be asked.

The state of a row is JSON with all that must survive a machine, retries and deadlines too. The definition is
not in it: each node has its own list, and runs only rows whose definition it has. While a timer runs, its row
keeps the state before the run. So a run that was cut off is worked out from when it began (`cut_us`).

Besides a run, a row can be asked: `startup N` (the cluster started up at N), `passed N` (start-up triggers up
to N do not come: the timers were off everywhere), `ended N` (a run of the target ended at N that this timer
has not started), and `look`, which says no more than that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Annotated, Any

import msgspec

from duly.cluster.table import Claimed, RunRecord, TaskView, hash_of
from duly.config.schema import Timer
from duly.core.causes import Reason
from duly.core.registration import Callback
from duly.engine.rules import Begin
from duly.engine.runs import ActiveRun
from duly.instant import EARLIEST_US, LATEST_US, Instant
from duly.marks import mark
from duly.store.history import Result
from duly.timers.calendar import CalendarCache, slot_after
from duly.timers.dues import Miss, due_at
from duly.timers.record import DeclaredTimer, TimerRecordError, text_of
from duly.timers.rules import run_result_of
from duly.timers.timer import (
    Due,
    TimerState,
    cut_off,
    fired,
    is_ahead_of_clock,
    moved_back,
    span_us,
    startup_us,
    target_ended,
)

STARTUP = "startup"
PASSED = "passed"
ENDED = "ended"

_Time = Annotated[int, msgspec.Meta(ge=EARLIEST_US, le=LATEST_US)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class RowState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a row keeps of a timer. The names are those of `TimerState`."""

    registered_us: _Time
    answered_us: _Time
    last_run_us: _Time | None = None
    last_run_id: _Count | None = None
    last_success_us: _Time | None = None
    last_failure_us: _Time | None = None
    last_exit: int | None = None
    last_result: Result | None = None
    last_missed_us: _Time | None = None
    last_miss_reason: Miss | None = None
    interrupted: bool = False
    anchor_us: _Time | None = None
    startup_at_us: _Time | None = None
    startup_triggered: bool = False
    retry_attempt: _Count = 0
    retry_at_us: _Time | None = None
    queued_us: _Time | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RowState).decode
_KEPT = RowState.__struct_fields__


class TimerList(Mapping[str, DeclaredTimer]):
    """The timers of a configuration, in order of declaration."""

    def __init__(self, definitions: Sequence[Timer], calendars: CalendarCache) -> None:
        zone = calendars.default
        self._items = {
            item.id: DeclaredTimer(item, calendars.of(item), text_of(item, zone)) for item in definitions
        }
        self._hashes = {name: hash_of(name, item.text) for name, item in self._items.items()}
        self.hashes = sum(self._hashes.values())
        self.orders = {name: order for order, name in enumerate(self._items)}
        self.with_interval: dict[str, list[str]] = {}
        """The timers with an interval, by target."""
        for item in definitions:
            if item.on_unit_active_sec is not None:
                self.with_interval.setdefault(item.target, []).append(item.id)

    def __getitem__(self, name: str) -> DeclaredTimer:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def hash_of(self, name: str) -> int | None:
        return self._hashes.get(name)


class TimerCodec:
    """Turns rows into timers, and back. *fire* is what to call for every start."""

    def __init__(self, zone: tzinfo, fire: Callback, output_of: Callable[[int], str | None]) -> None:
        self.calendars = CalendarCache(zone)
        self.listed = TimerList([], self.calendars)
        self.triggered: set[str] = set()
        """Timers of which a person wants a run here, now."""
        self.unreadable: dict[str, TimerRecordError] = {}
        """Timers that do not run because their row is damaged."""
        self._fire = fire
        self._output_of = output_of

    def item(self, row: Claimed, now_us: Instant) -> TimerState | None:
        if self.listed.hash_of(row.name) != row.hash:
            return None
        timer = asked(self.timer(row.name, row.state, enabled=row.enabled), row.request)
        if row.cut_us is not None:
            mark("found interrupted")
            timer = cut_off_at(timer, row.cut_us)
        if is_ahead_of_clock(timer, now_us):
            timer = moved_back(timer, now_us)
        return msgspec.structs.replace(timer, triggered=row.name in self.triggered)

    def timer(
        self, name: str, state: str, *, enabled: bool | None, declared: DeclaredTimer | None = None
    ) -> TimerState:
        """A timer without a run, of the list or as *declared* otherwise. Raises TimerRecordError."""
        declared = self.listed[name] if declared is None else declared
        try:
            kept = _decode(state)
        except msgspec.DecodeError as error:
            self.unreadable[name] = TimerRecordError(name=name, reason=str(error))
            raise self.unreadable[name] from error
        self.unreadable.pop(name, None)
        timer = TimerState(
            id=0,
            name=name,
            definition=declared.definition,
            text=declared.text,
            calendars=declared.calendars,
            order=self.listed.orders.get(name, 0),
            slot_us=slot_after(declared.calendars, kept.answered_us, kept.registered_us),
            enabled_override=enabled,
            **msgspec.structs.asdict(kept),
        )
        if not timer.is_enabled:
            timer = msgspec.structs.replace(timer, retry_at_us=None, retry_attempt=0)
        return timer

    def before(self, view: TaskView, declared: DeclaredTimer) -> TimerState:
        """A stored timer that is *declared* in another way now. Raises TimerRecordError."""
        try:
            said = msgspec.json.decode(view.definition, type=dict[str, Any])
            old = msgspec.convert({**said, "id": view.name}, Timer)
            former = DeclaredTimer(old, self.calendars.of(old), view.definition)
        except (ValueError, LookupError, OSError, RecursionError):  # of another version, or an unknown zone
            former = declared._replace(text=view.definition)
        return self.timer(view.name, view.state, enabled=view.enabled, declared=former)

    def state(self, timer: TimerState) -> str:
        return _encode(RowState(**{name: getattr(timer, name) for name in _KEPT})).decode()

    def callback(self, _timer: TimerState) -> Callback:
        return self._fire

    def record(
        self, start: Begin[TimerState], run: ActiveRun[TimerState], error: BaseException | None
    ) -> RunRecord:
        ended, run_id = run_result_of(run, error), start.after.running_run
        assert run_id is not None
        return RunRecord(
            run_id=str(run_id),
            cause=start.cause.value,
            called_us=run.called_us,
            ended_us=run.ended_us,
            result=ended.result.value,
            error=ended.message or None,
            output=self._output_of(run_id) or "",
            scheduled_us=start.after.running_at_us,
        )


def cut_record(start: Begin[TimerState]) -> RunRecord:
    """What the history says of a run that is cut off; the machine that takes its row knows when."""
    timer, run_id = start.after, start.after.running_run
    assert run_id is not None
    assert timer.running_since_us is not None
    return RunRecord(
        run_id=str(run_id),
        cause=start.cause.value,
        called_us=timer.running_since_us,
        ended_us=timer.running_since_us,
        result=Result.INTERRUPTED.value,
        scheduled_us=timer.running_at_us,
    )


def asked(timer: TimerState, request: str | None) -> TimerState:
    """The timer with what its row was asked. To be claimed is all that "look" asks."""
    for text in (request or "").split(";"):
        word, _, number = text.partition(" ")
        if word == STARTUP and number.isdigit():
            timer = started_up(timer, int(number))
        elif word == PASSED and number.isdigit():
            has_passed = startup_us(timer) <= int(number)
            timer = msgspec.structs.replace(timer, startup_triggered=timer.startup_triggered or has_passed)
        elif word == ENDED and number.isdigit():
            timer = target_ended(timer, max(int(number), timer.anchor_us or 0))
    return timer


def started_up(timer: TimerState, at_us: Instant) -> TimerState:
    """The timer after the cluster started up at *at_us*: its start-up trigger is yet to come."""
    after_sec = timer.definition.on_startup_sec
    if after_sec is None:
        return timer
    return msgspec.structs.replace(timer, startup_at_us=at_us + span_us(after_sec), startup_triggered=False)


def cut_off_at(timer: TimerState, began_us: Instant) -> TimerState:
    """The timer whose run began at *began_us* and was cut off; *timer* is as before that run."""
    due = due_at(timer, began_us, is_target_active=False) or Due(Reason.TRIGGER, began_us)
    timer = cut_off(msgspec.structs.replace(fired(timer, due, began_us, 0), last_run_id=None))
    # Nobody saw when it ended, so an interval counts from when it began.
    return target_ended(timer, max(began_us, timer.anchor_us or 0))
