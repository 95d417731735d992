"""How lengths of time are spoken of, wherever people read them: tables, pages, lists of firings. Pure.

One unit where there is little room (`5m ago`, `in 2h`), two where there is more (`1m 12s`). A unit never
reaches the next one: sixty minutes are an hour.
"""

from duly.instant import SECOND_US, Instant

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def apart(at_us: Instant, now_us: Instant) -> str:
    """How far an instant lies from *now_us*, in its largest unit: "5m ago", "in 2h", "now"."""
    apart_us = at_us - now_us
    if apart_us > 0:
        # Rounded up, so that what comes in half a second is not said to be here.
        return f"in {_one_unit(-(-apart_us // SECOND_US))}"
    passed_s = -apart_us // SECOND_US
    return f"{_one_unit(passed_s)} ago" if passed_s else "now"


def two_units(seconds: int) -> str:
    """Whole seconds in the two largest units that they have: "8s", "1m 12s", "2d 4h"."""
    parts = []
    for unit_s, unit in _UNITS:
        number, seconds = divmod(seconds, unit_s)
        parts.append((number, unit))
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number) or "0s"


def _one_unit(seconds: int) -> str:
    unit_s, unit = next((entry for entry in _UNITS if seconds >= entry[0]), _UNITS[-1])
    return f"{seconds // unit_s}{unit}"
