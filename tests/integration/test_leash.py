"""The leash and its guardian: real processes, killed when nobody else can do it, and only then."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.clock import HostClock
from duly.cluster.clock import steady_us
from duly.config import Service, Settings
from duly.events import Announcer
from duly.store.history import History, MemoryRows
from duly.supervisor import leash as leash_module
from duly.supervisor.ended import Reason, Result
from duly.supervisor.leash import Leash, LeashError
from duly.supervisor.leashed import Leashed
from duly.supervisor.output import Tail
from duly.supervisor.process import Command, HostProcess, HostProcesses
from duly.supervisor.procfs import identity_of, marker_of, stat_of
from duly.supervisor.supervisor import Supervisor
from duly.supervisor.tokens import RunTokens
from tests.integration.leashed_program import JOB, begun
from tests.integration.process_programs import descriptors_open

ROOT = Path(__file__).parents[2]
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
FOREVER = "exec sleep 1000"
SOON_S = 60


def lives(pid: int) -> bool:
    """Whether a process lives; the dead that nobody has buried do not."""
    stat = stat_of(pid)
    return stat is not None and not stat.is_dead


async def gone(*pids: int) -> None:
    """Return when all of these have ended."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), SOON_S)
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)


def stop(pid: int) -> None:
    """Stop a child of ours; it has stopped when this returns."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@contextmanager
def held_up(pid: int) -> Iterator[None]:
    """Stop a child of ours for a while."""
    stop(pid)
    yield
    os.kill(pid, signal.SIGCONT)


def rss_kib(pid: int) -> int:
    """How much memory a process has."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


class Yard:
    """A leash that lasts for an hour, and jobs on it; whatever is left of them is ended with it."""

    def __init__(self) -> None:
        self.processes = HostProcesses()
        self.lost = asyncio.Event()
        self.leash = Leash(self.processes.brood, on_lost=self.lost.set)
        self.pids: list[int] = []
        self._count = 0

    @property
    def guardian(self) -> int:
        """The pid of the guardian."""
        assert self.leash.guardian is not None
        return self.leash.guardian.pid

    def marker(self) -> str:
        """The marker of a new run, which no other test has."""
        self._count += 1
        return f"yard {os.getpid()}:{self._count}"

    async def job(
        self, script: str = JOB, marker: str = "", *, is_held: bool = True
    ) -> tuple[str, list[int]]:
        """Start a job on the leash: its marker, and its pids."""
        marker = marker or self.marker()
        assert self.leash.expect(marker)
        process, pids = await begun(self.processes, marker, script)
        self.pids += pids
        if is_held:
            self.leash.hold(marker, process.identity)
        return marker, pids

    async def sheltered(self, marker: str = "") -> HostProcess:
        """Start a job that is not on the leash, or not yet."""
        command = Command(("sh", "-c", FOREVER), {})
        process = await self.processes.start(command, marker=marker or self.marker(), output=Tail(100))
        self.pids.append(process.identity.pid)
        return process


@asynccontextmanager
async def yard() -> AsyncIterator[Yard]:
    """A yard, cleaned up in the end."""
    one = Yard()
    await one.leash.start()
    one.leash.extend(steady_us() + HOUR_US)
    try:
        yield one
    finally:
        await one.leash.close()
        for pid in one.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await gone(*one.pids)


