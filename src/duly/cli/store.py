"""`duly store`: check and repair a SQLite store, or copy its tasks to PostgreSQL."""

import asyncio
import json
import sys
from pathlib import Path

import apsw
import click

from duly.cli.finding import Failure, store_file
from duly.cli.words import untried
from duly.cluster.copying import copied
from duly.errors import SchedulerError
from duly.events import one_line
from duly.places import PlaceError
from duly.store import Board, SQLiteStore, store_for
from duly.store.inspection import FAULTS, findings_at
from duly.store.repair import repaired


@click.group("store")
def store() -> None:
    """Do something with a store as a whole.

    \b
        duly store check state.db
        duly store repair state.db
        duly store copy state.db postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)


_file = click.argument("path_text", metavar="FILE")
_json = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")


def _existing(text: str, *, as_json: bool) -> Path:
    path = store_file(text, as_json=as_json)
    if not path.is_file():
        raise Failure("no_file", f"there is no file {path}", exit_code=2, as_json=as_json)
    return path


@store.command("check")
@_file
@_json
def check(*, path_text: str, as_json: bool) -> None:
    """Look for damage in the store FILE, which may be in use. Nothing is changed.

    Every page, every index and every row is read. Ends with 1 if something is wrong.
    """
    path = _existing(path_text, as_json=as_json)
    try:
        findings = findings_at(path.resolve())
    except FAULTS as error:
        raise Failure(
            "not-checked", f"{path} cannot be read: {error}", exit_code=1, as_json=as_json
        ) from error
    if as_json:
        found = [{"table": finding.table, "what": finding.what} for finding in findings]
        click.echo(json.dumps({"store": str(path), "sound": not findings, "findings": found}))
    for finding in [] if as_json else findings:
        click.echo(f"{finding.table}: {one_line(finding.what)}")
    if findings and not as_json:
        click.echo(
            f"{path} is damaged. Restore it from a copy, or keep what can be read: duly store repair {path}"
        )
    elif not as_json:
        click.echo(f"{path} is sound.")
    sys.exit(1 if findings else 0)


@store.command("repair")
@_file
@_json
def repair(*, path_text: str, as_json: bool) -> None:
    """Write the store FILE anew with every row that can be read. The damaged file is kept beside it.

    Its scheduler must be stopped. A task or timer whose row is lost begins anew.
    """
    path = _existing(path_text, as_json=as_json)
    try:
        done = repaired(path)
    except (SchedulerError, apsw.Error) as error:
        raise Failure("not-repaired", untried(error), exit_code=1, as_json=as_json) from error
    tables = [] if done is None else done.tables
    if as_json:
        told = [{"table": each.table, "rows": each.rows, "lost": each.lost} for each in tables]
        click.echo(json.dumps({"repaired": done is not None, "kept": done and done.kept, "tables": told}))
        return
    if done is None:
        click.echo(f"{path} is sound; nothing was done.")
        return
    for each in tables:
        click.echo(
            f"{each.table}: {each.rows} kept" + "".join(f"\n  lost: {one_line(what)}" for what in each.lost)
        )
    click.echo(f"The damaged file is kept as {done.kept}.")


@store.command("copy")
@_file
@click.argument("target", metavar="ADDRESS", envvar="DULY_STORE")
@_json
def copy(*, path_text: str, target: str, as_json: bool) -> None:
    """Copy the tasks in FILE, with all that is remembered of each, to an empty store at ADDRESS.

    The scheduler on FILE must be stopped; the file is held meanwhile, and left as it is. Afterwards every
    task is read back and compared. ADDRESS can be given in the environment, as DULY_STORE, where `ps` does
    not show its password.

    \b
        duly store copy state.db postgresql://db.example/app
        DULY_STORE=postgresql://db.example/app duly store copy state.db
    """  # noqa: D301 (click's mark for lines to keep)
    source = _existing(path_text, as_json=as_json)
    try:
        board = store_for(target)
        if not isinstance(board, Board):
            raise Failure(
                "no-address",
                "ADDRESS is no address of a database; give one such as postgresql://host/database",
                exit_code=2,
                as_json=as_json,
            )
        number = asyncio.run(copied(SQLiteStore(source), board))
    except PlaceError as error:
        raise Failure("no-address", error.reason, exit_code=2, as_json=as_json) from error
    except (SchedulerError, ValueError, ImportError) as error:
        raise Failure("not-copied", untried(error), exit_code=1, as_json=as_json) from error
    if as_json:
        click.echo(f'{{"copied": {number}}}')
        return
    tasks = "1 task" if number == 1 else f"{number} tasks"
    click.echo(f"{tasks} copied from {source} to {board.name}, read back and compared: all the same.")
    click.echo(f"Start the scheduler on the new address from now on, and not on {source}.")
