"""Records: a timer as a store keeps it, and back.

A record is the plain values of `COLUMNS`, in order. Reading trusts nothing: a row may be damaged or edited by
hand. One that cannot be read is an error with the timer's name; it is left as it is, and never written over.
What is not in a record (deadlines, retries) is worked out anew (TIMERS.md 6).
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import Annotated, Any, NamedTuple

import msgspec

from duly.config.schema import Timer
from duly.errors import SchedulerError
from duly.instant import EARLIEST_US, LATEST_US
from duly.supervisor.ended import Result
from duly.timers.calendar import Calendars, CalendarShelf, slot_after, zone_of
from duly.timers.dues import Miss
from duly.timers.timer import TimerState

COLUMNS = (
    "id",
    "name",
    "definition",
    "registered_us",
    "answered_us",
    "last_run_us",
    "last_success_us",
    "last_failure_us",
    "last_exit",
    "last_result",
    "last_missed_us",
    "last_miss_reason",
    "enabled",
    "interrupted",
    "running_run",
    "running_since_us",
)
"""What is kept of a timer, in order."""


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


class Row(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True):
    """A sound record: the fields of COLUMNS, each with its type and range."""

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


class Declared(NamedTuple):
    """A timer of the configuration, ready to be kept."""

    definition: Timer
    calendars: Calendars
    text: str


_encoder = msgspec.json.Encoder(order="deterministic")


def text_of(timer: Timer, default: tzinfo) -> str:
    """All of a definition that says when and how it fires; another description is no change."""
    said = {
        key: value for key, value in msgspec.to_builtins(timer).items() if key not in {"id", "description"}
    }
    said["timezone"] = str(zone_of(timer, default))
    return _encoder.encode(said).decode()


def fingerprint_of(declared: Iterable[Declared]) -> str:
    """Of a list of timers, in whatever order: another one for another list."""
    lines = sorted(f"{item.definition.id}\n{item.text}\n" for item in declared)
    return hashlib.sha256("".join(lines).encode(errors="surrogatepass")).hexdigest()


def record_of(timer: TimerState) -> tuple[object, ...]:
    """The whole record of a timer."""
    return (
        timer.id,
        timer.name,
        timer.text,
        timer.registered_us,
        timer.answered_us,
        timer.last_run_us,
        timer.last_success_us,
        timer.last_failure_us,
        timer.last_exit,
        timer.last_result,
        timer.last_missed_us,
        timer.last_miss_reason,
        None if timer.enabled_override is None else int(timer.enabled_override),
        int(timer.interrupted),
        timer.running_run,
        timer.running_since_us,
    )


def row_from(record: Sequence[Any]) -> Row:
    """The row that *record* holds. Raises a TimerRecordError."""
    try:
        row = msgspec.convert(record, Row)
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


def registered_in(record: Sequence[Any]) -> int:
    """When the timer of a record that may be damaged was declared as it is; 0 when that cannot be read."""
    at = COLUMNS.index("registered_us")
    value = record[at] if len(record) > at else None
    return value if isinstance(value, int) else 0


def _reason(said: str) -> str:
    """What msgspec says, with the column by its name instead of its number."""
    for number, column in reversed(list(enumerate(COLUMNS))):
        said = said.replace(f"`$[{number}]`", column)
    return said[:1].lower() + said[1:]


def declared_in(row: Row, calendars: CalendarShelf) -> Declared | None:
    """The timer as it was declared when the row was written; None when that says nothing to this version."""
    try:
        said = msgspec.json.decode(row.definition, type=dict[str, Any])
        timer = msgspec.convert({**said, "id": row.name}, Timer)
        return Declared(timer, calendars.of(timer), row.definition)
    except (ValueError, LookupError, OSError, RecursionError):  # the zone may be unknown here, too
        return None


def state_from(row: Row, declared: Declared, order: int) -> TimerState:
    """The timer of *row*, which is now declared as *declared*; its text is still the old one."""
    return TimerState(
        id=row.id,
        name=row.name,
        definition=declared.definition,
        text=row.definition,
        calendars=declared.calendars,
        order=order,
        registered_us=row.registered_us,
        answered_us=row.answered_us,
        slot_us=slot_after(declared.calendars, row.answered_us),
        last_run_us=row.last_run_us,
        last_success_us=row.last_success_us,
        last_failure_us=row.last_failure_us,
        last_exit=row.last_exit,
        last_result=row.last_result,
        last_missed_us=row.last_missed_us,
        last_miss_reason=row.last_miss_reason,
        enabled_override=None if row.enabled is None else bool(row.enabled),
        interrupted=bool(row.interrupted),
        running_run=row.running_run,
        running_since_us=row.running_since_us,
    )
