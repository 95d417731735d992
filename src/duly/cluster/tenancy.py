"""Tenancy: holding shards of a board under a lease, whatever is in them.

It renews the lease with every beat, looks at the board, and lets the pure parts say what follows: which
shards to take and to give (`balance`), how long the lease may be trusted (`lease`). What is done in the
shards is the *tenant's* business: tasks of a scheduler (`member`), timers of a daemon (`timers`). Three rules
make it safe:

- The tenant starts nothing unless the lease is trusted at that very moment.
- When the trust ends, everything held is let go as if the process had died: runs are cut off, nothing of
  them is written. Whoever holds the shards next finds those runs interrupted.
- What is given away is let go gently, as the tenant knows how.

Moves (joining, taking, giving, a new list) come one at a time, under `moving`.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Protocol

from duly.background import Background, cancel
from duly.clock import Watchable
from duly.cluster.balance import planned
from duly.cluster.clock import BoardClock, Steady, steady_us
from duly.cluster.holdings import Holdings
from duly.cluster.identity import Membership, drawn
from duly.cluster.lease import Lease
from duly.cluster.renewal import Renewal, Touch
from duly.errors import StoreError
from duly.events import Announcer, described
from duly.instant import SECOND_US
from duly.marks import mark
from duly.store.board import SHARDS, Board, Hold, Published, SeatLostError, Taken, View


class Tenant(Protocol):
    """Who works in the shards that a member holds."""

    @property
    def fingerprint(self) -> str:
        """Of the list that it has."""
        ...

    def lag_us(self) -> int:
        """How late it starts things."""
        ...

    def renewed(self) -> None:
        """Hear that the lease was renewed."""
        ...

    def halt(self) -> None:
        """End all runs at once, without waiting for anything: others may start the same in a moment."""
        ...

    async def cut(self) -> list[Hold]:
        """Let go of everything held as if the process had died, and say what that was."""
        ...

    async def heed(self, view: View) -> bool:
        """Account for what others did; whether runs had to be cut off for it."""
        ...

    async def part(self, shards: Sequence[int]) -> list[Hold]:
        """Let go of these shards gently, and say which of them can be given up now."""
        ...

    async def claim(self, view: View) -> bool:
        """Tell another server of the board what it may have forgotten; whether runs had to be cut off for it.

        That is: what runs here, and what was written last.
        """
        ...

    async def enter(self, taken: Taken) -> None:
        """Begin to work in shards that were just taken."""
        ...

    async def report(self) -> None:
        """Tell the board what it does not know yet."""
        ...

    async def publish(self) -> None:
        """Bring the list anew."""
        ...


class Tenancy:
    """What one member holds of *board*, for a *tenant*."""

    def __init__(
        self,
        board: Board,
        tenant: Tenant,
        holdings: Holdings,
        clock: Watchable,
        announcer: Announcer,
        *,
        name: str,
        draw: Callable[[], int] = drawn,
        steady: Steady = steady_us,
    ) -> None:
        self._board = board
        self._tenant = tenant
        self._mine = holdings
        self._clock = clock
        self._announce = announcer.announce
        self._name = name
        self.draw = draw
        """Gives the number for a new life."""
        self._steady = steady
        self._lease = Lease(board.ttl_us)
        self.moving = asyncio.Lock()
        """Held while shards or lists change."""
        self._nudge = asyncio.Event()
        self._renewal = Renewal(self._renew)
        self._beating = Background(self._beat_on, name="duly member")
        self._watchdog: asyncio.TimerHandle | None = None
        self._distrusting: asyncio.Task[None] | None = None
        self._touch = Touch()
        self._fault: Exception | None = None
        self._lag_us = 0
        self.is_leaving = False
        """Set when no shards are wanted any more: it is stopping."""
        self._told: str | None = None
        """Which server of the board knows what runs here; None before the first has answered."""
        self._is_blank = True
        """Nothing has run yet under our present number."""
        self._has_lapsed = False
        """Our trust has ended once under our present number: it is as good as dead, and so is what it ran."""

    @property
    def membership(self) -> Membership:
        """What a recorder writes at the head of this member's trace."""
        return Membership(self._name, SHARDS, 2 * self._lease.ttl_us + 2 * self._lease.beat_us)

    @property
    def trusted_until_us(self) -> int | None:
        """Until when, by the steady clock, what is held is held for certain; None when nothing is."""
        return None if self._has_lapsed else self._lease.trusted_until_us

    def is_trusted(self) -> bool:
        """Whether what is held is held for certain, at this moment."""
        return not self._has_lapsed and self._lease.is_trusted(self._steady())

    # --- its life ---

    def renew(self) -> None:
        """Begin a new life, perhaps on another event loop."""
        self.moving, self._nudge = asyncio.Lock(), asyncio.Event()
        self.is_leaving, self._has_lapsed, self._fault = False, False, None
        self._touch, self._renewal = Touch(), Renewal(self._renew)

    async def open(self, *, shards: int = SHARDS) -> str:
        """Open the board; its scheduler identifier."""
        return await self._board.open(uuid.uuid4().hex, shards=shards)  # noqa: TID251 (of a new board)

    async def join(self) -> None:
        """Become a member: under a new number, unless we stepped back and the lease is good still."""
        if not (self._mine.member and self.is_trusted()):
            self._lease.end()
            self._mine.member = self.draw()
            self._is_blank = True
        self._mine.edition = 0
        await self._board.join(self._mine.member, self._name, ttl_us=self._lease.ttl_us)
        self._touch.since_us = self._steady()
        view = await self.beat()
        self._mine.shards = len(view.places)
        self._mine.newest = view.edition
        self._announce("MemberJoined", member=self._name, server=view.server)
        if view.server != self._told:
            await self._tell(view)
        self._is_blank = False

    def begin(self) -> None:
        """Beat from now on."""
        self._beating.start()

    async def give_all(self) -> None:
        """Give up everything that the tenant can let go. Under `moving`, if we are beating."""
        if self._mine.terms and (given := await self._tenant.part(tuple(self._mine.terms))):
            await self._give_up(given)

    async def end(self) -> None:
        """Beat no more."""
        tasks = self._beating.end()
        if self._distrusting is not None and cancel(self._distrusting):
            tasks.append(self._distrusting)
        self._distrusting = None
        if tasks:
            await asyncio.wait(tasks)
        await self._renewal.stop()

    async def leave(self) -> None:
        """Say goodbye, and disconnect. What was held is nobody's then."""
        self._lease.end()
        self._watch_lease()
        await self._renewal.stop()
        if self._mine.member:
            # If it cannot be said, the lease runs out by itself.
            with suppress(StoreError):
                await self._board.leave(self._mine.member)
        self._mine.member = 0
        await self._board.close()

    async def step_back(self, held: Sequence[Hold]) -> None:
        """Give up what was *held*, and disconnect; but keep the seat, while the lease lasts.

        For runs that go on here: nobody starts them again before the trust ends, and then they are ended.
        """
        await self._renewal.stop()
        if held:
            self._announce("ShardsGiven", shards=[list(hold) for hold in held], reason="our list failed")
            # If it cannot be said, they are free when the lease has run out.
            with suppress(StoreError):
                await self._board.give(self._mine.member, held)
        await self._board.close()

    async def drop(self) -> None:
        """Disconnect as a crash would."""
        self._mine.terms.clear()
        self._lease.end()
        self._watch_lease()
        await self._board.drop()

    # --- beats ---

    async def beat(self) -> View:
        """Renew the lease, and set the clock by the answer."""
        async with self._renewal.asking:
            member, asked_us = self._mine.member, self._steady()
            self._renewal.asked_us = asked_us
            try:
                ttl_us, lag_ms = self._lease.ttl_us, self._lag_ms()
                view = await self._board.beat(
                    member, ttl_us=ttl_us, lag_ms=lag_ms, is_leaving=self.is_leaving
                )
            except StoreError:
                # Only a beat says so: other calls may fail for a connection that broke long ago.
                self._touch.since_us = None
                raise
            heard_us = self._steady()
        if member != self._mine.member:
            mark("beat of an earlier life")
            return view
        if self._lease.trusted_until_us is not None and not self._lease.is_trusted(heard_us):
            self._has_lapsed = True  # and whoever is to notice has not had its turn yet
        if self._is_blank or self._told == view.server:
            self._lease.renew(asked_us)
        if isinstance(self._clock, BoardClock):
            self._clock.heed(view.now_us, asked_us=asked_us, heard_us=heard_us)
        if self._touch.heard(view.server, asked_us):
            self._announce("ServerChanged", server=view.server)
        self._watch_lease()
        self._renewal.order(self._lease.beat_us * 9 // 8 - (heard_us - asked_us))
        self._tenant.renewed()
        return view

    def nudge(self) -> None:
        """Beat soon: there is something to tell, or to hear."""
        self._nudge.set()

    async def _renew(self) -> None:
        try:
            view = await self.beat()  # what it shows may be older than what a move has done since
            if view.server != self._told:
                self._nudge.set()
        except SeatLostError:
            self._nudge.set()
        except StoreError as error:
            self._note_fault(error)
            self._renewal.order(self._lease.beat_us // 2)

    async def _beat_on(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._lease.beat_us / SECOND_US
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._nudge.wait()
            self._nudge.clear()
            self._lag_us = max(round((loop.time() - due_s) * SECOND_US), 0)
            try:
                await self._beat_once()
                pause_us = max(self._lease.beat_us - (self._steady() - self._renewal.asked_us), 0)
            except Exception as error:
                # The lease is renewed beside it: whatever it is, somebody must go on here.
                self._note_fault(error)
                self._nudge.clear()  # whatever it was for, it has been tried
                pause_us = self._lease.beat_us // 2
            due_s = loop.time() + pause_us / SECOND_US

    async def _beat_once(self) -> None:
        async with self.moving:
            await self._tenant.report()
            try:
                view = await self.beat()
            except SeatLostError:
                mark("seat lost")
                await self._return()
                return
            if self._has_lapsed and not self.is_leaving:
                await self._come_back("the lease ran out", is_known=True)
                return
            if self._fault is not None:
                self._announce("BoardRecovered", error=described(self._fault))
                self._fault = None
            is_new = view.server != self._told
            # First: what is not ours any more cannot be written, not even now.
            is_cut = await self._take_in(view)
            if is_cut and not self.is_leaving:
                self._has_lapsed = True
                await self._come_back("the board has forgotten what we held", is_known=True)
                return
            if is_new:
                self._nudge.set()
                return
            if self._is_list_forgotten(view) or self._is_list_back(view):
                await self._tenant.publish()
                view = await self.beat()
                await self.heed(view)
            await self.rebalance(view)

    async def catch_up(self) -> None:
        """See what others did, and tell another server what we do. Under `moving`, if we are beating."""
        await self._take_in(await self.beat())

    async def _take_in(self, view: View) -> bool:
        return await (self._tell(view) if view.server != self._told else self.heed(view))

    async def _tell(self, view: View) -> bool:
        """Tell a server that has just come to answer what runs here; whether runs had to be cut off for it.

        It may have forgotten. The lease is not renewed before it is told. For the time of a lease it is
        closed: by then it knows of all that runs, and what it was not told of has been cut off.
        """
        is_cut = await self._tenant.claim(view)
        self._told = view.server
        return is_cut

    async def _return(self) -> None:
        """Take our seat again, of which another server does not know; what runs goes on, if it is in time."""
        if self.is_trusted():
            await self._board.join(self._mine.member, self._name, ttl_us=self._lease.ttl_us)
            self._nudge.set()
        else:
            await self._come_back("the board does not know this member any more")

    async def heed(self, view: View) -> bool:
        """Account for what others did; whether runs had to be cut off for it."""
        is_cut = await self._tenant.heed(view)
        mine, is_other = self._mine, view.fingerprint != self._tenant.fingerprint
        if view.edition > mine.edition and view.edition != mine.newest and is_other:
            self._announce("EditionSuperseded", edition=mine.edition, newest=view.edition)
        mine.newest = view.edition
        return is_cut

    async def _come_back(self, reason: str, *, is_known: bool = False) -> None:
        """Join anew: whatever we held is somebody else's, and whatever we ran is cut off."""
        await self._cut_everything(reason)
        if is_known:
            # Whoever holds our shards now would wait for runs of ours that we have cut off.
            await self._board.leave(self._mine.member)
        self._lease.end()
        self._has_lapsed = False
        await self.join()
        await self._tenant.publish()
        await self.rebalance()

    def _is_list_forgotten(self, view: View) -> bool:
        """Whether the board has lost the edition that we brought: a standby without the latest commits."""
        ours = next((seat for seat in view.seats if seat.member == self._mine.member), None)
        # With none at all we joined anew, and could not bring it then.
        if ours is None or (ours.edition != 0 and ours.edition == self._mine.edition):
            return False
        mark("edition forgotten")
        return True

    def _is_list_back(self, view: View) -> bool:
        """Whether another member has brought our list back after a newer one: then it is in effect."""
        if view.edition == self._mine.edition or view.fingerprint != self._tenant.fingerprint:
            return False
        mark("edition back")
        return True

    def _note_fault(self, error: Exception) -> None:
        if self._fault is None or described(self._fault) != described(error):
            self._announce("BoardFault", error=described(error))
        self._fault = error

    def _lag_ms(self) -> int:
        """How late we are: the loop, or starts that wait for room."""
        return min(max(self._lag_us, self._tenant.lag_us(), 0) // 1_000, 2**31 - 1)

    # --- trust ---

    def _watch_lease(self) -> None:
        """Be there when the trust ends."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if (until_us := self._lease.trusted_until_us) is not None:
            left_s = max(until_us - self._steady(), 0) / SECOND_US
            self._watchdog = asyncio.get_running_loop().call_later(left_s, self._look_at_lease)

    def _look_at_lease(self) -> None:
        if self.is_trusted():
            self._watch_lease()
            return
        mark("trust ended")
        self._has_lapsed = True
        self._tenant.halt()
        if self._distrusting is None or self._distrusting.done():
            self._distrusting = asyncio.get_running_loop().create_task(
                self._cut_everything("the lease ran out")
            )

    async def _cut_everything(self, reason: str) -> None:
        """Let go of everything as if the process had died."""
        if held := await self._tenant.cut():
            self._announce("ShardsLost", shards=[list(hold) for hold in held], reason=reason)

    # --- moves ---

    def tell_published(self, published: Published) -> None:
        """Tell what became of the list that the tenant brought."""
        if published.is_current:
            self._mine.newest = published.edition
        if published.is_new:
            self._announce("EditionPublished", edition=published.edition)
        elif not published.is_current:
            self._announce("EditionSuperseded", edition=published.edition, newest=self._mine.newest)

    async def rebalance(self, view: View | None = None) -> None:
        """Take and give what we should. Under `moving`, if we are beating."""
        if not self.is_trusted():
            return
        view = view or await self.beat()
        if self.is_leaving:
            await self._give_strays(view, wanted=())
            await self.give_all()
            return
        if not view.is_open:
            return
        plan = planned(
            view,
            self._mine.member,
            self._mine.terms,
            may_take_over=self._may_take_over(),
            overdue_us=self._lease.ttl_us * 3 // 2,
        )
        await self._give_strays(view, wanted=plan.take)
        if plan.give:
            given = await self._tenant.part(plan.give)
            if not given:
                return
            await self._give_up(given)
        await self._take(plan.take, view)

    async def _take(self, shards: Sequence[int], view: View) -> None:
        if not shards:
            return
        silent = {place.shard for place in view.places if place.holder not in {None, self._mine.member}}
        taken = await self._board.take(self._mine.member, shards)
        self._tell_taken(taken, silent)
        await self._tenant.enter(taken)

    def _tell_taken(self, taken: Taken, silent: AbstractSet[int]) -> None:
        for origin in (None, "lost"):
            holds = [list(hold) for hold in taken.holds if (hold.shard in silent) == (origin == "lost")]
            if holds:
                self._announce("ShardsTaken", shards=holds, edition=self._mine.edition, **{"from": origin})

    def _strays(self, view: View) -> list[Hold]:
        """What the board has as ours and we do not: an answer was lost, or the board has forgotten."""
        member, terms = self._mine.member, self._mine.terms
        return [
            Hold(place.shard, place.term)
            for place in view.places
            if place.holder == member and place.shard not in terms
        ]

    async def _give_strays(self, view: View, *, wanted: Sequence[int]) -> None:
        """Give up the strays, except those that are *wanted*."""
        if strays := [hold for hold in self._strays(view) if hold.shard not in wanted]:
            mark("stray shards given")
            await self._board.give(self._mine.member, strays)

    async def _give_up(self, holds: Sequence[Hold]) -> None:
        self._announce("ShardsGiven", shards=[list(hold) for hold in holds], reason="others should have them")
        try:
            await self._board.give(self._mine.member, holds)
        except StoreError as error:
            self._note_fault(error)  # if the board still has them as ours, they are strays

    def _may_take_over(self) -> bool:
        since_us = self._touch.since_us
        return since_us is not None and self._steady() - since_us >= self._lease.ttl_us
