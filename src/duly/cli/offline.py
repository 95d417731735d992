"""What can be said of a daemon that does not answer: its configuration, and what its store remembers.

The operations are those of the daemon, over another backend. Nothing is written, and no lock is taken.
While the timers are off in the configuration the timers in the store are not even read.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from duly import __version__
from duly.cli.proxy import DaemonProxy
from duly.clock import HostClock
from duly.config.schema import Config, ConfigError, config_zone, database_of, socket_path, store_path
from duly.daemon import views
from duly.daemon.operations import Definitions, operation_called, params_for
from duly.daemon.protocol import sayable
from duly.instant import Instant, instant_of
from duly.store.history import MissRow, RemoteRun, RunRow, Span, WantedRuns
from duly.store.past import Past, known_services, known_slots
from duly.store.reading import Reader, empty_reader, read

T = TypeVar("T")

_CUT_OFF = "was running when the daemon was last heard of"


def answer(daemon: DaemonProxy, op: str, params: Mapping[str, Any]) -> Any:
    """What the daemon would have answered, as far as its store knows.

    Raises SchedulerError, OperationError.
    """
    config, fault = _config(daemon)
    if fault is not None and op in {"timers", "services", "definitions", "why"}:
        raise fault
    now_us = instant_of(HostClock().now())
    faults = () if fault is None else (fault.message,)
    stored = StoredDaemon(config, now_us, daemon.socket(), faults, state=daemon.state)
    if op == "definitions":
        return msgspec.to_builtins(_definitions(stored))
    return msgspec.to_builtins(asyncio.run(_operation_result(stored, op, sayable(params))))


async def _operation_result(stored: "StoredDaemon", op: str, params: Mapping[str, Any]) -> Any:
    operation = operation_called(op)
    return await operation.function(stored, params_for(operation, params), "")


def _config(daemon: DaemonProxy) -> tuple[Config, ConfigError | None]:
    try:
        config = daemon.loaded()
    except ConfigError as error:
        assert daemon.config is not None
        return Config(daemon.config), error
    assert config is not None, "without a configuration there is no store to read"
    return config, None


class StoredDaemon:
    """What is left of a daemon at *now_us*: a `ReadBackend`, as far as operations that read need one."""

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
        self.zone = config_zone(config)
        self.is_timer_switch_on = config.settings.enabled and config.settings.timers
        self._store = store_path(config)
        self._socket = socket or str(socket_path(config))
        self._faults = faults
        if (database := database_of(config)) is not None and self.is_timer_switch_on:
            self._faults += (f"the timers are in {database.name}; only a running daemon shows them",)
        self._state = state
        self.history = _StoredHistory(self)

    def daemon_status(self) -> views.DaemonStatus:
        return views.DaemonStatus(
            source="store",
            now_us=self.now_us,
            zone=self.zone,
            version=__version__,
            state=self._state,
            is_timer_switch_on=self.is_timer_switch_on,
            faults=self._faults,
            config=str(self.config.path),
            store=str(self._store),
            socket=self._socket,
        )

    def read(self, what: Callable[[Reader], T]) -> T:
        """What the store says, which is nothing as long as no daemon ever ran."""
        return read(self._store, what) if self._store.exists() else what(empty_reader())

    def services(self) -> list[views.ServiceSnapshot]:
        """The services as their last runs left them."""
        known, begun = self.read(lambda reader: (known_services(reader), reader.open_runs()))
        cut_off = {row.service: row for row in begun}
        found = []
        for service in self.config.services:
            of_service = known.get(service.id)
            row = cut_off.get(service.id) or (None if of_service is None else of_service.last)
            is_cut_off = service.id in cut_off
            found.append(
                views.ServiceSnapshot(
                    id=service.id,
                    state="unknown" if is_cut_off else "stopped",
                    since_us=None if row is None else row.ended_us or row.started_us,
                    last_run=row,
                    reason=_CUT_OFF if is_cut_off else "",
                    past=Past() if of_service is None else of_service.past,
                )
            )
        return found

    def timers(self) -> dict[str, views.TimerSnapshot] | None:
        """The timers as the store has them; None while the timers are off."""
        if not self.is_timer_switch_on:
            return None
        rows = {row["name"]: row for row in self.read(Reader.timers)}
        past_slots = self.read(known_slots)
        slots = self._slots({name: row["registered_us"] for name, row in rows.items()})
        return {
            timer.id: _snapshot(
                rows.get(timer.id, {}),
                slots.get(timer.id),
                past_slots.get(timer.id, ""),
                is_declared_on=timer.enabled,
            )
            for timer in self.config.timers
        }

    async def refresh(self) -> None:
        """Nothing: each answer is read again."""

    async def past_runs(self, _wanted: WantedRuns) -> list[RemoteRun]:
        """None: only a running daemon knows the runs of other machines."""
        return []

    async def past_buckets(self, _timers: Sequence[str], _span: Span) -> None:
        """None, as of runs."""
        return

    def output(self, _run_id: int) -> None:
        """None: nothing is under way."""

    def _slots(self, registered: Mapping[str, Any]) -> dict[str, Instant]:
        """The next slot of each timer: what would come if the daemon were started now."""
        from duly.timers.calendar import CalendarCache, slot_after  # noqa: PLC0415 - the timers are on

        calendar_cache = CalendarCache(self.zone)
        return {
            timer.id: slot_after(
                calendar_cache.of(timer),
                self.now_us,
                # A row may be damaged. A timer that is new is registered then.
                anchor_us if isinstance(anchor_us := registered.get(timer.id), int) else self.now_us,
            )
            for timer in self.config.timers
        }


def _snapshot(
    row: Mapping[str, Any], slot_us: Instant | None, past_slots: str, *, is_declared_on: bool
) -> views.TimerSnapshot:
    from duly.timers.record import TimerRecordError, row_from  # noqa: PLC0415 - the timers are on

    if row:
        try:
            row_from(tuple(row.values()))
        except TimerRecordError as error:
            return views.TimerSnapshot(fault=error.message)
    override = None if row.get("enabled") is None else bool(row["enabled"])
    is_on = is_declared_on if override is None else override
    return views.TimerSnapshot(
        enabled_override=override,
        next_us=slot_us if is_on else None,
        slots=past_slots,
        **{name: row[name] for name in views.TimerSnapshot.__struct_fields__ if name in row},
    )


class _StoredHistory:
    """The queries of a history that operations ask."""

    def __init__(self, daemon: StoredDaemon) -> None:
        self._daemon = daemon

    async def runs(self, **wanted: Any) -> list[RunRow]:
        return self._daemon.read(lambda reader: reader.runs(**wanted))

    async def run(self, run_id: int) -> RunRow | None:
        return self._daemon.read(lambda reader: reader.run(run_id))

    async def misses(self, **wanted: Any) -> list[MissRow]:
        return self._daemon.read(lambda reader: reader.misses(**wanted))


def _definitions(stored: StoredDaemon) -> Definitions:
    """What the store knows, not the file: that is what a file is compared with."""

    def known(reader: Reader) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        services = [_declared(name, text) for name, text in reader.services().items()]
        return services, [_declared(row["name"], row["definition"]) for row in reader.timers()]

    services, timers = stored.read(known)
    return Definitions(services=services, timers=timers, invalid=[], timezone=str(stored.zone))


def _declared(name: str, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None  # damaged: what is known is that it was there
    return {**(found if isinstance(found, dict) else {}), "id": name}
