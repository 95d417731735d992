"""The traces of a cluster's nodes, judged together: each rule kept and broken, in small traces by hand.

`t` is in seconds here. The task is due at minutes 0 and 5. A failover may take ten seconds.
"""

from itertools import chain
from typing import Any

import msgspec
import pytest

from duly.verify import Verdict, judged
from duly.verify.cluster import judged_together
from duly.verify.properties import CLUSTER_PROPERTIES, PROPERTIES, Outcome
from duly.verify.trace import TraceError

Line = dict[str, Any]
REGS = [["x", "0,5 * * * *", 120_000]]
OTHER = [["x", "2,5 * * * *", 120_000]]


def header(node: str, **facts: Any) -> Line:
    return {
        "ev": "Header",
        "v": 1,
        "tz": "UTC",
        "failover_ms": 10_000,
        "tick_ms": 4_000,
        "node": node,
        **facts,
    }


def at(seconds: float, ev: str, **facts: Any) -> Line:
    return {"ev": ev, "t": seconds * 1000, **facts}


def start(seconds: float, run: int = 1, token: int | None = None) -> Line:
    return at(seconds, "RunStart", id="x", run=run, token=round(seconds * 1000) if token is None else token)


def end(seconds: float, run: int = 1, *, ok: bool = True) -> Line:
    return at(seconds, "RunEnd", id="x", run=run, ok=ok)


def listed(seconds: float, regs: Any, generation: int | None, call: int = 1, **facts: Any) -> list[Line]:
    """A call of `initialize`; with a *generation* its list becomes that of the cluster."""
    return [
        at(seconds, "InitStart", call=call, regs=regs, **facts),
        *([at(seconds + 0.1, "ListReconciled", generation=generation)] if generation else []),
        at(seconds + 0.2, "InitEnd", call=call, ok=True),
    ]


def first(*events: Line, until_s: float = 400, regs: Any = REGS, **facts: Any) -> list[Line]:
    """The node that comes first, and brings its list."""
    return alive([header("a", **facts), *listed(-60, regs, 1, proc="a1"), *events], until_s)


def second(*events: Line, until_s: float = 400, regs: Any = REGS, **facts: Any) -> list[Line]:
    """Another node, with the same list."""
    return alive(
        [header("b", store="unknown", **facts), *listed(-50, regs, None, proc="b1"), *events], until_s
    )


