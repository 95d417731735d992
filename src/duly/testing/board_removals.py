"""What every board does with tasks that a list removes while their runs go on, and with their coming back."""

import asyncio

import msgspec
import pytest

from duly.core.record import record_of
from duly.core.task import Task, started, succeeded
from duly.errors import TaskListMismatchError
from duly.instant import MINUTE_US
from duly.store.board import AwayEnd, Board, Change, Reported, Row
from duly.testing.board_stories import (
    ALL,
    NOW_US,
    TTL_US,
    Another,
    LookedError,
    Time,
    beaten,
    held,
    ids_of,
    joined,
    listed,
    never,
    removed_from,
    rows_of,
    story,
    task_in,
)

END = AwayEnd(1, NOW_US, NOW_US + 9, is_failed=True)
"""The end of the run that `removing` leaves."""


def running(task: Task, since_us: int = NOW_US) -> Task:
    """The task with a run begun."""
    return started(task, since_us, is_retry=False)


async def removing(first: Board, second: Board) -> Task:
    """Task 1 in shard 0, which member 1 runs since NOW_US, and which a list of member 2 has removed."""
    task = task_in(0, 1)
    await listed(first, 1, Row(task), fingerprint="with it")
    holds = await held(first, 1, 0)
    await first.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)])
    await listed_without(second, 2, task.id)
    return task


async def listed_without(board: Board, member: int, *ids: int, fingerprint: str = "without it") -> None:
    """Publish a new list that removes the tasks *ids*."""
    published = await board.publish(member, fingerprint, lambda *_: Change((), ids))
    assert published.is_new


