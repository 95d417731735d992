"""The pictures of a cluster: who held what, the time lines of its tasks, and one around each violation.

As in those of one scheduler, each picture holds a bounded number of stretches and of rows, and whoever has a
violation comes first. A run is drawn where its member recorded it, by the clock of the board.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from duly.verify.cluster import recordings
from duly.verify.cluster.lives import shard_of
from duly.verify.cluster.whole import Whole
from duly.verify.reporting.history import Kind, Registration, Stretch
from duly.verify.reporting.holding import Holding
from duly.verify.reporting.members import MemberLane, Members, within
from duly.verify.reporting.report import Finding, Report
from duly.verify.reporting.timeline import (
    MOST_STRETCHES,
    Lane,
    Picture,
    Pictures,
    empty_overview,
    finish,
    flag,
    zoom,
)
from duly.verify.trace import Given, Lost, Taken

MOST_TASKS = 12
MOST_MEMBERS = 16
MOST_FAILOVERS = 40
_MOST_ZOOM_ROWS = 6


def cluster_pictures(report: Report, lines: Iterable[bytes]) -> Pictures:
    """What is drawn of the traces *lines* of all members, which are read to their end."""
    holding = Holding(Whole(recordings(lines)))
    if not holding.lives:
        return Pictures(None, {})
    return _Studio(report, holding).pictures(empty_overview(report, holding.times_us(), MOST_TASKS))


class _Studio:
    """Draws one cluster."""

    def __init__(self, report: Report, holding: Holding) -> None:
        self._report = report
        self._holding = holding
        self._shards = holding.whole.shards
        self._colours = {member: number for number, member in enumerate(holding.lives)}
        self._across = list(holding.crossings())
        self._births = sorted((life.first.line, life.member) for life in holding.whole.lives)
        # The same few tasks and shards are in many pictures.
        self._runs = lru_cache(maxsize=MOST_TASKS)(lambda task: list(holding.runs(task)))
        self._holds = lru_cache(maxsize=MOST_TASKS)(holding.holds)

    def pictures(self, overview: Picture) -> Pictures:
        """All of them; *overview* has the tasks of violations."""
        holders = Picture(overview.from_us, overview.to_us, MOST_STRETCHES)
        holders.flags = [
            flag(each)._replace(task=None, member=self._members(each)[-1]) for each in self._report.shown
        ]
        self._draw_holders(holders)
        overview.flags = [flag(each) for each in self._report.shown if each.task in overview.lanes]
        self._draw_tasks(overview)
        zooms = {finding.number: self._zoom(finding) for finding in self._report.shown}
        return Pictures(overview, zooms, holders, tuple(self._holding.biographies()))

    def _draw_holders(self, picture: Picture) -> None:
        """Everybody, or if they are too many those with violations and those who held most."""
        held_us = {member: self._held_us(member) for member in self._colours}
        named = {each.member for each in picture.flags}
        order = sorted(self._colours, key=lambda member: (member not in named, -held_us[member]))
        chosen = set(order[:MOST_MEMBERS])
        members = self._rows(picture, [member for member in self._colours if member in chosen])
        members.lanes_left_out = len(order) - len(chosen)
        members.free = within(self._holding.free, picture.from_us, picture.to_us)
        self._cross(picture, deaths=False)
        finish(picture, {}, self._report.zone)

    def _held_us(self, member: str) -> int:
        """How much a member held, in shards times microseconds."""
        levels = self._holding.levels[member]
        return sum(level.number * (following.at_us - level.at_us) for level, following in pairwise(levels))

    def _draw_tasks(self, picture: Picture) -> None:
        """Beside the tasks that are there those that the most members ran."""
        whole = self._holding.whole
        hands = {task: len({run.life.member for run in whole.runs.get(task, ())}) for task in whole.tasks}
        others = [task for task in sorted(hands, key=lambda each: -hands[each]) if task not in picture.lanes]
        shown = others[: MOST_TASKS - len(picture.lanes)]
        picture.lanes |= {task: Lane() for task in shown}
        picture.lanes_left_out = len(others) - len(shown)
        picture.members = Members(self._shards, self._colours)
        self._fill(picture)

    def _zoom(self, finding: Finding) -> Picture:
        picture = zoom(self._report, finding)
        own = self._members(finding)
        picture.flags = [flag(finding)._replace(member=own[-1])]
        holds = [hold for task in picture.lanes for hold in self._holds(shard_of(task, self._shards))]
        holders = [hold.member for hold in holds if picture.covers(hold)]
        named = list(dict.fromkeys((own[-1], *own, *holders)))[:_MOST_ZOOM_ROWS]
        members = self._rows(picture, sorted(named, key=lambda member: self._colours[member]))
        if finding.task is None:
            members.free = within(self._holding.free, picture.from_us, picture.to_us)
        events = [position.event for position in finding.evidence]
        shards = dict.fromkeys(each.shard for each in events if isinstance(each, Taken | Given | Lost))
        for shard in [each for each in shards if not self._is_shown(each, picture)][:_MOST_ZOOM_ROWS]:
            row = members.held[shard] = list[Stretch]()
            self._put(picture, row, self._holds(shard))
        self._fill(picture)
        return picture

    def _is_shown(self, shard: int, picture: Picture) -> bool:
        """Whether the lane of a task says who held the shard."""
        return any(shard_of(task, self._shards) == shard for task in picture.lanes)

    def _members(self, finding: Finding) -> list[str]:
        """In whose traces the events of a finding stand; the last is where it became certain."""
        lines = [*(position.line for position in finding.evidence), finding.violations[0].line]
        places = (max(bisect_right(self._births, line, key=lambda each: each[0]) - 1, 0) for line in lines)
        return [self._births[place][1] for place in places]

    def _rows(self, picture: Picture, names: list[str]) -> Members:
        """Rows for these members, and who took over among them."""
        members = picture.members = Members(self._shards, self._colours)
        for name in names:
            levels = within(self._holding.levels[name], picture.from_us, picture.to_us)
            lane = members.lanes[name] = MemberLane(levels)
            self._put(picture, lane.marks, self._holding.marks(name))
        failovers = [
            each
            for each in self._holding.failovers
            if each.member in members.lanes
            and picture.from_us <= each.taken_us
            and each.lost_us <= picture.to_us
        ]
        members.failovers = sorted(failovers, key=lambda each: -each.shards)[:MOST_FAILOVERS]
        members.failovers_left_out = len(failovers) - len(members.failovers)
        return members

    def _fill(self, picture: Picture) -> None:
        """Draw what is known of the tasks of a picture, and what concerns all."""
        registrations: dict[str, list[Registration]] = {}
        for task, lane in picture.lanes.items():
            self._put(picture, lane.runs, self._runs(task))
            self._put(picture, lane.holds, self._holds(shard_of(task, self._shards)))
            registrations[task] = self._holding.registrations(task)
        self._cross(picture, deaths=True)
        finish(picture, registrations, self._report.zone)

    def _cross(self, picture: Picture, *, deaths: bool) -> None:
        across = [each for each in self._across if deaths or each.kind is not Kind.CRASH]
        self._put(picture, picture.across, across)

    def _put(self, picture: Picture, row: list[Stretch], stretches: Iterable[Stretch]) -> None:
        for stretch in stretches:
            if picture.covers(stretch):
                picture.put(row, replace(stretch))
