"""Daemons that share their timers and have different files and switches, and show what others ran."""

import re
from html import unescape

import pytest

from tests.acceptance.running import one_sentence, oneshot, service, timer
from tests.acceptance.test_daemon_web import ask, port_of, told
from tests.worlds.fleet import RARELY, Fleet, Machine, until_gone
from tests.worlds.postgres import PostgresServer
from tests.worlds.postgres_guard import is_alive

QUICK = [f"quick-{n}" for n in range(6)]
LONG = [f"long-{n}" for n in range(4)]


@pytest.mark.steady
def test_newer_list(fleet: Fleet) -> None:
    """The newer file takes effect; who has the older runs only what is the same in both, and says so."""
    (a,) = fleet.begin("a", fleet.jobs(QUICK) + fleet.jobs(LONG, "long", **RARELY))
    fleet.until_going_on(QUICK)
    fleet.run_long(a, LONG[:2])
    new = fleet.jobs(QUICK[:4]) + fleet.jobs(["fresh"], on_calendar={"minute": 0})
    new += fleet.jobs(LONG[:3], "long", **RARELY) + fleet.jobs(LONG[3:], "long", **RARELY, persistent=False)
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
    a.reload(new)
    for machine in (a, b):
        assert machine.home.duly("trigger", "fresh", "--wait").returncode == 0
    assert "newer configuration" not in a.home.duly("status").stdout
    fleet.account()


@pytest.mark.steady
def test_switch_of_one_machine(fleet: Fleet) -> None:
    """Timers switched off on one machine go on elsewhere; switched on, it runs some of them again.

    A simple service runs on every machine: only timers are shared.
    """
    web = service("web", 'echo "web $MACHINE $$ begin" >>"$NOTES"; exec sleep 1000')
    a, b = fleet.begin("ab", web + fleet.jobs(QUICK))
    for machine in (a, b):
        fleet.until_begun("web", on=[machine])
        (web_now,) = [each for each in machine.home.asked("services")["services"] if each["id"] == "web"]
        assert web_now["state"] == "running"
    assert a.home.duly("timers", "--off").returncode == 0
    fleet.until_alive(b)
    fleet.until_going_on(QUICK, on=[b], count=1)  # so what ran on the other has ended
    off = fleet.mark()
    fleet.until_going_on(QUICK, on=[b], count=1)
    assert fleet.begins(on=[a], after=off) == []
    assert a.home.asked("timers")["status"] == "disabled"
    assert b.said("NodeFenced") == []
    assert a.home.duly("timers", "--on").returncode == 0
    fleet.until_alive(a, b)
    fleet.until_busy(a, after=fleet.mark())
    assert len(fleet.begins("web")) == 2
    fleet.account()


def test_lease_of_switched_off_timers(fleet: Fleet) -> None:
    """When the lease of timers that are off is lost, only their run is cut off and made up."""
    (a,) = fleet.begin("a", fleet.jobs(LONG, "long", **RARELY))
    lost, kept = LONG[:2]
    fleet.run_long(a, [lost])
    for switch in ("--off", "--on"):
        assert a.home.duly("timers", switch).returncode == 0
    fleet.run_long(a, [kept])
    closed = min(fleet.living(), key=lambda node: node.joined_us)
    fleet.pause(lost, is_on=True)  # a real fence comes after trust is over, this one before
    while not fleet.fence(closed.node):
        pass  # it has sent a heartbeat meanwhile
    a.until("TrustLost")
    until_gone([fleet.begins(lost)[0].pid])
    fleet.pause(lost, is_on=False)
    fleet.until_begun(lost, count=2)
    assert is_alive(fleet.begins(kept)[0].pid)
    for job in (lost, kept):
        fleet.let_end(job)
        a.until(f"TimerRunEnded timer={job} .*result=success")
    assert len(fleet.begins(kept)) == 1
    fleet.account()


def test_killed_after_switching_off(fleet: Fleet) -> None:
    """When the daemon is killed while such a run goes on, the watchdog ends it before another node begins."""
    a, b = fleet.begin("ab", fleet.jobs(LONG, "long", **RARELY))
    (job,) = fleet.run_long(a, LONG[:1])
    assert a.home.duly("timers", "--off").returncode == 0
    a.kill()
    fleet.until_alive(b)
    assert not is_alive(fleet.begins(job)[0].pid)
    fleet.until_begun(job, on=[b])
    fleet.account()


LISTS = ("/", "/runs", "/runs?timer=told", "/services/told", "/timers/told")
MISSING = "Runs of other machines are not shown: "


def with_pages(machine: Machine) -> int:
    """Start a machine with a dashboard; its port."""
    config = machine.home.config
    none, one = "[dashboard]\nenabled = false", '[dashboard]\nlisten = "127.0.0.1:0"'
    assert none in config.read_text()
    config.write_text(config.read_text().replace(none, one))
    return port_of(machine.start().daemon)


def page(port: int, path: str) -> str:
    status, _, body = ask(port, "GET", path)
    assert status == 200, body
    return unescape(body)


def test_runs_of_others_are_shown(fleet: Fleet, postgres: PostgresServer) -> None:
    """Each page and command of one machine has the run of another, with its output; or says why not."""
    cable, url = fleet.cable(postgres.port)
    text = oneshot("told", "echo said on $MACHINE") + timer("told", "told", **RARELY)
    a, b = fleet.machine("a", text, url=url), fleet.machine("b", text)
    port = with_pages(a)
    b.start()
    fleet.until_alive(a, b)
    assert b.home.duly("trigger", "told", "--wait").returncode == 0
    fleet.until(lambda: "machine=" in page(port, "/runs"), "a shows what b did")
    for path in LISTS:
        shown = page(port, path)
        href, machine = re.findall(r'href="(/runs/\d+\?machine=[^"]*)".*?<bdi> on ([^<]*)<', shown)[0]
        assert machine.endswith(f":{b.daemon.pid}"), path
        assert MISSING not in shown
    run = page(port, href)
    assert "said on b" in run
    assert machine in run
    assert "never ran" not in page(port, "/timers?q=told")
    assert 'href="/runs?service=told"' in page(port, "/services?q=told")
    (there,) = told(port, "history?id=told")["runs"]
    assert there["machine"] == machine
    assert told(port, f"logs?run={there['id']}&machine={machine}")["output"] == "said on b\n"
    for options in ([], ["told"], ["--timer", "told"]):
        (past,) = a.home.asked("history", *options)["runs"]
        assert (past["service"], past["timer"], past["result"]) == ("told", "told", "success")
        assert past["machine"] == machine
    for options in (["told"], ["--run", str(past["id"]), "--machine", machine]):
        logs = a.home.duly("logs", *options)
        assert (logs.returncode, logs.stdout) == (0, "said on b\n")
        assert f"it ran on {machine}" in logs.stderr
    (here,) = b.home.asked("history", "told")["runs"]
    assert (here["id"], here["machine"]) == (past["id"], None)
    cable.swallow()
    for path in LISTS:
        silent = page(port, f"{path}{'&' if '?' in path else '?'}silent=")
        assert MISSING in silent
        assert machine not in silent
    a.until("StoreFault")
    assert MISSING in page(port, "/runs?lost=")
    assert ask(port, "GET", f"{href}&lost=")[0] == 503
    cable.heal()
    fleet.until(lambda: machine in page(port, "/runs"), "a shows again what b did")
