"""The calls of `initialize` and `stop` that are outstanding, and the deadlines L2 and L3 that they carry."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duly.verify.dues import NEVER_US
from duly.verify.properties import seconds
from duly.verify.tasks import ParsedList
from duly.verify.trace import InitEnd, InitStart, Position, StopEnd, StopStart
from duly.verify.worlds import TaskConfig

if TYPE_CHECKING:
    from duly.verify.judge import Judge


@dataclass(slots=True, eq=False)
class Init:
    start: Position
    at: int
    """The number of its position."""
    configs: dict[str, TaskConfig] | None
    """Its list; None if that is not a valid one."""
    invalid: str
    bound_us: int
    onset_us: int
    steps_back: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """How the clock was set back meanwhile: position, from, to, and whether anybody was active."""
    is_late: bool = False


@dataclass(slots=True, eq=False)
class StopCall:
    start: Position
    at: int
    """The number of its position."""


class Calls:
    def __init__(self, judge: "Judge", delta_stop_us: int) -> None:
        self._judge = judge
        self._objections = judge.objections
        self._words = judge.words
        self._tallies = judge.outcome.tallies
        self._delta_stop_us = delta_stop_us
        self._inits: dict[int, Init] = {}
        self.stops: dict[int, StopCall] = {}
        """The outstanding calls of `stop`."""
        self.soonest_us = NEVER_US
        """No deadline comes before this. It may be that of a call which has returned."""
        self._l3_us: int | None = None
        """Since when nothing keeps `stop` from returning."""
        self._is_l3_reported = False
        self.is_stopped = True
        """Whether a stop was called after, and returned after, every `initialize` that has been answered."""
        self._init_at = 0
        """Where the latest call of `initialize` began, of those that have been answered."""
        self.init_end: Position | None = None
        self.decisive: Position | None = None
        """What last began or ended activity."""

    @property
    def inits(self) -> list[Init]:
        """The outstanding calls of `initialize`, in call order."""
        return list(self._inits.values())

    @property
    def is_any_outstanding(self) -> bool:
        return bool(self._inits or self.stops)

    # --- initialize ---

    def begin_init(self, item: Position, event: InitStart, parsed: ParsedList) -> None:
        self._check_number(item, event.call)
        bound_us = self._judge.bound_us(parsed.size)
        init = Init(item, self._judge.at, parsed.configs, parsed.reason, bound_us, item.at_us)
        self._inits[event.call] = init
        self.soonest_us = min(self.soonest_us, init.onset_us + init.bound_us)
        self.look_at_l3(item)

    def _check_number(self, item: Position, call: int) -> None:
        if call in self._inits or call in self.stops:
            self._objections.fault(item.line, f"call {call} begins, and is outstanding already")

    def end_init(self, item: Position, event: InitEnd) -> Init | None:
        """`initialize` returned or raised: which call that was, None if there was none."""
        init = self._inits.pop(event.call, None)
        if init is None:
            reason = f"initialize returns from call {event.call}, which is not outstanding"
            self._objections.fault(item.line, reason)
            return None
        if not init.is_late:
            self._tallies["L2"].checked += 1
        if not event.void:
            self.is_stopped, self._init_at = False, max(self._init_at, init.at)
            self.init_end = item
            if init.configs is not None:
                self.decisive = item
        self.look_at_l3(item)
        return init

    # --- stop ---

    def begin_stop(self, item: Position, event: StopStart) -> None:
        self._check_number(item, event.call)
        self.stops[event.call] = StopCall(item, self._judge.at)
        self.decisive = item
        self.look_at_l3(item)

    def end_stop(self, item: Position, event: StopEnd) -> StopCall | None:
        """`stop` returned: which call that was, None if there was none."""
        stop = self.stops.pop(event.call, None)
        if stop is None:
            reason = f"stop returns from call {event.call}, which is not outstanding"
            self._objections.fault(item.line, reason)
            return None
        self.is_stopped |= not event.void and stop.at > self._init_at
        self._tallies["L3"].checked += 1
        self._l3_us, self._is_l3_reported = None, False
        self.look_at_l3(item)
        return stop

    def look_at_stop(self, stop: StopCall, item: Position) -> None:
        """Object if *stop* returned while callbacks ran (S3), or before a call that came before it (S5)."""
        running = self._judge.running
        returned = self._words.time(item.at_us)
        self._tallies["S3"].checked += 1
        self._tallies["S5"].checked += 1
        if running:
            first = next(iter(running))
            starts = [start for task in running.values() for _, start in task.runs.values()][:3]
            others = f" and {len(running) - 1} more" if len(running) > 1 else ""
            reason = f"stop returned at {returned} while {first!r}{others} was running"
            self._objections.object_at(item, "S3", first, reason, stop.start, *starts)
        late = next((init for init in self._inits.values() if init.at < stop.at), None)
        if late is not None:
            called = self._words.time(late.start.at_us)
            what = f"the initialize of {called}, which came before it, was in progress"
            reason = f"stop returned at {returned} while {what}"
            self._objections.object_at(item, "S5", None, reason, late.start, stop.start)

    # --- what befalls all of them ---

    def crash(self, item: Position) -> None:
        """The process died: nothing is outstanding any more."""
        self._inits.clear()
        self.stops.clear()
        self._l3_us, self._is_l3_reported = None, False
        self.is_stopped = True
        self.decisive = item
        self._look_at_deadlines()

    def reopen(self, before_us: int, after_us: int) -> None:
        """Count all deadlines from *after_us*, where the clock was stepped to."""
        for init in self._inits.values():
            init.onset_us = after_us
            if after_us < before_us:
                init.steps_back.append((self._judge.at, before_us, after_us, self._judge.is_active))
        if self._l3_us is not None:
            self._l3_us = after_us
        self._look_at_deadlines()

    def look_at_l3(self, item: Position) -> None:
        """Note if from here on nothing keeps `stop` from returning."""
        if self.soonest_us == NEVER_US and not (self._inits or self.stops):
            return
        is_free = self._is_stop_free()
        if not is_free:
            self._is_l3_reported = False
        elif self._l3_us is None and not self._is_l3_reported:
            self._l3_us = item.at_us
            self.soonest_us = min(self.soonest_us, self._l3_us + self._delta_stop_us)

    def _is_stop_free(self) -> bool:
        """Whether nothing keeps an outstanding `stop` from returning."""
        return bool(self.stops) and not self._inits and not self._judge.running

    # --- deadlines ---

    def reach(self, item: Position) -> None:
        """Object to every deadline that lies before *item*."""
        for init in self._inits.values():
            if not init.is_late and init.onset_us + init.bound_us < item.at_us:
                init.is_late = True
                self._tallies["L2"].checked += 1
                called, bound = self._words.time(init.start.at_us), seconds(init.bound_us)
                reason = f"initialize, called at {called}, did not return within {bound}"
                self._objections.object_to("L2", None, init.onset_us, reason, init.start, line=item.line)
        if self._l3_us is not None and self._l3_us + self._delta_stop_us < item.at_us:
            stop = next(iter(self.stops.values()))
            since, bound = self._words.time(self._l3_us), seconds(self._delta_stop_us)
            reason = f"nothing was running from {since} on, and stop did not return within {bound}"
            self._objections.object_to("L3", None, self._l3_us, reason, stop.start, line=item.line)
            self._l3_us, self._is_l3_reported = None, self._is_stop_free()
        self._look_at_deadlines()

    def open_counts(self) -> tuple[int, int]:
        """How many deadlines of L2 and of L3 are still open."""
        late = sum(not init.is_late for init in self._inits.values())
        return late, int(self._l3_us is not None)

    def _look_at_deadlines(self) -> None:
        deadlines = [init.onset_us + init.bound_us for init in self._inits.values() if not init.is_late]
        if self._l3_us is not None:
            deadlines.append(self._l3_us + self._delta_stop_us)
        self.soonest_us = min(deadlines, default=NEVER_US)
