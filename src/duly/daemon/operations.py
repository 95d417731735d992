"""Everything one can ask of the daemon: one table of named operations, with typed parameters and results.

An operation takes a `DaemonBackend` (the daemon), parameters and who asks, and answers with JSON of
`views`, or raises OperationError. It knows neither socket nor HTTP: the servers look names up in
`OPERATIONS`.
"""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from duly.config.schema import Config
from duly.daemon import json_types, views
from duly.daemon.backend import DaemonBackend, ReadBackend, Reloaded
from duly.daemon.health import status_json
from duly.daemon.protocol import (
    BAD_REQUEST,
    DISABLED,
    FAILED,
    INVALID_CONFIGURATION,
    NOT_FOUND,
    OperationError,
)
from duly.daemon.remote import Place, refreshed, run_called, runs_of
from duly.formatting import close_names, suggestion
from duly.instant import EARLIEST_US, instant_of, iso
from duly.processes.output import Tail
from duly.store.history import RemoteRun, RunRow, times_text

_MOST_ROWS = 1_000
_MOST_OUTPUTS = 100
_MOST_WAITING_BYTES = 256 * 1024


# --- parameters and results ---


class Params(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an operation is asked with."""


class Nothing(Params):
    """An operation that needs to be told nothing."""


class OfOne(Params):
    """An operation on one service or timer."""

    id: str


RunNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""As large as a store can keep."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class OfHistory(Params):
    """Which runs: of a service or a timer (by its id, or by either in *id*), older than *before*.

    The runs after a page are those older than its `older`: give both numbers of that.
    """

    id: str | None = None
    service: str | None = None
    timer: str | None = None
    before: RunNumber | None = None
    shared: RunNumber | None = None
    limit: Count = 20


class OfLogs(Params):
    """Whose output: the latest run of a service, or of a timer's target, or one run by its number."""

    id: str | None = None
    run: RunNumber | None = None
    machine: str | None = None
    """Where that run was, if not here."""
    lines: Count | None = None
    follow: bool = False


class OfOutputs(Params):
    """Whose outputs: of a service or timer or of all; of which runs of this machine, by their numbers."""

    id: str | None = None
    before: RunNumber | None = None
    after: RunNumber = 0
    since: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Only of runs that had not ended before then."""
    limit: Count = 20


class OfReload(Params):
    """Whether a file that defines nothing any more is meant, and is to end everything."""

    allow_empty: bool = False


class OfTimerSwitch(Params):
    """Whether the timer subsystem is to be on."""

    on: bool


class Done(json_types.JsonStruct):
    """Something was done."""

    done: str
    id: str | None = None
    run: int | None = None


class Definitions(json_types.JsonStruct):
    """What the daemon runs by, as declared."""

    services: list[dict[str, Any]]
    timers: list[dict[str, Any]]
    invalid: list[json_types.InvalidJson]
    timezone: str
    """Of calendars that give none of their own."""


class LogPiece(json_types.JsonStruct):
    """A piece of output that came while somebody followed."""

    text: str
    lost_bytes: int = 0
    at: str | None = None
    """When it came."""


# The first argument is a ReadBackend for operations that read, and a DaemonBackend for those that act.
Function = Callable[[Any, Any, str], Awaitable[Any]]
Streaming = Callable[[ReadBackend, Any, str], AsyncGenerator[Any, None]]


class Operation(NamedTuple):
    """One operation. *stream* is there if it can answer piece by piece; following always may take long."""

    params: type[Params]
    function: Function
    is_read: bool
    stream: Streaming | None = None
    may_take_long: bool = False
    """It waits for a process, for the store or for its turn."""


def params_for(operation: Operation, given: Mapping[str, Any]) -> Params:
    try:
        return msgspec.convert(dict(given), operation.params)
    except msgspec.ValidationError as error:
        raise OperationError(BAD_REQUEST, f"the parameters cannot be used: {error}") from error


def operation_called(name: str) -> Operation:
    found = OPERATIONS.get(name)
    if found is None:
        message = f"there is no operation {name[:100]!r}; is the daemon of another version?"
        raise OperationError(BAD_REQUEST, message, known=sorted(OPERATIONS))
    return found


# --- reading ---


async def _status(backend: ReadBackend, _params: Nothing, _who: str) -> json_types.StatusJson:
    return status_json(backend.daemon_status(), backend.config, backend.services(), backend.timers())


async def _timers(
    backend: ReadBackend, _params: Nothing, _who: str
) -> json_types.TimersJson | json_types.DisabledJson:
    stale = await refreshed(backend)
    snapshots = backend.timers()
    if snapshots is None:
        return views.disabled(is_parent_on=backend.config.settings.enabled)
    # In steps: an answer of thousands of timers must not hold up the loop.
    for answer in views.timers_json_steps(backend.daemon_status(), backend.config, snapshots):
        whole = answer
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    whole.fault = stale
    return whole


async def _services(backend: ReadBackend, _params: Nothing, _who: str) -> json_types.ServicesJson:
    return views.services_json(backend.daemon_status(), backend.config, backend.services())


async def _definitions(backend: ReadBackend, _params: Nothing, _who: str) -> Definitions:
    config = backend.config
    return Definitions(
        services=[views.definition(service) for service in config.services],
        timers=[views.definition(timer) for timer in config.timers],
        invalid=views.invalid_json(config),
        timezone=str(backend.daemon_status().zone),
    )


async def _history(backend: ReadBackend, params: OfHistory, _who: str) -> json_types.HistoryJson:
    limit = max(1, min(params.limit, _MOST_ROWS))
    is_open = backend.daemon_status().is_timer_switch_on
    service, timer, of_misses = history_of(backend.config, params)
    place = Place(params.before, params.shared)
    found = await runs_of(backend, service=service, timer=timer, place=place, limit=limit)
    shows_misses = is_open and (of_misses is not None or service is None)
    misses = await backend.history.misses(timer=of_misses, limit=limit) if shows_misses else []
    if not found.rows and not misses and params.id is not None:
        check_known(backend.config, params.id)
    older = None if found.older is None else json_types.PlaceJson(**found.older._asdict())
    return views.history_json(
        backend.daemon_status(), found.rows, misses, more=older is not None, older=older, fault=found.fault
    )


async def _logs(backend: ReadBackend, params: OfLogs, _who: str) -> json_types.LogJson:
    row, fault = await _run_of(backend, params)
    return _log(backend, row, params.lines, fault)


async def _outputs(backend: ReadBackend, params: OfOutputs, _who: str) -> json_types.OutputsJson:
    limit = max(1, min(params.limit, _MOST_OUTPUTS))
    service, timer, _ = history_of(backend.config, OfHistory(id=params.id))
    since_us = EARLIEST_US if params.since is None else instant_of(params.since)
    rows = await backend.history.runs(
        service=service,
        timer=timer,
        before=params.before,
        after=params.after,
        since_us=since_us,
        limit=limit,
    )
    if not rows and params.id is not None:
        check_known(backend.config, params.id)
    return json_types.OutputsJson(
        source=backend.daemon_status().source,
        logs=[_log(backend, row, None, None) for row in rows],
        more=len(rows) == limit,
    )


async def _follow(
    backend: ReadBackend, params: OfLogs, _who: str
) -> AsyncGenerator[json_types.LogJson | LogPiece, None]:
    row, fault = await _run_of(backend, params)
    output = _output(backend, row)
    if output is None or not params.follow:
        # It may have ended since it was looked up.
        now = await backend.history.run(row.id) if row.result is None else row
        yield _log(backend, now or row, params.lines, fault)
        return
    follower = _Follower()
    # The text so far and the watch begin in the same moment: nothing is told twice, and nothing left out.
    unwatch = output.watch(follower.write)
    first = _log(backend, row, params.lines, fault)
    ending = asyncio.ensure_future(backend.ended(row.id))
    ending.add_done_callback(lambda _: follower.wake())
    try:
        yield first
        while not ending.done():
            await follower.wait()
            if (piece := follower.piece(backend)) is not None:
                yield piece
        if (piece := follower.piece(backend, is_last=True)) is not None:
            yield piece
        ended = await backend.history.run(row.id)
        yield views.log_json(backend.daemon_status(), ended or row, 0)
    finally:
        unwatch()
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending


class _Follower:
    """What came since it was last asked, up to a limit: one who reads slowly misses the oldest."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._lost_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._awake = asyncio.Event()

    def write(self, received: bytes) -> None:
        self._waiting += received
        over = len(self._waiting) - _MOST_WAITING_BYTES
        if over > 0:
            del self._waiting[:over]
            self._lost_bytes += over
        self._awake.set()

    def wake(self) -> None:
        self._awake.set()

    async def wait(self) -> None:
        await self._awake.wait()
        self._awake.clear()

    def piece(self, backend: ReadBackend, *, is_last: bool = False) -> LogPiece | None:
        """What came, as text; None for nothing."""
        text, lost = self._decoder.decode(bytes(self._waiting), final=is_last), self._lost_bytes
        self._waiting.clear()
        self._lost_bytes = 0
        if not text and not lost:
            return None
        now = backend.daemon_status()
        return LogPiece(text=text, lost_bytes=lost, at=iso(now.now_us, now.zone))


def _output(backend: ReadBackend, row: RunRow) -> Tail | None:
    """The output of a run that is under way here."""
    return None if isinstance(row, RemoteRun) else backend.output(row.id)


def _log(backend: ReadBackend, row: RunRow, lines: int | None, fault: str | None) -> json_types.LogJson:
    output = _output(backend, row)
    if output is not None:
        row = msgspec.structs.replace(
            row,
            output=output.text(),
            output_lost=output.lost_bytes,
            output_times=times_text(output.times()),
        )
    return views.log_json(backend.daemon_status(), row, lines, fault=fault)


async def _run_of(backend: ReadBackend, params: OfLogs) -> tuple[RunRow, str | None]:
    """The run that is meant; and why no run of another machine is, if one could be."""
    if params.run is not None:
        row = await run_called(backend, params.run, params.machine)
        if row is None or params.id not in {None, row.service, row.timer}:
            raise no_run(params)
        return row, None
    if params.id is None:
        raise OperationError(BAD_REQUEST, "whose output? give an id, or the number of a run")
    service, timer, _ = history_of(backend.config, OfHistory(id=params.id))
    found = await runs_of(backend, service=service, timer=timer, limit=1)
    if not found.rows:
        check_known(backend.config, params.id)
        raise no_run(params)
    row = found.rows[0]
    machine = row.machine if isinstance(row, RemoteRun) else None
    return await run_called(backend, row.id, machine) or row, found.fault


# --- acting ---


async def _start(backend: DaemonBackend, params: OfOne, who: str) -> Done:
    check_known(backend.config, params.id, "service")
    run = await backend.start_service(params.id)
    backend.emit_action("start", params.id, who)
    return Done(done="started", id=params.id, run=run)


async def _stop(backend: DaemonBackend, params: OfOne, who: str) -> Done:
    check_known(backend.config, params.id, "service")
    # Told before it is done: the ends that it causes come before it returns.
    backend.emit_action("stop", params.id, who)
    await backend.stop_service(params.id)
    return Done(done="stopped", id=params.id)


async def _trigger(backend: DaemonBackend, params: OfOne, who: str) -> Done:
    _check_timer(backend, params.id)
    run = await backend.trigger(params.id)
    backend.emit_action("trigger", params.id, who)
    return Done(done="triggered", id=params.id, run=run)


async def _enable(backend: DaemonBackend, params: OfOne, who: str) -> Done:
    _check_timer(backend, params.id)
    await backend.switch_timer(params.id, enabled=True)
    backend.emit_action("enable", params.id, who)
    return Done(done="enabled", id=params.id)


async def _disable(backend: DaemonBackend, params: OfOne, who: str) -> Done:
    _check_timer(backend, params.id)
    await backend.switch_timer(params.id, enabled=False)
    backend.emit_action("disable", params.id, who)
    return Done(done="disabled", id=params.id)


async def _switch_timers(backend: DaemonBackend, params: OfTimerSwitch, who: str) -> Done:
    if params.on and not backend.config.settings.enabled:
        raise OperationError(DISABLED, views.PARENT_DISABLED_MESSAGE)
    await backend.set_timer_switch(is_open=params.on)
    action = "timers on" if params.on else "timers off"
    backend.emit_action(action, None, who)
    return Done(done=action)


async def _reload(backend: DaemonBackend, params: OfReload, who: str) -> Reloaded:
    backend.emit_action("reload", None, who)
    return await backend.reload(allow_empty=params.allow_empty)


async def _shut_down(backend: DaemonBackend, _params: Nothing, who: str) -> Done:
    backend.emit_action("shut down", None, who)
    backend.shut_down()
    return Done(done="stopping")


OPERATIONS: Mapping[str, Operation] = {
    "status": Operation(Nothing, _status, is_read=True),
    "timers": Operation(Nothing, _timers, is_read=True),
    "services": Operation(Nothing, _services, is_read=True),
    "definitions": Operation(Nothing, _definitions, is_read=True),
    "history": Operation(OfHistory, _history, is_read=True),
    "logs": Operation(OfLogs, _logs, is_read=True, stream=_follow),
    "outputs": Operation(OfOutputs, _outputs, is_read=True),
    "start": Operation(OfOne, _start, is_read=False, may_take_long=True),
    "stop": Operation(OfOne, _stop, is_read=False, may_take_long=True),
    "trigger": Operation(OfOne, _trigger, is_read=False, may_take_long=True),
    "enable": Operation(OfOne, _enable, is_read=False, may_take_long=True),
    "disable": Operation(OfOne, _disable, is_read=False, may_take_long=True),
    "gate": Operation(OfTimerSwitch, _switch_timers, is_read=False, may_take_long=True),
    "reload": Operation(OfReload, _reload, is_read=False, may_take_long=True),
    "shut_down": Operation(Nothing, _shut_down, is_read=False),
}
"""Every operation there is."""


# --- who is meant ---


def history_of(config: Config, params: OfHistory) -> tuple[str | None, str | None, str | None]:
    """Which runs are meant, by service or by timer; and the misses of that timer."""
    if params.id is None:
        return params.service, params.timer, params.timer
    timers = {timer.id for timer in config.timers}
    services = {service.id for service in config.services}
    if params.id in timers and params.id not in services:
        return None, params.id, params.id
    # A service and its timer often have the same name: then it is about all runs of the service.
    return params.id, None, params.id


def check_known(config: Config, id: str, kind: str = "service or timer") -> None:  # noqa: A002 (the word)
    """Raise OperationError unless there is a service or a timer of that id."""
    ids = [service.id for service in config.services] if "service" in kind else []
    ids += [timer.id for timer in config.timers] if "timer" in kind else []
    if id in ids:
        return
    for bad in config.invalid:
        if bad.id == id and any(bad.is_of(each) for each in kind.split(" or ")):
            message = f"{bad.kind} {id} is invalid: {bad.reason}; correct it and reload"
            raise OperationError(INVALID_CONFIGURATION, message, id=id, reason=bad.reason)
    close = close_names(id, list(dict.fromkeys(ids)))  # a service and its timer often have the same name
    hint = f"; {suggestion(close)}" if close else ""
    raise OperationError(NOT_FOUND, f"there is no {kind} {id[:200]}{hint}", id=id, close=close)


def _check_timer(backend: DaemonBackend, id: str) -> None:  # noqa: A002 (the word for it)
    config = backend.config
    if backend.timers() is None:
        raise OperationError(DISABLED, views.disabled(is_parent_on=config.settings.enabled).message)
    check_known(config, id, "timer")


def no_run(params: OfLogs) -> OperationError:
    """The refusal to show the output of a run that there is none of."""
    if params.run is not None:
        of = f" of {params.id}" if params.id is not None else ""
        of += f" on {params.machine[:200]}" if params.machine is not None else ""
        message = f"there is no run {params.run}{of}; `duly history` lists those that are kept"
        return OperationError(NOT_FOUND, message, run=params.run)
    return OperationError(
        FAILED, f"{params.id} has not run yet, or its runs are no longer kept", id=params.id
    )
