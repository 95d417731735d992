"""The dashboard of an App in another ASGI program: under a path, and with the controls of the App."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from duly import App, every
from duly.clock import HostClock
from duly.store.history import WantedTaskRuns
from duly.web.live import Live
from duly.web.settings import WebRefusedError
from duly.web.task_store import TaskStore
from tests.worlds.web import HOUR_US

TOKEN = "a token that nobody guesses".replace(" ", "-")
HERE, STRANGER = ("127.0.0.1", 5), ("203.0.113.9", 5)


class Shop(App):
    """Three tasks, of which one fails, and a kind of entries."""

    def __init__(self, store: str) -> None:
        super().__init__(store, timezone="Europe/Berlin", limits={"db": 2})
        self.ran, self.failed = asyncio.Event(), asyncio.Event()
        self.declare(self._works, "0 4 1 1 *", name="works", tags=["mail"], timeout="30s", limit="db")
        self.declare(self._fails, "0 4 1 1 *", name="fails")
        self.declare(self._works, every("1h"), name="off", enabled=False)
        self.kind(name="letter")(self._letter)

    async def _works(self) -> None:
        self.ran.set()

    async def _fails(self) -> None:
        self.failed.set()
        raise ConnectionError("shop.example.com is not there")

    async def _letter(self, to: str) -> None:
        assert to


@asynccontextmanager
async def looking(
    app: App, *, peer: tuple[str, int] = HERE, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who looks at the dashboard of *app*, which is mounted at /jobs."""
    transport = httpx.ASGITransport(app.dashboard(**options), root_path="/jobs", client=peer)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@asynccontextmanager
async def shop_in(store: str) -> AsyncIterator[Shop]:
    """An App that runs; `fails` has failed once, in its life before."""
    app = Shop(store)
    async with app:
        with pytest.raises(ConnectionError):
            await (await app.run_now("fails"))
    app.failed.clear()
    async with app:
        yield app


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the App has its tasks."""
    return str(tmp_path / "shop.db") if request.param == "file" else ":memory:"


def csrf_in(page: str) -> str:
    """The token of the session in a page."""
    found = re.search(r'name="duly-csrf" content="(\w+)"', page)
    assert found is not None
    return found[1]


async def act(client: httpx.AsyncClient, address: str) -> httpx.Response:
    """Do something as the script of a page does it."""
    csrf = csrf_in((await client.get("/jobs/tasks")).text)
    headers = {"x-csrf-token": csrf, "content-type": "application/json", "accept": "application/json"}
    return await client.post(f"/jobs{address}", headers=headers, content=b"{}")


async def test_addresses_are_below_the_path(store: str) -> None:
    """Whatever leads somewhere leads below the path at which the site is mounted, refusals too."""
    async with shop_in(store) as shop, looking(shop) as client:
        for path in ("/", "/tasks", "/tasks/fails", "/runs", "/runs/1", "/plan", "/verification", "/nothing"):
            page = await client.get(f"/jobs{path}")
            assert page.status_code == (404 if path == "/nothing" else 200), path
            led = re.findall(
                r'\s(?:href|src|action|data-(?:events|output|address|root))="(/[^"]*)', page.text
            )
            assert len(led) > 10
            assert [each for each in led if not each.startswith("/jobs/")] == []
        script = re.search(r'src="([^"]*app[^"]*)"', page.text)
        assert script is not None
        assert (await client.get(script[1])).headers["content-type"].startswith("text/javascript")
        assert (await client.get("/jobs/act/run/works")).status_code == 200
    async with looking(Shop(store), token=TOKEN) as client:
        asked = await client.get("/jobs/runs?result=failed")
        assert asked.headers["location"] == "/jobs/login?next=%2Fruns%3Fresult%3Dfailed"


async def test_it_tells_what_failed(store: str) -> None:
    """The overview names the task that fails with its last words; its page has the traceback."""
    async with shop_in(store) as shop, looking(shop) as client:
        page = (await client.get("/jobs/")).text
        assert "One thing is not right" in page
        said = "the last run of fails failed: ConnectionError: shop.example.com is not there"
        assert page.count(said) == 1
        assert 'href="/jobs/tasks/fails"' in page
        entry = (await client.get("/jobs/tasks/fails")).text
        assert "Traceback (most recent call last)" in entry
        assert said in entry
        assert "<dt>timeout</dt><dd><bdi>30s</bdi></dd>" in (await client.get("/jobs/tasks/works")).text
        off = (await client.get("/jobs/tasks?only=disabled")).text
        assert "1 of 3" in off
        assert (await client.get("/jobs/tasks?q=mail")).text.count('data-key="works"') == 1
        assert 'href="/jobs/runs/1"' in (await client.get("/jobs/runs?result=failed")).text
        assert 'href="/jobs/runs/1"' not in (await client.get("/jobs/runs?result=failed&tag=mail")).text


async def test_streak(store: str) -> None:
    """Of failures in a row the page says how many, and whether any run is known that succeeded."""
    async with shop_in(store) as shop:
        with pytest.raises(ConnectionError):
            await (await shop.run_now("fails"))
    async with shop, looking(shop) as client:
        page = (await client.get("/jobs/tasks/fails")).text
        said = "the last 2 runs of fails failed: ConnectionError: shop.example.com is not there"
        assert f"{said}; none that is known succeeded" in page


async def test_disabled_task_from_outside(tmp_path: Path) -> None:
    """A store does not say that a task is disabled: if others start, that one does not is no alarm."""
    path = tmp_path / "shop.db"
    async with shop_in(str(path)):
        pass
    store = TaskStore(path, Live("outside"), zone=UTC, clock=HostClock())
    await store.look()
    later_us = store.now_us + 2 * HOUR_US
    alarms = [alarm for alarm in store.snapshot.alarms(later_us) if "off" in alarm.message]
    assert [(alarm.tone, "is the scheduler running?" in alarm.message) for alarm in alarms] == [("bad", True)]
    tasks = [msgspec.structs.replace(task, last_attempt_us=later_us) for task in store.snapshot.tasks]
    alarms = [
        alarm for alarm in replace(store.snapshot, tasks=tasks).alarms(later_us) if "off" in alarm.message
    ]
    assert [(alarm.tone, "but others did: disabled" in alarm.message) for alarm in alarms] == [("warn", True)]


async def test_history_whose_beginning_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the newest runs are known, no count says that these are all."""
    monkeypatch.setattr("duly.web.embedded._NEWEST", WantedTaskRuns(limit=1))
    async with shop_in(":memory:") as shop, looking(shop) as client:
        assert "<b>1+</b> <span>runs in 24 h</span>" in (await client.get("/jobs/")).text
        assert "Only the newest runs are known here." in (await client.get("/jobs/runs")).text


