"""The `duly` command: one group, whose subcommands are imported only when they are called.

`COMMANDS` is the whole registry. Help lists it without importing anything, so the shell never waits for a
database driver in order to print a line of text.
"""

import os
from importlib import import_module
from typing import NamedTuple

import click

from duly import __version__


class Entry(NamedTuple):
    """Where a subcommand lives, and its line in the help."""

    module: str
    name: str
    help: str


COMMANDS = {
    "demo": Entry("duly.cli.demo", "demo", "Watch six tasks run, fail, retry and survive."),
    "explain": Entry("duly.cli.explain", "explain", "Say in plain words when a cron expression is due."),
    "next": Entry("duly.cli.next", "next_firings", "List the next times at which a cron expression is due."),
    "verify": Entry("duly.cli.verify", "verify", "Check a recorded trace against the model."),
    "why": Entry("duly.cli.why", "why", "Say why a task ran, or did not run, at a given minute."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name only, until one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        """The names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Import and return a command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module), entry.name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="duly", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run what is due, once, when it is due."""
    # https://no-color.org; otherwise click colours terminals and nothing else.
    if os.environ.get("NO_COLOR"):
        ctx.color = False
