"""Every integration test is judged twice: by its own assertions, and by the checker on what was recorded."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from duly.web.settings import WebLimits
from tests.worlds.scheduler import WORLDS
from tests.worlds.web_serving import GUARDED, Served, serving


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


@pytest.fixture(scope="module")
def open_server() -> Iterator[Served]:
    """A server of a loopback address, without tokens."""
    with serving() as served:
        yield served


@pytest.fixture
def open_site(open_server: Served) -> Served:
    """That server, with nothing done yet."""
    open_server.site.backend.did.clear()
    return open_server


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[Served]:
    """A server with a token for operators and one for viewers."""
    with serving(replace(GUARDED, limits=WebLimits(failures=1_000))) as served:
        yield served


@pytest.fixture
def guarded(guarded_server: Served) -> Served:
    """That server, with nothing done yet."""
    guarded_server.site.backend.did.clear()
    return guarded_server
