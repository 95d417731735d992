"""Damaged stores: whatever is wrong ends in an error of ours that names the file, and can be repaired."""

import asyncio
import json
import random
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from duly import ScheduleTaskError, StoreError
from duly.cli import main
from duly.errors import SchedulerError, StoreDamagedError, TaskTryDeserializeError
from duly.store import SQLiteStore
from duly.store.history import RunSearch
from duly.store.inspection import findings_at
from duly.store.repair import repair_store
from tests.integration.test_daemon_virtual import HOURLY, JOB, WEB, DaemonWorld, timer, world_of
from tests.worlds.histories import LooseHistory
from tests.worlds.scheduler import MINUTE, World

Files = dict[str, bytes]
"""The content of the files of a store, by name."""


# --- stores to damage ---


async def library_life(folder: Path) -> None:
    world = World(lambda: SQLiteStore(folder / "state.db"))
    await world.begin(*[world.task(f"task {number}", "* * * * *") for number in range(40)])
    await world.clock.advance(3 * MINUTE)
    await (world.crash() if (folder / "crash").exists() else world.scheduler.stop())


def daemon_world(folder: Path) -> DaemonWorld:
    return world_of(folder, WEB + JOB + HOURLY + timer("second", on_calendar="{minute = 30}"))


async def daemon_life(folder: Path) -> None:
    world = daemon_world(folder)
    async with world.life():
        await world.after(hours=100)


LIVES = ("library", "library, killed", "daemon")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """What a scheduler and a daemon leave behind, and a scheduler that was killed."""
    made: dict[str, Files] = {}
    for kind in LIVES:
        folder = tmp_path_factory.mktemp("life")
        if kind.endswith("killed"):
            (folder / "crash").touch()
        asyncio.run(daemon_life(folder) if kind == "daemon" else library_life(folder))
        made[kind] = {
            name: (folder / name).read_bytes()
            for name in ("state.db", "state.db-wal", "duly.db", "duly.db-wal")
            if (folder / name).exists()
        }
    return made


