"""What happens, as it happens: a bounded ring of events, and the streams that tell them to browsers.

All streams read the one ring, each from its own place: a reader costs a number, not a queue. One that falls
out of the ring is told to look at everything anew ("reset"). A burst is told in one piece when it is over, or
has lasted for a while: pages that are made anew in the middle of it would hold up what is to start. Pages are
told in brief that something did. Of an event only what is listed here is told: no output, no environment.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from duly.events import Event, one_line

RING = 2_000
"""Events that are kept for those who come back."""
MOST_CLIENTS = 256
HEARTBEAT_S = 15.0
CALM_S = 0.25
"""What happens within this time of each other is told together."""
LONGEST_S = 2.0
"""But nothing waits longer than this to be told."""

_SHOWN = frozenset(
    (
        "action",
        "added",
        "attempt",
        "changed",
        "duration",
        "exitCode",
        "id",
        "kind",
        "line",
        "name",
        "pid",
        "property",
        "reason",
        "removed",
        "result",
        "retryAt",
        "retryCount",
        "runId",
        "scheduledTime",
        "service",
        "signal",
        "slot",
        "stage",
        "target",
        "task",
        "taskName",
        "timer",
        "who",
    )
)
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Told(NamedTuple):
    """One event of the ring: its number, its name, and how it is told."""

    number: int
    name: str
    body: bytes


class TooManyError(Exception):
    """There are as many streams as there may be."""


class Live:
    """The ring. *boot* tells one life of the process from the next, so that numbers are never confused."""

    def __init__(
        self,
        boot: str,
        *,
        ring: int = RING,
        most_clients: int = MOST_CLIENTS,
        calm_s: float = CALM_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._boot = boot
        self._ring: deque[Told] = deque(maxlen=ring)
        self._last = 0
        self._open = 0
        """The newest that may be told; what came after it waits for calm."""
        self._calm_s, self._longest_s = calm_s, longest_s
        self._newest_s = self._since_s = 0.0
        self._calming: asyncio.TimerHandle | None = None
        self._joined: tuple[int, int, bytes] = (0, 0, b"")
        """From where to where, and how all readers that were there are told."""
        self._most_clients = most_clients
        self._clients = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = asyncio.Event()

    # --- telling ---

    def listener(self, event: Event) -> None:
        """Hear an event of the scheduler or the daemon."""
        if event.level > logging.DEBUG:
            self.publish(event.name, event.time.isoformat(), event.fields)

    def publish(self, name: str, time: str, fields: Mapping[str, Any]) -> None:
        """Tell that something happened."""
        shown = {key: _shown(value) for key, value in fields.items() if key in _SHOWN}
        self._last += 1
        body = _encode({"event": name, "time": time, **shown})
        self._ring.append(Told(self._last, name, body))
        if self._clients or self._waiting:
            self._tell_soon(asyncio.get_running_loop())
        else:
            self._open = self._last

    def close(self) -> None:
        """End every stream."""
        self._closed.set()
        self._tell()

    def _tell_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._newest_s = loop.time()
        if self._calming is None:
            self._since_s = self._newest_s
            self._calming = loop.call_later(min(self._calm_s, self._longest_s), self._tell_if_calm, loop)

    def _tell_if_calm(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = min(self._newest_s + self._calm_s, self._since_s + self._longest_s)
        if due_s > loop.time():
            self._calming = loop.call_at(due_s, self._tell_if_calm, loop)
        else:
            self._tell()

    def _tell(self) -> None:
        if self._calming is not None:
            self._calming.cancel()
            self._calming = None
        self._open = self._last
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    # --- reading ---

    @property
    def last_id(self) -> str:
        """The id of the newest event."""
        return self._id(self._last)

    @property
    def clients(self) -> int:
        """How many streams there are."""
        return self._clients

    def enter(self) -> Callable[[], None]:
        """Take one of the places for streams; the answer gives it back. Raises TooManyError."""
        if self._clients >= self._most_clients or self._closed.is_set():
            raise TooManyError
        self._clients += 1
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self._clients -= 1

        return leave

    def since(self, last_id: str | None) -> tuple[int, list[Told] | None]:
        """The number to go on from, and what happened since *last_id*; None if that is not known any more."""
        if last_id is None:
            return self._last, []
        number = self._number(last_id)
        if number is None or not self._has_all_since(number):
            return self._last, None
        return self._last, self._after(number)

    async def calm(self, waited_s: float = 0.0) -> None:
        """Return once no event has come for a moment, at the latest with `close`.

        Whoever *waited_s* already waits that much less for what does not end.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._longest_s - waited_s
        while (calm_s := min(self._newest_s + self._calm_s, give_up_s)) > loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(calm_s):
                    await self._closed.wait()
                    return

    async def stream(
        self, last_id: str | None, *, is_brief: bool = False, heartbeat_s: float = HEARTBEAT_S
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events from *last_id* on, until `close`; *is_brief*: only how many, and the last id."""
        number, missed = self.since(last_id)
        yield b"retry: 2000\n\n" + self._greeting("hello" if missed is not None else "reset")
        if missed:
            yield self._brief(len(missed)) if is_brief else b"".join(map(self._message, missed))
        while not self._closed.is_set():
            if number >= self._open:
                await self._news(heartbeat_s)
                if number >= self._open:
                    yield b": still here\n\n"
                continue
            if self._has_all_since(number):
                piece = self._brief(self._last - number) if is_brief else self._since(number)
            else:
                piece = self._greeting("reset")
            number = self._last
            yield piece

    async def _news(self, patience_s: float) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await waiting
        finally:
            self._waiting.discard(waiting)

    def _id(self, number: int) -> str:
        return f"{self._boot}-{number}"

    def _number(self, told_id: str) -> int | None:
        boot, _, number = told_id.rpartition("-")
        is_number = number.isascii() and number.isdigit() and len(number) < 19
        return int(number) if boot == self._boot and is_number else None

    def _has_all_since(self, number: int) -> bool:
        if number > self._last:
            return False
        oldest = self._ring[0].number if self._ring else self._last + 1
        return number >= oldest - 1

    def _after(self, number: int) -> list[Told]:
        news = []
        for told in reversed(self._ring):
            if told.number <= number:
                break
            news.append(told)
        return news[::-1]

    def _since(self, number: int) -> bytes:
        """All messages after *number*; joined once for all who read at the same place."""
        if self._joined[:2] != (number, self._last):
            self._joined = (number, self._last, b"".join(map(self._message, self._after(number))))
        return self._joined[2]

    def _brief(self, count: int) -> bytes:
        return b'id: %s\ndata: {"events":%d}\n\n' % (self.last_id.encode(), count)

    def _greeting(self, word: str) -> bytes:
        return f"event: {word}\nid: {self.last_id}\ndata: {{}}\n\n".encode()

    def _message(self, told: Told) -> bytes:
        # The data is one line: JSON escapes line ends.
        return b"id: %s\ndata: %s\n\n" % (self._id(told.number).encode(), told.body)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value[:100]]
    return value
