"""Records: a task as a store keeps it, and back.

A record is the plain values of a task in the order of `COLUMNS`. Reading one back trusts nothing: a store
may be damaged, or edited by hand, and each fault has its own error (SCHEDULER.md 6).
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from duly.core.schedule import Schedule
from duly.core.task import Task
from duly.errors import (
    InvalidCronExpressionError,
    TaskInvalidStructureError,
    TaskInvalidTypeError,
    TaskInvalidValueError,
    TaskMissingFieldError,
    TaskTryDeserializeError,
)
from duly.instant import EARLIEST_US, LATEST_US

Record = Sequence[Any]

COLUMNS = (
    "id",
    "name",
    "cron",
    "retry_delay_us",
    "registered_us",
    "answered_us",
    "last_attempt_us",
    "last_success_us",
    "last_failure_us",
    "retry_at_us",
    "retry_count",
    "interrupted",
    "due_stands",
    "running_since_us",
    "origin_us",
    "scheduler_id",
)
"""What is kept of a task, in order."""

STATE_COLUMNS = COLUMNS[4:15]
"""What changes when a task runs; the rest changes only when it is registered."""

_COUNTS = frozenset({"id", "retry_delay_us", "retry_count", "interrupted", "due_stands"})
_TEXTS = frozenset({"name", "cron", "scheduler_id"})
_OPTIONAL = frozenset(
    {"last_attempt_us", "last_success_us", "last_failure_us", "retry_at_us", "running_since_us", "origin_us"}
)


def record_of(task: Task) -> tuple[object, ...]:
    """The whole record of a task."""
    return (task.id, task.name, task.schedule.text, task.retry_delay_us, *state_of(task), task.scheduler_id)


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
    )


_Time = Annotated[int, msgspec.Meta(ge=EARLIEST_US, le=LATEST_US)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A sound record: the fields of COLUMNS, each with its type and range."""

    id: _Count
    name: str
    cron: str
    retry_delay_us: _Count
    registered_us: _Time
    answered_us: _Time
    last_attempt_us: _Time | None
    last_success_us: _Time | None
    last_failure_us: _Time | None
    retry_at_us: _Time | None
    retry_count: _Count
    interrupted: _Count
    due_stands: _Count
    running_since_us: _Time | None
    origin_us: _Time | None
    scheduler_id: str


def task_from(record: Any, schedule_of: Callable[[str], Schedule]) -> Task:
    """The task that *record* holds. Raises a TaskTryDeserializeError."""
    try:
        row = msgspec.convert(record, _Row)
    except msgspec.ValidationError as error:
        raise _fault(record) from error
    try:
        schedule = schedule_of(row.cron)
    except InvalidCronExpressionError as error:
        raise TaskInvalidValueError(field="cron", value=row.cron, reason=error.message) from error
    return Task(
        row.id,
        row.name,
        schedule,
        row.retry_delay_us,
        row.registered_us,
        row.answered_us,
        schedule.due_after(row.answered_us),
        row.last_attempt_us,
        row.last_success_us,
        row.last_failure_us,
        row.retry_at_us,
        row.retry_count,
        bool(row.interrupted),
        bool(row.due_stands),
        row.running_since_us,
        row.origin_us,
        row.scheduler_id,
    )


def _fault(record: Any) -> TaskTryDeserializeError:
    """What is wrong with a record that is not sound: its first fault, field by field."""
    if not isinstance(record, list | tuple):
        return TaskInvalidStructureError(value=record, reason="it is not a record")
    for field, value in zip(COLUMNS, record, strict=False):
        if fault := _fault_of(field, value):
            return fault
    return TaskMissingFieldError(field=COLUMNS[min(len(record), len(COLUMNS) - 1)])


def _fault_of(field: str, value: Any) -> TaskTryDeserializeError | None:
    expected = "str" if field in _TEXTS else "int"
    if value is None:
        return None if field in _OPTIONAL else TaskMissingFieldError(field=field)
    if type(value).__name__ != expected:
        return TaskInvalidTypeError(field=field, value=value, expected_type=expected)
    if field in _COUNTS and value < 0:
        return TaskInvalidValueError(field=field, value=value, reason="must not be negative")
    if expected == "int" and field not in _COUNTS and not EARLIEST_US <= value <= LATEST_US:
        reason = "is no time between the years 1 and 9999"
        return TaskInvalidValueError(field=field, value=value, reason=reason)
    return None
