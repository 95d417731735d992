"""Every error duly raises (SCHEDULER.md 6).

An error class takes typed values and makes its own message and `details` from them, so the message for
one fault is written in exactly one place. Messages never carry tracebacks, secrets or installation paths.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

__all__ = [
    "CronCalculationError",
    "CronExpressionInvalidError",
    "FieldParseError",
    "ForeignEventLoopError",
    "ForkedSchedulerError",
    "InvalidCronExpressionError",
    "InvalidRegistrationError",
    "NegativeRetryDelayError",
    "RegistrationShapeError",
    "RegistrationsNotArrayError",
    "ScheduleDuplicateTaskError",
    "ScheduleTaskError",
    "SchedulerError",
    "StopSchedulerError",
    "StoreDamagedError",
    "StoreError",
    "StoreInUseError",
    "StoreReplacedError",
    "TaskInvalidStructureError",
    "TaskInvalidTypeError",
    "TaskInvalidValueError",
    "TaskListMismatchError",
    "TaskMissingFieldError",
    "TaskTryDeserializeError",
]

_QUOTED_LIMIT = 200


def _quoted(text: str) -> str:
    """Text for a message: as it is, unless it is so long that it would bury the sentence around it."""
    if len(text) <= _QUOTED_LIMIT:
        return text
    return f"{text[:_QUOTED_LIMIT]}… ({len(text)} characters)"


def _said(error: BaseException) -> str:
    """What an error says of itself, or its type when it says nothing."""
    return str(error) or type(error).__name__


class SchedulerError(Exception):
    """The base of every error duly raises: a sentence in `message`, the facts in `details`."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        cause = self.details.get("cause")
        if isinstance(cause, BaseException):
            self.__cause__ = cause


class RegistrationsNotArrayError(SchedulerError):
    """`initialize` was given something other than a list or tuple."""

    def __init__(self) -> None:
        super().__init__("Registrations must be an array")


class RegistrationShapeError(SchedulerError):
    """A registration is not (name, cron, callback, retry delay)."""

    def __init__(self, *, index: int, received: object) -> None:
        super().__init__(
            "Invalid registration shape: expected [string, string, function, Duration]",
            {"registrationIndex": index, "received": received},
        )


class InvalidRegistrationError(SchedulerError):
    """A registration has the right types and a value that cannot be used."""

    def __init__(self, *, field: str, value: object, reason: str) -> None:
        super().__init__(
            f"Invalid registration: {field} {reason}", {"field": field, "value": value, "reason": reason}
        )


class ScheduleDuplicateTaskError(SchedulerError):
    """Two registrations of one list have the same name."""

    def __init__(self, *, task_name: str) -> None:
        super().__init__(
            f'Task with name "{_quoted(task_name)}" is already scheduled', {"taskName": task_name}
        )


class NegativeRetryDelayError(SchedulerError):
    """A retry delay is below zero."""

    def __init__(self, *, retry_delay_ms: float) -> None:
        super().__init__("Retry delay must be non-negative", {"retryDelayMs": retry_delay_ms})


class FieldParseError(SchedulerError):
    """One field of a cron expression cannot be parsed."""

    def __init__(self, *, field_name: str, field_value: str, reason: str) -> None:
        super().__init__(f"{field_name} field {reason}", {"fieldValue": field_value, "fieldName": field_name})
        self.reason = reason


class _RefusedExpressionError(SchedulerError):
    """What the two errors about refused expressions share: one wording, one set of details."""

    def __init__(self, *, expression: str, field: str, reason: str, cause: BaseException | None) -> None:
        super().__init__(
            f'Invalid cron expression "{_quoted(expression)}": {field} field {reason}',
            {"expression": expression, "field": field, "reason": reason},
        )
        self.__cause__ = cause


class InvalidCronExpressionError(_RefusedExpressionError):
    """The cron parser refuses a text."""

    def __init__(
        self, *, expression: str, field: str, reason: str, cause: FieldParseError | None = None
    ) -> None:
        super().__init__(expression=expression, field=field, reason=reason, cause=cause)


class CronExpressionInvalidError(_RefusedExpressionError):
    """`initialize` was given a cron text that the parser refuses."""

    def __init__(self, cause: InvalidCronExpressionError) -> None:
        super().__init__(
            expression=cause.details["expression"],
            field=cause.details["field"],
            reason=cause.details["reason"],
            cause=cause,
        )


