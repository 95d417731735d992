"""What only a cluster can do wrong (C1 to C6): holds and terms, and what members do to each other.

Each check is its own sentence and uses no more than it needs. None of them knows the dues of a task.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from duly.verify.cluster.reading import TOLERANCE_US, Activity, Ending, Published, Run, Tenure, shard_of
from duly.verify.cluster.whole import Whole
from duly.verify.objections import Objections
from duly.verify.trace import Position, RunStart
from duly.verify.wording import seconds


class Checks:
    """Looks at one cluster."""

    def __init__(self, whole: Whole, objections: Objections) -> None:
        self._whole = whole
        self._words = whole.words
        self._objections = objections
        self._tallies = objections.outcome.tallies

    def run(self) -> None:
        """Make all of them."""
        for shard, tenures in sorted(self._whole.tenures.items()):
            self._look_at_terms(shard, tenures)
        for shard in range(self._whole.shards):
            self._look_at_gaps(shard, self._whole.tenures.get(shard, []))
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
            for activity in self._whole.activities:
                from_us, to_us = self._common(gap, activity)
                if to_us - from_us > bound_us:
                    self._object_to_gap(shard, gap, activity, from_us, to_us)
                    break

    def _common(self, gap: "_Gap", activity: Activity) -> tuple[int, int]:
        """The time in which *activity*'s member could have taken the shard in the *gap*."""
        last_us = activity.to_us if activity.to_us is not None else activity.life.last.at_us
        from_us, to_us = max(gap.from_us, activity.from_us), min(gap.to_us, last_us)
        told = [each for each in self._whole.editions if each.is_told and each.position.at_us < to_us]
        if told:
            newest = max(told, key=lambda each: (each.number, each.position.at_us))
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
        own = self._whole.edition(tenure.edition) if tenure is not None else None
        if own is None:
            return
        self._tallies["C6"].checked += 1
        newest = _newest(self._whole.editions, run.start.at_us - TOLERANCE_US)
        if newest is None or newest.number <= own.number:
            return
        registration = newest.regs.get(run.task)
        if registration != own.regs.get(run.task):
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


def _gaps(whole: Whole, tenures: Sequence[Tenure]) -> Iterator[_Gap]:
    first = next((each for each in whole.editions if each.is_told), None)
    if first is not None and (not tenures or first.position.at_us < tenures[0].taken.at_us):
        to_us = tenures[0].taken.at_us if tenures else whole.horizon_us
        why = f"edition {first.number} was published"
        yield _Gap(first.position.at_us, to_us, why, first.position, tenures[0] if tenures else None)
    for tenure in tenures:
        following = tenure.next
        to_us = following.taken.at_us if following is not None else whole.horizon_us
        if (gap := _gap_after(whole, tenure, to_us)) is not None and gap.from_us < to_us:
            yield gap


def _gap_after(whole: Whole, tenure: Tenure, to_us: int) -> _Gap | None:
    life, following, ended = tenure.life, tenure.next, tenure.ended
    if tenure.ending in {Ending.GIVEN, Ending.LOST}:
        assert ended is not None
        return _Gap(ended.at_us, to_us, f"{life.member!r} had {_how(tenure)}", ended, following)
    if tenure.ending is Ending.OPEN:
        newer = (each for each in whole.editions if each.is_told and each.number > tenure.edition)
        edition = next((each for each in newer if each.position.at_us > tenure.taken.at_us), None)
        if edition is not None and edition.position.at_us < to_us:
            why = f"edition {edition.number} was published"
            return _Gap(edition.position.at_us, to_us, why, edition.position, following)
    dead_us = whole.silent_us(life)
    if dead_us is None or (tenure.ending is Ending.OPEN and life.is_heard_after(to_us)):
        return None
    return _Gap(dead_us, to_us, f"nothing was heard of {life.member!r} any more", life.last, following)


def _newest(editions: Sequence[Published], at_us: int) -> Published | None:
    told = [each for each in editions if each.is_told and each.position.at_us < at_us]
    return max(told, default=None, key=lambda each: each.number)


def _is_before(tenure: Tenure, run: Run) -> bool:
    return tenure.life is run.life and tenure.taken.line < run.start.line


def _how(tenure: Tenure) -> str:
    return "given it up" if tenure.ending is Ending.GIVEN else "lost it"


def _name(tenure: Tenure) -> str:
    return repr(tenure.life.member)
