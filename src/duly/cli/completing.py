"""What the shell offers when one presses Tab: the ids of timers and services.

From the configuration, or from the daemon behind a socket. Whatever goes wrong, nothing is offered: a shell
that is completing a word is no place for an error.
"""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from duly.cli.finding import place_of

Completing = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_PATIENCE_S = 1.0


def ids(*kinds: str) -> Completing:
    """Offers the ids of "services", "timers", or both."""

    def offered(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            found = _known(context.params, kinds)
        except Exception:
            return []
        return [CompletionItem(name, help=told) for name, told in found.items() if name.startswith(begun)]

    return offered


def _known(params: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, str]:
    place = place_of(params.get("config_path"), params.get("socket_path"), as_json=False)
    config = place.loaded()
    if config is not None:
        entries = [entry for kind in kinds for entry in getattr(config, kind)]
        return {entry.id: entry.description for entry in entries}
    from duly.daemon.client import Client  # noqa: PLC0415 - only for a socket without a file

    told = Client(place.socket(), patience_s=_PATIENCE_S).ask("definitions")
    return {entry["id"]: entry.get("description", "") for kind in kinds for entry in told[kind]}
