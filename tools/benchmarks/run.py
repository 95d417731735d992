"""Starts the benchmarks from any directory; `python tools/benchmarks/run.py --help` says how."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
runpy.run_module("tools.benchmarks.bench", run_name="__main__")
