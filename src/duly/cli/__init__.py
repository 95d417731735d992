"""The `duly` command: one group, whose subcommands are imported only when they are called.

`COMMANDS` is the whole registry. Help lists it without importing anything, so the shell never waits for a
database driver in order to print a line of text.
"""

import os
from importlib import import_module
from typing import Any, NamedTuple

import click

from duly import __version__
from duly.places import without_secrets


class Entry(NamedTuple):
    """Where a subcommand lives, and its line in the help."""

    module: str
    name: str
    help: str


COMMANDS = {
    "check": Entry("duly.cli.check", "check", "Tell everything that is wrong with a configuration."),
    "cluster": Entry("duly.cli.cluster", "cluster", "Show the members of a cluster and who holds what."),
    "completion": Entry("duly.cli.completion", "completion", "Print the completion script of a shell."),
    "dashboard": Entry("duly.cli.dashboard", "dashboard", "Show a library scheduler's tasks in a browser."),
    "demo": Entry("duly.cli.demo", "demo", "Watch six tasks run, fail, retry and survive."),
    "disable": Entry("duly.cli.actions", "disable", "Disable a timer at run time."),
    "enable": Entry("duly.cli.actions", "enable", "Enable a timer at run time."),
    "explain": Entry("duly.cli.explain", "explain", "Say in plain words when a cron expression is due."),
    "history": Entry("duly.cli.history", "history", "List what ran, and what did not, newest first."),
    "import": Entry("duly.cli.import_crontab", "import_group", "Turn a crontab into a duly file."),
    "init": Entry("duly.cli.init", "init", "Write a commented file to begin with."),
    "logs": Entry("duly.cli.logs", "logs", "Show the output of a run, live while it runs."),
    "next": Entry("duly.cli.next", "next_firings", "List the next firings of a timer or a cron expression."),
    "plan": Entry("duly.cli.plan", "plan", "Show what a changed file would add, change and remove."),
    "reload": Entry("duly.cli.actions", "reload", "Have the daemon read its file again."),
    "run": Entry("duly.cli.run", "run", "Run the daemon: supervise services, fire timers."),
    "services": Entry("duly.cli.services", "services", "List the services and what they are up to."),
    "simulate": Entry("duly.cli.simulate", "simulate", "Show what would run, on a virtual clock."),
    "start": Entry("duly.cli.actions", "start", "Start a service now."),
    "status": Entry("duly.cli.status", "status", "Show how the daemon is, at a glance."),
    "stop": Entry("duly.cli.actions", "stop", "Stop a service, or the daemon."),
    "store": Entry("duly.cli.store", "store", "Check, repair or copy a store."),
    "timers": Entry("duly.cli.timers", "timers", "List the timers: last run, next run, result, misses."),
    "trigger": Entry("duly.cli.actions", "trigger", "Fire a timer by hand."),
    "verify": Entry("duly.cli.verify", "verify", "Check a recorded trace against the model."),
    "why": Entry("duly.cli.why", "why", "Say why a timer or task ran, or did not, at a given minute."),
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

    def invoke(self, ctx: click.Context) -> Any:
        """Call a command. What click says of arguments that it cannot use repeats no password in them."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            said = error.format_message()
            if (safe := without_secrets(said)) == said:
                raise
            raise click.UsageError(safe, error.ctx) from None

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
