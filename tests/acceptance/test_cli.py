"""The real command in a real process."""

import json
import os
import subprocess
import sys

from duly import __version__


def duly(*arguments: str, module: str = "duly", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment
    )


def test_next() -> None:
    """A question in, the answer out, nothing on stderr."""
    done = duly("next", "0 9 * * 1-5", "-n", "1", "--tz", "UTC", "--from", "2026-01-01")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("  Thu 2026-01-01 09:00 +00:00   2026-01-01 09:00 UTC   in 9h\n")


def test_refusal() -> None:
    """A refused expression ends the process with code 2 and says what to write."""
    done = duly("explain", "*/15 * * * *")
    assert (done.returncode, done.stdout) == (2, "")
    assert "write: 0,15,30,45 * * * *" in done.stderr
    assert "\x1b" not in done.stderr


def test_zone_of_the_host() -> None:
    """Without --tz the zone is the host's, and when that is none, one is asked for instead of guessed."""
    done = duly("next", "0 9 * * *", "-n", "1", "--from", "2026-01-01", TZ="Asia/Tokyo")
    assert "Thu 2026-01-01 09:00 +09:00" in done.stdout
    done = duly("next", "0 9 * * *", TZ="Nowhere/Land")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give one with --tz" in done.stderr


def test_version() -> None:
    """The version is that of the package."""
    assert duly("--version").stdout == f"duly {__version__}\n"


def test_help_imports_no_command() -> None:
    """Help is printed without importing the commands it lists."""
    script = (
        "import sys, json, duly.cli\n"
        "try: duly.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "loaded = [entry.module for entry in duly.cli.COMMANDS.values() if entry.module in sys.modules]\n"
        "print(json.dumps(loaded), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Commands:" in done.stdout
    assert json.loads(done.stderr) == []
