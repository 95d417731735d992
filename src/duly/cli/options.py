"""Options that several commands share, and what they mean: a configuration, a store, a time zone, a time.

Each function returns what a text means, or raises a CommandError that says what to write instead.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import click

from duly.cli.output import CommandError
from duly.formatting import close_names, close_zones, shortened, suggestion
from duly.places import PlaceError, StoreKind, kind_of

if TYPE_CHECKING:
    from duly.config.schema import Config

DEFAULTS = ("duly.toml", "duly.py")
NO_DEFAULT = "there is neither duly.toml nor duly.py here"
RUN_NUMBER = click.IntRange(1, 2**63 - 1)
"""The number of a run, as large as a store can keep."""
_LONGEST_SHOWN = 40

config_option = click.option(
    "-c",
    "--config",
    "config_path",
    metavar="FILE",
    envvar="DULY_CONFIG",
    help="The daemon's configuration [env: DULY_CONFIG; default: ./duly.toml, ./duly.py].",
)


# --- configurations ---


def default_config() -> Path | None:
    return next((Path(name) for name in DEFAULTS if Path(name).is_file()), None)


def config_file(given: str | None, command: str) -> Path:
    """The file that was given to `duly` *command*, or the default one."""
    path = Path(given) if given is not None else default_config()
    if path is None:
        raise CommandError("no_configuration", f"{NO_DEFAULT}; give a file: duly {command} FILE")
    return path


def loaded_config(path: Path, *, hint: str = "") -> "Config":
    """The configuration in a file that can be used at least in part."""
    from duly.config.loading import load  # noqa: PLC0415
    from duly.config.schema import ConfigError  # noqa: PLC0415 - many commands need no file

    try:
        return load(path)
    except ConfigError as error:
        raise CommandError("invalid_configuration", error.message, exit_code=4, hint=hint) from error


def unknown_timer(
    timer_id: str, known: Iterable[str], invalid: Iterable[tuple[str | None, str]], where: str = ""
) -> CommandError:
    """The error for a timer that is not among *known*: it is *invalid* (ids and reasons), or unknown."""
    for bad_id, reason in invalid:
        if bad_id == timer_id:
            message = f"timer {timer_id} is invalid: {reason}"
            return CommandError("invalid_configuration", message, exit_code=4, facts={"id": timer_id})
    close = close_names(timer_id, list(known))
    return CommandError(
        "not_found",
        f"there is no timer {timer_id[:200]}{where}",
        exit_code=3,
        hint=suggestion(close),
        facts={"id": timer_id, "close": close},
    )


# --- stores ---


def store_file(text: str) -> Path:
    """The SQLite file that a command is to read. What is no path is not repeated: it may hold a password."""
    try:
        if kind_of(text) is not StoreKind.DATABASE:
            return Path(text)
        reason = "this reads SQLite files, not databases; `duly cluster` shows a cluster in PostgreSQL"
    except PlaceError as error:
        reason = error.reason
    raise CommandError("no_file", reason)


# --- zones and times ---


def zone_called(name: str | None) -> tzinfo:
    """The zone of this name, or the host's own."""
    import tzlocal  # noqa: PLC0415 - not every command needs a zone

    try:
        return ZoneInfo(name) if name is not None else tzlocal.get_localzone()
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: "Europe" is a folder
        facts: dict[str, Any] = {"timezone": name, "close": []}
        if name is None:
            message = "this host does not say its time zone; give one with --tz, such as --tz Europe/Berlin"
            raise CommandError("unknown_timezone", message, facts=facts) from error
        facts["close"] = close_zones(name, available_timezones())
        raise CommandError(
            "unknown_timezone",
            f'there is no time zone "{shortened(name, _LONGEST_SHOWN)}"',
            hint=suggestion(facts["close"]),
            facts=facts,
        ) from error


def moment_of(text: str, zone: tzinfo | None = None) -> datetime:
    """The time that an ISO text names. Without an offset it is meant as the clocks of *zone* show it."""
    try:
        moment = datetime.fromisoformat(text.strip())
        if zone is None:
            return moment
        moment = moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)
        # By way of UTC: a time that the clocks skip becomes one that they show. On the first and the last day
        # that datetime knows, some zones have no UTC.
        return moment.astimezone(UTC).astimezone(zone)
    except (ValueError, OverflowError) as error:
        raise refused_time(text) from error


def refused_time(text: str) -> CommandError:
    """The error for a text that is no time, or one too far away."""
    said = shortened(text, _LONGEST_SHOWN)
    message = f'"{said}" is not a time; write it like 2026-03-29T01:30 or 2026-03-29T01:30+01:00'
    return CommandError("invalid_time", message, facts={"time": text})
