"""CSV tables of runs become traces, or errors that say which row and what to do; and the format's page."""

import io
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly.verify.dues import instant_us
from duly.verify.foreign.table import NO_RETRY_MS, CsvError, lines_from_csv
from duly.verify.judge import judged
from duly.verify.properties import Verdict
from duly.verify.trace import EVENTS, End, Fault, Header, InitStart, Position, RunEnd, RunStart, Trace

BERLIN = "Europe/Berlin"
HOURLY = "task,cron,retry_delay\na,0 * * * *,\n"
T0_MS = 1_767_261_600_000
"""2026-01-01 10:00 UTC, 11:00 in Berlin."""


def trace_of(runs: str, tasks: str = HOURLY, zone: str = BERLIN, **limits: str) -> Trace:
    return Trace(lines_from_csv(io.StringIO(runs), io.StringIO(tasks), zone=zone, **limits))


def events_of(runs: str, tasks: str = HOURLY, zone: str = BERLIN, **limits: str) -> list[object]:
    items = list(trace_of(runs, tasks, zone, **limits))
    assert not [item for item in items if isinstance(item, Fault)]
    return [item.event for item in items if isinstance(item, Position)]


def error_of(runs: str, tasks: str = HOURLY, zone: str = BERLIN, **limits: str) -> CsvError:
    with pytest.raises(CsvError) as caught:
        lines_from_csv(io.StringIO(runs), io.StringIO(tasks), zone=zone, **limits)
    return caught.value


def test_rows_become_events_in_order() -> None:
    """Rows in any order become a list, starts, ends and a horizon in the order of time."""
    runs = (
        "ok,task,end,start,note\n"
        f"no,a,{T0_MS + 3_600_500},{T0_MS + 3_600_000},x\n"
        f",a,2026-01-01T11:00:01.5+01:00,2026-01-01T11:00:01,y\n"
    )
    header = trace_of(runs).header
    assert (header.tz, header.store, header.running) == (BERLIN, "unknown", [])
    init, _, first, first_end, second, second_end, end = events_of(runs)
    assert isinstance(init, InitStart)
    assert init.regs == [("a", "0 * * * *", NO_RETRY_MS)]
    assert init.t == T0_MS + 1000
    assert isinstance(first, RunStart)
    assert (first.t, first.run) == (T0_MS + 1000, 2)
    assert isinstance(first_end, RunEnd)
    assert (first_end.t, first_end.ok) == (T0_MS + 1500, True)
    assert isinstance(second, RunStart)
    assert second.t == T0_MS + 3_600_000
    assert isinstance(second_end, RunEnd)
    assert not second_end.ok
    assert isinstance(end, End)
    assert end.t == T0_MS + 3_600_500


def test_ends_come_before_starts_of_the_same_moment() -> None:
    """At one moment a run ends before the next starts, and one without length starts before it ends."""
    runs = "task,start,end,ok\na,1000,1000,\na,0,1000,\na,1000,2000,\n"
    kinds = [(type(event).__name__, getattr(event, "run", None)) for event in events_of(runs)[2:-1]]
    assert kinds == [
        ("RunStart", 2),
        ("RunEnd", 2),
        ("RunStart", 1),
        ("RunEnd", 1),
        ("RunStart", 3),
        ("RunEnd", 3),
    ]


def test_unknown_ends_are_read_in_favour() -> None:
    """A run without an end ends when its task next starts; the last one is still running."""
    runs = "task,start,end,ok\na,0,,\na,3600000,,\n"
    emitted = [(type(event).__name__, getattr(event, "t", None)) for event in events_of(runs)[2:]]
    assert emitted == [("RunStart", 0), ("RunEnd", 3_600_000), ("RunStart", 3_600_000), ("End", 3_600_000)]


def test_limits_cut_the_table() -> None:
    """Only what happens between the limits is told, and a run in flight at the first is in the header."""
    runs = "task,start,end,ok\na,0,10,\na,100,300,\na,400,900,\na,950,960,\n"
    limits = {"since": "200", "until": "800"}
    assert trace_of(runs, **limits).header.running == [("a", 2)]
    emitted = [(type(event).__name__, getattr(event, "t", None)) for event in events_of(runs, **limits)]
    assert emitted == [("InitStart", 200), ("InitEnd", 200), ("RunEnd", 300), ("RunStart", 400), ("End", 800)]


