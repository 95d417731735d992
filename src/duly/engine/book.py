"""The book: every registered item with its callback and its run, and who needs a look when.

It also keeps what has changed and is not yet on disk. The book holds state and no opinion: what is owed is
decided by the rules, what is written and when in the poller.
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
from duly.engine.runs import Run
from duly.instant import Instant
from duly.marks import mark


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One registered item, which is called a task here whatever its kind."""

    task: T
    callback: Callback
    run: Run[T] | None = None


class Book(Generic[T]):
    """The registered tasks."""

    def __init__(self, zone: tzinfo, rules: Rules[T]) -> None:
        self.zone = zone
        self._rules = rules
        self._wakes_us = rules.wakes_us
        self.entries: dict[str, Entry[T]] = {}
        self.departed: dict[str, Run[T]] = {}
        """Runs in flight of tasks that are no longer registered."""
        self.unsaved: dict[int, T] = {}
        """Tasks that changed since they were last written, by id."""
        self.put_back: dict[str, Instant] = {}
        """Starts that may have been written and were not carried out, by name."""
        self.left: dict[str, T] = {}
        """Tasks whose run was in flight when the book was cleared, by name."""
        self.unwritten: dict[str, T] = {}
        """What an earlier life of this scheduler could not write before it let go of the store, by name."""
        self.agenda = Agenda()
        self.ready: OrderedDict[str, None] = OrderedDict()
        """Names to look at as soon as possible, in order."""

    @property
    def tasks(self) -> dict[str, T]:
        """The tasks by name."""
        return {name: entry.task for name, entry in self.entries.items()}

    @property
    def live(self) -> dict[str, Instant]:
        """The names of the runs in flight, and when each began."""
        live = {name: run.started_us for name, run in self.departed.items()}
        live |= {name: entry.run.started_us for name, entry in self.entries.items() if entry.run is not None}
        return live

    def take_over(
        self, tasks: Sequence[T], fresh: Collection[str], callbacks: Mapping[str, Callback]
    ) -> None:
        """Make *tasks*, which the store now holds, the contents of the book.

        Runs may have ended while they were being written. What that changed is newer, except for those that
        are *fresh*: new, or registered anew.
        """
        before, self.entries = self.entries, {}
        for task in tasks:
            entry = before.pop(task.name, None)
            if entry is None:
                entry = Entry(task, callbacks[task.name], self.departed.pop(task.name, None))
                if entry.run is not None:
                    mark("task comes back")
            if task.name in fresh:
                entry.task = task
                self.unsaved.pop(task.id, None)
                if entry.run is not None:
                    mark("run outlives its registration")
                    entry.run.is_superseded = True
            elif task.id not in self.unsaved:
                entry.task = task
            else:
                mark("ends during a list")
            entry.callback = callbacks[task.name]
            if entry.run is None and entry.task.running_since_us is not None:
                self.change(entry, self._rules.released(entry.task))
            self.entries[task.name] = entry
        for name, entry in before.items():
            self.unsaved.pop(entry.task.id, None)
            if entry.run is not None:
                mark("run outlives its task")
                entry.run.is_superseded = True
                self.departed[name] = entry.run
        self.set_agenda()

    def admit(self, task: T, callback: Callback, run: Run[T] | None = None) -> Entry[T]:
        """Add one task, which the store holds, with the run of it that is under way somewhere."""
        self.dismiss(task.name)
        entry = self.entries[task.name] = Entry(task, callback, run or self.departed.pop(task.name, None))
        self.look_at(entry)
        return entry

    def dismiss(self, name: str) -> Entry[T] | None:
        """Remove one task, and give it back: what becomes of its run and of what is unsaved is not ours."""
        entry = self.entries.pop(name, None)
        if entry is not None:
            self.agenda.remove(name)
            self.ready.pop(name, None)
            self.unsaved.pop(entry.task.id, None)
        return entry

    def clear(self) -> None:
        """Forget every task but what the store may not know: runs still in flight, and unwritten ends.

        This process knows how those runs end, whatever the store says when it is opened again.
        """
        self.unwritten |= {task.name: task for task in self.unsaved.values()}
        self.unsaved = {}
        in_flight = {name: entry for name, entry in self.entries.items() if entry.run is not None}
        self.left = {name: entry.task for name, entry in in_flight.items()}
        self.departed |= {name: entry.run for name, entry in in_flight.items() if entry.run is not None}
        self.entries = {}
        self.set_agenda()

    def settle(self) -> None:
        """Forget what could not be written: the store has been read again, and told."""
        self.unwritten, self.put_back = {}, {}

    def wipe(self) -> None:
        """Forget everything, as the death of the process would."""
        self.clear()
        self.departed, self.left = {}, {}
        self.settle()

    def part_from(self, run: Run[T], ended: Callable[[T], T]) -> None:
        """Note the end of a run whose task is not in the book any more."""
        if self.departed.get(run.name) is run:
            del self.departed[run.name]
            if (task := self.left.pop(run.name, None)) is not None:
                self.unwritten[run.name] = ended(task)

    def known(self, stored: T) -> T:
        """What is known of a task that a store holds: the end of its run, if this process saw it."""
        ended = self.unwritten.get(stored.name)
        if ended is None or ended.id != stored.id or stored.running_since_us is None:
            return stored
        ours = (ended.last_attempt_us, self.put_back.get(stored.name))
        return ended if stored.running_since_us in ours else stored

    def set_agenda(self) -> None:
        """Put every task on a new agenda."""
        self.agenda = Agenda()
        self.ready.clear()
        for name, entry in self.entries.items():
            self.agenda.add(name, self._wakes_us(entry.task))

    def change(self, entry: Entry[T], task: T) -> None:
        """Note that a task has become *task*, and that this is to be written."""
        entry.task = task
        self.unsaved[task.id] = task

    def touch(self) -> None:
        """Note that every task is to be written, changed or not."""
        self.unsaved |= {entry.task.id: entry.task for entry in self.entries.values()}

    def look_at(self, entry: Entry[T]) -> None:
        """Have a task looked at when it next needs it, which may be at once."""
        self.agenda.add(entry.task.name, self._wakes_us(entry.task))

    def step(self, step: Step) -> None:
        """Account for a clock that was stepped."""
        for entry in self.entries.values():
            if (task := self._rules.stepped(entry.task, step)) is not entry.task:
                self.change(entry, task)
        self.set_agenda()

    def names_to_look_at(self, now_us: Instant, at_most: int | None) -> list[str]:
        """The names that are ready or whose instant has come; beyond *at_most* they stay ready."""
        for name in self.agenda.take(now_us):
            self.ready[name] = None
        if not self.ready:
            return []
        if at_most is None:
            ready, self.ready = self.ready, OrderedDict()
            return [name for name in ready if name in self.entries]
        names: list[str] = []
        while self.ready and len(names) < at_most:
            name, _ = self.ready.popitem(last=False)
            if name in self.entries:
                names.append(name)
        return names
