"""How pages speak: times, lengths, results and reasons in few words, and text that cannot play tricks. Pure.

A name or an output may hold anything: terminal escapes, marks that turn the direction of writing, NULs. The
templates escape what HTML minds; `visible` makes the rest harmless and shows that it was there.
"""

import re
from collections.abc import Mapping
from datetime import tzinfo
from typing import NamedTuple, TypeGuard
from urllib.parse import quote, urlencode

from duly.formatting import apart, two_units
from duly.instant import NEVER_US, SECOND_US, Instant, datetime_at, zone_key
from duly.store.history import RemoteRun, RunRow

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]*)?|\ufffd|\r)\Z")
_TRICKS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)


_NOT_FOR_TERMINALS = re.compile(f"({_COLOURS.pattern}|\\r)|{_TRICKS.pattern}")


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
    "failure": Mark("bad", "bad", "failed"),
    "cancelled": Mark("warn", "stop", "cancelled"),
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
    "hung": Mark("bad", "timeout", "hung"),
    "failing": Mark("bad", "bad", "failing"),
    "never succeeded": Mark("bad", "bad", "never succeeded"),
    "crash loop": Mark("bad", "signal", "crash loop"),
    "missing runs": Mark("bad", "miss", "missing runs"),
    "unknown": Mark("calm", "none", "unknown"),
    "disabled": Mark("calm", "off", "disabled"),
}

TASKS: Mapping[str, Mark] = {
    "running": RUNNING,
    "overdue": Mark("warn", "wait", "overdue"),
    "failing": Mark("bad", "bad", "failing"),
    "fine": Mark("good", "ok", "success"),
    "new": NO_RESULT,
    "paused": Mark("calm", "wait", "paused"),
    "disabled": Mark("calm", "off", "disabled"),
    "waiting for its kind": Mark("warn", "wait", "waiting for its kind"),
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


NODES: Mapping[str, Mark] = {
    "living": Mark("good", "ok", "living"),
    "silent": Mark("bad", "timeout", "silent"),
}

_MEANT_MISSES = frozenset({"disabled", "disabled-target"})


def is_ill_miss(reason: str) -> bool:
    """Whether a miss of that reason is worth a colour: nobody meant it."""
    return reason not in _MEANT_MISSES


def miss_mark(reason: str) -> Mark:
    return Mark("bad" if is_ill_miss(reason) else "calm", "miss", visible(reason))


def result_mark(result: str | None, *, is_running: bool = False, exit_code: int | None = None) -> Mark:
    if is_running:
        return RUNNING
    if result is None:
        return NO_RESULT
    mark = RESULTS.get(result, RESULTS["unknown"])
    return mark._replace(word=f"exit {exit_code}") if result == "exit" and exit_code is not None else mark


def state_mark(state: str) -> Mark:
    return STATES.get(state, Mark("calm", "none", visible(state)))


# --- times ---


class Moment(NamedTuple):
    """When a page is made, and the zone that it is written for: turns instants into words."""

    now_us: Instant
    zone: tzinfo
    is_chosen: bool = False
    """Whether somebody chose that zone. If not, the times of a schedule are shown in its own."""

    def zone_of(self, schedule: tzinfo) -> tzinfo:
        """The zone in which to tell the times of a schedule."""
        return self.zone if self.is_chosen else schedule

    def is_time(self, at_us: Instant | None) -> TypeGuard[Instant]:
        return at_us is not None and at_us < NEVER_US

    def relative(self, at_us: Instant | None) -> str:
        """How far an instant lies from now, in its largest unit: "5m ago", "in 2h", "now", "–" for none."""
        return apart(at_us, self.now_us) if self.is_time(at_us) else "–"

    def iso(self, at_us: Instant | None) -> str:
        """ISO 8601 with an offset, to the second; empty for none."""
        return datetime_at(at_us, self.zone).isoformat(timespec="seconds") if self.is_time(at_us) else ""

    def clock(self, at_us: Instant | None, schedule: tzinfo | None = None) -> str:
        """As people write it, with as much of the date as is needed: "14:03:10", "Tue 3 Nov 14:03".

        A time of a *schedule* in another zone than the page's has the name of its zone: "14:03:10 EST".
        """
        if not self.is_time(at_us):
            return "–"
        zone = self.zone if schedule is None else self.zone_of(schedule)
        at, now = datetime_at(at_us, zone), datetime_at(self.now_us, zone)
        suffix = f" {at.tzname()}" if zone_key(zone) != zone_key(self.zone) else ""
        if at.date() == now.date():
            return f"{at:%H:%M:%S}{suffix}"
        if at.year == now.year:
            return f"{at:%a} {at.day} {at:%b %H:%M}{suffix}"
        return f"{at.day} {at:%b} {at.year:04} {at:%H:%M}{suffix}"

    def full(self, at_us: Instant, schedule: tzinfo | None = None) -> str:
        at = datetime_at(at_us, self.zone if schedule is None else self.zone_of(schedule))
        return f"{at:%A} {at.day} {at:%B} {at.year:04} {at:%H:%M:%S} ({at.tzname()})"


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


# --- text of others ---


def visible(text: str) -> str:
    """The text with everything in it that is not seen, or that moves what is seen, spelled out."""
    return _TRICKS.sub(_spelled_out, text)


def quoted(part: str) -> str:
    """A part of a command, as it would be written in a shell."""
    return part if part and not set(part) & set(" \t\n\"'\\$`|&;<>()*?") else repr(part)


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _spelled_out(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def terminal_text(output: str) -> str:
    """An output as a terminal gets it: with its colours and carriage returns, all else unseen spelled out."""
    return _NOT_FOR_TERMINALS.sub(lambda found: found[1] or _spelled_out(found), output)


def printed_output(output: str) -> str:
    """An output as text to read: colours dropped, lines as they end, all else that is unseen spelled out."""
    return visible(_COLOURS.sub("", output).replace("\r\n", "\n"))


def settled_output(output: str) -> str:
    """The part of an output under way that no further byte can change."""
    return _UNFINISHED.sub("", output)


def whole_number(text: str) -> int | None:
    """A number that somebody sent, if it is one that a database can hold."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def run_address(row: RunRow) -> str:
    return run_href(row.id, row.machine if isinstance(row, RemoteRun) else None)


def run_href(number: int, machine: str | None) -> str:
    return with_query(f"/runs/{number}", {} if machine is None else {"machine": machine})


def with_query(path: str, fields: Mapping[str, object]) -> str:
    return f"{path}?{urlencode(fields)}" if fields else path


def on_machine(row: RunRow) -> str:
    return f" on {visible(row.machine)}" if isinstance(row, RemoteRun) else ""


def address(kind: str, id: str) -> str:  # noqa: A002 (the word for it)
    """Where the page of a service, timer, run or task is."""
    # A browser takes a segment of dots for a step upwards, however it is quoted.
    return f"/{kind}?id={id}" if id in {".", ".."} else f"/{kind}/{quote(id, safe='')}"
