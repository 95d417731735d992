"""`duly crond`: a crontab as it is, run by the daemon, also as the first process of a container."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.running import DULY, Home, Running, environment

CRONTAB = """\
MAILTO=nobody
GREETING=hello
@reboot echo "$GREETING $HOME" && echo second
0 30 3 * * * with-seconds
0 3 1 1 * echo "new year"
"""


class Crontab(Home):
    """A directory with a crontab."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.config = path, path / "crontab"
        self.config.write_text(text)

    def command(self, *options: str) -> list[str]:
        return [DULY, "crond", str(self.config), *options]

    @contextmanager
    def crond(self, *options: str, prefix: Sequence[str] = ()) -> Iterator[Running]:
        """`duly crond`, which does not outlive the block."""
        running = Running(self, [*prefix, *self.command(*options)], {}, {})
        try:
            yield running
        finally:
            running.end()

    def told(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.duly(*arguments, "--socket", str(self.path / "crontab.sock"), config=False)


def test_a_crontab_as_it_is(tmp_path: Path) -> None:
    """Jobs run as cron would run them; what is left out is said; a reload reads the crontab again."""
    home = Crontab(tmp_path, CRONTAB)
    with home.crond() as daemon:
        daemon.out.until(r"^echo \| hello ")
        daemon.out.until("second")
        daemon.log.until("crontab:1: MAILTO is not translated")
        daemon.log.until('EntryInvalid kind=job .*its sixth word "\\*" looks like a time field.* line=4')
        status = json.loads(home.told("status", "--json").stdout)
        assert (status["timers"], status["counts"]["timers"], status["counts"]["invalid"]) == (
            "enabled",
            2,
            1,
        )
        assert "hello" in home.told("logs", "--grep", "hello").stdout
        home.config.write_text("GREETING=bye\n0 3 1 1 * echo $GREETING\n* * * * * true\n")
        assert "added" in home.told("reload", "--json").stdout
        assert home.told("trigger", "echo", "--wait").stdout.endswith("bye\n")
        daemon.ended()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crontab", "crontab.db"]


def test_an_unusable_crontab(tmp_path: Path) -> None:
    """A crontab that is not there, or is no text, ends with 4 and one sentence."""
    for content in (None, b"\0\1\2"):
        home = Crontab(tmp_path, "")
        home.config.unlink() if content is None else home.config.write_bytes(content)
        answer = subprocess.run(
            home.command(), check=False, capture_output=True, text=True, timeout=60, env=environment()
        )
        assert (answer.returncode, answer.stderr.count("error:")) == (4, 1), answer
        assert "Traceback" not in answer.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_as_the_first_process_of_a_container(tmp_path: Path) -> None:
    """As PID 1 it reaps orphans of jobs, and ends in order when it is told to."""
    orphan = "@reboot (setsid sleep 0.2 &) ; echo pid-$PPID\n"
    home = Crontab(tmp_path, orphan + "@reboot exec sleep 1000\n")
    store = ["--store", str(tmp_path / "state" / "x.db"), "--socket", str(tmp_path / "state" / "x.sock")]
    (tmp_path / "state").mkdir()
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGTERM"]
    with home.crond(*store, prefix=container) as daemon:
        daemon.out.until(r"\| pid-1$")
        daemon.log.until("ServiceRunStarted service=sleep")
        daemon.log.until("ServiceRunEnded service=.* result=success")
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text()
        [inside] = map(int, children.split())
        os.kill(inside, signal.SIGTERM)
        assert daemon.process.wait(60) == 0
        assert daemon.log.matching("SupervisorStopped")
