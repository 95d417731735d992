"""What a configuration needs of this host: programs that can be started, directories that exist.

Asked by `duly check` only, and answered with warnings: the host that checks a file need not be the one that
runs it, and what is missing now may be there tomorrow. At run time it is a `spawn-error`.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from duly.config.schema import Service
from duly.config.words import quoted


def missing_on_host(service: Service, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a service would miss if it were started now: the key, and why.

    *environ* is the environment of the daemon that would start it.
    """
    if service.cwd is not None and (fault := _directory_fault(service.cwd)) is not None:
        yield "cwd", f"cwd {quoted(service.cwd)} {fault}"
        if "/" in service.command[0] and not service.command[0].startswith("/"):
            return  # there is no telling what the command would be
    if (fault := _command_fault(service, environ)) is not None:
        yield "command", fault


def _directory_fault(cwd: str) -> str | None:
    try:
        if not Path(cwd).exists():
            return "does not exist"
        return None if Path(cwd).is_dir() else "is not a directory"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"


def _command_fault(service: Service, environ: Mapping[str, str]) -> str | None:
    program = service.command[0]
    said = f"command {quoted(program)}"
    if "/" in program:
        fault = _program_fault(Path(service.cwd or ".", program))
        return None if fault is None else f"{said} {fault}"
    search = {**environ, **service.env}.get("PATH", os.defpath)
    faults = [_program_fault(Path(folder or ".", program)) for folder in search.split(os.pathsep)]
    if None in faults:
        return None
    found = next((fault for fault in faults if fault != "does not exist"), None)
    return f"{said} {found}" if found else f"{said} is not in PATH ({_short(search)})"


def _short(search: str) -> str:
    return search if len(search) <= 100 else f"{search[:99]}…"


def _program_fault(path: Path) -> str | None:
    try:
        if not path.exists():
            return "does not exist"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if path.is_dir():
        return "is a directory"
    return None if os.access(path, os.X_OK) else f"is not executable; chmod +x {path} makes it so"
