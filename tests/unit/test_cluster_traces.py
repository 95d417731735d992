"""The traces of a cluster's members, judged together: each rule kept and broken, in small traces by hand.

There is one shard, so every task is in it. `t` is in seconds here. A task is due at minutes 0 and 5.
"""

from itertools import chain
from typing import Any

import msgspec
import pytest

from duly.verify import Verdict, judged
from duly.verify.cluster import judged_together
from duly.verify.cluster.lives import shard_of
from duly.verify.properties import CLUSTER_PROPERTIES, PROPERTIES, Outcome
from duly.verify.trace import TraceError

Line = dict[str, Any]
REGS = [["x", "0,5 * * * *", 120_000]]
OTHER = [["x", "2,5 * * * *", 120_000]]


def header(member: str, **facts: Any) -> Line:
    common = {"ev": "Header", "v": 1, "tz": "UTC", "shards": 1, "failover_ms": 10_000}
    return {**common, "member": member, **facts}


def at(seconds: float, ev: str, **facts: Any) -> Line:
    return {"ev": ev, "t": seconds * 1000, **facts}


def start(seconds: float, run: int = 1, **facts: Any) -> Line:
    return at(seconds, "RunStart", id="x", run=run, **facts)


def end(seconds: float, run: int = 1, *, ok: bool = True) -> Line:
    return at(seconds, "RunEnd", id="x", run=run, ok=ok)


def taken(seconds: float, term: int, origin: str | None = None, edition: int = 1, shard: int = 0) -> Line:
    return at(seconds, "Taken", shard=shard, term=term, edition=edition, **{"from": origin})


def given(seconds: float, term: int) -> Line:
    return at(seconds, "Given", shard=0, term=term)


def lost(seconds: float, term: int) -> Line:
    return at(seconds, "Lost", shard=0, term=term)


def first(regs: Any = REGS, **facts: Any) -> list[Line]:
    """The member that comes first, publishes its list and takes the shard for term 2."""
    return [
        header("a", **facts),
        at(-10, "InitStart", call=1, regs=regs, proc="a1"),
        at(-9.9, "Edition", edition=1, regs=regs),
        taken(-9.8, 2),
        at(-9.7, "InitEnd", call=1, ok=True),
    ]


def second(regs: Any = REGS, **facts: Any) -> list[Line]:
    """Another member, with the same list."""
    return [
        header("b", store="unknown", **facts),
        at(-5, "InitStart", call=1, regs=regs, proc="b1"),
        at(-4.9, "InitEnd", call=1, ok=True),
    ]


