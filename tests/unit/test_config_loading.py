"""Files of every sort: what is loaded, with which lines, and what is refused in one clear sentence."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from duly.cli.init import starter
from duly.config import ConfigError, load
from duly.config.schema import socket_path, store_path

TOML = """\
# [[service]]
[supervisor]
timers = true
text = '''
[[service]]
id = "no"
'''

[[service]]   # a comment with "quotes' and [brackets
id = "a"
description = \"\"\"
[[timer]]
id = "not me" \\\"\"
\"\"\"
command = [
    "x",  # ]
    "[[service]]",
    '''
[[timer]]
''',
]
type = "oneshot"

  [[ "service" ]]
  'id' = "b"
  "command" = 3
[service.env]
A = "x"

[[timer]]
id = "t"
target = "a"
enabled = "yes"
[[timer.on_calendar]]
minute = 0

[[timer]]
id = "u"
target = "a"
[[timer.on_calendar]]
minute = 0
[[timer.on_calendar]]
minute = 99
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path) -> tuple[str, int | None]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    error = caught.value
    where = f"{path}:{error.line}" if error.line is not None else f"{path}"
    assert str(error) == f"{where}: {error.reason}"
    return error.reason, error.line


def test_lines_of_toml(tmp_path: Path) -> None:
    """Each finding has the line of its key, and nothing inside strings or comments is taken for an entry."""
    found = load(write(tmp_path, "duly.toml", TOML))
    assert [(each.kind, each.id, each.line) for each in found.invalid] == [
        ("supervisor", None, 4),
        ("service", "b", 26),
        ("timer", "t", 33),
        ("timer", "u", 40),
    ]
    assert [each.id for each in found.services] == ["a"]


def test_lines_with_carriage_returns(tmp_path: Path) -> None:
    """A file from Windows has the same lines."""
    path = tmp_path / "duly.toml"
    path.write_bytes(TOML.replace("\n", "\r\n").encode())
    assert [each.line for each in load(path).invalid] == [4, 26, 33, 40]


def test_inline_entries(tmp_path: Path) -> None:
    """Entries in an inline array are checked as well, each with the line on which it begins."""
    found = load(write(tmp_path, "duly.toml", 'service = [{id = "a"},\n{id = "b", command = "x"}]\n'))
    assert [(each.id, each.reason, each.line) for each in found.invalid] == [("a", "has no command", 1)]
    assert [each.id for each in found.services] == ["b"]


def test_missing_key_has_the_line_of_its_entry(tmp_path: Path) -> None:
    """What is not there is reported where the entry begins."""
    found = load(write(tmp_path, "duly.toml", '\n\n[[service]]\nid = "a"\n'))
    assert [each.line for each in found.invalid] == [3]


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ('[[service]]\nid = "a\n', "is not TOML: ", 2),
        ("x = \n", "is not TOML: invalid value (column 5)", 1),
        ("x = 5m\n", 'is not TOML: expected newline or end of document after a statement; write x = "5m"', 1),
        ("\nx = */5 * * * *\n", 'is not TOML: invalid value; write x = "*/5 * * * *"', 2),
        ("x = True # yes\n", "is not TOML: invalid value (column 5)", 1),
        ("x = True\n", "is not TOML: invalid value; write x = true", 1),
        ("[[service]]\nid = 'a'\nid = 'b'\n", "is not TOML: cannot overwrite a value", 3),
        ("[supervisor]\n[supervisor]\n", "is not TOML: cannot declare", 2),
        ("[[service]", "is not TOML: ", None),
        ("x = " + "[" * 100_000, "is nested too deeply", None),
        ("x = " + "1" * 5000, "is not TOML: ", None),
        ("\n[[services]]\nid = 'a'\n", 'unknown table "services"; did you mean service?', 2),
        ("[[cron]]\n", 'unknown table "cron"; did you mean job?', 1),
        ("[daemon]\n", 'unknown table "daemon"; did you mean supervisor?', 1),
        ("\ntimers = true\n", "timers is a setting: write it under [supervisor]", 2),
        ("[service]\nid = 'a'\n", "write [[service]] with two brackets: there can be several", 1),
        ("timer = 3\n", "timer must be an array of tables, not 3", 1),
        ("supervisor = 3\n", "supervisor must be a table, not 3", 1),
        ("[[supervisor]]\n", "supervisor must be a table, not a list", 1),
    ],
    ids=range(19),
)
def test_unusable_toml(tmp_path: Path, text: str, reason: str, line: int | None) -> None:
    """A TOML file that cannot be used says where and why."""
    said, where = refused(write(tmp_path, "duly.toml", text))
    assert said.startswith(reason)
    assert line is None or where == line
    assert len(said) < 250


