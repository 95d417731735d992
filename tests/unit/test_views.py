"""The JSON shapes of what the daemon shows."""

from dataclasses import replace
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.config.schema import Calendar, Config, Settings, Timer
from duly.daemon import views
from duly.daemon.shapes import HealthShape
from duly.daemon.words import schedule_words, span
from duly.instant import NEVER_US
from duly.store.history import MissRow, RunRow
from tests.daemons import CONFIG, MISSES, NOW_US, RUNS, SERVICES, TIMERS, FakeDaemon, us

STANDING = FakeDaemon().standing()


def test_timer() -> None:
    """A timer's shape has every field of its state, with times in ISO 8601 with an offset."""
    told = views.builtins(views.timers_shape(STANDING, CONFIG, TIMERS))
    assert told["timers"][0] == {
        "id": "backup",
        "target": "backup",
        "enabled": True,
        "schedule": "At 03:30, every day",
        "description": "",
        "running": False,
        "last_run_at": "2026-01-01T03:30:00+00:00",
        "next_run_at": "2026-01-02T03:30:00+00:00",
        "last_result": "exit",
        "last_exit": 3,
        "last_missed_at": None,
        "last_miss_reason": None,
        "last_success_at": None,
        "last_failure_at": "2026-01-01T03:31:00+00:00",
        "retry_attempt": 1,
        "retry_next_at": "2026-01-01T12:02:00+00:00",
        "startup_triggered": False,
        "registered_at": "2025-12-01T00:00:00+00:00",
        "answered_until": "2026-01-01T03:30:00+00:00",
        "member": None,
        "fault": None,
    }
    assert {key: value for key, value in told.items() if key != "timers"} == {
        "status": "enabled",
        "source": "daemon",
        "at": "2026-01-01T12:00:00+00:00",
        "invalid": [
            {"kind": "timer", "id": "bad", "index": 2, "reason": 'target "nope" is no service', "line": 40}
        ],
    }


def test_timer_that_nobody_knows() -> None:
    """A timer of which no state is known is shown as declared."""
    told = views.timers_shape(STANDING, CONFIG, {})
    assert [(timer.id, timer.enabled, timer.next_run_at) for timer in told.timers] == [
        ("backup", True, None),
        ("poll", False, None),
    ]


@pytest.mark.parametrize(("override", "enabled"), [(None, False), (True, True), (False, False)])
def test_switched_at_run_time(override: bool | None, enabled: bool) -> None:
    """What was switched at run time counts for more than what is declared."""
    reading = views.TimerReading(enabled_override=override)
    assert views.timer_shape(CONFIG.timers[1], reading, UTC).enabled is enabled


def test_zone() -> None:
    """Times are shown as the clocks of the zone show them, and never is no time."""
    assert views.time_of(us("2026-07-01 12:00"), ZoneInfo("Europe/Berlin")) == "2026-07-01T14:00:00+02:00"
    assert views.time_of(NEVER_US, UTC) is None
    assert views.time_of(None, UTC) is None


def test_services() -> None:
    """Services come in the order of their declaration, each with its last run."""
    told = views.builtins(views.services_shape(STANDING, CONFIG, reversed(SERVICES)))
    assert [service["id"] for service in told["services"]] == ["web", "backup", "mail"]
    web, backup, _ = told["services"]
    assert (web["state"], web["pid"], web["restarts"], web["since"]) == (
        *("running", 77, 2),
        "2026-01-01T11:00:00+00:00",
    )
    assert backup["last_run"] == {
        "id": 4,
        "service": "backup",
        "timer": "backup",
        "reason": "schedule",
        "scheduled_at": "2026-01-01T03:30:00+00:00",
        "started_at": "2026-01-01T03:30:00+00:00",
        "ended_at": "2026-01-01T03:31:00+00:00",
        "duration_s": 60.0,
        "running": False,
        "result": "exit",
        "exit_code": 3,
        "signal": None,
        "message": "",
        "pid": None,
    }
    assert told["invalid"] == []


def test_service_that_nobody_knows() -> None:
    """A service of which the supervisor says nothing is stopped."""
    assert views.services_shape(STANDING, CONFIG, ()).services[0].state == "stopped"


