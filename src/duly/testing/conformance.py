"""The suite that every store passes.

For a store of your own, subclass `StoreConformance` in a test module and give it a `reopened` fixture: a
function that makes a new store object on one and the same place, empty before the first call.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from datetime import UTC
from typing import Any, ParamSpec

import msgspec
import pytest

from duly.core.record import record_of, task_from
from duly.core.task import Task, cut_off, failed, registered, started, succeeded, with_pause
from duly.core.timetable import CronTimetable
from duly.cron import CronExpression
from duly.errors import SchedulerError, StoreInUseError, TaskListMismatchError
from duly.instant import LATEST_US, LONGEST_US, MINUTE_US
from duly.store.protocol import Store

P = ParamSpec("P")
Reopened = Callable[[], Store]

NOW_US = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC

ODD_NAMES = [
    "plain",
    "with 'quotes' and \"more\"",
    "new\nline, tab\t, nul\0, escape\x1b[31m",
    "emoji 🗓️, right-to-left \u202e, combining e\u0301",
    "x" * 1_000_000,
    "%s {} ? :name $1",
]


def sample_task(task_id: int, name: str = "", *, cron: str = "0 3 * * *") -> Task:
    """A newly registered task."""
    return registered(
        id=task_id,
        name=name or f"task {task_id}",
        schedule=CronTimetable(CronExpression.parse(cron), UTC),
        retry_delay_us=5 * MINUTE_US,
        now_us=NOW_US,
        minute_us=NOW_US,
        scheduler_id="abc",
    )


def in_own_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on an event loop of its own, with no plugin for that."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class StoreConformance:
    """What a store must do. Subclass it and give it a `reopened` fixture."""

    @in_own_loop
    async def test_new_store_is_empty(self, reopened: Reopened) -> None:
        """A store that was never opened before holds nothing, and takes the identifier it is given."""
        contents = await reopened().open("first")
        assert contents.scheduler_id == "first"
        assert list(contents.records) == []

    @in_own_loop
    async def test_identifier_lasts(self, reopened: Reopened) -> None:
        """The scheduler identifier of the first opening is the one of all later ones."""
        await opened_and_closed(reopened())
        assert (await reopened().open("second")).scheduler_id == "first"

    @in_own_loop
    async def test_tasks_come_back_exactly(self, reopened: Reopened) -> None:
        """Every field of every task comes back as it was put."""
        new = sample_task(1)
        begun = started(sample_task(2), NOW_US + 1, is_retry=True)
        broken = failed(started(sample_task(3), NOW_US, is_retry=False), NOW_US + 7)
        done = succeeded(started(sample_task(4), NOW_US, is_retry=False), NOW_US + 7)
        cut = msgspec.structs.replace(sample_task(5), interrupted=True, due_stands=True, origin_us=NOW_US - 5)
        extreme = msgspec.structs.replace(sample_task(6), retry_delay_us=LONGEST_US, retry_at_us=LATEST_US)
        tasks = [new, begun, broken, done, cut, extreme]
        await written(reopened(), put=tasks)
        assert await read(reopened()) == {task.id: record_of(task) for task in tasks}

    @pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: repr(name[:12]))
    @in_own_loop
    async def test_any_name_comes_back(self, reopened: Reopened, name: str) -> None:
        """A name may hold any character and be a megabyte long."""
        await written(reopened(), put=[sample_task(1, name)])
        records = await read(reopened())
        assert records[1][1] == name

    @in_own_loop
    async def test_put_replaces(self, reopened: Reopened) -> None:
        """Putting a task with a known id replaces all of it."""
        changed = sample_task(1, "renamed", cron="5 5 * * *")
        await written(reopened(), put=[sample_task(1), sample_task(2)])
        await written(reopened(), put=[changed])
        records = await read(reopened())
        assert records == {1: record_of(changed), 2: record_of(sample_task(2))}

    @in_own_loop
    async def test_name_passes_on(self, reopened: Reopened) -> None:
        """A name that is freed and taken by another task in one change belongs to that task."""
        await written(reopened(), put=[sample_task(1, "a")])
        await written(reopened(), put=[sample_task(2, "a")], removed=[1])
        assert await read(reopened()) == {2: record_of(sample_task(2, "a"))}

    @in_own_loop
    async def test_removed_is_gone(self, reopened: Reopened) -> None:
        """A removed task is gone; removing one that is not there does no harm."""
        await written(reopened(), put=[sample_task(1), sample_task(2)])
        await written(reopened(), removed=[1, 99])
        assert list(await read(reopened())) == [2]

    @in_own_loop
    async def test_save_writes_what_running_changed(self, reopened: Reopened) -> None:
        """What a run changed in a task comes back; other tasks are as before."""
        begun = started(sample_task(1), NOW_US + 1, is_retry=False)
        store = reopened()
        await store.open("first")
        await store.replace(put=[sample_task(1), sample_task(2)], removed=[])
        await store.save([begun])
        await store.close()
        assert await read(reopened()) == {1: record_of(begun), 2: record_of(sample_task(2))}

    @in_own_loop
    async def test_same_save_twice(self, reopened: Reopened) -> None:
        """Writing the same thing twice leaves what writing it once leaves."""
        begun = started(sample_task(1), NOW_US + 1, is_retry=False)
        store = reopened()
        await store.open("first")
        await store.replace(put=[begun], removed=[])
        await store.replace(put=[begun], removed=[])
        await store.save([begun])
        await store.save([begun])
        await store.save([])
        await store.close()
        assert await read(reopened()) == {1: record_of(begun)}

    @in_own_loop
    async def test_save_of_a_missing_task_is_refused_whole(self, reopened: Reopened) -> None:
        """If one of the tasks is not in the store, nothing of the save happens."""
        begun = started(sample_task(1), NOW_US + 1, is_retry=False)
        store = reopened()
        await store.open("first")
        await store.replace(put=[sample_task(1)], removed=[])
        with pytest.raises(TaskListMismatchError) as raised:
            await store.save([begun, sample_task(99)])
        assert raised.value.details == {"expected": 2, "actual": 1}
        with pytest.raises(TaskListMismatchError):
            await store.save([sample_task(99)])
        await store.close()
        assert await read(reopened()) == {1: record_of(sample_task(1))}

    @in_own_loop
    async def test_starts_and_ends_in_one_save(self, reopened: Reopened) -> None:
        """Tasks that begin, that have ended, that rest and that were cut off go through one save."""
        tasks = [sample_task(n + 1) for n in range(8)]
        begun = [started(task, NOW_US + 1, is_retry=False) for task in tasks[:6]]
        ended = [succeeded(begun[0], NOW_US + 2), failed(begun[1], NOW_US + 3), cut_off(begun[2])]
        changed = [*begun[3:], *ended, with_pause(tasks[6], paused=True), tasks[7]]
        store = reopened()
        await store.open("first")
        await store.replace(put=tasks, removed=[])
        await store.save(changed)
        await store.close()
        assert await read(reopened()) == {task.id: record_of(task) for task in changed}

    @pytest.mark.parametrize("number", [10, 50, 51, 3000])
    @in_own_loop
    async def test_many_at_once(self, reopened: Reopened, number: int) -> None:
        """A few tasks, or thousands, go through one replace and one save."""
        tasks = [sample_task(n + 1) for n in range(number)]
        begun = [started(task, NOW_US + 1, is_retry=False) for task in tasks]
        store = reopened()
        await store.open("first")
        await store.replace(put=tasks, removed=[])
        await store.save(begun)
        await store.close()
        assert await read(reopened()) == {task.id: record_of(task) for task in begun}

    @in_own_loop
    async def test_held_store_is_refused(self, reopened: Reopened) -> None:
        """Opening a held store raises an error that names the store and the holder."""
        first = reopened()
        await first.open("first")
        second = reopened()
        with pytest.raises(StoreInUseError) as raised:
            await second.open("second")
        assert set(raised.value.details) == {"store", "holder"}
        assert raised.value.details["store"] == first.name
        assert raised.value.details["holder"]
        await first.save([])  # the attempt has not hurt the holder
        await first.close()
        await opened_and_closed(second)

    @in_own_loop
    async def test_dropped_store_keeps_what_was_written(self, reopened: Reopened) -> None:
        """Dropping a store loses nothing that was written, and frees the hold."""
        store = reopened()
        await store.open("first")
        await store.replace(put=[sample_task(1)], removed=[])
        await store.drop()
        assert await read(reopened()) == {1: record_of(sample_task(1))}

    @in_own_loop
    async def test_closed_store_refuses_writes(self, reopened: Reopened) -> None:
        """A write to a store that was closed or dropped raises and changes nothing."""
        for leave in ("close", "drop"):
            store = reopened()
            await store.open("first")
            await store.replace(put=[sample_task(1)], removed=[])
            await getattr(store, leave)()
            with pytest.raises(SchedulerError):
                await store.replace(put=[sample_task(2)], removed=[1])
        assert await read(reopened()) == {1: record_of(sample_task(1))}

    @in_own_loop
    async def test_same_object_may_be_opened_again(self, reopened: Reopened) -> None:
        """A store that was closed may be opened again."""
        store = reopened()
        await opened_and_closed(store)
        await opened_and_closed(store)
        await store.open("again")
        await store.drop()
        await opened_and_closed(store)

    @in_own_loop
    async def test_records_are_readable_tasks(self, reopened: Reopened) -> None:
        """What comes out of a store can be made into the task that went in."""
        task = failed(started(sample_task(1), NOW_US, is_retry=False), NOW_US + 7)
        await written(reopened(), put=[task])
        (record,) = (await read(reopened())).values()
        again = task_from(record, lambda cron: CronTimetable(CronExpression.parse(cron), UTC))
        assert record_of(again) == record_of(task)
        assert again.due_us == task.due_us


async def opened_and_closed(store: Store) -> None:
    await store.open("first")
    await store.close()


async def written(store: Store, *, put: list[Task] = [], removed: list[int] = []) -> None:  # noqa: B006 (read only)
    await store.open("first")
    await store.replace(put=put, removed=removed)
    await store.close()


async def read(store: Store) -> dict[int, tuple[object, ...]]:
    """Open, read, close: the records by id."""
    contents = await store.open("reader")
    await store.close()
    return {record[0]: tuple(record) for record in contents.records}
