"""A board that forgets, as a standby does that lacks the latest commits: nothing runs twice all the same."""

from typing import Any

import pytest

from duly.instant import SECOND_US
from duly.store.board import Change as RowChange
from duly.testing.simulation import UnsoundLifeError
from duly.testing.simulation.cluster import ClusterPlan, cluster_drawn, cluster_lived
from duly.testing.simulation.cluster.plan import Change, Forget
from duly.testing.simulation.plan import Behaviour, How, Item
from tests.simulation.forgetful import with_forgetful_standbys, with_restless_lists
from tests.simulation.test_cluster_lives import SEEDS, do_nothing, planned


def drawn(seed: int, members: int) -> ClusterPlan:
    """A life in which lists come and go, runs last, and the board forgets three times."""
    return with_restless_lists(with_forgetful_standbys(cluster_drawn(seed, members)))


@pytest.mark.parametrize("first", range(0, SEEDS // 2, 20))
def test_no_cluster_is_unsound(first: int) -> None:
    """Whatever else befalls three or four members: never two at once, nothing lost, none without a cause."""
    for seed in range(first, min(first + 20, SEEDS // 2)):
        members = 3 + seed % 2
        plan = drawn(seed, members) if seed % 4 else with_forgetful_standbys(cluster_drawn(seed, members))
        cluster_lived(plan).check()


@pytest.mark.parametrize(
    ("seed", "members"), [(162, 4), (248, 4), (251, 3), (252, 3), (438, 4), (660, 3)], ids=str
)
def test_no_fault_is_seen_where_there_is_none(seed: int, members: int) -> None:
    """Lives that are sound and were not by their traces: terms, lists and losses were mistaken for others."""
    cluster_lived(drawn(seed, members)).check()


def test_end_that_nobody_is_left_to_know() -> None:
    """A member reports an end and stops, and the board forgets it: that the run starts again is no fault."""
    cluster_lived(with_forgetful_standbys(cluster_drawn(94, 3))).check()


@pytest.mark.parametrize(
    ("where", "wrong", "seed", "members"),
    [
        ("duly.testing.memory_board.MemoryBoard._note_server", lambda *_arguments: None, 5, 4),
        ("duly.testing.memory_board.MemoryBoard._is_open_for_work", lambda _self: True, 2, 4),
        ("duly.cluster.member.Member.claim", do_nothing, 16, 4),
        ("duly.cluster.share.Share.let_go", lambda *_arguments: None, 25, 4),
        ("duly.cluster.finding.resumed", lambda task, _since_us: task, 27, 3),
    ],
)
def test_what_is_wrong_is_found_out(
    where: str, wrong: Any, seed: int, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board that stays open, or a member that does not tell it something, is found out in a known life."""
    cluster_lived(drawn(seed, members)).check()
    monkeypatch.setattr(where, wrong)
    with pytest.raises(UnsoundLifeError):
        cluster_lived(drawn(seed, members)).check()


@pytest.mark.parametrize("is_wrong", [False, True])
def test_run_that_the_board_forgot(monkeypatch: pytest.MonkeyPatch, *, is_wrong: bool) -> None:
    """A run that went away is told to a server that forgot its start; if not, another starts it as well."""
    if is_wrong:
        monkeypatch.setattr("duly.cluster.share.claim_by", lambda *_arguments, **_options: RowChange((), ()))
    items = (Item("a", "* * * * *", 15 * SECOND_US), Item("b", "* * * * *", 0))
    life = cluster_lived(
        planned(
            Change(32 * SECOND_US, 0, 1),
            Forget(34 * SECOND_US, 5 * SECOND_US, 20_000),
            lists=(items[:1], items),
            behaviours={"a": (Behaviour(), Behaviour(How.RETURN, 50 * SECOND_US), Behaviour())},
            shards=2,
        )
    )
    assert ("row put right" in life.marks) is not is_wrong
    assert any("h0.1 called a while h1.1 is running it" in fault for fault in life.faults) is is_wrong
    assert life.is_sound is not is_wrong
