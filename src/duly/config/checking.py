"""Entries as they were written become services, timers and settings, or reasons why not.

One clear reason for each bad entry, and no bad entry harms another. The order in which a timer is looked at
is part of the contract (spec/timers.md 2.5): the first fault is the reason. The others are found as well, for
`duly check`. What entries say about each other (a target, a requirement) is checked after that.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from duly.config import values
from duly.config.calendars import checked_calendars, checked_cron
from duly.config.excluding import dates
from duly.config.lines import Written
from duly.config.schema import (
    SHORTEST_LEASE_SEC,
    Calendar,
    EntryFault,
    Invalid,
    Notify,
    NotifyOn,
    Service,
    Timer,
    Warned,
)
from duly.formatting import did_you_mean, quoted

ConfigEntry = TypeVar("ConfigEntry", Service, Timer, Notify)
AnyFinding = TypeVar("AnyFinding", Invalid, Warned)
Checker = Callable[[object, str], object]
"""Returns the value of a key in its one form. Raises EntryFault."""

SERVICE_KEYS = tuple(each.name for each in fields(Service))
TIMER_KEYS = tuple(each.name for each in fields(Timer))
NOTIFY_KEYS = tuple(each.name for each in fields(Notify))
CHANNELS = ("webhook", "email", "command")
TRIGGERS = ("cron", "every", "daily", "at", "on_startup", "on_calendar", "on_unit_active_sec")
_MOST_KEPT = 1_000_000_000
_MOST_OUTPUT_KIB = 1024 * 1024

SERVICE_ALIASES = {
    **dict.fromkeys(("cmd", "exec", "exec_start", "execstart", "run", "argv", "args", "program"), "command"),
    **dict.fromkeys(("name",), "id"),
    **dict.fromkeys(("environment", "environ"), "env"),
    **dict.fromkeys(("environment_file", "environmentfile", "envfile", "dotenv"), "env_file"),
    **dict.fromkeys(("run_as", "uid"), "user"),
    **dict.fromkeys(("memory", "mem_limit", "memorymax"), "memory_max"),
    **dict.fromkeys(("limitnofile", "open_files"), "nofile"),
    **dict.fromkeys(("directory", "dir", "workdir", "working_directory", "workingdirectory"), "cwd"),
    **dict.fromkeys(("depends_on", "depends", "needs", "wants"), "requires"),
    **dict.fromkeys(("autostart",), "at_startup"),
    **dict.fromkeys(("autorestart",), "restart"),
    **dict.fromkeys(("ping", "healthcheck", "healthcheck_url", "on_success_url"), "ping_url"),
}
TIMER_ALIASES = {
    **dict.fromkeys(("name",), "id"),
    **dict.fromkeys(("service", "unit", "job"), "target"),
    **dict.fromkeys(("calendar", "when", "oncalendar"), "on_calendar"),
    **dict.fromkeys(("schedule", "crontab"), "cron"),
    **dict.fromkeys(("interval", "interval_sec", "every_sec"), "every"),
    **dict.fromkeys(("onunitactivesec",), "on_unit_active_sec"),
    **dict.fromkeys(("onunitinactivesec", "on_unit_inactive_sec"), "after_end"),
    **dict.fromkeys(("on_boot_sec", "onbootsec", "on_boot"), "on_startup"),
    **dict.fromkeys(("once",), "at"),
    **dict.fromkeys(("spread", "jitter", "randomizeddelaysec", "randomized_delay_sec"), "random_delay"),
    **dict.fromkeys(("holidays", "except", "skip"), "exclude"),
    **dict.fromkeys(("tz", "time_zone"), "timezone"),
    **dict.fromkeys(("retries", "retry"), "retry_intervals"),
    **dict.fromkeys(("catch_up", "catchup"), "catch_up_window"),
}
_NOTIFY_ALIASES = {"url": "webhook", "mail": "email", "to": "email", "server": "smtp", "from": "sender"}
_DASHBOARD_ALIASES = {
    **dict.fromkeys(("address", "bind", "host", "port"), "listen"),
    **dict.fromkeys(("token", "operator_token", "operator_token_file"), "token_file"),
    **dict.fromkeys(("viewer_token",), "viewer_token_file"),
    **dict.fromkeys(("hosts", "host_names"), "allowed_hosts"),
    **dict.fromkeys(("proxies", "trusted_proxy"), "trusted_proxies"),
}
_SETTING_ALIASES = {"tz": "timezone", "time_zone": "timezone", "database": "store", "db": "store"}


@dataclass(frozen=True, slots=True)
class Checked(Generic[ConfigEntry]):
    """One entry after it was looked at by itself: an `entry`, or what is wrong with it."""

    written: Written
    index: int
    """Its place among those of its kind, with the parts of jobs last."""
    id: str | None
    """As far as it can be read; a refused duplicate has it too."""
    draft: ConfigEntry | None = None
    """What could be read of it, with defaults for the rest; None if it is no entry at all."""
    faults: tuple[EntryFault, ...] = ()
    """In the order of the contract: the first one is the reason why it is invalid."""
    holds_id: bool = False
    surprises: tuple[str, ...] = ()

    @property
    def entry(self) -> ConfigEntry | None:
        return None if self.faults else self.draft

    def with_faults(self, more: Iterable[EntryFault]) -> "Checked[ConfigEntry]":
        return replace(self, faults=(*self.faults, *more))

    def found(self, kind: type[AnyFinding], reason: str, key: str | None) -> AnyFinding:
        """Something about the entry, in words, and which key of it is meant."""
        written, place = self.written, self.written.place
        return kind(written.table, self.id, written.index, reason, place.line_of(key), place.file)


def checked_services(entries: Sequence[Written]) -> list[Checked[Service]]:
    return _checked(entries, Service, SERVICE_ALIASES, _service)


def checked_timers(entries: Sequence[Written], folder: Path) -> list[Checked[Timer]]:
    """The timers; what they name is meant as seen from *folder*."""
    return _checked(entries, Timer, TIMER_ALIASES, partial(_timer, folder=folder))


def checked_notify(entries: Sequence[Written]) -> list[Checked[Notify]]:
    return _checked(entries, Notify, _NOTIFY_ALIASES, _notify)


def _checked(
    entries: Sequence[Written],
    kind: type[ConfigEntry],
    aliases: Mapping[str, str],
    check: Callable[["_Look"], ConfigEntry],
) -> list[Checked[ConfigEntry]]:
    held: set[str] = set()
    found: list[Checked[ConfigEntry]] = []
    keys = written_names(tuple(each.name for each in fields(kind)))
    for index, written in enumerate(entries):
        # The first definition holds its id even when it is invalid, so the id is read ahead of its turn.
        name = id_in(written.value)
        is_first = name is not None and name not in held
        look, draft = _Look(), None
        with look.caught():
            look.given = _as_mapping(written.value, kind)
            look.faults += values.unknown_keys(look.given, keys, aliases)
            with look.caught():
                look.found["id"] = _own_id(look.given, held, kind.__name__.lower())
            draft = check(look)
        faults, surprises = tuple(look.faults), tuple(look.surprises)
        found.append(Checked(written, index, name, draft, faults, is_first, surprises))
        if name is not None:
            held.add(name)
    return found


def _own_id(given: Mapping[Any, Any], held: Collection[str], kind: str) -> str:
    if "id" not in given:
        raise EntryFault("has no id")
    name = values.identifier(given["id"], "id")
    if name in held:
        raise EntryFault(f"the id {quoted(name)} is taken by an earlier {kind}", "id")
    return name


class _Look:
    """An entry while it is looked at: what could be read of it, and what is wrong, in that order."""

    def __init__(self) -> None:
        self.given: Mapping[Any, Any] = {}
        self.found: dict[str, Any] = {"id": ""}
        self.faults: list[EntryFault] = []
        self.surprises: Sequence[str] = ()

    @contextmanager
    def caught(self, what: str = "") -> Iterator[None]:
        try:
            yield
        except EntryFault as fault:
            self.faults += [fault, *fault.others]
        except Exception as error:  # objects of a Python file can fail in ways of their own
            self.faults.append(EntryFault(f"{what}cannot be read: {type(error).__name__}"))

    def read(self, checkers: Mapping[str, Checker]) -> dict[str, Any]:
        """The values of these keys that are right; they are noted as found, too."""
        right: dict[str, Any] = {}
        for key, check in checkers.items():
            names = [name for name in written_names((key,)) if name in self.given]
            if not names:
                continue
            with self.caught(f"{names[0]} "):
                if len(names) > 1:
                    raise EntryFault(f"{names[1]} and {names[0]} are the same; give one of them", names[0])
                right[key] = check(self.given[names[0]], names[0])
        self.found |= right
        return right


_SEC = "_sec"


@lru_cache(maxsize=256)
def written_names(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Everything that the keys may be called: those of a length of time also without their unit."""
    return tuple(name for key in keys for name in dict.fromkeys((key, key.removesuffix(_SEC))))


