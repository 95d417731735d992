"""Health of a real daemon: what `duly status --check` finds is what is wrong."""

from pathlib import Path
from typing import Any

from tests.acceptance.running import Home, oneshot, service, settings, timer

ON = settings(timezone="UTC", timers=True)
SOON = {"on_startup_sec": 0.01, "retry_intervals_sec": [0.1, 0.1]}


def states(home: Home, code: int = 1) -> dict[str, Any]:
    """The states of all that is not simply well, by id; the check ends with *code*."""
    health = home.asked("status", "--check", code=code)["health"]
    assert health["ok"] is (code == 0)
    return {each["id"]: each["state"] for each in health["states"]}


def test_a_job_that_hangs(tmp_path: Path) -> None:
    """A job without a time limit that runs for longer than its period hangs; a clock that ticks does not."""
    home = Home(
        tmp_path,
        ON
        + oneshot("stuck", "exec sleep 1000")
        + timer("stuck", "stuck", on_unit_active_sec=1, **SOON)
        + oneshot("tick", "echo tick")
        + timer("tick", "tick", on_unit_active_sec=1, **SOON),
    )
    with home.running() as daemon:
        daemon.out.until(r"^tick \| tick$", count=4)
        assert states(home) == {"stuck": "hung"}
        [reason] = home.asked("status")["health"]["reasons"]
        assert reason.startswith("service stuck hangs: it has been running since ")
        home.duly("stop", "stuck")
        daemon.ended()


def test_a_run_in_progress_hides_no_failure(tmp_path: Path) -> None:
    """A job that failed twice is failing while it runs again, and after the daemon came back."""
    fails_twice = "echo x >> tries; test $(wc -l < tries) -gt 2 || exit 3; echo again; exec sleep 1000"
    home = Home(tmp_path, ON + oneshot("job", fails_twice) + timer("job", "job", **SOON))
    with home.running() as daemon:
        daemon.out.until(r"^job \| again$")
        assert states(home) == {"job": "never succeeded"}
        [reason] = home.asked("status")["health"]["reasons"]
        assert reason.startswith("service job failed 2 of 2 since ")
        assert reason.endswith(": exited with code 3; it has never succeeded")
        daemon.ended()
    with home.running() as daemon:
        daemon.out.until(r"^job \| again$")
        assert states(home) == {"job": "never succeeded"}
        daemon.ended()
    assert home.asked("status", "--check", code=69)["health"]["states"][0]["state"] == "never succeeded"


def test_a_crash_loop(tmp_path: Path) -> None:
    """A service that falls over each time it comes up is in a crash loop; a disabled one is no alarm."""
    home = Home(tmp_path, service("web", "exit 3") + service("off", "true", enabled=False))
    with home.running() as daemon:
        daemon.log.until(r" ServiceRestarting service=web .*restarts=3")
        assert states(home) == {"web": "crash loop", "off": "disabled"}
        daemon.ended()
