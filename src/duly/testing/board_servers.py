"""What every board does when another server of it comes to answer, which may have forgotten the latest.

Nothing is really forgotten here: what a board does about it is the same.
"""

import pytest

from duly.core.record import record_of
from duly.store.board import AwayEnd, Board, Change, Hold, Row, SeatLostError, ShardsLostError
from duly.testing.board_removals import listed_without, running
from duly.testing.board_stories import (
    ALL,
    NOW_US,
    TTL_US,
    Another,
    Time,
    beaten,
    held,
    joined,
    listed,
    putting,
    removed_from,
    rows_of,
    seat,
    story,
    task_in,
)


class ServerStories:
    """Another server, and what members tell it."""

    @story
    async def test_nobody_takes_shards_of_another_server(self, another: Another, time: Time) -> None:
        """For the time of a lease after it first answered no shard is to be had, whoever asks."""
        first, second = await joined(another, 1, 2)
        await held(first, 1, 0, 1)
        time.change_server()
        await first.beat(1, ttl_us=TTL_US)
        time.advance(TTL_US - 1)
        await beaten(first, 1)
        await second.join(3, "fresh", ttl_us=TTL_US)
        for member, board in ((1, first), (3, second)):
            taken = await board.take(member, ALL)
            assert (list(taken.holds), list(taken.stored)) == ([], [])
        time.advance(1)
        assert {hold.shard for hold in (await second.take(3, ALL)).holds} == {2, 3}
        assert {hold.shard for hold in (await first.take(1, ALL)).holds} == {0, 1}

    @pytest.mark.parametrize("asks", ["join", "beat", "take", "publish", "claim"])
    @story
    async def test_whoever_asks_first_closes_it(self, another: Another, time: Time, asks: str) -> None:
        """Whatever a member does first on another server, from then on nothing is to be had."""
        (board,) = await joined(another, 1)
        time.change_server()
        await _asked(board, asks)
        time.advance(TTL_US - 1)
        await beaten(board, 1)
        assert not (await board.take(1, ALL)).holds
        time.advance(1)
        assert (await board.take(1, ALL)).holds

    @story
    async def test_runners_may_live_on_a_closed_board(self, another: Another, time: Time) -> None:
        """It may have forgotten that leases were renewed: whoever it knows as a runner may run still."""
        first, second = await joined(another, 1, 2)
        task, gone = running(task_in(0, 1)), running(task_in(1, 2))
        await listed(first, 1, Row(task, 2), Row(gone, 3))
        time.advance(3 * TTL_US)
        time.change_server()
        await beaten(first, 1)
        assert [row.is_runner_alive for row in (await rows_of(first)).values()] == [True, False]
        await listed_without(first, 1, 1, 2)
        assert await removed_from(first) == [1]
        time.advance(TTL_US)
        await beaten(first, 1)
        assert not (await rows_of(second))[1].is_runner_alive

    @story
    async def test_the_dead_stay_dead_otherwise(self, another: Another, time: Time) -> None:
        """Whoever was dead counts as dead for all else: it keeps nobody's list from taking effect."""
        first, second = await joined(another, 1, 2)
        await listed(first, 1, fingerprint="older")
        await listed(second, 2, fingerprint="newer")
        time.advance(3 * TTL_US)
        time.change_server()
        await beaten(first, 1)
        assert not await _is_alive(first, 2)
        assert (await first.publish(1, "older", putting())).is_new

    @story
    async def test_lease_of_a_clock_that_was_ahead(self, another: Another, time: Time) -> None:
        """No lease lasts longer on another server than it is closed, whatever the clock showed before."""
        first, second = await joined(another, 1, 2)
        await second.beat(2, ttl_us=TTL_US)
        await held(second, 2)
        time.advance(-100 * TTL_US)
        time.change_server()
        await beaten(first, 1)
        time.advance(TTL_US)
        await beaten(first, 1)
        assert not await _is_alive(first, 2)
        assert (await first.take(1, ALL)).holds

    @story
    async def test_clock_that_is_set_back_opens_it(self, another: Another, time: Time) -> None:
        """It is not closed for as long as the clock was wrong when it closed."""
        (board,) = await joined(another, 1)
        time.change_server()
        await beaten(board, 1)
        time.advance(-100 * TTL_US)
        await beaten(board, 1)
        assert (await board.take(1, ALL)).holds

    @story
    async def test_nothing_is_written_on_a_closed_board(self, another: Another, time: Time) -> None:
        """Who held a shard may have lost it by what was forgotten: nothing is written by its term."""
        (board,) = await joined(another, 1)
        task = task_in(0, 1)
        await listed(board, 1, Row(task))
        holds = await held(board, 1)
        time.change_server()
        for is_whole in (False, True):  # the first to ask, and then once more
            with pytest.raises(ShardsLostError):
                await board.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)], is_whole=is_whole)
        assert (await rows_of(board))[1].run_by is None
        assert not (await board.beat(1, ttl_us=TTL_US)).is_open
        time.advance(TTL_US)
        assert (await board.beat(1, ttl_us=TTL_US)).is_open
        await board.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)])

    @story
    async def test_longest_lease_counts(self, another: Another, time: Time) -> None:
        """It is closed for the longest lease of those it knows, however short that of the one who asks is."""
        first, second = await joined(another, 1, 2)
        await second.beat(2, ttl_us=5 * TTL_US)
        time.change_server()
        await beaten(first, 1)
        time.advance(5 * TTL_US - 1)
        await beaten(first, 1)
        assert not (await first.take(1, ALL)).holds
        time.advance(1)
        assert (await first.take(1, ALL)).holds

    @story
    async def test_claim(self, another: Another) -> None:
        """What is claimed is on its row, whoever holds the shard, which stays with its holder."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        await listed(first, 1, Row(task))
        holds = await held(first, 1)
        await second.claim(2, lambda *_: Change([Row(running(task), 2)], ()))
        (stored,) = (await rows_of(first)).values()
        assert tuple(stored.record) == record_of(running(task))
        assert (stored.run_by, stored.is_removed) == (2, False)
        await first.write(1, {Hold(0, holds[0].term): 1}, rows=[Row(running(task), 2)])
        await second.report(2, [AwayEnd(1, NOW_US, NOW_US + 9, is_failed=False)])
        (reported,) = (await first.beat(1, ttl_us=TTL_US)).reported
        assert reported.run_by == 2

    @story
    async def test_claim_shows_all_rows(self, another: Another) -> None:
        """Whoever claims is shown every row, the removed ones last."""
        first, second = await joined(another, 1, 2)
        one, two = task_in(0, 1), task_in(1, 2)
        await listed(first, 1, Row(running(one), 1), Row(two))
        await listed_without(second, 2, 1)
        seen: list[tuple[int, bool]] = []

        def look(stored: object, *_: object) -> Change:
            assert isinstance(stored, list)
            seen.extend((each.record[0], each.is_removed) for each in stored)
            return Change((), ())

        await first.claim(1, look)
        assert seen == [(2, False), (1, True)]

    @story
    async def test_claim_of_a_removed_task(self, another: Another) -> None:
        """What is put and removed at once leaves a removed row: only its run is there."""
        (board,) = await joined(another, 1)
        task = running(task_in(0, 1))
        await listed(board, 1)
        await board.claim(1, lambda *_: Change([Row(task, 1)], [1]))
        assert await removed_from(board) == [1]
        await board.report(1, [AwayEnd(1, NOW_US, NOW_US + 9, is_failed=False)])
        assert await removed_from(board) == []

    @story
    async def test_claim_of_a_stranger(self, another: Another) -> None:
        """Only members can claim."""
        (board,) = await joined(another, 1)
        with pytest.raises(SeatLostError):
            await board.claim(2, lambda *_: Change((), ()))


async def _is_alive(board: Board, member: int) -> bool:
    found = await seat(board, member)
    return found is not None and found.is_alive


async def _asked(board: Board, what: str) -> None:
    """Have member 1 ask something."""
    match what:
        case "join":
            await board.join(1, "host:1", ttl_us=TTL_US)
        case "beat":
            await beaten(board, 1)
        case "take":
            await board.take(1, ALL)
        case "publish":
            await listed(board, 1)
        case _:
            await board.claim(1, lambda *_: Change((), ()))
