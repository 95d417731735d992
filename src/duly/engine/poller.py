"""The poller: sleeps until there is something to do, asks its backend what starts now, and starts it.

The order in one cycle is the proof of the durability claim (spec/scheduler.md 3.4): the backend decides and
makes the starts durable, and only then is any callback called. If that fails nothing was started, nothing is
forgotten, and the same is tried again a little later.

It wakes at the next due minute, at retry deadlines, at run ends, and when the clock was stepped. It never
polls on a fixed beat. It knows no items: the backend may have them in memory or in a shared database.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic

from duly.background import Background, Signal, cancel
from duly.clock import Step, Watchable
from duly.engine.backend import Backend
from duly.engine.limits import NO_LIMITS, Limits, RunLimits
from duly.engine.rules import Begin, Rules, T
from duly.engine.runs import ActiveRun, Runs
from duly.errors import RunCancelledError
from duly.events import Announcer, described, where_raised
from duly.forks import end_if_forked, process_id
from duly.instant import LATEST_US, SECOND_US, Instant, datetime_at, instant_of, iso, milliseconds
from duly.marks import mark

_CYCLE, _SLEEP = "cycle", "sleep"
"""The parts of a poller that can fail for other reasons than the store's."""
WAVE = 512
"""A burst starts in waves: while one is being written, the callbacks of the one before are called.

So many runs start in 50 ms, also on a busy machine; and they are enough to write them at once.
"""
RETRY_PAUSE_S = 1.0
"""In time of the loop, because the clock may be what failed."""


class PollFaults:
    """Faults inside the poller that are not the store's: a bug of ours, a clock that fails, rules that raise.

    A fault is announced once per distinct error, and its end once.
    """

    def __init__(self, announcer: Announcer) -> None:
        self._announce = announcer.announce
        self._open: dict[str, str] = {}
        """What failed, by the part of the poller."""

    def is_open(self, part: str) -> bool:
        """Whether the last attempt of *part* failed."""
        return part in self._open

    def open(self, part: str, error: Exception) -> None:
        """Announce that *part* failed, unless that is known."""
        is_new = self._open.get(part) != described(error)
        self._open[part] = described(error)
        if is_new:
            self._announce("PollFailed", error=described(error), where=where_raised(error))

    def close(self, part: str) -> None:
        """*part* works; announce it if nothing else fails."""
        if self._open and (error := self._open.pop(part, None)) is not None and not self._open:
            self._announce("PollRecovered", error=error)

    def forget(self) -> None:
        self._open.clear()


