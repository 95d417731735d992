"""A member of a cluster that is being recorded: hears what it takes, gives and loses, and writes it down.

It is a listener like any other, of a few kinds of event; the scheduler does not know it from the rest. For
the starts and ends of runs it says to which shard a task belongs, and for which term that is held.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from duly.events import Event
from duly.verify.cluster.lives import shard_of
from duly.verify.ledger import Hold, Ledger
from duly.verify.trace import Edition, Given, Lost, Reachable, Taken, Unreachable

HEARD = (
    *("ShardsTaken", "ShardsGiven", "ShardsLost", "EditionPublished", "BoardFault", "BoardRecovered"),
    *("MemberJoined", "ServerChanged"),
)
"""The events that say what becomes of a member."""

Regs = list[tuple[str, str, float]]


class Membership(NamedTuple):
    """What the header of a member's trace says."""

    name: str
    shards: int
    failover_us: int
    """How long a shard may be without a living holder."""


class Announces(Protocol):
    """Something that tells events to those who ask for them by name."""

    def listen(self, listener: Callable[[Event], object], names: Sequence[str], /) -> None:
        """Tell *listener* of these events from now on."""
        ...


class Holdings:
    """Writes down what a member holds, and knows it."""

    def __init__(self, ledger: Ledger, shards: int) -> None:
        self._ledger = ledger
        self._shards = shards
        self._edition = 0
        self._server = ""
        self._is_in_touch = True
        self.brought: dict[int, Regs] = {}
        """The lists of calls that have not returned. A scheduler serves them one after the other."""
        self._regs: Regs = []
        """The list of the latest call that took effect."""

    def __call__(self, event: Event) -> None:
        """Hear of an event."""
        match event.name:
            case "ShardsTaken":
                self._edition = event.fields.get("edition", self._edition)
                self._take(event.fields["shards"], event.fields.get("from"))
            case "ShardsGiven":
                self._let_go(Given, event.fields["shards"])
            case "ShardsLost":
                self._let_go(Lost, event.fields["shards"])
            case "EditionPublished":
                self._edition = event.fields["edition"]
                regs = next(iter(self.brought.values()), self._regs)
                self._ledger.write(Edition, edition=self._edition, regs=regs, server=self._server)
            case "MemberJoined" | "ServerChanged":
                self._server = event.fields.get("server", "")
            case "BoardFault" if self._is_in_touch:
                self._is_in_touch = False
                self._ledger.write(Unreachable)
            case "BoardRecovered" if not self._is_in_touch:
                self._is_in_touch = True
                self._ledger.write(Reachable)

    def settle(self, call: int, *, ok: bool) -> None:
        """Note that a call has returned."""
        regs = self.brought.pop(call)
        if ok:
            self._regs = regs

    def place_of(self, task: str) -> dict[str, int | None]:
        """Where *task* belongs, and for which term that is held: what its runs say of themselves."""
        shard = shard_of(task, self._shards)
        held = self._ledger.holds.get(shard)
        return {"shard": shard, "term": held.term if held is not None else None}

    def note_cut(self, place: Mapping[str, int | None]) -> None:
        """Write down that a run was cut off, whose shard may have been given away since it began."""
        if place["term"] is not None:
            self._ledger.write(Lost, **place)

    def _take(self, holds: Sequence[Sequence[int]], origin: str | None) -> None:
        for shard, term in holds:
            hold = Hold(term, self._edition, self._server)
            self._ledger.write(Taken, shard=shard, origin=origin, **hold._asdict())
            self._ledger.holds[shard] = hold

    def _let_go(self, kind: type[Any], holds: Sequence[Sequence[int]]) -> None:
        for shard, term in holds:
            self._ledger.write(kind, shard=shard, term=term)
            held = self._ledger.holds.get(shard)
            if held is not None and held.term == term:
                del self._ledger.holds[shard]
