"""Starts the hunt for mutants from any directory; `python tools/mutants/run.py --help` says how."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
runpy.run_module("tools.mutants.command", run_name="__main__")
