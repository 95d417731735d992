"""What one wants to know at a glance: what is wrong, what ran, what comes, and what it wrote."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
from playwright.sync_api import expect

from duly.config.schema import Calendar, Service, Timer
from duly.instant import MINUTE_US, SECOND_US
from duly.store.history import MissRow, RunRow
from tests.browser.conftest import Opening
from tests.worlds.web import DAY_US, HOUR_US, Served, World, now_us, served

LANE, TOP = 26, 24
"""Of timeline.js: how high a lane is, and where the first begins."""
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}},
}


# --- the overview ---


@pytest.mark.parametrize("look", LOOKS)
def test_first_failure_is_seen_at_once(sight: Served, opened: Opening, look: str) -> None:
    """What fails is a link with its last words, and is seen without scrolling, on a telephone too."""
    page = opened(sight.url, **LOOKS[look])
    alarms = page.locator(".reasons > li")
    expect(alarms.locator("> a:not(.last-words)")).to_have_count(alarms.count())
    first = alarms.first
    expect(first.get_by_role("link", name="service queue failed")).to_be_visible()
    expect(first.locator(".last-words")).to_have_text("panic: no room")
    box, height = first.bounding_box(), page.viewport_size["height"]
    assert box["y"] + box["height"] < height
    first.get_by_role("link", name="service queue failed").click()
    expect(page.locator("h1")).to_have_text("queue")


def test_title_and_icon_show_the_state(site: Served, opened: Opening) -> None:
    """The title counts what is wrong and the icon shows how bad it is, on every page, as it changes."""
    page = opened(f"{site.url}/timers")
    expect(page).to_have_title("(4) Timers – workshop")
    expect(page.locator("#icon")).to_have_attribute("href", re.compile(r"icon-bad\."))
    world = site.world
    run = site.do(world.run_began("certificates", "manual"))
    site.do(world.run_ended(run, "exit", 3))
    expect(page).to_have_title("(5) Timers – workshop")


def test_tiles_lead_to_what_they_count(sight: Served, opened: Opening) -> None:
    """The tile of failed runs leads to a list of as many runs, all of which failed."""
    page = opened(sight.url)
    tile = page.locator(".tile", has_text="failed in 24 h")
    count = int(tile.locator("b").inner_text())
    tile.click()
    expect(page.locator("tbody tr")).to_have_count(count)
    expect(page.locator("tbody .mark.bad")).to_have_count(count)
    expect(page.locator("#result")).to_have_value("failed")


# --- the time line ---


def _drawn(page: Any) -> None:
    page.wait_for_selector("#timeline[data-drawn]")


def _click_at(page: Any, lane: str, at_us: int) -> None:
    """Click at a time on a lane, as it is drawn now."""
    _drawn(page)
    number = page.locator(".lane-name").all_inner_texts().index(lane)
    page.locator("#timeline").scroll_into_view_if_needed()
    box = page.locator("#timeline canvas").bounding_box()
    span = page.evaluate("(location.hash.match(/\\d+/g) ?? []).map(Number)")
    from_us, to_us = span or (now_us() - DAY_US, now_us() + DAY_US)
    share = (at_us - from_us) / (to_us - from_us)
    page.mouse.click(box["x"] + share * box["width"], box["y"] + TOP + (number + 0.5) * LANE)


def test_time_line_leads_to_the_run(sight: Served, opened: Opening) -> None:
    """A click on a bar opens its run; a list, if there are several."""
    page = opened(sight.url)
    backup = sight.do(sight.world.history.runs(service="backup", limit=1))[0]
    _click_at(page, "backup", backup.started_us + (backup.ended_us - backup.started_us) // 2)
    expect(page.locator("h1")).to_have_text(f"Run {backup.id}")


def test_time_line_asks_why(sight: Served, opened: Opening) -> None:
    """A click where nothing ran asks what became of that minute; one in the future, what is due."""
    page = opened(sight.url)
    [backup] = sight.do(sight.world.history.runs(service="backup", limit=1))
    # Hours away from its daily run, and on the time line, whatever the time of day is.
    is_long_ago = now_us() - backup.started_us > 12 * HOUR_US
    _click_at(page, "backup", backup.started_us + (6 if is_long_ago else -6) * HOUR_US)
    expect(page.locator(".asked")).to_contain_text("has no slot at")
    page.goto(sight.url)
    _click_at(page, "backup", now_us() + 5 * HOUR_US)
    expect(page.locator("h1")).to_have_text("What is due")
    expect(page.locator("tbody tr").first).to_be_visible()


def test_time_line_zooms_and_keeps_its_place(site: Served, opened: Opening) -> None:
    """Zoom reaches from 400 days to a minute; the address has what is seen, and news do not move it."""
    page = opened(site.url)
    _drawn(page)
    page.get_by_role("button", name="1 h", exact=True).click()
    page.get_by_role("button", name="Earlier").click()
    expect(page).to_have_url(re.compile("#t="))
    shared = page.url
    page.locator(".lanes").focus()
    for _ in range(12):
        page.keyboard.press("+")
    from_us, to_us = page.evaluate("location.hash.match(/\\d+/g).map(Number)")
    assert abs(to_us - from_us - MINUTE_US) < 1000
    for _ in range(25):
        page.keyboard.press("-")
    from_us, to_us = page.evaluate("location.hash.match(/\\d+/g).map(Number)")
    assert to_us - from_us == pytest.approx(400 * DAY_US, rel=0.01)
    page.goto(site.url)
    page.goto(shared)
    _drawn(page)
    run = site.do(site.world.run_began("certificates", "manual"))
    expect(page.get_by_role("link", name=f"run {run}: running")).to_be_visible()
    assert page.url == shared


@pytest.mark.parametrize("look", LOOKS)
def test_time_line_by_keyboard_and_as_a_table(sight: Served, opened: Opening, look: str) -> None:
    """Keys walk over lanes and times and say what is there; a table says the same of each lane."""
    page = opened(sight.url, **LOOKS[look])
    _drawn(page)
    page.locator(".lanes").focus()
    names = page.locator(".lane-name").all_inner_texts()
    for _ in range(names.index("report")):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#timeline-cursor")).to_contain_text(re.compile(r"report, .*: (success|failed)"))
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Run")
    page.goto(sight.url)
    _drawn(page)
    page.get_by_text("The same as a table").click()
    row = page.locator("#timeline tbody tr", has_text="report")
    expect(row).to_contain_text(re.compile(r"27 ran, 3 failed, \d+ due|\d+ ran, \d failed, \d+ due"))


def test_time_line_of_thousands_is_a_virtual_list(crowd: Served, opened: Opening) -> None:
    """Of 5,000 lanes only those that are seen are there; the worst come first; a filter finds one."""
    page = opened(crowd.url)
    _drawn(page)
    lanes = page.locator(".lane-name")
    assert lanes.count() <= 60
    assert "queue" in lanes.all_inner_texts()[:3]
    page.evaluate("document.querySelector('.lanes').scrollTop = 2000 * 26")
    expect(lanes.filter(has_text="job-2000")).to_have_count(1)
    assert lanes.count() <= 60
    page.locator("#lane-filter").fill("job-4321")
    expect(lanes).to_have_text(["job-4321"])


# --- runs ---


def test_runs_are_searched_by_an_address(site: Served, opened: Opening) -> None:
    """Filters, a text in the output and the order are in the address: opened again, it shows the same."""
    page = opened(f"{site.url}/runs")
    page.locator("#text").fill("NO ROOM")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("queue")
    page.locator("#text").fill("")
    page.locator("#filter").fill("rep")
    page.locator("#result").select_option("failed")
    page.get_by_role("columnheader", name="Took").get_by_role("link").click()
    took = page.get_by_role("columnheader", name="Took")
    expect(took).to_have_attribute("aria-sort", "descending")
    expect(page.locator("tbody .mark.good")).to_have_count(0)
    rows = page.locator("tbody tr td:first-child").all_text_contents()
    assert len(rows) > 2
    other = opened(page.url)
    expect(other.locator("tbody tr td:first-child")).to_have_text(rows)
    expect(other.locator("#result")).to_have_value("failed")


def test_new_runs_wait(site: Served, opened: Opening) -> None:
    """New rows do not move the list: they wait behind a button that counts them."""
    page = opened(f"{site.url}/runs")
    first = page.locator("tbody tr").first.get_attribute("data-key")
    for _ in range(2):
        site.do(site.world.run_ended(site.do(site.world.run_began("certificates", "manual"))))
    expect(page.get_by_role("button", name="2 new")).to_be_visible()
    assert page.locator("tbody tr").first.get_attribute("data-key") == first
    page.get_by_role("button", name="2 new").click()
    expect(page.locator("tbody tr").first).to_contain_text("certificates")
    expect(page.get_by_role("button", name="new")).to_have_count(0)


def test_run_again(site: Served, opened: Opening) -> None:
    """A run that failed can be run again from its page; all jobs that fail, from a list of them."""
    for name in ("certificates", "backup"):
        run = site.do(site.world.run_began(name, "manual"))
        site.do(site.world.run_ended(run, "exit", 3))
    page = opened(f"{site.url}/runs/{run}")
    page.get_by_role("button", name="Run again").click()
    page.locator("#confirm").get_by_role("button", name="Run again").click()
    expect(page.locator("#toasts")).to_contain_text("Started backup.")
    page.goto(f"{site.url}/runs?result=failed&since=1h")
    page.get_by_role("link", name="Run all failed again").click()
    expect(page.locator("main li")).to_have_text(["certificates"])
    page.get_by_role("button", name="Start 1").click()
    expect(page.locator("h1")).to_have_text("Runs")
    assert site.world.did[-2] == ("start", "certificates")


def test_run_is_compared_with_the_last_success(site: Served, opened: Opening) -> None:
    """A run that failed shows in which lines it differs from the last that succeeded."""
    rows = [
        RunRow(
            id=9000 + number,
            service="certificates",
            reason="schedule",
            started_us=now_us() - (9 - number) * MINUTE_US,
            ended_us=now_us() - (9 - number) * MINUTE_US + SECOND_US,
            result=result,
            exit_code=code,
            output=f"asked\n{last}\n",
        )
        for number, result, code, last in ((1, "success", 0, "renewed"), (2, "exit", 1, "refused"))
    ]
    site.do(site.world.history.put(rows, []))
    page = opened(f"{site.url}/runs/9002")
    page.get_by_role("link", name="Compare with the last success, run 9001").click()
    expect(page.locator(".difference .gone")).to_have_text("- renewed")
    expect(page.locator(".difference .added")).to_have_text("+ refused")


def test_misses_are_grouped(site: Served, opened: Opening) -> None:
    """Misses are counted by timer and reason; what a disabled timer misses is not red."""
    at_us = now_us() - MINUTE_US
    misses = [MissRow("poll", at_us - number * MINUTE_US, "overlap") for number in range(40)]
    site.do(site.world.history.put([], [*misses, MissRow("digest", at_us, "disabled")]))
    page = opened(f"{site.url}/misses")
    poll = page.locator("tbody tr", has_text="poll")
    expect(poll).to_have_count(1)
    expect(poll.locator(".number")).to_have_text("40")
    expect(page.locator("tbody tr", has_text="digest").locator(".mark")).to_have_class("mark calm")
    poll.locator(".at").click()
    expect(page.locator(".asked")).to_be_visible()


# --- output ---


def _written(site: Served, text: str, *, times: str | None = None, is_ended: bool = True) -> int:
    run = int(site.do(site.world.run_began("backup", "manual")))
    site.call(lambda: site.world.outputs[run].write(text.encode()))
    if is_ended:
        site.do(site.world.run_ended(run))
        row = site.do(site.world.history.run(run))
        site.do(site.world.history.put([msgspec.structs.replace(row, output_times=times)], []))
    return run


@pytest.mark.parametrize("look", LOOKS)
def test_output_is_as_a_terminal_shows_it(site: Served, opened: Opening, look: str) -> None:
    """Colours are colours, a carriage return begins the line again, other escapes are spelled out."""
    text = "\x1b[1;31mred\x1b[0m plain\n10%\r20%\r100%\nlong line\rshort\n\x1b[2J<b>\n"
    page = opened(f"{site.url}/runs/{_written(site, text)}", **LOOKS[look])
    lines = page.locator(".line > span")
    expect(lines).to_have_text(["red plain", "100%", "shortline", r"\x1b[2J<b>"])
    expect(lines.first.locator(".fg1.bold")).to_have_text("red")
    assert page.locator(".output b").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_output_is_followed_and_opens_at_its_end(site: Served, opened: Opening) -> None:
    """While a run writes, its output stays at the end, unless one scrolls up; afterwards it opens there."""
    text = "".join(f"line {number}\n" for number in range(1, 300))
    run = _written(site, text, is_ended=False)
    page = opened(f"{site.url}/runs/{run}")
    last = page.locator(".line").last
    page.locator(".output").scroll_into_view_if_needed()
    expect(last).to_contain_text("line 299")
    expect(last).to_be_in_viewport()
    site.call(lambda: site.world.outputs[run].write(b"line 300\nhalf"))
    expect(last).to_contain_text("half")
    site.call(lambda: site.world.outputs[run].write(b" a line\n"))
    expect(last).to_have_text("half a line")
    expect(last).to_be_in_viewport()
    site.do(site.world.run_ended(run))
    expect(page.locator(".lead")).to_contain_text("success")
    page.goto(f"{site.url}/runs/{run}")
    page.locator(".output").scroll_into_view_if_needed()
    expect(page.locator(".line").last).to_be_in_viewport()


def test_output_has_numbers_times_and_links(site: Served, opened: Opening) -> None:
    """Each line has a number that is a link to it, and the time at which it came."""
    text = "".join(f"line {number}\n" for number in range(1, 300))
    run = _written(site, text, times="[[0,0],[2,61]]")
    page = opened(f"{site.url}/runs/{run}")
    page.get_by_role("button", name="Times").click()
    first, third = page.locator(".line").first, page.locator(".line").nth(2)
    expect(first).to_have_attribute("data-time", re.compile(r"\d\d:\d\d:\d\d"))
    assert first.get_attribute("data-time") != third.get_attribute("data-time")
    page.locator(".line-number").nth(6).evaluate("(link) => link.click()")
    assert page.url.endswith(f"#L{run}-7")
    other = opened(page.url)
    expect(other.locator(".line.asked")).to_have_text("line 7")
    expect(other.locator(".line.asked")).to_be_in_viewport()


def test_output_is_searched_wrapped_and_kept(site: Served, opened: Opening) -> None:
    """Lines that hold a text are marked and stepped through; lines wrap or not; all can be downloaded."""
    text = "".join(f"line {number}\n" for number in range(1, 300)) + "x" * 500 + "\n"
    run = _written(site, text)
    page = opened(f"{site.url}/runs/{run}")
    expect(page.locator(".line")).to_have_count(300)
    find = page.get_by_placeholder("Find")
    find.fill("LINE 4")
    expect(page.locator(".viewer-tools output")).to_have_text("11 lines")
    find.press("Enter")
    expect(page.locator(".line.asked")).to_have_text("line 4")
    page.get_by_role("button", name="Wrap").click()
    output = page.locator(".output")
    assert output.evaluate("(pre) => pre.scrollWidth > pre.clientWidth")
    page.get_by_role("button", name="Wrap").click()
    assert output.evaluate("(pre) => pre.scrollWidth <= pre.clientWidth")
    with page.expect_download() as loading:
        page.get_by_role("link", name="Download").click()
    assert loading.value.suggested_filename == f"run-{run}.txt"
    assert httpx.get(f"{site.url}/runs/{run}/output?download=1").text == text


# --- one entry ---


@pytest.mark.parametrize("look", LOOKS)
def test_entry_says_first_what_failed(site: Served, opened: Opening, look: str) -> None:
    """The page of a job that fails begins with its streak and what it wrote; pictures come after."""
    run = site.do(site.world.run_began("report", "manual", timer="report"))
    site.call(lambda: site.world.outputs[run].write(b"no such table\n"))
    site.do(site.world.run_ended(run, "exit", 3))
    page = opened(f"{site.url}/services/report", **LOOKS[look])
    expect(page.locator(".note.bad")).to_contain_text("service report failed")
    headings = page.locator("main h2").all_inner_texts()
    assert headings[0].startswith(f"Output of run {run}")
    expect(page.locator(".output").first).to_contain_text("no such table")
    assert headings.index("How long it took") < headings.index("Configuration")
    expect(page.locator(".plot .percentile")).to_have_count(2)
    expect(page.locator(".year rect.warn, .year rect.bad").first).to_be_visible()
    page.locator(".plot a").last.evaluate("(link) => link.dispatchEvent(new MouseEvent('click'))")
    expect(page.locator("h1")).to_contain_text("Run")


def test_why_is_asked_of_any_minute(sight: Served, opened: Opening) -> None:
    """A field asks what became of any minute, and the answer is that of `duly why`."""
    page = opened(f"{sight.url}/timers/report")
    page.locator("#at").fill("2026-03-29T02:30")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".asked")).to_contain_text("that minute did not occur")
    page.goto(f"{sight.url}/timers/report?at=noon")
    expect(page.locator("main")).to_contain_text("noon is no time")


# --- zones ---


@pytest.fixture
def abroad() -> Iterator[Served]:
    """A world with a timer that has a zone of its own."""
    world = World()
    config = world.config
    timer = Timer(
        "abroad", "abroad", on_calendar=(Calendar(minute=(0,), hour=(9,)),), timezone="America/New_York"
    )
    service = Service("abroad", ("/bin/true",), type="oneshot")
    world.config = replace(config, services=(*config.services, service), timers=(*config.timers, timer))
    with served(world) as site:
        yield site


def test_zone_is_switched(abroad: Served, opened: Opening) -> None:
    """Times are those of the schedules, the browser or UTC; those of another zone than the page's say so."""
    page = opened(f"{abroad.url}/timers/abroad", timezone_id="Asia/Tokyo")
    due = page.locator("section", has=page.get_by_role("heading", name="Next firings")).locator(".what")
    expect(due.nth(3)).to_have_text(re.compile(r"09:00 E[SD]T$"))
    expect(page.locator(".lead")).to_contain_text("(America/New_York)")
    expect(page.locator("footer")).to_contain_text("times are those of Europe/Berlin")
    page.locator("#zone").select_option("UTC")
    expect(page.locator("footer")).to_contain_text("times are those of UTC")
    expect(due.nth(3)).to_have_text(re.compile(r"1[34]:00$"))
    page.locator("#zone").select_option(label="this browser's (Asia/Tokyo)")
    expect(page.locator("footer")).to_contain_text("times are those of Asia/Tokyo")
    expect(due.nth(3)).to_have_text(re.compile(r"2[23]:00$"))
    page.locator("#zone").select_option("")
    expect(due.nth(3)).to_have_text(re.compile(r"09:00 E[SD]T$"))
