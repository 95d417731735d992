"""A board that forgets when the process ends: for tests and simulations of many members.

It does exactly what a board in a database does, in virtual time, and passes the same suite
(`duly.testing.boards`). Every call is done in one step: nothing comes in between.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from duly.core.record import record_of, state_of
from duly.core.task import Task
from duly.errors import StoreError, TaskListMismatchError
from duly.instant import MINUTE_US, Instant
from duly.store.board import (
    SHARDS,
    TTL_US,
    AwayEnd,
    Change,
    Decide,
    Hold,
    Place,
    Published,
    Reply,
    Reported,
    Request,
    Row,
    Seat,
    SeatLostError,
    ShardsLostError,
    StartUp,
    Stored,
    SupersededError,
    Taken,
    TimerRow,
    View,
    Waiting,
    shard_of,
)
from duly.testing.memory_table import RequestRow, SeatRow, ShardRow, Table, TaskRow

FORGOTTEN_US = 24 * 60 * MINUTE_US
"""A member that has been dead for so long, and holds nothing, is forgotten when another joins."""


REQUEST_FORGOTTEN_US = 10 * MINUTE_US
"""So long after its time a request is forgotten, when somebody else asks."""


class MemoryBoard:
    """A board in memory that takes the time from *now_us*; with the *table* of another, the same board.

    *server* says which server answers: when that changes, it is as if the board had been restored.
    """

    def __init__(
        self,
        now_us: Callable[[], Instant],
        *,
        ttl_us: int = TTL_US,
        table: Table | None = None,
        server: Callable[[], str] = lambda: "",
    ) -> None:
        self._now_us = now_us
        self._server = server
        self._ttl_us = ttl_us
        self.table = Table() if table is None else table
        self._is_open = False

    @property
    def name(self) -> str:
        """The name for messages."""
        return "memory board"

    @property
    def ttl_us(self) -> int:
        """How long the lease of a member lasts unless it is renewed."""
        return self._ttl_us

    async def open(self, new_id: str, /, *, shards: int = SHARDS) -> str:
        """Connect, and give the scheduler identifier."""
        if not self.table.shards:
            if not new_id:
                raise StoreError(store=self.name, reason="is not there yet; start a scheduler on it first")
            self.table.scheduler_id = new_id
            self.table.shards = [ShardRow(self._now_us()) for _ in range(shards)]
            self.table.server = self._server()
        self._is_open = True
        return self.table.scheduler_id

    async def join(self, member: int, name: str, /, *, ttl_us: int) -> None:
        """Become *member*, with no edition and no shard."""
        table, now_us = self._opened(), self._now_us()
        self._note_server(ttl_us)
        self._vacate(member)
        holders = {shard.holder for shard in table.shards}
        table.members = {
            number: other
            for number, other in table.members.items()
            if number in holders or other.lease_us > now_us - FORGOTTEN_US
        }
        table.members[member] = SeatRow(name, now_us, now_us, now_us + ttl_us, ttl_us)

    async def beat(self, member: int, /, *, ttl_us: int, lag_ms: int = 0, is_leaving: bool = False) -> View:
        """Renew the lease and look at the board."""
        self._opened()
        self._note_server(ttl_us)
        seat, now_us = self._seat(member), self._now_us()
        seat.beaten_us, seat.lease_us, seat.ttl_us = now_us, now_us + ttl_us, ttl_us
        seat.lag_ms, seat.is_leaving = lag_ms, is_leaving
        return self._view(member)

    async def view(self) -> View:
        """Look at the board as an outsider."""
        self._opened()
        return self._view(None)

    async def publish(
        self, member: int, fingerprint: str, decide: Decide, /, *, displaces: bool = True
    ) -> Published:
        """Bring a list, and make it the newest edition if it should be."""
        self._opened()
        self._note_server()
        seat, table, now_us = self._seat(member), self.table, self._now_us()
        newest = len(table.editions)
        own = max((at for at, known in enumerate(table.editions, 1) if known == fingerprint), default=0)
        is_superseded = any(
            other.edition > own and self._is_alive(number, now_us)
            for number, other in table.members.items()
            if number != member
        )
        is_new = own == 0 or (own < newest and not is_superseded)
        if is_new:
            self._supersede(decide(self._all(now_us), now_us, table.scheduler_id), now_us)
            for shard in table.shards if displaces else ():
                shard.holder, shard.term, shard.number = None, shard.term + 1, 0
            table.editions.append(fingerprint)
            own = newest + 1
        seat.edition = own
        return Published(own, is_current=own == len(table.editions), is_new=is_new)

    async def take(self, member: int, shards: Sequence[int], /) -> Taken:
        """Take those shards that are nobody's, this member's own, or a dead member's."""
        table, now_us = self._opened(), self._now_us()
        self._note_server()
        if not self._is_alive(member, now_us):
            raise SeatLostError(store=self.name)
        if not self._is_open_for_work():
            return Taken((), (), now_us)
        wanted = set(shards) & set(range(len(table.shards)))
        holds = []
        for number in sorted(wanted):
            shard = table.shards[number]
            if shard.holder not in {None, member}:
                if self._is_alive(shard.holder, now_us):
                    continue
                shard.lost_by, shard.lost_us = shard.holder, now_us
            shard.holder, shard.term, shard.number, shard.taken_us = member, shard.term + 1, 0, now_us
            holds.append(Hold(number, shard.term))
        taken = {hold.shard for hold in holds}
        stored = [self._stored(entry, now_us) for entry in _sorted(table.entries) if entry.shard in taken]
        return Taken(holds, stored, now_us)

    async def claim(self, member: int, decide: Decide, /) -> None:
        """Put rows right."""
        self._opened()
        self._note_server()
        self._seat(member)
        table, now_us = self.table, self._now_us()
        change = decide(self._all(now_us), now_us, table.scheduler_id)
        self._change(Change(change.put, ()))
        self._supersede(Change((), change.removed), now_us)

    async def write(
        self,
        member: int,
        holds: Mapping[Hold, int],
        /,
        *,
        rows: Sequence[Row],
        is_whole: bool = False,
    ) -> None:
        """Write rows in shards that are held, if every hold is good and every number is new."""
        table = self._opened()
        self._note_server()
        held = {hold.shard for hold in holds}
        assert {shard_of(row.task.name, len(table.shards)) for row in rows} <= held
        if refused := [
            hold.shard
            for hold, number in holds.items()
            if not (self._is_good(member, hold, number) and self._is_open_for_work())
        ]:
            raise ShardsLostError(store=self.name, shards=refused)
        present = sum(self._is_writable(row.task, held, is_whole) for row in rows)
        if present != len(rows):
            raise TaskListMismatchError(expected=len(rows), actual=present)
        if is_whole:
            self._change(Change(rows, ()))
        else:
            self._put(map(self._saved, rows))
        for hold, number in holds.items():
            table.shards[hold.shard].number = number

    async def note_start_up(self, member: int, start_up: StartUp, /) -> None:
        """Have every view show when the first machine started up."""
        self._opened()
        if not self._is_alive(member, self._now_us()):
            raise SeatLostError(store=self.name)
        self.table.start_up = start_up

    async def timers(self, shards: Sequence[int] | None = None, /) -> Sequence[TimerRow]:
        """The timers of *shards*, or of all."""
        table = self._opened()
        return [row for (shard, _), row in sorted(table.timers.items()) if shards is None or shard in shards]

    async def write_timers(
        self,
        member: int,
        hold: Hold,
        number: int,
        /,
        *,
        put: Sequence[TimerRow],
        removed: Sequence[int],
        edition: int | None = None,
    ) -> None:
        """Write timers of a shard that is held, if the hold is good, and the number and the edition new."""
        table = self._opened()
        assert {row.shard for row in put} <= {hold.shard}
        if not self._is_good(member, hold, number):
            raise ShardsLostError(store=self.name, shards=[hold.shard])
        newest = len(table.editions)
        if edition is not None and newest > edition:
            raise SupersededError(store=self.name, edition=edition, newest=newest)
        for timer_id in removed:
            table.timers.pop((hold.shard, timer_id), None)
        for row in put:
            table.timers[hold.shard, row.record[0]] = row._replace(record=tuple(row.record))
        table.shards[hold.shard].number = number

    async def ask(self, request: Request, /) -> None:
        """Leave a request, unless it is there, and forget those of long ago."""
        table, oldest_us = self._opened(), self._now_us() - REQUEST_FORGOTTEN_US
        table.requests = {
            at: asked for at, asked in table.requests.items() if asked.request.until_us > oldest_us
        }
        table.requests.setdefault(request.id, RequestRow(request))

    async def take_requests(self, member: int, holds: Sequence[Hold], /) -> Sequence[Request]:
        """Take what is asked of *member* in these shards."""
        table = self._opened()
        good = {hold.shard for hold in holds if table.shards[hold.shard].term == hold.term}
        taken = [asked for asked in self._requested(member) if asked.request.shard in good]
        for asked in taken:
            asked.taken_by = member
        return sorted((asked.request for asked in taken), key=lambda request: (request.until_us, request.id))

    async def answer(self, member: int, request_id: int, answer: str, /) -> None:
        """Answer a request that *member* has taken."""
        asked = self._opened().requests.get(request_id)
        if asked is not None and asked.taken_by == member and asked.answer is None:
            asked.answer = answer

    async def reply(self, request_id: int, /, *, withdraws: bool = False) -> Reply | None:
        """What has become of a request, which is taken back if it can and is to be."""
        table = self._opened()
        asked = table.requests.get(request_id)
        if asked is not None and asked.taken_by is None and withdraws:
            del table.requests[request_id]
        return None if asked is None else Reply(asked.taken_by, asked.answer)

    async def report(self, member: int, ends: Sequence[AwayEnd], /) -> None:
        """Put the ends of away runs on their rows."""
        table = self._opened()
        for end in ends:
            entry = table.entries.get(end.task_id) or table.removed.get(end.task_id)
            if entry is None or (entry.run_by, entry.started_us) != (member, end.started_us):
                continue
            table.removed.pop(end.task_id, None)
            if entry.ended_us is None:
                entry.ended_us, entry.is_failed = end.ended_us, end.is_failed

    async def give(self, member: int, holds: Sequence[Hold], /) -> None:
        """Give up shards."""
        table = self._opened()
        for hold in holds:
            if (shard := table.shards[hold.shard]).holder == member and shard.term == hold.term:
                shard.holder = None

    async def leave(self, member: int, /) -> None:
        """Give up everything, and be no member any more."""
        self._opened().members.pop(member, None)
        self._vacate(member)

    async def close(self) -> None:
        """Disconnect."""
        self._is_open = False

    async def drop(self) -> None:
        """Disconnect."""
        self._is_open = False

    def _opened(self) -> Table:
        if not self._is_open:
            raise StoreError(store=self.name, reason="is not open")
        return self.table

    def _note_server(self, ttl_us: int = 0) -> None:
        """If another server has come to answer, close it for the longest lease that it knows."""
        table, server, now_us = self.table, self._server(), self._now_us()
        if table.server != server:
            longest_us = max([ttl_us or self._ttl_us, *(seat.ttl_us for seat in table.members.values())])
            table.server, table.since_us, table.open_us = server, now_us, now_us + longest_us
            for seat in table.members.values():
                seat.lease_us = min(seat.lease_us, table.open_us)

    def _is_open_for_work(self) -> bool:
        return not self.table.since_us <= self._now_us() < self.table.open_us

    def _all(self, now_us: Instant) -> list[Stored]:
        """All rows, and then the removed ones."""
        stored = [self._stored(entry, now_us) for entry in _sorted(self.table.entries)]
        return stored + [
            self._stored(entry, now_us, is_removed=True) for entry in _sorted(self.table.removed)
        ]

    def _seat(self, member: int) -> SeatRow:
        seat = self._opened().members.get(member)
        if seat is None:
            raise SeatLostError(store=self.name)
        return seat

    def _is_alive(self, member: int | None, now_us: Instant) -> bool:
        seat = None if member is None else self.table.members.get(member)
        return seat is not None and seat.lease_us > now_us

    def _may_live(self, member: int | None, now_us: Instant) -> bool:
        is_closed = not self._is_open_for_work()
        return self._is_alive(member, now_us) or (is_closed and member in self.table.members)

    def _is_good(self, member: int, hold: Hold, number: int) -> bool:
        shard = self.table.shards[hold.shard]
        return (shard.holder, shard.term) == (member, hold.term) and shard.number < number

    def _is_writable(self, task: Task, held: set[int], is_whole: bool) -> bool:
        if any(_is_of(entry, {task.id}, {task.name}) for entry in self.table.removed.values()):
            return False
        entry = self.table.entries.get(task.id)
        return is_whole if entry is None else entry.shard in held

    def _vacate(self, member: int) -> None:
        for shard in self.table.shards:
            if shard.holder == member:
                shard.holder = None

    def _supersede(self, change: Change, now_us: Instant) -> None:
        table = self.table
        gone = {at: table.entries[at] for at in change.removed if at in table.entries}
        self._change(change)
        ids, names = {row.task.id for row in change.put}, {row.task.name for row in change.put}
        table.removed = {
            at: entry
            for at, entry in (table.removed | gone).items()
            if entry.started_us is not None
            and entry.ended_us is None
            and self._may_live(entry.run_by, now_us)
            and not _is_of(entry, ids, names)
        }

    def _change(self, change: Change) -> None:
        kept = set(self.table.entries) - set(change.removed) - {row.task.id for row in change.put}
        names = [*(self.table.entries[at].record[1] for at in kept), *(row.task.name for row in change.put)]
        if len(set(names)) != len(names):
            raise StoreError(store=self.name, reason="has another task of the same name")
        for task_id in change.removed:
            self.table.entries.pop(task_id, None)
        self._put(map(self._entry, change.put))

    def _entry(self, row: Row) -> TaskRow:
        shard = shard_of(row.task.name, len(self.table.shards))
        return TaskRow(record_of(row.task), shard, row.run_by, row.task.running_since_us)

    def _saved(self, row: Row) -> TaskRow:
        before = self.table.entries[row.task.id]
        record = (*before.record[:4], *state_of(row.task), before.record[-1])
        return TaskRow(record, before.shard, row.run_by, row.task.running_since_us)

    def _put(self, entries: Iterable[TaskRow]) -> None:
        for entry in entries:
            before = self.table.entries.get(entry.record[0])
            run = (entry.run_by, entry.started_us)
            if before is not None and None not in run and run == (before.run_by, before.started_us):
                entry.ended_us, entry.is_failed = before.ended_us, before.is_failed
            self.table.entries[entry.record[0]] = entry

    def _stored(self, entry: TaskRow, now_us: Instant, *, is_removed: bool = False) -> Stored:
        is_alive = self._may_live(entry.run_by, now_us)
        return Stored(entry.record, entry.run_by, is_alive, entry.ended_us, entry.is_failed, is_removed)

    def _view(self, member: int | None) -> View:
        table, now_us = self.table, self._now_us()
        seats = [
            Seat(
                member=number,
                name=seat.name,
                edition=seat.edition,
                is_alive=seat.lease_us > now_us,
                joined_us=seat.joined_us,
                beaten_us=seat.beaten_us,
                lag_ms=seat.lag_ms,
                is_leaving=seat.is_leaving,
            )
            for number, seat in table.members.items()
        ]
        places = [
            Place(at, shard.term, shard.holder, shard.taken_us, shard.lost_by, shard.lost_us)
            for at, shard in enumerate(table.shards)
        ]
        seats.sort(key=lambda seat: (seat.joined_us, seat.member))
        newest = table.editions[-1] if table.editions else ""
        requested = [Waiting(asked.request.id, asked.request.shard) for asked in self._requested(member)]
        return View(
            now_us,
            len(table.editions),
            seats,
            places,
            list(self._reported(member)),
            newest,
            server=self.table.server,
            is_open=self._is_open_for_work(),
            requested=requested,
            start_up=table.start_up,
        )

    def _requested(self, member: int | None) -> list[RequestRow]:
        table, now_us = self.table, self._now_us()
        return [
            asked
            for _, asked in sorted(table.requests.items())
            if member is not None
            and asked.request.shard < len(table.shards)
            and table.shards[asked.request.shard].holder == member
            and asked.answer is None
            and asked.request.until_us > now_us
            and asked.taken_by in {None, member}
        ]

    def _reported(self, member: int | None) -> Iterable[Reported]:
        for task_id, entry in sorted(self.table.entries.items()):
            is_held = member is not None and self.table.shards[entry.shard].holder == member
            if not is_held or entry.ended_us is None:
                continue
            assert entry.started_us is not None
            assert entry.run_by is not None
            end = AwayEnd(task_id, entry.started_us, entry.ended_us, entry.is_failed)
            yield Reported(end, entry.run_by)


def _sorted(entries: Mapping[int, TaskRow]) -> Iterable[TaskRow]:
    return (entry for _, entry in sorted(entries.items()))


def _is_of(entry: TaskRow, ids: AbstractSet[int], names: AbstractSet[str]) -> bool:
    return entry.record[0] in ids or entry.record[1] in names
