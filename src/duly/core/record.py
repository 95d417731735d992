"""Records: a task as a store keeps it, and back.

A record is the plain values of a task in the order of `COLUMNS`. Reading one back trusts nothing: a store
may be damaged, or edited by hand, and each fault has its own error (spec/scheduler.md 6.2).
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_type_hints

import msgspec

from duly.core.entries import entry_text
from duly.core.task import Task, counted_anew
from duly.core.timetable import Timetable
from duly.errors import (
    InvalidCronExpressionError,
    InvalidScheduleError,
    TaskInvalidStructureError,
    TaskInvalidTypeError,
    TaskInvalidValueError,
    TaskMissingFieldError,
    TaskTryDeserializeError,
)
from duly.instant import EARLIEST_US, LATEST_US

Record = Sequence[Any]

_Time = Annotated[int, msgspec.Meta(ge=EARLIEST_US, le=LATEST_US)]
_TimeOrNone = _Time | None
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A sound record: each column of the table with its type and range. The one list of columns.

    A new one that changes when a task runs stands last before `scheduler_id`: the rows of a cluster hold the
    state as a list.
    """

    id: _Count
    name: str
    cron: str
    retry_delay_us: _Count
    registered_us: _Time
    answered_us: _Time
    last_attempt_us: _TimeOrNone
    last_success_us: _TimeOrNone
    last_failure_us: _TimeOrNone
    retry_at_us: _TimeOrNone
    retry_count: _Count
    interrupted: _Count
    due_stands: _Count
    running_since_us: _TimeOrNone
    origin_us: _TimeOrNone
    paused: _Count
    requested_us: _TimeOrNone
    scheduler_id: str
    entry: str | None


COLUMNS = _Row.__struct_fields__
"""What is kept of a task, in order."""

STATE_COLUMNS = COLUMNS[4:-2]
"""What changes when a task runs; the rest changes only when it is registered."""

_TYPES = get_type_hints(_Row, include_extras=True)
"""The type of each column, for what is wrong with a record."""


def record_of(task: Task) -> tuple[object, ...]:
    definition = task.id, task.name, task.schedule.text, task.retry_delay_us
    return (*definition, *state_of(task), task.scheduler_id, task.entry)


def record_with_state(
    definition: tuple[int, str, str, int], state: Sequence[Any], scheduler_id: str, entry: str | None = None
) -> Record:
    """The record of a task whose state is kept as one value, as in a cluster.

    Its *definition* is the id, the name, the schedule and the retry delay.
    """
    return (*definition, *state, scheduler_id, entry)


def state_of(task: Task) -> tuple[object, ...]:
    """The part of a task's record that changes when it runs."""
    return (
        task.registered_us,
        task.answered_us,
        task.last_attempt_us,
        task.last_success_us,
        task.last_failure_us,
        task.retry_at_us,
        task.retry_count,
        int(task.interrupted),
        int(task.due_stands),
        task.running_since_us,
        task.origin_us,
        int(task.paused),
        task.requested_us,
    )


def task_from(record: Any, schedule_of: Callable[[str], Timetable]) -> Task:
    """The task that *record* holds. Raises a TaskTryDeserializeError."""
    try:
        row = msgspec.convert(record, _Row)
    except msgspec.ValidationError as error:
        raise _fault(record) from error
    if row.entry is not None:
        entry_text(row.entry)
    try:
        schedule = schedule_of(row.cron)
    except (InvalidCronExpressionError, InvalidScheduleError) as error:
        raise TaskInvalidValueError(field="cron", value=row.cron, reason=error.message) from error
    task = Task(
        row.id,
        row.name,
        schedule,
        row.retry_delay_us,
        row.registered_us,
        row.answered_us,
        schedule.due_after(row.answered_us, row.registered_us),
        row.last_attempt_us,
        row.last_success_us,
        row.last_failure_us,
        row.retry_at_us,
        row.retry_count,
        bool(row.interrupted),
        bool(row.due_stands),
        row.running_since_us,
        row.origin_us,
        bool(row.paused),
        row.requested_us,
        row.scheduler_id,
        row.entry,
    )
    return task if not schedule.is_from_end else counted_anew(task)


def _fault(record: Any) -> TaskTryDeserializeError:
    """What is wrong with a record that is not sound: its first fault, field by field."""
    if not isinstance(record, list | tuple):
        return TaskInvalidStructureError(value=record, reason="it is not a record")
    for field, value in zip(COLUMNS, record, strict=False):
        if fault := _fault_of(field, value):
            return fault
    return TaskMissingFieldError(field=COLUMNS[min(len(record), len(COLUMNS) - 1)])


def _fault_of(field: str, value: Any) -> TaskTryDeserializeError | None:
    kind = _TYPES[field]
    expected = "str" if kind in (str, str | None) else "int"
    if value is None:
        return None if kind in (_TimeOrNone, str | None) else TaskMissingFieldError(field=field)
    if type(value).__name__ != expected:
        return TaskInvalidTypeError(field=field, value=value, expected_type=expected)
    if kind == _Count and value < 0:
        return TaskInvalidValueError(field=field, value=value, reason="must not be negative")
    if kind in (_Time, _TimeOrNone) and not EARLIEST_US <= value <= LATEST_US:
        reason = "is no time between the years 1 and 9999"
        return TaskInvalidValueError(field=field, value=value, reason=reason)
    return None
