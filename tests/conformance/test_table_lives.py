"""The model and the SQL are one table: whatever they are asked, at random, they give the same answers.

The simulation judges the protocol on the model. So what it finds right is right with PostgreSQL, too.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from random import Random
from typing import Any

import msgspec
import pytest

from duly.cluster import table as t
from tests.conformance.table_suite import LEASE_US, NOW_US, World, record
from tests.conformance.test_tables import PostgresWorld
from tests.worlds.model_table import ModelDatabase

replace = msgspec.structs.replace
NAMES, NODES, LENGTH, SEEDS = "abcde", 5, 120, 12


class AmbiguousError(Exception):
    """Of rows that are due since the same time, each table has claimed others."""


class Twins:
    """A model, and another table that is asked the same."""

    def __init__(self, model: ModelDatabase, other: World) -> None:
        self.model, self._other = model.table(), other.table()
        self.worlds: tuple[ModelDatabase, World] = model, other
        self._ids: dict[int, int] = {}
        """The row of the other by that of the model."""

    def ask(self, request: t.TableRequest[t.A]) -> t.A:
        """What both answer."""
        ours, theirs = self.model.do(request), self._other.do(self._translated(request))
        assert plain(self._ours(request, ours, theirs)) == plain(theirs), f"{request}\n{ours}\n{theirs}"
        return ours

    def _translated(self, request: Any) -> Any:
        changes: dict[str, Any] = {
            part: [replace(end, id=self._ids[end.id]) for end in getattr(request, part)]
            for part in ("kept", "ends", "cut", "remembered")
            if hasattr(request, part)
        }
        if isinstance(request, t.Claim):
            changes["also"] = [self._ids[row] for row in request.also]
        if isinstance(request, t.TakeRoom):
            changes["rooms"] = [room._replace(id=self._ids[room.id]) for room in request.rooms]
        return replace(request, **changes)

    def _ours(self, request: Any, ours: Any, theirs: Any) -> Any:
        """The answer of the model in the ids of the other."""
        if isinstance(ours, t.Work):
            mine, its = (sorted(work.claimed, key=lambda row: row.name) for work in (ours, theirs))
            if [row.name for row in mine] == [row.name for row in its]:
                self._ids |= {one.id: two.id for one, two in zip(mine, its, strict=True)}
            elif request.wanted or sorted(row.wake_us for row in mine) == sorted(row.wake_us for row in its):
                raise AmbiguousError
            return ours._replace(written=[self._ids[row] for row in ours.written])
        is_ids = isinstance(ours, list) and all(type(row) is int for row in ours)
        return [self._ids[row] for row in ours] if is_ids else ours


def plain(answer: Any) -> Any:
    """An answer without what a table is free in: ids, the name of a server, the order of most rows."""
    match answer:
        case t.Pulse():
            lists = {"peers": sorted(answer.peers), "cancelled": sorted(answer.cancelled)}
            server = answer.server.removeprefix("server ")
            return answer._asdict() | lists | {"server": server, "busy": dict(answer.busy)}
        case t.Work(seq=None):
            return sorted(answer.written), sorted(row.name for row in answer.claimed)
        case t.Work():
            rows = sorted((replace(row, id=0) for row in answer.claimed), key=lambda row: row.name)
            return answer._replace(written=sorted(answer.written), claimed=rows)
        case t.Returned():
            return sorted(name for name, _ in answer.kept), answer.has_forgotten
        case t.ListOutcome():
            return [sorted(part) if isinstance(part, Sequence) else part for part in answer]
        case t.Nodes():
            return answer.now_us, sorted(node._replace(runs=sorted(node.runs)) for node in answer.all)
        case tuple() | str():
            return answer
        case [t.PastRun(), *_]:
            # What one request has written of several tasks has no order.
            return sorted((row[1:] for row in answer), key=lambda row: row[0])
        case [t.Listed(), *_]:
            return sorted(row[1:] for row in answer)
        case [int(), *_] | [t.Taken(), *_]:
            return sorted(answer)
    return list(answer) if isinstance(answer, Sequence) else answer


class Life:
    """Random requests of a few nodes that do right and wrong."""

    def __init__(self, twins: Twins, rng: Random) -> None:
        self._ask, self._twins, self._rng = twins.ask, twins, rng
        self._worlds = twins.worlds
        self._last = 0
        self._nodes: list[int] = []
        self._acked: dict[int, int] = {}
        self._claimed: list[t.Claimed] = []
        self._kept: tuple[list[Any], list[t.Claimed]] | None = None
        self.join()

    @property
    def _now_us(self) -> int:
        return self._worlds[0].now_us

    def step(self) -> None:
        """Ask something."""
        often = (
            [self.claim] * 12 + [self.beat] * 4 + [self.one_row] * 5 + [self.reconcile, self.take_room] * 3
        )
        seldom = [self.fence, self.come_back, self.look, self.time] * 2 + [self.join, self.leave]
        self._rng.choice(often + seldom)()
        if self._rng.random() < 0.3:
            self._ask(t.ReadTasks())

    def _some(self, items: Sequence[Any]) -> list[Any]:
        return [item for item in items if self._rng.random() < 0.4]

    def _node(self) -> int:
        return self._rng.choice(self._nodes)

    def _new_node(self) -> int:
        self._last += 1
        self._nodes = [*self._nodes[-NODES:], self._last]
        self._acked[self._last] = 0
        return self._last

    def _ends(self, *, is_run: bool = True) -> list[t.RowEnd]:
        """Ends of runs, of late ones mostly; each row once."""
        rng, ends = self._rng, dict[str, t.RowEnd]()
        for row in self._some(self._claimed[-6:]):
            state = rng.choice([None, "after", "later"]) if is_run else "kept"
            end = row.end(state, self._now_us + rng.randrange(5) * 7, rng.choice([row.request, None]))
            if state and is_run and rng.random() < 0.5:
                end = replace(end, run=record(len(ends), output="x", ended_us=self._now_us))
            ends[row.name] = replace(end, token=row.token + (rng.random() < 0.1))
        return list(ends.values())

    def join(self) -> None:
        node = self._new_node()
        pulse = self._ask(t.Join(node=node, name=f"n{node}", lease_us=LEASE_US, version="1"))
        self._acked[node] = pulse.seq or 0

    def beat(self) -> None:
        node, rng = self._node(), self._rng
        acked = self._acked[node] + rng.choice([0, 0, 0, 0, 3])
        gen, kinds = rng.choice([0, 2, 3, 99]), self._some(["mail"])
        pulse = self._ask(t.Heartbeat(node=node, acked=acked, gen=gen, kinds=kinds, lag_us=rng.randrange(3)))
        self._acked[node] = max(self._acked[node], pulse.seq or 0)

    def claim(self) -> None:
        node, rng, now_us = self._node(), self._rng, self._now_us
        request = t.Claim(
            node=node,
            gen=rng.choice([2, 3, 99, 99, 99]),
            acked=rng.choice([0, self._acked[node]]),
            ends=self._ends(),
            limit=rng.choice([0, 1, 1, 2, 10, 10]),
            also=[row.id for row in self._some(self._claimed[-2:])],
            kinds=self._some(["mail"]),
            but=self._some("a") if rng.random() < 0.2 else [],
            wanted=self._some(NAMES) if rng.random() < 0.2 else [],
            with_suspect=rng.random() < 0.7,
            now_us=rng.choice([None, None, now_us + rng.randrange(20)]),
            due_us=rng.choice([None, None, now_us + 15]),
            look_again_us=rng.choice([None, None, None, 1]),
        )
        work = self._ask(request)
        self._acked[node] = max(self._acked[node], work.seq or 0)
        self._claimed += work.claimed

    def take_room(self) -> None:
        rng, rooms = self._rng, []
        size, stored = rng.choice([1, 2]), self._twins.model.space.rows
        for row in {each.name: each for each in self._claimed[-4:]}.values():
            if row.id in stored and stored[row.id].limited_by is None:
                target = stored[row.id].target
                said = rng.choice([None, record(7)]) if target else None
                rooms.append(t.Room(row.id, target or "l", 1 if target else size, said))
        node = self._node()
        self._ask(t.TakeRoom(node=node, rooms=rooms, acked=rng.choice([0, self._acked[node]])))

    def fence(self) -> None:
        for node in sorted(self._ask(t.ReadNodes()).all)[-self._rng.randrange(1, 5) :][:1]:
            self._last += 1  # who asks twice is told twice
            self._ask(
                t.Fence(by=f"{self._last}", node=node.node, beat=node.beat - self._rng.choice([0, 0, 0, 1]))
            )

    def come_back(self) -> None:
        rng, before = self._rng, self._some(self._nodes) or self._nodes[-1:]
        parts: dict[str, Any] = {part: [] for part in ("kept", "ends", "cut", "remembered")}
        for end in self._ends(is_run=False):
            part = rng.choice(list(parts))
            parts[part].append(replace(end, run=record(5, ended_us=self._now_us) if part == "ends" else None))
        acked, timeline = (
            self._acked[before[0]] + rng.choice([0, 0, 0, 5]),
            rng.choice(["", self._worlds[0].timeline]),
        )
        who: dict[str, Any] = {"name": "back", "lease_us": LEASE_US, "version": "1", "timeline": timeline}
        self._ask(t.ComeBack(before=before, node=self._new_node(), acked=acked, **who, **parts))

    def leave(self) -> None:
        self._ask(t.LeaveCluster(node=self._node()))

    def _put(self, name: str) -> t.Put:
        rng, wake_us = self._rng, self._now_us + self._rng.randrange(-9, 9)
        number, target = rng.choice([1, 1, 2]), rng.choice([None, None, "t"])
        return t.Put(name, number, f"definition {number}", f"new {rng.randrange(3)}", wake_us, target)

    def reconcile(self) -> None:
        rng, digest = self._rng, self._ask(t.ReadDigest())
        listed = sorted(
            row.name for row in self._ask(t.ReadList(after=rng.choice([0, digest.generation - 1])))
        )
        removed = self._some(listed) if rng.random() < 0.3 else []
        puts = [self._put(name) for name in self._some(NAMES) if name not in removed]
        who: dict[str, Any] = {"node": self._node(), "base": digest.generation - rng.choice([0, 0, 0, 0, 1])}
        self._ask(t.Reconcile(put=puts, removed=removed, replace=rng.random() < 0.3, **who))
        self._ask(t.ReadDigest())

    def one_row(self) -> None:
        rng, name = self._rng, self._rng.choice([*NAMES, "e1", "e2", "e1"])
        requests: list[t.TableRequest[Any]] = [
            t.SetPaused(name=name, is_paused=rng.random() < 0.4),
            t.CancelRun(name=name),
            t.Ask(names=self._some(NAMES), text=rng.choice(["look", "run 1", "run 2"])),
            t.Switch(name=name, enabled=rng.choice([None, True, False])),
            t.PutOne(put=self._put(name)._replace(target=None), kind="mail"),
            t.RemoveOne(name=name, is_entry=rng.random() < 0.5),
            t.StartUp(at_us=rng.randrange(9)),
        ]
        self._ask(rng.choice(requests))

    def look(self) -> None:
        rng, name, now_us = self._rng, self._rng.choice(NAMES), self._now_us
        requests: list[t.TableRequest[Any]] = [
            t.ReadRuns(with_output=rng.random() < 0.5),
            t.ReadRuns(name=name, result=rng.choice([None, "success", "interrupted"]), limit=3),
            t.ReadRuns(since_us=now_us - 9, before_us=now_us),
            t.ReadRuns(run=(f"n{rng.randrange(1, 4)}", f"run {rng.randrange(3)}"), with_output=True),
            t.ReadBuckets(names=list(NAMES), from_us=NOW_US, to_us=now_us - 3, width_us=20),
            t.ReadTasks(name=rng.choice([None, name]), after=name, limit=2),
            t.PruneEach(keep=3, names=rng.choice([1, 9]), after=rng.choice(["", name])),
        ]
        self._ask(rng.choice(requests))

    def time(self) -> None:
        """Let time pass, set the clock, restart the server, or promote a standby."""
        rng, worlds = self._rng, self._worlds
        what = rng.choice(["advance"] * 6 + ["restart", "keep", "keep", "forget", "open"])
        by_us = rng.choice([1, 5, 20, LEASE_US, -3])
        if what == "open":
            timeline = worlds[0].timeline
            self._ask(t.OpenTimeline(timeline=rng.choice([timeline, timeline, "00000009"])))
        elif what == "keep":
            self._kept = [world.snapshot() for world in worlds], list(self._claimed)
        elif what == "forget" and self._kept is not None:
            snapshots, self._claimed = self._kept
            for world, snapshot in zip(worlds, snapshots, strict=True):
                world.forget(snapshot)
        for world in worlds if what in {"advance", "restart"} else ():
            world.advance(by_us) if what == "advance" else world.restart()


def live(model: ModelDatabase, other: World, seed: int) -> None:
    """Have two tables live through the same requests. Raises an AssertionError with answers that differ."""
    with suppress(AmbiguousError):
        life = Life(Twins(model, other), Random(seed))
        for _ in range(LENGTH):
            life.step()


def are_told_apart(model: Callable[[int], ModelDatabase], url: str) -> bool:
    """Whether one of a few random lives tells a model from PostgreSQL."""
    for seed in range(SEEDS):
        with closing(PostgresWorld(url, url)) as world:
            try:
                live(model(NOW_US), world, seed)
            except AssertionError:
                return True
    return False


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(SEEDS, 400)]


@pytest.mark.parametrize("seed", [*range(SEEDS), *SLOW])
def test_model_and_sql_are_one_table(postgres_url: str, seed: int) -> None:
    """Whatever they are asked, right or wrong, in whatever order, they give the same answers."""
    with closing(PostgresWorld(postgres_url, postgres_url)) as world:
        live(ModelDatabase(NOW_US), world, seed)
