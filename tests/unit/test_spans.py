"""Spans: one for each run, through the SDK of OpenTelemetry."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duly import App, Event, every
from duly.events import LEVELS
from duly.observe import Spans as LazySpans
from duly.observe.spans import Spans, spans_if_installed

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND_NS = 1_000_000_000
START_NS = 1_767_268_800 * SECOND_NS


class Traced:
    """Spans, and what became of them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = Spans(self.provider)

    def finished(self) -> Sequence[ReadableSpan]:
        """The spans that have ended."""
        return self._exporter.get_finished_spans()

    def last(self) -> ReadableSpan:
        return self.finished()[-1]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def event(name: str, seconds: float = 0, **fields: Any) -> Event:
    return Event(name, LEVELS[name], START + timedelta(seconds=seconds), fields)


def test_a_task_that_completed(traced: Traced) -> None:
    """A run of a task is a root span with its times, its cause and its due."""
    due = START.isoformat()
    started = event("TaskRunStarted", taskName="a", scheduledTime=due, actualTime=due, cause="cron")
    traced.spans.listener(started)
    assert traced.finished() == ()
    traced.spans.listener(event("TaskRunCompleted", 2, taskName="a", duration=1500, success=True))
    span = traced.last()
    assert (span.name, span.start_time, span.end_time) == ("a", START_NS, START_NS + 2 * SECOND_NS)
    assert span.attributes == {"duly.task": "a", "duly.reason": "cron", "duly.scheduled_time": due}
    assert span.status.is_ok
    assert span.parent is None


def test_a_task_that_failed(traced: Traced) -> None:
    """A failure is an error with its message, and what was raised is recorded with its traceback."""
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("no")
    failed = event("TaskRunFailed", 1, taskName="a", duration=1, success=False, error="ValueError: no")
    traced.spans.listener(Event(failed.name, failed.level, failed.time, failed.fields, raised.value))
    span = traced.last()
    assert span.start_time == START_NS + SECOND_NS - 1_000_000, "its start was not heard"
    assert span.status.description == "ValueError: no"
    assert span.attributes == {"duly.task": "a"}
    (recorded,) = span.events
    assert recorded.attributes is not None
    assert recorded.attributes["exception.type"] == "ValueError"
    assert "test_a_task_that_failed" in str(recorded.attributes["exception.stacktrace"])


def test_a_run_of_a_timer(traced: Traced) -> None:
    """A run that a timer started has the timer, its due and the exit code, and nothing of other runs."""
    spans, due = traced.spans, START.isoformat()
    seen: dict[str, Any] = {"service": "backup", "runId": 7, "reason": "schedule", "timer": "nightly"}
    spans.listener(
        event("TimerFired", timer="nightly", target="backup", reason="schedule", scheduledTime=due, runId=7)
    )
    parent = spans.environment(7, "backup")["TRACEPARENT"]
    spans.listener(event("ServiceRunStarted", **seen, pid=1))
    spans.listener(event("ServiceRunStarted", service="web", runId=8, reason="boot", pid=2))
    spans.listener(event("ServiceRunEnded", 3, **seen, result="exit", exitCode=3, signal=None, duration=3000))
    (span,) = traced.finished()
    assert (span.name, span.start_time, span.end_time) == ("backup", START_NS, START_NS + 3 * SECOND_NS)
    assert span.attributes == {
        "duly.service": "backup",
        "duly.timer": "nightly",
        "duly.run_id": 7,
        "duly.reason": "schedule",
        "duly.result": "exit",
        "duly.scheduled_time": due,
        "process.exit.code": 3,
    }
    assert span.status.description == "exit"
    assert span.context is not None
    assert parent.startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0")


def test_nobody_takes_spans() -> None:
    """Without a provider no process is told of a span that goes nowhere."""
    assert Spans(trace.NoOpTracerProvider()).environment(1, "backup") == {}


def test_runs_that_never_end_are_forgotten(traced: Traced) -> None:
    """Starts without an end do not fill the memory."""
    for number in range(12_000):
        traced.spans.listener(event("ServiceRunStarted", service="a", runId=number, reason="boot", pid=1))
    assert len(traced.spans._open) == 10_000


@pytest.mark.parametrize("is_in_thread", [False, True])
def test_the_span_of_a_task_is_current(traced: Traced, *, is_in_thread: bool) -> None:
    """What a body does is part of its run, on the loop and in a thread; two runs do not mix."""
    tracer, both = traced.provider.get_tracer("body"), asyncio.Barrier(2)

    def work() -> None:
        with tracer.start_as_current_span("inner"):
            pass

    async def on_loop() -> None:
        await both.wait()  # so that the runs are in flight together
        work()

    async def scenario() -> None:
        app = App(":memory:", listeners=[traced.spans.listener])
        for name in ("a", "b"):
            app.declare(work if is_in_thread else on_loop, every("1h"), name=name)
        async with app, asyncio.timeout(10):
            await asyncio.gather(*[await app.run_now(name) for name in ("a", "b")])
        assert not trace.get_current_span().get_span_context().is_valid

    asyncio.run(scenario())
    of_runs = {span.context.span_id: span for span in traced.finished() if span.context and not span.parent}
    inner = [span for span in traced.finished() if span.parent is not None]
    assert sorted(span.name for span in of_runs.values()) == ["a", "b"]
    assert {span.parent.span_id for span in inner if span.parent} == set(of_runs)


def test_a_listener_that_fails_on_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    """A listener that raises when a callback is called is reported; the callback is called all the same."""
    calls = []

    class Broken:
        def __repr__(self) -> str:
            return "broken"

        def __call__(self, event: Event) -> None: ...

        def on_call(self, name: str) -> None:
            raise ValueError(name)

    async def scenario() -> None:
        app = App(":memory:", listeners=[Broken()])
        app.declare(lambda: calls.append(1), every("1h"), name="a")
        async with app, asyncio.timeout(10):
            await (await app.run_now("a"))

    asyncio.run(scenario())
    assert calls == [1]
    assert capsys.readouterr().err == "duly: listener broken failed on a call: ValueError: a\n"


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry there is no listener, and anyone who insists is told what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert spans_if_installed() is None
    with pytest.raises(ImportError, match="pip install opentelemetry-sdk"):
        LazySpans()


def test_with_opentelemetry() -> None:
    """With it there is one."""
    assert isinstance(spans_if_installed(), Spans)
