"""Each example application serves with two workers on one SQLite file, and one of them runs the tasks."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
GUNICORN = ("gunicorn", "-w", "2", "-b", "127.0.0.1:{port}")
SERVERS = {
    "fastapi": ("uvicorn", "main:api", "--workers", "2", "--port", "{port}"),
    "flask": (*GUNICORN, "wsgi:app"),
    "django": (*GUNICORN, "mysite.wsgi"),
}
ALONE = {"flask": ("-m", "flask", "--app", "shop", "duly"), "django": ("manage.py", "duly")}
TICK = r"(\d+) (?:fetched|cleared)"
PATIENCE_S = 60
CONNECTIONS = """
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"

import django

django.setup()

from django.db.backends.signals import connection_created
from duly.integrations.django import jobs

made = []
connection_created.connect(lambda connection, **_: made.append(connection), weak=False)
with jobs.background() as controls:
    controls.run_now("clear_sessions")
print([each.connection for each in made])
"""


class Program:
    """A program in a copy of an example, and what it prints."""

    def __init__(self, folder: Path, command: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", *command],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._printed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._printed:
                self.lines.append(line.rstrip())
                self._printed.notify_all()

    def until(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """The first line that matches, of those after so many."""

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines[after:] if (match := re.match(pattern, line))), None)

        with self._printed:
            match = self._printed.wait_for(found, PATIENCE_S)
        assert match is not None, "\n".join(self.lines)
        return match

    def end(self) -> str:
        """End it with SIGTERM; all that it has printed."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return "\n".join(self.lines)


@contextmanager
def running(folder: Path, command: tuple[str, ...]) -> Iterator[Program]:
    program = Program(folder, command)
    try:
        yield program
    finally:
        program.end()


def example(name: str, tmp_path: Path) -> Path:
    """A copy of an example, ready to be started."""
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    if name == "django":
        command = [sys.executable, "manage.py", "migrate", "-v", "0"]
        subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE_S)
    return folder


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def asked(url: str, method: str) -> bytes:
    """What the server answers."""
    with urlopen(Request(url, method=method), timeout=PATIENCE_S) as response:
        return bytes(response.read())


@pytest.mark.parametrize("name", SERVERS)
def test_one_of_two_workers_runs_the_tasks(name: str, tmp_path: Path) -> None:
    """One worker runs the tasks, whichever is asked; the other takes over after kill -9; SIGTERM ends all."""
    folder, port = example(name, tmp_path), free_port()
    command = ("-m", *(word.format(port=port) for word in SERVERS[name]))
    with running(folder, command) as server:
        first = server.until(TICK)[1]
        for _ in range(3):
            assert server.until(TICK, after=len(server.lines))[1] == first
        for _ in range(4):  # also of a worker that stands by
            assert b"sent" in asked(f"http://127.0.0.1:{port}/reports", "POST")
            assert b"every 1s" in asked(f"http://127.0.0.1:{port}/jobs", "GET")
        assert server.until(r"(\d+) sent a report: (\w+)").groups() == (first, "manual")
        killed_at = len(server.lines)
        os.kill(int(first), signal.SIGKILL)
        server.until(rf"(?!{first} )\d+ (?:fetched|cleared)", after=killed_at)
        server.end()
    assert server.process.returncode in {0, -signal.SIGTERM}
    assert "Traceback" not in "\n".join(server.lines[killed_at:])


def test_workers_of_a_preloaded_program_run_the_tasks(tmp_path: Path) -> None:
    """With gunicorn --preload the hook `post_fork` starts the tasks; SIGTERM ends them in good order."""
    folder = example("flask", tmp_path)
    (folder / "gunicorn.conf.py").write_text(
        "preload_app = True\n"
        "def post_fork(server, worker):\n"
        "    from shop import jobs\n"
        "    jobs.start_in_server()\n"
    )
    command = ("-m", "gunicorn", "-w", "2", "-b", f"127.0.0.1:{free_port()}", "shop:create_app()")
    with running(folder, command) as server:
        first = server.until(TICK)[1]
        assert int(first) != server.process.pid
        assert server.until(TICK, after=len(server.lines))[1] == first
        assert "Traceback" not in server.end()
    assert server.process.returncode == 0


def test_the_reloader_of_flask_runs_no_tasks(tmp_path: Path) -> None:
    """Of `flask run --debug` only the process that serves runs the tasks, not the one that reloads it."""
    folder = example("flask", tmp_path)
    with running(
        folder, ("-m", "flask", "--app", "wsgi", "run", "--debug", "--port", str(free_port()))
    ) as server:
        assert int(server.until(TICK)[1]) != server.process.pid


def test_bodies_leave_no_connection_of_django_behind(tmp_path: Path) -> None:
    """The database connection of a body is closed when the body has ended."""
    folder = example("django", tmp_path)
    command = [sys.executable, "-c", CONNECTIONS]
    shown = subprocess.check_output(command, cwd=folder, text=True, timeout=PATIENCE_S)
    assert shown.splitlines()[-1] == "[None]"


@pytest.mark.parametrize("name", ALONE)
def test_command_runs_the_tasks_alone(name: str, tmp_path: Path) -> None:
    """The framework's own command runs the tasks; a second one stands by and goes on when the first ends."""
    folder = example(name, tmp_path)
    with running(folder, ALONE[name]) as first:
        first.until(TICK)
        with running(folder, ALONE[name]) as second:
            assert first.end()
            second.until(TICK)
            assert "Traceback" not in second.end()
            assert (first.process.returncode, second.process.returncode) == (0, 0)
