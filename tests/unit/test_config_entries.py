"""Entries of a configuration: what each wrong one is told, in which order, and what right ones become."""

from pathlib import Path
from typing import Any

import pytest

from duly.config import Calendar, Config, Service, Settings, Timer, config_of
from duly.config.schema import starts_at_boot

PATH = Path("/etc/duly.toml")
JOB = {"id": "job", "command": ["true"], "type": "oneshot"}
HOURLY = {"minute": 0}
NAN, INF = float("nan"), float("inf")
TRIGGERS = "cron, every, daily, at, on_startup, on_calendar, on_unit_active_sec"
ANY_SECONDS = "must be a number of seconds"


def config(
    services: list[Any] | None = None, timers: list[Any] | None = None, supervisor: Any = None
) -> Config:
    return config_of(PATH, [JOB] if services is None else services, timers or [], supervisor or {})


def reason_of(*, service: Any = None, timer: Any = None) -> str:
    """The one reason why an entry is invalid."""
    found = config([service], []) if timer is None else config(None, [timer])
    [invalid] = found.invalid
    assert invalid.kind == ("service" if timer is None else "timer")
    assert not (found.services if timer is None else found.timers)
    return invalid.reason


def service(**keys: Any) -> dict[str, Any]:
    return {"id": "a", "command": ["true"], **keys}


def oneshot(**keys: Any) -> dict[str, Any]:
    return service(type="oneshot", **keys)


