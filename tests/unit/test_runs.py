"""Runs at the very edge of their time limits."""

import asyncio
from typing import Any

from duly.engine.runs import ActiveRun, Runs


def runs_noting(ends: list[BaseException | None]) -> Runs[Any]:
    return Runs(
        lambda: 1,
        lambda _run: True,
        lambda _run, error: ends.append(error),
        on_uncalled=lambda _run: None,
        on_fault=ends.append,
    )


async def test_a_run_that_ends_at_its_limit_has_ended() -> None:
    """A limit that comes between the end of a callback and its being noted does not make it a failure."""
    ends: list[BaseException | None] = []
    runs = runs_noting(ends)

    async def callback() -> None:
        asyncio.get_running_loop().call_soon(runs.time_out, run)

    run: ActiveRun[Any] = ActiveRun("a", callback, None, started_us=1)
    runs.begin(run)
    await runs.wait_for_ends(but_waiting=False)
    assert not run.is_timed_out
    assert ends == [None]


async def test_a_run_beyond_its_limit_is_cancelled() -> None:
    """A limit that comes while a callback goes on cancels it, and says why it ended."""
    ends: list[BaseException | None] = []
    runs = runs_noting(ends)

    async def callback() -> None:
        asyncio.get_running_loop().call_soon(runs.time_out, run)
        await asyncio.get_running_loop().create_future()

    run: ActiveRun[Any] = ActiveRun("a", callback, None, started_us=1)
    runs.begin(run)
    await runs.wait_for_ends(but_waiting=False)
    assert run.is_timed_out
    assert isinstance(ends[0], asyncio.CancelledError)