def alive(lines: list[Line], until_s: float, from_s: float = -45) -> list[Line]:
    """The same, with a tick every three seconds."""
    ticks = [at(from_s + 3 * n, "Tick") for n in range(max(int(until_s - from_s) // 3 + 1, 0))]
    return [lines[0], *sorted((*lines[1:], *ticks), key=lambda line: line["t"])]


def encoded(*files: list[Line]) -> list[bytes]:
    return [msgspec.json.encode(line) + b"\n" for line in chain.from_iterable(files)]


def together(*files: list[Line]) -> Outcome:
    return judged_together(encoded(*files))


def violated(*files: list[Line]) -> set[str]:
    outcome = together(*files)
    assert not outcome.fault_count, outcome.faults
    return {each.property for each in outcome.violations}


def unknown(*files: list[Line]) -> set[str]:
    return {name for name, tally in together(*files).tallies.items() if tally.unknown}


LATER = (start(300, run=8), end(301, run=8))
"""The due of minute 5."""


def test_a_cluster_is_asked_about_more() -> None:
    """All properties of a scheduler are asked about, and those of a cluster."""
    outcome = together(first(start(0), end(1)), second(*LATER))
    assert list(outcome.tallies) == [*PROPERTIES, *CLUSTER_PROPERTIES]
    assert outcome.overall is Verdict.HOLDS
    assert (outcome.starts, outcome.tallies["L1"].checked, outcome.tallies["C2"].checked) == (2, 2, 1)


def test_one_trace_can_be_read_as_that_of_a_scheduler() -> None:
    """What a cluster adds to a trace says nothing to who reads it by itself."""
    outcome = judged(encoded(first(start(0), end(1), *LATER)))
    assert outcome.overall is Verdict.HOLDS


# --- two runs at once ---


def test_two_runs_at_once() -> None:
    """No task starts on a node while it runs on another."""
    a, b = first(start(0), end(20)), second(start(5, run=2), end(6, run=2), *LATER)
    assert violated(a, b) == {"C4", "S1d", "T3", "T4"}
    [found] = [each for each in together(a, b).violations if each.property == "C4"]
    assert "started by 'b'" in found.reason
    assert "'a' at 1970-01-01 00:00:00+00:00 was in flight" in found.reason


def test_two_runs_at_once_on_one_node() -> None:
    """A node's own trace tells that two of its runs overlap."""
    assert violated(first(start(0), start(5, run=2), end(6, run=2), end(20)), second(*LATER)) >= {"S1c", "T2"}


def test_clocks_that_differ() -> None:
    """Half a second is no overlap, no early start, and no token out of order."""
    a = first(
        start(0, token=1), end(300, ok=False), start(419.8, run=2, token=3), end(421, run=2), until_s=500
    )
    b = second(start(299.7, run=7, token=2), end(300.2, run=7, ok=False), until_s=500)
    assert violated(a, b) == set()


# --- dues ---


def test_a_due_that_nobody_answers() -> None:
    """A due is answered by some node, in time."""
    assert violated(first(start(0), end(1)), second()) == {"L1"}
    assert violated(first(start(0), end(1)), second(start(390), end(391))) == {"L1"}


def test_a_due_that_is_answered_twice() -> None:
    """One start answers a due; another needs a cause of its own."""
    a, b = first(start(0), end(1)), second(start(20, run=2), end(21, run=2), *LATER)
    assert violated(a, b) == {"S1d", "T3", "T4"}


def test_a_due_while_nobody_can_start_it() -> None:
    """Nothing is owed while every node is stopped, or without the database."""
    stops = [at(200, "StopStart", call=2), at(200.1, "StopEnd", call=2)]
    assert violated(first(start(0), end(1), *stops), second(*stops)) == set()
    away = [at(200, "Unreachable"), at(360, "Reachable"), start(365, run=2), end(366, run=2)]
    assert violated(first(start(0), end(1), *away[:2]), second(*away)) == set()


def test_a_retry_that_is_early() -> None:
    """A retry on whichever node waits for its delay after the failure."""
    a = first(start(0), end(1, ok=False))
    assert violated(a, second(start(121, run=2), end(122, run=2), *LATER)) == set()
    assert violated(a, second(start(60, run=2), end(61, run=2), *LATER)) == {"S1d"}


# --- interruptions ---


def test_a_run_whose_node_dies_starts_once_more() -> None:
    """Another node starts it again, within a failover; and only once."""
    a = first(start(0), until_s=5)
    b = [start(14, run=2), end(15, run=2)]
    assert violated(a, second(*b, *LATER)) == set()
    assert together(a, second(*b, *LATER)).crashes == 1
    assert violated(a, second(until_s=280)) == {"L1", "T6"}
    again = [start(20, run=3), end(21, run=3)]
    assert violated(a, second(*b, *again, *LATER)) == {"S1d", "T3", "T4"}


def test_a_process_after_another_in_one_file() -> None:
    """A process that comes after another of the same node has seen its death."""
    a = first(start(0), until_s=5)
    a = alive([*a, *listed(30, REGS, None, proc="a2"), start(31), end(32)], 400, 33)
    assert violated(a, second(*LATER)) == set()


def test_a_node_that_loses_its_trust() -> None:
    """Its runs are cut off there, and start again; no end counts after that."""
    cut = [start(0), at(20, "TrustLost", runs=["x"])]
    b = second(start(25, run=2), end(26, run=2), *LATER)
    assert violated(first(*cut), b) == set()
    assert violated(first(*cut, end(22)), b) == {"T8"}
    assert violated(first(*cut), second(start(15, run=2), end(16, run=2), *LATER)) >= {"C4"}


def test_a_frozen_node_learns_it_late() -> None:
    """Who does not even tick does not run: others may start its task before it says so."""
    a = alive([*first(start(0), until_s=4), at(40, "TrustLost", runs=["x"])], 400, 41)
    assert violated(a, second(start(15, run=2), end(16, run=2), *LATER)) == set()
    resumed = alive([*first(start(0), until_s=4), end(40)], 400, 41)
    assert violated(resumed, second(start(15, run=2), end(16, run=2), *LATER)) >= {"C4"}


@pytest.mark.parametrize("trouble", ["TrustLost", "NodeReturned", "Unreachable", "death"])
def test_an_end_that_may_not_be_written(trouble: str) -> None:
    """A run that ended when its node was in trouble may start again; without trouble it may not."""
    known: dict[str, Line] = {"TrustLost": {"runs": []}, "NodeReturned": {"node": 7}}
    facts = known.get(trouble, {})
    a = (
        first(start(0), end(1), until_s=2)
        if trouble == "death"
        else first(start(0), end(1), at(3, trouble, **facts))
    )
    b = second(start(20, run=2), end(21, run=2), *LATER)
    assert violated(a, b) == set()
    assert violated(first(start(0), end(1)), b) == {"S1d", "T3", "T4"}


def test_a_stop_that_raised() -> None:
    """Ends before a stop that raised may not be written."""
    stop = [at(2, "StopStart", call=2), at(2.1, "StopEnd", call=2, ok=False)]
    again = second(start(20, run=2), end(21, run=2), *LATER)
    assert violated(first(start(0), end(1), *stop, until_s=2), again) == set()


def test_a_task_that_is_interrupted_again_and_again() -> None:
    """It waits for its back-off, and nobody can say when it must start after two interruptions."""
    cut = [each for n in range(3) for each in (start(n * 20, n), at(n * 20 + 5, "TrustLost", runs=["x"]))]
    back_off = at(46, "TaskInterruptedAgain", id="x", retry=200_000)
    a, b = first(*cut, back_off), second()
    assert violated(a, b) == set()
    assert "L1" in unknown(a, b)
    once = [*cut[:2], {**back_off, "t": 6_000}]
    assert violated(first(*once), second(start(200), end(201), *LATER)) == set()
    assert violated(first(*cut[:2]), second(start(200), end(201), *LATER)) == {"L1", "T6"}


# --- tokens ---


def test_tokens() -> None:
    """They never come twice, and grow from start to start."""
    a = first(start(0, token=5), end(1))
    assert violated(a, second(start(300, token=5), end(301))) == {"C1"}
    assert violated(a, second(start(300, token=4), end(301))) == {"C2"}


def test_a_server_that_forgot() -> None:
    """What it may explain is inconclusive; two runs at once are wrong all the same."""
    forgot = at(10, "ServerChanged", server="two", forgot=True)
    a = first(start(0, token=5), end(1), forgot)
    again = second(start(40, run=2, token=4), end(41, run=2), *LATER)
    assert violated(a, again) == set()
    assert unknown(a, again) >= {"S1d", "C2"}
    assert together(a, again).forgettings == 1
    same = second(start(40, run=2, token=4), end(41, run=2), *LATER)
    assert violated(first(start(0, token=5), end(60), forgot), same) >= {"C4"}
    plain = first(start(0), end(1), {**forgot, "forgot": False})
    assert violated(plain, second(start(100, run=2), end(101, run=2), *LATER)) == {"S1d", "T3", "T4"}


# --- lists ---


def test_a_newer_list_takes_effect() -> None:
    """From then on a task is due as the newer list has it, and starts only on nodes that have that."""
    a = first(start(0), end(1))
    b = second(*listed(60, OTHER, 2, call=2), start(120, run=2), end(121, run=2), *LATER)
    assert violated(a, b) == set()
    late = first(start(0), end(1), start(120, run=2), end(121, run=2))
    assert violated(late, second(*listed(60, OTHER, 2, call=2), *LATER)) == {"C6"}


def test_a_removed_task_is_not_started() -> None:
    """Not even by a node with an older list; what was claimed before may still be called."""
    removed = second(*listed(300.1, [], 2, call=2))
    assert violated(first(start(0), end(1), start(303, run=2), end(304, run=2)), removed) == set()
    late = first(start(0), end(1), start(320, run=2), end(321, run=2))
    assert violated(late, removed) == {"C6", "S1b", "S1d"}


def test_an_older_list_leaves_alone_what_changed() -> None:
    """Nothing is late if no node that is up has the task as the newest list has it."""
    changed = [*listed(60, OTHER, 2, call=2), at(70, "StopStart", call=3), at(70.1, "StopEnd", call=3)]
    assert violated(first(start(0), end(1)), second(*changed, until_s=70)) == set()


def test_a_list_whose_report_is_overtaken() -> None:
    """A list that was in effect before another one is so by the time that the other is reported."""
    late = [at(-61, "InitStart", call=1, regs=OTHER, proc="a1"), at(-58, "ListReconciled", generation=1)]
    slow = alive([header("a"), *late, at(-57.9, "InitEnd", call=1, ok=True)], 400)
    quick = [header("b", store="unknown"), *listed(-60.5, REGS, 2, proc="b1")]
    runs = [start(-59.9), end(-59.8), start(0, run=2), end(1, run=2), *LATER]
    assert not violated(slow, alive([*quick, *runs], 400))


def test_a_list_of_which_nobody_tells() -> None:
    """A node that died in its call may have brought its list: others find it in effect."""
    dying = second(at(60, "InitStart", call=2, regs=OTHER), until_s=60)
    c = alive([header("c"), *listed(100, OTHER, None, proc="c1"), start(121), end(122), *LATER], 400, 101)
    assert violated(first(start(0), end(1)), dying, c) == set()


def test_a_generation_of_which_nobody_tells() -> None:
    """A list whose sender got no answer is missing among the generations, and may explain a start."""
    removed = listed(60, [], 2, call=2)
    a = first(start(0), end(1), *LATER)
    back = listed(330, REGS, 3, call=3)
    assert violated(a, second(*removed, *back)) >= {"S1b", "S1d"}
    assert not violated(a, second(*removed, *listed(330, REGS, 4, call=3)))


# --- what is given ---


def test_the_trace_of_a_node_may_be_missing() -> None:
    """What the others could explain is not held against the one that is there."""
    outcome = together(first(start(0), end(1), start(50, run=2), end(51, run=2)))
    assert (outcome.violations, outcome.is_partial, outcome.overall) == ([], True, Verdict.INCONCLUSIVE)
    fenced = second(*LATER, start(50, run=2), end(51, run=2), at(40, "NodeFenced", node=77))
    assert (violated(first(start(0), end(1)), fenced), together(fenced).is_partial) == (set(), True)


def test_a_recording_that_was_closed_early() -> None:
    """What comes after the end of a recording is not judged: its node goes on unseen."""
    a, b = first(start(0), end(1), at(100, "End"), until_s=99), second()
    assert violated(a, b) == set()
    assert "L1" in unknown(a, b)


def test_parts_of_a_trace() -> None:
    """A file that follows another goes on with its runs."""
    part = [header("a", follows=True, running=[["x", 1]]), *listed(10, REGS, None, call=0), end(20)]
    assert violated(first(start(0), until_s=9), alive(part, 400, 21), second(*LATER)) == set()
    assert violated(alive(part, 400, 21), second(start(15), end(16), *LATER)) == {"C4"}


def test_after_a_fault_nothing_is_held_against_anybody() -> None:
    """What is found before it stands."""
    faulty = first(start(0), end(1), at(250, "RunEnd", id="x", run=99, ok=True))
    outcome = together(faulty, second())
    assert (outcome.violations, outcome.tallies["L1"].doubtful) == ([], 1)
    assert outcome.overall is Verdict.INCONCLUSIVE
    found = {each.property for each in together(faulty, second(start(20, run=2), end(21, run=2))).violations}
    assert found == {"S1d", "T3", "T4"}


def test_a_clock_that_was_set() -> None:
    """After a step of the database's clock the traces cannot tell an order."""
    a = first(start(0), end(1), at(500, "ClockStep", **{"from": 100_000}), until_s=99)
    outcome = together(a, second(start(20, run=2), end(21, run=2), until_s=99))
    assert {each.property for each in outcome.violations} == {"S1d", "T3", "T4"}
    assert "L1" in unknown(a, second())


def test_a_clock_that_was_set_back_while_nobody_looked() -> None:
    """A token is the time of its claim: one from the future shows that times tell no order any more."""
    again = [end(1), start(20, run=2), end(21, run=2)]
    assert violated(first(start(0), *again), second(*LATER)) >= {"S1d"}
    ahead = 3_600 * 1_000_000
    assert not violated(first(start(0, token=ahead), *again), second(*LATER))


def test_a_node_s_own_calls_are_judged() -> None:
    """A call that does not return is held against its node, by name."""
    a = first(start(0), end(1), at(50, "StopStart", call=2), until_s=400)
    [found] = [each for each in together(a, second(*LATER)).violations if each.property == "L3"]
    assert found.reason.endswith("(node 'a')")


def test_a_task_that_is_in_no_list() -> None:
    """It may not start, and its start has no cause."""
    other = at(20, "RunStart", id="y", run=5), at(21, "RunEnd", id="y", run=5, ok=True)
    assert violated(first(start(0), end(1), *other), second(*LATER)) == {"S1b", "S1d"}


def test_traces_that_do_not_belong_together() -> None:
    """Other zones, and traces of no cluster, are refused with the line at which they begin."""
    with pytest.raises(TraceError, match="are they of one cluster"):
        together(first(), second(tz="Europe/Berlin"))
    with pytest.raises(TraceError, match="of no node of a cluster"):
        together(first(), [header(""), at(0, "Tick")])
    with pytest.raises(TraceError, match="empty"):
        together()


# --- options, controls and limits of an App ---


def nodes_of_app(a: list[Line], b: list[Line], regs: Any = REGS, **facts: Any) -> list[list[Line]]:
    """Two nodes with one list, which says more of its tasks, and what each records beside that."""
    return [
        alive([header("a", store="fresh"), *listed(-60, regs, 1, proc="a1", **facts), *a], 400, -60),
        alive([header("b", store="unknown"), *listed(-50, regs, None, proc="b1", **facts), *b], 400, -50),
    ]


def control(seconds: float, what: str, call: int = 5, *, ok: bool = True) -> list[Line]:
    """A control of x that took a tenth of a second."""
    return [
        at(seconds, "ControlStart", call=call, control=what, id="x"),
        at(seconds + 0.1, "ControlEnd", call=call, ok=ok),
    ]


def asked(seconds: float, run: int) -> list[Line]:
    """A start for which its node has found a request on the row."""
    call = 100 + run
    return [
        at(seconds, "ControlStart", call=call, control="run", id="x"),
        at(seconds, "ControlEnd", call=call, ok=True),
        start(seconds, run=run),
    ]


FAILS = (start(0), end(1, ok=False))
DISABLED = {"x": {"enabled": False}}
ONCE = {"x": {"attempts": 1}}


@pytest.mark.parametrize(
    ("options", "a", "b", "wrong"),
    [
        (DISABLED, [], [], set()),
        (DISABLED, [start(0), end(1)], [], {"S1d"}),
        (DISABLED, [*asked(100, run=1), end(101)], control(99.9, "run"), set()),
        (ONCE, [*FAILS], [start(122, run=2), end(123, run=2), start(300, run=3), end(301, run=3)], {"S1d"}),
        (ONCE, [*FAILS], [*LATER], set()),
        ({}, [start(0), end(1)], [*control(100, "run"), *LATER], {"L1"}),
        (
            {},
            [start(0), end(1), *asked(100.2, run=2), end(101, run=2)],
            [*control(100, "run"), *LATER],
            set(),
        ),
        ({}, [start(0), end(1)], [*control(100, "pause")], set()),
        ({}, [start(0), end(1)], [*control(100, "pause"), *LATER], {"S1d"}),
        ({}, [start(0), end(1), *control(200, "resume")], [*control(100, "pause"), *LATER], set()),
        ({}, [start(0), end(1), *control(200, "resume")], [*control(100, "pause")], {"L1"}),
        ({}, [start(0), end(20, ok=False)], [*control(19, "cancel"), *LATER], set()),
    ],
)
def test_what_nodes_were_asked_for_counts_on_all(
    options: dict[str, Any], a: list[Line], b: list[Line], wrong: set[str]
) -> None:
    """What a list says of a task, and a control of any node, decides what all nodes may and must start."""
    found = violated(*nodes_of_app(a, b, options=options))
    assert wrong <= found
    assert bool(wrong) == bool(found)


def test_options_that_differ_are_held_against_nobody() -> None:
    """If nodes have other options of a task, it is not known by which ones it was started."""
    files = nodes_of_app([start(0), end(1)], [], options=DISABLED)
    files[1] = second(*LATER)
    assert violated(*files) == set()
    assert "S1d" in unknown(*files)


def test_a_limit_holds_for_all_nodes() -> None:
    """Runs of one limit on two nodes are too many if they overlap by more than clocks may differ."""
    regs = [*REGS, ["y", "0,5 * * * *", 120_000]]
    facts = {"options": {"x": {"limit": "db"}, "y": {"limit": "db"}}, "limits": {"db": 1}}

    def found(y_start_s: float, limits: dict[str, int]) -> set[str]:
        y = [
            at(y_start_s, "RunStart", id="y", run=1, token=round(y_start_s * 1000)),
            at(y_start_s + 1, "RunEnd", id="y", run=1, ok=True),
        ]
        return violated(*nodes_of_app([start(0), end(10)], y, regs, **{**facts, "limits": limits}))

    assert "S6" in found(5, {"db": 1})
    assert "S6" not in found(5, {"db": 2})
    assert "S6" not in found(9.8, {"db": 1})
    assert "S6" not in found(11, {"db": 1})
