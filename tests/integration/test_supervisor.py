"""The supervisor in virtual time: start-up, runs, restarts, and what is done by hand."""

import asyncio
import signal
from datetime import timedelta
from typing import Any

import pytest

from duly.config import Service
from duly.core.causes import Reason
from duly.instant import instant_of
from duly.processes.output import Tail
from duly.processes.spawn import ProcessCommand
from duly.store.history import Result, RunRow
from duly.supervisor import run_registry
from duly.supervisor.controller import ServiceController
from duly.supervisor.execution import CutReason, Execution
from duly.supervisor.results import Refused, ServiceError
from tests.worlds.fake_processes import FakeProcess
from tests.worlds.supervisor import SECOND, at, oneshot, simple, world_of

# --- start-up ---


async def test_stages_wait_for_oneshots_and_for_spawns() -> None:
    """A stage begins when the oneshots of the one before have ended and its services have been spawned."""
    world = world_of(stays=("db", "web"), lasts={"migrate": 5, "warm": 2})
    await world.start(
        simple("web"),
        oneshot("migrate", stage=2),
        simple("db", stage=1),
        oneshot("warm", stage=3, after=("web",)),
    )
    assert world.started() == ["db", "migrate"]
    assert (world.state("web"), world.view("web").reason) == ("waiting", "waiting for migrate")
    await world.after(5)
    assert world.started() == ["db", "migrate", "web", "warm"]
    assert not world.calls[0].done()
    await world.after(2)
    assert world.supervisor.started_up_us == at(7)
    assert world.calls[0].done()
    assert [view.state for view in world.supervisor.views()] == ["running", "done", "running", "done"]
    assert [fields["stage"] for _, fields in world.told("StageStarted")] == [1, 2, 3]
    assert [fields["stage"] for _, fields in world.told("StageCompleted")] == [1, 2, 3]
    assert world.told("SupervisorStarted") == [("SupervisorStarted", {"services": 4, "duration": 7000})]
    await world.stop()


async def test_relations_order_a_stage_and_nothing_else_waits() -> None:
    """Within a stage only those related wait; the rest is spawned at once, even beside a hanging oneshot."""
    world = world_of(stays=("a", "b", "hang"))
    await world.start(
        simple("a", after=("hang",)), oneshot("hang"), simple("b"), simple("c"), simple("late", stage=4)
    )
    assert world.started() == ["hang", "b"]
    assert world.view("a").reason == "waiting for hang"
    assert world.view("late").reason == "waiting for hang, a"
    assert world.state("c") == "waiting"
    assert "could not be started" in world.view("c").reason
    await world.stop()


@pytest.mark.parametrize(
    ("required", "reason"),
    [
        (oneshot("need"), "requires need, which did not succeed (exited with code 3)"),
        (simple("need", enabled=False), "requires need, which is disabled"),
        (oneshot("need", at_startup=False), "requires need, which has not run"),
    ],
)
async def test_unmet_requirement_skips(required: Service, reason: str) -> None:
    """A service whose requirement is not met is skipped with the reason, and so is who requires that one."""
    world = world_of(stays=("web", "other"))
    world.processes.script("need", lasts=SECOND, code=3)
    boot = {"web", "front", "other"} | ({"need"} if required.at_startup is None else set())
    await world.start(
        simple("web", requires=("need",)),
        required,
        simple("front", requires=("web",)),
        simple("other"),
        boot=boot,
    )
    await world.after(2)
    assert (world.state("web"), world.view("web").reason) == ("skipped", reason)
    assert world.view("front").reason == "requires web, which was skipped"
    assert world.state("other") == "running"
    assert world.told("ServiceStartSkipped") == [
        ("ServiceStartSkipped", {"service": "web", "reason": reason}),
        ("ServiceStartSkipped", {"service": "front", "reason": "requires web, which was skipped"}),
    ]
    assert world.supervisor.started_up_us is not None
    await world.stop()


