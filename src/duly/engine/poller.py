"""The poller: sleeps until there is something to do, decides, writes, and then starts.

The order in one cycle is the proof of the durability claim (SCHEDULER.md 3): the rules decide,
`store.save` makes the starts durable in one transaction together with the ends that came in meanwhile,
and only then is any callback called. If the write fails nothing was started, nothing is forgotten, and the
same is tried again a little later: whole records are written, so an attempt of unknown outcome does no harm.

It wakes at the next due minute, at retry deadlines, at run ends, and when the clock was stepped. It never
polls on a fixed beat.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic

from duly.background import Background, cancel
from duly.clock import Step, Watchable
from duly.engine.book import Book, Entry
from duly.engine.journal import Journal
from duly.engine.limits import Limits
from duly.engine.poll_faults import RETRY_PAUSE_S, PollFaults
from duly.engine.rules import Begin, Rules, T
from duly.engine.runs import Run, Runs
from duly.engine.signal import Signal
from duly.engine.telling import iso
from duly.events import Announcer, described
from duly.forks import end_if_forked, process_id
from duly.instant import LATEST_US, SECOND_US, Instant, datetime_at, instant_of, milliseconds
from duly.marks import mark
from duly.store.protocol import Shelf

_CYCLE, _SLEEP = "cycle", "sleep"
"""The parts of a poller that can fail for other reasons than the store's."""


