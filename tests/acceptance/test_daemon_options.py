"""How a job runs: shell, files of variables, accounts, limits, overlaps and locks, with a real daemon."""

import os
import pwd
import re
import sys
from pathlib import Path

import pytest

from tests.acceptance.running import Home, oneshot, service, settings, table, timer

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
NOT_AS_ROOT = pytest.mark.skipif(os.getuid() == 0, reason="root may do all of it")


def lines_of(tmp_path: Path, name: str, *tables: str) -> list[str]:
    """What the service *name* has written by the end of its run at start-up."""
    home = Home(tmp_path, "".join(tables))
    with home.running() as daemon:
        daemon.ended()
        return [line.removeprefix(f"{name} | ") for line in daemon.out.all() if line.startswith(f"{name} | ")]


def refusal_of(tmp_path: Path, name: str, *tables: str) -> str:
    """Why the run of *name* at start-up has no process; `duly check` warns of the same."""
    home = Home(tmp_path, "".join(tables))
    with home.running() as daemon:
        (ended,) = daemon.log.until(f"ServiceRunEnded service={name} ")
        daemon.ended()
    assert "result=spawn-error" in ended
    message = re.sub(r".* message=", "", ended)
    checked = home.duly("check")
    assert checked.returncode == 0
    assert f'service "{name}": {message}' in checked.stdout + checked.stderr
    return message


def job(name: str, **options: object) -> str:
    """A oneshot that start-up runs, as TOML."""
    return table("service", {"id": name, "type": "oneshot", "at_startup": True, **options})


def test_a_command_for_the_shell(tmp_path: Path) -> None:
    """With `shell = true` pipes, variables and && mean what they mean in a shell."""
    command = 'echo $WORD | tr a-z A-Z > out && cat out; echo "a  b"'
    text = job("job", command=command, shell=True, env={"WORD": "word"}, cwd=".")
    assert lines_of(tmp_path, "job", text) == ["WORD", "a  b"]


def test_shell_commands_are_one_text(tmp_path: Path) -> None:
    """A list of words and an empty text are refused with a reason."""
    home = Home(tmp_path, job("list", command=["a", "b"], shell=True) + job("none", command=" ", shell=True))
    said = home.duly("check")
    assert said.returncode == 4
    assert "with shell = true command must be one text" in said.stdout + said.stderr
    assert "command is empty" in said.stdout + said.stderr


def test_variables_from_a_file(tmp_path: Path) -> None:
    """The file is read at each run; `env` wins over it, and nothing in it is expanded."""
    (tmp_path / "vars").write_text("# secrets\n\nexport A='one two'\nB=$HOME \"x\"\nC=file\nD=a=b\n")
    script = 'printf "%s\\n" "$A" "$B" "$C" "$D"'
    text = job("job", command=["sh", "-c", script], env_file="vars", env={"C": "env"})
    assert lines_of(tmp_path, "job", text) == ["one two", '$HOME "x"', "env", "a=b"]


def test_a_file_of_variables_that_may_be_missing(tmp_path: Path) -> None:
    """With a dash before its path a missing file is no fault."""
    text = job("job", command=["sh", "-c", "echo ran"], env_file="-missing")
    assert lines_of(tmp_path, "job", text) == ["ran"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"env_file": "missing"}, 'env_file ".*/missing" does not exist'),
        ({"env_file": "wrong"}, 'env_file ".*/wrong", line 2: it is not NAME=value'),
        ({"user": "no-such-user"}, 'there is no user "no-such-user" on this host'),
        ({"group": "no-such-group"}, 'there is no group "no-such-group" on this host'),
    ],
)
def test_what_the_host_lacks(tmp_path: Path, options: dict[str, object], sentence: str) -> None:
    """An option that the host does not know keeps a run from starting, and `check` says so beforehand."""
    (tmp_path / "wrong").write_text("A=secret\nnonsense secret\n")
    message = refusal_of(tmp_path, "job", job("job", command="true", **options))
    assert re.fullmatch(sentence, message)


@AS_ROOT
def test_another_user(tmp_path: Path) -> None:
    """A job of another user has that user's id, groups and home, and the umask it asks for."""
    nobody = pwd.getpwnam("nobody")
    script = 'id -u; id -g; id -G; echo "$HOME $USER $LOGNAME"; umask'
    text = job("job", command=["sh", "-c", script], user="nobody", umask="027")
    groups = " ".join(map(str, os.getgrouplist("nobody", nobody.pw_gid)))
    assert lines_of(tmp_path, "job", text) == [
        str(nobody.pw_uid),
        str(nobody.pw_gid),
        groups,
        f"{nobody.pw_dir} nobody nobody",
        "0027",
    ]


@AS_ROOT
def test_another_group(tmp_path: Path) -> None:
    """A group of its own leaves the user as it is."""
    text = job("job", command=["sh", "-c", "id -un; id -gn"], group="daemon")
    assert lines_of(tmp_path, "job", text) == ["root", "daemon"]


@AS_ROOT
def test_another_user_is_stopped(tmp_path: Path) -> None:
    """The processes of another user end with the daemon."""
    home = Home(tmp_path, service("web", "echo up; exec sleep 1000", user="nobody"))
    with home.running() as daemon:
        daemon.out.until("web | up")
        (ended,) = [line for line in daemon.ended() if "ServiceRunEnded" in line]
    assert "result=interrupted" in ended
    assert "signal=15" in ended


@NOT_AS_ROOT
def test_only_root_becomes_another_user(tmp_path: Path) -> None:
    """A daemon that does not run as root says that it cannot switch."""
    message = refusal_of(tmp_path, "job", job("job", command="true", user="root"))
    assert "only root may become another" in message


