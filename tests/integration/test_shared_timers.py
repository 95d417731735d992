"""Timers that machines share, in virtual time: trust, failover, start-up, and clocks that are off."""

from datetime import timedelta
from typing import Any

import pytest

from duly.config.schema import Timer
from duly.instant import SECOND_US, duration_us, instant_of
from tests.shared_world import EACH, JOBS, LONG, SHARDS, TRUSTED_US, SharedWorld, each
from tests.timer_world import HOUR, MINUTE, SECOND, daily, timer


def test_one_machine_has_all() -> None:
    """A machine that is alone fires every timer, as it would with a file."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        world.until("12:02:30")
        assert a.held == list(range(SHARDS))
        for job in JOBS:
            assert a.runs(job) == [("12:01:00", "schedule"), ("12:02:00", "schedule")]
        assert world.row("t0")["last_result"] == "success"


def test_two_share() -> None:
    """Of two machines each fires what it holds; every minute of every timer is answered once."""
    with SharedWorld() as world:
        a, b = world.member("a", *EACH), world.member("b", *EACH)
        world.until("12:03:30")
        assert sorted(a.held + b.held) == list(range(SHARDS))
        assert len(a.held) == len(b.held) == SHARDS // 2
        for job in JOBS:
            assert sorted(a.runs(job) + b.runs(job)) == [(f"12:0{n}:00", "schedule") for n in (1, 2, 3)]


# --- trust ---


def test_trust_ends() -> None:
    """When the lease can be trusted no more runs end at that very moment, and nothing of them is written."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = LONG
        world.until("12:01:01")
        assert list(a.targets.live) == [JOBS[0]]
        last_us = max(seat.beaten_us for seat in world.table.members.values())
        a.cable.is_cut = True
        before = world.rows()
        until_us = a.trusts[-1]
        assert until_us - (last_us - world.now_us() + world.steady.now_us) == TRUSTED_US
        world.loop.run_until(until_us - 1)
        assert list(a.targets.live) == [JOBS[0]]
        world.loop.run_until(until_us)
        assert list(a.targets.live) == []
        assert a.told("ShardsLost") == [
            {"shards": [[n, 1] for n in range(SHARDS)], "reason": "the lease ran out"}
        ]
        world.until("12:05:30")
        assert a.runs(JOBS[1]) == [("12:01:00", "schedule")]
        assert world.rows() == before
        assert world.row("t0")["running_run"] is not None


def test_trust_comes_back() -> None:
    """A machine that lost its lease joins anew, finds its own run interrupted, and makes it up once."""
    with SharedWorld() as world:
        a = world.member("a", *each(on_calendar=daily(13)))
        a.targets.lasts[JOBS[0]] = LONG
        world.until("13:00:10")
        a.cable.is_cut = True
        world.until("13:00:40")
        a.targets.lasts[JOBS[0]] = SECOND
        a.cable.is_cut = False
        world.until("13:02:00")
        assert [reason for _, reason in a.runs(JOBS[0])] == ["schedule", "catch-up"]
        assert [reason for _, reason in a.runs(JOBS[1])] == ["schedule"]
        assert world.row("t0")["last_result"] == "success"
        assert len(a.told("MemberJoined")) == 2


def test_waking_up_beyond_the_lease() -> None:
    """A machine that stood still for longer than its lease starts nothing before it has joined anew."""
    with SharedWorld("12:00:50") as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = LONG
        world.until("12:01:58")
        mark = len(a.events)
        world.freeze(20 * SECOND)
        world.until("12:02:40")
        names = [event.name for event in a.events[mark:]]
        joined = names.index("MemberJoined")
        assert "ShardsLost" in names[:joined]
        assert "TimerFired" not in names[:joined]
        assert len(a.runs(JOBS[1])) == 2


def test_what_the_board_has_forgotten() -> None:
    """A machine that finds its shards with somebody else, lease or not, ends what it runs and joins anew."""
    with SharedWorld() as world:
        a = world.member("a", *each(on_calendar=daily(13)))
        a.targets.lasts[JOBS[0]] = LONG
        world.until("13:00:10")
        assert list(a.targets.live) == [JOBS[0]]
        world.table.shards[0].holder = None
        world.table.shards[0].term += 5
        world.after(2 * SECOND)
        assert a.targets.cuts == 1
        assert a.told("ShardsLost")[0]["reason"] == "they are held by another member"
        world.after(MINUTE)
        assert [reason for _, reason in a.runs(JOBS[0])] == ["schedule", "catch-up"]