def ticks(from_s: float, to_s: float) -> list[Line]:
    """A tick every three seconds."""
    return [at(from_s + 3 * n, "Tick") for n in range(int(to_s - from_s) // 3 + 1)]


def ticking(to_s: float) -> list[Line]:
    """The second member, alive and in touch, with nothing to do."""
    return [*second(tick_ms=4000), *ticks(-3, to_s)]


def given_and_stopped(seconds: float) -> list[Line]:
    """The first member gives its shard away, and stops."""
    return [
        given(seconds, 2),
        at(seconds + 1, "StopStart", call=2),
        at(seconds + 2, "StopEnd", call=2),
    ]


def stopped(seconds: float, *, ok: bool = True) -> list[Line]:
    """The first member stops, and its recording ends."""
    stop = at(seconds, "StopStart", call=2)
    return [stop, at(seconds + 0.1, "StopEnd", call=2, ok=ok), at(seconds + 0.2, "End")]


def together(*files: list[Line]) -> Outcome:
    return judged_together(
        chain.from_iterable([msgspec.json.encode(line) + b"\n" for line in file] for file in files)
    )


def violated(*files: list[Line]) -> set[str]:
    outcome = together(*files)
    assert not outcome.fault_count, outcome.faults
    return {each.property for each in outcome.violations}


def reason(name: str, *files: list[Line]) -> str:
    [told] = [each.reason for each in together(*files).violations if each.property == name]
    return told


def test_shards_are_those_of_the_board() -> None:
    """A task's shard is the CRC-32 of its name, modulo the number of shards; any name has one."""
    assert shard_of("123456789", 1 << 32) == 0xCBF43926
    assert shard_of("\ud800\0ü", 7) in range(7)


def test_a_cluster_is_asked_about_more() -> None:
    """The properties of one scheduler, and those of a cluster, are all there."""
    outcome = together([*first(), start(0), end(1), at(30, "End")])
    assert outcome.properties == {**PROPERTIES, **CLUSTER_PROPERTIES}
    assert outcome.overall is Verdict.HOLDS
    assert (outcome.events, outcome.starts, outcome.crashes) == (7, 1, 0)


def test_a_member_alone_can_be_read_as_a_scheduler() -> None:
    """The events of a cluster are known to whoever reads one trace, and change nothing there."""
    lines = [*first(), start(0), end(1), at(2, "Unreachable"), at(3, "Reachable"), lost(4, 2), given(5, 2)]
    outcome = judged(msgspec.json.encode(line) + b"\n" for line in lines)
    assert (outcome.overall, outcome.fault_count) == (Verdict.HOLDS, 0)


# --- handing over ---


def test_a_run_that_was_cut_off_away() -> None:
    """A run of a shard that was given away is lost with its member's lease, and starts again elsewhere."""
    a = [*first(), start(0), given(10, 2), lost(20, 2), end(20, ok=False), *stopped(20.1)]
    b = [*second(), taken(10.2, 3, "given"), start(20.3), end(21), at(60, "Tick")]
    assert violated(a, b) == set()
    assert violated([*a[:7], *a[8:]], b) == {"S1d"}


def test_a_stop_that_raised() -> None:
    """The end of a run may be lost if the stop of its member raised: another may start it once more."""
    a = [*first(), start(0), given(10, 2), end(20)]
    b = [*second(), taken(10.2, 3, "given"), start(30.3), end(31), at(60, "Tick")]
    assert violated([*a, *stopped(21)], b) == {"S1d", "T3", "T4", "T7"}
    assert violated([*a, *stopped(21, ok=False)], b) == set()


def test_an_end_away_that_was_not_reported() -> None:
    """A member that dies right after the end of a run that it had to report may have failed to."""
    a = [*first(), start(0), given(10, 2), end(20), at(20.1, "Tick")]
    b = [*second(), taken(10.2, 3, "given"), start(29), end(30), at(60, "Tick")]
    assert violated(a, b) == set()
    assert violated([*a, at(32, "Tick")], b) == {"S1d", "T3", "T4", "T7"}


def test_a_silent_death_is_not_dated() -> None:
    """A member that is never heard of again may have died at once, with an end, or after writing a start."""
    a = [*first(tick_ms=60_000, persist_window_ms=1000), start(0), end(1)]
    b = [*second(tick_ms=60_000), taken(20, 3, "lost"), start(20.1), end(21), at(60, "Tick")]
    assert violated(a, b) == set()
    changed = published(start(30.4), end(31), at(60, "Tick"))
    before_due = [*first()[:1], *[{**line, "t": line["t"] - 20_000} for line in first()[1:]]]
    assert violated([*before_due, at(-0.5, "Tick")], changed) == set()


def test_what_is_owed_at_a_silent_death() -> None:
    """A member that is silent for ever may have died before what it owed was late, unless it shows later."""
    a = [*first(), start(0), end(1, ok=False)]  # the retry is due at 121 s, and late after 181 s
    b = [*second(), taken(250, 3, "lost"), start(250.1), end(251), at(260, "Tick")]
    for last_s in (122, 150, 181):
        assert violated([*a, at(last_s, "Tick")], b) == set()
    assert violated([*a, at(181.1, "Tick")], b) == {"L1"}


def test_a_run_goes_on_away() -> None:
    """A shard is given away while its task runs; the next holder waits for the end, and goes on."""
    a = [*first(), start(0), given(10, 2), end(250), at(400, "Tick")]
    b = [*second(), taken(10.2, 3, "given"), start(300.1), end(301), at(400, "Tick")]
    assert violated(a, b) == set()


def test_a_failure_away_is_retried_by_the_next_holder() -> None:
    """The delay counts from the end that the runner recorded; sooner is too soon."""
    a = [*first(), start(0), given(10, 2), end(20, ok=False), at(290, "Tick")]
    b = [*second(), taken(10.2, 3, "given")]
    assert violated(a, [*b, start(140.1), end(141), at(290, "Tick")]) == set()
    assert violated(a, [*b, start(100), end(101), at(290, "Tick")]) == {"S1d"}
    assert violated(a, [*b, at(290, "Tick")]) == {"L1"}


def test_a_second_run_beside_an_away_one() -> None:
    """The next holder starts a due while the run is still in flight at the one before."""
    a = [*first(), start(0), given(10, 2), at(299, "Tick"), at(310, "Tick"), end(320), at(400, "Tick")]
    b = [*second(), taken(10.2, 3, "given"), start(300.1), end(301), at(400, "Tick")]
    assert violated(a, b) == {"S1c", "T2", "C4"}
    assert "'x' was started by 'b' at 1970-01-01 00:05:00.100+00:00 while" in reason("C4", a, b)
    assert "was in flight at 'a'" in reason("C4", a, b)
    assert "shard 0, held by 'b' for term 3" in reason("S1c", a, b)


def test_a_due_in_between_is_answered_once() -> None:
    """A due that comes while the shard changes hands is answered by the new holder, and by nobody else."""
    a = [*first(), start(0), end(1), given(299.9, 2), at(400, "Tick")]
    b = [*second(), taken(300.1, 3, "given"), start(300.2), end(301), at(400, "Tick")]
    assert violated(a, b) == set()
    assert violated(a, [*b[:-1], start(310, 2), end(311, 2), b[-1]]) == {"S1d", "T3", "T4"}
    assert violated(a, [*b[:-3], b[-1]]) == {"L1"}


def test_clocks_that_differ() -> None:
    """A clock a little behind makes no false order of an end and the next start; one far behind does."""
    b = [*second(), taken(9.8, 3, "given"), start(300), end(303), at(400, "Tick")]
    a = [*first(), start(0), given(10, 2), at(299, "Tick")]
    assert violated([*a, end(300.4), at(400, "Tick")], b) == set()
    assert {"C4", "S1c"} <= violated([*a, end(302), at(400, "Tick")], b)


# --- deaths and losses ---


def test_a_run_that_died_with_its_member_starts_again() -> None:
    """The next holder of a dead member's shard restarts what was cut off; not to do so is found."""
    a = [*first(), start(0), at(5, "Crash")]
    b = [*second(), taken(12, 3, "lost"), start(12.1), end(13), at(250, "Tick")]
    outcome = together(a, b)
    assert (outcome.overall, outcome.crashes) == (Verdict.HOLDS, 1)
    assert violated(a, [*b[:-3], b[-1]]) == {"L1", "T6"}


def test_a_death_that_only_silence_tells() -> None:
    """A file that ends, and a shard that another takes as lost, are a death."""
    a = [*first(), start(0)]
    b = [*second(), taken(12, 3, "lost"), start(12.1), end(13), at(250, "Tick")]
    assert violated(a, b) == set()


def test_a_member_that_lost_its_shard_tells_no_end() -> None:
    """What was in flight at a loss is cut off: an end after it counts for nothing, the run is made again."""
    a = [*first(), start(0), lost(5, 2), end(5.1, ok=False), at(250, "Tick")]
    b = [*second(), taken(7, 3, "lost"), start(7.1), end(8), at(250, "Tick")]
    assert violated(a, b) == set()
    assert violated(a, [*b[:-3], b[-1]]) == {"L1", "T6"}


def test_an_end_shortly_before_a_loss_may_be_lost() -> None:
    """A member that cannot reach the board any more cannot write an end; nobody knows, so both are right."""
    a = [*first(), start(0), at(1, "Unreachable"), end(2), lost(6, 2), at(250, "Tick")]
    b = [*second(), taken(8, 3, "lost"), at(250, "Tick")]
    assert violated(a, b) == set()
    assert violated(a, [*b[:-1], start(8.1), end(9), b[-1]]) == set()
    assert "S1d" in violated(a, [*b[:-1], start(8.1), end(9), start(10, 2), end(11, 2), b[-1]])


def test_a_member_that_was_frozen_learns_it_late() -> None:
    """Of a member that stood still the losses come late; what it had in flight was cut off before."""
    facts = {"tick_ms": 1000}
    a = [*first(**facts), start(0), at(1, "Tick"), lost(60, 2), end(60, ok=False), at(250, "Tick")]
    b = [*second(), taken(9, 3, "lost"), start(9.1), end(10), at(250, "Tick")]
    assert violated(a, b) == set()


def test_the_runner_of_an_away_run_dies() -> None:
    """That is a crash for this task alone: the holder restarts it, and nothing else changes."""
    a = [*first(), start(0), given(10, 2), at(20, "Crash")]
    b = [*second(), taken(10.2, 3, "given"), start(28), end(29), at(250, "Tick")]
    assert violated(a, b) == set()
    assert violated(a, [*b[:-3], b[-1]]) == {"L1", "T6"}
    assert violated([*a[:-1], at(20, "Tick"), at(40, "Tick")], b) == {*("S1c", "S1d", "T2", "T3", "T7", "C4")}


def test_the_holder_dies_while_a_run_is_away() -> None:
    """The death of the holder does not cut off what another member runs."""
    a = [*first(), start(0), given(10, 2), end(100), at(250, "Tick")]
    b = [*second(), taken(10.2, 3, "given"), at(20, "Crash")]
    c = [header("c", store="unknown"), *second()[1:], taken(28, 4, "lost"), at(250, "Tick")]
    assert violated(a, b, c) == set()
    again = [*c[:-1], start(28.1), end(29), c[-1]]
    assert {"S1c", "C4"} <= violated([*a[:-2], at(27, "Tick"), at(30, "Tick"), *a[-2:]], b, again)


# --- C1, C2, C3 ---


def test_two_holders_in_one_term() -> None:
    """C1: a shard is taken twice for one term."""
    a = [*first(), start(0), end(1), at(250, "Tick")]
    b = [*second(), taken(20, 2, "given"), at(250, "Tick")]
    assert "C1" in violated(a, b)
    assert "for term 2, which 'a' had taken at" in reason("C1", a, b)


def test_terms_that_do_not_grow() -> None:
    """C2: the higher term comes first, by more than clocks may differ."""
    a = [*first(), start(0), end(1), given(30, 2), at(250, "Tick")]
    assert "C2" in violated(a, [*second()[:1], taken(-100, 5), *second()[1:], at(250, "Tick")])
    own = [*first(), start(0), end(1), given(30, 2), taken(31, 1), at(250, "Tick")]
    assert "C2" in violated(own, [*second(), at(250, "Tick")])


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ([], "which did not hold shard 0"),
        ([taken(20, 3, "given"), given(30, 3)], "it had given it up at 1970-01-01 00:00:30+00:00"),
        ([taken(20, 3, "given"), lost(30, 3)], "it had lost it at 1970-01-01 00:00:30+00:00"),
    ],
)
def test_a_start_without_a_hold(before: list[Line], told: str) -> None:
    """C3: whoever never had the shard, gave it away or lost it, starts nothing in it."""
    a = [*first(), start(0), end(1), given(19, 2), at(41, "Tick")]
    b = [*second(), *before, start(40), end(41), at(45, "Tick")]
    assert "C3" in violated(a, b)
    assert told in reason("C3", a, b)


