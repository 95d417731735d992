"""What a scheduler and a daemon look like from outside: metrics, spans, and a switch that notices silence.

    from duly.observe import Metrics

    metrics = Metrics()
    scheduler = Scheduler("state.db", listeners=[metrics.listener])

    events ──┬── metrics.Metrics   counts; successes and dues are read when Prometheus asks (readings)
             ├── spans.Spans       one span for each run that has ended
             └── deadman.DeadMan   a ping after each success, from threads

The invariant: an observer receives events and reads states, and never delays, changes or fails a run.
`Metrics` keeps what is in flight from its start event to its end event; a run whose end a crash cuts off is
in no count of ends, and has no span.

Threads: a listener is called on the event loop and does not wait. The text for Prometheus is encoded in any
thread, one at a time (`Metrics._dues_lock`). Each host that is pinged has a thread, up to a limit.

What fails: a library that is not installed is an ImportError that names what to install; a daemon then goes
without. A ping that fails is tried twice, and announced once for each outage (`DeadManPingFailed`). Names
beyond the limit share the label `other`. A listener that raises is reported by the announcer, and runs go on.
"""

from typing import TYPE_CHECKING

from duly.lazy import lazy_names

if TYPE_CHECKING:
    from duly.observe.deadman import DeadMan
    from duly.observe.metrics import Metrics
    from duly.observe.spans import Spans

__all__ = ["DeadMan", "Metrics", "Spans"]

# Each needs something else to be installed.
__getattr__ = lazy_names(__name__, {"DeadMan": "deadman", "Metrics": "metrics", "Spans": "spans"})
