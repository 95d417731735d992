"""A crontab, line by line: variables, jobs, and remarks about whatever has no equal here.

A variable holds for the lines below it, as in cron. Nothing is left out in silence: each line that is not
translated, or not quite, gets a remark with its number.

Each job is written with all its variables, so a few hundred KB of variables and jobs could become gigabytes.
Therefore each job is rendered at once and its bytes are counted: as soon as they are more than duly loads,
translation ends with an error. Time and memory stay linear in the size of the crontab.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from duly.config.crontab.commands import BLANKS, command_of, first_word, name_of
from duly.config.crontab.fields import UnclearFieldError, calendars_of
from duly.config.crontab.writing import HEAD, rendered
from duly.config.errors import EntryFault
from duly.config.reading import MOST_BYTES
from duly.config.schema import Calendar, Service, Timer
from duly.config.values import LONGEST_ID, zone
from duly.config.words import limited_comparisons, quoted
from duly.cron.spelling import posix_spelling

REBOOT_SEC = 1
# Matches the beginning of a line; what follows is the value.
_VARIABLE = re.compile(r"""("[^"]*"|'[^']*'|[^\s="'#@*0-9][^\s="']*+)[ \t]*+=[ \t]*+""")
_SHELL = "/bin/sh"
_NO_EQUAL = {
    "MAILTO": "duly sends no mail; the output of each run is in its history (duly logs)",
    "MAILFROM": "duly sends no mail",
    "CONTENT_TYPE": "duly sends no mail",
    "CONTENT_TRANSFER_ENCODING": "duly sends no mail",
    "RANDOM_DELAY": "duly starts jobs when they are due, without a random delay",
    "START_HOURS_RANGE": "this is for anacron, whose jobs are not in this file",
}
_USERS = frozenset(["root", "www-data", "nobody", "daemon", "postgres", "mysql"])


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be said about a line."""

    line: int
    text: str
    is_left_out: bool = False
    """Whether the line is a job that was not translated."""


@dataclass(frozen=True, slots=True)
class Job:
    """A translated line."""

    service: Service
    timer: Timer
    toml: str
    """What is written for it."""


@dataclass(slots=True)
class Translated:
    """All that became of a crontab."""

    jobs: list[Job] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


class TooManyJobsError(Exception):
    """The jobs of a crontab need a larger file than duly loads."""

    def __init__(self, line: int) -> None:
        super().__init__(
            f"the jobs up to line {line} fill more than {MOST_BYTES >> 20} MiB; duly loads no larger file."
            " Split the crontab, or remove variables: each job is written with all that are set above it"
        )
        self.line = line


class _LeftOutError(Exception):
    """The line cannot be translated."""


@dataclass(slots=True)
class _State:
    env: dict[str, str] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    """Those that are taken, and how many began alike."""
    zone: str | None = None
    zone_fault: str | None = None


@limited_comparisons()
def translated(text: str, *, has_user_column: bool = False) -> Translated:
    """The jobs of a crontab and what could not be translated. Raises TooManyJobsError."""
    found, state, size = Translated(), _State(), len(HEAD)
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.strip(" \t\r")
        if not content or content.startswith("#"):
            continue
        if (variable := _VARIABLE.match(content)) is not None:
            _set(state, found, number, _unquoted(variable[1]), _unquoted(content[variable.end() :]))
            continue
        try:
            job = _job(state, found, number, content, has_user_column=has_user_column)
        except (_LeftOutError, UnclearFieldError) as error:
            found.remarks.append(Remark(number, f"left out: {error}", is_left_out=True))
            continue
        size += len(job.toml.encode())
        if size > MOST_BYTES:
            raise TooManyJobsError(number)
        found.jobs.append(job)
    return found


def toml_of(found: Translated) -> str:
    """The configuration, as the text of a TOML file."""
    return HEAD + "".join(job.toml for job in found.jobs)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


# --- variables ---


def _set(state: _State, found: Translated, line: int, name: str, value: str) -> None:
    if name in _NO_EQUAL:
        found.remarks.append(Remark(line, f"{name} is not translated: {_NO_EQUAL[name]}"))
    elif name == "CRON_TZ":
        _set_zone(state, value)
    elif not name or "=" in name or "\0" in name + value:
        found.remarks.append(Remark(line, "the variable is not translated: its name or value cannot be used"))
    else:
        state.env[name] = value


def _set_zone(state: _State, value: str) -> None:
    state.zone_fault = None
    try:
        state.zone = zone(value, "CRON_TZ")
    except EntryFault as fault:
        # Jobs at the wrong time would be worse than none.
        state.zone_fault = fault.reason


# --- jobs ---


def _job(state: _State, found: Translated, line: int, content: str, *, has_user_column: bool) -> Job:
    words, rest = _times(content)
    first, others = first_word(rest)
    if has_user_column:
        rest = others
        if first:
            found.remarks.append(Remark(line, f"runs as the user that runs duly, not as {quoted(first)}"))
    elif first in _USERS and others:
        text = f"the command begins with {first}; if that is the user, give --user-column"
        found.remarks.append(Remark(line, text))
    if not rest:
        raise _LeftOutError("it has no command")
    if state.zone_fault is not None and words is not None:
        raise _LeftOutError(state.zone_fault)
    calendars = None if words is None else calendars_of(words)
    command = command_of(rest, state.env.get("SHELL", _SHELL))
    if not command.argv or not command.argv[0]:
        raise _LeftOutError("it has no command")
    name = _fresh_id(state, name_of(rest, line))
    service = Service(name, command.argv, type="oneshot", env=dict(state.env), cwd=_home(state.env))
    timer = _timer(name, calendars, state.zone)
    toml = rendered(service, timer, comment=f"line {line}: {content}", needs_shell=command.needs_shell)
    return Job(service, timer, toml)


def _home(env: Mapping[str, str]) -> str | None:
    return env.get("HOME") or None


def _times(content: str) -> tuple[list[str] | None, str]:
    """The five fields (None for @reboot), and what follows them."""
    if not content.startswith("@"):
        parts = BLANKS.split(content, maxsplit=5)
        if len(parts) < 6:
            raise _LeftOutError(f"it has {len(parts)} fields; five and a command are needed")
        return parts[:5], parts[5]
    macro, rest = first_word(content)
    if macro.lower() == "@reboot":
        return None, rest
    spelled = posix_spelling(macro) if macro.isprintable() else None
    if spelled is None:
        raise _LeftOutError(f"{quoted(macro)} is not a macro that all crons know")
    return spelled.split(), rest


def _timer(name: str, calendars: tuple[Calendar, ...] | None, zone_name: str | None) -> Timer:
    """As cron does it: a failed run is not tried again, a missed one not made up for."""
    return Timer(
        name,
        name,
        on_calendar=calendars or (),
        on_startup_sec=REBOOT_SEC if calendars is None else None,
        persistent=False,
        retry_intervals_sec=(),
        timezone=zone_name if calendars is not None else None,
    )


def _fresh_id(state: _State, name: str) -> str:
    name = fresh = name[: LONGEST_ID - 8]
    while fresh in state.ids:
        state.ids[name] += 1
        fresh = f"{name}-{state.ids[name]}"
    state.ids[fresh] = 1
    return fresh
