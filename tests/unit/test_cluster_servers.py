"""Clusters that live on while another server of the database comes to answer, in small traces by hand.

Holders go on to hold, and nothing is told of that; a term or an edition may come twice; and what only the
dead knew is lost. What is no fault for these reasons is one without them: each test has both.
"""

from duly.verify import Verdict
from tests.unit.test_cluster_traces import (
    OTHER,
    REGS,
    Line,
    at,
    end,
    first,
    given,
    header,
    heard,
    lost,
    published,
    second,
    start,
    stopped,
    taken,
    together,
    violated,
)


def told_by(server: str, lines: list[Line]) -> list[Line]:
    """The lines, with the server that said so where one did."""
    return [heard(line, server) if line["ev"] in {"Taken", "Edition"} else line for line in lines]


def test_a_term_that_the_same_member_gets_twice() -> None:
    """A member that holds a shard for the term of before, by another server, may start what is in it."""
    a = [*told_by("one", first()), start(0), end(1)]
    b = [*second(), *told_by("one", [taken(30, 3)]), given(40, 3), at(310, "Tick")]
    again = told_by("two", [taken(60, 2)])
    later = [start(300, 2), end(301, 2), at(310, "Tick")]
    assert violated([*a, *again, *later], b) == set()
    assert "C3" in violated([*a, *later], b)
    assert "C3" in violated([*a, *told_by("one", [taken(20, 2)]), *later], b)


def test_a_run_that_is_cut_off_under_a_term_that_came_twice() -> None:
    """A loss cuts off the runs of both terms of that number; without it they are in flight until they end."""
    a = [*told_by("one", first()), start(0), *told_by("two", [taken(10, 2)])]
    b = [*second(), *told_by("two", [taken(25, 3)]), start(26), end(27), at(70, "Tick")]
    ended = [end(60, ok=False), at(70, "Tick")]
    assert violated([*a, lost(20, 2), *ended], b) == set()
    assert violated([*a, given(20, 2), *ended], b) >= {"S1c", "C4"}


def test_a_shard_taken_while_the_next_list_is_being_brought() -> None:
    """It is taken by the list before, which is not mistaken for the next; that one counts when it is told."""
    a = [
        header("a", shards=2),
        at(-10, "InitStart", call=1, regs=REGS, proc="a1"),
        *told_by("one", [at(-9.9, "Edition", edition=1, regs=REGS), taken(-9.8, 2), taken(-9.8, 2, shard=1)]),
        at(-9.7, "InitEnd", call=1, ok=True),
        *(start(0), end(1)),
        *(at(20, "Lost", shard=shard, term=2) for shard in (0, 1)),
        *told_by("two", [taken(60, 2, shard=1)]),
        *(start(300, 2), end(301, 2)),
        at(302, "InitStart", call=2, regs=[]),
        *told_by("two", [taken(303, 2), at(304, "Edition", edition=2, regs=[])]),
        *told_by("two", [taken(304.1, 4, edition=2, shard=shard) for shard in (0, 1)]),
        at(304.2, "InitEnd", call=2, ok=True),
    ]
    assert violated([*a, at(700, "Tick")]) == set()
    assert violated([*a, start(600, 3), end(601, 3), at(700, "Tick")]) >= {"S1b", "S1d"}


def left(*events: Line) -> list[Line]:
    """A member brings a list, runs by it, and brings the older one of another while its run goes on."""
    return [
        header("b", store="unknown"),
        at(-8, "InitStart", call=1, regs=REGS, proc="b1"),
        at(-7.9, "Edition", edition=2, regs=REGS),
        taken(-7.8, 4, edition=2),
        at(-7.7, "InitEnd", call=1, ok=True),
        start(0),
        at(10, "InitStart", call=2, regs=OTHER),
        at(10.1, "InitEnd", call=2, ok=True),
        *events,
        at(110, "Tick"),
    ]


def test_a_shard_that_is_let_go_with_its_list() -> None:
    """Its runs go on, up to the loss that is told later: what ended before that is not owed once more."""
    a = [*first(OTHER), given(-7, 2), at(110, "Tick")]
    c = [{**line, "proc": "c1"} for line in second()[1:]]
    c = [header("c", store="unknown"), *c, taken(12, 5, edition=2)]
    assert violated(a, left(end(14), lost(30, 4)), [*c, at(110, "Tick")]) == set()
    assert violated(a, left(lost(30, 4)), [*c, at(110, "Tick")]) == {"L1", "T6"}
    assert violated(a, left(lost(30, 4)), [*c, start(31), end(32), at(110, "Tick")]) == set()
    early = [*c, start(13), end(13.1), at(110, "Tick")]
    assert violated(a, left(end(14), lost(30, 4)), early) >= {"S1c", "C4"}


def test_an_end_that_died_with_its_member_and_the_server() -> None:
    """An end that a member reported before it stopped may be forgotten by another server, and only by it."""
    a = [*told_by("one", first()), start(0), given(5, 2), end(20, ok=False)]
    b = [*second(), *told_by("one", [taken(6, 3)]), start(24), end(25)]
    another = [*told_by("two", [taken(40, 4)]), at(70, "Tick")]
    outcome = together([*a, *stopped(20.1)], [*b, *another])
    assert not outcome.violations
    assert outcome.verdict("S1d") is Verdict.INCONCLUSIVE
    assert violated([*a, at(23, "Tick"), at(70, "Tick")], [*b, *another]) == {"S1d"}
    assert violated([*a, *stopped(20.1)], [*b, at(70, "Tick")]) == {"S1d"}
    still = [*told_by("one", [taken(30, 4)]), *told_by("two", [taken(40, 5)]), at(70, "Tick")]
    assert violated([*a, *stopped(20.1)], [*b, *still]) == {"S1d"}


def test_a_due_after_an_end_that_may_be_forgotten() -> None:
    """A start that is due anyway is no question."""
    a = [*told_by("one", first()), start(0), given(5, 2), end(298), *stopped(298.1)]
    b = [*second(), *told_by("one", [taken(6, 3)]), start(300), end(301), *told_by("two", [taken(310, 4)])]
    outcome = together(a, [*b, at(330, "Tick")])
    assert not outcome.violations
    assert outcome.verdict("S1d") is Verdict.HOLDS


def test_a_list_whose_call_failed_before_others_took_by_an_older_one() -> None:
    """It may have brought back what they start: the term that is missing says that something was brought."""
    third = [*REGS, ["y", "7 * * * *", 0]]

    def members(term: int, called_s: float) -> tuple[list[Line], list[Line]]:
        a = [*first(), start(0), end(1), given(31, 2), taken(56, term), start(300, 2), end(301, 2)]
        failed = [
            at(called_s, "InitStart", call=3, regs=third),
            at(called_s + 5, "InitEnd", call=3, ok=False),
        ]
        came = [at(410, "InitStart", call=4, regs=third), at(410.1, "InitEnd", call=4, ok=True)]
        b = published(*sorted([lost(55, 4), *failed], key=lambda line: line["t"]), *came)
        return [*a, given(420, term), at(450, "Tick")], [*b, taken(421, 7, edition=3), at(450, "Tick")]

    outcome = together(*members(6, 50))
    assert not outcome.violations
    assert outcome.verdict("C6") is Verdict.INCONCLUSIVE
    assert violated(*members(5, 50)) >= {"S1a", "C6"}
    assert violated(*members(6, 400)) >= {"S1a", "C6"}
