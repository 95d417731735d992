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


def ran(seconds: float, run: int = 2, token: int | None = None) -> tuple[Line, Line]:
    return start(seconds, run, token), end(seconds + 1, run)


def one(*events: Line, until_s: float = 400, **facts: Any) -> list[Line]:
    """The node that comes first, and answers the first due."""
    return first(start(0, **facts), end(1), *events, until_s=until_s)


def then(*events: Line) -> list[Line]:
    """Another node, which answers the second due."""
    return second(*events, *LATER)


def woken(*events: Line) -> list[Line]:
    """The node that comes first, which stood still during its run."""
    return alive([*first(start(0), until_s=4), *events], 400, 41)


UNCAUSED = {"S1d", "T3", "T4"}
STOPS = (at(200, "StopStart", call=2), at(200.1, "StopEnd", call=2))
AWAY = (at(200, "Unreachable"), at(360, "Reachable"))
RAISED = (at(2, "StopStart", call=2), at(2.1, "StopEnd", call=2, ok=False))
DEAD, FAILED = first(start(0), until_s=5), first(start(0), end(1, ok=False))
AGAIN = alive([*DEAD, *listed(30, REGS, None, proc="a2"), *ran(31)], 400, 33)
CUT = (start(0), at(20, "TrustLost", runs=["x"]))
BACK_OFF = at(46, "TaskInterruptedAgain", id="x", retry=200_000)
FORGOT = at(10, "ServerChanged", server="two", forgot=True)
NEWER, REMOVED = listed(60, OTHER, 2, call=2), listed(60, [], 2, call=2)
NEWER_STOPS = (*NEWER, at(70, "StopStart", call=3), at(70.1, "StopEnd", call=3))
ON_THE_WAY = [header("a"), at(-61, "InitStart", call=1, regs=OTHER, proc="a1")]
ON_THE_WAY += [at(-58, "ListReconciled", generation=1), at(-57.9, "InitEnd", call=1, ok=True)]
QUICK = [header("b", store="unknown"), *listed(-60.5, REGS, 2, proc="b1"), start(-59.9), end(-59.8)]
DYING = second(at(60, "InitStart", call=2, regs=OTHER), until_s=60)
FINDS_IT = [header("c"), *listed(100, OTHER, None, proc="c1"), *ran(121), *LATER]
PART = [header("a", follows=True, running=[["x", 1]]), *listed(10, REGS, None, call=0), end(20)]
FOREIGN = at(20, "RunStart", id="y", run=5), at(21, "RunEnd", id="y", run=5, ok=True)
DIFFERS = first(start(0, 1, 1), end(300, ok=False), start(419.8, 2, 3), end(421, 2), until_s=500)

