"""What many lives add up to: the closing numbers of a simulation, which processes can add together."""

from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import UTC, timedelta

from duly.instant import SECOND_US, datetime_at
from tests.simulation.cluster import ClusterLife
from tests.simulation.drawing import changes_us
from tests.simulation.life import Life

_YEAR_US = round(365.25 * 86_400 * SECOND_US)
_MOST_KEPT = 20


@dataclass(slots=True)
class Numbers:
    """What was simulated, and what was found."""

    lives: int = 0
    simulated_us: int = 0
    starts: int = 0
    events: int = 0
    crashes: int = 0
    points_passed: int = 0
    """Moments at which a process could have died."""
    points_due: int = 0
    """Crash points that an enumeration has to visit ..."""
    points_visited: int = 0
    """... and those it has visited."""
    clock_changes: int = 0
    """How often the clocks of a zone changed for summer or winter within a life."""
    counts: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    """Rare paths of the scheduler that were taken."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Seeds that failed, and the first thing that is wrong with each."""
    failed: int = 0

    @property
    def years(self) -> float:
        """Simulated time."""
        return self.simulated_us / _YEAR_US

    def merged(self, other: "Numbers") -> "Numbers":
        """Both together."""
        values = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        values["failures"] = values["failures"][:_MOST_KEPT]
        return Numbers(**values)


def numbers_of(life: Life) -> Numbers:
    start = datetime_at(life.plan.start_us, UTC)
    end = max(datetime_at(life.last_us, UTC), start + timedelta(microseconds=life.steady_us))
    return Numbers(
        lives=1,
        simulated_us=life.steady_us,
        starts=life.starts,
        events=life.outcome.events,
        crashes=life.outcome.crashes,
        points_passed=sum(life.points.values()),
        clock_changes=sum(1 for _ in changes_us(life.plan.zone, start, end)),
        counts=life.counts,
        marks=life.marks,
        failures=[] if life.is_sound else [(life.plan.seed, life.faults[0])],
        failed=0 if life.is_sound else 1,
    )


def numbers_of_cluster(life: ClusterLife) -> Numbers:
    return Numbers(
        lives=1,
        simulated_us=life.steady_us,
        starts=life.starts,
        counts=life.counts + Counter({"starts demanded and in time": life.demands}),
        marks=life.marks,
        failures=[] if life.is_sound else [(life.plan.seed, life.faults[0])],
        failed=0 if life.is_sound else 1,
    )
