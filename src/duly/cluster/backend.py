"""The backend of a cluster node: claims rows, decides with the same rules as everywhere, and writes ends.

    heartbeat thread                 event loop
    node.next_request -> table       poller -> backend.claim -> link -> table
    node.on_answer                   rules decide; callbacks are called; backend.on_end
         |   (lock)                        |
         +----------- node ----------------+

A claim is the durable start: when its answer is here, the row is ours. Nothing is in memory but what runs.
Each cycle of the poller is one message: it writes the ends that came in and claims what is due.

Trust is checked three times: before a claim, before a callback is called, and before each step of a callback
(`guarded`), because after SIGCONT the loop wakes before the heartbeat thread.
"""

import asyncio
import types
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from datetime import UTC, tzinfo
from functools import partial
from typing import Any, Generic, Protocol

from duly.background import Signal
from duly.clock import Step, Watchable
from duly.cluster.clock import DatabaseClock
from duly.cluster.node import Node
from duly.cluster.store import ClusterStore, Heartbeats, Link
from duly.cluster.table import (
    Claim,
    Claimed,
    Heartbeat,
    Join,
    LeaveCluster,
    Pulse,
    Room,
    RunRecord,
    TableRequest,
    TakeRoom,
    Work,
)
from duly.core.registration import Callback
from duly.core.task import STEP_TOLERATED_US
from duly.engine.limits import NO_LIMITS, NamedLimits, RunLimits
from duly.engine.loop_watch import LoopWatch
from duly.engine.poller import Poller
from duly.engine.rules import Begin, Rules, T
from duly.engine.runs import ActiveRun
from duly.errors import SchedulerError, StoreError
from duly.events import CUT_OFF, Announcer, described
from duly.instant import MINUTE_US, SECOND_US, Instant
from duly.marks import mark
from duly.version import __version__

_UNREADABLE_US = MINUTE_US
"""So long a row that cannot be read is left alone."""
_ENDS = 2_000
"""So many ends are written at once."""
_ENDS_WAIT_US = 300_000
"""So long ends wait for the starts of a burst. A crash meanwhile repeats bodies that have ended."""
_CLOSED_US = 100_000
"""How soon to ask again while claims are closed: other nodes have yet to check a new server."""
_LAST_ENDS_S = 10.0
"""So long, and no longer than a lease, a stop tries to have the last ends written."""


class Codec(Protocol[T]):
    """Turns rows into items, and back."""

    def item(self, row: Claimed, now_us: Instant, /) -> T | None:
        """The item of a claimed row; a run that was cut off makes it interrupted. None: it is not for us.

        Raises SchedulerError if it cannot be read.
        """
        ...

    def state(self, item: T, /) -> str: ...

    def callback(self, item: T, /) -> Callback: ...

    def record(self, start: Begin[T], run: ActiveRun[T], error: BaseException | None, /) -> RunRecord:
        """What the history keeps of a run."""
        ...


class _Active(Generic[T]):
    """A claimed start, and the run that it became."""

    __slots__ = ("held", "item", "run", "start")

    def __init__(self, held: Claimed, start: Begin[T]) -> None:
        self.held = held
        self.start = start
        self.item = start.after
        self.run: ActiveRun[T] | None = None