def test_a_start_long_after_another_took_over() -> None:
    """C3: a member that does not know yet is too late all the same, beyond what clocks may differ."""
    a = [*first(), start(0), end(1), at(8, "Tick"), start(40.4, 2), lost(41, 2), at(45, "Tick")]
    b = [*second(), taken(40, 3, "lost"), at(45, "Tick")]
    assert "C3" not in violated(a, b)
    assert "'b' had taken it at 1970-01-01 00:00:30+00:00" in reason(
        "C3", a, [*second(), taken(30, 3, "lost"), at(45, "Tick")]
    )


def test_a_start_of_another_shard() -> None:
    """C3: what a start says of its shard is its shard."""
    assert "as of shard 4, and belongs to shard 0" in reason(
        "C3", [*first(), start(0, shard=4, term=2), end(1)]
    )


# --- C5 ---


def test_a_shard_that_nobody_takes() -> None:
    """C5: a shard is free, a member could take it, and does not."""
    a = [*first(tick_ms=4000), start(0), end(1), *ticks(3, 18), *given_and_stopped(20)]
    assert violated(a, [*ticking(33), taken(34, 3, "given"), *ticks(36, 60)]) == set()
    late = [*ticking(33), taken(34.6, 3, "given"), *ticks(36, 60)]
    assert violated(a, late) == {"C5"}
    told = reason("C5", a, ticking(60))
    assert (
        "shard 0 had no living holder from 1970-01-01 00:00:20+00:00 on ('a' had given it up) to the end"
        in told
    )
    assert "'b' could have taken it for 40 s" in told


