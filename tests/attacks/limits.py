"""The `duly` command as a process with limits: what takes quadratic time or memory does not survive them.

The limits are on CPU time and address space, so nothing depends on how busy the machine is. Inputs are as
large as duly takes them (1 MiB). A linear reader needs a second or two of the ten; a quadratic one, minutes.
"""

import subprocess
import sys
from typing import NamedTuple

MOST_CPU_S = 10
MOST_BYTES = 1024 * 1024
_MOST_MEMORY = 1024 * MOST_BYTES
_PROGRAM = """
import resource, sys
cpu_s, memory = map(int, sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
from duly.cli import main
main(sys.argv[3:], prog_name="duly")
"""


class Done(NamedTuple):
    """How a command ended. A negative code is the signal that killed it: SIGXCPU for too much CPU time."""

    code: int
    stdout: bytes
    stderr: str


def duly(*arguments: str, stdin: bytes = b"") -> Done:
    """Run `duly` within the limits. No input may cause a traceback."""
    command = [sys.executable, "-c", _PROGRAM, str(MOST_CPU_S), str(_MOST_MEMORY), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=300)
    stderr = done.stderr.decode()
    assert "Traceback" not in stderr, stderr[-2000:]
    return Done(done.returncode, done.stdout, stderr)


def filled(unit: str, *, but: int = 100) -> str:
    """A text of as many units as fit into the largest input, and leave *but* bytes free."""
    return unit * ((MOST_BYTES - but) // len(unit.encode()))
