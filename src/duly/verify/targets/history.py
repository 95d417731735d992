"""What happened, as the matching of targets wants it: runs, lists, and who was there when.

Of a cluster it knows only who lost something: a run in a shard that its member lost is cut off there.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from duly.verify.trace import (
    ClockStep,
    Crash,
    Edition,
    End,
    Event,
    Header,
    InitEnd,
    InitStart,
    Lost,
    Missed,
    Reachable,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    Unreachable,
)

SKEW_MS = 500.0
"""By how much the clocks of members may differ."""
FOREVER_MS = float("inf")

Regs = list[tuple[str, str, float]]


class Stretch(NamedTuple):
    """A time in which nothing could be expected, and why."""

    from_ms: float
    to_ms: float
    why: str


@dataclass(slots=True, eq=False)
class Run:
    """One run of a task."""

    task: str
    life: "Life"
    start_ms: float
    number: int | None
    end_ms: float | None = None
    is_ok: bool = False
    cut_ms: float | None = None
    is_taken_back: bool = False
    """Whether its callback was never called."""

    @property
    def over_ms(self) -> float:
        """When it ended, or was cut off."""
        if self.cut_ms is not None:
            return self.cut_ms
        return self.end_ms if self.end_ms is not None else FOREVER_MS


@dataclass(slots=True, eq=False)
class Life:
    """One process: when it gave signs, when it was up, when it was in trouble."""

    header: Header
    signs_ms: list[float] = field(default_factory=list)
    flying: dict[str, list[Run]] = field(default_factory=dict)
    """Its runs in flight, by task."""
    up: list[list[float]] = field(default_factory=list)
    away: list[list[float]] = field(default_factory=list)
    losses_ms: list[float] = field(default_factory=list)
    is_dead: bool = False
    is_over: bool = False
    """Stopped, or its recording ended."""

    def trouble(self, failover_ms: float) -> Iterator[Stretch]:
        """The times in which others had to find out that it was gone, or could not find out."""
        tick_ms = self.header.tick_ms
        last_ms = self.signs_ms[-1]
        if not self.is_over:
            yield Stretch(last_ms, last_ms + tick_ms + failover_ms, "failover")
        for at_ms in self.losses_ms:
            yield Stretch(at_ms, at_ms + failover_ms, "failover")
        for from_ms, to_ms in self.away:
            yield Stretch(from_ms, to_ms + failover_ms, "database away")
        if tick_ms:
            for before_ms, after_ms in zip(self.signs_ms, self.signs_ms[1:], strict=False):
                if after_ms - before_ms > tick_ms + SKEW_MS:
                    yield Stretch(before_ms, after_ms + failover_ms, "failover")

    def is_lost_sight_of(self, at_ms: float) -> bool:
        """Whether others could think that it is dead."""
        if self.signs_ms[-1] <= at_ms:
            return not self.is_over
        awake_ms = self.signs_ms[bisect_right(self.signs_ms, at_ms)]
        return self.is_away(at_ms, at_ms) or self.is_loss_within(at_ms, awake_ms + SKEW_MS)

    def is_away(self, from_ms: float, to_ms: float) -> bool:
        """Whether the database was away at any time from *from_ms* to *to_ms*."""
        at = bisect_right(self.away, to_ms, key=lambda span: span[0]) - 1
        return at >= 0 and self.away[at][1] >= from_ms

    def is_loss_within(self, from_ms: float, to_ms: float) -> bool:
        """Whether it lost something, or stopped, from *from_ms* to *to_ms*."""
        at = bisect_left(self.losses_ms, from_ms)
        return at < len(self.losses_ms) and self.losses_ms[at] <= to_ms


class History:
    """What the lines tell."""

    def __init__(self) -> None:
        self.headers: list[Header] = []
        self.lives: list[Life] = []
        self.events = 0
        self.runs: dict[str, list[Run]] = defaultdict(list)
        self.begun_before: dict[str, list[Run]] = defaultdict(list)
        """Runs that were in flight where the trace begins."""
        self.declared_ms: dict[str, set[float]] = defaultdict(set)
        """The dues of each task of which the scheduler itself says that they did not run."""
        self.editions: list[tuple[float, Regs]] = []
        self.lists: list[tuple[float, Regs]] = []
        self.is_clock_set = False
        self._running: list[tuple[str, int]] = []
        self._life: Life | None = None
        self._proc: str | None = None
        self._inits: dict[int, tuple[float, Regs]] = {}

    def begin(self, header: Header) -> None:
        """Take a header: another file begins."""
        if header.follows and self.headers and self.headers[-1].member == header.member:
            return
        self._end_life(is_dead=False)
        self.headers.append(header)
        self._running = header.running

    def take(self, event: Event) -> None:
        """Take the next event."""
        self.events += 1
        proc = event.proc if event.proc is not None else self._proc
        if self._life is None or proc != self._proc:
            self._end_life(is_dead=True)
            self._life, self._proc = Life(self.headers[-1]), proc
            self.lives.append(self._life)
            self._take_over(self._life)
        self._life.signs_ms.append(event.t)
        self._on_event(self._life, event)

    def _take_over(self, life: Life) -> None:
        """What was in flight where a trace begins is run by its first process."""
        for task, number in self._running:
            run = Run(task, life, -FOREVER_MS, number)
            life.flying.setdefault(task, []).append(run)
            self.begun_before[task].append(run)
        self._running = []

    def close(self) -> None:
        """There are no more."""
        self._end_life(is_dead=False)

    def _end_life(self, *, is_dead: bool) -> None:
        life = self._life
        if life is not None:
            last_ms = life.signs_ms[-1]
            life.is_dead = is_dead and not life.is_over
            if is_dead:
                for runs in life.flying.values():
                    for run in runs:
                        run.cut_ms = last_ms if run.cut_ms is None else run.cut_ms
            for spans in (life.up, life.away):
                if spans and spans[-1][1] == FOREVER_MS:
                    spans[-1][1] = last_ms
            # A clock that is set back by less than the skew leaves these a little out of order.
            life.losses_ms.sort()
        self._life, self._proc = None, None
        self._inits.clear()

    def _on_event(self, life: Life, event: Event) -> None:
        at_ms = event.t
        match event:
            case InitStart():
                self._inits[event.call] = (at_ms, event.regs)
            case InitEnd() if event.ok:
                life.is_over = False
                _open(life.up, at_ms)
                if event.call in self._inits:
                    self.lists.append(self._inits.pop(event.call))
            case StopStart():
                _shut(life.up, at_ms)
                life.losses_ms.append(at_ms)
            case StopEnd():
                if event.void:
                    _open(life.up, at_ms)
                life.is_over = not event.void
            case End():
                life.is_over = True
            case Crash():
                self._end_life(is_dead=True)
            case ClockStep():
                self.is_clock_set |= abs(event.origin - at_ms) > SKEW_MS
            case RunStart() | RunEnd() | Missed():
                self._on_run(life, event)
            case _:
                self._on_cluster_event(life, event)

    def _on_cluster_event(self, life: Life, event: Event) -> None:
        match event:
            case Edition():
                self.editions.append((event.t, event.regs))
            case Unreachable():
                _open(life.away, event.t)
            case Reachable():
                _shut(life.away, event.t)
            case Lost() if life.header.member:  # to others shards mean nothing
                life.losses_ms.append(event.t)
                for task, runs in life.flying.items():
                    name = task.encode(errors="surrogatepass")
                    if zlib.crc32(name) % life.header.shards == event.shard:
                        for run in runs:
                            run.cut_ms = event.t if run.cut_ms is None else run.cut_ms
            case _:
                pass

    def _on_run(self, life: Life, event: RunStart | RunEnd | Missed) -> None:
        match event:
            case RunStart():
                run = Run(event.id, life, event.t, event.run)
                life.flying.setdefault(event.id, []).append(run)
                self.runs[event.id].append(run)
            case RunEnd():
                ended = _taken(life, event.id, event.run)
                if ended is not None and ended.cut_ms is None:
                    ended.end_ms, ended.is_ok = event.t, event.ok
            case Missed():
                self.declared_ms[event.id].add(event.due)
                given_up = _taken(life, event.id, event.run) if event.run is not None else None
                if given_up is not None:
                    given_up.is_taken_back = True


def _taken(life: Life, task: str, number: int | None) -> Run | None:
    """The run of *task* with *number* that is in flight, taken out; the oldest if it has none."""
    runs = life.flying.get(task, [])
    for index, run in enumerate(runs):
        if number is None or run.number == number:
            del runs[index]
            if not runs:
                del life.flying[task]
            return run
    return None


def _open(spans: list[list[float]], at_ms: float) -> None:
    if not spans or spans[-1][1] != FOREVER_MS:
        spans.append([at_ms, FOREVER_MS])


def _shut(spans: list[list[float]], at_ms: float) -> None:
    if spans and spans[-1][1] == FOREVER_MS:
        spans[-1][1] = at_ms
