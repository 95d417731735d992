"""A timer whose stored row is damaged does not run: the log, the commands and the dashboard all say so."""

import socket
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.acceptance.running import Home, oneshot, settings, timer
from tests.integration.test_timers_store import Disk
from tests.worlds.timers import HOURLY, TimerWorld
from tests.worlds.timers import timer as defined

ON_THE_HOUR = {"on_calendar": {"minute": 0}}
CONFIG = (
    settings(timers=True, timezone="UTC")
    + oneshot("job", "true")
    + timer("bad", "job", **ON_THE_HOUR)
    + timer("good", "job", **ON_THE_HOUR)
)
SENTENCE = 'The stored state of timer "bad" cannot be read: expected `int`'
REMEDY = "take the timer out of the configuration, reload, and put it back"


def damage(path: Path) -> None:
    """Give the row of a timer a time that cannot be."""
    with closing(sqlite3.connect(path)) as store, store:
        assert store.execute("UPDATE timer SET answered_us = 1 << 62 WHERE name = 'bad'").rowcount == 1


def page(path: Path, name: str) -> str:
    """A page of the dashboard."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(f"GET {name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while chunk := client.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 200"), received
    return received.decode()


def row_of(said: str, name: str) -> list[str]:
    """The cells of a row of a table."""
    [row] = [line.split() for line in said.splitlines() if line.startswith(f"{name} ")]
    return row


def test_an_unreadable_timer_is_reported_everywhere(tmp_path: Path) -> None:
    """Log, status, timers and dashboard name the timer and the remedy; commands also without a daemon."""
    home = Home(tmp_path, "")
    home.config.write_text(f'{CONFIG}\n[dashboard]\nlisten = "unix:web.sock"\n')
    with home.running() as daemon:
        daemon.log.until("TimersEnabled")
        assert home.asked("status")["health"]["ok"]
        assert home.asked("timers", "bad")["fault"] is None
        daemon.ended()
    damage(tmp_path / "duly.db")
    with home.running() as daemon:
        [line] = daemon.log.until("TimerUnreadable")
        assert " ERROR " in line
        assert "timer=bad reason=expected `int`" in line
        assert REMEDY in line
        shown = page(tmp_path / "web.sock", "/timers")
        assert shown.count("unreadable") == 1
        assert REMEDY in page(tmp_path / "web.sock", "/timers/bad")
        refused = home.duly("trigger", "bad")
        assert (refused.returncode, "stored state is damaged" in refused.stderr) == (1, True)
        _check_commands(home, code=1)
        assert len([line for line in daemon.ended() if "TimerUnreadable" in line]) == 1
    _check_commands(home, code=69)


def _check_commands(home: Home, *, code: int) -> None:
    status = home.duly("status", "--check")
    assert status.returncode == code
    assert status.stdout.count(SENTENCE) == 1
    seen = home.duly("timers").stdout
    assert row_of(seen, "bad")[:3] == ["bad", "job", "unreadable"]
    assert row_of(seen, "good")[:3] == ["good", "job", "yes"]
    assert "1 unreadable timer:" in seen
    assert SENTENCE in seen
    assert REMEDY in seen
    assert f"does not run    {SENTENCE}" in home.duly("timers", "bad").stdout
    faults = {each["id"]: each["fault"] for each in home.asked("timers")["timers"]}
    assert faults["good"] is None
    assert faults["bad"].startswith(SENTENCE)
    assert home.asked("timers", "bad")["next_run_at"] is None


async def test_a_damaged_row_is_not_overwritten_by_a_reload(tmp_path: Path) -> None:
    """A timer that is declared again finds its damaged row, does not run, and leaves the row as it is."""
    disk = Disk(tmp_path / "s.db")
    world = TimerWorld("12:59:00", repository=await disk.open())
    bad, good = defined("bad", on_calendar=HOURLY), defined("good", "other", on_startup_sec=1)
    await world.begin(bad)
    await world.stop()
    await disk.close()
    disk.sql("UPDATE timer SET answered_us = ? WHERE name = 'bad'", 2**62)
    damaged = disk.sql("SELECT * FROM timer WHERE name = 'bad'")
    world.repository = await disk.open()
    timers = await world.begin(good)
    assert timers.unreadable == {}
    await timers.reload([good, bad])
    assert disk.sql("SELECT * FROM timer WHERE name = 'bad'") == damaged
    assert list(timers.unreadable) == ["bad"]
    assert [event.fields["timer"] for event in world.events if event.name == "TimerUnreadable"] == ["bad"]
    await world.stop()
    await disk.close()
