"""Timers that machines share, in virtual time: which list is in effect, and how shards move."""

from datetime import timedelta

import pytest

from duly.config.schema import Timer
from duly.instant import duration_us
from duly.store.board import shard_of
from duly.timers.errors import TimerError
from tests.shared_world import EACH, JOBS, LONG, SHARDS, SharedWorld, each
from tests.timer_world import EXIT, INTERRUPTED, MINUTE, MINUTELY, SECOND, SUCCESS, daily, timer

# --- lists ---


def changed(definitions: list[Timer]) -> list[Timer]:
    """The same list, but for the last one, which is another, and the first, which is not there."""
    return [*definitions[1:-1], timer(definitions[-1].id, JOBS[-1], on_calendar=daily(9))]


def test_start_by_an_older_list_is_refused() -> None:
    """A list that a machine has not heard of keeps it from starting; ends are written all the same."""
    with SharedWorld("12:00:59") as world:
        old = each(on_calendar=(MINUTELY,), on_unit_active_sec=3600)
        a = world.member("a", *old)
        a.targets.lasts[JOBS[0]] = SECOND / 5
        world.until("12:01:00")
        assert list(a.targets.live) == [JOBS[0]]
        b = world.member("b", *changed(old))
        began = len(a.targets.began)
        asked = world.loop.create_task(a.timers.trigger("t1"))
        world.after(timedelta(0))
        assert len(a.targets.began) == began
        world.after(SECOND / 2)
        assert world.row("t0")["last_result"] == "success"
        world.after(5 * SECOND)
        assert a.cable.refused == [True]
        assert len(a.targets.began) == began
        assert [facts["newest"] for facts in a.told("EditionSuperseded")] == [2]
        with pytest.raises(TimerError, match="on its way from one machine to another"):
            asked.result()
        assert b.held == list(range(SHARDS))


def test_end_by_an_older_list_is_written() -> None:
    """The end of a run is written at once, whether or not its machine has heard of a newer list."""
    with SharedWorld("12:00:59") as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = SECOND / 5
        world.until("12:01:00")
        world.member("b", *changed(EACH))
        world.after(SECOND / 5)
        assert a.told("EditionSuperseded") == []
        assert a.cable.refused == []
        assert world.row("t0")["last_result"] == "success"


def test_newer_list_takes_effect() -> None:
    """Who has the older list starts nothing and lets what runs end; its shards go to who has the newer."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[1]] = 90 * SECOND
        world.until("12:01:10")
        b = world.member("b", *changed(EACH))
        world.until("12:02:20")
        assert a.held == [1]
        assert b.held == [0, 2, 3]
        with pytest.raises(TimerError, match="other machines have a newer configuration; reload this one"):
            world.do(a.timers.trigger("t1"))
        assert a.runs(JOBS[1]) == [("12:01:00", "schedule")]
        assert b.runs() == [("12:02:00", "schedule")]
        world.until("12:04:00")
        assert a.held == []
        assert a.targets.cuts == 0
        assert b.runs(JOBS[0]) == []
        (late, reason), *punctual = b.runs(JOBS[1])
        assert ("12:02:30" < late < "12:02:40", reason) == (True, "schedule")
        assert punctual == [("12:03:00", "schedule"), ("12:04:00", "schedule")]
        assert len(a.runs()) == SHARDS
        world.do(a.timers.reload(changed(EACH)))
        world.until("12:06:00")
        assert len(a.held) == len(b.held) == SHARDS // 2
        assert len(a.runs()) > SHARDS


def test_same_list_a_moment_later() -> None:
    """A machine that is reloaded before it has heard of the new list of another takes it up at once."""
    with SharedWorld() as world:
        a, b = world.member("a", *EACH), world.member("b", *EACH)
        world.until("12:00:50")
        for member in (a, b):
            world.do(member.timers.reload([*EACH, timer("more", JOBS[3], on_calendar=daily(9))]))
        assert a.told("EditionSuperseded") + b.told("EditionSuperseded") == []
        assert {state.name for state in b.timers.all()} >= {"more"}
        world.until("12:01:30")
        assert len(a.runs()) == len(b.runs()) == SHARDS // 2


def test_list_of_the_dead() -> None:
    """When nobody with the newer list is left, the older one runs what that left as it was, and no more."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        b = world.member("b", *changed(EACH))
        world.until("12:01:30")
        assert b.held == list(range(SHARDS))
        world.do(b.timers.stop())
        world.until("12:03:30")
        assert a.held == list(range(SHARDS))
        assert [a.runs(job) for job in (JOBS[0], JOBS[3])] == [[], []]
        for job in JOBS[1:3]:
            assert a.runs(job) == [("12:02:00", "schedule"), ("12:03:00", "schedule")]
        assert {facts["timer"] for facts in a.told("TimerSkipped")} == {"t0", "t3"}
        world.do(a.timers.reload(EACH))
        world.until("12:05:30")
        assert [len(a.runs(job)) for job in JOBS] == [2, 4, 4, 2]


