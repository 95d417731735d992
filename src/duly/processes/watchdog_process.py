"""The watchdog process: it kills the runs of a daemon that is gone, or whose deadline has passed.

`watchdog` starts this file as a script. It imports nothing of ours, so that it stays small. Stdin brings
records "<time of writing> <word> <arguments>", each with a NUL byte at its end:

    until <us>                        the deadline, on CLOCK_BOOTTIME
    watch <pid> <started> <entry>     a run; pid 0: its process is not made yet
    forget <entry>                    the run has ended
    close                             exit, and kill nobody

An entry is what all processes of a run have in their environment: the name and the value of its token. A run
that is watched when the deadline passes has expired, and no later record saves it. Expired runs get SIGKILL
(there is no time for a grace), again and again, until a look at all processes finds nothing of them.
"""

import os
import select
import sys
import time
from collections.abc import Iterable

READY = b"ready 2\n"
"""The first line on stdout. The number is the version of the records."""

PidAndStart = tuple[int, int]
"""The process of a run: its pid, and its start time in clock ticks since the boot."""
UNMADE, UNNAMED = (0, 0), (-1, 0)
"""A process that may come; a run whose process will not be named, though some may exist."""

_KILL = 9
_PIPE_BYTES = _ENVIRON_BYTES = 1 << 21
"""More than a pipe holds: all records are read before the clock is. More than Linux allows by default."""
_CLOCK_US = 100_000
"""How long to wait for a deadline at a time: the clock of `poll` stands still while the host is suspended."""
_PAUSE_US = 5_000
_PAUSES = 10
"""What cannot be killed is looked for with a tenth of a processor."""
_LINGER_US = 10_000_000
"""How long to look for a process that a daemon was about to make when it died."""


class WatchedRuns:
    """The watched runs and the expired ones, by entry."""

    def __init__(self) -> None:
        self.until_us = 0
        self.live: dict[bytes, PidAndStart] = {}
        self.expired: dict[bytes, PidAndStart] = {}

    def expire(self, now_us: int) -> None:
        """Let all runs expire if the deadline has passed."""
        if now_us >= self.until_us:
            self.expired |= self.live
            self.live = {}

    def read(self, record: bytes) -> None:
        """Apply a record, as of the time when it was written."""
        written_us, word, *rest = record.split(b" ", 2)
        self.expire(int(written_us))
        if word == b"close":
            sys.exit()
        elif word == b"until":
            self.until_us = int(rest[0])
        elif word == b"watch":
            pid, started, entry = rest[0].split(b" ", 2)
            # Never from expired back to live: a late record must not save what another node may start now.
            (self.expired if entry in self.expired else self.live)[entry] = int(pid), int(started)
        elif word == b"forget":
            self.live.pop(rest[0], None)
            self.found(rest[0])  # its group is gone, but what left the group may not be
        else:
            raise ValueError(record)

    def found(self, entry: bytes) -> None:
        """Note that the process of an expired run has been made, or will not be made any more."""
        if self.expired.get(entry) == UNMADE:
            self.expired[entry] = UNNAMED


class ProcStat:
    """A line of /proc/PID/stat. Raises ValueError or IndexError if it is not one."""

    __slots__ = ("group", "is_dead", "parent", "pid", "session", "started")

    def __init__(self, line: bytes) -> None:
        head, _, rest = line.rpartition(b")")  # the name before it may hold parentheses too
        fields = rest.split()
        self.pid, self.is_dead = int(head.partition(b"(")[0]), fields[0] in {b"Z", b"X", b"x"}
        self.parent, self.group, self.session, self.started = (int(fields[n]) for n in (1, 2, 3, 19))


def belonging(
    processes: list[ProcStat], runs: Iterable[PidAndStart], sessions: set[int], spared: set[int]
) -> list[ProcStat]:
    """The living processes of *runs* and *sessions* and their descendants, the oldest first.

    The process of a run leads a session and a group. If its pid has another start time by now, pid and
    session are somebody else's. Nobody in a *spared* session is touched.
    """
    starts = {stat.pid: stat.started for stat in processes}
    leaders = {pid: started for pid, started in runs if pid > 1 and starts.get(pid, started) == started}
    rest = [stat for stat in processes if stat.session not in spared]
    found = {
        stat.pid: stat
        for stat in rest
        if stat.session in sessions
        or any(stat.started >= leaders[number] for number in {stat.session, stat.group} & leaders.keys())
    }
    while born := [stat for stat in rest if stat.parent in found and stat.pid not in found]:
        found.update((stat.pid, stat) for stat in born)
    living = [stat for stat in found.values() if not stat.is_dead]
    return sorted(living, key=lambda stat: (stat.started, stat.pid))


