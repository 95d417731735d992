"""A cluster store in one schema of a PostgreSQL database: the SQL side of `duly.cluster.table`.

Every request is one message, and so one transaction; the one exception is a large list, which is first copied
to a temporary table. Nothing is prepared and nothing is left in the session, so that a pooler may give every
message to another server process.

The order of locks, for all: the list (advisory), nodes, tasks by id, targets by name. A claim waits for no
task: it skips what others have locked.
"""

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, singledispatchmethod
from operator import attrgetter
from socket import socket
from typing import Any, TypeVar

import msgspec

from duly.cluster import table
from duly.cluster.address import Address
from duly.cluster.connection import Connection, Rows
from duly.cluster.messages import StandbyError
from duly.cluster.statements import AsIs, Statements, array, escaped, script_file, unescaped
from duly.errors import StoreError
from duly.instant import MINUTE_US

FORMAT = 10
_FENCED_KEPT_US = 24 * 60 * MINUTE_US
"""So long a fenced node is shown."""
_COPY_FROM = 2_000
"""From so many rows on a list is copied to a temporary table first."""
_LISTS = 20
"""So many times longer is waited for what concerns a whole list."""
_LOCK = 0x64756C79 << 32  # "duly"
_CONSTANTS = {
    "asleep_us": table.ASLEEP_US,
    "kept_us": _FENCED_KEPT_US,
    "back_off_from": table.BACK_OFF_FROM,
    "longest_us": table.LONGEST_BACK_OFF_US,
    "suspect_from": table.SUSPECT_FROM,
}

T = TypeVar("T")

_replace = msgspec.structs.replace
_encode = msgspec.json.Encoder().encode
_decode_run = msgspec.json.Decoder(table.RunRecord).decode


