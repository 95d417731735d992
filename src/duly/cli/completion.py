"""`duly completion`: the script that makes a shell complete duly's commands, options and ids."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from duly.cli.proxy import DaemonProxy


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


# --- ids of services and timers ---


Completing = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_PATIENCE_S = 1.0


def ids(*kinds: str) -> Completing:
    """Offers the ids of "services", "timers", or both."""

    def offered(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            found = _known(context.params, kinds)
        except Exception:
            return []
        return [CompletionItem(name, help=text) for name, text in found.items() if name.startswith(begun)]

    return offered


def _known(params: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, str]:
    daemon = DaemonProxy(params.get("config_path"), params.get("socket_path"))
    config = daemon.loaded()
    if config is not None:
        entries = [entry for kind in kinds for entry in getattr(config, kind)]
        return {entry.id: entry.description for entry in entries}
    from duly.daemon.client import Client  # noqa: PLC0415 - only for a socket without a file

    definitions = Client(daemon.socket(), patience_s=_PATIENCE_S).ask("definitions")
    return {entry["id"]: entry.get("description", "") for kind in kinds for entry in definitions[kind]}
