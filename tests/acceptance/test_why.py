"""`duly why` as the installed command, on what a real scheduler left behind: its trace and its store."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from duly import Scheduler
from duly.store.schema import migrations
from duly.testing import VirtualClock, crash
from duly.verify import Recorder

MINUTE = timedelta(minutes=1)
START = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def why(*arguments: str | Path, cwd: Path | None = None, stdin: bytes | None = None) -> Any:
    command = [sys.executable, "-m", "duly", "why", *map(str, arguments)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, timeout=60, check=False, cwd=cwd, env=os.environ
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def answer(*arguments: str | Path, **options: Any) -> Any:
    done = why(*arguments, "--json", **options)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def lasting(clock: VirtualClock, minutes: float) -> Callable[[], Awaitable[None]]:
    async def callback() -> None:
        await clock.sleep_until(clock.now() + minutes * MINUTE)

    return callback


async def two_lives(folder: Path) -> None:
    """A backup of two and a half minutes, each minute; a crash at 12:06; again 12:10:30 to 12:13:30."""
    clock = VirtualClock(START)
    for life in ("first", "second"):
        scheduler = Scheduler(folder / "state.db", clock=clock, timezone=UTC)
        recorder = Recorder(folder / "trace.jsonl", clock=clock, timezone=UTC, store="fresh", proc=life)
        recorded = recorder.wrap(scheduler)
        await recorded.initialize([("backup", "* * * * *", lasting(clock, 2.5), MINUTE)])
        if life == "first":
            await clock.advance_to(START + 5.5 * MINUTE)
            recorder.abandon()
            await crash(scheduler)
            await clock.advance_to(START + 10 * MINUTE)
    await clock.advance_to(START + 13 * MINUTE)
    stopping = asyncio.ensure_future(recorded.stop())
    await clock.advance_to(START + 15 * MINUTE)
    await stopping
    recorder.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two lives of a scheduler left behind."""
    folder = tmp_path_factory.mktemp("lives")
    asyncio.run(two_lives(folder))
    return folder


# Starts: 12:00:30, 12:03:00, 12:05:30 (crash at 12:06), 12:10:30, 12:13:00 (stop at 12:13:30).
@pytest.mark.parametrize(
    ("at", "kind", "reason", "run"),
    [
        ("12:00", "answered", "registration", "12:00:30"),
        ("12:01", "merged", "running", "12:03:00"),
        ("12:03", "merged", "running", "12:03:00"),
        ("12:04", "merged", "running", "12:05:30"),
        ("12:06", "down", "crashed", "12:10:30"),
        ("12:07", "down", "crashed", "12:10:30"),
        ("12:10", "down", "crashed", "12:10:30"),
        ("12:12", "merged", "running", "12:13:00"),
    ],
)
def test_lives(folder: Path, at: str, kind: str, reason: str, run: str) -> None:
    """Every due of a real trace is answered as it happened."""
    found = answer("backup", "--at", f"2026-01-01T{at}", cwd=folder)
    assert (found["kind"], found["reason"]) == (kind, reason)
    assert found["due"] == f"2026-01-01T{at}:00+00:00"
    assert found["run"]["started"] == f"2026-01-01T{run}+00:00"


def test_for_people(folder: Path) -> None:
    """People get a sentence first, then what ran and why; no colour where there is no terminal."""
    done = why("backup", "--at", "2026-01-01T12:10", "--trace", folder / "trace.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        (
            '"backup" was due at 2026-01-01 12:10 while the scheduler was down '
            "(it had crashed, last heard of at 12:05:30, and was up at 12:10:30), "
            "and the run at 12:10:30, 30 s later, answered this and 4 other dues."
        ),
        "",
        "Started in that minute:",
        (
            "  2026-01-01 12:10:30  ok after 2 min 30 s; because of 5 dues from 12:06 to 12:10; "
            "also a run was cut off by the crash at 12:05:30"
        ),
        "",
        "Times are those of UTC.",
    ]


def test_table(folder: Path) -> None:
    """The latest dues are listed one a line, up to the time asked for."""
    done = why("backup", "-n", "3", "--at", "2026-01-01T12:07:59", cwd=folder)
    assert [line.split()[1:4] for line in done.stdout.splitlines()[:3]] == [
        ["12:05", "merged", "12:05:30"],
        ["12:06", "down", "12:10:30"],
        ["12:07", "down", "12:10:30"],
    ]
    found = answer("backup", "-n", "3", cwd=folder)
    assert [one["due"][11:16] for one in found["answers"]] == ["12:13", "12:14", "12:15"]


def test_packed_parts_and_pipes(folder: Path, tmp_path: Path) -> None:
    """A trace may come in parts, packed, or through a pipe."""
    lines = (folder / "trace.jsonl").read_bytes().splitlines(keepends=True)
    old, new = tmp_path / "old.gz", tmp_path / "new"
    old.write_bytes(gzip.compress(b"".join(lines[:6])))
    new.write_bytes(b"".join(lines[6:]))
    whole = answer("backup", "--at", "2026-01-01T12:08", cwd=folder)
    assert answer("backup", "--at", "2026-01-01T12:08", "--trace", old, new) == whole
    assert answer("backup", "--at", "2026-01-01T12:08", "--trace", old, "--trace", new) == whole
    assert answer("backup", "--at", "2026-01-01T12:08", "--trace", "-", stdin=b"".join(lines)) == whole


