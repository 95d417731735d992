"""A span for each run, when OpenTelemetry is there (`pip install opentelemetry-sdk`; duly does not need it).

The span of a task is current while its callback runs, so what the callback does is part of it. The process of
a service gets its span as TRACEPARENT (W3C Trace Context). Each is a root span, and is exported when its run
has ended: one that a crash cuts off has none. Where spans go is said as always with OpenTelemetry: through
the global tracer provider, which `opentelemetry-instrument duly run` sets from the environment.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from duly import __version__
from duly.events import Event
from duly.instant import instant_of

_STARTS = frozenset({"ServiceRunStarted", "TimerFired"})
_MOST_PENDING = 10_000
TRACEPARENT = "TRACEPARENT"


class Spans:
    """Exports runs to OpenTelemetry. Raises ImportError if that is not installed."""

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            self._trace: Any = import_module("opentelemetry.trace")
            self._context: Any = import_module("opentelemetry.context")
        except ImportError as error:
            message = "spans need OpenTelemetry: pip install opentelemetry-sdk"
            raise ImportError(message) from error
        self._tracer = self._trace.get_tracer("duly", __version__, tracer_provider=tracer_provider)
        self._open: dict[object, Any] = {}
        """The spans of runs in flight, by the name of a task or the id of a run."""

    @property
    def listener(self) -> "Spans":
        """What to give to a scheduler or a daemon."""
        return self

    def __call__(self, event: Event) -> None:
        fields = event.fields
        if event.name == "TaskRunStarted":
            name = fields["taskName"]
            # What an earlier run of that name has left was cut off.
            self._open.pop(name, None)
            self._begun(name, name, event, {"duly.task": name} | _attributes_at_start(fields))
        elif event.name in _STARTS:
            attributes = _attributes_at_start(fields)
            self._begun(fields["runId"], fields.get("service") or fields["target"], event, attributes)
        elif event.name in {"TaskRunCompleted", "TaskRunFailed"}:
            name = fields["taskName"]
            error = None if fields["success"] else fields["error"]
            self._end(name, name, event, {"duly.task": name}, error=error)
        elif event.name == "ServiceRunEnded":
            result = fields["result"]
            self._end(
                fields["runId"],
                fields["service"],
                event,
                _attributes_of_run(fields),
                error=None if result == "success" else fields.get("message") or result,
            )

    def on_call(self, name: str) -> None:
        """Make the span of a task the current one. Called in the context in which its callback comes next."""
        if (span := self._open.get(name)) is not None:
            # Never detached: the context is the run's own, and ends with it.
            self._context.attach(self._trace.set_span_in_context(span, self._context.Context()))

    def environment(self, run_id: int, service: str) -> dict[str, str]:
        """What to tell the process of a run that begins now; nothing if nobody takes its span."""
        known = self._begun(run_id, service, None, {}).get_span_context()
        if not known.is_valid:
            return {}
        return {TRACEPARENT: f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}"}

    def _begun(self, key: object, name: str, event: Event | None, attributes: dict[str, Any]) -> Any:
        """The span of a run, which begins with the first event of it."""
        span = self._open.get(key)
        if span is None:
            span = self._open[key] = self._tracer.start_span(
                name,
                # Whatever is current where events are emitted is not its parent.
                context=self._context.Context(),
                start_time=None if event is None else instant_of(event.time) * 1_000,
            )
            while len(self._open) > _MOST_PENDING:  # runs whose end was never announced
                del self._open[next(iter(self._open))]
        span.set_attributes(attributes)
        return span

    def _end(
        self, key: object, name: str, event: Event, attributes: dict[str, Any], *, error: str | None
    ) -> None:
        span, ended_ns = self._open.pop(key, None), instant_of(event.time) * 1_000
        if span is None:  # its start was not seen: it began before anybody listened
            began_ns = ended_ns - round(event.fields["duration"] * 1_000_000)
            span = self._tracer.start_span(name, context=self._context.Context(), start_time=began_ns)
        span.set_attributes(attributes)
        if event.exception is not None:
            span.record_exception(event.exception, timestamp=ended_ns)
        code = self._trace.StatusCode
        span.set_status(
            self._trace.Status(code.OK) if error is None else self._trace.Status(code.ERROR, error)
        )
        span.end(end_time=ended_ns)


def spans_if_installed() -> Spans | None:
    """What makes spans of runs; None when OpenTelemetry is not installed."""
    try:
        return Spans()
    except ImportError:
        return None


def _attributes_at_start(fields: Mapping[str, Any]) -> dict[str, Any]:
    reason = fields.get("cause") or fields.get("reason")
    attributes = {"duly.reason": reason, "duly.scheduled_time": fields.get("scheduledTime")}
    return {key: value for key, value in attributes.items() if value is not None}


def _attributes_of_run(fields: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {
        "duly.service": fields["service"],
        "duly.timer": fields.get("timer"),
        "duly.run_id": fields["runId"],
        "duly.reason": fields["reason"],
        "duly.result": fields["result"],
        "process.exit.code": fields.get("exitCode"),
        "duly.signal": fields.get("signal"),
    }
    return {key: value for key, value in attributes.items() if value is not None}
