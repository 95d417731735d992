"""Jobs: one entry that is a service and a timer; when they run, and what they have in common."""

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from click.testing import CliRunner

from duly.cli import main
from duly.config import Calendar, Config, Job, Service, Timer, config_of, load
from duly.config.crontab import toml_of, translated_crontab
from duly.config.json_schema import json_schema
from duly.config.plan import changes
from duly.config.values import seconds
from duly.daemon.views import schedule_text
from duly.schedules import offset_s
from tests.unit.test_docs import BLOCKS

FOLDER = Path("/etc")
WORKDAYS = (1, 2, 3, 4, 5)


def config(*jobs: object, **others: Any) -> Config:
    return config_of(FOLDER / "duly.toml", jobs=jobs, supervisor={"timers": True}, **others)


def job(**keys: Any) -> dict[str, Any]:
    return {"id": "a", "command": "true", **keys}


def timer(**keys: Any) -> Timer:
    """The timer of a job with these keys."""
    found = config(job(**keys))
    assert found.invalid == ()
    return found.timers[0]


def reason(**keys: Any) -> str:
    [invalid] = config(job(**keys)).invalid
    assert (invalid.kind, invalid.id) == ("job", "a")
    return invalid.reason


# --- a service and a timer ---


def test_a_job_is_a_service_and_a_timer() -> None:
    """A job is a oneshot and a timer of the same id; the keys of both mean what they mean there."""
    found = config(
        job(
            command="run 'a b'",
            env={"A": "1"},
            cwd="sub",
            timeout="5m",
            daily="03:30",
            retry_intervals=[30, "2m"],
            timezone="Europe/Berlin",
            enabled=False,
            description="x",
        )
    )
    assert found.invalid == ()
    [service], [made] = found.services, found.timers
    assert service == Service(
        "a",
        ("run", "a b"),
        type="oneshot",
        env={"A": "1"},
        cwd="/etc/sub",
        timeout_sec=300,
        description="x",
    )
    assert made == Timer(
        "a",
        "a",
        enabled=False,
        on_calendar=(Calendar((30,), (3,)),),
        retry_intervals_sec=(30, 120),
        timezone="Europe/Berlin",
        description="x",
    )
    assert found.targets == {"a"}


def test_instances() -> None:
    """In Python a job can be an instance."""
    assert config(Job("a", ["true"], daily="03:30")) == config(job(command=["true"], daily="03:30"))


def test_defaults() -> None:
    """A job has the defaults unless it says otherwise; variables are added one by one."""
    defaults = {"env": {"A": "1", "B": "1"}, "timeout": "5m", "cwd": "x", "retry_intervals": []}
    found = config(
        job(daily="1:00", env={"B": "2"}, timeout_sec=3), job(id="b", daily="1:00"), defaults=defaults
    )
    assert found.invalid == ()
    assert [each.env for each in found.services] == [{"A": "1", "B": "2"}, {"A": "1", "B": "1"}]
    assert [each.timeout_sec for each in found.services] == [3, 300]
    assert {each.cwd for each in found.services} == {"/etc/x"}
    assert {each.retry_intervals_sec for each in found.timers} == {()}


