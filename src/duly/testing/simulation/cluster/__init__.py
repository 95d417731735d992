"""Several members in one simulation: real schedulers on real members over one board, in one virtual time.

`cluster_lived` lives a plan, `cluster_drawn` draws one from a seed, `every_wrong` goes through everything
that can go wrong in a small world. `python -m duly.testing.simulation.cluster` runs many of them; how it
works is told in docs/simulation.md.
"""

from duly.testing.simulation.cluster.director import ClusterLife, cluster_lived
from duly.testing.simulation.cluster.drawing import ClusterFaults, cluster_drawn
from duly.testing.simulation.cluster.enumeration import WORLDS, every_wrong, visited
from duly.testing.simulation.cluster.numbers import ClusterNumbers, cluster_numbers_of
from duly.testing.simulation.cluster.plan import ClusterPlan
from duly.testing.simulation.cluster.telling import cluster_shrunk, cluster_story

__all__ = [
    "WORLDS",
    "ClusterFaults",
    "ClusterLife",
    "ClusterNumbers",
    "ClusterPlan",
    "cluster_drawn",
    "cluster_lived",
    "cluster_numbers_of",
    "cluster_shrunk",
    "cluster_story",
    "every_wrong",
    "visited",
]
