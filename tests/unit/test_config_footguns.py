"""Warnings: each foot-gun is pointed out, and its harmless neighbour is not."""

from pathlib import Path
from typing import Any

import pytest

from duly.config import Calendar, config_of
from duly.config.calendars import gaps_of

PATH = Path("duly.toml")
JOB = {"id": "job", "command": ["true"], "type": "oneshot"}
DAY = 86_400
SLOW_JOB = (
    'its target "job" may run for 1h 1s (timeout_sec), and it fires as often as every 1h:'
    " firings meanwhile are missed"
)
SAME_MINUTE = (
    'fires in the same minute as timer "a" (at 07:00, for one); their target runs once at a time,'
    " so one of them is missed"
)


def warnings(*timers: dict[str, Any], job: dict[str, Any] | None = None, **supervisor: Any) -> list[str]:
    found = config_of(PATH, [{**JOB, **(job or {})}], timers, {"timers": True, **supervisor})
    assert found.invalid == ()
    return [each.reason for each in found.warnings]


def timer(name: str = "t", **keys: Any) -> dict[str, Any]:
    return {"id": name, "target": "job", **keys}


@pytest.mark.parametrize(
    ("calendar", "part"),
    [
        ({"hour": 3}, "gives hour and no minute, so it fires every minute"),
        ({"month": 1, "day_of_week": 1}, "gives month and day_of_week and no minute"),
        ([{"hour": 3, "minute": 0}, {"hour": 4}], "gives hour and no minute"),
        ({}, "on_calendar is empty, which means every minute"),
        (Calendar(hour=3), "gives hour and no minute"),
        ({"hour": 3, "minute": "*"}, None),
        ({"minute": 0}, None),
        ({"minute": list(range(60)), "hour": 3}, None),
    ],
)
def test_no_minute(calendar: Any, part: str | None) -> None:
    """A calendar without a minute is pointed out; an explicit star is meant."""
    found = warnings(timer(on_calendar=calendar))
    assert len(found) == (part is not None)
    assert all(part in reason for reason in found if part is not None)


@pytest.mark.parametrize(
    ("days", "months", "comes"),
    [
        ([30], [2], False),
        ([31], [2, 4, 6, 9, 11], False),
        ([30, 31], [2], False),
        ([29], [2], True),
        ([31], [2, 3], True),
        ([31], "*", True),
    ],
)
def test_dates_that_never_come(days: Any, months: Any, comes: bool) -> None:
    """A date that no year has is pointed out; one of leap years is a date."""
    calendar = {"minute": 0, "hour": 0, "day_of_month": days, "month": months}
    assert warnings(timer(on_calendar=calendar)) == (
        [] if comes else ["on_calendar never fires: none of its months has such a day"]
    )


def test_one_of_several_never_comes() -> None:
    """Among several calendars, the one that never comes is named by its number."""
    never = {"minute": 0, "day_of_month": 30, "month": 2}
    assert warnings(timer(on_calendar=[{"minute": 0}, never])) == [
        "on_calendar, calendar 2 never fires: none of its months has such a day"
    ]


@pytest.mark.parametrize(
    ("calendar", "gaps_sec"),
    [
        (Calendar(), (60, 60)),
        (Calendar((0,)), (3600, 3600)),
        (Calendar((0, 50)), (600, 3000)),
        (Calendar((0, 15, 30, 45)), (900, 900)),
        (Calendar((0,), (3,)), (DAY, DAY)),
        (Calendar((0,), (1, 23)), (2 * 3600, 22 * 3600)),
        (Calendar((0,), (1, 23), None, None, (1,)), (22 * 3600, 6 * DAY + 2 * 3600)),
        (Calendar((0,), (0,), None, None, (1,)), (7 * DAY, 7 * DAY)),
        (Calendar((0,), (9,), None, None, (1, 2, 3, 4, 5)), (DAY, 3 * DAY)),
        (Calendar((0,), (0,), None, None, (0, 6)), (DAY, 6 * DAY)),
        (Calendar((0,), (0,), (1,)), (28 * DAY, 31 * DAY)),
        (Calendar((0,), (0,), "last"), (28 * DAY, 31 * DAY)),
        (Calendar((0,), (0,), (31,)), (31 * DAY, 61 * DAY)),
        (Calendar((0,), (0,), (1, 31)), (DAY, 30 * DAY)),
        (Calendar((0,), (0,), (1,), (1,)), (365 * DAY, 366 * DAY)),
        (Calendar((0,), (0,), (29,), (2,)), (4 * 365 * DAY + DAY, 4 * 365 * DAY + DAY)),
        (Calendar((0,), (0,), (30,), (2,)), None),
    ],
)
def test_gaps(calendar: Calendar, gaps_sec: tuple[int, int] | None) -> None:
    """The least and longest time between two firings, in a day, across midnight, months and years."""
    assert gaps_of(calendar) == gaps_sec


