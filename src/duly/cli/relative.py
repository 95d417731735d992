"""How the command speaks of time: how long ago, how far ahead, how long. Pure.

One unit where a table has little room (`5m ago`, `in 2h`), two where a sentence has more (`1m 12s`). A unit
never reaches the next one: sixty minutes are an hour.
"""

from datetime import datetime, timedelta

from duly.instant import instant_of

NONE = "-"
"""What stands for a time that there is none of."""

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_SECOND = timedelta(seconds=1)


def relative(moment: datetime | None, now: datetime) -> str:
    """How far *moment* lies from *now*: "5m ago", "in 2h", "now", or "-" when there is none."""
    if moment is None:
        return NONE
    apart = timedelta(microseconds=instant_of(moment) - instant_of(now))
    if apart > timedelta(0):
        # Rounded up, so that what comes in half a second is not said to be here.
        return f"in {_largest(-(-apart // _SECOND))}"
    passed_s = -apart // _SECOND
    return f"{_largest(passed_s)} ago" if passed_s else "now"


def relative_text(text: str | None, now: datetime) -> str:
    """The same, of an ISO time."""
    return relative(None if text is None else datetime.fromisoformat(text), now)


def length(seconds: float) -> str:
    """A length of time in at most two units: "0.3s", "8s", "1m 12s", "2d 4h"."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    left_s = int(seconds + 0.5)
    parts = []
    for unit_s, unit in _UNITS:
        number, left_s = divmod(left_s, unit_s)
        parts.append((number, unit))
    first = next(index for index, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number)


def _largest(seconds: int) -> str:
    """The largest unit that fits, and how often it does."""
    unit_s, unit = next((entry for entry in _UNITS if seconds >= entry[0]), _UNITS[-1])
    return f"{seconds // unit_s}{unit}"
