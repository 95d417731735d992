"""`duly logs`: the output of a run, as far as it is kept, and live while it runs.

The output goes to stdout and nothing else does, so it can be piped. On a terminal, what a terminal would obey
is shown in escaped form: a job's output is not to be trusted with the cursor.
"""

import sys
from collections.abc import Iterable
from typing import Any

import click

from duly.cli.completing import ids
from duly.cli.finding import RUN_NUMBER, daemon_options, place_of
from duly.cli.refusals import printable
from duly.cli.relative import length
from duly.cli.talking import Talk
from duly.cli.words import exit_text, json_text


@click.command("logs")
@click.argument("id", required=False, shell_complete=ids("services", "timers"))
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the run ends.")
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), help="Only the last N lines.")
@click.option("--run", "run_id", type=RUN_NUMBER, metavar="RUN", help="This run, by its number.")
@daemon_options
def logs(
    *,
    id: str | None,  # noqa: A002 (the word for it)
    follow: bool,
    lines: int | None,
    run_id: int | None,
    config_path: str | None,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Show the output of the latest run of the service or timer ID, or of one run.

    \b
        duly logs backup
        duly logs web -f -n 20
        duly logs --run 1234
    """  # noqa: D301 (click's mark for lines to keep)
    if id is None and run_id is None:
        raise click.UsageError("whose output? Give an ID, or --run RUN")
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    if follow:
        show_followed(talk.follow("logs", id=id, run=run_id, lines=lines), as_json=as_json)
        return
    told = talk.read("logs", id=id, run=run_id, lines=lines)
    if as_json:
        talk.print_json(told)
        return
    _say(_heading(told))
    _write(told["output"])


def show_followed(pieces: Iterable[Any], *, as_json: bool) -> dict[str, Any] | None:
    """Print what comes, and return the run as it was last told of. Ctrl-C ends it quietly."""
    run: dict[str, Any] | None = None
    try:
        for piece in pieces:
            if piece is None:
                continue
            if as_json:
                click.echo(json_text(piece, indent=None))
            elif "run" not in piece:
                if piece["lost_bytes"]:
                    _say(f"({piece['lost_bytes']:,} bytes came too fast to be shown)")
                _write(piece["text"])
            elif run is None:
                _say(_heading(piece))
                _write(piece["output"])
            else:
                _say(f"run {piece['run']['id']} ended: {_ending(piece['run'])}")
            run = piece.get("run", run)
    except KeyboardInterrupt:
        return None
    return run


def _heading(told: dict[str, Any]) -> str:
    run = told["run"]
    lost = f"; {told['lost_bytes']:,} bytes before this are not kept" if told["lost_bytes"] else ""
    return f"run {run['id']} of {run['service']}, started {run['started_at']}, {_ending(run)}{lost}"


def _ending(run: dict[str, Any]) -> str:
    if run["running"]:
        return "still running" if run["result"] is None else run["result"]
    lasted = f" after {length(run['duration_s'])}" if run["duration_s"] is not None else ""
    ending = {"exit": f"exit code {exit_text(run)}", "signal": exit_text(run)}.get(
        run["result"], run["result"]
    )
    said = f": {run['message']}" if run["message"] else ""
    return f"{ending}{lasted}{said}"


def _say(line: str) -> None:
    click.echo(click.style(printable(line), dim=True), err=True)


def _write(text: str) -> None:
    if sys.stdout.isatty():
        text = "".join(char if char in "\n\t" else printable(char) for char in text)
    # Not click's: it would take the colours out of what a job wrote into a pipe.
    sys.stdout.write(text.encode("utf-8", "replace").decode())
    sys.stdout.flush()
