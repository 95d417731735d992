"""What happened, as the matching of targets wants it: runs, lists, and who was there when.

Of a cluster it knows only who lost something: a run in a shard that its member lost is cut off there.
"""

import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SKEW_MS = 500.0
"""By how much the clocks of members may differ."""
FOREVER_MS = float("inf")

Line = dict[str, Any]


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

    @property
    def over_ms(self) -> float:
        """When it ended, or was cut off."""
        if self.cut_ms is not None:
            return self.cut_ms
        return self.end_ms if self.end_ms is not None else FOREVER_MS


@dataclass(slots=True, eq=False)
class Life:
    """One process: when it gave signs, when it was up, when it was in trouble."""

    header: Line
    signs_ms: list[float] = field(default_factory=list)
    flying: list[Run] = field(default_factory=list)
    up: list[list[float]] = field(default_factory=list)
    away: list[list[float]] = field(default_factory=list)
    losses_ms: list[float] = field(default_factory=list)
    is_dead: bool = False
    is_over: bool = False
    """Stopped, or its recording ended."""

    def trouble(self, failover_ms: float) -> Iterator[Stretch]:
        """The times in which others had to find out that it was gone, or could not find out."""
        tick_ms = self.header.get("tick_ms", 0)
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
        if any(from_ms <= at_ms <= to_ms for from_ms, to_ms in self.away):
            return True
        return any(at_ms <= loss_ms <= awake_ms + SKEW_MS for loss_ms in self.losses_ms)


class History:
    """What the lines tell."""

    def __init__(self) -> None:
        self.headers: list[Line] = []
        self.lives: list[Life] = []
        self.runs: dict[str, list[Run]] = defaultdict(list)
        self.editions: list[tuple[float, list[Any]]] = []
        self.lists: list[tuple[float, list[Any]]] = []
        self.is_clock_set = False
        self._life: Life | None = None
        self._proc: str | None = None
        self._inits: dict[int, tuple[float, list[Any]]] = {}

    def take(self, line: Line) -> None:
        """Take the next line."""
        if line["ev"] == "Header":
            follows = line.get("follows") and self.headers
            if follows and self.headers[-1].get("member") == line.get("member"):
                return
            self._end_life(is_dead=False)
            self.headers.append(line)
            return
        proc = line.get("proc", self._proc)
        if self._life is None or proc != self._proc:
            self._end_life(is_dead=True)
            self._life, self._proc = Life(self.headers[-1]), proc
            self.lives.append(self._life)
        self._life.signs_ms.append(line["t"])
        self._on_event(self._life, line, line["t"])

    def close(self) -> None:
        """There are no more."""
        self._end_life(is_dead=False)

    def _end_life(self, *, is_dead: bool) -> None:
        life = self._life
        if life is not None:
            last_ms = life.signs_ms[-1]
            life.is_dead = is_dead and not life.is_over
            if is_dead:
                for run in life.flying:
                    run.cut_ms = run.cut_ms or last_ms
            for spans in (life.up, life.away):
                if spans and spans[-1][1] == FOREVER_MS:
                    spans[-1][1] = last_ms
        self._life, self._proc = None, None
        self._inits.clear()

    def _on_event(self, life: Life, line: Line, at_ms: float) -> None:
        match line["ev"]:
            case "InitStart":
                self._inits[line["call"]] = (at_ms, line["regs"])
            case "InitEnd" if line["ok"]:
                life.is_over = False
                _open(life.up, at_ms)
                self.lists.append(self._inits.pop(line["call"]))
            case "StopStart":
                _shut(life.up, at_ms)
                life.losses_ms.append(at_ms)
            case "StopEnd":
                if line.get("void"):
                    _open(life.up, at_ms)
                life.is_over = not line.get("void")
            case "End":
                life.is_over = True
            case "Crash":
                self._end_life(is_dead=True)
            case "ClockStep":
                self.is_clock_set |= abs(line["from"] - at_ms) > SKEW_MS
            case "RunStart" | "RunEnd":
                self._on_run(life, line, at_ms)
            case _:
                self._on_cluster_event(life, line, at_ms)

    def _on_cluster_event(self, life: Life, line: Line, at_ms: float) -> None:
        match line["ev"]:
            case "Edition":
                self.editions.append((at_ms, line["regs"]))
            case "Unreachable":
                _open(life.away, at_ms)
            case "Reachable":
                _shut(life.away, at_ms)
            case "Lost":
                life.losses_ms.append(at_ms)
                shards = life.header["shards"]
                for run in life.flying:
                    name = run.task.encode(errors="surrogatepass")
                    if run.cut_ms is None and zlib.crc32(name) % shards == line["shard"]:
                        run.cut_ms = at_ms

    def _on_run(self, life: Life, line: Line, at_ms: float) -> None:
        task, number = line["id"], line.get("run")
        if line["ev"] == "RunStart":
            run = Run(task, life, at_ms, number)
            life.flying.append(run)
            self.runs[task].append(run)
            return
        mine = (each for each in life.flying if each.task == task and number in {None, each.number})
        ended = next(mine, None)
        if ended is not None:
            life.flying.remove(ended)
            if ended.cut_ms is None:
                ended.end_ms, ended.is_ok = at_ms, line["ok"]


def _open(spans: list[list[float]], at_ms: float) -> None:
    if not spans or spans[-1][1] != FOREVER_MS:
        spans.append([at_ms, FOREVER_MS])


def _shut(spans: list[list[float]], at_ms: float) -> None:
    if spans and spans[-1][1] == FOREVER_MS:
        spans[-1][1] = at_ms
