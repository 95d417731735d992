"""What the traces of a cluster tell to who draws them: holds, deaths, failovers, lists, and runs by member.

As for a single trace this is for drawing, not for judging: what members recorded is told as they recorded it,
by the clock of the board, also where it is wrong. The order of tenures, and how each ended, is that of terms.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import chain, zip_longest

from duly.verify.cluster.lives import Ending, Life, Run, Tenure
from duly.verify.cluster.whole import Whole
from duly.verify.reporting.history import Kind, Registration, Stretch, dues_of, why_again
from duly.verify.reporting.members import Biography, Failover, Level, counted_over
from duly.verify.trace import Position, RunStart, zone_of

_TOGETHER_US = 2_000_000
"""Shards that a member takes from the same other within this time are one failover."""


class Holding:
    """One cluster, to be drawn."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.dead = whole.dead
        zone = zone_of(whole.tz)
        self._schedule = lru_cache(maxsize=1000)(lambda cron: dues_of(cron, zone))

    # --- shards ---

    def holds(self, shard: int) -> list[Stretch]:
        """Who held a shard when, in the order of terms."""
        return [_hold(tenure) for tenure in self.whole.tenures.get(shard, ())]

    @cached_property
    def levels(self) -> dict[str, list[Level]]:
        """How many shards each member held."""
        spans: dict[str, list[tuple[int, int]]] = {member: [] for member in self.lives}
        for tenure in self._tenures():
            spans[tenure.life.member].append((tenure.taken.at_us, held_until_us(tenure)))
        return {member: counted_over(held) for member, held in spans.items()}

    @cached_property
    def free(self) -> list[Level]:
        """How many shards had no living holder, while anything was recorded."""
        spans: list[tuple[int, int]] = []
        for tenures in self.whole.tenures.values():
            until_us = min(tenure.taken.at_us for tenure in tenures)
            for tenure in sorted(tenures, key=lambda each: each.taken.at_us):
                to_us = self.whole.horizon_us if self._is_going_on(tenure) else held_until_us(tenure)
                spans.append((max(tenure.taken.at_us, until_us), to_us))
                until_us = max(until_us, to_us)
        first_us = min((life.born_us for life in self.whole.lives), default=0)
        shards, last_us = self.whole.shards, self.whole.horizon_us
        held = (each for each in counted_over(spans) if each.at_us < last_us)
        free = (Level(at_us, shards - count) for at_us, count in held)
        return [Level(first_us, shards), *free, Level(last_us, 0)]

    def _is_going_on(self, tenure: Tenure) -> bool:
        """Whether nothing speaks against it but that the trace of its member ends before those of others."""
        is_open = tenure.ending is Ending.OPEN and tenure.next is None
        return is_open and not self._is_silent(tenure.life)

    def _is_silent(self, life: Life) -> bool:
        silent_us = self.whole.silent_us(life)
        return silent_us is not None and silent_us < self.whole.horizon_us

    @cached_property
    def failovers(self) -> list[Failover]:
        """Who took what others had lost; shards that changed hands together are one."""
        lost = [tenure for tenure in self._tenures() if tenure.origin == "lost"]
        found: list[Failover] = []
        places: dict[tuple[str, str], int] = {}
        for tenure in sorted(lost, key=lambda each: each.taken.at_us):
            failover = _failover(tenure)
            pair = failover.member, failover.other
            known = found[places[pair]] if pair in places else None
            if known is not None and failover.taken_us - known.taken_us <= _TOGETHER_US:
                lost_us = min(known.lost_us, failover.lost_us)
                found[places[pair]] = known._replace(shards=known.shards + 1, lost_us=lost_us)
            else:
                places[pair] = len(found)
                found.append(failover)
        return found

    def _tenures(self) -> Iterator[Tenure]:
        return chain.from_iterable(self.whole.tenures.values())

    # --- members ---

    @cached_property
    def lives(self) -> dict[str, list[Life]]:
        """The processes of each member, in the order of their first signs."""
        lives: dict[str, list[Life]] = defaultdict(list)
        for life in sorted(self.whole.lives, key=lambda each: each.born_us):
            lives[life.member].append(life)
        return dict(lives)

    def marks(self, member: str) -> Iterator[Stretch]:
        """What befell a member."""
        for life in self.lives[member]:
            born_us, last = life.born_us, life.last
            words = f"{member} is alive"
            yield Stretch(Kind.ALIVE, None, born_us, last.at_us, life.first.line, last.line, words)
            for kind, spans in ((Kind.UNREACHABLE, life.out_of_touch), (Kind.SILENT, life.silences())):
                for begun_us, until_us in spans:
                    to_us = max(last.at_us if until_us is None else until_us, born_us)
                    from_us = begun_us if born_us <= begun_us <= to_us else born_us  # the clock was set
                    yield Stretch(kind, None, from_us, to_us, 0, 0, f"{member}: {kind.value}")
            for line, at_us, _ in life.steps:
                yield Stretch(Kind.STEP, None, at_us, at_us, line, line, f"the clock of {member} was set")
            if life in self.dead:
                yield _death(life)
            elif self._is_silent(life):
                words = f"nothing is heard of {member} any more"
                yield Stretch(Kind.SILENT, None, last.at_us, self.whole.horizon_us, 0, 0, words)
        for at_us in self._stops_us(member):
            yield Stretch(Kind.STOP, None, at_us, at_us, 0, 0, f"{member} was told to stop")

    def _stops_us(self, member: str) -> Iterator[int]:
        """When a member was told to stop; at its end if nothing is known but that it did."""
        for life in self.lives[member]:
            yield from self._stopped.get(life, [life.last.at_us] if life.is_stopped else [])

    @cached_property
    def _stopped(self) -> dict[Life, list[int]]:
        stops: dict[Life, list[int]] = defaultdict(list)
        for activity in self.whole.activities:
            if activity.is_stopped and activity.to_us is not None:
                stops[activity.life].append(activity.to_us)
        return stops

    def biographies(self) -> Iterator[Biography]:
        """Each member in a few words, in the order of their first signs."""
        runs = chain.from_iterable(self.whole.runs.values())
        starts = Counter(run.life.member for run in runs if not run.is_from_before)
        taken: Counter[str] = Counter()
        for failover in self.failovers:
            taken[failover.member] += failover.shards
        for member, lives in self.lives.items():
            yield Biography(
                member,
                lives[0].born_us,
                max(life.last.at_us for life in lives),
                len(lives),
                starts[member],
                max((level.number for level in self.levels[member]), default=0),
                taken[member],
                self._ending(lives[-1]),
            )

    def _ending(self, life: Life) -> str:
        if life in self.dead:
            return "died"
        if life.is_stopped:
            return "stopped"
        return "not heard of again" if self._is_silent(life) else "alive at the end"

    # --- what concerns all ---

    def times_us(self) -> Iterator[int]:
        """When anything happened that is drawn; not what a clock showed that was wrong and then set."""
        for life in self.whole.lives:
            yield life.born_us
            yield life.last.at_us
        yield from (tenure.taken.at_us for tenure in self._tenures())
        yield from (run.start.at_us for run in chain.from_iterable(self.whole.runs.values()))
        yield from (edition.position.at_us for edition in self.whole.editions)

    def crossings(self) -> Iterator[Stretch]:
        """Lists that take effect, deaths, other servers of the database, traces that are at fault."""
        for edition in self.whole.editions:
            if edition.is_told:
                number, by = edition.number, edition.life.member
                words = f"edition {number} takes effect, brought by {by}, {len(edition.regs):,} tasks"
                yield _at(Kind.EDITION, edition.position, words, f"edition {number}")
        yield from (_death(life) for life in self.dead)
        for reign in range(1, self.whole.reigns):
            answers = [each.taken for each in self._tenures() if each.reign == reign]
            if answers:
                first = min(answers, key=lambda each: each.at_us)
                yield _at(Kind.SERVER, first, "another server of the database answers")
        for recording in self.whole.recordings:
            if (at_us := recording.fault_us) is not None:
                words = f"the trace of {recording.header.member} is at fault"
                yield Stretch(Kind.FAULT, None, at_us, at_us, 0, 0, words)

    # --- tasks ---

    def registrations(self, task: str) -> list[Registration]:
        """From when to when a task was in the newest list, with which cron text."""
        found: list[Registration] = []
        editions = self.whole.editions
        for edition, following in zip_longest(editions, editions[1:]):  # there may be none at all
            from_us = edition.position.at_us
            to_us = following.position.at_us if following is not None else self.whole.horizon_us
            cron, _ = edition.regs.get(task, ("", 0.0))
            if found and found[-1].cron == cron and found[-1].to_us >= from_us:
                found[-1] = found[-1]._replace(to_us=max(to_us, from_us))
            elif cron and to_us >= from_us:
                found.append(Registration(task, cron, from_us, to_us))
        return found

    def runs(self, task: str) -> Iterator[Stretch]:
        """The runs of a task, by whichever members."""
        registrations = self.registrations(task)
        before: tuple[Kind, int] | None = None
        for run in sorted(self.whole.runs.get(task, ()), key=lambda each: each.start.at_us):
            kind, end = self._end(run)
            at_us, to_us = run.start.at_us, max(run.start.at_us, end.at_us)
            crons = [each.cron for each in registrations if each.from_us <= at_us]
            dues = self._schedule(crons[-1]) if crons else None
            why = why_again(*before, at_us, dues) if before is not None else ""
            words = ", ".join(filter(None, (_named(run), why)))
            line, member, is_again = run.start.line, run.life.member, bool(why)
            yield Stretch(kind, task, at_us, to_us, line, end.line, words, is_again=is_again, member=member)
            before = kind, to_us

    def _end(self, run: Run) -> tuple[Kind, Position]:
        """How a run ended, and where that is told."""
        if run.end is not None:
            return Kind.SUCCEEDED if run.is_ok else Kind.FAILED, run.end
        died = run.life.died
        if run.cut is not None and (died is None or run.cut.line != died.line):
            return Kind.LOST, run.cut
        return Kind.CUT if run.life in self.dead else Kind.UNFINISHED, run.life.last


