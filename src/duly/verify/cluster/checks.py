"""What only a cluster can do wrong (C1 to C6): holds and terms, and what members do to each other.

Each check is its own sentence and uses no more than it needs. None of them knows the dues of a task.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

from duly.verify.cluster.lives import (
    TOLERANCE_US,
    Activity,
    Ending,
    Life,
    Published,
    Run,
    Tenure,
    shard_of,
)
from duly.verify.cluster.whole import Whole
from duly.verify.objections import Objections
from duly.verify.trace import Position, RunStart
from duly.verify.wording import seconds

_MOST_FREE = 1_000
"""Shards that nobody ever took are all alike: so many of them stand for a million that a header may name."""


class Checks:
    """Looks at one cluster."""

    def __init__(self, whole: Whole, objections: Objections) -> None:
        self._whole = whole
        self._words = whole.words
        self._objections = objections
        self._tallies = objections.outcome.tallies
        self._changes = [(each.life, each.from_us) for each in whole.activities]
        self._changes += [
            (each.life, each.to_us if each.to_us is not None else each.life.last.at_us)
            for each in whole.activities
            if not each.is_stopped
        ]
        """When members became able to hold shards, and when they were not any more without saying so."""
        told = (each for each in whole.editions if each.is_told)
        self._told = sorted(told, key=lambda each: each.position.at_us)
        self._newest = list(accumulate(self._told, _newer))
        """Of each in *_told* and those before it the newest."""

    def run(self) -> None:
        """Make all of them."""
        for shard, tenures in sorted(self._whole.tenures.items()):
            self._look_at_terms(shard, tenures)
        taken = self._whole.tenures
        free = (shard for shard in range(self._whole.shards) if shard not in taken)
        for shard in (*(each for each in taken if each < self._whole.shards), *islice(free, _MOST_FREE)):
            self._look_at_gaps(shard, taken.get(shard, []))
        for task, runs in self._whole.runs.items():
            for run in runs:
                if not run.is_from_before:
                    self._look_at_hold(run)
                    self._look_at_edition(run)
            self._look_at_overlaps(task, runs)

    def _object(
        self, name: str, task: str | None, item: Position, reason: str, *others: Position | None
    ) -> None:
        self._objections.object_to(name, task, item.at_us, reason, (*others, item), line=item.line)

    # --- C1, C2: terms ---

    def _look_at_terms(self, shard: int, tenures: Sequence[Tenure]) -> None:
        for tenure, following in pairwise(tenures):
            taken = f"shard {shard} was taken by {_name(following)} at {self._time(following.taken)}"
            self._tallies["C1"].checked += 1
            if following.is_anew:
                # Another server answers, and if it forgot some terms they come twice.
                if following.term <= tenure.term:
                    self._tallies["C1"].unknown += 1
                    self._tallies["C2"].unknown += 1
                continue
            if tenure.term == following.term:
                reason = (
                    f"{taken} for term {following.term}, which {_name(tenure)} "
                    f"had taken at {self._time(tenure.taken)}"
                )
                self._object("C1", None, following.taken, reason, tenure.taken)
                continue
            self._tallies["C2"].checked += 1
            if self._is_out_of_order(tenure, following):
                reason = (
                    f"{taken} for term {following.term}, and by {_name(tenure)} "
                    f"for term {tenure.term} only at {self._time(tenure.taken)}"
                )
                self._object("C2", None, tenure.taken, reason, following.taken)

    def _is_out_of_order(self, tenure: Tenure, following: Tenure) -> bool:
        if tenure.life is following.life:
            return following.taken.line < tenure.taken.line
        is_set_back = tenure.life.is_set_back or following.life.is_set_back
        return not is_set_back and following.taken.at_us + TOLERANCE_US < tenure.taken.at_us

    # --- C3: holds ---

    def _look_at_hold(self, run: Run) -> None:
        self._tallies["C3"].checked += 1
        shard, event = shard_of(run.task, self._whole.shards), run.start.event
        assert isinstance(event, RunStart)
        started = f"{run.task!r} was started by {run.life.member!r} at {self._time(run.start)}"
        if event.shard is not None and event.shard != shard:
            reason = f"{started} as of shard {event.shard}, and belongs to shard {shard}"
            self._object("C3", run.task, run.start, reason)
        elif run.tenure is None:
            last = max(
                (each for each in self._whole.tenures.get(shard, ()) if _is_before(each, run)),
                default=None,
                key=lambda each: each.taken.line,
            )
            how = f": it had {_how(last)} at {self._time(last.ended)}" if last and last.ended else ""
            reason = f"{started}, which did not hold shard {shard}{how}"
            self._object("C3", run.task, run.start, reason, last.ended if last else None)
        elif run.is_stale:
            next_ = run.tenure.next
            assert next_ is not None
            if next_.is_anew:
                self._tallies["C3"].unknown += 1
                return
            reason = (
                f"{started}, which did not hold shard {shard} any more: {_name(next_)} "
                f"had taken it at {self._time(next_.taken)}"
            )
            self._object("C3", run.task, run.start, reason, next_.taken)

    # --- C4: overlaps ---

    def _look_at_overlaps(self, task: str, runs: Sequence[Run]) -> None:
        flying: list[Run] = []
        for run in sorted(runs, key=lambda each: each.start.at_us):
            at_us = run.start.at_us
            self._tallies["C4"].checked += 1
            flying = [other for other in flying if self._until_us(other, at_us) > at_us + TOLERANCE_US]
            other = next((each for each in flying if each.life is not run.life), None)
            if other is not None:
                reason = (
                    f"{task!r} was started by {run.life.member!r} at {self._time(run.start)} while its run "
                    f"of {self._time(other.start)} was in flight at {other.life.member!r}"
                )
                self._object("C4", task, run.start, reason, other.start)
            flying.append(run)

    def _until_us(self, run: Run, at_us: int) -> int:
        """Up to when *run* was in flight, as far as others could know at *at_us*."""
        untils = [at.at_us for at in (run.end, run.cut) if at is not None]
        if run.tenure is not None and run.tenure.cut_us is not None:
            untils.append(run.tenure.cut_us)
        until_us = min(untils, default=2**62)
        is_given_up = until_us > at_us and self._whole.is_out_of_sight(run.life, at_us)
        return at_us if is_given_up else until_us

    # --- C5: gaps ---

    def _look_at_gaps(self, shard: int, tenures: Sequence[Tenure]) -> None:
        if not self._whole.failover_us or self._whole.is_partial:
            return
        for gap in _gaps(self._whole, tenures):
            self._tallies["C5"].checked += 1
            bound_us = self._whole.failover_us + TOLERANCE_US
            idle = [
                (activity, from_us, to_us)
                for activity in self._whole.activities
                for from_us, to_us in (self._common(gap, activity),)
                if to_us - from_us > bound_us
            ]
            certain = next((each for each in idle if self._is_certain(gap, *each)), None)
            if certain is not None:
                self._object_to_gap(shard, gap, *certain)
            elif idle:
                self._tallies["C5"].unknown += 1

    def _is_certain(self, gap: "_Gap", activity: Activity, from_us: int, to_us: int) -> bool:
        """Whether nothing known can have kept *activity*'s member from taking the shard, for long enough.

        Any member may have been frozen for a tick. The last holder may have renewed its lease unawares; so
        may another member that hears nothing, and what is free is kept for it. And whenever one comes or
        goes the shares are reckoned anew.
        """
        if self._whole.tick_us is None:
            return False
        bound_us = self._whole.failover_us + TOLERANCE_US + self._whole.tick_us
        from_us = max(from_us, gap.certain_us)
        changes = (at_us for life, at_us in self._changes if life is not activity.life)
        times = sorted({from_us, *(at_us for at_us in changes if from_us < at_us < to_us), to_us})
        others = [life for life in self._whole.lives if life is not activity.life]
        return any(
            after - before > bound_us and all(_unheard_until_us(life, before) <= before for life in others)
            for before, after in pairwise(times)
        )

    def _common(self, gap: "_Gap", activity: Activity) -> tuple[int, int]:
        """The time in which *activity*'s member could have taken the shard in the *gap*."""
        last_us = activity.to_us if activity.to_us is not None else activity.life.last.at_us
        from_us, to_us = max(gap.from_us, activity.from_us), min(gap.to_us, last_us)
        told = bisect_left(self._told, to_us, key=lambda each: each.position.at_us)
        if told:
            newest = self._newest[told - 1]
            from_us = max(from_us, newest.position.at_us)
            if newest.regs != activity.regs:
                return to_us, to_us
        return from_us, to_us

    def _object_to_gap(self, shard: int, gap: "_Gap", activity: Activity, from_us: int, to_us: int) -> None:
        what = f"shard {shard} had no living holder from {self._words.time(gap.from_us)} on ({gap.why})"
        until = f"until {self._words.time(gap.to_us)}" if gap.following else "to the end"
        reason = (
            f"{what} {until}, and {activity.life.member!r} could have taken it for {seconds(to_us - from_us)}"
        )
        item = gap.following.taken if gap.following is not None else activity.life.last
        evidence = [each for each in (gap.before, item) if each is not None]
        self._objections.object_to("C5", None, gap.from_us, reason, evidence, line=item.line)

    # --- C6: editions ---

    def _look_at_edition(self, run: Run) -> None:
        tenure = run.tenure
        own = self._whole.edition(tenure.list_key) if tenure is not None else None
        if own is None:
            return
        self._tallies["C6"].checked += 1
        at_us = run.start.at_us - TOLERANCE_US
        newest = _newest([each for each in self._whole.editions if each.reign == own.reign], at_us)
        if newest is None or newest.number <= own.number:
            return
        registration = newest.regs.get(run.task)
        if registration != own.regs.get(run.task):
            is_slow = newest.position.at_us > at_us - self._whole.failover_us
            if is_slow or tenure in self._whole.doubtful:
                # It may have been written before, or a list had brought it back of which nobody told.
                self._tallies["C6"].unknown += 1
                return
            became = "removed" if registration is None else "changed"
            reason = (
                f"{run.task!r} was started by {run.life.member!r} at {self._time(run.start)} as edition "
                f"{own.number} has it; edition {newest.number} had {became} it at "
                f"{self._time(newest.position)}"
            )
            self._object("C6", run.task, run.start, reason, newest.position)

    def _time(self, item: Position) -> str:
        return self._words.time(item.at_us)


