"""What /proc says of processes: which one a pid means, who is in a group, and which token somebody carries.

A pid alone says nothing: it is given again once its process is gone. A pid with its start time and the boot
it was started in is a process for ever. Systems without /proc have identities that are never found again.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from duly.clock import steady_us

PROC = Path("/proc")
RUN_ID = "DULY_RUN_ID"
"""The environment variable that says to a job which run it is. Nothing relies on it: anybody can set it."""
RUN_TOKEN = "DULY_RUN_TOKEN"  # noqa: S105 (a name, no secret)
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
        with open(f"{proc_root}/{pid}/stat", "rb") as file:  # noqa: PTH123 (a few for each run)
            return parsed_stat(file.read())
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


@cache
def boot_id(proc_root: Path = PROC) -> str:
    """The name of the present boot, or nothing where boots have no names."""
    try:
        return (proc_root / "sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def identity_of(pid: int, proc_root: Path = PROC) -> Identity:
    stat = stat_of(pid, proc_root)
    return Identity(pid, 0 if stat is None else stat.started, boot_id(proc_root))


def age_us(identity: Identity) -> int | None:
    """How long ago a process of this boot was made, to the clock tick; None where that is not known."""
    if identity.started == 0 or identity.boot != boot_id():
        return None
    return steady_us() - identity.started * 1_000_000 // os.sysconf("SC_CLK_TCK")


def inherited_by(pid: int, proc_root: Path = PROC) -> frozenset[int]:
    """The children of the main thread of a process, the dead that wait to be reaped included.

    Linux gives the orphans that a process inherits to its first thread that lives, which is its main thread.
    """
    try:
        with open(f"{proc_root}/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123 (once a run)
            return frozenset(map(int, file.read().split()))
    except FileNotFoundError:  # a kernel that does not list children, or no such process
        return frozenset(stat.pid for stat in stats(proc_root) if stat.parent == pid)
    except OSError:
        return frozenset()


def token_in(environ: bytes) -> str | None:
    """The token in the text of /proc/PID/environ, genuine or not."""
    name = f"\0{RUN_TOKEN}=".encode()
    # Searched, not split: two million empty entries would be two million objects.
    _, found, rest = (b"\0" + environ).partition(name)
    return os.fsdecode(rest.partition(b"\0")[0]) if found else None


def token_of_pid(pid: int, proc_root: Path = PROC) -> str | None:
    """The token that the process *pid* carries, genuine or not; None if we may not read its environment."""
    try:
        with (proc_root / str(pid) / "environ").open("rb") as file:
            return token_in(file.read(_MOST_ENVIRON_BYTES))
    except OSError:
        return None
