"""Configurations of 1 MiB that somebody made to be slow or large: each is answered within the limits."""

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.config.lines import MOST_KEY_PARTS
from duly.config.values import UnclosedError, shell_words
from tests.attacks.limits import MOST_BYTES, duly, filled

SERVICE = '[[service]]\nid = "s"\ntype = "oneshot"\ntimeout_sec = 99999999\ncommand = ["true"]\n'


def timers(count: int, keys: str, *, target: str = "s") -> str:
    """Timers of which each has its number in its id, and wherever the keys have a #."""
    return "".join(
        f'[[timer]]\nid = "{number}"\ntarget = "{target}"\n{keys.replace("#", str(number))}\n'
        for number in range(count)
    )


def dates() -> str:
    """Thousands of calendars, no two of the same dates."""
    return "".join(
        f'[[timer]]\nid = "{day}-{other}-{month}"\ntarget = "s"\nenabled = false\n'
        f"on_calendar = {{minute=0,hour=0,day_of_month=[{day},{other}],month={month},day_of_week=1}}\n"
        for day in range(1, 29)
        for other in range(day + 1, 29)
        for month in range(1, 13)
    )


NEVER = "on_calendar = {minute=1,day_of_month=30,month=2}"
CASES = {
    "a key of many parts": "a" + ".a" * 400_000 + " = 1\n",
    "a quoted key of many parts": '"a"' + ".'a'" * 200_000 + " = 1\n",
    "a table of many parts": "[a" + ".a" * 200_000 + "]\n" + "b = 1\n",
    "an inline key of many parts": "x = { a" + ".a" * 400_000 + " = 1 }\n",
    "a command of one long word": f'[[service]]\nid = "s"\ncommand = "{filled("a")}"\n',
    "a command of many quotes": '[[service]]\nid = "s"\ncommand = """' + filled("a'b' ") + '"""\n',
    "strings without an end": '"' + filled('\\"'),
    "quotes": filled('"'),
    "nested arrays": "a = " + "[" * 500_000,
    "intervals that nothing starts": SERVICE + timers(15_000, "on_unit_active_sec = 1"),
    "calendars that never come": SERVICE + timers(12_000, NEVER),
    "timers that are switched off": SERVICE + timers(9_000, f"enabled = false\n{NEVER}"),
    "calendars of many dates": SERVICE + dates(),
    "zones that do not exist": SERVICE + timers(5_000, 'timezone = "z#"\non_startup_sec = 1'),
    "targets that do not exist": SERVICE + timers(15_000, "on_startup_sec = 1", target="t"),
    "unknown keys": filled("[[service]]\ncommandd = 1\n"),
    "unknown tables": "".join(f"t{number} = 1\n" for number in range(80_000)),
    "services that name others": "".join(
        f'[[service]]\nid = "name-{number}"\ncommand = ["true"]\n' for number in range(190)
    )
    + '[[service]]\nid = "s"\ncommand = ["true"]\nafter = ['
    + "".join(f'"n{number}",' for number in range(90_000))
    + "]\n",
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_check_takes_linear_time_and_memory(tmp_path: Path, text: str) -> None:
    """`duly check` answers for any file of 1 MiB within seconds of CPU time and 1 GiB."""
    path = tmp_path / "duly.toml"
    assert len(text.encode()) <= MOST_BYTES
    path.write_text(text)
    done = duly("check", str(path))
    assert done.code in (0, 4), done.stderr[-500:]
    assert done.stdout


def test_long_keys_are_refused_and_others_are_not(tmp_path: Path) -> None:
    """A key of too many parts is refused with its line; dots in strings, numbers and comments are none."""
    path = tmp_path / "duly.toml"
    dots = "a." * MOST_KEY_PARTS
    path.write_text(f"# {dots}\n\n{dots}a = 1\n")
    assert f"{path}:3: error: a key has more than 100 parts" in duly("check", str(path)).stdout.decode()
    numbers = ", ".join(["1.5"] * (2 * MOST_KEY_PARTS))
    path.write_text(
        f'# {dots}\n{SERVICE}description = "{dots}"\nenv = {{ A = \'{dots}\', B = """{dots}""" }}\n'
        f'[[timer]]\nid = "t"\ntarget = "s"\non_startup_sec = 1\nretry_intervals_sec = [{numbers}]\n'
    )
    assert duly("check", str(path)).code == 0


def test_commands_find_the_socket_within_the_limits(tmp_path: Path) -> None:
    """A command that only looks for the daemon's socket reads the file with the same care."""
    path = tmp_path / "duly.toml"
    path.write_text("a" + ".a" * 400_000 + " = 1\n")
    os.mkfifo(tmp_path / "pipe.toml")
    for each in (path, tmp_path / "pipe.toml"):
        assert "The daemon does not answer" in duly("status", "-c", str(each)).stderr


@pytest.mark.parametrize("command", ["explain", "next"])
@pytest.mark.parametrize(
    "text",
    [
        *("0" * 40_000, "1," * 20_000, "1-" * 20_000, "*/" * 20_000, "a" * 40_000, "1L#" * 13_000),
        *("\x0b", "\x85", "1\x0b", "\udcff", "٣"),
    ],
    ids=range(11),
)
def test_cron_commands_take_any_text(command: str, text: str) -> None:
    """`duly explain` and `duly next` answer any text, however long or odd, within the limits."""
    for words in (f"{text} * * * *", f"* * * * {text}", text, f"{text} " * 3):
        assert duly(command, words, "--tz", "UTC").code in (0, 2)


@settings(max_examples=500)
@given(st.text(st.sampled_from("ab '\"\\\n\t\r#\x0b\xa0$")))
def test_words_are_those_of_shlex(text: str) -> None:
    """A command given as one text is split as the standard library splits it."""
    try:
        expected = shlex.split(text)
    except ValueError:
        with pytest.raises(UnclosedError):
            shell_words(text)
    else:
        assert shell_words(text) == expected
