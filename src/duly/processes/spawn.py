"""Spawning: how a process is made, and in one sentence why one cannot be made.

`spawn` blocks until the program is loaded, and is called in a thread if something else may block, too
(`may_wait`). It gives a child its own session (so that its group can be signalled as a whole), nothing to
read, one pipe for all it writes, and the defaults of signals.
"""

import errno
import os
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from duly.processes.options import (
    PLAIN,
    OptionFault,
    ProcessOptions,
    account_of,
    check_limits,
    check_nice,
    file_variables,
    limited,
)
from duly.processes.procfs import RUN_ID, RUN_TOKEN, Identity, identity_of

_NOT_INHERITED = frozenset(
    (
        *("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID"),
        *("DULY_OPERATOR_TOKEN", "DULY_VIEWER_TOKEN", "DULY_STORE", RUN_ID, RUN_TOKEN),
    )
)
"""What the service manager above us told us, and nobody else: also the keys to our dashboard and store."""


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """What to run: arguments, what to add to the environment, and where."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    options: ProcessOptions = PLAIN
    may_start: Callable[[], bool] | None = field(default=None, compare=False)
    """Asked in the very last moment: whether it may be run at all. Any thread may ask."""

    @property
    def may_wait(self) -> bool:
        """Whether something has to be looked at before the spawn that may not answer: then not on the loop.

        The spawn itself holds the interpreter in any thread until the program is loaded (vfork).
        """
        return self.cwd is not None or self.options.may_wait


class SpawnError(Exception):
    """A process could not be started; `reason` says why, in one sentence.

    It may name paths, and those may hold bytes that are no text; it is shown everywhere, so they are escaped.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason.encode(errors="backslashreplace").decode()
        super().__init__(self.reason)


class CalledOffError(SpawnError):
    """A process was not started because it may not be any more."""

    def __init__(self) -> None:
        super().__init__("not started: this machine has no lease on the timers now")


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that was just started: who it is, its pidfd (-1 without one), and the end of its pipe."""

    identity: Identity
    pidfd: int
    pipe: int


def environment_of(command: ProcessCommand, kept: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of a child: what is *kept* of ours, what is declared, and the token of its run.

    Raises SpawnError.
    """
    try:
        account, from_file = account_of(command.options), file_variables(command.options)
    except OptionFault as fault:
        raise SpawnError(fault.reason) from fault
    of_account = {} if account is None else account.variables
    return {**kept, **of_account, **from_file, **command.env, RUN_TOKEN: token}


def kept_of(inherited: Mapping[str, str]) -> dict[str, str]:
    """What every child has of our environment."""
    return {name: value for name, value in inherited.items() if name not in _NOT_INHERITED}


def spawn(command: ProcessCommand, environment: Mapping[str, str], umask: int = -1) -> Spawned:
    """Start *command*, with *umask* (-1: ours). Blocks until its program is loaded, or raises SpawnError."""
    if not command.argv or not command.argv[0]:
        raise SpawnError("There is no command to run; give at least the name of a program")
    _look_at_directory(command.cwd)
    try:
        reading, writing = os.pipe()
        try:
            os.set_blocking(reading, False)
            pid = _popen(command, environment, writing, umask)
        except BaseException:
            os.close(reading)
            raise
        finally:
            # Also our own copy: while it is open the output has no end.
            os.close(writing)
    except OSError as error:
        _look_at_directory(command.cwd)  # it may have gone meanwhile, and its errors look like the program's
        raise SpawnError(reason_of(error, command, environment)) from error
    except ValueError as error:
        raise SpawnError(f"{_name(command)} cannot be started: {_unusable(error)}") from error
    # Nobody has taken its exit yet: the pid is this child's, even if it is dead by now.
    return Spawned(identity_of(pid), pidfd_of(pid), reading)


