"""What a scheduler and a daemon look like from outside: metrics, spans, and a switch that notices silence.

    from duly.observe import Metrics

    metrics = Metrics()
    scheduler = Scheduler("state.db", listeners=[metrics.listener])

Everything here is a listener of events and knows nothing else of what it watches.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.observe.deadman import DeadMan
    from duly.observe.metrics import Metrics
    from duly.observe.spans import Spans

__all__ = ["DeadMan", "Metrics", "Spans"]

_HOMES = {"DeadMan": "deadman", "Metrics": "metrics", "Spans": "spans"}


def __getattr__(name: str) -> Any:
    # Each needs something else to be installed.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
