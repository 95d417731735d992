"""A node without a database: heartbeats, others that it has fenced, and others that fence it."""

import asyncio
from typing import Any

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

LEASE_US = 6 * SECOND_US


def test_fenced_node_is_told() -> None:
    """A peer that stands still is fenced and told by name; so is a task that was interrupted too often."""
    now_us = 0
    events: list[tuple[str, dict[str, Any]]] = []
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: now_us, draw=lambda: 1)
    node.emit = lambda name, fields: events.append((name, fields))
    pulse = Pulse(0, "server", "1", "1", 1, False, [Peer(2, "other", 5, LEASE_US)], 1, None)
    node.joined(pulse, now_us)
    request = None
    while not isinstance(request, Fence):
        now_us += SECOND_US // 2
        assert now_us < 2 * LEASE_US, "it was never fenced"
        request, _ = node.next_request()
        if request is not None and not isinstance(request, Fence):
            node.on_answer(request, pulse, now_us)
    assert (request.node, request.beat) == (2, 5)
    taken = [Taken("a", 1, 0), Taken("bad", BACK_OFF_FROM, 60 * SECOND_US)]
    node.on_answer(request, taken, now_us)
    assert events == [
        ("NodeFenced", {"node": 2, "name": "other", "runs": ["a", "bad"]}),
        (
            "TaskInterruptedAgain",
            {"taskName": "bad", "interruptions": BACK_OFF_FROM, "retryAt": "1970-01-01T00:01:00+00:00"},
        ),
    ]


def test_notified_node_sends_a_heartbeat() -> None:
    """A request that is notified makes the next heartbeat due at once, but not ten in a second's tenth."""
    now_us = 0
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: now_us, draw=lambda: 1)
    pulse = Pulse(0, "server", "1", "1", 1, False, [], 1, None)
    node.joined(pulse, now_us)
    sent_us = []
    for now_us in range(0, LEASE_US // 2, 10_000):
        if 300_000 <= now_us < 500_000:
            node.on_notified()
        request, _ = node.next_request()
        if request is not None:
            assert isinstance(request, Heartbeat)
            sent_us.append(now_us)
            node.on_answer(request, pulse, now_us)
    assert sent_us == [0, 300_000, 400_000, 500_000, 1_500_000, 2_500_000]


def test_notified_node_is_lost() -> None:
    """A node that must come back keeps its pauses between attempts, whatever is notified."""
    now_us = 0
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: now_us, draw=lambda: 1)
    node.joined(Pulse(0, "server", "1", "1", 1, False, [], 1, None), now_us)
    now_us += 500_000
    node.on_lost_answer(Claim(node=1, gen=1))
    request, _ = node.next_request()
    assert request is not None
    node.on_error(request, OSError())
    before = node.next_request()
    now_us += 1_000
    node.on_notified()
    assert node.next_request() == before
    assert before[0] is None


def test_heartbeat_between_the_statements_of_a_claim() -> None:
    """Rows that a claim got although its number was not raised are released by a return under a new id."""
    ids = iter((1, 2))
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: 0, draw=lambda: next(ids))
    node.joined(Pulse(0, "server", "1", "1", 1, False, [], 1, None), 0)
    claim = node.claim(limit=1, ends=0, now_us=None, due_us=None)
    row = Claimed(7, "a", 1, 1, "[]", 0, None, 0, None, 0, None, None)
    assert node.on_work(claim, Work(None, 0, [], [row], None, True)) == []
    request, _ = node.next_request()
    assert isinstance(request, ComeBack)
    assert list(request.before) == [1]


def test_stillness_is_never_overestimated() -> None:
    """It begins when the first look was answered and ends when the last was sent, however slow they are."""
    peers, observer = [Peer(2, "other", 5, LEASE_US)], Observer(gap_us=LEASE_US)
    assert observer.look(peers, 0, 2 * SECOND_US) == []
    assert observer.look(peers, 7 * SECOND_US, 9 * SECOND_US) == []
    assert observer.look(peers, 8 * SECOND_US, 9 * SECOND_US) == peers


def test_node_that_others_have_fenced_comes_back() -> None:
    """A heartbeat that arrives after the fence ends the trust at once, and the node takes a new id."""
    now_us, ids = 0, iter((1, 2))
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: now_us, draw=lambda: next(ids))
    pulse = Pulse(0, "server", "1", "1", 1, False, [], 1, None)
    node.joined(pulse, now_us)
    now_us = node.beat_us
    request, _ = node.next_request()
    assert isinstance(request, Heartbeat)
    assert node.is_trusted()
    with marks.counted() as passed:
        node.on_answer(request, pulse._replace(seq=None), now_us)
    assert passed["found fenced"] == 1
    assert not node.is_trusted()
    request, _ = node.next_request()
    assert isinstance(request, ComeBack)
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
    told: list[tuple[str, Any]] = []
    ids = iter(range(1, 9))
    node = Node(name="me", version="", lease_us=LEASE_US, steady=lambda: 0, draw=lambda: next(ids))
    node.emit = lambda kind, fields: told.append((kind, fields["forgot"])) if "forgot" in fields else None
    pulse = Pulse(0, "old", "1", "1", 5, False, [], 1, None)
    node.joined(pulse, 0)
    for server, has_forgotten in (("forgetful", True), ("forgetful", False), ("sound", False)):
        node.on_lost_answer(Claim(node=node.id, gen=1))
        request, _ = node.next_request()
        assert isinstance(request, ComeBack)
        node.on_answer(request, Returned([], has_forgotten), 0)
        heartbeat, _ = node.next_request()
        assert isinstance(heartbeat, Heartbeat)
        node.on_answer(heartbeat, pulse._replace(server=server), 0)
    assert told == [("ServerChanged", True), ("ServerChanged", False)]
