"""`duly plan`: what a changed file would add, change and remove, before anything is done.

It is compared with what the daemon runs; without a daemon, with what its store knows. Nothing is removed
because of a mistake: with a file that cannot be read there is no plan, and what an invalid entry stood for is
kept, and said.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from duly.cli.finding import Failure, daemon_options, place_of
from duly.cli.refusals import printable
from duly.cli.talking import Talk
from duly.cli.timers import invalid_lines
from duly.cli.words import counted
from duly.config.errors import ConfigError
from duly.config.loading import load
from duly.config.plan import Changed, Defined, Plan, changes
from duly.config.schema import Config, Service, Timer

_LONGEST_VALUE = 60


@click.command("plan")
@click.argument("config", required=False, metavar="[CONFIG]")
@daemon_options
def plan(*, config: str | None, config_path: str | None, socket_path: str | None, as_json: bool) -> None:
    """Show what CONFIG would add, change and remove against what the daemon runs, or its store knows.

    Without CONFIG it is the daemon's own file, as it is now. It ends with 4 if an entry is invalid; such
    entries remove nothing: what they stood for stays as it is.

    \b
        duly plan && duly reload
        duly plan new.toml -c duly.toml
    """  # noqa: D301 (click's mark for lines to keep)
    place = place_of(config_path or config, socket_path, as_json=as_json)
    after = _loaded(Path(config) if config is not None else place.config, as_json=as_json)
    talk = Talk(place, as_json=as_json)
    told = talk.read("definitions")
    known = _known(told, after, is_stored=talk.is_down)
    planned = changes(known, _comparable(after, is_stored=talk.is_down), after.invalid)
    if as_json:
        source = "store" if talk.is_down else "daemon"
        talk.print_json({"source": source, **_as_dict(planned), "invalid": _invalid(after)})
    else:
        for line in _lines(planned, _invalid(after), is_stored=talk.is_down):
            click.echo(line)
    if after.invalid:
        raise click.exceptions.Exit(4)


def _loaded(path: Path | None, *, as_json: bool) -> Config:
    if path is None:
        message = "which file? Give it: duly plan FILE"
        raise Failure("no_configuration", message, exit_code=2, as_json=as_json)
    try:
        return load(path)
    except ConfigError as error:
        hint = "There is no plan: a file that cannot be read removes nothing."
        raise Failure(
            "invalid_configuration", error.message, exit_code=4, as_json=as_json, hint=hint
        ) from error


# --- what is compared ---


def _known(told: Mapping[str, Any], after: Config, *, is_stored: bool) -> Defined:
    """What there is, from the daemon's answer or the store's."""
    described = {service.id: service.description for service in after.services}
    described |= {timer.id: timer.description for timer in after.timers}
    services = [_converted(entry, Service, described) for entry in told["services"]]
    timers = [_converted(entry, Timer, described) for entry in told["timers"]]
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
    from duly.cli.offline import zone_of  # noqa: PLC0415 - a database driver, only without a daemon

    # A store keeps the zone in which a timer's slots were worked out, not whether it was given.
    zone = str(zone_of(after))
    timers = [dataclasses.replace(timer, timezone=timer.timezone or zone) for timer in after.timers]
    return Defined([_with_names_only(service) for service in services], timers)


def _with_names_only(service: Service) -> Service:
    """A store keeps the names in an environment, and not the values."""
    return dataclasses.replace(service, env=dict.fromkeys(service.env, ""))


# --- the answer ---


def _invalid(after: Config) -> list[dict[str, Any]]:
    return [dataclasses.asdict(bad) for bad in after.invalid]


def _as_dict(planned: Plan) -> dict[str, Any]:
    return {
        "added": [{"kind": each.kind, "id": each.id} for each in planned.added],
        "changed": [
            {
                "kind": each.kind,
                "id": each.id,
                "keys": [
                    {"key": change.key, **_values(change.key, change.before, change.after)}
                    for change in each.keys
                ],
            }
            for each in planned.changed
        ],
        "removed": [{"kind": each.kind, "id": each.id} for each in planned.removed],
        "kept": [{"kind": each.kind, "id": each.id, "reason": each.reason} for each in planned.kept],
        "unchanged": [{"kind": each.kind, "id": each.id} for each in planned.unchanged],
    }


def _values(key: str, before: Any, after: Any) -> dict[str, Any]:
    """Old and new; of an environment only which names differ, since its values may be secret."""
    if key == "env":
        names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        return {"before": None, "after": None, "names": names}
    return {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}


def _lines(planned: Plan, invalid: list[dict[str, Any]], *, is_stored: bool) -> Iterator[str]:
    for each in planned.added:
        yield click.style(f"+ {each.kind} {printable(each.id)}", fg="green")
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


def _change_lines(changed: Changed) -> Iterator[str]:
    yield click.style(f"~ {changed.kind} {printable(changed.id)}", fg="yellow")
    for change in changed.keys:
        values = _values(change.key, change.before, change.after)
        if "names" in values:
            yield f"    {change.key}: {', '.join(map(printable, values['names']))} changed"
        else:
            yield f"    {change.key}: {_shown(values['before'])} -> {_shown(values['after'])}"


def _shown(value: Any) -> str:
    text = printable(msgspec.json.encode(_without_nothing(value)).decode())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _without_nothing(value: Any) -> Any:
    """The value without the fields of calendars that were left out: what differs has to fit into the line."""
    if isinstance(value, list | tuple):
        return [_without_nothing(each) for each in value]
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if each is not None}
    return value


def _summary(planned: Plan) -> str:
    if planned.is_empty:
        return f"Nothing would change ({counted(len(planned.unchanged), 'entry', 'entries')})."
    counts = ((planned.added, "to add"), (planned.changed, "to change"), (planned.removed, "to remove"))
    said = ", ".join(f"{len(entries)} {word}" for entries, word in counts)
    return f"{said}; {len(planned.unchanged) + len(planned.kept)} stay as they are."