def test_same_list_in_another_order() -> None:
    """The order of the timers in the file makes no other list of it."""
    with SharedWorld() as world:
        a, b = world.member("a", *EACH), world.member("b", *reversed(EACH))
        world.until("12:01:30")
        assert len(a.held) == len(b.held) == SHARDS // 2
        assert a.told("EditionSuperseded") + b.told("EditionSuperseded") == []


# --- moves ---


def test_a_shard_with_a_run_is_kept() -> None:
    """A shard in which something runs is not given to a machine that joins until that has ended."""
    with SharedWorld() as world:
        a = world.member("a", *each(on_calendar=daily(13)))
        for job in JOBS[2:]:
            a.targets.lasts[job] = 10 * MINUTE
        world.until("13:00:10")
        b = world.member("b", *each(on_calendar=daily(13)))
        world.until("13:05:00")
        assert (a.held, b.held) == ([0, 1, 2, 3], [])
        world.until("13:11:00")
        assert (a.held, b.held) == ([0, 1], [2, 3])
        assert a.targets.cuts == 0
        assert b.runs() == []
        assert world.row("t3")["last_result"] == "success"


def test_an_idle_shard_is_given() -> None:
    """A shard in which nothing runs is given at the next beat."""
    with SharedWorld() as world:
        a = world.member("a", *each(on_calendar=daily(13)))
        a.targets.lasts[JOBS[0]] = 10 * MINUTE
        world.until("13:00:10")
        b = world.member("b", *each(on_calendar=daily(13)))
        world.until("13:00:15")
        assert (a.held, b.held) == ([0, 1], [2, 3])


def test_a_retry_is_not_lost_in_a_move() -> None:
    """A retry that is pending comes, though another machine has joined meanwhile."""
    with SharedWorld() as world:
        definitions = each(on_calendar=daily(13), retry_intervals_sec=(60,))
        a = world.member("a", *definitions)
        a.targets.ends[JOBS[3]] = [EXIT]
        world.until("13:00:10")
        b = world.member("b", *definitions)
        world.until("13:05:00")
        assert [reason for _, reason in a.runs(JOBS[3]) + b.runs(JOBS[3])] == ["schedule", "retry"]
        assert len(a.held) == len(b.held) == SHARDS // 2


def test_stop_gives_all_at_once() -> None:
    """Machines that are told to close their gate, or to end, leave nothing to wait for."""
    with SharedWorld() as world:
        a, b = world.member("a", *EACH), world.member("b", *EACH)
        world.until("12:00:50")
        world.do(a.timers.stop())
        world.after(3 * SECOND)
        assert b.held == list(range(SHARDS))
        world.until("12:01:30")
        assert len(b.runs()) == SHARDS
        assert a.runs() == []


