"""A configuration from what a file holds, whichever form it had: check, relate, warn, say where.

Pure: the file was read before, and its lines come in as a function.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from duly.config.addresses import Address, address
from duly.config.checking import (
    Checked,
    checked_dashboard,
    checked_services,
    checked_settings,
    checked_timers,
    id_in,
)
from duly.config.errors import EntryFault
from duly.config.footguns import Note, notes
from duly.config.relations import related_services, related_timers
from duly.config.schema import Config, Dashboard, Invalid, Kind, Service, Table, Timer, Warned

LineOf = Callable[[Table, int, str | None], int | None]
"""The line of a key of an entry, or of the entry."""
Look = Callable[[Service], Iterable[tuple[str, str]]]
"""What else is worth a warning about a service: keys and reasons."""
_NOTHING: Mapping[str, object] = MappingProxyType({})


def no_line(_table: Table, _index: int, _key: str | None) -> None:
    """Nobody knows the line."""
    return


def config_of(
    path: Path,
    services: Sequence[object] = (),
    timers: Sequence[object] = (),
    supervisor: object = _NOTHING,
    *,
    dashboard: object = _NOTHING,
    line_of: LineOf = no_line,
    warnings: Sequence[Warned] = (),
    look: Look | None = None,
) -> Config:
    """The configuration that these entries make. Never raises, whatever they are."""
    settings = checked_settings(supervisor)
    pages = checked_dashboard(dashboard)
    some_services = [_placed(each, path) for each in related_services(checked_services(services))]
    some_timers = related_timers(checked_timers(timers), some_services)
    noted = [*notes(settings.settings, some_services, some_timers), *_looked_at(some_services, look)]
    return Config(
        path=path,
        settings=settings.settings,
        services=tuple(each.entry for each in some_services if each.entry is not None),
        timers=tuple(each.entry for each in some_timers if each.entry is not None),
        invalid=(
            *(_invalid("supervisor", None, 0, fault, line_of) for fault in settings.faults),
            *(
                Invalid("supervisor", None, 0, fault.reason, line_of("dashboard", 0, fault.key))
                for fault in pages.faults
            ),
            *_invalid_of("service", some_services, line_of),
            *_invalid_of("timer", some_timers, line_of),
        ),
        warnings=(*warnings, *(_warned(note, line_of) for note in noted)),
        dashboard=_dashboard_placed(pages.dashboard, path),
        is_listen_given=pages.is_listen_given,
        targets=frozenset(_targets(timers)),
    )


def _targets(timers: Iterable[object]) -> Iterator[str]:
    for written in timers:
        target = id_in(written, "target")
        if target is not None:
            yield target


def _placed(checked: Checked[Service], path: Path) -> Checked[Service]:
    """A directory is meant as seen from the file."""
    service = checked.entry
    if service is None or service.cwd is None:
        return checked
    return replace(checked, entry=replace(service, cwd=str(path.absolute().parent / service.cwd)))


def _dashboard_placed(dashboard: Dashboard, path: Path) -> Dashboard:
    """Its paths are meant as seen from the file, too."""
    folder = path.absolute().parent
    listen = address(dashboard.listen)
    tokens = (dashboard.token_file, dashboard.viewer_token_file)
    token_file, viewer_token_file = (None if each is None else str(folder / each) for each in tokens)
    if listen.path is not None:
        listen = Address(path=str(folder / listen.path))
    return replace(dashboard, listen=str(listen), token_file=token_file, viewer_token_file=viewer_token_file)


def _looked_at(services: Sequence[Checked[Service]], look: Look | None) -> Iterator[Note]:
    for each in services:
        if each.entry is not None and look is not None:
            for key, reason in look(each.entry):
                yield Note("service", each.id, each.index, reason, key)


def _warned(note: Note, line_of: LineOf) -> Warned:
    return Warned(note.kind, note.id, note.index, note.reason, line_of(note.kind, note.index, note.key))


def _invalid_of(
    kind: Kind, checked: Sequence[Checked[Service]] | Sequence[Checked[Timer]], line_of: LineOf
) -> list[Invalid]:
    return [
        _invalid(kind, each.id, each.index, each.fault, line_of) for each in checked if each.fault is not None
    ]


def _invalid(kind: Kind, name: str | None, index: int, fault: EntryFault, line_of: LineOf) -> Invalid:
    return Invalid(kind, name, index, fault.reason, line_of(kind, index, fault.key))
