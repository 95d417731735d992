"""What is known of a timer in two places: the later declaration counts, unless a run is in flight here."""

import msgspec

from duly.timers.recall import newest
from duly.timers.timer import TimerState
from tests.timer_world import timer


def state(at_us: int, *, timer_id: int = 1, run: int | None = None) -> TimerState:
    """A timer declared at *at_us*."""
    made = TimerState(
        id=timer_id,
        name="t",
        definition=timer(),
        text="",
        calendars=(),
        order=0,
        registered_us=at_us,
        answered_us=at_us,
        slot_us=0,
    )
    return msgspec.structs.replace(made, running_run=run)


def test_newest() -> None:
    """The newer one is taken, under the id that it has here; what runs here, or is newer here, stays."""
    moved = state(5, timer_id=9)
    assert newest({}, {"t": moved}) == {"t": moved}
    assert newest({"t": state(3)}, {"t": moved}) == {"t": state(5)}
    for here in (state(7), state(5), state(3, run=4)):
        assert newest({"t": here}, {"t": moved}) == {"t": here}
