"""The checker on inputs that once made it crash or explode. Exit code 1 is a verdict, and nothing else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duly.cli.verify import verify
from duly.verify.judge import judged
from tests.attacks.test_verify_fuzz import bounded

Line = dict[str, Any]
HEADER: Line = {"ev": "Header", "v": 1, "tz": "Europe/Berlin"}
NODE: Line = {**HEADER, "node": "a", "failover_ms": 10_000}
T = 1_781_784_240_000
MINUTE = 60_000
YEAR_9999 = 253_402_100_000_000


def at(ms: float, ev: str, **facts: Any) -> Line:
    return {"ev": ev, "t": T + ms, **facts}


def listed(*crons: str, ms: float = -1000, call: int = 1) -> list[Line]:
    regs = [[f"t{number}", cron, 0] for number, cron in enumerate(crons)]
    return [at(ms, "InitStart", call=call, regs=regs), at(ms, "InitEnd", call=call, ok=True)]


def run(ms: float, number: int = 1) -> list[Line]:
    return [at(ms, "RunStart", id="t0", run=number), at(ms + 10, "RunEnd", id="t0", run=number, ok=True)]


def written(path: Path, *lines: Line, torn: bytes = b"") -> Path:
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + torn)
    return path


def verified(*arguments: str | Path) -> Result:
    with bounded():
        done = CliRunner().invoke(verify, list(map(str, arguments)))
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done


def verified_outside(*arguments: str | Path, program: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        *(("-c", program) if program else ("-m", "duly", "verify")),
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_page_of_a_node_without_a_list(trace: Path, tmp_path: Path) -> None:
    """A node's trace that tells of no list, only of a run, has a page."""
    written(trace, NODE, *listed("* * * * *"), at(10, "RunStart", id="t0", run=1), at(100, "Tick"))
    done = verified(trace, "--html", tmp_path / "page.html")
    assert "C4" in done.stdout
    assert "t0" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "cron",
    [
        "a b c d e",
        "0-3000000000 * * * *",
        "* * * *",
        "1,,2 * * * *",
        "0" * 5000 + "5-x * * * *",
        "5-1 * * * *",
    ],
)
def test_list_that_cannot_be_read(trace: Path, cron: str) -> None:
    """A list with an unreadable cron text takes no effect; that it was accepted is the one violation."""
    written(trace, HEADER, *listed("0 0 1 1 *"), *listed("0 0 1 1 *", cron, call=2, ms=0), at(10, "End"))
    done = verified(trace, "--targets", "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    assert {each["property"] for each in told["violations"]} == {"S4"}
    assert (told["targets"]["targets"], told["targets"]["refused"]) == (0, "")


def test_year_9999(trace: Path) -> None:
    """A silence up to the year 9999 is judged at once; that its dues are not counted is said."""
    written(trace, HEADER, *listed("* * * * *"), *run(0), {"ev": "End", "t": YEAR_9999})
    done = verified(trace, "--targets")
    assert done.exit_code == 1
    assert "targets: 5 events over 7,974 years are too few to count dues by" in done.stdout


def test_long_silence_is_counted(trace: Path) -> None:
    """A silence of twenty years is counted exactly, and told in a few sentences."""
    years_ms = 20 * 365 * 24 * 60 * MINUTE
    written(trace, HEADER, *listed("* * * * *"), *run(0), at(years_ms, "End"))
    done = verified(trace, "--targets", "--json")
    told = json.loads(done.stdout)["targets"]
    twice = 20 * 60  # minutes that the clocks show twice in autumn are due once
    assert (told["dues"], told["ran"], told["cut_off"]) == (years_ms // MINUTE + 1 - twice, 1, 2)
    assert told["lost"] == told["dues"] - 3
    assert len(told["missed"]) == 100


@pytest.mark.parametrize(
    "torn",
    [
        b'{"ev":"RunStart","t":1,"id":"\xff"}',
        b'{"ev":"Tick","x":"\xc3',
        b"\xff",
        b"7",
        b'{"ev":"RunEnd"}',
        b'{"ev":"Header"}',
    ],
)
def test_torn_last_line(trace: Path, torn: bytes) -> None:
    """A torn last line is left out by the matching of targets as it is by the judge, whatever is in it."""
    written(trace, HEADER, *listed("* * * * *"), *run(0), at(50, "Tick"), torn=torn)
    done = verified(trace, "--targets")
    assert done.exit_code == 0
    assert "1 due, 1 ran, 0 lost, 0 cut off" in done.stdout
    assert "is torn" in done.stdout


def test_loss_of_trust_where_there_is_no_cluster(trace: Path) -> None:
    """In a trace of no cluster, too, what lost its trust is cut off and starts again."""
    start, end = run(0)
    lost = at(5, "TrustLost", runs=["t0", "t0", "nobody"])
    written(trace, HEADER, *listed("* * * * *"), start, lost, end, at(50, "Tick"))
    done = verified(trace, "--targets")
    assert done.exit_code == 1
    assert "T8  violated" in done.stdout


def test_run_from_before_the_trace(trace: Path, tmp_path: Path) -> None:
    """An overlap with a run that was in flight where the trace begins is told in every form."""
    header = {**HEADER, "store": "unknown", "running": [["t0", 7]]}
    written(trace, header, *listed("* * * * *"), *run(0), at(50, "Tick"))
    assert "before the trace" in verified(trace, "--html", tmp_path / "page.html").stdout
    evidence = json.loads(verified(trace, "--json").stdout)["violations"][0]["evidence"]
    assert evidence[0]["at"] is None


def test_run_from_before_excuses(trace: Path) -> None:
    """A due during a run that was in flight where the trace begins is not missed."""
    header = {**HEADER, "store": "unknown", "running": [["t0", 7]]}
    ended = at(4 * MINUTE + 500, "RunEnd", id="t0", run=7, ok=True)
    written(trace, header, *listed("* * * * *"), ended, *run(4 * MINUTE + 600), at(4 * MINUTE + 900, "Tick"))
    done = verified(trace, "--targets")
    assert done.exit_code == 0, done.stdout


def test_clock_set_all_the_time(trace: Path) -> None:
    """What crashes and steps of the clock leave open is bounded; beyond that the trace is inconclusive."""
    lines, now_ms = [{**HEADER, "persist_window_ms": 10**12}, *listed("* * * * *")], 0
    for number in range(400):
        lines.append(at(now_ms - 1000 * number - 90_000, "ClockStep", **{"from": T + now_ms}))
        now_ms -= 1000 * number + 90_000
        if number % 3 == 0:
            lines.append(at(now_ms, "Crash"))
        if number % 3 == 1:
            lines += listed("* * * * *", ms=now_ms, call=number + 2)[: 1 + number % 2]
    done = verified(written(trace, *lines))
    assert done.exit_code == 2
    assert "it is open what 't0' is owed" in done.stdout


def test_calls_that_never_return(trace: Path) -> None:
    """Calls without an answer cost no more than their lines: nothing is kept for each pair of them."""
    begun = [at(number, "InitStart", call=number, regs=[]) for number in range(20_000)]
    stops = [at(20_000 + number, "StopStart", call=20_000 + number) for number in range(20_000)]
    assert verified(written(trace, HEADER, *begun, *stops)).exit_code == 0


def test_byte_order_mark(trace: Path) -> None:
    """A trace that an editor saved with a byte order mark is a trace."""
    written(trace, HEADER, *listed("* * * * *"), *run(0), at(50, "Tick"))
    trace.write_bytes(b"\xef\xbb\xbf" + trace.read_bytes())
    assert verified(trace, "--targets").exit_code == 0


def test_rule_of_the_first_due() -> None:
    """With first_due "after" a task that is registered within a due minute is owed nothing yet."""
    lines = [*listed("4 * * * *", ms=30_000), at(10 * MINUTE, "End")]
    for rule, violations in (("minute", 1), ("after", 0)):
        encoded = [json.dumps(line).encode() + b"\n" for line in ({**HEADER, "first_due": rule}, *lines)]
        assert judged(encoded).tallies["L1"].violated == violations


EXHAUSTED = """
import resource, sys
from duly.cli.verify import verify
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (24 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
verify(sys.argv[1:])
"""


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_internal_error(trace: Path, as_json: tuple[str, ...]) -> None:
    """What fails inside the checker, here for want of memory, is exit code 70 and one sentence."""
    written(trace, HEADER, {"ev": "Tick", "t": T, "x": "x" * (40 << 20)})
    done = verified_outside(trace, *as_json, program=EXHAUSTED)
    assert done.returncode == 70, done.stderr
    told = json.loads(done.stdout)["error"]["message"] if as_json else done.stderr.rstrip("\n")
    assert "\n" not in told
    assert "MemoryError" in told
    assert str(trace) in told
    assert "no verdict" in told


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C while a trace is read is not exit code 1, which would say "violated"."""
    fifo = tmp_path / "trace.fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "duly", "verify", str(fifo)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with fifo.open("wb"):  # it is open on the other side, too, from here on
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in stderr
