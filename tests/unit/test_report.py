"""What is told of a verification, in text and in JSON."""

import json
from datetime import UTC, datetime

import pytest

from duly.verify.properties import PROPERTIES, Outcome, Violation, instant_text
from duly.verify.reporting.report import (
    MOST_SHOWN,
    Chain,
    LinePlace,
    Report,
    TextRole,
    as_dict,
    event_text,
    text_lines,
)
from duly.verify.trace import (
    ClockStep,
    Crash,
    End,
    Fault,
    Header,
    InitEnd,
    InitStart,
    Position,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    TraceEvent,
    zone_of,
)

BERLIN = zone_of("Europe/Berlin")
NINE_MS = int(datetime(2026, 1, 5, 8, tzinfo=UTC).timestamp() * 1000)
"""Nine o'clock in Berlin."""


def position(line: int, event: TraceEvent) -> Position:
    return Position(line, round(event.t * 1000), event)


def violation(
    name: str, line: int, *events: Position, task: str | None = "backup", reason: str = ""
) -> Violation:
    return Violation(name, task, NINE_MS * 1000, reason or f"why {name}", events, line)


def outcome(*violations: Violation, faults: tuple[Fault, ...] = ()) -> Outcome:
    made = Outcome(events=7, starts=3, crashes=1, first_us=NINE_MS * 1000, last_us=NINE_MS * 1000 + 1_500_000)
    for each in violations:
        made.violations.append(each)
        made.tallies[each.property].violated += 1
        made.tallies[each.property].checked += 1
    made.faults += faults
    made.fault_count = len(faults)
    return made


def report(made: Outcome, *names: str) -> Report:
    chain = Chain()
    for index, name in enumerate(names):
        chain.begin(name, 1 + 10 * index)
    return Report(made, Header(v=1, tz="Europe/Berlin", impl="test 1"), chain)


def text(seen: Report) -> list[str]:
    return ["".join(piece.text for piece in line) for line in text_lines(seen)]


START = position(4, RunStart(t=NINE_MS, id="backup", run=3))
AGAIN = position(6, RunStart(t=NINE_MS + 250, id="backup", run=4))


def test_every_property_has_a_line() -> None:
    """Each property is told in one line with its verdict and numbers, in the order of the model."""
    made = outcome()
    made.tallies["S1a"].checked = 12_345
    lines = text(report(made))
    assert [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in PROPERTIES] == [
        *PROPERTIES
    ]
    [seen] = [line for line in lines if line.startswith("  S1a")]
    assert seen.split(maxsplit=5) == ["S1a", "holds", "12,345", "0", "0", PROPERTIES["S1a"]]


def test_closing_line() -> None:
    """The last line says how much was read, from when to when, and the verdict."""
    assert text(report(outcome()))[-1] == (
        "7 events, 3 starts, 1 crash, from 2026-01-05 09:00:00+01:00 to 2026-01-05 09:00:01.500+01:00: holds"
    )


def test_violation_with_its_evidence() -> None:
    """A violation is a sentence and the events that show it, the decisive one marked."""
    lines = text(report(outcome(violation("S1c", 6, START, AGAIN, reason="it ran already"))))
    first = lines.index("1. S1c: it ran already")
    assert lines[first + 1 : first + 3] == [
        "     line 4  2026-01-05 09:00:00+01:00      RunStart backup, run 3",
        "   > line 6  2026-01-05 09:00:00.250+01:00  RunStart backup, run 4",
    ]
    assert lines[-1].endswith(": violated")


def test_objections_to_one_event_stand_together() -> None:
    """What several properties say of one event is one finding, and what they say alike is said once."""
    made = outcome(
        violation("T2", 6, AGAIN, reason="it ran already"),
        violation("S1d", 6, START, AGAIN, reason="it had no cause"),
        violation("S1c", 6, AGAIN, reason="it ran already"),
        violation("S1c", 6, AGAIN, task="other"),
    )
    lines = text(report(made))
    first = lines.index("1. S1c, T2: it ran already")
    assert lines[first + 1] == "   S1d: it had no cause"
    assert [line.strip().split()[-1] for line in lines[first + 2 : first + 4]] == ["3", "4"]
    assert "2. S1c: why S1c" in lines


def test_too_late() -> None:
    """Something that did not happen is shown by the line at which it was too late."""
    lines = text(report(outcome(violation("L1", 9, START))))
    assert "   > line 9                             by then it was too late" in lines


def test_many_violations_are_counted() -> None:
    """Of each property ten violations are told, and the others are counted."""
    many = [violation("S1d", 10 + index, AGAIN) for index in range(MOST_SHOWN + 2)]
    made = outcome(*many, violation("T3", 100, AGAIN))
    made.tallies["S1d"].violated += 1000
    seen = report(made)
    assert [finding.number for finding in seen.shown] == list(range(1, MOST_SHOWN + 2))
    assert seen.not_shown == {"S1d": 1002}
    assert "More violations, not shown here: 1,002 of S1d." in text(seen)


