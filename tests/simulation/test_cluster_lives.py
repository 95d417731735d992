"""Clusters in the simulation: one seed is one life, none is unsound, and what is broken is found out."""

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from duly.cluster.lease import Lease
from duly.core.task import Task
from duly.instant import MINUTE_US, SECOND_US, instant_of
from duly.marks import CLUSTER_MARKS
from duly.testing.simulation import UnsoundLifeError
from duly.testing.simulation.cluster import (
    ClusterFaults,
    ClusterNumbers,
    ClusterPlan,
    cluster_drawn,
    cluster_lived,
    cluster_numbers_of,
    cluster_shrunk,
    cluster_story,
)
from duly.testing.simulation.cluster.enumeration import COMEBACK
from duly.testing.simulation.cluster.plan import (
    Away,
    Change,
    Crash,
    Forget,
    Host,
    Leave,
    Part,
    Pause,
    Slow,
    Step,
)
from duly.testing.simulation.cluster.program import Program
from duly.testing.simulation.cluster.traces import Traces
from duly.testing.simulation.plan import Behaviour, How, Item
from tests.simulation.forgetful import with_forgetful_standbys, with_restless_lists

SEEDS = int(os.environ.get("DULY_CLUSTER_SEEDS", "240"))
"""How many lives the suite lives; CI lives fewer on its second and third interpreter."""

START_US = instant_of(datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC))
ALL = tuple(Item(name, "* * * * *", 15 * SECOND_US) for name in "abcdef")
LONG = {name: (Behaviour(How.RETURN, 25 * SECOND_US),) for name in "abcdef"}


def planned(*actions: Any, **knobs: Any) -> ClusterPlan:
    """A plain cluster of two, in which only *actions* happen."""
    knobs = {
        "seed": 1,
        "start_us": START_US,
        "duration_us": 3 * MINUTE_US,
        "hosts": (Host(), Host()),
        "lists": (ALL, ALL[:3], (*ALL[:2], Item("c", "* * * * *", 0))),
        **knobs,
    }
    return ClusterPlan(actions=actions, **knobs)


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_no_cluster_is_unsound(first: int) -> None:
    """Whatever befalls two or three members: never two at once, nothing lost, nothing without a cause."""
    for seed in range(first, min(first + 40, SEEDS)):
        cluster_lived(cluster_drawn(seed, 2 + seed % 2)).check()


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 40))
def test_no_cluster_with_restless_lists_is_unsound(first: int) -> None:
    """The same while tasks are removed, changed and brought back with their runs in flight."""
    lives = [
        cluster_lived(with_restless_lists(cluster_drawn(seed, 2 + seed % 3)))
        for seed in range(first, min(first + 40, SEEDS // 2))
    ]
    for life in lives:
        life.check()
    assert any("departed run found" in life.marks for life in lives)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 14_000, 100))
def test_no_cluster_of_thousands_is_unsound(first: int) -> None:
    """The same for thousands of lives, with up to five members."""
    for seed in range(first, first + 100):
        cluster_lived(cluster_drawn(seed, 2 + seed % 4)).check()


def test_same_seed_is_the_same_life_in_another_process() -> None:
    """The story of a seed has the same hash in two processes, whatever Python makes of its own hashes."""
    program = (
        "from duly.testing.simulation.cluster import cluster_drawn, cluster_lived\n"
        "print([cluster_lived(cluster_drawn(seed)).hash for seed in range(6)])"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": chance},
        ).stdout
        for chance in ("1", "2")
    }
    assert len(hashes) == 1


def test_rare_paths_are_taken() -> None:
    """The lives of the suite take every rare path of a member that a sound board in memory leads to."""
    missing = set(CLUSTER_MARKS) - {"unreadable row left alone"}
    missing -= set(cluster_lived(COMEBACK).marks)  # chance leads there once in hundreds of lives
    for seed in range(SEEDS):
        plan = cluster_drawn(seed, 2 + seed % 2)
        missing -= set(cluster_lived(plan).marks)
        missing -= set(cluster_lived(with_restless_lists(with_forgetful_standbys(plan))).marks)
        if not missing:
            return
    assert not missing


# --- what is broken is found out ---


async def do_nothing(*_arguments: Any, **_options: Any) -> None:
    pass


def forgets_interrupted(task: Task) -> Task:
    return msgspec.structs.replace(task, running_since_us=None)


def trusts_for_ever(lease: Lease, _asked_us: int) -> None:
    lease.trusted_until_us = 10**12


