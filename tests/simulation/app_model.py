"""What an app must do, worked out instant by instant by a model that keeps one plain object for each task.

The model shares no code with core, engine or stores. Cron texts it reads with the checker's calendar. It is
exact: it says which run begins when, why, as which attempt and for which due. So it can only follow lives
whose crashes come when nothing is being written; `tests/simulation/director.py` has the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from duly.verify.dues import NEVER_US, Dues, face_at, minute_start_us

SECOND_US = 1_000_000
_SKIP_US = 60 * SECOND_US
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class AppTask:
    """One declared task, entry or kind. Lengths are microseconds."""

    name: str
    kind: Literal["cron", "last", "every", "after", "at"]
    cron: str = ""
    """Of a cron text; of a last day its time, as a cron text for every day."""
    length_us: int = 0
    """Of `every` the period, of `after` the delay, of `at` the instant."""
    zone: str | None = None
    spread_us: int = 0
    delay_us: int = 60 * SECOND_US
    factor: float = 1
    longest_us: int | None = None
    attempts: int | None = None
    catch_up: Literal["once", "skip"] | int = "once"
    enabled: bool = True
    timeout_us: int | None = None
    limit: str | None = None
    entry_of: str | None = None
    """Of an entry its kind."""
    is_on: bool = True
    """Of an entry, whether it is enabled if its kind is."""
    is_waiting: bool = False
    """Of an entry, that its kind is not declared."""


class Called(NamedTuple):
    """A run, as its body sees it."""

    at_us: int
    task: str
    cause: str
    attempt: int
    due_us: int


class Ending(NamedTuple):
    """How one run goes."""

    lasts_us: int
    is_ok: bool


class Shown(NamedTuple):
    """A task as `App.tasks` shows it."""

    state: str
    last_start_us: int | None
    last_success_us: int | None
    last_failure_us: int | None
    next_us: int | None


@dataclass
class _Run:
    task: str
    ends_us: int
    is_ok: bool
    limit: str | None
    is_cancelled: bool = False
    is_superseded: bool = False


@dataclass
class _Known:
    """A task as it is remembered."""

    item: AppTask
    text: str
    dues: "_Schedule"
    since_us: int
    answered_us: int
    last_start_us: int | None = None
    last_success_us: int | None = None
    last_failure_us: int | None = None
    retry_us: int | None = None
    retries: int = 0
    is_paused: bool = False
    is_interrupted: bool = False
    requested_us: int | None = None
    place: tuple[int, int] | None = None
    """Among those that wait for room in a limit."""

    @property
    def due_us(self) -> int:
        """The first due that no start has answered."""
        return self.dues.after(self.answered_us, self.since_us, self._ended_us)

    @property
    def _ended_us(self) -> int:
        ends = (self.since_us, self.last_success_us, self.last_failure_us)
        return max(end for end in ends if end is not None)

    def latest_due_us(self, now_us: int) -> int:
        """The latest due up to now of those that no start has answered."""
        due_us = self.due_us
        while (next_us := self.dues.after(due_us, self.since_us, self._ended_us)) <= now_us:
            due_us = next_us
        return due_us

    def cause(self, now_us: int) -> str | None:
        """Why it is to start now, or None."""
        if self.is_paused or self.item.is_waiting:
            return None
        if self.is_interrupted:
            return "interrupted"
        if self.item.enabled and (due_us := self.due_us) <= now_us:
            return "startup" if due_us <= self.since_us else "cron"
        if self.requested_us is not None:
            return "manual"
        return "retry" if self.retry_us is not None and self.retry_us <= now_us else None

    def next_us(self) -> int:
        """When it is to be looked at next, if it is not running."""
        if self.is_paused or self.item.is_waiting:
            return NEVER_US
        if self.is_interrupted or self.requested_us is not None:
            return 0
        due_us = self.due_us if self.item.enabled else NEVER_US
        return due_us if self.retry_us is None else min(due_us, self.retry_us)

    def drop_old_dues(self, now_us: int) -> None:
        """Answer the dues that are too old to be made up for."""
        window = self.item.catch_up
        if window == "once" or self.is_paused or self.is_interrupted or not self.item.enabled:
            return
        if self.item.kind == "after":  # no other due would come after this one
            return
        window_us = _SKIP_US if window == "skip" else window
        if self.due_us <= now_us and now_us - self.latest_due_us(now_us) > window_us:
            self.answered_us = now_us

    def retry_after(self, failed_us: int) -> int | None:
        item = self.item
        if item.attempts is not None and self.retries + 1 >= item.attempts:
            return None
        delay_us = int(item.delay_us * item.factor ** min(self.retries, 64))
        return failed_us + (delay_us if item.longest_us is None else min(delay_us, item.longest_us))


class _Schedule:
    """When a task is due."""

    def __init__(self, item: AppTask, offset_us: int, zone: str) -> None:
        self._item = item
        self._offset_us = offset_us
        self._zone = ZoneInfo(item.zone or zone)
        self._dues = Dues(item.cron, self._zone) if item.cron else None
        self.is_by_minute = self._dues is not None

    def after(self, at_us: int, since_us: int, ended_us: int) -> int:
        """The first due later than *at_us* of a task that is known since, and whose last run ended then."""
        length_us, at_us = self._item.length_us, at_us - self._offset_us
        match self._item.kind:
            case "every":
                due_us = since_us + ((at_us - since_us) // length_us + 1) * length_us
            case "after":
                due_us = ended_us + length_us if ended_us + length_us > at_us else NEVER_US
            case "at":
                due_us = length_us if length_us > at_us else NEVER_US
            case _:
                due_us = self._civil_after(at_us)
        return due_us if due_us >= NEVER_US else due_us + self._offset_us

    def _civil_after(self, at_us: int) -> int:
        assert self._dues is not None
        due_us = self._dues.after(at_us)
        while (
            self._item.kind == "last" and (face_at(due_us, self._zone).replace(tzinfo=None) + _DAY).day != 1
        ):
            due_us = self._dues.after(due_us)
        return due_us


@dataclass
class AppModel:
    """An app and the time around it."""

    now_us: int
    zone: str
    endings: Callable[[str, int], Ending]
    """How the run of a task with this number goes."""
    limits: Mapping[str, int] = field(default_factory=dict)
    calls: list[Called] = field(default_factory=list)
    is_up: bool = False
    _known: dict[str, _Known] = field(default_factory=dict)
    _runs: dict[str, _Run] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    _kinds: dict[str, AppTask] = field(default_factory=dict)
    _places: Iterator[int] = field(default_factory=count)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self._runs

    @property
    def names(self) -> KeysView[str]:
        """The tasks that there are."""
        return self._known.keys()

    def start(
        self, items: Sequence[AppTask], offsets_us: dict[str, int], kinds: Sequence[AppTask] = ()
    ) -> None:
        """The app starts with these tasks and kinds; other tasks are forgotten, but for entries."""
        self._kinds = {kind.name: kind for kind in kinds}
        known = {}
        for item in items:
            before = self._known[item.name].item if item.name in self._known else item
            is_same = before.entry_of is None and before.delay_us == item.delay_us
            known[item.name] = self._put(item, offsets_us[item.name], is_same=is_same)
        for name, task in self._known.items():
            task.place = None
            if name not in known and task.item.entry_of is not None:
                task.item = self._of_kind(task.item, task.item.delay_us)
                known[name] = task
        self._known, self.is_up = known, True
        self._settle()

    def add(self, entry: AppTask) -> None:
        """An entry is added, or changed. With the same schedule it keeps its state."""
        before = self._known.get(entry.name)
        delay_us = before.item.delay_us if before is not None else 0
        task = self._put(entry, 0, is_same=True)
        task.item = self._of_kind(entry, delay_us if task is before else 0)
        self._known[entry.name] = task
        if task is not before:
            self._supersede(entry.name)
        self._settle()

    def remove(self, name: str) -> None:
        """An entry is removed. Its run goes on, and says nothing of what is added later."""
        del self._known[name]
        self._supersede(name)

    def _supersede(self, name: str) -> None:
        if (run := self._runs.get(name)) is not None:
            run.is_superseded = True

    def _of_kind(self, entry: AppTask, delay_us: int) -> AppTask:
        """An entry with the options of its kind; *delay_us* counts as long as that is not declared."""
        blank = AppTask(entry.name, entry.kind, delay_us=delay_us)
        kind = self._kinds.get(entry.entry_of or "", blank)
        return replace(
            kind,
            name=entry.name,
            kind=entry.kind,
            cron=entry.cron,
            length_us=entry.length_us,
            zone=entry.zone,
            spread_us=0,
            entry_of=entry.entry_of,
            enabled=entry.is_on or kind is blank,
            is_on=entry.is_on,
            is_waiting=kind is blank,
        )

    def _put(self, item: AppTask, offset_us: int, *, is_same: bool) -> _Known:
        """What is known of a task that is declared or added: started over if its schedule is another."""
        text = repr((item.kind, item.cron, item.length_us, item.zone, offset_us))
        before = self._known.get(item.name)
        if before is not None and is_same and before.text == text:
            before.item = item
            return before
        dues = _Schedule(item, offset_us, self.zone)
        minute_us = minute_start_us(self.now_us, ZoneInfo(self.zone))
        answered_us = minute_us - 1 if dues.is_by_minute else self.now_us
        task = _Known(item, text, dues, self.now_us, answered_us)
        if before is not None:
            task.is_paused, task.requested_us = before.is_paused, before.requested_us
            task.is_interrupted = before.is_interrupted
        return task

    def crash(self) -> None:
        """The process dies. What it was running is to start again."""
        for name in self._runs.keys() & self._known.keys():
            self._known[name].is_interrupted = True
        self._runs.clear()
        self.is_up = False

    def stop(self) -> int:
        """The app stops: nothing starts any more. Until when its runs last."""
        self.is_up = False
        return max((run.ends_us for run in self._runs.values()), default=self.now_us)

    def pause(self, name: str, *, is_paused: bool) -> None:
        self._known[name].is_paused = is_paused
        self._settle()

    def request(self, name: str) -> None:
        task = self._known[name]
        task.requested_us = self.now_us if task.requested_us is None else task.requested_us
        self._settle()

    def cancel(self, name: str) -> bool:
        """The run of a task ends now, and is not tried again. Whether there is one."""
        run = self._runs.get(name)
        if run is not None:
            run.ends_us, run.is_ok, run.is_cancelled = self.now_us, False, True
            self._settle()
        return run is not None

    def step(self, by_us: int) -> None:
        """The clock is set forward."""
        assert self.is_idle
        self.now_us += by_us
        self._settle()

    def advance_to(self, at_us: int) -> None:
        """Let time pass."""
        while (next_us := self._next_us()) <= at_us:
            self.now_us = max(next_us, self.now_us)
            self._settle()
        self.now_us = at_us

    def shown(self) -> dict[str, Shown]:
        """The tasks, as the app must show them."""
        return {name: self._shown(task) for name, task in self._known.items()}

    def _shown(self, task: _Known) -> Shown:
        state = "waiting" if task.retry_us is None else "retrying"
        if not task.item.enabled:
            state = "disabled"
        if task.is_paused:
            state = "paused"
        if task.item.is_waiting:
            state = "waiting for its kind"
        if task.item.name in self._runs:
            state = "running"
        due_us = task.due_us if task.item.enabled else NEVER_US  # what becomes of its dues is not yet decided
        next_us = min(due_us, NEVER_US if task.retry_us is None else task.retry_us)
        ends = task.last_success_us, task.last_failure_us
        return Shown(state, task.last_start_us, *ends, None if next_us == NEVER_US else next_us)

    def _next_us(self) -> int:
        ends = [run.ends_us for run in self._runs.values()]
        idle = [
            task
            for name, task in self._known.items()
            if name not in self._runs and self.is_up and task.place is None
        ]
        return min([*ends, *(task.next_us() for task in idle)], default=NEVER_US)

    def _settle(self) -> None:
        """Do all that is to be done at this instant."""
        is_settled = False
        while not is_settled:
            over = [run for run in self._runs.values() if run.ends_us <= self.now_us]
            for run in over:
                self._end(self._runs.pop(run.task))
            is_settled = not over
            for task in self._idle() if self.is_up else ():
                if task.place is None:
                    task.drop_old_dues(self.now_us)
                if (cause := task.cause(self.now_us)) is None:
                    continue
                if self._has_room(task.item.limit):
                    self._begin(task, cause)
                    is_settled = False
                elif task.place is None:
                    task.place = task.next_us(), next(self._places)

    def _idle(self) -> list[_Known]:
        """Those that do not run: first those that wait for room, the oldest first."""
        idle = [task for name, task in self._known.items() if name not in self._runs]
        return sorted(idle, key=lambda task: (task.place is None, task.place or (task.next_us(), 0)))

    def _has_room(self, limit: str | None) -> bool:
        running = sum(run.limit == limit for run in self._runs.values())
        return limit is None or running < self.limits[limit]

    def _begin(self, task: _Known, cause: str) -> None:
        now_us, item = self.now_us, task.item
        due_us = now_us
        if cause in {"startup", "cron"}:
            due_us = task.latest_due_us(now_us)
        elif cause == "manual":
            due_us = task.requested_us or now_us
        elif cause == "retry":
            due_us = task.retry_us or now_us
        task.retries = task.retries + 1 if cause == "retry" else 0
        self.calls.append(Called(now_us, item.name, cause, task.retries + 1, due_us))
        task.answered_us = task.last_start_us = now_us
        task.retry_us = task.requested_us = task.place = None
        task.is_interrupted = False
        ending = self.endings(item.name, self._numbers[item.name])
        self._numbers[item.name] += 1
        if item.timeout_us is not None and ending.lasts_us > item.timeout_us:
            ending = Ending(item.timeout_us, is_ok=False)
        self._runs[item.name] = _Run(item.name, now_us + ending.lasts_us, ending.is_ok, item.limit)

    def _end(self, run: _Run) -> None:
        if run.is_superseded:
            return
        task = self._known[run.task]
        if run.is_ok:
            task.last_success_us, task.retries = self.now_us, 0
        else:
            task.last_failure_us = self.now_us
            task.retry_us = None if run.is_cancelled else task.retry_after(self.now_us)
