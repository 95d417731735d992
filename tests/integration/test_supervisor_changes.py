"""The supervisor in virtual time: shutdown, reload, and taking over what was before."""

import asyncio
import signal

import pytest

from duly import Event
from duly.processes.leftovers import Leftover
from duly.store.history import HistoryReader, Result, RunRow
from duly.supervisor import adoption
from duly.supervisor.results import Refused, ServiceError, SupervisorStoppingError
from tests.worlds.histories import LooseHistory
from tests.worlds.supervisor import NOON, SECOND, World, at, oneshot, simple, world_of

# --- shutdown ---


async def test_shutdown_in_reverse_order() -> None:
    """Later stages and dependents go first; unrelated services get TERM together; all are interrupted."""
    world = world_of(stays=("db", "api", "web", "job"))
    await world.start(
        simple("db", stage=1),
        simple("api"),
        simple("web", after=("api",)),
        oneshot("job", stage=4),
        boot={"db", "api", "web"},
    )
    await world.do(world.supervisor.run("job", reason="schedule"))
    ends: list[str] = []
    world.supervisor.on_run_ended.append(lambda row: ends.append(row.service))
    await world.stop()
    assert ends == ["job", "web", "api", "db"]
    assert {row.result for row in await world.runs()} == {"interrupted"}
    assert world.living() == []
    names = [name for name, _ in world.told("SupervisorStopping", "SupervisorStopped")]
    assert names == ["SupervisorStopping", "SupervisorStopped"]


async def test_unrelated_services_share_the_grace() -> None:
    """Services that ignore TERM and are not related are killed together, after one grace."""
    world = world_of(kill_grace_sec=5)
    for name in ("a", "b", "c"):
        world.processes.script(name, ignores_term=True)
    await world.start(simple("a"), simple("b"), simple("c"))
    assert 5 <= await world.stop() < 5.2
    assert {row.signal for row in await world.runs()} == {signal.SIGKILL}


async def test_shutdown_deadline_kills_the_rest() -> None:
    """A chain that would need a grace each is killed when the deadline comes, also those not yet asked."""
    world = world_of(kill_grace_sec=10, shutdown_timeout_sec=15)
    for name in ("a", "b", "c"):
        world.processes.script(name, ignores_term=True)
    await world.start(simple("a"), simple("b", after=("a",)), simple("c", after=("b",)))
    assert await world.stop() <= 15
    assert [(row.result, row.signal) for row in await world.runs()] == [("interrupted", signal.SIGKILL)] * 3
    assert world.living() == []
    assert world.process("a").signals == [signal.SIGKILL]


async def test_shutdown_can_be_hurried() -> None:
    """Killed in the middle of a shutdown, all end at once, and all are interrupted."""
    world = world_of(kill_grace_sec=10)
    for name in ("a", "b"):
        world.processes.script(name, ignores_term=True)
    await world.start(simple("a", stage=1), simple("b"))
    stopping = await world.do(world.supervisor.stop())
    await world.after(1)
    world.supervisor.kill()
    await world.rest()
    assert (stopping.done(), world.living()) == (True, [])
    assert [(row.result, row.signal) for row in await world.runs()] == [("interrupted", signal.SIGKILL)] * 2


async def test_signals_are_handed_on() -> None:
    """A signal for all reaches every process that lives, and nobody is restarted for it."""
    world = world_of(stays=("a", "b"))
    await world.start(simple("a"), simple("b"))
    world.supervisor.signal(signal.SIGWINCH)
    await world.rest()
    assert [process.signals for process in world.processes.started] == [[signal.SIGWINCH]] * 2
    assert {view.state for view in world.supervisor.views()} == {"running"}
    await world.stop()


