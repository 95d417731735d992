"""How a daemon is, for metrics. Pure; `observe.readings` says what each value means."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from duly.config.schema import Config, Service, Timer
from duly.daemon.health import Fired, health, is_ill_result, longest_period_us
from duly.daemon.views import DaemonStatus, ServiceSnapshot, TimerSnapshot
from duly.instant import NEVER_US, Instant
from duly.observe.readings import Reading, Readings, is_well, with_run_us


def readings(
    daemon_status: DaemonStatus,
    config: Config,
    services: Iterable[ServiceSnapshot],
    timers: Mapping[str, TimerSnapshot] | None,
) -> Readings:
    views = list(services)
    judged = health(daemon_status, config, views, timers)
    fired_by: dict[str, list[Fired]] = {}
    for timer in config.timers:
        if (snapshot := (timers or {}).get(timer.id)) is not None:
            fired_by.setdefault(timer.target, []).append(Fired(timer, snapshot))
    known = {view.id: view for view in views}
    return Readings(
        [
            *(
                _of_service(service, known[service.id], fired_by.get(service.id, ()))
                for service in config.services
                if service.id in known
            ),
            *_of_timers(config.timers, timers),
        ],
        [(each.kind, each.id, each.state) for each in judged.states],
        len(judged.reasons),
        len(config.invalid),
    )


def _of_service(service: Service, view: ServiceSnapshot, fired_by: Sequence[Fired]) -> Reading:
    past, known = view.past, [fired.snapshot for fired in fired_by]
    success_us = _latest([past.last_success_us, *(each.last_success_us for each in known)])
    failure_us = _latest([
        past.failing_since_us,
        *(each.last_failure_us for each in known if is_ill_result(each.last_result)),
    ])  # fmt: skip
    return Reading(
        kind="service",
        name=service.id,
        interval_us=_interval_us(service, view, fired_by),
        success_us=success_us,
        is_ok=is_well(success_us, failure_us),
        is_up=view.state == "running" if service.type == "simple" and service.enabled else None,
    )


def _interval_us(service: Service, view: ServiceSnapshot, fired_by: Sequence[Fired]) -> int | None:
    usual_us = view.past.p95_us or 0
    timers = [fired.timer for fired in fired_by if fired.is_enabled and service.enabled]
    found = [
        with_run_us(period_us, usual_us, is_from_end=timer.on_unit_active_sec is not None)
        for timer in timers
        if (period_us := longest_period_us(timer)) is not None
    ]
    return min(found, default=None)


def _of_timers(timers: Iterable[Timer], snapshots: Mapping[str, TimerSnapshot] | None) -> Iterator[Reading]:
    for timer in timers:
        if (snapshot := (snapshots or {}).get(timer.id)) is None:
            continue
        # What waits for its target to end is due still (`overlap`).
        dues_us = [at_us for at_us in (snapshot.next_us, snapshot.queued_us) if at_us is not None]
        due_us = min((at_us for at_us in dues_us if 0 < at_us < NEVER_US), default=None)
        is_enabled = Fired(timer, snapshot).is_enabled
        yield Reading(
            kind="timer", name=timer.id, due_us=due_us if is_enabled else None, is_enabled=is_enabled
        )


def _latest(instants: Iterable[Instant | None]) -> Instant | None:
    return max(filter(None, instants), default=None)
