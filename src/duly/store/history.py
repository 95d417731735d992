"""The history: every run of a service or of a task, and every slot that a timer missed, with the reason.

It is written beside the work, never in its way. Rows are recorded at once and written soon, all that came
meanwhile in one transaction; a store that cannot write keeps nobody from running, it only makes the rows wait
until it can. A run is a whole row each time it is recorded, so writing it twice is safe. What must be durable
before something is visible is not decided here: a caller that needs that waits for `settled`.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from itertools import islice
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import apsw
import msgspec

from duly.background import cancel
from duly.clock import Clock, pause
from duly.errors import StoreDamagedError, StoreError
from duly.events import Announcer, described
from duly.instant import EARLIEST_US, LATEST_US, Instant, back_off
from duly.store.schema import json_values, sql

T = TypeVar("T")

_FIRST_PAUSE_S = 1
_LONGEST_PAUSE_S = 16
_MOST_MISSES_WAITING = 10_000
_MOST_RUNS_WAITING = 2_000
"""Ended runs, each with its output, that wait for a store that cannot write."""
_KEY_BYTES = 32
_LAST = 2**62
"""More than the number of any run."""
_AT_ONCE = 1_000
"""Rows that are written or deleted in one transaction; other writes come in between."""


class Result(StrEnum):
    """How a run ended: of a service (spec/timers.md 5.1), or of a task."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    SPAWN_ERROR = "spawn-error"
    INTERRUPTED = "interrupted"


_Result = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(Result)})$")]
"""A `Result`. Anything else in a row is damage."""


_Time = Annotated[int, msgspec.Meta(ge=EARLIEST_US, le=LATEST_US)]
"""An instant that a clock can show. Anything else in a row is damage."""


class RunRow(msgspec.Struct, array_like=True, frozen=True, gc=False, kw_only=True):
    """One run of a service, from before its process is made; or of a task, once it has ended.

    The one list of columns: the table has the same, in this order.
    """

    id: int
    service: str
    """The service, or the task."""
    timer: str | None = None
    reason: str
    scheduled_us: _Time | None = None
    """The instant that it answers, if a timer fired it for one."""
    started_us: _Time
    ended_us: _Time | None = None
    lasted_us: int | None = None
    """As measured; None while it runs, and if the daemon that measured it died."""
    result: _Result | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    """What there is to say beyond that, such as why it could not be started."""
    pid: int | None = None
    pid_started: int | None = None
    boot: str | None = None
    output: str = ""
    """The tail of its output; of a task the traceback."""
    output_lost: int = 0
    """How many bytes came before that tail."""
    attempt: int | None = None
    run_id: str | None = None
    """Of a task: the id that its body saw."""
    node: str | None = None
    """Of a task: the host and the process that ran it."""
    output_times: str | None = None
    """When the lines of that tail came, as `times_text` writes it."""


_COLUMNS = RunRow.__struct_fields__
OF_TASKS = ("attempt", "run_id", "node")
"""The columns that came with the history of tasks."""
OF_TIMES = ("output_times",)
"""The column that came with the times of lines."""
_times = msgspec.json.Decoder(list[tuple[int, int]])


def times_text(times: Sequence[tuple[int, int]]) -> str | None:
    """When lines came: pairs of a line and the seconds since the start of the run. None for no output."""
    return msgspec.json.encode(times).decode() if times else None


def line_times(row: RunRow) -> list[tuple[int, int]]:
    """The times of the lines of *row*; none if it was written by an older duly, or if they are damaged."""
    try:
        return _times.decode(row.output_times or "[]")
    except msgspec.DecodeError:
        return []


@cache
def run_sql(name: str, *, lacking: tuple[str, ...] = ()) -> str:
    """A statement on the table of runs, by name, for a table that may be *lacking* columns."""

    def columns(output: str, times: str = "NULL") -> str:
        shown = {"output": output, "output_times": times} | dict.fromkeys(lacking, "NULL")
        return ", ".join(shown.get(column, column) for column in _COLUMNS)

    return sql(name).format(
        columns=columns("output", "output_times"),
        bare_columns=columns("''"),
        listed_columns=columns(
            "CASE WHEN :output THEN output ELSE '' END", "CASE WHEN :output THEN output_times END"
        ),
        values=json_values(len(_COLUMNS)),
    )


