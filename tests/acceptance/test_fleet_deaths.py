"""Daemons that share their timers and die, stand still, or stop: real processes on a real PostgreSQL."""

import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.worlds.fleet import RARELY, Fleet, Machine, until_gone

QUICK = [f"quick-{n}" for n in range(6)]
LONG = [f"long-{n}" for n in range(3)]
LAX = [f"lax-{n}" for n in range(2)]


def busy(fleet: Fleet, kind: str = "long") -> str:
    """A file with jobs that come again and again, and long ones; of those the lax are not made up."""
    return (
        fleet.jobs(QUICK)
        + fleet.jobs(LONG, kind, **RARELY)
        + fleet.jobs(LAX, kind, **RARELY, persistent=False)
    )


def check_made_up(fleet: Fleet, cut: Sequence[str], lax: Sequence[str], among: Sequence[Machine]) -> None:
    """Each job that was cut off ran once more, on one of these machines; of the lax none did."""
    for job in cut:
        fleet.until_begun(job, on=among)
        fleet.let_end(job)
    fleet.until_going_on(QUICK, on=among, count=3)
    for job in cut:
        assert len(fleet.begins(job)) == 2, fleet.story()
        assert [reason for machine in among for reason in machine.reasons(job)] == ["catch-up"]
    for job in lax:
        assert len(fleet.begins(job)) == 1, fleet.story()
        assert [machine for machine in among if machine.said(f"TimerMissed timer={job} .*reason=shutdown")]


def check_history(machines: Sequence[Machine], jobs: Sequence[str]) -> None:
    """Each machine lists the run of each job that was cut off, once, wherever that was."""
    for machine in machines:
        for job in jobs:
            runs = machine.home.asked("history", job)["runs"]
            assert [run["result"] for run in runs].count("interrupted") == 1, (machine.name, runs)


def test_the_judge_sees_an_overlap(tmp_path: Path) -> None:
    """Runs one after the other are fine on any machines; a note of a run after its successor began is not."""
    with Fleet("postgresql://nowhere/none", tmp_path) as fleet:
        notes = tmp_path / "notes"
        fine = ["x a 1 begin", "y b 1 begin", "x a 1 beat", "y b 1 end", "x b 2 begin", "x b 2 end"]
        notes.write_text("\n".join([*fine, "x a 3 begin", ""]))
        fleet.account()
        notes.write_text("\n".join([*fine, "x a 1 beat", ""]))
        with pytest.raises(AssertionError, match="x runs on a and"):
            fleet.account()
        fleet.account(excused=["x"])


def test_kill_with_long_runs(fleet: Fleet) -> None:
    """What a killed daemon ran ends with it; it is made up once, elsewhere, unless it is not persistent."""
    a, b, c = fleet.begin("abc", busy(fleet))
    cut, lax = fleet.run_long(a, LONG), fleet.run_long(a, LAX)
    pids = [note.pid for job in (*cut, *lax) for note in fleet.begins(job)]
    a.kill()
    until_gone(pids)
    check_made_up(fleet, cut, lax, [b, c])
    check_history([b, c], [*cut, *lax])
    fleet.account()


def test_kill_and_start_again(fleet: Fleet) -> None:
    """A daemon that is killed and comes back at once is another machine to the rest: nothing is doubled."""
    a, b = fleet.begin("ab", busy(fleet))
    cut = fleet.run_long(a, LONG)
    a.kill()
    a.start()
    for job in cut:
        fleet.until_begun(job, count=2)
        fleet.let_end(job)
    fleet.until_shared(a, b)
    fleet.until_going_on(QUICK)
    assert [len(fleet.begins(job)) for job in cut] == [2] * len(cut)
    check_history([a, b], cut)
    fleet.account()


def test_freeze(fleet: Fleet) -> None:
    """A daemon that stood still for longer than its lease starts and records nothing of what others have.

    Its runs have ended with its lease, though it could not see to that. When it wakes up it comes back.
    """
    a, b = fleet.begin("ab", busy(fleet))
    cut, lax = fleet.run_long(a, LONG), fleet.run_long(a, LAX)
    pids = [note.pid for job in (*cut, *lax) for note in fleet.begins(job)]
    a.freeze()
    before = a.mark()
    until_gone(pids)
    fleet.until_shared(b)
    check_made_up(fleet, cut, lax, [b])
    woken = fleet.mark()
    a.thaw()
    a.until("NodeReturned", after=before)
    lines = a.said("", after=before)
    first = next(n for n, line in enumerate(lines) if "NodeReturned" in line)
    # What it started right before it froze may be told only now; but nothing of that begins now.
    told = [re.search(r"ServiceRunStarted .*pid=(\d+)", line) for line in lines[:first]]
    assert not {int(said[1]) for said in told if said} & {
        run.pid for run in fleet.begins(on=[a], after=woken)
    }
    assert [line for line in lines[:first] if "TrustLost" in line]
    fleet.until_shared(a, b)
    fleet.until_busy(a, after=woken)
    assert [len(fleet.begins(job)) for job in cut] == [2] * len(cut)
    fleet.account()


@pytest.mark.steady
def test_stop(fleet: Fleet) -> None:
    """A daemon that is told to stop claims nothing more; what it cut off is made up elsewhere."""
    a, b, c = fleet.begin("abc", busy(fleet))
    cut, lax = fleet.run_long(a, LONG), fleet.run_long(a, LAX)
    a.daemon.ended()
    check_made_up(fleet, cut, lax, [b, c])
    fleet.until_shared(b, c)
    assert [line for machine in (b, c) for line in machine.said("NodeFenced")] == []
    fleet.account()


@pytest.mark.steady
def test_slow_stop(fleet: Fleet) -> None:
    """While a run takes its time to end, all other timers go on elsewhere; its own only after it."""
    a, b = fleet.begin("ab", busy(fleet, "deaf"))
    (deaf,) = fleet.run_long(a, LONG[:1])
    a.daemon.send(signal.SIGTERM)
    fleet.until_going_on(QUICK, on=[b], count=3)
    assert fleet.runs_on(deaf) == "a", fleet.story()
    a.daemon.send(signal.SIGTERM)
    assert a.daemon.code() == 0
    fleet.until_begun(deaf, on=[b])
    fleet.account()
