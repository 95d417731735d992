"""Settings that cannot be used refuse the whole file to anyone who wants to run by it, and only to them."""

from pathlib import Path

import pytest

from duly.config.loading import load, load_to_run
from duly.config.schema import ConfigError, starts_at_boot


def test_bad_settings_refuse_to_run(tmp_path: Path) -> None:
    """A mistyped store is an invalid entry for `duly check`, and no start for `duly run`."""
    path = tmp_path / "duly.toml"
    path.write_text('[supervisor]\nstore = 5\n[[service]]\nid = "a"\ncommand = "true"\n')
    assert [bad.kind for bad in load(path).invalid] == ["supervisor"]
    with pytest.raises(ConfigError, match=r"duly\.toml:2: store"):
        load_to_run(path)


def test_bad_entries_do_not(tmp_path: Path) -> None:
    """An invalid service leaves the others to be run."""
    path = tmp_path / "duly.toml"
    path.write_text('[[service]]\nid = "a"\ncommand = "true"\n[[service]]\nid = "b"\n')
    assert [service.id for service in load_to_run(path).services] == ["a"]


def test_mistaken_timer_does_not_make_its_job_one_of_the_boot(tmp_path: Path) -> None:
    """The target of an invalid timer is still the job of a timer, and does not run at every start."""
    path = tmp_path / "duly.toml"
    path.write_text(
        '[[service]]\nid = "job"\ntype = "oneshot"\ncommand = "true"\n'
        '[[timer]]\nid = "t"\ntarget = "job"\non_startup_secs = 5\n'
    )
    config = load(path)
    assert [bad.id for bad in config.invalid] == ["t"]
    assert not starts_at_boot(config.services[0], config.targets)
