"""`duly verify` as the installed command, on small trace files, good and bad."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MINUTE = 60_000
HEADER = {"ev": "Header", "v": 1, "tz": "Europe/Berlin", "impl": "acceptance"}
REGS = [["backup", "* * * * *", 30_000]]
Trace = list[dict[str, Any]]


def verify(*arguments: str | Path, stdin: bytes | None = None, **environment: str) -> Any:
    command = [sys.executable, "-m", "duly", "verify", *map(str, arguments)]
    done = subprocess.run(
        command,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def run(minute: int, number: int, *, late: int = 5, lasts: int = 100, ok: bool = True) -> Trace:
    at = minute * MINUTE + late
    return [
        {"t": at, "ev": "RunStart", "id": "backup", "run": number},
        {"t": at + lasts, "ev": "RunEnd", "id": "backup", "run": number, "ok": ok},
    ]


def opened(at: int = 1, call: int = 1, proc: str = "p") -> Trace:
    return [
        {"t": at, "ev": "InitStart", "call": call, "proc": proc, "regs": REGS},
        {"t": at + 1, "ev": "InitEnd", "call": call, "ok": True},
    ]


def closed(at: int, call: int = 2) -> Trace:
    return [{"t": at, "ev": "StopStart", "call": call}, {"t": at + 1, "ev": "StopEnd", "call": call}]


GOOD: Trace = [*opened(), *run(0, 1), *run(1, 2), *run(2, 3), *closed(2 * MINUTE + 500)]
MISSED: Trace = [*opened(), *run(0, 1), *run(3, 2), *closed(3 * MINUTE + 500)]


def lines(events: Sequence[Any], header: Any = HEADER) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in (header, *events))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_a_good_trace(trace: Path) -> None:
    """A correct life holds: code 0, the verdict in the last line, nothing on stderr, no colours in a pipe."""
    trace.write_bytes(lines(GOOD))
    done = verify(trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"10 events, 3 starts, 0 crashes, from 1970-01-01 01:00:00.* holds", done.stdout.splitlines()[-1]
    )
    assert "\x1b" not in done.stdout


def test_a_missed_run(trace: Path) -> None:
    """A start that did not come is a violation: code 1, and a sentence that names the task and the time."""
    trace.write_bytes(lines(MISSED))
    done = verify(trace)
    assert (done.returncode, done.stderr) == (1, "")
    [told] = re.findall(r"^1\. L1: .*", done.stdout, flags=re.MULTILINE)
    assert "backup" in told
    assert "1970-01-01 01:01:00+01:00" in told
    assert done.stdout.splitlines()[-1].endswith(": violated")


def test_an_overlap(trace: Path) -> None:
    """A start while the task runs is told with both starts as evidence, the second one marked."""
    events = [*opened(), *run(0, 1, lasts=5000), *run(0, 2, late=2000)]
    trace.write_bytes(lines(sorted(events, key=lambda event: event["t"])))
    done = verify(trace)
    assert done.returncode == 1
    assert re.search(r"^\d\. S1c", done.stdout, flags=re.MULTILINE)
    assert re.search(r"^   > line 5  .* RunStart backup, run 2$", done.stdout, flags=re.MULTILINE)


def test_open_deadlines(trace: Path) -> None:
    """A trace that ends while something is owed is inconclusive, and no error."""
    trace.write_bytes(lines([*GOOD[:-2], {"t": 3 * MINUTE + 10, "ev": "Tick"}]))
    done = verify(trace)
    assert done.returncode == 0
    assert "1 deadline lies at or beyond the end" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": inconclusive")


def test_json(trace: Path) -> None:
    """With --json there is one object on stdout, and the same exit codes."""
    trace.write_bytes(lines(MISSED))
    done = verify(trace, "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"], answer["exit_code"]) == (1, "violated", 1)
    assert [each["property"] for each in answer["violations"]] == ["L1"]
    assert answer["files"] == [str(trace)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\n\n  \n", "empty"),
        (bytes(range(256)) * 40, "not a trace"),
        (b"\x1f\x8b and then no gzip", "gzip"),
        (gzip.compress(lines(GOOD))[:-20], "gzip"),
        (b"task,start\na,b\n", "not a trace"),
        (b"[" * 100_000, "not a trace"),
        (lines(GOOD, {**HEADER, "v": 2}), "version 1"),
        (lines(GOOD, {**HEADER, "tz": "Mars/Olympus"}), "Mars/Olympus"),
        (lines(GOOD[1:], GOOD[0]), "Header"),
        (lines(GOOD, 7), "Header"),
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
def test_no_trace_at_all(trace: Path, content: bytes, says: str, as_json: tuple[str, ...]) -> None:
    """What is no trace is refused with code 2 and a reason."""
    trace.write_bytes(content)
    done = verify(trace, *as_json)
    assert done.returncode == 2
    if as_json:
        assert says in json.loads(done.stdout)["error"]["message"]
    else:
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert says in done.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lines([*GOOD[:4], {"t": 300, "ev": "Surprise"}, *GOOD[4:]]), "line 6: unknown event"),
        (lines([*GOOD[:4], 17, *GOOD[4:]]), "line 6: not an event"),
        (lines(GOOD[:4]) + b"\xff\xfe\x00garbage\n" + lines(GOOD[4:]), "line 6: not a JSON object"),
        (
            lines(GOOD[:4]) + b'{"t":110,"ev":"RunStart","id":"\xff"}\n' + lines(GOOD[4:]),
            "line 6: not a JSON object",
        ),
        (lines(GOOD[:4]) + b'{"t":1,"ev":"RunSta\n' + lines(GOOD[4:]), "line 6: not a JSON object"),
        (
            lines([*GOOD[:4], {"t": "late", "ev": "Tick"}, *GOOD[4:]]),
            "line 6: this Tick cannot be read",
        ),
        (lines([*GOOD[:6], *GOOD[2:4], *GOOD[6:]]), "time goes back"),
        (lines([GOOD[0], GOOD[1], GOOD[3], GOOD[2], *GOOD[4:]]), "line 4: "),
        (lines([*GOOD[:2], GOOD[3]]), "line 4: "),
        (lines([*opened(proc="p"), *opened(5, 1, "q"), {"t": 9, "ev": "Tick", "proc": "p"}]), "line 6: "),
    ],
)
def test_faults_of_the_trace(trace: Path, content: bytes, says: str) -> None:
    """A trace that is itself at fault is code 2, and its fault is told with its line."""
    trace.write_bytes(content)
    done = verify(trace)
    assert (done.returncode, done.stderr) == (2, "")
    assert says in done.stdout
    assert done.stdout.splitlines()[-1].endswith(": inconclusive")


def test_a_torn_last_line(trace: Path) -> None:
    """A last line that a crash has torn is left out without a word."""
    trace.write_bytes(lines(GOOD) + b'{"t":999999,"ev":"RunSt')
    done = verify(trace)
    assert done.returncode == 0
    assert "Fault" not in done.stdout


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A folder and a missing file are refused by name, also when they come second."""
    good = tmp_path / "good"
    good.write_bytes(lines(GOOD))
    for bad in (tmp_path, tmp_path / "nowhere"):
        done = verify(good, bad)
        assert (done.returncode, done.stdout) == (2, "")
        assert f'"{bad}"' in done.stderr


