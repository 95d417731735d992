"""Everything one can ask of the daemon: one table of named operations, with typed parameters and results.

An operation takes a `Backend` (the daemon), parameters and who asks, and answers with a shape of `views`, or
raises OperationError. It knows neither socket nor HTTP: whoever carries requests looks names up in
`OPERATIONS`.
"""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple

import msgspec

from duly.config.schema import Config
from duly.daemon import shapes, views
from duly.daemon.backend import Backend, Reloaded
from duly.daemon.protocol import (
    BAD_REQUEST,
    DISABLED,
    FAILED,
    INVALID_CONFIGURATION,
    NOT_FOUND,
    OperationError,
)
from duly.store.history import RunRow

_MOST_ROWS = 1_000
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
    """Which runs: of a service or a timer (by its id, or by either in *id*), older than *before*."""

    id: str | None = None
    service: str | None = None
    timer: str | None = None
    before: RunNumber | None = None
    limit: Count = 20


class OfLogs(Params):
    """Whose output: the latest run of a service, or of a timer's target, or one run by its number."""

    id: str | None = None
    run: RunNumber | None = None
    lines: Count | None = None
    follow: bool = False


class OfGate(Params):
    """Whether the timer subsystem is to be on."""

    on: bool


class Done(shapes.Shape):
    """Something was done."""

    done: str
    id: str | None = None
    run: int | None = None
    member: str | None = None
    """On which machine the run is, and its number is of, unless that is this one."""


class Definitions(shapes.Shape):
    """What the daemon runs by, as declared."""

    services: list[dict[str, Any]]
    timers: list[dict[str, Any]]
    invalid: list[shapes.InvalidShape]
    timezone: str
    """Of calendars that give none of their own."""


class LogPiece(shapes.Shape):
    """A piece of output that came while somebody followed."""

    text: str
    lost_bytes: int = 0


Function = Callable[[Backend, Any, str], Awaitable[Any]]
Streaming = Callable[[Backend, Any, str], AsyncGenerator[Any, None]]


class Operation(NamedTuple):
    """One operation. *stream* is there if it can answer piece by piece; following always may take long."""

    params: type[Params]
    function: Function
    is_read: bool
    stream: Streaming | None = None
    may_take_long: bool = False
    """It waits for a process, for the store or for its turn."""


def params_for(operation: Operation, given: Mapping[str, Any]) -> Params:
    """The parameters, checked. Raises OperationError."""
    try:
        return msgspec.convert(dict(given), operation.params)
    except msgspec.ValidationError as error:
        raise OperationError(BAD_REQUEST, f"the parameters cannot be used: {error}") from error


def operation_called(name: str) -> Operation:
    """The operation of that name. Raises OperationError."""
    found = OPERATIONS.get(name)
    if found is None:
        message = f"there is no operation {name[:100]!r}; is the daemon of another version?"
        raise OperationError(BAD_REQUEST, message, known=sorted(OPERATIONS))
    return found


# --- reading ---


async def _status(backend: Backend, _params: Nothing, _who: str) -> shapes.StatusShape:
    return views.status_shape(backend.standing(), backend.config, backend.services(), backend.timers())


async def _timers(backend: Backend, _params: Nothing, _who: str) -> shapes.TimersShape | shapes.DisabledShape:
    readings = backend.timers()
    if readings is None:
        return views.disabled(is_parent_on=backend.config.settings.enabled)
    for shape in views.timers_shapes(backend.standing(), backend.config, readings):
        whole = shape
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
    return whole


async def _services(backend: Backend, _params: Nothing, _who: str) -> shapes.ServicesShape:
    return views.services_shape(backend.standing(), backend.config, backend.services())


async def _definitions(backend: Backend, _params: Nothing, _who: str) -> Definitions:
    config = backend.config
    return Definitions(
        services=[views.definition(service) for service in config.services],
        timers=[views.definition(timer) for timer in config.timers],
        invalid=views.invalid_shapes(config),
        timezone=str(backend.standing().zone),
    )


async def _history(backend: Backend, params: OfHistory, _who: str) -> shapes.HistoryShape:
    limit = max(1, min(params.limit, _MOST_ROWS))
    is_open = backend.timers() is not None
    service, timer, of_misses = history_of(backend.config, params)
    rows = await backend.history.runs(
        service=service, timer=timer, before=params.before, limit=limit + 1, with_output=False
    )
    shows_misses = is_open and (of_misses is not None or service is None)
    misses = await backend.history.misses(timer=of_misses, limit=limit) if shows_misses else []
    if not rows and not misses and params.id is not None:
        check_known(backend.config, params.id)
    return views.history_shape(backend.standing(), rows[:limit], misses, more=len(rows) > limit)


