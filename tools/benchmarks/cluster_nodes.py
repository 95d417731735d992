"""The processes of a cluster on a database of their own: started one after another, watched, killed."""

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.worlds.postgres import PostgresServer, Servers
from tools.benchmarks import host
from tools.benchmarks.case import Numbers
from tools.benchmarks.cluster_notes import Note, Reading
from tools.benchmarks.cluster_program import Orders

_TEMPLATE = Path("postgres-template")
"""In the folder of this run: the first case makes it, the others copy it."""
APSCHEDULER_4 = Path(sys.prefix).with_name(".venv-bench-apscheduler4") / "bin" / "python"
_LOOK_S = 0.05


class TooSlowError(Exception):
    """Something did not happen in the time it was given."""


class EndedError(Exception):
    """A process of a contestant has ended by itself."""


class NodeProcess:
    def __init__(self, orders: Orders, log: IO[bytes]) -> None:
        python = APSCHEDULER_4 if orders.contestant == "APScheduler 4" else Path(sys.executable)
        if not python.exists():
            raise ModuleNotFoundError("apscheduler 4")
        command = [str(python), "-m", "tools.benchmarks.cluster_program", json.dumps(orders)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._log = Path(log.name)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def await_ready(self, patience_s: float) -> Numbers:
        """Wait until it takes part. The answer is what it says of that."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], patience_s)[0]:
            raise TooSlowError(f"not ready within {patience_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended:\n{self._log.read_text()[-4000:]}")
        numbers: Numbers = json.loads(line)
        return numbers

    def check(self) -> None:
        """Raise EndedError if it has ended."""
        if self._process.poll() is not None:
            raise EndedError(f"a process ended:\n{self._log.read_text()[-4000:]}")

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.communicate()


class Nodes:
    """The processes of one contestant, and what their tasks noted."""

    def __init__(self, orders: Orders, reading: Reading, log: IO[bytes]) -> None:
        self.orders = orders
        self._log = log
        self.reading = reading
        self.alive: list[NodeProcess] = []

    def begin(self, patience_s: float) -> Numbers:
        """Start one more, and wait until it takes part. The answer is what it says of that."""
        self.alive.append(NodeProcess(self.orders._replace(is_first=not self.alive), self._log))
        return self.alive[-1].await_ready(patience_s)

    def kill(self, index: int) -> NodeProcess:
        """Kill one of them, which is gone on return."""
        node = self.alive.pop(index)
        node.kill()
        return node

    def end(self) -> None:
        """Kill all of them."""
        while self.alive:
            self.kill(0)

    def until(self, is_so: Callable[[], bool], patience_s: float, *, look_s: float = _LOOK_S) -> bool:
        """Wait until something holds. The answer is whether it does; False when time was up."""
        end_s = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > end_s:
                return False
            for node in self.alive:
                node.check()
            time.sleep(look_s)
        return True

    def until_all_start(self, since_us: int, patience_s: float) -> None:
        """Wait until each task has started after that instant."""
        n = self.orders.n
        if not self.until(lambda: len({note.name for note in self.starts_after(since_us)}) == n, patience_s):
            raise RuntimeError("not every task starts again and again")

    def starts_after(self, at_us: int) -> Iterator[Note]:
        """The starts noted since then."""
        self.reading.read_on()
        return (note for note in self.reading.notes if note.is_start and note.at_us > at_us)

    def cpu_s(self) -> float:
        """The processor time of all of them."""
        return sum(host.cpu_s(node.pid) for node in self.alive)


@contextmanager
def nodes_of(orders: Orders, folder: Path) -> Iterator[Nodes]:
    """The processes that follow these orders, none of them started yet; all are gone at the end."""
    notes = folder / "notes"
    with (folder / "log").open("ab") as log, Reading(notes) as reading:
        nodes = Nodes(orders._replace(notes=str(notes)), reading, log)
        try:
            yield nodes
        finally:
            nodes.end()


@contextmanager
def database(settings: dict[str, str] | None = None) -> Iterator[tuple[PostgresServer, str]]:
    """A durable server on this machine, with an empty database on it: the server and the address."""
    with Servers(_TEMPLATE.resolve()) as servers:
        server = servers.new(is_durable=True, settings=settings)
        yield server, server.new_database("bench")
