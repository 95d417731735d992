"""A line to a database: one connection, renewed when it breaks, that never makes anybody wait for ever.

Used from one thread. Every call is one message: several statements that the server runs as one
transaction, with nothing prepared and nothing left in the session, so that poolers may hand each call to
another server process. libpq itself waits without end for a server that is silent; here every wait has a
limit, and a connection that reached it is closed: nobody knows whether such a call took effect.
"""

import math
import select
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

from duly.errors import StoreError
from duly.marks import mark
from duly.store.postgres.address import Address
from duly.store.postgres.reasons import reason_of

T = TypeVar("T")

Rows = list[tuple[Any, ...]]

_ATTEMPTS = 5
"""How often a transaction is tried that the server gave up in favour of another."""
_IN_THE_WAY = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


class SilentError(psycopg.OperationalError):
    """The server did not answer in time."""


class _Connection(psycopg.Connection[tuple[Any, ...]]):
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


def _awaited(socket: int, wanted: Wait, patience_s: float) -> Ready:
    poll = select.poll()
    poll.register(
        socket, (select.POLLIN if wanted & Wait.R else 0) | (select.POLLOUT if wanted & Wait.W else 0)
    )
    found = poll.poll(patience_s * 1_000)
    if not found:
        raise SilentError("no answer")
    (_, events) = found[0]
    is_readable = bool(events & ~select.POLLOUT)  # an error counts: reading tells which
    is_writable = bool(events & ~select.POLLIN)
    ready = (Ready.R if is_readable and wanted & Wait.R else 0) | (
        Ready.W if is_writable and wanted & Wait.W else 0
    )
    return Ready(ready)


class Line:
    """One connection to a database, made when it is first needed and again when it broke."""

    def __init__(self, address: Address, *, patience_s: float) -> None:
        self._address = address
        self._patience_s = self._patience_now_s = patience_s
        self._connection: _Connection | None = None

    def call(self, work: Callable[[], T], *, times_patience: int = 1) -> T:
        """Do *work*, which uses this line, again if other transactions were in its way. Raises StoreError."""
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

    def _settings(self) -> Mapping[str, Any]:
        """The values of `settings.sql`."""
        patience_ms = max(1, round(self._patience_now_s * 1_000))
        return {
            "patience_ms": f"{max(1, patience_ms * 9 // 10)}",  # the server gives up first, and says so
            "thinking_ms": f"{patience_ms * 3}",  # of ours, with locks held
        }

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            self._be_connected()
            return work()
        except psycopg.Error as error:
            reason = self._silent() if isinstance(error, SilentError) else reason_of(error)
            raise StoreError(store=self._address.name, reason=reason, cause=error) from error
        finally:
            connection = self._connection
            if connection is not None and connection.info.transaction_status != TransactionStatus.IDLE:
                mark("connection renewed")
                self.close()

    def _silent(self) -> str:
        return f"has not answered for {self._patience_now_s:g} s; it is tried again"

    def _be_connected(self) -> None:
        if self._connection is not None and _is_over(self._connection):
            mark("connection renewed")
            self.close()
        if self._connection is None:
            self._connection = self._connect()

    def _connect(self) -> _Connection:
        patience_ms = round(self._patience_s * 1_000)
        wanted: dict[str, Any] = {
            "application_name": "duly",
            "connect_timeout": max(2, math.ceil(self._patience_s)),
            "keepalives_idle": max(1, round(self._patience_s)),
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": patience_ms,
            # Of several hosts the one that may be written, wherever it is by now.
            "target_session_attrs": "read-write",
            **self._address.parameters,
            "client_encoding": "UTF8",
        }
        return _Connection.connect(
            autocommit=True, prepare_threshold=None, cursor_factory=psycopg.ClientCursor, **wanted
        )


def _is_over(connection: _Connection) -> bool:
    """Whether a connection that is asked nothing has ended, or has something to say: that is how it ends."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
