"""What happens, as it happens: a bounded ring of events, and the streams that send them to browsers.

All streams read the one ring, each from its own place: a reader costs a number, not a queue. One that falls
out of the ring gets "reset": it must load everything again. A burst is sent in one piece when it is over, or
has lasted for a while: pages made again in the middle of it would hold up what is to start. Pages get
only the number of events. Of an event only the fields in `_SHOWN` are sent: no output, no environment.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from duly.events import Event
from duly.formatting import one_line
from duly.web.formatting import whole_number

RING = 2_000
"""Events that are kept for those who come back."""
MOST_CLIENTS = 256
HEARTBEAT_S = 15.0
CALM_S = 0.25
"""Events within this time of each other are sent together."""
LONGEST_S = 2.0
"""But no event waits longer than this."""

_SHOWN = frozenset(
    (
        *("action", "added", "attempt", "changed", "duration", "exitCode", "id", "kind", "line", "name"),
        *("pid", "property", "reason", "removed", "result", "retryAt", "retryCount", "runId", "service"),
        *("scheduledTime", "signal", "slot", "stage", "target", "task", "taskName", "timer", "who"),
    )
)
_encode = msgspec.json.Encoder(enc_hook=str).encode


class TooManyError(Exception):
    """There are as many streams as there may be."""


class Live:
    """The ring. *boot* names one life of the process, so that numbers are never confused."""

    def __init__(
        self,
        boot: str,
        *,
        ring: int = RING,
        most_clients: int = MOST_CLIENTS,
        calm_s: float = CALM_S,
        longest_s: float = LONGEST_S,
        stream_s: float = math.inf,
    ) -> None:
        self._boot = boot
        self._ring: deque[tuple[str, str, str, Mapping[str, Any]]] = deque(maxlen=ring)
        """The newest events: id, name, time and fields of each; their numbers are without gaps."""
        self.last = 0
        """The number of the newest event."""
        self._open = 0
        """The newest that may be sent; later ones wait for calm."""
        self._calm_s, self._longest_s = calm_s, longest_s
        self._newest_s = self._since_s = 0.0
        self._calming: asyncio.TimerHandle | None = None
        self._joined: tuple[int, int, bytes] = (0, 0, b"")
        """From where to where, and these events as one message: for all readers at the same place."""
        self._most_clients = most_clients
        self._stream_s = stream_s
        """After so long a stream ends, with a word; a page that is still there asks for the next."""
        self.clients = 0
        """How many streams there are."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = asyncio.Event()

    # --- publishing ---

    def listener(self, event: Event) -> None:
        if event.level > logging.DEBUG:
            self.publish(event.name, event.time.isoformat(), event.fields)

    def publish(self, name: str, time: str, fields: Mapping[str, Any]) -> None:
        self.last += 1
        # As it is: thousands come and go in a burst, and most are never sent.
        self._ring.append((self.last_id, name, time, fields))
        # Nobody waits: no timer is set, and one who comes later reads the ring.
        if not self.clients and not self._waiting:
            self._open = self.last
            return
        loop = asyncio.get_running_loop()
        self._newest_s = loop.time()
        if self._calming is None:
            self._since_s = self._newest_s
            # One timer for a burst; it is put off while events keep coming, up to a limit.
            self._calming = loop.call_later(min(self._calm_s, self._longest_s), self._emit_if_calm, loop)

    def close(self) -> None:
        self._closed.set()
        self._emit()

    def _emit_if_calm(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = min(self._newest_s + self._calm_s, self._since_s + self._longest_s)
        if due_s > loop.time():
            self._calming = loop.call_at(due_s, self._emit_if_calm, loop)
        else:
            self._emit()

    def _emit(self) -> None:
        if self._calming is not None:
            self._calming.cancel()
            self._calming = None
        self._open = self.last
        # All at once, in the order in which they came: no reader waits for another.
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    # --- reading ---

    @property
    def last_id(self) -> str:
        return f"{self._boot}-{self.last}"

    def enter(self) -> Callable[[], None]:
        """Take one of the places for streams; the answer gives it back. Raises TooManyError."""
        # Taken when the request comes, not when its stream begins: many may come in one turn of the loop.
        if self.clients >= self._most_clients or self._closed.is_set():
            raise TooManyError
        self.clients += 1
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self.clients -= 1

        return leave

    async def calm(self, waited_s: float = 0.0) -> None:
        """Return once no event has come for a moment, at the latest with `close`.

        A caller that *waited_s* already waits that much less, if there is no calm.
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
        number = self.last if last_id is None else self._number(last_id)
        news = b"" if number == self.last else self._news(number, is_brief=is_brief)
        # Nothing is awaited since the ring was read: no event is sent twice, and none is left out.
        number = self.last
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._stream_s
        pause_ms = 2000 if self._stream_s == math.inf else 100
        yield b"retry: %d\n\n" % pause_ms + self._greeting("hello" if news is not None else "reset")
        if news:
            yield news
        while not self._closed.is_set():
            if loop.time() >= end_s:
                yield self._greeting("bye")
                return
            if number >= self._open:
                await self._wait_for_news(min(heartbeat_s, end_s - loop.time()))
                # Woken by an event, by the time limit or by `close`.
                if number >= self._open:
                    yield b": still here\n\n"
                continue
            news = self._news(number, is_brief=is_brief) or self._greeting("reset")
            number = self.last
            yield news

    async def _wait_for_news(self, patience_s: float) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            with suppress(TimeoutError):
                # Not for ever: the line that is sent then keeps proxies from closing the connection.
                async with asyncio.timeout(patience_s):
                    await waiting
        finally:
            self._waiting.discard(waiting)

    def _number(self, event_id: str) -> int | None:
        boot, _, number = event_id.rpartition("-")
        return whole_number(number) if boot == self._boot else None

    def _news(self, number: int | None, *, is_brief: bool) -> bytes | None:
        """What came after event *number*; None if the ring does not have all of it."""
        if number is None or not 0 <= self.last - number <= len(self._ring):
            return None
        if is_brief:
            return b'id: %s\ndata: {"events":%d}\n\n' % (self.last_id.encode(), self.last - number)
        if self._joined[:2] != (number, self.last):
            # Joined once for all who read at the same place.
            first = len(self._ring) - (self.last - number)
            messages = (_message(*each) for each in islice(self._ring, first, None))
            self._joined = (number, self.last, b"".join(messages))
        return self._joined[2]

    def _greeting(self, word: str) -> bytes:
        return f"event: {word}\nid: {self.last_id}\ndata: {{}}\n\n".encode()


def _message(event_id: str, name: str, time: str, fields: Mapping[str, Any]) -> bytes:
    shown = {key: _visible(value) for key, value in fields.items() if key in _SHOWN}
    # The data is one line: JSON escapes line ends.
    return b"id: %s\ndata: %s\n\n" % (event_id.encode(), _encode({"event": name, "time": time, **shown}))


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list | tuple):
        return [_visible(each) for each in value[:100]]
    return value
