"""docs/performance.md and its two charts, from what the benchmarks have measured (`make performance`)."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tools.benchmarks import burst, memory
from tools.benchmarks.case import Results, Row
from tools.benchmarks.peers import ENVIRONMENT, ROOT
from tools.benchmarks.plot import Line, chart
from tools.benchmarks.report import shown
from tools.markdown import wrapped

BENCHMARKS = ("burst", "memory", "initialize", "restart")
"""What the page shows, in order."""

_LAGS, _MEGABYTES = "performance-lag.svg", "performance-memory.svg"
_PEERS = ("apscheduler", "aiocron", "schedule")

_HEAD = """# Performance

Written by `make performance`, which measures duly and the peers below in one run and writes down what it
found. No number on this page is typed by hand. How each is measured, and what else is, stands in
[tools/benchmarks/README.md](../tools/benchmarks/README.md). A goal that is missed is shown as it is.
"""

_SECTIONS = {
    "burst": (
        "Many tasks due at once",
        f"""All tasks are due at one instant. The lag is the time from that instant until the callback of a
task is called. duly has every start on disk, synced, before it calls. APScheduler with its SQLite job store
writes each job one by one; the others keep nothing.

![Lag against the number of due tasks]({_LAGS})

A burst starts in waves ([decision 0034](decisions/0034-waves.md)), so the first callbacks do not wait for the
last. Most of what is left is Python: a task of asyncio for each run, and what duly decides and notes of it.
The thread that writes and the event loop share one interpreter, so that only the work of SQLite itself and
of the disk goes on beside the callbacks.
""",
    ),
    "memory": (
        "Memory",
        f"""What is gained from a built list of registrations to the end of `initialize`. The chart shows the
growth of the resident set, which includes memory that was freed and not given back.

![Memory against the number of tasks]({_MEGABYTES})
""",
    ),
    "initialize": (
        "Taking in a list",
        """`initialize` on a new file. The peers add the same tasks as jobs, one by one as their interface
has it.
""",
    ),
    "restart": (
        "Starting again",
        """`initialize` on a file that holds every task. What it costs does not depend on the length of the
downtime.
""",
    ),
}


def write_page(
    measured: Mapping[str, Results], rows: Mapping[str, Sequence[Row]], folder: Path = ROOT / "docs"
) -> None:
    """Write the page and its charts."""
    lags, megabytes = _lags(measured["burst"]), _megabytes(measured["memory"])
    charts = {
        _LAGS: chart(lags, x_title="tasks due at one instant", y_title="99th percentile, ms"),
        _MEGABYTES: chart(megabytes, x_title="tasks", y_title="resident set, MB"),
    }
    for name, drawn in charts.items():
        (folder / name).write_text(drawn)
    (folder / "performance.md").write_text(wrapped("".join(_page(rows))))


def _page(rows: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield _HEAD
    path = [str(folder) for folder in ENVIRONMENT.glob("lib/*/site-packages")]
    found = {each.name.lower(): each.version for each in metadata.distributions(path=path)}
    peers = ", ".join(f"{peer} {found.get(peer, '(not installed)')}" for peer in _PEERS)
    yield f"\nMeasured with Python {platform.python_version()} on {_host()}, beside {peers}.\n"
    for name in BENCHMARKS:
        title, text = _SECTIONS[name]
        yield f"\n## {title}\n\n{text}\n"
        yield from _table(rows[name])


def _host() -> str:
    cpus = Path("/proc/cpuinfo")
    model = next(
        (line.partition(": ")[2] for line in _lines(cpus) if line.startswith("model name")), "unknown CPU"
    )
    return f"{os.cpu_count()} cores ({model}), {platform.system()} {platform.release()}"


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _table(rows: Sequence[Row]) -> Iterator[str]:
    peers = list(
        dict.fromkeys(peer for row in rows for peer, value in row.peers.items() if value is not None)
    )
    yield "| " + " | ".join(["what", "duly", "goal", *peers]) + " |\n" + "|---" * (3 + len(peers)) + "|\n"
    for row in rows:
        if row.duly is not None:
            goal = f"{row.goal}: {'met' if row.is_met else 'missed'}" if row.goal else ""
            cells = [row.what, shown(row.duly, row.unit), goal]
            cells += [shown(row.peers.get(peer), row.unit) for peer in peers]
            yield "| " + " | ".join(cells) + " |\n"


def _lags(results: Results) -> dict[str, Line]:
    """The 99th percentile of each contestant, by the number of tasks."""
    return _by_size(
        {
            name: {
                n: results.best("p99_ms", name, n, "shared" if name == "duly" else "") for n in burst.SIZES
            }
            for name in ("duly", *burst.PEERS)
        }
    )


def _megabytes(results: Results) -> dict[str, Line]:
    """The growth of the resident set of each contestant, by the number of tasks."""
    contestants = {
        "duly": ("duly", "shared resident"),
        "duly, distinct texts": ("duly", "distinct resident"),
        "APScheduler": ("APScheduler", "shared resident"),
    }
    return _by_size(
        {
            label: {n: _total_mb(results.best("bytes", name, n, variant), n) for n in memory.SIZES}
            for label, (name, variant) in contestants.items()
        }
    )


def _total_mb(bytes_each: float | None, n: int) -> float | None:
    return None if bytes_each is None else bytes_each * n / 1e6


def _by_size(values: Mapping[str, Mapping[int, float | None]]) -> dict[str, Line]:
    """The lines of those who were measured."""
    lines = {
        name: [(n, value) for n, value in sizes.items() if value is not None]
        for name, sizes in values.items()
    }
    return {name: line for name, line in lines.items() if line}
