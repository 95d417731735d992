"""Whether all is well: the state of each service and timer, from what runs, its past and the plan. Pure.

The one home of that judgement: `duly status`, the JSON API, the metrics, the dashboard and notifications go
by it. A job is a oneshot and the timers that fire it. It has one line, however many timers it has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache
from typing import NamedTuple

from duly.config.calendars import gaps_of
from duly.config.schema import Config, Invalid, Service, Timer
from duly.daemon.json_types import EntryStateJson, HealthJson, StatusJson, json_of
from duly.daemon.protocol import ABSENT
from duly.daemon.views import (
    MISSES,
    DaemonStatus,
    ServiceSnapshot,
    TimerSnapshot,
    counts,
    disabled,
    is_ill_missed,
    next_firing,
    timers_off_text,
)
from duly.events import Event
from duly.formatting import exact_length, joined, length
from duly.instant import SECOND_US, Instant, datetime_at, iso, time_of
from duly.store.past import missed_slots

DISABLED = "disabled"
HUNG = "hung"
FAILING = "failing"
NEVER_SUCCEEDED = "never succeeded"
CRASH_LOOP = "crash loop"
MISSING_RUNS = "missing runs"
MISSED = "missed"
"""No alarm: a warning, which `entry_states` leaves out."""

_HUNG_FACTOR = 3
_LEAST_PATIENCE_US = 60 * SECOND_US
"""With a run that no timer repeats."""
_QUICK_ENDS = 3
STEADY_US = 60 * SECOND_US
"""A service that stayed up for this long is well again."""
_NEWEST_SLOTS, _MANY_MISSED = 10, 5
_NO_ILL_RESULTS = frozenset({None, "success", "interrupted"})


class EntryState(NamedTuple):
    """What is to be known of a service or a timer: a state, since when, and a sentence."""

    state: str
    kind: str
    id: str
    since_us: Instant | None
    message: str

    @property
    def is_alarm(self) -> bool:
        return self.state != DISABLED


class Fired(NamedTuple):
    """A timer, and how it is."""

    timer: Timer
    snapshot: TimerSnapshot

    @property
    def is_enabled(self) -> bool:
        override = self.snapshot.enabled_override
        return self.timer.enabled if override is None else override


class HealthJudge:
    """Judges the entries of *config* as they are now; *timers* is None while they are off."""

    def __init__(
        self,
        now_us: Instant,
        zone: tzinfo,
        config: Config,
        timers: Mapping[str, TimerSnapshot] | None,
        *,
        is_live: bool = True,
    ) -> None:
        self._now_us, self._zone = now_us, zone
        self._is_live = is_live
        """If not, nobody knows what runs."""
        self._fired_by: dict[str, list[Fired]] = {}
        for timer in () if timers is None else config.timers:
            fired = Fired(timer, (timers or {}).get(timer.id, _UNKNOWN))
            self._fired_by.setdefault(timer.target, []).append(fired)

    def states(self, service: Service, view: ServiceSnapshot) -> Iterator[EntryState]:
        """The states of a service and of the timers that fire it; none if all is well."""
        fired_by = self._fired_by.get(service.id, ())
        if _is_quiet(service, view, fired_by):
            return
        if not service.enabled:
            yield EntryState(DISABLED, "service", service.id, None, f"service {service.id} is disabled")
            return
        hung = self._hung(service, view, fired_by)
        if hung is not None:
            yield hung
        for fired in fired_by:
            if not fired.is_enabled:
                name = fired.timer.id
                yield EntryState(DISABLED, "timer", name, None, f"timer {name} is disabled")
            elif hung is None and (missing := _missing(fired)) is not None:
                yield missing
        is_job = service.type == "oneshot" and view.state != "skipped"
        failing = self._failing_job if is_job else self._failing_simple
        if (found := failing(service, view, fired_by)) is not None:
            yield found

    def last_success_us(self, service_id: str, view: ServiceSnapshot) -> Instant | None:
        """When the job last ended well, here or on another machine."""
        known = [fired.snapshot.last_success_us for fired in self._fired_by.get(service_id, ())]
        return max(filter(None, [view.past.last_success_us, *known]), default=None)

    def silent_us(self, service: Service, view: ServiceSnapshot) -> int | None:
        """For how long a job that is to run has not ended well; None of anything else."""
        fired_by = [fired for fired in self._fired_by.get(service.id, ()) if fired.is_enabled]
        if not service.enabled or not fired_by:
            return None
        known = [fired.snapshot.registered_us or self._now_us for fired in fired_by]
        return self._now_us - (self.last_success_us(service.id, view) or min(known))

    def _hung(self, service: Service, view: ServiceSnapshot, fired_by: Sequence[Fired]) -> EntryState | None:
        if service.type == "simple" or not self._is_live:
            return None
        live = view.last_run
        started = [fired.snapshot.running_since_us for fired in fired_by]
        started.append(live.started_us if live is not None and live.ended_us is None else None)
        since_us = min((at_us for at_us in started if at_us is not None), default=self._now_us)
        age_us, timeout_sec, p95_us = self._now_us - since_us, service.timeout_sec, view.past.p95_us or 0
        periods_us = [period for fired in fired_by if (period := period_us(fired.timer)) is not None]
        least_us = min(periods_us, default=_LEAST_PATIENCE_US)
        if timeout_sec is not None and age_us > timeout_sec * SECOND_US:
            why = f"past its time limit of {exact_length(timeout_sec)}"
        elif age_us > max(_HUNG_FACTOR * p95_us, least_us):
            usual = f"{length(p95_us / SECOND_US)} is usual" if p95_us else "none has ended well so far"
            why = f"for {length(age_us / SECOND_US)}; {usual}"
        else:
            return None
        message = f"service {service.id} hangs: it has been running since {self._clock(since_us)}, {why}"
        return EntryState(HUNG, "service", service.id, since_us, message)

    def _failing_simple(
        self, service: Service, view: ServiceSnapshot, _: Sequence[Fired]
    ) -> EntryState | None:
        past, name, since_us = view.past, service.id, view.since_us
        if view.state in {"failed", "skipped"}:
            word = "failed" if view.state == "failed" else "was not started"
            message = f"service {name} {word}{f': {view.reason}' if view.reason else ''}"
            return EntryState(FAILING, "service", name, since_us, message)
        is_back = view.run_id is not None and (since_us or 0) + STEADY_US > self._now_us
        if view.quick_ends >= _QUICK_ENDS and past.failed and (is_back or view.restart_at_us is not None):
            again = f"restarts again and again, {view.restarts} times by now: {past.why}"
            return EntryState(CRASH_LOOP, "service", name, past.failing_since_us, f"service {name} {again}")
        last = view.last_run
        if view.restart_at_us is not None and last is not None and last.result != "success":
            return EntryState(FAILING, "service", name, since_us, f"service {name} {view.reason}")
        return None

    def _failing_job(
        self, service: Service, view: ServiceSnapshot, fired_by: Sequence[Fired]
    ) -> EntryState | None:
        if fired_by and not any(fired.is_enabled for fired in fired_by):
            return None
        success_us, past = self.last_success_us(service.id, view), view.past
        failed, since_us, why = past.failed, past.failing_since_us, past.why
        if failed and success_us is not None and success_us > (since_us or 0):
            failed = 0  # another machine's run ended well since
        for fired in () if failed else fired_by:
            # The only source for runs of other machines, and for a timer whose history is gone.
            at_us, snapshot = fired.snapshot.last_failure_us, fired.snapshot
            is_newer = success_us is None or (at_us is not None and at_us > success_us)
            if is_ill_result(snapshot.last_result) and is_newer:
                failed, since_us, why = 1, at_us, _result_words(snapshot)
        if not failed and view.state == "failed" and (success_us or 0) <= (view.since_us or 0):
            failed, since_us, why = 1, view.since_us, view.reason  # nobody knows its past
        if not failed:
            return None
        streak = f" {failed} of {failed}" if failed > 1 else ""
        since = f" since {self._clock(since_us)}" if since_us is not None and failed > 1 else ""
        never = "" if success_us is not None else "; it has never succeeded"
        return EntryState(
            NEVER_SUCCEEDED if never else FAILING,
            "service",
            service.id,
            since_us,
            f"service {service.id} failed{streak}{since}{f': {why}' if why else ''}{never}",
        )

    def _clock(self, at_us: Instant) -> str:
        at, now = datetime_at(at_us, self._zone), datetime_at(self._now_us, self._zone)
        return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


_UNKNOWN = TimerSnapshot()


def _missing(fired: Fired) -> EntryState | None:
    slots = fired.snapshot.slots
    if missed_slots(slots[-_NEWEST_SLOTS:])[0] < _MANY_MISSED:
        return None
    missed, reasons = missed_slots(slots)
    why = joined(reasons, "and")
    message = f"timer {fired.timer.id}: {missed} of {len(slots)} slots missed: {why}"
    return EntryState(MISSING_RUNS, "timer", fired.timer.id, fired.snapshot.last_missed_us, message)


@lru_cache(maxsize=16_384)
def period_us(timer: Timer) -> int | None:
    """The least time between two firings of a timer; None if it fires once."""
    return min((each[0] for each in _periods_us(timer)), default=None)


@lru_cache(maxsize=16_384)
def longest_period_us(timer: Timer) -> int | None:
    """The longest time between two firings of a timer; None if it fires once."""
    # Of several triggers the one that comes most often ends every wait.
    return min((each[1] for each in _periods_us(timer)), default=None)


def _periods_us(timer: Timer) -> list[tuple[int, int]]:
    """The least and the longest period of each of its triggers."""
    seconds: list[tuple[float, float]] = [
        gap for calendar in timer.on_calendar if (gap := gaps_of(calendar)) is not None
    ]
    seconds += [(length, length) for length in (timer.every, timer.on_unit_active_sec) if length is not None]
    return [(round(least * SECOND_US), round(longest * SECOND_US)) for least, longest in seconds]


def is_ill_result(result: str | None) -> bool:
    """Whether a run that ended so says that the job fails."""
    return result not in _NO_ILL_RESULTS


def _result_words(snapshot: TimerSnapshot) -> str:
    if snapshot.last_result == "exit" and snapshot.last_exit is not None:
        return f"exited with code {snapshot.last_exit}"
    return f"ended with {snapshot.last_result}"


def _is_quiet(service: Service, view: ServiceSnapshot, fired_by: Sequence[Fired]) -> bool:
    """Whether there is surely nothing to say: of thousands of entries, of nearly all."""
    return (
        service.enabled
        and not view.past.failed
        and view.state in {"stopped", "done"}
        and all(
            fired.is_enabled
            and not fired.snapshot.slots
            and not is_ill_result(fired.snapshot.last_result)
            and fired.snapshot.running_since_us is None
            for fired in fired_by
        )
    )


def entry_states(
    daemon_status: DaemonStatus,
    config: Config,
    services: Iterable[ServiceSnapshot],
    timers: Mapping[str, TimerSnapshot] | None,
) -> list[EntryState]:
    """The states of all entries that are not simply well, in the order of declaration."""
    is_live = daemon_status.source == "daemon"
    judge = HealthJudge(daemon_status.now_us, daemon_status.zone, config, timers, is_live=is_live)
    known = {view.id: view for view in services}
    return [
        state
        for service in config.services
        if (view := known.get(service.id)) is not None
        for state in judge.states(service, view)
    ]


def health(
    daemon_status: DaemonStatus,
    config: Config,
    services: Iterable[ServiceSnapshot],
    timers: Mapping[str, TimerSnapshot] | None,
) -> HealthJson:
    """Whether all is well; each reason is a sentence that names what is not."""
    states = entry_states(daemon_status, config, services, timers)
    reasons = list(daemon_status.faults)
    if daemon_status.state in ABSENT:
        reasons.append(ABSENT[daemon_status.state])
    reasons += [state.message for state in states if state.is_alarm]
    reasons += [snapshot.fault for snapshot in (timers or {}).values() if snapshot.fault is not None]
    # Last: what fails now comes before a line that somebody mistyped long ago.
    reasons += map(invalid_text, config.invalid)
    warnings = [missed.message for missed in ill_missed(daemon_status, config, timers or {})]
    if timers is None and (said := timers_off_text(config)):
        warnings = [said, *warnings]
    return HealthJson(
        ok=not reasons,
        reasons=reasons,
        warnings=warnings,
        states=[
            EntryStateJson(
                kind=each.kind,
                id=each.id,
                state=each.state,
                since=time_of(each.since_us, daemon_status.zone),
                message=each.message,
            )
            for each in states
        ],
    )


def invalid_text(bad: Invalid) -> str:
    """What is wrong with an entry; where it stands, if its id does not say that."""
    line = f"line {bad.line}" if bad.line is not None and (bad.id is None or bad.file) else ""
    where = ", ".join(filter(None, (bad.file, line)))
    name = bad.id or f"number {bad.index + 1}"
    return f"{bad.kind} {name}{f' ({where})' if where else ''} is invalid: {bad.reason}"


def ill_missed(
    daemon_status: DaemonStatus, config: Config, timers: Mapping[str, TimerSnapshot]
) -> Iterator[EntryState]:
    """The timers whose latest miss is worth a warning, though nothing is broken."""
    for timer in config.timers:
        snapshot = timers.get(timer.id)
        if snapshot is None or snapshot.last_missed_us is None or not is_ill_missed(timer, snapshot):
            continue
        why = MISSES[snapshot.last_miss_reason or ""]
        at = datetime_at(snapshot.last_missed_us, daemon_status.zone)
        message = f"timer {timer.id} missed {at:%Y-%m-%d %H:%M}, because {why}, and has not run since"
        yield EntryState(MISSED, "timer", timer.id, snapshot.last_missed_us, message)


def status_json(
    daemon_status: DaemonStatus,
    config: Config,
    services: Iterable[ServiceSnapshot],
    timers: Mapping[str, TimerSnapshot] | None,
) -> StatusJson:
    """The daemon at a glance. *timers* is None while the timers are off."""
    snapshots = list(services)
    closed = disabled(is_parent_on=config.settings.enabled)
    up_us = None if daemon_status.started_us is None else daemon_status.now_us - daemon_status.started_us
    return json_of(
        StatusJson,
        daemon_status,
        daemon_status.zone,
        at=iso(daemon_status.now_us, daemon_status.zone),
        uptime_s=None if up_us is None else max(up_us, 0) / SECOND_US,
        timers="disabled" if timers is None else "enabled",
        timers_message=closed.message if timers is None else "",
        counts=counts(config, snapshots, timers),
        health=health(daemon_status, config, snapshots, timers),
        next_firing=None if timers is None else next_firing(timers, daemon_status.zone),
    )


# --- what is wrong with the daemon itself ---


_FAULTS = {"StoreFault", "PollFailed", "ConfigurationRefused", "ListenerFault"}
_RECOVERIES = {
    "StoreRecovered": "StoreFault",
    "PollRecovered": "PollFailed",
    "ConfigurationReloaded": "ConfigurationRefused",
    "ListenerRecovered": "ListenerFault",
}


class OpenFaults:
    """The open faults, a sentence for each: set by events, and cleared by their recovery events."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], str] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(self._open.values())

    def listener(self, event: Event) -> None:
        # Each listener fails and recovers on its own; of the others there is one.
        which = event.fields.get("listener", "")
        if event.name in _FAULTS:
            self._open[event.name, which] = event.fields["error"]
        elif event.name in _RECOVERIES:
            self._open.pop((_RECOVERIES[event.name], which), None)
