"""The hand that holds a leash: real guardians that die, or cannot be started for now."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from duly.cluster.clock import BoardClock
from duly.daemon import hand as hand_module
from duly.daemon.hand import Hand
from duly.supervisor.process import HostProcesses
from duly.supervisor.procfs import Identity

SOON_S = 60


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_module, "_FIRST_PAUSE_S", 0.01)


async def on_guard(hand: Hand, *, but: Identity | None = None) -> Identity:
    """The guardian, once there is another one than before."""
    async with asyncio.timeout(SOON_S):
        while (guardian := hand.leash.guardian) in {None, but}:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    assert guardian is not None
    return guardian


async def test_a_lost_guardian() -> None:
    """When a guardian is killed there is another in a moment; when the leash is taken off there is none."""
    hand = Hand(HostProcesses().brood, BoardClock())
    await hand.begin()
    first = await on_guard(hand)
    os.kill(first.pid, signal.SIGKILL)
    second = await on_guard(hand, but=first)
    assert hand.fault is None
    await hand.end()
    assert hand.leash.guardian is None
    with pytest.raises(ProcessLookupError):
        os.kill(second.pid, 0)


async def test_a_guardian_that_cannot_be_started_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fault is told until the guardian can be started, which is tried again and again."""
    hand = Hand(HostProcesses().brood, BoardClock())
    with monkeypatch.context() as without:
        without.setattr(sys, "executable", str(tmp_path / "absent"))
        await hand.begin()
        assert "absent" in str(hand.fault)
    await on_guard(hand)
    assert hand.fault is None
    await hand.end()


async def test_a_leash_that_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once the leash is taken off nobody tries to put it on any more, and no fault is told."""
    hand = Hand(HostProcesses().brood, BoardClock())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    await hand.begin()
    await hand.end()
    assert hand.fault is None
    assert {task.get_name() for task in asyncio.all_tasks()} & {"duly leash"} == set()
