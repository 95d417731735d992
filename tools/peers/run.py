"""Measures the peers and writes docs/peers.md, from any directory: `python tools/peers/run.py`."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
runpy.run_module("tools.peers.page", run_name="__main__")
