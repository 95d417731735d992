"""A recorded trace that may still grow: the runs it tells of, and what the judge says of them.

Each look reads what was added since the last. A file that was replaced or cut is read from its beginning,
with a new judge. What is kept depends on the number of tasks, not on how long they have run.
"""

import os
from collections import deque
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from duly.instant import Instant
from duly.store.history import RunRow
from duly.verify.judge import Judge
from duly.verify.properties import PROPERTIES
from duly.verify.trace import (
    ClockStep,
    Crash,
    Fault,
    Position,
    RunEnd,
    RunStart,
    Trace,
    TraceError,
    micros,
)
from duly.web.site import Verdict

_LONGEST_LINE = 2**20
_KEPT_PER_TASK = 60
_KEPT = 5_000


class _Growing:
    """The whole lines of a file, as far as there are any now; asked again, those that came meanwhile."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        at = self._file.tell()
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
            self._file.seek(at)  # its end is yet to be written
            raise StopIteration
        return line


class Following:
    """One trace. Not to be looked at by two threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault: str | None = None
        """Why it cannot be read."""
        self._file: BufferedReader | None = None
        self._place: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._trace: Trace | None = None
        self._judge: Judge | None = None
        self._number = 0
        self._open: dict[str, RunRow] = {}
        self._begun_us: dict[str, Instant] = {}
        """When those began, as the clock would have had it that it shows now."""
        self.of_task: dict[str, deque[RunRow]] = {}
        self.latest: deque[RunRow] = deque(maxlen=_KEPT)

    def look(self) -> None:
        """Read what is new."""
        try:
            self._follow()
            self.fault = None
        except TraceError as error:
            self.fault = f"the trace {self.path} cannot be used: {error}"
        except OSError as error:
            self.fault = f"the trace {self.path} cannot be read: {error.strerror}"

    def close(self) -> None:
        """Look no more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _follow(self) -> None:
        status = self.path.stat()
        place = (status.st_dev, status.st_ino)
        if self._file is None or place != self._place or status.st_size < self._file.tell():
            self.close()
            self._begin()
            self._file, self._place = self.path.open("rb"), place
        if self._trace is None or self._judge is None:
            if os.fstat(self._file.fileno()).st_size == 0:
                return  # its scheduler has only just begun
            self._file.seek(0)
            self._trace = Trace(_Growing(self._file))
            self._judge = Judge(self._trace.header)
        for item in self._trace:
            self._judge.take(item)
            self._note(item)

    def _note(self, item: Position | Fault) -> None:
        if isinstance(item, Fault):
            return
        event = item.event
        if isinstance(event, RunStart):
            self._number += 1
            row = RunRow(id=self._number, service=event.id, reason="", started_us=item.at_us)
            self._open[event.id], self._begun_us[event.id] = row, item.at_us
            self._keep(row)
        elif isinstance(event, RunEnd):
            self._end(event.id, item.at_us, "success" if event.ok else "failed")
        elif isinstance(event, ClockStep):
            by_us = item.at_us - micros(event.origin)
            self._begun_us = {name: at_us + by_us for name, at_us in self._begun_us.items()}
        elif isinstance(event, Crash):
            for name in list(self._open):
                self._end(name, item.at_us, "interrupted")

    def _end(self, name: str, at_us: Instant, result: str) -> None:
        before, begun_us = self._open.pop(name, None), self._begun_us.pop(name, at_us)
        if before is None:
            return
        row = RunRow(
            id=before.id,
            service=name,
            reason="",
            started_us=before.started_us,
            ended_us=at_us,
            lasted_us=max(at_us - begun_us, 0),
            result=result,
        )
        for rows in (self.of_task[name], self.latest):
            for index in range(len(rows) - 1, -1, -1):
                if rows[index].id == row.id:
                    rows[index] = row
                    break

    def _keep(self, row: RunRow) -> None:
        self.of_task.setdefault(row.service, deque(maxlen=_KEPT_PER_TASK)).append(row)
        self.latest.append(row)

    def verdicts(self) -> list[Verdict]:
        """What the judge says of each property, so far."""
        if self._judge is None:
            return []
        outcome = self._judge.finish()
        return [
            Verdict(name, str(outcome.verdict(name)), outcome.tallies[name].violated, words)
            for name, words in PROPERTIES.items()
        ]
