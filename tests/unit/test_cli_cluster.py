"""What `duly cluster` shows, to people and to machines."""

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from duly.cli import main
from duly.cli.cluster import cluster_json, cluster_lines, history_json, history_lines
from duly.cluster.table import NodeView, PastRun, RunRecord, TaskView
from duly.instant import NEVER_US, SECOND_US

NOW_US = 1_800_000_000 * SECOND_US


def node(number: int, **changes: Any) -> NodeView:
    """A node that joined a minute ago and sent a heartbeat a second ago."""
    joined_us, seen_us = NOW_US - 60 * SECOND_US, NOW_US - SECOND_US
    times = joined_us, seen_us, None, None
    name = f"host{number}:{number}00"
    return NodeView(number, name, 60, 6 * SECOND_US, "1.0", 0, *times, [])._replace(**changes)


def fenced(number: int, ago_s: int, *runs: str, by: str = "host1:100") -> NodeView:
    return node(number, fenced_us=NOW_US - ago_s * SECOND_US, fenced_by=by, runs=list(runs))


def task(**changes: Any) -> TaskView:
    """A task that is due in a minute."""
    due_us = NOW_US + 60 * SECOND_US
    return TaskView("report", "", "", due_us, False, None, None, 7, 0, None)._replace(**changes)


def past(number: int, **changes: Any) -> PastRun:
    """A run that began a minute ago and took two seconds."""
    started_us = NOW_US - 60 * SECOND_US
    record = RunRecord("an-id", "cron", started_us, started_us + 2 * SECOND_US, "success", **changes)
    return PastRun(number, "report", "host1:100", 7, started_us, record)


def shown(*nodes: NodeView, tasks: tuple[TaskView, ...] = (), wide: int | None = None) -> list[str]:
    return click.unstyle("\n".join(cluster_lines("default", NOW_US, nodes, tasks, wide))).splitlines()


def test_nodes_at_rest() -> None:
    """One line in sum, one for each node, and nothing about failovers."""
    first, blank, head, *rows = shown(node(2), node(1, lag_us=7_500_000))
    assert first == "Namespace default: 2 nodes, 0 runs."
    assert blank == ""
    assert head.lower().split() == ["node", "state", "runs", "lag", "heartbeat", "version", "joined"]
    assert [row.split() for row in rows] == [
        ["host1:100", "living", "0", "7.5s", "1s", "ago", "1.0", "1m", "ago"],
        ["host2:200", "living", "0", "0s", "1s", "ago", "1.0", "1m", "ago"],
    ]


def test_nobody_there() -> None:
    """A namespace without nodes is one line."""
    assert shown() == ["Namespace default: 0 nodes, 0 runs."]


def test_runs_of_nodes() -> None:
    """The runs of each node are named, the first five."""
    lines = shown(node(1, runs=["a"]), node(2, runs=list("bcdefgh")), node(3))
    assert lines[0] == "Namespace default: 3 nodes, 8 runs."
    assert lines[-2:] == ["host1:100 runs a.", "host2:200 runs b, c, d, e, f and 2 more."]


@pytest.mark.parametrize(("age_s", "state"), [(0, "living"), (5, "living"), (6, "silent"), (90, "silent")])
def test_silent_node(age_s: int, state: str) -> None:
    """A node is silent when its last heartbeat is a lease old."""
    view = node(1, seen_us=NOW_US - age_s * SECOND_US)
    lines = shown(view)
    assert lines[3].split()[1] == state
    assert lines[0].endswith("; 1 node silent.") == (state == "silent")
    assert cluster_json("default", NOW_US, [view], [])["nodes"][0]["state"] == state


