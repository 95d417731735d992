"""The tail of an output: bounded, counted, cut where people can read it, and followed live."""

import asyncio
import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.processes.output import Pipe, Tail


@given(st.integers(0, 20), st.lists(st.binary(max_size=30), max_size=12))
def test_tail_is_the_end_of_all_that_was_written(limit_bytes: int, chunks: list[bytes]) -> None:
    """However it is written, the last bytes are kept, never more than the limit, and the rest is counted."""
    tail = Tail(limit_bytes)
    for chunk in chunks:
        tail.write(chunk)
        assert len(tail._kept) <= limit_bytes
    whole = b"".join(chunks)
    kept = whole[len(whole) - min(limit_bytes, len(whole)) :]
    shown = whole[tail.lost_bytes :]
    assert bytes(tail._kept) == kept
    assert kept.endswith(shown)
    assert tail.text() == shown.decode("utf-8", "replace")
    assert tail.written_bytes == len(whole)


@given(st.integers(4, 40), st.lists(st.text(alphabet="aé€😀\n", max_size=10), max_size=12))
def test_text_begins_at_a_line_or_at_least_at_a_character(limit_bytes: int, texts: list[str]) -> None:
    """No character is broken, and text begins inside a line only if there is no other line."""
    tail = Tail(limit_bytes)
    for text in texts:
        tail.write(text.encode())
    whole = "".join(texts)
    assert "\ufffd" not in tail.text()
    assert whole.endswith(tail.text())
    before = whole.encode()[: tail.lost_bytes]
    if tail.lost_bytes and not before.endswith(b"\n"):
        assert "\n" not in tail.text()[:-1]


def test_partial_first_line_is_left_out() -> None:
    """A line whose beginning was dropped is not told, and counts as lost."""
    tail = Tail(10)
    tail.write(b"first line\nsecond\n")
    assert (tail.text(), tail.lost_bytes) == ("second\n", 11)


def test_line_that_just_fits_is_kept() -> None:
    """A cut that falls between two lines loses neither."""
    tail = Tail(7)
    tail.write(b"first\n")
    tail.write(b"second\n")
    assert (tail.text(), tail.lost_bytes) == ("second\n", 6)


def test_one_endless_line_is_told_by_its_end() -> None:
    """When no line end is in sight the end of the line is told, from a whole character on."""
    tail = Tail(8)
    tail.write("€€€€\n".encode())
    assert (tail.text(), tail.lost_bytes) == ("€€\n", 6)


def test_not_utf8_is_replaced() -> None:
    """Bytes that are no text do not raise."""
    tail = Tail(4)
    tail.write(bytes(range(0x78, 0x90)))
    assert len(tail.text()) in range(1, 5)


def test_negative_limit_is_refused() -> None:
    """A tail of fewer than no bytes is a mistake."""
    with pytest.raises(ValueError, match="fewer than 0"):
        Tail(-1)


def test_followers_hear_what_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """A follower hears all from its beginning to its end; one that raises is told of and left out."""
    tail, received = Tail(4), list[bytes]()

    def fails(chunk: bytes) -> None:
        raise asyncio.CancelledError

    tail.write(b"before")
    tail.watch(fails)
    end = tail.watch(received.append)
    tail.write(b"during one")
    tail.write(b"")
    tail.write(b"during two")
    end()
    end()
    tail.write(b"after")
    assert received == [b"during one", b"during two"]
    assert capsys.readouterr().err.count("no longer follows") == 1


def test_follower_may_leave_and_bring_others() -> None:
    """A follower that ends another's following, or begins one, while being told, disturbs nothing."""
    tail, received = Tail(4), list[str]()
    ends: list[Callable[[], None]] = []

    def first(chunk: bytes) -> None:
        received.append("first")
        ends[0]()
        tail.watch(lambda _: received.append("third"))

    ends.append(tail.watch(first))
    tail.watch(lambda _: received.append("second"))
    tail.write(b"x")
    tail.write(b"x")
    assert received == ["first", "second", "second", "third"]


