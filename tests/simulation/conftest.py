import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """Nobody reads thousands of planned tracebacks; pytest would write them, a third of the work."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
