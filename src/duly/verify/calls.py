"""The calls of `initialize` and `stop` that are outstanding, and the deadlines L2 and L3 that they carry."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from duly.verify.dues import NEVER_US
from duly.verify.lists import Reading
from duly.verify.task import Task
from duly.verify.trace import Fault, InitEnd, InitStart, Position, StopEnd, StopStart
from duly.verify.worlds import Config

if TYPE_CHECKING:
    from duly.verify.judge import Judge


class Init:
    """One call of `initialize`."""

    __slots__ = (
        "at",
        "bound_us",
        "configs",
        "invalid",
        "is_late",
        "onset_us",
        "start",
        "steps_back",
    )

    def __init__(self, start: Position, reading: Reading, bound_us: int, at: int = 0) -> None:
        self.start = start
        self.at = at
        """The number of its position."""
        self.steps_back: list[tuple[int, int, int, bool]] = []
        """How the clock was set back meanwhile: position, from, to, and whether anybody was active."""
        self.configs: dict[str, Config] | None = reading.configs
        """Its list; None if that is not a valid one."""
        self.invalid = reading.reason
        self.bound_us = bound_us
        self.onset_us = start.at_us
        self.is_late = False


class Stop:
    """One call of `stop`."""

    __slots__ = ("at", "start")

    def __init__(self, start: Position, at: int) -> None:
        self.start = start
        self.at = at
        """The number of its position."""


class Calls:
    """The calls of one trace."""

    def __init__(self, judge: "Judge", delta_stop_us: int) -> None:
        self._judge = judge
        self._delta_stop_us = delta_stop_us
        self._inits: dict[int, Init] = {}
        self._stops: dict[int, Stop] = {}
        self._soonest_us = NEVER_US
        """No deadline comes before this. It may be that of a call which has returned."""
        self._l3_us: int | None = None
        """Since when nothing keeps `stop` from returning."""
        self._is_l3_told = False
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
    def is_stopping(self) -> bool:
        """Whether a `stop` is outstanding."""
        return bool(self._stops)

    @property
    def is_any_outstanding(self) -> bool:
        """Whether any call is."""
        return bool(self._inits or self._stops)

    # --- initialize ---

    def begin_init(self, item: Position, reading: Reading) -> None:
        """`initialize` was called."""
        event = item.event
        assert isinstance(event, InitStart)
        if event.call in self._inits or event.call in self._stops:
            self._judge.objections.fault(
                Fault(item.line, f"call {event.call} begins, and is outstanding already")
            )
        init = Init(item, reading, self._judge.bound_us(reading.size), self._judge.at)
        self._inits[event.call] = init
        self._soonest_us = min(self._soonest_us, init.onset_us + init.bound_us)
        self.look_at_l3(item)

    def end_init(self, item: Position) -> Init | None:
        """`initialize` returned or raised: which call that was, None if there was none."""
        event = item.event
        assert isinstance(event, InitEnd)
        init = self._inits.pop(event.call, None)
        if init is None:
            self._judge.objections.fault(
                Fault(item.line, f"initialize returns from call {event.call}, which is not outstanding")
            )
            return None
        if not init.is_late:
            self._judge.outcome.tallies["L2"].checked += 1
        if not event.void:
            self.is_stopped, self._init_at = False, max(self._init_at, init.at)
            self.init_end = item
            if init.configs is not None:
                self.decisive = item
        self.look_at_l3(item)
        return init

    # --- stop ---

    def begin_stop(self, item: Position) -> None:
        """`stop` was called."""
        event = item.event
        assert isinstance(event, StopStart)
        if event.call in self._inits or event.call in self._stops:
            self._judge.objections.fault(
                Fault(item.line, f"call {event.call} begins, and is outstanding already")
            )
        self._stops[event.call] = Stop(item, self._judge.at)
        self.decisive = item
        self.look_at_l3(item)

    def end_stop(self, item: Position) -> Stop | None:
        """`stop` returned: which call that was, None if there was none."""
        event = item.event
        assert isinstance(event, StopEnd)
        stop = self._stops.pop(event.call, None)
        if stop is None:
            self._judge.objections.fault(
                Fault(item.line, f"stop returns from call {event.call}, which is not outstanding")
            )
            return None
        self.is_stopped |= not event.void and stop.at > self._init_at
        self._judge.outcome.tallies["L3"].checked += 1
        self._l3_us, self._is_l3_told = None, False
        self.look_at_l3(item)
        return stop

    def look_at_stop(self, stop: Stop, item: Position, running: Mapping[str, Task]) -> None:
        """Object if *stop* returned while callbacks ran (S3), or before a call that came before it (S5)."""
        judge = self._judge
        judge.outcome.tallies["S3"].checked += 1
        judge.outcome.tallies["S5"].checked += 1
        if running:
            first = next(iter(running))
            starts = [start for task in running.values() for _, start in task.runs.values()][:3]
            reason, evidence = judge.words.still_running(list(running), item), (stop.start, *starts, item)
            judge.objections.object_to("S3", first, item.at_us, reason, evidence, line=item.line)
        late = next((init for init in self._inits.values() if init.at < stop.at), None)
        if late is not None:
            reason, evidence = judge.words.initialize_not_awaited(late, item), (late.start, stop.start, item)
            judge.objections.object_to("S5", None, item.at_us, reason, evidence, line=item.line)

    # --- what befalls all of them ---

    def crash(self, item: Position) -> None:
        """The process died: nothing is outstanding any more."""
        self._inits.clear()
        self._stops.clear()
        self._l3_us, self._is_l3_told = None, False
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
        if not self.is_any_outstanding and self._soonest_us == NEVER_US:
            return
        is_free = self._is_free()
        if not is_free:
            self._is_l3_told = False
        elif self._l3_us is None and not self._is_l3_told:
            self._l3_us = item.at_us
            self._soonest_us = min(self._soonest_us, self._l3_us + self._delta_stop_us)

    def _is_free(self) -> bool:
        """Whether nothing keeps an outstanding `stop` from returning."""
        return bool(self._stops) and not self._inits and not self._judge.is_anything_running

    # --- deadlines ---

    def reach(self, item: Position) -> None:
        """Object to every deadline that lies before *item*."""
        if self._soonest_us >= item.at_us:
            return
        judge = self._judge
        for init in self._inits.values():
            if not init.is_late and init.onset_us + init.bound_us < item.at_us:
                init.is_late = True
                judge.outcome.tallies["L2"].checked += 1
                reason = judge.words.initialize_hangs(init)
                judge.objections.object_to("L2", None, init.onset_us, reason, [init.start], line=item.line)
        if self._l3_us is not None and self._l3_us + self._delta_stop_us < item.at_us:
            stop = next(iter(self._stops.values()))
            reason = judge.words.stop_hangs(self._l3_us, self._delta_stop_us)
            judge.objections.object_to("L3", None, self._l3_us, reason, [stop.start], line=item.line)
            self._l3_us, self._is_l3_told = None, self._is_free()
        self._look_at_deadlines()

    def open(self) -> tuple[int, int]:
        """How many deadlines of L2 and of L3 are still open."""
        late = sum(not init.is_late for init in self._inits.values())
        return late, int(self._l3_us is not None)

    def _look_at_deadlines(self) -> None:
        deadlines = [init.onset_us + init.bound_us for init in self._inits.values() if not init.is_late]
        if self._l3_us is not None:
            deadlines.append(self._l3_us + self._delta_stop_us)
        self._soonest_us = min(deadlines, default=NEVER_US)