class RowBackend(Generic[T]):
    """Rows of a cluster store, as the poller sees them."""

    def __init__(
        self,
        store: ClusterStore,
        clock: Watchable,
        announcer: Announcer,
        rules: Rules[T],
        codec: Codec[T],
        *,
        name: str,
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        self._store = store
        self.node = Node(
            name=name, version=__version__, lease_us=store.lease_us, steady=store.steady, draw=store.draw
        )
        self.poller = Poller(self, clock, announcer, rules, limits)
        self._announcer = announcer
        self._announce = announcer.announce
        self._rules = rules
        self._codec = codec
        self._clock = clock if isinstance(clock, DatabaseClock) else None
        """The database's time, if the scheduler goes by that."""
        self.named = NamedLimits({})
        self._next_in_turn: list[str] = []
        """Those who have waited for room, and may have it with the claim that is under way."""
        self.writing = asyncio.Lock()
        self.zone: tzinfo = UTC
        self.count = 0
        self._active: dict[str, _Active[T]] = {}
        self._link: Link | None = None
        self._heartbeats: Heartbeats | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fault: Exception | None = None
        self._has_more = False
        self._next_us: Instant | None = None
        self._wrote_us = 0
        """When ends were last written, by the steady clock."""
        self._steps: list[Step] = []
        """Steps of the clock that rows do not know of yet."""
        self._latest: list[Step] = []
        """Steps since the latest claim was sent."""
        self._is_to_look_again = True
        self._trust_timer: asyncio.TimerHandle | None = None
        self._seen: Pulse | None = None
        self._could_claim = False
        self._changed = Signal()
        self._loop_watch: LoopWatch | None = None
        self._unreadable: set[str] = set()
        self.wanted: set[str] = set()
        """Rows to claim with the next message, whether or not they are due."""
        self.on_pulse: Callable[[Pulse], None] = lambda _pulse: None
        self.on_cut: Callable[[], None] = lambda: None
        """Called when runs were cut off, for what cancelling a callback does not end."""

    # --- life ---

    @property
    def link(self) -> Link:
        assert self._link is not None
        return self._link

    @property
    def is_joined(self) -> bool:
        return self._link is not None

    async def join(self, new_id: str) -> str:
        """Open the store and become a node of it; the id of the scheduler. Raises StoreError."""
        node = self.node
        self.writing = asyncio.Lock()
        self._is_to_look_again = True  # the clock may have been set back while nobody was here
        scheduler_id = await self._store.open(new_id)
        self._link = self._store.connect()
        self._loop = asyncio.get_running_loop()
        self._loop_watch = LoopWatch(self._announcer, self._store.steady)
        node.emit, node.on_change, node.on_fault = self._emit, self._wake_loop, self._on_fault_of_heartbeat
        node.on_idle = self._watch_loop
        try:
            request: TableRequest[Pulse] = Join(
                node=node.id, name=node.name, lease_us=node.lease_us, version=node.version
            )
            if node.unfinished is not None:
                mark("joins with unfinished ends")
                # Instead of a Join: it writes the ends of the last life, gives up its id, and makes the
                # new one.
                await self._link.do(node.unfinished)
                request = Heartbeat(node=node.id, acked=1)
            sent_us = self._store.steady()
            pulse = await self._link.do(request)
        except BaseException:
            self._link.leave()
            self._link = None
            raise
        node.joined(pulse, sent_us)
        self._set_clock(pulse.now_us, sent_us, self._store.steady())
        self._heartbeats = self._store.heartbeats(node)
        self._heartbeats.start()
        self._announce(
            "NodeJoined",
            node=node.id,
            name=node.name,
            namespace=self._store.namespace,
            leaseMs=node.lease_us // 1_000,
        )
        return scheduler_id

    async def leave(self) -> None:
        """Write what is not yet written, and be a node no more. It lets go also if it raises."""
        try:
            await self._write_all()
        finally:
            self.node.is_leaving = True
            await self._let_go(is_leaving=not self.node.ends)

    async def _write_all(self) -> None:
        """Write every end. If an answer is lost, the node comes back in time, or never."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(self.node.lease_us / SECOND_US, _LAST_ENDS_S)
        while self.node.ends:
            # Under the lock, like every message of the loop: two at once would send the same ends.
            async with self.writing:
                if not self.node.is_returning:
                    await self._asked(0, self.poller.now_us())
            if self.node.ends and (left_s := until_s - loop.time()) <= 0:
                raise self._fault or StoreError(
                    store=self._store.name, reason="has not confirmed the last ends"
                )
            if self.node.ends:
                with suppress(TimeoutError):
                    # Each heartbeat wakes it: the node may be back, or the database.
                    await asyncio.wait_for(self._changed.wait(), min(left_s, 0.1))

    async def drop(self) -> None:
        """Let go as a crash would."""
        self.node.is_leaving, self.node.is_joined = True, False
        await self._let_go(is_leaving=False)

    async def _let_go(self, *, is_leaving: bool) -> None:
        if self._trust_timer is not None:
            self._trust_timer.cancel()
        heartbeats, self._heartbeats = self._heartbeats, None
        link, self._link = self._link, None
        if heartbeats is not None:
            # First: a heartbeat after the node has left would find no row, and come back.
            await heartbeats.stop()
        if link is not None:
            try:
                if is_leaving:
                    await link.do(LeaveCluster(node=self.node.id))
                    self.node.is_joined = False
            except StoreError:
                mark("leave failed")  # the others fence this node when its lease is over
            finally:
                link.leave()
        self._active.clear()
        self.named.renew()
        self._loop = self._loop_watch = None

    # --- what the poller asks ---

    @property
    def is_faulty(self) -> bool:
        """Whether the database has failed, and has not been seen to work since."""
        return self._fault is not None

    def may_call(self) -> bool:
        """Whether anything may start here: not without trust, and not before a return is over."""
        return self.node.may_claim()

    def has_more(self) -> bool:
        """Whether the last claim was full, somebody has room now, or ends are left to be written."""
        if self._fault is not None or not self.node.may_claim():
            return self._has_more
        return self._has_more or self.named.has_next() or bool(self.node.ends)

    def next_us(self) -> Instant | None:
        """When the next row is due. After a fault the heartbeats say when to go on."""
        return None if self._fault is not None else self._next_us

    def look_again(self) -> None:
        """Nothing is kept that could be wrong."""

    # --- starts ---

    async def claim(
        self, now_us: Instant, at_most: int, on_look: Callable[[int], None]
    ) -> Sequence[Begin[T]]:
        """Write the ends that came in, and claim what is due now."""
        limit = at_most if self.node.may_claim() else 0
        if not limit and not self.node.ends:
            self._has_more = False
            return ()
        rows, now_us, steps = await self._asked(limit, now_us)
        if not rows:
            return ()
        on_look(len(rows))
        return await self._permitted(self._decided(rows, now_us, steps))

    async def _permitted(self, starts: Sequence[Begin[T]]) -> Sequence[Begin[T]]:
        """Those of *starts* for which there is room on all nodes. The others are released."""
        rooms: list[Room] = []
        limited: dict[int, Begin[T]] = {}
        for start in starts:
            row_id = self._active[start.after.name].held.id
            if (room := self._room_of(row_id, start)) is not None:
                rooms.append(room)
                limited[row_id] = start
        if not rooms:
            return starts
        taken: Sequence[int] | None = None
        try:
            taken = await self._answered(self.node.take_room(rooms))
        finally:
            if taken is None:  # if it was refused, the next claim is, too, and the node learns it
                self.give_back(starts)
        if taken is None:
            return ()
        if refused := [start for row_id, start in limited.items() if row_id not in taken]:
            self._refuse(refused)
        return [start for start in starts if start.after.name in self._active]

    def _room_of(self, row_id: int, start: Begin[T]) -> Room | None:
        """What a start takes before it is made."""
        limit = self._rules.limit_of(start.before)
        return None if limit is None else Room(row_id, limit, self.named.sizes[limit])

    def _refuse(self, starts: Sequence[Begin[T]]) -> None:
        """Have *starts*, for which there is no room, wait for it."""
        self.give_back(starts)
        self.named.put_off(starts, self._rules, self._announcer)

    async def _asked(self, limit: int, now_us: Instant) -> tuple[list[Claimed], Instant, Sequence[Step]]:
        """Send one message; the rows that are ours now, the time, and the steps that they do not know of."""
        node, steps = self.node, list(self._steps)
        is_burst, self._has_more = self._has_more and limit > 0, False
        # Collects the steps that come while this message is under way: its rows do not know of them.
        self._latest.clear()
        given_us = None if self._clock is not None else now_us
        due_us = max((step.before_us for step in steps), default=None)
        wanted = list(self.wanted) if limit else []
        looks_again, self._is_to_look_again = self._is_to_look_again, False
        if limit:
            self._next_in_turn = self.named.next_names()  # from now on they are not left to others
        request = node.claim(
            limit=limit,
            ends=self._ends_now(is_burst),
            now_us=given_us,
            due_us=due_us,
            wanted=wanted,
            look_again_us=STEP_TOLERATED_US if looks_again else None,
            but=list(self.named.waiting),
        )
        sent_us = self._store.steady()
        work: Work | None = await self._answered(request)
        self._is_to_look_again |= looks_again and (work is None or work.seq is None)
        if work is None:
            return [], now_us, ()
        self._emit_fault(None)
        self._set_clock(work.now_us, sent_us, self._store.steady())  # runs are dated by the claim's clock
        rows = node.on_work(request, work)
        if rows:
            node.lag_us = max(work.now_us - (row.wake_us or work.now_us) for row in rows)
        if work.seq is None:
            self._wake_heartbeats()
        self._has_more = limit > 0 and len(rows) >= limit
        self._next_us = work.next_wake_us if work.is_open else work.now_us + _CLOSED_US
        if steps and limit and work.is_open and not self._has_more:
            # Steps are done with once a claim has seen every row that is due by them. That is not so if it
            # only wrote ends, was refused, or was full. New steps may have come meanwhile.
            self._steps = self._steps[len(steps) :]
        return rows, work.now_us, steps

    async def _answered(self, request: Claim | TakeRoom) -> Any:
        """What the database answers; None if it fails."""
        try:
            return await self.link.do(request)
        except BaseException as error:
            # Also if it was cancelled: nobody reads the answer, and the rows may be ours.
            if not isinstance(error, StoreError) or not error.is_undone:
                self.node.on_lost_answer(request)
            self._wake_heartbeats()
            if not isinstance(error, StoreError):
                raise
            self._emit_fault(error)
            return None

    def _ends_now(self, is_burst: bool) -> int:
        """How many ends to write with a claim: in a burst starts come first, for a while."""
        steady_us = self._store.steady()
        if is_burst and steady_us - self._wrote_us < _ENDS_WAIT_US:
            return 0
        if len(self.node.ends) <= _ENDS:  # else the next claim writes the rest
            self._wrote_us = steady_us
        return _ENDS

    def _decided(self, rows: list[Claimed], now_us: Instant, steps: Sequence[Step]) -> Sequence[Begin[T]]:
        """The starts that *rows* are owed, to which *steps* are new. The others are released."""
        held: dict[str, Claimed] = {}
        items: dict[str, T] = {}
        if self.named.sizes:
            # Room goes to those whose turn it is, then to who is due for longest (spec/scheduler.md 10.5).
            turns = {name: turn for turn, name in enumerate(self._next_in_turn)}
            rows = sorted(rows, key=lambda row: (turns.get(row.name, len(turns)), row.wake_us))
        for row in rows:
            if self.node.held.get(row.name) is not row:
                continue  # the node came back just now, and has released it
            if (item := self._item(row, now_us)) is not None:
                for step in steps:
                    item = self._rules.stepped(item, step)
                items[item.name], held[item.name] = item, row
        look = self._rules.looked_at(list(items.values()), now_us)
        for before, after in look.changed:
            items[after.name] = after
            self._rules.emit_changed(self._announcer, before, after, self.zone)
        starts = self.named.admitted(look.starts, self._rules, self._announcer)
        for start in starts:
            name = start.after.name
            self._active[name] = active = _Active(held.pop(name), start)
            # Steps that came while the claim was under way.
            for step in self._latest:
                active.item = self._rules.stepped(active.item, step)
        for name, row in held.items():
            if name in self.named.waiting:
                self._end(row, None, row.wake_us)
                continue
            mark("claimed and not owed")
            self._end(row, self._codec.state(items[name]), self._rules.wakes_us(items[name]))
        return starts

    def _item(self, row: Claimed, now_us: Instant) -> T | None:
        """The item of a row; None if it is released, because it is not for us or cannot be read."""
        try:
            item = self._codec.item(row, now_us)
        except SchedulerError as error:
            mark("unreadable row left alone")
            self._end(row, None, now_us + _UNREADABLE_US)
            if row.name not in self._unreadable:
                self._unreadable.add(row.name)
                self._announce("StoreFault", error=f"the row of task {row.name!r}: {described(error)}")
            return None
        if item is None:
            self._end(row, None, now_us + _UNREADABLE_US)
        if row.name in self._unreadable:
            self._unreadable.discard(row.name)
            self._announce("StoreRecovered", error=f"the row of task {row.name!r}")
        return item

    def give_back(self, starts: Sequence[Begin[T]]) -> None:
        """Release rows that were claimed and not begun."""
        for start in starts:
            self._release(self._taken_off(start.after.name))

    def callback_of(self, start: Begin[T]) -> Callback:
        """The callback, with a check before each of its steps."""
        item = start.after
        return partial(guarded, self._codec.callback(item), self._may_go_on, self._active[item.name].held)

    def _may_go_on(self, held: Claimed) -> bool:
        if self.node.is_trusted() and not held.is_cut:
            return True
        self._cut_off()  # else the cancelled callback would be recorded as a failure
        return False

    def on_begun(self, start: Begin[T], run: ActiveRun[T]) -> None:
        active = self._active[start.after.name]
        active.run, run.token = run, active.held.token

    # --- runs, and the clock ---

    def on_call(self, run: ActiveRun[T]) -> bool:
        """Note that the callback is about to be called, unless the row is not ours any more."""
        active = self._of(run)
        if active is None:
            return False
        with self.node.lock:
            # One step with the note below: the heartbeat thread may withdraw the row at any moment
            # (`Node.withdraw`).
            if self.node.held.get(active.held.name) is not active.held or not self.may_call():
                return False
            active.held.is_called = True
        active.item = self._rules.called(active.item, run.called_us)
        return True

    def on_call_off(self, run: ActiveRun[T]) -> None:
        """Release a row whose callback was not called."""
        self._release(self._taken_off(run.name) if self._of(run) is not None else None)

    def on_end(self, run: ActiveRun[T], error: BaseException | None) -> T | None:
        """Have the end written with the next message, unless the row is not ours any more."""
        active = self._of(run)
        if active is None:
            return None
        self._taken_off(run.name)
        if active.held.is_cut:
            return None
        item = self._rules.ended(active.item, run, error)
        record = self._codec.record(active.start, run, error)
        self._end(active.held, self._codec.state(item), self._rules.wakes_us(item), record)
        return item

    def supersede(self, hash_of: Callable[[str], int | None]) -> None:
        """Note for runs whose row has another definition now: their ends say nothing of it."""
        for active in self._active.values():
            held = active.held
            if active.run is not None and held.definition is None and hash_of(held.name) != held.hash:
                mark("run outlives its registration")
                active.run.is_superseded = True

    def on_step(self, step: Step) -> None:
        """Have what stood before the step claimed, and account for it in what runs.

        After a large step back dues start over, so what stood comes again by itself. Rows that were claimed
        in what is the future now are looked at again by the node that claims them.
        """
        if not self._rules.minds(step):
            return
        mark("clock stepped")
        self._latest.append(step)
        if step.before_us - step.after_us > STEP_TOLERATED_US:
            self._is_to_look_again = True
        else:
            self._steps.append(step)
        for active in self._active.values():
            active.item = self._rules.stepped(active.item, step)

    def _of(self, run: ActiveRun[T]) -> _Active[T] | None:
        active = self._active.get(run.name)
        return active if active is not None and active.run is run else None

    def _taken_off(self, name: str) -> _Active[T] | None:
        """The claimed start of that name, which is no more; the room of its limit is free."""
        active = self._active.pop(name, None)
        if active is not None:
            self.named.free(self._rules.limit_of(active.start.before))
        return active

    def _release(self, active: _Active[T] | None) -> None:
        if active is not None:
            mark("start put back")
            self._end(active.held, None, active.held.wake_us)

    def _end(
        self, held: Claimed, state: str | None, wake_us: Instant, record: RunRecord | None = None
    ) -> None:
        self.node.end(held.end(state, wake_us, held.request, record))

    # --- what the heartbeat thread says ---

    def _post(self, work: Callable[[], None]) -> None:
        """Have *work* done by the event loop, from whatever thread."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(work)
            except RuntimeError:
                mark("loop closed")

    def _emit(self, name: str, fields: dict[str, Any]) -> None:
        self._post(lambda: self._announce(name, **fields))

    def _on_fault_of_heartbeat(self, error: Exception | None) -> None:
        if error is not None:
            self._post(lambda: self._emit_fault(error))
        elif self._fault is not None:
            self._post(self._on_reached)

    def _on_reached(self) -> None:
        """Try again what has failed. The recovery is announced when that works."""
        if not self.count:
            self._emit_fault(None)
        self.poller.wake()

    def _wake_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.wake()

    def _wake_loop(self) -> None:
        self._watch_loop()
        self._post(self._on_change)

    def _watch_loop(self) -> None:
        """Let no new start come to a loop that one callback blocks."""
        if self._loop_watch is not None and self._loop_watch.look():
            self.node.withdraw()

    def _on_change(self) -> None:
        """Account for what the node has seen: cut off what is lost, catch up, look for work."""
        if self._link is None:
            return
        self._cut_off()
        pulse, could_claim = self.node.pulse, self._could_claim
        self._could_claim = self.node.may_claim()
        # A cycle is a message. A heartbeat that shows nothing new is not worth one.
        is_news = pulse is self._seen or bool(self.node.ends) or self._could_claim != could_claim
        if pulse is not None and pulse is not self._seen:
            before, self._seen = self._seen, pulse
            if before is not None and {peer.node for peer in before.peers} - {it.node for it in pulse.peers}:
                self._is_to_look_again = is_news = True  # who has gone may have put rows to sleep
            self._set_clock(pulse.now_us, *self.node.pulse_asked)
            wake_us = pulse.next_wake_us
            if wake_us is not None and (self._next_us is None or wake_us < self._next_us):
                self._next_us, is_news = wake_us, True
            is_news = is_news or (wake_us is not None and wake_us <= pulse.now_us)
            self.on_pulse(pulse)
            self._carry_out_cancels(pulse.cancelled)
            self.named.note_others(pulse.busy)
            is_news = is_news or self.named.has_next()
        self._watch_trust()
        self._changed.notify()
        if is_news:
            self.poller.wake()

    def _carry_out_cancels(self, cancelled: Sequence[tuple[str, int]]) -> None:
        """Cancel the runs of this node that another one was asked to cancel."""
        tokens = dict(cancelled)
        for active in list(self._active.values()) if tokens else ():
            if tokens.get(active.held.name) == active.held.token:
                self.poller.runs.cancel(active.item.name)

    def _watch_trust(self) -> None:
        """Look again when trust is over, unless it was renewed by then."""
        if self._trust_timer is not None:
            self._trust_timer.cancel()
        left_us = self.node.trusted_until_us - self._store.steady()
        if left_us > 0 and self._loop is not None:
            # Nothing else would wake the loop while heartbeats get no answer.
            self._trust_timer = self._loop.call_later(left_us / SECOND_US, self._on_change)

    def _cut_off(self) -> None:
        """Cancel the runs that are not ours any more, or may be somebody else's soon."""
        is_trusted = self.node.is_trusted()
        lost = []
        with self.node.lock:
            for active in self._active.values():
                run = active.run
                # One that was not called yet needs no cut: `on_call` refuses it.
                if run is None or not active.held.is_called or run.ended_us:
                    continue
                if not is_trusted or active.held.is_cut:
                    active.held.is_cut = True
                    lost.append(run)
        if lost:
            mark("trust ended")
            for run in lost:
                # Before they are cancelled: their ends must find nothing here to write (`on_end`).
                self._taken_off(run.name)
            self.poller.runs.abandon(lost)
            self.on_cut()
            self.node.on_cut()
            self._announce("TrustLost", runs=sorted(run.name for run in lost))
        if lost or not is_trusted:
            self._wake_heartbeats()

    # --- faults, time ---

    def _emit_fault(self, error: Exception | None) -> None:
        """Report a fault once, and its end once."""
        before, self._fault = self._fault, error
        if error is not None:
            if before is None or described(before) != described(error):
                self._announce("StoreFault", error=described(error))
        elif before is not None:
            self._announce("StoreRecovered", error=described(before))
            if self._link is not None:
                self.poller.wake()

    def _set_clock(self, now_us: Instant, sent_us: int, heard_us: int) -> None:
        if self._clock is not None:
            self._clock.set_by(now_us, asked_us=sent_us, heard_us=heard_us)


@types.coroutine
def guarded(
    callback: Callback, may_go_on: Callable[[Claimed], bool], held: Claimed
) -> Generator[Any, Any, object]:
    """Await *callback*, and cancel it before a step that it may not make any more on what is *held*.

    After SIGCONT the event loop wakes before the heartbeat thread. Without this check a body would act next
    to its successor for as long as the loop needs to notice that trust is over.
    """
    steps = callback().__await__()
    try:
        waited_for = next(steps)
        while True:
            try:
                value = yield waited_for
            except BaseException as error:
                waited_for = _thrown(steps, error)
            else:
                if not may_go_on(held):
                    waited_for = _thrown(steps, asyncio.CancelledError(CUT_OFF))
                elif value is None:
                    waited_for = next(steps)
                else:
                    waited_for = steps.send(value)
    except StopIteration as done:
        return done.value


def _thrown(steps: Any, error: BaseException) -> Any:
    if not hasattr(steps, "throw"):
        raise error
    return steps.throw(error)