def timer(**keys: Any) -> dict[str, Any]:
    return {"id": "t", "target": "job", "on_calendar": HOURLY, **keys}


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (3, "must be a table (a mapping of keys to values), not 3"),
        (None, "must be a table (a mapping of keys to values), not null (None)"),
        (["id", "a"], "must be a table (a mapping of keys to values), not a list"),
        (Timer("t", "job"), "is not a Service but a Timer; it is in the wrong list"),
        ({}, "has no id"),
        (service(comand=1), 'unknown key "comand"; did you mean command?'),
        (service(cmd=1), 'unknown key "cmd"; did you mean command?'),
        (service(ENV=1), 'unknown key "ENV"; did you mean env?'),
        (service(zzzz=1), 'unknown key "zzzz"'),
        (service(**{"a\nb": 1}), r'unknown key "a\nb"'),
        ({3: 1}, "unknown key 3; keys are text"),
        (service(id=None), "id must be text, not null (None)"),
        (service(id=""), "id is empty"),
        (service(id=" a"), 'id " a" begins or ends with a space'),
        (service(id="a\x1b"), r'id "a\x1b" holds a character that cannot be printed'),
        (service(id="\ud800"), r'id "\ud800" holds a character that cannot be printed'),
        (service(id="x" * 129), "id is 129 characters long; at most 128 are allowed"),
        (without(service(), "command"), "has no command"),
        (service(command=None), "command must be a list of texts or one text, not null (None)"),
        (service(command=[]), "command is empty"),
        (service(command=""), "command is empty"),
        (
            service(command="  # x"),
            (
                'command has "#", which only a shell understands, and none is started.'
                ' For a shell: shell = true. If it is meant as it stands: command = ["#", "x"]'
            ),
        ),
        (service(command=[""]), "command names no program: its first element is empty"),
        (service(command='echo "a'), 'command has a quote that is not closed: "echo "a"'),
        (service(command="echo \\"), 'command has a backslash at its end: "echo \\"'),
        (service(command=["a", 1]), "element 2 of command must be text, not 1"),
        (service(command=["a", None]), "element 2 of command must be text, not null (None)"),
        (service(command=["a\0b"]), "element 1 of command holds a NUL character"),
        (service(command="a \0"), "command holds a NUL character"),
        (service(command=["a", "\udfff"]), "element 2 of command holds half a character (a lone surrogate)"),
        (service(command=b"x"), "command must be a list of texts or one text, not a bytes"),
        (service(type="daemon"), 'type must be "oneshot" or "simple", not "daemon"'),
        (service(type=None), 'type must be "oneshot" or "simple", not null (None)'),
        (service(stage=0), "stage must be 1 to 4, not 0"),
        (service(stage=5), "stage must be 1 to 4, not 5"),
        (service(stage=True), "stage must be a whole number, not true"),
        (service(stage=2.0), "stage must be a whole number, not 2.0"),
        (service(stage=10**5000), "stage must be 1 to 4, not a number of more than 30 digits"),
        (service(after="b"), 'after must be a list of ids; write ["b"]'),
        (service(after=[1]), "after must be a list of ids, and 1 is none"),
        (service(requires={"b": 1}), "requires must be a list of ids, not a mapping"),
        (service(requires=None), "requires must be a list of ids, not null (None)"),
        (service(requires=["a"]), "requires names the service itself"),
        (service(after=["a"]), "after names the service itself"),
        (service(env=[]), "env must be a mapping of names to texts, not an empty list"),
        (service(env={"A": 1}), "env.A must be text; put its value in quotes"),
        (service(env={"A": True}), "env.A must be text; put its value in quotes"),
        (service(env={"A": None}), "env.A must be text, not null (None)"),
        (service(env={"": "x"}), 'env has a wrong name, ""; names are text, not empty, without ='),
        (service(env={"A=B": "x"}), 'env has a wrong name, "A"; names are text, not empty, without ='),
        (service(env="A=B"), "env must be a mapping of names to texts, not text"),
        (service(env={1: "x"}), "env has a wrong name, 1; names are text, not empty, without ="),
        (service(env={"A": "x\0"}), "env.A holds a NUL character"),
        (service(env={"A\0": "x"}), r'the name "A\x00" in env holds a NUL character'),
        (service(cwd=1), "cwd must be text, not 1"),
        (service(cwd=""), "cwd is empty"),
        (service(cwd=None), "cwd must be text, not null (None)"),
        (oneshot(timeout_sec=0), "timeout_sec must be a positive number of seconds, not 0"),
        (oneshot(timeout_sec=None), f"timeout_sec {ANY_SECONDS}, not null (None)"),
        (
            service(timeout_sec=5),
            'timeout_sec is for oneshots; a simple service runs until it is stopped (type = "oneshot"?)',
        ),
        (service(restart="never"), 'restart must be "always", "on-failure" or "no", not "never"'),
        (service(restart=1), 'restart must be "always", "on-failure" or "no", not 1'),
        (
            oneshot(restart="no"),
            "restart is for simple services; a oneshot is run again by a timer, with its retries",
        ),
        (service(enabled="yes"), 'enabled must be true or false, not "yes"'),
        (service(enabled=1), "enabled must be true or false, not 1"),
        (service(at_startup=None), "at_startup must be true or false, not null (None)"),
        (service(description=1), "description must be text, not 1"),
        (service(description="\ud800"), "description holds half a character (a lone surrogate)"),
        (service(description="x" * 1001), "description is 1001 characters long; at most 1000 are allowed"),
    ],
)
def test_bad_services(entry: Any, reason: str) -> None:
    """Each service that cannot be used gets the one reason that its author needs."""
    assert reason_of(service=entry) == reason


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("daily", 'must be a table (a mapping of keys to values), not "daily"'),
        (Service("a", "b"), "is not a Timer but a Service; it is in the wrong list"),
        (timer(on_calender=1), 'unknown key "on_calender"; did you mean on_calendar?'),
        (timer(**{"on-calendar": 1}), 'unknown key "on-calendar"; did you mean on_calendar?'),
        (timer(crontab="* * * * *"), 'unknown key "crontab"; did you mean cron?'),
        (timer(interval=3), 'unknown key "interval"; did you mean every?'),
        (without(timer(), "id"), "has no id"),
        (timer(id=3), "id must be text, not 3"),
        (without(timer(), "target"), "has no target"),
        (timer(target=""), "target is empty"),
        (timer(target=None), "target must be text, not null (None)"),
        (
            without(timer(), "on_calendar"),
            f"has no trigger; give at least one of {TRIGGERS}",
        ),
        (timer(on_startup_sec=0), "on_startup_sec must be a positive number of seconds, not 0"),
        (timer(on_startup_sec=-1.5), "on_startup_sec must be a positive number of seconds, not -1.5"),
        (timer(on_startup_sec=True), f"on_startup_sec {ANY_SECONDS}, not true"),
        (
            timer(on_startup_sec="5"),
            "on_startup_sec needs a length of time such as '5m' or '1h 30m', not '5'",
        ),
        (timer(on_startup_sec=None), f"on_startup_sec {ANY_SECONDS}, not null (None)"),
        (timer(on_unit_active_sec=NAN), "on_unit_active_sec must be a finite number of seconds, not nan"),
        (timer(on_unit_active_sec=INF), "on_unit_active_sec must be a finite number of seconds, not inf"),
        (timer(on_unit_active_sec=-INF), "on_unit_active_sec must be a finite number of seconds, not -inf"),
        (
            timer(on_unit_active_sec=1e300),
            "on_unit_active_sec must be at most 3155760000 (100 years), not 1e+300",
        ),
        (
            timer(on_unit_active_sec=10**5000),
            "on_unit_active_sec must be at most 3155760000 (100 years), not a number of more than 30 digits",
        ),
        (
            timer(on_unit_active_sec=1e-9),
            "on_unit_active_sec must be at least a millionth of a second, not 1e-09",
        ),
        (timer(retry_intervals_sec=5), "retry_intervals_sec must be a list of seconds, not 5"),
        (timer(retry_intervals_sec=None), "retry_intervals_sec must be a list of seconds, not null (None)"),
        (
            timer(retry_intervals_sec=[5, "6"]),
            "element 2 of retry_intervals_sec needs a length of time such as '5m' or '1h 30m', not '6'",
        ),
        (
            timer(retry_intervals_sec=[0]),
            "element 1 of retry_intervals_sec must be a positive number of seconds, not 0",
        ),
        (
            timer(catch_up_window_sec=-1),
            "catch_up_window_sec must be 0 or a positive number of seconds, not -1",
        ),
        (timer(catch_up_window_sec=False), f"catch_up_window_sec {ANY_SECONDS}, not false"),
        (timer(enabled=None), "enabled must be true or false, not null (None)"),
        (timer(persistent="no"), 'persistent must be true or false, not "no"'),
        (timer(timezone="Berlin"), 'timezone: there is no time zone "Berlin"; did you mean Europe/Berlin?'),
        (timer(timezone="../etc"), 'timezone: there is no time zone "../etc"'),
        (timer(timezone=""), 'timezone: there is no time zone ""'),
        (timer(timezone=1), "timezone must be text, not 1"),
        (timer(target="jobs"), 'target "jobs" is no service; did you mean job?'),
    ],
)
def test_bad_timers(entry: Any, reason: str) -> None:
    """Each timer that cannot be used gets the one reason that its author needs."""
    assert reason_of(timer=entry) == reason


