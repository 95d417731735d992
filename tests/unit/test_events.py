"""Events reach listeners and the log, and a listener that fails harms nobody (spec/scheduler.md 7)."""

import asyncio
import json
import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from duly import Event
from duly.events import LEVELS, Announcer, warn_operator
from duly.formatting import one_line
from duly.store import MemoryStore
from tests.worlds.scheduler import MINUTE, World

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_event_has_name_level_time_and_fields() -> None:
    """A listener gets the event with its level, its time and its facts."""
    received: list[Event] = []
    Announcer([received.append], lambda: NOW).announce("TaskRunFailed", taskName="a")
    assert received == [Event("TaskRunFailed", logging.WARNING, NOW, {"taskName": "a"})]


def test_levels() -> None:
    """Every event of the contract has its level."""
    by_level: dict[int, set[str]] = {}
    for name in LEVELS.keys() - DAEMON_LEVELS.keys() - CLUSTER_LEVELS.keys():
        level = LEVELS[name]
        by_level.setdefault(level, set()).add(name)
    assert by_level[logging.ERROR] == {
        "SchedulerInitializationFailed",
        "StoreFault",
        "PollFailed",
        "PollerRestarted",
        "PropertyViolated",
        "RecorderFault",
        "MonitorFault",
    }
    assert by_level[logging.WARNING] == {
        *("TaskRunFailed", "TaskOrphaned", "TaskMissed", "ClockStepped", "SchedulerAborted")
    }
    assert by_level[logging.INFO] == {
        *("TaskRequested", "TaskPaused", "TaskResumed", "EntryAdded", "EntryChanged", "EntryRemoved"),
        "SchedulerStopRequested",
        "SchedulerStopped",
        "TaskRunStarted",
        "TaskRunCompleted",
        "TaskRetryStarted",
        "TaskRetryPreempted",
        "TaskAdded",
        "TaskOverridden",
        "StoreRecovered",
        "PollRecovered",
        "RecorderRecovered",
    }
    assert len(LEVELS) == 40 + len(DAEMON_LEVELS) + len(CLUSTER_LEVELS)


CLUSTER_LEVELS = {
    "NodeJoined": logging.INFO,
    "NodeFenced": logging.WARNING,
    "NodeReturned": logging.WARNING,
    "TrustLost": logging.ERROR,
    "LoopBlocked": logging.WARNING,
    "TaskInterruptedAgain": logging.ERROR,
    "ListReconciled": logging.INFO,
    "ServerChanged": logging.WARNING,
}

DAEMON_LEVELS = {
    "SupervisorStarted": logging.INFO,
    "SupervisorStopping": logging.INFO,
    "SupervisorStopped": logging.INFO,
    "StageStarted": logging.DEBUG,
    "StageCompleted": logging.DEBUG,
    "ServiceRunStarted": logging.INFO,
    "ServiceRunEnded": logging.INFO,
    "ServiceRestarting": logging.WARNING,
    "ServiceStartSkipped": logging.WARNING,
    "LeftoverFound": logging.WARNING,
    "ConfigurationReloaded": logging.INFO,
    "ConfigurationRefused": logging.ERROR,
    "ConfigurationExposed": logging.WARNING,
    "EntryInvalid": logging.WARNING,
    "OperatorAction": logging.INFO,
    "TimersEnabled": logging.INFO,
    "TimersDisabled": logging.INFO,
    "TimerAdded": logging.INFO,
    "TimerOverridden": logging.INFO,
    "TimerRecalled": logging.INFO,
    "TimerRemoved": logging.INFO,
    "TimerUnreadable": logging.ERROR,
    "TimerFired": logging.INFO,
    "TimerQueued": logging.INFO,
    "TimerMissed": logging.WARNING,
    "TimerRunEnded": logging.INFO,
    "TimerRetryScheduled": logging.INFO,
    "DashboardStarted": logging.INFO,
    "DashboardFault": logging.WARNING,
    "DeadManPingFailed": logging.WARNING,
    "NotificationSent": logging.INFO,
    "NotificationFailed": logging.WARNING,
    "ListenerFault": logging.ERROR,
    "ListenerRecovered": logging.INFO,
}


def test_levels_of_the_daemon() -> None:
    """Every event of the daemon, its supervisor and its timers has its level."""
    assert {name: LEVELS[name] for name in DAEMON_LEVELS} == DAEMON_LEVELS


def test_levels_of_a_cluster() -> None:
    """Every event of a node of a cluster has its level."""
    assert {name: LEVELS[name] for name in CLUSTER_LEVELS} == CLUSTER_LEVELS


