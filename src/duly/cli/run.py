"""`duly run`: the daemon itself, in the foreground, until a signal or `duly stop` ends it.

This is the thin shell around `duly.daemon.foreground`: what the command line says, where its log goes, and
which code the process ends with. `duly crond` runs the same daemon on a crontab as it is: that is translated
as by `duly import crontab`, in memory, and there is no second scheduler.

With `--log-format json` the log is one JSON object a line. An event has `time`, `level`, `event` and its
fields as they are (spec/timers.md 8.3); anything else that is said has a `message`.
"""

import json
import logging
import os
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.options import NO_DEFAULT, default_config
from duly.cli.output import CommandError, untried
from duly.errors import SchedulerError
from duly.events import warn_operator

if TYPE_CHECKING:
    from duly.config import Config
    from duly.daemon.backend import DashboardServer

_STDERR = 2
_TOKENS = ("DULY_OPERATOR_TOKEN", "DULY_VIEWER_TOKEN")
_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a daemon that say what is written where."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Log only what went wrong."),
        click.option("-v", "--verbose", is_flag=True, help="Log every step."),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="How the daemon writes its own log: lines for people, or one JSON object a line.",
        ),
        click.option(
            "--echo/--no-echo", default=True, help="Show the output of services here as well; yes by default."
        ),
    ):
        command = option(command)
    return command


@click.command("run")
@click.argument("config", required=False, envvar="DULY_CONFIG", metavar="[CONFIG]")
@click.option(
    "--timers/--no-timers", "timers", default=None, help="Switch the timer subsystem, whatever CONFIG says."
)
@click.option(
    "--wait",
    "wait_sec",
    type=click.FloatRange(min=0, max=86_400),
    default=0,
    metavar="SECONDS",
    help="Wait so long for a database that cannot be reached yet; not at all by default.",
)
@click.option("--trace", metavar="FILE", help="Record what timers do in FILE, for `duly verify`.")
@log_options
def run(
    *,
    config: str | None,
    timers: bool | None,
    wait_sec: float,
    trace: str | None,
    **options: Any,
) -> None:
    """Run the daemon of CONFIG (./duly.toml or ./duly.py): supervise its services and fire its timers.

    SIGTERM and SIGINT end it in order, a second one at once; SIGHUP reloads the file. Entries that are
    invalid are listed, and the others run. It ends with 0 after an ordered stop, 4 if the file cannot be
    used, 1 if something else kept it from running.

    \b
        duly run
        duly run /etc/duly.toml --timers
        duly run --wait 60
    """  # noqa: D301 (click's mark for lines to keep)
    path = Path(config) if config is not None else default_config()
    if path is None:
        hint = "Give a file: duly run FILE; `duly init` writes a new one."
        raise CommandError("no_configuration", NO_DEFAULT, hint=hint)
    run_daemon(partial(_loaded, path), timers=timers, wait_sec=wait_sec, trace=trace, **options)


def _loaded(path: Path) -> "Config":
    from duly.config.loading import load_to_run  # noqa: PLC0415 - not for --help

    return load_to_run(path)


@click.command("crond")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--user-column", is_flag=True, help="Lines name a user before the command, as in /etc/crontab.")
@click.option("--store", metavar="PATH", help="Where runs are remembered; FILE with .db by default.")
@click.option("--socket", metavar="PATH", help="Where it listens to commands; FILE with .sock by default.")
@log_options
def crond(file: Path, *, user_column: bool, store: str | None, socket: str | None, **options: Any) -> None:
    """Run the crontab FILE as it is, until a signal ends it.

    A line that cannot be translated is listed, and the others run. No mail is sent: what jobs write is shown
    here and kept (`duly logs --socket PATH`). SIGHUP reads FILE again.

    \b
        duly crond /etc/crontab --user-column --store /var/lib/duly.db
        ENTRYPOINT ["duly", "crond", "/app/crontab"]      # in a Dockerfile
    """  # noqa: D301 (click's mark for lines to keep)
    load = partial(_crontab_loaded, file, has_user_column=user_column, store=store, socket=socket)
    run_daemon(load, timers=None, wait_sec=0, trace=None, **options)


