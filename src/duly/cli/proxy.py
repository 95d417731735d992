"""The daemon, as commands know it: asked over its socket or, if it does not answer, through its store.

What reads goes to the store when no daemon answers, and says so in one line on stderr (machines see it in
`source`). What acts needs a daemon, and ends with code 69 when there is none, or one that says nothing; such
a one may still do what it was asked for when it goes on.

The file is looked at just enough to know the socket; it is read whole only when the daemon does not answer. A
file that is broken right now must not keep anybody from talking to the daemon that was started with it, so a
socket is then guessed from its name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.options import NO_DEFAULT, config_option, default_config
from duly.cli.output import CommandError, json_option, print_answer, wants_json
from duly.daemon.client import Client
from duly.daemon.protocol import DISABLED, EXITS, INVALID_CONFIGURATION, OperationError, UnreachableError
from duly.errors import SchedulerError
from duly.formatting import printable

if TYPE_CHECKING:
    from duly.config.schema import Config

_PATIENCE_S = 5.0
"""A daemon that has not answered a question by then is stopped, or as good as."""

socket_option = click.option(
    "--socket",
    "socket_path",
    metavar="PATH",
    envvar="DULY_SOCKET",
    help="The socket of the daemon [env: DULY_SOCKET].",
)


def daemon_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that asks a daemon; the command gets a *daemon* instead of them."""

    @wraps(command)
    def with_daemon(*, config_path: str | None, socket_path: str | None, **given: Any) -> None:
        command(daemon=DaemonProxy(config_path, socket_path), **given)

    return config_option(socket_option(json_option(with_daemon)))


class DaemonProxy:
    """The daemon of a configuration file, or the one behind a socket. Methods raise CommandError."""

    def __init__(self, config_path: str | None, socket_path: str | None) -> None:
        self._config_path = config_path
        self._socket_path = socket_path
        self.is_down = False
        """Whether the answer came from the store."""
        self.state = ""
        """Why it does not answer: `down`, `silent` or `closed`."""

    # --- where it is ---

    @cached_property
    def config(self) -> Path | None:
        """Its file; None if only its socket is known."""
        path = Path(self._config_path) if self._config_path is not None else default_config()
        if path is None and self._socket_path is None:
            raise CommandError(
                "no_configuration",
                f"which daemon? {NO_DEFAULT[0].upper()}{NO_DEFAULT[1:]}",
                hint="Give its file with -c FILE, or its socket with --socket PATH; `duly init` writes one.",
            )
        return path

    def socket(self) -> str:
        if self._socket_path is not None:
            return self._socket_path
        assert self.config is not None
        configured = _configured_socket(self.config)
        return str(self.config.absolute().parent / (configured or f"{self.config.stem}.sock"))

    def loaded(self) -> "Config | None":
        """The whole configuration; None if only the socket is known. Raises ConfigError."""
        if self.config is None:
            return None
        from duly.config.loading import load  # noqa: PLC0415 - only when the daemon does not answer

        return load(self.config)

    # --- what it answers ---

    def read(self, op: str, **params: Any) -> Any:
        """The daemon's answer, or the store's."""
        with self._failures():
            if not self.is_down:
                try:
                    return self.client(is_waiting=False).ask(op, **params)
                except UnreachableError as error:
                    self._set_down(error)
            return self._stored(op, params)

    def act(self, op: str, **params: Any) -> Any:
        """The daemon's answer, however long it is at work."""
        with self._failures(is_acting=True):
            return self.client().ask(op, **params)

    def follow(self, op: str, **params: Any) -> Iterator[Any]:
        """The daemon's answers as they come, or what the store has."""
        with self._failures():
            try:
                yield from self.client().stream(op, follow=True, **params)
            except UnreachableError as error:
                self._set_down(error)
                yield self._stored(op, params)
                yield None

    def is_answering(self) -> bool:
        try:
            self.client(is_waiting=False).ask("status")
        except UnreachableError as error:
            if error.state != "down":
                raise self._unreachable(error) from error
            return False
        except OperationError:
            return True  # it hung up, as one does that is about to go
        return True

    def client(self, *, is_waiting: bool = True) -> Client:
        """Who asks the daemon itself, without looking into its store. Raises what it raises."""
        return Client(self.socket(), patience_s=_PATIENCE_S, is_waiting=is_waiting)

    def _stored(self, op: str, params: dict[str, Any]) -> Any:
        from duly.cli.offline import answer  # noqa: PLC0415 - a database driver, only without a daemon

        return answer(self, op, params)

    def _set_down(self, error: UnreachableError) -> None:
        self.is_down, self.state = True, error.state
        if self.config is None:
            raise error  # behind a socket alone there is no store to read
        if not wants_json():
            said = (
                f"The daemon does not answer ({printable(error.reason)}); this is what its store remembers."
            )
            click.echo(click.style(said, fg="yellow"), err=True)

    @contextmanager
    def _failures(self, *, is_acting: bool = False) -> Iterator[None]:
        """Whatever goes wrong becomes an error with the right code."""
        try:
            yield
        except OperationError as error:
            if error.code == DISABLED:
                say_disabled(error.message, exit_code=1 if is_acting else 0)
            exit_code = EXITS.get(error.code, 1)
            raise CommandError(error.code, error.message, exit_code=exit_code, facts=error.facts) from error
        except UnreachableError as error:
            raise self._unreachable(error) from error
        except SchedulerError as error:  # the configuration, or the store
            is_config = type(error).__name__ == "ConfigError"
            code = INVALID_CONFIGURATION if is_config else "unreadable"
            raise CommandError(code, error.message, exit_code=EXITS.get(code, 1)) from error

    def _unreachable(self, error: UnreachableError) -> CommandError:
        hint = ""
        if error.is_asked:
            hint = "It was asked all the same, and may still do it when it goes on."
        elif error.state == "down":
            hint = f"Start it with: duly run {printable(str(self.config or 'CONFIG'))}"
        return CommandError(
            "unreachable",
            str(error),
            exit_code=EXITS["unreachable"],
            hint=hint,
            facts={"socket": error.path, "may_be_done": error.is_asked},
        )


def say_disabled(message: str, *, exit_code: int = 0) -> None:
    """Say that the timer subsystem is off. For who looks that is an answer, for who acts a failure."""
    said = f"{click.style(message[0].upper() + message[1:], fg='yellow')}."
    print_answer({"status": "disabled", "message": message}, [said])
    raise click.exceptions.Exit(exit_code)


def _configured_socket(path: Path) -> str | None:
    """The socket that a file asks for; None if it asks for none, or cannot be read."""
    from duly.config.loading import load, text_of, toml_tables  # noqa: PLC0415
    from duly.config.schema import ConfigError  # noqa: PLC0415 - not if a socket is given

    try:
        if path.suffix != ".toml":
            return load(path).settings.socket
        table, _ = toml_tables(path, text_of(path))
    except ConfigError:
        return None
    supervisor = table.get("supervisor")
    socket = supervisor.get("socket") if isinstance(supervisor, dict) else None
    return socket if isinstance(socket, str) and socket else None
