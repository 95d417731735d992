"""A table that does one thing wrong does not pass the suite: the model of it, and every statement in SQL."""

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files

import pytest

from duly.cluster.statements import script_file
from tests.conformance.table_suite import NOW_US, TableConformance, World, join
from tests.conformance.test_table_lives import are_told_apart
from tests.conformance.test_tables import PostgresWorld
from tests.worlds import model_table as model
from tests.worlds.model_table import ModelDatabase

FAULTS = [
    # heartbeats
    ("node.seq >= request.acked", "True"),
    ("            node.beat += 1\n", ""),
    ("            node.seq += node.server == self.database.server\n", ""),
    ("            node.server = self.database.server\n", ""),
    ("if n.id != me", ""),
    # fences
    ("or node.beat != request.beat", ""),
    ("or node.fenced_us is not None:\n            return None", "or False:\n            return None"),
    ("            row.interruptions += 1\n", ""),
    (" + back_off_us(row.interruptions, node.lease_us)", ""),
    ("row.started_us if is_latest else row.cut_us", "row.started_us"),
    ("        row.token += 1\n", ""),
    ("        if row.removed:\n            del self.space.rows[row.id]\n", ""),
    ("        if request.timeline == self.database.timeline:\n    ", ""),
    ("if not self._run_by(request.node):", "if True:"),
    # claims
    ("or is_forgotten or node.fenced_us is not None or", "or is_forgotten or"),
    ("node is None or is_forgotten or", "node is None or"),
    (" or node.server != server:", ":"),
    ("space.timeline == self.database.timeline and all", "all"),
    (" and all(n.server == server for n in space.living())", ""),
    ("        node.seq += 1\n        written", "        written"),
    ("[: request.limit], *suspects", ", *suspects"),
    ("key=lambda row: row.wake_us", "key=lambda row: -row.wake_us"),
    ("row.run_by is None and not row.paused", "not row.paused"),
    ("row.run_by is None and not row.paused", "row.run_by is None"),
    ("suspects[: request.with_suspect and request.limit > 0]", "suspects[: request.limit]"),
    ("suspects[: request.with_suspect and request.limit > 0]", "suspects[:1]"),
    ("max(row.token + 1, now_us)", "now_us"),
    ("max(row.token + 1, now_us)", "row.token + 1"),
    # ends
    ("(row.token, row.started_us) != (end.token, end.started_us)", "row.token != end.token"),
    ("(row.token, row.started_us) != (end.token, end.started_us)", "row.started_us != end.started_us"),
    ("        if row.hash == end.hash:", "        if True:"),
    ("            row.state = row.state if end.state is None else end.state\n", ""),
    ("row.request is not None and row.request != end.request", "False"),
    ("            row.request = None\n", "            pass\n"),
    ("        if end.state is not None:\n", "        if True:\n"),
    ("        if end.run is not None:", "        if False:"),
    # coming back
    ("                self._declare_dead(before, request.name)\n", "                pass\n"),
    ("                row.run_by = request.node\n", ""),
    ("                self._cut(row, self.database.now_us)\n", "                pass\n"),
    ("            self._end(self._named(end), end, request.name)\n", "            pass\n"),
    ("        for row in self._run_by(*request.before):\n            self._release(row)\n", ""),
    ("row.token == end.token and row.run_by in", "row.run_by in"),
    ("row.token < end.token and row.hash == end.hash", "row.token < end.token"),
    ("row.token < end.token or row.started_us", "row.started_us"),
    ("or row.started_us == end.started_us", ""),
    ("        if has_forgotten:\n", "        if False:\n"),
    ("(0 if first is None else first.seq) < request.acked", "first is None"),
    ("row.token == end.token and row.run_by in request.before", "row.token == end.token"),
    # limits and targets
    ("busy < room.size", "True"),
    ("row.run_by == request.node and busy", "busy"),
    ("room.limit, room.record", "room.limit, None"),
    ("row.target is not None and row.limited_by is None", "False"),
    ("row.limited_by or row.target", "row.limited_by"),
    # lists
    (" and others and not request.replace", " and False"),
    (" and others and not request.replace", " and not request.replace"),
    ("        if row.run_by is None:\n            del", "        if True:\n            del"),
    ("if row.gen > request.after", ""),
    # one row
    ("row.paused = request.is_paused", "row.paused = True"),
    ("[*asked, *({request.text} - {*asked})]", "[request.text]"),
    ("({request.text} - {*asked})", "{request.text}"),
    ("row.wake_us = 0\n        return bool(rows)", "pass\n        return bool(rows)"),
    ("row.kind, row.enabled = request.kind, None", "_, row.enabled = request.kind, None"),
    ("row.kind in {None, *request.kinds}", "True"),
    # looking
    ("if node.fenced_us is None else node.taken", ""),
    ("_by_start(past) < _by_start(one)", "True"),
    ("sorted(self.space.runs, key=_by_start, reverse=True)", "reversed(self.space.runs)"),
    ("request.run == (past.node, past.run.run_id)", "True"),
    ("past.run.output is not None", "True"),
    ("past.started_us >= request.since_us", "True"),
    ("past.run.ended_us < request.before_us][: request.limit]", "past.run.ended_us < request.before_us]"),
]