@pytest.mark.parametrize(
    "env",
    [
        {"PIN": 471147},
        {"PIN": 471147.5},
        {"PIN": ["471147"]},
        {"PIN": b"471147"},
        {"PIN": "471147\0"},
        {"PIN": "471147\ud800"},
        {"PIN=471147": ""},
        ["PIN=471147"],
        "PIN=471147",
    ],
)
def test_no_reason_shows_a_value_of_the_environment(env: Any) -> None:
    """What is wrong with a variable is told without its value, which may be a password."""
    assert "471147" not in reason_of(service=service(env=env))


def test_close_zones() -> None:
    """A zone that is nearly one is answered with the one it nearly is."""
    reason = reason_of(timer=timer(timezone="europe/berln"))
    assert reason.startswith('timezone: there is no time zone "europe/berln"; did you mean Europe/Berlin')


FIELD = 'must be a number or a text such as "9-17" or "*/15", or a list of them, not'
IN_LIST = 'must be a list, and each element a number or a text such as "9-17" or "*/15", not'


@pytest.mark.parametrize(
    ("calendar", "reason"),
    [
        (None, "on_calendar must be a mapping or a list of mappings, not null (None)"),
        (3, "on_calendar must be a mapping or a list of mappings, not 3"),
        (
            "0 3 * * *",
            (
                "on_calendar must be a mapping such as {hour = 3, minute = 0};"
                ' a text of cron has its own key: cron = "0 3 * * *"'
            ),
        ),
        ("daily", 'on_calendar must be a mapping such as {hour = 3, minute = 0}; "daily" is text'),
        ([], "on_calendar is an empty list, so it never fires; leave it out or name a time"),
        ([HOURLY, 3], "on_calendar, calendar 2 must be a mapping, not 3"),
        ({"weekday": 1}, 'on_calendar: unknown key "weekday"; did you mean day_of_week?'),
        ([HOURLY, {"minuts": 1}], 'on_calendar, calendar 2: unknown key "minuts"; did you mean minute?'),
        ({"minute": 60}, "on_calendar: minute must be 0 to 59, not 60"),
        ({"minute": -1}, "on_calendar: minute must be 0 to 59, not -1"),
        ({"hour": 24}, "on_calendar: hour must be 0 to 23, not 24"),
        ({"day_of_month": 0}, "on_calendar: day_of_month must be 1 to 31, not 0"),
        ({"month": 13}, "on_calendar: month must be 1 to 12, not 13"),
        ({"day_of_week": 7}, "on_calendar: day_of_week must be 0 to 6, not 7; Sunday is 0"),
        ({"hour": True}, f"on_calendar: hour {FIELD} true"),
        ({"hour": None}, f"on_calendar: hour {FIELD} null (None)"),
        ({"hour": 3.0}, f"on_calendar: hour {FIELD} 3.0"),
        ({"hour": "24"}, 'on_calendar: hour "24" must be 0-23, not 24'),
        (
            {"hour": "9-"},
            'on_calendar: hour "9-" has digits other than 0-9, or a range that is not first-last',
        ),
        ({"minute": "5/"}, 'on_calendar: minute "5/" has a step that crons read differently, or not at all'),
        (
            {"day_of_week": "mondy"},
            'on_calendar: day_of_week "mondy" has a name that cron does not know; did you mean monday?',
        ),
        ({"hour": "last"}, 'on_calendar: hour "last" cannot be read'),
        ({"day": ["last", 1]}, f'on_calendar: day_of_month {IN_LIST} "last"'),
        (
            {"day": 1, "day_of_month": 2},
            "on_calendar: day and day_of_month are the same; give one of them",
        ),
        (
            {"hour": []},
            "on_calendar: hour is an empty list, so it never matches; leave it out for every one",
        ),
        ({"hour": [1, "*"]}, f'on_calendar: hour {IN_LIST} "*"'),
        ({"hour": [[1]]}, f"on_calendar: hour {IN_LIST} a list"),
    ],
)
def test_bad_calendars(calendar: Any, reason: str) -> None:
    """Each calendar that cannot be used is told which field, and what to write."""
    assert reason_of(timer=timer(on_calendar=calendar)) == reason