async def test_service_not_for_boot_is_left_alone() -> None:
    """A service that is not to start at boot is idle until somebody starts it."""
    world = world_of(stays=("a", "job"))
    await world.start(simple("a"), oneshot("job"), boot={"a"})
    assert (world.started(), world.state("job")) == (["a"], "stopped")
    assert world.supervisor.target_state("job") == "idle"
    await world.stop()


async def test_fault_in_one_spawn_harms_no_other() -> None:
    """An exception that nobody foresaw while one process is made is that run's end, and no more."""
    world = world_of(stays=("good",))
    start = world.processes.start

    async def faulty(command: ProcessCommand, *, token: str, output: Tail) -> FakeProcess:
        if command.argv[0] == "bad":
            raise RuntimeError("who thought of this")
        return await start(command, token=token, output=output)

    world.processes.start = faulty  # type: ignore[method-assign]
    await world.start(simple("bad", restart="no"), simple("good"))
    assert (world.state("bad"), world.state("good")) == ("failed", "running")
    (row,) = await world.runs("bad")
    assert (row.result, row.message) == ("spawn-error", "RuntimeError: who thought of this")
    await world.stop()


async def test_fault_in_bringing_one_up_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours in starting one service, or in bringing it back, makes that one failed and no other."""
    world = world_of(stays=("good",))
    world.processes.script("flaky", lasts=SECOND)
    begin = ServiceController.begin

    def faulty(self: ServiceController, reason: str, **options: Any) -> Execution:
        if self.service.id == "bad" or reason == "restart":
            raise RuntimeError("who thought of this")
        return begin(self, reason, **options)

    monkeypatch.setattr(ServiceController, "begin", faulty)
    await world.start(simple("bad"), simple("flaky"), simple("good"), simple("next", requires=("bad",)))
    await world.after(2)
    assert [view.state for view in world.supervisor.views()] == ["failed", "failed", "running", "skipped"]
    assert world.view("bad").reason == "could not be started: RuntimeError: who thought of this"
    assert world.view("flaky").reason == "could not be restarted: RuntimeError: who thought of this"
    await world.stop()


async def test_process_that_cannot_be_watched_is_killed() -> None:
    """A fault of ours in watching a process ends its run and the process: nobody else would."""
    world = world_of(stays=("job", "good"))
    start = world.processes.start

    async def unwatchable(command: ProcessCommand, *, token: str, output: Tail) -> FakeProcess:
        process = await start(command, token=token, output=output)
        if command.argv[0] == "job":
            process.is_group_alive = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
            process.end(0)
        return process

    world.processes.start = unwatchable  # type: ignore[method-assign]
    await world.start(oneshot("job"), simple("good"))
    (row,) = await world.runs("job")
    assert (row.result, row.message) == (
        "interrupted",
        "duly lost track of it: ZeroDivisionError: division by zero",
    )
    assert world.state("good") == "running"
    del world.process("job").is_group_alive
    await world.stop()


# --- runs ---


async def test_variables_of_a_run() -> None:
    """What a watcher adds to the environment reaches the process, unless the service says otherwise."""
    world = world_of()
    for name in ("job", "own"):
        world.processes.script(name, lasts=3 * SECOND)
    world.supervisor.add_variables(lambda run_id, service: {"TRACEPARENT": f"{service} {run_id}"})
    await world.start(oneshot("job"), oneshot("own", env={"TRACEPARENT": "mine"}), boot={"job", "own"})
    await world.after(1)
    run_id = world.view("job").run_id
    assert world.process("job").command.env["TRACEPARENT"] == f"job {run_id}"
    assert world.process("own").command.env["TRACEPARENT"] == "mine"


async def test_run_is_noted_from_before_its_spawn_to_its_end() -> None:
    """A run's row is there before its process, gets its identity, and at the end its result and output."""
    world = world_of()
    world.processes.script("job", lasts=3 * SECOND, code=3, outputs=b"hello\n", spawn_takes=SECOND)
    await world.start(oneshot("job"), boot=set())
    run = await world.do(
        world.supervisor.run("job", reason=Reason.SCHEDULE, timer="nightly", scheduled_us=at(-1), run_id=77)
    )
    row = await world.history.run(77)
    assert row == RunRow(
        id=77, service="job", timer="nightly", reason="schedule", scheduled_us=at(-1), started_us=at(0)
    )
    assert (world.state("job"), world.supervisor.outcome(77)) == ("starting", "running")
    await world.after(1)
    row = await world.history.run(77)
    assert row is not None
    assert (row.pid, row.boot, row.ended_us) == (100_001, "virtual", None)
    tail = world.supervisor.output_of(77)
    assert tail is not None
    assert tail.text() == "hello\n"
    assert world.view("job").pid == 100_001
    assert world.process("job").token.startswith("world:77:")
    assert world.process("job").command.env == {"DULY_RUN_ID": "world:77"}
    await world.after(3)
    assert run.result().result is Result.EXIT
    row = await world.history.run(77)
    assert row is not None
    assert (row.result, row.exit_code, row.ended_us, row.output) == ("exit", 3, at(4), "hello\n")
    assert (world.supervisor.outcome(77), world.supervisor.last_end_us("job")) == (Result.EXIT, at(4))
    assert world.supervisor.output_of(77) is None
    seen = {"service": "job", "runId": 77, "reason": "schedule", "timer": "nightly"}
    ended = {
        "result": "exit",
        "exitCode": 3,
        "signal": None,
        "duration": 4000,
        "message": "exited with code 3",
    }
    assert world.told("ServiceRunStarted", "ServiceRunEnded") == [
        ("ServiceRunStarted", {**seen, "pid": 100_001}),
        ("ServiceRunEnded", {**seen, **ended, "message": "exited with code 3"}),
    ]
    assert world.process("job").is_closed
    await world.stop()


