"""`duly import crontab` and hostile crontabs: linear, no traceback, nothing written that does not load."""

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.cli import main
from duly.config import config_of
from duly.config.crontab import TooManyJobsError, toml_of, translated_crontab
from duly.config.loading import MOST_BYTES, load_content
from tests.attacks.limits import duly, filled

OUT = Path("/etc/duly.toml")
JOB = "* * * * * "
ODD_BLANKS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u3000"


def loads_back(text: str, *, has_user_column: bool = False) -> None:
    """What is written loads without a fault, to the same services and timers."""
    found = translated_crontab(text, has_user_column=has_user_column)
    config = load_content(OUT, toml_of(found).encode())
    assert config.invalid == ()
    meant = config_of(
        OUT, jobs=[job.keys for job in found.entries], defaults={"persistent": False, "retry_intervals": []}
    )
    assert (config.services, config.timers) == (meant.services, meant.timers)
    assert len(config.services) == len(found.entries)


# --- time ---


@pytest.mark.parametrize(
    "text",
    [
        "A=x" + " " * (MOST_BYTES - 100) + "y",
        "A" + " " * (MOST_BYTES - 100) + "y",
        "*" + " " * (MOST_BYTES - 100) + "y",
        JOB + "a" + " " * (MOST_BYTES - 100) + "b",
        JOB + filled("a"),
        JOB + filled("a "),
        JOB + filled('"'),
        JOB + filled("'") + "'",
        JOB + '"' + filled('\\"'),
        JOB + filled('"$'),
        JOB + filled(".sh"),
        JOB + filled("/"),
        JOB + filled("a;"),
        JOB + "a%" + filled("%"),
        JOB + "a%" + "%".join("END" + "_" * length for length in range(1400)),
        filled("1,") + " * * * * a",
        filled("0") + " * * * * a",
        filled("x") + " * * * * a",
        filled("/") + " * * * * a",
        "@" + filled("a"),
        filled('"a '),
        filled("a\n"),
        "CRON_TZ=" + filled("a"),
        "".join(f"CRON_TZ=zone{number}\n" for number in range(2000)),
        "".join(f"@daily a\n@daily a-{number}\n" for number in range(2, 1200)),
    ],
    ids=range(25),
)
def test_import_takes_linear_time(text: str) -> None:
    """A crontab of 1 MiB is read in seconds of CPU time, whatever runs of blanks, quotes or words it has."""
    done = duly("import", "crontab", "-", stdin=text.encode())
    assert done.code in (0, 1, 2), done.stderr[-500:]
    if done.code != 2:
        assert load_content(OUT, done.stdout).invalid == ()


# --- odd characters ---


@pytest.mark.parametrize("char", [*ODD_BLANKS, "\r", "\x7f", "\x01", "\ufeff", "\U000e0001"])
def test_odd_characters_are_part_of_a_command(char: str) -> None:
    """What only Python takes for a blank is a character of the command, as it is for cron and the shell."""
    for command in (f"{char}{char}x", f"run a{char}b", f"run '{char}'"):
        [job] = translated_crontab(JOB + command).entries
        words = job.keys["command"]
        script = words[2] if words[0] == "/bin/sh" else " ".join(words)
        assert script.replace("'", "") == command.replace("'", "")
    for flags in ([], ["--user-column"]):
        for text in (
            f"{JOB}{char}",
            f"@daily {char}",
            f"@daily{char}",
            f"{JOB}{char} %x",
            f"{char}",
            f"A={char}",
        ):
            done = CliRunner().invoke(main, ["import", "crontab", "-", *flags], input=text.encode())
            assert done.exit_code in (0, 1)
            assert load_content(OUT, done.stdout_bytes).invalid == ()


def test_command_of_an_odd_blank_goes_to_the_shell() -> None:
    """A command of a vertical tab alone names no program for duly, so the shell gets it, as under cron."""
    for char in ODD_BLANKS:
        [job] = translated_crontab(JOB + char).entries
        assert job.keys["command"] == ("/bin/sh", "-c", char)
        loads_back(JOB + char)


@pytest.mark.parametrize("char", ODD_BLANKS)
def test_odd_characters_in_time_fields_are_refused(char: str) -> None:
    """A time field or macro with such a character is left out, not read as if it were not there."""
    found = translated_crontab(f"1{char} * * * * a\n@daily{char} a\n{char}1 * * * * a\n")
    assert found.entries == []
    assert [remark.is_left_out for remark in found.remarks] == [True] * 3


def test_user_column_without_a_user() -> None:
    """A line that ends before its user is left out."""
    found = translated_crontab("@daily\n@daily root\n", has_user_column=True)
    assert found.entries == []
    assert [remark.line for remark in found.remarks if remark.is_left_out] == [1, 2]


def test_variables_that_no_process_can_have() -> None:
    """A quoted name with an equals sign in it is told and not written: duly would refuse the service."""
    found = translated_crontab('"A=B" = 1\n@daily a\n')
    assert [remark.line for remark in found.remarks] == [1]
    assert "env" not in found.entries[0].keys
    loads_back('"A=B" = 1\n@daily a\n')


@settings(max_examples=300)
@given(st.text(st.characters(exclude_characters="\0\n", codec="utf-8"), min_size=1), st.booleans())
def test_any_command_comes_back(command: str, has_user_column: bool) -> None:
    """Any text as a command, a variable or a field is written such that duly loads it to the same."""
    quoted = command.replace("'", "")
    for text in (
        f"{JOB}{command}",
        f"A={command}\n'{quoted}'=1\nSHELL={command}\n{JOB}a | b",
        f"{command} a",
    ):
        loads_back(text, has_user_column=has_user_column)