SUBTLE_FAULTS = [
    ("row.gen <= request.gen or row.id in also", "True"),
    ("min(row.wake_us, now_us) if is_ahead", "row.wake_us if is_ahead"),
    ("max(now_us, request.due_us or now_us)", "now_us"),
    ("row.limited_by = row.record = None\n        return", "pass\n        return"),
    (" and not r.target)", ")"),
    ("row.gen, row.removed, row.kind = put", "_, row.removed, row.kind = put"),
    ("self.space.generation += row.kind is None", "pass"),
    ("node is not None and node.fenced_us is None and node.seq >=", "node is not None and node.seq >="),
    ("row.run_by = row.started_us = None", "row.run_by = None"),
    ("row.gen <= request.gen or row.id in also", "row.gen <= request.gen"),
    ("if row.wake_us > now_us), None)", "), None)"),
    ("row.cut_us, row.interruptions = None, 0\n        self._release", "pass\n        self._release"),
    ("row.token < end.token and row.hash == end.hash", "row.hash == end.hash"),
    ("if space.generation != request.base:", "if False:"),
    ("row.removed, row.kind = put.target, gen, False", "_, row.kind = put.target, gen, False"),
    ("row.enabled, row.request = request.enabled,", "_, row.request = request.enabled,"),
    ("min(row.wake_us, self.database.now_us)\n        return", "row.wake_us\n        return"),
    ("self.space.startup_us = request.at_us", "pass"),
]
"""What no test of the suite notices: a random life tells such a model from PostgreSQL."""


def stories() -> Iterator[tuple[Callable[..., None], dict[str, object]]]:
    """All tests of the suite, with their parameters."""
    suite = TableConformance()
    for name in dir(suite):
        if name.startswith("test_"):
            story = getattr(suite, name)
            marks = [mark for mark in getattr(story, "pytestmark", []) if mark.name == "parametrize"]
            yield from ((story, {mark.args[0]: value}) for mark in marks for value in mark.args[1])
            if not marks:
                yield story, {}


def is_passed(world: World, story: Callable[..., None], parameters: dict[str, object]) -> bool:
    """Whether a test of the suite finds nothing."""
    wanted = inspect.signature(story).parameters
    try:
        table = world.table()
        join(table, 1)
        given = {"world": world, "table": table} | parameters
        story(**{name: value for name, value in given.items() if name in wanted})
    except Exception:
        return False
    return True


def module_with(change: tuple[str, str]) -> types.ModuleType:
    source = inspect.getsource(model)
    assert change[0] in source, change[0]
    module = types.ModuleType("duly.testing.broken_table")
    sys.modules[module.__name__] = module  # where dataclasses look for it
    exec(compile(source.replace(*change, 1), "broken", "exec"), module.__dict__)
    return module


def test_model_passes() -> None:
    """Without a fault every test passes."""
    module = module_with(("", ""))
    assert [
        story for story, values in stories() if not is_passed(module.ModelDatabase(NOW_US), story, values)
    ] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0].strip()[:40]}")
def test_fault_is_noticed(fault: tuple[str, str]) -> None:
    """Some test of the suite fails."""
    module = module_with(fault)
    assert any(not is_passed(module.ModelDatabase(NOW_US), story, values) for story, values in stories())


# --- SQL ---

