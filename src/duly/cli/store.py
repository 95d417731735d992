"""`duly store`: check and repair a SQLite store, or copy its tasks to PostgreSQL."""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import click

from duly.cli.options import store_file, zone_called
from duly.cli.output import CommandError, json_option, print_answer, untried
from duly.errors import SchedulerError
from duly.formatting import one_line
from duly.places import PlaceError, StoreKind, kind_of
from duly.store import SQLiteStore
from duly.store.inspection import FAULTS, Defect, findings_at
from duly.store.repair import Repair, repair_store


@click.group("store")
def store() -> None:
    """Do something with a store as a whole.

    \b
        duly store check state.db
        duly store repair state.db
        duly store copy state.db postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)


_file = click.argument("path_text", metavar="FILE")


def _existing(text: str) -> Path:
    path = store_file(text)
    if not path.is_file():
        raise CommandError("no_file", f"there is no file {path}")
    return path


@store.command("check")
@_file
@json_option
def check(*, path_text: str) -> None:
    """Look for damage in the store FILE, which may be in use. Nothing is changed.

    Every page, every index and every row is read. Ends with 1 if something is wrong.
    """
    path = _existing(path_text)
    try:
        findings = findings_at(path.resolve())
    except FAULTS as error:
        raise CommandError("not-checked", f"{path} cannot be read: {error}", exit_code=1) from error
    listed = [{"table": finding.table, "what": finding.what} for finding in findings]
    _print({"store": str(path), "sound": not findings, "findings": listed}, _check_lines(path, findings))
    sys.exit(1 if findings else 0)


def _print(answer: dict[str, Any], lines: Iterable[str]) -> None:
    print_answer(answer, lines, indent=None, ensure_ascii=True)


def _check_lines(path: Path, findings: Sequence[Defect]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.table}: {one_line(finding.what)}"
    if findings:
        yield f"{path} is damaged. Restore it from a copy, or keep what can be read: duly store repair {path}"
    else:
        yield f"{path} is sound."


@store.command("repair")
@_file
@json_option
def repair(*, path_text: str) -> None:
    """Rewrite the store FILE with every row that can be read. The damaged file is kept beside it.

    Its scheduler must be stopped. A task or timer whose row is lost starts over.
    """
    path = _existing(path_text)
    try:
        done = repair_store(path)
    except (SchedulerError, apsw.Error) as error:
        raise CommandError("not-repaired", untried(error), exit_code=1) from error
    tables = [] if done is None else done.tables
    listed = [{"table": each.table, "rows": each.rows, "lost": each.lost} for each in tables]
    answer = {"repaired": done is not None, "kept": done and done.kept, "tables": listed}
    _print(answer, _repair_lines(path, done))


def _repair_lines(path: Path, done: Repair | None) -> Iterator[str]:
    if done is None:
        yield f"{path} is sound; nothing was done."
        return
    for each in done.tables:
        yield f"{each.table}: {each.rows} kept"
        yield from (f"  lost: {one_line(what)}" for what in each.lost)
    yield f"The damaged file is kept as {done.kept}."


@store.command("copy")
@_file
@click.argument("target", metavar="ADDRESS", envvar="DULY_STORE")
@click.option("--namespace", metavar="NAME", help="The namespace; the address's, or 'default'.")
@click.option("--tz", "zone_name", metavar="ZONE", help="The zone of the scheduler; the host's if not given.")
@json_option
def copy(*, path_text: str, target: str, namespace: str | None, zone_name: str | None) -> None:
    """Copy the tasks in FILE, with all that is remembered of each, to an empty namespace at ADDRESS.

    The scheduler on FILE must be stopped; the file is held meanwhile, and left as it is. Afterwards every
    task is read back and compared. ADDRESS can be given in the environment, as DULY_STORE, where `ps` does
    not show its password.

    \b
        duly store copy state.db postgresql://db.example/app
        duly store copy --tz Europe/Berlin --namespace billing state.db postgresql://db.example/app
        DULY_STORE=postgresql://db.example/app duly store copy state.db
    """  # noqa: D301 (click's mark for lines to keep)
    source = _existing(path_text)
    zone = zone_called(zone_name)
    try:
        if kind_of(target) is not StoreKind.DATABASE:
            raise CommandError(
                "no-address",
                "ADDRESS is no address of a database; give one such as postgresql://host/database",
            )
        from duly.cluster.copying import copied  # noqa: PLC0415 - not every user has psycopg
        from duly.cluster.postgres import PostgresStore  # noqa: PLC0415

        place = PostgresStore(target, namespace=namespace)
        number = asyncio.run(copied(SQLiteStore(source), place, zone))
    except PlaceError as error:
        raise CommandError("no-address", error.reason) from error
    except (SchedulerError, ValueError, ImportError) as error:
        raise CommandError("not-copied", untried(error), exit_code=1) from error
    tasks = "1 task" if number == 1 else f"{number} tasks"
    where = f"from {source} to {place.name}, namespace {place.namespace}"
    lines = [
        f"{tasks} copied {where}, read back and compared: all the same.",
        f"Start the scheduler on the new address from now on, in the zone {zone}, and not on {source}.",
    ]
    _print({"copied": number}, lines)
