"""`duly verify` on traces that no recorder would write: a verdict or a refusal, soon, and never a crash."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from click.testing import CliRunner

from duly.cli.verify import verify
from tests.attacks.hostile_traces import hostile

CODES = {0, 1, 2}
"""Holds or inconclusive; violated; not a trace, or one with faults. 70 would say that the checker failed."""
CPU_S = 20.0
MEMORY_BYTES = 400 << 20
MOST_OUTPUT_BYTES = 4 << 20
FEW, MANY, CHUNK = 500, 20_000, 250


class TooLongError(BaseException):
    """Not an Exception: the command itself must not be able to catch it."""


@contextmanager
def bounded() -> Iterator[None]:
    """Bound what is done here in processor time, which no other process takes away, and in memory."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError(f"more than {CPU_S:g} s of processor time")

    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def attack(seed: int, folder: Path) -> str:
    """What is wrong with how the command answers the attack *seed*; empty if nothing."""
    files, arguments = hostile(seed)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    placed = [str(folder / each) if each in files or each == "page.html" else each for each in arguments]
    try:
        with bounded():
            done = CliRunner().invoke(verify, placed)
    except TooLongError as error:
        return f"{error}: {arguments}"
    if done.exit_code not in CODES or (done.exception and not isinstance(done.exception, SystemExit)):
        return f"code {done.exit_code}, {done.exception!r}: {arguments}\n{done.stderr}"
    if len(done.output) > MOST_OUTPUT_BYTES:
        return f"{len(done.output)} characters of output: {arguments}"
    return ""


def survive(seeds: range, folder: Path) -> None:
    found = {seed: wrong for seed in seeds if (wrong := attack(seed, folder))}
    seen = [f"attack({seed}): {wrong}" for seed, wrong in found.items()]
    assert not found, "\n".join(["make it again with tests.attacks.hostile_traces.hostile(seed)", *seen])


@pytest.mark.parametrize("first", range(0, FEW, CHUNK))
def test_hostile_traces(first: int, tmp_path: Path) -> None:
    """Every damaged trace or table ends in a verdict or a refusal, within bounds of time and memory."""
    survive(range(first, first + CHUNK), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, MANY, CHUNK))
def test_many_hostile_traces(first: int, tmp_path: Path) -> None:
    """Twenty thousand damaged traces and tables end in a verdict or a refusal, within the same bounds."""
    survive(range(first, first + CHUNK), tmp_path)
