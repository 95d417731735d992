"""Metrics for Prometheus, made of events alone (`pip install 'duly[metrics]'`).

A listener counts; times that pass by themselves (since the last success, until the next due) are worked out
when somebody asks, from instants. At most `most_names` tasks, services and timers are told apart, each kind
by itself, and in histograms, which are fourteen series each, a tenth as many; the rest is called `other`.
What is removed from the configuration is forgotten here as well.

All of it belongs to the thread of the loop, but for `store_wrote` and what `taken` answers.
"""

import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

import tzlocal

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:  # the extra is not installed
    raise ImportError("metrics need prometheus-client: pip install 'duly[metrics]'") from error

from duly import __version__
from duly.clock import HostClock
from duly.core.schedule import Schedules
from duly.errors import SchedulerError
from duly.events import Event
from duly.instant import NEVER_US, SECOND_US, instant_of
from duly.observe.names import MOST_NAMES, OTHER, Names

_DURATIONS_S = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400)
_LAGS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300)
_WRITES_S = (0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_PUNCTUAL = frozenset({"cron", "retry", "schedule", "startup", "interval"})
"""Starts that had a moment to come at; what is caught up with or asked for has none."""

Dues = Callable[[], Mapping[str, datetime]]
"""The next due of each timer."""


class Metrics(Collector):
    """What a scheduler or a daemon did, to be scraped.

    *registry* is where the metrics are registered, by default one of their own. *timezone* is that of the
    scheduler, *now* its clock, and *timer_dues* tells when timers come next; a daemon has them.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        most_names: int = MOST_NAMES,
        timezone: tzinfo | None = None,
        now: Callable[[], datetime] | None = None,
        timer_dues: Dues | None = None,
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._names = Names(most_names)
        self._measured = Names(-(-most_names // 10))
        self._now = HostClock().now if now is None else now
        self._taken: list[Metric] | None = None
        self._asking = threading.Lock()
        self._timer_dues = timer_dues
        self._schedules = Schedules(timezone or tzlocal.get_localzone())
        self._crons: dict[str, str] = {}
        """The cron texts of tasks, by name."""
        self._successes: dict[tuple[str, str], float] = {}
        self._running: dict[tuple[str, str], dict[object, str]] = {}
        """What runs of tasks and services are in flight, and why."""
        self._is_store_faulty = False
        self._started_s = self._now().timestamp()
        self._runs = self._counter(
            "duly_runs", "Runs that ended.", ["kind", "name", "timer", "reason", "result"]
        )
        self._misses = self._counter("duly_misses", "Dues that no run answered.", ["timer", "reason"])
        self._violations = self._counter("duly_violations", "Broken properties.", ["property"])
        self._faults = self._counter("duly_store_faults", "Times the store began to fail.", [])
        self._durations = self._histogram(
            "duly_run_duration_seconds", "How long runs took.", ["kind", "name"], _DURATIONS_S
        )
        self._lags = self._histogram(
            "duly_start_lag_seconds", "From the due to the start of a run.", ["kind", "name"], _LAGS_S
        )
        self._writes = self._histogram(
            "duly_store_write_seconds", "How long writes to the store took.", [], _WRITES_S
        )
        self._heard: Mapping[str, Callable[[Event, Mapping[str, Any]], None]] = {
            "TaskAdded": self._task_known,
            "TaskScheduled": self._task_known,
            "TaskOverridden": self._task_changed,
            "TaskOrphaned": self._task_gone,
            "TaskRunStarted": self._task_began,
            "TaskRunCompleted": self._task_ended,
            "TaskRunFailed": self._task_ended,
            "ServiceRunStarted": self._run_began,
            "ServiceRunEnded": self._run_ended,
            "TimerFired": self._fired,
            "TimerMissed": self._missed,
            "TimerRemoved": self._timer_gone,
            "ConfigurationReloaded": self._reloaded,
            "StoreFault": self._failed,
            "StoreRecovered": self._recovered,
            "PropertyViolated": self._violated,
        }
        self.registry.register(self)

    def _counter(self, name: str, told: str, labels: list[str]) -> Counter:
        return Counter(name, told, labels, registry=self.registry)

    def _histogram(self, name: str, told: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, told, labels, registry=self.registry, buckets=buckets)

    # --- what is heard ---

    def listener(self, event: Event) -> None:
        """Take one event. Give this to a scheduler or a daemon."""
        heard = self._heard.get(event.name)
        if heard is not None:
            heard(event, event.fields)

    def store_wrote(self, seconds: float, *, is_written: bool) -> None:
        """Hear how long a write took (`SQLiteStore.on_write`)."""
        self._writes.observe(seconds)
        if is_written:
            self._is_store_faulty = False

    def succeeded(self, kind: str, name: str, at: datetime) -> None:
        """Learn of a success from before this process: *kind* is "task" or "service"."""
        if self._names.label(kind, name) == name:
            self._successes[kind, name] = max(at.timestamp(), self._successes.get((kind, name), 0))

    def _task_known(self, _event: Event, fields: Mapping[str, Any]) -> None:
        self._crons[fields["taskName"]] = fields["cronExpression"]

    def _task_changed(self, _event: Event, fields: Mapping[str, Any]) -> None:
        self._crons[fields["taskName"]] = fields["newState"]["cronExpression"]

    def _task_began(self, event: Event, fields: Mapping[str, Any]) -> None:
        name = fields["taskName"]
        self._running.setdefault(("task", name), {})[name] = fields["cause"]
        self._note_lag("task", name, fields["cause"], fields["scheduledTime"], event.time)

    def _task_ended(self, event: Event, fields: Mapping[str, Any]) -> None:
        name = fields["taskName"]
        reason = self._running.pop(("task", name), {}).get(name, "")
        result = "success" if fields["success"] else "failure"
        self._note_end("task", name, event, reason=reason, result=result)

    def _task_gone(self, _event: Event, fields: Mapping[str, Any]) -> None:
        self._crons.pop(fields["taskName"], None)
        self._forget("task", fields["taskName"])

    def _run_began(self, _event: Event, fields: Mapping[str, Any]) -> None:
        runs = self._running.setdefault(("service", fields["service"]), {})
        runs[fields["runId"]] = fields["reason"]

    def _run_ended(self, event: Event, fields: Mapping[str, Any]) -> None:
        name = fields["service"]
        runs = self._running.get(("service", name), {})
        runs.pop(fields["runId"], None)
        if not runs:
            self._running.pop(("service", name), None)
        timer = fields.get("timer") or ""
        self._note_end("service", name, event, reason=fields["reason"], result=fields["result"], timer=timer)

    def _fired(self, event: Event, fields: Mapping[str, Any]) -> None:
        if fields["scheduledTime"] is not None:
            self._note_lag("timer", fields["timer"], fields["reason"], fields["scheduledTime"], event.time)

    def _missed(self, _event: Event, fields: Mapping[str, Any]) -> None:
        self._misses.labels(self._names.label("timer", fields["timer"]), fields["reason"]).inc()

    def _timer_gone(self, _event: Event, fields: Mapping[str, Any]) -> None:
        self._forget("timer", fields["timer"])

    def _reloaded(self, _event: Event, fields: Mapping[str, Any]) -> None:
        for said in fields["removed"]:
            kind, _, name = said.partition(" ")
            self._forget(kind, name)

    def _failed(self, _event: Event, _fields: Mapping[str, Any]) -> None:
        self._is_store_faulty = True
        self._faults.inc()

    def _recovered(self, _event: Event, _fields: Mapping[str, Any]) -> None:
        self._is_store_faulty = False

    def _violated(self, _event: Event, fields: Mapping[str, Any]) -> None:
        self._violations.labels(self._names.label("property", fields["property"])).inc()

    # --- what is counted ---

    def _note_lag(self, kind: str, name: str, reason: str, due: str, at: datetime) -> None:
        if reason in _PUNCTUAL and (kind, reason) != ("task", "startup"):
            lag_s = (at - datetime.fromisoformat(due)).total_seconds()
            self._lags.labels(kind, self._measured.label(kind, name)).observe(max(lag_s, 0))

    def _note_end(
        self, kind: str, name: str, event: Event, *, reason: str, result: str, timer: str = ""
    ) -> None:
        label = self._names.label(kind, name)
        timer = self._names.label("timer", timer) if timer else ""
        self._runs.labels(kind, label, timer, reason, result).inc()
        measured = self._durations.labels(kind, self._measured.label(kind, name))
        measured.observe(event.fields["duration"] / 1000)
        if result == "success":
            self.succeeded(kind, name, event.time)

    def _forget(self, kind: str, name: str) -> None:
        """Let go of what was removed: a name that is gone must not keep another from being told apart."""
        self._successes.pop((kind, name), None)
        if self._measured.forget(kind, name):
            for metric in (self._durations, self._lags):
                metric.remove_by_labels({"kind": kind, "name": name})
        if not self._names.forget(kind, name):
            return
        self._runs.remove_by_labels({"kind": kind, "name": name})
        if kind == "timer":
            self._runs.remove_by_labels({"timer": name})
            self._misses.remove_by_labels({"timer": name})

    # --- what is told ---

    def exposition(self, now: float | None = None, accept: str = "") -> bytes:
        """All metrics as text, in the format that *accept* (an HTTP header) asks for.

        *now* is in seconds since the epoch; by default the clock is asked.
        """
        return self.taken(now, accept)()

    def taken(self, now: float | None = None, accept: str = "") -> Callable[[], bytes]:
        """What makes the text of `exposition`, from all that is known now.

        Calling it takes a while if there are many names, and may be done in a thread.
        """
        encode, _ = choose_encoder(accept)
        worked_out = list(self._worked_out(self._now() if now is None else datetime.fromtimestamp(now, UTC)))

        def encoded() -> bytes:
            with self._asking:
                self._taken = worked_out
                try:
                    return encode(self.registry)
                finally:
                    self._taken = None

        return encoded

    @staticmethod
    def content_type(accept: str = "") -> str:
        """The type of what `exposition` answers."""
        return choose_encoder(accept)[1]

    def describe(self) -> list[Metric]:
        """Nothing: the names are known without asking for the values."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What is worked out when asked for (`prometheus_client`)."""
        yield from self._worked_out(self._now()) if self._taken is None else self._taken

    def _worked_out(self, now: datetime) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "duly_build",
            "The version of duly.",
            value={"version": __version__, "python": platform.python_version()},
        )
        yield GaugeMetricFamily("duly_start_time_seconds", "When watching began.", value=self._started_s)
        yield GaugeMetricFamily(
            "duly_store_faulty", "1 while the store cannot be written.", value=int(self._is_store_faulty)
        )
        yield self._running_now()
        yield self._since_success(now.timestamp())
        yield self._until_due(now)

    def _running_now(self) -> Metric:
        told = GaugeMetricFamily("duly_running", "Runs in flight.", labels=["kind", "name"])
        counts = {(kind, OTHER): 0 for kind in ("task", "service")}
        for (kind, name), runs in list(self._running.items()):
            label = self._names.label(kind, name)
            counts[kind, label] = counts.get((kind, label), 0) + len(runs)
        for (kind, name), count in counts.items():
            if count or name != OTHER:
                told.add_metric([kind, name], count)
        return told

    def _since_success(self, now_s: float) -> Metric:
        told = GaugeMetricFamily(
            "duly_seconds_since_last_success",
            "Since a run last ended well; absent while none is known to have.",
            labels=["kind", "name"],
        )
        for (kind, name), at_s in list(self._successes.items()):
            told.add_metric([kind, name], max(now_s - at_s, 0))
        return told

    def _until_due(self, now: datetime) -> Metric:
        told = GaugeMetricFamily(
            "duly_seconds_until_next_due",
            "Until the next due; below 0 when it has come and nothing has answered it.",
            labels=["kind", "name"],
        )
        for name, due_s in self._task_dues(now):
            told.add_metric(["task", name], due_s)
        dues = {} if self._timer_dues is None else self._timer_dues()
        for name, due in dues.items():
            if self._names.label("timer", name) == name:
                told.add_metric(["timer", name], (due - now).total_seconds())
        return told

    def _task_dues(self, now: datetime) -> Iterator[tuple[str, float]]:
        now_us = instant_of(now)
        for name, cron in list(self._crons.items()):
            if self._names.label("task", name) != name:
                continue
            try:
                due_us = self._schedules.of(cron).due_after(now_us)
            except SchedulerError:  # a text of another version's grammar
                continue
            if due_us < NEVER_US:
                yield name, (due_us - now_us) / SECOND_US
