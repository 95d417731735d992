"""The page of a cluster: who held what, whose run it was, and each violation with the rows it is about.

The traces are those of test_cluster_traces: one shard, times in seconds, a task due at minutes 0 and 5.
"""

import re
from itertools import chain
from xml.etree import ElementTree as ET

import msgspec
import pytest

from duly.verify.cluster import judged_together, recordings
from duly.verify.cluster.whole import Whole
from duly.verify.properties import Outcome
from duly.verify.reporting.cluster import MOST_FAILOVERS, MOST_MEMBERS, MOST_TASKS, cluster_pictures
from duly.verify.reporting.history import Kind
from duly.verify.reporting.holding import Holding
from duly.verify.reporting.members import Failover, Level, Members, counted_over, within
from duly.verify.reporting.page import page
from duly.verify.reporting.report import Chain, Report
from duly.verify.reporting.svg import svg
from duly.verify.reporting.timeline import MOST_STRETCHES, Picture, Pictures
from duly.verify.targets import Account
from duly.verify.trace import header_of
from tests.unit.test_cluster_traces import (
    REGS,
    Line,
    at,
    end,
    first,
    given,
    given_and_stopped,
    header,
    lost,
    published,
    second,
    start,
    taken,
    ticking,
    ticks,
)

SECOND_US = 1_000_000
NASTY = '"><script>alert(1)</script>\u202e'


def lines(*files: list[Line]) -> list[bytes]:
    return [msgspec.json.encode(line) + b"\n" for line in chain.from_iterable(files)]


def holding(*files: list[Line]) -> Holding:
    return Holding(Whole(recordings(lines(*files))))


def drawn(*files: list[Line]) -> tuple[Report, Pictures]:
    encoded, names = lines(*files), Chain()
    for number, file in enumerate(files):
        names.begin(f"{number}.jsonl", 1 + sum(map(len, files[:number])))
        assert file[0]["ev"] == "Header"
    report = Report(judged_together(encoded), header_of(1, encoded[0]), names)
    return report, cluster_pictures(report, encoded)


def members_of(picture: Picture | None) -> Members:
    assert picture is not None
    assert picture.members is not None
    return picture.members


def failover(name: str = "a", task: str = "x") -> list[list[Line]]:
    """The first member dies at 5 s with a run in flight; the second takes over at 12 s."""
    regs = [[task, "0,5 * * * *", 120_000]]
    a = [*first(regs), start(0), at(5, "Crash")]
    b = [*second(regs), taken(12, 3, "lost"), start(12.1), end(13), at(250, "Tick")]
    for line in chain(a, b):
        if "id" in line:
            line["id"] = task
    a[0]["member"] = name
    return [a, b]


def overlap() -> list[list[Line]]:
    """The next holder starts a due while the run before is still in flight at the one before."""
    a = [*first(), start(0), given(10, 2), at(299, "Tick"), at(310, "Tick"), end(320), at(400, "Tick")]
    return [a, [*second(), taken(10.2, 3, "given"), start(300.1), end(301), at(400, "Tick")]]


# --- levels ---


def test_levels_count_what_is_held() -> None:
    """Each change of the number is a level; what was held for no time at all is none."""
    assert counted_over([(0, 10), (5, 20), (10, 20), (7, 7)]) == [
        Level(0, 1),
        Level(5, 2),
        Level(20, 0),
    ]


def test_levels_of_a_window() -> None:
    """A window begins with what was so before it, and ends with what is so in it."""
    levels = [Level(0, 1), Level(10, 3), Level(20, 2), Level(30, 0)]
    assert within(levels, 15, 25) == [Level(15, 3), Level(20, 2)]
    assert within(levels, -5, 5) == [Level(-5, 0), Level(0, 1)]


def test_crowded_levels_show_the_highest() -> None:
    """Of changes too close to be told apart the highest is shown; where they end, what was so then."""
    levels = [Level(each, 9 if each == 4_321 else each % 2) for each in range(1, 5_001)]
    shown = within(levels, 0, 10_000, most=50)
    assert len(shown) <= 101
    assert max(shown, key=lambda each: each.number) == (4_221, 9)
    assert shown[-1].number == levels[-1].number


