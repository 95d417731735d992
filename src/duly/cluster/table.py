"""What nodes ask of the database: one request is one message, one transaction, and nothing in between.

Every request is a value with a typed answer. `duly.cluster.postgres` carries it out with SQL;
`tests/worlds/model_table.py` carries it out on dictionaries, for the simulation. Both pass one suite
(`tests.conformance.table_suite`), so what a request means is said here and checked there.

A table belongs to one namespace. The time of the database decides what is due. Only a scheduler that was
given a clock of its own says the time itself, with each claim.

What there is one of for each run is not tracked by the garbage collector (`gc=False`): such values hold
no others but such. In a burst that is a quarter of what a node costs.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from duly.instant import NEVER_US, Instant

A = TypeVar("A")

SUSPECT_FROM = 2
"""A task with this many interruptions in a row is restarted alone, to find out whether it is the cause."""
BACK_OFF_FROM = 3
"""From this interruption on, a restart waits: a lease, then twice as long each time, at most an hour."""
LONGEST_BACK_OFF_US = 3600 * 1_000_000
ASLEEP_US = NEVER_US - 1
"""When a row is due that rests because of an option of its node: nodes with another list may have another."""
_LONGEST_NAME = 1_000


def row_name(name: str) -> str:
    """What the row of a task is called: a name that is too long for an index has a shorter one."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:200]}… {blake2b(name.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


class Hasher:
    """Hashes of all names that have one definition: a million of them take half the time of `hash_of`."""

    def __init__(self, definition: str) -> None:
        self._begun = blake2b(f"{definition}\0".encode(errors="surrogatepass"), digest_size=8)

    def hash_of(self, name: str) -> int:
        """64 bits that stand for a definition and its name; never 0, which a removed row has."""
        said = self._begun.copy()
        said.update(name.encode(errors="surrogatepass"))
        return int.from_bytes(said.digest(), signed=True) or 1


def hash_of(name: str, definition: str) -> int:
    return Hasher(definition).hash_of(name)


