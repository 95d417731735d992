"""Which process this is, and what becomes of a forked child that comes back into our code.

A child made by `os.fork` inside a callback has a copy of the whole scheduler and of the event loop below it.
It shares the loop's epoll descriptor with its parent, so even closing its loop would harm the parent's. It
has none of the other threads, so it cannot write to a store. It must not go on, and it must not be unwound.
"""

import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

_pid = os.getpid()


def process_id() -> int:
    """The id of this process, without asking the system: it is asked before and after every run."""
    return _pid


def _on_fork() -> None:
    global _pid  # noqa: PLW0603 (a process has one id)
    _pid = os.getpid()


os.register_at_fork(after_in_child=_on_fork)


def end_if_forked(pid: int, where: object, error: BaseException | None = None) -> None:
    """End this process at once if it is not *pid*: it came back to *where*, with *error*."""
    if _pid != pid:
        _end_child(pid, where, error)


def _end_child(pid: int, where: object, error: BaseException | None) -> NoReturn:
    code = os.EX_SOFTWARE
    # `asyncio.run` takes the child's loop apart while it handles what ended its main coroutine.
    error = sys.exc_info()[1] or error
    if isinstance(error, SystemExit):  # the child has ended itself, in the way of every Python program
        code = _exit_code(error)
    else:
        if error is not None:
            traceback.print_exception(error)
        _say(
            f"duly: process {_pid} was forked from process {pid} and came back to the scheduler"
            f" ({where}); it ends here. A forked child must end by itself, with os._exit() or sys.exit()"
        )
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    # Without unwinding: open files, locks and `finally` blocks here are copies of the parent's.
    os._exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    _say(str(error.code))
    return 1


def _say(line: str) -> None:
    with suppress(Exception):  # stderr may be closed, or None
        sys.stderr.write(f"{line}\n")
