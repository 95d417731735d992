"""The database's own failover: the primary dies, a standby takes its place, perhaps a forgetful one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.cluster import World, now_us, tasks
from tests.worlds.postgres import PostgresServer
from tests.worlds.proxy import Proxy, through

LONG = [f"long-{n}" for n in range(4)]
FLAKY = [f"flaky-{n}" for n in range(4)]
ALL = tasks(*LONG, *FLAKY)


@pytest.fixture
def cable(own_postgres: PostgresServer) -> Iterator[Proxy]:
    """What leads to the primary, wherever it is."""
    with Proxy(own_postgres.port) as proxy:
        yield proxy


def begun(world: World) -> None:
    """Two nodes that run all long tasks."""
    world.begin_all("ab", ALL)
    for name in LONG:
        world.until_started(name)


@pytest.mark.parametrize("is_quick", [True, False], ids=["within the lease", "after the lease"])
def test_promotion(own_postgres: PostgresServer, cable: Proxy, tmp_path: Path, is_quick: bool) -> None:
    """A standby that has everything goes on where the primary was; what runs is interrupted by time alone."""
    standby = own_postgres.standby()
    lease_s = 12 if is_quick else 2
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_s=lease_s) as world:
        begun(world)
        standby.wait_for(own_postgres)
        own_postgres.kill()
        if not is_quick:
            world.runner(LONG[0]).until("event TrustLost")
        standby.promote()
        promoted_us = now_us()
        cable.retarget(standby.port)
        for name in FLAKY if is_quick else [*FLAKY, *LONG]:
            world.until_started(name, after_us=promoted_us)
        if is_quick:
            assert {run.how for run in world.runs() if run.name in LONG} == {"open"}
        world.account()
        world.verify()


def test_promotion_of_one_that_forgot_runs(
    own_postgres: PostgresServer, cable: Proxy, tmp_path: Path
) -> None:
    """A standby that lacks the last commits: no run is doubled whose node lives, nor one that has ended."""
    standby = own_postgres.standby()
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_s=6) as world:
        world.begin_all("ab", [*ALL, *tasks("long-once", delay_s=3_600)])
        for name in [*LONG, "long-once"]:
            world.until_started(name)
        standby.wait_for(own_postgres)
        standby.stop_receiving()
        ordered_us = now_us()
        for name in [*LONG, "long-once"]:  # each of them ends, of which the standby knows nothing
            world.runner(name).tell("fail", name)
        for name in LONG:
            world.until_started(name, after_us=ordered_us)
        world.runs("long-once")[0].node.until("event TaskRunFailed .*long-once")
        open_before = [(run.node, run.number) for run in world.runs() if run.how == "open"]
        own_postgres.kill()
        standby.promote()
        cable.retarget(standby.port)
        promoted_us = now_us()
        for name in FLAKY:
            world.until_started(name, after_us=promoted_us)
        still = [(run.node, run.number) for run in world.runs() if run.how == "open" and run.name in LONG]
        assert still == open_before
        assert [event for event in world.events("ServerChanged") if event[2]["forgot"]]
        world.account()
        world.verify()


@pytest.mark.parametrize("lease_s", [2, 6])
def test_promotion_of_one_that_forgot_a_node(
    own_postgres: PostgresServer, cable: Proxy, tmp_path: Path, lease_s: int
) -> None:
    """A standby that has never heard of a node, or of its list: it joins anew, and brings its list again."""
    standby = own_postgres.standby()
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_s=lease_s) as world:
        (a,) = world.begin_all("a", ALL)
        for name in LONG:
            world.until_started(name)
        standby.wait_for(own_postgres)
        standby.stop_receiving()
        newer = [*ALL, *tasks("flaky-new")]
        b = world.begin("b", newer)
        a.bring(newer)
        world.until_started("flaky-new")
        own_postgres.kill()
        standby.promote()
        cable.retarget(standby.port)
        promoted_us = now_us()
        for name in [*FLAKY, "flaky-new"]:
            world.until_started(name, after_us=promoted_us)
        world.until_alive(a, b)
        world.account()
        world.verify()
