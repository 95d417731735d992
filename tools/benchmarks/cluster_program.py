"""One process of a cluster, of whichever contestant; `python -m tools.benchmarks.cluster_program ORDERS`.

It prints a line of JSON when it takes part: how long that took, and what else it measured. It ends when it is
killed, or when its standard input is closed: no process outlives the benchmark.
"""

import asyncio
import importlib
import json
import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tools.benchmarks.cluster_notes import Notebook

MODULES = {
    "duly": "cluster_on_duly",
    "APScheduler 4": "cluster_on_apscheduler",
    "Procrastinate": "cluster_on_procrastinate",
}


class Orders(NamedTuple):
    """What a process is to do."""

    contestant: str
    url: str
    notes: str
    kind: str
    """`burst`: each task is due at some minutes. `stream`: each starts again and again. `idle`: none."""
    n: int
    minutes: str = ""
    """Of a burst: the minutes of each hour, as cron has them."""
    lease_s: float = 0.0
    """How long a lease lasts; 0 is the default of the contestant."""
    nodes: int = 1
    """How many nodes of duly this process is."""
    is_first: bool = True
    """Whether the tables, and what is to be kept in them, are to be made."""

    @property
    def names(self) -> list[str]:
        """The tasks."""
        return [f"task-{i:06}" for i in range(self.n)]

    @property
    def cron(self) -> str:
        """When the tasks of a burst are due; those of an idle cluster are not for half a day."""
        far = (datetime.now(UTC).hour + 12) % 24  # noqa: TID251 (a benchmark of the host's clock)
        return f"{self.minutes} * * * *" if self.kind == "burst" else f"0 {far} * * *"

    def lasts_s(self, name: str) -> float:
        """How long each run of a task lasts: not all the same, or all of a stream would end together."""
        return 0.5 + int(name.removeprefix("task-")) / self.n if self.kind == "stream" else 0.0


EVERY_S = 2
"""How often a task of a stream starts with the peers: slow enough that none of them falls behind."""


def say_ready(**numbers: float) -> None:
    """Tell the process that started this."""
    print(json.dumps(numbers), flush=True)


def _end_with_parent() -> None:
    os.read(0, 1)  # nobody writes
    os._exit(1)


def main() -> None:
    """Take part."""
    orders = Orders(*json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module = importlib.import_module(f"tools.benchmarks.{MODULES[orders.contestant]}")
    asyncio.run(module.serve(orders, Notebook(Path(orders.notes))))


if __name__ == "__main__":
    main()
