"""Tasks of the library in a cluster: their rows, and lists of them.

A task is one row. Its definition is hashed together with its name, so two nodes can compare whole lists by a
sum of hashes. Callbacks are no part of it: each node has its own.
"""

import asyncio
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import lru_cache, partial
from itertools import count
from typing import Any, NamedTuple

import msgspec

from duly.background import cancel, in_slices
from duly.clock import Watchable
from duly.cluster.backend import RowBackend
from duly.cluster.lists import Lists
from duly.cluster.node import Node
from duly.cluster.store import ClusterStore, stored_rows
from duly.cluster.table import (
    ASLEEP_US,
    CancelRun,
    Claimed,
    Digest,
    Hasher,
    ListOutcome,
    Nodes,
    PastRun,
    Put,
    PutOne,
    ReadNodes,
    ReadRuns,
    ReadTasks,
    RemoveOne,
    RunRecord,
    SetPaused,
    TaskView,
    asked_us,
    hash_of,
    is_asked,
    row_name,
    run_request,
)
from duly.core.causes import Start, scheduled_us
from duly.core.entries import EntryKinds, NewEntry, callback_of, entry_text, of_kind
from duly.core.options import UNKNOWN_KIND, Options
from duly.core.reconciliation import Override, Reconciliation, entry_put
from duly.core.record import record_with_state, state_of, task_from
from duly.core.registration import Callback, Registration
from duly.core.task import (
    Task,
    cut_off,
    is_ahead_of_clock,
    moved_back,
    origin_of,
    registered,
    requested,
    resumed,
    wakes_us,
    with_options,
    with_pause,
)
from duly.core.timetable import Timetable, Timetables, minute_begun, schedule_of
from duly.core.timing import ScheduleText
from duly.cron import CronExpression
from duly.engine.limits import NamedLimits, RunLimits
from duly.engine.rules import Begin
from duly.engine.runs import ActiveRun
from duly.engine.task_backend import LocalTasks, RunAnswer, TaskBackend
from duly.engine.task_runs import HistoryLimits, message_of, result_of, this_node, traceback_of
from duly.engine.tasks import TaskRules, emit_entry, emit_start, run_id_from, run_id_of
from duly.errors import EntryNameError, SchedulerError, TaskInvalidStructureError
from duly.events import Announcer, described
from duly.instant import NEVER_US, Instant, zone_key
from duly.marks import mark
from duly.places import StoreKind, kind_of
from duly.store import Store, store_for
from duly.store.history import RunRow, WantedTaskRuns

_encode = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(list[Any]).decode


def definition_of(cron: str, retry_delay_us: int, zone: str) -> str:
    """What a row has as its definition; *zone* is a `zone_key`."""
    return _encode([cron, retry_delay_us, zone]).decode()


class _Kind(NamedTuple):
    """What many tasks have in common."""

    expression: CronExpression | ScheduleText
    retry_delay_us: int
    options: Options
    definition: str
    """What their rows have as their definition."""
    hasher: Hasher