class PostgresTable:
    """The table of one namespace, over one connection. Used by one thread at a time."""

    def __init__(
        self,
        address: Address,
        statements: Statements,
        namespace: str,
        *,
        patience_s: float,
        is_reader: bool = False,
    ) -> None:
        self._line = Connection(address, patience_s=patience_s, is_reader=is_reader)
        self._is_reader = is_reader
        self._statements = statements
        self._namespace = escaped(namespace)

    def do(self, request: table.TableRequest[table.A]) -> table.A:
        is_long = isinstance(request, table.Reconcile | table.ReadList | table.ReadDigest)
        work = partial(self._carry_out, request)
        answer: table.A = self._line.call(work, times_patience=_LISTS if is_long else 1)
        return answer

    def listen(self, on_notified: Callable[[], None]) -> None:
        """Have requests for rows of this namespace notified at once, where the connection allows it."""
        self._line.on_notified = lambda said: on_notified() if said == self._namespace else None

    def wait(self, seconds: float, waker: socket) -> None:
        """Wait so many *seconds* at most, until *waker* can be read or the server says something."""
        self._line.wait(seconds, waker)

    def close(self) -> None:
        self._line.close()

    def _ask(self, script: str, **values: Any) -> list[Rows]:
        """What each statement gives. Texts are stored escaped, and come back as they were."""
        stored = {name: _stored(value) for name, value in values.items()}
        return self._line.ask(script, {"namespace": self._namespace, **_CONSTANTS, **stored})

    @singledispatchmethod
    def _carry_out(self, request: table.TableRequest[Any]) -> Any:
        """Most requests are a script that wants their fields. Those that are more have a method below."""
        names, answer_of = _SCRIPTS[type(request)]
        return answer_of(self._ask(self._statements.of(*names.split()), **_fields(request)))

    # --- being a node ---

    @_carry_out.register
    def _join(self, request: table.Join) -> table.Pulse:
        values = {"acked": 0, "gen": 0, "kinds": []}
        return _pulse(self._ask(self._statements.of("join", "pulse"), **_fields(request), **values))

    # --- claiming and ending ---

    @_carry_out.register
    def _claim(self, request: table.Claim) -> table.Work:
        is_claiming = request.limit > 0
        script = self._statements.claim(
            has_ends=bool(request.ends),
            is_looking_again=request.look_again_us is not None,
            is_claiming=is_claiming,
            has_also=bool(request.also),
            has_wanted=bool(request.wanted),
            has_but=bool(request.but),
        )
        values = _fields(request, but=("ends",)) | _columns(_END_COLUMNS, request.ends)
        answers = iter(self._ask(script, **values, suspects=int(request.with_suspect))[1:])
        me = next(answers)
        written = [row[0] for row in next(answers)] if request.ends else []
        rows = next(answers) if is_claiming else []
        ((now_us, is_open, next_wake_us),) = next(answers)
        seq = me[0][0] if me else None
        rows.sort(key=lambda row: row[9])
        return table.Work(seq, now_us, written, [table.Claimed(*row) for row in rows], next_wake_us, is_open)

    @_carry_out.register
    def _fence(self, request: table.Fence) -> Sequence[table.Taken] | None:
        fenced = self._ask(self._statements.fence(), **_fields(request))[-1]
        return [table.Taken(*row) for row in fenced if row[0] is not None] if fenced else None

    @_carry_out.register
    def _take_room(self, request: table.TakeRoom) -> Sequence[int] | None:
        values = _fields(request, but=("rooms",)) | _columns(_ROOM_COLUMNS, request.rooms)
        answers = self._ask(self._statements.of("me", "take_room"), **values)
        me, taken = answers[1], answers[-1]
        return [row[0] for row in taken] if me else None

    @_carry_out.register
    def _come_back(self, request: table.ComeBack) -> table.Returned:
        running = [*request.kept, *request.cut, *(_replace(end, state=None) for end in request.ends)]
        ended = list({end.name: end for end in request.remembered}.values())  # the latest of each task
        values = _fields(request, but=("kept", "ends", "cut", "remembered"))
        values |= _columns(_END_COLUMNS, request.ends)
        for prefix, ends in (
            ("run", running),
            ("ended", ended),
            ("cut", request.cut),
            ("kept", request.kept),
        ):
            columns = _columns(_END_COLUMNS, ends)
            values |= {f"{prefix}_{name}": column for name, column in columns.items()}
        *_, kept, ((has_forgotten,),) = self._ask(self._statements.come_back(), **values)
        return table.Returned(kept, has_forgotten)

    # --- lists ---

    @_carry_out.register
    def _reconcile(self, request: table.Reconcile) -> table.ListOutcome:
        values = _fields(request, but=("put",))
        if len(request.put) < _COPY_FROM:
            script = self._statements.of("reconcile", source=script_file("source"))
            answers = self._ask(script, **values, **_columns(_PUT_COLUMNS, request.put))
        else:
            self._line.copy(
                "BEGIN;\n" + self._statements.of("incoming"),
                "COPY pg_temp.duly_incoming FROM STDIN",
                (
                    [escaped(value) if isinstance(value, str) else value for value in put]
                    for put in request.put
                ),
            )
            script = self._statements.of("reconcile", source="pg_temp.duly_incoming AS given") + "\nCOMMIT;"
            answers = self._ask(
                script.replace("SET TRANSACTION ISOLATION LEVEL READ COMMITTED;", ""), **values
            )
        (((refused,),), nodes, moved, _, orphaned, changed) = answers[2:]
        return table.ListOutcome(
            generation=moved[0][0] if moved else 0,
            added=[name for name, definition in changed if definition is None],
            overridden=[(name, definition) for name, definition in changed if definition is not None],
            orphaned=orphaned,
            refused_for=[name for (name,) in nodes],
            is_other=refused == "other",
        )

    @_carry_out.register
    def _put_one(self, request: table.PutOne) -> str | None:
        answers = self._ask(self._statements.of("put_one"), kind=request.kind, **request.put._asdict())
        return answers[-1][0][0] if answers[-1] else None

    # --- looking ---

    @_carry_out.register
    def _read_runs(self, request: table.ReadRuns) -> Sequence[table.PastRun]:
        node, run_id = (None, None) if request.run is None else request.run
        values = _fields(request) | {"node": node, "run_id": run_id}
        return [_past_run(row) for row in self._ask(self._statements.of("runs"), **values)[-1]]

    # --- making the tables ---

    def open(self, name: str, new_id: str) -> str:
        """Make the tables if there are none; the scheduler id of this schema. Raises StoreError."""
        return self._line.call(partial(self._open, name, new_id), times_patience=_LISTS)

    def _open(self, name: str, new_id: str) -> str:
        if (found := self._found(name)) is not None:
            if not self._is_reader:
                self._check_rights(name)
            return found
        if self._is_reader:
            schema = self._statements.schema
            reason = f"has no tables of duly in its schema {schema!r}; start a scheduler on it first"
            raise StoreError(store=name, reason=reason)
        lock = _LOCK | zlib.crc32(self._statements.schema.encode(errors="surrogatepass"))
        begin = "BEGIN;\n" + self._statements.of() + "SELECT pg_advisory_xact_lock(%(lock)s)"
        self._ask(begin, lock=lock)
        found = self._found(name)
        if found is None:  # else another node was quicker
            if not self._looked(name)[0]:
                self._ask(self._statements.create_schema)
            self._ask(self._statements.of("schema"))
            self._ask(self._statements.of("found"), format=FORMAT, scheduler_id=new_id)
        self._ask("COMMIT")
        return new_id if found is None else found

    def _looked(self, name: str) -> tuple[bool, bool, bool]:
        """Whether our schema is there, is ours, and is used. Raises StoreError."""
        looked = self._ask(self._statements.of("look"), schema_name=AsIs(self._statements.schema))[-1]
        ((is_standby, is_there, is_ours, is_used),) = looked
        if is_standby:
            raise StandbyError(store=name)
        return is_there, is_ours, is_used

    def _found(self, name: str) -> str | None:
        """The scheduler id of the tables that are there; None when there are none. Raises StoreError."""
        _, is_ours, is_used = self._looked(name)
        schema = self._statements.schema
        if not is_ours:
            if is_used:
                reason = f"has a schema {schema!r} that is not ours; choose another database or schema"
                raise StoreError(store=name, reason=reason)
            return None
        rows = self._ask(self._statements.of("identify"))[-1]
        if len(rows) != 1:
            raise StoreError(
                store=name, reason=f"its table {self._statements.meta} is damaged; restore it from a copy"
            )
        ((version, scheduler_id),) = rows
        if version > FORMAT:
            reason = (
                f"has format {version}, written by a newer duly; this one knows up to {FORMAT}. Upgrade duly"
            )
            raise StoreError(store=name, reason=reason)
        if version < FORMAT:
            reason = (
                f"has tables of an older duly in its schema {schema!r}; drop that schema, or choose another"
            )
            raise StoreError(store=name, reason=reason)
        found: str = scheduler_id
        return found

    def _check_rights(self, name: str) -> None:
        rights = self._ask(self._statements.of("rights"), schema_name=AsIs(self._statements.schema))[-1]
        if lacking := [right for (right,) in rights]:
            reason = f"lacks rights: the role needs {', '.join(lacking)}; grant them, or use another role"
            raise StoreError(store=name, reason=reason)


