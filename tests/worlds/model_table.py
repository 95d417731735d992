"""A model of the table: the requests of `duly.cluster.table` on dictionaries, one at a time.

A `ModelDatabase` has a clock that somebody sets, a server and a timeline. It can restart, and it can become a
standby that lacks the latest commits. A `ModelTable` is one namespace of it, as one node reaches it.
"""

import copy
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from duly.cluster import table as t
from duly.errors import StoreError
from duly.instant import Instant

DAY_US = 86_400 * 1_000_000
FIRST = "00000001"
"""The timeline of a server that was never promoted."""


@dataclass
class ModelNode:
    id: int
    name: str
    lease_us: int
    server: str
    version: str
    joined_us: Instant
    seen_us: Instant
    beat: int = 0
    seq: int = 1
    lag_us: int = 0
    fenced_us: Instant | None = None
    fenced_by: str | None = None
    taken: Sequence[str] = ()


@dataclass
class ModelRow:
    id: int
    name: str
    hash: int
    gen: int
    definition: str
    target: str | None
    state: str
    wake_us: Instant
    paused: bool
    removed: bool = False
    token: int = 0
    run_by: int | None = None
    started_us: Instant | None = None
    cut_us: Instant | None = None
    interruptions: int = 0
    request: str | None = None
    enabled: bool | None = None
    kind: str | None = None
    cancelled: int | None = None
    limited_by: str | None = None
    record: t.RunRecord | None = None


@dataclass
class Namespace:
    timeline: str
    generation: int = 1
    startup_us: Instant | None = None
    nodes: dict[int, ModelNode] = field(default_factory=dict)
    rows: dict[int, ModelRow] = field(default_factory=dict)
    runs: list[t.PastRun] = field(default_factory=list)
    last_id: int = 0
    last_run: int = 0

    @property
    def named(self) -> dict[str, ModelRow]:
        """The tasks of the list and the entries, by name."""
        return {row.name: row for row in self.rows.values() if not row.removed}

    @property
    def listed(self) -> dict[str, ModelRow]:
        """The tasks of the list, by name."""
        return {name: row for name, row in self.named.items() if row.kind is None}

    def living(self) -> list[ModelNode]:
        return [node for node in self.nodes.values() if node.fenced_us is None]

    def waiting(self, request: t.Heartbeat | t.Claim | None) -> list[ModelRow]:
        """The rows that nobody runs and that the asking node may claim, oldest first."""
        rows = [row for row in self.rows.values() if row.run_by is None and not row.paused]
        return sorted((row for row in rows if self.may_claim(request, row)), key=lambda row: row.wake_us)

    def may_claim(self, request: t.Heartbeat | t.Claim | None, row: ModelRow) -> bool:
        """Whether a row is of so old a generation, or of a kind, that the asking node may claim it."""
        if request is None:
            return row.gen == 0 and row.kind is None
        also, but = (request.also, request.but) if isinstance(request, t.Claim) else ((), ())
        is_listed = row.gen <= request.gen or row.id in also
        return is_listed and row.kind in {None, *request.kinds} and row.name not in but


class ModelDatabase:
    """What all tables share: rows, the time, and which server answers."""

    def __init__(self, now_us: Instant = 0) -> None:
        self.now_us = now_us
        self.spaces: dict[str, Namespace] = {}
        self._servers = 1
        self._timelines = 1

    @property
    def server(self) -> str:
        return f"server {self._servers}"

    @property
    def timeline(self) -> str:
        return f"{self._timelines:08X}"

    def table(self, namespace: str = "default") -> "ModelTable":
        return ModelTable(self, namespace)

    def advance(self, by_us: int) -> None:
        self.now_us += by_us

    def snapshot(self) -> dict[str, Namespace]:
        return copy.deepcopy(self.spaces)

    def restart(self) -> None:
        """Have another server answer, which has forgotten nothing."""
        self._servers += 1

    def forget(self, snapshot: dict[str, Namespace]) -> None:
        """Promote a standby that has only what is in *snapshot*."""
        self.spaces = copy.deepcopy(snapshot)
        self._servers += 1
        self._timelines += 1


