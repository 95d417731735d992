"""Reads what the members of a cluster recorded: their lives, tenures of shards, runs, and published lists.

Nothing is judged here but the calls that a member's own scheduler served (`Recording.judge`), for which its
trace alone is enough.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, count

import msgspec

from duly.verify.cluster.lives import (
    TOLERANCE_US,
    Activity,
    Ending,
    Life,
    Published,
    Recording,
    Run,
    Span,
    Tenure,
    by_task,
    shard_of,
)
from duly.verify.judge import Judge
from duly.verify.lists import Lists
from duly.verify.properties import gaps_before
from duly.verify.trace import (
    ClockStep,
    Crash,
    Edition,
    End,
    Fault,
    Given,
    Header,
    InitEnd,
    InitStart,
    Lost,
    Position,
    Reachable,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    Taken,
    Trace,
    TraceError,
    Unreachable,
    header_of,
    micros,
    zone_of,
)
from duly.verify.worlds import LONG_AGO_US


def recordings(lines: Iterable[bytes]) -> list[Recording]:
    """Read all files of all members, one after the other. Raises TraceError if one is no trace."""
    numbers, lists = count(1), dict[str, Lists]()
    return [_Reader(trace, line, numbers, lists).read() for line, trace in _Splitter(lines).traces()]


class _Splitter:
    """Finds where in a row of lines another recording begins."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = enumerate(lines, start=1)
        self._next = next(self._lines, None)

    def traces(self) -> Iterator[tuple[int, Trace]]:
        """The first lines of the recordings, and these, each to be read to its end before the next."""
        while self._next is not None:
            first_line = self._next[0]
            yield first_line, Trace(self._part(), first_line=first_line)

    def _part(self) -> Iterator[bytes]:
        """The lines up to a header that does not follow."""
        member: str | None = None
        while self._next is not None:
            number, line = self._next
            if b'"Header"' in line and _is_header(line):
                header = _header_in(number, line)
                if member is not None and not (header and header.follows and header.member == member):
                    return
                member = header.member if header is not None else ""
            self._next = next(self._lines, None)
            yield line


def _is_header(line: bytes) -> bool:
    try:
        raw = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(raw, dict) and raw.get("ev") == "Header"


def _header_in(number: int, line: bytes) -> Header | None:
    try:
        return header_of(number, line.removeprefix(b"\xef\xbb\xbf"))
    except TraceError:
        return None  # the recording that begins with it will say why


