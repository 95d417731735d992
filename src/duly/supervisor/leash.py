"""The leash: runs that must not outlive this machine's lease, even if the daemon is killed, stopped or stuck.

Each lease on timers that a daemon has comes with a `guardian`, a small process of its own, which is told of
every run before its process is made and ends all of them when the lease has passed, or when the daemon is
gone. What is told is in the pipe, and so survives the daemon, before anything is started. Here nothing waits
for the guardian. If it dies everybody hears of it, nothing new may start, and the next one is handed
everything.

What it cannot help: a daemon and its guardian killed in the same moment, a program whose file takes longer
than ten seconds to load when the daemon dies, and processes that became another user's.
"""

import asyncio
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from duly.cluster.clock import Steady, steady_us
from duly.supervisor import guardian
from duly.supervisor.children import Brood, Spawned, kept_of, pidfd_of
from duly.supervisor.output import Tail
from duly.supervisor.process import HostProcess
from duly.supervisor.procfs import MARKER, Identity, identity_of
from duly.supervisor.strays import Strays
from duly.threads import in_thread


class LeashError(Exception):
    """There is no guardian, and without one nothing may be started; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"The guardian of this daemon cannot be started: {reason}")


@dataclass(slots=True)
class _Run:
    process: Identity | None = None
    is_doomed: bool = False


class Leash:
    """What a daemon has on the leash. *on_lost* is called when its guardian has died: `start` another."""

    def __init__(
        self, brood: Brood, *, on_lost: Callable[[], None] = lambda: None, steady: Steady = steady_us
    ) -> None:
        self._brood = brood
        self._on_lost = on_lost
        self._steady = steady
        self._until_us = 0
        self._runs: dict[str, _Run] = {}
        self._guardian: HostProcess | None = None
        self._pipe = -1
        self._said_bytes = 0
        self._due = (0, 0)
        """What the guardian should have heard by now: since when, and up to which byte."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def guardian(self) -> Identity | None:
        """The process that guards; None if there is none now."""
        return None if self._guardian is None else self._guardian.identity

    async def start(self) -> None:
        """Have a guardian, and hand it whatever is on the leash. Raises LeashError."""
        assert self._guardian is None, "one guardian at a time"
        if sys.platform != "linux":
            raise LeashError("it needs Linux, whose /proc tells which processes belong to a run")
        try:
            process, pipe = await self._started()
        except (OSError, RuntimeError) as error:  # no descriptor, process or thread left
            raise LeashError(str(error)) from error
        self._guardian, self._pipe = process, pipe
        self._said_bytes, self._due = 0, (self._steady(), 0)
        self._watching = asyncio.get_running_loop().create_task(
            self._watch(process), name="duly guardian's watch"
        )
        self._hand_over()

    async def close(self) -> None:
        """Let go of everything, and kill nothing."""
        process, watching = self._guardian, self._watching
        self._runs.clear()
        if process is None or watching is None:
            return
        self._say("close")
        self._guardian = None
        self._hang_up()
        _, stuck = await asyncio.wait([watching], timeout=_PATIENCE_S)
        if stuck:
            process.signal(signal.SIGKILL)
        await watching

    # --- the lease ---

    def extend(self, until_us: int) -> None:
        """Let what is on the leash live until *until_us*, by the steady clock."""
        self._look()
        self._until_us = until_us
        self._look_after_guardian()
        self._say("until", until_us)

    def cut(self) -> None:
        """End everything on the leash now. Nothing new may start until the lease is extended."""
        self._until_us = 0
        self._look()
        self._say("cut")

    # --- runs ---

    def expect(self, marker: str) -> bool:
        """Announce a run whose process is about to be made; whether it may be."""
        self._look()
        self._runs[marker] = _Run()
        self._say("expect", _entry(marker))
        return self._pipe >= 0 and self.allows(marker)

    def allows(self, marker: str) -> bool:
        """Whether a run may still begin, or go on. May be asked in any thread."""
        run = self._runs.get(marker)
        return run is not None and not run.is_doomed and self._steady() < self._until_us

    def hold(self, marker: str, process: Identity) -> None:
        """Note which process the run is: the leader of a session."""
        self._look()
        self._runs.setdefault(marker, _Run()).process = process
        self._say("hold", process.pid, process.started, _entry(marker))

    def release(self, marker: str) -> None:
        """Let a run go that is over."""
        self._look()
        if self._runs.pop(marker, None) is not None:
            self._say("release", _entry(marker))

    def _look(self) -> None:
        """Doom whatever is here if the time has passed, as the guardian does."""
        if self._steady() >= self._until_us:
            for run in self._runs.values():
                run.is_doomed = True

    # --- the guardian ---

    async def _started(self) -> tuple[HostProcess, int]:
        reading, writing = os.pipe()
        try:
            os.set_blocking(writing, False)
            with suppress(OSError):  # the user has many large pipes already
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            with self._brood.spawning() as born:
                try:
                    child = await in_thread(partial(_spawned, reading))()
                except RuntimeError:
                    os.close(reading)  # there was no thread to do it
                    raise
                assert isinstance(child, Spawned)
                born(child.identity.pid)
            nobodys = Strays(f"guardian {child.identity.pid}", child.identity, self._brood)
            process = HostProcess(child, Tail(4096), self._brood, nobodys)
            await _ready(process)
        except BaseException:
            os.close(writing)  # whoever reads it has nothing on the leash, and ends
            raise
        return process, writing

    def _hand_over(self) -> None:
        """Tell a new guardian everything: first what must end, which a time that is told later dooms."""
        for is_doomed in (True, False):
            for marker, run in self._runs.items():
                if run.is_doomed != is_doomed:
                    continue
                self._say("expect", _entry(marker))
                if run.process is not None:
                    self._say("hold", run.process.pid, run.process.started, _entry(marker))
            if is_doomed:
                self._say("until", self._until_us)

    def _say(self, word: str, *rest: object) -> None:
        if self._pipe < 0:
            return
        record = " ".join(map(str, (self._steady(), word, *rest))).encode(errors="surrogateescape") + b"\0"
        assert len(record) <= select.PIPE_BUF, "longer records may be torn"
        try:
            self._said_bytes += os.write(self._pipe, record)
        except BrokenPipeError:
            self._hang_up()  # it has died; whoever watches it is about to hear
        except BlockingIOError:
            self._give_up()

    def _look_after_guardian(self) -> None:
        """Give up a guardian that does not listen, as one does not that somebody has stopped."""
        if self._pipe < 0:
            return
        unheard = fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4))
        heard_bytes = self._said_bytes - int.from_bytes(unheard, sys.byteorder)
        (since_us, due_bytes), now_us = self._due, self._steady()
        if heard_bytes >= due_bytes:
            self._due = now_us, self._said_bytes
        elif now_us - since_us >= _DEAF_US:
            self._give_up()

    def _give_up(self) -> None:
        """Have a guardian go that is of no use."""
        assert self._guardian is not None
        self._guardian.signal(signal.SIGKILL)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    async def _watch(self, process: HostProcess) -> None:
        await process.exited()
        process.close()
        if process is self._guardian:
            self._guardian = None
            self._hang_up()
            self._on_lost()


