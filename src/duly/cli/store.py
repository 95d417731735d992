"""`duly store copy`: the tasks of a scheduler from a SQLite file to PostgreSQL."""

import asyncio
from pathlib import Path

import click

from duly.cli.finding import Failure
from duly.cli.words import untried
from duly.cluster.copying import copied
from duly.errors import SchedulerError
from duly.store import Board, SQLiteStore, store_for


@click.group("store")
def store() -> None:
    """Do something with a store as a whole.

    \b
        duly store copy state.db postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)


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
