"""Translated jobs as TOML that a person can read, review and go on with."""

import re
from collections.abc import Iterator

from duly.config.calendars import RANGES
from duly.config.schema import Calendar, Service, Timer
from duly.config.words import printable

HEAD = """\
# Translated from a crontab by `duly import crontab`. Things that are different here:
# - cron starts a job in the home directory of its user, with PATH=/usr/bin:/bin; duly starts it in its own
#   directory with its own environment. Where that matters, add cwd and env.
# - A job that is still running when it is due again is not started a second time beside itself.
# - Cron neither retries nor makes up for what it missed, and so it is written down below. Without the lines
#   `persistent = false` and `retry_intervals_sec = []`, duly does both.

[supervisor]
timers = true
"""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def rendered(service: Service, timer: Timer, *, comment: str, needs_shell: bool) -> str:
    """A service and its timer, as part of a TOML file."""
    return "".join(f"{line}\n" for line in _lines(service, timer, comment, needs_shell=needs_shell))


def _lines(service: Service, timer: Timer, comment: str, *, needs_shell: bool) -> Iterator[str]:
    yield ""
    yield f"# {printable(comment)}"
    yield "[[service]]"
    yield f"id = {_text(service.id)}"
    yield 'type = "oneshot"'
    if needs_shell:
        yield "# This needs a shell. duly starts none by itself, so it is spelled out."
    yield f"command = [{', '.join(map(_text, service.command))}]"
    if service.cwd is not None:
        yield f"cwd = {_text(service.cwd)}"
    if service.env:
        pairs = ", ".join(f"{_key(name)} = {_text(value)}" for name, value in service.env.items())
        yield f"env = {{ {pairs} }}"
    yield ""
    yield "[[timer]]"
    yield f"id = {_text(timer.id)}"
    yield f"target = {_text(timer.target)}"
    if timer.on_calendar:
        yield f"on_calendar = {_calendars(timer.on_calendar)}"
    else:
        yield f"on_startup_sec = {timer.on_startup_sec}"
    if timer.timezone is not None:
        yield f"timezone = {_text(timer.timezone)}"
    yield "persistent = false"
    yield "retry_intervals_sec = []"


def _calendars(calendars: tuple[Calendar, ...]) -> str:
    if len(calendars) == 1:
        return _calendar(calendars[0])
    return "[\n" + "".join(f"    {_calendar(each)},\n" for each in calendars) + "]"


def _calendar(calendar: Calendar) -> str:
    given = [(name, getattr(calendar, name)) for name in RANGES]
    # The minute is always said, for a calendar without one looks like a mistake.
    pairs = [f"{name} = {_numbers(value)}" for name, value in given if value is not None or name == "minute"]
    return f"{{ {', '.join(pairs)} }}"


def _numbers(values: tuple[int, ...] | None) -> str:
    if values is None:
        return '"*"'
    return str(values[0]) if len(values) == 1 else f"[{', '.join(map(str, values))}]"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return f'"{"".join(_escaped(char) for char in text)}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() else f"\\U{ord(char):08x}"