class _Gap(NamedTuple):
    """A time in which a shard has no living holder."""

    from_us: int
    to_us: int
    why: str
    before: Position | None
    following: Tenure | None
    certain_us: int
    """From when on the last holder cannot have renewed its lease without hearing of it."""


def _gaps(whole: Whole, tenures: Sequence[Tenure]) -> Iterator[_Gap]:
    first = next((each for each in whole.editions if each.is_told), None)
    if first is not None and (not tenures or first.position.at_us < tenures[0].taken.at_us):
        to_us = tenures[0].taken.at_us if tenures else whole.horizon_us
        why = f"edition {first.number} was published"
        from_us, following = first.position.at_us, tenures[0] if tenures else None
        yield _Gap(from_us, to_us, why, first.position, following, from_us)
    for tenure in tenures:
        following = tenure.next
        to_us = following.taken.at_us if following is not None else whole.horizon_us
        if (gap := _gap_after(whole, tenure, to_us)) is not None and gap.from_us < to_us:
            yield gap


def _gap_after(whole: Whole, tenure: Tenure, to_us: int) -> _Gap | None:
    life, following, ended = tenure.life, tenure.next, tenure.ended
    if tenure.ending in {Ending.GIVEN, Ending.LOST}:
        assert ended is not None
        why, certain_us = f"{life.member!r} had {_how(tenure)}", _unheard_until_us(life, ended.at_us)
        return _Gap(ended.at_us, to_us, why, ended, following, certain_us)
    if tenure.ending is Ending.OPEN:
        newer = (each for each in whole.editions if each.is_told and each.key > tenure.list_key)
        edition = next((each for each in newer if each.position.at_us > tenure.taken.at_us), None)
        if edition is not None and edition.position.at_us < to_us:
            why = f"edition {edition.number} was published"
            from_us = edition.position.at_us
            return _Gap(from_us, to_us, why, edition.position, following, from_us)
    dead_us = whole.silent_us(life)
    if dead_us is None or (tenure.ending is Ending.OPEN and life.is_heard_after(to_us)):
        return None
    why = f"nothing was heard of {life.member!r} any more"
    return _Gap(dead_us, to_us, why, life.last, following, dead_us)


def _unheard_until_us(life: Life, at_us: int) -> int:
    """Until when *life* may have renewed its lease unawares: its requests arrive, and no answer does."""
    for from_us, to_us in life.out_of_touch:
        if from_us <= at_us + TOLERANCE_US and (to_us is None or to_us >= at_us):
            return to_us if to_us is not None else life.last.at_us
    return at_us


def _newest(editions: Sequence[Published], at_us: int) -> Published | None:
    told = [each for each in editions if each.is_told and each.position.at_us < at_us]
    return max(told, default=None, key=lambda each: each.number)


def _newer(one: Published, other: Published) -> Published:
    return max(one, other, key=lambda each: (each.key, each.position.at_us))


def _is_before(tenure: Tenure, run: Run) -> bool:
    return tenure.life is run.life and tenure.taken.line < run.start.line


def _how(tenure: Tenure) -> str:
    return "given it up" if tenure.ending is Ending.GIVEN else "lost it"


def _name(tenure: Tenure) -> str:
    return repr(tenure.life.member)