class TableRequest(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Something that a table does, and answers with an A."""


# --- being a node ---


class Peer(NamedTuple):
    """Another living node, as a heartbeat shows it."""

    node: int
    name: str
    beat: int
    lease_us: int


class Pulse(NamedTuple):
    """What the database shows with a heartbeat."""

    now_us: Instant
    server: str
    """Which server answered: another one after every restart and failover."""
    timeline: str
    """The server's line of history: a promoted standby begins a new one."""
    open_timeline: str
    """The timeline on which claims are open."""
    seq: int | None
    """The sequence number on my row; None: I am fenced, or my row is not there."""
    has_forgotten: bool
    """My row is missing, or older than what was acknowledged to me."""
    peers: Sequence[Peer]
    generation: int
    next_wake_us: Instant | None
    """When the next row that nobody runs is due."""
    cancelled: Sequence[tuple[str, int]] = ()
    """The runs of mine that somebody wants to end, by name and token."""
    busy: Mapping[str, int] = MappingProxyType({})
    """How many runs other nodes have in each named limit."""


class Join(TableRequest[Pulse], frozen=True, kw_only=True):
    """Become a node. Makes the namespace if there is none."""

    node: int
    name: str
    lease_us: int
    version: str


class Heartbeat(TableRequest[Pulse], frozen=True, kw_only=True):
    """Raise my counter, unless I am fenced or the server has forgotten what it acknowledged (*acked*).

    That is also the check of a new server: if my row has *acked*, the server becomes the one that I trust.
    The sequence number is raised only from the next request on.
    """

    node: int
    acked: int
    gen: int = 0
    """The generation of which this node claims rows: the next wake is among those."""
    kinds: Sequence[str] = ()
    """The kinds of entries that it claims."""
    lag_us: int = 0
    """How late its latest claim was."""


class Taken(NamedTuple):
    """A run that a fence has cut off."""

    name: str
    interruptions: int
    """How many times in a row."""
    wake_us: Instant
    """When it is due to be started once more."""


class Fence(TableRequest[Sequence[Taken] | None], frozen=True, kw_only=True):
    """Declare a node dead whose counter is still *beat*. The runs that it had; None: it is not so."""

    by: str
    node: int
    beat: int


class OpenTimeline(TableRequest[None], frozen=True, kw_only=True):
    """Let claims begin on *timeline*: everybody has had a lease to restore what the server forgot."""

    timeline: str


class LeaveCluster(TableRequest[None], frozen=True, kw_only=True):
    """Be a node no more. It has no runs."""

    node: int


# --- claiming and ending ---


class Claimed(msgspec.Struct, gc=False):
    """A row that is ours until we end it, or are fenced; the node notes on it what becomes of its run."""

    id: int
    name: str
    hash: int
    token: int
    state: str
    """As before the start. A claim does not write it."""
    started_us: Instant
    cut_us: Instant | None
    """When the run began that was cut off and is to be started once more. After several in a row it is when
    the first began, or the last if the row has a target."""
    interruptions: int
    request: str | None
    """What the row is asked (`Ask`)."""
    wake_us: Instant = 0
    """Since when it was due; 0: somebody asked for it. If it is given back it is so again: the oldest is
    claimed first."""
    enabled: bool | None = None
    """Switched on or off by a person; None: as declared."""
    definition: str | None = None
    """Only of an entry: no node has it in its list."""
    suspect_until_us: int = 0
    """Until then, by the steady clock, this node claims no other suspect."""
    is_called: bool = False
    is_cut: bool = False
    """Its run was cut off here. The next node that claims the row starts it once more."""

    def end(
        self,
        state: str | None,
        wake_us: Instant,
        request: str | None = None,
        run: "RunRecord | None" = None,
    ) -> "RowEnd":
        """What becomes of the row."""
        return RowEnd(
            self.id, self.name, self.hash, self.token, self.started_us, state, wake_us, request, run
        )


class RunRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run that has ended, for the history. Of a task also one that was cut off."""

    run_id: str
    """Of a task: the origin of the run, of which its id is made. Of a timer: its number. Empty, as the cause
    is, if the run was cut off: its node knew both."""
    cause: str
    called_us: Instant
    ended_us: Instant
    result: str
    error: str | None = None
    output: str | None = None
    """The tail of its output; of a task the traceback."""
    scheduled_us: Instant | None = None
    attempt: int | None = None


class RowEnd(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a claimed row: its run has ended, or there was none."""

    id: int
    name: str
    hash: int
    """Of the definition that was claimed. If the row has another by now, it is only released."""
    token: int
    started_us: Instant
    state: str | None
    """The new state. None: it was not called, and stays as before the claim."""
    wake_us: Instant
    request: str | None = None
    """The request that was claimed. It is answered, unless the state is None. If another has come meanwhile,
    that one stands, and the row is due at once."""
    run: RunRecord | None = None


class Work(NamedTuple):
    """The answer to `Claim`."""

    seq: int | None
    """The sequence number on my row; None: refused. Rows may be claimed all the same, if a heartbeat made the
    node known to the server meanwhile. It has to come back then."""
    now_us: Instant
    written: Sequence[int]
    """The ids of the ends that were written. The others' rows are not ours any more."""
    claimed: Sequence[Claimed]
    next_wake_us: Instant | None
    is_open: bool
    """Whether claims are open; ends may be written before."""


class Claim(TableRequest[Work], frozen=True, kw_only=True):
    """Write *ends*, then claim up to *limit* due rows of generation *gen* or older, oldest first.

    Entries are of no generation. They are claimed by the nodes that have their kind.

    Refused if the node is fenced, has not checked this server, or the server has forgotten *acked*. No row is
    claimed before every living node has checked it, and before its timeline is open.
    """

    node: int
    gen: int
    acked: int = 0
    ends: Sequence[RowEnd] = ()
    limit: int = 0
    also: Sequence[int] = ()
    """Rows of newer generations that this node has, too."""
    kinds: Sequence[str] = ()
    but: Sequence[str] = ()
    """Rows to leave, by name: this node has no room for them."""
    wanted: Sequence[str] = ()
    """Rows to claim by name, whether or not they are due or paused: a person asks for a run here."""
    with_suspect: bool = True
    """Whether one row with many interruptions may be among them."""
    now_us: Instant | None = None
    due_us: Instant | None = None
    """Rows are due up to then, not up to now: a clock that was set back undoes no due."""
    look_again_us: int | None = None
    """Rows that were last claimed later than now by more than this are due, too. The clock was set back by
    much, and what such a row waits for may be a mistake. So are rows that are asleep (`ASLEEP_US`)."""


class Room(NamedTuple):
    """What a claimed row takes before it starts: a place in a limit of so many runs."""

    id: int
    """Of the row."""
    limit: str
    """The name of a limit; or the target of the row, whose size is 1."""
    size: int
    record: RunRecord | None = None
    """Of a target: what the history says of its run if that is cut off. Nobody else knows its number and its
    cause."""


class TakeRoom(TableRequest[Sequence[int] | None], frozen=True, kw_only=True):
    """Take room for claimed rows that are to start; the ids of the rows that got it.

    A limit holds for the runs of all nodes, at its size as this node has it. The end of a run gives its room
    back. None: refused, as a claim would be. A row with a target that got no room was not started.
    """

    node: int
    rooms: Sequence[Room]
    acked: int = 0


class Returned(NamedTuple):
    """The answer to `ComeBack`."""

    kept: Sequence[tuple[str, int]]
    """The names and ids of the runs that are ours still."""
    has_forgotten: bool
    """The server lacked something that it had acknowledged, and got it back with this request."""


class ComeBack(TableRequest[Returned], frozen=True, kw_only=True):
    """Give up the ids *before* and go on as *node*: afterwards no late statement of theirs has any effect.

    The *ends* are written. The *kept* runs are relabelled. The runs that were *cut* are to be started once
    more. All else that *before* had is released: it was claimed, and never called. Rows are found by name and
    token here. If the server has forgotten *acked*, the rows of *kept*, *ends* and *cut* are first restored
    as running, and those *remembered* as ended, where the token of the row is not newer. The server itself
    says so, because a node may come back to another server than the one that it left. In *kept* and *cut*
    the state is the one before the run.
    """

    before: Sequence[int]
    """Several, if answers to earlier attempts were lost."""
    node: int
    name: str
    lease_us: int
    version: str
    kept: Sequence[RowEnd] = ()
    ends: Sequence[RowEnd] = ()
    cut: Sequence[RowEnd] = ()
    acked: int = 0
    """The sequence number that was acknowledged to the first of *before*."""
    timeline: str = ""
    """Where that was. If the server is on that timeline and has forgotten *acked*, claims are closed for a
    lease: a disk was set back, and others may run what no row says."""
    remembered: Sequence[RowEnd] = ()
    """Ends that were acknowledged lately, oldest first."""


# --- lists ---


class Digest(NamedTuple):
    """A list in three numbers: equal digests are equal lists."""

    rows: int
    hashes: int
    """The sum of all hashes."""
    generation: int
    startup_us: Instant | None = None
    """When the first node started up (`StartUp`)."""


class ReadDigest(TableRequest[Digest], frozen=True, kw_only=True):
    """The digest of the stored list."""


class Listed(NamedTuple):
    """One row of a list."""

    id: int
    name: str
    hash: int
    gen: int


class ReadList(TableRequest[Sequence[Listed]], frozen=True, kw_only=True):
    """The rows of generations after *after*; all of them with 0."""

    after: int = 0


class Put(NamedTuple):
    """A row to be added, or put in place of one with another definition."""

    name: str
    hash: int
    definition: str
    state: str
    wake_us: Instant
    target: str | None = None
    paused: bool = False


class ListOutcome(NamedTuple):
    """What a list changed."""

    generation: int
    added: Sequence[str]
    overridden: Sequence[tuple[str, str]]
    """Names, and the definitions before."""
    orphaned: Sequence[tuple[str, str]]
    """Names, and the last states."""
    refused_for: Sequence[str] = ()
    """The living nodes that would lose all their tasks; then nothing was changed."""
    is_other: bool = False
    """Somebody has changed the list since it was read, so nothing was changed: compare again."""


class Reconcile(TableRequest[ListOutcome], frozen=True, kw_only=True):
    """Make a list the stored one: *put* rows, and the rows *removed* by name.

    Nothing is changed if the generation is not *base*: somebody else has changed the list since it was read.
    A task that is removed and still runs is kept, as removed, until its run ends.
    """

    node: int
    put: Sequence[Put]
    removed: Sequence[str]
    base: int
    replace: bool = False
    """Whether all tasks of other living nodes may go."""


# --- one row ---


class SetPaused(TableRequest[bool], frozen=True, kw_only=True):
    """Pause a task, or let it go on. Whether there is such a task."""

    name: str
    is_paused: bool


class CancelRun(TableRequest[bool], frozen=True, kw_only=True):
    """Have the node that runs a task cancel that run. Whether there is a run."""

    name: str


class Ask(TableRequest[bool], frozen=True, kw_only=True):
    """Have rows claimed soon by nodes that understand *text*. Whether there is one of these rows.

    Several texts of one row are joined by ";".
    """

    names: Sequence[str]
    text: str


def run_request(name: str, number: int | str) -> Ask:
    """Ask a task to run now. With a *number*, because one that comes during a run is another request.

    An app begins it with the time.
    """
    return Ask(names=[row_name(name)], text=f"run {number}")


def asked_us(request: str, now_us: Instant) -> Instant:
    """When a row was first asked to run, by what it is asked."""
    numbers = [int(asked.split()[1]) for asked in request.split(";") if asked.startswith("run ")]
    return min([now_us, *numbers])


def is_asked(request: str | None, number: str) -> bool:
    """Whether a row is asked still what `run_request` asked with that number."""
    return f"run {number}" in (request or "").split(";")


class Switch(TableRequest[bool], frozen=True, kw_only=True):
    """Switch a row on or off for those who run it, or None: as declared. Whether there is such a row."""

    name: str
    enabled: bool | None


class StartUp(TableRequest[None], frozen=True, kw_only=True):
    """Note when the first node of this namespace started up."""

    at_us: Instant


class PutOne(TableRequest[str | None], frozen=True, kw_only=True):
    """Add one entry of a *kind*, or change it. With the same hash it keeps its state, and is looked at soon.

    The definition that it had, "" if it is new; None: a task of a list has that name, and nothing was done.
    """

    put: Put
    kind: str


class RemoveOne(TableRequest[bool], frozen=True, kw_only=True):
    """Remove one task. A run of it goes on, and its end is not kept. Whether there was one."""

    name: str
    is_entry: bool = False
    """Only if it is an entry."""


# --- looking ---


class NodeView(NamedTuple):
    """A node, as people want to see it."""

    node: int
    name: str
    beat: int
    lease_us: int
    version: str
    lag_us: int
    joined_us: Instant
    seen_us: Instant
    fenced_us: Instant | None
    fenced_by: str | None
    runs: Sequence[str]
    """What it runs; of one that was fenced, what it ran then."""

    def state(self, now_us: Instant) -> str:
        """living, silent or fenced."""
        if self.fenced_us is not None:
            return "fenced"
        return "living" if now_us - self.seen_us < self.lease_us else "silent"


class Nodes(NamedTuple):
    """All nodes at one moment, also those that were fenced lately."""

    now_us: Instant
    """By the clock of the database."""
    all: Sequence[NodeView]

    @property
    def present(self) -> list[NodeView]:
        return sorted((node for node in self.all if node.fenced_us is None), key=lambda node: node.name)

    @property
    def failovers(self) -> list[NodeView]:
        """Those that others have fenced, latest first. Who came back has fenced itself: that is none."""
        fenced = [node for node in self.all if node.fenced_us is not None]
        fenced = [node for node in fenced if node.fenced_by != node.name or node.runs]
        return sorted(fenced, key=lambda node: node.fenced_us or 0, reverse=True)


class ReadNodes(TableRequest[Nodes], frozen=True, kw_only=True):
    """The time, and all nodes, also those that were fenced lately."""


class TaskView(NamedTuple):
    """A task, as people want to see it."""

    name: str
    definition: str
    state: str
    wake_us: Instant
    paused: bool
    run_by: str | None
    started_us: Instant | None
    token: int
    interruptions: int
    target: str | None
    enabled: bool | None = None
    kind: str | None = None
    """Only of an entry."""
    request: str | None = None
    """What it was asked (`Ask`) and has not answered."""
    cut_us: Instant | None = None
    """As in `Claimed`."""


class ReadTasks(TableRequest[Sequence[TaskView]], frozen=True, kw_only=True):
    """The tasks, or only the one called *name*; in order of their names, from the first or after *after*."""

    name: str | None = None
    after: str = ""
    limit: int = 1000


class PastRun(NamedTuple):
    """A run that has ended, of whatever node."""

    id: int
    name: str
    node: str
    token: int
    started_us: Instant
    run: RunRecord


class ReadRuns(TableRequest[Sequence[PastRun]], frozen=True, kw_only=True):
    """The latest runs, newest first: of one task or all, older than the one whose id is *before*.

    Every part has an index: what is read depends on *limit*, not on how many runs there are.
    """

    name: str | None = None
    run: tuple[str, str] | None = None
    """Only this one: the name of its node, and its run id. It is found if it has output, be it empty."""
    before: int | None = None
    before_us: Instant | None = None
    """Only runs that were claimed before then."""
    since_us: Instant | None = None
    """Only runs that were claimed then or later."""
    result: str | None = None
    """Only runs that ended so. There is no index for that: all of that time are read."""
    limit: int = 100
    with_output: bool = False


class PastBucket(NamedTuple):
    """The runs of a task that were claimed in one part of a span, and ended in one way."""

    name: str
    part: int
    result: str
    number: int
    run_id: str
    """Of the newest of them."""
    first_us: Instant
    last_us: Instant
    """When the last of them ended."""
    node: str
    """Which ran the newest of them."""


class ReadBuckets(TableRequest[Sequence[PastBucket]], frozen=True, kw_only=True):
    """How many runs of these tasks were claimed in each part of a span, by how they ended; in that order.

    Read by the index of names: what is read depends on how many runs those tasks have in the span.
    """

    names: Sequence[str]
    from_us: Instant
    to_us: Instant
    width_us: int


class ReadOldestXmin(TableRequest[int], frozen=True, kw_only=True):
    """How many transactions old the oldest snapshot is that anybody holds, as far as this role may see.

    While it is held, the server keeps the old versions of rows that were claimed since, and every claim reads
    past them.
    """


class Prune(TableRequest[int], frozen=True, kw_only=True):
    """Forget runs that ended before *before_us*, at most *limit* of them; how many were forgotten."""

    before_us: Instant
    limit: int = 5000


class PruneEach(TableRequest[str | None], frozen=True, kw_only=True):
    """Forget all runs but the latest *keep* of each of the next tasks after *after*, in order of their names.

    The name to go on after; None: there are no more. So many *names* are looked at, and of each at most
    *limit* runs are forgotten.
    """

    keep: int
    after: str = ""
    names: int = 100
    limit: int = 1000


class ClusterTable(Protocol):
    """A table of one namespace, used by one thread. Raises StoreError when it is unknown what was done."""

    def do(self, request: TableRequest[A], /) -> A: ...

    def close(self) -> None: ...
