"""The boundary of the gate, where no import contract reaches: what is loaded, not only what may be."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "duly.daemon.daemon",
        "duly.daemon.foreground",
        "duly.cli.run",
        "duly.daemon.client",
        "duly.supervisor.supervisor",
    ],
)
def test_importing_the_daemon_imports_no_timers(module: str) -> None:
    """Whatever `duly run` loads before its gate opens holds nothing of timers."""
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith('duly.timers')])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout == "[]\n"