# --- what the traces tell ---


def test_a_failover_is_told() -> None:
    """The dead member held its shard up to its death, nobody did for a while, and the other took over."""
    told = holding(*failover())
    assert told.levels == {
        "a": [Level(-9_800_000, 1), Level(5 * SECOND_US, 0)],
        "b": [Level(12 * SECOND_US, 1), Level(250 * SECOND_US, 0)],
    }
    assert told.free == [
        Level(-10 * SECOND_US, 1),
        Level(-9_800_000, 0),
        Level(5 * SECOND_US, 1),
        Level(12 * SECOND_US, 0),
        Level(250 * SECOND_US, 0),
    ]
    assert told.failovers == [Failover("b", "a", 5 * SECOND_US, 12 * SECOND_US, 1, 11)]


def test_shards_taken_together_are_one_failover() -> None:
    """What one member takes from another within two seconds is told at once; what comes later is not."""
    header_ = header("a", shards=3)
    a = [header_, *first()[1:3], *(taken(-9, 2, shard=shard) for shard in range(3)), at(5, "Crash")]
    b = [header("b", shards=3), *second()[1:]]
    b += [taken(12, 3, "lost", shard=0), taken(13, 3, "lost", shard=1), taken(20, 3, "lost", shard=2)]
    assert [(each.shards, each.taken_us) for each in holding(a, b).failovers] == [
        (2, 12 * SECOND_US),
        (1, 20 * SECOND_US),
    ]


@pytest.mark.parametrize(
    ("mine", "others", "until_s"),
    [
        ([given(30, 2), at(60, "Tick")], [], 30),
        ([lost(30, 2), at(60, "Tick")], [], 30),
        ([at(60, "Tick")], [], 60),
        ([at(30, "Crash")], [], 30),
        ([at(60, "Tick")], [taken(40, 4, None, 2)], 40),
        ([at(60, "Tick")], [taken(40, 2)], 60),
    ],
    ids=["given", "lost", "open", "died", "superseded", "doubled"],
)
def test_until_when_a_shard_was_held(mine: list[Line], others: list[Line], until_s: float) -> None:
    """A hold ends as its member tells it, or where another took the shard; two of one term are both told."""
    hold, *_ = holding([*first(), *mine], [*second(), *others, at(60, "Tick")]).holds(0)
    assert (hold.member, hold.from_us, hold.to_us) == ("a", -9_800_000, until_s * SECOND_US)
    assert hold.words == "shard 0 held by a for term 2"


def test_what_befalls_a_member() -> None:
    """Its life, the times without the board and without a sign, clocks that are set, a stop and a death."""
    a = [*first(tick_ms=4000), at(-7, "Tick"), at(-6, "Unreachable"), at(-3, "Reachable"), at(20, "Tick")]
    a += [at(21, "ClockStep", **{"from": 22_000}), *given_and_stopped(23)]  # so it began a second earlier
    told = holding([*a, at(26, "End")], [*second(), at(30, "Crash")])
    assert [(each.kind, each.from_us / 1e6, each.to_us / 1e6) for each in told.marks("a")] == [
        (Kind.ALIVE, -11, 26),
        (Kind.UNREACHABLE, -6, -3),
        (Kind.SILENT, -3, 20),
        (Kind.STEP, 21, 21),
        (Kind.STOP, 24, 24),
    ]
    assert [each.kind for each in told.marks("b")] == [Kind.ALIVE, Kind.CRASH]
    assert [(each.member, each.ending) for each in told.biographies()] == [("a", "stopped"), ("b", "died")]


def test_a_member_that_is_not_heard_of_again() -> None:
    """Without a word of its death a member that does not even tick is said to be silent, not dead."""
    told = holding([*first(tick_ms=4000), *ticks(-6, -3)], ticking(12))
    endings = {each.member: each.ending for each in told.biographies()}
    assert endings == {"a": "not heard of again", "b": "alive at the end"}
    alive, silent = told.marks("a")
    assert (silent.kind, silent.from_us, silent.to_us) == (Kind.SILENT, alive.to_us, 12 * SECOND_US)


