"""A node without a database: heartbeats, others that it has fenced, and others that fence it."""

import asyncio
from itertools import count
from typing import Any, TypeVar

from duly import marks
from duly.cluster.node import Node, Observer
from duly.cluster.table import (
    BACK_OFF_FROM,
    Claim,
    Claimed,
    ComeBack,
    Fence,
    Heartbeat,
    OpenTimeline,
    Peer,
    Pulse,
    Returned,
    Taken,
    Work,
)
from duly.instant import SECOND_US
from duly.scheduler import Scheduler
from tests.worlds.model_table import ModelDatabase
from tests.worlds.shared_timers import Cable

R = TypeVar("R")
LEASE_US = 6 * SECOND_US
PULSE = Pulse(0, "server", "1", "1", 5, False, [], 1, None)


class ByHand:
    """A node with the ids 1, 2, ..., whose clock a test moves, and what it tells."""

    def __init__(self, *peers: Peer) -> None:
        self.now_us = 0
        self.told: list[tuple[str, dict[str, Any]]] = []
        ids = count(1)
        self.node = Node(
            name="me", version="", lease_us=LEASE_US, steady=lambda: self.now_us, draw=lambda: next(ids)
        )
        self.node.emit = lambda name, fields: self.told.append((name, fields))
        self.node.joined(PULSE._replace(peers=peers), 0)

    def asks(self, kind: type[R]) -> R:
        request, _ = self.node.next_request()
        assert isinstance(request, kind)
        return request


def test_fenced_node_is_told() -> None:
    """A peer that stands still is fenced and told by name; so is a task that was interrupted too often."""
    peers = [Peer(2, "other", 5, LEASE_US)]
    one, request = ByHand(*peers), None
    while not isinstance(request, Fence):
        one.now_us += SECOND_US // 2
        assert one.now_us < 2 * LEASE_US, "it was never fenced"
        request, _ = one.node.next_request()
        if request is not None and not isinstance(request, Fence):
            one.node.on_answer(request, PULSE._replace(peers=peers), one.now_us)
    assert (request.node, request.beat) == (2, 5)
    taken = [Taken("a", 1, 0), Taken("bad", BACK_OFF_FROM, 60 * SECOND_US)]
    one.node.on_answer(request, taken, one.now_us)
    assert one.told == [
        ("NodeFenced", {"node": 2, "name": "other", "runs": ["a", "bad"]}),
        (
            "TaskInterruptedAgain",
            {"taskName": "bad", "interruptions": BACK_OFF_FROM, "retryAt": "1970-01-01T00:01:00+00:00"},
        ),
    ]


