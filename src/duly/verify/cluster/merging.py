"""The trace that one scheduler would have left of one task, written from what all nodes recorded of it.

The runs of all nodes follow each other as in one scheduler. A run that was cut off is a crash: it is owed
once more. A run that ended when its node was in trouble may not be known to have ended: that is a crash right
after its end, which leaves both open. Where no node could start the task there is an `initialize` that fails,
which starts nothing and loses nothing; where one could again, there is one that succeeds.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from msgspec.structs import replace

from duly.verify import trace
from duly.verify.cluster.history import ClusterHistory
from duly.verify.cluster.nodes import (
    TOLERANCE_US,
    ListedConfig,
    NodeControl,
    NodeRun,
    TimeSpan,
    union,
    without,
)
from duly.verify.trace import CARRIED_CALL, Header, Position, Regs
from duly.verify.worlds import LONG_AGO_US

_END_OF_TIME_US = 2**62
_POISONED = 2
"""After so many interruptions in a row a task may have to wait until others like it have run."""
_OFF, _LIST, _ON, _RUN, _CONTROLLED = range(5)
"""The order of what happens at the same time."""


class ListChange(NamedTuple):
    """A list took effect that changed a task: between *called_us* and *reported_us*."""

    called_us: int
    reported_us: int
    config: ListedConfig | None
    source: Position


class Merged(NamedTuple):
    """The trace of one task."""

    task: str
    header: Header
    positions: list[Position]
    sources: dict[int, Position]
    """What really stands in the lines that it names."""
    is_waiting: bool
    """Whether it ends with a task that was interrupted too often to say when it should start."""


def changes_of(history: ClusterHistory, task: str) -> list[ListChange]:
    changes: list[ListChange] = []
    config, free_us = None, LONG_AGO_US
    for each in history.lists:
        new = each.configs.get(task)
        if new != config:
            reported_us = max(each.reported.at_us, free_us)
            called_us = min(max(each.called_us - TOLERANCE_US, free_us), reported_us)
            if changes and changes[-1].reported_us > called_us:
                changes[-1] = changes[-1]._replace(reported_us=called_us)
            changes.append(ListChange(called_us, reported_us + TOLERANCE_US, new, each.reported))
            config, free_us = new, reported_us
    return changes


def merged(history: ClusterHistory, task: str) -> Merged:
    author = _Author(history, task)
    author.write()
    headers = [recording.header for recording in history.recordings]
    per_task_ms = max(header.delta_per_task_ms for header in headers)
    most = max((len(each.configs) for each in history.lists), default=1)
    is_known = any(header.store == "fresh" for header in headers) or (
        bool(history.lists) and task not in history.lists[0].configs
    )
    header = Header(
        v=headers[0].v,
        tz=headers[0].tz,
        store="fresh" if is_known else "unknown",
        delta_ms=max(header.delta_ms for header in headers) + per_task_ms * most + 2 * TOLERANCE_US / 1000,
        delta_per_task_ms=per_task_ms,
        persist_window_ms=max(1, *(header.persist_window_ms for header in headers)),
        running=[(task, run.number) for run in history.runs.get(task, ()) if run.is_from_before],
    )
    return Merged(task, header, author.positions, author.sources, author.is_waiting)


class _Author:
    def __init__(self, history: ClusterHistory, task: str) -> None:
        self._history = history
        self._task = task
        self._changes = changes_of(history, task)
        self._runs = history.runs.get(task, [])
        self._starts_us = list(self._start_times())
        self._calls = count(1)
        self._regs: Regs = []
        self._source = self._changes[0].source if self._changes else self._runs[0].start
        self._now_us = LONG_AGO_US
        self._is_expected = False
        """Whether some node can start the task now."""
        self._begun: tuple[ListChange, int] | None = None
        """The list that is taking effect."""
        self._controls: dict[int, NodeControl] = {}
        """The controls that may be taking effect."""
        self._crossed: set[int] = set()
        """Those in whose time a run was cut off: they may have taken effect before."""
        options = history.options[task] - {trace.OptionsDeclared()}
        self._options = dict.fromkeys([task], *options) if len(options) == 1 else {}
        self._plan: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.is_waiting = False
        self.positions: list[Position] = []
        self.sources: dict[int, Position] = {}

    def write(self) -> None:
        for change in self._changes:
            call = next(self._calls)
            self._do_at(change.called_us, _LIST, self._begin_list, change, call)
            self._do_at(change.reported_us, _LIST, self._end_list, change, call)
        for control in self._history.controls[self._task]:
            self._plan_control(control, next(self._calls))
        waits = [*self._plan_runs(), *self._history.back_offs(self._task)]
        quiet = union([*self._history.quiet, *waits]) if waits else self._history.quiet
        for span in without(self._reach(), quiet):
            self._do_at(span.from_us, _ON, self._be_on)
            self._do_at(span.to_us, _OFF, self._be_off)
        for at_us, _, _, do, facts in sorted(self._plan, key=lambda each: each[:3]):
            if at_us <= self._history.horizon_us:
                do(at_us, *facts)
        if self.positions:
            self._put(trace.Tick, self._history.horizon_us, self.positions[-1].line)

    def _do_at(self, at_us: int, rank: int, do: Callable[..., None], *facts: Any) -> None:
        self._plan.append((at_us, rank, len(self._plan), do, facts))

    # --- when ---

    def _start_times(self) -> Iterator[int]:
        """When each run started, among the lists and the runs of other nodes."""
        before_us = LONG_AGO_US
        for run in self._runs:
            at_us = run.start.at_us
            config: ListedConfig | None = None
            for index, change in enumerate(self._changes):
                is_new = change.config in run.configs and config not in run.configs
                is_old = config in run.configs and not any(
                    other.config in run.configs and other.called_us <= at_us
                    for other in self._changes[index:]
                )
                if is_new and change.called_us <= at_us < change.reported_us:
                    self._changes[index] = change._replace(reported_us=at_us)  # it was in effect by then
                elif is_old and change.reported_us <= at_us <= change.reported_us + self._history.failover_us:
                    at_us = change.reported_us - 1  # it was claimed before, and the answer was slow
                config = change.config
            before_us = max(at_us, before_us)
            yield before_us

    def _reach(self) -> list[TimeSpan]:
        """When there was a node that had the task as it was registered."""
        ends_us = [change.called_us for change in self._changes[1:]]
        found: list[TimeSpan] = []
        for change, end_us in zip(self._changes, [*ends_us, _END_OF_TIME_US], strict=False):
            from_us = change.reported_us + self._history.failover_us
            found += [
                TimeSpan(max(up.from_us, from_us), min(up.to_us, end_us))
                for node in self._history.nodes
                for up in node.ups
                if change.config is not None and up.configs.get(self._task) == change.config
            ]
        return union(found)

    def _plan_runs(self) -> Iterator[TimeSpan]:
        """Plan starts and ends. The times in which the task may have to wait for others that are poisoned."""
        cuts, horizon_us = 0, self._history.horizon_us
        for index, (run, at_us) in enumerate(zip(self._runs, self._starts_us, strict=True)):
            if not run.is_from_before:
                self._do_at(at_us, _RUN, self._start, run)
            next_ = self._runs[index + 1] if index + 1 < len(self._runs) else None
            next_us = self._starts_us[index + 1] if next_ is not None else _END_OF_TIME_US
            over_us = self._over_us(run, next_)
            if over_us is not None:
                over_us = max(min(over_us, next_us), at_us)
                self._do_at(over_us, _RUN, self._end, run)
            cuts = cuts + 1 if run.end is None else 0
            if cuts >= _POISONED and over_us is not None:
                self.is_waiting = next_ is None
                yield TimeSpan(over_us, min(next_us, horizon_us + 1))

    def _plan_control(self, control: NodeControl, call: int) -> None:
        """It takes effect when the row is written. A claim from before may yet be on its way to its call."""
        failover_us, begun_us = self._history.failover_us, control.start.at_us
        # It comes after the list that its node had, whatever the clocks say.
        listed = [change.reported_us for change in self._changes if change.called_us <= begun_us]
        from_us = max([begun_us - TOLERANCE_US, *listed])
        self._do_at(from_us, _LIST, self._begin_control, control, call)
        late_us = TOLERANCE_US if control.event.control in {"run", "resume"} else failover_us
        ended_us = begun_us + failover_us if control.end is None else control.end.at_us
        self._do_at(max(ended_us + late_us, from_us), _CONTROLLED, self._end_control, control, call)

    def _over_us(self, run: NodeRun, next_: NodeRun | None) -> int | None:
        over_us = run.over_us(next_.start.at_us) if next_ is not None else None
        at = run.end or run.cut
        if over_us is not None or at is not None:
            return over_us if over_us is not None or at is None else at.at_us
        return run.node.last.at_us if run.node.is_gone(self._history.horizon_us) else None

    # --- what ---

    def _start(self, at_us: int, run: NodeRun) -> None:
        if run.is_asked:  # its node says so right before, and no clock moves that among other runs
            call = next(self._calls)
            self._put(trace.ControlStart, at_us, run.start, call=call, control="run", id=self._task)
            self._put(trace.ControlEnd, at_us, run.start, call=call, ok=True)
        self._put(trace.RunStart, at_us, run.start, id=self._task, run=run.number)

    def _end(self, at_us: int, run: NodeRun) -> None:
        """The run has ended, was cut off, or nobody knows which."""
        source = run.end or run.cut or run.node.last
        is_unknown = run.end is None and run.cut is None and not run.node.is_gone(self._history.horizon_us)
        if run.end is not None or is_unknown:
            self._put(trace.RunEnd, at_us, source, id=self._task, run=run.number, ok=is_unknown or run.is_ok)
        if run.end is None or self._history.is_end_doubtful(run):
            self._put(trace.Crash, at_us, source)
            if self._begun is not None:
                self._begin_list(at_us, *self._begun)  # a death does not end the call of a list
            for call, control in self._controls.items():
                self._begin_control(at_us, control, call)  # nor a control on another node
            self._crossed |= self._controls.keys()
            if self._is_expected:
                self._initialize(at_us, ok=True)

    def _begin_list(self, at_us: int, change: ListChange, call: int) -> None:
        self._begun = change, call
        regs = self._regs_of(change)
        self._put(trace.InitStart, at_us, change.source, call=call, regs=regs, options=self._options)

    def _end_list(self, at_us: int, change: ListChange, call: int) -> None:
        self._regs, self._source, self._begun = self._regs_of(change), change.source, None
        self._put(trace.InitEnd, at_us, change.source, call=call, ok=True)
        self._initialize(at_us, ok=self._is_expected)

    def _begin_control(self, at_us: int, control: NodeControl, call: int) -> None:
        self._controls[call] = control
        event = control.event
        self._put(trace.ControlStart, at_us, control.start, call=call, control=event.control, id=self._task)

    def _end_control(self, at_us: int, control: NodeControl, call: int) -> None:
        """It has returned. A cancel may have come too late for its run, on whatever node that was."""
        del self._controls[call]
        is_sure = control.event.control != "cancel" and call not in self._crossed
        self._put(
            trace.ControlEnd, at_us, control.end or control.start, call=call, ok=control.is_ok, hit=is_sure
        )

    def _be_on(self, at_us: int) -> None:
        self._is_expected = True
        self._initialize(at_us, ok=True)

    def _be_off(self, at_us: int) -> None:
        self._is_expected = False
        self._initialize(at_us, ok=False)

    def _initialize(self, at_us: int, *, ok: bool) -> None:
        call = next(self._calls)
        regs = self._regs
        self._put(trace.InitStart, at_us, self._source, call=call, regs=regs, options=self._options)
        self._put(trace.InitEnd, at_us, self._source, call=call, ok=ok)

    def _regs_of(self, change: ListChange) -> Regs:
        return [] if change.config is None else [(self._task, *change.config)]

    def _put(self, kind: type[Any], at_us: int, source: Position | int, **facts: Any) -> None:
        """Write an event that stands for *source*; no event is older than the one before it."""
        self._now_us = at_us = max(at_us, self._now_us)
        line = source if isinstance(source, int) else source.line
        if isinstance(source, Position):
            self.sources.setdefault(line, source)
        self.positions.append(Position(line, at_us, kind(t=at_us / 1000, **facts)))


def parts_of(merged_trace: Merged, breaks_us: Sequence[int]) -> Iterator[tuple[Header, list[Position]]]:
    """*trace* in parts: at each break another begins that knows of no past but the runs in flight."""
    header, part = merged_trace.header, list[Position]()
    running = dict.fromkeys(number for _, number in header.running)
    regs: Regs = []
    options: dict[str, trace.OptionsDeclared] = {}
    calls: dict[int, Regs] = {}
    ahead = list(breaks_us)
    for position in merged_trace.positions:
        line, at_us, event = position
        if part and not calls and any(each <= at_us for each in ahead):
            ahead = [each for each in ahead if each > at_us]
            yield header, part
            header = replace(
                header, store="unknown", running=[(merged_trace.task, number) for number in running]
            )
            part = [
                Position(line, at_us, kind)
                for call, ok in ((CARRIED_CALL, True), (CARRIED_CALL - 1, False))
                for kind in (
                    trace.InitStart(t=event.t, call=call, regs=regs, options=options),
                    trace.InitEnd(t=event.t, call=call, ok=ok),
                )
            ]
        part.append(position)
        match event:
            case trace.RunStart(run=int(run)):
                running[run] = None
            case trace.RunEnd(run=int(run)):
                running.pop(run, None)
            case trace.Crash():
                running.clear()
                calls.clear()
            case trace.InitStart():
                calls[event.call], options = event.regs, event.options
            case trace.InitEnd():
                regs = calls.pop(event.call) if event.ok else regs
                calls.pop(event.call, None)
            case _:
                pass
    yield header, part
