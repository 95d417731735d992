"""The watchdog: runs of shared timers do not outlive this node's lease, even if the daemon dies or hangs.

A small process (`watchdog_process`) stands beside the daemon. The daemon writes to its pipe which runs there
are, and until when the node is trusted. The guarantees:

- When the daemon is killed, or the deadline passes because it is stopped, stuck or cut off from the database,
  every process of every watched run is killed. Trust ends before the lease does, so this comes before another
  node may start the same jobs.
- A run is in the pipe before its process is made, and the pipe outlives the daemon: no process is missed
  because it was just forked. Without a watchdog process nothing starts (`watch` answers no).
- To a run belong its process, the session and the group of that, every process that has the run's token in
  its environment, and all descendants. A pid that was given again is known by its start time, and spared.
- A run that has expired stays expired: neither a later deadline nor another watchdog process saves it.
- Time is CLOCK_BOOTTIME: a host that was suspended finds the deadline passed within 0.1 s.
- The process has a session of its own, and blocks all signals but KILL and STOP. If it dies, or does not read
  its pipe for five seconds, another takes its place and gets the whole list.
- Every method but `start` and `close` may be called in any thread, and waits for nobody.

It cannot help in three cases: the daemon and the process are killed in the same moment; a program takes
longer than ten seconds to load while the daemon dies; a process became another user's.
"""

import asyncio
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from duly.clock import Steady, steady_us
from duly.instant import back_off
from duly.processes import watchdog_process
from duly.processes.children import Children
from duly.processes.procfs import RUN_TOKEN, Identity
from duly.processes.spawn import kept_of


