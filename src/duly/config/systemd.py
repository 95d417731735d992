"""systemd's timer and service units as a configuration: OnCalendar, the units of a directory, TOML.

What has no equal becomes a remark with its file and line, or leaves the whole unit out: a job at another
time, or with another command, would be worse than none. Nothing here reads a file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from duly.config.calendars import LAST
from duly.config.crontab import ImportedEntry, Remark, Translated, toml_value
from duly.config.schema import Calendar, EntryFault
from duly.config.values import UnclosedError, shell_words, zone
from duly.formatting import quoted

# --- OnCalendar (systemd.time(7)) ---


class NotTranslatableError(Exception):
    """Text that systemd understands and duly has no equal for, and why; or that systemd refuses as well."""

    def __init__(self, reason: str, *, is_invalid: bool = False) -> None:
        super().__init__(reason)
        self.is_invalid = is_invalid


_FIRST_YEAR = 1970
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MONDAY_FIRST = (*_DAYS[1:], _DAYS[0])
_DAY = rf"(?:{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in _DAYS)})"
_PART = r"\d+(?:\.\d+)?(?:\.\.\d+(?:\.\d+)?)?(?:/\d+(?:\.\d+)?)?"
_CHAIN = rf"(?:\*|{_PART}(?:,{_PART})*)"
_CALENDAR = re.compile(
    rf"(?:(?P<days>{_DAY}(?:(?:\.\.|-){_DAY})?(?:,{_DAY}(?:(?:\.\.|-){_DAY})?)*,?)(?: +|$))?"
    rf"(?:(?:(?P<year>{_CHAIN})-)?(?P<month>{_CHAIN})(?P<end>[-~])(?P<day>{_CHAIN})(?: +|$))?"
    rf"(?:(?P<hour>{_CHAIN}):(?P<minute>{_CHAIN})(?::(?P<second>{_CHAIN}))?)?",
    re.IGNORECASE,
)
_SHORTHANDS = {
    "minutely": "*-*-* *:*:00",
    "hourly": "*-*-* *:00:00",
    "daily": "*-*-* 00:00:00",
    "weekly": "Mon *-*-* 00:00:00",
    "monthly": "*-*-01 00:00:00",
    "quarterly": "*-01,04,07,10-01 00:00:00",
    **dict.fromkeys(("yearly", "annually", "anually"), "*-01-01 00:00:00"),
    **dict.fromkeys(("semiannually", "semi-annually", "biannually", "bi-annually"), "*-01,07-01 00:00:00"),
}


def calendar_of(text: str) -> tuple[Calendar, str | None]:
    """The calendar that an OnCalendar expression stands for, and its zone. Raises NotTranslatableError."""
    spec, zone_name = _zone_split(text)
    spec = _SHORTHANDS.get(spec.lower(), spec)
    found = _CALENDAR.fullmatch(spec)
    if found is None or not spec:
        raise NotTranslatableError("is no calendar expression", is_invalid=True)
    weekdays = None if found["days"] is None else _weekdays(found["days"].lower())
    is_dated, is_timed = found["month"] is not None, found["hour"] is not None
    years = _values(found["year"] or "*", _FIRST_YEAR, 2199)
    months = _values(found["month"], 1, 12) if is_dated else None
    days: Any = _values(found["day"], 1, 31, from_end=found["end"] == "~") if is_dated else None
    hours = _values(found["hour"], 0, 23) if is_timed else (0,)
    minutes = _values(found["minute"], 0, 59) if is_timed else (0,)
    second = found["second"] or "0"
    _values(second, 0, 59, is_fraction=True)
    if years is not None:
        raise NotTranslatableError("names years")
    if found["end"] == "~":
        if days != (1,):
            raise NotTranslatableError("counts days from the end of the month")
        days = LAST
    if second == "*" or re.search(r"[1-9/]|\.\.", second):
        raise NotTranslatableError("names seconds; duly fires at whole minutes")
    return Calendar(minutes, hours, days, months, weekdays), zone_name


def _zone_split(text: str) -> tuple[str, str | None]:
    spec, _, last = text.rpartition(" ")
    if last.upper() == "UTC":
        return spec, "UTC"
    try:
        return (spec, zone(last, "zone")) if spec and "/" in last else (text, None)
    except EntryFault:
        return text, None


def _weekdays(text: str) -> tuple[int, ...]:
    numbers = {name[:3]: number for number, name in enumerate(_MONDAY_FIRST)}
    found: set[int] = set()
    for part in text.strip(",").split(","):
        first, *rest = (numbers[name[:3]] for name in re.split(r"\.\.|-", part))
        last = rest[0] if rest else first
        if last < first:
            raise NotTranslatableError(f"has the range {part}, which ends before it begins", is_invalid=True)
        found |= {(number + 1) % 7 for number in range(first, last + 1)}
    return tuple(sorted(found))


def _values(
    chain: str, lowest: int, highest: int, *, from_end: bool = False, is_fraction: bool = False
) -> tuple[int, ...] | None:
    """The values of a component, as systemd's chain_valid would have them; None for all."""
    if chain == "*":
        return None
    found: set[int] = set()
    # No day more than 28 before the end: not every month has it.
    most = highest - 3 if from_end else highest
    for part in chain.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("..")
        if "." in first + last + step and not is_fraction:
            raise NotTranslatableError(f"has {part}, which is no whole number", is_invalid=True)
        start, by = _year(first) if lowest == _FIRST_YEAR else float(first), float(step or 0)
        stop = (_year(last) if lowest == _FIRST_YEAR else float(last)) if last else None
        if stop is None:
            is_wrong = start - by < lowest if from_end else start + by >= most + 1
        else:
            is_wrong = not start <= stop <= most
        if is_wrong or not lowest <= start < most + 1 or (step and not by):
            raise NotTranslatableError(f"has {part}, which is out of range", is_invalid=True)
        end = start if stop is None and not by else most if stop is None else stop
        found |= set(range(int(start), int(end) + 1, max(int(by), 1)))
    values = tuple(sorted(found))
    return None if values == tuple(range(lowest, highest + 1)) else values