def test_bad_defaults() -> None:
    """What is wrong with a default is told once, as a setting is, and not with each job."""
    found = config(job(daily="1:00"), defaults={"timout": 3, "cwd": 3, "daily": "1:00"})
    assert [(each.kind, each.reason) for each in found.invalid] == [
        ("supervisor", 'defaults: unknown key "timout"; did you mean timeout or timeout_sec?'),
        ("supervisor", 'defaults: unknown key "daily"'),
        ("supervisor", "defaults: cwd must be text, not 3"),
    ]
    assert len(found.timers) == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "has no trigger; give at least one of cron, every, daily, at, on_startup, on_calendar"),
        ({"daily": "1:00", "comand": "x"}, 'unknown key "comand"; did you mean command?'),
        ({"daly": "1:00"}, 'unknown key "daly"; did you mean daily?'),
        ({"daily": "1:00", "type": "simple"}, 'unknown key "type"'),
        ({"daily": "1:00", "target": "b"}, 'unknown key "target"'),
        ({"daily": "1:00", "command": []}, "command is empty"),
        ({"daily": "1:00", "requires": ["b"]}, 'requires "b", which is no service'),
        ({"daily": "1:00", "timeout": 3, "timeout_sec": 4}, "timeout and timeout_sec are the same"),
        ({"daily": "25:00"}, "daily needs a time of day such as '03:30', not '25:00'"),
        ({"every": "5 minutes"}, "every needs a length of time such as '5m' or '1h 30m', not '5 minutes'"),
        ({"every": "5 mint"}, "every needs a length of time such as '5m' or '1h 30m', not '5 mint'"),
        ({"every": "10"}, "every needs a length of time such as '5m' or '1h 30m', not '10'"),
        ({"every": 0.01}, "every needs a period of at least 0.1 s"),
        ({"at": "tomorrow"}, "at needs a time such as '2026-12-24 18:00', not \"tomorrow\""),
        ({"at": "9999-12-31 23:00"}, "at needs a year from 1900 to 9000, not 9999"),
        ({"after_end": True, "daily": "1:00"}, 'after_end says what every counts from; add every = "..."'),
        ({"cron": "* * * *"}, 'cron needs five fields, and "* * * *" has 4 fields'),
        ({"cron": "0 * * * * *"}, 'cron needs five fields, and "0 * * * * *" has 6 fields; there are no'),
        ({"cron": "0 25 * * *"}, 'cron: the hour field "25" must be 0-23, not 25'),
        (
            {"cron": "0 0 L * *"},
            'cron: the day field "L" cannot be read; the last day of a month is on_calendar = ',
        ),
        ({"cron": "@reboot"}, 'cron is no time of the clock with @reboot; write on_startup = "1s" instead'),
        ({"cron": "@sometimes"}, 'cron needs five fields, and "@sometimes" has one field'),
        ({"cron": 5}, 'cron must be a text such as "*/15 9-17 * * mon-fri", not 5'),
        ({"daily": "1:00", "dst": "twice"}, 'dst must be "once" or "both", not "twice"'),
        (
            {"daily": "1:00", "exclude": "christmas"},
            'exclude must be dates such as "2026-12-25", or the path',
        ),
        ({"daily": "1:00", "exclude": "no.ics"}, 'exclude: "no.ics" cannot be read: No such file'),
    ],
)
def test_bad_jobs(keys: dict[str, Any], said: str) -> None:
    """A job with a mistake is one invalid entry, whichever of its parts the mistake is in."""
    assert reason(**keys).startswith(said)


def test_a_bad_job_harms_nobody() -> None:
    """Neither part of an invalid job is used, and its neighbours are."""
    found = config(job(id="bad", daily="x"), "x", job(daily="1:00"))
    assert [each.id for each in found.services] == [each.id for each in found.timers] == ["a"]
    assert [(each.kind, each.id, each.index) for each in found.invalid] == [
        ("job", "bad", 0),
        ("job", None, 1),
    ]


def test_a_job_that_becomes_invalid_is_kept() -> None:
    """A reload with a mistake in a job removes neither its service nor its timer."""
    before, after = config(job(daily="1:00")), config(job(daily="x"))
    planned = changes(before, after, after.invalid)
    assert planned.removed == ()
    assert [(each.kind, each.id) for each in planned.kept] == [("service", "a"), ("timer", "a")]


def test_ids_are_taken() -> None:
    """A service or a timer of the same id comes first."""
    service = {"id": "a", "command": "true"}
    found = config(job(daily="1:00"), services=[service])
    assert [each.reason for each in found.invalid] == ['the id "a" is taken by an earlier service']
    assert (len(found.services), found.timers) == (1, ())


def test_an_id_that_is_taken_is_told_once() -> None:
    """That a job has the id of another one is one fault, though both its parts have it."""
    found = config(job(daily="1:00"), job(daily="2:00"))
    assert [each.reason for each in found.faults] == ['the id "a" is taken by an earlier service']
    timers = [{"id": "a", "target": "a", "daily": "3:00"}]
    found = config(job(daily="1:00"), timers=timers)
    assert 'the id "a" is taken by an earlier timer' in [each.reason for each in found.faults]


def test_places(tmp_path: Path) -> None:
    """Mistakes in jobs have the line of their key, in tables and in lists."""
    path = tmp_path / "duly.toml"
    path.write_text('[[job]]\nid = "a"\ncommand = "x"\ntimeout = "x"\n\n[[job]]\nid = "b"\n')
    assert [(each.kind, each.line) for each in load(path).invalid] == [("job", 4), ("job", 6)]
    path.write_text('job = [\n  { id = "a" },\n\n  { id = "b" },\n]\n')
    assert [(each.id, each.line) for each in load(path).invalid] == [("a", 2), ("b", 4)]


