"""Entries: tasks that a program adds at run time, each of a kind that the program declares.

    kind    a function with options, as a program declares it; not stored
    entry   a task with a schedule, the name of its kind and arguments for the function; stored

An entry belongs to the code that added it, not to the list of tasks. So a list neither changes nor orphans
it, and options of its kind hold for it from the next start on, without a change of its state. If its kind is
not known, it waits: nothing starts it, and what is due stands.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from duly.core.options import UNKNOWN_KIND, Options
from duly.core.registration import Callback
from duly.core.task import Task
from duly.errors import TaskInvalidValueError


class EntryKind(NamedTuple):
    """What the entries of one kind have in common."""

    name: str
    callback_of: Callable[[str], Callback]
    """What to call for an entry with this text."""
    retry_delay_us: int
    options: Options


EntryKinds = Mapping[str, EntryKind]


class EntryText(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store keeps of an entry beside its schedule and its state."""

    kind: str
    args: dict[str, Any]
    enabled: bool = True


class NewEntry(NamedTuple):
    """An entry as somebody adds it."""

    name: str
    schedule: str
    text: str
    """An EntryText."""


_decode = msgspec.json.Decoder(EntryText).decode


def entry_text(text: str) -> EntryText:
    """The parts of an entry. Raises TaskInvalidValueError."""
    try:
        return _decode(text)
    except msgspec.DecodeError as error:
        reason = f"is no entry: {error}"
        raise TaskInvalidValueError(field="entry", value=text, reason=reason) from error


def callback_of(text: str, kinds: EntryKinds) -> Callback:
    """What to call for an entry whose kind is known."""
    return kinds[entry_text(text).kind].callback_of(text)


def of_kind(task: Task, kinds: EntryKinds) -> Task:
    """An entry with the retry delay and the options that its kind has now. Raises TaskInvalidValueError."""
    assert task.entry is not None
    entry = entry_text(task.entry)
    kind = kinds.get(entry.kind)
    if kind is None:
        return msgspec.structs.replace(task, options=UNKNOWN_KIND)
    options = kind.options if entry.enabled else msgspec.structs.replace(kind.options, enabled=False)
    return msgspec.structs.replace(task, retry_delay_us=kind.retry_delay_us, options=options)
