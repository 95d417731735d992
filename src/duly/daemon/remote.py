"""Runs of all machines: those in the history of this one, and those of shared timers in the database.

Both are in order of their starts, and are merged in that order. A run of this machine is in both: its copy in
the database is passed over when its time comes. So a page can say where both go on, and the next page neither
repeats nor omits a run.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from duly.daemon.backend import ReadBackend
from duly.daemon.protocol import UNREACHABLE, OperationError
from duly.instant import EARLIEST_US, LATEST_US, SECOND_US, Instant
from duly.store.history import RemoteRun, RunBucket, RunRow, RunSearch, Span, WantedRuns

_SAME_US = 5 * SECOND_US
"""So far apart a run's start may be in the history of this machine and in the database."""
_COPIES = 20
"""So many more runs than wanted are read from the database: some may be copies of our own."""
_SEARCHED = 1_000
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


async def search(backend: ReadBackend, wanted: RunSearch, machine: str | None = None) -> RunList:
    """The runs that fit *wanted*, without their output: of all machines, or of one ("" is this one).

    Of other machines the newest are looked through, so many at most; a fault says if there are more. Raises
    StoreError.
    """
    reach = wanted._replace(skip=0, limit=wanted.skip + wanted.limit)
    local = await backend.history.search(reach) if not machine else []
    others: list[RunRow] = []
    fault = None
    if machine != "" and not wanted.is_running:
        others, fault = await _others(backend, wanted)
        others = [row for row in others if machine is None or _machine_of(row) == machine]
    rows = sorted((*local, *others), key=wanted.order, reverse=wanted.is_down)
    return RunList(rows[wanted.skip :][: wanted.limit], fault=fault)


async def _others(backend: ReadBackend, wanted: RunSearch) -> tuple[list[RunRow], str | None]:
    """The runs of other machines that fit."""
    targets = _targets(backend)
    timers = None if wanted.timer is None else [wanted.timer]
    if wanted.service is not None:
        timers = [name for name, target in targets.items() if target == wanted.service]
        timers = [name for name in timers if wanted.timer in {None, name}]
    asked = WantedRuns(
        timers=timers,
        before_us=wanted.until_us if wanted.until_us < LATEST_US else None,
        since_us=wanted.since_us if wanted.since_us > EARLIEST_US else None,
        limit=_SEARCHED,
        with_output=bool(wanted.text),
    )
    shared, fault = await _shared(backend, asked)
    if len(shared) == _SEARCHED:
        fault = f"of other machines only the newest {_SEARCHED:,} runs were looked through"
    # By its number here: the same run may have another name in the database.
    numbers = [run.id for run in shared if not run.is_here]
    known = {row.id: row for row in await backend.history.called(numbers)} if numbers else {}
    named = [_named(run, targets) for run in shared if not _is_known(run, known)]
    return [msgspec.structs.replace(row, output="") for row in named if wanted.has(row)], fault


async def buckets_of(
    backend: ReadBackend, services: Sequence[str], span: Span
) -> tuple[list[RunBucket], str | None]:
    """How many runs of these services began in each part of a span, on all machines. Raises StoreError."""
    targets, wanted = _targets(backend), set(services)
    timers = [name for name, target in targets.items() if target in wanted]
    try:
        async with _patience():
            shared = await backend.past_buckets(timers, span)
    except OperationError as error:
        local = await backend.history.buckets(services, span)
        return local, f"runs of other machines are not shown: {error.message}"
    if shared is None:
        return await backend.history.buckets(services, span), None
    # The database has the runs of this machine too, also those from before its last start.
    local = await backend.history.buckets(services, span, timers)
    return [*local, *(bucket._replace(service=targets[bucket.service]) for bucket in shared)], None


async def results_of(backend: ReadBackend, since_us: Instant) -> dict[str | None, int]:
    """How many runs that started since then ended how, on all machines. Raises StoreError."""
    timers, span = list(_targets(backend)), Span(since_us, LATEST_US, LATEST_US)
    try:
        async with _patience():
            shared = await backend.past_buckets(timers, span)
    except OperationError:
        shared = None  # the list of runs says so
    counted = Counter(await backend.history.counts(since_us, () if shared is None else timers))
    for bucket in shared or ():
        counted[bucket.result] += bucket.number
    return counted


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


def _machine_of(row: RunRow) -> str | None:
    return row.machine if isinstance(row, RemoteRun) else None


def _is_known(run: RemoteRun, known: Mapping[int, RunRow]) -> bool:
    """Whether the history of this machine has it; before its last start this daemon had another name."""
    row = known.get(run.id)
    if run.is_here or row is None or (row.timer, row.scheduled_us) != (run.timer, run.scheduled_us):
        return run.is_here
    return abs(row.started_us - run.started_us) < _SAME_US
