"""`duly init` and `duly import`: a new file, commented, or translated from a crontab or systemd units.

What `duly import` writes goes to stdout or to `-o`, remarks go to stderr with the numbers of their lines. The
exit code is 1 when a job was left out, so that a script notices. Nothing is written that duly does not load:
what would be written is loaded first.
"""

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from duly.cli.output import CommandError
from duly.config.crontab import Remark, TooManyJobsError, toml_of, translated_crontab
from duly.config.loading import MOST_BYTES, decoded, load_content, text_of
from duly.config.schema import ConfigError
from duly.config.systemd import translated_units, units_toml
from duly.formatting import printable

_STARTERS = {".toml": "starter.toml", ".py": "starter.py.txt"}
"""Small, complete, commented, and free of warnings. A wheel would compile a `starter.py`, so it is a text."""
_STDIN = Path("-")


@click.command("init")
@click.argument("path", type=click.Path(path_type=Path), default=Path("duly.toml"))
@click.option("--force", is_flag=True, help="Overwrite the file if there is one.")
def init(path: Path, *, force: bool) -> None:
    """Write a commented file to begin with to PATH (duly.toml).

    A name that ends in .py gets the same in Python.

        duly init && duly check duly.toml
    """
    text = starter(path.suffix.lower())
    if text is None:
        message = f"{path} has to end in .toml or .py, to say which of the two to write"
        raise CommandError("unknown_form", message)
    write_new(path, text, force=force)
    shown = printable(str(path))
    click.echo(f"Wrote {shown}. Next: edit it, then `duly check {shown}` and `duly run {shown}`.")


def starter(suffix: str) -> str | None:
    """The file to begin with, in the form that *suffix* says; None if there is none."""
    name = _STARTERS.get(suffix)
    return None if name is None else files("duly.config").joinpath(name).read_text(encoding="utf-8")


# --- `duly import` ---


@click.group("import")
def import_group() -> None:
    """Turn the files of other schedulers into duly files.

    \b
        crontab -l | duly import crontab - -o duly.toml
        duly import systemd /etc/systemd/system -o duly.toml
    """  # noqa: D301 (click's mark for lines to keep)


def _output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    force = click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
    where = click.Path(path_type=Path)
    return click.option("-o", "--output", type=where, metavar="OUT", help="Write to this .toml file.")(
        force(command)
    )


@import_group.command("crontab")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--user-column", is_flag=True, help="Lines name a user before the command, as in /etc/crontab.")
@_output_options
@click.pass_context
def crontab(ctx: click.Context, file: Path, *, output: Path | None, user_column: bool, force: bool) -> None:
    """Turn the crontab FILE ("-" for stdin) into services and timers.

    What cannot be translated is listed on stderr. The exit code is 1 if a job was left out.

        crontab -l | duly import crontab - -o duly.toml
    """
    try:
        found = translated_crontab(_text(file), has_user_column=user_column)
    except TooManyJobsError as error:
        raise CommandError("too_many_jobs", f"{file}: {error}") from error
    left_out = _hand_over(toml_of(found), len(found.entries), found.remarks, output, force=force, file=file)
    ctx.exit(1 if left_out else 0)


@import_group.command("systemd")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True))
@_output_options
@click.pass_context
def systemd(ctx: click.Context, folder: Path, *, output: Path | None, force: bool) -> None:
    """Turn the timer and service units in DIR into jobs and services.

    What cannot be translated is listed on stderr. The exit code is 1 if a unit was left out.

        duly import systemd /etc/systemd/system -o duly.toml
    """
    try:
        texts = {
            path.name: text_of(path)
            for path in sorted(folder.iterdir())
            if path.suffix in {".timer", ".service"} and path.is_file()
        }
    except ConfigError as error:
        raise CommandError("unusable_file", error.message) from error
    found = translated_units(texts)
    left_out = _hand_over(units_toml(found), len(found.entries), found.remarks, output, force=force)
    ctx.exit(1 if left_out else 0)


def _hand_over(
    text: str,
    translated: int,
    remarks: Sequence[Remark],
    output: Path | None,
    *,
    force: bool,
    file: Path = _STDIN,
) -> int:
    """Write what was translated, and say what of *file* was not; how many entries are missing."""
    if output is not None and output.suffix.lower() != ".toml":
        raise CommandError("unknown_form", f"{output} has to end in .toml, which is what is written")
    _check_loads(text)
    if output is None:
        click.echo(text.encode(), nl=False)  # TOML is UTF-8, whatever the locale says
    else:
        write_new(output, text, force=force)
    lines = [
        f"{printable(remark.file or str(file))}:{f'{remark.line}:' if remark.line else ''}"
        f" {printable(remark.text)}\n"
        for remark in remarks
    ]
    left_out = sum(remark.is_left_out for remark in remarks)
    where = f"; wrote {printable(str(output))}" if output is not None else ""
    # At once: there can be half a million of them.
    click.echo("".join(lines) + f"{translated} translated, {left_out} left out{where}", err=True)
    return left_out


def _text(file: Path) -> str:
    try:
        return text_of(file) if file != _STDIN else decoded(Path("stdin"), _stdin_content())
    except ConfigError as error:
        raise CommandError("unusable_file", error.message) from error


def _stdin_content() -> bytes:
    if sys.stdin is None:  # the shell closed it: <&-
        raise CommandError("unusable_file", "stdin is closed; it should be a crontab")
    try:
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    except OSError as error:
        raise CommandError("unusable_file", f"stdin cannot be read: {error.strerror}") from error


def _check_loads(text: str) -> None:
    """Refuse a text that duly would not load as it is meant. Translation leaves none, as far as we know."""
    try:
        invalid = load_content(Path("/duly.toml"), text.encode()).invalid
    except ConfigError as error:
        raise CommandError("not_loadable", f"duly would not load the result: {error.reason}") from error
    if invalid:
        named = f"{invalid[0].kind} {invalid[0].id}"
        raise CommandError("not_loadable", f"duly would not load the result: {named}: {invalid[0].reason}")


# --- files for people: never over one that exists, unless --force is given, and never half a file ---


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there yet, or with *force* replace the one that is. Raises CommandError."""
    try:
        if force:
            _replace(path, text)
        else:
            _create(path, text)
    except FileExistsError as error:
        raise CommandError("not_written", f"{path} exists already; --force overwrites it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandError("not_written", f"{path} cannot be written: {said}") from error


def _create(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except BaseException:
            path.unlink()  # what is ours and half: a disk was full, or somebody pressed Ctrl-C
            raise


def _replace(path: Path, text: str) -> None:
    if path.is_dir():
        raise IsADirectoryError(0, "it is a directory")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)  # noqa: PTH105 - in one step: a crash leaves the old file or the new one
    finally:
        beside.unlink(missing_ok=True)