async def test_stop_interrupts_adoption(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop while leftovers are being ended does not wait for them; their runs stay open."""
    waiting = asyncio.Event()

    async def for_ever(*_: object, **__: object) -> list[Leftover]:
        await waiting.wait()
        return []

    monkeypatch.setattr(adoption, "leftovers", lambda *_, **__: [Leftover(4, 77, 1, 77)])
    monkeypatch.setattr(adoption, "end_leftovers", for_ever)
    rows = LooseHistory()
    await rows.put([RunRow(id=4, service="web", reason="boot", started_us=at(-70), pid=77)], [])
    world = World(database=rows.database)
    adopting = await world.do(world.supervisor.adopt())
    assert not adopting.done()
    await world.stop()
    assert adopting.exception() is None
    assert [row.id for row in await rows.ask(HistoryReader.open_runs)] == [4]


async def test_shutdown_returns_even_if_a_spawn_hangs() -> None:
    """A process that takes long to be made does not hold shutdown up, and is killed once it is there."""
    world = world_of(shutdown_timeout_sec=3)
    world.processes.script("web", spawn_takes=10 * SECOND, ignores_term=True)
    await world.start(simple("web"))
    assert await world.stop() <= 3
    assert world.told("SupervisorStopped")[0][1]["left"] == ["web"]
    await world.after(7)
    assert (world.started(), world.living()) == (["web"], [])
    assert [row.result for row in await world.runs()] == ["interrupted"]


async def test_timeout_stays_a_timeout_when_a_shutdown_comes() -> None:
    """A job that was over its time when the shutdown came is told as that."""
    world = world_of(kill_grace_sec=10)
    world.processes.script("job", ignores_term=True)
    await world.start(oneshot("job", timeout_sec=5))
    await world.after(6)
    await world.stop()
    assert [row.result for row in await world.runs()] == ["timeout"]


async def test_stop_outlasts_its_caller() -> None:
    """Anyone who asked for a stop may go away; the next who asks waits for the same stop."""
    world = world_of(kill_grace_sec=5)
    world.processes.script("web", ignores_term=True)
    await world.start(simple("web"))
    first = await world.do(world.supervisor.stop())
    first.cancel()
    await world.after(1)
    second = await world.do(world.supervisor.stop())
    assert not second.done()
    await world.after(4)
    assert (second.done(), world.living()) == (True, [])
    assert len(world.told("SupervisorStopping")) == 1


@pytest.mark.parametrize("turns", range(12))
async def test_stop_at_the_instant_of_a_restart(turns: int) -> None:
    """Nothing starts after a stop, in whichever turn of the loop at the instant of a restart it comes."""
    world = world_of()
    world.processes.script("web", lasts=SECOND)

    async def stop() -> None:
        await world.clock.sleep_until(NOON + 2 * SECOND)
        for _ in range(turns):
            await asyncio.sleep(0)  # noqa: TID251 (a turn of the loop)
        await world.supervisor.stop()

    known: set[int] = set()

    def look(event: Event) -> None:
        if event.name == "SupervisorStopping":
            known.update(run_id for run_id in range(9) if world.supervisor.outcome(run_id) is not None)

    world.listeners.append(look)
    await world.do(stop())
    await world.start(simple("web"))
    await world.after(10)
    assert world.calls[0].done()
    assert {row.id for row in await world.runs()} == known
    assert world.living() == []


async def test_stop_interrupts_start_up() -> None:
    """A stop during start-up ends what runs and starts nothing more; the start returns, not complete."""
    world = world_of(stays=("hang", "web"))
    await world.start(oneshot("hang", stage=1), simple("web"))
    await world.stop()
    assert world.started() == ["hang"]
    assert world.calls[0].done()
    assert world.calls[0].exception() is None
    assert world.supervisor.started_up_us is None
    assert [(row.service, row.result) for row in await world.runs()] == [("hang", "interrupted")]
    assert world.state("web") == "stopped"


async def test_nothing_starts_once_a_stop_was_asked_for() -> None:
    """During shutdown pauses end for nothing, runs are refused as interrupted, and calls are refused."""
    world = world_of(stays=(), lasts={"flaky": 1}, kill_grace_sec=20)
    world.processes.script("stubborn", ignores_term=True)
    await world.start(
        simple("flaky", stage=1), simple("stubborn", stage=4), oneshot("job"), boot={"flaky", "stubborn"}
    )
    await world.after(1)
    stopping = await world.do(world.supervisor.stop())
    run = await world.do(world.supervisor.run("job", reason="schedule", run_id=99))
    assert (run.result().result, run.result().message) == (Result.INTERRUPTED, "shutdown")
    assert world.supervisor.outcome(99) is Result.INTERRUPTED
    for call in (world.supervisor.start_service("job"), world.supervisor.stop_service("flaky")):
        with pytest.raises(ServiceError) as refusal:
            await call
        assert refusal.value.kind is Refused.STOPPING
    with pytest.raises(SupervisorStoppingError):
        await world.supervisor.reload([], set())
    await world.after(10)
    assert world.started() == ["flaky", "stubborn"]
    await world.after(10)
    assert stopping.done()
    again = await world.do(world.supervisor.stop())
    assert again.done()


async def test_end_during_shutdown_is_its_own() -> None:
    """A job that ends by itself while others are being stopped keeps its own result, and stays down."""
    world = world_of(lasts={"job": 3, "web": 3}, kill_grace_sec=5)
    world.processes.script("slow", ignores_term=True)
    await world.start(
        oneshot("job", stage=1), simple("web", stage=1), simple("slow", stage=4), boot={"web", "slow"}
    )
    await world.do(world.supervisor.run("job", reason="schedule"))
    await world.stop()
    results = {row.service: row.result for row in await world.runs()}
    assert results == {"web": "success", "job": "success", "slow": "interrupted"}


# --- reload ---


async def test_reload_matrix() -> None:
    """Unchanged: untouched; changed: restarted; removed: stopped; added: started; oneshots: not run again."""
    world = world_of(stays=("same", "changed", "removed", "added", "held"), lasts={"job": 1, "new-job": 1})
    old = [simple(name) for name in ("same", "changed", "removed", "held")]
    await world.start(*old, oneshot("job"))
    await world.after(1)
    await world.do(world.supervisor.stop_service("held"))
    reload = await world.reload(
        simple("same"),
        simple("changed", env={"A": "1"}),
        simple("held", env={"A": "1"}),
        oneshot("job", timeout_sec=9),
        simple("added"),
        oneshot("new-job"),
    )
    await world.after(1)
    plan = reload.result()
    assert [each.id for each in plan.added] == ["added", "new-job"]
    assert [each.id for each in plan.changed] == ["changed", "held", "job"]
    assert [each.id for each in plan.removed] == ["removed"]
    assert [each.id for each in plan.unchanged] == ["same"]
    assert world.started()[5:] == ["changed", "added", "new-job"]
    assert sorted(world.living()) == ["added", "changed", "same"]
    assert world.process("changed").command.env["A"] == "1"
    assert [view.id for view in world.supervisor.views()] == [
        "same",
        "changed",
        "held",
        "job",
        "added",
        "new-job",
    ]
    assert (world.state("held"), world.state("job")) == ("stopped", "done")
    assert [row.reason for row in await world.runs("changed")] == ["boot", "restart"]
    assert [row.result for row in await world.runs("removed")] == ["signal"]
    await world.stop()


async def test_reload_keeps_a_oneshot_in_flight() -> None:
    """A changed oneshot in flight keeps its old definition; the new one holds from the next run on."""
    world = world_of(lasts={"job": 20})
    await world.start(oneshot("job", timeout_sec=30), boot=set())
    run = await world.do(world.supervisor.run("job", reason="schedule"))
    await world.do(world.supervisor.reload([oneshot("job", timeout_sec=5)], set()))
    await world.after(20)
    assert run.result().result is Result.SUCCESS
    run = await world.do(world.supervisor.run("job", reason="schedule"))
    await world.after(5)
    assert run.result().result is Result.TIMEOUT
    await world.stop()


async def test_reload_waits_for_start_up() -> None:
    """A reload that comes during start-up waits its turn."""
    world = world_of(stays=("web", "new"), lasts={"slow": 5})
    await world.start(oneshot("slow"), simple("web"))
    reload = await world.reload(simple("new"))
    assert (reload.done(), world.started()) == (False, ["slow", "web"])
    await world.after(5)
    assert (reload.done(), world.living()) == (True, ["new"])
    await world.stop()


async def test_nothing_starts_what_a_reload_takes_down() -> None:
    """While a reload waits for a service to go, that cannot be started; then the new one comes up."""
    world = world_of(kill_grace_sec=5)
    world.processes.script("web", ignores_term=True)
    await world.start(simple("web"))
    await world.reload(simple("web", cwd="/tmp"))
    world.process("web").end(0)
    await world.after(0)
    assert world.process("web").command.cwd == "/tmp"
    await world.reload()
    await world.after(1)
    with pytest.raises(ServiceError) as refusal:
        await world.supervisor.start_service("web")
    assert refusal.value.kind is Refused.RELOADING
    assert world.supervisor.target_state("web") == "active"
    await world.after(5)
    assert (world.living(), world.supervisor.target_state("web")) == ([], "missing")
    await world.stop()


async def test_service_stopped_by_hand_during_a_reload_stays_down() -> None:
    """A service that a reload is about to bring back stays down if somebody stops it meanwhile."""
    world = world_of(kill_grace_sec=5)
    world.processes.script("web", ignores_term=True)
    await world.start(simple("web"))
    await world.reload(simple("web", cwd="/tmp"))
    await world.do(world.supervisor.stop_service("web"))
    await world.after(5)
    assert (world.state("web"), world.started()) == ("stopped", ["web"])
    await world.stop()


async def test_service_started_again_by_hand_is_reloaded() -> None:
    """A service that was stopped by hand and started again comes back changed like any other."""
    world = world_of(stays=("web",))
    await world.start(simple("web"))
    await world.do(world.supervisor.stop_service("web"))
    await world.do(world.supervisor.start_service("web"))
    await world.reload(simple("web", cwd="/tmp"))
    assert (world.state("web"), world.process("web").command.cwd) == ("running", "/tmp")
    await world.stop()


async def test_stop_interrupts_reload() -> None:
    """A stop during a reload takes everything down at once; the reload is refused."""
    world = world_of(stays=("other",), kill_grace_sec=8)
    world.processes.script("web", ignores_term=True)
    await world.start(simple("web"), simple("other"))
    reload = await world.reload(simple("other"), simple("new"))
    await world.after(1)
    assert await world.stop() < 8
    assert isinstance(reload.exception(), SupervisorStoppingError)
    assert (world.living(), world.started()) == ([], ["web", "other"])


async def test_cancelled_reload_is_carried_out() -> None:
    """Anyone who asked for a reload may go away; the reload is done all the same, and whole."""
    world = world_of(stays=("a", "b"), lasts={"slow": 5})
    await world.start(simple("a"))
    reload = await world.reload(oneshot("slow", stage=1), simple("b"))
    reload.cancel()
    await world.after(5)
    assert world.living() == ["b"]
    await world.stop()


async def test_reload_turns_services_off_and_on() -> None:
    """A service disabled by a reload stops, and one enabled starts."""
    world = world_of(stays=("a", "b"))
    await world.start(simple("a"), simple("b", enabled=False))
    await world.reload(simple("a", enabled=False), simple("b"))
    assert world.living() == ["b"]
    assert (world.view("a").reason, world.supervisor.target_state("a")) == ("disabled", "disabled")
    await world.stop()


# --- what was before ---


async def test_last_ends_and_open_runs_are_taken_over() -> None:
    """A new supervisor knows when services last ended; runs without an end are interrupted, and told."""
    rows = LooseHistory()
    done = RunRow(
        id=3, service="job", reason="schedule", started_us=at(-90), ended_us=at(-80), result="success"
    )
    left = RunRow(
        id=4, service="web", reason="boot", started_us=at(-70), pid=1, pid_started=1, boot="other boot"
    )
    later = RunRow(id=5, service="web", reason="boot", started_us=at(-60), ended_us=at(-50), result="exit")
    await rows.put([done, left, later], [])
    world = World(database=rows.database)
    await world.history.open()
    await world.supervisor.adopt()
    await world.rest()
    assert world.supervisor.last_end_us("job") == at(-80)
    assert world.supervisor.last_end_us("web") == at(-50)
    assert (world.supervisor.outcome(3), world.supervisor.outcome(4)) == (Result.SUCCESS, Result.INTERRUPTED)
    row = await world.history.run(4)
    assert row is not None
    assert (row.result, row.ended_us) == ("interrupted", at(0))
    assert await rows.ask(HistoryReader.open_runs) == []
    assert world.told("LeftoverFound") == [
        ("LeftoverFound", {"service": "web", "runId": 4, "isAlive": False, "pids": []})
    ]
    world.processes.script("web")
    await world.start(simple("web"))
    assert world.view("web").run_id == 6
    await world.stop()


async def test_leftover_that_cannot_be_killed_keeps_its_service_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of an earlier daemon that does not die keeps its service down until it does, and no other."""
    leftover, living = Leftover(4, 77, 1, 77), {77}
    monkeypatch.setattr(adoption, "is_alive", lambda identity: identity.pid in living)

    async def in_vain(*_: object, **__: object) -> list[Leftover]:
        return [leftover]

    monkeypatch.setattr(adoption, "leftovers", lambda *_, **__: [leftover])
    monkeypatch.setattr(adoption, "end_leftovers", in_vain)
    rows = LooseHistory()
    await rows.put([RunRow(id=4, service="web", reason="boot", started_us=at(-70), pid=77)], [])
    world = World(database=rows.database)
    world.processes.script("other")
    await world.history.open()
    await world.supervisor.adopt()
    await world.start(simple("web"), simple("other"))
    assert (world.state("web"), world.state("other")) == ("skipped", "running")
    assert world.view("web").reason == "process 77 of an earlier run cannot be killed"
    assert world.supervisor.target_state("web") == "active"
    with pytest.raises(ServiceError) as refusal:
        await world.supervisor.start_service("web")
    assert refusal.value.kind is Refused.UNKILLABLE
    await world.history.settled()
    assert 4 in [row.id for row in await rows.ask(HistoryReader.open_runs)]
    living.clear()
    assert world.supervisor.target_state("web") == "idle"
    world.processes.script("web")
    await world.do(world.supervisor.start_service("web"))
    assert (world.state("web"), world.supervisor.outcome(4)) == ("running", Result.INTERRUPTED)
    await world.stop()
    assert await rows.ask(HistoryReader.open_runs) == []
