"""The values of keys, one checker for each sort: it returns the value in its one form, or raises EntryFault.

A checker takes anything at all. Subclasses of text and numbers become plain text and numbers, so that nothing
a Python file made up travels on. Whether a value makes sense beside others is not asked here.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from ipaddress import ip_network
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from duly.config.schema import Database, EntryFault, PingUrl
from duly.errors import StoreError
from duly.formatting import (
    close_zones,
    did_you_mean,
    joined,
    printable,
    quoted,
    shortened,
    suggestion,
    value_text,
)
from duly.instant import SECOND_US
from duly.places import PlaceError, StoreKind, UnknownSchemeError, kind_of

Given = TypeVar("Given")
Value = TypeVar("Value")

LONGEST_ID = 128
LONGEST_SEC = 3_155_760_000
"""A hundred years. Longer ones are mistakes, and would not fit into an instant."""
SHORTEST_SEC = 0.000_001
_MOST_DAYS = 36_525
_EARLIEST_YEAR, _LATEST_YEAR = 1900, 9000
_LONGEST_TEXT = 1000
_LONGEST_LITERAL = 200
_MOST_NAMED = 10_000


def mapping(value: object, what: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise EntryFault(f"must be {what}, not {value_text(value)}")
    try:
        return dict(value)
    except Exception as error:
        raise EntryFault(f"cannot be read: {type(error).__name__}") from error


def known_keys(entry: Mapping[Any, Any], known: Sequence[str], aliases: Mapping[str, str]) -> None:
    """Refuse the first key that the schema does not have."""
    for fault in unknown_keys(entry, known, aliases):
        raise fault


def unknown_keys(
    entry: Mapping[Any, Any], known: Sequence[str], aliases: Mapping[str, str]
) -> Iterator[EntryFault]:
    for key in entry:
        if not isinstance(key, str):
            yield EntryFault(f"unknown key {value_text(key)}; keys are text")
        elif key not in known:
            yield EntryFault(f"unknown key {quoted(key)}{did_you_mean(key, known, aliases)}", str(key))


def all_of(check: Callable[[Given], Value], items: Iterable[Given]) -> list[Value]:
    """What *check* makes of each of the items. Raises EntryFault with the faults of all that are wrong."""
    results: list[Value] = []
    faults: list[EntryFault] = []
    for item in items:
        try:
            results.append(check(item))
        except EntryFault as fault:
            faults += [fault, *fault.others]
    if faults:
        raise EntryFault(faults[0].reason, faults[0].key, faults[1:])
    return results


def identifier(value: object, key: str) -> str:
    name = _any_text(value, key, key, LONGEST_ID)
    if not name:
        raise EntryFault(f"{key} is empty", key)
    if not name.isprintable():
        raise EntryFault(f"{key} {quoted(name)} holds a character that cannot be printed", key)
    if name != name.strip():
        raise EntryFault(f"{key} {quoted(name)} begins or ends with a space", key)
    return name


def plain(value: str) -> str:
    """Text of the type str itself, whatever subclass it came as."""
    return str.__str__(value)


def _any_text(value: object, key: str, what: str, longest: int | None = None) -> str:
    if not isinstance(value, str):
        raise EntryFault(f"{what} must be text, not {value_text(value)}", key)
    content = plain(value)
    if longest is not None and len(content) > longest:
        raise EntryFault(f"{what} is {len(content)} characters long; at most {longest} are allowed", key)
    return content


def _check_encodable(text: str, key: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EntryFault(f"{what} holds half a character (a lone surrogate)", key) from error


def boolean(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise EntryFault(f"{key} must be true or false, not {value_text(value)}", key)
    return value


def seconds(value: object, key: str, *, may_be_zero: bool = False) -> float:
    """A length of time: a number, or a text such as "5m" or "1h 30m"."""
    if isinstance(value, str | timedelta):
        from duly.schedules import length_of  # noqa: PLC0415 - not every file needs it

        try:
            value = length_of(key, plain(value) if isinstance(value, str) else value) / SECOND_US
        except ValueError as error:
            raise EntryFault(str(error), key) from error
        value = int(value) if value.is_integer() else value
    number = _number(value, key, "seconds")
    if may_be_zero and number == 0:
        return 0
    if number <= 0:
        least = "0 or a positive" if may_be_zero else "a positive"
        raise EntryFault(f"{key} must be {least} number of seconds, not {value_text(number)}", key)
    if number < SHORTEST_SEC:
        raise EntryFault(f"{key} must be at least a millionth of a second, not {value_text(number)}", key)
    if number > LONGEST_SEC:
        raise EntryFault(f"{key} must be at most {LONGEST_SEC} (100 years), not {value_text(number)}", key)
    return number


def days(value: object, key: str) -> float:
    number = _number(value, key, "days")
    if not 0 < number <= _MOST_DAYS:
        raise EntryFault(
            f"{key} must be a positive number of days, at most {_MOST_DAYS}, not {value_text(number)}", key
        )
    return number


def _number(value: object, key: str, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EntryFault(f"{key} must be a number of {unit}, not {value_text(value)}", key)
    if isinstance(value, int):
        return int.__int__(value)
    number = float.__float__(value)
    if not math.isfinite(number):
        raise EntryFault(f"{key} must be a finite number of {unit}, not {number}", key)
    return number


def whole_number(value: object, key: str, lowest: int, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise EntryFault(f"{key} must be a whole number, not {value_text(value)}", key)
    number = int.__int__(value)
    if not lowest <= number <= highest:
        raise EntryFault(f"{key} must be {lowest} to {highest}, not {value_text(number)}", key)
    return number


def _items(value: object, key: str, what: str, most: int | None = None) -> Sequence[Any]:
    if isinstance(value, str) and what != "seconds":
        raise EntryFault(f"{key} must be a list of {what}; write [{quoted(value)}]", key)
    if not isinstance(value, list | tuple):
        raise EntryFault(f"{key} must be a list of {what}, not {value_text(value)}", key)
    if most is not None and len(value) > most:
        raise EntryFault(f"{key} has {len(value)} elements; at most {most} are allowed", key)
    return value


def intervals(value: object, key: str) -> tuple[float, ...]:
    """A list of lengths of time, perhaps empty."""
    items = _items(value, key, "seconds", _MOST_NAMED)
    return tuple(_element(item, key, index) for index, item in enumerate(items, start=1))


def _element(value: object, key: str, number: int) -> float:
    try:
        return seconds(value, f"element {number} of {key}")
    except EntryFault as fault:
        raise EntryFault(fault.reason, key) from fault


def every(value: object, key: str) -> float:
    """The period of a fixed rate."""
    from duly.schedules import SHORTEST_PERIOD_SEC  # noqa: PLC0415 - as above

    period_sec = seconds(value, key)
    if period_sec < SHORTEST_PERIOD_SEC:
        raise EntryFault(f"{key} needs a period of at least {SHORTEST_PERIOD_SEC} s", key)
    return period_sec


def clock(value: object, key: str) -> tuple[int, int]:
    """The hour and minute of a time of day."""
    from duly.schedules import clock_of  # noqa: PLC0415 - as above

    try:
        return clock_of(key, _any_text(value, key, key))
    except ValueError as error:
        raise EntryFault(str(error), key) from error


def moment(value: object, key: str) -> str:
    """A date and a time, perhaps with an offset."""
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(_any_text(value, key, key))
    except ValueError as error:
        reason = f"{key} needs a time such as '2026-12-24 18:00', not {value_text(value)}"
        raise EntryFault(reason, key) from error
    # In the first and the last year that datetime knows, some zones have times that it cannot hold.
    if not _EARLIEST_YEAR <= found.year <= _LATEST_YEAR:
        raise EntryFault(f"{key} needs a year from {_EARLIEST_YEAR} to {_LATEST_YEAR}, not {found.year}", key)
    return found.isoformat(" ")


def choice(value: object, key: str, allowed: Sequence[str]) -> str:
    words = joined([f'"{word}"' for word in allowed])
    if not isinstance(value, str):
        raise EntryFault(f"{key} must be {words}, not {value_text(value)}", key)
    if value not in allowed:
        raise EntryFault(f"{key} must be {words}, not {quoted(value)}", key)
    return plain(value)


def text(value: object, key: str) -> str:
    content = _any_text(value, key, key, _LONGEST_TEXT)
    _check_encodable(content, key, key)
    return content


def host_text(value: object, key: str, what: str) -> str:
    """Text that the operating system will be given: it ends at a NUL, so there must be none."""
    content = _any_text(value, key, what)
    if "\0" in content:
        raise EntryFault(f"{what} holds a NUL character", key)
    _check_encodable(content, key, what)
    return content


def path_text(value: object, key: str) -> str:
    path = host_text(value, key, key)
    if not path:
        raise EntryFault(f"{key} is empty", key)
    return path


def patterns(value: object, key: str) -> tuple[str, ...]:
    """Paths in which * stands for anything."""
    items = [value] if isinstance(value, str) else _items(value, key, "paths", _MOST_NAMED)
    return tuple(path_text(item, key) for item in items)


def names(value: object, key: str) -> tuple[str, ...]:
    """A list of ids, each once."""
    found: dict[str, None] = {}
    for item in _items(value, key, "ids"):
        if not isinstance(item, str) or not item:
            raise EntryFault(f"{key} must be a list of ids, and {value_text(item)} is none", key)
        found[plain(item)] = None
    return tuple(found)


def argv(value: object, key: str) -> tuple[str, ...]:
    if isinstance(value, str):
        command = host_text(value, key, key)
        try:
            words = shell_words(command)
        except UnclosedError as error:
            raise EntryFault(f"{key} has {error}: {quoted(command)}", key) from error
        if (found := shell_syntax(command)) is not None:
            literal = shortened(", ".join(map(quoted, words)), _LONGEST_LITERAL)
            raise EntryFault(
                f"{key} has {quoted(found)}, which only a shell understands, and none is started."
                f" For a shell: shell = true. If it is meant as it stands: {key} = [{literal}]",
                key,
            )
    elif isinstance(value, list | tuple):
        words = [
            host_text(item, key, f"element {number} of {key}") for number, item in enumerate(value, start=1)
        ]
    else:
        raise EntryFault(f"{key} must be a list of texts or one text, not {value_text(value)}", key)
    if not words:
        raise EntryFault(f"{key} is empty", key)
    if not words[0].strip():
        raise EntryFault(f"{key} names no program: its first element is empty", key)
    return tuple(words)


_SHELL = ("/bin/sh", "-c")


def shell_argv(value: object, key: str) -> tuple[str, ...]:
    """One text for /bin/sh, as an argv. That of a service that was checked before is one already."""
    if isinstance(value, tuple) and value[:-1] == _SHELL:
        value = value[-1]
    if not isinstance(value, str):
        raise EntryFault(f"with shell = true {key} must be one text, not {value_text(value)}", key)
    if not (command := host_text(value, key, key)).strip():
        raise EntryFault(f"{key} is empty", key)
    return *_SHELL, command


def account(value: object, key: str) -> str:
    """The name or the number of a user or a group, as text."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(int.__int__(value))
    return identifier(value, key)


