"""The daemon as it is installed: idle, in a burst of jobs, when it is asked, reloaded and after many runs.

Real processes, the host's clock, a store on a real disk. supervisord has no timers and cron supervises
nothing, so each is next to duly where it does the same.
"""

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most

WORKERS = 1
_MODULES = {"duly": "daemon_duly", "supervisord": "daemon_supervisord", "cron": "daemon_cron"}
_NOT_RUN: dict[str, float | None] = {
    "systemd (it would have to be PID 1)": None,
    "supercronic (a binary from GitHub alone, in neither pip nor apt)": None,
}
_CPU_PERCENT = 0.1
_WAKEUPS_PER_MIN = 2
"""One at the beginning of each minute, and one more if not everybody looks in the same millisecond."""
_RESIDENT_MB = 60
_BURST_S = 10
_TIMES_SPAWN = 3
_CPU_MS = 0.6
_ANSWER_MS = 300
_GROWTH_MB = 2


def cases(*, quick: bool) -> list[Case]:
    """Idle ones last a minute, two unless *quick*."""
    rounds = 1 if quick else 3
    idle = "idle for 60 s" if quick else "idle for 120 s"
    return [
        *(Case("duly", n, f"timers {idle}") for n in (100, 1_000)),
        *(Case(name, 100, f"services {idle}") for name in ("duly", "supervisord")),
        *(Case(name, 500, "burst", rounds=rounds) for name in ("duly", "cron")),
        Case("duly", 1_000, "burst", rounds=rounds),
        *(Case(name, 100, "boot", rounds=rounds) for name in ("duly", "supervisord")),
        *(Case("duly", n, "list", rounds=rounds) for n in (100, 1_000, 10_000)),
        Case("supervisord", 100, "list", rounds=rounds),
        Case("duly", 1_000, "reload", rounds=rounds),
        Case("duly", 2_000 if quick else 10_000, "runs"),
    ]


def measure(case: Case) -> Numbers:
    """One contestant."""
    module = importlib.import_module(f"tools.benchmarks.{_MODULES[case.contestant]}")
    # Not under TMPDIR: the address of a unix socket has room for little more than a hundred bytes.
    with tempfile.TemporaryDirectory(prefix="duly-bench-", dir="/tmp") as folder:
        numbers: Numbers = module.MEASURES[case.variant.split(maxsplit=2)[0]](case, Path(folder))
    return numbers


def rows(results: Results) -> Sequence[Row]:
    """What the issue has goals for, and what it rests on."""
    return [*_idle_rows(results), *_burst_rows(results), *_answer_rows(results), *_long_rows(results)]


def _idle_rows(results: Results) -> Sequence[Row]:
    found: list[Row] = []
    for seconds in (60, 120):
        for n, kind in ((100, "timers"), (1_000, "timers"), (100, "services")):
            variant = f"{kind} idle for {seconds} s"
            if results.best("load", "duly", n, variant) is None:
                continue
            goals = (
                ("CPU", "cpu_percent", "% of a core", f"{_CPU_PERCENT} %", _CPU_PERCENT),
                ("wake-ups", "wakeups_per_min", "/min", f"{_WAKEUPS_PER_MIN}/min", _WAKEUPS_PER_MIN),
                ("resident set", "resident_mb", "MB", f"{_RESIDENT_MB} MB", _RESIDENT_MB),
            )
            peer = "supervisord"
            for name, key, unit, goal, limit in goals:
                value = results.best(key, "duly", n, variant)
                peers = {peer: results.best(key, peer, n, variant)} if kind == "services" else {}
                has_goal = kind == "timers"
                found.append(
                    Row(
                        f"idle daemon, {n:,} {kind}, {seconds} s, {name}",
                        unit,
                        value,
                        goal=goal if has_goal else "",
                        is_met=at_most(value, limit) if has_goal else None,
                        peers=peers,
                    )
                )
    return found


