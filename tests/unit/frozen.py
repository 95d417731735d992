"""Every name that others rely on, as the code has it now: on disk, on the wire, on the command line.

`frozen_names.txt` holds the same text as it was last accepted. Nothing here is written down by hand: events
come from the calls that emit them, columns from the migrations, JSON keys from the types of answers and from
answers themselves, options from click. Accept a deliberate change with

    python -m tests.unit.frozen > tests/unit/frozen_names.txt
"""

import ast
import contextlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Union, get_args, get_origin, get_type_hints

import apsw
import click
import msgspec
from click.testing import CliRunner

from duly.cli import main
from duly.cli.cluster import cluster_json, history_json
from duly.cli.verify import CheckerError
from duly.cluster.node import Health
from duly.cluster.table import RunRecord
from duly.cluster_timers.rows import RowState
from duly.config import Calendar, Dashboard, Service, Settings, Timer
from duly.config.calendars import DAY
from duly.config.jobs import DEFAULT_KEYS
from duly.config.schema import Notify
from duly.core.causes import Cause, Reason
from duly.core.record import COLUMNS
from duly.daemon import protocol
from duly.daemon.operations import OPERATIONS, LogPiece
from duly.events import LEVELS
from duly.integrations.celery_slips import Slip
from duly.observe import Metrics
from duly.observe.readings import Readings
from duly.store.history import Result
from duly.store.schema import migrations
from duly.timers.dues import Miss
from duly.verify.trace import EVENTS, Header
from duly.web.acting import STATUSES
from duly.web.api import PREFIX
from duly.web.security import LOGIN
from duly.web.task_api import TASK_ROUTES
from tests.unit import test_cli_cluster as of_clusters
from tests.unit import test_cli_offline as of_stores

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "duly"


class UnreadableError(Exception):
    """The names in a piece of code cannot be worked out."""


def frozen() -> str:
    """The whole text."""
    sections = {
        "events: name, then its fields": _events(),
        "trace: event, then its keys": _trace(),
        "SQLite: table, then its columns": _sqlite(),
        "PostgreSQL: table, then its columns": _postgres(),
        "values kept inside of columns and of Redis": _kept(),
        "configuration: table, then its keys": _config(),
        "words in columns, JSON and events": _words(),
        "commands: words, then arguments and options": _commands(main, "duly"),
        "codes of errors, then the exit codes that go with them": _exits(),
        "environment": _environment(),
        "socket: operation, then its parameters": _socket(),
        "HTTP: codes of errors, then the status": [f"{code}: {status}" for code, status in STATUSES.items()],
        "HTTP: addresses": _addresses(),
        "JSON of the socket and of the API: answer, then its keys": _answers(),
        "JSON of commands: command, then the keys of its answer": _command_answers(),
        "metrics: name and type, then its labels": _metrics(),
    }
    return "\n".join(
        f"[{title}]\n" + "".join(f"{line.rstrip(': ')}\n" for line in sorted(set(lines)))
        for title, lines in sections.items()
    )


def _line(name: str, words: Iterable[str], *, is_ordered: bool = False) -> str:
    return f"{name}: {' '.join(words if is_ordered else sorted(set(words)))}"


# --- events ---


