"""A configuration in Python that starts programs: what it learns at a reload is what they did."""

import signal
from pathlib import Path

import pytest

from tests.acceptance.running import Home

FILE = """
import subprocess

command = ["sh", "-c", "echo x; exit 3"]
codes = {subprocess.run(command, capture_output=True).returncode for _ in range(20)}
SERVICES = [{"id": f"saw-{code}", "command": "sleep 1000"} for code in sorted(codes)]
"""


def test_reload_leaves_the_exits_of_its_programs_to_the_file(tmp_path: Path) -> None:
    """The reaper of orphans does not take exits that a configuration waits for: they would look like 0."""
    home = Home(tmp_path, FILE, "duly.py")
    with home.running():
        for _ in range(3):
            answer = home.duly("reload")
            assert (answer.returncode, answer.stdout) == (0, "Reloaded; nothing changed.\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [("import os; os._exit(5)", "calls exit"), ("raise KeyboardInterrupt", "raises KeyboardInterrupt")],
)
def test_a_file_cannot_end_the_daemon(tmp_path: Path, text: str, said: str) -> None:
    """A file that ends the process that loads it, as far as it can, changes nothing for a daemon at work."""
    home = Home(tmp_path, 'SERVICES = [{"id": "web", "command": "sleep 1000"}]', "duly.py")
    with home.running() as daemon:
        home.write(text)
        daemon.send(signal.SIGHUP)
        daemon.log.until(f"ConfigurationRefused .*{said}")
        seen = home.duly("services", "--json", "--socket", str(tmp_path / "duly.sock"), config=False)
        assert '"running"' in seen.stdout
        daemon.ended()