def test_short_cut_costs_nothing() -> None:
    """An end that could not be written at once is written when the board is back within the lease."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = 2 * SECOND
        world.until("12:01:01")
        a.cable.is_cut = True
        world.until("12:01:03")
        a.cable.is_cut = False
        world.until("12:01:59")
        assert world.row("t0")["last_result"] == "success"
        assert a.told("ShardsLost") == []
        assert a.runs(JOBS[0]) == [("12:01:00", "schedule")]


def test_an_error_that_nobody_expects() -> None:
    """A machine in which something goes wrong that should not goes on, or lets others: no shard is lost."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        world.until("12:01:10")
        a.cable.error = RuntimeError("never seen before")
        b = world.member("b", *EACH)
        world.until("12:03:30")
        assert len(a.held) == len(b.held) == SHARDS // 2
        for job in JOBS:
            assert len(a.runs(job) + b.runs(job)) == 3


def test_failover() -> None:
    """What a dead machine ran is made up elsewhere once, if it is persistent; else it is noted as missed."""
    with SharedWorld() as world:
        lax = [
            timer(f"t{n}", job, on_calendar=daily(13), persistent=n in {0, 2}) for n, job in enumerate(JOBS)
        ]
        a = world.member("a", *lax)
        for job in JOBS:
            a.targets.lasts[job] = LONG
        world.until("13:00:10")
        b = world.member("b", *lax)
        b.targets.outcomes = dict.fromkeys(range(100), "success")  # of runs of its own
        assert b.held == []
        a.die()
        world.until("13:01:00")
        assert b.held == list(range(SHARDS))
        assert [reason for _, reason in b.runs(JOBS[0]) + b.runs(JOBS[2])] == ["catch-up", "catch-up"]
        assert b.runs(JOBS[1]) + b.runs(JOBS[3]) == []
        assert sorted(b.misses) == [("t1", "shutdown"), ("t3", "shutdown")]
        world.until("14:00:00")
        assert len(b.runs()) == 2


def test_interval_goes_on_elsewhere() -> None:
    """An interval counts from the end of the last run, on whichever machine that was."""
    with SharedWorld() as world:
        pace = each(on_calendar=daily(13), on_unit_active_sec=600)
        a = world.member("a", *pace)
        world.until("13:00:30")
        b = world.member("b", *pace)
        world.until("13:01:00")
        a.die()
        world.until("13:09:59")
        assert b.runs() == []
        world.until("13:10:01")
        assert {when for when, _ in b.runs()} == {"13:10:00"}
        assert len(b.runs()) == SHARDS


def test_close_while_the_lease_runs_out() -> None:
    """A machine whose lease runs out while it stops, with a run that takes its time, stops all the same."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        for job in JOBS:
            a.targets.lasts[job] = LONG
        world.until("12:01:01")
        a.cable.is_cut = True
        a.targets.is_stopping = True
        world.do(a.timers.close(), within=MINUTE)
        assert a.targets.live == {}
        assert a.told("StoreFault", "BoardFault")


def test_close_while_a_write_hangs() -> None:
    """A machine whose lease runs out while it writes what it is about to give away stops all the same."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = 2 * SECOND
        world.until("12:01:01")
        a.cable.is_cut = True
        world.after(3 * SECOND / 2)
        a.cable.latency_s = 20
        a.targets.is_stopping = True
        world.do(a.timers.close(), within=2 * MINUTE)
        assert a.told("ShardsLost")


# --- start-up ---


def test_start_up_comes_once() -> None:
    """A start-up trigger comes for the first machine of a cluster, and not for those that join it."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=10)
        a = world.member("a", *definitions)
        world.after(MINUTE)
        b = world.member("b", *definitions)
        world.after(MINUTE)
        assert [reason for _, reason in a.runs()] == ["startup"] * SHARDS
        a.die()
        world.after(MINUTE)
        assert b.held == list(range(SHARDS))
        assert b.runs() == []


def test_start_up_comes_again_for_a_new_cluster() -> None:
    """When all machines are gone the first to come back is a start-up again."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=10)
        world.do(world.member("a", *definitions).timers.stop())
        world.after(MINUTE)
        b = world.member("b", *definitions)
        world.after(MINUTE)
        assert [reason for _, reason in b.runs()] == ["startup"] * SHARDS


