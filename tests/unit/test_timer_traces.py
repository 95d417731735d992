"""The traces of daemons that share timers, judged together: each rule kept and broken, in small traces.

`t` is in seconds here. The timers `x` and `y` start the service `job`; `x` has slots at minutes 0 and 5.
"""

from itertools import count
from typing import Any

import msgspec
import pytest

from duly.verify import Verdict
from duly.verify.cluster import judged_timers, judged_together
from duly.verify.properties import Outcome
from duly.verify.trace import TraceError

Line = dict[str, Any]
runs = count(1)


def at(seconds: float, ev: str, **facts: Any) -> Line:
    return {"ev": ev, "t": seconds * 1000, **facts}


def told(seconds: float, name: str, **fields: Any) -> Line:
    return at(seconds, "Told", name=name, fields=fields)


def timer(name: str) -> Line:
    return {
        "id": name,
        "target": "job",
        "persistent": True,
        "on_calendar": [{"minute": [0, 5]}],
        "on_startup_sec": None,
        "on_unit_active_sec": None,
        "retry_intervals_sec": [60.0],
        "catch_up_window_sec": 86_400.0,
        "zone": "UTC",
    }


def run(
    from_s: float,
    to_s: float | None,
    *,
    token: int,
    name: str = "x",
    reason: str = "trigger",
    result: str = "success",
    due_s: float | None = None,
) -> list[Line]:
    """A run of a timer; without *to_s* it does not end."""
    its = {"timer": name, "runId": next(runs), "reason": reason}
    due = f"1970-01-01T00:{round(from_s if due_s is None else due_s) // 60:02}:00+00:00"
    return [
        told(from_s, "TimerFired", **its, target="job", scheduledTime=due, token=token),
        told(from_s, "ServiceRunStarted", **its, service="job", pid=1),
        *(
            [told(to_s, "ServiceRunEnded", **its, service="job", result=result, duration=1)]
            if to_s is not None
            else []
        ),
    ]


def machine(node: str, *events: Line, until_s: float = 500, **facts: Any) -> list[Line]:
    """A machine that writes a tick every second until it dies, or is frozen (`frozen`)."""
    frozen = facts.pop("frozen", (0, 0))
    header = {"ev": "Header", "v": 1, "tz": "UTC", "kind": "timers", "failover_ms": 6_000, "tick_ms": 1_000}
    begin = [
        at(0, "NodeJoined", node=node, lease_ms=2_000, proc=node),
        at(0, "Timers", timers=[timer("x"), timer("y")]),
        told(0, "TimersEnabled", timers=2),
    ]
    ticks = [at(n, "Tick") for n in range(1, round(until_s)) if not frozen[0] < n < frozen[1]]
    return [{**header, "node": node, **facts}, *begin, *sorted([*ticks, *events], key=lambda one: one["t"])]


def verdict(*machines: list[Line]) -> Outcome:
    return judged_timers(msgspec.json.encode(line) + b"\n" for lines in machines for line in lines)


def violated(*machines: list[Line]) -> set[str]:
    return {one.property for one in verdict(*machines).violations}


def test_runs_on_two_machines() -> None:
    """Runs one after the other hold, whichever machine they are on."""
    a = machine("a", *run(10, 20, token=1), *run(300, 310, token=3, reason="schedule"))
    b = machine("b", *run(20, 30, token=2), *run(311, 320, token=7, name="y"))
    outcome = verdict(a, b)
    assert outcome.overall is Verdict.HOLDS, outcome
    assert (outcome.starts, outcome.crashes) == (4, 0)


def test_tokens() -> None:
    """C1 and C2: two starts of a timer have neither the same token nor tokens that fall."""
    assert violated(machine("a", *run(10, 20, token=1)), machine("b", *run(30, 40, token=1))) == {"C1"}
    assert violated(machine("a", *run(10, 20, token=2)), machine("b", *run(30, 40, token=1))) == {"C2"}


@pytest.mark.parametrize("name", ["x", "y"])
def test_overlap_of_machines(name: str) -> None:
    """C4: a target runs on one machine at a time, whichever timers start it."""
    a, b = machine("a", *run(10, 20, token=1)), machine("b", *run(15, 25, token=2, name=name))
    assert violated(a, b) == {"C4"}


def test_order_that_clocks_cannot_tell() -> None:
    """C4: starts of two timers within half a second may have come in the other order."""
    quick = machine("b", *run(10.2, 10.3, token=2, name="y"))
    assert violated(machine("a", *run(10, 20, token=1)), quick) == set()
    slow = machine("b", *run(10.2, 12, token=2, name="y"))
    assert violated(machine("a", *run(10, 20, token=1)), slow) == {"C4"}


def test_death() -> None:
    """A machine that falls silent runs nothing any more; what it ran is made up elsewhere."""
    a = machine("a", *run(10, None, token=1), until_s=15)
    outcome = verdict(a, machine("b", *run(30, 40, token=2, reason="catch-up")))
    assert (outcome.overall, outcome.crashes) == (Verdict.HOLDS, 1), outcome


