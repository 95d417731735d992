"""The commands that change something: start, stop, trigger, enable, disable, reload.

Each is one request to the daemon, and says in one line what was done. Without a daemon they end with code 69.
"""

import time
from collections.abc import Iterable
from typing import Any

import click

from duly.cli.completion import ids
from duly.cli.logs import show_followed
from duly.cli.output import print_answer
from duly.cli.proxy import DaemonProxy, daemon_options
from duly.cli.timers import invalid_lines
from duly.formatting import counted, printable

_POLL_S = 0.05


_wait_option = click.option(
    "-w", "--wait", is_flag=True, help="Show the output until the run ends; end with 1 unless it succeeded."
)


@click.command("start")
@click.argument("id", shell_complete=ids("services"))
@_wait_option
@daemon_options
def start(*, id: str, wait: bool, daemon: DaemonProxy) -> None:  # noqa: A002 (the word for it)
    """Start the service ID now, if it is not active.

    \b
        duly start web
        duly start backup --wait
    """  # noqa: D301 (click's mark for lines to keep)
    done = daemon.act("start", id=id)
    _report(daemon, done, f"Started {printable(id)}: run {done['run']}.", is_followed=wait)


@click.command("trigger")
@click.argument("timer", shell_complete=ids("timers"))
@_wait_option
@daemon_options
def trigger(*, timer: str, wait: bool, daemon: DaemonProxy) -> None:
    """Fire TIMER by hand, now; its schedule stays as it is.

    \b
        duly trigger backup
        duly trigger backup --wait
    """  # noqa: D301 (click's mark for lines to keep)
    done = daemon.act("trigger", id=timer)
    _report(daemon, done, f"Triggered {printable(timer)}: run {done['run']}.", is_followed=wait)


@click.command("stop")
@click.argument("id", required=False, shell_complete=ids("services"))
@click.option(
    "-w", "--wait", is_flag=True, help="Return when the daemon is gone; a service is always waited for."
)
@daemon_options
def stop(*, id: str | None, wait: bool, daemon: DaemonProxy) -> None:  # noqa: A002 (the word for it)
    """Stop the service ID; without an ID, end the daemon and all that it runs, in order.

    A service that was stopped stays down until it is started again, or the daemon is.

    \b
        duly stop web
        duly stop --wait
    """  # noqa: D301 (click's mark for lines to keep)
    if id is not None:
        print_answer(daemon.act("stop", id=id), [f"Stopped {printable(id)}."])
        return
    done = daemon.act("shut_down")
    while wait and daemon.is_answering():
        time.sleep(_POLL_S)
    print_answer(done, ["The daemon has stopped." if wait else "The daemon is stopping."])


@click.command("enable")
@click.argument("timer", shell_complete=ids("timers"))
@daemon_options
def enable(*, timer: str, daemon: DaemonProxy) -> None:
    """Enable TIMER at run time, whatever its file says; that outlasts restarts.

    \b
        duly enable backup
    """  # noqa: D301 (click's mark for lines to keep)
    print_answer(daemon.act("enable", id=timer), [f"Enabled {printable(timer)}."])


@click.command("disable")
@click.argument("timer", shell_complete=ids("timers"))
@daemon_options
def disable(*, timer: str, daemon: DaemonProxy) -> None:
    """Disable TIMER at run time, whatever its file says; that outlasts restarts.

    What comes due meanwhile is listed as missed, and not made up for.

    \b
        duly disable backup
    """  # noqa: D301 (click's mark for lines to keep)
    print_answer(daemon.act("disable", id=timer), [f"Disabled {printable(timer)}."])


@click.command("reload")
@click.option("--allow-empty", is_flag=True, help="End everything, if the file defines nothing any more.")
@daemon_options
def reload(*, allow_empty: bool, daemon: DaemonProxy) -> None:
    """Have the daemon read its file again, and apply what changed; `duly plan` shows that first.

    Nothing that is unchanged is restarted, and no timer loses its state.

    \b
        duly plan && duly reload
    """  # noqa: D301 (click's mark for lines to keep)
    # Only if it was asked for: an older daemon does not know it.
    done = daemon.act("reload", **({"allow_empty": True} if allow_empty else {}))
    print_answer(done, _reloaded(done))
    if done["invalid"]:
        raise click.exceptions.Exit(4)


def _reloaded(done: dict[str, Any]) -> Iterable[str]:
    for word, sign, colour in (("added", "+", "green"), ("changed", "~", "yellow"), ("removed", "-", "red")):
        for name in done[word]:
            yield click.style(f"{sign} {printable(name)}", fg=colour)
    is_same = not (done["added"] or done["changed"] or done["removed"])
    kept = "nothing changed" if is_same else f"{counted(done['unchanged'], 'entry', 'entries')} unchanged"
    yield f"Reloaded; {kept}."
    if done["need_restart"]:
        said = f"Takes effect when the daemon is started again: {', '.join(done['need_restart'])}."
        yield click.style(said, fg="yellow")
    yield from invalid_lines(done["invalid"], None)


def _report(daemon: DaemonProxy, done: dict[str, Any], said: str, *, is_followed: bool) -> None:
    if not is_followed:
        print_answer(done, [said])
        return
    click.echo(said, err=True)
    run = show_followed(daemon.follow("logs", run=done["run"]))
    if run is None or run["result"] != "success":
        raise click.exceptions.Exit(1)