def id_in(written: object, key: str = "id") -> str | None:
    """The id of an entry, or the one in another key of it, if it is one, whatever else is wrong."""
    try:
        value = written.get(key) if isinstance(written, Mapping) else getattr(written, key, None)
        return values.identifier(value, key)
    except Exception:  # the check proper says what is wrong
        return None


def _as_mapping(written: object, kind: type[ConfigEntry]) -> Mapping[Any, Any]:
    """A mapping of what was given; of an instance, all that is not the default of its class."""
    if isinstance(written, kind):
        held = {each.name: (getattr(written, each.name), each.default) for each in fields(kind)}
        return {name: value for name, (value, default) in held.items() if value is not default}
    if isinstance(written, EntryFault):  # what stood here could not even be read
        raise written
    if isinstance(written, Service | Timer | Notify):  # another one
        raise EntryFault(f"is not a {kind.__name__} but a {type(written).__name__}; it is in the wrong list")
    return values.mapping(written, "a table (a mapping of keys to values)")


# --- services ---


def _service(look: _Look) -> Service:
    given, found = look.given, look.found
    found["command"] = ()
    with look.caught():
        if "command" not in given:
            raise EntryFault("has no command")
        found["shell"] = values.boolean(given.get("shell", False), "shell")
        command = values.shell_argv if found["shell"] else values.argv
        found["command"] = command(given["command"], "command")
    look.read(SERVICE_VALUES)
    if "type" in found or "type" not in given:
        written = {*given, *(f"{key}{_SEC}" for key in given)}
        look.faults += _unfit_for_its_type(written, found.get("type", "simple"))
    for key in ("after", "requires"):
        if found["id"] in found.get(key, ()):
            look.faults.append(EntryFault(f"{key} names the service itself", key))
    return Service(**found)


