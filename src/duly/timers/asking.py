"""What a machine asks of the one that holds a timer, and what it does for others that ask.

Requests travel over the board. A machine that comes to hold their shard, this one too, hears of them with its
next beat, takes them and answers. A request is taken once, so nothing is done twice; whoever asks waits long
enough for a dead holder to be replaced, and then takes back what nobody has taken: nothing was done. Of what
was taken and not answered nobody knows, and that is said.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from duly.cluster.clock import BoardClock
from duly.cluster.holdings import Holdings
from duly.cluster.identity import drawn
from duly.cluster.tenancy import Tenancy
from duly.errors import StoreError
from duly.events import Announcer
from duly.instant import Instant
from duly.store.board import Hold, Reply, Request, TimerBoard, Waiting
from duly.timers.errors import TimerError, TimerRefusal
from duly.timers.face import Timers

T = TypeVar("T")

_POLL = timedelta(milliseconds=200)

_LEASES = 2
"""For so many leases an answer is waited for: a dead holder has been replaced by then."""

_CLOSING = frozenset({TimerRefusal.OFF, TimerRefusal.STOPPING})
"""Refusals of a machine that is on its way out, and its shards on theirs to another."""


class Verb(StrEnum):
    """What can be asked."""

    TRIGGER = "trigger"
    ENABLE = "enable"
    DISABLE = "disable"


class Done(NamedTuple):
    """Something was done: the run that began, if any, and the machine, unless it is this one."""

    run: int | None = None
    member: str | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """What is written on a request: who did it and which run began, or why it was refused."""

    member: str
    run: int | None = None
    refusal: str = ""
    target: str = ""
    reason: str = ""
    """Of what failed, in words."""


def text_of(answer: Answer) -> str:
    """An answer as the board has it."""
    return json.dumps(msgspec.to_builtins(answer), ensure_ascii=False, separators=(",", ":"))


def answer_from(text: str) -> Answer:
    """The answer in a text of the board, where anybody may have edited it."""
    try:
        return msgspec.convert(json.loads(text), Answer)
    except (ValueError, RecursionError, msgspec.ValidationError):
        reason = "its answer cannot be read; see `duly timers`"
        return Answer("another machine", refusal=TimerRefusal.FAILED, reason=reason)


def refusal_of(error: TimerError, member: str) -> Answer:
    """The answer of *member* to what it refuses."""
    kind = TimerRefusal.MOVING if error.kind in _CLOSING else error.kind
    return Answer(member, refusal=kind, target=error.target)


def refused(answer: Answer, timer: str) -> TimerError | None:
    """What is raised for an answer where it was asked for; None if it was done."""
    if not answer.refusal:
        return None
    if answer.refusal == TimerRefusal.SUPERSEDED:
        return TimerError(TimerRefusal.BEHIND, timer=timer, target=answer.member)
    if answer.refusal == TimerRefusal.UNKNOWN:
        reason = "it has another configuration, without that timer"
        return TimerError(TimerRefusal.FAILED, timer=timer, target=answer.member, reason=reason)
    try:
        kind = TimerRefusal(answer.refusal)
    except ValueError:  # of another version
        kind = TimerRefusal.FAILED
    if kind is TimerRefusal.FAILED:
        reason = answer.reason or answer.refusal
        return TimerError(kind, timer=timer, target=answer.member, reason=reason)
    return TimerError(kind, timer=timer, target=answer.target)


def unanswered(reply: Reply | None, timer: str, holder: str) -> TimerError:
    """What is raised when there is no answer: *reply* is the last look; None if nothing was to be seen."""
    if reply is None or reply.taken_by is not None:
        return TimerError(TimerRefusal.UNANSWERED, timer=timer, target=holder or "another machine")
    return TimerError(TimerRefusal.ELSEWHERE if holder else TimerRefusal.MOVING, timer=timer, target=holder)


class Asking:
    """What a machine does to timers by hand: in *parts*, by shard, those it holds; by *board* all others."""

    def __init__(
        self,
        board: TimerBoard,
        holdings: Holdings,
        tenancy: Tenancy,
        clock: BoardClock,
        announcer: Announcer,
        *,
        parts: Mapping[int, Timers],
    ) -> None:
        self._board = board
        self._mine = holdings
        self._tenancy = tenancy
        self._parts = parts
        self._clock = clock
        self._announce = announcer.announce
        self._name = tenancy.membership.name
        self._is_superseded = False
        """Whether other machines have a newer list: nothing starts here then."""
        self._begun: dict[int, Instant] = {}
        """Requests that we have taken, with their ends: until then they may be given again, and must not be
        done again."""
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- for us ---

    async def done(self, verb: Verb, timer: str, shard: int, holder_of: Callable[[int], str]) -> Done:
        """Do it, or have it done by whoever holds *shard*. Raises TimerError, StoreError.

        *holder_of* tells which machine that is, as far as is known.
        """
        if shard in self._parts:
            return Done(await self._do(verb, timer, shard))
        wait_us = _LEASES * self._board.ttl_us
        until_us = self._clock.now_us() + wait_us
        request = Request(drawn(), shard, timer, verb, self._name, until_us)
        reply = await self._begin(self._last_reply(request, self._clock.steady() + wait_us))
        if reply is None or reply.answer is None:
            raise unanswered(reply, timer, holder_of(shard))
        answer = answer_from(reply.answer)
        if (error := refused(answer, timer)) is not None:
            raise error
        return Done(answer.run, None if reply.taken_by == self._mine.member else answer.member)

    async def _do(self, verb: Verb, timer: str, shard: int) -> int | None:
        if (part := self._parts.get(shard)) is None:
            raise TimerError(TimerRefusal.MOVING, timer=timer)
        if self._is_superseded:  # nor is it switched: what that means depends on what the file says
            raise TimerError(TimerRefusal.SUPERSEDED, timer=timer)
        if verb is Verb.TRIGGER:
            return await part.trigger(timer)
        await (part.enable if verb is Verb.ENABLE else part.disable)(timer)
        return None

    async def _last_reply(self, request: Request, until_us: int) -> Reply | None:
        """What became of a request by then, by the steady clock; None if nobody knows."""
        is_left = False
        while True:
            is_last = self._tenancy.is_leaving or self._clock.steady() >= until_us
            reply = None
            try:
                if not is_left:
                    await self._board.ask(request)
                    is_left = True
                reply = await self._board.reply(request.id, withdraws=is_last)
            except StoreError:
                if is_last and not is_left:
                    raise
            if is_last or (reply is not None and reply.answer is not None):
                return reply
            await self._pause()

    # --- for others ---

    def heed(self, requested: Sequence[Waiting], *, is_superseded: bool) -> None:
        """Begin to do what is asked of us. Nobody waits for it: a beat must not.

        A machine that is leaving does nothing: it is for whoever holds the shards next.
        """
        self._is_superseded = is_superseded
        if self._tenancy.is_leaving:
            return
        over_us = self._clock.now_us() - self._board.ttl_us  # our clock may differ from the board's a little
        self._begun = {at: until_us for at, until_us in self._begun.items() if until_us > over_us}
        shards = {waiting.shard for waiting in requested if waiting.id not in self._begun}
        holds = [hold for hold in self._mine.holds if hold.shard in shards]
        if holds:
            self._begin(self._take(self._mine.member, holds))

    async def _take(self, member: int, holds: Sequence[Hold]) -> None:
        try:
            requests = await self._board.take_requests(member, holds)
        except StoreError:
            return  # if they were taken they are given again: the next beat tells of them in any case
        for request in requests:
            if request.id not in self._begun:
                self._begun[request.id] = request.until_us
                self._begin(self._serve(member, request))

    async def _serve(self, member: int, request: Request) -> None:
        text = text_of(await self._answer_to(request))
        while True:
            try:
                await self._board.answer(member, request.id, text)
            except StoreError:
                # Whoever asked knows by then that it may have been done.
                if self._tenancy.is_leaving or self._clock.now_us() >= request.until_us:
                    return
                await self._pause()
            else:
                return

    async def _answer_to(self, request: Request) -> Answer:
        if request.verb not in set(Verb):
            reason = f"it does not know how to {request.verb} a timer"
            return Answer(self._name, refusal=TimerRefusal.FAILED, reason=reason)
        try:
            run = await self._do(Verb(request.verb), request.timer, request.shard)
        except TimerError as error:
            return refusal_of(error, self._name)
        except StoreError as error:
            return Answer(self._name, refusal=TimerRefusal.FAILED, reason=error.message)
        self._announce(
            "OperatorAction", action=request.verb, id=request.timer, who=f"machine {request.asker}"
        )
        return Answer(self._name, run)

    # --- both ---

    async def end(self) -> None:
        """Return when nothing is asked or done any more. This machine is leaving, its timers let go of."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work, name="duly request")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _pause(self) -> None:
        await self._clock.sleep_until(self._clock.now() + _POLL)