async def _logs(backend: Backend, params: OfLogs, _who: str) -> shapes.LogShape:
    return _log(backend, await _run_of(backend, params), params.lines)


async def _follow(
    backend: Backend, params: OfLogs, _who: str
) -> AsyncGenerator[shapes.LogShape | LogPiece, None]:
    row = await _run_of(backend, params)
    output = backend.output(row.id)
    if output is None or not params.follow:
        # It may have ended since it was looked up.
        now = await backend.history.run(row.id) if row.result is None else row
        yield _log(backend, now or row, params.lines)
        return
    follower = _Follower()
    # The text so far and the watch begin in the same moment: nothing is told twice, and nothing left out.
    unwatch = output.watch(follower.write)
    first = _log(backend, row, params.lines)
    ending = asyncio.ensure_future(backend.ended(row.id))
    ending.add_done_callback(lambda _: follower.wake())
    try:
        yield first
        while not ending.done():
            await follower.waited()
            if (piece := follower.piece()) is not None:
                yield piece
        if (piece := follower.piece(is_last=True)) is not None:
            yield piece
        ended = await backend.history.run(row.id)
        yield views.log_shape(backend.standing(), ended or row, 0)
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
        """More came."""
        self._waiting += received
        over = len(self._waiting) - _MOST_WAITING_BYTES
        if over > 0:
            del self._waiting[:over]
            self._lost_bytes += over
        self._awake.set()

    def wake(self) -> None:
        """Nothing more will come."""
        self._awake.set()

    async def waited(self) -> None:
        """Return once there is something to tell."""
        await self._awake.wait()
        self._awake.clear()

    def piece(self, *, is_last: bool = False) -> LogPiece | None:
        """What came, as text; None for nothing."""
        text, lost = self._decoder.decode(bytes(self._waiting), final=is_last), self._lost_bytes
        self._waiting.clear()
        self._lost_bytes = 0
        return LogPiece(text=text, lost_bytes=lost) if text or lost else None


def _log(backend: Backend, row: RunRow, lines: int | None) -> shapes.LogShape:
    output = backend.output(row.id)
    if output is not None:
        row = msgspec.structs.replace(row, output=output.text(), output_lost=output.lost_bytes)
    return views.log_shape(backend.standing(), row, lines)


async def _run_of(backend: Backend, params: OfLogs) -> RunRow:
    if params.run is not None:
        row = await backend.history.run(params.run)
        if row is None or params.id not in {None, row.service, row.timer}:
            raise no_run(params)
        return row
    if params.id is None:
        raise OperationError(BAD_REQUEST, "whose output? give an id, or the number of a run")
    service, timer, _ = history_of(backend.config, OfHistory(id=params.id))
    rows = await backend.history.runs(service=service, timer=timer, limit=1)
    if not rows:
        check_known(backend.config, params.id)
        raise no_run(params)
    return rows[0]


# --- acting ---


async def _start(backend: Backend, params: OfOne, who: str) -> Done:
    _check_service(backend.config, params.id)
    run = await backend.start_service(params.id)
    backend.note_action("start", params.id, who)
    return Done(done="started", id=params.id, run=run)


async def _stop(backend: Backend, params: OfOne, who: str) -> Done:
    _check_service(backend.config, params.id)
    backend.note_action("stop", params.id, who)
    await backend.stop_service(params.id)
    return Done(done="stopped", id=params.id)


async def _trigger(backend: Backend, params: OfOne, who: str) -> Done:
    _check_timer(backend, params.id)
    begun = await backend.trigger(params.id)
    backend.note_action("trigger", params.id, who)
    return Done(done="triggered", id=params.id, run=begun.run, member=begun.member)


async def _enable(backend: Backend, params: OfOne, who: str) -> Done:
    _check_timer(backend, params.id)
    await backend.switch_timer(params.id, enabled=True)
    backend.note_action("enable", params.id, who)
    return Done(done="enabled", id=params.id)


async def _disable(backend: Backend, params: OfOne, who: str) -> Done:
    _check_timer(backend, params.id)
    await backend.switch_timer(params.id, enabled=False)
    backend.note_action("disable", params.id, who)
    return Done(done="disabled", id=params.id)