def held_until_us(tenure: Tenure) -> int:
    """Up to when its member held the shard, and gave a sign."""
    last_us, following = tenure.life.last.at_us, tenure.next
    ended_us = tenure.ended.at_us if tenure.ended is not None else last_us
    until_us = min(tenure.cut_us if tenure.cut_us is not None else ended_us, last_us)
    if following is not None and following.term != tenure.term:
        until_us = min(until_us, following.taken.at_us)
    return max(until_us, tenure.taken.at_us)


def _hold(tenure: Tenure) -> Stretch:
    taken, ended, member = tenure.taken, tenure.ended or tenure.taken, tenure.life.member
    words = f"shard {tenure.shard} held by {member} for term {tenure.term}"
    to_us = held_until_us(tenure)
    return Stretch(Kind.HELD, None, taken.at_us, to_us, taken.line, ended.line, words, member=member)


def _failover(tenure: Tenure) -> Failover:
    before, at_us = tenure.before, tenure.taken.at_us
    other = before.life.member if before is not None else ""
    lost_us = held_until_us(before) if before is not None else at_us
    return Failover(tenure.life.member, other, lost_us, at_us, 1, tenure.taken.line)


def _death(life: Life) -> Stretch:
    words = f"{life.member} died; this is its last sign"
    return _at(Kind.CRASH, life.last, words, f"{life.member} died")


def _at(kind: Kind, position: Position, words: str, label: str = "") -> Stretch:
    line, at_us, _ = position
    return Stretch(kind, None, at_us, at_us, line, line, words, label=label)


def _named(run: Run) -> str:
    """A run as its member counts it."""
    event = run.start.event
    assert isinstance(event, RunStart)
    number = "" if event.run is None else f" {event.run}"
    begun = ", begun before the trace" if run.is_from_before else ""
    return f"run{number} by {run.life.member}{begun}"
