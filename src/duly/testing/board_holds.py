"""What every board does about members and the shards they hold: join, renew, take, give, leave."""

import asyncio

import pytest

from duly.errors import StoreError
from duly.instant import MINUTE_US
from duly.store.board import Hold, Row, SeatLostError, ShardsLostError
from duly.testing.board_stories import (
    ALL,
    NOW_US,
    SHARDS,
    TTL_US,
    Another,
    Time,
    beaten,
    held,
    ids_of,
    joined,
    listed,
    never,
    opened,
    place,
    seat,
    story,
    task_in,
)


class HoldStories:
    """Members and shards."""

    @story
    async def test_new_board_is_empty(self, another: Another) -> None:
        """A new board has the identifier it is given, no member, no edition, and shards that are nobody's."""
        board = another()
        assert await board.open("first", shards=7) == "first"
        view = await board.view()
        assert (view.now_us, view.edition, list(view.seats), list(view.reported)) == (NOW_US, 0, [], [])
        assert [(place.shard, place.holder, place.term) for place in view.places] == [
            (shard, None, 0) for shard in range(7)
        ]

    @story
    async def test_look_makes_nothing(self, another: Another) -> None:
        """Opening with no identifier makes no board, and opens one that is there."""
        board = another()
        for _ in range(2):
            with pytest.raises(StoreError, match="start a scheduler on it first"):
                await board.open("")
            with pytest.raises(StoreError, match="is not open"):
                await board.view()
        await another().open("first")
        assert await board.open("") == "first"

    @story
    async def test_first_opening_decides(self, another: Another) -> None:
        """The identifier and the number of shards of the first opening are those of all later ones."""
        await opened(another)
        later = another()
        assert await later.open("second", shards=99) == "first"
        assert len((await later.view()).places) == SHARDS

    @story
    async def test_closed_board_refuses(self, another: Another) -> None:
        """A board that is not open refuses every call, and may be opened again; nothing was lost."""
        (board,) = await joined(another, 1)
        await held(board, 1)
        for shut in (board.close, board.drop):
            await shut()
            for call in (
                board.join(1, "x", ttl_us=1),
                board.beat(1, ttl_us=1),
                board.view(),
                board.publish(1, "f", never),
                board.take(1, [0]),
                board.write(1, {Hold(0, 1): 1}, rows=[]),
                board.report(1, []),
                board.give(1, []),
                board.leave(1),
            ):
                with pytest.raises(StoreError):
                    await call
            await board.open("again")
        assert [place.holder for place in (await board.view()).places] == [1] * SHARDS

    @story
    async def test_member_joins(self, another: Another, time: Time) -> None:
        """A member that joined has a lease, no edition and no shard, and everybody sees it."""
        first, second = await joined(another, 1, 2**62 - 1)
        time.advance(5)
        await beaten(second, 2**62 - 1)
        for board in (first, second):
            other = await seat(board, 2**62 - 1)
            assert other is not None
            assert (other.name, other.edition, other.is_alive) == (f"host:{2**62 - 1}", 0, True)
            assert (other.joined_us, other.beaten_us, other.lag_ms) == (NOW_US, NOW_US + 5, 0)
            assert all(place.holder is None for place in (await board.view()).places)

    @story
    async def test_lease_ends(self, another: Another, time: Time) -> None:
        """A lease is good until its time has passed, and not a microsecond longer."""
        (board,) = await joined(another, 1)
        time.advance(TTL_US - 1)
        assert [seat.is_alive for seat in (await board.view()).seats] == [True]
        time.advance(1)
        assert [seat.is_alive for seat in (await board.view()).seats] == [False]

    @story
    async def test_beat_renews(self, another: Another, time: Time) -> None:
        """A beat renews the lease from now on, and tells what the member says of itself."""
        (board,) = await joined(another, 1)
        time.advance(TTL_US - 1)
        view = await board.beat(1, ttl_us=TTL_US, lag_ms=250, is_leaving=True)
        (mine,) = view.seats
        assert (mine.is_alive, mine.beaten_us, mine.lag_ms, mine.is_leaving) == (True, time.now_us, 250, True)
        assert view.now_us == time.now_us
        time.advance(TTL_US - 1)
        (mine,) = (await board.view()).seats
        assert mine.is_alive
        (mine,) = (await board.beat(1, ttl_us=1)).seats
        assert (mine.lag_ms, mine.is_leaving) == (0, False)

    @story
    async def test_expired_lease_is_renewed(self, another: Another, time: Time) -> None:
        """A member that was silent for too long, and from whom nobody took anything, goes on as it was."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        time.advance(TTL_US * 10)
        view = await board.beat(1, ttl_us=TTL_US)
        assert [(place.holder, place.term) for place in view.places] == [(1, 1)] * SHARDS
        await board.write(1, dict.fromkeys(holds.values(), 1), rows=[])

    @story
    async def test_unknown_member_is_told(self, another: Another) -> None:
        """Whoever is no member cannot renew, publish or take."""
        board = await opened(another)
        for call in (board.beat(9, ttl_us=TTL_US), board.publish(9, "f", never), board.take(9, ALL)):
            with pytest.raises(SeatLostError):
                await call
        view = await board.view()
        assert (view.edition, list(view.seats)) == (0, [])
        assert {place.holder for place in view.places} == {None}

    @story
    async def test_joining_again_is_beginning_again(self, another: Another, time: Time) -> None:
        """A member that joins a second time has no edition and no shard; its old holds are refused."""
        (board,) = await joined(another, 1)
        await listed(board, 1)
        holds = await held(board, 1)
        time.advance(3)
        await board.join(1, "again", ttl_us=TTL_US)
        mine = await seat(board, 1)
        assert mine is not None
        assert (mine.name, mine.edition, mine.joined_us) == ("again", 0, time.now_us)
        assert (await place(board, 0)).holder is None
        with pytest.raises(ShardsLostError):
            await board.write(1, {holds[0]: 1}, rows=[])

    @story
    async def test_long_dead_are_forgotten(self, another: Another, time: Time) -> None:
        """A member dead for more than a day is forgotten when another joins, unless it holds something."""
        first, *_ = await joined(another, 1, 2)
        await held(first, 2, 0)
        time.advance(24 * 60 * MINUTE_US)
        await joined(another, 3)
        assert {seat.member for seat in (await first.view()).seats} == {1, 2, 3}
        time.advance(TTL_US)
        await joined(another, 4)
        assert {seat.member for seat in (await first.view()).seats} == {2, 3, 4}

    @story
    async def test_leaving_gives_up_everything(self, another: Another) -> None:
        """A member that left is gone, and what it held is free at once; leaving again does no harm."""
        first, second = await joined(another, 1, 2)
        old = await held(first, 1)
        for _ in range(2):
            await first.leave(1)
        assert await seat(second, 1) is None
        assert await held(second, 2) == {shard: Hold(shard, 2) for shard in ALL}
        assert (await place(second, 0)).lost_by is None
        with pytest.raises(ShardsLostError):
            await first.write(1, {old[0]: 1}, rows=[])

    @story
    async def test_free_shards_are_taken(self, another: Another, time: Time) -> None:
        """Taking a free shard gives it the next term; others stay as they are."""
        (board,) = await joined(another, 1)
        time.advance(77)
        taken = await board.take(1, [2, 0])
        assert sorted(taken.holds) == [Hold(0, 1), Hold(2, 1)]
        assert taken.now_us == time.now_us
        places = (await board.view()).places
        assert [(place.holder, place.term) for place in places] == [(1, 1), (None, 0), (1, 1), (None, 0)]
        assert places[2].taken_us == time.now_us

    @story
    async def test_nothing_is_taken_by_asking_for_nothing(self, another: Another) -> None:
        """Taking no shards, or shards that are not there, takes none."""
        (board,) = await joined(another, 1)
        for shards in ([], [SHARDS, 99]):
            taken = await board.take(1, shards)
            assert (list(taken.holds), list(taken.stored)) == ([], [])

    @story
    async def test_own_shard_is_taken_again(self, another: Another) -> None:
        """Taking what one holds gives the next term; the old one is refused, though of the same holder."""
        (board,) = await joined(another, 1)
        old = await held(board, 1)
        await board.write(1, {old[0]: 5}, rows=[])
        new = await held(board, 1)
        assert new[0] == Hold(0, 2)
        with pytest.raises(ShardsLostError):
            await board.write(1, {old[0]: 6}, rows=[])
        await board.write(1, {new[0]: 1}, rows=[])
        assert (await place(board, 0)).lost_by is None

    @story
    async def test_living_member_keeps_its_shards(self, another: Another) -> None:
        """What a living member holds is not taken; the rest of what was asked for is."""
        first, second = await joined(another, 1, 2)
        await held(first, 1, 1, 2)
        taken = await second.take(2, ALL)
        assert sorted(hold.shard for hold in taken.holds) == [0, 3]
        assert [place.holder for place in (await first.view()).places] == [2, 1, 1, 2]

    @story
    async def test_shards_of_the_dead_are_taken(self, another: Another, time: Time) -> None:
        """What a dead member holds is taken with the next term; from whom and when is remembered."""
        first, second = await joined(another, 1, 2)
        old = await held(first, 1)
        time.advance(TTL_US - 1)
        await beaten(second, 2)
        assert list((await second.take(2, ALL)).holds) == []
        time.advance(1)
        new = await held(second, 2)
        assert new[3] == Hold(3, 2)
        lost = await place(first, 3)
        assert (lost.holder, lost.lost_by, lost.lost_us) == (2, 1, time.now_us)
        await beaten(first, 1)  # too late
        with pytest.raises(ShardsLostError) as refused:
            await first.write(1, dict.fromkeys(old.values(), 1), rows=[])
        assert refused.value.shards == set(ALL)

    @story
    async def test_last_failover_is_remembered(self, another: Another, time: Time) -> None:
        """From whom a shard was lost stays known when it changes hands in peace."""
        first, second = await joined(another, 1, 2)
        await held(first, 1)
        time.advance(TTL_US)
        await beaten(second, 2)
        holds = await held(second, 2)
        lost_us = time.now_us
        time.advance(1)
        await second.give(2, list(holds.values()))
        await beaten(first, 1)
        await held(first, 1)
        lost = await place(first, 0)
        assert (lost.holder, lost.lost_by, lost.lost_us, lost.taken_us) == (1, 1, lost_us, time.now_us)

    @story
    async def test_the_dead_take_nothing(self, another: Another, time: Time) -> None:
        """A member whose lease ran out takes nothing, not even its own, before it has renewed it."""
        (board,) = await joined(another, 1)
        await held(board, 1, 0)
        time.advance(TTL_US)
        with pytest.raises(SeatLostError):
            await board.take(1, ALL)
        assert [(place.holder, place.term) for place in (await board.view()).places[:2]] == [
            (1, 1),
            (None, 0),
        ]
        await beaten(board, 1)
        await held(board, 1)

    @story
    async def test_everyone_reaching_at_once(self, another: Another) -> None:
        """Of many members that take the same shards at once each shard goes to one of them."""
        members = range(1, 6)
        boards = await joined(another, *members)
        calls = [board.take(member, ALL) for board, member in zip(boards, members, strict=True)]
        answers = await asyncio.gather(*calls)
        taken = {
            hold.shard: member
            for member, answer in zip(members, answers, strict=True)
            for hold in answer.holds
        }
        assert sum(len(answer.holds) for answer in answers) == SHARDS
        assert [place.holder for place in (await boards[0].view()).places] == [taken[shard] for shard in ALL]

    @story
    async def test_tasks_come_with_their_shards(self, another: Another) -> None:
        """Whoever takes shards is given the tasks in those that were taken, and no others."""
        first, second = await joined(another, 1, 2)
        await listed(first, 1, *(Row(task_in(shard, 10 + shard)) for shard in ALL))
        await held(first, 1, 1)
        assert ids_of(await second.take(2, [0, 1, 3])) == [10, 13]

    @story
    async def test_given_shard_is_free(self, another: Another) -> None:
        """A shard that was given up is nobody's, and the next term begins when somebody takes it."""
        first, second = await joined(another, 1, 2)
        holds = await held(first, 1)
        await first.give(1, [holds[0], holds[2]])
        assert [place.holder for place in (await second.view()).places] == [None, 1, None, 1]
        with pytest.raises(ShardsLostError) as refused:
            await first.write(1, {holds[0]: 1, holds[1]: 1}, rows=[])
        assert refused.value.shards == {0}
        assert await held(second, 2, 0) == {0: Hold(0, 2)}

    @story
    async def test_giving_what_is_not_held(self, another: Another) -> None:
        """Of what a member gives up, that which it does not hold for that term is passed over."""
        first, second = await joined(another, 1, 2)
        await held(first, 1, 0, 1)
        again = await held(first, 1, 0)
        await held(second, 2, 2)
        await first.give(1, [Hold(0, 1), Hold(2, 1), Hold(3, 0)])
        assert [place.holder for place in (await first.view()).places] == [1, 1, 2, None]
        await first.give(1, [again[0], Hold(1, 7)])
        assert [place.holder for place in (await first.view()).places] == [None, 1, 2, None]