def test_a_gap_that_nobody_can_explain_for_certain() -> None:
    """C5 is inconclusive if a member may have been frozen: without ticks nobody can tell."""
    a = [*first(), start(0), end(1), *given_and_stopped(20)]
    outcome = together(a, [*second(), at(60, "Tick")])
    assert (outcome.verdict("C5"), outcome.tallies["C5"].unknown) == (Verdict.INCONCLUSIVE, 1)


def test_a_shard_is_kept_for_a_member_that_hears_nothing() -> None:
    """C5 is inconclusive while its last holder, or another, may renew its lease and hear no answer."""
    a = [*first(tick_ms=4000), start(0), end(1), *ticks(3, 18), at(19, "Unreachable"), lost(20, 2)]
    a = [*a, *ticks(21, 60)]
    outcome = together(a, ticking(60))
    assert (outcome.verdict("C5"), outcome.tallies["C5"].unknown) == (Verdict.INCONCLUSIVE, 1)
    back = [*a[:-4], at(51, "Reachable"), *ticks(51, 60)]
    assert together(back, ticking(60)).verdict("C5") is Verdict.INCONCLUSIVE
    assert violated([*back, *ticks(63, 72)], ticking(72)) == {"C5"}


@pytest.mark.parametrize(
    "hindrance",
    [
        [at(15, "Unreachable"), at(55, "Reachable")],
        [at(15, "StopStart", call=2), at(16, "StopEnd", call=2)],
        [at(15, "Crash")],
        [at(15, "InitStart", call=2, regs=OTHER), at(16, "InitEnd", call=2, ok=True)],
    ],
)
def test_nobody_could_take_it(hindrance: list[Line]) -> None:
    """A member that is out of touch, stopped, dead or has another list need not take anything."""
    a = [*first(), start(0), end(1), given(20, 2), at(21, "StopStart", call=2), at(22, "StopEnd", call=2)]
    b = [*second(), *hindrance, *([] if hindrance[0]["ev"] == "Crash" else [at(60, "Tick")])]
    assert violated(a, b) == set()


