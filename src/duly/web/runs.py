"""What pages show of runs: those of a list, one in words, its output, pictures of many, those around one."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from difflib import unified_diff
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from duly.core.causes import REASON_MEANINGS, SLOT_REASONS, Reason
from duly.daemon.backend import ReadBackend
from duly.daemon.remote import Place, runs_of
from duly.formatting import counted
from duly.instant import (
    EARLIEST_US,
    LATEST_US,
    MINUTE_US,
    SECOND_US,
    Instant,
    datetime_at,
    instant_of,
)
from duly.store.history import FAILURES, SORTS, RemoteRun, Result, RunBucket, RunRow, RunSearch, length_us
from duly.web import formatting, models
from duly.web.formatting import Mark, Moment
from duly.web.source import Output

PAGE = 100
_SINCE: Mapping[str, int] = {"1h": 60, "24h": 1440, "7d": 7 * 1440, "30d": 30 * 1440}
"""Minutes."""
RESULTS = ("failed", "running", *Result)
"""What a list can be asked for: `failed` is every result that blames the job."""
_SEARCHED = "7d"
"""How far back a text is looked for, unless somebody says so: each output is read."""
_RETRIES_FOLLOWED = 50
_COMPARED_LINES = 2_000


# --- which runs ---


class RunsQuery(NamedTuple):
    """What the query of an address asks for; what makes no sense in it is left out."""

    service: str = ""
    timer: str = ""
    name: str = ""
    tag: str = ""
    result: str = ""
    reason: str = ""
    machine: str = ""
    text: str = ""
    since: str = ""
    """One of a few lengths of time before now."""
    from_us: Instant | None = None
    to_us: Instant | None = None
    sort: str = "started"
    is_up: bool = False
    page: int = 1

    @property
    def fields(self) -> dict[str, str]:
        """As the query of an address."""
        texts = self._asdict() | {
            "from": self.from_us,
            "to": self.to_us,
            "sort": "" if self.sort == "started" else self.sort,
            "dir": "up" if self.is_up else "",
            "page": "" if self.page == 1 else self.page,
        }
        for name in ("from_us", "to_us", "is_up"):
            del texts[name]
        return {name: str(text) for name, text in texts.items() if text not in {"", None}}

    def href(self, **changed: object) -> str:
        return formatting.with_query("/runs", self._replace(**changed).fields)  # type: ignore[arg-type]

    def search(
        self, now_us: Instant, tagged: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> RunSearch:
        """The same for the history; *tagged* are the names of those that have each tag."""
        since_us = EARLIEST_US
        if self.since:
            since_us = now_us - _SINCE[self.since] * MINUTE_US
        if self.from_us is not None:
            since_us = max(since_us, self.from_us)
        results = None
        if self.result not in {"", "running"}:
            results = FAILURES if self.result == "failed" else (self.result,)
        return RunSearch(
            service=self.service or None,
            services=tagged.get(self.tag, ()) if self.tag else None,
            timer=self.timer or None,
            name=self.name,
            results=results,
            is_running=self.result == "running",
            reason=self.reason or None,
            text=self.text,
            since_us=since_us,
            until_us=LATEST_US if self.to_us is None else self.to_us,
            sort=self.sort,
            is_down=not self.is_up,
            skip=(self.page - 1) * PAGE,
            limit=PAGE + 1,
        )


def runs_query(query: Mapping[str, str], zone: tzinfo) -> RunsQuery:
    """The times of *query* are microseconds, or what the clocks of *zone* show."""
    texts = {
        name: query.get(name, "")[:200] for name in ("service", "timer", "name", "tag", "machine", "text")
    }
    text, since = texts["text"], query.get("since", "")
    from_us, to_us = (_time_in(query.get(name, ""), zone) for name in ("from", "to"))
    since = since if since in _SINCE else ""
    if text and not since and from_us is None and "since" not in query:
        since = _SEARCHED
    result, reason, sort = (query.get(name, "") for name in ("result", "reason", "sort"))
    page = query.get("page", "1")
    return RunsQuery(
        **texts,
        result=result if result in RESULTS else "",
        reason=reason if reason.replace("-", "").isalpha() else "",
        since=since,
        from_us=from_us,
        to_us=to_us,
        sort=sort if sort in SORTS else "started",
        is_up=query.get("dir") == "up",
        page=int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 5 else 1,
    )


def _time_in(text: str, zone: tzinfo) -> Instant | None:
    if (at_us := formatting.whole_number(text)) is not None:
        return at_us
    try:
        at = datetime.fromisoformat(text)
        return instant_of(at if at.tzinfo is not None else at.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        return None


# --- one run in words ---


class RunFacts(NamedTuple):
    row: RunRow
    mark: Mark
    cause: str
    late_us: int | None
    lasted_us: int | None


def run_facts(row: RunRow, now_us: Instant) -> RunFacts:
    return RunFacts(
        row,
        run_mark(row),
        REASON_MEANINGS.get(row.reason, row.reason),
        None if row.scheduled_us is None else max(row.started_us - row.scheduled_us, 0),
        length_us(row, now_us),
    )


def run_mark(row: RunRow) -> Mark:
    return formatting.result_mark(row.result, is_running=row.ended_us is None, exit_code=row.exit_code)


def run_title(row: RunRow, moment: Moment) -> str:
    lasted = f" after {formatting.length(length_us(row))}" if row.ended_us is not None else ""
    of = f"run {row.id} of {formatting.visible(row.service)}{formatting.on_machine(row)}"
    return f"{of}, {moment.clock(row.started_us)}: {run_mark(row).word}{lasted} ({row.reason})"


def machine_of(row: RunRow) -> str | None:
    """The machine of a run, if it is another."""
    return row.machine if isinstance(row, RemoteRun) else None


# --- its output ---


class OutputPiece(msgspec.Struct, kw_only=True):
    text: str
    """As a terminal gets it: with colours and carriage returns."""
    lost_bytes: int
    place: int
    """Where to go on from."""
    is_whole: bool
    """Whether it replaces what was shown before."""
    is_running: bool
    times: list[tuple[int, str]]
    """From a line on (the first of the whole output is 0): when it came, by the clock of the page."""


def output_piece(row: RunRow, output: Output, moment: Moment, *, since: int, lost_before: int) -> OutputPiece:
    """The part of an output from character *since* on; all of it if its beginning was dropped meanwhile."""
    is_running = row.ended_us is None
    text = formatting.settled_output(output.text) if is_running else output.text
    is_whole = output.lost_bytes != lost_before or not 0 < since <= len(text)
    since = 0 if is_whole else since
    first = text.count("\n", 0, since)
    return OutputPiece(
        text=formatting.terminal_text(text[since:]),
        lost_bytes=output.lost_bytes,
        place=len(text),
        is_whole=is_whole,
        is_running=is_running,
        times=[
            (line, f"{datetime_at(row.started_us + at_s * SECOND_US, moment.zone):%H:%M:%S}")
            for line, at_s in output.times
            if line >= first or is_whole
        ],
    )


def compared(before: str, after: str) -> list[tuple[str, str]]:
    """What differs between two outputs, line by line: "-", "+" or " ", and the line."""
    old, new = (formatting.printed_output(text).splitlines()[-_COMPARED_LINES:] for text in (before, after))
    lines = list(unified_diff(old, new, n=2, lineterm=""))[2:]
    return [(line[0], line[1:]) for line in lines]


# --- pictures of many runs ---


class Dot(NamedTuple):
    x: str
    y: str
    tone: str
    title: str
    href: str


class Plot(NamedTuple):
    """How long runs took: one dot each, over the time of their start."""

    dots: Sequence[Dot]
    lines: Sequence[tuple[str, str]]
    """Where the percentiles are, and what they are called."""
    longest: str
    from_us: Instant
    to_us: Instant
    summary: str


def plot_of(rows: Sequence[RunRow], moment: Moment) -> Plot | None:
    """The picture of some runs, which come newest first; None for none."""
    if not rows:
        return None
    lasted = [length_us(row, moment.now_us) or 0 for row in rows]
    longest_us, to_us = max(*lasted, 1), rows[0].started_us
    from_us = min(row.started_us for row in rows)
    width_us = max(to_us - from_us, 1)

    def height(us: int) -> str:
        return f"{100 - us / longest_us * 94:.2f}%"

    dots = [
        Dot(
            f"{1 + (row.started_us - from_us) / width_us * 98:.2f}%",
            height(us),
            run_mark(row).tone,
            run_title(row, moment),
            formatting.run_address(row) if row.id > 0 else "",
        )
        for row, us in zip(rows, lasted, strict=True)
    ]
    good = [us for row, us in zip(rows, lasted, strict=True) if row.result == Result.SUCCESS]
    usual_us, long_us = models.usual_lengths(good)
    lines = [
        (height(us), f"{word} {formatting.length(us)}")
        for us, word in ((usual_us, "p50"), (long_us, "p95"))
        if us is not None
    ]
    percentiles = ", ".join(label for _, label in lines)
    summary = f"the last {counted(len(rows), 'run')}: {len(good):,} successful"
    return Plot(
        dots,
        lines,
        formatting.length(longest_us),
        from_us,
        to_us,
        f"{summary}; {percentiles}" if percentiles else summary,
    )


class DayCell(NamedTuple):
    column: int
    row: int
    level: str
    """none, good (with how much), warn or bad."""
    title: str
    href: str


class YearView(NamedTuple):
    cells: Sequence[DayCell]
    months: Sequence[tuple[int, str]]
    """The column in which a month begins, and its name."""
    summary: str


def year_of(buckets: Iterable[RunBucket], from_us: Instant, moment: Moment, href: str) -> YearView:
    """The days of a year, each with its runs; *buckets* are the hours from *from_us* on."""
    ran: dict[date, int] = {}
    failed: dict[date, int] = {}
    for bucket in buckets:
        if bucket.part >= 0:
            day = datetime_at(bucket.first_us, moment.zone).date()
            ran[day] = ran.get(day, 0) + bucket.number
            if bucket.result in FAILURES:
                failed[day] = failed.get(day, 0) + bucket.number
    today = datetime_at(moment.now_us, moment.zone).date()
    first = datetime_at(from_us, moment.zone).date()
    first -= timedelta(days=first.weekday())
    cells, months = [], []
    most = max(ran.values(), default=1)
    for number in range((today - first).days + 1):
        day = first + timedelta(days=number)
        column, row = divmod(number, 7)
        if row == 0 and day.day <= 7:
            months.append((column, f"{day:%b}"))
        count, bad = ran.get(day, 0), failed.get(day, 0)
        level = "none" if not count else "bad" if bad == count else "warn" if bad else "good"
        level += f" much{min(3, 1 + 3 * count // (most + 1))}" if level == "good" else ""
        title = f"{day:%a} {day.day} {day:%b %Y}: {count:,} ran" + (f", {bad:,} failed" if bad else "")
        cells.append(DayCell(column, row, level, title, _day_href(href, day, moment.zone) if count else ""))
    bad_days = sum(1 for day in failed if ran[day])
    days = counted(len(ran), "day")
    summary = f"{counted(sum(ran.values()), 'run')} on {days}, failures on {bad_days:,}"
    return YearView(cells, months, summary)


def _day_href(href: str, day: date, zone: tzinfo) -> str:
    begin = datetime(day.year, day.month, day.day, tzinfo=zone)
    end = begin + timedelta(days=1)
    return f"{href}&from={instant_of(begin)}&to={instant_of(end)}"


# --- what is around a run ---


class Lineage(NamedTuple):
    """The runs before and after one, the run that it tries again, and the slot that began it."""

    older: int | None = None
    """The run before it, of the same service on this machine."""
    newer: int | None = None
    retried: RunRow | None = None
    """The run that it tries again."""
    slot_us: Instant | None = None
    """The slot that it answers, or, of a retry, that the first attempt was for."""
    slot_run: RunRow | None = None
    """The run that answered that slot, where it is another."""


async def lineage_of(backend: ReadBackend, row: RunRow) -> Lineage:
    """Look up what is around a run. Of a retry on another machine nobody here can say what it tries again."""
    if isinstance(row, RemoteRun):
        return retried_by(row, [])
    history = backend.history
    older = await history.runs(service=row.service, before=row.id, limit=1, with_output=False)
    earlier: list[RunRow] = []
    if row.reason == Reason.RETRY and row.timer is not None:
        found = await runs_of(backend, timer=row.timer, place=Place(row.id), limit=_RETRIES_FOLLOWED)
        earlier = found.rows if found.fault is None else []
    return retried_by(row, earlier)._replace(
        older=older[0].id if older else None, newer=await history.next_id(row.service, row.id)
    )


def retried_by(row: RunRow, earlier: Sequence[RunRow]) -> Lineage:
    """What a run tries again, if it is a retry, and the slot; *earlier* are its timer's, newest first.

    A retry says of itself only when it was due. The run that it tries again is the one before it, which for
    a second retry is the first; and behind all retries stands the run for a slot.
    """
    if row.reason in SLOT_REASONS:
        return Lineage(slot_us=row.scheduled_us)
    if row.reason != Reason.RETRY or not earlier or earlier[0].service != row.service:
        return Lineage()
    first = next((one for one in earlier if one.reason != Reason.RETRY), None)
    if first is None or first.reason not in SLOT_REASONS:
        return Lineage(retried=earlier[0])
    return Lineage(retried=earlier[0], slot_us=first.scheduled_us, slot_run=first)
