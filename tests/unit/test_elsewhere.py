"""Runs of all machines as one list: merged in order of their starts, by pages, without the database too."""

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest

from duly.daemon.backend import DaemonBackend
from duly.daemon.protocol import FAILED, OperationError
from duly.daemon.remote import Place, RunList, buckets_of, results_of, runs_of, search
from duly.store.history import RemoteRun, RunRow, RunSearch, Span, WantedRuns
from tests.worlds.daemons import NOW_US, FakeDaemon

SECOND_US = 1_000_000


def _local(number: int, started_us: int, timer: str | None = "backup") -> RunRow:
    return RunRow(
        id=number,
        service="backup",
        timer=timer,
        reason="schedule",
        started_us=started_us,
        ended_us=started_us + 1,
        result="success",
    )


def _shared(number: int, shared_id: int, started_us: int, machine: str = "far:9") -> RemoteRun:
    return RemoteRun(
        id=number,
        machine=machine,
        shared_id=shared_id,
        is_here=machine == "here",
        service="backup",
        timer="backup",
        reason="schedule",
        started_us=started_us,
        ended_us=started_us + 1,
        result="success",
    )


async def _daemon(local: Sequence[RunRow], shared: Sequence[RemoteRun]) -> FakeDaemon:
    daemon = FakeDaemon()
    await daemon.history.put(local, [])
    daemon.elsewhere = sorted(shared, key=lambda run: (run.started_us, run.shared_id), reverse=True)
    return daemon


async def _pages(backend: DaemonBackend, limit: int) -> list[RunList]:
    pages, place = [], Place()
    while True:
        pages.append(await runs_of(backend, place=place, limit=limit))
        if (older := pages[-1].older) is None:
            return pages
        assert older != place, "no progress"
        place = older


def _names(rows: Sequence[RunRow]) -> list[str]:
    return [f"{row.machine if isinstance(row, RemoteRun) else 'here'} {row.id}" for row in rows]


@pytest.mark.parametrize("seed", range(30))
async def test_pages_have_every_run_once(seed: int) -> None:
    """Pages of any size have each run once, newest first, though ours are in the database as well."""
    rng = random.Random(seed)
    local: list[RunRow] = []
    shared: list[RemoteRun] = []
    started_us, numbers = NOW_US - 90_000 * SECOND_US, {"here": 0, "far:9": 0, "near:8": 0}
    for place in range(1, rng.randint(1, 60)):
        started_us += rng.choice([0, 10, 20 * SECOND_US])
        machine = rng.choice(["here", "here", "far:9", "near:8"])
        numbers[machine] += 1
        is_timer = machine != "here" or rng.random() < 0.7
        if machine == "here":
            row = _local(numbers["here"], started_us, "backup" if is_timer else None)
            local.append(msgspec.structs.replace(row, scheduled_us=place))
        if is_timer:
            # Our own clock and that of the database are a little apart.
            off_us = rng.randint(-5, 5) if machine == "here" else 0
            run = _shared(numbers[machine], place, started_us + off_us, machine)
            shared.append(msgspec.structs.replace(run, scheduled_us=place))
    wanted = {*_names(local), *(name for name in _names(shared) if not name.startswith("here"))}
    daemon = await _daemon(local, shared)
    pages = await _pages(daemon, rng.choice([1, 2, 3, 7, 100]))
    listed = [name for page in pages for name in _names(page.rows)]
    assert len(listed) == len(set(listed))
    assert set(listed) == wanted
    starts = [row.started_us for page in pages for row in page.rows]
    assert starts == sorted(starts, reverse=True)
    assert [page.fault for page in pages] == [None] * len(pages)
    assert all(page.rows for page in pages) or not wanted


async def test_list_ends_with_our_own_copies() -> None:
    """Copies of our own runs that are left in the database do not make another page."""
    local, copies = _local(1, 100), [_shared(1, 5, 90, "here"), _shared(1, 4, 101, "here:7")]
    found = await runs_of(await _daemon([local], copies), limit=5)
    assert (found.rows, found.older) == ([local], None)


async def test_without_the_database() -> None:
    """Without the database there are the runs of this machine, and one sentence says what is missing."""
    daemon = await _daemon([_local(1, 100)], [_shared(1, 5, 90)])
    daemon.fault = OperationError(FAILED, "it is on fire")
    found = await runs_of(daemon, limit=5)
    assert _names(found.rows) == ["here 1"]
    assert found.fault == "runs of other machines are not shown: it is on fire"


class Silent(FakeDaemon):
    """A daemon whose database never answers."""

    async def past_runs(self, _wanted: WantedRuns, /) -> list[RemoteRun]:
        """Nobody hears that."""
        await asyncio.Event().wait()
        raise AssertionError


async def test_silent_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that does not answer is waited for no longer than a moment."""
    monkeypatch.setattr("duly.daemon.remote._PATIENCE_S", 0)
    found = await runs_of(Silent(), limit=5)
    assert found.fault == ("runs of other machines are not shown: the database has not answered within 0 s")


async def test_search_of_all_machines() -> None:
    """A list that is filtered and sorted has the runs of all machines, and copies of our own once."""
    local = [_local(1, 100), _local(2, 300)]
    shared = [_shared(3, 5, 200), _shared(2, 6, 301, "here"), _shared(7, 7, 50)]
    daemon = await _daemon(local, shared)
    found = await search(daemon, RunSearch(since_us=60, limit=9))
    assert _names(found.rows) == ["here 2", "far:9 3", "here 1"]
    assert _names((await search(daemon, RunSearch(since_us=60, skip=1, limit=1))).rows) == ["far:9 3"]
    oldest = await search(daemon, RunSearch(is_down=False, limit=2))
    assert _names(oldest.rows) == ["far:9 7", "here 1"]
    assert _names((await search(daemon, RunSearch(), "far:9")).rows) == ["far:9 3", "far:9 7"]
    assert _names((await search(daemon, RunSearch(), "")).rows) == ["here 2", "here 1"]


async def test_search_without_the_database() -> None:
    """Without the database a list has the runs of this machine, and says what is missing."""
    daemon = await _daemon([_local(1, 100)], [_shared(1, 5, 90)])
    daemon.fault = OperationError(FAILED, "it is on fire")
    found = await search(daemon, RunSearch())
    assert _names(found.rows) == ["here 1"]
    assert found.fault == "runs of other machines are not shown: it is on fire"


async def test_buckets_of_all_machines() -> None:
    """Runs of shared timers are counted in the database alone, which has those of this machine too."""
    local = [_local(1, 100), _local(2, 300)]
    shared = [_shared(3, 5, 200), _shared(2, 6, 300, "here")]
    daemon = await _daemon(local, shared)
    found, fault = await buckets_of(daemon, [local[0].service], Span(0, 400, 100))
    assert fault is None
    counted = sorted((bucket.part, bucket.number, bucket.machine) for bucket in found)
    assert counted == [(2, 1, "far:9"), (3, 1, "here")]
    daemon.elsewhere = []
    found, _ = await buckets_of(daemon, [local[0].service], Span(0, 400, 100))
    assert [(bucket.part, bucket.number) for bucket in found] == [(1, 1), (3, 1)]
    assert await results_of(daemon, 200) == {"success": 1}


async def test_service_of_a_run() -> None:
    """A run of another machine is one of the service that its timer starts here."""
    poll = msgspec.structs.replace(_shared(1, 5, 90), timer="poll", service="poll")
    found = await runs_of(await _daemon([], [poll]), service="mail", limit=5)
    assert [row.service for row in found.rows] == ["mail"]
