"""The `duly` command: one group, whose subcommands are imported only when they are called.

`COMMANDS` is the whole registry. Help lists it without importing anything, so the shell never waits for a
database driver in order to print a line of text.

A command reads its options (`options`), asks, and prints (`output`). What it asks is the daemon, through a
`DaemonProxy` (`proxy`); if that does not answer, the same operations are answered from its store (`offline`).
Other commands read a file, a store or a trace themselves. What ends a command early is a `CommandError`.

    user ── command ── proxy.DaemonProxy ──┬── daemon.client   the socket, first
              │                            └── offline         the store, if nobody answers: only to read
              └── output: text for people, --json for programs, exit codes (docs/cli.md)

The invariant: nothing is decided here. What a daemon answers is printed, and what is read from a store is
answered by the same operations, so both have one shape. A command that changes something needs a daemon.

What fails: no daemon ends what acts with 69, and what reads says on stderr that the store answers. A daemon
that is silent is not asked again. A mistake in the words is 2, a name that nobody has 3, an invalid file
4, all else 1.
"""

import os
from importlib import import_module
from typing import Any, NamedTuple

import click

from duly import __version__
from duly.formatting import did_you_mean, quoted
from duly.places import without_secrets


class Subcommand(NamedTuple):
    """Where a subcommand lives, and its line in the help."""

    module: str
    name: str
    help: str


COMMANDS = {
    "check": Subcommand("duly.cli.check", "check", "Report everything that is wrong with a configuration."),
    "cluster": Subcommand("duly.cli.cluster", "cluster", "Show the nodes of a cluster and what they run."),
    "completion": Subcommand("duly.cli.completion", "completion", "Print the completion script of a shell."),
    "crond": Subcommand("duly.cli.run", "crond", "Run a crontab as it is."),
    "dashboard": Subcommand(
        "duly.cli.dashboard", "dashboard", "Show a library scheduler's tasks in a browser."
    ),
    "disable": Subcommand("duly.cli.actions", "disable", "Disable a timer at run time."),
    "enable": Subcommand("duly.cli.actions", "enable", "Enable a timer at run time."),
    "explain": Subcommand("duly.cli.cron", "explain", "Say in plain words when a cron expression is due."),
    "history": Subcommand("duly.cli.history", "history", "List what ran, and what did not, newest first."),
    "import": Subcommand(
        "duly.cli.init", "import_group", "Turn a crontab or systemd units into a duly file."
    ),
    "init": Subcommand("duly.cli.init", "init", "Write a commented file to begin with."),
    "logs": Subcommand("duly.cli.logs", "logs", "Show or search the output of runs, live while they run."),
    "next": Subcommand(
        "duly.cli.cron", "next_firings", "List the next firings of a timer or a cron expression."
    ),
    "notify": Subcommand("duly.cli.notify", "notify", "Send a test message to somebody who is notified."),
    "plan": Subcommand("duly.cli.plan", "plan", "Show what a changed file would add, change and remove."),
    "reload": Subcommand("duly.cli.actions", "reload", "Have the daemon read its file again."),
    "run": Subcommand("duly.cli.run", "run", "Run the daemon: supervise services, fire timers."),
    "services": Subcommand("duly.cli.status", "services", "List the services and what they are up to."),
    "simulate": Subcommand("duly.cli.simulate", "simulate", "Show what would run, on a virtual clock."),
    "start": Subcommand("duly.cli.actions", "start", "Start a service now."),
    "status": Subcommand("duly.cli.status", "status", "Show how the daemon is, at a glance."),
    "stop": Subcommand("duly.cli.actions", "stop", "Stop a service, or the daemon."),
    "store": Subcommand("duly.cli.store", "store", "Check, repair or copy a store."),
    "timers": Subcommand("duly.cli.timers", "timers", "List the timers: last run, next run, result, misses."),
    "trigger": Subcommand("duly.cli.actions", "trigger", "Fire a timer by hand."),
    "verify": Subcommand("duly.cli.verify", "verify", "Check a recorded trace against the model."),
    "why": Subcommand("duly.cli.why", "why", "Say why a timer or task ran, or did not, at a given minute."),
}

_ALIASES = {
    **dict.fromkeys(("log", "output", "tail", "journal"), "logs"),
    **dict.fromkeys(("ps", "list", "ls"), "services"),
    **dict.fromkeys(("up", "daemon", "serve", "foreground"), "run"),
    **dict.fromkeys(("validate", "lint", "test"), "check"),
    **dict.fromkeys(("fire", "kick"), "trigger"),
    **dict.fromkeys(("down", "kill", "shutdown"), "stop"),
    **dict.fromkeys(("health",), "status"),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name only, until one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click calls it so
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module), entry.name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; offer the close ones if there is none of that name."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            offer = did_you_mean(name, COMMANDS, _ALIASES)
            raise click.UsageError(f"there is no command {quoted(name)}{offer}", ctx)
        return super().resolve_command(ctx, args)

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


_MAN = "Print the manual page: duly --man | man -l -"


def _print_man(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from duly.cli.man import man_page  # noqa: PLC0415 - it imports every command

        click.echo(man_page(context))
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="duly", message="%(prog)s %(version)s")
@click.option("--man", is_flag=True, is_eager=True, expose_value=False, callback=_print_man, help=_MAN)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run what is due, once, when it is due."""
    # https://no-color.org; otherwise click colours terminals and nothing else.
    if os.environ.get("NO_COLOR"):
        ctx.color = False
