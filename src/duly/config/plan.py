"""What a new configuration changes against an old one: added, changed and how, removed, kept.

An entry that is invalid in the new file is not removed by that: whoever mistyped a key did not ask to lose
the service. It is `kept` as it was, and so is everything that an entry without a readable id may have been.
Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

from duly.config.schema import Invalid, Service, Timer


class Definitions(Protocol):
    """What a plan compares; a `Config` is one."""

    @property
    def services(self) -> Sequence[Service]:
        """The services."""

    @property
    def timers(self) -> Sequence[Timer]:
        """The timers."""


@dataclass(frozen=True, slots=True)
class Defined:
    """Services and timers that come from no file, such as those that a daemon runs."""

    services: Sequence[Service] = ()
    timers: Sequence[Timer] = ()


@dataclass(frozen=True, slots=True)
class Named:
    """A service or timer, by name."""

    kind: Literal["service", "timer"]
    id: str


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key that has another value."""

    key: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Changed:
    """A service or timer that is defined differently."""

    kind: Literal["service", "timer"]
    id: str
    keys: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A service or timer that the new file does not validly define, and that is not removed all the same."""

    kind: Literal["service", "timer"]
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference, services before timers, in the order of declaration."""

    added: tuple[Named, ...] = ()
    changed: tuple[Changed, ...] = ()
    removed: tuple[Named, ...] = ()
    kept: tuple[Kept, ...] = ()
    unchanged: tuple[Named, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be different."""
        return not (self.added or self.changed or self.removed)

    def only(self, kind: Literal["service", "timer"]) -> "Plan":
        """The part about services, or about timers."""
        return Plan(
            added=tuple(each for each in self.added if each.kind == kind),
            changed=tuple(each for each in self.changed if each.kind == kind),
            removed=tuple(each for each in self.removed if each.kind == kind),
            kept=tuple(each for each in self.kept if each.kind == kind),
            unchanged=tuple(each for each in self.unchanged if each.kind == kind),
        )


def changes(before: Definitions, after: Definitions, invalid: Sequence[Invalid] = ()) -> Plan:
    """What *after* adds to *before*, changes and removes; *invalid* is what else its file holds."""
    parts = [
        _part("service", _by_id(before.services), _by_id(after.services), invalid),
        _part("timer", _by_id(before.timers), _by_id(after.timers), invalid),
    ]
    return Plan(
        added=tuple(each for part in parts for each in part.added),
        changed=tuple(each for part in parts for each in part.changed),
        removed=tuple(each for part in parts for each in part.removed),
        kept=tuple(each for part in parts for each in part.kept),
        unchanged=tuple(each for part in parts for each in part.unchanged),
    )


Entries = Mapping[str, Service | Timer]


def _by_id(entries: Sequence[Service] | Sequence[Timer]) -> Entries:
    return {each.id: each for each in entries}


def _part(
    kind: Literal["service", "timer"], before: Entries, after: Entries, invalid: Sequence[Invalid]
) -> Plan:
    both = [name for name in after if name in before]
    different = {name: tuple(_key_changes(before[name], after[name])) for name in both}
    gone = [name for name in before if name not in after]
    reasons = {name: _reason_to_keep(kind, name, invalid) for name in gone}
    return Plan(
        added=tuple(Named(kind, name) for name in after if name not in before),
        changed=tuple(Changed(kind, name, keys) for name, keys in different.items() if keys),
        removed=tuple(Named(kind, name) for name in gone if reasons[name] is None),
        kept=tuple(Kept(kind, name, reason) for name in gone if (reason := reasons[name]) is not None),
        unchanged=tuple(Named(kind, name) for name, keys in different.items() if not keys),
    )


def _key_changes(before: Service | Timer, after: Service | Timer) -> Iterator[KeyChange]:
    for each in fields(before):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if old != new:
            yield KeyChange(each.name, old, new)


def _reason_to_keep(kind: str, name: str, invalid: Sequence[Invalid]) -> str | None:
    of_kind = [each for each in invalid if each.kind == kind]
    own = next((each.reason for each in of_kind if each.id == name), None)
    if own is not None:
        return f"its new definition is invalid: {own}"
    if any(each.id is None for each in of_kind):
        return f"the file holds an invalid {kind} without a readable id, which may be this one"
    return None
