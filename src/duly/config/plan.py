"""What a new configuration changes against an old one: added, changed and how, removed, kept. Pure.

An entry that is invalid in the new file is not removed by that: somebody who mistyped a key did not ask to
lose the service. It is `kept` as it was, and so is everything that an entry without a readable id may have
been.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from duly.config.schema import Config, Invalid, Service, Timer

PlanTable = Literal["service", "timer"]


@dataclass(frozen=True, slots=True)
class Defined:
    """Services and timers that come from no file, such as those that a daemon runs."""

    services: Sequence[Service] = ()
    timers: Sequence[Timer] = ()


@dataclass(frozen=True, slots=True)
class KeyChange:
    key: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class PlannedEntry:
    """A service or a timer, and what becomes of it."""

    kind: PlanTable
    id: str
    keys: tuple[KeyChange, ...] = ()
    """What is changed of it."""
    reason: str = ""
    """Why it is kept although the new file does not validly define it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """The difference, services before timers, in the order of declaration."""

    added: tuple[PlannedEntry, ...] = ()
    changed: tuple[PlannedEntry, ...] = ()
    removed: tuple[PlannedEntry, ...] = ()
    kept: tuple[PlannedEntry, ...] = ()
    unchanged: tuple[PlannedEntry, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.changed or self.removed)


def changes(before: Config | Defined, after: Config | Defined, invalid: Sequence[Invalid] = ()) -> ConfigPlan:
    """What *after* adds to *before*, changes and removes; *invalid* is what else its file holds."""
    plan = {part.name: list[PlannedEntry]() for part in fields(ConfigPlan)}
    parts: tuple[tuple[PlanTable, Sequence[Service | Timer], Sequence[Service | Timer]], ...] = (
        ("service", before.services, after.services),
        ("timer", before.timers, after.timers),
    )
    for kind, old_entries, new_entries in parts:
        old, new = ({each.id: each for each in entries} for entries in (old_entries, new_entries))
        for name, entry in new.items():
            keys = tuple(_key_changes(old[name], entry)) if name in old else ()
            part = "added" if name not in old else "changed" if keys else "unchanged"
            plan[part].append(PlannedEntry(kind, name, keys))
        for name in (name for name in old if name not in new):
            reason = _reason_to_keep(kind, name, invalid)
            plan["kept" if reason else "removed"].append(PlannedEntry(kind, name, reason=reason))
    return ConfigPlan(**{part: tuple(entries) for part, entries in plan.items()})


def _key_changes(before: Service | Timer, after: Service | Timer) -> Iterator[KeyChange]:
    for each in fields(before):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if old != new:
            yield KeyChange(each.name, old, new)


def _reason_to_keep(kind: str, name: str, invalid: Sequence[Invalid]) -> str:
    of_kind = [each for each in invalid if each.is_of(kind)]
    own = next((each.reason for each in of_kind if each.id == name), None)
    if own is not None:
        return f"its new definition is invalid: {own}"
    if any(each.id is None for each in of_kind):
        return f"the file holds an invalid {kind} without a readable id, which may be this one"
    return ""


# --- what a reload makes of it ---


_FIXED = ("store", "lease_sec", "socket", "timezone")
"""Settings that only a new start can change."""


def merged_config(before: Config, after: Config, plan: ConfigPlan) -> Config:
    """The configuration to run by, after the file has changed from *before* to *after*."""
    kept = {(each.kind, each.id) for each in plan.kept}
    invalid_notify = {bad.id for bad in after.invalid if bad.kind == "notify"}
    fixed = {name: getattr(before.settings, name) for name in _FIXED}
    return replace(
        after,
        services=(*after.services, *(each for each in before.services if ("service", each.id) in kept)),
        timers=(*after.timers, *(each for each in before.timers if ("timer", each.id) in kept)),
        notify=(*after.notify, *(each for each in before.notify if each.id in invalid_notify)),
        settings=replace(after.settings, **fixed),
        dashboard=before.dashboard,
    )


def settings_that_wait(before: Config, after: Config) -> list[str]:
    """The settings that were changed and take effect only when the daemon is restarted."""
    changed = [name for name in _FIXED if getattr(before.settings, name) != getattr(after.settings, name)]
    return changed if before.dashboard == after.dashboard else [*changed, "dashboard"]
