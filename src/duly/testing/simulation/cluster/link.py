"""The board as one program sees it: requests and answers that travel, and may get lost, late, or overtaken.

As the PostgreSQL board has it there are two lanes, one for beats and one for all else, and in each one call
at a time. Whoever waits for an answer loses patience after half a lease: the call fails, nobody knows whether
it took effect, and its request may yet arrive, behind its own repetition. A request that has left outlives
its sender. `publish` and `claim` do not: their sender has a part in it, and a transaction without its client
is rolled back.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from duly.errors import StoreError
from duly.instant import SECOND_US, Instant
from duly.store.board import (
    SHARDS,
    AwayEnd,
    Change,
    Decide,
    Hold,
    Published,
    Row,
    Stored,
    Taken,
    View,
)
from duly.testing.simulation.cluster.plan import Fate, Harm
from duly.testing.simulation.cluster.sea import Sea
from duly.testing.simulation.cluster.witness import Witness
from duly.testing.simulation.cluster.world import World
from duly.testing.simulation.stores import driven

if TYPE_CHECKING:
    from duly.testing.simulation.cluster.program import Program

T = TypeVar("T")
_MARGIN = 6
"""A member stops trusting its lease when a sixth of it is left."""


@dataclass(eq=False, slots=True)
class _Call:
    kind: str
    do: Callable[[], Coroutine[Any, Any, Any]]
    future: "asyncio.Future[Any]"
    lane: "_Lane"
    is_over: bool = False
    """Its sender has an answer, or has given it up."""
    harm: Harm | None = None
    timer: asyncio.TimerHandle | None = None


class _Lane:
    def __init__(self, epoch: int) -> None:
        self.queue: deque[_Call] = deque()
        self.is_busy = False
        self.epoch = epoch


class Link:
    """A board, seen from one program."""

    def __init__(self, world: World, sea: Sea, witness: Witness, program: "Program") -> None:
        self._world = world
        self._sea = sea
        self._witness = witness
        self._program = program
        self._host = program.host
        self._board = sea.board()
        self._lanes = {"beat": _Lane(sea.epoch), "other": _Lane(sea.epoch)}
        self.member = 0
        self._heard = ""
        """Which server answered the last beat under this number."""
        self.edition = 0
        """The edition of the list that this program has."""
        self.trusted_until_us = 0
        """Until when it may trust its lease, by its own steady clock: reckoned here once more."""

    @property
    def name(self) -> str:
        """The name for messages."""
        return "simulated board"

    @property
    def ttl_us(self) -> int:
        """How long a lease lasts."""
        return self._board.ttl_us

    async def open(self, _new_id: str, /, *, shards: int = SHARDS) -> str:  # noqa: ARG002 (the plan says it)
        """Open the board inside."""
        return await self._asked("open", lambda: self._board.open("simulated", shards=self._witness.shards))

    async def join(self, member: int, _name: str, /, *, ttl_us: int) -> None:
        """Join, under the name of the program."""
        if member != self.member:
            self._heard = ""
        self.member, self.edition = member, 0
        self._witness.note(self._program, f"joins as {member % 1000}")
        await self._asked("join", lambda: self._board.join(member, self._program.name, ttl_us=ttl_us))

    async def beat(self, member: int, /, *, ttl_us: int, lag_ms: int = 0, is_leaving: bool = False) -> View:
        """Renew the lease."""
        asked_us = self._program.steady.now_us

        view = await self._asked(
            "beat",
            lambda: self._board.beat(member, ttl_us=ttl_us, lag_ms=lag_ms, is_leaving=is_leaving),
        )
        if self._heard in {"", view.server}:  # a server that has just come to answer must be told first
            until_us = asked_us + ttl_us - ttl_us // _MARGIN
            self.trusted_until_us = max(self.trusted_until_us, until_us)
        self._heard = view.server
        return view

    async def view(self) -> View:
        """Look."""
        return await self._asked("view", self._board.view)

    async def publish(self, member: int, fingerprint: str, decide: Decide, /) -> Published:
        """Bring a list."""

        async def do() -> Published:
            published = await self._board.publish(member, fingerprint, decide)
            self._witness.note_published(self._program, fingerprint, published)
            return published

        published = await self._asked("publish", do)
        self.edition = published.edition
        self._witness.note_health()
        return published

    async def take(self, member: int, shards: Sequence[int], /) -> Taken:
        """Take shards."""

        async def do() -> Taken:
            before = [(shard.holder, shard.term) for shard in self._sea.table.shards]
            taken = await self._board.take(member, shards)
            self._witness.note_taken(self._program, member, taken, before)
            return taken

        return await self._asked("take", do)

    async def claim(self, member: int, decide: Decide, /) -> None:
        """Put rows right."""

        def decided(stored: Sequence[Stored], now_us: Instant, scheduler_id: str) -> Change:
            change = decide(stored, now_us, scheduler_id)
            self._witness.note(self._program, f"claims {[row.task.name for row in change.put]}")
            return change

        await self._asked("claim", lambda: self._board.claim(member, decided))

    async def write(
        self, member: int, holds: Mapping[Hold, int], /, *, rows: Sequence[Row], is_whole: bool = False
    ) -> None:
        """Write rows."""

        async def do() -> None:
            is_held = self._witness.is_held(member, holds, rows)
            await self._board.write(member, holds, rows=rows, is_whole=is_whole)
            self._witness.note_written(self._program, member, rows, is_held=is_held)

        await self._asked("write", do)

    async def report(self, member: int, ends: Sequence[AwayEnd], /) -> None:
        """Report ends."""

        async def do() -> None:
            await self._board.report(member, ends)
            self._witness.note_reported(member, ends)

        await self._asked("report", do)

    async def give(self, member: int, holds: Sequence[Hold], /) -> None:
        """Give shards up."""
        self._witness.note(self._program, f"gives {[hold.shard for hold in holds]}")
        await self._asked("give", lambda: self._board.give(member, holds))

    async def leave(self, member: int, /) -> None:
        """Leave."""
        self._witness.note(self._program, "leaves")
        await self._asked("leave", lambda: self._board.leave(member))

    async def close(self) -> None:
        """Disconnect; that needs nobody's consent."""

    async def drop(self) -> None:
        """Disconnect."""

    # --- messages ---

    async def _asked(self, kind: str, do: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._program.is_dead:
            raise asyncio.CancelledError
        lane = self._lanes["beat" if kind in {"beat", "view"} else "other"]
        call = _Call(kind, do, self._program.loop.create_future(), lane)
        lane.queue.append(call)
        if not lane.is_busy:
            self._send_next(lane)
        answer: T = await call.future
        return answer

    def _send_next(self, lane: _Lane) -> None:
        lane.is_busy = bool(lane.queue)
        if not lane.queue:
            return
        call = lane.queue.popleft()
        patience_s = self.ttl_us / 2 / SECOND_US
        call.timer = self._program.loop.call_later(patience_s, self._give_up, call)
        if lane.epoch != self._sea.epoch:
            lane.epoch = self._sea.epoch
            self._answer_later(call, StoreError(store=self.name, reason="lost the connection"), None)
            return
        weather = self._sea.weather[self._host]
        call.harm = self._sea.fate_of(self._host)
        if call.harm is not None:
            self._witness.trouble(self.ttl_us // 2)
        match call.harm.fate if call.harm is not None else None:
            case Fate.REQUEST_LOST:
                return
            case Fate.CRASH_BEFORE:
                self._program.fall()
                return
            case Fate.CRASH_SENT:
                self._program.fall()
            case Fate.REQUEST_LATE:
                assert call.harm is not None
                self._world.after(call.harm.late_us, lambda: self._arrive(call))
                return
        if weather.parted:
            self._sea.counts["messages parted"] += 1
            if weather.late:
                weather.held.append(lambda: self._arrive(call))
            return
        self._world.after(self._sea.request_us(self._host), lambda: self._arrive(call))

    def _arrive(self, call: _Call) -> None:
        if call.is_over:
            self._sea.counts["requests behind their time"] += 1
        if self._sea.away:
            if not self._sea.silent:
                self._answer_later(call, StoreError(store=self.name, reason="refuses connections"), None)
            return
        if call.kind in {"publish", "claim"} and (
            call.is_over or self._program.is_dead or self._program.is_paused
        ):
            return
        error, answer = None, None
        try:
            answer = driven(call.do())
        except Exception as raised:
            error = raised
        self._witness.note_done(self._program, call.kind, error)
        if call.harm is not None and call.harm.fate is Fate.CRASH_DONE and not self._program.is_dead:
            self._program.fall()
        if call.harm is None or call.harm.fate is not Fate.ANSWER_LOST:
            self._answer_later(call, error, answer)

    def _answer_later(self, call: _Call, error: Exception | None, answer: object) -> None:
        delay_us = self._sea.answer_us(self._host)
        if call.harm is not None and call.harm.fate is Fate.ANSWER_LATE:
            delay_us += call.harm.late_us
        self._world.after(delay_us, lambda: self._come_back(call, error, answer))

    def _come_back(self, call: _Call, error: Exception | None, answer: object) -> None:
        if self._sea.weather[self._host].parted:
            self._sea.counts["messages parted"] += 1
        elif not self._program.is_dead:
            self._program.hear(lambda: self._settle(call, error, answer))

    def _give_up(self, call: _Call) -> None:
        self._sea.counts["calls given up"] += 1
        self._settle(call, StoreError(store=self.name, reason="does not answer"), None)

    def _settle(self, call: _Call, error: Exception | None, answer: object) -> None:
        if call.is_over:
            return
        call.is_over = True
        assert call.timer is not None
        call.timer.cancel()
        if not call.future.done():
            if error is None:
                call.future.set_result(answer)
            else:
                call.future.set_exception(error)
        self._send_next(call.lane)
