"""Everything one can ask of the daemon: one table of named operations, with typed parameters and results.

An operation takes a `DaemonBackend` (the daemon), parameters and who asks, and answers with JSON of
`views`, or raises OperationError. It knows neither socket nor HTTP: the servers look names up in
`OPERATIONS`.
"""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
from duly.daemon.views import TimerSnapshot
from duly.formatting import close_names, suggestion
from duly.instant import EARLIEST_US, SECOND_US, instant_of, iso, time_of
from duly.processes.output import Tail
from duly.store.history import RemoteRun, RunRow, times_text

if TYPE_CHECKING:
    from duly.daemon.slots import SlotAnswer

_MOST_ROWS = 1_000
_MOST_OUTPUTS = 100
_MOST_RECORDED = 10_000
"""Runs and misses of a timer that are looked through for what became of a minute."""
_MOST_WAITING_BYTES = 256 * 1024


# --- parameters and results ---


class Params(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an operation is asked with."""


class Nothing(Params):
    """An operation without parameters."""


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


class OfRun(Params):
    """Which run, by its number; and on what machine, if not here."""

    id: RunNumber
    machine: str | None = None


class OfMisses(Params):
    """Which misses: of a timer or of all; *skip* so many of the newest."""

    timer: str | None = None
    skip: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    limit: Count = 50


class OfWhy(Params):
    """Which timer, and which minute (ISO 8601, in the timer's zone). Without one, the latest slot.

    With a count, so many of the latest slots up to that minute.
    """

    id: str
    at: str | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None


class OfNext(Params):
    """Of which timer, or of all together; and how many."""

    id: str | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10


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
    summary: str
    """What it is for, in a sentence."""
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


async def _run(backend: ReadBackend, params: OfRun, _who: str) -> json_types.RunJson:
    row = await run_called(backend, params.id, params.machine)
    if row is None:
        raise no_run(OfLogs(run=params.id, machine=params.machine))
    return views.run_json(row, backend.daemon_status().zone)


async def _misses(backend: ReadBackend, params: OfMisses, _who: str) -> json_types.MissesJson:
    limit, now = max(1, min(params.limit, _MOST_ROWS)), backend.daemon_status()
    # While timers are off nothing of theirs is shown (spec/timers.md 7).
    reach = params.skip + limit + 1 if now.is_timer_switch_on else 0
    rows = (await backend.history.misses(timer=params.timer, limit=reach) if reach else [])[params.skip :]
    if not rows and params.timer is not None:
        check_known(backend.config, params.timer, "timer")
    return json_types.MissesJson(
        source=now.source,
        at=iso(now.now_us, now.zone),
        misses=[views.miss_json(row, now.zone) for row in rows[:limit]],
        more=len(rows) > limit,
    )


async def _why(backend: ReadBackend, params: OfWhy, _who: str) -> json_types.WhyJson | json_types.WhyListJson:
    _check_timer(backend, params.id)
    try:
        at = None if params.at is None else datetime.fromisoformat(params.at)
    except ValueError:
        raise OperationError(BAD_REQUEST, "at must be a time such as 2026-03-29T02:30") from None
    from duly.daemon.slots import record_of, why, why_latest  # noqa: PLC0415 (the timers are on)

    stale = await refreshed(backend)
    found = await runs_of(backend, timer=params.id, limit=_MOST_RECORDED)
    misses = await backend.history.misses(timer=params.id, limit=_MOST_RECORDED)
    timer = next(timer for timer in backend.config.timers if timer.id == params.id)
    snapshot, now = (backend.timers() or {}).get(params.id, TimerSnapshot()), backend.daemon_status()
    record = record_of(
        timer,
        snapshot,
        now.zone,
        now.now_us,
        runs=found.rows,
        misses=misses,
        is_live=now.source == "daemon",
    )
    facts: dict[str, Any] = {
        "timer": params.id,
        "source": now.source,
        "timezone": str(record.zone),
        "next_run_at": time_of(snapshot.next_us, record.zone),
        "fault": found.fault or stale,
    }
    # In a thread: there may be many runs to look through.
    if params.count is None:
        answer = await asyncio.to_thread(why, record, at)
        return json_types.WhyJson(**facts, **_slot_facts(answer, record.zone))
    answers = await asyncio.to_thread(why_latest, record, params.count, at)
    shown = [json_types.SlotJson(**_slot_facts(each, record.zone)) for each in answers]
    return json_types.WhyListJson(**facts, answers=shown)


def _slot_facts(answer: "SlotAnswer", zone: tzinfo) -> dict[str, Any]:
    return {
        "kind": str(answer.kind),
        "sentence": answer.sentence,
        "slot": time_of(answer.slot_us, zone),
        "run": None if answer.run is None else views.run_json(answer.run, zone),
        "late_s": None if answer.late_us is None else answer.late_us / SECOND_US,
        "miss": None if answer.miss is None else views.miss_json(answer.miss, zone),
        "runs": [views.run_json(run, zone) for run in answer.runs],
    }


async def _next(backend: ReadBackend, params: OfNext, _who: str) -> json_types.FiringsJson:
    if params.id is not None:
        _check_timer(backend, params.id)
    elif backend.timers() is None:
        raise OperationError(DISABLED, views.disabled(is_parent_on=backend.config.settings.enabled).message)
    from duly.daemon.slots import firings_after  # noqa: PLC0415 (the timers are on)

    await refreshed(backend)
    now = backend.daemon_status()
    timers = [timer for timer in backend.config.timers if params.id in {None, timer.id}]
    # In a thread: there may be thousands of timers.
    found = await asyncio.to_thread(
        firings_after, timers, backend.timers() or {}, now.zone, now.now_us, params.count
    )
    return json_types.FiringsJson(
        source=now.source,
        at=iso(now.now_us, now.zone),
        firings=[json_types.FiringJson(timer=name, at=iso(at_us, now.zone)) for at_us, name in found],
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
    # The text so far and the watch begin in the same moment: no line is sent twice, and none is left out.
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


def _reads(
    params: type[Params], function: Function, summary: str, stream: Streaming | None = None
) -> Operation:
    return Operation(params, function, is_read=True, summary=summary, stream=stream)


def _acts(params: type[Params], function: Function, summary: str, *, may_take_long: bool = True) -> Operation:
    return Operation(params, function, is_read=False, summary=summary, may_take_long=may_take_long)


OPERATIONS: Mapping[str, Operation] = {
    "status": _reads(Nothing, _status, "Whether all is well, and if not, why; versions, counts, what comes."),
    "timers": _reads(Nothing, _timers, "All timers: their schedule, last and next run, and retries."),
    "services": _reads(Nothing, _services, "All services and jobs: their state, process and last run."),
    "definitions": _reads(Nothing, _definitions, "What the daemon runs by: its configuration as checked."),
    "history": _reads(OfHistory, _history, "The runs of a service, of a timer or of all, newest first."),
    "run": _reads(OfRun, _run, "One run: why and when it started, how long it took and how it ended."),
    "misses": _reads(OfMisses, _misses, "Slots of timers that no run answered, with the reason, in pages."),
    "why": _reads(OfWhy, _why, "Why a timer fired, or did not fire, in a minute."),
    "next": _reads(OfNext, _next, "When timers fire next, in order."),
    "logs": _reads(
        OfLogs, _logs, "The output of the latest run of a service or timer, or of one run.", _follow
    ),
    "outputs": _reads(OfOutputs, _outputs, "The outputs of many runs, to be searched."),
    "start": _acts(OfOne, _start, "Start a service, or a job by hand."),
    "stop": _acts(OfOne, _stop, "Stop a service, or the run of a job."),
    "trigger": _acts(OfOne, _trigger, "Fire a timer now."),
    "enable": _acts(OfOne, _enable, "Have a timer fire again."),
    "disable": _acts(OfOne, _disable, "Keep a timer from firing, also after a restart."),
    "gate": _acts(OfTimerSwitch, _switch_timers, "Switch all timers on or off."),
    "reload": _acts(OfReload, _reload, "Read the configuration again, and run by it."),
    "shut_down": _acts(Nothing, _shut_down, "End the daemon and its services.", may_take_long=False),
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


def _check_timer(backend: ReadBackend, id: str) -> None:  # noqa: A002 (the word for it)
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
