"""What pages show of a run: its facts, its output, what a retry tries again, and the slot that began it."""

import pytest

from duly.store.history import RunRow
from duly.web.runs import Lineage, output_piece, retried_by, run_facts
from tests.worlds.daemons import NOW_US

SLOT_US = 1_000


def _run(number: int, reason: str, *, service: str = "job", slot_us: int | None = None) -> RunRow:
    return RunRow(
        id=number, service=service, timer="t", reason=reason, scheduled_us=slot_us, started_us=number
    )


SLOT = _run(1, "schedule", slot_us=SLOT_US)


@pytest.mark.parametrize(
    ("row", "earlier", "found"),
    [
        (SLOT, [], Lineage(slot_us=SLOT_US)),
        (_run(9, "catch-up", slot_us=7), [SLOT], Lineage(slot_us=7)),
        (_run(9, "manual"), [SLOT], Lineage()),
        (_run(9, "interval", slot_us=7), [SLOT], Lineage()),
        (_run(4, "retry", slot_us=7), [SLOT], Lineage(retried=SLOT, slot_us=SLOT_US, slot_run=SLOT)),
        (
            _run(4, "retry"),
            [_run(3, "retry"), SLOT],
            Lineage(retried=_run(3, "retry"), slot_us=SLOT_US, slot_run=SLOT),
        ),
        (_run(4, "retry"), [_run(3, "trigger"), SLOT], Lineage(retried=_run(3, "trigger"))),
        (_run(4, "retry"), [_run(3, "retry")], Lineage(retried=_run(3, "retry"))),
        (_run(4, "retry"), [], Lineage()),
        (_run(4, "retry"), [_run(3, "schedule", service="other", slot_us=2)], Lineage()),
    ],
)
def test_what_a_run_tries_again(row: RunRow, earlier: list[RunRow], found: Lineage) -> None:
    """A retry names the run before it and the slot behind all retries, as far as those are kept."""
    assert retried_by(row, earlier) == found


def test_run_facts() -> None:
    """A run tells its cause, how late it was, and how long it took or takes."""
    row = RunRow(id=1, service="a", reason="catch-up", scheduled_us=NOW_US - 9, started_us=NOW_US - 5)
    facts = run_facts(row, NOW_US)
    assert (facts.late_us, facts.lasted_us, facts.mark.word) == (4, 5, "running")
    assert "caught up" in facts.cause


@pytest.mark.parametrize(
    ("since", "lost_before", "text", "is_whole"),
    [(0, 7, "abc", False), (2, 7, "c", False), (3, 7, "", False), (4, 7, "abc", True), (2, 0, "abc", True)],
)
def test_output_piece(since: int, lost_before: int, text: str, is_whole: bool) -> None:
    """A piece goes on where one was; if the beginning was dropped meanwhile, it is all anew."""
    piece = output_piece("abc", 7, since=since, lost_before=lost_before, is_running=True)
    assert (piece.text, piece.is_whole, piece.place) == (text, is_whole, 3)
