"""One question to the daemon, or to the store that it left: the way of every command.

What reads goes to the store when no daemon answers, and says so in one line on stderr (machines see it in
`source`). What acts needs a daemon, and ends with code 69 when there is none, or one that says nothing; such
a one may still do what it was asked for when it goes on.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from duly.cli.finding import Failure, Place
from duly.cli.refusals import printable
from duly.cli.words import json_text
from duly.daemon.client import Client
from duly.daemon.protocol import DISABLED, EXITS, INVALID_CONFIGURATION, OperationError, UnreachableError
from duly.errors import SchedulerError

_PATIENCE_S = 5.0
"""A daemon that has not answered a question by then is stopped, or as good as."""


class Talk:
    """What one command asks, and how it answers."""

    def __init__(self, place: Place, *, as_json: bool) -> None:
        self.place = place
        self.as_json = as_json
        self.is_down = False
        """Whether the answer came from the store."""
        self._state = ""

    def read(self, op: str, **params: Any) -> Any:
        """The daemon's answer, or the store's. Raises Failure."""
        with self._failures():
            if not self.is_down:
                try:
                    return self._client().ask(op, **params)
                except UnreachableError as error:
                    self._note_down(error)
            from duly.cli.offline import answer  # noqa: PLC0415 - a database driver, only without a daemon

            return answer(self.place, op, params, state=self._state)

    def act(self, op: str, **params: Any) -> Any:
        """The daemon's answer, however long it is at work. Raises Failure, with code 69 without a daemon."""
        with self._failures():
            return self._client(is_waiting=True).ask(op, **params)

    def follow(self, op: str, **params: Any) -> Iterator[Any]:
        """The daemon's answers as they come, or what the store has. Raises Failure."""
        with self._failures():
            try:
                yield from self._client(is_waiting=True).stream(op, follow=True, **params)
            except UnreachableError as error:
                self._note_down(error)
                from duly.cli.offline import answer  # noqa: PLC0415 - as above

                yield answer(self.place, op, params, state=self._state)
                yield None

    def is_answered(self) -> bool:
        """Whether there is a daemon. Raises Failure if there is one that says nothing."""
        try:
            self._client().ask("status")
        except UnreachableError as error:
            if error.state != "down":
                raise self._unreachable(error) from error
            return False
        except OperationError:
            return True  # it hung up, as one does that is about to go
        return True

    def print_json(self, result: Any) -> None:
        """Print a result for machines."""
        click.echo(json_text(result))

    def _client(self, *, is_waiting: bool = False) -> Client:
        return Client(self.place.socket(), patience_s=_PATIENCE_S, is_waiting=is_waiting)

    def _note_down(self, error: UnreachableError) -> None:
        self.is_down, self._state = True, error.state
        if self.place.config is None:
            raise error  # behind a socket alone there is no store to read
        if not self.as_json:
            said = (
                f"The daemon does not answer ({printable(error.reason)}); this is what its store remembers."
            )
            click.echo(click.style(said, fg="yellow"), err=True)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Whatever goes wrong becomes a failure with the right code."""
        try:
            yield
        except OperationError as error:
            if error.code == DISABLED:
                say_disabled(error.message, as_json=self.as_json)
            raise Failure(
                error.code,
                error.message,
                exit_code=EXITS.get(error.code, 1),
                as_json=self.as_json,
                facts=error.facts,
            ) from error
        except UnreachableError as error:
            raise self._unreachable(error) from error
        except SchedulerError as error:  # the configuration, or the store
            is_config = type(error).__name__ == "ConfigError"
            code = INVALID_CONFIGURATION if is_config else "unreadable"
            exit_code = EXITS[INVALID_CONFIGURATION] if is_config else 1
            raise Failure(code, error.message, exit_code=exit_code, as_json=self.as_json) from error

    def _unreachable(self, error: UnreachableError) -> Failure:
        of = f" {printable(str(self.place.config))}" if self.place.config is not None else " CONFIG"
        hint = f"Start it with: duly run{of}" if error.state == "down" else ""
        if error.is_asked:
            hint = "It was asked all the same, and may still do it when it goes on."
        return Failure(
            "unreachable",
            str(error),
            exit_code=EXITS["unreachable"],
            as_json=self.as_json,
            hint=hint,
            socket=error.path,
            may_be_done=error.is_asked,
        )


def say_disabled(message: str, *, as_json: bool) -> None:
    """Say that the timer subsystem is off, and end well: it is off because nobody switched it on."""
    if as_json:
        click.echo(json.dumps({"status": "disabled", "message": message}, indent=2))
    else:
        click.echo(f"{click.style(message[0].upper() + message[1:], fg='yellow')}.")
    raise click.exceptions.Exit(0)
