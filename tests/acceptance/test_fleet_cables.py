"""Daemons that share their timers and cannot reach the database for a while, each alone or all together."""

from pathlib import Path

import pytest

from tests.acceptance.running import one_sentence
from tests.worlds.fleet import RARELY, Fleet, Machine
from tests.worlds.postgres import PASSWORD, PostgresServer
from tests.worlds.proxy import Proxy

QUICK = [f"quick-{n}" for n in range(6)]
LONG = [f"long-{n}" for n in range(3)]


def cabled(fleet: Fleet, server: PostgresServer, names: str) -> tuple[list[Machine], list[Proxy]]:
    """Machines that share their timers, each behind a cable of its own."""
    cables = [fleet.cable(server.port) for _ in names]
    text = fleet.jobs(QUICK) + fleet.jobs(LONG, "long", **RARELY)
    machines = fleet.begin(names, text, urls=[url for _, url in cables])
    return machines, [proxy for proxy, _ in cables]


@pytest.mark.parametrize("how", ["swallow", "swallow_answers", "cut"])
def test_partition(fleet: Fleet, postgres: PostgresServer, how: str) -> None:
    """A daemon without the database ends its runs before others start them, and comes back for more."""
    (a, b), (cable, _) = cabled(fleet, postgres, "ab")
    cut = fleet.run_long(a, LONG)
    getattr(cable, how)()
    a.until("TrustLost")
    for job in cut:
        fleet.until_begun(job, on=[b])
    fleet.until_shared(b)
    lost = fleet.mark()
    fleet.until_going_on(QUICK, on=[b])
    assert fleet.begins(on=[a], after=lost) == []
    a.until("StoreFault")
    assert a.home.duly("status", "--check").returncode == 1
    before = a.mark()
    cable.heal()
    a.until("NodeReturned", after=before)
    for job in cut:
        fleet.let_end(job)
    fleet.until_shared(a, b)
    healed = fleet.mark()
    fleet.until_busy(a, after=healed)
    a.until("StoreRecovered", after=before)
    assert [len(fleet.begins(job)) for job in cut] == [2] * len(cut)
    assert [b.reasons(job) for job in cut] == [["catch-up"]] * len(cut)
    fleet.account()


@pytest.mark.steady
def test_reload_without_the_database(fleet: Fleet, postgres: PostgresServer) -> None:
    """A file that cannot be brought to the others is refused in a sentence; later it takes effect."""
    (a, b), (cable, _) = cabled(fleet, postgres, "ab")
    new = fleet.jobs([*QUICK, "fresh"]) + fleet.jobs(LONG, "long", **RARELY)
    a.home.write(fleet.configured(new, a.url))
    cable.cut()
    answer = a.home.duly("reload")
    assert answer.returncode == 1
    assert "cannot be reached" in one_sentence(answer)
    assert PASSWORD not in answer.stderr
    cable.heal()
    fleet.until_going_on(QUICK)
    b.reload(new)
    fleet.until_going_on(QUICK, on=[b])
    assert a.home.duly("reload").returncode == 0
    fleet.until_shared(a, b)
    fleet.until_going_on(QUICK)
    fleet.account()


def test_database_killed(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The database is killed and comes back: whatever ran meanwhile ran once, and everything goes on."""
    with Fleet(own_postgres.url(), tmp_path) as fleet:
        a, b = fleet.begin("ab", fleet.jobs(QUICK) + fleet.jobs(LONG, "long", **RARELY))
        cut = [*fleet.run_long(a, LONG[:1]), *fleet.run_long(b, LONG[1:])]
        own_postgres.kill()
        for machine in (a, b):
            machine.until("TrustLost")
        away = fleet.mark()
        own_postgres.start()
        for machine in (a, b):
            machine.until("StoreRecovered")
        for job in cut:
            fleet.until_begun(job, after=away)
            fleet.let_end(job)
        fleet.until_shared(a, b)
        fleet.until_going_on(QUICK)
        assert [len(fleet.begins(job)) for job in cut] == [2] * len(cut)
        fleet.account()


def test_pgbouncer(pgbouncer_url: str, postgres_url: str, tmp_path: Path) -> None:
    """Daemons behind PgBouncer share their timers as others do, and take over from each other."""
    with Fleet(postgres_url, tmp_path) as fleet:
        a, b = fleet.begin("ab", fleet.jobs(QUICK), urls=[pgbouncer_url] * 2)
        for machine in (a, b):
            fleet.until_busy(machine)
        a.kill()
        fleet.until_shared(b)
        fleet.until_going_on(QUICK, on=[b])
        fleet.account()
