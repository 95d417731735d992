"""Leftovers: processes of runs that a daemon left behind when it was killed, found and ended.

A process is a leftover in three cases. It is the one that a run's row names: same pid, same start, same boot.
Or it carries the run's token in its environment: the daemon died before it could note the pid. Or it is in
the group that the row's process led.

A token of a run without a row is of a run whose row never came to the disk, perhaps because that was full. A
token that this store has not made says nothing: any process can have any environment. A pid that was given
again is never touched, and neither are we. What a living daemon still looks after is no leftover: then our
store is a copy of that daemon's. Before each signal everything is looked up again.
"""

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from duly.clock import Clock, watchable
from duly.instant import back_off
from duly.processes.pauses import Pauses
from duly.processes.procfs import PROC, Identity, Stat, boot_id, stat_of, stats, token_of_pid
from duly.processes.tokens import RunTokens, TokenClaim
from duly.threads import Worker

OpenRuns = Mapping[int, Identity | None]
"""Runs without an end, by number: the process of each, if its row names one."""


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


def leftovers(runs: OpenRuns, tokens: RunTokens, *, last_id: int, proc_root: Path = PROC) -> list[Leftover]:
    """The living processes of *runs*, and of runs with a number above *last_id*, which have no row.

    Those that another daemon looks after are among them, and say so. Reads all of /proc: not for the event
    loop.
    """
    found = list(stats(proc_root))
    claims = {
        stat.pid: claim
        for stat in found
        if not stat.is_dead
        and (token := token_of_pid(stat.pid, proc_root)) is not None
        and (claim := tokens.claim_in(token)) is not None
    }
    return belonging(runs, found, claims, last_id=last_id, boot=boot_id(proc_root), us=os.getpid())


def belonging(
    runs: OpenRuns,
    processes: Sequence[Stat],
    claims: Mapping[int, TokenClaim],
    *,
    last_id: int,
    boot: str,
    us: int,
) -> list[Leftover]:
    """Which living *processes* belong to which run; never *us*, or anybody in our group.

    *claims* are what processes say of themselves, by pid, where the store can vouch for it.
    """
    claims_left = {
        pid: claim for pid, claim in claims.items() if claim.run_id in runs or claim.run_id > last_id
    }
    by_group = {
        leader.pid: (run_id, leader)
        for run_id, leader in runs.items()
        if leader is not None and leader.pid and leader.started and leader.boot and leader.boot == boot
    }
    by_pid = {stat.pid: stat for stat in processes}
    our_group = by_pid[us].group if us in by_pid else 0
    daemons = _other_daemons(by_pid, claims_left, us)
    found = []
    for stat in processes:
        if stat.is_dead or stat.pid == us or stat.group == our_group or stat.group <= 1:
            continue
        run_id, leader = by_group.get(stat.group, (None, None))
        if stat.pid in claims:  # what it proves is more than where it was found
            run_id = claims_left[stat.pid].run_id if stat.pid in claims_left else None
        elif leader is not None and not _is_of_group(stat, leader, by_pid):
            run_id = None
        if run_id is not None:
            daemon = next((each.pid for each in _ancestors(stat, by_pid) if each.pid in daemons), 0)
            found.append(Leftover(run_id, stat.pid, stat.started, stat.group, daemon))
    return found


def _other_daemons(by_pid: Mapping[int, Stat], claims: Mapping[int, TokenClaim], us: int) -> set[int]:
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


def _is_of_group(stat: Stat, leader: Identity, by_pid: Mapping[int, Stat]) -> bool:
    """Whether *stat*, which is in a group with the number of *leader*, is in its very group."""
    if leader.pid in by_pid and by_pid[leader.pid].started != leader.started:
        return False  # the number was given again
    return stat.session == leader.pid and stat.started >= leader.started


async def end_leftovers(
    runs: OpenRuns, tokens: RunTokens, clock: Clock, *, last_id: int, grace_s: float, proc_root: Path = PROC
) -> list[Leftover]:
    """End the groups of all leftovers: TERM, *grace_s* of time, KILL, the same time again at most.

    The answer is what lives even then (another user's, or waiting for a disk); mostly nothing. What another
    daemon looks after is left alone.
    """
    pauses, worker = Pauses(watchable(clock)), Worker("duly leftovers")
    abandoned = partial(_abandoned, runs, tokens, last_id=last_id, proc_root=proc_root)

    async def until_none_is_left() -> None:
        pause_s = _SHORTEST_LOOK_S
        # Polled: the kernel reports the exits of children alone.
        while await worker.do(abandoned):
            await pauses.wait(pause_s)
            pause_s = back_off(pause_s, _LONGEST_LOOK_S)

    pauses.begin()
    try:
        left = await worker.do(abandoned)
        # Even with no grace: what was killed needs a moment to be gone.
        for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, max(grace_s, _TO_DIE_S))):
            if not left:
                break
            _send(left, number)
            gone = asyncio.ensure_future(until_none_is_left())
            try:
                await pauses.within(seconds, gone)
            finally:
                gone.cancel()
            left = await worker.do(abandoned)
    finally:
        worker.end()
        pauses.end()
    return left


def _abandoned(runs: OpenRuns, tokens: RunTokens, *, last_id: int, proc_root: Path) -> list[Leftover]:
    """Those that no daemon looks after."""
    found = leftovers(runs, tokens, last_id=last_id, proc_root=proc_root)
    # A signal goes to a whole group: one process in it that is looked after spares all of them.
    kept = {each.group for each in found if each.daemon}
    return [each for each in found if each.group not in kept]


def _send(left: Iterable[Leftover], number: signal.Signals) -> None:
    for group in {leftover.group for leftover in left}:
        # Gone meanwhile, or another user's: the next look shows it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            if number == signal.SIGTERM:
                os.killpg(group, signal.SIGCONT)


_TO_DIE_S = 1.0
_SHORTEST_LOOK_S = 0.01
_LONGEST_LOOK_S = 0.25
