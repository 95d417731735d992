"""What a daemon cannot use: one clear sentence, the right exit code, and the rest goes on."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.running import (
    DULY,
    Home,
    living,
    one_sentence,
    oneshot,
    service,
    settings,
    table,
    timer,
)

WEB = service("web", "echo web up; exec sleep 1000")


def refused(home: Home, *options: str, code: int) -> str:
    """The one sentence that `duly run` refuses to run with."""
    answer = home.duly("run", str(home.config), *options, config=False)
    assert answer.returncode == code, answer
    assert answer.stdout == ""
    return one_sentence(answer)


# --- two daemons ---


def test_second_daemon_touches_nothing(tmp_path: Path) -> None:
    """The second daemon on a store ends with 1 and a sentence that names the first, which does not notice."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        daemon.out.until("web up")
        before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
        said = refused(home, code=1)
        assert f"process {daemon.pid}" in said
        assert "in use" in said
        assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == before
        [web] = home.asked("services")["services"]
        assert (web["state"], web["restarts"]) == ("running", 0)
        daemon.ended()
        assert not daemon.log.matching("ERROR|WARNING")


def test_second_daemon_on_the_same_socket(tmp_path: Path) -> None:
    """A daemon with a store of its own does not take the socket of another, and starts nothing."""
    home = Home(tmp_path, WEB)
    (tmp_path / "other").mkdir()
    other = Home(tmp_path / "other", settings(socket=str(tmp_path / "duly.sock")) + WEB)
    with home.running() as daemon:
        said = refused(other, code=1)
        assert "a daemon is listening there already" in said
        assert home.asked("status")["pid"] == daemon.pid
        daemon.ended()


def test_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    """After kill -9 the socket is left: commands say so with 69, and the next daemon takes its place."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        daemon.send(signal.SIGKILL)
        daemon.process.wait(60)
    assert (tmp_path / "duly.sock").is_socket()
    answer = home.duly("reload")
    assert answer.returncode == 69
    assert "died and left its socket behind" in one_sentence(answer)
    with home.running() as daemon:
        assert home.asked("status")["pid"] == daemon.pid
        daemon.ended()


def test_something_else_in_the_place_of_the_socket(tmp_path: Path) -> None:
    """A file that is no socket is not removed, and the sentence says what to do."""
    home = Home(tmp_path, WEB)
    (tmp_path / "duly.sock").write_text("precious")
    assert "not a socket; remove it" in refused(home, code=1)
    assert (tmp_path / "duly.sock").read_text() == "precious"


def test_path_too_long_for_a_socket(tmp_path: Path) -> None:
    """A path that no socket can have is said in one sentence, with the way out, and code 4."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    home = Home(deep, WEB)
    assert "set a shorter one with socket =" in refused(home, code=4)
    assert home.duly("reload").returncode == 69
    home.write(settings(socket=str(tmp_path / "s")) + WEB)
    with home.running() as daemon:
        assert home.asked("status")["pid"] == daemon.pid
        daemon.ended()