# --- when ---


@pytest.mark.parametrize(
    ("keys", "calendars", "words"),
    [
        (
            {"cron": "*/15 9-17 * * mon-fri"},
            [Calendar((0, 15, 30, 45), tuple(range(9, 18)), None, None, WORKDAYS)],
            "Every 15 minutes from 09:00 to 17:45, Monday to Friday",
        ),
        (
            {"cron": "0 0 13 * fri"},
            [Calendar((0,), (0,), (13,)), Calendar((0,), (0,), None, None, (5,))],
            "At 00:00, on the 13th of the month; At 00:00, every Friday",
        ),
        ({"cron": "0 0 * * 7"}, [Calendar((0,), (0,), None, None, (0,))], "At 00:00, every Sunday"),
        ({"cron": "@hourly"}, [Calendar((0,))], "Every hour"),
        ({"daily": "3:05"}, [Calendar((5,), (3,))], "At 03:05, every day"),
        (
            {"on_calendar": {"hour": "9-17", "minute": "*/30", "day_of_week": "mon-fri"}},
            [Calendar((0, 30), tuple(range(9, 18)), None, None, WORKDAYS)],
            "Every 30 minutes from 09:00 to 17:30, Monday to Friday",
        ),
        (
            {"on_calendar": {"day": "last", "hour": [9, "13-14"], "minute": 0, "month": "jan,jul"}},
            [Calendar((0,), (9, 13, 14), "last", (1, 7), None)],
            "At 09:00, 13:00 and 14:00, on the last day of January and July",
        ),
        ({"every": "90m"}, [], "Every 1h 30m"),
        ({"at": "2026-12-24 18:00"}, [], "Once, at 2026-12-24 18:00:00"),
        ({"on_startup": "30s"}, [], "30s after start-up"),
        ({"every": "5m", "after_end": True}, [], "5m after each run of a"),
        ({"on_unit_active": "5m"}, [], "5m after each run of a"),
    ],
)
def test_when(keys: dict[str, Any], calendars: list[Calendar], words: str) -> None:
    """Each way to say when becomes what there is, and has its words."""
    made = timer(**keys)
    assert list(made.on_calendar) == calendars
    assert schedule_text(made) == words


def test_checked_timers_stay_as_they_are() -> None:
    """What was checked once is the same when it is checked again."""
    keys: dict[str, Any] = {"cron": "0 3 * * *", "every": "5m", "after_end": True, "at": "2026-12-24 18:00"}
    keys |= {"exclude": ["2026-12-25"], "random_delay": "10m", "dst": "both"}
    found = config(job(**keys))
    again = config_of(found.path, found.services, found.timers, {"timers": True})
    assert (again.services, again.timers, again.invalid) == (found.services, found.timers, ())


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("5m", 300),
        ("5 min", 300),
        ("1h 30min", 5400),
        ("1h 30m", 5400),
        ("0.5s", 0.5),
        ("1w", 604_800),
        (7, 7),
    ],
)
def test_lengths_of_time(written: Any, meant: float) -> None:
    """A length of time is a number of seconds, or a text as the library takes it."""
    assert seconds(written, "x") == meant
    found = config_of(
        FOLDER / "duly.toml", supervisor={"shutdown_timeout": written, "kill_grace_sec": written}
    )
    assert (found.settings.shutdown_timeout_sec, found.settings.kill_grace_sec) == (meant, meant)


def test_a_setting_that_is_there_twice() -> None:
    """A setting and a default with and without its unit are refused, as those of an entry are."""
    twice = {"kill_grace": 1, "kill_grace_sec": 2}
    found = config_of(FOLDER / "duly.toml", supervisor=twice, defaults={"timeout": 1, "timeout_sec": 2})
    assert [each.reason for each in found.invalid] == [
        "kill_grace and kill_grace_sec are the same; give one of them",
        "defaults: timeout and timeout_sec are the same; give one of them",
    ]


def test_random_delay_in_words() -> None:
    """The offset is worked out from the id, with the function of the library, and shown."""
    later = offset_s("a", 600_000_000)
    words = schedule_text(timer(daily="3:00", random_delay="10m"))
    assert words == f"At 03:00, every day; {later // 60}m {later % 60}s later (random_delay)"


