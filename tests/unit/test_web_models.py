"""Tables and records of pages: what is shown of thousands, in which order, and what is never shown."""

from collections.abc import Mapping

import pytest

from duly.config.schema import Service
from duly.daemon import views
from duly.store.history import RunRow
from duly.web import models
from duly.web.models import Asked
from tests.daemons import CONFIG, NOW_US, SERVICES, TIMERS
from tests.web_world import config_of

ENTRIES = models.service_entries(CONFIG, SERVICES, TIMERS)


def _ids(asked: Asked) -> list[str]:
    return [row.service.id for row in models.services_table(ENTRIES, asked).rows]


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        (Asked(), ["web", "backup", "mail"]),
        (Asked(text="SITE the"), ["web"]),
        (Asked(text="code 3"), ["backup"]),
        (Asked(text="nothing of the kind"), []),
        (Asked(only="disabled"), ["mail"]),
        (Asked(sort="name"), ["backup", "mail", "web"]),
        (Asked(sort="name", is_down=True), ["web", "mail", "backup"]),
        (Asked(sort="since"), ["backup", "web", "mail"]),
        (Asked(sort="since", is_down=True), ["web", "backup", "mail"]),
        (Asked(sort="state"), ["backup", "web", "mail"]),
    ],
)
def test_services_table(asked: Asked, ids: list[str]) -> None:
    """Services are filtered by every word and sorted either way; what has no value is always last."""
    assert _ids(asked) == ids


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ({}, Asked()),
        (
            {"q": "x", "sort": "name", "dir": "down", "only": "failed", "page": "3"},
            Asked("x", "failed", "name", True, 3),
        ),
        ({"sort": "__class__", "only": "x", "dir": "sideways"}, Asked()),
        ({"page": "0"}, Asked(page=0)),
        ({"page": "-1"}, Asked()),
        ({"page": "²"}, Asked()),
        ({"page": "9999999"}, Asked()),
        ({"q": "x" * 5000}, Asked("x" * 200)),
    ],
)
def test_asked_of(query: Mapping[str, str], asked: Asked) -> None:
    """What makes no sense in a query is left out."""
    assert models.asked_of(query, models.SERVICE_SORTS, ("failed",)) == asked


def test_pages_of_a_table() -> None:
    """A table of thousands is shown by the hundred, and a page beyond the last is the last."""
    config = config_of(1000)
    entries = models.timer_entries(config, {})
    table = models.timers_table(entries, Asked(text="job-", page=99))
    assert (table.found, table.total, table.pages) == (1000, 1006, 10)
    assert (table.asked.page, table.first, len(table.rows)) == (10, 900, 100)
    assert models.timers_table(entries, Asked(page=0)).first == 0


def test_environment_values_are_left_out() -> None:
    """Of an environment only names are told."""
    service = Service("a", ("b",), env={"PASSWORD": "hunter2"})
    facts = models.service_facts(service)
    assert "hunter2" not in repr(facts)
    assert any("PASSWORD" in fact.value for fact in facts)


def test_actions_fit_the_state() -> None:
    """What runs can be stopped, what stands can be started, and what is disabled neither."""
    assert [[action.name for action in models.service_actions(entry)] for entry in ENTRIES] == [
        ["stop"],
        ["start"],
        [],
    ]
    timers = models.timer_entries(CONFIG, TIMERS)
    names = [[action.name for action in models.timer_actions(entry)] for entry in timers]
    assert names == [["trigger", "disable"], ["trigger", "enable"]]


def test_every_action_is_an_operation() -> None:
    """No button asks for what the daemon does not know."""
    from duly.daemon.operations import OPERATIONS  # noqa: PLC0415 - only here

    for name in (*models.ACTIONS, *models.UNDONE_BY, *models.UNDONE_BY.values()):
        assert not OPERATIONS[name].is_read


def test_retry_comes_before_the_schedule() -> None:
    """What comes next of a timer is its retry, if that is sooner."""
    (first,) = models.next_firings(CONFIG, TIMERS, 5)
    assert (first.timer, first.at_us, first.is_retry) == ("backup", TIMERS["backup"].retry_at_us, True)


def test_run_facts() -> None:
    """A run tells its cause, how late it was, and how long it took or takes."""
    row = RunRow(id=1, service="a", reason="catch-up", scheduled_us=NOW_US - 9, started_us=NOW_US - 5)
    facts = models.run_facts(row, NOW_US)
    assert (facts.late_us, facts.lasted_us, facts.mark.word) == (4, 5, "running")
    assert "caught up" in facts.cause


@pytest.mark.parametrize(
    ("since", "lost_before", "text", "is_whole"),
    [(0, 7, "abc", False), (2, 7, "c", False), (3, 7, "", False), (4, 7, "abc", True), (2, 0, "abc", True)],
)
def test_output_piece(since: int, lost_before: int, text: str, is_whole: bool) -> None:
    """A piece goes on where one was; if the beginning was dropped meanwhile, it is all anew."""
    piece = models.output_piece("abc", 7, since=since, lost_before=lost_before, is_running=True)
    assert (piece.text, piece.is_whole, piece.place) == (text, is_whole, 3)


def test_tiles_hide_timers_while_the_gate_is_closed() -> None:
    """With the gate closed no number speaks of timers."""
    counts = {"services": 1, "services_running": 1, "services_failed": 0, "invalid": 0}
    labels = [tile.label for tile in models.tiles(counts, 0, {}, has_timers=False)]
    assert labels == ["services running", "services failed", "runs in 24 h"]


@pytest.mark.parametrize(
    ("results", "note"),
    [
        ({}, ""),
        ({"success": 2}, "all successful"),
        ({None: 1}, "1 still running"),
        ({None: 1, "success": 2}, "1 still running"),
        ({None: 1, "success": 2, "exit": 1}, "1 not successful"),
    ],
)
def test_runs_under_way_are_not_yet_successful(results: dict[str | None, int], note: str) -> None:
    """Only what has ended counts as a success."""
    counts = {"services": 1, "services_running": 1, "services_failed": 0, "invalid": 0}
    assert models.tiles(counts, 0, results, has_timers=False)[2].note == note


def test_unknown_states_are_shown_as_they_are() -> None:
    """A state that a later daemon has is shown by its word."""
    entry = models.ServiceEntry(Service("a", ("b",)), views.StoredService(id="a", state="dreaming"), None)
    assert models.service_mark(entry).word == "dreaming"
