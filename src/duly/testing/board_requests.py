"""What every board for daemons does with requests: each is taken once, by who holds its shard, in time."""

import asyncio

import pytest

from duly.instant import MINUTE_US
from duly.store.board import Hold, Reply, Request, TimerBoard, Waiting
from duly.testing.board_stories import (
    NOW_US,
    TTL_US,
    AnotherTimerBoard,
    Time,
    beaten,
    held,
    joined,
    story,
)
from duly.testing.board_writes import ANY_NAMES

UNTIL_US = NOW_US + 5 * TTL_US
LONG_US = 60 * MINUTE_US
"""Long after their time requests are forgotten."""


def request(request_id: int, shard: int = 0, *, timer: str = "nightly", until_us: int = UNTIL_US) -> Request:
    """A request of a machine that need not be a member."""
    return Request(request_id, shard, timer, "trigger", "host:9", until_us)


async def told(board: TimerBoard, member: int) -> list[Waiting]:
    """What a beat tells *member* that it is asked for."""
    return list((await board.beat(member, ttl_us=TTL_US)).requested)


async def taken(board: TimerBoard, member: int, *holds: Hold) -> list[Request]:
    """What *member* is given."""
    return list(await board.take_requests(member, holds))


class RequestStories:
    """Requests."""

    @story
    async def test_request_is_answered(self, another: AnotherTimerBoard) -> None:
        """What is asked is told to the holder alone, given to it, and its answer found by who asked."""
        first, second = await joined(another, 1, 2)
        hold = (await held(first, 1, 0))[0]
        asked = request(7)
        assert await second.reply(7) is None
        await second.ask(asked)
        assert await second.reply(7) == Reply()
        assert await told(second, 2) == list((await second.view()).requested) == []
        assert await told(first, 1) == [Waiting(7, 0)]
        assert await taken(first, 1, hold) == [asked]
        assert await second.reply(7) == Reply(1)
        await first.answer(1, 7, "done")
        assert await second.reply(7) == Reply(1, "done")
        assert [*await told(first, 1), *await taken(first, 1, hold)] == []

    @story
    async def test_requests_of_many_shards(self, another: AnotherTimerBoard) -> None:
        """A holder is told of all that is asked of it, and given those of the shards it names, in order."""
        first, second = await joined(another, 1, 2)
        holds = {**await held(first, 1, 0, 1, 2), **await held(second, 2, 3)}
        late, early, other = request(3, 0), request(9, 1, until_us=UNTIL_US - 1), request(5, 0)
        for asked in (late, early, other, request(1, 2), request(2, 3), request(4, 99)):
            await second.ask(asked)
        assert await told(first, 1) == [Waiting(1, 2), Waiting(3, 0), Waiting(5, 0), Waiting(9, 1)]
        assert await taken(first, 1) == await taken(first, 1, holds[3]) == []
        assert await taken(first, 1, holds[0], holds[1], holds[3]) == [early, late, other]
        assert await taken(second, 2, holds[3]) == [request(2, 3)]

    @story
    async def test_asking_again(self, another: AnotherTimerBoard) -> None:
        """Asking again with the same id changes nothing: not before it is taken, nor after, nor answered."""
        (board,) = await joined(another, 1)
        hold = (await held(board, 1, 0))[0]
        await board.ask(request(7))
        await board.ask(request(7, timer="another"))
        assert await taken(board, 1, hold) == [request(7)]
        await board.ask(request(7))
        assert await board.reply(7) == Reply(1)
        await board.answer(1, 7, "done")
        await board.ask(request(7))
        assert await board.reply(7) == Reply(1, "done")
        assert [*await told(board, 1), *await taken(board, 1, hold)] == []

    @story
    async def test_taking_again(self, another: AnotherTimerBoard) -> None:
        """Who has taken a request is told of it and given it again until it has answered."""
        (board,) = await joined(another, 1)
        hold = (await held(board, 1, 0))[0]
        await board.ask(request(7))
        for _ in range(2):
            assert await taken(board, 1, hold) == [request(7)]
            assert await told(board, 1) == [Waiting(7, 0)]
        await board.answer(1, 7, "")
        assert [*await told(board, 1), *await taken(board, 1, hold)] == []

    @story
    async def test_holder_and_term_of_requests_must_be_right(self, another: AnotherTimerBoard) -> None:
        """With another's term, or a term that is not, nothing is given, and it is not taken by that."""
        first, second = await joined(another, 1, 2)
        hold = (await held(first, 1, 0))[0]
        await second.ask(request(7))
        assert await taken(second, 2, hold) == []
        for term in (hold.term - 1, hold.term + 1):
            assert await taken(first, 1, Hold(0, term)) == []
        assert await second.reply(7) == Reply()
        assert await taken(first, 1, hold) == [request(7)]

    @story
    async def test_request_goes_with_its_shard(self, another: AnotherTimerBoard, time: Time) -> None:
        """What was not taken is for the next holder, be the shard nobody's meanwhile, given, or lost."""
        first, second = await joined(another, 1, 2)
        await second.ask(request(7))
        old = (await held(first, 1, 0))[0]
        assert await told(first, 1) == [Waiting(7, 0)]
        time.advance(TTL_US)
        await beaten(second, 2)
        new = (await held(second, 2, 0))[0]
        assert [*await told(first, 1), *await taken(first, 1, old)] == []
        assert await taken(second, 2, new) == [request(7)]
        await second.answer(2, 7, "done")
        assert await first.reply(7) == Reply(2, "done")

    @story
    async def test_taken_request_stays_with_its_taker(self, another: AnotherTimerBoard) -> None:
        """What was taken is nobody else's, whoever holds the shard; its taker may answer it all the same."""
        first, second = await joined(another, 1, 2)
        old = (await held(first, 1, 0))[0]
        await second.ask(request(7))
        assert await taken(first, 1, old) == [request(7)]
        await first.give(1, [old])
        new = (await held(second, 2, 0))[0]
        assert [*await told(second, 2), *await taken(second, 2, new)] == []
        assert [*await told(first, 1), *await taken(first, 1, old)] == []
        await first.leave(1)
        await first.answer(1, 7, "done")
        assert await second.reply(7) == Reply(1, "done")

    @story
    async def test_first_answer_stands(self, another: AnotherTimerBoard) -> None:
        """Nobody answers what it has not taken, and nobody answers twice."""
        first, second = await joined(another, 1, 2)
        hold = (await held(first, 1, 0))[0]
        await first.ask(request(7))
        await first.answer(1, 7, "too early")
        assert await first.reply(7) == Reply()
        await taken(first, 1, hold)
        await second.answer(2, 7, "of another")
        await first.answer(1, 8, "to nothing")
        for text in ("first", "second"):
            await first.answer(1, 7, text)
        assert await second.reply(7) == Reply(1, "first")
        assert await second.reply(8) is None

    @story
    async def test_withdrawn(self, another: AnotherTimerBoard) -> None:
        """What nobody has taken can be taken back: shown once more, it is gone, and nobody is given it."""
        (board,) = await joined(another, 1)
        hold = (await held(board, 1, 0))[0]
        await board.ask(request(7))
        await board.ask(request(8))
        assert await board.reply(7, withdraws=True) == Reply()
        assert await board.reply(7, withdraws=True) is None
        assert await told(board, 1) == [Waiting(8, 0)]
        assert await taken(board, 1, hold) == [request(8)]

    @story
    async def test_withdrawn_too_late(self, another: AnotherTimerBoard) -> None:
        """What was taken is not taken back, and is shown as it is."""
        (board,) = await joined(another, 1)
        hold = (await held(board, 1, 0))[0]
        await board.ask(request(7))
        await taken(board, 1, hold)
        assert await board.reply(7, withdraws=True) == await board.reply(7) == Reply(1)
        await board.answer(1, 7, "done")
        assert await board.reply(7, withdraws=True) == await board.reply(7) == Reply(1, "done")

    @story
    async def test_time_of_a_request(self, another: AnotherTimerBoard, time: Time) -> None:
        """From its instant on nobody is told of a request or given it; it is there still, to be looked at."""
        (board,) = await joined(another, 1)
        hold = (await held(board, 1, 0))[0]
        seven, eight, nine = (request(each, until_us=NOW_US + 2) for each in (7, 8, 9))
        await board.ask(seven)
        await board.ask(eight)
        time.advance(1)
        assert await taken(board, 1, hold) == [seven, eight]
        await board.ask(nine)
        time.advance(1)
        assert [*await told(board, 1), *await taken(board, 1, hold)] == []
        assert await board.reply(9) == Reply()
        await board.answer(1, 7, "done")
        assert [await board.reply(each) for each in (7, 8)] == [Reply(1, "done"), Reply(1)]

    @story
    async def test_old_requests_are_forgotten(self, another: AnotherTimerBoard, time: Time) -> None:
        """When somebody asks, requests whose time was long ago are forgotten, however they ended."""
        (board,) = await joined(another, 1)
        hold = (await held(board, 1, 0))[0]
        await board.ask(request(7))
        await taken(board, 1, hold)
        await board.answer(1, 7, "done")
        await board.ask(request(8))
        time.advance(LONG_US)
        later = UNTIL_US + LONG_US
        assert await board.reply(7) == Reply(1, "done")
        await board.ask(request(9, until_us=later))
        assert [await board.reply(each) for each in (7, 8, 9)] == [None, None, Reply()]

    @pytest.mark.parametrize("text", ANY_NAMES, ids=lambda text: ascii(text[:12]))
    @story
    async def test_any_text_of_a_request_comes_back(self, another: AnotherTimerBoard, text: str) -> None:
        """Timers, verbs, names and answers may hold any character and be a megabyte long."""
        (board,) = await joined(another, 1)
        hold = (await held(board, 1, 0))[0]
        asked = Request(2**62, 0, text, text[::-1], f"{text}!", UNTIL_US)
        await board.ask(asked)
        assert await taken(board, 1, hold) == [asked]
        await board.answer(1, asked.id, text)
        assert await board.reply(asked.id) == Reply(1, text)

    @story
    async def test_withdrawn_beside_its_taking(self, another: AnotherTimerBoard) -> None:
        """A request that is taken and withdrawn at the same time is one of the two, and both know which."""
        first, second = await joined(another, 1, 2)
        hold = (await held(first, 1, 0))[0]
        for number in range(1, 15):
            asked = request(number)
            await second.ask(asked)
            given, reply = await asyncio.gather(
                taken(first, 1, hold), second.reply(number, withdraws=True), return_exceptions=True
            )
            assert (given, reply) in (([asked], Reply(1)), ([], Reply()))
            await first.answer(1, number, "done")

    @story
    async def test_many_ask_and_take_at_once(self, another: AnotherTimerBoard) -> None:
        """Machines ask, take and answer side by side; each request is given to the holder of its shard."""
        members = list(range(4))
        boards = await joined(another, *members)
        holds = [(await held(board, at, at))[at] for board, at in zip(boards, members, strict=True)]
        seen: list[list[Request]] = [[] for _ in members]

        async def work(at: int) -> None:
            board = boards[at]
            for turn in range(20):
                await board.ask(request(100 * at + turn, (at + turn) % 4))
                for asked in await taken(board, at, holds[at]):
                    seen[at].append(asked)
                    await board.answer(at, asked.id, f"{at}")

        await asyncio.gather(*map(work, members))
        for at, board in zip(members, boards, strict=True):
            seen[at] += await taken(board, at, holds[at])
            assert {asked.shard for asked in seen[at]} == {at}
            ids = [asked.id for asked in seen[at]]
            assert len(ids) == len(set(ids)) == 20
