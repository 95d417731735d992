"""Timers that machines share, and the monitor of each machine, in virtual time.

Every test of machines that share timers has monitors, and none may object to anything (`shared_world`). Here
is what they do see, and what would look like a fault if they knew less of how shards are at work.
"""

from duly.instant import instant_of
from duly.verify.properties import Verdict
from tests.shared_world import EACH, JOBS, SHARDS, Member, SharedWorld, each
from tests.timer_world import EXIT, MINUTE, MINUTELY, SECOND, daily, timer


def verdicts(machine: Member) -> dict[str, Verdict]:
    """What a monitor says."""
    return {finding.property: finding.verdict for finding in machine.monitor.findings()}


def test_each_watches_its_own() -> None:
    """Of two machines each finds that what it holds is as it should be, also after it took the rest."""
    with SharedWorld() as world:
        definitions = each(on_calendar=MINUTELY, retry_intervals_sec=(10,))
        a, b = world.member("a", *definitions), world.member("b", *definitions)
        for machine in (a, b):
            machine.targets.lasts |= dict.fromkeys(JOBS, SECOND)
            machine.targets.always |= dict.fromkeys(JOBS, EXIT)
        world.until("12:03:30")
        assert verdicts(a) == verdicts(b) == dict.fromkeys(("V1", "V2", "V3", "V4", "V5"), Verdict.HOLDS)
        before = {finding.property: finding.checked for finding in a.monitor.findings()}
        b.die()
        world.until("12:10:30")
        after = {finding.property: finding.checked for finding in a.monitor.findings()}
        assert after["V1"] - before["V1"] >= 6 * SHARDS


def test_silence_is_told() -> None:
    """A shard whose timers stand still, though nothing keeps them from firing, is told by who holds it."""
    with SharedWorld() as world:
        a, b = world.member("a", *EACH), world.member("b", *EACH)
        world.until("12:02:30")
        stuck = a.held[0]
        a.timers._parts[stuck]._poller.hold()
        world.until("12:05:00")
        [told] = a.violations
        assert (told["property"], told["taskName"]) == ("V1", f"t{stuck}")
        assert b.violations == []
        a.violations.clear()


def test_another_list_while_a_job_runs() -> None:
    """Where a run goes on while a newer list is in effect nothing fires, and nobody minds."""
    with SharedWorld() as world:
        second = timer("second", JOBS[0], on_calendar=MINUTELY)
        a = world.member("a", *EACH, second)
        a.targets.lasts[JOBS[0]] = 7 * MINUTE
        world.until("12:01:10")
        world.member("b", *EACH)
        world.until("12:06:00")
        assert a.held == [0]
        assert [stint.is_able for stint in a.timers.stints().values()] == [False]
        world.until("12:12:00")
        assert a.held != [0]