def test_all_faults_of_a_file(tmp_path: Path) -> None:
    """All names that mean nothing are told at once."""
    path = write(tmp_path, "duly.toml", "[[services]]\n[[timers]]\n[timer]\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert [fault.line for fault in caught.value.faults] == [1, 2, 3]


def test_files_that_are_none(tmp_path: Path) -> None:
    """Directories, pipes, sockets, devices and what is not there: each is refused at once."""
    (tmp_path / "d.toml").mkdir()
    os.mkfifo(tmp_path / "p.toml")
    (tmp_path / "n.toml").symlink_to("/dev/null")
    (tmp_path / "l.toml").symlink_to("l.toml")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s.toml"))
    said = {name: refused(tmp_path / f"{name}.toml")[0] for name in "dpnlsx"}
    assert said == {
        "d": "is a directory",
        "p": "is a pipe, not a file",
        "n": "is a device, not a file",
        "l": "cannot be read: too many levels of symbolic links",
        "s": "is a socket, not a file",
        "x": "does not exist; `duly init` writes a file to begin with",
    }
    assert refused(tmp_path / "a\0b.toml")[0].startswith("cannot be read")


@pytest.mark.parametrize(
    ("content", "reason", "line"),
    [
        (b"x = 1\n" * 700_000, "is larger than 4 MiB, which no such file is; is it the right one?", None),
        (b"\x7fELF\0\0", "is binary, not text", None),
        (b"# a\n# \xff\n", "is not UTF-8 text", 2),
    ],
)
@pytest.mark.parametrize("suffix", ["toml", "py"])
def test_contents_that_are_no_text(
    tmp_path: Path, suffix: str, content: bytes, reason: str, line: int | None
) -> None:
    """Files that are too large, binary or in another encoding are refused before they are parsed."""
    path = tmp_path / f"duly.{suffix}"
    path.write_bytes(content)
    assert refused(path) == (reason, line)


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be read is refused."""

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, "duly.toml", "")
    monkeypatch.setattr(os, "open", denied)
    assert refused(path)[0] == "cannot be read: permission denied"


def test_suffix(tmp_path: Path) -> None:
    """The suffix says which form a file has, so there must be one."""
    assert refused(write(tmp_path, "duly.conf", "")) == (
        (
            "has to end in .toml or .py, to say which of the two it is;"
            " `duly crond` runs a crontab, `duly import crontab` translates one"
        ),
        None,
    )


def test_byte_order_mark(tmp_path: Path) -> None:
    """A mark that some editors put in front is no part of the text."""
    path = tmp_path / "duly.toml"
    path.write_bytes(b"\xef\xbb\xbf[supervisor]\ntimers = true\n")
    assert load(path).settings.timers


def test_paths(tmp_path: Path) -> None:
    """State and socket lie beside the file unless it says otherwise; relative paths start from there."""
    plain = load(write(tmp_path, "my.toml", ""))
    assert (store_path(plain), socket_path(plain)) == (tmp_path / "my.db", tmp_path / "my.sock")
    said = load(write(tmp_path, "my.toml", '[supervisor]\nstore = "state/x.db"\nsocket = "/run/x.sock"\n'))
    assert (store_path(said), socket_path(said)) == (tmp_path / "state/x.db", Path("/run/x.sock"))


@pytest.mark.parametrize("suffix", [".toml", ".py"])
def test_starters(tmp_path: Path, suffix: str) -> None:
    """The files to begin with load without a word, and both say the same."""
    found = load(write(tmp_path, f"duly{suffix}", starter(suffix) or ""))
    assert (found.invalid, found.warnings) == ((), ())
    other = load(write(tmp_path, "other.toml", starter(".toml") or ""))
    assert (found.settings, found.services, found.timers) == (other.settings, other.services, other.timers)


# --- Python ---


def python(folder: Path, text: str) -> Path:
    return write(folder, "duly.py", dedent(text))


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ("SERVICES = []\nTIMERS = [\n", "is not Python: '[' was never closed", 2),
        ("x = 1\n1 / 0\n", "raises ZeroDivisionError: division by zero", 2),
        ("def f():\n    raise ValueError('a\\x1bb')\n\nf()\n", r"raises ValueError: a\x1bb", 2),
        (
            "import nothing_of_that_name\n",
            "raises ModuleNotFoundError: No module named 'nothing_of_that_name'",
            1,
        ),
        ("import json\njson.loads('{')\n", "raises JSONDecodeError: ", 2),
        ("raise KeyError\n", "raises KeyError", 1),
        ("\nexit()\n", "calls exit; a configuration only defines JOBS, SERVICES and TIMERS", 2),
        (
            "import sys\nsys.exit(3)\n",
            "calls exit; a configuration only defines JOBS, SERVICES and TIMERS",
            2,
        ),
        ("import os\nos._exit(7)\n", "calls exit; a configuration only defines JOBS, SERVICES and TIMERS", 2),
        ("raise GeneratorExit\n", "raises GeneratorExit", 1),
        ("def f(): f()\nf()\n", "raises RecursionError: ", 1),
        (
            "class E(Exception):\n    def __str__(self): return 1 / 0\nraise E\n",
            "raises E (and its message cannot be read)",
            3,
        ),
        ("", "defines neither JOBS nor SERVICES nor TIMERS", None),
        ("x = 1\nservices = []\n", "defines services, which is not read; did you mean SERVICES?", 2),
        ("SERVICES = []\nTIMER = []\n", "defines TIMER, which is not read; did you mean TIMERS?", 2),
        (
            "\nSERVICES = (x for x in [])\n",
            "SERVICES must be a list, not a generator; write list(...) around it",
            2,
        ),
        ("SERVICES = {}\n", "SERVICES must be a list, not a mapping", 1),
        ("SERVICES = []\nTIMERS = None\n", "TIMERS must be a list, not null (None)", 2),
        ("SERVICES = []\nSUPERVISOR = []\n", "SUPERVISOR must be a dict, not an empty list", 2),
    ],
)
def test_unusable_python(tmp_path: Path, text: str, reason: str, line: int | None) -> None:
    """However a Python file fails, it is one sentence with the line in that file."""
    said, where = refused(python(tmp_path, text))
    assert said.startswith(reason)
    assert where == line


def test_exit_of_a_child_of_the_file(tmp_path: Path) -> None:
    """A process that the file forks may end as it likes, and afterwards so may we."""
    real_exit = os._exit
    text = "import os\nif not (child := os.fork()):\n    os._exit(7)\nSTATUS = os.waitpid(child, 0)[1]\n"
    found = load(python(tmp_path, text + 'SERVICES = [{"id": f"saw-{STATUS >> 8}", "command": "true"}]\n'))
    assert [service.id for service in found.services] == ["saw-7"]
    assert os._exit is real_exit


def test_ctrl_c_passes(tmp_path: Path) -> None:
    """Anyone who interrupts a file that is being loaded, interrupts."""
    with pytest.raises(KeyboardInterrupt):
        load(python(tmp_path, "raise KeyboardInterrupt\n"))


def test_python_entries(tmp_path: Path) -> None:
    """Dicts and instances stand side by side, with the lines of a list that is written out."""
    found = load(
        python(
            tmp_path,
            """\
            from duly.config import Service, Timer

            SUPERVISOR = {"timers": True, "history_days": "x"}
            SERVICES: list = [
                Service("a", "true", type="oneshot"),
                {
                    "id": "b",
                    "command": 3,
                },
            ]
            TIMERS = (
                Timer(
                    "t",
                    "a",
                    on_startup_sec=0,
                ),
                *[{"id": f"t{number}", "target": "a", "on_startup_sec": number} for number in (1, 2)],
            )
            """,
        )
    )
    assert [each.id for each in found.timers] == ["t1", "t2"]
    assert [(each.kind, each.id, each.line) for each in found.invalid] == [
        ("supervisor", None, 3),
        ("service", "b", 8),
        ("timer", "t", None),
    ]


def test_computed_lists_have_no_lines(tmp_path: Path) -> None:
    """Where a list is changed after it was written down, no line is better than a wrong one."""
    text = "SERVICES = [{'id': 'a', 'command': 'x'}]\nSERVICES.insert(0, {'id': 'b'})\n"
    found = load(python(tmp_path, text))
    assert [(each.id, each.line) for each in found.invalid] == [("b", None)]


def test_python_file_leaves_no_trace(tmp_path: Path) -> None:
    """A file may import its neighbour, which is read again by each load, and leaves nothing behind."""
    path = python(tmp_path, "import neighbour_of_duly\nSERVICES = neighbour_of_duly.SERVICES\nTIMERS = []\n")
    before_path, before_modules = list(sys.path), set(sys.modules)
    for name in ("one", "two", "three"):
        write(tmp_path, "neighbour_of_duly.py", f"SERVICES = [{{'id': {name!r}, 'command': 'x'}}]\n")
        assert [each.id for each in load(path).services] == [name]
    assert sys.path == before_path
    assert not {
        name for name in set(sys.modules) - before_modules if "duly_config" in name or "neighbour" in name
    }
    assert sorted(each.name for each in tmp_path.iterdir()) == ["duly.py", "neighbour_of_duly.py"]


def test_sys_path_is_restored_after_a_failure(tmp_path: Path) -> None:
    """A file that fails leaves nothing behind either."""
    before = list(sys.path)
    refused(python(tmp_path, "import sys\nsys.path.clear()\n1 / 0\n"))
    assert sys.path == before
    assert "duly_config" not in sys.modules


def test_python_file_is_a_module(tmp_path: Path) -> None:
    """A file knows its own place, and may define dataclasses and functions that use each other."""
    found = load(
        python(
            tmp_path,
            """\
            from __future__ import annotations
            import dataclasses, pathlib

            @dataclasses.dataclass
            class Site:
                name: str

            def service(site: Site) -> dict:
                return {"id": site.name, "command": [str(pathlib.Path(__file__).parent / "run")]}

            SERVICES = [service(Site("a"))]
            """,
        )
    )
    assert found.services[0].command == (str(tmp_path / "run"),)


def test_printing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file prints goes to stderr, and a warning names the line."""
    found = load(python(tmp_path, "SERVICES = [{'id': 'a', 'command': 'x'}]\nprint('hello')\n"))
    assert [(each.reason, each.line) for each in found.warnings] == [
        ("the file prints while it is loaded; that goes to stderr", 2)
    ]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "hello\n")


@pytest.mark.heavy
def test_import_is_light() -> None:
    """Loading a configuration needs neither an event loop nor a database driver."""
    program = dedent("""\
        import sys, types
        package = types.ModuleType("duly")
        package.__path__ = [sys.argv[1]]
        sys.modules["duly"] = package
        import duly.config
        heavy = {"asyncio", "apsw", "msgspec", "click", "zoneinfo", "difflib", "tomllib"}
        print(sorted(heavy & set(sys.modules)))
    """)
    source = Path(__file__).parents[2] / "src" / "duly"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(source)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
