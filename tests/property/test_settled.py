"""Small traces on which the monitor and the formulas once differed, and what both must say of them now.

Each was found by `test_formulas.py` or while mending what that had found, and was made as small as it gets. A
story is a row per event: milliseconds since noon, the name of the event, its fields.
"""

from typing import Any, NamedTuple

import pytest

from duly.verify.judge import judged
from duly.verify.properties import Outcome
from tests.property.traces import Line, encoded
from tests.reference.formal.formulas import evaluated

NOON_MS = 1781784000000
EVERY = ["a", "* * * * *", 30_000]
EVERY_AT_ONCE = ["a", "* * * * *", 0]
TWICE = ["a", "0,2 * * * *", 30_000]
HOURLY = ["a", "0 * * * *", 0]
RARE = ["a", "0 0 1 1 *", 0]
RARE_LATER = ["a", "0 0 1 1 *", 30_000]


class Case(NamedTuple):
    """A trace, and what is right to say of it."""

    why: str
    lines: list[Line]
    violated: str
    """The violated properties, as often as they are."""
    crashes: int = 0
    owed: int = 0
    """How many starts are owed at the horizon, and not late."""


def trace(*rows: tuple[float, str, dict[str, Any]], **header: Any) -> list[Line]:
    """The lines of a story."""
    return [
        {"ev": "Header", "v": 1, "tz": "UTC", **header},
        *({"t": NOON_MS + at_ms, "ev": ev, **fields} for at_ms, ev, fields in rows),
    ]


def initialize(begin_ms: float, end_ms: float, call: int, *regs: Any, **begin: Any) -> list[Any]:
    """A successful call."""
    return [
        (begin_ms, "InitStart", {"call": call, "regs": list(regs), **begin}),
        (end_ms, "InitEnd", {"call": call, "ok": True}),
    ]


def start(at_ms: float, task: str = "a", **fields: Any) -> Any:
    """A run starts."""
    return at_ms, "RunStart", {"id": task, **fields}


def end(at_ms: float, *, ok: bool = True, **fields: Any) -> Any:
    """A run ends."""
    return at_ms, "RunEnd", {"id": "a", "ok": ok, **fields}


def stop_start(at_ms: float, call: int, **fields: Any) -> Any:
    return at_ms, "StopStart", {"call": call, **fields}


def stop_end(at_ms: float, call: int, **fields: Any) -> Any:
    """`stop` returns."""
    return at_ms, "StopEnd", {"call": call, **fields}


def steps_back(from_ms: float, count: int) -> list[Any]:
    """The clock is set back by a minute and a half, so many times, a second apart."""
    return [
        (from_ms - 89_000 * step - 90_000, "ClockStep", {"from": NOON_MS + from_ms - 89_000 * step})
        for step in range(count)
    ]


SIX_MINUTES_BACK = [*initialize(0, 1, 1, EVERY), start(2), end(3), *steps_back(1000, 4)]
"""A run, and then four small steps back; it is -355 seconds then."""

NEXT = (9000, "Tick", {"proc": "p2"})

