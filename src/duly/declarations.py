"""Declarations: what a program says of its tasks, kinds and entries, checked where it is said.

Every mistake raises here, at the line that made it, and names the task and the argument. What comes out is
what the engine takes: registrations, kinds, entries.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import Any, Literal, Protocol, TypedDict, TypeVar
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from duly.bodies import Body, Run, callback_of
from duly.core.entries import EntryKind, EntryText, NewEntry, entry_text
from duly.core.options import Options
from duly.core.registration import Callback, Registration
from duly.core.task import Task
from duly.core.timing import ScheduleText, is_plain
from duly.cron import CronExpression
from duly.errors import InvalidScheduleError, ScheduleDuplicateTaskError
from duly.formatting import close_zones, did_you_mean, suggestion
from duly.schedules import Length, Schedule, length_of, task_text

_SKIP_US = 60_000_000
"""With catch_up="skip" a due this old is not made up for: a busy second must not cost a run."""
_LONGEST_NAME = 1_000


class TakesRun(Protocol):
    """A function with a keyword-only parameter for the run."""

    def __call__(self, *, run: Run) -> object: ...


PlainBody = Callable[[], object] | Callable[[Run], object] | TakesRun
"""A function that needs no arguments but, perhaps, the run."""
P = TypeVar("P", bound=PlainBody)
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Retry:
    """How a failed run is tried again: after *delay*, each time *factor* times longer, up to *max_delay*.

    *attempts* counts all tries, the first included. Without it a run is tried until it succeeds.
    """

    delay: Length = "1m"
    factor: float = 1
    max_delay: Length | None = None
    attempts: int | None = None

    def __post_init__(self) -> None:
        length_of("Retry(delay=...)", self.delay)
        if self.max_delay is not None:
            length_of("Retry(max_delay=...)", self.max_delay)
        check_number("Retry(factor=...)", self.factor, 1, 1_000)
        if self.attempts is not None:
            check_number("Retry(attempts=...)", self.attempts, 1, None, of=int)


class RunOptions(TypedDict, total=False):
    """What holds for the runs of a task, or of all entries of a kind."""

    name: str | None
    timeout: Length | None
    """A longer run is cancelled and has failed."""
    retry: Retry | Length
    """How a failed run is tried again; "1m" without end by default."""
    catch_up: Literal["once", "skip"] | Length
    """What a downtime missed: "once", "skip", or only if it is younger than a length of time."""
    limit: str | None
    """A name of `App(limits=...)`: so many runs of that name may be in flight at once."""
    tags: Iterable[str]


class EntryOptions(TypedDict, total=False):
    """What holds for one task and its schedule."""

    timezone: str | tzinfo | None
    """The zone of its schedule; that of the app by default."""
    spread: Length | None
    """Dues come later by an offset below this, which depends on the name of the task alone."""
    enabled: bool
    """False: it runs only when it is asked for."""


class TaskOptions(RunOptions, EntryOptions, total=False):
    """The options of a declared task."""


class Declarations:
    """The tasks and kinds of one app, in its *zone* and with its named *limits*.

    *body_of* makes of a function what is called.
    """

    def __init__(
        self,
        zone: tzinfo,
        limits: Mapping[str, int],
        body_of: Callable[[Callable[..., object]], Callable[..., object]],
    ) -> None:
        self._body_of = body_of
        self.zone = zone
        if not isinstance(limits, Mapping):
            raise TypeError(f"App(limits=...) needs a dict such as {{'db': 3}}, not {type(limits).__name__}")
        self.limits = dict(limits)
        for name, size in limits.items():
            _check_is("App(limits=...): each name", name, str)
            check_number(f"App(limits={{{name!r}: ...}})", size, 1, None, of=int)
        self.tasks: dict[str, Registration] = {}
        self.kinds: dict[str, EntryKind] = {}
        self._bodies: dict[str, tuple[Callable[..., object], Body]] = {}
        self._retry = Retry()
        self._options: dict[Options, Options] = {}
        """Tasks with equal options share one object."""
        self._tags: dict[str, tuple[str, ...]] = {}
        """Of tasks and of kinds; nobody else needs to know them."""

    def add_task(
        self,
        function: Callable[..., object],
        schedule: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, Any],
    ) -> None:
        """Declare a task. Raises TypeError, ValueError or a SchedulerError that names it."""
        name = _name_of(function, options)
        where = f"task {name!r}"
        if name in self.tasks:
            error = ScheduleDuplicateTaskError(task_name=name)
            error.add_note("give one of them another name=")
            raise error
        _check_known(where, options, TaskOptions)
        text = self._text(where, name, schedule, options.get("timezone"), options.get("spread"))
        enabled = _enabled(where, options)
        delay_us, run_options = self._run_options(where, options)
        self.tasks[name] = Registration(
            name,
            CronExpression.parse(text) if is_plain(text) else ScheduleText(text),
            callback_of(where, self._body_of(function), *_arguments(where, args, kwargs)),
            delay_us,
            run_options if enabled else msgspec.structs.replace(run_options, enabled=False),
        )
        self._note_tags("task", name, _tags(where, options))

    def add_kind(self, function: Callable[..., object], options: Mapping[str, Any]) -> None:
        """Declare a function as a kind of entries. Raises TypeError or ValueError that names it."""
        name = _name_of(function, options)
        where = f"kind {name!r}"
        if name in self.kinds:
            raise ValueError(f"{where} is declared twice; give one of them another name=")
        _check_known(where, options, RunOptions)
        body = Body(where, self._body_of(function))
        self.kinds[name] = EntryKind(
            name, partial(_callback_of_entry, body), *self._run_options(where, options)
        )
        # The function as it was decorated: `add(kind=function)` finds the kind by it.
        self._bodies[name] = function, body
        self._note_tags("kind", name, _tags(where, options))

    def entry(
        self,
        name: str,
        kind: Callable[..., object] | str,
        schedule: object,
        args: Mapping[str, object],
        options: Mapping[str, Any],
    ) -> NewEntry:
        """An entry as it is stored. Raises TypeError, ValueError or a SchedulerError that names it."""
        _check_is("add(name=...)", name, str)
        where = f"entry {name!r}"
        if not 0 < len(name) <= _LONGEST_NAME:
            raise ValueError(f"{where}: a name has 1 to {_LONGEST_NAME:,} characters")
        _check_known(where, options, EntryOptions)
        kind_name = self._kind_name(where, kind)
        text = _entry_text(where, kind_name, args, enabled=_enabled(where, options))
        # A kind that another program declares cannot be checked here.
        if kind_name in self._bodies:
            self._bodies[kind_name][1].check(where, **args)
        # In the zone of now: another program that runs it may have another, and this one may change.
        zone = options.get("timezone") or self.zone
        return NewEntry(name, self._text(where, name, schedule, zone, options.get("spread")), text)

    def _note_tags(self, what: str, name: str, tags: tuple[str, ...]) -> None:
        if tags:
            self._tags[f"{what} {name}"] = tags

    def tags_of(self, task: Task) -> tuple[str, ...]:
        key = f"task {task.name}" if task.entry is None else f"kind {entry_text(task.entry).kind}"
        return self._tags.get(key, ())

    def _kind_name(self, where: str, kind: object) -> str:
        if isinstance(kind, str):
            return kind
        name = next((name for name, (function, _) in self._bodies.items() if function == kind), None)
        if name is None:
            known = ", ".join(sorted(self.kinds)) or "none so far"
            raise ValueError(f"{where}: {kind!r} is no kind; declare it with @app.kind() (kinds: {known})")
        return name

    def _text(self, where: str, name: str, schedule: object, zone: object, spread: object) -> str:
        if not isinstance(schedule, Schedule | str):
            got = type(schedule).__name__
            raise TypeError(f"{where}: expected a schedule such as every('5m'), got {got}")
        spread_us = 0 if spread is None else length_of(f"{where}: spread", spread)
        own_zone = zone_of(f"{where}: timezone", zone)
        try:
            text = task_text(name, schedule, own_zone, spread_us, self.zone)
        except InvalidScheduleError as error:
            error.add_note(f"in the schedule of {where}")
            raise
        if text.startswith("TZ="):  # a store keeps the name of the zone
            zone_of(f"{where}: timezone", str(own_zone))
        return text

    def _run_options(self, where: str, options: Mapping[str, Any]) -> tuple[int, Options]:
        retry, timeout = options.get("retry", self._retry), options.get("timeout")
        policy = (
            retry
            if isinstance(retry, Retry)
            else Retry(_length(f"{where}: retry (if not a Retry such as Retry(attempts=1))", retry))
        )
        limit, longest = options.get("limit"), policy.max_delay
        if limit is not None and limit not in self.limits:
            known = ", ".join(map(repr, sorted(self.limits))) or "none; say App(limits={...})"
            raise ValueError(f"{where}: limit={limit!r} is not among the limits of the app ({known})")
        run_options = Options(
            timeout_us=None if timeout is None else length_of(f"{where}: timeout", timeout),
            retry_factor=policy.factor,
            retry_longest_us=None if longest is None else length_of(where, longest),
            attempts=policy.attempts,
            catch_up_us=_catch_up_us(where, options.get("catch_up", "once")),
            limit=limit,
        )
        return length_of(where, policy.delay), self._options.setdefault(run_options, run_options)


def zone_of(what: str, zone: object) -> tzinfo | None:
    """A zone, by itself or by its name. Raises TypeError or ValueError that names *what* it is for."""
    if zone is None or isinstance(zone, tzinfo):
        return zone
    if not isinstance(zone, str):
        raise TypeError(f"{what} needs a name such as 'Europe/Berlin', not {type(zone).__name__}")
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        hint = suggestion(close_zones(zone, available_timezones())) or "write one such as 'Europe/Berlin'"
        raise ValueError(f"{what}: there is no time zone {zone!r}; {hint}") from None


def _name_of(function: object, options: Mapping[str, Any]) -> str:
    name: str = options.get("name") or getattr(function, "__name__", None) or ""
    _check_is("name=", name, str)
    if not name and not callable(function):
        raise TypeError(f"expected a function, got {type(function).__name__}")
    if not name or name == "<lambda>":
        raise ValueError(f"{function!r} needs a name: say name='...'")
    return name


def _enabled(where: str, options: Mapping[str, Any]) -> bool:
    enabled = options.get("enabled", True)
    _check_is(f"{where}: enabled", enabled, bool)
    return bool(enabled)


def _tags(where: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    tags = options.get("tags", ())
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TypeError(f"{where}: tags needs a list of texts such as ['slow'], not {tags!r}")
    for tag in (kept := tuple(tags)):
        _check_is(f"{where}: each of tags", tag, str)
    return kept


def _arguments(where: str, args: object, kwargs: object) -> tuple[Sequence[object], Mapping[str, object]]:
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise TypeError(f"{where}: args needs a list such as [42], not {args!r}")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"{where}: kwargs needs a dict such as {{'id': 42}}, not {kwargs!r}")
    return args, kwargs


def _check_known(where: str, options: Mapping[str, Any], known: type) -> None:
    names = known.__annotations__.keys()
    for name in options.keys() - names:
        hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
        raise TypeError(f"{where}: there is no option {name!r}{hint}")


def _check_is(what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        words = {str: "must be a text", bool: "must be True or False"}
        raise TypeError(f"{what} {words[kind]}, not {value!r}")


def check_number(what: str, value: object, least: int, most: int | None, of: type = object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(value, of):
        raise TypeError(f"{what} needs a {'whole ' if of is int else ''}number, not {value!r}")
    if value < least or (most is not None and not value <= most):
        limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{what} must be {limits}, not {value!r}")


def _length(what: str, length: object) -> Length:
    """A length of time that is sound. Raises TypeError or ValueError that names *what* needs it."""
    length_of(what, length)
    assert isinstance(length, Length)
    return length


def _catch_up_us(where: str, catch_up: object) -> int | None:
    if catch_up == "once":
        return None
    if catch_up == "skip":
        return _SKIP_US
    return length_of(f"{where}: catch_up (if not 'once' or 'skip')", catch_up)


def _entry_text(where: str, kind: str, args: object, *, enabled: bool) -> str:
    """The text of an entry. Raises TypeError for what would not come back from JSON as it was."""
    if not isinstance(args, dict):
        raise TypeError(f"{where}: args must be a dict such as {{'id': 42}}, not {type(args).__name__}")
    try:
        text = msgspec.json.encode(EntryText(kind, args, enabled)).decode()
        is_kept = entry_text(text).args == args
    except (TypeError, ValueError, OverflowError, RecursionError):
        is_kept = False
    if not is_kept:
        raise TypeError(
            f"{where}: args must be JSON (texts, numbers, True, None, lists, dicts with texts as keys),"
            f" and {args!r} is not"
        )
    return text


async def _call_with(body: Body, text: str) -> object:
    return await body(**entry_text(text).args)


def _callback_of_entry(body: Body, text: str) -> Callback:
    return partial(_call_with, body, text)