class Watchdog:
    """Watches the runs of one node. The process is entered in *children*, so that nobody else reaps it."""

    def __init__(self, children: Children, *, steady: Steady = steady_us) -> None:
        self.fault = ""
        """Why there is no process, though there should be one."""
        self._children = children
        self._steady = steady
        self._keeping: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        """Guards the rest. It is held for moments only: a heartbeat must not wait."""
        self._until_us = 0
        self._runs: dict[str, Identity | None] = {}
        self._expired: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._sent_bytes = 0
        self._due = (0, 0)
        """What the process should have read by now: since when, and up to which byte."""

    @property
    def pid(self) -> int | None:
        """The pid of the process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    async def start(self) -> None:
        """Start the process. If that fails, `fault` says why, and it is tried again until `close`."""
        assert self._keeping is None, "one process at a time"
        is_tried = asyncio.Event()
        self._keeping = asyncio.create_task(self._keep(is_tried), name="duly watchdog")
        await is_tried.wait()

    async def close(self) -> None:
        """End the process. The runs that it watched go on."""
        # First: `_keep` goes on only while it is the one that is noted here.
        keeping, self._keeping = self._keeping, None
        with self._lock:
            self._runs.clear()
            self._expired.clear()
            self._send("close")
            patience_s = 0 if self._process is None else _PATIENCE_S
        if keeping is not None:
            # It reads "close" and exits by itself. One that is stopped does not, and is killed.
            await asyncio.wait([keeping], timeout=patience_s)
            keeping.cancel()
            await asyncio.wait([keeping])
        self.fault = ""

    # --- the deadline and the runs ---

    def extend(self, until_us: int) -> None:
        """Set the deadline, by the steady clock; 0 ends all runs now."""
        with self._lock:
            # Before the deadline moves: what the old one has passed over stays expired.
            self._expire()
            self._until_us = until_us
            self._check_process()
            self._send("until", until_us)

    def watch(self, token: str, process: Identity | None = None) -> bool:
        """Watch a run: before its process is made, and again when it is known. Whether it may start."""
        with self._lock:
            self._expire()
            self._runs[token] = process
            self._send_run(token)
            return self._process is not None and self.allows(token)

    def allows(self, token: str) -> bool:
        """Whether a watched run has not expired."""
        # The deadline is read first: `extend` notes what has expired before it sets a later one.
        return self._steady() < self._until_us and token in self._runs and token not in self._expired

    def forget(self, token: str) -> None:
        """Stop watching a run: it has ended."""
        with self._lock:
            self._expire()
            if token in self._runs:
                del self._runs[token]
                self._expired.discard(token)
                self._send("forget", f"{RUN_TOKEN}={token}")

    def _expire(self) -> None:
        if self._steady() >= self._until_us:
            self._expired |= self._runs.keys()

    # --- the process ---

    async def _keep(self, is_tried: asyncio.Event) -> None:
        """Have a process, one after the other, until `close`."""
        pause_s = _FIRST_PAUSE_S
        while self._keeping is asyncio.current_task():
            try:
                await self._one_process(is_tried)
                pause_s = _FIRST_PAUSE_S
            except OSError as error:
                self.fault = f"The watchdog process of this daemon cannot be started: {error}"
                is_tried.set()
                await asyncio.sleep(pause_s)  # noqa: TID251 (no schedule depends on it)
                pause_s = back_off(pause_s, _LONGEST_PAUSE_S)

    async def _one_process(self, is_tried: asyncio.Event) -> None:
        """Start a process, give it the list, and return when it has ended. Raises OSError."""
        if sys.platform != "linux":
            raise OSError("it needs Linux, whose /proc says which processes belong to a run")
        with self._children.spawning() as born:
            popen = _popen()
            born(popen.pid)
        stdout = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stdout)
        try:
            reading, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, popen.stdout)
            with closing(reading):
                said = await stdout.readline()
                if said != watchdog_process.READY:
                    raise OSError(f"it said {said!r}, not that it is ready; its errors are on stderr")
                self._hand_over(popen)
                self.fault = ""
                # After the hand-over: when `start` returns, runs may start.
                is_tried.set()
                await stdout.read()  # it says no more: the end of its output is its own
        finally:
            # Under the lock: no other thread may write to a descriptor that is closed, and perhaps another
            # file's by now.
            with self._lock:
                self._process = None
                _pipe(popen).close()
            popen.kill()
            popen.wait()
            self._children.forget(popen.pid)

    def _hand_over(self, popen: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self._process, self._sent_bytes, self._due = popen, 0, (self._steady(), 0)
            self._expire()
            # A new process has no deadline yet: what it gets before that is expired there too.
            for token in self._expired & self._runs.keys():
                self._send_run(token)
            self._send("until", self._until_us)
            for token in self._runs.keys() - self._expired:
                self._send_run(token)

    def _send_run(self, token: str) -> None:
        process = self._runs[token]
        pid, started = (0, 0) if process is None else (process.pid, process.started)
        self._send("watch", pid, started, f"{RUN_TOKEN}={token}")

    def _send(self, *words: object) -> None:
        if self._process is None:
            return
        record = " ".join(map(str, (self._steady(), *words))).encode(errors="surrogateescape") + b"\0"
        assert len(record) <= select.PIPE_BUF, "a longer record may be torn"
        try:
            self._sent_bytes += os.write(_pipe(self._process).fileno(), record)
        except (BrokenPipeError, BlockingIOError):  # it is dead, or its pipe is full
            self._give_up()

    def _check_process(self) -> None:
        """Give up a process that does not read: somebody has stopped it, perhaps."""
        if self._process is None:
            return
        unread = fcntl.ioctl(_pipe(self._process), termios.FIONREAD, bytes(4))
        (since_us, due_bytes), now_us = self._due, self._steady()
        # Counted in bytes that were read: the pipe of a busy daemon is never seen empty.
        if self._sent_bytes - int.from_bytes(unread, sys.byteorder) >= due_bytes:
            self._due = now_us, self._sent_bytes
        elif now_us - since_us >= _DEAF_US:
            self._give_up()

    def _give_up(self) -> None:
        """Kill the process. The end of its output makes `_keep` start another."""
        assert self._process is not None
        self._process.kill()
        # From here on `watch` says no: nothing starts while nobody watches.
        self._process = None


def _popen() -> "subprocess.Popen[bytes]":
    # The process inherits the signal mask, and so has it from its first moment on.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        popen = subprocess.Popen(  # noqa: S603 (our own program)
            # Isolated (-I): no module of a user's path gets into a process that kills.
            [sys.executable, "-I", "-S", _PROGRAM, str(os.getpid()), str(os.getsid(0))],
            env=kept_of(os.environ),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.set_blocking(_pipe(popen).fileno(), False)
    with suppress(OSError):  # the user has many large pipes already
        fcntl.fcntl(_pipe(popen), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return popen


def _pipe(popen: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert popen.stdin is not None
    return popen.stdin


_PROGRAM = str(Path(watchdog_process.__file__).resolve())
_PIPE_BYTES = 1 << 20
"""As much as every user may have: thousands of records."""
_PATIENCE_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 16.0
_DEAF_US = 5_000_000
