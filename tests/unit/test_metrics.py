"""Metrics: what is counted, what is worked out when asked, how many names there are, and both formats."""

import asyncio
import json
import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from duly import App, Event, Schedule, Scheduler, crontab, every, once
from duly.cluster.node import Health
from duly.errors import StoreError
from duly.events import LEVELS
from duly.instant import SECOND_US, instant_of
from duly.observe import Metrics
from duly.observe.readings import Reading, Readings
from duly.store import SQLiteStore
from duly.testing import VirtualClock
from tests.worlds.scheduler import MINUTE, at

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = START - timedelta(minutes=1)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
FINE = {"duration": 1500, "success": True}


class Watched:
    """Metrics at a clock that is set by hand."""

    def __init__(self, **options: Any) -> None:
        self.now = START
        self.metrics = Metrics(now=lambda: self.now, timezone=UTC, **options)

    def emit(self, name: str, /, **fields: Any) -> None:
        """Let an event happen now."""
        self.metrics.listener(Event(name, LEVELS[name], self.now, fields))

    def run(self, service: str = "backup", result: str = "success", **fields: Any) -> None:
        """Let a run begin and end now."""
        seen = {"service": service, "runId": 1, "reason": "schedule"} | fields
        self.emit("ServiceRunStarted", **seen, pid=7)
        self.emit("ServiceRunEnded", **seen, result=result, exitCode=0, signal=None, duration=2000)

    def samples(self) -> dict[str, float]:
        """Every sample by its name and labels, as it stands in the text."""
        return samples_in(self.metrics.exposition())


