"""What is wrong with a SQLite store: which table, which row.

Used where a store turned out to be damaged, to say where; by `duly store check`, to say everything; and when
another file lies at the path of a store in use, to decide whether to go on with it. Nothing here writes.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from functools import cache
from pathlib import Path
from re import compile as regex
from typing import Any, NamedTuple

import apsw
import msgspec

from duly.core.record import COLUMNS, task_from
from duly.core.timetable import Timetables
from duly.errors import SchedulerError, StoreDamagedError, StoreError
from duly.instant import Instant
from duly.store.history import MissRow, RunRow
from duly.store.readonly import read_only
from duly.store.schema import APPLICATION_ID, checked_version, migrate, migrations, number_of

DAMAGE: tuple[type[BaseException], ...] = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.SQLError,  # our statements are sound, so the schema is not
    UnicodeDecodeError,
    msgspec.MsgspecError,
)
"""What reading a damaged database raises."""
FAULTS: tuple[type[BaseException], ...] = (apsw.Error, OSError, *DAMAGE)
"""What reading and writing a database raises."""

THE_FILE = "(the file as a whole)"
_MOST_FINDINGS = 100


class Defect(NamedTuple):
    table: str
    what: str
    is_end: bool = False
    """Whether the table cannot be read any further."""


class ExpectedTable(NamedTuple):
    name: str
    columns: tuple[str, ...]
    texts: frozenset[str]
    """The columns that hold text."""


def damage_at(path: Path, name: str, error: BaseException) -> StoreDamagedError:
    """Where the store at *path*, called *name*, is damaged, which reading it met with as *error*."""
    try:
        found = findings_at(path, most=1)
    except FAULTS:
        found = []
    # If a second look finds nothing, the first error is all there is to say.
    first = next(iter(found), Defect(THE_FILE, str(error)))
    return StoreDamagedError(store=name, table=first.table, what=first.what, cause=error)


def findings_at(path: Path, *, most: int = _MOST_FINDINGS) -> list[Defect]:
    """What is wrong with the store at *path*, at most so many things. Raises OSError or apsw.Error."""

    def found(connection: apsw.Connection) -> list[Defect]:
        return [finding for finding, _ in zip(findings_in(connection), range(most), strict=False)]

    try:
        return read_only(path, found)
    except DAMAGE as error:
        return [Defect(THE_FILE, str(error))]


def findings_in(connection: apsw.Connection) -> Iterator[Defect]:
    """What is wrong with an open store: its header, its schema, what SQLite says, then row by row."""
    if not number_of(connection, "SELECT count(*) FROM sqlite_schema"):
        return
    found = [*_header_findings(connection)] or [*_schema_findings(connection), *_integrity(connection)]
    yield from found
    if not found:  # reading rows of a broken tree says the same again, less clearly
        for table in tables_of(connection):
            for row in rows_in(connection, table):
                if isinstance(row, Defect):
                    yield row


def _header_findings(connection: apsw.Connection) -> Iterator[Defect]:
    version = number_of(connection, "PRAGMA user_version")
    if number_of(connection, "PRAGMA application_id") != APPLICATION_ID:
        yield Defect(THE_FILE, "it does not say that it is a store of duly")
    elif not 1 <= version <= len(migrations()):
        yield Defect(THE_FILE, f"it has format {version}; this duly knows 1 to {len(migrations())}")


def _schema_findings(connection: apsw.Connection) -> Iterator[Defect]:
    for table in tables_of(connection):
        present = {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table.name})")}
        if missing := [column for column in table.columns if column not in present]:
            yield Defect(table.name, f"has no column {missing[0]}" if present else "is missing")


def rows_in(
    connection: apsw.Connection, table: ExpectedTable, order: str = "ASC"
) -> "Iterator[tuple[Any, ...] | Defect]":
    """The rows of a table, or what is wrong with one; ends where the table cannot be read any further."""
    shown = ", ".join(f"CAST({name} AS BLOB)" if name in table.texts else name for name in table.columns)
    last: object = "the start"
    cursor = connection.cursor()
    try:
        cursor.execute(f"SELECT rowid, {shown} FROM {table.name} NOT INDEXED ORDER BY rowid {order}")  # noqa: S608 (names of ours)
        for last, *values in cursor:
            yield _checked_row(table, last, values)
    except DAMAGE as error:
        yield Defect(table.name, f"cannot be read beyond row {last}: {error}", is_end=True)


def check_replacement(path: Path, name: str, scheduler_id: str) -> Instant | None:
    """Whether a scheduler can go on with the file that was put at *path* in place of its own.

    It can if the file is empty, or is an intact store of the same scheduler. Answers when something last
    happened there, None if nothing ever did. Raises StoreError; *scheduler_id* is that of the scheduler.
    """

    def checked(connection: apsw.Connection) -> Instant | None:
        if not (version := checked_version(connection, name)):
            return None
        if finding := next(findings_in(connection), None):
            raise StoreDamagedError(store=name, table=finding.table, what=finding.what)
        found = connection.execute("SELECT id FROM scheduler").get
        if found not in {None, scheduler_id}:
            raise StoreError(store=name, reason="is the store of another scheduler")
        return _newest_us(connection, version)

    try:
        return read_only(path, checked)
    except DAMAGE as error:
        raise damage_at(path, name, error) from error


def _newest_us(connection: apsw.Connection, version: int) -> Instant | None:
    times = ["SELECT max(last_attempt_us) AS at FROM task"]
    if version > 1:
        times += ["SELECT max(last_run_us) FROM timer", "SELECT max(started_us) FROM run"]
    newest = connection.execute(f"SELECT max(at) FROM ({' UNION ALL '.join(times)})").get  # noqa: S608 (names of ours)
    return newest if isinstance(newest, int) else None


def tables_of(connection: apsw.Connection) -> tuple[ExpectedTable, ...]:
    """The tables that a store of its format has."""
    version = number_of(connection, "PRAGMA user_version")
    return tables(version if 1 <= version <= len(migrations()) else len(migrations()))


@cache
def tables(version: int) -> tuple[ExpectedTable, ...]:
    connection = apsw.Connection(":memory:")
    migrate(connection, 0, migrations()[:version])
    names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    described = {name: list(connection.execute(f"PRAGMA table_info({name})")) for name in names}
    return tuple(
        ExpectedTable(
            name,
            tuple(str(column[1]) for column in columns),
            frozenset(str(column[1]) for column in columns if column[2] == "TEXT"),
        )
        for name, columns in described.items()
    )


_OWNERS = (regex(r"Tree (\d+) "), regex(r"(?:in|from) index (\w+)"), regex(r"value in (\w+)\."))
"""How SQLite names what it complains of: by root page, index or column."""


def _integrity(connection: apsw.Connection) -> Iterator[Defect]:
    """What SQLite itself finds, each with the table it belongs to."""
    try:
        owners = {
            str(key): str(table)
            for root, name, table in connection.execute("SELECT rootpage, name, tbl_name FROM sqlite_schema")
            for key in (root, name)
        }
        for (text,) in connection.execute(f"PRAGMA integrity_check({_MOST_FINDINGS})"):
            for line in str(text).splitlines():
                if line != "ok" and not line.startswith("*** in database"):
                    named = [found[1] for each in _OWNERS if (found := each.search(line))]
                    yield Defect(owners.get(named[0], THE_FILE) if named else THE_FILE, line)
    except DAMAGE as error:
        yield Defect(THE_FILE, str(error))


def _checked_row(table: ExpectedTable, row_id: object, values: list[Any]) -> "tuple[Any, ...] | Defect":
    for place, column in enumerate(table.columns):
        if column in table.texts and isinstance(values[place], bytes):
            try:
                values[place] = values[place].decode()
            except UnicodeDecodeError:
                return Defect(table.name, f"row {row_id}: column {column} is not UTF-8 text")
    try:
        if (check := _CHECKS.get(table.name)) is not None:
            check(dict(zip(table.columns, values, strict=True)))
    except (SchedulerError, msgspec.MsgspecError) as error:
        return Defect(table.name, f"row {row_id}: {error}")
    return tuple(values)


_schedules = Timetables(UTC)


def _check_task(row: Mapping[str, Any]) -> None:
    row = {"paused": 0, **row}  # a column that older formats do not have
    task_from([row.get(column) for column in COLUMNS], _schedules.of)


def _check_definition(row: Mapping[str, Any]) -> None:
    msgspec.json.decode(row["definition"], type=dict[str, Any])


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "task": _check_task,
    "timer": _check_definition,
    "service": _check_definition,
    "outage": lambda row: msgspec.json.decode(row["state"], type=dict[str, Any]),
    "run": lambda row: msgspec.convert(list(row.values()), RunRow),
    "miss": lambda row: msgspec.convert([row["timer"], row["at_us"], row["reason"]], MissRow),
}