def test_status() -> None:
    """The status counts, names what is wrong, and says what comes next."""
    told = views.builtins(views.status_shape(STANDING, CONFIG, SERVICES, TIMERS))
    assert told["uptime_s"] == 3 * 3600 + 300
    assert told["counts"] == {
        "services": 3,
        "services_running": 1,
        "services_failed": 1,
        "invalid": 1,
        "timers": 2,
        "timers_running": 0,
    }
    assert told["next_firing"] == {"timer": "backup", "at": "2026-01-02T03:30:00+00:00"}
    assert told["timers"] == "enabled"
    assert told["health"] == {
        "ok": False,
        "reasons": [
            'timer bad is invalid: target "nope" is no service',
            "service backup failed: exited with code 3",
            "the last run of timer backup ended with exit code 3",
        ],
        "warnings": [],
    }


def test_healthy() -> None:
    """Where nothing is wrong, all is well; a fault of the daemon's own is a reason of its own."""
    fine = replace(CONFIG, invalid=())
    assert views.health(STANDING, fine, SERVICES[:1], {}) == HealthShape(ok=True, reasons=[])
    faulty = msgspec.structs.replace(STANDING, faults=("the disk is full",), state="down")
    assert views.health(faulty, fine, SERVICES[:1], {}).reasons == [
        "the disk is full",
        "the daemon is not running",
    ]


@pytest.mark.parametrize(("result", "is_well"), [("success", True), ("exit", False), ("spawn-error", False)])
def test_service_that_falls_over_is_not_well(result: str, *, is_well: bool) -> None:
    """A service that failed and waits to come back is a reason to worry; one that ended well is none."""
    run = RunRow(id=1, service="web", reason="boot", started_us=1, ended_us=2, result=result)
    waiting = views.StoredService(
        id="web", state="waiting", restart_at_us=NOW_US, last_run=run, reason="ended; restarts after 4 s"
    )
    told = views.health(STANDING, replace(CONFIG, invalid=()), [waiting], {})
    assert told.ok is is_well
    assert told.reasons == ([] if is_well else ["service web ended; restarts after 4 s"])


def test_a_run_under_way_is_not_a_failure() -> None:
    """A timer whose last run failed and which runs again is not a reason to worry yet."""
    again = {"backup": msgspec.structs.replace(TIMERS["backup"], running_run=9)}
    assert views.health(STANDING, replace(CONFIG, invalid=()), (), again).ok


@pytest.mark.parametrize(
    ("reason", "fields", "is_ill"),
    [
        ("shutdown", {}, True),
        ("target-not-found", {}, True),
        ("overlap", {}, False),
        ("disabled", {}, False),
        ("disabled-target", {}, False),
        ("something new", {}, False),
        ("shutdown", {"last_run_us": 99}, True),
        ("shutdown", {"last_run_us": 100}, True),
        ("shutdown", {"last_run_us": 101}, False),
        ("target-not-found", {"last_run_us": 101}, False),
        ("shutdown", {"enabled": False}, False),
        ("shutdown", {"enabled_override": False}, False),
        ("shutdown", {"enabled": False, "enabled_override": True}, True),
        ("shutdown", {"persistent": False}, False),
        ("target-not-found", {"persistent": False}, True),
        ("shutdown", {"last_missed_us": None}, False),
    ],
)
def test_which_misses_are_worth_a_warning(reason: str, fields: dict[str, Any], *, is_ill: bool) -> None:
    """A miss that nobody meant warns until the timer runs again; what missed as it was told to does not."""
    declared = {name: value for name, value in fields.items() if name in {"enabled", "persistent"}}
    read = {name: value for name, value in fields.items() if name not in declared}
    timer = Timer("t", "web", **declared)
    reading = views.TimerReading(**{"last_missed_us": 100, "last_miss_reason": reason, **read})
    assert views.is_ill_missed(timer, reading) is is_ill


def test_misses_alone_warn_and_all_is_well() -> None:
    """A miss that nobody meant is a warning, in words, and not a reason of bad health."""
    fine = replace(CONFIG, invalid=())
    missed = {"backup": views.TimerReading(last_missed_us=us("11:55"), last_miss_reason="shutdown")}
    told = views.health(STANDING, fine, SERVICES[:1], missed)
    assert (told.ok, told.reasons) == (True, [])
    (warning,) = told.warnings
    why = "the daemon was down, stopping or asleep"
    assert warning == f"timer backup missed 2026-01-01 11:55, because {why}, and has not run since"


