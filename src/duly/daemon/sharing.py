"""What a daemon shares with those on other machines: the database that has their timers, and its time.

Services are each machine's own, and so is the history of runs. Each timer is held by one machine at a time.
The leash ends what timers have started here should this process be unable to; without one nothing starts.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from duly.cluster.clock import BoardClock
from duly.config.schema import Config, database_of
from duly.store.board import TimerBoard
from duly.supervisor.children import Brood
from duly.supervisor.leash import Leash, LeashError

SHARDS = 16
"""Into how many shards a new database of daemons is divided."""

SCHEMA = "duly_daemon"
"""Where a database has the timers; tasks of the library may be in the same one."""

OnWait = Callable[[str, float], None]
"""Told why a database is waited for, and for how many seconds by now."""

_FIRST_PAUSE_S = 1
_LONGEST_PAUSE_S = 16


class Sharing:
    """What one daemon shares by a board: *new_board* gives a way to it, to be opened by whoever asked.

    Without a *brood* there are no processes to leash, as in a test.
    """

    def __init__(
        self,
        new_board: Callable[[], TimerBoard],
        *,
        brood: Brood | None = None,
        clock: BoardClock | None = None,
        name: str = "",
    ) -> None:
        self.new_board = new_board
        self.clock = BoardClock() if clock is None else clock
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.leash = None if brood is None else Leash(brood, on_lost=self._on_lost, steady=self.clock.steady)
        self._restarting: asyncio.Task[None] | None = None
        self._fault: LeashError | None = None
        self._is_leashed = False

    def faults(self) -> list[str]:
        """What keeps timers from starting here, a sentence for each."""
        return [] if self._fault is None else [f"{self._fault}; no timer fires here until it can"]

    async def check(self, *, unless: asyncio.Event) -> None:
        """See that the database can be used, and make what is not there. Raises StoreError.

        That may take a while; *unless* somebody has enough of it.
        """
        new_id = uuid.uuid4().hex  # noqa: TID251 (of a new board)
        board = self.new_board()
        opening = asyncio.ensure_future(board.open(new_id, shards=SHARDS))
        enough = asyncio.ensure_future(unless.wait())
        try:
            await asyncio.wait({opening, enough}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
        finally:
            enough.cancel()
            opening.cancel()
            await asyncio.wait({opening})
            await board.close()

    # --- the leash ---

    async def begin(self) -> None:
        """Put the leash on; if that cannot be, it is tried again, and nothing starts until it is on."""
        if self.leash is not None and not self._is_leashed:
            self._is_leashed = True
            try:
                await self.leash.start()
            except LeashError as error:
                self._fault = error
                self._on_lost()

    def extend(self, until_us: int) -> None:
        """Let what timers have started go on until then, by the steady clock."""
        if self.leash is not None:
            self.leash.extend(until_us)

    async def end(self) -> None:
        """Take the leash off: what runs may go on."""
        self._is_leashed = False
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
            self._restarting = None
        if self.leash is not None:
            await self.leash.close()

    def _on_lost(self) -> None:
        self._restarting = asyncio.get_running_loop().create_task(self._restart(), name="duly leash")

    async def _restart(self) -> None:
        assert self.leash is not None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self.leash.start()
            except LeashError as error:
                self._fault = error
            else:
                self._fault = None
                return
            await self.clock.sleep_until(self.clock.now() + timedelta(seconds=pause_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def sharing_of(
    config: Config, brood: Brood | None = None, *, wait_sec: float = 0, on_wait: OnWait | None = None
) -> Sharing | None:
    """What *config* says is shared: nothing, unless its store is a database."""
    database = database_of(config)
    if database is None:
        return None
    from duly.store.postgres import PostgresBoard  # noqa: PLC0415 (not every user has psycopg)

    new_board = partial(
        PostgresBoard,
        database.secret,
        schema=SCHEMA,
        lease=timedelta(seconds=config.settings.lease_sec),
        wait=timedelta(seconds=wait_sec),
        on_wait=on_wait,
    )
    return Sharing(new_board, brood=brood)
