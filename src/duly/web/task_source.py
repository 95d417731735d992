"""What the store of an embedded scheduler shows: its tasks, and their runs as store and trace keep them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from functools import cached_property

from duly.daemon.remote import RunList
from duly.instant import NEVER_US, Instant
from duly.store.history import MissGroup, RemoteRun, RunBucket, RunRow, RunSearch, Span, line_times
from duly.web import formatting, models
from duly.web.daemon_source import run_tiles
from duly.web.formatting import Mark, Moment
from duly.web.source import Alarm, Buckets, ComingDue, Details, DueAnswer, Fact, Lane, Output, Picture, Tile
from duly.web.task_store import TaskStore

_DUES_SHOWN = 10
_NO_HISTORY = (
    "The store of a Scheduler keeps only the latest run of a task. An App keeps its history; or record a "
    "trace, and give it with --trace."
)


class TaskPicture:
    stale: str | None = None

    def __init__(self, store: TaskStore, zone: tzinfo | None) -> None:
        self.snapshot = store.snapshot
        self.zone = store.zone
        self.moment = Moment(store.now_us, zone or store.zone, is_chosen=zone is not None)

    def listings(self) -> Sequence[models.Listing]:
        return (models.TASKS,)

    def entries(self, _noun: str) -> Sequence[models.AnyEntry]:
        return self._entries

    @cached_property
    def _entries(self) -> list[models.TaskEntry]:
        return [models.task_entry(task, self.moment.now_us) for task in self.snapshot.tasks]

    def alarms(self) -> list[Alarm]:
        failing = {f"the last run of {entry.id} failed": entry.id for entry in self._entries}
        found = []
        for reason in self.snapshot.reasons(self.moment.now_us):
            name = failing.get(reason)
            href = "/tasks?only=overdue" if name is None else formatting.address("tasks", name)
            found.append(Alarm(reason, href, name))
        return found

    def lanes(self) -> list[Lane]:
        ordered = sorted(self._entries, key=lambda entry: models.rank(entry.kind))
        return [Lane(entry.id, "tasks", entry.mark) for entry in ordered]

    def dues(self, lane: str, span: Span, most: int) -> list[Instant]:
        entry = models.entry_called(lane, self._entries)
        if entry is None:
            return []
        retry = [] if entry.retry_at_us is None else [entry.retry_at_us]
        ahead = entry.dues_after(max(span.from_us, self.moment.now_us), span.to_us, most)
        return sorted({*ahead, *(at_us for at_us in retry if span.from_us <= at_us <= span.to_us)})

    def tiles(self, results: Mapping[str | None, int], _missed: int | None) -> list[Tile]:
        counts = Counter(entry.kind for entry in self._entries)
        note = f"{counts['running']:,} running"
        shown = [Tile("tasks", f"{len(self._entries):,}", "/tasks", note=note)]
        for kind in ("failing", "overdue"):
            tone = "bad" if counts[kind] else "calm"
            shown.append(Tile(kind, f"{counts[kind]:,}", f"/tasks?only={kind}", tone))
        return [*shown, *run_tiles(results)]


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
        return RunList(rows[wanted.skip :][: wanted.limit])

    async def run(self, number: int, _machine: str | None) -> RunRow | None:
        if self._store.snapshot.has_history:
            return await self._store.ask(lambda reader: reader.run(number))
        return next((row for row in self._store.snapshot.latest if row.id == number), None)

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

    async def details(self, picture: Picture, entry: models.AnyEntry, _at: datetime | None) -> Details:
        assert isinstance(picture, TaskPicture)
        assert isinstance(entry, models.TaskEntry)
        return await asyncio.to_thread(self._details, picture, entry)

    def _details(self, picture: TaskPicture, entry: models.TaskEntry) -> Details:
        """In a thread: what became of its latest dues may have to be looked for in a long trace."""
        task, moment = entry.task, picture.moment
        dues = [ComingDue(at_us) for at_us in entry.dues_after(moment.now_us, NEVER_US, _DUES_SHOWN)]
        if task.retry_at_us is not None:
            dues = [ComingDue(task.retry_at_us, f"retry {task.retry_count + 1}"), *dues]
        facts = [
            Fact("cron", task.schedule.text, is_code=True),
            Fact("time zone", str(picture.zone)),
            Fact("retry after", formatting.length(task.retry_delay_us) if task.retry_delay_us else "at once"),
            Fact("retries so far", str(task.retry_count)),
        ]
        facts += [Fact("scheduler", task.scheduler_id, is_code=True)] if task.scheduler_id else []
        return Details(
            entry.cron_words,
            picture.zone,
            dues=dues,
            no_dues="It is never due again.",
            answers=[
                DueAnswer(formatting.SLOTS.get(kind, Mark("calm", "none", kind)), sentence)
                for kind, sentence in self._store.answers(task, moment.now_us)
            ],
            facts=facts,
            times=(
                ("last start", task.last_attempt_us),
                ("last success", task.last_success_us),
                ("last failure", task.last_failure_us),
                ("registered", task.registered_us),
            ),
            note="" if picture.snapshot.has_trace or picture.snapshot.has_history else _NO_HISTORY,
        )

    def output(self, row: RunRow) -> Output:
        return Output(row.output, row.output_lost, line_times(row))


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
