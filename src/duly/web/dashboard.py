"""The two dashboards: of a daemon, beside its socket; and of a store, until somebody ends it.

What is wrong with the tokens, or with an address that the file names, refuses the start of the daemon. If the
default address is taken, the daemon runs without a dashboard, and says so.
"""

import asyncio
import secrets
import socket
import sys
from collections.abc import Callable, MutableMapping
from functools import partial

from duly.background import first_done
from duly.config import Config
from duly.daemon.backend import DashboardHost, Observed
from duly.daemon.protocol import sayable
from duly.errors import SchedulerError
from duly.events import Event
from duly.web.live import Live
from duly.web.server import WebServer
from duly.web.settings import WebSettings, settings_from
from duly.web.site import Site
from duly.web.task_store import TaskStore

_SWITCH_INTERVAL_S = 0.001

_FAULTS = {"StoreFault": "the store cannot be written", "PollFailed": "scheduling fails"}
_RECOVERIES = {"StoreRecovered": "StoreFault", "PollRecovered": "PollFailed"}


class DaemonDashboard:
    """Listens to the daemon's events, and serves a site over it while it runs."""

    def __init__(self, config: Config, environ: MutableMapping[str, str]) -> None:
        """Raises WebRefusedError. Tokens are taken out of *environ*, so that services do not inherit them."""
        self._settings: WebSettings = settings_from(config, environ)
        self._name = f"{sayable(config.path.stem)} on {socket.gethostname()}"
        self._live = Live(secrets.token_hex(4))
        self._faults: dict[str, str] = {}
        self._server: WebServer | None = None
        self._daemon: DashboardHost | None = None

    def listener(self, event: Event) -> None:
        if event.name in _FAULTS:
            self._faults[event.name] = f"{_FAULTS[event.name]}: {event.fields.get('error', 'unknown')}"
        elif event.name in _RECOVERIES:
            self._faults.pop(_RECOVERIES[event.name], None)
        self._live.listener(event)

    def attach(self, daemon: DashboardHost, observed: Observed) -> None:
        """Show *daemon* as soon as it runs."""
        self._daemon = daemon
        site = Site(self._name, daemon, self._live, observed, self.unready)
        on_shortage = partial(daemon.emit_shortage, "dashboard")
        self._server = WebServer(site, self._settings, on_shortage=on_shortage)

    def unready(self) -> str | None:
        assert self._daemon is not None
        state = self._daemon.daemon_status().state
        return state if state != "running" else next(iter(self._faults.values()), None)

    async def start(self) -> None:
        """Listen. Raises WebRefusedError if the file says where, and that cannot be."""
        assert self._daemon is not None
        assert self._server is not None
        # A thread that renders a page must give way to the scheduler's loop this often.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            await self._server.start()
        except SchedulerError as error:
            if self._settings.is_listen_given:
                raise
            self._daemon.set_dashboard(fault=error.message)
        else:
            self._daemon.set_dashboard(self._server.url)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()


def store_site(name: str, tasks: TaskStore) -> Site:
    return Site(name, tasks, tasks.live, tasks, tasks.unready, tasks)


async def serve_store(
    name: str, tasks: TaskStore, settings: WebSettings, ended: asyncio.Event, on_start: Callable[[str], None]
) -> None:
    """Serve the tasks of a store until *ended*. Raises WebRefusedError."""
    server = WebServer(store_site(name, tasks), settings)
    await server.start()
    on_start(server.url)
    try:
        for done in await first_done(asyncio.create_task(tasks.watch()), asyncio.create_task(ended.wait())):
            done.result()
    finally:
        await server.close()
        await tasks.close()
