"""What happened in a cluster as a whole: the runs of each task in order, the lists, and the times of trouble.

In times of trouble nothing is expected: a node died, was frozen or lost the database, and what it had claimed
is free only when another node has noticed that and fenced it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from duly.instant import zone_key
from duly.verify.cluster.nodes import (
    TOLERANCE_US,
    NewList,
    NodeControl,
    NodeRun,
    Recording,
    TimeSpan,
    covers,
    union,
)
from duly.verify.trace import CARRIED_CALL, InitEnd, OptionsDeclared, TraceError, micros

_LEASES = 3
"""A failover takes so many leases at most, if the header does not say more."""


class ClusterHistory:
    """One cluster. Raises TraceError if the recordings cannot be of one."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        for recording in recordings:
            if zone_key(recording.header.tz) != zone_key(recordings[0].header.tz):
                mine, first = recording.header, recordings[0].header
                reason = f'node "{mine.node}" has the zone {mine.tz}, and "{first.node}" {first.tz}'
                raise TraceError(recording.first_line, f"{reason}: are they of one cluster?")
        self.recordings = recordings
        self.nodes = [node for recording in recordings for node in recording.nodes]
        self.failover_us = max(
            max(micros(each.header.failover_ms), each.lease_us * _LEASES) for each in recordings
        )
        lasts_us = [node.last.at_us for node in self.nodes]
        closed_us = [node.last.at_us for node in self.nodes if node.is_closed and not node.is_stopped]
        self.entries = {task: kind for recording in recordings for task, kind in recording.entries.items()}
        self.controls: dict[str, list[NodeControl]] = defaultdict(list)
        """What nodes were asked for."""
        self.options: dict[str, set[OptionsDeclared]] = defaultdict(set)
        """Which options each task of a list had, on whatever node."""
        for recording in recordings:
            for task, controls in recording.controls.items():
                self.controls[task] += controls
            for task, options in recording.options.items():
                self.options[task] |= options
        self.horizon_us = min(closed_us, default=max(lasts_us, default=0))
        """Nodes whose recordings were ended go on unseen: nothing can be said of what comes after."""
        self.is_cut_short = self.horizon_us + TOLERANCE_US < max(lasts_us, default=0)
        self.runs: dict[str, list[NodeRun]] = defaultdict(list)
        for recording in recordings:
            for run in recording.runs:
                self.runs[run.task].append(run)
        for runs in self.runs.values():
            _put_in_order(runs)
        self._troubles = {
            node: union([TimeSpan(at - self.failover_us, to + self.failover_us) for at, to in node.faults()])
            for node in self.nodes
        }
        changes = sorted(each for recording in recordings for each in recording.server_changes)
        self.forgettings_us = [at_us for at_us, forgot in changes if forgot or self._is_after_trouble(at_us)]
        """When a server answered that may lack commits: it said so, or nobody was there to miss them."""
        self.lists = self._lists()
        self.steps_us = [*self._steps()]
        """When the clock of the database was set. Times do not tell the order of events after that."""
        self._bound_reports()
        self.gaps = union([*self._gaps()])
        """When a list may have been in effect that no trace has."""
        unreported = [*self._unreported_times(), *self.gaps]
        # Who died right before a list may have claimed what that list changed, and was never called.
        beside = [each.reported.at_us for each in self.lists if self._is_after_trouble(each.reported.at_us)]
        self.breaks_us = sorted([*self.forgettings_us, *(span.to_us for span in unreported), *beside])
        """Where what came before may explain what comes after, in a way that no trace shows."""
        self.quiet = union([*self._quiet(), *self._around([at_us for at_us, _ in changes], 2), *unreported])
        """The times in which nothing is owed."""
        ids = {each for recording in recordings for each in recording.ids}
        fenced = {each for recording in recordings for each in recording.fenced}
        self.is_partial = len({each.header.node for each in recordings}) == 1 or not fenced <= ids

    @property
    def tasks(self) -> list[str]:
        listed = (task for each in self.lists for task in each.configs)
        return list(dict.fromkeys((*listed, *self.runs)))

    def back_offs(self, task: str) -> Iterator[TimeSpan]:
        """When a task was not to be started again, because it had been interrupted too often."""
        for recording in self.recordings:
            for from_us, to_us in recording.back_offs.get(task, ()):
                yield TimeSpan(from_us - self.failover_us, to_us)

    def is_end_doubtful(self, run: NodeRun) -> bool:
        """Whether its node may have failed to write that *run* had ended."""
        assert run.end is not None
        return covers(self._troubles[run.node], run.end.at_us)

    def is_forgotten_between(self, from_us: int, to_us: int) -> bool:
        return any(from_us - TOLERANCE_US <= at_us <= to_us + TOLERANCE_US for at_us in self.forgettings_us)

    def _is_after_trouble(self, at_us: int) -> bool:
        """Whether a node had died, or lost its trust, and others may not have noticed."""
        return any(
            covers(troubles, at_us) or covers(troubles, at_us - self.failover_us)
            for troubles in self._troubles.values()
        )

    def _quiet(self) -> Iterator[TimeSpan]:
        for node in self.nodes:
            yield from self._troubles[node]
            starts_us = [*node.stops_us, *(up.from_us for up in node.ups)]
            yield from (TimeSpan(at_us, at_us + self.failover_us) for at_us in starts_us)

    def _around(self, times_us: Sequence[int], failovers: int) -> Iterator[TimeSpan]:
        for at_us in times_us:
            yield TimeSpan(at_us - self.failover_us, at_us + failovers * self.failover_us)

    def _steps(self) -> Iterator[int]:
        """Who saw the clock step, and what shows that it was set back while nobody looked."""
        yield from (each.step_us for each in self.recordings if each.step_us is not None)
        for runs in self.runs.values():
            for run in runs:
                # A token is the time of its claim, unless that is less than the token before.
                if run.token is not None and run.token > run.start.at_us + TOLERANCE_US:
                    yield run.start.at_us
        known = [each for each in self.lists if each.generation is not None]
        for before, each in pairwise(known):
            if each.reported.at_us < before.called_us - TOLERANCE_US:
                yield each.reported.at_us

    # --- lists ---

    def _lists(self) -> list[NewList]:
        found = [each for recording in self.recordings for each in recording.lists]
        lists = sorted((each for each in found if each.generation is not None), key=self._generation)
        for each in sorted(
            (each for each in found if each.generation is None), key=lambda it: it.reported.at_us
        ):
            if self._is_news(each, lists):
                lists.insert(sum(other.reported.at_us <= each.reported.at_us for other in lists), each)
        return lists

    def _bound_reports(self) -> None:
        """A list was in effect by the report of any later generation, however late its own report is."""
        latest_us = max((each.reported.at_us for each in self.lists), default=0)
        for each in reversed(self.lists):
            if each.generation is not None:
                latest_us = min(latest_us, each.reported.at_us)
                each.reported = each.reported._replace(at_us=latest_us)

    def _unreported_times(self) -> Iterator[TimeSpan]:
        """When a list may have been in effect that nobody reported: its call failed, or its node died."""
        reported_us = sorted(each.reported.at_us for recording in self.recordings for each in recording.lists)
        for recording in self.recordings:
            for at_us in recording.unanswered_us:
                at = bisect_right(reported_us, at_us)
                yield TimeSpan(
                    at_us, reported_us[at] if at < len(reported_us) else max(self.horizon_us, at_us)
                )

    def _gaps(self) -> Iterator[TimeSpan]:
        """From one list to the next but one: who brought the list between them got no answer, or died."""
        known = [(each, each.generation) for each in self.lists if each.generation is not None]
        for (before, generation), (each, later) in pairwise(known):
            if later > generation + 1:
                yield TimeSpan(before.called_us - TOLERANCE_US, each.reported.at_us + TOLERANCE_US)

    def _generation(self, each: NewList) -> tuple[int, int, int]:
        at_us = each.reported.at_us
        return sum(other_us <= at_us for other_us in self.forgettings_us), each.generation or 0, at_us

    def _is_news(self, each: NewList, lists: Sequence[NewList]) -> bool:
        """Whether a node found a list in effect that is not known to have been so when it looked."""
        from_us, to_us = each.called_us - TOLERANCE_US, each.reported.at_us + TOLERANCE_US
        before = [other for other in lists if other.reported.at_us <= from_us]
        event = each.reported.event
        if isinstance(event, InitEnd) and event.call == CARRIED_CALL:
            return not before  # it says only what the node had, where its earlier files are missing
        meanwhile = [
            other
            for other in lists
            if other.called_us <= to_us and other.reported.at_us >= from_us - TOLERANCE_US
        ]
        return all(other.configs != each.configs for other in (*before[-1:], *meanwhile))


def _put_in_order(runs: list[NodeRun]) -> None:
    """By their starts; where clocks cannot tell the order of two nodes, by their tokens."""
    runs.sort(key=lambda run: (run.start.at_us, run.start.line))
    for index in range(1, len(runs)):
        at = index
        while at and _is_swapped(runs[at - 1], runs[at]):
            runs[at - 1], runs[at] = runs[at], runs[at - 1]
            at -= 1


def _is_swapped(run: NodeRun, following: NodeRun) -> bool:
    if run.token is None or following.token is None or run.node is following.node:
        return False
    return run.token > following.token and following.start.at_us - run.start.at_us <= TOLERANCE_US
