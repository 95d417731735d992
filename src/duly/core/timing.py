"""Schedule texts: how a schedule is written in a store, in a trace and in a list of tasks.

    text   = [ "TZ=" zone " " ] [ "+" seconds "s " ] body
    body   = five POSIX fields | "@every 30s" | "@after 30s" | "@at 2026-12-24T18:00:00Z" | "@last 08:00"

A cron text means what it always meant (spec/scheduler.md 2). `@every` is due at the registration of its task
plus every multiple of the period. `@after` is due that long after the last run has ended. `@at` is due once.
`@last` is due on the last day of every month. A zone takes the place of the scheduler's. An offset moves
every due by the same number of seconds, so that tasks with one schedule do not all start together.

Everything that decides when a task is due is in its text. So two nodes agree when their texts are equal, and
a checker that reads the text needs to know nothing else but when the task was registered.
"""

import re
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from duly.cron import CronExpression
from duly.cron.english import in_english
from duly.errors import InvalidScheduleError
from duly.formatting import exact_length
from duly.instant import SECOND_US, instant_of

_HEAD = re.compile(r"(?:TZ=(?P<zone>\S+) )?(?:\+(?P<offset>[0-9]{1,9})s )?")
_LENGTH = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?s")
_LAST = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_BODIES = ("@every ", "@after ", "@at ", "@last ")


class ScheduleText(NamedTuple):
    """The text of a schedule that is more than a cron text; the counterpart of a `CronExpression`."""

    text: str


class TextParts(NamedTuple):
    """A schedule text, taken apart."""

    zone: tzinfo | None
    """The zone of the task itself; None: that of the scheduler."""
    offset_us: int
    word: str
    """`@every`, `@after`, `@at`, `@last`, or nothing for a cron text."""
    body: str
    """The cron text, or what follows the word."""


def is_plain(text: str) -> bool:
    """Whether *text* is a cron text and nothing else, as `Scheduler` takes them."""
    return not text.startswith(("TZ=", "+", "@"))


def in_words(text: str) -> str:
    """A schedule text for a person."""
    parts = parts_of(text)
    match parts.word:
        case "@every":
            words = f"every {exact_length(length_us(text, parts.body) / SECOND_US)}"
        case "@after":
            words = f"{exact_length(length_us(text, parts.body) / SECOND_US)} after the last run has ended"
        case "@at":
            words = f"once, at {parts.body}"
        case "@last":
            words = f"at {parts.body} on the last day of every month"
        case _:
            words = in_english(CronExpression.parse(parts.body))
    if parts.offset_us:
        words += f", {exact_length(parts.offset_us / SECOND_US)} later"
    return words if parts.zone is None else f"{words} ({parts.zone})"


@lru_cache(maxsize=1024)
def parts_of(text: str) -> TextParts:
    """The parts of a schedule text; its body is not checked. Raises InvalidScheduleError."""
    head = _HEAD.match(text)
    assert head is not None, "it matches nothing, too"
    body = text[head.end() :]
    word = next((word.rstrip() for word in _BODIES if body.startswith(word)), "")
    return TextParts(
        _zone(text, head["zone"]),
        int(head["offset"] or 0) * SECOND_US,
        word,
        body.removeprefix(word).strip() if word else body,
    )


def _zone(text: str, name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError, and that is below
        raise InvalidScheduleError(text=text, reason=f"there is no time zone {name!r}") from error
    except KeyError as error:
        raise InvalidScheduleError(text=text, reason=f"there is no time zone {name!r}") from error


def length_us(text: str, body: str) -> int:
    """The length that the body of *text* names. Raises InvalidScheduleError."""
    match = _LENGTH.fullmatch(body)
    length = 0 if match is None else int(match[1]) * SECOND_US + int((match[2] or "").ljust(6, "0"))
    if length <= 0:
        raise InvalidScheduleError(text=text, reason=f"{body!r} is not a length of time such as 30s")
    return length


def moment_us(text: str, body: str) -> int:
    """The instant that the body of *text* names. Raises InvalidScheduleError."""
    try:
        moment = datetime.fromisoformat(body)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidScheduleError(text=text, reason=f"{body!r} is not a time such as 2026-12-24T18:00:00Z")
    return instant_of(moment)


def last_day_at(text: str, body: str) -> tuple[int, int]:
    """The hour and minute that the body of *text* names. Raises InvalidScheduleError."""
    match = _LAST.fullmatch(body)
    if match is None:
        raise InvalidScheduleError(text=text, reason=f"{body!r} is not a time of day such as 08:00")
    return int(match[1]), int(match[2])
