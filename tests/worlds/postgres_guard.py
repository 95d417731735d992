"""python -I -S postgres_guard.py HOME: no server outlives the tests that started it, however they end.

The tests hold the other end of this process's standard input. When that closes (they closed it, or they were
killed) every PostgreSQL and PgBouncer whose command line names HOME is killed, and HOME is removed. Everybody
may read a command line; the working directory of nobody's processes is hidden even from root in a container.
"""

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

IPC_RMID = 0


def servers(name: str) -> Iterator[int]:
    """The processes of servers that live in a directory of this *name*; a cluster's name begins with it."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            program = Path(os.fsdecode(line.split(b"\0")[0])).name
            if program.startswith(("postgres", "pgbouncer")) and os.fsencode(name) in line:
                yield int(entry.name)


def is_alive(pid: int) -> bool:
    """Whether the process still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """The processes that *pid* has started and not yet seen end."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def forget_memory(data: Path) -> None:
    """Remove the shared memory that a killed server left: it would stay until the machine is restarted."""
    lines = (data / "postmaster.pid").read_text().splitlines()
    if len(lines) > 6 and len(words := lines[6].split()) == 2:
        ctypes.CDLL(None).shmctl(int(words[1]), IPC_RMID, None)


def main(home: Path) -> None:
    """Wait for the end of the tests, then leave nothing behind."""
    while sys.stdin.buffer.read(4096):
        pass
    while pids := [pid for pid in servers(home.name) if is_alive(pid)]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for data in home.iterdir():
        with suppress(OSError):
            forget_memory(data)
    shutil.rmtree(home)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
