"""What every board does with lists: which becomes the newest edition, and what happens to all shards then."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from duly.core.record import record_of
from duly.core.task import started
from duly.errors import StoreError
from duly.instant import Instant
from duly.store.board import Change, Hold, Published, Row, ShardsLostError, Stored
from duly.testing.board_stories import (
    ALL,
    NOW_US,
    SHARDS,
    TTL_US,
    Another,
    LookedError,
    Time,
    beaten,
    held,
    joined,
    listed,
    never,
    putting,
    removed_from,
    rows_of,
    seat,
    story,
    task_in,
)


class ListStories:
    """Editions."""

    @story
    async def test_first_list(self, another: Another) -> None:
        """The first list is edition 1: its tasks are there, its member has it, every shard has a new term."""
        first, second = await joined(another, 1, 2)
        await held(first, 1, 0)
        task = task_in(0, 1)
        published = await second.publish(2, "f", putting(Row(task)))
        assert published == Published(1, is_current=True, is_new=True)
        view = await first.view()
        assert (view.edition, view.fingerprint) == (1, "f")
        assert {(seat.member, seat.edition) for seat in view.seats} == {(1, 0), (2, 1)}
        assert [(place.holder, place.term) for place in view.places] == [
            (None, 2),
            *[(None, 1)] * (SHARDS - 1),
        ]
        assert [tuple(stored.record) for stored in (await rows_of(first)).values()] == [record_of(task)]

    @story
    async def test_same_list_changes_nothing(self, another: Another) -> None:
        """A member that brings the newest list has it, and nobody loses anything."""
        first, second = await joined(another, 1, 2)
        await listed(first, 1, fingerprint="f")
        holds = await held(first, 1)
        assert await second.publish(2, "f", never) == Published(1, is_current=True, is_new=False)
        assert await first.publish(1, "f", never) == Published(1, is_current=True, is_new=False)
        assert [seat.edition for seat in (await first.view()).seats] == [1, 1]
        await first.write(1, dict.fromkeys(holds.values(), 1), rows=[])

    @story
    async def test_new_list_supersedes(self, another: Another) -> None:
        """A list that never was takes every shard from everybody; a write under the old one is refused."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        await listed(first, 1, Row(task), fingerprint="old")
        holds = await held(first, 1)
        assert await second.publish(2, "new", putting()) == Published(2, is_current=True, is_new=True)
        with pytest.raises(ShardsLostError) as refused:
            await first.write(1, dict.fromkeys(holds.values(), 1), rows=[Row(task)])
        assert refused.value.shards == set(ALL)
        assert await held(first, 1) == {shard: Hold(shard, 4) for shard in ALL}
        view = await first.view()
        assert (view.edition, [seat.edition for seat in view.seats]) == (2, [1, 2])

    @story
    async def test_old_list_waits_for_the_newer(self, another: Another) -> None:
        """An older list does not come back while a living member has a newer one."""
        first, second, third = await joined(another, 1, 2, 3)
        await listed(first, 1, fingerprint="old")
        await listed(second, 2, fingerprint="new")
        holds = await held(second, 2)
        for board, member in ((third, 3), (first, 1)):
            assert await board.publish(member, "old", never) == Published(1, is_current=False, is_new=False)
        assert [seat.edition for seat in (await first.view()).seats] == [1, 2, 1]
        assert (await first.view()).edition == 2
        await second.write(2, dict.fromkeys(holds.values(), 1), rows=[])

    @pytest.mark.parametrize("ending", ["dies", "leaves", "changes its mind"])
    @story
    async def test_old_list_comes_back(self, another: Another, time: Time, ending: str) -> None:
        """An older list becomes the newest edition again when no other living member has a newer one."""
        first, second = await joined(another, 1, 2)
        await listed(first, 1, fingerprint="old")
        await listed(second, 2, fingerprint="new")
        await held(second, 2)
        if ending == "dies":
            time.advance(TTL_US)
            await beaten(first, 1)
        if ending == "leaves":
            await second.leave(2)
        board, member = (second, 2) if ending == "changes its mind" else (first, 1)
        assert await board.publish(member, "old", putting()) == Published(3, is_current=True, is_new=True)
        view = await first.view()
        assert (view.edition, view.fingerprint) == (3, "old")
        assert {place.holder for place in view.places} == {None}
        mine = await seat(first, member)
        assert mine is not None
        assert mine.edition == 3

    @story
    async def test_revived_member_finds_itself_superseded(self, another: Another, time: Time) -> None:
        """A member whose newer list was rolled back while it was silent has the older list now."""
        first, second = await joined(another, 1, 2)
        await listed(first, 1, fingerprint="old")
        await listed(second, 2, fingerprint="new")
        time.advance(TTL_US)
        await beaten(first, 1)
        await listed(first, 1, fingerprint="old")
        await beaten(second, 2)
        assert await second.publish(2, "new", never) == Published(2, is_current=False, is_new=False)
        assert await second.publish(2, "old", never) == Published(3, is_current=True, is_new=False)

    @story
    async def test_decision_sees_everything(self, another: Another, time: Time) -> None:
        """Who decides is shown all rows, the time of the board and the identifier."""
        first, second = await joined(another, 1, 2)
        idle, run = task_in(0, 1), task_in(1, 2)
        await listed(first, 1, Row(idle), Row(run))
        holds = await held(first, 1)
        begun = started(run, NOW_US, is_retry=False)
        await first.write(1, {holds[1]: 1}, rows=[Row(begun, 1)])
        time.advance(7)
        seen: list[tuple[Sequence[Stored], Instant, str]] = []

        def decide(stored: Sequence[Stored], now_us: Instant, scheduler_id: str) -> Change:
            seen.append((stored, now_us, scheduler_id))
            return Change([Row(idle)], [2])

        await second.publish(2, "new", decide)
        ((stored, now_us, scheduler_id),) = seen
        assert (now_us, scheduler_id) == (NOW_US + 7, "first")
        assert [(tuple(row.record), row.run_by, row.is_runner_alive) for row in stored] == [
            (record_of(idle), None, False),
            (record_of(begun), 1, True),
        ]
        assert list(await rows_of(first)) == [1, 2]
        assert await removed_from(first) == [2]

    @story
    async def test_change_of_tasks(self, another: Another) -> None:
        """A list removes tasks, replaces all of others, adds some, and leaves the rest."""
        (board,) = await joined(another, 1)
        await listed(board, 1, *(Row(task_in(0, number)) for number in (1, 2, 3)), fingerprint="old")
        changed = msgspec.structs.replace(task_in(2, 2), retry_delay_us=1, scheduler_id="other")
        change = Change([Row(changed), Row(task_in(3, 4))], [1, 99])
        await board.publish(1, "new", lambda *_: change)
        assert [tuple(row.record) for row in (await rows_of(board)).values()] == [
            record_of(changed),
            record_of(task_in(0, 3)),
            record_of(task_in(3, 4)),
        ]
        assert [row.record[0] for row in (await board.take(1, [2])).stored] == [2]

    @story
    async def test_names_pass_on(self, another: Another) -> None:
        """A name may pass from a removed task to a new one, and two tasks may exchange theirs."""
        (board,) = await joined(another, 1)
        one, two, three = (task_in(0, number) for number in (1, 2, 3))
        await listed(board, 1, Row(one), Row(two), Row(three), fingerprint="old")
        rename = msgspec.structs.replace
        put = [Row(rename(one, name=two.name)), Row(rename(two, name=one.name)), Row(rename(three, id=4))]
        await board.publish(1, "new", lambda *_: Change(put, [3]))
        names = {number: row.record[1] for number, row in (await rows_of(board)).items()}
        assert names == {1: two.name, 2: one.name, 4: three.name}

    @pytest.mark.parametrize("fault", ["raises", "gives a name twice"])
    @story
    async def test_failed_decision_changes_nothing(self, another: Another, fault: str) -> None:
        """If the decision raises or cannot be written, the board is as it was, and the list never was."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        await listed(first, 1, Row(task), fingerprint="old")
        holds = await held(first, 1)

        def decide(*_: object) -> Change:
            if fault == "raises":
                raise LookedError
            return Change([Row(msgspec.structs.replace(task, id=2))], ())

        with pytest.raises(LookedError if fault == "raises" else StoreError):
            await second.publish(2, "new", decide)
        view = await first.view()
        assert (view.edition, [seat.edition for seat in view.seats]) == (1, [1, 0])
        await first.write(1, dict.fromkeys(holds.values(), 1), rows=[Row(task)])
        assert await second.publish(2, "new", putting()) == Published(2, is_current=True, is_new=True)

    @story
    async def test_lists_at_once(self, another: Another) -> None:
        """Of lists brought at once each becomes an edition; the same list brought by many becomes one."""
        members = range(1, 7)
        boards = await joined(another, *members)
        lists = ["a", "b", "a", "c", "a", "c"]
        calls = [
            board.publish(member, fingerprint, putting())
            for board, member, fingerprint in zip(boards, members, lists, strict=True)
        ]
        answers = await asyncio.gather(*calls)
        assert sorted(answer.edition for answer in answers if answer.is_new) == [1, 2, 3]
        assert len({(name, answer.edition) for name, answer in zip(lists, answers, strict=True)}) == 3
        view = await boards[0].view()
        assert view.edition == 3
        assert {place.term for place in view.places} == {3}

    @story
    async def test_list_beside_writes(self, another: Another) -> None:
        """A write that runs beside a new list is either seen by it or refused."""
        first, second = await joined(another, 1, 2)
        task = task_in(0, 1)
        await listed(first, 1, Row(task), fingerprint="0")
        for turn in range(1, 15):
            holds = await held(first, 1)
            begun = started(task, NOW_US + turn, is_retry=False)
            seen: list[Instant | None] = []

            def decide(
                stored: Sequence[Stored], _now_us: Instant, _id: str, seen: list[Instant | None] = seen
            ) -> Change:
                seen[:] = [stored[0].record[13]]
                return Change((), ())

            written, _ = await asyncio.gather(
                first.write(1, {holds[0]: 1}, rows=[Row(begun, 1)]),
                second.publish(2, str(turn), decide),
                return_exceptions=True,
            )
            assert written is None or isinstance(written, ShardsLostError)
            assert (seen == [NOW_US + turn]) is (written is None)
