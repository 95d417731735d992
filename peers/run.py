"""Measures the peers and writes docs/peers.md, from any directory: `python peers/run.py`."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
runpy.run_module("peers.page", run_name="__main__")
