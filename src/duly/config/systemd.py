"""systemd's timer and service units as a configuration: OnCalendar, the units of a directory, TOML.

What has no equal becomes a remark with its file and line, or leaves the whole unit out: a job at another
time, or with another command, would be worse than none. Nothing here reads a file.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from duly.config.calendars import LAST
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


@dataclass(frozen=True, slots=True)
class UnitRemark:
    """What could not be translated, in which file and line."""

    file: str
    line: int
    text: str
    is_left_out: bool = False
    """Whether a timer or service is missing for it."""


@dataclass(slots=True)
class TranslatedUnits:
    entries: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The table of each entry, and its keys."""
    remarks: list[UnitRemark] = field(default_factory=list)


class _Assignment(NamedTuple):
    number: int
    section: str
    key: str
    value: str


class _UnitLeftOutError(Exception):
    """The unit cannot be translated: why, and in which line (0 for none) of which file, if of another."""

    def __init__(self, line: int, reason: str, file: str = "") -> None:
        super().__init__(reason)
        self.line = line
        self.file = file


_IGNORED = frozenset(
    (
        *("Documentation", "WantedBy", "RequiredBy", "Also", "AccuracySec", "RemainAfterElapse", "Unit"),
        *("Persistent", "Type", "Restart", "FixedRandomDelay", "StandardOutput", "StandardError"),
    )
)
_LIMIT_KEYS = {
    "User": "user",
    "Group": "group",
    "UMask": "umask",
    "Nice": "nice",
    "LimitNOFILE": "nofile",
    "MemoryMax": "memory_max",
    "MemoryLimit": "memory_max",
    "EnvironmentFile": "env_file",
}
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
_BOOLEANS = {**dict.fromkeys(("1", "yes", "y", "true", "t", "on"), True)}


def translated_units(texts: Mapping[str, str]) -> TranslatedUnits:
    """The timers and services among the unit files *texts*, by file name."""
    found, units = TranslatedUnits(), {name: _lines(text) for name, text in sorted(texts.items())}
    targets: set[str] = set()
    for name, lines in units.items():
        if name.endswith(".timer"):
            with _leaving_out(found, name):
                targets.add(_target(name, lines))
                found.entries.append(("job", _job(found, name, lines, units)))
    for name, lines in units.items():
        if name.endswith(".service") and name not in targets:
            with _leaving_out(found, name):
                found.entries.append(("service", _service(found, name, lines, is_job=False)))
    return found


@contextmanager
def _leaving_out(found: TranslatedUnits, name: str) -> Iterator[None]:
    try:
        yield
    except _UnitLeftOutError as error:
        reason = f"left out: {error}" if not error.file else f"{name} is left out: {error}"
        found.remarks.append(UnitRemark(error.file or name, error.line, reason, is_left_out=True))


def _lines(text: str) -> list[_Assignment]:
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


def _values_of(lines: Sequence[_Assignment], *keys: str) -> list[_Assignment]:
    return [line for line in lines if line.key in keys]


def _last(lines: Sequence[_Assignment], key: str, default: str = "") -> str:
    return next((line.value for line in reversed(lines) if line.key == key), default)


def _target(name: str, lines: Sequence[_Assignment]) -> str:
    if "@" in name:
        raise _UnitLeftOutError(0, "it is a template; instances of it are not known here")
    return _last(lines, "Unit", name.removesuffix(".timer") + ".service")


def _job(
    found: TranslatedUnits,
    name: str,
    lines: Sequence[_Assignment],
    units: Mapping[str, Sequence[_Assignment]],
) -> dict[str, Any]:
    """The job that a timer and its service are."""
    target = _target(name, lines)
    if target not in units:
        raise _UnitLeftOutError(0, f"there is no {target} beside it")
    try:
        service = _service(found, target, units[target], is_job=True)
    except _UnitLeftOutError as error:
        raise _UnitLeftOutError(error.line, str(error), target) from error
    job = {**service, "id": name.removesuffix(".timer")}
    job |= _when(found, name, lines)
    job["persistent"] = _last(lines, "Persistent").lower() in _BOOLEANS
    job["retry_intervals"] = []
    if delays := _values_of(lines, "RandomizedDelaySec"):
        job["random_delay"] = f"{_seconds(delays[-1]):g}s"
    return job


