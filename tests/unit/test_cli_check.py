"""`duly check`, as it is called from a shell."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duly.cli import main

NO_MINUTE = (
    "on_calendar gives hour and no minute, so it fires every minute of the matching hours;"
    ' write minute = 0 for once an hour, or minute = "*" if that is meant'
)
TRIGGERS = "cron, every, daily, at, on_startup, on_calendar, on_unit_active_sec"
KEYS = ["config", "ok", "services", "timers", "errors", "invalid", "warnings", "faults"]
BAD = """\
[supervisor]
timers = true

[[service]]
id = "job"
type = "oneshot"
command = ["true"]

[[service]]
command = ["true"]

[[timer]]
id = "a"
target = "job"
on_calendar = { hour = 3 }

[[timer]]
id = "b\\u001b"
target = "job"

[[timer]]
id = "c"
target = "nobody"
on_startup_sec = 1
"""


def check(folder: Path, text: str, *options: str, name: str = "duly.toml") -> Result:
    (folder / name).write_text(text)
    return CliRunner().invoke(main, ["check", str(folder / name), *options])


def test_everything_at_once(tmp_path: Path) -> None:
    """All that is wrong, then all that may surprise, then one line that sums it up; exit code 4."""
    result = check(tmp_path, BAD)
    assert result.exit_code == 4
    assert result.stderr == ""
    path = tmp_path / "duly.toml"
    assert result.stdout.splitlines() == [
        f"{path}:9: error: service 2: has no id",
        rf'{path}:18: error: timer 2: id "b\x1b" holds a character that cannot be printed',
        f"{path}:17: error: timer 2: has no trigger; give at least one of {TRIGGERS}",
        f'{path}:23: error: timer "c": target "nobody" is no service',
        f'{path}:15: warning: timer "a": {NO_MINUTE}',
        "  a: Every minute from 03:00 to 03:59, every day",
        "1 service and 1 timer can be used; 3 invalid, 1 warning.",
    ]


def test_json(tmp_path: Path) -> None:
    """Machines get the same findings as one object."""
    result = check(tmp_path, BAD, "--json")
    assert result.exit_code == 4
    found: Any = json.loads(result.stdout)
    assert list(found) == KEYS
    assert (found["ok"], found["services"], found["timers"], found["errors"]) == (False, ["job"], ["a"], [])
    assert found["invalid"][0] == {
        "kind": "service",
        "id": None,
        "index": 1,
        "line": 9,
        "reason": "has no id",
        "file": None,
    }
    assert [each["line"] for each in found["warnings"]] == [15]
    faults = [("service", 9), ("timer", 18), ("timer", 17), ("timer", 23)]
    assert [(each["kind"], each["line"]) for each in found["faults"]] == faults
    assert len(found["invalid"]) == 3


def test_nothing_wrong(tmp_path: Path) -> None:
    """A file without a fault gets one line and exit code 0, and so does one with warnings only."""
    result = check(tmp_path, '[[service]]\nid = "a"\ncommand = "true"\n')
    assert (result.exit_code, result.stdout) == (0, "1 service and 0 timers can be used; nothing is wrong.\n")
    result = check(tmp_path, "")
    assert result.exit_code == 0
    assert result.stdout.endswith("0 services and 0 timers can be used; nothing is invalid, 1 warning.\n")


@pytest.mark.parametrize("as_json", [True, False])
def test_unusable(tmp_path: Path, as_json: bool) -> None:
    """A file that cannot be used has exit code 4 as well, and the same shape for machines."""
    result = check(tmp_path, "[[services]]\n[[timers]]\n", *(["--json"] if as_json else []))
    assert result.exit_code == 4
    reasons = [
        'unknown table "services"; did you mean service?',
        'unknown table "timers"; did you mean timer?',
    ]
    path = tmp_path / "duly.toml"
    if as_json:
        found: Any = json.loads(result.stdout)
        assert list(found) == KEYS
        assert found["ok"] is False
        assert found["errors"] == [{"line": n, "reason": reason} for n, reason in enumerate(reasons, start=1)]
    else:
        lines = [f"{path}:{n}: error: {reason}" for n, reason in enumerate(reasons, start=1)]
        assert result.stdout.splitlines() == [*lines, "The file cannot be used."]


def test_printing_does_not_spoil_json(tmp_path: Path) -> None:
    """What a Python file prints is not on stdout, where the object is."""
    result = check(tmp_path, "print('hello')\nSERVICES = []\n", "--json", name="duly.py")
    assert result.stderr == "hello\n"
    assert json.loads(result.stdout)["warnings"][0]["line"] == 1


def test_host(tmp_path: Path) -> None:
    """Programs and directories that are not there are warned of, each where the service would look."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").touch(0o755)
    (tmp_path / "bin" / "plain").touch(0o644)
    rows = {
        "found": f"command = 'tool'\nenv = {{ PATH = '/nowhere:{tmp_path}/bin' }}",
        "lost": "command = 'tool'\nenv = { PATH = '/nowhere' }",
        "plain": f"command = 'plain'\nenv = {{ PATH = '{tmp_path}/bin' }}",
        "relative": "command = './tool'\ncwd = 'bin'",
        "absent": "command = './absent'\ncwd = 'bin'",
        "folder": f"command = '{tmp_path}/bin'",
        "homeless": "command = ['./tool']\ncwd = 'gone'",
        "misplaced": "command = ['/bin/sh']\ncwd = 'bin/tool'",
        "inherits": "command = 'sh'",
    }
    result = check(tmp_path, "".join(f"[[service]]\nid = '{name}'\n{row}\n" for name, row in rows.items()))
    assert result.exit_code == 0
    said = [line.split("warning: ")[1] for line in result.stdout.splitlines()[:-1]]
    assert said == [
        'service "lost": command "tool" is not in PATH (/nowhere)',
        f'service "plain": command "plain" is not executable; chmod +x {tmp_path}/bin/plain makes it so',
        'service "absent": command "./absent" does not exist',
        f'service "folder": command "{tmp_path}/bin" is a directory',
        f'service "homeless": cwd "{tmp_path}/gone" does not exist',
        f'service "misplaced": cwd "{tmp_path}/bin/tool" is not a directory',
    ]


