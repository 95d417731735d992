"""The daemon as a process: signals, orphans, systemd, the output of its services, and its exit code.

It is a good PID 1. TERM, INT and QUIT end it in order, the second of them at once; HUP reloads; USR1, USR2
and WINCH are handed on to the services. Whatever services leave behind without a parent is reaped here.
"""

import asyncio
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from duly.config import Config
from duly.config.schema import store_path
from duly.daemon.backend import DashboardServer
from duly.daemon.daemon import Daemon
from duly.daemon.echo import Echo
from duly.daemon.protocol import OperationError
from duly.daemon.sharing import Sharing, sharing_of
from duly.daemon.watching import Watch
from duly.events import described, warn_operator
from duly.formatting import length
from duly.instant import SECOND_US
from duly.processes.children import Reaper, become_subreaper
from duly.processes.process import HostProcesses
from duly.store.history import RunRow

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_MOST_NAMED = 5
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


async def serve(
    config: Config,
    load: Callable[[], Config] | None = None,
    *,
    timers: bool | None = None,
    is_echoing: bool = True,
    wait_sec: float = 0,
    log: Echo | None = None,
    trace: str | None = None,
    dashboard: DashboardServer | None = None,
) -> None:
    """Run the daemon of *config*, and its *dashboard*, until a signal or a client ends it.

    *load* brings the configuration of a reload; by default its file is read again.

    A database that cannot be reached is waited for, for so long, before anything starts. *log* writes the
    daemon's log; health reports the lines that it drops. What its timers do is recorded in the file *trace*.

    Raises StoreError, StoreInUseError, SocketError, PathTooLongError, WebRefusedError.
    """
    umask = os.umask(0o077)  # the store holds outputs and the socket takes orders: ours alone
    os.umask(umask | 0o077)
    processes = HostProcesses(umask=umask)

    def warn_of_wait(reason: str, waited_sec: float) -> None:
        warn_operator(f"duly: waiting for the database, {waited_sec:.0f} s by now: {reason}")

    sharing = sharing_of(config, processes.children, wait_sec=wait_sec, on_wait=warn_of_wait)
    watch = Watch(config, sharing=sharing, trace=trace)
    daemon = _new_daemon(config, load, processes, watch, dashboard, timers=timers, sharing=sharing)
    echo = Echo() if is_echoing else None
    notifier = Notifier(os.environ)
    # Before anything is started: an orphan of a process from before this would go to init.
    become_subreaper()
    reaper = Reaper(processes.children)
    reaper.begin()
    _Signals(daemon).handle()
    daemon.fault_sources += [output.faults for output in (echo, log) if output is not None]
    if echo is not None:
        daemon.on_run_started.append(lambda row: _echo(daemon, echo, row))
        daemon.on_run_ended.append(lambda row: echo.end(row.id))
    daemon.on_reloading.append(notifier.reloading)

    def on_started_up() -> None:
        # The garbage collector leaves alone what start-up made: thousands of tasks cost it 100 ms a time.
        gc.collect()
        gc.freeze()
        of, store = daemon.config, store_path(daemon.config)
        notifier.ready(f"{len(of.services)} services, {len(of.timers)} timers declared; store {store}")

    daemon.on_started_up.append(on_started_up)
    daemon.on_stopping.append(notifier.stopping)
    watchdog = notifier.keep_alive()
    try:
        await daemon.run()
    finally:
        if watchdog is not None:
            watchdog.cancel()
        await watch.close()
        # After the daemon: until its end services leave orphans.
        reaper.end()
        if echo is not None:
            echo.close()


def _new_daemon(
    config: Config,
    load: Callable[[], Config] | None,
    processes: HostProcesses,
    watch: Watch,
    dashboard: DashboardServer | None,
    *,
    timers: bool | None,
    sharing: Sharing | None,
) -> Daemon:
    """The daemon, with its listeners attached."""
    dashboards = [] if dashboard is None else [dashboard]
    daemon = Daemon(
        config,
        processes,
        timers=timers,
        listeners=[*watch.listeners, *(each.listener for each in dashboards)],
        sharing=sharing,
        load=load,
        loading=processes.children.spawning,
    )
    watch.attach(daemon)
    for each in dashboards:
        each.attach(daemon, watch)
        watch.event_listeners.append(each.listener)
        daemon.dashboards.append(each)
    return daemon


def _echo(daemon: Daemon, echo: Echo, row: RunRow) -> None:
    output = daemon.output(row.id)
    if output is not None:
        show = echo.begin(row.id, row.service)
        if (before := output.text()) != "":
            show(before.encode())
        output.watch(show)


class _Signals:
    """What signals mean to the daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._reloads: set[asyncio.Task[None]] = set()
        self._is_reload_waiting = False
        daemon.on_reloading.append(self._on_reload)

    def handle(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        for number in _HANDED_ON:
            loop.add_signal_handler(number, self._daemon.signal, number)

    def _end(self, number: signal.Signals) -> None:
        if self._daemon.is_over:
            warn_operator(f"duly: {number.name} again: ending what still runs at once")
            self._daemon.hurry()
            return
        if number is signal.SIGINT:
            warn_operator(f"duly: {self._waited_for()}")
        self._daemon.shut_down()

    def _waited_for(self) -> str:
        """What a person at the terminal now waits for."""
        active = [view.id for view in self._daemon.services() if view.state in {"starting", "running"}]
        if not active:
            return "stopping"
        more = f" and {len(active) - _MOST_NAMED} more" if len(active) > _MOST_NAMED else ""
        at_most = length(self._daemon.config.settings.shutdown_timeout_sec)
        named = ", ".join(active[:_MOST_NAMED]) + more
        return f"stopping; this waits for {named}, at most {at_most}; Ctrl-C again ends them at once"

    def _reload(self) -> None:
        if self._is_reload_waiting:
            return  # it will read the file as it is then
        self._is_reload_waiting = True
        task = asyncio.get_running_loop().create_task(self._reload_now())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def _on_reload(self) -> None:
        # The file is about to be read: a signal from here on asks for another look at it.
        self._is_reload_waiting = False

    async def _reload_now(self) -> None:
        try:
            await self._daemon.reload(is_patient=True)
        except OperationError as error:
            warn_operator(f"duly: not reloaded: {error.message}")
        except Exception as error:
            warn_operator(f"duly: not reloaded: {described(error)}")
        finally:
            self._is_reload_waiting = False


# --- systemd ---


class Notifier:
    """Reports to systemd how the daemon is, if systemd started it (sd_notify).

    A datagram to the socket named in NOTIFY_SOCKET, nothing more. Without that name nothing is sent; a socket
    that takes nothing any more is no reason to stop.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environ)
        """How often it wants a sign that we live; None when it does not."""

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def keep_alive(self) -> "asyncio.Task[None] | None":
        """Report from time to time that the loop still turns, if systemd wants that."""
        return None if self._watchdog_s is None else asyncio.create_task(self._alive(self._watchdog_s))

    async def _alive(self, period_s: float) -> None:
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(period_s)  # noqa: TID251 (it is the loop that is watched, not a clock)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines).encode()
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as post,
        ):
            # A manager that does not read must not hold up the loop.
            post.setblocking(False)
            post.sendto(message, self._address)


def _address(name: str) -> str | None:
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Half the time after which it would take us for dead, if it watches this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) / SECOND_US / 2