def test_closed_gate_with_a_run() -> None:
    """While a run goes on after the gate was closed no other machine starts the same; then they go on."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = 5 * MINUTE
        world.until("12:01:10")
        b = world.member("b", *EACH)
        told = len(a.events)
        world.do(a.timers.stop())
        lingering = world.loop.create_task(a.timers.linger())
        world.until("12:05:50")
        assert a.timers.is_lingering
        assert (a.held, b.held) == ([0], [1, 2, 3])
        assert b.runs(JOBS[0]) == []
        world.until("12:08:30")
        assert lingering.done()
        assert a.held == []
        assert a.targets.cuts == 0
        assert [event.name for event in a.events[told:] if event.name.startswith("Timer")] == []
        assert world.row("t0")["last_result"] == "success"
        late, *punctual = b.runs(JOBS[0])
        assert "12:06:00" < late[0] < "12:06:10"
        assert punctual == [("12:07:00", "schedule"), ("12:08:00", "schedule")]


@pytest.mark.parametrize("others", [[], [JOBS[0]]], ids=["idle", "with a run"])
def test_gate_closed_in_the_middle_of_a_start(others: list[str]) -> None:
    """A start that is being written when the gate is closed is not carried out here, but elsewhere."""
    with SharedWorld() as world:
        more = [timer(f"more-{job}", job, on_calendar=daily(9)) for job in others]
        late = next(f"late{n}" for n in range(99) if shard_of(f"late{n}", SHARDS) == 0)
        definitions = [*more, timer("late", late, on_calendar=daily(13))]
        a = world.member("a", *definitions)
        for job in others:
            a.targets.lasts[job] = LONG
            world.do(a.timers.trigger(f"more-{job}"))
        a.targets.states[late] = "idle"
        world.until("12:59:59")
        a.cable.latency_s = 0.2
        world.until("13:00:00")
        world.after(SECOND / 10)
        stopping = world.loop.create_task(a.timers.stop())
        world.after(5 * SECOND)
        assert stopping.done()
        assert a.runs(late) == []
        assert a.timers.is_lingering == bool(others)
        for job in others:
            a.targets.end(job, SUCCESS)
        b = world.machine("b")
        b.targets.states[late] = "idle"
        world.do(b.start(*definitions), within=SECOND)
        world.after(15 * SECOND)
        assert [reason for _, reason in b.runs(late)] == ["schedule"]


def test_run_that_ends_as_the_gate_closes() -> None:
    """A run that ends while the gate is being closed leaves nothing behind: the machine is no member then."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = LONG
        world.until("12:01:10")
        a.cable.latency_s = 0.2
        stopping = world.loop.create_task(a.timers.stop())
        world.after(SECOND / 10)
        a.targets.end(JOBS[0], SUCCESS)
        world.after(3 * SECOND)
        assert stopping.done()
        assert not a.timers.is_lingering
        assert world.table.members == {}
        assert world.row("t0")["last_result"] == "success"


