"""A configuration written in Python: executed in a module of its own, and left without a trace.

The file may import what lies beside it. Afterwards `sys.path` is as before, and what it imported from its own
directory is forgotten, so that a reload reads them again. What it prints goes to stderr, since stdout
belongs to the command. Ctrl-C passes; every other end is one sentence, `os._exit` included.
"""

import ast
import contextlib
import importlib
import io
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from duly.config.lines import Document, Places, TableLines
from duly.config.schema import ConfigError, FileFault, Table, Warned
from duly.formatting import a_or_an, printable, value_text

PYTHON_NAMES: Mapping[str, Table] = {
    "SERVICES": "service",
    "TIMERS": "timer",
    "JOBS": "job",
    "NOTIFY": "notify",
    "SUPERVISOR": "supervisor",
    "DASHBOARD": "dashboard",
    "DEFAULTS": "defaults",
}
_MODULE = "duly_config"
_LONGEST_MESSAGE = 200
_TABLES = frozenset(["SUPERVISOR", "DASHBOARD", "DEFAULTS"])
_ALMOST = {
    word: name
    for name in PYTHON_NAMES
    for plural in (name, name.removesuffix("S"), f"{name}S")
    for word in (plural, plural.title(), plural.lower())
    if word != name
}


def _sort_of(name: str) -> tuple[type, ...]:
    return (dict, Mapping) if name in _TABLES else (list, tuple)


def python_document(path: Path, text: str) -> Document:
    """Execute the file and take its lists. Raises ConfigError."""
    module = ModuleType(_MODULE)
    module.__file__ = str(path.absolute())
    printed = _Printed(module.__file__)
    try:
        code = compile(text, module.__file__, "exec", dont_inherit=True)
        with _isolated(module, path.absolute().parent), contextlib.redirect_stdout(printed), _without_exit():
            exec(code, module.__dict__)  # noqa: S102 - the file is a program, and its author runs it
    except BaseException as error:  # SystemExit and worse must not end the daemon that reloads
        is_ours = threading.current_thread() is threading.main_thread()  # nowhere else does Ctrl-C come
        if isinstance(error, KeyboardInterrupt) and is_ours:
            raise
        raise ConfigError(path, [_fault(error, module.__file__)]) from error
    return _document(path, text, vars(module), printed)


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
        if not self.was_used:
            self.was_used = True
            self.line = _line_in(self._file, sys._getframe())  # noqa: SLF001 - no other way to see who prints
        return sys.stderr.write(text)

    def writable(self) -> bool:
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
        return FileFault("calls exit; a configuration only defines JOBS, SERVICES and TIMERS", line)
    return FileFault(f"raises {type(error).__name__}{_message(error)}", line)


def _message(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:
        return " (and its message cannot be read)"
    return f": {printable(said[:_LONGEST_MESSAGE])}" if said else ""


def _document(path: Path, text: str, names: Mapping[str, Any], printed: _Printed) -> Document:
    places = python_places(text)
    faults = list(_shape_faults(names, places.top))
    if faults:
        raise ConfigError(path, faults)
    warning = Warned(
        "supervisor", None, 0, "the file prints while it is loaded; that goes to stderr", printed.line
    )
    tables = {table: names[name] for name, table in PYTHON_NAMES.items() if name in names}
    return Document.of(places, tables, *([warning] if printed.was_used else []))


def _shape_faults(names: Mapping[str, Any], lines: Mapping[str, int]) -> Iterator[FileFault]:
    for wrong, right in _ALMOST.items():
        if wrong in names and right not in names and isinstance(names[wrong], _sort_of(right)):
            yield FileFault(f"defines {wrong}, which is not read; did you mean {right}?", lines.get(wrong))
            return
    if not {"SERVICES", "TIMERS", "JOBS"} & names.keys():
        yield FileFault("defines neither JOBS nor SERVICES nor TIMERS")
    for name in PYTHON_NAMES:
        kinds = _sort_of(name)
        value = names.get(name, kinds[0]())
        if not isinstance(value, kinds):
            what = kinds[0].__name__
            said = f"{a_or_an(type(value).__name__)}; write list(...) around it"
            said = said if isinstance(value, Iterator) else value_text(value)
            if isinstance(value, bool):
                said += "; the switch is SUPERVISOR = {'timers': True}"
            yield FileFault(f"{name} must be a {what}, not {said}", lines.get(name))


# --- lines of entries, where a list is written out and not computed ---


def python_places(text: str) -> Places:
    """Where the lists of a Python file are assigned, and their elements where the list is written out."""
    places = Places()
    for node in ast.parse(text).body:
        targets: Sequence[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                places.top[target.id] = node.lineno
                if target.id in PYTHON_NAMES:
                    places.tables[PYTHON_NAMES[target.id]] = _elements(getattr(node, "value", None))
    return places


def _elements(value: ast.expr | None) -> list[TableLines]:
    if isinstance(value, ast.Dict):  # the settings
        return [TableLines(value.lineno, _literal_keys(value))]
    if not isinstance(value, ast.List | ast.Tuple) or any(
        isinstance(each, ast.Starred) for each in value.elts
    ):
        return []
    return [_element(each) for each in value.elts]


def _element(node: ast.expr) -> TableLines:
    if isinstance(node, ast.Dict):
        return TableLines(node.lineno, _literal_keys(node))
    if isinstance(node, ast.Call):
        return TableLines(node.lineno, {each.arg: each.value.lineno for each in node.keywords if each.arg})
    return TableLines(node.lineno)


def _literal_keys(node: ast.Dict) -> dict[str, int]:
    return {
        key.value: key.lineno
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
