"""A span for each run, when OpenTelemetry is there (`pip install opentelemetry-sdk`; duly does not need it).

A span is made when its run has ended, with the times of the run: one that a crash cuts off has none. Each
is a root span; what a job does inside is its own trace. Where spans go is said as always with OpenTelemetry:
through the global tracer provider, which `opentelemetry-instrument duly run` sets from the environment.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from duly import __version__
from duly.events import Event, Listener
from duly.instant import instant_of

_STARTS = frozenset({"TaskRunStarted", "ServiceRunStarted", "TimerFired"})
_MOST_PENDING = 10_000


class Spans:
    """Tells runs to OpenTelemetry. Raises ImportError if that is not installed."""

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            self._trace: Any = import_module("opentelemetry.trace")
            self._context: Any = import_module("opentelemetry.context")
        except ImportError as error:
            message = "spans need OpenTelemetry: pip install opentelemetry-sdk"
            raise ImportError(message) from error
        self._tracer = self._trace.get_tracer("duly", __version__, tracer_provider=tracer_provider)
        self._began: dict[object, dict[str, Any]] = {}
        """What is known of runs in flight, by the name of a task or the id of a run."""

    def listener(self, event: Event) -> None:
        fields = event.fields
        if event.name in _STARTS:
            self._remember(fields.get("taskName") or fields.get("runId"), _attributes_at_start(fields))
        elif event.name in {"TaskRunCompleted", "TaskRunFailed"}:
            self._emit(
                fields["taskName"],
                event,
                {"duly.task": fields["taskName"]},
                error=None if fields["success"] else fields["error"],
            )
        elif event.name == "ServiceRunEnded":
            result = fields["result"]
            self._emit(
                fields["service"],
                event,
                _attributes_of_run(fields),
                error=None if result == "success" else fields.get("message") or result,
            )

    __call__ = listener

    def _remember(self, key: object, known: dict[str, Any]) -> None:
        self._began[key] = self._began.get(key, {}) | known
        while len(self._began) > _MOST_PENDING:  # runs whose end was never announced
            del self._began[next(iter(self._began))]

    def _emit(self, name: str, event: Event, attributes: dict[str, Any], *, error: str | None) -> None:
        fields = event.fields
        known = self._began.pop(fields.get("taskName") or fields.get("runId"), {})
        ended_ns = instant_of(event.time) * 1_000
        span = self._tracer.start_span(
            name,
            context=self._context.Context(),  # whatever is current where events are emitted is not its parent
            start_time=ended_ns - round(fields["duration"] * 1_000_000),
            attributes=known | attributes,
        )
        code = self._trace.StatusCode
        span.set_status(
            self._trace.Status(code.OK) if error is None else self._trace.Status(code.ERROR, error)
        )
        span.end(end_time=ended_ns)


def spans_if_installed() -> Listener | None:
    """A listener that makes spans of runs; None when OpenTelemetry is not installed."""
    try:
        return Spans().listener
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
