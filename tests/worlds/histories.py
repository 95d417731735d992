"""A history of one's own: in memory, or in a store that is open."""

from duly.clock import HostClock
from duly.events import Announcer
from duly.store.history import History, HistoryDatabase
from duly.store.memory import MemoryDatabase


class LooseHistory(History):
    """A history that tells nobody; *database* is in memory unless given."""

    def __init__(self, database: HistoryDatabase | None = None) -> None:
        self.database = MemoryDatabase() if database is None else database
        clock = HostClock()
        super().__init__(self.database, clock, Announcer([], clock.now))
