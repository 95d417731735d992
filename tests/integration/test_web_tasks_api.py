"""The tasks of an embedded scheduler by the API: told as the pages tell them, and as the document says."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import apsw
import jsonschema_rs
import pytest

from tests.worlds.web import EVIL, Served, served_library
from tests.worlds.web_serving import serving, settings

PATHS = ("/api/v1/tasks", "/api/v1/tasks/{name}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A store with a trace, behind a real server."""
    with served_library(tmp_path_factory.mktemp("library")) as found:
        yield found


def get(site: Served, path: str) -> tuple[int, Any]:
    """Ask for a path as it is: clients with manners would work out its dots first."""
    connection = http.client.HTTPConnection(urlsplit(site.url).netloc, timeout=60)
    try:
        connection.request("GET", f"/api/v1/{path}")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_all_tasks(site: Served) -> None:
    """Every task is told, with its schedule in words, its state, and its times."""
    status, seen = get(site, "tasks")
    assert (status, seen["damaged"], seen["faults"], seen["timezone"]) == (200, [], [], "Europe/Berlin")
    tasks = {task["name"]: task for task in seen["tasks"]}
    assert set(tasks) == {"works", "fails", EVIL, ".."}
    assert (tasks["works"]["state"], tasks["fails"]["state"]) == ("fine", "failing")
    assert (tasks[".."]["cron"], tasks[".."]["state"]) == ("30 3 * * 1-5", "new")
    assert tasks[".."]["schedule"].startswith("At 03:30")
    assert tasks["fails"]["retry_delay_s"] == 300
    assert tasks["fails"]["last_success_at"] is None
    assert tasks["fails"]["next_run_at"] is not None


@pytest.mark.parametrize("name", ["works", "fails", EVIL, ".."])
def test_one_task(site: Served, name: str) -> None:
    """A task is found by its name, whatever that is, with what comes and what became of its latest dues."""
    status, seen = get(site, f"tasks/{quote(name, safe='')}")
    assert (status, seen["task"]["name"], seen["has_trace"]) == (200, name, True)
    assert len(seen["next"]) == 10
    assert seen["answers"] == [{"kind": "answered", "sentence": f'"{name}" was due, and a run answered it.'}]
    results = [run["result"] for run in seen["runs"]]
    assert results == {"works": ["success"], "fails": ["failure"]}.get(name, [])
    assert all(run["duration_s"] >= 0 and not run["running"] for run in seen["runs"])


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("tasks/nobody", 404, "not_found"),
        ("tasks/", 404, "not_found"),
        ("tasks?limit=3", 400, "bad_request"),
        ("tasks/works?x=1", 400, "bad_request"),
    ],
)
def test_refusals(site: Served, path: str, status: int, code: str) -> None:
    """What is not there, and what is asked in a way that means nothing, is refused as everywhere."""
    seen = get(site, path)
    assert (seen[0], seen[1]["error"]["code"]) == (status, code)


def test_damaged_task(tmp_path: Path) -> None:
    """A row that cannot be used is told beside the tasks, with why, and has no page of its own."""
    with served_library(tmp_path, with_trace=False) as site:
        # Not with Python's own SQLite: two libraries in one process take each other's locks and mapped files.
        with closing(apsw.Connection(str(tmp_path / "state.db"))) as connection:
            connection.execute("UPDATE task SET cron = 'nonsense' WHERE name = 'works'")
        _, seen = get(site, "tasks")
        status, refused = get(site, "tasks/works")
    assert [task["name"] for task in seen["tasks"]] == ["fails", EVIL, ".."]
    assert [bad["name"] for bad in seen["damaged"]] == ["works"]
    assert status == 404
    assert refused["error"]["message"].startswith("its row cannot be used: ")


def test_daemon_has_no_tasks() -> None:
    """Where a daemon is shown there are no tasks, nor does the document tell of any."""
    with serving(settings()) as served:
        assert served.ask("GET", "/api/v1/tasks").status == 404
        assert not set(PATHS) & set(json.loads(served.ask("GET", "/api/v1/openapi.json").body)["paths"])


# --- its document ---


def test_document_is_valid(site: Served) -> None:
    """The document of a store has the tasks, follows OpenAPI 3.1, and each of its schemas is a schema."""
    from tests.worlds.openapi import check_document  # noqa: PLC0415 - it takes long to import

    _, document = get(site, "openapi.json")
    assert set(PATHS) < set(document["paths"])
    check_document(document)


@pytest.mark.parametrize("path", PATHS)
def test_whatever_is_sent(site: Served, path: str) -> None:
    """Whatever fits the document, and whatever does not, is answered as the document says."""
    from tests.worlds.openapi import check_answers  # noqa: PLC0415 - it takes long to import

    _, document = get(site, "openapi.json")
    check_answers(document, site.url, path, "GET")


@pytest.mark.parametrize("name", ["works", "fails", EVIL])
def test_answer_fits_its_schema(site: Served, name: str) -> None:
    """What is told of a task that is there, which no random name finds, fits the document."""
    _, document = get(site, "openapi.json")
    schema = document["paths"]["/api/v1/tasks/{name}"]["get"]["responses"]["200"]["content"]
    whole = {**schema["application/json"]["schema"], "components": document["components"]}
    status, seen = get(site, f"tasks/{quote(name, safe='')}")
    assert status == 200
    jsonschema_rs.validator_for(whole).validate(seen)