def _unfit_for_its_type(given: Collection[Any], kind: str) -> Iterator[EntryFault]:
    if kind == "oneshot" and "restart" in given:
        reason = "restart is for simple services; a oneshot is run again by a timer, with its retries"
        yield EntryFault(reason, "restart")
    if kind == "simple" and "lock" in given:
        yield EntryFault("lock is for oneshots; a simple service would hold it for ever", "lock")
    if kind == "simple" and "timeout_sec" in given:
        reason = 'timeout_sec is for oneshots; a simple service runs until it is stopped (type = "oneshot"?)'
        yield EntryFault(reason, "timeout_sec")


def _restart(value: object, key: str) -> str:
    if isinstance(value, bool):
        return "always" if value else "no"
    return values.choice(value, key, ("always", "on-failure", "no"))


SERVICE_VALUES: Mapping[str, Checker] = {
    "type": partial(values.choice, allowed=("oneshot", "simple")),
    "stage": partial(values.whole_number, lowest=1, highest=4),
    "after": values.names,
    "requires": values.names,
    "env": values.environment,
    "env_file": values.path_text,
    "cwd": values.path_text,
    "user": values.account,
    "group": values.account,
    "umask": values.umask,
    "nice": partial(values.whole_number, lowest=-20, highest=19),
    "memory_max": values.size,
    "nofile": partial(values.whole_number, lowest=4, highest=_MOST_KEPT),
    "lock": values.identifier,
    "timeout_sec": values.seconds,
    "restart": _restart,
    "enabled": values.boolean,
    "at_startup": values.boolean,
    "ping_url": values.ping_url,
    "description": values.text,
}


# --- timers ---


def _timer(look: _Look, folder: Path) -> Timer:
    given, found = look.given, look.found
    found["target"] = ""
    with look.caught():
        if "target" not in given:
            raise EntryFault("has no target", "target")
        found["target"] = values.identifier(given["target"], "target")
    if not any(name in given for name in written_names((*TRIGGERS, "on_startup_sec", "on_unit_active_sec"))):
        look.faults.append(EntryFault(f"has no trigger; give at least one of {', '.join(TRIGGERS)}"))
    look.read(_TIMER_SECONDS)
    with look.caught():
        if "on_calendar" in given:
            found["on_calendar"], look.surprises = checked_calendars(given["on_calendar"])
    calendars = found.get("on_calendar", ())
    said = look.read({"cron": checked_cron, "daily": _daily})
    found["on_calendar"] = (*calendars, *said.get("cron", ()), *said.get("daily", ()))
    found |= dict.fromkeys(said)  # as calendars from here on
    look.read({**_TIMER_OTHERS, "exclude": partial(dates, folder=folder)})
    with look.caught():
        if found.get("after_end"):
            _count_from_ends(found)
    return Timer(**found)


