"""Listening: a unix socket of our own, and its connections, also when the process has no descriptor left.

asyncio's own accept loop logs a traceback for every accept() that fails, up to 128 for one connection
(`BaseSelectorEventLoop._accept_connection`), and does not inform its server. Here a shortage is one episode:
it calls the owner when it begins and when it is over.

One descriptor is kept in reserve. In an episode it is given up for one connection at a time, so that somebody
who asks what is wrong, or stops the daemon, is let in. If it is in use, a new connection takes the place of a
silent one. If there is none, new connections wait in the kernel's queue.
"""

import asyncio
import os
import socket
from collections.abc import Callable

BACKLOG = 128
_PACE_S = 0.01
"""Between two connections of an episode: time to send a request before the connection counts as silent."""
_PAUSE_S = 1.0
"""Between two attempts while nothing can be done."""


class Acceptor:
    """Hands each connection to *on_connection*, from `start` to `close`.

    *make_room* closes a silent connection, and says whether there was one. *on_shortage* gets the error with
    which an episode begins, and None when it is over.
    """

    def __init__(
        self,
        listening: socket.socket,
        on_connection: Callable[[socket.socket], object],
        *,
        make_room: Callable[[], bool],
        on_shortage: Callable[[OSError | None], object],
    ) -> None:
        self._listening = listening
        self._on_connection = on_connection
        self._make_room = make_room
        self._on_shortage = on_shortage
        self._loop = asyncio.get_running_loop()
        self._reserve: int | None = None
        self._is_short = False
        self._resuming: asyncio.TimerHandle | None = None
        self._recovering: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen, and accept. Raises OSError."""
        self._reserve = _new_reserve()
        self._listening.listen(BACKLOG)
        self._listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        for handle in (self._resuming, self._recovering):
            if handle is not None:
                handle.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._give_up_reserve()

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listening)
        self._resuming = self._loop.call_later(pause_s, self._resume)

    def _accept(self) -> None:
        # One at a time: the loop calls again at once while others wait, and serves everybody else in between.
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the client has gone again
        except OSError as error:
            self._on_failure(error)
            return
        if self._is_short:
            self._pause(_PACE_S)
        connection.setblocking(False)
        self._on_connection(connection)

    def _on_failure(self, error: OSError) -> None:
        if not self._is_short:
            self._is_short = True
            # Nothing reports when a descriptor is free again, so it is tried from time to time.
            self._recovering = self._loop.call_later(_PAUSE_S, self._recover)
            self._on_shortage(error)
        if self._reserve is not None:
            self._give_up_reserve()  # the loop calls again at once, and the connection gets that descriptor
        else:
            self._pause(_PACE_S if self._make_room() else _PAUSE_S)

    def _recover(self) -> None:
        """End the episode once there is a descriptor besides the reserve."""
        try:
            if self._reserve is None:
                self._reserve = _new_reserve()
            os.close(_new_reserve())
        except OSError:
            self._recovering = self._loop.call_later(_PAUSE_S, self._recover)
            return
        self._is_short = False
        self._on_shortage(None)

    def _give_up_reserve(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None


def _new_reserve() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def shortage_text(listener: str, error: OSError) -> str:
    """A shortage in a sentence, with what to do about it."""
    said = f"connections to the {listener} have to wait: {error.strerror or error}"
    return f"{said}; give the daemon a higher limit of open files (ulimit -n, LimitNOFILE=)"
