"""The database's own failover: the primary dies, a standby takes its place, perhaps a forgetful one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_world import World, now_us, tasks
from tests.postgres import PostgresServer
from tests.proxy import Proxy, through

LONG = [f"long-{n}" for n in range(6)]
FLAKY = [f"flaky-{n}" for n in range(4)]
ALL = tasks(*LONG, *FLAKY)


@pytest.fixture
def cable(own_postgres: PostgresServer) -> Iterator[Proxy]:
    """What leads to the primary, wherever it is."""
    with Proxy(own_postgres.port) as proxy:
        yield proxy


@pytest.mark.parametrize("is_quick", [True, False], ids=["within the lease", "after the lease"])
def test_promotion(own_postgres: PostgresServer, cable: Proxy, tmp_path: Path, is_quick: bool) -> None:
    """A standby that has everything goes on where the primary was; what runs is interrupted by time alone."""
    standby = own_postgres.standby()
    lease_us = 12_000_000 if is_quick else 2_000_000
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_us=lease_us) as world:
        a, b = world.begin_all("ab", ALL)
        world.run_at_home(LONG)
        standby.wait_for(own_postgres)
        own_postgres.kill()
        if not is_quick:
            for member in (a, b):
                member.until("event ShardsLost")
        standby.promote()
        promoted_us = now_us()
        cable.retarget(standby.port)
        for name in FLAKY if is_quick else [*FLAKY, *LONG]:
            world.until_started(name, after_us=promoted_us)
        world.until_shared(a, b)
        if is_quick:
            assert {run.how for run in world.runs() if run.name in LONG} <= {"open", "failed"}
        world.account()
        world.verify()


def test_promotion_of_one_that_forgot_runs(
    own_postgres: PostgresServer, cable: Proxy, tmp_path: Path
) -> None:
    """A standby that lacks the last commits: no run is doubled whose member lives."""
    standby = own_postgres.standby()
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_us=12_000_000) as world:
        a, b = world.begin_all("ab", ALL)
        world.run_at_home(LONG)
        standby.wait_for(own_postgres)
        standby.stop_receiving()
        for name in LONG:  # each of them ends and starts once more, of which the standby knows nothing
            (run,) = [run for run in world.runs(name) if run.how == "open"]
            run.member.tell("fail", name)
            world.until_started(name, after_us=now_us())
        open_before = [
            (run.member, run.number) for run in world.runs() if run.name in LONG and run.how == "open"
        ]
        own_postgres.kill()
        standby.promote()
        cable.retarget(standby.port)
        promoted_us = now_us()
        for name in FLAKY:
            world.until_started(name, after_us=promoted_us)
        world.until_shared(a, b)
        still = [(run.member, run.number) for run in world.runs() if run.name in LONG and run.how == "open"]
        assert still == open_before
        world.account()
        world.verify()


@pytest.mark.parametrize("lease_s", [2, 6])
def test_promotion_of_one_that_forgot_a_member(
    own_postgres: PostgresServer, cable: Proxy, tmp_path: Path, lease_s: int
) -> None:
    """A standby that has never heard of a member, or of its list: it joins anew, and brings its list again.

    The standby also believes that the other member is dead if it forgot more than a lease: nobody acts on it.
    """
    standby = own_postgres.standby()
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_us=lease_s * 1_000_000) as world:
        (a,) = world.begin_all("a", ALL)
        world.run_at_home(LONG)
        standby.wait_for(own_postgres)
        standby.stop_receiving()
        newer = [*ALL, *tasks("flaky-new")]
        b = world.begin("b", newer)
        a.bring(newer)
        world.until_shared(a, b)
        world.until_started("flaky-new")
        own_postgres.kill()
        standby.promote()
        cable.retarget(standby.port)
        promoted_us = now_us()
        for name in [*FLAKY, "flaky-new"]:
            world.until_started(name, after_us=promoted_us)
        world.until_shared(a, b)
        world.account()
        # No verification of traces: on this server terms came again that had been, for others.
