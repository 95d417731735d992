"""A connection to a database, renewed when it breaks, that never makes anybody wait for ever.

Used from one thread. Every call is one message: several statements that the server runs as one
transaction, with nothing prepared and nothing left in the session, so that poolers may hand each call to
another server process. Only where there is no pooler a session may listen. libpq itself waits without end for
a server that is silent; here every wait has a limit, and a connection that reached it is closed: nobody knows
whether such a call took effect.
"""

import math
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from socket import socket
from typing import Any, TypeVar

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

from duly.cluster.address import Address
from duly.cluster.messages import reason_of
from duly.cluster.statements import unescaped
from duly.errors import StoreError
from duly.marks import mark

T = TypeVar("T")

Rows = list[tuple[Any, ...]]

_ATTEMPTS = 5
"""How often a transaction is tried that the server gave up in favour of another."""
_IN_THE_WAY = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


class SilentError(psycopg.OperationalError):
    """The server did not answer in time."""


class _StoredText(Loader):
    """Texts of ours, as they were before they were stored."""

    def load(self, data: Buffer) -> str:
        return unescaped(bytes(data).decode())


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose waits end."""

    patience_s = 10.0

    def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:  # noqa: ARG002
        """Do what *gen* does, with pauses of `patience_s` at most."""
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(_awaited(self.pgconn.socket, wanted, self.patience_s))
        except StopIteration as done:
            return done.value


def _awaited(descriptor: int, wanted: Wait, patience_s: float) -> Ready:
    poll = select.poll()
    poll.register(
        descriptor, (select.POLLIN if wanted & Wait.R else 0) | (select.POLLOUT if wanted & Wait.W else 0)
    )
    found = poll.poll(patience_s * 1_000)
    if not found:
        raise SilentError("no answer")
    (_, events) = found[0]
    is_readable = bool(events & ~select.POLLOUT)  # an error counts: reading shows which
    is_writable = bool(events & ~select.POLLIN)
    ready = (Ready.R if is_readable and wanted & Wait.R else 0) | (
        Ready.W if is_writable and wanted & Wait.W else 0
    )
    return Ready(ready)


class Connection:
    """One connection to a database, made when it is first needed and again when it broke."""

    def __init__(self, address: Address, *, patience_s: float, is_reader: bool = False) -> None:
        self._address = address
        self._is_reader = is_reader
        self._patience_s = self._patience_now_s = patience_s
        self._connection: _Bounded | None = None
        self.on_notified: Callable[[str], None] | None = None
        """Called with what is notified on the channel `duly`. Nothing may depend on it: see `_listen`.

        In `wait` it may be called before the pause: it makes *waker* readable to end that.
        """

    def call(self, work: Callable[[], T], *, times_patience: int = 1) -> T:
        """Do *work*, again if other transactions were in its way. Raises StoreError."""
        self._patience_now_s = self._patience_s * times_patience
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._guarded(work)
            except StoreError as error:
                if not isinstance(error.__cause__, _IN_THE_WAY) or attempt == _ATTEMPTS:
                    raise
        raise AssertionError

    def ask(self, script: str, values: Mapping[str, Any]) -> list[Rows]:
        """What each statement of *script* gives, those that give rows. One round trip.

        All are one transaction, unless they begin or end one themselves; one left open is rolled back when
        the work that `call` was given ends.
        """
        # The same connection throughout the work: a new one would know nothing of its transaction and locks.
        connection = self._connection
        assert connection is not None, "asked outside of `call`"
        connection.patience_s = self._patience_now_s
        cursor = connection.cursor()
        cursor.execute(script.encode(), {**self._settings(), **values})
        answers = [cursor.fetchall()] if cursor.description is not None else []
        while cursor.nextset():
            if cursor.description is not None:
                answers.append(cursor.fetchall())
        return answers

    def copy(self, before: str, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute the script *before*, which begins a transaction, then copy *rows* to the database."""
        self.ask(before, {})
        assert self._connection is not None
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copying:
            for row in rows:
                copying.write_row(row)

    def _settings(self) -> Mapping[str, Any]:
        """The values of `settings.sql`."""
        patience_ms = max(1, round(self._patience_now_s * 1_000))
        return {
            "patience_ms": f"{max(1, patience_ms * 9 // 10)}",  # the server gives up first, and says so
            "thinking_ms": f"{patience_ms * 3}",  # of ours, with locks held
        }

    def wait(self, seconds: float, waker: socket) -> None:
        """Wait until *waker* can be read, or the server says something; at most so many *seconds*."""
        self._hear()
        poll = select.poll()
        poll.register(waker, select.POLLIN)
        if self._connection is not None:
            poll.register(self._connection.fileno(), select.POLLIN)
        poll.poll(seconds * 1_000)
        self._hear()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _guarded(self, work: Callable[[], T]) -> T:
        is_sent = False
        try:
            self._be_connected()
            is_sent = True
            return work()
        except psycopg.Error as error:
            reason = self._silent() if isinstance(error, SilentError) else reason_of(error)
            refused = StoreError(store=self._address.name, reason=reason, cause=error)
            refused.is_undone = not is_sent or _is_rolled_back(error)
            raise refused from error
        finally:
            connection = self._connection
            if connection is not None and connection.info.transaction_status != TransactionStatus.IDLE:
                mark("connection renewed")
                self.close()

    def _silent(self) -> str:
        return f"has not answered for {self._patience_now_s:g} s; it is tried again"

    def _hear(self) -> None:
        """Read what the server sends unasked: notifications, or that the connection is over."""
        if self._connection is not None and _is_over(self._connection):
            mark("connection renewed")
            self.close()

    def _be_connected(self) -> None:
        self._hear()
        if self._connection is None:
            self._connection = self._connect()

    def _connect(self) -> _Bounded:
        patience_ms = round(self._patience_s * 1_000)
        wanted: dict[str, Any] = {
            "application_name": "duly",
            "connect_timeout": max(2, math.ceil(self._patience_s)),
            "keepalives_idle": max(1, round(self._patience_s)),
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": patience_ms,
            # Of several hosts the one that may be written, wherever it is by now. The role of a reader may
            # be one for which every transaction is read-only.
            "target_session_attrs": "primary" if self._is_reader else "read-write",
            **self._address.parameters,
            "client_encoding": "UTF8",
        }
        connection = _Bounded.connect(
            autocommit=True, prepare_threshold=None, cursor_factory=psycopg.ClientCursor, **wanted
        )
        connection.adapters.register_loader("text", _StoredText)
        if self.on_notified is not None:
            connection.patience_s = self._patience_s
            _listen(connection, self.on_notified)
        return connection


