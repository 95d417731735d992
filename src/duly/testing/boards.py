"""The suites that boards pass, and the board in memory that passes them first.

For a board of your own, subclass `BoardConformance` in a test module and give it two fixtures: `another`,
a function that makes a new board object on one and the same place (empty before the first call), and
`time`, which moves the board's clock and changes its server. Sentences of `duly.store.board` are its tests.
If daemons are to share it, subclass `TimerBoardConformance`, which is both.
"""

from duly.testing.board_holds import HoldStories
from duly.testing.board_lists import ListStories
from duly.testing.board_removals import RemovalStories
from duly.testing.board_requests import RequestStories
from duly.testing.board_servers import ServerStories
from duly.testing.board_stories import Another, AnotherTimerBoard, Time
from duly.testing.board_timers import TimerStories
from duly.testing.board_writes import WriteStories
from duly.testing.memory_board import MemoryBoard
from duly.testing.memory_table import Table

__all__ = [
    "Another",
    "AnotherTimerBoard",
    "BoardConformance",
    "MemoryBoard",
    "Table",
    "Time",
    "TimerBoardConformance",
]


class BoardConformance(HoldStories, WriteStories, ListStories, RemovalStories, ServerStories):
    """What a board must do. Subclass it and give it the fixtures `another` and `time`."""


class TimerBoardConformance(BoardConformance, TimerStories, RequestStories):
    """What a board that daemons share must do."""
