"""A board in one schema of a PostgreSQL database.

The row of a shard is the mutex of the shard and of every task in it. Each call is one message to the server,
and one transaction: first it locks the rows of the shards it is about (in their order), then, in a
statement of its own and therefore with a snapshot taken when the locks were had, it looks whether what it
wants is right, and does all of it or nothing. So nothing that is decided rests on what was true before a
wait.

The order of locks, for all: the one who publishes (`meta`), shards, members, tasks, removed tasks, timers,
requests. A take keeps the leases of those it takes from as they are until it is done; a beat that waited for
that sees its outcome.

Beats and looks have a connection and a thread of their own, so that a long write does not delay a renewal.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from duly.errors import StoreError, TaskListMismatchError
from duly.instant import MINUTE_US, duration_us
from duly.store.board import (
    SHARDS,
    TTL_US,
    AwayEnd,
    Change,
    Decide,
    Hold,
    Place,
    Published,
    Reply,
    Reported,
    Request,
    Row,
    Seat,
    SeatLostError,
    ShardsLostError,
    StartUp,
    SupersededError,
    Taken,
    TimerRow,
    View,
    Waiting,
    shard_of,
)
from duly.store.postgres.address import address_of
from duly.store.postgres.desk import Desk
from duly.store.postgres.founding import Identity, opened
from duly.store.postgres.packing import (
    array,
    escaped,
    packed_state,
    packed_timers,
    packed_whole,
    request_from,
    stored_from,
    timer_from,
    unescaped,
)
from duly.store.postgres.scripts import Scripts
from duly.store.postgres.waiting import OnWait, waited_for

T = TypeVar("T")

FORGOTTEN_US = 24 * 60 * MINUTE_US
"""A member that has been dead for so long, and holds nothing, is forgotten when another joins."""

REQUEST_FORGOTTEN_US = 10 * MINUTE_US
"""So long after its time a request is forgotten, when somebody else asks."""

_WHOLE_BOARD = 5
"""So many times longer is waited for what concerns all tasks: making the tables, publishing a list."""

_SHORTEST_LEASE = timedelta(milliseconds=500)

_decoded = msgspec.json.decode


class PostgresBoard:
    """A board at *url*, in the schema *schema*.

    *lease* is how long a member may be silent and count as alive. No call waits longer than *patience_s* for
    any one answer of the server, half of that time unless told otherwise (a renewal that was lost on the way
    can be tried again), but five times as long when it opens the board or publishes a list.

    Opening it tries again for as long as *wait* while the server cannot be reached or is not ready yet, and
    tells *on_wait* after each try: the reason, and how many seconds have been waited so far.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "duly",
        lease: timedelta = timedelta(microseconds=TTL_US),
        patience_s: float | None = None,
        wait: timedelta = timedelta(0),
        on_wait: OnWait | None = None,
    ) -> None:
        address = address_of(url)
        if lease < _SHORTEST_LEASE:
            raise ValueError(f"a lease must be a timedelta of at least half a second, not {lease!r}")
        if wait < timedelta(0):
            raise ValueError(f"to wait for a database takes a timedelta of zero or more, not {wait!r}")
        if patience_s is None:
            patience_s = lease.total_seconds() / 2
        self._ttl_us = duration_us(lease)
        self._name = address.name
        self._scripts = Scripts(schema)
        self._wait_s = wait.total_seconds()
        self._on_wait = on_wait
        self._new_desk = partial(Desk, "duly board", address, patience_s=patience_s)
        self._desk = self._new_desk()
        self._pulse = Desk("duly beats", address, patience_s=patience_s)

    @property
    def name(self) -> str:
        """The address without password and options."""
        return self._name

    @property
    def ttl_us(self) -> int:
        """How long the lease of a member lasts unless it is renewed."""
        return self._ttl_us

    async def open(self, new_id: str, /, *, shards: int = SHARDS) -> str:
        """Connect, make the tables if there are none, and give the scheduler identifier."""
        desk = self._desk
        found = partial(opened, desk.line, self._scripts, self.name, Identity(new_id, shards))
        attempt = partial(desk.open, found, times_patience=_WHOLE_BOARD)
        try:
            identity = await waited_for(attempt, wait_s=self._wait_s, on_wait=self._on_wait)
        except asyncio.CancelledError:
            self._desk = self._new_desk()
            desk.leave()  # what nobody waits for any more may yet succeed
            raise
        except BaseException:
            desk.end()
            raise
        return identity.scheduler_id

    async def join(self, member: int, name: str, /, *, ttl_us: int) -> None:
        """Become *member*, with no edition and no shard."""
        values = {"member": member, "name": escaped(name), "ttl_us": ttl_us, "forgotten_us": FORGOTTEN_US}
        await self._ask(self._scripts.of("server", "join"), values)

    async def beat(self, member: int, /, *, ttl_us: int, lag_ms: int = 0, is_leaving: bool = False) -> View:
        """Renew the lease and look at the board."""
        values = {"member": member, "ttl_us": ttl_us, "lag_ms": lag_ms, "is_leaving": is_leaving}
        _, beaten, seen = await self._ask_pulse(self._scripts.of("server", "beat", "view"), values)
        if not beaten:
            raise SeatLostError(store=self.name)
        return _view_from(seen[0])

    async def view(self) -> View:
        """Look at the board as an outsider."""
        return _view_from((await self._ask_pulse(self._scripts.of("view"), {"member": None}))[-1][0])

    async def publish(
        self, member: int, fingerprint: str, decide: Decide, /, *, displaces: bool = True
    ) -> Published:
        """Bring a list, and make it the newest edition if it should be."""
        work = partial(self._publish, member, escaped(fingerprint), decide, displaces)
        return await self._do(work, times_patience=_WHOLE_BOARD)

    async def take(self, member: int, shards: Sequence[int], /) -> Taken:
        """Take those shards that are nobody's, this member's own, or a dead member's."""
        return await self._do(partial(self._take, member, shards))

    async def claim(self, member: int, decide: Decide, /) -> None:
        """Put right what another server has forgotten."""
        await self._do(partial(self._claim, member, decide))

    async def write(
        self,
        member: int,
        holds: Mapping[Hold, int],
        /,
        *,
        rows: Sequence[Row],
        is_whole: bool = False,
    ) -> None:
        """Write rows in shards that are held, if every hold is good and every number is new."""
        shards = [hold.shard for hold in holds]
        board = self._desk.identity
        assert board is None or {shard_of(row.task.name, board.shards) for row in rows} <= set(shards)
        fence = {
            "member": member,
            "shards": array(shards),
            "terms": array(hold.term for hold in holds),
            "numbers": array(holds.values()),
            "ttl_us": self._ttl_us,
        }
        write = self._write_whole if is_whole else self._write
        refused, present = await self._do(partial(write, fence, rows))
        if lost := _decoded(refused):
            raise ShardsLostError(store=self.name, shards=lost)
        if present != len(rows):
            raise TaskListMismatchError(expected=len(rows), actual=present)

    async def note_start_up(self, member: int, start_up: StartUp, /) -> None:
        """Have every view show when the first machine started up."""
        values = {"member": member, "at_us": start_up.at_us, "opened_us": start_up.opened_us}
        if not (await self._ask(self._scripts.of("start_up"), values))[-1]:
            raise SeatLostError(store=self.name)

    async def timers(self, shards: Sequence[int] | None = None, /) -> Sequence[TimerRow]:
        """The timers of *shards*, or of all."""
        values = {"shards": None if shards is None else array(shards)}
        return await self._do(partial(self._timers, values))

    async def write_timers(
        self,
        member: int,
        hold: Hold,
        number: int,
        /,
        *,
        put: Sequence[TimerRow],
        removed: Sequence[int],
        edition: int | None = None,
    ) -> None:
        """Write timers of a shard that is held, if the hold is good, and the number and the edition new."""
        assert {row.shard for row in put} <= {hold.shard}
        fence = {
            "member": member,
            "shards": array([hold.shard]),
            "shard": hold.shard,
            "term": hold.term,
            "number": number,
            "edition": edition,
        }
        is_held, newest = await self._do(partial(self._write_timers, fence, put, removed))
        if not is_held:
            raise ShardsLostError(store=self.name, shards=[hold.shard])
        if edition is not None and newest > edition:
            raise SupersededError(store=self.name, edition=edition, newest=newest)

    async def ask(self, request: Request, /) -> None:
        """Leave a request, unless it is there, and forget those of long ago."""
        texts = {"timer": request.timer, "verb": request.verb, "asker": request.asker}
        values = {
            **request._asdict(),
            **{key: escaped(text) for key, text in texts.items()},
            "forgotten_us": REQUEST_FORGOTTEN_US,
        }
        await self._ask(self._scripts.of("ask"), values)

    async def take_requests(self, member: int, holds: Sequence[Hold], /) -> Sequence[Request]:
        """Take what is asked of *member* in these shards."""
        values = {
            "member": member,
            "shards": array(hold.shard for hold in holds),
            "terms": array(hold.term for hold in holds),
        }
        rows = (await self._ask(self._scripts.of("lock", "take_requests"), values))[-1]
        return sorted(map(request_from, rows), key=lambda request: (request.until_us, request.id))

    async def answer(self, member: int, request_id: int, answer: str, /) -> None:
        """Answer a request that *member* has taken."""
        values = {"member": member, "id": request_id, "answer": escaped(answer)}
        await self._ask(self._scripts.of("answer"), values)

    async def reply(self, request_id: int, /, *, withdraws: bool = False) -> Reply | None:
        """What has become of a request, which is taken back if it can and is to be."""
        names = ("withdraw", "reply") if withdraws else ("reply",)
        answers = await self._ask(self._scripts.of(*names), {"id": request_id})
        rows = [row for of_one in answers[-len(names) :] for row in of_one]
        return Reply(rows[0][0], None if rows[0][1] is None else unescaped(rows[0][1])) if rows else None

    async def report(self, member: int, ends: Sequence[AwayEnd], /) -> None:
        """Put the ends of away runs on their rows."""
        values = {
            "member": member,
            "id": array(end.task_id for end in ends),
            "started_us": array(end.started_us for end in ends),
            "at_us": array(end.ended_us for end in ends),
            "failed": array(end.is_failed for end in ends),
        }
        await self._ask(self._scripts.of("report"), values)

    async def give(self, member: int, holds: Sequence[Hold], /) -> None:
        """Give up shards."""
        values = {
            "member": member,
            "shards": array(hold.shard for hold in holds),
            "terms": array(hold.term for hold in holds),
        }
        await self._ask(self._scripts.of("lock", "give"), values)

    async def leave(self, member: int, /) -> None:
        """Give up everything, and be no member any more."""
        await self._ask(self._scripts.of("leave"), {"member": member})

    async def close(self) -> None:
        """Disconnect."""
        await self._shut()

    async def drop(self) -> None:
        """Disconnect: to the server, an end of the process looks the same."""
        await self._shut()

    async def _shut(self) -> None:
        await self._desk.close()
        await self._pulse.close()

    async def _ask(self, script: str, values: Mapping[str, Any]) -> list[list[tuple[Any, ...]]]:
        return await self._do(partial(self._desk.line.ask, script, values))

    async def _ask_pulse(self, script: str, values: Mapping[str, Any]) -> list[list[tuple[Any, ...]]]:
        return await self._pulse.do(partial(self._pulse.line.ask, script, values), at=self._desk)

    async def _do(self, work: Callable[[], T], *, times_patience: int = 1) -> T:
        return await self._desk.do(work, times_patience=times_patience)

    # --- in the threads of the desks ---

    @property
    def _shards(self) -> int:
        identity = self._desk.identity
        assert identity is not None, "nothing is done before the board is open"
        return identity.shards

    def _take(self, member: int, shards: Sequence[int]) -> Taken:
        values = {"member": member, "shards": array(shards), "ttl_us": self._ttl_us}
        *_, summary, rows = self._desk.line.ask(self._scripts.of("server", "take"), values)
        ((now_us, is_alive, taken),) = summary
        if not is_alive:
            raise SeatLostError(store=self.name)
        holds = [Hold(shard, term) for shard, term in _decoded(taken)]
        return Taken(holds, [stored_from(row) for row in rows], now_us)

    def _write(self, fence: Mapping[str, Any], rows: Sequence[Row]) -> tuple[Any, ...]:
        script = self._scripts.of("server", "lock", "write")
        return self._desk.line.ask(script, {**fence, **packed_state(rows)})[-1][0]

    def _write_whole(self, fence: Mapping[str, Any], rows: Sequence[Row]) -> tuple[Any, ...]:
        values = {**fence, **packed_whole(rows, self._shards)}
        return self._desk.line.ask(self._scripts.write_whole, values)[-1][0]

    def _timers(self, values: Mapping[str, Any]) -> Sequence[TimerRow]:
        return [timer_from(row) for row in self._desk.line.ask(self._scripts.of("timers"), values)[-1]]

    def _write_timers(
        self, fence: Mapping[str, Any], put: Sequence[TimerRow], removed: Sequence[int]
    ) -> tuple[Any, ...]:
        values = {**fence, **packed_timers(put), "removed": array(removed)}
        return self._desk.line.ask(self._scripts.of("lock", "write_timers"), values)[-1][0]

    def _publish(self, member: int, fingerprint: str, decide: Decide, displaces: bool) -> Published:
        ask, scripts = self._desk.line.ask, self._scripts
        ask(scripts.of("server"), {"ttl_us": self._ttl_us})  # by itself: every beat waits for it
        values = {"member": member, "fingerprint": fingerprint}
        *_, ((is_member, newest, own, is_superseded),) = ask("BEGIN;\n" + scripts.of("standing"), values)
        if not is_member:
            raise SeatLostError(store=self.name)
        is_new = own == 0 or (own < newest and not is_superseded)
        edition = newest + 1 if is_new else own
        if is_new:
            self._supersede(edition, fingerprint, decide, displaces)
        if not ask(scripts.of("adopt"), {"member": member, "edition": edition})[-1]:
            raise SeatLostError(store=self.name)
        ask("COMMIT", {})
        return Published(edition, is_current=edition == max(newest, edition), is_new=is_new)

    def _supersede(self, edition: int, fingerprint: str, decide: Decide, displaces: bool) -> None:
        ask, scripts = self._desk.line.ask, self._scripts
        *_, ((now_us, scheduler_id),), rows = ask(scripts.of("lock_all", "load"), {})
        change = decide([stored_from(row) for row in rows], now_us, unescaped(scheduler_id))
        self._remove(change)
        self._put(change)
        values = {"edition": edition, "fingerprint": fingerprint, "displaces": displaces}
        ask(scripts.of("publish"), values)

    def _claim(self, member: int, decide: Decide) -> None:
        """Look first without locks: mostly there is nothing to put right, and others are in a hurry too."""
        values = {"member": member, "ttl_us": self._ttl_us}
        seen = self._decided(self._desk.line.ask(self._scripts.of("server", "load", "seat"), values), decide)
        if not seen.put:
            return
        shards = {shard_of(row.task.name, self._shards) for row in seen.put}
        # A new id is one that nobody else has come by meanwhile.
        wanted = range(self._shards) if seen.removed else sorted(shards)
        script = "BEGIN;\n" + self._scripts.of("lock", "load", "seat")
        answers = self._desk.line.ask(script, {**values, "shards": array(wanted)})
        change = self._decided(answers, decide)
        held = [row for row in change.put if shard_of(row.task.name, self._shards) in wanted]
        if len(held) < len(change.put) or (change.removed and not seen.removed):
            raise StoreError(store=self.name, reason="was changed meanwhile; it is told again")
        self._put(change)
        self._remove(change)
        self._desk.line.ask("COMMIT", {})

    def _decided(self, answers: list[list[tuple[Any, ...]]], decide: Decide) -> Change:
        *_, ((now_us, scheduler_id),), rows, seats = answers
        if not seats:
            raise SeatLostError(store=self.name)
        return decide([stored_from(row) for row in rows], now_us, unescaped(scheduler_id))

    def _remove(self, change: Change) -> None:
        if change.removed:
            self._desk.line.ask(self._scripts.of("remove"), {"removed": array(change.removed)})

    def _put(self, change: Change) -> None:
        if change.put:
            self._desk.line.ask(self._scripts.put, packed_whole(change.put, self._shards))


def _view_from(row: tuple[Any, ...]) -> View:
    now_us, edition, seats, places, reported, fingerprint, server, requested, start_up, is_open = row
    return View(
        now_us=now_us,
        edition=edition,
        seats=[Seat(member, unescaped(name), *rest) for member, name, *rest in _decoded(seats)],
        places=[Place(*place) for place in _decoded(places)],
        reported=[Reported(AwayEnd(*end), run_by) for *end, run_by in _decoded(reported)],
        fingerprint=unescaped(fingerprint),
        server=server,
        requested=[Waiting(*each) for each in _decoded(requested)],
        start_up=None if start_up is None else StartUp(*_decoded(start_up)),
        is_open=is_open,
    )
