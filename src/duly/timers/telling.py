"""What a list of timers changed, told as events."""

from duly.events import Announcer
from duly.timers.reconciliation import Reconciliation
from duly.timers.record import REMEDY


def tell_outcome(announcer: Announcer, outcome: Reconciliation) -> None:
    """Tell which timers were added, changed, mended and removed, and which do not run."""
    announce = announcer.announce
    for timer in outcome.added:
        announce("TimerAdded", timer=timer.name, target=timer.target)
    for before, after in outcome.changed:
        announce(
            "TimerOverridden", timer=after.name, target=after.target, before=before.text, after=after.text
        )
    for timer in outcome.recalled:
        announce("TimerRecalled", timer=timer.name, target=timer.target)
    for timer in outcome.removed:
        announce("TimerRemoved", timer=timer.name, target=timer.target)
    for error in outcome.unreadable:
        announce("TimerUnreadable", timer=error.name, reason=error.reason, remedy=REMEDY)