RULES: dict[str, tuple[set[str], list[list[Line]]]] = {
    "two runs at once": ({"C4", *UNCAUSED}, [first(start(0), end(20)), then(*ran(5))]),
    "on one node": ({"S1c", "T2", *UNCAUSED}, [first(start(0), *ran(5), end(20)), then()]),
    "clocks differ": (set(), [DIFFERS, second(start(299.7, 7, 2), end(300.2, 7, ok=False), until_s=500)]),
    # dues
    "nobody answers a due": ({"L1"}, [one(), second()]),
    "it is answered late": ({"L1"}, [one(), second(*ran(390))]),
    "it is answered twice": (UNCAUSED, [one(), then(*ran(20))]),
    "nothing is owed while all are stopped": (set(), [one(*STOPS), second(*STOPS)]),
    "nothing is owed without the database": (set(), [one(*AWAY), second(*AWAY, *ran(365))]),
    "retry": (set(), [FAILED, then(*ran(121))]),
    "early retry": ({"S1d"}, [FAILED, then(*ran(60))]),
    # interruptions
    "what a dead node ran starts once more": (set(), [DEAD, then(*ran(14))]),
    "it does not": ({"L1", "T6"}, [DEAD, second(until_s=280)]),
    "it starts twice more": (UNCAUSED, [DEAD, then(*ran(14), *ran(20, 3))]),
    "the next process of a node has seen its death": (set(), [AGAIN, then()]),
    "a run is cut off": (set(), [first(*CUT), then(*ran(25))]),
    "it ends all the same": ({"T8"}, [first(*CUT, end(22)), then(*ran(25))]),
    "it starts again before it is cut off": ({"C4"}, [first(*CUT), then(*ran(15))]),
    "who does not even tick does not run": (set(), [woken(at(40, "TrustLost", runs=["x"])), then(*ran(15))]),
    "who does not even tick ends a run": ({"C4"}, [woken(end(40)), then(*ran(15))]),
    "an end before TrustLost": (set(), [one(at(3, "TrustLost", runs=[])), then(*ran(20))]),
    "an end before NodeReturned": (set(), [one(at(3, "NodeReturned", node=7)), then(*ran(20))]),
    "an end before Unreachable": (set(), [one(at(3, "Unreachable")), then(*ran(20))]),
    "an end before a death": (set(), [one(until_s=2), then(*ran(20))]),
    "an end before a stop that raised": (set(), [one(*RAISED, until_s=2), then(*ran(20))]),
    "back-off": (set(), [first(*CUT, {**BACK_OFF, "t": 21_000}), then(*ran(200))]),
    "none": ({"L1", "T6"}, [first(*CUT), then(*ran(200))]),
    # tokens
    "the same token": ({"C1"}, [one(token=5), second(*ran(300, 1, 5))]),
    "a smaller token": ({"C2"}, [one(token=5), second(*ran(300, 1, 4))]),
    "a server that forgot": (set(), [one(FORGOT, token=5), then(*ran(40, 2, 4))]),
    "two at once on it": ({"C4"}, [first(start(0, 1, 5), end(60), FORGOT), then(*ran(40, 2, 4))]),
    "a server that did not": (UNCAUSED, [one({**FORGOT, "forgot": False}), then(*ran(100))]),
    # lists
    "a newer list": (set(), [one(), then(*NEWER, *ran(120))]),
    "an older one": ({"C6"}, [one(*ran(120)), then(*NEWER)]),
    "claimed before it was removed": (set(), [one(*ran(303)), second(*listed(300.1, [], 2, call=2))]),
    "removed": ({"C6", "S1b", "S1d"}, [one(*ran(320)), second(*listed(300.1, [], 2, call=2))]),
    "nobody that is up has the newest list": (set(), [one(), second(*NEWER_STOPS, until_s=70)]),
    "a report is overtaken": (set(), [alive(ON_THE_WAY, 400), alive([*QUICK, *ran(0), *LATER], 400)]),
    "a list of which nobody tells": (set(), [one(), DYING, alive(FINDS_IT, 400, 101)]),
    "removed, and back": (
        {"C6", "S1b", "S1d"},
        [one(*LATER), second(*REMOVED, *listed(330, REGS, 3, call=3))],
    ),
    "a generation is missing": (set(), [one(*LATER), second(*REMOVED, *listed(330, REGS, 4, call=3))]),
    "in no list": ({"S1b", "S1d"}, [one(*FOREIGN), then()]),
    # what is given
    "a trace is missing": (set(), [one(*ran(20))]),
    "a fenced node's trace is missing": (set(), [one(), then(*ran(50), at(40, "NodeFenced", node=77))]),
    "closed early": (set(), [one(at(100, "End"), until_s=99), second()]),
    "parts of a trace": (set(), [first(start(0), until_s=9), alive(PART, 400, 21), then()]),
    "a run goes on in the next part": ({"C4"}, [alive(PART, 400, 21), then(*ran(15))]),
    "a token of the future": (set(), [one(*ran(20), token=3_600_000_000), then()]),
    "one of the present": (UNCAUSED, [one(*ran(20)), then()]),
}


@pytest.mark.parametrize(("wrong", "files"), RULES.values(), ids=RULES.keys())
def test_rule(wrong: set[str], files: list[list[Line]]) -> None:
    """What each case is called is right, or is all that is wrong."""
    assert violated(*files) == wrong


def test_nodes_are_named() -> None:
    """A violation names both nodes; a call that does not return is held against its node."""
    a = first(start(0), end(20), at(50, "StopStart", call=2))
    told = {each.property: each.reason for each in together(a, then(*ran(5))).violations}
    assert "started by 'b'" in told["C4"]
    assert "'a' at 1970-01-01 00:00:00+00:00 was in flight" in told["C4"]
    assert told["L3"].endswith("(node 'a')")


def test_what_nobody_can_know() -> None:
    """After two interruptions, on a server that forgot, after a recording or a clock, nobody can tell all."""
    cut = [each for n in range(3) for each in (start(n * 20, n), at(n * 20 + 5, "TrustLost", runs=["x"]))]
    assert violated(first(*cut, BACK_OFF), second()) == set()
    assert "L1" in unknown(first(*cut, BACK_OFF), second())
    forgot = one(FORGOT, token=5), then(*ran(40, 2, 4))
    assert unknown(*forgot) >= {"S1d", "C2"}
    assert together(*forgot).forgettings == 1
    assert "L1" in unknown(one(at(100, "End"), until_s=99), second())
    step = one(at(500, "ClockStep", **{"from": 100_000}), until_s=99)
    assert violated(step, second(*ran(20), until_s=99)) == UNCAUSED
    assert "L1" in unknown(step, second())
    for files in ([one(*ran(20))], [then(at(40, "NodeFenced", node=77))]):
        assert (together(*files).is_partial, together(*files).overall) == (True, Verdict.INCONCLUSIVE)
    assert together(DEAD, then(*ran(14))).crashes == 1


def test_after_a_fault_nothing_is_held_against_anybody() -> None:
    """What is found before it stands."""
    faulty = one(at(250, "RunEnd", id="x", run=99, ok=True))
    outcome = together(faulty, second())
    assert (outcome.violations, outcome.tallies["L1"].doubtful) == ([], 1)
    assert outcome.overall is Verdict.INCONCLUSIVE
    assert {each.property for each in together(faulty, second(*ran(20))).violations} == UNCAUSED


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