class Poller(Generic[T]):
    """The loop that starts what is owed."""

    def __init__(
        self,
        backend: Backend[T],
        clock: Watchable,
        announcer: Announcer,
        rules: Rules[T],
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._announcer = announcer
        self._announce = announcer.announce
        self._rules = rules
        self.wave = WAVE
        """So many runs start with one claim."""
        self._max_concurrent_runs, self._run_timeout_us = limits.max_concurrent, limits.timeout_us
        self._faults = PollFaults(announcer)
        now_us = getattr(clock, "now_us", None)
        self.now_us: Callable[[], Instant] = now_us if callable(now_us) else lambda: instant_of(clock.now())
        """Without a datetime in between, if the clock has `now_us`: it is asked several times a run."""
        self.runs = Runs(
            self.now_us,
            self._on_call,
            self._on_end,
            on_uncalled=self.call_off,
            on_fault=self._on_fault,
        )
        self.on_run_end: Callable[[ActiveRun[T], BaseException | None], object] | None = None
        """Called with each run that has ended, and with what it has raised."""
        self.is_closed = False
        """Set the moment a stop is requested: no run starts any more."""
        self._signal = Signal()
        self._is_woken = False
        self._holds = 0
        self._polling = Background(self._poll_on, name="duly poller", on_restart=self._on_restart)
        self._unwatch: Callable[[], None] | None = None
        self._limits: Limits[ActiveRun[T]] = Limits(clock, self.runs.time_out)
        self._sleeper: asyncio.Task[None] | None = None
        self._sleeping_until_us: Instant | None = None

    # --- starting and stopping ---

    def renew(self) -> None:
        """Begin a new life, perhaps on another event loop."""
        self._faults.forget()

    def forget_holds(self) -> None:
        """End every `hold`: those who were to release them never will, since their loop is closed."""
        self._holds = 0

    def hold(self) -> None:
        """Start nothing until `release`: the caller of `initialize` goes on before the first callback."""
        # Counted: a second list may be taken in before the first one's release.
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        self.wake()

    def wake(self) -> None:
        """Have everything looked at that may need it."""
        if not self._is_woken:  # it waits only while nobody has woken it
            self._is_woken = True
            self._signal.notify()

    def begin(self) -> None:
        """Start polling, if it is not running and there is something to poll for."""
        if not self._polling.is_on and self._backend.count:
            # Before the first cycle: a step that nobody has seen would count as a long sleep.
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
        async with self._backend.writing:  # nobody writes now, so no write is cut
            # Awaited below, without the lock: what is being cancelled may be waiting for it.
            ended = self._kill()
        if ended:
            await asyncio.wait(ended)
        self._announce("PollingStopped")

    async def drop(self) -> None:
        """Stop as a crash would."""
        # Before anything is awaited: no run whose turn comes now may still be called.
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
        is_burst = False
        while True:
            # A store that never waits and a task that is always owed must leave room for everybody else. In a
            # burst the next wave is handed to the store before the callbacks of this one are called.
            if not is_burst:
                await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            end_if_forked(self.runs.pid, "duly poller")
            # Cleared before the cycle, not after it: a wake that comes during the claim would be lost.
            self._is_woken = False
            try:
                async with self._backend.writing:
                    if self._faults.is_open(_CYCLE):
                        self._backend.look_again()
                    is_burst = await self._cycle()
                self._sleep_until(self._next_wake_us())
            except Exception as error:
                # Nothing of ours should raise here. If it does, scheduling goes on all the same.
                self._faults.open(_CYCLE, error)
                is_burst = False
                await asyncio.sleep(RETRY_PAUSE_S)  # noqa: TID251 (the clock may be what failed)
                continue
            self._faults.close(_CYCLE)
            # Nothing is awaited between this test and the entry among the waiters: no wake comes in between.
            if not self._is_woken:
                await self._signal.wait()

    def _on_restart(self, error: BaseException) -> None:
        """Emit that something else than `end` has ended the loop."""
        self._announce("PollerRestarted", error=described(error))

    def _next_wake_us(self) -> Instant | None:
        # While nothing may start there is nothing to wake for, except to write what could not be written.
        return None if self._is_shut() and not self._backend.is_faulty else self._backend.next_us()

    def _is_shut(self) -> bool:
        return self.is_closed or self._holds > 0 or not self._backend.may_call()

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
            if self._faults.is_open(_SLEEP):
                loop.call_later(RETRY_PAUSE_S, self._on_asleep, sleeper)

    def _on_asleep(self, sleeper: asyncio.Task[None]) -> None:
        """Note that the clock can sleep again, which one that cannot shows at once."""
        if not sleeper.done():
            self._faults.close(_SLEEP)

    def _end_sleeper(self) -> list[asyncio.Task[None]]:
        # Forgotten before it is cancelled: `_on_sleeper_done` takes it for somebody else's doing otherwise.
        sleeper, self._sleeper = self._sleeper, None
        return [] if sleeper is None or not cancel(sleeper) else [sleeper]

    def _on_sleeper_done(self, sleeper: asyncio.Task[None]) -> None:
        """Look at once, and sleep again, if something else than this poller has cancelled its sleep."""
        if sleeper is self._sleeper and sleeper.cancelled():
            self.wake()

    async def _sleep_and_wake(self, until_us: Instant) -> None:
        try:
            await self._clock.sleep_until(datetime_at(until_us, self._backend.zone))
        except Exception as error:
            # A clock that cannot sleep, of all things. The loop can, and the clock is asked again.
            self._faults.open(_SLEEP, error)
            asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self.wake)
        else:
            self._faults.close(_SLEEP)
            self.wake()

    async def _cycle(self) -> bool:
        """Start one wave. Whether it began runs and left more to start."""
        now_us, looks = self.now_us(), 0

        def on_look(count: int) -> None:
            nonlocal looks
            looks = count
            self._announce_poll("PollStarted", now_us, scheduledTaskCount=self._backend.count)

        # Also when nothing may start: runs end after a stop was called, and their ends are written here.
        starts = await self._backend.claim(now_us, 0 if self._is_shut() else self._room(), on_look)
        if self._is_shut():  # a stop or a new list came while the claim was being written
            self._backend.give_back(starts)
            starts = ()
        self._begin_runs(starts)
        # Without room the end of a run wakes us. To wake now would be to spin until then.
        has_more = self._backend.has_more() and self._room() != 0 and not self._is_shut()
        if has_more:
            self.wake()
        if looks:
            self._announce_poll(
                "PollCompleted",
                now_us,
                tasksEvaluated=looks,
                tasksExecuted=len(starts),
                duration=milliseconds(max(self.now_us() - now_us, 0)),
            )
        return has_more and bool(starts)

    def _room(self) -> int:
        """How many runs may start with the next claim."""
        if self._max_concurrent_runs is None:
            return self.wave
        return min(max(self._max_concurrent_runs - len(self.runs), 0), self.wave)

    # --- runs ---

    def _begin_runs(self, starts: Sequence[Begin[T]]) -> None:
        begun = 0
        try:
            self._rules.emit_starts(self._announcer, starts, self._backend.zone)
            for start in starts:
                started_us = start.after.running_since_us
                assert started_us is not None
                callback = self._backend.callback_of(start)
                run = ActiveRun(start.after.name, callback, start.before, started_us, start)
                # First: the backend must know the run before its end can come.
                self._backend.on_begun(start, run)
                begun += 1
                self.runs.begin(run)
        except BaseException:
            # What has begun goes on. Only the rest is still owed.
            self._backend.give_back(starts[begun:])
            raise

    def _on_call(self, run: ActiveRun[T]) -> bool:
        """Whether the callback of *run* may be called, now that its turn has come."""
        # Nothing starts after a stop (S1a, spec/model.md 5).
        if self.is_closed or not self._backend.on_call(run):
            self.call_off(run)
            return False
        run.timeout_us = self._rules.timeout_us(run.before)
        if run.timeout_us is None:
            run.timeout_us = self._run_timeout_us
        if run.timeout_us is not None:
            # From the call: the time in the queue of the loop is not the run's.
            self._limits.begin(run, run.called_us + run.timeout_us)
        self._announcer.announce_call(run.name)
        return True

    def call_off(self, run: ActiveRun[T]) -> None:
        """Take back a start that was written and not yet carried out: what was owed is owed still."""
        self._rules.emit_skipped(self._announcer, run.name, "called off before it was called")
        self._backend.on_call_off(run)
        self.wake()

    def _on_end(self, run: ActiveRun[T], error: BaseException | None) -> None:
        if run.timeout_us is not None:
            self._limits.end(run)
        if run.is_cancelled:
            cancelled = RunCancelledError(name=run.name)
            cancelled.__cause__, error = error, cancelled
        elif run.is_timed_out:
            mark("run timed out")
            assert run.timeout_us is not None
            word = "run_timeout" if run.timeout_us == self._run_timeout_us else "timeout"
            overdue = TimeoutError(f"cancelled after {run.timeout_us / SECOND_US:g} s ({word})")
            overdue.__cause__, error = error, overdue  # its traceback says what the run was waiting for
        # Before the event: a listener that looks at the item must find the end in it.
        task = self._backend.on_end(run, error)
        if self.on_run_end is not None:
            self.on_run_end(run, error)
        self.wake()
        self._rules.emit_end(self._announcer, task, run, error, self._backend.zone)

    def _on_fault(self, error: Exception) -> None:
        """A fault of ours at the end of a run. The next cycle looks at every item again."""
        self._faults.open(_CYCLE, error)
        self.wake()

    # --- the clock ---

    def _on_step(self, step: Step) -> None:
        self._announce(
            "ClockStepped",
            before=iso(step.before_us, self._backend.zone),
            after=iso(step.after_us, self._backend.zone),
        )
        self._backend.on_step(step)
        # A time limit is a length of time, whatever the wall clock reads meanwhile.
        self._limits.shift(step.after_us - step.before_us)
        self.wake()

    def _announce_poll(self, name: str, now_us: Instant, **fields: object) -> None:
        if self._announcer.wants(name):
            self._announce(name, pollTime=iso(now_us, self._backend.zone), **fields)