LADDER: list[tuple[Any, str]] = [
    ({"x": 1, "id": 3}, "unknown key"),
    ({"id": 3, "target": 3}, "id must"),
    ({"id": "t", "target": 3}, "target must"),
    ({"id": "t", "target": "nobody", "enabled": 3}, "no trigger"),
    (timer(on_startup_sec="x", on_calendar=3, enabled=3), "on_startup_sec"),
    (timer(catch_up_window_sec="x", on_calendar=3, enabled=3), "catch_up_window_sec"),
    (timer(on_calendar=3, enabled=3, target="nobody"), "on_calendar"),
    (timer(enabled=3, target="nobody"), "enabled"),
    (timer(persistent=3, target="nobody"), "persistent"),
    (timer(target="nobody"), "is no service"),
]


@pytest.mark.parametrize(("entry", "part"), LADDER)
def test_order_of_a_timer(entry: Any, part: str) -> None:
    """A timer with several faults is told the first in the order of the contract (spec/timers.md 2.5)."""
    assert part in reason_of(timer=entry)


def test_target_is_a_oneshot() -> None:
    """Only a oneshot can be run by a timer, and only one that is itself in order."""
    services = [JOB, {"id": "web", "command": "x"}, {"id": "bad", "type": "oneshot"}]
    targets = ["web", "bad", "job"]
    found = config(services, [timer(id=target, target=target) for target in targets])
    assert [each.id for each in found.timers] == ["job"]
    assert [each.reason for each in found.invalid] == [
        "has no command",
        'target "web" is a simple service; a timer can only run a oneshot',
        'target "bad" is an invalid service',
    ]


