"""Every integration test is judged twice: by its own assertions, and by the checker on what was recorded."""

from collections.abc import Iterator

import pytest

from tests.world import WORLDS


@pytest.fixture(autouse=True)
def _judge(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test whose worlds violate the model; `excused` names what it breaks on purpose."""
    WORLDS.clear()
    yield
    marker = request.node.get_closest_marker("excused")
    excused = set(marker.args) if marker else set()
    for world in WORLDS:
        outcome = world.record.judged()
        assert [fault for fault in outcome.faults if "trace" not in excused] == []
        assert [v.property + ": " + v.reason for v in outcome.violations if v.property not in excused] == []
