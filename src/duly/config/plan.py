"""What a new configuration changes against an old one: added, changed and how, removed, kept. Pure.

An entry that is invalid in the new file is not removed by that: somebody who mistyped a key did not ask to
lose the service. It is `kept` as it was, and so is everything that an entry without a readable id may have
been.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from duly.config.schema import Config, Invalid, Service, Timer

PlanTable = Literal["service", "timer"]


@dataclass(frozen=True, slots=True)
class Defined:
    """Services and timers that come from no file, such as those that a daemon runs."""

    services: Sequence[Service] = ()
    timers: Sequence[Timer] = ()


@dataclass(frozen=True, slots=True)
class Named:
    kind: PlanTable
    id: str


@dataclass(frozen=True, slots=True)
class KeyChange:
    key: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Changed:
    kind: PlanTable
    id: str
    keys: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A service or timer that the new file does not validly define, but that is not removed."""

    kind: PlanTable
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """The difference, services before timers, in the order of declaration."""

    added: tuple[Named, ...] = ()
    changed: tuple[Changed, ...] = ()
    removed: tuple[Named, ...] = ()
    kept: tuple[Kept, ...] = ()
    unchanged: tuple[Named, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed or self.removed)


def changes(before: Config | Defined, after: Config | Defined, invalid: Sequence[Invalid] = ()) -> ConfigPlan:
    """What *after* adds to *before*, changes and removes; *invalid* is what else its file holds."""
    added: list[Named] = []
    changed: list[Changed] = []
    removed: list[Named] = []
    kept: list[Kept] = []
    unchanged: list[Named] = []
    parts: tuple[tuple[PlanTable, Sequence[Service | Timer], Sequence[Service | Timer]], ...] = (
        ("service", before.services, after.services),
        ("timer", before.timers, after.timers),
    )
    for kind, old_entries, new_entries in parts:
        old, new = ({each.id: each for each in entries} for entries in (old_entries, new_entries))
        for name, entry in new.items():
            if name not in old:
                added.append(Named(kind, name))
            elif keys := tuple(_key_changes(old[name], entry)):
                changed.append(Changed(kind, name, keys))
            else:
                unchanged.append(Named(kind, name))
        for name in old:
            if name in new:
                continue
            if (reason := _reason_to_keep(kind, name, invalid)) is None:
                removed.append(Named(kind, name))
            else:
                kept.append(Kept(kind, name, reason))
    return ConfigPlan(tuple(added), tuple(changed), tuple(removed), tuple(kept), tuple(unchanged))


def _key_changes(before: Service | Timer, after: Service | Timer) -> Iterator[KeyChange]:
    for each in fields(before):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if old != new:
            yield KeyChange(each.name, old, new)


def _reason_to_keep(kind: str, name: str, invalid: Sequence[Invalid]) -> str | None:
    of_kind = [each for each in invalid if each.is_of(kind)]
    own = next((each.reason for each in of_kind if each.id == name), None)
    if own is not None:
        return f"its new definition is invalid: {own}"
    if any(each.id is None for each in of_kind):
        return f"the file holds an invalid {kind} without a readable id, which may be this one"
    return None