@pytest.mark.parametrize("first", [timer(), timer(on_calendar=3), timer(wrong=1), timer(target="nobody")])
def test_first_timer_holds_its_id(first: Any) -> None:
    """A second timer of the same id is refused, whatever is wrong with the first."""
    found = config(None, [first, timer(), timer(id="other")])
    assert [(each.id, each.index) for each in found.invalid][-1] == ("t", 1)
    assert found.invalid[-1].reason == 'the id "t" is taken by an earlier timer'
    assert [each.id for each in found.timers][-1] == "other"
    assert len(found.timers) + len(found.invalid) == 3


def test_first_service_holds_its_id() -> None:
    """A second service of the same id is refused, and a timer does not find it."""
    found = config([{"id": "job", "x": 1}, JOB], [timer()])
    assert [each.reason for each in found.invalid] == [
        'unknown key "x"',
        'the id "job" is taken by an earlier service',
        'target "job" is an invalid service',
    ]
    assert found.services == ()


def test_normal_forms() -> None:
    """What is valid comes out with tuples, an argv, and the defaults of the schema."""
    found = config(
        [
            {
                "id": "job",
                "type": "oneshot",
                "command": "run 'a b' '$HOME' '|' x",
                "after": ["b", "b"],
                "cwd": "sub",
            }
        ],
        [timer(on_calendar={"minute": [30, 0, 30], "hour": "*", "day_of_week": 1}, retry_intervals_sec=[])],
    )
    assert found.invalid == ()
    [job], [made] = found.services, found.timers
    assert job == Service(
        "job", ("run", "a b", "$HOME", "|", "x"), type="oneshot", after=("b",), cwd="/etc/sub"
    )
    assert made == Timer(
        "t", "job", on_calendar=(Calendar((0, 30), None, None, None, (1,)),), retry_intervals_sec=()
    )
    assert (made.enabled, made.persistent, made.catch_up_window_sec) == (True, True, 86_400)


@pytest.mark.parametrize(("given", "kept"), [(True, "always"), (False, "no"), ("on-failure", "on-failure")])
def test_restart_takes_booleans(given: Any, kept: str) -> None:
    """True and false are accepted for always and no."""
    assert config([service(restart=given)]).services[0].restart == kept


def test_zero_window() -> None:
    """Catch-up is turned off with a window of 0, and only there is 0 a length of time."""
    assert config(None, [timer(catch_up_window_sec=0)]).timers[0].catch_up_window_sec == 0


