"""`duly init`: a commented file to begin with, in TOML or, if its name says so, in Python."""

from pathlib import Path

import click

from duly.cli.refusals import Refusal, printable
from duly.cli.writing import write_new
from duly.config.starter import STARTERS


@click.command("init")
@click.argument("path", type=click.Path(path_type=Path), default=Path("duly.toml"))
@click.option("--force", is_flag=True, help="Overwrite the file if there is one.")
def init(path: Path, *, force: bool) -> None:
    """Write a commented file to begin with to PATH (duly.toml).

    A name that ends in .py gets the same in Python.

        duly init && duly check duly.toml
    """
    text = STARTERS.get(path.suffix.lower())
    if text is None:
        raise Refusal(
            "unknown_form",
            f"{path} has to end in .toml or .py, to say which of the two to write",
            facts={"path": str(path)},
            lines=[],
            as_json=False,
        )
    write_new(path, text, force=force)
    shown = printable(str(path))
    click.echo(f"Wrote {shown}. Next: edit it, then `duly check {shown}` and `duly run {shown}`.")
