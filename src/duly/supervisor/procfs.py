"""What /proc tells of processes: which one a pid means, who is in a group, and which token somebody carries.

A pid alone says nothing: it is given again once its process is gone. A pid with its start time and the boot
it was started in is a process for ever. Systems without /proc have identities that are never found again.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

PROC = Path("/proc")
RUN_ID = "DULY_RUN_ID"
"""The environment variable that tells a job which run it is. Nothing relies on it: anybody can set it."""
MARKER = "DULY_RUN_TOKEN"
"""The environment variable that proves which run a process belongs to (`tokens`)."""

_MOST_ENVIRON_BYTES = 2 * 1024 * 1024
"""What Linux allows by default. A process can make its own environment look as large as it likes."""

_DEAD = frozenset("ZXx")


class Identity(msgspec.Struct, frozen=True):
    """Which process this is: its pid, its start (clock ticks since boot; 0 if unknown), and the boot."""

    pid: int
    started: int
    boot: str


class Stat(msgspec.Struct, frozen=True):
    """A line of /proc/PID/stat, as far as it matters."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in _DEAD


def parsed_stat(line: bytes) -> Stat | None:
    """A line of /proc/PID/stat, or None if it is not one.

    The name in parentheses may hold spaces, parentheses and line ends; only the last parenthesis ends it.
    """
    head, closing, rest = line.rpartition(b")")
    pid, opening, _ = head.partition(b"(")
    fields = rest.split()
    if not closing or not opening or len(fields) < 20:
        return None
    try:
        return Stat(
            pid=int(pid),
            state=fields[0].decode("ascii"),
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            started=int(fields[19]),
        )
    except ValueError:
        return None


def stat_of(pid: int, proc_root: Path = PROC) -> Stat | None:
    """What /proc says of the process *pid* now, or None if there is none."""
    try:
        return parsed_stat((proc_root / str(pid) / "stat").read_bytes())
    except OSError:
        # Gone, hidden from us, or no /proc at all: for us there is no such process.
        return None


def stats(proc_root: Path = PROC) -> Iterator[Stat]:
    """All processes there are, the dead that wait to be reaped included."""
    try:
        names = os.listdir(proc_root)  # noqa: PTH208 (names are enough, and there are many)
    except OSError:
        return
    for name in names:
        if name.isascii() and name.isdecimal() and (stat := stat_of(int(name), proc_root)) is not None:
            yield stat


def boot_id(proc_root: Path = PROC) -> str:
    """The name of the present boot, or nothing where boots have no names."""
    try:
        return (proc_root / "sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def identity_of(pid: int, proc_root: Path = PROC) -> Identity:
    """The identity of the process that has *pid* now."""
    stat = stat_of(pid, proc_root)
    return Identity(pid, 0 if stat is None else stat.started, boot_id(proc_root))


def children_of(pid: int, proc_root: Path = PROC) -> frozenset[int]:
    """The children of a process, of whichever of its threads, the dead that wait to be reaped included."""
    task = proc_root / str(pid) / "task"
    try:
        threads = os.listdir(task)  # noqa: PTH208 (names are enough)
    except OSError:
        return frozenset()
    found: set[int] = set()
    for thread in threads:
        try:
            found.update(map(int, (task / thread / "children").read_bytes().split()))
        except FileNotFoundError:
            if (task / thread).exists():  # a kernel that does not list children
                return frozenset(stat.pid for stat in stats(proc_root) if stat.parent == pid)
        except OSError:
            continue  # the thread ended, and its children are another's by now
    return frozenset(found)


def marker_in(environ: bytes) -> str | None:
    """The token in the text of /proc/PID/environ, genuine or not."""
    name = f"\0{MARKER}=".encode()
    # Searched, not split: two million empty entries would be two million objects.
    _, found, rest = (b"\0" + environ).partition(name)
    return os.fsdecode(rest.partition(b"\0")[0]) if found else None


def marker_of(pid: int, proc_root: Path = PROC) -> str | None:
    """The token that the process *pid* carries, genuine or not; None if we may not read its environment."""
    try:
        with (proc_root / str(pid) / "environ").open("rb") as file:
            return marker_in(file.read(_MOST_ENVIRON_BYTES))
    except OSError:
        return None
