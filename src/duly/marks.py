"""Coverage marks: the rare paths of the scheduler, by name, so that tests can show that each is taken.

A path that no test ever takes is a promise that nobody has checked. Where such a path begins, the code says
`mark("name")`; the simulation counts the marks it passes, and a test fails if one of `MARKS` is never passed.
Marking does nothing but count, and only while somebody counts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

MARKS: Mapping[str, str] = {
    "write failed": "the store could not write, and is asked again later",
    "written whole": "after a fault every task is written again",
    "start put back": "a start was decided, and not carried out, because the write failed or a stop came",
    "start called off": "a start was written, and a stop came before its callback was called",
    "minute passed": "a due came between the writing of a start and its call",
    "due while running": "a due was looked at while its task was running",
    "clock stepped": "a step of the clock was accounted for",
    "called after a step": "a callback was called when a step back was not yet accounted for",
    "ends during a list": "a run ended while a list was being written",
    "run outlives its task": "a list removed a task whose run is in flight",
    "run outlives its registration": "a list changed a task whose run is in flight",
    "task comes back": "a list registers a task whose run, from before its removal, is still in flight",
    "found interrupted": "a task was found running in the store, and nothing of it was",
    "ahead of the clock": "a store was written under a clock that was far ahead",
    "unreadable row removed": "a damaged row of a task that is not registered was removed",
    "unreadable row refused": "a damaged row of a registered task refused the list",
    "reinitialize failed": "a list could not be written by a running scheduler, which is now uninitialized",
    "stop from inside": "a callback stopped its own scheduler",
    "stop failed": "a stop could not write the last ends",
    "run timed out": "a run was cancelled for lasting too long",
    "connection renewed": "a connection was closed after a fault, to be opened again",
}
"""Every mark of a single scheduler, and what it means."""

CLUSTER_MARKS: Mapping[str, str] = {
    "stillness forgotten": "a node has not looked for a while, and forgets how long others stood still",
    "node fenced": "a node has declared another one dead",
    "found fenced": "a node finds that others have declared it dead",
    "comes back": "a node gives up its id and goes on under a new one",
    "return lost": "the answer to a return was lost",
    "cut off during a return": "trust ended while a return was under way that keeps the run",
    "answer of an earlier id": "the answer to a claim came after its node had given up the id",
    "answer lost": "the answer to a claim was lost",
    "another server": "another server answers, which may have forgotten something",
    "trust ended": "a node cut runs off, because they may be another node's soon",
    "claimed and not owed": "a claimed row was owed no start, and was released",
    "leave failed": "a node could not say that it leaves",
    "joins with unfinished ends": "a scheduler that could not write its ends starts over, and writes them",
    "leaves in time": "a list could not be written, and the node stays until the runs of before have ended",
    "loop closed": "the event loop was closed while the heartbeat thread had news for it",
    "start withdrawn": "a row was claimed and not called, because the event loop was blocked",
    "claim withdrawn": "the answer to a claim waited for a blocked loop, and the node came back without it",
    "loop blocked": "a callback has blocked the event loop",
    "list brought again": "the server has forgotten the list of a node, which brings it again",
    "newer list": "another node has brought a list that this node has only in part",
    "unreadable row left alone": "a row was claimed that cannot be read, and was released",
}
"""Every mark of a node of a cluster, and what it means."""

_passed: Counter[str] | None = None


def mark(name: str) -> None:
    """Note that the path called *name* is taken."""
    if _passed is not None:
        assert name in MARKS or name in CLUSTER_MARKS
        _passed[name] += 1


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the marks that are passed meanwhile."""
    global _passed  # noqa: PLW0603 (one count at a time)
    before, _passed = _passed, (passed := Counter[str]())
    try:
        yield passed
    finally:
        _passed = before
        if before is not None:
            before.update(passed)
