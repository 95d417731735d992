"""Warnings: entries that are valid and do perhaps not mean what their author meant.

Only what is clear from the file is said; a guess that is wrong once teaches people not to read warnings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duly.config.calendars import common, ever_comes, first_time, least_gap_sec, shortest_gap_sec
from duly.config.checking import Checked
from duly.config.schema import Calendar, Kind, Service, Settings, Timer, starts_at_boot
from duly.config.words import did_you_mean, quoted

# Of calendars, while looking for timers that clash: about a second, however many timers share a target. A
# warning that is not found is better than a check that does not end.
_MOST_COMPARISONS = 500_000


@dataclass(frozen=True, slots=True)
class Note:
    """A warning before its line is known."""

    kind: Kind
    id: str | None
    index: int
    reason: str
    key: str | None = None


def notes(
    settings: Settings, services: Sequence[Checked[Service]], timers: Sequence[Checked[Timer]]
) -> Iterator[Note]:
    """Everything worth a warning, in the order of the file."""
    usable = {each.entry.id: each.entry for each in services if each.entry is not None}
    known_ids = {each.id: None for each in services if each.id is not None}
    valid = [each.entry for each in timers if each.entry is not None]
    yield from _of_settings(settings, has_timers=bool(timers), is_empty=not services and not timers)
    targets = frozenset(timer.target for timer in valid)
    for one in services:
        if one.entry is not None:
            for key, reason in _of_service(one.entry, usable, known_ids, targets):
                yield Note("service", one.id, one.index, reason, key)
    started = frozenset(timer.target for timer in valid if _starts_by_itself(timer))
    clashes = _clashes(valid)
    for each in timers:
        if each.entry is not None:
            target, clash = usable[each.entry.target], next(clashes)
            for key, reason in _of_timer(each, each.entry, target, started, clash):
                yield Note("timer", each.id, each.index, reason, key)


def _of_settings(settings: Settings, *, has_timers: bool, is_empty: bool) -> Iterator[Note]:
    if is_empty:
        yield Note("supervisor", None, 0, "the file defines no service and no timer")
    if not settings.enabled:
        yield Note("supervisor", None, 0, "enabled is false, so nothing in this file is started", "enabled")
    if has_timers and not settings.timers:
        reason = "timers are defined and switched off; timers = true under [supervisor] switches them on"
        yield Note("supervisor", None, 0, reason, "timers")
    for key, path in (("store", settings.store), ("socket", settings.socket)):
        if isinstance(path, str) and path.startswith("~"):
            yield Note("supervisor", None, 0, _tilde(key, path), key)


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
    if service.enabled and starts_at_boot(service, targets):
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


def _never_comes(timer: Timer) -> str | None:
    never = [number for number, each in enumerate(timer.on_calendar, start=1) if not ever_comes(each)]
    if not never:
        return None
    which = "on_calendar" if len(timer.on_calendar) == 1 else f"on_calendar, calendar {never[0]}"
    return f"{which} never fires: none of its months has such a day"


def _lasts_too_long(timer: Timer, target: Service) -> str | None:
    if target.timeout_sec is None:
        return None
    near = [
        each for each in timer.on_calendar if ever_comes(each) and least_gap_sec(each) < target.timeout_sec
    ]
    gaps = [gap for each in near if (gap := shortest_gap_sec(each)) is not None]
    if not gaps or target.timeout_sec <= min(gaps):
        return None
    return (
        f"its target {quoted(target.id)} may run for {_length(target.timeout_sec)} (timeout_sec), and it"
        f" fires as often as every {_length(min(gaps))}: firings meanwhile are missed"
    )


def _starts_by_itself(timer: Timer) -> bool:
    """Whether it starts its target a first time, without a run to count from."""
    return timer.enabled and (bool(timer.on_calendar) or timer.on_startup_sec is not None)


def _never_begins(timer: Timer, target: Service, started: frozenset[str]) -> bool:
    if timer.on_unit_active_sec is None or not timer.enabled or starts_at_boot(target, {target.id}):
        return False
    return target.id not in started


def _clashes(timers: Iterable[Timer]) -> Iterator[str | None]:
    """For each timer a warning if an earlier one wants the same target in the same minute."""
    comparisons = iter(range(_MOST_COMPARISONS))
    earlier: dict[tuple[str, str | None], list[tuple[Timer, Calendar]]] = {}
    for timer in timers:
        if not timer.enabled or not timer.on_calendar:
            yield None
            continue
        rivals = earlier.setdefault((timer.target, timer.timezone), [])
        yield _clash(timer, rivals, comparisons)
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


def _length(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
