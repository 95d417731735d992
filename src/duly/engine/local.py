"""The local backend: all items in memory, and a store that this process alone writes.

A claim is a look and a write: the rules decide what is owed, and one transaction makes the starts durable,
together with the ends that came in meanwhile. If the write fails nothing has started, nothing is forgotten,
and the same is tried again a little later. Whole records are written, so a write with an unknown outcome does
no harm.

The book and the store change together only under `writing`. Steps of the clock and ends of runs come at any
time. An end is put in the book at once. A step waits until the next holder of `writing` accounts for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import Generic

from duly.clock import Clock, Step
from duly.core.registration import Callback
from duly.engine.book import Book, Entry
from duly.engine.journal import Journal
from duly.engine.limits import NamedLimits
from duly.engine.rules import Begin, Rules, T
from duly.engine.runs import ActiveRun
from duly.events import Announcer
from duly.instant import Instant, instant_of
from duly.marks import mark
from duly.store.protocol import Repository


class LocalBackend(Generic[T]):
    """The items of one scheduler, on a store of its own."""

    def __init__(
        self, store: Repository[T], clock: Clock, announcer: Announcer, rules: Rules[T], zone: tzinfo = UTC
    ) -> None:
        self.book = Book(zone, rules)
        self._announcer = announcer
        self._rules = rules
        self._journal = Journal(self.book, store, announcer, lambda: instant_of(clock.now()))
        self.named = NamedLimits({})
        self.writing = asyncio.Lock()
        """Held while the store and the book are being changed together."""
        self.may_call: Callable[[], bool] = lambda: True
        """Asked right before anything starts: whether it is still ours to start."""
        self._since_step: list[Step | ActiveRun[T]] = []
        """Steps that are not yet accounted for, and the runs called since the first of them."""

    def renew(self) -> None:
        """Begin a new life, perhaps on another event loop, with a store that is opened again."""
        self.writing = asyncio.Lock()
        self._since_step.clear()
        self._journal.forget_faults()

    def wipe(self) -> None:
        """Forget everything, as the death of the process would."""
        self.book.wipe()
        self.named.renew()

    # --- what the poller asks ---

    @property
    def zone(self) -> tzinfo:
        return self.book.zone

    @property
    def count(self) -> int:
        return len(self.book.entries)

    @property
    def is_faulty(self) -> bool:
        return self._journal.resume_us is not None

    def has_more(self) -> bool:
        """Whether names are ready that the last claim had no room for."""
        return (bool(self.book.ready) or self.named.has_next()) and not self.is_faulty

    def next_us(self) -> Instant | None:
        """The next attempt to write after a fault, or else the next instant at which an item needs a look."""
        if (resume_us := self._journal.resume_us) is not None:
            return resume_us
        return self.book.agenda.next_us()

    # --- starts ---

    async def claim(
        self, now_us: Instant, at_most: int, on_look: Callable[[int], None]
    ) -> Sequence[Begin[T]]:
        """Write the ends that came in, with the starts that are owed now. Hold `writing`."""
        # First: the rules must not decide with items that are still in the old time.
        self.account_for_steps()
        resume_us = self._journal.resume_us
        if resume_us is not None and now_us < resume_us:
            return ()
        self.book.ready.update(dict.fromkeys(self.named.next_names()))
        names = self.book.names_to_look_at(now_us, at_most)
        if names:
            on_look(len(names))
        owed = self._starts_owed(names, now_us)
        try:
            is_written = await self._journal.write([start.after for start in owed])
        # Cut off: the store may have the starts or not. What is given back is written again, so both are
        # right.
        except BaseException:
            self.give_back(owed)
            raise
        if not is_written:
            self.give_back(owed)
            owed = ()
        return owed

    def _starts_owed(self, names: list[str], now_us: Instant) -> Sequence[Begin[T]]:
        if not names:
            return ()
        entries = self.book.entries
        look = self._rules.looked_at([entries[name].task for name in names], now_us)
        for before, after in look.changed:
            self.book.change(entries[after.name], after)
            self._rules.emit_changed(self._announcer, before, after, self.book.zone)
        if len(look.starts) != len(names):
            self._look_again_at(names, {start.before.name for start in look.starts}, now_us)
        if not self.named.sizes:
            return look.starts
        return self.named.admitted(look.starts, self._rules, self._announcer)

    def _look_again_at(self, names: list[str], owed: set[str], now_us: Instant) -> None:
        """Put what was not started back on the agenda; what waits for its run to end comes back with that."""
        for name in names:
            if name in owed:
                continue
            entry = self.book.entries[name]
            if entry.run is None or self._rules.wakes_us(entry.task) > now_us:
                self.book.look_at(entry)
                continue
            mark("due while running")
            self._rules.emit_skipped(self._announcer, name, "still running; starts when the run ends")

    def give_back(self, starts: Sequence[Begin[T]]) -> None:
        """Nothing was started: what is owed stays owed, and the record must say so again."""
        # To the front again, and the oldest first: they were taken from there.
        for start in reversed(starts):
            mark("start put back")
            self.named.free(self._rules.limit_of(start.before))
            self.book.ready[start.before.name] = None
            self.book.ready.move_to_end(start.before.name, last=False)
            assert start.after.running_since_us is not None
            # The store may have this start as a run under way. If it is read again, that run counts as ours.
            self.book.put_back[start.before.name] = start.after.running_since_us
            entry = self.book.entries[start.before.name]
            self.book.change(entry, entry.task)

    def callback_of(self, start: Begin[T]) -> Callback:
        return self.book.entries[start.before.name].callback

    def on_begun(self, start: Begin[T], run: ActiveRun[T]) -> None:
        entry = self.book.entries[start.before.name]
        assert entry.run is None
        # Not marked as unsaved: the claim has written it.
        entry.task = start.after
        self.book.look_at(entry)
        # Last: from here on only the end of this run starts the item again.
        entry.run = run

    def look_again(self) -> None:
        """Put every item on the agenda: a claim that failed half-way may have taken some off it."""
        self.book.set_agenda()

    # --- runs ---

    def on_call(self, run: ActiveRun[T]) -> bool:
        """Note that the callback of *run* is about to be called, unless nothing may be called any more."""
        if not self.may_call():
            return False
        if self._since_step:
            mark("called after a step")
            self._since_step.append(run)
        entry = self._entry_of(run)
        if entry is not None and (task := self._rules.called(entry.task, run.called_us)) is not entry.task:
            mark("minute passed")
            # Written with the end of the run; until then a crash makes the task interrupted anyway.
            entry.task = task
            self.book.look_at(entry)
        return True

    def on_call_off(self, run: ActiveRun[T]) -> None:
        """Take back a start that was written and not yet carried out: what was owed is owed still."""
        mark("start called off")
        self.named.free(self._rules.limit_of(run.before))
        entry = self._entry_of(run)
        if entry is None:
            self.book.end_orphaned(run, lambda _task: run.before)
            return
        entry.run = None
        self.book.put_back[run.name] = run.started_us
        self.book.change(entry, run.before)
        self.book.ready[run.name] = None

    def on_end(self, run: ActiveRun[T], error: BaseException | None) -> T | None:
        """Note the end of a run; what its item is now, if it is in the book."""
        if self.named.sizes:
            # Whether or not its item is still there: it is the run that took the room.
            self.named.free(self._rules.limit_of(run.before))
        entry = self._entry_of(run)
        if entry is None:
            self.book.end_orphaned(run, lambda task: self._rules.ended(task, run, error))
            return None
        entry.run = None
        if self._since_step:
            # The run ended by the new time, and its item is in the old one until the step is accounted for.
            run.ahead_us = self.unaccounted_us()
        task = self._rules.ended(entry.task, run, error)
        self.book.change(entry, task)
        self.book.look_at(entry)
        return task

    def _entry_of(self, run: ActiveRun[T]) -> Entry[T] | None:
        entry = self.book.entries.get(run.name)
        return entry if entry is not None and entry.run is run else None

    # --- the clock ---

    def on_step(self, step: Step) -> None:
        """Note a step of the clock, to be accounted for by the next holder of `writing`."""
        if self._rules.minds(step):
            self._since_step.append(step)
        self._journal.shift(step.after_us - step.before_us)  # a pause is a length of time

    def account_for_steps(self) -> None:
        """Let the book know what steps of the clock mean for its items. Hold `writing` meanwhile."""
        # In order: a run that was called between two steps has answered what came before the second.
        for happened in self._since_step:
            if isinstance(happened, Step):
                mark("clock stepped")
                self.book.step(happened)
            elif (entry := self._entry_of(happened)) is not None and not happened.is_superseded:
                # It was called under the new time, and has answered what came before that.
                entry.task = self._rules.called(entry.task, happened.called_us)
                self.book.look_at(entry)
        self._since_step.clear()

    def unaccounted_us(self) -> int:
        """How far the clock was set by steps that the book does not know yet."""
        return sum(step.after_us - step.before_us for step in self._since_step if isinstance(step, Step))

    # --- writing beside the poller ---

    async def keep(self, item: T) -> None:
        """Write one item that is in the book. Hold `writing`. Raises what the store raises."""
        await self._journal.replace([item], [])

    async def put(self, item: T, callback: Callback, *, is_fresh: bool) -> None:
        """Add one item, or change it. Hold `writing`. Raises what the store raises."""
        # The store first: a book that is ahead of it would start what a crash forgets.
        await self._journal.replace([item], [])
        self.book.put(item, callback, is_fresh=is_fresh)

    async def remove(self, name: str) -> None:
        """Forget one item. Hold `writing`. Raises what the store raises."""
        await self._journal.replace([], [self.book.entries[name].task.id])
        self.book.remove(name)

    async def flush(self) -> None:
        """Write what is not yet written, and check that the store has it. Raises what the store raises."""
        async with self.writing:
            self.account_for_steps()
            await self._journal.flush()