def test_a_table_without_runs_needs_a_first_moment() -> None:
    """Nothing ran at all: that can be judged once somebody says since when."""
    nothing = "task,start,end,ok\n"
    assert "--from" in str(error_of(nothing))
    assert len(events_of(nothing, since="0", until="7200000")) == 3


def test_a_byte_order_mark_is_no_name() -> None:
    """Files that a spreadsheet wrote are read too."""
    assert len(events_of("\ufefftask,start,end,ok\r\n\r\na,0,1,1\r\n")) == 5


@pytest.mark.parametrize(("cell", "delay_ms"), [("0", 0), ("300", 300_000), ("0.5", 500), ("", NO_RETRY_MS)])
def test_delays_are_seconds(cell: str, delay_ms: float) -> None:
    """A retry delay is in seconds in the table and in milliseconds in the trace."""
    init = events_of("task,start,end,ok\na,0,1,\n", f"cron,task,retry_delay\n0 * * * *,a,{cell}\n")[0]
    assert isinstance(init, InitStart)
    assert init.regs[0][2] == delay_ms


@pytest.mark.parametrize(
    ("runs", "line", "words"),
    [
        ("", 1, "no column task, start, end, ok"),
        ("task;start;end;ok\n", 1, "no column"),
        ("task,start,end,ok,ok\n", 1, "twice"),
        ("task,start,end,ok\n,0,1,\n", 2, "no name"),
        ("task,start,end,ok\nb,0,1,\n", 2, 'task "b" is not among the tasks'),
        ("task,start,end,ok\na,,1,\n", 2, "start is empty"),
        ("task,start,end,ok\n\na,soon,1,\n", 3, '"soon" is not a time'),
        ("task,start,end,ok\na,5,1,\n", 2, "ends before it starts"),
        ("task,start,end,ok\na,5,,no\n", 2, "say when in end"),
        ("task,start,end,ok\na,0,1,perhaps\n", 2, "write yes or no"),
        ("task,start,end,ok\na,0,1,yes,more\n", 2, "more cells than columns"),
        ("task,start,end,ok\na,2026-03-29T02:30,,\n", 2, "never comes"),
        ("task,start,end,ok\na,2026-10-25T02:30,,\n", 2, "comes twice"),
        ("task,start,end,ok\na,99999999999999999,,\n", 2, "is not a moment"),
        ("task,start,end,ok\na,9999-12-31T23:59:59Z,,\n", 2, "is not a moment"),
        ("task,start,end,ok\na,0001-01-01T00:00,,\n", 2, "is not a moment"),
        ('task,start,end,ok\na,"0,1,\n', 2, "not CSV"),
    ],
)
def test_bad_runs_name_their_line(runs: str, line: int, words: str) -> None:
    """Whatever is wrong with the runs is told with its line and what to do."""
    error = error_of(runs)
    assert (error.table, error.line) == ("runs", line)
    assert words in str(error)


@pytest.mark.parametrize(
    ("tasks", "line", "words"),
    [
        ("task,cron,retry_delay\n", None, "no rows"),
        ("task,cron\na,* * * * *\n", 1, "no column retry_delay"),
        ("task,cron,retry_delay\na,*/5 * * * *,\n", 2, "cannot be judged"),
        ("task,cron,retry_delay\na,0,30 * * * *,\n", 2, "in quotes"),
        ("task,cron,retry_delay\na,* * * * *,-1\n", 2, "number of seconds"),
        ("task,cron,retry_delay\na,* * * * *,1e3\n", 2, "number of seconds"),
        ("task,cron,retry_delay\na,* * * * *,\na,* * * * *,\n", 3, "has a row already"),
    ],
)
def test_bad_tasks_name_their_line(tasks: str, line: int | None, words: str) -> None:
    """Whatever is wrong with the tasks is told with its line and what to do."""
    error = error_of("task,start,end,ok\na,0,1,\n", tasks)
    assert (error.table, error.line) == ("tasks", line)
    assert words in str(error)