def test_one_shard_that_cannot_be_written() -> None:
    """What cannot be written does not fire; that others can be changes nothing for it."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        world.until("12:01:30")
        a.cable.fails_in = {2}
        world.until("12:08:00")
        assert [shard for shard, stint in a.timers.stints().items() if not stint.is_able] == [2]
        a.cable.fails_in = set()
        world.until("12:10:30")
        assert [reason for _, reason in a.runs(JOBS[2])][-1] == "schedule"
        assert all(stint.is_able for stint in a.timers.stints().values())


def test_stints() -> None:
    """A pause shows when it is over; a shard that was away has another number; no lease, no fire."""
    with SharedWorld() as world:
        a = world.member("a", *each(on_calendar=daily(9)))
        first = a.timers.stints()
        assert {stint.is_able for stint in first.values()} == {True}
        a.timers._parts[1].pause(is_on=True)
        assert [shard for shard, stint in a.timers.stints().items() if not stint.is_able] == [1]
        a.timers._parts[1].pause(is_on=False)
        assert [shard for shard, stint in a.timers.stints().items() if stint != first[shard]] == [1]
        world.freeze(20 * SECOND)
        assert not any(stint.is_able for stint in a.timers.stints().values())
        world.after(MINUTE)
        again = a.timers.stints()
        assert {stint.is_able for stint in again.values()} == {True}
        assert not {stint.number for stint in first.values()} & {stint.number for stint in again.values()}


def test_shards_lost_while_they_begin() -> None:
    """A shard that is lost while its timers are yet to be written is not at work."""
    with SharedWorld() as world:
        a = world.machine("a")
        a.cable.latency_s = 1
        starting = world.loop.create_task(a.start(*EACH))
        while not a.timers._parts:
            world.after(SECOND / 10)
        assert a.timers.stints() == {}
        world.freeze(20 * SECOND)
        for _ in range(100):
            world.after(SECOND / 10)
            assert a.timers.stints().keys() <= a.timers._parts.keys()
        world.after(MINUTE)
        assert starting.done()
        assert a.timers.stints().keys() == a.timers._parts.keys()
        assert {timer.name for _, timer in a.timers.held()} == {item.id for item in EACH}


def test_retarget_on_one_machine() -> None:
    """A timer that gets another target is in another shard then, and watched there."""
    with SharedWorld() as world:
        a = world.member("a", *EACH)
        world.until("12:01:30")
        moved = [timer("t0", JOBS[3], on_calendar=MINUTELY), *EACH[1:3]]
        world.do(a.timers.reload(moved))
        world.until("12:03:30")
        assert a.violations == []
        a.timers._parts[3]._poller.hold()
        world.until("12:06:30")
        assert {told["taskName"] for told in a.violations} == {"t0"}
        a.violations.clear()


# --- what is shown of the timers of others ---


def next_of(machine: Member, name: str) -> str | None:
    """When a timer comes next, as a machine tells it."""
    [state] = [state for state in machine.timers.all() if state.name == name]
    at_us = machine.timers.next_of(state, machine.world.now_us())
    return None if at_us is None else machine.world.shown(at_us)


def test_start_up_that_is_yet_to_come_elsewhere() -> None:
    """A machine that does not hold a timer shows its start-up trigger until that has come."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=300)
        a = world.member("a", *definitions)
        world.until("12:01:00")
        b = world.member("b", *definitions)
        world.until("12:02:00")
        others = [f"t{shard}" for shard in a.held]
        assert others
        assert [next_of(b, name) for name in others] == ["12:05:30"] * len(others)
        assert [next_of(a, name) for name in others] == ["12:05:30"] * len(others)
        world.until("12:06:30")
        assert [next_of(b, name) for name in others] == [None] * len(others)


def test_start_up_that_is_owed_elsewhere() -> None:
    """A start-up trigger that came while its holder was dead is shown as due until somebody answers it."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=300)
        a, b = world.member("a", *definitions), world.member("b", *definitions)
        world.until("12:05:29")
        others = [f"t{shard}" for shard in a.held]
        a.die()
        world.until("12:05:31")
        assert [next_of(b, name) for name in others] == ["12:05:31"] * len(others)
        world.until("12:05:33")
        assert [next_of(b, name) for name in others] == ["12:05:33"] * len(others)
        world.until("12:06:00")
        assert [next_of(b, name) for name in others] == [None] * len(others)


def test_start_up_that_does_not_come_elsewhere() -> None:
    """Where the gate was opened after a start-up trigger was to come, no machine shows it."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=60)
        a = world.machine("a")
        started_up_us = instant_of(a.host.now())
        world.until("12:05:00")
        world.do(a.timers.start(definitions, started_up_us=started_up_us, is_start_up=False))
        b = world.member("b", *definitions)
        world.until("12:05:20")
        assert {next_of(b, item.id) for item in definitions} == {None}


def test_interval_that_is_yet_to_come_elsewhere() -> None:
    """An interval counts from the last run that the row tells of; while one is under way it has not begun."""
    with SharedWorld() as world:
        definitions = each(on_startup_sec=40, on_unit_active_sec=600)
        a, b = world.member("a", *definitions), world.member("b", *definitions)
        other = f"t{a.held[0]}"
        a.targets.lasts[JOBS[a.held[0]]] = 30 * SECOND
        world.until("12:01:30")
        assert next_of(b, other) is None
        world.until("12:02:00")
        assert next_of(b, other) == "12:11:40"
