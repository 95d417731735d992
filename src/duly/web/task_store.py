"""The tasks of an embedded scheduler, read from its store, with their runs. Read-only.

The runs of an `App` are in its store. Those of a `Scheduler` are in its trace, if there is one.

The store is read from outside, without its hold, while its scheduler may be at work; a look costs it nothing.
While a page is open, or after a request of the API or a probe, the files are checked once a second, and
`StoreChanged` is published when they changed. Each look reads what was added to the trace since the last; a
trace that was replaced or cut is read from its beginning, with a new judge. What is kept of it depends on the
number of tasks, not on how long they have run.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import msgspec

from duly import __version__
from duly.clock import Clock
from duly.cluster.table import Nodes
from duly.config.schema import Config
from duly.core.record import COLUMNS, Record, task_from
from duly.core.task import Task
from duly.core.timetable import Timetables
from duly.core.timing import parts_of
from duly.daemon import views
from duly.daemon.backend import Exposition, PropertyVerdict
from duly.errors import StoreError, TaskTryDeserializeError
from duly.events import Announcer
from duly.instant import SECOND_US, Instant, instant_of
from duly.store.history import (
    History,
    HistoryReader,
    RemoteRun,
    Result,
    RunRow,
    Span,
    WantedRuns,
    WantedTaskRuns,
)
from duly.store.memory import MemoryDatabase
from duly.store.past import Past
from duly.store.reading import read
from duly.verify.judge import Judge
from duly.verify.properties import PROPERTIES
from duly.verify.trace import ClockStep, Crash, Fault, Position, RunEnd, RunStart, Trace, TraceError, micros
from duly.web import formatting
from duly.web.live import Live
from duly.web.models import task_entry
from duly.web.source import Alarm

T = TypeVar("T")

_LOOK_S = 1.0
_LONGEST_LINE = 2**20
_KEPT_PER_TASK = 60
_KEPT = 5_000
_LATEST = WantedTaskRuns(limit=_KEPT, with_output=False)

DueAnswers = Callable[[Task, Instant, datetime | None], Sequence[tuple[str, str]]]
"""What became of a task's latest dues, newest first, or of one minute: a word and a sentence for each."""


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """What the store and the trace say at one moment."""

    tasks: Sequence[Task] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Why the row of a task cannot be used, by its name."""
    faults: tuple[str, ...] = ()
    runs: Mapping[str, Sequence[RunRow]] = field(default_factory=dict)
    """Of each task the latest runs, newest first; from a trace, or the one that its row remembers."""
    latest: Sequence[RunRow] = ()
    """Of all tasks, newest first."""
    verdicts: Sequence[PropertyVerdict] | None = None
    has_trace: bool = False
    has_history: bool = False
    """Whether the store has the runs of its tasks (`TaskStore.runs_of`)."""
    is_cut: bool = False
    """Whether there were runs before the oldest of `latest`, and nobody here knows them."""
    pasts: Mapping[str, Past] = field(default_factory=dict)
    """Of tasks with a history: the streak of failures, and how long runs took."""
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def task(self, name: str) -> Task | None:
        return next((task for task in self.tasks if task.name == name), None)

    def reasons(self, now_us: Instant) -> list[str]:
        """Why not all is well, a sentence for each."""
        return [alarm.message for alarm in self.alarms(now_us) if alarm.tone == "bad"]

    def alarms(self, now_us: Instant) -> Iterator[Alarm]:
        yield from map(Alarm, self.faults)
        for name, reason in self.damaged.items():
            yield Alarm(f"the row of {name} cannot be used: {reason}", formatting.address("tasks", name))
        for one in self.verdicts or ():
            if one.verdict == "violated":
                yield Alarm(f"{one.property} is violated: {one.words}", "/verification")
        entries = [task_entry(task, now_us) for task in self.tasks]
        for entry in entries:
            if entry.kind == "failing":
                yield Alarm(self.failing_text(entry.id), formatting.address("tasks", entry.id), entry.id)
        # What a program disables is not in its store. If others have started since, the scheduler is at work.
        newest_us = max((entry.last_us or 0 for entry in entries), default=0)
        overdue = [entry for entry in entries if entry.kind == "overdue"]
        if late := [entry.id for entry in overdue if entry.task.due_us >= newest_us]:
            message = f"{_some(late)} should have started by now: is the scheduler running?"
            yield Alarm(message, "/tasks?only=overdue")
        if passed := [entry.id for entry in overdue if entry.task.due_us < newest_us]:
            message = f"{_some(passed)} did not start when due, but others did: disabled, or at a limit?"
            yield Alarm(message, "/tasks?only=overdue", tone="warn")

    def failing_text(self, name: str) -> str:
        past = self.pasts.get(name, Past())
        why = f": {past.why}" if past.why else ""
        if past.failed < 2:
            return f"the last run of {name} failed{why}"
        never = "" if past.last_success_us else "; none that is known succeeded"
        return f"the last {past.failed:,} runs of {name} failed{why}{never}"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


class TaskStore:
    """A store, and what is observed of its scheduler. `watch` keeps it up to date for as long as it runs."""

    metrics: Exposition | None = None
    unwatched = ""
    is_shared = False
    """Whether nodes on several machines may have the tasks."""

    def __init__(
        self,
        store: Path,
        live: Live,
        *,
        zone: tzinfo,
        clock: Clock,
        trace: Path | None = None,
        answers: DueAnswers = lambda _task, _now_us, _at: (),
    ) -> None:
        self.live = live
        self.zone = zone
        self.answers = answers
        self.snapshot = TaskSnapshot()
        self.config = Config(store)
        self.history = History(MemoryDatabase(), clock, Announcer([], clock.now))
        self._is_wanted = False
        """Whether somebody asked how it is since it was last looked at."""
        self._store = store
        self._clock = clock
        self._schedules = Timetables(zone)
        self._trace = None if trace is None else GrowingTrace(trace)
        self._stamp: tuple[object, ...] | None = None
        # Held by a look and by `close`: a trace is read by one thread at a time.
        self._turn = asyncio.Lock()
        self._reasons: tuple[TaskSnapshot | None, Instant, tuple[str, ...]] = (None, 0, ())

    @property
    def now_us(self) -> Instant:
        return instant_of(self._clock.now())

    @property
    def absence(self) -> str:
        """Why nothing can run now, if that is known."""
        return ""

    # --- what operations read (ReadBackend): no services, no timers, no output ---

    def daemon_status(self) -> views.DaemonStatus:
        """A store does not say whether its scheduler is at work."""
        now_us = self.now_us
        return views.DaemonStatus(
            source="store",
            now_us=now_us,
            zone=self.zone,
            version=__version__,
            state="unknown",
            is_timer_switch_on=False,
            faults=self._faults(now_us),
            store=str(self.config.path),
        )

    def _faults(self, now_us: Instant) -> tuple[str, ...]:
        """Why not all is well. With thousands of tasks that is slow, so it is kept for a second."""
        self._is_wanted = True
        of, at_us, _ = self._reasons
        if of is not self.snapshot or not 0 <= now_us - at_us < SECOND_US:
            self._reasons = (self.snapshot, now_us, tuple(self.snapshot.reasons(now_us)))
        return self._reasons[2]

    def services(self) -> Sequence[views.ServiceSnapshot]:
        return ()

    def timers(self) -> None:
        return None

    async def refresh(self) -> None:
        return

    async def past_runs(self, _wanted: WantedRuns, /) -> Sequence[RemoteRun]:
        return ()

    async def past_buckets(self, _timers: Sequence[str], _span: Span, /) -> None:
        return

    def output(self, _run_id: int, /) -> None:
        return None

    async def ended(self, _run_id: int, /) -> None:
        return

    # --- what is observed ---

    def verification(self) -> Sequence[PropertyVerdict] | None:
        """What the trace says of each property; None without one."""
        return self.snapshot.verdicts

    def unready(self) -> str | None:
        """Why what is shown may be old."""
        self._is_wanted = True
        return self.snapshot.faults[0] if self.snapshot.faults else None

    async def ask(self, query: Callable[[HistoryReader], T]) -> T:
        """What *query* finds in the store. Raises StoreError."""
        return await asyncio.to_thread(read, self._store, query)

    async def nodes(self) -> Nodes | None:
        """None: a file belongs to one scheduler."""
        return None

    def runs_of(self, snapshot: TaskSnapshot, name: str) -> Sequence[RunRow]:
        """The latest runs of a task, newest first. Blocks."""
        if snapshot.has_history:
            wanted = WantedTaskRuns(name, limit=_KEPT_PER_TASK)
            with suppress(StoreError):  # the next look finds it too, and says so
                return [
                    *(row for row in snapshot.latest if row.service == name and row.ended_us is None),
                    *read(self._store, lambda reader: reader.task_runs(wanted)),
                ]
        return snapshot.runs.get(name, ())

    # --- looking ---

    async def watch(self) -> None:
        """Look at the files, now and while somebody looks at us, until cancelled."""
        while True:
            await self.watch_while_wanted()

    async def watch_while_wanted(self) -> None:
        """Look once, and then once a second for as long as somebody looks at us."""
        self._is_wanted = self._is_wanted or self._stamp is None
        while True:
            if self.live.clients or self._is_wanted:
                self._is_wanted = False
                await self.look()
            await asyncio.sleep(_LOOK_S)  # noqa: TID251 (files change by the host's time)
            if not self.live.clients and not self._is_wanted:
                return

    async def look(self) -> None:
        """Read the files if they have changed, and tell that they have."""
        # One at a time: a trace is not to be read by two threads.
        async with self._turn:
            # Taken before the files are read: what is written meanwhile is found by the next look.
            stamp = await asyncio.to_thread(self._stamps)
            if stamp == self._stamp:
                return
            self.snapshot = await asyncio.to_thread(self._read)
            self._stamp = stamp
        self._publish_change()

    def _publish_change(self) -> None:
        self.live.publish("StoreChanged", self._clock.now().isoformat(), {})

    async def run(self, number: int) -> RunRow | None:
        """One run with its output, of those that are known without asking the store."""
        return next((row for row in self.snapshot.latest if row.id == number), None)

    async def close(self) -> None:
        async with self._turn:
            # A look may be reading it in a thread: that one ends first.
            if self._trace is not None:
                self._trace.close()

    def _stamps(self) -> tuple[object, ...]:
        files = [self._store, Path(f"{self._store}-wal")]
        files += [] if self._trace is None else [self._trace.path]
        return tuple(_stamp(file) for file in files)

    def _read(self) -> TaskSnapshot:
        faults, tasks, damaged = [], self.snapshot.tasks, self.snapshot.damaged
        history: list[RunRow] = []
        try:
            records, history = read(self._store, lambda reader: (reader.tasks(), reader.task_runs(_LATEST)))
            tasks, damaged = self._tasks(records)
        except StoreError as error:
            faults.append(error.message)
        trace = self._trace
        if trace is None:
            found = snapshot_of(tasks, history)
            return replace(found, damaged=damaged, faults=tuple(faults), has_history=bool(history))
        trace.look()
        faults += [trace.fault] if trace.fault is not None else []
        runs = {name: list(reversed(rows)) for name, rows in trace.of_task.items()}
        latest = list(reversed(trace.latest))
        return TaskSnapshot(
            *(tasks, damaged, tuple(faults), runs, latest, trace.verdicts()),
            has_trace=True,
            has_history=bool(history),
            is_cut=not history and len(trace.latest) == _KEPT,
            pasts=pasts_of(history or reversed(trace.latest)),
        )

    def _tasks(self, records: Sequence[Record]) -> tuple[list[Task], dict[str, str]]:
        tasks, damaged = [], {}
        for record in records:
            try:
                tasks.append(task_from(record, self._schedules.of))
            except TaskTryDeserializeError as error:
                damaged[str(record[COLUMNS.index("name")])] = error.message
        self._schedules.keep({task.schedule.text for task in tasks})
        return tasks, damaged


def zone_of_task(task: Task, zone: tzinfo) -> tzinfo:
    """The zone of its schedule; that of the scheduler if it has none of its own."""
    return parts_of(task.schedule.text).zone or zone


def snapshot_of(tasks: Sequence[Task], history: Sequence[RunRow]) -> TaskSnapshot:
    """The tasks with their runs, which come newest first; without any, with what each task remembers."""
    runs = {task.name: [row] for task in tasks if (row := last_run(task)) is not None}
    rows = [row for of_task in runs.values() for row in of_task]
    if history:
        rows = [*history, *(row for row in rows if row.ended_us is None)]
    latest = sorted(rows, key=lambda row: -row.started_us)
    return TaskSnapshot(tasks, runs=runs, latest=latest, pasts=pasts_of(history))


def pasts_of(rows: Iterable[RunRow]) -> dict[str, Past]:
    """What runs that come newest first say of their tasks."""
    pasts: dict[str, Past] = {}
    for row in reversed([*rows]):
        before = pasts.get(row.service, Past())
        past = before.after(row)
        # Its own words or none: that it failed is said anyway.
        is_failure = past.failed > before.failed
        pasts[row.service] = msgspec.structs.replace(past, why=row.message) if is_failure else past
    return pasts


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def last_run(task: Task) -> RunRow | None:
    """The latest run of a task, as far as a store remembers it."""
    if task.last_attempt_us is None:
        return None
    began_us, ended_us, result = task.last_attempt_us, None, None
    if task.running_since_us is None:
        result = "interrupted" if task.interrupted else "unknown"
        for word, at_us in ((Result.SUCCESS, task.last_success_us), (Result.FAILURE, task.last_failure_us)):
            if at_us is not None and at_us >= began_us:
                ended_us, result = at_us, word
        ended_us = began_us if ended_us is None else ended_us
    return RunRow(
        id=-task.id, service=task.name, reason="", started_us=began_us, ended_us=ended_us, result=result
    )


# --- the trace ---


class _WholeLines:
    """The whole lines of a file, as far as there are any now; asked again, those that came meanwhile."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        at = self._file.tell()
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
            self._file.seek(at)  # its end is yet to be written
            raise StopIteration
        return line


