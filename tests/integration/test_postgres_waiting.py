"""Opening a store whose server is not there yet, not yet ready, or never comes."""

import asyncio
import socket
import time
from datetime import timedelta
from itertools import islice
from urllib.parse import quote

import psycopg
import pytest

from duly.cluster import PostgresStore
from duly.cluster.messages import is_passing, pauses_s
from duly.errors import StoreError
from tests.worlds.postgres import LOGIN, PASSWORD, PgBouncer, PostgresMissingError, PostgresServer
from tests.worlds.proxy import LOOPBACK, Proxy, free_port, through

LONG = timedelta(minutes=2)


class Told:
    """What somebody hears who waits, and the signal of the first time."""

    def __init__(self) -> None:
        self.tries: list[tuple[str, float]] = []
        self.first = asyncio.Event()

    def __call__(self, reason: str, waited_s: float) -> None:
        """Note a try."""
        self.tries.append((reason, waited_s))
        self.first.set()

    async def opening(self, url: str, **options: float) -> "asyncio.Task[str]":
        """The opening of a store, when the first try has failed and the next is waited for."""
        store = PostgresStore(url, wait=LONG, on_wait=self, **options)
        opening = asyncio.create_task(store.open("id"))
        first = asyncio.ensure_future(self.first.wait())
        await asyncio.wait([first, opening], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        assert self.first.is_set()
        return opening


@pytest.mark.parametrize("is_pooled", [False, True], ids=["directly", "through PgBouncer"])
async def test_server_that_comes_late(own_postgres: PostgresServer, is_pooled: bool) -> None:
    """A store whose server is started while it is opened is open as soon as the server is ready."""
    url, options = own_postgres.url(), dict[str, float]()
    if is_pooled:
        try:
            url, options = PgBouncer(own_postgres).url("postgres"), {"patience_s": 1.0}
        except PostgresMissingError as error:
            pytest.skip(str(error))
    own_postgres.stop()
    seen = Told()
    opening = await seen.opening(url, **options)
    await asyncio.to_thread(own_postgres.start)
    assert await opening == "id"
    for reason, _ in seen.tries:
        assert is_pooled or reason.startswith(("cannot be reached (", "is starting up"))
        assert PASSWORD not in reason
    waited = [waited_s for _, waited_s in seen.tries]
    assert waited == sorted(waited)


async def test_server_that_stays_away() -> None:
    """When the time is up the last error is raised; every try before it was told, with what was waited."""
    seen, wait_s = Told(), 1.2
    url = f"postgresql://{LOGIN}@{LOOPBACK}:{free_port()}/x"
    began_s = time.monotonic()
    with pytest.raises(StoreError, match="cannot be reached"):
        await PostgresStore(url, wait=timedelta(seconds=wait_s), on_wait=seen).open("id")
    assert time.monotonic() - began_s >= wait_s
    assert len(seen.tries) >= 2
    assert all("refused" in reason and waited_s < wait_s for reason, waited_s in seen.tries)


async def test_time_to_wait_is_not_negative() -> None:
    """A time below zero is a mistake."""
    with pytest.raises(ValueError, match="zero or more"):
        PostgresStore("postgresql://host/x", wait=timedelta(seconds=-1))


@pytest.mark.parametrize("option", ["", "?target_session_attrs=any"])
async def test_standby_that_is_promoted(own_postgres: PostgresServer, option: str) -> None:
    """A standby is waited for, as it may become the primary; asked in either way."""
    standby, seen = own_postgres.standby(), Told()
    opening = await seen.opening(standby.url() + option)
    await asyncio.to_thread(standby.promote)
    assert await opening == "id"
    assert "standby" in seen.tries[0][0]


async def test_silent_server_is_waited_for(postgres: PostgresServer, postgres_url: str) -> None:
    """A server that answers nothing is waited for until it does."""
    with Proxy(postgres.port) as proxy:
        proxy.swallow()
        opening = await Told().opening(through(postgres_url, proxy.port), patience_s=0.2)
        proxy.heal()
        assert await opening == "id"


# --- what does not pass ---


async def test_password_is_wrong_once_the_server_is_there(own_postgres: PostgresServer) -> None:
    """Waiting ends with the first error that does not pass."""
    own_postgres.stop()
    opening = await Told().opening(own_postgres.url().replace(quote(PASSWORD, safe=""), "wrong"))
    await asyncio.to_thread(own_postgres.start)
    with pytest.raises(StoreError, match="refuses the password"):
        await opening


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("connection failed: Connection refused\n\tIs the server running on that host?", True),
        ("failed to resolve host 'db': [Errno -3] Temporary failure in name resolution", True),
        ("connection timeout expired", True),
        ("server closed the connection unexpectedly", True),
        ('connection on socket "/run/.s.PGSQL.5432" failed: No such file or directory', True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  the database system is not yet accepting connections", True),
        ("FATAL:  the database system is in recovery mode", True),
        ("FATAL:  server login has been failing, try again later (server_login_retry)", True),
        ("FATAL:  server login has been failing, cached error: password authentication failed", False),
        ('FATAL:  password authentication failed for user "x"', False),
        ("fe_sendauth: no password supplied", False),
        ("FATAL:  Passwort-Authentifizierung für Benutzer »x« fehlgeschlagen", False),
        ("FATAL:  sorry, too many clients already", False),
        ("SSL error: certificate verify failed", False),
        ("server does not support SSL, but SSL was required", False),
    ],
)
def test_what_passes_while_connecting(said: str, passes: bool) -> None:
    """What is said while connecting is told apart by its words; a server that answers is there."""
    assert is_passing(psycopg.OperationalError(said)) is passes


@pytest.mark.parametrize(
    ("state", "passes"),
    [("57P01", True), ("57P03", True), ("08006", True), ("25006", True), ("42501", False), ("53100", False)],
)
def test_what_passes_by_its_state(state: str, passes: bool) -> None:
    """What a server says with a code is told apart by the code."""
    assert is_passing(psycopg.errors.lookup(state)("no way")) is passes


def test_pauses_grow() -> None:
    """The pauses double from half a second to five."""
    assert list(islice(pauses_s(), 6)) == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


# --- cancelled ---


async def cancelled(opening: "asyncio.Task[str]") -> None:
    """Cancel *opening*; it ends before anything else could."""
    opening.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await opening


async def test_pause_is_cancelled_at_once(postgres_url: str) -> None:
    """An opening that is cancelled between two tries ends at once."""
    await cancelled(await Told().opening(through(postgres_url, free_port())))


async def test_try_is_cancelled_at_once() -> None:
    """An opening that is cancelled while it waits for an answer that never comes ends at once."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        url = f"postgresql://x@{LOOPBACK}:{listener.getsockname()[1]}/x"
        store = PostgresStore(url, patience_s=60, wait=LONG)
        opening = asyncio.create_task(store.open("id"))
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            await cancelled(opening)


async def test_listener_that_fails_ends_the_wait(postgres: PostgresServer, postgres_url: str) -> None:
    """What the listener raises comes out of the opening, which can be tried again."""

    def object_to(_reason: str, _waited_s: float) -> None:
        raise ZeroDivisionError

    with Proxy(postgres.port) as proxy:
        proxy.cut()
        store = PostgresStore(through(postgres_url, proxy.port), wait=LONG, on_wait=object_to)
        with pytest.raises(ZeroDivisionError):
            await store.open("id")
        proxy.heal()
        assert await store.open("id") == "id"
