"""The run registry: which runs are in flight, how those that ended did, and who waits for them.

A run is known by its id from before its process is made until long after its end. So a question about it is
never answered with another run's end. What is on disk is the history's business.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from duly.errors import StoreError
from duly.events import Announcer, described, warn_operator
from duly.instant import Instant, milliseconds
from duly.processes.output import Tail
from duly.store.history import History, Result, RunRow
from duly.store.past import Known, Past

_OUTCOMES_KEPT = 20_000
_LATE_US = 100_000
"""A start that is announced this much later than it was says so. The kernel counts in ticks of 10 ms."""
_NO_PAST = Past()

Hook = Callable[[RunRow], object]


class RunRegistry:
    def __init__(self, history: History, announcer: Announcer) -> None:
        self._history = history
        self._announcer = announcer
        self._live: dict[int, tuple[RunRow, Tail]] = {}
        self._last: dict[str, RunRow] = {}
        """Of each service the newest run that has ended, without its output."""
        self._past: dict[str, Past] = {}
        self._outcomes: OrderedDict[int, tuple[Result, str | None]] = OrderedDict()
        """How runs ended, and whose timer's they were."""
        self.on_run_started: list[Hook] = []
        self.on_run_ended: list[Hook] = []

    # --- what happened ---

    def load(self, services: Mapping[str, Known]) -> None:
        """Learn of runs that ended before this supervisor began."""
        for known in sorted(services.values(), key=lambda known: known.last.id):
            self._remember(known.last)
        self._past = {name: known.past for name, known in services.items()}

    def open(self, row: RunRow, tail: Tail) -> None:
        """A run begins, or is known better than before."""
        self._live[row.id] = (row, tail)
        self._history.record_run(row)

    async def recorded(self) -> None:
        """Return once what was announced so far is on disk, or could not be written.

        A process that is made after that is found by the next daemon, with its service, whenever we die.
        """
        with suppress(StoreError):  # the history has reported it, and tries again
            await self._history.settled()

    def emit_start(self, row: RunRow, age_us: int | None = None) -> None:
        """The process of a run was made, *age_us* ago, or could not be.

        A daemon that is frozen in between says it late. Another machine may have started the same since, so
        the event then says by how much.
        """
        late = {} if age_us is None or age_us < _LATE_US else {"lateMs": age_us // 1000}
        self._announcer.announce("ServiceRunStarted", **_fields_of(row), pid=row.pid, **late)
        _call(self.on_run_started, row)

    def close(self, row: RunRow) -> None:
        self._live.pop(row.id, None)
        self._remember(row)
        self._history.record_run(row)

    def emit_end(self, row: RunRow, duration_us: int, *, is_meant: bool) -> None:
        """A run has ended; *is_meant*: because somebody stopped it."""
        has_failed = not is_meant and row.result not in {Result.SUCCESS, Result.INTERRUPTED}
        self._announcer.announce(
            "ServiceRunEnded",
            None,
            logging.WARNING if has_failed else None,
            **_fields_of(row),
            result=row.result,
            exitCode=row.exit_code,
            signal=row.signal,
            duration=milliseconds(duration_us),
            **({"message": row.message} if row.message else {}),
        )
        _call(self.on_run_ended, row)

    def refuse(self, run_id: int, timer: str | None) -> None:
        """A run that was announced is not begun: we are shutting down."""
        self._keep_outcome(run_id, Result.INTERRUPTED, timer)

    def _remember(self, row: RunRow) -> None:
        before = self._last.get(row.service)
        if before is None or before.id <= row.id:
            self._last[row.service] = msgspec.structs.replace(row, output="", output_times=None)
        self._past[row.service] = self.past_of(row.service).after(row)
        if row.result is not None:
            self._keep_outcome(row.id, Result(row.result), row.timer)

    def _keep_outcome(self, run_id: int, result: Result, timer: str | None) -> None:
        self._outcomes[run_id] = result, timer
        if len(self._outcomes) > _OUTCOMES_KEPT:
            self._outcomes.popitem(last=False)

    # --- what is known ---

    def outcome(self, run_id: int, timer: str | None = None) -> Literal["running"] | Result | None:
        """What became of a run; None if nothing is known of it (only the newest thousands are).

        With *timer* it must be a run of that one. A number given out just before a crash may be in the row of
        the timer alone, and may have been given again to the run of another.
        """
        if (live := self.row_of(run_id)) is not None:
            return "running" if timer in {None, live.timer} else None
        result, owner = self._outcomes.get(run_id, (None, None))
        return result if timer in {None, owner} else None

    def output_of(self, run_id: int) -> Tail | None:
        live = self._live.get(run_id)
        return None if live is None else live[1]

    def row_of(self, run_id: int | None) -> RunRow | None:
        live = None if run_id is None else self._live.get(run_id)
        return None if live is None else live[0]

    def last_of(self, service: str) -> RunRow | None:
        return self._last.get(service)

    def past_of(self, service: str) -> Past:
        return self._past.get(service, _NO_PAST)

    def last_end_us(self, service: str) -> Instant | None:
        """When its last run ended, however that was started, also before this supervisor began."""
        row = self._last.get(service)
        return None if row is None else row.ended_us


def _fields_of(row: RunRow) -> dict[str, object]:
    timer = {} if row.timer is None else {"timer": row.timer}
    return {"service": row.service, "runId": row.id, "reason": row.reason, **timer}


def _call(hooks: list[Hook], row: RunRow) -> None:
    for hook in tuple(hooks):
        try:
            hook(row)
        except Exception as error:
            # A listener that fails must not end the run.
            warn_operator(f"duly: {hook!r} failed on run {row.id} of {row.service}: {described(error)}")
