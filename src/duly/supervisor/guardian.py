"""The guardian: a small process that ends what a daemon has on its leash when the daemon itself cannot.

`leash` starts it as a script, with nothing but the standard library, and tells it over a pipe which runs
there are and until when they may live. They must end when that time has passed, when the daemon says so, and
when the pipe ends because the daemon did. Whatever the daemon says later than its time finds all its runs
doomed, and doomed they stay: another machine may have started the same by then. Everything of a doomed run
is looked for until nothing is left. The time is CLOCK_BOOTTIME: a host that slept finds it passed at once.
"""

import ctypes
import os
import select
import sys
import time
from collections.abc import Callable

READY = "ready 1\n"
"""What it says when it is on guard. The number is that of the language it understands."""

_KILL = 9
_SHORTEST_LOOK_MS = 5
_LONGEST_LOOK_MS = 1_000
_MOST_BYTES = 2 * 1024 * 1024
"""What Linux gives a program for its environment by default."""
_LINGER_US = 10_000_000
"""How long a dead daemon's run that was announced and never seen is looked for: it may be on its way."""


class Stat:
    """A line of /proc/PID/stat, as far as it matters."""

    __slots__ = ("group", "is_dead", "parent", "pid", "session", "started")

    def __init__(
        self, pid: int, parent: int, group: int, session: int, started: int, *, is_dead: bool = False
    ) -> None:
        self.pid, self.parent, self.group, self.session = pid, parent, group, session
        self.started, self.is_dead = started, is_dead


class Run:
    """A run on the leash. Its process is unknown (0) from its announcement until it was made."""

    __slots__ = ("is_doomed", "is_released", "is_seen", "pid", "started")

    def __init__(self) -> None:
        self.pid = self.started = 0
        self.is_doomed = self.is_released = self.is_seen = False

    @property
    def is_over(self) -> bool:
        """Whether it is over, given that nothing of it lives."""
        return self.is_seen or self.is_released or self.pid != 0


class Runs:
    """What is on the leash, by the entry that its processes have in their environment."""

    def __init__(self) -> None:
        self.until_us = 0
        """Until when they may live."""
        self.is_let_go = False
        self.reason = ""
        """Why the last of them were doomed."""
        self._runs: dict[bytes, Run] = {}

    @property
    def doomed(self) -> dict[bytes, Run]:
        """Those that must end."""
        return {entry: run for entry, run in self._runs.items() if run.is_doomed}

    def doom(self, reason: str) -> None:
        """Have everything end that is here now."""
        for run in self._runs.values():
            if not run.is_doomed:
                run.is_doomed = True
                self.reason = reason

    def look(self, now_us: int) -> None:
        """Have everything end if the time has passed."""
        if now_us >= self.until_us:
            self.doom("its lease ran out")

    def heed(self, record: bytes) -> None:
        """Do as the daemon says: when it said so, a word, and what belongs to the word."""
        said_us, _, rest = record.partition(b" ")
        word, _, said = rest.partition(b" ")
        self.look(int(said_us))
        if word == b"until":
            self.until_us = int(said)
        elif word == b"expect":
            self._runs[said] = Run()
        elif word == b"hold":
            pid, started, entry = said.split(b" ", 2)
            run = self._runs.setdefault(entry, Run())
            run.pid, run.started = int(pid), int(started)
        elif word == b"release":
            self._release(said)
        elif word == b"cut":
            self.doom("it was told to")
            self.until_us = 0
        elif word == b"close":
            self.is_let_go = True
        else:
            raise ValueError(record)

    def _release(self, entry: bytes) -> None:
        run = self._runs.get(entry)
        if run is not None and run.is_doomed:
            run.is_released = True  # its group is gone; what left the group may not be
        else:
            self._runs.pop(entry, None)

    def bury(self) -> None:
        """Forget the doomed that are over, after a look that found nothing of them."""
        self._runs = {entry: run for entry, run in self._runs.items() if not (run.is_doomed and run.is_over)}


