"""What can be said of a daemon that does not answer: its configuration, and what its store remembers.

The same shapes as a daemon's answers, made by the same functions. Nothing is written, and no hold is taken.
While the gate is closed in the configuration the timers in the store are not even read.
"""

from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import tzlocal

from duly import __version__
from duly.cli.finding import Place
from duly.clock import HostClock
from duly.config.errors import ConfigError
from duly.config.schema import Config, database_of, socket_path, store_path
from duly.daemon import views
from duly.daemon.operations import Definitions, OfHistory, OfLogs, check_known, history_of, no_run
from duly.daemon.protocol import BAD_REQUEST, OperationError, sayable
from duly.instant import Instant, instant_of
from duly.store.reading import Reader, nothing, read

T = TypeVar("T")

_CUT_OFF = "was running when the daemon was last heard of"


def answer(place: Place, op: str, params: Mapping[str, Any], *, state: str = "down") -> Any:
    """What the daemon, which is in *state*, would have answered, as far as its store knows.

    Raises SchedulerError, OperationError.
    """
    config, fault = _config(place)
    if fault is not None and op in {"timers", "services", "definitions"}:
        raise fault
    now_us = instant_of(HostClock().now())
    faults = () if fault is None else (fault.message,)
    remains = Remains(config, now_us, place.socket(), faults, state=state)
    given = sayable({name: value for name, value in params.items() if name != "follow"})
    return views.builtins(_ANSWERS[op](remains, given))


def _config(place: Place) -> tuple[Config, ConfigError | None]:
    try:
        config = place.loaded()
    except ConfigError as error:
        assert place.config is not None
        return Config(place.config), error
    assert config is not None, "whoever has no configuration is not sent here"
    return config, None


def zone_of(config: Config) -> tzinfo:
    """The zone of a configuration: its own, or the host's."""
    return ZoneInfo(config.settings.timezone) if config.settings.timezone else tzlocal.get_localzone()


class Remains:
    """What is left of a daemon at *now_us*."""

    def __init__(
        self,
        config: Config,
        now_us: Instant,
        socket: str,
        faults: tuple[str, ...] = (),
        *,
        state: str = "down",
    ) -> None:
        self.config = config
        self.now_us = now_us
        self.zone = zone_of(config)
        self.is_gate_open = config.settings.enabled and config.settings.timers
        self._store = store_path(config)
        self._socket = socket or str(socket_path(config))
        self._faults = faults
        if (database := database_of(config)) is not None and self.is_gate_open:
            self._faults += (f"the timers are in {database.name}; only a running daemon shows them",)
        self._state = state

    def standing(self) -> views.Standing:
        """The daemon does not answer."""
        return views.Standing(
            source="store",
            now_us=self.now_us,
            zone=self.zone,
            version=__version__,
            state=self._state,
            is_gate_open=self.is_gate_open,
            faults=self._faults,
            config=str(self.config.path),
            store=str(self._store),
            socket=self._socket,
        )

    def read(self, what: Callable[[Reader], T]) -> T:
        """What the store says, which is nothing as long as no daemon ever ran."""
        return read(self._store, what) if self._store.exists() else what(nothing())

    def services(self) -> list[views.StoredService]:
        """The services as their last runs left them."""
        ended, begun = self.read(lambda reader: (reader.last_ends(), reader.open_runs()))
        cut_off = {row.service: row for row in begun}
        found = []
        for service in self.config.services:
            row = cut_off.get(service.id) or ended.get(service.id)
            is_cut_off = service.id in cut_off
            found.append(
                views.StoredService(
                    id=service.id,
                    state="unknown" if is_cut_off else "stopped",
                    since_us=None if row is None else row.ended_us or row.started_us,
                    last_run=row,
                    reason=_CUT_OFF if is_cut_off else "",
                )
            )
        return found

    def timers(self) -> dict[str, views.TimerReading] | None:
        """The timers as the store has them; None while the gate is closed."""
        if not self.is_gate_open:
            return None
        rows = {row["name"]: row for row in self.read(Reader.timers)}
        slots = self._slots()
        return {
            timer.id: _reading(rows.get(timer.id, {}), slots.get(timer.id), is_declared_on=timer.enabled)
            for timer in self.config.timers
        }

    def _slots(self) -> dict[str, Instant]:
        """The next slot of each timer's calendar: what would come if the daemon were started now."""
        from duly.timers.calendar import CalendarShelf, slot_after  # noqa: PLC0415 - the gate is open

        shelf = CalendarShelf(self.zone)
        return {timer.id: slot_after(shelf.of(timer), self.now_us) for timer in self.config.timers}


