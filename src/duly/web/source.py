"""What pages ask of the source of the entries: a daemon (`DaemonSource`), or a store (`TaskSource`).

        pages ── PageSource ──┬── look() ── Picture: everything at one moment, pure, so a thread can read it
                          └── runs, buckets, misses, details, output: what the history says

A page never asks which of them it shows. An entry is a service, a timer or a task, and all have the same
fields (`models`). So there is one page of an entry, one list, one overview and one time line.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import NamedTuple, Protocol

from duly.daemon.remote import RunList
from duly.instant import Instant
from duly.store.history import MissBucket, MissGroup, RunBucket, RunRow, RunSearch, Span
from duly.web import formatting, models
from duly.web.formatting import Mark, Moment


class Alarm(NamedTuple):
    """One cause of bad health, in a sentence."""

    message: str
    href: str = ""
    """The page that shows more; empty if there is none."""
    service: str | None = None
    """Whose newest output says more: a service or a task."""
    tone: str = "bad"
    is_live: bool = False
    """Whether it is about the run under way, and not about the last that failed."""


class Tile(NamedTuple):
    label: str
    value: str
    href: str
    tone: str = "calm"
    note: str = ""


class Lane(NamedTuple):
    """A line of the time line: a service with the timers that fire it, or a task."""

    id: str
    """By which runs know it."""
    noun: str
    """In the address of its page."""
    mark: Mark
    is_quiet: bool = False
    """Whether it is a service that simply runs: collapsed unless somebody wants to see it."""
    lengths_us: Sequence[int] = ()
    """How long its newest runs took that ended well."""
    timers: Sequence[str] = ()
    """By which misses know it."""

    # Of thousands of lanes few are shown: addresses are made of those alone.

    @property
    def href(self) -> str:
        return formatting.address(self.noun, self.id)

    @property
    def why_href(self) -> str:
        """The page that answers what became of a minute; empty if there is none."""
        if self.timers:
            return formatting.address("timers", self.timers[0])
        return self.href if self.noun == "tasks" else ""


class ComingDue(NamedTuple):
    at_us: Instant
    note: str = ""
    """That it is a retry, or what the clocks do."""


class Fact(NamedTuple):
    """A line of the configuration of an entry."""

    name: str
    value: str
    is_code: bool = False


class DueAnswer(NamedTuple):
    """What became of one due."""

    mark: Mark
    sentence: str
    run: RunRow | None = None


class Details(NamedTuple):
    """What the page of one entry shows beside its state and its runs."""

    lead: str
    """Its schedule in words, or what its process is."""
    zone: tzinfo
    """Of its schedule."""
    description: str = ""
    dues: Sequence[ComingDue] | None = None
    """The next ones; None if it has no schedule of its own."""
    no_dues: str = ""
    """Why there are none."""
    answers: Sequence[DueAnswer] = ()
    """What became of the latest dues, newest first."""
    asked: DueAnswer | None = None
    """What became of the minute that was asked for."""
    facts: Sequence[Fact] = ()
    times: Sequence[tuple[str, Instant | None]] = ()
    """When it last succeeded, was registered, and so on."""
    target: str | None = None
    """The service that it fires."""
    fired_by: Sequence[models.TimerEntry] = ()
    note: str = ""
    """What there is to know about its history."""


class Output(NamedTuple):
    text: str
    lost_bytes: int
    """So many came before that text."""
    times: Sequence[tuple[int, int]]
    """From a line on (the first is 0): so many seconds after the start."""


class Buckets(NamedTuple):
    runs: Sequence[RunBucket]
    misses: Sequence[MissBucket]
    fault: str | None = None
    """Why runs of other machines are missing, if so."""


class Picture(Protocol):
    """Everything at one moment. Pure."""

    @property
    def moment(self) -> Moment: ...

    @property
    def stale(self) -> str | None:
        """Why it may be older than it should be, if so."""
        ...

    def listings(self) -> Sequence[models.Listing]:
        """The kinds of entries that there are: each has a list, and each entry a page."""
        ...

    def entries(self, noun: str) -> Sequence[models.AnyEntry]: ...

    def alarms(self) -> Sequence[Alarm]:
        """Why not all is well: one line for each cause, the live ones first."""
        ...

    def lanes(self) -> Sequence[Lane]: ...

    @property
    def tagged(self) -> Mapping[str, Sequence[str]]:
        """The names of the tasks that have each tag."""
        ...

    def dues(self, lane: str, span: Span, most: int) -> list[Instant]:
        """The first dues of a lane in a span that is to come, in order."""
        ...

    def tiles(self, results: Mapping[str | None, int], missed: int | None) -> list[Tile]:
        """The counts of the overview; *results* are those of a day's runs, *missed* are its slots."""
        ...


class PageSource(Protocol):
    """Raises StoreError where the history cannot be read."""

    async def look(self, zone: tzinfo | None, /) -> Picture:
        """How everything is now; its times in *zone*, or as its schedules have them."""
        ...

    async def runs(self, wanted: RunSearch, /, *, machine: str | None = None) -> RunList:
        """Runs without their output, of all machines or of one."""
        ...

    async def run(self, number: int, machine: str | None, /) -> RunRow | None:
        """One run with its output. Raises OperationError."""
        ...

    async def results(self, since_us: Instant, /) -> Mapping[str | None, int]:
        """How many runs that started since then ended how; None for those that have not."""
        ...

    async def buckets(self, lanes: Sequence[Lane], span: Span, /) -> Buckets: ...

    async def misses(self, since_us: Instant, /) -> Sequence[MissGroup]: ...

    async def details(self, picture: Picture, entry: models.AnyEntry, at: datetime | None, /) -> Details:
        """More of one entry; and what became of the minute *at*, if one is given."""
        ...

    def output(self, row: RunRow, /) -> Output:
        """The output of a run, also of one that is under way here."""
        ...
