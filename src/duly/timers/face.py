"""The face of the timers: start, stop, reload, list, state, trigger, enable (TIMERS.md 7).

One `Timers` lives from one opening of the gate to its closing. It has no loop of its own and decides nothing:
the engine wakes and writes, the rules decide. It closes in one of two ways. `stop` is the gate: from that
moment nothing of timers happens, and what runs goes on as a run of its service. `close` is the end of the
supervisor: what comes due meanwhile is missed, and what is cut off is remembered.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import Any

import msgspec

from duly.clock import Step, Watchable
from duly.config.schema import Timer
from duly.core.record import Record
from duly.engine.book import Book, Entry
from duly.engine.poller import Poller
from duly.engine.runs import current_run
from duly.errors import StoreError
from duly.events import Announcer
from duly.instant import Instant
from duly.supervisor.ended import Result
from duly.timers.calendar import CalendarShelf
from duly.timers.dues import next_run_us
from duly.timers.errors import NOT_TRIGGERED, TimerError, TimerRefusal
from duly.timers.recall import Recall, moved_here, newest
from duly.timers.reconciliation import Reconciliation, Surroundings
from duly.timers.record import Declared, TimerRecordError, text_of
from duly.timers.rules import TimerRules, UnsuccessfulError
from duly.timers.shelf import TimerShelf
from duly.timers.targets import Targets
from duly.timers.telling import tell_outcome
from duly.timers.timer import (
    TimerState,
    anchored,
    interval_us,
    last_known_end_us,
    switched,
    switched_back,
    target_ended,
    with_result,
)
from duly.timers.waiters import Waiters

NoteMiss = Callable[[str, Instant, str], object]
"""Called with a timer's name, the instant of the due, and the reason."""


