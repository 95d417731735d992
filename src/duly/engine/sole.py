"""Sole custody: all tasks of a scheduler, on a store that nobody else holds."""

import uuid
from datetime import UTC, tzinfo

from duly.clock import Watchable
from duly.core.reconciliation import Reconciliation, reconciled
from duly.core.registration import Registration
from duly.core.schedule import Schedules, minute_begun
from duly.core.task import Task
from duly.engine.book import Book
from duly.engine.custody import tasks_read
from duly.engine.poller import Poller
from duly.engine.tasks import TaskRules
from duly.events import Announcer
from duly.marks import mark
from duly.store import Store


class Sole:
    """The tasks of one scheduler on its own store."""

    def __init__(
        self,
        store: Store,
        clock: Watchable,
        announcer: Announcer,
        *,
        max_concurrent_runs: int | None = None,
        run_timeout_us: int | None = None,
    ) -> None:
        self._store = store
        rules = TaskRules()
        self.book = Book(UTC, rules)
        self.poller = Poller(
            self.book,
            store,
            clock,
            announcer,
            rules,
            max_concurrent_runs=max_concurrent_runs,
            run_timeout_us=run_timeout_us,
        )
        self._schedules = Schedules(UTC)
        self._scheduler_id = ""

    async def begin(self, registrations: list[Registration], zone: tzinfo) -> Reconciliation:
        """Open the store and reconcile what it holds with the list."""
        self.poller.renew()
        self.book.zone = zone
        self._schedules = Schedules(zone)
        contents = await self._store.open(uuid.uuid4().hex)  # noqa: TID251 (the id of a new store)
        try:
            self._scheduler_id = contents.scheduler_id
            self._schedules.expect(item.expression for item in registrations)
            known, unreadable = tasks_read(contents.records, registrations, self._schedules, self._store.name)
            outcome = self._reconciled(registrations, known, is_restart=True)
            await self._take_over(outcome, registrations, unreadable)
        except BaseException:
            await self._store.close()
            raise
        self.book.settle()
        return outcome

    async def change(self, registrations: list[Registration]) -> Reconciliation:
        """Reconcile the tasks with another list."""
        async with self.poller.writing:
            self.poller.account_for_steps()
            outcome = self._reconciled(registrations, self.book.tasks, is_restart=False)
            await self._take_over(outcome, registrations, [])
        return outcome

    async def retire(self) -> None:
        """Nobody else could do anything here."""

    async def end(self) -> None:
        """Write what the last runs left, and let go of the store."""
        await self.poller.end()
        try:
            await self.poller.flush()
        finally:
            self.book.clear()
            await self._store.close()

    async def drop(self) -> None:
        """Let go as a crash would."""
        await self.poller.drop()
        self.book.wipe()
        await self._store.drop()

    def _reconciled(
        self, registrations: list[Registration], known: dict[str, Task], *, is_restart: bool
    ) -> Reconciliation:
        self._schedules.expect(item.expression for item in registrations)
        now_us = self.poller.now_us()
        return reconciled(
            registrations,
            known,
            live=self.book.live,
            now_us=now_us,
            minute_us=minute_begun(now_us, self.book.zone),
            schedule_of=self._schedules.of,
            scheduler_id=self._scheduler_id,
            is_restart=is_restart,
            known_better=self.book.known,
        )

    async def _take_over(
        self, outcome: Reconciliation, registrations: list[Registration], unreadable: list[int]
    ) -> None:
        put = [*outcome.added, *outcome.rewritten]
        for task in outcome.touched:
            mark("found interrupted" if task.interrupted else "ahead of the clock")
        removed = [*(task.id for task in outcome.orphaned), *unreadable]
        if put or removed:
            await self._store.replace(put=put, removed=removed)
        callbacks = {item.name: item.callback for item in registrations}
        self.book.take_over(outcome.tasks, outcome.fresh, callbacks)
        self._schedules.keep({task.schedule.text for task in outcome.tasks})
