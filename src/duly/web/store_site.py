"""The store of an embedded scheduler as a site: its tasks, and if there is a trace, their runs. Read-only.

The store is read from outside, without its hold, while its scheduler may be at work; a look costs it nothing.
While somebody has a page open, or asks by the API or a probe, the files are looked at once a second, and an
event is told when they changed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import NoReturn

from duly import __version__
from duly.clock import Clock
from duly.config.schema import Config
from duly.core.record import COLUMNS, task_from
from duly.core.schedule import Schedules
from duly.core.task import Task
from duly.daemon import views
from duly.daemon.backend import Begun, Output, Reloaded
from duly.daemon.protocol import OperationError
from duly.errors import StoreError, TaskTryDeserializeError
from duly.instant import MINUTE_US, NEVER_US, SECOND_US, Instant, instant_of
from duly.store.history import MemoryRows, RunRow
from duly.store.reading import records_in
from duly.web.live import Live
from duly.web.site import READ_ONLY, Exposition, Verdict
from duly.web.store_trace import Following

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the store and the trace say at one moment."""

    tasks: Sequence[Task] = ()
    damaged: Sequence[tuple[str, str]] = ()
    """Rows that cannot be used: the name, and why."""
    faults: tuple[str, ...] = ()
    runs: Mapping[str, Sequence[RunRow]] = field(default_factory=dict)
    """Of each task the latest runs, newest first; from a trace, or the one that the store remembers."""
    latest: Sequence[RunRow] = ()
    """Of all tasks, newest first."""
    verdicts: Sequence[Verdict] | None = None
    has_trace: bool = False


Answering = Callable[[Task, Instant], Sequence[tuple[str, str]]]
"""What became of a task's latest dues, newest first: a word and a sentence for each."""


class StoreBackend:
    """What the API asks: there is no daemon here, so no services, no timers, and nothing to change."""

    def __init__(self, path: Path, zone: tzinfo, clock: Clock, site: "StoreSite") -> None:
        self.config = Config(path)
        self.history = MemoryRows()
        self._zone = zone
        self._clock = clock
        self._site = site
        self._told: tuple[Snapshot | None, Instant, tuple[str, ...]] = (None, 0, ())

    def standing(self) -> views.Standing:
        """Whether its scheduler is at work, a store does not say."""
        now_us = instant_of(self._clock.now())
        return views.Standing(
            source="store",
            now_us=now_us,
            zone=self._zone,
            version=__version__,
            state="unknown",
            is_gate_open=False,
            faults=self._faults(now_us),
            store=str(self.config.path),
        )

    def _faults(self, now_us: Instant) -> tuple[str, ...]:
        """Why not all is well; for thousands of tasks not worked out more than once a second."""
        self._site.is_wanted = True
        snapshot = self._site.snapshot
        of, at_us, _ = self._told
        if of is not snapshot or not 0 <= now_us - at_us < SECOND_US:
            self._told = (snapshot, now_us, tuple(reasons_of(snapshot, now_us)))
        return self._told[2]

    def services(self) -> Sequence[views.ServiceReading]:
        """None."""
        return []

    def timers(self) -> None:
        """None."""

    def output(self, _run_id: int, /) -> Output | None:
        """Callbacks have none."""
        return None

    async def ended(self, _run_id: int, /) -> None:
        """At once."""

    async def start_service(self, _service_id: str, /) -> int:
        """Refused."""
        _refuse()

    async def stop_service(self, _service_id: str, /) -> None:
        """Refused."""
        _refuse()

    async def trigger(self, _timer_id: str, /) -> Begun:
        """Refused."""
        _refuse()

    async def switch_timer(self, _timer_id: str, /, *, enabled: bool) -> None:  # noqa: ARG002 (refused)
        """Refused."""
        _refuse()

    async def switch_gate(self, *, is_open: bool) -> None:  # noqa: ARG002 (refused)
        """Refused."""
        _refuse()

    async def reload(self) -> Reloaded:
        """Refused."""
        _refuse()

    def shut_down(self) -> None:
        """Refused."""
        _refuse()

    def note_action(self, action: str, id: str | None, who: str, /) -> None:  # noqa: A002 (the word for it)
        """Nothing is done here that could be noted."""


def _refuse() -> NoReturn:
    message = "this is a store of an embedded scheduler: it can be looked at, and not be changed from here"
    raise OperationError(READ_ONLY, message)


