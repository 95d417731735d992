"""The book: every registered task with its callback and its run, and who needs a look when.

It also keeps what has changed and is not yet on disk. The book holds state and no opinion: what is owed is
decided in `core`, what is written and when in the poller.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import tzinfo

from duly.core.agenda import Agenda
from duly.core.causes import cause_standing
from duly.core.reconciliation import Reconciliation
from duly.core.registration import Callback
from duly.core.schedule import Schedule
from duly.core.task import Task, released, set_back, wakes_us
from duly.cron import CronExpression
from duly.engine.runs import Run
from duly.instant import Instant
from duly.marks import mark


@dataclass(slots=True, eq=False)
class Entry:
    """One registered task."""

    task: Task
    callback: Callback
    run: Run | None = None


class Book:
    """The registered tasks."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self.entries: dict[str, Entry] = {}
        self.departed: dict[str, Run] = {}
        """Runs in flight of tasks that are no longer registered."""
        self.unsaved: dict[int, Task] = {}
        """Tasks that changed since they were last written, by id."""
        self.put_back: dict[str, Instant] = {}
        """Starts that may have been written and were not carried out, by name."""
        self.left: dict[str, Task] = {}
        """Tasks whose run was in flight when the book was cleared, by name."""
        self.unwritten: dict[str, Task] = {}
        """What an earlier life of this scheduler could not write before it let go of the store, by name."""
        self.agenda = Agenda()
        self.ready: OrderedDict[str, None] = OrderedDict()
        """Names to look at as soon as possible, in order."""
        self._schedules: dict[str, Schedule] = {}

    def begin(self, zone: tzinfo) -> None:
        """Begin a new life, in *zone*."""
        self.zone = zone
        self._schedules = {}

    def schedule_of(self, cron: str) -> Schedule:
        """The one schedule of all tasks with this cron text."""
        schedule = self._schedules.get(cron)
        if schedule is None:
            schedule = self._schedules[cron] = Schedule(CronExpression.parse(cron), self.zone)
        return schedule

    def expect(self, expressions: Iterable[CronExpression]) -> None:
        """Have the schedules of *expressions*, which were parsed already, at hand."""
        for expression in expressions:
            if expression.text not in self._schedules:
                self._schedules[expression.text] = Schedule(expression, self.zone)

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks by name."""
        return {name: entry.task for name, entry in self.entries.items()}

    @property
    def live(self) -> dict[str, Instant]:
        """The names of the runs in flight, and when each began."""
        live = {name: run.started_us for name, run in self.departed.items()}
        live |= {name: entry.run.started_us for name, entry in self.entries.items() if entry.run is not None}
        return live

    def take_over(self, outcome: Reconciliation, callbacks: Mapping[str, Callback]) -> None:
        """Make *outcome*, which the store now holds, the contents of the book.

        Runs may have ended while it was being written. What they changed is newer than *outcome*.
        """
        before, self.entries = self.entries, {}
        fresh = {task.name for task in outcome.added} | {change.after.name for change in outcome.overridden}
        for task in outcome.tasks:
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
                self.change(entry, released(entry.task))
            self.entries[task.name] = entry
        for name, entry in before.items():
            self.unsaved.pop(entry.task.id, None)
            if entry.run is not None:
                mark("run outlives its task")
                entry.run.is_superseded = True
                self.departed[name] = entry.run
        used = {entry.task.schedule.text for entry in self.entries.values()}
        self._schedules = {text: schedule for text, schedule in self._schedules.items() if text in used}
        self.set_agenda()

    def clear(self) -> None:
        """Forget every task but what the store may not know: runs still in flight, and unwritten ends.

        This process knows how those runs end, whatever the store says when it is opened again.
        """
        self.unwritten |= {task.name: task for task in self.unsaved.values()}
        self.unsaved = {}
        in_flight = {name: entry for name, entry in self.entries.items() if entry.run is not None}
        self.left = {name: entry.task for name, entry in in_flight.items()}
        self.departed |= {name: entry.run for name, entry in in_flight.items() if entry.run is not None}
        self.entries, self._schedules = {}, {}
        self.set_agenda()

    def settle(self) -> None:
        """Forget what could not be written: the store has been read again, and told."""
        self.unwritten, self.put_back = {}, {}

    def wipe(self) -> None:
        """Forget everything, as the death of the process would."""
        self.clear()
        self.departed, self.left = {}, {}
        self.settle()

    def part_from(self, run: Run, ended: Callable[[Task], Task]) -> None:
        """Note the end of a run whose task is not in the book any more."""
        if self.departed.get(run.name) is run:
            del self.departed[run.name]
            if (task := self.left.pop(run.name, None)) is not None:
                self.unwritten[run.name] = ended(task)

    def known(self, stored: Task) -> Task:
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
            if entry.task.interrupted or entry.task.due_stands:
                self.ready[name] = None
            self.agenda.add(name, wakes_us(entry.task))

    def change(self, entry: Entry, task: Task) -> None:
        """Note that a task has become *task*, and that this is to be written."""
        entry.task = task
        self.unsaved[task.id] = task

    def look_at(self, entry: Entry, now_us: Instant) -> None:
        """Have a task that has just ended looked at: at once if it is owed a start, else when it will be."""
        if cause_standing(entry.task, now_us) is not None:
            self.ready[entry.task.name] = None
        elif (wakes := wakes_us(entry.task)) < entry.task.due_us:  # its due is on the agenda since its start
            self.agenda.add(entry.task.name, wakes)

    def set_back(self, before_us: Instant, after_us: Instant) -> None:
        """Account for a clock that was set back from *before_us* to *after_us*."""
        for entry in self.entries.values():
            if (task := set_back(entry.task, before_us, after_us)) is not entry.task:
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
