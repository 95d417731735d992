"""The proxy of the tests does what it says, between a real client and a real server."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.worlds.postgres import PostgresServer
from tests.worlds.proxy import Proxy, free_port, through

psycopg = pytest.importorskip("psycopg")

Ask = Callable[[str], "Future[Any]"]


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """A proxy before the shared server."""
    with Proxy(postgres.port) as made:
        yield made


@pytest.fixture
def url(postgres_url: str, proxy: Proxy) -> str:
    """A database by way of the proxy; it holds a table `t`."""
    with psycopg.connect(postgres_url) as direct:
        direct.execute("CREATE TABLE t (n int)")
    return through(postgres_url, proxy.port)


@pytest.fixture
def ask(url: str, proxy: Proxy) -> Iterator[Ask]:
    """Execute a statement in the background, on one connection through the proxy."""
    with psycopg.connect(url, autocommit=True) as connection, ThreadPoolExecutor(1) as background:
        yield lambda sql: background.submit(connection.execute, sql)
        proxy.cut()


def count(url: str) -> int:
    """How many rows the server has, asked by the straight way."""
    with psycopg.connect(url) as direct:
        ((rows,),) = direct.execute("SELECT count(*) FROM t").fetchall()
    return int(rows)


def test_carries_large_messages_both_ways(url: str) -> None:
    """Many megabytes arrive whole, there and back."""
    sent = bytes(range(256)) * 40_000
    with psycopg.connect(url) as connection:
        ((back,),) = connection.execute("SELECT %s::bytea", (sent,), binary=True).fetchall()
    assert back == sent


def test_cut_breaks_open_connections_and_refuses_new_ones(url: str, proxy: Proxy) -> None:
    """After a cut nobody gets through, until it is healed; the port stays the same."""
    with psycopg.connect(url) as connection:
        assert proxy.connections == 1
        proxy.cut()
        assert proxy.connections == 0
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(url)
    proxy.cut()
    proxy.heal()
    proxy.heal()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_swallow_delivers_nothing_until_healed(ask: Ask, proxy: Proxy, postgres_url: str) -> None:
    """A swallowed request does not reach the server; when the cable is back it does, once."""
    proxy.swallow()
    asked = ask("INSERT INTO t VALUES (1)")
    proxy.wait_until_held()
    assert not asked.done()
    assert count(postgres_url) == 0
    proxy.heal()
    asked.result(60)
    assert count(postgres_url) == 1


def test_swallowed_request_is_lost_when_the_connection_is_cut(
    ask: Ask, proxy: Proxy, postgres_url: str
) -> None:
    """What was swallowed before a cut never arrives."""
    proxy.swallow()
    asked = ask("INSERT INTO t VALUES (1)")
    proxy.wait_until_held()
    proxy.cut()
    assert isinstance(asked.exception(60), psycopg.OperationalError)
    proxy.heal()
    assert count(postgres_url) == 0


def test_swallow_accepts_and_says_nothing(url: str, proxy: Proxy) -> None:
    """Who connects to a swallowing proxy waits, is counted, and gets through when it is healed."""
    proxy.swallow()
    with ThreadPoolExecutor(1) as background:
        connecting = background.submit(psycopg.connect, url)
        proxy.wait_until_held()
        assert proxy.connections == 1
        assert not connecting.done()
        proxy.heal()
        connecting.result(60).close()


def test_swallowed_connection_times_out(url: str, proxy: Proxy) -> None:
    """A client's own timeout ends its wait for a server that accepts and says nothing."""
    proxy.swallow()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(url, connect_timeout=2)


def test_swallowed_answers_leave_the_outcome_unknown(ask: Ask, proxy: Proxy, postgres_url: str) -> None:
    """The request is carried out, and who asked hears only that the connection broke."""
    proxy.swallow_answers()
    asked = ask("INSERT INTO t VALUES (1)")
    proxy.wait_until_held()
    assert count(postgres_url) == 1
    assert not asked.done()
    proxy.cut()
    assert isinstance(asked.exception(60), psycopg.OperationalError)


def test_swallowed_answer_arrives_when_healed(ask: Ask, proxy: Proxy) -> None:
    """A connection that outlives the silence hears its answer."""
    proxy.swallow_answers()
    asked = ask("SELECT 7")
    proxy.wait_until_held()
    proxy.heal()
    assert asked.result(60).fetchall() == [(7,)]


@pytest.mark.parametrize(
    ("ways", "least_s"), [({}, 0.4), ({"answers": False}, 0.2), ({"requests": False}, 0.2)]
)
def test_delay_is_added_each_way(ask: Ask, proxy: Proxy, ways: dict[str, bool], least_s: float) -> None:
    """A round trip takes the delays of both ways, and none when healed."""
    proxy.delay(0.2, **ways)
    begun_s = time.monotonic()
    ask("SELECT 1").result(60)
    assert time.monotonic() - begun_s >= least_s
    proxy.heal()
    trips = []
    for _ in range(5):
        begun_s = time.monotonic()
        ask("SELECT 1").result(60)
        trips.append(time.monotonic() - begun_s)
    assert min(trips) < 0.2


def test_delay_does_not_narrow_the_cable(url: str, proxy: Proxy) -> None:
    """Two hundred chunks sent at once are delayed once, not as often."""
    sent = bytes(200 * 65536)
    with psycopg.connect(url) as connection:
        proxy.delay(0.3, answers=False)
        begun_s = time.monotonic()
        connection.execute("SELECT length(%s::bytea)", (sent,), binary=True)
        # BEGIN is a round trip of its own.
        assert 0.6 <= time.monotonic() - begun_s < 200 * 0.3


def test_retarget_leads_elsewhere(url: str, proxy: Proxy, postgres: PostgresServer) -> None:
    """After it is retargeted a proxy drops its connections and leads new ones to the other port."""
    with Proxy(postgres.port) as other, psycopg.connect(url) as connection:
        proxy.retarget(other.port)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        with psycopg.connect(url) as moved:
            assert moved.execute("SELECT 1").fetchall() == [(1,)]
        assert other.accepted == 1


def test_dead_target_is_a_broken_connection(url: str, proxy: Proxy) -> None:
    """A client of a proxy that leads nowhere is told at once."""
    proxy.retarget(free_port())
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_closed_proxy_leaves_no_thread(postgres: PostgresServer) -> None:
    """Closing ends the thread and frees the port, and may be done twice."""
    with Proxy(postgres.port) as proxy, psycopg.connect(postgres.url(port=proxy.port)) as connection:
        proxy.close()
        assert f"proxy {proxy.port}" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(postgres.url(port=proxy.port))
