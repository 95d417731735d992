"""What many lives of clusters add up to."""

from collections import Counter
from dataclasses import dataclass, field, fields

from duly.instant import MINUTE_US
from duly.testing.simulation.cluster.director import ClusterLife, cluster_lived
from duly.testing.simulation.cluster.drawing import ClusterFaults, cluster_drawn

_MOST_KEPT = 20
_LARGEST = frozenset({"slowest_us", "slowest_failover_us"})


@dataclass(slots=True)
class ClusterNumbers:
    """What was simulated, and what was found."""

    lives: int = 0
    member_us: int = 0
    """How long all programs together lived."""
    starts: int = 0
    owed: int = 0
    """Starts that were judged to have come in time."""
    events: int = 0
    """Events in the traces that were judged."""
    unknown: int = 0
    """Questions that the traces could not answer."""
    slowest_us: int = 0
    """The longest that a start was owed while nothing was wrong, in millionths of a lease."""
    slowest_failover_us: int = 0
    """The longest from the last renewal of a member to the taking of a shard of it; likewise."""
    counts: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    failed: int = 0

    @property
    def member_hours(self) -> float:
        """How long all programs together lived, in hours."""
        return self.member_us / (60 * MINUTE_US)

    def merged(self, other: "ClusterNumbers") -> "ClusterNumbers":
        """Both together."""
        values = {
            each.name: max(getattr(self, each.name), getattr(other, each.name))
            if each.name in _LARGEST
            else getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
        }
        values["failures"] = values["failures"][:_MOST_KEPT]
        return ClusterNumbers(**values)


def cluster_numbers_of(life: ClusterLife) -> ClusterNumbers:
    """The numbers of one life."""
    ttl_us = life.plan.ttl_us
    return ClusterNumbers(
        lives=1,
        member_us=life.member_us,
        starts=life.reckoning.starts,
        owed=life.reckoning.owed,
        events=life.outcome.events,
        unknown=sum(tally.unknown for tally in life.outcome.tallies.values()),
        slowest_us=life.reckoning.slowest_us * 1_000_000 // ttl_us,
        slowest_failover_us=life.slowest_failover_us * 1_000_000 // ttl_us,
        counts=life.counts,
        marks=life.marks,
        failures=[] if life.is_sound else [(life.plan.seed, life.faults[0])],
        failed=0 if life.is_sound else 1,
    )


def cluster_seeds(first: int, number: int, members: int, faults: ClusterFaults) -> ClusterNumbers:
    """The numbers of some seeds."""
    total = ClusterNumbers()
    for seed in range(first, first + number):
        total = total.merged(cluster_numbers_of(cluster_lived(cluster_drawn(seed, members, faults))))
    return total