LIFE = "random life"
SQL_FAULTS = [
    ("after_claim", "wake_us > (SELECT", "wake_us < (SELECT", "claim_gives_due_rows"),
    ("ask", "THEN request\n", "THEN request || ';' || %(text)s\n", "ask"),
    ("cancel", "SET cancelled = token", "SET cancelled = token + 1", "cancel"),
    ("claim", "run_by IS NULL AND NOT paused", "NOT paused", "claim_gives_due_rows"),
    ("claim", "AND {is_open}", "", "claims_wait_until_all_have_checked"),
    ("claim", "AND {is_mine} AND interruptions <", "AND interruptions <", LIFE),
    ("claim", "LIMIT %(suspects)s", "LIMIT 9", "suspects_are_claimed_one_at_a_time"),
    ("claim", "greatest(token + 1, ready.now_us)", "token + 1", "tokens_rise"),
    ("claim", "limited_by = NULL", "limited_by = task.limited_by", LIFE),
    ("cut_off", "{is_cut} AND", "", "history_of_targets_that_are_cut_off"),
    ("cut_off", "OR task.record IS NOT NULL", "", "history_of_targets_that_are_cut_off"),
    ("come_back", "coalesce(node.fenced_us, excluded.fenced_us)", "NULL", "late_statements_of_the_old_id"),
    ("digest", " AND kind IS NULL", "", "put_one"),
    ("ends", "task.token = given.token AND ", "", "end_after_a_fence"),
    ("ends", "WHERE record IS NOT NULL", "WHERE false", "history"),
    ("ends", "given.wake_us ELSE task.wake_us", "given.wake_us ELSE 0", "end_of_an_overridden_task"),
    ("fence", "AND beat = %(beat)s AND", "AND", "fence_names_the_counter"),
    ("fence", "interruptions = interruptions + 1,", "interruptions = interruptions,", "back_off"),
    ("fence", "AND task.limited_by IS NULL", "", "fence_of_what_was_only_looked_at"),
    ("forgotten", "{has_forgotten}", "false", "come_back_says_whether_it_has_forgotten"),
    ("heartbeat", "beat = beat + 1,", "", "claim_raises_the_sequence_number_alone"),
    ("heartbeat", " AND seq >= %(acked)s", "", "heartbeat_on_a_server_that_forgot"),
    ("join", "fenced_us < {schema}.now_us() - %(kept_us)s", "true", "fenced_nodes_are_forgotten"),
    ("leave", " AND NOT EXISTS", " AND EXISTS", "leave"),
    ("list", " AND NOT removed", "", "run_of_a_removed_task"),
    ("look_again", "token > clock.now_us + %(look_again_us)s", "true", LIFE),
    ("me", " AND seq >= %(acked)s", "", "late_check_hides_nothing"),
    ("nodes", "CASE WHEN fenced_us IS NULL THEN", "CASE WHEN true THEN", "read_nodes"),
    ("open_timeline", " AND {schema}.timeline() = %(timeline)s", "", "claims_wait_for_the_timeline"),
    ("pause", " AND name = %(name)s", "", "claim_passes_over"),
    ("prune", "AND ended_us < %(before_us)s", "", "prune"),
    ("prune_each", "OFFSET %(keep)s", "OFFSET %(keep)s + 1", "prune_each"),
    ("pulse", "AND target IS NULL AND", "AND", LIFE),
    ("pulse", " AND fenced_us IS NULL AND id <> %(node)s", "", LIFE),
    ("put_one", "THEN task.state ELSE", "THEN excluded.state ELSE", "an_entry_keeps_its_state"),
    ("reconcile", "AND name <> ALL(%(removed)s::text[])", "", "list_that_orphans_everything"),
    ("reconcile", "gen = space.generation, definition", "definition", LIFE),
    ("relabel", "SET run_by = %(node)s,", "SET run_by = task.run_by,", "come_back"),
    ("relabel", "coalesce(task.limited_by, task.target)", "NULL", "target_of_a_forgotten_run"),
    ("relabel", "coalesce(task.limited_by, task.target)", "task.limited_by", "target_of_a_forgotten_run"),
    ("remove_one", "generation = generation + 1", "generation = generation", LIFE),
    ("restore", "AND {has_forgotten};", "AND false;", "come_back_to_a_server_that_forgot"),
    ("runs", "started_us >= %(since_us)s", "true", "history_by_start"),
    ("buckets", "started_us < %(to_us)s", "true", "history"),
    ("start_up", "= %(at_us)s", "= NULL", LIFE),
    ("switch", "least(wake_us, {schema}.now_us())", "wake_us", LIFE),
    ("take_room", "given.place + coalesce(busy.runs, 0)", "given.place", "room_in_a_limit"),
    ("take_room", "record = given.record", "record = NULL", "history_of_targets_that_are_cut_off"),
    ("tasks", "task.name = %(name)s)", "true)", "claim_gives_due_rows"),
]
"""A script, a change of it, and the test of the suite that notices, or LIFE."""
UNJUDGED = {"found", "identify", "incoming", "look", "oldest_xmin", "rights", "schema", "settings", "source"}
"""Scripts that open a store, or of which others are made; no request of the suite asks for them."""


@pytest.mark.parametrize("fault", SUBTLE_FAULTS, ids=lambda fault: f"{fault[0].strip()[:40]}")
def test_subtle_fault_is_noticed(postgres_url: str, fault: tuple[str, str]) -> None:
    """Some answer of a random life is another one than that of PostgreSQL."""
    assert are_told_apart(module_with(fault).ModelDatabase, postgres_url)


@pytest.mark.parametrize("fault", SQL_FAULTS, ids=lambda fault: f"{fault[0]}-{fault[3]}")
def test_fault_in_a_statement_is_noticed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, str, str, str]
) -> None:
    """A test of the suite that passes fails when one thing in the SQL is wrong, or a random life differs."""
    script, old, new, test = fault
    text = script_file(script)
    assert old in text

    def is_noticed() -> bool:
        story, values = next(each for each in stories() if each[0].__name__ == f"test_{test}")
        with closing(PostgresWorld(postgres_url, postgres_url)) as world:
            return not is_passed(world, story, values)

    assert test == LIFE or not is_noticed()
    changed = text.replace(old, new, 1)
    monkeypatch.setattr(
        "duly.cluster.statements.script_file", lambda name: changed if name == script else script_file(name)
    )
    assert are_told_apart(ModelDatabase, postgres_url) if test == LIFE else is_noticed()


def test_every_statement_has_a_fault() -> None:
    """No statement that the suite judges is left out."""
    scripts = {path.name.removesuffix(".sql") for path in files("duly.cluster").joinpath("sql").iterdir()}
    assert {script for script, *_ in SQL_FAULTS} == scripts - UNJUDGED