# --- size ---


def test_no_amplification() -> None:
    """A crontab of 224 KB whose variables would be repeated to 400 MB is refused with one sentence."""
    text = "".join(f"VARIABLE_{number}={'x' * 40}\n" for number in range(2000)) + "@daily a\n" * 11_000
    done = duly("import", "crontab", "-", stdin=text.encode())
    assert (done.code, done.stdout) == (2, b"")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: -: the jobs up to line 20")
    assert "fill more than 4 MiB; duly loads no larger file. Split the crontab" in line


def test_no_amplification_line_by_line() -> None:
    """Variables and jobs in turn, each job with one variable more, are refused as early."""
    text = "".join(f"V{number}=\n@daily a\n" for number in range(50_000))
    assert duly("import", "crontab", "-", stdin=text.encode()).code == 2


def test_too_many_jobs(tmp_path: Path) -> None:
    """More jobs than fit into a file that duly loads are refused, and no file is written."""
    out = tmp_path / "duly.toml"
    done = duly(
        "import",
        "crontab",
        "-",
        "-o",
        str(out),
        stdin=f"{JOB}/usr/bin/job --of {'m' * 1000}\n".encode() * 4000,
    )
    assert done.code == 2
    assert "duly loads no larger file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_largest_file_loads() -> None:
    """The last crontab that is translated loads, and with one job more it is refused."""
    line = f"@daily a {'b' * 1000}\n"
    with pytest.raises(TooManyJobsError) as caught:
        translated_crontab(line * 10_000)
    fitting = caught.value.line - 1
    content = toml_of(translated_crontab(line * fitting)).encode()
    assert MOST_BYTES - 1300 < len(content) <= MOST_BYTES
    assert len(load_content(OUT, content).timers) == fitting


# --- stdin and output ---


@pytest.mark.parametrize(
    ("redirection", "reason"), [("<&-", "stdin is closed"), ("0>/dev/null", "cannot be read")]
)
def test_stdin_that_cannot_be_read(redirection: str, reason: str) -> None:
    """A stdin that is closed or open for writing only is refused with one sentence."""
    command = f"{sys.executable} -m duly import crontab - {redirection}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_output_is_utf8_in_any_locale() -> None:
    """What goes to stdout is UTF-8, as TOML has to be, also where the terminal's encoding is another one."""
    done = subprocess.run(
        [sys.executable, "-m", "duly", "import", "crontab", "-"],
        input="@daily ./grüße\n".encode(),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert load_content(OUT, done.stdout).services[0].command == ("./grüße",)


@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_half_a_file_is_not_left_behind(tmp_path: Path, flags: list[str]) -> None:
    """When the disk is full nothing is left of the file, and an older one is not touched."""
    out = tmp_path / "duly.toml"
    if flags:
        out.write_text("old")

    def limit_files() -> None:
        # Stands for a full disk: the kernel refuses to write more than this to any file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    program = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from duly.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, "import", "crontab", "-", "-o", str(out), *flags],
        input=b"@daily a\n" * 100,
        capture_output=True,
        check=False,
        preexec_fn=limit_files,
    )
    assert done.returncode == 2
    assert b"cannot be written" in done.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == (["old"] if flags else [])


# --- random crontabs ---

PIECES = (
    *("*", "*/5", "1-5", "0", "7", "59", "mon", "JAN", "@daily", "@reboot", "@x", "?", "L", "1,2", "1-", "/"),
    *("SHELL=", "HOME=", "CRON_TZ=", "MAILTO=", "PATH=", "A=", "=", "UTC", "Mars/Base", "/bin/sh", "/srv"),
    *("root", "echo", "cd", "run.sh", "%", "\\%", "\\", "'", '"', "|", ";", "&&", "$x", "#", "END", "-c"),
    *(" ", "  ", "\t", "\n", "\n", "\n", "\r", "\r\n", "* * * * * ", "0 0 * * * "),
    *("\x01", "\x0b", "\x85", "\xa0", "\u2028", "\x7f", "ü", "\U0001f600", "\ufeff", "a" * 200),
)


def random_crontab(seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choices(PIECES, k=rng.randrange(1, 80)))


def import_random_crontabs(first: int, count: int, folder: Path) -> None:
    out = folder / "duly.toml"
    for seed in range(first, first + count):
        flags = ["--user-column"] if seed % 2 else []
        arguments = ["import", "crontab", "-", "-o", str(out), "--force", *flags]
        text = random_crontab(seed)
        done = CliRunner().invoke(main, arguments, input=text.encode())
        reproduce = f"random_crontab({seed}), {flags}"
        assert done.exit_code in (0, 1), (reproduce, done.exception, done.stderr)
        assert load_content(out, out.read_bytes()).invalid == (), reproduce
        loads_back(text, has_user_column=bool(flags))


def test_random_crontabs(tmp_path: Path) -> None:
    """500 random crontabs cause no traceback, and what is written loads."""
    import_random_crontabs(0, 500, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_crontabs(tmp_path: Path, part: int) -> None:
    """20,000 random crontabs cause no traceback, and what is written loads."""
    import_random_crontabs(1000 * (part + 1), 1000, tmp_path)