def test_start_up_is_not_lost_in_a_move() -> None:
    """A start-up trigger that has yet to come does not keep its shard from moving, and comes there, once."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=60)
        a = world.member("a", *definitions)
        world.after(10 * SECOND)
        b = world.member("b", *definitions)
        world.after(20 * SECOND)
        assert len(a.held) == len(b.held) == SHARDS // 2
        world.after(2 * MINUTE)
        assert a.runs() == b.runs() == [("12:01:30", "startup")] * (SHARDS // 2)
        assert {began.service for began in a.targets.began + b.targets.began} == set(JOBS)
        a.die()
        world.after(MINUTE)
        assert b.held == list(range(SHARDS))
        assert len(b.runs()) == SHARDS // 2


@pytest.mark.parametrize("after_sec", [20, 60], ids=["while nobody holds it", "later"])
def test_start_up_of_a_machine_that_dies(after_sec: int) -> None:
    """When the first machine dies before its start-up triggers came they come elsewhere: intervals begin."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=after_sec, on_unit_active_sec=600)
        a = world.member("a", *definitions)
        b = world.member("b", *definitions)
        world.after(19 * SECOND)
        a.die()
        b.die()
        c = world.member("c", *definitions)
        world.after(2 * MINUTE)
        assert [[reason for _, reason in c.runs(job)] for job in JOBS] == [["startup"]] * SHARDS
        world.after(10 * MINUTE)
        assert [[reason for _, reason in c.runs(job)] for job in JOBS] == [["startup", "interval"]] * SHARDS


