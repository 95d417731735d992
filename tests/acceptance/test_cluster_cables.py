"""Nodes that cannot reach the database, or only slowly, and a database that is away for all."""

from pathlib import Path

import pytest

from tests.worlds.cluster import NodeProcess, World, now_us, tasks
from tests.worlds.postgres import PgBouncer, PostgresMissingError, PostgresServer
from tests.worlds.proxy import Proxy

LONG = [f"long-{n}" for n in range(4)]
FLAKY = [f"flaky-{n}" for n in range(4)]
ALL = tasks(*LONG, *FLAKY)


def cabled(world: World, port: int) -> tuple[NodeProcess, NodeProcess, Proxy, Proxy]:
    """Two nodes, each behind a cable of its own; the first is the one that runs long tasks."""
    cables = [world.cable(port) for _ in "ab"]
    nodes = world.begin_all("ab", ALL, urls=[url for _, url in cables])
    for name in LONG:
        world.until_started(name)
    first = nodes.index(world.runner(LONG[0]))
    return nodes[first], nodes[1 - first], cables[first][0], cables[1 - first][0]


def running(node: NodeProcess) -> list[str]:
    """The long tasks that a node runs."""
    return [run.name for run in node.runs() if run.how == "open" and run.name in LONG]


@pytest.mark.parametrize("is_heard", [False, True], ids=["nothing passes", "only answers are lost"])
def test_partition(world: World, postgres: PostgresServer, is_heard: bool) -> None:
    """A node without the database cancels its runs in time, the others take over, and it comes back.

    If its requests arrive and the answers do not, it lets go too.
    """
    a, b, cable, _ = cabled(world, postgres.port)
    cut = running(a)
    if is_heard:
        cable.swallow_answers()
    else:
        cable.swallow()
    cut_us = now_us()
    a.until("event TrustLost")
    a.until("event StoreFault")
    for name in cut:
        a.until(f"end {name} .* cancelled")
    for name in [*cut, *FLAKY]:
        world.until_started(name, among=[b], after_us=cut_us)
    starts = a.starts()
    for name in cut:
        ended_us = next(run.end_us for run in a.runs() if run.name == name and run.how == "cancelled")
        again_us = next(run.start_us for run in b.runs() if run.name == name and run.cause == "interrupted")
        assert ended_us is not None
        assert ended_us < again_us
    assert a.starts() == starts
    before = a.mark()
    cable.heal()
    a.until("event NodeReturned", after=before)
    a.until("start flaky", after=before)
    world.until_alive(a, b)
    world.account()
    world.verify()


@pytest.mark.steady
def test_cut(world: World, postgres: PostgresServer) -> None:
    """A node whose connections are reset makes new ones; nothing is lost, nobody else notices."""
    a, b, cable, _ = cabled(world, postgres.port)
    for _ in range(3):
        cable.cut()
        cable.heal()
        a.until("start flaky", count=2, after=a.mark())
    assert {run.how for run in world.runs() if run.name in LONG} == {"open"}
    assert world.events("TrustLost", "NodeFenced") == []
    world.until_alive(a, b)
    world.account()
    world.verify()


def test_slow_answers(postgres: PostgresServer, postgres_url: str, tmp_path: Path) -> None:
    """Answers that take longer than a heartbeat, and less than the lease, cost nothing but time."""
    with World(postgres_url, tmp_path, lease_s=4) as world:
        a, _, cable, _ = cabled(world, postgres.port)
        (before,) = [view.beat for view in world.views() if view.name.endswith(f":{a.process.pid}")]
        cable.delay(0.8, requests=False)
        for name in LONG:
            slow_us = now_us()
            world.runner(name).tell("fail", name)
            world.until_started(name, after_us=slow_us)
        world.until(
            lambda: (
                max(view.beat for view in world.views() if view.name.endswith(f":{a.process.pid}"))
                > before + 8
            ),
            "more heartbeats than a lease has",
        )
        cable.heal()
        assert {run.how for run in world.runs() if run.name in LONG} == {"open", "failed"}
        assert world.events("TrustLost", "NodeFenced") == []
        world.account()
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
    if is_frozen:
        bringer.freeze()
    else:
        cable.swallow()
    for _ in range(3):
        lost_us = now_us()
        for name in FLAKY:
            assert world.until_started(name, after_us=lost_us).start_us - lost_us < 10_000_000
    c = world.begin("c", [*ALL, *tasks("flaky-new")])
    world.until_started("flaky-new", among=[c])
    assert [node for node in (a, b, c) if node.events("TrustLost")] == []
    bringer.kill()
    world.account()


def test_database_away_for_all(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """While nobody has the database nothing starts; when it is back everything goes on."""
    with World(own_postgres.url(), tmp_path) as world:
        a, b, *cables = cabled(world, own_postgres.port)
        cut = running(a)
        for cable in cables:
            cable.cut()
        a.until("event TrustLost")
        for node in (a, b):
            node.until("event StoreFault")
        away_us = now_us()
        for cable in cables:
            cable.heal()
        for name in [*cut, *FLAKY]:
            world.until_started(name, after_us=away_us)
        world.until_alive(a, b)
        world.account()
        world.verify()


@pytest.mark.parametrize("through_pooler", [False, True], ids=["directly", "through PgBouncer"])
def test_database_restarts(own_postgres: PostgresServer, tmp_path: Path, through_pooler: bool) -> None:
    """A server that comes back within the lease interrupts nothing; starts begin at once."""
    port = own_postgres.port
    if through_pooler:
        try:
            port = PgBouncer(own_postgres).port
        except PostgresMissingError as error:
            pytest.skip(str(error))
    with World(own_postgres.url(), tmp_path, lease_s=12) as world:
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
        assert {run.how for run in world.runs() if run.name in LONG} == {"open"}
        assert world.events("TrustLost", "NodeFenced") == []
        world.account()
        world.verify()
