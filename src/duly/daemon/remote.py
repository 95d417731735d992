"""Runs of all machines: those in the history of this one, and those of shared timers in the database.

Both are in order of their starts, and are merged in that order. A run of this machine is in both: its copy in
the database is passed over when its time comes. So a page can say where both go on, and the next page neither
repeats nor omits a run.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from duly.daemon.backend import ReadBackend
from duly.daemon.protocol import UNREACHABLE, OperationError
from duly.instant import SECOND_US, Instant
from duly.store.history import RemoteRun, RunRow, WantedRuns

_SAME_US = 5 * SECOND_US
"""So far apart a run's start may be in the history of this machine and in the database."""
_COPIES = 20
"""So many more runs than wanted are read from the database: some may be copies of our own."""
_PATIENCE_S = 2
"""So long somebody who looks waits for the database."""


class Place(NamedTuple):
    """Where a list of runs goes on: after the run *before* of this machine, and *shared* in the database.

    Of the database none is listed yet if *shared* is 0. If only *before* is given, both go on at its start.
    """

    before: int | None = None
    shared: int | None = None


class RunList(NamedTuple):
    rows: list[RunRow]
    older: Place | None = None
    """Where it goes on; None at the end."""
    fault: str | None = None
    """Why runs of other machines are missing, if so."""


async def refreshed(backend: ReadBackend) -> str | None:
    """Have the backend show shared timers as they are now; why they may be older, if so."""
    try:
        async with _patience():
            await backend.refresh()
    except OperationError as error:
        return f"timers are shown as this machine last knew them: {error.message}"
    return None


async def runs_of(
    backend: ReadBackend,
    *,
    service: str | None = None,
    timer: str | None = None,
    place: Place = Place(),  # noqa: B008 (does not change)
    limit: int,
) -> RunList:
    """The latest runs of a service, of a timer, or of all, without their output. Raises StoreError."""
    local = await backend.history.runs(
        service=service, timer=timer, before=place.before, limit=limit + 1, with_output=False
    )
    wanted = await _wanted(backend, service, timer, place, limit + _COPIES)
    shared, fault = ([], None) if wanted is None else await _shared(backend, wanted)
    found = _merged(local, shared, place, limit, is_cut=len(shared) >= limit + _COPIES)
    targets = _targets(backend)
    return found._replace(rows=[_named(row, targets) for row in found.rows], fault=fault)


async def runs_between(
    backend: ReadBackend, from_us: Instant, to_us: Instant, limit: int
) -> tuple[RunList, bool]:
    """Runs that started then, here also older ones under way; and whether none of others is left out.

    Raises StoreError.
    """
    local = await backend.history.runs_between(from_us, to_us, limit=limit)
    shared, fault = await _shared(backend, WantedRuns(since_us=from_us, limit=limit))
    known, targets = {row.id: row for row in local}, _targets(backend)
    others = [_named(run, targets) for run in shared if not _is_known(run, known)]
    rows = sorted((*local, *others), key=lambda row: row.started_us, reverse=True)
    return RunList(rows, fault=fault), len(shared) < limit


async def run_called(backend: ReadBackend, number: int, machine: str | None) -> RunRow | None:
    """One run with its output, of this machine or of another. Raises OperationError, StoreError."""
    if machine is None:
        return await backend.history.run(number)
    found = await _asked(backend, WantedRuns(run=(machine, number), with_output=True))
    return _named(found[0], _targets(backend)) if found else None


async def _wanted(
    backend: ReadBackend, service: str | None, timer: str | None, place: Place, limit: int
) -> WantedRuns | None:
    """What to ask the database for; None if it cannot have any."""
    targets = _targets(backend)
    if timer is not None:
        timers = [timer] if service in {None, targets.get(timer)} else []
    else:
        timers = [name for name, target in targets.items() if target == service]
    if not timers and (service or timer):
        return None
    named = timers if service or timer else None
    wanted = WantedRuns(timers=named, before=place.shared or None, limit=limit)
    if place.before is None or place.shared is not None:
        return wanted
    last = await backend.history.run(place.before)
    return None if last is None else msgspec.structs.replace(wanted, before_us=last.started_us)


async def _shared(backend: ReadBackend, wanted: WantedRuns) -> tuple[Sequence[RemoteRun], str | None]:
    try:
        return await _asked(backend, wanted), None
    except OperationError as error:
        return [], f"runs of other machines are not shown: {error.message}"


async def _asked(backend: ReadBackend, wanted: WantedRuns) -> Sequence[RemoteRun]:
    """What the database answers, in time. Raises OperationError."""
    async with _patience():
        return await backend.past_runs(wanted)


@asynccontextmanager
async def _patience() -> AsyncIterator[None]:
    """Raises OperationError when the database takes too long."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            yield
    except TimeoutError:
        message = f"the database has not answered within {_PATIENCE_S} s"
        raise OperationError(UNREACHABLE, message) from None


def _merged(
    local: Sequence[RunRow], shared: Sequence[RemoteRun], place: Place, limit: int, *, is_cut: bool
) -> RunList:
    """The newest *limit* runs of both. If *is_cut*, nobody has read what comes after those in *shared*."""
    here, there, known = deque(local), deque(shared), {row.id: row for row in local}
    place = Place(None, 0) if place == Place() else place
    rows: list[RunRow] = []
    while len(rows) < limit and (here or there) and (there or not is_cut):
        if there and not (here and here[0].started_us >= there[0].started_us):
            run = there.popleft()
            place = place._replace(shared=run.shared_id)
            rows += [] if _is_known(run, known) else [run]
        else:
            rows.append(here.popleft())
            place = place._replace(before=rows[-1].id)
    is_over = not here and not is_cut and all(_is_known(run, known) for run in there)
    return RunList(rows, None if is_over else place)


def _targets(backend: ReadBackend) -> dict[str, str]:
    return {each.id: each.target for each in backend.config.timers}


def _named(row: RunRow, targets: Mapping[str, str]) -> RunRow:
    """A run of another machine with the service that its timer starts, if there still is such a timer."""
    if not isinstance(row, RemoteRun):
        return row
    return msgspec.structs.replace(row, service=targets.get(row.timer or "", row.service))


def _is_known(run: RemoteRun, known: Mapping[int, RunRow]) -> bool:
    """Whether the history of this machine has it; before its last start this daemon had another name."""
    row = known.get(run.id)
    if run.is_here or row is None or (row.timer, row.scheduled_us) != (run.timer, run.scheduled_us):
        return run.is_here
    return abs(row.started_us - run.started_us) < _SAME_US
