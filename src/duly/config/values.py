"""The values of keys, one checker for each sort: it returns the value in its one form, or raises EntryFault.

A checker takes anything at all. Subclasses of text and numbers become plain text and numbers, so that nothing
a Python file made up travels on. Whether a value makes sense beside others is not asked here.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from duly.config.errors import EntryFault
from duly.config.shell_words import UnclosedError, shell_words
from duly.config.words import close_zones, did_you_mean, joined, printable, quoted, shown

LONGEST_ID = 128
LONGEST_SEC = 3_155_760_000
"""A hundred years. Longer ones are mistakes, and would not fit into an instant."""
SHORTEST_SEC = 0.000_001
_MOST_DAYS = 36_525
_LONGEST_TEXT = 1000
_MOST_NAMED = 10_000


def mapping(value: object, what: str) -> dict[Any, Any]:
    """A mapping as a dict of its own."""
    if not isinstance(value, Mapping):
        raise EntryFault(f"must be {what}, not {shown(value)}")
    try:
        return dict(value)
    except Exception as error:
        raise EntryFault(f"cannot be read: {type(error).__name__}") from error


def known_keys(entry: Mapping[Any, Any], known: Sequence[str], aliases: Mapping[str, str]) -> None:
    """Refuse the first key that the schema does not have."""
    for key in entry:
        if not isinstance(key, str):
            raise EntryFault(f"unknown key {shown(key)}; keys are text")
        if key not in known:
            raise EntryFault(f"unknown key {quoted(key)}{did_you_mean(key, known, aliases)}", str(key))


def identifier(value: object, key: str) -> str:
    """A name of a service or timer."""
    if not isinstance(value, str):
        raise EntryFault(f"{key} must be text, not {shown(value)}", key)
    name = plain(value)
    if not name:
        raise EntryFault(f"{key} is empty", key)
    if len(name) > LONGEST_ID:
        raise EntryFault(f"{key} is {len(name)} characters long; at most {LONGEST_ID} are allowed", key)
    if not name.isprintable():
        raise EntryFault(f"{key} {quoted(name)} holds a character that cannot be printed", key)
    if name != name.strip():
        raise EntryFault(f"{key} {quoted(name)} begins or ends with a space", key)
    return name


def plain(value: str) -> str:
    """Text of the type str itself, whatever subclass it came as."""
    return str.__str__(value)


def boolean(value: object, key: str) -> bool:
    """True or false, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise EntryFault(f"{key} must be true or false, not {shown(value)}", key)
    return value


def seconds(value: object, key: str, *, may_be_zero: bool = False) -> float:
    """A length of time."""
    number = _number(value, key, "seconds")
    if may_be_zero and number == 0:
        return 0
    if number <= 0:
        least = "0 or a positive" if may_be_zero else "a positive"
        raise EntryFault(f"{key} must be {least} number of seconds, not {shown(number)}", key)
    if number < SHORTEST_SEC:
        raise EntryFault(f"{key} must be at least a millionth of a second, not {shown(number)}", key)
    if number > LONGEST_SEC:
        raise EntryFault(f"{key} must be at most {LONGEST_SEC} (100 years), not {shown(number)}", key)
    return number


def days(value: object, key: str) -> float:
    """A length of time in days."""
    number = _number(value, key, "days")
    if not 0 < number <= _MOST_DAYS:
        raise EntryFault(
            f"{key} must be a positive number of days, at most {_MOST_DAYS}, not {shown(number)}", key
        )
    return number