def laid_out(files: Files, folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / next(iter(files))


# --- one flipped bit, anywhere ---


def flipped(files: Files, rng: random.Random) -> Files:
    """The files with one bit changed, in a part that is in use."""
    name = rng.choice([name for name, content in files.items() if content])
    content = bytearray(files[name])
    used = [place for place in range(0, len(content), 64) if any(content[place : place + 64])]
    place = min(rng.choice(used) + rng.randrange(64), len(content) - 1)
    content[place] ^= 1 << rng.randrange(8)
    return {**files, name: bytes(content)}


async def opened(kind: str, folder: Path) -> None:
    """Start what uses the store, let an hour pass, stop it. Raises what it raises."""
    if kind == "daemon":
        world = daemon_world(folder)
        async with world.life():
            await world.after(hours=1)
            await world.do("history")
        return
    world_of_tasks = World(lambda: SQLiteStore(folder / "state.db"))
    tasks = [world_of_tasks.task(f"task {number}", "* * * * *") for number in range(40)]
    await world_of_tasks.begin(*tasks)
    await world_of_tasks.clock.advance(2 * MINUTE)
    await world_of_tasks.scheduler.stop()


def check_error(error: SchedulerError, path: Path) -> None:
    """An error about damage names the file and what to do; one about content names the table as well."""
    seen = "".join(traceback.format_exception(error))
    assert str(path) in seen, seen
    assert any(remedy in seen for remedy in ("duly store repair", "choose another path", "Upgrade duly")), (
        seen
    )
    cause = error.details.get("cause", error)
    if isinstance(cause, StoreDamagedError):
        assert cause.details["table"] in cause.message


def attack(kind: str, files: Files, folder: Path, rng: random.Random) -> None:
    path = laid_out(flipped(files, rng), folder)
    try:
        asyncio.run(opened(kind, folder))
    except SchedulerError as error:
        check_error(error, path)
    for command in (["check", str(path)], ["repair", str(path)], ["check", str(path)]):
        done = CliRunner().invoke(main, ["store", *command])
        assert done.exit_code in {0, 1}, done.output
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    if done.exit_code == 0:
        asyncio.run(opened(kind, folder))


@pytest.mark.excused(
    "S1d", "T2", "T3", "T4", "T5", "T6", "T7", "L1", "L2"
)  # what a flipped bit says is believed
@pytest.mark.parametrize("kind", LIVES)
@pytest.mark.parametrize("seed", range(2))
def test_flipped_bits(stores: dict[str, Files], tmp_path: Path, kind: str, seed: int) -> None:
    """One flipped bit: it starts, or an error of ours names the file and the remedy; repair helps."""
    flips(stores, tmp_path, kind, seed, 10)


@pytest.mark.slow
@pytest.mark.excused(
    "S1d", "T2", "T3", "T4", "T5", "T6", "T7", "L1", "L2"
)  # what a flipped bit says is believed
@pytest.mark.parametrize("kind", LIVES)
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_flipped_bits(stores: dict[str, Files], tmp_path: Path, kind: str, seed: int) -> None:
    """The same, 500 times for each kind of store."""
    flips(stores, tmp_path, kind, seed, 50)


def flips(stores: dict[str, Files], tmp_path: Path, kind: str, seed: int, number: int) -> None:
    for flip in range(number):
        folder = tmp_path / str(flip)
        folder.mkdir()
        try:
            attack(kind, stores[kind], folder, random.Random(f"{kind} {seed} {flip}"))
        except BaseException as error:
            error.add_note(f"reproduce with kind {kind!r}, seed {seed}, flip {flip}")
            raise


# --- by name ---


def spoil(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA writable_schema = 1; PRAGMA ignore_check_constraints = 1")
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE task SET name = CAST(x'ff41' AS TEXT) WHERE id = 3", "task"),
        (
            "UPDATE sqlite_schema SET sql = replace(sql, 'answered_us', 'answered_xx') WHERE name = 'task'",
            "task",
        ),
        ("DROP TABLE scheduler", "scheduler"),
    ],
)
async def test_error_names_file_table_and_remedy(
    stores: dict[str, Files], tmp_path: Path, statement: str, table: str
) -> None:
    """Damage met by `initialize` is told with the file, the table and the command that repairs it."""
    path = laid_out(stores["library"], tmp_path)
    spoil(path, statement)
    world = World(lambda: SQLiteStore(path))
    with pytest.raises(ScheduleTaskError) as raised:
        await world.begin(world.task("task 3"))
    cause = raised.value.details["cause"]
    assert isinstance(cause, StoreDamagedError)
    assert cause.details["table"] == table
    assert str(path) in cause.message
    assert "duly store repair" in cause.message


async def test_row_of_a_task_names_file_table_and_remedy(stores: dict[str, Files], tmp_path: Path) -> None:
    """A row that makes no sense is told by task, and a note says where it is and what to do."""
    path = laid_out(stores["library"], tmp_path)
    spoil(path, "UPDATE task SET cron = '* *' WHERE id = 3")
    world = World(lambda: SQLiteStore(path))
    with pytest.raises(ScheduleTaskError) as raised:
        await world.begin(*[world.task(f"task {number}") for number in range(40)])
    assert isinstance(raised.value.__cause__, TaskTryDeserializeError)
    check_error(raised.value, path)


@pytest.mark.parametrize("column", ["name", "definition"])
async def test_daemon_with_text_that_is_no_utf8(
    stores: dict[str, Files], tmp_path: Path, column: str
) -> None:
    """A daemon whose store has invalid text says so in an error of ours, naming file and table."""
    path = laid_out(stores["daemon"], tmp_path)
    spoil(path, f"UPDATE timer SET {column} = CAST(x'ff41' AS TEXT) WHERE id = 1")
    world = daemon_world(tmp_path)
    with suppress(StoreDamagedError):
        async with world.life():
            await world.after(minutes=1)
    (seen,) = {event.fields["error"] for event in world.events if event.name == "StoreFault"}
    assert f"Store {path}: is damaged (timer)" in seen
    assert "duly store repair" in seen


