"""The memory that something takes, counted by Python's allocator or by the operating system."""

import gc
import os
import tracemalloc
from pathlib import Path

from tools.benchmarks.case import Numbers


class Footprint:
    """What is allocated from now on and still there when asked."""

    def __init__(self, *, traced: bool) -> None:
        self._traced = traced
        gc.collect()
        if traced:
            tracemalloc.start()
        self._before = self._bytes()

    def per_task(self, n: int) -> Numbers:
        """The bytes gained per task."""
        gc.collect()
        return {"bytes": (self._bytes() - self._before) / n}

    def _bytes(self) -> int:
        if self._traced:
            return tracemalloc.get_traced_memory()[0]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