class TaskList(Mapping[str, Registration]):
    """A list of registrations in a zone, by the names of their rows.

    Kept in two dictionaries: an object for each of a million tasks would take more memory than all the rest.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone_key = zone_key(zone)
        self._shared: dict[tuple[str, int, Options], _Kind] = {}
        self._kinds: dict[str, _Kind] = {}
        self._long: dict[str, str] = {}
        """The names of tasks whose rows have shorter ones."""
        self._callbacks: dict[str, Callback] = {}
        self.hashes = 0

    async def take(self, registrations: Sequence[Registration]) -> None:
        """Make *registrations* the list."""
        async for some in in_slices(registrations):
            for name, expression, _, delay_us, options in some:
                if (row := row_name(name)) != name:
                    self._long[row] = name
                kind = self._shared.get((expression.text, delay_us, options))
                kind = kind or self._kind(expression, delay_us, options)
                self._kinds[row] = kind
                self.hashes += kind.hasher.hash_of(row)
        # After the loop: two dictionaries that grow in turns leave holes in memory.
        async for pairs in in_slices(zip(self._kinds, registrations, strict=True)):
            self._callbacks.update((row, registration.callback) for row, registration in pairs)

    def __getitem__(self, name: str) -> Registration:
        expression, delay_us, options, *_ = self._kinds[name]
        return Registration(self._long.get(name, name), expression, self._callbacks[name], delay_us, options)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def definition(self, name: str) -> str:
        return self._kinds[name].definition

    def callback(self, name: str) -> Callback:
        return self._callbacks[name]

    def hash_of(self, name: str) -> int | None:
        kind = self._kinds.get(name)
        return None if kind is None else kind.hasher.hash_of(name)

    def expressions(self) -> Iterator[CronExpression | ScheduleText]:
        return (kind.expression for kind in self._shared.values())

    def _kind(self, expression: CronExpression | ScheduleText, delay_us: int, options: Options) -> _Kind:
        definition = definition_of(expression.text, delay_us, self._zone_key)
        kind = _Kind(expression, delay_us, options, definition, Hasher(definition))
        self._shared[expression.text, delay_us, options] = kind
        return kind


_timetable_of = lru_cache(maxsize=4_096)(schedule_of)


def _decoded(text: str, of: int | None = None) -> list[Any]:
    """A list as a row has it, *of* so many values. Raises TaskInvalidStructureError."""
    try:
        values = _decode_state(text)
    except msgspec.DecodeError as error:
        raise TaskInvalidStructureError(value=text, reason="it is not a list") from error
    if of is not None and len(values) != of:
        raise TaskInvalidStructureError(value=text, reason=f"it has {len(values)} values, not {of}")
    return values


class TaskCodec:
    """Tasks as rows. Those of the list have their definition in memory, entries bring it along."""

    def __init__(self) -> None:
        self.listed = TaskList(UTC)
        self.kinds: EntryKinds = {}
        self.schedules = Timetables(UTC)
        self.scheduler_id = ""

    def item(self, row: Claimed, now_us: Instant) -> Task | None:
        """The task of a claimed row. Raises TaskTryDeserializeError."""
        if row.definition is not None:
            task = self._entry(row.id, row.name, row.definition, row.state)
            if task.options is UNKNOWN_KIND:
                return None
        elif self.listed.hash_of(row.name) == row.hash:
            task = self._listed(row.id, row.name, row.state)
        else:
            return None
        asked = None if row.request is None else asked_us(row.request, now_us)
        if row.cut_us is not None:
            mark("found interrupted")
            # A request that stood then is what the run began for: it has its id from that.
            if asked is not None and asked <= row.cut_us:
                task = requested(task, asked)
            task = cut_off(resumed(task, row.cut_us))
        if is_ahead_of_clock(task, now_us):
            mark("ahead of the clock")
            task = moved_back(task, now_us)
        return task if asked is None else requested(task, asked)

    def _listed(self, row_id: int, name: str, state: str) -> Task:
        item = self.listed[name]
        definition = row_id, item.name, item.expression.text, item.retry_delay_us
        record = record_with_state(definition, _decoded(state), self.scheduler_id)
        return with_options(task_from(record, self.schedules.of), item.options)

    def _entry(self, row_id: int, name: str, text: str, state: str) -> Task:
        schedule, delay_us, _, entry = _decoded(text, of=4)
        definition = row_id, name, schedule, delay_us
        record = record_with_state(definition, _decoded(state), self.scheduler_id, entry)
        return of_kind(task_from(record, self.timetable_of), self.kinds)

    def timetable_of(self, text: str) -> Timetable:
        """The timetable of an entry. Entries come and go, so not all are kept."""
        return _timetable_of(text, self.schedules.zone)

    def viewed(self, row: TaskView) -> Task | None:
        """The task of a row that anybody may run; None if it is not ours or cannot be read."""
        try:
            if row.kind is not None:
                task = self._entry(0, row.name, row.definition, row.state)
            elif row.name in self.listed and row.definition == self.listed.definition(row.name):
                task = self._listed(0, row.name, row.state)
            else:
                return None
        except SchedulerError:
            return None
        task = with_pause(task, paused=row.paused)
        if row.cut_us is not None:
            task = cut_off(resumed(task, row.cut_us))
        return task if row.started_us is None else resumed(task, row.started_us)

    def state(self, task: Task) -> str:
        assert task.running_since_us is None
        return _encode(state_of(task)).decode()

    def callback(self, task: Task) -> Callback:
        if task.entry is not None:
            return callback_of(task.entry, self.kinds)
        return self.listed.callback(row_name(task.name))

    def record(self, start: Begin[Task], run: ActiveRun[Task], error: BaseException | None) -> RunRecord:
        assert isinstance(start, Start)
        return RunRecord(
            run_id=str(origin_of(start.before, run.started_us)),
            cause=start.cause.value,
            called_us=run.called_us,
            ended_us=run.ended_us,
            result=result_of(run, error).value,
            error=message_of(error) or None,
            output=traceback_of(error) or None,
            scheduled_us=scheduled_us(start),
            attempt=start.after.retry_count + 1,
        )


def run_row(past: PastRun, scheduler_id: str) -> RunRow:
    """A run of a task on any node, as the history of one machine has it."""
    run = past.run
    return RunRow(
        id=past.id,
        service=past.name,
        reason=run.cause,
        scheduled_us=run.scheduled_us,
        started_us=past.started_us,
        ended_us=run.ended_us,
        lasted_us=max(run.ended_us - run.called_us, 0),
        result=run.result,
        message=run.error or "",
        output=run.output or "",
        attempt=run.attempt,
        run_id=str(run_id_from(scheduler_id, past.name, int(run.run_id))) if run.run_id else None,
        node=past.node,
    )


class _NodeRules(TaskRules):
    """The rules of tasks, with what a cluster adds to the event of a start."""

    node: Node

    def wakes_us(self, task: Task) -> Instant:
        """As ever, but a task that is disabled here is looked at again when a node comes or goes."""
        wake_us = super().wakes_us(task)
        return ASLEEP_US if wake_us >= NEVER_US and not task.options.enabled else wake_us

    def emit_starts(self, announcer: Announcer, starts: Sequence[Begin[Task]], zone: tzinfo) -> None:
        if announcer.wants("TaskRunStarted"):
            for start in starts:
                assert isinstance(start, Start)
                held = self.node.held.get(row_name(start.after.name))
                assert start.after.running_since_us is not None
                run_id = run_id_of(start.before, start.after.running_since_us)
                more = {"token": 0 if held is None else held.token, "runId": str(run_id)}
                emit_start(announcer, start, zone, **more)


class DeclaredTasks(Collection[Task]):
    """Tasks that are *made* by their names whenever somebody looks: a million take much memory."""

    def __init__(self, names: Collection[str], made: Callable[[str], Task]) -> None:
        self._names = names
        self._made = made

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Task]:
        return map(self._made, self._names)

    def __contains__(self, task: object) -> bool:
        return any(each == task for each in self)


class ClusterTasks:
    """The tasks of one scheduler in a cluster store."""

    def __init__(
        self,
        store: ClusterStore,
        clock: Watchable,
        announcer: Announcer,
        limits: RunLimits,
    ) -> None:
        self._announcer = announcer
        self._codec, rules = TaskCodec(), _NodeRules()
        self.backend = RowBackend(
            store, clock, announcer, rules, self._codec, name=this_node(os.getpid()), limits=limits
        )
        self.node = rules.node = self.backend.node
        self.poller = self.backend.poller
        self._lists = Lists(
            store,
            self.backend,
            announcer,
            empty=self._codec.listed,
            puts=self._puts,
            take_over=self._take_over,
        )
        self.backend.on_pulse = self._lists.on_pulse
        self._numbers = count()
        """Of requests."""
        self._leaving: asyncio.Task[None] | None = None
        """Leaves when the runs in flight have ended."""

    @property
    def zone(self) -> tzinfo:
        return self.backend.zone

    @property
    def count(self) -> int:
        return self.backend.count

    # --- life ---

    def allow(self, kinds: EntryKinds, limits: Mapping[str, int]) -> None:
        self._codec.kinds = kinds
        self.backend.named = NamedLimits(limits)

    async def begin(self, registrations: list[Registration], zone: tzinfo) -> Reconciliation:
        """Join the cluster, and bring the list."""
        self.poller.renew()
        self.backend.zone = zone
        self._codec.schedules = Timetables(zone)
        self._lists.renew()
        await self._leave_no_more()
        if not self.backend.is_joined:
            self.node.renew()
            self.node.kinds = list(self._codec.kinds)
            self._codec.scheduler_id = await self.backend.join(uuid.uuid4().hex)  # noqa: TID251 (a new store's id)
        try:
            return await self._bring(registrations)
        except BaseException:
            await self._leave()
            raise

    async def change(self, registrations: list[Registration]) -> Reconciliation:
        # Between two claims: a row is decided by the list under which it was claimed.
        async with self.backend.writing:
            return await self._bring(registrations)

    async def request(self, name: str) -> RunAnswer | None:
        """Ask it of the row; whichever node claims it runs it."""
        now_us = self.poller.now_us()
        number = f"{now_us} {self.node.id} {next(self._numbers)}"  # two in one microsecond are two
        if not await self.backend.link.do(run_request(name, number)):
            raise KeyError(name)
        self.poller.wake()
        return partial(self._answer, name, number, now_us)

    async def _answer(self, name: str, number: str, asked_us: Instant) -> RunRow | None:
        """The first run that began after a request, once the row is asked it no more."""
        if not self.backend.is_joined:
            return None
        link, row = self.backend.link, row_name(name)
        if any(is_asked(task.request, number) for task in await link.do(ReadTasks(name=row))):
            return None
        since: Sequence[PastRun] = await link.do(ReadRuns(name=row, since_us=asked_us))
        # The time here is an estimate of the database's: the run may have begun a moment before.
        runs: Sequence[PastRun] = [past for past in since if past.run.cause]
        if not runs:
            runs = await link.do(ReadRuns(name=row, limit=1))
        if not runs:
            raise KeyError(name)  # it was removed
        return run_row(runs[-1], self._codec.scheduler_id)

    async def set_paused(self, name: str, *, paused: bool) -> None:
        """Pause the row for all nodes, or let it go on."""
        if not await self.backend.link.do(SetPaused(name=row_name(name), is_paused=paused)):
            raise KeyError(name)
        self.poller.wake()

    async def cancel(self, name: str) -> bool:
        """Cancel a run of this node, or ask for it; the node that runs it looks with each heartbeat."""
        if self.poller.runs.cancel(name):
            return True
        if await self.backend.link.do(CancelRun(name=row_name(name))):
            return True
        if not await self.backend.link.do(ReadTasks(name=row_name(name))):
            raise KeyError(name)
        return False

    async def add(self, entry: NewEntry) -> None:
        """Put one row, for all nodes that have its kind."""
        now_us, kind = self.poller.now_us(), entry_text(entry.text)
        task = entry_put(
            entry,
            None,
            id=0,
            live_us=None,
            now_us=now_us,
            minute_us=minute_begun(now_us, self.zone),
            schedule=self._codec.timetable_of(entry.schedule),
            scheduler_id=self._codec.scheduler_id,
            kinds=self._codec.kinds,
        )
        # Its zone is in its schedule, so that of the scheduler does not matter.
        definition = _encode([entry.schedule, task.retry_delay_us, "UTC", entry.text]).decode()
        # Whether its kind is known here does not matter either: another node may claim it.
        wake_us = wakes_us(with_options(task, Options(enabled=kind.enabled)))
        hash_ = hash_of(entry.name, entry.schedule)  # with the same one the row keeps its state
        put = Put(entry.name, hash_, definition, self._codec.state(task), wake_us)
        before = await self.backend.link.do(PutOne(put=put, kind=kind.kind))
        if before is None:
            raise EntryNameError(name=entry.name)
        if before != definition:
            emit_entry(self._announcer, task, is_new=not before)
        self.poller.wake()

    async def remove(self, name: str) -> None:
        """Remove one row, unless it is of a list."""
        if name in self._codec.listed:
            raise EntryNameError(name=name)
        if not await self.backend.link.do(RemoveOne(name=name, is_entry=True)):
            raise KeyError(name)
        self._announcer.announce("EntryRemoved", taskName=name)

    async def tasks(self) -> Sequence[Task]:
        """The rows of this list, as the database has them."""
        rows = await stored_rows(self.backend.link)
        listed = [rows.pop(name) for name in self._codec.listed if name in rows]
        return [task for row in (*listed, *rows.values()) if (task := self._codec.viewed(row)) is not None]

    def known(self) -> Sequence[Task]:
        """None: what a node knows of a row was so when it held it."""
        return ()

    def remember_runs(self, limits: HistoryLimits) -> None:
        """The cluster remembers them anyway; this says how long, unless its store does."""
        self.node.kept_us, self.node.kept_runs = limits.age_us, limits.runs

    async def past_runs(self, wanted: WantedTaskRuns) -> Sequence[RunRow]:
        """The runs of all nodes."""
        request = ReadRuns(
            name=None if wanted.task is None else row_name(wanted.task),
            result=wanted.result,
            since_us=wanted.since_us,
            before_us=wanted.until_us,
            limit=wanted.limit,
            with_output=True,
        )
        return [run_row(past, self._codec.scheduler_id) for past in await self.backend.link.do(request)]

    async def nodes(self) -> Nodes:
        return await self.backend.link.do(ReadNodes())

    async def end(self) -> None:
        """Write the last ends, and leave the cluster.

        If something runs still, another list is about to be brought after one that failed. What runs keeps
        its node meanwhile, because nobody may take its rows.
        """
        # First the poller, so that nothing is claimed any more; then comparisons, which use the connection.
        await self.poller.end()
        await self._lists.end()
        await self._leave()

    async def _leave(self) -> None:
        """Leave the cluster. With runs in flight, after a list that failed, not before they have ended."""
        if not len(self.poller.runs):
            await self.backend.leave()
        elif self._leaving is None:
            mark("leaves in time")
            self._leaving = asyncio.get_running_loop().create_task(self._leave_in_time())

    async def _leave_in_time(self) -> None:
        await self.poller.runs.wait_for_ends(but_waiting=False)
        try:
            await self.backend.leave()
        except Exception as error:
            self._announcer.announce("StoreFault", error=described(error))

    async def _leave_no_more(self) -> None:
        """Stay for those runs and for a new list. If they have ended, the node is about to be gone."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            # With no run left it is writing the last ends: let it finish.
            if len(self.poller.runs):
                cancel(leaving)
            await asyncio.wait([leaving])

    async def drop(self) -> None:
        """Let go as a crash would."""
        await self.poller.drop()
        await self._lists.end()
        if self._leaving is not None:
            cancel(self._leaving)
            self._leaving = None
        await self.backend.drop()

    # --- lists ---

    async def _bring(self, registrations: list[Registration]) -> Reconciliation:
        """Make *registrations* the list of the cluster. Raises StoreError, and then it is not."""
        listed = TaskList(self.zone)
        await listed.take(registrations)
        self._codec.schedules.expect(listed.expressions())
        outcome = await self._lists.bring(listed)
        return self._as_told(listed, outcome)

    def _declared(self, listed: TaskList) -> Callable[[str], Task]:
        """Makes each task of a list as it is when first registered."""
        now_us = self.poller.now_us()
        minute_us = minute_begun(now_us, self.zone)

        def declared(name: str) -> Task:
            item = listed[name]
            return registered(
                id=0,
                name=item.name,
                schedule=self._codec.schedules.of(item.expression.text),
                retry_delay_us=item.retry_delay_us,
                now_us=now_us,
                minute_us=minute_us,
                scheduler_id=self._codec.scheduler_id,
            )

        return declared

    async def _puts(self, listed: TaskList, names: Sequence[str], _digest: Digest) -> list[Put]:
        declared = self._declared(listed)
        states: dict[str, tuple[str, Instant]] = {}
        """The state and the wake-up of a new row, the same for all with the same definition."""
        puts: list[Put] = []
        async for some in in_slices(names):
            for name in some:
                definition = listed.definition(name)
                if definition not in states:
                    task = declared(name)
                    states[definition] = self._codec.state(task), wakes_us(task)
                puts.append(Put(name, listed.hash_of(name) or 0, definition, *states[definition]))
        return puts

    def _take_over(self, listed: TaskList) -> None:
        self._codec.listed = listed
        self._codec.schedules.keep({each.text for each in listed.expressions()})

    def _as_told(self, listed: TaskList, outcome: ListOutcome) -> Reconciliation:
        """What the list changed, in the form that a scheduler on a store of its own has."""
        declared = self._declared(listed)
        overridden = dict(outcome.overridden)
        preserved: list[str] = []
        if self._announcer.wants("TaskPreserved"):
            changed = {*outcome.added, *overridden}
            preserved = [name for name in listed if name not in changed]
        added = DeclaredTasks(outcome.added, declared)
        outcome_of_list = Reconciliation(
            DeclaredTasks(listed, declared), added, DeclaredTasks(preserved, declared)
        )
        for name, definition in overridden.items():
            after = declared(name)
            outcome_of_list.overridden.append(Override(self._before(after, definition), after))
        outcome_of_list.orphaned.extend(self._orphaned(name, state) for name, state in outcome.orphaned)
        return outcome_of_list

    def _before(self, after: Task, definition: str) -> Task:
        """The task as it was declared before, as far as that can be read."""
        try:
            cron, retry_delay_us, *_ = msgspec.json.decode(definition)
            schedule = Timetables(self.zone).of(cron)
        except (ValueError, TypeError, SchedulerError):
            return after
        return msgspec.structs.replace(after, schedule=schedule, retry_delay_us=retry_delay_us)

    def _orphaned(self, name: str, state: str) -> Task:
        """A task that is in the list no more: its name, and when it ran last."""
        try:
            last_attempt_us = _decode_state(state)[2]
        except (msgspec.DecodeError, IndexError):
            last_attempt_us = None
        schedule = Timetables(self.zone).of("* * * * *")
        scheduler_id = self._codec.scheduler_id
        return Task(0, name, schedule, 0, 0, 0, 0, last_attempt_us, scheduler_id=scheduler_id)


# --- which backend a scheduler has ---


def place_of(place: object) -> Store | ClusterStore:
    """The store that *place* means: a path, ":memory:", an address, or a store itself. Raises ValueError."""
    if isinstance(place, ClusterStore):
        return place
    if isinstance(place, str) and kind_of(place) is StoreKind.DATABASE:
        from duly.cluster.postgres import PostgresStore  # noqa: PLC0415 (not every user has psycopg)

        return PostgresStore(place)
    return store_for(place)


def task_backend_of(
    place: Store | ClusterStore, clock: Watchable, announcer: Announcer, limits: RunLimits
) -> TaskBackend:
    """What keeps the tasks of *place*."""
    if isinstance(place, ClusterStore):
        return ClusterTasks(place, clock, announcer, limits)
    return LocalTasks(place, clock, announcer, limits)
