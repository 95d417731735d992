"""What the kernel says of a process, and of jobs that note their own start: no tracing, no sampling.

Processor time and voluntary switches are sums over the threads. Jobs append a line with their name and the
uptime to a file; the shell's own words do that, so a job costs one process, no matter who starts it.
"""

import math
import os
import resource
import time
from collections import Counter
from pathlib import Path

from tools.benchmarks.case import Numbers
from tools.benchmarks.lags import quantile

NOTE = 'read up _ </proc/uptime; echo "$1 $up" >> "$0"'
"""For `sh -c`, with a file and a name: append the name and the uptime to the file."""


def cpu_s(pid: int) -> float:
    """The processor time that a process has had, that of threads that have ended included."""
    # The clock of another process: clock_getcpuclockid(3), by its scheduler's account.
    return time.clock_gettime(~pid << 3 | 2)


def wakeups(pid: int) -> int:
    """How often its threads have gone to sleep, and so have been woken, each by something."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(_field(task / "status", "voluntary_ctxt_switches") for task in tasks.iterdir())


def resident_mb(pid: int) -> float:
    """Its resident set, in megabytes of a million bytes."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS") * 1024 / 1e6


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def uptime_s() -> float:
    """The clock by which jobs note their start; theirs goes in steps of ten milliseconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def next_minute(least_s: float) -> tuple[time.struct_time, float]:
    """The first minute that is at least so far away: its wall clock in UTC, and its uptime."""
    now_s = time.time()  # noqa: TID251 (a benchmark of the host's clock)
    minute_s = math.ceil((now_s + least_s) / 60) * 60
    return time.gmtime(minute_s), uptime_s() + minute_s - now_s


def load() -> float:
    """How many processes want a core, over the last minute: what else this machine is doing."""
    return os.getloadavg()[0]


def starts(file: Path, n: int, *, patience_s: float = 120) -> list[float]:
    """The uptimes at which *n* jobs started, in order. Raises unless each of them started, and once."""
    give_up_s = time.monotonic() + patience_s
    while len(lines := file.read_bytes().splitlines() if file.exists() else []) < n:
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"{len(lines)} of {n} jobs started within {patience_s:g} s")
        time.sleep(0.1)
    time.sleep(2)  # whatever starts a second time does so about now
    names = Counter(line.split()[0] for line in file.read_bytes().splitlines())
    if len(names) != n or max(names.values()) != 1:
        raise RuntimeError(f"{len(names)} of {n} jobs started, one of them {max(names.values())} times")
    return sorted(float(line.split()[1]) for line in lines)


def bare_spawns(file: Path, n: int) -> tuple[float, float]:
    """How long this process takes to start *n* jobs that do the same, one after the other, and its CPU."""
    began_s, used_s, pids = time.perf_counter(), time.process_time(), []
    for i in range(n):
        argv = ["sh", "-c", NOTE, str(file), f"bare-{i:05}"]
        # A session for each, as under the daemon: the kernel shares its time among sessions.
        pids.append(os.posix_spawn("/bin/sh", argv, os.environ, setsid=True))
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - used_s
    for pid in pids:
        os.waitpid(pid, 0)
    return took_s, used_s


def children_cpu_s() -> float:
    """The processor time of all children that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lags(started_s: list[float], due_s: float) -> Numbers:
    """How long after the due instant jobs started, and how many did in a second once they began to."""
    lasted_s = max(started_s[-1] - started_s[0], 0.01)
    return {
        "p50_s": quantile(started_s, 0.5) - due_s,
        "all_s": started_s[-1] - due_s,
        "per_s": len(started_s) / lasted_s,
        "load": load(),
    }


def idle(pid: int, seconds: float) -> Numbers:
    """What a process with nothing to do costs for a while."""
    before_s, before, began_s = cpu_s(pid), wakeups(pid), time.monotonic()
    time.sleep(seconds)
    passed_s = time.monotonic() - began_s
    return {
        "cpu_percent": (cpu_s(pid) - before_s) / passed_s * 100,
        "wakeups_per_min": (wakeups(pid) - before) / passed_s * 60,
        "resident_mb": resident_mb(pid),
        "load": load(),
    }


def took_ms(times_s: list[float]) -> Numbers:
    """The best and the median of several times."""
    ordered = sorted(times_s)
    return {"best_ms": ordered[0] * 1000, "median_ms": quantile(ordered, 0.5) * 1000, "load": load()}
