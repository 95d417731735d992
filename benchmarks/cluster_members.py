"""The processes of a cluster on a database of their own: started one after another, watched, killed."""

import asyncio
import json
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.cluster_notes import Note, Reading
from benchmarks.cluster_program import Orders
from tests.postgres import PostgresServer, Servers

from duly.store.board import View

_TEMPLATE = Path("postgres-template")
"""In the folder of this run: the first case makes it, the others copy it."""
APSCHEDULER_4 = Path(sys.prefix).with_name(".venv-bench-apscheduler4") / "bin" / "python"
_LOOK_S = 0.05


class TooSlowError(Exception):
    """Something did not happen in the time it was given."""


class MemberProcess:
    """One process."""

    def __init__(self, orders: Orders, log: IO[bytes]) -> None:
        python = APSCHEDULER_4 if orders.contestant == "APScheduler 4" else Path(sys.executable)
        if not python.exists():
            raise ModuleNotFoundError("apscheduler 4")
        command = [str(python), "-m", "benchmarks.cluster_program", json.dumps(orders)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._log = Path(log.name)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def await_ready(self, patience_s: float) -> float:
        """Wait until it takes part. The answer is how long it says that took."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], patience_s)[0]:
            raise TooSlowError(f"not ready within {patience_s:g} s")
        word, _, took_s = self._process.stdout.readline().decode().partition(" ")
        if word != "ready":
            raise RuntimeError(f"a process ended:\n{self._log.read_text()[-4000:]}")
        return float(took_s)

    def check(self) -> None:
        """Raise if it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"a process ended:\n{self._log.read_text()[-4000:]}")

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.communicate()


class Members:
    """The processes of one contestant, and what their tasks noted."""

    def __init__(self, orders: Orders, reading: Reading, log: IO[bytes]) -> None:
        self._orders = orders
        self._log = log
        self.reading = reading
        self.alive: list[MemberProcess] = []
        self.has_board = orders.contestant == "duly" and "://" in orders.url

    def begin(self, patience_s: float) -> float:
        """Start one more, and wait until it takes part. The answer is how long it says that took."""
        orders = self._orders._replace(is_first=not self.alive)
        self.alive.append(MemberProcess(orders, self._log))
        return self.alive[-1].await_ready(patience_s)

    def kill(self, index: int) -> MemberProcess:
        """Kill one of them, which is gone on return."""
        member = self.alive.pop(index)
        member.kill()
        return member

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
            for member in self.alive:
                member.check()
            time.sleep(look_s)
        return True

    def until_shared(self, patience_s: float = 60) -> None:
        """Wait until each member holds its part of the board; where there is none, nobody can tell."""
        if self.has_board and not self.until(self._is_shared, patience_s, look_s=0.2):
            raise RuntimeError(f"the members do not share their tasks within {patience_s:g} s")

    def starts_after(self, at_us: int) -> Iterator[Note]:
        """The starts noted since then."""
        self.reading.read_on()
        return (note for note in self.reading.notes if note.is_start and note.at_us > at_us)

    def view(self) -> View:
        """The board of duly."""
        return asyncio.run(_view_of(self._orders.url))

    def renewed_us(self, pid: int) -> int:
        """When a member of duly last renewed its lease, by the database's clock."""
        return next(seat.beaten_us for seat in self.view().seats if _pid_of(seat.name) == pid)

    def _is_shared(self) -> bool:
        view = self.view()
        pids = {seat.member: _pid_of(seat.name) for seat in view.seats}
        held = Counter(pids.get(place.holder) for place in view.places if place.holder is not None)
        least = len(view.places) // len(self.alive)
        return held.total() == len(view.places) and all(held[member.pid] >= least for member in self.alive)


@contextmanager
def members_of(orders: Orders, folder: Path) -> Iterator[Members]:
    """The processes that follow these orders, none of them started yet; all are gone at the end."""
    notes = folder / "notes"
    with (folder / "log").open("ab") as log, Reading(notes) as reading:
        members = Members(orders._replace(notes=str(notes)), reading, log)
        try:
            yield members
        finally:
            members.end()


@contextmanager
def database(settings: dict[str, str] | None = None) -> Iterator[tuple[PostgresServer, str]]:
    """A durable server on this machine, with an empty database on it: the server and the address."""
    with Servers(_TEMPLATE.resolve()) as servers:
        server = servers.new(is_durable=True, settings=settings)
        yield server, server.new_database("bench")


async def _view_of(url: str) -> View:
    from duly.store.postgres import PostgresBoard  # noqa: PLC0415 (only where there is a board)

    board = PostgresBoard(url, patience_s=30)
    await board.open("")
    try:
        return await board.view()
    finally:
        await board.close()


def _pid_of(name: str) -> int:
    return int(name.rpartition(":")[2])
