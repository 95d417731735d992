"""What machines tell each other's rows about timers."""

import asyncio
from types import SimpleNamespace
from typing import Any

from duly.cluster.table import Ask
from duly.cluster_timers.timers import ClusterTimers


async def test_two_senders_send_each_message_once() -> None:
    """A start and an end of a run that send at the same time lose nothing and repeat nothing."""
    sent: list[str] = []

    async def do(ask: Ask) -> None:
        await asyncio.sleep(0)  # noqa: TID251 (the other sender has its turn)
        sent.append(ask.text)

    timers: Any = ClusterTimers.__new__(ClusterTimers)
    timers._asks = [Ask(names=["a"], text=str(number)) for number in range(5)]
    timers._asking = asyncio.Lock()
    timers._backend = SimpleNamespace(link=SimpleNamespace(do=do))
    timers._poller = SimpleNamespace(wake=lambda: None)
    await asyncio.gather(timers._send_asks(), timers._send_asks())
    assert sent == ["0", "1", "2", "3", "4"]
    assert timers._asks == []