def test_a_clock_that_is_wrong_at_first() -> None:
    """What a member recorded before it knew the board's time is dated by it; the pictures span that alone."""
    a = [
        header("a", tick_ms=4000),
        at(36_002, "InitStart", call=1, regs=REGS, proc="a1"),
        at(36_002.2, "Unreachable"),
        at(2.5, "ClockStep", **{"from": 36_002_400}),
        at(2.6, "Reachable"),
        at(2.6, "Edition", edition=1, regs=REGS),
        taken(2.7, 2),
        at(2.8, "InitEnd", call=1, ok=True),
        *ticks(3, 60),
    ]
    late = [
        {**line, "t": line["t"] - 2 * 36_000_000} if line.get("t", 0) > 36_000_000 else line for line in a
    ]
    late[3] = at(2.5, "ClockStep", **{"from": -35_997_600})
    for wrong in (a, late):
        alive, *marks = holding(wrong).marks("a")
        assert (alive.from_us, alive.to_us) == (2_100_000, 60 * SECOND_US)
        assert [each.kind for each in marks] == [Kind.UNREACHABLE, Kind.STEP]
        assert all(alive.from_us <= each.from_us <= each.to_us <= alive.to_us for each in marks)
        picture = drawn(wrong)[1].holders
        assert picture is not None
        assert (picture.from_us, picture.to_us) == (2_100_000 - 1_158_000, 60 * SECOND_US + 1_158_000)


def test_a_silent_death_ends_what_was_held() -> None:
    """A member that is never heard of again held its shard up to its last sign, whatever it may have done."""
    a = [*first(tick_ms=60_000), start(0), end(1)]
    b = [*second(tick_ms=60_000), taken(20, 3, "lost"), at(60, "Tick")]
    told = holding(a, b)
    assert told.holds(0)[0].to_us == SECOND_US
    assert told.failovers[0].lost_us == SECOND_US


def test_a_trace_that_ends_before_the_others() -> None:
    """A shard whose holder's trace just ends is not drawn as held by nobody."""
    told = holding([*first(), at(20, "End")], [*second(), at(60, "Tick")])
    assert told.free[1:] == [Level(-9_800_000, 0), Level(60 * SECOND_US, 0)]


def test_what_concerns_all() -> None:
    """Editions, deaths, another server and a trace that is at fault are told with their times."""
    a = [*first(), start(0), at(5, "Crash")]
    b = published({**taken(40, 5, None, 2), "server": "other"}, at(60, "Tick"), at(61, "RunStart"))
    told = [(each.kind, each.from_us / 1e6, each.label) for each in holding(a, b).crossings()]
    assert told == [
        (Kind.EDITION, -9.9, "edition 1"),
        (Kind.EDITION, 30.1, "edition 2"),
        (Kind.CRASH, 5, "a died"),
        (Kind.SERVER, 40, ""),
        (Kind.FAULT, 60, ""),
    ]


def test_runs_by_how_they_ended() -> None:
    """A run is told with its member and its end; one that makes up for the one before says so."""
    a = [*first(), start(0), end(1, ok=False), start(121, 2), lost(125, 2), at(400, "Tick")]
    b = [*second(), taken(130, 3, "lost"), start(131, 1), at(140, "Crash")]
    c = [header("c", store="unknown"), *second()[1:], taken(150, 4, "lost")]
    c += [start(151), end(152), start(300, 2), at(400, "Tick")]
    runs = list(holding(a, b, c).runs("x"))
    assert [(each.kind, each.member, each.words, each.is_again) for each in runs] == [
        (Kind.FAILED, "a", "run 1 by a", False),
        (Kind.LOST, "a", "run 2 by a, retry", True),
        (Kind.CUT, "b", "run 1 by b, again after a loss", True),
        (Kind.SUCCEEDED, "c", "run 1 by c, again after a crash", True),
        (Kind.UNFINISHED, "c", "run 2 by c", False),
    ]


