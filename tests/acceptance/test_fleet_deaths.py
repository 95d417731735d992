"""Daemons that share their timers and die, stand still, stop, or lose the database: real processes."""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.running import one_sentence
from tests.worlds.fleet import RARELY, Fleet, Machine, until_gone
from tests.worlds.postgres import PASSWORD, PostgresServer

QUICK = [f"quick-{n}" for n in range(6)]
LONG = [f"long-{n}" for n in range(3)]
LAX = [f"lax-{n}" for n in range(2)]


def busy(fleet: Fleet, *more: str) -> str:
    """A file with jobs that come again and again, and long ones; of those the lax are not made up."""
    lax = fleet.jobs(LAX, "long", **RARELY, persistent=False)
    return fleet.jobs([*QUICK, *more]) + fleet.jobs(LONG, "long", **RARELY) + lax


def run_all(fleet: Fleet, machine: Machine) -> list[int]:
    """Have a machine run all long jobs; their processes."""
    return [note.pid for job in fleet.run_long(machine, [*LONG, *LAX]) for note in fleet.begins(job)]


def check_made_up(fleet: Fleet, among: Sequence[Machine], *more: str) -> None:
    """Each job that was cut off ran once more, on one of these machines; of the lax none did."""
    for job in (*LONG, *more):
        assert fleet.until_begun(job, count=2)[1].machine in {machine.name for machine in among}
        fleet.let_end(job)
    fleet.until_going_on(QUICK, on=among, count=3)
    for job in (*LONG, *more):
        assert (len(fleet.begins(job)), fleet.reasons(job)) == (2, ["catch-up", "trigger"]), fleet.story()
    for job in LAX:
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


def test_kill(fleet: Fleet) -> None:
    """What a killed daemon ran ends with it, and is made up once; if it comes back, it is another machine."""
    a, b = fleet.begin("ab", busy(fleet))
    pids = run_all(fleet, a)
    a.kill()
    until_gone(pids)
    a.start()
    check_made_up(fleet, [a, b])
    fleet.until_alive(a, b)
    for machine in (a, b):
        for job in (*LONG, *LAX):
            results = [run["result"] for run in machine.home.asked("history", job)["runs"]]
            assert results.count("interrupted") == 1, (machine.name, results)
    fleet.account()


def test_freeze(fleet: Fleet) -> None:
    """A daemon that stood still for longer than its lease starts and records nothing of what others have.

    Its runs have ended with its lease, though it could not see to that. When it wakes up it comes back.
    """
    a, b = fleet.begin("ab", busy(fleet))
    pids = run_all(fleet, a)
    a.freeze()
    before = a.mark()
    until_gone(pids)
    fleet.until_alive(b)
    check_made_up(fleet, [b])
    woken = fleet.mark()
    a.thaw()
    a.until("NodeReturned", after=before)
    lines = a.said("", after=before)
    first = next(n for n, line in enumerate(lines) if "NodeReturned" in line)
    # What it started right before it froze may be told only now; but nothing of that begins now.
    seen = [re.search(r"ServiceRunStarted .*pid=(\d+)", line) for line in lines[:first]]
    begun = {run.pid for run in fleet.begins(on=[a], after=woken)}
    assert not {int(said[1]) for said in seen if said} & begun
    assert [line for line in lines[:first] if "TrustLost" in line]
    fleet.until_alive(a, b)
    fleet.until_busy(a, after=woken)
    fleet.account()


@pytest.mark.steady
def test_stop(fleet: Fleet) -> None:
    """A daemon that is told to stop claims nothing more. While a run takes its time, all else goes on.

    What it cuts off is made up elsewhere.
    """
    a, b = fleet.begin("ab", busy(fleet) + fleet.jobs(["deaf"], "deaf", **RARELY))
    run_all(fleet, a)
    fleet.run_long(a, ["deaf"])
    a.daemon.send(signal.SIGTERM)
    fleet.until_going_on(QUICK, on=[b], count=3)
    assert fleet.runs_on("deaf") == "a", fleet.story()
    a.daemon.send(signal.SIGTERM)
    assert a.daemon.code() == 0
    check_made_up(fleet, [b], "deaf")
    fleet.until_alive(b)
    assert b.said("NodeFenced") == []
    fleet.account()