def test_stranger_at_the_socket(tmp_path: Path) -> None:
    """Rubbish at the socket, and clients that vanish, leave the daemon as it was."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        for rubbish in (b"", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000, b'{"op": "shut_down"'):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "duly.sock"))
                client.sendall(rubbish)
        assert home.asked("status")["state"] == "running"
        daemon.ended()


# --- files that cannot be used at all ---


def test_unusable_files(tmp_path: Path) -> None:
    """A file that is no file, is broken, binary, enormous or not there ends with 4 and one sentence each."""
    home = Home(tmp_path, WEB)
    home.config.unlink()
    assert "does not exist" in refused(home, code=4)
    home.config.mkdir()
    assert "is a directory" in refused(home, code=4)
    home.config.rmdir()
    home.config.write_bytes(b"\x7fELF\0\1\2\3" * 100)
    assert "is binary" in refused(home, code=4)
    home.config.write_bytes(b"# \xff\xfe\n")
    assert "is not UTF-8" in refused(home, code=4)
    home.config.write_text("# long\n" * 1_500_000)  # 10 MB
    assert "larger than 4 MiB" in refused(home, code=4)
    home.write("[[service]]\nid = \n")
    assert "duly.toml:2: is not TOML" in refused(home, code=4)
    home.write('[[servce]]\nid = "a"\n')
    assert 'unknown table "servce"; did you mean service' in refused(home, code=4)
    home.config.unlink()
    os.mkfifo(home.config)
    assert "is a pipe" in refused(home, code=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["duly.toml"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("raise ValueError('no luck')", "no luck"),
        ("import sys\nsys.exit(3)", "exit"),
        ("exit()", "exit"),
        ("def f(:\n", "duly.py:1"),
        ("import no_such_module_here", "no_such_module_here"),
        ("SERVICES = 3", "SERVICES"),
        ("class E(BaseException): ...\nraise E('odd')", "odd"),
        ("def f(): f()\nf()", "recursion"),
    ],
)
def test_python_files_that_fail(tmp_path: Path, text: str, part: str) -> None:
    """A Python file that raises, exits or has no sense ends with 4 and one sentence, without a traceback."""
    home = Home(tmp_path, text, "duly.py")
    said = refused(home, code=4)
    assert part in said
    assert "duly.py" in said
    assert {path.name for path in tmp_path.iterdir()} <= {"duly.py", "__pycache__"}


# --- entries that cannot be used ---

BAD_ENTRIES: dict[str, tuple[str, str]] = {
    "wrong type": (service("bad", "x", stage="two"), "stage"),
    "bool for a number": (oneshot("bad", "x", timeout_sec=True), "timeout_sec"),
    "unknown key": (service("bad", "x", comand="y"), "comand"),
    "shell syntax": (table("service", {"id": "bad", "command": "echo $HOME > all"}), "shell = true"),
    "duplicate id": (service("web", "x"), "web"),
    "cyclic requires": (
        service("a", "x", requires=["b"]) + service("b", "x", requires=["a"]),
        "waits for itself",
    ),
    "missing requires": (service("bad", "x", requires=["nobody"]), "nobody"),
    "target missing": (timer("bad", "nobody", on_startup_sec=1), "nobody"),
    "target not a oneshot": (timer("bad", "web", on_startup_sec=1), "oneshot"),
    "no trigger": (timer("bad", "job"), "trigger"),
    "seconds": (timer("bad", "job", on_startup_sec=-1), "on_startup_sec"),
    "calendar": (timer("bad", "job", on_calendar={"minute": 60}), "minute"),
    "duplicate timer": (
        timer("t", "job", on_startup_sec=1000) + timer("t", "job", on_startup_sec=2000),
        "taken",
    ),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_one_bad_entry_and_the_rest_goes_on(tmp_path: Path, name: str) -> None:
    """An entry that cannot be used is said, with its reason, by `check` (4) and by the daemon; others run."""
    text, part = BAD_ENTRIES[name]
    home = Home(tmp_path, WEB + oneshot("job", "echo job done", at_startup=True) + text)
    checked = home.duly("check", str(home.config), config=False)
    assert checked.returncode == 4
    assert part in checked.stdout
    with home.running("--timers") as daemon:
        assert [part in line for line in daemon.log.until("EntryInvalid")] == [True]
        daemon.out.until("web up")
        daemon.out.until("job done")
        status = home.asked("status")
        assert any(part in reason for reason in status["health"]["reasons"])
        daemon.ended()
        assert not daemon.log.matching("ERROR")


def test_empty_file_at_a_reload(tmp_path: Path) -> None:
    """A file that defines nothing any more changes nothing, unless it is said that this is meant."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        daemon.out.until("web up")
        home.write("")
        refused = home.duly("reload")
        assert refused.returncode == 4
        assert (
            "defines no service any more; if everything is to end: duly reload --allow-empty"
            in refused.stderr
        )
        daemon.send(signal.SIGHUP)
        daemon.log.until("not reloaded: .*defines no service any more")
        [web] = home.asked("services")["services"]
        assert (web["state"], web["restarts"]) == ("running", 0)
        assert any("defines no service" in reason for reason in home.asked("status")["health"]["reasons"])
        assert home.asked("reload", "--allow-empty")["removed"] == ["service web"]
        assert home.asked("services")["services"] == []
        assert home.asked("status")["health"]["ok"]
        daemon.ended()


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    """Settings that cannot be used are all said by `check`; the daemon does not guess what was meant."""
    home = Home(tmp_path, settings(timers="yes", shutdown_timeout_sec=-3, nonsense=1) + WEB)
    checked = home.duly("check", str(home.config), config=False)
    assert checked.returncode == 4
    assert [name in checked.stdout for name in ("timers", "shutdown_timeout_sec", "nonsense")] == [True] * 3
    assert 'unknown key "nonsense"' in refused(home, code=4)
    home.write(settings(timers="yes") + WEB)
    assert "timers must be true or false" in refused(home, code=4)
    home.write(WEB)
    with home.running() as daemon:
        home.write(settings(timers="yes") + service("other", "exit 1"))
        assert "timers must be true or false" in one_sentence(home.duly("reload"))
        [web] = home.asked("services")["services"]
        assert (web["id"], web["state"]) == ("web", "running")
        daemon.ended()


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"command": ["no-such-program-here"]}, "not found"),
        ({"command": ["./duly.toml"]}, "not executable|Permission denied|may not be executed"),
        ({"command": ["/"]}, "directory|Permission denied"),
        ({"command": ["true"], "cwd": "/no/such/place"}, "does not exist"),
        ({"command": ["true"], "cwd": "/etc/hostname"}, "not a directory"),
    ],
)
def test_commands_that_cannot_be_started(tmp_path: Path, fields: dict[str, Any], part: str) -> None:
    """A command or directory that cannot be used is a spawn-error with a reason; all others run."""
    home = Home(tmp_path, WEB + table("service", {"id": "bad", "type": "oneshot", **fields}))
    with home.running() as daemon:
        [line] = daemon.log.until("ServiceRunEnded service=bad .*result=spawn-error")
        assert re.search(part, line)
        daemon.out.until("web up")
        answer = home.duly("start", "bad")
        assert answer.returncode == 1
        assert re.search(part, one_sentence(answer))
        daemon.ended()
    [run, *_] = home.asked("history", "bad")["runs"]
    assert run["result"] == "spawn-error"


