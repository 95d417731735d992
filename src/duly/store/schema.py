"""What is in a SQLite store: its statements, its formats, and the marks by which we know it as ours."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files

import apsw
import msgspec

from duly.core.record import COLUMNS, STATE_COLUMNS
from duly.errors import StoreError

APPLICATION_ID = 0x64756C79  # "duly", so that `file` and we can tell our databases from others


def migrate(connection: apsw.Connection, version: int, steps: Sequence[str]) -> None:
    """Bring a database of format *version* to the newest, in one transaction. Step n leads to format n."""
    if version >= len(steps):
        return

    def change(connection: apsw.Connection) -> None:
        for step in steps[version:]:
            connection.execute(step)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")

    in_transaction(change, connection)


@cache
def migrations() -> tuple[str, ...]:
    """The steps from an empty database to the present format."""
    folder = files("duly.store").joinpath("sql", "sqlite")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    return tuple(folder.joinpath(name).read_text() for name in names)


@cache
def sql(name: str) -> str:
    return files("duly.store").joinpath("sql", "sqlite", f"{name}.sql").read_text()


@cache
def task_sql(name: str, values: tuple[str, ...] = ()) -> str:
    """A statement on the table of tasks, by name, that gives the columns these *values*."""
    assignments = [f"{column} = {value}" for column, value in zip(STATE_COLUMNS, values[1:], strict=False)]
    return sql(name).format(
        columns=", ".join(COLUMNS), values=", ".join(values), assignments=", ".join(assignments)
    )


Packed = tuple[tuple[str, ...], list[object]]
"""The values of the columns in a statement, and the bindings of the statement."""


def packed(rows: Sequence[tuple[object, ...]]) -> Packed:
    """*rows* for one statement.

    Of tasks that start or are registered together most is alike: it is bound once. The rest, with the id, is
    a JSON array for each row, all of them in the first binding.
    """
    values, alike, listed = list[str](), list[object](), list[tuple[object, ...]]()
    for column in zip(*rows, strict=True):
        if listed and column.count(column[0]) == len(rows):
            alike.append(column[0])
            values.append(f"?{1 + len(alike)}")
        else:
            values.append(f"value ->> {len(listed)}")
            listed.append(column)
    changes = msgspec.json.encode(list(zip(*listed, strict=True))).decode()
    return tuple(values), [changes, *alike]


def json_values(count: int) -> str:
    """The columns of a row that a statement is given as a JSON array called `value`."""
    return ", ".join(f"value ->> {index}" for index in range(count))


def in_transaction(change: Callable[[apsw.Connection], object], connection: apsw.Connection) -> None:
    """Make *change* whole or not at all."""
    # IMMEDIATE takes the lock for writing at once, and waits for it. A transaction that has read before it
    # asks for that lock is refused instead of waiting (sqlite.org/lang_transaction.html).
    connection.execute("BEGIN IMMEDIATE")
    try:
        change(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself after some faults
            connection.execute("ROLLBACK")
        raise


def checked_version(connection: apsw.Connection, name: str, remedy: str = "choose another path") -> int:
    """The format of the database, if it is ours to use; it is only read to find out. Raises StoreError."""
    version = number_of(connection, "PRAGMA user_version")
    known = len(migrations())
    if version > known:
        reason = f"has format {version}, written by a newer duly; this one knows up to {known}. Upgrade duly"
        raise StoreError(store=name, reason=reason)
    is_ours = number_of(connection, "PRAGMA application_id") == APPLICATION_ID
    if not is_ours and number_of(connection, "SELECT count(*) FROM sqlite_schema"):
        raise StoreError(store=name, reason=f"is a SQLite database of another program; {remedy}")
    return version


Reasons = Sequence[tuple[type[BaseException], str]]


def reason_of(error: BaseException, reasons: Reasons) -> str:
    """What to say of an error of SQLite or of the file system: the first of *reasons* that is of its kind."""
    return next((reason for kind, reason in reasons if isinstance(error, kind)), f"failed: {error}")


def number_of(connection: apsw.Connection, query: str) -> int:
    value = connection.execute(query).get
    assert isinstance(value, int)
    return value