@pytest.mark.parametrize(("result", "expected"), [("signal", set()), ("success", {"C4"})])
def test_frozen_machine(result: str, expected: set[str]) -> None:
    """C4: a machine that stood still learns late that its watchdog has killed a run; no other end is late."""
    a = machine("a", *run(10, 60, token=1, result=result), frozen=(15, 60))
    assert violated(a, machine("b", *run(30, 40, token=2, reason="catch-up"))) == expected


def test_trust_lost() -> None:
    """C4: a run that was cut off is over, though its end is told later."""
    a = machine("a", *run(10, 35, token=1, result="signal"), at(20, "TrustLost", runs=["x"]))
    assert violated(a, machine("b", *run(30, 40, token=2, reason="catch-up"))) == set()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("pid", "result", "expected"),
    [(None, "interrupted", set()), (1, "interrupted", {"C2"}), (None, "spawn-error", {"C2"})],
)
def test_trust_lost_before_the_process_was_made(
    pid: int | None, result: str, expected: set[str], is_first: bool
) -> None:
    """C2: a run that was called off without a process has not begun, whether or not trust was lost first.

    One with a process has, and so has one whose process could not be made.
    """
    fired, begun, ended = run(10, 45, token=1, result=result)
    begun = {**begun, "t": 45_000, "fields": {**begun["fields"], "pid": pid}}
    lost = [at(44 if is_first else 46, "TrustLost", runs=["x"])]
    a = machine("a", fired, *(lost if is_first else []), begun, ended, *([] if is_first else lost))
    assert violated(a, machine("b", *run(30, 40, token=2, reason="catch-up"))) == expected


@pytest.mark.parametrize(("late", "expected"), [({"lateMs": 29_500}, set()), ({}, {"C2"})])
def test_start_that_is_told_late(late: dict[str, int], expected: set[str]) -> None:
    """C2: what a machine started before it stood still has begun then, though it says so when it is back."""
    fired, begun, ended = run(15, 45.2, token=1, result="interrupted")
    begun = {**begun, "t": 45_000, "fields": {**begun["fields"], **late}}
    lost = at(45.1, "TrustLost", runs=["x"])
    a = machine("a", fired, begun, lost, ended, frozen=(15, 45))
    b = machine("b", *run(30, 40, token=2, reason="catch-up"), *run(41, 42, token=3))
    assert violated(a, b) == expected


def test_due_with_two_runs() -> None:
    """V3: what was due has one run, on one of the machines; a server that forgot it explains a second one."""
    a = machine("a", *run(300, 305, token=1, reason="schedule"))
    again = run(310, 320, token=2, reason="schedule", due_s=300)
    assert violated(a, machine("b", *again)) == {"V3"}
    changed = at(307, "ServerChanged", server="other", forgot=True)
    outcome = verdict(a, machine("b", changed, *again))
    assert (outcome.violations, outcome.verdict("V3")) == ([], Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("result", "from_s", "expected"),
    [("exit", 80, set()), ("exit", 50, {"V5"}), ("success", 80, {"V5"}), ("signal", 80, {"V5"})],
)
def test_retry_on_another_machine(result: str, from_s: float, expected: set[str]) -> None:
    """V5: a retry comes after an exit code, whichever machine saw it, and not before its delay."""
    a = machine("a", *run(10, 20, token=1, result=result))
    assert violated(a, machine("b", *run(from_s, from_s + 1, token=2, reason="retry"))) == expected


def test_retry_without_the_trace_of_the_failure() -> None:
    """V5: with the trace of one machine alone nobody can tell what a retry follows."""
    b = machine("b", *run(10, 20, token=1), *run(80, 90, token=3, reason="retry"))
    outcome = verdict(b)
    assert (outcome.violations, outcome.verdict("V5")) == ([], Verdict.INCONCLUSIVE)


def test_each_machine_by_the_monitor() -> None:
    """V2: the monitor judges each machine by its own timers, and the objection names the machine."""
    (violation,) = verdict(machine("a"), machine("b", *run(61, 65, token=1, reason="schedule"))).violations
    assert (violation.property, violation.task) == ("V2", "x")
    assert "node 'b'" in violation.reason


def test_unreadable_events() -> None:
    """An event whose fields are no run is a fault, and one that lacks what it must say is no trace."""
    outcome = verdict(machine("a", told(5, "TimerFired", timer=3)), machine("b"))
    assert "TimerFired cannot be read" in outcome.faults[0].reason
    with pytest.raises(TraceError, match="TimerFired cannot be read"):
        verdict(machine("a", told(5, "TimerFired", timer="x")), machine("b"))


def test_kinds_do_not_mix() -> None:
    """The trace of a daemon is not taken for one of a scheduler, nor the other way round."""
    lines = [msgspec.json.encode(line) + b"\n" for line in machine("a")]
    with pytest.raises(TraceError, match="a trace of timers, and one of tasks"):
        judged_together(lines)
    header = msgspec.json.encode({"ev": "Header", "v": 1, "tz": "UTC", "node": "b"}) + b"\n"
    with pytest.raises(TraceError, match="a trace of tasks, and one of timers"):
        judged_timers([*lines, header])
