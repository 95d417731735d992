"""Deploying to real processes: newer lists, older ones brought back, two applications, clocks, a pooler."""

from pathlib import Path

import pytest

from tests.worlds.cluster import NodeProcess, World, now_us, tasks
from tests.worlds.postgres import PostgresServer

KEPT = [f"flaky-kept-{n}" for n in range(3)]
OLD = tasks("long-kept", "long-removed", *KEPT, "flaky-removed") + tasks("flaky-changed", delay_s=0.3)
NEW = tasks("long-kept", *KEPT, "flaky-added") + tasks("flaky-changed", delay_s=0.25)
GONE = {"long-removed", "flaky-removed"}


def started_after(node: NodeProcess, at_us: int) -> set[str]:
    """What a node started after a time."""
    return {run.name for run in node.runs() if run.start_us > at_us}


@pytest.mark.steady
def test_rolling_deploy(world: World) -> None:
    """Nodes with the older list go on with what both lists share, and nothing else; no run is cut off."""
    a, b = world.begin_all("ab", OLD)
    world.until_all_started("long-kept", "long-removed")
    new = world.begin("new", NEW)
    world.until_all_started("flaky-added", "flaky-changed", among=[new])
    for node in (a, b):  # a start may have been claimed just before
        node.until(f"start ({'|'.join(KEPT)})", count=3, after=node.mark())
    settled_us = now_us()
    for node in (a, b):
        node.until("start flaky", count=3, after=node.mark())
        assert started_after(node, settled_us) <= {*KEPT, "long-kept"}
    world.runner("long-kept").tell("fail", "long-kept")
    world.runner("long-removed").tell("fail", "long-removed")
    world.until_started("long-kept", after_us=settled_us)
    for node in (a, b):
        node.stop()
    also = world.begin("also", NEW)
    world.until_started("flaky-added", among=[also])
    assert not GONE & {run.name for run in world.runs() if run.start_us > settled_us}
    assert world.events("TrustLost") == []
    (changed,) = [facts for _, _, facts in new.events("ListReconciled")]
    assert (changed["added"], changed["overridden"], changed["orphaned"]) == (1, 1, 2)
    assert also.events("ListReconciled") == []
    world.verify()


@pytest.mark.steady
def test_one_task_among_many(world: World) -> None:
    """A node that brings one task more changes one row: nobody stops, and runs of the others go on."""
    listed = tasks("long-1", *KEPT)
    a = world.begin("a", listed, "--more", "3000")
    world.until_started("long-1", among=[a])
    b = world.begin("b", [*listed, *tasks("flaky-new")], "--more", "3000")
    world.until_started("flaky-new", among=[b])
    world.until_all_started(*KEPT, among=[a], after_us=b.said("ready")[0].at_us)
    (changed,) = [facts for _, _, facts in b.events("ListReconciled")]
    assert (changed["added"], changed["overridden"], changed["orphaned"]) == (1, 0, 0)
    assert world.runs("long-1")[0].how == "open"
    world.account()


@pytest.mark.steady
def test_two_applications_in_one_database(world: World) -> None:
    """A list that shares nothing with that of living nodes is refused; in a namespace of its own it runs."""
    a = world.begin("a", tasks("long-1", "flaky-1"))
    other = world.begin("other", tasks("flaky-other"), is_awaited=False)
    (refused,) = other.until("refused")
    assert f":{a.process.pid}" in refused
    assert "namespace=" in refused
    assert "replace=True" in refused
    assert other.process.wait(60) == 1
    billing = world.begin("billing", tasks("flaky-other", "long-1"), url=f"{world.url}?namespace=billing")
    world.until_started("flaky-other", among=[billing])
    world.until_started("long-1", among=[billing])  # beside that of the other namespace
    world.until_started("flaky-1", among=[a], after_us=now_us())
    assert started_after(billing, 0) == {"flaky-other", "long-1"}
    taker = world.begin("taker", tasks("flaky-taken"), "--replace")
    world.until_started("flaky-taken", among=[taker])
    a.kill()
    world.until_started("flaky-other", among=[billing], after_us=a.cut_us)


@pytest.mark.steady
def test_two_names_of_one_zone(world: World) -> None:
    """Hosts whose zones are called UTC and Etc/UTC have the same list, and both work."""
    listed = tasks("long-1", *KEPT)
    a = world.begin("a", listed)
    b = world.begin("b", listed, "--zone", "Etc/UTC")
    world.until_started(KEPT[0], among=[b])
    world.until_started(KEPT[0], among=[a], after_us=now_us())
    assert b.events("ListReconciled") == []
    world.verify()


def test_wrong_clock(world: World) -> None:
    """A host whose clock is a month behind is a node like the others: it takes over, and they from it."""
    names = ["flaky-1", "flaky-2", "long-1"]
    a = world.begin("a", tasks(*names))
    wrong = world.begin("wrong", tasks(*names), "--clock-ahead-s", str(-86_400 * 30))
    a.kill()
    world.until_all_started(*names, among=[wrong], after_us=a.cut_us)
    b = world.begin("b", tasks(*names))
    wrong.kill()
    world.until_all_started(*names, among=[b], after_us=wrong.cut_us)
    assert wrong.events("ClockStepped") == []
    world.verify()


@pytest.mark.steady
@pytest.mark.parametrize("seconds", [20, -20])
def test_database_clock_steps(
    world: World, postgres: PostgresServer, postgres_database: str, seconds: int
) -> None:
    """A step of the database's clock costs no lease: no run is cut off, doubled or lost."""
    world.begin_all("abc", tasks("long-1", "long-2", *KEPT))
    world.until_all_started("long-1", "long-2", *KEPT)
    real = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    postgres.rows(
        "CREATE OR REPLACE FUNCTION duly.now_us() RETURNS bigint LANGUAGE sql VOLATILE "
        f"AS 'SELECT {real} + {seconds}000000'",
        database=postgres_database,
    )
    for node in world.nodes:
        node.until("event ClockStepped")
    for _ in range(2):
        world.until_all_started(*KEPT, after_us=now_us())
    world.check_steady()
    world.account()


def test_pooler(pgbouncer_url: str, postgres_url: str, tmp_path: Path) -> None:
    """Behind PgBouncer in transaction mode: a death, a freeze, a newer list and a stop, as ever."""
    listed = tasks(*KEPT, "long-1", "long-2")
    with World(pgbouncer_url, tmp_path) as world:
        world.begin_all("abc", listed)
        runner = world.runner("long-1")
        runner.kill()
        frozen = world.until_started("long-1", after_us=runner.cut_us).node
        frozen.freeze()
        (awake,) = world.others(runner, frozen)
        world.until_started("long-1", among=[awake], after_us=frozen.cut_us)
        before = frozen.mark()
        frozen.thaw()
        frozen.until("event NodeReturned", after=before)
        for node in (awake, frozen):
            node.bring(listed[:-1])
        world.until_alive(frozen, awake)
        world.until_started(KEPT[0], among=[frozen], after_us=now_us())
        world.account()
        frozen.stop()
        world.until_alive(awake)
        world.verify()