def test_a_chain(tmp_path: Path) -> None:
    """Rotated files are read as one, with lines counted in each; the wrong order is a fault."""
    first, second = tmp_path / "trace.1", tmp_path / "trace"
    first.write_bytes(lines(GOOD[:6]))
    rest = [*opened(MINUTE + 500, 0), *GOOD[6:]]
    second.write_bytes(lines(rest, {**HEADER, "follows": True}))
    assert verify(first, second).returncode == 0
    swapped = verify(second, first)
    assert swapped.returncode == 2
    assert re.search(rf"{re.escape(str(first))} line \d+: ", swapped.stdout)


def test_a_recording_that_begins_anew_is_no_part(tmp_path: Path) -> None:
    """A file that does not follow the one before it, for a gap or another zone, is a fault with its line."""
    first, second = tmp_path / "trace.1", tmp_path / "trace"
    first.write_bytes(lines(GOOD[:6]))
    for header in ({**HEADER, "store": "unknown"}, {**HEADER, "tz": "Asia/Tokyo", "follows": True}):
        second.write_bytes(lines([*opened(MINUTE + 500, 0), *GOOD[6:]], header))
        done = verify(first, second)
        assert done.returncode == 2
        assert f"{second} line 1: a recording begins here" in done.stdout


def test_nothing_to_go_by_is_inconclusive(trace: Path) -> None:
    """A header alone proves nothing; a torn last line is mentioned with its number."""
    trace.write_bytes(lines([]))
    assert "no event in the trace" in verify(trace).stdout
    trace.write_bytes(lines(GOOD) + b'{"t":12')
    done = verify(trace)
    assert (done.returncode, "is torn" in done.stdout) == (0, True)


