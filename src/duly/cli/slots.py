"""Why a timer fired, or did not, for a slot of its calendar; the answers live with the timers."""

from duly.timers.slots import (
    LATEST_RUNS,
    Fired,
    Kind,
    Missed,
    Record,
    SlotAnswer,
    why,
    why_latest,
)

__all__ = ["LATEST_RUNS", "Fired", "Kind", "Missed", "Record", "SlotAnswer", "why", "why_latest"]
