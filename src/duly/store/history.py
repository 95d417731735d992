"""The history: every run of a service, and every slot that a timer missed, with the reason.

It is written beside the work, never in its way. Rows are noted at once and written soon, all that were noted
meanwhile in one transaction; a store that cannot write keeps nobody from running, it only makes the rows wait
until it can. A run is a whole row each time it is noted, so writing it twice is safe. What must be durable
before something is visible is not decided here: whoever needs that waits for `settled`.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

from duly.clock import Clock, pause
from duly.errors import StoreError
from duly.events import Announcer, described
from duly.instant import Instant
from duly.store.row_queries import bare, ended_of, newest_of, next_id_of, results_of, started_between

_FIRST_PAUSE_S = 1
_LONGEST_PAUSE_S = 16
_MOST_MISSES_WAITING = 10_000
_MOST_RUNS_WAITING = 2_000
"""Ended runs, each with its output, that wait for a store that cannot write."""
_KEY_BYTES = 32


_Result = Annotated[str, msgspec.Meta(pattern="^(success|exit|signal|timeout|spawn-error|interrupted)$")]
"""Of `supervisor.ended.Result`. Anything else in a row is damage."""


class RunRow(msgspec.Struct, array_like=True, frozen=True, gc=False, kw_only=True):
    """One run of a service, from before its process is made."""

    id: int
    service: str
    timer: str | None = None
    reason: str
    scheduled_us: Instant | None = None
    """The instant that it answers, if a timer fired it for one."""
    started_us: Instant
    ended_us: Instant | None = None
    lasted_us: int | None = None
    """As measured; None while it runs, and where whoever measured it died."""
    result: _Result | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    """What there is to say beyond that, such as why it could not be started."""
    pid: int | None = None
    pid_started: int | None = None
    boot: str | None = None
    output: str = ""
    """The tail of its output."""
    output_lost: int = 0
    """How many bytes came before that tail."""


class Lasting(Protocol):
    """A run, as far as its times go."""

    @property
    def started_us(self) -> Instant: ...  # noqa: D102
    @property
    def ended_us(self) -> Instant | None: ...  # noqa: D102
    @property
    def lasted_us(self) -> int | None: ...  # noqa: D102


def length_us(run: Lasting, now_us: Instant | None = None) -> int | None:
    """How long a run lasted, or one that has not ended has lasted at *now_us*; None if nobody can say.

    As it was measured. Only where it was not, by the wall clock, which may have been set meanwhile.
    """
    if run.lasted_us is not None:
        return run.lasted_us
    until_us = now_us if run.ended_us is None else run.ended_us
    return None if until_us is None else max(until_us - run.started_us, 0)


class MissRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One due of a timer that was not answered by a run."""

    timer: str
    at_us: Instant
    reason: str


class Rows(Protocol):
    """Where a history is kept. Each write is one transaction."""

    async def put(self, runs: Sequence[RunRow], misses: Sequence[MissRow], /) -> None:
        """Write runs whole, new or not, and add misses. Raises StoreError."""
        ...

    async def declare(self, services: Mapping[str, str], /) -> None:
        """Make these the services that the store knows, each with its definition."""
        ...

    async def declared(self) -> dict[str, str]:
        """The services that the store knows."""
        ...

    async def key(self, new_key: bytes, /) -> bytes:
        """The key of the run tokens, which is *new_key* if there was none. Raises StoreError."""
        ...

    async def last_id(self) -> int:
        """The highest id that a run has."""
        ...

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
        ...

    async def next_id(self, service: str, after: int, /) -> int | None:
        """The next run of a service after one; None if that is its newest."""
        ...

    async def runs_between(self, from_us: Instant, to_us: Instant, /, limit: int) -> list[RunRow]:
        """Runs that started then, or before and have not ended; newest first, without their output."""
        ...

    async def trend(self, service: str, /, *, limit: int) -> list[RunRow]:
        """The newest runs of a service that have ended, newest first, without their output."""
        ...

    async def counts(self, since_us: Instant, /, besides: Sequence[int] = ()) -> dict[str | None, int]:
        """How many runs that started since then ended how; None for those that have not."""
        ...

    async def run(self, run_id: int, /) -> RunRow | None:
        """One run."""
        ...

    async def misses(self, *, timer: str | None = None, limit: int) -> list[MissRow]:
        """Misses, newest first."""
        ...

    async def open_runs(self) -> list[RunRow]:
        """The runs of which no end is known, oldest first."""
        ...

    async def last_ends(self) -> dict[str, RunRow]:
        """Of each service the newest run that has ended."""
        ...

    async def prune(self, *, oldest_us: Instant, runs: int, misses: bool = True) -> None:
        """Delete what ended before *oldest_us*, and all but the newest *runs* of each service.

        The newest of each service that has ended is kept in any case. *misses* has the misses deleted as
        well: those from before *oldest_us*, and all but the newest *runs* of each timer.
        """
        ...


