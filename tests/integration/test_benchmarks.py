"""The benchmarks run from a copy of the code, so that nobody's edits change what they measure."""

import os
import subprocess
import sys
from pathlib import Path

from tools.benchmarks.bench import BENCHMARKS, copy_code


def test_copy_has_all_that_is_imported(tmp_path: Path) -> None:
    """Every benchmark, and what it imports of the tests, can be imported in the copy."""
    copy_code(tmp_path)
    late = ["tests.simulation", "tools.benchmarks.cluster_faults", "tools.benchmarks.cluster_on_duly"]
    names = [*(f"tools.benchmarks.{name}" for name in BENCHMARKS), *late]
    command = [sys.executable, "-c", f"import {', '.join(names)}, duly; print(duly.__file__)"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