def _when(found: TranslatedUnits, name: str, lines: Sequence[_Assignment]) -> dict[str, Any]:
    when: dict[str, Any] = {}
    calendars: dict[Calendar, str | None] = {}
    for line in _values_of(lines, "OnCalendar"):
        try:
            calendar, zone_name = calendar_of(line.value)
        except NotTranslatableError as error:
            raise _UnitLeftOutError(line.number, f"OnCalendar {quoted(line.value)} {error}") from error
        calendars[calendar] = zone_name
    if len(zones := set(calendars.values())) > 1:
        raise _UnitLeftOutError(0, "its calendars are in several time zones; write a timer for each")
    if calendars:
        when["on_calendar"] = [_fields(calendar) for calendar in calendars]
    if any(zones):
        when["timezone"] = zones.pop()
    if boots := _values_of(lines, "OnBootSec", "OnStartupSec", "OnActiveSec"):
        when["on_startup"] = f"{min(map(_seconds, boots)):g}s"
    if rates := _values_of(lines, "OnUnitActiveSec", "OnUnitInactiveSec"):
        line = rates[-1]
        when["every"] = f"{_seconds(line):g}s"
        when |= {"after_end": True} if line.key == "OnUnitInactiveSec" else {}
        found.remarks += [UnitRemark(name, each.number, f"{each.key} is left out") for each in rates[:-1]]
    if not when:
        raise _UnitLeftOutError(0, "it has no trigger that duly knows")
    _list_untranslated(found, name, lines, {"OnCalendar", "OnBootSec", "OnStartupSec", "OnActiveSec"})
    return when


def _service(
    found: TranslatedUnits, name: str, lines: Sequence[_Assignment], *, is_job: bool
) -> dict[str, Any]:
    if "@" in name:
        raise _UnitLeftOutError(0, "it is a template; instances of it are not known here")
    kind = _last(lines, "Type", "simple")
    if kind in {"forking", "dbus"}:
        raise _UnitLeftOutError(
            0, f"Type={kind}: duly supervises the process that it starts, in the foreground"
        )
    service: dict[str, Any] = {"id": name.removesuffix(".service"), "command": _command(found, name, lines)}
    if not is_job and kind == "oneshot":
        service["type"] = "oneshot"
    elif not is_job:
        restart = _last(lines, "Restart", "no")
        service["restart"] = restart if restart in {"no", "always"} else "on-failure"
    if env := _environment(lines):
        service["env"] = env
    if directory := _last(lines, "WorkingDirectory"):
        service["cwd"] = directory.removeprefix("-")
    known = {line for line in lines if _limit(line) is not None}
    service |= {_LIMIT_KEYS[line.key]: _limit(line) for line in lines if line in known}
    limits = _values_of(lines, "RuntimeMaxSec") or (
        _values_of(lines, "TimeoutStartSec", "TimeoutSec") if kind == "oneshot" else []
    )
    if limits and (is_job or kind == "oneshot") and limits[-1].value != "infinity":
        service["timeout"] = f"{_seconds(limits[-1]):g}s"
    if description := _last(lines, "Description"):
        service["description"] = description
    others = [line for line in lines if line not in known]
    handled = {
        "ExecStart",
        "Environment",
        "WorkingDirectory",
        "RuntimeMaxSec",
        "TimeoutStartSec",
        "TimeoutSec",
    }
    _list_untranslated(found, name, others, handled)
    return service


def _list_untranslated(
    found: TranslatedUnits, name: str, lines: Sequence[_Assignment], known: set[str]
) -> None:
    known |= _IGNORED | {"Description", "RandomizedDelaySec", "OnUnitActiveSec", "OnUnitInactiveSec"}
    found.remarks += [
        UnitRemark(name, line.number, f"{line.key}={line.value} is not translated")
        for line in lines
        if line.key not in known and not line.key.startswith("X-")
    ]