def _burst_rows(results: Results) -> Sequence[Row]:
    all_s = results.best("all_s", "duly", 500, "burst")
    return [
        Row(
            "500 jobs due at one minute, until all started",
            "s",
            all_s,
            goal=f"{_BURST_S} s, none lost or doubled",
            is_met=at_most(all_s, _BURST_S),
            peers={"cron": results.best("all_s", "cron", 500, "burst"), **_NOT_RUN},
        ),
        Row(
            "... until half started",
            "s",
            results.best("p50_s", "duly", 500, "burst"),
            peers={"cron": results.best("p50_s", "cron", 500, "burst")},
        ),
        Row(
            "... the daemon's CPU for each",
            "ms",
            results.best("cpu_ms", "duly", 500, "burst"),
        ),
        Row("... longest wait of a client meanwhile", "ms", results.best("delay_ms", "duly", 500, "burst")),
        *_spawn_rows(results),
        Row(
            "100 services, from the command to the last start",
            "s",
            results.best("all_s", "duly", 100, "boot"),
            peers={"supervisord": results.best("all_s", "supervisord", 100, "boot")},
        ),
    ]


def _spawn_rows(results: Results) -> Sequence[Row]:
    times = results.best("times_spawn", "duly", 1_000, "burst")
    cpu_ms = results.best("cpu_ms", "duly", 1_000, "burst")
    return [
        Row(
            "1,000 jobs due at one minute, first to last start, beside a bare posix_spawn loop",
            "times",
            times,
            goal=f"{_TIMES_SPAWN} times",
            is_met=at_most(times, _TIMES_SPAWN),
        ),
        Row(
            "... the daemon's CPU for each",
            "ms",
            cpu_ms,
            goal=f"{_CPU_MS} ms",
            is_met=at_most(cpu_ms, _CPU_MS),
            peers={"bare posix_spawn": results.best("spawn_cpu_ms", "duly", 1_000, "burst")},
        ),
    ]


def _answer_rows(results: Results) -> Sequence[Row]:
    found: list[Row] = []
    for n in (100, 1_000, 10_000):
        median_ms = results.best("median_ms", "duly", n, "list")
        has_goal = n <= 1_000
        peers = {"supervisorctl status": results.best("median_ms", "supervisord", n, "list")}
        found.append(
            Row(
                f"`duly timers`, {n:,} of them, median",
                "ms",
                median_ms,
                goal=f"{_ANSWER_MS} ms" if has_goal else "",
                is_met=at_most(median_ms, _ANSWER_MS) if has_goal else None,
                peers=peers if n == 100 else {},
            )
        )
        cpu = {"supervisorctl status": results.best("cpu_ms", "supervisord", n, "list")} if n == 100 else {}
        found.append(Row("... its CPU", "ms", results.best("cpu_ms", "duly", n, "list"), peers=cpu))
    delay_ms = results.best("delay_ms", "duly", 10_000, "list")
    found.append(Row("... longest wait of another client meanwhile, 10,000", "ms", delay_ms))
    return found


def _long_rows(results: Results) -> Sequence[Row]:
    rows_of_runs: list[Row] = []
    for n in (2_000, 10_000):
        grown_mb = results.best("grown_mb", "duly", n, "runs")
        if grown_mb is not None:
            rows_of_runs += [
                Row(
                    f"memory gained in the second half of {n:,} runs",
                    "MB",
                    grown_mb,
                    goal=f"{_GROWTH_MB} MB",
                    is_met=at_most(grown_mb, _GROWTH_MB),
                ),
                Row("... resident set at the end", "MB", results.best("resident_mb", "duly", n, "runs")),
                Row("... the daemon's CPU for each run", "ms", results.best("cpu_ms", "duly", n, "runs")),
            ]
    return [
        Row(
            "`duly reload`, 1,000 services, one changed",
            "ms",
            results.best("took_ms", "duly", 1_000, "reload"),
        ),
        Row(
            "... longest wait of a client meanwhile", "ms", results.best("delay_ms", "duly", 1_000, "reload")
        ),
        *rows_of_runs,
    ]
