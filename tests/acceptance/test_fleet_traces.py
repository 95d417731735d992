"""The traces of daemons that share their timers: real processes on a real PostgreSQL, judged together."""

import json
from pathlib import Path
from typing import Any

from tests.worlds.fleet import RARELY, Fleet

QUICK = [f"quick-{n}" for n in range(6)]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def violated(verdict: dict[str, Any]) -> set[str]:
    return {one["property"] for one in verdict["violations"]}


def test_traces_of_a_killed_daemon(fleet: Fleet) -> None:
    """The traces of three daemons hold, though one was killed, but not if two of them tell the same start."""
    a, b, c = fleet.begin("abc", fleet.jobs(QUICK) + fleet.jobs(["long"], "long", **RARELY))
    assert a.home.duly("trigger", "long").returncode == 0
    fleet.until_begun("long", on=[a])
    fleet.until_going_on(QUICK)
    a.kill()
    fleet.until_begun("long", on=[b, c])
    fleet.let_end("long")
    fleet.until_ended("long")
    fleet.until_going_on(QUICK, on=[b, c])
    for machine in (b, c):
        machine.daemon.ended()
    verdict = fleet.verdict()
    assert verdict["crashes"] == 1, verdict
    checked = {one["id"]: one["checked"] for one in verdict["properties"]}
    assert all(checked[name] for name in ("V2", "V3", "V4", "C1", "C2", "C4")), checked
    fleet.account()

    # Another machine says that it has started the same.
    first, *others = fleet.traces()
    copied = [
        line
        for line in lines_of(first)
        if line.get("name") in {"TimerFired", "ServiceRunStarted"} and line["fields"]["timer"] == "long"
    ]
    assert len(copied) == 2
    other = lines_of(others[0])
    for line in copied:
        line["proc"] = other[1]["proc"]
    tampered = sorted([*other[1:], *copied], key=lambda line: line["t"])
    others[0].write_text("".join(json.dumps(line) + "\n" for line in (other[0], *tampered)))
    assert violated(fleet.verdict(code=1)) >= {"C1", "C4"}
