"""Whether all is well: the state of each job, service and timer."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from duly.config.schema import Calendar, Config, Invalid, Service, Settings, Timer
from duly.daemon import views
from duly.daemon.health import entry_states, health, invalid_text, status_json
from duly.daemon.json_types import HealthJson
from duly.instant import SECOND_US
from duly.store.history import RunRow
from duly.store.past import Past, after_slot
from tests.worlds.daemons import CONFIG, NOW_US, SERVICES, TIMERS, FakeDaemon, us

STATUS = FakeDaemon().daemon_status()
MINUTELY = Timer("job", "job", on_calendar=(Calendar(),))
HOURLY = Timer("job", "job", on_calendar=(Calendar(minute=(0,)),))


def ran(*results: str, lasted_s: float = 10, every_s: float = 60) -> Past:
    """The past of runs that ended so, one a minute, the newest a minute ago."""
    past = Past()
    for number, result in enumerate(results):
        started_us = NOW_US - round((len(results) - number) * every_s * SECOND_US)
        lasted_us = round(lasted_s * SECOND_US)
        past = past.after(
            RunRow(
                id=number + 1,
                service="job",
                reason="schedule",
                started_us=started_us,
                ended_us=started_us + lasted_us,
                lasted_us=lasted_us,
                result=result,
                message="" if result == "success" else "exited with code 3",
            )
        )
    return past


def running(since: str, past: Past | None = None) -> views.ServiceSnapshot:
    live = RunRow(id=99, service="job", reason="schedule", started_us=us(since))
    return views.ServiceSnapshot(id="job", state="running", run_id=99, last_run=live, past=past or Past())


def idle(*results: str) -> views.ServiceSnapshot:
    return views.ServiceSnapshot(id="job", state="stopped", past=ran(*results))


def found(
    view: views.ServiceSnapshot,
    timer: Timer | None = MINUTELY,
    snapshot: views.TimerSnapshot | None = None,
    **options: Any,
) -> list[tuple[str, str]]:
    """The states of a job, each with its sentence."""
    service = Service("job", ("job",), **{"type": "oneshot", **options})
    config = replace(CONFIG, invalid=(), services=(service,), timers=() if timer is None else (timer,))
    snapshots = {"job": snapshot or views.TimerSnapshot()}
    return [(each.state, each.message) for each in entry_states(STATUS, config, [view], snapshots)]


FAILED = ("failed: exited with code 3", "failed 3 of 3 since 11:57: exited with code 3")
NEVER = "; it has never succeeded"


@pytest.mark.parametrize(
    ("view", "timer", "options", "expected"),
    [
        # well
        (idle(), MINUTELY, {}, []),
        (idle("exit", "success"), MINUTELY, {}, []),
        (running("11:59"), MINUTELY, {}, []),
        # failing: the last that ended, whatever runs now
        (idle("success", "exit"), MINUTELY, {}, [("failing", FAILED[0])]),
        (idle("success", "exit", "timeout", "signal"), MINUTELY, {}, [("failing", FAILED[1])]),
        (running("11:59", ran("success", "exit")), MINUTELY, {}, [("failing", FAILED[0])]),
        (idle("success", "exit"), None, {}, [("failing", FAILED[0])]),
        # a run that somebody cut off says nothing of the job
        (idle("success", "interrupted"), MINUTELY, {}, []),
        (idle("success", "exit", "interrupted"), MINUTELY, {}, [("failing", FAILED[0])]),
        # never succeeded
        (idle("exit"), MINUTELY, {}, [("never succeeded", FAILED[0] + NEVER)]),
        (idle("exit", "exit", "exit"), MINUTELY, {}, [("never succeeded", FAILED[1] + NEVER)]),
        # hung: longer than its period, if that is longer than three times what is usual
        (
            running("11:00"),
            MINUTELY,
            {},
            [("hung", "hangs: it has been running since 11:00, for 1h; none has ended well so far")],
        ),
        (running("11:00"), HOURLY, {}, []),
        (running("10:59:59"), HOURLY, {}, [("hung", None)]),
        (running("11:59:31", ran("success")), MINUTELY, {}, []),
        (
            running("11:57:29", ran("success", lasted_s=50)),
            MINUTELY,
            {},
            [("hung", "hangs: it has been running since 11:57, for 2m 31s; 50s is usual")],
        ),
        (running("11:57:30", ran("success", lasted_s=50)), MINUTELY, {}, []),
        # without a timer a minute stands for the period
        (running("11:59"), None, {}, []),
        (running("11:58:59"), None, {}, [("hung", None)]),
        # past its time limit
        (running("11:59:55"), MINUTELY, {"timeout_sec": 5}, []),
        (
            running("11:59:54"),
            MINUTELY,
            {"timeout_sec": 5},
            [("hung", "hangs: it has been running since 11:59, past its time limit of 5s")],
        ),
        # hung and failing are two things
        (
            running("11:00", ran("success", "exit")),
            MINUTELY,
            {},
            [("hung", None), ("failing", FAILED[0])],
        ),
        # disabled
        (idle("exit"), MINUTELY, {"enabled": False}, [("disabled", "is disabled")]),
        (idle("exit"), replace(MINUTELY, enabled=False), {}, [("disabled", "is disabled")]),
    ],
)
def test_jobs(
    view: views.ServiceSnapshot,
    timer: Timer | None,
    options: dict[str, Any],
    expected: list[tuple[str, str | None]],
) -> None:
    """A job hangs, fails, has never succeeded or is disabled, in words that say since when and how often."""
    seen = found(view, timer, **options)
    assert [state for state, _ in seen] == [state for state, _ in expected]
    for (_, message), (_, words) in zip(seen, expected, strict=True):
        assert words is None or message in {f"service job {words}", f"timer job {words}"}


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        ({"last_result": "exit", "last_exit": 4, "last_failure_us": us("11:58")}, "exited with code 4"),
        ({"last_result": "timeout", "last_failure_us": us("11:58")}, "ended with timeout"),
        ({"last_result": "exit", "last_failure_us": us("11:58"), "last_success_us": us("11:59")}, None),
        ({"last_result": "interrupted", "last_failure_us": us("11:58")}, None),
        ({"last_result": "success", "last_success_us": us("11:58")}, None),
    ],
)
def test_runs_of_other_machines(snapshot: dict[str, Any], expected: str | None) -> None:
    """Where this machine has no run of a job, its timer says how the last one ended."""
    seen = found(idle(), MINUTELY, views.TimerSnapshot(**snapshot))
    assert [message for _, message in seen] == (
        [] if expected is None else [f"service job failed: {expected}{NEVER}"]
    )


def test_success_elsewhere_ends_a_failure_here() -> None:
    """A job that failed here and then ended well on another machine is well, and the other way round."""
    assert found(idle("exit"), MINUTELY, views.TimerSnapshot(last_success_us=NOW_US)) == []
    later = views.TimerSnapshot(last_result="exit", last_exit=3, last_failure_us=NOW_US)
    assert found(idle("success"), MINUTELY, later) == [("failing", f"service job {FAILED[0]}")]


@pytest.mark.parametrize(
    ("misses", "expected"),
    [
        ([None] * 6 + ["overlap"] * 4, None),
        ([None] * 5 + ["overlap"] * 5, "5 of 10 slots missed: overlap"),
        (["overlap"] * 5, "5 of 5 slots missed: overlap"),
        ([None] * 23 + ["overlap"] * 37, "37 of 60 slots missed: overlap"),
        ([None] * 99 + ["overlap"] * 37, "37 of 60 slots missed: overlap"),
        (["overlap", None] * 40, "30 of 60 slots missed: overlap"),
        (["overlap"] * 9 + ["target-not-found"], "10 of 10 slots missed: overlap and target-not-found"),
        (["overlap"] * 50 + [None] * 6, None),
        (["shutdown"] * 60, None),
        (["disabled"] * 60, None),
        (["disabled-target"] * 60, None),
    ],
)
def test_missing_runs(misses: list[str | None], expected: str | None) -> None:
    """A timer that missed half of its newest ten slots or more is missing runs; of sixty it says how many."""
    slots = ""
    for miss in misses:
        slots = after_slot(slots, miss)
    seen = found(idle("success"), MINUTELY, views.TimerSnapshot(slots=slots))
    assert seen == ([] if expected is None else [("missing runs", f"timer job: {expected}")])


@pytest.mark.parametrize(("count", "p95_s"), [(0, None), (1, 1), (10, 10), (19, 19), (20, 19), (25, 24)])
def test_usual_length(count: int, p95_s: int | None) -> None:
    """What is usual is the 95th percentile of the newest twenty runs that ended well."""
    past = Past()
    for second in range(1, count + 1):
        lasted_us = second * SECOND_US
        row = RunRow(id=second, service="job", reason="schedule", started_us=0, ended_us=9, result="success")
        past = past.after(msgspec.structs.replace(row, lasted_us=lasted_us))
    assert past.p95_us == (None if p95_s is None else p95_s * SECOND_US)


def test_missed_because_it_hangs() -> None:
    """What a job misses because it hangs is the same trouble, said once."""
    snapshot = views.TimerSnapshot(slots="o" * 60)
    assert [state for state, _ in found(running("11:00"), MINUTELY, snapshot)] == ["hung"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "running", "run_id": 1, "since_us": us("11:59:30"), "quick_ends": 3}, "crash loop"),
        ({"state": "running", "run_id": 1, "since_us": us("11:59"), "quick_ends": 3}, None),
        ({"state": "running", "run_id": 1, "since_us": us("11:59:30"), "quick_ends": 2}, None),
        ({"state": "waiting", "restart_at_us": us("12:01"), "quick_ends": 3}, "crash loop"),
        ({"state": "waiting", "restart_at_us": us("12:01"), "quick_ends": 1}, "failing"),
        ({"state": "stopped", "quick_ends": 5}, None),
        ({"state": "failed", "quick_ends": 0}, "failing"),
        ({"state": "skipped", "quick_ends": 0}, "failing"),
    ],
)
def test_services_that_come_back(fields: dict[str, Any], expected: str | None) -> None:
    """A service that failed three times, each time soon after it came up, is in a crash loop."""
    ended = RunRow(id=1, service="job", reason="restart", started_us=1, ended_us=2, result="exit")
    view = views.ServiceSnapshot(id="job", last_run=ended, past=ran("exit"), restarts=5, **fields)
    seen = found(view, None, type="simple")
    assert [state for state, _ in seen] == ([] if expected is None else [expected])
    if expected == "crash loop":
        again = "service job restarts again and again, 5 times by now: exited with code 3"
        assert seen[0][1] == again


def test_the_store_of_a_daemon_that_is_down() -> None:
    """Of a daemon that is down nobody says that a job hangs."""
    config = replace(CONFIG, services=(Service("job", ("job",), type="oneshot"),), timers=(MINUTELY,))
    stored = msgspec.structs.replace(STATUS, source="store")
    assert entry_states(stored, config, [running("11:00")], {}) == []


def test_disabled_is_no_alarm() -> None:
    """A disabled service and a disabled timer are among the states, and no reasons of bad health."""
    judged = health(STATUS, replace(CONFIG, invalid=()), SERVICES, {})
    assert [(each.kind, each.id) for each in judged.states if each.state == "disabled"] == [
        ("service", "mail")
    ]
    assert not any("mail" in reason for reason in judged.reasons)


def test_status() -> None:
    """The status counts, names what is wrong, and says what comes next."""
    seen = msgspec.to_builtins(status_json(STATUS, CONFIG, SERVICES, TIMERS))
    assert seen["uptime_s"] == 3 * 3600 + 300
    assert seen["counts"] == {
        "services": 3,
        "services_running": 1,
        "services_failed": 1,
        "invalid": 1,
        "timers": 2,
        "timers_running": 0,
    }
    assert seen["next_firing"] == {"timer": "backup", "at": "2026-01-02T03:30:00+00:00"}
    assert seen["timers"] == "enabled"
    assert seen["health"] == {
        "ok": False,
        "reasons": [
            "service backup failed: exited with code 3; it has never succeeded",
            'timer bad is invalid: target "nope" is no service',
        ],
        "warnings": [],
        "states": [
            {
                "kind": "service",
                "id": "backup",
                "state": "never succeeded",
                "since": "2026-01-01T03:31:00+00:00",
                "message": "service backup failed: exited with code 3; it has never succeeded",
            },
            {
                "kind": "service",
                "id": "mail",
                "state": "disabled",
                "since": None,
                "message": "service mail is disabled",
            },
        ],
    }


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Invalid("job", "a", 0, "why", 4), "job a is invalid: why"),
        (Invalid("job", None, 0, "why", 4), "job number 1 (line 4) is invalid: why"),
        (
            Invalid("job", None, 6, "why", 4, "conf.d/x.toml"),
            "job number 7 (conf.d/x.toml, line 4) is invalid: why",
        ),
        (Invalid("job", "a", 6, "why", 4, "conf.d/x.toml"), "job a (conf.d/x.toml, line 4) is invalid: why"),
        (Invalid("job", None, 6, "why"), "job number 7 is invalid: why"),
    ],
)
def test_an_invalid_entry_can_be_found(bad: Invalid, said: str) -> None:
    """An entry without an id, or of an included file, is named by its file and line."""
    assert invalid_text(bad) == said


def test_healthy() -> None:
    """Where nothing is wrong, all is well; a fault of the daemon's own is a reason of its own."""
    fine = replace(CONFIG, invalid=())
    assert health(STATUS, fine, SERVICES[:1], {}) == HealthJson(ok=True, reasons=[])
    faulty = msgspec.structs.replace(STATUS, faults=("the disk is full",), state="down")
    assert health(faulty, fine, SERVICES[:1], {}).reasons == [
        "the disk is full",
        "the daemon is not running",
    ]


