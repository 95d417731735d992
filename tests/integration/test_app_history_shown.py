"""The history of an app, as `duly history --store` and the dashboard show it."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from duly import App, Retry, Scheduler, every
from duly.cli import main
from duly.testing import VirtualClock
from tests.worlds.web import Served, served_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an app in which two tasks have run, one of them badly."""
    path = tmp_path_factory.mktemp("shown") / "state.db"

    async def life() -> None:
        clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
        app = App(path, clock=clock, timezone="UTC")

        @app.task(every("60s"), retry=Retry("5s", attempts=2))
        async def bad() -> None:
            raise ValueError("no <luck>")

        app.declare(lambda: None, every("90s"), name="good")
        async with app:
            await clock.advance(timedelta(seconds=100))

    asyncio.run(life())
    return path


@pytest.fixture(scope="module")
def site(store: Path) -> Iterator[Served]:
    """The same store behind a dashboard."""
    with served_store(store) as found:
        yield found


def shown(*arguments: str, code: int = 0) -> str:
    """What a command prints."""
    found = CliRunner().invoke(main, ["history", *arguments], terminal_width=200)
    assert found.exit_code == code, found.output
    return found.output


def test_the_command_lists_runs(store: Path) -> None:
    """`duly history --store` lists runs, newest first, of one task or result, with tracebacks if wanted."""
    lines = shown("--store", str(store)).splitlines()
    assert lines[0] == lines[0].upper()
    assert [line.split()[1:4] for line in lines[1:]] == [
        ["good", "cron", "1"],
        ["bad", "retry", "2"],
        ["bad", "cron", "1"],
    ]
    assert "ValueError" in lines[2]
    assert "Traceback" not in "".join(lines)
    seen = shown("--store", str(store), "bad", "-n", "1", "--traceback")
    assert 'raise ValueError("no <luck>")' in seen
    assert "No such run" in shown("--store", str(store), "good", "--result", "failure")


def test_the_command_as_json(store: Path) -> None:
    """The JSON has all of a run, the traceback included."""
    seen = json.loads(shown("--store", str(store), "--result", "failure", "--json"))
    newest = seen["runs"][0]
    assert [run["attempt"] for run in seen["runs"]] == [2, 1]
    assert (newest["task"], newest["cause"], newest["result"]) == ("bad", "retry", "failure")
    assert newest["error"] == "ValueError: no <luck>"
    assert newest["traceback"].endswith("ValueError: no <luck>\n")
    assert newest["scheduled"] <= newest["started"] <= newest["ended"]
    assert newest["run_id"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--store", "nowhere.db"], 2, "there is no such file"),
        (["--store", "postgresql://host/name"], 2, "duly cluster"),
        (["--store", "state.db", "--timer", "x"], 2, "no other option"),
        (["--result", "failure"], 2, "give --store FILE"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], code: int, said: str) -> None:
    """A store that is not there, or options that do not go together, are refused with the remedy."""
    assert said in shown(*arguments, code=code)


def test_the_store_of_a_scheduler(tmp_path: Path) -> None:
    """The store of a `Scheduler` has no history, and the command says so."""

    async def life() -> None:
        scheduler = Scheduler(tmp_path / "state.db")
        await scheduler.initialize([])
        await scheduler.stop()

    asyncio.run(life())
    assert "Scheduler has no history" in shown("--store", str(tmp_path / "state.db"))


def page_of(site: Served, path: str) -> str:
    """What the site answers."""
    with urlopen(f"{site.url}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def get(site: Served, path: str) -> Any:
    """What the API answers."""
    return json.loads(page_of(site, f"/api/v1/{path}"))


def test_the_api_has_the_runs(site: Served) -> None:
    """A task of the API has its runs, with error and traceback, without a trace."""
    runs = get(site, "tasks/bad")["runs"]
    assert [(run["cause"], run["attempt"], run["result"]) for run in runs] == [
        ("retry", 2, "failure"),
        ("cron", 1, "failure"),
    ]
    assert all("no <luck>" in run["traceback"] and run["node"] for run in runs)
    assert [run["result"] for run in get(site, "tasks/good")["runs"]] == ["success"]


def test_the_page_of_a_task(site: Served) -> None:
    """The page of a task lists its runs, and what they raised, as text."""
    page = page_of(site, "/tasks/bad")
    assert "ValueError: no &lt;luck&gt;" in page
    assert "raise ValueError(&#34;no &lt;luck&gt;&#34;)" in page
    assert "attempt 2" in page
    assert "no <luck>" not in page