def test_a_dead_member_that_nobody_replaces() -> None:
    """C5: a member of which nothing is heard any more, not even its ticks, is dead, and its shard free."""
    a = [*first(tick_ms=4000), *ticks(-6, -3), start(0), end(1), at(2, "Tick")]
    assert violated(a, ticking(18)) == set()
    assert violated(a, ticking(30)) == {"C5"}
    assert violated([*a, at(3, "End")], ticking(30)) == set()


# --- lists ---


def published(*events: Line) -> list[Line]:
    """The second member brings another list at 30 s and takes the shard."""
    return [
        *second(),
        at(30, "InitStart", call=2, regs=OTHER),
        at(30.1, "Edition", edition=2, regs=OTHER),
        taken(30.2, 4, None, 2),
        at(30.3, "InitEnd", call=2, ok=True),
        *events,
    ]


def test_a_list_brought_under_a_wrong_clock() -> None:
    """When the call began counts by the clock as it was set since: a list of minute 0 has its due."""
    a = [
        header("a"),
        at(3600 + 2, "InitStart", call=1, regs=REGS, proc="a1"),
        at(2.5, "ClockStep", **{"from": (3600 + 2.4) * 1000}),
        at(2.6, "Edition", edition=1, regs=REGS),
        taken(2.7, 2),
        at(2.8, "InitEnd", call=1, ok=True),
        start(3),
        end(4),
        at(60, "Tick"),
    ]
    assert violated(a) == set()


def test_a_list_brought_as_a_minute_ends() -> None:
    """A list may have come in the minute in which its call began, whenever the last holder learnt of it."""
    a = [*first(), start(0), end(1), given(60.3, 2), at(90, "Tick")]
    regs = [["x", "0 * * * *", 0]]
    b = [
        *second(),
        at(59.9, "InitStart", call=2, regs=[["x", "0 * * * *", 1]]),
        at(60.1, "Edition", edition=2, regs=regs),
        taken(60.2, 4, None, 2),
        at(60.3, "InitEnd", call=2, ok=True),
        start(60.4),
        end(61),
        at(90, "Tick"),
    ]
    assert violated(a, b) == set()


