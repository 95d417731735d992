"""The pages of one machine show the runs of all machines that share its timers, and say when they cannot."""

import re
from html import unescape

from tests.acceptance.running import oneshot, timer
from tests.acceptance.test_daemon_web import ask, port_of, told
from tests.worlds.fleet import RARELY, Fleet, Machine
from tests.worlds.postgres import PostgresServer

TOLD = oneshot("told", "echo said on $MACHINE") + timer("told", "told", **RARELY)
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
    """A page that is there."""
    status, _, body = ask(port, "GET", path)
    assert status == 200, body
    return unescape(body)


def test_pages_show_runs_of_others(fleet: Fleet, postgres: PostgresServer) -> None:
    """Each page of one machine has the run of another, with its output; or says why not, and answers."""
    cable, url = fleet.cable(postgres.port)
    a, b = fleet.machine("a", TOLD, url=url), fleet.machine("b", TOLD)
    port = with_pages(a)
    b.start()
    fleet.until_shared(a, b)
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