def test_a_due_is_no_retry() -> None:
    """A start after a failure with a due in between answers the due; so does one of a text that is none."""
    failed = [start(0), end(1, ok=False), start(300, 2), end(301, 2), at(400, "Tick")]
    assert not any(each.is_again for each in holding([*first(), *failed]).runs("x"))
    assert not any(each.is_again for each in holding([*first([["x", "never", 0]]), *failed]).runs("x"))


def test_runs_in_flight_where_a_trace_begins() -> None:
    """A run that the header has in flight began before the trace, and counts as no start."""
    a = [header("a", running=[("x", 7)]), *first()[1:], end(1, 7), at(60, "Tick")]
    told = holding(a)
    assert [each.words for each in told.runs("x")] == ["run 7 by a, begun before the trace"]
    assert [each.starts for each in told.biographies()] == [0]


def test_registrations_are_those_of_the_newest_list() -> None:
    """A task has the cron text of an edition up to the next one that changes or removes it."""
    removed = [at(90, "Edition", edition=3, regs=[]), at(120, "Tick")]
    told = holding([*first(), at(120, "Tick")], published(*removed)).registrations("x")
    assert [(each.cron, each.from_us / 1e6, each.to_us / 1e6) for each in told] == [
        ("0,5 * * * *", -9.9, 30.1),
        ("2,5 * * * *", 30.1, 90),
    ]
    again = published(at(90, "Tick"))
    again[4]["regs"] = REGS
    assert len(holding([*first(), at(90, "Tick")], again).registrations("x")) == 1


# --- pictures ---


def test_tasks_that_changed_hands_come_first() -> None:
    """Without violations the tasks that the most members ran are shown, and the rest is counted."""
    regs = [*([f"t{number}", "30 * * * *", 0] for number in range(MOST_TASKS + 3)), *REGS]
    a = [*first(regs), start(0), given(10, 2), end(11), at(400, "Tick")]
    b = [*second(regs), taken(10.2, 3, "given"), start(300.1), end(301), at(400, "Tick")]
    report, pictures = drawn(a, b)
    assert pictures.overview is not None
    assert list(pictures.overview.lanes)[:2] == ["x", "t0"]
    assert (len(pictures.overview.lanes), pictures.overview.lanes_left_out) == (MOST_TASKS, 4)
    assert "then those that the most members ran; 4 more are left out" in page(report, pictures)


def test_many_members_are_bounded() -> None:
    """Of too many members those with violations and those that held most are drawn, in the order of time."""
    count = MOST_MEMBERS + 5
    files = [[*first([]), given(1, 2), at(900, "Tick")]]
    for number in range(1, count):
        taken_s, held_s = 10.0 * number, 2 if number <= 5 else 9
        file = [header(f"m{number}", store="unknown"), *second([])[1:], taken(taken_s, number + 2, "given")]
        files.append([*file, given(taken_s + held_s, number + 2), at(900, "Tick")])
    files[1][-1:] = [start(300), end(301), at(900, "Tick")]
    report, pictures = drawn(*files)
    members = members_of(pictures.holders)
    assert list(members.lanes) == ["a", "m1", *(f"m{number}" for number in range(6, count - 1))]
    assert (len(members.lanes), members.lanes_left_out) == (MOST_MEMBERS, 5)
    assert "5 more are left out" in page(report, pictures)


def test_many_failovers_are_bounded() -> None:
    """Of very many failovers the largest are drawn, and the page says how many are not."""
    files: list[list[Line]] = [[*first(shards=2), taken(-9, 2, shard=1)], second(shards=2)]
    last = MOST_FAILOVERS + 6
    for number in range(last + 1):
        files[number % 2 == 0].append(taken(20.0 + 9 * number, number + 3, "lost"))
        files[number % 2].append(lost(24.0 + 9 * number, number + 2))
    files[1].append(taken(20.0 + 9 * last, 3, "lost", shard=1))
    for file in files:
        file.sort(key=lambda line: line.get("t", -1e9))
    report, pictures = drawn(*files)
    failovers = members_of(pictures.holders).failovers
    assert len(failovers) == MOST_FAILOVERS
    assert (failovers[0].shards, failovers[0].taken_us) == (2, (20 + 9 * last) * SECOND_US)
    assert "The largest failovers are drawn; 7 more are not." in page(report, pictures)


