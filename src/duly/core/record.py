"""Records: a task as a store keeps it, and back.

A record is the plain values of a task in the order of `COLUMNS`. Reading one back trusts nothing: a store
may be damaged, or edited by hand, and each fault has its own error (SCHEDULER.md 6).
"""

from collections.abc import Callable, Sequence
from typing import Any

from duly.core.schedule import Schedule
from duly.core.task import Task
from duly.errors import (
    InvalidCronExpressionError,
    TaskInvalidStructureError,
    TaskInvalidTypeError,
    TaskInvalidValueError,
    TaskMissingFieldError,
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
    "scheduler_id",
)
"""What is kept of a task, in order."""

STATE_COLUMNS = COLUMNS[4:14]
"""What changes when a task runs; the rest changes only when it is registered."""

_COUNTS = frozenset({"id", "retry_delay_us", "retry_count", "interrupted", "due_stands"})
_TEXTS = frozenset({"name", "cron", "scheduler_id"})
_OPTIONAL = frozenset(
    {"last_attempt_us", "last_success_us", "last_failure_us", "retry_at_us", "running_since_us"}
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
    )


def task_from(record: Any, schedule_of: Callable[[str], Schedule]) -> Task:
    """The task that *record* holds. Raises a TaskTryDeserializeError."""
    if not isinstance(record, Sequence) or isinstance(record, str | bytes):
        raise TaskInvalidStructureError(value=record, reason="it is not a record")
    if len(record) < len(COLUMNS):
        raise TaskMissingFieldError(field=COLUMNS[len(record)])
    for field, value in zip(COLUMNS, record, strict=False):
        _check(field, value)
    (
        task_id,
        name,
        cron,
        retry_delay_us,
        registered_us,
        answered_us,
        last_attempt_us,
        last_success_us,
        last_failure_us,
        retry_at_us,
        retry_count,
        interrupted,
        due_stands,
        running_since_us,
        scheduler_id,
    ) = record[: len(COLUMNS)]
    try:
        schedule = schedule_of(cron)
    except InvalidCronExpressionError as error:
        raise TaskInvalidValueError(field="cron", value=cron, reason=error.message) from error
    return Task(
        task_id,
        name,
        schedule,
        retry_delay_us,
        registered_us,
        answered_us,
        schedule.due_after(answered_us),
        last_attempt_us,
        last_success_us,
        last_failure_us,
        retry_at_us,
        retry_count,
        bool(interrupted),
        bool(due_stands),
        running_since_us,
        scheduler_id,
    )


def _check(field: str, value: Any) -> None:
    if field in _TEXTS:
        if type(value) is not str:
            raise _untyped(field, value, "str")
    elif type(value) is not int:
        if value is None and field in _OPTIONAL:
            return
        raise _untyped(field, value, "int")
    elif field in _COUNTS:
        if value < 0:
            raise TaskInvalidValueError(field=field, value=value, reason="must not be negative")
    elif not EARLIEST_US <= value <= LATEST_US:
        raise TaskInvalidValueError(
            field=field, value=value, reason="is no time between the years 1 and 9999"
        )


def _untyped(field: str, value: object, expected_type: str) -> TaskMissingFieldError | TaskInvalidTypeError:
    if value is None:
        return TaskMissingFieldError(field=field)
    return TaskInvalidTypeError(field=field, value=value, expected_type=expected_type)
