"""Deploying to real processes: newer lists, older ones brought back, wrong clocks, and a pooler."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_world import MemberProcess, World, now_us, tasks

OLD = tasks("long-kept", "long-removed", *(f"flaky-kept-{n}" for n in range(4)), "flaky-removed") + tasks(
    "flaky-changed", delay_s=0.3
)
NEW = tasks("long-kept", *(f"flaky-kept-{n}" for n in range(4)), "flaky-added") + tasks(
    "flaky-changed", delay_s=0.25
)
KEPT = [f"flaky-kept-{n}" for n in range(4)]
GONE = {"long-removed", "flaky-removed"}


@pytest.fixture
def world(postgres_url: str, tmp_path: Path) -> Iterator[World]:
    with World(postgres_url, tmp_path) as world:
        yield world


def ready_us(member: MemberProcess) -> int:
    """When its last list had taken effect."""
    return member.said("ready")[-1].at_us


def started_after(member: MemberProcess, at_us: int) -> set[str]:
    """What a member started after a time."""
    return {run.name for run in member.runs() if run.start_us > at_us}


def test_rolling_deploy(world: World) -> None:
    """From the moment a newer list has taken effect nobody starts by the older one; runs in flight go on."""
    a, b = world.begin_all("ab", OLD)
    world.run_at_home(["long-kept", "long-removed"])
    new = world.begin("new", NEW)
    deployed_us = ready_us(new)
    for member in (a, b):
        member.until("event EditionSuperseded")
    world.until_shared(new)
    for name in [*KEPT, "flaky-added", "flaky-changed"]:
        world.until_started(name, among=[new])
    assert not started_after(a, deployed_us)
    assert not started_after(b, deployed_us)
    (kept,) = [run for run in world.runs("long-kept") if run.how == "open"]
    (removed,) = [run for run in world.runs("long-removed") if run.how == "open"]
    kept.member.tell("fail", "long-kept")
    removed.member.tell("fail", "long-removed")
    world.until_started("long-kept", among=[new])
    for member in (a, b):
        member.stop()
    also = world.begin("also", NEW)
    world.until_shared(new, also)
    also_us = now_us()
    world.until_started(next(name for name in KEPT if world.holder(name) == "also"), among=[also])
    assert not GONE & {run.name for run in world.runs() if run.start_us > deployed_us}
    assert also_us
    world.account()
    world.verify()


def test_reinitialization(world: World) -> None:
    """A member that brings a new list by itself supersedes the others, until they bring it too."""
    a, b = world.begin_all("ab", OLD)
    a.bring(NEW)
    changed_us = ready_us(a)
    b.until("event EditionSuperseded")
    world.until_shared(a)
    world.until_started("flaky-added", among=[a])
    assert not started_after(b, changed_us)
    b.bring(NEW)
    world.until_shared(a, b)
    assert not GONE & {run.name for run in world.runs() if run.start_us > changed_us}
    world.account()
    world.verify()


def test_rollback(world: World) -> None:
    """An older list brought back while the newer one lives is superseded; later it takes effect."""
    old = [task for task in OLD if task[0] != "long-removed"]
    (a,) = world.begin_all("a", old)
    new = world.begin("new", NEW)
    a.until("event EditionSuperseded")
    b = world.begin("b", old)
    b.until("event EditionSuperseded")
    world.until_started("flaky-added", among=[new])
    assert b.starts() == 0
    new.stop()
    gone_us = now_us()
    for name in KEPT:
        world.until_started(name, among=[a, b], after_us=gone_us)
    c = world.begin("c", old)
    back_us = ready_us(c)
    c.until("event EditionPublished")
    world.until_shared(a, b, c)
    for name in [*KEPT, "flaky-removed", "flaky-changed"]:
        world.until_started(name, after_us=back_us)
    assert "flaky-added" not in {run.name for run in world.runs() if run.start_us > back_us}
    world.account()
    world.verify()


def test_task_comes_back_while_its_run_goes_on(world: World) -> None:
    """A task that a list removes and a later one brings back does not start beside the run that went on."""
    without = tasks(*KEPT)
    again = without + tasks("long-returning", delay_s=0.25)
    world.begin_all("ab", without + tasks("long-returning"))
    world.run_at_home(["long-returning"])
    (run,) = [run for run in world.runs("long-returning") if run.how == "open"]
    world.until_shared(world.begin("without", without))
    returned = world.begin("again", again)
    world.until_shared(returned)
    for name in KEPT:
        world.until_started(name, among=[returned])
    assert returned.starts("long-returning") == 0
    run.member.tell("fail", "long-returning")
    world.until_started("long-returning", among=[returned])
    world.account()
    world.verify()


def test_newest_list_dies(world: World) -> None:
    """When every member with the newest list is gone the others run what is the same in both, and no more."""
    (a,) = world.begin_all("a", OLD)
    new = world.begin("new", NEW)
    a.until("event EditionSuperseded")
    world.until_shared(new)
    new.kill()
    killed_us = now_us()
    world.until_shared(a)
    for name in KEPT:
        world.until_started(name, among=[a], after_us=killed_us)
    assert started_after(a, killed_us) <= {*KEPT, "long-kept"}
    skipped = {facts["taskName"] for _, _, facts in a.events("TaskSkipped")}
    assert {"flaky-changed", "flaky-added"} <= skipped
    world.account()
    world.verify()


@pytest.mark.parametrize("ahead_s", [3_600.0, -86_400.0 * 30], ids=["an hour ahead", "a month behind"])
def test_wrong_clock(world: World, ahead_s: float) -> None:
    """A host whose clock is wrong is a member like the others: it takes over from them and they from it."""
    names = [f"flaky-{n}" for n in range(6)]
    listed = tasks(*names, "long-1")
    a = world.begin("a", listed)
    wrong = world.begin("wrong", listed, "--clock-ahead-s", str(ahead_s))
    world.until_shared(a, wrong)
    a.kill()
    killed_us = now_us()
    world.until_shared(wrong)
    for name in [*names, "long-1"]:
        world.until_started(name, among=[wrong], after_us=killed_us)
    b = world.begin("b", listed)
    world.until_shared(wrong, b)
    wrong.kill()
    killed_us = now_us()
    for name in [*names, "long-1"]:
        world.until_started(name, among=[b], after_us=killed_us)
    world.account()
    world.verify()
    assert wrong.events("ClockStepped") == []


def test_pooler(pgbouncer_url: str, postgres_url: str, tmp_path: Path) -> None:
    """Behind PgBouncer in transaction mode: sharing, a death, a freeze, a newer list and a stop, as ever."""
    listed = tasks(*(f"flaky-{n}" for n in range(4)), "long-1", "long-2")
    with World(pgbouncer_url, tmp_path) as world:
        a, b, c = world.begin_all("abc", listed)
        world.run_at_home(["long-1", "long-2"])
        runner = next(run.member for run in world.runs("long-1") if run.how == "open")
        runner.kill()
        killed_us = now_us()
        others = [member for member in (a, b, c) if member is not runner]
        world.until_shared(*others)
        frozen = world.until_started("long-1", among=others, after_us=killed_us).member
        (awake,) = [member for member in others if member is not frozen]
        frozen.freeze()
        frozen_us = now_us()
        world.until_started("long-1", among=[awake], after_us=frozen_us)
        before = frozen.mark()
        frozen.thaw()
        frozen.until("event MemberJoined", after=before)
        world.until_shared(frozen, awake)
        awake.bring(listed[:-1])
        frozen.until("event EditionSuperseded")
        frozen.bring(listed[:-1])
        world.until_shared(frozen, awake)
        world.account()
        for member in (frozen, awake):
            for run in member.runs():
                if run.how == "open":
                    member.tell("end", run.name)
        frozen.stop()
        world.until_shared(awake)
        world.account()
        world.verify()
