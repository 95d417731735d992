"""A crowd at the daemon's socket, and a daemon without descriptors: all who ask are answered all the same."""

import platform
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from duly.daemon.client import Client
from tests.acceptance.running import Home, Running, service
from tests.attacks.waiting import until

CONFIG = service("web", "head -c 60000 /dev/zero | tr '\\0' y; echo; echo is up; exec sleep 1000")
IDLE = b""
HALF = b'{"op":"sta'
UNREAD = b'{"op":"logs","params":{"id":"web"}}\n' * 20
FOLLOWING = b'{"op":"logs","params":{"id":"web","follow":true}}\n'


@contextmanager
def crowd(path: Path, size: int, said: bytes) -> Iterator[list[socket.socket]]:
    """So many clients that say one thing, and then nothing."""
    clients = []
    try:
        for _ in range(size):
            clients.append(socket.socket(socket.AF_UNIX))
            clients[-1].connect(str(path))
            clients[-1].settimeout(60)
            with suppress(ConnectionError):  # its place may have gone to another one already
                clients[-1].sendall(said)
        yield clients
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("size", [64, 500])
@pytest.mark.parametrize("said", [IDLE, HALF, UNREAD, FOLLOWING], ids=["idle", "half", "unread", "following"])
def test_a_crowd_shuts_nobody_out(tmp_path: Path, size: int, said: bytes) -> None:
    """Clients that say nothing or half of it, do not read, or follow a run shut nobody else out."""
    home = Home(tmp_path, CONFIG)
    with home.running() as daemon:
        daemon.out.until("is up")
        with crowd(tmp_path / "duly.sock", size, said):
            answer = home.duly("status", "--check")
            assert answer.returncode == 0, answer
            answer = home.duly("logs", "web")
            assert answer.returncode == 0, answer
            answer = home.duly("stop")
            assert answer.returncode == 0, answer
            assert daemon.code() == 0


def lowest_free_descriptor(pid: int) -> int:
    """The number that the next descriptor of a process gets."""
    used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(used) + 1) if number not in used)


def shortages(client: Client) -> list[str]:
    """What the daemon's health says of a shortage."""
    return [each for each in client.ask("status")["health"]["reasons"] if "have to wait" in each]


@contextmanager
def no_descriptor_left(daemon: Running, listener: str, ask: Callable[[], object]) -> Iterator[None]:
    """The daemon can open nothing more, and a *listener* that was asked knows that, while the block lasts."""
    client = Client(str(daemon.home.path / "duly.sock"), patience_s=60)
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)

    def is_short() -> bool:
        # A file that was open when the lowest free number was looked up, and is closed by now, spoils it.
        lowest = lowest_free_descriptor(daemon.pid)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
        ask()
        if any(listener in each for each in shortages(client)):
            return True
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        until(lambda: not shortages(client))
        return False

    try:
        until(is_short)
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)


def test_a_daemon_without_descriptors_answers(tmp_path: Path) -> None:
    """Out of descriptors, the daemon says so once, answers, sends silent clients away, and recovers."""
    home = Home(tmp_path, CONFIG)
    with home.running() as daemon:
        daemon.out.until("is up")
        client = Client(str(tmp_path / "duly.sock"), patience_s=60)
        with no_descriptor_left(daemon, "socket", lambda: None):
            for _ in range(3):
                [reason] = shortages(client)
                assert reason.startswith("connections to the socket have to wait: Too many open files; give")
            with crowd(tmp_path / "duly.sock", 64, IDLE):
                answer = home.duly("status", "--check")
                assert answer.returncode == 1, answer
                assert "Too many open files" in answer.stdout
        daemon.log.until("ListenerRecovered listener=socket")
        until(lambda: client.ask("status")["health"]["ok"])
        said = daemon.ended()
        assert len([line for line in said if "ListenerFault" in line]) == 1
        assert not [line for line in said if "socket.accept()" in line]


def test_a_dashboard_without_descriptors_answers(tmp_path: Path) -> None:
    """Out of descriptors, the dashboard answers, and the log says so in one line, not in 127 tracebacks."""
    home = Home(tmp_path, "")
    home.config.write_text(f'{CONFIG}\n[dashboard]\nlisten = "unix:web.sock"\n')
    with home.running() as daemon:
        daemon.log.until("DashboardStarted")
        daemon.out.until("is up")
        with no_descriptor_left(daemon, "dashboard", lambda: asked(tmp_path / "web.sock")):
            assert asked(tmp_path / "web.sock").startswith(b"HTTP/1.1 200")
            with crowd(tmp_path / "web.sock", 10, IDLE):
                assert asked(tmp_path / "web.sock").startswith(b"HTTP/1.1 200")
        daemon.log.until("ListenerRecovered listener=dashboard")
        said = daemon.ended()
        assert len([line for line in said if "ListenerFault listener=dashboard" in line]) == 1
        assert not [line for line in said if "socket.accept()" in line]


def asked(path: Path) -> bytes:
    """What the dashboard answers a probe."""
    with crowd(path, 1, b"GET /healthz/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") as [
        client
    ]:
        received = b""
        while chunk := client.recv(65536):
            received += chunk
    return received


def is_connecting(thread: threading.Thread) -> bool:
    """Whether a thread waits in the kernel's connect()."""
    with suppress(FileNotFoundError):
        called = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]
        return called == {"x86_64": "42", "aarch64": "203"}[platform.machine()]
    return False


def test_a_client_waits_for_its_place_in_the_queue(tmp_path: Path) -> None:
    """A client that finds the daemon's queue full waits for a place in it, and is not refused at once."""
    path = tmp_path / "duly.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(path))
        server.listen(0)
        first.connect(str(path))
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(Client(str(path)).ask("status")))
        asking.start()
        until(lambda: is_connecting(asking) or not asking.is_alive())
        assert asking.is_alive()
        server.accept()[0].close()
        with server.accept()[0] as accepted:
            accepted.recv(100)
            accepted.sendall(b'{"ok":true,"result":"well"}\n')
            asking.join(60)
    assert answers == ["well"]


def test_few_descriptors_are_not_used_up_by_silent_clients(tmp_path: Path) -> None:
    """A daemon with a low limit of open files serves each newcomer in the place of a silent client."""
    home = Home(tmp_path, CONFIG)
    with home.running(prefix=["prlimit", "--nofile=40"]) as daemon:
        daemon.out.until("is up")
        with crowd(tmp_path / "duly.sock", 100, IDLE):
            client = Client(str(tmp_path / "duly.sock"), patience_s=60)
            assert client.ask("status")["state"] == "running"
            assert home.duly("stop").returncode == 0
            assert daemon.code() == 0
        assert len(daemon.log.matching("ListenerFault")) <= 1