class RemovalStories:
    """Removed tasks whose runs go on."""

    @story
    async def test_removed_run_is_shown_to_who_publishes(self, another: Another) -> None:
        """A task that is removed while a living member runs it is shown as removed to whoever publishes."""
        first, second = await joined(another, 1, 2)
        task = await removing(first, second)
        for _ in range(2):  # looking changes nothing
            (stored,) = (await rows_of(first)).values()
            assert tuple(stored.record) == record_of(running(task))
            assert (stored.run_by, stored.is_runner_alive, stored.ended_us) == (1, True, None)
            assert stored.is_removed

    @story
    async def test_removed_run_is_shown_last(self, another: Another) -> None:
        """Removed rows come after those of tasks, each in the order of ids."""
        first, second = await joined(another, 1, 2)
        await removing(first, second)
        two, three = task_in(1, 2), task_in(2, 3)
        await listed(second, 2, Row(three), Row(two), fingerprint="newer")
        rows = await rows_of(first)
        assert [(number, stored.is_removed) for number, stored in rows.items()] == [
            (2, False),
            (3, False),
            (1, True),
        ]

    @story
    async def test_removed_run_is_in_no_share(self, another: Another) -> None:
        """Nobody who takes the shard is given a removed row."""
        first, second = await joined(another, 1, 2)
        await removing(first, second)
        assert ids_of(await second.take(2, ALL)) == []
        await second.leave(2)
        assert ids_of(await first.take(1, ALL)) == []
        assert await removed_from(first) == [1]

    @story
    async def test_removed_run_is_not_written(self, another: Another) -> None:
        """No write reaches a removed row, nor takes its id or its name, whole or not."""
        first, second = await joined(another, 1, 2)
        task = await removing(first, second)
        holds = await held(first, 1)
        rename = msgspec.structs.replace
        rows = [task, rename(task, id=2), rename(task_in(0, 3), id=1)]
        for row in rows:
            for is_whole in (False, True):
                with pytest.raises(TaskListMismatchError) as told:
                    await first.write(1, {holds[0]: 1}, rows=[Row(row)], is_whole=is_whole)
                assert told.value.details == {"expected": 1, "actual": 0}
        await first.write(1, {holds[0]: 1}, rows=[Row(task_in(0, 4))], is_whole=True)
        assert list(await rows_of(first)) == [4, 1]
        assert await removed_from(first) == [1]

    @pytest.mark.parametrize("end", [END, AwayEnd.cut(1, NOW_US)], ids=["ended", "cut off"])
    @story
    async def test_report_ends_a_removed_run(self, another: Another, end: AwayEnd) -> None:
        """When its runner reports the end of a removed run the row is gone, and nobody is told."""
        first, second = await joined(another, 1, 2)
        await removing(first, second)
        await held(second, 2)
        await first.report(1, [end])
        assert await rows_of(first) == {}
        assert list((await second.beat(2, ttl_us=TTL_US)).reported) == []
        await first.report(1, [end])

    @story
    async def test_stale_report_leaves_a_removed_run(self, another: Another) -> None:
        """A report by another member, or of another run or task, leaves a removed row as it is."""
        first, second = await joined(another, 1, 2)
        await removing(first, second)
        await second.report(2, [END])
        await first.report(1, [END._replace(started_us=NOW_US - 1), END._replace(task_id=2)])
        assert await removed_from(first) == [1]

    @pytest.mark.parametrize("what", ["no run", "ended", "cut off", "runner died", "runner left"])
    @story
    async def test_run_that_is_over_leaves_nothing(self, another: Another, time: Time, what: str) -> None:
        """A removed task leaves nothing if it is not running, or its run is known to be over."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        await listed(first, 1, Row(task), fingerprint="with it")
        holds = await held(first, 1, 0)
        if what != "no run":
            await first.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)])
        if what in {"ended", "cut off"}:
            await first.report(1, [END if what == "ended" else AwayEnd.cut(1, NOW_US)])
        if what == "runner died":
            time.advance(TTL_US)
            await beaten(second, 2)
        if what == "runner left":
            await first.leave(1)
        await listed_without(second, 2, task.id)
        assert await rows_of(second) == {}

    @pytest.mark.parametrize("end", ["dies", "leaves"])
    @story
    async def test_dead_runner_is_seen_and_forgotten(self, another: Another, time: Time, end: str) -> None:
        """The next one who publishes is shown that the runner of a removed row is dead; then it is gone."""
        first, second = await joined(another, 1, 2)
        await removing(first, second)
        if end == "dies":
            time.advance(TTL_US)
            await beaten(second, 2)
        else:
            await first.leave(1)
        (stored,) = (await rows_of(second)).values()
        assert (stored.is_removed, stored.is_runner_alive) == (True, False)
        await listed(second, 2, fingerprint="newer")
        assert await rows_of(second) == {}

    @story
    async def test_living_runner_is_not_forgotten(self, another: Another, time: Time) -> None:
        """Lists and time leave a removed row as it is for as long as its runner lives."""
        first, second = await joined(another, 1, 2)
        task = await removing(first, second)
        for turn in range(3):
            time.advance(TTL_US - 1)
            await beaten(first, 1, 2)
            await listed(second, 2, Row(task_in(1, 9)), fingerprint=f"newer {turn}")
        (stored,) = [row for row in (await rows_of(first)).values() if row.is_removed]
        assert tuple(stored.record) == record_of(running(task))

    @story
    async def test_removing_again_does_nothing(self, another: Another) -> None:
        """A list that removes what is removed already leaves it as it is."""
        first, second = await joined(another, 1, 2)
        await removing(first, second)
        before = await rows_of(first)
        await listed_without(second, 2, 1, 1, 99, fingerprint="newer")
        assert await rows_of(first) == before

    @story
    async def test_removed_task_comes_back(self, another: Another) -> None:
        """A task put under the id of its removed row takes its place; the report of its end is told."""
        first, second = await joined(another, 1, 2)
        task = await removing(first, second)
        anew = msgspec.structs.replace(
            task, registered_us=NOW_US + MINUTE_US, retry_delay_us=1, running_since_us=NOW_US
        )
        await listed(second, 2, Row(anew, 1), fingerprint="with it again")
        (stored,) = (await second.take(2, ALL)).stored
        assert tuple(stored.record) == record_of(anew)
        assert (stored.run_by, stored.is_runner_alive, stored.is_removed) == (1, True, False)
        assert await removed_from(first) == []
        await first.report(1, [END])
        assert list((await second.beat(2, ttl_us=TTL_US)).reported) == [Reported(END, 1)]

    @story
    async def test_task_that_came_back_is_removed_again(self, another: Another) -> None:
        """A task that came back to its run and is removed again leaves a removed row again."""
        first, second = await joined(another, 1, 2)
        task = await removing(first, second)
        await listed(second, 2, Row(running(task), 1), fingerprint="with it again")
        assert await removed_from(first) == []
        await listed_without(second, 2, 1, fingerprint="without it again")
        assert await removed_from(first) == [1]
        await first.report(1, [END])
        assert await rows_of(first) == {}

    @pytest.mark.parametrize("what", ["name", "id"])
    @story
    async def test_put_takes_the_place(self, another: Another, what: str) -> None:
        """A list that puts a task of the name of a removed row, or of its id, makes the board forget that."""
        first, second = await joined(another, 1, 2)
        task = await removing(first, second)
        put = msgspec.structs.replace(task, id=7) if what == "name" else task_in(2, 1)
        await listed(second, 2, Row(put), fingerprint="newer")
        (stored,) = (await rows_of(first)).values()
        assert (tuple(stored.record), stored.is_removed) == (record_of(put), False)
        await first.report(1, [END])
        assert (await rows_of(first))[put.id].ended_us is None

    @story
    async def test_name_passes_on_from_a_run(self, another: Another) -> None:
        """A list may remove a task whose run goes on and give its name to another; no removed row is left."""
        (board,) = await joined(another, 1)
        task = task_in(0, 1)
        await listed(board, 1, Row(task), fingerprint="old")
        holds = await held(board, 1, 0)
        await board.write(1, {holds[0]: 1}, rows=[Row(running(task), 1)])
        heir = msgspec.structs.replace(task, id=2)
        await board.publish(1, "new", lambda *_: Change([Row(heir)], [1]))
        (stored,) = (await rows_of(board)).values()
        assert (tuple(stored.record), stored.is_removed) == (record_of(heir), False)

    @story
    async def test_list_that_fails_removes_nothing(self, another: Another) -> None:
        """A list that cannot take effect, or is not new, leaves tasks and removed rows as they were."""
        first, second = await joined(another, 1, 2)
        await removing(first, second)
        await first.leave(1)
        before = await rows_of(second)

        def fail(*_: object) -> Change:
            raise LookedError

        with pytest.raises(LookedError):
            await second.publish(2, "newer", fail)
        await second.publish(2, "without it", never)
        assert await rows_of(second) == before

    @story
    async def test_report_beside_a_list(self, another: Another) -> None:
        """A report that runs beside the list that removes its task leaves nothing of it, whoever is first."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        for turn in range(10):
            await listed(first, 1, Row(task), fingerprint=f"with it {turn}")
            holds = await held(first, 1, 0)
            await first.write(1, {holds[0]: 1}, rows=[Row(running(task, NOW_US + turn), 1)])
            end = AwayEnd(1, NOW_US + turn, NOW_US + turn, is_failed=False)
            await asyncio.gather(
                first.report(1, [end]), listed_without(second, 2, 1, fingerprint=f"without it {turn}")
            )
            assert await rows_of(first) == {}

    @story
    async def test_report_beside_a_return(self, another: Another) -> None:
        """A report that runs beside the list that brings its task back is never lost."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        for turn in range(10):
            begun = running(task, NOW_US + turn)
            await listed(first, 1, Row(begun, 1), fingerprint=f"with it {turn}")
            await listed_without(second, 2, 1, fingerprint=f"without it {turn}")
            end = AwayEnd(1, NOW_US + turn, NOW_US + turn, is_failed=False)
            seen: list[int] = []

            def decide(stored: object, *_: object, seen: list[int] = seen, begun: Task = begun) -> Change:
                seen[:] = [len(stored)]  # type: ignore[arg-type]
                return Change([Row(begun, 1) if stored else Row(succeeded(begun, NOW_US + 99))], ())

            await asyncio.gather(first.report(1, [end]), second.publish(2, f"again {turn}", decide))
            (stored,) = (await rows_of(first)).values()
            assert (stored.ended_us is not None) is (seen == [1])