class StoreSite:
    """The site. `watch` keeps it up to date for as long as it runs."""

    is_read_only = True
    metrics: Exposition | None = None

    def __init__(
        self,
        store: Path,
        live: Live,
        *,
        zone: tzinfo,
        clock: Clock,
        trace: Path | None = None,
        answers: Answering = lambda _task, _now_us: (),
    ) -> None:
        self.name = store.name
        self.unwatched = ""
        self.live = live
        self.zone = zone
        self.answers = answers
        self.snapshot = Snapshot()
        self.is_wanted = False
        """Whether somebody asked how it is since it was last looked at."""
        self._store = store
        self._clock = clock
        self._schedules = Schedules(zone)
        self._following = None if trace is None else Following(trace)
        self._stamp: tuple[object, ...] | None = None
        self._turn = asyncio.Lock()
        self.backend = StoreBackend(store, zone, clock, self)

    def verification(self) -> Sequence[Verdict] | None:
        """What the trace says of each property; None without one."""
        return self.snapshot.verdicts

    def unready(self) -> str | None:
        """Why what is shown may be old."""
        self.is_wanted = True
        return self.snapshot.faults[0] if self.snapshot.faults else None

    async def watch(self) -> None:
        """Look at the files, now and while somebody looks at us, until cancelled."""
        while True:
            if self.live.clients or self.is_wanted or self._stamp is None:
                self.is_wanted = False
                await self.look()
            await asyncio.sleep(_LOOK_S)  # noqa: TID251 (files change by the host's time)

    async def look(self) -> None:
        """Read the files if they have changed, and tell that they have."""
        async with self._turn:
            stamp = await asyncio.to_thread(self._stamped)
            if stamp == self._stamp:
                return
            self.snapshot = await asyncio.to_thread(self._read)
            self._stamp = stamp
        self.live.publish("StoreChanged", self._clock.now().isoformat(), {})

    async def close(self) -> None:
        """Look no more."""
        async with self._turn:
            if self._following is not None:
                self._following.close()

    def _stamped(self) -> tuple[object, ...]:
        files = [self._store, Path(f"{self._store}-wal")]
        files += [] if self._following is None else [self._following.path]
        return tuple(_stamp(file) for file in files)

    def _read(self) -> Snapshot:
        before = self.snapshot
        faults, tasks, damaged = [], before.tasks, before.damaged
        try:
            tasks, damaged = self._tasks()
        except StoreError as error:
            faults.append(error.message)
        following = self._following
        if following is not None:
            following.look()
            faults += [following.fault] if following.fault is not None else []
        if following is None:
            runs = {task.name: [row] for task in tasks if (row := last_run(task)) is not None}
            latest = sorted((row for rows in runs.values() for row in rows), key=lambda row: -row.started_us)
        else:
            runs = {name: list(reversed(rows)) for name, rows in following.of_task.items()}
            latest = list(reversed(following.latest))
        return Snapshot(
            tasks,
            damaged,
            tuple(faults),
            runs,
            latest,
            None if following is None else following.verdicts(),
            following is not None,
        )

    def _tasks(self) -> tuple[list[Task], list[tuple[str, str]]]:
        tasks, damaged = [], []
        for record in records_in(self._store):
            try:
                tasks.append(task_from(record, self._schedules.of))
            except TaskTryDeserializeError as error:
                damaged.append((str(record[COLUMNS.index("name")]), error.message))
        self._schedules.keep({task.schedule.text for task in tasks})
        return tasks, damaged


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
        for word, at_us in (("success", task.last_success_us), ("failed", task.last_failure_us)):
            if at_us is not None and at_us >= began_us:
                ended_us, result = at_us, word
        ended_us = began_us if ended_us is None else ended_us
    return RunRow(
        id=task.id, service=task.name, reason="", started_us=began_us, ended_us=ended_us, result=result
    )


def kind_of(task: Task, now_us: Instant) -> str:
    """What a task counts as: running, failing, overdue, new or fine."""
    if task.running_since_us is not None:
        return "running"
    if task.due_us < now_us - MINUTE_US:
        return "overdue"
    if task.retry_at_us is not None or (task.last_failure_us or 0) > (task.last_success_us or 0):
        return "failing"
    return "new" if task.last_attempt_us is None else "fine"


def next_of(task: Task) -> Instant | None:
    """When a task is due or tried again; None for never."""
    soonest_us = min(task.due_us, NEVER_US if task.retry_at_us is None else task.retry_at_us)
    return None if soonest_us >= NEVER_US else soonest_us


def dues_after(task: Task, now_us: Instant, until_us: Instant, most: int) -> list[Instant]:
    """The dues of a task after *now_us*."""
    found: list[Instant] = []
    at_us = now_us
    while len(found) < most and (at_us := task.schedule.due_after(at_us)) < NEVER_US and at_us <= until_us:
        found.append(at_us)
    return found


def reasons_of(snapshot: Snapshot, now_us: Instant) -> list[str]:
    """Why not all is well, a sentence for each."""
    reasons = list(snapshot.faults)
    reasons += [f"the row of {name} cannot be used: {reason}" for name, reason in snapshot.damaged]
    reasons += [
        f"{one.property} is violated: {one.words}"
        for one in snapshot.verdicts or ()
        if one.verdict == "violated"
    ]
    kinds = [(task.name, kind_of(task, now_us)) for task in snapshot.tasks]
    reasons += [f"the last run of {name} failed" for name, kind in kinds if kind == "failing"]
    overdue = [name for name, kind in kinds if kind == "overdue"]
    if overdue:
        names = overdue[0] if len(overdue) == 1 else f"{overdue[0]} and {len(overdue) - 1:,} more"
        reasons.append(f"{names} should have started by now: is the scheduler running?")
    return reasons
