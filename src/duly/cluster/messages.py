"""What a database has against us, in a sentence that says what to do.

The server's own words are repeated only where they name the thing that is wrong. They may be in any language.
libpq has no code for what is said while connecting, so there the words themselves are looked at. In other
languages the server's sentence is shown as it is.

Some of it passes by itself: a server that cannot be reached, starts up, or is a standby that may be promoted.
`waited_for` waits for that, as when a whole site is switched on. A wrong password stays wrong.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import psycopg

from duly.cluster.store import OnWait
from duly.errors import StoreError
from duly.instant import back_off

T = TypeVar("T")

_LONGEST = 300

_BY_STATE = {
    "25006": "is read-only: a standby, or a role that may only read; use the address of the primary",
    "28000": "does not let this role in; look at the user in the address and at pg_hba.conf",
    "28P01": "refuses the password; look at the one in the address, in PGPASSWORD or in the password file",
    "3D000": "has no such database; make it (createdb) or correct the address",
    "40001": "was in the way of other transactions several times; it is tried again",
    "40P01": "was locked crosswise with other transactions several times; it is tried again",
    "42703": "has tables that are not those of this duly; somebody has changed them",
    "42P01": "has lost our tables: the schema was dropped, or this is another database",
    "3F000": "has lost our tables: the schema was dropped, or this is another database",
    "53100": "its disk is full; free some space and writing resumes by itself",
    "53200": "is out of memory",
    "53300": "has too many connections; raise max_connections, or put a pooler in front of it",
    "57014": "did not finish in time: it is busy, or another program holds a lock; it is tried again",
    "57P01": "is being shut down, or somebody ended our connection; it is tried again",
    "57P02": "crashed, and recovers; it is tried again",
    "57P03": "is starting up or shutting down, or is a standby that lets nobody in; it is tried again",
    "57P04": "has dropped this database",
    "57P05": "ended our connection because it was idle; it is tried again",
    "25P03": "ended our transaction because it stood still for too long; it is tried again",
}

_BY_WORDS = (
    (r"password authentication failed|SASL authentication failed|authentication failed for user", "28P01"),
    (r"no pg_hba\.conf entry|role .* does not exist|is not permitted to log in", "28000"),
    (r"database .* does not exist|no such database", "3D000"),
    (r"too many (clients|connections)|remaining connection slots|no more connections allowed", "53300"),
    (r"starting up|shutting down|recovery mode|not accepting connections|not yet accepting", "57P03"),
    (r"session is (not )?read-only|in hot standby mode", "25006"),
)

_PASSING = {"25006", "57P01", "57P02", "57P03"}
"""States that pass by themselves. A standby among them: it may be about to be promoted."""

_ANSWERED = r"FATAL:|certificate|private key|does not support SSL|authentication method|invalid .* value"
"""Of words that we do not know: what a server says that is there, and what no server can mend."""

_POOLER_ALONE = r"server login|cannot connect to server|server_login_retry|query_wait_timeout"
"""What a pooler says while there is no server behind it."""

_NO_PASSWORD = (
    "asks for a password, and none was given; put it into the address, PGPASSWORD or the password file"  # noqa: S105
)


def reason_of(error: psycopg.Error) -> str:
    """The reason for a StoreError that *error* gives."""
    state = error.sqlstate
    said = one_line(error.diag.message_primary or str(error))
    if state is None:
        return _unconnected(said)
    if state == "42501":
        return f"lacks a right ({said}); grant it to the role, or use another"
    if state == "23505":
        return "has another task of the same name, or the same identifier"
    return _BY_STATE.get(state) or f"failed: {said} ({state})"


def is_passing(error: psycopg.Error) -> bool:
    """Whether what *error* says passes by itself: there is no server yet, or it starts up, or is silent."""
    state = error.sqlstate
    if state is not None:
        return state in _PASSING or state.startswith("08")  # of which a pooler makes use
    said = " ".join(str(error).split())
    known = _state_in(said)
    if known is not None or _lacks_password(said):
        return known in _PASSING
    return re.search(_POOLER_ALONE, said) is not None or re.search(_ANSWERED, said) is None


def _unconnected(said: str) -> str:
    if _lacks_password(said):
        return _NO_PASSWORD
    state = _state_in(said)
    return f"cannot be reached ({said}); it is tried again" if state is None else _BY_STATE[state]


def _lacks_password(said: str) -> bool:
    return "no password supplied" in said


def _state_in(said: str) -> str | None:
    """The state that a server meant which refused a connection."""
    return next((state for words, state in _BY_WORDS if re.search(words, said)), None)


def one_line(text: str) -> str:
    """Text for the inside of a sentence."""
    text = " ".join(text.split())
    text = re.sub(r"^connection failed: ", "", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class StandbyError(StoreError):
    """The server only repeats what another one does."""

    def __init__(self, *, store: str) -> None:
        super().__init__(store=store, reason="is in recovery: a standby; use the address of the primary")


_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0


def may_pass(error: StoreError) -> bool:
    """Whether another try may succeed though nobody corrects anything."""
    cause = error.__cause__
    return isinstance(error, StandbyError) or (isinstance(cause, psycopg.Error) and is_passing(cause))


def pauses_s() -> Iterator[float]:
    """The pauses between tries: each twice the last, up to the longest."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = back_off(pause_s, _LONGEST_PAUSE_S)


async def waited_for(attempt: Callable[[], Awaitable[T]], *, wait_s: float, on_wait: OnWait | None) -> T:
    """What *attempt* gives, tried again for *wait_s* while its error may pass; the last error is raised."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for pause_s in pauses_s():
        try:
            return await attempt()
        except StoreError as error:
            waited_s = loop.time() - began_s
            if waited_s >= wait_s or not may_pass(error):
                raise
            if on_wait is not None:
                on_wait(error.details["reason"], waited_s)
        await asyncio.sleep(min(pause_s, wait_s - waited_s))  # noqa: TID251 (no clock is about this)
    raise AssertionError
