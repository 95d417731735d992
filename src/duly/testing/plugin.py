"""The pytest plugin: installed with duly, it offers a clock to every test that asks for one."""

from datetime import UTC, datetime

import pytest

from duly.testing.clock import VirtualClock


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A virtual clock that reads 2026-01-01 00:00:00 UTC, a Thursday."""
    return VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
