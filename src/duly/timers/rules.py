"""Timers for the engine: what they are owed, what becomes of them, and their events (see `engine.rules`).

The decisions are in `dues` and `timer`. Here they meet what they hang on: the state of the targets at this
moment, and which of them another timer has just claimed. A claim needs no clearing: it counts as long as the
timer that made it has a run.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import tzinfo
from typing import Protocol

import msgspec

from duly.clock import Step
from duly.core.causes import Reason
from duly.engine.rules import Begin, Look
from duly.engine.runs import ActiveRun
from duly.events import Announcer, described
from duly.instant import Instant, iso, milliseconds
from duly.store.history import Result
from duly.supervisor.results import Refused, RunResult, ServiceError, TargetState
from duly.timers import timer as changes
from duly.timers.dues import Miss, verdict, wakes_us
from duly.timers.timer import TimerState, fired


class Targets(Protocol):
    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor is shutting down: nothing starts any more."""
        ...

    def target_state(self, service_id: str, /) -> TargetState: ...

    def new_run_id(self) -> int: ...

    def replace_run(self, service_id: str, /) -> None:
        """Have the run of a service end: another is due."""
        ...

    def run(
        self,
        service_id: str,
        /,
        *,
        reason: Reason,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
    ) -> Awaitable[RunResult]:
        """Run a service to its end, which comes whether or not it is waited for. Raises ServiceError."""
        ...

    def last_end_us(self, service_id: str, /) -> Instant | None:
        """When the last run of a service ended, however it was started."""
        ...

    def outcome(self, run_id: int, timer: str, /) -> str | None:
        """What became of a run of a timer: "running", its result, or None when nobody knows of it."""
        ...


class CuttableTargets(Targets, Protocol):
    """Targets whose runs can be ended at once."""

    def cut_off(self) -> None:
        """End at once what timers have started."""
        ...


OnMiss = Callable[[str, Instant, str], object]
"""Called with a timer's name, the instant of the due, and the reason."""


async def run_target(targets: Targets, timer: TimerState, target: str) -> RunResult:
    """Run *target* to its end, as the run that *timer* has begun. Raises ServiceError."""
    assert timer.running_reason is not None
    return await targets.run(
        target,
        reason=timer.running_reason,
        timer=timer.name,
        scheduled_us=timer.running_at_us,
        run_id=timer.running_run,
    )


class Firing(msgspec.Struct, frozen=True, gc=False):
    """One start that is owed."""

    before: TimerState
    after: TimerState
    cause: Reason


class RulesListener(Protocol):
    """Who is called for what the engine's events do not carry: local or cluster timers."""

    def on_not_triggered(self, timer: TimerState) -> None:
        """A run that somebody asked for was refused."""
        ...

    def on_target_free(self, target: str) -> None:
        """A timer that had claimed *target* has done with it, whether or not there was a run."""
        ...

    def on_queued(self, timer: TimerState) -> None:
        """Something came due that waits for the end of a run."""
        ...


_MISSES = {
    Refused.ACTIVE: Miss.OVERLAP,
    Refused.LOCKED: Miss.OVERLAP,
    Refused.RELOADING: Miss.OVERLAP,
    Refused.UNKILLABLE: Miss.OVERLAP,
    Refused.DISABLED: Miss.DISABLED_TARGET,
    Refused.UNKNOWN: Miss.TARGET_NOT_FOUND,
    Refused.STOPPING: Miss.SHUTDOWN,
}


