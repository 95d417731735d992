"""The board: the one thing that the members of a cluster share, and what each of them may do to it.

Tasks are divided into shards by their names. A shard is held by at most one member, and its `term` grows by
one whenever it changes hands: the fencing token. A member is known by a number that it drew for one life; its
lease says until when it is believed to live, and only the board's clock counts for that. Each write names the
term of every shard it touches and a number that grows within the term; the board refuses, whole, a write that
names an old one. So a member that was silent for too long can do no harm, and a write that comes late, behind
its own repetition, changes nothing.

A run may outlast its member's hold on the shard (it was given away, or a newer list came). The run then
is *away*: the row says who runs it, its runner reports the end on the row, and the holder of the shard takes
it from there. If the runner dies meanwhile the holder finds it interrupted.

A list may remove a task whose run goes on. Its row is then *removed*: nobody takes, writes or is told it, but
it is shown to whoever publishes, so that a task that comes back finds its run. It is forgotten when the run
is reported to have ended, when its runner is dead, and when a list puts a task of its id or its name.

Another *server* may come to answer for a board: it was restarted, or it is a standby that lacks the latest
commits. It is *closed* then, for as long as the longest lease lasts: no shard can be taken, no task be
written by who holds its shard, and whoever ran a task may do so still. Meanwhile each member tells it what
runs (`claim`), or loses its lease and cuts that off: so whoever takes a shard afterwards finds all runs in
it, whatever was forgotten.

An *edition* is a list of registrations that took effect in the whole cluster. Publishing a new one takes
every shard from its holder. Boards do no thinking beyond that: who should hold what is decided in
`cluster.balance`.

Daemons share timers in the same way (`TimerBoard`). The rows of timers are opaque here and always written
whole. A new edition may leave the shards with their holders; then it is the edition, named with each write
that begins runs, that keeps anybody from starting by an older list.

A machine that does not hold a timer can leave a *request* for whoever does. It is taken once, by a holder of
its shard and before its time is over, and answered by who took it. Until it is taken it can be withdrawn.

`duly.testing.boards.BoardConformance` is the suite that every board passes, `TimerBoardConformance` that of
boards for daemons.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from duly.core.record import Record
from duly.core.task import Task
from duly.errors import StoreError
from duly.instant import SECOND_US, Instant

TTL_US = 6 * SECOND_US
"""How long a lease lasts unless the board is told otherwise."""

SHARDS = 32
"""Into how many shards a new board divides its tasks."""


def shard_of(name: str, shards: int) -> int:
    """The shard of the task *name* on a board of so many *shards*: CRC-32 of its UTF-8 bytes, modulo."""
    return zlib.crc32(name.encode(errors="surrogatepass")) % shards


class Hold(NamedTuple):
    """A shard and the term for which it is held."""

    shard: int
    term: int


class Stored(NamedTuple):
    """The row of a task: its record, and what the board knows of its run."""

    record: Record
    """As `core.record.COLUMNS` has it."""
    run_by: int | None = None
    """The member that runs it, as of the record."""
    is_runner_alive: bool = False
    """Whether the lease of that member is good, or could be, as the board is closed."""
    ended_us: Instant | None = None
    """When that member says the run ended; the record does not know it yet."""
    is_failed: bool = False
    """Whether it failed."""
    is_removed: bool = False
    """Whether a list has removed the task, and only its run is left. Shown to none but those who publish."""


class Row(NamedTuple):
    """A task to be written, and which member runs it: None unless `running_since_us` is set."""

    task: Task
    run_by: int | None = None


class TimerRow(NamedTuple):
    """The row of a timer: its shard, its record, and which member runs it."""

    shard: int
    record: Sequence[Any]
    """As `timers.record.COLUMNS` has it, the id and the name first: numbers, texts, nulls."""
    run_by: int | None = None


class Request(NamedTuple):
    """What somebody asks of the member that holds a shard, whoever that is."""

    id: int
    """Drawn at random, like the number of a member: asking again with the same one changes nothing."""
    shard: int
    timer: str
    verb: str
    asker: str
    """The name of the machine that asks."""
    until_us: Instant
    """Who has not taken it before this instant does not get it any more."""


class Waiting(NamedTuple):
    """A request that its holder has not answered yet."""

    id: int
    shard: int


class Reply(NamedTuple):
    """What has become of a request."""

    taken_by: int | None = None
    answer: str | None = None


class AwayEnd(NamedTuple):
    """The end of an away run, as its runner reports it."""

    task_id: int
    started_us: Instant
    """`running_since_us` of the row: which run it was."""
    ended_us: Instant
    """Earlier than `started_us` if it has no end: it was cut off, or never called."""
    is_failed: bool

    @classmethod
    def cut(cls, task_id: int, started_us: Instant) -> "AwayEnd":
        """What is to be reported of a run that its member has cut off, or never called."""
        return cls(task_id, started_us, started_us - 1, is_failed=False)


class Reported(NamedTuple):
    """An end that stands on the row of a task, for the holder of its shard to take."""

    end: AwayEnd
    run_by: int


class Seat(msgspec.Struct, frozen=True):
    """One member, as the board has it."""

    member: int
    name: str
    """What people call it: host and process. Nothing depends on it."""
    edition: int
    is_alive: bool
    """Whether its lease is good, by the board's clock."""
    joined_us: Instant
    beaten_us: Instant
    """When it last renewed its lease."""
    lag_ms: int
    """How late it starts things, as it says itself."""
    is_leaving: bool
    """Whether it wants no shards any more: it is stopping."""


