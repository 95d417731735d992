"""Timers that machines share as rows, in virtual time: who fires, what survives, and what people ask."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly.cluster.table import Ask, Claim, Switch
from duly.cluster_timers.timers import ClusterTimers
from duly.errors import StoreError
from duly.instant import SECOND_US, instant_of
from duly.store.history import Result, Span, WantedRuns
from duly.supervisor.results import RunResult
from duly.timers.requests import TimerError, TimerRefusal
from tests.worlds.shared_timers import EACH, JOBS, LEASE_US, LONG, TRUSTED_US, Machine, SharedWorld
from tests.worlds.timers import HOURLY, MINUTELY, daily, timer

FAILED = RunResult(Result.EXIT, 1)
RARELY: dict[str, Any] = {"on_calendar": daily(3)}
SECONDS_10 = timedelta(seconds=10)


@pytest.fixture
def world() -> Iterator[SharedWorld]:
    with SharedWorld() as world:
        yield world


def pair(world: SharedWorld, *timers: Any) -> tuple[Machine, Machine]:
    """Two machines with the same timers."""
    return world.node("a", *timers), world.node("b", *timers)


def begun(world: SharedWorld, machine: Machine, name: str = "t", job: str = "job0") -> None:
    """Have a machine run a job that lasts long."""
    machine.targets.lasts[job] = LONG
    world.do(machine.timers.trigger(name), within=timedelta(seconds=1))
    assert job in machine.targets.live


# --- who fires ---


def test_every_minute_is_answered_once(world: SharedWorld) -> None:
    """Of two machines one fires each minute of each timer."""
    pair(world, *EACH)
    world.until("12:03:30")
    for job in JOBS:
        assert [(when, why) for when, _, why in world.runs(job)] == [
            (f"12:0{minute}:00", "schedule") for minute in (1, 2, 3)
        ]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_timers_of_one_target(world: SharedWorld, is_enabled: bool) -> None:
    """Of two timers of one target that come due together one fires, and the other has a miss.

    One that is disabled does not keep the target from the other.
    """
    x = timer("x", "job0", on_calendar=MINUTELY, enabled=is_enabled)
    machines = pair(world, x, timer("y", "job0", on_calendar=MINUTELY))
    for machine in machines:
        machine.targets.lasts["job0"] = SECONDS_10
    world.until("12:03:30")
    misses = Counter(miss for machine in machines for miss in machine.misses)
    assert len(world.runs("job0")) == 3
    assert sum(misses.values()) == 3
    assert {reason for _, reason in misses} == {"overlap" if is_enabled else "disabled"}


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_overlap(world: SharedWorld, overlap: str) -> None:
    """What comes due while its timer runs is missed; or one run follows the long one within a second."""
    a = world.node("a", timer("t", "job0", on_calendar=MINUTELY, overlap=overlap))
    a.targets.lasts["job0"] = timedelta(seconds=170)
    world.until("12:03:20")
    a.targets.lasts["job0"] = timedelta(seconds=5)
    world.until("12:04:30")
    first, *queued, last = [when for when, _ in a.runs()]
    assert (first, last) == ("12:01:00", "12:04:00")
    assert set(queued) <= {"12:03:50", "12:03:51"}
    is_queued = overlap == "queue"
    assert (len(queued), len(a.told("TimerQueued"))) == (is_queued, is_queued)
    missed = [event.time.strftime("%H:%M:%S") for event in a.events if event.name == "TimerMissed"]
    assert missed == ([] if is_queued else ["12:02:00", "12:03:00"])


def test_one_lock_on_several_machines(world: SharedWorld) -> None:
    """Of timers with one lock one runs at a time, on whichever machine; a queued one follows."""
    x = timer("x", "job0", on_calendar=HOURLY, lock="disk", overlap="queue")
    y = timer("y", "job1", on_calendar=HOURLY, lock="disk", overlap="queue")
    a, b = pair(world, x, y)
    for machine in (a, b):
        machine.targets.lasts |= dict.fromkeys(("job0", "job1"), SECONDS_10)
    world.until("13:00:40")
    first, second = sorted(when for when, _, _ in world.runs())
    assert (first, second) in (("13:00:00", "13:00:10"), ("13:00:00", "13:00:11"))
    assert a.misses + b.misses == []


def test_target_that_runs_elsewhere(world: SharedWorld) -> None:
    """A due whose target another machine runs is a miss; what an interval counts from is the end there."""
    timers = [timer("x", "job0", **RARELY), timer("y", "job0", on_unit_active_sec=60)]
    a, b = pair(world, *timers)
    begun(world, a, "x")
    world.until("12:10:00")
    assert [when for when, _, _ in world.runs("job0")] == ["12:00:34"]
    a.targets.lasts["job0"] = timedelta(0)
    world.loop.within(lambda: a.targets.end("job0", RunResult(Result.SUCCESS, 0)))
    world.until("12:11:30")
    assert [(when, why) for when, _, why in world.runs("job0")][1:] == [("12:11:00", "interval")]
    assert a.misses + b.misses == []


@pytest.mark.parametrize(("off_h", "hour"), [(1, 13), (-2, 10)])
def test_a_host_clock_that_is_off(world: SharedWorld, off_h: int, hour: int) -> None:
    """The time of the database counts: a host whose clock is off fires when the others would."""
    a = world.node("a", timer("t", "job0", on_calendar=MINUTELY), off=timedelta(hours=off_h))
    world.until("12:02:30")
    assert a.runs() == [(f"{hour}:01:00", "schedule"), (f"{hour}:02:00", "schedule")]


def test_two_names_of_one_zone(world: SharedWorld) -> None:
    """Machines whose zones are called UTC and Etc/UTC have the same timers, and neither is behind."""
    minutely = timer("t", "job0", on_calendar=MINUTELY)
    a, b = world.node("a", minutely), world.node("b", minutely, zone=ZoneInfo("Etc/UTC"))
    assert b.told("ListReconciled") == []
    world.after(timedelta(minutes=1))
    assert not a.timers.is_behind


@pytest.mark.parametrize("off", [timedelta(0), timedelta(minutes=-20)])
def test_run_by_hand(world: SharedWorld, off: timedelta) -> None:
    """An interval counts from the end of a run by hand, on whatever machine and whatever its clock says."""
    b = world.node("b", timer("t", "job0", on_unit_active_sec=60), off=off)
    world.until("12:05:00")
    world.do(b.targets.by_hand("job0"))
    world.until("12:06:30")
    assert [why for _, why in b.runs()] == ["manual", "interval"]
    assert [each.fields["reason"] for each in b.events if each.name == "TimerFired"] == ["interval"]


def test_retry_goes_elsewhere(world: SharedWorld) -> None:
    """A retry that is pending comes on another machine if the one with the failure stops."""
    a = world.node("a", timer("t", "job0", **RARELY, retry_intervals_sec=(30.0,)))
    a.targets.ends["job0"] = [FAILED]
    world.do(a.timers.trigger("t"), within=timedelta(seconds=1))
    b = world.node("b", timer("t", "job0", **RARELY, retry_intervals_sec=(30.0,)))
    world.do(a.timers.stop())
    world.after(timedelta(seconds=40))
    assert [why for _, why in b.runs()] == ["retry"]


# --- deaths ---


@pytest.mark.parametrize("is_persistent", [True, False])
def test_failover(world: SharedWorld, is_persistent: bool) -> None:
    """What a dead machine ran is made up elsewhere once, if it is persistent; else it is noted as missed."""
    a, b = pair(world, timer("t", "job0", **RARELY, persistent=is_persistent))
    begun(world, a)
    number, _ = a.targets.live["job0"]
    a.die()
    world.after(timedelta(microseconds=LEASE_US + 2 * SECOND_US))
    assert [why for _, why in b.runs()] == (["catch-up"] if is_persistent else [])
    assert b.misses == ([] if is_persistent else [("t", "shutdown")])
    world.after(SECONDS_10)
    assert len(b.runs()) == int(is_persistent)
    cut = world.do(b.timers.past_runs(WantedRuns(run=("a", number), with_output=True)))
    assert [(run.timer, run.reason, run.result, run.output) for run in cut] == [
        ("t", "trigger", "interrupted", "")
    ]


def test_death_during_a_look(world: SharedWorld) -> None:
    """A machine that dies while it only looks at a timer has cut nothing off: nothing is made up."""
    a, b = pair(world, timer("t", "job0", on_startup_sec=0.5, on_unit_active_sec=3600))
    world.after(SECONDS_10)
    a.cable.loses, a.cable.is_cut_then = [Claim], True
    a.cable.carry_out(Ask(names=["t"], text="look"))
    world.loop.within(a.timers._poller.wake)
    world.after(timedelta(milliseconds=2))
    assert world.row("t").run_by == a.timers.node.id
    world.after(timedelta(seconds=20))
    assert len(world.runs()) == 1
    assert (a.misses, b.misses) == ([], [])


def test_trust_ends(world: SharedWorld) -> None:
    """When the lease can be trusted no more runs end at that very moment; the watchdog knows of it before."""
    a = world.node("a", timer("t", "job0", **RARELY))
    begun(world, a)
    a.cable.is_cut = True
    sent_us = a.trusts[-1] - TRUSTED_US
    world.after(timedelta(microseconds=a.trusts[-1] - world.steady.now_us - 1))
    assert (list(a.targets.live), sent_us <= world.steady.now_us) == (["job0"], True)
    world.after(timedelta(microseconds=1))
    assert (a.targets.live, a.targets.cuts) == ({}, 1)
    assert [each["runs"] for each in a.told("TrustLost")] == [["t"]]
    a.cable.is_cut = False
    a.targets.lasts["job0"] = timedelta(0)
    world.after(SECONDS_10)
    assert [why for _, why in a.runs()] == ["trigger", "catch-up"]


def test_a_return_waits_for_processes(world: SharedWorld) -> None:
    """A node whose runs were cut off comes back when their processes have ended, or after five seconds."""
    a = world.node("a", timer("t", "job0", **RARELY))
    begun(world, a)
    a.targets.cut_off = lambda: None  # type: ignore[method-assign]
    a.cable.is_cut = True
    world.after(timedelta(microseconds=TRUSTED_US))
    a.cable.is_cut = False
    world.after(timedelta(seconds=2))
    assert a.told("NodeReturned") == []
    world.after(timedelta(seconds=4))
    assert len(a.told("NodeReturned")) == 1


def test_end_that_cannot_be_written(world: SharedWorld) -> None:
    """An end that cannot be written at once is written when the database is back within the lease."""
    a = world.node("a", timer("t", "job0", on_calendar=MINUTELY))
    a.targets.lasts["job0"] = SECONDS_10
    world.until("12:01:09")
    a.cable.is_cut = True
    world.until("12:01:12")
    a.cable.is_cut = False
    world.until("12:01:20")
    assert world.state("t")["last_result"] == "success"
    assert a.told("TrustLost") == []


def test_stop_of_the_supervisor(world: SharedWorld) -> None:
    """While a supervisor ends its runs others have all else; what it cut off is made up elsewhere."""
    a, b = pair(world, timer("t", "job0", **RARELY), timer("u", "job1", on_calendar=MINUTELY))
    begun(world, a)
    a.targets.is_stopping = True
    world.until("12:02:30")
    assert [when for when, _ in b.runs("job1")] == ["12:01:00", "12:02:00"]
    assert b.runs("job0") == []
    a.targets.end("job0", RunResult(Result.INTERRUPTED))
    world.do(a.timers.close())
    world.after(timedelta(seconds=2))
    assert [why for _, why in b.runs("job0")] == ["catch-up"]
    assert [node.name for node in world.database.spaces["default"].nodes.values()] == ["b"]


def test_close_without_the_database(world: SharedWorld) -> None:
    """A machine that cannot reach the database stops all the same, and says why its end is not written."""
    a = world.node("a", timer("t", "job0", **RARELY))
    begun(world, a)
    a.cable.is_cut = True
    a.targets.end("job0", RunResult(Result.SUCCESS, 0))
    world.do(a.timers.close(), within=SECONDS_10)
    assert a.told("StoreFault") != []


# --- start-ups ---


@pytest.mark.parametrize("how", ["one by one", "together", "the first dies"])
def test_start_up_comes_once(world: SharedWorld, how: str) -> None:
    """A start-up trigger counts from the start of the first machine, and comes once.

    Machines that start in the same moment are one start-up; when the first one dies it comes elsewhere.
    """
    for each in [world.machine(name) for name in "abc"]:
        starting = each.start(timer("t", "job0", on_startup_sec=20))
        if how == "together":
            world.loop.create_task(starting)
        else:
            world.do(starting, within=timedelta(seconds=2))
    if how == "the first dies":
        world.machines[0].die()
    world.after(timedelta(minutes=2))
    assert [(when, why) for when, _, why in world.runs()] == [("12:00:50", "startup")]


@pytest.mark.parametrize("dies", [True, False])
def test_start_up_comes_again_for_a_new_cluster(world: SharedWorld, dies: bool) -> None:
    """When all machines are gone, also if they died a moment ago, the next one is a start-up again."""
    job = timer("t", "job0", on_startup_sec=20)
    a = world.node("a", job)
    world.after(timedelta(minutes=1))
    if dies:
        a.die()
    else:
        world.do(a.timers.close())
    b = world.machine("b")
    world.do(b.start(job), within=timedelta(seconds=15))
    world.after(timedelta(minutes=1))
    assert [why for _, why in b.runs()] == ["startup"]


def test_start_up_and_the_switch(world: SharedWorld) -> None:
    """What passed while the timers were off does not come; what lies ahead does."""
    jobs = [timer("t", "job0", on_startup_sec=20), timer("u", "job1", on_startup_sec=90)]
    a = world.node("a", *jobs)
    world.do(a.timers.stop())
    world.after(timedelta(minutes=1))
    b = world.machine("b")
    started_up_us = world.now_us() - 62 * SECOND_US
    world.do(b.timers.start(jobs, started_up_us=started_up_us), within=timedelta(seconds=2))
    world.after(timedelta(minutes=1))
    assert [(began.service, began.reason) for began in b.targets.began] == [("job1", "startup")]


def test_start_up_of_a_timer_that_comes_later(world: SharedWorld) -> None:
    """A start-up trigger of a new file comes if it still lies ahead, counted from the first machine."""
    a = world.node("a", timer("t", "job0", **RARELY))
    world.after(timedelta(seconds=28))
    new = [timer("u", "job1", on_startup_sec=20), timer("v", "job2", on_startup_sec=60)]
    world.do(a.timers.reload([timer("t", "job0", **RARELY), *new]))
    world.after(timedelta(minutes=2))
    assert a.runs() == [("12:01:30", "startup")]


# --- lists ---


def test_newer_list(world: SharedWorld) -> None:
    """Who has an older list fires what is the same in both, and switches and triggers nothing."""
    old = [timer("same", "job0", on_calendar=MINUTELY), timer("other", "job1", on_calendar=MINUTELY)]
    new = [old[0], timer("other", "job1", on_calendar=daily(4)), timer("new", "job2", on_calendar=MINUTELY)]
    a = world.node("a", *old)
    b = world.node("b", *new)
    world.until("12:01:30")
    assert a.timers.is_behind
    assert not b.timers.is_behind
    assert sorted(began.service for each in (a, b) for began in each.targets.began) == ["job0", "job2"]
    for call in (a.timers.trigger("other"), a.timers.disable("same")):
        with pytest.raises(TimerError, match="newer configuration"):
            world.do(call)
    world.do(b.timers.close())
    world.until("12:02:30")
    assert [began.service for began in a.targets.began][-1] == "job0"
    world.do(a.timers.reload(new))
    assert not a.timers.is_behind


def test_list_of_another_machine(world: SharedWorld) -> None:
    """Who reloads a list that another machine has brought tells of the timers that are other here now.

    A list that cannot be brought is refused, and can be brought later.
    """
    old = [timer("same", "job0", **RARELY), timer("other", "job1", **RARELY)]
    new = [old[0], timer("other", "job1", on_calendar=MINUTELY), timer("new", "job2", **RARELY)]
    a, b = pair(world, *old)
    a.cable.is_cut = True
    with pytest.raises(StoreError, match="out of reach"):
        world.do(a.timers.reload(new))
    a.cable.is_cut = False
    for machine in (a, b):
        world.do(machine.timers.reload(new))
    assert a.told("TimerRecalled") == []
    assert [each["timer"] for each in b.told("TimerRecalled")] == ["other", "new"]


def test_reload(world: SharedWorld) -> None:
    """A timer that is declared again keeps what it did; who is removed, added and changed is told."""
    a = world.node("a", timer("t", "job0", on_calendar=MINUTELY), timer("gone", "job1", **RARELY))
    world.until("12:01:30")
    world.do(a.timers.disable("t"))
    world.do(a.timers.reload([timer("t", "job2", on_calendar=MINUTELY), timer("new", "job1", **RARELY)]))
    state = world.state("t")
    assert (state["last_result"], world.row("t").target, world.row("t").enabled) == ("success", "job2", False)
    assert [each["timer"] for each in a.told("TimerOverridden")] == ["t"]
    assert [each["timer"] for each in a.told("TimerRemoved")] == ["gone"]
    assert [each["timer"] for each in a.told("TimerAdded")] == ["t", "gone", "new"]
    world.do(a.timers.enable("t"))
    world.until("12:02:30")
    assert a.runs("job2") == [("12:02:00", "schedule")]


def test_invalid_definition(world: SharedWorld) -> None:
    """What is known of a timer whose definition is invalid is kept for when that is mended."""
    a = world.node("a", timer("t", "job0", on_calendar=MINUTELY))
    world.until("12:01:30")
    world.do(a.timers.close())
    b = world.machine("b")
    world.do(b.start(timer("u", "job1", **RARELY), invalid=["t"]), within=timedelta(seconds=2))
    world.until("12:03:30")
    assert (b.runs(), b.timers.all()[0].name) == ([], "u")
    world.do(b.timers.reload([timer("u", "job1", **RARELY), timer("t", "job0", on_calendar=MINUTELY)]))
    world.until("12:04:40")
    assert b.runs("job0")[-1] == ("12:04:00", "schedule")


def test_list_of_another_application(world: SharedWorld) -> None:
    """A file that has none of the timers of living machines is refused at a start, in a sentence."""
    world.node("a", timer("t", "job0", **RARELY))
    b = world.machine("b")
    with pytest.raises(StoreError, match="has the timers of a, and this file has none of them"):
        world.do(b.start(timer("u", "job1", **RARELY)), within=timedelta(seconds=2))
    assert [node.name for node in world.database.spaces["default"].nodes.values()] == ["a"]


def test_damaged_row(world: SharedWorld) -> None:
    """A timer whose row cannot be read does not run until it is mended, and says so; the others run."""
    a = world.node("a", *EACH[:2])
    world.row("t0").state = '{"registered_us": "never"}'
    world.until("12:01:30")
    assert [began.service for began in a.targets.began] == ["job1"]
    assert list(a.timers.unreadable) == ["t0"]
    with pytest.raises(TimerError, match="damaged"):
        world.do(a.timers.trigger("t0"))
    world.row("t0").state = world.row("t1").state
    world.until("12:03:30")
    assert (a.timers.unreadable, len(a.told("StoreFault")), len(a.told("StoreRecovered"))) == ({}, 1, 1)
    assert a.runs("job0")[-1] == ("12:03:00", "schedule")


async def test_two_senders_send_each_message_once() -> None:
    """A start and an end of a run that send at the same time lose nothing and repeat nothing."""
    sent: list[str] = []

    async def do(ask: Ask) -> None:
        await asyncio.sleep(0)  # noqa: TID251 (the other sender has its turn)
        sent.append(ask.text)

    timers: Any = ClusterTimers.__new__(ClusterTimers)
    timers._asks = [Ask(names=["a"], text=str(number)) for number in range(5)]
    timers._asking = asyncio.Lock()
    timers._backend = SimpleNamespace(link=SimpleNamespace(do=do))
    timers._poller = SimpleNamespace(wake=lambda: None)
    await asyncio.gather(timers._send_asks(), timers._send_asks())
    assert (sent, timers._asks) == (["0", "1", "2", "3", "4"], [])


# --- by hand ---


def test_trigger(world: SharedWorld) -> None:
    """A timer is triggered on the machine that was asked, disabled or not; the answer is its run."""
    a, b = pair(world, timer("t", "job0", **RARELY, enabled=False))
    run = world.do(b.timers.trigger("t"), within=timedelta(seconds=1))
    assert [(began.run_id, began.reason) for began in b.targets.began] == [(run, "trigger")]
    assert a.runs() == []
    (record,) = [past.run for past in world.database.spaces["default"].runs]
    assert (record.result, record.cause, record.output) == ("success", "trigger", f"output of {run}")


def test_trigger_of_what_runs(world: SharedWorld) -> None:
    """A timer that runs, or whose target does, is not triggered, on whatever machine."""
    a, b = pair(world, timer("t", "job0", **RARELY), timer("u", "job0", **RARELY))
    begun(world, a)
    for machine in (a, b):
        for name in ("t", "u"):
            with pytest.raises(TimerError) as refusal:
                world.do(machine.timers.trigger(name), within=timedelta(seconds=3))
            assert refusal.value.kind is TimerRefusal.OVERLAP
    a.targets.end("job0", RunResult(Result.SUCCESS, 0))
    world.do(b.timers.trigger("u"), within=timedelta(seconds=1))


@pytest.mark.parametrize(
    ("state", "kind"),
    [("disabled", TimerRefusal.DISABLED_TARGET), ("missing", TimerRefusal.TARGET_NOT_FOUND)],
)
def test_trigger_of_a_target_that_cannot_run(world: SharedWorld, state: Any, kind: TimerRefusal) -> None:
    """A target that this machine cannot start is refused here."""
    a = world.node("a", timer("t", "job0", **RARELY))
    a.targets.states["job0"] = state
    with pytest.raises(TimerError) as refusal:
        world.do(a.timers.trigger("t"), within=timedelta(seconds=1))
    assert refusal.value.kind is kind
    world.after(SECONDS_10)
    assert a.runs() == []


def test_trigger_without_the_database(world: SharedWorld) -> None:
    """Who cannot reach the database is told so, and nothing is done later."""
    a = world.node("a", timer("t", "job0", **RARELY))
    a.cable.is_cut = True
    with pytest.raises(StoreError, match="out of reach"):
        world.do(a.timers.trigger("t"), within=timedelta(seconds=1))
    a.cable.is_cut = False
    world.after(timedelta(minutes=1))
    assert a.runs() == []


def test_unknown_and_closed(world: SharedWorld) -> None:
    """A timer that is in no list is refused, and so is everything when the timers are off."""
    a = world.node("a", timer("t", "job0", **RARELY))
    with pytest.raises(TimerError, match="There is no timer"):
        world.do(a.timers.trigger("nope"))
    asked = world.loop.create_task(a.timers.trigger("t"))
    world.do(a.timers.stop())
    for call in (asyncio.wait_for(asked, 1), a.timers.enable("t")):
        with pytest.raises(TimerError, match="switched off"):
            world.do(call)


def test_switch(world: SharedWorld) -> None:
    """A timer that is switched off is off everywhere, also during a run, and its dues are misses."""
    a, b = pair(world, timer("t", "job0", on_unit_active_sec=60), timer("u", "job1", on_calendar=MINUTELY))
    begun(world, a)
    world.do(b.timers.disable("t"))
    world.do(b.timers.disable("u"))
    assert [timer.is_enabled for timer in b.timers.all()] == [False, False]
    a.targets.lasts["job0"] = timedelta(0)
    a.targets.end("job0", RunResult(Result.SUCCESS, 0))
    world.until("12:05:30")
    assert (len(world.runs("job0")), world.runs("job1")) == (1, [])
    assert {each for machine in (a, b) for each in machine.misses} == {("u", "disabled")}
    world.do(a.timers.enable("t"))
    world.after(timedelta(seconds=2))
    assert [why for _, _, why in world.runs("job0")][1:] == ["interval"]


def test_a_switch_that_cannot_be_written(world: SharedWorld) -> None:
    """A switch without an answer is an error; an end of a target is told when the database is back."""
    a = world.node("a", timer("t", "job0", on_unit_active_sec=60))
    a.cable.loses = [Switch]
    with pytest.raises(StoreError):
        world.do(a.timers.disable("t"))
    world.do(a.timers.enable("t"))
    a.cable.loses = [Ask]
    world.do(a.targets.by_hand("job0"))
    world.after(timedelta(seconds=90))
    assert [why for _, why in a.runs()] == ["manual", "interval"]


def test_what_is_shown(world: SharedWorld) -> None:
    """Every machine shows every timer, who runs it, and when it comes next."""
    machines = pair(world, timer("t", "job0", **RARELY), timer("u", "job1", on_calendar=MINUTELY))
    begun(world, machines[0])
    for machine in machines:
        world.do(machine.timers.refresh())
        t, u = machine.timers.all()
        assert (t.name, t.running_run is not None, machine.timers.runs_on(t)) == ("t", True, "a")
        assert (u.name, machine.timers.runs_on(u)) == ("u", "")
        assert (machine.timers.next_of(u, world.now_us()) or 1) % (60 * SECOND_US) == 0
    machines[0].targets.end("job0", RunResult(Result.SUCCESS, 0))
    world.after(timedelta(seconds=2))
    assert [machine.timers.all()[0].last_result for machine in machines] == ["success", "success"]


def test_runs_of_others(world: SharedWorld) -> None:
    """Every machine shows the ended runs of the others, in its own time, and finds one by its number."""
    timers = timer("t", "job0", **RARELY), timer("u", "job1", **RARELY)
    a, b = world.node("a", *timers), world.node("b", *timers, off=timedelta(hours=1))

    def shown(by: Machine = b, **wanted: Any) -> Any:
        return world.do(by.timers.past_runs(WantedRuns(**{"limit": 9, "with_output": True, **wanted})))

    begun(world, a)
    begun(world, a, "u", "job1")
    number, _ = a.targets.live["job0"]
    assert shown() == []
    for job, result in (("job0", RunResult(Result.SUCCESS, 0)), ("job1", FAILED)):
        a.targets.end(job, result)
        world.after(timedelta(seconds=2))
    second, first = shown()
    assert (second.timer, second.result) == ("u", "exit")
    assert (first.id, first.timer, first.machine, first.reason) == (number, "t", "a", "trigger")
    assert (first.result, first.exit_code, first.output) == ("success", 0, f"output of {number}")
    assert 0 <= instant_of(b.host.now()) - first.started_us < 10 * SECOND_US
    assert shown(timers=["t"]) == shown(run=("a", number)) == shown(before=second.shared_id) == [first]
    assert shown(before_us=second.started_us) == [first]
    assert shown(since_us=first.started_us + 1) == [second]
    assert shown(run=("a", number + 99)) == []
    assert [[run.is_here for run in shown(by)] for by in (a, b)] == [[True] * 2, [False] * 2]
    span = Span(first.started_us - 5 * SECOND_US, second.started_us + SECOND_US, 60 * SECOND_US)
    t, u = sorted(world.do(b.timers.past_buckets(["t", "u"], span)), key=lambda each: each.service)
    assert [(each.part, each.number, each.result) for each in (t, u)] == [(0, 1, "success"), (0, 1, "exit")]
    assert (t.service, t.run, t.machine) == ("t", number, "a")
    assert 0 <= first.started_us - t.first_us < SECOND_US, "in the time of this machine"


def test_the_end_of_an_output_is_shared(world: SharedWorld) -> None:
    """Of a long output the database has the last 64 KiB, from a whole character on."""
    a, b = pair(world, timer("t", "job0", **RARELY))
    a.targets.output = "ü" * 40_000 + "end"
    world.do(a.timers.trigger("t"), within=timedelta(seconds=1))
    (run,) = world.do(b.timers.past_runs(WantedRuns(with_output=True)))
    assert run.output == "ü" * 32_766 + "end"


def test_runs_of_others_without_the_database(world: SharedWorld) -> None:
    """A machine that gets no answers, or has left, does not ask for runs: it says so at once."""
    a, b = pair(world, timer("t", "job0", **RARELY))
    a.cable.is_cut = True
    world.after(timedelta(microseconds=TRUSTED_US))
    with pytest.raises(StoreError, match="does not answer"):
        world.do(a.timers.past_runs(WantedRuns()))
    world.do(b.timers.stop())
    with pytest.raises(StoreError, match="does not answer"):
        world.do(b.timers.past_runs(WantedRuns()))


# --- the timer switch ---


def test_switched_off_with_a_run(world: SharedWorld) -> None:
    """A run that goes on while the timers are off keeps its timer; its end is written, not announced."""
    a, b = pair(world, timer("t", "job0", on_calendar=MINUTELY), timer("u", "job1", on_calendar=MINUTELY))
    begun(world, a)
    world.do(a.timers.stop())
    assert a.timers.is_lingering
    waiting = world.loop.create_task(a.timers.linger())
    a.events.clear()
    world.until("12:02:30")
    assert b.runs() == [("12:01:00", "schedule"), ("12:02:00", "schedule")]
    a.targets.end("job0", RunResult(Result.SUCCESS, 0))
    world.until("12:02:40")
    assert waiting.done()
    assert [event.name for event in a.events if event.name.startswith("Timer")] == []
    assert world.state("t")["last_result"] == "success"
    world.until("12:03:30")
    assert b.runs("job0") == [("12:03:00", "schedule")]


def test_stopped_while_it_starts(world: SharedWorld) -> None:
    """Timers that are stopped before they are at work do not begin, and leave no node behind."""
    a, b = world.machine("a"), world.machine("b")
    world.do(a.timers.stop())
    world.do(a.start(*EACH))
    starting = world.loop.create_task(b.start(*EACH))
    world.after(timedelta(milliseconds=1))
    world.do(b.timers.stop(), within=timedelta(seconds=2))
    world.until("12:01:30")
    assert starting.done()
    assert (world.runs(), world.database.spaces["default"].nodes) == ([], {})


# --- fixed rates ---


def test_a_fixed_rate_on_several_machines(world: SharedWorld) -> None:
    """A rate counts from when the timer was declared to all, and goes on when a machine dies."""
    a, _ = pair(world, timer("t", "job0", every=90, random_delay_sec=30))
    world.until("12:05:00")
    a.die()
    world.until("12:12:00")
    times = [timedelta(minutes=int(when[3:5]), seconds=int(when[6:8])) for when, _, _ in world.runs("job0")]
    phases = [time % timedelta(seconds=90) for time in times]
    assert len(times) >= 7
    # The one that the dead machine was to answer may be late by its lease.
    assert sum(phase != phases[0] for phase in phases) <= 1