@pytest.mark.parametrize(
    ("at", "kind", "reason"),
    [
        ("12:00", "answered", "earlier run"),
        ("11:59", "not registered", "registered later"),
        ("12:13", "answered", "last run"),
        ("12:14", "pending", "waiting"),
    ],
)
def test_store(folder: Path, at: str, kind: str, reason: str) -> None:
    """A store answers less precisely, and leaves no file behind or changed."""
    before = contents(folder)
    found = answer("backup", "--store", folder / "state.db", "--tz", "UTC", "--at", f"2026-01-01T{at}")
    assert (found["kind"], found["reason"], found["source"]) == (kind, reason, "store")
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_store_of_a_live_scheduler(tmp_path: Path) -> None:
    """A store is read while its scheduler holds it, with what was last written, and nothing is disturbed."""

    async def live() -> Any:
        clock = VirtualClock(START)
        scheduler = Scheduler(tmp_path / "state.db", clock=clock, timezone=UTC)
        await scheduler.initialize([("backup", "* * * * *", lasting(clock, 1.25), MINUTE)])
        await clock.advance_to(START + 2 * MINUTE)
        names = set(contents(tmp_path))
        found = await asyncio.to_thread(
            answer, "backup", "--tz", "UTC", "--at", "2026-01-01T12:01", "--store", tmp_path / "state.db"
        )
        assert set(contents(tmp_path)) == names
        await clock.advance_to(START + 5 * MINUTE)
        await crash(scheduler)
        return found

    found = asyncio.run(live())
    assert (found["kind"], found["run"]["started"]) == ("answered", "2026-01-01T12:01:45+00:00")
    names = set(contents(tmp_path))
    assert {"state.db-wal", "state.db-shm"} <= names
    assert answer("backup", "--store", tmp_path / "state.db", "--tz", "UTC")["kind"] == "pending"
    assert set(contents(tmp_path)) == names
    (tmp_path / "state.db-shm").unlink()
    assert answer("backup", "--store", tmp_path / "state.db", "--tz", "UTC")["kind"] == "pending"
    assert set(contents(tmp_path)) == names - {"state.db-shm"}


def test_store_by_default(folder: Path, tmp_path: Path) -> None:
    """Where there is no trace, the store is asked."""
    (tmp_path / "state.db").write_bytes((folder / "state.db").read_bytes())
    assert answer("backup", "--tz", "UTC", cwd=tmp_path)["source"] == "store"
    assert why("backup", "-n", "2", "--tz", "UTC", cwd=tmp_path).stdout.count("pending") == 2


# --- refusals ---


def refusal(*arguments: str | Path, **options: Any) -> str:
    done = why(*arguments, **options)
    assert (done.returncode, done.stdout) == (2, "")
    return str(done.stderr)


def test_unknown_task(folder: Path) -> None:
    """A name that nothing is known of is refused, with those that come close."""
    for source in (("--trace", folder / "trace.jsonl"), ("--store", folder / "state.db")):
        assert "did you mean backup?" in refusal("bakcup", *source)
    done = why("bakcup", "--json", cwd=folder)
    assert (done.returncode, json.loads(done.stdout)["error"]["close"]) == (2, ["backup"])


def test_nothing_to_ask(tmp_path: Path) -> None:
    """Without any source the message says what to give."""
    assert "give a recorded trace with --trace FILE" in refusal("backup", cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "noon"], "is not a time"),
        (["--at", "0001-01-01"], "is not a time"),
        (["other"], "one word too many"),
        (["--trace", "trace.jsonl", "--store", "state.db"], "not both"),
        (["--tz", "UTC"], "--tz is for --store only"),
        (["--trace", "nowhere"], "No such file"),
        (["--trace", "state.db"], '"state.db", line 1: not a trace'),
        (["--store", "nowhere"], "there is no such file"),
        (["--store", "."], "is not a file"),
        (["--store", "trace.jsonl"], "is not a SQLite database"),
        (["--store", "state.db", "--tz", "Nowhere"], "there is no time zone"),
    ],
)
def test_refusals(folder: Path, arguments: list[str], message: str) -> None:
    """What cannot be used is refused, and the message says why."""
    before = contents(folder)
    assert message in refusal("backup", *arguments, cwd=folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"PRAGMA user_version = {len(migrations()) + 1}", "Upgrade duly"),
        ("PRAGMA user_version = 0", "start its scheduler once"),
        ("PRAGMA application_id = 7", "of another program"),
        ("PRAGMA ignore_check_constraints = 1; UPDATE task SET cron = '* *'", "cron"),
    ],
)
def test_stores_that_are_not_ours_to_read(folder: Path, tmp_path: Path, statement: str, message: str) -> None:
    """A store of another program or another version is refused, and so is a damaged record."""
    path = tmp_path / "state.db"
    path.write_bytes((folder / "state.db").read_bytes())
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute(statement)
    connection.close()
    assert message in refusal("backup", "--store", path, "--tz", "UTC")


def test_empty_store(tmp_path: Path) -> None:
    """An empty file is a store without tasks."""
    (tmp_path / "state.db").touch()
    assert 'there is no task "backup"' in refusal("backup", "--tz", "UTC", cwd=tmp_path)