class ModelTable:
    """One namespace of a model database."""

    def __init__(self, database: ModelDatabase, namespace: str = "default") -> None:
        self.database = database
        self._name = namespace
        self._carry_out: dict[type[t.TableRequest[Any]], Callable[[Any], Any]] = {
            kind: getattr(self, re.sub("(?=[A-Z])", "_", kind.__name__).lower())
            for kind in t.TableRequest.__subclasses__()
        }

    def do(self, request: t.TableRequest[t.A], /) -> t.A:
        answer: t.A = self._carry_out[type(request)](request)
        return answer

    def close(self) -> None:
        """Disconnect: there is nothing to do."""

    @property
    def space(self) -> Namespace:
        """The rows of this namespace. The first request makes it.

        It is closed on a server that was ever promoted, because that may have forgotten it.
        """
        timeline = self.database.timeline
        return self.database.spaces.setdefault(self._name, Namespace(timeline if timeline == FIRST else ""))

    # --- being a node ---

    def _join(self, request: t.Join) -> t.Pulse:
        return self._pulse(self._added(request, request.node), request.node)

    def _added(self, request: t.Join | t.ComeBack, node_id: int, seq: int = 1) -> ModelNode:
        if node_id in self.space.nodes:
            raise StoreError(store="model", reason=f"node {node_id} is already there")
        now_us, server = self.database.now_us, self.database.server
        nodes = self.space.nodes
        for old in [each.id for each in nodes.values() if (each.fenced_us or now_us) < now_us - DAY_US]:
            del nodes[old]
        node = ModelNode(
            node_id, request.name, request.lease_us, server, request.version, now_us, now_us, seq=seq
        )
        nodes[node_id] = node
        return node

    def _heartbeat(self, request: t.Heartbeat) -> t.Pulse:
        node = self.space.nodes.get(request.node)
        if node is not None and node.fenced_us is None and node.seq >= request.acked:
            node.beat += 1
            node.seq += node.server == self.database.server
            node.server = self.database.server
            node.lag_us, node.seen_us = request.lag_us, self.database.now_us
        return self._pulse(node, request.node, request)

    def _pulse(self, node: ModelNode | None, me: int, beat: t.Heartbeat | None = None) -> t.Pulse:
        space, acked = self.space, 0 if beat is None else beat.acked
        has_forgotten = node is None or node.seq < acked
        return t.Pulse(
            now_us=self.database.now_us,
            server=self.database.server,
            timeline=self.database.timeline,
            open_timeline=space.timeline,
            seq=None if node is None or has_forgotten or node.fenced_us is not None else node.seq,
            has_forgotten=has_forgotten,
            peers=[t.Peer(n.id, n.name, n.beat, n.lease_us) for n in space.living() if n.id != me],
            generation=space.generation,
            next_wake_us=next((row.wake_us for row in space.waiting(beat)), None),
            cancelled=[(r.name, r.token) for r in self._run_by(me) if r.cancelled == r.token],
            busy=Counter(str(r.limited_by) for r in self._limited() if r.run_by != me and not r.target),
        )

    def _limited(self) -> list[ModelRow]:
        return [row for row in self.space.rows.values() if row.run_by is not None and row.limited_by]

    def _fence(self, request: t.Fence) -> Sequence[t.Taken] | None:
        node = self.space.nodes.get(request.node)
        if node is None or node.beat != request.beat or node.fenced_us is not None:
            return None
        for row in self._run_by(node.id):
            if row.target is not None and row.limited_by is None:
                row.token += 1  # it starts only when it has its target
                row.wake_us = self.database.now_us
                self._release(row)
        self._declare_dead(node, request.by)
        rows = self._run_by(node.id)
        node.taken = sorted(row.name for row in rows)
        for row in rows:
            row.interruptions += 1
            self._cut(row, self.database.now_us + back_off_us(row.interruptions, node.lease_us))
        return [t.Taken(row.name, row.interruptions, row.wake_us) for row in rows]

    def _run_by(self, *nodes: int) -> list[ModelRow]:
        return [row for row in self.space.rows.values() if row.run_by in nodes]

    def _declare_dead(self, node: ModelNode, by: str) -> None:
        node.fenced_us, node.fenced_by = self.database.now_us, by

    def _cut(self, row: ModelRow, wake_us: Instant) -> None:
        """A run was cut off, which is history: it is to be started once more."""
        node, started_us = self.space.nodes[row.run_by or 0].name, row.started_us
        assert started_us is not None
        record = row.record
        if row.target is None:
            record = t.RunRecord("", "", started_us, 0, "interrupted")
        if record is not None:
            output = None if row.target is None else ""
            record = msgspec.structs.replace(record, ended_us=self.database.now_us, output=output)
            self._keep_run(row.name, node, row.token, started_us, record)
        is_latest = row.cut_us is None or row.target is not None
        row.cut_us = row.started_us if is_latest else row.cut_us
        row.token += 1
        row.wake_us = wake_us
        self._release(row)

    def _release(self, row: ModelRow) -> None:
        row.run_by = row.started_us = None
        if row.removed:
            del self.space.rows[row.id]

    def _open_timeline(self, request: t.OpenTimeline) -> None:
        if request.timeline == self.database.timeline:
            self.space.timeline = request.timeline

    def _leave_cluster(self, request: t.LeaveCluster) -> None:
        if not self._run_by(request.node):
            self.space.nodes.pop(request.node, None)

    # --- claiming and ending ---

    def _claim(self, request: t.Claim) -> t.Work:
        space, server = self.space, self.database.server
        now_us = self.database.now_us if request.now_us is None else request.now_us
        is_open = space.timeline == self.database.timeline and all(n.server == server for n in space.living())
        node = space.nodes.get(request.node)
        is_forgotten = node is None or node.seq < request.acked
        if node is None or is_forgotten or node.fenced_us is not None or node.server != server:
            return t.Work(None, now_us, [], [], None, is_open)
        node.seq += 1
        written = [end.id for end in request.ends if self._end(space.rows.get(end.id), end, node.name)]
        if (ahead_us := request.look_again_us) is not None:
            for row in space.rows.values():
                is_new = row.token > now_us + ahead_us or row.wake_us == t.ASLEEP_US
                is_ahead = row.run_by is None and is_new
                row.wake_us = min(row.wake_us, now_us) if is_ahead else row.wake_us
        claimed = (
            [self._claimed(row, node.id, now_us) for row in self._due(request, now_us)] if is_open else []
        )
        waiting = space.waiting(request)
        next_us = next((row.wake_us for row in waiting if row.wake_us > now_us), None)
        return t.Work(node.seq, now_us, written, claimed, next_us, is_open)

    def _due(self, request: t.Claim, now_us: Instant) -> Sequence[ModelRow]:
        """The rows to claim: the oldest, and one suspect beside them."""
        due_us = max(now_us, request.due_us or now_us)
        due = [row for row in self.space.waiting(request) if row.wake_us <= due_us]
        usual = [row for row in due if row.interruptions < t.SUSPECT_FROM]
        suspects = [row for row in due if row.interruptions >= t.SUSPECT_FROM]
        chosen = [*usual[: request.limit], *suspects[: request.with_suspect and request.limit > 0]]
        rows = [row for name in request.wanted if (row := self.space.named.get(name)) is not None]
        wanted = [row for row in rows if row.run_by is None and self.space.may_claim(request, row)]
        return list({row.id: row for row in (*chosen, *wanted)}.values()) if request.limit else []

    def _take_room(self, request: t.TakeRoom) -> Sequence[int] | None:
        node = self.space.nodes.get(request.node)
        is_fenced = node is None or node.fenced_us is not None
        if node is None or is_fenced or node.server != self.database.server or node.seq < request.acked:
            return None
        node.seq += 1
        taken = []
        for room in request.rooms:
            row = self.space.rows.get(room.id)
            busy = sum(each.limited_by == room.limit for each in self._limited())
            if row is not None and row.run_by == request.node and busy < room.size:
                row.limited_by, row.record = room.limit, room.record
                taken.append(room.id)
        return taken

    def _claimed(self, row: ModelRow, node: int, now_us: Instant) -> t.Claimed:
        row.run_by, row.token, row.started_us = node, max(row.token + 1, now_us), now_us
        row.limited_by = row.record = None
        return t.Claimed(
            id=row.id,
            name=row.name,
            hash=row.hash,
            token=row.token,
            state=row.state,
            started_us=now_us,
            cut_us=row.cut_us,
            interruptions=row.interruptions,
            request=row.request,
            wake_us=row.wake_us,
            enabled=row.enabled,
            definition=None if row.kind is None else row.definition,
        )

    def _end(self, row: ModelRow | None, end: t.RowEnd, node: str) -> bool:
        """Write an end, if the row is still of this run; whether it was."""
        if row is None or (row.token, row.started_us) != (end.token, end.started_us):
            return False
        if row.hash == end.hash:
            row.state = row.state if end.state is None else end.state
            row.wake_us = end.wake_us
        if row.request is not None and row.request != end.request:
            row.wake_us = 0
            if end.state is not None and end.request is not None:
                row.request = row.request.removeprefix(f"{end.request};")
        elif end.state is not None:
            row.request = None
        if end.state is not None:
            row.cut_us, row.interruptions = None, 0
        self._release(row)
        if end.run is not None:
            self._keep_run(end.name, node, end.token, end.started_us, end.run)
        return True

    def _keep_run(self, name: str, node: str, token: int, started_us: Instant, record: t.RunRecord) -> None:
        self.space.last_run += 1
        self.space.runs.append(t.PastRun(self.space.last_run, name, node, token, started_us, record))

    def _come_back(self, request: t.ComeBack) -> t.Returned:
        self._added(request, request.node)  # first: it may fail
        first = self.space.nodes.get(request.before[0])
        has_forgotten = (0 if first is None else first.seq) < request.acked
        for former in request.before:
            before = self.space.nodes.get(former) or self._added(request, former, seq=0)
            if before.fenced_us is None:
                self._declare_dead(before, request.name)
        if has_forgotten:
            self._restore(request)
            if self.database.timeline == request.timeline:
                self.space.timeline = ""
        for end in request.ends:
            self._end(self._named(end), end, request.name)
        for end in request.cut:
            if (row := self._named(end)) is not None and self._is_of(row, end, request):
                self._cut(row, self.database.now_us)
        kept = []
        for end in request.kept:
            if (row := self._named(end)) is not None and self._is_of(row, end, request):
                row.run_by = request.node
                row.limited_by = row.limited_by or row.target  # the server may have forgotten it
                kept.append((row.name, row.id))
        for row in self._run_by(*request.before):
            self._release(row)
        return t.Returned(kept, has_forgotten)

    def _named(self, end: t.RowEnd) -> ModelRow | None:
        return next((row for row in self.space.rows.values() if row.name == end.name), None)

    def _is_of(self, row: ModelRow, end: t.RowEnd, request: t.ComeBack) -> bool:
        return row.token == end.token and row.run_by in request.before

    def _restore(self, request: t.ComeBack) -> None:
        """Write what the server had acknowledged, where no newer claim has come meanwhile."""
        for end in (*request.kept, *request.ends, *request.cut):
            row = self._named(end)
            if row is not None and row.token < end.token and row.hash == end.hash:
                row.token, row.started_us, row.cut_us = end.token, end.started_us, None
                row.run_by, row.limited_by, row.record = request.before[0], None, None
                if end not in request.ends:
                    row.state = row.state if end.state is None else end.state
        for end in request.remembered:
            row = self._named(end)
            if row is None or row.hash != end.hash or row.token > end.token:
                continue
            if row.token < end.token or row.started_us == end.started_us:
                row.token, row.cut_us, row.interruptions = end.token, None, 0
                row.state, row.wake_us = row.state if end.state is None else end.state, end.wake_us
                self._release(row)

    # --- lists ---

    def _read_digest(self, _request: t.ReadDigest) -> t.Digest:
        rows = self.space.listed.values()
        hashes = sum(row.hash for row in rows)
        return t.Digest(len(rows), hashes, self.space.generation, self.space.startup_us)

    def _read_list(self, request: t.ReadList) -> Sequence[t.Listed]:
        rows = (row for row in self.space.listed.values() if row.gen > request.after)
        return [t.Listed(row.id, row.name, row.hash, row.gen) for row in rows]

    def _reconcile(self, request: t.Reconcile) -> t.ListOutcome:
        space = self.space
        if space.generation != request.base:
            return t.ListOutcome(0, [], [], [], is_other=True)
        listed = space.listed
        others = [node.name for node in space.living() if node.id != request.node]
        if listed and set(listed) <= set(request.removed) and others and not request.replace:
            return t.ListOutcome(0, [], [], [], refused_for=others)
        orphaned = [(name, listed[name].state) for name in request.removed if name in listed]
        named = space.named
        changed = [p for p in request.put if p.name not in listed or listed[p.name].hash != p.hash]
        overridden = [(p.name, named[p.name].definition) for p in changed if p.name in named]
        for put in changed:
            self._put(put, space.generation + 1)
        for name, _state in orphaned:
            self._remove(listed[name])
        space.generation += 1
        added = [put.name for put in request.put if put.name not in named]
        return t.ListOutcome(space.generation, added, overridden, orphaned)

    def _put(self, put: t.Put, gen: int) -> None:
        space = self.space
        row = next((row for row in space.rows.values() if row.name == put.name), None)
        if row is None:
            space.last_id += 1
            row = space.rows[space.last_id] = ModelRow(space.last_id, **put._asdict(), gen=gen)
            row.token = self.database.now_us  # tokens rise, also if there was a task of that name before
        else:
            is_asked_for = row.cut_us is not None or row.request is not None
            row.wake_us = min(row.wake_us, put.wake_us) if is_asked_for else put.wake_us
            row.hash, row.definition, row.state = put.hash, put.definition, put.state
            row.paused = row.paused and not row.removed
            row.enabled = None if row.removed else row.enabled
            row.target, row.gen, row.removed, row.kind = put.target, gen, False, None

    def _remove(self, row: ModelRow) -> None:
        if row.run_by is None:
            del self.space.rows[row.id]
        else:
            row.removed, row.hash, row.request = True, 0, None

    # --- one row ---

    def _set_paused(self, request: t.SetPaused) -> bool:
        row = self.space.named.get(request.name)
        if row is not None:
            row.paused = request.is_paused
        return row is not None

    def _cancel_run(self, request: t.CancelRun) -> bool:
        row = self.space.named.get(request.name)
        if row is None or row.run_by is None:
            return False
        row.cancelled = row.token
        return True

    def _ask(self, request: t.Ask) -> bool:
        rows = [row for name in request.names if (row := self.space.named.get(name)) is not None]
        for row in rows:
            asked = [] if row.request is None else row.request.split(";")
            row.request = ";".join([*asked, *({request.text} - {*asked})])
            row.wake_us = 0
        return bool(rows)

    def _switch(self, request: t.Switch) -> bool:
        row = self.space.named.get(request.name)
        if row is not None:
            row.enabled, row.request = request.enabled, row.request or "look"
            row.wake_us = min(row.wake_us, self.database.now_us)
        return row is not None

    def _start_up(self, request: t.StartUp) -> None:
        self.space.startup_us = request.at_us

    def _put_one(self, request: t.PutOne) -> str | None:
        if request.put.name in self.space.listed:
            return None
        before = self.space.named.get(request.put.name)
        definition, state = ("", "") if before is None else (before.definition, before.state)
        is_same = before is not None and before.hash == request.put.hash
        self._put(request.put, 0)
        row = self.space.named[request.put.name]
        row.kind, row.enabled = request.kind, None
        if is_same:
            row.state, row.wake_us = state, 0
        return definition

    def _remove_one(self, request: t.RemoveOne) -> bool:
        row = self.space.named.get(request.name)
        if row is None or (request.is_entry and row.kind is None):
            return False
        self._remove(row)
        self.space.generation += row.kind is None
        return True

    # --- looking ---

    def _read_nodes(self, _request: t.ReadNodes) -> t.Nodes:
        return t.Nodes(self.database.now_us, [self._node_view(node) for node in self.space.nodes.values()])

    def _node_view(self, node: ModelNode) -> t.NodeView:
        runs = sorted(row.name for row in self._run_by(node.id)) if node.fenced_us is None else node.taken
        return t.NodeView(
            *(node.id, node.name, node.beat, node.lease_us, node.version, node.lag_us, node.joined_us),
            *(node.seen_us, node.fenced_us, node.fenced_by, runs),
        )

    def _read_tasks(self, request: t.ReadTasks) -> Sequence[t.TaskView]:
        rows = [
            row for name, row in sorted(self.space.named.items()) if name > request.after or not request.after
        ]
        return [self._task_view(row) for row in rows if request.name in {None, row.name}][: request.limit]

    def _task_view(self, row: ModelRow) -> t.TaskView:
        node = self.space.nodes.get(row.run_by or 0)
        run_by = None if node is None else node.name
        return t.TaskView(
            *(row.name, row.definition, row.state, row.wake_us, row.paused, run_by),
            *(row.started_us, row.token, row.interruptions, row.target, row.enabled, row.kind),
            row.request,
            row.cut_us,
        )

    def _read_runs(self, request: t.ReadRuns) -> Sequence[t.PastRun]:
        last = [past for past in self.space.runs if past.id == request.before]
        runs = [
            past if request.with_output else past._replace(run=msgspec.structs.replace(past.run, output=None))
            for past in sorted(self.space.runs, key=_by_start, reverse=True)
            if request.name in {None, past.name}
            and (request.run is None or request.run == (past.node, past.run.run_id))
            and (request.run is None or past.run.output is not None)
            and (request.before is None or any(_by_start(past) < _by_start(one) for one in last))
            and (request.before_us is None or past.started_us < request.before_us)
            and (request.since_us is None or past.started_us >= request.since_us)
            and request.result in {None, past.run.result}
        ]
        return runs[: request.limit]

    def _read_buckets(self, request: t.ReadBuckets) -> Sequence[t.PastBucket]:
        found: dict[tuple[str, int, str], list[t.PastRun]] = {}
        for past in sorted(self.space.runs, key=_by_start):
            if past.name in request.names and request.from_us <= past.started_us < request.to_us:
                part = (past.started_us - request.from_us) // request.width_us
                found.setdefault((past.name, part, past.run.result), []).append(past)
        return [
            t.PastBucket(
                *key,
                len(runs),
                runs[-1].run.run_id,
                runs[0].started_us,
                max(past.run.ended_us for past in runs),
                runs[-1].node,
            )
            for key, runs in sorted(found.items())
        ]

    def _read_oldest_xmin(self, _request: t.ReadOldestXmin) -> int:
        return 0

    def _prune(self, request: t.Prune) -> int:
        old = [past for past in self.space.runs if past.run.ended_us < request.before_us][: request.limit]
        self.space.runs = [past for past in self.space.runs if past not in old]
        return len(old)

    def _prune_each(self, request: t.PruneEach) -> str | None:
        names = sorted({past.name for past in self.space.runs if past.name > request.after})
        for name in names[: request.names]:
            runs = sorted(
                (past for past in self.space.runs if past.name == name), key=_by_start, reverse=True
            )
            old = runs[request.keep :][: request.limit]
            self.space.runs = [past for past in self.space.runs if past not in old]
        return names[request.names - 1] if len(names) >= request.names else None


def _by_start(past: t.PastRun) -> tuple[int, int]:
    return past.started_us, past.id


def back_off_us(interruptions: int, lease_us: int) -> int:
    """How long a restart waits after so many interruptions in a row."""
    if interruptions < t.BACK_OFF_FROM:
        return 0
    return min(lease_us << min(interruptions - t.BACK_OFF_FROM, 20), t.LONGEST_BACK_OFF_US)