@pytest.mark.parametrize("answer", [[at(58, "InitEnd", call=1, ok=False)], []])
def test_a_list_brought_by_a_call_that_failed(answer: list[Line]) -> None:
    """A call that failed, or never returned, may have brought the first list, in a minute that was due."""
    b = [header("b", store="unknown"), at(61, "InitStart", call=1, regs=REGS, proc="b1"), taken(61.5, 2)]
    b += [at(61.6, "InitEnd", call=1, ok=True), start(61.7), end(62), at(100, "Tick")]
    for regs, expected in ((REGS, set()), (OTHER, {"S1d"})):
        a = [header("a"), at(55, "InitStart", call=1, regs=regs, proc="a1"), *answer]
        assert violated(a, b) == expected


@pytest.mark.parametrize(("called_s", "expected"), [(299.98, set()), (300.1, {"S1d"})])
def test_a_list_brought_in_the_minute_before(called_s: float, expected: set[str]) -> None:
    """A list may take effect in one minute by its member's clock, and in the next by that of the holder."""
    regs = [["x", "4 * * * *", 120_000]]
    a = [*first(), start(0), end(1), start(300.005, 2), given(302, 2), end(310, 2)]
    b = [*second(), at(called_s, "InitStart", call=2, regs=regs)]
    b += [at(called_s, "Edition", edition=2, regs=regs), taken(called_s + 0.01, 4, edition=2)]
    b += [at(called_s + 0.02, "InitEnd", call=2, ok=True), start(310.5), end(311), at(340, "Tick")]
    assert violated([*a, at(310.2, "Tick"), at(340, "Tick")], b) == expected


def test_a_list_that_was_brought_back() -> None:
    """A member that has this list already, of an older edition, may take by it as soon as it is published."""
    a = [*first(), start(0), end(1), lost(40, 2), taken(60.05, 5, None, 1), start(60.1, 2), end(61, 2)]
    b = published(
        given(60, 4), at(60.01, "InitStart", call=3, regs=REGS), at(60.06, "Edition", edition=3, regs=REGS)
    )
    assert "S1b" not in violated(a, b)


def test_a_list_of_which_no_trace_tells() -> None:
    """Whoever brought it got no answer. It may have removed the task, and the next one brought it back."""
    a = [*first(), start(0), end(1), given(31, 2), at(90, "Tick")]
    lines = published(start(30.4), end(31), at(90, "Tick"))
    b = [{**line, "edition": 3, "regs": REGS} if line["ev"] == "Edition" else line for line in lines]
    b = [{**line, "edition": 3, "term": 5} if line["ev"] == "Taken" else line for line in b]
    b = [{**line, "regs": REGS} if line["ev"] == "InitStart" else line for line in b]
    assert violated(a, b) == set()
    told = [{**line, "edition": 2} if line["ev"] in {"Edition", "Taken"} else line for line in b]
    assert "S1d" in violated(a, told)


# --- another server ---


def heard(line: Line, server: str) -> Line:
    return {**line, "server": server}


def test_terms_come_twice_after_a_server_that_forgot() -> None:
    """C1 and C2 are inconclusive if another server answers, and each task begins anew: it may have run."""
    a = [*first()[:3], heard(taken(-9.8, 2), "one"), *first()[4:], start(0), end(1)]
    again = [*second(), heard(taken(20, 2), "two"), start(20.1), end(21), start(300, 2), end(301, 2)]
    outcome = together(a, [*again, at(310, "Tick")])
    assert not outcome.violations
    assert {outcome.verdict(name) for name in ("C1", "C2")} == {Verdict.INCONCLUSIVE}
    same = [heard(line, "one") if line["ev"] == "Taken" else line for line in again]
    assert "C1" in violated(a, [*same, at(310, "Tick")])


def test_another_server_that_forgot_nothing() -> None:
    """A server that was restarted goes on with the terms: everything is judged, from the first due on."""
    a = [*first()[:3], heard(taken(-9.8, 2), "one"), *first()[4:], start(0), end(1), given(10, 2)]
    b = [*second(), heard(taken(20, 3, "given"), "two"), start(300, 1), end(301, 1)]
    assert violated(a, [*b, at(310, "Tick")]) == set()
    twice = [*b, start(305, 2), end(306, 2), at(310, "Tick")]
    assert violated(a, twice) == {"S1d", "T3", "T4"}
    assert violated(a, [*b[:-2], at(400, "Tick")]) == {"L1"}


