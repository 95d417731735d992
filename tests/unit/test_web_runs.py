"""What pages show of a run: its facts, its output, what a retry tries again, and the slot that began it."""

from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.instant import DAY_US, SECOND_US
from duly.store.history import Result, RunBucket, RunRow
from duly.web.formatting import Moment
from duly.web.runs import (
    Lineage,
    RunsQuery,
    compared,
    output_piece,
    plot_of,
    retried_by,
    run_facts,
    runs_query,
    year_of,
)
from duly.web.source import Output
from tests.worlds.daemons import NOW_US, us

UTC = ZoneInfo("UTC")
MOMENT = Moment(us("12:00"), UTC)

SLOT_US = 1_000


def _run(number: int, reason: str, *, service: str = "job", slot_us: int | None = None) -> RunRow:
    return RunRow(
        id=number, service=service, timer="t", reason=reason, scheduled_us=slot_us, started_us=number
    )


SLOT = _run(1, "schedule", slot_us=SLOT_US)


@pytest.mark.parametrize(
    ("row", "earlier", "found"),
    [
        (SLOT, [], Lineage(slot_us=SLOT_US)),
        (_run(9, "catch-up", slot_us=7), [SLOT], Lineage(slot_us=7)),
        (_run(9, "manual"), [SLOT], Lineage()),
        (_run(9, "interval", slot_us=7), [SLOT], Lineage()),
        (_run(4, "retry", slot_us=7), [SLOT], Lineage(retried=SLOT, slot_us=SLOT_US, slot_run=SLOT)),
        (
            _run(4, "retry"),
            [_run(3, "retry"), SLOT],
            Lineage(retried=_run(3, "retry"), slot_us=SLOT_US, slot_run=SLOT),
        ),
        (_run(4, "retry"), [_run(3, "trigger"), SLOT], Lineage(retried=_run(3, "trigger"))),
        (_run(4, "retry"), [_run(3, "retry")], Lineage(retried=_run(3, "retry"))),
        (_run(4, "retry"), [], Lineage()),
        (_run(4, "retry"), [_run(3, "schedule", service="other", slot_us=2)], Lineage()),
    ],
)
def test_what_a_run_tries_again(row: RunRow, earlier: list[RunRow], found: Lineage) -> None:
    """A retry names the run before it and the slot behind all retries, as far as those are kept."""
    assert retried_by(row, earlier) == found


def test_run_facts() -> None:
    """A run tells its cause, how late it was, and how long it took or takes."""
    row = RunRow(id=1, service="a", reason="catch-up", scheduled_us=NOW_US - 9, started_us=NOW_US - 5)
    facts = run_facts(row, NOW_US)
    assert (facts.late_us, facts.lasted_us, facts.mark.word) == (4, 5, "running")
    assert "caught up" in facts.cause


@pytest.mark.parametrize(
    ("since", "lost_before", "text", "is_whole"),
    [
        (0, 7, "a\nbc", True),
        (3, 7, "c", False),
        (4, 7, "", False),
        (5, 7, "a\nbc", True),
        (2, 0, "a\nbc", True),
    ],
)
def test_output_piece(since: int, lost_before: int, text: str, is_whole: bool) -> None:
    """A piece goes on where one was; if the beginning was dropped meanwhile, it is all again."""
    output = Output("a\nbc", 7, [(0, 0), (1, 61)])
    piece = output_piece(_run(1, "manual"), output, MOMENT, since=since, lost_before=lost_before)
    assert (piece.text, piece.is_whole, piece.place, piece.is_running) == (text, is_whole, 4, True)
    assert piece.times == ([(0, "00:00:00")] if is_whole else []) + [(1, "00:01:01")]


