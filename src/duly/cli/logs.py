"""`duly logs`: the output of a run; of all runs to come; and lines found in the outputs of all that are kept.

What jobs wrote goes to stdout and nothing else does, so it can be piped. On a terminal, control characters
are escaped: the output of a job must not move the cursor.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from duly.cli.completion import ids
from duly.cli.options import RUN_NUMBER, moment_of, zone_called
from duly.cli.output import CommandError, exit_text, json_text, wants_json
from duly.cli.proxy import DaemonProxy, daemon_options
from duly.clock import HostClock
from duly.daemon.protocol import EXITS, FAILED, UNREACHABLE, OperationError, UnreachableError
from duly.formatting import length, printable

_PAGE = 50
_POLL_S = 1.0


@click.command("logs")
@click.argument("id", required=False, shell_complete=ids("services", "timers"))
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, run after run, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), help="Only the last N lines.")
@click.option("--since", metavar="TIME", help="Lines from then on, of all runs: 30m, 2h, 3d or a time.")
@click.option("--grep", metavar="REGEX", help="Lines that match, of all runs that are kept.")
@click.option(
    "--timestamps/--no-timestamps", default=None, help="Times; with -f, --since and --grep by default."
)
@click.option("--run", "run_id", type=RUN_NUMBER, metavar="RUN", help="This run, by its number.")
@click.option(
    "--machine", metavar="NAME", help="Where that run was, if not here, as `duly history` shows it."
)
@daemon_options
def logs(
    *,
    id: str | None,  # noqa: A002 (the word for it)
    follow: bool,
    lines: int | None,
    since: str | None,
    grep: str | None,
    timestamps: bool | None,
    run_id: int | None,
    machine: str | None,
    daemon: DaemonProxy,
) -> None:
    """Show the output of the latest run of the service or timer ID, or of one run; or search all outputs.

    With -f it goes on with the runs to come, also when the daemon is restarted. With --since or --grep it
    shows lines of all runs whose output is kept, of ID or of everything; it ends with 1 if there are none.

    \b
        duly logs backup
        duly logs web -f -n 20
        duly logs --run 1234
        duly logs --since 2h --grep 'error|refused'
    """  # noqa: D301 (click's mark for lines to keep)
    is_search = since is not None or grep is not None
    if id is None and run_id is None and (follow or not is_search):
        raise click.UsageError("whose output? Give an ID, or --run RUN")
    if machine is not None and run_id is None:
        raise click.UsageError("which run on that machine? Give --run RUN")
    if is_search and (run_id is not None or lines is not None):
        raise click.UsageError("--since and --grep are for all runs: without --run and -n")
    has_times = follow or is_search if timestamps is None else timestamps
    writer = LineWriter(
        _pattern(grep), _moment(since), has_times=has_times, is_of_all=id is None and run_id is None
    )
    try:
        if is_search or (follow and run_id is None):
            _show_runs(daemon, id, writer, lines, is_search=is_search, is_following=follow)
        elif follow:
            _show(daemon.follow("logs", id=id, run=run_id, machine=machine, lines=lines), writer)
        else:
            response = daemon.read("logs", id=id, run=run_id, machine=machine, lines=lines)
            if wants_json():
                click.echo(json_text(response))
            else:
                _begin(response, writer)
    except KeyboardInterrupt:
        return


def _show_runs(
    daemon: DaemonProxy,
    id: str | None,  # noqa: A002 (the word for it)
    writer: "LineWriter",
    lines: int | None,
    *,
    is_search: bool,
    is_following: bool,
) -> None:
    """Show lines of all runs, or the latest run; and go on with those to come, if there is a daemon."""
    if is_search:
        last = _search(daemon, id, writer, is_following=is_following)
        if not is_following:
            raise click.exceptions.Exit(0 if writer.is_used else 1)
    else:
        latest = daemon.read("outputs", id=id, limit=1)["logs"]
        last = latest[0]["run"]["id"] - 1 if latest else 0
        if daemon.is_down and latest:
            _begin(latest[0], writer)
    if not daemon.is_down:
        _follow_runs(daemon, id, writer, last, lines)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise click.UsageError(f"--grep: not a regular expression: {error}") from error


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    from duly.schedules import length_of  # noqa: PLC0415 - only a search needs it

    try:
        return HostClock().now() - timedelta(microseconds=length_of("--since", text))
    except (ValueError, OverflowError):  # no length of time, or more than there is
        return moment_of(text, zone_called(None))


class LineWriter:
    """Writes what jobs wrote; if that is wanted, line by line, with times, and only some of the lines."""

    def __init__(
        self,
        pattern: re.Pattern[str] | None = None,
        since: datetime | None = None,
        *,
        has_times: bool = False,
        is_of_all: bool = False,
    ) -> None:
        self.since = since
        self.is_used = False
        """Whether it has written anything."""
        self._pattern = pattern
        self._has_times = has_times
        self._is_of_all = is_of_all
        self._is_raw = not (pattern or since or has_times or is_of_all)
        self._service = self._line = ""
        self._at: str | None = None
        self._sink: Callable[[dict[str, Any]], object] = lambda line: self.write_line(self._service, line)

    def write_log(self, log: dict[str, Any]) -> None:
        """Write the output of a run. A line whose time is not known has that of the start."""
        self._service = log["run"]["service"]
        times = [(each["line"], each["at"]) for each in log.get("times") or ()]
        self.write(log["output"], times or [(0, log["run"]["started_at"])])

    def write(self, text: str, times: Sequence[tuple[int, str | None]]) -> None:
        """Write a piece of output. *times*: when the lines from a number on came."""
        if self._is_raw:
            _write(text)
            return
        known = dict(times)
        at = None
        for number, part in enumerate(text.split("\n")):
            at = known.get(number, at)
            if number > 0:
                self._end_line()
            if not self._line:
                self._at = at
            self._line += part

    def end(self) -> None:
        """Write what is left of a run that has ended."""
        if self._line:
            self._end_line()

    def lines_of(self, log: dict[str, Any]) -> list[dict[str, Any]]:
        """The wanted lines of a run."""
        found: list[dict[str, Any]] = []
        self._sink, before = found.append, self._sink
        self.write_log(log)
        self.end()
        self._sink = before
        return found

    def _end_line(self) -> None:
        line, at, self._line = self._line, self._at, ""
        is_late = self.since is None or at is None or datetime.fromisoformat(at) >= self.since
        if is_late and (self._pattern is None or self._pattern.search(line)):
            self.is_used = True
            self._sink({"at": at, "text": line})

    def write_line(self, service: str, line: dict[str, Any]) -> None:
        at = line["at"] or ""
        stamp = f"{at[:10]} {at[11:19]} " if self._has_times else ""
        _write(f"{stamp}{service + ' | ' if self._is_of_all else ''}{line['text']}\n")


# --- the outputs of all runs ---


def _search(daemon: DaemonProxy, id: str | None, writer: LineWriter, *, is_following: bool) -> int:  # noqa: A002
    """Show the wanted lines of all runs, oldest first; the number of the newest one shown.

    A run under way is left out if it is followed: then it comes next.
    """
    pages = list(_pages(daemon, id, writer.since))
    logs = [log for page in pages for log in page if not (is_following and log["run"]["running"])][::-1]
    found = [(log, writer.lines_of(log)) for log in logs]
    if wants_json():
        click.echo(
            json_text({"logs": [{"run": log["run"], "lines": lines} for log, lines in found if lines]})
        )
    else:
        all_lines = [(log["run"]["service"], line) for log, lines in found for line in lines]
        for service, line in sorted(all_lines, key=lambda each: datetime.fromisoformat(each[1]["at"])):
            writer.write_line(service, line)
    return max((log["run"]["id"] for log in logs), default=0)


def _pages(daemon: DaemonProxy, id: str | None, since: datetime | None) -> Iterator[list[dict[str, Any]]]:  # noqa: A002
    before, is_more = None, True
    while is_more:
        asked = None if since is None else since.isoformat()
        answer = daemon.read("outputs", id=id, before=before, since=asked, limit=_PAGE)
        yield answer["logs"]
        is_more = answer["more"]
        before = answer["logs"][-1]["run"]["id"] if answer["logs"] else None


# --- following ---


def _follow_runs(
    daemon: DaemonProxy,
    id: str | None,  # noqa: A002 (the word for it)
    writer: LineWriter,
    last: int,
    lines: int | None,
) -> None:
    """Show the runs after *last* as they come, also those of the daemon's next lives, until Ctrl-C.

    Of the first one that has begun, only the last *lines*.
    """
    cut_off, is_waiting = 0, False
    while True:
        try:
            client = daemon.client()
            if cut_off:
                run = client.ask("logs", run=cut_off, lines=0)["run"]
                if run["running"]:  # a daemon that has just begun does not know yet what became of it
                    time.sleep(_POLL_S)
                    continue
                writer.end()
                _say(f"run {cut_off} ended: {_ending(run)}")
                cut_off = 0
            for log in reversed(client.ask("outputs", id=id, after=last, limit=_PAGE)["logs"]):
                is_waiting, last = False, log["run"]["id"]
                cut_off = last
                _show(client.stream("logs", run=last, follow=True, lines=lines), writer)
                cut_off, lines = 0, None
        except (UnreachableError, OperationError) as error:
            if isinstance(error, OperationError) and error.code not in {FAILED, UNREACHABLE}:
                raise CommandError(error.code, error.message, exit_code=EXITS.get(error.code, 1)) from error
            if not is_waiting:
                _say(f"waiting for the daemon: {error}")
            is_waiting = True
        time.sleep(_POLL_S)


def show_followed(pieces: Iterable[Any]) -> dict[str, Any] | None:
    """Print what comes, and return the run in its last state. Ctrl-C ends it quietly."""
    try:
        return _show(pieces, LineWriter())
    except KeyboardInterrupt:
        return None


def _show(pieces: Iterable[Any], writer: LineWriter) -> dict[str, Any] | None:
    run: dict[str, Any] | None = None
    for piece in pieces:
        if piece is None:
            continue
        if wants_json():
            click.echo(json_text(piece, indent=None))
        elif "run" not in piece:
            if piece["lost_bytes"]:
                _say(f"({piece['lost_bytes']:,} bytes came too fast to be shown)")
            writer.write(piece["text"], [(0, piece.get("at"))])
        elif run is None:
            _begin(piece, writer)
        else:
            writer.end()
            _say(f"run {piece['run']['id']} ended: {_ending(piece['run'])}")
        run = piece.get("run", run)
    return run


def _begin(response: dict[str, Any], writer: LineWriter) -> None:
    """Say which run it is, and where it was if not here; and show what there is of its output."""
    if response.get("fault"):
        _say(f"Perhaps not the latest: {response['fault']}")
    _say(_heading(response))
    if response["run"].get("machine") is not None:
        _say(f"it ran on {response['run']['machine']}; of its output the last 64 KiB are kept")
    writer.write_log(response)
    if not response["run"]["running"]:
        writer.end()


def _heading(response: dict[str, Any]) -> str:
    run = response["run"]
    lost = f"; {response['lost_bytes']:,} bytes before this are not kept" if response["lost_bytes"] else ""
    return f"run {run['id']} of {run['service']}, started {run['started_at']}, {_ending(run)}{lost}"


def _ending(run: dict[str, Any]) -> str:
    if run["running"]:
        return "still running" if run["result"] is None else run["result"]
    lasted = f" after {length(run['duration_s'])}" if run["duration_s"] is not None else ""
    said = f": {run['message']}" if run["message"] else ""
    if run.get("machine") is not None:  # of another machine only the message has the code
        return f"{run['result']}{lasted}{said}"
    ending = {"exit": f"exit code {exit_text(run)}", "signal": exit_text(run)}.get(
        run["result"], run["result"]
    )
    return f"{ending}{lasted}{said}"


def _say(line: str) -> None:
    click.echo(click.style(printable(line), dim=True), err=True)


def _write(text: str) -> None:
    if sys.stdout.isatty():
        text = "".join(char if char in "\n\t" else printable(char) for char in text)
    # Not click's: it would take the colours out of what a job wrote into a pipe.
    sys.stdout.write(text.encode("utf-8", "replace").decode())
    sys.stdout.flush()
