"""Lags: how long after the due instant each callback was called."""

import math
import time
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

from tools.benchmarks.case import Numbers


class Lags:
    """Collects the instants of calls; `work` and `work_now` are the callbacks."""

    def __init__(self, expected: int) -> None:
        self._called_s: list[float] = []
        self._expected = expected

    async def work(self) -> None:
        """The callback of an asyncio scheduler."""
        self._called_s.append(time.perf_counter())

    def work_now(self) -> None:
        """The callback of a blocking scheduler."""
        self._called_s.append(time.perf_counter())

    @property
    def is_complete(self) -> bool:
        """Whether every callback was called."""
        return len(self._called_s) >= self._expected

    def numbers(self, due_s: float) -> Numbers:
        """Median, 99th percentile and maximum, in milliseconds after *due_s*."""
        if len(self._called_s) != self._expected:
            raise RuntimeError(f"{len(self._called_s)} calls instead of {self._expected}")
        lags_ms = sorted((called_s - due_s) * 1000 for called_s in self._called_s)
        if lags_ms[0] < 0:
            raise RuntimeError(f"a callback was called {-lags_ms[0]} ms before it was due")
        return {"p50_ms": quantile(lags_ms, 0.5), "p99_ms": quantile(lags_ms, 0.99), "max_ms": lags_ms[-1]}


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The value below which that fraction of *ordered* lies."""
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]


def compared(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """How many times *before* the values of *after* are, pair by pair: the geometric mean, and its bounds.

    Below the lower bound, and above the upper one, the true ratio is once in twenty each, as far as pairs
    differ by chance.
    """
    logs = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    middle = fmean(logs)
    doubt = stdev(logs) / math.sqrt(len(logs)) * _student(len(logs) - 1) if len(logs) > 1 else math.inf
    return math.exp(middle), math.exp(middle - doubt), math.exp(middle + doubt)


def _student(freedom: int) -> float:
    """The 95th percentile of Student's distribution, within two percent for two degrees and more."""
    z = NormalDist().inv_cdf(0.95)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