def _command(found: TranslatedUnits, name: str, lines: Sequence[_Assignment]) -> list[str]:
    starts = _values_of(lines, "ExecStart")
    if len(starts) != 1:
        raise _UnitLeftOutError(starts[1].number if starts else 0, f"it has {len(starts)} ExecStart, not one")
    number, text = starts[0].number, starts[0].value
    prefix = text[: len(text) - len(text.lstrip("@-:+!"))]
    if set(prefix) & set("@+!"):
        raise _UnitLeftOutError(number, f"ExecStart begins with {prefix}, which duly has no equal for")
    if "-" in prefix:
        found.remarks.append(UnitRemark(name, number, "ExecStart=-: a failure counts as a failure here"))
    try:
        words = shell_words(text.removeprefix(prefix))
    except UnclosedError as error:
        raise _UnitLeftOutError(number, f"ExecStart has {error}") from error
    command = [word.replace("%%", "%").replace("$$", "$") for word in words]
    for word in words:
        if re.search(r"%[A-Za-z]", word.replace("%%", "")):
            raise _UnitLeftOutError(number, f"ExecStart has the specifier {quoted(word)}; write it out")
        if ":" not in prefix and re.search(r"\$[A-Za-z_{]", word.replace("$$", "")):
            reason = f"ExecStart has the variable {quoted(word)}; let a shell expand it: sh -c '...'"
            raise _UnitLeftOutError(number, reason)
        if word == ";":
            raise _UnitLeftOutError(number, "ExecStart has several commands; one is needed")
    return command


def _environment(lines: Sequence[_Assignment]) -> dict[str, str]:
    env: dict[str, str] = {}
    for line in _values_of(lines, "Environment"):
        try:
            pairs = [word.partition("=") for word in shell_words(line.value)]
        except UnclosedError as error:
            raise _UnitLeftOutError(line.number, f"Environment has {error}") from error
        env |= {name: value for name, _, value in pairs if name}
    return env


def _limit(line: _Assignment) -> Any:
    """The value of a key that says how a process runs; None if duly has no equal for it."""
    key, value = _LIMIT_KEYS.get(line.key), line.value
    if key is None:
        return None
    if key in {"nice", "nofile"}:
        return int(value) if re.fullmatch(r"-?\d+", value) else None
    if key == "umask":
        return value[-3:] if re.fullmatch("0?[0-7]{3}", value) else None
    if key == "memory_max":
        return value if re.fullmatch(r"\d+[KMGT]?", value) else None
    return value


def _seconds(line: _Assignment) -> float:
    """A time span such as `1h 30min`."""
    parts = list(_SPAN.finditer(line.value))
    if not parts or "".join(part[0] for part in parts).strip() != line.value.strip():
        raise _UnitLeftOutError(
            line.number, f"{line.key} {quoted(line.value)} is no time span that duly knows"
        )
    if unknown := [part[2] for part in parts if part[2] not in _SPANS]:
        raise _UnitLeftOutError(line.number, f"{line.key} has the unknown unit {quoted(unknown[0])}")
    return sum(float(part[1]) * _SPANS[part[2]] for part in parts)


def _fields(calendar: Calendar) -> dict[str, Any]:
    given = {each.name: getattr(calendar, each.name) for each in fields(Calendar)}
    # The minute is always said, for a calendar without one looks like a mistake.
    return {
        name: "*" if values is None else _numbers(values)
        for name, values in given.items()
        if values is not None or name == "minute"
    }


def _numbers(values: Any) -> Any:
    if values == LAST:
        return LAST
    return values[0] if len(values) == 1 else list(values)


# --- TOML ---


HEAD = """\
# Translated from systemd units by `duly import systemd`. As in systemd, a failed run is not tried again
# (retry_intervals = []), and a missed one is only made up for where the timer is persistent.

[supervisor]
timers = true
"""


def units_toml(found: TranslatedUnits) -> str:
    """The configuration, as the text of a TOML file."""
    return HEAD + "".join(
        f"\n[[{table}]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
        for table, keys in found.entries
    )


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # A text of JSON is one of TOML, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)