@pytest.mark.parametrize(("timeout_sec", "is_warned"), [(3600, False), (3601, True), (None, False)])
def test_timeout_beyond_the_period(timeout_sec: int | None, is_warned: bool) -> None:
    """A job that may run longer than its period is pointed out."""
    job = {} if timeout_sec is None else {"timeout_sec": timeout_sec}
    found = warnings(timer(on_calendar={"minute": 0}), job=job)
    assert found == ([SLOW_JOB] if is_warned else [])


def test_timeout_beyond_an_interval() -> None:
    """An interval counts from the end of a run, so no timeout is too long for it."""
    assert warnings(timer(on_unit_active_sec=5, on_startup_sec=5), job={"timeout_sec": 100}) == []


FIRST_TIME = "nothing starts that a first time"


@pytest.mark.parametrize(
    ("others", "job", "is_warned"),
    [
        ([], {}, True),
        ([timer("u", on_unit_active_sec=7)], {}, True),
        ([timer("u", on_startup_sec=7, enabled=False)], {}, True),
        ([timer("u", on_startup_sec=7)], {}, False),
        ([timer("u", on_calendar={"minute": 0})], {}, False),
        ([], {"at_startup": True}, False),
    ],
)
def test_interval_that_never_begins(
    others: list[dict[str, Any]], job: dict[str, Any], is_warned: bool
) -> None:
    """An interval after a run that nothing ever starts is pointed out."""
    found = warnings(timer(on_unit_active_sec=60), *others, job=job)
    assert any(FIRST_TIME in reason for reason in found) is is_warned


SEVEN = {"minute": 0, "hour": 7}


@pytest.mark.parametrize(
    ("one", "other", "is_warned"),
    [
        ({"on_calendar": SEVEN}, {"on_calendar": {"minute": [0, 30]}}, True),
        ({"on_calendar": SEVEN}, {"on_calendar": [{"minute": 9}, SEVEN]}, True),
        ({"on_calendar": SEVEN}, {"on_calendar": {"minute": 30}}, False),
        ({"on_calendar": SEVEN}, {"on_calendar": SEVEN, "enabled": False}, False),
        ({"on_calendar": SEVEN}, {"on_calendar": SEVEN, "timezone": "Asia/Tokyo"}, False),
        (
            {"on_calendar": {**SEVEN, "day_of_month": [30, 31]}},
            {"on_calendar": {**SEVEN, "month": 2}},
            False,
        ),
    ],
)
def test_two_timers_at_once(one: dict[str, Any], other: dict[str, Any], is_warned: bool) -> None:
    """Two timers that want one target in the same minute are pointed out."""
    found = warnings(timer("a", **one), timer("b", **other))
    assert found == ([SAME_MINUTE] if is_warned else [])


def test_disabled_target() -> None:
    """A timer that is enabled while its target is not is pointed out."""
    hourly = timer(on_calendar={"minute": 0})
    reason = 'its target "job" is disabled, so each firing is missed'
    assert warnings(hourly, job={"enabled": False}) == [reason]
    assert warnings({**hourly, "enabled": False}, job={"enabled": False}) == []


def test_switch() -> None:
    """Timers behind a closed switch are pointed out, and so is a file that starts nothing."""
    reason = "timers are defined and switched off; timers = true under [supervisor] switches them on"
    assert warnings(timer(on_calendar={"minute": 0}), timers=False) == [reason]
    assert warnings(timers=False) == []
    assert warnings(enabled=False) == ["enabled is false, so nothing in this file is started"]
    [empty] = config_of(PATH).warnings
    assert empty.reason == "the file defines no service and no timer"


def test_tilde() -> None:
    """Anyone who writes a home directory as ~ is told that it is not one here."""
    [store] = warnings(store="~/duly.db")
    assert store == 'store "~/duly.db" is taken as it is: ~ does not stand for a home directory here'
    [cwd] = warnings(job={"cwd": "~/x"})
    assert cwd.endswith("~ does not stand for a home directory here")
    assert warnings(job={"cwd": "/home/x"}, store="/a~b") == []


def test_many_timers_on_one_target() -> None:
    """A thousand timers on one target are held against each other in a moment."""
    timers = [
        timer(f"t{number}", on_calendar={"minute": number % 60, "hour": number // 60})
        for number in range(1000)
    ]
    assert warnings(*timers) == []


def test_overlaps_that_are_not_missed() -> None:
    """Of timers that queue, or replace the run before, no overlap is a reason for a warning."""
    given = {"minute": 0, "hour": 3}
    services = [{"id": "job", "type": "oneshot", "command": "true", "timeout_sec": 200_000}]
    timers = [
        {"id": name, "target": "job", "on_calendar": given, "overlap": overlap}
        for name, overlap in (("a", "queue"), ("b", "replace"), ("c", "skip"))
    ]
    config = config_of(Path("duly.toml"), services, timers, {"timers": True})
    assert {warned.id for warned in config.warnings} == {"c"}