@pytest.mark.parametrize("damage", ["service = CAST(x'ff41' AS TEXT)", "result = 'in|errupted'"])
async def test_damaged_history_is_told_in_an_error_of_ours(
    stores: dict[str, Files], tmp_path: Path, damage: str
) -> None:
    """A damaged row of the history names its table, whatever it is read for."""
    path = laid_out(stores["daemon"], tmp_path)
    spoil(path, f"UPDATE run SET {damage} WHERE id = 2")
    store = SQLiteStore(path)
    await store.open("x")
    rows = LooseHistory(store)
    everything = RunSearch(limit=999)
    reads = (partial(rows.run, 2), partial(rows.runs, limit=999), partial(rows.search, everything))
    for read in reads:
        with pytest.raises(StoreDamagedError) as raised:
            await read()
        assert raised.value.details["table"] == "run"
    await store.close()


def test_sound_stores_are_sound(stores: dict[str, Files], tmp_path: Path) -> None:
    """The check finds nothing in what a scheduler, a killed one and a daemon leave behind."""
    for number, files in enumerate(stores.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert findings_at(laid_out(files, folder)) == []


def test_check_and_repair_commands(stores: dict[str, Files], tmp_path: Path) -> None:
    """`check` says what is wrong and ends with 1; `repair` keeps the damaged file and all other rows."""
    path = laid_out(stores["library"], tmp_path)
    before = CliRunner().invoke(main, ["store", "repair", str(path)])
    assert (before.exit_code, "nothing was done" in before.output) == (0, True)
    spoil(path, "UPDATE task SET cron = '* *' WHERE id = 3")
    damaged = path.read_bytes()
    found = CliRunner().invoke(main, ["store", "check", str(path), "--json"])
    assert found.exit_code == 1
    assert [finding["table"] for finding in json.loads(found.output)["findings"]] == ["task"]
    seen = CliRunner().invoke(main, ["store", "check", str(path)])
    assert "task: row 3: Invalid value for field 'cron'" in seen.output
    done = CliRunner().invoke(main, ["store", "repair", str(path)])
    assert "task: 39 kept\n  lost: row 3: Invalid value" in done.output
    assert path.with_name("state.db.damaged-1").read_bytes() == damaged
    assert findings_at(path) == []
    assert CliRunner().invoke(main, ["store", "check", str(path)]).exit_code == 0


def test_repair_reads_a_table_from_both_ends(stores: dict[str, Files], tmp_path: Path) -> None:
    """A page of garbage in the middle of a table costs the rows on it, and no others."""
    path = laid_out(stores["daemon"], tmp_path)
    connection = apsw.Connection(str(path))
    query = "SELECT pageno FROM dbstat WHERE name = 'run' AND pagetype = 'leaf' ORDER BY path"
    pages = [int(str(row[0])) for row in connection.execute(query)]
    rows = int(str(connection.execute("SELECT count(*) FROM run").get))
    connection.close()
    assert len(pages) > 2
    content = bytearray(path.read_bytes())
    begin = (pages[1] - 1) * 4096
    content[begin : begin + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    done = repair_store(path)
    assert done is not None
    (kept,) = [each for each in done.tables if each.table == "run"]
    assert rows / 2 < kept.rows < rows
    assert findings_at(path) == []


def test_repair_of_a_store_with_a_broken_header(stores: dict[str, Files], tmp_path: Path) -> None:
    """Even a file that SQLite does not recognise any more is read."""
    path = laid_out(stores["library"], tmp_path)
    content = bytearray(path.read_bytes())
    content[:24] = b"\xff" * 24
    path.write_bytes(content)
    done = repair_store(path)
    assert done is not None
    assert {each.table: each.rows for each in done.tables}["task"] == 40


async def test_repair_of_a_store_in_use_is_refused(tmp_path: Path) -> None:
    """A store whose scheduler runs is not repaired under it."""
    store = SQLiteStore(tmp_path / "state.db")
    await store.open("x")
    done = CliRunner().invoke(main, ["store", "repair", str(tmp_path / "state.db")])
    assert (done.exit_code, "in use by another scheduler" in done.output) == (1, True)
    await store.close()


def test_repair_of_a_file_without_anything(tmp_path: Path) -> None:
    """A file in which nothing can be read is left as it is."""
    path = tmp_path / "state.db"
    path.write_bytes(b"nothing at all" * 1000)
    with pytest.raises(StoreError, match="holds nothing that can be read"):
        repair_store(path)
    assert list(tmp_path.iterdir()) == [path]