def _events() -> list[str]:
    found: dict[str, set[str]] = {name: set() for name in LEVELS}
    for path in sorted(SOURCE.rglob("*.py")):
        module = ast.parse(path.read_text())
        added = _added_by_wrappers(module)
        for function in _functions(module):
            for call in _calls(function):
                name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
                if name in LEVELS:
                    assert isinstance(name, str)
                    found[name] |= set(_fields(call, function, module))
                    found[name] |= added.get(ast.unparse(call.func).rpartition(".")[2], set())
            # The two shells that tell of a start add their own facts to the same event.
            for call in _calls(function):
                if isinstance(call.func, ast.Name) and call.func.id == "emit_start":
                    found["TaskRunStarted"] |= set(_keyword_fields(call, function, module))
    return [_line(name, said) for name, said in found.items()]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _added_by_wrappers(module: ast.Module) -> dict[str, set[str]]:
    """What functions add to events that they are given by name: `def f(name, **more): emit(name, at=now)`."""
    return {
        function.name: {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        for function in _functions(module)
        for call in _calls(function)
        if call.args and isinstance(call.args[0], ast.Name) and function.args.kwarg is not None
        if call.args[0].id in {argument.arg for argument in function.args.args}
        and any(keyword.arg is None for keyword in call.keywords)
    }


def _fields(call: ast.Call, function: ast.AST, module: ast.Module) -> Iterator[str]:
    for argument in call.args[1:]:
        if isinstance(argument, ast.Dict) or _assigned(argument, function):
            yield from _keys(argument, function, module)
    yield from _keyword_fields(call, function, module)


def _keyword_fields(call: ast.Call, function: ast.AST, module: ast.Module) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg
        elif not _is_parameter(keyword.value, function):
            yield from _keys(keyword.value, function, module)


def _is_parameter(value: ast.expr, function: ast.AST) -> bool:
    """Whether *value* is what the caller of *function* gives as **more; then the caller has the names."""
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    more = function.args.kwarg
    return isinstance(value, ast.Name) and more is not None and value.id == more.arg


def _assigned(value: ast.expr, function: ast.AST) -> list[ast.expr]:
    """What a local name holds that is a dict."""
    if not isinstance(value, ast.Name):
        return []
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == value.id
        if isinstance(node.value, ast.Dict | ast.IfExp | ast.Call)
    ]


def _keys(value: ast.expr, function: ast.AST, module: ast.Module) -> Iterator[str]:
    """The keys that a dict may have. Raises UnreadableError."""
    match value:
        case ast.Dict():
            yield from _literal_keys(value, function, module)
        case ast.IfExp(body=one, orelse=other):
            yield from _keys(one, function, module)
            yield from _keys(other, function, module)
        case ast.Call(func=ast.Name(id="zip"), args=[ast.Tuple(elts=names), *_]):
            yield from (str(name.value) for name in names if isinstance(name, ast.Constant))
        case ast.Call(func=ast.Name(id=called)):
            for inner in (each for each in _functions(module) if each.name == called):
                for node in ast.walk(inner):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield from _keys(node.value, inner, module)
        case ast.Name() if held := _assigned(value, function):
            for each in held:
                yield from _keys(each, function, module)
        case _:
            raise UnreadableError(f"which keys has {ast.unparse(value)}?")


def _literal_keys(value: ast.Dict, function: ast.AST, module: ast.Module) -> Iterator[str]:
    for key, item in zip(value.keys, value.values, strict=True):
        match key:
            case None:
                yield from _keys(item, function, module)
            case ast.Constant(value=str(name)):
                yield name
            case ast.Name(id=name):
                yield f"<{name}>"
            case _:
                raise UnreadableError(f"which key is {ast.unparse(key)}?")


# --- disk ---


def _trace() -> list[str]:
    kinds = {"Header": Header, **EVENTS}
    return [_line(name, _names(kind)) for name, kind in kinds.items()]


