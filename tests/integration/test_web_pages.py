"""The pages over HTTP: what is shared, what is asked again, and what a POST does, without a browser."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from duly.config.schema import Database, Service
from duly.daemon import views
from duly.daemon.protocol import FAILED, OperationError
from duly.errors import StoreError
from duly.instant import SECOND_US
from duly.processes.output import Tail
from duly.store.history import RunRow
from duly.web.rendering import statics
from duly.web.settings import WebSettings
from tests.worlds.histories import LooseHistory
from tests.worlds.web import EVIL, HOUR_US, Served, World, far_run, now_us, served, served_library


@pytest.fixture
def site() -> Iterator[Served]:
    """A world behind a real server."""
    with served(World()) as found:
        yield found


@pytest.fixture
def client(site: Served) -> Iterator[httpx.Client]:
    """Somebody who looks at it, with the cookies of a browser."""
    with httpx.Client(base_url=site.url) as found:
        yield found


def _csrf(client: httpx.Client) -> str:
    found = re.search(r'name="duly-csrf" content="([0-9a-f]+)"', client.get("/").text)
    assert found is not None
    return found[1]


@pytest.fixture(autouse=True)
def _every_page_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is just now."""
    monkeypatch.setattr("duly.web.rendering._SHARE", 0)


def test_dear_page_is_made_less_often(
    site: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is a lot of work is shown a while longer to all, who are told that there is news."""
    monkeypatch.setattr("duly.web.rendering._SHARE", 1e9)
    first = client.get("/services", headers={"x-duly-part": ""})
    assert (first.headers["x-duly-pace"], "x-duly-again" in first.headers) == ("15.00", False)
    site.call(lambda: site.world.emit("ServiceRunStarted", service="web"))
    again = client.get("/services", headers={"x-duly-part": site.world.live.last_id})
    assert (again.headers["x-duly-again"], again.headers["etag"]) == ("1", first.headers["etag"])


def test_part_is_the_content_alone(client: httpx.Client) -> None:
    """A script gets the content without its frame; it holds no token of a session, so all can share it."""
    csrf = _csrf(client)
    whole, part = client.get("/services").text, client.get("/services", headers={"x-duly-part": ""}).text
    assert csrf in whole
    assert csrf not in part
    assert "<html" not in part
    body = part.split('">', 1)[1].removesuffix("</div>")
    assert re.sub(r"\d+[smh] ago", "", body.split("<tbody")[1]) in re.sub(r"\d+[smh] ago", "", whole)


def test_unchanged_part_is_not_sent_again(client: httpx.Client) -> None:
    """Who has the newest content already is told so in a few bytes."""
    first = client.get("/invalid", headers={"x-duly-part": ""})
    again = client.get("/invalid", headers={"x-duly-part": "", "if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_environment_values_are_left_out(client: httpx.Client) -> None:
    """Of an environment only the names are shown."""
    page = client.get("/services/web").text
    assert "TOKEN (values are not shown)" in page
    assert "hunter2" not in page


def test_many_share_one_page(site: Served, client: httpx.Client) -> None:
    """Those who ask within a second get the same page, made once; an event makes it again for its readers."""
    calls = 0
    plain = site.world.services

    def counted() -> Any:
        nonlocal calls
        calls += 1
        return plain()

    site.world.services = counted
    for _ in range(20):
        client.get("/services", headers={"x-duly-part": ""})
    assert calls < 5
    before = calls
    site.call(lambda: site.world.emit("ServiceRunStarted", service="web"))
    client.get("/services", headers={"x-duly-part": site.world.live.last_id})
    assert calls == before + 1


def test_viewer_and_operator_do_not_share(site: Served) -> None:
    """A page with buttons is never given to somebody who may not press them."""
    site.stop()
    site.settings = replace(site.settings, operator_token="o" * 20, viewer_token="v" * 20)
    site.start()

    def seen_by(token: str) -> str:
        return httpx.get(f"{site.url}/services", headers={"authorization": f"Bearer {token}"}).text

    assert "data-action" in seen_by("o" * 20)
    assert "data-action" not in seen_by("v" * 20)


@pytest.mark.parametrize("name", ["stop", "start", "trigger", "enable", "disable"])
def test_question_changes_nothing(site: Served, client: httpx.Client, name: str) -> None:
    """The page that asks has a form, and is only a page."""
    answer = client.get(f"/act/{name}/backup")
    assert 'method="post"' in answer.text
    assert site.world.did == []


def test_post_acts_and_leads_back(site: Served, client: httpx.Client) -> None:
    """A form that was sent does it, and leads to where one sees what became of it."""
    answer = client.post("/act/trigger/backup", data={"csrf": _csrf(client)})
    assert answer.status_code == 303
    assert re.fullmatch(r"/runs/\d+", answer.headers["location"])
    assert [entry[0] for entry in site.world.did] == ["trigger", "noted"]


def test_post_tells_a_script(client: httpx.Client) -> None:
    """A script is told what was done, and how to undo it."""
    headers = {"x-csrf-token": _csrf(client), "accept": "application/json"}
    emitted = client.post("/act/stop/web", headers=headers).json()
    assert emitted["message"] == "Stopped web."
    assert emitted["undo_href"] == "/act/start/web"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/act/start/queue", 409),
        ("/act/start/nobody", 404),
        ("/act/trigger/nobody", 404),
        ("/act/reload/web", 404),
        ("/act/shut_down/web", 404),
        ("/act/start/", 404),
        ("/act/start", 404),
    ],
)
def test_refused_posts(site: Served, client: httpx.Client, path: str, status: int) -> None:
    """What cannot be done is refused, with the reason; what no page offers, no page does."""
    answer = client.post(path, data={"csrf": _csrf(client)})
    assert answer.status_code == status
    assert site.world.did == []


@pytest.mark.parametrize(
    "path",
    [
        "/services/nobody",
        "/timers/nobody",
        "/runs/999999999",
        "/runs/99999999999999999999999999999999",
        "/runs/-1",
        "/runs/1e3",
        "/runs/1/output/x",
        "/static/../pages.py",
        "/static/%2e%2e/pages.py",
        "/static/style.css",
        "/static/",
        "/nothing",
    ],
)
def test_what_is_not_there(client: httpx.Client, path: str) -> None:
    """Forged names, numbers and paths are 404, and nothing else."""
    assert client.get(path).status_code == 404


def test_odd_queries_are_harmless(client: httpx.Client) -> None:
    """A query that makes no sense shows the table as if it had not been there."""
    odd = "sort=nonsense&dir=up&page=-5&only=%00&q=%00%ff%3Cscript%3E"
    answer = client.get(f"/services?{odd}")
    assert answer.status_code == 200
    assert "<script>" not in answer.text.split("<main", 1)[1]
    assert client.get("/services?page=999999").status_code == 200
    assert client.get("/runs?before=abc&service=nobody").status_code == 200


def test_statics_are_kept_for_ever(client: httpx.Client) -> None:
    """Static files carry their digest in their name, and browsers keep them."""
    for name, body in statics().values():
        answer = client.get(f"/static/{name}")
        assert answer.content == body
        assert "immutable" in answer.headers["cache-control"]


def test_pages_are_never_kept(client: httpx.Client) -> None:
    """Pages are asked for again each time, and nothing in them is inline."""
    for path in ("/", "/services", "/timers/backup", "/runs/1", "/login"):
        answer = client.get(path)
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<style|\sstyle=|<script(?! src=)|\son\w+=", answer.text.replace(EVIL, ""))


def test_output_grows_by_pieces(site: Served, client: httpx.Client) -> None:
    """The output of a run under way comes piece by piece, never in the middle of a character."""
    run = site.do(site.world.run_began("backup", "manual"))
    site.call(lambda: site.world.outputs[run].write("grün\n".encode()[:3]))
    first = client.get(f"/runs/{run}/output?place=0&lost=0").json()
    assert (first["text"], first["is_whole"], first["is_running"]) == ("gr", True, True)
    site.call(lambda: site.world.outputs[run].write("grün\n".encode()[3:]))
    again = client.get(f"/runs/{run}/output?place={first['place']}&lost=0").json()
    assert again["text"] == "ün\n"
    site.call(lambda: site.world.outputs[run].write(b"x" * 100_000))
    whole = client.get(f"/runs/{run}/output?place={again['place']}&lost=0").json()
    assert whole["is_whole"]
    assert whole["lost_bytes"] > 30_000
    site.do(site.world.run_ended(run))
    assert not client.get(f"/runs/{run}/output?place=0&lost=0").json()["is_running"]


def test_run_leads_to_what_is_around_it(site: Served, client: httpx.Client) -> None:
    """A retry leads to the run it tries again and to the slot behind both; a run to its neighbours."""
    rows = site.do(site.world.history.runs(service="report", limit=1000))
    index = next(index for index, row in enumerate(rows) if row.reason == "retry" and index > 0)
    newer, retry, first, older = rows[index - 1 : index + 3]
    page = client.get(f"/runs/{retry.id}").text
    assert f'<dt>tries again</dt><dd><a href="/runs/{first.id}">run {first.id}</a>' in page
    slot = re.search(r"<dt>slot it answered</dt><dd>(.*?)</dd>", page)
    assert slot is not None
    assert slot[1].startswith('<a href="/timers/report#w-title">')
    slot_at = re.search(r"<dt>slot it answered</dt><dd>(.*?)</dd>", client.get(f"/runs/{first.id}").text)
    assert slot_at is not None
    assert slot_at[1] == slot[1]
    assert f'rel="prev" href="/runs/{first.id}"' in page
    assert f'rel="next" href="/runs/{newer.id}"' in page
    assert f'rel="prev" href="/runs/{older.id}"' in client.get(f"/runs/{first.id}").text
    newest = client.get(f"/runs/{rows[0].id}").text
    assert 'rel="next"' not in newest
    assert 'rel="prev"' in newest


def test_names_of_dots_have_a_page(site: Served, client: httpx.Client) -> None:
    """A service called `..` is found where its links lead."""
    world = site.world
    world.config = replace(world.config, services=(*world.config.services, Service("..", ("/bin/true",))))
    assert 'href="/services?id=.."' in client.get("/services").text
    assert "<h1><bdi>..</bdi></h1>" in client.get("/services?id=..").text
    assert 'href="/act/start?id=.."' in client.get("/services?id=..").text
    client.post("/act/start?id=..", data={"csrf": _csrf(client)})
    assert ("start", "..") in world.did


def test_health_has_reasons(site: Served, client: httpx.Client) -> None:
    """The overview says in one line how it is, and why it is not well."""
    assert "4 things are not right" in client.get("/").text
    world = site.world
    world.config = replace(world.config, invalid=())
    world.states = {name: views.ServiceSnapshot(id=name, state="running") for name in world.states}
    world.snapshots = {
        name: msgspec.structs.replace(snapshot, last_result="success")
        for name, snapshot in world.snapshots.items()
    }
    site.call(lambda: world.emit("ConfigurationReloaded"))
    assert "All is well" in client.get("/", headers={"x-duly-part": world.live.last_id}).text
    states = world.states
    stuck = RunRow(id=9, service="backup", reason="schedule", started_us=now_us() - 2 * 86_400 * SECOND_US)
    hangs = views.ServiceSnapshot(id="backup", state="running", run_id=9, last_run=stuck)
    world.states = {**states, "backup": hangs}
    site.call(lambda: world.emit("ConfigurationReloaded"))
    page = client.get("/", headers={"x-duly-part": world.live.last_id}).text
    assert "One thing is not right" in page
    assert "service backup hangs: it has been running since" in page
    world.states = states
    missed = {"last_missed_us": now_us(), "last_miss_reason": "shutdown", "last_run_us": None}
    world.snapshots["backup"] = msgspec.structs.replace(world.snapshots["backup"], **missed)
    site.call(lambda: world.emit("TimerMissed"))
    page = client.get("/", headers={"x-duly-part": world.live.last_id}).text
    assert 'class="health warn"' in page
    assert "All runs, but one thing is worth a look" in page
    assert '<a href="/timers/backup"><bdi>timer backup missed' in page
    assert "timer backup missed" in page


def test_what_is_not_watched(site: Served, client: httpx.Client) -> None:
    """Where timers are shared the page says what the monitor of one machine does not see."""
    world = site.world
    assert "Other machines" not in client.get("/verification").text
    world.unwatched = "Other machines share the timers."
    site.call(lambda: world.emit("TimerFired"))
    page = client.get("/verification", headers={"x-duly-part": world.live.last_id}).text
    assert '<p class="lead">Other machines share the timers.</p>' in page


def test_timers_are_not_even_imported() -> None:
    """As long as the timer switch is closed, the pages load nothing of timers."""
    program = "import sys, duly.web.pages; sys.exit(any('duly.timers' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- the library ---


def test_library_with_a_trace(tmp_path: Path) -> None:
    """The tasks of an embedded scheduler, their runs, and what its trace proves."""
    with served_library(tmp_path) as site:
        pages = {
            path: httpx.get(site.url + path)
            for path in ("/", "/tasks", "/tasks/fails", "/runs?result=failed&since=24h", "/verification")
        }
    assert {page.status_code for page in pages.values()} == {200}
    assert "the last run of fails failed" in pages["/"].text
    assert "<b>1</b> <span>failed in 24 h</span>" in pages["/"].text
    assert 'href="/tasks/fails"' in pages["/runs?result=failed&since=24h"].text
    assert "the last 1 run: 0 successful" in pages["/tasks/fails"].text
    assert "was due, and a run answered it" in pages["/tasks/fails"].text
    assert "no two runs of a task overlap" in pages["/verification"].text
    assert "violated" not in pages["/verification"].text
    assert EVIL not in pages["/tasks"].text


def test_library_without_a_trace(tmp_path: Path) -> None:
    """Without a trace there is what the store remembers, and a word on how to know more."""
    with served_library(tmp_path, with_trace=False) as site:
        task, verification = (
            httpx.get(f"{site.url}/tasks/works").text,
            httpx.get(f"{site.url}/verification").text,
        )
        dots = httpx.get(f"{site.url}/tasks?id=..").text
    assert "or record a trace" in task
    assert "Nobody watches here" in verification
    assert "At 03:30" in dots


def test_library_is_read_only(tmp_path: Path) -> None:
    """There is nothing to press, nothing to post to, and the API refuses every change."""
    with served_library(tmp_path) as site, httpx.Client(base_url=site.url) as client:
        before = (tmp_path / "state.db").read_bytes()
        csrf = _csrf(client)
        assert "data-action" not in client.get("/tasks").text
        assert client.post("/act/start/works", data={"csrf": csrf}).status_code == 404
        answer = client.post("/api/v1/reload", headers={"x-csrf-token": csrf}, json={})
        assert answer.status_code in {403, 409}
        assert (tmp_path / "state.db").read_bytes() == before


def test_library_that_goes_on(tmp_path: Path) -> None:
    """What the scheduler writes while one looks is there at the next look; a store that breaks is told."""
    with served_library(tmp_path) as site:
        assert httpx.get(f"{site.url}/tasks/newcomer").status_code == 404
        trace = tmp_path / "trace.jsonl"
        at_ms = (now_us() - HOUR_US // 60) // 1000
        with trace.open("a") as file:
            file.write(
                f'{{"ev":"RunStart","t":{at_ms},"id":"works"}}\n{{"ev":"RunEnd","t":{at_ms + 5},"id":"wor'
            )
        assert "the last 2 runs" in httpx.get(f"{site.url}/tasks/works").text
        (tmp_path / "state.db").write_bytes(b"not a database at all" * 100)
        assert (
            "is not a SQLite database"
            in httpx.get(f"{site.url}/", headers={"x-duly-part": "library-99"}).text
        )
        assert httpx.get(f"{site.url}/healthz/ready").status_code == 503


class Unreadable(LooseHistory):
    """A history in a store that cannot be read."""

    async def ask(self, _query: Any) -> Any:
        """Fail."""
        raise StoreError(store="duly.db", reason="is not a SQLite database")


def test_unreadable_history_is_told(site: Served, client: httpx.Client) -> None:
    """The overview stays, and says what is wrong; pages that need the history say so too, as an error."""
    site.world.history = Unreadable()
    overview = client.get("/")
    assert overview.status_code == 200
    assert "the history cannot be read: Store duly.db: is not a SQLite database" in overview.text
    assert "All is well" not in overview.text
    assert "services up" in overview.text
    for path in ("/services/web", "/timers/backup", "/runs", "/runs/1"):
        page = client.get(path, headers={"x-duly-part": ""})
        assert page.status_code == 503
        assert "is not a SQLite database" in page.text
        assert page.headers["etag"], "a script shows what was said"


def test_action_on_a_store_that_fails(site: Served, client: httpx.Client) -> None:
    """An action that the store keeps from happening is answered with the reason."""

    async def failing(_timer: str, *, enabled: bool) -> None:
        raise StoreError(store=f"state.db ({enabled})", reason="disk full")

    site.world.switch_timer = failing
    answer = client.post(
        "/act/disable/backup",
        headers={"x-csrf-token": _csrf(client), "accept": "application/json"},
        json={},
    )
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "Store state.db (False): disk full"


def test_navigation_says_where_one_is(client: httpx.Client) -> None:
    """The link to the page one looks at is marked as such."""
    assert '<a href="/services" aria-current="page">Services</a>' in client.get("/services").text


def test_names_that_look_quoted(site: Served, client: httpx.Client) -> None:
    """A name that looks like another one, quoted, does not get its page."""
    twins = tuple(Service(name, ("true",), type="oneshot") for name in ("a#b", "a%23b"))
    site.world.config = replace(site.world.config, services=(*site.world.config.services, *twins))
    first, second = client.get("/services/a%23b").text, client.get("/services/a%2523b").text
    assert "<h1><bdi>a#b</bdi></h1>" in first
    assert "<h1><bdi>a%23b</bdi></h1>" in second


def test_one_event_is_one_page(site: Served) -> None:
    """All who heard of the same event, or say they heard of one that never was, get the page made once."""
    calls = 0
    plain = site.world.services

    def counted() -> Any:
        nonlocal calls
        calls += 1
        return plain()

    async def all_at_once(received: str) -> None:
        async with httpx.AsyncClient(base_url=site.url) as client:
            asking = [client.get("/services", headers={"x-duly-part": received}) for _ in range(20)]
            assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}

    site.world.services = counted
    site.call(lambda: site.world.emit("ServiceRunStarted", service="web"))
    asyncio.run(all_at_once(site.world.live.last_id))
    first = calls
    asyncio.run(all_at_once("world-999999999"))
    assert first <= 2
    assert calls <= first + 2, "once more, if a second has passed"


def test_retry_is_listed_once(site: Served, client: httpx.Client) -> None:
    """A timer whose next firing is a retry has it in its list as that alone."""
    at_us = now_us() + HOUR_US
    snapshot = site.world.snapshots["backup"]
    site.world.snapshots["backup"] = msgspec.structs.replace(
        snapshot, next_us=at_us, retry_at_us=at_us, retry_attempt=1
    )
    page = client.get("/timers/backup").text
    assert page.count(f'data-us="{at_us}"') == 1
    assert "retry 1" in page


def test_question_is_for_those_who_may(site: Served, client: httpx.Client) -> None:
    """Nobody is asked whether he means what he may not do, or what cannot be done while timers are off."""
    site.world.is_timer_switch_on = False
    assert client.get("/act/trigger/backup").status_code == 404
    assert client.get("/act/stop/web").status_code == 200
    guarded = WebSettings(listen="127.0.0.1:0", operator_token="o" * 20, viewer_token="v" * 20)
    with served(World(), guarded) as other:
        viewer = {"authorization": f"Bearer {'v' * 20}"}
        page = httpx.get(f"{other.url}/act/stop/web", headers=viewer)
    assert page.status_code == 403
    assert '<form method="post" action="/act' not in page.text


def test_library_is_told_to_programs_too(tmp_path: Path) -> None:
    """The API says of a library's health what the page says; a probe hears of a store that breaks."""
    with served_library(tmp_path) as site, httpx.Client(base_url=site.url) as client:
        client.get("/")
        health = client.get("/api/v1/status").json()["health"]
        assert (health["ok"], health["reasons"]) == (False, ["the last run of fails failed"])
        assert client.get("/healthz/ready").status_code == 200
        (tmp_path / "state.db").write_bytes(b"not a database at all" * 100)
        until_s = time.monotonic() + 60
        while client.get("/healthz/ready").status_code == 200:
            assert time.monotonic() < until_s, "nobody looked at the store"


# --- other machines ---


FAR = 'href="/runs/5?machine=far%3A9"'


@pytest.mark.parametrize("path", ["/", "/services/poll", "/timers/poll", "/runs", "/runs?timer=poll"])
def test_runs_of_other_machines(site: Served, client: httpx.Client, path: str) -> None:
    """Every page that lists runs has those of other machines, each with the name of its machine."""
    far_run(site.world, 5)
    page = client.get(path).text
    assert FAR in page
    assert " on far:9" in page
    own = client.get("/runs?service=web").text
    assert "far:9" not in own


def test_run_of_another_machine(site: Served, client: httpx.Client) -> None:
    """A run of another machine has a page with its output, and is not taken for ours of that number."""
    run = far_run(site.world, 5)
    page = client.get("/runs/5?machine=far%3A9").text
    assert "<h1>Run 5<bdi> on far:9</bdi></h1>" in page
    assert "far away" in page
    assert "exited with code 3" in page
    assert "far away" not in client.get("/runs/5").text
    assert client.get("/runs/6?machine=far%3A9").status_code == 404
    site.world.outputs[run.id] = Tail(1000)
    site.world.outputs[run.id].write(b"ours\n")
    assert "ours" not in client.get("/runs/5?machine=far%3A9&again=").text


def test_latest_output_is_of_any_machine(site: Served, client: httpx.Client) -> None:
    """The page of a timer shows the output of its latest run, on whatever machine that was."""
    far_run(site.world, 5, "certificates")
    assert "far away" in client.get("/timers/certificates").text


def test_time_line_and_counts_have_other_machines(site: Served, client: httpx.Client) -> None:
    """On the time line a run of another machine is drawn with its name, and the day counts it."""

    def runs_counted() -> int:
        found = re.search(r"<b>([\d,]+)</b> <span>runs in 24 h", client.get(f"/?hours={len(seen)}").text)
        assert found is not None
        return int(found[1].replace(",", ""))

    seen: list[int] = []
    seen.append(runs_counted())
    far_run(site.world, 5, "certificates")
    seen.append(runs_counted())
    assert seen[1] == seen[0] + 1
    lanes = client.get("/api/v1/timeline?q=certificates").json()["lanes"]
    assert "/runs/5?machine=far%3A9" in [run["href"] for lane in lanes for run in lane["runs"]]


def test_service_that_ran_elsewhere(site: Served, client: httpx.Client) -> None:
    """A service that only another machine has run does not look as if it never had."""
    world = site.world
    before = client.get("/services?q=certificates").text
    assert '<span class="none">–</span></td>' in before
    ran = msgspec.structs.replace(
        world.snapshots["certificates"], member="", last_run_us=now_us() - 60_000_000, last_result="exit"
    )
    world.snapshots["certificates"] = ran
    page = client.get("/services?q=certificate").text
    assert 'href="/runs?service=certificates"' in page
    assert "failed" in page


@pytest.mark.parametrize("path", ["/", "/services/poll", "/timers/poll", "/runs", "/runs?timer=poll"])
def test_database_that_is_away(site: Served, client: httpx.Client, path: str) -> None:
    """Without the database a page shows what ran here, and one sentence says what is missing."""
    far_run(site.world, 5)
    site.world.fault = OperationError(FAILED, "the database does not answer")
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.text.count("Runs of other machines are not shown: the database does not answer.") == 1
    assert "/runs/" in answer.text
    run = client.get("/runs/5?machine=far%3A9")
    assert (run.status_code, "the database does not answer" in run.text) == (503, True)


@pytest.mark.parametrize("path", ["/", "/services", "/services/poll", "/timers", "/timers/poll"])
def test_timers_as_they_were(site: Served, client: httpx.Client, path: str) -> None:
    """Without the database a page shows timers as they were, and says so."""
    site.world.fault = OperationError(FAILED, "the database does not answer")
    said = "Timers are shown as this machine last knew them: the database does not answer."
    assert client.get(path).text.count(said) == 1


@pytest.mark.parametrize(
    "path", ["/services/certificates", "/timers/certificates", "/runs?timer=certificates"]
)
def test_never_is_not_said_without_the_database(site: Served, client: httpx.Client, path: str) -> None:
    """That something has not run is said of this machine alone, as long as nobody knows of the others."""
    assert "on this machine" not in client.get(path).text
    site.world.fault = OperationError(FAILED, "the database does not answer")
    assert "on this machine" in client.get(f"{path}{'&' if '?' in path else '?'}again=").text


def test_slots_of_a_shared_timer(site: Served, client: httpx.Client) -> None:
    """Of a shared timer's slots only what is on record is said: a miss may be noted on another machine."""
    world = site.world
    old = msgspec.structs.replace(world.snapshots["poll"], answered_us=now_us())
    world.snapshots["poll"] = old
    assert "What became" in client.get("/timers/poll").text
    world.history = LooseHistory()
    run = far_run(world, 5)
    slot_us = run.started_us - run.started_us % (5 * 60_000_000)
    world.elsewhere = [msgspec.structs.replace(run, scheduled_us=slot_us)]
    world.snapshots["poll"] = msgspec.structs.replace(old, member="")
    page = client.get("/timers/poll?again=").text
    assert page.count('<ol class="answers"><li>') == 1
    assert page.partition('<ol class="answers">')[2].partition("</ol>")[0].count("<li>") == 1


def test_run_under_way_on_another_machine(site: Served, client: httpx.Client) -> None:
    """What runs on another machine is said to run there, not to be due still, nor never to have run."""
    world = site.world
    known = world.snapshots["certificates"]
    world.snapshots["certificates"] = msgspec.structs.replace(
        known, next_us=now_us(), retry_at_us=None, running_run=7, running_since_us=now_us(), member="far:9"
    )
    page = client.get("/timers/certificates").text
    assert "It runs on far:9 now." in page
    assert "has not run" not in page
    upcoming = client.get("/").text.partition("Next firings")[2].partition("</ol>")[0]
    assert "backup" in upcoming
    assert "certificates" not in upcoming


def test_misses_are_of_this_machine(site: Served, client: httpx.Client) -> None:
    """Where timers are shared, the page of misses says whose they are."""
    assert "each machine notes its own" not in client.get("/misses").text
    settings = replace(site.world.config.settings, store=Database("postgresql://db.example/app"))
    site.world.config = replace(site.world.config, settings=settings)
    assert "each machine notes its own" in client.get("/misses?again=").text
    assert "on this machine" in client.get("/").text


def test_retry_of_a_run_elsewhere(site: Served, client: httpx.Client) -> None:
    """A retry here of a run on another machine leads to that run; without the database, to none."""
    world = site.world
    first = far_run(world, 5, "certificates")
    row = RunRow(
        id=90_000,
        service="certificates",
        timer="certificates",
        reason="retry",
        started_us=now_us() - 1_000_000,
        ended_us=now_us(),
        result="success",
    )
    before = msgspec.structs.replace(row, id=80_000, reason="schedule", started_us=now_us() - HOUR_US)
    site.do(world.history.put([before, row], []))
    page = client.get("/runs/90000").text
    assert f"<dt>tries again</dt><dd><a {FAR}>run {first.id}<bdi> on far:9</bdi></a>" in page
    world.fault = OperationError(FAILED, "the database does not answer")
    assert "tries again" not in client.get("/runs/90000?again=").text
