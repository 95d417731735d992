"""What a list of registrations changes against the tasks that are known (spec/scheduler.md 5.2).

Each task is new, preserved, overridden or orphaned. The answer is one value that a store applies whole
or not at all, and that the scheduler then makes its own.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec.structs import replace

from duly.core.entries import EntryKinds, NewEntry, of_kind
from duly.core.registration import Registration
from duly.core.task import Task, cut_off, is_ahead_of_clock, moved_back, registered, with_options
from duly.core.timetable import Timetable
from duly.instant import Instant


@dataclass(frozen=True, slots=True)
class Override:
    """One task whose configuration changed."""

    before: Task
    after: Task

    @property
    def change_type(self) -> str:
        """What changed, in one word."""
        cron = self.before.schedule.text != self.after.schedule.text
        delay = self.before.retry_delay_us != self.after.retry_delay_us
        return "both" if cron == delay else "cron" if cron else "retryDelay"  # neither: it was an entry


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The outcome, task by task, and what of it must be written."""

    tasks: Collection[Task] = field(default_factory=list)
    """Every registered task as it will be, in the order of the list."""
    added: Collection[Task] = ()
    preserved: Collection[Task] = ()
    overridden: list[Override] = field(default_factory=list)
    orphaned: list[Task] = field(default_factory=list)
    touched: list[Task] = field(default_factory=list)
    """Preserved tasks that must be written all the same: found interrupted, or ahead of the clock."""
    entries: list[Task] = field(default_factory=list)
    """Tasks that were added at run time. A list leaves them alone."""
    entries_delayed: list[Task] = field(default_factory=list)
    """Those among them whose kind has another retry delay now."""

    @property
    def fresh(self) -> set[str]:
        """The names of tasks that are new, or registered again."""
        return {task.name for task in self.added} | {override.after.name for override in self.overridden}

    @property
    def rewritten(self) -> list[Task]:
        """The tasks whose row must be replaced."""
        return [*(override.after for override in self.overridden), *self.touched, *self.entries_delayed]


def reconciled(
    registrations: Iterable[Registration],
    known: Mapping[str, Task],
    *,
    live: Mapping[str, Instant],
    now_us: Instant,
    minute_us: Instant,
    schedule_of: Callable[[str], Timetable],
    scheduler_id: str,
    is_restart: bool,
    latest_known: Callable[[Task], Task] = lambda task: task,
    kinds: EntryKinds = MappingProxyType({}),
) -> Reconciliation:
    """What *registrations* make of the *known* tasks; entries are of these *kinds*.

    *live* names the runs in flight in this process and when they began; a task that was running and is
    not live was interrupted by a crash. A live run outlasts the removal of its task, so a task that comes
    back finds it still running. With *is_restart* the known tasks come from a store, perhaps written under a
    clock that was far ahead; *latest_known* says what this process knows of a task that the store does not.
    """
    tasks: list[Task] = []
    added: list[Task] = []
    preserved: list[Task] = []
    outcome = Reconciliation(tasks, added, preserved)
    next_id = max((task.id for task in known.values()), default=0) + 1
    names = set()

    def as_found(before: Task) -> Task:
        # This process may know of an end that the store could not write.
        before = latest_known(before)
        return before if before.name in live else cut_off(before)

    def as_kept(before: Task) -> Task:
        is_ahead = is_restart and is_ahead_of_clock(before, now_us)
        task = moved_back(before, now_us) if is_ahead else before
        # Another object is another state: it must be written though its registration is the same.
        if task is not known[task.name]:
            outcome.touched.append(task)
        return task

    for name, expression, _, retry_delay_us, options in registrations:
        names.add(name)
        before = known.get(name)
        if before is not None:
            before = as_found(before)
        if (
            before is not None
            and before.entry is None
            and before.schedule.text == expression.text
            and before.retry_delay_us == retry_delay_us
        ):
            task = with_options(as_kept(before), options)
            preserved.append(task)
        else:
            task = registered(
                id=next_id,
                name=name,
                schedule=schedule_of(expression.text),
                retry_delay_us=retry_delay_us,
                now_us=now_us,
                minute_us=minute_us,
                scheduler_id=scheduler_id,
                before=before,
                # A run under the old registration goes on. The new one starts when it has ended.
                live_us=live.get(name),
                options=options,
            )
            if before is None:
                next_id += 1
                added.append(task)
            else:
                outcome.overridden.append(Override(before, task))
        tasks.append(task)
    for name, task in known.items():
        if name in names:
            continue
        if task.entry is None:
            outcome.orphaned.append(task)
            continue
        kept = of_kind(as_kept(as_found(task)), kinds)
        outcome.entries.append(kept)
        if kept.retry_delay_us != task.retry_delay_us:
            outcome.entries_delayed.append(kept)
    return outcome


def entry_put(
    new: NewEntry,
    before: Task | None,
    *,
    id: int,  # noqa: A002 (the word for it)
    live_us: Instant | None,
    now_us: Instant,
    minute_us: Instant,
    schedule: Timetable,
    scheduler_id: str,
    kinds: EntryKinds,
) -> Task:
    """The entry *new*, which takes the place of *before*. With the same schedule it keeps its state.

    *live_us* is when the run of that name began that is in flight.
    """
    if before is not None and before.schedule.text == new.schedule:
        task = replace(before, entry=new.text)
    else:
        task = registered(
            id=id,
            name=new.name,
            schedule=schedule,
            retry_delay_us=0,
            now_us=now_us,
            minute_us=minute_us,
            scheduler_id=scheduler_id,
            before=before,
            live_us=live_us,
            entry=new.text,
        )
    return of_kind(task, kinds)
