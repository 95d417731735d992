"""The gate to the timers: the only door between the daemon and the package that has them (TIMERS.md 7).

While it is closed that package is not even imported: no plan, no loop, no event, no read or write of timer
state. Closing takes effect at once; a run that a timer had started goes on as a run of its service. Where
machines share timers, other machines are kept from starting the same until it has ended. A test keeps
everybody else from importing what is behind this door.
"""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

from duly.clock import Watchable
from duly.config.schema import Timer
from duly.daemon.backend import Begun
from duly.daemon.hand import Hand
from duly.daemon.holding import Holding
from duly.daemon.protocol import DISABLED, FAILED, OperationError
from duly.daemon.sharing import SHARDS, Sharing
from duly.daemon.views import DISABLED_MESSAGE, TimerReading
from duly.errors import SchedulerError
from duly.events import Announcer
from duly.instant import NEVER_US, Instant, instant_of
from duly.store.history import History, MissRow, RunRow
from duly.store.sqlite import SQLiteStore
from duly.supervisor.leashed import Leashed
from duly.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from duly.timers.asking import Done
    from duly.timers.face import Timers
    from duly.timers.shared import SharedTimers
    from duly.timers.timer import TimerState

T = TypeVar("T")


class Gate:
    """Opens and closes the timers."""

    def __init__(
        self,
        store: SQLiteStore,
        scheduler_id: str,
        supervisor: Supervisor,
        history: History,
        *,
        clock: Watchable,
        announcer: Announcer,
        sharing: Sharing | None = None,
    ) -> None:
        self._sharing = sharing
        self._store = store
        self._scheduler_id = scheduler_id
        self._supervisor = supervisor
        self._history = history
        self._clock = clock
        self._announcer = announcer
        self._timers: Timers | SharedTimers | None = None
        self._opening: Timers | SharedTimers | None = None
        """Timers that are to be at work, and are not yet."""
        self._busy: list[Timers | SharedTimers] = []
        """Timers that are being put to work, or whose last writes are waited for; or both."""
        self._hands: dict[Timers | SharedTimers, Hand] = {}
        """Each with the leash of what its timers have started."""
        self._lingering: dict[SharedTimers, asyncio.Task[None]] = {}
        """Timers of which runs go on after the gate was closed: their shards are held until these end."""
        self._read: dict[str, tuple[TimerState, TimerReading]] = {}
        """Readings that hold as long as the state of their timer is that one, and until they fire."""
        supervisor.on_run_ended.append(self._on_run_ended)

    @property
    def is_open(self) -> bool:
        """Whether timers are at work."""
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

        What is known of timers whose definition is *invalid* is kept for when that is mended. Closed before
        all this is done, the gate stays closed.
        """
        if self._timers is not None:
            return
        timers = self._alone(zone) if self._sharing is None else self._shared(self._sharing, zone)
        self._opening = timers
        self._busy.append(timers)
        try:
            if (hand := self._hands.get(timers)) is not None:
                await hand.begin()
            await timers.start(
                definitions, started_up_us=started_up_us, is_start_up=is_start_up, invalid=invalid
            )
            if self._opening is timers:
                self._timers = timers
                self._announcer.announce("TimersEnabled", timers=len(definitions))
        finally:
            self._opening = None
            self._busy.remove(timers)
            await self._unleash(timers)

    def _alone(self, zone: tzinfo) -> "Timers":
        from duly.store.tables import TimerShelf  # noqa: PLC0415 (behind the gate)
        from duly.timers.face import Timers  # noqa: PLC0415 (behind the gate)
        from duly.timers.record import record_of  # noqa: PLC0415 (behind the gate)

        return Timers(
            TimerShelf(self._store, self._scheduler_id, record_of),
            self._supervisor,
            self._clock,
            self._announcer,
            zone=zone,
            note_miss=self._note_miss,
        )

    def _shared(self, sharing: Sharing, zone: tzinfo) -> "SharedTimers":
        from duly.timers.shared import SharedTimers  # noqa: PLC0415 (behind the gate)

        hand = sharing.new_hand()
        timers = SharedTimers(
            sharing.new_board(),
            Leashed(self._supervisor, hand.leash),
            sharing.clock,
            self._announcer,
            host_clock=self._clock,
            zone=zone,
            name=sharing.name,
            shards=SHARDS,
            note_miss=self._note_miss,
            on_trust=hand.leash.extend,
        )
        self._hands[timers] = hand
        return timers

    def _note_miss(self, name: str, at_us: Instant, reason: str) -> None:
        self._history.note_miss(MissRow(name, at_us, reason))

    async def reload(self, definitions: Sequence[Timer], invalid: Collection[str] = ()) -> None:
        """Have other definitions hold, if the gate is open. Raises StoreError."""
        if self._timers is not None:
            await self._timers.reload(definitions, invalid=invalid)

    async def close(self) -> None:
        """End everything about timers, from this call on."""
        opening, self._opening = self._opening, None
        if opening is not None:
            await self._stopped(opening, opening.stop())
        timers, self._timers = self._timers, None
        if timers is not None:
            stopping = timers.stop()
            self._announcer.announce("TimersDisabled")
            await self._stopped(timers, stopping)

    async def shut_down(self) -> None:
        """End with the supervisor: wait for the runs it cuts off, and write down that they were."""
        timers, self._timers = self._timers, None
        shared, waiting = tuple(self._hands), tuple(self._lingering.values())
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
        for each in dict.fromkeys((*shared, timers)):
            if each is not None:
                await each.close()
                await self._unleash(each)

    async def _stopped(self, timers: "Timers | SharedTimers", stopping: Coroutine[Any, Any, None]) -> None:
        """Wait until *timers* are stopped; those that must linger do so in the background."""
        if self._sharing is None:
            await stopping
            return
        from duly.timers.shared import SharedTimers  # noqa: PLC0415 (behind the gate)

        assert isinstance(timers, SharedTimers)
        self._busy.append(timers)
        try:
            await stopping
        finally:
            self._busy.remove(timers)
        if timers.is_lingering:
            waiting = asyncio.get_running_loop().create_task(self._linger(timers), name="duly lingering")
            self._lingering[timers] = waiting
        await self._unleash(timers)

    async def _linger(self, timers: "SharedTimers") -> None:
        try:
            await timers.linger()
        finally:
            del self._lingering[timers]
        await self._unleash(timers)

    async def _unleash(self, timers: "Timers | SharedTimers") -> None:
        """Take the leash of *timers* off, unless something is left that is to be on it."""
        if timers is self._timers or timers in self._lingering or timers in self._busy:
            return
        if (hand := self._hands.pop(timers, None)) is not None:
            await hand.end()

    # --- what passes through it ---

    def readings(self) -> Mapping[str, TimerReading] | None:
        """How the timers are; None while the gate is closed."""
        timers = self._timers
        if timers is None:
            self._read = {}
            return None
        now_us = instant_of(self._clock.now())
        known, self._read = self._read, {}
        readings = {}
        for state in timers.all():
            name = state.name
            kept = known.get(name)
            # Of thousands hardly any has changed since somebody last looked.
            if kept is None or kept[0] is not state or (kept[1].next_us or NEVER_US) <= now_us:
                kept = (state, _reading(state, timers.next_of(state, now_us), timers.holder_of(state)))
            readings[name] = kept[1]
            if state.definition.on_unit_active_sec is None and (kept[1].next_us or NEVER_US) > now_us:
                self._read[name] = kept
        return readings | {name: TimerReading(fault=str(error)) for name, error in timers.unreadable.items()}

    def holding(self) -> Holding | None:
        """The shared timers at work here; None while the gate is closed, and where timers are not shared."""
        timers = self._timers
        if timers is None or self._sharing is None:
            return None
        from duly.timers.shared import SharedTimers  # noqa: PLC0415 (behind the gate)

        assert isinstance(timers, SharedTimers)
        return timers

    def faults(self) -> list[str]:
        """What keeps all timers from running, in words."""
        unleashed = {str(hand.fault) for hand in self._hands.values() if hand.fault is not None}
        return [f"{fault}; no timer fires here until it can" for fault in sorted(unleashed)]

    async def trigger(self, timer_id: str) -> Begun:
        """Fire a timer by hand. Raises OperationError."""
        begun: int | Done = await answered(self._opened().trigger(timer_id))
        return Begun(begun) if isinstance(begun, int) else Begun(*begun)

    async def switch(self, timer_id: str, *, enabled: bool) -> None:
        """Enable or disable a timer. Raises OperationError."""
        timers = self._opened()
        await answered(timers.enable(timer_id) if enabled else timers.disable(timer_id))

    def _opened(self) -> "Timers | SharedTimers":
        if self._timers is None:
            raise OperationError(DISABLED, DISABLED_MESSAGE)
        return self._timers

    def _on_run_ended(self, row: RunRow) -> None:
        if self._timers is not None and row.ended_us is not None:
            self._timers.service_ended(row.service, row.ended_us)


def _reading(state: "TimerState", next_us: Instant | None, member: str | None) -> TimerReading:
    return TimerReading(
        enabled_override=state.enabled_override,
        registered_us=state.registered_us,
        answered_us=state.answered_us,
        next_us=next_us,
        last_run_us=state.last_run_us,
        last_success_us=state.last_success_us,
        last_failure_us=state.last_failure_us,
        last_exit=state.last_exit,
        last_result=state.last_result,
        last_missed_us=state.last_missed_us,
        last_miss_reason=state.last_miss_reason,
        retry_attempt=state.retry_attempt,
        retry_at_us=state.retry_at_us,
        startup_triggered=state.startup_triggered,
        running_run=state.running_run,
        running_since_us=state.running_since_us,
        member=member,
    )


async def answered(call: Coroutine[Any, Any, T]) -> T:
    """What *call* answers; what it refuses is for whoever asked."""
    try:
        return await call
    except SchedulerError as error:
        raise OperationError(FAILED, error.message, **error.details) from error
