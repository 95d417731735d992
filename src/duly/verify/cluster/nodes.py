"""What the traces of a cluster hold, once they are read: nodes, their runs, and the lists in effect."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, count, pairwise
from typing import NamedTuple

import msgspec

from duly.verify import trace
from duly.verify.dues import instant_us
from duly.verify.judge import Judge
from duly.verify.properties import gaps_before
from duly.verify.tasks import TraceLists
from duly.verify.trace import Fault, Header, Position, Trace, TraceError, micros, zone_of
from duly.verify.worlds import LONG_AGO_US

TOLERANCE_US = 500_000
"""By how much the clocks of nodes may differ."""

ListedConfig = tuple[str, float]
"""Cron text and retry delay in milliseconds."""
Configs = dict[str, ListedConfig]
_KILLED = frozenset({"signal", "interrupted"})
"""How runs of timers end that somebody has killed."""


class TimeSpan(NamedTuple):
    from_us: int
    to_us: int


Limit = tuple[str, int]
"""A named limit, and how many runs it allows."""


@dataclass(slots=True, eq=False)
class NodeControl:
    """A control of a task, as the node was asked for it."""

    start: Position
    event: trace.ControlStart
    end: Position | None = None
    is_ok: bool = False


@dataclass(slots=True, eq=False)
class NodeRun:
    task: str
    node: "NodeProcess"
    start: Position
    number: int
    """Its own, in the whole cluster."""
    token: int | None = None
    configs: frozenset[ListedConfig] = frozenset()
    """How its node may have had the task registered when it started."""
    end: Position | None = None
    is_ok: bool = False
    cut: Position | None = None
    """Where its node lost its trust, or gave its last sign: no end counts after that."""
    is_from_before: bool = False
    """It was in flight where the trace begins."""
    run: int | None = None
    """Its number in the trace of its node."""
    target: str = ""
    """What may not run twice at once: the task, or the service that a timer starts."""
    declared: trace.TimerDeclared | None = None
    """The timer that fired, as its node had it."""
    reason: str = ""
    """Why it fired."""
    due_us: int | None = None
    """The instant that it fired for."""
    result: str = ""
    """How the run of a timer ended."""
    is_asked: bool = False
    """Whether somebody has asked for it."""
    limit: Limit | None = None
    """The named limit that it counts in, as its node had it."""

    def over_us(self, by_us: int) -> int | None:
        """When it was over, for who starts the task at *by_us*; None if it was in flight then."""
        # A node that was frozen gives a sign again only when it learns that its trust is lost, or that its
        # watchdog has killed what it ran.
        cut = self.end if self.end is not None and self.result in _KILLED else self.cut
        if cut is not None:
            is_frozen = not self.node.has_sign(by_us + 1, cut.at_us - TOLERANCE_US)
            if cut.at_us <= by_us + TOLERANCE_US or is_frozen:
                return min(cut.at_us, by_us)
            return None
        if self.end is not None:
            return self.end.at_us if self.end.at_us <= by_us + TOLERANCE_US else None
        return self.node.last.at_us if self.node.last.at_us <= by_us + TOLERANCE_US else None


class Up(NamedTuple):
    """A time in which a node could start the tasks of its list."""

    from_us: int
    to_us: int
    configs: Configs


@dataclass(slots=True, eq=False)
class NodeProcess:
    """One process of one node of the cluster."""

    name: str
    header: Header
    first: Position
    last: Position
    signs_us: list[int] = field(default_factory=list)
    """When it recorded anything, in order."""
    is_dead: bool = False
    """Whether another process came after it, or a crash was recorded."""
    is_stopped: bool = False
    is_closed: bool = False
    """Whether its recording was ended while it lived."""
    configs: Configs = field(default_factory=dict)
    """The list that it has now."""
    limits: dict[str, Limit] = field(default_factory=dict)
    """Of tasks that have a named limit."""
    limits_of_kinds: dict[str, Limit] = field(default_factory=dict)
    running: dict[str, list[NodeRun]] = field(default_factory=dict)
    ups: list[Up] = field(default_factory=list)
    away: list[TimeSpan] = field(default_factory=list)
    """When it could not reach the database."""
    shocks_us: list[int] = field(default_factory=list)
    """When it lost its trust, came back under a new id, or failed to stop: ends may not be written."""
    stops_us: list[int] = field(default_factory=list)

    @property
    def tick_us(self) -> int:
        """After how long a silence it records a sign; 0 if that is not known."""
        return micros(self.header.tick_ms)

    def has_sign(self, from_us: int, to_us: int) -> bool:
        at = bisect_left(self.signs_us, from_us)
        return at < len(self.signs_us) and self.signs_us[at] <= to_us

    def is_gone(self, by_us: int) -> bool:
        """Whether it had died by then, as far as its silence shows."""
        if self.is_stopped or self.is_closed:
            return False
        is_silent = bool(self.tick_us) and self.last.at_us + self.tick_us + TOLERANCE_US < by_us
        return self.is_dead or is_silent

    def faults(self) -> Iterator[TimeSpan]:
        """When it was dead, frozen, or without the database, and what it had just done may be undone."""
        if not (self.is_stopped or self.is_closed):
            yield TimeSpan(self.last.at_us, self.last.at_us + self.tick_us)
        yield from self.away
        yield from (TimeSpan(at_us, at_us) for at_us in self.shocks_us)
        if self.tick_us:
            for before_us, after_us in pairwise(self.signs_us):
                if after_us - before_us > self.tick_us + TOLERANCE_US:
                    yield TimeSpan(before_us, after_us)


@dataclass(slots=True, eq=False)
class NewList:
    """A list that became the list of the cluster, between *called_us* and where that is reported."""

    reported: Position
    called_us: int
    configs: Configs
    generation: int | None
    """None if no node reported: it is known from a node that found the same list in effect."""


@dataclass(eq=False)
class Recording:
    """The files of one node that follow each other."""

    header: Header
    judge: Judge
    first_line: int = 1
    nodes: list[NodeProcess] = field(default_factory=list)
    """Its processes, one after the other."""
    runs: list[NodeRun] = field(default_factory=list)
    lists: list[NewList] = field(default_factory=list)
    unanswered_us: list[int] = field(default_factory=list)
    """When calls of `initialize` began that failed or never returned; their lists may be in effect."""
    server_changes: list[tuple[int, bool]] = field(default_factory=list)
    """When another server answered, and whether it had forgotten commits."""
    back_offs: dict[str, list[TimeSpan]] = field(default_factory=dict)
    """When a task was not to be started, because it had been interrupted too often."""
    daemon_events: list[Position] = field(default_factory=list)
    """What a daemon has recorded of its timers, with the ticks between."""
    options: dict[str, set[trace.OptionsDeclared]] = field(default_factory=dict)
    """Which options each task of a list had."""
    controls: dict[str, list[NodeControl]] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)
    """The kind of each entry."""
    ids: set[int | str] = field(default_factory=set)
    fenced: set[int | str] = field(default_factory=set)
    lease_us: int = 0
    step_us: int | None = None
    """When the clock of the database was set."""
    fault_us: int | None = None
    """When the trace itself first went wrong."""
    torn_line: int | None = None


def union(spans: Sequence[TimeSpan]) -> list[TimeSpan]:
    """The same times, as spans that do not touch each other, in order."""
    found: list[TimeSpan] = []
    for span in sorted(spans):
        if found and span.from_us <= found[-1].to_us:
            found[-1] = TimeSpan(found[-1].from_us, max(found[-1].to_us, span.to_us))
        elif span.from_us <= span.to_us:
            found.append(span)
    return found


def covers(spans: Sequence[TimeSpan], at_us: int) -> bool:
    """Whether an instant lies in one of *spans*, which are as `union` makes them."""
    at = bisect_right(spans, at_us, key=lambda span: span.from_us)
    return at > 0 and spans[at - 1].to_us >= at_us


def without(spans: Sequence[TimeSpan], taken: Sequence[TimeSpan]) -> list[TimeSpan]:
    """*spans* without the times of *taken*; both as `union` makes them."""
    found: list[TimeSpan] = []
    for from_us, to_us in spans:
        for gap in taken[max(bisect_right(taken, (from_us, from_us)) - 1, 0) :]:
            if gap.from_us > to_us:
                break
            if gap.from_us > from_us:
                found.append(TimeSpan(from_us, gap.from_us))
            from_us = max(from_us, gap.to_us)  # noqa: PLW2901 (the rest of it)
        if from_us < to_us:
            found.append(TimeSpan(from_us, to_us))
    return found


_OPEN_US = 2**62


def recordings(lines: Iterable[bytes], kind: str = "tasks") -> list[Recording]:
    """Read all files of all nodes, one after the other. Raises TraceError if one is no trace of that kind."""
    numbers, lists, node = count(1), dict[str, TraceLists](), ""

    def is_another(header: Header) -> bool:
        nonlocal node
        before, node = node, header.node
        return not header.follows or header.node != before

    traces = trace.recordings_in(lines, is_another, kind=kind)
    return [_Reader(recorded, numbers, lists).read() for recorded in traces]


def _configs(regs: Iterable[tuple[str, str, float]]) -> Configs:
    return {task: (cron, delay_ms) for task, cron, delay_ms in regs}


class _Fields(msgspec.Struct, rename="camel"):
    """What the events of a daemon say of a run."""

    timer: str | None = None
    service: str | None = None
    run_id: int | None = None
    reason: str | None = None
    scheduled_time: datetime | None = None
    token: int | None = None
    result: str | None = None
    pid: int | None = None
    late_ms: int = 0


class _Reader:
    def __init__(self, recorded: Trace, numbers: Iterator[int], lists: dict[str, TraceLists]) -> None:
        self._numbers = numbers
        self._calls: dict[int, tuple[Position, Configs]] = {}
        """The calls of `initialize` that have not returned."""
        self._reconciled: set[int] = set()
        """Those among them whose lists are known to be in effect."""
        self._stops: set[int] = set()
        self._fired: dict[int, _Fields] = {}
        """Timers that fired, by their runs, which have not begun."""
        self._controls: dict[int, NodeControl] = {}
        """Those that have not returned."""
        self._unmade: dict[int, tuple[Position, _Fields]] = {}
        """Runs that were reported without a process. Their ends say whether one could not be made."""
        self._timers: dict[str, trace.TimerDeclared] = {}
        self._node: NodeProcess | None = None
        self._up_us: int | None = None
        self._items = recorded
        if not recorded.header.node:
            raise TraceError(
                recorded.first_line, "this trace is of no node of a cluster; verify it by itself"
            )
        tz = recorded.header.tz
        known = lists.setdefault(tz, TraceLists(zone_of(tz)))  # dues are worked out once, not for each node
        self.recording = Recording(recorded.header, Judge(recorded.header, lists=known), recorded.first_line)
        for gap in gaps_before(recorded.header):
            # What the node did meanwhile is in no trace, so nothing from there on is held against anybody.
            self.recording.fault_us = LONG_AGO_US if gap.from_us is None else gap.from_us

    def read(self) -> Recording:
        for item in self._items:
            self._take(item)
        if self._node is not None:
            self._finish(self._node)
        self.recording.torn_line = self._items.torn_line
        return self.recording

    def _take(self, item: Position | Fault) -> None:
        recording = self.recording
        outcome, before = recording.judge.outcome, recording.judge.outcome.fault_count
        recording.judge.take(item)
        if outcome.fault_count > before and recording.fault_us is None:
            recording.fault_us = outcome.last_us or 0
        if isinstance(item, Position):
            node = self._node_of(item)
            node.last = item
            if (
                not node.signs_us or item.at_us >= node.signs_us[-1]
            ):  # a clock that was set back shows nothing
                node.signs_us.append(item.at_us)
            self._on_event(node, item)
            if recording.header.kind == "timers":
                self._on_event_of_daemon(node, item)

    def _node_of(self, item: Position) -> NodeProcess:
        node, proc = self._node, item.event.proc
        if node is None or (proc is not None and node.first.event.proc not in {None, proc}):
            if node is not None:
                self._die(node)
            header = self.recording.header
            self._node = node = NodeProcess(header.node, header, item, item)
            self.recording.nodes.append(node)
            for task, run in header.running if len(self.recording.nodes) == 1 else ():
                start = Position(item.line, item.at_us, trace.RunStart(t=item.event.t, id=task, run=run))
                self._begin_run(node, start, task, run).is_from_before = True
        return node

    def _die(self, node: NodeProcess) -> None:
        """Its process is no more; unless it was stopped before, that was a death."""
        node.is_dead = not node.is_stopped or bool(node.running)
        node.is_stopped &= not node.is_dead
        for run in chain.from_iterable(node.running.values()):
            run.cut = run.cut or node.last
        self._finish(node)

    def _finish(self, node: NodeProcess) -> None:
        """Nothing more is known of this process."""
        self.recording.unanswered_us += [call.at_us for call, _ in self._calls.values()]
        self._calls.clear()
        self._controls.clear()
        self._stops.clear()
        self._be_down(node, node.last.at_us)
        if node.away and node.away[-1].to_us == _OPEN_US:
            node.away[-1] = node.away[-1]._replace(to_us=node.last.at_us)
        self._node = None

    def _on_event(self, node: NodeProcess, item: Position) -> None:
        event = item.event
        match event:
            case trace.RunStart():
                self._begin_run(node, item, event.id, event.run, event.token).is_asked = self._is_asked(item)
            case trace.RunEnd():
                _end_run(node, item, event.id, event.run, is_ok=event.ok)
            case trace.InitStart():
                self._calls[event.call] = item, _configs(event.regs)
                self._note_options(node, event)
            case trace.ControlStart() | trace.ControlEnd():
                self._on_control(item, event)
            case trace.InitEnd():
                self._end_init(node, item, event)
            case trace.StopStart():
                self._stops.add(event.call)
                node.stops_us.append(item.at_us)
                self._be_down(node, item.at_us)
            case trace.StopEnd():
                self._end_stop(node, item, event)
            case trace.ClockStep():
                if abs(item.at_us - micros(event.origin)) > TOLERANCE_US and self.recording.step_us is None:
                    self.recording.step_us = min(item.at_us, micros(event.origin))
            case trace.Crash():
                self._die(node)
            case trace.End():
                node.is_closed = True
            case _:
                self._on_cluster_event(node, item)

    def _on_control(self, item: Position, event: trace.ControlStart | trace.ControlEnd) -> None:
        if isinstance(event, trace.ControlStart):
            control = self._controls[event.call] = NodeControl(item, event)
            self.recording.controls.setdefault(event.id, []).append(control)
            if event.entry is not None:
                self.recording.entries[event.id] = event.entry.kind
        elif (ended := self._controls.pop(event.call, None)) is not None:
            ended.end, ended.is_ok = item, event.ok

    def _is_asked(self, start: Position) -> bool:
        """Whether the line before a start says that it was asked for: its node found that on its row."""
        assert isinstance(start.event, trace.RunStart)
        controls = self.recording.controls.get(start.event.id, [])
        last = controls[-1] if controls else None
        if last is None or last.end is None or last.end.line != start.line - 1 or last.event.control != "run":
            return False
        controls.remove(last)
        return True

    def _note_options(self, node: NodeProcess, event: trace.InitStart) -> None:
        for task, *_ in event.regs:
            options = event.options.get(task, trace.OptionsDeclared())
            self.recording.options.setdefault(task, set()).add(options)
        of_tasks = {task: options.limit for task, options in event.options.items()}
        of_kinds = {name: kind.options.limit for name, kind in event.kinds.items()}
        sizes = event.limits
        node.limits = {task: (name, sizes[name]) for task, name in of_tasks.items() if name in sizes}
        node.limits_of_kinds = {kind: (name, sizes[name]) for kind, name in of_kinds.items() if name in sizes}

    def _on_event_of_daemon(self, node: NodeProcess, item: Position) -> None:
        match item.event:
            case trace.Told():
                self._on_told(node, item, item.event)
            case trace.Timers():
                self._timers = {timer.id: timer for timer in item.event.timers}
            case (
                trace.Tick()
                | trace.ClockStep()
                | trace.TrustLost()
                | trace.NodeReturned()
                | trace.ServerChanged()
            ):
                pass
            case _:
                return
        self.recording.daemon_events.append(item)

    def _on_told(self, node: NodeProcess, item: Position, event: trace.Told) -> None:
        """Make runs of the events of a daemon's timers. What a person started is nobody's claim."""
        try:
            fields = msgspec.convert(event.fields, _Fields)
        except msgspec.ValidationError as error:
            self._take(Fault(item.line, f"this {event.name} cannot be read: {error}"))
            return
        timer, number, result = fields.timer, fields.run_id, fields.result or ""
        match event.name:
            case "TimerFired" if number is not None:
                self._fired[number] = fields
            case "ServiceRunStarted" if timer is not None and number is not None:
                self._unmade[number] = item, fields
                if fields.pid is not None:
                    self._begin_made(node, timer, number)
            case "ServiceRunEnded" if timer is not None:
                if number in self._unmade and result != "interrupted":  # else it was called off: nothing ran
                    self._begin_made(node, timer, number)
                _end_run(node, item, timer, number, is_ok=result == "success", result=result)
            case _:
                pass

    def _begin_made(self, node: NodeProcess, timer: str, number: int) -> None:
        item, fields = self._unmade.pop(number)
        fired = self._fired.pop(number, fields)
        begun = item._replace(at_us=item.at_us - micros(fields.late_ms))
        run = self._begin_run(node, begun, timer, number, fired.token)
        run.target, run.reason = fields.service or timer, fired.reason or ""
        run.due_us = None if fired.scheduled_time is None else instant_us(fired.scheduled_time)
        run.declared = self._timers.get(timer)

    def _on_cluster_event(self, node: NodeProcess, item: Position) -> None:
        recording, event, at_us = self.recording, item.event, item.at_us
        match event:
            case trace.NodeJoined():
                recording.ids.add(event.node)
                if 0 <= event.lease_ms < 1e12:  # NaN neither
                    recording.lease_us = max(recording.lease_us, micros(event.lease_ms))
            case trace.NodeReturned():
                recording.ids.add(event.node)
                node.shocks_us.append(at_us)
            case trace.NodeFenced():
                recording.fenced.add(event.node)
            case trace.TrustLost():
                node.shocks_us.append(at_us)
                for run in chain.from_iterable(node.running.pop(task, ()) for task in event.runs):
                    run.cut = item
            case trace.ServerChanged():
                recording.server_changes.append((at_us, event.forgot))
            case trace.ListReconciled():
                self._on_list(node, item, event.generation)
            case trace.TaskInterruptedAgain():
                recording.back_offs.setdefault(event.id, []).append(TimeSpan(at_us, micros(event.retry)))
            case trace.Unreachable() if not node.away or node.away[-1].to_us < _OPEN_US:
                node.away.append(TimeSpan(at_us, _OPEN_US))
            case trace.Reachable() if node.away:
                node.away[-1] = node.away[-1]._replace(to_us=min(node.away[-1].to_us, at_us))
            case _:
                pass

    # --- calls ---

    def _end_init(self, node: NodeProcess, item: Position, event: trace.InitEnd) -> None:
        self.recording.entries |= {name: entry.kind for name, entry in event.entries.items()}
        call, configs = self._calls.pop(event.call, (None, {}))
        if call is None or event.void:
            return
        self._be_down(node, item.at_us)
        if not event.ok:
            self.recording.unanswered_us.append(call.at_us)
            return
        node.configs, node.is_stopped = configs, False
        if event.call not in self._reconciled:
            self.recording.lists.append(NewList(item, call.at_us, configs, None))
        self._reconciled.discard(event.call)
        self._be_up(item.at_us)

    def _on_list(self, node: NodeProcess, item: Position, generation: int) -> None:
        """A scheduler serves its calls one after the other; outside of a call it brings its list again."""
        number = next(iter(self._calls), None)
        call, configs = (item, node.configs) if number is None else self._calls[number]
        if number is not None:
            self._reconciled.add(number)
        self.recording.lists.append(NewList(item, call.at_us, configs, generation))

    def _end_stop(self, node: NodeProcess, item: Position, event: trace.StopEnd) -> None:
        self._stops.discard(event.call)
        if event.void:
            self._be_up(item.at_us)
            return
        node.is_stopped = True
        if not event.ok:
            node.shocks_us.append(item.at_us)

    def _be_up(self, at_us: int) -> None:
        if self._up_us is None and not self._stops:
            self._up_us = at_us

    def _be_down(self, node: NodeProcess, at_us: int) -> None:
        if self._up_us is not None:
            node.ups.append(Up(self._up_us, at_us, node.configs))
            self._up_us = None

    # --- runs ---

    def _begin_run(
        self, node: NodeProcess, item: Position, task: str, number: int | None, token: int | None = None
    ) -> NodeRun:
        known = (node.configs, *(configs for _, configs in self._calls.values()))
        configs: list[ListedConfig] = [each[task] for each in known if task in each]
        run = NodeRun(
            task, node, item, next(self._numbers), token, frozenset(configs), run=number, target=task
        )
        run.limit = node.limits.get(task) or node.limits_of_kinds.get(self.recording.entries.get(task, ""))
        node.running.setdefault(task, []).append(run)
        self.recording.runs.append(run)
        return run


def _end_run(
    node: NodeProcess, item: Position, task: str, number: int | None, *, is_ok: bool, result: str = ""
) -> None:
    running = node.running.get(task, [])
    for run in running:
        if number in {None, run.run}:
            run.end, run.is_ok, run.result = item, is_ok, result
            running.remove(run)
            if not running:
                del node.running[task]
            return
