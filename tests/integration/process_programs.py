"""Programs that need a process of their own: they change limits, signals or who inherits orphans.

python -m tests.integration.process_programs NAME ...: each prints one JSON object.
"""

import asyncio
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

from duly.processes.children import Reaper, become_subreaper
from duly.processes.output import Tail
from duly.processes.process import HostProcess, HostProcesses
from duly.processes.spawn import ProcessCommand, SpawnError, spawn
from duly.processes.tokens import RunTokens

ORPHANS = """
import os, sys
code, early, late = map(int, sys.argv[1:])
for n in range(early + late):
    middle = os.fork()
    if middle == 0:
        orphan = os.fork()
        if orphan == 0:
            if n >= early:
                os.read(0, 1)
                for _ in range(20000): pass
            os._exit(99)
        if n < early:
            os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)  # a zombie when we leave it
        os._exit(98)
    os.waitpid(middle, 0)
os._exit(code)
"""


TOKENS = RunTokens(b"the key of these tests", "s", 0)


async def ended(processes: HostProcesses, *argv: str, token: str = "s:1") -> tuple[int, str]:
    """Run a command to its end: its return code and what it wrote."""
    output = Tail(65536)
    process = await processes.start(ProcessCommand(argv, {}), token=token, output=output)
    returncode = await process.exited()
    process.close()
    return returncode, output.text()


def descriptors_open() -> set[int]:
    """The descriptors of this process."""
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()}


async def orphans(runs: str, early: str, late: str) -> dict[str, object]:
    """Inherit the orphans of *runs* children, and of twice as many that have none."""
    is_subreaper = become_subreaper()
    processes = HostProcesses()
    reaper = Reaper(processes.children)
    reaper.begin()
    expected = [n % 90 for n in range(int(runs))]
    parents = [ended(processes, sys.executable, "-S", "-c", ORPHANS, str(n), early, late) for n in expected]
    others = [ended(processes, "sh", "-c", f"exit {n}") for n in expected * 2]
    codes = [code for code, _ in await asyncio.gather(*parents, *others)]
    born = int(runs) * (int(early) + int(late))
    gone = asyncio.Event()

    def look() -> None:
        reaper.look()
        gone.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, look)
    while reaper.reaped < born:
        await gone.wait()
        gone.clear()
    reaper.end()
    try:
        left = repr(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG))  # noqa: ASYNC222 (does not wait)
    except ChildProcessError:
        left = "nobody"
    return {
        "is_subreaper": is_subreaper,
        "right": codes == expected * 3,
        "reaped": reaper.reaped,
        "born": born,
        "left": left,
    }


async def no_reaper() -> dict[str, object]:
    """Be a subreaper that never reaps: what is killed in a group stays there, dead."""
    become_subreaper()
    processes = HostProcesses()
    seen = asyncio.Event()
    output = Tail(100)
    output.watch(lambda _: seen.set())
    command = ProcessCommand(("sh", "-c", "sleep 1000 & echo $!; read x; exit 0"), {})
    process = await processes.start(command, token="s:1", output=output)
    await seen.wait()
    await process.exited()
    os.kill(int(output.text()), signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, int(output.text()), os.WEXITED | os.WNOWAIT)
    os.killpg(process.identity.pid, 0)  # the dead are still a group to the kernel
    return {"alive": process.is_group_alive()}


async def descriptors() -> dict[str, object]:
    """Start processes with ever more descriptors, from none free to enough."""
    processes = HostProcesses()
    await ended(processes, "true")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))
    reasons, codes = [], []
    for free in range(14):
        try:
            code, text = await ended(processes, "sh", "-c", "echo out; exit 7")
            codes.append([free, code, text])
        except SpawnError as error:
            reasons.append([free, error.reason])
        os.close(taken.pop())
    spare = 0
    with suppress(OSError):
        while True:
            os.dup(0)
            spare += 1
    return {"reasons": reasons, "codes": codes, "leaked": 14 - spare}


async def no_processes() -> dict[str, object]:
    """Start processes where the user may have no more."""
    processes = HostProcesses()
    if os.getuid() == 0:  # root has no limit
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    reasons = []
    try:
        spawn(ProcessCommand(("true",), {}), {"PATH": os.defpath})
    except SpawnError as error:
        reasons.append(error.reason)
    try:
        await ended(processes, "true")
    except SpawnError as error:
        reasons.append(error.reason)
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    code, _ = await ended(processes, "true")
    return {"reasons": reasons, "code": code}


async def ignored() -> dict[str, object]:
    """Start a process from where signals are ignored and blocked, SIGCHLD among them."""
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGRTMIN):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    processes = HostProcesses()
    code, text = await ended(processes, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    failed, _ = await ended(processes, "sh", "-c", "exit 5")
    os.kill(os.getpid(), signal.SIGHUP)  # still means nothing to us
    return {"code": code, "failed": failed, "masks": dict(line.split(":\t") for line in text.splitlines())}


async def abandoned() -> dict[str, object]:
    """Leave three processes behind, as a daemon that is killed does; say who they are."""
    processes = HostProcesses()
    seen = asyncio.Event()
    ready: list[HostProcess] = []
    for n, script in enumerate(
        (
            "trap '' TERM; echo ready; while :; do sleep 1000; done",
            "echo ready; sleep 1000",
            "sleep 1000 & echo ready; exit 0",
        )
    ):
        output = Tail(100)
        output.watch(lambda _: seen.set())
        command = ProcessCommand(("sh", "-c", script), {})
        ready.append(await processes.start(command, token=TOKENS.token_of(n), output=output))
        await seen.wait()
        seen.clear()
    await ready[2].exited()
    return {"processes": [[p.identity.pid, p.identity.started, p.identity.boot] for p in ready]}


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    programs = (orphans, no_reaper, descriptors, no_processes, ignored, abandoned)
    with suppress(BrokenPipeError):
        print(json.dumps(asyncio.run({f.__name__: f for f in programs}[program](*arguments))), flush=True)  # noqa: T201 (that is its purpose)
    os._exit(0)
