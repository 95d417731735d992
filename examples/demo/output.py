"""Where the demo is seen: a terminal that is redrawn in place, or plain lines for everything else.

The terminal is left fit for use at every moment, because the demo invites its viewer to kill -9 it: no mode
outlives a frame, and between frames the cursor stands, visible, below the last line.
"""

import os
import shutil
from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, TextIO

from examples.demo.notes import DemoNote
from examples.demo.table import painted, screen_of, text_of
from examples.demo.view import DemoView


class DemoOutput(Protocol):
    """Shows the demo to somebody."""

    def begin(self, view: DemoView) -> None:
        """The scheduler has taken the store."""
        ...

    def tell(self, note: DemoNote, view: DemoView) -> None:
        """Something happened."""
        ...

    def draw(self, view: DemoView, now: datetime) -> None:
        """Show how things are."""
        ...

    def say(self, sentence: str) -> None:
        """Say something last."""
        ...


class Lines:
    """One plain line for each thing that happens."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, view: DemoView) -> None:
        """Tell who speaks, and the story so far."""
        self.say(f"duly demo: store {view.store}, zone {view.zone}, process {view.process_id}")
        for sentence in view.story:
            self.say(sentence)

    def tell(self, note: DemoNote, view: DemoView) -> None:
        """Tell it."""
        name = f"{note.task}: " if note.task else ""
        self.say(f"{note.time.astimezone(view.zone):%H:%M:%S} {name}{note.text}")

    def draw(self, view: DemoView, now: datetime) -> None:
        """Nothing: lines are not redrawn."""

    def say(self, sentence: str) -> None:
        """Say it at once, however the stream is buffered."""
        self._stream.write(f"{sentence}\n")
        self._stream.flush()


class Terminal:
    """A screen that is redrawn in place."""

    def __init__(self, stream: TextIO, *, has_colour: bool) -> None:
        self._stream = stream
        self._paint = painted if has_colour else text_of

    def begin(self, view: DemoView) -> None:  # noqa: ARG002 (drawing shows it)
        """Scroll what was on the screen out of the way, rather than erase it."""
        self._write("\n" * _size().lines)

    def tell(self, note: DemoNote, view: DemoView) -> None:
        """Nothing: the next drawing shows it."""

    def draw(self, view: DemoView, now: datetime) -> None:
        """Draw the screen again, from the top left, in one write."""
        columns, rows = _size()
        lines = screen_of(view, now, width=columns, height=rows - 1)
        # Each line is cleared before it is written: after a full line, clearing would eat its last character.
        body = "".join(f"\x1b[2K{self._paint(line)}\r\n" for line in lines)
        self._write(f"\x1b[?25l\x1b[H{body}\x1b[J\x1b[?25h")

    def say(self, sentence: str) -> None:
        """Say it below the screen."""
        self._write(f"\x1b[2K\r{sentence}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def output_for(stream: TextIO, environment: Mapping[str, str] = os.environ) -> DemoOutput:
    """The output that suits *stream*."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a stream that cannot write "→" is no reason to fail
    if not stream.isatty() or environment.get("TERM", "dumb") == "dumb":
        return Lines(stream)
    return Terminal(stream, has_colour=not environment.get("NO_COLOR"))


def _size() -> os.terminal_size:
    return shutil.get_terminal_size()
