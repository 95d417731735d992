"""The monitor of timers that machines share: it watches those that this machine holds, while it holds them.

What happened elsewhere it has not seen, and holds against nobody: with every stint (`declared.Stint`) it
knows no more of a timer than its row says, and when timers were kept from firing for a while, slots are asked
for anew. Start-ups are those of another machine, perhaps, so it does not time them. All times are the
board's, lengths of time as well: a host whose clocks are off is none of its business.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from duly.events import Event, Listener
from duly.verify.declared import Declared
from duly.verify.dues import instant_us
from duly.verify.timers import TimerMonitor
from duly.verify.watched import Watched

HELD_PROPERTIES: Mapping[str, str] = {
    "V1": "every slot that comes while this machine holds its timer is answered in a minute and four leases",
    "V2": "every firing here answers a slot, a start-up, an interval, a retry, what was missed, or a person",
    "V3": "no slot is answered twice here while this machine holds its timer",
    "V4": "no two runs of one target overlap on this machine",
    "V5": "retries here come only after an exit code, not before their delay, and not beyond their number",
}

UNWATCHED = (
    "Other machines share the timers. This one watches those that it holds, while it holds them. Nobody here"
    " checks what goes on between machines: that two of them do not answer the same slot or run the same job"
    " at once, and that no slot is lost while nobody holds its timer."
)

_LOOKS_EVERY_US = 60 * 1_000_000
"""Stints change without a word."""


class HeldMonitor(TimerMonitor):
    """Watches the timers that are at work on this machine. Events must come with the time of the board.

    *declared* answers with those; *stints* tells, by shard, how they are at work (`declared.Stint`), and is
    asked often.
    """

    properties = HELD_PROPERTIES

    def __init__(
        self,
        declared: Callable[[], Iterable[Declared]],
        stints: Callable[[], Mapping[int, tuple[int, int, bool]]],
        listeners: Iterable[Listener] = (),
        *,
        steady_us: Callable[[], int],
        slack_us: int = 0,
    ) -> None:
        super().__init__(declared, listeners, steady_us=steady_us, slack_us=slack_us)
        self._stints = stints
        self._known: Mapping[int, tuple[int, int, bool]] = {}

    def listener(self, event: Event) -> None:
        """Take one event."""
        self._heed(instant_us(event.time))
        super().listener(event)

    __call__ = listener

    def look(self, now: datetime) -> None:
        """Notice slots that nothing has answered."""
        self._heed(instant_us(now))
        super().look(now)

    def silence_us(self, now: datetime) -> int | None:
        """How long no look can find anything: a minute at most, while timers are at work."""
        silence_us = super().silence_us(now)
        if not self._is_up:
            return None
        return _LOOKS_EVERY_US if silence_us is None else min(silence_us, _LOOKS_EVERY_US)

    # --- stints ---

    def _heed(self, now_us: int) -> None:
        """Watch what came here, and forget what went away, since we last looked."""
        if not self._is_up or (stints := self._stints()) == self._known:
            return
        self._known = stints
        held = {declared.timer.id: declared for declared in self._declared()}
        for name in self._timers.keys() - held.keys():
            del self._timers[name]
        for name, declared in held.items():
            timer = self._timers.get(name)
            if timer is None or timer.declared.stint.number != declared.stint.number:
                self._take_up(declared, now_us, None, is_known=True)
            elif timer.declared.stint != declared.stint:
                timer.declared = timer.declared._replace(stint=declared.stint)
                self._expect_again(timer)

    def _went_up(self, now_us: int, _fields: Mapping[str, Any]) -> None:
        self._is_up = True
        self._timers.clear()
        self._ahead.clear()
        self._come.clear()
        self._known = {}
        self._heed(now_us)

    def _take_up(self, declared: Declared, since_us: int, before: Watched | None, *, is_known: bool) -> None:
        super()._take_up(declared, since_us, before, is_known=is_known)
        timer = self._timers[declared.timer.id]
        timer.is_retried_unseen = declared.is_under_way
        # What the interval counts from is a wall time again, perhaps from another machine.
        self._targets[declared.timer.target].ended_us = None

    def _removed(self, now_us: int, fields: Mapping[str, Any]) -> None:
        """With another target a timer is in another shard; that it is no more in the old one is told too."""
        timer = self._timers.get(fields["timer"])
        if timer is not None and timer.declared.timer.target == fields["target"]:
            super()._removed(now_us, fields)

    # --- what one machine cannot judge ---

    def _started_up(self, _now_us: int, _fields: Mapping[str, Any]) -> None:
        """Pass over it: that counts from the start of the first machine, whenever that was."""

    def _fired(self, now_us: int, fields: Mapping[str, Any]) -> None:
        timer = self._timers.get(fields["timer"])
        if timer is not None and fields["reason"] != "retry":
            timer.is_retried_unseen = False
        super()._fired(now_us, fields)

    def _check_retry(self, timer: Watched) -> None:
        if not timer.is_retried_unseen:
            super()._check_retry(timer)
