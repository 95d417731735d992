"""`duly completion`: the script that makes a shell complete duly's commands, options and ids."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    It completes commands, options, and the ids of services and timers.

    \b
        eval "$(duly completion bash)"                                  # in ~/.bashrc
        eval "$(duly completion zsh)"                                   # in ~/.zshrc
        duly completion fish > ~/.config/fish/completions/duly.fish
    """  # noqa: D301 (click's mark for lines to keep)
    kind = get_completion_class(shell)
    assert kind is not None
    group = context.find_root().command
    # Not `kind.source()`: for bash that starts a bash, to learn its version.
    script = kind(group, {}, "duly", "_DULY_COMPLETE")
    click.echo(script.source_template % script.source_vars())
