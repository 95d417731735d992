"""The daemon and its surroundings: systemd's socket, a pid namespace of its own, a full disk."""

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.running import PATIENCE_S, Home, living, oneshot, service, settings, timer

WEB = service("web", "echo web up; exec sleep 1000")


# --- sd_notify ---


@contextmanager
def post_office(path: Path) -> Iterator[socket.socket]:
    """A socket that is told how the daemon is, as systemd's is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as office:
        office.bind(str(path))
        office.settimeout(PATIENCE_S)
        yield office


def letter(office: socket.socket) -> dict[str, str]:
    """The next message but for those that only say it lives."""
    while True:
        emitted = dict(line.split("=", 1) for line in office.recv(4096).decode().splitlines())
        if emitted != {"WATCHDOG": "1"}:
            return emitted


def test_systemd_is_told(tmp_path: Path) -> None:
    """READY when services are up, RELOADING with the time before READY again, STOPPING at the end."""
    home = Home(tmp_path, WEB)
    with (
        post_office(tmp_path / "notify") as office,
        home.running(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as daemon,
    ):
        first = letter(office)
        assert (first["READY"], "1 services" in first["STATUS"]) == ("1", True)
        home.write(WEB + oneshot("slow", "exec sleep 0.2") + service("more", "exec sleep 1000"))
        daemon.send(signal.SIGHUP)
        reloading = letter(office)
        assert reloading["RELOADING"] == "1"
        assert int(reloading["MONOTONIC_USEC"]) > 0
        again = letter(office)
        assert (again["READY"], "3 services" in again["STATUS"]) == ("1", True)
        daemon.log.until("ConfigurationReloaded")
        home.write("[[service")
        daemon.send(signal.SIGHUP)
        assert letter(office)["RELOADING"] == "1"
        assert letter(office)["READY"] == "1"
        assert home.duly("stop").returncode == 0
        assert letter(office) == {"STOPPING": "1"}
        assert daemon.code() == 0


def test_ready_comes_after_what_a_reload_brings_up(tmp_path: Path) -> None:
    """READY after a reload is told when the reload is done, not when the file was read."""
    home = Home(tmp_path, WEB)
    with (
        post_office(tmp_path / "notify") as office,
        home.running(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as daemon,
    ):
        assert "READY" in letter(office)
        home.write(WEB + service("more", "exec sleep 1000"))
        daemon.send(signal.SIGHUP)
        assert "RELOADING" in letter(office)
        assert "READY" in letter(office)
        states = {each["id"]: each["state"] for each in home.asked("services")["services"]}
        assert states == {"web": "running", "more": "running"}
        daemon.ended()
        assert letter(office) == {"STOPPING": "1"}


def test_watchdog_is_fed(tmp_path: Path) -> None:
    """With WATCHDOG_USEC the daemon says that it lives, again and again, and services hear nothing of it."""
    home = Home(tmp_path, service("web", "echo notify=$NOTIFY_SOCKET $WATCHDOG_USEC.; exec sleep 1000"))
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
    with post_office(tmp_path / "notify") as office, home.running(env=env) as daemon:
        alive = 0
        while alive < 5:
            alive += office.recv(4096) == b"WATCHDOG=1"
        daemon.out.until(r"web \| notify= \.$")
        daemon.ended()


def test_a_deaf_systemd_does_no_harm(tmp_path: Path) -> None:
    """A socket that is not there, or an address that is none, changes nothing."""
    home = Home(tmp_path, WEB)
    for address in (str(tmp_path / "nobody"), "vsock:2:1234", "@duly-nobody-listens"):
        with home.running(env={"NOTIFY_SOCKET": address}) as daemon:
            daemon.ended()


# --- PID 1 ---

_NAMESPACE = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc")


def _namespaces() -> str | None:
    """Why there can be no pid namespace here; None if there can."""
    try:
        tried = subprocess.run([*_NAMESPACE, "true"], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return "there is no unshare here"
    return None if tried.returncode == 0 else f"a pid namespace is not permitted: {tried.stderr.strip()}"


_LACK = _namespaces()
needs_namespaces = pytest.mark.skipif(_LACK is not None, reason=str(_LACK))

_ORPHANS = """
rm -f left-*
for n in 1 2 3 4 5; do (setsid sh -c 'echo orphan $$; : >left-$0' $n &); done
until [ -e left-1 -a -e left-2 -a -e left-3 -a -e left-4 -a -e left-5 ]; do sleep 0.01; done
"""


def child_of(pid: int) -> int:
    """The only child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


