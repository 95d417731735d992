"""How a run ended, and why it was started: the words of TIMERS.md 5, and one pure reading of a return code.

A return code alone does not tell a job that failed from one that we cut off, so whoever cut it off says so;
that wins over what the kill looks like from outside.
"""

import signal
from enum import StrEnum

import msgspec


class Result(StrEnum):
    """How a run ended."""

    SUCCESS = "success"
    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    SPAWN_ERROR = "spawn-error"
    INTERRUPTED = "interrupted"


class Reason(StrEnum):
    """Why a run was started."""

    BOOT = "boot"
    RESTART = "restart"
    MANUAL = "manual"
    SCHEDULE = "schedule"
    STARTUP = "startup"
    INTERVAL = "interval"
    RETRY = "retry"
    CATCH_UP = "catch-up"
    TRIGGER = "trigger"


class Ended(msgspec.Struct, frozen=True):
    """The end of a run: its result, the code or the signal it ended with, and a few words."""

    result: Result
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""


def ended_of(returncode: int, *, was_timed_out: bool = False, was_interrupted: bool = False) -> Ended:
    """The end of a process with *returncode* (negative: the signal that ended it).

    A run that was over its time stays a timeout when a shutdown comes on top: it would have ended anyway.
    """
    exit_code = returncode if returncode >= 0 else None
    number = -returncode if returncode < 0 else None
    how = f"exited with code {returncode}" if number is None else f"ended by {signal_name(number)}"
    if was_timed_out:
        return Ended(Result.TIMEOUT, exit_code, number, f"stopped after its time limit; {how}")
    if was_interrupted:
        return Ended(Result.INTERRUPTED, exit_code, number, f"stopped by the shutdown of duly; {how}")
    if number is not None:
        return Ended(Result.SIGNAL, None, number, how)
    if returncode == 0:
        return Ended(Result.SUCCESS, 0)
    return Ended(Result.EXIT, returncode, None, how)


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGTERM; real-time signals count from SIGRTMIN."""
    try:
        return signal.Signals(number).name
    except ValueError:
        pass
    if hasattr(signal, "SIGRTMIN") and signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return f"signal {number}"
