"""The dashboard of a daemon: a door that opens with the daemon's socket, if what it needs is installed.

Nothing of the web is imported unless it is wanted. What is wrong with the tokens, or with a place that the
file names, refuses the start; that the default place is taken is only told.
"""

import secrets
import socket
import sys
from collections.abc import MutableMapping
from functools import partial
from typing import TYPE_CHECKING

from duly.config import Config
from duly.daemon.daemon import Daemon
from duly.daemon.protocol import sayable
from duly.errors import SchedulerError
from duly.events import tell_operator

if TYPE_CHECKING:
    from duly.web.daemon_site import DaemonSite
    from duly.web.server import WebServer
    from duly.web.settings import WebSettings

_EXTRA = frozenset({"starlette", "uvicorn", "h11", "jinja2", "anyio"})
_GIVES_WAY_S = 0.001
_TOKENS = ("DULY_OPERATOR_TOKEN", "DULY_VIEWER_TOKEN")


class Dashboard:
    """Hands the daemon's events to the site, and serves it while the daemon runs."""

    def __init__(self, site: "DaemonSite", settings: "WebSettings", serving: "type[WebServer]") -> None:
        self.site = site
        self.listener = site.listener
        self._settings = settings
        self._serving = serving
        self._server: WebServer | None = None
        self._daemon: Daemon | None = None

    def attach(self, daemon: Daemon) -> None:
        """Serve *daemon*, as soon as it runs."""
        self._daemon = daemon
        self.site.serve(daemon)
        self._server = self._serving(
            self.site, self._settings, on_shortage=partial(daemon.note_shortage, "dashboard")
        )
        daemon.doors.append(self)

    async def start(self) -> None:
        """Listen; raises WebRefusedError if the file says where, and that cannot be."""
        assert self._daemon is not None
        assert self._server is not None
        # A thread that makes a page gives way this often: what is to start must not wait for it.
        sys.setswitchinterval(_GIVES_WAY_S)
        try:
            await self._server.start()
        except SchedulerError as error:
            if self._settings.is_listen_given:
                raise
            self._daemon.note_dashboard(fault=error.message)
        else:
            self._daemon.note_dashboard(self._server.url)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            await self._server.close()


def dashboard_of(config: Config, environ: MutableMapping[str, str]) -> Dashboard | None:
    """The dashboard that *config* wants; None for none. Raises WebRefusedError.

    Tokens are taken out of *environ* in any case, lest services inherit them.
    """
    tokens = {name: value for name in _TOKENS if (value := environ.pop(name, None)) is not None}
    if not config.dashboard.enabled:
        return None
    try:
        from duly.web.daemon_site import DaemonSite  # noqa: PLC0415 - only where there is a dashboard
        from duly.web.live import Live  # noqa: PLC0415
        from duly.web.server import WebServer  # noqa: PLC0415
        from duly.web.settings import settings_from  # noqa: PLC0415

        settings = settings_from(config, tokens)
        site = DaemonSite(
            f"{sayable(config.path.stem)} on {socket.gethostname()}", Live(secrets.token_hex(4))
        )
        return Dashboard(site, settings, WebServer)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        tell_operator("duly: there is no dashboard; for one: pip install 'duly[web]'")
        return None