@needs_namespaces
def test_pid_1_reaps_orphans_and_ends_everything(tmp_path: Path) -> None:
    """As PID 1 it buries whatever services leave behind, and TERM ends all of it with code 0."""
    ours = "cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z 1 '"
    home = Home(
        tmp_path,
        oneshot("orphans", _ORPHANS, stage=1)
        + oneshot("orphan", "setsid sleep 1000 & echo orphan; sleep 0.1", stage=2)
        + service("web", "echo I am $$ below $PPID; exec sleep 1000", stage=3)
        + oneshot("count", f"while {ours}; do sleep 0.01; done; echo none left", at_startup=False, stage=4),
    )
    with home.running(prefix=_NAMESPACE) as daemon:
        daemon.out.until(r"web \| I am \d+ below 1$")
        daemon.out.until(r"orphans \| orphan", count=5)
        inside = child_of(daemon.pid)
        assert home.duly("start", "count", "--wait").returncode == 0
        daemon.out.until("count . none left")
        os.kill(inside, signal.SIGTERM)
        assert daemon.code() == 0
    assert living(tmp_path) == []


@needs_namespaces
def test_pid_1_fails_with_the_right_code(tmp_path: Path) -> None:
    """As PID 1 the exit code says what is wrong with the file, as it does elsewhere."""
    home = Home(tmp_path, "[[service")
    with home.running(prefix=_NAMESPACE, is_awaited=False) as daemon:
        assert daemon.code() == 4


@needs_namespaces
def test_orphans_of_a_normal_process_are_reaped(tmp_path: Path) -> None:
    """Where it is not PID 1, orphans of its services come to it all the same, and are buried."""
    home = Home(tmp_path, oneshot("orphans", _ORPHANS) + service("web", "exec sleep 1000"))
    with home.running() as daemon:
        daemon.out.until(r"orphans \| orphan", count=5)
        assert home.duly("start", "orphans", "--wait").returncode == 0
        daemon.out.until(r"orphans \| orphan", count=10)
        assert home.asked("status")["state"] == "running"
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children]
        assert "Z" not in states
        daemon.ended()


# --- a full disk ---