def test_unwritable_places(tmp_path: Path) -> None:
    """A store or a socket in a place that is not there ends with 1 and a sentence that says where."""
    home = Home(tmp_path, settings(store=str(tmp_path / "no" / "duly.db")) + WEB)
    assert "no/duly.db" in refused(home, code=1)
    home.write(settings(socket=str(tmp_path / "no" / "duly.sock")) + WEB)
    assert "no/duly.sock" in refused(home, code=1)
    (tmp_path / "file").write_text("")
    home.write(settings(store=str(tmp_path / "file" / "duly.db")) + WEB)
    assert "file/duly.db" in refused(home, code=1)
    home.write(settings(store=str(tmp_path)) + WEB)
    assert str(tmp_path) in refused(home, code=1)
    assert living(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_directory_that_another_user_may_not_write(tmp_path: Path) -> None:
    """A user who may not write where the store is gets one sentence."""
    home = Home(tmp_path, WEB)
    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/tmp") and str(directory).startswith("/tmp/pytest"):
            directory.chmod(0o755)
    answer = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *_command(home)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    if "setpriv" in answer.stderr or "No module" in answer.stderr or answer.returncode in {126, 127}:
        pytest.skip(f"another user cannot run duly here: {answer.stderr[-200:]}")
    assert answer.returncode == 1, answer
    assert "duly.db" in one_sentence(answer)


def _command(home: Home) -> list[str]:
    return [DULY, "run", str(home.config)]


# --- a store that cannot be used ---


def test_stores_that_cannot_be_used(tmp_path: Path) -> None:
    """A file that is no database, or another program's, is left as it is; one sentence, code 1."""
    home = Home(tmp_path, WEB)
    store = tmp_path / "duly.db"
    store.write_bytes(b"These are not the rows you look for. " * 200)
    before = store.read_bytes()
    assert "not a SQLite database" in refused(home, code=1)
    assert store.read_bytes() == before
    assert living(tmp_path) == []


# --- reloads ---


def test_reload_of_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    """A reload of a broken file is refused with 4; all goes on, and `status` says so until it is mended."""
    text = settings(timers=True) + WEB + oneshot("job", "echo job ran")
    text += timer("t", "job", on_startup_sec=0.1, on_unit_active_sec=0.1, retry_intervals_sec=[])
    home = Home(tmp_path, text)
    with home.running() as daemon:
        [web] = [each for each in home.asked("services")["services"] if each["id"] == "web"]
        home.write(text + "\n[[service")
        answer = home.duly("reload")
        assert answer.returncode == 4
        assert "is not TOML" in one_sentence(answer)
        seen = len(daemon.log.lines)
        daemon.send(signal.SIGHUP)
        daemon.log.until("not reloaded", after=seen)
        daemon.log.until("TimerRunEnded .*success", count=2, after=seen)
        assert any("is not TOML" in reason for reason in home.asked("status")["health"]["reasons"])
        assert web in home.asked("services")["services"]
        home.write(text)
        assert home.duly("reload").stdout == "Reloaded; nothing changed.\n"
        assert home.asked("status")["health"]["reasons"] == []
        daemon.ended()
        assert len(daemon.log.matching("ServiceRunStarted service=web")) == 1


def test_reload_with_one_invalid_entry_keeps_the_old_one(tmp_path: Path) -> None:
    """What became invalid goes on as it was; what is new starts; the exit code is 4."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        daemon.out.until("web up")
        home.write(service("web", "echo changed", stage=99) + service("new", "echo new up; exec sleep 1000"))
        done = home.asked("reload", code=4)
        assert done["added"] == ["service new"]
        assert (done["changed"], done["removed"]) == ([], [])
        assert [bad["id"] for bad in done["invalid"]] == ["web"]
        daemon.out.until("new up")
        states = {each["id"]: each["state"] for each in home.asked("services")["services"]}
        assert states["new"] == "running"
        assert not daemon.out.matching("changed")
        home.write(WEB + service("new", "echo new up; exec sleep 1000"))
        assert home.asked("reload")["changed"] == []
        daemon.ended()
        assert len(daemon.log.matching("ServiceRunStarted service=web")) == 1