def _names(kind: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def _sqlite() -> Iterator[str]:
    connection = apsw.Connection(":memory:")
    for step in migrations():
        connection.execute(step)
    for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"):
        columns = connection.execute(f"SELECT name FROM pragma_table_info('{table}') ORDER BY cid")
        yield _line(str(table), [str(name) for (name,) in columns], is_ordered=True)


def _postgres() -> Iterator[str]:
    text = files("duly.cluster").joinpath("sql", "schema.sql").read_text()
    for table, body in re.findall(
        r"^CREATE TABLE \{schema\}\.(\w+) \((.*?)^\)", text, re.MULTILINE | re.DOTALL
    ):
        yield _line(table, re.findall(r"^    ([a-z_]+) ", body, re.MULTILINE), is_ordered=True)


def _kept() -> Iterator[str]:
    yield _line("task.state on PostgreSQL, a list", COLUMNS, is_ordered=True)
    yield _line("task.state of a timer on PostgreSQL", _names(RowState))
    yield _line("run.record on PostgreSQL, a list", _names(RunRecord), is_ordered=True)
    yield _line("Celery slip", _names(Slip))


def _config() -> Iterator[str]:
    kinds: dict[str, Any] = {
        "service": Service,
        "timer": Timer,
        "notify": Notify,
        "timer.on_calendar": Calendar,
        "supervisor": Settings,
        "dashboard": Dashboard,
    }
    found = {name: [each.name for each in fields(kind)] for name, kind in kinds.items()}
    found |= {"defaults": [*DEFAULT_KEYS], "timer.on_calendar, too": [DAY]}
    return (_line(name, keys) for name, keys in found.items())


def _words() -> Iterator[str]:
    kinds: dict[str, Any] = {"cause of a task": Cause, "reason": Reason, "result": Result, "miss": Miss}
    return (_line(name, (each.value for each in kind)) for name, kind in kinds.items())


# --- the command line ---


def _commands(command: click.Command, words: str) -> Iterator[str]:
    said = [
        "/".join((*each.opts, *each.secondary_opts))
        if isinstance(each, click.Option)
        else each.metavar or str(each.name).upper()
        for each in command.params
    ]
    yield _line(words, said)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, f"{words} {name}")


def _exits() -> list[str]:
    found: dict[str, set[str]] = defaultdict(set)
    for code, number in protocol.EXITS.items():
        found[code].add(str(number))
    for path in sorted((SOURCE / "cli").rglob("*.py")):
        for call in _calls(ast.parse(path.read_text())):
            match call:
                case ast.Call(func=ast.Name(id="CommandError"), args=[ast.Constant(value=str(code)), *_]):
                    given = {keyword.arg: keyword.value for keyword in call.keywords}
                    exit_code = given.get("exit_code", ast.Constant(value=2))
                    if isinstance(exit_code, ast.Constant):
                        found[code].add(str(exit_code.value))
                case ast.Call(func=ast.Attribute(attr="Exit"), args=[ast.Constant(value=int(number))]):
                    found[f"({path.stem})"].add(str(number))
    found["(verify)"].add(str(CheckerError.exit_code))
    return [_line(code, numbers) for code, numbers in found.items()]


def _environment() -> set[str]:
    text = "".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))
    return set(re.findall(r"\"(DULY_[A-Z_]+)\"", text))


# --- the wire ---


def _socket() -> Iterator[str]:
    yield _line("(request)", _names(protocol.Request))
    yield _line("(answer)", _names(protocol.Response))
    for name, operation in OPERATIONS.items():
        yield _line(name, _names(operation.params))


def _addresses() -> Iterator[str]:
    for path in sorted((SOURCE / "web").glob("*.py")):
        text = path.read_text().replace('f"{PREFIX}', f'"{PREFIX}').replace("Route(LOGIN", f'Route("{LOGIN}"')
        found = re.findall(r"[Rr]oute\(\"(/[^\"]*)\"", text)
        yield from (each for each in found if not each.startswith(f"{PREFIX}/{{name}}"))
    for name, operation in OPERATIONS.items():
        yield f"{PREFIX}/{name}"
        if operation.stream is not None:
            yield f"{PREFIX}/{name}/stream"


def _answers() -> Iterator[str]:
    for name, operation in OPERATIONS.items():
        yield from _typed(name, get_type_hints(operation.function)["return"])
    for reading in TASK_ROUTES:
        yield from _typed(f"{reading.name} (of a store)", reading.result)
    yield from _typed("logs, a piece", LogPiece)


