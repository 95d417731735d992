"""`duly logs` beside a real daemon: followed across runs and restarts, with times; searched; kept by size."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.running import DULY, Home, StreamLines, environment, oneshot, service, settings

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
JOB = oneshot("job", "echo begun $DULY_RUN_ID; echo done", at_startup=False)


@contextmanager
def following(home: Home, *arguments: str) -> Iterator[tuple[StreamLines, StreamLines]]:
    """`duly logs -f` while the block lasts: what it shows, and what it says beside that."""
    process = subprocess.Popen(
        [DULY, "logs", "-f", *arguments, "-c", str(home.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    shown, said = StreamLines(process.stdout), StreamLines(process.stderr)
    try:
        yield shown, said
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)


def test_followed_across_runs_and_restarts(tmp_path: Path) -> None:
    """-f goes on with the next run, also in the daemon's next life; each line once, with its time."""
    home = Home(tmp_path, JOB)
    with home.running() as daemon:
        with following(home, "job") as (shown, said):
            assert home.duly("start", "job", "--wait").returncode == 0
            shown.until("done")
            assert home.duly("start", "job", "--wait").returncode == 0
            shown.until("done", count=2)
            daemon.send(signal.SIGKILL)
            daemon.process.wait(60)
            said.until("waiting for the daemon")
            with home.running() as again:
                assert home.duly("start", "job", "--wait").returncode == 0
                shown.until("done", count=3)
                again.ended()
        assert [bool(re.fullmatch(rf"{STAMP}(begun .*|done)", line)) for line in shown.all()] == [True] * 6
        assert "Traceback" not in "\n".join(said.all())


def test_a_run_that_is_cut_off_while_it_is_followed(tmp_path: Path) -> None:
    """A service is followed through the death of its daemon: its end is told, and its next run comes."""
    web = service("web", "echo up; sleep 1000 & wait")
    home = Home(tmp_path, web)
    with home.running() as daemon, following(home, "web") as (shown, said):
        shown.until("up")
        daemon.send(signal.SIGKILL)
        daemon.process.wait(60)
        said.until("waiting for the daemon")
        with home.running() as again:
            shown.until("up", count=2)
            said.until("run 1 ended: interrupted")
            again.ended()
        said.until("run 2 ended: interrupted")


def test_searched_across_runs(tmp_path: Path) -> None:
    """--grep finds lines in all runs, --since late ones, by the time of each line; none is code 1."""
    web = service("web", "echo early; sleep 3; echo late; exec sleep 1000")
    home = Home(tmp_path, JOB + web)
    with home.running() as daemon:
        for _ in range(3):
            assert home.duly("start", "job", "--wait").returncode == 0
        daemon.out.until("late")
        assert len(home.duly("logs", "--grep", "^begun").stdout.splitlines()) == 3
        found = home.duly("logs", "job", "--grep", "begun .*:2$", "--no-timestamps").stdout
        assert re.fullmatch(r"begun \S+:2\n", found), found
        late = home.asked("logs", "web")["times"][-1]["at"]
        since = home.duly("logs", "web", "--since", late).stdout
        assert re.fullmatch(rf"{STAMP}late\n", since), since
        assert (
            home.duly("logs", "--grep", "early|late", "--since", "1h 30min", "--no-timestamps").stdout
            == "web | early\nweb | late\n"
        )
        none = home.duly("logs", "--grep", "no such line")
        assert (none.returncode, none.stdout) == (1, "")
        refused = home.duly("logs", "--grep", "(")
        assert (refused.returncode, "not a regular expression" in refused.stderr) == (2, True)
        before = home.asked("logs", "--grep", "done|early")
        daemon.ended()
    assert home.asked("logs", "--grep", "done|early") != before  # the run of web has ended
    assert [len(log["lines"]) for log in home.asked("logs", "--grep", "done|early")["logs"]] == [1, 1, 1, 1]


def test_output_is_kept_by_size(tmp_path: Path) -> None:
    """Of each service the newest outputs are kept, up to `output_mib`; the runs themselves stay."""
    big = oneshot("big", "head -c 700000 /dev/zero | tr '\\0' x; echo; echo end", at_startup=False)
    home = Home(tmp_path, settings(output_kib=1000, output_mib=1) + big + JOB)
    with home.running() as daemon:
        for name in ("big", "big", "big", "job"):
            assert home.duly("start", name, "--wait").returncode == 0
        daemon.ended()
    with home.running() as daemon:
        assert home.duly("start", "job", "--wait").returncode == 0
        kept = [home.asked("logs", "--run", str(number)) for number in (1, 2, 3, 4)]
        assert [log["output"].endswith("end\n") for log in kept] == [False, True, True, False]
        assert (kept[0]["output"], kept[0]["lost_bytes"], kept[0]["times"]) == ("", 700005, [])
        assert kept[3]["output"].endswith("done\n")
        daemon.ended()