@pytest.mark.parametrize(
    ("where", "wrong", "first"),
    [
        ("duly.testing.memory_board.MemoryBoard._is_good", lambda *_arguments: True, 0),
        ("duly.testing.memory_board.MemoryBoard.report", do_nothing, 0),
        ("duly.cluster.finding.cut_off", forgets_interrupted, 0),
        ("duly.cluster.lease.Lease.renew", trusts_for_ever, 0),
        ("duly.cluster.tenancy.Tenancy._may_take_over", lambda _self: False, 0),
        ("duly.cluster.tenancy.Tenancy.is_trusted", lambda _self: True, 0),
        ("duly.cluster.finding._better", lambda stored, _known: stored, 970),
        ("duly.cluster.lease._MARGIN", 10**9, 102),
        ("duly.cluster.tenancy.Tenancy._give_strays", do_nothing, 107),
        ("duly.cluster.share.Share._note_unwritten", lambda _self, _entry: None, 129),
        ("duly.cluster.share.Share._note_gone", lambda _self, _view: None, 20),
        ("duly.cluster.clock.BoardClock.heed", lambda *_arguments, **_options: None, 0),
    ],
)
def test_what_is_wrong_is_found_out(
    where: str, wrong: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board or a member that does one thing wrong fails within some lives, and says how to see it again."""
    monkeypatch.setattr(where, wrong)
    with pytest.raises(UnsoundLifeError, match=r"reproduce with seed \d+"):
        for seed in range(first, first + 300):  # the first is where it is known to be found soon
            cluster_lived(cluster_drawn(seed, 3)).check()


@pytest.mark.parametrize("is_wrong", [False, True])
def test_task_comes_back_while_its_run_goes_on(monkeypatch: pytest.MonkeyPatch, *, is_wrong: bool) -> None:
    """A task that a list brings back waits for its run from before its removal; if not, it is found out."""
    if is_wrong:
        monkeypatch.setattr("duly.cluster.finding.departed", lambda *_arguments: None)
    life = cluster_lived(COMEBACK)
    assert ("departed run found" in life.marks) is not is_wrong
    assert any("h1.1 called a while h0.1 is running it" in fault for fault in life.faults) is is_wrong
    assert life.is_sound is not is_wrong


@pytest.mark.parametrize("runner", [0, 1])
def test_old_run_ends_as_its_task_goes(runner: int) -> None:
    """If the run of an older registration ends as a list takes its task away, the next holder is told."""
    life = cluster_lived(
        planned(
            Change(45 * SECOND_US, runner, 1),
            Change(54_900_000, 1 - runner, 2),
            lists=tuple((Item("a", "* * * * *", delay * SECOND_US),) for delay in (1, 2, 3)),
            behaviours={"a": (Behaviour(), Behaviour(How.RETURN, 25 * SECOND_US), Behaviour())},
            shards=1,
        )
    )
    life.check()


@pytest.mark.parametrize(("seed", "members"), [(30462, 2), (10626, 4), (10626, 5), (2222, 4)])
def test_known_lives_in_which_tasks_come_back(seed: int, members: int) -> None:
    """Lives that chance led to a task that came back while its run went on are sound."""
    life = cluster_lived(cluster_drawn(seed, members))
    life.check()
    assert "departed run found" in life.marks


def test_known_life_with_a_start_that_was_never_made() -> None:
    """A start that its member wrote, never made, and left behind as it joined anew, is made by another."""
    cluster_lived(cluster_drawn(18, 4)).check()


def test_known_life_with_a_minute_that_began_before_a_call() -> None:
    """What a call answered that came a minute after its start was written is not run again elsewhere."""
    cluster_lived(with_restless_lists(cluster_drawn(63, 3))).check()


def test_known_life_with_a_death_out_of_touch() -> None:
    """A member that dies out of touch, and records nothing more, is not held to what it owed by then."""
    cluster_lived(with_restless_lists(cluster_drawn(227, 4))).check()


@pytest.mark.parametrize("seed", [228, 621])
def test_known_lives_with_lists_of_an_earlier_minute(seed: int) -> None:
    """A list that was brought in a minute that was due, whoever tells of it and by which clock, is sound."""
    cluster_lived(cluster_drawn(seed, 3)).check()


def test_callback_before_its_start_is_written_is_found_out() -> None:
    """A link that says "done" and writes later has callbacks called whose start is not on the board."""

    def be_hasty(program: Program) -> None:
        write = program.link.write

        async def later(*arguments: Any, **options: Any) -> None:
            program.loop.call_later(1, lambda: program.loop.create_task(write(*arguments, **options)))

        program.link.write = later  # type: ignore[method-assign]

    life = cluster_lived(planned(), be_hasty)
    assert any("its start is not on the board" in fault for fault in life.faults)


@pytest.mark.parametrize("tick_us", [None, SECOND_US])
def test_what_the_traces_say_counts(tick_us: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that record no shards as theirs start, by their traces, what they do not hold."""
    plan = planned(Crash(45 * SECOND_US, 0), behaviours=LONG, tick_us=tick_us)
    cluster_lived(plan).check()
    monkeypatch.setattr("duly.verify.membership.Holdings._take", lambda *_arguments: None)
    life = cluster_lived(plan)
    assert any(fault.startswith("trace: C3: ") for fault in life.faults)
    assert all(fault.startswith("trace: ") for fault in life.faults)


def test_a_crash_cuts_a_trace_where_it_was() -> None:
    """A dead program records nothing more, and what it ran has no end in its trace."""
    traces: list[Traces] = []

    def keep(program: Program) -> None:
        traces.append(program.traces)

    cluster_lived(planned(Crash(45 * SECOND_US, 0, downtime_us=600 * SECOND_US), behaviours=LONG), keep)
    events = [msgspec.json.decode(line) for line in traces[0].lines()]
    dead = [event for event in events if event.get("proc") == "h0.1"]
    assert {event["ev"] for event in dead} >= {"InitStart", "Taken", "RunStart"}
    assert START_US / 1000 + 43_900 < dead[-1]["t"] <= START_US / 1000 + 45_000
    assert "End" not in {event["ev"] for event in dead}
    assert events[-1]["ev"] == "End"


def test_shrinking_leaves_only_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that fails because of one crash is shortened to little more than that crash."""
    monkeypatch.setattr("duly.cluster.finding.cut_off", forgets_interrupted)
    plan = planned(
        Step(20 * SECOND_US, 1, 3600 * SECOND_US),
        Pause(25 * SECOND_US, 1, SECOND_US),
        Crash(45 * SECOND_US, 0, downtime_us=100 * SECOND_US),
        Slow(70 * SECOND_US, 1, 5 * SECOND_US, 1_000, 1_000),
        lists=((Item("a", "1 * * * *", 0), Item("b", "30 * * * *", 0)),),
        hosts=(Host(), Host(drift_ppm=50)),
        behaviours={"a": (Behaviour(How.RETURN, 30 * SECOND_US),), "b": (Behaviour(How.RAISE),)},
        shards=2,
    )
    crash = Crash(45 * SECOND_US, 1, downtime_us=100 * SECOND_US)
    plans = [plan, replace(plan, actions=(*plan.actions[:2], crash, plan.actions[3]))]
    failing = next(each for each in plans if not cluster_lived(each).is_sound)
    short = cluster_shrunk(failing, lambda each: not cluster_lived(each).is_sound)
    assert [type(action) for action in short.actions] == [Crash]
    assert [item.name for items in short.lists for item in items] == ["a"]
    assert "crash" in cluster_story(short)


# --- particular lives ---


def test_wrong_wall_clocks_do_not_matter() -> None:
    """Hosts whose wall clocks are hours off, and are set, start everything when it is due by the board."""
    hosts = (Host(offset_us=5 * 3600 * SECOND_US), Host(offset_us=-400 * 86_400 * SECOND_US))
    life = cluster_lived(planned(Step(50 * SECOND_US, 0, -3600 * SECOND_US), hosts=hosts))
    life.check()
    assert life.reckoning.slowest_us < SECOND_US


def test_crash_is_made_good_within_a_lease_and_a_beat() -> None:
    """The runs of a member that dies are restarted elsewhere, each once."""
    life = cluster_lived(planned(Crash(40 * SECOND_US, 0, downtime_us=600 * SECOND_US), behaviours=LONG))
    life.check()
    assert life.counts["runs cut off"] >= 1
    assert life.counts["shards failed over"] >= 1
    assert life.slowest_failover_us <= life.plan.ttl_us + life.plan.beat_us + SECOND_US


@pytest.mark.parametrize("for_us", [SECOND_US, 4 * SECOND_US, 5 * SECOND_US, 7 * SECOND_US, 60 * SECOND_US])
def test_member_that_was_paused_does_no_harm(for_us: int) -> None:
    """A member that wakes up, early or late, starts nothing that another has, and goes on."""
    cluster_lived(planned(Pause(40 * SECOND_US, 0, for_us), behaviours=LONG)).check()


@pytest.mark.parametrize("is_late", [False, True])
def test_split_brain(is_late: bool) -> None:
    """A member that is parted from the board lets go before the other takes over."""
    life = cluster_lived(planned(Part(40 * SECOND_US, 0, 40 * SECOND_US, is_late=is_late), behaviours=LONG))
    life.check()
    assert life.marks["trust ended"] == 1


def test_board_that_is_away_for_long() -> None:
    """When the board comes back everybody goes on, and every task that was due runs once."""
    life = cluster_lived(planned(Away(45 * SECOND_US, 60 * SECOND_US)))
    life.check()
    assert life.marks["trust ended"] == 2


def test_board_that_forgets() -> None:
    """A standby without the latest commits is told again what its members remember."""
    life = cluster_lived(planned(Forget(31 * SECOND_US, 2 * SECOND_US), behaviours=LONG))
    life.check()
    assert life.counts["boards that forgot"] == 1
    assert life.marks["another server"] == 2


def overlaps_in(plan: ClusterPlan) -> list[str]:
    """Which runs of one task were in flight at once, by the traces: those excuse nothing."""
    life = cluster_lived(plan)
    life.check()
    assert life.counts["boards that forgot"] == 1
    return [each.reason for each in life.outcome.violations if each.property in {"S1c", "T2", "C4"}]


def test_board_that_forgets_what_a_leaving_member_gave_away() -> None:
    """A member that stops, and sees shards as its own again that it gave away, does not hide what runs."""
    leave = Leave(31 * SECOND_US, 0, downtime_us=60 * SECOND_US)
    forget = Forget(36 * SECOND_US, 8 * SECOND_US)
    assert overlaps_in(planned(leave, forget, behaviours=LONG)) == []


def test_board_that_forgets_what_was_given_to_a_newcomer() -> None:
    """A member that sees shards as its own again, and should have fewer, does not hide what runs in them."""
    forget = Forget(33 * SECOND_US, 3_800_000)
    assert overlaps_in(planned(forget, hosts=(Host(), Host(boots_us=29_500_000)), behaviours=LONG)) == []


@pytest.mark.parametrize("returner", [0, 1])
def test_board_that_forgets_the_end_of_an_away_run(returner: int) -> None:
    """A task that a list brings back does not wait for ever for a run whose end the board has forgotten."""
    a, b, c = (Item(name, "* * * * *", 0) for name in "abc")
    life = cluster_lived(
        planned(
            *(Change(35 * SECOND_US, host, 1) for host in (0, 1)),
            Forget(42 * SECOND_US, 4 * SECOND_US),
            Change(75 * SECOND_US, returner, 2),
            lists=((a, b), (b,), (a, b, c)),
            behaviours={"a": (Behaviour(), Behaviour(How.RETURN, 10 * SECOND_US), Behaviour())},
        )
    )
    life.check()
    assert "ends reported again" in life.marks


def test_known_life_in_which_a_board_forgets_what_was_given_away() -> None:
    """A life that chance led to a leaving member with a run in a shard that it has given away is sound."""
    assert overlaps_in(cluster_drawn(4289, 4)) == []


def test_known_life_in_which_a_board_forgets_renewals() -> None:
    """A member whose latest renewals a board forgot is not dead at once: what it runs is not run again."""
    assert overlaps_in(with_restless_lists(cluster_drawn(194, 3))) == []


def test_rolling_deploy() -> None:
    """Members that are restarted one after the other with a newer list bring it into effect once."""
    actions = [Leave((40 + 10 * host) * SECOND_US, host, items=1) for host in range(3)]
    life = cluster_lived(planned(*actions, hosts=(Host(), Host(), Host()), behaviours=LONG))
    life.check()
    assert life.counts["editions"] == 2


def test_member_with_an_older_list_does_not_bring_it_back() -> None:
    """A member that is restarted with the old list while others have the newer one changes nothing."""
    actions = [
        Change(40 * SECOND_US, 0, 2),
        Leave(60 * SECOND_US, 1, items=2),
        Crash(80 * SECOND_US, 1, items=0),
    ]
    life = cluster_lived(planned(*actions))
    life.check()
    assert life.counts["editions"] == 2


def test_numbers_add_up() -> None:
    """The numbers of two lives together are the sums of both, or the larger."""
    one, two = (cluster_numbers_of(cluster_lived(cluster_drawn(seed))) for seed in (1, 2))
    both = ClusterNumbers().merged(one).merged(two)
    assert both.lives == 2
    assert both.starts == one.starts + two.starts
    assert both.slowest_failover_us == max(one.slowest_failover_us, two.slowest_failover_us)
    assert both.failed == 0


def test_families_leave_each_other_alone() -> None:
    """Leaving one family of faults out leaves the others as they were."""
    everything, crashes = cluster_drawn(5), cluster_drawn(5, faults=ClusterFaults.only("crash"))
    assert set(crashes.actions) <= set(everything.actions)
    with pytest.raises(ValueError, match="gremlins"):
        ClusterFaults.only("gremlins")