@contextmanager
def daemon(how: str, lease_ms: int) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A daemon of its own with a leash, and what it says."""
    argv = [sys.executable, "-m", "tests.integration.leashed_program", how, str(lease_ms)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


# When everything must end.


async def test_the_end_of_the_lease_ends_the_whole_job() -> None:
    """When the lease has passed a job dies with its group and with what has left its session, not before."""
    async with yard() as one:
        _, pids = await one.job()
        assert all(lives(pid) for pid in pids)
        assert len({os.getsid(pid) for pid in pids}) == 2
        until_us = steady_us() + SECOND_US // 2
        one.leash.extend(until_us)
        await gone(pids[0])
        assert steady_us() >= until_us
        await gone(*pids)


async def test_a_cut_ends_everything_at_once() -> None:
    """A cut ends every job on the leash, and nothing starts until the lease is extended."""
    async with yard() as one:
        _, first = await one.job()
        _, second = await one.job()
        one.leash.cut()
        await gone(*first, *second)
        assert not one.leash.expect(one.marker())
        one.leash.extend(steady_us() + HOUR_US)
        assert one.leash.expect(one.marker())


@pytest.mark.parametrize("how", ["held", "unheld"])
async def test_a_killed_daemon_takes_its_jobs_along(how: str) -> None:
    """After kill -9 of the daemon its job dies, also one that was not yet held, and the guardian ends."""
    with daemon(how, 3_600_000) as (process, told):
        assert all(lives(pid) for pid in told["pids"])
        process.kill()
        await gone(*told["pids"], told["guardian"])


async def test_a_job_that_is_born_after_its_daemon() -> None:
    """A job that was only announced when its daemon was killed dies when it appears."""
    with daemon("announced", 3_600_000) as (process, told):
        process.kill()
        process.wait()
        late = subprocess.Popen(  # noqa: ASYNC220 (as quickly as it can)
            ["sleep", "1000"], env={**os.environ, "DULY_RUN_TOKEN": told["marker"]}, start_new_session=True
        )
        await gone(late.pid, told["guardian"])
        assert late.wait() == -signal.SIGKILL


async def test_a_stopped_daemon_keeps_its_jobs_until_its_lease_ends() -> None:
    """The job of a daemon that SIGSTOP holds lives until the lease has passed, and no longer."""
    with daemon("held", 1_500) as (process, told):
        assert steady_us() >= told["until_us"] or all(lives(pid) for pid in told["pids"])
        process.send_signal(signal.SIGSTOP)
        await gone(*told["pids"])
        assert steady_us() >= told["until_us"]
        assert lives(told["guardian"])
        process.kill()
        await gone(told["guardian"])


async def test_what_is_said_too_late_changes_nothing() -> None:
    """A lease that is extended after it has passed saves nobody, also not a job whose process comes later."""
    async with yard() as one:
        held, pids = await one.job()
        announced = one.marker()
        assert one.leash.expect(announced)
        one.leash.extend(steady_us() - 1)
        one.leash.extend(steady_us() + HOUR_US)
        assert not one.leash.allows(held)
        assert not one.leash.allows(announced)
        await gone(*pids)
        late = await one.sheltered(announced)
        one.leash.hold(announced, late.identity)
        await gone(late.identity.pid)
        _, fresh = await one.job()
        await one.leash.close()
        assert all(lives(pid) for pid in fresh)


async def test_a_job_that_ends_in_time_leaves_nobody_behind_after_it() -> None:
    """What has left the group of a job dies with the lease even if the daemon lets the job itself go."""
    async with yard() as one:
        marker, pids = await one.job()
        os.killpg(pids[0], signal.SIGKILL)
        with held_up(one.guardian):
            one.leash.extend(steady_us() - 1)
            one.leash.release(marker)
        await gone(*pids)


# When nothing must end.


async def test_an_extended_lease_keeps_jobs_alive() -> None:
    """A job lives past the end of a lease that was extended in time."""
    async with yard() as one:
        while True:
            _, pids = await one.job()
            until_us = steady_us() + SECOND_US // 2
            one.leash.extend(until_us)
            one.leash.extend(until_us + HOUR_US)
            if steady_us() < until_us:
                break  # in time
        _, canary = await one.job()
        dying = asyncio.ensure_future(gone(*pids))
        await asyncio.wait([dying], timeout=(until_us - steady_us()) / SECOND_US + 0.5)
        assert not dying.done()
        assert all(lives(pid) for pid in pids)
        one.leash.cut()
        await gone(*canary)
        await dying


async def test_what_is_released_lives() -> None:
    """A job that was released survives a cut; one that was never on the leash does too."""
    async with yard() as one:
        marker, pids = await one.job()
        _, canary = await one.job()
        sheltered = await one.sheltered()
        one.leash.release(marker)
        one.leash.cut()
        await gone(*canary)
        await one.leash.close()
        assert all(lives(pid) for pid in (*pids, sheltered.identity.pid))


async def test_letting_go_kills_nobody() -> None:
    """A closed leash ends its guardian and no job, and can be started again."""
    async with yard() as one:
        _, pids = await one.job()
        guardian = one.guardian
        await one.leash.close()
        assert not lives(guardian)
        assert not one.lost.is_set()
        assert one.leash.guardian is None
        await one.leash.start()
        _, canary = await one.job()
        one.leash.cut()
        await gone(*canary)
        await one.leash.close()
        assert all(lives(pid) for pid in pids)


async def test_a_number_that_was_given_again_is_nobody() -> None:
    """A process with the pid of a held one, and another start, is left alone."""
    async with yard() as one:
        sheltered = await one.sheltered()
        other, started = one.marker(), sheltered.identity.started
        assert one.leash.expect(other)
        one.leash.hold(other, msgspec.structs.replace(sheltered.identity, started=started - 1))
        _, canary = await one.job()
        one.leash.cut()
        await gone(*canary)
        await one.leash.close()
        assert lives(sheltered.identity.pid)


# The guardian itself.


async def test_a_guardian_heeds_no_signal_that_can_be_ignored() -> None:
    """Signals that end others leave a guardian on guard, which is small."""
    async with yard() as one:
        guardian = one.guardian
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(guardian, number)
        _, pids = await one.job()
        one.leash.cut()
        await gone(*pids)
        assert one.guardian == guardian
        assert os.getsid(guardian) == guardian
        assert rss_kib(guardian) < 12 * 1024
        assert marker_of(guardian) is None


async def test_a_guardian_that_was_held_up_catches_up() -> None:
    """A guardian that was stopped and hears many things at once loses none of them."""
    async with yard() as one:
        with held_up(one.guardian):
            assert all(one.leash.expect(f"{one.marker()} {'x' * 1000}") for _ in range(500))
            marker, pids = await one.job()
            _, canary = await one.job()
            one.leash.release(marker)
            one.leash.cut()
        await gone(*canary)
        assert all(lives(pid) for pid in pids)


async def test_a_guardian_that_is_killed_is_replaced() -> None:
    """The loss of a guardian is told, nothing starts without one, and the next one has everything."""
    async with yard() as one:
        doomed, dying = await one.job()
        one.leash.extend(steady_us() - 1)
        await gone(*dying)
        one.leash.extend(steady_us() + HOUR_US)
        _, held = await one.job()
        _, unheld = await one.job(is_held=False)
        os.kill(one.guardian, signal.SIGKILL)
        await asyncio.wait_for(one.lost.wait(), SOON_S)
        assert one.leash.guardian is None
        assert not one.leash.expect(one.marker())
        # What is doomed stays so, whoever guards.
        process, late = await begun(one.processes, doomed)
        one.pids += late
        one.leash.hold(doomed, process.identity)
        await one.leash.start()
        await gone(*late)
        assert all(lives(pid) for pid in (*held, *unheld))
        one.leash.cut()
        await gone(*held, *unheld)


async def test_a_guardian_that_is_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guardian that hears nothing any more counts as lost."""
    monkeypatch.setattr(leash_module, "_DEAF_US", 1)
    async with yard() as one:
        guardian = one.guardian
        stop(guardian)
        until_us = steady_us() + HOUR_US
        one.leash.extend(until_us)
        one.leash.extend(until_us)
        one.leash.extend(until_us)
        await asyncio.wait_for(one.lost.wait(), SOON_S)
        await gone(guardian)