CASES = [
    Case(
        "a stop that was given up does not take the place of the one before it, which returned",
        trace(stop_start(0, 1, proc="p1"), stop_start(1, 2), stop_end(2, 2, void=True), stop_end(2, 1), NEXT),
        "",
    ),
    Case(
        "nor if it is given up after the other has returned",
        trace(stop_start(0, 1, proc="p1"), stop_start(1, 2), stop_end(2, 1), stop_end(2, 2, void=True), NEXT),
        "",
    ),
    Case(
        "nor does an initialize that was given up",
        trace(
            *initialize(0, 1, 1, RARE, proc="p1"),
            stop_start(2, 2),
            stop_end(3, 2),
            (4, "InitStart", {"call": 3, "regs": [RARE]}),
            (5, "InitEnd", {"call": 3, "ok": False, "void": True}),
            NEXT,
        ),
        "",
    ),
    Case(
        "after an initialize that was called later than stop, a new process shows a crash",
        trace(stop_start(0, 1, proc="p1"), *initialize(1, 2, 2, RARE), stop_end(3, 1), NEXT),
        "",
        crashes=1,
    ),
    Case(
        "and so it does after one that returned later",
        trace(
            (0, "InitStart", {"call": 1, "regs": [RARE], "proc": "p1"}),
            stop_start(1, 2),
            stop_end(2, 2),
            (3, "InitEnd", {"call": 1, "ok": True}),
            NEXT,
        ),
        "S5",
        crashes=1,
    ),
    Case(
        "a list that raised says nothing of what an unknown store has answered, whatever the clock does then",
        trace(
            (210_000, "InitStart", {"call": 1, "regs": [RARE]}),
            (210_000, "InitEnd", {"call": 1, "ok": False}),
            (-390_000, "ClockStep", {"from": NOON_MS + 210_000}),
            *initialize(-330_000, -300_000, 2, EVERY_AT_ONCE),
            (-100_000, "End", {}),
            store="unknown",
        ),
        "L1",
    ),
    Case(
        "a list that came while stop was under way makes nothing active, and no start was written then",
        trace(
            (0, "InitStart", {"call": 1, "regs": [EVERY]}),
            stop_start(1, 2),
            (40_000, "InitEnd", {"call": 1, "ok": True}),
            (65_000, "Crash", {}),
            *initialize(250_000, 250_001, 3, TWICE),
            start(250_002),
        ),
        "S1d",
        crashes=1,
    ),
    Case(
        "a stop that has not returned may have waited for the write of a start",
        trace(
            *initialize(0, 1, 1, EVERY),
            start(2),
            end(3),
            stop_start(60_000, 2),
            (60_000, "Crash", {}),
            *initialize(61_000, 61_001, 3, RARE),
            start(61_002),
        ),
        "",
        crashes=1,
    ),
    Case(
        "a list that was in force is fresh to a task that a crash may have removed",
        trace(
            *initialize(0, 1, 1, RARE),
            (2, "InitStart", {"call": 2, "regs": []}),
            (3, "Crash", {}),
            start(4, run=1),
            end(5, run=1),
            *initialize(6, 7, 3, RARE),
            start(8, run=2),
        ),
        "S1a S1d S1d T1",
        crashes=1,
    ),
    Case(
        "a scheduler that lost count of the dues inside an initialize counts from its return on",
        trace(
            (30_000, "InitStart", {"call": 1, "regs": [EVERY]}),
            (91_511, "ClockStep", {"from": NOON_MS + 91_512}),
            (180_001, "InitEnd", {"call": 1, "ok": True}),
            (240_000, "Tick", {}),
            (300_100, "Tick", {}),
        ),
        "L1 L2",
    ),
    Case(
        "also if a step back came in the very instant of a list",
        trace(
            (0, "InitStart", {"call": 1, "regs": []}),
            (0, "InitStart", {"call": 2, "regs": [EVERY]}),
            (-1000, "ClockStep", {"from": NOON_MS}),
            (-91_000, "ClockStep", {"from": NOON_MS - 1000}),
            (-91_000, "InitEnd", {"call": 1, "ok": True}),
            (60_000, "Crash", {}),
            *initialize(60_000, 120_700, 3, EVERY),
            (180_000, "End", {}),
        ),
        "L2 L2",
        crashes=1,
        owed=1,
    ),
    Case(
        "two stops that were both given up have stopped nothing",
        trace(
            *initialize(0, 1, 1, EVERY),
            stop_start(2, 2),
            stop_start(3, 3),
            stop_end(4, 3, void=True),
            stop_end(4, 2, void=True),
            start(5),
        ),
        "",
    ),
    Case(
        "a due between two starts is one for good, and none that comes after them, whatever the clock does",
        trace(
            *initialize(0, 1, 1, EVERY),
            start(2, run=1),
            start(3, run=2),
            (3000, "ClockStep", {"from": NOON_MS + 90_000}),
            end(100_000, run=1),
            end(200_000, run=2),
        ),
        "S1c S1d T2 T3 T4",
        owed=1,
    ),
    Case(
        "a failure lies between two starts even if its run began before the task was removed",
        trace(
            start(0, run=1),
            *initialize(1, 2, 1),
            start(3, run=2),
            end(4, ok=False, run=1),
            start(5, run=3),
        ),
        "S1a S1b S1b S1b S1c S1c S1d S1d S1d T2 T2",
    ),
    Case(
        "a small step back brings no due between the first start and the second",
        trace(
            *initialize(20_001, 20_001, 1, EVERY_AT_ONCE),
            (-69_999, "ClockStep", {"from": NOON_MS + 20_001}),
            start(-69_999, run=1),
            end(-69_998, run=1),
            start(-60_000, run=2),
        ),
        "S1d T3",
    ),
    Case(
        "an end may be lost by a stop that raised, also while another run of its task is in flight",
        trace(
            *initialize(0, 1, 1, EVERY),
            start(2, run=1),
            start(3, run=2),
            stop_start(4, 2),
            end(5, ok=False, run=1),
            stop_end(6, 2, ok=False),
            start(7, run=3),
            persist_window_ms=1000,
        ),
        "S1a S1c S1c S1d S3 T1 T2 T2 T3",
    ),
    Case(
        "a small step back that nobody saw may have been taken for a large one, which brings a retry nearer",
        trace(
            *initialize(0, 1, 1, TWICE),
            start(2),
            end(3, ok=False),
            (4, "Crash", {}),
            (-299_996, "ClockStep", {"from": NOON_MS + 4}),
            *initialize(-269_000, -269_000, 2, TWICE),
            start(-269_000),
        ),
        "",
        crashes=1,
    ),
    Case(
        "a crash leaves open every step back within the persist window, not only the last",
        trace(
            *initialize(299_999, 300_000, 1, EVERY),
            (-1, "ClockStep", {"from": NOON_MS + 300_000}),
            (-300_001, "ClockStep", {"from": NOON_MS - 1}),
            (-299_501, "Crash", {}),
            *initialize(-299_501, -299_496, 2, EVERY),
            (20_040, "End", {}),
            persist_window_ms=1000,
        ),
        "",
        crashes=1,
    ),
    Case(
        "so does a stop that raised",
        trace(
            *initialize(300_000, 300_000, 1, EVERY),
            start(300_001),
            end(300_002),
            (-299_998, "ClockStep", {"from": NOON_MS + 300_002}),
            stop_start(-299_997, 2),
            stop_end(-299_996, 2, ok=False),
            *initialize(-299_995, -299_994, 3, EVERY),
            (0, "End", {}),
            persist_window_ms=1000,
        ),
        "",
    ),
    Case(
        "a scheduler that lost count at one step back does not find it at another, but at the next list",
        trace(
            *initialize(300_000, 300_000, 1, EVERY),
            stop_start(300_000, 2),
            start(305_000, run=1),
            (215_000, "ClockStep", {"from": NOON_MS + 305_000}),
            (-85_000, "ClockStep", {"from": NOON_MS + 215_000}),
            *initialize(-85_000, -85_000, 3, EVERY),
            start(-85_000, run=2),
        ),
        "S1a S1a S1c S1d T1 T2 T3 T7",
    ),
    Case(
        "a list that took effect when called, before a step back that nobody saw, is due as it was then",
        trace(
            (5001, "InitStart", {"call": 1, "regs": [EVERY]}),
            (-3_594_988, "ClockStep", {"from": NOON_MS + 5012}),
            (-3_594_988, "InitEnd", {"call": 1, "ok": True}),
            (-3_474_988, "End", {}),
        ),
        "",
    ),
    Case(
        "a step back inside an initialize that a crash cuts off is open for its list as well",
        trace(
            *initialize(0, 0, 1),
            (1, "InitStart", {"call": 2, "regs": [EVERY]}),
            (-3_600_000, "ClockStep", {"from": NOON_MS + 2}),
            (-3_599_998, "Crash", {}),
            *initialize(-3_599_997, -3_599_990, 3, EVERY),
            (-3_400_000, "End", {}),
            persist_window_ms=1000,
        ),
        "",
        crashes=1,
    ),
    Case(
        "and for a list that was answered before the crash",
        trace(
            *initialize(0, 0, 1),
            (1, "InitStart", {"call": 2, "regs": [EVERY]}),
            (-3_600_000, "ClockStep", {"from": NOON_MS + 2}),
            (-3_599_999, "InitEnd", {"call": 2, "ok": True}),
            (-3_599_998, "Crash", {}),
            *initialize(-3_599_997, -3_599_990, 3, EVERY),
            (-3_400_000, "End", {}),
            persist_window_ms=1000,
        ),
        "",
        crashes=1,
    ),
    Case(
        "small steps back that add up to more than five minutes are a large one when the store is opened",
        trace(
            *SIX_MINUTES_BACK,
            stop_start(-355_000, 2),
            stop_end(-354_999, 2),
            *initialize(-354_000, -353_999, 3, EVERY),
            start(-300_000),
            end(-299_999),
            start(-240_000),
            end(-239_999),
        ),
        "",
    ),
    Case(
        "but need not be, and nothing is owed",
        trace(
            *SIX_MINUTES_BACK,
            stop_start(-355_000, 2),
            stop_end(-354_999, 2),
            *initialize(-354_000, -353_999, 3, EVERY),
            (-1, "End", {}),
        ),
        "",
    ),
    Case(
        "if they add up to less they bring no minute a second time",
        trace(
            *initialize(0, 1, 1, EVERY),
            start(2),
            end(3),
            *steps_back(1000, 3),
            stop_start(-265_000, 2),
            stop_end(-264_999, 2),
            *initialize(-264_000, -263_999, 3, EVERY),
            start(-240_000),
            end(-239_999),
        ),
        "S1d T3 T4 T7",
    ),
    Case(
        "however long it is until the next due",
        trace(
            *initialize(0, 1, 1, HOURLY),
            start(2),
            end(3),
            *steps_back(1000, 1),
            stop_start(-88_000, 2),
            stop_end(-87_999, 2),
            *initialize(-80_000, -80_000, 3, HOURLY),
            start(0),
        ),
        "S1d T3 T7",
    ),
    Case(
        "nor does a list that opens nothing start over",
        trace(
            *SIX_MINUTES_BACK,
            *initialize(-354_000, -353_999, 2, EVERY),
            start(-300_000),
            end(-299_999),
        ),
        "S1d T3 T4 T7",
    ),
    Case(
        "one after a list that failed does",
        trace(
            *SIX_MINUTES_BACK,
            (-355_000, "InitStart", {"call": 2, "regs": [EVERY]}),
            (-354_999, "InitEnd", {"call": 2, "ok": False}),
            *initialize(-354_000, -353_999, 3, EVERY),
            start(-300_000),
            end(-299_999),
        ),
        "",
    ),
    Case(
        "a store from far ahead brings a retry nearer, also where dues stay as they are",
        trace(
            *initialize(0, 1, 1, RARE_LATER),
            start(2),
            end(3, ok=False),
            *steps_back(1000, 4),
            (-355_000, "Crash", {}),
            *initialize(-354_000, -353_000, 2, RARE_LATER),
            start(-324_000),
            store="unknown",
        ),
        "",
        crashes=1,
    ),
    Case(
        "a list that a crash cut off may have counted again since its call, and what came since stands",
        trace(
            *SIX_MINUTES_BACK,
            stop_start(-355_000, 2),
            stop_end(-354_999, 2),
            (-354_000, "InitStart", {"call": 3, "regs": [EVERY]}),
            (-299_500, "Crash", {}),
            *initialize(-299_400, -299_400, 4, EVERY),
            start(-299_399),
        ),
        "",
        crashes=1,
    ),
    Case(
        "after a stop that raised, dues may come again that a step back within the window repeats",
        trace(
            *initialize(5, 10, 1, EVERY),
            start(1011),
            end(1011),
            (-298_989, "ClockStep", {"from": NOON_MS + 1011}),
            (-597_989, "ClockStep", {"from": NOON_MS - 297_989}),
            stop_start(-597_989, 2),
            (-597_984, "StopEnd", {"call": 2, "ok": False}),
            start(-420_000),
            end(-420_000),
            persist_window_ms=1000,
        ),
        "S1a T1",
    ),
    Case(
        "what stood when an earlier step was noticed stands after one that was not, and is owed",
        trace(
            *initialize(299_999, 300_000, 1, EVERY_AT_ONCE),
            (186_000, "ClockStep", {"from": NOON_MS + 306_000}),
            (-112_998, "ClockStep", {"from": NOON_MS + 187_001}),
            (-212_998, "ClockStep", {"from": NOON_MS - 92_998, "proc": "p2"}),
            (-212_993, "InitStart", {"call": 5, "regs": [EVERY_AT_ONCE], "proc": "p3"}),
            (-212_993, "InitEnd", {"call": 5, "ok": True, "proc": "p3"}),
            (-92_992, "End", {}),
            persist_window_ms=1000,
        ),
        "L1",
        crashes=1,
    ),
    Case(
        "where a process speaks again that was thought dead, what was said since is taken back",
        trace(
            *initialize(0, 1, 1, EVERY, proc="p1"),
            start(2, run=1),
            start(3, proc="p2", run=2),
            end(4, proc="p1", run=1),
        ),
        "",
        crashes=1,
    ),
]


def told(outcome: Outcome) -> tuple[str, int, int]:
    """Of what there is to say: the violations, the crashes, the starts owed at the horizon."""
    violated = " ".join(sorted(violation.property for violation in outcome.violations))
    return violated, outcome.crashes, outcome.tallies["L1"].open


@pytest.mark.parametrize("judgement", [judged, evaluated], ids=["monitor", "formulas"])
@pytest.mark.parametrize("case", CASES, ids=[case.why for case in CASES])
def test_settled(case: Case, judgement: Any) -> None:
    """The monitor and the formulas both say what is right."""
    assert told(judgement(encoded(case.lines))) == (case.violated, case.crashes, case.owed)
