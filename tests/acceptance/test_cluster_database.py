"""Nodes that cannot reach the database, or only slowly; a server that restarts; a standby in its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.cluster import NodeProcess, World, now_us, tasks
from tests.worlds.postgres import STEADY_LEASE_S, PgBouncer, PostgresMissingError, PostgresServer
from tests.worlds.proxy import Proxy, through

LONG = [f"long-{n}" for n in range(4)]
FLAKY = [f"flaky-{n}" for n in range(4)]
ALL = tasks(*LONG, *FLAKY)


@pytest.fixture
def cable(own_postgres: PostgresServer) -> Iterator[Proxy]:
    """What leads to the primary, wherever it is."""
    with Proxy(own_postgres.port) as proxy:
        yield proxy


def cabled(world: World, port: int) -> tuple[NodeProcess, NodeProcess, Proxy, Proxy]:
    """Two nodes, each behind a cable of its own; the first is the one that runs long tasks."""
    cables = [world.cable(port) for _ in "ab"]
    nodes = world.begin_all("ab", ALL, urls=[url for _, url in cables])
    world.until_all_started(*LONG)
    first = nodes.index(world.runner(LONG[0]))
    return nodes[first], nodes[1 - first], cables[first][0], cables[1 - first][0]


@pytest.mark.parametrize("is_heard", [False, True], ids=["nothing passes", "only answers are lost"])
def test_partition(world: World, postgres: PostgresServer, is_heard: bool) -> None:
    """A node without the database cancels its runs in time, the others take over, and it comes back.

    If its requests arrive and the answers do not, it lets go too.
    """
    a, b, cable, _ = cabled(world, postgres.port)
    cut = a.running
    (cable.swallow_answers if is_heard else cable.swallow)()
    cut_us = now_us()
    a.until("event TrustLost")
    a.until("event StoreFault")
    for name in cut:
        a.until(f"end {name} .* cancelled")
    world.until_all_started(*cut, *FLAKY, among=[b], after_us=cut_us)
    starts = len(a.said("start"))
    for name in cut:
        ended_us = next(run.end_us for run in a.runs() if run.name == name and run.how == "cancelled")
        again_us = next(run.start_us for run in b.runs() if run.name == name and run.cause == "interrupted")
        assert ended_us is not None
        assert ended_us < again_us
    assert len(a.said("start")) == starts
    before = a.mark()
    cable.heal()
    a.until("event NodeReturned", after=before)
    a.until("start flaky", after=before)
    world.until_alive(a, b)
    world.verify()


@pytest.mark.steady
def test_cut(world: World, postgres: PostgresServer) -> None:
    """A node whose connections are reset makes new ones; nothing is lost, nobody else notices."""
    a, b, cable, _ = cabled(world, postgres.port)
    for _ in range(3):
        cable.cut()
        cable.heal()
        a.until("start flaky", count=2, after=a.mark())
    world.check_steady()
    world.until_alive(a, b)
    world.verify()


def test_slow_answers(postgres: PostgresServer, postgres_url: str, tmp_path: Path) -> None:
    """Answers that take longer than a heartbeat, and less than the lease, cost nothing but time."""
    with World(postgres_url, tmp_path, lease_s=6) as world:
        a, _, cable, _ = cabled(world, postgres.port)
        before = world.beat(a)
        cable.delay(1.2, requests=False)
        for name in LONG:
            slow_us = now_us()
            world.runner(name).tell("fail", name)
            world.until_started(name, after_us=slow_us)
        world.until(lambda: world.beat(a) > before + 6, "more heartbeats than a lease has")
        cable.heal()
        world.check_steady("failed")
        world.verify()


@pytest.mark.steady
@pytest.mark.parametrize("is_frozen", [False, True], ids=["cut off", "frozen"])
def test_node_lost_while_it_brings_a_list(
    world: World, postgres: PostgresServer, postgres_database: str, is_frozen: bool
) -> None:
    """A node that freezes or loses its network while it brings a large list keeps nobody from anything."""
    a, b, _, _ = cabled(world, postgres.port)
    cable, url = world.cable(postgres.port)
    cable.delay(0.08)
    bringer = world.begin("bringer", ALL, "--more", "5000", url=url, is_awaited=False)
    copying = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND query LIKE %s"
    world.until(lambda: postgres.value(copying, postgres_database, "%duly_incoming%"), "the list is copied")
    (bringer.freeze if is_frozen else cable.swallow)()
    for _ in range(3):
        lost_us = now_us()
        for name in FLAKY:
            assert world.until_started(name, after_us=lost_us).start_us - lost_us < 10_000_000
    c = world.begin("c", [*ALL, *tasks("flaky-new")])
    world.until_started("flaky-new", among=[c])
    assert [node for node in (a, b, c) if node.events("TrustLost")] == []
    bringer.kill()
    world.account()


@pytest.mark.parametrize("through_pooler", [False, True], ids=["directly", "through PgBouncer"])
def test_database_restarts(own_postgres: PostgresServer, tmp_path: Path, through_pooler: bool) -> None:
    """A server that comes back within the lease interrupts nothing; starts begin at once."""
    port = own_postgres.port
    if through_pooler:
        try:
            port = PgBouncer(own_postgres).port
        except PostgresMissingError as error:
            pytest.skip(str(error))
    with World(own_postgres.url(), tmp_path, lease_s=STEADY_LEASE_S) as world:
        a, b, *_ = cabled(world, port)
        own_postgres.stop("fast")
        for node in (a, b):
            node.until("event StoreFault")
        own_postgres.start()
        back_us = now_us()
        first_us = min(world.until_started(name, after_us=back_us).start_us for name in FLAKY)
        assert first_us - back_us < 5_000_000  # about half a second, on a quiet machine
        for node in (a, b):
            node.until("event ServerChanged .*false")
        world.check_steady()
        world.verify()


@pytest.mark.parametrize("is_quick", [True, False], ids=["within the lease", "after the lease"])
def test_promotion(own_postgres: PostgresServer, cable: Proxy, tmp_path: Path, is_quick: bool) -> None:
    """A standby that has everything goes on where the primary was; what runs is interrupted by time alone."""
    standby = own_postgres.standby()
    lease_s = STEADY_LEASE_S if is_quick else 2
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_s=lease_s) as world:
        world.begin_all("ab", ALL)
        world.until_all_started(*LONG)
        standby.wait_for(own_postgres)
        own_postgres.kill()
        if not is_quick:
            world.runner(LONG[0]).until("event TrustLost")
        standby.promote()
        cable.retarget(standby.port)
        world.until_all_started(*FLAKY if is_quick else [*FLAKY, *LONG], after_us=now_us())
        if is_quick:
            world.check_steady()
        world.verify()


def test_promotion_of_one_that_forgot_runs(
    own_postgres: PostgresServer, cable: Proxy, tmp_path: Path
) -> None:
    """A standby that lacks the last commits: no run is doubled whose node lives, nor one that has ended."""
    standby = own_postgres.standby()
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_s=STEADY_LEASE_S) as world:
        world.begin_all("ab", [*ALL, *tasks("long-once", delay_s=3_600)])
        world.until_all_started(*LONG, "long-once")
        standby.wait_for(own_postgres)
        standby.stop_receiving()
        ordered_us = now_us()
        for name in [*LONG, "long-once"]:  # each of them ends, of which the standby knows nothing
            world.runner(name).tell("fail", name)
        world.until_all_started(*LONG, after_us=ordered_us)
        world.runs("long-once")[0].node.until("event TaskRunFailed .*long-once")
        before = [run for run in world.runs() if run.how == "open" and run.name in LONG]
        own_postgres.kill()
        standby.promote()
        cable.retarget(standby.port)
        world.until_all_started(*FLAKY, after_us=now_us())
        assert [run for run in world.runs() if run.how == "open" and run.name in LONG] == before
        assert [event for event in world.events("ServerChanged") if event[2]["forgot"]]
        world.verify()


def test_promotion_of_one_that_forgot_a_node(
    own_postgres: PostgresServer, cable: Proxy, tmp_path: Path
) -> None:
    """A standby that has never heard of a node, or of its list: it joins again, and brings its list again."""
    standby = own_postgres.standby()
    with World(through(own_postgres.url(), cable.port), tmp_path, lease_s=6) as world:
        (a,) = world.begin_all("a", ALL)
        world.until_all_started(*LONG)
        standby.wait_for(own_postgres)
        standby.stop_receiving()
        newer = [*ALL, *tasks("flaky-new")]
        b = world.begin("b", newer)
        a.bring(newer)
        world.until_started("flaky-new")
        own_postgres.kill()
        standby.promote()
        cable.retarget(standby.port)
        world.until_all_started(*FLAKY, "flaky-new", after_us=now_us())
        world.until_alive(a, b)
        world.verify()
