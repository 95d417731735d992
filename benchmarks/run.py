"""Starts the benchmarks from any directory; `python benchmarks/run.py --help` says how."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
runpy.run_module("benchmarks.bench", run_name="__main__")
