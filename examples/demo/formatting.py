"""How the demo speaks of time and number. Pure."""

from collections.abc import Sequence
from datetime import timedelta

_NOW = timedelta(0)


def length(span: timedelta) -> str:
    """A length of time in at most two units: "8s", "1m 12s", "3h 5m", "2d 4h"."""
    return " ".join(_units(span)[:2])


def ago(span: timedelta) -> str:
    """How long ago, in one unit: "8s ago", "3h ago"."""
    return f"{_units(span)[0]} ago"


def length_ahead(span: timedelta) -> str:
    """How far ahead, rounded up, so that "in 1s" is never past: "in 8s", "now"."""
    return f"in {length(timedelta(seconds=-(-span // timedelta(seconds=1))))}" if span > _NOW else "now"


def seconds(milliseconds: float) -> str:
    """A measured duration: "0.3s", "12.0s", "1m 15s"."""
    return (
        f"{milliseconds / 1000:.1f}s"
        if milliseconds < 59_950
        else length(timedelta(milliseconds=milliseconds))
    )


def amount(count: int, one: str, many: str) -> str:
    """A number with its noun: "1 due", "2 dues"."""
    return f"{count} {one if count == 1 else many}"


def joined(names: Sequence[str]) -> str:
    """Names as a sentence lists them: "a", "a and b", "a, b and c"."""
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)


def _units(span: timedelta) -> list[str]:
    """The units of a length, greatest first, without those that are zero; at least the seconds."""
    total_s = max(int(span.total_seconds()), 0)
    minutes, secs = divmod(total_s, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [
        f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (secs, "s")) if count
    ]
    return units or ["0s"]
