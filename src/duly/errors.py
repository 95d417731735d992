"""Every error duly raises (spec/scheduler.md 6).

An error class takes typed values and makes its own message and `details` from them, so the message for
one fault is written in exactly one place. Messages never carry tracebacks, secrets or installation paths.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from duly.formatting import error_text, excerpt, suggestion

__all__ = [
    "CronCalculationError",
    "CronExpressionInvalidError",
    "EntryNameError",
    "FieldParseError",
    "ForeignEventLoopError",
    "ForkedSchedulerError",
    "HolderAwayError",
    "InvalidCronExpressionError",
    "InvalidRegistrationError",
    "InvalidScheduleError",
    "ListRefusedError",
    "NegativeRetryDelayError",
    "NoSuchTaskError",
    "RegistrationShapeError",
    "RegistrationsNotArrayError",
    "RunCancelledError",
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
    "TaskNotFoundError",
    "TaskTryDeserializeError",
]


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
            f'Task with name "{excerpt(task_name)}" is already scheduled', {"taskName": task_name}
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

    def __init__(
        self, *, expression: str, field: str, reason: str, cause: SchedulerError | None = None
    ) -> None:
        super().__init__(
            f'Invalid cron expression "{excerpt(expression)}": {field} field {reason}',
            {"expression": expression, "field": field, "reason": reason},
        )
        self.__cause__ = cause


class InvalidCronExpressionError(_RefusedExpressionError):
    """The cron parser refuses a text; the cause, if any, is a FieldParseError."""


class InvalidScheduleError(SchedulerError):
    """A schedule text that is not plain cron cannot be used."""

    def __init__(self, *, text: str, reason: str) -> None:
        super().__init__(f'Invalid schedule "{excerpt(text)}": {reason}', {"text": text, "reason": reason})


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
            f"Failed to calculate next occurrence: {error_text(cause)}",
            {"expression": expression, "currentTime": current_time.isoformat(), "cause": cause},
        )


class ScheduleTaskError(SchedulerError):
    """The store, or scheduling itself, failed during `initialize`; what was before still holds."""

    def __init__(self, *, name: str, cron_expression: str, cause: BaseException) -> None:
        super().__init__(
            f"Failed to schedule task '{excerpt(name)}': {error_text(cause)}",
            {"name": name, "cronExpression": cron_expression, "cause": cause},
        )


class StopSchedulerError(SchedulerError):
    """`stop` could not do all it should; everything is released all the same."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"Failed to stop scheduler: {error_text(cause)}", {"cause": cause})


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

    is_undone = False
    """Whether what was asked has certainly not been done. Else nobody knows."""

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


class ListRefusedError(SchedulerError):
    """A list would remove every task of other live nodes of a cluster; nothing was changed."""

    def __init__(self, *, store: str, namespace: str, nodes: list[str]) -> None:
        super().__init__(
            f"This list would remove all tasks of the live nodes {', '.join(nodes)} in namespace "
            f"{namespace!r} of {store}. Another application? Give it a namespace of its own (namespace=). "
            "If these tasks are to go, say replace=True",
            {"store": store, "namespace": namespace, "nodes": nodes},
        )


class NoSuchTaskError(SchedulerError):
    """A request names no task of the app; *close* are names that may be meant."""

    def __init__(self, *, name: str, close: list[str]) -> None:
        hint = f"; {suggestion(close)}" if close else ""
        super().__init__(f"There is no task {excerpt(name)!r}{hint}", {"name": name, "close": close})


class RunCancelledError(SchedulerError):
    """The run of a task was cancelled because somebody asked for that (`App.cancel`)."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"The run of {excerpt(name)!r} was cancelled", {"name": name})


class EntryNameError(SchedulerError):
    """An entry was to be added or removed under the name of a declared task."""

    def __init__(self, *, name: str) -> None:
        super().__init__(
            f"Task {excerpt(name)!r} is declared by the program, so it is no entry that could be added or"
            " removed; choose another name, or change the declaration",
            {"name": name},
        )


class HolderAwayError(SchedulerError):
    """A control of a standby process has no answer from the process that holds the store."""

    def __init__(self, *, store: str, is_asked: bool) -> None:
        asked = "; it was asked, and may have done it" if is_asked else ""
        super().__init__(
            f"This process stands by, and the one that holds {store} does not answer{asked}. "
            "If it has ended, a standby takes over within a second: try again. If not, "
            "is it an App with standby=True?",
            {"store": store, "isAsked": is_asked},
        )


class TaskNotFoundError(SchedulerError):
    """A request for one task of a cluster names none; *close* are names that may be meant."""

    def __init__(self, *, name: str, store: str, namespace: str, close: list[str]) -> None:
        hint = f"; {suggestion(close)}" if close else ""
        super().__init__(
            f"There is no task {excerpt(name)!r} in namespace {namespace!r} of {store}{hint}",
            {"name": name, "store": store, "namespace": namespace, "close": close},
        )


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
