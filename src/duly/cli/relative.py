"""How the command speaks of times: those of the JSON shapes, which are ISO texts, and lengths in seconds."""

from datetime import datetime

from duly.instant import instant_of
from duly.spoken import apart, two_units

NONE = "-"
"""What stands for a time that there is none of."""


def relative(moment: datetime | None, now: datetime) -> str:
    """How far *moment* lies from *now*: "5m ago", "in 2h", "now", or "-" when there is none."""
    return NONE if moment is None else apart(instant_of(moment), instant_of(now))


def relative_text(text: str | None, now: datetime) -> str:
    """The same, of an ISO time."""
    return relative(None if text is None else datetime.fromisoformat(text), now)


def length(seconds: float) -> str:
    """A length of time in at most two units: "0.3s", "8s", "1m 12s", "2d 4h"."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    return two_units(int(seconds + 0.5))
