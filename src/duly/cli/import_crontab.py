"""`duly import crontab`: a crontab as a duly file, and a list of what has no equal.

The file goes to stdout or to `-o`, remarks to stderr with the numbers of their lines. The exit code is 1 when
a job was left out, so that a script notices.
"""

import sys
from pathlib import Path

import click

from duly.cli.refusals import Refusal, printable
from duly.cli.writing import write_new
from duly.config.crontab import Translated, toml_of, translated
from duly.config.errors import ConfigError
from duly.config.reading import MOST_BYTES, text_of

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
    found = translated(_text(file), has_user_column=user_column)
    text = toml_of(found)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_new(output, text, force=force)
    _tell(found, file, output)
    ctx.exit(1 if any(remark.is_left_out for remark in found.remarks) else 0)


def _text(file: Path) -> str:
    try:
        if file != _STDIN:
            return text_of(file)
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
    except ConfigError as error:
        raise _refused("unusable_file", error.message) from error
    if len(content) > MOST_BYTES or b"\0" in content:
        raise _refused("unusable_file", "stdin is larger than 1 MiB, or binary; it should be a crontab")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused("unusable_file", "stdin is not UTF-8 text") from error


def _tell(found: Translated, file: Path, output: Path | None) -> None:
    for remark in found.remarks:
        click.echo(f"{printable(str(file))}:{remark.line}: {printable(remark.text)}", err=True)
    left_out = sum(remark.is_left_out for remark in found.remarks)
    summary = f"{len(found.jobs)} translated, {left_out} left out"
    where = f"; wrote {printable(str(output))}" if output is not None else ""
    click.echo(f"{summary}{where}", err=True)


def _refused(code: str, message: str) -> Refusal:
    return Refusal(code, message, facts={}, lines=[], as_json=False)
