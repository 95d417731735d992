"""The heartbeat thread of a simulated node."""

from typing import TYPE_CHECKING, Any

from duly.cluster.node import Node
from duly.cluster.table import TableRequest
from duly.errors import StoreError

if TYPE_CHECKING:
    from tests.simulation.cluster.program import Program
    from tests.worlds.shared_timers import Cable


class SimHeartbeats:
    """Runs beside the loop, whatever that does."""

    def __init__(self, host: "Program | Cable", node: Node) -> None:
        self._host = host
        self._node = node
        self._is_over = self._is_sending = False
        self._looks = 0

    def start(self) -> None:
        self._look()

    def wake(self) -> None:
        """Ask the node at once what to send."""
        if not self._is_sending:
            self._look_at(self._host.steady_us())

    async def stop(self) -> None:
        self._is_over = True

    def _look_at(self, at_us: int) -> None:
        self._looks += 1
        number = self._looks
        self._host.at(at_us, lambda: self._look() if number == self._looks else None)

    def _look(self) -> None:
        if self._is_over or self._is_sending:
            return
        request, at_us = self._node.next_request()
        if request is None:
            self._look_at(max(at_us, self._host.steady_us() + 1))
            return
        sent_us, self._is_sending = self._host.steady_us(), True
        sent = request
        self._host.send(
            sent, 2 * self._node.beat_us, lambda outcome: self._on_outcome(sent, outcome, sent_us)
        )

    def _on_outcome(self, request: TableRequest[Any], outcome: Any, sent_us: int) -> None:
        self._is_sending = False
        if isinstance(outcome, StoreError):
            self._node.on_error(request, outcome)
        else:
            self._node.on_answer(request, outcome, sent_us)
        self._look()