def test_an_order_of_jobs_holds_up_no_timer() -> None:
    """What a job comes after, or requires, is for starts of the daemon, and who relies on it is warned."""
    web = {"id": "web", "command": "x"}
    rows = (
        job(daily="1:00", requires=["web"]),
        job(id="b", daily="2:00", after=["a"]),
        job(id="c", daily="3:00", after=["web"], at_startup=True),
    )
    found = config(*rows, services=[web, {**web, "id": "other", "after": ["web"]}])
    assert [(each.id, each.reason.partition(":")[0]) for each in found.warnings] == [
        ("a", "requires holds up only a start of the daemon"),
        ("b", "after holds up only a start of the daemon"),
    ]


def test_what_has_no_slots_is_not_moved(tmp_path: Path) -> None:
    """A delay and dates that a job without slots says itself are pointed out; those of all jobs are not."""
    path = tmp_path / "duly.toml"
    when = ("on_startup = 1", "every = 5\nafter_end = true", "every = 5", 'daily = "1:00"')
    more = 'random_delay = "10m"\nexclude = "2026-12-25"\n'
    jobs = [f'[[job]]\nid = "{number}"\ncommand = "x"\n{each}\n' for number, each in enumerate(when)]
    path.write_text("[supervisor]\ntimers = true\n" + more.join(jobs) + more)
    found = load(path)
    assert [(each.id, each.reason.partition(":")[0]) for each in found.warnings] == [
        (number, f"{key} has no effect") for number in "01" for key in ("random_delay", "exclude")
    ]
    assert ["random_delay" in schedule_text(each) for each in found.timers] == [False, False, True, True]
    path.write_text("[supervisor]\ntimers = true\n[defaults]\n" + more + "".join(jobs))
    assert load(path).warnings == ()
    late = "[defaults]\npersistent = false\n[supervisor]\ntimers = true\n"
    path.write_text(f'{late}{jobs[3]}catch_up_window = "1h"\n')
    assert [each.reason for each in load(path).warnings] == [
        "catch_up_window has no effect: persistent is false"
    ]


ICS = (
    "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART;VALUE=DATE:20261224\r\nDTEND;VALUE=DATE:20261227\r\n"
    "SUMMARY:Christ\r\n mas\r\nEND:VEVENT\r\n{}END:VCALENDAR\r\n"
)


def test_exclude(tmp_path: Path) -> None:
    """Dates and the events of calendar files are excluded; a file that changes is read again."""
    path, ics = tmp_path / "duly.toml", tmp_path / "h.ics"
    path.write_text('[[job]]\nid="a"\ncommand="x"\ndaily="1:00"\nexclude = ["h.ics", 2026-12-31]\n')
    ics.write_text(ICS.format(""))
    days = ("2026-12-24", "2026-12-25", "2026-12-26", "2026-12-31")
    assert load(path).timers[0].exclude == days
    ics.write_text(ICS.format("BEGIN:VEVENT\r\nDTSTART:20270101T100000Z\r\nEND:VEVENT\r\n"))
    assert load(path).timers[0].exclude == (*days, "2027-01-01")
    ics.write_text(ICS.format("BEGIN:VEVENT\r\nDTSTART:20270101\r\nRRULE:FREQ=YEARLY\r\nEND:VEVENT\r\n"))
    [invalid] = load(path).invalid
    assert invalid.reason.endswith("an event has RRULE, which is not read here; list its dates")
    ics.write_text("Dear all,\nwe are closed at Christmas.\n")
    [invalid] = load(path).invalid
    assert invalid.reason.endswith("it is no calendar, which begins with BEGIN:VCALENDAR")


def test_exclude_what_calendars_of_others_hold(tmp_path: Path) -> None:
    """An alarm within an event and a zone beside it are passed over; a cancelled event does not count."""
    event = "BEGIN:VEVENT\nDTSTART:{}T100000\n{}END:VEVENT\n"
    alarm = "BEGIN:VALARM\nTRIGGER:-PT15M\nDURATION:PT5M\nEND:VALARM\n"
    zone = "BEGIN:VTIMEZONE\nBEGIN:STANDARD\nRRULE:FREQ=YEARLY\nEND:STANDARD\nEND:VTIMEZONE\n"
    events = event.format("20261224", alarm) + event.format("20261225", "STATUS:CANCELLED\n")
    (tmp_path / "h.ics").write_text(f"BEGIN:VCALENDAR\n{zone}{events}END:VCALENDAR\n")
    path = tmp_path / "duly.toml"
    path.write_text('[[job]]\nid="a"\ncommand="x"\ndaily="1:00"\nexclude = "h.ics"\n')
    assert load(path).timers[0].exclude == ("2026-12-24",)