def test_a_newer_list_that_another_server_may_have_forgotten() -> None:
    """A task that a newer list removed on the server before may be left alone or not: nobody knows."""
    gone = published()[:-2]
    b = [
        *gone[:-1],
        {**gone[-1], "regs": []},
        heard(taken(30.2, 4, None, 2), "one"),
        at(31, "InitEnd", call=2, ok=True),
    ]
    a = [*first()[:2], heard(first()[2], "one"), heard(first()[3], "one"), *first()[4:], start(0), end(1)]
    a = [*a, given(31, 2), heard(taken(60, 5, "lost"), "two")]
    idle = together([*a, at(400, "Tick")], b)
    assert not idle.violations
    assert idle.verdict("L1") is Verdict.INCONCLUSIVE
    assert not together([*a, start(300, 2), end(301, 2), at(400, "Tick")], b).violations


def test_a_run_from_before_another_server() -> None:
    """A run in flight when another server takes over is known to be: what is due waits for its end."""
    a = [*first()[:3], heard(taken(-9.8, 2), "one"), *first()[4:], start(0), given(10, 2), end(370)]
    b = [*second(), heard(taken(20, 3, "given"), "two"), start(370.1), end(371), at(440, "Tick")]
    assert violated([*a, at(440, "Tick")], b) == set()
    early = [*b[:-3], start(200), end(201), at(440, "Tick")]
    assert violated([*a, at(440, "Tick")], early) >= {"S1c", "C4"}


def test_a_newer_list_takes_effect() -> None:
    """From then on its registration counts: the due at minute 2, and no more the failure of before."""
    a = [*first(), start(0), end(1, ok=False), given(31, 2), at(290, "Tick")]
    assert violated(a, published(start(120.1), end(121), at(290, "Tick"))) == set()
    assert violated(a, published(start(121.5), end(122), start(130, 2), end(131, 2), at(290, "Tick"))) == {
        "S1d",
        "T3",
        "T4",
    }
    assert violated(a, published(at(290, "Tick"))) == {"L1"}


def test_a_start_by_an_older_list() -> None:
    """C6: a member that has not heard of a newer list starts a task that it changed."""
    a = [*first(), start(0), end(1), start(41, 2), end(41.2, 2), given(42, 2), at(45, "Tick")]
    b = published(at(45, "Tick"))
    assert {"C3", "C6"} <= violated(a, b)
    assert "as edition 1 has it; edition 2 had changed it at 1970-01-01 00:00:30.100+00:00" in reason(
        "C6", a, b
    )
    in_time = [*first(), start(0), end(1), given(42, 2), at(45, "Tick")]
    assert violated(in_time, b) == set()


def test_a_start_whose_answer_was_slow() -> None:
    """What was written before a newer list came may be called a little after it: C6 is inconclusive."""
    a = [*first(), start(0), end(1), start(31, 2), end(31.2, 2), given(32, 2), at(45, "Tick")]
    outcome = together(a, published(at(45, "Tick")))
    assert (outcome.verdict("C3"), outcome.verdict("C6")) == (Verdict.HOLDS, Verdict.INCONCLUSIVE)


def test_a_removed_task_is_not_started() -> None:
    """A task in no list any more has no dues, whoever holds its shard."""
    a = [*first(), start(0), end(1), given(31, 2), at(400, "Tick")]
    b = [line if line.get("regs") != OTHER else {**line, "regs": []} for line in published()]
    assert violated(a, [*b, at(400, "Tick")]) == set()
    assert {"S1b", "S1d"} <= violated(a, [*b, start(300.1), end(301), at(400, "Tick")])


def test_a_member_with_an_older_list_leaves_alone_what_changed() -> None:
    """If all with the newest list are gone, another may hold the shard, and starts what is the same."""
    both = [*REGS, ["y", "5 * * * *", 0]]
    newer = [*OTHER, ["y", "5 * * * *", 0]]
    a = [*first(both), start(0), end(1), given(31, 2)]
    b = [
        line if line.get("regs") != OTHER else {**line, "regs": newer} for line in published(at(40, "Crash"))
    ]
    y = [at(300.1, "RunStart", id="y", run=2), at(301, "RunEnd", id="y", run=2, ok=True)]
    back = [*a, taken(50, 5, "lost", 1), *y, at(400, "Tick")]
    assert violated(back, b) == set()
    wrong = [*back[:-1], start(302, 3), end(303, 3), back[-1]]
    assert "C6" in violated(wrong, b)


