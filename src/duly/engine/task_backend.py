"""The task backend: keeps the tasks of a scheduler, and takes in a new list of them.

A scheduler on a store of its own keeps all its tasks (`LocalTasks`); a node of a cluster claims them row by
row (`duly.cluster`). Either brings a poller with the backend that the poller asks. The scheduler knows only
the protocol, and has one task backend at a time.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Protocol, runtime_checkable

from duly.clock import HostClock, Watchable
from duly.core.entries import EntryKinds, NewEntry, callback_of
from duly.core.options import UNKNOWN_KIND
from duly.core.reconciliation import Reconciliation, entry_put, reconciled
from duly.core.record import COLUMNS, Record, task_from
from duly.core.registration import Callback, Registration
from duly.core.task import Task, requested, with_pause
from duly.core.timetable import Timetables, minute_begun
from duly.engine.limits import NamedLimits, RunLimits
from duly.engine.local import LocalBackend
from duly.engine.loop_watch import LoopWatcher
from duly.engine.poller import Poller
from duly.engine.task_runs import HistoryLimits, TaskHistory
from duly.engine.tasks import TaskRules, emit_entry
from duly.errors import EntryNameError, ScheduleTaskError, TaskTryDeserializeError
from duly.events import Announcer
from duly.instant import Instant
from duly.marks import mark
from duly.store import Store
from duly.store.history import RunRow, WantedTaskRuns
from duly.threads import outlasting_cancellation

RunAnswer = Callable[[], Awaitable[RunRow | None]]
"""The run that has answered a request; None as long as there is none. Raises KeyError, StoreError."""


@runtime_checkable
class TaskWatcher(Protocol):
    """A listener that reads, too, how the tasks are, as metrics do."""

    def watch_tasks(self, known: Callable[[], Sequence[Task]], /) -> None:
        """Learn where to read them: `TaskBackend.known`."""


class TaskBackend(Protocol):
    """Keeps the tasks of one scheduler."""

    @property
    def zone(self) -> tzinfo:
        """The zone in which events give the time, since the last `begin`."""

    @property
    def count(self) -> int:
        """How many tasks are kept here now. With none there is nothing to poll for."""

    @property
    def poller(self) -> Poller[Task]:
        """What starts them."""

    def allow(self, kinds: EntryKinds, limits: Mapping[str, int]) -> None:
        """Say of what kinds entries may be, and how many runs each named limit has; before `begin`."""

    async def begin(self, registrations: list[Registration], zone: tzinfo) -> Reconciliation:
        """Open what remembers, and make *registrations* the tasks. If it raises, nothing is open."""

    async def change(self, registrations: list[Registration]) -> Reconciliation:
        """Make *registrations* the tasks in place of those before."""

    async def request(self, name: str) -> RunAnswer | None:
        """Have one task run as soon as it can. Durable when it returns. Raises KeyError, StoreError.

        Says whether another process has run it; None if only this one can.
        """
        ...

    async def set_paused(self, name: str, *, paused: bool) -> None:
        """Let one task rest, or go on. Durable when it returns. Raises KeyError, StoreError."""
        ...

    async def cancel(self, name: str) -> bool:
        """Cancel the run of one task; whether it had one. Raises KeyError, StoreError."""
        ...

    async def add(self, entry: NewEntry) -> None:
        """Add an entry, or change it. Durable when it returns. Raises EntryNameError, StoreError."""
        ...

    async def remove(self, name: str) -> None:
        """Remove an entry. Durable when it returns. Raises KeyError, EntryNameError, StoreError."""
        ...

    async def tasks(self) -> Sequence[Task]:
        """All tasks as they are now, in the order of their list, then the entries. Raises StoreError."""
        ...

    def known(self) -> Sequence[Task]:
        """All tasks, as far as this process knows without asking anybody."""
        ...

    def remember_runs(self, limits: HistoryLimits, /) -> None:
        """Keep a history of runs, from the next `begin` on."""

    async def past_runs(self, wanted: WantedTaskRuns, /) -> Sequence[RunRow]:
        """Runs that have ended, newest first. Raises StoreError."""
        ...

    async def end(self) -> None:
        """Write what is not yet written, and let go. It lets go also if it raises."""

    async def drop(self) -> None:
        """Let go as a crash would."""


class LocalTasks:
    """The tasks of one scheduler on its own store."""

    def __init__(self, store: Store, clock: Watchable, announcer: Announcer, limits: RunLimits) -> None:
        self._store = store
        self._clock = clock
        self._announcer = announcer
        rules = TaskRules()
        self._backend = LocalBackend(store, clock, announcer, rules)
        self._book = self._backend.book
        self.poller = Poller(self._backend, clock, announcer, rules, limits)
        self._schedules = Timetables(UTC)
        self._scheduler_id = ""
        self._history_limits: HistoryLimits | None = None
        self._history: TaskHistory | None = None
        self._loop_watcher: LoopWatcher | None = None
        self._kinds: EntryKinds = {}
        self._next_id = 1

    @property
    def zone(self) -> tzinfo:
        return self._book.zone

    @property
    def count(self) -> int:
        return self._backend.count

    def allow(self, kinds: EntryKinds, limits: Mapping[str, int]) -> None:
        self._kinds = kinds
        self._backend.named = NamedLimits(limits)

    async def begin(self, registrations: list[Registration], zone: tzinfo) -> Reconciliation:
        """Open the store and reconcile what it holds with the list."""
        self._backend.renew()
        self.poller.renew()
        self._book.zone = zone
        self._schedules = Timetables(zone)
        contents = await self._store.open(uuid.uuid4().hex)  # noqa: TID251 (the id of a new store)
        try:
            self._scheduler_id = contents.scheduler_id
            self._schedules.expect(item.expression for item in registrations)
            known, unreadable = tasks_read(contents.records, registrations, self._schedules, self._store.name)
            outcome = self._reconciliation(registrations, known, is_restart=True)
            await self._begin_history(known)
            await self._take_over(outcome, registrations, unreadable)
        except BaseException:
            await self._end_history(is_written=False)
            await self._store.close()
            raise
        self._book.settle()
        return outcome

    async def _begin_history(self, known: Mapping[str, Task]) -> None:
        if self._history_limits is None:
            return
        self._history = TaskHistory(self._store, self._clock, self._announcer, self._history_limits)
        self.poller.on_run_end = self._history.record
        if isinstance(self._clock, HostClock):  # in virtual time nothing blocks for long
            self._loop_watcher = LoopWatcher(self._announcer, self.poller.runs.__len__)
        latest = [
            self._book.latest_known(task) for name, task in known.items() if name not in self._book.live
        ]
        await self._history.begin(task for task in latest if task.running_since_us is not None)

    async def _end_history(self, *, is_written: bool) -> None:
        # Forgotten first: a run that ends while the history is being closed must not be given to it.
        history, self._history, self.poller.on_run_end = self._history, None, None
        if self._loop_watcher is not None:
            self._loop_watcher.stop()
            self._loop_watcher = None
        if history is not None:
            await history.close() if is_written else history.drop()

    async def change(self, registrations: list[Registration]) -> Reconciliation:
        """Reconcile the tasks with another list."""
        async with self._backend.writing:
            # A step of the clock that the book has not seen yet would move what is counted from now.
            self._backend.account_for_steps()
            outcome = self._reconciliation(registrations, self._book.tasks, is_restart=False)
            await self._take_over(outcome, registrations, [])
        return outcome

    async def request(self, name: str) -> RunAnswer | None:
        """Note the request on the task."""
        await self._alter(name, requested)
        return None

    async def set_paused(self, name: str, *, paused: bool) -> None:
        """Note the pause on the task."""
        await self._alter(name, lambda task, _now_us: with_pause(task, paused=paused))

    async def _alter(self, name: str, change: Callable[[Task, Instant], Task]) -> None:
        # To the end, also if the caller is cancelled: the store and the book must not differ.
        await outlasting_cancellation(asyncio.ensure_future(self._alter_now(name, change)))

    async def _alter_now(self, name: str, change: Callable[[Task, Instant], Task]) -> None:
        # Between two cycles of the poller, which would otherwise decide on the task as it was.
        async with self._backend.writing:
            self._backend.account_for_steps()
            entry, now_us = self._book.entries[name], self.poller.now_us()
            # The store first: what a caller is told has failed must not happen later.
            await self._backend.keep(change(entry.task, now_us))
            self._book.change(entry, change(entry.task, now_us))  # a run may have ended meanwhile
            self._book.look_at(entry)
        self.poller.wake()

    async def cancel(self, name: str) -> bool:
        if name not in self._book.entries:
            raise KeyError(name)
        return self.poller.runs.cancel(name)

    async def add(self, entry: NewEntry) -> None:
        """Write one row, and then have it in the book."""
        # To the end, also if the caller is cancelled: the store and the book must not differ.
        await outlasting_cancellation(asyncio.ensure_future(self._add(entry)))

    async def _add(self, entry: NewEntry) -> None:
        async with self._backend.writing:
            self._backend.account_for_steps()
            before, now_us = self._entry_before(entry.name), self.poller.now_us()
            task = entry_put(
                entry,
                before,
                id=self._next_id,
                live_us=self._book.live_us(entry.name),
                now_us=now_us,
                minute_us=minute_begun(now_us, self._book.zone),
                schedule=self._schedules.of(entry.schedule),
                scheduler_id=self._scheduler_id,
                kinds=self._kinds,
            )
            if task == before:
                return
            is_fresh = before is None or before.schedule is not task.schedule
            await self._backend.put(task, self._callback_of(task), is_fresh=is_fresh)
            if before is None:
                # Only after the write: an id that was not used may be given again.
                self._next_id += 1
            self._schedules.keep_some(self.count, self._texts)
            emit_entry(self._announcer, task, is_new=before is None)
        # The poller rests while there are no tasks.
        self.poller.begin()

    async def remove(self, name: str) -> None:
        """Forget one row, and then have it in the book no more."""
        await outlasting_cancellation(asyncio.ensure_future(self._remove(name)))

    async def _remove(self, name: str) -> None:
        async with self._backend.writing:
            if self._entry_before(name) is None:
                raise KeyError(name)
            # First the row: if that fails, the entry goes on as before.
            await self._backend.remove(name)
            self._announcer.announce("EntryRemoved", taskName=name)

    def _entry_before(self, name: str) -> Task | None:
        """The entry of that name. Raises EntryNameError for a declared task."""
        known = self._book.entries.get(name)
        if known is not None and known.task.entry is None:
            raise EntryNameError(name=name)
        return None if known is None else known.task

    def _callback_of(self, task: Task) -> Callback:
        assert task.entry is not None
        return _not_known if task.options is UNKNOWN_KIND else callback_of(task.entry, self._kinds)

    def _texts(self) -> set[str]:
        return {entry.task.schedule.text for entry in self._book.entries.values()}

    async def tasks(self) -> Sequence[Task]:
        """Those in the book."""
        return self.known()

    def known(self) -> Sequence[Task]:
        return [entry.task for entry in self._book.entries.values()]

    def remember_runs(self, limits: HistoryLimits) -> None:
        self._history_limits = limits

    async def past_runs(self, wanted: WantedTaskRuns) -> Sequence[RunRow]:
        return [] if self._history is None else await self._history.runs(wanted)

    async def end(self) -> None:
        """Write what the last runs left, and let go of the store."""
        await self.poller.end()  # first, so that nothing is claimed beside the last write
        try:
            await self._backend.flush()
        finally:
            await self._end_history(is_written=True)
            self._book.clear()
            await self._store.close()

    async def drop(self) -> None:
        await self.poller.drop()
        await self._end_history(is_written=False)
        self._backend.wipe()
        await self._store.drop()

    def _reconciliation(
        self, registrations: list[Registration], known: dict[str, Task], *, is_restart: bool
    ) -> Reconciliation:
        self._schedules.expect(item.expression for item in registrations)
        now_us = self.poller.now_us()
        return reconciled(
            registrations,
            known,
            live=self._book.live,
            now_us=now_us,
            minute_us=minute_begun(now_us, self._book.zone),
            schedule_of=self._schedules.of,
            scheduler_id=self._scheduler_id,
            is_restart=is_restart,
            latest_known=self._book.latest_known,
            kinds=self._kinds,
        )

    async def _take_over(
        self, outcome: Reconciliation, registrations: list[Registration], unreadable: list[int]
    ) -> None:
        put = [*outcome.added, *outcome.rewritten]
        for task in outcome.touched:
            mark("found interrupted" if task.interrupted else "ahead of the clock")
        removed = [*(task.id for task in outcome.orphaned), *unreadable]
        if put or removed:
            # First the store, in one transaction; the book only follows. If this raises, the list before
            # stays.
            await self._store.replace(put=put, removed=removed)
        callbacks = {item.name: item.callback for item in registrations}
        callbacks |= {task.name: self._callback_of(task) for task in outcome.entries}
        tasks = [*outcome.tasks, *outcome.entries]
        self._book.take_over(tasks, outcome.fresh, callbacks)
        self._next_id = max((task.id for task in tasks), default=0) + 1
        self._schedules.keep({task.schedule.text for task in tasks})


def tasks_read(
    records: Sequence[Record], registrations: Sequence[Registration], schedules: Timetables, store: str
) -> tuple[dict[str, Task], list[int]]:
    """The stored tasks by name, and the ids of those that cannot be read and are not registered.

    Raises ScheduleTaskError for one that is registered, or an entry, and cannot be read.
    """
    crons = {item.name: item.expression.text for item in registrations}
    tasks: dict[str, Task] = {}
    unreadable = []
    for record in records:
        try:
            task = task_from(record, schedules.of)
        except TaskTryDeserializeError as error:
            task_id, name = record[0], record[COLUMNS.index("name")]
            if name in crons or record[-1] is not None:  # nobody would add an entry again
                mark("unreadable row refused")
                cron = crons.get(name) or str(record[COLUMNS.index("cron")])
                refused = ScheduleTaskError(name=name, cron_expression=cron, cause=error)
                refused.add_note(
                    f"The row is in the table task of {store}; restore a copy, or run `duly store repair`"
                )
                raise refused from error
            mark("unreadable row removed")
            unreadable.append(task_id)
        else:
            tasks[task.name] = task
    return tasks, unreadable


async def _not_known() -> None:
    raise AssertionError("an entry whose kind is not known waits")
