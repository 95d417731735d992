"""What attacks on a daemon share: waiting for a state that nothing announces, and a small disk to fill."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

PATIENCE_S = 60.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")


def until(look: Callable[[], T]) -> T:
    """What *look* finds, once that is something; it is asked again and again, up to a deadline."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"waited {PATIENCE_S} s in vain"
        os.sched_yield()
    return found


class SmallDisk:
    """A disk of 1 MiB that can be filled and freed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave no free page."""
        with (self.path / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        """Remove what fills it."""
        (self.path / "filler").unlink()


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """A disk of its own at *path*, while the block lasts."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
