"""Any configuration at all: nothing raises, nothing is lost, and nothing of a wrong type gets through."""

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duly.config import Calendar, Config, Service, Settings, Timer, config_of
from duly.config.calendars import CALENDAR_FIELDS
from duly.config.checking import SERVICE_KEYS, TIMER_KEYS
from duly.config.lines import toml_places
from duly.config.schema import has_slots

PATH = Path("/etc/duly.toml")
ANY_TEXT = st.text(st.characters(), max_size=6)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, 1, 3, 59, 10**4000, -(10**4000), 2**63])
SCALARS = st.none() | st.booleans() | NUMBERS | ANY_TEXT | st.binary(max_size=3)
IDS = st.sampled_from(["a", "b", "c"])


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from([*CALENDAR_FIELDS, "PATH"]) | ANY_TEXT | st.integers()
    return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner)


ANYTHING = st.recursive(SCALARS, _nested, max_leaves=6) | st.builds(object)
LENGTHS = st.integers(1, 9) | st.floats(0.001, 1e6) | st.sampled_from(["5m", "1h 30m", timedelta(seconds=9)])
CALENDARS = st.fixed_dictionaries(
    {},
    optional={
        name: st.just("*")
        | st.integers(field.lowest, field.highest)
        | st.lists(st.integers(field.lowest, field.highest), min_size=1, max_size=3)
        for name, field in CALENDAR_FIELDS.items()
    },
)
GOOD: Mapping[str, st.SearchStrategy[Any]] = {
    "id": st.sampled_from(["a", "b", "c", "d", "e", "f"]),
    "target": st.just("job") | IDS,
    "command": st.just("run 'x y'") | st.lists(st.text("abc -", min_size=1), min_size=1, max_size=2),
    "type": st.sampled_from(["oneshot", "simple"]),
    "stage": st.integers(1, 4),
    "after": st.lists(IDS, max_size=2),
    "requires": st.just([]) | st.just(("job",)) | st.lists(IDS, max_size=2),
    "env": st.dictionaries(st.sampled_from(["PATH", "X"]), st.text("ab", max_size=3), max_size=2),
    "env_file": st.sampled_from(["x", "-x"]),
    "cwd": st.just("x"),
    "user": st.sampled_from(["root", 0]),
    "group": st.sampled_from(["root", 0]),
    "umask": st.just("027"),
    "nice": st.integers(-20, 19),
    "memory_max": st.just("64M") | st.integers(1 << 20, 1 << 30),
    "nofile": st.integers(4, 99),
    "lock": IDS,
    "ping_url": st.just("https://example.org/x"),
    "restart": st.sampled_from(["always", "on-failure", "no", True]),
    "on_calendar": CALENDARS | st.lists(CALENDARS, min_size=1, max_size=2),
    "cron": st.sampled_from(["*/15 9-17 * * mon-fri", "@daily"]),
    "daily": st.just("03:30"),
    "at": st.sampled_from(
        ["2026-12-24 18:00", datetime(2026, 12, 24, 18, tzinfo=UTC), "2026-12-24T18:00:00Z"]
    ),
    "every": st.integers(60, 9000) | st.sampled_from(["5m", 0.5, timedelta(hours=1)]),
    "exclude": st.sampled_from(["2026-12-24", ("2026-12-24", date(2027, 1, 1))]),
    "dst": st.sampled_from(["once", "both"]),
    "overlap": st.sampled_from(["skip", "queue", "replace"]),
    "retry_intervals_sec": st.lists(LENGTHS, max_size=2),
    "catch_up_window_sec": LENGTHS | st.just(0),
    "timezone": st.sampled_from(["UTC", "Europe/Berlin"]),
    "description": st.text("ab ", max_size=5),
    "history_runs": st.integers(1, 9),
    "output_kib": st.integers(1, 9),
    "store": st.just("x.db"),
    "socket": st.just("x.sock"),
}


def _good(key: str) -> st.SearchStrategy[Any]:
    if key.endswith(("_sec", "_days")):
        return GOOD.get(key, LENGTHS)
    return GOOD.get(key, st.booleans())