def _number(value: object, key: str, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EntryFault(f"{key} must be a number of {unit}, not {shown(value)}", key)
    if isinstance(value, int):
        return int.__int__(value)
    number = float.__float__(value)
    if not math.isfinite(number):
        raise EntryFault(f"{key} must be a finite number of {unit}, not {number}", key)
    return number


def whole_number(value: object, key: str, lowest: int, highest: int) -> int:
    """An integer within limits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise EntryFault(f"{key} must be a whole number, not {shown(value)}", key)
    number = int.__int__(value)
    if not lowest <= number <= highest:
        raise EntryFault(f"{key} must be {lowest} to {highest}, not {shown(number)}", key)
    return number


def intervals(value: object, key: str) -> tuple[float, ...]:
    """A list of lengths of time, perhaps empty."""
    if not isinstance(value, list | tuple):
        raise EntryFault(f"{key} must be a list of seconds, not {shown(value)}", key)
    if len(value) > _MOST_NAMED:
        raise EntryFault(f"{key} has {len(value)} elements; at most {_MOST_NAMED} are allowed", key)
    return tuple(_element(item, key, index) for index, item in enumerate(value, start=1))


def _element(value: object, key: str, number: int) -> float:
    try:
        return seconds(value, f"element {number} of {key}")
    except EntryFault as fault:
        raise EntryFault(fault.reason, key) from fault


def choice(value: object, key: str, allowed: Sequence[str]) -> str:
    """One of a few words."""
    words = joined([f'"{word}"' for word in allowed])
    if not isinstance(value, str):
        raise EntryFault(f"{key} must be {words}, not {shown(value)}", key)
    if value not in allowed:
        raise EntryFault(f"{key} must be {words}, not {quoted(value)}", key)
    return plain(value)


def text(value: object, key: str) -> str:
    """Text for people."""
    if not isinstance(value, str):
        raise EntryFault(f"{key} must be text, not {shown(value)}", key)
    if len(value) > _LONGEST_TEXT:
        raise EntryFault(f"{key} is {len(value)} characters long; at most {_LONGEST_TEXT} are allowed", key)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EntryFault(f"{key} holds half a character (a lone surrogate)", key) from error
    return plain(value)


def host_text(value: object, key: str, what: str) -> str:
    """Text that the operating system will be given: it ends at a NUL, so there must be none."""
    if not isinstance(value, str):
        raise EntryFault(f"{what} must be text, not {shown(value)}", key)
    if "\0" in value:
        raise EntryFault(f"{what} holds a NUL character", key)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EntryFault(f"{what} holds half a character (a lone surrogate)", key) from error
    return plain(value)


def path_text(value: object, key: str) -> str:
    """A path, not empty."""
    path = host_text(value, key, key)
    if not path:
        raise EntryFault(f"{key} is empty", key)
    return path


def names(value: object, key: str) -> tuple[str, ...]:
    """A list of ids, each once."""
    if isinstance(value, str):
        raise EntryFault(f"{key} must be a list of ids; write [{quoted(value)}]", key)
    if not isinstance(value, list | tuple):
        raise EntryFault(f"{key} must be a list of ids, not {shown(value)}", key)
    found: dict[str, None] = {}
    for item in value:
        if not isinstance(item, str) or not item:
            raise EntryFault(f"{key} must be a list of ids, and {shown(item)} is none", key)
        found[plain(item)] = None
    return tuple(found)


def argv(value: object, key: str) -> tuple[str, ...]:
    """A command as the program and its arguments."""
    if isinstance(value, str):
        words = _split(host_text(value, key, key), key)
    elif isinstance(value, list | tuple):
        words = [
            host_text(item, key, f"element {number} of {key}") for number, item in enumerate(value, start=1)
        ]
    else:
        raise EntryFault(f"{key} must be a list of texts or one text, not {shown(value)}", key)
    if not words:
        raise EntryFault(f"{key} is empty", key)
    if not words[0].strip():
        raise EntryFault(f"{key} names no program: its first element is empty", key)
    return tuple(words)


def _split(command: str, key: str) -> list[str]:
    try:
        return shell_words(command)
    except UnclosedError as error:
        raise EntryFault(f"{key} has {error}: {quoted(command)}", key) from error


def environment(value: object, key: str) -> dict[str, str]:
    """Variables for a process. They may be secret, and so no message shows a value."""
    if not isinstance(value, Mapping):
        said = "text" if isinstance(value, str) else shown(value)
        raise EntryFault(f"{key} must be a mapping of names to texts, not {said}", key)
    try:
        items = dict(value).items()
    except Exception as error:
        raise EntryFault(f"{key} cannot be read: {type(error).__name__}", key) from error
    found: dict[str, str] = {}
    for name, content in items:
        if not isinstance(name, str) or not name or "=" in name:
            said = shown(name.partition("=")[0]) if isinstance(name, str) else shown(name)
            reason = "names are text, not empty, without ="
            raise EntryFault(f"{key} has a wrong name, {said}; {reason}", key)
        if isinstance(content, bool | int | float):
            raise EntryFault(f"{key}.{printable(name)} must be text; put its value in quotes", key)
        plain_name = host_text(name, key, f"the name {quoted(name)} in {key}")
        found[plain_name] = host_text(content, key, f"{key}.{printable(name)}")
    return found


def zone(value: object, key: str) -> str:
    """The name of a time zone that this host knows."""
    name = text(value, key)
    if (fault := _zone_fault(name)) is not None:
        raise EntryFault(f"{key}: {fault}", key)
    return name


def _zone_fault(name: str) -> str | None:
    """Why there is no such zone."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - most files name no zone

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: "Europe" is a folder
        close = close_zones(name, _known_zones())
        offer = f"; did you mean {joined(close)}?" if close else ""
        return f"there is no time zone {quoted(name)}{offer}"
    return None


@lru_cache(maxsize=1)
def _known_zones() -> frozenset[str]:
    """Every zone of this host. Kept, since finding them walks over hundreds of files."""
    from zoneinfo import available_timezones  # noqa: PLC0415 - as above

    return frozenset(available_timezones())