def test_gate_closed_while_shards_are_taken() -> None:
    """Of shards that are being taken when the gate is closed no timer begins; others have them at once."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        for job in JOBS:
            a.targets.lasts[job] = LONG
        world.until("12:01:10")
        b, c = world.machine("b"), world.machine("c")
        b.cable.latency_s = 0.3
        world.do(b.start(*EACH), within=5 * SECOND)
        a.die()
        while not b.timers._parts:
            world.after(SECOND / 10)
        taken = [fact["shards"] for fact in b.told("ShardsTaken")]
        assert [len(shards) for shards in taken] == [SHARDS]
        assert len(b.timers._parts) == 1, "each is written, one after the other"
        world.do(b.timers.stop(), within=2 * SECOND)
        assert b.runs() == []
        assert b.held == []
        assert "b" not in {seat.name for seat in world.table.members.values()}
        world.do(c.start(*EACH))
        world.after(2 * SECOND)
        assert [reason for _, reason in c.runs()] == ["catch-up"] * SHARDS


def test_stopped_before_it_was_started() -> None:
    """Timers that are stopped before they are started do not start."""
    with SharedWorld() as world:
        a = world.machine("a")
        world.do(a.timers.stop())
        world.do(a.start(*EACH))
        world.until("12:02:00")
        assert (a.runs(), world.table.members) == ([], {})


def test_trigger_as_the_gate_closes() -> None:
    """Nobody waits for a run that a closed gate keeps from beginning, while another goes on in its shard."""
    with SharedWorld() as world:
        other = next(f"other{n}" for n in range(99) if shard_of(f"other{n}", SHARDS) == 0)
        a = world.member("a", *EACH, timer("more", other, on_calendar=daily(9)))
        a.targets.states[other] = "idle"
        a.targets.lasts[JOBS[0]] = LONG
        world.until("12:01:10")
        a.cable.latency_s = 0.2
        asked = [world.loop.create_task(call("more")) for call in (a.timers.trigger, a.timers.disable)]
        world.loop.create_task(a.timers.stop())
        world.after(5 * SECOND)
        assert a.timers.is_lingering
        asked += [world.loop.create_task(call("more")) for call in (a.timers.trigger, a.timers.disable)]
        world.after(5 * SECOND)
        for task in asked:
            assert isinstance(task.exception(), TimerError)
        assert a.runs(other) == []


def test_switch_by_an_older_list() -> None:
    """A machine whose list is superseded switches nothing: what that means depends on the list."""
    with SharedWorld() as world:
        a = world.member("a", timer("t", JOBS[0], on_calendar=MINUTELY, enabled=False))
        a.targets.lasts[JOBS[0]] = LONG
        world.do(a.timers.trigger("t"), within=SECOND)
        b = world.member("b", timer("t", JOBS[0], on_calendar=MINUTELY))
        world.after(5 * SECOND)
        for machine, match in ((a, "other machines have a newer"), (b, "a holds it and has an older")):
            asked = world.loop.create_task(machine.timers.disable("t"))
            world.after(15 * SECOND)
            with pytest.raises(TimerError, match=match):
                asked.result()


def test_the_latest_row_is_carried() -> None:
    """A timer that goes to a third target takes the latest along, though an older row is still there."""
    with SharedWorld() as world:
        a = world.member("a", timer("t", JOBS[0], on_calendar=MINUTELY), *EACH[3:])
        old = dict(world.table.timers)
        world.after(SECOND)
        world.do(a.timers.reload([timer("t", JOBS[1], on_calendar=MINUTELY), *EACH[3:]]))
        world.do(a.timers.disable("t"))
        world.table.timers |= {key: row for key, row in old.items() if key[0] == 0}
        world.after(SECOND)
        world.do(a.timers.reload([timer("t", JOBS[2], on_calendar=MINUTELY), *EACH[3:]]))
        world.until("12:02:30")
        assert {began.service for began in a.targets.began} == {JOBS[3]}


def test_closed_gate_and_a_lost_lease() -> None:
    """What goes on after the gate was closed is ended when the machine cannot renew its lease any more."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        a.targets.lasts[JOBS[0]] = LONG
        world.until("12:01:10")
        b = world.member("b", *EACH)
        world.do(a.timers.stop())
        lingering = world.loop.create_task(a.timers.linger())
        world.after(5 * SECOND)
        a.cable.is_cut = True
        world.after(6 * SECOND)
        assert a.targets.live == {}
        world.until("12:01:50")
        assert b.held == list(range(SHARDS))
        a.cable.is_cut = False
        world.until("12:02:10")
        assert lingering.done()
        assert [reason for _, reason in b.runs(JOBS[0])] == ["catch-up", "schedule"]


def test_end_after_a_closed_gate() -> None:
    """A machine that ends while a run goes on after its gate was closed waits for it, and writes its end."""
    with SharedWorld() as world:
        a = world.member("a", *each(on_calendar=daily(13)))
        a.targets.lasts[JOBS[0]] = LONG
        world.until("13:00:10")
        b = world.member("b", *each(on_calendar=daily(13)))
        world.do(a.timers.stop())
        a.targets.is_stopping = True
        closing = world.loop.create_task(a.timers.close())
        world.after(8 * SECOND)
        assert (a.held, b.held, closing.done()) == ([0], [1, 2, 3], False)
        a.targets.end(JOBS[0], INTERRUPTED)
        world.after(8 * SECOND)
        assert closing.done()
        assert b.held == list(range(SHARDS))
        assert [reason for _, reason in b.runs()] == ["catch-up"]


def test_closed_gate_is_no_interruption() -> None:
    """A run that goes on after the gate was closed is not made up by others."""
    with SharedWorld() as world:
        definitions = each(on_calendar=daily(13))
        a = world.member("a", *definitions)
        a.targets.lasts[JOBS[0]] = 5 * MINUTE
        world.until("13:00:10")
        b = world.member("b", *definitions)
        world.do(a.timers.stop())
        lingering = world.loop.create_task(a.timers.linger())
        world.until("13:20:00")
        assert lingering.done()
        assert b.held == list(range(SHARDS))
        assert a.targets.cuts == 0
        assert b.runs() == []


