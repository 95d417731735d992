"""Leftovers: processes of runs that a daemon left behind when it was killed, found and ended.

A process is a leftover if it is the very one that a run's row names (same pid, same start, same boot), if it
carries the run's token in its environment (the daemon died before it could note the pid), or if it is in the
group that the row's process led. A token of a run without a row is of a run whose row never came to the disk,
which was full perhaps. A token that this store has not made says nothing: any process can have any
environment. A pid that was merely given again is never touched, and neither are we.
What the daemon that started it still looks after is nobody's leftover: our store is a copy of that one's.
Before each signal everything is looked up anew.
"""

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from duly.clock import Clock, watchable
from duly.supervisor.pauses import Pauses
from duly.supervisor.procfs import PROC, Identity, Stat, boot_id, marker_of, stat_of, stats
from duly.supervisor.tokens import Claim, RunTokens
from duly.threads import Worker


class OpenRun(Protocol):
    """What must be known of a run that has no end: its row in the history."""

    @property
    def id(self) -> int:
        """Its number."""
        ...

    @property
    def pid(self) -> int | None:
        """The pid of its process, if it was noted in time."""
        ...

    @property
    def pid_started(self) -> int | None:
        """When that process started, in ticks since the boot."""
        ...

    @property
    def boot(self) -> str | None:
        """Which boot that was."""
        ...


class Leftover(msgspec.Struct, frozen=True):
    """A living process that belongs to a run of a daemon that is gone, or of another that is not."""

    run_id: int
    pid: int
    started: int
    group: int
    daemon: int = 0
    """The pid of the other daemon that looks after it; 0: nobody does."""


def is_alive(identity: Identity, proc_root: Path = PROC) -> bool:
    """Whether that very process still lives: same pid, same start, same boot."""
    if identity.started == 0 or not identity.boot or identity.boot != boot_id(proc_root):
        return False
    stat = stat_of(identity.pid, proc_root)
    return stat is not None and stat.started == identity.started and not stat.is_dead


def leftovers(
    rows: Sequence[OpenRun], tokens: RunTokens, *, last_id: int, proc_root: Path = PROC
) -> list[Leftover]:
    """The living processes of the runs *rows*, and of those with a number above *last_id*, which have no row.

    Those that another daemon looks after are among them, and say so. Reads all of /proc: not for the event
    loop.
    """
    found = list(stats(proc_root))
    claims = {
        stat.pid: claim
        for stat in found
        if not stat.is_dead
        and (token := marker_of(stat.pid, proc_root)) is not None
        and (claim := tokens.claim_in(token)) is not None
    }
    return belonging(rows, found, claims, last_id=last_id, boot=boot_id(proc_root), us=os.getpid())


def belonging(
    rows: Sequence[OpenRun],
    processes: Sequence[Stat],
    claims: Mapping[int, Claim],
    *,
    last_id: int,
    boot: str,
    us: int,
) -> list[Leftover]:
    """Which living *processes* belong to which run; never *us*, or anybody in our group.

    *claims* are what processes say of themselves, by pid, where the store can vouch for it.
    """
    open_ids = {row.id for row in rows}
    claims_left = {
        pid: claim for pid, claim in claims.items() if claim.run_id in open_ids or claim.run_id > last_id
    }
    by_group = {row.pid: row for row in rows if row.pid and row.pid_started and row.boot and row.boot == boot}
    by_pid = {stat.pid: stat for stat in processes}
    our_group = by_pid[us].group if us in by_pid else 0
    daemons = _other_daemons(by_pid, claims_left, us)
    found = []
    for stat in processes:
        if stat.is_dead or stat.pid == us or stat.group == our_group or stat.group <= 1:
            continue
        row = by_group.get(stat.group)
        if stat.pid in claims:  # what it proves is more than where it was found
            run_id = claims_left[stat.pid].run_id if stat.pid in claims_left else None
        else:
            run_id = row.id if row is not None and _is_of_group(stat, row, by_pid) else None
        if run_id is not None:
            daemon = next((each.pid for each in _ancestors(stat, by_pid) if each.pid in daemons), 0)
            found.append(Leftover(run_id, stat.pid, stat.started, stat.group, daemon))
    return found


def _other_daemons(by_pid: Mapping[int, Stat], claims: Mapping[int, Claim], us: int) -> set[int]:
    """The daemons, other than *us*, that started a process with one of these *claims* and live.

    A daemon that lives is an ancestor of all that it started, because it inherits their orphans.
    """
    return {
        ancestor.pid
        for pid, claim in claims.items()
        for ancestor in _ancestors(by_pid[pid], by_pid)
        if ancestor.started == claim.daemon_started > 0 and ancestor.pid != us
    }


def _ancestors(stat: Stat, by_pid: Mapping[int, Stat]) -> Iterator[Stat]:
    """Who started it, who started that one, and so on; each is seen once, whatever /proc says."""
    seen = {stat.pid}
    while (parent := by_pid.get(stat.parent)) is not None and parent.pid not in seen:
        yield parent
        seen.add(parent.pid)
        stat = parent


def _is_of_group(stat: Stat, row: OpenRun, by_pid: Mapping[int, Stat]) -> bool:
    """Whether *stat*, which is in a group with the number of the process of *row*, is in its very group."""
    assert row.pid is not None
    assert row.pid_started is not None
    leader = by_pid.get(row.pid)
    if leader is not None and leader.started != row.pid_started:
        return False  # the number was given again
    return stat.session == row.pid and stat.started >= row.pid_started


async def end_leftovers(
    rows: Sequence[OpenRun],
    tokens: RunTokens,
    clock: Clock,
    *,
    last_id: int,
    grace_s: float,
    proc_root: Path = PROC,
) -> list[Leftover]:
    """End the groups of all leftovers: TERM, *grace_s* of time, KILL, the same time again at most.

    The answer is what lives even then (another user's, or waiting for a disk); mostly nothing. What another
    daemon looks after is left alone.
    """
    look = partial(_abandoned, rows, tokens, last_id=last_id, proc_root=proc_root)
    pauses, worker = Pauses(watchable(clock)), Worker("duly leftovers")
    pauses.begin()
    try:
        left = await worker.do(look)
        for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, max(grace_s, _TO_DIE_S))):
            if not left:
                break
            _send(left, number)
            gone = asyncio.ensure_future(_gone(worker, look, pauses))
            try:
                await pauses.within(seconds, gone)
            finally:
                gone.cancel()
            left = await worker.do(look)
    finally:
        worker.end()
        pauses.end()
    return left


def _abandoned(
    rows: Sequence[OpenRun], tokens: RunTokens, *, last_id: int, proc_root: Path
) -> list[Leftover]:
    found = leftovers(rows, tokens, last_id=last_id, proc_root=proc_root)
    kept = {each.group for each in found if each.daemon}
    return [each for each in found if each.group not in kept]


async def _gone(worker: Worker, look: "partial[list[Leftover]]", pauses: Pauses) -> None:
    """Return when nothing is left."""
    pause_s = _SHORTEST_LOOK_S
    while await worker.do(look):
        await pauses.wait(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_LOOK_S)


def _send(left: Iterable[Leftover], number: signal.Signals) -> None:
    for group in {leftover.group for leftover in left}:
        # Gone meanwhile, or another user's: the next look tells.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            if number == signal.SIGTERM:
                os.killpg(group, signal.SIGCONT)


_TO_DIE_S = 1.0
_SHORTEST_LOOK_S = 0.01
_LONGEST_LOOK_S = 0.25
