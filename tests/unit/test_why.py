"""Why a task ran or did not: one small trace for each kind of answer, and any number of random ones."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly.core.task import Task
from duly.core.timetable import schedule_of
from duly.verify.dues import Dues, face_at, instant_us
from duly.verify.judge import Judge
from duly.verify.reasons.answers import (
    Answer,
    Kind,
    Skip,
    UnknownTaskError,
    Words,
    minute_of,
    run_text,
)
from duly.verify.reasons.chronicle import CauseKind, Chronicle, DueQuery, Ending, TracedRun, latest
from duly.verify.reasons.why import why, why_latest
from duly.verify.trace import ClockStep, Fault, RunStart, Trace
from duly.verify.worlds import UNREGISTERED, World
from duly.web.task_memory import TaskMemory
from tests.property.traces import encoded, random_trace

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE_MS = 60_000
EVERY_MINUTE = [["a", "* * * * *", 30_000]]
Line = dict[str, Any]


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def civil(text: str) -> datetime:
    return datetime.fromisoformat(text)


def trace(lines: Sequence[Line], **header: Any) -> Trace:
    first = {"ev": "Header", "v": 1, "tz": "UTC", **header}
    return Trace([json.dumps(line).encode() + b"\n" for line in (first, *lines)])


def event(minutes: float, name: str, **facts: Any) -> Line:
    return {"t": instant_us(at(minutes)) / 1000, "ev": name, **facts}


def up(minutes: float = 0, regs: Sequence[Any] = EVERY_MINUTE, *, call: int = 1, **facts: Any) -> list[Line]:
    begun, done = (
        event(minutes, "InitStart", call=call, regs=regs),
        event(minutes, "InitEnd", call=call, ok=True),
    )
    return [begun | facts, done | facts]


def start(minutes: float, run: int, **facts: Any) -> Line:
    return event(minutes, "RunStart", id="a", run=run, **facts)


def end(minutes: float, run: int, *, ok: bool = True, **facts: Any) -> Line:
    return event(minutes, "RunEnd", id="a", run=run, ok=ok, **facts)


def run(minutes: float, number: int, *, ok: bool = True) -> list[Line]:
    return [start(minutes, number), end(minutes + 0.1, number, ok=ok)]


def said(answer: Answer) -> tuple[Kind, str, datetime | None]:
    return answer.kind, answer.reason, face_at(answer.run.started_us, UTC) if answer.run else None


# --- dues ---


def test_answered() -> None:
    """A due that a start followed at once is answered by it, and late by what lies between."""
    answer = why(trace([*up(0.5), *run(0.5, 1), *run(1.25, 2)]), "a", at(1))
    assert said(answer) == (Kind.ANSWERED, "on time", at(1.25))
    assert (answer.late_us, answer.dues_answered, answer.is_perhaps) == (15_000_000, 1, False)
    assert (
        answer.sentence == '"a" was due at 2026-01-01 12:01, and the run at 12:01:15, 15 s late, answered it.'
    )


def test_registered_within_the_minute() -> None:
    """The minute in which a task is first registered counts, and the run says so."""
    answer = why(trace([*up(0.5), *run(0.5, 1)]), "a", at(0))
    assert said(answer) == (Kind.ANSWERED, "registration", at(0.5))
    assert [cause.kind for cause in answer.runs[0].causes] == [CauseKind.REGISTRATION]


def test_merged_while_running() -> None:
    """Dues that come during a run are merged into the start after it."""
    lines = [*up(), start(0, 1), end(2.5, 1), *run(2.5, 2)]
    answer = why(trace(lines), "a", at(1))
    assert said(answer) == (Kind.MERGED, "running", at(2.5))
    assert (answer.dues_answered, answer.times) == (2, {"running_since": instant_us(at(0))})
    assert "it was running (since 12:00)" in answer.sentence
    assert "this and 1 other due" in answer.sentence


def test_merged_after_sleep() -> None:
    """Dues that the clock jumped over are merged into the start that follows."""
    step = event(10, "ClockStep") | {"from": event(1.5, "")["t"]}
    answer = why(trace([*up(), *run(0, 1), *run(1, 2), step, *run(10, 3)]), "a", at(4))
    assert said(answer) == (Kind.MERGED, "clock jumped", at(10))
    assert answer.dues_answered == 9


def test_merged_with_later_dues() -> None:
    """A due that no start followed before the next is merged with that one, which is answered."""
    lines = [*up(), *run(0, 1), *run(3.5, 2)]
    assert said(why(trace(lines), "a", at(2))) == (Kind.MERGED, "several dues", at(3.5))
    assert said(why(trace(lines), "a", at(3))) == (Kind.ANSWERED, "on time", at(3.5))


def test_down_after_crash() -> None:
    """A due in a downtime is answered by the first run after the next initialize."""
    lines = [*up(), start(0, 1), event(0.5, "Crash"), *up(5.5), start(5.5, 2)]
    answer = why(trace(lines), "a", at(3))
    assert said(answer) == (Kind.DOWN, "crashed", at(5.5))
    assert answer.times == {"down_since": instant_us(at(0.5)), "down_until": instant_us(at(5.5))}
    answer = why(trace(lines), "a", at(5))
    assert [cause.kind for cause in answer.runs[0].causes] == [CauseKind.DUE, CauseKind.INTERRUPTED]


def test_crash_seen_by_the_process_after() -> None:
    """A process that another follows without a stop had crashed at its last event, also while running."""
    lines = [
        *up(proc="p"),
        start(0, 1, proc="p"),
        event(1.5, "Tick", proc="p"),
        *up(5.5, proc="q"),
        start(6, 1),
    ]
    assert said(why(trace(lines), "a", at(1)))[:2] == (Kind.MERGED, "running")
    assert said(why(trace(lines), "a", at(2))) == (Kind.DOWN, "crashed", at(6))


@pytest.mark.parametrize(
    ("reason", "lines"),
    [
        ("stopped", [event(0.2, "StopStart", call=2), event(0.3, "StopEnd", call=2)]),
        (
            "initialize failed",
            [
                event(0.2, "InitStart", call=2, regs=EVERY_MINUTE),
                event(0.3, "InitEnd", call=2, ok=False),
            ],
        ),
    ],
)
def test_down_for_other_reasons(reason: str, lines: list[Line]) -> None:
    """What ended activity is named."""
    answer = why(trace([*up(), *run(0, 1), *lines, *up(2.5, call=3), *run(2.5, 2)]), "a", at(2))
    assert said(answer) == (Kind.DOWN, reason, at(2.5))


@pytest.mark.parametrize(
    ("reason", "lines"),
    [
        ("running", [start(0, 1), event(2.5, "Tick")]),
        ("crashed", [start(0, 1), event(0.5, "Crash"), event(2.5, "Tick")]),
        ("stopped", [*run(0, 1), event(0.5, "StopStart", call=2), event(2.5, "StopEnd", call=2)]),
        ("waiting", [*run(0, 1), event(2.5, "End")]),
    ],
)
def test_pending(reason: str, lines: list[Line]) -> None:
    """A due that nothing has answered when the trace ends waits, for a reason."""
    answer = why(trace([*up(), *lines]), "a", at(2))
    assert said(answer) == (Kind.PENDING, reason, None)
    assert answer.times["end"] == instant_us(at(2.5))


@pytest.mark.parametrize(
    ("reason", "regs"),
    [("removed", []), ("changed", [["a", "* * * * *", 1]]), ("changed", [["a", "0 5 * * *", 1]])],
)
def test_cleared(reason: str, regs: list[Any]) -> None:
    """A due falls away with the registration that it belongs to."""
    lines = [*up(), start(0, 1), *up(2.5, regs, call=2), end(3, 1), event(9, "Tick")]
    answer = why(trace(lines), "a", at(1))
    assert said(answer) == (Kind.CLEARED, reason, None)
    assert answer.times == {"cleared": instant_us(at(2.5))}


def test_changed_in_a_due_minute() -> None:
    """A due that a new registration takes up again is answered under that one."""
    lines = [*up(), start(0, 1), *up(2.5, [["a", "* * * * *", 1]], call=2), end(2.6, 1), *run(2.6, 2)]
    assert said(why(trace(lines), "a", at(2))) == (Kind.MERGED, "running", at(2.6))


# --- minutes that are no dues ---


HOURLY = [["a", "0 * * * *", 0]]


def test_not_due() -> None:
    """A minute that the cron text does not name says which dues lie around it."""
    answer = why(trace([*up(0, HOURLY), *run(0, 1), event(50, "Tick")]), "a", at(30))
    assert said(answer) == (Kind.NOT_DUE, "not named", None)
    assert answer.times == {"before": instant_us(at(0)), "after": instant_us(at(60))}


def test_not_registered() -> None:
    """A minute in which another list was in effect says since when the task was in it."""
    lines = [*up(0, [["b", "* * * * *", 0]]), *up(10, call=2), *run(10, 1), *up(20, [], call=3)]
    answer = why(trace([*lines, event(30, "Tick")]), "a", at(5))
    assert said(answer) == (Kind.NOT_REGISTERED, "not in the list", None)
    assert answer.times == {"registered_from": instant_us(at(10))}
    answer = why(trace([*lines, event(30, "Tick")]), "a", at(25))
    assert answer.times == {"registered_until": instant_us(at(20))}


def test_another_cron_text() -> None:
    """A minute that only an earlier or a later cron text names says which was in effect."""
    lines = [*up(0, HOURLY), *up(30, [["a", "10,40 * * * *", 0]], call=2), event(90, "Tick")]
    answer = why(trace(lines), "a", at(10))
    assert said(answer) == (Kind.NOT_REGISTERED, "another cron text", None)
    assert 'was "0 * * * *" then, and "10,40 * * * *" only from 2026-01-01 12:30 on' in answer.sentence
    assert 'and "0 * * * *" only until 2026-01-01 12:30' in why(trace(lines), "a", at(60)).sentence


def test_outside_of_the_trace() -> None:
    """Of what lies before or after the trace nothing is known."""
    assert said(why(trace([*up(5), event(6, "Tick")]), "a", at(2)))[:2] == (
        Kind.NOT_REGISTERED,
        "before the trace",
    )
    assert said(why(trace([*up(5), event(6, "Tick")]), "a", at(7)))[:2] == (Kind.AHEAD, "after the trace")


def test_never_due() -> None:
    """Without a time, a task that has not been due yet says when it will be."""
    answer = why(trace(up(1, HOURLY)), "a")
    assert (answer.kind, answer.minute_us) == (Kind.AHEAD, instant_us(at(60)))


def test_interval_from_before_the_trace() -> None:
    """When an interval is due that the store may know already, nobody can say; no run is put down to it."""
    daily = [["a", "@every 86400s", 300_000]]
    lines = [*up(0, daily), *run(1, 1, ok=False), *run(6.5, 2), event(7, "Tick")]
    answer = why(trace(lines, store="unknown"), "a")
    assert (answer.kind, answer.reason) == (Kind.AHEAD, "never due in the trace")
    assert answer.minute_us == instant_us(at(24 * 60)), "if it is new"
    assert why_latest(trace(lines, store="unknown"), "a", 5) == []
    later = why(trace(lines, store="unknown"), "a", at(6))
    assert [cause.kind for cause in later.runs[0].causes] == [CauseKind.RETRY]


def test_skipped_minute_of_a_task_with_a_zone() -> None:
    """Whether a schedule names a minute that did not occur is seen by the clocks of its own zone."""
    regs = [["a", "TZ=Europe/Berlin 30 2 * * *", 0]]
    lines = [
        {"t": 1774742400000 + 3_600_000 * hour, "ev": name, **facts}
        for hour, name, facts in (
            (0, "InitStart", {"call": 1, "regs": regs}),
            (0, "InitEnd", {"call": 1, "ok": True}),
            (9, "Tick", {}),
        )
    ]
    answer = why(trace(lines, tz="Europe/Berlin"), "a", civil("2026-03-29T02:30"))
    assert answer.kind is Kind.SKIPPED
    assert answer.details[0].endswith('"TZ=Europe/Berlin 30 2 * * *" names it.')


def test_unknown_task() -> None:
    """A task that is in no list is an error, with the names that come close."""
    with pytest.raises(UnknownTaskError) as caught:
        why(trace(up(0, [["backup", "* * * * *", 0], ["report", "* * * * *", 0]])), "bakcup")
    assert caught.value.close == ["backup"]


# --- Berlin ---

NIGHTLY = [["a", "30 2 * * *", 0]]
# 2026-03-29: 02:00 CET -> 03:00 CEST.            2026-10-25: 03:00 CEST -> 02:00 CET.


def berlin(first: str, last: str) -> Trace:
    days = [instant_us(datetime.fromisoformat(day)) / 1000 for day in (first, last)]
    lines = [
        {"t": days[0], "ev": "InitStart", "call": 1, "regs": NIGHTLY},
        {"t": days[0], "ev": "InitEnd", "call": 1, "ok": True},
        {"t": days[1], "ev": "Tick"},
    ]
    return trace(lines, tz="Europe/Berlin")


def test_skipped_minute() -> None:
    """A minute that the clocks skipped is a legal question."""
    answer = why(berlin("2026-03-28T12:00Z", "2026-03-30T12:00Z"), "a", civil("2026-03-29T02:30"))
    assert (answer.kind, answer.minute_us, answer.runs) == (Kind.SKIPPED, None, ())
    assert "the clocks went from 02:00 to 03:00" in answer.sentence
    assert answer.details[0] == 'Its cron text "30 2 * * *" names it.'
    assert answer.times["after"] == instant_us(datetime(2026, 3, 30, 0, 30, tzinfo=UTC))


def test_repeated_minute() -> None:
    """The second showing of a minute is none of its dues; without an offset the first is meant."""
    second = datetime.fromisoformat("2026-10-25T02:30+01:00")
    answer = why(berlin("2026-10-24T12:00Z", "2026-10-26T12:00Z"), "a", second)
    first = instant_us(datetime.fromisoformat("2026-10-25T02:30+02:00"))
    assert (answer.kind, answer.times["first_shown"]) == (Kind.REPEATED, first)
    answer = why(berlin("2026-10-24T12:00Z", "2026-10-26T12:00Z"), "a", civil("2026-10-25T02:30"))
    assert (answer.kind, answer.minute_us) == (Kind.PENDING, first)
    assert "2026-10-25 02:30 +0200" in answer.sentence


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"])
def test_skips_are_found_exactly(zone: str) -> None:
    """Wherever the clocks of 2026 leave a minute out, it is found, and no other is."""
    minute = civil("2026-01-01")
    skips = set()
    for _ in range(365 * 96):
        minute += timedelta(minutes=15)
        found = minute_of(minute, ZoneInfo(zone))
        if isinstance(found, Skip):
            skips.add(found.at_us)
            assert found.before <= minute < found.after
        else:
            assert face_at(found, ZoneInfo(zone)).replace(tzinfo=None, fold=0) == minute
    assert len(skips) == 1


# --- runs ---


def test_runs_of_the_minute() -> None:
    """Every run of the minute says why it ran and what became of it."""
    lines = [*up(regs=[["a", "* * * * *", 6_000]]), *run(0, 1, ok=False), start(0.2, 2), event(0.5, "Crash")]
    answer = why(trace([*lines, *up(0.6, [["a", "* * * * *", 6_000]]), start(0.6, 3)]), "a", at(0))
    assert [(one.ending, [cause.kind for cause in one.causes]) for one in answer.runs] == [
        (Ending.FAILED, [CauseKind.REGISTRATION]),
        (Ending.CUT_OFF, [CauseKind.RETRY]),
        (Ending.RUNNING, [CauseKind.INTERRUPTED]),
    ]
    assert [run_text(one, Words(UTC)) for one in answer.runs] == [
        "failed after 6 s; because it was registered within the minute of 12:00, which its cron text names",
        "cut off after 18 s; because a retry was due after the failure at 12:00:06",
        "still running; because a run was cut off by the crash at 12:00:30",
    ]


def test_run_without_a_cause() -> None:
    """A run that nothing accounts for is shown as such."""
    answer = why(trace([*up(), *run(0, 1), *run(0.5, 2)]), "a", at(0))
    assert run_text(answer.runs[1], Words(UTC)) == "ok after 6 s; for no cause that the trace shows"


def test_running_since_before_the_trace() -> None:
    """A rotated file begins with runs in flight, of which it does not say since when."""
    answer = why(trace([*up(0.5), event(1.5, "Tick")], store="unknown", running=[["a", 7]]), "a", at(1))
    assert answer.reason == "running"
    assert "since before the trace" in answer.sentence


# --- what the trace leaves open ---


def test_perhaps_registered_in_the_minute_before() -> None:
    """When initialize straddles a minute, whether the minute of its call counted is open."""
    lines = [event(0.9, "InitStart", call=1, regs=EVERY_MINUTE), event(1.1, "InitEnd", call=1, ok=True)]
    answer = why(trace([*lines, *run(1.2, 1)]), "a", at(0))
    assert (answer.kind, answer.is_perhaps) == (Kind.MERGED, True)
    assert not why(trace([*lines, *run(1.2, 1)]), "a", at(1)).is_perhaps


def test_perhaps_cleared_by_a_crash_inside_initialize() -> None:
    """A list of which nobody knows whether it took effect may have cleared a due."""
    other = [["a", "* * * * *", 1]]
    lines = [*up(), start(0, 1), event(1.5, "InitStart", call=2, regs=other), event(1.6, "Crash")]
    answer = why(trace([*lines, *up(3.5), *run(3.5, 2)]), "a", at(1))
    assert (answer.kind, answer.is_perhaps) == (Kind.MERGED, True)
    assert "Perhaps the list" in answer.details[0]


def test_perhaps_not_written() -> None:
    """An end within the persist window before a crash may be lost: then the run after was a repetition."""
    lines = [*up(), start(0, 1), end(0.5, 1), event(0.5, "Crash"), *up(0.7), start(0.7, 2)]
    answer = why(trace(lines, persist_window_ms=1000), "a", at(0))
    [cause] = answer.runs[1].causes
    assert (cause.kind, cause.is_perhaps) == (CauseKind.INTERRUPTED, True)


def test_perhaps_from_before_the_trace() -> None:
    """Over a store that may have known the task, its first start may have a cause from before."""
    answer = why(trace([*up(0.5, HOURLY), *run(0.6, 1)], store="unknown"), "a", at(0))
    assert (answer.kind, answer.is_perhaps) == (Kind.ANSWERED, True)
    assert CauseKind.BEFORE in [cause.kind for cause in answer.runs[0].causes]


# --- many ---


def test_latest_dues() -> None:
    """The latest dues are answered one by one, up to a time if one is given."""
    lines = [*up(), start(0, 1), end(2.5, 1), *run(2.5, 2), event(3.5, "Tick")]
    answers = why_latest(trace(lines), "a", 3)
    assert [(one.kind, one.minute_us) for one in answers] == [
        (Kind.MERGED, instant_us(at(1))),
        (Kind.MERGED, instant_us(at(2))),
        (Kind.PENDING, instant_us(at(3))),
    ]
    assert [one.minute_us for one in why_latest(trace(lines), "a", 9, at(1))] == [
        instant_us(at(0)),
        instant_us(at(1)),
    ]


def test_ten_years_down() -> None:
    """A downtime of ten years is counted up to a bound, and the latest dues before its end are found."""
    years = 10 * 365 * 24 * 60
    lines = [*up(), *run(0, 1), event(0.5, "Crash"), *up(years), *run(years, 2)]
    answers = why_latest(trace(lines), "a", 2)
    assert [one.minute_us for one in answers] == [instant_us(at(years - 1)), instant_us(at(years))]
    assert "more than 1,000 other dues" in answers[0].sentence
    assert said(why(trace(lines), "a", at(years // 2))) == (Kind.DOWN, "crashed", at(years))


def test_memory_is_bounded() -> None:
    """What is kept depends on what is asked, not on how long the trace is."""
    lines: list[Line] = up()
    for minute in range(500):
        lines += run(minute, minute)
    read = trace(lines)
    chronicle = Chronicle(read.header, "a", DueQuery(count=3))
    chronicle.follow(read)
    assert (len(chronicle.arrivals), len(chronicle.runs), len(chronicle.tenures)) == (3, 1, 2)


@pytest.mark.parametrize(
    ("cron", "count"), [("* * * * *", 100), ("0 5 * * *", 3), ("0 0 29 2 *", 2), ("0 0 1 1 *", 1)]
)
def test_latest_finds_the_last_dues(cron: str, count: int) -> None:
    """Looking back finds the same dues as walking there."""
    dues = Dues(cron, ZoneInfo("Europe/Berlin"))
    to_us, from_us = instant_us(NOON), instant_us(NOON - timedelta(days=9000 if count < 3 else 30))
    assert latest(dues, from_us, to_us, count) == list(dues.between(from_us, to_us))[-count:]


def test_faults_of_the_trace() -> None:
    """A trace with faults of its own is answered from, and the answer says that it may mislead."""
    lines = [*up(), *run(0, 1), event(2, "Tick"), *run(1, 2)]
    answer = why(trace(lines), "a", at(1))
    assert answer.is_perhaps
    assert "duly verify lists them" in answer.details[-1]
    assert all(one.is_perhaps for one in why_latest(trace(lines), "a", 9))


# --- from a store ---


def remembered(
    *,
    answered: float = -1,
    last: float | None = None,
    zone: tzinfo = UTC,
    cron: str = "* * * * *",
    **state: Any,
) -> TaskMemory:
    """What a store knows at 12:10 of a task registered at 12:00:30."""
    times = {name: instant_us(at(minutes)) for name, minutes in state.items() if name.endswith("_us")}
    schedule = schedule_of(cron, zone)
    answered_us = instant_us(at(answered))
    task = Task(
        1,
        "a",
        schedule,
        0,
        instant_us(at(0.5)),
        answered_us,
        schedule.due_after(answered_us),
        last_attempt_us=instant_us(at(last)) if last is not None else None,
        **{**state, **times},
    )
    return TaskMemory(task, zone, instant_us(at(10)))


EVERY_TWO = {"cron": "@every 120s", "answered": 8.5}
MINUTE_AFTER = {"cron": "@after 60s", "answered": 8, "last": 8}


@pytest.mark.parametrize(
    ("state", "asked", "kind", "reason", "is_perhaps"),
    [
        ({"answered": 9.2, "last": 9.2}, 9, Kind.ANSWERED, "last run", False),
        ({"answered": 9.2, "last": 9.2}, 8, Kind.ANSWERED, "earlier run", False),
        ({"answered": 9, "last": 8.99}, 9, Kind.ANSWERED, "last run", False),
        ({"answered": 9.2, "last": 9.2, "last_failure_us": 9.1}, 9, Kind.ANSWERED, "last run", True),
        ({"answered": 9.2, "last": 9.2}, 10, Kind.PENDING, "waiting", False),
        ({"answered": 9.2, "last": 9.2, "running_since_us": 9.2}, 10, Kind.PENDING, "running", False),
        ({"answered": 9.2, "last": 7.2, "due_stands": True}, 9, Kind.PENDING, "waiting", False),
        ({"answered": 9.2, "last": 9.2}, 11, Kind.AHEAD, "yet to come", False),
        ({"answered": 9.2, "last": 9.2}, -1, Kind.NOT_REGISTERED, "registered later", False),
        ({"cron": "0 * * * *", "answered": 9, "last": 9}, 0, Kind.ANSWERED, "last run", True),
        ({"cron": "0 * * * *", "answered": 9, "last": 9}, 5, Kind.NOT_DUE, "not named", False),
        ({"cron": "0 * * * *", "answered": 9, "last": 9}, 30, Kind.AHEAD, "yet to come", False),
        ({"answered": 9.2, "last": 9.2, "paused": True}, 10, Kind.PENDING, "paused", False),
        ({**EVERY_TWO, "last": 8.5}, 8, Kind.ANSWERED, "last run", False),
        ({**EVERY_TWO, "last": 8.5}, 6, Kind.ANSWERED, "earlier run", False),
        ({**EVERY_TWO, "last": 8.5}, 9, Kind.NOT_DUE, "not named", False),
        ({**EVERY_TWO, "last": 8.5}, 10, Kind.AHEAD, "yet to come", False),
        ({**EVERY_TWO, "last": 8.5}, 12, Kind.AHEAD, "yet to come", False),
        (EVERY_TWO, 0, Kind.NOT_DUE, "not named", False),
        (EVERY_TWO, -1, Kind.NOT_REGISTERED, "registered later", False),
        ({**MINUTE_AFTER, "last_success_us": 9}, 10, Kind.PENDING, "waiting", False),
        ({**MINUTE_AFTER, "last_success_us": 9}, 7, Kind.NOT_REGISTERED, "registered later", False),
        ({**MINUTE_AFTER, "last_success_us": 9.5}, 10, Kind.AHEAD, "yet to come", False),
        (
            {"cron": "TZ=Europe/Berlin 5 13 * * *", "answered": 5, "last": 5},
            5,
            Kind.ANSWERED,
            "last run",
            False,
        ),
        ({"cron": "+20s 5 * * * *", "answered": 5.4, "last": 5.4}, 5, Kind.ANSWERED, "last run", False),
        ({"cron": "@at 2026-01-01T12:05:00Z", "answered": 5, "last": 5}, 5, Kind.ANSWERED, "last run", False),
    ],
)
def test_store(state: dict[str, Any], asked: float, kind: Kind, reason: str, *, is_perhaps: bool) -> None:
    """A store answers from its latest run and from up to where every due is answered."""
    answer = remembered(**state).why(at(asked))
    assert (answer.kind, answer.reason, answer.is_perhaps) == (kind, reason, is_perhaps)
    assert answer.is_from_store


def test_latest_dues_of_a_store() -> None:
    """Without a time, the latest due up to now is meant; one that never came says when it will."""
    assert remembered(answered=10, last=10.0).why().minute_us == instant_us(at(10))
    assert len(remembered(answered=10, last=10.0).why_latest(100)) == 11
    assert len(remembered(answered=10, last=10.0).why_latest(100, at(4))) == 5
    assert remembered(cron="0 5 * * *").why().minute_us == instant_us(at(17 * 60))
    assert remembered(cron="0 5 * * *").why_latest(3) == []


def test_skipped_minute_of_a_store() -> None:
    """A minute that does not occur needs no trace."""
    answer = remembered(zone=ZoneInfo("Europe/Berlin"), cron="30 2 * * *").why(civil("2026-03-29T02:30"))
    assert answer.kind is Kind.SKIPPED


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ({"last_success_us": 9.5}, Ending.OK),
        ({"last_failure_us": 9.5}, Ending.FAILED),
        ({"running_since_us": 9.2}, Ending.RUNNING),
        ({"interrupted": True}, Ending.CUT_OFF),
        ({}, Ending.UNKNOWN),
    ],
)
def test_latest_run_of_a_store(state: dict[str, Any], ending: Ending) -> None:
    """What became of the latest run follows from what was written since."""
    [found] = remembered(answered=9.2, last=9.2, **state).why(at(9)).runs
    assert found.ending is ending


# --- random traces ---


def dues_of(lines: Sequence[bytes], task: str) -> Iterator[int]:
    """Every due instant, within a trace, of every cron text that the task is ever given."""
    read = Trace(lines)
    times = [item.at_us for item in read if not isinstance(item, Fault)]
    crons = {
        cron
        for line in lines
        for name, cron, _ in json.loads(line).get("regs", ())
        if name == task and cron != "* * *"
    }
    for cron in sorted(crons - {"60 * * * *"}):
        dues = Dues(cron, ZoneInfo(read.header.tz))
        yield from list(dues.between(min(times) - 1, max(times)))[:40]


RANDOM = pytest.mark.parametrize(
    "seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 600))]
)


@pytest.mark.heavy
@RANDOM
def test_every_due_has_one_answer(seed: int) -> None:
    """In any trace every due has an answer, whose run is in the trace and did not start before it."""
    lines = encoded(random_trace(seed))
    items = [item for item in Trace(lines) if not isinstance(item, Fault)]
    starts = {
        (item.at_us, item.event.run)
        for item in items
        if isinstance(item.event, RunStart) and item.event.id == "a"
    }
    is_set_back = any(
        isinstance(item.event, ClockStep) or item.at_us < before.at_us for before, item in pairwise(items)
    )
    for due_us in dues_of(lines, "a"):
        try:
            answer = why(Trace(lines), "a", face_at(due_us, UTC))
        except UnknownTaskError:
            assert not starts
            return
        has_run = answer.kind in {Kind.ANSWERED, Kind.MERGED, Kind.DOWN}
        assert has_run == (answer.run is not None)
        if answer.run is not None and not is_set_back:
            assert (answer.run.started_us, answer.run.number) in starts
            assert answer.run.started_us >= due_us


@RANDOM
def test_every_start_for_a_due_is_named_by_one(seed: int) -> None:
    """A run that started because of dues is what at least one of them is answered by."""
    lines = encoded(random_trace(seed))
    try:
        answers = why_latest(Trace(lines), "a", 10_000)
    except UnknownTaskError:
        return
    named = {id_of(one.run) for one in answers if one.run is not None}
    for run_ in runs_of(lines):
        is_for_due = any(cause.kind in {CauseKind.DUE, CauseKind.REGISTRATION} for cause in run_.causes)
        assert not is_for_due or id_of(run_) in named


def id_of(one: TracedRun) -> tuple[int, int | None]:
    return one.started_us, one.number


def runs_of(lines: Sequence[bytes]) -> Iterator[TracedRun]:
    for item in list(Trace(lines)):
        if not isinstance(item, Fault) and isinstance(item.event, RunStart) and item.event.id == "a":
            yield from why(Trace(lines), "a", face_at(item.at_us, UTC)).runs


@RANDOM
def test_agrees_with_the_judge(seed: int) -> None:
    """What the chronicle takes for possible is, event by event, what the judge does."""
    read = Trace(encoded(random_trace(seed)))
    judge, chronicle = Judge(read.header), Chronicle(read.header, "a", DueQuery())
    for item in read:
        judge.take(item)
        if isinstance(item, Fault):
            continue
        chronicle.take(item)
        task = judge.tasks.get("a")
        assert states(chronicle.worlds) == states(task.worlds if task else (UNREGISTERED,))
        assert judge.is_active == (chronicle.down is None)


def states(worlds: Sequence[World]) -> set[tuple[Any, ...]]:
    return {
        (
            world.config and (world.config.cron, world.config.delay_us),
            world.next_us,
            world.stands,
            world.retry_us,
            world.interrupted,
        )
        for world in worlds
    }