async def test_a_guardian_that_is_full_is_replaced() -> None:
    """A guardian that cannot be told any more counts as lost at once, and nobody waits for it."""
    async with yard() as one:
        stop(one.guardian)
        marker, told = one.marker(), 0
        while one.leash.expect(marker):
            told += 1
        assert told > 1000
        await asyncio.wait_for(one.lost.wait(), SOON_S)


async def test_a_stopped_guardian_can_be_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leash is closed even if its guardian does not answer, and the job lives."""
    monkeypatch.setattr(leash_module, "_PATIENCE_S", 0.1)
    async with yard() as one:
        _, pids = await one.job()
        guardian = one.guardian
        stop(guardian)
        await one.leash.close()
        assert not lives(guardian)
        assert all(lives(pid) for pid in pids)


async def test_a_guardian_that_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no guardian can start, or only another one, the leash says why and leaves nothing open."""
    one = Yard()
    await one.leash.start()
    await one.leash.close()
    before = descriptors_open()
    monkeypatch.setattr(sys, "platform", "other")
    with pytest.raises(LeashError, match="needs Linux"):
        await one.leash.start()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(LeashError, match=r"cannot be started: .*absent"):
        await one.leash.start()
    monkeypatch.undo()
    other = tmp_path / "other.py"
    other.write_text("print('ready 0', flush=True); input()")
    monkeypatch.setattr(leash_module, "_PROGRAM", str(other))
    with pytest.raises(LeashError, match="ready 0"):
        await one.leash.start()
    monkeypatch.undo()
    assert descriptors_open() == before
    assert one.processes.brood._pids == set()