def _typed(place: str, kind: Any) -> Iterator[str]:
    """The keys of a type, and of the types in it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        known = msgspec.structs.fields(kind)
        yield _line(place, (field.encode_name for field in known))
        for field in known:
            yield from _typed(f"{place}.{field.encode_name}", field.type)
    elif get_origin(kind) is list:
        yield from _typed(f"{place}[]", get_args(kind)[0])
    elif get_origin(kind) is Union or type(kind).__name__ == "UnionType":
        for number, each in enumerate(kind for kind in get_args(kind) if kind is not type(None)):
            yield from _typed(f"{place} (or)" if number else place, each)


CONFIGURATION = f'{of_stores.TEXT}\n[[timer]]\nid = "bad"\ntarget = "nowhere"\n'
TRACE = [
    {"ev": "Header", "v": 1, "tz": "UTC"},
    {"ev": "InitStart", "t": 0, "call": 1, "regs": [["a", "* * * * *", 30_000]]},
    {"ev": "InitEnd", "t": 1, "call": 1, "ok": True},
    {"ev": "RunStart", "t": 5, "id": "a", "run": 1},
    {"ev": "RunEnd", "t": 6, "id": "a", "run": 1, "ok": True},
    {"ev": "Strange", "t": 7},
    {"ev": "RunStart", "t": 8, "id": "a", "run": 2},
    {"ev": "End", "t": 600_000},
]
ASKED = (
    "check duly.toml",
    "check new.toml",
    "explain '0 0 1,15 * 1'",
    "next '0 9 * * 1-5'",
    "next hourly",
    "plan new.toml -c duly.toml",
    "simulate duly.toml --from 2026-01-10 --to 2026-01-11",
    "store check duly.db",
    "store repair duly.db",
    "verify trace.jsonl --targets",
    "why a --trace trace.jsonl",
    "why a --trace trace.jsonl -n 2",
    "verify good.jsonl --targets",
    "why a --trace good.jsonl",
    "why hourly --at 2026-01-10T11:00",
    "why hourly -n 2",
    "why nobody",
)
"""Commands whose answers are made by hand. What the others print is what the daemon answers (`_answers`)."""


def _command_answers() -> Iterator[str]:
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("duly.toml").write_text(of_stores.TEXT)
        of_stores.remember(
            Path(folder), of_stores.RUNS, of_stores.MISSES, [of_stores.timer_row(enabled=None)]
        )
        Path("new.toml").write_text(CONFIGURATION.replace('"serve"', '"serve more"'))
        Path("trace.jsonl").write_text("".join(json.dumps(each) + "\n" for each in TRACE))
        good = [*TRACE[:5], {"ev": "End", "t": 50_000}]
        Path("good.jsonl").write_text("".join(json.dumps(each) + "\n" for each in good))
        runner = CliRunner(env={"DULY_CONFIG": None, "DULY_SOCKET": None})
        for asked in ASKED:
            result = runner.invoke(main, f"{asked} --json")
            yield from _told(f"duly {asked}", json.loads(result.stdout))
    node, fenced = of_clusters.node(1), of_clusters.fenced(2, 60)
    shown = cluster_json("default", of_clusters.NOW_US, [node, fenced], [of_clusters.task()])
    yield from _told("duly cluster show --task", shown)
    past = history_json("default", of_clusters.NOW_US, [of_clusters.past(1)], None)
    yield from _told("duly cluster history", past)


def _told(place: str, value: Any) -> Iterator[str]:
    """The keys of an answer, and of the objects in it; those of a list are taken together."""
    objects = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Mapping)]
    keys = {key for each in objects for key in each}
    place += "[]" if isinstance(value, list) else ""
    if keys:
        yield _line(place, keys)
    for key in keys:
        for inner in (each[key] for each in objects if each.get(key)):
            yield from _told(f"{place} .{key}", inner)


def _metrics() -> Iterator[str]:
    metrics = Metrics(node=lambda: Health(1, 0.0, 0.0, 0), readings=lambda: Readings([], [], 0, 0))
    collectors = getattr(metrics.registry, "_collector_to_names", {})
    for family in metrics.registry.collect():
        labels = next(
            (each._labelnames for each in collectors if getattr(each, "_name", None) == family.name),
            getattr(family, "_labelnames", ()),
        )
        yield _line(f"{family.name} ({family.type})", labels)


if __name__ == "__main__":
    sys.stdout.write(frozen())