class Timers:
    """The timers of a configuration, at work."""

    def __init__(
        self,
        shelf: TimerShelf,
        targets: Targets,
        clock: Watchable,
        announcer: Announcer,
        *,
        zone: tzinfo,
        note_miss: NoteMiss = lambda *_: None,
        may_call: Callable[[], bool] = lambda: True,
        is_shared: bool = False,
    ) -> None:
        self._shelf = shelf
        self._targets = targets
        self._clock = clock
        self._announcer = announcer
        self._zone = zone
        self._note_miss = note_miss
        self._rules = TimerRules(targets, self, self._state_of, self._has_run)
        self._book: Book[TimerState] = Book(zone, self._rules)
        self._poller: Poller[TimerState] = Poller(self._book, shelf, clock, announcer, self._rules)
        self._poller.may_call = may_call
        self.turns = 0
        """How often it was paused or went on: it is paused while that is odd."""
        self._is_shared = is_shared
        """Other machines run the targets too, and tell nobody here when they end: only the timers know."""
        self._calendars = CalendarShelf(zone)
        self._started_up_us: Instant | None = None
        self._opened_us: Instant | None = None
        self._next_id = 1
        self._recall = Recall(targets.outcome)
        self._by_target: dict[str, list[str]] = {}
        """The timers with an interval, by target."""
        self._ended_meanwhile: dict[str, Instant] = {}
        """The ends that were heard of since the last list was begun to be written, by service."""
        self.unreadable: dict[str, TimerRecordError] = {}
        """Declared timers that do not run, because their stored state is damaged, by name."""
        self._asked = Waiters()
        self._unwatch: Callable[[], None] | None = None

    # --- life ---

    async def start(
        self,
        definitions: Sequence[Timer],
        *,
        started_up_us: Instant | None,
        is_start_up: bool = False,
        opened_us: Instant | None = None,
        invalid: Collection[str] = (),
        moved: Sequence[Record] = (),
    ) -> Reconciliation:
        """Take up *definitions*, and what the store knows of them.

        What it knows of timers whose definition is *invalid* is kept for when that is mended. Those of which
        it knows nothing may be known from another place, by the records of those that *moved*.
        *started_up_us*, *is_start_up* and *opened_us* are as `Surroundings` has them.
        A `stop` that comes before this is done holds: nothing begins.
        """
        self._poller.renew()
        contents = await self._shelf.open("")
        if self._poller.is_closed:
            return Reconciliation()
        self._started_up_us, self._opened_us = started_up_us, opened_us
        self._unwatch = self._clock.watch(self._on_step)
        try:
            async with self._poller.writing:
                self._next_id = max((record[0] for record in contents.records), default=0) + 1
                declared = self._declared(definitions)
                here = self._moved_here(declared, moved)
                around = self._around(is_start_up=is_start_up)
                outcome = self._recall.found(declared, contents.records, around, invalid, here)
                await self._take_over(outcome)
                self._anchor_anew()
        except BaseException:
            self._let_go(TimerRefusal.OFF)
            raise
        if not self._poller.is_closed:
            self._go(outcome)
        return outcome

    async def reload(
        self,
        definitions: Sequence[Timer],
        *,
        invalid: Collection[str] = (),
        moved: Sequence[Record] = (),
    ) -> Reconciliation:
        """Make *definitions* the timers from now on. Raises StoreError, and then nothing has changed."""
        async with self._poller.writing:
            self._poller.account_for_steps()
            declared = self._declared(definitions)
            here = self._moved_here(declared, moved)
            around = self._around(is_start_up=False)
            recalled = self._recall.recalled(declared, around)
            known = newest(self._book.tasks | recalled, here)
            outcome = self._recall.reconciled(declared, known, around)
            outcome.recalled.extend(timer for timer in outcome.kept if timer.name in recalled)
            named = {*invalid, *(item.definition.id for item in declared)}
            gone = self._recall.gone(named)
            try:
                await self._take_over(outcome, gone)
            except StoreError:
                self._book.set_agenda()  # the services may be others all the same
                raise
        for timer in outcome.removed:
            self._asked.refuse(timer.name, TimerError(TimerRefusal.UNKNOWN, timer=timer.name))
        self._go(outcome)
        if not self._book.entries:
            await self._poller.end()
        return outcome

    def is_idle(self) -> bool:
        """Whether no run of a timer is in flight."""
        return not self._book.departed and all(entry.run is None for entry in self._book.entries.values())

    def pause(self, *, is_on: bool) -> None:
        """Start nothing for now, or start things again. What runs goes on, and its end is written."""
        if is_on != bool(self.turns % 2):
            self.turns += 1
            (self._poller.hold if is_on else self._poller.release)()

    @property
    def is_able(self) -> bool:
        """Whether what comes due can fire, as far as this machine knows."""
        return not self.turns % 2 and not self._is_closed and not self._poller.is_faulty

    def retire(self) -> None:
        """Start nothing any more, and tell nothing. What runs goes on, and its end is written."""
        self._rules.is_quiet = True
        self._poller.may_call = lambda: False
        self._asked.refuse_all(TimerRefusal.OFF)

    def wake(self) -> None:
        """Look at what may be due: it may be started again."""
        self._poller.wake()

    async def flush(self, *, is_forgotten: bool = False) -> None:
        """Write what is not yet written, and what is settled of timers kept aside. Raises StoreError.

        If the board may have forgotten the latest writes, all is written anew.
        """
        await self._poller.flush(is_forgotten=is_forgotten)
        settled = self._recall.settled(self._calendars, self._poller.now_us()) if self._is_shared else ()
        if settled:
            async with self._poller.writing:
                await self._shelf.save(settled)

    def stop(self) -> Coroutine[Any, Any, None]:
        """Close the gate: from this call on nothing happens. The answer waits for the last write."""
        self._poller.is_closed = True
        runs = [entry.run for entry in self._book.entries.values()] + list(self._book.departed.values())
        for run in runs:
            if run is not None:
                run.is_dropped = True
        return self._stop()

    async def _stop(self) -> None:
        await self._poller.end()
        with suppress(StoreError):  # told as StoreFault; the next opening finds out what became of the runs
            await self.flush()
        await self._poller.drop()
        self._let_go(TimerRefusal.OFF)
        self._book.wipe()

    async def drop(self) -> None:
        """Let go as a crash would: nothing more is written."""
        self._poller.is_closed = True
        await self._poller.drop()
        self._let_go(TimerRefusal.MOVING)
        self._book.wipe()

    async def close(self) -> None:
        """End with the supervisor, which is stopping: wait for the runs in flight, write how they ended."""
        self._rules.is_closing = True
        await self._poller.runs.ended(but_waiting=False)
        await self._poller.end()
        self._poller.is_closed = True
        self._let_go(TimerRefusal.STOPPING)
        await self.flush()

    def _let_go(self, kind: TimerRefusal) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        self._asked.refuse_all(kind)

    # --- looking ---

    def all(self) -> list[TimerState]:
        """Every timer that runs, in order of declaration."""
        return [entry.task for entry in self._book.entries.values()]

    def state(self, name: str) -> TimerState:
        """One timer. Raises TimerError."""
        return self._entry(name).task

    def next_run_us(self, name: str) -> Instant | None:
        """When a timer will fire next, as far as is known; None when it will not. Raises TimerError."""
        return self.next_of(self.state(name), self._poller.now_us())

    def next_of(self, timer: TimerState, now_us: Instant) -> Instant | None:
        """When a timer that is at hand will fire next."""
        # Of thousands only those with an interval depend on their target.
        is_active = timer.definition.on_unit_active_sec is not None and (
            timer.running_run is not None or self._rules.target_state(timer.target) == "active"
        )
        at_us = next_run_us(timer, is_target_active=is_active)
        # What is owed already, and could not be written yet, comes as soon as it can.
        return None if at_us is None else max(at_us, now_us)

    def holder_of(self, _timer: TimerState) -> str | None:
        """Which machine holds it: None, for there is but this one."""
        return None

    # --- by hand ---

    async def trigger(self, name: str) -> int:
        """Fire a timer now, enabled or not, and answer with the id of the run once it begins.

        Raises TimerError when it cannot be, and StoreError when the store fails already; if it fails only in
        that moment, the answer waits until the start is written.
        """
        self._check_may_trigger(self._entry(name).task)
        await self._poller.flush()
        async with self._poller.writing:
            entry = self._entry(name)
            self._check_may_trigger(entry.task)
            entry.task = msgspec.structs.replace(entry.task, triggered=True)
            asked = self._asked.add(name)
            self._book.look_at(entry)
        self._poller.begin()
        try:
            return await asked
        except asyncio.CancelledError:
            self._ask_no_more(name, asked)
            raise

    def _check_may_trigger(self, timer: TimerState) -> None:
        if self._rules.is_stopping or self._is_closed:
            raise TimerError(self._why_closed(), timer=timer.name)
        state = "active" if timer.running_run is not None else self._rules.target_state(timer.target)
        if state != "idle":
            raise TimerError(NOT_TRIGGERED[state], timer=timer.name, target=timer.target)

    @property
    def _is_closed(self) -> bool:
        """Whether the gate is closed, also if runs are yet to end."""
        return self._poller.is_closed or self._rules.is_quiet

    def _why_closed(self) -> TimerRefusal:
        return TimerRefusal.STOPPING if self._rules.is_stopping else TimerRefusal.OFF

    def _ask_no_more(self, name: str, asked: "asyncio.Future[int]") -> None:
        is_last, entry = self._asked.remove(name, asked), self._book.entries.get(name)
        if is_last and entry is not None and entry.task.triggered:
            entry.task = msgspec.structs.replace(entry.task, triggered=False)

    async def enable(self, name: str) -> None:
        """Switch a timer on, whatever the configuration says. Raises TimerError or StoreError."""
        await self._switch(name, is_on=True)

    async def disable(self, name: str) -> None:
        """Switch a timer off, whatever the configuration says. Raises TimerError or StoreError."""
        await self._switch(name, is_on=False)

    async def _switch(self, name: str, *, is_on: bool) -> None:
        async with self._poller.writing:
            before = self._change(name, lambda timer: switched(timer, is_on=is_on))
        self._poller.begin()
        try:
            await self._poller.flush()
        except StoreError:
            async with self._poller.writing:
                self._change(name, lambda timer: switched_back(timer, before))
            raise

    def _change(self, name: str, change: Callable[[TimerState], TimerState]) -> TimerState:
        """Change a timer, and have that written; the answer is the timer before it."""
        entry = self._entry(name)
        if self._is_closed:
            raise TimerError(self._why_closed(), timer=name)
        before = entry.task
        self._book.change(entry, change(before))
        self._book.look_at(entry)
        return before

    # --- what others tell ---

    def service_ended(self, service_id: str, ended_us: Instant) -> None:
        """Hear that a run of a service has ended, however it was started: intervals count from there."""
        # The steps that the timers are yet to be told of will move what is counted from here.
        ended_us -= self._poller.unaccounted_us()
        self._ended_meanwhile[service_id] = ended_us
        for entry in self._with_interval(service_id):
            self._anchor(entry, ended_us)
        if service_id in self._by_target and not self._poller.is_closed:
            self._poller.begin()

    def _with_interval(self, target: str) -> list[Entry[TimerState]]:
        entries = self._book.entries
        return [entries[name] for name in self._by_target.get(target, ()) if name in entries]

    def _anchor(self, entry: Entry[TimerState], ended_us: Instant) -> None:
        entry.task = target_ended(entry.task, ended_us)
        # Whether or not the supervisor calls the target idle yet.
        wakes_us = min(self._rules.wakes_us(entry.task), interval_us(entry.task))
        self._book.agenda.add(entry.task.name, wakes_us)

    def let_go(self, target: str) -> None:
        """Hear that a target is claimed no more (`rules.Heard`): an interval may have passed meanwhile."""
        for entry in self._with_interval(target):
            self._book.look_at(entry)

    def missed(self, timer: TimerState) -> None:
        """Hear of a miss (`rules.Heard`)."""
        assert timer.last_missed_us is not None
        assert timer.last_miss_reason is not None
        self._note_miss(timer.name, timer.last_missed_us, timer.last_miss_reason)

    def not_triggered(self, timer: TimerState) -> None:
        """Hear that a run asked for by hand cannot be (`rules.Heard`)."""
        state = self._rules.target_state(timer.target)
        refusal = NOT_TRIGGERED.get(state, TimerRefusal.OVERLAP)
        kind = TimerRefusal.STOPPING if self._rules.is_stopping else refusal
        self._asked.refuse(timer.name, TimerError(kind, timer=timer.name, target=timer.target))

    def _on_step(self, step: Step) -> None:
        if self._started_up_us is not None:
            self._started_up_us += step.after_us - step.before_us

    # --- taking up a list ---

    def _declared(self, definitions: Sequence[Timer]) -> list[Declared]:
        return [Declared(item, self._calendars.of(item), text_of(item, self._zone)) for item in definitions]

    def _moved_here(self, declared: Sequence[Declared], records: Sequence[Record]) -> dict[str, TimerState]:
        moved = moved_here(declared, records, self._next_id)
        self._next_id += len(moved)
        return moved

    def _around(self, *, is_start_up: bool) -> Surroundings:
        return Surroundings(
            now_us=self._poller.now_us(),
            started_up_us=self._started_up_us,
            is_start_up=is_start_up,
            next_id=self._next_id,
            last_end_us=self._last_end_us,
            opened_us=self._opened_us,
        )

    def _last_end_us(self, timer: TimerState) -> Instant | None:
        heard_us = self._targets.last_end_us(timer.target)
        return last_known_end_us(timer, heard_us) if self._is_shared else heard_us

    async def _take_over(self, outcome: Reconciliation, gone: Collection[str] = ()) -> None:
        """Write *outcome*, and make it the contents of the book; the rows of *gone* are forgotten."""
        self._ended_meanwhile.clear()
        removed = [*(timer.id for timer in outcome.removed), *self._recall.ids_of(gone)]
        put = outcome.put
        if put or removed:
            await self._shelf.replace(put=put, removed=removed)
        self._recall.forget(gone, [timer.name for timer in outcome.timers])
        self.unreadable = {error.name: error for error in outcome.unreadable}
        self._next_id = max([self._next_id, *(timer.id + 1 for timer in outcome.added)])
        callbacks = {timer.name: self._fire for timer in outcome.timers}
        ended = dict(self._book.unsaved)
        self._book.take_over(outcome.timers, outcome.fresh, callbacks)
        self._take_results(outcome, ended)
        by_target: dict[str, list[str]] = {}
        for timer, entry in zip(outcome.timers, self._book.entries.values(), strict=True):
            # A run may have ended meanwhile; what that made of a timer knows nothing of its new place.
            if entry.task is not timer:
                entry.task = msgspec.structs.replace(
                    entry.task, definition=timer.definition, order=timer.order
                )
            if timer.definition.on_unit_active_sec is not None:
                by_target.setdefault(timer.target, []).append(timer.name)
        self._by_target = by_target
        for target, ended_us in self._ended_meanwhile.items():
            for entry in self._with_interval(target):
                self._anchor(entry, ended_us)

    def _take_results(self, outcome: Reconciliation, ended: Mapping[int, TimerState]) -> None:
        """Give changed timers the result of runs that ended while the change was being written."""
        for _, timer in outcome.changed:
            end = ended.get(timer.id)
            if timer.running_run is not None and end is not None and end.running_run is None:
                entry = self._book.entries[timer.name]
                self._book.change(entry, with_result(entry.task, end))

    def _anchor_anew(self) -> None:
        """Hear of runs that ended while the timers were being written, before anybody told us of ends."""
        now_us = self._poller.now_us()
        for names in self._by_target.values():
            for name in names:
                entry = self._book.entries[name]
                entry.task = anchored(entry.task, self._last_end_us(entry.task), now_us)
                self._book.look_at(entry)

    def _go(self, outcome: Reconciliation) -> None:
        tell_outcome(self._announcer, outcome)
        self._poller.begin()

    # --- firing ---

    async def _fire(self) -> None:
        """Run the target of the timer whose run this is, to its end."""
        run = current_run.get()
        assert run is not None
        timer = self._state_of(run.name)
        if timer is None or timer.running_run is None:
            return  # it was removed between the writing of its start and this call
        self._asked.began(run.name, timer.running_run)
        assert timer.running_reason is not None
        ended = await self._targets.run(
            run.before.target,
            reason=timer.running_reason,
            timer=timer.name,
            scheduled_us=timer.running_at_us,
            run_id=timer.running_run,
        )
        if ended.result is not Result.SUCCESS:
            raise UnsuccessfulError(ended)

    def _entry(self, name: str) -> Entry[TimerState]:
        entry = self._book.entries.get(name)
        if entry is None:
            known = TimerRefusal.UNREADABLE if name in self.unreadable else TimerRefusal.UNKNOWN
            raise TimerError(self._why_closed() if self._poller.is_closed else known, timer=name)
        return entry

    def _has_run(self, name: str) -> bool:
        entry = self._book.entries.get(name)
        return entry is not None and entry.run is not None

    def _state_of(self, name: str) -> TimerState | None:
        entry = self._book.entries.get(name)
        return None if entry is None else entry.task
