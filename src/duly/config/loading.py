"""A configuration file, read, checked, and answered with line numbers.

The suffix says which form it has. The file as a whole is refused (`ConfigError`) only when there is no
telling what its author wanted: it cannot be read, or a table has a name that means nothing, which may have
been all the services there are. Everything smaller is an `Invalid` of the `Config`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from duly.config.assembly import Look, config_of
from duly.config.errors import ConfigError, FileFault
from duly.config.exposure import exposed_secret
from duly.config.lines import LongKeyError, Places, line_finder, toml_places
from duly.config.reading import content_of, decoded
from duly.config.schema import Config, Warned
from duly.config.words import did_you_mean, limited_comparisons, quoted, shown

_MISSING = "does not exist; `duly init` writes a file to begin with"
_TOML_NAMES = ("supervisor", "dashboard", "service", "timer")
_TOML_ALIASES = {
    **dict.fromkeys(("daemon", "duly", "settings", "config", "global"), "supervisor"),
    **dict.fromkeys(("web", "http", "pages", "ui"), "dashboard"),
    **dict.fromkeys(("program", "programs", "job", "jobs", "task", "tasks", "unit"), "service"),
    **dict.fromkeys(("cron", "schedule", "schedules"), "timer"),
}
_TOML_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def load(path: str | Path, look: Look | None = None) -> Config:
    """The configuration in a file. Raises ConfigError if nothing of it can be used.

    *look* says what else is worth a warning about a service: `duly check` asks the host.
    """
    path = Path(path)
    content = content_of(path, _MISSING)
    config = load_content(path, content, look)
    if not (exposed := exposed_secret(config, decoded(path, content))):
        return config
    warned = Warned("supervisor", None, 0, exposed, None)
    return replace(config, exposed=exposed, warnings=(*config.warnings, warned))


@limited_comparisons()
def load_content(path: Path, content: bytes, look: Look | None = None) -> Config:
    """The configuration that a file with this path and content would have. Raises ConfigError."""
    text = decoded(path, content)
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise ConfigError(path, [FileFault("has to end in .toml or .py, to say which of the two it is")])
    return form(path, text, look)


def load_to_run(path: str | Path) -> Config:
    """The configuration in a file, to run by. Raises ConfigError also for settings that cannot be used.

    Entries that are invalid harm nobody else. But a store whose path was mistyped is not the default store:
    to run on another one would forget everything.
    """
    config = load(path)
    faults = [FileFault(bad.reason, bad.line) for bad in config.invalid if bad.kind == "supervisor"]
    if faults:
        raise ConfigError(config.path, faults)
    return config


# --- TOML ---


def _load_toml(path: Path, text: str, look: Look | None) -> Config:
    document, places = toml_document(path, text)
    if faults := _shape_faults(document, places):
        raise ConfigError(path, faults)
    services, timers = document.get("service", []), document.get("timer", [])
    counts = {"service": len(services), "timer": len(timers), "supervisor": 1, "dashboard": 1}
    return config_of(
        path,
        services,
        timers,
        document.get("supervisor", {}),
        dashboard=document.get("dashboard", {}),
        line_of=line_finder(places, counts),
        look=look,
    )


def toml_document(path: Path, text: str) -> tuple[dict[str, Any], Places]:
    """What a TOML text holds, and where. Raises ConfigError."""
    import tomllib  # noqa: PLC0415 - a Python file does not need it

    try:
        places = toml_places(text)  # first, since it refuses what tomllib takes hours for
        return tomllib.loads(text), places
    except LongKeyError as error:
        raise ConfigError(path, [FileFault(str(error), error.line)]) from error
    except RecursionError as error:
        raise ConfigError(path, [FileFault("is nested too deeply")]) from error
    except ValueError as error:  # a TOMLDecodeError, or an integer of thousands of digits
        raise ConfigError(path, [_syntax_fault(str(error), text)]) from error


def _syntax_fault(said: str, text: str) -> FileFault:
    found = _TOML_PLACE.fullmatch(said)
    if found is None:
        return FileFault(f"is not TOML: {said[:200]}")
    reason, line, column = found.groups()
    said = reason[0].lower() + reason[1:]
    if line is None:
        return FileFault(f"is not TOML: {said} at its end", text.count("\n") + 1)
    return FileFault(f"is not TOML: {said} (column {column})", int(line))


def _shape_faults(document: Mapping[str, Any], places: Places) -> list[FileFault]:
    faults = [_shape_fault(name, value) for name, value in document.items()]
    lines = [places.top.get(name) for name in document]
    return [FileFault(fault, line) for fault, line in zip(faults, lines, strict=True) if fault is not None]


def _shape_fault(name: str, value: object) -> str | None:
    if name not in _TOML_NAMES:
        what = "table" if isinstance(value, dict | list) else "key"
        return f"unknown {what} {quoted(name)}{did_you_mean(name, _TOML_NAMES, _TOML_ALIASES)}"
    if name in {"supervisor", "dashboard"}:
        return None if isinstance(value, dict) else f"{name} must be a table, not {shown(value)}"
    if isinstance(value, dict):
        return f"write [[{name}]] with two brackets: there can be several"
    return None if isinstance(value, list) else f"{name} must be an array of tables, not {shown(value)}"


# --- Python ---


def _load_python(path: Path, text: str, look: Look | None) -> Config:
    from duly.config.python_file import executed  # noqa: PLC0415 - a TOML file does not need it

    result = executed(path, text)
    counts = {"service": len(result.services), "timer": len(result.timers), "supervisor": 1, "dashboard": 1}
    return config_of(
        path,
        result.services,
        result.timers,
        result.supervisor,
        dashboard=result.dashboard,
        line_of=line_finder(result.places, counts),
        warnings=result.warnings,
        look=look,
    )


_FORMS: Mapping[str, Callable[[Path, str, Look | None], Config]] = {".toml": _load_toml, ".py": _load_python}
