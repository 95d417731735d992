"""`exclude`: dates on which a timer has no slot, written out or in a calendar file (RFC 5545, `.ics`).

Of a calendar file only the dates of its events count, from DTSTART up to DTEND. An event that repeats (RRULE)
is refused: to leave out some of its dates would be a mistake that nobody sees.
"""

import os
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from duly.config.schema import EntryFault
from duly.formatting import quoted, value_text

_MOST_BYTES = 16 * 1024 * 1024
_MOST_DATES = 100_000
_DAY = timedelta(days=1)
_DATE = re.compile(r"([0-9]{8})(?:T[0-9]{6}Z?)?")
_EVENT = "VEVENT"


def dates(value: object, key: str, folder: Path) -> tuple[str, ...]:
    """The dates that are meant, in order: dates and paths of calendar files, or one of them."""
    items = value if isinstance(value, list | tuple) else [value]
    found: set[str] = set()
    for item in items:
        if isinstance(item, str) and item.lower().endswith(".ics"):
            found.update(_dates_in(folder / item, item, key))
        else:
            found.add(_date(item, key).isoformat())
    return tuple(sorted(found))


def files_in(value: object, folder: Path) -> Iterator[Path]:
    """The calendar files that a value names."""
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, str) and item.lower().endswith(".ics"):
            yield folder / item


def _date(value: object, key: str) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    needed = 'dates such as "2026-12-25", or the path of an .ics file'
    raise EntryFault(f"{key} must be {needed}, not {value_text(value)}", key)


def _dates_in(path: Path, shown: str, key: str) -> tuple[str, ...]:
    try:
        known = os.stat(path)  # noqa: PTH116 - as for the configuration itself
        return _read(path, (known.st_mtime_ns, known.st_size, known.st_ino))
    except OSError as error:
        raise EntryFault(f"{key}: {quoted(shown)} cannot be read: {error.strerror}", key) from error
    except ValueError as error:
        raise EntryFault(f"{key}: {quoted(shown)} cannot be used: {error}", key) from error


@lru_cache(maxsize=64)
def _read(path: Path, _version: tuple[int, ...]) -> tuple[str, ...]:
    """The dates in a file. Thousands of timers may name the same; a changed file is another version."""
    if not path.is_file():
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError("it is larger than 16 MiB")
    try:
        # A line that begins with a blank continues the one before it.
        text = re.sub(r"\r?\n[ \t]", "", content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    found: set[str] = set()
    for event in _events(text):
        first, end = event
        while first < end:
            found.add(first.isoformat())
            first += _DAY
        if len(found) > _MOST_DATES:
            raise ValueError(f"it has more than {_MOST_DATES} dates")
    return tuple(sorted(found))


def _events(text: str) -> Iterator[tuple[date, date]]:
    """Of each event the first date, and the one after its last; what is cancelled does not count."""
    opened: list[str] = []
    event: dict[str, str] = {}
    is_calendar = False
    for line in text.splitlines():
        name, _, value = line.partition(":")
        name = name.partition(";")[0].upper()
        if name == "BEGIN":
            opened.append(value)
            is_calendar = is_calendar or value == "VCALENDAR"
            event = {} if value == _EVENT else event
        elif name == "END" and opened:
            if opened.pop() == _EVENT and event.get("STATUS") != "CANCELLED":
                yield _span(event)
        elif opened[-1:] == [_EVENT]:  # not of what is within an event, such as an alarm
            event[name] = value
    if not is_calendar:
        raise ValueError("it is no calendar, which begins with BEGIN:VCALENDAR")
    if opened:
        raise ValueError(f"its last {opened[-1]} has no end")


def _span(event: dict[str, str]) -> tuple[date, date]:
    if repeats := {"RRULE", "RDATE", "DURATION"} & event.keys():
        raise ValueError(f"an event has {min(repeats)}, which is not read here; list its dates")
    first = _of_ics(event.get("DTSTART", ""))
    last_text = event.get("DTEND", "")
    if not last_text:
        return first, first + _DAY
    last = _of_ics(last_text)
    # An event that ends during a day covers that day, too.
    if "T" in last_text and not last_text.split("T")[1].startswith("000000"):
        last += _DAY
    if last < first or (last - first).days > _MOST_DATES:
        raise ValueError(f"an event lasts from {first} to {last}")
    return first, max(last, first + _DAY)


def _of_ics(text: str) -> date:
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a date")
    return datetime.strptime(match[1], "%Y%m%d").date()  # noqa: DTZ007 - a date has no zone
