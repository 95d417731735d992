"""The pytest plugin: installed with duly, it offers a clock to every test that asks for one.

pytest imports this module in every session, also where no test uses it, so it imports nothing of duly.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duly.testing.clock import VirtualClock


@pytest.fixture
def virtual_clock() -> "VirtualClock":
    """A virtual clock that reads 2026-01-01 00:00:00 UTC, a Thursday."""
    from duly.testing.clock import VirtualClock  # noqa: PLC0415 (only sessions that use it pay for it)

    return VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
