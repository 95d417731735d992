"""A real browser, Debian's chromium, and what must hold whatever is done with it.

No page may ask another host for anything, break its content security policy, open a dialog of a script, or
log an error. Each test keeps pictures of what it saw under tests/browser/pictures, which git ignores.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.web import EVIL, Mounted, Served, World, far_run, nodes, served, served_app

CHROMIUM = os.environ.get("DULY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FAR = f"depot-17.storage.example.com:4711{EVIL}"
"""What another machine is called."""
PICTURES = Path(__file__).parent / "pictures"
PATIENCE_MS = 60_000
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
playwright.expect.set_options(timeout=PATIENCE_MS)

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""


@pytest.fixture(autouse=True)
def _every_page_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are a lot of work are made less often; not here, however slow this machine is just now."""
    monkeypatch.setattr("duly.web.rendering._SHARE", 0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser, for one module: while playwright is there, nobody else in its thread can run a loop."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt install chromium, or set DULY_CHROMIUM")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def sight() -> Iterator[Served]:
    """A world that tests only look at; another machine has run one of its timers."""
    world = World()
    far_run(world, 5, "certificates", machine=FAR)
    world.machines = nodes(FAR)
    with served(world) as found:
        yield found


@pytest.fixture
def site() -> Iterator[Served]:
    """A world of one test alone."""
    with served(World()) as found:
        yield found


@pytest.fixture(scope="session")
def crowd() -> Iterator[Served]:
    """A world of 5,000 more services, each with a timer."""
    with served(World(5_000)) as found:
        yield found


@pytest.fixture(scope="session")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """An App whose dashboard another program has mounted; its streams of events are very short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duly.web.embedded._STREAM_S", 1.0)
        with served_app(tmp_path_factory.mktemp("shop")) as found:
            yield found


Opening = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, request: pytest.FixtureRequest) -> Iterator[Opening]:
    """Opens pages that are watched; the answer is a page.

    *lost*: the server goes away on purpose; *statuses*: refusals that are meant.
    """
    contexts, watches = [], []

    def open_page(
        url: str,
        *,
        lost: bool = False,
        is_live: bool = True,
        statuses: tuple[int, ...] = (409,),
        **options: Any,
    ) -> Any:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(reduced_motion="reduce", **options)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(WATCH)
        page = context.new_page()
        seen = _Watch(url, page, statuses, is_lost=lost)
        contexts.append(context)
        watches.append(seen)
        page.goto(url)
        if is_live and options.get("java_script_enabled", True):
            page.wait_for_selector(".link.on")
        return page

    yield open_page
    try:
        for number, seen in enumerate(watches):
            seen.keep(PICTURES / f"{request.node.name}-{number}.png".replace("/", "_"))
            assert seen.complaints() == []
    finally:
        for context in contexts:
            context.close()


class _Watch:
    """What a page did that it should not have done."""

    def __init__(self, url: str, page: Any, statuses: tuple[int, ...], *, is_lost: bool) -> None:
        self._page = page
        self._statuses = statuses
        self._is_lost = is_lost
        self._home = "/".join(url.split("/")[:3])
        self._found: list[str] = []
        page.on("request", self._asked)
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self._found.append(f"error: {error}"))
        page.on("console", self._console)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(f"{self._home}/"):
            self._found.append(f"asked for {request.url}")

    def _dialog(self, dialog: Any) -> None:
        self._found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _console(self, message: Any) -> None:
        # A refused action, and a server that was taken away, are logged by the browser itself.
        is_told = message.text.startswith("Failed to load resource")
        is_meant = self._is_lost or any(f"status of {status} " in message.text for status in self._statuses)
        if message.type in {"error", "warning"} and not (is_told and is_meant):
            self._found.append(f"console: {message.text}")

    def complaints(self) -> list[str]:
        """Everything, with the violations of the policy."""
        return [*self._found, *self._page.evaluate("window.violations ?? []")]

    def keep(self, path: Path) -> None:
        """Keep a picture."""
        path.parent.mkdir(exist_ok=True)
        self._page.screenshot(path=path)


def grave_findings(page: Any, *rules: str) -> list[tuple[str, str]]:
    """What axe calls serious or critical on a page, by all its rules or by these."""
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # noqa: PLC0415

    options = {"runOnly": list(rules)} if rules else {}
    found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}]
