"""A small daemon with a leash, for tests to kill and to stop.

python -m tests.integration.leashed_program HOW LEASE_MS: it starts one job, whose grandchild leaves the
session, and says who everybody is and until when its lease lasts, as one line of JSON. HOW is `held`;
`unheld`, as if it were killed before it could say which process the job is; or `announced`, as if it were
killed before the job is made.
"""

import asyncio
import json
import os
import sys

from duly.cluster.clock import steady_us
from duly.supervisor.leash import Leash
from duly.supervisor.output import Tail
from duly.supervisor.process import Command, HostProcess, HostProcesses

JOB = """
trap '' TERM
setsid sh -c 'echo $$; exec sleep 1000' &
echo $$ $(env -i sleep 1000 > /dev/null & echo $!)
wait; wait
"""
"""Says its own pid, that of an orphan without its environment, and that of one outside of its session."""


async def begun(processes: HostProcesses, marker: str, script: str = JOB) -> tuple[HostProcess, list[int]]:
    """Start a job; its process, and the pids it says, its own first."""
    output, said = Tail(4096), asyncio.Event()
    output.watch(lambda _: said.set())
    process = await processes.start(Command(("sh", "-c", script), {}), marker=marker, output=output)
    while output.text().count("\n") < 2:
        await asyncio.wait_for(said.wait(), 60)
        said.clear()
    pids = [int(pid) for pid in output.text().split()]
    return process, sorted(pids, key=lambda pid: pid != process.identity.pid)


async def main(how: str, lease_ms: int) -> None:
    """Hold a job until killed."""
    processes = HostProcesses()
    leash, marker = Leash(processes.brood), f"leashed {os.getpid()}:1"
    await leash.start()
    leash.extend(steady_us() + 3_600_000_000)
    leash.expect(marker)
    pids: list[int] = []
    if how != "announced":
        process, pids = await begun(processes, marker)
        if how == "held":
            leash.hold(marker, process.identity)
    until_us = steady_us() + lease_ms * 1000
    leash.extend(until_us)
    assert leash.guardian is not None
    told = {"guardian": leash.guardian.pid, "pids": pids, "until_us": until_us, "marker": marker}
    os.write(1, json.dumps(told).encode() + b"\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