def belonging(processes: list[Stat], runs: list[Run], marked: set[int], *, shielded: set[int]) -> list[Stat]:
    """The living *processes* of *runs*, by session, group or descent, and with the *marked* their sessions.

    A number that was given to another process since means nobody. Nobody in a *shielded* session is touched:
    no run is ever there.
    """
    by_pid = {stat.pid: stat for stat in processes}
    leaders = {run.pid: run for run in runs if run.pid > 1 and not _is_another(by_pid.get(run.pid), run)}
    sessions = {stat.session for stat in processes if stat.pid in marked}
    children: dict[int, list[Stat]] = {}
    found: dict[int, Stat] = {}
    for stat in processes:
        if stat.session in shielded:
            continue
        children.setdefault(stat.parent, []).append(stat)
        run = leaders.get(stat.session) or leaders.get(stat.group)
        if stat.session in sessions or (run is not None and stat.started >= run.started):
            found[stat.pid] = stat
    growing = list(found)
    while growing:
        born = [stat for stat in children.get(growing.pop(), ()) if stat.pid not in found]
        found.update((stat.pid, stat) for stat in born)
        growing += [stat.pid for stat in born]
    return [stat for stat in found.values() if not stat.is_dead]


def _is_another(stat: Stat | None, run: Run) -> bool:
    return stat is not None and stat.started != run.started


def parsed_stat(line: bytes) -> Stat | None:
    """A line of /proc/PID/stat, or None if it is not one. Only the last parenthesis ends the name."""
    head, _, rest = line.rpartition(b")")
    fields = rest.split()
    try:
        pid, parent, group, session = int(head.partition(b"(")[0]), *map(int, fields[1:4])
        return Stat(pid, parent, group, session, int(fields[19]), is_dead=fields[0] in {b"Z", b"X", b"x"})
    except (ValueError, IndexError):
        return None