@contextmanager
def tiny_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system with little room."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(path)]
    try:
        tried = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if tried.returncode != 0:
        pytest.skip(f"a file system may not be mounted: {tried.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Leave no room."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


TICKING = oneshot("tick", "echo tick") + timer(
    "ticks", "tick", on_startup_sec=0.2, on_unit_active_sec=0.2, retry_intervals_sec=[]
)


def test_full_disk_holds_timers_up_and_nothing_else(tmp_path: Path) -> None:
    """While the store cannot be written services run and answer, timers wait; then all goes on by itself."""
    with tiny_disk(tmp_path / "disk", "2m") as disk:
        text = settings(timers=True, store=str(disk / "duly.db")) + WEB + TICKING
        home = Home(tmp_path, text + oneshot("free", "echo freed", at_startup=False))
        with home.running() as daemon:
            daemon.log.until("TimerRunEnded timer=ticks", count=2)
            fill(disk / "ballast")
            daemon.log.until("StoreFault .*the disk is full")
            seen = len(daemon.log.lines)
            status = home.asked("status")
            assert status["state"] == "running"
            assert "the disk is full" in " ".join(status["health"]["reasons"])
            assert home.duly("start", "free", "--wait").returncode == 0
            assert home.duly("stop", "web").returncode == 0
            assert home.duly("start", "web").returncode == 0
            begun = len(daemon.log.matching("ServiceRunStarted service=tick"))
            (disk / "ballast").unlink()
            daemon.log.until("StoreRecovered", after=seen)
            daemon.log.until("TimerRunEnded timer=ticks .*success", count=2, after=len(daemon.log.lines))
            assert begun < len(daemon.log.matching("ServiceRunStarted service=tick"))
            assert home.asked("status")["health"]["reasons"] == []
            daemon.ended()
        runs = home.asked("history", "-n", "1000")["runs"]
        assert [run["id"] for run in runs if run["running"]] == []
        assert {run["service"] for run in runs} == {"web", "tick", "free"}
        written = {run["id"] for run in runs}
        emitted = {
            int(line.split("runId=")[1].split()[0]) for line in daemon.log.matching("ServiceRunStarted")
        }
        assert emitted <= written


def test_full_disk_at_the_end_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    """A stop while the disk is full ends everything; what could not be written is said, not lost silently."""
    with tiny_disk(tmp_path / "disk", "2m") as disk:
        home = Home(tmp_path, settings(timers=True, store=str(disk / "duly.db")) + WEB + TICKING)
        with home.running() as daemon:
            daemon.log.until("TimerRunEnded timer=ticks", count=2)
            fill(disk / "ballast")
            daemon.log.until("StoreFault .*the disk is full")
            daemon.ended()
        assert living(tmp_path) == []
        (disk / "ballast").unlink()
        with home.running() as daemon:
            daemon.log.until("TimerRunEnded timer=ticks .*success", count=2)
            daemon.ended()
        assert [run for run in home.asked("history", "-n", "1000")["runs"] if run["running"]] == []


def test_start_on_a_full_disk_fails_with_one_sentence(tmp_path: Path) -> None:
    """A store that cannot even be made is said in one sentence, with code 1, and nothing was started."""
    with tiny_disk(tmp_path / "disk", "64k") as disk:
        fill(disk / "ballast")
        home = Home(tmp_path, settings(store=str(disk / "duly.db")) + WEB)
        with home.running(is_awaited=False) as daemon:
            assert daemon.code() == 1
            assert [line for line in daemon.log.lines if line.startswith("error: ")]
            assert not daemon.log.matching("ServiceRunStarted")


def test_limit_of_file_size_is_a_fault_not_a_death(tmp_path: Path) -> None:
    """A store that may not grow (RLIMIT_FSIZE, whose signal kills) is a fault like a full disk."""
    home = Home(tmp_path, settings(timers=True) + WEB + TICKING)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))

    with home.running(preexec_fn=limited) as daemon:
        daemon.log.until("StoreFault")
        assert home.asked("status")["state"] == "running"
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        daemon.log.until("StoreRecovered")
        daemon.ended()


def test_timers_wait_for_a_disk_that_is_full_when_they_begin(tmp_path: Path) -> None:
    """A disk that a service fills during start-up keeps no service down; timers begin when there is room."""
    with tiny_disk(tmp_path / "disk", "2m") as disk:
        filling = oneshot("fills", f"cat /dev/zero >{disk}/ballast; exit 0", stage=1)
        home = Home(tmp_path, settings(store=str(disk / "duly.db")) + filling + WEB + TICKING)
        with home.running("--timers") as daemon:
            daemon.log.until("StoreFault .*the disk is full")
            assert home.asked("services")["services"][1]["state"] == "running"
            assert home.asked("status")["state"] == "running"
            assert home.asked("timers")["status"] == "disabled"
            (disk / "ballast").unlink()
            daemon.log.until("TimersEnabled")
            daemon.log.until("TimerAdded")
            assert home.asked("timers")["status"] == "enabled"
            assert home.asked("status")["health"]["reasons"] == []
            daemon.ended()