class WantedTaskRuns(NamedTuple):
    """Which runs of tasks that have ended, newest first."""

    task: str | None = None
    result: str | None = None
    since_us: Instant = EARLIEST_US
    until_us: Instant = LATEST_US
    """Only runs that started before then."""
    limit: int = 100
    with_output: bool = True

    def has(self, row: RunRow) -> bool:
        """Whether *row* is among them, but for the limit."""
        return (
            row.ended_us is not None
            and self.task in {None, row.service}
            and self.result in {None, row.result}
            and self.since_us <= row.started_us < self.until_us
        )


class RunSearch(NamedTuple):
    """Which runs a list shows: those for which all holds that is given."""

    service: str | None = None
    services: Sequence[str] | None = None
    """Of one of these."""
    timer: str | None = None
    name: str = ""
    """A part of the name of the service, in any case."""
    results: Sequence[str] | None = None
    is_running: bool = False
    """Only those that have not ended."""
    reason: str | None = None
    text: str = ""
    """In the output, or in what is said of its end; in any case."""
    since_us: Instant = EARLIEST_US
    until_us: Instant = LATEST_US
    """Only runs that started before then."""
    sort: str = "started"
    is_down: bool = True
    skip: int = 0
    limit: int = 100

    def has(self, row: RunRow) -> bool:
        """Whether *row* is among them; its output has to be there if there is a text."""
        text = self.text.casefold()
        return (
            self.service in {None, row.service}
            and (self.services is None or row.service in self.services)
            and self.timer in {None, row.timer}
            and self.name.casefold() in row.service.casefold()
            and (self.results is None or row.result in self.results)
            and not (self.is_running and row.ended_us is not None)
            and self.reason in {None, row.reason}
            and (text in row.output.casefold() or text in row.message.casefold())
            and self.since_us <= row.started_us < self.until_us
        )

    def order(self, row: RunRow) -> Any:
        """What to sort *row* by; the newest of those that are equal come first."""
        return _ORDERS[self.sort][1](row), row.started_us, row.id


_ORDERS: Mapping[str, tuple[str, Callable[[RunRow], Any]]] = {
    "started": ("started_us", lambda row: row.started_us),
    "name": ("service", lambda row: row.service),
    "result": ("coalesce(result, '')", lambda row: row.result or ""),
    "took": (
        "coalesce(lasted_us, max(ended_us - started_us, 0), -1)",
        lambda row: -1 if (lasted_us := length_us(row)) is None else lasted_us,
    ),
    "late": (
        "coalesce(started_us - scheduled_us, -1)",
        lambda row: -1 if row.scheduled_us is None else row.started_us - row.scheduled_us,
    ),
}
SORTS = tuple(_ORDERS)
"""What a list of runs can be sorted by."""
FAILURES = (Result.FAILURE, Result.EXIT, Result.SIGNAL, Result.TIMEOUT, Result.SPAWN_ERROR)
"""The results that blame the job. An interruption or a cancellation says nothing of the job."""


class Span(NamedTuple):
    """A span of time, of which each part is *width_us* long."""

    from_us: Instant
    to_us: Instant
    width_us: int


class RunBucket(NamedTuple):
    """The runs of a service that began in one part of a span, and ended in one way."""

    service: str
    part: int
    """-1: before the span, and it reaches into it."""
    result: str | None
    """None if they have not ended, or nobody knows how."""
    number: int
    run: int
    """The newest of them."""
    first_us: Instant
    """When the first of them started."""
    last_us: Instant | None
    """When the last of them ended; None if it runs."""
    machine: str | None = None
    """Where the newest of them ran, if not here."""


class MissBucket(NamedTuple):
    """The slots of a timer that were missed in one part of a span."""

    timer: str
    part: int
    number: int
    first_us: Instant
    reason: str
    """Of one of them."""


class MissGroup(NamedTuple):
    """The slots that a timer missed for one reason."""

    timer: str
    reason: str
    number: int
    first_us: Instant
    last_us: Instant


class RemoteRun(RunRow, frozen=True, gc=False, kw_only=True):
    """A run of a shared timer, as the database has it. Its *id* is its number on its machine."""

    machine: str
    shared_id: int
    """Its number in the database."""
    is_here: bool = False
    """Whether this machine ran it: then the history of this machine has it too."""


class WantedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs of shared timers, of all machines: of these timers or of all, at most *limit*."""

    timers: Sequence[str] | None = None
    before: int | None = None
    """Only runs older than this one, by its number in the database."""
    before_us: Instant | None = None
    """Only runs that started before then."""
    since_us: Instant | None = None
    """Only runs that started then or later."""
    limit: int = 1
    with_output: bool = False
    run: tuple[str, int] | None = None
    """Only this one: its machine, and its number there."""


def length_us(run: RunRow, now_us: Instant | None = None) -> int | None:
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


class HistoryReader:
    """What can be asked of a history, through one connection. Blocks.

    The only place that puts these questions in SQL: `History` asks them in the threads of an open store, and
    `reading.Reader` asks them of a file.
    """

    def __init__(self, connection: apsw.Connection, lacking: tuple[str, ...] = ()) -> None:
        self._connection = connection
        self._lacking = lacking
        """Columns of runs that an older format lacks."""

    def runs(
        self,
        *,
        service: str | None = None,
        timer: str | None = None,
        before: int | None = None,
        after: int = 0,
        since_us: Instant = EARLIEST_US,
        limit: int,
        with_output: bool = True,
    ) -> list[RunRow]:
        """Runs, newest first; none that had ended before *since_us*."""
        return self._runs(
            *list_query(
                service, timer, before, limit, after=after, since_us=since_us, with_output=with_output
            )
        )

    def task_runs(self, wanted: WantedTaskRuns) -> list[RunRow]:
        return self._runs(*task_runs_query(wanted))

    def next_id(self, service: str, after: int) -> int | None:
        """The next run of a service after one; None if that is its newest."""
        rows = self._rows(sql("run_next"), {"service": service, "after": after})
        return next((int(run_id) for (run_id,) in rows), None)

    def counts(
        self, since_us: Instant, besides: Sequence[int] = (), timers: Sequence[str] = ()
    ) -> dict[str | None, int]:
        """How many runs that started since then ended how; None for those that have not.

        Without the runs *besides*, and those of *timers* that have ended.
        """
        values = {"since": since_us, "besides": _json(besides), "but": _json(timers)}
        return dict(self._rows(sql("run_counts" if not timers else "run_counts_but"), values))

    def run(self, run_id: int) -> RunRow | None:
        return next(iter(self._runs("run_one", (run_id,))), None)

    def misses(self, *, timer: str | None = None, limit: int) -> list[MissRow]:
        """Misses, newest first."""
        name = "miss_list" if timer is None else "miss_list_of_timer"
        return msgspec.convert(self._rows(sql(name), {"timer": timer, "limit": limit}), list[MissRow])

    def search(self, wanted: RunSearch) -> list[RunRow]:
        """Runs without their output."""
        column, way = _ORDERS[wanted.sort][0], "DESC" if wanted.is_down else "ASC"
        given = wanted._asdict() | {
            "results": None if wanted.results is None else _json(wanted.results),
            "services": None if wanted.services is None else _json(wanted.services),
            "name": wanted.name.lower(),
            "text": wanted.text.lower(),
        }
        query = run_sql("run_search", lacking=self._lacking)
        holds = [condition for name, condition in _CONDITIONS.items() if given[name]]
        query = query.format(
            conditions=" AND ".join((*holds, "started_us >= :since_us AND started_us < :until_us")),
            order=f"{column} {way}, started_us {way}, id {way}",
        )
        return msgspec.convert(self._rows(query, given), list[RunRow])

    def buckets(self, services: Sequence[str], span: Span, timers: Sequence[str] = ()) -> list[RunBucket]:
        """The runs of these services in the parts of *span*; of *timers* only those that have not ended."""
        values = {"services": _json(services), "from": span.from_us, "to": span.to_us, "width": span.width_us}
        values["but"] = _json(timers)
        return [RunBucket(*row) for row in self._rows(sql("run_buckets"), values)]

    def called(self, numbers: Sequence[int]) -> list[RunRow]:
        return self._runs("run_called", {"numbers": _json(numbers)})

    def miss_buckets(self, timers: Sequence[str], span: Span) -> list[MissBucket]:
        values = {"timers": _json(timers), "from": span.from_us, "to": span.to_us, "width": span.width_us}
        return [MissBucket(*row) for row in self._rows(sql("miss_buckets"), values)]

    def miss_groups(self, since_us: Instant, limit: int) -> list[MissGroup]:
        """Those that missed last come first."""
        rows = self._rows(sql("miss_groups"), {"since": since_us, "limit": limit})
        return [MissGroup(*row) for row in rows]

    def open_runs(self) -> list[RunRow]:
        """The runs whose end is not known, oldest first."""
        return self._runs("run_open")

    def last_ends(self) -> dict[str, RunRow]:
        """Of each service the newest run that has ended."""
        return {row.service: row for row in self._runs("run_last_ends")}

    def lengths(self, most: int) -> dict[str, tuple[int, ...]]:
        """Of each service how long its newest runs took that ended well, of so many, oldest first."""
        rows = self._rows(sql("run_lengths"), {"most": most})
        return {name: tuple(reversed(msgspec.json.decode(lengths))) for name, lengths in rows}

    def newest_slots(self, most: int) -> list[tuple[str, Instant, str | None]]:
        """Of each timer that missed any the newest slots, oldest first, each with why it was missed."""
        return self._rows(sql("slot_newest"), {"most": most})

    def last_id(self) -> int:
        """The highest id that a run has."""
        return next((int(run_id) for (run_id,) in self._rows("SELECT coalesce(max(id), 0) FROM run")), 0)

    def services(self) -> dict[str, str]:
        """The services that were declared last, each with its definition, as JSON."""
        return dict(self._rows("SELECT name, definition FROM service ORDER BY rowid"))

    def _runs(self, name: str, values: Any = None) -> list[RunRow]:
        return msgspec.convert(self._rows(run_sql(name, lacking=self._lacking), values), list[RunRow])

    def _rows(self, query: str, values: Any = None) -> list[Any]:
        return self._connection.execute(query, values).fetchall()


_CONDITIONS: Mapping[str, str] = {
    "service": "service = :service",
    "services": "service IN (SELECT value FROM json_each(:services))",
    "timer": "timer = :timer",
    "name": "instr(lower(service), :name)",
    "results": "result IN (SELECT value FROM json_each(:results))",
    "is_running": "ended_us IS NULL",
    "reason": "reason = :reason",
    "text": "(instr(lower(message), :text) OR instr(lower(output), :text))",
}
"""By the fields of a `RunSearch` that may be empty: what then need not hold."""


def list_query(
    service: str | None,
    timer: str | None,
    before: int | None,
    limit: int,
    *,
    after: int = 0,
    since_us: Instant = EARLIEST_US,
    with_output: bool = True,
) -> tuple[str, dict[str, Any]]:
    """The statement that lists runs, by name, and its values. Each kind has its own index."""
    values: dict[str, Any] = {
        "before": _LAST if before is None else before,
        "after": after,
        "since": since_us,
        "limit": limit,
        "output": with_output,
    }
    if service is not None:
        return "run_list_of_service", {**values, "service": service, "timer": timer}
    if timer is not None:
        return "run_list_of_timer", {**values, "timer": timer}
    return "run_list", values


def task_runs_query(wanted: WantedTaskRuns) -> tuple[str, dict[str, Any]]:
    """The statement that finds runs of tasks, by name, and its values."""
    name = "run_find" if wanted.task is None else "run_find_of_service"
    return name, {
        "service": wanted.task,
        "result": wanted.result,
        "since": wanted.since_us,
        "until": wanted.until_us,
        "limit": wanted.limit,
        "output": wanted.with_output,
    }


class HistoryDatabase(Protocol):
    """The file that a history is in: a `SQLiteStore` that is open, or a `MemoryDatabase`."""

    restorers: list[Callable[[apsw.Connection], object]]

    @property
    def name(self) -> str: ...

    async def look(self, query: Callable[[apsw.Connection], T], /) -> T: ...

    async def write(self, change: Callable[[apsw.Connection], object], /) -> None: ...


class History:
    """What ran, in order of appearance, in the tables of *database*.

    What is recorded within *gather_s* is written together.
    """

    def __init__(
        self, database: HistoryDatabase, clock: Clock, announcer: Announcer, *, gather_s: float = 0
    ) -> None:
        self._database = database
        database.restorers.append(self._restore)
        self._clock = clock
        self._gather_s = gather_s
        self._announce = announcer.announce
        self.key = secrets.token_bytes(_KEY_BYTES)
        """The key of the run tokens. Once the history is open, the same in every process on this store."""
        self._is_key_stored = False
        self._next_id = 1
        self._runs: dict[int, RunRow] = {}
        self._flying: dict[int, RunRow] = {}
        self._misses: list[MissRow] = []
        self._services: Mapping[str, str] | None = None
        """The services to declare, if that is still to be written."""
        self._open: dict[int, RunRow] = {}
        """Written runs that have not ended: without them a later daemon would not know their processes."""
        self._declared: Mapping[str, str] = {}
        self._fault: StoreError | None = None
        self._lost = 0
        """Runs that were forgotten since the fault began."""
        self._writing: asyncio.Task[None] | None = None
        # Held during each write: two at once could put an older row over a newer one.
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Read where the numbers of runs stand, and the key of their tokens. Raises StoreError."""
        await self._database.write(partial(_execute, sql("run_key_put"), (self.key,)))
        rows = await self._rows("SELECT key FROM run_key")
        if len(rows) != 1 or not isinstance(rows[0][0], bytes):
            raise StoreDamagedError(store=self._database.name, table="run_key", what="it holds no single key")
        self.key, self._is_key_stored = rows[0][0], True
        await self.read_last_id()

    async def read_last_id(self) -> None:
        """Read where the numbers of runs stand. Raises StoreError."""
        self._next_id = await self.ask(HistoryReader.last_id) + 1

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def pass_over(self, run_id: int) -> None:
        """Give no number up to *run_id*: a run had it whose row was never written."""
        self._next_id = max(self._next_id, run_id + 1)

    def record_run(self, row: RunRow) -> None:
        """Have *row* written soon; a later one of the same run takes its place."""
        self._runs[row.id] = _storable(row)
        if self._fault is not None and len(self._runs) > _MOST_RUNS_WAITING:
            self._make_room()
        self._write_soon()

    def record_miss(self, row: MissRow) -> None:
        self._misses.append(row)
        # A store that cannot write for weeks must not fill the memory with what did not happen.
        del self._misses[:-_MOST_MISSES_WAITING]
        self._write_soon()

    def record_services(self, services: Mapping[str, str]) -> None:
        """Have the declared services written soon, each with its definition."""
        self._services = services
        self._write_soon()

    async def settled(self) -> None:
        """Return once everything recorded so far is on disk. Raises StoreError if that cannot be done."""
        async with self._lock:
            while self._is_behind() and await self._write():
                pass
        if self._fault is not None:
            raise self._fault

    async def close(self) -> None:
        """Write what is not yet written. Raises StoreError if that cannot be done."""
        # A pause between two attempts must not delay the end. A write that this cuts is made again below.
        if self._writing is not None:
            cancel(self._writing)
        try:
            await self.settled()
        finally:
            self.drop()

    def drop(self) -> None:
        """Let go as a crash would: write nothing more."""
        if self._writing is not None:
            cancel(self._writing)
        if self._restore in self._database.restorers:
            self._database.restorers.remove(self._restore)

    # --- reading: what was recorded and is not yet written counts ---

    async def ask(self, query: Callable[[HistoryReader], T]) -> T:
        """What *query* finds on disk. Raises StoreError."""
        # Rows are made in the thread that looks: thousands would hold up the loop.
        return await self._database.look(lambda connection: query(HistoryReader(connection)))

    async def runs(
        self,
        *,
        service: str | None = None,
        timer: str | None = None,
        before: int | None = None,
        after: int = 0,
        since_us: Instant = EARLIEST_US,
        limit: int = 50,
        with_output: bool = True,
    ) -> list[RunRow]:
        def is_wanted(row: RunRow) -> bool:
            is_of_both = service in {None, row.service} and timer in {None, row.timer}
            is_late = row.ended_us is None or row.ended_us >= since_us
            return is_of_both and is_late and after < row.id < (_LAST if before is None else before)

        waiting = self._waiting()
        written = await self.ask(
            lambda reader: reader.runs(
                service=service,
                timer=timer,
                before=before,
                after=after,
                since_us=since_us,
                limit=limit,
                with_output=with_output,
            )
        )
        return self._with_waiting(written, waiting, is_wanted)[:limit]

    async def task_runs(self, wanted: WantedTaskRuns) -> list[RunRow]:
        waiting = self._waiting()
        written = await self.ask(lambda reader: reader.task_runs(wanted))
        rows = self._with_waiting(written, waiting, wanted.has, order=lambda row: (-row.started_us, -row.id))
        return rows[: wanted.limit]

    async def next_id(self, service: str, after: int) -> int | None:
        waiting = [row.id for row in self._waiting().values() if row.service == service and row.id > after]
        written = await self.ask(lambda reader: reader.next_id(service, after))
        return min(waiting if written is None else [*waiting, written], default=None)

    async def counts(self, since_us: Instant, timers: Sequence[str] = ()) -> dict[str | None, int]:
        """As `HistoryReader.counts`: of *timers* only the runs that have not ended."""
        waiting = self._waiting()
        written = await self.ask(lambda reader: reader.counts(since_us, list(waiting), timers))
        counted = (
            row.result
            for row in waiting.values()
            if row.started_us >= since_us and (row.ended_us is None or row.timer not in timers)
        )
        return dict(Counter(written) + Counter(counted))

    async def search(self, wanted: RunSearch) -> list[RunRow]:
        waiting = self._waiting()
        reach = wanted._replace(skip=0, limit=wanted.skip + wanted.limit) if waiting else wanted
        written = await self.ask(lambda reader: reader.search(reach))
        if not waiting:
            return written
        # Of those that were written the store has said so already, and they came without their output.
        known = {id(row) for row in written}
        rows = self._with_waiting(
            written, waiting, lambda row: id(row) in known or wanted.has(row), order=wanted.order
        )
        rows = rows[::-1] if wanted.is_down else rows
        return [_bare(row) for row in rows[wanted.skip : wanted.skip + wanted.limit]]

    async def run(self, run_id: int) -> RunRow | None:
        return self._waiting().get(run_id) or await self.ask(lambda reader: reader.run(run_id))

    async def buckets(
        self, services: Sequence[str], span: Span, timers: Sequence[str] = ()
    ) -> list[RunBucket]:
        """As `HistoryReader.buckets`. What is on disk: a picture may be a moment behind."""
        return await self.ask(lambda reader: reader.buckets(services, span, timers))

    async def called(self, numbers: Sequence[int]) -> list[RunRow]:
        """The runs of these numbers, without their output."""
        return await self.ask(lambda reader: reader.called(numbers))

    async def miss_groups(self, since_us: Instant, limit: int = 500) -> list[MissGroup]:
        """What is on disk, those that missed last first."""
        return await self.ask(lambda reader: reader.miss_groups(since_us, limit))

    async def misses(self, *, timer: str | None = None, limit: int = 50) -> list[MissRow]:
        waiting = [row for row in reversed(self._misses) if timer in {None, row.timer}]
        written = await self.ask(lambda reader: reader.misses(timer=timer, limit=limit))
        return [*waiting, *written][:limit]

    def _waiting(self) -> dict[int, RunRow]:
        """What a reader may not find: rows on their way to the store, and rows that wait."""
        return self._flying | self._runs

    def _with_waiting(
        self,
        written: list[RunRow],
        waiting: Mapping[int, RunRow],
        is_wanted: Callable[[RunRow], bool],
        order: Callable[[RunRow], Any] = lambda row: -row.id,
    ) -> list[RunRow]:
        """The *written* rows and those that wait, each run once, as its latest row says.

        *waiting* is what waited when the query began: it may have been written too late for the query.
        """
        newer = {**waiting, **self._runs}
        if not newer:
            return written
        known = {row.id: row for row in written} | newer
        return sorted(filter(is_wanted, known.values()), key=order)

    # --- writing ---

    async def put(self, runs: Sequence[RunRow], misses: Sequence[MissRow]) -> None:
        """Write runs whole, new or not, and add misses, in one transaction. Raises StoreError."""

        def change(connection: apsw.Connection) -> None:
            if runs:
                connection.execute(run_sql("run_put"), (_json(runs),))
            if misses:
                connection.execute(sql("miss_put"), (_json(misses),))

        await self._database.write(change)
        # After the write: `_restore` must not count on rows that were never there.
        for run in runs:
            if run.ended_us is None:
                self._open[run.id] = run
            else:
                self._open.pop(run.id, None)

    async def declare(self, services: Mapping[str, str]) -> None:
        """Make these the services that the store knows, each with its definition. Raises StoreError."""
        self._declared = services
        await self._database.write(partial(_put_services, services))

    async def outages(self) -> list[tuple[str, str, str]]:
        """The outages that notifications report: whose, of which job, and the rest as JSON."""
        return await self._rows("SELECT notify, job, state FROM outage")

    async def put_outages(self, changed: Sequence[tuple[str, str, str | None]]) -> None:
        """Write outages, or delete those that have None. Raises StoreError."""

        def change(connection: apsw.Connection) -> None:
            connection.execute(sql("outage_put"), (_json(changed),))
            connection.execute(sql("outage_remove"), (_json(changed),))

        await self._database.write(change)

    async def prune(
        self, *, oldest_us: Instant, runs: int, misses: bool = True, output_bytes: int | None = None
    ) -> None:
        """Delete what ended before *oldest_us*, and all but the newest *runs* of each service.

        The newest of each service that has ended is kept in any case. *misses* has the misses deleted as
        well: those from before *oldest_us*, and all but the newest *runs* of each timer. Of the output of
        each service about *output_bytes* are kept, the newest.
        """
        limits = {"oldest": oldest_us, "runs": runs}
        await self._prune("run_prune", "run_remove", limits)
        if misses:
            await self._prune("miss_prune", "miss_remove", limits)
        if output_bytes is not None:
            await self._prune("run_prune_output", "run_remove_output", {"bytes": output_bytes})

    async def _prune(self, find: str, remove: str, limits: dict[str, int]) -> None:
        # Found beside the writer: that may take long, and starts wait for the writer.
        found = await self._rows(sql(find), limits)
        for first in range(0, len(found), _AT_ONCE):
            gone = _json([row_id for (row_id,) in found[first : first + _AT_ONCE]])
            await self._database.write(partial(_execute, sql(remove), (gone,)))

    def _restore(self, connection: apsw.Connection) -> None:
        """Write what must not be lost with a file, in the writer's thread."""
        _put_services(self._declared, connection)
        connection.execute(run_sql("run_put"), (_json(list(self._open.values())),))
        if self._is_key_stored:  # the processes of our runs have tokens of this key
            connection.execute("DELETE FROM run_key")
            connection.execute(sql("run_key_put"), (self.key,))

    async def _rows(self, query: str, values: Any = None) -> list[Any]:
        return await self._database.look(lambda connection: connection.execute(query, values).fetchall())

    def _is_behind(self) -> bool:
        return bool(self._runs or self._misses or self._services is not None)

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="duly history")

    async def _write_all(self) -> None:
        if self._gather_s:
            await pause(self._clock, self._gather_s)
        # After whatever is ready to run: what starts or ends together is written together.
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
        pause_s = _FIRST_PAUSE_S
        while self._is_behind():
            async with self._lock:
                # `settled` may have written it while this waited for the lock.
                is_written = not self._is_behind() or await self._write()
            if not is_written:
                await pause(self._clock, pause_s)
                pause_s = back_off(pause_s, _LONGEST_PAUSE_S)

    def _make_room(self) -> None:
        """Forget the oldest run that has ended; one in flight is needed to find its process again."""
        oldest = next((row.id for row in self._runs.values() if row.ended_us is not None), None)
        if oldest is not None:
            del self._runs[oldest]
            self._lost += 1

    async def _write(self) -> bool:
        runs = dict(islice(self._runs.items(), _AT_ONCE))
        misses, services = self._misses, self._services
        # Taken before the write: what is recorded meanwhile goes into the next one.
        self._runs, self._misses = dict(islice(self._runs.items(), _AT_ONCE, None)), []
        self._flying = runs
        try:
            if services is not None:
                await self.declare(services)
            if runs or misses:
                await self.put(list(runs.values()), misses)
        except BaseException as error:
            # Those noted since are newer. A write of unknown outcome may count a miss twice, never lose one.
            self._runs, self._misses = runs | self._runs, [*misses, *self._misses]
            if not isinstance(error, StoreError):
                raise
            if self._fault is None or described(self._fault) != described(error):
                self._announce("StoreFault", error=described(error))
            self._fault = error
            return False
        finally:
            self._flying = {}
        if self._services is services:  # none were declared meanwhile
            self._services = None
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


def _bare(row: RunRow) -> RunRow:
    """The row without its output."""
    return msgspec.structs.replace(row, output="") if row.output else row


def _put_services(services: Mapping[str, str], connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM service")
    connection.execute(sql("service_put"), (_json(list(services.items())),))


def _execute(statement: str, values: Any, connection: apsw.Connection) -> None:
    connection.execute(statement, values)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