def test_failovers() -> None:
    """Fenced nodes are failovers with what was taken, latest first; a node that came back is none."""
    lines = shown(node(1), fenced(2, 300), fenced(3, 60, "a", "b"), fenced(4, 5, by="host4:400"))
    assert lines[0] == "Namespace default: 1 node, 0 runs."
    assert lines[5:] == [
        "Failover 1m ago: host3:300 was fenced by host1:100; its runs start once more: a, b.",
        "Failover 5m ago: host2:200 was fenced by host1:100; it ran nothing.",
    ]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (task(), "report is due in 1m."),
        (task(wake_us=0, interruptions=1), "report is due; it was cut off once."),
        (task(wake_us=NEVER_US), "report is never due."),
        (
            task(paused=True, interruptions=3),
            "report is due in 1m; it is paused; it was cut off 3 times in a row.",
        ),
        (
            task(run_by="host1:100", started_us=NOW_US - 5 * SECOND_US),
            "report runs on host1:100, begun 5s ago, token 7.",
        ),
    ],
)
def test_task(view: TaskView, words: str) -> None:
    """One task is told in a sentence: when it is due, who runs it, and what is the matter with it."""
    assert shown(tasks=(view,))[-1] == words


def test_cluster_json() -> None:
    """Machines get all nodes with their state, all failovers, and the task."""
    views = [node(1, runs=["a"]), fenced(2, 5, "b")]
    answer = json.loads(json.dumps(cluster_json("default", NOW_US, views, [task()])))
    assert (answer["at"], answer["namespace"]) == ("2027-01-15T08:00:00+00:00", "default")
    assert answer["nodes"][0] == {
        "name": "host1:100",
        "state": "living",
        "runs": ["a"],
        "lag_ms": 0,
        "heartbeat_age_s": 1,
        "lease_s": 6,
        "version": "1.0",
        "joined": "2027-01-15T07:59:00+00:00",
    }
    assert (answer["nodes"][1]["state"], answer["nodes"][1]["runs"]) == ("fenced", [])
    assert answer["failovers"] == [
        {"at": "2027-01-15T07:59:55+00:00", "node": "host2:200", "by": "host1:100", "runs": ["b"]}
    ]
    assert answer["task"]["due"] == "2027-01-15T08:01:00+00:00"


def test_history() -> None:
    """Each run has its task, node, cause, start, length, result and error."""
    runs = [past(9, error="ValueError: no"), past(8)]
    head, *rows = [click.unstyle(line) for line in history_lines(NOW_US, runs, None, count=20)]
    assert head.lower().split() == ["run", "task", "node", "cause", "started", "lasted", "result", "error"]
    assert rows[0].split() == [
        *("9", "report", "host1:100", "cron", "1m", "ago", "2s", "success", "ValueError:", "no")
    ]
    assert "--before 8" in history_lines(NOW_US, runs, None, count=2)[-1]
    assert history_lines(NOW_US, [], None, count=2) == ["Nothing has run yet, or not lately."]
    answer = history_json("default", NOW_US, runs, None)
    assert [run["id"] for run in answer["runs"]] == [9, 8]
    assert answer["runs"][0]["duration_s"] == 2


def test_narrow_terminal() -> None:
    """What is too wide loses columns, not lines."""
    rows = shown(node(1, name="a" * 60), wide=40)
    assert all(len(row) <= 40 for row in rows[1:])
    assert len(rows) == 4


def test_hostile_names() -> None:
    """No name reaches a terminal as a control sequence."""
    evil = "\x1b[31m\n"
    views = [node(1, name=evil, runs=[evil]), fenced(2, 5, evil, by=evil)]
    assert "\x1b[31m" not in "".join(shown(*views, tasks=(task(name=evil, run_by=evil, started_us=0),)))


@pytest.mark.parametrize(
    "words", [["state.db"], ["history", "state.db"], ["pause", "a", "state.db"], ["remove", "a", "state.db"]]
)
def test_file_is_refused(words: list[str]) -> None:
    """A file is no cluster: each command says so with code 2, and `show` may be left out."""
    result = CliRunner().invoke(main, ["cluster", *words])
    assert result.exit_code == 2
    assert "a file belongs to one scheduler" in result.output