def umask(value: object, key: str) -> str:
    if not isinstance(value, str) or not _UMASK.fullmatch(value):
        raise EntryFault(f'{key} must be three octal digits in quotes ("027"), not {value_text(value)}', key)
    return plain(value)


def size(value: object, key: str) -> int:
    """A number of bytes, or one with a unit."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        value = int(found[1]) << (10 * " KMGT".index(found[2]))
    if isinstance(value, bool) or not isinstance(value, int):
        raise EntryFault(
            f'{key} must be a number of bytes, or text such as "512M", not {value_text(value)}', key
        )
    number = int.__int__(value)
    if not _LEAST_BYTES <= number <= _MOST_BYTES:
        raise EntryFault(f"{key} must be 1 MiB to 1024 TiB, not {value_text(value)}", key)
    return number


_UMASK = re.compile(r"0?[0-7]{3}")
_SIZE = re.compile(r"([0-9]{1,15})([KMGT])")
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 50


def environment(value: object, key: str) -> dict[str, str]:
    """Variables for a process. They may be secret, and so no message shows a value."""
    if not isinstance(value, Mapping):
        said = "text" if isinstance(value, str) else value_text(value)
        raise EntryFault(f"{key} must be a mapping of names to texts, not {said}", key)
    try:
        items = dict(value).items()
    except Exception as error:
        raise EntryFault(f"{key} cannot be read: {type(error).__name__}", key) from error
    return dict(all_of(partial(_variable, key=key), items))


def _variable(item: tuple[object, object], key: str) -> tuple[str, str]:
    name, content = item
    if not isinstance(name, str) or not name or "=" in name:
        said = value_text(name.partition("=")[0]) if isinstance(name, str) else value_text(name)
        reason = "names are text, not empty, without ="
        raise EntryFault(f"{key} has a wrong name, {said}; {reason}", key)
    if isinstance(content, bool | int | float):
        raise EntryFault(f"{key}.{printable(name)} must be text; put its value in quotes", key)
    plain_name = host_text(name, key, f"the name {quoted(name)} in {key}")
    return plain_name, host_text(content, key, f"{key}.{printable(name)}")


def zone(value: object, key: str) -> str:
    """The name of a time zone that this host knows."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - most files name no zone

    name = text(value, key)
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: "Europe" is a folder
        close = close_zones(name, _known_zones())
        offer = f"; {suggestion(close)}" if close else ""
        raise EntryFault(f"{key}: there is no time zone {quoted(name)}{offer}", key) from error
    return name


