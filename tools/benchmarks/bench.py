"""Runs the benchmarks side by side with the peers; prints a table for each, then one for all (`make bench`).

Goals are for people to read: a missed goal does not fail. Only a benchmark that breaks does.
"""

import argparse
import compileall
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import chain
from pathlib import Path
from typing import cast

from tools.benchmarks import page
from tools.benchmarks.case import Benchmark, Case, Results, Row
from tools.benchmarks.peers import ROOT, prepared
from tools.benchmarks.report import table

BENCHMARKS = (
    *("cron_next", "cron_parse", "initialize", "restart"),
    *("memory", "burst", "idle", "proof", "linear", "daemon", "dashboard", "cluster"),
)
_CODE = ("src", "tools/benchmarks", "tests/worlds", "tests/simulation")
"""What the benchmarks run: of the tests a real PostgreSQL, and the simulation."""
_LONGEST_S = 3_600
_BEGAN_S = time.perf_counter()


def main() -> int:
    """Run what was asked for; the answer is the exit code."""
    options = _options()
    python = prepared(_say)
    if importlib.util.find_spec("duly") is None:  # anyone who asks may have a bare Python
        os.execv(python, [str(python), str(ROOT / "tools" / "benchmarks" / "run.py"), *sys.argv[1:]])
    with tempfile.TemporaryDirectory(prefix="duly-bench-code-") as folder:
        copy_code(Path(folder))
        compileall.compile_dir(folder, quiet=2)
        return _run_all(python, Path(folder), options)


def copy_code(folder: Path) -> None:
    """Copy the code to *folder*: one run measures one state of it, whatever is edited meanwhile."""
    for part in _CODE:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")


def _run_all(python: Path, code: Path, options: argparse.Namespace) -> int:
    rows: dict[str, Sequence[Row]] = {}
    measured: dict[str, Results] = {}
    failures = 0
    for name in page.BENCHMARKS if options.page else options.only or BENCHMARKS:
        benchmark = cast("Benchmark", importlib.import_module(f"tools.benchmarks.{name}"))
        results = measured[name] = Results()
        cases = [case for case in benchmark.cases(quick=options.quick) if options.case in str(case)]
        failures += _run(python, code, name, cases, results, workers=benchmark.WORKERS)
        rows[name] = benchmark.rows(results)
        print(table(rows[name]), flush=True)  # as it comes: the whole takes half an hour
    print(f"\nAll of it:\n{table(chain.from_iterable(rows.values()))}")
    if options.json:
        records = {name: results.as_records() for name, results in measured.items()}
        options.json.write_text(json.dumps(records, indent=1))
    if options.page:
        page.write_page(measured, rows)
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="this benchmark; may be repeated")
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases that have this in their names")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller peers, no long minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there")
    parser.add_argument(
        "--page", action="store_true", help="measure what docs/performance.md shows, and write it"
    )
    return parser.parse_args()


def _run(
    python: Path, code: Path, name: str, cases: Sequence[Case], results: Results, *, workers: int
) -> int:
    """Measure every case, round by round. The answer is how many broke."""
    failures = 0
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(_measured, python, code, name, case): case for case in _in_rounds(cases)}
        for count, future in enumerate(as_completed(waiting), 1):
            case, done = waiting[future], future.result()
            if done.returncode == 0:
                numbers = json.loads(done.stdout.splitlines()[-1])
                results.add(case, numbers)
                seen = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
            elif "ModuleNotFoundError" in done.stderr:
                seen = f"missing: {done.stderr.splitlines()[-1]}"
            else:
                failures += 1
                seen = f"BROKE\n{done.stderr}"
            _say(f"{name} {count}/{len(waiting)}: {case}: {seen}")
    return failures


def _in_rounds(cases: Sequence[Case]) -> Iterator[Case]:
    """Each case as often as it wants, but in turns: what is compared is measured at the same time."""
    for number in range(max((case.rounds for case in cases), default=0)):
        yield from (case for case in cases if number < case.rounds)


def _measured(python: Path, code: Path, name: str, case: Case) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "tools.benchmarks.child", name, json.dumps(case)]
    environment = os.environ | {"PYTHONPATH": str(code / "src")}
    try:
        return subprocess.run(
            command,
            cwd=code,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"took longer than {_LONGEST_S} s")


def _say(sentence: str) -> None:
    print(f"[{time.perf_counter() - _BEGAN_S:6.1f} s] {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
