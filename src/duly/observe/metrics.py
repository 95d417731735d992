"""Metrics for Prometheus (`pip install 'duly[metrics]'`).

A listener counts events. How each task, timer and service is (its last success, its next due) is
read when somebody asks (`readings`), and shown as instants: Prometheus knows how long ago they were. At most
`most_names` tasks, services and timers are told apart, each kind by itself, and in histograms, which are
fourteen series each, a tenth as many; the rest is called `other`. What is removed from the configuration is
forgotten here as well.

All of it belongs to the thread of the loop, but for `store_wrote` and what `taken` answers.
"""

import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

import tzlocal

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:  # the extra is not installed
    raise ImportError("metrics need prometheus-client: pip install 'duly[metrics]'") from error

from duly import __version__
from duly.clock import HostClock
from duly.core.causes import PUNCTUAL, PUNCTUAL_REASONS, Cause
from duly.core.task import Task
from duly.core.timetable import Timetables
from duly.errors import SchedulerError
from duly.events import Event
from duly.instant import NEVER_US, SECOND_US, datetime_at, instant_of
from duly.observe.readings import Reading, Readings, of_tasks

if TYPE_CHECKING:
    from duly.cluster.node import Health

OTHER = "other"
"""What names beyond the limit are called together."""
_MOST_NAMES = 1_000
_DURATIONS_S = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400)
_LAGS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300)
_WRITES_S = (0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_PUNCTUAL: Mapping[str, frozenset[str]] = {"task": PUNCTUAL, "timer": PUNCTUAL_REASONS}
"""Starts whose lag says something."""

KnownTasks = Callable[[], Sequence[Task]]

_LABELS = ["kind", "name"]
_OF_READINGS: Sequence[tuple[str, str, int, Callable[[Reading], float | None]]] = (
    (
        "duly_next_due_timestamp_seconds",
        "The first due that nothing has answered: in the past if it is owed.",
        0,
        lambda each: None if each.due_us is None else each.due_us / SECOND_US,
    ),
    (
        "duly_expected_interval_seconds",
        "The longest time between two runs, by the schedule; absent of what runs once.",
        0,
        lambda each: None if each.interval_us is None else each.interval_us / SECOND_US,
    ),
    ("duly_last_result", "1 if the last run ended well, 0 if it failed.", 0, lambda each: each.is_ok),
    ("duly_service_up", "Whether a service that is to stay up runs.", 1, lambda each: each.is_up),
    ("duly_timer_enabled", "Whether a timer fires.", 1, lambda each: each.is_enabled),
)
"""What is read of each entry: name, help, the first of its labels, and the value; None for none."""


class Names:
    """The names that have time series of their own, of each kind so many.

    Each name is a handful of time series that somebody pays for, and names may be made up at run time. The
    first so many are told apart; all others are `OTHER` together, until some of the first are gone for good.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, set[str]] = {}

    def label(self, kind: str, name: str) -> str:
        """What to call it: its name, or `OTHER`."""
        known = self._known.setdefault(kind, set())
        if name in known:
            return name
        if len(known) >= self._most:
            return OTHER
        known.add(name)
        return name

    def forget(self, kind: str, name: str) -> bool:
        """Make room for another name; whether this one had a place of its own."""
        known = self._known.get(kind, set())
        is_known = name in known
        known.discard(name)
        return is_known


Labelled = TypeVar("Labelled", Counter, Histogram)


class Metrics(Collector):
    """What a scheduler or a daemon did, to be scraped.

    *registry* is where the metrics are registered, by default one of their own, with those of the process.
    *timezone* is that of the scheduler, and *now* its clock. *node* says how the node of a cluster is
    (`PostgresStore.health`), and *readings* how all is that a daemon has.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        most_names: int = _MOST_NAMES,
        timezone: tzinfo | None = None,
        now: Callable[[], datetime] | None = None,
        node: "Callable[[], Health | None]" = lambda: None,
        readings: Callable[[], Readings] | None = None,
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        if registry is None:  # the registry of a program has them already, or the program wants none
            ProcessCollector(registry=self.registry)
        self._names = Names(most_names)
        self._measured = Names(-(-most_names // 10))
        self._now = HostClock().now if now is None else now
        self._taken: list[Metric] | None = None
        self._dues_lock = threading.Lock()
        self._node = node
        self._readings = readings
        self._tasks: KnownTasks = tuple
        self._schedules = Timetables(timezone or tzlocal.get_localzone())
        self._crons: dict[str, str] = {}
        """The cron texts of tasks, by name."""
        self._successes: dict[tuple[str, str], float] = {}
        self._children: dict[tuple[Counter | Histogram, tuple[str, ...]], Any] = {}
        self._is_reload_refused = False
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
        self._claims = self._counter("duly_claims", "Starts that a node has claimed.", [])
        self._resumed = self._counter("duly_restarted_runs", "Starts of runs that were cut off.", [])
        self._restarts = self._counter(
            "duly_restarts", "Times a service that is to stay up was started again.", ["name"]
        )
        self._fences = self._counter("duly_fenced_nodes", "Silent nodes that this node has fenced.", [])
        self._returns = self._counter("duly_node_returns", "Times this node came back under a new id.", [])
        self._cuts = self._counter("duly_cut_off_runs", "Runs cancelled because trust was lost.", [])
        self._durations = self._histogram(
            "duly_run_duration_seconds", "How long runs took.", ["kind", "name"], _DURATIONS_S
        )
        self._lags = self._histogram(
            "duly_start_lag_seconds", "From the due to the start of a run.", ["kind", "name"], _LAGS_S
        )
        self._writes = self._histogram(
            "duly_store_write_seconds", "How long writes to the store took.", [], _WRITES_S
        )
        self.registry.register(self)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

    # --- events ---

    @property
    def listener(self) -> "Metrics":
        """What to give to a scheduler or a daemon."""
        return self

    def watch_tasks(self, known: KnownTasks) -> None:
        """Learn where to read how tasks are. A scheduler calls this with its own."""
        self._tasks = known

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._on_task_event(event, event.fields)
        self._on_daemon_event(event, event.fields)
        self._on_store_event(event.name, event.fields)

    def store_wrote(self, seconds: float, *, is_written: bool) -> None:
        """Note how long a write took (`SQLiteStore.on_write`)."""
        self._writes.observe(seconds)
        if is_written:
            self._is_store_faulty = False

    def succeeded(self, kind: str, name: str, at: datetime) -> None:
        """Learn of a success from before this process: *kind* is "task" or "service"."""
        if self._names.label(kind, name) == name:
            self._successes[kind, name] = max(at.timestamp(), self._successes.get((kind, name), 0))

    def _on_task_event(self, event: Event, fields: Mapping[str, Any]) -> None:
        match event.name:
            case "TaskAdded" | "TaskScheduled":
                self._crons[fields["taskName"]] = fields["cronExpression"]
            case "TaskOverridden":
                self._crons[fields["taskName"]] = fields["newState"]["cronExpression"]
            case "TaskOrphaned":
                self._crons.pop(fields["taskName"], None)
                self._forget("task", fields["taskName"])
            case "TaskRunStarted":
                name, cause = fields["taskName"], fields["cause"]
                self._running.setdefault(("task", name), {})[name] = cause
                if "token" in fields:
                    self._claims.inc()
                if cause == Cause.INTERRUPTED:
                    self._resumed.inc()
                self._count_lag("task", name, cause, fields["scheduledTime"], event.time)
            case "TaskRunCompleted" | "TaskRunFailed":
                name = fields["taskName"]
                reason = self._running.pop(("task", name), {}).get(name, "")
                result = "success" if fields["success"] else "failure"
                self._count_end("task", name, event, reason=reason, result=result)

    def _on_daemon_event(self, event: Event, fields: Mapping[str, Any]) -> None:
        match event.name:
            case "ServiceRunStarted":
                runs = self._running.setdefault(("service", fields["service"]), {})
                runs[fields["runId"]] = fields["reason"]
            case "ServiceRunEnded":
                name, reason, result = fields["service"], fields["reason"], fields["result"]
                runs = self._running.get(("service", name), {})
                runs.pop(fields["runId"], None)
                if not runs:
                    self._running.pop(("service", name), None)
                timer = fields.get("timer") or ""
                self._count_end("service", name, event, reason=reason, result=result, timer=timer)
            case "TimerFired" if fields["scheduledTime"] is not None:
                due = fields["scheduledTime"]
                self._count_lag("timer", fields["timer"], fields["reason"], due, event.time)
            case "TimerMissed":
                self._misses.labels(self._names.label("timer", fields["timer"]), fields["reason"]).inc()
            case "TimerRemoved":
                self._forget("timer", fields["timer"])
            case "ServiceRestarting":
                self._restarts.labels(self._names.label("service", fields["service"])).inc()
            case "ConfigurationRefused":
                self._is_reload_refused = True
            case "ConfigurationReloaded":
                self._is_reload_refused = False
                for said in fields["removed"]:
                    kind, _, name = said.partition(" ")
                    self._forget(kind, name)

    def _on_store_event(self, name: str, fields: Mapping[str, Any]) -> None:
        match name:
            case "StoreFault":
                self._is_store_faulty = True
                self._faults.inc()
            case "StoreRecovered":
                self._is_store_faulty = False
            case "PropertyViolated":
                self._violations.labels(self._names.label("property", fields["property"])).inc()
            case "NodeFenced":
                self._fences.inc()
            case "NodeReturned":
                self._returns.inc()
            case "TrustLost":
                self._cuts.inc(len(fields["runs"]))

    # --- what is counted ---

    def _child(self, metric: Labelled, *labels: str) -> Labelled:
        """The metric of these labels. To look it up each time costs as much as all else of an event."""
        key = (metric, labels)
        if (child := self._children.get(key)) is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def _count_lag(self, kind: str, name: str, reason: str, due: str, at: datetime) -> None:
        if reason in _PUNCTUAL[kind]:
            lag_s = (at - datetime.fromisoformat(due)).total_seconds()
            self._child(self._lags, kind, self._measured.label(kind, name)).observe(max(lag_s, 0))

    def _count_end(
        self, kind: str, name: str, event: Event, *, reason: str, result: str, timer: str = ""
    ) -> None:
        label = self._names.label(kind, name)
        timer = self._names.label("timer", timer) if timer else ""
        self._child(self._runs, kind, label, timer, reason, result).inc()
        measured = self._child(self._durations, kind, self._measured.label(kind, name))
        measured.observe(event.fields["duration"] / 1000)
        if result == "success":
            self.succeeded(kind, name, event.time)

    def _forget(self, kind: str, name: str) -> None:
        """Forget what was removed: a name that is gone must not take the place of another."""
        self._children.clear()
        self._successes.pop((kind, name), None)
        if self._measured.forget(kind, name):
            for metric in (self._durations, self._lags):
                metric.remove_by_labels({"kind": kind, "name": name})
        if not self._names.forget(kind, name):
            return
        self._runs.remove_by_labels({"kind": kind, "name": name})
        if kind == "service":
            self._restarts.remove_by_labels({"name": name})
        if kind == "timer":
            self._runs.remove_by_labels({"timer": name})
            self._misses.remove_by_labels({"timer": name})

    # --- scraping ---

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
        # In the thread of the loop, to which all of it belongs. Only the encoding may be done in another.
        worked_out = list(self._worked_out(self._now() if now is None else datetime.fromtimestamp(now, UTC)))

        def encoded() -> bytes:
            # One text at a time: the registry calls `collect`, which takes what this text was given.
            with self._dues_lock:
                self._taken = worked_out
                try:
                    return encode(self.registry)
                finally:
                    self._taken = None

        return encoded

    @staticmethod
    def content_type(accept: str = "") -> str:
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
        yield from self._node_now()
        yield self._running_now()
        readings = None if self._readings is None else self._readings()
        if readings is not None:
            yield from self._daemon_now(readings)
        known = (task for task in self._tasks() if self._is_named("task", task.name))
        entries = [*of_tasks(known), *(() if readings is None else readings.entries)]
        yield from self._entries_now([each for each in entries if self._is_named(each.kind, each.name)], now)

    def _is_named(self, kind: str, name: str) -> bool:
        return self._names.label(kind, name) == name

    def _node_now(self) -> Iterator[Metric]:
        if (health := self._node()) is not None:
            yield GaugeMetricFamily("duly_nodes", "Living nodes that this node sees.", value=health.nodes)
            age_s, lag_s = health.heartbeat_age_s, health.lag_s
            yield GaugeMetricFamily(
                "duly_heartbeat_age_seconds", "Since the last heartbeat that was answered.", value=age_s
            )
            yield GaugeMetricFamily("duly_claim_lag_seconds", "How late the latest claim was.", value=lag_s)
            yield GaugeMetricFamily(
                "duly_oldest_xmin_age",
                "Transactions since the oldest snapshot that is held in the database.",
                value=health.oldest_xmin_age,
            )

    def _daemon_now(self, daemon: Readings) -> Iterator[Metric]:
        yield GaugeMetricFamily("duly_problems", "What is wrong; 0 while all is well.", value=daemon.problems)
        yield GaugeMetricFamily("duly_invalid_entries", "Entries that cannot be used.", value=daemon.invalid)
        yield GaugeMetricFamily(
            "duly_reload_failed",
            "1 while the configuration in the file is another than the one at work, because it was refused.",
            value=int(self._is_reload_refused),
        )
        family = GaugeMetricFamily(
            "duly_health",
            "1 for each state of a service or timer that is not simply well.",
            labels=["kind", "name", "state"],
        )
        for kind, name, state in daemon.states:
            if self._is_named(kind, name):
                family.add_metric([kind, name, state], 1)
        yield family

    def _entries_now(self, entries: Sequence[Reading], now: datetime) -> Iterator[Metric]:
        for each in entries:
            if each.success_us is not None:
                self.succeeded(each.kind, each.name, datetime_at(each.success_us, UTC))
        successes = {key: at_s for key, at_s in list(self._successes.items()) if self._is_named(*key)}
        dues = {
            (each.kind, each.name): each.due_us / SECOND_US for each in entries if each.due_us is not None
        }
        yield _family(
            "duly_last_success_timestamp_seconds", "When a run last ended well.", _LABELS, successes.items()
        )
        for name, text, first_label, value_of in _OF_READINGS:
            known = (((each.kind, each.name)[first_label:], value_of(each)) for each in entries)
            values = ((key, value) for key, value in known if value is not None)
            yield _family(name, text, _LABELS[first_label:], values)
        # The old names of the first two, for one release: a rule had to know each schedule to use them.
        now_s = now.timestamp()
        yield _family(
            "duly_seconds_since_last_success",
            "Deprecated: use duly_last_success_timestamp_seconds.",
            _LABELS,
            ((key, max(now_s - at_s, 0)) for key, at_s in successes.items()),
        )
        yield _family(
            "duly_seconds_until_next_due",
            "Deprecated: use duly_next_due_timestamp_seconds.",
            _LABELS,
            ((key, at_s - now_s) for key, at_s in (dict(self._planned(now)) | dues).items()),
        )

    def _running_now(self) -> Metric:
        family = GaugeMetricFamily("duly_running", "Runs in flight.", labels=["kind", "name"])
        counts = {(kind, OTHER): 0 for kind in ("task", "service")}
        # A copy: `prometheus_client` may collect in a thread of its own.
        for (kind, name), runs in list(self._running.items()):
            label = self._names.label(kind, name)
            counts[kind, label] = counts.get((kind, label), 0) + len(runs)
        for (kind, name), count in counts.items():
            if count or name != OTHER:
                family.add_metric([kind, name], count)
        return family

    def _planned(self, now: datetime) -> Iterator[tuple[tuple[str, str], float]]:
        """The dues ahead by cron text alone, for tasks that nobody can read here, such as a cluster's."""
        now_us = instant_of(now)
        for name, cron in list(self._crons.items()):
            if not self._is_named("task", name):
                continue
            try:
                timetable = self._schedules.of(cron)
            except SchedulerError:  # a text of another version's grammar
                continue
            if not timetable.is_by_minute:  # it counts from an instant that no event has named
                continue
            due_us = timetable.due_after(now_us)
            if due_us < NEVER_US:
                yield ("task", name), due_us / SECOND_US


def _family(
    name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family
