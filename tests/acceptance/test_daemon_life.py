"""`duly run` from its start to its end: signals, order, deadline, what it writes where."""

import os
import signal
import stat
import subprocess
from pathlib import Path

from tests.acceptance.running import DULY, Home, environment, living, oneshot, service, settings, timer

WEB = service("web", "echo web up; exec sleep 1000")
STUBBORN = service("stubborn", "trap '' TERM; echo deaf; while :; do sleep 1000; done")


def test_starts_answers_and_ends(tmp_path: Path) -> None:
    """The daemon answers at a socket and writes a store that nobody else may open; TERM ends it with 0."""
    home = Home(tmp_path, settings(timezone="UTC") + WEB)
    with home.running() as daemon:
        daemon.out.until(r"^web \| web up$")
        for name in ("duly.sock", "duly.db", "duly.db-wal", "duly.db-shm"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
        status = home.asked("status")
        assert (status["state"], status["pid"], status["source"]) == ("running", daemon.pid, "daemon")
        log = daemon.ended()
        assert [line for line in log if " SupervisorStopped" in line]
        assert not (tmp_path / "duly.sock").exists()
    assert living(tmp_path) == []
    [run] = home.asked("history")["runs"]
    assert (run["service"], run["result"], run["running"]) == ("web", "interrupted", False)


def test_services_keep_the_umask_of_whoever_started_the_daemon(tmp_path: Path) -> None:
    """The files of the daemon are its own; what services write is as readable as it was before."""
    home = Home(tmp_path, oneshot("job", "umask"))
    with home.running(umask=0o027) as daemon:
        daemon.out.until(r"^job \| 0027$")
        assert daemon.ended()


def test_shutdown_goes_in_reverse_order(tmp_path: Path) -> None:
    """A service ends before the one that it came after, and stages end last to first."""
    says = "trap 'echo {0} ends; exit 0' TERM; echo {0} up; while :; do sleep 0.05; done"
    home = Home(
        tmp_path,
        service("base", says.format("base"), stage=1)
        + service("db", says.format("db"))
        + service("web", says.format("web"), after=["db"], requires=["db"])
        + service("late", says.format("late"), stage=4),
    )
    with home.running() as daemon:
        daemon.out.until(r"up$", count=4)
        daemon.ended()
        ends = [line.split()[0] for line in daemon.out.all() if line.endswith("ends")]
    assert ends == ["late", "web", "db", "base"]


def test_interrupt_ends_it_like_term(tmp_path: Path) -> None:
    """Ctrl-C ends the daemon in order, with code 0 and no traceback."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        daemon.send(signal.SIGINT)
        assert daemon.code() == 0
        assert daemon.log.matching("SupervisorStopped")
    assert living(tmp_path) == []


def test_second_signal_hurries(tmp_path: Path) -> None:
    """A service that ignores TERM is killed by the second signal, long before its grace has passed."""
    home = Home(tmp_path, settings(shutdown_timeout_sec=5000, kill_grace_sec=4000) + STUBBORN)
    with home.running() as daemon:
        daemon.out.until("deaf")
        daemon.send(signal.SIGTERM)
        daemon.log.until("SupervisorStopping")
        daemon.send(signal.SIGTERM)
        assert daemon.code() == 0
        assert daemon.log.matching("SIGTERM again")
    assert living(tmp_path) == []
    [run] = home.asked("history")["runs"]
    assert (run["result"], run["signal"]) == ("interrupted", 9)


def test_signal_after_a_stop_hurries(tmp_path: Path) -> None:
    """After `duly stop` the first signal is the second request to end, and hurries."""
    home = Home(tmp_path, settings(shutdown_timeout_sec=5000, kill_grace_sec=4000) + STUBBORN)
    with home.running() as daemon:
        daemon.out.until("deaf")
        assert home.duly("stop").returncode == 0
        daemon.log.until("SupervisorStopping")
        daemon.send(signal.SIGTERM)
        assert daemon.code() == 0


def test_shutdown_keeps_its_deadline(tmp_path: Path) -> None:
    """A service that ignores TERM, with a grace longer than the deadline, is killed when that comes."""
    home = Home(tmp_path, settings(shutdown_timeout_sec=1, kill_grace_sec=4000) + STUBBORN + WEB)
    with home.running() as daemon:
        daemon.out.until("deaf")
        daemon.ended()
        assert daemon.log.matching("ServiceRunEnded service=stubborn .*signal=9")
    assert living(tmp_path) == []


def test_term_during_start_up_ends_it(tmp_path: Path) -> None:
    """A oneshot that hangs in an early stage does not keep a signal from ending the daemon."""
    home = Home(tmp_path, oneshot("hangs", "echo hanging; exec sleep 1000", stage=1) + WEB)
    with home.running(is_awaited=False) as daemon:
        daemon.out.until("hanging")
        daemon.ended()
        assert daemon.out.all() == ["hangs | hanging"]
    assert living(tmp_path) == []


def test_hangup_and_reload_apply_the_file(tmp_path: Path) -> None:
    """HUP and `duly reload` both read the file again; what is unchanged goes on without a restart."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        [web] = home.asked("services")["services"]
        home.write(WEB + service("second", "echo second up; exec sleep 1000"))
        daemon.send(signal.SIGHUP)
        daemon.out.until("second up")
        daemon.log.until("ConfigurationReloaded")
        home.write(WEB + service("third", "echo third up; exec sleep 1000"))
        done = home.asked("reload")
        assert (done["added"], done["removed"]) == (["service third"], ["service second"])
        daemon.out.until("third up")
        services = {each["id"]: each for each in home.asked("services")["services"]}
        assert services.keys() == {"web", "third"}
        assert services["web"]["pid"] == web["pid"]
        daemon.ended()


def test_stop_command_ends_it(tmp_path: Path) -> None:
    """`duly stop` ends the daemon in order; then it is not reachable, and the store answers instead."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        assert home.duly("stop").stdout == "The daemon is stopping.\n"
        assert daemon.code() == 0
    assert home.duly("stop").returncode == 69
    answer = home.duly("services")
    assert answer.returncode == 0
    assert "what its store remembers" in answer.stderr


def test_output_on_stdout_and_log_on_stderr(tmp_path: Path) -> None:
    """What services write goes to stdout with their names, also without a last newline; the log does not."""
    home = Home(
        tmp_path,
        oneshot("both", "echo out; echo err >&2; printf 'no end'")
        + service("pid", "printf waiting; exec sleep 1000"),
    )
    with home.running() as daemon:
        daemon.out.until(r"^both \| no end$")
        daemon.ended()
        assert sorted(daemon.out.all()) == ["both | err", "both | no end", "both | out", "pid | waiting"]


def test_quiet_and_no_echo(tmp_path: Path) -> None:
    """With --quiet and --no-echo a daemon that has no trouble says nothing at all."""
    home = Home(tmp_path, WEB)
    with home.running("--quiet", "--no-echo", is_awaited=False) as daemon:
        while home.duly("services", "--json").stdout.find('"running"') < 0:
            assert daemon.process.poll() is None
        daemon.ended()
        assert (daemon.out.all(), daemon.log.all()) == ([], [])


def test_closed_stdout_does_no_harm(tmp_path: Path) -> None:
    """When the reader of its stdout goes away (`| head -1`), the daemon and its services go on."""
    home = Home(tmp_path, service("chatty", "while :; do echo line; sleep 0.01; done") + TICKING)
    reading, writing = os.pipe()
    with home.running("--timers", stdout=writing) as daemon:
        os.close(writing)
        assert os.read(reading, 1)
        os.close(reading)
        daemon.log.until("TimerRunEnded .*result=success", count=4)
        chatty = next(each for each in home.asked("services")["services"] if each["id"] == "chatty")
        assert (chatty["state"], chatty["restarts"]) == ("running", 0)
        daemon.ended()


TICKING = oneshot("tick", "exit 0") + timer(
    "ticks", "tick", on_startup_sec=0.1, on_unit_active_sec=0.1, retry_intervals_sec=[]
)


def test_stopped_reader_does_no_harm(tmp_path: Path) -> None:
    """A reader of stdout and stderr that stops reading does not stop the daemon, nor keep it from ending."""
    home = Home(tmp_path, service("chatty", "yes | head -c 3000000; echo >done; exec sleep 1000") + TICKING)
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(["sleep", "1000"], stdin=reading) as reader:
            try:
                with home.running(
                    "--timers", "--verbose", is_awaited=False, stdout=writing, stderr=writing
                ) as daemon:
                    while len(home.asked("history", "tick", "-n", "1000", code=0)["runs"]) < 20:
                        assert daemon.process.poll() is None
                    assert (tmp_path / "done").exists()
                    daemon.send(signal.SIGTERM)
                    assert daemon.process.wait(60) == 0
            finally:
                reader.kill()
    finally:
        os.close(reading)
        os.close(writing)


def test_closed_standard_streams_do_no_harm(tmp_path: Path) -> None:
    """Started without stdin, stdout and stderr, the daemon writes its lines into no file of its own."""
    home = Home(tmp_path, service("chatty", "echo chatty line; exec sleep 1000"))
    prefix = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    with home.running("--verbose", prefix=prefix, is_awaited=False) as daemon:
        while "running" not in home.duly("services", "--json").stdout:
            assert daemon.process.poll() is None
        assert home.asked("logs", "chatty")["output"] == "chatty line\n"
        for name in ("duly.db", "duly.db-wal"):
            assert b"chatty |" not in (tmp_path / name).read_bytes()
        assert home.duly("stop").returncode == 0
        assert daemon.code() == 0


def test_a_storm_of_hangups_ends_with_the_last_file(tmp_path: Path) -> None:
    """Many reloads at once are done one after the other; what runs in the end is what the file says."""
    home = Home(tmp_path, WEB)
    with home.running() as daemon:
        for n in range(20):
            home.write(WEB + service(f"s{n % 3}", f"echo s{n % 3} up {n}; exec sleep 1000"))
            daemon.send(signal.SIGHUP)
        home.write(WEB + service("last", "echo last up; exec sleep 1000"))
        assert home.duly("reload").returncode == 0
        daemon.out.until("last up")
        services = {each["id"]: each["state"] for each in home.asked("services")["services"]}
        assert services == {"web": "running", "last": "running"}
        daemon.ended()
        assert len(daemon.log.matching("ServiceRunStarted service=web")) == 1
    assert living(tmp_path) == []


def test_term_during_a_reload_ends_it(tmp_path: Path) -> None:
    """A reload that waits for a deaf service is given up when the daemon is told to end."""
    home = Home(tmp_path, settings(kill_grace_sec=4000, shutdown_timeout_sec=1) + STUBBORN)
    with home.running() as daemon:
        daemon.out.until("deaf")
        home.write(settings(kill_grace_sec=4000, shutdown_timeout_sec=1) + WEB)
        seen = len(daemon.log.lines)
        daemon.send(signal.SIGHUP)
        daemon.send(signal.SIGHUP)
        daemon.send(signal.SIGTERM)
        assert daemon.code() == 0
        assert daemon.log.lines[seen:]
    assert living(tmp_path) == []


def test_client_that_follows_hears_the_end(tmp_path: Path) -> None:
    """A follower of one run is let go when the daemon ends it, with all that was written."""
    home = Home(
        tmp_path, service("web", "echo one; trap 'echo two; exit 0' TERM; while :; do sleep 0.05; done")
    )
    with home.running() as daemon:
        daemon.out.until("one")
        follow = [DULY, "logs", "--run", "1", "--follow", "--no-timestamps", "-c", str(home.config)]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True, env=environment()) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "one\n"
            daemon.ended()
            assert follower.stdout.read().endswith("two\n")
            assert follower.wait(60) == 0


PYTHON = """
SERVICES = [{"id": "web", "command": ["/bin/sh", "-c", "echo web up; exec sleep 1000"]}]
"""


def test_python_file_that_hangs_at_a_reload(tmp_path: Path) -> None:
    """A Python file that never comes to its end keeps the daemon neither from answering nor from ending."""
    home = Home(tmp_path, PYTHON, "duly.py")
    socket = ("--socket", str(tmp_path / "duly.sock"))  # who asks for it by the file would hang as well
    with home.running() as daemon:
        daemon.out.until("web up")
        os.mkfifo(tmp_path / "hanging")
        home.write(f"import threading\nopen('{tmp_path}/hanging', 'w').close()\nthreading.Event().wait()\n")
        daemon.send(signal.SIGHUP)
        (tmp_path / "hanging").open().close()  # opens when the file does
        answer = home.duly("status", "--json", *socket, config=False)
        assert '"state": "running"' in answer.stdout
        daemon.ended()
    assert living(tmp_path) == []
