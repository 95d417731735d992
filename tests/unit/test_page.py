"""The page of a verification, and what its time lines show."""

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.verify.properties import Outcome, Violation
from duly.verify.reporting.drawing import Drawing
from duly.verify.reporting.history import Stretch, StretchKind, TraceHistory
from duly.verify.reporting.page import page
from duly.verify.reporting.report import Chain, Report
from duly.verify.reporting.timeline import MOST_LANES, MOST_STRETCHES, Pictures, TimeWindow, pictures
from duly.verify.trace import (
    ClockStep,
    Crash,
    End,
    Header,
    InitEnd,
    InitStart,
    Position,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    Trace,
    TraceEvent,
)

ROOT = Path(__file__).parents[2]
BERLIN = ZoneInfo("Europe/Berlin")
NASTY = '"><script>alert(1)</script>'
MINUTE_MS = 60_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp() * 1000)


NINE = ms("2026-01-05T09:00")


def lines(*events: TraceEvent, **header: object) -> list[bytes]:
    first = Header(v=1, tz="Europe/Berlin", **header)  # type: ignore[arg-type]
    return [msgspec.json.encode(each) + b"\n" for each in (first, *events)]


def listed(
    at: float, *tasks: str, cron: str = "* * * * *", call: int = 1, proc: str | None = None
) -> list[TraceEvent]:
    regs = [(task, cron, 60_000.0) for task in tasks]
    return [InitStart(t=at, call=call, regs=regs, proc=proc), InitEnd(t=at + 10, call=call, ok=True)]


def told(events: Iterable[TraceEvent], **header: object) -> list[Stretch]:
    return list(TraceHistory(Trace(lines(*events, **header)), frozenset(), lambda _: True))