def _fields(request: table.TableRequest[Any], *, but: Collection[str] = ()) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__struct_fields__ if name not in but}


def _stored(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return array(value)
    return escaped(value) if isinstance(value, str) and not isinstance(value, AsIs) else value


_END_COLUMNS: Mapping[str, Callable[[table.RowEnd], Any]] = {
    "ids": attrgetter("id"),
    "names": attrgetter("name"),
    "hashes": attrgetter("hash"),
    "tokens": attrgetter("token"),
    "starts": attrgetter("started_us"),
    "states": attrgetter("state"),
    "wakes": attrgetter("wake_us"),
    "requests": attrgetter("request"),
    "ended": lambda end: None if end.run is None else end.run.ended_us,
    "records": lambda end: None if end.run is None else _record(end.run),
    "outputs": lambda end: None if end.run is None else end.run.output,
}
_ROOM_COLUMNS: Mapping[str, Callable[[table.Room], Any]] = {
    "ids": attrgetter("id"),
    "limits": attrgetter("limit"),
    "sizes": attrgetter("size"),
    "records": lambda room: None if room.record is None else _record(room.record),
}
_PUT_COLUMNS: Mapping[str, Callable[[table.Put], Any]] = {
    "names": attrgetter("name"),
    "hashes": attrgetter("hash"),
    "definitions": attrgetter("definition"),
    "states": attrgetter("state"),
    "wakes": attrgetter("wake_us"),
    "targets": attrgetter("target"),
    "pauses": attrgetter("paused"),
}


def _columns(columns: Mapping[str, Callable[[T], Any]], rows: Sequence[T]) -> dict[str, AsIs]:
    """Each column of *rows* as one value."""
    return {name: array(map(value_of, rows)) for name, value_of in columns.items()}


def _record(run: table.RunRecord) -> str:
    return _encode(_replace(run, output=None)).decode()


def _past_run(row: Sequence[Any]) -> table.PastRun:
    run_id, name, node, token, started_us, record, output = row
    return table.PastRun(run_id, name, node, token, started_us, _replace(_decode_run(record), output=output))


def _pulse(answers: list[Rows]) -> table.Pulse:
    *facts, peers, generation, wake_us, cancelled, busy = answers[-1][0]
    nodes = [table.Peer(node, unescaped(name), beat, lease_us) for node, name, beat, lease_us in peers]
    runs = [(unescaped(name), token) for name, token in cancelled]
    limits = {unescaped(name): count for name, count in busy.items()}
    return table.Pulse._make((*facts, nodes, generation, wake_us, runs, limits))


def _digest(answers: list[Rows]) -> table.Digest:
    ((count, hashes, generation, startup_us),) = answers[-1]
    return table.Digest(count, int(hashes), generation, startup_us)


def _nodes(answers: list[Rows]) -> table.Nodes:
    *_, ((now_us,),), nodes = answers
    return table.Nodes(now_us, [table.NodeView(*row) for row in nodes])


def _nothing(_answers: list[Rows]) -> None:
    return None


def _is_found(answers: list[Rows]) -> bool:
    return bool(answers[-1])


def _number(answers: list[Rows]) -> int:
    return int(answers[-1][0][0])


_SCRIPTS: Mapping[type, tuple[str, Callable[[list[Rows]], Any]]] = {
    table.Heartbeat: ("heartbeat pulse", _pulse),
    table.OpenTimeline: ("open_timeline", _nothing),
    table.LeaveCluster: ("leave", _nothing),
    table.ReadDigest: ("digest", _digest),
    table.ReadList: ("list", lambda answers: [table.Listed(*row) for row in answers[-1]]),
    table.SetPaused: ("pause", _is_found),
    table.CancelRun: ("cancel", _is_found),
    table.Ask: ("ask", _is_found),
    table.Switch: ("switch", _is_found),
    table.StartUp: ("start_up", _nothing),
    table.RemoveOne: ("remove_one", _is_found),
    table.ReadNodes: ("nodes", _nodes),
    table.ReadTasks: ("tasks", lambda answers: [table.TaskView(*row) for row in answers[-1]]),
    table.ReadBuckets: ("buckets", lambda answers: [table.PastBucket(*row) for row in answers[-1]]),
    table.ReadOldestXmin: ("oldest_xmin", _number),
    table.Prune: ("prune", _number),
    table.PruneEach: ("prune_each", lambda answers: answers[-1][0][0] if answers[-1] else None),
}
"""The scripts of a request, and what their answers mean."""
