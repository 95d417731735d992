"""Faults inside the poller that are not the store's: a bug of ours, a clock that fails, rules that raise.

A fault is told once per distinct error (`PollFailed`), and its end once (`PollRecovered`). What failed is
tried again after a pause of the loop's time, because the clock may be what failed.
"""

from duly.events import Announcer, described, where_raised

RETRY_PAUSE_S = 1.0


class PollFaults:
    """The faults that stand, by the part of the poller that failed."""

    def __init__(self, announcer: Announcer) -> None:
        self._announce = announcer.announce
        self._standing: dict[str, str] = {}

    def is_standing(self, part: str) -> bool:
        """Whether the last attempt of *part* failed."""
        return part in self._standing

    def note(self, part: str, error: Exception) -> None:
        """Tell that *part* failed, unless that was told already."""
        is_new = self._standing.get(part) != described(error)
        self._standing[part] = described(error)
        if is_new:
            self._announce("PollFailed", error=described(error), where=where_raised(error))

    def clear(self, part: str) -> None:
        """Note that *part* works, and tell so if nothing else fails."""
        if self._standing and (error := self._standing.pop(part, None)) is not None and not self._standing:
            self._announce("PollRecovered", error=error)

    def forget(self) -> None:
        """Begin anew."""
        self._standing.clear()