async def test_run_outlasts_its_caller() -> None:
    """A caller that is cancelled leaves its run in flight; the end is recorded all the same."""
    world = world_of(lasts={"job": 5})
    await world.start(oneshot("job"), boot=set())
    run = await world.do(world.supervisor.run("job", reason=Reason.MANUAL))
    run.cancel()
    await world.after(5)
    assert [row.result for row in await world.runs()] == ["success"]
    await world.stop()


async def test_timeout_ends_with_term_then_kill() -> None:
    """A oneshot over its time gets TERM, after the grace KILL, and the result timeout."""
    world = world_of(kill_grace_sec=10)
    world.processes.script("job", ignores_term=True)
    await world.start(oneshot("job", timeout_sec=60))
    await world.after(59)
    assert world.process("job").signals == []
    await world.after(1)
    assert signal.SIGTERM in world.process("job").signals
    assert world.state("job") == "running"
    await world.after(10)
    (row,) = await world.runs()
    assert (row.result, row.signal, row.ended_us) == ("timeout", signal.SIGKILL, at(70))
    assert (world.state("job"), world.living()) == ("failed", [])
    await world.stop()


@pytest.mark.parametrize("step_s", [3600, -3600])
async def test_time_limits_and_pauses_survive_steps_of_the_clock(step_s: int) -> None:
    """A time limit, a pause and a duration are lengths of time, whatever the wall clock does meanwhile."""
    world = world_of(stays=("job",))
    world.processes.script("web", lasts=SECOND, code=1)
    await world.start(oneshot("job", timeout_sec=60), simple("web", stage=1))
    await world.after(1.5)
    world.clock.step(timedelta(seconds=step_s))
    await world.after(0.4)
    assert world.started().count("web") == 1
    await world.after(0.1)
    assert world.started().count("web") == 2
    world.clock.step(timedelta(seconds=-2 * step_s))
    await world.after(57.9)
    assert world.state("job") == "running"
    await world.after(0.1)
    assert world.state("job") == "failed"
    (ended,) = (fields for _, fields in world.told("ServiceRunEnded") if fields["service"] == "job")
    assert (ended["result"], ended["duration"]) == ("timeout", 60_000)
    assert world.supervisor.started_up_us == instant_of(world.clock.now())
    world.clock.step(timedelta(seconds=step_s))
    assert world.supervisor.started_up_us == instant_of(world.clock.now())
    await world.stop()


