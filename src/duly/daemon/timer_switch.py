"""The timer switch: the only way from the daemon to the package that has the timers (spec/timers.md 7).

While it is closed that package is not even imported: no plan, no loop, no event, no read or write of timer
state. Closing takes effect at once; a run that a timer had started goes on as a run of its service. Where
machines share timers, other machines are kept from starting the same until it has ended. A test keeps
everybody else from importing what is behind this switch.
"""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from duly.clock import Watchable
from duly.cluster.table import Nodes
from duly.config.schema import Timer
from duly.core.causes import Reason
from duly.daemon.protocol import DISABLED, FAILED, OperationError
from duly.daemon.sharing import Sharing
from duly.daemon.views import DISABLED_MESSAGE, TimerSnapshot
from duly.errors import SchedulerError
from duly.events import Announcer
from duly.instant import NEVER_US, Instant, instant_of
from duly.processes.watchdog import Watchdog
from duly.store.history import History, MissRow, RemoteRun, RunBucket, RunRow, Span, WantedRuns
from duly.store.past import after_slot, known_slots
from duly.store.sqlite import SQLiteStore, SQLiteTimerRepository
from duly.supervisor.supervisor import Supervisor, WatchedServices

if TYPE_CHECKING:
    from duly.cluster_timers.timers import ClusterTimers
    from duly.timers.local import LocalTimers
    from duly.timers.timer import TimerState

T = TypeVar("T")

_BEHIND = (
    "Other machines have a newer configuration; only timers that it has in common with this one fire here. "
    "Reload this one"
)


