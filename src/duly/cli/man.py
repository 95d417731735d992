"""`duly --man`: the manual page, made from the commands themselves, in the language of troff (man(7))."""

from collections.abc import Iterator
from inspect import cleandoc

import click

from duly import __version__

_DESCRIPTION = """\
duly keeps services up, runs jobs by timers, remembers every run, and says why one did or did not run.
Commands that are about a daemon find it by its file (-c FILE, DULY_CONFIG, ./duly.toml or ./duly.py) or by
its socket (--socket PATH, DULY_SOCKET)."""
_EXITS = (
    ("0", "fine"),
    ("1", "failed"),
    ("2", "usage"),
    ("3", "there is no service, timer, task or run of that name"),
    ("4", "the configuration, or an entry of it, is invalid"),
    ("69", "the daemon is not reachable"),
    ("70", "duly itself failed"),
)


def man_page(context: click.Context) -> str:
    """The whole page, for the group of *context*."""
    group = context.command
    assert isinstance(group, click.Group)
    return "\n".join((*_head(), *_commands(group, context), *_tail())) + "\n"


def _head() -> Iterator[str]:
    yield f'.TH DULY 1 "" "duly {_text(__version__)}" "duly"'
    yield from (".SH NAME", r"duly \- run what is due, once, when it is due")
    yield from (".SH SYNOPSIS", r".B duly", r"[OPTIONS] COMMAND [ARGS]...")
    yield from (".SH DESCRIPTION", _text(_DESCRIPTION), ".SH COMMANDS")


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        elif not command.hidden:
            yield from _command(command, inner)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f'.SS "{_text(" ".join((context.command_path, *command.collect_usage_pieces(context))))}"'
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.strip("\n").splitlines()
        is_kept = lines[:1] == ["\b"]
        yield ".PP"
        yield from (".nf",) if is_kept else ()
        yield from (_text(line if is_kept else line.strip()) for line in lines[is_kept:])
        yield from (".fi",) if is_kept else ()
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)):
            yield from (".TP", rf"\fB{_text(record[0])}\fR", _text(record[1]))


def _tail() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in _EXITS:
        yield from (".TP", rf"\fB{code}\fR", _text(meaning))
    yield from (".SH SEE ALSO", _text("crontab(5), systemd.timer(5)"))


def _text(text: str) -> str:
    """Text that troff takes as it is: no escapes, no requests at the beginning of a line, real hyphens."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return "\n".join(rf"\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n"))