def _daily(value: object, key: str) -> tuple[Calendar, ...]:
    hour, minute = values.clock(value, key)
    return (Calendar((minute,), (hour,)),)


def _count_from_ends(found: dict[str, Any]) -> None:
    """`every` with `after_end` is the interval that there is, and begins without a run, too."""
    if "every" in found and "on_unit_active_sec" in found:
        raise EntryFault("every with after_end is on_unit_active_sec; give one of them", "after_end")
    if "every" in found:
        found["on_unit_active_sec"] = found.pop("every")
    if "on_unit_active_sec" not in found:
        raise EntryFault('after_end says what every counts from; add every = "..."', "after_end")


_TIMER_SECONDS: Mapping[str, Checker] = {
    "every": values.every,
    "on_startup_sec": values.seconds,
    "on_unit_active_sec": values.seconds,
    "retry_intervals_sec": values.intervals,
    "catch_up_window_sec": partial(values.seconds, may_be_zero=True),
    "random_delay_sec": partial(values.seconds, may_be_zero=True),
}
_TIMER_OTHERS: Mapping[str, Checker] = {
    "at": values.moment,
    "after_end": values.boolean,
    "dst": partial(values.choice, allowed=("once", "both")),
    "timezone": values.zone,
    "enabled": values.boolean,
    "persistent": values.boolean,
    "lock": values.identifier,
    "overlap": partial(values.choice, allowed=("skip", "queue", "replace")),
    "description": values.text,
}


# --- notify ---


def _notify(look: _Look) -> Notify:
    channels = [channel for channel in CHANNELS if channel in look.given]
    if len(channels) != 1:
        look.faults.append(EntryFault(f"needs one of {', '.join(CHANNELS)}", (*channels, None)[0]))
    for key, channel in (("format", "webhook"), ("smtp", "email"), ("sender", "email")):
        if key in look.given and channel not in look.given:
            look.faults.append(EntryFault(f"{key} is for {channel}", key))
    look.read(NOTIFY_VALUES)
    return Notify(**look.found)


def _several(value: object, key: str, check: Checker = values.text) -> tuple[Any, ...]:
    """A list of texts, or one text."""
    found = values.names([value] if isinstance(value, str) else value, key)
    if not found:
        raise EntryFault(f"{key} is empty", key)
    return tuple(check(each, key) for each in found)


def _address(value: object, key: str) -> str:
    text = values.text(value, key)
    if not re.fullmatch(r"[!-?A-~]+@[!-?A-~]+", text):
        raise EntryFault(f"{key} must be an address such as ops@example.org, not {quoted(text)}", key)
    return text


NOTIFY_VALUES: Mapping[str, Checker] = {
    "webhook": values.ping_url,
    "format": partial(values.choice, allowed=("json", "slack", "ntfy")),
    "email": partial(_several, check=_address),
    "smtp": values.smtp_url,
    "sender": _address,
    "command": values.argv,
    "jobs": _several,
    "on": partial(_several, check=partial(values.choice, allowed=get_args(NotifyOn))),
    "failures": partial(values.whole_number, lowest=1, highest=1_000),
    "silence": values.seconds,
}


# --- settings ---


def checked_settings(written: object) -> tuple[dict[str, Any], list[EntryFault]]:
    """The settings in `[supervisor]` that can be used, and everything that is wrong with the others."""
    return each_checked(written, _SETTING_ALIASES, SETTING_VALUES)


def checked_dashboard(written: object) -> tuple[dict[str, Any], list[EntryFault]]:
    """The same for `[dashboard]`."""
    return each_checked(written, _DASHBOARD_ALIASES, DASHBOARD_VALUES, "dashboard: ")


