"""`duly plan`: what a changed file would add, change and remove, before anything is done.

It is compared with what the daemon runs; without a daemon, with what its store knows. Nothing is removed
because of a mistake: with a file that cannot be read there is no plan, and what an invalid entry stood for is
kept, and said.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from duly.cli.options import config_option, loaded_config
from duly.cli.output import CommandError, json_option, print_answer
from duly.cli.proxy import DaemonProxy, socket_option
from duly.cli.timers import invalid_lines
from duly.config.plan import ConfigPlan, Defined, PlannedEntry, changes
from duly.config.schema import Config, Service, Timer, config_zone
from duly.formatting import counted, printable, shortened

_LONGEST_VALUE = 60


@click.command("plan")
@click.argument("config", required=False, metavar="[CONFIG]")
@config_option
@socket_option
@json_option
def plan(*, config: str | None, config_path: str | None, socket_path: str | None) -> None:
    """Show what CONFIG would add, change and remove against what the daemon runs, or its store knows.

    Without CONFIG it is the daemon's own file, as it is now. It ends with 4 if an entry is invalid; such
    entries remove nothing: what they stood for stays as it is.

    \b
        duly plan && duly reload
        duly plan new.toml -c duly.toml
    """  # noqa: D301 (click's mark for lines to keep)
    daemon = DaemonProxy(config_path or config, socket_path)
    path = Path(config) if config is not None else daemon.config
    if path is None:
        raise CommandError("no_configuration", "which file? Give it: duly plan FILE")
    after = loaded_config(path, hint="There is no plan: a file that cannot be read removes nothing.")
    response = daemon.read("definitions")
    is_stored = daemon.is_down
    planned = changes(
        _known(response, after, is_stored=is_stored), _comparable(after, is_stored=is_stored), after.invalid
    )
    invalid = [dataclasses.asdict(bad) for bad in after.invalid]
    source = "store" if is_stored else "daemon"
    print_answer(
        {"source": source, **_as_dict(planned), "invalid": invalid},
        _lines(planned, invalid, after, is_stored=is_stored),
    )
    if after.invalid:
        raise click.exceptions.Exit(4)


# --- what is compared ---


def _known(response: Mapping[str, Any], after: Config, *, is_stored: bool) -> Defined:
    """What there is, from the daemon's answer or the store's."""
    described = {service.id: service.description for service in after.services}
    described |= {timer.id: timer.description for timer in after.timers}
    services = [_converted(entry, Service, described) for entry in response["services"]]
    timers = [_converted(entry, Timer, described) for entry in response["timers"]]
    if is_stored:
        services = [_with_names_only(service) for service in services]
    return Defined(services, timers)


def _converted(entry: Mapping[str, Any], kind: type[Any], described: Mapping[str, str]) -> Any:
    # A store does not keep descriptions; a text that nothing depends on is then no difference.
    given = {"description": described.get(entry["id"], ""), **entry}
    if isinstance(given.get("env"), list):
        given["env"] = dict.fromkeys(given["env"], "")
    names = {field.name for field in dataclasses.fields(kind)}
    try:
        return msgspec.convert({key: value for key, value in given.items() if key in names}, kind)
    except msgspec.ValidationError:
        return kind(entry["id"], ())  # of another version, or damaged: different in any case


def _comparable(after: Config, *, is_stored: bool) -> Defined:
    """The new entries in the form in which the old ones are known."""
    from duly.daemon.views import definition  # noqa: PLC0415 - after the file was found to be usable

    services = [dataclasses.replace(service, env=definition(service)["env"]) for service in after.services]
    if not is_stored:
        return Defined(services, after.timers)
    # A store keeps the zone in which a timer's slots were worked out, not whether it was given.
    zone = str(config_zone(after))
    timers = [dataclasses.replace(timer, timezone=timer.timezone or zone) for timer in after.timers]
    return Defined([_with_names_only(service) for service in services], timers)


def _with_names_only(service: Service) -> Service:
    """A store keeps the names in an environment, and not the values."""
    return dataclasses.replace(service, env=dict.fromkeys(service.env, ""))


# --- the answer ---


def _as_dict(planned: ConfigPlan) -> dict[str, Any]:
    def shown(entries: Sequence[PlannedEntry], **more: Callable[[PlannedEntry], Any]) -> list[dict[str, Any]]:
        made = more.items()
        return [{"kind": each.kind, "id": each.id} | {key: of(each) for key, of in made} for each in entries]

    def keys(changed: PlannedEntry) -> list[dict[str, Any]]:
        return [{"key": each.key, **_values(each.key, each.before, each.after)} for each in changed.keys]

    return {
        "added": shown(planned.added),
        "changed": shown(planned.changed, keys=keys),
        "removed": shown(planned.removed),
        "kept": shown(planned.kept, reason=lambda kept: kept.reason),
        "unchanged": shown(planned.unchanged),
    }


def _values(key: str, before: Any, after: Any) -> dict[str, Any]:
    """Old and new; of an environment only which names differ, since its values may be secret."""
    if key == "env":
        names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        return {"before": None, "after": None, "names": names}
    return {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}


def _lines(
    planned: ConfigPlan, invalid: list[dict[str, Any]], after: Config, *, is_stored: bool
) -> Iterator[str]:
    from duly.daemon.views import schedule_text  # noqa: PLC0415 - as above

    timers = {timer.id: timer for timer in after.timers}
    for each in planned.added:
        when = f": {schedule_text(timers[each.id])}" if each.kind == "timer" else ""
        yield click.style(f"+ {each.kind} {printable(each.id + when)}", fg="green")
    for changed in planned.changed:
        yield from _change_lines(changed)
    for each in planned.removed:
        yield click.style(f"- {each.kind} {printable(each.id)}", fg="red")
    for kept in planned.kept:
        yield click.style(
            f"= {kept.kind} {printable(kept.id)} is kept: {printable(kept.reason)}", fg="yellow"
        )
    yield _summary(planned)
    if is_stored and any(each.kind == "service" for each in planned.unchanged):
        yield click.style(
            "A store does not keep the values of an environment; a changed value is not seen.", dim=True
        )
    yield from invalid_lines(invalid, None)


def _change_lines(changed: PlannedEntry) -> Iterator[str]:
    yield click.style(f"~ {changed.kind} {printable(changed.id)}", fg="yellow")
    for change in changed.keys:
        values = _values(change.key, change.before, change.after)
        if change.key == "on_calendar":
            yield f"    {change.key}: {_calendars(change.before)} -> {_calendars(change.after)}"
        elif "names" in values:
            yield f"    {change.key}: {', '.join(map(printable, values['names']))} changed"
        else:
            yield f"    {change.key}: {_shown(values['before'])} -> {_shown(values['after'])}"


def _shown(value: Any) -> str:
    return shortened(printable(msgspec.json.encode(value).decode()), _LONGEST_VALUE)


def _calendars(calendars: Any) -> str:
    from duly.daemon.views import calendar_text  # noqa: PLC0415 - as above

    return "; ".join(map(calendar_text, calendars)) or "none"


def _summary(planned: ConfigPlan) -> str:
    if planned.is_empty:
        return f"Nothing would change ({counted(len(planned.unchanged), 'entry', 'entries')})."
    counts = ((planned.added, "to add"), (planned.changed, "to change"), (planned.removed, "to remove"))
    said = ", ".join(f"{len(entries)} {word}" for entries, word in counts)
    return f"{said}; {len(planned.unchanged) + len(planned.kept)} stay as they are."
