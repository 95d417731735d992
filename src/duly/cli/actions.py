"""The commands that change something: start, stop, trigger, enable, disable, reload.

Each is one request to the daemon, and says in one line what was done. Without a daemon they end with code 69.
"""

import time
from collections.abc import Iterable
from typing import Any

import click

from duly.cli.completing import ids
from duly.cli.finding import daemon_options, place_of
from duly.cli.logs import show_followed
from duly.cli.refusals import printable
from duly.cli.talking import Talk
from duly.cli.timers import invalid_lines
from duly.cli.words import counted

_POLL_S = 0.05
_LOOK_S = 0.5
"""How often one looks at a timer of another machine, of which news come with every beat."""

_LOOKS = 20
"""How often, before it is taken to be gone."""

_wait_option = click.option(
    "-w", "--wait", is_flag=True, help="Show the output until the run ends; end with 1 unless it succeeded."
)


@click.command("start")
@click.argument("id", shell_complete=ids("services"))
@_wait_option
@daemon_options
def start(
    *,
    id: str,  # noqa: A002 (the word for it)
    wait: bool,
    config_path: str | None,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Start the service ID now, if it is not active.

    \b
        duly start web
        duly start backup --wait
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    done = talk.act("start", id=id)
    _told(talk, done, f"Started {printable(id)}: run {done['run']}.", is_followed=wait)


@click.command("trigger")
@click.argument("timer", shell_complete=ids("timers"))
@_wait_option
@daemon_options
def trigger(
    *, timer: str, wait: bool, config_path: str | None, socket_path: str | None, as_json: bool
) -> None:
    """Fire TIMER by hand, now; its schedule stays as it is.

    If another machine holds it, the run is there, and so is its output; --wait waits for its end.

    \b
        duly trigger backup
        duly trigger backup --wait
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    done = talk.act("trigger", id=timer)
    if (member := done.get("member")) is None:
        _told(talk, done, f"Triggered {printable(timer)}: run {done['run']}.", is_followed=wait)
        return
    said = f"Triggered {printable(timer)} on {printable(member)}: run {done['run']} there."
    if wait:
        _await_elsewhere(talk, done, said)
    else:
        _told(talk, done, said)


@click.command("stop")
@click.argument("id", required=False, shell_complete=ids("services"))
@click.option(
    "-w", "--wait", is_flag=True, help="Return when the daemon is gone; a service is always waited for."
)
@daemon_options
def stop(
    *,
    id: str | None,  # noqa: A002 (the word for it)
    wait: bool,
    config_path: str | None,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """Stop the service ID; without an ID, end the daemon and all that it runs, in order.

    A service that was stopped stays down until it is started again, or the daemon is.

    \b
        duly stop web
        duly stop --wait
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    if id is not None:
        _told(talk, talk.act("stop", id=id), f"Stopped {printable(id)}.")
        return
    done = talk.act("shut_down")
    while wait and talk.is_answered():
        time.sleep(_POLL_S)
    _told(talk, done, "The daemon has stopped." if wait else "The daemon is stopping.")


@click.command("enable")
@click.argument("timer", shell_complete=ids("timers"))
@daemon_options
def enable(*, timer: str, config_path: str | None, socket_path: str | None, as_json: bool) -> None:
    """Enable TIMER at run time, whatever its file says; that outlasts restarts.

    \b
        duly enable backup
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    _told(talk, talk.act("enable", id=timer), f"Enabled {printable(timer)}.")


@click.command("disable")
@click.argument("timer", shell_complete=ids("timers"))
@daemon_options
def disable(*, timer: str, config_path: str | None, socket_path: str | None, as_json: bool) -> None:
    """Disable TIMER at run time, whatever its file says; that outlasts restarts.

    What comes due meanwhile is listed as missed, and not made up for.

    \b
        duly disable backup
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    _told(talk, talk.act("disable", id=timer), f"Disabled {printable(timer)}.")


@click.command("reload")
@daemon_options
def reload(*, config_path: str | None, socket_path: str | None, as_json: bool) -> None:
    """Have the daemon read its file again, and apply what changed; `duly plan` shows that first.

    Nothing that is unchanged is restarted, and no timer loses its state.

    \b
        duly plan && duly reload
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    done = talk.act("reload")
    if as_json:
        talk.print_json(done)
    else:
        for line in _reloaded(done):
            click.echo(line)
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


def _told(talk: Talk, done: dict[str, Any], said: str, *, is_followed: bool = False) -> None:
    if not is_followed:
        talk.print_json(done) if talk.as_json else click.echo(said)
        return
    click.echo(said, err=True)
    run = show_followed(talk.follow("logs", run=done["run"]), as_json=talk.as_json)
    if run is None or run["result"] != "success":
        raise click.exceptions.Exit(1)


def _await_elsewhere(talk: Talk, done: dict[str, Any], said: str) -> None:
    """Wait for the end of a run on another machine, by what its timer shows, and tell how it ended."""
    click.echo(said, err=True)
    first = timer = _timer_of(talk, done["id"])
    while _is_that_run(timer, first) and timer["running"]:
        time.sleep(_LOOK_S)
        timer = _timer_of(talk, done["id"])
    result = timer["last_result"] if _is_that_run(timer, first) else None
    if talk.as_json:
        talk.print_json({**done, "result": result})
    else:
        told = f"ended: {result or 'only that machine knows how'}"
        unseen = "is out of sight; `duly history` there tells how it ended"
        click.echo(f"run {done['run']} on {printable(done['member'])} {unseen if timer is None else told}")
    if result != "success":
        raise click.exceptions.Exit(1)


def _is_that_run(timer: Any, first: Any) -> bool:
    """Whether the last run of a timer is the one that it was at *first*."""
    return timer is not None and timer["last_run_at"] == first["last_run_at"]


def _timer_of(talk: Talk, name: str) -> Any:
    """A timer as the daemon has it; None if it has known nothing of such a timer for a while."""
    for _ in range(_LOOKS):
        timers = talk.act("timers").get("timers", ())  # there are none while they are switched off
        for timer in timers:
            if timer["id"] == name and timer["registered_at"] is not None:
                return timer
        time.sleep(_LOOK_S)  # it may be out of sight for a moment, on its way to another machine
    return None
