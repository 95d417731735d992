"""What the traces of a cluster's members tell of, once they are read: lives, tenures of shards, runs, lists.

A life is one process of one member. In it every event has its place, whatever the clocks say: lines are
compared, and times only between lives. Tenures are numbered by terms, which grow as long as one server of the
database answers; another one may have forgotten some, and its *reign* begins anew.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from duly.verify.judge import Judge
from duly.verify.trace import ClockStep, Header, Position, micros

Regs = Sequence[tuple[str, str, float]]

TOLERANCE_US = 500_000
"""By how much the clocks of members may differ."""


def shard_of(task: str, shards: int) -> int:
    """The shard of a task: CRC-32 of its name in UTF-8, modulo the number of shards."""
    return zlib.crc32(task.encode(errors="surrogatepass")) % shards


class Ending(StrEnum):
    """How a tenure ended, as its own member tells it."""

    OPEN = "open"
    GIVEN = "given"
    LOST = "lost"
    DIED = "died"


@dataclass(slots=True, eq=False)
class Run:
    """One run of a task."""

    task: str
    life: "Life"
    start: Position
    number: int
    """Its own, in the whole cluster."""
    tenure: "Tenure | None"
    """Under which its member held the shard, if it did."""
    end: Position | None = None
    is_ok: bool = False
    cut: Position | None = None
    """Where its member let go of it, or died: no end counts after that."""
    is_from_before: bool = False
    """It was in flight where the trace begins."""

    @property
    def is_stale(self) -> bool:
        """Whether it started when another had long taken the shard."""
        following = self.tenure.next if self.tenure is not None else None
        if following is None or self.life.is_set_back or following.life.is_set_back:
            return False
        assert self.tenure is not None
        allowed_us = TOLERANCE_US
        if following.list_key > self.tenure.list_key:
            # It may have been written before the list came, and the answer was slow.
            allowed_us += micros(self.life.header.failover_ms)
        return self.start.at_us > following.taken.at_us + allowed_us


@dataclass(slots=True, eq=False)
class Tenure:
    """One shard held for one term by one life."""

    shard: int
    term: int
    edition: int
    origin: str | None
    life: "Life"
    taken: Position
    regs: Regs
    """The list of its member at that time."""
    server: str = ""
    """Which server of the database had it so."""
    reign: int = 0
    """The place of that server among those that answered, in the order of time."""
    ending: Ending = Ending.OPEN
    ended: Position | None = None
    is_list_left: bool = False
    """Whether its member has brought another list since."""
    runs: list[Run] = field(default_factory=list)
    before: "Tenure | None" = None
    next: "Tenure | None" = None
    """The one after it, by the terms of the shard."""
    cut_us: int | None = None
    """When it was as if its process had died, if it was."""

    @property
    def list_key(self) -> tuple[int, int]:
        """Which list it was taken under: numbers grow as long as one server answers."""
        return self.reign, self.edition

    @property
    def is_anew(self) -> bool:
        """Whether another server answers in it, that may have forgotten what came before."""
        return self.before is not None and self.before.reign < self.reign


class Span(NamedTuple):
    """From when to when something was so; *to_us* is None as long as it is."""

    from_us: int
    to_us: int | None


@dataclass(slots=True, eq=False)
class Activity:
    """A stretch in which a member could take shards: initialized, not stopping, and in touch."""

    life: "Life"
    regs: dict[str, tuple[str, float]]
    from_us: int
    to_us: int | None = None
    is_stopped: bool = False
    """Whether it ended because the member was told to stop."""


@dataclass(slots=True, eq=False)
class Life:
    """One process of one member."""

    member: str
    header: Header
    first: Position
    last: Position
    died: Position | None = None
    """Its last event, if it is known to be dead."""
    is_closed: bool = False
    """Whether the recording was ended while it lived."""
    is_stopped: bool = False
    held: dict[int, Tenure] = field(default_factory=dict)
    """The tenures that go on, by shard."""
    former: dict[tuple[int, int], list[Tenure]] = field(default_factory=dict)
    """Those that do not, by shard and term, which another server may have given once more."""
    steps: list[Position] = field(default_factory=list)
    out_of_touch: list[Span] = field(default_factory=list)
    losses: list[Position] = field(default_factory=list)
    failed_stop: Position | None = None
    """Where its latest stop raised: it may have failed to tell how its last runs ended."""
    running: dict[str, list[Run]] = field(default_factory=dict)
    """Its runs in flight, by task."""
    regs: Regs = ()
    """The list of its latest call of `initialize`."""
    lists: dict[tuple[str, int], Regs] = field(default_factory=dict)
    """The lists that it took shards by, by server and edition."""
    _lines: list[int] = field(default_factory=list)
    _times_us: list[int] = field(default_factory=list)
    _sorted_us: list[int] = field(default_factory=list)

    def note(self, item: Position) -> None:
        """Count a sign of life."""
        self.last = item
        self._lines.append(item.line)
        self._times_us.append(item.at_us)

    @property
    def is_out_of_touch(self) -> bool:
        """Whether it cannot reach the board now."""
        return bool(self.out_of_touch) and self.out_of_touch[-1].to_us is None

    @property
    def is_set_back(self) -> bool:
        """Whether its clock, the cluster's, was ever set back, so that times do not tell an order."""
        return any(
            isinstance(step.event, ClockStep) and step.at_us + TOLERANCE_US < micros(step.event.origin)
            for step in self.steps
        )

    def as_dated_now(self, item: Position) -> int:
        """When *item* was, by the clock as it goes now: it may have been set since."""
        set_us = sum(
            step.at_us - micros(step.event.origin)
            for step in self.steps
            if isinstance(step.event, ClockStep) and step.line > item.line
        )
        return item.at_us + set_us

    def last_sign_us(self, at_us: int) -> int:
        """When it last recorded anything before *at_us*."""
        index = bisect_left(self._signs_us(), at_us)
        return self._signs_us()[index - 1] if index else self.first.at_us

    def next_sign_us(self, line: int) -> int | None:
        """When it next recorded anything after *line*; None if it never did."""
        index = bisect_right(self._lines, line)
        return self._times_us[index] if index < len(self._lines) else None

    def next_time_us(self, at_us: int) -> int:
        """When it first recorded anything later than *at_us*, which it did."""
        return self._signs_us()[bisect_right(self._signs_us(), at_us)]

    def _signs_us(self) -> list[int]:
        """The times of all signs, in order; asked for only when all is read."""
        if len(self._sorted_us) != len(self._times_us):
            self._sorted_us = sorted(self._times_us)
        return self._sorted_us

    @property
    def born_us(self) -> int:
        """When its first sign was, by the clock as it goes at the end."""
        return self.as_dated_now(self.first)

    def silences(self) -> Iterator[Span]:
        """The times in which it did not even tick: its process or its host stood still.

        What a clock that was set shows as a time is none.
        """
        longest_us, steps = micros(self.header.tick_ms) + TOLERANCE_US, {step.line for step in self.steps}
        if self.header.tick_ms:
            for line, (before_us, after_us) in zip(self._lines[1:], pairwise(self._times_us), strict=True):
                if after_us - before_us > longest_us and line not in steps:
                    yield Span(before_us, after_us)

    def is_heard_after(self, at_us: int) -> bool:
        """Whether it recorded anything later than that."""
        return self.last.at_us > at_us


@dataclass(slots=True, eq=False)
class Published:
    """A list that became the newest edition. *position* is where that is told, if it is."""

    number: int
    regs: dict[str, tuple[str, float]]
    position: Position
    called_us: int | None
    """When the call began in which it was brought."""
    life: Life
    is_told: bool = True
    server: str = ""
    reign: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Its place among all lists."""
        return self.reign, self.number


@dataclass(eq=False)
class Recording:
    """The files of one member that follow each other."""

    header: Header
    judge: Judge
    first_line: int = 1
    lives: list[Life] = field(default_factory=list)
    tenures: list[Tenure] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    editions: list[Published] = field(default_factory=list)
    activities: list[Activity] = field(default_factory=list)
    unanswered: list[tuple[int, dict[str, tuple[str, float]]]] = field(default_factory=list)
    """When calls began that failed or never returned, and which lists they may have brought all the same."""
    fault_us: int | None = None
    """When the trace itself first went wrong."""
    torn_line: int | None = None


def by_task(regs: Regs) -> dict[str, tuple[str, float]]:
    """The registrations of a list by task."""
    return {task: (cron, delay_ms) for task, cron, delay_ms in regs}