@pytest.mark.parametrize("how", ["swallow", "cut"])
def test_partition(fleet: Fleet, postgres: PostgresServer, how: str) -> None:
    """A daemon without the database ends its runs before others start them, and comes back for more.

    Meanwhile it refuses a new file in a sentence.
    """
    cable, url = fleet.cable(postgres.port)
    a, b = fleet.begin("ab", busy(fleet), urls=[url, ""])
    run_all(fleet, a)
    getattr(cable, how)()
    a.until("TrustLost")
    check_made_up(fleet, [b])
    fleet.until_alive(b)
    lost = fleet.mark()
    fleet.until_going_on(QUICK, on=[b])
    assert fleet.begins(on=[a], after=lost) == []
    a.until("StoreFault")
    assert a.home.duly("status", "--check").returncode == 1
    a.home.write(fleet.configured(busy(fleet, "fresh"), url))
    assert PASSWORD not in one_sentence(a.home.duly("reload"))
    before = a.mark()
    cable.heal()
    a.until("NodeReturned", after=before)
    a.until("StoreRecovered", after=before)
    fleet.until_alive(a, b)
    b.reload(busy(fleet, "fresh"))
    a.reload(busy(fleet, "fresh"))
    healed = fleet.mark()
    fleet.until_busy(a, after=healed)
    fleet.run_long(a, ["fresh"])
    fleet.account()


def test_database_killed(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The database is killed and comes back: whatever ran meanwhile ran once, and everything goes on."""
    with Fleet(own_postgres.url(), tmp_path) as fleet:
        a, b = fleet.begin("ab", busy(fleet))
        fleet.run_long(a, LONG)
        fleet.run_long(b, LAX)
        own_postgres.kill()
        for machine in (a, b):
            machine.until("TrustLost")
        own_postgres.start()
        for machine in (a, b):
            machine.until("StoreRecovered")
        check_made_up(fleet, [a, b])
        fleet.until_alive(a, b)
        fleet.account()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_traces_of_a_killed_daemon(pgbouncer_url: str, postgres_url: str, tmp_path: Path) -> None:
    """The traces of daemons hold, though one was killed, but not if two of them tell the same start.

    These reach the database through PgBouncer.
    """
    with Fleet(postgres_url, tmp_path) as fleet:
        text = fleet.jobs(QUICK) + fleet.jobs(["long"], "long", **RARELY)
        a, b = fleet.begin("ab", text, urls=[pgbouncer_url] * 2)
        fleet.run_long(a, ["long"])
        fleet.until_going_on(QUICK)
        a.kill()
        fleet.until_begun("long", on=[b])
        fleet.let_end("long")
        fleet.until(lambda: fleet.notes("long")[-1].kind == "end", "the job ends")
        fleet.until_going_on(QUICK, on=[b])
        b.daemon.ended()
        verdict = fleet.verdict()
        assert verdict["crashes"] == 1, verdict
        checked = {one["id"]: one["checked"] for one in verdict["properties"]}
        assert all(checked[name] for name in ("V2", "V3", "V4", "C1", "C2", "C4")), checked
        fleet.account()

        # Another machine says that it has started the same.
        names = {"TimerFired", "ServiceRunStarted"}
        seen = [line for line in lines_of(tmp_path / "a-0.jsonl") if line.get("name") in names]
        header, *other = lines_of(tmp_path / "b-0.jsonl")
        copied = [line | {"proc": other[0]["proc"]} for line in seen if line["fields"]["timer"] == "long"]
        assert len(copied) == 2
        tampered = sorted([*other, *copied], key=lambda line: line["t"])
        lines = [json.dumps(line) + "\n" for line in (header, *tampered)]
        (tmp_path / "b-0.jsonl").write_text("".join(lines))
        violated = {one["property"] for one in fleet.verdict(code=1)["violations"]}
        assert violated >= {"C1", "C4"}
