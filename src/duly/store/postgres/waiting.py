"""Waiting for a database that is not there yet, as when a whole site is switched on: tries with pauses.

Only what passes by itself is waited for: a server that cannot be reached, or is starting up, or is a standby
that may be promoted. A wrong password stays wrong. Time is the loop's, which nobody can set.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import psycopg

from duly.errors import StoreError
from duly.store.postgres.founding import StandbyError
from duly.store.postgres.reasons import is_passing

T = TypeVar("T")

OnWait = Callable[[str, float], None]
"""Told after each try that failed: why, and how many seconds have been waited in all."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


def may_pass(error: StoreError) -> bool:
    """Whether another try may succeed though nobody corrects anything."""
    cause = error.__cause__
    return isinstance(error, StandbyError) or (isinstance(cause, psycopg.Error) and is_passing(cause))


def pauses_s() -> Iterator[float]:
    """The pauses between tries: each twice the last, up to the longest."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


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