@lru_cache(maxsize=1)
def _known_zones() -> frozenset[str]:
    """Every zone of this host. Kept, since finding them walks over hundreds of files."""
    from zoneinfo import available_timezones  # noqa: PLC0415 - as above

    return frozenset(available_timezones())


# --- addresses ---
#
# The path of a URL to ping is as good as a password, so a `PingUrl` shows, compares and stores its host
# alone; the address of a database may hold one, and a `Database` shows the rest. No message here repeats what
# was written.


_LONGEST_URL = 2000
_LONGEST_UNIX_PATH = 107
_MOST_HOSTS = 100
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_UNIX = "unix:"


class ListenAddress(NamedTuple):
    """Where to listen: a host and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def ping_url(value: object, key: str) -> PingUrl:
    url = _any_text(value.secret if isinstance(value, PingUrl) else value, key, key, _LONGEST_URL)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise EntryFault(f"{key} must be plain ASCII without spaces; write anything else as %XX", key)
    return PingUrl.of(_host_of(url, key), url)


def smtp_url(value: object, key: str) -> PingUrl:
    """The address of a mail server, perhaps with a user and a password."""
    url = _any_text(value.secret if isinstance(value, PingUrl) else value, key, key, _LONGEST_URL)
    return PingUrl.of(_host_of(url, key, ("smtps", "smtp")), url)


def _host_of(url: str, key: str, schemes: tuple[str, str] = ("https", "http")) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise EntryFault(f"{key} is not a URL", key) from error
    if parts.scheme not in schemes:
        raise EntryFault(f"{key} must begin with {schemes[0]}:// or {schemes[1]}://", key)
    if not host:
        raise EntryFault(f"{key} names no host", key)
    if schemes[1] == "http" and (parts.username is not None or parts.password is not None):
        raise EntryFault(f"{key} must not hold a user name or password", key)
    if parts.fragment:
        raise EntryFault(f"{key} must not hold a # part, which no server would see", key)
    shown_host = f"[{host}]" if ":" in host else host
    return shown_host if port is None else f"{shown_host}:{port}"


def store(value: object, key: str) -> str | Database:
    """The path of a file, or the address of a database that several machines share."""
    text = value.secret if isinstance(value, Database) else path_text(value, key)
    try:
        if kind_of(text) is not StoreKind.DATABASE:
            return text
    except UnknownSchemeError as error:
        raise EntryFault(
            f"{key} must be the path of a SQLite file or begin with postgresql://", key
        ) from error
    except PlaceError as error:
        raise EntryFault(f"{key} cannot be used: {error.reason}", key) from error
    try:
        from duly.cluster.address import address_of  # noqa: PLC0415 (not every user has psycopg)

        return Database.of(address_of(text).name, text)
    except ImportError as error:
        raise EntryFault(f"{key} needs psycopg: pip install 'duly[postgres]'", key) from error
    except StoreError as error:
        raise EntryFault(f"{key} {error.details['reason']}", key) from error


def listen(value: object, key: str) -> str:
    """Where to listen, in its one form."""
    return str(address(host_text(value, key, key), key))


def address(text: str, key: str = "listen") -> ListenAddress:
    """The address that a text names. Raises EntryFault."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path:
            raise EntryFault(f"{key} names no path; write unix:/path/of/socket", key)
        if len(path.encode()) > _LONGEST_UNIX_PATH:
            most = f"a unix socket may have {_LONGEST_UNIX_PATH}"
            raise EntryFault(f"{key} has a path of {len(path.encode())} bytes; {most}", key)
        return ListenAddress(path=path)
    host, colon, digits = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host):
        form = "a host and a port (127.0.0.1:8787, [::1]:8787) or unix:/path"
        raise EntryFault(f"{key} must be {form}, not {quoted(text)}", key)
    if not digits.isdecimal() or not digits.isascii() or len(digits) > 5 or int(digits) > 65_535:
        raise EntryFault(f"{key} must end in a port from 0 to 65535, not {quoted(digits)}", key)
    return ListenAddress(host.strip("[]"), int(digits))