def test_instances() -> None:
    """Instances, and those of subclasses, are checked like mappings; a None that is the default is absent."""

    class Nightly(Timer):
        """A subclass of a user's own."""

    found = config(
        [Service("job", "true", type="oneshot", cwd=None), Service("bad", "true", enabled=None)],  # type: ignore[arg-type]
        [Nightly("t", "job", on_calendar=Calendar(hour=3, minute=[0, 30])), Timer("u", "job")],
    )
    assert [each.id for each in found.services] == ["job"]
    assert found.timers[0].on_calendar == (Calendar((0, 30), (3,)),)
    assert type(found.timers[0]) is Timer
    assert [each.reason for each in found.invalid] == [
        "enabled must be true or false, not null (None)",
        f"has no trigger; give at least one of {TRIGGERS}",
    ]


def test_checked_entries_check_the_same() -> None:
    """What was checked once passes again, unchanged."""
    once = config(
        [JOB, service(id="web", restart=False, env={"A": "b"}, cwd="/x")],
        [timer(on_calendar=[HOURLY, {"month": 2}], on_startup_sec=5, timezone="Europe/Berlin")],
    )
    again = config_of(PATH, once.services, once.timers)
    assert (again.services, again.timers, again.invalid) == (once.services, once.timers, ())


ESCAPED = "in a user or password write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"


@pytest.mark.parametrize(
    ("table", "reasons"),
    [
        ({"timer": True}, ['unknown key "timer"; did you mean timers?']),
        ({"db": "x"}, ['unknown key "db"; did you mean store?']),
        ({"enabled": 1, "timers": "on"}, [
            "enabled must be true or false, not 1",
            'timers must be true or false, not "on"',
        ]),
        ({"store": ""}, ["store is empty"]),
        (
            {"store": "mysql://app:secret@db/app"},
            ["store must be the path of a SQLite file or begin with postgresql://"],
        ),
        (
            {"store": "postgresql://a:pass/word@db/app"},
            [f"store is an address that can be read in two ways; {ESCAPED}"],
        ),
        (
            {"store": "postgresql://a:secret@db:0/app"},
            [f"store has a port that is no number from 1 to 65535; {ESCAPED}"],
        ),
        ({"lease_sec": 0.1}, ["lease_sec must be at least 0.5 s, not 0.1"]),
        ({"socket": 3}, ["socket must be text, not 3"]),
        ({"timezone": "Mars"}, ['timezone: there is no time zone "Mars"']),
        ({"shutdown_timeout_sec": 0}, ["shutdown_timeout_sec must be a positive number of seconds, not 0"]),
        ({"kill_grace_sec": True}, ["kill_grace_sec must be a number of seconds, not true"]),
        ({"history_days": 0}, ["history_days must be a positive number of days, at most 36525, not 0"]),
        ({"history_days": "x"}, ['history_days must be a number of days, not "x"']),
        ({"history_runs": 1.5}, ["history_runs must be a whole number, not 1.5"]),
        ({"output_kib": 0}, ["output_kib must be 1 to 1048576, not 0"]),
    ],
)  # fmt: skip
def test_bad_settings(table: dict[str, Any], reasons: list[str]) -> None:
    """Each setting that cannot be used is told, and has its default instead."""
    found = config(supervisor=table)
    said = [(each.kind, each.reason.partition("; did you mean W")[0]) for each in found.invalid]
    assert said == [("supervisor", reason) for reason in reasons]
    assert found.settings == Settings()


@pytest.mark.parametrize(
    ("at_startup", "kind", "is_target", "starts"),
    [
        (None, "simple", False, True),
        (None, "oneshot", False, True),
        (None, "oneshot", True, False),
        (True, "oneshot", True, True),
        (False, "simple", False, False),
    ],
)
def test_start_at_boot(at_startup: bool | None, kind: Any, is_target: bool, starts: bool) -> None:
    """The job of a timer does not also run at every start, unless it says so."""
    job = Service("job", ("x",), type=kind, at_startup=at_startup)
    assert starts_at_boot(job, {"job"} if is_target else set()) is starts