def samples_in(text: bytes) -> dict[str, float]:
    found = {}
    for family in read_text(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_runs_of_tasks() -> None:
    """A task's runs are counted by cause and result, with their durations and lags."""
    watched = Watched()
    due = (START - timedelta(milliseconds=20)).isoformat()
    watched.emit("TaskRunStarted", taskName="a", scheduledTime=due, actualTime=due, cause="cron")
    assert watched.samples()["duly_running{kind=task,name=a}"] == 1
    watched.emit("TaskRunCompleted", taskName="a", **FINE)
    watched.emit("TaskRunStarted", taskName="a", scheduledTime=due, actualTime=due, cause="interrupted")
    watched.emit("TaskRunFailed", taskName="a", duration=10, success=False, error="no")
    seen = watched.samples()
    assert seen["duly_runs_total{kind=task,name=a,reason=cron,result=success,timer=}"] == 1
    assert seen["duly_runs_total{kind=task,name=a,reason=interrupted,result=failure,timer=}"] == 1
    assert seen["duly_run_duration_seconds_count{kind=task,name=a}"] == 2
    assert seen["duly_run_duration_seconds_sum{kind=task,name=a}"] == pytest.approx(1.51)
    assert seen["duly_run_duration_seconds_bucket{kind=task,le=0.01,name=a}"] == 1
    assert seen["duly_start_lag_seconds_count{kind=task,name=a}"] == 1, "what was cut off had no due"
    assert seen["duly_start_lag_seconds_sum{kind=task,name=a}"] == pytest.approx(0.02)
    assert "duly_running{kind=task,name=a}" not in seen


def test_runs_of_services() -> None:
    """A service's runs are counted by reason, result and timer; two in flight are two."""
    watched = Watched()
    watched.run(timer="nightly")
    watched.run(result="exit", reason="manual")
    for run_id in (5, 6):
        watched.emit("ServiceRunStarted", service="web", runId=run_id, reason="boot", pid=1)
    seen = watched.samples()
    assert seen["duly_runs_total{kind=service,name=backup,reason=schedule,result=success,timer=nightly}"] == 1
    assert seen["duly_runs_total{kind=service,name=backup,reason=manual,result=exit,timer=}"] == 1
    assert seen["duly_running{kind=service,name=web}"] == 2
    assert seen["duly_run_duration_seconds_sum{kind=service,name=backup}"] == 4


@pytest.mark.parametrize(
    ("reason", "counted"), [("schedule", 1), ("interval", 1), ("catch-up", 0), ("trigger", 0)]
)
def test_lag_of_timers(reason: str, counted: int) -> None:
    """What was due at a moment has a lag; what is made up for or asked for has none."""
    watched = Watched()
    due = (START - timedelta(seconds=3)).isoformat()
    watched.emit("TimerFired", timer="t", target="a", reason=reason, scheduledTime=due, runId=1)
    watched.emit("TimerFired", timer="t", target="a", reason=reason, scheduledTime=None, runId=1)
    assert watched.samples().get("duly_start_lag_seconds_count{kind=timer,name=t}", 0) == counted


def test_time_passes_without_events() -> None:
    """Seconds since the last success are worked out when asked for; a failure does not reset them."""
    watched = Watched()
    watched.run()
    watched.now += timedelta(minutes=5)
    watched.run(result="signal")
    name = "duly_seconds_since_last_success{kind=service,name=backup}"
    assert watched.samples()[name] == 300
    later = (START + timedelta(hours=1)).timestamp()
    assert samples_in(watched.metrics.exposition(later))[name] == 3600


def test_successes_from_before() -> None:
    """A success of an earlier process counts, until there is a newer one."""
    watched = Watched()
    name = "duly_seconds_since_last_success{kind=service,name=backup}"
    assert name not in watched.samples()
    watched.metrics.succeeded("service", "backup", START - timedelta(hours=2))
    assert watched.samples()[name] == 7200
    watched.run()
    watched.metrics.succeeded("service", "backup", START - timedelta(hours=1))
    assert watched.samples()[name] == 0


def test_next_dues_of_tasks() -> None:
    """The next due of a task comes from its cron text, the changed one once it was changed."""
    watched = Watched()
    watched.emit("TaskAdded", taskName="a", cronExpression="30 * * * *", retryDelayMs=0)
    watched.emit("TaskScheduled", taskName="b", cronExpression="0 0 1 1 *", retryDelayMs=0)
    name = "duly_seconds_until_next_due{kind=task,name=a}"
    seen = watched.samples()
    assert seen[name] == 1800
    assert seen["duly_seconds_until_next_due{kind=task,name=b}"] == 364.5 * 86_400
    new = {"cronExpression": "15 * * * *", "retryDelayMs": 0}
    watched.emit("TaskOverridden", taskName="a", changeType="cron", oldState=new, newState=new)
    assert watched.samples()[name] == 900
    watched.emit("TaskOrphaned", taskName="a", lastExecutionTime=None, schedulerIdentifier="x")
    assert name not in watched.samples()


def reading(kind: str, name: str, **known: Any) -> Reading:
    """A reading, with its instants as datetimes."""
    seen: dict[str, Any] = {
        key: instant_of(value) if isinstance(value, datetime) else value for key, value in known.items()
    }
    return Reading(kind=kind, name=name, **seen)


def daemon(*entries: Reading, states: Sequence[tuple[str, str, str]] = (), **counts: int) -> dict[str, Any]:
    """The option that has a daemon tell these readings."""
    seen = Readings(entries, states, counts.get("problems", 0), counts.get("invalid", 0))
    return {"readings": lambda: seen}


def test_next_dues_of_timers() -> None:
    """The next due of a timer is read; one that nothing has answered stays in the past."""
    seen = Watched(
        **daemon(reading("timer", "t", due_us=START + MINUTE), reading("timer", "late", due_us=BEFORE))
    ).samples()
    assert seen["duly_next_due_timestamp_seconds{kind=timer,name=t}"] == (START + MINUTE).timestamp()
    assert seen["duly_next_due_timestamp_seconds{kind=timer,name=late}"] == (BEFORE).timestamp()
    assert seen["duly_seconds_until_next_due{kind=timer,name=late}"] == -60, "the old name"


def test_readings_of_a_daemon() -> None:
    """Intervals, last results, what is up and enabled, and what is refused: each has its series."""
    watched = Watched(
        **daemon(
            reading("service", "backup", interval_us=3600 * SECOND_US, is_ok=False, success_us=BEFORE),
            reading("service", "web", is_up=True),
            reading("service", "down", is_up=False),
            reading("timer", "t", is_enabled=False),
            invalid=3,
        )
    )
    seen = watched.samples()
    assert seen["duly_expected_interval_seconds{kind=service,name=backup}"] == 3600
    assert seen["duly_last_result{kind=service,name=backup}"] == 0
    success = "duly_last_success_timestamp_seconds{kind=service,name=backup}"
    assert seen[success] == BEFORE.timestamp()
    assert [seen[f"duly_service_up{{name={name}}}"] for name in ("web", "down")] == [1, 0]
    assert seen["duly_timer_enabled{name=t}"] == 0
    assert (seen["duly_invalid_entries{}"], seen["duly_reload_failed{}"]) == (3, 0)
    assert not [key for key in seen if "interval" in key and "web" in key]
    watched.run("backup")
    assert watched.samples()[success] == START.timestamp(), "an event is newer than what is read"
    watched.emit("ConfigurationRefused", error="no")
    assert watched.samples()["duly_reload_failed{}"] == 1
    watched.emit("ConfigurationReloaded", added=[], changed=[], removed=[])
    assert watched.samples()["duly_reload_failed{}"] == 0


def test_restarts() -> None:
    """Each time that a service comes back is counted, until the service is removed."""
    watched = Watched()
    for _ in range(3):
        watched.emit("ServiceRestarting", service="web", runId=1, result="exit")
    assert watched.samples()["duly_restarts_total{name=web}"] == 3
    watched.emit("ConfigurationReloaded", added=[], changed=[], removed=["service web"])
    assert "duly_restarts_total{name=web}" not in watched.samples()


def test_the_process() -> None:
    """CPU and memory of the process are told, but not a second time in a registry of the program."""
    assert watched_cpu(Metrics()) > 0
    assert b"process_cpu" not in Metrics(registry=CollectorRegistry()).exposition()


def watched_cpu(metrics: Metrics) -> float:
    return samples_in(metrics.exposition())["process_cpu_seconds_total{}"]


def test_misses_faults_and_violations() -> None:
    """Misses by reason, faults of the store while they last, and violations by property."""
    watched = Watched()
    watched.emit("TimerMissed", timer="t", target="a", reason="overlap", slot="x")
    watched.emit("StoreFault", error="full")
    watched.emit("PropertyViolated", property="S1c", taskName="a", at="x", reason="y")
    seen = watched.samples()
    assert seen["duly_misses_total{reason=overlap,timer=t}"] == 1
    assert seen["duly_violations_total{property=S1c}"] == 1
    assert (seen["duly_store_faults_total{}"], seen["duly_store_faulty{}"]) == (1, 1)
    watched.emit("StoreRecovered", error="full")
    seen = watched.samples()
    assert (seen["duly_store_faults_total{}"], seen["duly_store_faulty{}"]) == (1, 0)


def test_a_write_ends_a_fault() -> None:
    """A fault that nobody reports the end of is over when something could be written."""
    watched = Watched()
    watched.emit("StoreFault", error="full")
    watched.metrics.store_wrote(0.002, is_written=False)
    assert watched.samples()["duly_store_faulty{}"] == 1
    watched.metrics.store_wrote(0.002, is_written=True)
    seen = watched.samples()
    assert seen["duly_store_faulty{}"] == 0
    assert seen["duly_store_write_seconds_count{}"] == 2
    assert seen["duly_store_write_seconds_bucket{le=0.0025}"] == 2


def test_nodes_of_a_cluster() -> None:
    """Claims, restarts, fences, returns and cut-off runs are counted from events; the rest is asked for."""
    watched = Watched(node=lambda: Health(nodes=3, heartbeat_age_s=0.5, lag_s=0.25, oldest_xmin_age=70))
    start = {"taskName": "a", "scheduledTime": START.isoformat(), "token": 5, "runId": "x"}
    for cause in ("cron", "interrupted"):
        watched.emit("TaskRunStarted", **start, cause=cause)
    watched.emit("NodeFenced", node=7, name="n", runs=["a"])
    watched.emit("NodeReturned", node=8, before=7, kept=[], released=[])
    watched.emit("TrustLost", runs=["a", "b"])
    seen = {name.removesuffix("{}"): value for name, value in watched.samples().items()}
    assert (seen["duly_claims_total"], seen["duly_restarted_runs_total"]) == (2, 1)
    assert (seen["duly_fenced_nodes_total"], seen["duly_node_returns_total"]) == (1, 1)
    assert seen["duly_cut_off_runs_total"] == 2
    assert (seen["duly_nodes"], seen["duly_heartbeat_age_seconds"]) == (3, 0.5)
    assert seen["duly_oldest_xmin_age"] == 70
    assert seen["duly_claim_lag_seconds"] == 0.25


def test_names_are_bounded() -> None:
    """Beyond the limit names share one label, and a removed name makes room."""
    watched = Watched(most_names=2)
    for name in ("a", "b", "c", "d"):
        watched.run(name)
        watched.emit("ServiceRunStarted", service=name, runId=9, reason="boot", pid=1)
    seen = watched.samples()
    counted = "duly_runs_total{{kind=service,name={},reason=schedule,result=success,timer=}}"
    assert [seen.get(counted.format(name)) for name in ("a", "b", "c", "other")] == [1, 1, None, 2]
    measured = "duly_run_duration_seconds_count{{kind=service,name={}}}"
    assert [seen.get(measured.format(name)) for name in ("a", "b", "other")] == [1, None, 3]
    assert seen["duly_running{kind=service,name=other}"] == 2
    assert not [name for name in seen if "since_last_success" in name and "name=other" in name]
    watched.emit("ConfigurationReloaded", added=[], changed=[], removed=["service a"])
    watched.run("c")
    seen = watched.samples()
    assert [seen.get(counted.format(name)) for name in ("a", "c")] == [None, 1]
    assert not [name for name in seen if "name=a," in name and "duly_running" not in name]


def test_many_names_stay_few() -> None:
    """Ten thousand made-up names cost as many series as the limit allows."""
    watched = Watched(most_names=10)
    for number in range(10_000):
        watched.run(f"service {number}", timer=f"timer {number}")
        watched.emit("TimerMissed", timer=f"timer {number}", target="a", reason="overlap", slot="x")
    assert len(watched.samples()) < 500


def test_a_removed_timer_is_forgotten() -> None:
    """What a removed timer did is not told any more."""
    watched = Watched()
    watched.run(timer="t")
    watched.emit("TimerMissed", timer="t", target="backup", reason="overlap", slot="x")
    watched.emit("TimerRemoved", timer="t", target="backup")
    assert not [name for name in watched.samples() if "timer=t" in name]


def test_hostile_names() -> None:
    """Whatever a name holds, the text is one that can be read, and the name comes back."""
    names = ['"><script>alert(1)</script>', "a\nduly_fake 1", "\\", 'x="y"', "\u202e", "\x1b[31m"]
    watched = Watched()
    for name in names:
        watched.run(name)
    for accept, read in (("", read_text), (OPENMETRICS, read_openmetrics)):
        families = read(watched.metrics.exposition(accept=accept).decode())
        seen = [sample for family in families for sample in family.samples]
        assert {sample.labels["name"] for sample in seen if sample.name == "duly_runs_total"} == set(names)
        assert not [sample for sample in seen if sample.name == "duly_fake"]


def test_formats() -> None:
    """Anyone who accepts OpenMetrics gets it, anybody else the text that Prometheus has always read."""
    metrics = Watched().metrics
    assert metrics.content_type("").startswith("text/plain; version=")
    assert metrics.content_type(OPENMETRICS).startswith("application/openmetrics-text")
    assert metrics.exposition(accept=OPENMETRICS).endswith(b"# EOF\n")
    assert b"# EOF" not in metrics.exposition()
    [build] = [name for name in samples_in(metrics.exposition()) if name.startswith("duly_build_info")]
    assert "version=" in build


def test_in_a_registry_of_others() -> None:
    """A program that has a registry tells duly's numbers with its own."""
    registry = CollectorRegistry()
    Metrics(registry=registry, now=lambda: START)
    assert registry.get_sample_value("duly_store_faulty") == 0


def test_a_scheduler_that_is_watched() -> None:
    """The events of a real scheduler become runs and lags; the states of its tasks are read."""

    async def scenario() -> dict[str, float]:
        clock = VirtualClock(at("12:00:30"))
        metrics = Metrics(now=clock.now, timezone=UTC)
        scheduler = Scheduler(":memory:", clock=clock, timezone=UTC, listeners=[metrics.listener])

        async def fine() -> None: ...

        async def bad() -> None:
            raise ValueError

        await scheduler.initialize([("a", "* * * * *", fine, MINUTE), ("b", "* * * * *", bad, MINUTE)])
        await clock.advance(2 * MINUTE)
        seen = samples_in(metrics.exposition())
        await scheduler.stop()
        return seen

    seen = asyncio.run(scenario())
    assert seen["duly_runs_total{kind=task,name=a,reason=cron,result=success,timer=}"] >= 2
    assert seen["duly_runs_total{kind=task,name=b,reason=cron,result=failure,timer=}"] >= 2
    assert seen["duly_start_lag_seconds_count{kind=task,name=a}"] >= 2
    assert seen["duly_next_due_timestamp_seconds{kind=task,name=a}"] == at("12:03:00").timestamp()
    assert seen["duly_last_success_timestamp_seconds{kind=task,name=a}"] == at("12:02:00").timestamp()
    assert seen["duly_expected_interval_seconds{kind=task,name=a}"] == 60
    assert [seen[f"duly_last_result{{kind=task,name={name}}}"] for name in "ab"] == [1, 0]
    assert seen["duly_seconds_until_next_due{kind=task,name=a}"] == 30
    assert seen["duly_seconds_since_last_success{kind=task,name=a}"] == 30


def test_a_due_that_is_not_answered_stays() -> None:
    """While a run goes on, the due that came meanwhile stands; a task that rests has no due."""

    async def scenario() -> list[float | None]:
        clock = VirtualClock(at("12:00:30"))
        metrics, release = Metrics(now=clock.now, timezone=UTC), asyncio.Event()
        app = App(":memory:", clock=clock, timezone=UTC, listeners=[metrics.listener])
        app.declare(release.wait, crontab("* * * * *"), name="a")
        async with app:
            await clock.advance(3 * MINUTE)
            name = "duly_next_due_timestamp_seconds{kind=task,name=a}"
            seen = [samples_in(metrics.exposition()).get(name)]
            release.set()
            await clock.advance(timedelta(seconds=1))
            seen.append(samples_in(metrics.exposition()).get(name))
            await app.pause("a")
            seen.append(samples_in(metrics.exposition()).get(name))
        return seen

    assert asyncio.run(scenario()) == [at("12:01:00").timestamp(), at("12:04:00").timestamp(), None]


@pytest.mark.parametrize(
    ("schedule", "interval_s"),
    [
        (every("5m"), 300),
        (crontab("0 9 * * 1-5"), 3 * 86_400),
        (crontab("0 0 1 * *"), 31 * 86_400),
        (crontab("0 0 1 * 1"), 7 * 86_400),
        (once("2099-01-01 00:00"), None),
        (every("10s", after_end=True), 10),
    ],
)
def test_expected_intervals(schedule: Schedule, interval_s: float | None) -> None:
    """An interval is the longest that the schedule has; what runs once has none."""

    async def scenario() -> dict[str, float]:
        clock = VirtualClock(at("12:00:30"))
        metrics = Metrics(now=clock.now, timezone=UTC)
        app = App(":memory:", clock=clock, timezone=UTC, listeners=[metrics.listener])
        app.declare(lambda: None, schedule, name="a")
        async with app:
            return samples_in(metrics.exposition())

    name = "duly_expected_interval_seconds{kind=task,name=a}"
    assert asyncio.run(scenario()).get(name) == interval_s


def test_writes_are_timed(tmp_path: Path) -> None:
    """Each write of a store is told with its time, one that failed as such."""
    seen: list[tuple[float, bool]] = []

    async def scenario() -> None:
        store = SQLiteStore(tmp_path / "state.db")
        store.on_write = lambda seconds, *, is_written: seen.append((seconds, is_written))
        await store.open("id")
        await store.write(lambda connection: connection.execute("CREATE TABLE t (x)"))
        with pytest.raises(StoreError):
            await store.write(lambda connection: connection.execute("nonsense"))
        await store.close()

    asyncio.run(scenario())
    assert [is_written for _, is_written in seen] == [True, False]
    assert all(0 < seconds < 60 for seconds, _ in seen)


# --- the dashboard and the rules ---


def everything() -> Watched:
    """Metrics that have every sample there can be."""
    watched = Watched(
        **daemon(
            reading("timer", "t", due_us=START, is_enabled=True),
            reading("service", "a", interval_us=SECOND_US, success_us=START, is_ok=True),
            reading("service", "web", is_up=True),
            states=[("service", "a", "hung")],
        ),
        node=lambda: Health(1, 0, 0, 0),
    )
    watched.run(timer="t")
    watched.emit("TimerFired", timer="t", target="a", reason="schedule", scheduledTime=START.isoformat())
    watched.emit("TimerMissed", timer="t", target="a", reason="overlap", slot="x")
    watched.emit("PropertyViolated", property="V1", taskName="a", at="x", reason="y")
    watched.emit("ServiceRunStarted", service="web", runId=2, reason="boot", pid=1)
    watched.emit("ServiceRestarting", service="web", runId=2, result="exit")
    watched.emit("StoreFault", error="the disk is full")
    watched.metrics.store_wrote(0.1, is_written=True)
    return watched


def known_names() -> set[str]:
    return {name.partition("{")[0] for name in everything().samples()}


def used_in(expressions: Iterable[str]) -> set[str]:
    return {name for text in expressions for name in re.findall(r"\bduly_\w+", text)}


def expressions_in(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        own = [tree[key] for key in ("expr", "query") if isinstance(tree.get(key), str)]
        return own + [found for value in tree.values() for found in expressions_in(value)]
    return [found for item in tree for found in expressions_in(item)] if isinstance(tree, list) else []


def text_of(name: str) -> str:
    return files("duly.observe").joinpath(name).read_text()


def test_grafana_asks_for_what_there_is() -> None:
    """The Grafana dashboard is JSON, its panels do not overlap, and it uses only metrics that exist."""
    dashboard = json.loads(text_of("grafana.json"))
    used = used_in(expressions_in(dashboard))
    assert used
    assert used <= known_names()
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_ask_for_what_there_is() -> None:
    """The rules are YAML as Prometheus wants it, and use only metrics and labels that exist."""
    [group] = yaml.safe_load(text_of("alerts.yml"))["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["annotations"]["summary"]
        assert used_in([rule["expr"]]) <= known_names()
        assert rule["expr"].count("(") == rule["expr"].count(")")
    about = {name for rule in rules for name in used_in([rule["expr"]])}
    assert about >= {"duly_violations_total", "duly_store_faulty", "duly_misses_total"}
    assert "duly_last_success_timestamp_seconds" in about


def test_the_page_lists_every_metric() -> None:
    """The documentation has a row for each metric, and none for others."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(duly_\w+)`", page, re.MULTILINE))
    suffix = re.compile(r"_(bucket|count|sum|created)$")
    named = {suffix.sub("", name) for name in known_names() if name.startswith("duly_")}
    assert listed == {name for name in named if f"{name}_total" not in named}


def test_health() -> None:
    """What is not simply well has a series for each of its states; how much is wrong is counted."""
    states = [("service", "backup", "hung"), ("service", "backup", "failing"), ("timer", "poll", "disabled")]
    seen = Watched(**daemon(states=states, problems=2)).samples()
    assert seen["duly_problems{}"] == 2
    assert {key: value for key, value in seen.items() if key.startswith("duly_health")} == {
        "duly_health{kind=service,name=backup,state=hung}": 1,
        "duly_health{kind=service,name=backup,state=failing}": 1,
        "duly_health{kind=timer,name=poll,state=disabled}": 1,
    }
    assert not {"duly_problems{}", "duly_health{}"} & set(Watched().samples())


def test_text_is_made_in_another_thread() -> None:
    """What is worked out is of the moment that was asked for; its text may be made elsewhere."""
    asked: list[threading.Thread] = []

    def read() -> Readings:
        asked.append(threading.current_thread())
        return Readings([reading("timer", "nightly", due_us=START + MINUTE)], [], 0, 0)

    watched = Watched(readings=read)
    made = watched.metrics.taken()
    watched.now += timedelta(seconds=50)
    with ThreadPoolExecutor(1) as pool:
        seen = samples_in(pool.submit(made).result())
    assert seen["duly_seconds_until_next_due{kind=timer,name=nightly}"] == 60
    assert asked == [threading.current_thread()]
    assert watched.samples()["duly_seconds_until_next_due{kind=timer,name=nightly}"] == 10


def test_the_first_of_its_kind_alerts() -> None:
    """A counter begins with 1, not with 0, and so has not risen: rules take the value of one that is new."""
    [group] = yaml.safe_load(text_of("alerts.yml"))["groups"]
    rising = 0
    for rule in group["rules"]:
        for name in re.findall(r"increase\((\w+)", rule["expr"]):
            rising += 1
            assert re.search(rf"\({name}\{{[^}}]*\}} unless {name} offset 1h\)\s+or increase", rule["expr"])
    assert rising == 3
