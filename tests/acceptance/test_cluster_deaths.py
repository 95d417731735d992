"""Members that die, stand still, join and leave: real processes on a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_world import World, now_us, tasks

LONG = [f"long-{n}" for n in range(8)]
FLAKY = [f"flaky-{n}" for n in range(6)]
QUICK = [f"quick-{n}" for n in range(6)]
ALL = tasks(*LONG, *FLAKY, *QUICK)


@pytest.fixture
def world(postgres_url: str, tmp_path: Path) -> Iterator[World]:
    with World(postgres_url, tmp_path) as world:
        yield world


def test_kill(world: World) -> None:
    """What a killed member ran starts once more, elsewhere, within seconds; its other tasks go on there."""
    a, b, c = world.begin_all("abc", ALL)
    world.run_at_home(LONG)
    cut = [run.name for run in a.runs() if run.how == "open" and run.name in LONG]
    streams = [name for name in FLAKY if world.holder(name) == "a"]
    a.kill()
    killed_us = now_us()
    for name in [*cut, *streams]:
        world.until_started(name, among=[b, c], after_us=killed_us)
    world.until_shared(b, c)
    world.account()
    for name in cut:
        assert [run.cause for run in world.runs(name)][-2:].count("interrupted") == 1
    b.kill()
    world.until_shared(c)
    for name in LONG:
        world.until_started(name, among=[c])
    world.account()
    world.verify()


def test_freeze(world: World) -> None:
    """A member that stood still for longer than its lease has lost everything, and does nothing with it.

    It has its runs cancelled when it wakes up, starts nothing before it has joined anew, and gets its share.
    """
    a, b = world.begin_all("ab", ALL)
    world.run_at_home(LONG)
    cut = [run.name for run in a.runs() if run.how == "open" and run.name in LONG]
    assert cut
    a.freeze()
    frozen_us = now_us()
    world.until_shared(b)
    for name in [*cut, *FLAKY]:
        world.until_started(name, among=[b], after_us=frozen_us)
    before = a.mark()
    a.thaw()
    a.until("event MemberJoined", after=before)
    world.until_shared(a, b)
    woken = a.said()[before:]
    joined_us = next(line.at_us for line in woken if line.rest.startswith("MemberJoined"))
    cancelled = [line.rest.split()[0] for line in woken if line.kind == "end" and line.at_us < joined_us]
    assert sorted(cancelled) == sorted(cut)
    assert [line for line in woken if line.kind == "start" and line.at_us < joined_us] == []
    assert "event ShardsLost" in {f"{line.kind} {line.rest.split()[0]}" for line in woken}
    began_us = now_us()
    held = [name for name in FLAKY if world.holder(name) == "a"]
    assert held
    for name in held:
        world.until_started(name, among=[a], after_us=began_us)
    world.account()
    world.verify()


def test_short_freeze(world: World) -> None:
    """A member that stood still for less than its lease goes on as if nothing had been."""
    a, b = world.begin_all("ab", ALL)
    world.run_at_home(LONG)
    for _ in range(3):
        a.pause()
        a.until("start flaky", count=2, after=a.mark())
    assert world.shares() == {"a": 16, "b": 16}
    assert {run.how for run in world.runs() if run.name in LONG} <= {"open", "failed"}
    assert [event for member in (a, b) for event in member.events("ShardsLost")] == []
    world.account()
    world.verify()


def test_join(world: World) -> None:
    """A member that joins gets its share, and what runs meanwhile ends where it is, once."""
    (a,) = world.begin_all("a", ALL)
    for name in LONG:
        world.until_started(name)
    b = world.begin("b", ALL)
    world.until_shared(a, b)
    c = world.begin("c", ALL)
    world.until_shared(a, b, c)
    away = [name for name in LONG if world.holder(name) != "a"]
    assert away
    assert {run.member.name for run in world.runs() if run.name in LONG} == {"a"}
    for name in away:
        a.tell("fail", name)
    failed_us = now_us()
    for name in away:
        world.until_started(name, among=[b, c], after_us=failed_us)
    assert [world.runs(name)[0].how for name in away] == ["failed"] * len(away)
    world.account()
    world.verify()


def test_stop_with_a_long_run(world: World) -> None:
    """A member that stops gives its tasks away at once; its run in flight ends where it is."""
    a, b = world.begin_all("ab", ALL)
    world.run_at_home(LONG)
    mine = [run.name for run in a.runs() if run.how == "open" and run.name in LONG]
    streams = [name for name in FLAKY if world.holder(name) == "a"]
    assert len(mine) > 1
    assert streams
    a.tell("stop")
    asked_us = now_us()
    a.until("event SchedulerStopRequested")
    world.until_shared(b)
    for name in streams:
        world.until_started(name, among=[b], after_us=asked_us)
    good, *bad = mine
    a.tell("end", good)
    for name in bad:
        a.tell("fail", name)
    a.ended()
    for name in bad:
        world.until_started(name, among=[b])
        assert next(run.how for run in reversed(a.runs()) if run.name == name) == "failed"
    assert "interrupted" not in {run.cause for run in world.runs()}
    assert next(run.how for run in reversed(a.runs()) if run.name == good) == "ok"
    requested_us = a.events("SchedulerStopRequested")[0][0]
    assert [run.name for run in a.runs() if run.start_us > requested_us] == []
    world.account()
    world.verify()


def test_cancellation_that_is_not_heard(world: World) -> None:
    """A callback that swallows its cancellation goes on beside its successor, and its end is not believed."""
    world.begin_all("ab", tasks("deaf-1"))
    a = world.until_started("deaf-1").member
    (b,) = [member for member in world.members if member is not a]
    deaf = "deaf-1"
    a.freeze()
    frozen_us = now_us()
    world.until_started(deaf, among=[b], after_us=frozen_us)
    before = a.mark()
    a.thaw()
    a.until("event MemberJoined", after=before)
    a.tell("end", deaf)
    a.until(f"end {deaf}", after=before)
    b.kill()
    again = world.until_started(deaf, among=[a], after_us=frozen_us)
    assert again.cause == "interrupted"
