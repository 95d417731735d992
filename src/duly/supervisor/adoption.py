"""Adoption: what becomes of runs that a dead daemon left without an end.

Their processes, if any live, are ended before anything starts; the runs themselves are over and count as
interrupted. A process that cannot even be killed keeps its run open and its service from being started, until
it has died after all: two of it at once would be worse than none of the new. The same holds for a process
that another daemon looks after, which happens if this daemon was started on a copy of that one's store.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec

from duly.clock import Watchable
from duly.events import Announcer
from duly.instant import Instant, instant_of
from duly.processes.leftovers import Leftover, end_leftovers, is_alive, leftovers
from duly.processes.procfs import Identity, boot_id
from duly.processes.tokens import RunTokens
from duly.store.history import Result, RunRow
from duly.threads import Worker


class BlockingRun(NamedTuple):
    """A run of an earlier daemon whose processes were killed and did not die, or are another's to end."""

    row: RunRow
    processes: tuple[Identity, ...]
    daemon: int = 0
    """The pid of the daemon that looks after them; 0: nobody does."""

    @property
    def reason(self) -> str:
        pid = self.processes[0].pid
        if self.daemon:
            return (
                f"process {pid} of it is looked after by daemon {self.daemon}, whose store this is a copy of"
            )
        return f"process {pid} of an earlier run cannot be killed"

    @property
    def is_gone(self) -> bool:
        """Whether they have died at last."""
        return not any(is_alive(process) for process in self.processes)

    def ended(self, now_us: Instant) -> RunRow:
        """The row of that run, ended."""
        return _ended(self.row, now_us, was_alive=True)


class Adoption(NamedTuple):
    """What became of the runs that were open."""

    ended: list[RunRow]
    blocked: dict[str, BlockingRun]
    """The services that a living process blocks."""
    last_id: int
    """The highest run that a living process has proved to belong to; 0 for none."""


async def adopt_runs(
    rows: Sequence[RunRow],
    clock: Watchable,
    announcer: Announcer,
    tokens: RunTokens,
    *,
    last_id: int,
    grace_s: float,
) -> Adoption:
    """End the processes of *rows*, and of runs above *last_id*, which have no row; then end the rows."""
    runs = {row.id: _process_of(row) for row in rows}
    worker = Worker("duly adoption")
    try:
        found = _by_run(await worker.do(partial(leftovers, runs, tokens, last_id=last_id)))
    finally:
        worker.end()
    services = {row.id: row.service for row in rows}
    for run_id in [*services, *sorted(found.keys() - services)]:
        pids, service = [each.pid for each in found.get(run_id, [])], services.get(run_id)
        other = {"daemon": daemon} if (daemon := _daemon_of(found.get(run_id, []))) else {}
        announcer.announce(
            "LeftoverFound", service=service, runId=run_id, isAlive=bool(pids), pids=pids, **other
        )
    left = [each for each in chain.from_iterable(found.values()) if each.daemon]
    if sum(map(len, found.values())) > len(left):
        left += await end_leftovers(runs, tokens, clock, last_id=last_id, grace_s=grace_s)
    alive = _by_run(left)
    now_us = instant_of(clock.now())
    ended = [_ended(row, now_us, was_alive=row.id in found) for row in rows if row.id not in alive]
    boot = boot_id()
    blocked = {
        row.service: BlockingRun(
            row,
            tuple(Identity(each.pid, each.started, boot) for each in alive[row.id]),
            _daemon_of(alive[row.id]),
        )
        for row in rows
        if row.id in alive
    }
    return Adoption(ended, blocked, max(found, default=0))


def _process_of(row: RunRow) -> Identity | None:
    """The process that a row names; None if the daemon died before it could note the pid."""
    if row.pid is None or row.pid_started is None or row.boot is None:
        return None
    return Identity(row.pid, row.pid_started, row.boot)


def _daemon_of(found: Sequence[Leftover]) -> int:
    return next((each.daemon for each in found if each.daemon), 0)


def _by_run(found: Sequence[Leftover]) -> dict[int, list[Leftover]]:
    runs: dict[int, list[Leftover]] = {}
    for leftover in found:
        runs.setdefault(leftover.run_id, []).append(leftover)
    return runs


def _ended(row: RunRow, now_us: Instant, *, was_alive: bool) -> RunRow:
    message = (
        "the daemon ended without it; its processes were found alive and ended at the next start"
        if was_alive
        else "the daemon ended before the run did; nothing of it was alive at the next start"
    )
    result = Result.INTERRUPTED.value
    return msgspec.structs.replace(row, ended_us=now_us, result=result, message=message)
