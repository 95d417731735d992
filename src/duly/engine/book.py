"""The book: every registered item with its callback and its run, and who needs a look when.

It also keeps what has changed and is not yet on disk. The book holds state and no opinion: what is owed is
decided by the rules, what is written and when by the local backend.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Generic

from duly.clock import Step
from duly.core.agenda import Agenda
from duly.core.registration import Callback
from duly.engine.rules import Rules, T
from duly.engine.runs import ActiveRun
from duly.instant import Instant
from duly.marks import mark


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One registered item, which is called a task here whatever its kind."""

    task: T
    callback: Callback
    run: ActiveRun[T] | None = None


class Book(Generic[T]):
    def __init__(self, zone: tzinfo, rules: Rules[T]) -> None:
        self.zone = zone
        self._rules = rules
        self._wakes_us = rules.wakes_us
        self.entries: dict[str, Entry[T]] = {}
        self.orphaned_runs: dict[str, ActiveRun[T]] = {}
        """Runs in flight of tasks that are no longer registered."""
        self.unsaved: dict[int, T] = {}
        """Tasks that changed since they were last written, by id."""
        self.put_back: dict[str, Instant] = {}
        """Starts that may have been written and were not carried out, by name."""
        self.orphaned_tasks: dict[str, T] = {}
        """Tasks whose run was in flight when the book was cleared, by name."""
        self.unwritten: dict[str, T] = {}
        """What an earlier life of this scheduler could not write before it let go of the store, by name."""
        self.agenda = Agenda()
        self.ready: OrderedDict[str, None] = OrderedDict()
        """Names to look at as soon as possible, in order."""

    @property
    def tasks(self) -> dict[str, T]:
        return {name: entry.task for name, entry in self.entries.items()}

    @property
    def live(self) -> dict[str, Instant]:
        """The names of the runs in flight, and when each began."""
        live = {name: run.started_us for name, run in self.orphaned_runs.items()}
        live |= {name: entry.run.started_us for name, entry in self.entries.items() if entry.run is not None}
        return live

    def live_us(self, name: str) -> Instant | None:
        """When the run of that name began that is in flight."""
        entry = self.entries.get(name)
        run = self.orphaned_runs.get(name) if entry is None else entry.run
        return None if run is None else run.started_us

    def take_over(
        self, tasks: Sequence[T], fresh: Collection[str], callbacks: Mapping[str, Callback]
    ) -> None:
        """Make *tasks*, which the store now holds, the contents of the book.

        Runs may have ended while they were being written. What that changed is newer, except for those that
        are *fresh*: new, or registered again.
        """
        before, self.entries = self.entries, {}
        for task in tasks:
            entry = before.pop(task.name, None)
            self._put(entry, task, callbacks[task.name], is_fresh=task.name in fresh)
        for name, entry in before.items():
            self._forget(name, entry)
        self.set_agenda()

    def put(self, task: T, callback: Callback, *, is_fresh: bool) -> None:
        """Add one task that the store now holds, or change it."""
        self._put(self.entries.get(task.name), task, callback, is_fresh=is_fresh)
        self.look_at(self.entries[task.name])

    def remove(self, name: str) -> None:
        """Forget one task that the store has forgotten."""
        self._forget(name, self.entries.pop(name))
        self.agenda.discard(name)

    def _put(self, entry: Entry[T] | None, task: T, callback: Callback, *, is_fresh: bool) -> None:
        if entry is None:
            entry = Entry(task, callback, self.orphaned_runs.pop(task.name, None))
            if entry.run is not None:
                mark("task comes back")
        if is_fresh:
            entry.task = task
            self.unsaved.pop(task.id, None)
            if entry.run is not None:
                mark("run outlives its registration")
                entry.run.is_superseded = True
        elif task.id not in self.unsaved:
            entry.task = task
        else:
            mark("ends during a list")
            # Its run ended while the list was being written. The state here is newer, the definition there.
            entry.task = self._rules.redefined(entry.task, task)
        entry.callback = callback
        # Written as running, but its run ended during the write: no end of it will come any more.
        if entry.run is None and entry.task.running_since_us is not None:
            self.change(entry, self._rules.released(entry.task))
        self.entries[task.name] = entry

    def _forget(self, name: str, entry: Entry[T]) -> None:
        # To save a row that the store has forgotten would fail, with all that is saved beside it.
        self.unsaved.pop(entry.task.id, None)
        if entry.run is not None:
            mark("run outlives its task")
            # A task of this name that comes back later is a new one: this run's end is not its own.
            entry.run.is_superseded = True
            self.orphaned_runs[name] = entry.run

    def clear(self) -> None:
        """Forget every task but what the store may not know: runs still in flight, and unwritten ends.

        This process knows how those runs end, whatever the store says when it is opened again.
        """
        self.unwritten |= {task.name: task for task in self.unsaved.values()}
        self.unsaved = {}
        in_flight = {name: entry for name, entry in self.entries.items() if entry.run is not None}
        self.orphaned_tasks = {name: entry.task for name, entry in in_flight.items()}
        self.orphaned_runs |= {name: entry.run for name, entry in in_flight.items() if entry.run is not None}
        self.entries = {}
        self.set_agenda()

    def settle(self) -> None:
        """Forget what could not be written: the store has been read again, and has it now."""
        self.unwritten, self.put_back = {}, {}

    def wipe(self) -> None:
        """Forget everything, as the death of the process would."""
        self.clear()
        self.orphaned_runs, self.orphaned_tasks = {}, {}
        self.settle()

    def end_orphaned(self, run: ActiveRun[T], ended: Callable[[T], T]) -> None:
        """Note the end of a run whose task is not in the book any more."""
        if self.orphaned_runs.get(run.name) is run:
            del self.orphaned_runs[run.name]
            if (task := self.orphaned_tasks.pop(run.name, None)) is not None:
                self.unwritten[run.name] = ended(task)

    def latest_known(self, stored: T) -> T:
        """What is known of a task that a store holds: the end of its run, if this process saw it."""
        ended = self.unwritten.get(stored.name)
        if ended is None or ended.id != stored.id or stored.running_since_us is None:
            return stored
        # Another process may have run the task since we let go of the store. Only a start that was ours has
        # the end that we saw.
        ours = (ended.last_attempt_us, self.put_back.get(stored.name))
        return ended if stored.running_since_us in ours else stored

    def set_agenda(self) -> None:
        """Put every task on a new agenda."""
        self.agenda = Agenda()
        # What was ready is due on the new agenda, too.
        self.ready.clear()
        for name, entry in self.entries.items():
            self.agenda.add(name, self._wakes_us(entry.task))

    def change(self, entry: Entry[T], task: T) -> None:
        """Note that a task has become *task*, and that this is to be written."""
        entry.task = task
        self.unsaved[task.id] = task

    def look_at(self, entry: Entry[T]) -> None:
        """Have a task looked at when it next needs it, which may be at once."""
        self.agenda.add(entry.task.name, self._wakes_us(entry.task))

    def step(self, step: Step) -> None:
        """Account for a clock that was stepped."""
        for entry in self.entries.values():
            if (task := self._rules.stepped(entry.task, step)) is not entry.task:
                self.change(entry, task)
        self.set_agenda()

    def names_to_look_at(self, now_us: Instant, at_most: int) -> list[str]:
        """The names that are ready or whose instant has come; beyond *at_most* they stay ready."""
        for name in self.agenda.take(now_us):
            self.ready[name] = None
        names: list[str] = []
        while self.ready and len(names) < at_most:
            # The oldest first: with a limit, no name waits for ever behind others.
            name, _ = self.ready.popitem(last=False)
            if name in self.entries:
                names.append(name)
        return names
