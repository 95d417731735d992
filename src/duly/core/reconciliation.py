"""What a list of registrations changes against the tasks that are known (SCHEDULER.md 5).

Each task is new, preserved, overridden or orphaned. The answer is one value that a store applies whole
or not at all, and that the scheduler then makes its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from duly.core.registration import Registration
from duly.core.schedule import Schedule
from duly.core.task import Task, cut_off, is_ahead_of_clock, moved_back, registered
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
        return "both" if cron and delay else "cron" if cron else "retryDelay"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The outcome, task by task, and what of it must be written."""

    tasks: list[Task] = field(default_factory=list)
    """Every registered task as it will be, in the order of the list."""
    added: list[Task] = field(default_factory=list)
    preserved: list[Task] = field(default_factory=list)
    overridden: list[Override] = field(default_factory=list)
    orphaned: list[Task] = field(default_factory=list)
    touched: list[Task] = field(default_factory=list)
    """Preserved tasks that must be written all the same: found interrupted, or ahead of the clock."""

    @property
    def fresh(self) -> set[str]:
        """The names of tasks that are new, or registered anew."""
        return {task.name for task in self.added} | {override.after.name for override in self.overridden}

    @property
    def rewritten(self) -> list[Task]:
        """The tasks whose row must be replaced."""
        return [*(override.after for override in self.overridden), *self.touched]


def reconciled(
    registrations: Iterable[Registration],
    known: Mapping[str, Task],
    *,
    live: Mapping[str, Instant],
    now_us: Instant,
    minute_us: Instant,
    schedule_of: Callable[[str], Schedule],
    scheduler_id: str,
    is_restart: bool,
    known_better: Callable[[Task], Task] = lambda task: task,
    departed: Mapping[str, int] | None = None,
    last_id: int = 0,
) -> Reconciliation:
    """What *registrations* make of the *known* tasks.

    *live* names the runs in flight in this process and when they began; a task that was running and is
    not live was interrupted by a crash. A live run outlasts the removal of its task, so a task that comes
    back finds it still running. With *is_restart* the known tasks come from a store, perhaps written under a
    clock that was far ahead; *known_better* says what this process knows of a task that the store does not.
    *departed* has the ids under which tasks of live runs come back, and no other new id is *last_id* or less.
    """
    outcome = Reconciliation()
    departed = departed or {}
    next_id = max((last_id, *(task.id for task in known.values()), *departed.values())) + 1
    names = set()
    for name, expression, _, retry_delay_us in registrations:
        names.add(name)
        before = known.get(name)
        if before is not None:
            before = known_better(before)
            before = before if name in live else cut_off(before)
        if (
            before is not None
            and before.schedule.text == expression.text
            and before.retry_delay_us == retry_delay_us
        ):
            is_ahead = is_restart and is_ahead_of_clock(before, now_us)
            task = moved_back(before, now_us) if is_ahead else before
            outcome.preserved.append(task)
            if task is not known[name]:
                outcome.touched.append(task)
        else:
            task = registered(
                id=departed.get(name, next_id) if before is None else before.id,
                name=name,
                schedule=schedule_of(expression.text),
                retry_delay_us=retry_delay_us,
                now_us=now_us,
                minute_us=minute_us,
                scheduler_id=scheduler_id,
                running_since_us=live.get(name),
                interrupted=before is not None and before.interrupted,
                origin_us=live.get(name) if before is None else before.origin_us,
            )
            if before is None:
                next_id += task.id == next_id
                outcome.added.append(task)
            else:
                outcome.overridden.append(Override(before, task))
        outcome.tasks.append(task)
    outcome.orphaned.extend(task for name, task in known.items() if name not in names)
    return outcome
