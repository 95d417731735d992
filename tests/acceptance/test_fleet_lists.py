"""Daemons that share their timers and have different files, switches and start-ups."""

import pytest

from tests.acceptance.running import one_sentence, oneshot, service, timer
from tests.worlds.fleet import RARELY, Fleet, until_gone
from tests.worlds.postgres_guard import is_alive

QUICK = [f"quick-{n}" for n in range(6)]
LONG = [f"long-{n}" for n in range(4)]


@pytest.mark.steady
def test_newer_list(fleet: Fleet) -> None:
    """The newer file takes effect; who has the older runs only what is the same in both, and says so."""
    old = fleet.jobs(QUICK) + fleet.jobs(LONG, "long", **RARELY)
    new = fleet.jobs(QUICK[:4]) + fleet.jobs(["fresh-0", "fresh-1"], on_calendar={"minute": 0})
    new += fleet.jobs(LONG[:3], "long", **RARELY) + fleet.jobs(LONG[3:], "long", **RARELY, persistent=False)
    (a,) = fleet.begin("a", old)
    fleet.until_going_on(QUICK, on=[a])
    for job in LONG[:2]:
        assert a.home.duly("trigger", job).returncode == 0
        fleet.until_begun(job)
    b = fleet.machine("b", new).start()
    fleet.until(lambda: "newer configuration" in a.home.duly("status").stdout, "a says that it is behind")
    assert "newer configuration" in one_sentence(a.home.duly("trigger", LONG[3]))
    for job in LONG[:2]:
        fleet.let_end(job)
    fleet.until_going_on(QUICK[:4])  # what was claimed before has begun by now
    seen = fleet.mark()
    fleet.until_going_on(QUICK[:4], count=3)
    assert fleet.begins(QUICK[5], after=seen) == []
    assert [len(fleet.begins(job)) for job in LONG[:2]] == [1, 1]
    assert b.home.duly("trigger", "fresh-0", "--wait").returncode == 0
    a.reload(new)
    assert a.home.duly("trigger", "fresh-0", "--wait").returncode == 0
    assert "newer configuration" not in a.home.duly("status").stdout
    fleet.account()


@pytest.mark.steady
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


@pytest.mark.steady
def test_gate_of_one_machine(fleet: Fleet) -> None:
    """Timers switched off on one machine go on elsewhere at once; switched on, it runs some of them again."""
    a, b = fleet.begin("ab", fleet.jobs(QUICK))
    fleet.until_busy(a)
    assert a.home.duly("timers", "--off").returncode == 0
    fleet.until_shared(b)
    fleet.until_going_on(QUICK, on=[b], count=1)  # so what ran on the other has ended
    off = fleet.mark()
    fleet.until_going_on(QUICK, on=[b], count=1)
    assert fleet.begins(on=[a], after=off) == []
    assert a.home.asked("timers")["status"] == "disabled"
    assert b.said("NodeFenced") == []
    assert a.home.duly("timers", "--on").returncode == 0
    fleet.until_shared(a, b)
    on = fleet.mark()
    fleet.until_busy(a, after=on)
    fleet.account()


@pytest.mark.steady
def test_refused_elsewhere(fleet: Fleet) -> None:
    """A job that runs is not triggered a second time, on whatever machine; the sentence is the same."""
    a, b = fleet.begin("ab", fleet.jobs(LONG, "long", **RARELY))
    job = LONG[0]
    assert b.home.duly("trigger", job).returncode == 0
    fleet.until_begun(job, on=[b])
    there, here = b.home.duly("trigger", job), a.home.duly("trigger", job)
    assert (here.returncode, here.stdout) == (1, "")
    assert one_sentence(here) == one_sentence(there)
    assert a.home.asked("trigger", job, code=1)["error"]["kind"] == "overlap"
    (shown,) = [each for each in a.home.asked("timers")["timers"] if each["id"] == job]
    assert shown["running"]
    assert shown["member"].endswith(f":{b.daemon.pid}")
    fleet.let_end(job)
    b.until(f"TimerRunEnded timer={job} ")
    assert len(fleet.begins(job)) == 1


