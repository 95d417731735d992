"""Who watches the daemon: metrics, spans, the dead-man's switch, and the monitor of its timers.

They are listeners of its events. What has to be installed first is left out if it is not. What a watcher
finds out itself, such as a ping that failed, it tells to `told` and the log.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from duly.clock import Clock, HostClock, until_minute_s
from duly.config import Config
from duly.daemon.daemon import Daemon
from duly.daemon.holding import Stopwatch, declared_of, stints_of
from duly.daemon.sharing import Sharing
from duly.events import Announcer, Event, Listener, described
from duly.instant import NEVER_US, SECOND_US, datetime_at, instant_of
from duly.observe.deadman import DeadMan
from duly.observe.spans import spans_if_installed
from duly.verify import properties as judgement
from duly.verify.declared import Declared
from duly.verify.held import UNWATCHED, HeldMonitor
from duly.verify.timers import Finding, TimerMonitor

if TYPE_CHECKING:
    from duly.observe.metrics import Metrics
    from duly.web.site import Verdict

_GRACE_S = 2.0
"""How long the end of the daemon waits for pings under way."""
_SAME_S = 0.001
_SLACK_LEASES = 4
"""For so many leases more than a minute a shared timer may take to answer: its writes may be tried again."""

_WORDS = {
    judgement.Verdict.HOLDS: "holds",
    judgement.Verdict.VIOLATED: "violated",
    judgement.Verdict.INCONCLUSIVE: "unknown",
}


class Watch:
    """The watchers of one daemon. Hand it `listeners`, then `attach` to it."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        steady_us: Callable[[], int] | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._daemon: Daemon | None = None
        self._clock: Clock = HostClock() if clock is None else clock
        self.told: list[Listener] = []
        """Who else hears what the watchers find out; the dashboard is one."""
        self.metrics = _metrics_if_installed(self, self._clock) if config.dashboard.enabled else None
        self._deadman = DeadMan(self._ping_url, [self._tell], now=self._clock.now)
        self._spans = spans_if_installed()
        self._board = None if sharing is None else Stopwatch(sharing.clock)
        """Whose time holds for timers that come here from other machines, and go there."""
        self._now = self._clock.now if self._board is None else self._board.now
        if self._board is None:
            self.monitor = TimerMonitor(self._declared, [self._tell], steady_us=steady_us)
        else:
            self.monitor = HeldMonitor(
                self._held,
                self._stints,
                [self._tell],
                steady_us=self._board.steady_us,
                slack_us=round(_SLACK_LEASES * config.settings.lease_sec * SECOND_US),
            )
        self._monitor_fault = ""
        """Why the monitor watches no more, if it failed."""
        self._announcer = Announcer([self._tell], self._clock.now)
        self._looking: asyncio.TimerHandle | None = None

    @property
    def listeners(self) -> list[Listener]:
        """What to give to the daemon."""
        metrics = None if self.metrics is None else self.metrics.listener
        heard = (metrics, self._spans, self._deadman, self._heed_timers)
        return [each for each in heard if each is not None]

    def attach(self, daemon: Daemon) -> None:
        """Watch *daemon*, from inside its loop."""
        self._daemon = daemon
        daemon.fault_sources.append(self._violations)
        if self.metrics is not None:
            daemon.time_writes(self.metrics.store_wrote)
            daemon.on_started_up.append(self._recall)

    async def close(self) -> None:
        """End, a moment after the daemon did."""
        self._look_never()
        if self._board is not None:
            self._board.forget()
        await self._deadman.close(_GRACE_S)

    def verification(self) -> "list[Verdict] | None":
        """What the monitor says of each property; None while there are no timers to watch."""
        from duly.web.site import Verdict  # noqa: PLC0415 (asked only by the web)

        if self._daemon is None or not self._daemon.standing().is_gate_open:
            return None
        return [
            Verdict(finding.property, self._verdict_word(finding), finding.violated, finding.words)
            for finding in self.monitor.findings()
        ]

    def _verdict_word(self, finding: Finding) -> str:
        if self._monitor_fault and finding.verdict is judgement.Verdict.HOLDS:
            return _WORDS[judgement.Verdict.INCONCLUSIVE]
        return _WORDS[finding.verdict]

    @property
    def unwatched(self) -> str:
        """What the monitor does not see, in words."""
        return "" if self._board is None else UNWATCHED

    def _violations(self) -> list[str]:
        """What is not well: a monitor that failed, and all that it objects to while there are timers."""
        found = [one for one in self.monitor.findings() if one.verdict is judgement.Verdict.VIOLATED]
        # Timers are counted only if there is something to tell: this is asked for every page.
        is_told = bool(found) and self._daemon is not None and self._daemon.timers() is not None
        told = [f"{one.property} is violated: {one.words}" for one in found] if is_told else []
        return [self._monitor_fault, *told] if self._monitor_fault else told

    def _tell(self, event: Event) -> None:
        metrics = [] if self.metrics is None else [self.metrics.listener]
        for listener in (*metrics, *self.told):
            listener(event)

    # --- silence, which is no event ---

    @property
    def is_looking(self) -> bool:
        """Whether a look for slots that nothing has answered is ahead."""
        return self._looking is not None

    def _heed_timers(self, event: Event) -> None:
        if self._monitor_fault:
            return
        with self._reporting_failure():
            self.monitor.listener(event if self._board is None else replace(event, time=self._now()))
            self._look_later()

    def _look(self) -> None:
        self._looking = None
        with self._reporting_failure():
            self.monitor.look(self._now())
            self._look_later()

    @contextmanager
    def _reporting_failure(self) -> Iterator[None]:
        """Report a monitor that fails. What it knows may be half of it, so it is not asked any more."""
        try:
            yield
        except Exception as error:
            self._look_never()
            if not self._monitor_fault:
                self._monitor_fault = (
                    f"the monitor of the timers failed and watches no more: {described(error)}"
                )
                self._announcer.announce("MonitorFault", error=self._monitor_fault)

    def _look_later(self) -> None:
        """Look again when that could find something; never, if nothing is asked of any timer.

        The loop sleeps on the monotonic clock and slots are of the wall clock, so the wait is cut at the
        beginning of each minute, when the daemon is awake to compare the two anyway.
        """
        now, loop = self._now(), asyncio.get_running_loop()
        silence_us = self.monitor.silence_us(now)
        if silence_us is None:
            self._look_never()
            return
        at_s = loop.time() + min(silence_us / SECOND_US, until_minute_s(instant_of(now)))
        if self._looking is None or abs(self._looking.when() - at_s) > _SAME_S:
            self._look_never()
            self._looking = loop.call_at(at_s, self._look)

    def _look_never(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _declared(self) -> list[Declared]:
        """The timers at work, those that are declared and whose state could be read; and what that says."""
        readings = None if self._daemon is None else self._daemon.timers()
        if self._daemon is None or readings is None:
            return []
        zone = self._daemon.standing().zone
        return [
            Declared(
                timer,
                zone if timer.timezone is None else ZoneInfo(timer.timezone),
                readings[timer.id].answered_us,
                readings[timer.id].last_missed_us,
            )
            for timer in self._daemon.config.timers
            if timer.id in readings and readings[timer.id].fault is None
        ]

    def _stints(self) -> Mapping[int, tuple[int, int, bool]]:
        return stints_of(None if self._daemon is None else self._daemon.holding())

    def _held(self) -> list[Declared]:
        """The shared timers at work on this machine."""
        return (
            [] if self._daemon is None else declared_of(self._daemon.holding(), self._daemon.standing().zone)
        )

    def _ping_url(self, name: str) -> str | None:
        services = () if self._daemon is None else self._daemon.config.services
        service = next((each for each in services if each.id == name), None)
        return None if service is None or service.ping_url is None else service.ping_url.secret

    def timer_dues(self) -> Mapping[str, datetime]:
        """When timers come next."""
        readings = None if self._daemon is None else self._daemon.timers()
        return {
            name: datetime_at(reading.next_us, UTC)
            for name, reading in (readings or {}).items()
            if reading.next_us is not None and 0 < reading.next_us < NEVER_US
        }

    def _recall(self) -> None:
        """Learn from the store which services succeeded before."""
        assert self._daemon is not None
        assert self.metrics is not None
        for view in self._daemon.services():
            last = view.last_run
            if last is not None and last.result == "success" and last.ended_us is not None:
                self.metrics.succeeded("service", view.id, datetime_at(last.ended_us, UTC))
        targets = {timer.id: timer.target for timer in self._daemon.config.timers}
        for name, reading in (self._daemon.timers() or {}).items():
            if reading.last_success_us is not None and name in targets:
                self.metrics.succeeded("service", targets[name], datetime_at(reading.last_success_us, UTC))


def _metrics_if_installed(watch: Watch, clock: Clock) -> "Metrics | None":
    try:
        from duly.observe.metrics import Metrics  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return Metrics(timer_dues=watch.timer_dues, now=clock.now)
