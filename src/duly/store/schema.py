"""What is in a SQLite store: its statements, its formats, and the marks by which we know it as ours."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files

import apsw

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
    """One of our statements, by name."""
    return files("duly.store").joinpath("sql", "sqlite", f"{name}.sql").read_text()


def in_transaction(change: Callable[[apsw.Connection], object], connection: apsw.Connection) -> None:
    """Make *change* whole or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        change(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself after some faults
            connection.execute("ROLLBACK")
        raise


def checked_version(connection: apsw.Connection, name: str) -> int:
    """The format of the database, if it is ours to use; it is only read to find out."""
    version = number_of(connection, "PRAGMA user_version")
    known = len(migrations())
    if version > known:
        reason = f"has format {version}, written by a newer duly; this one knows up to {known}. Upgrade duly"
        raise StoreError(store=name, reason=reason)
    is_ours = number_of(connection, "PRAGMA application_id") == APPLICATION_ID
    if not is_ours and number_of(connection, "SELECT count(*) FROM sqlite_schema"):
        raise StoreError(store=name, reason="is a SQLite database of another program; choose another path")
    return version


def number_of(connection: apsw.Connection, query: str) -> int:
    """The one number that *query* finds."""
    value = connection.execute(query).get
    assert isinstance(value, int)
    return value
