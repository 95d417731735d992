"""The exit codes of every command: 0 fine, 1 failed, 2 usage, 3 not found, 4 invalid, 69 no daemon."""

import re
from pathlib import Path

import pytest

from tests.acceptance.running import Home, oneshot, service, settings, timer

CONFIG = (
    settings(timers=True, timezone="UTC")
    + service("web", "echo web up; exec sleep 1000")
    + oneshot("job", "echo job ran")
    + oneshot("fails", "echo failing; exit 7", at_startup=False)
    + timer("t", "job", on_calendar={"minute": 0, "hour": 3})
    + timer("fails-t", "fails", on_calendar={"minute": 0, "hour": 3}, retry_intervals_sec=[])
    + timer("bad", "nobody", on_startup_sec=1)
)

ON_A_DAEMON: list[tuple[str, int]] = [
    ("status", 0),
    ("services", 0),
    ("timers", 0),
    ("timers t", 0),
    ("timers nope", 3),
    ("timers bad", 4),
    ("timers --on", 0),
    ("history", 0),
    ("history job", 0),
    ("history nope", 3),
    ("logs job", 1),
    ("logs nope", 3),
    ("logs --run 9999", 3),
    ("logs fails", 1),
    ("start nope", 3),
    ("start web", 1),
    ("start job --wait", 0),
    ("logs job", 0),
    ("start fails --wait", 1),
    ("trigger t --wait", 0),
    ("trigger fails-t --wait", 1),
    ("trigger nope", 3),
    ("trigger bad", 4),
    ("disable t", 0),
    ("enable t", 0),
    ("enable nope", 3),
    ("stop nope", 3),
    ("stop web", 0),
    ("start web", 0),
    ("reload", 4),
    ("plan", 4),
    ("why t", 0),
    ("why nope", 3),
    ("next t", 0),
    ("status --nonsense", 2),
    ("history -n 0", 2),
    ("start", 2),
    ("nonsense", 2),
]


def test_codes_on_a_daemon(tmp_path: Path) -> None:
    """Each command ends with the code that its outcome has, and a refusal is never a traceback."""
    home = Home(tmp_path, CONFIG)
    with home.running() as daemon:
        daemon.log.until("TimersEnabled")
        daemon.log.until("ServiceRunEnded|web")
        found = []
        for line, _ in ON_A_DAEMON:
            answer = home.duly(*line.split(), config="nonsense" not in line.split())
            assert "Traceback" not in answer.stderr, answer
            assert (
                answer.returncode in {0, 4}
                or re.search("(?i)error|no such", answer.stderr)
                or ("--wait" in line)
            ), answer
            found.append((line, answer.returncode))
        assert found == ON_A_DAEMON
        assert home.duly("stop").returncode == 0
        assert daemon.code() == 0


WITHOUT_A_DAEMON: list[tuple[str, int]] = [
    ("status", 0),
    ("services", 0),
    ("timers", 0),
    ("timers nope", 3),
    ("history", 0),
    ("history nope", 3),
    ("logs job", 0),
    ("logs nope", 3),
    ("plan", 4),
    ("next t", 0),
    ("start web", 69),
    ("stop", 69),
    ("stop web", 69),
    ("trigger t", 69),
    ("enable t", 69),
    ("disable t", 69),
    ("reload", 69),
    ("timers --off", 69),
]


def test_codes_without_a_daemon(tmp_path: Path) -> None:
    """What reads is answered by the store, what acts ends with 69, and both say that no daemon is there."""
    home = Home(tmp_path, CONFIG)
    with home.running() as daemon:
        assert home.duly("start", "job", "--wait").returncode == 0
        daemon.ended()
    found = []
    for line, code in WITHOUT_A_DAEMON:
        answer = home.duly(*line.split())
        assert "Traceback" not in answer.stderr, answer
        if code == 69:
            assert "no daemon answers" in answer.stderr, answer
        found.append((line, answer.returncode))
    assert found == WITHOUT_A_DAEMON


def test_codes_without_anything(tmp_path: Path) -> None:
    """Where there is no configuration, commands ask for one with code 2; one that is broken is code 4."""
    home = Home(tmp_path, "")
    home.config.unlink()
    for command in ("run", "status", "services", "timers", "history", "reload", "stop"):
        assert home.duly(command, config=False).returncode == 2, command
    home.write("[[service")
    for command, code in (("run", 4), ("services", 4), ("timers", 4), ("reload", 69), ("plan", 4)):
        answer = home.duly(command, config=False)
        assert (answer.returncode, "Traceback" in answer.stderr) == (code, False), answer
    assert home.duly("check", str(home.config), config=False).returncode == 4
    home.write(service("web", "true"))
    assert home.duly("check", str(home.config), config=False).returncode == 0


@pytest.mark.parametrize("count", [300])
def test_many_due_together_all_run_once(tmp_path: Path, count: int) -> None:
    """Hundreds of timers due in the same instant all run, each once, and nothing of it is lost."""
    jobs = "".join(
        oneshot(f"job-{n}", f"echo ran >>ran-{n}; echo output of {n}")
        + timer(f"t-{n}", f"job-{n}", on_startup_sec=1, retry_intervals_sec=[])
        for n in range(count)
    )
    home = Home(tmp_path, settings(timers=True) + jobs)
    with home.running("--no-echo") as daemon:
        daemon.log.until("TimerRunEnded .*result=success", count=count)
        runs = home.asked("history", "-n", "1000")["runs"]
        assert {run["result"] for run in runs} == {"success"}
        assert sorted(run["service"] for run in runs) == sorted(f"job-{n}" for n in range(count))
        timers = home.asked("timers")["timers"]
        assert [each["last_result"] for each in timers] == ["success"] * count
        assert home.asked("logs", "job-17")["output"] == "output of 17\n"
        daemon.ended()
    assert {(tmp_path / f"ran-{n}").read_text() for n in range(count)} == {"ran\n"}