def _year(text: str) -> float:
    """A year may be written with two digits."""
    year = float(text)
    return year if year > 99 else year + (2000 if year < 70 else 1900)


# --- units ---


class _Assignment(NamedTuple):
    number: int
    section: str
    key: str
    value: str


class _UnitLeftOutError(Exception):
    """The unit cannot be translated: why, and in which line (0 for none) of which file, if of another."""

    def __init__(self, reason: str, line: int = 0, file: str = "") -> None:
        super().__init__(reason)
        self.line = line
        self.file = file


class _Unit:
    """A unit file: its assignments, and which of them have not been translated."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self._lines = name, _assignments(text)
        self._known = set(_IGNORED)
        self._refused: set[_Assignment] = set()

    @property
    def id(self) -> str:
        """The name without its suffix. Raises _UnitLeftOutError."""
        if "@" in self.name:
            raise _UnitLeftOutError("it is a template; instances of it are not known here")
        return self.name.rpartition(".")[0]

    def lines(self, *keys: str) -> list[_Assignment]:
        """The assignments of *keys*, and marks them as known."""
        self._known.update(keys)
        return [line for line in self._lines if line.key in keys]

    def last(self, key: str, default: str = "") -> str:
        return next((line.value for line in reversed(self.lines(key))), default)

    def refuse(self, line: _Assignment) -> None:
        """Count a line as not translated, though its key is known."""
        self._refused.add(line)

    def remark(self, line: _Assignment, text: str) -> Remark:
        return Remark(line.number, text, file=self.name)

    def untranslated(self) -> Iterator[Remark]:
        for line in self._lines:
            is_known = line.key in self._known or line.key.startswith("X-")
            if line in self._refused or not is_known:
                yield self.remark(line, f"{line.key}={line.value} is not translated")


_IGNORED = frozenset(
    (
        *("Documentation", "WantedBy", "RequiredBy", "Also", "AccuracySec", "RemainAfterElapse"),
        *("Persistent", "Restart", "FixedRandomDelay", "StandardOutput", "StandardError", "Description"),
    )
)
_HOW: Mapping[str, tuple[str, str]] = {
    **{key: (key.lower(), "(.+)") for key in ("User", "Group")},
    "EnvironmentFile": ("env_file", "([^%]+)"),
    "WorkingDirectory": ("cwd", "-?([^~%][^%]*)"),
    "UMask": ("umask", "0?([0-7]{3})"),
    "Nice": ("nice", r"(-?\d+)"),
    "LimitNOFILE": ("nofile", r"(\d+)"),
    **dict.fromkeys(("MemoryLimit", "MemoryMax"), ("memory_max", r"(\d+[KMGT]?)")),
}
"""How a process runs: what duly calls it, and which values it has an equal for."""
_SPANS = {
    **dict.fromkeys(("usec", "us"), 1e-6),
    **dict.fromkeys(("msec", "ms"), 1e-3),
    **dict.fromkeys(("", "seconds", "second", "sec", "s"), 1),
    **dict.fromkeys(("minutes", "minute", "min", "m"), 60),
    **dict.fromkeys(("hours", "hour", "hr", "h"), 3600),
    **dict.fromkeys(("days", "day", "d"), 86_400),
    **dict.fromkeys(("weeks", "week", "w"), 7 * 86_400),
    **dict.fromkeys(("months", "month", "M"), 2_629_800),
    **dict.fromkeys(("years", "year", "y"), 31_557_600),
}
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SPECIFIER = re.compile(r"%[A-Za-z]")
_TRUE = frozenset(("1", "yes", "y", "true", "t", "on"))


def translated_units(texts: Mapping[str, str]) -> Translated:
    """The timers and services among the unit files *texts*, by file name."""
    found, units = Translated(), {name: _Unit(name, text) for name, text in sorted(texts.items())}
    targets: set[str] = set()
    for is_timer in (True, False):
        for name, unit in units.items():
            if name.endswith(".timer") != is_timer or name in targets:
                continue
            try:
                if is_timer:
                    targets.add(target := unit.last("Unit", f"{unit.id}.service"))
                    found.entries.append(ImportedEntry(_job(found, unit, units.get(target), target)))
                else:
                    found.entries.append(ImportedEntry(_service(found, unit), table="service"))
            except _UnitLeftOutError as error:
                reason = f"left out: {error}" if not error.file else f"{name} is left out: {error}"
                found.remarks.append(Remark(error.line, reason, is_left_out=True, file=error.file or name))
    return found


def _assignments(text: str) -> list[_Assignment]:
    """The assignments of a unit. An empty one takes back those before it, as in systemd."""
    found: list[_Assignment] = []
    section, begun, number = "", "", 0
    for at, line in enumerate(text.split("\n"), start=1):
        content = line.strip()
        if content.startswith(("#", ";")) or not (content or begun):
            continue
        number, begun = (number if begun else at), begun + content
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        content, begun = begun, ""
        key, is_assigned, value = content.partition("=")
        if content.startswith("["):
            section = content.strip("[]")
        elif is_assigned and value.strip():
            found.append(_Assignment(number, section, key.strip(), value.strip()))
        elif is_assigned:
            found = [each for each in found if (each.section, each.key) != (section, key.strip())]
    return found


def _job(found: Translated, timer: _Unit, service: _Unit | None, target: str) -> dict[str, Any]:
    """The job that a timer and its service are."""
    if service is None:
        raise _UnitLeftOutError(f"there is no {target} beside it")
    try:
        job = _service(found, service, is_job=True)
    except _UnitLeftOutError as error:
        raise _UnitLeftOutError(str(error), error.line, target) from error
    job |= {"id": timer.id, **_when(found, timer)}
    job["persistent"] = timer.last("Persistent").lower() in _TRUE
    job["retry_intervals"] = []
    for line in timer.lines("RandomizedDelaySec"):
        if "on_calendar" in job or ("every" in job and "after_end" not in job):
            job["random_delay"] = f"{_seconds(line):g}s"
        else:
            timer.refuse(line)
    found.remarks += timer.untranslated()
    return job


def _when(found: Translated, timer: _Unit) -> dict[str, Any]:
    when: dict[str, Any] = {}
    calendars: dict[Calendar, str | None] = {}
    for line in timer.lines("OnCalendar"):
        try:
            calendar, zone_name = calendar_of(line.value)
        except NotTranslatableError as error:
            raise _UnitLeftOutError(f"OnCalendar {quoted(line.value)} {error}", line.number) from error
        calendars[calendar] = zone_name
    if len(zones := set(calendars.values())) > 1:
        raise _UnitLeftOutError("its calendars are in several time zones; write a timer for each")
    if calendars:
        when["on_calendar"] = [_fields(calendar) for calendar in calendars]
    if any(zones):
        when["timezone"] = zones.pop()
    if boots := timer.lines("OnBootSec", "OnStartupSec", "OnActiveSec"):
        when["on_startup"] = f"{min(map(_seconds, boots)):g}s"
    if rates := timer.lines("OnUnitActiveSec", "OnUnitInactiveSec"):
        when["every"] = f"{_seconds(rates[-1]):g}s"
        when |= {"after_end": True} if rates[-1].key == "OnUnitInactiveSec" else {}
        found.remarks += [timer.remark(line, f"{line.key} is left out") for line in rates[:-1]]
    if not when:
        raise _UnitLeftOutError("it has no trigger that duly knows")
    return when


def _service(found: Translated, unit: _Unit, *, is_job: bool = False) -> dict[str, Any]:
    service: dict[str, Any] = {"id": unit.id}
    kind = unit.last("Type", "simple")
    if kind in {"forking", "dbus"}:
        raise _UnitLeftOutError(f"Type={kind}: duly supervises the process that it starts, in the foreground")
    service["command"] = _command(found, unit)
    if not is_job and kind == "oneshot":
        service["type"] = "oneshot"
    elif not is_job:
        restart = unit.last("Restart", "no")
        service["restart"] = restart if restart in {"no", "always"} else "on-failure"
    if env := _environment(unit):
        service["env"] = env
    for line in unit.lines(*_HOW):
        key, pattern = _HOW[line.key]
        if value := re.fullmatch(pattern, line.value):
            service[key] = int(value[1]) if key in {"nice", "nofile"} else value[1]
        else:
            unit.refuse(line)
    limits, start_limits = unit.lines("RuntimeMaxSec"), unit.lines("TimeoutStartSec", "TimeoutSec")
    limits = limits or (start_limits if kind == "oneshot" else [])
    if limits and (is_job or kind == "oneshot") and limits[-1].value != "infinity":
        service["timeout"] = f"{_seconds(limits[-1]):g}s"
    if description := unit.last("Description"):
        service["description"] = description
    found.remarks += unit.untranslated()
    return service


def _command(found: Translated, unit: _Unit) -> list[str]:
    starts = unit.lines("ExecStart")
    if len(starts) != 1:
        line = starts[1].number if starts else 0
        raise _UnitLeftOutError(f"it has {len(starts)} ExecStart, not one", line)
    number, text = starts[0].number, starts[0].value
    prefix = text[: len(text) - len(text.lstrip("@-:+!"))]
    if set(prefix) & set("@+!"):
        raise _UnitLeftOutError(f"ExecStart begins with {prefix}, which duly has no equal for", number)
    if "-" in prefix:
        found.remarks.append(unit.remark(starts[0], "ExecStart=-: a failure counts as a failure here"))
    words = _words(starts[0], text.removeprefix(prefix))
    for word in words:
        if _SPECIFIER.search(word.replace("%%", "")):
            raise _UnitLeftOutError(f"ExecStart has the specifier {quoted(word)}; write it out", number)
        if ":" not in prefix and re.search(r"\$[A-Za-z_{]", word.replace("$$", "")):
            reason = f"ExecStart has the variable {quoted(word)}; let a shell expand it: sh -c '...'"
            raise _UnitLeftOutError(reason, number)
        if word == ";":
            raise _UnitLeftOutError("ExecStart has several commands; one is needed", number)
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


def _environment(unit: _Unit) -> dict[str, str]:
    env: dict[str, str] = {}
    for line in unit.lines("Environment"):
        if _SPECIFIER.search(line.value.replace("%%", "")):
            unit.refuse(line)
            continue
        pairs = (word.replace("%%", "%").partition("=") for word in _words(line, line.value))
        env |= {name: value for name, _, value in pairs if name}
    return env


def _words(line: _Assignment, text: str) -> list[str]:
    try:
        return shell_words(text)
    except UnclosedError as error:
        raise _UnitLeftOutError(f"{line.key} has {error}", line.number) from error


def _seconds(line: _Assignment) -> float:
    """A time span such as `1h 30min`."""
    parts = list(_SPAN.finditer(line.value))
    if not parts or "".join(part[0] for part in parts).strip() != line.value.strip():
        reason = f"{line.key} {quoted(line.value)} is no time span that duly knows"
        raise _UnitLeftOutError(reason, line.number)
    if unknown := [part[2] for part in parts if part[2] not in _SPANS]:
        raise _UnitLeftOutError(f"{line.key} has the unknown unit {quoted(unknown[0])}", line.number)
    return sum(float(part[1]) * _SPANS[part[2]] for part in parts)


def _fields(calendar: Calendar) -> dict[str, Any]:
    given = {each.name: getattr(calendar, each.name) for each in fields(Calendar)}
    # The minute is always said, for a calendar without one looks like a mistake.
    return {
        name: "*" if values is None else values[0] if len(values) == 1 else values
        for name, values in given.items()
        if values is not None or name == "minute"
    }


HEAD = """\
# Translated from systemd units by `duly import systemd`. As in systemd, a failed run is not tried again
# (retry_intervals = []), and a missed one is only made up for where the timer is persistent.

[supervisor]
timers = true
"""


def units_toml(found: Translated) -> str:
    """The configuration, as the text of a TOML file."""
    return HEAD + "".join(
        f"\n[[{each.table}]]\n"
        + "".join(f"{key} = {toml_value(value)}\n" for key, value in each.keys.items())
        for each in found.entries
    )
