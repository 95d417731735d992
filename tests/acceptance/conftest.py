"""Nodes and daemons that share the database of a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.cluster import World
from tests.worlds.fleet import Fleet


@pytest.fixture
def world(postgres_url: str, tmp_path: Path, lease_s: float) -> Iterator[World]:
    with World(postgres_url, tmp_path, lease_s=lease_s) as world:
        yield world


@pytest.fixture
def fleet(postgres_url: str, tmp_path: Path, lease_s: float) -> Iterator[Fleet]:
    with Fleet(postgres_url, tmp_path, lease_s=lease_s) as fleet:
        yield fleet