def test_a_list_of_which_nobody_told() -> None:
    """If the publisher died before it could tell, the list is known from whoever took shards under it."""
    a = [line for line in first() if line["ev"] != "Edition"]
    b = [*second(), taken(20, 3, "given"), start(300.1), end(301), at(400, "Tick")]
    assert violated([*a, start(0), end(1), given(19, 2), at(400, "Tick")], b) == set()
    nameless = [{**line, "edition": 0} if line["ev"] == "Taken" else line for line in b]
    assert violated([*first(), start(0), end(1), given(19, 2), at(400, "Tick")], nameless) == set()


# --- members by themselves, and traces that are at fault ---


def test_a_member_s_own_calls_are_judged() -> None:
    """Stop waits for the callbacks of its own member, wherever the shard is by then."""
    a = [*first(), start(0), at(9, "StopStart", call=2), given(10, 2), at(20, "StopEnd", call=2), end(30)]
    b = [*second(), taken(10.2, 3, "given"), at(40, "Tick")]
    assert violated(a, b) == {"S3", "T5"}
    assert reason("S3", a, b).endswith("while 'x' was running (member 'a')")


def test_a_process_after_another_in_one_file() -> None:
    """A member that is started again goes on in its file as another process, and takes what was its own."""
    again = [at(20, "InitStart", call=1, regs=REGS, proc="a2"), at(20.1, "InitEnd", call=1, ok=True)]
    a = [
        *first(),
        start(0),
        at(4, "Tick"),
        *again,
        taken(20.2, 3, "lost"),
        start(20.3),
        end(21),
        at(250, "Tick"),
    ]
    outcome = together(a)
    assert (outcome.overall, outcome.crashes) == (Verdict.HOLDS, 1)


def test_parts_of_a_member_s_trace() -> None:
    """A file that follows another says again what is held, and that is not taken twice."""
    carried = [
        header("a", follows=True, store="unknown", running=[["x", 1]]),
        at(10, "InitStart", call=0, regs=REGS, proc="a1"),
        at(10, "InitEnd", call=0, ok=True),
        taken(10, 2),
    ]
    rest = [end(20), start(300.1, 2), end(301, 2), at(400, "Tick")]
    assert violated([*first(), start(0), *carried, *rest]) == set()
    assert violated([*carried, *rest]) == set()


def test_after_a_fault_nothing_is_held_against_anybody() -> None:
    """What comes after a fault in any of the traces is doubtful in all."""
    a = [*first(), start(0), end(1), given(19, 2), at(30, "Tick"), at(25, "Tick"), at(60, "Tick")]
    b = [*second(), taken(19.5, 3, "given"), start(50), end(51), at(60, "Tick")]
    outcome = together(a, b)
    assert (outcome.violations, outcome.fault_count) == ([], 1)
    assert outcome.tallies["S1d"].doubtful == 1
    assert outcome.overall is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"tz": "Europe/Berlin"}, "has the zone Europe/Berlin"),
        ({"shards": 2}, "has 2 shards"),
        ({"member": ""}, "of no member of a cluster"),
        ({"shards": 0}, "says how many shards there are"),
    ],
)
def test_traces_that_do_not_belong_together(facts: Line, told: str) -> None:
    """Members of one cluster agree on their zone and on the number of shards."""
    with pytest.raises(TraceError, match=told):
        together([*first(), at(30, "Tick")], [{**second()[0], **facts}, *second()[1:]])


def test_a_board_whose_clock_was_set() -> None:
    """When the time of the cluster is set back, later terms have earlier times, and that is no disorder."""
    a = [
        *first(),
        start(0),
        end(1),
        given(100, 2),
        at(-3500, "ClockStep", **{"from": 101_000}),
        at(-3400, "Tick"),
    ]
    b = [*second(), at(-3500, "ClockStep", **{"from": 101_000}), taken(-3499, 3, "given"), at(-3400, "Tick")]
    assert violated(a, b) == set()


def test_the_trace_of_a_member_may_be_missing() -> None:
    """Tenures in no trace are counted; of one member alone nothing is said that others could explain."""
    a = [*first(), start(0), end(1), given(10, 2), taken(200, 5, "given"), at(400, "Tick")]
    outcome = together(a)
    assert (outcome.terms_missing, outcome.is_partial, outcome.violations) == (2, True, [])
    outcome = together(a, [*second(), at(400, "Tick")])
    assert (outcome.terms_missing, outcome.is_partial) == (2, False)
