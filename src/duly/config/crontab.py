"""Crontabs as configurations: read the lines, translate the jobs, write TOML, and say what could not be done.

The input is any text of at most 1 MiB. The output always loads in duly: what would not is left out with a
remark that has its line number. A variable holds for the lines below it, as in cron.

A job is one line. What all jobs have in common stands once, as `[defaults]`; but variables that differ are
written with each job, so a few hundred KB of variables and jobs could become gigabytes. Therefore each job is
rendered at once, with all its variables, and its bytes are counted. When there are more than duly loads, the
translation ends with TooManyJobsError. Time and memory stay linear in the size of the crontab.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from duly.config.calendars import UnclearFieldError, calendars_of
from duly.config.loading import MOST_BYTES
from duly.config.schema import EntryFault
from duly.config.values import LONGEST_ID, account, shell_syntax, shell_words, zone
from duly.cron.spelling import posix_spelling
from duly.formatting import counted, limited_comparisons, quoted

_REBOOT = "1s"
# Matches the beginning of a line; what follows is the value.
_VARIABLE = re.compile(r"""("[^"]*"|'[^']*'|[^\s="'#@*0-9][^\s="']*+)[ \t]*+=[ \t]*+""")
_SHELL = "/bin/sh"
_NO_EQUAL = {
    "MAILTO": "to be told, write a [[notify]]; the output of each run is in its history (duly logs)",
    "MAILFROM": "that is the sender of a [[notify]]",
    "CONTENT_TYPE": "what duly sends is UTF-8 text",
    "CONTENT_TRANSFER_ENCODING": "what duly sends is UTF-8 text",
    "RANDOM_DELAY": "give each job its random_delay",
    "START_HOURS_RANGE": "this is for anacron, whose jobs are not in this file",
}
# Seconds first (Quartz) or a year last (supercronic): read as five, such a line would run at other times.
_DAY = "(?:SUN|MON|TUE|WED|THU|FRI|SAT)"
_SIXTH_FIELD = re.compile(rf"(?:[0-9*?LW/,#-]*[0-9*?][0-9*?LW/,#-]*|{_DAY}(?:[,-]{_DAY})*)(?=[ \t]|$)")
_USERS = frozenset(["root", "www-data", "nobody", "daemon", "postgres", "mysql"])


@dataclass(frozen=True, slots=True)
class Remark:
    """What could not be translated, and in which line."""

    line: int
    text: str
    is_left_out: bool = False
    """Whether a job or a service is missing for it."""
    file: str = ""
    """Where the line is, if there are several files."""


class ImportedEntry(NamedTuple):
    """What a line, or a unit, became: the keys of an entry of a configuration."""

    keys: dict[str, Any]
    line: int = 0
    table: str = "job"


@dataclass(slots=True)
class Translated:
    """All that became of a crontab, or of units."""

    entries: list[ImportedEntry] = field(default_factory=list)
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
    """The line cannot be translated, and why."""


@dataclass(slots=True)
class _State:
    env: dict[str, str] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    """Those that are taken, and how many began alike."""
    zone: str | None = None
    zone_fault: str | None = None


@limited_comparisons()
def translated_crontab(text: str, *, has_user_column: bool = False) -> Translated:
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
        except (_LeftOutError, UnclearFieldError, EntryFault) as error:
            found.remarks.append(Remark(number, f"left out: {error}", is_left_out=True))
            continue
        size += len(_line_of(job, {}).encode())
        if size > MOST_BYTES:
            raise TooManyJobsError(number)
        found.entries.append(job)
    return found


def toml_of(found: Translated) -> str:
    """The configuration, as the text of a TOML file."""
    shared = _shared(found.entries)
    jobs = "".join(_line_of(job, shared) for job in found.entries)
    common = "".join(f"{key} = {toml_value(value)}\n" for key, value in shared.items())
    return f"{COMMENT}job = [\n{jobs}]\n{SETTINGS}{common}"


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
        state.env = {**state.env, name: value}


def _set_zone(state: _State, value: str) -> None:
    state.zone_fault = None
    try:
        state.zone = zone(value, "CRON_TZ")
    except EntryFault as fault:
        # Jobs at the wrong time would be worse than none.
        state.zone_fault = fault.reason


# --- jobs ---


def _job(
    state: _State, found: Translated, line: int, content: str, *, has_user_column: bool
) -> ImportedEntry:
    words, rest = _times(content)
    first, others = first_word(rest)
    user = None
    if has_user_column and first:
        user, rest = account(first, "user"), others
    elif first in _USERS and others:
        text = f"the command begins with {first}; if that is the user, give --user-column"
        found.remarks.append(Remark(line, text))
    if not rest:
        raise _LeftOutError("it has no command")
    if state.zone_fault is not None and words is not None:
        raise _LeftOutError(state.zone_fault)
    if words is not None:
        calendars_of(words)  # it could be read
    command = command_of(rest, state.env.get("SHELL", _SHELL))
    if not command or not command[0]:
        raise _LeftOutError("it has no command")
    when = {"on_startup": _REBOOT} if words is None else {"cron": " ".join(words)}
    keys = {"id": _fresh_id(state, name_of(rest, line)), **when, "command": command, "user": user}
    keys |= {"cwd": state.env.get("HOME") or None, "timezone": None if words is None else state.zone}
    return ImportedEntry({key: value for key, value in (*keys.items(), ("env", state.env)) if value}, line)


def _times(content: str) -> tuple[list[str] | None, str]:
    """The five fields (None for @reboot), and what follows them."""
    if not content.startswith("@"):
        parts = BLANKS.split(content, maxsplit=5)
        if len(parts) < 6:
            raise _LeftOutError(f"it has {counted(len(parts), 'field')}; five and a command are needed")
        if _SIXTH_FIELD.match(parts[5]):
            word, _ = first_word(parts[5])
            reason = "five fields come before the command; take out the seconds or the year"
            raise _LeftOutError(f"its sixth word {quoted(word)} looks like a time field: {reason}")
        return parts[:5], parts[5]
    macro, rest = first_word(content)
    if macro.lower() == "@reboot":
        return None, rest
    spelled = posix_spelling(macro) if macro.isprintable() else None
    if spelled is None:
        raise _LeftOutError(f"{quoted(macro)} is not a macro that all crons know")
    return spelled.split(), rest


def _fresh_id(state: _State, name: str) -> str:
    name = fresh = name[: LONGEST_ID - 8]
    while fresh in state.ids:
        state.ids[name] += 1
        fresh = f"{name}-{state.ids[name]}"
    state.ids[fresh] = 1
    return fresh


# --- commands ---
#
# What cron hands to a shell becomes an argv that needs none where that is the same. Cron first takes `%`
# apart (an unescaped one ends the command, the rest is its standard input, further ones are line ends; `\%`
# is a percent sign), then gives the rest to `SHELL -c`. A text without any shell syntax means the same split
# into words. Any doubt is decided in favour of the shell.


# What cron and shells take for a blank. Python's own idea of one (str.split, str.strip) has a dozen more.
BLANK = " \t"
BLANKS = re.compile(r"[ \t]+")
_QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
_SYNTAX = re.compile(r"""[|&;<>()$`\\"'*?\[\]{}~#\r\n]""")
# Words that only a shell knows. Those that are programs as well (echo, test, true) do the same as such.
_SHELL_WORDS = frozenset(
    (
        *(".", ":", "!", "alias", "builtin", "case", "cd", "command", "declare", "do", "eval", "exec"),
        *("exit", "export", "for", "function", "hash", "if", "let", "local", "read", "readonly", "return"),
        *("select", "set", "shift", "source", "time", "times", "trap", "type", "typeset", "ulimit", "umask"),
        *("unset", "until", "wait", "while"),
    )
)
_PLAIN_SHELLS = frozenset(["sh", "ash", "bash", "dash", "ksh", "mksh", "zsh"])
_WORD = re.compile(r"[A-Za-z0-9_./+-]+")
_WRAPPERS = frozenset(
    ["nice", "ionice", "env", "sudo", "nohup", "timeout", "flock", "chronic", "time", "sh", "bash", "python"]
)


def command_of(text: str, shell: str) -> tuple[str, ...]:
    """What cron would run for a line's command part, as an argv; empty if it is nothing."""
    script, stdin = percent_split(text)
    shell = shell.strip() or "/bin/sh"
    if not script.strip(BLANK):
        return ()
    if stdin is not None:
        return shell, "-c", _with_stdin(script, stdin)
    if shell.rpartition("/")[2] in _PLAIN_SHELLS and not uses_shell(script):
        argv = tuple(shell_words(script))
        # Neither `""` nor a no-break space names a program for duly; what it does is the shell's affair.
        if argv[0].strip():
            return argv
    return shell, "-c", script


def first_word(text: str) -> tuple[str, str]:
    """The text up to its first blank, and what follows the blanks."""
    word, *rest = BLANKS.split(text, maxsplit=1)
    return word, "".join(rest)


def percent_split(text: str) -> tuple[str, str | None]:
    """The command, and the text for its standard input if there is any."""
    script: list[str] = []
    is_escaped = False
    for position, char in enumerate(text):
        if char == "%" and not is_escaped:
            stdin = re.sub(r"\\%|%", lambda mark: "%" if mark[0] == "\\%" else "\n", text[position + 1 :])
            return "".join(script), stdin or None
        if char == "%":
            script[-1] = char
        else:
            script.append(char)
        is_escaped = char == "\\" and not is_escaped
    return "".join(script), None


def _with_stdin(script: str, stdin: str) -> str:
    """The script with its standard input as a here-document, whose end is a line that it does not have."""
    end, lines = "END", frozenset(stdin.split("\n"))
    while end in lines:
        end += "_"
    return f"{{ {script}\n}} <<'{end}'\n{stdin.removesuffix(chr(10))}\n{end}"


def uses_shell(script: str) -> bool:
    """Whether the text means something to a shell beyond words and quotes."""
    bare = _QUOTED.sub("q", script)
    if _SYNTAX.search(bare):
        return True
    first, _ = first_word(script.strip(BLANK))
    # Shells differ in what their own echo and printf make of a backslash.
    return "=" in first or first in _SHELL_WORDS or (first in ("echo", "printf") and "\\" in script)


def name_of(text: str, line: int) -> str:
    """A name for the job: that of its program, if it can be found in the text."""
    script, _ = percent_split(text)
    for part in re.split(r"&&|\|\||[;|]", script):
        for word in BLANKS.split(part.strip(BLANK)):
            if not _WORD.fullmatch(word) or word.startswith("-") or word.isdigit():
                continue
            name = re.sub(r"\.(sh|py|pl|rb|php|js)$", "", word.rstrip("/").rpartition("/")[2])
            if name in ("cd", "exec", "test", "export", "source", "."):
                break
            if name.strip("._+-") and name not in _WRAPPERS and not name.startswith("python"):
                return name.strip("._+-")[:64]
    return f"job-{line}"


# --- TOML ---


COMMENT = """\
# Translated from a crontab by `duly import crontab`: one line for each job, in which `cron` is as it was.
# Things that are different here:
# - cron starts a job in the home directory of its user, with PATH=/usr/bin:/bin; duly starts it in its own
#   directory with its own environment. Where that matters, add cwd and env, here or to a job.
# - A job that is still running when it is due again is not started a second time beside itself.
# - Cron neither retries nor makes up for what it missed, and so it is said below. Without these two lines
#   of [defaults], duly does both.
# - duly starts no shell by itself. Where a line needs one, /bin/sh is spelled out.
# TOML has no [[job]] tables beside such a list: add a job as one more line.

"""
SETTINGS = """
[supervisor]
timers = true

[defaults]
persistent = false
retry_intervals = []
"""
HEAD = COMMENT + SETTINGS
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _shared(jobs: list[ImportedEntry]) -> dict[str, Any]:
    """What is the same in all jobs."""
    if not jobs:
        return {}
    first = jobs[0].keys
    env: dict[str, str] = first.get("env", {})
    for job, other in pairwise(each.keys.get("env", {}) for each in jobs):
        if job is not other:  # else they come from the same lines
            env = {name: value for name, value in env.items() if other.get(name) == value}
    names = [name for name in ("cwd", "timezone", "user") if name in first]
    same = [name for name in names if all(job.keys.get(name) == first[name] for job in jobs)]
    return {name: first[name] for name in same} | ({"env": env} if env else {})


def _line_of(job: ImportedEntry, shared: Mapping[str, Any]) -> str:
    """A job as an element of a list of TOML."""
    own = {name: value for name, value in job.keys.items() if shared.get(name) != value}
    own["command"] = _command(own["command"])
    common = shared.get("env", {})
    env = {name: value for name, value in own.pop("env", {}).items() if name not in common}
    own |= {"env": env} if env else {}
    return f"    {toml_value(own)},  # line {job.line}\n"


def _command(argv: tuple[str, ...]) -> str | tuple[str, ...]:
    """As one text where that is accepted, and split into the same words."""
    text = " ".join(argv)
    is_plain = not _SYNTAX.search(text) and shell_syntax(text) is None and shell_words(text) == [*argv]
    return text if is_plain else argv


def toml_value(value: Any) -> str:
    """A text, number, list or mapping as it is written in TOML."""
    if isinstance(value, Mapping):
        pairs = (
            f"{name if _BARE_KEY.fullmatch(name) else _text(name)} = {toml_value(each)}"
            for name, each in value.items()
        )
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return _text(value) if isinstance(value, str) else str(value).lower()


def _text(text: str) -> str:
    escaped = (_ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{"".join(escaped)}"'
