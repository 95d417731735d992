"""The backend of shared timers: rows that take their target before they start.

The decision comes first, and then a message takes the rows of the targets of what is to start. A timer that
is only looked at, because it is disabled or was asked something, does not keep another from firing.

The node that runs a timer also notes the misses of dues that come meanwhile, as on one machine.
"""

from collections.abc import Callable, Sequence

from duly.clock import Step
from duly.cluster.backend import RowBackend
from duly.cluster.node import Node
from duly.cluster.table import Room
from duly.cluster_timers.rows import cut_record
from duly.core.task import STEP_TOLERATED_US
from duly.engine.rules import Begin
from duly.engine.runs import ActiveRun
from duly.instant import NEVER_US, SECOND_US, Instant
from duly.timers.dues import wakes_us
from duly.timers.rules import TimerRules
from duly.timers.timer import TimerState, interval_us, span_us


class RowRules(TimerRules):
    now_us: Callable[[], Instant]
    node: Node

    def token_of(self, timer: TimerState) -> int | None:
        held = self.node.held.get(timer.name)
        return None if held is None else held.token

    def wakes_us(self, timer: TimerState) -> Instant:
        """When the row is to be claimed next."""
        now_us = self.now_us()
        if (
            timer.queued_us is not None
        ):  # for a run of its own that has ended, or of another machine: nothing reports it
            return now_us + SECOND_US
        wake_us = _next_due_us(timer)
        interval_sec = timer.definition.on_unit_active_sec
        if interval_sec is not None and timer.is_enabled and (at_us := interval_us(timer)) < NEVER_US:
            # It has passed, and nothing began: the target runs, so the interval has not begun yet.
            wake_us = min(wake_us, at_us if at_us > now_us else now_us + span_us(interval_sec))
        return max(wake_us, now_us)

    def minds(self, step: Step) -> bool:
        """Only large steps back of the database's clock: others change nothing but what is due."""
        return step.before_us - step.after_us > STEP_TOLERATED_US

    def stepped(self, timer: TimerState, _step: Step) -> TimerState:
        """The timer: a row that is ahead of the clock is moved back as it is read."""
        return timer


class TimerBackend(RowBackend[TimerState]):
    """Rows that take their target before they start."""

    blocked: set[str]
    """Timers whose target runs on another node, while they are looked at once more."""
    ended: dict[str, TimerState]
    """Timers as their last run here left them."""
    on_missed: Callable[[TimerState, TimerState], None]
    """Called with a timer before and after a due that came while it runs."""
    is_stopping: Callable[[], bool]
    """Whether the supervisor ends: then nothing is claimed, and what is due is for others."""

    def may_call(self) -> bool:
        return super().may_call() and not self.is_stopping()

    def item_of(self, name: str) -> TimerState | None:
        active = self._active.get(name)
        return None if active is None else active.item

    @property
    def running(self) -> list[TimerState]:
        return [active.item for active in self._active.values()]

    async def claim(
        self, now_us: Instant, at_most: int, on_look: Callable[[int], None]
    ) -> Sequence[Begin[TimerState]]:
        """Look at what runs, write the ends that came in, and claim what is due."""
        self._look_at_running(now_us)
        return await super().claim(now_us, at_most, on_look)

    def next_us(self) -> Instant | None:
        """When the next row is due, or a timer that runs."""
        next_us = super().next_us()
        wakes = [_next_due_us(timer) for timer in self.running]
        return min([*wakes, *([] if next_us is None else [next_us])], default=None)

    def _look_at_running(self, now_us: Instant) -> None:
        due = [timer for timer in self.running if _next_due_us(timer) <= now_us]
        for before, after in self._rules.looked_at(due, now_us).changed if due else ():
            self._active[after.name].item = after
            self.on_missed(before, after)

    def on_end(self, run: ActiveRun[TimerState], error: BaseException | None) -> TimerState | None:
        # Before the end is noted: what came due while it ran is missed for that reason.
        self._look_at_running(run.ended_us)
        timer = super().on_end(run, error)
        if timer is not None:
            self.ended[timer.name] = timer
        return timer

    def _room_of(self, row_id: int, start: Begin[TimerState]) -> Room:
        """The target."""
        return Room(row_id, start.before.lock, 1, cut_record(start))

    def _refuse(self, starts: Sequence[Begin[TimerState]]) -> None:
        """Look once more at timers whose target runs elsewhere: they have a miss, as on one machine."""
        timers = [start.before for start in starts]
        self.blocked = {timer.name for timer in timers}
        changes = self._rules.looked_at(timers, self.poller.now_us()).changed
        self.blocked = set()
        after = {timer.name: timer for timer in timers}
        for before, changed in changes:
            after[changed.name] = changed
            self._rules.emit_changed(self._announcer, before, changed, self.zone)
        for name, timer in after.items():
            held = self._active.pop(name).held
            self._end(held, self._codec.state(timer), self._rules.wakes_us(timer))


def _next_due_us(timer: TimerState) -> Instant:
    """When something comes due of a timer that runs."""
    return wakes_us(timer, is_target_active=True, is_stopping=False)