class Place(msgspec.Struct, frozen=True):
    """One shard, as the board has it."""

    shard: int
    term: int
    holder: int | None
    taken_us: Instant
    lost_by: int | None = None
    """From whom it was taken at its last failover: a member whose lease had run out."""
    lost_us: Instant | None = None
    """When that was."""


class StartUp(NamedTuple):
    """When the machines of a cluster, the first of them, started up."""

    at_us: Instant
    opened_us: Instant
    """What was to come so long after it is not to come any more if that was up to here."""


class View(msgspec.Struct, frozen=True):
    """What the board looks like at one instant."""

    now_us: Instant
    """The time of the board."""
    edition: int
    """The newest edition; 0 before the first."""
    seats: Sequence[Seat]
    places: Sequence[Place]
    """In the order of shards, each there once."""
    reported: Sequence[Reported] = ()
    """The ends of away runs in the shards that the asking member holds."""
    fingerprint: str = ""
    """Of the newest edition; empty before the first."""
    server: str = ""
    """Which server answered: another one may have forgotten the latest commits. Empty if there is but one."""
    requested: Sequence[Waiting] = ()
    """What is asked of the asking member, by id: requests in the shards that it holds, before their time is
    over, that nobody has taken, or it has itself and not answered yet."""
    is_open: bool = True
    """Whether it can be worked on: another server that has come to answer is closed for a while."""
    start_up: StartUp | None = None
    """As the first machine has noted it; None before that."""


class Taken(NamedTuple):
    """Shards that were just taken, with the tasks in them."""

    holds: Sequence[Hold]
    stored: Sequence[Stored]
    now_us: Instant


class Published(NamedTuple):
    """What became of a list that a member brought."""

    edition: int
    """The edition that the member's list has."""
    is_current: bool
    """Whether that is the newest one. If not, a newer list is in effect and a living member has it."""
    is_new: bool
    """Whether it has just become so: the shards are nobody's now, unless they stay with their holders."""


class Change(NamedTuple):
    """What a new edition makes of the tasks."""

    put: Sequence[Row]
    removed: Sequence[int]
    """By id; those that are not there, or removed already, are passed over."""


Decide = Callable[[Sequence[Stored], Instant, str], Change]
"""What a new list makes of all stored tasks, at this time of the board, for this scheduler identifier. It is
called inside the transaction, perhaps twice, perhaps in a thread."""


class ShardsLostError(StoreError):
    """A write named shards that are not held for that term any more; nothing was written."""

    def __init__(self, *, store: str, shards: Sequence[int]) -> None:
        self.shards = frozenset(shards)
        numbers = ", ".join(map(str, sorted(shards)))
        why = "another member has them, or another server of the database has come to answer"
        super().__init__(store=store, reason=f"shards {numbers} are not held any more: {why}")


class SupersededError(StoreError):
    """A write would have begun runs by an edition that a newer one has replaced; nothing was written."""

    def __init__(self, *, store: str, edition: int, newest: int) -> None:
        self.edition = edition
        self.newest = newest
        reason = (
            f"a newer list is in effect (edition {newest}); nothing is started by edition {edition} any more"
        )
        super().__init__(store=store, reason=reason)


class SeatLostError(StoreError):
    """The board does not know this member any more; it must join anew."""

    def __init__(self, *, store: str) -> None:
        super().__init__(store=store, reason="does not know this member any more; it joins anew")


