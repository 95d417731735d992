"""A small daemon with a watchdog, for tests to kill and to stop.

python -m tests.integration.watchdog_program HOW LEASE_MS: it starts one job and prints one line of JSON. HOW
is `named`, `unnamed` (as if killed before it could say which process the job is) or `announced` (as if killed
before the process is made).
"""

import asyncio
import json
import os
import sys

from duly.clock import steady_us
from duly.processes.output import Tail
from duly.processes.process import HostProcess, HostProcesses
from duly.processes.spawn import ProcessCommand
from duly.processes.watchdog import Watchdog

JOB = """
trap '' TERM
setsid sh -c 'echo $$; exec sleep 1000' &
echo $$ $(env -i sleep 1000 > /dev/null & echo $!)
wait; wait
"""
"""Prints its own pid, that of an orphan without its environment, and that of one outside its session."""


async def begin(processes: HostProcesses, token: str, script: str = JOB) -> tuple[HostProcess, list[int]]:
    """Start a job; its process, and the pids that it prints, its own first."""
    output, received = Tail(4096), asyncio.Event()
    output.watch(lambda _: received.set())
    process = await processes.start(ProcessCommand(("sh", "-c", script), {}), token=token, output=output)
    while output.text().count("\n") < 2:
        await asyncio.wait_for(received.wait(), 60)
        received.clear()
    return process, sorted(map(int, output.text().split()), key=lambda pid: pid != process.identity.pid)


async def main(how: str, lease_ms: int) -> None:
    """Have a job until killed."""
    processes = HostProcesses()
    watchdog, token, pids = Watchdog(processes.children), f"program {os.getpid()}:1", list[int]()
    await watchdog.start()
    watchdog.extend(steady_us() + 3_600_000_000)
    assert watchdog.watch(token)
    if how != "announced":
        process, pids = await begin(processes, token)
        if how == "named":
            watchdog.watch(token, process.identity)
    until_us = steady_us() + lease_ms * 1000
    watchdog.extend(until_us)
    facts = {"watchdog": watchdog.pid, "pids": pids, "until_us": until_us, "token": token}
    os.write(1, json.dumps(facts).encode() + b"\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
