"""What a daemon shares with those on other machines: the database that has their timers, and its time.

Services are each machine's own, and so is the history of runs. Each timer is held by one machine at a time.
Each member of the board that the daemon has, one for each opening of its gate, has a leash of its own.
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
from duly.daemon.hand import Hand
from duly.store.board import TimerBoard
from duly.supervisor.children import Brood

SHARDS = 16
"""Into how many shards a new database of daemons is divided."""

SCHEMA = "duly_daemon"
"""Where a database has the timers; tasks of the library may be in the same one."""

OnWait = Callable[[str, float], None]
"""Told why a database is waited for, and for how many seconds by now."""


class Sharing:
    """What one daemon shares by a board: *new_board* gives a way to it, to be opened by whoever asked.

    Whoever only looks at the board needs no *brood* for processes on a leash.
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
        self._brood = brood

    def new_hand(self) -> Hand:
        """A hand for the leash of a new member of the board."""
        assert self._brood is not None, "whoever starts processes has a brood"
        return Hand(self._brood, self.clock)

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
