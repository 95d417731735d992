"""Many SIGHUPs while the daemon cannot reload yet: the file is read once, as it is in the end."""

import os
import signal
from pathlib import Path

from tests.acceptance.running import Home

HELD_UP = """
[[service]]
id = "first"
type = "oneshot"
stage = 1
command = ["sh", "-c", "echo waits; read line < go-on"]
cwd = "."
"""


def test_hangups_that_come_together_are_one_reload(tmp_path: Path) -> None:
    """Hangups during a long start-up do not pile up: one reload answers them all."""
    os.mkfifo(tmp_path / "go-on")
    home = Home(tmp_path, HELD_UP)
    with home.running(is_awaited=False) as daemon:
        daemon.out.until("waits")
        for _ in range(5):
            daemon.send(signal.SIGHUP)
            assert home.duly("status").returncode == 0  # by now it has heard the signal
        (tmp_path / "go-on").write_text("go on\n")
        daemon.log.until("ConfigurationReloaded")
        assert home.duly("reload").returncode == 0
        daemon.log.until("ConfigurationReloaded", count=2)
        assert len(daemon.log.matching("ConfigurationReloaded")) == 2
