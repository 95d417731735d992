"""The traces of all nodes of a cluster, judged together.

Each node records a trace of its own, as a single scheduler does. Times are those of the database, so traces
can be compared to within half a second.

    nodes -> history      nodes, runs and lists, made of the files; what was when
    merging               for each task the trace that one scheduler would have left; `verify.judge` judges it
    judging               everything together, and what only a cluster can do wrong: tokens, two runs at once
    timers                what is special about the traces of daemons; all else of them goes the same way

What a node could not do is not held against it: from its death, its loss of trust or its silence up to
`failover_ms` later, nothing is late. What the traces cannot tell is counted as unknown, never as violated.
"""

from duly.verify.cluster.judging import judged_together
from duly.verify.cluster.nodes import recordings
from duly.verify.cluster.timers import judged_timers

__all__ = ["judged_timers", "judged_together", "recordings"]
