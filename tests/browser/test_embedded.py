"""The dashboard of an App in a FastAPI program under a path, in a real browser."""

from itertools import cycle

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opening, grave_findings
from tests.browser.test_pages import LOOKS
from tests.worlds.web import Mounted

PAGES = {
    "overview": ("/", "runs of import_prices failed: ConnectionError: no such shop"),
    "tasks": ("/tasks", "disabled"),
    "task": ("/tasks/import_prices", "Traceback (most recent call last)"),
    "entry": ("/tasks/letter-7", "Ada"),
    "runs": ("/runs?result=failed", "Run all failed again"),
    "run": ("/runs/2", "no such shop"),
    "machines": ("/machines", "Nothing is shared with other machines now."),
    "question": ("/act/pause/letter-7", "Pause letter-7?"),
}


@pytest.mark.parametrize(("name", "look"), [*zip(PAGES, cycle(LOOKS), strict=False)])
def test_page_is_for_everybody(mounted: Mounted, opened: Opening, name: str, look: str) -> None:
    """Each page shows what it is for in one of the looks, fits, and axe finds nothing serious."""
    path, text = PAGES[name]
    page = opened(mounted.url + path, bypass_csp=True, **LOOKS[look])
    expect(page.locator("main")).to_contain_text(text)
    expect(page.locator("h1")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert grave_findings(page) == []


def test_the_very_last_words_are_seen(mounted: Mounted, opened: Opening) -> None:
    """On a telephone lines are long: of the last words of a run the end is shown, not the beginning."""
    page = opened(f"{mounted.url}/", viewport={"width": 320, "height": 640})
    shown = page.locator(".last-words pre").bounding_box()
    whole = page.locator(".last-words pre span").bounding_box()
    assert whole["height"] > shown["height"]
    assert whole["y"] + whole["height"] <= shown["y"] + shown["height"]


def test_tasks_are_run_and_paused(mounted: Mounted, opened: Opening) -> None:
    """A button runs a task now, another one pauses it, which can be undone; the page shows each at once."""
    page = opened(f"{mounted.url}/tasks")
    row = page.locator('[data-key="send_mail"]')

    def press(label: str) -> None:
        row.get_by_role("button", name=label).click()
        page.locator("#confirm-yes").click()

    press("Run now")
    expect(page.locator("#toasts")).to_contain_text("Asked for a run of send_mail.")
    expect(row.locator(".mark")).to_have_text("success")
    press("Pause")
    expect(row.locator(".mark")).to_have_text("paused")
    page.locator(".toast", has_text="Paused send_mail.").get_by_role("button", name="Undo").click()
    expect(row.locator(".mark")).to_have_text("success")


def test_time_line_and_keys_lead_below_the_path(mounted: Mounted, opened: Opening) -> None:
    """What the script opens lies below the path at which the site is mounted."""
    page = opened(mounted.url + "/")
    page.wait_for_selector("#timeline[data-drawn]")
    page.locator(".lane-name", has_text="import_prices").click()
    page.wait_for_url(f"{mounted.url}/tasks/import_prices")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(f"{mounted.url}/")


def test_page_stays_live_from_stream_to_stream(mounted: Mounted, opened: Opening) -> None:
    """Streams that end after a while do not make a page say that it is not live."""
    page = opened(f"{mounted.url}/tasks/letter-7")
    lost: list[str] = []

    def on_change(name: str) -> None:
        lost.append(name)

    page.expose_function("lost", on_change)
    page.evaluate(
        "new MutationObserver(() => lost(document.getElementById('link').className))"
        ".observe(document.getElementById('link'), {attributes: true})"
    )
    for _ in range(2):
        with page.expect_request("**/api/v1/events*"):
            pass
    expect(page.locator("#link")).to_have_text("live")
    assert [each for each in lost if each != "link on"] == []
