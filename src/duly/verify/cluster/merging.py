"""The trace that one scheduler would have left of one task, written from what all members recorded of it.

The order is that of terms; within a tenure it is that of its member's own lines. Times of different members
are compared only where an end has to find its place among the starts of others, and then with a tolerance.

A tenure begins with an `initialize` that succeeds. One that was cut off ends with a crash; one that was given
away, or taken by a newer list, with an `initialize` that fails, which starts nothing and loses nothing: its
run goes on, away. If the runner of an away run dies, that is a crash of this task alone.
"""

from collections.abc import Iterator
from itertools import count, dropwhile, pairwise
from typing import Any, NamedTuple

from duly.instant import MINUTE_US
from duly.verify.cluster.lives import (
    TOLERANCE_US,
    Ending,
    Life,
    Published,
    Run,
    Tenure,
    by_task,
    shard_of,
)
from duly.verify.cluster.whole import Whole, awake_us
from duly.verify.trace import (
    ClockStep,
    Crash,
    Header,
    InitEnd,
    InitStart,
    Position,
    RunEnd,
    RunStart,
    Tick,
    micros,
)
from duly.verify.worlds import LONG_AGO_US

_END_OF_TIME_US = 2**62


class Merged(NamedTuple):
    """The trace of one task, or of a part of its time that can be told."""

    header: Header
    positions: list[Position]
    sources: dict[int, Position]
    """What really stands in the lines that it names."""
    is_anew: bool
    """Whether others came before whose traces are not here: their runs may still be in flight."""
    is_forgotten: bool
    """Whether it ends where another server answers: what was owed may have been forgotten."""
    is_doubtful: bool
    """Whether something is left out before it: nobody knows which list was in effect then."""
    forgotten: set[int]
    """Which of the positions say only that an end may have been forgotten."""


def merged(whole: Whole, task: str) -> Iterator[Merged]:
    """The trace of *task*; where others held its shard whose traces are not here, it begins anew."""
    tenures = whole.tenures.get(shard_of(task, whole.shards), [])
    parts: list[list[Tenure]] = [[]]
    for tenure in tenures:
        if (whole.is_partial and tenure in whole.gaps) or tenure in whole.anew:
            parts.append([])
        parts[-1].append(tenure)
    in_flight: list[Run] = []
    for index, whole_part in enumerate(parts):
        part = list(dropwhile(lambda tenure: whole.is_list_in_doubt(task, tenure), whole_part))
        dropped = whole_part[: len(whole_part) - len(part)]
        in_flight = [*in_flight, *(run for tenure in dropped for run in tenure.runs if run.task == task)]
        author = _Author(whole, task, part, in_flight)
        if index and part:
            author.skip_to(part[0])
        following = parts[index + 1][0] if index + 1 < len(parts) else None
        until = following if following in whole.anew else None
        if part or not index:
            author.write(until)
        in_flight = author.in_flight if until is not None else []
        window_us = max(whole.persist_us, whole.failover_us) if author.is_wide else whole.persist_us
        window_us += author.silence_us
        header = whole.header("unknown" if index else whole.store, window_us)
        header.running = [(task, run.number) for run in author.from_before]
        yield Merged(
            header,
            author.positions,
            author.sources,
            is_anew=index > 0,
            is_forgotten=until is not None,
            is_doubtful=bool(dropped),
            forgotten=author.forgotten,
        )