def _listen(connection: _Bounded, on_notified: Callable[[str], None]) -> None:
    """Listen for notifications, if the server process is ours: a pooler would give LISTEN to others."""
    connection.add_notify_handler(lambda notice: on_notified(notice.payload))
    is_ours = f"pg_backend_pid() = {connection.info.backend_pid}"  # a pooler makes up its own
    try:
        connection.execute(f"DO $$ BEGIN IF {is_ours} THEN LISTEN duly; END IF; END $$".encode())
    except psycopg.Error as error:
        if not _is_rolled_back(error):
            connection.close()
            raise
        mark("cannot listen")


def _is_rolled_back(error: psycopg.Error) -> bool:
    """Whether the server itself has said that it failed; not so if the connection broke meanwhile."""
    state = error.sqlstate
    return state is not None and not state.startswith(("08", "57P"))


def _is_over(connection: _Bounded) -> bool:
    """Whether a connection that is asked nothing has ended, or has more to say than notifications."""
    if connection.closed:
        return True
    pgconn = connection.pgconn
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    is_over = bool(poll.poll(0))
    try:
        if is_over:
            pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    while (notice := pgconn.notifies()) is not None:  # also one that came right behind an answer
        is_over = False
        if pgconn.notify_handler is not None:
            pgconn.notify_handler(notice)
    return is_over