class History:
    """What ran, in order of appearance; read through `rows`."""

    def __init__(self, rows: Rows, clock: Clock, announcer: Announcer) -> None:
        self.rows = rows
        self._clock = clock
        self._announce = announcer.announce
        self.key = secrets.token_bytes(_KEY_BYTES)
        """The key of the run tokens. Once the history is open, the same in every process on this store."""
        self._next_id = 1
        self._runs: dict[int, RunRow] = {}
        self._flying: dict[int, RunRow] = {}
        self._misses: list[MissRow] = []
        self._services: list[Mapping[str, str]] = []
        """The services to declare; one at most."""
        self._fault: StoreError | None = None
        self._lost = 0
        """Runs that were forgotten since the fault began."""
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Read where the numbers of runs stand, and the key of their tokens. Raises StoreError."""
        self.key = await self.rows.key(self.key)
        self._next_id = await self.rows.last_id() + 1

    def new_id(self) -> int:
        """A number that no run has had."""
        self._next_id += 1
        return self._next_id - 1

    def pass_over(self, run_id: int) -> None:
        """Give no number up to *run_id*: a run had it whose row was never written."""
        self._next_id = max(self._next_id, run_id + 1)

    def note(self, row: RunRow) -> None:
        """Have *row* written soon; a later one of the same run takes its place."""
        self._runs[row.id] = _storable(row)
        if self._fault is not None and len(self._runs) > _MOST_RUNS_WAITING:
            self._make_room()
        self._write_soon()

    def note_miss(self, row: MissRow) -> None:
        """Have *row* written soon."""
        self._misses.append(row)
        # A store that cannot write for weeks must not fill the memory with what did not happen.
        del self._misses[:-_MOST_MISSES_WAITING]
        self._write_soon()

    def note_services(self, services: Mapping[str, str]) -> None:
        """Have the declared services written soon, each with its definition."""
        self._services = [services]
        self._write_soon()

    async def settled(self) -> None:
        """Return once everything noted so far is on disk. Raises StoreError if it cannot be written now."""
        async with self._lock:
            while self._is_behind() and await self._write():
                pass
        if self._fault is not None:
            raise self._fault

    async def close(self) -> None:
        """Write what is not yet written. Raises StoreError if that cannot be done."""
        if self._writing is not None:
            self._writing.cancel()
        await self.settled()

    # --- reading: what was noted and is not yet written counts ---

    async def runs(
        self,
        *,
        service: str | None = None,
        timer: str | None = None,
        before: int | None = None,
        limit: int = 50,
        with_output: bool = True,
    ) -> list[RunRow]:
        """Runs, newest first."""
        waiting = self._waiting()
        written = await self.rows.runs(
            service=service, timer=timer, before=before, limit=limit, with_output=with_output
        )
        known = {row.id: row for row in written} | waiting | self._runs
        return newest_of(known.values(), service, timer, before)[:limit]

    async def next_id(self, service: str, after: int) -> int | None:
        """The next run of a service after one; None if that is its newest."""
        waiting = next_id_of(self._waiting().values(), service, after)
        written = await self.rows.next_id(service, after)
        return min((one for one in (waiting, written) if one is not None), default=None)

    async def runs_between(self, from_us: Instant, to_us: Instant, limit: int) -> list[RunRow]:
        """Runs that started then, or before and have not ended; newest first, without their output."""
        waiting = self._waiting()
        written = await self.rows.runs_between(from_us, to_us, limit=limit)
        if not waiting and not self._runs:
            return written
        known = {row.id: row for row in written} | waiting | self._runs
        return started_between(known.values(), from_us, to_us)[:limit]

    async def trend(self, service: str, *, limit: int) -> list[RunRow]:
        """The newest runs of a service that have ended, newest first, without their output."""
        waiting = self._waiting()
        written = await self.rows.trend(service, limit=limit)
        known = {row.id: row for row in written} | waiting | self._runs
        return ended_of(known.values(), service)[:limit]

    async def counts(self, since_us: Instant) -> dict[str | None, int]:
        """How many runs that started since then ended how; None for those that have not."""
        waiting = self._waiting()
        written = await self.rows.counts(since_us, list(waiting))
        return dict(Counter(written) + Counter(results_of(waiting.values(), since_us)))

    def _waiting(self) -> dict[int, RunRow]:
        """What a reader may not find: rows on their way to the store, and rows that wait."""
        return self._flying | self._runs

    async def run(self, run_id: int) -> RunRow | None:
        """One run."""
        return self._waiting().get(run_id) or await self.rows.run(run_id)

    async def last_id(self) -> int:
        """The highest id that a run has on disk."""
        return await self.rows.last_id()

    async def open_runs(self) -> list[RunRow]:
        """The runs that an earlier process left without an end."""
        return await self.rows.open_runs()

    async def last_ends(self) -> dict[str, RunRow]:
        """Of each service the newest run that has ended."""
        return await self.rows.last_ends()

    async def misses(self, *, timer: str | None = None, limit: int = 50) -> list[MissRow]:
        """Misses, newest first."""
        waiting = [row for row in reversed(self._misses) if timer in {None, row.timer}]
        return [*waiting, *await self.rows.misses(timer=timer, limit=limit)][:limit]

    async def prune(self, *, oldest_us: Instant, runs: int, misses: bool = True) -> None:
        """Delete what is too old or too much (`Rows.prune`)."""
        await self.rows.prune(oldest_us=oldest_us, runs=runs, misses=misses)

    # --- writing ---

    def _is_behind(self) -> bool:
        return bool(self._runs or self._misses or self._services)

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="duly history")

    async def _write_all(self) -> None:
        # After whatever is ready to run: what starts or ends together is written together.
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
        pause_s = _FIRST_PAUSE_S
        while self._is_behind():
            async with self._lock:
                is_written = not self._is_behind() or await self._write()
            if not is_written:
                await pause(self._clock, pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _make_room(self) -> None:
        """Forget the oldest run that has ended; one in flight is needed to find its process again."""
        oldest = next((row.id for row in self._runs.values() if row.ended_us is not None), None)
        if oldest is not None:
            del self._runs[oldest]
            self._lost += 1

    async def _write(self) -> bool:
        runs, misses, services = self._runs, self._misses, self._services
        self._runs, self._misses, self._services = {}, [], []
        self._flying = runs
        try:
            for declared in services:
                await self.rows.declare(declared)
            if runs or misses:
                await self.rows.put(list(runs.values()), misses)
        except BaseException as error:
            # Those noted since are newer. A write of unknown outcome may count a miss twice, never lose one.
            self._runs, self._misses = runs | self._runs, [*misses, *self._misses]
            self._services = [*services, *self._services][-1:]
            if not isinstance(error, StoreError):
                raise
            if self._fault is None or described(self._fault) != described(error):
                self._announce("StoreFault", error=described(error))
            self._fault = error
            return False
        finally:
            self._flying = {}
        if self._fault is not None:
            lost = {"lostRuns": self._lost} if self._lost else {}
            self._announce("StoreRecovered", error=described(self._fault), **lost)
            self._fault, self._lost = None, 0
        return True


def _storable(row: RunRow) -> RunRow:
    """The row as SQLite can keep it: its texts end at a NUL, and lone surrogates are no text at all.

    One row that cannot be written would keep all others from being written.
    """
    output, message = _storable_text(row.output), _storable_text(row.message)
    if output == row.output and message == row.message:
        return row
    return msgspec.structs.replace(row, output=output, message=message)


def _storable_text(text: str) -> str:
    return text.replace("\0", "\ufffd").encode(errors="backslashreplace").decode()


class MemoryRows:
    """A history that ends with the process."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._runs: dict[int, RunRow] = {}
        self._misses: list[MissRow] = []
        self._services: dict[str, str] = {}

    async def key(self, new_key: bytes) -> bytes:
        """The key of the run tokens, which is *new_key* if there was none."""
        self._key = self._key or new_key
        return self._key

    async def put(self, runs: Sequence[RunRow], misses: Sequence[MissRow]) -> None:
        """Write runs whole, new or not, and add misses."""
        self._runs |= {row.id: row for row in runs}
        self._misses += misses

    async def declare(self, services: Mapping[str, str]) -> None:
        """Make these the services that are known."""
        self._services = dict(services)

    async def declared(self) -> dict[str, str]:
        """The services that are known."""
        return dict(self._services)

    async def last_id(self) -> int:
        """The highest id that a run has."""
        return max(self._runs, default=0)

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
        rows = newest_of(self._runs.values(), service, timer, before)[:limit]
        return rows if with_output else [bare(row) for row in rows]

    async def next_id(self, service: str, after: int) -> int | None:
        """The next run of a service after one; None if that is its newest."""
        return next_id_of(self._runs.values(), service, after)

    async def runs_between(self, from_us: Instant, to_us: Instant, limit: int) -> list[RunRow]:
        """Runs that started then, or before and have not ended; newest first, without their output."""
        return started_between(self._runs.values(), from_us, to_us)[:limit]

    async def trend(self, service: str, *, limit: int) -> list[RunRow]:
        """The newest runs of a service that have ended, newest first, without their output."""
        return ended_of(self._runs.values(), service)[:limit]

    async def counts(self, since_us: Instant, besides: Sequence[int] = ()) -> dict[str | None, int]:
        """How many runs that started since then ended how; None for those that have not."""
        counted = (row for row in self._runs.values() if row.id not in besides)
        return dict(Counter(results_of(counted, since_us)))

    async def run(self, run_id: int) -> RunRow | None:
        """One run."""
        return self._runs.get(run_id)

    async def misses(self, *, timer: str | None = None, limit: int) -> list[MissRow]:
        """Misses, newest first."""
        return [row for row in reversed(self._misses) if timer in {None, row.timer}][:limit]

    async def open_runs(self) -> list[RunRow]:
        """The runs of which no end is known, oldest first."""
        return sorted((row for row in self._runs.values() if row.ended_us is None), key=lambda row: row.id)

    async def last_ends(self) -> dict[str, RunRow]:
        """Of each service the newest run that has ended."""
        ended = (
            row for row in sorted(self._runs.values(), key=lambda row: row.id) if row.ended_us is not None
        )
        return {row.service: row for row in ended}

    async def prune(self, *, oldest_us: Instant, runs: int, misses: bool = True) -> None:
        """Forget what is too old or too much, but never the newest of each service that has ended."""
        kept = {row.id for row in (await self.last_ends()).values()}
        ages: Counter[str] = Counter()
        for row in newest_of(self._runs.values(), None, None, None):
            ages[row.service] += 1
            is_old = row.ended_us is not None and max(row.started_us, row.ended_us) < oldest_us
            is_over = row.ended_us is not None and (is_old or ages[row.service] > runs)
            if is_over and row.id not in kept:
                del self._runs[row.id]
        ages.clear()
        for miss in reversed(list(self._misses) if misses else []):
            ages[miss.timer] += 1
            if miss.at_us < oldest_us or ages[miss.timer] > runs:
                self._misses.remove(miss)
