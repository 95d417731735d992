"""Timers shared by the daemons of a cluster: each is a row, and whichever node claims it when due fires it.

The interface is that of `LocalTimers`, on the node, backend and poller of the library. The differences:

- Nothing is in memory but what runs here. `all` shows what the database had when it was last asked.
- Before a start the row of its target is taken as well: jobs with the same target exclude each other. That is
  a message of its own, after the decision: a timer that is only looked at must not keep another from firing.
- A person who triggers a timer has it run on the machine that was asked: its row is claimed by name.
- When trust is lost, the processes of all runs here are killed. The node comes back when they have ended.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta, tzinfo
from typing import Any

from duly.clock import Clock
from duly.cluster.clock import DatabaseClock
from duly.cluster.lists import Lists
from duly.cluster.store import ClusterStore, Link, stored_rows
from duly.cluster.table import (
    Ask,
    Digest,
    ListOutcome,
    Nodes,
    Pulse,
    Put,
    ReadNodes,
    ReadTasks,
    StartUp,
    Switch,
)
from duly.cluster_timers.backend import RowRules, TimerBackend
from duly.cluster_timers.lists import is_first, outcome_of, refusal_text, start_up_asks
from duly.cluster_timers.local_runs import LocalRuns
from duly.cluster_timers.rows import ENDED, TimerCodec, TimerList
from duly.cluster_timers.views import ShownTimers, past_buckets, past_runs
from duly.config.schema import Timer
from duly.engine.runs import current_run
from duly.errors import ListRefusedError, StoreError
from duly.events import Announcer, described
from duly.instant import SECOND_US, Instant, instant_of
from duly.store.history import RemoteRun, RunBucket, RunRow, Span, WantedRuns
from duly.supervisor.results import RunResult
from duly.timers.dues import next_run_us
from duly.timers.reconciliation import ReconciliationContext, TimerReconciliation, emit_outcome
from duly.timers.requests import NOT_TRIGGERED, TimerError, TimerRefusal, Waiters
from duly.timers.rules import CuttableTargets, OnMiss, run_target
from duly.timers.timer import TimerState, last_known_end_us

_LOOK_S = 0.2
"""How often somebody who triggers a timer that another node has claimed looks again."""
_LOOKS_EVERY = 10
"""After so many heartbeats the database is asked how timers are, though nobody wants to know."""
_BUSY_US = SECOND_US
"""A row that is claimed for longer is not only looked at: it runs."""
_LEASES = 2
"""For so many leases a row is waited for that somebody wants to trigger."""


class ClusterTimers:
    """The timers of a configuration, shared with other machines.

    *on_trust* is called with the time until which runs may go on, by the steady clock, whenever it changes.
    """

    def __init__(
        self,
        store: ClusterStore,
        targets: CuttableTargets,
        clock: DatabaseClock,
        announcer: Announcer,
        *,
        host_clock: Clock,
        zone: tzinfo,
        name: str,
        on_miss: OnMiss = lambda *_: None,
        on_trust: Callable[[int], None] = lambda _until_us: None,
    ) -> None:
        self._store = store
        self._targets = targets
        self._clock = clock
        self._host_clock = host_clock
        self._announcer = announcer
        self._local = LocalRuns(store.steady)
        self._codec = TimerCodec(zone, self._fire, self._local.output_of)
        self.unreadable = self._codec.unreadable
        self._rules = RowRules(targets, self, self._item_of, self._is_blocked, on_miss)
        self._rules.makes_up_every_cut = True
        self._backend = TimerBackend(store, clock, announcer, self._rules, self._codec, name=name)
        self._poller, self.node = self._backend.poller, self._backend.node
        self._rules.now_us, self._rules.node = clock.now_us, self.node
        self.node.on_trust, self.node.may_return = on_trust, self._local.are_gone
        self._backend.zone = zone
        self._backend.blocked, self._backend.ended = set(), {}
        self._backend.is_stopping = lambda: targets.is_stopping
        self._backend.on_missed = self._on_missed
        empty = self._codec.listed
        self._lists = Lists(
            store, self._backend, announcer, empty=empty, puts=self._puts, take_over=self._take_over
        )
        self._backend.on_pulse, self._backend.on_cut = self._on_pulse, self._on_cut
        self._moving = asyncio.Lock()
        """Held while this node joins, leaves, or brings a list."""
        self._is_over = False
        self._is_start_up = False
        self._outcome = TimerReconciliation()
        """What the list that is being brought changes, as far as it is known before."""
        self._shown = ShownTimers(self._codec)
        self._is_looked_at, self._pulses = False, 0
        self._asked = Waiters()
        self._asks: list[Ask] = []
        """What is still to be written into other rows."""
        self._asking = asyncio.Lock()
        self._keeping_up: asyncio.Task[None] | None = None

    # --- life ---

    async def start(
        self,
        definitions: Sequence[Timer],
        *,
        started_up_us: Instant | None,
        is_start_up: bool = False,
        invalid: Collection[str] = (),
    ) -> None:
        """Join the cluster and bring *definitions*. Raises StoreError, ListRefusedError.

        Rows of timers whose definition is *invalid* are left alone. A `stop` that comes before this is done
        holds: nothing begins.
        """
        async with self._moving:
            if self._is_over:
                return
            self._poller.renew()
            await self._backend.join(uuid.uuid4().hex)  # noqa: TID251 (of a new store)
            try:
                first = await is_first(self._backend.link, self.node, self._pause)
                if self._poller.is_closed:
                    return  # `stop` waits to leave
                self._is_start_up = is_start_up and first
                await self._begin(definitions, invalid, started_up_us if first else None)
            except ListRefusedError as error:
                # The caller gets the error; a fault of leaving would hide it.
                await self._leave(is_sound=False)
                raise StoreError(store=self._store.name, reason=refusal_text(error)) from error
            except BaseException:
                await self._leave(is_sound=False)
                raise
            finally:
                self._is_start_up = False
            self._poller.begin()

    async def _begin(
        self, definitions: Sequence[Timer], invalid: Collection[str], started_up_us: Instant | None
    ) -> None:
        """Bring the list; the first node also writes the start-up into all timers."""
        if started_up_us is None:
            await self._bring(definitions, invalid)
        else:
            at_us = started_up_us + self._ahead_us()
            await self._backend.link.do(StartUp(at_us=at_us))
            outcome = await self._bring(definitions, invalid)
            fresh = {*outcome.added, *(name for name, _ in outcome.overridden)}
            self._asks += start_up_asks(
                self._codec.listed, fresh, at_us, self._clock.now_us(), is_start_up=self._is_start_up
            )
        await self._look()
        self._asks += self._ends_unknown()
        await self._send_asks()

    async def _pause(self) -> bool:
        """Wait for a heartbeat; whether these timers are still to be put to work."""
        await self._clock.sleep_until(self._clock.now() + timedelta(microseconds=self.node.beat_us))
        return not self._is_over

    def _ends_unknown(self) -> Iterator[Ask]:
        """What timers with an interval do not know: ends of their targets here, while the timers were off."""
        for timer in self._shown.timers:
            ended_us = self._targets.last_end_us(timer.target)
            if timer.definition.on_unit_active_sec is not None and ended_us is not None:
                at_us = ended_us + self._ahead_us()
                if timer.anchor_us is None or timer.anchor_us < at_us:
                    yield Ask(names=[timer.name], text=f"{ENDED} {at_us}")

    async def reload(self, definitions: Sequence[Timer], *, invalid: Collection[str] = ()) -> None:
        """Make *definitions* the timers from now on. Raises StoreError."""
        async with self._moving, self._backend.writing:
            before = self._codec.listed
            await self._bring(definitions, invalid, replace=True)
            self._emit_taken_up(before)
        for name in before.keys() - self._codec.listed.keys():
            self._asked.refuse(name, TimerError(TimerRefusal.UNKNOWN, timer=name))
        await self._look()
        self._poller.begin()

    def _emit_taken_up(self, before: TimerList) -> None:
        """Announce timers that are new or changed here, and whose rows another machine has made."""
        announced = {timer.name for timer in self._outcome.timers}
        for name, item in self._codec.listed.items():
            is_same = name in before and before[name].text == item.text
            if not is_same and name not in announced:
                self._announcer.announce("TimerRecalled", timer=name, target=item.definition.target)

    def stop(self) -> Coroutine[Any, Any, None]:
        """Switch the timers off: nothing begins here from this call on. What runs goes on: `linger` then."""
        self._close(TimerRefusal.OFF)
        self._rules.is_quiet = True
        return self._stop()

    async def _stop(self) -> None:
        async with self._moving:
            if not self.is_lingering:
                await self._leave()

    @property
    def is_lingering(self) -> bool:
        """Whether the timers are off, and something runs that a timer had started."""
        return self._is_over and len(self._poller.runs) > 0

    async def linger(self) -> None:
        """Hold on to what runs until it has ended, and leave then."""
        await self._poller.runs.wait_for_ends(but_waiting=False)
        async with self._moving:
            await self._leave()

    async def close(self) -> None:
        """End with the supervisor, which ends what runs. Others go on with everything else at once."""
        self._close(TimerRefusal.STOPPING)
        async with self._moving:
            await self._poller.runs.wait_for_ends(but_waiting=False)
            await self._leave()

    def _close(self, kind: TimerRefusal) -> None:
        # Without the lock: a start that holds it sees these, and gives up.
        self._is_over = self._poller.is_closed = True
        self._asked.refuse_all(kind)

    async def _leave(self, *, is_sound: bool = True) -> None:
        """Write the last ends and leave the cluster. A fault is announced: others then wait for the lease."""
        if not self._backend.is_joined:
            return
        try:
            # In this order: no more claims, then no more lists and messages, then the last ends.
            await self._poller.end()
            await self._lists.end()
            if self._keeping_up is not None:
                await asyncio.wait([self._keeping_up])
            self._asks.clear()
            await self._backend.leave()
        except StoreError as error:
            if is_sound:
                self._announcer.announce("StoreFault", error=described(error))

    # --- lists ---

    async def _bring(
        self, definitions: Sequence[Timer], invalid: Collection[str], *, replace: bool = False
    ) -> ListOutcome:
        listed = TimerList(definitions, self._codec.calendars)
        self._outcome = TimerReconciliation()
        outcome = await self._lists.bring(listed, kept=list(invalid), replace=replace)
        gone = {name for name, _ in outcome.orphaned}
        self._outcome.removed[:] = [timer for timer in self._outcome.removed if timer.name in gone]
        emit_outcome(self._announcer, self._outcome)
        return outcome

    async def _puts(self, listed: TimerList, names: Sequence[str], digest: Digest) -> list[Put]:
        """The rows of timers that are new, or declared in another way."""
        context = ReconciliationContext(
            now_us=self._clock.now_us(),
            started_up_us=digest.startup_us,
            is_start_up=self._is_start_up,
            next_id=0,
            last_end_us=self._last_end_us,
        )
        stored = await stored_rows(self._backend.link)
        self._outcome = outcome_of(listed, names, stored, self._codec, context)
        return [
            Put(
                timer.name,
                listed.hash_of(timer.name) or 0,
                timer.text,
                self._codec.state(timer),
                self._rules.wakes_us(timer),
                timer.lock,
            )
            for timer in self._outcome.timers
        ]

    def _take_over(self, listed: TimerList) -> None:
        self._codec.listed = listed
        for name in self._codec.unreadable.keys() - listed.keys():
            del self._codec.unreadable[name]

    def _last_end_us(self, timer: TimerState) -> Instant | None:
        heard_us = self._targets.last_end_us(timer.target)
        return last_known_end_us(timer, None if heard_us is None else heard_us + self._ahead_us())

    def _ahead_us(self) -> int:
        """How far the time of the database is ahead of this host's."""
        return self._clock.now_us() - instant_of(self._host_clock.now())

    # --- looking ---

    @property
    def is_behind(self) -> bool:
        return self._lists.is_behind

    async def refresh(self) -> None:
        """Ask the database how all timers are. Raises StoreError; then what is known stays as it is."""
        await self._shown.refresh(self._answering())

    async def _look(self) -> None:
        with suppress(StoreError):
            if self._backend.is_joined:
                await self._shown.refresh(self._backend.link)

    async def past_runs(self, wanted: WantedRuns) -> list[RemoteRun]:
        """Runs of all machines that have ended, newest first. Raises StoreError."""
        return await past_runs(self._answering(), self.node.name, wanted, self._ahead_us())

    async def past_buckets(self, timers: Sequence[str], span: Span) -> list[RunBucket]:
        """Runs of all machines in the parts of *span*. Raises StoreError."""
        return await past_buckets(self._answering(), timers, span, self._ahead_us())

    async def nodes(self) -> Nodes:
        """All machines. Raises StoreError."""
        return await self._answering().do(ReadNodes())

    def _answering(self) -> Link:
        """The connection to a database that answers heartbeats. Raises StoreError.

        Nobody who looks waits for one that does not.
        """
        if not self._backend.is_joined or not self.node.is_trusted():
            raise StoreError(store=self._store.name, reason="does not answer")
        return self._backend.link

    def all(self) -> list[TimerState]:
        """Every timer, in order of declaration; those of others as they were a moment ago."""
        self._is_looked_at = True
        return [self._latest(timer) for timer in self._shown.timers if timer.name in self._codec.listed]

    def _latest(self, timer: TimerState) -> TimerState:
        """A timer with what only this machine knows yet."""
        if (here := self._backend.item_of(timer.name)) is not None:
            return here
        is_unwritten = timer.name in self.node.ends
        return self._backend.ended.get(timer.name, timer) if is_unwritten else timer

    def next_of(self, timer: TimerState, now_us: Instant) -> Instant | None:
        """When a timer that is at hand will fire next."""
        at_us = next_run_us(timer, is_target_active=timer.running_run is not None)
        return None if at_us is None else max(at_us, now_us)

    def runs_on(self, timer: TimerState) -> str | None:
        if self._backend.item_of(timer.name) is not None:
            return self.node.name
        return "" if timer.running_run is None else self._shown.runs_on(timer.name)

    # --- by hand ---

    async def trigger(self, name: str) -> int:
        """Fire a timer here and now; the id of the run once it begins. Raises TimerError, StoreError."""
        target = self._declared(name).target
        asked = self._asked.add(name)
        self._codec.triggered.add(name)
        self._backend.wanted.add(name)
        try:
            return await self._begun(name, target, asked)
        finally:
            if self._asked.remove(name, asked):
                self._want_no_more(name)

    async def _begun(self, name: str, target: str, asked: "asyncio.Future[int]") -> int:
        # By the steady clock, like a lease: a dead node that has the row is fenced by then.
        until_us = self._store.steady() + _LEASES * self._store.lease_us
        while True:
            self._poller.begin()
            with suppress(TimeoutError):
                # Shielded: the time-out ends this look, not the request. The run may begin in the next
                # moment.
                return await asyncio.wait_for(asyncio.shield(asked), _LOOK_S)
            found = await self._backend.link.do(ReadTasks(name=name))
            since_us = found[0].started_us if found else None
            if since_us is not None and self._clock.now_us() - since_us > _BUSY_US:
                raise TimerError(TimerRefusal.OVERLAP, timer=name, target=target)
            if self._store.steady() >= until_us:
                raise TimerError(TimerRefusal.UNCLAIMED, timer=name)

    def _want_no_more(self, name: str) -> None:
        self._codec.triggered.discard(name)
        self._backend.wanted.discard(name)

    async def enable(self, name: str) -> None:
        """Switch a timer on, whatever the configuration says. Raises TimerError, StoreError."""
        await self._switch(name, is_on=True)

    async def disable(self, name: str) -> None:
        """Switch a timer off, whatever the configuration says. Raises TimerError, StoreError."""
        await self._switch(name, is_on=False)

    async def _switch(self, name: str, *, is_on: bool) -> None:
        enabled = None if is_on == self._declared(name).enabled else is_on
        if not await self._backend.link.do(Switch(name=name, enabled=enabled)):
            raise TimerError(TimerRefusal.UNKNOWN, timer=name)
        await self._look()
        self._poller.wake()

    def _declared(self, name: str) -> Timer:
        """A timer that may be triggered and switched here. Raises TimerError."""
        if self._is_over:
            kind = TimerRefusal.STOPPING if self._targets.is_stopping else TimerRefusal.OFF
            raise TimerError(kind, timer=name)
        if name not in self._codec.listed:
            raise TimerError(TimerRefusal.UNKNOWN, timer=name)
        if name in self._codec.unreadable:
            raise TimerError(TimerRefusal.UNREADABLE, timer=name)
        if self.is_behind:  # what a switch means depends on what the file says
            raise TimerError(TimerRefusal.SUPERSEDED, timer=name)
        return self._codec.listed[name].definition

    # --- firing ---

    async def _fire(self) -> RunResult:
        """Run the target of the timer whose run this is, to its end."""
        run = current_run.get()
        assert run is not None
        timer = self._backend.item_of(run.name)
        assert timer is not None
        assert timer.running_run is not None
        self._want_no_more(timer.name)
        self._asked.began(timer.name, timer.running_run)
        self._local.on_fired(timer)
        return await run_target(self._targets, timer, timer.target)

    def run_ended(self, row: RunRow) -> None:
        """Note that a run of a service has ended on this machine, however it was started."""
        fired = self._local.on_ended(row)
        # The end of its own run is in the row of a timer, unless it was declared again since.
        listed, its = self._codec.listed, None if fired is None else (fired.name, fired.text)
        with_interval = listed.with_interval.get(row.service, ())
        names = [name for name in with_interval if (name, listed[name].text) != its]
        if names and row.ended_us is not None and (fired is not None or not self._is_over):
            self._asks.append(Ask(names=names, text=f"{ENDED} {row.ended_us + self._ahead_us()}"))
            self._keep_up()

    def _keep_up(self) -> None:
        """Write the asks that are left, and read all rows again if somebody has asked for them."""
        if (self._asks or self._is_looked_at) and self._keeping_up is None and self._backend.is_joined:
            self._keeping_up = asyncio.get_running_loop().create_task(self._kept_up(), name="duly timers")

    async def _send_asks(self) -> None:
        """Write the asks that are left. Raises StoreError; the rest stays for the next try."""
        # A start and an end may both send. Without the lock the second would drop what it has not sent.
        async with self._asking:
            while self._asks:
                ask = self._asks[0]
                await self._backend.link.do(ask)
                if ask in self._asks:  # unless all were dropped meanwhile, because the node leaves
                    self._asks.remove(ask)
                self._poller.wake()

    async def _kept_up(self) -> None:
        """After a fault the next heartbeat tries again."""
        try:
            with suppress(StoreError):
                await self._send_asks()
            if self._is_looked_at:
                self._is_looked_at = False
                await self._look()
        finally:
            self._keeping_up = None

    # --- trust ---

    def _on_cut(self) -> None:
        """Kill what runs here: other nodes may start it in a moment."""
        self._local.on_cut()
        # At once: another node may start these runs as soon as trust is over.
        self._targets.cut_off()
        if self.node.is_trusted():
            self.node.on_trust(self.node.trusted_until_us)

    def _on_pulse(self, pulse: Pulse) -> None:
        self._pulses += 1
        self._is_looked_at = self._is_looked_at or self._pulses % _LOOKS_EVERY == 0
        if not self._is_over:
            self._lists.on_pulse(pulse)
        self._keep_up()

    # --- what the rules report (`rules.RulesListener`) ---

    def on_not_triggered(self, timer: TimerState) -> None:
        """Refuse a run that somebody waits for."""
        self._want_no_more(timer.name)
        kind = NOT_TRIGGERED.get(self._rules.target_state(timer), TimerRefusal.OVERLAP)
        self._asked.refuse(timer.name, TimerError(kind, timer=timer.name, target=timer.target))

    def _on_missed(self, before: TimerState, after: TimerState) -> None:
        if not self._rules.is_quiet:
            self._rules.emit_changed(self._announcer, before, after, self._backend.zone)

    def on_queued(self, timer: TimerState) -> None:
        """Nothing: its row is looked at again."""

    def on_target_free(self, _target: str) -> None:
        """Nothing: other timers of the target are rows, which learn it from the database."""

    def _item_of(self, name: str) -> TimerState | None:
        return self._backend.item_of(name)

    def _is_blocked(self, name: str) -> bool:
        return name in self._backend.blocked
