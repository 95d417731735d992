"""The witness: sees every callback and every commit of all programs, in one order, and objects.

It stands outside: it is told by the callbacks when they are called and how they end, and by the board what
was written. While the cluster lives it objects to three things: a callback that is called while another run
of the same task is in flight at a program that may still believe in its lease; a callback whose start is not
on the board; a commit by a member that does not hold the shard. What it has seen is judged afterwards
(`reckoning`).
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, NamedTuple

from duly.cluster.listing import Listing
from duly.core.record import COLUMNS, Record
from duly.core.registration import validated
from duly.instant import Instant
from duly.store.board import AwayEnd, Hold, Published, Row, Taken, shard_of
from duly.testing.simulation.cluster.plan import ClusterPlan
from duly.testing.simulation.cluster.sea import Sea
from duly.testing.simulation.cluster.world import World
from duly.testing.simulation.plan import Behaviour, Item, Items

if TYPE_CHECKING:
    from duly.testing.simulation.cluster.program import Program

_BEHAVES = (Behaviour(),)
_NAME, _CRON, _DELAY = COLUMNS.index("name"), COLUMNS.index("cron"), COLUMNS.index("retry_delay_us")


@dataclass(eq=False, slots=True)
class Run:
    """One call of a callback."""

    name: str
    program: "Program"
    member: int
    started_us: Instant
    """When its start was recorded, by the clock of its member: the name of the run on the board."""
    called_us: Instant
    """When it was called, by the clock of its member; so is `ended_us`."""
    ended_us: Instant | None = None
    ok: bool = False
    is_cut: bool = False
    """It was cancelled, or its program died."""
    is_durable: bool = False
    """Its end is on the board."""
    is_forgotten: bool = False
    """The board has forgotten something since it began."""
    committed: int = 0
    """How much had been seen when its start came onto the board."""
    is_vague: bool = False
    """Its member could not know how the run before it ended: that was not on the board."""

    @property
    def is_in_flight(self) -> bool:
        """Whether it has neither ended nor been cut off."""
        return self.ended_us is None and not self.is_cut


class _Commit(NamedTuple):
    """A start that is on the board and has not been carried out."""

    started_us: Instant
    committed: int
    is_vague: bool
    program: "Program"


@dataclass(frozen=True, slots=True)
class Called:
    """A callback was called."""

    run: Run


@dataclass(frozen=True, slots=True)
class Ended:
    """A run came to its end."""

    run: Run


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run was cut off."""

    run: Run