# --- included files, size ---


def test_include(tmp_path: Path) -> None:
    """Included files add entries; one that cannot be read is an invalid job, with its place."""
    (tmp_path / "conf.d").mkdir()
    path = tmp_path / "duly.toml"
    path.write_text('[supervisor]\ntimers = true\ninclude = "conf.d/*.toml"\n\n[[job]]\nid = "own"\n')
    for name, text in {
        "1": '[[job]]\nid = "one"\ncommand = "true"\ndaily = "1:00"\n',
        "2": "[[job]\n",
        "3": "[supervisor]\ntimers = false\n",
        "4": '[[service]]\nid = "four"\n\n[[service]]\nid = "five"\ncommand = "x"\n',
    }.items():
        (tmp_path / "conf.d" / f"{name}.toml").write_text(text)
    found = load(path)
    assert [each.id for each in found.services] == ["five", "one"]
    assert [each.id for each in found.timers] == ["one"]
    assert {(each.kind, each.id, each.file, each.line) for each in found.invalid} == {
        ("job", "own", None, 5),
        ("job", None, "conf.d/2.toml", 1),
        ("job", None, "conf.d/3.toml", 1),
        ("service", "four", "conf.d/4.toml", 1),
    }
    shown = CliRunner().invoke(main, ["check", str(path)]).stdout
    assert f'{tmp_path}/conf.d/4.toml:1: error: service "four": has no command\n' in shown


def test_what_include_may_name(tmp_path: Path) -> None:
    """Patterns may begin at the root; one without a file is pointed out, and so is what a folder wants."""
    path, other = tmp_path / "a" / "duly.toml", tmp_path / "[b]" / "x.toml"
    for each in (path, other):
        each.parent.mkdir()
    other.write_text('[[job]]\nid = "one"\ncommand = "true"\ndaily = "1:00"\n')
    include = f'include = ["{tmp_path}/[[]b]/*.toml", "../[[]b]/*.toml", "conf.d/*.tmol", "../[[]b]"]\n'
    path.write_text(f"[supervisor]\ntimers = true\n{include}")
    found = load(path)
    assert [each.id for each in found.timers] == ["one"]
    assert [(each.reason, each.line) for each in found.warnings if "include" in each.reason] == [
        ('include "conf.d/*.tmol" matches no file', 3),
    ]
    [invalid] = found.invalid
    assert invalid.reason.startswith("is a directory; include = ")


def test_files_that_are_not_included(tmp_path: Path) -> None:
    """A folder with the customary name that is not read is pointed out."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a.toml").write_text("")
    path = tmp_path / "duly.toml"
    path.write_text('[[service]]\nid = "a"\ncommand = "x"\n')
    [warned] = load(path).warnings
    assert warned.reason.startswith("conf.d holds files that are not read")


@pytest.mark.heavy
def test_ten_thousand_entries(tmp_path: Path) -> None:
    """A file of 10,000 jobs loads, and so do 10,000 services with their timers."""
    path = tmp_path / "duly.toml"
    path.write_text(
        "".join(
            f'[[job]]\nid = "job-{number}"\ncommand = "/usr/local/bin/job --number {number} --verbose"\n'
            f'cron = "{number % 60} * * * mon-fri"\ntimeout = "5m"\ndescription = "one of many jobs"\n'
            for number in range(10_000)
        )
    )
    assert len(load(path).timers) == 10_000
    path.write_text(
        "".join(
            f'[[service]]\nid = "job-{number}"\ntype = "oneshot"\ncommand = ["job", "{number}"]\n'
            f'[[timer]]\nid = "job-{number}"\ntarget = "job-{number}"\non_calendar = {{ minute = 0 }}\n'
            for number in range(10_000)
        )
    )
    assert len(load(path).timers) == 10_000


# --- a crontab ---

CRONTAB = """\
# Server jobs. Ask ops before you change something.
SHELL=/bin/bash
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
MAILTO=ops@example.org

