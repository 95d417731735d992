"""Nodes that die, stand still, join and leave: real processes on a real PostgreSQL."""

from pathlib import Path

import pytest

from duly.cluster.table import ReadRuns
from tests.worlds.cluster import NodeProcess, World, now_us, tasks

LONG = [f"long-{n}" for n in range(6)]
FLAKY = [f"flaky-{n}" for n in range(4)]
ALL = tasks(*LONG, *FLAKY, "quick-1")


def test_kill(world: World) -> None:
    """What a killed node ran starts once more, elsewhere, within seconds; the streams of starts go on."""
    world.begin_all("abc", ALL)
    first = world.runner(LONG[0])
    cut = first.running
    first.kill()
    world.until_all_started(*cut, *FLAKY, among=world.others(first), after_us=first.cut_us)
    for name in cut:
        assert [run.cause for run in world.runs(name)][-2:].count("interrupted") == 1
    world.account()
    second = world.runner(LONG[0])
    second.kill()
    (last,) = world.others(first, second)
    world.until_alive(last)
    world.until_all_started(*LONG, among=[last])
    fenced = [facts for _, _, facts in world.events("NodeFenced")]
    assert [fact for fact in fenced if set(cut) <= set(fact["runs"])]
    world.verify()


def test_freeze(world: World) -> None:
    """A node that stood still for longer than its lease has lost everything, and does nothing with it.

    It has its runs cancelled when it wakes up, and starts nothing before it has come back under another id.
    """
    world.begin_all("ab", ALL)
    a = world.runner(LONG[0])
    (b,) = world.others(a)
    at_least = a.running
    a.freeze()
    world.until_all_started(*at_least, *FLAKY, among=[b], after_us=a.cut_us)
    before = a.mark()
    a.thaw()
    a.until("event NodeReturned", after=before)
    # More of them may have begun between the look and the freeze.
    cut = [run.name for run in a.runs() if run.how == "cut off" and run.name in LONG]
    woken = a.said()[before:]
    returned_us = next(line.at_us for line in woken if line.rest.startswith("NodeReturned"))
    cancelled = [line.rest.split()[0] for line in woken if line.kind == "end" and line.at_us < returned_us]
    # A short run may have been under way, too, when the node was stopped.
    assert sorted(name for name in cancelled if name in LONG) == sorted(cut)
    assert [line for line in woken if line.kind == "start" and line.at_us < returned_us] == []
    lost = [[name for name in facts["runs"] if name in LONG] for _, _, facts in a.events("TrustLost")]
    assert lost == [sorted(cut)]
    world.until_alive(a, b)
    a.until("start flaky", after=before)
    world.verify()


@pytest.mark.steady
def test_stop_with_a_long_run(world: World) -> None:
    """A node that stops leaves the rest to the others at once; its runs in flight end where they are."""
    world.begin_all("ab", ALL)
    a = world.runner(LONG[0])
    (b,) = world.others(a)
    good, *bad = a.running
    a.tell("stop")
    a.until("event SchedulerStopRequested")
    world.until_all_started(*FLAKY, among=[b], after_us=now_us())
    a.tell("end", good)
    for name in bad:
        a.tell("fail", name)
    a.ended()
    world.until_all_started(*bad, among=[b])
    latest = {run.name: run.how for run in a.runs()}
    assert {name: latest[name] for name in (good, *bad)} == {good: "ok", **dict.fromkeys(bad, "failed")}
    assert "interrupted" not in {run.cause for run in world.runs()}
    requested_us = a.events("SchedulerStopRequested")[0][0]
    assert [run.name for run in a.runs() if run.start_us > requested_us] == []
    world.until_alive(b)
    world.verify()


def test_cancellation_that_is_not_heard(world: World) -> None:
    """A callback that swallows its cancellation goes on beside its successor, and its end is not believed."""
    world.begin_all("ab", tasks("deaf-1"))
    a = world.runner("deaf-1")
    (b,) = world.others(a)
    a.freeze()
    world.until_started("deaf-1", among=[b], after_us=a.cut_us)
    before = a.mark()
    a.thaw()
    a.until("event NodeReturned", after=before)
    a.tell("end", "deaf-1")
    a.until("end deaf-1", after=before)
    b.kill()
    again = world.until_started("deaf-1", among=[a], after_us=b.cut_us)
    assert again.cause == "interrupted"


def test_poison_task(world: World) -> None:
    """A task that ends its process each time does not take down node after node, and is reported."""
    listed = [*tasks("poison-1", "long-1"), *tasks(*FLAKY)]
    world.begin_all("abc", listed)

    def has_ended() -> list[NodeProcess]:
        return [node for node in world.nodes if node.cut_us is None and node.process.poll() is not None]

    while not world.events("TaskInterruptedAgain"):  # each host starts its program again when it has ended
        world.until(lambda: world.events("TaskInterruptedAgain") or has_ended(), "it ends, or is reported")
        for node in has_ended():
            node.cut_us = node.said()[-1].at_us
            world.begin(f"{node.name}+", listed)
    reported_us, _, facts = world.events("TaskInterruptedAgain")[0]
    assert (facts["taskName"], facts["interruptions"]) == ("poison-1", 3)
    assert facts["retryAt"]
    poisoned = world.runs("poison-1")
    assert len([run for run in poisoned if run.start_us < reported_us]) == 3
    assert len({run.run_id for run in poisoned}) == 1
    world.until_all_started(*FLAKY, after_us=now_us())
    for node in has_ended():
        node.cut_us = node.said()[-1].at_us
    world.account()


def test_blocked_loop(postgres_url: str, tmp_path: Path) -> None:
    """A callback that blocks its event loop for longer than a lease costs only time, and is told by name.

    It runs once for each due, and nothing else that runs there is cancelled.
    """
    with World(postgres_url, tmp_path, lease_s=6) as world:
        blocking = [f"block-{n}" for n in range(3)]
        world.begin_all("abc", tasks(*blocking, *LONG, *FLAKY))
        for name in blocking:
            world.until_started(name).node.until(f"end {name} .* ok")
        world.until_all_started(*LONG)
        world.until(lambda: world.events("LoopBlocked"), "the block is told")
        emitted = {facts["taskName"]: facts["seconds"] for _, _, facts in world.events("LoopBlocked")}
        assert set(emitted) <= set(blocking)
        assert max(emitted.values()) > 5
        for name in blocking:
            runs = world.runs(name)
            assert len(runs) == len({run.run_id for run in runs})
        assert "cancelled" not in {run.how for run in world.runs()}
        world.check_steady()
        world.verify()


@pytest.mark.steady
def test_history_of_all_nodes(world: World) -> None:
    """Every run of every node is in the history, once, with its node and token."""
    nodes = world.begin_all("ab", tasks(*FLAKY, "quick-1"))
    for node in nodes:
        node.until("start flaky", count=2)
    for node in nodes:
        node.stop()
    seen = {(node.process.pid, run.name, run.token) for node in nodes for run in node.runs()}
    past = world.table.do(ReadRuns(limit=10_000))
    recorded = [(int(run.node.rpartition(":")[2]), run.name, run.token) for run in past]
    assert len(recorded) == len(seen)
    assert set(recorded) == seen
    assert {run.run.result for run in past if run.name in FLAKY} == {"failure"}
    assert {run.run.result for run in past if run.name == "quick-1"} == {"success"}
