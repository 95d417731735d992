"""Starts the hunt for mutants from any directory; `python mutants/run.py --help` says how."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
runpy.run_module("mutants.command", run_name="__main__")
