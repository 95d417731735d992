"""Jobs in a real daemon: they run, are triggered, and change with the files that hold them."""

from pathlib import Path

from tests.acceptance.running import Home

CONFIG = """\
[supervisor]
timers = true
watch = true
include = "conf.d/*.toml"

[defaults]
env = { GREETING = "hello" }

[[job]]
id = "often"
command = ["/bin/sh", "-c", "echo $GREETING $WHO"]
every = "1s"
env = { WHO = "world" }
"""
OTHER = '[[job]]\nid = "{}"\ncommand = "echo {}"\non_startup = "1d"\n'


def test_jobs_run(tmp_path: Path) -> None:
    """A job fires at its rate, with its variables and those of the defaults, and the monitor agrees."""
    home = Home(tmp_path, CONFIG)
    with home.running() as daemon:
        daemon.out.until("hello world", count=3)
        [often] = home.asked("timers")["timers"]
        assert (often["id"], often["target"], often["schedule"]) == ("often", "often", "Every 1s")
        lines = daemon.ended()
    assert [line for line in lines if "PropertyViolated" in line] == []


def test_files_are_watched(tmp_path: Path) -> None:
    """A file that appears, breaks and goes is read without being asked for; a broken one removes nothing."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    home = Home(tmp_path, CONFIG)
    with home.running() as daemon:
        (folder / "a.toml").write_text(OTHER.format("one", "first"))
        daemon.log.until("ConfigurationReloaded.*timer one")
        (folder / "a.toml").write_text("[[job")
        daemon.log.until("EntryInvalid.*is not TOML")
        assert {each["id"] for each in home.asked("timers")["timers"]} == {"often", "one"}
        (folder / "a.toml").unlink()
        daemon.log.until("ConfigurationReloaded.*removed.*timer one")
        assert {each["id"] for each in home.asked("timers")["timers"]} == {"often"}
        daemon.ended()
