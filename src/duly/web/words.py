"""How pages speak: times, lengths, results and reasons in few words, and text that cannot play tricks. Pure.

A name or an output may hold anything: terminal escapes, marks that turn the direction of writing, NULs. The
templates escape what HTML minds; `visible` makes the rest harmless and shows that it was there.
"""

import re
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import NamedTuple
from urllib.parse import quote

from duly.instant import NEVER_US, SECOND_US, Instant, datetime_at
from duly.spoken import apart, two_units

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]*)?|\ufffd|\r)\Z")
_TRICKS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)


class Mark(NamedTuple):
    """How a result or state is shown: by colour, by shape and by word, so that any two of them may fail."""

    tone: str
    """good, bad, warn, busy or calm: the colour."""
    icon: str
    word: str


RESULTS: Mapping[str, Mark] = {
    "success": Mark("good", "ok", "success"),
    "exit": Mark("bad", "bad", "failed"),
    "signal": Mark("bad", "signal", "killed"),
    "timeout": Mark("bad", "timeout", "timed out"),
    "spawn-error": Mark("bad", "bad", "not started"),
    "interrupted": Mark("warn", "cut", "interrupted"),
    "failed": Mark("bad", "bad", "failed"),
    "unknown": Mark("calm", "none", "unknown"),
}
RUNNING = Mark("busy", "busy", "running")
NO_RESULT = Mark("calm", "none", "never ran")

STATES: Mapping[str, Mark] = {
    "running": Mark("good", "busy", "running"),
    "starting": Mark("busy", "busy", "starting"),
    "waiting": Mark("warn", "wait", "waiting"),
    "stopped": Mark("calm", "stop", "stopped"),
    "failed": Mark("bad", "bad", "failed"),
    "done": Mark("calm", "ok", "done"),
    "skipped": Mark("warn", "cut", "skipped"),
    "invalid": Mark("bad", "bad", "invalid"),
    "unknown": Mark("calm", "none", "unknown"),
}

VERDICTS: Mapping[str, Mark] = {
    "holds": Mark("good", "ok", "holds"),
    "violated": Mark("bad", "bad", "violated"),
    "inconclusive": Mark("calm", "none", "inconclusive"),
}

SLOTS: Mapping[str, Mark] = {
    "fired": Mark("good", "ok", "fired"),
    "answered": Mark("good", "ok", "answered"),
    "merged": Mark("warn", "cut", "merged"),
    "missed": Mark("bad", "miss", "missed"),
    "pending": Mark("busy", "wait", "pending"),
    "down": Mark("bad", "miss", "down"),
    "cleared": Mark("warn", "cut", "cleared"),
}

REASONS: Mapping[str, str] = {
    "boot": "started with the daemon",
    "restart": "came back after it had ended",
    "manual": "started by hand",
    "schedule": "its schedule said so",
    "startup": "a while after start-up",
    "interval": "a while after the run before it",
    "retry": "tried again after a failure",
    "catch-up": "caught up for a slot that passed while the daemon was down",
    "trigger": "triggered by hand",
}

MISSES: Mapping[str, str] = {
    "overlap": "its target was still active",
    "disabled": "the timer was disabled",
    "disabled-target": "its target was disabled",
    "target-not-found": "its target was not there",
    "shutdown": "the daemon was down, stopping or asleep",
}


def result_mark(result: str | None, *, is_running: bool = False, exit_code: int | None = None) -> Mark:
    """How a run's result is shown."""
    if is_running:
        return RUNNING
    if result is None:
        return NO_RESULT
    mark = RESULTS.get(result, RESULTS["unknown"])
    return mark._replace(word=f"exit {exit_code}") if result == "exit" and exit_code is not None else mark


def state_mark(state: str) -> Mark:
    """How the state of a service is shown."""
    return STATES.get(state, Mark("calm", "none", visible(state)))


# --- times ---


def relative(at_us: Instant | None, now_us: Instant) -> str:
    """How far an instant lies from *now_us*, in its largest unit: "5m ago", "in 2h", "now", "–" for none."""
    return "–" if at_us is None or at_us >= NEVER_US else apart(at_us, now_us)


def length(lasted_us: int | None) -> str:
    """A length of time in at most two units: "3ms", "0.3s", "1m 12s", "2d 4h"."""
    if lasted_us is None:
        return "–"
    seconds = max(lasted_us, 0) / SECOND_US
    if seconds < 0.1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    return two_units(int(seconds + 0.5))


def iso(at_us: Instant | None, zone: tzinfo) -> str:
    """An instant as ISO 8601 with an offset, to the second; empty for none."""
    if at_us is None or at_us >= NEVER_US:
        return ""
    return datetime_at(at_us, zone).isoformat(timespec="seconds")


def clock(at_us: Instant | None, zone: tzinfo, now_us: Instant) -> str:
    """An instant as people write it, with as much of the date as is needed: "14:03:10", "Tue 3 Nov 14:03"."""
    if at_us is None or at_us >= NEVER_US:
        return "–"
    at, now = datetime_at(at_us, zone), datetime_at(now_us, zone)
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    if at.year == now.year:
        return f"{at:%a} {at.day} {at:%b %H:%M}"
    return f"{at.day} {at:%b} {at.year:04} {at:%H:%M}"


def full(at_us: Instant, zone: tzinfo) -> str:
    """An instant in full, for where the mouse rests."""
    at: datetime = datetime_at(at_us, zone)
    return f"{at:%A} {at.day} {at:%B} {at.year:04} {at:%H:%M:%S} ({at.tzname()})"


# --- text of others ---


def visible(text: str) -> str:
    """The text with everything in it that is not seen, or that moves what is seen, spelled out."""
    return _TRICKS.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def printed(output: str) -> str:
    """An output as text to read: colours dropped, lines as they end, all else that is unseen spelled out."""
    return visible(_COLOURS.sub("", output).replace("\r\n", "\n"))


def settled(output: str) -> str:
    """The part of an output under way that no further byte can change."""
    return _UNFINISHED.sub("", output)


def address(kind: str, id: str) -> str:  # noqa: A002 (the word for it)
    """Where the page of a service, timer, run or task is."""
    # A browser takes a segment of dots for a step upwards, however it is quoted.
    return f"/{kind}?id={id}" if id in {".", ".."} else f"/{kind}/{quote(id, safe='')}"
