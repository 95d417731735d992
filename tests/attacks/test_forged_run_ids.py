"""Processes that lie about the run they belong to, and a root daemon that must not believe them.

The forgers run as another user than the daemon (nobody), as a job does that has dropped its privileges.
"""

import os
import pwd
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.acceptance.running import Home, Running, oneshot, service, settings, timer
from tests.worlds.postgres import until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: it starts processes of another user beside a root daemon"
)

NOBODY = pwd.getpwnam("nobody").pw_uid
QUICK = settings(kill_grace_sec=0.5, shutdown_timeout_sec=5, timers=True)
JOB = oneshot("job", "echo run $DULY_RUN_ID token ${DULY_RUN_TOKEN:-none}", at_startup=True)
OFTEN = timer("often", "job", on_startup_sec=1, on_unit_active_sec=1)
LEAVING = f"(setsid setpriv --reuid {NOBODY} --clear-groups sh -c 'echo orphan $$; exec sleep 1000' &)"
WEB = service("web", "echo up $$ $DULY_RUN_ID token ${DULY_RUN_TOKEN:-none}; exec sleep 1000")


def started_of(pid: int) -> int:
    """When a process started, in ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not dead and unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def forger(environment: Mapping[str, str], *command: str) -> Iterator[int]:
    """A process of nobody with this environment, in a session of its own; or another *command*, as root."""
    with subprocess.Popen(
        command or ("sh", "-c", "echo ready; exec cat"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], **environment},
        cwd="/",
        user=None if command else NOBODY,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            if (said := process.stdout.readline().strip()) != "ready":
                pytest.skip(f"this kernel does not let a process do that: {said}")
            yield process.pid
        finally:
            process.kill()


def claiming(run: str, daemon: str = "1:1", code: str = "0" * 32) -> dict[str, str]:
    """An environment that claims to be of *run* ("scheduler:run"), in every way that duly ever believed."""
    started = daemon.partition(":")[2]
    return {"DULY_RUN_ID": run, "DULY_DAEMON": daemon, "DULY_RUN_TOKEN": f"{run}:{started}:{code}"}


def scheduler_of(home: Home) -> str:
    """The id of the scheduler, which any of its jobs knows."""
    with closing(sqlite3.connect(home.path / "duly.db")) as store:
        return str(store.execute("SELECT id FROM scheduler").fetchone()[0])


def killed(daemon: Running) -> None:
    """Kill a daemon and leave what it started."""
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.process.wait(60)
    daemon.keep()


@pytest.mark.parametrize(
    "number", ["9" * 5000, "1" * 4000, str(2**63 - 1), str(2**63 - 2), "-1", "٣"], ids=lambda text: text[:20]
)
def test_a_forged_number_stops_no_daemon_and_no_timer(tmp_path: Path, number: str) -> None:
    """A process with any run id in its environment neither stops a daemon nor moves the ids of its runs."""
    home = Home(tmp_path, QUICK + JOB + OFTEN)
    with home.running() as daemon:
        daemon.ended()
    forged = claiming(f"{scheduler_of(home)}:{number}", daemon=f"1:{number}")
    with forger(forged) as pid, home.running() as daemon:
        daemon.log.until("ServiceRunEnded service=job .*timer=often result=success", count=2)
        assert is_alive(pid)
        daemon.ended()
        assert not daemon.log.matching("LeftoverFound")
    with closing(sqlite3.connect(tmp_path / "duly.db")) as store:
        ids = [run_id for (run_id,) in store.execute("SELECT id FROM run ORDER BY id")]
    assert ids == list(range(1, len(ids) + 1))


def test_a_forged_daemon_keeps_no_service_down(tmp_path: Path) -> None:
    """A process that claims an open run and a living daemon does not pass for a process of that run."""
    home = Home(tmp_path, QUICK + WEB)
    with home.running() as daemon:
        [line] = daemon.out.until("up")
        killed(daemon)
    run, pid = re.findall(r"up (\d+) (\S+)", line)[0][::-1]
    # Its own parent is the daemon that it claims, and lives.
    forged = claiming(run, daemon=f"{os.getpid()}:{started_of(os.getpid())}")
    with forger(forged) as forger_pid, home.running() as daemon:
        daemon.out.until("up")
        assert not is_alive(int(pid))
        assert is_alive(forger_pid)
        daemon.ended()


@pytest.mark.parametrize("changed", ["run", "daemon"])
def test_a_genuine_token_cannot_be_changed(tmp_path: Path, changed: str) -> None:
    """A job that knows its own token can make none of another run and none of another daemon from it."""
    home = Home(tmp_path, QUICK + WEB + service("other", "echo up $$ $DULY_RUN_TOKEN; exec sleep 1000"))
    with home.running() as daemon:
        web, other = (daemon.out.until(f"{name} . up")[0] for name in ("web", "other"))
        killed(daemon)
    scheduler, run, started, code = other.rpartition(" ")[2].split(":")
    if changed == "run":
        run = re.findall(r":(\d+) token", web)[0]
    else:
        started = str(started_of(os.getpid()))
    forged = f"{scheduler}:{run}:{started}:{code}"
    with forger({"DULY_RUN_TOKEN": forged}) as pid, home.running() as daemon:
        daemon.out.until("web . up")
        daemon.out.until("other . up")
        assert is_alive(pid)
        daemon.ended()


def test_a_genuine_token_still_finds_what_left_its_group(tmp_path: Path) -> None:
    """What a service started as another user, outside its group, is ended at the start after a kill -9."""
    home = Home(tmp_path, QUICK + service("web", f"{LEAVING}; sleep 1000"))
    with home.running() as daemon:
        [line] = daemon.out.until("orphan")
        with closing(sqlite3.connect(home.path / "duly.db")) as store:
            until(lambda: store.execute("SELECT pid FROM run").fetchone()[0], "the pid in the store")
        killed(daemon)
    orphan = int(line.rpartition(" ")[2])
    assert is_alive(orphan)
    with home.running() as daemon:
        assert not is_alive(orphan)
        daemon.ended()


def test_a_job_cannot_pose_as_the_orphan_of_another(tmp_path: Path) -> None:
    """What a job leaves behind with the run id of another service is not ended with that service."""
    posing = (
        "while [ ! -e run ]; do sleep 0.05; done; export DULY_RUN_ID=$(cat run); "
        "export DULY_RUN_TOKEN=$DULY_RUN_ID:0:0; "
        f"{LEAVING}; sleep 1000"
    )
    home = Home(tmp_path, QUICK + WEB + service("poser", posing))
    with home.running() as daemon:
        [line] = daemon.out.until("web . up")
        (tmp_path / "run.new").write_text(line.split()[4])
        (tmp_path / "run.new").rename(tmp_path / "run")
        [posed] = daemon.out.until("orphan")
        assert home.duly("stop", "web").returncode == 0
        assert is_alive(int(posed.rpartition(" ")[2]))
        daemon.ended()


def test_an_endless_environment_takes_no_memory(tmp_path: Path) -> None:
    """A process whose environment seems to be a gibibyte long costs the daemon no memory to speak of."""
    home, length = Home(tmp_path, QUICK + JOB), 1 << 30
    program = str(Path(__file__).with_name("endless_environment.py"))
    with forger({}, sys.executable, program, str(length)) as pid:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            file.seek(length // 2)
            assert file.read(1) == b"\0"
        with home.running() as daemon:
            peak = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{daemon.pid}/status").read_text())[0]
            assert int(peak) * 1024 < length // 4
            daemon.ended()
