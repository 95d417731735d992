"""Crontabs: lines become services and timers that fire when cron would, or remarks that say why not."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.config import Calendar, Config, Service, Timer, config_of
from duly.config.crontab import Translated, command_of, percent_split, toml_of, translated_crontab
from duly.config.loading import load_content
from duly.cron import CronExpression
from tests.property.strategies import texts

SH = "/bin/sh"
PATH = Path("/etc/duly.toml")
ODD_STEP = "has a step that crons read differently, or not at all"
FIVE_FIELDS = "five fields come before the command; take out the seconds or the year"
NO_MAIL = "to be told, write a [[notify]]; the output of each run is in its history (duly logs)"


def jobs(text: str, **options: Any) -> list[tuple[Service, Timer]]:
    found = translated_crontab(text, **options)
    assert not [remark for remark in found.remarks if remark.is_left_out]
    config = meant(found)
    return list(zip(config.services, config.timers, strict=True))


def meant(found: Translated) -> Config:
    """The configuration that the translated entries are."""
    jobs = [each.keys for each in found.entries]
    return config_of(PATH, jobs=jobs, defaults={"persistent": False, "retry_intervals": []})


def job(line: str, **options: Any) -> tuple[Service, Timer]:
    [found] = jobs(line, **options)
    return found


def remarks(text: str, **options: Any) -> list[tuple[int, str]]:
    return [(remark.line, remark.text) for remark in translated_crontab(text, **options).remarks]


def loads_clean(found: Translated) -> None:
    """The written file has exactly the translated entries, none of them invalid."""
    config = load_content(PATH, toml_of(found).encode())
    assert config.invalid == ()
    assert (config.services, config.timers) == (meant(found).services, meant(found).timers)
    assert len(config.services) == len(found.entries)
    assert config.settings.timers


WORKDAYS = (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("fields", "calendars"),
    [
        ("* * * * *", [Calendar()]),
        ("*/20 0 * * *", [Calendar((0, 20, 40), (0,))]),
        ("0 9-17/4 * * Mon-Fri", [Calendar((0,), (9, 13, 17), None, None, WORKDAYS)]),
        ("0 0 1 jan,JUL *", [Calendar((0,), (0,), (1,), (1, 7))]),
        ("0 0 * * 7", [Calendar((0,), (0,), None, None, (0,))]),
        ("0 0 * * 5-7", [Calendar((0,), (0,), None, None, (0, 5, 6))]),
        ("0 0 1,15 * 1", [Calendar((0,), (0,), (1, 15)), Calendar((0,), (0,), None, None, (1,))]),
        ("0 0 1-31 * 1", [Calendar((0,), (0,))]),
        ("0 0 1 * 0-6", [Calendar((0,), (0,))]),
        ("0 0 */2 * 1", [Calendar((0,), (0,), tuple(range(1, 32, 2)), None, (1,))]),
        ("0 0 13 * */1", [Calendar((0,), (0,), (13,))]),
        ("@hourly", [Calendar((0,))]),
        ("@Weekly", [Calendar((0,), (0,), None, None, (0,))]),
        ("@annually", [Calendar((0,), (0,), (1,), (1,))]),
    ],
)
def test_times(fields: str, calendars: list[Calendar]) -> None:
    """Steps, names, macros and the two kinds of days become calendars; a starred day is ANDed, as in cron."""
    _, timer = job(f"{fields} run")
    assert list(timer.on_calendar) == calendars
    assert (timer.persistent, timer.retry_intervals_sec, timer.on_startup_sec) == (False, (), None)


def test_reboot() -> None:
    """What cron starts once, at its own start, is started after start-up."""
    service, timer = job("@reboot /opt/a.sh")
    assert (service.id, service.type, timer.on_startup_sec, timer.on_calendar) == ("a", "oneshot", 1, ())


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("/usr/bin/backup --full x", ("/usr/bin/backup", "--full", "x")),
        ("echo 'a|b'  \"c d\"", ("echo", "a|b", "c d")),
        ("mail --to=a@b,c", ("mail", "--to=a@b,c")),
        (r"date +\%F", ("date", "+%F")),
        ("a | b", (SH, "-c", "a | b")),
        ("a > /dev/null 2>&1", (SH, "-c", "a > /dev/null 2>&1")),
        ("cd /x && ./run", (SH, "-c", "cd /x && ./run")),
        ("A=1 run", (SH, "-c", "A=1 run")),
        ("run $HOME", (SH, "-c", "run $HOME")),
        ('run "$HOME"', (SH, "-c", 'run "$HOME"')),
        ("run '$HOME'", ("run", "$HOME")),
        ("run *.txt", (SH, "-c", "run *.txt")),
        ("run ~/x", (SH, "-c", "run ~/x")),
        ("run # comment", (SH, "-c", "run # comment")),
        ("run 'open", (SH, "-c", "run 'open")),
        (r"run a\ b", (SH, "-c", r"run a\ b")),
        (r"echo 'a\tb'", (SH, "-c", r"echo 'a\tb'")),
        (". /etc/profile", (SH, "-c", ". /etc/profile")),
        ("run %", ("run",)),
        ("cat%a%b", (SH, "-c", "{ cat\n} <<'END'\na\nb\nEND")),
        ("cat%END%", (SH, "-c", "{ cat\n} <<'END_'\nEND\nEND_")),
    ],
)
def test_commands(text: str, argv: tuple[str, ...]) -> None:
    """A command without shell syntax is split, any other is given to a shell that is spelled out."""
    assert command_of(text, SH) == argv


@pytest.mark.parametrize(
    ("text", "script", "stdin"),
    [
        (r"a\%b", "a%b", None),
        (r"a\\%b", "a\\\\", "b"),
        (r"a%b\%c%d", "a", "b%c\nd"),
        (r"a \b", r"a \b", None),
        ("a%", "a", None),
    ],
)
def test_percent_signs(text: str, script: str, stdin: str | None) -> None:
    """Percent signs are taken apart as cron takes them apart."""
    assert percent_split(text) == (script, stdin)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "text", ["cat%one%two\\%%%three", "cat; cat # done%END%'x' $HOME", "{ cat; } | tr a b%banana"]
)
def test_standard_input_arrives(text: str) -> None:
    """The spelled-out shell gives a command the input that cron would have given it."""
    script, stdin = percent_split(text)
    assert stdin is not None
    wanted = subprocess.run(
        [SH, "-c", script], input=f"{stdin}\n", capture_output=True, text=True, check=True
    )
    found = subprocess.run(command_of(text, SH), capture_output=True, text=True, check=True)
    assert found.stdout == wanted.stdout


def test_variables() -> None:
    """Variables hold for the lines below them; a home is also the directory, a shell also the shell."""
    (first, _), (second, _), (third, _) = jobs(
        "A = 1\n* * * * * one\nA='x y'\n\"B\" = \n HOME=/srv\n* * * * * two\n"
        "SHELL=/usr/bin/fish\n* * * * * three\n"
    )
    assert (first.env, first.cwd, first.command) == ({"A": "1"}, None, ("one",))
    assert (second.env, second.cwd) == ({"A": "x y", "B": "", "HOME": "/srv"}, "/srv")
    assert third.command == ("/usr/bin/fish", "-c", "three")


def test_zone() -> None:
    """The zone of the schedule is the zone of the timers; jobs of a zone that nobody knows are left out."""
    known = "0 1 * * * a\nCRON_TZ=Asia/Tokyo\n0 1 * * * b\n@reboot c\n"
    text = f"{known}CRON_TZ=Asia/Tokio\n0 1 * * * d\n@reboot e\n"
    found = translated_crontab(text)
    assert [(each.id, each.timezone) for each in meant(found).timers] == [
        ("a", None),
        ("b", "Asia/Tokyo"),
        ("c", None),
        ("e", None),
    ]
    [remark] = found.remarks
    assert remark.line == 6
    assert remark.text.startswith(
        'left out: CRON_TZ: there is no time zone "Asia/Tokio"; did you mean Asia/Tokyo'
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 25 * * * x", 'left out: the hour field "25" must be 0-23, not 25'),
        ("0 0 * foo * x", 'left out: the month field "foo" has a name that cron does not know'),
        ("*/0 * * * * x", f'left out: the minute field "*/0" {ODD_STEP}'),
        ("0 0 ? * 1 x", 'left out: the day field "?" has a Quartz token (? L W #)'),
        ("0 0 * *", "left out: it has 4 fields; five and a command are needed"),
        ("0 0 * * *", "left out: it has 5 fields; five and a command are needed"),
        *(
            (
                line,
                f'left out: its sixth word "{sixth}" looks like a time field: {FIVE_FIELDS}',
            )
            for line, sixth in (
                ("0 30 3 * * * run", "*"),
                ("0 30 3 ? * MON-FRI run", "MON-FRI"),
                ("*/10 * * * * * *", "*"),
                ("0 0 12 1/5 * ? * run", "?"),
                ("30 3 * * * 2030 run", "2030"),
                ("0 */5 * * * 1-5 2026-2030 run", "1-5"),
            )
        ),
        ("nonsense", "left out: it has 1 field; five and a command are needed"),
        ("@daily", "left out: it has no command"),
        ("@every 5m x", 'left out: "@every" is not a macro that all crons know'),
        ("* * * * * %x", "left out: it has no command"),
        ("MAILTO=root", f"MAILTO is not translated: {NO_MAIL}"),
        ("* * * * * root run", "the command begins with root; if that is the user, give --user-column"),
    ],
)
def test_remarks(line: str, reason: str) -> None:
    """What has no equal is told, with its line."""
    assert remarks(f"# comment\n\n{line}\n") == [(3, reason)]


def test_user_column() -> None:
    """In a system's crontab the sixth field is a user, who then runs the job."""
    text = "@daily root run x\n0 0 * * *\twww-data\tls\n* * * * * root\n@daily a\a b\n"
    found = translated_crontab(text, has_user_column=True)
    assert [(each.user, each.command) for each in meant(found).services] == [
        ("root", ("run", "x")),
        ("www-data", ("ls",)),
    ]
    assert [remark.text for remark in found.remarks] == [
        "left out: it has no command",
        'left out: user "a\\x07" holds a character that cannot be printed',
    ]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 /opt/report.py --x", "report"),
        ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run-parts"),
        ("nice -n 19 rsync -a a b", "rsync"),
        ("FOO=1 bar", "bar"),
        ("'$x'", "job-1"),
    ],
)
def test_names(command: str, name: str) -> None:
    """A job is called after its program, as far as that can be told."""
    assert job(f"* * * * * {command}")[0].id == name