# --- which runs ---


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ({}, RunsQuery()),
        ({"result": "failed", "since": "24h"}, RunsQuery(result="failed", since="24h")),
        ({"text": "no room"}, RunsQuery(text="no room", since="7d")),
        ({"text": "no room", "since": ""}, RunsQuery(text="no room")),
        ({"result": "x", "reason": "a b", "since": "2h", "sort": "id", "page": "0x1"}, RunsQuery()),
        ({"from": "2026-01-01T12:00", "to": "9"}, RunsQuery(from_us=us("12:00"), to_us=9)),
        ({"from": "noon", "page": "3", "dir": "up"}, RunsQuery(is_up=True, page=3)),
    ],
)
def test_runs_query(query: dict[str, str], asked: RunsQuery) -> None:
    """What makes no sense in a query is left out; a text is looked for in the last days, unless one says."""
    assert runs_query(query, UTC) == asked


def test_address_of_a_list_leads_back_to_it() -> None:
    """The address of a list can be shared: it asks for the same."""
    asked = RunsQuery(name="a&b", result="failed", since="1h", from_us=5, sort="took", is_up=True, page=2)
    assert runs_query(dict(parse_qsl(asked.href().partition("?")[2])), UTC) == asked


def test_failed_is_what_blames_the_job() -> None:
    """A run that somebody cut off or cancelled is none that failed."""
    wanted = RunsQuery(result="failed").search(NOW_US)
    assert set(Result) - set(wanted.results or ()) == {"success", "interrupted", "cancelled"}


# --- pictures of many ---


def _ended(number: int, at: str, result: str = "success", lasts_us: int = SECOND_US) -> RunRow:
    began_us = us(at)
    row = RunRow(id=number, service="job", reason="schedule", started_us=began_us, result=result)
    return msgspec.structs.replace(row, ended_us=began_us + lasts_us)


def test_plot() -> None:
    """Each run is a dot with a link; the percentiles are those of the runs that ended well."""
    rows = [
        _ended(3, "14:00", "exit", 60 * SECOND_US),
        _ended(2, "13:00", lasts_us=2 * SECOND_US),
        _ended(1, "12:00"),
    ]
    plot = plot_of(rows, MOMENT)
    assert plot is not None
    assert [(dot.x, dot.tone, dot.href) for dot in plot.dots] == [
        ("99.00%", "bad", "/runs/3"),
        ("50.00%", "good", "/runs/2"),
        ("1.00%", "good", "/runs/1"),
    ]
    assert [label for _, label in plot.lines] == ["p50 1.0s", "p95 2.0s"]
    assert (plot.longest, plot.summary) == ("1m", "the last 3 runs: 2 successful; p50 1.0s, p95 2.0s")
    assert plot_of([], MOMENT) is None


def test_year() -> None:
    """Each day of the year is a cell: empty, well, partly failed or failed, and leads to its runs."""
    noon_us = us("2025-12-30 12:00")
    buckets = [
        RunBucket("job", 0, "success", 5, 1, noon_us, noon_us),
        RunBucket("job", 24, "exit", 2, 2, noon_us + DAY_US, noon_us + DAY_US),
        RunBucket("job", 24, "success", 1, 3, noon_us + DAY_US, noon_us + DAY_US),
        RunBucket("job", -1, "exit", 9, 4, noon_us - DAY_US, None),
    ]
    year = year_of(buckets, us("2025-12-29 00:00"), MOMENT, "/runs?service=job")
    assert [(cell.level, cell.title) for cell in year.cells] == [
        ("none", "Mon 29 Dec 2025: 0 ran"),
        ("good much3", "Tue 30 Dec 2025: 5 ran"),
        ("warn", "Wed 31 Dec 2025: 3 ran, 2 failed"),
        ("none", "Thu 1 Jan 2026: 0 ran"),
    ]
    begin_us = us("2025-12-30 00:00")
    assert year.cells[1].href == f"/runs?service=job&from={begin_us}&to={begin_us + DAY_US}"
    assert year.summary == "8 runs on 2 days, failures on 1"


def test_comparison() -> None:
    """Two outputs are compared line by line, as they are printed."""
    assert compared("a\n\x1b[31mb\x1b[0m\nc\n", "a\nb\nd\n")[1:] == [
        (" ", "a"),
        (" ", "b"),
        ("-", "c"),
        ("+", "d"),
    ]
    assert compared("a\n", "a\n") == []
