"""What a row keeps of a timer, and what becomes of one whose run was cut off."""

from datetime import UTC
from typing import Any

import msgspec
import pytest

from duly.cluster.table import Claimed
from duly.cluster_timers.rows import RowState, TimerCodec, TimerList
from duly.instant import MINUTE_US, SECOND_US
from duly.timers.record import TimerRecordError
from duly.timers.timer import TimerState
from tests.worlds.timers import HOURLY, timer

NOON_US = 1_767_268_800 * SECOND_US
LATER_US = NOON_US + MINUTE_US


async def _nothing() -> None: ...


def codec(**options: Any) -> TimerCodec:
    """A codec with the timer "t"."""
    made = TimerCodec(UTC, _nothing, lambda _run: None)
    made.listed = TimerList([timer("t", **options)], made.calendars)
    return made


def claimed(
    of: TimerCodec, *, request: str | None = None, cut_us: int | None = None, **kept: Any
) -> TimerState:
    """The timer of a row that was claimed."""
    state = msgspec.json.encode(RowState(registered_us=NOON_US, answered_us=NOON_US, **kept)).decode()
    row = Claimed(1, "t", of.listed.hash_of("t") or 0, 7, state, LATER_US, cut_us, 0, request)
    item = of.item(row, LATER_US)
    assert item is not None
    return item


def test_a_row_keeps_a_timer() -> None:
    """What a row keeps comes back as it was."""
    of = codec(on_calendar=HOURLY)
    kept: dict[str, Any] = {"anchor_us": 5, "retry_attempt": 2, "retry_at_us": 9}
    item = claimed(of, **kept, startup_at_us=3, startup_triggered=True, last_result="exit")
    assert msgspec.json.decode(of.state(item)) == {
        "registered_us": NOON_US,
        "answered_us": NOON_US,
        "last_result": "exit",
        "startup_at_us": 3,
        "startup_triggered": True,
        **kept,
    }


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"registered_us": -1e40, "answered_us": 1}'])
def test_a_damaged_row(state: str) -> None:
    """A state that cannot be read is an error with the timer's name."""
    of = codec(on_calendar=HOURLY)
    with pytest.raises(TimerRecordError, match='timer "t" cannot be read'):
        of.timer("t", state, enabled=None)
    assert list(of.unreadable) == ["t"]


@pytest.mark.parametrize(
    ("kept", "request_text", "retry_attempt", "startup_triggered"),
    [
        ({}, None, 0, False),
        ({"retry_at_us": NOON_US + 1, "retry_attempt": 1}, None, 1, False),
        ({"startup_at_us": NOON_US + 1}, None, 0, True),
        ({}, f"startup {NOON_US}", 0, True),
        ({"startup_at_us": LATER_US}, f"passed {LATER_US}", 0, True),
    ],
)
def test_cut_off(
    kept: dict[str, Any], request_text: str | None, retry_attempt: int, startup_triggered: bool
) -> None:
    """A run that was cut off has answered what was due when it began, and counts as interrupted."""
    of = codec(on_startup_sec=1, on_unit_active_sec=60)
    item = claimed(of, request=request_text, cut_us=NOON_US + 2 * SECOND_US, **kept)
    assert (item.interrupted, item.last_result, item.retry_at_us) == (True, "interrupted", None)
    assert (item.retry_attempt, item.startup_triggered) == (retry_attempt, startup_triggered)
    assert item.last_run_us == item.answered_us == item.anchor_us == NOON_US + 2 * SECOND_US


def test_another_definition_is_not_ours() -> None:
    """A row with a definition that is not in the list is no timer of this node."""
    of = codec(on_calendar=HOURLY)
    assert of.item(Claimed(1, "t", 99, 7, "{}", LATER_US, None, 0, None), LATER_US) is None