def test_names_are_unique() -> None:
    """Jobs of the same program are numbered, and a number that is taken is passed over."""
    names = [service.id for service, _ in jobs("* * * * * a\n* * * * * a-2\n* * * * * a\n* * * * * a\n")]
    assert names == ["a", "a-2", "a-3", "a-4"]


def test_file() -> None:
    """The written file says where each entry comes from, and loads as it was translated."""
    text = (
        'PATH=/usr/bin\nX="a\\b \x7f ü"\n*/5 * 1 * 2 run | \x01 "q"\n@reboot cat%ü%\n'
        "HOME=/srv\nCRON_TZ=UTC\n1 2 3 4 * x\n"
    )
    found = translated_crontab(text)
    assert len(found.entries) == 3
    loads_clean(found)
    [line] = [line for line in toml_of(found).splitlines() if line.endswith("# line 3")]
    assert 'cron = "*/5 * 1 * 2", command = ["/bin/sh", "-c", "run | \\U00000001 \\"q\\""]' in line


def fires(calendars: tuple[Calendar, ...], moment: datetime) -> bool:
    """Whether some calendar names the minute, worked out from the fields alone."""
    shown = (moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
    return any(
        all(
            values is None or value in values
            for values, value in zip(
                (each.minute, each.hour, each.day_of_month, each.month, each.day_of_week), shown, strict=True
            )
        )
        for each in calendars
    )


@settings(max_examples=150)
@given(texts(), st.integers(0, 3000), st.data())
def test_calendars_fire_when_cron_does(text: str, day: int, data: st.DataObject) -> None:
    """Over four months, each day at its own minutes, the calendars fire exactly when the cron text is due."""
    expression = CronExpression.parse(text)
    [(_, timer)] = jobs(f"{text} run")
    start = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=day)
    minutes = st.integers(0, 1439)
    own = {60 * hour + minute for hour in range(24) for minute in range(60) if _at(expression, hour, minute)}
    sample = sorted({*data.draw(st.lists(minutes, max_size=5)), *sorted(own)[:2], *sorted(own)[-2:]})
    for number in range(120):
        for minute in sample:
            moment = start + timedelta(days=number, minutes=minute)
            assert fires(timer.on_calendar, moment) == expression.matches(moment), moment