# backups
30 3 * * *     /usr/local/bin/backup --full --target /srv/backup
0 4 * * 0      /usr/local/bin/backup --verify
15 2 1 * *     /usr/local/bin/backup --archive >> /var/log/archive.log 2>&1
*/10 * * * *   flock -n /run/sync.lock rsync -a /srv/data/ standby:/srv/data/
0 0 * * *      find /srv/backup -mtime +30 -name '*.tgz' -delete
# database
5 * * * *      psql -q -c 'vacuum analyze' app
0 5 * * sat    pg_dump app | gzip > /srv/backup/app-$(date +\\%F).sql.gz
*/5 * * * *    /opt/app/bin/queue-stats
45 23 * * mon-fri /opt/app/bin/close-day
# web
@reboot        /opt/app/bin/warm-cache
*/15 9-17 * * mon-fri /opt/app/bin/send-reminders
0 8 1 1,4,7,10 * /opt/app/bin/invoices --quarter
0 9 1 * *      /opt/app/bin/invoices
@hourly        /opt/app/bin/expire-sessions
0 6-22/2 * * * /opt/app/bin/import-rates
20 4 * * *     cd /opt/app && ./bin/rebuild-index
* * * * *      /opt/app/bin/heartbeat > /dev/null
# system
0 1 * * *      /usr/sbin/logrotate /etc/logrotate.conf
@weekly        certbot renew --quiet
0 2 * * 1      apt-get -qq update
30 6 * * *     df -h | mail -s disks ops@example.org
10 0 * * *     /usr/local/bin/cleanup-tmp
0 12 13 * 5    /usr/local/bin/odd-day
0 7 * * 1-5    /usr/local/bin/report --daily
25 7 * * 7     /usr/local/bin/report --weekly
@monthly       /usr/local/bin/report --monthly
"""


def test_a_crontab_of_26_jobs(tmp_path: Path) -> None:
    """A crontab of 26 jobs becomes at most 80 lines, which load without a mistake as they were translated."""
    found = translated_crontab(CRONTAB)
    assert [remark.text for remark in found.remarks if "MAILTO" not in remark.text] == []
    assert len(found.entries) == 26
    text = toml_of(found)
    assert len(text.splitlines()) <= 80
    path = tmp_path / "duly.toml"
    path.write_text(text)
    loaded = load(path)
    assert loaded.invalid == ()
    as_in_cron = {"persistent": False, "retry_intervals": []}
    meant = config_of(path, jobs=[each.keys for each in found.entries], defaults=as_in_cron)
    assert (loaded.services, loaded.timers) == (meant.services, meant.timers)
    assert text.count("/usr/local/sbin") == 1


# --- the schema for editors ---

SCHEMA = json_schema()


@pytest.mark.parametrize("text", [text for form, text in BLOCKS if form == "toml"])
def test_schema_takes_what_duly_takes(text: str) -> None:
    """The examples of the reference page fit the schema."""
    jsonschema_rs.validator_for(SCHEMA).validate(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "[supervisor]\ntimer = true",
        "[supervisor]\nhistory_runs = 0",
        '[[job]]\nid = "a"',
        '[[job]]\nid = "a"\ncommand = "b"\ntype = "oneshot"',
        '[[job]]\nid = "a"\ncommand = "b"\nenabled = "yes"',
        '[[job]]\nid = "a"\ncommand = "b"\ndst = "twice"',
        '[[job]]\nid = "a"\ncommand = "b"\ntimeout = [1]',
        '[[service]]\nid = "a"\ncommand = "b"\nenv = { A = 1 }',
        '[[timer]]\nid = "a"\ntarget = "b"\non_calendar = { weekday = 1 }',
        '[defaults]\nid = "a"',
        "[service]",
        "[other]",
    ],
)
def test_schema_refuses_what_duly_refuses(text: str) -> None:
    """Unknown keys, wrong types and wrong words do not fit the schema."""
    assert not jsonschema_rs.validator_for(SCHEMA).is_valid(tomllib.loads(text))


def test_schema_knows_every_key() -> None:
    """Each key of a service or timer is in the schema, and says something of its value, a few apart."""
    properties = SCHEMA["properties"]
    for table, kind in (("service", Service), ("timer", Timer)):
        known = properties[table]["items"]["properties"]
        assert {each.name for each in fields(kind)} <= set(known)
        assert {name for name, each in known.items() if not each} <= {"at", "exclude"}
    assert {"cron", "timeout", "env", "on_startup"} <= set(properties["job"]["items"]["properties"])


def test_schema_is_printed() -> None:
    """`duly check --json-schema` prints it, and needs no file."""
    result = CliRunner().invoke(main, ["check", "--json-schema"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, SCHEMA)