def hosts(value: object, key: str) -> tuple[str, ...]:
    """Names under which a server answers, without ports, each once."""
    found: dict[str, None] = {}
    for item in _items(value, key, "host names", _MOST_HOSTS):
        if not isinstance(item, str) or not _HOST.fullmatch(item):
            reason = "write names such as duly.example.org, without a port"
            raise EntryFault(
                f"{key} must be a list of host names, and {value_text(item)} is none; {reason}", key
            )
        found[plain(item).lower()] = None
    return tuple(found)


def networks(value: object, key: str) -> tuple[str, ...]:
    """Addresses and networks, such as 10.0.0.7 and 10.0.0.0/8, each once."""
    found: dict[str, None] = {}
    for item in _items(value, key, "addresses", _MOST_HOSTS):
        try:
            found[str(ip_network(item if isinstance(item, str) else ""))] = None
        except ValueError:
            reason = "write addresses or networks such as 10.0.0.7 or 10.0.0.0/8"
            raise EntryFault(
                f"{key} must be a list of addresses, and {value_text(item)} is none; {reason}", key
            ) from None
    return tuple(found)


# --- words of a shell ---
#
# The rules and results are those of `shlex.split`, which takes quadratic time: 15 s for a word of 1 MiB.


_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]++)"""
    r"""|(?P<bare>[^ \t\r\n'"\\]++)"""
    r"""|\\(?P<escaped>.)"""
    r"""|'(?P<literal>[^']*+)'"""
    r"""|"(?P<quoted>[^"\\]*+(?:\\.[^"\\]*+)*+)\""""
    r"""|(?P<unclosed>.)""",
    re.DOTALL,
)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\])')


