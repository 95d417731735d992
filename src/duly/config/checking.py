"""Entries as they were written become services, timers and settings, or reasons why not.

One clear reason for each bad entry, and no bad entry harms another (TIMERS.md 2). The order in which a timer
is looked at is part of the contract: whoever corrects one fault after the other meets them in that order.
What entries say about each other (a target, a requirement) is in `relations`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from duly.config import addresses, values
from duly.config.calendars import checked_calendars
from duly.config.errors import EntryFault
from duly.config.schema import SHORTEST_LEASE_SEC, Dashboard, Service, Settings, Timer
from duly.config.words import quoted, shown

Entry = TypeVar("Entry", Service, Timer)

SERVICE_KEYS = tuple(each.name for each in fields(Service))
TIMER_KEYS = tuple(each.name for each in fields(Timer))
SETTING_KEYS = tuple(each.name for each in fields(Settings))
DASHBOARD_KEYS = tuple(each.name for each in fields(Dashboard))
TRIGGERS = ("on_calendar", "on_startup_sec", "on_unit_active_sec")
_MOST_KEPT = 1_000_000_000
_MOST_OUTPUT_KIB = 1024 * 1024

_SERVICE_ALIASES = {
    **dict.fromkeys(("cmd", "exec", "exec_start", "execstart", "run", "argv", "args", "program"), "command"),
    **dict.fromkeys(("name",), "id"),
    **dict.fromkeys(("environment", "environ"), "env"),
    **dict.fromkeys(("directory", "dir", "workdir", "working_directory", "workingdirectory"), "cwd"),
    **dict.fromkeys(("timeout",), "timeout_sec"),
    **dict.fromkeys(("depends_on", "depends", "needs", "wants"), "requires"),
    **dict.fromkeys(("autostart",), "at_startup"),
    **dict.fromkeys(("autorestart",), "restart"),
    **dict.fromkeys(("ping", "healthcheck", "healthcheck_url", "on_success_url"), "ping_url"),
}
_TIMER_ALIASES = {
    **dict.fromkeys(("name",), "id"),
    **dict.fromkeys(("service", "unit", "job"), "target"),
    **dict.fromkeys(("cron", "schedule", "calendar", "at", "when", "oncalendar"), "on_calendar"),
    **dict.fromkeys(("every", "interval", "interval_sec", "onunitactivesec"), "on_unit_active_sec"),
    **dict.fromkeys(("on_boot_sec", "onbootsec", "on_boot"), "on_startup_sec"),
    **dict.fromkeys(("tz", "time_zone"), "timezone"),
    **dict.fromkeys(("retries", "retry"), "retry_intervals_sec"),
    **dict.fromkeys(("catch_up", "catchup"), "catch_up_window_sec"),
}
_DASHBOARD_ALIASES = {
    **dict.fromkeys(("address", "bind", "host", "port"), "listen"),
    **dict.fromkeys(("token", "operator_token", "operator_token_file"), "token_file"),
    **dict.fromkeys(("viewer_token",), "viewer_token_file"),
    **dict.fromkeys(("hosts", "host_names"), "allowed_hosts"),
}
_SETTING_ALIASES = {"tz": "timezone", "time_zone": "timezone", "database": "store", "db": "store"}


@dataclass(frozen=True, slots=True)
class Checked(Generic[Entry]):
    """One entry after it was looked at by itself: an `entry`, or a `fault`."""

    index: int
    id: str | None
    """As far as it can be read; a refused duplicate has it too."""
    entry: Entry | None = None
    fault: EntryFault | None = None
    holds_id: bool = False
    surprises: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedSettings:
    """The settings, with the default in place of each that is wrong."""

    settings: Settings
    faults: tuple[EntryFault, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class CheckedDashboard:
    """The settings of the dashboard, likewise."""

    dashboard: Dashboard
    faults: tuple[EntryFault, ...] = field(default=())
    is_listen_given: bool = False


def checked_services(entries: Sequence[object]) -> list[Checked[Service]]:
    """Each service by itself, in order."""
    return _checked(entries, Service, _service)


def checked_timers(entries: Sequence[object]) -> list[Checked[Timer]]:
    """Each timer by itself, in order."""
    return _checked(entries, Timer, _timer)


def _checked(
    entries: Sequence[object],
    kind: type[Entry],
    check: Callable[[Mapping[Any, Any], Callable[[str], None]], tuple[Entry, tuple[str, ...]]],
) -> list[Checked[Entry]]:
    held: set[str] = set()

    def claim(name: str) -> None:
        if name in held:
            raise EntryFault(f"the id {quoted(name)} is taken by an earlier {kind.__name__.lower()}", "id")

    found: list[Checked[Entry]] = []
    for index, written in enumerate(entries):
        # The first definition holds its id even when it is invalid, so the id is read ahead of its turn.
        name = id_in(written)
        is_first = name is not None and name not in held
        try:
            entry, surprises = check(_as_mapping(written, kind), claim)
            found.append(Checked(index, name, entry, None, is_first, surprises))
        except EntryFault as fault:
            found.append(Checked(index, name, None, fault, is_first))
        except Exception as error:  # objects of a Python file can fail in ways of their own
            unreadable = EntryFault(f"cannot be read: {type(error).__name__}")
            found.append(Checked(index, name, None, unreadable, is_first))
        if name is not None:
            held.add(name)
    return found


def id_in(written: object, key: str = "id") -> str | None:
    """The id of an entry, or the one in another key of it, if it is one, whatever else is wrong."""
    try:
        value = written.get(key) if isinstance(written, Mapping) else getattr(written, key, None)
        return values.identifier(value, key)
    except Exception:  # the check proper says what is wrong
        return None


def _as_mapping(written: object, kind: type[Entry]) -> Mapping[Any, Any]:
    """A mapping of what was given; of an instance, all that is not the default of its class."""
    if isinstance(written, kind):
        held = {each.name: (getattr(written, each.name), each.default) for each in fields(kind)}
        return {name: value for name, (value, default) in held.items() if value is not default}
    if isinstance(written, Service | Timer):  # the other one
        raise EntryFault(f"is not a {kind.__name__} but a {type(written).__name__}; it is in the wrong list")
    return values.mapping(written, "a table (a mapping of keys to values)")


# --- services ---


def _service(given: Mapping[Any, Any], claim: Callable[[str], None]) -> tuple[Service, tuple[str, ...]]:
    values.known_keys(given, SERVICE_KEYS, _SERVICE_ALIASES)
    name = _own_id(given, claim)
    if "command" not in given:
        raise EntryFault("has no command")
    found: dict[str, Any] = {"id": name, "command": values.argv(given["command"], "command")}
    found |= _given(given, _SERVICE_VALUES)
    _fit_for_its_type(given, found.get("type", "simple"))
    for key in ("after", "requires"):
        if name in found.get(key, ()):
            raise EntryFault(f"{key} names the service itself", key)
    return Service(**found), ()


def _own_id(given: Mapping[Any, Any], claim: Callable[[str], None]) -> str:
    if "id" not in given:
        raise EntryFault("has no id")
    name = values.identifier(given["id"], "id")
    claim(name)
    return name


def _given(
    given: Mapping[Any, Any], checkers: Mapping[str, Callable[[object, str], object]]
) -> dict[str, Any]:
    return {key: check(given[key], key) for key, check in checkers.items() if key in given}


def _fit_for_its_type(given: Mapping[Any, Any], kind: str) -> None:
    if kind == "oneshot" and "restart" in given:
        reason = "restart is for simple services; a oneshot is run again by a timer, with its retries"
        raise EntryFault(reason, "restart")
    if kind == "simple" and "timeout_sec" in given:
        reason = 'timeout_sec is for oneshots; a simple service runs until it is stopped (type = "oneshot"?)'
        raise EntryFault(reason, "timeout_sec")


def _type(value: object, key: str) -> str:
    return values.choice(value, key, ("oneshot", "simple"))


def _stage(value: object, key: str) -> int:
    return values.whole_number(value, key, 1, 4)


def _restart(value: object, key: str) -> str:
    if isinstance(value, bool):
        return "always" if value else "no"
    return values.choice(value, key, ("always", "on-failure", "no"))


_SERVICE_VALUES: Mapping[str, Callable[[object, str], object]] = {
    "type": _type,
    "stage": _stage,
    "after": values.names,
    "requires": values.names,
    "env": values.environment,
    "cwd": values.path_text,
    "timeout_sec": values.seconds,
    "restart": _restart,
    "enabled": values.boolean,
    "at_startup": values.boolean,
    "ping_url": addresses.ping_url,
    "description": values.text,
}


# --- timers ---


def _timer(given: Mapping[Any, Any], claim: Callable[[str], None]) -> tuple[Timer, tuple[str, ...]]:
    values.known_keys(given, TIMER_KEYS, _TIMER_ALIASES)
    found: dict[str, Any] = {"id": _own_id(given, claim)}
    if "target" not in given:
        raise EntryFault("has no target")
    found["target"] = values.identifier(given["target"], "target")
    if not any(trigger in given for trigger in TRIGGERS):
        raise EntryFault(f"has no trigger; give at least one of {', '.join(TRIGGERS)}")
    found |= _given(given, _TIMER_SECONDS)
    surprises: tuple[str, ...] = ()
    if "on_calendar" in given:
        checked = checked_calendars(given["on_calendar"])
        found["on_calendar"], surprises = checked.calendars, checked.surprises
    found |= _given(given, _TIMER_VALUES)
    return Timer(**found), surprises


def _window(value: object, key: str) -> float:
    return values.seconds(value, key, may_be_zero=True)


_TIMER_SECONDS: Mapping[str, Callable[[object, str], object]] = {
    "on_startup_sec": values.seconds,
    "on_unit_active_sec": values.seconds,
    "retry_intervals_sec": values.intervals,
    "catch_up_window_sec": _window,
}
_TIMER_VALUES: Mapping[str, Callable[[object, str], object]] = {
    "timezone": values.zone,
    "enabled": values.boolean,
    "persistent": values.boolean,
    "description": values.text,
}


# --- settings ---


def checked_settings(written: object) -> CheckedSettings:
    """The settings that can be used, and everything that is wrong with the others."""
    found, faults = _each_checked(written, SETTING_KEYS, _SETTING_ALIASES, _SETTING_VALUES)
    return CheckedSettings(Settings(**found), faults)


def checked_dashboard(written: object) -> CheckedDashboard:
    """The settings of the dashboard that can be used, and everything that is wrong with the others."""
    found, faults = _each_checked(written, DASHBOARD_KEYS, _DASHBOARD_ALIASES, _DASHBOARD_VALUES)
    named = tuple(EntryFault(f"dashboard: {fault.reason}", fault.key) for fault in faults)
    return CheckedDashboard(Dashboard(**found), named, is_listen_given="listen" in found)


def _each_checked(
    written: object,
    known: Sequence[str],
    aliases: Mapping[str, str],
    checkers: Mapping[str, Callable[[object, str], object]],
) -> tuple[dict[str, Any], tuple[EntryFault, ...]]:
    try:
        given = values.mapping(written, "a table (a mapping of keys to values)")
    except EntryFault as fault:
        return {}, (fault,)
    found: dict[str, Any] = {}
    faults: list[EntryFault] = []
    for key in given:
        try:
            values.known_keys({key: None}, known, aliases)
            found[key] = checkers[key](given[key], key)
        except EntryFault as fault:
            faults.append(fault)
        except Exception as error:  # as for entries
            faults.append(EntryFault(f"{shown(key)} cannot be read: {type(error).__name__}"))
    return found, tuple(faults)


def _count(value: object, key: str) -> int:
    return values.whole_number(value, key, 1, _MOST_KEPT)


def _lease(value: object, key: str) -> float:
    lease_sec = values.seconds(value, key)
    if lease_sec < SHORTEST_LEASE_SEC:
        raise EntryFault(f"{key} must be at least {SHORTEST_LEASE_SEC:g} s, not {lease_sec:g}", key)
    return lease_sec


def _kib(value: object, key: str) -> int:
    return values.whole_number(value, key, 1, _MOST_OUTPUT_KIB)


_SETTING_VALUES: Mapping[str, Callable[[object, str], object]] = {
    "enabled": values.boolean,
    "timers": values.boolean,
    "store": addresses.store,
    "lease_sec": _lease,
    "socket": values.path_text,
    "timezone": values.zone,
    "shutdown_timeout_sec": values.seconds,
    "kill_grace_sec": values.seconds,
    "history_days": values.days,
    "history_runs": _count,
    "output_kib": _kib,
}
_DASHBOARD_VALUES: Mapping[str, Callable[[object, str], object]] = {
    "enabled": values.boolean,
    "listen": addresses.listen,
    "token_file": values.path_text,
    "viewer_token_file": values.path_text,
    "allowed_hosts": addresses.hosts,
}


def ids_held(checked: Iterable[Checked[Entry]]) -> dict[str, Checked[Entry]]:
    """The entry that holds each id, valid or not."""
    return {each.id: each for each in checked if each.holds_id and each.id is not None}
