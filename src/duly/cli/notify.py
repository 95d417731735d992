"""`duly notify test`: sends a message as a notification would be sent, from here and now."""

import socket

import click

from duly.cli.options import config_file, config_option, loaded_config
from duly.cli.output import CommandError, json_option, print_answer
from duly.clock import HostClock
from duly.daemon.protocol import EXITS, NOT_FOUND
from duly.formatting import close_names, printable, suggestion
from duly.instant import instant_of
from duly.observe.delivery import DeliveryError, Message, deliver


@click.group("notify")
def notify() -> None:
    """Try the notifications of a configuration.

    \b
        duly notify test ops
    """  # noqa: D301 (click's mark for lines to keep)


@notify.command("test")
@click.argument("id")
@config_option
@json_option
def test(*, id: str, config_path: str | None) -> None:  # noqa: A002 (the word for it)
    """Send a test message to the [[notify]] ID; the daemon need not run.

    \b
        duly notify test ops
    """  # noqa: D301 (click's mark for lines to keep)
    known = {each.id: each for each in loaded_config(config_file(config_path, "notify test")).notify}
    if id not in known:
        close = close_names(id, list(known))
        reason = f"there is no usable notify {printable(id)}{f'; {suggestion(close)}' if close else ''}"
        raise CommandError(NOT_FOUND, reason, exit_code=EXITS[NOT_FOUND])
    now, host = HostClock().now(), socket.gethostname()
    message = Message(
        id=f"test-{instant_of(now)}",
        notify=id,
        event="test",
        jobs=[],
        host=host,
        at=now.isoformat(),
        text="this is a test of duly; all is well",
    )
    try:
        deliver(known[id], message, instant_of(now))
    except DeliveryError as error:
        raise CommandError("failed", f"not delivered: {error}", exit_code=1) from error
    print_answer({"done": "sent", "id": id}, [f"Sent a test message to {printable(id)}."])