async def test_time_up_survives_steps_of_the_clock() -> None:
    """A service that was up for a minute has been so even if the clock was set back meanwhile."""
    world = world_of()
    world.processes.script("web", lasts=SECOND, code=1)
    await world.start(simple("web"))
    await world.after(1)
    world.processes.script("web", lasts=60 * SECOND, code=1)
    await world.after(31)
    world.clock.step(timedelta(hours=-1))
    await world.after(30)
    assert [fields["delayMs"] for _, fields in world.told("ServiceRestarting")] == [1000, 1000]
    await world.stop()


@pytest.mark.parametrize("turns", range(3, 9))
async def test_job_that_has_ended_is_not_cut_off(turns: int) -> None:
    """A job that ended by itself keeps its result, however soon after that somebody asks it to end."""
    world = world_of(stays=("job",))
    await world.start(oneshot("job"), boot=set())
    run = await world.do(world.supervisor.run("job", reason="schedule"))
    execution = world.supervisor._controllers["job"].execution
    assert execution is not None
    world.process("job").end(0)
    for _ in range(turns):
        await asyncio.sleep(0)  # noqa: TID251 (a turn of the loop)
    execution.ask(CutReason.SHUTDOWN)
    await world.rest()
    assert run.result().result is Result.SUCCESS
    await world.stop()


async def test_run_called_off_before_its_process_is_made() -> None:
    """A run that is asked to end before its process is made makes none, and is interrupted."""
    world = world_of(stays=("job",))
    await world.start(oneshot("job"), boot=set())
    execution = world.supervisor._controllers["job"].begin("schedule")
    execution.ask(CutReason.SHUTDOWN)
    await world.rest()
    assert [(row.result, row.pid) for row in await world.runs()] == [("interrupted", None)]
    assert (world.started(), world.state("job")) == ([], "stopped")
    await world.stop()


async def test_only_the_newest_outcomes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of runs is remembered of so many, and no more: a daemon lives long."""
    monkeypatch.setattr(run_registry, "_OUTCOMES_KEPT", 3)
    world = world_of(lasts={"job": 0})
    await world.start(oneshot("job"), boot=set())
    for _ in range(5):
        await world.do(world.supervisor.run("job", reason="schedule"))
    outcomes = [world.supervisor.outcome(run_id) for run_id in range(1, 6)]
    assert outcomes == [None, None, *[Result.SUCCESS] * 3]
    await world.stop()


async def test_what_a_job_leaves_in_its_group_goes_with_it() -> None:
    """A run's end waits for the rest of its group, but is dated and judged by its own process."""
    world = world_of(kill_grace_sec=2)
    world.processes.script("job", lasts=SECOND, leaves_behind=True)
    await world.start(oneshot("job"))
    await world.after(2)
    assert world.supervisor.target_state("job") == "active"
    await world.after(2)
    (row,) = await world.runs()
    assert (row.result, row.ended_us, world.living()) == ("success", at(1), [])
    await world.stop()


async def test_what_a_job_leaves_outside_its_group_outlives_it() -> None:
    """A run's end waits for no orphan; a stop by hand ends it, though the service is idle."""
    world = world_of(kill_grace_sec=2)
    world.processes.script("job", lasts=SECOND, leaves_orphan=True)
    await world.start(oneshot("job"))
    await world.after(2)
    assert world.supervisor.target_state("job") == "idle"
    assert world.living() != []
    await world.supervisor.stop_service("job")
    assert world.living() == []
    await world.stop()


@pytest.mark.parametrize("is_hurried", [False, True])
async def test_orphans_end_with_the_supervisor(is_hurried: bool) -> None:
    """Whatever any run left outside its group is ended by the shutdown, also if that is hurried."""
    world = world_of(kill_grace_sec=2)
    world.processes.script("job", lasts=SECOND, leaves_orphan=True)
    world.processes.script("web", leaves_orphan=True)
    await world.start(oneshot("job"), simple("web"))
    await world.after(2)
    if is_hurried:
        world.supervisor.kill()
    await world.stop()
    assert world.living() == []


