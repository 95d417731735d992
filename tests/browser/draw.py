"""Draws the pictures of docs/dashboard.md: python -m tests.browser.draw."""

from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM
from tests.worlds.web import EVIL, TURNED, World, served

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SHOTS = {
    "overview": ("/", {"viewport": {"width": 1100, "height": 900}}),
    "timer-dark": ("/timers/report", {"viewport": {"width": 1100, "height": 760}, "color_scheme": "dark"}),
    "runs": ("/runs?result=failed", {"viewport": {"width": 1100, "height": 600}}),
}


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
            if path == "/":
                page.wait_for_selector("#timeline[data-drawn]")
            page.screenshot(path=PICTURES / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
