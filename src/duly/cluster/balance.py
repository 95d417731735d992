"""Balance: which shards a member should take, and which it should give away, by what the board shows.

Every member decides for itself and only for itself; the board settles who was first. All of them reckon with
the same quotas, so they come to rest: each member that has the newest list gets an equal share, and one that
starts things late keeps what it has at most. Members with an older list get nothing while there is another
with the newest. What nobody holds is taken at once, and so is what a dead member held, unless the taker has
itself been without the board a moment ago: then the others are given time to come back first. What is still
a dead member's after a while is anybody's, whoever should have it: its rightful taker may be one of those.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from duly.store.board import Seat, View

LAGGING_MS = 2_000
"""A member that starts things so late is given no more."""


class Plan(NamedTuple):
    """What a member should do next."""

    take: tuple[int, ...] = ()
    give: tuple[int, ...] = ()


def planned(
    view: View, member: int, held: Iterable[int], *, may_take_over: bool, overdue_us: int = 2**62
) -> Plan:
    """What *member*, which holds the shards *held*, should do by this *view*.

    *may_take_over*: whether it has been in touch with the board for so long that a dead member is dead.
    *overdue_us*: after so much silence of its holder anybody takes a shard.
    """
    mine = sorted(held)
    quotas = quotas_of(view)
    quota = quotas.get(member, 0)
    alive = {seat.member for seat in view.seats if seat.is_alive}
    others = {place.shard for place in view.places if place.holder in alive and place.holder != member}
    free = [
        place.shard
        for place in view.places
        if place.shard not in others
        and place.shard not in mine
        and (place.holder in {None, member} or may_take_over)
    ]
    overdue = _overdue(view, free, overdue_us) if member in quotas else set()
    if len(mine) > quota and not overdue:
        # Only when somebody else should have more: otherwise they would be nobody's.
        wanting = sum(_lack(view, quotas, other) for other in quotas if other != member)
        surplus = min(len(mine) - quota, max(wanting - len(free), 0))
        return Plan(give=tuple(mine[len(mine) - surplus :]))
    # Each begins at a place of its own, so that members who wake together seldom reach for the same shard.
    ranks = sorted(quotas)
    begin = ranks.index(member) * len(free) // len(ranks) if member in quotas else 0
    turned = free[begin:] + free[:begin]
    return Plan(take=tuple(sorted(overdue.union(turned[: max(quota - len(mine), 0)]))))


def _overdue(view: View, free: Iterable[int], overdue_us: int) -> set[int]:
    """Those of *free* whose holder is dead and has been silent for too long."""
    beaten_us = {seat.member: seat.beaten_us for seat in view.seats}
    silent = {member for member, us in beaten_us.items() if view.now_us - us >= overdue_us}
    return {shard for shard in free if view.places[shard].holder in silent}


def quotas_of(view: View) -> dict[int, int]:
    """How many shards each member should have; together they are all shards, if anybody is there."""
    able = _able(view)
    if not able:
        return {}
    held = _held(view)
    shards = len(view.places)
    quotas: dict[int, int] = {}
    # Those that lag keep at most what they have, and the rest is shared by the others.
    brisk = [seat for seat in able if seat.lag_ms <= LAGGING_MS]
    if not brisk:
        brisk = able
    lagging = [seat for seat in able if seat not in brisk]
    fair = shards // len(able)
    for seat in lagging:
        quotas[seat.member] = min(held.get(seat.member, 0), fair)
    rest = shards - sum(quotas.values())
    share, more = divmod(rest, len(brisk))
    # Who holds more already keeps the odd one, so that nothing moves without need.
    by_holding = sorted(brisk, key=lambda seat: (-held.get(seat.member, 0), seat.member))
    for n, seat in enumerate(by_holding):
        quotas[seat.member] = share + (n < more)
    return quotas


def _able(view: View) -> list[Seat]:
    """The members that should hold shards: those whose list is the newest that a living member has."""
    staying = [seat for seat in view.seats if seat.is_alive and not seat.is_leaving and seat.edition > 0]
    newest = max((seat.edition for seat in staying), default=0)
    return [seat for seat in staying if seat.edition == newest]


def _held(view: View) -> Mapping[int, int]:
    held: dict[int, int] = {}
    for place in view.places:
        if place.holder is not None:
            held[place.holder] = held.get(place.holder, 0) + 1
    return held


def _lack(view: View, quotas: Mapping[int, int], member: int) -> int:
    return max(quotas[member] - _held(view).get(member, 0), 0)


def first_of(view: View, member: int) -> bool | None:
    """Whether *member*, which has just joined, is the first; None as long as an elder one may be."""
    living = [seat for seat in view.seats if (seat.is_alive and not seat.is_leaving) or seat.member == member]
    if any(seat.edition for seat in living):
        return False
    eldest = min(living, key=lambda seat: (seat.joined_us, seat.member))
    return True if eldest.member == member else None
