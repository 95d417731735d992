"""The ledger: which runs are in flight, how those that ended did, and who is told.

A run is known by its id from before its process is made until long after its end, so that whoever asks what
became of it is never answered with another run's end. What is on disk is the history's business.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal

import msgspec

from duly.errors import StoreError
from duly.events import Announcer, described, tell_operator
from duly.instant import Instant, milliseconds
from duly.store.history import History, RunRow
from duly.supervisor.ended import Result
from duly.supervisor.output import Tail

_OUTCOMES_KEPT = 20_000

Hook = Callable[[RunRow], object]


class Ledger:
    """What is known of runs."""

    def __init__(self, history: History, announcer: Announcer) -> None:
        self._history = history
        self._announcer = announcer
        self._live: dict[int, tuple[RunRow, Tail]] = {}
        self._last: dict[str, RunRow] = {}
        """Of each service the newest run that has ended, without its output."""
        self._outcomes: OrderedDict[int, tuple[Result, str | None]] = OrderedDict()
        """How runs ended, and whose timer's they were."""
        self.on_run_started: list[Hook] = []
        self.on_run_ended: list[Hook] = []

    # --- what happened ---

    def recall(self, rows: Iterable[RunRow]) -> None:
        """Learn of runs that ended before this supervisor began, oldest first."""
        for row in rows:
            self._remember(row)

    def open(self, row: RunRow, tail: Tail) -> None:
        """A run begins, or is known better than before."""
        self._live[row.id] = (row, tail)
        self._history.note(row)

    async def recorded(self) -> None:
        """Return once what was told so far is on disk, or could not be written.

        A process that is made after that is found by the next daemon, with its service, whenever we die.
        """
        with suppress(StoreError):  # the history has told of it, and tries again
            await self._history.settled()

    def tell_start(self, row: RunRow) -> None:
        """The process of a run was made, or could not be."""
        self._announcer.announce("ServiceRunStarted", **_told(row), pid=row.pid)
        _call(self.on_run_started, row)

    def close(self, row: RunRow) -> None:
        """A run ended."""
        self._live.pop(row.id, None)
        self._remember(row)
        self._history.note(row)

    def tell_end(self, row: RunRow, duration_us: int) -> None:
        """Tell of a run that ended."""
        self._announcer.announce(
            "ServiceRunEnded",
            **_told(row),
            result=row.result,
            exitCode=row.exit_code,
            signal=row.signal,
            duration=milliseconds(duration_us),
            **({"message": row.message} if row.message else {}),
        )
        _call(self.on_run_ended, row)

    def refuse(self, run_id: int, timer: str | None) -> None:
        """A run that was announced is not begun: we are shutting down."""
        self._note_outcome(run_id, Result.INTERRUPTED, timer)

    def _remember(self, row: RunRow) -> None:
        before = self._last.get(row.service)
        if before is None or before.id <= row.id:
            self._last[row.service] = msgspec.structs.replace(row, output="")
        if row.result is not None:
            self._note_outcome(row.id, Result(row.result), row.timer)

    def _note_outcome(self, run_id: int, result: Result, timer: str | None) -> None:
        self._outcomes[run_id] = result, timer
        if len(self._outcomes) > _OUTCOMES_KEPT:
            self._outcomes.popitem(last=False)

    # --- what is known ---

    def outcome(self, run_id: int, timer: str | None) -> Literal["running"] | Result | None:
        """What became of a run; None if nothing is known of it.

        With *timer* it must be a run of that one: a number given out just before a crash, of which only the
        timer's row was written, may have been given again to the run of another.
        """
        if (live := self.row_of(run_id)) is not None:
            return "running" if timer in {None, live.timer} else None
        result, owner = self._outcomes.get(run_id, (None, None))
        return result if timer in {None, owner} else None

    def output_of(self, run_id: int) -> Tail | None:
        """The output of a run in flight, as it comes."""
        live = self._live.get(run_id)
        return None if live is None else live[1]

    def row_of(self, run_id: int | None) -> RunRow | None:
        """The run with this id, if it is in flight."""
        live = None if run_id is None else self._live.get(run_id)
        return None if live is None else live[0]

    def last_of(self, service: str) -> RunRow | None:
        """The newest run of a service that has ended."""
        return self._last.get(service)

    def last_end_us(self, service: str) -> Instant | None:
        """When that was."""
        row = self._last.get(service)
        return None if row is None else row.ended_us


def _told(row: RunRow) -> dict[str, object]:
    timer = {} if row.timer is None else {"timer": row.timer}
    return {"service": row.service, "runId": row.id, "reason": row.reason, **timer}


def _call(hooks: list[Hook], row: RunRow) -> None:
    for hook in tuple(hooks):
        try:
            hook(row)
        except Exception as error:
            # Whoever listens to runs must not end them.
            tell_operator(f"duly: {hook!r} failed on run {row.id} of {row.service}: {described(error)}")