def each_checked(
    written: object, aliases: Mapping[str, str], checkers: Mapping[str, Checker], where: str = ""
) -> tuple[dict[str, Any], list[EntryFault]]:
    """The keys of a table that can be used, and everything that is wrong with the others."""
    look, found = _Look(), dict[str, Any]()
    with look.caught():
        look.given = values.mapping(written, "a table (a mapping of keys to values)")
        look.faults += values.unknown_keys(look.given, written_names(tuple(checkers)), aliases)
        found = look.read(checkers)
    return found, [EntryFault(f"{where}{fault.reason}", fault.key) for fault in look.faults]


def _lease(value: object, key: str) -> float:
    lease_sec = values.seconds(value, key)
    if lease_sec < SHORTEST_LEASE_SEC:
        raise EntryFault(f"{key} must be at least {SHORTEST_LEASE_SEC:g} s, not {lease_sec:g}", key)
    return lease_sec


SETTING_VALUES: Mapping[str, Checker] = {
    "enabled": values.boolean,
    "timers": values.boolean,
    "store": values.store,
    "lease_sec": _lease,
    "socket": values.path_text,
    "timezone": values.zone,
    "shutdown_timeout_sec": values.seconds,
    "kill_grace_sec": values.seconds,
    "include": values.patterns,
    "watch": values.boolean,
    "history_days": values.days,
    "history_runs": partial(values.whole_number, lowest=1, highest=_MOST_KEPT),
    "output_kib": partial(values.whole_number, lowest=1, highest=_MOST_OUTPUT_KIB),
    "output_mib": partial(values.whole_number, lowest=1, highest=_MOST_OUTPUT_KIB),
}
SETTING_KEYS = frozenset(SETTING_VALUES)
DASHBOARD_VALUES: Mapping[str, Checker] = {
    "enabled": values.boolean,
    "listen": values.listen,
    "token_file": values.path_text,
    "viewer_token_file": values.path_text,
    "allowed_hosts": values.hosts,
    "trusted_proxies": values.networks,
}


TIMER_VALUES: Mapping[str, Checker] = {**_TIMER_SECONDS, **_TIMER_OTHERS}
DEFAULT_VALUES: Mapping[str, Checker] = {
    key: check
    for key, check in {**SERVICE_VALUES, **TIMER_VALUES}.items()
    if key not in {"type", "restart", "enabled", "description", *TRIGGERS, "on_startup_sec", "after_end"}
}
"""What `[defaults]` can say for all jobs."""


def ids_held(checked: Iterable[Checked[ConfigEntry]]) -> dict[str, Checked[ConfigEntry]]:
    """The entry that holds each id, valid or not."""
    return {each.id: each for each in checked if each.holds_id and each.id is not None}


# --- what entries say about each other ---
#
# A service is invalid if what it requires is unknown, starts later, is invalid, or waits for it in turn. A
# timer without a target that it could run is invalid. `after` only orders, so an unknown id there is only
# warned of. All of this is linear in the size of the file.


_LONGEST_SHOWN_CYCLE = 20
Graph = Mapping[str, Sequence[str]]


def related_services(checked: Sequence[Checked[Service]]) -> list[Checked[Service]]:
    """The services again, those that can never start now with a fault."""
    held = ids_held(checked)
    usable = {name: each.entry for name, each in held.items() if each.entry is not None}
    wrong = {
        each.index: tuple(_requirement_faults(each.draft, held, usable))
        for each in checked
        if each.draft is not None
    }
    faults = {name: wrong[held[name].index][0] for name in usable if wrong[held[name].index]}
    for name, reason in _cycles(usable):
        faults.setdefault(name, EntryFault(reason, "requires" if usable[name].requires else "after"))
    _spread(faults, usable, {name for name, each in held.items() if each.entry is None})
    for name, fault in faults.items():  # what comes of others counts only where nothing else is wrong
        wrong[held[name].index] = wrong[held[name].index] or (fault,)
    return [each.with_faults(wrong.get(each.index, ())) for each in checked]


def _requirement_faults(
    service: Service, held: Mapping[str, Checked[Service]], usable: Mapping[str, Service]
) -> Iterator[EntryFault]:
    for name in service.requires:
        required = usable.get(name)
        if name not in held:
            reason = f"requires {quoted(name)}, which is no service{did_you_mean(name, held)}"
            yield EntryFault(reason, "requires")
        elif required is not None and required.stage > service.stage:
            stages = f"in stage {required.stage}, and this one in stage {service.stage}"
            reason = f"requires {quoted(name)}, which starts later: {stages}"
            yield EntryFault(reason, "requires")