def test_end_with_a_run() -> None:
    """A machine that ends gives what is idle at once; what it cut off is made up when it is gone."""
    with SharedWorld() as world:
        definitions = each(on_calendar=daily(13))
        a = world.member("a", *definitions)
        for job in JOBS:
            a.targets.lasts[job] = LONG if job == JOBS[0] else SECOND
        world.until("13:00:10")
        b = world.member("b", *definitions)
        a.targets.is_stopping = True
        closing = world.loop.create_task(a.timers.close())
        world.after(8 * SECOND)
        assert (a.held, b.held) == ([0], [1, 2, 3])
        a.targets.end(JOBS[0], INTERRUPTED)
        world.after(8 * SECOND)
        assert closing.done()
        assert b.held == list(range(SHARDS))
        assert [reason for _, reason in b.runs()] == ["catch-up"]


def test_a_slow_end() -> None:
    """While the supervisor ends its runs, and before the timers are closed, others have what is idle."""
    with SharedWorld() as world:
        definitions = each(on_calendar=daily(13))
        a = world.member("a", *definitions)
        a.targets.lasts[JOBS[0]] = LONG
        world.until("13:00:10")
        b = world.member("b", *definitions)
        a.targets.is_stopping = True
        world.after(8 * SECOND)
        assert (a.held, b.held) == ([0], [1, 2, 3])


def test_switches_go_with_the_timer() -> None:
    """A timer that was switched off is off wherever it goes, until it is switched on there."""
    with SharedWorld() as world:
        a, b = world.member("a", *EACH), world.member("b", *EACH)
        world.until("12:00:50")
        assert a.held == [0, 1]
        world.do(b.timers.disable("t3"))
        b.die()
        world.until("12:02:30")
        assert a.held == list(range(SHARDS))
        assert a.runs(JOBS[3]) == []
        assert len(a.runs(JOBS[2])) == 2
        world.do(a.timers.enable("t3"))
        world.until("12:03:30")
        assert a.runs(JOBS[3]) == [("12:03:00", "schedule")]


def test_a_switch_survives_a_change_of_target() -> None:
    """A timer that somebody switched off stays off when its file gives it another target."""
    with SharedWorld() as world:
        a = world.member("a", timer("t", JOBS[0], on_calendar=MINUTELY))
        world.do(a.timers.disable("t"))
        world.do(a.timers.reload([timer("t", JOBS[1], on_calendar=MINUTELY)]))
        world.until("12:02:30")
        assert a.runs() == []


def test_another_target_on_another_machine() -> None:
    """What is remembered of a timer is there for the machine that brings it with another target."""
    with SharedWorld() as world:
        a = world.member("a", timer("t", JOBS[0], on_calendar=MINUTELY))
        world.until("12:01:10")
        world.do(a.timers.disable("t"))
        ran_us = world.row("t")["last_run_us"]
        b = world.member("b", timer("t", JOBS[1], on_calendar=MINUTELY))
        world.until("12:02:30")
        assert (a.held, b.runs()) == ([], [])
        row = world.row("t")
        assert (row["last_run_us"], row["last_result"], row["enabled"]) == (ran_us, "success", 0)
        world.do(b.timers.enable("t"))
        world.until("12:03:30")
        assert b.runs() == [("12:03:00", "schedule")]


def test_another_target_during_a_run() -> None:
    """The run of the former target goes on to its end; the new one runs when it is due."""
    with SharedWorld() as world:
        a = world.member("a", timer("t", JOBS[0], on_calendar=MINUTELY))
        a.targets.lasts[JOBS[0]] = 3 * MINUTE
        world.until("12:01:10")
        b = world.member("b", timer("t", JOBS[1], on_calendar=MINUTELY))
        world.until("12:03:30")
        assert a.held == [0]
        assert b.runs() == [("12:02:00", "schedule"), ("12:03:00", "schedule")]
        world.until("12:05:30")
        assert (a.targets.cuts, a.held) == (0, [])
        assert len(b.runs()) == 4
        assert world.row("t")["last_result"] == "success"


def test_another_target_and_a_damaged_row() -> None:
    """A timer whose row cannot be read is new where its target is now."""
    with SharedWorld() as world:
        a = world.member("a", timer("t", JOBS[0], on_calendar=MINUTELY))
        ((key, row),) = world.table.timers.items()
        world.table.timers[key] = row._replace(record=[*row.record[:3], "damaged", *row.record[4:]])
        world.do(a.timers.reload([timer("t", JOBS[1], on_calendar=MINUTELY)]))
        world.until("12:01:30")
        assert a.runs() == [("12:01:00", "schedule")]
        assert world.row("t")["registered_us"] == world.now_us() - duration_us(MINUTE)