def test_log_record_carries_event_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    """The record of the logger `duly` has the event's name and fields as attributes."""
    caplog.set_level(logging.DEBUG, "duly")
    Announcer([], lambda: NOW).announce("PollStarted", pollTime="t", scheduledTaskCount=3)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("duly", logging.DEBUG)
    assert (record.event, record.fields) == ("PollStarted", {"pollTime": "t", "scheduledTaskCount": 3})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "is_traced"),
    [(ValueError("no"), True), (SystemExit(3), True), (asyncio.CancelledError(), False), (None, False)],
)
def test_failures_are_logged_with_their_traceback(
    error: BaseException | None, is_traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The record of a failure has the exception, unless somebody cancelled; a listener always gets it."""
    heard: list[Event] = []
    Announcer([heard.append], lambda: NOW).announce("TaskRunFailed", error, taskName="a")
    assert heard[0].exception is error
    exc_info = caplog.records[0].exc_info
    assert (exc_info is not None and exc_info[1] is error) == is_traced


def test_nothing_is_made_when_nobody_listens() -> None:
    """An event below the log level with no listener is not wanted."""
    announcer = Announcer([], lambda: NOW)
    assert not announcer.wants("PollStarted")
    assert announcer.wants("StoreFault")
    assert Announcer([print], lambda: NOW).wants("PollStarted")


NASTY = ["a\nb", "\x1b[31mred", "tab\there", "\u202eright to left", "nul\0", "line\u2028separator", "\r\n"]


@pytest.mark.parametrize("name", NASTY, ids=repr)
def test_names_are_escaped_in_logs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Control and direction characters of a name do not reach the log; listeners get the name as it is."""
    received: list[Event] = []
    Announcer([received.append], lambda: NOW).announce("TaskRunFailed", taskName=name)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.fields["taskName"].isprintable()  # type: ignore[attr-defined]
    assert received[0].fields["taskName"] == name


def test_long_names_are_shortened_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    """A megabyte of name is a short line in the log."""
    Announcer([], lambda: NOW).announce("TaskRunFailed", taskName="x" * 1_000_000)
    assert len(caplog.records[0].getMessage()) < 400


def test_fields_without_a_value_are_not_in_the_text(caplog: pytest.LogCaptureFixture) -> None:
    """A line of the log has what is known; the record has every field."""
    Announcer([], lambda: NOW).announce("TaskRunFailed", taskName="a", exitCode=None, signal=9)
    (record,) = caplog.records
    assert record.getMessage() == "TaskRunFailed taskName=a signal=9"
    assert record.fields == {"taskName": "a", "exitCode": None, "signal": 9}  # type: ignore[attr-defined]


def test_ordinary_text_is_left_alone() -> None:
    """Letters of every script, and emoji, are printed as they are."""
    for text in ("plain", "Größe", "日報", "🗓️ daily"):
        assert one_line(text).replace("\\ufe0f", "\ufe0f") == text


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()]
)
def test_failing_listener_harms_nobody(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a listener raises is reported on stderr, and the next listener hears the event."""
    received: list[Event] = []

    def fails(_: Event) -> None:
        raise error

    Announcer([fails, received.append], lambda: NOW).announce("TaskAdded", taskName="a")
    assert len(received) == 1
    assert type(error).__name__ in capsys.readouterr().err


def test_failing_log_handler_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """A log handler that raises is treated like any listener that does."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    handler = Broken()
    logging.getLogger("duly").addHandler(handler)
    try:
        Announcer([], lambda: NOW).announce("TaskRunFailed", taskName="a")
    finally:
        logging.getLogger("duly").removeHandler(handler)
    assert "disk full" in capsys.readouterr().err


async def test_whole_story_of_a_run() -> None:
    """From initialize to stop the events come in causal order with exactly the fields of the contract."""
    world = World(MemoryStore, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *"))
    await world.clock.advance(MINUTE)
    await world.scheduler.stop()
    assert [(event.name, list(event.fields)) for event in world.events] == [
        ("SchedulerInitializationStarted", ["totalRegistrations"]),
        ("TaskAdded", ["taskName", "cronExpression", "retryDelayMs"]),
        ("TaskScheduled", ["taskName", "cronExpression", "retryDelayMs"]),
        ("SchedulerInitializationCompleted", ["totalRegistrations", "scheduledCount", "skippedCount"]),
        ("PollingStarted", []),
        ("PollStarted", ["pollTime", "scheduledTaskCount"]),
        ("TaskRunStarted", ["taskName", "scheduledTime", "actualTime", "cause"]),
        ("PollCompleted", ["pollTime", "tasksEvaluated", "tasksExecuted", "duration"]),
        ("TaskRunCompleted", ["taskName", "duration", "success"]),
        ("SchedulerStopRequested", []),
        ("PollingStopRequested", []),
        ("PollingStopped", []),
        ("SchedulerStopped", []),
    ]
    assert all(event.time.tzinfo is not None for event in world.events)


async def test_fields_are_ready_for_json() -> None:
    """Every field of every event can be written as JSON."""
    world = World(MemoryStore, "12:00:00")
    failing = world.task("a", outcomes=[ValueError("x")] * 3, delay=MINUTE / 7)
    await world.begin(failing, world.task("b", "0 3 * * *"))
    await world.clock.advance(5 * MINUTE)
    await world.scheduler.initialize([world.task("b", "0 4 * * *")])
    world.clock.step(-10 * MINUTE)
    await world.scheduler.stop()
    seen: Any = [json.loads(json.dumps(event.fields)) for event in world.events]
    assert seen == [event.fields for event in world.events]


def test_operator_is_told_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence and the end of its line are one write, so that nobody else's line comes between them."""
    written: list[str] = []
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    warn_operator("duly: not\nreloaded")
    assert len(written) == 1
    assert written[0].endswith("reloaded\n")