def _popen(command: ProcessCommand, environment: Mapping[str, str], output: int, umask: int) -> int:
    # In this thread, right before the fork: the lease may have ended while we waited for a thread.
    if command.may_start is not None and not command.may_start():
        raise CalledOffError
    options, argv = command.options, command.argv
    switched: dict[str, Any] = {}
    try:
        check_nice(options)
        check_limits(options)
        if (account := account_of(options)) is not None:
            switched = {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
    except OptionFault as fault:
        raise SpawnError(fault.reason) from fault
    if options.has_limits:
        _look_at_program(command, environment)
        argv = limited(argv, options)
    if options.nice is not None:
        os.setpriority(os.PRIO_PROCESS, 0, options.nice)  # of this thread, which makes no other process
    # The child inherits the mask of the thread that makes it.
    before = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        popen = subprocess.Popen(  # noqa: S603 (an argv, never a shell)
            argv,
            env=environment,
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            close_fds=True,
            start_new_session=True,
            restore_signals=True,
            umask=umask if options.umask is None else int(options.umask, 8),
            **switched,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # The exit is ours to take: this keeps subprocess from looking for it, and from inventing one.
    popen.returncode = 0
    return popen.pid


def pidfd_of(pid: int) -> int:
    """A descriptor that reports the end of our child *pid*, or -1."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        # Not Linux, an old kernel, or no descriptor left: a thread waits for the exit instead.
        return -1


def _look_at_directory(cwd: str | None) -> None:
    """Raise SpawnError if *cwd* cannot be worked in.

    Looked at before the spawn and not only after: Python's vfork holds the interpreter until the child runs,
    so a directory on a network disk that does not answer must hang here, in a thread, and nowhere else.
    """
    if cwd is None:
        return
    try:
        mode = os.stat(cwd).st_mode  # noqa: PTH116 (a path as it was declared, NUL bytes and all)
    except OSError as error:
        reason = "does not exist" if error.errno == errno.ENOENT else f"cannot be used: {error.strerror}"
        raise SpawnError(f'The working directory "{cwd}" {reason}') from error
    except ValueError as error:
        raise SpawnError(f"The working directory cannot be used: {_unusable(error)}") from error
    if not stat.S_ISDIR(mode):
        raise SpawnError(f'The working directory "{cwd}" is not a directory')
    if not os.access(cwd, os.X_OK):
        raise SpawnError(f'The working directory "{cwd}" may not be entered: Permission denied')


def _look_at_program(command: ProcessCommand, environment: Mapping[str, str]) -> None:
    """Raise the OSError of a program that cannot be run: the shell that sets limits would not say so."""
    path = _program_file(command, environment)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not os.access(path, os.X_OK) or os.path.isdir(path):  # noqa: PTH112 (as declared)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


_EXHAUSTED = {
    errno.EAGAIN: "the limit of processes is reached (see `ulimit -u` and the pids limit of the container)",
    errno.EMFILE: "this process has no file descriptor left (see `ulimit -n`)",
    errno.ENFILE: "the system has no file descriptor left",
    errno.ENOMEM: "there is not enough memory",
    errno.E2BIG: "its arguments and environment are longer than the system allows",
    errno.ETXTBSY: "its file is being written just now",
}


def reason_of(error: OSError, command: ProcessCommand, environment: Mapping[str, str]) -> str:
    """One sentence that says why *command* could not be started, and what to do about it."""
    name = _name(command)
    if error.errno in _EXHAUSTED:
        return f"{name} cannot be started: {_EXHAUSTED[error.errno]}"
    if error.errno == errno.ENOEXEC:
        return f"{name} is neither a program for this machine nor a script that begins with #!"
    path = _program_file(command, environment)
    if error.errno == errno.ENOENT and path is None:
        if "/" in command.argv[0]:
            return f"{name} does not exist"
        return f"{name} is not found in PATH ({environment.get('PATH', os.defpath)})"
    if error.errno == errno.ENOENT:
        return f"{name} names an interpreter in its first line (or a loader) that does not exist"
    if error.errno == errno.EACCES and path is not None and os.path.isdir(path):  # noqa: PTH112 (as declared)
        return f"{name} is a directory, not a program"
    if error.errno == errno.EACCES:
        return f"{name} is not executable, or lies where it may not be read: Permission denied"
    return f"{name} cannot be started: {error.strerror}"


def _name(command: ProcessCommand) -> str:
    return f'Command "{command.argv[0]}"'


def _program_file(command: ProcessCommand, environment: Mapping[str, str]) -> str | None:
    """The file that the child would have run, executable or not."""
    program = command.argv[0]
    if "/" in program:
        path = os.path.join(command.cwd or "", program)  # noqa: PTH118 (as declared)
        return path if os.path.lexists(path) else None
    return shutil.which(program, os.F_OK, environment.get("PATH", os.defpath))


def _unusable(error: ValueError) -> str:
    if isinstance(error, UnicodeError):
        return "it holds text that cannot be encoded for the system"
    if "embedded null" in str(error):  # "byte", or from Python 3.13 on "character in path"
        return "it holds a NUL byte"
    return str(error)


def handle_ignored_signals() -> None:
    """Handle, by doing nothing, every signal that our parent had ignored.

    nohup and a shell's `&` leave signals ignored, and what is ignored stays so in every child. What is
    handled is not inherited. An ignored SIGCHLD would even take the exits of children away. Only the main
    thread may do this; elsewhere it is left undone.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in signal.valid_signals() - _RESTORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            with suppress(OSError, ValueError):  # one of those that cannot be handled
                signal.signal(number, lambda _number, _frame: None)


_RESTORED = frozenset(
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ") if hasattr(signal, name)
)
"""Ignored by Python itself, which gives them back to its children."""
