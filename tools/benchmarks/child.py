"""Measures one case, given as a benchmark and the case in JSON, and prints what it found."""

import importlib
import json
import sys

from tools.benchmarks.case import Case


def main() -> None:
    """Measure what the command line names."""
    name, case = sys.argv[1], Case(*json.loads(sys.argv[2]))
    print(json.dumps(importlib.import_module(f"tools.benchmarks.{name}").measure(case)))


if __name__ == "__main__":
    main()