def _read(pid: str, name: str) -> bytes:
    """The file *name* of a process, as far as it is of a sensible size: a process can claim any."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 (pathlib is large)
            return file.read(_MOST_BYTES)
    except OSError:
        return b""  # gone, or hidden from us


def _processes() -> list[Stat]:
    names = os.listdir("/proc")  # noqa: PTH208 (pathlib is large)
    stats = [parsed_stat(_read(name, "stat")) for name in names if name.isdecimal()]
    return [stat for stat in stats if stat is not None]


def marked(
    processes: list[Stat], doomed: dict[bytes, Run], shielded: set[int], read: Callable[[str, str], bytes]
) -> list[Stat]:
    """Those of *processes* that say that they are of a doomed run, as they are now; it has been seen then.

    One that was in its daemon's session when it was first looked at, having just been forked, has its own by
    the time it has the environment of a run.
    """
    found = []
    for stat in processes:
        entries = doomed.keys() & set(read(str(stat.pid), "environ").split(b"\0"))
        now = parsed_stat(read(str(stat.pid), "stat")) if entries else None
        if now is not None and now.session not in shielded:
            found.append(now)
            for entry in entries:
                doomed[entry].is_seen = True
    return found


def groups_of(processes: list[Stat]) -> list[int]:
    """Their groups, the eldest first: a job must not go on, or end well, because others of it were killed."""
    eldest = sorted(processes, key=lambda stat: (stat.started, stat.pid))
    return list(dict.fromkeys(stat.group for stat in eldest))


def _kill(processes: list[Stat]) -> set[int]:
    """Kill processes, group by group, so that none can fork its way out; those there were to be killed.

    What runs as another user counts as gone: it cannot be ended, and waiting for it would have no end.
    """
    for group in groups_of(processes):
        try:
            os.killpg(group, _KILL)
        except (ProcessLookupError, PermissionError):
            continue
    return {stat.pid for stat in processes if _is_within_reach(stat.pid)}


def _is_within_reach(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def swept(doomed: dict[bytes, Run], shielded: set[int]) -> set[int]:
    """Kill everything of the doomed that lives now; who that was.

    First what the table of processes tells: to ask a process for its environment can take long.
    """
    processes, runs = _processes(), list(doomed.values())
    sure = belonging(processes, runs, set(), shielded=shielded)
    killed = _kill(sure)
    known = {stat.pid for stat in sure}
    rest = [stat for stat in processes if stat.pid not in known and not stat.is_dead]
    own = {stat.pid: stat for stat in marked(rest, doomed, shielded, _read)}
    present = [own.get(stat.pid, stat) for stat in rest]
    return killed | _kill(belonging(present, runs, set(own), shielded=shielded))


class _Spec(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class _Alarm:
    """A descriptor that becomes readable at an instant of CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC))
        self._at_us = 0

    def set(self, at_us: int) -> None:
        """Ring at *at_us*, once."""
        if at_us != self._at_us:
            spec = _Spec(0, 0, at_us // 1_000_000, at_us % 1_000_000 * 1_000)
            absolute = 1
            self._checked(self._libc.timerfd_settime(self.fd, absolute, ctypes.byref(spec), None))
            self._at_us = at_us

    def _checked(self, answer: int) -> int:
        if answer < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return answer


class Guardian:
    """Guards what it is told of over the descriptor *pipe*."""

    def __init__(self, pipe: int, daemon: str) -> None:
        self._pipe = pipe
        self._daemon = daemon
        self._shielded = {0, 1, os.getsid(0), _session_of(int(daemon))}
        """The kernel's session, and those of init, of this process and of the daemon."""
        self._runs = Runs()
        self._alarm = _Alarm()
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        self._poll.register(self._alarm.fd, select.POLLIN)
        self._begun = b""
        """The beginning of a record."""
        self._orphaned_us: int | None = None
        self._known: set[bytes] = set()
        self._pause_ms: int | None = None
        self._killed: set[int] = set()

    def guard(self) -> None:
        """Guard until let go, or until the daemon is gone and all it had on the leash."""
        while not self._is_done():
            ready = dict(self._poll.poll(self._pause_ms))
            if self._alarm.fd in ready:
                os.read(self._alarm.fd, 8)
            if self._pipe in ready:
                self._listen()
            if self._runs.is_let_go:
                return
            self._runs.look(_now_us())
            self._alarm.set(self._runs.until_us)
            self._sweep()

    def _listen(self) -> None:
        chunk = os.read(self._pipe, 65536)
        *records, self._begun = (self._begun + chunk).split(b"\0")
        for record in records:
            self._runs.heed(record)
        if not chunk:
            self._poll.unregister(self._pipe)
            self._orphaned_us = _now_us()
            self._runs.doom("it is gone")

    def _sweep(self) -> None:
        doomed = self._runs.doomed
        if not doomed:
            self._pause_ms = None
            return
        killed = swept(doomed, self._shielded)
        self._killed |= killed
        if not killed:
            self._tell()
            self._runs.bury()
        known, self._known = self._known, set(self._runs.doomed)
        if not self._known:
            self._pause_ms = None
        elif self._pause_ms is None or not self._known <= known:
            self._pause_ms = _SHORTEST_LOOK_MS
        else:
            self._pause_ms = min(2 * self._pause_ms, _LONGEST_LOOK_MS)

    def _is_done(self) -> bool:
        if self._orphaned_us is None:
            return False
        doomed = self._runs.doomed.values()
        is_lingering = _now_us() < self._orphaned_us + _LINGER_US
        return not doomed or not (is_lingering or any(run.is_over for run in doomed))

    def _tell(self) -> None:
        """Say on stderr who was killed, unless that would keep us waiting."""
        killed, self._killed = self._killed, set()
        if not killed:
            return
        some = ", ".join(map(str, sorted(killed)[:20]))
        line = f"duly: guardian of daemon {self._daemon}: {self._runs.reason}; killed {len(killed)}: {some}\n"
        writable = select.poll()
        writable.register(2, select.POLLOUT)
        if any(event == select.POLLOUT for _, event in writable.poll(0)):
            try:
                os.write(2, line.encode())
            except OSError:
                return  # nobody is left to be told


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0  # it is gone already, and has nothing on the leash


def _now_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def main() -> None:
    """Guard what comes over stdin, for the daemon named in the arguments."""
    guardian = Guardian(0, sys.argv[1])
    os.write(1, READY.encode())
    guardian.guard()


if __name__ == "__main__":
    main()