async def test_it_acts(store: str) -> None:
    """Tasks are run, paused, resumed and removed by the controls of the App, and a refusal says why."""
    async with shop_in(store) as shop, looking(shop) as client:
        await shop.add("letter-7", kind="letter", schedule=every("1h"), args={"to": "Ada"})
        assert "Ada" in (await client.get("/jobs/tasks/letter-7")).text
        shop.ran.clear()
        assert (await act(client, "/act/run/works")).json()["message"] == "Asked for a run of works."
        await shop.ran.wait()
        paused = (await act(client, "/act/pause/works")).json()
        assert paused["undo_href"] == "/act/resume/works"
        assert [task.state for task in await shop.tasks() if task.name == "works"] == ["paused"]
        assert "All is well" not in (await client.get("/jobs/")).text
        assert "overdue" not in (await client.get("/jobs/tasks/works")).text
        assert (await act(client, "/act/resume/works")).status_code == 200
        assert (await act(client, "/api/v1/tasks/letter-7/remove")).json() == {
            "task": "letter-7",
            "done": "remove",
        }
        assert {task.name for task in await shop.tasks()} == {"works", "fails", "off"}
        refused = await act(client, "/act/remove/works")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "failed")
        assert (await act(client, "/act/run/nobody")).status_code == 404
        assert (await act(client, "/act/stop/works")).status_code == 404


async def test_all_that_failed_run_again(store: str) -> None:
    """What fails in a list of runs is asked for again at once, after a question that names it."""
    async with shop_in(store) as shop, looking(shop) as client:
        page = (await client.get("/jobs/act/rerun?result=failed")).text
        assert "<li><bdi>fails</bdi></li>" in page
        form = {"csrf": csrf_in(page)}
        answer = await client.post("/jobs/act/rerun?result=failed", data=form)
        assert answer.headers["location"] == "/jobs/runs"
        await shop.failed.wait()


async def test_why_is_asked_of_a_minute(store: str) -> None:
    """The page of a task says what became of a minute: by its history, or as far as its row remembers."""
    async with shop_in(store) as shop, looking(shop) as client:
        (ran,) = await shop.history("fails")
        page = (await client.get("/jobs/tasks/fails", params={"at": "1999-01-01T00:00"})).text
        assert "is not known to the store at 1999-01-01" in page
        assert ran.due is not None
        page = (await client.get("/jobs/tasks/fails", params={"at": ran.due.isoformat()})).text
        assert "answered it: failure." in page
        assert 'href="/jobs/runs/1"' in page


