"""Records: a timer as a store keeps it, and back; and what a store of timers is.

A record is the plain values of `COLUMNS`, in order. Reading trusts nothing: a row may be damaged or edited by
hand. One that cannot be read is an error with the timer's name; it is left as it is, and never written over.
What is not in a record (deadlines, retries) is worked out again (spec/timers.md 6.2).
"""

from collections.abc import Sequence
from datetime import tzinfo
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec

from duly.config.schema import Timer
from duly.errors import SchedulerError
from duly.instant import EARLIEST_US, LATEST_US, zone_key
from duly.store import Contents
from duly.store.history import Result
from duly.store.protocol import Repository
from duly.timers.calendar import Calendars, slot_after, zone_of
from duly.timers.dues import Miss
from duly.timers.timer import TimerState

REMEDY = "restore the store from a copy; or take the timer out of the configuration, reload, and put it back"


class TimerRecordError(SchedulerError):
    """The stored state of a timer cannot be read; the timer does not run, and its row is left alone."""

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(
            f'The stored state of timer "{name}" cannot be read: {reason}. It does not run. '
            f"{REMEDY[0].upper()}{REMEDY[1:]}",
            {"name": name, "reason": reason},
        )
        self.name = name
        self.reason = reason


_Time = Annotated[int, msgspec.Meta(ge=EARLIEST_US, le=LATEST_US)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]


class TimerRow(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True):
    """A sound record. The fields are the columns, in order, each with its type and range."""

    id: _Count
    name: str
    definition: str
    registered_us: _Time
    answered_us: _Time
    last_run_us: _Time | None
    last_success_us: _Time | None
    last_failure_us: _Time | None
    last_exit: int | None
    last_result: Result | None
    last_missed_us: _Time | None
    last_miss_reason: Miss | None
    enabled: _Flag | None
    interrupted: _Flag
    running_run: _Count | None
    running_since_us: _Time | None


COLUMNS = TimerRow.__struct_fields__
"""What is kept of a timer, in order."""


class DeclaredTimer(NamedTuple):
    """A timer of the configuration, ready to be kept."""

    definition: Timer
    calendars: Calendars
    text: str


_NEWER = {
    **dict.fromkeys(("cron", "daily", "at", "every")),
    "after_end": False,
    "random_delay_sec": 0,
    "exclude": (),
    "dst": "once",
    "overlap": "skip",
    "lock": None,
}
"""Keys that the first stores did not know. As long as one has its default it is not in the text: otherwise
each timer would be another one after an update."""

_encoder = msgspec.json.Encoder(order="deterministic")


def text_of(timer: Timer, default: tzinfo) -> str:
    """All of a definition that says when and how it fires; another description is no change."""
    said = {
        key: value
        for key, value in msgspec.to_builtins(timer).items()
        if key not in {"id", "description"} and not (key in _NEWER and value == _NEWER[key])
    }
    said["timezone"] = zone_key(zone_of(timer, default))
    return _encoder.encode(said).decode()


_STATE_NAMES = {"definition": "text", "enabled": "enabled_override"}
"""The columns that `TimerState` has another name for."""
_kept_values = attrgetter(*(_STATE_NAMES.get(column, column) for column in COLUMNS))


def record_of(timer: TimerState) -> tuple[object, ...]:
    """The whole record of a timer."""
    return tuple(int(value) if isinstance(value, bool) else value for value in _kept_values(timer))


def row_from(record: Sequence[Any]) -> TimerRow:
    try:
        row = msgspec.convert(record, TimerRow)
    except msgspec.ValidationError as error:
        raise TimerRecordError(name=name_in(record), reason=_reason(str(error))) from error
    if (row.running_run is None) != (row.running_since_us is None):
        reason = "running_run and running_since_us must be set together"
        raise TimerRecordError(name=row.name, reason=reason)
    return row


def name_in(record: Sequence[Any]) -> str:
    """The name in a record that may be damaged; a stand-in when even that cannot be read."""
    name = record[COLUMNS.index("name")] if len(record) > 1 else None
    return name if isinstance(name, str) else f"row {record[0] if record else '?'}"


def _reason(said: str) -> str:
    """What msgspec says, with the column by its name instead of its number."""
    for number, column in reversed(list(enumerate(COLUMNS))):
        said = said.replace(f"`$[{number}]`", column)
    return said[:1].lower() + said[1:]


def state_from(row: TimerRow, declared: DeclaredTimer, order: int) -> TimerState:
    """The timer of *row*, which is now declared as *declared*; its text is still the old one."""
    kept = {_STATE_NAMES.get(column, column): getattr(row, column) for column in COLUMNS}
    kept["enabled_override"] = None if row.enabled is None else bool(row.enabled)
    kept["interrupted"] = bool(row.interrupted)
    return TimerState(
        definition=declared.definition,
        calendars=declared.calendars,
        order=order,
        slot_us=slot_after(declared.calendars, row.answered_us, row.registered_us),
        **kept,
    )


class TimerRepository(Repository[TimerState], Protocol):
    async def open(self, new_id: str, /) -> Contents: ...


class MemoryTimerRepository:
    """A repository that forgets when the process ends: for simulations and tests.

    It keeps records, not timers, so what comes back is read as from a file. Give the same one to the timers
    of a second session to see what a restart would see.
    """

    def __init__(self) -> None:
        self.records: dict[int, Sequence[Any]] = {}
        """By timer id. Tests may look, and may damage."""

    async def open(self, new_id: str) -> Contents:
        return Contents(new_id, [self.records[key] for key in sorted(self.records)])

    async def replace(self, *, put: Sequence[TimerState], removed: Sequence[int]) -> None:
        for timer_id in removed:
            self.records.pop(timer_id, None)
        await self.save(put)

    async def save(self, timers: Sequence[TimerState]) -> None:
        self.records |= {timer.id: record_of(timer) for timer in timers}