def _at(expression: CronExpression, hour: int, minute: int) -> bool:
    return bool(expression.masks[0] >> minute & 1 and expression.masks[1] >> hour & 1)


@settings(max_examples=200)
@given(st.lists(st.text(max_size=30) | st.builds("{} {}".format, texts(), st.text(max_size=20)), max_size=6))
def test_any_text_is_translated_or_told(lines: list[str]) -> None:
    """Whatever a crontab holds, each line is a job, a variable or a remark, and the file loads clean."""
    text = "\n".join(line.replace("\0", "") for line in lines)
    loads_clean(translated_crontab(text))


def test_command_that_is_an_empty_text() -> None:
    """A line whose command is an empty quoted text is left to the shell, as cron does, and can be loaded."""
    found = translated_crontab("* * * * * '' now\n")
    assert [each.command for each in meant(found).services] == [("/bin/sh", "-c", "'' now")]
    loads_clean(found)


def test_shell_that_is_no_name() -> None:
    """An empty SHELL is as good as none."""
    found = translated_crontab("SHELL=' '\n* * * * * a | b\n")
    assert [each.command for each in meant(found).services] == [("/bin/sh", "-c", "a | b")]
    loads_clean(found)


def test_a_shell_that_looks_like_a_variable() -> None:
    """A command whose words would be refused as one text is written as a list of them."""
    text = toml_of(translated_crontab("SHELL=A=b\n* * * * * x\n"))
    assert 'command = ["A=b", "-c", "x"]' in text
    assert load_content(Path("/duly.toml"), text.encode()).invalid == ()