@pytest.mark.steady
def test_runs_of_others_are_shown(fleet: Fleet) -> None:
    """`duly history` and `duly logs` of one machine show a run of another, with its output."""
    told = oneshot("told", "echo said on $MACHINE") + timer("told", "told", **RARELY)
    a, b = fleet.begin("ab", told)
    assert a.home.duly("trigger", "told", "--wait").returncode == 0
    fleet.until(lambda: b.home.asked("history", "told")["runs"], "b shows what a did")
    for options in ([], ["told"], ["--timer", "told"]):
        (run,) = b.home.asked("history", *options)["runs"]
        assert (run["service"], run["timer"], run["result"]) == ("told", "told", "success")
        assert run["machine"].endswith(f":{a.daemon.pid}")
    numbered = ["--run", str(run["id"]), "--machine", run["machine"]]
    for options in (["told"], numbered):
        shown = b.home.duly("logs", *options)
        assert (shown.returncode, shown.stdout) == (0, "said on a\n")
        assert f"it ran on {run['machine']}" in shown.stderr
    (here,) = a.home.asked("history", "told")["runs"]
    assert (here["id"], here["machine"]) == (run["id"], None)
    b.daemon.ended()
    a.daemon.ended()
    a.start()
    assert [each["machine"] for each in a.home.asked("history", "told")["runs"]] == [None]


@pytest.mark.steady
def test_switched_off_with_a_run(fleet: Fleet) -> None:
    """A run that goes on after the timers were switched off keeps its timer, also when they are on again."""
    text = fleet.jobs(QUICK) + fleet.jobs(LONG, "long", **RARELY)
    a, b = fleet.begin("ab", text)
    job = LONG[0]
    assert a.home.duly("trigger", job).returncode == 0
    fleet.until_begun(job)
    assert a.home.duly("timers", "--off").returncode == 0
    fleet.until_going_on(QUICK, on=[b])
    assert fleet.runs_on(job) == "a"
    assert b.home.asked("trigger", job, code=1)["error"]["kind"] == "overlap"
    assert a.home.duly("timers", "--on").returncode == 0
    fleet.until(lambda: len(fleet.nodes()) == 3, "a has a second node")
    assert fleet.runs_on(job) == "a"
    fleet.let_end(job)
    fleet.until_shared(a, b)
    assert b.home.duly("trigger", job, "--wait").returncode == 0
    assert len(fleet.begins(job)) == 2
    fleet.account()


def test_lease_of_switched_off_timers(fleet: Fleet) -> None:
    """When the lease of timers that are off is lost, only their run is cut off and made up."""
    (a,) = fleet.begin("a", fleet.jobs(LONG, "long", **RARELY))
    lost, kept = LONG[:2]
    assert a.home.duly("trigger", lost).returncode == 0
    (cut_off,) = fleet.until_begun(lost)
    assert a.home.duly("timers", "--off").returncode == 0
    assert a.home.duly("timers", "--on").returncode == 0
    assert a.home.duly("trigger", kept).returncode == 0
    (going_on,) = fleet.until_begun(kept)
    closed = min(fleet.nodes(), key=lambda node: node.joined_us)
    fleet.pause(lost, is_on=True)  # a real fence comes after trust is over, this one before
    while not fleet.fence(closed.node):
        pass  # it has sent a heartbeat meanwhile
    a.until("TrustLost")
    until_gone([cut_off.pid])
    fleet.pause(lost, is_on=False)
    fleet.until_begun(lost, count=2)
    assert is_alive(going_on.pid)
    for job in (lost, kept):
        fleet.let_end(job)
        fleet.until_ended(job)
    a.until(f"TimerRunEnded timer={kept} .*result=success")
    assert len(fleet.begins(kept)) == 1
    fleet.account()


def test_killed_after_switching_off(fleet: Fleet) -> None:
    """When the daemon is killed while such a run goes on, the watchdog ends it before another node begins."""
    text = fleet.jobs(LONG, "long", **RARELY)
    a, b = fleet.begin("ab", text)
    job = LONG[0]
    assert a.home.duly("trigger", job).returncode == 0
    (begun,) = fleet.until_begun(job)
    assert a.home.duly("timers", "--off").returncode == 0
    a.kill()
    fleet.until_shared(b)
    assert not is_alive(begun.pid)
    fleet.until_begun(job, on=[b])
    fleet.account()