def test_bad_options_are_named() -> None:
    """A zone or a limit that cannot be used is told by the name of its option."""
    runs = "task,start,end,ok\na,0,1,\n"
    assert str(error_of(runs, zone="Europe/Nowhere")).startswith("--tz: ")
    assert str(error_of(runs, since="then")).startswith("--from: ")
    assert str(error_of(runs, until="-5")).startswith("--until: ")


def test_other_encodings_are_told(tmp_path: Path) -> None:
    """A file that is not UTF-8 is an error with a line, too."""
    path = tmp_path / "runs.csv"
    path.write_bytes("task,start,end,ok\nä,0,1,\n".encode("latin-1"))
    with path.open(encoding="utf-8") as runs, pytest.raises(CsvError, match="UTF-8"):
        lines_from_csv(runs, io.StringIO(HOURLY), zone=BERLIN)


def test_faces_without_offset_are_in_the_zone() -> None:
    """A time without an offset is what the clocks of the zone showed."""
    first = events_of("task,start,end,ok\na,2026-07-01 12:00,2026-07-01T13:00,\n", zone="Asia/Tokyo")[2]
    assert isinstance(first, RunStart)
    assert first.t == instant_us(datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Asia/Tokyo"))) / 1000


JUDGED = f"""task,start,end,ok
a,{T0_MS + 1000},{T0_MS + 2000},
a,{T0_MS + 3_600_000},{T0_MS + 10_900_000},
a,{T0_MS + 7_200_000},{T0_MS + 7_300_000},
b,{T0_MS + 1000},{T0_MS + 2000},
b,{T0_MS + 1_800_000},{T0_MS + 1_801_000},
b,{T0_MS + 7_200_000},{T0_MS + 7_201_000},
"""


def test_tables_are_judged() -> None:
    """An overlap, a run that no due explains and a missing run are found in a table."""
    tasks = "task,cron,retry_delay\na,0 * * * *,\nb,0 * * * *,\n"
    lines = lines_from_csv(
        io.StringIO(JUDGED), io.StringIO(tasks), zone=BERLIN, until=str(T0_MS + 10_000_000)
    )
    outcome = judged(lines)
    assert not outcome.faults
    found = {(violation.property, violation.task) for violation in outcome.violations}
    assert {("S1c", "a"), ("S1d", "b"), ("L1", "b")} <= found
    assert {violation.property for violation in outcome.violations if violation.property[0] in "SL"} == {
        "S1c",
        "S1d",
        "L1",
    }
    assert outcome.overall is Verdict.VIOLATED


def test_a_healthy_table_holds() -> None:
    """A table in which everything ran when it was due violates nothing."""
    rows = [f"a,{T0_MS + hour * 3_600_000 + 20},{T0_MS + hour * 3_600_000 + 900},yes" for hour in range(30)]
    runs = "\n".join(["task,start,end,ok", *rows])
    outcome = judged(lines_from_csv(io.StringIO(runs), io.StringIO(HOURLY), zone=BERLIN))
    assert outcome.overall is Verdict.HOLDS
    assert outcome.starts == 30


def test_the_page_of_the_format_has_a_true_example() -> None:
    """The example in the page of the trace format reads without a fault, and holds."""
    page = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text()
    example = page.split("```jsonl\n")[1].split("```")[0]
    lines = example.encode().splitlines(keepends=True)
    assert not [item for item in Trace(lines) if isinstance(item, Fault)]
    seen = {type(item.event).__name__ for item in Trace(lines) if isinstance(item, Position)}
    elsewhere = {
        "Unreachable",
        "Reachable",
        "Missed",
        "NodeJoined",
        "NodeReturned",
        "NodeFenced",
        "TrustLost",
    }
    elsewhere |= {"ServerChanged", "ListReconciled", "TaskInterruptedAgain", "Timers", "Told"}
    elsewhere |= {"ControlStart", "ControlEnd"}
    assert seen == set(EVENTS) - elsewhere
    outcome = judged(lines)
    assert not outcome.violations
    assert not outcome.faults


def test_the_page_of_the_format_names_every_field() -> None:
    """Every event and every field that a reader understands is named in the page."""
    page = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text()
    kinds: list[type[Any]] = [Header, *EVENTS.values()]
    for kind in kinds:
        for name in (kind.__name__, *kind.__struct_encode_fields__):
            assert f"`{name}`" in page, f"{kind.__name__}: {name}"
