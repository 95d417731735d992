"""How many different names a set of metrics carries.

Each name is a handful of time series that somebody pays for, and names may be made up at run time. The first
so many are told apart; all others together are called `other`, until some of the first are gone for good.
"""

OTHER = "other"
"""What names beyond the limit are called together."""
MOST_NAMES = 1_000


class Names:
    """The names that are told apart, of each kind so many."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: dict[str, set[str]] = {}

    def label(self, kind: str, name: str) -> str:
        """What to call it."""
        known = self._known.setdefault(kind, set())
        if name in known:
            return name
        if len(known) >= self._most:
            return OTHER
        known.add(name)
        return name

    def forget(self, kind: str, name: str) -> bool:
        """Make room for another name; whether this one had been told apart."""
        known = self._known.get(kind, set())
        is_known = name in known
        known.discard(name)
        return is_known
