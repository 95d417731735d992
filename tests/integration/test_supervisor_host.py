"""The supervisor with real processes, real signals and real time."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from duly.clock import HostClock
from duly.config import Service, Settings
from duly.events import Announcer
from duly.processes.process import HostProcesses
from duly.store import SQLiteStore
from duly.store.history import History, Result
from duly.store.memory import MemoryDatabase
from duly.supervisor.supervisor import Supervisor
from tests.integration.supervised_program import STUBBORN, supervised

ROOT = Path(__file__).parents[2]
QUICK = Settings(kill_grace_sec=0.3, shutdown_timeout_sec=10)


def new_supervisor(settings: Settings = QUICK) -> tuple[Supervisor, History]:
    clock = HostClock()
    announcer = Announcer([], clock.now)
    history = History(MemoryDatabase(), clock, announcer)
    return (
        Supervisor(HostProcesses(), history, clock, announcer, scheduler_id="test", settings=settings),
        history,
    )


def shell(name: str, script: str, **options: object) -> Service:
    return Service(name, ("sh", "-c", script), **options)  # type: ignore[arg-type]


def lives(pid: int) -> bool:
    """Whether a process lives; the dead that nobody has reaped do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def output_of(supervisor: Supervisor, run_id: int) -> str:
    """The first line that a run in flight writes."""
    tail, said = supervisor.output_of(run_id), asyncio.Event()
    assert tail is not None
    unwatch = tail.watch(lambda _: said.set())
    while "\n" not in tail.text():
        await asyncio.wait_for(said.wait(), 60)
        said.clear()
    unwatch()
    return tail.text()


async def test_results_and_output_of_real_processes() -> None:
    """Exit code, signal, a missing command and both outputs are told as they are."""
    supervisor, history = new_supervisor()
    await supervisor.start(
        [
            shell("exits", "echo out; echo err >&2; exit 3", type="oneshot"),
            shell("dies", "kill -SEGV $$", type="oneshot"),
            shell("knows", 'printf "%s in %s" "$NAME" "$PWD"', type="oneshot", env={"NAME": "x"}, cwd="/"),
            Service("missing", ("/no/such/command",), type="oneshot"),
        ],
        {"exits", "dies", "knows", "missing"},
    )
    rows = {row.service: row for row in await history.runs()}
    assert (rows["exits"].result, rows["exits"].exit_code) == ("exit", 3)
    assert sorted(rows["exits"].output.splitlines()) == ["err", "out"]
    assert (rows["dies"].result, rows["dies"].signal) == ("signal", signal.SIGSEGV)
    assert (rows["knows"].result, rows["knows"].output) == ("success", "x in /")
    assert rows["missing"].result == "spawn-error"
    assert "/no/such/command" in rows["missing"].message
    await supervisor.stop()


async def test_stop_takes_the_whole_group() -> None:
    """A service that ignores TERM is killed after the grace, and what it started goes with it."""
    supervisor, history = new_supervisor()
    await supervisor.start(
        [shell("stubborn", STUBBORN), shell("meek", "exec sleep 1000")], {"stubborn", "meek"}
    )
    view = next(view for view in supervisor.views() if view.id == "stubborn")
    assert view.run_id is not None
    pids = [int(pid) for pid in (await output_of(supervisor, view.run_id)).split()]
    assert pids[0] == view.pid
    assert all(lives(pid) for pid in pids)
    await supervisor.stop()
    assert not any(lives(pid) for pid in pids)
    rows = {row.service: row for row in await history.runs()}
    assert {row.result for row in rows.values()} == {"interrupted"}
    assert (rows["stubborn"].signal, rows["meek"].signal) == (signal.SIGKILL, signal.SIGTERM)


async def test_timeout_of_a_hung_job() -> None:
    """A job that hangs with a child and ignores TERM is ended by its time limit, and can run again."""
    supervisor, history = new_supervisor()
    job = shell("job", STUBBORN, type="oneshot", timeout_sec=0.3)
    await supervisor.start([job], set())
    for _ in range(2):
        end = await asyncio.wait_for(supervisor.run("job", reason="schedule"), 60)
        assert end.result is Result.TIMEOUT
    for row in await history.runs():
        assert not any(lives(int(pid)) for pid in row.output.split())
    await supervisor.stop()


async def test_a_service_comes_back_from_a_kill() -> None:
    """A service that somebody kills is restarted with another process and another run."""
    supervisor, history = new_supervisor()
    back: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await supervisor.start([shell("web", "exec sleep 1000")], {"web"})
    (before,) = supervisor.views()
    assert before.pid is not None
    supervisor.on_run_started.append(lambda row: back.set_result(row.id))
    os.kill(before.pid, signal.SIGKILL)
    run_id = await asyncio.wait_for(back, 60)
    (after,) = supervisor.views()
    assert (after.run_id, after.restarts) == (run_id, 1)
    assert after.pid != before.pid
    assert [(row.reason, row.result) for row in await history.runs()] == [
        ("restart", None),
        ("boot", "signal"),
    ]
    await supervisor.stop()


async def test_every_exit_is_its_own_runs() -> None:
    """A hundred jobs at once end each with its own code."""
    supervisor, history = new_supervisor()
    jobs = [shell(f"job-{code}", f"exit {code}", type="oneshot") for code in range(100)]
    await supervisor.start(jobs, {job.id for job in jobs})
    codes = {row.service: row.exit_code for row in await history.runs(limit=200)}
    assert codes == {f"job-{code}": code for code in range(100)}
    await supervisor.stop()


def killed_daemon(store: Path, *options: str) -> list[int]:
    """Start a daemon and kill it; the processes that it left."""
    command = [sys.executable, "-m", "tests.integration.supervised_program", str(store), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as daemon:
        assert daemon.stdout is not None
        pids = [int(pid) for pid in daemon.stdout.readline().split()]
        daemon.kill()
    return pids


async def test_leftovers_of_a_killed_daemon(tmp_path: Path) -> None:
    """What a daemon killed -9 left running is ended before anything starts; its run is interrupted."""
    store = tmp_path / "state.db"
    pids = killed_daemon(store)
    assert len(pids) == 2
    assert all(lives(pid) for pid in pids)
    opened = SQLiteStore(store)
    supervisor, history = await asyncio.wait_for(supervised(opened, QUICK), 60)
    assert not any(lives(pid) for pid in pids)
    (row,) = await history.runs()
    assert (row.result, row.pid, supervisor.outcome(row.id)) == ("interrupted", pids[0], Result.INTERRUPTED)
    await supervisor.start([shell("stubborn", "exec sleep 1000")], {"stubborn"})
    assert supervisor.views()[0].run_id == row.id + 1
    await supervisor.stop()
    await history.close()
    await opened.close()


async def test_leftovers_of_a_daemon_that_could_not_write(tmp_path: Path) -> None:
    """A run whose row never came to the disk leaves nothing behind, and its number is not given again."""
    store = tmp_path / "state.db"
    pids = killed_daemon(store, "full")
    assert [lives(pid) for pid in pids] == [True, True]
    opened = SQLiteStore(store)
    supervisor, history = await asyncio.wait_for(supervised(opened, QUICK), 60)
    assert not any(lives(pid) for pid in pids)
    assert await history.runs() == []
    assert supervisor.new_run_id() == 2
    await supervisor.stop()
    await history.close()
    await opened.close()