def _crontab_loaded(path: Path, *, has_user_column: bool, store: str | None, socket: str | None) -> "Config":
    """The configuration that a crontab stands for. Raises ConfigError."""
    from duly.config.crontab import TooManyJobsError, toml_of, translated_crontab  # noqa: PLC0415
    from duly.config.loading import load_content, text_of  # noqa: PLC0415
    from duly.config.schema import ConfigError, Dashboard, FileFault, Invalid  # noqa: PLC0415 - not for --help

    try:
        found = translated_crontab(text_of(path), has_user_column=has_user_column)
    except TooManyJobsError as error:
        raise ConfigError(path, [FileFault(str(error), error.line)]) from error
    for remark in found.remarks:
        if not remark.is_left_out:
            warn_operator(f"duly: {path}:{remark.line}: {remark.text}")
    config = load_content(path.with_name(f"{path.name}.toml"), toml_of(found).encode())
    left_out = tuple(
        Invalid("job", None, number, remark.text.removeprefix("left out: "), remark.line)
        for number, remark in enumerate(each for each in found.remarks if each.is_left_out)
    )
    # Relative paths are seen from here, as those of other options are, not from the crontab.
    places = {"store": store, "socket": socket}
    given: dict[str, Any] = {
        name: str(Path(place).absolute()) for name, place in places.items() if place is not None
    }
    return replace(
        config,
        path=path,
        invalid=(*config.invalid, *left_out),
        faults=(*config.faults, *left_out),
        settings=replace(config.settings, **given),
        dashboard=Dashboard(enabled=False),
    )


def run_daemon(
    load: "Callable[[], Config]",
    *,
    echo: bool,
    log_format: str,
    verbose: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Run the daemon of the configuration that *load* brings, now and at each reload. Raises CommandError."""
    if verbose and quiet:
        raise click.UsageError("--verbose or --quiet, not both")
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    import asyncio  # noqa: PLC0415 - not for --help

    from duly.config.schema import ConfigError  # noqa: PLC0415 - not for --help
    from duly.daemon.echo import Echo, WriteStream  # noqa: PLC0415 - a thread, for a daemon alone
    from duly.daemon.foreground import serve  # noqa: PLC0415 - the whole daemon
    from duly.daemon.protocol import PathTooLongError  # noqa: PLC0415
    from duly.daemon.views import timers_off_text  # noqa: PLC0415

    _open_standard_streams()
    log = Echo(_STDERR)
    stream = WriteStream(log.put_text)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else logging.Formatter(_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    try:
        with redirect_stderr(WriteStream(partial(_warn, handler)) if log_format == "json" else stream):
            config = load()
            is_switched = config.settings.timers or options["timers"] is not None
            if not is_switched and (said := timers_off_text(config)):
                logging.getLogger("duly").warning("%s", said)
            dashboard = _dashboard(config)
            asyncio.run(serve(config, load, log=log, is_echoing=echo, dashboard=dashboard, **options))
    except ConfigError as error:
        raise CommandError("invalid_configuration", error.message, exit_code=4) from error
    except SchedulerError as error:
        raise CommandError("failed", untried(error), exit_code=1) from error
    except PathTooLongError as error:
        raise CommandError("invalid_configuration", str(error), exit_code=4) from error
    finally:
        log.close()


def _dashboard(config: "Config") -> "DashboardServer | None":
    """The dashboard of a daemon; None if none is wanted or its extra is missing. Raises WebRefusedError."""
    # Also without a dashboard: services must not inherit the tokens.
    tokens = {name: os.environ.pop(name) for name in _TOKENS if name in os.environ}
    if not config.dashboard.enabled:
        return None
    try:
        from duly.web.dashboard import DaemonDashboard  # noqa: PLC0415 - only where it is wanted
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "duly"}:
            raise
        warn_operator(f"duly: there is no dashboard, which needs {missing}; for one: pip install 'duly[web]'")
        return None
    return DaemonDashboard(config, tokens)


def _open_standard_streams() -> None:
    """Open each standard descriptor that is closed; otherwise a file of ours would get its number."""
    for descriptor in (0, 1, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        said = {"time": moment.isoformat(timespec="milliseconds"), "level": record.levelname}
        event = getattr(record, "event", None)
        fields = record.__dict__.get("fields", {})
        body = {"message": record.getMessage()} if event is None else {"event": event, **fields}
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        # A path or an argument may hold bytes that are no text.
        text = json.dumps({**body, **said}, ensure_ascii=False, default=str)
        return text.encode(errors="backslashreplace").decode()


def _warn(handler: logging.Handler, text: str) -> None:
    """Make warnings of the log of what is written to stderr beside it."""
    for line in text.splitlines():
        handler.emit(logging.LogRecord("duly", logging.WARNING, "", 0, line, None, None))
