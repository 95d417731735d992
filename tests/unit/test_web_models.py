"""Tables and records of pages: what is shown of thousands, in which order, and what is never shown."""

from collections.abc import Mapping

import pytest

from duly.config.schema import Service
from duly.daemon import views
from duly.daemon.health import EntryState
from duly.web import models
from duly.web.models import TableQuery
from tests.worlds.daemons import CONFIG, NOW_US, SERVICES, TIMERS
from tests.worlds.web import config_of

FIRED_BY = models.timer_entries(CONFIG, TIMERS, {})
ENTRIES = models.service_entries(CONFIG, SERVICES, FIRED_BY, {})


def _ids(asked: TableQuery) -> list[str]:
    return [row.service.id for row in models.table_of(models.SERVICES, ENTRIES, asked).rows]


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        (TableQuery(), ["web", "backup", "mail"]),
        (TableQuery(text="SITE the"), ["web"]),
        (TableQuery(text="code 3"), ["backup"]),
        (TableQuery(text="nothing of the kind"), []),
        (TableQuery(only="disabled"), ["mail"]),
        (TableQuery(sort="name"), ["backup", "mail", "web"]),
        (TableQuery(sort="name", is_down=True), ["web", "mail", "backup"]),
        (TableQuery(sort="since"), ["backup", "web", "mail"]),
        (TableQuery(sort="since", is_down=True), ["web", "backup", "mail"]),
        (TableQuery(sort="state"), ["backup", "web", "mail"]),
    ],
)
def test_services_table(asked: TableQuery, ids: list[str]) -> None:
    """Services are filtered by every word and sorted either way; what has no value is always last."""
    assert _ids(asked) == ids


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ({}, TableQuery()),
        (
            {"q": "x", "sort": "name", "dir": "down", "only": "failed", "page": "3"},
            TableQuery("x", "failed", "name", True, 3),
        ),
        ({"sort": "__class__", "only": "x", "dir": "sideways"}, TableQuery()),
        ({"page": "0"}, TableQuery(page=0)),
        ({"page": "-1"}, TableQuery()),
        ({"page": "²"}, TableQuery()),
        ({"page": "9999999"}, TableQuery()),
        ({"q": "x" * 5000}, TableQuery("x" * 200)),
    ],
)
def test_table_query(query: Mapping[str, str], asked: TableQuery) -> None:
    """What makes no sense in a query is left out."""
    assert models.table_query(query, models.SERVICES) == asked


def test_pages_of_a_table() -> None:
    """A table of thousands is shown by the hundred, and a page beyond the last is the last."""
    config = config_of(1000)
    entries = models.timer_entries(config, {}, {})
    table = models.table_of(models.TIMERS, entries, TableQuery(text="job-", page=99))
    assert (table.found, table.total, table.pages) == (1000, 1006, 10)
    assert (table.asked.page, table.first, len(table.rows)) == (10, 900, 100)
    assert models.table_of(models.TIMERS, entries, TableQuery(page=0)).first == 0


def test_actions_fit_the_state() -> None:
    """What runs can be stopped, what stands can be started, and what is disabled neither."""
    assert [[action.name for action in entry.actions] for entry in ENTRIES] == [
        ["stop"],
        ["start"],
        [],
    ]
    names = [[action.name for action in entry.actions] for entry in FIRED_BY]
    assert names == [["trigger", "disable"], ["trigger", "enable"]]


def test_every_action_is_an_operation() -> None:
    """No button asks for what the daemon does not know."""
    from duly.daemon.operations import OPERATIONS  # noqa: PLC0415 - only here

    assert models.ACTIONS.keys() == models.NOUNS.keys() >= {*models.UNDONE_BY, *models.UNDONE_BY.values()}
    for name, noun in models.NOUNS.items():
        assert noun == "tasks" or not OPERATIONS[name].is_read


def test_retry_comes_before_the_schedule() -> None:
    """What comes next of a timer is its retry, if that is sooner."""
    (first,) = models.next_runs(FIRED_BY, NOW_US, 5)
    assert (first.id, first.at_us, first.is_retry) == ("backup", TIMERS["backup"].retry_at_us, True)


def test_unknown_states_are_shown_as_they_are() -> None:
    """A state that a later daemon has is shown by its word."""
    entry = models.ServiceEntry(Service("a", ("b",)), views.ServiceSnapshot(id="a", state="dreaming"), None)
    assert entry.mark.word == "dreaming"


def test_health_is_the_state_of_an_entry() -> None:
    """What is wrong with a job is shown of it and of its timers, and comes first in a list."""
    hung = EntryState("hung", "service", "backup", NOW_US, "service backup hangs")
    states = {("service", "backup"): hung}
    timers = models.timer_entries(CONFIG, TIMERS, states)
    services = models.service_entries(CONFIG, SERVICES, timers, states)
    assert [entry.kind for entry in services] == ["running", "hung", "disabled"]
    assert {entry.kind for entry in timers if entry.timer.target == "backup"} == {"hung"}
    table = models.table_of(models.SERVICES, services, TableQuery(sort="state"))
    assert [row.id for row in table.rows] == ["backup", "web", "mail"]
    assert models.table_of(models.SERVICES, services, TableQuery(only="hung")).found == 1


@pytest.mark.parametrize(
    ("lengths", "usual"),
    [((), (None, None)), ((7,), (7, 7)), ((1, 9), (1, 9)), (tuple(range(1, 21)), (10, 19))],
)
def test_usual_lengths(lengths: tuple[int, ...], usual: tuple[int | None, int | None]) -> None:
    """Half of all runs take no longer than the one, and 19 in 20 no longer than the other."""
    assert models.usual_lengths(lengths) == usual