def _reading(row: Mapping[str, Any], slot_us: Instant | None, *, is_declared_on: bool) -> views.TimerReading:
    from duly.timers.record import TimerRecordError, row_from  # noqa: PLC0415 - the gate is open

    if row:
        try:
            row_from(tuple(row.values()))
        except TimerRecordError as error:
            return views.TimerReading(fault=error.message)
    override = None if row.get("enabled") is None else bool(row["enabled"])
    is_on = is_declared_on if override is None else override
    return views.TimerReading(
        enabled_override=override,
        next_us=slot_us if is_on else None,
        **{name: row[name] for name in _KEPT if name in row},
    )


_KEPT = (
    *("registered_us", "answered_us", "last_run_us", "last_success_us", "last_failure_us", "last_exit"),
    *("last_result", "last_missed_us", "last_miss_reason", "running_run", "running_since_us"),
)


# --- the operations that read ---


def _status(remains: Remains, _params: Mapping[str, Any]) -> Any:
    return views.status_shape(remains.standing(), remains.config, remains.services(), remains.timers())


def _timers(remains: Remains, _params: Mapping[str, Any]) -> Any:
    readings = remains.timers()
    if readings is None:
        return views.disabled(is_parent_on=remains.config.settings.enabled)
    return views.timers_shape(remains.standing(), remains.config, readings)


def _services(remains: Remains, _params: Mapping[str, Any]) -> Any:
    return views.services_shape(remains.standing(), remains.config, remains.services())


def _definitions(remains: Remains, _params: Mapping[str, Any]) -> Any:
    """What the store knows, not the file: that is what a file is compared with."""

    def known(reader: Reader) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        services = [_declared(name, text) for name, text in reader.services().items()]
        return services, [_declared(row["name"], row["definition"]) for row in reader.timers()]

    services, timers = remains.read(known)
    return Definitions(services=services, timers=timers, invalid=[], timezone=str(remains.zone))


def _declared(name: str, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None  # damaged: what is known is that it was there
    return {**(found if isinstance(found, dict) else {}), "id": name}


def _history(remains: Remains, params: Mapping[str, Any]) -> Any:
    asked = _asked(params, OfHistory)
    service, timer, of_misses = history_of(remains.config, asked)
    shows_misses = remains.is_gate_open and (of_misses is not None or service is None)
    runs, misses = remains.read(
        lambda reader: (
            reader.runs(service=service, timer=timer, before=asked.before, limit=asked.limit + 1),
            reader.misses(timer=of_misses, limit=asked.limit) if shows_misses else [],
        )
    )
    if not runs and not misses and asked.id is not None:
        check_known(remains.config, asked.id)
    return views.history_shape(remains.standing(), runs[: asked.limit], misses, more=len(runs) > asked.limit)


def _logs(remains: Remains, params: Mapping[str, Any]) -> Any:
    asked = _asked(params, OfLogs)
    run_id = asked.run
    if run_id is not None:
        row = remains.read(lambda reader: reader.run(run_id))
        if row is None or asked.id not in {None, row.service, row.timer}:
            raise no_run(asked)
        return views.log_shape(remains.standing(), row, asked.lines)
    service, timer, _ = history_of(remains.config, OfHistory(id=asked.id))
    rows = remains.read(lambda reader: reader.runs(service=service, timer=timer, limit=1))
    if not rows:
        check_known(remains.config, str(asked.id))
        raise no_run(asked)
    return views.log_shape(remains.standing(), rows[0], asked.lines)


def _asked(params: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(dict(params), kind)
    except msgspec.ValidationError as error:
        raise OperationError(BAD_REQUEST, f"the parameters cannot be used: {error}") from error


_ANSWERS: Mapping[str, Callable[[Remains, Mapping[str, Any]], Any]] = {
    "status": _status,
    "timers": _timers,
    "services": _services,
    "definitions": _definitions,
    "history": _history,
    "logs": _logs,
}
