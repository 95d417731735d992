"""A configuration file: read, checked, related, with warnings and line numbers.

The suffix says which form it has. The file as a whole is refused (`ConfigError`) only when there is no
telling what its author wanted: it cannot be read, or a table has a name that means nothing, which may have
been all the services there are. Everything smaller is an `Invalid` of the `Config`.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from glob import escape, glob
from pathlib import Path
from types import MappingProxyType
from typing import Any

from duly.config.checking import (
    SETTING_KEYS,
    Checked,
    checked_dashboard,
    checked_notify,
    checked_services,
    checked_settings,
    checked_timers,
    id_in,
    related_services,
    related_timers,
)
from duly.config.excluding import files_in
from duly.config.jobs import checked_defaults, joined_parts, split_jobs
from duly.config.lines import Document, LongKeyError, Places, TableLines, Written, toml_places
from duly.config.schema import (
    Config,
    ConfigError,
    Dashboard,
    EntryFault,
    EntryTable,
    FileFault,
    Invalid,
    Service,
    Settings,
    Table,
    Warned,
)
from duly.config.values import ListenAddress, address
from duly.config.warnings import exposed_secret, footguns, of_settings
from duly.formatting import did_you_mean, limited_comparisons, quoted, value_text

_CRONTABS = "`duly crond` runs a crontab, `duly import crontab` translates one"
_MISSING = "does not exist; `duly init` writes a file to begin with"
_TOML_NAMES = ("supervisor", "dashboard", "defaults", "job", "service", "timer", "notify")
_ENTRIES = ("service", "timer", "job")
"""The tables that an included file may have."""
_TOML_ALIASES = {
    **dict.fromkeys(("daemon", "duly", "settings", "config", "global"), "supervisor"),
    **dict.fromkeys(("web", "http", "pages", "ui"), "dashboard"),
    **dict.fromkeys(("program", "programs", "unit"), "service"),
    **dict.fromkeys(("jobs", "task", "tasks", "cron", "schedule", "schedules"), "job"),
    **dict.fromkeys(("default", "common", "shared"), "defaults"),
    **dict.fromkeys(("notification", "notifications", "alert", "alerts"), "notify"),
}
LookAtService = Callable[[Service], Iterable[tuple[str, str]]]
"""What else is worth a warning about a service: keys and reasons."""
_NOTHING: Mapping[str, object] = MappingProxyType({})
_BARE_TEXT = re.compile(r"[ \t]*([A-Za-z_]{1,40})[ \t]*=[ \t]*([A-Za-z0-9@*~/][^\"'#=\[\]{}\\]{0,80}?)\s*")
"""A line such as `every = 5m`."""
_TOML_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def load(path: str | Path, look: LookAtService | None = None) -> Config:
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
def load_content(path: Path, content: bytes, look: LookAtService | None = None) -> Config:
    """The configuration that a file with this path and content would have. Raises ConfigError."""
    text = decoded(path, content)
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise ConfigError(
            path, [FileFault(f"has to end in .toml or .py, to say which of the two it is; {_CRONTABS}")]
        )
    document = _with_included(path, form(path, text))
    return config_of(path, **document._asdict(), look=look)


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


# --- entries become a configuration; pure ---


def config_of(
    path: Path,
    services: Sequence[object] = (),
    timers: Sequence[object] = (),
    supervisor: object = _NOTHING,
    *,
    jobs: Sequence[object] = (),
    defaults: object = _NOTHING,
    dashboard: object = _NOTHING,
    notify: Sequence[object] = (),
    places: Places | None = None,
    warnings: Sequence[Warned] = (),
    look: LookAtService | None = None,
) -> Config:
    """The configuration that these entries make. Never raises, whatever they are."""
    known = places or Places()

    def written(table: EntryTable, entries: Sequence[object]) -> list[Written]:
        stands = known.of(table, len(entries))
        return [Written(table, index, *each) for index, each in enumerate(zip(entries, stands, strict=True))]

    def line_of(table: Table, key: str | None) -> int | None:
        return known.of(table, 1)[0].line_of(key)

    folder = path.absolute().parent
    given, setting_faults = checked_settings(supervisor)
    settings = Settings(**given)
    pages, dashboard_faults = checked_dashboard(dashboard)
    shared, default_faults = checked_defaults(defaults, folder)
    of_jobs = split_jobs(written("job", jobs), shared)
    all_services, all_timers = (
        [*written("service", services), *of_jobs[0]],
        [*written("timer", timers), *of_jobs[1]],
    )
    parts = joined_parts(checked_services(all_services), checked_timers(all_timers, folder), len(jobs))
    some_services = [_placed(each, path) for each in related_services(parts[0])]
    some_timers = related_timers(parts[1], some_services)
    some_notify = checked_notify(written("notify", notify))
    has_timers = bool(all_timers)
    surprises = of_settings(settings, has_timers=has_timers, is_empty=not (all_services or has_timers))
    warned = [
        *warnings,
        *(Warned("supervisor", None, 0, reason, line_of("supervisor", key)) for key, reason in surprises),
        *footguns(some_services, some_timers, some_notify),
    ]
    if look is not None:
        looked = [(each, each.entry) for each in some_services if each.entry is not None]
        called = [(each, each.entry) for each in some_notify if each.entry is not None and each.entry.command]
        warned += [each.found(Warned, reason, key) for each, entry in looked for key, reason in look(entry)]
        warned += [
            each.found(Warned, reason, key)
            for each, entry in called
            for key, reason in look(Service(entry.id, entry.command))
        ]
    # What is wrong with the dashboard is wrong with the settings of the supervisor.
    of_tables: tuple[tuple[Table, list[EntryFault]], ...] = (
        ("supervisor", setting_faults),
        ("dashboard", dashboard_faults),
        ("defaults", default_faults),
    )
    targets = (id_in(each.value, "target") for each in all_timers)
    wrong_settings = tuple(
        Invalid("supervisor", None, 0, fault.reason, line_of(table, fault.key))
        for table, faults in of_tables
        for fault in faults
    )
    # A fault of a job is reported for its service.
    checked: tuple[Checked[Any], ...] = (*some_services, *some_timers[: len(timers)], *some_notify)
    wrong = [each.found(Invalid, fault.reason, fault.key) for each in checked for fault in each.faults]
    firsts = {(each.kind, each.index): each for each in reversed(wrong)}
    return Config(
        path=path,
        settings=settings,
        services=tuple(each.entry for each in some_services if each.entry is not None),
        timers=tuple(each.entry for each in some_timers if each.entry is not None),
        invalid=(*wrong_settings, *reversed(firsts.values())),
        faults=(*wrong_settings, *wrong),
        warnings=tuple(warned),
        dashboard=_dashboard_placed(Dashboard(**pages), path),
        notify=tuple(each.entry for each in some_notify if each.entry is not None),
        is_listen_given="listen" in pages,
        targets=frozenset(target for target in targets if target is not None),
        files=_calendar_files([*(each.value for each in all_timers), defaults], folder),
    )


def _calendar_files(entries: Sequence[object], folder: Path) -> tuple[Path, ...]:
    """The files that entries name in `exclude`."""
    named: dict[Path, None] = {}
    for entry in entries:
        given = entry.get("exclude") if isinstance(entry, Mapping) else getattr(entry, "exclude", None)
        named |= dict.fromkeys(files_in(given, folder))
    return tuple(named)


def _placed(checked: Checked[Service], path: Path) -> Checked[Service]:
    """Paths are meant as seen from the file."""
    service = checked.entry
    if service is None or service.cwd is service.env_file is None:
        return checked
    folder, cwd, env_file = path.absolute().parent, service.cwd, service.env_file
    if env_file is not None:
        dash = "-" if env_file.startswith("-") else ""
        env_file = f"{dash}{folder / env_file.removeprefix('-')}"
    cwd = None if cwd is None else str(folder / cwd)
    return replace(checked, draft=replace(service, cwd=cwd, env_file=env_file))


def _dashboard_placed(dashboard: Dashboard, path: Path) -> Dashboard:
    """Its paths are meant as seen from the file, too."""
    folder = path.absolute().parent
    listen = address(dashboard.listen)
    tokens = (dashboard.token_file, dashboard.viewer_token_file)
    token_file, viewer_token_file = (None if each is None else str(folder / each) for each in tokens)
    if listen.path is not None:
        listen = ListenAddress(path=str(folder / listen.path))
    return replace(dashboard, listen=str(listen), token_file=token_file, viewer_token_file=viewer_token_file)


# --- TOML ---


def _toml_document(path: Path, text: str) -> Document:
    tables, places = toml_tables(path, text)
    if faults := _shape_faults(tables, places):
        raise ConfigError(path, faults)
    return Document.of(places, tables)


def toml_tables(path: Path, text: str) -> tuple[dict[Any, Any], Places]:
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
    if bare := _BARE_TEXT.fullmatch(text.split("\n")[int(line) - 1]):
        is_word = bare[2].lower() in {"true", "false"}
        meant = f"write {bare[1]} = {bare[2].lower()}" if is_word else f'write {bare[1]} = "{bare[2]}"'
        return FileFault(f"is not TOML: {said}; {meant}", int(line))
    return FileFault(f"is not TOML: {said} (column {column})", int(line))


def _shape_faults(document: Mapping[str, Any], places: Places) -> list[FileFault]:
    faults = [(_shape_fault(name, value), places.top.get(name)) for name, value in document.items()]
    return [FileFault(fault, line) for fault, line in faults if fault is not None]


def _shape_fault(name: str, value: object) -> str | None:
    if name in SETTING_KEYS and not isinstance(value, dict | list):
        return f"{name} is a setting: write it under [supervisor]"
    if name not in _TOML_NAMES:
        what = "table" if isinstance(value, dict | list) else "key"
        return f"unknown {what} {quoted(name)}{did_you_mean(name, _TOML_NAMES, _TOML_ALIASES)}"
    if name in {"supervisor", "dashboard", "defaults"}:
        return None if isinstance(value, dict) else f"{name} must be a table, not {value_text(value)}"
    if isinstance(value, dict):
        return f"write [[{name}]] with two brackets: there can be several"
    return None if isinstance(value, list) else f"{name} must be an array of tables, not {value_text(value)}"


# --- included files ---


def included_files(settings: Settings, path: Path) -> list[Path]:
    """The files that a configuration includes, each once, in the order in which they count."""
    found = {each: None for files in _matches(settings, path).values() for each in files}
    return [each for each in found if each != path.absolute()]


def _matches(settings: Settings, path: Path) -> dict[str, list[Path]]:
    """The files that each pattern stands for."""
    folder = escape(str(path.absolute().parent))
    # A pattern that begins at the root takes the place of the folder.
    patterns = {each: os.path.join(folder, each) for each in settings.include}  # noqa: PTH118
    return {
        each: [Path(os.path.normpath(file)) for file in sorted(glob(pattern, recursive=True))]  # noqa: PTH207
        for each, pattern in patterns.items()
    }


def _with_included(path: Path, document: Document) -> Document:
    """The document with the entries of the files that it includes. A bad file is an invalid job."""
    settings, _ = checked_settings(document.supervisor)
    folder = path.absolute().parent
    included = Settings(include=settings.get("include", ()))
    found = _matches(included, path).items()
    reasons = [f"include {quoted(pattern)} matches no file" for pattern, files in found if not files]
    is_toml = path.suffix.lower() == ".toml"
    if "include" not in settings and is_toml and any((folder / _CUSTOMARY).glob("*.toml")):
        reads = f'include = "{_CUSTOMARY}/*.toml" reads them'
        reasons = [f"{_CUSTOMARY} holds files that are not read; {reads}"]
    line = document.places.of("supervisor", 1)[0].line_of("include")
    warned = (Warned("supervisor", None, 0, reason, line) for reason in reasons)
    document = document._replace(warnings=(*document.warnings, *warned))
    for file in included_files(included, path):
        shown = file.relative_to(folder) if file.is_relative_to(folder) else file
        document = _including(document, file, str(shown))
    return document


def _including(document: Document, file: Path, shown: str) -> Document:
    try:
        tables, places = toml_tables(file, text_of(file))
        for name in tables:
            if name not in _ENTRIES:
                reason = f"{quoted(name)} cannot stand in an included file; only job, service and timer can"
                raise ConfigError(file, [FileFault(reason, places.top.get(name))])  # noqa: TRY301
        if faults := _shape_faults(tables, places):
            raise ConfigError(file, faults)  # noqa: TRY301
    except ConfigError as error:
        remedy = f'; include = "{shown}/*.toml" reads what is in it' if file.is_dir() else ""
        tables = {"job": [EntryFault(f"{error.reason}{remedy}")]}
        places = Places({"job": [TableLines(error.line)]})
    own: dict[Table, Sequence[object]]
    own = {"service": document.services, "timer": document.timers, "job": document.jobs}
    both = {table: [*entries, *tables.get(table, [])] for table, entries in own.items()}
    for table, entries in own.items():
        theirs = places.of(table, len(both[table]) - len(entries))
        mine = document.places.of(table, len(entries))
        document.places.tables[table] = [*mine, *(replace(each, file=shown) for each in theirs)]
    return document._replace(services=both["service"], timers=both["timer"], jobs=both["job"])


def _python_document(path: Path, text: str) -> Document:
    from duly.config.python_file import python_document  # noqa: PLC0415 - a TOML file does not need it

    return python_document(path, text)


_FORMS: Mapping[str, Callable[[Path, str], Document]] = {".toml": _toml_document, ".py": _python_document}


# --- the text of a file ---
#
# A path can be anything: a directory, a pipe that nobody writes to, a device. None of them may block or
# fill the memory, so the path is checked before it is opened, and the open file once more.


_CUSTOMARY = "conf.d"
MOST_BYTES = 4 * 1024 * 1024
_SORTS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
}


def text_of(path: Path) -> str:
    """The text of a file. Raises ConfigError."""
    return decoded(path, content_of(path))


def content_of(path: Path, if_missing: str = "does not exist") -> bytes:
    """What is in an ordinary file, or the beginning of it if that is too much. Raises ConfigError."""
    try:
        _regular(path, os.stat(path).st_mode)  # noqa: PTH116 - Path.stat hides nothing either way
        # Without blocking: between the two questions the file may have become a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            _regular(path, os.fstat(file.fileno()).st_mode)
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise _unusable(path, if_missing) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise _unusable(path, f"cannot be read: {reason.lower()}") from error


def _regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise _unusable(path, _SORTS.get(stat.S_IFMT(mode), "is not an ordinary file"))


def decoded(path: Path, content: bytes) -> str:
    """The text that *content* is. Raises ConfigError if it is none, or too much."""
    if len(content) > MOST_BYTES:
        raise _unusable(path, "is larger than 4 MiB, which no such file is; is it the right one?")
    if b"\0" in content:
        raise _unusable(path, "is binary, not text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(path, [FileFault("is not UTF-8 text", line)]) from error


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(path, [FileFault(reason)])
