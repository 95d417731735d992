"""The error table (spec/scheduler.md 6), row by row, and the public surface."""

from datetime import UTC, datetime
from typing import Any

import duly
import duly.errors
import duly.testing
import duly.verify
import duly.verify.foreign
import duly.verify.reasons
from duly import errors

CAUSE = ValueError("because")
ROWS: list[tuple[duly.SchedulerError, str, dict[str, Any]]] = [
    (
        errors.ScheduleTaskError(name="a", cron_expression="* * * * *", cause=CAUSE),
        "Failed to schedule task 'a': because",
        {"name": "a", "cronExpression": "* * * * *", "cause": CAUSE},
    ),
    (errors.StopSchedulerError(CAUSE), "Failed to stop scheduler: because", {"cause": CAUSE}),
    (
        errors.CronCalculationError(
            expression="* * * * *", current_time=datetime(2026, 1, 1, tzinfo=UTC), cause=CAUSE
        ),
        "Failed to calculate next occurrence: because",
        {"expression": "* * * * *", "currentTime": "2026-01-01T00:00:00+00:00", "cause": CAUSE},
    ),
    (errors.TaskMissingFieldError(field="cron"), "Missing required field: cron", {"field": "cron"}),
    (
        errors.TaskInvalidTypeError(field="cron", value=5, expected_type="str"),
        "Invalid type for field 'cron': expected str, got int",
        {"field": "cron", "value": 5, "expectedType": "str", "actualType": "int"},
    ),
    (
        errors.TaskInvalidValueError(field="retry_count", value=-1, reason="must not be negative"),
        "Invalid value for field 'retry_count': must not be negative",
        {"field": "retry_count", "value": -1, "reason": "must not be negative"},
    ),
    (
        errors.TaskInvalidStructureError(value=5, reason="it is not a record"),
        "Not a stored task: it is not a record",
        {"value": 5},
    ),
    (
        errors.TaskListMismatchError(expected=2, actual=1),
        "Stored tasks changed while the scheduler was running: wrote 2, found 1",
        {"expected": 2, "actual": 1},
    ),
    (
        errors.StoreInUseError(store="state.db", holder="process 1 on host"),
        "Store state.db is in use by another scheduler (process 1 on host); stop that one first",
        {"store": "state.db", "holder": "process 1 on host"},
    ),
    (
        errors.TaskNotFoundError(name="raport", store="db", namespace="default", close=["report"]),
        "There is no task 'raport' in namespace 'default' of db; did you mean report?",
        {"name": "raport", "store": "db", "namespace": "default", "close": ["report"]},
    ),
]


def test_rows() -> None:
    """Each error says what the table says, in message, text and details."""
    for error, message, details in ROWS:
        assert error.message == str(error) == message
        assert error.details == details
        assert isinstance(error, duly.SchedulerError)


def test_wrapped_error_is_the_cause() -> None:
    """A wrapped error is in `details["cause"]` and in `__cause__`."""
    for error, _, details in ROWS:
        assert error.__cause__ is details.get("cause")


def test_stored_task_errors_share_a_base() -> None:
    """The four errors about stored tasks can be caught as one."""
    for error, _, _ in ROWS[3:7]:
        assert isinstance(error, errors.TaskTryDeserializeError)


def test_long_names_do_not_flood_messages() -> None:
    """A megabyte of name is in the details, not in the message."""
    error = errors.ScheduleDuplicateTaskError(task_name="x" * 1_000_000)
    assert len(error.message) < 400
    assert len(error.details["taskName"]) == 1_000_000


def test_public_surface() -> None:
    """What is public is said here, so that it is never extended by accident."""
    assert sorted(duly.__all__) == sorted(
        [
            *errors.__all__,
            *("App", "Event", "Retry", "Run", "Schedule", "Scheduler", "SchedulerState"),
            *("crontab", "current_run", "daily", "every", "in_thread", "monthly", "once", "weekly"),
        ]
    )
    assert all(hasattr(duly, name) for name in duly.__all__)
    assert duly.testing.__all__ == ["FaultyStore", "VirtualClock", "crash"]
    assert duly.verify.__all__ == [
        *("PROPERTIES", "Fault", "Header", "Monitor", "Outcome", "Recorder"),
        *("Tally", "TraceError", "Verdict", "Violation", "judged"),
    ]
    assert duly.verify.foreign.__all__ == ["APSchedulerRecorder", "CsvError", "lines_from_csv"]
    assert duly.verify.reasons.__all__ == ["Answer", "Kind", "UnknownTaskError", "why", "why_latest"]
    assert duly.cron.__all__ == ["CronExpression"]
    assert duly.store.__all__ == ["Contents", "MemoryStore", "SQLiteStore", "Store", "store_for"]
    defined = {
        name for name, value in vars(duly.errors).items() if isinstance(value, type) and name[0] != "_"
    }
    assert {name for name in defined if name.endswith("Error")} == set(errors.__all__)