def kinds(stretches: Iterable[Stretch]) -> list[tuple[StretchKind, int, int]]:
    return [(each.kind, each.from_us // 1000 - NINE, each.to_us // 1000 - NINE) for each in stretches]


def drawn(events: list[TraceEvent], *violations: Violation) -> tuple[Report, Pictures]:
    outcome = Outcome(
        events=len(events), first_us=round(events[0].t * 1000), last_us=round(events[-1].t * 1000)
    )
    for each in violations:
        outcome.violations.append(each)
        outcome.tallies[each.property].violated += 1
    report = Report(outcome, Header(v=1, tz="Europe/Berlin"), Chain())
    return report, pictures(report, lines(*events))


def overview(events: list[TraceEvent], *violations: Violation) -> TimeWindow:
    picture = drawn(events, *violations)[1].overview
    assert picture is not None
    return picture


# --- history ---


def test_runs_by_their_result() -> None:
    """A run is told when it ends, as what it became; one without an end as that."""
    events = [
        *listed(NINE, "a", "b"),
        RunStart(t=NINE + 100, id="a", run=1),
        RunStart(t=NINE + 110, id="b"),
        RunEnd(t=NINE + 300, id="b", ok=False),
        RunEnd(t=NINE + 400, id="a", run=1, ok=True),
        RunStart(t=NINE + 500, id="a", run=2),
        End(t=NINE + 900),
    ]
    assert kinds(told(events))[2:] == [
        (StretchKind.FAILED, 110, 300),
        (StretchKind.SUCCEEDED, 100, 400),
        (StretchKind.UNFINISHED, 500, 900),
    ]


def test_crash_cuts_off() -> None:
    """A crash cuts off runs and calls, and begins a downtime that the next initialize ends."""
    events = [
        *listed(NINE, "a"),
        RunStart(t=NINE + 100, id="a"),
        StopStart(t=NINE + 200, call=2),
        Crash(t=NINE + 300),
        *listed(NINE + 400, "a"),
    ]
    assert kinds(told(events)) == [
        (StretchKind.INITIALIZE, 0, 10),
        (StretchKind.DOWN, 0, 10),
        (StretchKind.CRASH, 300, 300),
        (StretchKind.CUT, 100, 300),
        (StretchKind.STOP, 200, 300),
        (StretchKind.INITIALIZE, 400, 410),
        (StretchKind.DOWN, 200, 410),
    ]


def test_calls_given_up_change_nothing() -> None:
    """A stop or an initialize that was given up before its turn is told, and ends no activity."""
    events = [
        *listed(NINE, "a"),
        InitStart(t=NINE + 50, call=2, regs=[]),
        StopStart(t=NINE + 100, call=3),
        InitEnd(t=NINE + 200, call=2, ok=False, void=True),
        StopEnd(t=NINE + 300, call=3, void=True),
        End(t=NINE + 900),
    ]
    assert kinds(told(events))[2:] == [(StretchKind.INITIALIZE, 50, 200), (StretchKind.STOP, 100, 300)]


def test_crash_seen_by_the_next_process() -> None:
    """A process that is followed by another died at its last event, unless it had stopped."""
    died = [*listed(NINE, "a", proc="p"), RunStart(t=NINE + 100, id="a"), *listed(NINE + 400, "a", proc="q")]
    assert (StretchKind.CRASH, 100, 100) in kinds(told(died))
    stopped = [
        *listed(NINE, "a", proc="p"),
        StopStart(t=NINE + 100, call=2),
        StopEnd(t=NINE + 110, call=2),
        *listed(NINE + 400, "a", proc="q"),
    ]
    assert StretchKind.CRASH not in {each.kind for each in told(stopped)}


def test_why_a_run_came() -> None:
    """A start after a failure without a due in between is a retry; one after a cut-off run comes again."""
    events = [
        *listed(NINE + 1000, "a", cron="0 * * * *"),
        RunStart(t=NINE + 2000, id="a", run=1),
        RunEnd(t=NINE + 3000, id="a", run=1, ok=False),
        RunStart(t=NINE + MINUTE_MS, id="a", run=2),
        RunEnd(t=NINE + MINUTE_MS + 1, id="a", run=2, ok=False),
        RunStart(t=NINE + 60 * MINUTE_MS, id="a", run=3),
        Crash(t=NINE + 60 * MINUTE_MS + 5),
        *listed(NINE + 60 * MINUTE_MS + 10, "a", cron="0 * * * *"),
        RunStart(t=NINE + 60 * MINUTE_MS + 30, id="a", run=4),
        End(t=NINE + 60 * MINUTE_MS + 50),
    ]
    runs = [each.words for each in told(events) if each.task == "a"]
    assert runs == ["run 1", "run 2, retry", "run 3", "run 4, again after a crash"]


def test_runs_in_flight_where_a_file_begins() -> None:
    """A run that the header says is in flight began before the trace."""
    events = [*listed(NINE, "a"), RunEnd(t=NINE + 100, id="a", run=9, ok=True)]
    [run] = [each for each in told(events, running=[("a", 9)]) if each.task == "a"]
    assert (run.kind, run.words) == (StretchKind.SUCCEEDED, "run 9, begun before the trace")


def test_history_of_a_faulty_trace() -> None:
    """Ends without starts, answers without calls and lines that are nothing are drawn as well as can be."""
    faulty = lines(
        RunEnd(t=NINE, id="a", ok=True), InitEnd(t=NINE + 1, call=9, ok=True), StopEnd(t=NINE + 2, call=9)
    )
    faulty[2:2] = [b"garbage\n", b'{"ev":"Surprise","t":1}\n']
    stretches = list(TraceHistory(Trace(faulty), frozenset({5}), lambda _: True))
    assert [(each.kind, each.line) for each in stretches] == [
        (StretchKind.FAULT, 3),
        (StretchKind.FAULT, 4),
        (StretchKind.FAULT, 5),
        (StretchKind.DOWN, 2),
    ]


def test_registrations() -> None:
    """A task is registered from the list that brings it to the one that changes or removes it."""
    events = [
        *listed(NINE, "a", "b"),
        *listed(NINE + 100, "a", "b"),
        *listed(NINE + 200, "a", cron="0 * * * *"),
        End(t=NINE + 300),
    ]
    history = TraceHistory(Trace(lines(*events)), frozenset(), lambda _: True)
    assert len(list(history)) == 4
    spans = [(each.task, each.cron, each.to_us // 1000 - NINE) for each in history.registrations]
    assert spans == [("a", "* * * * *", 210), ("b", "* * * * *", 210), ("a", "0 * * * *", 300)]


# --- pictures ---


def test_dues_are_ticks() -> None:
    """Dues are drawn where the task is registered, from the minute in which its list took effect."""
    events = [*listed(NINE + 5000, "a"), End(t=NINE + 3 * MINUTE_MS)]
    dues = overview(events).lanes["a"].dues
    assert dues is not None
    assert [due_us // 1000 - NINE for due_us in dues] == [0, MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS]


def test_crowded_dues_are_not_drawn() -> None:
    """Dues that could not be told apart are left out, and the page says so."""
    report, drawing = drawn([*listed(NINE, "a"), End(t=NINE + 1000 * MINUTE_MS)])
    assert drawing.overview is not None
    assert drawing.overview.lanes["a"].dues is None
    assert "The dues of 1 task lie too close together to be drawn." in page(report, drawing)


def test_long_traces_are_thinned() -> None:
    """Whatever the number of runs, the overview stays small and counts every one of them."""
    runs = 20 * MOST_STRETCHES
    events: list[TraceEvent] = listed(NINE, "a", "b")
    for index in range(runs):
        at = NINE + (index + 1) * MINUTE_MS
        events += [
            RunStart(t=at, id="ab"[index % 2]),
            RunEnd(t=at + 500, id="ab"[index % 2], ok=index % 50 > 0),
        ]
    picture = overview(events)
    drawn_runs = [run for lane in picture.lanes.values() for run in lane.runs]
    assert picture.is_thinned
    assert len(drawn_runs) <= MOST_STRETCHES
    assert sum(run.count for run in drawn_runs) == runs
    assert sum(run.count for run in drawn_runs if run.kind is StretchKind.FAILED) == runs // 50


def test_evidence_is_never_merged() -> None:
    """In the picture of a violation its own runs stay single, however many others there are."""
    events: list[TraceEvent] = listed(NINE, "a")
    for index in range(2000):
        at = NINE + 100 + index * 20
        events += [RunStart(t=at, id="a"), RunEnd(t=at + 10, id="a", ok=True)]
    line = 1004
    shown = Position(line, round(events[line - 2].t * 1000), events[line - 2])
    [zoom] = drawn(events, Violation("S1d", "a", shown.at_us, "why", (shown,), line))[1].zooms.values()
    assert zoom.is_thinned
    assert line in {run.line for run in zoom.lanes["a"].runs if run.count == 1}


def test_lanes_are_bounded() -> None:
    """Of many tasks those with violations are shown first, and the page says how many are left out."""
    names = [f"task {index}" for index in range(MOST_LANES + 10)]
    report, drawing = drawn([*listed(NINE, *names)], Violation("L1", names[-1], NINE * 1000, "why", (), 3))
    assert drawing.overview is not None
    assert next(iter(drawing.overview.lanes)) == names[-1]
    assert len(drawing.overview.lanes) == MOST_LANES
    assert "Shown are 40 tasks" in page(report, drawing)
    assert "10 more are left out" in page(report, drawing)


def test_zoom_is_around_its_violation() -> None:
    """The picture of a violation spans its events with room on both sides, and shows the tasks in them."""
    far = NINE + 600 * MINUTE_MS
    events = [
        *listed(NINE, "a", "b", "c"),
        RunStart(t=far, id="a"),
        RunStart(t=far + 100, id="b"),
        RunEnd(t=far + 200, id="a", ok=True),
        RunEnd(t=far + 200, id="b", ok=True),
        RunStart(t=far + 900 * MINUTE_MS, id="a"),
    ]
    evidence = tuple(Position(line, round(events[line - 2].t * 1000), events[line - 2]) for line in (4, 5))
    [zoom] = drawn(events, Violation("S3", None, far * 1000, "why", evidence, 5))[1].zooms.values()
    assert list(zoom.lanes) == ["a", "b"]
    assert zoom.from_us // 1000 == far - 2 * MINUTE_MS
    assert [len(lane.runs) for lane in zoom.lanes.values()] == [1, 1]


def test_zoom_leaves_the_list_of_long_ago() -> None:
    """The initialize that is evidence against a run of much later does not widen its picture."""
    far = NINE + 600 * MINUTE_MS
    events = [*listed(NINE, "a"), RunStart(t=far, id="a"), RunEnd(t=far + 1, id="a", ok=True)]
    evidence = tuple(Position(line, round(events[line - 2].t * 1000), events[line - 2]) for line in (3, 4))
    [zoom] = drawn(events, Violation("S1d", "a", far * 1000, "why", evidence, 4))[1].zooms.values()
    assert zoom.from_us // 1000 == far - 2 * MINUTE_MS


def test_clock_changes_are_found() -> None:
    """Both changes of the zone's clocks in a year are marked, to the minute."""
    changes = overview([*listed(ms("2026-01-01T00:00"), "a"), End(t=ms("2026-12-31T00:00"))]).changes
    assert [(each.at_us // 1000, each.by.total_seconds()) for each in changes] == [
        (ms("2026-03-29T03:00"), 3600),
        (ms("2026-10-25T02:00") + 60 * MINUTE_MS, -3600),
    ]


def test_times_at_the_end_of_the_calendar() -> None:
    """A trace in the first or the last year that can be written is drawn, too."""
    last = 253_402_128_000_000
    for at in (-62_135_424_000_000, last - 20):
        text = page(*drawn([*listed(at, "a")], Violation("L1", "a", at * 1000, "why", (), 3)))
        assert text.count("<figure>") == 2
    assert "<figure>" in page(*drawn([Crash(t=-62_135_424_000_000), End(t=last)]))


# --- the page ---


def everything() -> tuple[Report, Pictures]:
    events = [
        *listed(NINE, NASTY, "b"),
        RunStart(t=NINE + 100, id=NASTY, run=1),
        RunStart(t=NINE + 200, id=NASTY, run=2),
        RunEnd(t=NINE + 20_000, id=NASTY, run=1, ok=False),
        RunEnd(t=NINE + 30_000, id=NASTY, run=2, ok=True),
        ClockStep(t=NINE + 90_000, origin=NINE + 50_000),
        RunStart(t=NINE + 95_000, id=NASTY, run=3),
        Crash(t=NINE + 100_000),
        *listed(NINE + 200_000, NASTY, "b", call=2),
        StopStart(t=NINE + 300_000, call=3),
        StopEnd(t=NINE + 301_000, call=3),
        End(t=NINE + 301_000),
    ]
    shown = tuple(Position(line, round(events[line - 2].t * 1000), events[line - 2]) for line in (4, 5))
    reason = f"{NASTY!r} started while it ran\x00\x1b[31m"
    return drawn(
        events,
        Violation("S1c", NASTY, shown[1].at_us, reason, shown, 5),
        Violation("L1", "b", NINE * 1000, "owed", (), 8),
    )


def test_page_is_inert() -> None:
    """Markup in a name is text; the page has no script, loads nothing and holds no control character."""
    text = page(*everything())
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", text)
    assert not re.search(r"url\((?!#)|@import", text)
    assert "default-src 'none'" in text


def test_page_is_well_formed() -> None:
    """Every drawing is well-formed and every link in the page leads to something in it."""
    text = page(*everything())
    for drawing in re.findall(r"<svg viewBox.*?</svg>", text, flags=re.DOTALL):
        ET.fromstring(drawing)
    targets = set(re.findall(r'href="#(\w+)"', text))
    assert targets == {"v1", "v2"}
    assert targets <= set(re.findall(r'id="(\w+)"', text))
    assert "$" not in text


def test_page_tells_all() -> None:
    """The page has the verdict, every kind of mark that the trace has, and the evidence."""
    text = page(*everything())
    assert "Violated: 2 violations of S1c, L1" in text
    for style in ("ok", "failed", "cut", "initialize", "stop", "down", "due"):
        assert re.search(rf'<(rect|path) class="{style}"[^>]*><title>', text), style
    for style in ("crash", "step"):
        assert re.search(rf'<g class="{style}"><path class="wide"', text), style
    assert "2026-01-05 09:00:00.200+01:00" in text


def test_what_is_wrong_comes_first() -> None:
    """Violations stand above the properties, most of which hold."""
    text = page(*everything())
    assert text.index("<h2>Time line</h2>") < text.index("<h2>Violations</h2>") < text.index("<h2>Properties")


def test_overlapping_runs_lie_below_each_other() -> None:
    """Two runs at the same time have different heights in their lane."""
    _, drawing = everything()
    rows = Drawing(drawing.zooms[1], BERLIN, Chain(), label="zoom", lane_px=40).rows
    heights = {bar.y for row in rows for bar in row.bars if bar.style in {"ok", "failed"}}
    assert len(heights) == 2


def test_page_of_nothing() -> None:
    """A trace without events has a page without drawings."""
    report = Report(Outcome(), Header(v=1, tz="UTC"))
    text = page(report, pictures(report, lines()))
    assert "Inconclusive" in text
    assert "no event in the trace" in text
    assert "<figure>" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a&b", "a&amp;b"),
        ("\u202eevil", "\\u202eevil"),
        ("tab\t", "tab\\t"),
        ("\ud800", "\\ud800"),
        ("ü ☃", "ü ☃"),
    ],
)
def test_escaping(text: str, shown: str) -> None:
    """What cannot be seen is shown escaped, what has a meaning in markup loses it, the rest stays."""
    report = Report(Outcome(), Header(v=1, tz="UTC", impl=text))
    assert f"Recorded by {shown}. " in page(report, Pictures(None, {}))


def test_one_look() -> None:
    """The page and the dashboard have the same colours and the same type."""
    looks = [
        dict(re.findall(r"^  ([\w-]+): (.*);$", (ROOT / path).read_text(), re.MULTILINE))
        for path in ("src/duly/verify/reporting/page.html", "src/duly/web/static/style.css")
    ]
    shared = looks[0].keys() & looks[1].keys()
    assert {name: looks[0][name] for name in shared} == {name: looks[1][name] for name in shared}
    assert {"--ground", "--text", "--good", "--bad", "--warn", "font"} <= shared
