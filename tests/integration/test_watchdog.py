"""The watchdog: real processes, killed when nobody else can do it, and only then."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.clock import HostClock, steady_us
from duly.config import Service, Settings
from duly.core.causes import Reason
from duly.events import Announcer
from duly.processes import watchdog as watchdog_module
from duly.processes.output import Tail
from duly.processes.process import HostProcess, HostProcesses
from duly.processes.procfs import stat_of, token_of_pid
from duly.processes.spawn import ProcessCommand
from duly.processes.watchdog import Watchdog
from duly.store.history import History, Result
from duly.store.memory import MemoryDatabase
from duly.supervisor.supervisor import Supervisor, WatchedServices
from tests.integration.process_programs import descriptors_open
from tests.integration.watchdog_program import JOB, begin

ROOT = Path(__file__).parents[2]
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
SOON_S = 60


def lives(*pids: int) -> bool:
    """Whether all of these live; a zombie does not."""
    return all((stat := stat_of(pid)) is not None and not stat.is_dead for pid in pids)


async def gone(*pids: int) -> None:
    """Return when all of these have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            pidfd, ended = os.pidfd_open(pid), asyncio.Event()
            asyncio.get_running_loop().add_reader(pidfd, ended.set)
            try:
                await asyncio.wait_for(ended.wait(), SOON_S)
            finally:
                asyncio.get_running_loop().remove_reader(pidfd)
                os.close(pidfd)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what nobody tells."""
    async with asyncio.timeout(SOON_S):
        while not is_so():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    yield
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class Yard:
    """A watchdog with a deadline in an hour, and jobs that it watches."""

    def __init__(self) -> None:
        self.processes = HostProcesses()
        self.watchdog = Watchdog(self.processes.children)
        self.pids: list[int] = []
        self._count = 0

    async def pid(self, *, but: int | None = None) -> int:
        """The pid of the watchdog process, once it is another one than *but*."""
        await until(lambda: self.watchdog.pid not in {None, but})
        assert self.watchdog.pid is not None
        return self.watchdog.pid

    def token(self) -> str:
        """The token of a new run, which no other test has."""
        self._count += 1
        return f"yard {os.getpid()}:{self._count}"

    async def job(self, *, is_named: bool = True) -> tuple[str, list[int]]:
        """Start a job that is watched: its token, and its pids."""
        token = self.token()
        assert self.watchdog.watch(token)
        process, pids = await begin(self.processes, token)
        self.pids += pids
        if is_named:
            assert self.watchdog.watch(token, process.identity)
        return token, pids

    async def unwatched(self, token: str = "") -> HostProcess:
        """Start a job that is not watched, or not yet."""
        command = ProcessCommand(("sleep", "1000"), {})
        process = await self.processes.start(command, token=token or self.token(), output=Tail(100))
        self.pids.append(process.identity.pid)
        return process


@asynccontextmanager
async def yard() -> AsyncIterator[Yard]:
    """A yard, cleaned up in the end."""
    one = Yard()
    await one.watchdog.start()
    one.watchdog.extend(steady_us() + HOUR_US)
    try:
        yield one
    finally:
        await one.watchdog.close()
        for pid in one.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await gone(*one.pids)


@contextmanager
def daemon(how: str, lease_ms: int) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, Any]]]:
    """A daemon of its own with a watchdog, and what it prints."""
    argv = [sys.executable, "-m", "tests.integration.watchdog_program", how, str(lease_ms)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


# When everything must end.


@pytest.mark.parametrize("how", ["named", "unnamed", "announced"])
async def test_killed_daemon(how: str) -> None:
    """After kill -9 of the daemon its job dies, also one that is only announced; the watchdog ends."""
    with daemon(how, 3_600_000) as (process, facts):
        assert lives(*facts["pids"])
        assert len({os.getsid(pid) for pid in facts["pids"]}) in {2, 0}
        process.kill()
        process.wait()
        if how == "announced":
            env = {**os.environ, "DULY_RUN_TOKEN": facts["token"]}
            late = subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True)  # noqa: ASYNC220 (quick)
            await gone(late.pid)
            assert late.wait() == -signal.SIGKILL
        await gone(*facts["pids"], facts["watchdog"])


async def test_stopped_daemon() -> None:
    """The job of a daemon that SIGSTOP holds, with what left its session, lives until the deadline."""
    with daemon("named", 1_500) as (process, facts):
        assert lives(*facts["pids"]) or steady_us() >= facts["until_us"]
        process.send_signal(signal.SIGSTOP)
        await gone(facts["pids"][0])
        assert steady_us() >= facts["until_us"]
        await gone(*facts["pids"])
        assert lives(facts["watchdog"])
        process.kill()
        await gone(facts["watchdog"])


async def test_late_extension() -> None:
    """A deadline that is extended too late saves nobody, also not a job whose process comes later."""
    async with yard() as one:
        named, pids = await one.job()
        announced = one.token()
        assert one.watchdog.watch(announced)
        one.watchdog.extend(0)
        assert not one.watchdog.watch(one.token())
        one.watchdog.extend(steady_us() + HOUR_US)
        assert not one.watchdog.allows(named)
        assert not one.watchdog.allows(announced)
        await gone(*pids)
        late = await one.unwatched(announced)
        one.watchdog.watch(announced, late.identity)
        await gone(late.identity.pid)
        _, fresh = await one.job()
        await one.watchdog.close()
        assert lives(*fresh)


# When nothing must end.


async def test_extension_in_time() -> None:
    """A job lives past a deadline that another thread has extended in time, even if that is read late."""
    async with yard() as one:
        token, pids = await one.job()
        with paused(await one.pid()):
            until_us = steady_us() + SECOND_US
            one.watchdog.extend(until_us)
            heartbeat = threading.Thread(target=one.watchdog.extend, args=(until_us + HOUR_US,))
            heartbeat.start()
            heartbeat.join()
            assert one.watchdog.allows(token)
            await until(lambda: steady_us() >= until_us)
        _, canary = await one.job()
        one.watchdog.forget(token)
        one.watchdog.extend(0)
        await gone(*canary)
        await one.watchdog.close()
        assert lives(*pids)


async def test_spared_processes() -> None:
    """A forgotten job survives, and one that was never watched, and one that got the pid of a watched one."""
    async with yard() as one:
        token, pids = await one.job()
        _, canary = await one.job()
        never, reused = await one.unwatched(), await one.unwatched()
        other = msgspec.structs.replace(reused.identity, started=reused.identity.started - 1)
        assert one.watchdog.watch(one.token(), other)
        one.watchdog.forget(token)
        one.watchdog.extend(0)
        await gone(*canary)
        await one.watchdog.close()
        assert lives(*pids, never.identity.pid, reused.identity.pid)


async def test_close() -> None:
    """A closed watchdog ends its process and no job, also if the process is stopped; it can start again."""
    async with yard() as one:
        _, pids = await one.job()
        first = await one.pid()
        await one.watchdog.close()
        assert (lives(first), one.watchdog.pid) == (False, None)
        await one.watchdog.start()
        with pytest.MonkeyPatch.context() as patched, paused(second := await one.pid()):
            patched.setattr(watchdog_module, "_PATIENCE_S", 0.1)
            await one.watchdog.close()
        assert not lives(second)
        assert lives(*pids)


# The process itself.


async def test_signals_and_size() -> None:
    """The process ignores signals, has a session of its own, no token, and is small."""
    async with yard() as one:
        pid = await one.pid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(pid, number)
        _, pids = await one.job()
        one.watchdog.extend(0)
        await gone(*pids)
        assert (one.watchdog.pid, os.getsid(pid), token_of_pid(pid)) == (pid, pid, None)
        assert int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) < 12 * 1024


@pytest.mark.parametrize("how", ["killed", "stopped", "full"])
async def test_replaced_process(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is dead, or does not read, is replaced; the next one knows which runs have expired."""
    async with yard() as one:
        expired = one.token()
        assert one.watchdog.watch(expired)
        one.watchdog.extend(0)
        one.watchdog.extend(steady_us() + HOUR_US)
        (_, named), (_, unnamed) = await one.job(), await one.job(is_named=False)
        first = await one.pid()
        with paused(first):
            monkeypatch.setattr(watchdog_module, "_DEAF_US", 1 if how == "stopped" else 60 * SECOND_US)
            if how == "killed":
                os.kill(first, signal.SIGKILL)
            for _ in range(3 if how == "stopped" else 0):
                one.watchdog.extend(steady_us() + HOUR_US)
            count, filler = 0, one.token()
            while how == "full" and one.watchdog.watch(filler):
                count += 1
            assert count > 1000 or how != "full"
            await gone(first)
        await one.pid(but=first)
        late = await one.unwatched(expired)
        await gone(late.identity.pid)
        assert lives(*named, *unnamed)
        one.watchdog.extend(0)
        await gone(*named, *unnamed)