def test_faults_are_told_with_their_lines() -> None:
    """Faults of the trace are told apart from violations, in the file where they stand."""
    faults = tuple(Fault(line, f"fault {line}") for line in range(2, 2 + MOST_SHOWN + 3))
    seen = report(outcome(faults=faults), "a.jsonl", "b.jsonl")
    lines = text(seen)
    assert "  a.jsonl line 2: fault 2" in lines
    assert "  b.jsonl line 1: fault 11" in lines
    assert "  and 3 more" in lines
    assert lines[-1].endswith(": inconclusive")
    assert seen.exit_code == 2


def test_caveats() -> None:
    """Open deadlines and doubtful objections are explained before the verdict."""
    made = outcome()
    made.tallies["L1"].open = 2
    made.tallies["S1d"].doubtful = 1
    lines = text(report(made))
    assert "2 deadlines lie at or beyond the end of the trace; a longer recording decides them." in lines
    assert "1 objection after the first fault of the trace is not held against the scheduler." in lines


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (outcome(), 0),
        (outcome(violation("S1d", 6)), 1),
        (outcome(faults=(Fault(3, "torn"),)), 2),
        (outcome(violation("S1d", 6), faults=(Fault(3, "torn"),)), 1),
    ],
)
def test_exit_codes(made: Outcome, code: int) -> None:
    """A violation is 1 whatever else there is; a fault of the trace alone is 2."""
    assert report(made).exit_code == code


def test_open_deadlines_are_no_error() -> None:
    """A trace that only ends too early exits with 0."""
    made = outcome()
    made.tallies["L3"].open = 1
    assert made.overall == "inconclusive"
    assert report(made).exit_code == 0


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (InitStart(t=0, call=1, regs=[("a", "* * * * *", 0.0)]), "InitStart call 1, 1 task"),
        (InitEnd(t=0, call=1, ok=True), "InitEnd call 1: returned"),
        (InitEnd(t=0, call=1, ok=False), "InitEnd call 1: raised"),
        (StopStart(t=0, call=2), "StopStart call 2"),
        (StopEnd(t=0, call=2), "StopEnd call 2: returned"),
        (StopEnd(t=0, call=2, ok=False), "StopEnd call 2: raised"),
        (InitEnd(t=0, call=1, ok=False, void=True), "InitEnd call 1: given up"),
        (RunStart(t=0, id="a"), "RunStart a"),
        (RunEnd(t=0, id="a", run=7, ok=False), "RunEnd a, run 7: failed"),
        (Crash(t=0), "Crash"),
        (ClockStep(t=0, origin=NINE_MS), "ClockStep from 2026-01-05 09:00:00+01:00"),
        (End(t=0), "End"),
    ],
)
def test_events_in_words(event: TraceEvent, words: str) -> None:
    """An event keeps its name in the trace, so that it can be searched for there."""
    assert event_text(event, BERLIN) == words


def test_instants_are_as_fine_as_they_need() -> None:
    """Seconds, milliseconds or microseconds are shown, whatever is there."""
    at_us = NINE_MS * 1000
    assert [instant_text(at_us + more, BERLIN)[17:-6] for more in (0, 5_000, 5_001)] == [
        "00",
        "00.005",
        "00.005001",
    ]


def test_places_in_a_chain() -> None:
    """A line of several files is that of the file in which it stands; an empty file takes no line."""
    chain = Chain()
    for name, first in (("a", 1), ("empty", 4), ("b", 4)):
        chain.begin(name, first)
    assert [chain.place(line) for line in (1, 3, 4, 9)] == [
        LinePlace("a", 1),
        LinePlace("a", 3),
        LinePlace("b", 1),
        LinePlace("b", 6),
    ]
    assert Chain().place(5) == LinePlace("", 5)


def test_roles() -> None:
    """Verdicts have the role that fits them, and plain text has none."""
    made = outcome(violation("S1c", 6, AGAIN))
    made.tallies["L1"].open = 1
    roles = {
        line[0].text.strip(): line[1].role
        for line in text_lines(report(made))
        if line and line[0].text.strip() in PROPERTIES
    }
    assert (roles["S1a"], roles["S1c"], roles["L1"]) == (TextRole.GOOD, TextRole.BAD, TextRole.UNSURE)


def test_json() -> None:
    """The object for machines has the same keys in the same order, whatever there is to tell."""
    start = position(2, InitStart(t=NINE_MS, call=1, regs=[("a", "* * * * *", 0.0)]))
    seen = as_dict(report(outcome(violation("S1c", 6, start, AGAIN), faults=(Fault(3, "torn"),)), "a.jsonl"))
    assert list(seen) == list(as_dict(report(Outcome())))
    assert seen["verdict"] == "violated"
    assert seen["from"] == "2026-01-05T09:00:00+01:00"
    assert seen["faults"] == [{"file": "a.jsonl", "line": 3, "reason": "torn", "unknown_event": False}]
    [against] = seen["violations"]
    assert (against["property"], against["task"], against["line"]) == ("S1c", "backup", 6)
    assert [each["decisive"] for each in against["evidence"]] == [False, True]
    assert against["evidence"][0]["event"] == {"ev": "InitStart", "t": NINE_MS, "call": 1, "tasks": 1}
    assert json.loads(json.dumps(seen)) == seen