def test_report_that_cannot_be_written_is_no_violation(trace: Path) -> None:
    """Where the report cannot be written the exit code does not say that a property was violated."""
    trace.write_bytes(lines(GOOD))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "duly", "verify", str(trace)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_the_standard_input(tmp_path: Path, pack: Any) -> None:
    """A trace can come through a pipe, packed or not, and be drawn all the same."""
    target = tmp_path / "page.html"
    assert verify("-", stdin=pack(lines(GOOD))).returncode == 0
    assert verify("-", "--html", target, stdin=pack(lines(MISSED))).returncode == 1
    assert "Violated: 1 violation of L1" in target.read_text()


def test_packed_files(tmp_path: Path) -> None:
    """A file packed with gzip is unpacked, whatever it is called."""
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(lines(MISSED)))
    assert verify(packed, "--html", tmp_path / "page.html").returncode == 1


def test_the_page(trace: Path, tmp_path: Path) -> None:
    """The page is written beside the text, and a name in it that looks like markup is inert."""
    name = '"><script>alert(1)</script>\x1b[2J'
    trace.write_text(lines(MISSED).decode().replace('"backup"', json.dumps(name)))
    done = verify(trace, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "<script" not in text
    assert "\x1b" not in text


def test_the_page_has_a_place(trace: Path, tmp_path: Path) -> None:
    """A page over the trace itself, over a folder or in a missing one is refused before anything is read."""
    trace.write_bytes(lines(GOOD))
    for bad in (trace, tmp_path, tmp_path / "missing" / "page.html"):
        done = verify(trace, "--html", bad)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--html" in done.stderr
    assert trace.read_bytes() == lines(GOOD)


RUNS = "task,start,end,ok\nbackup,2026-01-05T09:00:00,2026-01-05T09:00:30,yes\n"
TASKS = "task,cron,retry_delay\nbackup,0 * * * *,60\n"


def test_tables(tmp_path: Path) -> None:
    """A CSV of runs is judged with a CSV of tasks, within the time that is given."""
    runs, tasks, target = (tmp_path / name for name in ("runs.csv", "tasks.csv", "page.html"))
    runs.write_text(RUNS)
    tasks.write_text(TASKS)
    asked = (runs, "--csv-tasks", tasks, "--tz", "Europe/Berlin", "--html", target)
    assert verify(*asked).returncode == 0
    done = verify(*asked, "--until", "2026-01-05T11:30")
    assert done.returncode == 1
    assert "2026-01-05 10:00:00+01:00" in done.stdout
    assert "Violated" in target.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runs.csv", "--csv-tasks", "tasks.csv"], "--tz"),
        (["runs.csv", "runs.csv", "--csv-tasks", "tasks.csv", "--tz", "UTC"], "one CSV"),
        (["runs.csv", "--csv-tasks", "runs.csv", "--tz", "UTC"], "cron"),
        (["tasks.csv", "--csv-tasks", "tasks.csv", "--tz", "UTC"], "start"),
        (["runs.csv", "--csv-tasks", "nowhere.csv", "--tz", "UTC"], "nowhere.csv"),
        (["runs.csv", "--csv-tasks", "tasks.csv", "--tz", "Mars/Olympus"], "Mars/Olympus"),
        (["runs.csv", "--csv-tasks", "tasks.csv", "--tz", "UTC", "--from", "soon"], "soon"),
        (["runs.csv", "--tz", "UTC"], "--csv-tasks"),
    ],
)
def test_tables_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    """Tables or options that do not fit are refused with what to do about them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(RUNS)
    (tmp_path / "tasks.csv").write_text(TASKS)
    done = verify(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


# --- clusters ---

NODE = {**HEADER, "failover_ms": 10_000}


def nodes(tmp_path: Path, *, is_doubled: bool = False) -> list[Path]:
    """The traces of two nodes, each with two runs; *is_doubled*: the first also runs what the second runs."""
    first = [
        *opened()[:1],
        {"t": 2, "ev": "ListReconciled", "generation": 1},
        *opened()[1:],
        *run(0, 1),
        *run(1, 2),
        *(run(2, 3) if is_doubled else []),
        *closed(3 * MINUTE + 500),
    ]
    second = [*opened(proc="q"), *run(2, 1), *run(3, 2), *closed(3 * MINUTE + 500)]
    for name, events in (("a", first), ("b", second)):
        tmp_path.joinpath(f"{name}.jsonl").write_bytes(lines(events, {**NODE, "node": name}))
    return [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]


def test_nodes_of_a_cluster(tmp_path: Path) -> None:
    """The traces of several nodes are judged together, in any order, and their targets are matched."""
    for files in (nodes(tmp_path), nodes(tmp_path)[::-1]):
        done = verify(*files)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert "C4  holds" in done.stdout
        assert "targets 4: 4 matched, 0 excused, 0 missed" in done.stdout
        assert "runs 4: 4 for a due, 0 unaccounted for" in done.stdout


def test_a_node_that_starts_what_another_runs(tmp_path: Path) -> None:
    """It is told with both nodes and its file; the targets are wrong too."""
    done = verify(*nodes(tmp_path, is_doubled=True))
    assert done.returncode == 1
    assert "'backup' started at 1970-01-01 01:02:00.005+01:00 for no cause" in done.stdout
    assert re.search(r"> \S*b.jsonl line 4 ", done.stdout)
    assert "1 unaccounted for" in done.stdout
    told = json.loads(verify(*nodes(tmp_path, is_doubled=True), "--json").stdout)
    assert (told["verdict"], told["targets"]["targets"]) == ("violated", 4)
    assert "S1d" in {each["property"] for each in told["violations"]}


@pytest.mark.parametrize("is_doubled", [False, True], ids=["good", "violated"])
def test_page_of_a_cluster(tmp_path: Path, *, is_doubled: bool) -> None:
    """The page of a cluster is written whatever the verdict, which stays that of the command without it."""
    files, target = nodes(tmp_path, is_doubled=is_doubled), tmp_path / "page.html"
    done = verify(*files, "--html", target)
    assert (done.returncode, done.stderr) == (int(is_doubled), "")
    assert done.stdout == verify(*files).stdout
    text = target.read_text()
    assert '<header class="verdict ' + ("violated" if is_doubled else "holds") in text
    assert "<h2>Nodes</h2>" in text
    assert f"{files[1]} line 4" in text
    assert ("<h2>Violations</h2>" in text) == is_doubled


def test_a_table_alone(tmp_path: Path) -> None:
    """A CSV of runs without one of its tasks is refused, and the option that it needs is named."""
    table = tmp_path / "runs.csv"
    table.write_text("task,start,end,ok\n")
    done = verify(table)
    assert (done.returncode, "--csv-tasks" in done.stderr) == (2, True)


def test_what_is_no_cluster(trace: Path, tmp_path: Path) -> None:
    """Traces of nodes and others are not mixed, and neither are zones; a pipe is as good as a file."""
    trace.write_bytes(lines(GOOD))
    done = verify(*nodes(tmp_path), trace)
    assert (done.returncode, "is not of a node of a cluster" in done.stderr) == (2, True)
    piped = verify("-", nodes(tmp_path)[1], stdin=nodes(tmp_path)[0].read_bytes())
    assert piped.stdout == verify(*nodes(tmp_path)).stdout
    broken = tmp_path / "c.jsonl"
    broken.write_bytes(lines([], {**NODE, "node": "c", "tz": "UTC"}))
    done = verify(*nodes(tmp_path), broken)
    assert done.returncode == 2
    assert 'c.jsonl", line 1: node "c" has the zone UTC, and "a" Europe/Berlin' in done.stderr


def test_targets_of_one_scheduler(trace: Path) -> None:
    """With --targets the dues and runs of a single trace are matched, too."""
    trace.write_bytes(lines(GOOD))
    assert "targets 3: 3 matched" in verify(trace, "--targets").stdout
    assert "targets" not in verify(trace).stdout
    trace.write_bytes(lines(MISSED))
    done = verify(trace, "--targets")
    assert (done.returncode, "1 missed" in done.stdout) == (1, True)


def test_targets_that_cannot_be_matched(trace: Path) -> None:
    """With --targets a trace with a fault, or of timers, says why there are no numbers."""
    trace.write_bytes(lines([{}, *GOOD]))
    done = verify(trace, "--targets")
    assert (done.returncode, "dues and runs cannot be matched" in done.stdout) == (2, True)
    trace.write_bytes(lines([GOOD[-1]], {**HEADER, "kind": "timers", "node": "a"}))
    assert "targets: V1 says whether" in verify(trace, "--targets").stdout