# The supervisor.


def supervisor_of(one: Yard) -> tuple[Supervisor, History]:
    clock = HostClock()
    announcer = Announcer([], clock.now)
    history = History(MemoryRows(), clock, announcer)
    supervisor = Supervisor(
        one.processes,
        history,
        clock,
        announcer,
        scheduler_id=f"leash test {os.getpid()}",
        settings=Settings(kill_grace_sec=0.3, shutdown_timeout_sec=10),
    )
    return supervisor, history


def shell(name: str, script: str) -> Service:
    return Service(name, ("sh", "-c", script), type="oneshot")


async def spoken(supervisor: Supervisor, run_id: int, lines: int) -> list[int]:
    """The numbers that a run in flight says, once it has said so many lines."""
    while (tail := supervisor.output_of(run_id)) is None:  # noqa: ASYNC110 (until it has begun)
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    said = asyncio.Event()
    unwatch = tail.watch(lambda _: said.set())
    while tail.text().count("\n") < lines:
        await asyncio.wait_for(said.wait(), SOON_S)
        said.clear()
    unwatch()
    return [int(word) for word in tail.text().split()]


@pytest.mark.parametrize("how", ["lease", "cut off"])
async def test_runs_of_timers_are_on_the_leash(how: str) -> None:
    """What a timer started ends with the lease and counts as interrupted; what a person started goes on."""
    async with yard() as one:
        supervisor, _ = supervisor_of(one)
        await supervisor.start([shell("timed", JOB), shell("manual", f"echo $$; {FOREVER}")], set())
        manual_id, timed_id = await supervisor.start_service("manual"), supervisor.new_run_id()
        timed = asyncio.ensure_future(
            supervisor.run("timed", reason="schedule", timer="nightly", run_id=timed_id, leash=one.leash)
        )
        pids = await spoken(supervisor, timed_id, 2)
        (manual,) = await spoken(supervisor, manual_id, 1)
        one.pids += [*pids, manual]
        if how == "lease":
            one.leash.extend(steady_us() - 1)
        else:
            supervisor.cut_off(one.leash)
        end = await asyncio.wait_for(timed, SOON_S)
        assert end.result is Result.INTERRUPTED
        assert "lease" in end.message
        await gone(*pids)
        assert lives(manual)
        assert not one.leash.allows(f"leash test {os.getpid()}:{timed_id}")
        await supervisor.stop()


