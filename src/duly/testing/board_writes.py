"""What every board does with writes, fenced by holder, term and number, and with the ends of away runs."""

import msgspec
import pytest

from duly.core.record import record_of
from duly.core.task import Task, failed, started, succeeded
from duly.errors import StoreError, TaskListMismatchError
from duly.instant import LATEST_US, LONGEST_US
from duly.store.board import AwayEnd, Board, Change, Hold, Reported, Row, ShardsLostError, shard_of
from duly.testing.board_stories import (
    ALL,
    NOW_US,
    SHARDS,
    TTL_US,
    Another,
    Time,
    beaten,
    held,
    joined,
    listed,
    rows_of,
    story,
    task_in,
)
from duly.testing.conformance import ODD_NAMES, sample_task

ANY_NAMES = [
    *ODD_NAMES,
    "lone \ud800, pair \ud83d\ude00",
    "\\",
    "\\x41 \\n",
    "null",
    "täglich",
    " ",
    "\x7f{},\"'",
]


def running(task: Task, since_us: int = NOW_US) -> Task:
    """The task with a run begun."""
    return started(task, since_us, is_retry=False)


async def given_away(first: Board, second: Board, *ids: int) -> list[Task]:
    """Tasks in shard 0 that member 1 runs, since NOW_US, and member 2 holds."""
    tasks = [task_in(0, number) for number in ids]
    await listed(first, 1, *map(Row, tasks))
    holds = await held(first, 1, 0)
    await first.write(1, {holds[0]: 1}, rows=[Row(running(task), 1) for task in tasks])
    await first.give(1, [holds[0]])
    await held(second, 2, 0)
    return tasks