class TimerRules:
    """What is owed to timers."""

    def __init__(
        self,
        targets: Targets,
        listener: RulesListener,
        state_of: Callable[[str], TimerState | None],
        has_run: Callable[[str], bool],
        on_miss: OnMiss = lambda *_: None,
    ) -> None:
        self.is_closing = False
        """Set when the supervisor is about to stop: dues are missed from now on."""
        self.is_quiet = False
        """Set when the timers are off, and runs are yet to end: their ends are not announced."""
        self.makes_up_every_cut = False
        """Whether each run that was cut off counts as missed: another machine may make it up."""
        self._targets = targets
        self._listener = listener
        self._on_miss = on_miss
        self._state_of = state_of
        self._has_run = has_run
        """Whether a run by that name is in flight, perhaps from before the timer was removed."""
        self._claims: dict[str, tuple[str, int]] = {}
        """By lock, the timer that last took it, and the run."""

    @property
    def is_stopping(self) -> bool:
        """Whether nothing may start any more because the supervisor stops."""
        return self.is_closing or self._targets.is_stopping

    # --- what is owed ---

    def looked_at(self, timers: Sequence[TimerState], now_us: Instant) -> Look[TimerState]:
        """The firings and misses at *now_us*, in order of declaration."""
        firings: list[Firing] = []
        changed: list[tuple[TimerState, TimerState]] = []
        taken: set[str] = set()
        is_stopping = self.is_stopping
        for timer in sorted(timers, key=lambda timer: timer.order):
            target: TargetState = (
                "active" if timer.lock in taken or self._has_run(timer.name) else self.target_state(timer)
            )
            looked, due = verdict(timer, now_us, target, is_stopping=is_stopping)
            if looked is not timer:
                changed.append((timer, looked))
            if due is not None:
                taken.add(timer.lock)
                # Given out before the write: the stored timer names its run before there is one.
                run_id = self._targets.new_run_id()
                self._claims[timer.lock] = timer.name, run_id
                after = fired(looked, due, now_us, run_id)
                firings.append(Firing(looked, after, due.reason))
        return Look(firings, changed)

    def target_state(self, timer: TimerState) -> TargetState:
        """The state of its target; one whose lock a timer is about to take is active already."""
        state = self._targets.target_state(timer.target)
        return "active" if state == "idle" and self._is_claimed(timer.lock) else state

    def _is_claimed(self, lock: str) -> bool:
        name, run_id = self._claims.get(lock, ("", None))
        claimant = self._state_of(name)
        return claimant is not None and run_id is not None and claimant.running_run == run_id

    def wakes_us(self, timer: TimerState) -> Instant:
        depends = timer.definition.on_unit_active_sec is not None or timer.queued_us is not None
        is_active = depends and (self._has_run(timer.name) or self.target_state(timer) == "active")
        return wakes_us(timer, is_target_active=is_active, is_stopping=self.is_stopping)

    # --- what becomes of it ---

    def called(self, timer: TimerState, now_us: Instant) -> TimerState:
        return changes.called(timer, now_us)

    def ended(self, timer: TimerState, run: ActiveRun[TimerState], error: BaseException | None) -> TimerState:
        """What the end of *run* makes of its timer."""
        if timer.running_run is None:
            return timer  # it was removed and came back meanwhile: the run is not its own
        if (miss := _miss_of(error)) is not None and not run.is_superseded:
            refused = changes.refused(timer, run.before, miss, run.ended_us)
            if miss is Miss.SHUTDOWN:  # nothing has answered it: the next start may catch up
                return msgspec.structs.replace(refused, answered_us=run.before.answered_us)
            return refused
        return changes.ended(
            timer,
            run_result_of(run, error),
            run.ended_us,
            is_stopping=self.is_stopping or self.makes_up_every_cut,
            may_retry=not run.is_superseded,
            is_of_target=run.before.target == timer.target,
            ahead_us=run.ahead_us,
        )

    def released(self, timer: TimerState) -> TimerState:
        return changes.released(timer)

    def redefined(self, timer: TimerState, like: TimerState) -> TimerState:  # noqa: ARG002
        """The timer itself: with another definition it is registered again."""
        return timer

    def timeout_us(self, timer: TimerState) -> int | None:  # noqa: ARG002
        """None: the supervisor limits the runs of its services."""
        return None

    def limit_of(self, timer: TimerState) -> str | None:  # noqa: ARG002
        """None: a target has one run at most."""
        return None

    def minds(self, step: Step) -> bool:
        """Every step: lengths of time are kept as deadlines on the wall clock."""
        return step.before_us != step.after_us

    def stepped(self, timer: TimerState, step: Step) -> TimerState:
        return changes.stepped(timer, step.before_us, step.after_us)

    # --- events ---

    def emit_starts(self, announcer: Announcer, starts: Sequence[Begin[TimerState]], zone: tzinfo) -> None:
        for start in starts:
            timer = start.after
            announcer.announce(
                "TimerFired",
                timer=timer.name,
                target=timer.target,
                reason=start.cause.value,
                scheduledTime=None if timer.running_at_us is None else iso(timer.running_at_us, zone),
                runId=timer.running_run,
                **({} if (token := self.token_of(timer)) is None else {"token": token}),
            )

    def token_of(self, _timer: TimerState) -> int | None:
        """The token of its claim, where there are claims."""
        return None

    def emit_changed(self, announcer: Announcer, before: TimerState, after: TimerState, zone: tzinfo) -> None:
        """Emit that a due was missed."""
        if before.triggered and not after.triggered:
            self._listener.on_not_triggered(after)
        if after.queued_us is not None and before.queued_us is None:
            self._emit_queued(announcer, after, after.queued_us, zone)
        if after.misses != before.misses:
            self._emit_miss(announcer, after, zone)

    def _emit_queued(self, announcer: Announcer, timer: TimerState, queued_us: Instant, zone: tzinfo) -> None:
        announcer.announce(
            "TimerQueued", timer=timer.name, target=timer.target, scheduledTime=iso(queued_us, zone)
        )
        self._listener.on_queued(timer)
        if timer.definition.overlap == "replace":
            self._targets.replace_run(timer.target)

    def _emit_miss(self, announcer: Announcer, timer: TimerState, zone: tzinfo) -> None:
        assert timer.last_missed_us is not None
        assert timer.last_miss_reason is not None
        self._on_miss(timer.name, timer.last_missed_us, timer.last_miss_reason)
        announcer.announce(
            "TimerMissed",
            timer=timer.name,
            target=timer.target,
            reason=timer.last_miss_reason,
            slot=iso(timer.last_missed_us, zone),
        )

    def emit_end(
        self,
        announcer: Announcer,
        timer: TimerState | None,
        run: ActiveRun[TimerState],
        error: BaseException | None,
        zone: tzinfo,
    ) -> None:
        """Announce a run that ended, unless the timer is gone or is another by now."""
        self._listener.on_target_free(run.before.target)
        if timer is None or self.is_quiet:
            return
        if _miss_of(error) is not None and not run.is_superseded:
            self._emit_miss(announcer, timer, zone)
            return
        if timer.last_run_us != run.started_us:
            return
        announcer.announce(
            "TimerRunEnded",
            timer=timer.name,
            target=run.before.target,
            runId=timer.last_run_id,
            result=run_result_of(run, error).result.value,
            duration=milliseconds(max(run.ended_us - run.called_us, 0)),
        )
        if timer.retry_at_us is not None:
            announcer.announce(
                "TimerRetryScheduled",
                timer=timer.name,
                attempt=timer.retry_attempt,
                retryAt=iso(timer.retry_at_us + run.ahead_us, zone),
            )

    def emit_skipped(self, announcer: Announcer, name: str, reason: str) -> None:
        """Nothing: a timer that cannot fire has missed a due, and that is announced."""


def run_result_of(run: ActiveRun[TimerState], error: BaseException | None) -> RunResult:
    """How *run* ended: what its target came to, or the *error* that it left the engine with."""
    if error is not None:
        return RunResult(Result.SPAWN_ERROR, message=described(error))
    # Nothing is returned for a timer that was removed before its target was run.
    return run.result if isinstance(run.result, RunResult) else RunResult(Result.SUCCESS, 0)


def _miss_of(error: BaseException | None) -> Miss | None:
    """The miss that a refusal amounts to, when it came between the decision and the start."""
    return _MISSES.get(error.kind) if isinstance(error, ServiceError) else None