def test_status_behind_a_closed_gate() -> None:
    """While the gate is closed the status says so, and counts no timer."""
    told = views.status_shape(STANDING, CONFIG, SERVICES, None)
    assert told.timers == "disabled"
    assert "experimental" in told.timers_message
    assert told.next_firing is None
    assert not [name for name in told.counts if name.startswith("timers")]


def test_disabled() -> None:
    """A closed gate is told in exactly two keys, with how to open it; the parent switch has its own words."""
    told = views.builtins(views.disabled())
    assert list(told) == ["status", "message"]
    assert told["status"] == "disabled"
    assert "timers = true" in told["message"]
    assert "enabled = true" in views.disabled(is_parent_on=False).message


def test_next_firing() -> None:
    """The earliest fires next, of two the one declared first; without any there is none."""
    at_us = us("13:00")
    readings = {
        "never": views.TimerReading(next_us=NEVER_US),
        "b": views.TimerReading(next_us=at_us),
        "a": views.TimerReading(next_us=at_us),
        "late": views.TimerReading(next_us=at_us + 1),
    }
    found = views.next_firing(readings, UTC)
    assert found is not None
    assert found.timer == "b"
    assert views.next_firing({"never": readings["never"]}, UTC) is None


def test_history() -> None:
    """Runs and misses, and whether there are more."""
    runs = [row for row in RUNS if row is not None]
    told = views.builtins(views.history_shape(STANDING, runs, MISSES, more=True))
    assert [run["id"] for run in told["runs"]] == [1, 2, 4]
    assert told["runs"][1]["running"]
    assert told["runs"][1]["duration_s"] is None
    assert told["misses"] == [{"timer": "poll", "at": "2026-01-01T11:55:00+00:00", "reason": "overlap"}]
    assert told["more"] is True


def test_clock_set_back_during_a_run() -> None:
    """A run that ended before it began, by the clock, lasted no time rather than less than none."""
    row = RunRow(id=1, service="a", reason="manual", started_us=NOW_US, ended_us=NOW_US - 5, result="success")
    assert views.run_shape(row, UTC).duration_s == 0


@pytest.mark.parametrize(
    ("text", "count", "tail"),
    [
        ("a\nb\nc\n", None, "a\nb\nc\n"),
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\nb\n", 9, "a\nb\n"),
        ("a\nb\n", 0, ""),
        ("", 3, ""),
        ("\n\n", 1, "\n"),
    ],
)
def test_last_lines(text: str, count: int | None, tail: str) -> None:
    """The last lines are counted with or without a newline at the end."""
    assert views.last_lines(text, count) == tail


def test_environment_is_not_told() -> None:
    """A definition shows that a value of the environment changed, and never the value."""
    backup = CONFIG.services[1]
    told = views.definition(backup)
    assert list(told["env"]) == ["TOKEN"]
    assert "secret" not in str(told)
    assert views.definition(replace(backup, env={"TOKEN": "other"})) != told
    assert views.definition(replace(backup)) == told
    assert '"env":["TOKEN"]' in views.definition_text(backup)


@pytest.mark.parametrize(
    ("timer", "words"),
    [
        (CONFIG.timers[0], "At 03:30, every day"),
        (CONFIG.timers[1], "5s after start-up; 5m after each run of mail"),
        (
            Timer(
                "a",
                "b",
                on_calendar=(Calendar(), Calendar(minute=(0,), day_of_month=(13,), day_of_week=(5,))),
            ),
            "Every minute; Every hour, on the 13th of the month if that is a Friday",
        ),
    ],
)
def test_schedule_in_words(timer: Timer, words: str) -> None:
    """Every trigger is said, in the order of calendar, start-up, interval."""
    assert schedule_words(timer) == words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5s"), (60, "1m"), (90, "1m 30s"), (5400, "1h 30m"), (86_400, "1d"), (90_061, "1d 1h 1m 1s")],
)
def test_span(seconds: float, text: str) -> None:
    """A configured length is said exactly, without units that it has none of."""
    assert span(seconds) == text


def test_settings_without_anything() -> None:
    """An empty configuration has an empty, healthy status."""
    empty = Config(CONFIG.path, Settings())
    told = views.status_shape(STANDING, empty, (), None)
    assert told.health.ok
    assert told.counts["services"] == 0


def test_miss_shape() -> None:
    """A miss is told with its slot and its reason."""
    told = views.miss_shape(MissRow("a", NOW_US, "disabled"), UTC)
    assert (told.timer, told.at, told.reason) == ("a", "2026-01-01T12:00:00+00:00", "disabled")
