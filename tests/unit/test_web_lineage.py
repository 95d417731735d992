"""What is around a run: which run a retry tries again, and the slot that began it."""

import pytest

from duly.store.history import RunRow
from duly.web.lineage import Lineage, retried_by

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
        (_run(4, "retry", slot_us=7), [SLOT], Lineage(retried=1, slot_us=SLOT_US, slot_run=1)),
        (_run(4, "retry"), [_run(3, "retry"), SLOT], Lineage(retried=3, slot_us=SLOT_US, slot_run=1)),
        (_run(4, "retry"), [_run(3, "trigger"), SLOT], Lineage(retried=3)),
        (_run(4, "retry"), [_run(3, "retry")], Lineage(retried=3)),
        (_run(4, "retry"), [], Lineage()),
        (_run(4, "retry"), [_run(3, "schedule", service="other", slot_us=2)], Lineage()),
    ],
)
def test_what_a_run_tries_again(row: RunRow, earlier: list[RunRow], found: Lineage) -> None:
    """A retry names the run before it and the slot behind all retries, as far as those are kept."""
    assert retried_by(row, earlier) == found
