"""The commands that talk to a daemon, as they are called from a shell; a small daemon answers."""

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from duly.cli import COMMANDS, main, proxy
from duly.cli.proxy import DaemonProxy
from duly.config.schema import Invalid
from duly.daemon.protocol import FAILED, OperationError
from duly.daemon.views import TimerSnapshot
from duly.processes.output import Tail
from tests.worlds.daemons import CONFIG, FakeDaemon, elsewhere, listening, us


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, and no daemon in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("DULY_CONFIG", "DULY_SOCKET", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def path(here: Path, daemon: FakeDaemon) -> Iterator[Path]:
    """Where the daemon listens."""
    with listening(here / "d.sock", daemon):
        yield here / "d.sock"


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(main, list(arguments), **options)


def lines(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


def answer(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


# --- reading ---


def test_timers(path: Path) -> None:
    """The table has what was, what comes and what went wrong, and below it what is invalid."""
    shown = lines("timers", "--socket", str(path))
    assert shown[0].split() == [
        *(
            "ID",
            "TARGET",
            "ENABLED",
            "LAST",
            "RUN",
            "NEXT",
            "RUN",
            "RESULT",
            "EXIT",
            "LAST",
            "MISS",
            "SCHEDULE",
        ),
    ]
    assert [" ".join(line.split()) for line in shown[1:]] == [
        "backup backup yes 8h ago in 15h (retry 1) exit 3 - At 03:30, every day",
        "poll mail no - - - - overlap 5m ago 5s after start-up; 5m after each run of mail",
        "",
        "1 invalid entry:",
        'timer bad target "nope" is no service (line 40)',
    ]
    starts = {line.index("At 03:30") for line in shown[1:2]} | {line.index("5s after") for line in shown[2:3]}
    assert starts == {shown[0].index("SCHEDULE")}


def test_invalid_entries_of_another_file(tmp_path: Path) -> None:
    """What is invalid in an included file is listed with the name of that file."""
    bad = Invalid("job", None, 2, "is not TOML", 4, "conf.d/x.toml")
    with listening(tmp_path / "here.sock", FakeDaemon(replace(CONFIG, invalid=(bad,)))):
        shown = lines("timers", "--socket", str(tmp_path / "here.sock"))
    assert shown[-1].split() == ["job", "#3", "is", "not", "TOML", "(conf.d/x.toml,", "line", "4)"]


def test_narrow_timers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal columns go, and nothing wraps."""
    monkeypatch.setenv("COLUMNS", "40")
    shown = lines("timers", "--socket", str(path))
    assert max(map(len, shown)) <= 40
    assert shown[0].split() == ["ID", "LAST", "RUN", "NEXT", "RUN"]
    assert "in 15h (retry 1)" in shown[1]
    assert shown[-1].endswith("…")


def test_colour(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have colours on a terminal, and none with NO_COLOR or in a pipe."""
    arguments = ("timers", "--socket", str(path))
    assert "\x1b[31mexit\x1b[0m" in run(*arguments, color=True).stdout
    assert "\x1b" not in run(*arguments).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(*arguments, color=True).stdout


def test_timers_as_json(path: Path) -> None:
    """Machines get the daemon's own answer."""
    seen = answer("timers", "--socket", str(path))
    assert (seen["status"], seen["source"]) == ("enabled", "daemon")
    assert [timer["id"] for timer in seen["timers"]] == ["backup", "poll"]


def test_one_timer(path: Path) -> None:
    """One timer is told in full; one that is not there is code 3, an invalid one code 4."""
    shown = lines("timers", "backup", "--socket", str(path))
    assert shown[0] == "backup"
    assert "  next run        2026-01-02T03:30:00+00:00 (in 15h)" in shown
    assert "  exit code       3" in shown
    assert answer("timers", "poll", "--socket", str(path))["last_miss_reason"] == "overlap"
    result = run("timers", "bakup", "--socket", str(path))
    assert result.exit_code == 3
    assert "did you mean backup?" in result.stderr
    assert run("timers", "bad", "--socket", str(path)).exit_code == 4


def test_switch(path: Path) -> None:
    """A closed switch is said plainly, with how to open it; only for what acts is that an error."""
    assert lines("timers", "--off", "--socket", str(path)) == ["The timer subsystem is off."]
    [said] = lines("timers", "--socket", str(path))
    assert said.startswith("The timer subsystem is off: it is experimental")
    assert "duly timers --on" in said
    seen = answer("timers", "--socket", str(path))
    assert list(seen) == ["status", "message"]
    assert seen["status"] == "disabled"
    for command in ("trigger", "enable", "disable"):
        result = run(command, "backup", "--socket", str(path), "--json")
        assert (result.exit_code, json.loads(result.stdout)["status"]) == (1, "disabled")
    assert lines("timers", "--on", "--socket", str(path)) == ["The timer subsystem is on."]
    assert answer("timers", "--socket", str(path))["status"] == "enabled"


def test_services(path: Path) -> None:
    """Services with their state, since when, and how their last run ended."""
    assert lines("services", "--socket", str(path)) == [
        "ID      TYPE     STAGE  STATE     SINCE   PID  RESTARTS  LAST RUN  EXIT  WHY",
        "web     simple       3  running   1h ago   77         2  -            -  -",
        "backup  oneshot      3  failed    8h ago    -         0  8h ago       3  exited with code 3",
        "mail    oneshot      3  disabled  -         -         0  -            -  -",
    ]
    assert [service["id"] for service in answer("services", "--socket", str(path))["services"]] == [
        *("web", "backup", "mail"),
    ]


def test_status(path: Path) -> None:
    """The status begins with the state, then what is wrong, then what there is."""
    shown = lines("status", "--socket", str(path))
    assert shown[:2] == ["duly 9.9  running for 3h 5m, pid 1234", "  health     2 problems"]
    assert "  services   3 (1 running, 1 failed, 1 disabled)" in shown
    assert "  timers     2 (0 running); next: backup in 15h" in shown
    assert "  invalid    1 entry; see `duly check`" in shown
    assert answer("status", "--socket", str(path))["health"]["ok"] is False


def test_status_of_a_crontab(here: Path) -> None:
    """Nobody who runs a crontab is sent to `duly check`, which reads none."""
    with listening(here / "cron.sock", FakeDaemon(replace(CONFIG, path=Path("/etc/crontab")))):
        assert "  invalid    1 entry" in lines("status", "--socket", "cron.sock")


def test_health_check(here: Path) -> None:
    """With --check the exit code says whether all is well."""
    fine = FakeDaemon(replace(CONFIG, invalid=()))
    fine.snapshots = {}
    fine.services = list  # type: ignore[method-assign]
    with listening(here / "fine.sock", fine):
        assert run("status", "--check", "--socket", "fine.sock").exit_code == 0
    with listening(here / "ill.sock", FakeDaemon()):
        assert run("status", "--check", "--socket", "ill.sock").exit_code == 1
        assert run("status", "--socket", "ill.sock").exit_code == 0


def test_a_miss_warns_and_passes_the_check(here: Path) -> None:
    """A miss that nobody meant is told as a warning, in words, and fails no health check."""
    missed = FakeDaemon(replace(CONFIG, invalid=()))
    missed.snapshots = {"backup": TimerSnapshot(last_missed_us=us("03:30"), last_miss_reason="shutdown")}
    missed.services = list  # type: ignore[method-assign]
    with listening(here / "missed.sock", missed):
        assert run("status", "--check", "--socket", "missed.sock").exit_code == 0
        shown = lines("status", "--socket", "missed.sock")
    assert shown[1] == "  health     1 warning"
    assert shown[2].startswith(
        "             - timer backup missed 2026-01-01 03:30, because the daemon was down"
    )


def test_history(path: Path) -> None:
    """Runs and misses stand in one list, newest first."""
    assert lines("history", "--socket", str(path)) == [
        "RUN  SERVICE  TIMER   REASON    STARTED  LASTED  RESULT   EXIT  MESSAGE",
        "  -  -        poll    -         5m ago   -       missed      -  overlap",
        "  2  web      -       boot      1h ago   1h      running     -  -",
        "  4  backup   backup  schedule  8h ago   1m      exit        3  -",
        "  1  backup   backup  schedule  1d ago   5m      success     0  -",
    ]


def test_page_of_history(path: Path) -> None:
    """An older page has no miss that is newer than its runs."""
    shown = lines("history", "--before", "4", "--socket", str(path))
    assert [line.split()[0] for line in shown] == ["RUN", "2", "1"]


def test_history_of_one(path: Path) -> None:
    """The history of one service, a page at a time."""
    shown = lines("history", "backup", "-n", "1", "--socket", str(path))
    assert len(shown) == 3
    assert shown[-1] == "There are older ones: --before 4"
    assert lines("history", "mail", "--socket", str(path)) == ["Nothing has run yet."]
    assert run("history", "nobody", "--socket", str(path)).exit_code == 3
    assert run("history", "a", "--timer", "b", "--socket", str(path)).exit_code == 2
    assert [run["id"] for run in answer("history", "--timer", "backup", "--socket", str(path))["runs"]] == [
        4,
        1,
    ]


def test_logs(path: Path) -> None:
    """The output alone goes to stdout, what is said about it to stderr."""
    result = run("logs", "--run", "1", "-n", "2", "--socket", str(path))
    assert result.stdout == "two\nthree\n"
    assert result.stderr == (
        "run 1 of backup, started 2025-12-31T03:30:00+00:00, success after 5m;"
        " 10 bytes before this are not kept\n"
    )
    assert answer("logs", "--run", "1", "--socket", str(path))["output"] == "one\ntwo\nthree\n"
    assert run("logs", "--socket", str(path)).exit_code == 2
    assert run("logs", "nobody", "--socket", str(path)).exit_code == 3
    assert run("logs", "mail", "--socket", str(path)).exit_code == 1


def test_history_of_all_machines(path: Path, daemon: FakeDaemon) -> None:
    """Runs of shared timers on other machines are among those of this one, with the machine."""
    daemon.elsewhere = [elsewhere(2, "poll", "11:30"), elsewhere(4, "backup", "02:00")]
    at = ("--socket", str(path))
    assert lines("history", *at) == [
        "RUN  MACHINE  SERVICE  TIMER   REASON    STARTED  LASTED  RESULT   EXIT  MESSAGE",
        "  -  here     -        poll    -         5m ago   -       missed      -  overlap",
        "  2  far:9    mail     poll    schedule  30m ago  1m      success     0  -",
        "  2  here     web      -       boot      1h ago   1h      running     -  -",
        "  4  here     backup   backup  schedule  8h ago   1m      exit        3  -",
        "  4  far:9    backup   backup  schedule  10h ago  1m      success     0  -",
        "  1  here     backup   backup  schedule  1d ago   5m      success     0  -",
    ]
    asked = [answer("history", *options, *at)["runs"] for options in (["backup"], ["mail"], ["web"])]
    shown = [[(run["id"], run["machine"]) for run in runs] for runs in asked]
    assert shown == [[(4, None), (4, "far:9"), (1, None)], [(2, "far:9")], [(2, None)]]
    older = answer("history", "--before", "4", *at)["runs"]
    assert [(run["id"], run["machine"]) for run in older] == [(2, None), (4, "far:9"), (1, None)]
    assert [run["id"] for run in answer("history", "--before", "99", *at)["runs"]] == [4, 2, 1]
    only = answer("history", "--timer", "poll", "--service", "web", *at)
    assert only["runs"] == []
    assert lines("history", "-n", "1", *at)[-1] == "There are older ones: --shared 2"
    (second,) = answer("history", "-n", "1", "--shared", "2", *at)["runs"]
    assert (second["id"], second["machine"]) == (4, None)
    assert lines("history", "-n", "2", *at)[-1] == "There are older ones: --before 4 --shared 2"


def test_earlier_runs_of_this_daemon(path: Path, daemon: FakeDaemon) -> None:
    """A run that this daemon recorded under the name of an earlier life is listed once."""
    daemon.elsewhere = [elsewhere(4, "backup", "03:30", machine="here:8")]
    assert [run["id"] for run in answer("history", "backup", "--socket", str(path))["runs"]] == [4, 1]


def test_logs_of_another_machine(path: Path, daemon: FakeDaemon) -> None:
    """The output of a run elsewhere is shown, and a line says where it was; as the latest or by number."""
    at = ("--socket", str(path))
    daemon.elsewhere = [
        elsewhere(2, "backup", "11:30", output="far\n", result="exit", message="exited with code 3")
    ]
    there = ["--run", "2", "--machine", "far:9", "--no-timestamps"]
    for chosen in (["backup"], ["--run", "2", "--machine", "far:9"], [*there, "-f"]):
        result = run("logs", *chosen, *at)
        assert (result.exit_code, result.stdout) == (0, "far\n")
        assert result.stderr == (
            "run 2 of backup, started 2026-01-01T11:30:00+00:00, exit after 1m: exited with code 3\n"
            "it ran on far:9; of its output the last 64 KiB are kept\n"
        )
    refused = run("logs", "--run", "7", "--machine", "far:9", *at)
    assert (refused.exit_code, "no run 7 on far:9" in refused.stderr) == (3, True)
    assert run("logs", "backup", "--machine", "far:9", *at).exit_code == 2
    assert answer("logs", "--run", "1", *at)["run"]["machine"] is None


def test_history_without_the_database(path: Path, daemon: FakeDaemon) -> None:
    """If the database cannot be reached, what ran here is shown, and a line says what is missing."""
    daemon.fault = OperationError(FAILED, "the database does not answer")
    fault = "runs of other machines are not shown: the database does not answer"
    at = ("--socket", str(path))
    assert lines("history", "backup", *at)[1:][-1] == f"Not complete: {fault}"
    assert len(lines("history", "backup", *at)) == 4
    assert run("logs", "backup", *at).stderr.splitlines()[0] == f"Perhaps not the latest: {fault}"
    old = "timers are shown as this machine last knew them: the database does not answer"
    assert lines("timers", *at)[-1] == f"Perhaps old: {old}"
    assert answer("timers", *at)["fault"] == old
    assert run("logs", "--run", "2", "--machine", "far:9", *at).exit_code == 1


def test_following(path: Path) -> None:
    """Following a run that has ended shows it and ends."""
    result = run("logs", "--run", "1", "-f", "--socket", str(path))
    seen = "".join(f"2025-12-31 03:30:00 {line}\n" for line in ("one", "two", "three"))
    assert (result.exit_code, result.stdout) == (0, seen)
    shown = run("logs", "--run", "1", "-f", "--json", "--socket", str(path)).stdout.splitlines()
    assert [json.loads(line)["run"]["id"] for line in shown] == [1]


def test_why(path: Path) -> None:
    """The slots of a timer are answered from the daemon's history."""
    seen = answer("why", "backup", "--at", "2026-01-01T03:30", "--socket", str(path))
    assert (seen["kind"], seen["run"]["id"], seen["source"]) == ("fired", 4, "daemon")
    shown = lines("why", "backup", "-n", "2", "--socket", str(path))
    assert [line.split()[2:5] for line in shown[:2]] == [["fired", "run", "1"], ["fired", "run", "4"]]
    assert run("why", "bakup", "--socket", str(path)).exit_code == 3
    assert run("why", "bad", "--socket", str(path)).exit_code == 4
    assert run("why", "backup", "--tz", "UTC", "--socket", str(path)).exit_code == 2


def test_why_without_a_calendar(path: Path) -> None:
    """A timer that no calendar fires is answered with its schedule and its runs, also for the N latest."""
    seen = answer("why", "poll", "--socket", str(path))
    assert (seen["kind"], seen["slot"], seen["next_run_at"]) == ("no-slot", None, None)
    for words in ((), ("-n", "3")):
        shown = lines("why", "poll", *words, "--socket", str(path))
        assert "its schedule: 5s after start-up; 5m after each run of mail" in shown[0]
    assert "Next: 2026-01-02 03:30." in lines("why", "backup", "--socket", str(path))


def test_plan(path: Path, here: Path) -> None:
    """A file is compared with what the daemon runs, values of the environment included and not shown."""
    (here / "new.toml").write_text(
        '[[service]]\nid = "web"\ncommand = ["serve"]\ndescription = "The site"\n'
        '[[service]]\nid = "backup"\ntype = "oneshot"\ncommand = "save all"\nenv = { TOKEN = "hidden" }\n'
    )
    assert lines("plan", "new.toml", "--socket", str(path)) == [
        "~ service backup",
        "    env: TOKEN changed",
        "- service mail",
        "- timer backup",
        "- timer poll",
        "0 to add, 1 to change, 3 to remove; 1 stay as they are.",
    ]
    seen = answer("plan", "new.toml", "--socket", str(path))
    assert seen["source"] == "daemon"
    assert seen["changed"][0]["keys"] == [{"key": "env", "before": None, "after": None, "names": ["TOKEN"]}]


# --- acting ---


@pytest.mark.parametrize(
    ("arguments", "said", "did"),
    [
        (("start", "backup"), "Started backup: run 41.", ("start", "backup")),
        (("trigger", "backup"), "Triggered backup: run 42.", ("trigger", "backup")),
        (("stop", "web"), "Stopped web.", ("stop", "web")),
        (("stop",), "The daemon is stopping.", ("shut down",)),
        (("enable", "poll"), "Enabled poll.", ("switch", "poll", True)),
        (("disable", "poll"), "Disabled poll.", ("switch", "poll", False)),
    ],
)
def test_acting(
    path: Path, daemon: FakeDaemon, arguments: tuple[str, ...], said: str, did: tuple[Any, ...]
) -> None:
    """An action is done, and said in one line."""
    assert lines(*arguments, "--socket", str(path)) == [said]
    assert did in daemon.did
    assert answer(*arguments, "--socket", str(path))["done"]


def test_waiting_for_the_end(here: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --wait the end of the daemon is waited for, however long it takes."""
    pauses: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(listening(here / "d.sock", daemon))

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                stack.close()

        monkeypatch.setattr("duly.cli.actions.time.sleep", pause)
        assert lines("stop", "--wait", "--socket", "d.sock") == ["The daemon has stopped."]
    assert len(pauses) == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("start", "web"), 1),
        (("start", "nobody"), 3),
        (("stop", "nobody"), 3),
        (("trigger", "nobody"), 3),
        (("trigger", "bad"), 4),
        (("start",), 2),
        (("history", "--before", "99999999999999999999"), 2),
        (("logs", "--run", "99999999999999999999"), 2),
    ],
)
def test_exit_codes(path: Path, arguments: tuple[str, ...], code: int) -> None:
    """Each way of failing has its exit code, for people and for machines."""
    assert run(*arguments, "--socket", str(path)).exit_code == code
    result = run(*arguments, "--json", "--socket", str(path))
    assert result.exit_code == code
    if code != 2:
        assert json.loads(result.stdout)["error"]["message"]


def test_reload(path: Path) -> None:
    """A reload says what it changed, and ends with 4 when entries are invalid."""
    result = run("reload", "--socket", str(path))
    assert result.exit_code == 4
    assert result.stdout.splitlines() == [
        "+ timer new",
        "Reloaded; 4 entries unchanged.",
        "Takes effect when the daemon is started again: store.",
        "",
        "1 invalid entry:",
        'timer bad  target "nope" is no service (line 40)',
    ]


def test_waiting(path: Path) -> None:
    """With --wait a start shows the output of its run, and ends as the run did."""
    result = run("start", "backup", "--wait", "--socket", str(path))
    assert (result.exit_code, result.stdout) == (0, "saved\n")
    assert "success after 2s" in result.stderr
    result = run("trigger", "backup", "--wait", "--socket", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "exit code 5 after 0s: exited with code 5" in result.stderr


# --- finding the daemon ---


@pytest.mark.parametrize(
    "arguments",
    [
        ("start", "a"),
        ("stop",),
        ("trigger", "a"),
        ("enable", "a"),
        ("disable", "a"),
        ("reload",),
        ("timers", "--on"),
    ],
)
def test_no_daemon(here: Path, arguments: tuple[str, ...]) -> None:
    """What needs a daemon ends with 69 and says how to start one."""
    (here / "duly.toml").write_text("")
    result = run(*arguments)
    assert result.exit_code == 69
    assert "there is no socket; is it running?" in result.stderr
    assert "Start it with: duly run duly.toml" in result.stderr
    result = run(*arguments, "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (69, "unreachable")


def test_daemon_that_does_not_answer(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is stopped is told apart from one that is down, and its store is read instead."""
    monkeypatch.setattr(proxy, "_PATIENCE_S", 0.1)
    (here / "duly.toml").write_text('[[service]]\nid = "web"\ncommand = "true"\n')
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind("duly.sock")
        deaf.listen()
        result = run("services")
        status = run("status", "--check")
    assert (result.exit_code, "web" in result.stdout) == (0, True)
    assert "it says nothing; is it stopped or overloaded?" in result.stderr
    assert (status.exit_code, "not running" in status.stdout) == (69, False)
    assert "- the daemon says nothing; is it stopped or overloaded?" in status.stdout


def test_daemon_of_another_user(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a daemon whose socket may not be opened nobody says that it is not running, or how to start it."""

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(socket.socket, "connect", refused)
    (here / "duly.toml").write_text('[[service]]\nid = "web"\ncommand = "true"\n')
    status, stop = run("status", "--check"), run("stop", "web")
    assert (status.exit_code, "not running" in status.stdout) == (69, False)
    assert "- the daemon's socket is another user's" in status.stdout
    assert (stop.exit_code, "Start it with" in stop.stderr) == (69, False)
    assert "run this as its owner" in stop.stderr


def test_socket_alone(here: Path) -> None:
    """Behind a socket without a configuration there is no store to fall back on."""
    assert run("timers", "--socket", "none.sock").exit_code == 69


def test_nothing_given(here: Path) -> None:
    """Without a file here and without options, it is asked which daemon is meant."""
    result = run("status")
    assert result.exit_code == 2
    assert "There is neither duly.toml nor duly.py here" in result.stderr


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("duly.toml", "", "duly.sock"),
        ("duly.toml", '[supervisor]\nsocket = "other.sock"\n', "other.sock"),
        ("duly.toml", "this is [not TOML", "duly.sock"),
        ("duly.py", 'SERVICES = []\nSUPERVISOR = {"socket": "other.sock"}\n', "other.sock"),
        ("duly.py", "1 / 0", "duly.sock"),
    ],
)
def test_socket_of_a_file(here: Path, name: str, text: str, where: str) -> None:
    """The socket is the one that the file names, or is named after it, even while the file is broken."""
    (here / name).write_text(text)
    with listening(here / where, FakeDaemon()):
        assert answer("status")["pid"] == 1234
        assert answer("status", "-c", str(here / name))["pid"] == 1234


def test_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DULY_SOCKET and DULY_CONFIG say which daemon is meant."""
    with listening(here / "far.sock", FakeDaemon()):
        monkeypatch.setenv("DULY_SOCKET", "far.sock")
        assert answer("status")["pid"] == 1234
        monkeypatch.delenv("DULY_SOCKET")
        (here / "far.toml").write_text("")
        monkeypatch.setenv("DULY_CONFIG", "far.toml")
        assert answer("status")["pid"] == 1234


# --- the shell ---


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    """Each shell gets its script."""
    script = "\n".join(lines("completion", shell))
    assert "_DULY_COMPLETE" in script
    assert "duly" in script


def test_completed_ids(here: Path) -> None:
    """The shell offers the ids in the configuration, and nothing when that is broken."""
    (here / "duly.toml").write_text(
        '[[service]]\nid = "web"\ncommand = "serve"\n'
        '[[service]]\nid = "backup"\ntype = "oneshot"\ncommand = "save"\n'
        '[[timer]]\nid = "nightly"\ntarget = "backup"\non_startup_sec = 5\n'
    )
    assert _offered("start", "") == ["web", "backup"]
    assert _offered("trigger", "n") == ["nightly"]
    assert _offered("logs", "") == ["web", "backup", "nightly"]
    (here / "duly.toml").write_text("[")
    assert _offered("start", "") == []


def _offered(command: str, begun: str) -> list[str]:
    environment = {
        "COMP_WORDS": f"duly {command} {begun}",
        "COMP_CWORD": "2",
        "_DULY_COMPLETE": "bash_complete",
    }
    result = CliRunner().invoke(main, [], env=environment, prog_name="duly")
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_help_shows_examples() -> None:
    """Every command that talks to a daemon shows how it is called."""
    for name in ("timers", "services", "status", "history", "logs", "start", "stop", "trigger", "enable"):
        assert name in COMMANDS
        shown = run(name, "--help").stdout
        assert f"  duly {name}" in shown


def test_terminal_is_not_obeyed(monkeypatch: pytest.MonkeyPatch, path: Path, daemon: FakeDaemon) -> None:
    """On a terminal, what a job wrote cannot move the cursor."""
    tail = Tail(100)
    tail.write(b"red \x1b[31m\tx\n")
    daemon.outputs[1] = tail
    shown: list[str] = []

    class Terminal:
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            shown.append(text)

        def flush(self) -> None:
            pass

    from duly.cli import logs  # noqa: PLC0415 - its stdout is replaced

    seen = DaemonProxy(None, str(path)).read("logs", run=1)
    monkeypatch.setattr(sys, "stdout", Terminal())
    logs._write(seen["output"])
    assert shown == ["red \\x1b[31m\tx\n"]
    assert click.unstyle(shown[0]) == shown[0]
