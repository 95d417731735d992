"""The other tables of a SQLite store: the history of runs and misses, the services, and the timers.

They share the file, its lock, its one writer thread and its faults with the tasks: `SQLiteStore.read` and
`write` carry everything. A timer's row is written like a task's: whole, and as one of a group.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from duly.errors import StoreDamagedError
from duly.instant import Instant
from duly.store.history import MissRow, RunRow
from duly.store.protocol import Contents
from duly.store.schema import sql
from duly.store.sqlite import SQLiteStore

T = TypeVar("T")

_LAST = 2**62
_REMOVED_AT_ONCE = 1_000
"""Rows that are deleted in one transaction; other writes come in between."""

_encoded = msgspec.json.Encoder().encode


class SQLiteRows:
    """The history in a SQLite store that is open."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        store.restorers.append(self._restore)
        self._open: dict[int, RunRow] = {}
        """The runs that have not ended: without them a later daemon would not know their processes."""
        self._services: Mapping[str, str] = {}
        self._key: bytes | None = None

    async def put(self, runs: Sequence[RunRow], misses: Sequence[MissRow]) -> None:
        """Write runs whole, new or not, and add misses, in one transaction."""

        def change(connection: apsw.Connection) -> None:
            if runs:
                connection.execute(sql("run_put"), (_encoded(runs).decode(),))
            if misses:
                connection.execute(sql("miss_put"), (_encoded(misses).decode(),))

        await self._store.write(change)
        for run in runs:
            if run.ended_us is None:
                self._open[run.id] = run
            else:
                self._open.pop(run.id, None)

    def _restore(self, connection: apsw.Connection) -> None:
        """Write what must not be lost with a file, in the writer's thread."""
        _put_services(self._services, connection)
        connection.execute(sql("run_put"), (_encoded(list(self._open.values())).decode(),))
        if self._key is not None:  # the processes of our runs have tokens of this key
            connection.execute("DELETE FROM run_key")
            connection.execute(sql("run_key_put"), (self._key,))

    async def key(self, new_key: bytes) -> bytes:
        """The key of the run tokens, which is *new_key* if there was none."""
        await self._store.write(lambda connection: connection.execute(sql("run_key_put"), (new_key,)))
        rows = await self._rows("SELECT key FROM run_key")
        if len(rows) != 1 or not isinstance(rows[0][0], bytes):
            raise StoreDamagedError(store=self._store.name, table="run_key", what="it holds no single key")
        self._key = key = rows[0][0]
        return key

    async def declare(self, services: Mapping[str, str]) -> None:
        """Make these the services that the store knows."""
        self._services = services
        await self._store.write(partial(_put_services, services))

    async def declared(self) -> dict[str, str]:
        """The services that the store knows."""
        return dict(await self._rows("SELECT name, definition FROM service"))

    async def last_id(self) -> int:
        """The highest id that a run has."""
        rows = await self._rows("SELECT coalesce(max(id), 0) FROM run")
        return int(rows[0][0])

    async def runs(
        self,
        *,
        service: str | None = None,
        timer: str | None = None,
        before: int | None = None,
        limit: int,
        with_output: bool = True,
    ) -> list[RunRow]:
        """Runs, newest first."""
        query, values = list_query(service, timer, before, limit, with_output=with_output)
        return await self._seen_runs(query, values)

    async def next_id(self, service: str, after: int) -> int | None:
        """The next run of a service after one; None if that is its newest."""
        rows = await self._seen(sql("run_next"), {"service": service, "after": after})
        return next((int(run_id) for (run_id,) in rows), None)

    async def runs_between(self, from_us: Instant, to_us: Instant, limit: int) -> list[RunRow]:
        """Runs that started then, or before and have not ended; newest first, without their output."""
        chosen = {"from": from_us, "to": to_us, "limit": limit}
        return await self._seen_runs(sql("run_between"), chosen)

    async def trend(self, service: str, *, limit: int) -> list[RunRow]:
        """The newest runs of a service that have ended, newest first, without their output."""
        return await self._seen_runs(sql("run_trend"), {"service": service, "limit": limit})

    async def counts(self, since_us: Instant, besides: Sequence[int] = ()) -> dict[str | None, int]:
        """How many runs that started since then ended how; None for those that have not."""
        chosen = {"since": since_us, "besides": _encoded(besides).decode()}
        return dict(await self._seen(sql("run_counts"), chosen))

    async def run(self, run_id: int) -> RunRow | None:
        """One run."""
        return next(iter(await self._read_runs(sql("run_one"), (run_id,))), None)

    async def misses(self, *, timer: str | None = None, limit: int) -> list[MissRow]:
        """Misses, newest first."""
        query, values = misses_query(timer, limit)
        return await self._store.read(
            lambda connection: msgspec.convert(connection.execute(query, values).fetchall(), list[MissRow])
        )

    async def open_runs(self) -> list[RunRow]:
        """The runs of which no end is known, oldest first."""
        return await self._read_runs(sql("run_open"))

    async def last_ends(self) -> dict[str, RunRow]:
        """Of each service the newest run that has ended."""
        return {row.service: row for row in await self._read_runs(sql("run_last_ends"))}

    async def prune(self, *, oldest_us: Instant, runs: int, misses: bool = True) -> None:
        """Forget what is too old or too much, but never the newest of each service that has ended."""
        for kind in ("run", "miss") if misses else ("run",):
            # Found beside the writer: that may take long, and starts wait for the writer.
            found = await self._seen(sql(f"{kind}_prune"), {"oldest": oldest_us, "runs": runs})
            for first in range(0, len(found), _REMOVED_AT_ONCE):
                gone = _encoded([row_id for (row_id,) in found[first : first + _REMOVED_AT_ONCE]]).decode()
                await self._store.write(partial(_execute, sql(f"{kind}_remove"), (gone,)))

    async def _read_runs(self, query: str, values: Any = None) -> list[RunRow]:
        return await self._store.read(lambda connection: _runs(connection.execute(query, values).fetchall()))

    async def _rows(self, query: str, values: Any = None) -> list[Any]:
        return await self._store.read(lambda connection: connection.execute(query, values).fetchall())

    async def _seen(self, query: str, values: Any = None) -> list[Any]:
        return await self._store.look(lambda connection: connection.execute(query, values).fetchall())

    async def _seen_runs(self, query: str, values: Any) -> list[RunRow]:
        # Made in the thread that looks: thousands would hold up the loop.
        return await self._store.look(lambda connection: _runs(connection.execute(query, values).fetchall()))


