"""The lock files: every package pinned and hashed, users' packages apart from the tools of developers."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
RUNTIME, DAEMON, DEV = "requirements.lock", "requirements-daemon.lock", "requirements-dev.lock"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


class Pin(NamedTuple):
    """One entry of a lock file."""

    requirement: Requirement
    options: tuple[str, ...]

    @property
    def version(self) -> str:
        """The one version that it allows."""
        [specifier] = self.requirement.specifier
        assert specifier.operator == "=="
        return specifier.version


def logical_lines(file: str) -> list[str]:
    text = (ROOT / file).read_text()
    without_comments = "\n".join(line for line in text.split("\n") if not line.strip().startswith("#"))
    return [line for line in without_comments.replace("\\\n", " ").split("\n") if line.strip()]


def pins(file: str) -> dict[str, Pin]:
    found: dict[str, Pin] = {}
    for line in logical_lines(file):
        text, *options = re.split(r"\s+(?=--)", line.strip())
        requirement = Requirement(text)
        found[canonicalize_name(requirement.name)] = Pin(requirement, tuple(options))
    return found


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def wanted_by_users(*names: str) -> list[Requirement]:
    table = project()["project"]
    optional = table["optional-dependencies"]
    extras = [each for name in names or optional for each in optional[name]]
    found = [Requirement(each) for each in (*table["dependencies"], *extras)]
    return [each for each in found if each.name != "duly"]


def wanted_by_developers() -> list[Requirement]:
    table = project()
    return [
        Requirement(each) for each in (*table["dependency-groups"]["dev"], *table["build-system"]["requires"])
    ]


@pytest.mark.parametrize("file", [RUNTIME, DAEMON, DEV])
def test_everything_is_pinned_and_hashed(file: str) -> None:
    """Each entry of a lock names one version and the hashes of its files, and no place to get them from."""
    found = pins(file)
    assert found
    for pin in found.values():
        assert pin.version
        assert pin.requirement.url is None
        assert pin.options
        assert all(HASH.fullmatch(option) for option in pin.options), pin.requirement.name
    assert "://" not in (ROOT / file).read_text()


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        (RUNTIME, wanted_by_users()),
        (DAEMON, wanted_by_users("web", "metrics")),
        (DEV, wanted_by_developers()),
    ],
)
def test_everything_declared_is_locked(file: str, wanted: list[Requirement]) -> None:
    """Each dependency of pyproject.toml is in its lock, in a version that the declaration allows."""
    found = pins(file)
    assert wanted
    for each in wanted:
        pin = found[canonicalize_name(each.name)]
        assert each.specifier.contains(pin.version, prereleases=True), each


def test_users_get_no_test_tool() -> None:
    """What users install holds no tool of developers."""
    assert not pins(RUNTIME).keys() & {canonicalize_name(each.name) for each in wanted_by_developers()}


@pytest.mark.parametrize("file", [DAEMON, DEV])
def test_the_locks_agree(file: str) -> None:
    """A package that two locks hold has one version and the same hashes, so that they install together."""
    runtime, other = pins(RUNTIME), pins(file)
    shared = runtime.keys() & other.keys()
    assert shared
    for name in shared:
        assert runtime[name].version == other[name].version, name
        assert set(runtime[name].options) == set(other[name].options), name


def test_the_daemon_needs_nothing_else() -> None:
    """What `make run` installs is a part of what users get, without Celery and PostgreSQL."""
    assert pins(DAEMON).keys() < pins(RUNTIME).keys()
    assert not pins(DAEMON).keys() & {"celery", "psycopg"}


def test_make_installs_nothing_unchecked() -> None:
    """What make installs is hash-checked, and nothing is built with fetched tools."""
    recipes = (ROOT / "Makefile").read_text().partition("\n$(READY):")[2].replace("\\\n", " ")
    tests, own, daemon = [shlex.split(line) for line in recipes.split("\n") if "pip install" in line]
    assert {"--require-hashes", "--only-binary", RUNTIME, DEV} <= set(tests)
    assert {"--no-deps", "--no-build-isolation", "."} <= set(own)
    assert {"--require-hashes", "--only-binary", DAEMON} <= set(daemon)