@pytest.mark.parametrize("how", ["lease", "cut off"])
async def test_runs_on_another_leash_go_on(how: str) -> None:
    """When one of two leashes of a supervisor ends, so does what is on it; what is on the other goes on."""
    async with yard() as one, yard() as other:
        supervisor, _ = supervisor_of(one)
        await supervisor.start([shell("lost", JOB), shell("kept", JOB)], set())
        runs, pids = {}, {}
        for name, leash in (("lost", one.leash), ("kept", other.leash)):
            run_id, services = supervisor.new_run_id(), Leashed(supervisor, leash)
            running = services.run(name, reason=Reason.SCHEDULE, timer=name, run_id=run_id)
            runs[name] = asyncio.ensure_future(running)
            pids[name] = await spoken(supervisor, run_id, 2)
            one.pids += pids[name]
        if how == "lease":
            one.leash.extend(steady_us() - 1)
        else:
            Leashed(supervisor, one.leash).cut_off()
        assert (await asyncio.wait_for(runs["lost"], SOON_S)).result is Result.INTERRUPTED
        await gone(*pids["lost"])
        assert all(lives(pid) for pid in pids["kept"])
        assert not runs["kept"].done()
        Leashed(supervisor, other.leash).cut_off()
        assert (await asyncio.wait_for(runs["kept"], SOON_S)).result is Result.INTERRUPTED
        await gone(*pids["kept"])
        await supervisor.stop()


async def test_a_run_is_known_by_its_process() -> None:
    """A job that has thrown its environment away is found too, because the leash knows its process."""
    async with yard() as one:
        supervisor, _ = supervisor_of(one)
        await supervisor.start([shell("bare", "echo $$; exec env -i sleep 1000")], set())
        run_id = supervisor.new_run_id()
        running = asyncio.ensure_future(
            supervisor.run("bare", reason="schedule", timer="nightly", run_id=run_id, leash=one.leash)
        )
        one.pids += await spoken(supervisor, run_id, 1)
        while marker_of(one.pids[-1]) is not None:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
        one.leash.extend(steady_us() - 1)
        end = await asyncio.wait_for(running, SOON_S)
        assert (end.result, "lease" in end.message) == (Result.INTERRUPTED, True)
        await supervisor.stop()


async def test_no_run_of_a_timer_without_a_lease(tmp_path: Path) -> None:
    """Without a lease a timer's run does not begin, and is interrupted; it runs when there is one again."""
    async with yard() as one:
        supervisor, _ = supervisor_of(one)
        touched = tmp_path / "touched"
        await supervisor.start([shell("job", f"echo x >> {touched}")], set())
        one.leash.cut()
        end = await supervisor.run("job", reason="schedule", timer="nightly", leash=one.leash)
        assert (end.result, touched.exists()) == (Result.INTERRUPTED, False)
        assert "no lease" in end.message
        one.leash.extend(steady_us() + HOUR_US)
        end = await supervisor.run("job", reason="schedule", timer="nightly", leash=one.leash)
        assert (end.result, touched.read_text()) == (Result.SUCCESS, "x\n")
        assert one.leash._runs == {}
        await supervisor.stop()


async def test_a_start_that_waits_for_its_turn_is_called_off(tmp_path: Path) -> None:
    """A job whose process is not made yet when the lease ends is never made."""
    async with yard() as one:
        supervisor, history = supervisor_of(one)
        touched = tmp_path / "touched"
        await supervisor.start([shell("job", f"echo x >> {touched}")], set())
        places = [await one.processes._places.acquire() for _ in range(4)]
        run_id = supervisor.new_run_id()
        running = asyncio.ensure_future(
            supervisor.run("job", reason="schedule", timer="nightly", run_id=run_id, leash=one.leash)
        )
        tokens = RunTokens(history.key, f"leash test {os.getpid()}", identity_of(os.getpid()).started)
        marker = tokens.token_of(run_id)
        while not one.leash.allows(marker):  # noqa: ASYNC110 (until it is announced)
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
        one.leash.extend(steady_us() - 1)
        with held_up(one.guardian):
            for _ in places:
                one.processes._places.release()
            end = await asyncio.wait_for(running, SOON_S)
        assert (end.result, touched.exists()) == (Result.INTERRUPTED, False)
        await supervisor.stop()
