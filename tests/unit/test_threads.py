"""Work in threads: order, errors, cancellation, and telling when all of it rests."""

import asyncio
import gc
import threading
from functools import partial

import pytest

from duly.threads import ENDED_EARLY, Worker, in_thread, outstanding


async def test_worker_keeps_order_and_one_thread() -> None:
    """A worker does what it is given in order, in one thread that is not the loop's."""
    worker = Worker("test")
    seen: list[tuple[int, int]] = []

    def note(n: int) -> None:
        seen.append((n, threading.get_ident()))

    await asyncio.gather(*(worker.do(partial(note, n)) for n in range(50)))
    worker.end()
    assert [n for n, _ in seen] == list(range(50))
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_worker_raises_what_the_work_raises() -> None:
    """An error in the thread is raised where the work was given, and the worker goes on."""
    worker = Worker("test")
    with pytest.raises(ZeroDivisionError):
        await worker.do(lambda: 1 // 0)
    assert await worker.do(lambda: 7) == 7
    worker.end()
    assert await worker.do(lambda: 8) == 8  # begins again when it is needed again
    worker.end()


async def test_cancelled_waiting_does_not_cancel_the_work() -> None:
    """Work that was handed over is done, even if nobody waits for it any more."""
    worker, go_on, done = Worker("test"), threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait()
        done.set()

    waiting = asyncio.create_task(worker.do(work))
    await asyncio.sleep(0)  # noqa: TID251 (lets the work be handed over)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(outstanding(asyncio.get_running_loop())) == 1
    go_on.set()
    await worker.do(lambda: None)
    assert done.is_set()
    assert not outstanding(asyncio.get_running_loop())
    worker.end()


async def test_error_after_cancelled_waiting_is_not_complained_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Work whose waiting was cancelled may fail; the loop does not report it as an error nobody saw."""
    worker, go_on = Worker("test"), threading.Event()

    def fail() -> None:
        go_on.wait()
        raise ZeroDivisionError

    waiting = asyncio.create_task(worker.do(fail))
    await asyncio.sleep(0)  # noqa: TID251 (yields: the work is handed over)
    waiting.cancel()
    await asyncio.wait([waiting])
    go_on.set()
    await worker.do(lambda: None)  # after it, in order
    worker.end()
    del waiting
    gc.collect()
    assert caplog.text == ""


async def test_posted_work_is_done_and_its_errors_are_nobodys() -> None:
    """Posted work is done in order; what it raises does not trouble the loop."""
    worker, seen = Worker("test"), []

    def fails() -> None:
        seen.append(1)
        raise ZeroDivisionError

    worker.post(fails)
    await worker.do(lambda: seen.append(2))
    worker.end()
    assert seen == [1, 2]


def test_in_thread_needs_a_function() -> None:
    """`in_thread` refuses what cannot be called, and shows what it wraps."""
    with pytest.raises(TypeError):
        in_thread(5)  # type: ignore[arg-type]
    assert repr(in_thread(print)) == "in_thread(<built-in function print>)"


async def test_cancelled_thread_is_waited_for() -> None:
    """A time limit on a run in a thread takes effect when its function has returned."""
    go_on = threading.Event()
    running = asyncio.create_task(in_thread(go_on.wait)())
    for _ in range(3):
        await asyncio.sleep(0)  # noqa: TID251 (lets the thread begin)
        running.cancel(ENDED_EARLY)
    assert not running.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_program_that_ends_does_not_wait_for_threads() -> None:
    """Any other cancellation, such as that of a program that ends, leaves the thread behind."""
    go_on = threading.Event()
    running = asyncio.create_task(in_thread(go_on.wait)())
    await asyncio.sleep(0)  # noqa: TID251 (lets the thread begin)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()


def test_async_function_needs_no_thread() -> None:
    """An async function is refused: its thread would make a coroutine and drop it."""

    async def already_async() -> None: ...

    with pytest.raises(TypeError, match="async already"):
        in_thread(already_async)
