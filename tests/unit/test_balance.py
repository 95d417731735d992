"""Who should hold what: members share alike, come to rest, and give nothing to those that cannot keep up."""

import random
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from duly.cluster.balance import LAGGING_MS, planned, quotas_of
from duly.store.board import Place, Seat, View


def seat(
    member: int, *, edition: int = 1, is_alive: bool = True, lag_ms: int = 0, is_leaving: bool = False
) -> Seat:
    """A member on the board."""
    return Seat(member, f"m{member}", edition, is_alive, 0, 0, lag_ms, is_leaving)


def view(seats: Iterable[Seat], holders: Iterable[int | None], edition: int = 1) -> View:
    """A board with these members, and the holder of each shard."""
    places = [Place(shard, 1, holder, 0) for shard, holder in enumerate(holders)]
    return View(0, edition, list(seats), places)


def held(holders: Sequence[int | None], member: int) -> list[int]:
    """The shards of one member."""
    return [shard for shard, holder in enumerate(holders) if holder == member]


def turn(seats: list[Seat], holders: list[int | None], member: int, *, edition: int = 1) -> bool:
    """Let one member do what it should, as the board would let it; whether it did anything."""
    plan = planned(view(seats, holders, edition), member, held(holders, member), may_take_over=True)
    alive = {other.member for other in seats if other.is_alive}
    for shard in plan.take:
        assert holders[shard] is None or holders[shard] not in alive
        holders[shard] = member
    for shard in plan.give:
        assert holders[shard] == member
        holders[shard] = None
    return bool(plan.take or plan.give)


def test_the_first_takes_everything() -> None:
    """A member alone takes every shard at once."""
    plan = planned(view([seat(1)], [None] * 8), 1, [], may_take_over=False)
    assert plan.take == tuple(range(8))


def test_a_newcomer_gets_its_share() -> None:
    """Who holds all gives away what a newcomer lacks, and no more."""
    seats, holders = [seat(1), seat(2)], [1] * 8
    plan = planned(view(seats, holders), 1, range(8), may_take_over=True)
    assert len(plan.give) == 4
    assert plan.take == ()


def test_nothing_moves_without_need() -> None:
    """Three members with 3, 3 and 2 of 8 shards are at rest."""
    seats, holders = [seat(1), seat(2), seat(3)], [2, 2, 2, 3, 3, 3, 1, 1]
    for member in (1, 2, 3):
        plan = planned(view(seats, holders), member, held(holders, member), may_take_over=True)
        assert plan == ((), ())


def test_a_dead_member_is_left_alone_at_first() -> None:
    """What a dead member held is not touched by one that was itself without the board a moment ago."""
    seats, holders = [seat(1), seat(2, is_alive=False)], [2] * 4
    assert planned(view(seats, holders), 1, [], may_take_over=False).take == ()
    assert planned(view(seats, holders), 1, [], may_take_over=True).take == (0, 1, 2, 3)


@pytest.mark.parametrize("mine", [0, 3])
def test_what_its_taker_does_not_take(mine: int) -> None:
    """What is still a dead member's after a while is taken by any who may, also beyond its share."""
    seats, holders = [seat(1), seat(2), seat(3, is_alive=False)], [1] * mine + [3] * (6 - mine)
    dead_us = 9_000_000
    soon, late = (msgspec.structs.replace(view(seats, holders), now_us=us) for us in (dead_us - 1, dead_us))
    plans = [
        planned(seen, 1, range(mine), may_take_over=may, overdue_us=dead_us)
        for seen, may in ((soon, True), (late, False), (late, True))
    ]
    assert [len(plan.take) for plan in plans] == [3 - mine, 0, 6 - mine]
    assert not any(plan.give for plan in plans)


def test_our_own_are_taken_at_once() -> None:
    """A shard that the board has as ours and we do not hold is taken again, whatever else."""
    assert planned(view([seat(1)], [1, 1]), 1, [], may_take_over=False).take == (0, 1)


def test_who_lags_is_given_no_more() -> None:
    """A member that starts things late keeps at most what it has."""
    slow = seat(1, lag_ms=LAGGING_MS + 1)
    seats, holders = [slow, seat(2)], [1, None, None, None]
    assert planned(view(seats, holders), 1, [0], may_take_over=True).take == ()
    assert quotas_of(view(seats, holders)) == {1: 1, 2: 3}


def test_all_lag_and_all_is_held() -> None:
    """If everybody is late, the shards are shared all the same: somebody must have them."""
    seats = [seat(1, lag_ms=9_999), seat(2, lag_ms=9_999)]
    assert sum(quotas_of(view(seats, [None] * 5)).values()) == 5


def test_an_older_list_gets_nothing() -> None:
    """While a living member has the newest list, one with an older list holds nothing."""
    seats = [seat(1, edition=1), seat(2, edition=2)]
    assert quotas_of(view(seats, [None] * 4, edition=2)) == {2: 4}


def test_an_older_list_is_better_than_none() -> None:
    """When nobody alive has the newest list, the newest one left goes on."""
    seats = [seat(1, edition=1), seat(2, edition=2, is_alive=False), seat(3, edition=0)]
    assert quotas_of(view(seats, [None] * 4, edition=2)) == {1: 4}


def test_who_leaves_is_given_nothing() -> None:
    """A member that is stopping has no share."""
    assert quotas_of(view([seat(1, is_leaving=True), seat(2)], [None] * 4)) == {2: 4}


@pytest.mark.parametrize("seed", range(200))
def test_members_come_to_rest(seed: int) -> None:
    """From any beginning, in any order of turns, all shards are soon held, evenly, and at rest."""
    chance = random.Random(seed)
    members = range(1, chance.randint(1, 6) + 1)
    seats = [
        seat(
            member,
            edition=chance.choice([1, 2, 2, 2]),
            is_alive=chance.random() < 0.8,
            lag_ms=chance.choice([0, 0, 0, 5_000]),
        )
        for member in members
    ]
    holders: list[int | None] = [chance.choice([None, *members, 99]) for _ in range(chance.randint(1, 32))]
    living = [other.member for other in seats if other.is_alive]
    if not living:
        return
    for _ in range(2 * len(living) + 2):
        moved = [turn(seats, holders, member, edition=2) for member in chance.sample(living, len(living))]
    assert not any(moved), holders
    quotas = quotas_of(view(seats, holders, 2))
    assert {member: len(held(holders, member)) for member in quotas} == quotas
    brisk = [quotas[s.member] for s in seats if s.member in quotas and s.lag_ms == 0]
    assert max(brisk, default=0) - min(brisk, default=0) <= 1
    assert sum(quotas.values()) == len(holders)
