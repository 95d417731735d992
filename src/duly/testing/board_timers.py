"""What every board for daemons does with timers: rows put whole, fenced like tasks, and by their edition."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from duly.core.record import record_of
from duly.store.board import (
    Change,
    Hold,
    Published,
    Row,
    SeatLostError,
    ShardsLostError,
    StartUp,
    SupersededError,
    TimerBoard,
    TimerRow,
)
from duly.testing.board_stories import (
    ALL,
    NOW_US,
    TTL_US,
    AnotherTimerBoard,
    Time,
    beaten,
    held,
    joined,
    listed,
    never,
    place,
    putting,
    rows_of,
    story,
    task_in,
)
from duly.testing.board_writes import ANY_NAMES


def timer(shard: int, timer_id: int, *, runs: int = 0, run_by: int | None = None, name: str = "") -> TimerRow:
    """A timer, running or not, after so many *runs*."""
    since_us = None if run_by is None else NOW_US
    definition = '{"on_calendar": {"hour": 3}, "target": "backup"}'
    record = (
        timer_id,
        name or f"timer {timer_id}",
        definition,
        NOW_US,
        NOW_US + runs,
        None,
        "exit",
        0,
        since_us,
    )
    return TimerRow(shard, record, run_by)


def plain(rows: Sequence[TimerRow]) -> list[TimerRow]:
    """Rows whose records are tuples."""
    return [row._replace(record=tuple(row.record)) for row in rows]


async def shelved(board: TimerBoard) -> list[TimerRow]:
    """All timers."""
    return plain(await board.timers())


async def put(board: TimerBoard, hold: Hold, number: int, *rows: TimerRow, **named: Any) -> None:
    """Put *rows* as member 1."""
    await board.write_timers(1, hold, number, put=rows, removed=(), **named)


class TimerStories:
    """Timers."""

    @story
    async def test_new_board_has_no_timers(self, another: AnotherTimerBoard) -> None:
        """There are no timers in any shard of a new board, and none in shards that it has not."""
        (board,) = await joined(another, 1)
        assert isinstance(board, TimerBoard)
        for shards in (None, ALL, [], [0], [99]):
            assert list(await board.timers(shards)) == []

    @story
    async def test_start_up_is_shown(self, another: AnotherTimerBoard, time: Time) -> None:
        """When the first machine started up is shown to all, until another says so; the dead cannot."""
        first, second = await joined(another, 1, 2)
        assert (await second.view()).start_up is None
        for start_up in (StartUp(NOW_US, NOW_US - 1), StartUp(NOW_US + 7, NOW_US + 9)):
            await first.note_start_up(1, start_up)
            assert (await second.view()).start_up == start_up
            assert (await second.beat(2, ttl_us=TTL_US)).start_up == start_up
        time.advance(TTL_US)
        await beaten(second, 2)
        for member in (1, 3):
            with pytest.raises(SeatLostError):
                await first.note_start_up(member, StartUp(NOW_US, NOW_US))
        assert (await second.view()).start_up == start_up

    @story
    async def test_timers_come_back(self, another: AnotherTimerBoard) -> None:
        """Timers come back as they were put, by shard and id, all or those of some shards, to anybody."""
        first, second = await joined(another, 1, 2)
        holds = await held(first, 1)
        high = [timer(3, 2), timer(3, 1, run_by=1)]
        low = [timer(0, 9, run_by=2**62), timer(0, 2**62), timer(0, 2)]
        await put(first, holds[3], 1, *high)
        await put(first, holds[0], 1, *low)
        ordered = [low[2], low[0], low[1], high[1], high[0]]
        assert await shelved(second) == ordered
        assert plain(await second.timers([3])) == ordered[3:]
        assert plain(await second.timers([0, 3, 0, 99])) == ordered
        assert list(await second.timers([])) == list(await second.timers([1, 2])) == []

    @story
    async def test_timer_is_replaced_whole(self, another: AnotherTimerBoard) -> None:
        """A row that is put again has nothing left of what it was, not even its name or its runner."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        await put(board, holds[0], 1, timer(0, 1, run_by=1), timer(0, 2))
        changed = TimerRow(0, (1, "renamed", None, -1, 2**62, "", 0.5))
        await put(board, holds[0], 2, changed)
        assert await shelved(board) == [changed, timer(0, 2)]

    @story
    async def test_timers_are_removed(self, another: AnotherTimerBoard) -> None:
        """Removed timers are gone from their shard, and from no other; ids that are not there do no harm."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        await put(board, holds[0], 1, timer(0, 1), timer(0, 2), timer(0, 3))
        await put(board, holds[1], 1, timer(1, 1))
        await board.write_timers(1, holds[0], 2, put=[timer(0, 4)], removed=[1, 3, 99, 1])
        assert await shelved(board) == [timer(0, 2), timer(0, 4), timer(1, 1)]

    @story
    async def test_removed_and_put_is_put(self, another: AnotherTimerBoard) -> None:
        """An id that is both removed and put is there, whether it was before or not."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        for number in (1, 2):
            await board.write_timers(1, holds[0], number, put=[timer(0, 1, runs=number)], removed=[1])
            assert await shelved(board) == [timer(0, 1, runs=number)]

    @pytest.mark.parametrize("text", ANY_NAMES, ids=lambda text: ascii(text[:12]))
    @story
    async def test_any_text_of_a_timer_comes_back(self, another: AnotherTimerBoard, text: str) -> None:
        """Names and definitions may hold any character and be a megabyte long."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        row = TimerRow(0, (1, text, f"{text}{text[::-1]}", None, 3))
        await put(board, holds[0], 1, row)
        assert await shelved(board) == [row]

    @story
    async def test_write_of_timers_may_be_repeated(self, another: AnotherTimerBoard) -> None:
        """The same write with a higher number changes nothing; a repetition that comes late is refused."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        await put(board, holds[0], 1, timer(0, 1), timer(0, 2))
        for number in (2, 3):
            await board.write_timers(1, holds[0], number, put=[timer(0, 3, run_by=1)], removed=[1])
            assert await shelved(board) == [timer(0, 2), timer(0, 3, run_by=1)]
        await board.write_timers(1, holds[0], 4, put=[], removed=[3])
        with pytest.raises(ShardsLostError):
            await board.write_timers(1, holds[0], 3, put=[timer(0, 3, run_by=1)], removed=[1])
        assert await shelved(board) == [timer(0, 2)]

    @story
    async def test_number_of_timer_writes_must_grow(self, another: AnotherTimerBoard) -> None:
        """A write whose number was seen, or a higher one, is refused, be it of timers or of tasks."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        await put(board, holds[0], 5, timer(0, 1))
        for late in (5, 4, 0):
            with pytest.raises(ShardsLostError) as refused:
                await board.write_timers(1, holds[0], late, put=[timer(0, 2)], removed=[1])
            assert refused.value.shards == {0}
        with pytest.raises(ShardsLostError):
            await board.write(1, {holds[0]: 5}, rows=[])
        assert await shelved(board) == [timer(0, 1)]
        await board.write(1, {holds[0]: 6}, rows=[])
        with pytest.raises(ShardsLostError):
            await put(board, holds[0], 6)
        await put(board, holds[0], 2**62)
        await put(board, holds[1], 1)

    @story
    async def test_holder_and_term_of_timers_must_be_right(self, another: AnotherTimerBoard) -> None:
        """A write of timers with another's term, or a term that is not, changes nothing."""
        first, second = await joined(another, 1, 2)
        holds = await held(first, 1)
        await put(first, holds[0], 1, timer(0, 1))
        for board, member, hold in ((second, 2, holds[0]), (first, 1, Hold(0, 2)), (first, 1, Hold(0, 0))):
            with pytest.raises(ShardsLostError) as refused:
                await board.write_timers(member, hold, 2, put=[timer(0, 2)], removed=[1])
            assert refused.value.shards == {0}
        assert await shelved(first) == [timer(0, 1)]
        await put(first, holds[0], 2)

    @story
    async def test_late_timers_of_an_old_holder(self, another: AnotherTimerBoard, time: Time) -> None:
        """What a member writes after another has taken its shard is refused; the taker sees all before it."""
        first, second = await joined(another, 1, 2)
        old = await held(first, 1, 0)
        await put(first, old[0], 1, timer(0, 1, run_by=1))
        time.advance(TTL_US)
        await beaten(second, 2)
        new = await held(second, 2, 0)
        assert plain(await second.timers([0])) == [timer(0, 1, run_by=1)]
        with pytest.raises(ShardsLostError):
            await put(first, old[0], 2, timer(0, 1))
        await second.write_timers(2, new[0], 1, put=[timer(0, 1, run_by=2)], removed=())
        await beaten(first, 1)
        with pytest.raises(ShardsLostError):
            await put(first, old[0], 3, timer(0, 1))
        assert await shelved(first) == [timer(0, 1, run_by=2)]

    @story
    async def test_given_shard_keeps_its_timers(self, another: AnotherTimerBoard) -> None:
        """Timers stay when their shard is given up, when their runner leaves, and when another joins."""
        first, second = await joined(another, 1, 2)
        holds = await held(first, 1)
        await put(first, holds[0], 1, timer(0, 1, run_by=1))
        await first.give(1, [holds[0]])
        with pytest.raises(ShardsLostError):
            await put(first, holds[0], 2)
        await first.leave(1)
        await first.join(1, "host", ttl_us=TTL_US)
        assert await shelved(second) == [timer(0, 1, run_by=1)]

    @story
    async def test_timers_are_not_tasks(self, another: AnotherTimerBoard) -> None:
        """A timer and a task may have the same id and the same name, and neither is taken for the other."""
        (board,) = await joined(another, 1)
        task = task_in(0, 1)
        await listed(board, 1, Row(task), fingerprint="old")
        holds = await held(board, 1)
        twin = timer(0, 1, name=task.name)
        await put(board, holds[0], 1, twin)
        assert [stored.record[0] for stored in (await board.take(1, [0])).stored] == [1]
        assert [tuple(stored.record) for stored in (await rows_of(board)).values()] == [record_of(task)]
        await board.publish(1, "new", lambda *_: Change((), [1]))
        assert list(await rows_of(board)) == []
        assert await shelved(board) == [twin]

    @story
    async def test_older_edition_begins_nothing(self, another: AnotherTimerBoard) -> None:
        """A write that names an edition is refused once a newer one is in effect; others are not."""
        first, second = await joined(another, 1, 2)
        await first.publish(1, "old", putting())
        holds = await held(first, 1)
        await put(first, holds[0], 1, timer(0, 1), edition=1)
        await second.publish(2, "new", putting(), displaces=False)
        for edition in (1, 0):
            with pytest.raises(SupersededError) as refused:
                await first.write_timers(1, holds[0], 2, put=[timer(0, 2)], removed=[1], edition=edition)
            assert (refused.value.edition, refused.value.newest) == (edition, 2)
            assert f"(edition 2); nothing is started by edition {edition} any more" in refused.value.message
        assert await shelved(first) == [timer(0, 1)]
        await put(first, holds[0], 2, timer(0, 1, runs=1))
        await put(first, holds[0], 3, timer(0, 2), edition=2)
        assert await shelved(first) == [timer(0, 1, runs=1), timer(0, 2)]

    @story
    async def test_edition_that_the_board_has_forgotten(self, another: AnotherTimerBoard) -> None:
        """A board that knows of no newer edition than the one named takes the write."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        await put(board, holds[0], 1, timer(0, 1), edition=3)
        assert await shelved(board) == [timer(0, 1)]

    @story
    async def test_loss_is_told_before_age(self, another: AnotherTimerBoard) -> None:
        """Of a write whose shard is lost and whose edition is old, the loss is told."""
        first, second = await joined(another, 1, 2)
        await first.publish(1, "old", putting())
        holds = await held(first, 1)
        await second.publish(2, "new", putting())
        with pytest.raises(ShardsLostError):
            await put(first, holds[0], 1, timer(0, 1), edition=1)

    @story
    async def test_list_that_displaces_nobody(self, another: AnotherTimerBoard) -> None:
        """A new list can leave every shard with its holder, term and number; all else is as ever."""
        first, second = await joined(another, 1, 2)
        gone, kept = task_in(0, 1), task_in(1, 2)
        await first.publish(1, "old", putting(Row(gone), Row(kept)), displaces=False)
        holds = await held(first, 1, 0, 1)
        await put(first, holds[0], 7, timer(0, 1))
        before = (await first.view()).places
        change = Change([Row(task_in(2, 3))], [1])
        answer = await second.publish(2, "new", lambda *_: change, displaces=False)
        assert answer == Published(2, is_current=True, is_new=True)
        view = await first.view()
        assert list(view.places) == list(before)
        assert (view.edition, view.fingerprint) == (2, "new")
        assert [seat.edition for seat in view.seats] == [1, 2]
        assert list(await rows_of(first)) == [2, 3]
        with pytest.raises(ShardsLostError):
            await put(first, holds[0], 7)
        await put(first, holds[0], 8, timer(0, 2))
        assert await first.publish(1, "old", never, displaces=False) == Published(
            1, is_current=False, is_new=False
        )
        assert await first.publish(1, "new", never, displaces=False) == Published(
            2, is_current=True, is_new=False
        )
        assert (await place(first, 0)).holder == 1
        assert await shelved(first) == [timer(0, 1), timer(0, 2)]

    @story
    async def test_failed_list_that_displaces_nobody(self, another: AnotherTimerBoard) -> None:
        """If such a list cannot be decided upon, the old edition is still the newest, and begins runs."""
        first, second = await joined(another, 1, 2)
        await first.publish(1, "old", putting())
        holds = await held(first, 1)
        with pytest.raises(AssertionError):
            await second.publish(2, "new", never, displaces=False)
        await put(first, holds[0], 1, timer(0, 1), edition=1)

    @story
    async def test_list_beside_timers(self, another: AnotherTimerBoard) -> None:
        """A write that names an edition and runs beside a new list is done before it, or is refused."""
        first, second = await joined(another, 1, 2)
        await first.publish(1, "0", putting())
        holds = await held(first, 1)
        for turn in range(1, 15):
            written, published = await asyncio.gather(
                put(first, holds[0], turn, timer(0, 1, runs=turn), edition=turn),
                second.publish(2, str(turn), putting(), displaces=False),
                return_exceptions=True,
            )
            assert isinstance(published, Published)
            assert published.edition == turn + 1
            assert written is None or isinstance(written, SupersededError)
            assert (timer(0, 1, runs=turn) in await shelved(first)) is (written is None)

    @story
    async def test_members_write_timers_at_once(self, another: AnotherTimerBoard) -> None:
        """Members write the timers of their shards side by side, and nothing gets lost."""
        members = list(ALL)
        boards = await joined(another, *members)
        holds = [await held(board, member, member) for board, member in zip(boards, members, strict=True)]
        rows = [[timer(member, at, run_by=member) for at in range(50)] for member in members]

        async def write(member: int) -> None:
            for number, row in enumerate(rows[member], 1):
                await boards[member].write_timers(
                    member, holds[member][member], number, put=[row], removed=[number - 3]
                )

        await asyncio.gather(*map(write, members))
        assert await shelved(boards[0]) == [row for of_member in rows for row in of_member[-2:]]