class _Reader:
    """Reads one recording to its end."""

    def __init__(
        self, trace: Trace, first_line: int, numbers: Iterator[int], lists: dict[str, Lists]
    ) -> None:
        self._numbers = numbers
        self._calls: dict[int, Position] = {}
        self._stops: set[int] = set()
        self._life: Life | None = None
        self._activity: Activity | None = None
        self._trace = trace
        if not trace.header.member:
            raise TraceError(first_line, "this trace is of no member of a cluster; verify it by itself")
        tz = trace.header.tz
        known = lists.setdefault(tz, Lists(zone_of(tz)))  # dues are worked out once, not for each member
        self.recording = Recording(trace.header, Judge(trace.header, lists=known), first_line)
        for gap in gaps_before(trace.header):
            # What the member did meanwhile is in no trace, so nothing from there on is held against anybody.
            self.recording.fault_us = LONG_AGO_US if gap.from_us is None else gap.from_us

    def read(self) -> Recording:
        """Read all of it."""
        for item in self._trace:
            self._take(item)
        self._leave_open(self._calls.values())
        self.recording.torn_line = self._trace.torn_line
        return self.recording

    def _take(self, item: Position | Fault) -> None:
        recording = self.recording
        outcome, before = recording.judge.outcome, recording.judge.outcome.fault_count
        recording.judge.take(item)
        if outcome.fault_count > before and recording.fault_us is None:
            recording.fault_us = outcome.last_us or 0
        if isinstance(item, Position):
            life = self._life_of(item)
            self._notice_silence(life, item)
            self._on_event(life, item)
            life.note(item)

    def _notice_silence(self, life: Life, item: Position) -> None:
        """A process that did not even tick was stopped, or its host slept: it could do nothing."""
        tick_us = micros(life.header.tick_ms)
        if self._activity is not None and tick_us and item.at_us - life.last.at_us > tick_us + TOLERANCE_US:
            self._rest(life.last)
            self._be_active(life, item)

    def _life_of(self, item: Position) -> Life:
        """The life that *item* belongs to; another process is another life."""
        life, proc = self._life, item.event.proc
        if life is None or (proc is not None and life.first.event.proc not in {None, proc}):
            if life is not None:
                self._die(life)
            life = self._begin(item)
        return life

    def _begin(self, item: Position) -> Life:
        header = self.recording.header
        life = self._life = Life(header.member, header, item, item)
        self.recording.lives.append(life)
        if len(self.recording.lives) == 1:
            for task, run in header.running:
                start = Position(item.line, item.at_us, RunStart(t=item.event.t, id=task, run=run))
                self._begin_run(life, start, task).is_from_before = True
        return life

    def _die(self, life: Life) -> None:
        """Its process is no more; unless it was stopped before, that was a death."""
        if not life.is_stopped or life.running or life.held:
            life.died = life.last
        for run in chain.from_iterable(life.running.values()):
            run.cut = run.cut or life.last
        for tenure in life.held.values():
            tenure.ending, tenure.ended = Ending.DIED, life.last
        life.held.clear()
        life.running.clear()
        self._leave_open(self._calls.values())
        self._calls.clear()
        self._stops.clear()
        self._rest(life.last)

    def _on_event(self, life: Life, item: Position) -> None:
        event = item.event
        match event:
            case RunStart():
                self._begin_run(life, item, event.id)
            case RunEnd():
                self._end_run(life, item, event)
            case InitStart():
                life.regs = event.regs
                self._calls[event.call] = item
            case InitEnd():
                self._end_init(life, item, event)
            case StopStart():
                self._stops.add(event.call)
                if self._activity is not None:
                    self._activity.is_stopped = True
                self._rest(item)
            case StopEnd():
                self._end_stop(life, item, event)
            case ClockStep():
                life.steps.append(item)
            case Crash():
                life.last = item
                self._die(life)
                self._life = None
            case End():
                life.is_closed = True
            case _:
                self._on_cluster_event(life, item)

    def _on_cluster_event(self, life: Life, item: Position) -> None:
        event = item.event
        match event:
            case Taken():
                self._take_shard(life, item, event)
            case Given():
                self._let_go(life, item, event, Ending.GIVEN)
            case Lost():
                life.losses.append(item)
                self._let_go(life, item, event, Ending.LOST)
            case Edition():
                called = max(self._calls.values(), default=None, key=lambda call: call.line)
                called_us = life.as_dated_now(called) if called is not None else None
                regs = by_task(event.regs)
                published = Published(event.edition, regs, item, called_us, life, server=event.server)
                self.recording.editions.append(published)
            case Unreachable():
                self._rest(item)
                if not life.is_out_of_touch:
                    life.out_of_touch.append(Span(item.at_us, None))
            case Reachable():
                if life.is_out_of_touch:
                    life.out_of_touch[-1] = life.out_of_touch[-1]._replace(to_us=item.at_us)
                self._be_active(life, item)

    # --- calls ---

    def _end_init(self, life: Life, item: Position, event: InitEnd) -> None:
        call = self._calls.pop(event.call, None)
        if call is not None and not event.ok:
            self._leave_open([call])
        if event.ok:
            self._note_list(life, call)
            life.is_stopped = False
            self._rest(item)
            self._be_active(life, item)
        elif not event.void:
            self._rest(item)

    def _note_list(self, life: Life, call: Position | None) -> None:
        """Note which shards were taken by another list than that of *call*, which has taken effect."""
        if call is not None:
            assert isinstance(call.event, InitStart)
            regs = by_task(call.event.regs)
            for tenure in life.held.values():
                tenure.is_list_left |= by_task(tenure.regs) != regs

    def _leave_open(self, calls: Iterable[Position]) -> None:
        """Note calls of which nobody knows whether they took effect."""
        for call in calls:
            assert self._life is not None
            assert isinstance(call.event, InitStart)
            began_us = self._life.as_dated_now(call)
            self.recording.unanswered.append((began_us, by_task(call.event.regs)))

    def _end_stop(self, life: Life, item: Position, event: StopEnd) -> None:
        self._stops.discard(event.call)
        if event.void:
            self._be_active(life, item)
            return
        life.is_stopped = True
        if not event.ok:
            life.failed_stop = item
        for tenure in life.held.values():
            tenure.ending, tenure.ended = Ending.GIVEN, item
            _be_former(tenure)
        life.held.clear()

    def _be_active(self, life: Life, item: Position) -> None:
        is_possible = not (life.is_stopped or life.is_out_of_touch or self._stops)
        if self._activity is None and is_possible:
            self._activity = Activity(life, by_task(life.regs), item.at_us)
            self.recording.activities.append(self._activity)

    def _rest(self, item: Position) -> None:
        if self._activity is not None:
            self._activity.to_us = item.at_us
            self._activity = None

    # --- shards ---

    def _take_shard(self, life: Life, item: Position, event: Taken) -> None:
        before = life.held.get(event.shard)
        if before is not None:
            if (before.term, before.server) == (event.term, event.server):
                return  # told again, at the beginning of a file
            _be_former(before)
        # While a call goes on, shards may still be taken by the list before.
        key = (event.server, event.edition)
        regs = life.lists.setdefault(key, life.regs) if event.edition else life.regs
        tenure = Tenure(event.shard, event.term, event.edition, event.origin, life, item, regs, event.server)
        life.held[event.shard] = tenure
        self.recording.tenures.append(tenure)

    def _let_go(self, life: Life, item: Position, event: Given | Lost, ending: Ending) -> None:
        held = life.held.get(event.shard)
        tenure = held if held is not None and held.term == event.term else None
        if tenure is not None:
            del life.held[event.shard]
            tenure.ending, tenure.ended = ending, item
            _be_former(tenure)
        if ending is not Ending.LOST:
            return
        for run in chain.from_iterable(each.runs for each in life.former.get((event.shard, event.term), ())):
            if run.end is None and run.cut is None:
                run.cut = item  # it may go on to its end, but nobody will know

    # --- runs ---

    def _begin_run(self, life: Life, item: Position, task: str) -> Run:
        tenure = life.held.get(shard_of(task, self.recording.header.shards))
        run = Run(task, life, item, next(self._numbers), tenure)
        life.running.setdefault(task, []).append(run)
        self.recording.runs.append(run)
        if tenure is not None:
            tenure.runs.append(run)
        return run

    def _end_run(self, life: Life, item: Position, event: RunEnd) -> None:
        running = life.running.get(event.id, [])
        for run in running:
            begun = run.start.event
            assert isinstance(begun, RunStart)
            if event.run in {None, begun.run}:
                running.remove(run)
                if not running:
                    del life.running[event.id]
                if run.cut is None:
                    run.end, run.is_ok = item, event.ok
                return


def _be_former(tenure: Tenure) -> None:
    """Note that its member does not hold it any more."""
    tenure.life.former.setdefault((tenure.shard, tenure.term), []).append(tenure)
