"""Telling systemd how the daemon is, when systemd started it after all (sd_notify).

A datagram to the socket named in NOTIFY_SOCKET, nothing more. Without that name nothing is sent; a socket
that takes nothing any more is no reason to stop.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from duly.instant import SECOND_US


class Notifier:
    """What to tell whoever started the daemon."""

    def __init__(self, environ: Mapping[str, str], steady_us: Callable[[], int]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._steady_us = steady_us
        self.watchdog_s = _watchdog_s(environ)
        """How often it wants to hear that we live; None when it does not."""

    def ready(self, status: str) -> None:
        """Start-up, or a reload, is complete."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """A reload has begun; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={self._steady_us()}")

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """We still live."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines).encode()
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as post,
        ):
            post.setblocking(False)
            post.sendto(message, self._address)


def _address(name: str) -> str | None:
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Half the time after which it would take us for dead, if it is us whom it watches."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) / SECOND_US / 2
