"""`duly import crontab`: a crontab as a duly file, and a list of what has no equal.

The file goes to stdout or to `-o`, remarks to stderr with the numbers of their lines. The exit code is 1 when
a job was left out, so that a script notices.

One rule: nothing is written that duly does not load. What would be written is loaded first.
"""

import sys
from pathlib import Path

import click

from duly.cli.refusals import Refusal, printable
from duly.cli.writing import write_new
from duly.config.crontab import TooManyJobsError, Translated, toml_of, translated
from duly.config.errors import ConfigError
from duly.config.loading import load_content
from duly.config.reading import MOST_BYTES, decoded, text_of

_STDIN = Path("-")


@click.group("import")
def import_group() -> None:
    """Turn the files of other schedulers into duly files.

    \b
        crontab -l | duly import crontab - -o duly.toml
    """  # noqa: D301 (click's mark for lines to keep)


@import_group.command("crontab")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="Write to this .toml file."
)
@click.option("--user-column", is_flag=True, help="Lines name a user before the command, as in /etc/crontab.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@click.pass_context
def crontab(ctx: click.Context, file: Path, *, output: Path | None, user_column: bool, force: bool) -> None:
    """Turn the crontab FILE ("-" for stdin) into services and timers.

    What cannot be translated is listed on stderr. The exit code is 1 if a job was left out.

        crontab -l | duly import crontab - -o duly.toml
    """
    if output is not None and output.suffix.lower() != ".toml":
        raise _refused("unknown_form", f"{output} has to end in .toml, which is what is written")
    try:
        found = translated(_text(file), has_user_column=user_column)
    except TooManyJobsError as error:
        raise _refused("too_many_jobs", f"{file}: {error}") from error
    text = toml_of(found)
    _check_loads(text)
    if output is None:
        click.echo(text.encode(), nl=False)  # TOML is UTF-8, whatever the locale says
    else:
        write_new(output, text, force=force)
    _tell(found, file, output)
    ctx.exit(1 if any(remark.is_left_out for remark in found.remarks) else 0)


def _text(file: Path) -> str:
    try:
        return text_of(file) if file != _STDIN else decoded(Path("stdin"), _stdin_content())
    except ConfigError as error:
        raise _refused("unusable_file", error.message) from error


def _stdin_content() -> bytes:
    if sys.stdin is None:  # the shell closed it: <&-
        raise _refused("unusable_file", "stdin is closed; it should be a crontab")
    try:
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    except OSError as error:
        raise _refused("unusable_file", f"stdin cannot be read: {error.strerror}") from error


def _check_loads(text: str) -> None:
    """Refuse a text that duly would not load as it is meant. Translation leaves none, as far as we know."""
    try:
        invalid = load_content(Path("/duly.toml"), text.encode()).invalid
    except ConfigError as error:
        raise _refused("not_loadable", f"duly would not load the result: {error.reason}") from error
    if invalid:
        named = f"{invalid[0].kind} {invalid[0].id}"
        raise _refused("not_loadable", f"duly would not load the result: {named}: {invalid[0].reason}")


def _tell(found: Translated, file: Path, output: Path | None) -> None:
    shown = printable(str(file))
    lines = [f"{shown}:{remark.line}: {printable(remark.text)}\n" for remark in found.remarks]
    left_out = sum(remark.is_left_out for remark in found.remarks)
    where = f"; wrote {printable(str(output))}" if output is not None else ""
    summary = f"{len(found.jobs)} translated, {left_out} left out{where}"
    click.echo("".join(lines) + summary, err=True)  # at once: there can be half a million of them


def _refused(code: str, message: str) -> Refusal:
    return Refusal(code, message, facts={}, lines=[], as_json=False)
