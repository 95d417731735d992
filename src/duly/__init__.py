"""duly: a scheduler that can say "it ran, once, when it was due"."""

from duly.errors import (
    CronCalculationError,
    CronExpressionInvalidError,
    FieldParseError,
    InvalidCronExpressionError,
    InvalidRegistrationError,
    NegativeRetryDelayError,
    RegistrationShapeError,
    RegistrationsNotArrayError,
    ScheduleDuplicateTaskError,
    SchedulerError,
    ScheduleTaskError,
    StopSchedulerError,
    StoreError,
    StoreInUseError,
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
    "StoreError",
    "StoreInUseError",
    "TaskInvalidStructureError",
    "TaskInvalidTypeError",
    "TaskInvalidValueError",
    "TaskListMismatchError",
    "TaskMissingFieldError",
    "TaskTryDeserializeError",
    "in_thread",
]
__version__ = "0.1.0"
