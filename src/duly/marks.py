"""Marks: the rare paths of the scheduler, by name, so that tests can show that each of them is taken.

A path that no test ever takes is a promise that nobody has checked. Where such a path begins, the code says
`mark("name")`; the simulation counts the marks it passes, and a test fails if one of `MARKS` is never passed.
Marking does nothing but count, and only while somebody counts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

MARKS: Mapping[str, str] = {
    "write failed": "the store could not write, and is asked again later",
    "written whole": "after a fault every task is written anew",
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
    "connection renewed": "a connection was closed after a fault, to be opened anew",
}
"""Every mark of a single scheduler, and what it means."""

CLUSTER_MARKS: Mapping[str, str] = {
    "seat lost": "the board does not know a member any more, which joins anew",
    "edition forgotten": "the board has lost the list that a member brought, which brings it again",
    "another server": "another server answers, which may have forgotten: it is told what runs",
    "edition back": "another member has brought the list back that a member has, and that is in effect again",
    "trust ended": "a member could not renew its lease in time, and let go of everything",
    "stray shards given": "the board has shards as a member's of which it does not know, and gets them back",
    "renewed beside a move": "a lease was renewed while a move was waiting for the board",
    "beat of an earlier life": "an answer came to a beat under a number that the member has given up",
    "shards gone": "a member saw on the board that shards it held are another's",
    "end taken from a row": "a run was reported ended by the member that ran it, to whoever holds its shard",
    "run found away": "a shard was taken, and a task in it is still running at another member",
    "run found cut off": "a shard was taken, and a task in it was running at a member that is dead",
    "ends reported again": "another server answers, which may have forgotten ends that were reported",
    "departed run found": "a list brings a task back whose run, from before its removal, goes on at a member",
    "row behind memory": "the board shows a task as it was before a start that a member remembers",
    "row put right": "a server that forgot a start is told of it by the member that made it",
    "run missing on a row": "a member runs a task, and a row that came back to it does not show that",
    "start taken back": "a member finds a start on a row that it wrote and did not carry out",
    "away run ended": "the end of a run at another member was seen on the board",
    "away run cut off": "the member that ran a task whose shard is held here has died",
    "superseded task left alone": "a shard was taken, and a newer list has changed a task in it",
    "unreadable row left alone": "a shard was taken, and a task in it cannot be read",
}
"""Every mark of a member of a cluster, and what it means."""

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
