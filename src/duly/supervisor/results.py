"""What becomes of a run or of a request: ends and refusals, all of them values.

A return code alone does not tell a job that failed from one that we cut off. So the one that cut it off says
so, and that wins over what the kill looks like from outside (spec/timers.md 3.1 and 5.1).
"""

import signal
from enum import StrEnum
from typing import Literal

import msgspec

from duly.errors import SchedulerError
from duly.store.history import Result

TargetState = Literal["idle", "active", "disabled", "missing"]
"""Whether a service can be run now."""


class RunResult(msgspec.Struct, frozen=True):
    """The end of a run: its result, the code or the signal it ended with, and a few words."""

    result: Result
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""


def run_result_of(
    returncode: int, *, was_timed_out: bool = False, was_interrupted: bool = False
) -> RunResult:
    """The end of a process with *returncode* (negative: the signal that ended it).

    A run that was over its time stays a timeout when a shutdown comes on top: it would have ended anyway.
    """
    exit_code = returncode if returncode >= 0 else None
    number = -returncode if returncode < 0 else None
    how = f"exited with code {returncode}" if number is None else f"ended by {signal_name(number)}"
    if was_timed_out:
        return RunResult(Result.TIMEOUT, exit_code, number, f"stopped after its time limit; {how}")
    if was_interrupted:
        return RunResult(Result.INTERRUPTED, exit_code, number, f"stopped by the shutdown of duly; {how}")
    if number is not None:
        return RunResult(Result.SIGNAL, None, number, how)
    if returncode == 0:
        return RunResult(Result.SUCCESS, 0)
    return RunResult(Result.EXIT, returncode, None, how)


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGTERM; real-time signals count from SIGRTMIN."""
    try:
        return signal.Signals(number).name
    except ValueError:
        pass
    if hasattr(signal, "SIGRTMIN") and signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return f"signal {number}"


class Refused(StrEnum):
    """Why a service was not started or stopped."""

    UNKNOWN = "unknown"
    DISABLED = "disabled"
    ACTIVE = "active"
    LOCKED = "locked"
    STOPPING = "stopping"
    RELOADING = "reloading"
    NOT_ONESHOT = "not-oneshot"
    UNKILLABLE = "unkillable"
    ELSEWHERE = "elsewhere"


_SENTENCES = {
    Refused.UNKNOWN: 'There is no service "{}"; `duly services` lists them',
    Refused.DISABLED: 'Service "{}" is disabled; set enabled = true in the configuration and reload',
    Refused.ACTIVE: 'Service "{}" is active already; stop it first, or wait for its end',
    Refused.LOCKED: 'The lock of service "{}" is held by another service, which runs; wait for its end',
    Refused.STOPPING: 'Service "{}" is left as it is: the supervisor is stopping',
    Refused.RELOADING: 'Service "{}" is being reloaded; try again in a moment',
    Refused.NOT_ONESHOT: 'Service "{}" is a simple service; only a oneshot can be run to its end',
    Refused.UNKILLABLE: 'Service "{}" has a process that was killed and lives on; see what it waits for',
    Refused.ELSEWHERE: (
        'Service "{}" runs under another daemon, whose store this is a copy of; stop it there, '
        "or give this daemon a store of its own"
    ),
}


class ServiceError(SchedulerError):
    """The supervisor does not do what was asked of one service; `kind` says why."""

    def __init__(self, kind: Refused, service: str) -> None:
        super().__init__(_SENTENCES[kind].format(service), {"kind": kind.value, "service": service})
        self.kind = kind
        self.service = service


class SupervisorStoppingError(SchedulerError):
    """A start or a reload came after a stop."""

    def __init__(self) -> None:
        super().__init__("The supervisor is stopping; start a new one")