@pytest.mark.parametrize(
    ("peer", "host", "options", "status"),
    [
        (HERE, "localhost", {}, 200),
        (HERE, "shop.example.com", {}, 403),
        (STRANGER, "localhost", {}, 403),
        (STRANGER, "shop.example.com", {"is_open": True}, 200),
        (STRANGER, "shop.example.com", {"token": TOKEN}, 303),
    ],
)
async def test_who_is_let_in(
    tmp_path: Path, peer: tuple[str, int], host: str, options: dict[str, Any], status: int
) -> None:
    """Without a token only this machine is let in, unless the program says that it has a login of its own."""
    async with looking(Shop(str(tmp_path / "shop.db")), peer=peer, **options) as client:
        assert (await client.get("/jobs/", headers={"host": host})).status_code == status


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "via"])
async def test_who_comes_through_a_proxy(tmp_path: Path, header: str) -> None:
    """A proxy on this machine asks for strangers: what it passes on is not taken for a visitor from here."""
    async with looking(Shop(str(tmp_path / "shop.db"))) as client:
        refused = await client.get("/jobs/", headers={header: "203.0.113.9"})
        assert (refused.status_code, "App.dashboard" in refused.text) == (403, True)


async def test_token(tmp_path: Path) -> None:
    """A token lets in, in every worker of a server; with that of viewers nobody acts."""
    app = Shop(str(tmp_path / "shop.db"))
    with pytest.raises(WebRefusedError, match=r"App.dashboard\(token=...\)"):
        app.dashboard(token="short")
    options: dict[str, Any] = {"token": TOKEN, "viewer_token": TOKEN[::-1]}
    async with looking(app, **options) as client, looking(app, **options) as other:
        form = {"token": TOKEN, "next": "/tasks", "csrf": csrf_in((await client.get("/jobs/login")).text)}
        answer = await client.post("/jobs/login", data=form)
        assert answer.headers["location"] == "/jobs/tasks"
        assert (
            await other.get("/jobs/tasks", headers={"cookie": answer.headers["set-cookie"]})
        ).status_code == 200
        bearer = {"authorization": f"Bearer {TOKEN[::-1]}"}
        assert (await client.get("/jobs/api/v1/tasks", headers=bearer)).status_code == 200
        assert (await client.post("/jobs/api/v1/tasks/works/run", headers=bearer)).status_code == 403


async def test_program_that_is_not_at_work(tmp_path: Path) -> None:
    """Before its start and after its end the page says that nothing can run."""
    app = Shop(str(tmp_path / "shop.db"))
    said = "this program has not started its tasks, or has stopped them"
    async with looking(app) as client:
        assert said in (await client.get("/jobs/")).text
    async with app, looking(app) as client:
        page = (await client.get("/jobs/")).text
        assert "All is well" in page
        assert said not in page
    async with looking(app) as client:
        assert said in (await client.get("/jobs/")).text


async def test_streams_are_short(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of events ends with a word after a while: a server that stops waits for all of them."""
    monkeypatch.setattr("duly.web.embedded._STREAM_S", 0)
    async with shop_in(store) as shop, looking(shop) as client:
        lines = (await client.get("/jobs/api/v1/events")).text.splitlines()
        assert [line for line in lines if line.startswith("event:")] == ["event: hello", "event: bye"]


async def test_one_who_stands_by_passes_it_on(tmp_path: Path) -> None:
    """A process that stands by shows the same, and passes on what it is asked for."""
    path = str(tmp_path / "shop.db")

    class Standby(Shop):
        def __init__(self) -> None:
            App.__init__(self, path, standby=True)
            self.declare(self._works, "0 4 1 1 *", name="works")
            self.ran = asyncio.Event()

    first, second = Standby(), Standby()
    async with first, second, looking(second) as client:
        assert "All is well" in (await client.get("/jobs/")).text
        assert (await act(client, "/act/run/works")).status_code == 200
        await first.ran.wait()
        assert not second.ran.is_set()


async def test_app_of_a_cluster(postgres_url: str) -> None:
    """On PostgreSQL the runs come from the database, and a page has the nodes."""
    async with shop_in(postgres_url) as shop, looking(shop) as client:
        page = (await client.get("/jobs/")).text
        assert "the last run of fails failed: ConnectionError: shop.example.com is not there" in page
        assert 'href="/jobs/machines"' in page
        machines = (await client.get("/jobs/machines")).text
        assert machines.count("living</span>") == 1
        assert "No node was lost lately." in machines
        (run,) = set(re.findall(r'href="(/jobs/runs/\d+)"', page))
        assert "Traceback (most recent call last)" in (await client.get(run)).text