def test_start_up_of_timers_that_come_later() -> None:
    """Counted from the start-up too, a trigger of a new file comes if that still lies ahead, anywhere."""
    with SharedWorld() as world:
        a, b = world.member("a", *each(on_calendar=daily(9))), world.member("b", *each(on_calendar=daily(9)))
        world.after(30 * SECOND)
        assert len(a.held) == len(b.held) == SHARDS // 2
        new = [*each(on_startup_sec=10), *(timer(f"{job}-2", job, on_startup_sec=90) for job in JOBS)]
        for member in (a, b):
            world.do(member.timers.reload(new))
        world.after(2 * MINUTE)
        assert a.runs() + b.runs() == [("12:02:00", "startup")] * SHARDS
        a.die()
        world.after(MINUTE)
        assert (b.held, len(b.runs())) == (list(range(SHARDS)), SHARDS // 2)


def test_start_up_and_a_gate_that_was_closed() -> None:
    """What passed while the gate was closed everywhere does not come, also not where its shard goes then."""
    with SharedWorld() as world:
        definitions = [*each(on_startup_sec=20), *(timer(f"{job}-2", job, on_startup_sec=90) for job in JOBS)]
        a = world.member("a", *definitions)
        started_up_us = instant_of(a.host.now())
        world.after(10 * SECOND)
        world.do(a.timers.stop())
        world.after(20 * SECOND)
        a = world.machine("a")
        world.do(a.timers.start(definitions, started_up_us=started_up_us))
        b = world.member("b", *definitions)
        world.after(20 * SECOND)
        assert len(a.held) == len(b.held) == SHARDS // 2
        assert a.runs() + b.runs() == []
        world.after(MINUTE)
        assert a.runs() == b.runs() == [("12:02:00", "startup")] * (SHARDS // 2)


def mended(world: SharedWorld, number: int = 0, **options: Any) -> tuple[list[Timer], list[Timer]]:
    """The timers of a cluster that is gone: all but one, which is invalid for now, and all."""
    definitions = each(**options)
    before = world.member("before", *definitions, timer("more", JOBS[3], on_calendar=daily(9)))
    world.after(20 * SECOND)
    world.do(before.timers.stop())
    return definitions[:number] + definitions[number + 1 :], definitions


@pytest.mark.parametrize("number", [0, 3], ids=["on the first machine", "on the second"])
@pytest.mark.parametrize(("after_sec", "comes"), [(10, 0), (90, 0), (150, 1)])
@pytest.mark.parametrize("more", [{}, {"on_calendar": daily(9)}], ids=["alone", "with a calendar"])
def test_start_up_of_a_timer_that_is_mended(
    number: int, after_sec: int, comes: int, more: dict[str, Any]
) -> None:
    """A start-up trigger that passed while its timer was invalid does not come when that is mended."""
    with SharedWorld() as world:
        bad, good = mended(world, number, on_startup_sec=after_sec, **more)
        members = [world.machine(name) for name in "ab"]
        for member in members:
            world.do(member.start(*bad, invalid={f"t{number}"}))
            world.after(MINUTE)
        for member in members:
            world.do(member.timers.reload(good))
        world.after(2 * MINUTE)
        began = [began.service for member in members for began in member.targets.began]
        assert sorted(began) == sorted([*(item.target for item in bad), *[JOBS[number]] * comes])
        c = world.member("c", *good)
        for member in members:
            member.die()
        world.after(MINUTE)
        assert (c.held, c.runs()) == (list(range(SHARDS)), [])


@pytest.mark.parametrize("how", ["given", "stopped", "ended"])
@pytest.mark.parametrize("more", [{}, {"on_calendar": daily(9)}], ids=["alone", "with a calendar"])
def test_start_up_of_a_timer_that_is_mended_elsewhere(how: str, more: dict[str, Any]) -> None:
    """Nor does it come on a machine that never had it invalid, and gets it from one that had."""
    with SharedWorld() as world:
        bad, good = mended(world, on_startup_sec=10, **more)
        a = world.machine("a")
        world.do(a.start(*bad, invalid={"t0"}))
        world.after(MINUTE)
        assert len(a.runs()) == SHARDS - 1
        b = world.machine("b")
        joining = world.loop.create_task(b.start(*good))
        if how == "stopped":
            world.do(a.timers.stop())
        elif how == "ended":
            a.targets.is_stopping = True
            world.do(a.timers.close())
        world.after(MINUTE)
        assert joining.done()
        assert (b.held, b.runs()) == (list(range(SHARDS)), [])


def test_slots_of_a_timer_that_is_mended_elsewhere() -> None:
    """A slot that passed while a timer was invalid is made up when that is mended, on whichever machine."""
    with SharedWorld() as world:
        bad, good = mended(world, on_startup_sec=10, on_calendar=daily(13))
        a = world.machine("a")
        world.do(a.start(*bad, invalid={"t0"}))
        world.until("13:10:00")
        b = world.member("b", *good)
        world.after(MINUTE)
        assert b.held == list(range(SHARDS))
        assert [reason for _, reason in b.runs(JOBS[0])] == ["catch-up"]
        assert len(b.runs()) == 1


def test_start_up_of_machines_that_start_together() -> None:
    """Machines that start in the same moment are a start-up too: each trigger comes once."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=10)
        members = [world.machine(name) for name in "abc"]
        for member in members:
            member.cable.latency_s = 0.01
        starting = [world.loop.create_task(member.start(*definitions)) for member in members]
        world.after(MINUTE)
        assert [task.result() for task in starting] == [None] * 3
        assert [sum(len(member.runs(job)) for member in members) for job in JOBS] == [1] * SHARDS


@pytest.mark.parametrize(("slow_s", "ago"), [(0.1, 0), (0.3, 0), (0.8, 0), (0.3, 30)])
@pytest.mark.parametrize("is_known", [False, True], ids=["new", "changed"])
def test_start_up_with_a_first_machine_that_is_slow(slow_s: float, ago: int, *, is_known: bool) -> None:
    """A trigger that comes before its timer is first put to work comes all the same, on whichever machine."""
    with SharedWorld() as world:
        if is_known:
            world.do(world.member("before", *each(on_startup_sec=9)).timers.stop())
        world.after(MINUTE)
        definitions = each(on_startup_sec=0.1)
        members = [world.machine(name) for name in "abc"]
        starting = []
        for member in members:
            member.cable.latency_s = 0.01
            started_up_us = instant_of(member.host.now()) - ago * SECOND_US
            start = member.timers.start(definitions, started_up_us=started_up_us, is_start_up=True)
            starting.append(world.loop.create_task(start))
            world.after(SECOND / 50)
            members[0].cable.latency_s = slow_s
        assert [seat.name for seat in world.table.members.values()] == ["a", "b", "c"]
        world.after(MINUTE)
        assert [task.result() for task in starting] == [None] * 3
        began = [(began.service, began.reason) for member in members for began in member.targets.began]
        assert sorted(began) == sorted((job, "startup") for job in JOBS)


def test_start_up_with_a_machine_that_comes_a_moment_later() -> None:
    """Nor is a trigger lost to one that finds the list of the first there, and takes shards before it."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=0.1)
        a, b = world.machine("a"), world.machine("b")
        a.cable.latency_s = 0.3
        starting = world.loop.create_task(a.start(*definitions))
        while not any(seat.edition for seat in world.table.members.values()):
            world.after(SECOND / 10)
        world.do(b.start(*definitions))
        assert (a.held, len(b.held)) == ([], SHARDS // 2)
        world.after(MINUTE)
        assert starting.done()
        began = [(began.service, began.reason) for began in a.targets.began + b.targets.began]
        assert sorted(began) == sorted((job, "startup") for job in JOBS)


def test_start_up_of_a_machine_that_brings_a_later_list() -> None:
    """What is new in the file of a machine that is started later owes no start-up: others are at work."""
    with SharedWorld() as world:
        a = world.member("a", *each(on_calendar=daily(9)))
        world.after(MINUTE)
        more = [timer(f"{job}-2", job, on_startup_sec=10) for job in JOBS]
        b = world.member("b", *each(on_startup_sec=10), *more)
        world.after(MINUTE)
        assert (b.held, a.runs() + b.runs()) == (list(range(SHARDS)), [])


def test_start_up_of_a_later_list_in_a_shard_that_is_taken() -> None:
    """What is new in a later file owes no start-up, also not in a shard that is taken with that file."""
    with SharedWorld() as world:
        members = [world.machine(name) for name in "ab"]
        starting = [world.loop.create_task(member.start(*each(on_calendar=daily(9)))) for member in members]
        world.after(MINUTE)
        assert [task.done() for task in starting] == [True, True]
        for hour, member in enumerate(members):
            world.do(member.timers.reload(each(on_startup_sec=10, on_calendar=daily(hour))))
            world.after(MINUTE)
            assert member.held == list(range(SHARDS))
        assert [member.runs() for member in members] == [[], []]


# --- clocks ---


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_host_clock_that_is_off(off: timedelta) -> None:
    """The time of the board counts: a host whose clock is an hour off fires when the others would."""
    with SharedWorld() as world:
        definitions = each(on_calendar=daily(13), on_unit_active_sec=600)
        a, b = world.member("a", *definitions, off=off), world.member("b", *definitions)
        world.until("13:00:05")
        assert len(a.held) == len(b.held) == SHARDS // 2
        shown = (world.start + off).strftime("%H")
        assert {when[:2] for when, _ in a.runs()} == {f"{int(shown) + 1:02}"}
        assert {when for when, _ in b.runs()} == {"13:00:00"}
        assert len(a.runs()) == len(b.runs()) == SHARDS // 2
        world.until("13:10:05")
        assert len(a.runs()) == len(b.runs()) == SHARDS
        a.die()
        world.until("13:20:10")
        assert [len(b.runs(job)) for job in JOBS[:2]] == [1, 1]
        assert all(when in {"13:20:00", "13:10:00", "13:00:00"} for when, _ in b.runs())


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_runs_by_hand_on_a_host_that_is_off(off: timedelta) -> None:
    """An interval counts from the end of a run by hand, also one before the timers began."""
    with SharedWorld() as world:
        a = world.machine("a", off=off)
        a.targets.last_ends[JOBS[0]] = instant_of(a.host.now())
        world.after(5 * MINUTE)
        world.do(a.start(*each(on_unit_active_sec=600)))
        world.do(a.targets.by_hand(JOBS[1]))
        world.until("12:10:29")
        assert a.runs(JOBS[0]) == []
        world.until("12:10:31")
        assert [reason for _, reason in a.runs(JOBS[0])] == ["interval"]
        world.until("12:15:29")
        assert [reason for _, reason in a.runs(JOBS[1])] == ["manual"]
        world.until("12:15:31")
        assert [reason for _, reason in a.runs(JOBS[1])] == ["manual", "interval"]


def test_a_host_clock_that_is_set() -> None:
    """Setting a host's clock changes nothing: no minute is skipped or answered twice."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        world.until("12:01:30")
        a.host.step(duration_us(HOUR))
        world.until("12:03:30")
        a.host.step(-duration_us(2 * HOUR))
        world.until("12:05:30")
        assert [len(a.runs(job)) for job in JOBS] == [5] * SHARDS
        assert {when[3:] for when, _ in a.runs()} == {f"0{n}:00" for n in range(1, 6)}


def test_interval_after_a_first_run_that_was_cut_off() -> None:
    """A timer whose only run was cut off elsewhere counts its interval from when that began."""
    with SharedWorld() as world:
        pace = each(on_calendar=daily(13), on_unit_active_sec=600, persistent=False)
        a = world.member("a", *pace)
        for job in JOBS:
            a.targets.lasts[job] = LONG
        world.until("13:00:30")
        b = world.member("b", *pace)
        a.die()
        world.until("13:09:59")
        assert b.runs() == []
        world.until("13:10:01")
        assert len(b.runs()) == SHARDS