@dataclass(frozen=True, slots=True)
class Edition:
    """A list took effect, at *now_us* by the clock of whoever brought it, when these members were *alive*."""

    items: Items
    now_us: Instant
    alive: frozenset[int]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The board is what it was before; these are the tasks on it."""

    items: Items


@dataclass(frozen=True, slots=True)
class Served:
    """From here on the programs that could schedule have this list; None if there is none."""

    items: Items | None


Seen = Called | Ended | Stopped | Edition | Forgotten | Served


@dataclass(slots=True)
class History:
    """What was seen, in order, with the time of the board."""

    seen: list[tuple[Instant, Seen]] = field(default_factory=list)
    troubles: list[tuple[Instant, Instant]] = field(default_factory=list)
    """When something was wrong for everybody, or changed: from, until."""


async def _nothing() -> None:
    """A callback, for lists of which only the fingerprint matters."""


class Witness:
    """Sees everything."""

    def __init__(self, plan: ClusterPlan, world: World, sea: Sea) -> None:
        self._plan = plan
        self._world = world
        self._sea = sea
        self.shards = plan.shards
        self.is_healed = False
        self.history = History()
        self.objections: list[str] = []
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self._hash = hashlib.sha256()
        self._runs: dict[str, list[Run]] = {}
        self._numbers: Counter[str] = Counter()
        self._uncalled: dict[tuple[str, int], _Commit] = {}
        self.programs: list[Program] = []
        self._fingerprints = {_fingerprint(items): items for items in plan.lists}
        self.served: Items | None = None
        """The list that the programs have that could schedule."""
        self.slowest_failover_us = 0

    @property
    def hash(self) -> str:
        """The hash of everything seen."""
        return self._hash.hexdigest()

    def note(self, program: "Program | None", text: str) -> None:
        """Add a line to the story."""
        who = program.name if program is not None else "world"
        line = f"{self._world.now_us / 1e6:.6f} {who}: {text}"
        self.log.append(line)
        self._hash.update(line.encode())

    def object(self, text: str) -> None:
        """Say that something must not be."""
        self.objections.append(f"{text} (at {self._world.now_us / 1e6:.6f} s)")
        self.note(None, f"OBJECTION {text}")

    def _see(self, seen: Seen) -> None:
        self.history.seen.append((self._sea.now_us(), seen))

    # --- programs ---

    def trouble(self, for_us: int = 0) -> None:
        """Note that something changed, or goes wrong for so long."""
        now_us = self._sea.now_us()
        self.history.troubles.append((now_us, now_us + for_us))

    def note_health(self) -> None:
        """Look which list the programs have that could schedule."""
        able = [
            program
            for program in self.programs
            if program.is_up and not program.is_paused and self._sea.weather[program.host].is_fair
        ]
        newest = max((program.link.edition for program in able), default=0)
        lists = [self._plan.lists[each.items] for each in able if each.link.edition == newest]
        served = lists[0] if newest else None
        self.trouble()
        if served != self.served:
            self.served = served
            self._see(Served(served))

    def note_death(self, program: "Program") -> None:
        """A program is gone, and with it its runs."""
        self.note(program, "is dead")
        if program in self.programs:
            self.programs.remove(program)
        for run in self._in_flight():
            if run.program is program:
                self._cut(run)
        self.note_health()

    def note_dormant(self, program: "Program") -> None:
        """A program has been paused for longer than its lease: its runs are nobody's."""
        for run in self._in_flight():
            if run.program is program and not program.is_trusting:
                self._see(Stopped(run))

    def _in_flight(self) -> list[Run]:
        return [run for runs in self._runs.values() for run in runs[-4:] if run.is_in_flight]

    # --- callbacks ---

    def behaviour(self, name: str) -> Behaviour:
        """How the next run of *name* goes."""
        behaviours = self._plan.behaviours.get(name, _BEHAVES)
        behaviour = behaviours[self._numbers[name] % len(behaviours)]
        self._numbers[name] += 1
        return behaviour

    def note_called(self, program: "Program", name: str) -> Run:
        """A callback is called."""
        member = program.link.member
        commit = self._uncalled.pop((name, member), None)
        run = Run(name, program, member, 0, program.clock.now_us())
        if commit is not None:
            run.started_us, run.committed, run.is_vague, _ = commit
        if program.is_dead:
            run.is_cut = True
            return run
        self.note(program, f"calls {name}")
        self.counts["starts"] += 1
        if commit is None:
            self.object(f"{program.name} called {name}, and its start is not on the board")
        if not program.is_trusting:
            self.object(f"{program.name} called {name} when its lease could have run out")
        for other in self._runs.get(name, [])[-4:]:
            if other.is_in_flight and not self._is_excused(other, program):
                self.object(
                    f"{program.name} called {name} while {other.program.name} is running it, "
                    f"since {self._offset(other.called_us)}"
                )
        self._runs.setdefault(name, []).append(run)
        self._see(Called(run))
        return run

    def _is_excused(self, other: Run, program: "Program") -> bool:
        """Whether a run in flight elsewhere does not count: nobody there could still believe in it."""
        if other.program is program:
            return False
        return other.program.is_paused or not other.program.is_trusting

    def note_ended(self, run: Run, *, ok: bool) -> None:
        """A callback returned, or raised."""
        if run.program.is_dead or not run.is_in_flight:
            return
        run.ended_us, run.ok = run.program.clock.now_us(), ok
        self.note(run.program, f"{run.name} {'ended' if ok else 'failed'}")
        self.counts["ends" if ok else "failures"] += 1
        self._see(Ended(run))

    def note_cut(self, run: Run) -> None:
        """A callback was cancelled."""
        if not run.program.is_dead and run.is_in_flight:
            self._cut(run)

    def _cut(self, run: Run) -> None:
        run.is_cut = True
        self.note(run.program, f"{run.name} is cut off")
        self.counts["runs cut off"] += 1
        self._see(Stopped(run))

    # --- the board ---

    def note_done(self, program: "Program", kind: str, error: Exception | None) -> None:
        """The board has done something, or refused it."""
        if error is not None:
            self.counts[f"{kind} refused"] += 1
            self.note(program, f"{kind} refused: {type(error).__name__}")

    def note_published(self, program: "Program", fingerprint: str, published: Published) -> None:
        """A list was brought."""
        self.note(program, f"published {published}")
        if published.is_new:
            self.counts["editions"] += 1
            self.trouble()
            now_us, table = self._sea.now_us(), self._sea.table
            is_closed = table.since_us <= now_us < table.open_us
            alive = frozenset(
                member for member, seat in table.members.items() if is_closed or seat.lease_us > now_us
            )
            self._see(Edition(self._fingerprints[fingerprint], program.clock.now_us(), alive))

    def note_taken(
        self, program: "Program", member: int, taken: Taken, before: Sequence[tuple[int | None, int]]
    ) -> None:
        """Shards were taken."""
        now_us = self._sea.now_us()
        for hold in taken.holds:
            holder, term = before[hold.shard]
            if hold.term <= term:
                self.object(f"shard {hold.shard} was taken for term {hold.term} after term {term}")
            if holder in {None, member}:
                continue
            seat = self._sea.table.members.get(holder or 0)
            if seat is not None and seat.lease_us > now_us:
                self.object(f"shard {hold.shard} was taken from a member that is alive")
            self.counts["shards failed over"] += 1
            if seat is not None:
                self.slowest_failover_us = max(self.slowest_failover_us, now_us - seat.beaten_us)
        self.note(program, f"took {[tuple(hold) for hold in taken.holds]}")

    def is_held(self, member: int, holds: Mapping[Hold, int], rows: Sequence[Row]) -> bool:
        """Whether a write that is about to be made is fenced, and by holds that are good."""
        shards = self._sea.table.shards
        good = {
            hold.shard
            for hold, number in holds.items()
            if hold.shard < len(shards)
            and (shards[hold.shard].holder, shards[hold.shard].term) == (member, hold.term)
            and shards[hold.shard].number < number
        }
        return all(shard_of(row.task.name, len(shards)) in good for row in rows)

    def note_written(self, program: "Program", member: int, rows: Sequence[Row], *, is_held: bool) -> None:
        """Rows were written."""
        self.counts["writes"] += 1
        if not is_held:
            self.object(f"{program.name} wrote {[row.task.name for row in rows]} without holding the shards")
        for row in rows:
            name, since_us = row.task.name, row.task.running_since_us
            is_vague = self._is_vague(name, program)
            for run in self._runs.get(name, [])[-4:]:
                is_told = run.ended_us in {row.task.last_success_us, row.task.last_failure_us}
                if run.ended_us is not None and (run.program is program or is_told):
                    run.is_durable = True
            if since_us is None:
                self._uncalled.pop((name, member), None)
            elif row.run_by == member and not self._is_known(name, member, since_us):
                self._uncalled[name, member] = _Commit(since_us, len(self.history.seen), is_vague, program)

    def _is_vague(self, name: str, program: "Program") -> bool:
        """Whether a start now may be due to a run of another program: one without a known end, or a call."""
        last = self.last_run(name)
        lost = [
            key
            for key, commit in self._uncalled.items()
            if key[0] == name and commit.program is not program and not _is_trusting(commit.program, key[1])
        ]
        for key in lost:
            del self._uncalled[key]
        return bool(lost) or (
            last is not None
            and last.ended_us is not None
            and not last.is_durable
            and last.program is not program
        )

    def _is_known(self, name: str, member: int, since_us: Instant) -> bool:
        runs = self._runs.get(name, [])[-4:]
        return any((run.member, run.started_us) == (member, since_us) for run in runs)

    def note_reported(self, member: int, ends: Sequence[AwayEnd]) -> None:
        """Ends of away runs were reported."""
        self.counts["ends reported"] += len(ends)
        for end in ends:
            entry = self._sea.table.entries.get(end.task_id)
            if entry is not None and (entry.run_by, entry.started_us) == (member, end.started_us):
                for run in self._runs.get(entry.record[_NAME], [])[-4:]:
                    run.is_durable = run.is_durable or run.started_us == end.started_us

    def note_forgotten(self) -> None:
        """The board is what it was before."""
        self.counts["boards that forgot"] += 1
        for runs in self._runs.values():
            for run in runs:
                run.is_forgotten, run.is_durable = True, False
        self.trouble(self._plan.ttl_us)  # so long no shard changes hands
        self._see(Forgotten(self.stored_items()))

    def stored_items(self) -> Items:
        """The tasks on the board."""
        return tuple(item_of(entry.record) for entry in self._sea.table.entries.values())

    def last_run(self, name: str) -> Run | None:
        """The latest run of a task."""
        runs = self._runs.get(name)
        return runs[-1] if runs else None

    def _offset(self, at_us: Instant) -> str:
        return f"{(at_us - self._plan.start_us) / 1e6:.3f} s"


def _is_trusting(program: "Program", member: int) -> bool:
    """Whether a program may trust its lease under this number: it may have another by now."""
    return program.link.member == member and program.is_trusting


def item_of(record: Record) -> Item:
    """The registration that a row is of."""
    return Item(record[_NAME], record[_CRON], record[_DELAY])


def _fingerprint(items: Items) -> str:
    rows = [(item.name, item.cron, _nothing, timedelta(microseconds=item.delay_us)) for item in items]
    return Listing(validated(rows), UTC).fingerprint
