"""The dashboard of a daemon with thousands of timers and a million runs: its pages, its cost, its harm.

Real daemons, the host's clock, requests over loopback from another process. Every request of a page is one
that nobody has asked for before, so that nothing is answered from what was kept.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tools.benchmarks import host
from tools.benchmarks.case import Case, Numbers, Results, Row, at_most
from tools.benchmarks.daemon_duly import Daemon
from tools.benchmarks.dashboard_browsers import TIMELINE, Browsers, timed
from tools.benchmarks.dashboard_store import fill
from tools.benchmarks.lags import compared, quantile

WORKERS = 1
_SERVICES = 5_000
_RUNS = 200
_HISTORY = Path("dashboard-history.db")
"""In the folder of this run: the first case makes it, the others copy it."""
_ZOOM = "/api/v1/timeline?first=2000&count=36&parts=300&"
"""In the middle of the lanes."""
_DAY_US = 86_400_000_000
_PAGES = {
    "/": "the first page",
    TIMELINE: "its time line",
    f"{_ZOOM}span={60 * _DAY_US}": "a zoom step, 30 days back",
    f"{_ZOOM}span={_DAY_US // 24}": "a zoom step, 30 minutes back",
    "/runs?result=failed": "runs that failed",
    "/runs?text=nothing+of+the+kind": "a text in the outputs of 7 days",
    "/timers": "/timers",
    "/services": "/services",
    "/timers/job-00007": "a timer's page",
    "/runs/900007": "a run's page",
    "/api/v1/timers": "/api/v1/timers",
    "/metrics": "/metrics",
}
_LONG = frozenset({"/api/v1/timers", "/metrics"})
"""Not pages: all there is, in one piece, and no parameter to make a request another one."""
_GOALS_MS = {"the first page": 150, "its time line": 150, "a zoom step": 150}
"""The page and its time line together are the first paint, which is to take less than 300 ms."""
_OPEN_PERCENT = 1.0
_SAME = 1.1
"""Up to what ratio lags count as the same."""
_RUN_EVERY_S = 6
_DUE = 100
_WATCHED = ("/",) * 20 + ("/timers",) * 10 + ("/services",) * 10
_SETTLE_S = 8
_CLEARED_S = 5
_BUSY_EVERY_S = 0.5
"""Longer than what the dashboard sends together, so that pages are asked for all the time."""


def cases(*, quick: bool) -> list[Case]:
    """One daemon each, on a copy of the same store."""
    return [
        Case("duly", _SERVICES, "store"),
        Case("duly", _SERVICES, f"pages {40 if quick else 200}"),
        Case("duly", _SERVICES, f"open {1 if quick else 3}"),
        Case("duly", _SERVICES, f"lag {2 if quick else 12}"),
    ]


def measure(case: Case) -> Numbers:
    """One of them."""
    kind, _, amount = case.variant.partition(" ")
    if kind == "store":
        began_s = time.perf_counter()
        _make_history(case.n)
        return {"took_s": time.perf_counter() - began_s, "size_mb": _HISTORY.stat().st_size / 1e6}
    with _running(case.n) as (daemon, url):
        return _MEASURES[kind](daemon, url, int(amount))


def rows(results: Results) -> Sequence[Row]:
    """What the issue has goals for, and what it rests on."""
    return [row for quick in (True, False) for row in _rows(results, quick=quick)]


# --- cases ---


def _pages(daemon: Daemon, url: str, count: int) -> Numbers:
    numbers: Numbers = {"started_s": host.uptime_s() - daemon.began_s}
    for path in _PAGES:
        sign = "&" if "?" in path else "?"
        asked = [path if path in _LONG else f"{path}{sign}benchmark={n}" for n in range(count + 3)]
        timed(url, asked[:3])
        before_s = host.cpu_s(daemon.pid)
        times_s = timed(url, asked[3:])
        cpu_s = host.cpu_s(daemon.pid) - before_s
        ordered = sorted(times_s)
        numbers |= {
            f"{path} p50_ms": quantile(ordered, 0.5) * 1000,
            f"{path} p99_ms": quantile(ordered, 0.99) * 1000,
            f"{path} cpu_ms": cpu_s * 1000 / count,
        }
    return numbers | {"resident_mb": host.resident_mb(daemon.pid), "load": host.load()}


def _open(daemon: Daemon, url: str, turns: int) -> Numbers:
    """Minutes without and with an open page in turns, and ten runs in each."""
    none, one, refreshes = [], [], 0
    for _ in range(turns):
        none.append(_minute(daemon))
        with Browsers(url, ["/"]) as browsers:
            time.sleep(3)
            one.append(_minute(daemon))
            refreshes += browsers.refreshes
    added = min(one) - min(none)
    return {
        "none_percent": min(none),
        "one_percent": min(one),
        "added_percent": added,
        "refreshes_per_min": refreshes / turns,
        "load": host.load(),
    }


def _minute(daemon: Daemon) -> float:
    """The daemon's share of a core during a minute with ten runs, in percent."""
    began_s, before_s = time.monotonic(), host.cpu_s(daemon.pid)
    for number in range(60 // _RUN_EVERY_S):
        daemon.client.ask("trigger", id=f"job-{4000 + number:05}")
        time.sleep(max(began_s + (number + 1) * _RUN_EVERY_S - time.monotonic(), 0))
    return (host.cpu_s(daemon.pid) - before_s) / (time.monotonic() - began_s) * 100


def _lag(daemon: Daemon, url: str, turns: int) -> Numbers:
    """Minutes without and with fifty open pages; at each, a hundred jobs are due.

    The first minute of a daemon is slow, and does not count. Which comes first changes from turn to turn. A
    job runs all the time, with or without pages, so that those are being made when the hundred are due.

    One minute differs from the next by more than what is looked for, with pages or without, because of what
    else the host of this machine does. So each turn gives one ratio, and all turns a mean and how far that
    can be trusted.
    """
    minutes: Mapping[str, list[list[float]]] = {"none": [], "fifty": []}
    pages = [*_WATCHED, *(f"/timers/job-{number:05}" for number in range(10))]
    refreshes = 0
    _lags_of_minute(daemon)
    for turn in range(turns):
        for name in ("none", "fifty") if turn % 2 == 0 else ("fifty", "none"):
            with Browsers(url, pages if name == "fifty" else []) as browsers:
                minutes[name].append(sorted(_lags_of_minute(daemon)))
                refreshes += browsers.refreshes
    found: Numbers = {"refreshes": refreshes / turns, "load": host.load()}
    for word, part in (("p50", 0.5), ("p99", 0.99)):
        each = {name: [quantile(lags, part) for lags in minutes[name]] for name in minutes}
        for name, lags in each.items():
            found |= {f"{name}_{word}_ms": median(lags)}
            found |= {f"{name}_{word}_best_ms": min(lags), f"{name}_{word}_worst_ms": max(lags)}
        ratios = compared(each["none"], each["fifty"])
        found |= {
            f"{word}_ratio{end}": value for end, value in zip(("", "_low", "_high"), ratios, strict=True)
        }
    return found


def _lags_of_minute(daemon: Daemon) -> list[float]:
    """How late the process of each job began that was due at the next minute, in milliseconds."""
    _, due_s = host.next_minute(6)
    noted, number, is_clear = daemon.folder / "started", 0, False
    while host.uptime_s() < due_s + _SETTLE_S:
        if not is_clear and host.uptime_s() > due_s - _CLEARED_S:
            noted.unlink(missing_ok=True)  # not before: the minute that is over may have noted its own
            is_clear = True
        daemon.client.ask("trigger", id=f"job-{3000 + number % 1000:05}")
        number += 1
        time.sleep(_BUSY_EVERY_S)
    return [(started_s - due_s) * 1000 for started_s in host.starts(noted, _DUE)]


_MEASURES = {"pages": _pages, "open": _open, "lag": _lag}


# --- the daemon ---


def _make_history(services: int) -> None:
    making = _HISTORY.with_suffix(".part")
    fill(making, services, _RUNS)
    making.rename(_HISTORY)


@contextmanager
def _running(services: int) -> Iterator[tuple[Daemon, str]]:
    if not _HISTORY.exists():
        _make_history(services)
    with tempfile.TemporaryDirectory(prefix="duly-bench-", dir="/tmp") as folder:
        shutil.copy(_HISTORY, Path(folder) / "duly.db")
        daemon = Daemon(Path(folder), _tables(services, Path(folder)))
        try:
            daemon.wait()
            yield daemon, str(daemon.client.ask("status")["dashboard"])
        finally:
            daemon.end()


def _tables(services: int, folder: Path) -> str:
    """Each service with a timer of its own: some fire at every minute, the others hours from now."""
    hour = time.gmtime().tm_hour
    parts = ['[dashboard]\nlisten = "127.0.0.1:0"\n']
    for number in range(services):
        name = json.dumps(f"job-{number:05}")
        is_due = number < _DUE
        when = '"*"' if is_due else str(number % 60)
        at = f"minute = {when}" if is_due else f"minute = {when}, hour = {(hour + 3 + number % 18) % 24}"
        note = ["sh", "-c", host.NOTE, str(folder / "started"), f"job-{number:05}"]
        command = json.dumps(note if is_due else ["true"])
        parts.append(f'[[service]]\nid = {name}\ntype = "oneshot"\ncommand = {command}\n')
        parts.append(f"[[timer]]\nid = {name}\ntarget = {name}\non_calendar = [{{{at}}}]\n")
    return "".join(parts)


# --- rows ---


def _rows(results: Results, *, quick: bool) -> Iterator[Row]:
    variants = {case.variant.partition(" ")[0]: case.variant for case in cases(quick=quick)}

    def of(kind: str, name: str) -> float | None:
        return results.best(name, "duly", _SERVICES, variants[kind])

    whole = f"{_SERVICES:,} timers, {_SERVICES * _RUNS:,} runs"
    if of("pages", "load") is not None:
        yield Row(f"daemon with {whole}, until it has started", "s", of("pages", "started_s"))
        for path, name in _PAGES.items():
            for word in ("p50", "p99"):
                value = of("pages", f"{path} {word}_ms")
                goal = next((ms for start, ms in _GOALS_MS.items() if name.startswith(start)), None)
                met = None if goal is None else at_most(value, goal)
                said = "" if goal is None else f"{goal} ms"
                yield Row(f"{name}, {whole}, {word}", "ms", value, goal=said, is_met=met)
            yield Row("... the daemon's CPU for each", "ms", of("pages", f"{path} cpu_ms"))
    if (added := of("open", "added_percent")) is not None:
        what = "ten runs a minute, daemon's CPU"
        yield Row(f"{what}, no page open", "% of a core", of("open", "none_percent"))
        yield Row(f"{what}, one page open", "% of a core", of("open", "one_percent"))
        met = at_most(added, _OPEN_PERCENT)
        yield Row("... added by the page", "% of a core", added, goal=f"{_OPEN_PERCENT:g} %", is_met=met)
        yield Row("... it was made up to date", "/min", of("open", "refreshes_per_min"))
    for word in ("p50", "p99"):
        if of("lag", "load") is not None:
            for name, pages in (("none", "no page open"), ("fifty", "fifty open")):
                what = f"start lag of {_DUE} jobs due at one minute, {word}, {pages}"
                yield Row(f"{what}, middle of the minutes", "ms", of("lag", f"{name}_{word}_ms"))
                yield Row("... best minute", "ms", of("lag", f"{name}_{word}_best_ms"))
                yield Row("... worst minute", "ms", of("lag", f"{name}_{word}_worst_ms"))
            low, high = of("lag", f"{word}_ratio_low"), of("lag", f"{word}_ratio_high")
            is_shown = True if at_most(high, _SAME) else False if not at_most(low, _SAME) else None
            what, same = f"{word}, fifty open pages against none", f"the same (up to {_SAME:g})"
            yield Row(what, "times", of("lag", f"{word}_ratio"), goal=same, is_met=is_shown)
            yield Row("... with a certainty of 19 in 20 at least", "times", low)
            yield Row("... and at most", "times", high)
