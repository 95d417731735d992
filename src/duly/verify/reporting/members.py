"""The members of a cluster as they are drawn: what each held, what befell it, and who took over from whom.

Plain values. How many shards a member held is a row of levels; like everything that is drawn it is bounded:
changes that lie closer together than the eye can tell become one, which shows the highest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from duly.verify.reporting.history import Stretch

MOST_LEVELS = 300
"""Changes of one step line."""


class Level(NamedTuple):
    """From when on it was so many."""

    at_us: int
    number: int


class Failover(NamedTuple):
    """A member took shards that another had lost; *other* is empty if nobody knows which."""

    member: str
    other: str
    lost_us: int
    taken_us: int
    shards: int
    line: int


class Biography(NamedTuple):
    """One member in a few words."""

    member: str
    from_us: int
    to_us: int
    processes: int
    starts: int
    most_shards: int
    taken_over: int
    """How many shards it took that others had lost."""
    ending: str


@dataclass(slots=True)
class MemberLane:
    """One member: how many shards it held, and what befell it."""

    levels: list[Level] = field(default_factory=list)
    marks: list[Stretch] = field(default_factory=list)


@dataclass(slots=True)
class Members:
    """The rows that only the pictures of a cluster have."""

    shards: int
    colours: dict[str, int]
    """Of every member, whether it has a lane or not."""
    lanes: dict[str, MemberLane] = field(default_factory=dict)
    free: list[Level] | None = None
    """How many shards were without a living holder; None if that is not drawn."""
    held: dict[int, list[Stretch]] = field(default_factory=dict)
    """By shard, who held it when."""
    failovers: list[Failover] = field(default_factory=list)
    lanes_left_out: int = 0
    failovers_left_out: int = 0


def counted_over(spans: Sequence[tuple[int, int]]) -> list[Level]:
    """How many of *spans* there are at each time, from the first on."""
    changes = [(from_us, 1) for from_us, to_us in spans if from_us < to_us]
    changes += [(to_us, -1) for from_us, to_us in spans if from_us < to_us]
    levels, count = list[Level](), 0
    for at_us, group in groupby(sorted(changes), key=lambda each: each[0]):
        by = sum(change for _, change in group)
        if by:
            count += by
            levels.append(Level(at_us, count))
    return levels


def within(levels: Sequence[Level], from_us: int, to_us: int, most: int = MOST_LEVELS) -> list[Level]:
    """The levels in a window, the one that it begins with included; *most* columns if there are more."""
    first = max((each for each in levels if each.at_us <= from_us), default=Level(from_us, 0))
    inside = [each for each in levels if from_us < each.at_us <= to_us]
    if len(inside) <= most:
        return [Level(from_us, first.number), *inside]
    column_us = (to_us - from_us) // most + 1
    shown, count = [Level(from_us, first.number)], first.number
    for column, group in groupby(inside, key=lambda each: (each.at_us - from_us) // column_us):
        counts = [count, *(each.number for each in group)]
        count = counts[-1]
        begins_us = from_us + column * column_us
        if shown[-1].at_us == begins_us:
            shown.pop()
        shown += [Level(begins_us, max(counts)), Level(begins_us + column_us, count)]
    return shown
