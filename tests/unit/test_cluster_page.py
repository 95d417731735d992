"""The page of a cluster: a table of its nodes, and time lines that say which node ran what."""

import re

from duly.verify.cluster import judged_together
from duly.verify.reporting.cluster import MOST_TASKS, cluster_pictures
from duly.verify.reporting.history import Stretch, StretchKind
from duly.verify.reporting.page import page
from duly.verify.reporting.report import Chain, Report, text_lines
from duly.verify.reporting.timeline import Pictures
from duly.verify.trace import header_of
from tests.unit.test_cluster_traces import (
    LATER,
    Line,
    alive,
    at,
    encoded,
    end,
    first,
    header,
    listed,
    second,
    start,
)

NASTY = '"><script>alert(1)</script>\u202e'


def drawn(*files: list[Line]) -> tuple[Report, Pictures]:
    lines, names = encoded(*files), Chain()
    for number, _ in enumerate(files):
        names.begin(f"{number}.jsonl", 1 + sum(map(len, files[:number])))
    report = Report(judged_together(lines), header_of(1, lines[0]), names)
    return report, cluster_pictures(report, lines)


def failover() -> list[list[Line]]:
    """The first node dies with a run in flight, and the second starts it again."""
    return [first(start(0), until_s=5), second(start(14, run=2), end(15, run=2), *LATER)]


def overlap() -> list[list[Line]]:
    """The second node starts what the first is running."""
    return [first(start(0), end(20)), second(start(5, run=2), end(6, run=2), *LATER)]


def nasty(lines: list[Line]) -> list[Line]:
    """The same, with names that are no good."""
    found = []
    for line in lines:
        names = {"id": NASTY} if "id" in line else {"node": NASTY} if line["ev"] == "Header" else {}
        regs = {"regs": [[NASTY, *line["regs"][0][1:]]]} if "regs" in line else {}
        found.append({**line, **names, **regs})
    return found


def runs_of(pictures: Pictures, task: str = "x") -> list[Stretch]:
    assert pictures.overview is not None
    return pictures.overview.lanes[task].runs


def test_nodes_are_told_in_a_few_words() -> None:
    """Each has its starts, how many of its runs were cut off, and what became of it."""
    stopped = [at(50, "StopStart", call=2), at(50.1, "StopEnd", call=2)]
    c = alive(
        [header("c"), *listed(-40, [["x", "0,5 * * * *", 120_000]], None, proc="c1"), *stopped], 51, -39
    )
    _, pictures = drawn(*failover(), c)
    told = [(row.name, row.processes, row.starts, row.ending) for row in pictures.nodes]
    assert told == [("a", 1, 1, "died"), ("b", 1, 2, "alive"), ("c", 1, 0, "stopped")]


def test_runs_are_drawn_with_their_nodes() -> None:
    """A run has the node that ran it, how it ended, and whether it makes up for another."""
    _, pictures = drawn(*failover())
    assert [(run.node, run.kind, run.is_again) for run in runs_of(pictures)] == [
        ("a", StretchKind.CUT, False),
        ("b", StretchKind.SUCCEEDED, True),
        ("b", StretchKind.SUCCEEDED, False),
    ]
    lost = first(start(0), at(20, "TrustLost", runs=["x"]))
    _, pictures = drawn(lost, second(start(25, run=2), end(26, run=2, ok=False), *LATER))
    assert [run.kind for run in runs_of(pictures)] == [
        StretchKind.LOST,
        StretchKind.FAILED,
        StretchKind.SUCCEEDED,
    ]
    begun = [header("a", running=[["x", 1]]), *listed(-60, [["x", "0,5 * * * *", 120_000]], 1, proc="a1")]
    _, pictures = drawn(alive(begun, 400), second())
    assert [(run.kind, "begun before" in run.words) for run in runs_of(pictures)] == [
        (StretchKind.UNFINISHED, True)
    ]


def test_what_concerns_all() -> None:
    """Lists, deaths, other servers and faults are drawn across all tasks."""
    a, b = failover()
    b = alive(
        [*b, at(50, "ServerChanged", server="2", forgot=True), at(60, "RunEnd", id="y", ok=True)], 400, 401
    )
    _, pictures = drawn(a, b)
    assert pictures.overview is not None
    assert {each.kind for each in pictures.overview.across} == {
        StretchKind.LIST,
        StretchKind.CRASH,
        StretchKind.SERVER,
        StretchKind.FAULT,
    }


def test_tasks_that_ran_on_most_nodes_come_first() -> None:
    """There is room for a dozen; the rest is counted."""
    regs = [[f"t{number}", "0 12 * * *", 0] for number in range(20)]
    ran = [at(1, "RunStart", id="t19", run=1), at(2, "RunEnd", id="t19", run=1, ok=True)]
    _, pictures = drawn(first(*ran, regs=regs), second(regs=regs))
    assert pictures.overview is not None
    assert next(iter(pictures.overview.lanes)) == "t19"
    assert (len(pictures.overview.lanes), pictures.overview.lanes_left_out) == (MOST_TASKS, 20 - MOST_TASKS)


def test_page_of_a_failover() -> None:
    """The page has the table of nodes, a colour for each, and no part of shards."""
    report, pictures = drawn(*failover())
    text = page(report, pictures)
    assert "<h2>Nodes</h2>" in text
    assert 'class="cap m0"' in text
    assert 'class="cap m1"' in text
    assert "run 2 on b, token 14000, again after a crash" in text
    assert ">a died<" in text


def test_page_of_a_violated_cluster() -> None:
    """Each violation has a picture of its own, with the runs of both nodes."""
    report, pictures = drawn(*overlap())
    zoom = pictures.zooms[1]
    assert {run.node for run in zoom.lanes["x"].runs} == {"a", "b"}
    text = page(report, pictures)
    assert "Violated" in text
    assert 'href="#v1"' in text
    told = "\n".join("".join(piece.text for piece in line) for line in text_lines(report))
    assert "started by 'b'" in told


def test_page_is_inert() -> None:
    """No name of a task or a node can be markup; traces without an event have a page without a picture."""
    text = page(*drawn(*(nasty(file) for file in overlap())))
    assert "<script" not in text
    assert not re.search("[\u202a-\u202e]", text)
    assert "There is no event" in page(*drawn([header("a")], [header("b")]))
