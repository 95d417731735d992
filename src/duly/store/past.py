"""The past of a service and of a timer: what their newest runs and slots were like, to judge their health by.

Pure. It is read once, at start, and folded forward with each end: nobody asks the history for every look.
"""

import math
from typing import NamedTuple

import msgspec

from duly.instant import Instant
from duly.store.history import HistoryReader, Result, RunRow, length_us

LENGTHS_KEPT = 20
SLOTS_KEPT = 60
_LONGEST_STREAK = 1_000
"""So many failures in a row are counted of before this process."""
RAN = "."
_SLOTS = {"overlap": "o", "target-not-found": "t"}
"""The misses that count. What the daemon missed while it was down, or somebody disabled, blames no job."""
_UNJUDGED = frozenset({None, Result.INTERRUPTED, Result.CANCELLED})
"""Somebody cut the run off: that says nothing about the job."""


class Past(msgspec.Struct, frozen=True, gc=False):
    lengths_us: tuple[int, ...] = ()
    """Of the newest runs that ended well, oldest first."""
    failed: int = 0
    """How many runs failed since the last that ended well."""
    failing_since_us: Instant | None = None
    """When the first of those started."""
    last_success_us: Instant | None = None
    why: str = ""
    """How the last of those ended, in words."""

    @property
    def p95_us(self) -> int | None:
        """The 95th percentile of those lengths."""
        ordered = sorted(self.lengths_us)
        return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None

    def after(self, row: RunRow) -> "Past":
        """The past once the run of *row* has ended."""
        if row.result in _UNJUDGED or row.ended_us is None:
            return self
        if row.result != Result.SUCCESS:
            return msgspec.structs.replace(
                self,
                failed=self.failed + 1,
                failing_since_us=row.started_us if self.failing_since_us is None else self.failing_since_us,
                why=row.message or f"ended with {row.result}",
            )
        lengths_us = (*self.lengths_us, length_us(row) or 0)[-LENGTHS_KEPT:]
        return Past(lengths_us, last_success_us=row.ended_us)


class Known(NamedTuple):
    """What is known of a service from its history: its past, and its newest run that has ended."""

    past: Past
    last: RunRow


def known_services(reader: HistoryReader) -> dict[str, Known]:
    lengths_us = reader.lengths(LENGTHS_KEPT)
    return {
        name: Known(_past_of(reader, last, lengths_us.get(name, ())), last)
        for name, last in reader.last_ends().items()
    }


def _past_of(reader: HistoryReader, last: RunRow, lengths_us: tuple[int, ...]) -> Past:
    if last.result == Result.SUCCESS:
        return Past(lengths_us, last_success_us=last.ended_us)
    # Since when, and whether ever it was otherwise. Of most services nobody has to ask that.
    for most in (LENGTHS_KEPT, _LONGEST_STREAK):
        past = Past()
        for row in reversed(reader.runs(service=last.service, limit=most, with_output=False)):
            past = past.after(row)
        if past.last_success_us is not None:
            break
    return past


def known_slots(reader: HistoryReader) -> dict[str, str]:
    """The newest slots of each timer that has missed any."""
    found: dict[str, str] = {}
    for timer, _, miss in reader.newest_slots(SLOTS_KEPT):
        found[timer] = after_slot(found.get(timer, ""), miss)
    return found


def after_slot(slots: str, miss: str | None) -> str:
    """The newest slots of a timer, one letter for each, with one more: None if a run answered it."""
    return (slots + (RAN if miss is None else _SLOTS.get(miss, "")))[-SLOTS_KEPT:]


def missed_slots(slots: str) -> tuple[int, list[str]]:
    """How many of them were missed, and why."""
    reasons = [reason for reason, letter in _SLOTS.items() if letter in slots]
    return sum(letter != RAN for letter in slots), reasons
