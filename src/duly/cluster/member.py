"""A member: one scheduler's share of a cluster.

Its shards are held by a `tenancy`; what the rows in them mean is for `finding` and `share` to say. Its
engine is the ordinary one. Runs of shards that are given away, or taken by a newer list, go on here, and
their ends are reported.

The book changes under the poller's `writing`.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, tzinfo

from duly.clock import Step, Watchable
from duly.cluster.clock import Steady, steady_us
from duly.cluster.finding import Knowledge
from duly.cluster.holdings import TaskHoldings
from duly.cluster.identity import Membership, drawn
from duly.cluster.listing import Listing
from duly.cluster.share import Share
from duly.cluster.tenancy import Tenancy
from duly.core.reconciliation import Reconciliation
from duly.core.registration import Registration
from duly.core.schedule import Schedules
from duly.core.task import Task
from duly.engine.book import Book
from duly.engine.poller import Poller
from duly.engine.runs import Run
from duly.engine.tasks import TaskRules
from duly.errors import StoreError
from duly.events import Announcer
from duly.instant import Instant
from duly.store.board import Board, Change, Hold, ShardsLostError, Stored, Taken, View


class Member:
    """The tasks that one scheduler holds of a board."""

    def __init__(
        self,
        board: Board,
        clock: Watchable,
        announcer: Announcer,
        *,
        name: str,
        max_concurrent_runs: int | None = None,
        run_timeout_us: int | None = None,
        draw: Callable[[], int] = drawn,
        steady: Steady = steady_us,
    ) -> None:
        self._board = board
        self._clock = clock
        self._holdings = TaskHoldings(board, self._on_refused)
        self.tenancy = Tenancy(
            board, self, self._holdings, clock, announcer, name=name, draw=draw, steady=steady
        )
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
        self.poller.may_call = self.tenancy.is_trusted
        self.poller.on_parted = self._on_parted
        self._share = Share(self.book, self.poller, self._holdings, announcer)
        self._scheduler_id = ""
        self._unwatch: Callable[[], None] | None = None

    @property
    def membership(self) -> Membership:
        """What a recorder writes at the head of this member's trace."""
        return self.tenancy.membership

    # --- custody ---

    async def begin(self, registrations: list[Registration], zone: tzinfo) -> Reconciliation:
        """Join the cluster, bring the list, and take a share."""
        self.poller.renew()
        self.book.zone = zone
        self._share.schedules = Schedules(zone)
        self.tenancy.renew()
        self._scheduler_id = await self.tenancy.open()
        try:
            if not self.tenancy.is_trusted():  # what went on after a failed list has outlasted its lease
                await self.cut()
            self._unwatch = self._clock.watch(self._on_step)
            await self.tenancy.join()
            outcome = await self._publish(Listing(registrations, zone))
            await self.tenancy.heed(await self.tenancy.beat())
            await self.tenancy.rebalance()
        except BaseException:
            with suppress(StoreError):  # a run of an earlier list may have ended: nobody is to repeat it
                await self.report()
            await self._let_go()
            raise
        self.tenancy.begin()
        return outcome

    async def change(self, registrations: list[Registration]) -> Reconciliation:
        """Bring another list."""
        listing = Listing(registrations, self.book.zone)
        async with self.tenancy.moving:
            try:
                outcome = await self._publish(listing)
            except ShardsLostError:  # to a list of another, or by another server: it is not ours to write now
                await self.tenancy.catch_up()
                outcome = await self._publish(listing)
            await self.tenancy.heed(await self.tenancy.beat())
            await self.tenancy.rebalance()
        return outcome

    async def retire(self) -> None:
        """Give everything up at once, and let the runs in flight go on."""
        self.tenancy.is_leaving = True
        async with self.tenancy.moving:
            await self.tenancy.give_all()

    async def end(self) -> None:
        """Report what the last runs left, and leave."""
        await self.poller.end()
        await self.tenancy.end()
        try:
            await self.poller.flush()
            await self.report()
        finally:
            await self._let_go()

    async def drop(self) -> None:
        """Let go as a crash would."""
        await self.tenancy.end()
        await self.poller.drop()
        self._holdings.away.clear()
        self._share.known = Knowledge()
        self._unwatch_clock()
        self.book.wipe()
        await self.tenancy.drop()

    async def _let_go(self) -> None:
        """Forget what was held, say goodbye, and disconnect."""
        self._unwatch_clock()
        held = self._holdings.holds
        self._share.dismiss(tuple(self._holdings.terms), is_cut=False)
        self.book.clear()
        self.book.settle()
        if self.book.departed and self.tenancy.is_trusted():
            # A list failed, and the next one does not wait for our runs. Whoever found that we have left
            # would start them again.
            await self.tenancy.step_back(held)
            return
        self._share.abandon_departed()
        await self.tenancy.leave()

    def _unwatch_clock(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    # --- tenant ---

    @property
    def fingerprint(self) -> str:
        """Of our list."""
        return self._share.listing.fingerprint

    def lag_us(self) -> int:
        """How long starts have waited for room."""
        if self.book.ready:
            waiting = self.book.entries.get(next(iter(self.book.ready)))
            if waiting is not None and waiting.run is None:
                return self.poller.now_us() - max(waiting.task.due_us, waiting.task.registered_us)
        return 0

    def renewed(self) -> None:
        """Look at what could not start while the lease was in doubt."""
        self.poller.wake()

    def halt(self) -> None:
        """Cancel all runs that go on here."""
        local = [entry.run for entry in self.book.entries.values() if entry.run is not None]
        self.poller.runs.abandon(
            [*(run for run in local if run.task is not None), *self.book.departed.values()]
        )

    async def cut(self) -> list[Hold]:
        """Let go of everything as if the process had died."""
        async with self.poller.writing:
            held = self._holdings.holds
            self._share.dismiss(tuple(self._holdings.terms), is_cut=True)
            self._share.abandon_departed()
            self._share.known.running.clear()
        return held

    async def heed(self, view: View) -> bool:
        """Account for what others did."""
        async with self.poller.writing:
            return self._share.heed(view)

    async def part(self, shards: Sequence[int]) -> list[Hold]:
        """Let go of shards; their runs go on here."""
        async with self.poller.writing:
            if self.tenancy.is_leaving:
                self.poller.account_for_steps()
                self.poller.take_back_uncalled()
            self._share.note_called()
            # If that cannot be written now, we hold on and try again with the next beat.
            if not await self.poller.write():
                return []
            given = [hold for hold in self._holdings.holds if hold.shard in shards]
            self._share.dismiss((hold.shard for hold in given), is_cut=False)
        return given

    async def claim(self, _view: View) -> bool:
        """Let go of everything, and put right what another server of the board may have forgotten.

        Our runs go on. What we held is taken again when the board is open, with what others have told it.
        """
        changes: list[tuple[Sequence[Stored], Change]] = []

        def decide(stored: Sequence[Stored], _now_us: Instant, _scheduler_id: str) -> Change:
            changes.append((stored, self._share.claim_by(stored)))
            return changes[-1][1]

        async with self.poller.writing:
            self.poller.account_for_steps()
            self._share.let_go("another server of the database answers")
            self._share.note_running()
            if self.book.departed or self._share.known.remembered:
                await self._board.claim(self._holdings.member, decide)
                stored, change = changes[-1]
                self._share.rename(stored, change.put)
        return False

    async def enter(self, taken: Taken) -> None:
        """Take in the tasks of shards that were just taken."""
        async with self.poller.writing:
            self._share.admit(taken)
        if taken.holds and not self.tenancy.is_leaving:  # then nothing starts, and polling may have ended
            self.poller.begin()

    async def report(self) -> None:
        """Tell the ends of runs whose tasks are not ours any more."""
        if self._share.known.ends and self._holdings.member:
            ends = dict(self._share.known.ends)
            await self._board.report(self._holdings.member, list(ends.values()))
            for key, end in ends.items():
                self._share.known.note_reported(key[0], end)
                if self._share.known.ends.get(key) == end:
                    del self._share.known.ends[key]

    async def publish(self) -> None:
        """Bring our list anew."""
        await self._publish(self._share.listing)

    async def _publish(self, listing: Listing) -> Reconciliation:
        """Bring the list. Under `moving`, if we are beating."""
        outcomes: list[Reconciliation] = []
        changes: list[Change] = []

        def decide(stored: Iterable[Stored], _now_us: Instant, scheduler_id: str) -> Change:
            outcome, change = self._share.change_by(listing, list(stored), scheduler_id)
            outcomes.append(outcome)
            changes.append(change)
            return change

        self._share.schedules.expect(item.expression for item in listing.registrations)
        async with self.poller.writing:
            self.poller.account_for_steps()
            self._share.note_called()
            await self.poller.flush_held()
            # What ended meanwhile is neither running nor written, and would seem to have been cut off.
            while self.book.unsaved:
                await self.poller.flush_held()
            self._share.note_running()
            published = await self._board.publish(self._holdings.member, listing.fingerprint, decide)
            is_other = listing.fingerprint != self._share.listing.fingerprint
            self._share.listing, self._holdings.edition = listing, published.edition
            if published.is_new:
                self._share.rename((), changes[-1].put)
            if published.is_new or is_other:
                # A list that others brought before may have tasks that we left alone: all are read again.
                self._share.dismiss(tuple(self._holdings.terms), is_cut=False)
            for entry in self.book.entries.values():
                entry.callback = listing.callback_for(entry.task) or entry.callback
        self.tenancy.tell_published(published)
        return outcomes[-1] if published.is_new else self._share.preserved(listing)

    # --- what happens here ---

    def _on_refused(self) -> None:
        self.tenancy.nudge()

    def _on_parted(self, run: Run[Task], error: BaseException | None) -> None:
        self._share.note_parted(run, error)
        self.tenancy.nudge()

    def _on_step(self, _step: Step) -> None:
        # What is remembered was written under another time; it would hold back what is due under this one.
        self._share.known.remembered.clear()
