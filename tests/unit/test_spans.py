"""Spans: one for each run, through OpenTelemetry if it is there, and through a small stand-in otherwise."""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from duly import Event
from duly.events import LEVELS
from duly.observe.spans import Spans, spans_if_installed

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND_NS = 1_000_000_000
START_NS = 1_767_268_800 * SECOND_NS


class Told:
    """A span as it was told, no matter who took it."""

    def __init__(self, name: str, start_ns: int, attributes: Mapping[str, Any]) -> None:
        self.name = name
        self.start_ns = start_ns
        self.end_ns = 0
        self.attributes = dict(attributes)
        self.status: tuple[str, str | None] = ("UNSET", None)
        self.has_parent = False


class StandIn:
    """As much of OpenTelemetry's API as a span needs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans: list[Told] = []
        trace: Any = ModuleType("opentelemetry.trace")
        context: Any = ModuleType("opentelemetry.context")
        trace.get_tracer = lambda name, version, tracer_provider=None: self
        trace.StatusCode = type("StatusCode", (), {"OK": "OK", "ERROR": "ERROR"})
        trace.Status = lambda code, description=None: (code, description)
        context.Context = dict
        for name, module in (("opentelemetry.trace", trace), ("opentelemetry.context", context)):
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "opentelemetry", ModuleType("opentelemetry"))

    def start_span(self, name: str, *, context: Any, start_time: int, attributes: Mapping[str, Any]) -> Any:
        """Begin a span."""
        told = Told(name, start_time, attributes)
        told.has_parent = context != {}
        stand_in = self

        class Span:
            def set_status(self, status: tuple[str, str | None]) -> None:
                told.status = status

            def end(self, end_time: int) -> None:
                told.end_ns = end_time
                stand_in.spans.append(told)

        return Span()

    def finished(self) -> list[Told]:
        """The spans that have ended."""
        return self.spans


class Real:
    """OpenTelemetry's own SDK."""

    def __init__(self) -> None:
        trace = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        self._exporter = memory.InMemorySpanExporter()
        self.provider = trace.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self._exporter))

    def finished(self) -> list[Told]:
        """The spans that have ended."""
        found = []
        for span in self._exporter.get_finished_spans():
            told = Told(span.name, span.start_time, span.attributes)
            told.end_ns = span.end_time
            told.status = (span.status.status_code.name, span.status.description)
            told.has_parent = span.parent is not None
            found.append(told)
        return found


@pytest.fixture(params=["stand-in", "sdk"])
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Spans, Any]:
    if request.param == "sdk":
        real = Real()
        return Spans(real.provider), real
    stand_in = StandIn(monkeypatch)
    return Spans(), stand_in


def event(name: str, seconds: float = 0, **fields: Any) -> Event:
    return Event(name, LEVELS[name], START + timedelta(seconds=seconds), fields)


def test_a_task_that_completed(taken: tuple[Spans, Any]) -> None:
    """A run of a task is a root span with its times, its cause and its due."""
    spans, otel = taken
    due = START.isoformat()
    spans.listener(event("TaskRunStarted", taskName="a", scheduledTime=due, actualTime=due, cause="cron"))
    assert otel.finished() == []
    spans.listener(event("TaskRunCompleted", 2, taskName="a", duration=1500, success=True))
    [span] = otel.finished()
    assert (span.name, span.start_ns, span.end_ns) == (
        "a",
        START_NS + SECOND_NS // 2,
        START_NS + 2 * SECOND_NS,
    )
    assert span.attributes == {"duly.task": "a", "duly.reason": "cron", "duly.scheduled_time": due}
    assert span.status[0] == "OK"
    assert not span.has_parent


def test_a_task_that_failed(taken: tuple[Spans, Any]) -> None:
    """A failure is an error with its message."""
    spans, otel = taken
    spans.listener(event("TaskRunFailed", 1, taskName="a", duration=1, success=False, error="ValueError: no"))
    [span] = otel.finished()
    assert span.status == ("ERROR", "ValueError: no")
    assert span.attributes == {"duly.task": "a"}


def test_a_run_of_a_timer(taken: tuple[Spans, Any]) -> None:
    """A run that a timer started has the timer, its due and the exit code, and nothing of other runs."""
    spans, otel = taken
    due = START.isoformat()
    told: dict[str, Any] = {"service": "backup", "runId": 7, "reason": "schedule", "timer": "nightly"}
    spans.listener(
        event("TimerFired", timer="nightly", target="backup", reason="schedule", scheduledTime=due, runId=7)
    )
    spans.listener(event("ServiceRunStarted", **told, pid=1))
    spans.listener(event("ServiceRunStarted", service="web", runId=8, reason="boot", pid=2))
    spans.listener(event("ServiceRunEnded", 3, **told, result="exit", exitCode=3, signal=None, duration=3000))
    [span] = otel.finished()
    assert (span.name, span.start_ns, span.end_ns) == ("backup", START_NS, START_NS + 3 * SECOND_NS)
    assert span.attributes == {
        "duly.service": "backup",
        "duly.timer": "nightly",
        "duly.run_id": 7,
        "duly.reason": "schedule",
        "duly.result": "exit",
        "duly.scheduled_time": due,
        "process.exit.code": 3,
    }
    assert span.status == ("ERROR", "exit")


def test_runs_that_never_end_are_forgotten(taken: tuple[Spans, Any]) -> None:
    """Starts without an end do not fill the memory."""
    spans, _ = taken
    for number in range(12_000):
        spans.listener(event("ServiceRunStarted", service="a", runId=number, reason="boot", pid=1))
    assert len(spans._began) == 10_000


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry there is no listener, and anyone who insists is told what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert spans_if_installed() is None
    with pytest.raises(ImportError, match="pip install opentelemetry-sdk"):
        Spans()


def test_with_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it there is one."""
    stand_in = StandIn(monkeypatch)
    listener = spans_if_installed()
    assert listener is not None
    listener(event("TaskRunCompleted", taskName="a", duration=1, success=True))
    assert [span.name for span in stand_in.finished()] == ["a"]
