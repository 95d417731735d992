"""Real processes and signals, and the fake ones that pass the same tests."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from duly.clock import Clock, HostClock
from duly.processes import process as process_module
from duly.processes.leftovers import end_leftovers, is_alive, leftovers
from duly.processes.output import Tail
from duly.processes.process import HostProcesses, Process, Processes, stop_process
from duly.processes.procfs import Identity, stats
from duly.processes.spawn import ProcessCommand, SpawnError, handle_ignored_signals
from duly.testing import VirtualClock
from duly.threads import outstanding
from tests.integration.process_programs import TOKENS, descriptors_open
from tests.worlds.fake_processes import FakeProcesses

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
FOREVER = "exec sleep 1000"
DEAF = "trap '' TERM; echo ready; while :; do sleep 1000; done"


class Host:
    """Real processes in real time."""

    def __init__(self) -> None:
        self.clock: Clock = HostClock()
        self.processes: Processes = HostProcesses()
        self.grace_s = 0.2

    async def start(self, script: str, **_: Any) -> Process:
        """Start a shell script."""
        process: Process = await begun(self.processes, script)
        return process

    async def soon(self, awaited: Awaitable[T]) -> T:
        """What *awaited* gives, and it does not take for ever."""
        return await asyncio.wait_for(awaited, 60)


class Virtual:
    """Fake processes in virtual time."""

    def __init__(self) -> None:
        self.virtual = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.clock: Clock = self.virtual
        self.fake = FakeProcesses(self.clock)
        self.processes: Processes = self.fake
        self.grace_s = 10.0

    async def start(self, script: str, **does: Any) -> Process:
        """Start what is said of it."""
        self.fake.script(script, **does)
        return await self.processes.start(ProcessCommand((script,), {}), token="s:1", output=Tail(1000))

    async def soon(self, awaited: Awaitable[T]) -> T:
        """What *awaited* gives within a minute of virtual time."""
        task = asyncio.ensure_future(awaited)
        await self.virtual.advance(timedelta(minutes=1))
        assert task.done()
        return task.result()


@pytest.fixture(params=["pidfd", "thread", "fake"])
def make_world(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Host | Virtual]:
    """A world to start processes in: of the host, of a host without pidfds, or of a test."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")
    return Virtual if request.param == "fake" else Host


async def begun(processes: Processes, script: str, *, output: Tail | None = None, until: bytes = b"") -> Any:
    """Start a shell script; with *until*, return when it has written that."""
    output = output or Tail(65536)
    process = await processes.start(ProcessCommand(("sh", "-c", script), {}), token="s:1", output=output)
    if until:
        await until_written(output, until)
    return process


async def until_written(output: Tail, word: bytes) -> None:
    """Return when *word* has been written."""
    come = asyncio.Event()
    end = output.watch(lambda _: come.set())
    while word.decode() not in output.text():
        await come.wait()
        come.clear()
    end()


async def told(command: ProcessCommand, processes: HostProcesses | None = None) -> tuple[int, str]:
    """Run a command to its end: its return code and what it wrote."""
    output = Tail(1 << 20)
    process = await (processes or HostProcesses()).start(command, token="s:1", output=output)
    returncode = await process.exited()
    process.close()
    return returncode, output.text()


def program(name: str, *arguments: object, **options: Any) -> dict[str, Any]:
    """What one of the programs in `process_programs` prints."""
    argv = [sys.executable, "-m", "tests.integration.process_programs", name, *map(str, arguments)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=100, check=False, **options)
    assert done.stdout, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


# What real and fake processes have in common.


async def test_codes_and_signals_are_told_apart(make_world: Callable[[], Host | Virtual]) -> None:
    """A return code is the exit code, or the signal with a minus."""
    world = make_world()
    second = timedelta(seconds=1)
    fine = await world.start("exit 0", lasts=second)
    failed = await world.start("exit 3", lasts=second, code=3)
    killed = await world.start("kill -USR1 $$", lasts=second, code=-signal.SIGUSR1)
    codes = await world.soon(asyncio.gather(fine.exited(), failed.exited(), killed.exited()))
    assert [*codes] == [0, 3, -signal.SIGUSR1]
    assert await fine.exited() == 0
    assert not any(process.is_group_alive() for process in (fine, failed, killed))


