"""The dashboard while things happen: live parts, actions, keys, and a server that comes and goes."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from duly.web.live import Live
from duly.web.settings import WebSettings
from tests.browser.conftest import Opening
from tests.worlds.web import EVIL, Served, World, served


def _marked(page: Any) -> None:
    """Leave a mark that a reload would wipe out."""
    page.evaluate("window.isTheSamePage = true")


def _is_unreloaded(page: Any) -> bool:
    return bool(page.evaluate("window.isTheSamePage === true"))


# --- live ---


def test_overview_is_live(site: Served, opened: Opening) -> None:
    """A run that begins and fails appears on the overview, and in its health, without a reload."""
    page = opened(site.url)
    _marked(page)
    run = site.do(site.world.run_began("certificates", "manual"))
    latest = page.locator("section", has=page.get_by_role("heading", name="Latest runs"))
    expect(latest.get_by_role("link", name=f"run {run}: running")).to_be_visible()
    site.do(site.world.run_ended(run, "exit", 3))
    expect(latest.get_by_role("link", name=f"run {run}: exit 3")).to_be_visible()
    expect(page.locator(".health")).to_contain_text("service certificates failed")
    assert _is_unreloaded(page)


def test_output_is_followed(site: Served, opened: Opening) -> None:
    """The output of a run grows on its page while it runs, and the page says when it ends."""
    run = site.do(site.world.run_began("backup", "manual"))
    page = opened(f"{site.url}/runs/{run}")
    _marked(page)
    site.call(lambda: site.world.outputs[run].write(b"first line\n"))
    expect(page.locator(".output")).to_have_text("first line\n")
    site.call(lambda: site.world.outputs[run].write("zweite Zeile \u2713 <i>\n".encode()))
    expect(page.locator(".output")).to_have_text("first line\nzweite Zeile \u2713 <i>\n")
    site.do(site.world.run_ended(run))
    expect(page.locator(".lead")).to_contain_text("success")
    expect(page.locator(".viewer")).not_to_have_attribute("data-running", re.compile(".*"))
    assert _is_unreloaded(page)


def test_newer_run_is_linked_as_it_begins(site: Served, opened: Opening) -> None:
    """On the page of the newest run a link appears when another begins; it leads there, and back."""
    first = site.do(site.world.run_began("backup", "manual"))
    site.do(site.world.run_ended(first))
    page = opened(f"{site.url}/runs/{first}")
    around = page.get_by_role("navigation", name="Runs of the same service")
    expect(around.get_by_role("link")).to_have_count(1)
    second = site.do(site.world.run_began("backup", "manual"))
    around.get_by_role("link", name=f"Run {second}").click()
    expect(page.locator("h1")).to_have_text(f"Run {second}")
    around.get_by_role("link", name=f"Run {first}").click()
    expect(page.locator("h1")).to_have_text(f"Run {first}")


def test_refresh_keeps_what_one_does(site: Served, opened: Opening) -> None:
    """Events that come while somebody types or has a button in focus take neither away."""
    page = opened(f"{site.url}/services")
    page.locator("#filter").press_sequentially("data")
    expect(page.locator("tbody tr")).to_have_count(1)
    site.do(site.world.stop_service("database"))
    expect(page.locator("tbody tr")).to_contain_text("stopped")
    expect(page.locator("#filter")).to_be_focused()
    expect(page.locator("#filter")).to_have_value("data")
    page.get_by_role("link", name="database").focus()
    site.do(site.world.run_began("database", "manual"))
    expect(page.locator("tbody tr")).to_contain_text("running")
    expect(page.get_by_role("link", name="database")).to_be_focused()


def test_reconnects(site: Served, opened: Opening) -> None:
    """A server that goes away is told of; when another life of it comes, the page catches up."""
    page = opened(site.url, lost=True)
    _marked(page)
    site.stop()
    expect(page.locator("#banner")).to_contain_text("The connection is lost")
    site.world.live = site.call(lambda: Live("another life"))
    site.world.faults = ("the disk is full",)
    site.start()
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator(".health")).to_contain_text("the disk is full")
    assert _is_unreloaded(page)


def test_old_session_is_renewed(site: Served, opened: Opening) -> None:
    """An action on a page from before a restart works: the token of the session is renewed behind it."""
    page = opened(f"{site.url}/services", lost=True)
    site.stop()
    expect(page.locator("#banner")).to_be_visible()
    site.world.live = site.call(lambda: Live("another life"))
    site.start()
    expect(page.locator("#banner")).to_be_hidden()
    _confirm(page, "Stop web", "Stop")
    expect(page.locator("#toasts")).to_contain_text("Stopped web.")
    assert site.world.did[-1] == ("stop", "web")


# --- acting ---


def _confirm(page: Any, button: str, answer: str) -> None:
    page.get_by_role("button", name=button).click()
    page.locator("#confirm").get_by_role("button", name=answer, exact=True).click()


def test_stop_and_undo(site: Served, opened: Opening) -> None:
    """A service is stopped after a question, and started again by undo; both are on record."""
    page = opened(f"{site.url}/services")
    page.get_by_role("button", name="Stop web").click()
    expect(page.locator("#confirm")).to_contain_text("Stop web?")
    page.locator("#confirm").get_by_role("button", name="Cancel").click()
    expect(page.locator("#confirm")).to_be_hidden()
    assert site.world.did == []
    _confirm(page, "Stop web", "Stop")
    expect(page.locator("#toasts")).to_contain_text("Stopped web.")
    expect(page.get_by_role("button", name="Start web")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#toasts")).to_contain_text("Started web.")
    expect(page.get_by_role("button", name="Stop web")).to_be_visible()
    done = [entry for entry in site.world.did if entry[0] == "noted"]
    assert done == [("noted", "stop", "web"), ("noted", "start", "web")]


def test_trigger_leads_to_the_run(site: Served, opened: Opening) -> None:
    """A triggered timer says which run that became, and leads there."""
    page = opened(f"{site.url}/timers/backup")
    _confirm(page, "Trigger", "Trigger")
    expect(page.locator("#toasts")).to_contain_text("Triggered backup.")
    page.locator("#toasts").get_by_role("link").click()
    expect(page.locator("main")).to_contain_text("trigger: triggered by hand")


def test_disable_and_enable(site: Served, opened: Opening) -> None:
    """A timer is disabled and enabled again from its page, whatever its name."""
    page = opened(f"{site.url}/timers?q=script")
    _confirm(page, f"Disable {EVIL}", "Disable")
    expect(page.locator("tbody tr")).to_contain_text("disabled")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name=f"Disable {EVIL}")).to_be_visible()
    switched = [entry for entry in site.world.did if entry[0] == "switch"]
    assert switched == [("switch", EVIL, False), ("switch", EVIL, True)]


def test_refusal_is_told(site: Served, opened: Opening) -> None:
    """An action that is refused says why."""
    page = opened(f"{site.url}/services/queue")
    _confirm(page, "Start", "Start")
    expect(page.locator(".toast.bad")).to_contain_text("queue was not started: it is cursed")


@pytest.fixture
def guarded() -> Iterator[Served]:
    """A world that asks for a token."""
    tokens = WebSettings(listen="127.0.0.1:0", operator_token="o" * 20, viewer_token="v" * 20)
    with served(World(), tokens) as found:
        yield found


def test_restart_leads_to_the_login(guarded: Served, opened: Opening) -> None:
    """A session ends with the server; when it is back the page soon asks for the token, and goes on."""
    page = opened(f"{guarded.url}/services", is_live=False, lost=True, statuses=(401,))
    page.get_by_label("Token").fill("o" * 20)
    with page.expect_response(lambda answer: "x-duly-part" in answer.request.headers):
        page.keyboard.press("Enter")
    guarded.stop()
    expect(page.locator("#banner")).to_contain_text("The connection is lost")
    guarded.world.live = guarded.call(lambda: Live("another life"))
    guarded.start()
    expect(page.locator("h1")).to_have_text("Log in")
    page.get_by_label("Token").fill("o" * 20)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Services")


def test_page_that_cannot_be_made_is_told(site: Served, opened: Opening) -> None:
    """What cannot be made again is said to be old, until it can be."""
    page = opened(f"{site.url}/services", statuses=(500,))
    plain = site.world.services

    def failing() -> Any:
        raise RuntimeError("not today")

    site.world.services = failing
    site.call(lambda: site.world.emit("ServiceRunStarted", service="web"))
    expect(page.locator("#banner")).to_contain_text("What you see is as it was")
    site.world.services = plain
    site.call(lambda: site.world.emit("ServiceRunStarted", service="web"))
    expect(page.locator("#banner")).to_be_hidden()


def test_viewers_see_no_buttons(guarded: Served, opened: Opening) -> None:
    """Who logs in as a viewer sees everything, and nothing to press; a wrong token is told."""
    page = opened(f"{guarded.url}/services", is_live=False)
    expect(page.locator("h1")).to_have_text("Log in")
    page.get_by_label("Token").fill("wrong" * 5)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not one of ours")
    page.get_by_label("Token").fill("v" * 20)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Services")
    expect(page.locator("main [data-action]")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").fill("o" * 20)
    page.keyboard.press("Enter")
    page.wait_for_selector(".link.on")
    page.goto(f"{guarded.url}/services")
    expect(page.get_by_role("button", name="Stop web")).to_be_visible()


# --- keys ---


def test_keyboard_alone(site: Served, opened: Opening) -> None:
    """With keys alone: skip to the content, tab to an action, press it, confirm it; focus is never lost."""
    page = opened(f"{site.url}/timers/backup")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.action") == "disable":
            break
    page.keyboard.press("Space")
    expect(page.locator("#confirm-yes")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Disable")).to_be_focused()
    assert site.world.did == []
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("Disabled backup.")
    assert ("switch", "backup", False) in site.world.did


def test_short_keys(sight: Served, opened: Opening) -> None:
    """`?` lists the keys, `g` and a letter go somewhere, `/` is the filter, and typing is left alone."""
    page = opened(sight.url)
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.locator("h1")).to_have_text("Services")
    page.keyboard.press("/")
    page.keyboard.type("gs?t/")
    expect(page.locator("#filter")).to_have_value("gs?t/")
    expect(page.locator("main")).to_contain_text("No service matches.")


# --- thousands ---


def test_thousands_stay_fluent(crowd: Served, opened: Opening) -> None:
    """With 5,000 timers a table is filtered, sorted and turned without a reload."""
    page = opened(f"{crowd.url}/timers")
    _marked(page)
    expect(page.locator(".found")).to_have_text("5,006 timers")
    expect(page.locator("tbody tr")).to_have_count(100)
    page.locator("#filter").fill("job-42")
    expect(page.locator(".found")).to_have_text("100 of 5,006")
    by_name = page.get_by_role("columnheader", name="Timer")
    by_name.get_by_role("link").click()
    expect(by_name).to_have_attribute("aria-sort", "ascending")
    by_name.get_by_role("link").click()
    expect(page.locator("tbody tr").first).to_contain_text("job-4299")
    page.locator("#filter").fill("")
    expect(page.locator(".found")).to_have_text("5,006 timers")
    page.get_by_role("link", name="Next →").click()
    expect(page.locator(".pager")).to_contain_text("101–200 of 5,006")
    page.locator("#only").select_option("disabled")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "only=disabled" in page.url
    assert _is_unreloaded(page)
