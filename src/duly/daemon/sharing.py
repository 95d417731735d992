"""What a daemon shares with those on other machines: the database that has their timers, and its time.

Services are each machine's own. Each switching on of the timers is a node of its own, with a watchdog of its
own.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from duly.background import first_done
from duly.cluster.clock import DatabaseClock
from duly.cluster.node import Health, Node
from duly.cluster.store import ClusterStore, OnWait
from duly.config.schema import Config, database_of
from duly.processes.children import Children
from duly.processes.watchdog import Watchdog

SCHEMA = "duly_daemon"
"""Where a database has the timers; tasks of the library may be in the same one."""


class Sharing:
    """What one daemon shares: *new_store* gives a way to the database, which perhaps waits for it.

    A daemon that starts processes gives its *children*, for the watchdog process.
    """

    def __init__(
        self,
        new_store: Callable[[bool], ClusterStore],
        *,
        children: Children | None = None,
        clock: DatabaseClock | None = None,
        name: str = "",
    ) -> None:
        self._new_store = new_store
        self.clock = DatabaseClock() if clock is None else clock
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._children = children
        self.node: Node | None = None
        """The latest node of this daemon."""

    def health(self) -> Health | None:
        """How the node of this daemon is; None while its timers are off."""
        return None if self.node is None else self.node.health()

    def new_store(self) -> ClusterStore:
        return self._new_store(False)

    def new_watchdog(self) -> Watchdog:
        assert self._children is not None, "a daemon that starts processes has children"
        return Watchdog(self._children, steady=self.clock.steady)

    async def check(self, *, unless: asyncio.Event) -> None:
        """See that the database can be used, and make what is not there. Raises StoreError.

        That may take a while; *unless* somebody has enough of it.
        """
        new_id = uuid.uuid4().hex  # noqa: TID251 (of a new store)
        # To open may wait for the database for minutes: the end of the daemon must not wait with it.
        opening = asyncio.ensure_future(self._new_store(True).open(new_id))
        if opening in await first_done(opening, asyncio.ensure_future(unless.wait())):
            opening.result()


def sharing_of(
    config: Config, children: Children | None = None, *, wait_sec: float = 0, on_wait: OnWait | None = None
) -> Sharing | None:
    """What *config* says is shared: nothing, unless its store is a database."""
    database = database_of(config)
    if database is None:
        return None
    from duly.cluster.postgres import PostgresStore  # noqa: PLC0415 (not every user has psycopg)

    new_store = partial(
        PostgresStore,
        database.secret,
        schema=SCHEMA,
        lease=timedelta(seconds=config.settings.lease_sec),
        history=timedelta(days=config.settings.history_days),
    )
    wait = timedelta(seconds=wait_sec)
    return Sharing(
        lambda waits: new_store(wait=wait, on_wait=on_wait) if waits else new_store(), children=children
    )