@pytest.mark.parametrize(("result", "is_well"), [("success", True), ("exit", False), ("spawn-error", False)])
def test_service_that_falls_over_is_not_well(result: str, *, is_well: bool) -> None:
    """A service that failed and waits to come back is a reason to worry; one that ended well is none."""
    run = RunRow(id=1, service="web", reason="boot", started_us=1, ended_us=2, result=result)
    waiting = views.ServiceSnapshot(
        id="web", state="waiting", restart_at_us=NOW_US, last_run=run, reason="ended; restarts after 4 s"
    )
    seen = health(STATUS, replace(CONFIG, invalid=()), [waiting], {})
    assert seen.ok is is_well
    assert seen.reasons == ([] if is_well else ["service web ended; restarts after 4 s"])


def test_misses_alone_warn_and_all_is_well() -> None:
    """A miss that nobody meant is a warning, in words, and not a reason of bad health."""
    fine = replace(CONFIG, invalid=())
    missed = {"backup": views.TimerSnapshot(last_missed_us=us("11:55"), last_miss_reason="shutdown")}
    seen = health(STATUS, fine, SERVICES[:1], missed)
    assert (seen.ok, seen.reasons) == (True, [])
    (warning,) = seen.warnings
    why = "the daemon was down, stopping or asleep"
    assert warning == f"timer backup missed 2026-01-01 11:55, because {why}, and has not run since"


def test_status_behind_a_closed_switch() -> None:
    """While the switch is closed the status says so, and counts no timer."""
    seen = status_json(STATUS, CONFIG, SERVICES, None)
    assert seen.timers == "disabled"
    assert "experimental" in seen.timers_message
    assert seen.next_firing is None
    assert not [name for name in seen.counts if name.startswith("timers")]


def test_settings_without_anything() -> None:
    """An empty configuration has an empty, healthy status."""
    empty = Config(CONFIG.path, Settings())
    seen = status_json(STATUS, empty, (), None)
    assert seen.health.ok
    assert seen.counts["services"] == 0
