"""The monitor and the formulas are two programs of one specification; on random traces they say the same."""

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from duly.verify.judge import judged
from duly.verify.properties import LIVENESS, PROPERTIES, Outcome, Verdict
from tests.property.traces import KINDS, Line, encoded, random_trace, shrunk
from tests.reference.formal.formulas import evaluated


def said(outcome: Outcome) -> dict[str, Any]:
    """Everything in which two judgements must agree."""
    faults = [fault.line for fault in outcome.faults if not fault.is_unknown_event]
    judgement: dict[str, Any] = {
        "violations": sorted(map(repr, objections(outcome))),
        "verdicts": {name: outcome.verdict(name) for name in PROPERTIES},
        "first fault": faults[:1],
        "gaps": outcome.gaps,
    }
    if not faults:  # what follows a fault is of no account
        judgement["open"] = {name: outcome.tallies[name].open for name in PROPERTIES}
        judgement["seen"] = (
            outcome.events,
            outcome.starts,
            outcome.crashes,
            outcome.first_us,
            outcome.last_us,
        )
        judgement["unknown events"] = [fault.line for fault in outcome.faults]
    return judgement


def objections(outcome: Outcome) -> Iterable[tuple[str, str | None, int, int | None]]:
    """Property, task, instant and, where it is an event that violates, its line."""
    for violation in outcome.violations:
        # Of several tasks that run when `stop` returns each may be named.
        task = None if violation.property == "S3" else violation.task
        line = None if violation.property in LIVENESS else violation.line
        yield violation.property, task, violation.at_us, line


def differ(lines: list[Line]) -> bool:
    """Whether the two say different things of a trace."""
    return said(evaluated(encoded(lines))) != said(judged(encoded(lines)))


def difference(lines: list[Line]) -> str:
    """What they say of the smallest trace like this one on which they differ."""
    small = shrunk(lines, differ)
    formulas, monitor = said(evaluated(encoded(small))), said(judged(encoded(small)))
    seen = [
        f"{key}: the formulas say {formulas[key]}, the monitor says {monitor.get(key)}"
        for key in formulas
        if formulas[key] != monitor.get(key)
    ]
    return "\n".join([*map(json.dumps, small), *seen])


def agree(seed: int, kind: str) -> None:
    """Fail with the smallest trace on which the two differ, and how to make this one again."""
    lines = random_trace(seed, kind)
    if differ(lines):
        pytest.fail(f"random_trace({seed}, {kind!r})\n{difference(lines)}")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_monitor_and_formulas_agree(kind: str) -> None:
    """The monitor and the formulas object to the same events and deadlines, and leave the same open."""
    for seed in range(60):
        agree(seed, kind)


FEW_FIRST = pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(25, 500, 25))]
)


def with_a_gap(lines: list[Line], random: Random) -> list[Line]:
    """The trace with a gap somewhere: a few lines are lost, and a header records it."""
    at = random.randrange(1, len(lines) + 1)
    lost = random.choice((0, 0, 1, 5))
    before, after = lines[:at], lines[at + lost :]
    times = [line["t"] for line in (before[-1], *after[:1]) if "t" in line]
    header = {**lines[0], "store": "unknown", "gap": [min(times, default=None), max(times, default=None)]}
    carried = [
        {"ev": "InitStart", "t": times[-1], "call": 0, "regs": line["regs"]}
        for line in reversed(before)
        if line["ev"] == "InitStart"
    ][:1]
    if carried and random.random() < 0.7:
        after = [*carried, {"ev": "InitEnd", "t": times[-1], "call": 0, "ok": True}, *after]
    return [*before, header, *after]


@pytest.mark.heavy
@FEW_FIRST
@pytest.mark.parametrize("kind", KINDS)
def test_monitor_and_formulas_agree_on_gaps(kind: str, first: int) -> None:
    """After a gap both start over, and neither says that anything holds."""
    for seed in range(first, first + 25):
        lines = with_a_gap(random_trace(seed, kind), Random(seed))
        if differ(lines):
            pytest.fail(f"with_a_gap(random_trace({seed}, {kind!r}), Random({seed}))\n{difference(lines)}")
        assert judged(encoded(lines)).overall is not Verdict.HOLDS


@pytest.mark.heavy
@FEW_FIRST
@pytest.mark.parametrize("kind", KINDS)
def test_monitor_and_formulas_agree_on_a_first_due_after(kind: str, first: int) -> None:
    """Where nothing is owed from the minute of a registration both say so."""
    for seed in range(first, first + 25):
        header, *events = random_trace(seed, kind)
        lines = [{**header, "first_due": "after"}, *events]
        if differ(lines):
            pytest.fail(f"random_trace({seed}, {kind!r}), first_due after\n{difference(lines)}")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 7000, 500))
@pytest.mark.parametrize("kind", KINDS)
def test_monitor_and_formulas_agree_on_many(kind: str, first: int) -> None:
    """The monitor and the formulas agree on thousands of traces, the same every time."""
    for seed in range(first, first + 500):
        agree(seed, kind)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_traces_come_to_the_rare_places(kind: str) -> None:
    """Among a few hundred traces of each kind every kind of event and of doubt occurs."""
    events = {line["ev"] for seed in range(300) for line in random_trace(seed, kind)}
    assert events >= {
        "InitStart",
        "InitEnd",
        "StopStart",
        "StopEnd",
        "RunStart",
        "RunEnd",
        "Crash",
        "ClockStep",
    }


@pytest.mark.heavy
def test_every_property_is_violated_by_some_trace() -> None:
    """Random traces violate every property sooner or later, so that agreement on each means something."""
    missing = set(PROPERTIES) - {"S6"}  # what an App adds, tests/unit/test_app_traces.py has
    for seed in range(3000):
        kind = KINDS[seed % len(KINDS)]
        tallies = judged(encoded(random_trace(seed, kind))).tallies
        missing -= {name for name, tally in tallies.items() if tally.violated}
        if not missing:
            return
    assert not missing


@pytest.mark.heavy
def test_right_traces_are_mostly_right() -> None:
    """Most traces of the tiny scheduler violate nothing: agreement is not only about what is wrong."""
    outcomes = [judged(encoded(random_trace(seed, "right"))) for seed in range(200)]
    spotless = [outcome for outcome in outcomes if not outcome.violations and not outcome.faults]
    assert len(spotless) > 80
