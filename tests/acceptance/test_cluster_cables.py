"""Members that cannot reach the database, or only slowly, and a database that is away for all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_world import MemberProcess, World, now_us, tasks
from tests.postgres import PostgresServer
from tests.proxy import Proxy

LONG = [f"long-{n}" for n in range(6)]
FLAKY = [f"flaky-{n}" for n in range(4)]
ALL = tasks(*LONG, *FLAKY)


@pytest.fixture
def world(postgres_url: str, tmp_path: Path) -> Iterator[World]:
    with World(postgres_url, tmp_path) as world:
        yield world


def cabled(world: World, server: PostgresServer, names: str) -> tuple[list[MemberProcess], list[Proxy]]:
    """Members, each behind a cable of its own, that hold their shares and run their long tasks."""
    cables = [world.cable(server.port) for _ in names]
    members = world.begin_all(names, ALL, urls=[url for _, url in cables])
    world.run_at_home(LONG)
    return members, [proxy for proxy, _ in cables]


def running(member: MemberProcess) -> list[str]:
    """The long tasks that a member runs."""
    return [run.name for run in member.runs() if run.how == "open" and run.name in LONG]


def check_cut_off_in_time(a: MemberProcess, b: MemberProcess, cut: list[str]) -> None:
    """Whatever *a* ran was cancelled before *b* started it, though nobody told *a*."""
    for name in cut:
        ended_us = next(run.end_us for run in a.runs() if run.name == name and run.how == "cancelled")
        again_us = next(run.start_us for run in b.runs() if run.name == name and run.cause == "interrupted")
        assert ended_us is not None
        assert ended_us < again_us


@pytest.mark.parametrize("is_heard", [False, True], ids=["nothing passes", "only answers are lost"])
def test_partition(world: World, postgres: PostgresServer, is_heard: bool) -> None:
    """A member without the database lets go in time, the others take over, and it comes back for its share.

    If its requests arrive and the answers do not, it lets go too; the board may take longer to believe it.
    """
    (a, b), (cable, _) = cabled(world, postgres, "ab")
    cut = running(a)
    assert cut
    if is_heard:
        cable.swallow_answers()
    else:
        cable.swallow()
    cut_us = now_us()
    a.until("event ShardsLost")
    a.until("event BoardFault")
    for name in cut:
        a.until(f"end {name} .* cancelled")
    world.until_shared(b)
    for name in [*cut, *FLAKY]:
        world.until_started(name, among=[b], after_us=cut_us)
    starts = a.starts()
    check_cut_off_in_time(a, b, cut)
    assert a.starts() == starts
    before = a.mark()
    cable.heal()
    a.until("event MemberJoined", after=before)
    world.until_shared(a, b)
    world.account()
    world.verify()


def test_cut(world: World, postgres: PostgresServer) -> None:
    """A member whose connections are reset makes new ones; nothing is lost, nobody else notices."""
    (a, b), (cable, _) = cabled(world, postgres, "ab")
    for _ in range(3):
        cable.cut()
        cable.heal()
        a.until("start flaky", count=2, after=a.mark())
    world.account()
    world.verify()
    assert [event for member in (a, b) for event in member.events("ShardsLost")] == []
    assert world.shares() == {"a": 16, "b": 16}


def test_slow_answers(postgres: PostgresServer, postgres_url: str, tmp_path: Path) -> None:
    """Answers that take longer than a beat, and less than the lease, cost nobody anything but time.

    Moves of shards and writes take several answers each: the lease is renewed beside them.
    """
    with World(postgres_url, tmp_path, lease_us=3_000_000) as world:
        (a, b), (cable, _) = cabled(world, postgres, "ab")
        before = a.mark()
        cable.delay(1.05, requests=False)
        a.until("start flaky", count=4, after=before)
        c = world.begin("c", ALL)
        world.until_shared(a, b, c)
        cable.heal()
        world.account()
        world.verify()
        assert [event for member in (a, b, c) for event in member.events("ShardsLost")] == []


def test_database_away_for_all(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """While nobody has the database nothing starts; when it is back each goes on with what was its own."""
    with World(own_postgres.url(), tmp_path) as world:
        (a, b), cables = cabled(world, own_postgres, "ab")
        held = world.shares()
        homes = {name: world.holder(name) for name in FLAKY}
        for cable in cables:
            cable.cut()
        for member in (a, b):
            member.until("event ShardsLost")
        away_us = now_us()
        for cable in cables:
            cable.heal()
        for name in [*LONG, *FLAKY]:
            world.until_started(name, after_us=away_us)
        world.until_shared(a, b)
        assert world.shares() == held
        assert homes
        lost = [event for member in (a, b) for event in member.events("ShardsLost")]
        assert len(lost) == 2
        world.account()
        world.verify()


def test_database_restarts(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A server that dies and comes back within the lease interrupts nothing."""
    with World(own_postgres.url(), tmp_path, lease_us=12_000_000) as world:
        members, _ = cabled(world, own_postgres, "ab")
        own_postgres.kill()
        for member in members:
            member.until("event (BoardFault|StoreFault)")
        own_postgres.start()
        back_us = now_us()
        for name in FLAKY:
            world.until_started(name, after_us=back_us)
        world.account()
        world.verify()
        assert {run.how for run in world.runs() if run.name in LONG} <= {"open", "failed"}
        assert [event for member in members for event in member.events("ShardsLost")] == []