class TimerSwitch:
    """Opens and closes the timers."""

    def __init__(
        self,
        store: SQLiteStore,
        supervisor: Supervisor,
        history: History,
        *,
        clock: Watchable,
        announcer: Announcer,
        sharing: Sharing | None = None,
    ) -> None:
        self._sharing = sharing
        self._store = store
        self._supervisor = supervisor
        self._history = history
        self._clock = clock
        self._announcer = announcer
        self._timers: LocalTimers | ClusterTimers | None = None
        self._opening: LocalTimers | ClusterTimers | None = None
        """Timers that are to be at work, and are not yet."""
        self._busy: list[LocalTimers | ClusterTimers] = []
        """Timers that are being put to work, or whose last writes are waited for; or both."""
        self._watchdogs: dict[LocalTimers | ClusterTimers, Watchdog] = {}
        """Each with the watchdog of the runs that its timers have started."""
        self._lingering: dict[ClusterTimers, asyncio.Task[None]] = {}
        """Timers that are off, and still have runs: their rows are claimed until the runs end."""
        self._read: dict[str, tuple[TimerState, TimerSnapshot]] = {}
        """Cached snapshots, valid while the timer state is unchanged and not yet due."""
        self._slots: dict[str, str] = {}
        """The newest slots of each timer (`store.past`)."""
        supervisor.on_run_ended.append(self._on_run_ended)

    @property
    def is_open(self) -> bool:
        return self._timers is not None

    async def open(
        self,
        definitions: Sequence[Timer],
        zone: tzinfo,
        started_up_us: Instant,
        *,
        is_start_up: bool,
        invalid: Collection[str] = (),
    ) -> None:
        """Put timers to work. Raises StoreError if what is known of them cannot be read or written.

        What is known of timers whose definition is *invalid* is kept until that is repaired. Closed before
        all this is done, the timers stay off.
        """
        if self._timers is not None:
            return
        timers = self._alone(zone) if self._sharing is None else self._shared(self._sharing, zone)
        # Before anything is awaited: a close that comes meanwhile finds them here.
        self._opening = timers
        self._busy.append(timers)
        try:
            self._slots = self._slots or await self._history.ask(known_slots)
            if (watchdog := self._watchdogs.get(timers)) is not None:
                await watchdog.start()
            await timers.start(
                definitions, started_up_us=started_up_us, is_start_up=is_start_up, invalid=invalid
            )
            if self._opening is timers:
                self._timers = timers
                self._announcer.announce("TimersEnabled", timers=len(definitions))
        finally:
            self._opening = None
            self._busy.remove(timers)
            await self._unwatch(timers)

    def _alone(self, zone: tzinfo) -> "LocalTimers":
        from duly.timers.local import LocalTimers  # noqa: PLC0415 (behind the timer switch)
        from duly.timers.record import record_of  # noqa: PLC0415 (behind the timer switch)

        return LocalTimers(
            SQLiteTimerRepository(self._store, self._store.scheduler_id, record_of),
            self._supervisor,
            self._clock,
            self._announcer,
            zone=zone,
            on_miss=self._on_miss,
        )

    def _shared(self, sharing: Sharing, zone: tzinfo) -> "ClusterTimers":
        from duly.cluster_timers.timers import ClusterTimers  # noqa: PLC0415 (behind the timer switch)

        watchdog = sharing.new_watchdog()
        timers = ClusterTimers(
            sharing.new_store(),
            WatchedServices(self._supervisor, watchdog),
            sharing.clock,
            self._announcer,
            host_clock=self._clock,
            zone=zone,
            name=sharing.name,
            on_miss=self._on_miss,
            on_trust=watchdog.extend,
        )
        self._watchdogs[timers] = watchdog
        sharing.node = timers.node
        return timers

    def _on_miss(self, name: str, at_us: Instant, reason: str) -> None:
        self._history.record_miss(MissRow(name, at_us, reason))
        self._add_slot(name, reason)

    def _add_slot(self, timer: str, miss: str | None) -> None:
        self._slots[timer] = after_slot(self._slots.get(timer, ""), miss)

    async def reload(self, definitions: Sequence[Timer], invalid: Collection[str] = ()) -> None:
        """Have other definitions hold, if the timers are on. Raises StoreError."""
        if self._timers is not None:
            await self._timers.reload(definitions, invalid=invalid)

    async def close(self) -> None:
        """End everything about timers, from this call on."""
        opening, self._opening = self._opening, None
        if opening is not None:
            await self._stopped(opening, opening.stop())
        # Taken out before they are stopped: nobody gets at timers that are on their way out.
        timers, self._timers = self._timers, None
        if timers is not None:
            # Called before the event is emitted, awaited after it: no timer event may follow that one.
            stopping = timers.stop()
            self._announcer.announce("TimersDisabled")
            await self._stopped(timers, stopping)

    async def shut_down(self) -> None:
        """End with the supervisor: wait for the runs it cuts off, and write down that they were."""
        timers, self._timers = self._timers, None
        shared, waiting = tuple(self._watchdogs), tuple(self._lingering.values())
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
        for each in dict.fromkeys((*shared, timers)):
            if each is not None:
                # First the timers, then their watchdog: it watches until the last end is written.
                await each.close()
                await self._unwatch(each)

    async def _stopped(
        self, timers: "LocalTimers | ClusterTimers", stopping: Coroutine[Any, Any, None]
    ) -> None:
        """Wait until *timers* are stopped; those that must linger do so in the background."""
        if self._sharing is None:
            await stopping
            return
        from duly.cluster_timers.timers import ClusterTimers  # noqa: PLC0415 (behind the timer switch)

        assert isinstance(timers, ClusterTimers)
        self._busy.append(timers)
        try:
            await stopping
        finally:
            self._busy.remove(timers)
        if timers.is_lingering:
            waiting = asyncio.get_running_loop().create_task(self._linger(timers), name="duly lingering")
            self._lingering[timers] = waiting
        await self._unwatch(timers)

    async def _linger(self, timers: "ClusterTimers") -> None:
        try:
            await timers.linger()
        finally:
            del self._lingering[timers]
        await self._unwatch(timers)

    async def _unwatch(self, timers: "LocalTimers | ClusterTimers") -> None:
        """End the watchdog of *timers*, unless something is left for it to watch."""
        if timers is self._timers or timers in self._lingering or timers in self._busy:
            return
        if (watchdog := self._watchdogs.pop(timers, None)) is not None:
            await watchdog.close()

    # --- what passes through it ---

    def snapshots(self) -> Mapping[str, TimerSnapshot] | None:
        """How the timers are; None while the timers are off."""
        timers = self._timers
        if timers is None:
            self._read = {}
            return None
        now_us, slots = instant_of(self._clock.now()), self._slots
        known, self._read = self._read, {}
        snapshots = {}
        for state in timers.all():
            name = state.name
            kept = known.get(name)
            # Of thousands hardly any has changed since somebody last looked.
            if kept is None or kept[0] is not state or (kept[1].next_us or NEVER_US) <= now_us:
                kept = (state, _snapshot(state, timers.next_of(state, now_us), timers.runs_on(state)))
            if kept[1].slots != slots.get(name, ""):
                kept = (state, msgspec.structs.replace(kept[1], slots=slots[name]))
            snapshots[name] = kept[1]
            if state.definition.on_unit_active_sec is None and (kept[1].next_us or NEVER_US) > now_us:
                self._read[name] = kept
        return snapshots | {
            name: TimerSnapshot(fault=str(error)) for name, error in timers.unreadable.items()
        }

    async def refresh(self) -> None:
        if self._timers is not None:
            await as_operation(self._timers.refresh())

    async def past_runs(self, wanted: WantedRuns) -> list[RemoteRun]:
        if self._sharing is None:
            return []
        if self._timers is None:
            raise OperationError(DISABLED, "timers are not at work on this machine")
        return await as_operation(self._timers.past_runs(wanted))

    async def past_buckets(self, timers: Sequence[str], span: Span) -> list[RunBucket] | None:
        if self._sharing is None:
            return None
        if self._timers is None:
            raise OperationError(DISABLED, "timers are not at work on this machine")
        return await as_operation(self._timers.past_buckets(timers, span))

    async def nodes(self) -> Nodes | None:
        return (
            None
            if self._timers is None or self._sharing is None
            else await as_operation(self._timers.nodes())
        )

    def faults(self) -> list[str]:
        faults = {watchdog.fault for watchdog in self._watchdogs.values()} - {""}
        messages = [f"{fault}; no timer fires here until it can" for fault in sorted(faults)]
        return [*messages, _BEHIND] if self._timers is not None and self._timers.is_behind else messages

    async def trigger(self, timer_id: str) -> int:
        return await as_operation(self._opened().trigger(timer_id))

    async def switch(self, timer_id: str, *, enabled: bool) -> None:
        timers = self._opened()
        await as_operation(timers.enable(timer_id) if enabled else timers.disable(timer_id))

    def _opened(self) -> "LocalTimers | ClusterTimers":
        if self._timers is None:
            raise OperationError(DISABLED, DISABLED_MESSAGE)
        return self._timers

    def _on_run_ended(self, row: RunRow) -> None:
        if row.timer is not None and row.scheduled_us is not None and row.reason != Reason.RETRY:
            self._add_slot(row.timer, None)
        for timers in dict.fromkeys((*self._watchdogs, self._timers)):
            if timers is not None:
                timers.run_ended(row)


def _snapshot(state: "TimerState", next_us: Instant | None, member: str | None) -> TimerSnapshot:
    """What is shown of a state: its fields of the same names, and what it does not know itself."""
    shown = msgspec.convert(state, TimerSnapshot, from_attributes=True)
    return msgspec.structs.replace(shown, next_us=next_us, member=member)


async def as_operation(call: Coroutine[Any, Any, T]) -> T:
    """Await *call*; an error of ours becomes an OperationError, for the client."""
    try:
        return await call
    except SchedulerError as error:
        raise OperationError(FAILED, error.message, **error.details) from error
