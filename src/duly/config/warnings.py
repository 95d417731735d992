"""Warnings: entries that are valid and do perhaps not mean what their author meant.

Only what is clear from the file is said; a guess that is wrong once teaches people not to read warnings.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from duly.config.calendars import common, ever_comes, first_time, gaps_of
from duly.config.checking import Checked
from duly.config.schema import (
    Calendar,
    Config,
    Notify,
    Service,
    Settings,
    Timer,
    Warned,
    database_of,
    has_slots,
    starts_at_boot,
)
from duly.formatting import did_you_mean, exact_length, quoted
from duly.places import has_password
from duly.processes.options import option_faults, options_of

# Of calendars, while looking for timers that clash: about a second, however many timers share a target. A
# warning that is not found is better than a check that does not end.
_MOST_COMPARISONS = 500_000


def footguns(
    services: Sequence[Checked[Service]], timers: Sequence[Checked[Timer]], notify: Sequence[Checked[Notify]]
) -> Iterator[Warned]:
    """Everything about entries that is worth a warning, in the order of the file."""
    usable = {each.entry.id: each.entry for each in services if each.entry is not None}
    known_ids = {each.id: None for each in services if each.id is not None}
    valid = [each.entry for each in timers if each.entry is not None]
    targets = frozenset(timer.target for timer in valid)
    for one in services:
        if one.entry is not None:
            for key, reason in _of_service(one.entry, usable, known_ids, targets):
                yield one.found(Warned, reason, key)
    started = frozenset(timer.target for timer in valid if _starts_by_itself(timer))
    clashes = _clashes(valid)
    for each in timers:
        if each.entry is not None:
            target, clash = usable[each.entry.target], next(clashes)
            for key, reason in _of_timer(each, each.entry, target, started, clash):
                yield each.found(Warned, reason, key)
    ids = {**known_ids, **{each.id: None for each in timers if each.id is not None}}
    for notification in notify:
        for pattern in () if notification.entry is None else notification.entry.jobs:
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in ids):
                reason = f"jobs has {quoted(pattern)}, which is no service and no timer"
                yield notification.found(Warned, reason + did_you_mean(pattern, ids), "jobs")


def of_settings(settings: Settings, *, has_timers: bool, is_empty: bool) -> Iterator[tuple[str | None, str]]:
    """The keys of settings that are worth a warning, and why."""
    if is_empty:
        yield None, "the file defines no service and no timer"
    if not settings.enabled:
        yield "enabled", "enabled is false, so nothing in this file is started"
    if has_timers and not settings.timers:
        reason = "timers are defined and switched off; timers = true under [supervisor] switches them on"
        yield "timers", reason
    for key, path in (("store", settings.store), ("socket", settings.socket)):
        if isinstance(path, str) and path.startswith("~"):
            yield key, _tilde(key, path)


def _tilde(key: str, path: str) -> str:
    return f"{key} {quoted(path)} is taken as it is: ~ does not stand for a home directory here"


# --- services ---


def _of_service(
    service: Service, usable: Mapping[str, Service], known_ids: Mapping[str, None], targets: frozenset[str]
) -> Iterator[tuple[str, str]]:
    for name in service.after:
        if name not in known_ids:
            close = did_you_mean(name, known_ids)
            yield "after", f"after {quoted(name)} has no effect: there is no such service{close}"
        elif name in usable and usable[name].stage > service.stage:
            later = f"it starts later, in stage {usable[name].stage}"
            yield "after", f"after {quoted(name)} has no effect: {later}"
    is_booted = starts_at_boot(service, targets)
    for key in () if is_booted else ("after", "requires"):
        if getattr(service, key):
            yield (
                key,
                f"{key} holds up only a start of the daemon: a timer or a person starts this one anyway",
            )
    if service.enabled and is_booted:
        for name in service.requires:
            if (why := _never_up(usable[name], targets)) is not None:
                yield "requires", f"will not start: it requires {quoted(name)}, which {why}"
    if service.cwd is not None and "/~" in service.cwd:
        yield "cwd", _tilde("cwd", service.cwd)


def _never_up(required: Service, targets: frozenset[str]) -> str | None:
    if not required.enabled:
        return "is disabled"
    if not starts_at_boot(required, targets):
        return "does not run at start-up; give that one at_startup = true"
    return None


# --- timers ---


def _of_timer(
    checked: Checked[Timer], timer: Timer, target: Service, started: frozenset[str], clash: str | None
) -> Iterator[tuple[str, str]]:
    for surprise in checked.surprises:
        yield "on_calendar", surprise
    if never := _never_comes(timer):
        yield "on_calendar", never
    if timer.enabled and not target.enabled:
        yield "target", f"its target {quoted(target.id)} is disabled, so each firing is missed"
    if slow := _lasts_too_long(timer, target):
        yield "on_calendar", slow
    if _never_begins(timer, target, started):
        reason = f"counts from the last run of {quoted(target.id)}, and nothing starts that a first time"
        remedy = "add on_startup_sec here, or at_startup = true there"
        yield "on_unit_active_sec", f"on_unit_active_sec {reason}; {remedy}"
    if clash is not None:
        yield "on_calendar", clash
    idle = {} if timer.persistent else {"catch_up_window": "persistent is false"}
    if not has_slots(timer):
        idle |= dict.fromkeys(
            ("random_delay", "exclude"), "only times of a clock or a rate are moved or left out"
        )
    for key, why in idle.items():
        # Where it is written itself: [defaults] hold for all jobs.
        if not {key, f"{key}_sec"}.isdisjoint(checked.written.place.keys):
            yield key, f"{key} has no effect: {why}"


def _never_comes(timer: Timer) -> str | None:
    never = [number for number, each in enumerate(timer.on_calendar, start=1) if not ever_comes(each)]
    if not never:
        return None
    which = "on_calendar" if len(timer.on_calendar) == 1 else f"on_calendar, calendar {never[0]}"
    return f"{which} never fires: none of its months has such a day"


def _lasts_too_long(timer: Timer, target: Service) -> str | None:
    if target.timeout_sec is None or timer.overlap != "skip":
        return None
    gaps: list[float] = [gap.least_s for each in timer.on_calendar if (gap := gaps_of(each)) is not None]
    gaps += [timer.every] if timer.every is not None else []
    if not gaps or target.timeout_sec <= min(gaps):
        return None
    return (
        f"its target {quoted(target.id)} may run for {exact_length(target.timeout_sec)} (timeout_sec), and it"
        f" fires as often as every {exact_length(min(gaps))}: firings meanwhile are missed"
    )


def _starts_by_itself(timer: Timer) -> bool:
    """Whether it starts its target a first time, without a run to count from."""
    is_begun = bool(timer.on_calendar) or timer.after_end
    given = (timer.on_startup_sec, timer.every, timer.at)
    return timer.enabled and (is_begun or any(each is not None for each in given))


def _never_begins(timer: Timer, target: Service, started: frozenset[str]) -> bool:
    if timer.on_unit_active_sec is None or not timer.enabled or starts_at_boot(target, {target.id}):
        return False
    return target.id not in started


def _clashes(timers: Iterable[Timer]) -> Iterator[str | None]:
    """For each timer a warning if an earlier one wants the same target in the same minute."""
    comparisons = iter(range(_MOST_COMPARISONS))
    earlier: dict[tuple[str, str | None], list[tuple[Timer, Calendar]]] = {}
    for timer in timers:
        # Timers that are late on purpose are so by different lengths, as a rule.
        if not timer.enabled or not timer.on_calendar or timer.random_delay_sec or timer.exclude:
            yield None
            continue
        rivals = earlier.setdefault((timer.target, timer.timezone), [])
        yield _clash(timer, rivals, comparisons) if timer.overlap == "skip" else None
        rivals.extend((timer, calendar) for calendar in timer.on_calendar)


def _clash(timer: Timer, rivals: Sequence[tuple[Timer, Calendar]], comparisons: Iterator[int]) -> str | None:
    for other, theirs in rivals:
        for mine in timer.on_calendar:
            if next(comparisons, None) is None:
                return None
            if (both := common(mine, theirs)) is not None:
                minute = f"in the same minute as timer {quoted(other.id)} (at {first_time(both)}, for one)"
                return f"fires {minute}; their target runs once at a time, so one of them is missed"
    return None


# --- secrets that everybody on this host can read ---
#
# A secret is the password in the address of the store, the URL of a ping, and a variable of a service whose
# name says so. A Python file may take them from elsewhere, so there the text must hold the secret.


_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|API_?KEY", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
"""A URL with a password."""


def exposed_secret(config: Config, text: str) -> str:
    """What everybody can read in the file, whose *text* this is, and what to do; empty if nothing."""
    is_literal = config.path.suffix.lower() == ".toml"
    found = next((name for name, secret in _secrets(config) if is_literal or secret in text), None)
    if found is None or not _is_readable_by_all(config.path):
        return ""
    remedy = f"chmod o-r {quoted(str(config.path))}"
    return f"the file holds {found}, and every user of this host can read it; {remedy}"


def _secrets(config: Config) -> Iterator[tuple[str, str]]:
    """The secrets of a file: what to call each, and its text."""
    database = database_of(config)
    if database is not None and has_password(database.secret):
        yield "the password of its store", database.secret
    for notify in config.notify:
        if notify.webhook is not None:
            yield f"the webhook of notify {quoted(notify.id)}", notify.webhook.secret
        if notify.smtp is not None and "@" in notify.smtp.secret:
            yield f"the password in the smtp of notify {quoted(notify.id)}", notify.smtp.secret
    for service in config.services:
        if service.ping_url is not None:
            yield f"the ping_url of service {quoted(service.id)}", service.ping_url.secret
        for name, value in service.env.items():
            if value and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)):
                yield f"{quoted(name)} in the env of service {quoted(service.id)}", value


def _is_readable_by_all(path: Path) -> bool:
    """Whether the mode of the file, and of every directory above it, lets everybody read it."""
    try:
        real = path.resolve()
        is_readable = bool(real.stat().st_mode & stat.S_IROTH)
        return is_readable and all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)
    except OSError:
        return False


# --- what is missing on this host ---
#
# Only `duly check` asks, and gets warnings: the host that checks a file need not be the one that runs it.


def missing_on_host(service: Service, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a service would miss if it were started now: the key, and why.

    *environ* is the environment of the daemon that would start it.
    """
    for option in option_faults(options_of(service)):
        yield option.key, option.reason
    if service.cwd is not None and (fault := _directory_fault(service.cwd)) is not None:
        yield "cwd", f"cwd {quoted(service.cwd)} {fault}"
        if "/" in service.command[0] and not service.command[0].startswith("/"):
            return  # nobody can know what the command would be
    if (fault := _command_fault(service, environ)) is not None:
        yield "command", fault


def _directory_fault(cwd: str) -> str | None:
    try:
        if not Path(cwd).exists():
            return "does not exist"
        return None if Path(cwd).is_dir() else "is not a directory"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"


def _command_fault(service: Service, environ: Mapping[str, str]) -> str | None:
    program = service.command[0]
    said = f"command {quoted(program)}"
    if "/" in program:
        fault = _program_fault(Path(service.cwd or ".", program))
        return None if fault is None else f"{said} {fault}"
    search = {**environ, **service.env}.get("PATH", os.defpath)
    faults = [_program_fault(Path(folder or ".", program)) for folder in search.split(os.pathsep)]
    if None in faults:
        return None
    found = next((fault for fault in faults if fault != "does not exist"), None)
    shown = search if len(search) <= 100 else f"{search[:99]}…"
    return f"{said} {found}" if found else f"{said} is not in PATH ({shown})"


def _program_fault(path: Path) -> str | None:
    try:
        if not path.exists():
            return "does not exist"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if path.is_dir():
        return "is a directory"
    return None if os.access(path, os.X_OK) else f"is not executable; chmod +x {path} makes it so"
