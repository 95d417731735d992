"""Which daemon a command means: the one of a configuration file, or the one behind a socket.

The options are shared by every command that talks to a daemon. The file is looked at just enough to know the
socket; it is read whole only when the daemon does not answer. A file that is broken right now must not keep
anybody from talking to the daemon that was started with it, so a socket is then guessed from its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.refusals import Refusal
from duly.places import Kind, PlaceError, kind_of

if TYPE_CHECKING:
    from duly.config.schema import Config

DEFAULTS = ("duly.toml", "duly.py")
RUN_NUMBER = click.IntRange(1, 2**63 - 1)
"""The number of a run, as large as a store can keep."""


class Failure(Refusal):
    """A command that cannot do what was asked, and the code it ends with."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        exit_code: int,
        as_json: bool,
        hint: str = "",
        facts: Mapping[str, Any] | None = None,
        **more_facts: Any,
    ) -> None:
        lines = ["", hint] if hint else []
        super().__init__(code, message, facts={**(facts or {}), **more_facts}, lines=lines, as_json=as_json)
        self.exit_code = exit_code  # type: ignore[misc] # click reads it from the instance


@dataclass(frozen=True, slots=True)
class Place:
    """Where a daemon is to be found."""

    config: Path | None
    given_socket: str | None = None

    def socket(self) -> str:
        """The path of its socket."""
        if self.given_socket is not None:
            return self.given_socket
        assert self.config is not None
        configured = _configured_socket(self.config)
        return str(self.config.absolute().parent / (configured or f"{self.config.stem}.sock"))

    def loaded(self) -> "Config | None":
        """The whole configuration; None if none is known. Raises ConfigError."""
        if self.config is None:
            return None
        from duly.config.loading import load  # noqa: PLC0415 - only when the daemon does not answer

        return load(self.config)


def daemon_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that talks to a daemon."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object."),
        click.option(
            "--socket",
            "socket_path",
            metavar="PATH",
            envvar="DULY_SOCKET",
            help="The socket of the daemon [env: DULY_SOCKET].",
        ),
        config_option,
    ):
        command = option(command)
    return command


config_option = click.option(
    "-c",
    "--config",
    "config_path",
    metavar="FILE",
    envvar="DULY_CONFIG",
    help="The daemon's configuration [env: DULY_CONFIG; default: ./duly.toml, ./duly.py].",
)


def place_of(config_path: str | None, socket_path: str | None, *, as_json: bool) -> Place:
    """Where the daemon is that the options mean. Raises Failure."""
    config = Path(config_path) if config_path is not None else default_config()
    if config is None and socket_path is None:
        raise Failure(
            "no_configuration",
            "which daemon? There is neither duly.toml nor duly.py here",
            exit_code=2,
            as_json=as_json,
            hint="Give its file with -c FILE, or its socket with --socket PATH; `duly init` writes one.",
        )
    return Place(config, socket_path)


def store_file(text: str, *, as_json: bool) -> Path:
    """The SQLite file that a command is to read. Raises Failure.

    What is no path is not repeated: it may hold a password.
    """
    try:
        if kind_of(text) is not Kind.DATABASE:
            return Path(text)
        reason = "this reads SQLite files, not databases; `duly cluster` shows a cluster in PostgreSQL"
    except PlaceError as error:
        reason = error.reason
    raise Failure("no_file", reason, exit_code=2, as_json=as_json)


def default_config() -> Path | None:
    """The configuration in the current directory."""
    return next((Path(name) for name in DEFAULTS if Path(name).is_file()), None)


def _configured_socket(path: Path) -> str | None:
    """The socket that a file asks for; None if it asks for none, or cannot be read."""
    if path.suffix != ".toml":
        return _loaded_socket(path)
    from duly.config.errors import ConfigError  # noqa: PLC0415 - not for whoever gives a socket
    from duly.config.loading import toml_document  # noqa: PLC0415
    from duly.config.reading import text_of  # noqa: PLC0415

    try:
        table, _ = toml_document(path, text_of(path))
    except ConfigError:
        return None
    supervisor = table.get("supervisor")
    socket = supervisor.get("socket") if isinstance(supervisor, dict) else None
    return socket if isinstance(socket, str) and socket else None


def _loaded_socket(path: Path) -> str | None:
    from duly.config.errors import ConfigError  # noqa: PLC0415 - Python files only
    from duly.config.loading import load  # noqa: PLC0415

    try:
        return load(path).settings.socket
    except ConfigError:
        return None