def test_whom_nobody_reaches(tmp_path: Path) -> None:
    """A notify for a job that is not there is pointed out, and one whose command is not there."""
    job = '[supervisor]\ntimers = true\n[[job]]\nid = "backup"\ncommand = "true"\ndaily = "3:30"\n'
    notify = '[[notify]]\nid = "{}"\ncommand = {}\njobs = {}\n'
    rows = [
        ("fine", '"true"', '["backup", "back*", "*"]'),
        ("typo", '"true"', '"bakup"'),
        ("none", '"true"', '["backup", "web-*"]'),
        ("gone", '"/no/such/program"', '"*"'),
    ]
    result = check(tmp_path, job + "".join(notify.format(*row) for row in rows))
    assert [line.split("warning: ")[1] for line in result.stdout.splitlines()[:-2]] == [
        'notify "typo": jobs has "bakup", which is no service and no timer; did you mean backup?',
        'notify "none": jobs has "web-*", which is no service and no timer',
        'notify "gone": command "/no/such/program" does not exist',
    ]


def test_nothing_ahead(tmp_path: Path) -> None:
    """Of a job whose only times have passed, or are left out, it is said with its schedule."""
    job = '[[job]]\nid = "{}"\ncommand = "true"\n{}\n'
    rows = {
        "past": 'at = "2020-12-24 18:00"',
        "excluded": 'at = "2999-12-24 18:00"\nexclude = "2999-12-24"',
        "ahead": 'at = "2999-12-24 18:00"',
        "also": 'at = "2020-12-24 18:00"\nevery = "1h"',
        "rest": 'every = "1h"\nafter_end = true',
    }
    text = "[supervisor]\ntimers = true\n" + "".join(job.format(*row) for row in rows.items())
    shown = check(tmp_path, text).stdout.splitlines()
    assert [line.split(":")[0].strip() for line in shown if line.endswith("; nothing is ahead")] == [
        "past",
        "excluded",
    ]


def test_usage() -> None:
    """Without a file there is nothing to check."""
    assert CliRunner().invoke(main, ["check"]).exit_code == 2


