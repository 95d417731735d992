"""The daemon as a process: signals, orphans, systemd, the output of its services, and its exit code.

It is a good PID 1. TERM, INT and QUIT end it in order, the second of them at once; HUP reloads; USR1, USR2
and WINCH are handed on to the services. Whatever services leave behind without a parent is reaped here.
"""

import asyncio
import gc
import os
import signal
import time

from duly.config import Config, store_path
from duly.daemon.daemon import Daemon
from duly.daemon.dashboard import dashboard_of
from duly.daemon.echo import Echo
from duly.daemon.notify import Notifier
from duly.daemon.protocol import OperationError
from duly.daemon.sharing import sharing_of
from duly.daemon.watching import Watch
from duly.events import described, tell_operator
from duly.store.history import RunRow
from duly.supervisor.process import HostProcesses
from duly.supervisor.reaper import Reaper, become_subreaper

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


def serve(
    config: Config,
    *,
    timers: bool | None = None,
    is_echoing: bool = True,
    wait_sec: float = 0,
    log: Echo | None = None,
) -> None:
    """Run the daemon of *config* until a signal or a client ends it.

    A database that cannot be reached is waited for, for so long, before anything starts. *log* writes the
    daemon's log; health reports the lines that it drops.

    Raises StoreError, StoreInUseError, SocketError, PathTooLongError, WebRefusedError.
    """
    before = os.umask(0o077)  # the store holds outputs and the socket takes orders: ours alone
    os.umask(before | 0o077)
    asyncio.run(
        _serve(config, timers=timers, is_echoing=is_echoing, wait_sec=wait_sec, log=log, umask=before)
    )


def _tell_wait(reason: str, waited_sec: float) -> None:
    tell_operator(f"duly: waiting for the database, {waited_sec:.0f} s by now: {reason}")


async def _serve(
    config: Config,
    *,
    timers: bool | None,
    is_echoing: bool,
    wait_sec: float,
    log: Echo | None,
    umask: int,
) -> None:
    processes = HostProcesses(umask=umask)
    sharing = sharing_of(config, processes.brood, wait_sec=wait_sec, on_wait=_tell_wait)
    dashboard = dashboard_of(config, os.environ)
    watch = Watch(config, sharing=sharing)
    listeners = watch.listeners if dashboard is None else [*watch.listeners, dashboard.listener]
    daemon = Daemon(
        config,
        processes,
        timers=timers,
        listeners=listeners,
        sharing=sharing,
        loading=processes.brood.spawning,
    )
    watch.attach(daemon)
    if dashboard is not None:
        dashboard.site.show(watch.metrics, watch.verification, watch.unwatched)
        watch.told.append(dashboard.listener)
        dashboard.attach(daemon)
    echo = Echo() if is_echoing else None
    notifier = Notifier(os.environ, lambda: time.monotonic_ns() // 1000)
    become_subreaper()
    reaper = Reaper(processes.brood)
    reaper.begin()
    front = _Front(daemon, notifier)
    front.handle_signals()
    daemon.fault_sources += [output.faults for output in (echo, log) if output is not None]
    if echo is not None:
        daemon.on_run_started.append(lambda row: _echo(daemon, echo, row))
        daemon.on_run_ended.append(lambda row: echo.end(row.id))
    daemon.on_reloading.append(notifier.reloading)
    daemon.on_started_up.append(_settle)
    daemon.on_started_up.append(lambda: notifier.ready(_summary(daemon.config)))
    daemon.on_stopping.append(notifier.stopping)
    watchdog = front.keep_alive()
    try:
        await daemon.run()
    finally:
        if watchdog is not None:
            watchdog.cancel()
        await watch.close()
        reaper.end()
        if echo is not None:
            echo.close()


def _settle() -> None:
    """Have the garbage collector leave alone what start-up made: thousands of tasks cost it 100 ms a time."""
    gc.collect()
    gc.freeze()


def _echo(daemon: Daemon, echo: Echo, row: RunRow) -> None:
    output = daemon.output(row.id)
    if output is not None:
        show = echo.begin(row.id, row.service)
        if (before := output.text()) != "":
            show(before.encode())
        output.watch(show)


def _summary(config: Config) -> str:
    return (
        f"{len(config.services)} services, {len(config.timers)} timers declared; store {store_path(config)}"
    )


class _Front:
    """What signals mean to the daemon."""

    def __init__(self, daemon: Daemon, notifier: Notifier) -> None:
        self._daemon = daemon
        self._notifier = notifier
        self._reloads: set[asyncio.Task[None]] = set()
        self._is_reload_waiting = False
        daemon.on_reloading.append(self._note_reload)

    def handle_signals(self) -> None:
        """Heed signals from now on."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        for number in _HANDED_ON:
            loop.add_signal_handler(number, self._daemon.signal, number)

    def keep_alive(self) -> "asyncio.Task[None] | None":
        """Tell systemd from time to time that the loop still turns, if it wants to hear that."""
        period_s = self._notifier.watchdog_s
        return None if period_s is None else asyncio.create_task(self._be_alive(period_s))

    async def _be_alive(self, period_s: float) -> None:
        while True:
            self._notifier.alive()
            await asyncio.sleep(period_s)  # noqa: TID251 (it is the loop that is watched, not a clock)

    def _end(self, number: signal.Signals) -> None:
        if self._daemon.is_over:
            tell_operator(f"duly: {number.name} again: ending what still runs at once")
            self._daemon.hurry()
            return
        self._daemon.shut_down()

    def _reload(self) -> None:
        if self._is_reload_waiting:
            return  # it will read the file as it is then
        self._is_reload_waiting = True
        task = asyncio.get_running_loop().create_task(self._reloaded())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def _note_reload(self) -> None:
        self._is_reload_waiting = False

    async def _reloaded(self) -> None:
        try:
            await self._daemon.reload(is_patient=True)
        except OperationError as error:
            tell_operator(f"duly: not reloaded: {error.message}")
        except Exception as error:
            tell_operator(f"duly: not reloaded: {described(error)}")
        finally:
            self._is_reload_waiting = False