class GrowingTrace:
    """A trace that may still grow: the runs in it, and what the judge says of them.

    Not to be looked at by two threads at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: str | None = None
        """Why it cannot be read."""
        self._file: BufferedReader | None = None
        self._place: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._trace: Trace | None = None
        self._judge: Judge | None = None
        self._number = 0
        self._open: dict[str, RunRow] = {}
        self._begun_us: dict[str, Instant] = {}
        """When those began, as the clock would have had it that it shows now."""
        self.of_task: dict[str, deque[RunRow]] = {}
        self.latest: deque[RunRow] = deque(maxlen=_KEPT)

    def look(self) -> None:
        try:
            self._follow()
            self.fault = None
        except TraceError as error:
            self.fault = f"the trace {self.path} cannot be used: {error}"
        except OSError as error:
            self.fault = f"the trace {self.path} cannot be read: {error.strerror}"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _follow(self) -> None:
        status = self.path.stat()
        place = (status.st_dev, status.st_ino)
        if self._file is None or place != self._place or status.st_size < self._file.tell():
            self.close()
            self._begin()
            self._file, self._place = self.path.open("rb"), place
        if self._trace is None or self._judge is None:
            if os.fstat(self._file.fileno()).st_size == 0:
                return  # its scheduler has only just begun
            self._file.seek(0)
            self._trace = Trace(_WholeLines(self._file))
            self._judge = Judge(self._trace.header)
        for item in self._trace:
            self._judge.take(item)
            self._take(item)

    def _take(self, item: Position | Fault) -> None:
        if isinstance(item, Fault):
            return
        event = item.event
        if isinstance(event, RunStart):
            self._number += 1
            row = RunRow(id=self._number, service=event.id, reason="", started_us=item.at_us)
            self._open[event.id], self._begun_us[event.id] = row, item.at_us
            self.of_task.setdefault(event.id, deque(maxlen=_KEPT_PER_TASK)).append(row)
            self.latest.append(row)
        elif isinstance(event, RunEnd):
            self._end(event.id, item.at_us, Result.SUCCESS if event.ok else Result.FAILURE)
        elif isinstance(event, ClockStep):
            by_us = item.at_us - micros(event.origin)
            self._begun_us = {name: at_us + by_us for name, at_us in self._begun_us.items()}
        elif isinstance(event, Crash):
            for name in list(self._open):
                self._end(name, item.at_us, Result.INTERRUPTED)

    def _end(self, name: str, at_us: Instant, result: str) -> None:
        before, begun_us = self._open.pop(name, None), self._begun_us.pop(name, at_us)
        if before is None:
            return
        row = msgspec.structs.replace(
            before, ended_us=at_us, lasted_us=max(at_us - begun_us, 0), result=result
        )
        for rows in (self.of_task[name], self.latest):
            for index in range(len(rows) - 1, -1, -1):
                if rows[index].id == row.id:
                    rows[index] = row
                    break

    def verdicts(self) -> list[PropertyVerdict]:
        """What the judge says of each property, so far."""
        if self._judge is None:
            return []
        outcome = self._judge.finish()
        return [
            PropertyVerdict(name, str(outcome.verdict(name)), outcome.tallies[name].violated, words)
            for name, words in PROPERTIES.items()
        ]
