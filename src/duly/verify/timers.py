"""The monitor of timers: holds what a daemon emits about them against spec/timers.md 9, while it happens.

It shares no code with what fires them (`timers/`, `core/`, `cron/`). Slots come from its own reading of civil
time. Lengths of time come from a steady clock: neither a clock that is set nor a host that is suspended looks
like a fault. It keeps a handful of values for each timer, however long they run. Of what happened before it
began to watch it knows what the store says (`ZonedTimer`); the rest it holds against nobody.

Where machines share timers it sees only what its own machine does. It checks that a firing is founded in the
timer's definition, that no slot is answered twice here, and that runs of a target here do not overlap. It
checks a retry if the token says that no other node has claimed the timer since the failure. It cannot know
whether every slot is answered (V1). Lengths of time are then those of the database, on whose clock rows
count.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from heapq import heappop, heappush
from typing import Any, ClassVar, NamedTuple

import msgspec

from duly.events import Announcer, Event, Listener
from duly.instant import MINUTE_US, SECOND_US
from duly.verify.dues import NEVER_US, Slots, face_at, instant_us
from duly.verify.properties import Tally, Verdict
from duly.verify.trace import TimerDeclared

TIMER_PROPERTIES: Mapping[str, str] = {
    "V1": "every slot is fired for or missed within a minute while timers are at work",
    "V2": "every firing answers a slot, a start-up, an interval, a retry, what was missed, or a person",
    "V3": "no slot is answered twice",
    "V4": "no two runs of one target overlap",
    "V5": "retries come only after an exit code, not before their delay, and not beyond their number",
}

_RECALLED = "TimerRecalled"
"""A timer is at work again, and goes on from what the store says of it."""
CHANGES = frozenset({"TimerAdded", "TimerOverridden", _RECALLED})
"""Events of timers that are new, or count again from now, or are back."""
_ANSWERED_WITHIN_US = MINUTE_US
_TELLING_US = MINUTE_US
"""How long a slow store may take between a decision, which is what the contract times, and its event."""
_TOLERANCE_US = SECOND_US
"""Between something and the event that reports it."""
_SHARED_TOLERANCE_US = 5 * SECOND_US
"""The same where an event is dated by what a machine knows of the database's time."""
_STEP_BACK_US = 5 * MINUTE_US
"""A clock set back further than this makes slots count from the new time."""


class ZonedTimer(NamedTuple):
    """A timer and the zone of its calendar."""

    timer: TimerDeclared
    zone: tzinfo


def zoned_timer(timer: object, zone: tzinfo, **row: int | None) -> ZonedTimer:
    """A timer of a configuration, and what its row in the store says (the last fields of `TimerDeclared`)."""
    declared = msgspec.convert(timer, TimerDeclared, from_attributes=True)
    return ZonedTimer(msgspec.structs.replace(declared, **row), zone)


@dataclass(slots=True)
class WatchedTimer:
    """What is kept of one timer, however long it runs. Times are of the wall clock by default."""

    declared: ZonedTimer
    slots: Slots
    answered_us: int
    """Every slot up to here was answered, or is not asked for."""
    slot_us: int = NEVER_US
    """The next one."""
    noticed_us: int | None = None
    """Since when, on the steady clock, that slot is known to have come."""
    last_slot_us: int | None = None
    """The latest slot that was fired for or missed."""
    old_miss_us: int | None = None
    """What a session before reported last as missed, until there is a miss in this."""
    token: int | None = None
    """That of its last firing, where machines share it."""
    firing_run: int | None = None
    firing_slot_us: int | None = None
    has_begun: bool = False
    """Whether the run of the last firing got a process."""
    fired_at_us: int | None = None
    result: str | None = None
    """How its last run ended; None while it is under way, and before the first."""
    ended_us: int = 0
    """When, on the steady clock."""
    retries: int = 0
    has_started_up: bool = False
    is_queued: bool = False
    """Something waits for the end of a run, and may come late."""


class ComeSlot(NamedTuple):
    """A slot that has come, and is to be answered in time."""

    noticed_us: int
    slot_us: int
    name: str


@dataclass(slots=True)
class WatchedTarget:
    """What is kept of one service that timers start."""

    run: int | None = None
    begun_us: int = 0
    ended_us: int | None = None
    """The end of its last run, on the steady clock."""


