"""Who watches the daemon: metrics, spans, the dead-man's switch, and the monitor of its timers.

They are listeners of its events. What has to be installed first is left out if it is not. What a watcher
finds out itself, such as a ping that failed, it sends to `event_listeners` and the log.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from duly.clock import Clock, HostClock, until_minute_s
from duly.config import Config
from duly.config.schema import config_zone
from duly.daemon.backend import PropertyVerdict
from duly.daemon.daemon import Daemon
from duly.daemon.readings import readings
from duly.daemon.sharing import Sharing
from duly.events import Announcer, Event, Listener, described
from duly.instant import SECOND_US, instant_of
from duly.observe.deadman import DeadMan
from duly.observe.readings import Readings
from duly.observe.spans import spans_if_installed
from duly.verify import properties as judgement
from duly.verify.emitter import NodeName
from duly.verify.recorder import TimerRecorder
from duly.verify.timers import TimerMonitor, ZonedTimer, zoned_timer

if TYPE_CHECKING:
    from duly.observe.metrics import Metrics

_GRACE_S = 2.0
"""How long the end of the daemon waits for pings under way."""
_SAME_S = 0.001
_UNWATCHED = (
    "Other machines share the timers. This monitor sees only what this machine does. Let all machines record"
    " traces (`duly run --trace FILE`): `duly verify` judges them together."
)
_FAILOVER_LEASES = 3
"""So many leases it takes at most to release what a dead machine ran."""
_TICKS_PER_LEASE = 3
_TICK_S = 60.0
"""After how long a silence a machine by itself writes a tick into its trace."""

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
        trace: str | None = None,
    ) -> None:
        self._daemon: Daemon | None = None
        self._clock: Clock = HostClock() if clock is None else clock
        self.event_listeners: list[Listener] = []
        """Who else gets what the watchers find out; the dashboard is one."""
        self.metrics = _metrics_if_installed(self, self._clock, sharing) if config.dashboard.enabled else None
        self._deadman = DeadMan(self._ping_url, [self._on_event], now=self._clock.now)
        self._spans = spans_if_installed()
        self._is_shared = sharing is not None
        self._now = self._clock.now
        """The time that timers go by."""
        if sharing is not None:
            self._now, steady_us = sharing.clock.now, sharing.clock.now_us
        self.monitor = TimerMonitor(
            self._declared, [self._on_event], steady_us=steady_us, is_shared=self._is_shared
        )
        self._monitor_fault = ""
        """Why the monitor watches no more, if it failed."""
        self._announcer = Announcer([self._on_event], self._clock.now)
        self._recorder = None if trace is None else self._new_recorder(trace, config, sharing)
        self._pinged: Config | None = None
        """The configuration of which these are the URLs to ping, by service."""
        self._ping_urls: dict[str, str] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._planning: asyncio.Handle | None = None

    @property
    def listeners(self) -> list[Listener]:
        metrics = None if self.metrics is None else self.metrics.listener
        listeners = (metrics, self._spans, self._deadman, self._recorder, self._on_timer_event)
        return [each for each in listeners if each is not None]

    def attach(self, daemon: Daemon) -> None:
        self._daemon = daemon
        daemon.fault_sources.append(self._violations)
        if self.metrics is not None:
            daemon.time_writes(self.metrics.store_wrote)
        if self._spans is not None:
            daemon.add_variables(self._spans.environment)

    async def close(self) -> None:
        """End, a moment after the daemon did."""
        self._look_never()
        if self._recorder is not None:
            self._recorder.close()
        await self._deadman.close(_GRACE_S)

    def verification(self) -> list[PropertyVerdict] | None:
        if self._daemon is None or not self._daemon.daemon_status().is_timer_switch_on:
            return None
        words = dict(_WORDS)
        if self._monitor_fault:  # what holds so far may not hold now
            words[judgement.Verdict.HOLDS] = _WORDS[judgement.Verdict.INCONCLUSIVE]
        return [
            PropertyVerdict(finding.property, words[finding.verdict], finding.violated, finding.words)
            for finding in self.monitor.findings()
        ]

    @property
    def unwatched(self) -> str:
        return _UNWATCHED if self._is_shared else ""

    def _violations(self) -> list[str]:
        """What is not well: a monitor that failed, and all that it objects to while there are timers."""
        found = [one for one in self.monitor.findings() if one.verdict is judgement.Verdict.VIOLATED]
        # Timers are counted only if there is something to tell: this is asked for every page.
        is_told = bool(found) and self._daemon is not None and self._daemon.timers() is not None
        messages = [f"{one.property} is violated: {one.words}" for one in found] if is_told else []
        return [self._monitor_fault, *messages] if self._monitor_fault else messages

    def _on_event(self, event: Event) -> None:
        metrics: list[Listener] = [] if self.metrics is None else [self.metrics.listener]
        for listener in (*metrics, *self.event_listeners):
            listener(event)

    # --- silence, which is no event ---

    @property
    def is_looking(self) -> bool:
        """Whether a look for slots that nothing has answered is ahead."""
        return self._looking is not None

    def _on_timer_event(self, event: Event) -> None:
        if self._monitor_fault:
            return
        with self._reporting_failure():
            self.monitor.listener(replace(event, time=self._now()) if self._is_shared else event)
            # Once for all events of this turn of the loop: a thousand may come together.
            if self._planning is None:
                self._planning = asyncio.get_running_loop().call_soon(self._plan_look)

    def _plan_look(self) -> None:
        self._planning = None
        with self._reporting_failure():
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
        if self._planning is not None:
            self._planning.cancel()
            self._planning = None

    def _declared(self) -> list[ZonedTimer]:
        """The timers at work, those that are declared and whose state could be read; and what that says."""
        snapshots = None if self._daemon is None else self._daemon.timers()
        if self._daemon is None or snapshots is None:
            return []
        zone = self._daemon.daemon_status().zone
        found = []
        for timer in self._daemon.config.timers:
            snapshot = snapshots.get(timer.id)
            row = {} if snapshot is None else {"registered_us": snapshot.registered_us}
            if not self._is_shared:  # else: what its row says was so a moment ago
                if snapshot is None or snapshot.fault is not None:
                    continue
                row |= {"answered_us": snapshot.answered_us, "missed_us": snapshot.last_missed_us}
            own = zone if timer.timezone is None else ZoneInfo(timer.timezone)
            found.append(zoned_timer(timer, own, **row))
        return found

    def _new_recorder(self, path: str, config: Config, sharing: Sharing | None) -> TimerRecorder:
        node, tick_s = NodeName(socket.gethostname(), 0), _TICK_S
        if sharing is not None:
            lease_sec = config.settings.lease_sec
            node = NodeName(sharing.name, round(_FAILOVER_LEASES * lease_sec * SECOND_US))
            tick_s = lease_sec / _TICKS_PER_LEASE
        return TimerRecorder(
            path,
            self._declared,
            node,
            clock=self._clock if sharing is None else sharing.clock,
            zone=config_zone(config),
            tick_s=tick_s,
            emit=self._announcer.announce,
        )

    def _ping_url(self, name: str) -> str | None:
        config = None if self._daemon is None else self._daemon.config
        if config is not None and self._pinged is not config:
            urls = ((each.id, each.ping_url) for each in config.services)
            self._pinged, self._ping_urls = (
                config,
                {name: url.secret for name, url in urls if url is not None},
            )
        return self._ping_urls.get(name)

    def readings(self) -> Readings:
        """How all is that the daemon has, for metrics."""
        daemon = self._daemon
        assert daemon is not None, "a daemon is attached before anybody can ask"
        return readings(daemon.daemon_status(), daemon.config, daemon.services(), daemon.timers())


def _metrics_if_installed(watch: Watch, clock: Clock, sharing: Sharing | None) -> "Metrics | None":
    try:
        from duly.observe.metrics import Metrics  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    node = (lambda: None) if sharing is None else sharing.health
    return Metrics(now=clock.now, node=node, readings=watch.readings)