def test_notified_node_sends_a_heartbeat() -> None:
    """A request that is notified makes the next heartbeat due at once, but not ten in a second's tenth."""
    one, sent_us = ByHand(), []
    for one.now_us in range(0, LEASE_US // 2, 10_000):
        if 300_000 <= one.now_us < 500_000:
            one.node.on_notified()
        request, _ = one.node.next_request()
        if request is not None:
            assert isinstance(request, Heartbeat)
            sent_us.append(one.now_us)
            one.node.on_answer(request, PULSE, one.now_us)
    assert sent_us == [0, 300_000, 400_000, 500_000, 1_500_000, 2_500_000]


def test_notified_node_is_lost() -> None:
    """A node that must come back keeps its pauses between attempts, whatever is notified."""
    one = ByHand()
    one.now_us += 500_000
    one.node.on_lost_answer(Claim(node=1, gen=1))
    one.node.on_error(one.asks(ComeBack), OSError())
    before = one.node.next_request()
    one.now_us += 1_000
    one.node.on_notified()
    assert one.node.next_request() == before
    assert before[0] is None


def test_heartbeat_between_the_statements_of_a_claim() -> None:
    """Rows that a claim got although its number was not raised are released by a return under a new id."""
    one = ByHand()
    claim = one.node.claim(limit=1, ends=0, now_us=None, due_us=None)
    row = Claimed(7, "a", 1, 1, "[]", 0, None, 0, None, 0, None, None)
    assert one.node.on_work(claim, Work(None, 0, [], [row], None, True)) == []
    assert list(one.asks(ComeBack).before) == [1]


def test_stillness_is_never_overestimated() -> None:
    """It begins when the first look was answered and ends when the last was sent, however slow they are."""
    peers, observer = [Peer(2, "other", 5, LEASE_US)], Observer(gap_us=LEASE_US)
    assert observer.look(peers, 0, 2 * SECOND_US) == []
    assert observer.look(peers, 7 * SECOND_US, 9 * SECOND_US) == []
    assert observer.look(peers, 8 * SECOND_US, 9 * SECOND_US) == peers


def test_node_that_others_have_fenced_comes_back() -> None:
    """A heartbeat that arrives after the fence ends the trust at once, and the node takes a new id."""
    one = ByHand()
    one.now_us = one.node.beat_us
    beat = one.asks(Heartbeat)
    assert one.node.is_trusted()
    with marks.counted() as passed:
        one.node.on_answer(beat, PULSE._replace(seq=None), one.now_us)
    assert passed["found fenced"] == 1
    assert not one.node.is_trusted()
    request = one.asks(ComeBack)
    assert (list(request.before), request.node) == ([1], 2)


def test_claims_are_opened_after_a_lease() -> None:
    """A node opens claims that it has seen closed for a lease, each time that they are closed."""
    now_us = 0
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: now_us, draw=lambda: 1)
    pulse = Pulse(0, "server", "2", "2", 1, False, [], 1, None)
    node.joined(pulse, now_us)
    for _ in range(2):
        began_us, request = now_us, None
        while not isinstance(request, OpenTimeline):
            now_us += SECOND_US // 10
            request, _ = node.next_request()
            if isinstance(request, Heartbeat):
                node.on_answer(request, pulse._replace(open_timeline=""), now_us)
        assert LEASE_US <= now_us - began_us < LEASE_US + 2 * SECOND_US
        node.on_answer(request, None, now_us)
        request, _ = node.next_request()
        assert isinstance(request, Heartbeat)
        node.on_answer(request, pulse, now_us)


def test_run_that_is_cut_off_during_a_return() -> None:
    """Trust ends while a return is under way that keeps a run: another return gives up its row."""
    now_us, ids = 0, iter(range(1, 9))
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: now_us, draw=lambda: next(ids))
    node.joined(Pulse(0, "server", "1", "1", 1, False, [], 1, None), 0)
    claim = node.claim(limit=1, ends=0, now_us=None, due_us=None)
    (row,) = node.on_work(claim, Work(2, 0, [], [Claimed(7, "a", 1, 1, "[]", 0, None, 0, None)], None, True))
    row.is_called = True
    node.on_lost_answer(claim)
    first, _ = node.next_request()
    assert isinstance(first, ComeBack)
    assert [end.name for end in first.kept] == ["a"]
    now_us, row.is_cut = LEASE_US, True
    node.on_cut()
    node.on_answer(first, Returned([("a", 7)], False), now_us)
    second, _ = node.next_request()
    assert isinstance(second, ComeBack)
    assert (list(second.before), [end.name for end in second.cut]) == ([first.node], ["a"])
    node.on_answer(second, Returned([], False), now_us)
    assert not node.held
    assert isinstance(node.next_request()[0], Heartbeat)


def test_news_for_a_loop_that_is_closed() -> None:
    """A heartbeat thread that outlives the event loop of its scheduler has nobody to tell, and goes on."""
    scheduler = Scheduler(Cable(ModelDatabase(), lambda: 0, lambda: 0))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(scheduler.initialize([]))
    loop.close()
    with marks.counted() as passed:
        scheduler._backend.node.on_change()  # type: ignore[attr-defined]
    assert passed["loop closed"]


def test_server_that_forgot_is_told_by_who_came_back_to_it() -> None:
    """A node that lost an answer comes back to a server that forgot: it says so, though its new id is new."""
    one = ByHand()
    for server, has_forgotten in (("forgetful", True), ("forgetful", False), ("sound", False)):
        one.node.on_lost_answer(Claim(node=one.node.id, gen=1))
        one.node.on_answer(one.asks(ComeBack), Returned([], has_forgotten), 0)
        one.node.on_answer(one.asks(Heartbeat), PULSE._replace(server=server), 0)
    changes = [fields["forgot"] for name, fields in one.told if name == "ServerChanged"]
    assert changes == [True, False]
