"""`duly import systemd`, as it is called from a shell: what it writes, and what it says is not written."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duly.cli import main
from duly.config import Calendar, load

SERVICE = "[Service]\nType=oneshot\nExecStart=/usr/bin/save\n"


def imported(folder: Path, units: dict[str, str]) -> Result:
    """Import these units to duly.toml beside them."""
    (folder / "units").mkdir()
    for name, text in units.items():
        (folder / "units" / name).write_text(text)
    arguments = ["import", "systemd", str(folder / "units"), "-o", str(folder / "duly.toml")]
    return CliRunner().invoke(main, arguments)


def said(folder: Path, timer: str, service: str = SERVICE) -> str:
    """What is said about a timer, or its service, that is left out."""
    result = imported(folder, {"t.timer": timer, "t.service": service})
    assert result.exit_code == 1
    assert load(folder / "duly.toml").timers == ()
    return result.stderr


def test_a_timer_and_its_service(tmp_path: Path) -> None:
    """A timer and its service become one job that duly loads, with the same schedule and the same command."""
    result = imported(
        tmp_path,
        {
            "backup.timer": (
                "[Unit]\nDescription=nightly\n[Timer]\n# a comment\n"
                "OnCalendar=Mon..Fri *-*-* 03:30 Europe/Berlin\n"
                "OnCalendar=Sat,Sun *-*-* 0/6:00:00 Europe/Berlin\n"
                "Persistent=true\nRandomizedDelaySec=10min\n"
                "AccuracySec=1us\nWakeSystem=true\n[Install]\nWantedBy=timers.target\n"
            ),
            "backup.service": (
                "[Unit]\nDescription=All of it\nAfter=network.target\n[Service]\nType=oneshot\n"
                'Environment="A=b c" D=100%%\nExecStart=-/usr/bin/save --to \\\n  "the disk"\n'
                "WorkingDirectory=/srv\nTimeoutStartSec=1h 30min\n"
            ),
        },
    )
    units = tmp_path / "units"
    assert result.stderr.splitlines() == [
        "backup.service:7: ExecStart=-: a failure counts as a failure here",
        "backup.service:3: After=network.target is not translated",
        "backup.timer:10: WakeSystem=true is not translated",
        f"1 translated, 0 left out; wrote {tmp_path / 'duly.toml'}",
    ]
    assert units.is_dir()
    assert result.exit_code == 0
    assert (tmp_path / "duly.toml").read_text().startswith("# Translated from systemd units by")
    config = load(tmp_path / "duly.toml")
    assert config.invalid == ()
    assert config.settings.timers
    [service], [timer] = config.services, config.timers
    assert (service.id, service.command) == ("backup", ("/usr/bin/save", "--to", "the disk"))
    assert service.env["D"] == "100%"
    assert (service.env["A"], service.cwd, service.timeout_sec) == ("b c", "/srv", 5400)
    assert timer.on_calendar == (
        Calendar((30,), (3,), None, None, (1, 2, 3, 4, 5)),
        Calendar((0,), (0, 6, 12, 18), None, None, (0, 6)),
    )
    assert (timer.timezone, timer.persistent, timer.random_delay_sec) == ("Europe/Berlin", True, 600)
    assert timer.retry_intervals_sec == ()


def test_who_runs_it_and_its_limits(tmp_path: Path) -> None:
    """The user, the limits and the file of variables are those of the unit; what has no equal is listed."""
    unit = (
        "[Service]\nType=oneshot\nExecStart=/x\nUser=backup\nGroup=adm\nUMask=0027\nNice=5\n"
        "LimitNOFILE=4096\nMemoryMax=512M\nEnvironmentFile=-/etc/default/x\nPrivateTmp=yes\n"
    )
    result = imported(tmp_path, {"x.service": unit})
    assert "x.service:11: PrivateTmp=yes is not translated" in result.stderr
    [made] = load(tmp_path / "duly.toml").services
    assert (made.user, made.group, made.umask, made.nice) == ("backup", "adm", "027", 5)
    assert (made.nofile, made.memory_max, made.env_file) == (4096, 512 << 20, "-/etc/default/x")
    (tmp_path / "units" / "x.service").write_text(unit.replace("512M", "50%").replace("4096", "1:2"))
    again = ["import", "systemd", str(tmp_path / "units")]
    said = CliRunner().invoke(main, again).stderr
    assert "MemoryMax=50% is not translated" in said
    assert "LimitNOFILE=1:2 is not translated" in said


@pytest.mark.parametrize(
    "line", ["WorkingDirectory=~", "WorkingDirectory=%h/x", "EnvironmentFile=%h/x", "Environment=A=%H"]
)
def test_places_that_only_systemd_knows(tmp_path: Path, line: str) -> None:
    """A home directory and a specifier are listed: duly would take them as they stand."""
    result = imported(tmp_path, {"x.service": f"[Service]\nExecStart=/x\n{line}\n"})
    assert f"x.service:3: {line} is not translated" in result.stderr
    [made] = load(tmp_path / "duly.toml").services
    assert (made.cwd, made.env_file, made.env) == (None, None, {})


def test_intervals(tmp_path: Path) -> None:
    """OnUnitActiveSec is a fixed rate, OnUnitInactiveSec counts from the end; OnBootSec is the first run."""
    result = imported(
        tmp_path,
        {
            "rate.timer": "[Timer]\nOnBootSec=5min\nOnUnitActiveSec=1h\n",
            "rate.service": SERVICE,
            "after.timer": (
                "[Timer]\nOnStartupSec=30\nOnUnitInactiveSec=90s\nUnit=rate.service\nRandomizedDelaySec=9\n"
            ),
        },
    )
    assert result.exit_code == 0, result.stderr
    assert "after.timer:5: RandomizedDelaySec=9 is not translated" in result.stderr
    after, rate = load(tmp_path / "duly.toml").timers
    assert (rate.on_startup_sec, rate.every, rate.after_end, rate.persistent) == (300, 3600, False, False)
    assert (after.on_startup_sec, after.on_unit_active_sec, after.after_end) == (30, 90, True)


def test_services_without_a_timer(tmp_path: Path) -> None:
    """A service that no timer runs stays one, and is restarted as systemd would."""
    result = imported(
        tmp_path,
        {
            "web.service": "[Service]\nExecStart=/usr/sbin/nginx -g 'daemon off;'\nRestart=on-failure\n",
            "once.service": SERVICE,
            "x@.service": SERVICE,
            "notes.txt": "?",
        },
    )
    assert "x@.service: left out: it is a template" in result.stderr
    once, web = load(tmp_path / "duly.toml").services
    assert (web.type, web.restart, web.command) == (
        "simple",
        "on-failure",
        ("/usr/sbin/nginx", "-g", "daemon off;"),
    )
    assert (once.type, once.id) == ("oneshot", "once")


@pytest.mark.parametrize(
    ("timer", "service", "part"),
    [
        ("OnCalendar=2027-*-* 1:00", SERVICE, 't.timer:2: left out: OnCalendar "2027-*-* 1:00" names years'),
        ("OnCalendar=*:*:0/10", SERVICE, "names seconds; duly fires at whole minutes"),
        ("OnCalendar=*-*~3 1:00", SERVICE, "counts days from the end of the month"),
        ("OnCalendar=25:00", SERVICE, "has 25, which is out of range"),
        ("OnCalendar=never", SERVICE, "is no calendar expression"),
        ("OnCalendar=1:00 UTC\nOnCalendar=2:00 Europe/Berlin", SERVICE, "several time zones"),
        ("OnBootSec=3 fortnights", SERVICE, 'has the unknown unit "fortnights"'),
        ("OnClockChange=true", SERVICE, "it has no trigger that duly knows"),
        ("OnCalendar=daily\nUnit=gone.service", SERVICE, "there is no gone.service beside it"),
        ("OnCalendar=daily", "[Service]\nType=forking\nExecStart=/x\n", "Type=forking"),
        ("OnCalendar=daily", "[Service]\nExecStart=/x\nExecStart=/y\n", "it has 2 ExecStart, not one"),
        (
            "OnCalendar=daily",
            "[Service]\nExecStart=/x $HOME\n",
            "t.service:2: t.timer is left out: ExecStart has",
        ),
        ("OnCalendar=daily", "[Service]\nExecStart=/x %i\n", 'has the specifier "%i"'),
        ("OnCalendar=daily", "[Service]\nExecStart=+/x\n", "ExecStart begins with +"),
        ("OnCalendar=daily", "[Service]\nExecStart=/x 'y\n", "a quote that is not closed"),
    ],
)
def test_left_out(tmp_path: Path, timer: str, service: str, part: str) -> None:
    """What would run at another time, or as another command, is left out, with its place and the reason."""
    assert part in said(tmp_path, f"[Timer]\n{timer}\n", service)


def test_last_day_and_resets(tmp_path: Path) -> None:
    """`~1` is the last day of a month; an empty assignment takes back what was said before."""
    result = imported(
        tmp_path,
        {
            "t.timer": "[Timer]\nOnCalendar=2027-1-1\nOnCalendar=\nOnCalendar=*-*~1 18:00\n",
            "t.service": SERVICE,
        },
    )
    assert result.exit_code == 0, result.stderr
    [timer] = load(tmp_path / "duly.toml").timers
    assert timer.on_calendar == (Calendar((0,), (18,), "last"),)