async def test_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`fault` says why until the process can start; no run starts before that, and nothing stays open."""
    monkeypatch.setattr(watchdog_module, "_FIRST_PAUSE_S", 0.01)
    other = tmp_path / "other.py"
    other.write_text("print('ready 0', flush=True); input()")
    one = Yard()
    await one.watchdog.start()
    await one.watchdog.close()
    before = descriptors_open()
    faults = [(sys, "platform", "other"), (sys, "executable", "absent"), (watchdog_module, "_PROGRAM", other)]
    for module, name, value in faults:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, str(value))
            await one.watchdog.start()
            one.watchdog.extend(steady_us() + HOUR_US)
            assert not one.watchdog.watch(one.token())
            assert {"platform": "needs Linux", "executable": "absent", "_PROGRAM": "ready 0"}[name] in (
                one.watchdog.fault
            )
        await one.pid()
        assert one.watchdog.fault == ""
        await one.watchdog.close()
    assert descriptors_open() == before
    assert one.processes.children.pids == set()


# The supervisor.


@asynccontextmanager
async def supervisor_of(one: Yard, **scripts: str) -> AsyncIterator[Supervisor]:
    """A supervisor with these services, stopped in the end."""
    clock = HostClock()
    announcer = Announcer([], clock.now)
    supervisor = Supervisor(
        one.processes,
        History(MemoryDatabase(), clock, announcer),
        clock,
        announcer,
        scheduler_id=f"watchdog test {os.getpid()}",
        settings=Settings(kill_grace_sec=0.3, shutdown_timeout_sec=10),
    )
    services = [Service(name, ("sh", "-c", script), type="oneshot") for name, script in scripts.items()]
    await supervisor.start(services, set())
    yield supervisor
    await supervisor.stop()


async def output(supervisor: Supervisor, run_id: int, lines: int) -> list[int]:
    """The numbers that a run prints, once it has printed so many lines."""
    await until(
        lambda: (tail := supervisor.output_of(run_id)) is not None and tail.text().count("\n") >= lines
    )
    tail = supervisor.output_of(run_id)
    return [int(word) for word in tail.text().split()] if tail is not None else []


@pytest.mark.parametrize("how", ["deadline", "cut off"])
async def test_runs_of_timers(how: str) -> None:
    """A watched run ends at the deadline as interrupted, by its process alone too; all other runs go on."""
    scripts = {"timed": JOB, "bare": "echo $$; exec env -i sleep 1000"}
    async with (
        yard() as one,
        yard() as two,
        supervisor_of(one, **scripts, manual=JOB, other=JOB) as supervisor,
    ):
        ours, theirs = (WatchedServices(supervisor, each.watchdog) for each in (one, two))
        runs, pids = {}, {"manual": await output(supervisor, await supervisor.start_service("manual"), 2)}
        for name, services, lines in (("timed", ours, 2), ("bare", ours, 1), ("other", theirs, 2)):
            run_id = supervisor.new_run_id()
            runs[name] = asyncio.ensure_future(
                services.run(name, reason=Reason.SCHEDULE, timer=name, run_id=run_id)
            )
            pids[name] = await output(supervisor, run_id, lines)
        one.pids += [pid for each in pids.values() for pid in each]
        await until(lambda: token_of_pid(pids["bare"][0]) is None)
        if how == "deadline":
            one.watchdog.extend(steady_us() - 1)
        else:
            ours.cut_off()
        for name in scripts:
            end = await asyncio.wait_for(runs[name], SOON_S)
            assert (end.result, "lease" in end.message) == (Result.INTERRUPTED, True)
            await gone(*pids[name])
        assert lives(*pids["manual"], *pids["other"])
        assert not runs["other"].done()


async def test_no_run_without_trust(tmp_path: Path) -> None:
    """Past the deadline a timer's run does not begin, also one that waits for its turn; later it does."""
    touched = tmp_path / "touched"
    async with yard() as one, supervisor_of(one, job=f"echo x >> {touched}") as supervisor:
        services = WatchedServices(supervisor, one.watchdog)
        one.watchdog.extend(0)
        end = await services.run("job", reason=Reason.SCHEDULE, timer="nightly")
        assert (end.result, "no lease" in end.message) == (Result.INTERRUPTED, True)
        one.watchdog.extend(steady_us() + HOUR_US)
        for _ in range(4):
            await one.processes._spawns.acquire()
        running = asyncio.ensure_future(services.run("job", reason=Reason.SCHEDULE, timer="nightly"))
        await until(lambda: bool(one.watchdog._runs))
        with paused(await one.pid()):
            one.watchdog.extend(0)
            for _ in range(4):
                one.processes._spawns.release()
            end = await asyncio.wait_for(running, SOON_S)
        assert (end.result, touched.exists()) == (Result.INTERRUPTED, False)
        one.watchdog.extend(steady_us() + HOUR_US)
        end = await services.run("job", reason=Reason.SCHEDULE, timer="nightly")
        assert (end.result, touched.read_text(), one.watchdog._runs) == (Result.SUCCESS, "x\n", {})