def list_query(
    service: str | None, timer: str | None, before: int | None, limit: int, *, with_output: bool = True
) -> tuple[str, dict[str, Any]]:
    """The statement that lists runs, and its values. Each kind has its own, which uses its own index."""
    values: dict[str, Any] = {
        "before": _LAST if before is None else before,
        "limit": limit,
        "output": with_output,
    }
    if service is not None:
        return sql("run_list_of_service"), {**values, "service": service, "timer": timer}
    if timer is not None:
        return sql("run_list_of_timer"), {**values, "timer": timer}
    return sql("run_list"), values


def misses_query(timer: str | None, limit: int) -> tuple[str, dict[str, Any]]:
    """The statement that lists misses, and its values."""
    if timer is None:
        return sql("miss_list"), {"limit": limit}
    return sql("miss_list_of_timer"), {"timer": timer, "limit": limit}


def _runs(rows: Sequence[Any]) -> list[RunRow]:
    return msgspec.convert(rows, list[RunRow])


def _put_services(services: Mapping[str, str], connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM service")
    connection.execute(sql("service_put"), (_encoded(list(services.items())).decode(),))


def _execute(statement: str, values: Any, connection: apsw.Connection) -> None:
    connection.execute(statement, values)


class TimerShelf(Generic[T]):
    """The timers in a SQLite store that is open: what the engine writes to, as it writes tasks to a store."""

    def __init__(
        self, store: SQLiteStore, scheduler_id: str, record_of: Callable[[T], Sequence[object]]
    ) -> None:
        self._store = store
        self._scheduler_id = scheduler_id
        self._record_of = record_of

    @property
    def name(self) -> str:
        """The name of the store."""
        return self._store.name

    async def open(self, _new_id: str) -> Contents:
        """Read the timers; the file is held already."""
        query = "SELECT * FROM timer ORDER BY id"
        records = await self._store.read(lambda connection: connection.execute(query).fetchall())
        return Contents(self._scheduler_id, records)

    async def replace(self, *, put: Sequence[T], removed: Sequence[int]) -> None:
        """Write timers whole and forget others, in one transaction."""
        rows = self._encoded(put)

        def change(connection: apsw.Connection) -> None:
            if removed:
                gone = _encoded(removed).decode()
                connection.execute("DELETE FROM timer WHERE id IN (SELECT value FROM json_each(?))", (gone,))
            connection.execute(sql("timer_put"), (rows,))

        await self._store.write(change)

    async def save(self, timers: Sequence[T]) -> None:
        """Write what running changed, in one transaction."""
        if not timers:
            await self._store.save([])
            return
        rows = self._encoded(timers)
        await self._store.write(lambda connection: connection.execute(sql("timer_put"), (rows,)))

    async def close(self) -> None:
        """Leave the file to whoever opened it."""

    async def drop(self) -> None:
        """Leave the file to whoever opened it."""

    def _encoded(self, timers: Sequence[T]) -> str:
        return _encoded([self._record_of(timer) for timer in timers]).decode()
