"""The suite that every table passes: what the requests of `duly.cluster.table` mean.

For a table of your own, subclass `TableConformance` in a test module and give it a fixture `world`: an empty
database whose time and server the suite changes.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import pytest

from duly.cluster import table as t
from duly.errors import StoreError
from duly.instant import SECOND_US, Instant
from tests.worlds.model_table import back_off_us

replace = msgspec.structs.replace

NOW_US = 1_700_000_000 * SECOND_US
LEASE_US = 6 * SECOND_US
HOUR_US = 3600 * SECOND_US


class World(Protocol):
    """A database for tables."""

    now_us: Instant

    def table(self, namespace: str = "default") -> t.ClusterTable: ...

    def advance(self, by_us: int) -> None: ...

    def restart(self) -> None:
        """Have another server answer that has forgotten nothing."""
        ...

    def snapshot(self) -> Any: ...

    def forget(self, snapshot: Any) -> None:
        """Promote a standby that has only what is in *snapshot*."""
        ...


def join(table: t.ClusterTable, *nodes: int) -> list[t.Pulse]:
    return [table.do(t.Join(node=n, name=f"n{n}", lease_us=LEASE_US, version="1")) for n in nodes]


def fence(table: t.ClusterTable, node: int, beat: int = 0, by: str = "n1") -> list[str] | None:
    runs = table.do(t.Fence(by=by, node=node, beat=beat))
    return None if runs is None else sorted(run.name for run in runs)


def beat(table: t.ClusterTable, node: int, acked: int = 0, gen: int = 100) -> t.Pulse:
    return table.do(t.Heartbeat(node=node, acked=acked, gen=gen))


def put(name: str, **changes: Any) -> t.Put:
    """A task that is due."""
    return t.Put(name, 7, f"definition of {name}", "before", NOW_US)._replace(**changes)


def reconcile(
    table: t.ClusterTable, *puts: t.Put, removed: Sequence[str] = (), **options: Any
) -> t.ListOutcome:
    """Change the list, as node 1 does."""
    base = table.do(t.ReadDigest()).generation
    values: dict[str, Any] = {"node": 1, "put": puts, "removed": removed, "base": base}
    return table.do(t.Reconcile(**values | options))


def claim(table: t.ClusterTable, node: int = 1, *ends: t.RowEnd, **options: Any) -> t.Work:
    """Write *ends*, and claim what is due."""
    values: dict[str, Any] = {"node": node, "gen": 100, "ends": ends, "limit": 10}
    return table.do(t.Claim(**values | options))


def claimed(table: t.ClusterTable, node: int = 1, *ends: t.RowEnd, **options: Any) -> list[t.Claimed]:
    """The rows that were claimed, by name."""
    return sorted(claim(table, node, *ends, **options).claimed, key=lambda row: row.name)


def take(
    table: t.ClusterTable,
    *rows: t.Claimed,
    node: int = 1,
    limit: str = "t",
    size: int = 1,
    said: t.RunRecord | None = None,
) -> list[int] | None:
    """Take room for rows; the ids of those that got it."""
    rooms = [t.Room(row.id, limit, size, said) for row in rows]
    taken = table.do(t.TakeRoom(node=node, rooms=rooms))
    return None if taken is None else sorted(taken)


def names(rows: Sequence[t.Claimed]) -> list[str]:
    return [row.name for row in rows]


def end(row: t.Claimed, **changes: Any) -> t.RowEnd:
    """The end of a run that is due again in an hour."""
    end = t.RowEnd(row.id, row.name, row.hash, row.token, row.started_us, "after", NOW_US + HOUR_US)
    return replace(end, **changes)


def release(row: t.Claimed, **changes: Any) -> t.RowEnd:
    """The row as it was, without a run."""
    return end(row, state=None, wake_us=NOW_US, **changes)


def record(number: int = 1, **changes: Any) -> t.RunRecord:
    """A run for the history."""
    values: dict[str, Any] = {
        "run_id": f"run {number}",
        "cause": "cron",
        "called_us": NOW_US,
        "result": "success",
    }
    return t.RunRecord(**values | {"ended_us": NOW_US + number} | changes)


def come_back(table: t.ClusterTable, **options: Any) -> list[str]:
    """Let node 1 come back as node 11; the names of the runs that it has still."""
    who: dict[str, Any] = {"before": [1], "node": 11, "name": "n1", "lease_us": LEASE_US, "version": "1"}
    return sorted(name for name, _id in table.do(t.ComeBack(**who | options)).kept)


def task(table: t.ClusterTable, name: str = "a") -> t.TaskView:
    (view,) = table.do(t.ReadTasks(name=name))
    return view


def is_free(table: t.ClusterTable, name: str = "a") -> bool:
    return task(table, name).run_by is None


def interrupt(world: World, table: t.ClusterTable, times: int, *, node: int = 50) -> None:
    """Have so many nodes die one after the other with all that is due."""
    for number in range(node, node + times):
        join(table, number)
        claim(table, number, now_us=world.now_us + 2 * HOUR_US)
        fence(table, number)


class TableConformance:
    """What a table must do. Subclass it and give it the fixture `world`."""

    @pytest.fixture
    def table(self, world: World) -> t.ClusterTable:
        """A table with node 1."""
        table = world.table()
        join(table, 1)
        return table

    # --- being a node ---

    def test_join_shows_the_database(self, table: t.ClusterTable) -> None:
        """Who joins sees the time, the server, its timeline, which is open, and the other nodes."""
        (pulse,) = join(table, 2)
        assert (pulse.now_us, pulse.has_forgotten, pulse.open_timeline) == (NOW_US, False, pulse.timeline)
        assert [tuple(peer) for peer in pulse.peers] == [(1, "n1", 0, LEASE_US)]
        assert pulse.seq is not None
        assert pulse.next_wake_us is None
        assert beat(table, 1).server == pulse.server

    def test_claim_raises_the_sequence_number_alone(self, table: t.ClusterTable) -> None:
        """A claim is no heartbeat, but the server has forgotten if it lacks one."""
        join(table, 2)
        before = beat(table, 1).seq or 0
        seq = claim(table).seq
        assert seq is not None
        assert seq > before
        assert beat(table, 1, seq).has_forgotten is False
        assert beat(table, 2).peers[0].beat == 2

    def test_heartbeat_on_a_server_that_forgot(self, world: World, table: t.ClusterTable) -> None:
        """A row that is older than what was acknowledged, or missing, is not touched and not trusted."""
        old = world.snapshot()
        seq = beat(table, 1).seq or 0
        join(table, 2)
        world.forget(old)
        for node, acked in ((1, seq), (2, 1)):
            pulse = beat(table, node, acked)
            assert (pulse.seq, pulse.has_forgotten) == (None, True)
            assert claim(table, node).seq is None
        assert not beat(table, 1, seq - 1).has_forgotten

    def test_leave(self, table: t.ClusterTable) -> None:
        """Who leaves is no node any more; who has runs against all rules stays, so that it can be fenced."""
        join(table, 2, 3)
        reconcile(table, put("a"))
        claim(table, 2)
        for node in (2, 3):
            table.do(t.LeaveCluster(node=node))
        assert [peer.node for peer in beat(table, 1).peers] == [2]
        assert claim(table, 3).seq is None
        assert fence(table, 2) == ["a"]

    def test_namespaces_do_not_see_each_other(self, world: World, table: t.ClusterTable) -> None:
        """Tasks, nodes and runs of one namespace are nothing to another."""
        other = world.table("billing")
        join(other, 2)
        reconcile(table, put("a"))
        (row,) = claimed(table)
        claim(table, 1, end(row, run=record()))
        assert other.do(t.ReadDigest()).rows == 0
        assert other.do(t.ReadRuns()) == []
        assert beat(other, 2).peers == []
        assert len(other.do(t.ReadNodes())[1]) == 1
        reconcile(other, put("a", state="other"), node=2)
        assert [row.state for row in claimed(other, 2)] == ["other"]
        assert task(table).state == "after"

    # --- claims ---

    def test_claim_gives_due_rows(self, table: t.ClusterTable) -> None:
        """A claimed row comes as it was before, with a token and the time of its start."""
        reconcile(table, put("a", hash=-5), put("b", wake_us=NOW_US + 1))
        work = claim(table)
        (row,) = work.claimed
        assert row == t.Claimed(row.id, "a", -5, row.token, "before", NOW_US, None, 0, None, NOW_US)
        assert (work.now_us, work.is_open, work.next_wake_us) == (NOW_US, True, NOW_US + 1)
        view = t.TaskView("a", "definition of a", "before", NOW_US, False, "n1", NOW_US, row.token, 0, None)
        assert task(table) == view
        assert claimed(table) == []

    def test_claim_takes_the_oldest_up_to_the_limit(self, table: t.ClusterTable) -> None:
        """Of more rows than the limit the oldest are claimed."""
        reconcile(table, *(put(f"t{n}", wake_us=NOW_US - (n * 7) % 5) for n in range(5)))
        assert names(claimed(table, limit=2)) == ["t2", "t4"]
        assert names(claimed(table, limit=0)) == []
        assert names(claimed(table)) == ["t0", "t1", "t3"]

    def test_every_node_has_its_share(self, table: t.ClusterTable) -> None:
        """However many nodes there are, each gets of what is due, and nobody what another has."""
        nodes = range(1, 101)
        join(table, *nodes[1:])
        reconcile(table, *(put(f"t{n:03}") for n in nodes))
        got = [names(claimed(table, node, limit=1)) for node in nodes]
        assert sorted(got) == [[f"t{n:03}"] for n in nodes]

    def test_tokens_rise(self, world: World, table: t.ClusterTable) -> None:
        """Every claim has a larger token than all before it, also if the clock was set back."""
        reconcile(table, put("a"))
        tokens = []
        for by_us in (0, SECOND_US, -5 * SECOND_US, -5 * SECOND_US):
            world.advance(by_us)
            (row,) = claimed(table, now_us=NOW_US + HOUR_US + by_us)
            tokens.append(row.token)
            claim(table, 1, release(row), limit=0)
        assert tokens == sorted(set(tokens))
        assert tokens[0] >= NOW_US + HOUR_US

    def test_claim_passes_over(self, table: t.ClusterTable) -> None:
        """What is paused, runs already, is not yet due or was removed is not claimed; resumed it is."""
        reconcile(table, *(put(name) for name in "abc"), put("d", wake_us=NOW_US + 1))
        assert table.do(t.SetPaused(name="a", is_paused=True))
        assert not table.do(t.SetPaused(name="x", is_paused=True))
        assert task(table).paused
        join(table, 2)
        (row,) = claimed(table, 2, limit=1)
        table.do(t.RemoveOne(name=row.name))
        assert names(claimed(table)) == sorted({"b", "c"} - {row.name})
        assert table.do(t.SetPaused(name="a", is_paused=False))
        assert names(claimed(table)) == ["a"]

    def test_suspects_are_claimed_one_at_a_time(self, world: World, table: t.ClusterTable) -> None:
        """Of the rows that were interrupted often one is claimed beside the others, or none."""
        reconcile(table, *(put(name) for name in "abc"))
        interrupt(world, table, t.SUSPECT_FROM)
        reconcile(table, put("x"), put("y"))
        assert names(claimed(table, with_suspect=False)) == ["x", "y"]
        assert [claim(table).claimed[0].interruptions for _ in range(3)] == [t.SUSPECT_FROM] * 3
        assert claimed(table) == []

    @pytest.mark.parametrize("case", ["fenced", "unknown", "unchecked"])
    def test_claim_is_refused(self, world: World, table: t.ClusterTable, case: str) -> None:
        """A node that is fenced, unknown, or has not checked this server claims nothing and ends nothing."""
        reconcile(table, put("a"), put("b"))
        (row,) = claimed(table, limit=1)
        if case == "fenced":
            fence(table, 1, by="n2")
        if case == "unchecked":
            world.restart()
        before, runs = task(table, row.name), table.do(t.ReadRuns())
        work = claim(table, 9 if case == "unknown" else 1, end(row, run=record()))
        assert (work.seq, *work.written, *work.claimed) == (None,)
        assert task(table, row.name) == before
        assert table.do(t.ReadRuns()) == runs

    def test_claims_wait_until_all_have_checked(self, world: World, table: t.ClusterTable) -> None:
        """After a restart ends are written at once, and rows claimed when every living node has checked."""
        join(table, 2, 3)
        reconcile(table, put("a"), put("b"))
        (row,) = claimed(table, limit=1)
        seq = beat(table, 1).seq or 0
        world.restart()
        assert not beat(table, 1, seq).has_forgotten
        work = claim(table, 1, end(row))
        assert (work.written, work.claimed, work.is_open) == ([row.id], [], False)
        beat(table, 2)
        assert claimed(table) == []
        fence(table, 3)
        work = claim(table)
        assert (len(work.claimed), work.is_open) == (1, True)

    def test_claims_wait_for_the_timeline(self, world: World, table: t.ClusterTable) -> None:
        """After a promotion rows are claimed when somebody has opened the new timeline."""
        reconcile(table, put("a"))
        old = beat(table, 1).timeline
        world.forget(world.snapshot())
        pulse = beat(table, 1)
        assert (pulse.open_timeline, pulse.timeline != old) == (old, True)
        table.do(t.OpenTimeline(timeline=old))
        assert (claim(table).is_open, claimed(table)) == (False, [])
        table.do(t.OpenTimeline(timeline=pulse.timeline))
        assert beat(table, 1).open_timeline == pulse.timeline
        table.do(t.OpenTimeline(timeline=old))
        assert names(claimed(table)) == ["a"]

    def test_namespace_that_a_promoted_server_lacks(self, world: World) -> None:
        """It may be forgotten, with runs that go on: claims wait until somebody has opened it."""
        table = world.table("other")
        world.forget(world.snapshot())
        (pulse,) = join(table, 1)
        reconcile(table, put("a"))
        assert pulse.open_timeline != pulse.timeline
        assert claimed(table) == []
        table.do(t.OpenTimeline(timeline=pulse.timeline))
        assert names(claimed(table)) == ["a"]

    # --- ends ---

    def test_release(self, world: World, table: t.ClusterTable) -> None:
        """A row that was not called keeps its state and its interruptions, and gets a wake."""
        reconcile(table, put("a"))
        interrupt(world, table, 1)
        (row,) = claimed(table)
        claim(table, 1, replace(release(row), wake_us=NOW_US + 5))
        view = task(table)
        assert (view.state, view.wake_us, view.run_by, view.interruptions) == ("before", NOW_US + 5, None, 1)
        (again,) = claimed(table, now_us=NOW_US + 5)
        assert again.cut_us == row.cut_us == NOW_US + 2 * HOUR_US

    @pytest.mark.parametrize("change", ["token", "started_us", "id"])
    def test_end_of_another_run(self, table: t.ClusterTable, change: str) -> None:
        """An end with another token, start or id is not written, nor in the history."""
        reconcile(table, put("a"))
        (row,) = claimed(table)
        wrong = end(row, run=record())
        wrong = replace(wrong, **{change: getattr(wrong, change) + 1})
        assert claim(table, 1, wrong).written == []
        assert task(table)[2:7] == ("before", NOW_US, False, "n1", NOW_US)
        assert table.do(t.ReadRuns()) == []

    def test_end_of_an_overridden_task(self, table: t.ClusterTable) -> None:
        """The run of an older definition is recorded and leaves the new state alone."""
        reconcile(table, put("a"))
        (row,) = claimed(table)
        reconcile(table, put("a", hash=8, state="new", wake_us=NOW_US + 9))
        assert task(table).run_by == "n1"
        assert claim(table, 1, end(row, run=record())).written == [row.id]
        view = task(table)
        assert (view.state, view.wake_us, view.run_by) == ("new", NOW_US + 9, None)
        assert len(table.do(t.ReadRuns())) == 1

    @pytest.mark.parametrize("how", ["end", "fence", "return"])
    def test_run_of_a_removed_task(self, world: World, table: t.ClusterTable, how: str) -> None:
        """The run of a removed task goes on; however it ends, the row is gone with it."""
        reconcile(table, put("a"), put("b", wake_us=NOW_US + 1))
        (row,) = claimed(table)
        assert reconcile(table, removed=["a"]).orphaned == [("a", "before")]
        assert [listed.name for listed in table.do(t.ReadList())] == ["b"]
        join(table, 2)
        if how == "end":
            assert claim(table, 1, end(row, run=record()), limit=0).written == [row.id]
        elif how == "fence":
            assert fence(table, 1, by="n2") == ["a"]
        else:
            come_back(table, cut=[end(row)])
        assert [past.name for past in table.do(t.ReadRuns())] == ["a"]
        assert claimed(table, 2) == []
        world.advance(SECOND_US)
        assert reconcile(table, put("a", state="fresh")).added == ["a"]
        assert [again.token > row.token for again in claimed(table, 2, wanted=["a"])][:1] == [True]

    # --- fences ---

    def test_fence(self, world: World, table: t.ClusterTable) -> None:
        """A fenced node loses its runs, which are due at once to be started once more."""
        join(table, 2)
        reconcile(table, *(put(name) for name in "ab"), put("c", wake_us=NOW_US + HOUR_US))
        rows = claimed(table, 2)
        world.advance(SECOND_US)
        assert fence(table, 2) == ["a", "b"]
        view = task(table)
        assert (view.state, view.wake_us, view.run_by) == ("before", world.now_us, None)
        assert view.token > rows[0].token
        assert view.interruptions == 1
        again = claimed(table)
        assert [(row.cut_us, row.interruptions) for row in again] == [(NOW_US, 1)] * 2
        assert all(row.token > before.token for row, before in zip(again, rows, strict=True))

    def test_fence_names_the_counter(self, table: t.ClusterTable) -> None:
        """A node that has sent a heartbeat meanwhile is not fenced, nor is one that is unknown."""
        join(table, 2)
        reconcile(table, put("a"))
        claim(table, 2)
        beat(table, 2)
        assert fence(table, 2) is None
        assert fence(table, 3) is None
        assert (task(table).run_by, task(table).interruptions) == ("n2", 0)
        assert fence(table, 2, 1) == ["a"]
        assert fence(table, 2, 1, by="n3") is None
        assert task(table).interruptions == 1

    def test_end_after_a_fence(self, table: t.ClusterTable) -> None:
        """A fenced node records nothing, and its successor's end counts."""
        join(table, 2)
        reconcile(table, put("a"))
        (row,) = claimed(table, 2)
        fence(table, 2)
        (again,) = claimed(table)
        assert claim(table, 2, end(row, state="late", run=record())).seq is None
        assert claim(table, 1, end(row, state="late")).written == []
        assert claim(table, 1, end(again)).written == [row.id]
        assert task(table).state == "after"

    def test_second_interruption_keeps_the_first_start(self, world: World, table: t.ClusterTable) -> None:
        """A restart that is cut off, too, is still the run that began first."""
        reconcile(table, put("a"))
        interrupt(world, table, 1)
        world.advance(SECOND_US)
        interrupt(world, table, 1, node=60)
        (row,) = claimed(table)
        assert (row.cut_us, row.interruptions) == (NOW_US + 2 * HOUR_US, 2)

    def test_back_off(self, world: World, table: t.ClusterTable) -> None:
        """From the third interruption on a restart waits, each time twice as long."""
        reconcile(table, put("a"))
        for times in range(1, t.BACK_OFF_FROM + 3):
            interrupt(world, table, 1, node=50 + times)
            assert task(table).wake_us == world.now_us + back_off_us(times, LEASE_US)
        assert back_off_us(t.BACK_OFF_FROM + 2, LEASE_US) == 4 * LEASE_US
        interrupt(world, table, 12, node=70)
        assert task(table).wake_us == world.now_us + HOUR_US

    # --- coming back ---

    def test_come_back(self, table: t.ClusterTable) -> None:
        """Kept runs go on, ends are written, cut runs are started once more, others are free."""
        reconcile(table, *(put(name) for name in "abcd"))
        a, b, c, d = claimed(table)
        kept = come_back(table, kept=[end(a, state="before")], ends=[end(b, run=record())], cut=[end(c)])
        assert kept == ["a"]
        assert [view.run_by for view in table.do(t.ReadTasks())] == ["n1", None, None, None]
        assert (task(table, "b").state, len(table.do(t.ReadRuns(result="success")))) == ("after", 1)
        again = claimed(table, 11)
        assert [(row.name, row.cut_us, row.interruptions) for row in again] == [
            ("c", NOW_US, 0),
            ("d", None, 0),
        ]
        assert again[0].token > c.token
        assert again[1].token > d.token
        assert claim(table, 11, end(a)).written == [a.id]

    def test_late_statements_of_the_old_id(self, table: t.ClusterTable) -> None:
        """A node that came back is fenced under its old id: nothing that it sent before has any effect."""
        reconcile(table, put("a"), put("b"))
        a, b = claimed(table)
        come_back(table, kept=[end(a)])
        assert claim(table, 1, end(a), end(b)).seq is None
        assert beat(table, 1).seq is None
        assert (task(table).run_by, task(table, "b").state) == ("n1", "before")
        assert {view.node: view.fenced_us is None for view in table.do(t.ReadNodes())[1]} == {
            1: False,
            11: True,
        }

    def test_come_back_after_a_lost_return(self, table: t.ClusterTable) -> None:
        """Who has lost the answer gives up the id of that attempt as well, and keeps its runs."""
        reconcile(table, put("a"))
        (a,) = claimed(table)
        come_back(table, kept=[end(a)])
        assert come_back(table, node=14, kept=[end(a)]) == []
        assert come_back(table, before=[1, 11, 12], node=13, kept=[end(a)]) == ["a"]
        for node in (11, 12):
            assert beat(table, node).seq is None
        with pytest.raises(StoreError):
            come_back(table, before=[1, 11], node=12, kept=[end(a)])
        assert claim(table, 13, end(a)).written == [a.id]

    def test_come_back_with_an_older_run(self, table: t.ClusterTable) -> None:
        """A run whose row was claimed again is not ours, though the row is."""
        reconcile(table, put("a"))
        (row,) = claimed(table)
        (_again,) = claimed(table, 1, end(row, wake_us=NOW_US))
        assert come_back(table, kept=[end(row)], cut=[end(row)]) == []
        assert claimed(table, 11)[0].cut_us is None

    def test_come_back_to_a_server_that_forgot(self, world: World, table: t.ClusterTable) -> None:
        """Runs and ends that the server has forgotten are restored, so that nobody starts them again."""
        join(table, 2)
        reconcile(table, *(put(name) for name in "abcd"))
        old = world.snapshot()
        a, b, c, d = claimed(table)
        world.forget(old)
        beat(table, 2)
        kept = come_back(
            table,
            kept=[end(a, state="of a")],
            ends=[end(b, run=record())],
            cut=[end(c, state="of c")],
            remembered=[end(d)],
            acked=99,
        )
        assert kept == ["a"]
        assert [view.state for view in table.do(t.ReadTasks())] == ["of a", "after", "of c", "after"]
        assert [view.run_by for view in table.do(t.ReadTasks())] == ["n1", None, None, None]
        table.do(t.OpenTimeline(timeline=beat(table, 2).timeline))
        assert [(row.name, row.cut_us) for row in claimed(table, 2)] == [("c", NOW_US)]
        assert claim(table, 11, end(a, wake_us=0), limit=0).written == [a.id]

    def test_target_of_a_forgotten_run(self, world: World, table: t.ClusterTable) -> None:
        """A server that has forgotten a run is told whose its target is, too."""
        join(table, 2)
        reconcile(table, put("a", target="t"), put("b", target="t"))
        old = world.snapshot()
        (mine,) = claimed(table, limit=1)
        take(table, mine)
        world.forget(old)
        beat(table, 2)
        come_back(table, kept=[end(mine, state="before")], acked=99)
        table.do(t.OpenTimeline(timeline=beat(table, 2).timeline))
        assert take(table, *claimed(table, 2), node=2) == []

    def test_come_back_says_whether_it_has_forgotten(self, world: World, table: t.ClusterTable) -> None:
        """A server says whether it has what it acknowledged, also after a fence."""
        reconcile(table, put("a"))
        (row,) = claimed(table)
        old = world.snapshot()
        acked = claim(table, 1, end(row, wake_us=NOW_US), limit=0).seq or 0
        fence(table, 1, by="n2")
        who: dict[str, Any] = {"name": "n1", "lease_us": LEASE_US, "version": "1", "remembered": [end(row)]}
        again = t.ComeBack(before=[1], node=11, acked=acked, **who)
        assert not table.do(again).has_forgotten
        assert task(table).wake_us == NOW_US
        world.forget(old)
        assert table.do(again).has_forgotten
        assert task(table).wake_us == NOW_US + HOUR_US
        world.forget(old)
        assert table.do(t.ComeBack(before=[5], node=12, acked=1, **who)).has_forgotten

    def test_server_that_was_set_back(self, world: World, table: t.ClusterTable) -> None:
        """One that has forgotten and was not promoted may lack whole nodes: claims wait for a lease."""
        reconcile(table, put("a"))
        timeline = beat(table, 1).timeline
        come_back(table, acked=99, timeline="0000000A")
        assert claim(table, 11, limit=0).is_open
        come_back(table, before=[11], node=12, acked=1, timeline=timeline)
        assert claim(table, 12, limit=0).is_open
        come_back(table, before=[12], node=13, acked=99, timeline=timeline)
        assert claimed(table, 13) == []
        table.do(t.OpenTimeline(timeline=timeline))
        assert [row.name for row in claimed(table, 13)] == ["a"]

    def test_late_check_hides_nothing(self, world: World, table: t.ClusterTable) -> None:
        """A check that was sent before the old server's last answer came does not hide what is forgotten."""
        reconcile(table, put("a"))
        old = world.snapshot()
        before = table.do(t.Heartbeat(node=1, acked=0)).seq or 0
        world.forget(old)
        assert table.do(t.Heartbeat(node=1, acked=before - 1)).seq == before - 1
        assert table.do(t.Claim(node=1, gen=9, acked=before)).seq is None
        assert table.do(t.Heartbeat(node=1, acked=before)).has_forgotten

    def test_latest_end_is_restored(self, world: World, table: t.ClusterTable) -> None:
        """Of ends that the server has forgotten the latest counts, also if it knows the claim of that."""
        reconcile(table, put("a"))
        known, ends = [world.snapshot()], []
        for number in range(3):
            (row,) = claimed(table)
            known.append(world.snapshot())
            ends.append(end(row, state=f"after {number}", wake_us=NOW_US))
            claim(table, 1, ends[-1], limit=0)
        for old in (known[0], known[-1]):
            world.forget(old)
            assert come_back(table, remembered=ends, acked=99) == []
            view = task(table)
            assert (view.state, view.token, view.run_by) == ("after 2", ends[-1].token, None)
            assert view.wake_us == NOW_US

    def test_restore_of_other_definitions(self, world: World, table: t.ClusterTable) -> None:
        """A run of a definition that the server has forgotten is not ours, and its end is not written."""
        reconcile(table, put("a"), put("b"))
        old = world.snapshot()
        reconcile(table, put("a", hash=8, state="new"), put("c"))
        a, b, c = claimed(table)
        world.forget(old)
        assert come_back(table, kept=[end(a), end(b), end(c)], acked=99) == ["b"]
        assert [view.state for view in table.do(t.ReadTasks())][:1] == ["before"]

    # --- lists ---

    def test_list(self, table: t.ClusterTable) -> None:
        """A list is stored with one generation, and its digest adds up."""
        before = table.do(t.ReadDigest())
        outcome = reconcile(table, put("a", hash=2**62), put("b", hash=2**62), put("c", hash=-3))
        assert (list(outcome.added), outcome.overridden, outcome.orphaned) == (["a", "b", "c"], [], [])
        assert outcome.generation > before.generation == 1
        assert table.do(t.ReadDigest()) == t.Digest(3, 2**63 - 3, outcome.generation)
        listed = table.do(t.ReadList())
        assert sorted(row[1:] for row in listed) == [
            ("a", 2**62, outcome.generation),
            ("b", 2**62, outcome.generation),
            ("c", -3, outcome.generation),
        ]
        assert table.do(t.ReadList(after=outcome.generation)) == []
        assert beat(table, 1).generation == outcome.generation

    def test_list_that_orphans_everything(self, table: t.ClusterTable) -> None:
        """A list that leaves living nodes no task is refused, unless it is to replace theirs."""
        join(table, 2, 3)
        reconcile(table, put("a"), put("b"))
        fence(table, 3)
        before = table.do(t.ReadDigest())
        outcome = reconcile(table, put("c"), removed=["a", "b"])
        assert outcome.refused_for == ["n2"]
        assert not outcome.orphaned
        assert table.do(t.ReadDigest()) == before
        assert not reconcile(table, put("c"), removed=["a"]).refused_for
        assert reconcile(table, put("d"), removed=["b", "c"], replace=True).added == ["d"]

    # --- one row ---

    def test_put_one(self, table: t.ClusterTable) -> None:
        """An entry is one row of no list: it is added and changed, and no list becomes another by it."""
        outcome = reconcile(table, put("a"))
        digest = table.do(t.ReadDigest())
        assert table.do(t.PutOne(put=put("e"), kind="mail")) == ""
        assert table.do(t.PutOne(put=put("e", definition="other"), kind="mail")) == "definition of e"
        assert table.do(t.PutOne(put=put("e", hash=8, state="new"), kind="mail")) == "other"
        assert table.do(t.ReadDigest()) == digest
        assert [row.name for row in table.do(t.ReadList())] == ["a"]
        assert beat(table, 1).generation == outcome.generation
        assert [(view.name, view.kind, view.state) for view in table.do(t.ReadTasks())] == [
            ("a", None, "before"),
            ("e", "mail", "new"),
        ]
        reconcile(table, put("b"), removed=["a"])
        assert [view.name for view in table.do(t.ReadTasks())] == ["b", "e"]

    def test_entries_are_claimed_by_kind(self, table: t.ClusterTable) -> None:
        """A node that has the kind of an entry claims it, whatever its list; the definition comes along."""
        reconcile(table, put("a"))
        table.do(t.PutOne(put=put("e", wake_us=NOW_US - 1), kind="mail"))
        assert beat(table, 1).next_wake_us == NOW_US
        assert names(claimed(table)) == ["a"]
        pulse = table.do(t.Heartbeat(node=1, acked=0, gen=0, kinds=["mail"]))
        assert pulse.next_wake_us == NOW_US - 1
        assert claimed(table, kinds=["sms"]) == []
        (row,) = claimed(table, gen=0, kinds=["sms", "mail"])
        assert (row.name, row.definition) == ("e", "definition of e")
        assert claim(table, 1, end(row, wake_us=NOW_US + 5), kinds=["mail"]).next_wake_us == NOW_US + 5

    def test_an_entry_keeps_its_state(self, table: t.ClusterTable) -> None:
        """With the same hash the state stays, also that of the run in flight; with another it is new."""
        table.do(t.PutOne(put=put("e", wake_us=NOW_US + HOUR_US), kind="mail"))
        assert claimed(table, kinds=["mail"]) == []
        table.do(
            t.PutOne(put=put("e", definition="other", state="no", wake_us=NOW_US + HOUR_US), kind="mail")
        )
        (row,) = claimed(table, kinds=["mail"])
        assert (row.state, row.definition) == ("before", "other"), "it is looked at"
        table.do(t.PutOne(put=put("e", definition="third", state="no"), kind="mail"))
        claim(table, 1, end(row), kinds=["mail"])
        assert task(table, "e").state == "after"
        table.do(t.PutOne(put=put("e", hash=8, state="new"), kind="mail"))
        assert task(table, "e").state == "new"

    # --- what an App needs ---

    # --- limits and targets ---

    def test_room_in_a_limit(self, table: t.ClusterTable) -> None:
        """A limit holds for the runs of all nodes; an end, and a fence, give room back."""
        join(table, 2)
        reconcile(table, *(put(name) for name in "abcde"))
        a, b, c = sorted(claimed(table, 2, limit=3), key=lambda row: row.name)
        d, e = sorted(claimed(table), key=lambda row: row.name)
        assert take(table, a) == [], "another node's"
        assert take(table, a, b, c, node=2, size=2) == sorted([a.id, b.id])
        assert beat(table, 1).busy == {"t": 2}
        assert beat(table, 2).busy == {}
        assert take(table, d, size=2) == []
        assert take(table, d, size=3) == [d.id]
        assert take(table, e, limit="mail") == [e.id]
        claim(table, 2, end(a), limit=0)
        assert take(table, c, node=2, size=3) == [c.id]
        assert beat(table, 1).busy == {"t": 2}
        fence(table, 2, beat=1)
        assert beat(table, 1).busy == {}
        assert take(table, c, node=2) is None

    def test_fence_of_what_was_only_looked_at(self, table: t.ClusterTable) -> None:
        """A row with a target that it has not taken was not started: a fence does not count it as cut off."""
        join(table, 2)
        reconcile(table, put("a", target="t"), put("b", target="u"))
        a, _b = claimed(table, 2)
        take(table, a, node=2)
        assert [taken.name for taken in table.do(t.Fence(by="n1", node=2, beat=0)) or ()] == ["a"]
        a, b = claimed(table, now_us=None)
        assert (a.cut_us, a.interruptions) == (NOW_US, 1)
        assert (b.cut_us, b.interruptions) == (None, 0)

    # --- cancelling ---

    def test_cancel(self, table: t.ClusterTable) -> None:
        """A node sees with its heartbeat which of its runs are to end; the next run is another one."""
        join(table, 2)
        reconcile(table, put("ä"), put("b"))
        assert not table.do(t.CancelRun(name="ä"))
        assert not table.do(t.CancelRun(name="c"))
        rows = {row.name: row for row in claimed(table, 2)}
        assert table.do(t.CancelRun(name="ä"))
        assert list(beat(table, 2).cancelled) == [("ä", rows["ä"].token)]
        assert not beat(table, 1).cancelled
        claim(table, 2, end(rows["ä"], wake_us=NOW_US), limit=0)
        assert names(claimed(table, 2)) == ["ä"]
        assert not beat(table, 2).cancelled

    # --- what timers need ---

    def test_ask(self, table: t.ClusterTable) -> None:
        """Rows that are asked are due at once; an end answers only what was asked before the claim."""
        later_us = NOW_US * 2
        reconcile(table, put("a", wake_us=later_us), put("b", wake_us=later_us))
        assert table.do(t.Ask(names=["a", "none"], text="startup 1"))
        assert not table.do(t.Ask(names=["none"], text="startup 1"))
        table.do(t.Ask(names=["a"], text="look"))
        table.do(t.Ask(names=["a"], text="look"))
        (row,) = claimed(table, now_us=None)
        assert (row.name, row.request) == ("a", "startup 1;look")
        table.do(t.Ask(names=["a"], text="ended 2"))
        claim(table, 1, end(row, wake_us=later_us, request=row.request), limit=0)
        (row,) = claimed(table, now_us=None)
        assert row.request == "ended 2"
        claim(table, 1, end(row, wake_us=later_us, request=row.request), limit=0)
        assert claimed(table, now_us=None) == []
        assert [row.request for row in claimed(table, now_us=later_us) if row.name == "a"] == [None]

    # --- looking ---

    def test_read_nodes(self, world: World, table: t.ClusterTable) -> None:
        """Nodes are shown with what they run; a fenced one with what it ran and by whom it was fenced."""
        join(table, 2)
        reconcile(table, put("a"), put("b"))
        claim(table, 2)
        world.advance(SECOND_US)
        table.do(t.Heartbeat(node=1, acked=0, lag_us=42))
        fence(table, 2)
        now_us, views = table.do(t.ReadNodes())
        assert now_us == world.now_us
        one, two = sorted(views, key=lambda view: view.node)
        assert one[:6] == (1, "n1", 1, LEASE_US, "1", 42)
        assert one[6:10] == (NOW_US, world.now_us, None, None)
        assert (two.fenced_us, two.fenced_by, sorted(two.runs)) == (world.now_us, "n1", ["a", "b"])
        claim(table)
        assert [sorted(view.runs) for view in table.do(t.ReadNodes())[1]] == [["a", "b"]] * 2

    def test_fenced_nodes_are_forgotten(self, world: World, table: t.ClusterTable) -> None:
        """A fenced node is shown for a day, and forgotten when another joins after that."""
        join(table, 2)
        fence(table, 2)
        for node, hours in ((3, 23), (4, 2)):
            world.advance(hours * HOUR_US)
            join(table, node)
            assert (2 in {view.node for view in table.do(t.ReadNodes())[1]}) is (node == 3)

    def test_history(self, table: t.ClusterTable) -> None:
        """Runs of all nodes are recorded with their tokens and read newest first, by task and by pages."""
        join(table, 2)
        reconcile(table, put("a"), put("b"))
        a, b = claimed(table)
        full = record(2, output="text", error='no "ä"\n', result="failure", scheduled_us=NOW_US)
        claim(table, 1, end(a, run=record(1), wake_us=NOW_US), limit=0)
        (again,) = claimed(table, 2)
        claim(table, 2, end(again, run=full), limit=0)
        claim(table, 1, end(b, run=record(3)), limit=0)
        runs = table.do(t.ReadRuns(with_output=True))
        assert [past[1:] for past in runs] == [
            ("b", "n1", b.token, NOW_US, record(3)),
            ("a", "n2", again.token, NOW_US, full),
            ("a", "n1", a.token, NOW_US, record(1)),
        ]
        assert [past.run.output for past in table.do(t.ReadRuns())] == [None] * 3
        assert [past.run.run_id for past in table.do(t.ReadRuns(result="success"))] == ["run 3", "run 1"]
        assert [past.run.run_id for past in table.do(t.ReadRuns(name="a", result="success"))] == ["run 1"]
        assert [past.run.run_id for past in table.do(t.ReadRuns(name="a"))] == ["run 2", "run 1"]
        read = t.ReadBuckets(names=["a", "b", "c"], from_us=NOW_US - 5, to_us=NOW_US + 1, width_us=5)
        assert table.do(read) == [
            t.PastBucket("a", 1, "failure", 1, "run 2", NOW_US, full.ended_us, "n2"),
            t.PastBucket("a", 1, "success", 1, "run 1", NOW_US, record(1).ended_us, "n1"),
            t.PastBucket("b", 1, "success", 1, "run 3", NOW_US, record(3).ended_us, "n1"),
        ]
        assert table.do(msgspec.structs.replace(read, names=["b"], from_us=NOW_US))[0].part == 0
        assert table.do(msgspec.structs.replace(read, to_us=NOW_US)) == []
        assert [past.run.run_id for past in table.do(t.ReadRuns(before=runs[0].id, limit=1))] == ["run 2"]
        assert [past.run.output for past in table.do(t.ReadRuns(run=("n2", "run 2"), with_output=True))] == [
            "text"
        ]
        assert [
            table.do(t.ReadRuns(run=run)) for run in (("n1", "run 2"), ("n2", "run 3"), ("n1", "run 3"))
        ] == [[]] * 3

    def test_history_of_targets_that_are_cut_off(self, world: World, table: t.ClusterTable) -> None:
        """Of the run of a target the history has what its node said when it took that."""
        reconcile(table, put("a", target="x"), put("b", target="y"))
        rows = claimed(table)
        said = {row.name: record(row.id, result="interrupted", scheduled_us=5) for row in rows}
        for row in rows:
            take(table, row, size=2, said=said[row.name])
        a, b = rows
        world.advance(SECOND_US)
        come_back(table, cut=[end(a)], kept=[end(b)])
        fence(table, 11, by="n2")
        for row in rows:
            (past,) = table.do(t.ReadRuns(run=("n1", f"run {row.id}"), with_output=True))
            kept = replace(said[row.name], ended_us=world.now_us, output="")
            assert past[1:] == (row.name, "n1", row.token, NOW_US, kept)

    def test_history_by_start(self, table: t.ClusterTable, world: World) -> None:
        """Runs are in order of their starts, whenever they ended, and can be read by pages and by times."""
        reconcile(table, put("a"), put("b", wake_us=NOW_US + 1), put("c", wake_us=NOW_US + 2))
        rows = []
        for _ in "abc":
            rows += claimed(table)
            world.advance(1)
        for n, row in enumerate((rows[1], rows[2], rows[0])):
            claim(table, 1, end(row, run=record(n)), limit=0)
        runs = table.do(t.ReadRuns())
        assert [past.name for past in runs] == ["c", "b", "a"]
        assert [past.name for past in table.do(t.ReadRuns(before=runs[0].id))] == ["b", "a"]
        assert [past.name for past in table.do(t.ReadRuns(before=runs[1].id))] == ["a"]
        assert [past.name for past in table.do(t.ReadRuns(before_us=NOW_US + 1))] == ["a"]
        assert [past.name for past in table.do(t.ReadRuns(since_us=NOW_US + 1))] == ["c", "b"]
        assert table.do(t.ReadRuns(before=99)) == []

    def test_prune_each(self, table: t.ClusterTable) -> None:
        """Of each task the latest runs are kept; tasks are looked at some at a time."""
        reconcile(table, put("a"), put("b"), put("c"))
        for number in range(4):
            now_us = NOW_US + number
            rows = claimed(table, now_us=now_us)
            ends = [end(row, run=record(number), wake_us=NOW_US) for row in rows]
            claim(table, 1, *ends, limit=0)
        assert table.do(t.PruneEach(keep=2, names=2)) == "b"
        left = [(past.name, past.run.run_id) for past in table.do(t.ReadRuns())]
        kept = {"a": (2, 3), "b": (2, 3), "c": (0, 1, 2, 3)}
        assert sorted(left) == [(name, f"run {number}") for name in kept for number in kept[name]]
        assert table.do(t.PruneEach(keep=2, names=2, after="b", limit=1)) is None
        assert [past.run.run_id for past in table.do(t.ReadRuns(name="c"))][:2] == ["run 3", "run 2"]
        assert len(table.do(t.ReadRuns(name="c"))) == 3
        assert table.do(t.PruneEach(keep=2, after="c")) is None

    def test_prune(self, table: t.ClusterTable) -> None:
        """Old runs are forgotten, some at a time."""
        reconcile(table, *(put(f"t{n}") for n in range(5)))
        ends = [end(row, run=record(n)) for n, row in enumerate(claimed(table))]
        claim(table, 1, *ends)
        before_us = NOW_US + 3
        assert [table.do(t.Prune(before_us=before_us, limit=2)) for _ in range(3)] == [2, 1, 0]
        assert sorted(past.run.run_id for past in table.do(t.ReadRuns())) == ["run 3", "run 4"]