async def test_hooks_hear_of_runs_and_cannot_harm_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Hooks get the row at start and at end, when the service is idle again; one that raises is told."""
    world = world_of(lasts={"job": 1})
    received: list[tuple[str, int, str | None, str]] = []

    def note(what: str) -> Any:
        def hook(row: RunRow) -> None:
            received.append((what, row.id, row.result, world.supervisor.target_state("job")))
            raise ValueError("careless")

        return hook

    world.supervisor.on_run_started.append(note("start"))
    world.supervisor.on_run_ended.append(note("end"))
    await world.start(oneshot("job"))
    await world.after(1)
    assert received == [("start", 1, None, "active"), ("end", 1, "success", "idle")]
    assert capsys.readouterr().err.count("careless") == 2
    await world.stop()


# --- restarts ---


async def test_restarts_back_off_and_recover() -> None:
    """A service that keeps ending comes back after 1, 2, 4 s; having been up for a minute, after 1 s."""
    world = world_of()
    world.processes.script("web", lasts=SECOND, code=1)
    await world.start(simple("web"))
    await world.after(10.5)  # ends at 1, 3, 6 and 11
    assert [(row.started_us, row.reason) for row in await world.runs()] == [
        (at(0), "boot"),
        (at(2), "restart"),
        (at(5), "restart"),
        (at(10), "restart"),
    ]
    assert world.view("web").restarts == 3
    world.processes.script("web", lasts=60 * SECOND)
    await world.after(0.5)
    assert (world.state("web"), world.view("web").restart_at_us) == ("waiting", at(19))
    await world.after(8 + 60 + 1)  # back at 19, ends at 79, back at 80
    assert [row.started_us for row in await world.runs()][4:] == [at(19), at(80)]
    delays = [fields["delayMs"] for _, fields in world.told("ServiceRestarting")]
    assert delays == [1000, 2000, 4000, 8000, 1000]
    await world.stop()


@pytest.mark.parametrize(
    ("restart", "code", "state"),
    [("no", 0, "done"), ("no", 1, "failed"), ("on-failure", 0, "done"), ("on-failure", 1, "waiting")],
)
async def test_restart_policies(restart: str, code: int, state: str) -> None:
    """Without restart a service stays as it ended; on-failure comes back only from failures."""
    world = world_of()
    world.processes.script("web", lasts=SECOND, code=code)
    await world.start(simple("web", restart=restart))
    await world.after(1)
    assert world.state("web") == state
    await world.stop()


async def test_spawn_error_is_retried_like_an_end() -> None:
    """A service whose command is missing comes up once the command is there."""
    world = world_of()
    await world.start(simple("web"))
    assert [row.result for row in await world.runs()] == ["spawn-error"]
    world.processes.script("web")
    await world.after(1)
    assert (world.state("web"), world.view("web").restarts) == ("running", 1)
    await world.stop()


# --- by hand ---


async def test_stop_and_start_by_hand() -> None:
    """A service stopped by hand ends by TERM, stays down, and comes back when it is started."""
    world = world_of(stays=("web",))
    await world.start(simple("web"))
    await world.do(world.supervisor.stop_service("web"))
    await world.after(1000)
    assert (world.state("web"), world.started()) == ("stopped", ["web"])
    assert [(row.result, row.signal) for row in await world.runs()] == [("signal", signal.SIGTERM)]
    start = await world.do(world.supervisor.start_service("web"))
    assert (world.state("web"), start.result()) == ("running", 2)
    assert (await world.runs())[1].reason == "manual"
    await world.stop()


async def test_stop_by_hand_ends_a_pause() -> None:
    """A service that waits to come back does not, once it was stopped by hand."""
    world = world_of()
    world.processes.script("web", lasts=SECOND)
    await world.start(simple("web"))
    await world.after(1)
    await world.do(world.supervisor.stop_service("web"))
    await world.after(100)
    assert (world.state("web"), len(await world.runs())) == ("stopped", 1)
    await world.stop()


async def test_start_by_hand_ends_a_pause() -> None:
    """A service that waits to come back can be started at once, and then only one of it runs."""
    world = world_of()
    world.processes.script("web", lasts=SECOND)
    await world.start(simple("web"))
    await world.after(1)
    world.processes.script("web")
    await world.do(world.supervisor.start_service("web"))
    assert world.state("web") == "running"
    await world.after(100)
    assert len(world.started()) == 2
    await world.stop()


async def test_stop_by_hand_before_its_turn_keeps_a_service_down() -> None:
    """A service stopped while start-up waits for others is not started when its turn comes."""
    world = world_of(stays=("web",), lasts={"slow": 5})
    await world.start(oneshot("slow", stage=1), simple("web"))
    await world.do(world.supervisor.stop_service("web"))
    await world.after(5)
    assert (world.state("web"), world.started()) == ("stopped", ["slow"])
    assert world.supervisor.started_up_us == at(5)
    await world.stop()


async def test_start_by_hand_before_its_turn_is_not_repeated() -> None:
    """A service started by hand while start-up waits for others is not started again."""
    world = world_of(stays=("web",), lasts={"slow": 5})
    await world.start(oneshot("slow", stage=1), simple("web"))
    await world.do(world.supervisor.start_service("web"))
    await world.after(5)
    assert world.started() == ["slow", "web"]
    assert world.supervisor.started_up_us == at(5)
    await world.stop()


async def test_refusals() -> None:
    """What cannot be started is refused with the kind of reason, and nothing else happens."""
    world = world_of(stays=("web", "job"))
    await world.start(simple("web"), oneshot("job"), simple("off", enabled=False), boot={"web", "job"})
    supervisor = world.supervisor
    for call, kind in [
        (supervisor.start_service("absent"), Refused.UNKNOWN),
        (supervisor.stop_service("absent"), Refused.UNKNOWN),
        (supervisor.start_service("off"), Refused.DISABLED),
        (supervisor.start_service("web"), Refused.ACTIVE),
        (supervisor.run("job", reason="trigger"), Refused.ACTIVE),
        (supervisor.run("off", reason="trigger"), Refused.DISABLED),
        (supervisor.run("absent", reason="trigger"), Refused.UNKNOWN),
    ]:
        with pytest.raises(ServiceError) as refusal:
            await call
        assert refusal.value.kind is kind
    assert [supervisor.target_state(name) for name in ("absent", "off", "job")] == [
        "missing",
        "disabled",
        "active",
    ]
    await world.do(supervisor.stop_service("web"))
    with pytest.raises(ServiceError) as refusal:
        await supervisor.run("web", reason="trigger")
    assert refusal.value.kind is Refused.NOT_ONESHOT
    assert len(await world.runs()) == 2
    await world.stop()


async def test_unkillable_process_is_told() -> None:
    """A stop of a process that survives KILL does not wait for ever, and never starts a second one."""
    world = world_of(stays=("web",), kill_grace_sec=3)
    await world.start(simple("web"))
    world.process("web").signal = lambda number: None  # type: ignore[method-assign]
    stop = await world.do(world.supervisor.stop_service("web"))
    await world.after(8)
    error = stop.exception()
    assert isinstance(error, ServiceError)
    assert error.kind is Refused.UNKILLABLE
    with pytest.raises(ServiceError):
        await world.supervisor.start_service("web")
    await world.reload()
    await world.after(60)
    assert await world.stop() <= 30
    assert world.told("SupervisorStopped")[0][1]["left"] == ["web"]
    assert (await world.runs())[0].ended_us is None


async def test_output_of_an_ended_run_is_not_held_in_memory() -> None:
    """What is shown of a service has its last run without the output, which only the history keeps."""
    world = world_of()
    world.processes.script("job", outputs=b"hello\n", lasts=SECOND)
    await world.start(oneshot("job"))
    await world.after(1)
    last = world.view("job").last_run
    assert last is not None
    assert (last.result, last.output) == ("success", "")
    assert [row.output for row in await world.runs("job")] == ["hello\n"]
    await world.stop()
