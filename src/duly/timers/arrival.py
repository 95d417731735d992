"""How a machine comes to a cluster: first, together with the first, or to others who are at work.

A start-up is that of the first machine. Whoever comes before there is a list, or within a lease of that
start-up, is part of it: what is new in the list that it brings may be in no row yet, and is owed its start-up
triggers on whichever machine puts it to work, though they may have come by then.
"""

from datetime import timedelta
from typing import NamedTuple

from duly.cluster.balance import first_of
from duly.cluster.clock import BoardClock
from duly.cluster.tenancy import Tenancy
from duly.instant import Instant
from duly.store.board import StartUp

_LOOKS = 12
"""How often in a lease one looks whether those that joined just before have brought their list."""


class Arrival(NamedTuple):
    """How a machine has come."""

    is_first: bool
    is_before_any_list: bool

    def is_part_of(self, start_up: StartUp | None, now_us: Instant, ttl_us: int) -> bool:
        """Whether it is part of the start-up that the board tells of."""
        is_near = start_up is not None and now_us < start_up.at_us + ttl_us
        return self.is_before_any_list or is_near


async def arrived(tenancy: Tenancy, member: int, clock: BoardClock, ttl_us: int) -> Arrival:
    """Wait until it is known who is the first; nobody waits who is leaving. Raises StoreError."""
    has_waited = False
    while (is_first := first_of(await tenancy.beat(), member)) is None and not tenancy.is_leaving:
        has_waited = True
        await clock.sleep_until(clock.now() + timedelta(microseconds=ttl_us // _LOOKS))
    return Arrival(bool(is_first), has_waited or bool(is_first))