def test_long_traces_are_thinned() -> None:
    """However often a shard changes hands, the pictures stay small, and count every run."""
    files, count = [first(), second()], 3 * MOST_STRETCHES
    files[0] += [given(0, 2)]
    for number in range(count):
        file, begins = files[number % 2], 1.0 + 60 * number
        file += [taken(begins, number + 3, "given"), start(begins + 1, number), end(begins + 2, number)]
        file.append(given(begins + 50, number + 3))
    encoded = lines(*files)
    outcome = Outcome(events=count, first_us=0, last_us=count * 60 * SECOND_US)
    report = Report(outcome, header_of(1, encoded[0]))
    pictures = cluster_pictures(report, encoded)
    assert pictures.overview is not None
    lane = pictures.overview.lanes["x"]
    assert pictures.overview.is_thinned
    assert len(lane.runs) + len(lane.holds) <= MOST_STRETCHES
    assert sum(run.count for run in lane.runs) == count
    assert {run.member for run in lane.runs} == {"a", "b"}
    assert len(page(report, pictures)) < 1_500_000


def test_zoom_on_a_task() -> None:
    """Around a violation of a task its lane is drawn, who held its shard, and the members it is about."""
    report, pictures = drawn(*overlap())
    [finding] = [each for each in report.shown if "C4" in {one.property for one in each.violations}]
    picture = pictures.zooms[finding.number]
    assert list(picture.lanes) == ["x"]
    assert [hold.member for hold in picture.lanes["x"].holds] == ["a", "b"]
    assert [run.member for run in picture.lanes["x"].runs] == ["a", "b"]
    assert set(members_of(picture).lanes) == {"a", "b"}
    assert members_of(picture).held == {}
    assert [(each.task, each.member) for each in picture.flags] == [("x", "b")]