async def test_exit_may_be_awaited_by_many(make_world: Callable[[], Host | Virtual]) -> None:
    """Several may wait for one exit, and one that gives up takes it from nobody."""
    world = make_world()
    process = await world.start(FOREVER)
    waiting = [asyncio.ensure_future(process.exited()) for _ in range(3)]
    await asyncio.sleep(0)  # noqa: TID251 (lets them begin to wait)
    waiting[0].cancel()
    process.signal(signal.SIGINT)
    assert await world.soon(asyncio.gather(*waiting[1:])) == [-2, -2]
    assert waiting[0].cancelled()
    process.signal(signal.SIGKILL)
    assert await process.exited() == -2


async def test_term_is_enough_for_most(make_world: Callable[[], Host | Virtual]) -> None:
    """A process that obeys TERM is stopped by it."""
    world = make_world()
    process = await world.start(FOREVER)
    assert await world.soon(stop_process(process, world.clock, grace_s=30)) == -signal.SIGTERM
    process.close()
    process.close()


async def test_kill_follows_the_grace(make_world: Callable[[], Host | Virtual]) -> None:
    """A process that ignores TERM is killed when its grace is over."""
    world = make_world()
    process = await world.start(DEAF, ignores_term=True, outputs=b"ready\n")
    await until_written(process.output, b"ready")
    assert await world.soon(stop_process(process, world.clock, grace_s=world.grace_s)) == -signal.SIGKILL
    assert not process.is_group_alive()
    assert process.output.text() == "ready\n"


async def test_what_it_started_dies_with_it(make_world: Callable[[], Host | Virtual]) -> None:
    """After a normal end the rest of the group is stopped too; then there is nobody to send signals to."""
    world = make_world()
    script = "trap '' TERM; sleep 1000 & exit 4"
    process = await world.start(script, lasts=timedelta(0), code=4, leaves_behind=True)
    assert await world.soon(process.exited()) == 4
    assert process.is_group_alive()
    assert await world.soon(stop_process(process, world.clock, grace_s=world.grace_s)) == 4
    assert not process.is_group_alive()
    assert await world.soon(stop_process(process, world.clock, grace_s=world.grace_s)) == 4


async def test_stopped_process_can_be_stopped(make_world: Callable[[], Host | Virtual]) -> None:
    """A process that SIGSTOP holds is continued, so that it gets its TERM."""
    world = make_world()
    process = await world.start(FOREVER)
    process.signal(signal.SIGSTOP)
    assert await world.soon(stop_process(process, world.clock, grace_s=30)) == -signal.SIGTERM


async def test_what_is_not_there_cannot_be_started(make_world: Callable[[], Host | Virtual]) -> None:
    """A program that is not found is a SpawnError with one sentence."""
    world = make_world()
    with pytest.raises(SpawnError, match=r'^Command "no-such-program" is not found in PATH') as raised:
        await world.processes.start(ProcessCommand(("no-such-program",), {}), token="s:1", output=Tail(10))
    assert raised.value.reason == str(raised.value)


async def test_stopping_can_be_given_up(make_world: Callable[[], Host | Virtual]) -> None:
    """A stop that is cancelled in its grace can be asked for again."""
    world = make_world()
    process = await world.start(DEAF, ignores_term=True, outputs=b"ready\n")
    await until_written(process.output, b"ready")
    stopping = asyncio.ensure_future(stop_process(process, world.clock, grace_s=1000))
    await asyncio.sleep(0)  # noqa: TID251 (lets it begin)
    stopping.cancel()
    assert await world.soon(stop_process(process, world.clock, grace_s=0)) == -signal.SIGKILL


# Virtual time alone.