async def test_pipe_is_closed_at_its_end() -> None:
    """When the last writer has closed its end everything is in the tail, and the descriptor is free again."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    tail, come = Tail(100), asyncio.Event()
    tail.watch(lambda _: come.set())
    pipe = Pipe(reading, tail)
    os.write(writing, b"all of it")
    await come.wait()
    os.close(writing)
    while pipe.is_open:  # noqa: ASYNC110 (the loop must turn)
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    assert tail.text() == "all of it"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)
    pipe.close()


async def test_closing_takes_what_is_there_and_no_more() -> None:
    """Closing reads what is in the pipe at that moment, even if somebody fills it up again meanwhile."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    tail = Tail(100_000)
    tail.watch(lambda _: os.write(writing, b"more"))
    pipe = Pipe(reading, tail)
    os.write(writing, b"x" * 65536)
    pipe.close()
    assert tail.written_bytes == 65536
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"nobody reads")
    os.close(writing)


async def test_follower_may_close_the_pipe() -> None:
    """A follower may close the pipe it is told from, even while that is being closed."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    tail = Tail(100_000)
    pipe = Pipe(reading, tail)
    tail.watch(lambda _: pipe.close())
    os.write(writing, b"x" * 65536)
    pipe.close()
    assert not pipe.is_open
    assert tail.written_bytes == 65536
    os.close(writing)


async def test_flood_has_to_wait() -> None:
    """A process that fills the pipe as fast as it is read is read a few times; then others are read."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    tail, loop = Tail(100), asyncio.get_running_loop()
    tail.watch(lambda _: os.write(writing, b"more"))
    pipe = Pipe(reading, tail)
    os.write(writing, b"more")
    began_s, turns = loop.time(), 0
    while tail.written_bytes < 40 * 4:
        turns += 1
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    assert loop.time() - began_s >= 0.035
    assert turns > 100
    pipe.close()
    os.close(writing)


def timed(limit_bytes: int, *pieces: tuple[float, bytes]) -> tuple[str, list[tuple[int, int]]]:
    """What is kept of pieces that come after so many seconds, and when its lines came."""
    now_s = 0.0
    tail = Tail(limit_bytes, lambda: now_s)
    for at_s, piece in pieces:
        now_s = at_s
        tail.write(piece)
    return tail.text(), tail.times()


@pytest.mark.parametrize(
    ("limit_bytes", "pieces", "text", "times"),
    [
        (99, [], "", []),
        (99, [(0.1, b"a\n"), (0.9, b"b\n"), (7.5, b"c\nd\n")], "a\nb\nc\nd\n", [(0, 0), (2, 7)]),
        (99, [(3, b"a"), (9, b"b\nc\n")], "ab\nc\n", [(0, 3), (1, 9)]),
        (99, [(3, b"a"), (5, b"b"), (9, b"\n"), (11, b"c")], "ab\nc", [(0, 3), (1, 11)]),
        (4, [(0, b"a\n"), (1, b"b\n"), (2, b"c\n")], "b\nc\n", [(0, 1), (1, 2)]),
        (3, [(0, b"a\n"), (1, b"b\nc\n"), (2, b"d")], "c\nd", [(0, 1), (1, 2)]),
        (2, [(0, b"a\n"), (5, b"long\n")], "g\n", [(0, 5)]),
    ],
)
def test_times_of_lines(
    limit_bytes: int, pieces: list[tuple[float, bytes]], text: str, times: list[tuple[int, int]]
) -> None:
    """A line came when its first byte did; the times are those of the lines that are kept."""
    assert timed(limit_bytes, *pieces) == (text, times)


def test_times_are_bounded() -> None:
    """However long a run lasts, only so many times are kept; the first and the latest are exact."""
    _, times = timed(1 << 20, *((number, b"x\n") for number in range(20_000)))
    assert len(times) < 5000
    assert (times[0], times[-1]) == ((0, 0), (19_999, 19_999))
    assert all(line == at_s for line, at_s in times)