class CronCalculationError(SchedulerError):
    """A valid expression has no occurrence in the years that datetime can hold."""

    def __init__(self, *, expression: str, current_time: datetime, cause: Exception) -> None:
        super().__init__(
            f"Failed to calculate next occurrence: {_said(cause)}",
            {"expression": expression, "currentTime": current_time.isoformat(), "cause": cause},
        )


class ScheduleTaskError(SchedulerError):
    """The store, or scheduling itself, failed during `initialize`; what was before still holds."""

    def __init__(self, *, name: str, cron_expression: str, cause: BaseException) -> None:
        super().__init__(
            f"Failed to schedule task '{_quoted(name)}': {_said(cause)}",
            {"name": name, "cronExpression": cron_expression, "cause": cause},
        )


class StopSchedulerError(SchedulerError):
    """`stop` could not do all it should; everything is released all the same."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"Failed to stop scheduler: {_said(cause)}", {"cause": cause})


class TaskTryDeserializeError(SchedulerError):
    """A stored task cannot be read back; the subclasses say why."""


class TaskMissingFieldError(TaskTryDeserializeError):
    """A stored task lacks a field."""

    def __init__(self, *, field: str) -> None:
        super().__init__(f"Missing required field: {field}", {"field": field})


class TaskInvalidTypeError(TaskTryDeserializeError):
    """A field of a stored task has the wrong type."""

    def __init__(self, *, field: str, value: object, expected_type: str) -> None:
        actual_type = type(value).__name__
        super().__init__(
            f"Invalid type for field '{field}': expected {expected_type}, got {actual_type}",
            {"field": field, "value": value, "expectedType": expected_type, "actualType": actual_type},
        )


class TaskInvalidValueError(TaskTryDeserializeError):
    """A field of a stored task has a value that cannot be."""

    def __init__(self, *, field: str, value: object, reason: str) -> None:
        super().__init__(
            f"Invalid value for field '{field}': {reason}",
            {"field": field, "value": value, "reason": reason},
        )


class TaskInvalidStructureError(TaskTryDeserializeError):
    """What is stored is not a task at all."""

    def __init__(self, *, value: object, reason: str) -> None:
        super().__init__(f"Not a stored task: {reason}", {"value": value})


class TaskListMismatchError(SchedulerError):
    """The stored set of tasks changed under a live scheduler."""

    def __init__(self, *, expected: int, actual: int) -> None:
        super().__init__(
            f"Stored tasks changed while the scheduler was running: wrote {expected}, found {actual}",
            {"expected": expected, "actual": actual},
        )


class StoreError(SchedulerError):
    """A store cannot do what was asked; says which store, why, and what to do about it."""

    def __init__(self, *, store: str, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(f"Store {store}: {reason}", {"store": store, "reason": reason})
        self.__cause__ = cause


class StoreDamagedError(StoreError):
    """What a store holds cannot be read back; says in which table, and how to go on."""

    def __init__(self, *, store: str, table: str, what: str, cause: BaseException | None = None) -> None:
        # The remedy first: a log cuts long texts off.
        reason = f"is damaged ({table}); restore a copy, or run `duly store repair` on it. Found: {what}"
        super().__init__(store=store, reason=reason, cause=cause)
        self.details |= {"table": table, "what": what}


class StoreReplacedError(StoreError):
    """Another file lies where the store of a live scheduler was, and cannot take its place."""

    def __init__(self, *, store: str, fault: StoreError) -> None:
        reason = (
            "was replaced while in use by a file that cannot take its place. Nothing starts; put the store "
            f"back, or move that file away. It {fault.details['reason']}"
        )
        super().__init__(store=store, reason=reason, cause=fault)


class StoreInUseError(SchedulerError):
    """Another live scheduler holds the store."""

    def __init__(self, *, store: str, holder: str) -> None:
        super().__init__(
            f"Store {store} is in use by another scheduler ({holder}); stop that one first",
            {"store": store, "holder": holder},
        )


class ForeignEventLoopError(SchedulerError):
    """`initialize` or `stop` was called on another event loop than the one the scheduler works in."""

    def __init__(self) -> None:
        super().__init__(
            "this scheduler belongs to another event loop; call it from there, or from another thread with"
            " asyncio.run_coroutine_threadsafe(scheduler.stop(), loop)"
        )


class ForkedSchedulerError(SchedulerError):
    """A scheduler was used in a forked child of the process it works in."""

    def __init__(self, *, owner: int, child: int) -> None:
        super().__init__(
            f"this scheduler belongs to process {owner}, and this is its forked child {child};"
            " a child needs a scheduler and a store of its own",
            {"owner": owner, "child": child},
        )
