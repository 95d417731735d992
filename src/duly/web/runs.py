"""What pages show of runs: one in words, its output, the latest side by side, and what is around one."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from duly.core.causes import REASON_MEANINGS, SLOT_REASONS, Reason
from duly.daemon.backend import ReadBackend
from duly.daemon.remote import Place, runs_of
from duly.formatting import counted
from duly.instant import Instant
from duly.store.history import RemoteRun, RunRow, length_us
from duly.web import formatting
from duly.web.formatting import Mark, Moment

STRIP = 60
"""Runs in a strip."""
_RETRIES_FOLLOWED = 50


# --- one run in words ---


class RunFacts(NamedTuple):
    row: RunRow
    mark: Mark
    cause: str
    late_us: int | None
    lasted_us: int | None


def run_facts(row: RunRow, now_us: Instant) -> RunFacts:
    return RunFacts(
        row,
        run_mark(row),
        REASON_MEANINGS.get(row.reason, row.reason),
        None if row.scheduled_us is None else max(row.started_us - row.scheduled_us, 0),
        length_us(row, now_us),
    )


def run_mark(row: RunRow) -> Mark:
    return formatting.result_mark(row.result, is_running=row.ended_us is None, exit_code=row.exit_code)


def run_title(row: RunRow, moment: Moment) -> str:
    lasted = f" after {formatting.length(length_us(row))}" if row.ended_us is not None else ""
    of = f"run {row.id} of {formatting.visible(row.service)}{formatting.on_machine(row)}"
    return f"{of}, {moment.clock(row.started_us)}: {run_mark(row).word}{lasted} ({row.reason})"


# --- its output ---


class OutputPiece(msgspec.Struct, kw_only=True):
    text: str
    lost_bytes: int
    place: int
    """Where to go on from."""
    is_whole: bool
    """Whether it replaces what was shown before."""
    is_running: bool


def output_piece(
    text: str, lost_bytes: int, *, since: int, lost_before: int, is_running: bool
) -> OutputPiece:
    """The part of an output from character *since* on; all of it if its beginning was dropped meanwhile."""
    settled_output = formatting.settled_output(text) if is_running else text
    is_whole = lost_bytes != lost_before or since > len(settled_output)
    return OutputPiece(
        text=formatting.printed_output(settled_output if is_whole else settled_output[since:]),
        lost_bytes=lost_bytes,
        place=len(settled_output),
        is_whole=is_whole,
        is_running=is_running,
    )


# --- the latest runs side by side ---


class RunBar(NamedTuple):
    """One run in a strip. All but *tone* and *title* are percentages."""

    at: str
    width: str
    top: str
    height: str
    tone: str
    title: str


class Strip(NamedTuple):
    """The latest runs: their results side by side, and how long each took."""

    columns: tuple[RunBar, ...]
    longest: str
    median: str
    median_at: str | None
    """How far down the line of the median is."""
    summary: str


def strip_of(rows: Sequence[RunRow], moment: Moment) -> Strip | None:
    """The strip of some runs, which come newest first; None for none."""
    shown = list(reversed(rows[:STRIP]))
    if not shown:
        return None
    lasted = [length_us(row, moment.now_us) or 0 for row in shown]
    longest_us = max(*lasted, 1)
    ended = sorted(us for us, row in zip(lasted, shown, strict=True) if row.ended_us is not None)
    median_us = ended[len(ended) // 2] if ended else None
    step = 100 / STRIP
    begin = 100 - step * len(shown)
    columns = []
    for index, (row, us) in enumerate(zip(shown, lasted, strict=True)):
        tall = max(us / longest_us * 100, 2.0)
        columns.append(
            RunBar(
                f"{begin + index * step:.3f}%",
                f"{step * 0.72:.3f}%",
                f"{100 - tall:.2f}%",
                f"{tall:.2f}%",
                run_mark(row).tone,
                run_title(row, moment),
            )
        )
    good = sum(row.result == "success" for row in shown)
    return Strip(
        tuple(columns),
        formatting.length(longest_us),
        formatting.length(median_us),
        None if median_us is None else f"{100 - median_us / longest_us * 100:.2f}%",
        f"the last {counted(len(shown), 'run')}: {good} successful",
    )


# --- what is around a run ---


class Lineage(NamedTuple):
    """The runs before and after one, the run that it tries again, and the slot that began it."""

    older: int | None = None
    """The run before it, of the same service on this machine."""
    newer: int | None = None
    retried: RunRow | None = None
    """The run that it tries again."""
    slot_us: Instant | None = None
    """The slot that it answers, or, of a retry, that the first attempt was for."""
    slot_run: RunRow | None = None
    """The run that answered that slot, where it is another."""


async def lineage_of(backend: ReadBackend, row: RunRow) -> Lineage:
    """Look up what is around a run. Of a retry on another machine nobody here can say what it tries again."""
    if isinstance(row, RemoteRun):
        return retried_by(row, [])
    history = backend.history
    older = await history.runs(service=row.service, before=row.id, limit=1, with_output=False)
    earlier: list[RunRow] = []
    if row.reason == Reason.RETRY and row.timer is not None:
        found = await runs_of(backend, timer=row.timer, place=Place(row.id), limit=_RETRIES_FOLLOWED)
        earlier = found.rows if found.fault is None else []
    return retried_by(row, earlier)._replace(
        older=older[0].id if older else None, newer=await history.next_id(row.service, row.id)
    )


def retried_by(row: RunRow, earlier: Sequence[RunRow]) -> Lineage:
    """What a run tries again, if it is a retry, and the slot; *earlier* are its timer's, newest first.

    A retry says of itself only when it was due. The run that it tries again is the one before it, which for
    a second retry is the first; and behind all retries stands the run for a slot.
    """
    if row.reason in SLOT_REASONS:
        return Lineage(slot_us=row.scheduled_us)
    if row.reason != Reason.RETRY or not earlier or earlier[0].service != row.service:
        return Lineage()
    first = next((one for one in earlier if one.reason != Reason.RETRY), None)
    if first is None or first.reason not in SLOT_REASONS:
        return Lineage(retried=earlier[0])
    return Lineage(retried=earlier[0], slot_us=first.scheduled_us, slot_run=first)
