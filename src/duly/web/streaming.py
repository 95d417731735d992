"""A response that is a stream of server-sent events, and that ends when its reader has gone.

The reader's going is heard of at once, not when the next event happens to be sent: the run that it follows
may be silent for days. Readers that stay and do not read are closed by the server (`server.Connection`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Stream(Response):
    """Sends *pieces* as they come; *leave* is called at the end, whatever the end is."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncGenerator[bytes, None], leave: Callable[[], None]) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await self._raced(receive, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._leave()
            await self._pieces.aclose()

    async def _raced(self, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        sending = asyncio.create_task(self._sent(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.wait({gone, sending})
        with suppress(asyncio.CancelledError):
            sending.result()

    async def _sent(self, send: Send) -> None:
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
