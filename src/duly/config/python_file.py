"""A configuration written in Python: executed in a module of its own, and left without a trace.

The file may import what lies beside it. Afterwards `sys.path` is as before, and what it imported from its own
directory is forgotten, so that a reload reads those modules anew. What it prints goes to stderr, since stdout
belongs to the command. Ctrl-C passes; every other end is one sentence, `os._exit` included.
"""

import contextlib
import importlib
import io
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from duly.config.errors import ConfigError, FileFault
from duly.config.lines import Places
from duly.config.python_lines import python_places
from duly.config.schema import Table, Warned
from duly.config.words import a_or_an, printable, shown

PYTHON_NAMES: Mapping[str, Table] = {
    "SERVICES": "service",
    "TIMERS": "timer",
    "SUPERVISOR": "supervisor",
    "DASHBOARD": "dashboard",
}
_MODULE = "duly_config"
_LONGEST_MESSAGE = 200
_ALMOST = {
    **dict.fromkeys(("SERVICE", "Services", "services", "service"), "SERVICES"),
    **dict.fromkeys(("TIMER", "Timers", "timers", "timer"), "TIMERS"),
    **dict.fromkeys(("Supervisor", "supervisor"), "SUPERVISOR"),
    **dict.fromkeys(("Dashboard", "dashboard"), "DASHBOARD"),
}
_SORTS: Mapping[str, tuple[type, ...]] = {
    "SERVICES": (list, tuple),
    "TIMERS": (list, tuple),
    "SUPERVISOR": (dict,),
    "DASHBOARD": (dict,),
}


@dataclass(frozen=True, slots=True)
class Executed:
    """What a Python file defines."""

    services: Sequence[object]
    timers: Sequence[object]
    supervisor: Mapping[Any, Any]
    dashboard: Mapping[Any, Any]
    warnings: tuple[Warned, ...]
    places: Places


def executed(path: Path, text: str) -> Executed:
    """Execute the file and take its lists. Raises ConfigError."""
    module = ModuleType(_MODULE)
    module.__file__ = str(path.absolute())
    printed = _Printed(module.__file__)
    try:
        code = compile(text, module.__file__, "exec", dont_inherit=True)
        with (
            _isolated(module, path.absolute().parent),
            contextlib.redirect_stdout(printed),
            _without_exit(),
        ):
            exec(code, module.__dict__)  # noqa: S102 - the file is a program, and its author runs it
    except BaseException as error:  # SystemExit and worse must not end the daemon that reloads
        is_ours = threading.current_thread() is threading.main_thread()  # nowhere else does Ctrl-C come
        if isinstance(error, KeyboardInterrupt) and is_ours:
            raise
        raise ConfigError(path, [_fault(error, module.__file__)]) from error
    return _taken(path, text, vars(module), printed)


@contextlib.contextmanager
def _isolated(module: ModuleType, directory: Path) -> Iterator[None]:
    before_path, before_modules = list(sys.path), set(sys.modules)
    before_writing = sys.dont_write_bytecode
    sys.path.insert(0, str(directory))
    sys.dont_write_bytecode = True
    # Dataclasses look up the module that they are defined in.
    sys.modules[_MODULE] = module
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before_path
        sys.dont_write_bytecode = before_writing
        for name in set(sys.modules) - before_modules:
            if name == _MODULE or _lies_in(sys.modules[name], directory):
                del sys.modules[name]


@contextlib.contextmanager
def _without_exit() -> Iterator[None]:
    """Have `os._exit` raise, in this thread of this process: nothing else would outlive it to say a word."""
    real_exit, us = os._exit, (os.getpid(), threading.get_ident())

    def refused(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) == us:
            raise SystemExit(status)
        real_exit(status)

    os._exit = refused
    try:
        yield
    finally:
        os._exit = real_exit


def _lies_in(module: ModuleType, directory: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).is_relative_to(directory)


class _Printed(io.TextIOBase):
    """A stdout that passes everything to stderr, and remembers which line of the file wrote first."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.line: int | None = None
        self.was_used = False

    def write(self, text: str) -> int:
        """Write to stderr instead."""
        if not self.was_used:
            self.was_used = True
            self.line = _line_in(self._file, sys._getframe())  # noqa: SLF001 - no other way to see who prints
        return sys.stderr.write(text)

    def writable(self) -> bool:
        """Yes."""
        return True


def _line_in(file: str, frame: FrameType | None) -> int | None:
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else None


def _fault(error: BaseException, file: str) -> FileFault:
    if isinstance(error, SyntaxError) and error.filename == file:
        return FileFault(f"is not Python: {error.msg}", error.lineno)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = own[-1].lineno if own else None
    if isinstance(error, SystemExit):
        return FileFault("calls exit; a configuration only defines SERVICES and TIMERS", line)
    return FileFault(f"raises {type(error).__name__}{_message(error)}", line)


def _message(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:
        return " (and its message cannot be read)"
    return f": {printable(said[:_LONGEST_MESSAGE])}" if said else ""


def _taken(path: Path, text: str, names: Mapping[str, Any], printed: _Printed) -> Executed:
    places = python_places(text, PYTHON_NAMES)
    faults = list(_shape_faults(names, places.top))
    if faults:
        raise ConfigError(path, faults)
    warning = Warned(
        "supervisor", None, 0, "the file prints while it is loaded; that goes to stderr", printed.line
    )
    return Executed(
        names.get("SERVICES", ()),
        names.get("TIMERS", ()),
        names.get("SUPERVISOR", {}),
        names.get("DASHBOARD", {}),
        (warning,) if printed.was_used else (),
        places,
    )


def _shape_faults(names: Mapping[str, Any], lines: Mapping[str, int]) -> Iterator[FileFault]:
    for wrong, right in _ALMOST.items():
        if wrong in names and right not in names and isinstance(names[wrong], _SORTS[right]):
            yield FileFault(f"defines {wrong}, which is not read; did you mean {right}?", lines.get(wrong))
            return
    if "SERVICES" not in names and "TIMERS" not in names:
        yield FileFault("defines neither SERVICES nor TIMERS")
    for name in ("SERVICES", "TIMERS"):
        if name in names and not isinstance(names[name], list | tuple):
            yield FileFault(f"{name} must be a list, not {_sort(names[name])}", lines.get(name))
    for name in ("SUPERVISOR", "DASHBOARD"):
        if not isinstance(names.get(name, {}), Mapping):
            yield FileFault(f"{name} must be a dict, not {_sort(names[name])}", lines.get(name))


def _sort(value: object) -> str:
    if isinstance(value, Iterator):
        return f"{a_or_an(type(value).__name__)}; write list(...) around it"
    return shown(value)