async def test_grace_is_a_length_of_time(virtual_clock: VirtualClock) -> None:
    """A wall clock that is set back or forward neither stretches nor shortens a grace."""
    world = Virtual()
    for step in (timedelta(hours=-1), timedelta(hours=1)):
        process = await world.start("deaf", ignores_term=True)
        stopping = asyncio.ensure_future(stop_process(process, world.clock, grace_s=10))
        await world.virtual.advance(timedelta(seconds=5))
        world.virtual.step(step)
        await world.virtual.advance(timedelta(seconds=4.9))
        assert process.is_group_alive()
        await world.virtual.advance(timedelta(seconds=0.2))
        assert stopping.result() == -signal.SIGKILL


async def test_fakes_follow_their_script() -> None:
    """A fake process starts, writes, lasts and ends when its script says, and is remembered."""
    world = Virtual()
    world.fake.script("job", lasts=timedelta(seconds=5), outputs=b"out", spawn_takes=timedelta(seconds=2))
    world.fake.script("broken", spawn_error="It is broken")
    with pytest.raises(SpawnError, match="It is broken"):
        await world.processes.start(ProcessCommand(("broken",), {}), token="s:1", output=Tail(10))
    starting = asyncio.ensure_future(
        world.fake.start(ProcessCommand(("job", "x"), {}), token="s:2", output=Tail(10))
    )
    await world.virtual.advance(timedelta(seconds=1))
    assert not starting.done()
    await world.virtual.advance(timedelta(seconds=1))
    process = starting.result()
    assert (process.token, process.command.argv, process.output.text()) == ("s:2", ("job", "x"), "out")
    await world.virtual.advance(timedelta(seconds=4.9))
    assert world.fake.living == [process]
    await world.virtual.advance(timedelta(seconds=0.1))
    assert (world.fake.living, world.fake.started) == ([], [process])
    assert await process.exited() == 0
    assert process.identity.boot == "virtual"
    assert not is_alive(process.identity)


async def test_fakes_know_the_habits_of_signals() -> None:
    """A stopped fake keeps its signals until it goes on; harmless signals do nothing."""
    world = Virtual()
    process = await world.start("job")
    for number in (signal.SIGCHLD, signal.SIGTSTP, signal.SIGHUP):
        process.signal(number)
    assert process.is_group_alive()
    process.signal(signal.SIGCONT)
    assert await process.exited() == -signal.SIGHUP
    process.signal(signal.SIGTERM)
    assert world.fake.started[0].signals == [signal.SIGCHLD, signal.SIGTSTP, signal.SIGHUP, signal.SIGCONT]


# What a child is given.


async def test_environment_is_ours_and_the_declared() -> None:
    """A child has our environment, what is declared, its run, and nothing that is meant for us alone."""
    ours = {
        "PATH": os.environ["PATH"],
        "KEPT": "1",
        "CHANGED": "1",
        "DULY_RUN_ID": "outer:1",
        "DULY_RUN_TOKEN": "outer:1:2:3",
        "NOTIFY_SOCKET": "/run/x",
        "LISTEN_FDS": "1",
        "LISTEN_PID": "1",
        "WATCHDOG_USEC": "1",
        "DULY_OPERATOR_TOKEN": "secret",
        "DULY_VIEWER_TOKEN": "secret",
    }
    command = ProcessCommand(("env",), {"CHANGED": "2", "ADDED": "a=b\nc", "DULY_RUN_TOKEN": "mine"})
    code, text = await told(command, HostProcesses(ours))
    assert code == 0
    added = "ADDED=a=b\nc\n"
    assert added in text
    lines = {line for line in text.replace(added, "").splitlines() if not line.startswith("PATH=")}
    assert lines == {"KEPT=1", "CHANGED=2", "DULY_RUN_TOKEN=s:1"}


async def test_child_leads_its_own_session_and_reads_nothing(tmp_path: Path) -> None:
    """A child is leader of a session and a group, works where it was told, and reads and inherits nothing."""
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    script = 'cut -d" " -f 1,5,6 /proc/$$/stat; pwd; cat; ls /proc/$$/fd'
    output = Tail(1000)
    command = ProcessCommand(("sh", "-c", script), {}, str(tmp_path))
    process = await HostProcesses().start(command, token="s:1", output=output)
    assert await process.exited() == 0
    process.close()
    os.close(inherited)
    pid = process.identity.pid
    ids, directory, *descriptors = output.text().splitlines()
    assert ids == f"{pid} {pid} {pid}"
    assert directory == str(tmp_path)
    assert descriptors == ["0", "1", "2"]