def test_the_file_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file it is ./duly.toml, or what DULY_CONFIG says; where there is none, that is said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_CONFIG", raising=False)
    nothing = CliRunner().invoke(main, ["check"])
    assert nothing.exit_code == 2
    assert "there is neither duly.toml nor duly.py here; give a file: duly check FILE" in nothing.stderr
    (tmp_path / "duly.toml").write_text(BAD)
    assert "duly.toml:9: error: service 2: has no id" in CliRunner().invoke(main, ["check"]).stdout
    (tmp_path / "other.toml").write_text("")
    monkeypatch.setenv("DULY_CONFIG", "other.toml")
    assert "the file defines no service and no timer" in CliRunner().invoke(main, ["check"]).stdout


MANY = """\
[[service]]
id = "job"
type = "oneshot"
command = "save > all.txt"
restart = "no"
stage = 9
colour = "red"
env = { A = 1, B = "", C = true }
requires = ["nobody", "noone"]
after = ["job"]

[[timer]]
id = "t"
target = "nobody"
on_startup_sec = -1
on_unit_active_sec = "x"
on_calendar = [{ minute = 60, hour = 24 }, { month = 13 }]
timezone = "Mars/Olympus"
enabled = "yes"
"""


def test_every_fault_of_an_entry(tmp_path: Path) -> None:
    """An entry with many faults gets all of them, in one go; it is still one invalid entry."""
    result = check(tmp_path, MANY)
    said = [line.partition("error: ")[2] for line in result.stdout.splitlines() if "error: " in line]
    parts = [
        *("colour", '">"', "stage", "env.A", "env.C", "restart is for", "after names", '"nobody"', '"noone"'),
        *(
            "on_startup_sec",
            "on_unit_active_sec",
            "minute must",
            "hour must",
            "month",
            "Mars/Olympus",
            "enabled",
            '"nobody"',
        ),
    ]
    assert [part for part, line in zip(parts, said, strict=True) if part not in line] == []
    assert result.stdout.splitlines()[-1].startswith("0 services and 0 timers can be used; 2 invalid")


SHELL_TEXTS = pytest.mark.parametrize(
    ("command", "found"),
    [
        ("save > all.txt", ">"),
        ("save 2>&1", "2>&1"),
        ("dump | gzip", "|"),
        ("cd /srv && save", "&&"),
        ("save; sync", ";"),
        ("echo $HOME", "$HOME"),
        ('echo "$HOME"', "$HOME"),
        ("echo ${HOME}/x", "${HOME}"),
        ("echo `date`", "`date`"),
        ("rm /tmp/*.log", "*"),
        ("rm log[0-9]", "[0-9]"),
        ("ls ~/backup", "~/backup"),
        ("LANG=C sort x", "LANG="),
        ("save # each night", "#"),
    ],
)


@SHELL_TEXTS
def test_shell_syntax_for_a_shell(tmp_path: Path, command: str, found: str) -> None:
    """With `shell = true` the same texts are fine: that is the first way out."""
    text = f"[[service]]\nid = 'a'\nshell = true\ncommand = {json.dumps(command)}\n"
    assert check(tmp_path, text).exit_code == 0


@SHELL_TEXTS
def test_shell_syntax_in_a_text(tmp_path: Path, command: str, found: str) -> None:
    """What only a shell understands is refused, and both ways out are shown."""
    result = check(tmp_path, f"[[service]]\nid = 'a'\ncommand = {json.dumps(command)}\n")
    assert result.exit_code == 4
    line = result.stdout.splitlines()[0]
    assert f':3: error: service "a": command has "{found}", which only a shell understands' in line
    assert "For a shell: shell = true. If it is meant as it stands: command = [" in line


@pytest.mark.parametrize(
    "command",
    [
        "grep 'a*|b$' x",
        "awk '{ print $1 }' x",
        r"find . -name '*.py' -exec rm {} \;",
        ["grep", "*", "$HOME", "~/x", ">"],
        "curl http://127.0.0.1/?page=1",
        "git diff HEAD~1",
        "open page#top",
        "commit -m '# 7'",
        "[ -f x ]",
        "env LANG=C sort x",
        "grep end$ x",
        r"echo \$HOME \*",
    ],
)
def test_what_is_meant_as_it_stands(tmp_path: Path, command: Any) -> None:
    """A list, and what is quoted or escaped, reaches the program as it is."""
    result = check(tmp_path, f"[[service]]\nid = 'a'\ncommand = {json.dumps(command)}\n")
    assert result.exit_code == 0, result.stdout