class UnclosedError(Exception):
    """The text ends inside a quoted part, or after a backslash."""

    def __init__(self, opened_by: str) -> None:
        super().__init__("a backslash at its end" if opened_by == "\\" else "a quote that is not closed")


def shell_words(text: str) -> list[str]:
    """The words of a text. Raises UnclosedError."""
    words: list[str] = []
    pieces: list[str] = []
    for found in _PIECE.finditer(text):
        kind, piece = str(found.lastgroup), found[found.lastgroup or 0]
        if kind == "unclosed":
            raise UnclosedError(piece)
        if kind != "blank":
            pieces.append(_ESCAPED_IN_QUOTES.sub(r"\1", piece) if kind == "quoted" else piece)
        elif pieces:
            words.append("".join(pieces))
            pieces = []
    return [*words, "".join(pieces)] if pieces else words


_EXPANSION = re.compile(r"\$(?:[A-Za-z_0-9@*#?$!-]|\{[^}]*\}?|\([^)]*\)?)\w*|`[^`]*`?")
_OPERATOR = re.compile(r"&&|\|\||[0-9]?>>?(?:&[0-9])?|[|&;<()]")
_GLOB = re.compile(r"[*?]|\[[^\[\]]+\]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def shell_syntax(text: str) -> str | None:
    """The first part of a text that means something to a shell only, beyond words and quotes.

    The text is one that `shell_words` can split. What is quoted or escaped is meant as it stands; only
    variables and backquotes are expanded in double quotes, too. A `?` in a URL is no pattern.
    """
    is_begin, is_first = True, True
    for found in _PIECE.finditer(text):
        kind, piece = str(found.lastgroup), found[found.lastgroup or 0]
        if kind == "blank":
            is_begin, is_first = True, is_first and found.start() == 0
            continue
        looks = [_EXPANSION] if kind in {"bare", "quoted"} else []
        if kind == "bare":
            looks += [_OPERATOR] if "://" in piece else [_OPERATOR, _GLOB]
            if is_begin and piece.startswith(("~", "#")):
                return piece
            if is_begin and is_first and (assigned := _ASSIGNMENT.match(piece)):
                return assigned[0]
        else:
            piece = _ESCAPED.sub("", piece)
        if hits := [hit for look in looks if (hit := look.search(piece))]:
            return min(hits, key=re.Match.start)[0]
        is_begin = False
    return None


_ESCAPED = re.compile(r"\\.", re.DOTALL)