def _spread(faults: dict[str, EntryFault], usable: Mapping[str, Service], unusable: set[str]) -> None:
    """A service that requires an invalid one is invalid too."""
    dependents: dict[str, list[str]] = {}
    for service in usable.values():
        for name in service.requires:
            dependents.setdefault(name, []).append(service.id)
    queue = deque([*unusable, *faults])
    while queue:
        bad = queue.popleft()
        for name in dependents.get(bad, ()):
            if name not in faults:
                faults[name] = EntryFault(f"requires {quoted(bad)}, which is invalid", "requires")
                queue.append(name)


# --- cycles ---


def _cycles(services: Mapping[str, Service]) -> Iterator[tuple[str, str]]:
    """Each service that waits for itself, and how."""
    graph = {
        name: [other for other in dict.fromkeys((*service.requires, *service.after)) if other in services]
        for name, service in services.items()
    }
    for members in _knots(graph):
        for name in members:
            if len(members) > _LONGEST_SHOWN_CYCLE:
                yield name, f"is one of {len(members)} services that wait for each other in a cycle"
            else:
                yield name, f"waits for itself: {' -> '.join(map(quoted, _way_back(name, graph, members)))}"


def _knots(graph: Graph) -> Iterator[set[str]]:
    """The sets of two and more nodes that can all reach each other (Tarjan's way, without recursion)."""
    found: dict[str, int] = {}
    """The number of each node, in the order in which the walk finds them."""
    lowest: dict[str, int] = {}
    """Of each node whose set is not complete: the lowest number that it is known to reach."""
    waiting: list[str] = []
    knots: list[set[str]] = []
    walk: list[tuple[str, Iterator[str]]] = []

    def enter(name: str) -> None:
        found[name] = lowest[name] = len(found)
        waiting.append(name)
        walk.append((name, iter(graph[name])))

    for root in graph:
        if root not in found:
            enter(root)
        while walk:
            name, others = walk[-1]
            if (other := next(others, None)) is None:
                walk.pop()
                if walk:
                    lowest[walk[-1][0]] = min(lowest[walk[-1][0]], lowest[name])
                if lowest[name] == found[name]:  # nobody before it is reached: its set is complete
                    members: set[str] = set()
                    while name not in members:
                        members.add(member := waiting.pop())
                        del lowest[member]
                    knots += [members] if len(members) > 1 else []
            elif other not in found:
                enter(other)
            elif other in lowest:
                lowest[name] = min(lowest[name], found[other])
    return reversed(knots)


def _way_back(start: str, graph: Graph, members: set[str]) -> list[str]:
    """The shortest way from a node to itself."""
    came_from: dict[str, str] = {}
    queue = deque([start])
    while start not in came_from:
        name = queue.popleft()
        for other in graph[name]:
            if other in members and other not in came_from:
                came_from[other] = name
                queue.append(other)
    way = [start]
    while len(way) == 1 or way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]


# --- targets ---


def related_timers(
    timers: Sequence[Checked[Timer]], services: Sequence[Checked[Service]]
) -> list[Checked[Timer]]:
    """The timers again, those without a target that they could run now with a fault."""
    held = ids_held(services)
    reasons = [
        _target_fault(each.draft.target, held) if each.draft is not None and each.draft.target else None
        for each in timers
    ]
    return [
        _locked(each, held) if reason is None else each.with_faults([EntryFault(reason, "target")])
        for each, reason in zip(timers, reasons, strict=True)
    ]


def _locked(checked: Checked[Timer], held: Mapping[str, Checked[Service]]) -> Checked[Timer]:
    """A timer with the lock of its target, if it gives none; the row of a shared timer stands for it."""
    timer = checked.entry
    if timer is None or (target := held[timer.target].entry) is None or timer.lock == target.lock:
        return checked
    if timer.lock is not None:  # two timers of one target must not have different locks
        reason = f"lock is that of the target; give it to service {quoted(target.id)}"
        return checked.with_faults([EntryFault(reason, "lock")])
    return replace(checked, draft=replace(timer, lock=target.lock))


def _target_fault(target: str, held: Mapping[str, Checked[Service]]) -> str | None:
    if target not in held:
        return f"target {quoted(target)} is no service{did_you_mean(target, held)}"
    service = held[target].entry
    if service is None:
        return f"target {quoted(target)} is an invalid service"
    if service.type != "oneshot":
        return f"target {quoted(target)} is a simple service; a timer can only run a oneshot"
    return None