async def test_program_is_looked_for_where_the_child_would(tmp_path: Path) -> None:
    """The declared PATH finds the program, and a relative path starts from the declared directory."""
    script = tmp_path / "only-here"
    script.write_text("#!/bin/sh\necho found\n")
    script.chmod(0o755)
    assert await told(ProcessCommand(("only-here",), {"PATH": f"{tmp_path}:{os.defpath}"})) == (0, "found\n")
    assert await told(ProcessCommand(("./only-here",), {}, str(tmp_path))) == (0, "found\n")
    with pytest.raises(SpawnError, match=r"not found in PATH .*nowhere"):
        await told(ProcessCommand(("true",), {"PATH": "/nowhere"}))


def test_signals_are_the_defaults() -> None:
    """A child of a daemon with ignored and blocked signals has none of that, and its exit is not lost."""
    answer = program("ignored")
    assert (answer["code"], answer["failed"]) == (0, 5)
    # posix_spawn of glibc, with which make starts us, ignores its own two signals in each child, and its
    # sigaction refuses to touch them: nobody who uses that library can give them back.
    own = 1 << 31 | 1 << 32
    masks = {name: int(mask, 16) & ~own for name, mask in answer["masks"].items()}
    assert masks == {"SigBlk": 0, "SigIgn": 0}


async def test_signals_can_be_heeded_from_the_main_thread_only() -> None:
    """Processes can be started from another thread, where signals cannot be touched."""
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    await asyncio.to_thread(handle_ignored_signals)
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    signal.signal(signal.SIGUSR2, before)


# What cannot be started.