def _entry(marker: str) -> str:
    """What the processes of a run have in their environment."""
    return f"{MARKER}={marker}"


def _spawned(reading: int) -> Spawned:
    """Start a guardian that reads *reading*, which is closed here. Blocks."""
    # No signal but KILL and STOP reaches it, from its first moment on: it inherits the mask of this thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        telling, told = os.pipe()
        try:
            os.set_blocking(telling, False)
            pid = _popened(reading, told)
        except BaseException:
            os.close(telling)
            raise
        finally:
            os.close(told)
    finally:
        os.close(reading)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Spawned(identity_of(pid), pidfd_of(pid), telling)


def _popened(reading: int, told: int) -> int:
    popen = subprocess.Popen(  # noqa: S603 (our own program)
        [sys.executable, "-I", "-S", _PROGRAM, str(os.getpid())],
        env=kept_of(os.environ),
        cwd="/",
        stdin=reading,
        stdout=told,
        close_fds=True,
        start_new_session=True,
    )
    popen.returncode = 0  # its exit is for others to take
    return popen.pid


async def _ready(process: HostProcess) -> None:
    """Return when a guardian is on guard. Raises LeashError if it is not one that understands us."""
    said = await _first_line(process)
    if said != guardian.READY:
        await process.destroyed()
        raise LeashError(f"it said {said!r}, not that it is ready; its errors are on stderr")


async def _first_line(process: HostProcess) -> str:
    """What a guardian says first, or has said before it ended."""
    heard, exited = asyncio.Event(), asyncio.ensure_future(process.exited())
    unwatch = process.output.watch(lambda _: heard.set())
    exited.add_done_callback(lambda _: heard.set())
    try:
        while "\n" not in (said := process.output.text()) and not exited.done():
            await heard.wait()
            heard.clear()
    finally:
        unwatch()
        exited.cancel()
    return said


_PROGRAM = str(Path(guardian.__file__).resolve())
_PATIENCE_S = 5.0
_DEAF_US = 5_000_000
"""How long a guardian may take to hear what it is told."""
_PIPE_BYTES = 1 << 20
"""As much as everybody may have: tens of thousands of records."""
