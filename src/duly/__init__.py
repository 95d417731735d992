"""duly: a scheduler that can say "it ran, once, when it was due"."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.errors import (
        CronCalculationError,
        CronExpressionInvalidError,
        FieldParseError,
        ForeignEventLoopError,
        ForkedSchedulerError,
        InvalidCronExpressionError,
        InvalidRegistrationError,
        NegativeRetryDelayError,
        RegistrationShapeError,
        RegistrationsNotArrayError,
        ScheduleDuplicateTaskError,
        SchedulerError,
        ScheduleTaskError,
        StopSchedulerError,
        StoreDamagedError,
        StoreError,
        StoreInUseError,
        StoreReplacedError,
        TaskInvalidStructureError,
        TaskInvalidTypeError,
        TaskInvalidValueError,
        TaskListMismatchError,
        TaskMissingFieldError,
        TaskTryDeserializeError,
    )
    from duly.events import Event
    from duly.scheduler import Scheduler, SchedulerState
    from duly.threads import in_thread

__all__ = [
    "CronCalculationError",
    "CronExpressionInvalidError",
    "Event",
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
    "Scheduler",
    "SchedulerError",
    "SchedulerState",
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
    "in_thread",
]
__version__ = "0.1.0"

_HOMES = {"Event": "events", "Scheduler": "scheduler", "SchedulerState": "scheduler", "in_thread": "threads"}
"""Where a name comes from, if not from `errors`."""


def __getattr__(name: str) -> Any:
    # Imported when first asked for: a command that only talks to a daemon needs neither loop nor database.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