def _files(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program\n")
    for name, text in (("no-interpreter", "#!/no/such/thing\n"), ("no-line", "echo hello\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)


@pytest.mark.parametrize(
    ("argv", "env", "cwd", "sentence"),
    [
        ((), {}, None, "There is no command to run"),
        (("",), {}, None, "There is no command to run"),
        (("{}/absent",), {}, None, 'Command "{}/absent" does not exist'),
        (("./absent",), {}, "{}", 'Command "./absent" does not exist'),
        (("{}/plain",), {}, None, 'Command "{}/plain" is not executable'),
        (("plain",), {"PATH": "{}"}, None, 'Command "plain" is not executable'),
        (("{}",), {}, None, 'Command "{}" is a directory'),
        (("{}/plain/x",), {}, None, 'Command "{}/plain/x" cannot be started: Not a directory'),
        (("{}/no-line",), {}, None, 'Command "{}/no-line" is neither a program'),
        (("{}/no-interpreter",), {}, None, 'Command "{}/no-interpreter" names an interpreter'),
        (("true", "x" * 3_000_000), {}, None, "longer than the system allows"),
        (("true",), {"X": "x" * 3_000_000}, None, "longer than the system allows"),
        (("true", "a\0b"), {}, None, 'Command "true" cannot be started: it holds a NUL byte'),
        (("true", "\ud800"), {}, None, "text that cannot be encoded"),
        (("absent",), {"PATH": "/\udcff"}, None, r'Command "absent" is not found in PATH (/\udcff)'),
        (("true",), {"A=B": "1"}, None, "illegal environment variable name"),
        (("true",), {}, "{}/absent", 'The working directory "{}/absent" does not exist'),
        (("true",), {}, "", 'The working directory "" does not exist'),
        (("true",), {}, "{}/plain", 'The working directory "{}/plain" is not a directory'),
        (("true",), {}, "{}/plain/x", "cannot be used: Not a directory"),
        (("true",), {}, "a\0b", "The working directory cannot be used: it holds a NUL byte"),
    ],
)
async def test_each_refusal_is_one_sentence(
    tmp_path: Path, argv: tuple[str, ...], env: dict[str, str], cwd: str | None, sentence: str
) -> None:
    """Whatever is wrong is a SpawnError that says so in one sentence, and leaves nothing open."""
    _files(tmp_path)
    here = str(tmp_path)
    command = ProcessCommand(
        tuple(word.replace("{}", here) for word in argv),
        {name: value.replace("{}", here) for name, value in env.items()},
        cwd and cwd.replace("{}", here),
    )
    processes = HostProcesses()
    before = descriptors_open()
    with pytest.raises(SpawnError) as raised:
        await processes.start(command, token="s:1", output=Tail(10))
    assert sentence.replace("{}", here) in raised.value.reason
    assert "\n" not in raised.value.reason
    assert raised.value.reason.encode()  # text that can be told and kept
    assert descriptors_open() <= before  # what was left by another test may have gone meanwhile
    assert not outstanding(asyncio.get_running_loop())
    assert await told(ProcessCommand(("true",), {}), processes) == (0, "")


@pytest.mark.skipif(os.getuid() == 0, reason="root may enter every directory")
async def test_directory_that_may_not_be_entered(tmp_path: Path) -> None:
    """A working directory without permission is told as such."""
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(SpawnError, match="may not be entered"):
        await told(ProcessCommand(("true",), {}, str(tmp_path / "closed")))


def test_running_out_of_descriptors_loses_nothing() -> None:
    """With too few descriptors a start is refused in words, or works to its end; and none stays open."""
    answer = program("descriptors")
    assert answer["reasons"]
    assert all("file descriptor" in reason for _, reason in answer["reasons"])
    assert answer["codes"]
    assert all(rest == [7, "out\n"] for _, *rest in answer["codes"])
    assert answer["leaked"] == 0


def test_running_out_of_processes_is_told() -> None:
    """Where no more processes are allowed a start is refused in words, and works again afterwards."""
    answer = program("no_processes")
    assert len(answer["reasons"]) == 2
    assert "limit of processes is reached" in answer["reasons"][0]
    assert answer["code"] == 0


# Exits.


async def test_hundreds_at_once_lose_no_exit() -> None:
    """Of 300 processes started at once each exit is its own, and the loop goes on all the while."""
    processes, loop = HostProcesses(), asyncio.get_running_loop()
    gaps_s: list[float] = []  # of work: how long this thread waits for a busy machine says nothing

    def tick(last_s: float) -> None:
        gaps_s.append(time.thread_time() - last_s)
        ticking.append(loop.call_later(0.001, tick, time.thread_time()))

    ticking = [loop.call_later(0.001, tick, time.thread_time())]
    jobs = [ProcessCommand(("sh", "-c", f"echo {n}; exit {n % 250}"), {}) for n in range(300)]
    ends = await asyncio.gather(*(told(job, processes) for job in jobs))
    ticking[-1].cancel()
    assert ends == [(n % 250, f"{n}\n") for n in range(300)]
    assert len(gaps_s) > 50
    assert max(gaps_s) < 0.5
    assert not outstanding(loop)
    assert processes.children.pids == set()


async def test_start_that_is_given_up_is_undone(tmp_path: Path) -> None:
    """A start cancelled while its thread makes the process leaves no process behind."""
    processes = HostProcesses()
    alive: set[int] = set()
    changed = asyncio.Event()

    def note() -> None:
        alive.update(processes.children.pids)
        changed.set()

    processes.children.watch(note)
    command = ProcessCommand(("sleep", "infinity"), {}, str(tmp_path))  # a directory is entered in a thread
    starting = asyncio.ensure_future(processes.start(command, token="s:1", output=Tail(10)))
    while not outstanding(asyncio.get_running_loop()):  # noqa: ASYNC110 (until the thread has it)
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    while not alive or processes.children.pids:
        await changed.wait()
        changed.clear()
    assert len(alive) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(alive.pop(), 0)


async def test_start_that_waits_its_turn_can_be_given_up() -> None:
    """A start cancelled before its turn never happens, and those behind it come."""
    processes = HostProcesses()
    starting = [asyncio.ensure_future(begun(processes, "exit 0")) for _ in range(40)]
    await asyncio.sleep(0)  # noqa: TID251 (lets them queue)
    for given_up in starting[20:39]:
        given_up.cancel()
    started = await asyncio.gather(*starting[:20], starting[39])
    assert [await process.exited() for process in started] == [0] * 21


async def test_exit_that_somebody_else_took(capsys: pytest.CaptureFixture[str]) -> None:
    """An exit taken behind our back is no success, and is told."""
    process = await begun(HostProcesses(), FOREVER)
    os.kill(process.identity.pid, signal.SIGKILL)
    os.waitpid(process.identity.pid, 0)  # noqa: ASYNC222 (before the loop can)
    assert await process.exited() == process_module.LOST_EXIT
    assert "taken by somebody else" in capsys.readouterr().err


@pytest.mark.parametrize(("runs", "early", "late"), [(1, 1, 0), (1, 0, 1), (12, 3, 3)])
def test_orphans_are_reaped_and_children_are_not(runs: int, early: int, late: int) -> None:
    """A subreaper reaps every orphan, dead or alive when inherited, and takes no exit of its own children."""
    answer = program("orphans", runs, early, late)
    expected = runs * (early + late)
    assert answer == {
        "is_subreaper": True,
        "right": True,
        "reaped": expected,
        "born": expected,
        "left": "nobody",
    }


def test_the_dead_do_not_keep_a_group_alive() -> None:
    """A group in which only unburied dead are left counts as gone, though the kernel can still signal it."""
    assert program("no_reaper") == {"alive": False}


# Output.


async def test_ten_megabytes_are_counted_and_not_kept() -> None:
    """Every byte of a large binary output is counted, and only the last are kept."""
    output = Tail(4096)
    process = await begun(HostProcesses(), "exec head -c 10485760 /dev/urandom", output=output)
    assert await process.exited() == 0
    process.close()
    assert output.written_bytes == 10485760
    assert 0 < output.written_bytes - output.lost_bytes <= 4096
    assert output.text()


async def test_endless_output_starves_nobody() -> None:
    """While one process writes without end others start, write and end."""
    processes = HostProcesses()
    flood = await begun(processes, "exec yes", until=b"y\n")
    ends = await asyncio.gather(*(told(ProcessCommand(("echo", str(n)), {}), processes) for n in range(50)))
    assert ends == [(0, f"{n}\n") for n in range(50)]
    assert await stop_process(flood, HostClock(), grace_s=30) == -signal.SIGTERM
    flood.close()
    assert flood.output.lost_bytes > 0
    assert len(flood.output.text()) <= 65536


async def test_child_may_close_its_output() -> None:
    """A process that closes everything goes on, and its exit is heard of."""
    process = await begun(HostProcesses(), "echo out; exec sleep 1000 >&- 2>&- <&-", until=b"out")
    while process._pipe.is_open:  # noqa: ASYNC110 (the loop must turn)
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    assert process.is_group_alive()
    assert await stop_process(process, HostClock(), grace_s=30) == -signal.SIGTERM
    process.close()
    assert process.output.text() == "out\n"


@pytest.fixture
def ended_later() -> Iterator[list[int]]:
    """Pids to kill when the test is over."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("what", ["sleep 1000", "sh -c 'trap \"\" PIPE; exec yes'"])
async def test_run_ends_with_its_child_whoever_holds_the_pipe(what: str, ended_later: list[int]) -> None:
    """A grandchild that left the group and holds the pipe, silent or writing without end, delays nothing."""
    output = Tail(65536)
    process = await begun(
        HostProcesses(), f"setsid {what} & echo out $!; exit 0", output=output, until=b"out"
    )
    ended_later.append(int(output.text().split("out ")[1].split()[0]))
    assert await process.exited() == 0
    assert await stop_process(process, HostClock(), grace_s=30) == 0
    process.close()
    assert not process._pipe.is_open
    assert is_there(ended_later[0])


def is_there(pid: int) -> bool:
    """Whether some process has that number."""
    return Path(f"/proc/{pid}").exists()


async def test_last_words_are_heard() -> None:
    """What is still in the pipe when a process ends is in the tail after `close`."""
    processes = HostProcesses()
    texts = await asyncio.gather(*(told(ProcessCommand(("seq", "10000"), {}), processes) for _ in range(10)))
    whole = "".join(f"{n}\n" for n in range(1, 10001))
    assert texts == [(0, whole)] * 10


# Groups.


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
async def test_whole_group_is_stopped(trap: str) -> None:
    """Fifty grandchildren go with their parent, whether or not they end at TERM."""
    script = f"{trap}for i in $(seq 50); do sleep 1000 & done; echo ready; wait"
    process = await begun(HostProcesses(), script, until=b"ready")
    group = process.identity.pid
    assert len([stat for stat in stats() if stat.group == group]) == 51
    code = await stop_process(process, HostClock(), grace_s=0.2 if trap else 30)
    assert code == (-signal.SIGKILL if trap else -signal.SIGTERM)
    assert [stat for stat in stats() if stat.group == group and not stat.is_dead] == []


async def test_kill_reaches_a_stopped_process_that_ignores_term() -> None:
    """A process that stops itself over and over and ignores TERM is killed all the same."""
    process = await begun(HostProcesses(), "trap '' TERM; echo ready; while :; do kill -STOP $$; done")
    pid = process.identity.pid
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    assert await stop_process(process, HostClock(), grace_s=0.1) == -signal.SIGKILL


async def test_number_given_again_is_not_our_group() -> None:
    """A group whose leader has our process's number and another start is somebody else's."""
    process = await begun(HostProcesses(), FOREVER)
    real = process.identity
    assert process_module._has_living(real)
    assert not process_module._has_living(Identity(real.pid, real.started - 1, real.boot))
    await stop_process(process, HostClock(), grace_s=30)
    assert not process_module._has_living(real)


async def test_identity_is_that_of_the_process() -> None:
    """A process is alive by its identity while it lives, and not after; not even while it is unburied."""
    process = await begun(HostProcesses(), FOREVER)
    assert is_alive(process.identity)
    process.signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.identity.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 (before the loop can)
    assert not is_alive(process.identity)
    await process.exited()
    assert not is_alive(process.identity)


# Leftovers.


def proc_of(root: Path, pids: list[int]) -> Path:
    """A /proc that shows only *pids*: the tests look at nobody else's environment."""
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").symlink_to("/proc/sys/kernel/random/boot_id")
    for pid in pids:
        (root / str(pid)).symlink_to(f"/proc/{pid}")
    return root


async def test_leftovers_of_a_dead_daemon_are_ended(tmp_path: Path) -> None:
    """What a daemon left behind is found and ended, by pid, by token, or by group; nobody else is."""
    identities = program("abandoned")["processes"]
    deaf, _, parent = identities
    command = ProcessCommand(("sleep", "1000"), {})
    bystander = await HostProcesses().start(command, token="other:1", output=Tail(10))
    groups = {pid for pid, *_ in identities}
    pids = [stat.pid for stat in stats() if stat.group in groups] + [bystander.identity.pid, os.getpid()]
    proc = proc_of(tmp_path / "proc", pids)
    namesake = bystander.identity
    runs = {
        0: Identity(*deaf),
        1: None,
        2: Identity(*parent),
        3: Identity(namesake.pid, namesake.started - 1, namesake.boot),
    }
    found = leftovers(runs, TOKENS, last_id=99, proc_root=proc)
    assert {each.run_id for each in found} == {0, 1, 2}
    assert {each.group for each in found} == groups
    left = await end_leftovers(runs, TOKENS, HostClock(), last_id=99, grace_s=0.3, proc_root=proc)
    assert left == []
    assert [stat for stat in stats() if stat.group in groups and not stat.is_dead] == []
    assert is_alive(bystander.identity)
    await stop_process(bystander, HostClock(), grace_s=30)


async def test_nothing_left_takes_no_time(tmp_path: Path) -> None:
    """Without leftovers nobody waits and nobody is signalled."""
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    proc = proc_of(tmp_path / "proc", [os.getpid()])
    ending = end_leftovers({1: None}, TOKENS, clock, last_id=99, grace_s=1000, proc_root=proc)
    assert await asyncio.wait_for(ending, 60) == []
