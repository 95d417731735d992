"""Several nodes in one simulation: real schedulers and nodes over one model of the table, in virtual time.

`cluster_lived` lives a plan, `cluster_recorded` gives the traces of it, `cluster_drawn` draws one from a
seed, `every_single` goes through every single fault of a small world. `python -m tests.simulation --nodes 3`
runs many of them. How it works is in docs/simulation.md.
"""

from tests.simulation.cluster.director import ClusterLife, cluster_lived, cluster_recorded
from tests.simulation.cluster.drawing import ClusterFaults, cluster_drawn
from tests.simulation.cluster.enumeration import SMALL, every_single
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.shortening import cluster_shrunk, cluster_story

__all__ = [
    "SMALL",
    "ClusterFaults",
    "ClusterLife",
    "ClusterPlan",
    "cluster_drawn",
    "cluster_lived",
    "cluster_recorded",
    "cluster_shrunk",
    "cluster_story",
    "every_single",
]