def test_limits(tmp_path: Path) -> None:
    """Open files, memory and niceness are limited from the first instant of the program on."""
    script = "ulimit -n; ulimit -d; nice"
    text = job("job", command=["sh", "-c", script], nofile=64, memory_max="64M", nice=5)
    assert lines_of(tmp_path, "job", text) == ["64", "65536", "5"]


def test_memory_above_the_limit_is_refused(tmp_path: Path) -> None:
    """A program that allocates more than it may gets an error; below the limit it does not."""
    script = "print(len(bytearray(10_000_000))); bytearray(500_000_000)"
    text = job("job", command=[sys.executable, "-c", script], memory_max="200M")
    lines = lines_of(tmp_path, "job", text)
    assert (lines[0], lines[-1]) == ("10000000", "MemoryError")


@pytest.mark.parametrize("options", [{"nofile": 64}, {"memory_max": "64M"}])
def test_a_missing_program_with_limits(tmp_path: Path, options: dict[str, object]) -> None:
    """A program that is not there is told as ever, although a shell sets the limits."""
    home = Home(tmp_path, job("job", command="no-such-program", **options))
    with home.running() as daemon:
        (ended,) = daemon.log.until("ServiceRunEnded service=job ")
    assert "result=spawn-error" in ended
    assert 'Command "no-such-program" is not found in PATH' in ended


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("umask", 22, 'umask must be three octal digits in quotes ("027"), not 22'),
        ("nice", 20, "nice must be -20 to 19, not 20"),
        ("memory_max", "lots", 'memory_max must be a number of bytes, or text such as "512M"'),
        ("memory_max", 512, "memory_max must be 1 MiB to 1024 TiB, not 512"),
        ("nofile", 0, "nofile must be 4 to"),
        ("user", "", "user is empty"),
    ],
)
def test_values_that_are_refused(tmp_path: Path, key: str, value: object, sentence: str) -> None:
    """A value that no host has is an invalid entry."""
    said = Home(tmp_path, job("job", command="true", **{key: value})).duly("check")
    assert said.returncode == 4
    assert sentence in said.stdout + said.stderr


def test_a_lock_is_for_oneshots(tmp_path: Path) -> None:
    """A service that is kept running may have no lock: it would never let go of it."""
    said = Home(tmp_path, service("web", "sleep 9", lock="disk")).duly("check")
    assert said.returncode == 4
    assert "lock is for oneshots" in said.stdout + said.stderr


def test_a_timer_has_the_lock_of_its_target(tmp_path: Path) -> None:
    """A timer cannot have another lock than its target: another timer of the target would not know of it."""
    jobs = oneshot("a", "true", lock="disk") + oneshot("b", "true")
    timers = "".join(
        timer(f"{lock}-{target}", target, on_startup_sec=60, lock=lock)
        for lock, target in (("disk", "a"), ("disk", "b"), ("tape", "a"))
    )
    said = Home(tmp_path, settings(timers=True) + jobs + timers).duly("check")
    faults = re.findall('timer "(.+?)": lock is that of', said.stdout + said.stderr)
    assert faults == ["disk-b", "tape-a"]


def test_a_job_takes_all_of_it(tmp_path: Path) -> None:
    """One `[[job]]` has the options of its service, the overlap of its timer, and the lock of both."""
    options = {"shell": True, "lock": "disk", "overlap": "queue", "nofile": 64, "umask": "027"}
    more = {"command": "ulimit -n; umask", "on_startup": "1s", **options}
    home = Home(tmp_path, settings(timers=True) + table("job", {"id": "job", **more}))
    with home.running() as daemon:
        assert daemon.out.until("^job", count=2) == ["job | 64", "job | 0027"]
        daemon.ended()


def test_jobs_with_one_lock_take_turns(tmp_path: Path) -> None:
    """At start-up one waits for the other; by hand, a job whose lock is held is refused."""
    script = "echo begins; read _ <go; echo ends"
    os.mkfifo(tmp_path / "go")
    jobs = "".join(oneshot(name, script, lock="disk", at_startup=True, cwd=".") for name in "ab")
    third = oneshot("c", "true", lock="disk", at_startup=False)
    home = Home(tmp_path, jobs + third)
    with home.running(is_awaited=False) as daemon:
        daemon.out.until("begins")
        refused = home.duly("start", "c")
        assert refused.returncode != 0
        assert "is held by another service" in refused.stderr
        for count in (1, 2):
            daemon.out.until("begins", count=count)
            (tmp_path / "go").write_text("go\n")
        daemon.log.until("SupervisorStarted")
        assert home.duly("start", "c").returncode == 0
        daemon.ended()
        said = [line.partition(" | ")[2] for line in daemon.out.all()]
    assert said == ["begins", "ends", "begins", "ends"]


def test_a_run_is_replaced(tmp_path: Path) -> None:
    """A timer that is due again ends the run before it, and starts the next one; nothing is violated."""
    tables = oneshot("job", "exec sleep 1000") + "".join(
        timer(name, "job", on_startup_sec=seconds, overlap="replace")
        for name, seconds in (("one", 0.1), ("two", 0.6))
    )
    with Home(tmp_path, settings(timers=True) + tables).running() as daemon:
        daemon.log.until("ServiceRunStarted service=job .* timer=two")
        said = "\n".join(daemon.ended())
    assert "TimerQueued timer=two" in said
    # On a busy machine the first is called off before it has a process.
    assert re.search(
        "ServiceRunEnded service=job .* timer=one result=interrupted .*(make room|called off)", said
    )
    assert "TimerMissed" not in said
    assert "PropertyViolated" not in said