class WriteStories:
    """Writes and away runs."""

    @story
    async def test_write_comes_back(self, another: Another) -> None:
        """What running changed comes back, with the runner; other tasks are as before."""
        (board,) = await joined(another, 1)
        tasks = [task_in(0, 1), task_in(0, 2), task_in(3, 3)]
        await listed(board, 1, *map(Row, tasks))
        holds = await held(board, 1)
        begun, done = running(tasks[0]), succeeded(running(tasks[2]), NOW_US + 7)
        await board.write(1, {holds[0]: 1, holds[3]: 1}, rows=[Row(begun, 1), Row(done)])
        found = await rows_of(board)
        assert {number: tuple(stored.record) for number, stored in found.items()} == {
            1: record_of(begun),
            2: record_of(tasks[1]),
            3: record_of(done),
        }
        assert [found[number].run_by for number in (1, 2, 3)] == [1, None, None]

    @story
    async def test_write_leaves_the_registration(self, another: Another) -> None:
        """A write that is not whole changes nothing but what running changes."""
        (board,) = await joined(another, 1)
        task = task_in(0, 1)
        await listed(board, 1, Row(task))
        holds = await held(board, 1)
        other = msgspec.structs.replace(running(task), retry_delay_us=1, scheduler_id="other")
        await board.write(1, {holds[0]: 1}, rows=[Row(other, 1)])
        assert tuple((await rows_of(board))[1].record) == record_of(running(task))

    @story
    async def test_whole_write(self, another: Another) -> None:
        """A whole write makes new rows and replaces all of old ones; every field comes back as it was."""
        (board,) = await joined(another, 1)
        old = task_in(0, 1)
        await listed(board, 1, Row(old))
        holds = await held(board, 1)
        changed = msgspec.structs.replace(
            failed(running(old), NOW_US + 7), retry_delay_us=1, scheduler_id="other"
        )
        cut = msgspec.structs.replace(task_in(1, 2), interrupted=True, due_stands=True)
        extreme = msgspec.structs.replace(task_in(1, 2**62), retry_delay_us=LONGEST_US, retry_at_us=LATEST_US)
        rows = [Row(changed), Row(cut), Row(extreme)]
        await board.write(1, dict.fromkeys(holds.values(), 1), rows=rows, is_whole=True)
        found = await rows_of(board)
        assert {number: tuple(stored.record) for number, stored in found.items()} == {
            row.task.id: record_of(row.task) for row in rows
        }

    @pytest.mark.parametrize("name", ANY_NAMES, ids=lambda name: ascii(name[:12]))
    @story
    async def test_any_name_comes_back(self, another: Another, name: str) -> None:
        """A name may hold any character and be a megabyte long, in a list, a write, and of a member."""
        (board,) = await joined(another, 1)
        task = sample_task(1, name)
        await listed(board, 1, Row(task))
        holds = await held(board, 1)
        shard = shard_of(name, SHARDS)
        for number, is_whole in ((1, False), (2, True)):
            await board.write(1, {holds[shard]: number}, rows=[Row(task)], is_whole=is_whole)
        assert (await rows_of(board))[1].record[1] == name
        assert [stored.record[1] for stored in (await board.take(1, [shard])).stored] == [name]
        await board.join(1, name, ttl_us=TTL_US)
        assert [seat.name for seat in (await board.view()).seats] == [name]

    @story
    async def test_missing_row_is_told(self, another: Another) -> None:
        """A write of a row that is not there raises, writes nothing, and does not use up its number."""
        (board,) = await joined(another, 1)
        task = task_in(0, 1)
        await listed(board, 1, Row(task))
        holds = await held(board, 1)
        with pytest.raises(TaskListMismatchError) as told:
            await board.write(1, {holds[0]: 1}, rows=[Row(running(task), 1), Row(task_in(0, 2))])
        assert told.value.details == {"expected": 2, "actual": 1}
        assert tuple((await rows_of(board))[1].record) == record_of(task)
        await board.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)])

    @story
    async def test_row_of_another_shard_is_not_there(self, another: Another) -> None:
        """A write reaches no row outside the shards it names, whole or not, whatever it calls the row."""
        (board,) = await joined(another, 1)
        task, thief = task_in(1, 1), task_in(0, 1)
        await listed(board, 1, Row(task))
        holds = await held(board, 1)
        for is_whole in (False, True):
            with pytest.raises(TaskListMismatchError):
                await board.write(1, {holds[0]: 1}, rows=[Row(running(thief), 1)], is_whole=is_whole)
        assert tuple((await rows_of(board))[1].record) == record_of(task)

    @story
    async def test_name_belongs_to_one_task(self, another: Another) -> None:
        """A whole write that gives a name a second time raises and writes nothing."""
        (board,) = await joined(another, 1)
        task = task_in(0, 1)
        await listed(board, 1, Row(task))
        holds = await held(board, 1)
        twin = msgspec.structs.replace(task, id=2)
        with pytest.raises(StoreError):
            await board.write(1, {holds[0]: 1}, rows=[Row(twin)], is_whole=True)
        assert list(await rows_of(board)) == [1]
        await board.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)])

    @story
    async def test_number_must_grow(self, another: Another) -> None:
        """A write whose number the board has seen, or a higher one, comes late and changes nothing."""
        (board,) = await joined(another, 1)
        task = task_in(0, 1)
        await listed(board, 1, Row(task))
        holds = await held(board, 1)
        begun = Row(running(task), 1)
        await board.write(1, {holds[0]: 5}, rows=[begun])
        for late, is_whole in ((5, False), (4, False), (5, True), (1, True), (0, False)):
            with pytest.raises(ShardsLostError) as refused:
                await board.write(1, {holds[0]: late}, rows=[Row(task)], is_whole=is_whole)
            assert refused.value.shards == {0}
        assert tuple((await rows_of(board))[1].record) == record_of(begun.task)
        await board.write(1, {holds[0]: 2**62}, rows=[Row(task)])

    @story
    async def test_numbers_are_of_shards(self, another: Another) -> None:
        """Each shard counts its own writes, and from the beginning in each term."""
        (board,) = await joined(another, 1)
        holds = await held(board, 1)
        await board.write(1, {holds[0]: 9}, rows=[])
        await board.write(1, {holds[0]: 10, holds[1]: 1}, rows=[])
        with pytest.raises(ShardsLostError) as refused:
            await board.write(1, {holds[0]: 10, holds[1]: 2, holds[2]: 1}, rows=[])
        assert refused.value.shards == {0}
        await board.write(1, {holds[1]: 2, holds[2]: 1}, rows=[])
        again = await held(board, 1, 0)
        await board.write(1, {again[0]: 1}, rows=[])

    @story
    async def test_refused_write_names_what_was_lost(self, another: Another) -> None:
        """If one of several holds is refused nothing is written, and the error names that one."""
        first, second = await joined(another, 1, 2)
        kept, lost = task_in(0, 1), task_in(1, 2)
        await listed(first, 1, Row(kept), Row(lost))
        holds = await held(first, 1)
        await first.give(1, [holds[1]])
        await held(second, 2, 1)
        for is_whole in (False, True):
            with pytest.raises(ShardsLostError) as refused:
                await first.write(
                    1,
                    {holds[0]: 1, holds[1]: 1},
                    rows=[Row(running(kept), 1), Row(running(lost), 1)],
                    is_whole=is_whole,
                )
            assert refused.value.shards == {1}
        found = await rows_of(first)
        assert [tuple(found[number].record) for number in (1, 2)] == [record_of(kept), record_of(lost)]
        await first.write(1, {holds[0]: 1}, rows=[Row(running(kept), 1)])

    @story
    async def test_holder_and_term_must_be_right(self, another: Another) -> None:
        """A write with another's term, or with a term that is not yet, is refused."""
        first, second = await joined(another, 1, 2)
        holds = await held(first, 1)
        for board, member, hold in ((second, 2, holds[0]), (first, 1, Hold(0, 2)), (first, 1, Hold(0, 0))):
            with pytest.raises(ShardsLostError) as refused:
                await board.write(member, {hold: 1}, rows=[])
            assert refused.value.shards == {0}

    @story
    async def test_late_write_of_an_old_holder(self, another: Another, time: Time) -> None:
        """What a member writes after another has taken its shard, and has written too, changes nothing."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        await listed(first, 1, Row(task))
        old = await held(first, 1)
        await first.write(1, {old[0]: 1}, rows=[Row(running(task), 1)])
        time.advance(TTL_US)
        await beaten(second, 2)
        new = await held(second, 2)
        restarted = running(task, time.now_us)
        await second.write(2, {new[0]: 1}, rows=[Row(restarted, 2)])
        with pytest.raises(ShardsLostError):
            await first.write(1, {old[0]: 2}, rows=[Row(succeeded(running(task), NOW_US + 1))])
        stored = (await rows_of(first))[1]
        assert (tuple(stored.record), stored.run_by) == (record_of(restarted), 2)

    @story
    async def test_many_rows(self, another: Another) -> None:
        """Ten thousand rows are published, written and taken like one."""
        (board,) = await joined(another, 1)
        tasks = [sample_task(number) for number in range(1, 10_001)]
        await listed(board, 1, *map(Row, tasks))
        holds = await held(board, 1)
        rows = [Row(running(task), 1) for task in tasks]
        await board.write(1, dict.fromkeys(holds.values(), 1), rows=rows)
        await board.write(1, dict.fromkeys(holds.values(), 2), rows=rows, is_whole=True)
        taken = await board.take(1, ALL)
        assert [tuple(stored.record) for stored in taken.stored] == [record_of(row.task) for row in rows]
        assert {(stored.run_by, stored.is_runner_alive) for stored in taken.stored} == {(1, True)}

    @story
    async def test_row_names_its_runner(self, another: Another, time: Time) -> None:
        """A row says who runs it and whether that one lives, to whoever takes the shard or publishes."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        await listed(first, 1, Row(task))
        holds = await held(first, 1)
        await first.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)])
        await first.give(1, [holds[0]])
        (stored,) = (await second.take(2, [0])).stored
        assert (stored.run_by, stored.is_runner_alive, stored.ended_us, stored.is_failed) == (
            1,
            True,
            None,
            False,
        )
        time.advance(TTL_US)
        await beaten(second, 2)
        (stored,) = (await second.take(2, [0])).stored
        assert (stored.run_by, stored.is_runner_alive) == (1, False)
        assert not (await rows_of(second))[1].is_runner_alive
        await first.leave(1)
        (stored,) = (await second.take(2, [0])).stored
        assert (stored.run_by, stored.is_runner_alive) == (1, False)

    @story
    async def test_report_reaches_the_holder(self, another: Another) -> None:
        """The end of an away run is told to whoever holds the shard, with every beat, and to nobody else."""
        first, second, third = await joined(another, 1, 2, 3)
        (task,) = await given_away(first, second, 1)
        end = AwayEnd(task.id, NOW_US, NOW_US + 9, is_failed=True)
        await first.report(1, [end])
        for _ in range(2):
            assert list((await second.beat(2, ttl_us=TTL_US)).reported) == [Reported(end, 1)]
        for view in (
            await first.beat(1, ttl_us=TTL_US),
            await third.beat(3, ttl_us=TTL_US),
            await third.view(),
        ):
            assert list(view.reported) == []
        stored = (await rows_of(first))[task.id]
        assert (stored.run_by, stored.ended_us, stored.is_failed) == (1, NOW_US + 9, True)
        assert tuple(stored.record) == record_of(running(task))
        await second.leave(2)
        (stored,) = (await third.take(3, [0])).stored
        assert (stored.ended_us, stored.is_failed) == (NOW_US + 9, True)

    @story
    async def test_cut_run_is_told(self, another: Another) -> None:
        """A run that was cut off, or never called, is reported with an end before its start."""
        first, second = await joined(another, 1, 2)
        (task,) = await given_away(first, second, 1)
        cut = AwayEnd.cut(task.id, NOW_US)
        assert cut.ended_us < cut.started_us
        await first.report(1, [cut])
        assert list((await second.beat(2, ttl_us=TTL_US)).reported) == [Reported(cut, 1)]
        (stored,) = (await second.take(2, [0])).stored
        assert (stored.ended_us, stored.is_failed) == (cut.ended_us, False)
        assert tuple(stored.record) == record_of(running(task))
        await first.report(1, [AwayEnd(task.id, NOW_US, NOW_US + 9, is_failed=True)])
        assert list((await second.beat(2, ttl_us=TTL_US)).reported) == [Reported(cut, 1)]

    @story
    async def test_reported_end_stays_until_another_run(self, another: Another) -> None:
        """Writes leave a reported end on its row for as long as they name the run that it is of."""
        first, second = await joined(another, 1, 2)
        one, two, three = await given_away(first, second, 1, 2, 3)
        await first.report(
            1, [AwayEnd(task.id, NOW_US, NOW_US + 9, is_failed=True) for task in (one, two, three)]
        )
        (hold,) = (await second.take(2, [0])).holds
        for number, is_whole in ((1, False), (2, True)):
            rows = [Row(running(task), 1) for task in (one, two, three)]
            await second.write(2, {hold: number}, rows=rows, is_whole=is_whole)
            assert len((await second.beat(2, ttl_us=TTL_US)).reported) == 3
        over = Row(failed(running(one), NOW_US + 9))
        restarted = Row(running(two, NOW_US + 20), 1)
        elsewhere = Row(running(three), 2)
        await second.write(2, {hold: 3}, rows=[over, restarted])
        await second.write(2, {hold: 4}, rows=[elsewhere], is_whole=True)
        assert list((await second.beat(2, ttl_us=TTL_US)).reported) == []
        assert {(row.ended_us, row.is_failed) for row in (await rows_of(first)).values()} == {(None, False)}

    @story
    async def test_stale_reports_are_passed_over(self, another: Another) -> None:
        """A report of a run that the row no longer names, or of another member's, changes nothing."""
        first, second = await joined(another, 1, 2)
        one, two, three = await given_away(first, second, 1, 2, 3)
        (hold,) = (await second.take(2, [0])).holds
        rows = [Row(running(one, NOW_US + 50), 2), Row(running(two, NOW_US + 50), 1)]
        await second.write(2, {hold: 1}, rows=rows)
        ends = [AwayEnd(number, NOW_US, NOW_US + 9, is_failed=False) for number in (one.id, two.id, 99)]
        await first.report(1, [*ends, AwayEnd(three.id, NOW_US, NOW_US + 9, is_failed=True)])
        await second.report(2, [AwayEnd(three.id, NOW_US, NOW_US + 1, is_failed=False)])
        await first.report(1, [])
        (only,) = (await second.beat(2, ttl_us=TTL_US)).reported
        assert only == Reported(AwayEnd(three.id, NOW_US, NOW_US + 9, is_failed=True), 1)

    @story
    async def test_first_report_stands(self, another: Another) -> None:
        """A second report of the same run changes nothing, nor does that of a run that is not under way."""
        first, second = await joined(another, 1, 2)
        (task,) = await given_away(first, second, 1)
        await first.report(1, [AwayEnd(task.id, NOW_US, NOW_US + 9, is_failed=True)])
        await first.report(1, [AwayEnd(task.id, NOW_US, NOW_US + 99, is_failed=False)])
        (only,) = (await second.beat(2, ttl_us=TTL_US)).reported
        assert only.end == AwayEnd(task.id, NOW_US, NOW_US + 9, is_failed=True)

    @story
    async def test_reported_end_outlives_a_list(self, another: Another) -> None:
        """A list that keeps a run in flight keeps its reported end; the next holder is told."""
        first, second = await joined(another, 1, 2)
        (task,) = await given_away(first, second, 1)
        end = AwayEnd(task.id, NOW_US, NOW_US + 9, is_failed=False)
        await first.report(1, [end])
        published = await second.publish(2, "newer", lambda *_: Change([Row(running(task), 1)], ()))
        assert published.is_new
        await held(first, 1)
        assert list((await first.beat(1, ttl_us=TTL_US)).reported) == [Reported(end, 1)]
