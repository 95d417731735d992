"""A member: one scheduler's share of a cluster.

It renews its lease with every beat, looks at the board, and lets the pure parts say what follows: which
shards to take and to give (`balance`), what the rows in them mean (`finding`), how long it may trust its
lease (`lease`). Its engine is the ordinary one. Three rules make it safe:

- Nothing starts, and no callback is called, unless the lease is trusted at that very moment.
- When the trust ends, everything held is let go as if the process had died: runs are cancelled, nothing of
  them is written. Whoever holds the shards next finds those runs interrupted.
- What is given away, or taken by a newer list, is let go gently: its runs go on, and their ends are reported.

Moves (joining, taking, giving, a new list) come one at a time, under `_moving`; the book changes under the
poller's `writing`.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, tzinfo

from duly.clock import Step, Watchable
from duly.cluster.balance import planned
from duly.cluster.clock import BoardClock, Steady, steady_us
from duly.cluster.finding import Knowledge
from duly.cluster.holdings import Holdings
from duly.cluster.identity import Membership, drawn
from duly.cluster.lease import Lease
from duly.cluster.listing import Listing
from duly.cluster.renewal import Renewal, Touch
from duly.cluster.share import Share
from duly.core.reconciliation import Reconciliation
from duly.core.registration import Registration
from duly.core.schedule import Schedules
from duly.core.task import Task
from duly.engine.book import Book
from duly.engine.poller import Poller
from duly.engine.runs import Run
from duly.engine.tasks import TaskRules
from duly.errors import StoreError
from duly.events import Announcer, described
from duly.instant import SECOND_US, Instant
from duly.marks import mark
from duly.store.board import SHARDS, Board, Change, Hold, Published, SeatLostError, Stored, View


class Member:
    """The tasks that one scheduler holds of a board."""

    def __init__(
        self,
        board: Board,
        clock: Watchable,
        announcer: Announcer,
        *,
        name: str,
        ttl_us: int,
        max_concurrent_runs: int | None = None,
        run_timeout_us: int | None = None,
        draw: Callable[[], int] = drawn,
        steady: Steady = steady_us,
    ) -> None:
        self._board = board
        self._clock = clock
        self._announcer = announcer
        self._announce = announcer.announce
        self._name = name
        self._draw = draw
        self._steady = steady
        self._lease = Lease(ttl_us)
        self._holdings = Holdings(board, self._on_refused)
        rules = TaskRules()
        self.book = Book(UTC, rules)
        self.poller = Poller(
            self.book,
            self._holdings,
            clock,
            announcer,
            rules,
            max_concurrent_runs=max_concurrent_runs,
            run_timeout_us=run_timeout_us,
        )
        self.poller.may_call = self._is_trusted
        self.poller.on_parted = self._on_parted
        self._share = Share(self.book, self.poller, self._holdings, announcer)
        self._scheduler_id = ""
        self._moving = asyncio.Lock()
        self._nudge = asyncio.Event()
        self._renewal = Renewal(self._renew)
        self._beating: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._distrusting: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._touch = Touch()
        self._fault: StoreError | None = None
        self._lag_us = 0
        self._is_leaving = False
        self._has_lapsed = False
        """Our trust has ended once under our present number: it is as good as dead, and so is what it ran."""

    @property
    def membership(self) -> Membership:
        """What a recorder writes at the head of this member's trace."""
        return Membership(self._name, SHARDS, 2 * self._lease.ttl_us + 2 * self._lease.beat_us)

    # --- custody ---

    async def begin(self, registrations: list[Registration], zone: tzinfo) -> Reconciliation:
        """Join the cluster, bring the list, and take a share."""
        self.poller.renew()
        self._moving, self._nudge = asyncio.Lock(), asyncio.Event()
        self.book.zone = zone
        self._share.schedules = Schedules(zone)
        self._is_leaving, self._has_lapsed, self._fault = False, False, None
        self._touch, self._renewal = Touch(), Renewal(self._renew)
        self._scheduler_id = await self._board.open(uuid.uuid4().hex)  # noqa: TID251 (of a new board)
        try:
            self._unwatch = self._clock.watch(self._on_step)
            await self._join()
            outcome = await self._publish(Listing(registrations, zone))
            self._share.heed(await self._beat())
            await self._rebalance()
        except BaseException:
            await self._let_go(is_gentle=True)
            raise
        self._beating = asyncio.get_running_loop().create_task(self._beat_on(), name="duly member")
        return outcome

    async def change(self, registrations: list[Registration]) -> Reconciliation:
        """Bring another list."""
        async with self._moving:
            outcome = await self._publish(Listing(registrations, self.book.zone))
            async with self.poller.writing:
                self._share.heed(await self._beat())
            await self._rebalance()
        return outcome

    async def retire(self) -> None:
        """Give everything up at once, and let the runs in flight go on."""
        self._is_leaving = True
        async with self._moving:
            await self._give_all()

    async def _give_all(self) -> None:
        if not self._holdings.terms:
            return
        async with self.poller.writing:
            self.poller.account_for_steps()
            self.poller.take_back_uncalled()
            # If that cannot be written now, we hold on and try again with the next beat.
            is_written = await self.poller.write()
            given = self._holdings.holds if is_written else []
            self._share.dismiss((hold.shard for hold in given), is_cut=False)
        if given:
            await self._give_up(given)

    async def end(self) -> None:
        """Report what the last runs left, and leave."""
        await self.poller.end()
        await self._stop_beating()
        try:
            await self.poller.flush()
            await self._report()
        finally:
            await self._let_go(is_gentle=True)

    async def drop(self) -> None:
        """Let go as a crash would."""
        await self._stop_beating()
        await self.poller.drop()
        self._holdings.terms.clear()
        self._holdings.away.clear()
        self._share.known = Knowledge()
        self._lease.end()
        self._watch_lease()
        self._unwatch_clock()
        self.book.wipe()
        await self._board.drop()

    async def _let_go(self, *, is_gentle: bool) -> None:
        """Forget what was held, and disconnect; gently is to say goodbye first."""
        self._unwatch_clock()
        self._share.dismiss(tuple(self._holdings.terms), is_cut=False)
        # Runs that outlast our number (a list failed, and the next one did not wait for them) would be
        # started again by whoever finds that we have left: not while they go on here.
        self._share.abandon_departed()
        self.book.clear()
        self.book.settle()
        self._lease.end()
        self._watch_lease()
        await self._renewal.stop()
        if is_gentle and self._holdings.member:
            # If it cannot be said, the lease runs out by itself.
            with suppress(StoreError):
                await self._board.leave(self._holdings.member)
        self._holdings.member = 0
        await self._board.close()

    def _unwatch_clock(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    # --- beats ---

    async def _join(self) -> View:
        """Become a member, under a new number."""
        self._holdings.member = self._draw()
        self._share.edition = 0
        await self._board.join(self._holdings.member, self._name, ttl_us=self._lease.ttl_us)
        self._touch.since_us = self._steady()
        view = await self._beat()
        self._holdings.shards = len(view.places)
        self._share.newest = view.edition
        self._announce("MemberJoined", member=self._name)
        return view

    async def _beat(self) -> View:
        """Renew the lease, and set the clock by the answer."""
        async with self._renewal.asking:
            member, asked_us = self._holdings.member, self._steady()
            self._renewal.asked_us = asked_us
            try:
                ttl_us, lag_ms = self._lease.ttl_us, self._lag_ms()
                view = await self._board.beat(
                    member, ttl_us=ttl_us, lag_ms=lag_ms, is_leaving=self._is_leaving
                )
            except StoreError:
                # Only a beat says so: other calls may fail for a connection that broke long ago.
                self._touch.since_us = None
                raise
            heard_us = self._steady()
        if member != self._holdings.member:
            mark("beat of an earlier life")
            return view
        if self._lease.trusted_until_us is not None and not self._lease.is_trusted(heard_us):
            self._has_lapsed = True  # and whoever is to notice has not had its turn yet
        self._lease.renew(asked_us)
        if isinstance(self._clock, BoardClock):
            self._clock.heed(view.now_us, asked_us=asked_us, heard_us=heard_us)
        self._touch.heard(view.server, asked_us)
        self._watch_lease()
        self._renewal.order(self._lease.beat_us * 9 // 8 - (heard_us - asked_us))
        self.poller.wake()
        return view

    async def _renew(self) -> None:
        try:
            await self._beat()  # what it shows may be older than what a move has done since
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
            except StoreError as error:
                self._note_fault(error)
                self._nudge.clear()  # whatever it was for, it has been tried
                pause_us = self._lease.beat_us // 2
            due_s = loop.time() + pause_us / SECOND_US

    async def _beat_once(self) -> None:
        async with self._moving:
            await self._report()
            try:
                view = await self._beat()
            except SeatLostError:
                mark("seat lost")
                await self._come_back("the board does not know this member any more")
                return
            if self._has_lapsed and not self._is_leaving:
                await self._come_back("the lease ran out", is_known=True)
                return
            if self._fault is not None:
                self._announce("BoardRecovered", error=described(self._fault))
                self._fault = None
            async with self.poller.writing:
                # First: what is not ours any more cannot be written, not even now.
                is_cut = self._share.heed(view)
            if is_cut and not self._is_leaving:
                self._has_lapsed = True
                await self._come_back("the board has forgotten what we held", is_known=True)
                return
            if self._share.is_list_forgotten(view) or self._share.is_list_back(view):
                await self._publish(self._share.listing)
                view = await self._beat()
                async with self.poller.writing:
                    self._share.heed(view)
            await self._rebalance(view)

    async def _come_back(self, reason: str, *, is_known: bool = False) -> None:
        """Join anew: whatever we held is somebody else's, and whatever we ran is cut off."""
        await self._cut_everything(reason)
        if is_known:
            # Whoever holds our shards now would wait for runs of ours that we have cut off.
            await self._board.leave(self._holdings.member)
        self._lease.end()
        self._has_lapsed = False
        await self._join()
        await self._publish(self._share.listing)
        await self._rebalance()

    def _note_fault(self, error: StoreError) -> None:
        if self._fault is None or described(self._fault) != described(error):
            self._announce("BoardFault", error=described(error))
        self._fault = error

    async def _stop_beating(self) -> None:
        tasks = [task for task in (self._beating, self._distrusting) if task is not None]
        self._beating = self._distrusting = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._renewal.stop()

    def _lag_ms(self) -> int:
        """How late we are: the loop, or starts that wait for room."""
        now_us, lag_us = self.poller.now_us(), self._lag_us
        if self.book.ready:
            waiting = self.book.entries.get(next(iter(self.book.ready)))
            if waiting is not None and waiting.run is None:
                lag_us = max(lag_us, now_us - max(waiting.task.due_us, waiting.task.registered_us))
        return min(max(lag_us // 1_000, 0), 2**31 - 1)

    # --- trust ---

    def _is_trusted(self) -> bool:
        return not self._has_lapsed and self._lease.is_trusted(self._steady())

    def _watch_lease(self) -> None:
        """Be there when the trust ends."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if (until_us := self._lease.trusted_until_us) is not None:
            left_s = max(until_us - self._steady(), 0) / SECOND_US
            self._watchdog = asyncio.get_running_loop().call_later(left_s, self._look_at_lease)

    def _look_at_lease(self) -> None:
        if self._is_trusted():
            self._watch_lease()
            return
        mark("trust ended")
        self._has_lapsed = True
        # At once, without waiting for anything: others may start these tasks in a moment.
        local = [entry.run for entry in self.book.entries.values() if entry.run is not None]
        self.poller.runs.abandon(
            [*(run for run in local if run.task is not None), *self.book.departed.values()]
        )
        if self._distrusting is None or self._distrusting.done():
            self._distrusting = asyncio.get_running_loop().create_task(
                self._cut_everything("the lease ran out")
            )

    async def _cut_everything(self, reason: str) -> None:
        """Let go of everything as if the process had died."""
        async with self.poller.writing:
            held = self._holdings.holds
            self._share.dismiss(tuple(self._holdings.terms), is_cut=True)
            self._share.abandon_departed()
            self._share.known.running.clear()
        if held:
            self._announce("ShardsLost", shards=[list(hold) for hold in held], reason=reason)

    # --- moves ---

    async def _publish(self, listing: Listing) -> Reconciliation:
        """Bring the list. Under `_moving`, if we are beating."""
        outcomes: list[Reconciliation] = []

        def decide(stored: Iterable[Stored], _now_us: Instant, scheduler_id: str) -> Change:
            outcome, change = self._share.change_by(listing, list(stored), scheduler_id)
            outcomes.append(outcome)
            return change

        self._share.schedules.expect(item.expression for item in listing.registrations)
        async with self.poller.writing:
            self.poller.account_for_steps()
            await self.poller.flush_held()
            self._share.note_running()
            published = await self._board.publish(self._holdings.member, listing.fingerprint, decide)
            is_other = listing.fingerprint != self._share.listing.fingerprint
            self._share.listing, self._share.edition = listing, published.edition
            if published.is_new or is_other:
                # A list that others brought before may have tasks that we left alone: all are read again.
                self._share.dismiss(tuple(self._holdings.terms), is_cut=False)
            for entry in self.book.entries.values():
                entry.callback = listing.callback_for(entry.task) or entry.callback
        self._tell_published(published)
        return outcomes[-1] if published.is_new else self._share.preserved(listing)

    def _tell_published(self, published: Published) -> None:
        if published.is_new:
            self._share.newest = published.edition
            self._announce("EditionPublished", edition=published.edition)
        elif not published.is_current:
            self._announce("EditionSuperseded", edition=published.edition, newest=self._share.newest)

    async def _rebalance(self, view: View | None = None) -> None:
        """Take and give what we should."""
        if not self._is_trusted():
            return
        view = view or await self._beat()
        if self._is_leaving:
            await self._give_strays(view)
            await self._give_all()
            return
        plan = planned(view, self._holdings.member, self._holdings.terms, may_take_over=self._may_take_over())
        await self._give_strays(view, wanted=plan.take)
        if plan.give:
            async with self.poller.writing:
                if not await self.poller.write():
                    return
                given = [hold for hold in self._holdings.holds if hold.shard in plan.give]
                self._share.dismiss(plan.give, is_cut=False)
            await self._give_up(given)
        self._touch.is_wary = self._touch.is_wary and not self._may_take_over()
        if plan.take and not self._touch.is_wary:
            silent = {
                place.shard for place in view.places if place.holder not in {None, self._holdings.member}
            }
            await self._take(plan.take, lost=silent)

    async def _give_strays(self, view: View, wanted: Sequence[int] = ()) -> None:
        """Give up what the board has as ours and we do not: the answer to a taking or giving was lost."""
        member, terms = self._holdings.member, self._holdings.terms
        if strays := [
            Hold(place.shard, place.term)
            for place in view.places
            if place.holder == member and place.shard not in terms and place.shard not in wanted
        ]:
            mark("stray shards given")
            await self._board.give(member, strays)

    async def _give_up(self, holds: Sequence[Hold]) -> None:
        self._announce("ShardsGiven", shards=[list(hold) for hold in holds], reason="others should have them")
        try:
            await self._board.give(self._holdings.member, holds)
        except StoreError as error:
            self._note_fault(error)  # if the board still has them as ours, they are strays

    def _may_take_over(self) -> bool:
        since_us = self._touch.since_us
        return since_us is not None and self._steady() - since_us >= self._lease.ttl_us

    async def _take(self, shards: Iterable[int], *, lost: AbstractSet[int]) -> None:
        taken = await self._board.take(self._holdings.member, tuple(shards))
        async with self.poller.writing:
            self._share.admit(taken, lost)
        self.poller.begin()

    # --- what happens here ---

    def _on_refused(self) -> None:
        self._nudge.set()

    def _on_parted(self, run: Run[Task], error: BaseException | None) -> None:
        self._share.note_parted(run, error)
        self._nudge.set()

    async def _report(self) -> None:
        if self._share.known.ends and self._holdings.member:
            ends = dict(self._share.known.ends)
            await self._board.report(self._holdings.member, list(ends.values()))
            for key, end in ends.items():
                if self._share.known.ends.get(key) == end:
                    del self._share.known.ends[key]

    def _on_step(self, _step: Step) -> None:
        # What is remembered was written under another time; it would hold back what is due under this one.
        self._share.known.remembered.clear()
