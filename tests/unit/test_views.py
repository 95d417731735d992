"""The JSON of what the daemon shows."""

from dataclasses import replace
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.config.schema import Calendar, Timer
from duly.daemon import views
from duly.daemon.views import schedule_text
from duly.formatting import exact_length
from duly.instant import NEVER_US, time_of
from duly.store.history import MissRow, RunRow
from tests.worlds.daemons import CONFIG, MISSES, NOW_US, RUNS, SERVICES, TIMERS, FakeDaemon, us

STATUS = FakeDaemon().daemon_status()


def test_timer() -> None:
    """The JSON of a timer has every field of its state, with times in ISO 8601 with an offset."""
    *_, seen = views.timers_json_steps(STATUS, CONFIG, TIMERS)
    seen = msgspec.to_builtins(seen)
    assert seen["timers"][0] == {
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
    assert {key: value for key, value in seen.items() if key != "timers"} == {
        "status": "enabled",
        "source": "daemon",
        "at": "2026-01-01T12:00:00+00:00",
        "invalid": [
            {
                "kind": "timer",
                "id": "bad",
                "index": 2,
                "reason": 'target "nope" is no service',
                "line": 40,
                "file": None,
            }
        ],
        "fault": None,
    }


def test_timer_that_nobody_knows() -> None:
    """A timer without a known state is shown as declared."""
    *_, seen = views.timers_json_steps(STATUS, CONFIG, {})
    assert [(timer.id, timer.enabled, timer.next_run_at) for timer in seen.timers] == [
        ("backup", True, None),
        ("poll", False, None),
    ]


@pytest.mark.parametrize(("override", "enabled"), [(None, False), (True, True), (False, False)])
def test_switched_at_run_time(override: bool | None, enabled: bool) -> None:
    """What was switched at run time counts for more than what is declared."""
    snapshot = views.TimerSnapshot(enabled_override=override)
    assert views.timer_json(CONFIG.timers[1], snapshot, UTC).enabled is enabled


def test_zone() -> None:
    """Times are shown as the clocks of the zone show them, and never is no time."""
    assert time_of(us("2026-07-01 12:00"), ZoneInfo("Europe/Berlin")) == "2026-07-01T14:00:00+02:00"
    assert time_of(NEVER_US, UTC) is None
    assert time_of(None, UTC) is None


def test_services() -> None:
    """Services come in the order of their declaration, each with its last run."""
    seen = msgspec.to_builtins(views.services_json(STATUS, CONFIG, reversed(SERVICES)))
    assert [service["id"] for service in seen["services"]] == ["web", "backup", "mail"]
    web, backup, _ = seen["services"]
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
        "machine": None,
    }
    assert seen["invalid"] == []


def test_service_that_nobody_knows() -> None:
    """A service that the supervisor says nothing of is stopped."""
    assert views.services_json(STATUS, CONFIG, ()).services[0].state == "stopped"


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
    snapshot = views.TimerSnapshot(**{"last_missed_us": 100, "last_miss_reason": reason, **read})
    assert views.is_ill_missed(timer, snapshot) is is_ill


def test_disabled() -> None:
    """A closed switch is told in two keys, with how to open it; the parent switch has its own words."""
    seen = msgspec.to_builtins(views.disabled())
    assert list(seen) == ["status", "message"]
    assert seen["status"] == "disabled"
    assert "timers = true" in seen["message"]
    assert "enabled = true" in views.disabled(is_parent_on=False).message


def test_next_firing() -> None:
    """The earliest fires next, of two the one declared first; without any there is none."""
    at_us = us("13:00")
    snapshots = {
        "never": views.TimerSnapshot(next_us=NEVER_US),
        "b": views.TimerSnapshot(next_us=at_us),
        "a": views.TimerSnapshot(next_us=at_us),
        "late": views.TimerSnapshot(next_us=at_us + 1),
    }
    found = views.next_firing(snapshots, UTC)
    assert found is not None
    assert found.timer == "b"
    assert views.next_firing({"never": snapshots["never"]}, UTC) is None


def test_history() -> None:
    """Runs and misses, and whether there are more."""
    runs = [row for row in RUNS if row is not None]
    seen = msgspec.to_builtins(views.history_json(STATUS, runs, MISSES, more=True))
    assert [run["id"] for run in seen["runs"]] == [1, 2, 4]
    assert seen["runs"][1]["running"]
    assert seen["runs"][1]["duration_s"] is None
    assert seen["misses"] == [{"timer": "poll", "at": "2026-01-01T11:55:00+00:00", "reason": "overlap"}]
    assert seen["more"] is True


def test_clock_set_back_during_a_run() -> None:
    """A run that ended before it began, by the clock, lasted no time rather than less than none."""
    row = RunRow(id=1, service="a", reason="manual", started_us=NOW_US, ended_us=NOW_US - 5, result="success")
    assert views.run_json(row, UTC).duration_s == 0


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
    seen = views.definition(backup)
    assert list(seen["env"]) == ["TOKEN"]
    assert "secret" not in str(seen)
    assert views.definition(replace(backup, env={"TOKEN": "other"})) != seen
    assert views.definition(replace(backup)) == seen
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
    assert schedule_text(timer) == words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5s"), (60, "1m"), (90, "1m 30s"), (5400, "1h 30m"), (86_400, "1d"), (90_061, "1d 1h 1m 1s")],
)
def test_exact_length(seconds: float, text: str) -> None:
    """A configured length is said exactly, without units that it has none of."""
    assert exact_length(seconds) == text


def test_miss_json() -> None:
    """A miss is told with its slot and its reason."""
    seen = views.miss_json(MissRow("a", NOW_US, "disabled"), UTC)
    assert (seen.timer, seen.at, seen.reason) == ("a", "2026-01-01T12:00:00+00:00", "disabled")
