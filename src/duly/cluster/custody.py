"""Which custody a scheduler has: sole on a store of its own, or a member's on a board."""

import os
import socket

from duly.clock import Watchable
from duly.cluster.clock import BoardClock, steady_us
from duly.cluster.member import Member
from duly.engine.custody import Custody
from duly.engine.sole import Sole
from duly.events import Announcer
from duly.store import Board, Store


def custody_of(
    place: Store | Board,
    clock: Watchable,
    announcer: Announcer,
    *,
    max_concurrent_runs: int | None,
    run_timeout_us: int | None,
) -> Custody:
    """The custody of the tasks that *place* keeps."""
    if isinstance(place, Board):
        return Member(
            place,
            clock,
            announcer,
            name=f"{socket.gethostname()}:{os.getpid()}",
            max_concurrent_runs=max_concurrent_runs,
            run_timeout_us=run_timeout_us,
            steady=clock.steady if isinstance(clock, BoardClock) else steady_us,
        )
    return Sole(
        place, clock, announcer, max_concurrent_runs=max_concurrent_runs, run_timeout_us=run_timeout_us
    )
