"""`duly run`: the daemon itself, in the foreground, until a signal or `duly stop` ends it.

This is the thin shell around `duly.daemon.foreground`: what the command line says, where its log goes, and
which code the process ends with.
"""

import logging
import os
from contextlib import redirect_stderr
from pathlib import Path

import click

from duly.cli.finding import Failure, default_config
from duly.cli.words import untried
from duly.errors import SchedulerError

_STDERR = 2
_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


@click.command("run")
@click.argument("config", required=False, envvar="DULY_CONFIG", metavar="[CONFIG]")
@click.option(
    "--timers/--no-timers", "timers", default=None, help="Switch the timer subsystem, whatever CONFIG says."
)
@click.option(
    "--echo/--no-echo", default=True, help="Show the output of services here as well; yes by default."
)
@click.option(
    "--wait",
    "wait_sec",
    type=click.FloatRange(min=0, max=86_400),
    default=0,
    metavar="SECONDS",
    help="Wait so long for a database that cannot be reached yet; not at all by default.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every step.")
@click.option("-q", "--quiet", is_flag=True, help="Log only what went wrong.")
def run(
    *, config: str | None, timers: bool | None, echo: bool, wait_sec: float, verbose: bool, quiet: bool
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
    if verbose and quiet:
        raise click.UsageError("--verbose or --quiet, not both")
    path = Path(config) if config is not None else default_config()
    if path is None:
        raise Failure(
            "no_configuration",
            "there is neither duly.toml nor duly.py here",
            exit_code=2,
            as_json=False,
            hint="Give a file: duly run FILE; `duly init` writes a new one.",
        )
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    _serve(path, level, timers=timers, is_echoing=echo, wait_sec=wait_sec)


def _serve(path: Path, level: int, *, timers: bool | None, is_echoing: bool, wait_sec: float) -> None:
    from duly.config.errors import ConfigError  # noqa: PLC0415 - not for --help
    from duly.config.loading import load_to_run  # noqa: PLC0415
    from duly.daemon.echo import Echo, EchoHandler, EchoStream  # noqa: PLC0415 - a thread, for a daemon alone
    from duly.daemon.foreground import serve  # noqa: PLC0415 - the whole daemon
    from duly.daemon.protocol import PathTooLongError  # noqa: PLC0415

    _open_standard_streams()
    echo = Echo(_STDERR)
    handler = EchoHandler(echo)
    logging.basicConfig(level=level, format=_FORMAT, handlers=[handler])
    try:
        with redirect_stderr(EchoStream(echo)):
            serve(load_to_run(path), timers=timers, is_echoing=is_echoing, wait_sec=wait_sec, log=echo)
    except ConfigError as error:
        raise Failure("invalid_configuration", error.message, exit_code=4, as_json=False) from error
    except SchedulerError as error:
        raise Failure("failed", untried(error), exit_code=1, as_json=False) from error
    except PathTooLongError as error:
        raise Failure("invalid_configuration", str(error), exit_code=4, as_json=False) from error
    finally:
        handler.close()


def _open_standard_streams() -> None:
    """Have the standard descriptors lead somewhere, lest a file or a socket of ours become one of them."""
    for descriptor in (0, 1, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
