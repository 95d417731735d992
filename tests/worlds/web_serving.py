"""A dashboard for tests: a site over a small fake daemon, served by the real server at a real socket."""

import asyncio
import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from duly.config.schema import Config
from duly.daemon.backend import Exposition, PropertyVerdict
from duly.web.app import create_app
from duly.web.live import Live
from duly.web.server import WebServer
from duly.web.settings import WebLimits, WebSettings
from duly.web.site import Site
from tests.worlds.daemons import CONFIG, MISSES, RUNS, FakeDaemon

OPERATOR = "an-operator-token-of-some-length"
VIEWER = "a-viewer-token-of-some-length"
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
START = ("POST", "/api/v1/start")
BACKUP = b'{"id": "backup"}'
QUICK = WebLimits(request_s=0.3, idle_s=1.0, write_s=0.3)


def settings(**more: Any) -> WebSettings:
    """Settings of a server that takes any free port."""
    return WebSettings(**{"listen": "127.0.0.1:0", "is_listen_given": True, **more})


GUARDED = settings(operator_token=OPERATOR, viewer_token=VIEWER)


class FakeSite(Site):
    """A site, told by hand; it is also what is observed."""

    backend: FakeDaemon

    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__("test", FakeDaemon(config), Live("boot"), self, lambda: self.reason)
        self.metrics: Exposition | None = None
        self.reason: str | None = None
        self.unwatched = ""

    def verification(self) -> Sequence[PropertyVerdict] | None:
        """What the monitor says."""
        return [PropertyVerdict("S1", "holds", 0, "no task runs twice at once")]


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error of the API."""
        return str(json.loads(self.body)["error"]["code"])


class Served:
    """A server that is listening, and how to ask it."""

    def __init__(self, site: FakeSite, server: WebServer, loop: asyncio.AbstractEventLoop) -> None:
        assert server.address is not None
        self.site = site
        self.server = server
        self.loop = loop
        self.port = server.address.port

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        """One request, in a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def raw(self, sent: bytes, *, is_over: bool = False) -> bytes:
        """What is answered to bytes, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(sent)
            if is_over:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while chunk := connection.recv(65536):
                    received += chunk
            except ConnectionResetError:
                pass
            return received

    def session(self) -> dict[str, str]:
        """The headers of a browser that has loaded a page: its cookie, and the token of its forms."""
        reply = self.ask("GET", "/api/v1/session")
        assert reply.status == 200, reply
        return {"cookie": cookie_of(reply), "x-csrf-token": json.loads(reply.body)["csrf"], **JSON}

    def on_loop(self, call: Any) -> Any:
        """What a function answers when it is called in the server's loop."""

        async def called() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(60)


def cookie_of(reply: Reply) -> str:
    """The cookie that a reply sets, as a browser sends it back."""
    return str(reply.headers["set-cookie"]).partition(";")[0]


def csrf_of(reply: Reply) -> str:
    """The session token in the form of a page."""
    found = re.search(rb'name="csrf"[^>]*value="([0-9a-f]+)"', reply.body)
    assert found is not None, reply.body[:2000]
    return found[1].decode()


@contextmanager
def serving(
    given: WebSettings | None = None, site: FakeSite | None = None, app: ASGIApp | None = None
) -> Iterator[Served]:
    """A dashboard that is served, in a thread with a loop of its own."""
    shown = site or FakeSite()
    server = WebServer(shown, given or settings(), app=app)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="web of a test")
    thread.start()

    async def begin() -> None:
        await shown.backend.history.put([row for row in RUNS if row is not None], MISSES)
        await server.start()

    try:
        asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        yield Served(shown, server, loop)
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"authorization": f"Bearer {token}"}


def get_routes(site: FakeSite) -> list[str]:
    """A path for every route that answers GET."""
    app: Any = create_app(site, settings())
    paths = []
    for route in app._app.app.routes:
        if "GET" in (getattr(route, "methods", None) or {"GET"}):
            path = route.path
            for name, value in (("run_id", "4"), ("run", "4"), ("kind", "services"), ("action", "start")):
                path = path.replace(f"{{{name}}}", value).replace(f"{{{name}:int}}", value)
            while "{" in path:
                before, _, rest = path.partition("{")
                path = before + "backup" + rest.partition("}")[2]
            paths.append(path)
    return paths
