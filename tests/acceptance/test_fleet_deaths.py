"""Daemons that share their timers and die, stand still, or stop: real processes on a real PostgreSQL."""

import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from duly.daemon.sharing import SHARDS
from duly.store.board import shard_of
from tests.fleet_world import RARELY, Fleet, Machine, until_gone

QUICK = [f"quick-{n}" for n in range(9)]
LONG = [f"long-{n}" for n in range(6)]
LAX = [f"lax-{n}" for n in range(6)]


@pytest.fixture
def fleet(postgres_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(postgres_url, tmp_path) as fleet:
        yield fleet


def busy(fleet: Fleet, kind: str = "long") -> str:
    """A file with jobs that come again and again, and long ones; of those the lax are not made up."""
    return (
        fleet.jobs(QUICK)
        + fleet.jobs(LONG, kind, **RARELY)
        + fleet.jobs(LAX, kind, **RARELY, persistent=False)
    )


def run_long(fleet: Fleet, machine: Machine, jobs: Sequence[str]) -> list[str]:
    """Have a machine run those of these long jobs that it holds."""
    held = fleet.held_by(machine, jobs)
    assert held
    for job in held:
        answer = machine.home.duly("trigger", job)
        assert answer.returncode == 0, answer
        fleet.until_begun(job, on=[machine])
    return held


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


def test_share(fleet: Fleet) -> None:
    """Three daemons share all timers: every job goes on where its timer is held, never twice at once."""
    machines = fleet.begin("abc", busy(fleet))
    shares = [fleet.held_by(machine, QUICK) for machine in machines]
    assert sorted(job for held in shares for job in held) == QUICK
    for machine, held in zip(machines, shares, strict=True):
        if held:  # a machine may have got shards without any of them
            fleet.until_going_on(held, on=[machine])
    assert sorted(fleet.shares().values()) == [5, 5, 6]
    after = fleet.mark()
    fleet.until_going_on(QUICK, count=3)
    for job in QUICK:
        assert len({note.machine for note in fleet.begins(job, after=after)}) == 1
    fleet.account()
    assert [line for machine in machines for line in machine.said("Fault|Lost|Traceback")] == []


def test_kill(fleet: Fleet) -> None:
    """The timers of a killed daemon go on elsewhere, and those of others as if nothing had been."""
    a, b, c = fleet.begin("abc", busy(fleet))
    mine = fleet.held_by(a, QUICK)
    others = {job: machine for machine in (b, c) for job in fleet.held_by(machine, QUICK)}
    fleet.until_going_on(mine, on=[a])
    a.kill()
    killed = fleet.mark()
    fleet.until_shared(b, c)
    fleet.until_going_on(QUICK, on=[b, c])
    b.kill()
    fleet.until_shared(c)
    fleet.until_going_on(QUICK, on=[c])
    for job, machine in others.items():
        if machine is c:
            assert {note.machine for note in fleet.begins(job, after=killed)} == {"c"}
    fleet.account()


def test_kill_with_long_runs(fleet: Fleet) -> None:
    """What a killed daemon ran ends with it; it is made up once, elsewhere, unless it is not persistent."""
    a, b, c = fleet.begin("abc", busy(fleet))
    cut, lax = run_long(fleet, a, LONG), run_long(fleet, a, LAX)
    pids = [note.pid for job in (*cut, *lax) for note in fleet.begins(job)]
    a.kill()
    until_gone(pids)
    check_made_up(fleet, cut, lax, [b, c])
    fleet.account()


def test_kill_of_all(fleet: Fleet) -> None:
    """When all were killed and one comes back, it makes up what was cut off, wherever that ran."""
    machines = fleet.begin("ab", busy(fleet))
    cut = [job for machine in machines for job in run_long(fleet, machine, LONG)]
    for machine in machines:
        machine.kill()
    a = machines[0]
    until_gone([note.pid for job in cut for note in fleet.begins(job)])
    a.start()
    fleet.until_shared(a)
    for job in cut:
        fleet.until_begun(job, count=2)
        fleet.let_end(job)
    fleet.until_going_on(QUICK, on=[a])
    assert [len(fleet.begins(job)) for job in cut] == [2] * len(cut)
    fleet.account()


def test_kill_and_start_again(fleet: Fleet) -> None:
    """A daemon that is killed and comes back at once is another machine to the rest: nothing is doubled."""
    a, b = fleet.begin("ab", busy(fleet))
    cut = run_long(fleet, a, LONG)
    a.kill()
    a.start()
    for job in cut:
        fleet.until_begun(job, count=2)
        fleet.let_end(job)
    fleet.until_shared(a, b)
    fleet.until_going_on(QUICK)
    assert [len(fleet.begins(job)) for job in cut] == [2] * len(cut)
    fleet.account()


def test_freeze(fleet: Fleet) -> None:
    """A daemon that stood still for longer than its lease starts and records nothing of what others have.

    Its runs have ended with its lease, though it could not see to that. When it wakes up it joins anew.
    """
    a, b = fleet.begin("ab", busy(fleet))
    cut, lax = run_long(fleet, a, LONG), run_long(fleet, a, LAX)
    pids = [note.pid for job in (*cut, *lax) for note in fleet.begins(job)]
    a.freeze()
    before = a.mark()
    until_gone(pids)
    fleet.until_shared(b)
    check_made_up(fleet, cut, lax, [b])
    woken = fleet.mark()
    a.thaw()
    a.until("MemberJoined", after=before)
    lines = a.said("", after=before)
    first = next(n for n, line in enumerate(lines) if "MemberJoined" in line)
    # What it started right before it froze may be told only now; but nothing of that begins now.
    told = [re.search(r"ServiceRunStarted .*pid=(\d+)", line) for line in lines[:first]]
    assert not {int(said[1]) for said in told if said} & {
        run.pid for run in fleet.begins(on=[a], after=woken)
    }
    assert [line for line in lines[:first] if "ShardsLost" in line]
    fleet.until_shared(a, b)
    fleet.until_going_on(fleet.held_by(a, QUICK), on=[a])
    assert [len(fleet.begins(job)) for job in cut] == [2] * len(cut)
    assert fleet.begins(on=[a], after=woken)
    fleet.account()


def test_short_freeze(fleet: Fleet) -> None:
    """A daemon that stood still for less than its lease goes on as if nothing had been."""
    a, b = fleet.begin("ab", busy(fleet))
    long = run_long(fleet, a, LONG)
    for _ in range(3):
        a.freeze()
        fleet.until_going_on(fleet.held_by(b, QUICK)[:1], on=[b], count=1)
        a.thaw()
        fleet.until_going_on(fleet.held_by(a, QUICK)[:1], on=[a])
    assert [len(fleet.begins(job)) for job in long] == [1] * len(long)
    assert [line for machine in (a, b) for line in machine.said("ShardsLost")] == []
    fleet.account()


def test_stop(fleet: Fleet) -> None:
    """A daemon that is told to stop gives its timers away at once; what it cut off is made up elsewhere."""
    a, b, c = fleet.begin("abc", busy(fleet))
    cut, lax = run_long(fleet, a, LONG), run_long(fleet, a, LAX)
    a.daemon.ended()
    check_made_up(fleet, cut, lax, [b, c])
    fleet.until_shared(b, c)
    assert [line for machine in (b, c) for line in machine.said("ShardsTaken .*from=lost")] == []
    fleet.account()


def test_slow_stop(fleet: Fleet) -> None:
    """While a run takes its time to end, the timers of idle jobs go on elsewhere; its own only after it."""
    a, b = fleet.begin("ab", busy(fleet, "deaf"))
    deaf = run_long(fleet, a, LONG)[0]
    busy_shards = {shard_of(job, SHARDS) for job in LONG}
    mine = [job for job in fleet.held_by(a, QUICK) if shard_of(job, SHARDS) not in busy_shards]
    assert mine
    a.daemon.send(signal.SIGTERM)
    fleet.until_going_on(mine, on=[b], count=3)
    assert fleet.holder(deaf) == "a", fleet.story()
    a.daemon.send(signal.SIGTERM)
    assert a.daemon.code() == 0
    fleet.until_begun(deaf, on=[b])
    fleet.account()


@pytest.mark.slow
def test_stop_and_start_in_turn(fleet: Fleet) -> None:
    """Restarting one machine after the other loses nothing and doubles nothing."""
    machines = fleet.begin("abc", busy(fleet))
    for machine in machines:
        machine.daemon.ended()
        fleet.until_going_on(QUICK, count=1)
        machine.start()
        fleet.until_shared(*machines)
    fleet.until_going_on(QUICK)
    fleet.account()


def test_waiting_for_a_run_of_a_machine_that_dies(fleet: Fleet) -> None:
    """Who waits for a run on another machine, which dies, is told that it was cut off, with code 1."""
    a, b = fleet.begin("ab", fleet.jobs(LAX, "long", **RARELY, persistent=False))
    job = fleet.held_by(b, LAX)[0]
    with ThreadPoolExecutor(1) as background:
        waiting = background.submit(a.home.duly, "trigger", job, "--wait")
        a.until(f"OperatorAction action=trigger id={job} ")
        fleet.until_begun(job, on=[b])
        b.kill()
        answer = waiting.result()
    there = rf"\S+:{b.daemon.pid}"
    assert re.fullmatch(rf"run \d+ on {there} ended: interrupted\n", answer.stdout), answer
    assert re.fullmatch(rf"Triggered {job} on {there}: run \d+ there\.\n", answer.stderr)
    assert answer.returncode == 1
    assert len(fleet.begins(job)) == 1
    fleet.account()