class Finding(NamedTuple):
    property: str
    verdict: Verdict
    violated: int
    checked: int
    words: str


class TimerMonitor:
    """Watches the timers of a daemon. Give it to the daemon as a listener.

    *declared* answers with the timers at work; it is asked when they change. *listeners* get every
    `PropertyViolated`; who gives *announce* gets it instead of them and of the log. *is_shared* says that
    other machines have the same timers.
    """

    def __init__(
        self,
        declared: Callable[[], Iterable[ZonedTimer]],
        listeners: Iterable[Listener] = (),
        *,
        steady_us: Callable[[], int] | None = None,
        is_shared: bool = False,
        announce: Callable[..., object] | None = None,
    ) -> None:
        self._declared = declared
        self._announce = announce or Announcer(listeners, lambda: self._now).announce
        self._is_shared = is_shared
        self._tolerance_us = _SHARED_TOLERANCE_US if is_shared else _TOLERANCE_US
        self.properties = {
            name: words for name, words in TIMER_PROPERTIES.items() if not is_shared or name != "V1"
        }
        self._steady_us = steady_us or (lambda: time.monotonic_ns() // 1_000)
        self._now = datetime.min.replace(tzinfo=UTC)
        self._timers: dict[str, WatchedTimer] = {}
        self._targets: dict[str, WatchedTarget] = {}
        """Every service that some timer starts, or started."""
        self._ahead: list[tuple[int, str]] = []
        """The next slots, the earliest first; one that is not its timer's any more is passed over."""
        self._come: deque[ComeSlot] = deque()
        """Slots that have come, in the order in which they were noticed; some are answered by now."""
        self._changes: dict[str, tuple[int, bool]] = {}
        """Since when a timer is new, changed or back, and if back; its definition is yet to be asked for."""
        self._is_up = False
        self._is_store_faulty = False
        self._started_up_us: int | None = None
        self._tallies = {name: Tally() for name in TIMER_PROPERTIES}

    # --- what is known ---

    def findings(self) -> list[Finding]:
        return [
            Finding(
                name, self.verdict(name), self._tallies[name].violated, self._tallies[name].checked, words
            )
            for name, words in self.properties.items()
        ]

    def verdict(self, name: str) -> Verdict:
        tally = self._tallies[name]
        if tally.violated:
            return Verdict.VIOLATED
        return Verdict.HOLDS if tally.checked else Verdict.INCONCLUSIVE

    # --- what the daemon emits ---

    def listener(self, event: Event) -> None:
        if event.name in CHANGES:
            # A reload reports thousands, one by one: their next slots are worked out once, after all of them.
            if self._is_up:
                self._changes[event.fields["timer"]] = instant_us(event.time), event.name == _RECALLED
            return
        self._take_up_changed()
        handler = self.handlers.get(event.name)
        # A slot that comes with this event is not yet late, but may be answered by it.
        if handler is not None:
            self._now = event.time
            handler(self, instant_us(event.time), event.fields)
        self.look(event.time)

    def look(self, now: datetime) -> None:
        """Notice slots that nothing has answered; ask from time to time, for silence is no event."""
        self._now = now
        self._take_up_changed()
        if self._is_up and not self._is_store_faulty:
            self._notice(instant_us(now), self._steady_us())

    def silence_us(self, now: datetime) -> int | None:
        """How long no look can find anything, unless an event comes meanwhile; None: for ever."""
        if not self._is_up or self._is_store_faulty:
            return None
        if self._changes:
            return 0
        while self._come and self._timer_to_answer(self._come[0]) is None:
            self._come.popleft()
        while self._ahead and not self._is_awaited(*self._ahead[0]):
            heappop(self._ahead)
        waits_us = []
        if self._come:
            waits_us.append(self._come[0].noticed_us + 1 - self._steady_us())
        if self._ahead:
            waits_us.append(self._ahead[0][0] - instant_us(now))
        return max(min(waits_us) + _ANSWERED_WITHIN_US, 0) if waits_us else None

    def _on_started_up(self, _now_us: int, _fields: Mapping[str, Any]) -> None:
        self._started_up_us = self._steady_us()
        for timer in self._timers.values():
            timer.has_started_up = False

    def _on_up(self, now_us: int, _fields: Mapping[str, Any]) -> None:
        self._is_up = True
        before, self._timers = self._timers, {}
        self._ahead.clear()
        self._come.clear()
        for target in self._targets.values():
            target.ended_us = None  # intervals now count from a wall time, also if the clock was set
        for declared in self._declared():
            name = declared.timer.id
            self._take_up(declared, now_us, before.get(name), is_known=True)

    def _on_down(self, _now_us: int, _fields: Mapping[str, Any]) -> None:
        self._is_up = False
        for timer in self._timers.values():
            timer.result, timer.firing_run, timer.noticed_us = None, None, None

    def _take_up_changed(self) -> None:
        changes, self._changes = self._changes, {}
        for declared in self._declared() if changes else ():
            name = declared.timer.id
            if name in changes:
                since_us, is_known = changes[name]
                self._take_up(declared, since_us, self._timers.get(name), is_known=is_known)

    def _take_up(
        self, declared: ZonedTimer, since_us: int, before: WatchedTimer | None, *, is_known: bool
    ) -> None:
        """Watch a timer; *is_known*: what its row in the store says of the time before holds."""
        answered_us = _answered_before(declared, since_us) if is_known else since_us
        timer = WatchedTimer(declared, Slots(*declared), answered_us)
        timer.old_miss_us = declared.timer.missed_us if is_known else None
        if before is not None:
            timer.has_started_up = before.has_started_up
            timer.firing_run, timer.fired_at_us = before.firing_run, before.fired_at_us
            timer.has_begun = before.has_begun
        self._timers[declared.timer.id] = timer
        self._targets.setdefault(declared.timer.target, WatchedTarget())
        self._expect(timer)

    def _on_removed(self, _now_us: int, fields: Mapping[str, Any]) -> None:
        self._timers.pop(fields["timer"], None)

    def _on_action(self, _now_us: int, fields: Mapping[str, Any]) -> None:
        """A timer that is switched off forgets its retries; switched on again, it has all of them."""
        timer = self._timers.get(fields["id"] or "")
        if timer is not None and fields["action"] == "disable":
            timer.retries = 0

    def _on_step(self, _now_us: int, fields: Mapping[str, Any]) -> None:
        """After a large step back slots count from the new time, also those that were answered before."""
        before_us, after_us = _instant(fields["before"]), _instant(fields["after"])
        if before_us - after_us <= _STEP_BACK_US:
            return
        for timer in self._timers.values():
            timer.last_slot_us = None
            timer.answered_us = min(timer.answered_us, after_us)
            timer.slots.unanchor(after_us)
            self._expect(timer)

    def _forget(self, _now_us: int, _fields: Mapping[str, Any]) -> None:
        """What this machine has done may be undone: the rows are as they were before its runs."""
        for timer in self._timers.values():
            timer.last_slot_us = timer.firing_run = timer.token = None
            timer.ended_us = 0

    def _on_store_fault(self, _now_us: int, _fields: Mapping[str, Any]) -> None:
        """While nothing can be written no timer fires, and that is as it should be."""
        self._is_store_faulty = True
        while self._come:
            timer = self._timer_to_answer(self._come.popleft())
            if timer is not None:
                self._expect_again(timer)

    def _on_store_recovered(self, _now_us: int, _fields: Mapping[str, Any]) -> None:
        self._is_store_faulty = False

    # --- V1: every slot is answered ---

    def _expect(self, timer: WatchedTimer) -> None:
        if self._is_shared:
            return  # another machine may answer it
        slot_us = timer.slots.after(timer.answered_us)
        if slot_us != timer.slot_us:
            timer.slot_us, timer.noticed_us = slot_us, None
            if slot_us < NEVER_US:
                heappush(self._ahead, (slot_us, timer.declared.timer.id))

    def _expect_again(self, timer: WatchedTimer) -> None:
        timer.noticed_us = None
        heappush(self._ahead, (timer.slot_us, timer.declared.timer.id))

    def _answer(self, timer: WatchedTimer, now_us: int) -> None:
        self._is_store_faulty = False
        if timer.slot_us <= now_us:
            self._tallies["V1"].checked += 1
        timer.answered_us = max(timer.answered_us, now_us)
        self._expect(timer)

    def _notice(self, now_us: int, steady_us: int) -> None:
        # Each slot is taken from the heap once, however many events come before it is answered.
        while self._ahead and self._ahead[0][0] <= now_us:
            slot_us, name = heappop(self._ahead)
            if not self._is_awaited(slot_us, name):
                continue
            awaited = self._timers[name]
            if _is_old_miss(awaited, now_us):
                self._answer(awaited, now_us)
                continue
            awaited.noticed_us = steady_us
            self._come.append(ComeSlot(steady_us, slot_us, name))
        while self._come and steady_us - self._come[0].noticed_us > _ANSWERED_WITHIN_US:
            come = self._come.popleft()
            timer = self._timer_to_answer(come)
            if timer is not None and come.slot_us <= now_us:
                self._object_to_silence(timer, now_us)
            elif timer is not None:  # the clock was set back since: it has yet to come again
                self._expect_again(timer)

    def _is_awaited(self, slot_us: int, name: str) -> bool:
        """Whether this is a timer's next slot, and it has not been seen to come."""
        timer = self._timers.get(name)
        return timer is not None and timer.slot_us == slot_us and timer.noticed_us is None

    def _timer_to_answer(self, come: ComeSlot) -> WatchedTimer | None:
        """The timer that has yet to answer this slot; None if it has, or is not asked any more."""
        timer = self._timers.get(come.name)
        is_its = timer is not None and (timer.slot_us, timer.noticed_us) == (come.slot_us, come.noticed_us)
        return timer if is_its else None

    def _object_to_silence(self, timer: WatchedTimer, now_us: int) -> None:
        self._tallies["V1"].checked += 1
        when = face_at(timer.slot_us, timer.declared.zone).isoformat()
        self._object("V1", timer, f"nothing has answered the slot {when}: no run and no miss")
        timer.answered_us = max(timer.answered_us, now_us)
        self._expect(timer)

    # --- V2, V3, V5: what is fired and missed ---

    def _on_fired(self, now_us: int, fields: Mapping[str, Any]) -> None:
        timer = self._timers.get(fields["timer"])
        if timer is None:
            return
        reason = fields["reason"]
        due_us = None if fields["scheduledTime"] is None else _instant(fields["scheduledTime"])
        self._tallies["V2"].checked += 1
        is_queued, timer.is_queued = timer.is_queued, False
        fault = None if is_queued else self._why_unfounded(timer, reason, due_us, now_us)
        if fault is not None:
            self._object("V2", timer, f"it fired for {reason}, but {fault}")
        is_past = due_us is not None and due_us <= now_us
        is_slot = reason in {"schedule", "catch-up"} and is_past and timer.slots.has(due_us or 0)
        # No event reports a start that was called off; its row is free again.
        is_called_off = self._is_shared and not timer.has_begun and due_us == timer.firing_slot_us
        if is_slot and not is_called_off and not _is_making_up(timer, reason, due_us):
            self._answer_slot(timer, due_us)
        before, timer.token = timer.token, fields.get("token")
        if reason == "retry" and (not self._is_shared or _follows(before, timer.token)):
            self._check_retry(timer)
        timer.retries = timer.retries + 1 if reason == "retry" else 0
        timer.has_started_up = timer.has_started_up or reason == "startup"
        timer.firing_run, timer.firing_slot_us = fields["runId"], due_us if is_slot else None
        timer.has_begun, timer.fired_at_us, timer.result = False, now_us, None
        self._answer(timer, now_us)

    def _why_unfounded(self, timer: WatchedTimer, reason: str, due_us: int | None, now_us: int) -> str | None:
        """Why a firing answers nothing; None if it does."""
        declared = timer.declared.timer
        steady_us = self._steady_us()
        is_ahead = due_us is not None and due_us > now_us + self._tolerance_us
        # A run that was cut off may lie ahead, if the clock was set back before it could be made up for.
        if is_ahead and reason not in {"trigger", "catch-up"}:
            return "what it is for has not come yet"
        if reason == "schedule":
            if due_us is None or not timer.slots.has(due_us):
                return "that is no slot of its calendar"
            is_late = now_us - due_us > _ANSWERED_WITHIN_US + _TELLING_US
            return "the slot was long past" if is_late else None
        if reason == "catch-up":
            return self._not_to_be_made_up(timer, due_us, now_us)
        if reason == "startup":
            if declared.on_startup_sec is None:
                return "it has no start-up trigger"
            if self._is_shared:
                return None  # it may be the start-up of another machine
            if timer.has_started_up:
                return "it had done so since start-up"
            return self._too_early(self._started_up_us, declared.on_startup_sec, steady_us, "start-up")
        if reason == "interval":
            if declared.on_unit_active_sec is None:
                return "it has no interval"
            ended_us = self._targets[declared.target].ended_us
            if self._is_shared:  # the row has other runs of the target a moment later
                ended_us = timer.ended_us or None
            return self._too_early(ended_us, declared.on_unit_active_sec, steady_us, "the target's last run")
        return None if reason in {"retry", "trigger"} else "nobody knows such a reason"

    def _not_to_be_made_up(self, timer: WatchedTimer, due_us: int | None, now_us: int) -> str | None:
        declared = timer.declared.timer
        if due_us is None:
            return "it does not say what for"
        if not declared.persistent:
            return "it is not persistent"
        window_us = round(declared.catch_up_window_sec * SECOND_US)
        if now_us - due_us > window_us + _TELLING_US:
            return "what it missed lies outside its window"
        # The start of a run that was cut off counts as missed; runs of an earlier process, or of another
        # machine, are not known here.
        if (
            self._is_shared
            or timer.slots.has(due_us)
            or timer.fired_at_us is None
            or timer.result in {None, "interrupted"}
        ):
            return None
        return "that is no slot of its calendar, and no run was cut off"

    def _answer_slot(self, timer: WatchedTimer, slot_us: int | None) -> None:
        assert slot_us is not None
        self._tallies["V3"].checked += 1
        if timer.last_slot_us is not None and slot_us <= timer.last_slot_us:
            when = face_at(slot_us, timer.declared.zone).isoformat()
            self._object("V3", timer, f"the slot {when} was answered before")
        timer.last_slot_us = max(slot_us, timer.last_slot_us or slot_us)

    def _check_retry(self, timer: WatchedTimer) -> None:
        self._tallies["V5"].checked += 1
        delays = timer.declared.timer.retry_intervals_sec
        if timer.result != "exit":
            self._object("V5", timer, f"it was retried after {timer.result or 'nothing that ended'}")
        elif timer.retries >= len(delays):
            self._object("V5", timer, f"it was retried {timer.retries + 1} times, and may be {len(delays)}")
        else:
            early = self._too_early(timer.ended_us, delays[timer.retries], self._steady_us(), "the failure")
            if early is not None:
                self._object("V5", timer, f"it was retried, but {early}")

    def _too_early(self, since_us: int | None, wait_sec: float, now_us: int, what: str) -> str | None:
        if since_us is None or now_us - since_us >= wait_sec * SECOND_US - self._tolerance_us:
            return None
        passed_s = (now_us - since_us) / SECOND_US
        return f"only {passed_s:.1f} of {wait_sec:g} seconds had passed since {what}"

    def _on_missed(self, now_us: int, fields: Mapping[str, Any]) -> None:
        timer = self._timers.get(fields["timer"])
        if timer is None:
            return
        slot_us = _instant(fields["slot"])
        # One that could not be started after all is first fired and then missed.
        is_refused = not timer.has_begun and timer.firing_run is not None and slot_us == timer.firing_slot_us
        if is_refused:
            timer.firing_run = timer.firing_slot_us = None
        elif fields["reason"] != "shutdown" and timer.slots.has(slot_us):
            self._answer_slot(timer, slot_us)
        timer.old_miss_us = None
        self._answer(timer, now_us)

    def _on_queued(self, now_us: int, fields: Mapping[str, Any]) -> None:
        timer = self._timers.get(fields["timer"])
        if timer is not None:
            timer.is_queued = True
            self._answer(timer, now_us)

    def _on_timer_ended(self, _now_us: int, fields: Mapping[str, Any]) -> None:
        timer = self._timers.get(fields["timer"])
        if timer is not None and timer.result is None and fields["runId"] == timer.firing_run:
            self._on_result(timer, fields["result"], self._steady_us())

    def _on_result(self, timer: WatchedTimer, result: str, ended_us: int) -> None:
        timer.result, timer.ended_us = result, ended_us
        if result == "success":
            timer.retries = 0

    # --- V4: runs of a target ---

    def _on_run_began(self, now_us: int, fields: Mapping[str, Any]) -> None:
        timer = self._timers.get(fields.get("timer") or "")
        if timer is not None and fields["runId"] == timer.firing_run:
            timer.has_begun = True
            self._answer(timer, now_us)  # a slot between the decision and the start is answered by it
        target = self._targets.get(fields["service"])
        if target is None:
            return
        self._tallies["V4"].checked += 1
        if target.run is not None and target.run != fields["runId"]:
            reason = (
                f"run {fields['runId']} of {fields['service']} began while run {target.run} was under way"
            )
            self._object("V4", timer, reason)
        target.run, target.begun_us = fields["runId"], self._steady_us()

    def _on_run_ended(self, _now_us: int, fields: Mapping[str, Any]) -> None:
        steady_us = self._steady_us()
        target = self._targets.get(fields["service"])
        if target is not None and target.run == fields["runId"]:
            target.run = None
            # The event may come after the end, when what a process left behind took its time to go.
            target.ended_us = min(steady_us, target.begun_us + round(fields["duration"] * 1_000))
        timer = self._timers.get(fields.get("timer") or "")
        if timer is not None and fields["runId"] == timer.firing_run:
            self._on_result(timer, fields["result"], steady_us)

    # --- what the daemon emits ---

    def _object(self, name: str, timer: WatchedTimer | None, reason: str) -> None:
        self._tallies[name].violated += 1
        self._announce(
            "PropertyViolated",
            property=name,
            taskName=None if timer is None else timer.declared.timer.id,
            at=self._now.isoformat(),
            reason=reason,
        )

    handlers: ClassVar[Mapping[str, Callable[["TimerMonitor", int, Mapping[str, Any]], None]]] = {
        "SupervisorStarted": _on_started_up,
        "SupervisorStopping": _on_down,
        "TimersEnabled": _on_up,
        "TimersDisabled": _on_down,
        "TimerRemoved": _on_removed,
        "TimerFired": _on_fired,
        "TimerMissed": _on_missed,
        "TimerQueued": _on_queued,
        "TimerRunEnded": _on_timer_ended,
        "ServiceRunStarted": _on_run_began,
        "ServiceRunEnded": _on_run_ended,
        "OperatorAction": _on_action,
        "ClockStepped": _on_step,
        "StoreFault": _on_store_fault,
        "StoreRecovered": _on_store_recovered,
        "TrustLost": _forget,
        "NodeReturned": _forget,
        "ServerChanged": _forget,
    }
    """The events that it listens to, besides changes of timers."""


def _is_old_miss(timer: WatchedTimer, now_us: int) -> bool:
    """Whether the latest of the slots that were jumped over is a miss that an earlier session announced.

    The clock was set back and forth again. Of slots that passed together the latest counts, and a miss that
    is on record is not announced again. A slot that comes in its time must be answered in any case.
    """
    old_miss_us = timer.old_miss_us
    if old_miss_us is None or now_us - old_miss_us <= _ANSWERED_WITHIN_US:
        return False
    return timer.slots.has(old_miss_us) and timer.slots.after(old_miss_us) > now_us


def _is_making_up(timer: WatchedTimer, reason: str, due_us: int | None) -> bool:
    """Whether a firing makes up for a run that was cut off, which began exactly at a slot."""
    return reason == "catch-up" and timer.result == "interrupted" and due_us == timer.fired_at_us


def _follows(before: int | None, token: int | None) -> bool:
    """Whether nobody has claimed a timer between these tokens."""
    return before is not None and token == before + 1


def _instant(text: str) -> int:
    return instant_us(datetime.fromisoformat(text))


def _answered_before(declared: ZonedTimer, now_us: int) -> int:
    """Up to where nothing is asked of a timer that is put to work now.

    After a small step back this lies in the future, if an earlier session answered slots up to there: such a
    minute does not come again. If it lies further ahead it counts for nothing, because slots start over.
    """
    answered_us = declared.timer.answered_us
    if answered_us is None or answered_us > now_us + _STEP_BACK_US:
        return now_us
    return max(now_us, answered_us)