@runtime_checkable
class Board(Protocol):
    """What the members of a cluster share. Every call is one transaction, durable when it returns.

    Each raises StoreError when the board cannot be reached or refuses; of a call that raised, nobody knows
    whether it took effect, unless it raised ShardsLostError, SupersededError or SeatLostError: those did not.
    """

    @property
    def name(self) -> str:
        """What to call it in messages: an address without secrets."""
        ...

    @property
    def ttl_us(self) -> int:
        """How long the lease of a member lasts unless it is renewed."""
        ...

    async def open(self, new_id: str, /, *, shards: int = SHARDS) -> str:
        """Connect, make the tables if there are none, and give the scheduler identifier.

        With an empty *new_id* nothing is made: if there is no board yet it raises StoreError.
        """
        ...

    async def join(self, member: int, name: str, /, *, ttl_us: int) -> None:
        """Become *member*, with a lease of *ttl_us*. It has no edition and no shard yet.

        The caller draws the number at random from 62 bits: a database that lost its latest commits would
        give a counted one a second time.
        """
        ...

    async def beat(self, member: int, /, *, ttl_us: int, lag_ms: int = 0, is_leaving: bool = False) -> View:
        """Renew the lease and look at the board. A lease that ran out is renewed all the same.

        Raises SeatLostError if there is no such member.
        """
        ...

    async def view(self) -> View:
        """Look at the board as an outsider."""
        ...

    async def publish(self, member: int, fingerprint: str, decide: Decide, /) -> Published:
        """Bring the list with this *fingerprint*, and make it the newest edition if it should be.

        It should be, if no list was ever published, or this one never was, or it was and no living member
        (other than this one) has a newer one. Then, in the same transaction: *decide* is asked and its change
        written, the shards become nobody's (each with its next term), and the edition's number is one more
        than the last. A task that is removed while a living member runs it, and has not reported the end,
        leaves a removed row; those whose runner is dead are forgotten. If the newest edition has this very
        fingerprint, it is current and nothing is written but that the member has it. Raises SeatLostError.
        """
        ...

    async def take(self, member: int, shards: Sequence[int], /) -> Taken:
        """Take those of *shards* that are nobody's, or this member's own, or held by a dead member.

        Each gets its next term. Gives the tasks in the shards that were taken. Raises SeatLostError unless
        the member's lease is good. None can be taken while the board is closed.
        """
        ...

    async def claim(self, member: int, decide: Decide, /) -> None:
        """Put right what another server has forgotten, whoever holds the shards: *decide* says which rows.

        It is asked with all rows, as when a list is published. What it puts replaces rows whole; those among
        them that it names as removed leave a removed row. Raises SeatLostError.
        """
        ...

    async def write(
        self,
        member: int,
        holds: Mapping[Hold, int],
        /,
        *,
        rows: Sequence[Row],
        is_whole: bool = False,
    ) -> None:
        """Write *rows*, all in the shards held: what running changed; with *is_whole* all of it, new or not.

        The value of each hold is the number of the write within its term, which must be higher than any that
        the board has seen. Raises ShardsLostError with those that are refused (all of them while the board is
        closed), TaskListMismatchError if a row
        is not there, or has the id or the name of one that was removed. An end reported by the runner of an
        away run stays until the row names another run.
        """
        ...

    async def report(self, member: int, ends: Sequence[AwayEnd], /) -> None:
        """Put the ends of away runs on their rows, and forget the removed rows among them.

        Those that are no longer this member's are passed over.
        """
        ...

    async def give(self, member: int, holds: Sequence[Hold], /) -> None:
        """Give up shards; those that are not held for that term any more are passed over."""
        ...

    async def leave(self, member: int, /) -> None:
        """Give up everything, and be no member any more."""
        ...

    async def close(self) -> None:
        """Disconnect. Opening it again is allowed."""
        ...

    async def drop(self) -> None:
        """Disconnect as a crash of the process would."""
        ...


@runtime_checkable
class TimerBoard(Board, Protocol):
    """A board whose shards can hold timers too, for daemons."""

    async def publish(
        self, member: int, fingerprint: str, decide: Decide, /, *, displaces: bool = True
    ) -> Published:
        """As every board does it; but unless it *displaces* anybody, the shards stay with their holders."""
        ...

    async def note_start_up(self, member: int, start_up: StartUp, /) -> None:
        """Have every view show *start_up* from now on. Raises SeatLostError unless the lease is good."""
        ...

    async def timers(self, shards: Sequence[int] | None = None, /) -> Sequence[TimerRow]:
        """The timers of *shards* (of all, if None), by shard and id. Anybody may look.

        Of a row that somebody has damaged, so that it cannot be read, the record is the id and the name.
        """
        ...

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
        """Write rows of one shard: forget those *removed*, by id, then put others whole, new or not.

        Ids that are not there are passed over, so that the same can be written again, with a higher number.
        *number* counts the writes of the shard, together with those of `write`, and what is not current is
        refused in the same way: ShardsLostError. With the *edition* by which rows begin runs it is refused
        when a newer one is in effect: SupersededError.
        """
        ...

    async def ask(self, request: Request, /) -> None:
        """Leave a request, unless one with its id is there. Those whose time was long ago are forgotten."""
        ...

    async def take_requests(self, member: int, holds: Sequence[Hold], /) -> Sequence[Request]:
        """Take what is asked of *member* in these shards (`View.requested`), those that end first first.

        Holds that are not good are passed over. What this member has taken and not answered is given to it
        again, so that a taking whose outcome is unknown can be repeated; nobody else ever gets it.
        """
        ...

    async def answer(self, member: int, request_id: int, answer: str, /) -> None:
        """Answer a request that *member* has taken, and only such a one. The first answer stands."""
        ...

    async def reply(self, request_id: int, /, *, withdraws: bool = False) -> Reply | None:
        """What has become of a request; None if there is none.

        With *withdraws*, one that nobody has taken is taken back: it is shown once more, and is gone.
        """
        ...