def test_zoom_shows_who_held_the_shard() -> None:
    """A start by who did not hold the shard is shown with who did, although no event of that one tells it."""
    a = [*first(), start(0), end(1), at(400, "Tick")]
    report, pictures = drawn(a, [*second(), start(40), end(41), at(400, "Tick")])
    [finding] = [each for each in report.shown if "C3" in {one.property for one in each.violations}]
    picture = pictures.zooms[finding.number]
    assert {each.line for each in finding.evidence} == {finding.violations[0].line}
    assert list(members_of(picture).lanes) == ["a", "b"]
    assert [(run.member, run.from_us // SECOND_US) for run in picture.lanes["x"].runs] == [
        ("a", 0),
        ("b", 40),
    ]
    assert [hold.member for hold in picture.lanes["x"].holds] == ["a"]


def test_zoom_on_a_shard() -> None:
    """Around a violation of no task the shard is drawn with both holders, and how many had none."""
    a = [*first(), start(0), end(1), at(250, "Tick")]
    report, pictures = drawn(a, [*second(), taken(20, 2, "given"), at(250, "Tick")])
    [finding] = [each for each in report.shown if each.violations[0].property == "C1"]
    members = members_of(pictures.zooms[finding.number])
    assert [hold.member for hold in members.held[0]] == ["a", "b"]
    assert members.free is not None
    text = svg(pictures.zooms[finding.number], report.zone, label="zoom", lane_px=46)
    heights = re.findall(r'<rect class="hold named m\d" x="[\d.]+" y="([\d.]+)"', text)
    assert len(set(heights)) == 2


def test_zoom_on_a_gap_without_an_end() -> None:
    """A shard that nobody takes has no event of its own: the members and the empty time are shown."""
    a = [*first(tick_ms=4000), *ticks(-6, -3), start(0), end(1), at(2, "Tick")]
    report, pictures = drawn(a, ticking(30))
    [picture] = [pictures.zooms[each.number] for each in report.shown if each.task is None]
    assert set(members_of(picture).lanes) == {"a", "b"}
    assert Level(2 * SECOND_US, 1) in (members_of(picture).free or [])


# --- the page ---


def test_failovers_are_arrows() -> None:
    """An arrow leads from the row of who lost to that of who took; without that row it has no shaft."""
    report, pictures = drawn(*failover())
    assert pictures.holders is not None
    text = svg(pictures.holders, report.zone, label="who", lane_px=40, chain=report.chain)
    assert re.search(r'<g class="failover"><path class="wide" d="M[\d.]+ 82L[\d.]+ 114"/>', text)
    assert "b took over 1 shard of a, 7 s after the loss" in text
    assert "1.jsonl line 4" in text
    alone = drawn([*second(), taken(12, 3, "lost"), at(60, "Tick")])[1].holders
    assert alone is not None
    assert '<g class="failover"><path class="head"' in svg(alone, report.zone, label="who", lane_px=40)


def test_runs_are_labelled_by_member() -> None:
    """Each run has a cap in the colour of its member, which is that of the hold below, and its name."""
    report, pictures = drawn(*failover())
    assert pictures.overview is not None
    text = svg(pictures.overview, report.zone, label="all", lane_px=30)
    assert re.findall(r'<rect class="cap (m\d)"', text) == ["m0", "m1"]
    assert re.findall(r'<rect class="hold (m\d)"', text) == ["m0", "m1"]
    assert ">b</text>" in text
    assert "a died; this is its last sign" in text
    assert ">scheduler<" not in text


def test_page_of_a_failover() -> None:
    """A cluster without violations has its members, who held what and the time lines of its tasks."""
    report, pictures = drawn(*failover())
    text = page(report, pictures)
    assert "Holds: every property" in text
    for title in ("Members", "Who held what", "Time line"):
        assert f"<h2>{title}</h2>" in text
    assert "<h2>Violations</h2>" not in text
    row = re.search(r"<tr><td class=.who.>.*?</svg>a</td>(.*?)</tr>", text)
    assert row is not None
    assert re.findall(r"<td[^>]*>(.*?)</td>", row[1]) == [
        *("1969-12-31 23:59:50+00:00", "1970-01-01 00:00:05+00:00", "died"),
        *("1", "1", "1", "0"),
    ]
    for style in ("cap m0", "band m0", "band free", "hold m1", "alive", "cut", "due"):
        assert re.search(rf'<(rect|path) class="{style}"[^>]*><title>', text), style
    for style in ("death", "edition", "failover"):
        assert f'<g class="{style}"><path' in text, style


def test_page_of_a_violated_cluster() -> None:
    """Each violation has its number in the rows it concerns, and a card of its own to which that leads."""
    report, pictures = drawn(*overlap())
    text = page(report, pictures)
    assert "Violated: " in text
    targets = set(re.findall(r'href="#(\w+)"', text))
    assert targets
    assert targets <= set(re.findall(r'id="(\w+)"', text))
    assert text.count("<figure>") == 2 + len(report.shown)


def test_page_is_inert() -> None:
    """Markup and marks that turn the writing in the names of members and tasks are shown, and do nothing."""
    report, pictures = drawn(*failover(NASTY, NASTY))
    text = page(report, pictures)
    assert "<script" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", text)
    drawings = re.findall(r"<svg viewBox.*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) > 10
    for drawing in drawings:
        ET.fromstring(drawing)


def test_page_says_what_cannot_be_matched() -> None:
    """Dues and runs that do not match make the page say violated, as the command does, and are told."""
    report, pictures = drawn(*failover())
    wrong = Report(report.outcome, report.header, report.chain, Account(targets=1, missed=["x was missed"]))
    text = page(wrong, pictures)
    assert "Violated: not every due and every run can be accounted for" in text
    assert '<header class="verdict violated">' in text
    assert "<p>x was missed</p>" in text
    assert "<h2>Dues and runs" not in page(report, pictures)


def test_page_of_no_event() -> None:
    """Members that recorded nothing have a page without drawings."""
    report, pictures = drawn([header("a")])
    text = page(report, pictures)
    assert "no event in the trace" in text
    assert "<figure>" not in text
