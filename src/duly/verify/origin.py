"""Where a trace comes from: the header that a recorder writes, and what it can say of host, zone and data."""

import zoneinfo
from datetime import timedelta, tzinfo
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tzlocal

from duly.instant import milliseconds
from duly.verify.trace import VERSION, Header

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def header_for(zone: tzinfo, store: str, persist_window_us: int, *, is_durable: bool) -> Header:
    """The header of a trace that begins on this host. *is_durable*: not even a loss of power loses a line."""
    if store not in {"fresh", "unknown"}:
        raise ValueError(f'store must be "fresh" or "unknown", not {store!r}')
    return Header(
        v=VERSION,
        tz=zone_name(zone),
        store=store,
        persist_window_ms=milliseconds(persist_window_us),
        impl=f"duly {_version('duly')}",
        tzdata=tzdata_version(),
        boot="" if is_durable else _boot(),
    )


def zone_of_host() -> tzinfo:
    """The host's own zone."""
    return tzlocal.get_localzone()


def zone_name(zone: tzinfo) -> str:
    """The name under which a reader of the trace finds *zone* again."""
    name: Any = getattr(zone, "key", None) or _fixed_name(zone)
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ValueError(
            f"a trace needs a zone with a name, and {zone!r} has none; give the scheduler and the recorder "
            "timezone=ZoneInfo('Europe/Berlin') or another from that list"
        ) from error
    return str(name)


def _fixed_name(zone: tzinfo) -> str | None:
    """The name of a zone of whole hours that never changes, such as datetime.UTC."""
    if type(zone).__module__ != "datetime":
        return None
    hours, rest = divmod(zone.utcoffset(None) or timedelta(0), timedelta(hours=1))
    if rest:
        return None
    return f"Etc/GMT{-hours:+d}" if hours else "UTC"  # POSIX counts westwards


def tzdata_version() -> str:
    """The version of the time zone data that this process uses, such as "2026a"; "" if it does not say."""
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "Europe/Berlin").exists():
            return _version_in(folder)
    return _tzdata_package()


def _version_in(folder: Path) -> str:
    for name in ("tzdata.zi", "+VERSION"):
        if (folder / name).exists():
            return (
                (folder / name)
                .read_text(errors="replace")
                .split("\n", 1)[0]
                .removeprefix("# version ")
                .strip()
            )
    return ""


def _tzdata_package() -> str:
    # Only where the system has no data of its own; it comes without types.
    return str(import_module("tzdata").IANA_VERSION)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _boot() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