async def _gate(backend: Backend, params: OfGate, who: str) -> Done:
    if params.on and not backend.config.settings.enabled:
        raise OperationError(DISABLED, views.PARENT_DISABLED_MESSAGE)
    await backend.switch_gate(is_open=params.on)
    backend.note_action("timers on" if params.on else "timers off", None, who)
    return Done(done="timers on" if params.on else "timers off")


async def _reload(backend: Backend, _params: Nothing, who: str) -> Reloaded:
    backend.note_action("reload", None, who)
    return await backend.reload()


async def _shut_down(backend: Backend, _params: Nothing, who: str) -> Done:
    backend.note_action("shut down", None, who)
    backend.shut_down()
    return Done(done="stopping")


OPERATIONS: Mapping[str, Operation] = {
    "status": Operation(Nothing, _status, is_read=True),
    "timers": Operation(Nothing, _timers, is_read=True),
    "services": Operation(Nothing, _services, is_read=True),
    "definitions": Operation(Nothing, _definitions, is_read=True),
    "history": Operation(OfHistory, _history, is_read=True),
    "logs": Operation(OfLogs, _logs, is_read=True, stream=_follow),
    "start": Operation(OfOne, _start, is_read=False, may_take_long=True),
    "stop": Operation(OfOne, _stop, is_read=False, may_take_long=True),
    "trigger": Operation(OfOne, _trigger, is_read=False, may_take_long=True),
    "enable": Operation(OfOne, _enable, is_read=False, may_take_long=True),
    "disable": Operation(OfOne, _disable, is_read=False, may_take_long=True),
    "gate": Operation(OfGate, _gate, is_read=False, may_take_long=True),
    "reload": Operation(Nothing, _reload, is_read=False, may_take_long=True),
    "shut_down": Operation(Nothing, _shut_down, is_read=False),
}
"""Every operation there is."""


# --- who is meant ---


def history_of(config: Config, params: OfHistory) -> tuple[str | None, str | None, str | None]:
    """Which runs are meant: of which service, fired by which timer; and of which timer the misses."""
    if params.id is None:
        return params.service, params.timer, params.timer
    timers = {timer.id for timer in config.timers}
    services = {service.id for service in config.services}
    if params.id in timers and params.id not in services:
        return None, params.id, params.id
    # A service and its timer often have the same name: then it is about all runs of the service.
    return params.id, None, params.id


def check_known(config: Config, id: str) -> None:  # noqa: A002 (the word for it)
    """Raise OperationError unless there is a service or a timer of that id."""
    ids = (*(service.id for service in config.services), *(timer.id for timer in config.timers))
    known = list(dict.fromkeys(ids))  # a service and its timer often have the same name
    if id not in known:
        raise _not_found(config, "service or timer", id, known)


def _check_service(config: Config, id: str) -> None:  # noqa: A002 (the word for it)
    known = [service.id for service in config.services]
    if id not in known:
        raise _not_found(config, "service", id, known)


def _check_timer(backend: Backend, id: str) -> None:  # noqa: A002 (the word for it)
    config = backend.config
    if backend.timers() is None:
        raise OperationError(DISABLED, views.disabled(is_parent_on=config.settings.enabled).message)
    known = [timer.id for timer in config.timers]
    if id not in known:
        raise _not_found(config, "timer", id, known)


def _not_found(config: Config, kind: str, id: str, known: Sequence[str]) -> OperationError:  # noqa: A002
    for bad in config.invalid:
        if bad.id == id and bad.kind in kind:
            message = f"{bad.kind} {id} is invalid: {bad.reason}; correct it and reload"
            return OperationError(INVALID_CONFIGURATION, message, id=id, reason=bad.reason)
    close = get_close_matches(id[:100], known, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return OperationError(NOT_FOUND, f"there is no {kind} {id[:200]}{hint}", id=id, close=close)


def no_run(params: OfLogs) -> OperationError:
    """The refusal to show the output of a run that there is none of."""
    if params.run is not None:
        of = f" of {params.id}" if params.id is not None else ""
        message = f"there is no run {params.run}{of}; `duly history` lists those that are kept"
        return OperationError(NOT_FOUND, message, run=params.run)
    return OperationError(
        FAILED, f"{params.id} has not run yet, or its runs are no longer kept", id=params.id
    )
