"""`duly crond FILE`: a crontab as it is, run by the daemon, also as PID 1 of a container.

The crontab is translated as `duly import crontab` does it, in memory, and the daemon of `duly run` runs the
result: there is no second scheduler. A reload (SIGHUP, `duly reload`) translates it anew.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.run import log_options, run_daemon

if TYPE_CHECKING:
    from duly.config import Config


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
    load = partial(_loaded, file, has_user_column=user_column, store=store, socket=socket)
    run_daemon(load, timers=None, wait_sec=0, trace=None, **options)


def _loaded(path: Path, *, has_user_column: bool, store: str | None, socket: str | None) -> "Config":
    """The configuration that a crontab stands for. Raises ConfigError."""
    from duly.config.crontab import TooManyJobsError, toml_of, translated_crontab  # noqa: PLC0415
    from duly.config.loading import load_content, text_of  # noqa: PLC0415
    from duly.config.schema import ConfigError, Dashboard, FileFault, Invalid  # noqa: PLC0415 - not for --help
    from duly.events import warn_operator  # noqa: PLC0415

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
