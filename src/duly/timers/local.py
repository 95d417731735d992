"""The timers of one machine: start, stop, reload, list, state, trigger, enable (spec/timers.md 7).

One `LocalTimers` lives from one switching on of the timers to its closing. It has no loop of its own and
decides nothing: the engine wakes and writes, the rules decide. It closes in one of two ways. `stop` is the
switch: from that moment nothing of timers happens, and what runs goes on as a run of its service. `close` is
the end of the supervisor: what comes due meanwhile is missed, and what is cut off is remembered.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import Any

import msgspec

from duly.clock import Step, Watchable
from duly.config.schema import Timer
from duly.engine.book import Entry
from duly.engine.local import LocalBackend
from duly.engine.poller import Poller
from duly.engine.runs import current_run
from duly.errors import StoreError
from duly.events import Announcer
from duly.instant import Instant
from duly.store.history import RemoteRun, RunRow, Span, WantedRuns
from duly.supervisor.results import RunResult
from duly.timers.calendar import CalendarCache
from duly.timers.dues import next_run_us
from duly.timers.loading import StoredTimers
from duly.timers.reconciliation import ReconciliationContext, TimerReconciliation, emit_outcome
from duly.timers.record import DeclaredTimer, TimerRecordError, TimerRepository, text_of
from duly.timers.requests import NOT_TRIGGERED, TimerError, TimerRefusal, Waiters
from duly.timers.rules import OnMiss, Targets, TimerRules, run_target
from duly.timers.timer import (
    TimerState,
    anchored,
    interval_us,
    switched,
    switched_back,
    target_ended,
    with_result,
)


class LocalTimers:
    """The timers of a configuration, at work."""

    def __init__(
        self,
        repository: TimerRepository,
        targets: Targets,
        clock: Watchable,
        announcer: Announcer,
        *,
        zone: tzinfo,
        on_miss: OnMiss = lambda *_: None,
    ) -> None:
        self._repository = repository
        self._targets = targets
        self._clock = clock
        self._announcer = announcer
        self._zone = zone
        self._rules = TimerRules(targets, self, self._state_of, self._has_run, on_miss)
        self._backend: LocalBackend[TimerState] = LocalBackend(
            repository, clock, announcer, self._rules, zone
        )
        self._book = self._backend.book
        self._poller: Poller[TimerState] = Poller(self._backend, clock, announcer, self._rules)
        self._calendars = CalendarCache(zone)
        self._started_up_us: Instant | None = None
        self._next_id = 1
        self._stored = StoredTimers(targets.outcome)
        self._by_target: dict[str, list[str]] = {}
        """The timers with an interval, by target."""
        self._locked: list[str] = []
        """The timers with an interval whose target shares a lock."""
        self._queued: set[str] = set()
        self._ended_meanwhile: dict[str, Instant] = {}
        """By service, the ends that came since the last list began to be written."""
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
        invalid: Collection[str] = (),
    ) -> TimerReconciliation:
        """Take up *definitions*, and what the store knows of them.

        What it knows of timers whose definition is *invalid* is kept until that is repaired.
        *started_up_us* and *is_start_up* are as `ReconciliationContext` has them.
        A `stop` that comes before this is done holds: nothing begins.
        """
        self._backend.renew()
        self._poller.renew()
        contents = await self._repository.open("")
        # The switch was closed while the store was being read.
        if self._poller.is_closed:
            return TimerReconciliation()
        self._started_up_us = started_up_us
        self._unwatch = self._clock.watch(self._on_step)
        try:
            async with self._backend.writing:
                self._next_id = max((record[0] for record in contents.records), default=0) + 1
                declared = self._declared_timers(definitions)
                context = self._context(is_start_up=is_start_up)
                outcome = self._stored.load(declared, contents.records, context, invalid)
                await self._take_over(outcome)
                self._anchor_anew()
        except BaseException:
            self._let_go(TimerRefusal.OFF)
            raise
        if not self._poller.is_closed:
            self._go(outcome)
        return outcome

    async def reload(
        self, definitions: Sequence[Timer], *, invalid: Collection[str] = ()
    ) -> TimerReconciliation:
        """Make *definitions* the timers from now on. Raises StoreError, and then nothing has changed."""
        async with self._backend.writing:
            self._backend.account_for_steps()
            declared = self._declared_timers(definitions)
            context = self._context(is_start_up=False)
            restored = self._stored.restored_timers(declared, context)
            outcome = self._stored.reconciliation(declared, self._book.tasks | restored, context)
            outcome.restored.extend(timer for timer in outcome.kept if timer.name in restored)
            named = {*invalid, *(item.definition.id for item in declared)}
            gone = self._stored.names_gone(named)
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

    def stop(self) -> Coroutine[Any, Any, None]:
        """Switch the timers off: from this call on nothing happens. The answer waits for the last write."""
        # In the call, not when it is awaited: from here on nothing happens.
        self._poller.is_closed = True
        runs = [entry.run for entry in self._book.entries.values()] + list(self._book.orphaned_runs.values())
        for run in runs:
            if run is not None:
                run.is_dropped = True
        return self._stop()

    async def _stop(self) -> None:
        await self._poller.end()
        with suppress(StoreError):  # a StoreFault; the next opening finds out what became of the runs
            await self._backend.flush()
        await self._poller.drop()
        self._let_go(TimerRefusal.OFF)
        self._book.wipe()

    async def close(self) -> None:
        """End with the supervisor, which is stopping: wait for the runs in flight, write how they ended."""
        self._rules.is_closing = True
        await self._poller.runs.wait_for_ends(but_waiting=False)
        await self._poller.end()
        # After the last cycle: until then the poller writes ends, and misses what comes due.
        self._poller.is_closed = True
        self._let_go(TimerRefusal.STOPPING)
        await self._backend.flush()

    def _let_go(self, kind: TimerRefusal) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        self._asked.refuse_all(kind)

    # --- looking ---

    def all(self) -> list[TimerState]:
        return [entry.task for entry in self._book.entries.values()]

    def next_of(self, timer: TimerState, now_us: Instant) -> Instant | None:
        # Of thousands only those with an interval depend on their target.
        depends = timer.definition.on_unit_active_sec is not None or timer.queued_us is not None
        is_active = depends and (timer.running_run is not None or self._rules.target_state(timer) == "active")
        at_us = next_run_us(timer, is_target_active=is_active)
        # What is owed already, and could not be written yet, comes as soon as it can.
        return None if at_us is None else max(at_us, now_us)

    @property
    def is_behind(self) -> bool:
        """Whether other machines have a newer list: there are none."""
        return False

    def runs_on(self, _timer: TimerState) -> str | None:
        """Which machine runs it: None, there is only this one."""
        return None

    async def past_runs(self, _wanted: WantedRuns) -> list[RemoteRun]:
        """Runs of other machines: none."""
        return []

    async def past_buckets(self, _timers: Sequence[str], _span: Span) -> None:
        """There is no database."""
        return

    async def nodes(self) -> None:
        return

    async def refresh(self) -> None:
        """Nothing to do: all is in memory."""

    # --- by hand ---

    async def trigger(self, name: str) -> int:
        """Fire a timer now, enabled or not, and answer with the id of the run once it begins.

        Raises TimerError when it cannot be, and StoreError when the store fails already; if it fails only in
        that moment, the answer waits until the start is written.
        """
        self._check_may_trigger(self._entry(name).task)
        # A store that fails already is found here, before anybody waits for a start that cannot be written.
        await self._backend.flush()
        async with self._backend.writing:
            entry = self._entry(name)
            # Again: the target may have been started while the store was written.
            self._check_may_trigger(entry.task)
            # Not noted as a change: the wish must not outlive the process that was asked.
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
        state = "active" if timer.running_run is not None else self._rules.target_state(timer)
        if state != "idle":
            raise TimerError(NOT_TRIGGERED[state], timer=timer.name, target=timer.target)

    @property
    def _is_closed(self) -> bool:
        return self._poller.is_closed

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
        async with self._backend.writing:
            before = self._change(name, lambda timer: switched(timer, is_on=is_on))
        self._poller.begin()
        try:
            await self._backend.flush()
        except StoreError:
            # Taken back: a switch that a restart forgets must not hold until then.
            async with self._backend.writing:
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

    # --- what others report ---

    def run_ended(self, row: RunRow) -> None:
        """Note that a run of a service has ended, however it was started."""
        if row.ended_us is not None:
            self.service_ended(row.service, row.ended_us)

    def service_ended(self, service_id: str, ended_us: Instant) -> None:
        """Note that a run of a service has ended, however it was started: intervals count from there."""
        # The steps that the timers do not know yet will move what is counted from here.
        ended_us -= self._backend.unaccounted_us()
        self._ended_meanwhile[service_id] = ended_us
        for entry in self._with_interval(service_id):
            self._anchor(entry, ended_us)
        if (self._look_at_waiting() or service_id in self._by_target) and not self._poller.is_closed:
            self._poller.begin()

    def _look_at_waiting(self) -> bool:
        """Look at the timers that may have waited for the end of this run; whether there are any."""
        if self._poller.is_closed:
            return False
        entries = [
            self._book.entries[name] for name in (*self._queued, *self._locked) if name in self._book.entries
        ]
        self._queued = {entry.task.name for entry in entries if entry.task.queued_us is not None}
        for entry in entries:
            self._book.look_at(entry)
        return bool(entries)

    def _with_interval(self, target: str) -> list[Entry[TimerState]]:
        entries = self._book.entries
        return [entries[name] for name in self._by_target.get(target, ()) if name in entries]

    def _anchor(self, entry: Entry[TimerState], ended_us: Instant) -> None:
        entry.task = target_ended(entry.task, ended_us)
        # Whether or not the supervisor calls the target idle yet.
        wakes_us = min(self._rules.wakes_us(entry.task), interval_us(entry.task))
        self._book.agenda.add(entry.task.name, wakes_us)

    def on_target_free(self, target: str) -> None:
        """An interval may have passed while the target was claimed (`RulesListener`)."""
        for entry in self._with_interval(target):
            self._book.look_at(entry)
        self._look_at_waiting()

    def on_queued(self, timer: TimerState) -> None:
        """Remember that it waits for the end of a run (`RulesListener`)."""
        self._queued.add(timer.name)

    def on_not_triggered(self, timer: TimerState) -> None:
        """Refuse a run that somebody waits for (`RulesListener`)."""
        state = self._rules.target_state(timer)
        refusal = NOT_TRIGGERED.get(state, TimerRefusal.OVERLAP)
        kind = TimerRefusal.STOPPING if self._rules.is_stopping else refusal
        self._asked.refuse(timer.name, TimerError(kind, timer=timer.name, target=timer.target))

    def _on_step(self, step: Step) -> None:
        if self._started_up_us is not None:
            self._started_up_us += step.after_us - step.before_us

    # --- taking up a list ---

    def _declared_timers(self, definitions: Sequence[Timer]) -> list[DeclaredTimer]:
        return [
            DeclaredTimer(item, self._calendars.of(item), text_of(item, self._zone)) for item in definitions
        ]

    def _context(self, *, is_start_up: bool) -> ReconciliationContext:
        return ReconciliationContext(
            now_us=self._poller.now_us(),
            started_up_us=self._started_up_us,
            is_start_up=is_start_up,
            next_id=self._next_id,
            last_end_us=lambda timer: self._targets.last_end_us(timer.target),
        )

    async def _take_over(self, outcome: TimerReconciliation, gone: Collection[str] = ()) -> None:
        """Write *outcome*, and make it the contents of the book; the rows of *gone* are forgotten."""
        # Before the write: ends that come during it are applied to the new list below.
        self._ended_meanwhile.clear()
        removed = [*(timer.id for timer in outcome.removed), *self._stored.ids_of(gone)]
        put = outcome.put
        if put or removed:
            await self._repository.replace(put=put, removed=removed)
        self._stored.forget(gone, [timer.name for timer in outcome.timers])
        self.unreadable = {error.name: error for error in outcome.unreadable}
        self._next_id = max([self._next_id, *(timer.id + 1 for timer in outcome.added)])
        callbacks = {timer.name: self._fire for timer in outcome.timers}
        # Before the book takes the list over, and with it forgets what ended in changed timers.
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
        with_interval = (name for names in by_target.values() for name in names)
        self._locked = [
            name for name in with_interval if self._book.entries[name].task.definition.lock is not None
        ]
        for target, ended_us in self._ended_meanwhile.items():
            for entry in self._with_interval(target):
                self._anchor(entry, ended_us)

    def _take_results(self, outcome: TimerReconciliation, ended: Mapping[int, TimerState]) -> None:
        """Give changed timers the result of runs that ended while the change was being written."""
        for _, timer in outcome.changed:
            end = ended.get(timer.id)
            if timer.running_run is not None and end is not None and end.running_run is None:
                entry = self._book.entries[timer.name]
                self._book.change(entry, with_result(entry.task, end))

    def _anchor_anew(self) -> None:
        """Note the runs that ended while the timers were being written, before ends were reported here."""
        now_us = self._poller.now_us()
        for names in self._by_target.values():
            for name in names:
                entry = self._book.entries[name]
                entry.task = anchored(entry.task, self._targets.last_end_us(entry.task.target), now_us)
                self._book.look_at(entry)

    def _go(self, outcome: TimerReconciliation) -> None:
        emit_outcome(self._announcer, outcome)
        self._poller.begin()

    # --- firing ---

    async def _fire(self) -> RunResult | None:
        run = current_run.get()
        assert run is not None
        timer = self._state_of(run.name)
        if timer is None or timer.running_run is None:
            return None  # it was removed between the writing of its start and this call
        self._asked.began(run.name, timer.running_run)
        return await run_target(self._targets, timer, run.before.target)

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
