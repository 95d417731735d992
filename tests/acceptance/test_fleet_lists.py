"""Daemons that share their timers and have different files, switches and start-ups."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from duly.daemon.sharing import SCHEMA, SHARDS
from duly.store.board import shard_of
from tests.acceptance.running import one_sentence, service, timer
from tests.fleet_world import PACE, RARELY, Fleet, is_running

QUICK = [f"quick-{n}" for n in range(8)]
LONG = [f"long-{n}" for n in range(4)]


@pytest.fixture
def fleet(postgres_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(postgres_url, tmp_path) as fleet:
        yield fleet


def test_newer_list(fleet: Fleet) -> None:
    """The newer file takes effect; who has the older starts nothing and says so, until it is reloaded."""
    old = fleet.jobs(QUICK) + fleet.jobs(LONG, "long", **RARELY)
    new = fleet.jobs(QUICK[:6]) + fleet.jobs(["fresh-0", "fresh-1"], on_calendar={"minute": 0})
    new += fleet.jobs(LONG, "long", **RARELY)
    (a,) = fleet.begin("a", old)
    fleet.until_going_on(QUICK, on=[a])
    for job in LONG[:2]:
        assert a.home.duly("trigger", job).returncode == 0
        fleet.until_begun(job)
    b = fleet.machine("b", new).start()
    a.until("EditionSuperseded .*newest=2")
    seen = fleet.mark()
    for job in LONG[:2]:
        fleet.let_end(job)
    fleet.until_shared(b)
    fleet.until_going_on(QUICK[:6], on=[b], count=3)
    assert fleet.begins(on=[a], after=seen) == []
    assert fleet.begins(QUICK[7], after=seen) == []
    assert [len(fleet.begins(job)) for job in LONG[:2]] == [1, 1]
    assert b.home.duly("trigger", "fresh-0", "--wait").returncode == 0
    a.reload(new)
    fleet.until_shared(a, b)
    held = fleet.held_by(a, QUICK[:6])
    assert held
    fleet.until_going_on(held, on=[a])
    assert b.said("EditionSuperseded") == []
    fleet.account()


def test_rolling_reload(fleet: Fleet) -> None:
    """A new file reloaded on one machine after the other takes effect with the first; nothing is doubled."""
    old, new = fleet.jobs(QUICK), fleet.jobs([*QUICK, "fresh-0"])
    machines = fleet.begin("abc", old)
    fleet.until_going_on(QUICK)
    for machine in machines:
        machine.reload(new)
        fleet.until_going_on(QUICK, count=1)
    fleet.until_shared(*machines)
    fleet.until_going_on(QUICK)
    for machine in machines[:2]:
        if fleet.held_by(machine, ["fresh-0"]):
            assert machine.home.duly("trigger", "fresh-0", "--wait").returncode == 0
    fleet.account()


def test_list_of_the_dead(fleet: Fleet) -> None:
    """When nobody with the newer file is left, the older one runs what that left as it was, and no more."""
    old = fleet.jobs(QUICK)
    new = fleet.jobs(QUICK[:4]) + fleet.jobs(QUICK[4:6], on_startup_sec=0.1, on_unit_active_sec=0.7)
    (a,) = fleet.begin("a", old)
    fleet.until_going_on(QUICK, on=[a])
    b = fleet.machine("b", new).start()
    fleet.until_shared(b)
    fleet.until_going_on(QUICK[:6], on=[b])
    b.daemon.ended()
    after = fleet.mark()
    fleet.until_shared(a)
    fleet.until_going_on(QUICK[:4], on=[a], count=3)
    for job in QUICK[4:]:
        a.until(f"TimerSkipped timer={job} .*a newer list changed or removed it")
        assert fleet.begins(job, after=after) == []
    fleet.account()


def test_services_are_each_machines_own(fleet: Fleet) -> None:
    """A simple service runs on every machine; only timers are shared."""
    web = service("web", 'echo "web $MACHINE $$ begin" >>"$NOTES"; exec sleep 1000')
    a, b = fleet.begin("ab", web + fleet.jobs(QUICK))
    for machine in (a, b):
        fleet.until_begun("web", on=[machine])
        (web_now,) = [each for each in machine.home.asked("services")["services"] if each["id"] == "web"]
        assert web_now["state"] == "running"
    a.daemon.ended()
    fleet.until_going_on(QUICK, on=[b])
    assert len(fleet.begins("web")) == 2


def test_gate_of_one_machine(fleet: Fleet) -> None:
    """Timers switched off on one machine go on elsewhere at once; switched on, it gets its share again."""
    a, b = fleet.begin("ab", fleet.jobs(QUICK))
    mine = fleet.held_by(a, QUICK)
    assert mine
    assert a.home.duly("timers", "--off").returncode == 0
    fleet.until_shared(b)
    off = fleet.mark()
    fleet.until_going_on(QUICK, on=[b])
    assert fleet.begins(on=[a], after=off) == []
    assert a.home.asked("timers")["status"] == "disabled"
    assert b.said("ShardsTaken .*from=lost") == []
    assert a.home.duly("timers", "--on").returncode == 0
    fleet.until_shared(a, b)
    fleet.until_going_on(fleet.held_by(a, QUICK), on=[a])
    fleet.account()


def test_by_hand_elsewhere(fleet: Fleet) -> None:
    """A timer that another machine holds is triggered and switched there; both machines tell who did it."""
    a, b = fleet.begin("ab", fleet.jobs(LONG, **RARELY))
    job = fleet.held_by(b, LONG)[0]
    done = a.home.asked("trigger", job)
    assert done["done"] == "triggered"
    assert done["member"].endswith(f":{b.daemon.pid}")
    fleet.until_begun(job, on=[b])
    b.until(rf"OperatorAction action=trigger id={job} who=machine \S+:{a.daemon.pid}\b")
    a.until(rf"OperatorAction action=trigger id={job} who=(?!machine)")
    b.until(f"TimerRunEnded timer={job} ")
    answer = a.home.duly("trigger", job, "--wait")
    assert answer.returncode == 0
    assert re.fullmatch(rf"run \d+ on \S+:{b.daemon.pid} ended: success\n", answer.stdout)
    for command, is_on in (("disable", False), ("enable", True)):
        assert a.home.duly(command, job).returncode == 0
        for machine in (a, b):
            (shown,) = [each for each in machine.home.asked("timers")["timers"] if each["id"] == job]
            assert shown["enabled"] is is_on
    assert a.home.duly("trigger", "nope").returncode == 3
    assert [note.machine for note in fleet.begins(job)] == ["b", "b"]
    fleet.account()


def test_refused_elsewhere(fleet: Fleet) -> None:
    """What the holder refuses is refused with the same sentence on every machine."""
    a, b = fleet.begin("ab", fleet.jobs(LONG, "long", **RARELY))
    job = fleet.held_by(b, LONG)[0]
    assert a.home.duly("trigger", job).returncode == 0
    fleet.until_begun(job, on=[b])
    there, here = b.home.duly("trigger", job), a.home.duly("trigger", job)
    assert (here.returncode, here.stdout) == (1, "")
    assert one_sentence(here) == one_sentence(there)
    assert a.home.asked("trigger", job, code=1)["error"]["kind"] == "overlap"
    fleet.let_end(job)
    b.until(f"TimerRunEnded timer={job} ")
    assert len(fleet.begins(job)) == 1


def test_by_hand_while_the_holder_stands_still(fleet: Fleet) -> None:
    """What is asked of a frozen machine is done by the next holder, once; or it is said that nothing was."""
    a, b = fleet.begin("ab", fleet.jobs(LONG, **RARELY))
    job = fleet.held_by(b, LONG)[0]
    b.freeze()
    said: list[str] = []

    def is_done() -> bool:
        answer = a.home.duly("trigger", job)
        said.append(answer.stdout + answer.stderr)
        return answer.returncode == 0

    fleet.until(is_done, "a does it itself")
    for refusal in said[:-1]:
        assert "nothing was done" in refusal or "on its way" in refusal
    assert re.fullmatch(rf"Triggered {job}: run \d+\.\n", said[-1])
    fleet.until_begun(job, on=[a])
    b.thaw()
    b.until("ShardsLost")
    fleet.until_shared(a, b)
    assert [note.machine for note in fleet.begins(job)] == ["a"]
    fleet.account()


def test_switches_survive_a_failover(fleet: Fleet) -> None:
    """A timer that was switched off is off wherever it goes, until somebody switches it on there."""
    a, b = fleet.begin("ab", fleet.jobs(QUICK))
    job = fleet.held_by(a, QUICK)[0]
    fleet.until_begun(job)
    assert a.home.duly("disable", job).returncode == 0
    a.kill()
    fleet.until_shared(b)
    off = fleet.mark()
    others = [each for each in QUICK if each != job]
    fleet.until_going_on(others, on=[b], count=3)
    assert fleet.begins(job, after=off) == []
    (shown,) = [each for each in b.home.asked("timers")["timers"] if each["id"] == job]
    assert shown["enabled"] is False
    a.start()
    fleet.until_shared(a, b)
    holder = a if fleet.held_by(a, [job]) else b
    assert holder.home.duly("enable", job).returncode == 0
    fleet.until_going_on([job], on=[holder])
    fleet.account()


def test_what_others_hold_is_shown(fleet: Fleet) -> None:
    """`duly timers` shows every timer on every machine, those of others as they were a moment ago."""
    a, b = fleet.begin("ab", fleet.jobs(LONG, **RARELY))
    job = fleet.held_by(b, LONG)[0]
    assert b.home.duly("trigger", job, "--wait").returncode == 0
    (there,) = [each for each in b.home.asked("timers")["timers"] if each["id"] == job]
    shown = a.home.asked("timers")["timers"]
    assert [each["id"] for each in shown] == LONG

    def is_shown() -> bool:
        (here,) = [each for each in a.home.asked("timers")["timers"] if each["id"] == job]
        return (here["last_run_at"], here["last_result"]) == (there["last_run_at"], "success")

    fleet.until(is_shown, "a shows what b did")


def test_minutely(fleet: Fleet) -> None:
    """A minute that comes while three daemons share its timers is answered once for each timer."""
    by_shard = {shard_of(name, SHARDS): name for name in (f"minute-{n}" for n in range(200))}
    jobs = [by_shard[shard] for shard in range(SHARDS)]
    machines = fleet.begin("abc", fleet.jobs(jobs, on_calendar={}))
    fleet.until(lambda: {note.job for note in fleet.begins()} == set(jobs), "the minute comes", 90)
    for job in jobs:
        (fired,) = [line for machine in machines for line in machine.said(f"TimerFired timer={job} ")]
        assert " reason=schedule " in fired
        assert ":00+00:00 " in fired
    assert {note.machine for note in fleet.begins()} == set("abc")
    fleet.account()


def test_start_together(postgres_url: str, tmp_path: Path) -> None:
    """Machines that start at the same moment on an empty database share it, and that is one start-up."""
    # A busy host is no fault: with the usual lease a call may take three seconds, not one.
    with Fleet(postgres_url, tmp_path, lease_sec=6) as fleet:
        text = fleet.jobs(LONG, on_startup_sec=2) + fleet.jobs(QUICK)
        machines = [fleet.machine(name, text) for name in "abc"]
        for machine in machines:
            machine.start(is_awaited=False)
        fleet.until_going_on(QUICK)
        fleet.until_shared(*machines)
        for job in LONG:
            fleet.until_begun(job)
        fleet.until_going_on(QUICK, count=4)
        assert [len(fleet.begins(job)) for job in LONG] == [1] * len(LONG), fleet.story()
        faults = [line for machine in machines for line in machine.said("Fault|Traceback|error:")]
        assert faults == [], fleet.story()
        fleet.account()


def test_start_up_of_the_fleet(fleet: Fleet) -> None:
    """A start-up trigger comes once, for the first machine, wherever its timer has gone meanwhile."""
    text = fleet.jobs(LONG, on_startup_sec=6) + fleet.jobs(["pace"])
    (a,) = fleet.begin("a", text)
    b = fleet.machine("b", text).start()
    fleet.until_shared(a, b)
    assert fleet.begins(LONG[0]) == []
    for job in LONG:
        fleet.until_ended(job)
    assert {note.machine for job in LONG for note in fleet.begins(job)} == {"a", "b"}
    a.daemon.ended()
    fleet.until_going_on(["pace"], on=[b], count=8)
    assert [len(fleet.begins(job)) for job in LONG] == [1] * len(LONG)
    fleet.account()


def test_closed_gate_with_a_run(fleet: Fleet) -> None:
    """A run that goes on after the gate was closed keeps its shard, also when the gate is opened again."""
    text = fleet.jobs(QUICK) + fleet.jobs(LONG, "long", **RARELY)
    a, b = fleet.begin("ab", text)
    job = fleet.held_by(a, LONG)[0]
    others = [name for name in QUICK if shard_of(name, SHARDS) != shard_of(job, SHARDS)]
    assert a.home.duly("trigger", job).returncode == 0
    fleet.until_begun(job)
    assert a.home.duly("timers", "--off").returncode == 0
    fleet.until(lambda: fleet.shares() == {"a": 1, "b": SHARDS - 1}, "b has all but one")
    fleet.until_going_on(others, on=[b])
    assert fleet.holder(job) == "a"
    assert a.home.duly("timers", "--on").returncode == 0
    fleet.until(lambda: fleet.shares().get("a", 0) > 1, "a has a share again")
    assert fleet.holder(job) == "a"
    fleet.let_end(job)
    fleet.until(lambda: len(fleet.view().seats) == 2, "the member of the closed gate has left")
    fleet.until_shared(a, b)
    holder = a if fleet.held_by(a, [job]) else b
    assert holder.home.duly("trigger", job, "--wait").returncode == 0
    assert len(fleet.begins(job)) == 2
    fleet.account()


def test_lease_of_a_closed_gate(fleet: Fleet) -> None:
    """When the lease of a closed gate is lost only its run is cut off, and made up; those since go on."""
    (a,) = fleet.begin("a", fleet.jobs(LONG, "long", **RARELY))
    lost, kept = LONG[0], next(job for job in LONG if shard_of(job, SHARDS) != shard_of(LONG[0], SHARDS))
    assert a.home.duly("trigger", lost).returncode == 0
    (cut_off,) = fleet.until_begun(lost)
    assert a.home.duly("timers", "--off").returncode == 0
    assert a.home.duly("timers", "--on").returncode == 0
    assert a.home.duly("trigger", kept).returncode == 0
    (going_on,) = fleet.until_begun(kept)
    with psycopg.connect(fleet.url) as connection:
        gone = connection.execute(f"DELETE FROM {SCHEMA}.member WHERE is_leaving RETURNING member")
        assert len(gone.fetchall()) == 1
    a.until("ShardsLost")
    fleet.until_begun(lost, count=2)
    assert not is_running(cut_off.pid)
    assert is_running(going_on.pid)
    for job in (lost, kept):
        fleet.let_end(job)
        fleet.until_ended(job)
    a.until(f"TimerRunEnded timer={kept} .*result=success")
    assert len(fleet.begins(kept)) == 1
    fleet.account()


def test_end_after_a_closed_gate(fleet: Fleet) -> None:
    """A daemon that is told to end while such a run goes on ends it, and gives its shard away."""
    text = fleet.jobs(LONG, "long", **RARELY)
    a, b = fleet.begin("ab", text)
    job = fleet.held_by(a, LONG)[0]
    assert a.home.duly("trigger", job).returncode == 0
    (begun,) = fleet.until_begun(job)
    assert a.home.duly("timers", "--off").returncode == 0
    a.daemon.ended()
    assert not is_running(begun.pid)
    fleet.until_shared(b)
    fleet.account()


def test_killed_after_a_closed_gate(fleet: Fleet) -> None:
    """When the daemon is killed while such a run goes on, the leash ends it before another machine begins."""
    text = fleet.jobs(LONG, "long", **RARELY)
    a, b = fleet.begin("ab", text)
    job = fleet.held_by(a, LONG)[0]
    assert a.home.duly("trigger", job).returncode == 0
    (begun,) = fleet.until_begun(job)
    assert a.home.duly("timers", "--off").returncode == 0
    a.kill()
    fleet.until_shared(b)
    assert not is_running(begun.pid)
    fleet.until_begun(job, on=[b])
    fleet.account()


def test_switch_and_another_target(fleet: Fleet) -> None:
    """A timer that was switched off stays off when the file gives it another target."""
    jobs = fleet.jobs(QUICK) + fleet.job("one") + fleet.job("two")
    (a,) = fleet.begin("a", jobs + timer("t", "one", **PACE))
    assert a.home.duly("disable", "t").returncode == 0
    a.reload(jobs + timer("t", "two", **PACE))
    seen = fleet.mark()
    fleet.until_going_on(QUICK)
    assert fleet.begins("two", after=seen) == []
    assert a.home.duly("enable", "t").returncode == 0
    fleet.until_begun("two", after=seen)
