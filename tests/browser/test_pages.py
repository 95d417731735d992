"""Every page in a real browser: what it shows, that everybody can use it, that names play no tricks."""

from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import FAR, Opening, grave_findings
from tests.worlds.web import ESCAPES, EVIL, TURNED, Served

PAGES = {
    "overview": ("/", "things are not right"),
    "services": ("/services", "The public site"),
    "timers": ("/timers", "At 03:30 and 15:30, every day"),
    "service": ("/services/report", "the last 46 runs: 41 successful"),
    "evil": (f"/services/{quote(EVIL, safe='')}", "red <b>bold</b>"),
    "turned": (f"/services/{quote(TURNED, safe='')}", r"gnp.\u202etxt\u2066"),
    "timer": ("/timers/backup", "What became of its latest slots"),
    "runs": ("/runs", "schedule"),
    "run": ("/runs/1", "slot it answered"),
    "far timer": ("/timers/certificates", f" on {FAR}"),
    "far run": (f"/runs/5?machine={quote(FAR, safe='')}", "far away"),
    "plan": ("/plan", "as the schedules say"),
    "misses": ("/misses", "its target was still active, or its lock held"),
    "invalid": ("/invalid", 'target "nightli" is no service'),
    "verification": ("/verification", "no slot is answered twice"),
    "question": ("/act/stop/web", "Its process is told to end"),
    "unknown": ("/services/nobody", "There is no service nobody."),
    "nowhere": ("/nothing", "There is no page at this address."),
    "machines": ("/machines", "its runs start once more: certificates"),
}
MEANT = (404,)
"""Of the page that is not there."""
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}},
}


@pytest.mark.parametrize("look", ["light", "narrow"])
@pytest.mark.parametrize("name", PAGES)
def test_page_is_for_everybody(sight: Served, opened: Opening, name: str, look: str) -> None:
    """Each page shows what it is for, in light, in dark and on a telephone, and to those who cannot see it.

    It has one heading and a title that names it, nothing sticks out, and axe finds nothing serious. In the
    dark the same page has other colours, and nothing else is other.
    """
    path, text = PAGES[name]
    page = opened(sight.url + path, statuses=MEANT, bypass_csp=True, **LOOKS[look])
    expect(page.locator("main")).to_contain_text(text)
    expect(page.locator("h1")).to_have_count(1)
    assert page.title().endswith(" – workshop")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert grave_findings(page) == []
    if look == "light":
        page.emulate_media(color_scheme="dark")
        assert _lightness(page) < 60
        assert grave_findings(page, "color-contrast") == []


@pytest.mark.parametrize("look", LOOKS)
def test_page_of_the_api(sight: Served, opened: Opening, look: str) -> None:
    """The page about the API is for everybody, and fits; each type that it names is on it."""
    page = opened(f"{sight.url}/api/v1/docs", is_live=False, bypass_csp=True, **LOOKS[look])
    expect(page.locator("h1")).to_have_count(1)
    expect(page.locator("main")).to_contain_text("Why a timer fired, or did not fire, in a minute.")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert grave_findings(page) == []
    page.get_by_role("link", name="WhyJson").first.click()
    expect(page.locator("#type-WhyJson")).to_be_in_viewport()


def test_dark_is_dark(sight: Served, opened: Opening) -> None:
    """The page follows the system, until somebody switches; the choice outlives a reload."""
    page = opened(sight.url, color_scheme="dark")
    assert _lightness(page) < 60
    page.get_by_role("button", name="Switch between light and dark").click()
    assert _lightness(page) > 200
    page.reload()
    assert _lightness(page) > 200
    page.keyboard.press("t")
    assert _lightness(page) < 60


def _lightness(page: Any) -> int:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return int(colour.removeprefix("rgb(").split(",")[0])


def test_names_are_inert(sight: Served, opened: Opening) -> None:
    """A name that is a script, and one that turns the direction of writing, are text like any other."""
    page = opened(f"{sight.url}/services")
    expect(page.get_by_role("link", name=EVIL, exact=True)).to_be_visible()
    assert page.evaluate("document.querySelectorAll('main script, main b').length") == 0
    page.get_by_role("link", name=EVIL, exact=True).click()
    expect(page.locator("h1")).to_have_text(EVIL)
    assert "\u202e" not in page.content()


def test_outputs_are_inert(site: Served, opened: Opening) -> None:
    """An output of a megabyte with escapes and markup is text: nothing runs, nothing is moved about."""
    run = site.do(site.world.run_began("report", "manual"))
    site.world.outputs[run]._limit_bytes = 2**20
    line = f"{EVIL}<img src=x onerror=alert(2)> {ESCAPES}".encode()
    site.call(lambda: site.world.outputs[run].write(line * (2**20 // len(line))))
    site.do(site.world.run_ended(run))
    page = opened(f"{site.url}/runs/{run}")
    page.locator(".line").nth(1000).wait_for(state="attached", timeout=60_000)
    shown = page.locator(".output").text_content()
    assert len(shown) > 900_000
    assert r"\x1b]0;owned\x07" in shown
    assert not set(shown) & {"\x1b", "\x00", "\u202e", "\u2066"}
    assert page.locator(".output :not(.line, .line > a, .line > span, .line > span > span)").count() == 0


def test_environment_is_not_shown(sight: Served, opened: Opening) -> None:
    """Of an environment the names are shown, and never the values."""
    page = opened(f"{sight.url}/services/web")
    expect(page.locator("main")).to_contain_text("TOKEN (values are not shown)")
    assert "hunter2" not in page.content()


def test_closed_switch_shows_no_timers(site: Served, opened: Opening) -> None:
    """With the switch closed there is one line that says so, and nothing else of timers."""
    site.do(site.world.set_timer_switch(is_open=False))
    page = opened(site.url, statuses=(404,))
    expect(page.locator(".switched-off")).to_contain_text("Timers are off.")
    for word in ("Timers", "Misses"):
        expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name=word)).to_have_count(0)
    expect(page.get_by_role("heading", name="Next firings")).to_have_count(0)
    page.goto(f"{site.url}/timers/backup")
    expect(page.locator("h1")).to_have_text("Timers are off")


def test_works_without_script(site: Served, opened: Opening) -> None:
    """Without script everything can be seen, filtered, and done, with a page that asks first."""
    page = opened(f"{site.url}/services?q=database", java_script_enabled=False)
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Stop database").click()
    expect(page.locator("h1")).to_have_text("Stop database")
    assert site.world.did == []
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("h1")).to_have_text("database")
    assert ("stop", "database") in site.world.did
