"""What the store of an embedded scheduler shows: its tasks, and their runs as store and trace keep them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from functools import cached_property

import msgspec

from duly.core.entries import entry_text
from duly.core.options import Options
from duly.core.task import Task
from duly.daemon import health
from duly.daemon.health import EntryState
from duly.daemon.remote import RunList
from duly.instant import DAY_US, MINUTE_US, NEVER_US, Instant, instant_of
from duly.store.history import MissGroup, RemoteRun, RunBucket, RunRow, RunSearch, Span, line_times
from duly.store.past import Past
from duly.web import formatting, models
from duly.web.daemon_source import run_tiles
from duly.web.formatting import Mark, Moment
from duly.web.source import Alarm, Buckets, ComingDue, Details, DueAnswer, Fact, Lane, Output, Picture, Tile
from duly.web.task_store import TaskStore, zone_of_task

_DUES_SHOWN = 10
_SEARCHED = 100
"""Runs after a due of which one may answer it."""
_NO_HISTORY = (
    "The store of a Scheduler keeps only the latest run of a task. An App keeps its history; or record a "
    "trace, and give it with --trace."
)


class TaskPicture:
    stale: str | None = None

    def __init__(self, store: TaskStore, zone: tzinfo | None) -> None:
        self.snapshot = store.snapshot
        self.absence = store.absence
        self.zone = store.zone
        self.moment = Moment(store.now_us, zone or store.zone, is_chosen=zone is not None)

    def listings(self) -> Sequence[models.Listing]:
        return (models.TASKS,)

    def entries(self, _noun: str) -> Sequence[models.AnyEntry]:
        return self._entries

    @cached_property
    def _entries(self) -> list[models.TaskEntry]:
        return [self._entry(task) for task in self.snapshot.tasks]

    def _entry(self, task: Task) -> models.TaskEntry:
        entry = models.task_entry(task, self.moment.now_us)._replace(
            tags=self.snapshot.tags.get(task.name, ())
        )
        if entry.kind != health.FAILING:
            return entry
        since_us, text = task.last_failure_us, self.snapshot.failing_text(task.name)
        return entry._replace(health=EntryState(health.FAILING, "task", task.name, since_us, text))

    def alarms(self) -> list[Alarm]:
        found = [Alarm(self.absence)] if self.absence else []
        return [*found, *self.snapshot.alarms(self.moment.now_us)]

    def lanes(self) -> list[Lane]:
        ordered = sorted(self._entries, key=lambda entry: models.rank(entry.kind))
        pasts, unknown = self.snapshot.pasts, Past()
        return [
            Lane(entry.id, "tasks", entry.mark, lengths_us=pasts.get(entry.id, unknown).lengths_us)
            for entry in ordered
        ]

    @cached_property
    def tagged(self) -> Mapping[str, Sequence[str]]:
        names: dict[str, list[str]] = {}
        for name, tags in self.snapshot.tags.items():
            for tag in tags:
                names.setdefault(tag, []).append(name)
        return names

    def dues(self, lane: str, span: Span, most: int) -> list[Instant]:
        entry = models.entry_called(lane, self._entries)
        if entry is None:
            return []
        retry = [] if entry.retry_at_us is None or entry.kind in models.RESTING else [entry.retry_at_us]
        ahead = entry.dues_after(max(span.from_us, self.moment.now_us), span.to_us, most)
        return sorted({*ahead, *(at_us for at_us in retry if span.from_us <= at_us <= span.to_us)})

    def tiles(self, results: Mapping[str | None, int], _missed: int | None) -> list[Tile]:
        counts = Counter(entry.kind for entry in self._entries)
        note = f"{counts['running']:,} running"
        shown = [Tile("tasks", f"{len(self._entries):,}", "/tasks", note=note)]
        for kind in ("failing", "overdue"):
            tone = "bad" if counts[kind] else "calm"
            shown.append(Tile(kind, f"{counts[kind]:,}", f"/tasks?only={kind}", tone))
        oldest_us = self.snapshot.latest[-1].started_us if self.snapshot.is_cut else 0
        more = "+" if oldest_us > self.moment.now_us - DAY_US else ""
        return [*shown, *(tile._replace(value=f"{tile.value}{more}") for tile in run_tiles(results))]


class TaskSource:
    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def look(self, zone: tzinfo | None) -> TaskPicture:
        await self._store.look()
        return TaskPicture(self._store, zone)

    async def runs(self, wanted: RunSearch, *, machine: str | None = None) -> RunList:  # noqa: ARG002
        snapshot = self._store.snapshot
        if snapshot.has_history:
            return RunList(await self._store.ask(lambda reader: reader.search(wanted)))
        rows = sorted(filter(wanted.has, snapshot.latest), key=wanted.order, reverse=wanted.is_down)
        fault = "only the newest runs are known here" if snapshot.is_cut else None
        return RunList(rows[wanted.skip :][: wanted.limit], fault=fault)

    async def run(self, number: int, _machine: str | None) -> RunRow | None:
        if self._store.snapshot.has_history:
            return await self._store.ask(lambda reader: reader.run(number))
        return await self._store.run(number)

    async def results(self, since_us: Instant) -> Mapping[str | None, int]:
        if self._store.snapshot.has_history:
            return await self._store.ask(lambda reader: reader.counts(since_us))
        return Counter(row.result for row in self._store.snapshot.latest if row.started_us >= since_us)

    async def buckets(self, lanes: Sequence[Lane], span: Span) -> Buckets:
        names = [lane.id for lane in lanes]
        if self._store.snapshot.has_history:
            return Buckets(await self._store.ask(lambda reader: reader.buckets(names, span)), ())
        return Buckets(counted_runs(self._store.snapshot.latest, set(names), span), ())

    async def misses(self, _since_us: Instant) -> Sequence[MissGroup]:
        return []

    async def details(self, picture: Picture, entry: models.AnyEntry, at: datetime | None) -> Details:
        assert isinstance(picture, TaskPicture)
        assert isinstance(entry, models.TaskEntry)
        answering = None if at is None else await self._run_due(picture, entry, at)
        return await asyncio.to_thread(self._details, picture, entry, at, answering)

    async def _run_due(self, picture: TaskPicture, entry: models.TaskEntry, at: datetime) -> RunRow | None:
        """The run in the history that answered what was due in a minute."""
        zone = zone_of_task(entry.task, picture.zone)
        at_us = instant_of(at if at.tzinfo is not None else at.replace(tzinfo=zone))
        minute_us = at_us - at_us % MINUTE_US
        wanted = RunSearch(service=entry.id, since_us=minute_us, is_down=False, limit=_SEARCHED)
        rows = (await self.runs(wanted)).rows
        return next((row for row in rows if 0 <= (row.scheduled_us or 0) - minute_us < MINUTE_US), None)

    def _details(
        self, picture: TaskPicture, entry: models.TaskEntry, at: datetime | None, answering: RunRow | None
    ) -> Details:
        """In a thread: what became of its latest dues may have to be looked for in a long trace."""
        task, moment = entry.task, picture.moment
        zone = zone_of_task(task, picture.zone)
        dues = [ComingDue(at_us) for at_us in entry.dues_after(moment.now_us, NEVER_US, _DUES_SHOWN)]
        if task.retry_at_us is not None:
            dues = sorted([ComingDue(task.retry_at_us, f"retry {task.retry_count + 1}"), *dues])
        facts = [
            Fact("cron", task.schedule.text, is_code=True),
            Fact("time zone", str(zone)),
            Fact("retry after", formatting.length(task.retry_delay_us) if task.retry_delay_us else "at once"),
            Fact("retries so far", str(task.retry_count)),
        ]
        facts += _limits(task.options)
        facts += [Fact("tags", ", ".join(entry.tags))] if entry.tags else []
        if task.entry is not None:
            stored = entry_text(task.entry)
            arguments = msgspec.json.encode(stored.args).decode()
            facts += [Fact("entry of", stored.kind), Fact("arguments", arguments, is_code=True)]
        facts += [Fact("scheduler", task.scheduler_id, is_code=True)] if task.scheduler_id else []
        return Details(
            entry.cron_words,
            zone,
            dues=dues,
            no_dues=f"It is {entry.kind}." if entry.kind in models.RESTING else "It is never due again.",
            answers=[_answer(*each) for each in self._store.answers(task, moment.now_us, None)],
            asked=None if at is None else self._asked(task, moment, at, answering),
            facts=facts,
            times=(
                ("last start", task.last_attempt_us),
                ("last success", task.last_success_us),
                ("last failure", task.last_failure_us),
                ("registered", task.registered_us),
            ),
            note="" if picture.snapshot.has_trace or picture.snapshot.has_history else _NO_HISTORY,
        )

    def _asked(self, task: Task, moment: Moment, at: datetime, answering: RunRow | None) -> DueAnswer | None:
        if answering is None:
            return next((_answer(*each) for each in self._store.answers(task, moment.now_us, at)), None)
        zone = zone_of_task(task, self._store.zone)
        due, begun = (moment.clock(at_us, zone) for at_us in (answering.scheduled_us, answering.started_us))
        sentence = (
            f'"{task.name}" was due at {due}. The run that began at {begun} answered it: {answering.result}.'
        )
        return _answer("answered", sentence)._replace(run=answering)

    def output(self, row: RunRow) -> Output:
        return Output(row.output, row.output_lost, line_times(row))


def _limits(options: Options) -> Iterator[Fact]:
    """What a program says of the runs of a task."""
    if options.timeout_us is not None:
        yield Fact("timeout", formatting.length(options.timeout_us))
    if options.attempts is not None:
        yield Fact("attempts", f"{options.attempts:,} at most")
    if options.limit is not None:
        yield Fact("limit", options.limit)
    if options.catch_up_us is not None:
        yield Fact("catch-up", f"of dues no older than {formatting.length(options.catch_up_us)}")


def _answer(kind: str, sentence: str) -> DueAnswer:
    return DueAnswer(formatting.SLOTS.get(kind, Mark("calm", "none", kind.replace("-", " "))), sentence)


def counted_runs(rows: Iterable[RunRow], names: set[str], span: Span) -> list[RunBucket]:
    """The runs of these names in the parts of *span*: what `HistoryReader.buckets` finds in a store."""
    found: dict[tuple[str, int, str | None], RunBucket] = {}
    for row in rows:
        is_open = row.ended_us is None
        if row.service not in names or row.started_us >= span.to_us:
            continue
        if row.started_us < span.from_us and not (is_open or (row.ended_us or 0) > span.from_us):
            continue
        part = max((row.started_us - span.from_us) // span.width_us, -1)
        machine = row.machine if isinstance(row, RemoteRun) else None
        made = RunBucket(row.service, part, row.result, 1, row.id, row.started_us, row.ended_us, machine)
        key = (row.service, part, row.result)
        if (kept := found.get(key)) is not None:
            made = kept._replace(
                number=kept.number + 1,
                run=max(kept.run, row.id),
                first_us=min(kept.first_us, row.started_us),
                last_us=max(kept.last_us or 0, row.ended_us or 0) or None,
            )
        found[key] = made
    return list(found.values())
