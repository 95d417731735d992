"""The lease: how long a member may believe that it holds what it held.

The board lets others take a member's shards when its lease has run out by the board's clock. The member
cannot read that clock when it matters; it counts on its own steady one, from the moment *before* it asked for
the lease, and stops a margin early. So it has let go before anybody else can have taken hold, however slow
the answer was, whatever its wall clock shows; only a steady clock that runs slower than the board's by more
than the margin could deceive it.
"""

from dataclasses import dataclass

_MARGIN = 6
"""The margin is a sixth of the lease: one second of six."""
_BEATS = 3
"""How often a lease is renewed while it lasts."""


@dataclass(slots=True)
class Lease:
    """One member's lease of *ttl_us*, by its own steady clock."""

    ttl_us: int
    trusted_until_us: int | None = None
    """When the member must have let go; None when it holds nothing."""

    @property
    def beat_us(self) -> int:
        """The time between two renewals."""
        return self.ttl_us // _BEATS

    def renew(self, asked_us: int) -> None:
        """Count a renewal that was asked for at *asked_us* and has been granted."""
        until_us = asked_us + self.ttl_us - self.ttl_us // _MARGIN
        # An answer that comes late, behind a later one, takes nothing away.
        self.trusted_until_us = max(until_us, self.trusted_until_us or until_us)

    def end(self) -> None:
        """Trust it no more."""
        self.trusted_until_us = None

    def is_trusted(self, steady_us: int) -> bool:
        """Whether the member holds what it held, for certain."""
        return self.trusted_until_us is not None and steady_us < self.trusted_until_us
