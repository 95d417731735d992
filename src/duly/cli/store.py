"""`duly store`: check and repair a SQLite store, or copy its tasks to PostgreSQL."""

import asyncio
import json
import sys
from pathlib import Path

import apsw
import click

from duly.cli.finding import Failure
from duly.cli.words import untried
from duly.cluster.copying import copied
from duly.errors import SchedulerError
from duly.events import one_line
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


_file = click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")


@store.command("check")
@_file
@_json
def check(*, path: Path, as_json: bool) -> None:
    """Look for damage in the store FILE, which may be in use. Nothing is changed.

    Every page, every index and every row is read. Ends with 1 if something is wrong.
    """
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
def repair(*, path: Path, as_json: bool) -> None:
    """Write the store FILE anew with every row that can be read. The damaged file is kept beside it.

    Its scheduler must be stopped. A task or timer whose row is lost begins anew.
    """
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
@click.argument("source", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", metavar="ADDRESS")
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")
def copy(*, source: Path, target: str, as_json: bool) -> None:
    """Copy the tasks in FILE, with all that is remembered of each, to an empty store at ADDRESS.

    The scheduler on FILE must be stopped; the file is held meanwhile, and left as it is. Afterwards every
    task is read back and compared.

    \b
        duly store copy state.db postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)
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
    except (SchedulerError, ValueError, ImportError) as error:
        raise Failure("not-copied", untried(error), exit_code=1, as_json=as_json) from error
    if as_json:
        click.echo(f'{{"copied": {number}}}')
        return
    tasks = "1 task" if number == 1 else f"{number} tasks"
    click.echo(f"{tasks} copied from {source} to {board.name}, read back and compared: all the same.")
    click.echo(f"Start the scheduler on the new address from now on, and not on {source}.")
