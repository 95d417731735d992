"""Timers for the engine: what they are owed, what becomes of them, and what is told (see `engine.rules`).

The decisions are in `dues` and `timer`. Here they meet what they hang on: the state of the targets at this
moment, and which of them another timer has just claimed. A claim needs no clearing: it counts as long as the
timer that made it has a run.
"""

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Protocol

import msgspec

from duly.clock import Step
from duly.engine.rules import Begin, Look
from duly.engine.runs import Run
from duly.engine.telling import iso
from duly.events import Announcer, described
from duly.instant import Instant, milliseconds
from duly.supervisor.ended import Ended, Reason, Result
from duly.supervisor.errors import Refused, ServiceError
from duly.timers import timer as changes
from duly.timers.dues import Miss, TargetState, verdict, wakes_us
from duly.timers.targets import Targets
from duly.timers.timer import TimerState, fired


class Firing(msgspec.Struct, frozen=True, gc=False):
    """One start that is owed."""

    before: TimerState
    after: TimerState
    cause: Reason


class UnsuccessfulError(Exception):
    """A run that did not end well, on its way through the engine."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.message or ended.result.value)
        self.ended = ended


class Heard(Protocol):
    """Who is told what the engine's events do not carry."""

    def missed(self, timer: TimerState) -> None:
        """A due was missed, as the timer now says."""
        ...

    def not_triggered(self, timer: TimerState) -> None:
        """A run that somebody asked for was refused."""
        ...

    def let_go(self, target: str) -> None:
        """A timer that had claimed *target* has done with it, whether or not there was a run."""
        ...


_MISSES = {
    Refused.ACTIVE: Miss.OVERLAP,
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
        heard: Heard,
        state_of: Callable[[str], TimerState | None],
        has_run: Callable[[str], bool],
    ) -> None:
        self.is_closing = False
        """Set when the supervisor is about to stop: dues are missed from now on."""
        self.is_quiet = False
        """Set when the gate is closed, and runs are yet to end: nobody is told of that."""
        self._targets = targets
        self._heard = heard
        self._state_of = state_of
        self._has_run = has_run
        """Whether a run by that name is in flight, perhaps from before the timer was removed."""
        self._claims: dict[str, tuple[str, int]] = {}
        """By target, the timer that last fired for it, and the run."""

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
                "active"
                if timer.target in taken or self._has_run(timer.name)
                else self.target_state(timer.target)
            )
            looked, due = verdict(timer, now_us, target, is_stopping=is_stopping)
            if looked is not timer:
                changed.append((timer, looked))
            if due is not None:
                taken.add(timer.target)
                run_id = self._targets.new_run_id()
                self._claims[timer.target] = timer.name, run_id
                after = fired(looked, due, now_us, run_id)
                firings.append(Firing(looked, after, due.reason))
        return Look(firings, changed)

    def target_state(self, target: str) -> TargetState:
        """The state of a target; one that a timer is about to start is active already."""
        state = self._targets.target_state(target)
        return "active" if state == "idle" and self._is_claimed(target) else state

    def _is_claimed(self, target: str) -> bool:
        name, run_id = self._claims.get(target, ("", None))
        claimant = self._state_of(name)
        return claimant is not None and run_id is not None and claimant.running_run == run_id

    def wakes_us(self, timer: TimerState) -> Instant:
        """When the timer next needs a look."""
        is_active = timer.definition.on_unit_active_sec is not None and (
            self._has_run(timer.name) or self.target_state(timer.target) == "active"
        )
        return wakes_us(timer, is_target_active=is_active, is_stopping=self.is_stopping)

    # --- what becomes of it ---

    def called(self, timer: TimerState, now_us: Instant) -> TimerState:
        """The timer at the moment its target is started."""
        return changes.called(timer, now_us)

    def ended(self, timer: TimerState, run: Run[TimerState], error: BaseException | None) -> TimerState:
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
            ended_by(error),
            run.ended_us,
            is_stopping=self.is_stopping,
            may_retry=not run.is_superseded,
            is_of_target=run.before.target == timer.target,
            ahead_us=run.ahead_us,
        )

    def released(self, timer: TimerState) -> TimerState:
        """The timer without a run."""
        return changes.released(timer)

    def minds(self, step: Step) -> bool:
        """Every step: lengths of time are kept as deadlines on the wall clock."""
        return step.before_us != step.after_us

    def stepped(self, timer: TimerState, step: Step) -> TimerState:
        """The timer after the clock was set."""
        return changes.stepped(timer, step.before_us, step.after_us)

    # --- what is told ---

    def tell_starts(self, announcer: Announcer, starts: Sequence[Begin[TimerState]], zone: tzinfo) -> None:
        """Tell of timers that fire."""
        for start in starts:
            timer = start.after
            announcer.announce(
                "TimerFired",
                timer=timer.name,
                target=timer.target,
                reason=start.cause.value,
                scheduledTime=None if timer.running_at_us is None else iso(timer.running_at_us, zone),
                runId=timer.running_run,
            )

    def tell_changed(self, announcer: Announcer, before: TimerState, after: TimerState, zone: tzinfo) -> None:
        """Tell of a due that was missed."""
        if before.triggered and not after.triggered:
            self._heard.not_triggered(after)
        if after.misses != before.misses:
            self._tell_miss(announcer, after, zone)

    def _tell_miss(self, announcer: Announcer, timer: TimerState, zone: tzinfo) -> None:
        assert timer.last_missed_us is not None
        self._heard.missed(timer)
        announcer.announce(
            "TimerMissed",
            timer=timer.name,
            target=timer.target,
            reason=timer.last_miss_reason,
            slot=iso(timer.last_missed_us, zone),
        )

    def tell_end(
        self,
        announcer: Announcer,
        timer: TimerState | None,
        run: Run[TimerState],
        error: BaseException | None,
        zone: tzinfo,
    ) -> None:
        """Tell of a run that ended; if the timer is gone, or is another by now, there is nothing to tell."""
        self._heard.let_go(run.before.target)
        if timer is None or self.is_quiet:
            return
        if _miss_of(error) is not None and not run.is_superseded:
            self._tell_miss(announcer, timer, zone)
            return
        if timer.last_run_us != run.started_us:
            return
        announcer.announce(
            "TimerRunEnded",
            timer=timer.name,
            target=run.before.target,
            runId=timer.last_run_id,
            result=ended_by(error).result.value,
            duration=milliseconds(max(run.ended_us - run.called_us, 0)),
        )
        if timer.retry_at_us is not None:
            announcer.announce(
                "TimerRetryScheduled",
                timer=timer.name,
                attempt=timer.retry_attempt,
                retryAt=iso(timer.retry_at_us + run.ahead_us, zone),
            )

    def tell_skipped(self, announcer: Announcer, name: str, reason: str) -> None:
        """Nothing: a timer that cannot fire has missed a due, and that is told."""


def ended_by(error: BaseException | None) -> Ended:
    """How a run ended that left the engine with *error*."""
    if error is None:
        return Ended(Result.SUCCESS, 0)
    if isinstance(error, UnsuccessfulError):
        return error.ended
    return Ended(Result.SPAWN_ERROR, message=described(error))


def _miss_of(error: BaseException | None) -> Miss | None:
    """The miss that a refusal amounts to, when it came between the decision and the start."""
    return _MISSES.get(error.kind) if isinstance(error, ServiceError) else None
