"""Runs the Python blocks of a page in order, as one program: `python -m tests.worlds.pages PAGE`.

A block with `await` runs on an event loop, while the `app` of the page runs. A block that calls `app.run()`
is sent SIGTERM as soon as the app runs, as a service manager would. Blocks of an example and blocks of tests
are not run here (`tests/acceptance/test_pages.py`).
"""

import ast
import asyncio
import inspect
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from duly import App, SchedulerState

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


def example_of(block: str) -> str | None:
    """The file of an example that a block is taken from."""
    named = re.match(r"# (examples/\S+)\n", block)
    return named and named[1]


def is_test(block: str) -> bool:
    return re.search(r"^def test_", block, re.MULTILINE) is not None


class Page:
    """The blocks of one page share their names, and one event loop."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()
        self._running: App | None = None

    def run(self, block: str, where: str) -> None:
        code = compile(block, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            self._runner.run(self._awaited(code))
        else:
            self._runner.run(self._stopped())
            if re.search(r"^\s*app\.run\(\)", block, re.MULTILINE):
                threading.Thread(target=self._send_signal, daemon=True).start()
            exec(code, self._names)

    def close(self) -> None:
        self._runner.run(self._stopped())
        self._runner.close()

    async def _awaited(self, code: Any) -> None:
        app = self._names.get("app")
        if app is not self._running:
            await self._stopped()
        if isinstance(app, App) and self._running is None:
            await app.start()
            self._running = app
        await eval(code, self._names)

    async def _stopped(self) -> None:
        if self._running is not None:
            await self._running.stop()
            self._running = None

    def _send_signal(self) -> None:
        pause = threading.Event()
        while True:
            app = self._names.get("app")
            if isinstance(app, App) and app._scheduler.state is SchedulerState.RUNNING:
                break
            pause.wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)


def main(path: Path) -> None:
    """Run a page. Whatever a block raises ends it."""
    page = Page()
    for number, block in enumerate(blocks(path, "python"), 1):
        if not example_of(block) and not is_test(block):
            page.run(block, f"{path.name}, block {number}")
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
