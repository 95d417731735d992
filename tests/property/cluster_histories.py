"""Random right histories of a cluster, written by a small simulation that knows nothing of ours.

A board, some members with clocks that differ, tasks in shards. Members are killed, frozen, cut off from the
board, stopped and started again; shards change hands, lists change, runs go on away. Every step is a quarter
of a second. What each member would have recorded is its trace; `Story.files` has them.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

STEP_MS = 250
TTL_MS, TRUST_MS, BEAT_MS, TICK_MS = 6_000, 5_000, 2_000, 5_000
FAILOVER_MS = 10_000
DELTA_MS = 20_000
MINUTE_MS = 60_000
BEGIN_MS = 1_781_784_240_000
MINUTES = {"* * * * *": range(60), "0,2,4,6,8 * * * *": range(0, 10, 2), "1-30 * * * *": range(1, 31)}
DELAYS_MS = (0, 15_000, 90_000)
NAMES = ("a", "b", "c", "d", "e")
SHARDS = 3

Line = dict[str, Any]


def shard_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHARDS


def encoded(lines: Iterable[Line]) -> list[bytes]:
    return [msgspec.json.encode(line) + b"\n" for line in lines]


@dataclass(eq=False)
class Flight:
    """A run in flight."""

    task: str
    number: int
    runner: "Node"
    begun_ms: float
    until_ms: float
    ok: bool
    term: int
    generation: int
    """Which registration it was started for."""


@dataclass(eq=False)
class Row:
    """A task as the board has it."""

    cron: str
    delay_ms: int
    answered_ms: float
    generation: int
    interrupted: bool = False
    retry_ms: float | None = None
    flight: Flight | None = None
    ended: tuple[float, bool] | None = None


@dataclass(eq=False)
class Place:
    """A shard as the board has it."""

    holder: "Node | None" = None
    term: int = 0
    origin: str | None = None


@dataclass(eq=False)
class Node:
    """One member, through all its processes."""

    name: str
    skew_ms: int
    lines: list[Line]
    is_up: bool = False
    life: int = 0
    frozen_until_ms: float = 0
    edition: int = 0
    held: dict[int, int] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    beaten_ms: float = 0
    next_beat_ms: float = 0
    last_ms: float = 0
    in_touch_ms: float = 0
    is_stopping: bool = False
    is_told_unreachable: bool = False
    calls: int = 0
    runs: int = 0


class Story:
    """Tells one history; *trouble* is how probable a disturbance is in each step."""

    def __init__(self, seed: int, *, trouble: float = 0.02) -> None:
        self.random = Random(seed)
        self._trouble = trouble
        self.now_ms: float = BEGIN_MS + self.random.choice((0, 13_250, 59_750))
        count = self.random.randint(2, 3)
        self.nodes = [self._node(index) for index in range(count)]
        self.places = [Place() for _ in range(SHARDS)]
        self.rows: dict[str, Row] = {}
        self.removed: dict[str, Row] = {}
        """Tasks in no list any more that were running when they left it."""
        self.regs: list[list[Any]] = []
        self.edition = self.generation = 0
        self.is_board_up = True
        self.board_back_ms: float = 0

    def _node(self, index: int) -> Node:
        header = {
            "ev": "Header",
            "v": 1,
            "tz": "UTC",
            "store": "fresh" if index == 0 else "unknown",
            "delta_ms": DELTA_MS,
            "delta_stop_ms": 200_000,
            "persist_window_ms": 1000,
            "member": f"m{index}",
            "shards": SHARDS,
            "failover_ms": FAILOVER_MS,
            "tick_ms": TICK_MS,
        }
        return Node(f"m{index}", self.random.randint(-120, 120), [header])

    def told(self, minutes: int) -> "Story":
        """Tell so much of it."""
        self._begin(self.nodes[0], self._new_list())
        until_ms = self.now_ms + minutes * MINUTE_MS
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            self._happen()
            for node in self.nodes:
                self._live(node)
        for node in self.nodes:
            if node.is_up and not self._is_frozen(node):
                self._write(node, "Tick")
        return self

    @property
    def files(self) -> list[list[Line]]:
        """The traces of the members that ever came up."""
        return [node.lines for node in self.nodes if len(node.lines) > 1]

    # --- the world ---

    def _happen(self) -> None:
        random = self.random
        if not self.is_board_up and self.now_ms >= self.board_back_ms:
            self.is_board_up = True
        if random.random() > self._trouble:
            return
        node = random.choice(self.nodes)
        if not node.is_up:
            if self.is_board_up and self.edition:
                self._begin(node, self.regs)
            return
        if self._is_frozen(node) or node.is_stopping or self.now_ms - node.beaten_ms >= TRUST_MS:
            return
        match random.choice(("kill", "freeze", "list", "stop", "outage", "give", "give", "")):
            case "kill":
                node.is_up = False
            case "freeze":
                node.frozen_until_ms = self.now_ms + random.choice((1_000, 3_000, 9_000, 40_000))
            case "list" if self.is_board_up and node.edition == self.edition:
                self._change(node, self._new_list())
            case "stop" if self.is_board_up:
                self._stop(node)
            case "outage" if self.is_board_up:
                self.is_board_up = False
                self.board_back_ms = self.now_ms + random.choice((1_000, 4_000, 12_000, 70_000))
            case "give" if self.is_board_up and len(node.held) > 1:
                self._give(node, random.choice(sorted(node.held)))

    def _new_list(self) -> list[list[Any]]:
        names = [name for name in NAMES if self.random.random() < 0.8] or ["a"]
        before = {name: [name, cron, delay] for name, cron, delay in self.regs}
        return [
            before[name]
            if name in before and self.random.random() < 0.6
            else [name, self.random.choice(list(MINUTES)), self.random.choice(DELAYS_MS)]
            for name in names
        ]

    def _is_frozen(self, node: Node) -> bool:
        return node.frozen_until_ms > self.now_ms

    def _is_expired(self, node: Node) -> bool:
        return not node.is_up or self.now_ms - node.beaten_ms >= TTL_MS

    def _write(self, node: Node, ev: str, **facts: Any) -> None:
        at_ms = max(self.now_ms + node.skew_ms, node.last_ms)
        node.last_ms = at_ms
        node.lines.append({"ev": ev, "t": at_ms, "proc": f"{node.name}-{node.life}", **facts})

    # --- calls ---

    def _begin(self, node: Node, regs: list[list[Any]]) -> None:
        node.life += 1
        node.is_up, node.is_stopping, node.is_told_unreachable = True, False, False
        node.frozen_until_ms = 0
        node.held, node.flights, node.calls, node.runs = {}, [], 0, 0
        self._change(node, regs)
        node.in_touch_ms = self.now_ms

    def _change(self, node: Node, regs: list[list[Any]]) -> None:
        node.calls += 1
        call = node.calls
        self._write(node, "InitStart", call=call, regs=regs)
        self._beat(node)
        if regs != self.regs or not self.edition:
            self._publish(node, regs)
            self._write(node, "Edition", edition=self.edition, regs=regs)
        node.edition = self.edition
        self._take(node)
        self._write(node, "InitEnd", call=call, ok=True)

    def _publish(self, node: Node, regs: list[list[Any]]) -> None:
        self.edition += 1
        self.regs = regs
        at_ms = self.now_ms + node.skew_ms
        minute_ms = at_ms - at_ms % MINUTE_MS
        rows = {}
        for name, cron, delay in regs:
            row = self.rows.get(name, self.removed.pop(name, None))
            if row is None or name not in self.rows or (row.cron, row.delay_ms) != (cron, delay):
                self.generation += 1
                fresh = Row(cron, delay, minute_ms - 1, self.generation)
                if row is not None:
                    fresh.flight, fresh.ended = row.flight, row.ended
                    fresh.interrupted = row.interrupted and name in self.rows
                    if name not in self.rows and self._is_over(row):
                        fresh.flight = fresh.ended = None
                row = fresh
            rows[name] = row
        for name in self.rows.keys() - rows.keys():
            self._settle(self.rows[name])
            if self.rows[name].flight is not None:
                self.removed[name] = self.rows[name]
        self.rows = rows
        for place in self.places:
            place.holder, place.origin = None, None
            place.term += 1
        for shard in list(node.held):
            del node.held[shard]

    def _stop(self, node: Node) -> None:
        node.calls += 1
        node.is_stopping = True
        self._write(node, "StopStart", call=node.calls)
        for shard in list(node.held):
            self._give(node, shard)

    def _leave(self, node: Node) -> None:
        self._write(node, "StopEnd", call=node.calls)
        node.is_up = False

    # --- shards ---

    def _give(self, node: Node, shard: int) -> None:
        term = node.held.pop(shard)
        self._write(node, "Given", shard=shard, term=term)
        place = self.places[shard]
        if (place.holder, place.term) == (node, term):
            place.holder, place.origin = None, "given"

    def _lose(self, node: Node) -> None:
        """The trust is over: everything held is let go of, and every run."""
        lost = {(shard, term) for shard, term in node.held.items()}
        lost |= {(shard_of(flight.task), flight.term) for flight in node.flights}
        for shard, term in sorted(lost):
            self._write(node, "Lost", shard=shard, term=term)
        node.held.clear()
        for flight in node.flights:
            self._write(node, "RunEnd", id=flight.task, run=flight.number, ok=False)
        node.flights.clear()

    def _take(self, node: Node) -> None:
        may_take_over = self.now_ms - node.in_touch_ms >= TTL_MS
        for shard, place in enumerate(self.places):
            holder = place.holder
            is_mine = holder is node and shard not in node.held
            is_dead = holder is not None and holder is not node and self._is_expired(holder)
            if holder is None or is_mine or (is_dead and may_take_over):
                origin = "lost" if holder is not None else place.origin
                place.holder, place.origin = node, None
                place.term += 1
                node.held[shard] = place.term
                told = {"shard": shard, "term": place.term, "edition": node.edition, "from": origin}
                self._write(node, "Taken", **told)

    def _beat(self, node: Node) -> None:
        if self._is_expired(node) or self.now_ms - node.beaten_ms >= TTL_MS:
            node.in_touch_ms = self.now_ms
        node.beaten_ms = self.now_ms
        node.next_beat_ms = self.now_ms + BEAT_MS

    # --- a member's life ---

    def _live(self, node: Node) -> None:
        if not node.is_up or self._is_frozen(node):
            return
        if (node.held or node.flights) and self.now_ms - node.beaten_ms >= TRUST_MS:
            self._lose(node)
        if self.now_ms >= node.next_beat_ms:
            self._contact(node)
        for flight in list(node.flights):
            if flight.until_ms <= self.now_ms:
                self._end(node, flight)
        for shard in list(node.held):
            self._poll(node, shard)
        if node.is_stopping and not node.flights and self.is_board_up:
            self._leave(node)
            return
        if self.now_ms + node.skew_ms - node.last_ms >= TICK_MS - STEP_MS:
            self._write(node, "Tick")

    def _contact(self, node: Node) -> None:
        if not self.is_board_up:
            node.next_beat_ms = self.now_ms + BEAT_MS / 2
            if not node.is_told_unreachable:
                self._write(node, "Unreachable")
                node.is_told_unreachable = True
            return
        self._beat(node)
        if node.is_told_unreachable:
            self._write(node, "Reachable")
            node.is_told_unreachable, node.in_touch_ms = False, self.now_ms
        for shard, term in list(node.held.items()):
            if (self.places[shard].holder, self.places[shard].term) != (node, term):
                self._give(node, shard)  # a newer list took it
        if node.is_stopping:
            return
        if node.edition == self.edition:
            self._take(node)
        elif self.random.random() < 0.5:
            self._change(node, self.regs)

    def _poll(self, node: Node, shard: int) -> None:
        place = self.places[shard]
        if (place.holder, place.term) != (node, node.held[shard]) or not self.is_board_up:
            return
        for name, row in self.rows.items():
            if shard_of(name) == shard:
                self._settle(row)
                if row.flight is None and self._is_owed(row, self.now_ms + node.skew_ms):
                    self._start(node, name, row)

    def _is_over(self, row: Row) -> bool:
        flight = row.flight
        return flight is None or flight not in flight.runner.flights or self._is_expired(flight.runner)

    def _settle(self, row: Row) -> None:
        """Account for an end that was reported, or a runner that is dead."""
        flight = row.flight
        if flight is None:
            return
        if row.ended is not None:
            ended_ms, ok = row.ended
            row.flight = row.ended = None
            if not ok and flight.generation == row.generation:
                row.retry_ms = ended_ms + row.delay_ms
        elif flight not in flight.runner.flights or self._is_expired(flight.runner):
            row.flight, row.interrupted = None, True

    def _is_owed(self, row: Row, at_ms: float) -> bool:
        if row.interrupted or (row.retry_ms is not None and row.retry_ms <= at_ms):
            return True
        minute_ms = at_ms - at_ms % MINUTE_MS
        while minute_ms > row.answered_ms:
            if minute_ms // MINUTE_MS % 60 in MINUTES[row.cron]:
                return True
            minute_ms -= MINUTE_MS
        return False

    def _start(self, node: Node, name: str, row: Row) -> None:
        node.runs += 1
        lasts_ms = self.random.choice((250, 1_000, 5_000, 20_000, 70_000))
        term = node.held[shard_of(name)]
        flight = Flight(
            name,
            node.runs,
            node,
            self.now_ms,
            self.now_ms + lasts_ms,
            self.random.random() < 0.7,
            term,
            row.generation,
        )
        self._write(node, "RunStart", id=name, run=node.runs, shard=shard_of(name), term=term)
        row.flight, row.answered_ms = flight, node.last_ms
        row.interrupted, row.retry_ms = False, None
        node.flights.append(flight)

    def _end(self, node: Node, flight: Flight) -> None:
        if not self.is_board_up:
            return  # it goes on until it can be told, or is cut off
        node.flights.remove(flight)
        self._write(node, "RunEnd", id=flight.task, run=flight.number, ok=flight.ok)
        row = self.rows.get(flight.task) or self.removed.get(flight.task)
        if row is not None and row.flight is flight:
            row.ended = node.last_ms, flight.ok