def entries(keys: tuple[str, ...], needed: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Entries that are right, right but for one value or key, or nothing of the sort."""
    good = st.fixed_dictionaries(
        {key: _good(key) for key in needed},
        optional={key: _good(key) for key in keys if key not in needed},
    )
    odd_value = st.tuples(good, st.sampled_from(keys), ANYTHING).map(
        lambda part: {**part[0], part[1]: part[2]}
    )
    odd_key = st.tuples(good, ANY_TEXT | st.integers(), ANYTHING).map(
        lambda part: {**part[0], part[1]: part[2]}
    )
    lacking = st.tuples(good, st.sampled_from(keys)).map(
        lambda part: {key: value for key, value in part[0].items() if key != part[1]}
    )
    return good | odd_value | odd_key | lacking | st.dictionaries(st.sampled_from(keys), ANYTHING) | ANYTHING


JOB = {"id": "job", "command": "true", "type": "oneshot", "stage": 1}
SERVICES = st.lists(entries(SERVICE_KEYS, ("id", "command")), max_size=4).map(lambda some: [JOB, *some])
TIMERS = st.lists(entries(TIMER_KEYS, ("id", "target", "on_calendar")), max_size=4)
SUPERVISORS = entries(tuple(each.name for each in fields(Settings)), ())


def is_text(value: object) -> bool:
    return type(value) is str and value.encode() is not None


def is_seconds(value: object, *, may_be_zero: bool = False) -> bool:
    if type(value) not in {int, float}:
        return False
    assert isinstance(value, int | float)
    return math.isfinite(value) and (value > 0 or (may_be_zero and value == 0)) and value < 1e10


def is_names(value: object) -> bool:
    return type(value) is tuple and all(is_text(each) for each in value)


def is_calendar(calendar: object) -> bool:
    assert type(calendar) is Calendar
    for name, field in CALENDAR_FIELDS.items():
        values = getattr(calendar, name)
        if values is not None:
            assert type(values) is tuple
            assert values == tuple(sorted(set(values)))
            assert values
            assert all(type(value) is int and field.lowest <= value <= field.highest for value in values)
    return True


def check_service(service: Service) -> None:
    assert type(service) is Service
    assert is_text(service.id)
    assert service.id.isprintable()
    assert is_names(service.command)
    assert service.command
    assert not any("\0" in word for word in service.command)
    assert service.type in {"oneshot", "simple"}
    assert type(service.enabled) is bool
    assert type(service.stage) is int
    assert 1 <= service.stage <= 4
    assert is_names(service.after)
    assert is_names(service.requires)
    assert type(service.env) is dict
    assert all(is_text(name) and is_text(value) for name, value in service.env.items())
    assert service.cwd is None or is_text(service.cwd)
    assert service.timeout_sec is None or is_seconds(service.timeout_sec)
    assert service.restart in {"always", "on-failure", "no"}
    assert service.at_startup is None or type(service.at_startup) is bool
    assert is_text(service.description)


def check_timer(timer: Timer) -> None:
    assert type(timer) is Timer
    assert is_text(timer.id)
    assert is_text(timer.target)
    assert type(timer.enabled) is bool
    assert type(timer.persistent) is bool
    assert type(timer.on_calendar) is tuple
    assert all(is_calendar(calendar) for calendar in timer.on_calendar)
    assert timer.on_startup_sec is None or is_seconds(timer.on_startup_sec)
    assert timer.on_unit_active_sec is None or is_seconds(timer.on_unit_active_sec)
    assert timer.on_startup_sec or timer.on_unit_active_sec or has_slots(timer)
    assert type(timer.retry_intervals_sec) is tuple
    assert all(is_seconds(each) for each in timer.retry_intervals_sec)
    assert is_seconds(timer.catch_up_window_sec, may_be_zero=True)
    assert timer.timezone in {None, "UTC", "Europe/Berlin"}
    assert is_text(timer.description)


def check_settings(found: Settings) -> None:
    assert type(found.enabled) is bool
    assert type(found.timers) is bool
    assert all(value is None or is_text(value) for value in (found.store, found.socket, found.timezone))
    assert is_seconds(found.shutdown_timeout_sec)
    assert is_seconds(found.kill_grace_sec)
    assert is_seconds(found.history_days)
    assert type(found.history_runs) is int
    assert type(found.output_kib) is int


def check_relations(found: Config) -> None:
    services = {service.id: service for service in found.services}
    assert len(services) == len(found.services)
    for service in found.services:
        assert all(services[name].stage <= service.stage for name in service.requires)
    assert all(services[timer.target].type == "oneshot" for timer in found.timers)
    assert len({timer.id for timer in found.timers}) == len(found.timers)


@pytest.mark.heavy
@settings(max_examples=400)
@given(SERVICES, TIMERS, SUPERVISORS)
@example([{"id": "a", "command": "x", "type": "oneshot"}], [{"id": "a", "target": "a", "every": 60}], {})
def test_whatever_is_written(services: list[Any], timers: list[Any], supervisor: Any) -> None:
    """Each entry is either valid, with every value of its type, or invalid with one printable reason."""
    found = config_of(PATH, services, timers, supervisor)
    check_settings(found.settings)
    check_relations(found)
    for service in found.services:
        check_service(service)
    for timer in found.timers:
        check_timer(timer)
    of_kind = {
        kind: [each.index for each in found.invalid if each.kind == kind] for kind in ("service", "timer")
    }
    assert len(of_kind["service"]) + len(found.services) == len(services)
    assert len(of_kind["timer"]) + len(found.timers) == len(timers)
    assert all(len(set(indexes)) == len(indexes) for indexes in of_kind.values())
    for reason in [*(each.reason for each in found.invalid), *(each.reason for each in found.warnings)]:
        assert reason.isprintable()
        assert len(reason) < 700


@settings(max_examples=100)
@given(SERVICES, TIMERS)
def test_checking_again_changes_nothing(services: list[Any], timers: list[Any]) -> None:
    """What was found valid is valid by itself, and the same."""
    once = config_of(PATH, services, timers)
    again = config_of(PATH, once.services, once.timers)
    assert (again.services, again.timers, again.invalid) == (once.services, once.timers, ())


class Broken(dict[str, Any]):
    """A mapping that fails when it is looked at."""

    def __iter__(self) -> Any:
        raise RuntimeError

    def keys(self) -> Any:
        """Fail."""
        raise RuntimeError

    def get(self, *_: Any) -> Any:
        """Fail."""
        raise RuntimeError


def test_objects_that_fail() -> None:
    """A mapping of somebody's own that fails is an invalid entry, not a failure."""
    good = {"id": "a", "command": "x"}
    found = config_of(PATH, [Broken(a=1), good, {**good, "id": "b", "env": Broken(a=1)}], [], Broken(a=1))
    assert [service.id for service in found.services] == ["a"]
    assert [each.reason for each in found.invalid if each.kind == "service"] == [
        "cannot be read: RuntimeError",
        "env cannot be read: RuntimeError",
    ]


LINES = st.lists(
    st.sampled_from(
        [
            *(
                "[[service]]",
                "[[timer]]",
                "# [[service]]",
                'x = "[[service]]"',
                "y = '''",
                "'''",
                "[supervisor]",
            ),
            *('z = """', '"""', "v = [", "]", "w = [[1], [", "]]", "[service.env]", "\\", "'", '"', ""),
        ]
    ),
    max_size=12,
)


@settings(max_examples=500)
@given(LINES)
def test_tables_are_counted_right(lines: list[str]) -> None:
    """Wherever the parser of the standard library sees tables, so many headers are found."""
    import tomllib  # noqa: PLC0415 - only here

    text = "\n".join(f"k{number}{line}" if " = " in line else line for number, line in enumerate(lines))
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    places = toml_places(text)
    for name in ("service", "timer"):
        if isinstance(document.get(name, []), list):
            assert len(places.tables.get(name, [])) == len(document.get(name, []))