class _Author:
    """Writes one trace."""

    def __init__(self, whole: Whole, task: str, tenures: list[Tenure], in_flight: list[Run]) -> None:
        self._whole = whole
        self._task = task
        self._tenures = tenures
        self._runs: dict[Tenure, list[Run]] = {}
        self._away: list[Run] = list(in_flight)
        """Runs in flight whose members do not hold the shard any more."""
        for run in whole.runs.get(task, ()):
            if run.is_from_before:
                if run not in self._away:
                    self._away.append(run)
            elif run.tenure is not None:
                self._runs.setdefault(run.tenure, []).append(run)
        self.from_before = tuple(self._away)
        self._editions = list(whole.editions)
        self._newest: Published | None = None
        self._regs: list[tuple[str, str, float]] = []
        self._calls = count(1)
        self._now_us = LONG_AGO_US
        self._is_active = False
        self._mend_us: int | None = None
        """When the holder has found out, at the latest, that the runner of an away run had died."""
        self._mend_line = 0
        self._last: Run | None = None
        self.positions: list[Position] = []
        self.sources: dict[int, Position] = {}
        self.forgotten: set[int] = set()
        """Which positions are crashes that stand for an end that another server may have forgotten."""
        self.is_wide = False
        """Whether an end may be lost although its member lived on: it had lost the board."""
        self.silence_us = 0
        """How long members may have been dead, at most, before they count as such."""

    def skip_to(self, tenure: Tenure) -> None:
        """Begin with *tenure*, and the list that is in effect by then."""
        while self._editions and self._is_published_before(tenure):
            self._newest = self._editions.pop(0)
            self._regs = self._regs_of(self._newest)

    @property
    def in_flight(self) -> list[Run]:
        """The runs that are in flight where the trace ends."""
        return self._away

    def write(self, until: Tenure | None) -> None:
        """Write all of it, or what came before *until*."""
        for tenure in self._tenures:
            self._publish_before(tenure)
            self._begin(tenure)
            self._follow(tenure)
            self._finish(tenure)
        if until is not None:
            if self.positions:
                self._pass(until.taken.at_us)
                self._put(Tick, until.taken.at_us, until.taken)
            return
        is_held = bool(self._tenures) and self._is_going_on(self._tenures[-1])
        for edition in self._editions:
            self._publish(edition, _END_OF_TIME_US)
        last = self._tenures[-1].life.last if is_held else None
        horizon_us = last.at_us if last is not None else self._whole.horizon_us
        if self.positions:
            self._pass(horizon_us)
            self._put(Tick, horizon_us, self.positions[-1].line if last is None else last.line)

    def _is_going_on(self, tenure: Tenure) -> bool:
        return tenure.ending is Ending.OPEN and not any(each.is_told for each in self._editions)

    # --- lists ---

    def _publish_before(self, tenure: Tenure) -> None:
        """Let the lists take effect that did so before *tenure*."""
        while self._editions and self._is_published_before(tenure):
            self._publish(self._editions.pop(0), tenure.taken.at_us)

    def _is_published_before(self, tenure: Tenure) -> bool:
        edition = self._editions[0]
        if edition.reign != tenure.reign:
            return edition.reign < tenure.reign
        if edition.number <= tenure.edition:
            return True
        after_us = tenure.taken.at_us - edition.position.at_us
        # At about the same time: a member that already has this list, brought back, takes by it at once.
        is_back = abs(after_us) <= TOLERANCE_US and edition.regs == by_task(tenure.regs)
        return edition.is_told and (after_us > TOLERANCE_US or is_back)

    def _regs_of(self, edition: Published) -> list[tuple[str, str, float]]:
        registration = edition.regs.get(self._task)
        return [] if registration is None else [(self._task, *registration)]

    def _publish(self, edition: Published, before_us: int) -> None:
        """A list took effect between the call that brought it and when that was told, or *before_us*."""
        regs = self._regs_of(edition)
        is_first, self._newest = self._newest is None, edition
        if regs == self._regs and not (is_first and regs):
            return
        told_us, called_us = edition.position.at_us, self._called_us(edition)
        self._pass(called_us)
        if self._is_active:
            self._deactivate(called_us, edition.position)
        self._regs = regs
        # By the clock of whoever brought it, it may have been another minute than by that of the last holder.
        earliest_us = max(called_us, self._now_us - TOLERANCE_US)
        if self.positions and earliest_us // MINUTE_US < self._now_us // MINUTE_US:
            self._put_step(self._now_us, Position(edition.position.line, earliest_us, edition.position.event))
        call = next(self._calls)
        self._put(InitStart, called_us, edition.position, call=call, regs=regs)
        self._put(InitEnd, min(told_us + TOLERANCE_US, before_us), edition.position, call=call, ok=True)
        self._deactivate(self._now_us, edition.position)

    def _called_us(self, edition: Published) -> int:
        """When the call began that brought *edition*, as far as that is known."""
        told_us = edition.position.at_us
        if not edition.is_told:
            if self.positions:
                return self._now_us
            return told_us if edition.called_us is None else min(told_us, edition.called_us)
        return edition.called_us if edition.called_us is not None else told_us - TOLERANCE_US

    def _activate(self, at_us: int, source: Position | int) -> None:
        call = next(self._calls)
        self._put(InitStart, at_us, source, call=call, regs=self._regs)
        self._put(InitEnd, at_us, source, call=call, ok=True)
        self._is_active, self._mend_us = True, None

    def _deactivate(self, at_us: int, source: Position | int) -> None:
        call = next(self._calls)
        self._put(InitStart, at_us, source, call=call, regs=self._regs)
        self._put(InitEnd, at_us, source, call=call, ok=False)
        self._is_active, self._mend_us = False, None

    # --- tenures ---

    def _begin(self, tenure: Tenure) -> None:
        at_us = tenure.taken.at_us
        self._pass(at_us)
        if at_us + TOLERANCE_US < self._now_us:  # another clock, or one that was set
            self._put_step(self._now_us, Position(tenure.taken.line, at_us, tenure.taken.event))
        if not self._is_left_alone(tenure):
            self._activate(at_us, tenure.taken)

    def _is_left_alone(self, tenure: Tenure) -> bool:
        """Whether its member has an older list, in which the task is not what it is in the newest."""
        own, newest = self._whole.edition(tenure.list_key), self._newest
        if own is None or newest is None or own.key >= newest.key:
            return False
        return own.regs.get(self._task) != newest.regs.get(self._task)

    def _follow(self, tenure: Tenure) -> None:
        """Write what its member did while it held the shard."""
        for item in self._own(tenure):
            if isinstance(item, Run):
                self._start(item)
            elif isinstance(item.event, ClockStep):
                self._pass(micros(item.event.origin))
                self._put_step(max(self._now_us, micros(item.event.origin)), item)
            else:
                run = next(run for run in self._runs[tenure] if run.end is item)
                self._pass(item.at_us)
                self._end(run, item.at_us)

    def _own(self, tenure: Tenure) -> Iterator[Run | Position]:
        """Starts, ends and clock steps that belong to *tenure* alone, in the order of its lines."""
        last_line = tenure.ended.line if tenure.ended is not None else None
        items: list[tuple[int, Run | Position]] = [
            (step.line, step)
            for step in tenure.life.steps
            if tenure.taken.line < step.line and (last_line is None or step.line < last_line)
        ]
        for run in self._runs.get(tenure, ()):
            if run.is_stale:
                continue  # that is objected to elsewhere
            items.append((run.start.line, run))
            if run.end is not None and self._is_own_end(run, tenure, last_line):
                items.append((run.end.line, run.end))
        return iter([item for _, item in sorted(items, key=lambda each: each[0])])

    def _is_own_end(self, run: Run, tenure: Tenure, last_line: int | None) -> bool:
        """Whether *run* ended before its tenure did."""
        assert run.end is not None
        if last_line is not None and run.end.line > last_line:
            return False
        if tenure.cut_us is not None:
            return run.end.at_us <= tenure.cut_us + TOLERANCE_US
        return tenure.next is None or run.end.at_us <= tenure.next.taken.at_us

    def _finish(self, tenure: Tenure) -> None:
        flying = [run for run in self._runs.get(tenure, ()) if not self._is_written(run)]
        if tenure.cut_us is not None:
            self._cut(tenure, min(tenure.cut_us, self._free_us(tenure)))
        elif tenure.next is not None or tenure.ending is not Ending.OPEN:
            self._away += flying
            ended = tenure.ended
            at_us = ended.at_us if ended is not None else self._now_us
            at_us = min(at_us, self._free_us(tenure))
            if self._is_active:
                self._pass(at_us)
                self._deactivate(at_us, ended or tenure.taken)
        elif not self._is_going_on(tenure):  # a newer list took the shard, and nobody has it since
            self._away += flying
        else:
            self._away += [run for run in flying if run.cut is not None]

    def _free_us(self, tenure: Tenure) -> int:
        """By when its shard was free: taken by another, or by a newer list, whenever its member learnt it."""
        if tenure.next is None:
            return _END_OF_TIME_US
        taken_us = tenure.next.taken.at_us
        if self._editions and self._is_published_before(tenure.next):
            return min(taken_us, self._called_us(self._editions[0]))
        return taken_us

    def _is_written(self, run: Run) -> bool:
        """Whether its end is, too; or it was never to be."""
        tenure = run.tenure
        assert tenure is not None
        if run.is_stale:
            return True
        last_line = tenure.ended.line if tenure.ended is not None else None
        return run.end is not None and self._is_own_end(run, tenure, last_line)

    def _cut(self, tenure: Tenure, cut_us: int) -> None:
        """It is as if the process had died, except for a run that another member has in flight."""
        last = tenure.life.last
        self._pass(min(cut_us, last.at_us))
        if self._is_active and cut_us > last.at_us:
            # It may have died right after its last sign: from there on what it owes is not late.
            self._activate(last.at_us, last)
        self._pass(cut_us)
        self.is_wide |= tenure.ending is not Ending.DIED and (
            tenure.life.is_heard_after(cut_us) or bool(tenure.life.out_of_touch)
        )
        self.silence_us = max(self.silence_us, cut_us - last.at_us)
        source = tenure.ended or last
        if self._away:
            if self._is_active:
                self._deactivate(cut_us, source)
        else:
            self._crash(cut_us, source)

    # --- runs ---

    def _start(self, run: Run) -> None:
        at_us = run.start.at_us
        self._pass(at_us)
        for other in list(self._away):
            if other.end is not None and other.end.at_us <= at_us + TOLERANCE_US and self._counts(other):
                self._away.remove(other)
                self._end(other, min(other.end.at_us, at_us))
            elif self._is_given_up(other, at_us):
                self._away.remove(other)
                self._crash(min(other.life.last.at_us, at_us), other.life.last)
                self._mend_us, self._mend_line = at_us, run.start.line
        if self._is_perhaps_unreported(run):
            self._crash(self._now_us, run.start)
            self._mend_us, self._mend_line = at_us, run.start.line
        if self._mend_us is not None:
            self._activate(at_us, self._mend_line)
        self._put(RunStart, at_us, run.start, id=self._task, run=run.number)
        self._last = run

    def _is_given_up(self, run: Run, at_us: int) -> bool:
        """Whether others could take the runner of *run* for dead by then."""
        if run.cut is not None and _last_sign_us(run.life, run.cut) <= at_us:
            return True
        return self._whole.is_out_of_sight(run.life, at_us)

    def _counts(self, run: Run) -> bool:
        """Whether the end of *run* is one that its member could still report."""
        return run.cut is None

    def _is_perhaps_unreported(self, run: Run) -> bool:
        """Whether the end of the run before may be unknown to the member that starts *run*."""
        last = self._last
        if last is None or last.life is run.life or last.end is None or self._away:
            return False
        if last.tenure is None or last.tenure.cut_us is not None:
            return False
        following = last.tenure.next
        is_away = (
            last.tenure.ended is None
            or last.end.line > last.tenure.ended.line
            or (following is not None and following.list_key > last.tenure.list_key)
        )
        if not self._whole.is_cut_off_about(last.life, last.end, run.start.at_us, is_away=is_away):
            if not is_away or not self._whole.is_forgotten(last.life, last.end, run.start.at_us):
                return False
            self.forgotten.add(len(self.positions))
        self.is_wide = True
        return True

    def _end(self, run: Run, at_us: int) -> None:
        assert run.end is not None
        self._put(RunEnd, at_us, run.end, id=self._task, run=run.number, ok=run.is_ok)

    # --- what happens away, and time ---

    def _pass(self, at_us: int) -> None:
        """Let time pass: away runs end, or their runners die."""
        while self._away:
            run = min(self._away, key=self._over_us)
            over_us = self._over_us(run)
            if over_us > at_us:
                break
            self._mend_if(over_us)
            self._away.remove(run)
            if run.cut is None:
                self._end(run, over_us)
            else:
                self._lose(run, run.cut, over_us)
        self._mend_if(at_us)

    def _over_us(self, run: Run) -> int:
        """When an away run was over: ended, or cut off; the end of time if neither is known."""
        if run.cut is None:
            return run.end.at_us if run.end is not None else _END_OF_TIME_US
        # Others gave it up some time after its last sign; when, matters only if a list came in between.
        sign_us = _last_sign_us(run.life, run.cut)
        given_up_us = sign_us + self._whole.failover_us + micros(run.life.header.tick_ms)
        if run.cut.at_us > sign_us:
            given_up_us = min(given_up_us, run.cut.at_us)
        return given_up_us if self._is_changed_within(sign_us, given_up_us) else sign_us

    def _is_changed_within(self, from_us: int, to_us: int) -> bool:
        """Whether a list that changed the task came then."""
        editions = self._whole.editions
        return any(
            from_us - TOLERANCE_US <= after.position.at_us <= to_us + TOLERANCE_US
            and before.regs.get(self._task) != after.regs.get(self._task)
            for before, after in pairwise(editions)
        )

    def _lose(self, run: Run, cut: Position, over_us: int) -> None:
        """The runner of an away run has died, or was lost: the holder of the shard will find out."""
        was_active = self._is_active
        self.is_wide |= run.life.is_heard_after(cut.at_us)
        if over_us > _last_sign_us(run.life, cut):
            # Given up before that list or after it: nobody knows. An end that may be lost says as much.
            self.is_wide = True
            self._put(RunEnd, over_us, cut, id=self._task, run=run.number, ok=True)
        self._crash(over_us, cut)
        if was_active:
            allowance_us = self._whole.failover_us + micros(run.life.header.tick_ms)
            self._mend_us, self._mend_line = over_us + allowance_us, cut.line

    def _mend_if(self, at_us: int) -> None:
        if self._mend_us is not None and self._mend_us <= at_us:
            self._activate(self._mend_us, self._mend_line)

    def _crash(self, at_us: int, source: Position) -> None:
        self._put(Crash, at_us, source)
        self._is_active, self._mend_us = False, None

    # --- positions ---

    def _put(self, kind: type[Any], at_us: int, source: Position | int, **facts: Any) -> None:
        """Write an event that stands for what is told in *source*; no event is older than the one before."""
        self._now_us = at_us = max(at_us, self._now_us)
        line = source if isinstance(source, int) else source.line
        if isinstance(source, Position):
            self.sources.setdefault(line, source)
        self.positions.append(Position(line, at_us, kind(t=at_us / 1000, **facts)))

    def _put_step(self, from_us: int, source: Position) -> None:
        """Write that the clock was set from *from_us* to the time of *source*."""
        event = ClockStep(t=source.at_us / 1000, origin=from_us / 1000)
        self.positions.append(Position(source.line, source.at_us, event))
        self.sources.setdefault(source.line, source)
        self._now_us = source.at_us


def _last_sign_us(life: Life, cut: Position) -> int:
    """When *life*, which was cut off at *cut*, last gave a sign: just then, unless it was frozen before."""
    is_death = life.died is not None and cut.line == life.died.line
    return cut.at_us if is_death else awake_us(life, cut.at_us)
