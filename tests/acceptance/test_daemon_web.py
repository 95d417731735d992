"""`duly run` with its dashboard: where it is, who may do what, and when it refuses to start."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.running import (
    Home,
    Running,
    environment,
    one_sentence,
    oneshot,
    service,
    settings,
    timer,
)

TOKEN = "an-operator-token-of-some-length"
WEB = service("web", "echo up; exec sleep 1000")


def home_of(path: Path, text: str, dashboard: str | None = 'listen = "127.0.0.1:0"') -> Home:
    """A home whose daemon has a dashboard; None: as it is by default."""
    home = Home(path, "")
    home.config.write_text(text + ("" if dashboard is None else f"\n[dashboard]\n{dashboard}\n"))
    return home


def port_of(daemon: Running) -> int:
    (line,) = daemon.log.until(r"DashboardStarted url=")
    found = re.search(r"url=http://127\.0\.0\.1:(\d+)/", line)
    assert found is not None, line
    return int(found[1])


def ask(
    port: int, method: str, path: str, headers: Mapping[str, str] | None = None, body: str | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def told(port: int, path: str, headers: Mapping[str, str] | None = None) -> Any:
    status, _, body = ask(port, "GET", f"/api/v1/{path}", headers)
    assert status == 200, body
    return json.loads(body)


def test_dashboard_of_a_daemon(tmp_path: Path) -> None:
    """The dashboard shows what the socket shows, does what it does, and ends with the daemon."""
    text = (
        settings(timers=True, timezone="UTC")
        + WEB
        + oneshot("job", "echo done")
        + timer("job", "job", on_startup_sec=9999)
    )
    home = home_of(tmp_path, text)
    with home.running() as daemon:
        port = port_of(daemon)
        assert home.asked("status")["dashboard"] == f"http://127.0.0.1:{port}/"
        assert f"http://127.0.0.1:{port}/" in home.duly("status").stdout
        assert told(port, "status")["pid"] == daemon.pid
        status, headers, page = ask(port, "GET", "/")
        assert (status, "duly" in page) == (200, True)
        assert ask(port, "GET", "/healthz/ready")[0] == 200
        assert "duly_" in ask(port, "GET", "/metrics")[2]
        cookie = str(headers["set-cookie"]).partition(";")[0]
        csrf = told(port, "session", {"cookie": cookie})["csrf"]
        given = {"cookie": cookie, "x-csrf-token": csrf, "content-type": "application/json"}
        status, _, answer = ask(port, "POST", "/api/v1/trigger", given, '{"id": "job"}')
        assert (status, json.loads(answer)["done"]) == (200, "triggered")
        daemon.log.until(r"OperatorAction action=trigger id=job who=web operator 127\.0\.0\.1")
        daemon.out.until(r"^job \| done$")
        assert ask(port, "POST", "/api/v1/trigger", {}, '{"id": "job"}')[0] in {403, 415}
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
            stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stream.recv(10)
            daemon.ended()
            while stream.recv(65536):
                pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_tokens_are_not_for_services(tmp_path: Path) -> None:
    """A token from the environment lets operators in, and no service inherits it; no log repeats it."""
    home = home_of(tmp_path, oneshot("job", "env | grep -c DULY_OPERATOR_TOKEN; true"))
    with home.running(env={"DULY_OPERATOR_TOKEN": TOKEN}) as daemon:
        port = port_of(daemon)
        daemon.out.until(r"^job \| 0$")
        assert ask(port, "GET", "/api/v1/status")[0] == 401
        assert ask(port, "GET", f"/login?token={TOKEN}")[0] == 200
        assert told(port, "status", {"authorization": f"Bearer {TOKEN}"})["state"] == "running"
        assert TOKEN not in "\n".join(daemon.ended())


def test_taken_default_port(tmp_path: Path) -> None:
    """That the default port is taken is told in the status, and keeps nothing from running."""
    with ExitStack() as held:
        with suppress(OSError):  # somebody else has it: as good
            held.enter_context(socket.create_server(("127.0.0.1", 8787)))
        home = home_of(tmp_path, WEB, None)
        with home.running() as daemon:
            daemon.log.until(r"DashboardFault ")
            status = home.asked("status")
            assert "another program listens at 127.0.0.1:8787" in status["dashboard"]
            assert status["health"]["ok"]
            daemon.ended()


@pytest.mark.parametrize(
    ("dashboard", "said"),
    [
        ('listen = "0.0.0.0:0"', "there is no token"),
        ('listen = "127.0.0.1:{taken}"', "another program listens at 127.0.0.1:"),
        ('token_file = "wide"', "others may read the token file"),
        ('token_file = "missing"', "cannot be read"),
        ('listen = "unix:file"', "is not a socket"),
    ],
)
def test_refuses_to_start(tmp_path: Path, dashboard: str, said: str) -> None:
    """A dashboard that cannot be as it is configured, or would be open to all, refuses the start."""
    (tmp_path / "wide").write_text(TOKEN)
    (tmp_path / "wide").chmod(0o644)
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = dashboard.replace("{taken}", str(taken.getsockname()[1]))
        home = home_of(tmp_path, oneshot("job", "touch ran"), text)
        answer = home.duly("run", str(home.config), config=False)
    assert answer.returncode == 1
    assert said in one_sentence(answer)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("missing", ["starlette", "jinja2", "markupsafe"])
def test_without_the_packages(tmp_path: Path, missing: str) -> None:
    """Without what the dashboard needs the daemon runs all the same, and says in one line what to install."""
    home = home_of(tmp_path, oneshot("job", "kill $PPID"), None)
    program = f"import sys; sys.modules['{missing}'] = None; from duly.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", program, "run", str(home.config)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        cwd=tmp_path,
    )
    assert answer.returncode == 0, answer
    lines = [line for line in answer.stderr.splitlines() if "pip install" in line]
    assert lines == [f"duly: there is no dashboard, which needs {missing}; for one: pip install 'duly[web]'"]
    assert "Traceback" not in answer.stderr


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    """Every page and the API can be sent where neither the file nor its directory has a name that is text."""
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.mkdir()
    home = home_of(path, WEB)
    home.config = home.config.rename(path / os.fsdecode(b"\xe9.toml"))
    with home.running() as daemon:
        port = port_of(daemon)
        pages = ("/", "/services", "/services/web", "/runs", "/invalid", "/api/v1/status")
        assert [ask(port, "GET", page)[0] for page in pages] == [200] * len(pages)
        assert told(port, "status")["config"].endswith("caf\\udce9/\\udce9.toml")
        daemon.ended()
