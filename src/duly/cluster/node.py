"""A node: one scheduler of a cluster, its lease, its rows, and what it says to the database next.

The one invariant (docs/spec/claims.md): a body acts only while its node trusts its lease, and a row leaves a
node only after that trust is over, or in a transaction of the node itself.

A node is a state machine: it has no clock, no thread and no connection. Two sides use it, both under `lock`:

- The heartbeat thread asks `next_request`, carries it out and reports `on_answer` or `on_error`. It sends
  heartbeats, fences the dead, and brings the node back under a new id when an answer or trust was lost,
  somebody has fenced it, or a server has forgotten.
- The event loop claims and ends runs (`duly.cluster.backend`). It asks `is_trusted` before it calls a body
  and before each step of one, and cuts its runs off when trust is over.

An id is given up for good with `ComeBack`, so a statement that was lost on the way and is executed late finds
its node fenced. Until the answer comes (`is_returning`) no answer to a claim counts: its rows are being
released.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from duly.cluster.table import (
    BACK_OFF_FROM,
    SUSPECT_FROM,
    Claim,
    Claimed,
    ComeBack,
    Fence,
    Heartbeat,
    OpenTimeline,
    Peer,
    Pulse,
    Returned,
    Room,
    RowEnd,
    TableRequest,
    Taken,
    TakeRoom,
    Work,
)
from duly.errors import StoreError
from duly.instant import SECOND_US, Instant, back_off, iso
from duly.marks import mark

_replace = msgspec.structs.replace

BEATS = 6
"""Heartbeats in the time of a lease."""
_MARGIN = 6
"""Trust ends a sixth of the lease early, for clocks that drift and loops that are slow to cancel."""
_REMEMBERED_US = 60 * SECOND_US
_REMEMBERED_LEASES = 10
"""So long a node knows how its runs ended, for a server that has forgotten it."""
_LONGEST_RETRY_US = SECOND_US
_RETRY_US = 100_000
"""How soon the database is asked again after a fault, and how soon a return is tried again."""
_SOON_US = 100_000
"""How far apart heartbeats are at least, however many requests are notified."""


class Health(NamedTuple):
    """How a node is, for metrics."""

    nodes: int
    """The living nodes that its last heartbeat has shown, itself included."""
    heartbeat_age_s: float
    lag_s: float
    """How late its latest claim was."""
    oldest_xmin_age: int
    """How many transactions old the oldest snapshot is for which the server keeps dead rows."""


class Node:
    """One node. *steady* is a clock that never jumps, in microseconds; *draw* gives new ids.

    *emit* is called with what happened, in whatever thread; *on_change* whenever the event loop should look.
    """

    def __init__(
        self,
        *,
        name: str,
        version: str,
        lease_us: int,
        steady: Callable[[], int],
        draw: Callable[[], int],
    ) -> None:
        self.name = name
        self.version = version
        self.lease_us = lease_us
        self.beat_us = lease_us // BEATS
        self._trust_us = lease_us - lease_us // _MARGIN
        self._steady = steady
        self._draw = draw
        # Reentrant: `on_answer` and `on_error` call methods of the event loop's side.
        self.lock = threading.RLock()
        self.emit: Callable[[str, dict[str, Any]], None] = lambda _name, _fields: None
        self.on_change: Callable[[], None] = lambda: None
        self.on_idle: Callable[[], None] = lambda: None
        """Called in the heartbeat thread, several times a second, while there is nothing to send."""
        self.on_fault: Callable[[Exception | None], None] = lambda _error: None
        self.on_trust: Callable[[int], None] = lambda _until_us: None
        """Called with the end of trust whenever that is another, also in the heartbeat thread."""
        self.may_return: Callable[[], bool] = lambda: True
        """Whether nothing is left of the runs that were cut off: a return gives their rows to others."""
        self.kept_us: int | None = None
        """How long the history remembers runs, as the program says, and how many of each task."""
        self.kept_runs: int | None = None
        self.renew()

    is_joined = False
    unfinished: ComeBack | None = None
    """What to say first in a new life, if the last one did not end in order."""

    def renew(self) -> None:
        """Start over, under a new id and with no rows."""
        self.unfinished = self._unfinished()
        self.is_joined = False
        self.id = self._draw() if self.unfinished is None else self.unfinished.node
        self._former: list[int] = []
        """Ids of returns whose answers were lost."""
        self.generation = 0
        """The generation of the list that this node has; 0: it has none, and claims nothing."""
        self.also: list[int] = []
        """Rows of newer generations that this node has, too."""
        self.kinds: list[str] = []
        """The kinds of entries that this node claims."""
        self.held: dict[str, Claimed] = {}
        self._suspects: list[Claimed] = []
        """Those among them that keep other suspects from being claimed here."""
        self.ends: dict[str, RowEnd] = {}
        """Ends that the database has not acknowledged, by name."""
        self.lag_us = 0
        """How late the latest claim was."""
        self.oldest_xmin_age = 0
        self.pulse: Pulse | None = None
        """What the last heartbeat has shown."""
        self.pulse_asked = (0, 0)
        """When it was sent and when it was answered, by the steady clock."""
        self.trusted_until_us = 0
        self.is_returning = False
        self.is_leaving = False
        self._acked = 0
        self._server = ""
        self._is_claiming = False
        """A claim is on its way, or its answer waits for the loop."""
        self._is_in_doubt = False
        self._is_fenced = False
        self._has_forgotten = False
        self._is_restored = False
        """The server to which this node came back had forgotten commits; ServerChanged says so."""
        self._acked_timeline = ""
        self._closed_timeline = ""
        self._closed_since_us = 0
        self._observer = Observer(3 * self.beat_us)
        self._dead: list[Peer] = []
        self._fencing: Peer | None = None
        self._withdrawn: list[RowEnd] = []
        self._retry_us = _RETRY_US
        self._next_us = 0
        self._remembered: deque[tuple[int, RowEnd]] = deque()

    @property
    def failover_us(self) -> int:
        """How long it may take until others go on with what this node ran: a lease, and time to notice."""
        return 3 * self.lease_us

    def health(self) -> Health | None:
        """How it is, from any thread; None while it is not in the cluster."""
        if (pulse := self.pulse) is None or not self.is_joined:
            return None
        age_s = (self._steady() - self.pulse_asked[0]) / SECOND_US
        return Health(len(pulse.peers) + 1, age_s, self.lag_us / SECOND_US, self.oldest_xmin_age)

    # --- trust ---

    def is_trusted(self) -> bool:
        """Whether nobody can have fenced this node yet."""
        return self._steady() < self.trusted_until_us

    def may_claim(self) -> bool:
        """Whether a claim makes sense now."""
        return (
            self.generation > 0
            and not self.is_leaving
            and not self.is_returning
            and not self._is_lost
            and self.is_trusted()
        )

    @property
    def _is_lost(self) -> bool:
        """Whether the node must come back under a new id before it does anything else."""
        return self._is_in_doubt or self._is_fenced or self._has_forgotten

    def joined(self, pulse: Pulse, sent_us: int) -> None:
        """Note the answer to the first `Join`."""
        with self.lock:
            self.is_joined, self.unfinished = True, None
            self._on_pulse(pulse, sent_us, self._steady())

    # --- the heartbeat thread ---

    def next_request(self) -> tuple[TableRequest[Any] | None, int]:
        """What to send now, or None and until when there is nothing to send."""
        with self.lock:
            now_us = self._steady()
            if self.trusted_until_us and now_us >= self.trusted_until_us and not self.is_leaving:
                self._is_in_doubt = True  # the others may have gone on without this node
            # The order matters. A lost node sends nothing but its return. What it gives up and whom it
            # fences comes before the heartbeat: others wait for those rows.
            if self._is_lost:
                if now_us < self._next_us:
                    return None, self._next_us
                return self._come_back(now_us)
            if self._withdrawn:
                ends, self._withdrawn = self._withdrawn, []
                return Claim(node=self.id, gen=0, acked=self._acked, ends=ends), now_us
            if self._dead:
                self._fencing = peer = self._dead.pop()
                return Fence(by=self.name, node=peer.node, beat=peer.beat), now_us
            if self._is_timeline_to_open(now_us):
                assert self.pulse is not None
                return OpenTimeline(timeline=self.pulse.timeline), now_us
            if now_us < self._next_us:
                return None, self._next_us
            self._next_us = now_us + self.beat_us
            beat = Heartbeat(
                node=self.id,
                acked=self._acked,
                gen=self.generation,
                kinds=self.kinds,
                lag_us=self.lag_us,
            )
            return beat, now_us

    def on_answer(self, request: TableRequest[Any], answer: Any, sent_us: int) -> None:
        """Note the answer to a request of `next_request`."""
        with self.lock:
            heard_us, self._retry_us = self._steady(), _RETRY_US
            if isinstance(request, Heartbeat):
                if request.node == self.id:
                    self._on_pulse(answer, sent_us, heard_us)
            elif isinstance(request, Claim):
                self.on_work(request, answer)
            elif isinstance(request, ComeBack):
                self._returned(request, answer, sent_us)
            elif isinstance(request, Fence):
                if answer is not None:
                    self._on_fenced(request.node, answer)
            else:
                assert isinstance(request, OpenTimeline)
                self._closed_since_us = heard_us  # the next heartbeat shows whether it is open
                self._next_us = heard_us
        self.on_fault(None)

    def on_error(self, request: TableRequest[Any], error: Exception) -> None:
        """Note that a request of `next_request` has failed, or that nobody knows what became of it."""
        with self.lock:
            self._next_us = self._steady() + self._retry_us
            # At most half a heartbeat: a fault that is over must not cost the lease.
            self._retry_us = max(
                back_off(self._retry_us, min(self.beat_us // 2, _LONGEST_RETRY_US)), _RETRY_US
            )
            is_undone = isinstance(error, StoreError) and error.is_undone
            if isinstance(request, ComeBack):
                self.is_returning = False
                if not is_undone:  # it may take effect yet: the next attempt gives up that new id as well
                    mark("return lost")
                    self._former.append(request.node)
            elif isinstance(request, Claim):
                if is_undone:
                    self._withdrawn += request.ends
                else:
                    self.on_lost_answer(request)
        self.on_fault(error)

    def on_notified(self) -> None:
        """Note that somebody has asked something of a row: send the next heartbeat soon."""
        with self.lock:
            if not self._is_lost:
                self._next_us = min(self._next_us, self.pulse_asked[0] + _SOON_US)

    def withdraw(self) -> None:
        """Give up rows that are claimed and not called: the loop is blocked, and others can run them.

        If the answer to a claim waits for the loop, its rows are known to the database only: come back.
        """
        with self.lock:
            if self._is_claiming:
                mark("claim withdrawn")
                self._is_claiming, self._is_in_doubt, self._next_us = False, True, 0
            for held in list(self.held.values()):
                if not held.is_called and held.name not in self.ends:
                    mark("start withdrawn")
                    del self.held[held.name]
                    self._withdrawn.append(held.end(None, held.wake_us))

    def _on_fenced(self, node: int, taken: Sequence[Taken]) -> None:
        """Emit that a node is declared dead, and which tasks seem to be the cause."""
        mark("node fenced")
        assert self._fencing is not None
        runs = [run.name for run in taken]
        self.emit("NodeFenced", {"node": node, "name": self._fencing.name, "runs": runs})
        for run in taken:
            if run.interruptions >= BACK_OFF_FROM:
                retry_at = iso(run.wake_us, UTC)
                again = {"taskName": run.name, "interruptions": run.interruptions, "retryAt": retry_at}
                self.emit("TaskInterruptedAgain", again)
        self.on_change()

    def _on_pulse(self, pulse: Pulse, sent_us: int, heard_us: int) -> None:
        self.pulse, self.pulse_asked = pulse, (sent_us, heard_us)
        self._check_server(pulse)
        if pulse.timeline == pulse.open_timeline:
            self._closed_timeline = ""
        elif pulse.timeline != self._closed_timeline:
            self._closed_timeline, self._closed_since_us = pulse.timeline, heard_us
        if pulse.has_forgotten:
            self._has_forgotten, self.generation, self._next_us = True, 0, 0
            self._observer.forget()
        elif pulse.seq is None:
            mark("found fenced")
            self._is_fenced, self._next_us = True, 0
            # No trust is left, whatever an earlier heartbeat gave: the rows may be claimed by others
            # already.
            self.trusted_until_us = min(self.trusted_until_us, heard_us)
        else:
            self._acked, self._acked_timeline = max(self._acked, pulse.seq), pulse.timeline
            # From when the heartbeat was sent. Others count the lease from when they saw it, which is
            # later. So trust here ends before they may fence this node, however long the answer took.
            self.trusted_until_us = max(self.trusted_until_us, sent_us + self._trust_us)
            self._dead = self._observer.look(list(pulse.peers), sent_us, heard_us)
        self._forget_old_ends(heard_us)
        # Last: who is called sees the node as it is after this heartbeat.
        self.on_trust(self.trusted_until_us)
        self.on_change()

    def _check_server(self, pulse: Pulse) -> None:
        if self._server not in {"", pulse.server}:
            mark("another server")
            self._observer.forget()
            has_forgotten = pulse.has_forgotten or self._is_restored
            self.emit("ServerChanged", {"server": pulse.server, "forgot": has_forgotten})
        self._server, self._is_restored = pulse.server, False

    def _is_timeline_to_open(self, now_us: int) -> bool:
        pulse = self.pulse
        if pulse is None or pulse.timeline != self._closed_timeline:
            return False
        longest_us = max([self.lease_us, *(peer.lease_us for peer in pulse.peers)])
        return now_us - self._closed_since_us >= longest_us

    # --- coming back ---

    def _come_back(self, now_us: int) -> tuple[TableRequest[Any] | None, int]:
        is_cut_off = self._is_fenced or now_us >= self.trusted_until_us
        running = [held for held in self.held.values() if held.is_called and held.name not in self.ends]
        if not self.may_return():
            return None, now_us + _RETRY_US
        if is_cut_off and any(not held.is_cut for held in running):
            self.on_change()  # the event loop has yet to cut them off
            return None, now_us + _RETRY_US
        mark("comes back")
        self.is_returning = True
        return self._return(running), now_us

    def _return(self, running: list[Claimed]) -> ComeBack:
        return ComeBack(
            before=[self.id, *self._former],
            node=self._draw(),
            name=self.name,
            lease_us=self.lease_us,
            version=self.version,
            kept=[held.end(held.state, 0) for held in running if not held.is_cut],
            ends=list(self.ends.values()),
            cut=[held.end(held.state, 0) for held in running if held.is_cut],
            acked=self._acked,
            timeline=self._acked_timeline,
            remembered=list({end.name: end for _, end in self._remembered}.values()),  # the latest of each
        )

    def _unfinished(self) -> ComeBack | None:
        """How to give up the id of a life that could not leave, with the ends that it could not write."""
        if (earlier := self.unfinished) is not None:
            before = [*earlier.before, earlier.node]
            return _replace(earlier, before=before, node=self._draw())
        if not self.is_joined:
            return None
        running = [held for held in self.held.values() if held.is_called and held.name not in self.ends]
        for held in running:
            held.is_cut = True
        return self._return(running)

    def _returned(self, request: ComeBack, answer: Returned, sent_us: int) -> None:
        self.is_returning = self._is_in_doubt = self._is_fenced = self._has_forgotten = False
        # The return wrote the row of the new id: that was its first request.
        before, self.id, self._acked = self.id, request.node, 1
        ids = dict(answer.kept)
        if answer.has_forgotten:
            self.generation, self._is_restored = 0, True  # the list may be forgotten, too
        self._former.clear()
        self.trusted_until_us = sent_us + self._trust_us
        self._next_us = 0
        self._observer.forget()
        self._dead = []
        for end in request.ends:
            if self.ends.get(end.name) is end:
                self._remember(self.ends.pop(end.name))
                self.held.pop(end.name, None)
        kept, released = [], []
        for held in list(self.held.values()):
            if held.name not in ids:
                held.is_cut = True  # also if it was to be kept, and is somebody else's by now
                del self.held[held.name]
                released.append(held.name)
                continue
            held.id = ids[held.name]
            if held.name in self.ends:  # it came while the answer was under way
                self.ends[held.name] = _replace(self.ends[held.name], id=held.id)
            if held.is_cut:
                mark("cut off during a return")
                self._is_in_doubt = True  # the row is ours again, and only another return gives it up
            else:
                kept.append(held.name)
        self.on_trust(self.trusted_until_us)
        self.emit("NodeReturned", {"node": self.id, "before": before, "kept": kept, "released": released})
        self.on_change()

    # --- the event loop ---

    def claim(
        self,
        *,
        limit: int,
        ends: int,
        now_us: Instant | None,
        due_us: Instant | None,
        wanted: Sequence[str] = (),
        look_again_us: int | None = None,
        but: Sequence[str] = (),
    ) -> Claim:
        """A claim of *limit* rows and of those *wanted*, which writes up to so many *ends* too."""
        with self.lock:
            # From here until the answer is noted, nobody here knows which rows are ours (`withdraw`).
            self._is_claiming = limit > 0
            steady_us = self._steady()
            self._suspects = [
                held
                for held in self._suspects
                if held.suspect_until_us > steady_us and self.held.get(held.name) is held
            ]
            return Claim(
                node=self.id,
                gen=self.generation,
                acked=self._acked,
                ends=list(islice(self.ends.values(), ends)),
                limit=limit,
                also=self.also,
                kinds=self.kinds,
                but=but,
                wanted=wanted,
                with_suspect=not self._suspects,
                now_us=now_us,
                due_us=due_us,
                look_again_us=look_again_us,
            )

    def on_work(self, request: Claim, work: Work) -> list[Claimed]:
        """Note the answer to a claim; the rows that are ours to run."""
        with self.lock:
            if request.limit:  # else it only wrote ends, and a claim of the loop may be under way
                self._is_claiming = False
            if request.node != self.id or self.is_returning:
                mark("answer of an earlier id")
                return []
            if work.seq is None:
                # A heartbeat that came between the statements has made this server ours: rows are claimed,
                # but the number was not raised. Nothing else than a return releases them.
                self._is_in_doubt |= bool(work.claimed)
                self._next_us = 0  # fenced, or another server: the heartbeat finds out
                return []
            self._acked = max(self._acked, work.seq)
            written = set(work.written)
            for end in request.ends:
                # The same object: the row may have run again since, and have another end that is not
                # written yet.
                if self.ends.get(end.name) is end:
                    del self.ends[end.name]
                    held = self.held.get(end.name)
                    if held is not None and held.token == end.token:
                        del self.held[end.name]
                    if end.id in written and end.state is not None:
                        self._remember(end)
            for row in work.claimed:
                self.held[row.name] = row
                row.wake_us = min(row.wake_us, row.started_us)  # the clock may have been set back since
                if row.interruptions >= SUSPECT_FROM:
                    row.suspect_until_us = self._steady() + self.lease_us
                    self._suspects.append(row)
            return list(work.claimed)

    def take_room(self, rooms: Sequence[Room]) -> TakeRoom:
        with self.lock:
            return TakeRoom(node=self.id, rooms=rooms, acked=self._acked)

    def on_lost_answer(self, request: Claim | TakeRoom) -> None:
        """Note that nobody knows what became of a claim: come back under a new id."""
        with self.lock:
            self._is_claiming = False
            if request.node == self.id:
                mark("answer lost")
                self._is_in_doubt, self._next_us = True, 0

    def on_cut(self) -> None:
        """Note that runs were cut off here: come back, so that they are started once more.

        A heartbeat that was under way may renew the trust, and then nothing else would release their rows.
        """
        with self.lock:
            self._is_in_doubt, self._next_us = True, 0

    def end(self, end: RowEnd) -> None:
        """Have the end of a held row written."""
        with self.lock:
            self.ends[end.name] = end

    def _remember(self, end: RowEnd) -> None:
        if end.state is not None:
            self._remembered.append((self._steady(), _replace(end, run=None)))

    def _forget_old_ends(self, now_us: int) -> None:
        kept_us = max(_REMEMBERED_US, _REMEMBERED_LEASES * self.lease_us)
        while self._remembered and self._remembered[0][0] < now_us - kept_us:
            self._remembered.popleft()


class Observer:
    """Which other nodes are dead: those whose counter stands still for their lease, while one looks.

    The time of a look is not one instant. Stillness begins when the answer was here that showed the counter
    first, and lasts to when the latest look was sent. So it is never overestimated.
    """

    def __init__(self, gap_us: int) -> None:
        self._gap_us = gap_us
        self._seen: dict[int, tuple[int, int]] = {}
        self._heard_us: int | None = None

    def look(self, peers: list[Peer], sent_us: int, heard_us: int) -> list[Peer]:
        """The peers that are dead, by what was asked at *sent_us* and answered at *heard_us*."""
        if self._heard_us is not None and sent_us - self._heard_us > self._gap_us:
            mark("stillness forgotten")
            self._seen.clear()
        self._heard_us = heard_us
        before, self._seen = self._seen, {}
        dead = []
        for peer in peers:
            # One that is new to this look counts as alive: its lease begins now.
            beat, since_us = before.get(peer.node, (peer.beat - 1, heard_us))
            if beat != peer.beat:
                beat, since_us = peer.beat, heard_us
            self._seen[peer.node] = beat, since_us
            if sent_us - since_us >= peer.lease_us:
                dead.append(peer)
        return dead

    def forget(self) -> None:
        self._seen.clear()
        self._heard_us = None
