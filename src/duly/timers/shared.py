"""Timers shared by the daemons of a cluster: each fires once among all machines.

Timers are divided into shards by their targets, so that all timers of one job are in one place and know of
each other. Each shard that this machine holds is worked on by a `Timers` of its own, which does not know that
there are others. What is here is the tenant of a `cluster.tenancy`: shards come, and their timers begin; they
go, and their timers end.

A shard is given away only when nothing runs in it, and unless it must go only when no retry is pending: those
are in memory alone. It is lost when the lease runs out: then its runs are ended at once, because another
machine will find them interrupted. When a newer list is in effect nothing starts here, what runs is let end,
and the shards go to the machines that have that list.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import Any

from duly.clock import Clock
from duly.cluster.clock import BoardClock
from duly.cluster.holdings import Holdings
from duly.cluster.tenancy import Tenancy
from duly.config.schema import Timer
from duly.core.record import Record
from duly.errors import StoreError
from duly.events import Announcer
from duly.instant import Instant, instant_of
from duly.store.board import Change, Hold, StartUp, Taken, TimerBoard, TimerRow, View, shard_of
from duly.timers.arrival import arrived
from duly.timers.asking import Asking, Done, Verb
from duly.timers.board_time import BoardTime, CuttableTargets
from duly.timers.calendar import CalendarShelf
from duly.timers.elsewhere import Elsewhere, next_of
from duly.timers.errors import TimerError, TimerRefusal
from duly.timers.face import NoteMiss, Timers
from duly.timers.recall import left_as_they_were
from duly.timers.record import Declared, TimerRecordError, fingerprint_of, name_in, registered_in, text_of
from duly.timers.shard import ShardShelf, Stint, new_number
from duly.timers.timer import TimerState

_LOOKS_EVERY = 5
"""After so many beats the timers of others are looked at even if nobody has asked."""


class SharedTimers:
    """The timers of a configuration, as far as this machine holds them."""

    def __init__(
        self,
        board: TimerBoard,
        targets: CuttableTargets,
        clock: BoardClock,
        announcer: Announcer,
        *,
        host_clock: Clock,
        zone: tzinfo,
        name: str,
        shards: int,
        note_miss: NoteMiss = lambda *_: None,
        on_trust: Callable[[int], None] = lambda _until_us: None,
    ) -> None:
        self._board = board
        self._cut_off = targets.cut_off
        self._clock = clock
        self._host_clock = host_clock
        self._announcer = announcer
        self._zone = zone
        self._shards = shards
        """Into how many a new board is divided."""
        self._note_miss = note_miss
        self._on_trust = on_trust
        """Told until when, by the steady clock, runs may go on without another word from us."""
        self._targets = BoardTime(targets, self._ahead_us)
        self._mine = Holdings()
        self.tenancy = Tenancy(board, self, self._mine, clock, announcer, name=name, steady=clock.steady)
        self._calendars = CalendarShelf(zone)
        self._declared: list[Declared] = []
        self._invalid: Collection[str] = ()
        self._fingerprint = ""
        self._is_start_up = False
        """It is happening just now, with us as the first machine."""
        self._start_up_edition = 0
        """The edition of our list if we brought it at that start-up; what is new in it is part of that."""
        self._parts: dict[int, Timers] = {}
        self._lists: dict[int, list[Declared]] = {}
        """Which list each of them has: another than ours if it could not be told of that yet."""
        self._stints: dict[int, int] = {}
        """The number of each of them that is at work, which no other ever has."""
        self._moved: dict[str, Record] = {}
        """By name, what the board had of timers in the shards of their former targets."""
        self._partial: set[int] = set()
        """Those that were put to work without all their timers: a list that is gone had changed the rest."""
        self._elsewhere = Elsewhere(board, self._mine)
        self._asking = Asking(board, self._mine, self.tenancy, clock, announcer, parts=self._parts)
        self._is_superseded = False
        """A living member has a newer list: nothing starts here."""
        self._is_looked_at = True
        """Somebody has asked for timers since we last looked at those of others."""
        self._beats = 0
        self._emptied = asyncio.Event()
        """Set while no shard is worked on."""

    # --- life ---

    async def start(
        self,
        definitions: Sequence[Timer],
        *,
        started_up_us: Instant | None,
        is_start_up: bool = False,
        invalid: Collection[str] = (),
    ) -> None:
        """Join the cluster, bring *definitions*, and take a share. Raises StoreError.

        A `stop` that comes before this is done holds: nothing begins.
        """
        if self.tenancy.is_leaving:
            return
        self._declare(definitions, invalid)
        self.tenancy.renew()
        async with self.tenancy.moving:
            await self.tenancy.open(shards=self._shards)
            try:
                await self._join(started_up_us, is_start_up=is_start_up)
            except BaseException:
                await self._leave()
                raise
            self._is_start_up = False
            self.tenancy.begin()

    async def _join(self, started_up_us: Instant | None, *, is_start_up: bool) -> None:
        await self.tenancy.join()
        ttl_us = self._board.ttl_us
        arrival = await arrived(self.tenancy, self._mine.member, self._clock, ttl_us)
        self._is_start_up = is_start_up and arrival.is_first
        if arrival.is_first and started_up_us is not None:
            at_us = started_up_us + self._ahead_us()
            start_up = StartUp(at_us, at_us - 1 if is_start_up else self._clock.now_us())
            await self._board.note_start_up(self._mine.member, start_up)
        await self.publish()
        await self.tenancy.heed(await self.tenancy.beat())
        if arrival.is_part_of(self._elsewhere.start_up, self._clock.now_us(), ttl_us):
            self._start_up_edition = self._mine.edition
        await self.tenancy.rebalance()
        await self._look_elsewhere()

    async def reload(self, definitions: Sequence[Timer], *, invalid: Collection[str] = ()) -> None:
        """Make *definitions* the timers from now on. Raises StoreError."""
        async with self.tenancy.moving:
            before = self._declared, self._invalid, self._fingerprint
            self._declare(definitions, invalid)
            try:
                await self.publish()
            except BaseException:
                # If it took effect all the same, the next beat shows an edition that we do not know of.
                self._declared, self._invalid, self._fingerprint = before
                raise
            await self.tenancy.heed(await self.tenancy.beat())
            await self.tenancy.rebalance()

    def stop(self) -> Coroutine[Any, Any, None]:
        """Close the gate on this machine: from this call on nothing of timers begins here.

        A shard in which something runs is kept until that has ended, lest another machine start the same
        beside it: `linger` then.
        """
        self.tenancy.is_leaving = True
        stopping = {shard: part.stop() for shard, part in self._parts.items() if part.is_idle()}
        for shard in self._parts.keys() - stopping.keys():
            self._parts[shard].retire()
        return self._stop(stopping)

    async def _stop(self, stopping: Mapping[int, Coroutine[Any, Any, None]]) -> None:
        async with self.tenancy.moving:
            for shard, each in stopping.items():
                await each
                await self._drop(shard)
            if self._parts:
                with suppress(StoreError):  # the next beat tells of it, and tries again
                    await self.tenancy.rebalance()
            if not self._parts:
                await self._leave()

    @property
    def is_lingering(self) -> bool:
        """Whether the gate is closed, and something runs that a timer had started."""
        return self.tenancy.is_leaving and bool(self._parts)

    async def linger(self) -> None:
        """Hold on to what runs until it has ended, and leave then."""
        await self._emptied.wait()
        async with self.tenancy.moving:
            await self._leave()

    async def close(self) -> None:
        """End with the supervisor: others go on at once with what does not run, and then with the rest."""
        self.tenancy.is_leaving = True
        async with self.tenancy.moving:
            with suppress(StoreError):  # then their lease runs out; told by the tenancy at its next beat
                await self.tenancy.give_all()
            for part in tuple(self._parts.values()):  # the lease may run out meanwhile
                with suppress(StoreError):  # told as StoreFault; the next holder finds the run interrupted
                    await part.close()
            await self._leave()

    async def _leave(self) -> None:
        await self.tenancy.end()
        for shard in tuple(self._parts):
            await self._drop(shard)
        await self._asking.end()
        if self._mine.member:
            await self.tenancy.leave()

    # --- tenant ---

    @property
    def fingerprint(self) -> str:
        """Of our list."""
        return self._fingerprint

    def lag_us(self) -> int:
        """Nothing waits for room here."""
        return 0

    def renewed(self) -> None:
        """Let runs go on, and look at what could not start while the lease was in doubt."""
        if (until_us := self.tenancy.trusted_until_us) is not None:
            self._on_trust(until_us)
        for part in self._parts.values():
            part.wake()

    def halt(self) -> None:
        """End all runs of timers."""
        self._cut_off()

    async def cut(self) -> list[Hold]:
        """Let go of everything as if the process had died."""
        held = self._mine.holds
        await self._lose([hold.shard for hold in held])
        return held

    async def heed(self, view: View) -> bool:
        """Account for what others did."""
        self._elsewhere.heed(view)
        gone = self._mine.gone(view)
        if gone:
            await self._lose([hold.shard for hold in gone])
            self._announcer.announce(
                "ShardsLost", shards=[list(hold) for hold in gone], reason="they are held by another member"
            )
        living = [seat.edition for seat in view.seats if seat.is_alive and not seat.is_leaving]
        self._is_superseded = max(living, default=0) > self._mine.edition
        for shard in tuple(self._parts):
            self._pause(shard)
        self._asking.heed(view.requested, is_superseded=self._is_superseded)
        if not self._is_superseded:
            await self._tell_lists()
        return bool(gone)

    def _pause(self, shard: int) -> None:
        if (part := self._parts.get(shard)) is not None:  # it may have been lost meanwhile
            is_behind = self._lists[shard] is not self._declared
            part.pause(is_on=self._is_superseded or is_behind)

    async def _tell_lists(self) -> None:
        """Tell those of our timers that do not know it yet that there is another list."""
        for shard, part in tuple(self._parts.items()):
            if self._lists.get(shard) is self._declared:
                continue
            if shard in self._partial:
                # It does not know all rows. Let go of, it is taken anew, whole.
                if part.is_idle():
                    await part.flush()
                    await self._drop(shard)
                continue
            definitions = self._definitions_of(shard)
            await part.reload(definitions, invalid=self._invalid, moved=self._moved_of(definitions))
            if self._parts.get(shard) is part:
                self._lists[shard] = self._declared
                self._pause(shard)

    async def part(self, shards: Sequence[int]) -> list[Hold]:
        """Let go of those of *shards* in which nothing runs, and nothing waits that only we know of."""
        given = []
        must_go = self.tenancy.is_leaving or self._is_superseded
        for hold in self._mine.holds:
            part = self._parts.get(hold.shard)
            if hold.shard not in shards or part is None or not part.is_idle():
                continue
            if not must_go and any(timer.retry_at_us is not None for timer in part.all()):
                continue
            part.pause(is_on=True)
            try:
                await part.flush()
            except StoreError:
                self._pause(hold.shard)
                raise
            if part.is_idle():  # it may have begun one before it paused
                await self._drop(hold.shard)
                given.append(hold)
            else:
                self._pause(hold.shard)
        return given

    async def claim(self, view: View) -> bool:
        """Write everything anew that is ours still; what another server of the board has forgotten is not."""
        is_cut = await self.heed(view)
        for part in tuple(self._parts.values()):
            await part.flush(is_forgotten=True)
        return is_cut

    async def enter(self, taken: Taken) -> None:
        """Put the timers of shards to work that were just taken."""
        # Once we are leaving, those not begun yet are given up as strays: the board has them as ours.
        rows = await self._board.timers([hold.shard for hold in taken.holds])
        for hold in taken.holds:
            if self.tenancy.is_leaving:
                break
            self._mine.terms[hold.shard] = hold.term
            try:
                await self._begin(hold, [row for row in rows if row.shard == hold.shard])
            except BaseException:
                await self._drop(hold.shard)  # the board has it as ours still: it is given up as a stray
                raise

    async def report(self) -> None:
        """Look at ourselves, and at the timers of others: often if anybody asks, else now and then."""
        if self._targets.is_stopping:
            self.tenancy.is_leaving = True  # runs may take long to end, and others need not wait for that
        self._beats += 1
        if self._is_looked_at or self._beats % _LOOKS_EVERY == 0:
            self._is_looked_at = False
            with suppress(StoreError):  # the beat that follows tells of it
                await self._look_elsewhere()

    async def publish(self) -> None:
        """Bring our list; but first see which of its timers are in other shards yet."""
        at = {item.definition.id: self._shard_of(item.definition) for item in self._declared}
        rows = await self._board.timers()
        away = [row.record for row in rows if at.get(name_in(row.record), row.shard) != row.shard]
        self._moved = {name_in(record): record for record in sorted(away, key=registered_in)}
        published = await self._board.publish(
            self._mine.member, self._fingerprint, lambda *_: Change((), ()), displaces=False
        )
        self._mine.edition = published.edition
        self.tenancy.tell_published(published)

    # --- shards ---

    async def _begin(self, hold: Hold, rows: Sequence[TimerRow]) -> None:
        definitions, records = self._definitions_of(hold.shard), [row.record for row in rows]
        if self._mine.edition < self._mine.newest:
            # Whoever had the newest list is gone. What that left as it was is ours to run, and no more.
            ours = left_as_they_were(self._declared, records)
            for name in sorted({item.id for item in definitions} - ours):
                reason = "a newer list changed or removed it"
                self._announcer.announce("TimerSkipped", timer=name, reason=reason)
            definitions = [item for item in definitions if item.id in ours]
            self._partial.add(hold.shard)
            records = [record for record in records if name_in(record) in ours]
        part = Timers(
            ShardShelf(self._board, self._mine, hold, records, self.tenancy.nudge),
            self._targets,
            self._clock,
            self._announcer,
            zone=self._zone,
            note_miss=self._note_miss,
            may_call=self.tenancy.is_trusted,
            is_shared=True,
        )
        self._parts[hold.shard], self._lists[hold.shard] = part, self._declared
        self._emptied.clear()
        start_up = self._elsewhere.start_up
        await part.start(
            definitions,
            started_up_us=None if start_up is None else start_up.at_us,
            opened_us=None if start_up is None or self._is_start_up else start_up.opened_us,
            is_start_up=self._mine.edition == self._start_up_edition,
            invalid=self._invalid,
            moved=self._moved_of(definitions),
        )
        if self._parts.get(hold.shard) is part:  # it may have been lost meanwhile
            self._stints[hold.shard] = new_number()

    async def _lose(self, shards: Sequence[int]) -> None:
        """Let go of shards that others may hold, and end what runs."""
        if any(not self._parts[shard].is_idle() for shard in shards if shard in self._parts):
            self._cut_off()
        for shard in shards:
            await self._drop(shard)

    async def _drop(self, shard: int) -> None:
        self._mine.terms.pop(shard, None)
        self._lists.pop(shard, None)
        self._stints.pop(shard, None)
        self._partial.discard(shard)
        if (part := self._parts.pop(shard, None)) is not None:
            await part.drop()
        if not self._parts:
            self._emptied.set()

    # --- lists ---

    def _declare(self, definitions: Sequence[Timer], invalid: Collection[str]) -> None:
        self._declared = [
            Declared(item, self._calendars.of(item), text_of(item, self._zone)) for item in definitions
        ]
        self._invalid = tuple(invalid)
        self._fingerprint = fingerprint_of(self._declared)

    def _definitions_of(self, shard: int) -> list[Timer]:
        return [item.definition for item in self._declared if self._shard_of(item.definition) == shard]

    def _moved_of(self, definitions: Sequence[Timer]) -> list[Record]:
        return [self._moved[item.id] for item in definitions if item.id in self._moved]

    def _shard_of(self, timer: Timer) -> int:
        return shard_of(timer.target, self._mine.shards)

    def _ahead_us(self) -> int:
        """How far the time of the board is ahead of this host's."""
        return self._clock.now_us() - instant_of(self._host_clock.now())

    # --- looking ---

    @property
    def unreadable(self) -> dict[str, TimerRecordError]:
        """Declared timers that do not run because their stored state is damaged, by name."""
        return {name: error for part in self._parts.values() for name, error in part.unreadable.items()}

    def all(self) -> list[TimerState]:
        """Every timer, in order of declaration; those that others hold as they were a moment ago."""
        self._is_looked_at = True
        here = {state.name: state for part in self._parts.values() for state in part.all()}
        known = {**self._elsewhere.timers, **here}
        return [known[item.definition.id] for item in self._declared if item.definition.id in known]

    def next_of(self, timer: TimerState, now_us: Instant) -> Instant | None:
        """When a timer that is at hand will fire next."""
        if (part := self._parts.get(self._shard_of(timer.definition))) is not None:
            return part.next_of(timer, now_us)
        return next_of(timer, now_us)

    def holder_of(self, timer: TimerState) -> str | None:
        """Which machine holds it, as far as is known; empty if none does."""
        return self._elsewhere.holder_of(self._shard_of(timer.definition))

    async def _look_elsewhere(self) -> None:
        await self._elsewhere.look(self._declared, self._clock.now_us())

    # --- watching ---

    def stints(self) -> dict[int, Stint]:
        """By shard, how the timers are at work that this machine holds."""
        is_trusted = self.tenancy.is_trusted()
        return {
            shard: Stint(number, self._parts[shard].turns, self._parts[shard].is_able and is_trusted)
            for shard, number in self._stints.items()
        }

    def held(self) -> list[tuple[int, TimerState]]:
        """The timers of these shards, each with its shard."""
        return [(shard, timer) for shard in self._stints for timer in self._parts[shard].all()]

    # --- by hand ---

    async def trigger(self, name: str) -> Done:
        """Fire a timer now, wherever it is held; the run that began. Raises TimerError, StoreError."""
        return await self._by_hand(Verb.TRIGGER, name)

    async def enable(self, name: str) -> None:
        """Switch a timer on, wherever it is held. Raises TimerError, StoreError."""
        await self._by_hand(Verb.ENABLE, name)

    async def disable(self, name: str) -> None:
        """Switch a timer off, wherever it is held. Raises TimerError, StoreError."""
        await self._by_hand(Verb.DISABLE, name)

    async def _by_hand(self, verb: Verb, name: str) -> Done:
        timer = next((item.definition for item in self._declared if item.definition.id == name), None)
        if timer is None:
            raise TimerError(TimerRefusal.UNKNOWN, timer=name)
        done = await self._asking.done(verb, name, self._shard_of(timer), self._elsewhere.holder_of)
        if done.member is not None:
            try:
                await self._look_elsewhere()
            except StoreError:
                self._elsewhere.forget(name)  # what we know is from before; the next beat looks again
        return done

    # --- what others tell ---

    def service_ended(self, service_id: str, ended_us: Instant) -> None:
        """Hear that a run of a service has ended on this machine."""
        if (part := self._parts.get(shard_of(service_id, self._mine.shards))) is not None:
            part.service_ended(service_id, ended_us + self._ahead_us())
