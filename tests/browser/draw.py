"""Draws the pictures of docs/dashboard.md and docs/cluster.md: python -m tests.browser.draw."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from click.testing import CliRunner
from playwright.sync_api import sync_playwright

from duly.cli import main as duly
from duly.instant import MINUTE_US, SECOND_US, instant_of
from duly.testing.simulation.cluster import ClusterPlan, cluster_lived
from duly.testing.simulation.cluster.plan import Change, Crash, Host, Leave, Part, Pause
from duly.testing.simulation.cluster.traces import Traces
from duly.testing.simulation.plan import Behaviour, How, Item
from tests.browser.conftest import CHROMIUM
from tests.web_world import EVIL, TURNED, World, served

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SHOTS = {
    "overview": ("/", {"viewport": {"width": 1100, "height": 760}}),
    "timer-dark": ("/timers/report", {"viewport": {"width": 1100, "height": 760}, "color_scheme": "dark"}),
    "services": ("/services", {"viewport": {"width": 1100, "height": 600}}),
    "telephone": ("/", {"viewport": {"width": 390, "height": 760}}),
}

_ITEMS = tuple(Item(name, "* * * * *", 20 * SECOND_US) for name in ("backup", "report", "mail", "sync"))
_NEWER = (*_ITEMS, Item("index", "* * * * *", 20 * SECOND_US))
CLUSTER = ClusterPlan(
    seed=7,
    start_us=instant_of(datetime(2026, 3, 2, 8, 59, 30, tzinfo=UTC)),
    duration_us=8 * MINUTE_US,
    hosts=(Host(), Host(boots_us=8 * SECOND_US), Host(boots_us=20 * SECOND_US)),
    lists=(_ITEMS, _NEWER),
    behaviours={
        "backup": (Behaviour(How.RETURN, 25 * SECOND_US),) * 9,
        "report": (Behaviour(How.RETURN, 4 * SECOND_US), Behaviour(How.RAISE, 5 * SECOND_US)) * 4,
        "mail": (Behaviour(How.RETURN, 9 * SECOND_US),) * 9,
        "sync": (Behaviour(How.RETURN, 12 * SECOND_US),) * 9,
        "index": (Behaviour(How.RETURN, 15 * SECOND_US),) * 9,
    },
    shards=32,
    actions=(
        Crash(100 * SECOND_US, 0, downtime_us=50 * SECOND_US),
        Part(210 * SECOND_US, 1, for_us=40 * SECOND_US),
        Change(300 * SECOND_US, 2, 1),
        Change(303 * SECOND_US, 0, 1),
        Change(306 * SECOND_US, 1, 1),
        Pause(360 * SECOND_US, 2, for_us=25 * SECOND_US),
        Leave(430 * SECOND_US, 1, downtime_us=20 * SECOND_US),
    ),
)
"""A member dies, another is parted from the board, a list takes effect, one is frozen, one is deployed."""


def draw_cluster(browser: Any) -> None:
    """Draw who held what, from the page that `duly verify` writes of a simulated cluster."""
    with TemporaryDirectory() as name:
        target = cluster_page(Path(name))
        page = browser.new_page(viewport={"width": 1240, "height": 900})
        page.goto(target.as_uri())
        page.locator(".card").first.screenshot(path=PICTURES / "cluster.png")
        page.close()


def cluster_page(folder: Path) -> Path:
    """Live CLUSTER, and have its traces verified."""
    lived: list[Traces] = []
    cluster_lived(CLUSTER, lambda program: lived.append(program.traces)).check()
    files: dict[str, list[bytes]] = {}
    for line in lived[0].lines():
        told = msgspec.json.decode(line)
        if told["ev"] == "Header":
            current = files.setdefault(f"{told['member']}.jsonl", [])
        current.append(line)
    for file, lines in files.items():
        (folder / file).write_bytes(b"".join(lines))
    target = folder / "page.html"
    CliRunner().invoke(duly, ["verify", *(str(folder / file) for file in files), "--html", str(target)])
    return target


def main() -> None:
    """Draw them all."""
    world = World()
    config, odd = world.config, {EVIL, TURNED}
    world.config = replace(
        config,
        services=tuple(one for one in config.services if one.id not in odd),
        timers=tuple(one for one in config.timers if one.id not in odd),
        invalid=config.invalid[:1],
    )
    PICTURES.mkdir(exist_ok=True)
    with served(world) as site, sync_playwright() as started:
        for name in odd:
            world.states.pop(name, None)
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for name, (path, options) in SHOTS.items():
            page = browser.new_page(**options)  # type: ignore[arg-type]
            page.goto(site.url + path)
            page.wait_for_selector(".link.on")
            page.screenshot(path=PICTURES / f"{name}.png")
            page.close()
        draw_cluster(browser)
        browser.close()


if __name__ == "__main__":
    main()