def sweep(runs: WatchedRuns, spared: set[int]) -> set[int]:
    """Kill every process of the expired runs that lives now; their pids."""
    processes = [stat for name in os.listdir("/proc") if name.isdecimal() for stat in _stat(name)]  # noqa: PTH208 (small)
    # First those that the process table names: to read an environment can take long.
    killed = _kill(belonging(processes, runs.expired.values(), set(), spared))
    sessions = set()
    for pid in {stat.pid for stat in processes if not stat.is_dead} - killed:
        for entry in runs.expired.keys() & set(_file(pid, "environ").split(b"\0")):
            # Looked up again: one that was just forked was in the daemon's session a moment ago.
            for stat in _stat(pid):
                if stat.session not in spared:
                    runs.found(entry)
                    sessions.add(stat.session)
                    processes.append(stat)
    return killed | _kill(belonging(processes, (), sessions, spared))


def _kill(processes: list[ProcStat]) -> set[int]:
    """Kill whole groups, so that nobody can fork its way out; the pids that there were to kill.

    The oldest group goes first: a script must not go on, or end well, because its child was killed.
    """
    pids = set()
    for stat in processes:
        try:
            os.kill(stat.pid, 0)
            pids.add(stat.pid)
            os.killpg(stat.group, _KILL)
        except (ProcessLookupError, PermissionError):
            continue  # gone, or another user's by now: waiting for that would have no end
    return pids


def _stat(pid: int | str) -> list[ProcStat]:
    try:
        return [ProcStat(_file(pid, "stat"))]
    except (ValueError, IndexError):
        return []


def _file(pid: int | str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 (small)
            return file.read(_ENVIRON_BYTES)
    except OSError:
        return b""  # gone, or another user's


def _now_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def _report(daemon: str, why: str, killed: set[int]) -> None:
    """Write to stderr what was killed, unless that would block."""
    some = ", ".join(map(str, sorted(killed)[:20]))
    line = f"duly: watchdog of daemon {daemon}: {why}; killed {len(killed)}: {some}\n"
    try:
        if killed and select.select([], [2], [], 0)[1]:
            os.write(2, line.encode())
    except OSError:
        return  # nobody reads it any more


def main(daemon: str, session: str) -> None:
    """Watch until the *daemon* (its pid) is gone, and all processes that it had started."""
    # No run is in the session of the kernel, of init, of this process or of the daemon.
    runs, spared = WatchedRuns(), {0, 1, os.getsid(0), int(session)}
    unread, gone_us, pause_us, killed = b"", 0, 0, set[int]()
    os.write(1, READY)
    while not gone_us or any(
        run != UNMADE or _now_us() < gone_us + _LINGER_US for run in runs.expired.values()
    ):
        waits = [min(max(runs.until_us - _now_us(), 0), _CLOCK_US)] * bool(runs.live)
        waits += [pause_us] * bool(runs.expired)
        timeout_s = (min(waits) + 1_000) / 1e6 if waits else None
        if select.select([] if gone_us else [0], [], [], timeout_s)[0]:
            chunk = os.read(0, _PIPE_BYTES)
            *records, unread = (unread + chunk).split(b"\0")
            for record in records:
                runs.read(record)
            if not chunk:
                # Nobody will say more: all that is live expires now.
                gone_us, runs.until_us = _now_us(), 0
        runs.expire(began_us := _now_us())
        if not runs.expired:
            continue
        found = sweep(runs, spared)
        pause_us = _PAUSE_US if found - killed else max(_PAUSE_US, _PAUSES * (_now_us() - began_us))
        killed |= found
        if not found:
            _report(daemon, "the daemon is gone" if gone_us else "the lease has run out", killed)
            killed = set()
            # Only after a look that found nobody: what was forking meanwhile would get away.
            runs.expired = {entry: run for entry, run in runs.expired.items() if run == UNMADE}


if __name__ == "__main__":
    main(*sys.argv[1:])