class Poller(Generic[T]):
    """The loop that starts what is owed."""

    def __init__(
        self,
        book: Book[T],
        store: Shelf[T],
        clock: Watchable,
        announcer: Announcer,
        rules: Rules[T],
        *,
        max_concurrent_runs: int | None = None,
        run_timeout_us: int | None = None,
    ) -> None:
        self._book = book
        self._clock = clock
        self._announcer = announcer
        self._announce = announcer.announce
        self._rules = rules
        self._max_concurrent_runs = max_concurrent_runs
        self._run_timeout_us = run_timeout_us
        self._journal = Journal(book, store, announcer, self.now_us)
        self._faults = PollFaults(announcer)
        self.runs = Runs(
            self.now_us,
            self._on_call,
            self._on_end,
            on_uncalled=lambda run: self._call_off(run, self._entry_of(run)),
            on_fault=self._on_fault,
        )
        self.writing = asyncio.Lock()
        """Held while the store and the book are being changed together."""
        self.is_closed = False
        """Set the moment a stop is requested: no run starts any more."""
        self.may_call: Callable[[], bool] = lambda: True
        """Asked right before anything starts: whether it is still ours to start."""
        self.on_parted: Callable[[Run[T], BaseException | None], None] = lambda _run, _error: None
        """Told of the end of a run whose task is not in the book any more."""
        self._signal = Signal()
        self._is_woken = False
        self._holds = 0
        self._polling = Background(self._poll_on, name="duly poller", on_restart=self._on_restart)
        self._unwatch: Callable[[], None] | None = None
        self._since_step: list[Step | Run[T]] = []
        """Steps that are not yet accounted for, and the runs called since the first of them."""
        self._limits: Limits[Run[T]] = Limits(clock, self.runs.cancel)
        self._sleeper: asyncio.Task[None] | None = None
        self._sleeping_until_us: Instant | None = None

    def now_us(self) -> Instant:
        """The present instant."""
        return instant_of(self._clock.now())

    @property
    def is_faulty(self) -> bool:
        """Whether the store has failed, and has not been seen to work since."""
        return self._journal.resume_us is not None

    # --- starting and stopping ---

    def renew(self) -> None:
        """Begin a new life, perhaps on another event loop."""
        self.writing = asyncio.Lock()
        self._since_step.clear()
        self._journal.forget_faults()
        self._faults.forget()

    def forget_holds(self) -> None:
        """End every `hold`: those who were to release them never will, since their loop is closed."""
        self._holds = 0

    def hold(self) -> None:
        """Start nothing until `release`: somebody is being told first that a list has taken effect."""
        self._holds += 1

    def release(self) -> None:
        """End a `hold`."""
        self._holds -= 1
        self.wake()

    def wake(self) -> None:
        """Have everything looked at that may need it."""
        self._is_woken = True
        self._signal.notify()

    def begin(self) -> None:
        """Start polling, if it is not running and there is something to poll for."""
        if not self._polling.is_on and self._book.entries:
            self._unwatch = self._clock.watch(self._on_step)
            self.runs.pid = process_id()
            self._polling.start()
            self._announce("PollingStarted")
        self.wake()

    def reopen(self) -> None:
        """Let runs start again."""
        self.is_closed = False
        self.wake()

    async def end(self) -> None:
        """Stop polling. A write under way is finished; runs in flight are not touched."""
        if not self._polling.is_on:
            return
        self._announce("PollingStopRequested")
        async with self.writing:
            self.account_for_steps()
            ended = self._kill()
        if ended:
            await asyncio.wait(ended)
        self._announce("PollingStopped")

    async def flush(self, *, is_forgotten: bool = False) -> None:
        """Write what is not yet written, now; all of it, if the store may have forgotten the latest writes.

        Raises what the store raises.
        """
        async with self.writing:
            if is_forgotten:
                self._book.touch()
            await self.flush_held()

    async def flush_held(self) -> None:
        """Like `flush`, for whoever holds `writing`."""
        await self._journal.flush()

    async def write(self) -> bool:
        """Write what is not yet written, now. Hold `writing` meanwhile."""
        return await self._journal.write([])

    def hasten(self) -> None:
        """Go on at once after a fault that has been seen to."""
        self._journal.hasten()
        self.wake()

    async def drop(self) -> None:
        """Stop as a crash would."""
        self.is_closed = True
        self._kill()
        self._limits.drop()
        await self.runs.drop()

    def _kill(self) -> list[asyncio.Task[None]]:
        tasks = [*self._polling.end(), *self._end_sleeper()]
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        return tasks

    # --- the loop ---

    async def _poll_on(self) -> None:
        while True:
            # A store that never waits and a task that is always owed must leave room for everybody else.
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            end_if_forked(self.runs.pid, "duly poller")
            self._is_woken = False
            try:
                async with self.writing:
                    if self._faults.is_standing(_CYCLE):
                        self._book.set_agenda()  # what the failed cycle took off it is to be looked at again
                    await self._cycle()
                self._sleep_until(self._next_wake_us())
            except Exception as error:
                # Nothing of ours should raise here. If it does, scheduling goes on all the same.
                self._faults.note(_CYCLE, error)
                await asyncio.sleep(RETRY_PAUSE_S)  # noqa: TID251 (the clock may be what failed)
                continue
            self._faults.clear(_CYCLE)
            if not self._is_woken:
                await self._signal.wait()

    def _on_restart(self, error: BaseException) -> None:
        """Tell that something else than `end` has ended the loop."""
        self._announce("PollerRestarted", error=described(error))

    def _next_wake_us(self) -> Instant | None:
        if (resume_us := self._journal.resume_us) is not None:
            return resume_us
        # When nothing may start nothing is taken off the agenda, so there is nothing on it to wake for.
        return None if self._is_shut() else self._book.agenda.next_us()

    def _is_shut(self) -> bool:
        return self.is_closed or self._holds > 0 or not self.may_call()

    def _sleep_until(self, until_us: Instant | None) -> None:
        """See to it that the poller is woken at *until_us*, and not at another time."""
        if self._sleeper is not None:
            if until_us == self._sleeping_until_us and not self._sleeper.done():
                return
            self._end_sleeper()
        if until_us is not None and until_us <= LATEST_US:
            self._sleeping_until_us = until_us
            loop = asyncio.get_running_loop()
            self._sleeper = sleeper = loop.create_task(self._sleep_and_wake(until_us))
            sleeper.add_done_callback(self._on_sleeper_done)
            if self._faults.is_standing(_SLEEP):
                loop.call_later(RETRY_PAUSE_S, self._on_asleep, sleeper)

    def _on_asleep(self, sleeper: asyncio.Task[None]) -> None:
        """Note that the clock can sleep again, which one that cannot shows at once."""
        if not sleeper.done():
            self._faults.clear(_SLEEP)

    def _end_sleeper(self) -> list[asyncio.Task[None]]:
        sleeper, self._sleeper = self._sleeper, None
        return [] if sleeper is None or not cancel(sleeper) else [sleeper]

    def _on_sleeper_done(self, sleeper: asyncio.Task[None]) -> None:
        """Look at once, and sleep anew, if something else than this poller has cancelled its sleep."""
        if sleeper is self._sleeper and sleeper.cancelled():
            self.wake()

    async def _sleep_and_wake(self, until_us: Instant) -> None:
        try:
            await self._clock.sleep_until(datetime_at(until_us, self._book.zone))
        except Exception as error:
            # A clock that cannot sleep, of all things. The loop can, and the clock is asked again.
            self._faults.note(_SLEEP, error)
            asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self.wake)
        else:
            self._faults.clear(_SLEEP)
            self.wake()

    async def _cycle(self) -> None:
        now_us = self.now_us()
        self.account_for_steps()
        resume_us = self._journal.resume_us
        if resume_us is not None and now_us < resume_us:
            return
        names = [] if self._is_shut() else self._book.names_to_look_at(now_us, self._room())
        if names:
            self._announce_poll("PollStarted", now_us, scheduledTaskCount=len(self._book.entries))
        owed = self._starts_owed(names, now_us)
        try:
            owed = await self._carry_out(owed)
        except BaseException:
            # Failed or cancelled, perhaps half-way: whatever was not begun is still owed.
            self._put_back([start for start in owed if self._book.entries[start.before.name].run is None])
            raise
        if names:
            self._announce_poll(
                "PollCompleted",
                now_us,
                tasksEvaluated=len(names),
                tasksExecuted=len(owed),
                duration=milliseconds(max(self.now_us() - now_us, 0)),
            )

    async def _carry_out(self, owed: Sequence[Begin[T]]) -> Sequence[Begin[T]]:
        """Write the starts, with the ends that came in meanwhile, and begin them; those that were begun."""
        is_written = await self._journal.write([start.after for start in owed])
        if not is_written or self._is_shut():
            self._put_back(owed)
            owed = ()
        self._rules.tell_starts(self._announcer, owed, self._book.zone)
        for start in owed:
            self._begin_run(start)
        if self._book.ready and self._room() != 0 and is_written and not self._is_shut():
            self.wake()
        return owed

    def account_for_steps(self) -> None:
        """Let the book know what steps of the clock mean for its tasks. Hold `writing` meanwhile."""
        for happened in self._since_step:
            if isinstance(happened, Step):
                mark("clock stepped")
                self._book.step(happened)
            elif (entry := self._entry_of(happened)) is not None and not happened.is_superseded:
                # It was called under the new time, and has answered what came before that.
                entry.task = self._rules.called(entry.task, happened.called_us)
                self._book.look_at(entry)
        self._since_step.clear()

    def unaccounted_us(self) -> int:
        """How far the clock was set by steps of which the book does not know yet."""
        return sum(step.after_us - step.before_us for step in self._since_step if isinstance(step, Step))

    def _room(self) -> int | None:
        """How many more runs may start; None when there is no limit."""
        if self._max_concurrent_runs is None:
            return None
        return max(self._max_concurrent_runs - len(self.runs), 0)

    def _starts_owed(self, names: list[str], now_us: Instant) -> Sequence[Begin[T]]:
        if not names:
            return ()
        entries = self._book.entries
        look = self._rules.looked_at([entries[name].task for name in names], now_us)
        for before, after in look.changed:
            self._book.change(entries[after.name], after)
            self._rules.tell_changed(self._announcer, before, after, self._book.zone)
        if len(look.starts) != len(names):
            self._look_again_at(names, {start.before.name for start in look.starts}, now_us)
        return look.starts

    def _look_again_at(self, names: list[str], owed: set[str], now_us: Instant) -> None:
        """Put what was not started back on the agenda; what waits for its run to end comes back with that."""
        for name in names:
            if name in owed:
                continue
            entry = self._book.entries[name]
            if entry.run is None or self._rules.wakes_us(entry.task) > now_us:
                self._book.look_at(entry)
                continue
            mark("due while running")
            self._rules.tell_skipped(self._announcer, name, "still running; starts when the run ends")

    def _put_back(self, starts: Sequence[Begin[T]]) -> None:
        """Nothing was started: what is owed stays owed, and the record must say so again."""
        for start in starts:
            mark("start put back")
            self._book.ready[start.before.name] = None
            assert start.after.running_since_us is not None
            self._book.put_back[start.before.name] = start.after.running_since_us
            entry = self._book.entries[start.before.name]
            self._book.change(entry, entry.task)

    # --- runs ---

    def _begin_run(self, start: Begin[T]) -> None:
        entry = self._book.entries[start.before.name]
        started_us = start.after.running_since_us
        assert started_us is not None
        assert entry.run is None
        entry.task = start.after
        self._book.look_at(entry)
        entry.run = Run(start.after.name, entry.callback, start.before, started_us)
        self.runs.begin(entry.run)

    def _on_call(self, run: Run[T]) -> bool:
        """Whether the callback of *run* may be called, now that its turn has come."""
        entry, now_us = self._entry_of(run), run.called_us
        if self.is_closed or not self.may_call():  # nothing starts once a stop was called (MODEL.md S1a)
            self._call_off(run, entry)
            return False
        if self._since_step:
            mark("called after a step")
            self._since_step.append(run)
        if entry is not None and (task := self._rules.called(entry.task, now_us)) is not entry.task:
            mark("minute passed")
            # Written with the end of the run; until then a crash makes the task interrupted anyway.
            entry.task = task
            self._book.look_at(entry)
        if self._run_timeout_us is not None:
            self._limits.begin(run, now_us + self._run_timeout_us)
        return True

    def _call_off(self, run: Run[T], entry: Entry[T] | None) -> None:
        """Take back a start that was written and not yet carried out: what was owed is owed still."""
        mark("start called off")
        self._rules.tell_skipped(self._announcer, run.name, "called off before it was called")
        if entry is None:
            self._book.part_from(run, lambda _task: run.before)
            return
        entry.run = None
        self._book.put_back[run.name] = run.started_us
        self._book.change(entry, run.before)
        self._book.ready[run.name] = None
        self.wake()

    def _on_end(self, run: Run[T], error: BaseException | None) -> None:
        if self._run_timeout_us is not None:
            self._limits.end(run)
        if run.is_timed_out:
            mark("run timed out")
            assert self._run_timeout_us is not None
            error = TimeoutError(f"cancelled after {self._run_timeout_us / SECOND_US:g} s (run_timeout)")
        entry, task = self._entry_of(run), None
        if entry is None:
            self._book.part_from(run, lambda task: self._rules.ended(task, run, error))
            self.on_parted(run, error)
        else:
            entry.run = None
            if self._since_step:
                run.ahead_us = self.unaccounted_us()
            task = self._rules.ended(entry.task, run, error)
            self._book.change(entry, task)
            self._book.look_at(entry)
            self.wake()
        self._rules.tell_end(self._announcer, task, run, error, self._book.zone)

    def _on_fault(self, error: Exception) -> None:
        """Tell of a fault of ours at the end of a run. The next cycle looks at every task again."""
        self._faults.note(_CYCLE, error)
        self.wake()

    def take_back_uncalled(self) -> None:
        """Call off every run whose start is written and whose callback was not called. Hold `writing`."""
        for entry in list(self._book.entries.values()):
            if (run := entry.run) is not None and run.task is not None and not run.called_us:
                self.runs.abandon([run])
                self._call_off(run, entry)

    def change(self, entry: Entry[T], task: T) -> None:
        """Note that a task is *task* now, and that no run of it is under way. Hold `writing`."""
        entry.run = None
        self._book.change(entry, task)
        self._book.look_at(entry)
        self.wake()

    def _entry_of(self, run: Run[T]) -> Entry[T] | None:
        entry = self._book.entries.get(run.name)
        return entry if entry is not None and entry.run is run else None

    # --- the clock ---

    def _on_step(self, step: Step) -> None:
        self._announce(
            "ClockStepped",
            before=iso(step.before_us, self._book.zone),
            after=iso(step.after_us, self._book.zone),
        )
        if self._rules.minds(step):
            self._since_step.append(step)
        # A pause or a time limit is a length of time, whatever the wall clock reads meanwhile.
        shift_us = step.after_us - step.before_us
        self._journal.shift(shift_us)
        self._limits.shift(shift_us)
        self.wake()

    def _announce_poll(self, name: str, now_us: Instant, **fields: object) -> None:
        if self._announcer.wants(name):
            self._announce(name, pollTime=iso(now_us, self._book.zone), **fields)
