"""The pictures of a cluster: the time lines of its tasks with the node of each run, and a table of the nodes.

As in those of one scheduler, each picture holds a bounded number of stretches and of rows, and tasks with
violations come first. A run is drawn where its node recorded it, by the clock of the database.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain

from duly.verify.cluster import recordings
from duly.verify.cluster.history import ClusterHistory
from duly.verify.cluster.merging import changes_of
from duly.verify.cluster.nodes import NodeProcess, NodeRun
from duly.verify.reporting.history import RegisteredTime, Stretch, StretchKind, dues_of, point, why_again
from duly.verify.reporting.report import Report
from duly.verify.reporting.timeline import Collection, NodeRow, Pictures
from duly.verify.trace import Position, zone_of

MOST_TASKS = 12


def cluster_pictures(report: Report, lines: Iterable[bytes]) -> Pictures:
    """What is drawn of the traces *lines* of all nodes, which are read to their end."""
    history = ClusterHistory(recordings(lines, report.header.kind))
    if not history.nodes:
        return Pictures(None, {})
    return _Studio(report, history).pictures()


class _Studio:
    def __init__(self, report: Report, history: ClusterHistory) -> None:
        self._report = report
        self._history = history
        self._nodes: dict[str, list[NodeProcess]] = defaultdict(list)
        for node in sorted(history.nodes, key=lambda each: each.first.at_us):
            self._nodes[node.name].append(node)
        self._colours = {name: number for number, name in enumerate(self._nodes)}
        zone = zone_of(report.header.tz)
        self._schedule = lru_cache(maxsize=1000)(lambda cron: dues_of(cron, zone))

    def pictures(self) -> Pictures:
        times_us = [at_us for node in self._history.nodes for at_us in node.signs_us]
        collection = Collection(self._report, times_us, MOST_TASKS)
        hands = {task: len({run.node.name for run in runs}) for task, runs in self._history.runs.items()}
        # Those that the most nodes ran come first, and `admits` takes as many as there is room for.
        by_hands = sorted(self._history.tasks, key=lambda task: -hands.get(task, 0))
        shown = [task for task in by_hands if collection.admits(task)]
        for picture in collection.all:
            picture.nodes = self._colours
        for stretch in chain(self._crossings(), *map(self._stretches, shown)):
            collection.add(stretch)
        registrations = {task: list(self._registrations(task)) for task in shown}
        collection.finish(registrations, self._report.zone)
        return Pictures(collection.overview, collection.zooms, tuple(self._rows()))

    def _rows(self) -> Iterator[NodeRow]:
        """Each node in a few words, in the order of their first signs."""
        runs = [run for each in self._history.runs.values() for run in each if not run.is_from_before]
        starts = Counter(run.node.name for run in runs)
        cut_off = Counter(run.node.name for run in runs if run.cut is not None)
        for name, lives in self._nodes.items():
            times_us = lives[0].first.at_us, max(node.last.at_us for node in lives)
            yield NodeRow(name, *times_us, len(lives), starts[name], cut_off[name], self._ending(lives[-1]))

    def _ending(self, node: NodeProcess) -> str:
        if node.is_stopped:
            return "stopped"
        return "died" if node.is_gone(self._history.horizon_us) else "alive"

    def _crossings(self) -> Iterator[Stretch]:
        """What concerns all tasks."""
        for each in self._history.lists:
            number = "" if each.generation is None else f", generation {each.generation}"
            words = f"a list of {len(each.configs):,} tasks takes effect{number}"
            yield point(StretchKind.LIST, each.reported.line, each.reported.at_us, words)
        for node in self._history.nodes:
            if node.is_gone(self._history.horizon_us):
                words = f"{node.name} died; this is its last sign"
                line, at_us, _ = node.last
                yield point(StretchKind.CRASH, line, at_us, words, f"{node.name} died")
        for recording in self._history.recordings:
            for at_us, forgot in recording.server_changes:
                words = "another server of the database answers" + (", and forgot commits" if forgot else "")
                yield point(StretchKind.SERVER, 0, at_us, f"{recording.header.node}: {words}")
            if (fault_us := recording.fault_us) is not None:
                words = f"the trace of {recording.header.node} is at fault"
                yield point(StretchKind.FAULT, 0, fault_us, words)

    # --- tasks ---

    def _registrations(self, task: str) -> Iterator[RegisteredTime]:
        """From when to when a task was in the list of the cluster, with which cron text."""
        changes = changes_of(self._history, task)
        ends_us = [*(each.source.at_us for each in changes[1:]), self._history.horizon_us]
        for change, to_us in zip(changes, ends_us, strict=False):
            if change.config is not None and to_us >= change.source.at_us:
                yield RegisteredTime(task, change.config[0], change.source.at_us, to_us)

    def _stretches(self, task: str) -> Iterator[Stretch]:
        registrations = list(self._registrations(task))
        before: tuple[StretchKind, int] | None = None
        for run in self._history.runs.get(task, ()):
            kind, end = self._end(run)
            at_us, to_us = run.start.at_us, max(run.start.at_us, end.at_us)
            crons = [each.cron for each in registrations if each.from_us <= at_us]
            dues = self._schedule(crons[-1]) if crons else None
            why = why_again(*before, at_us, dues) if before is not None else ""
            words = ", ".join(filter(None, (_run_name(run), why)))
            lines = run.start.line, end.line
            yield Stretch(kind, task, at_us, to_us, *lines, words, is_again=bool(why), node=run.node.name)
            before = kind, to_us

    def _end(self, run: NodeRun) -> tuple[StretchKind, Position]:
        """How a run ended, and the line that says so."""
        if run.end is not None:
            return StretchKind.SUCCEEDED if run.is_ok else StretchKind.FAILED, run.end
        if run.cut is not None and run.cut is not run.node.last:
            return StretchKind.LOST, run.cut
        is_gone = run.node.is_gone(self._history.horizon_us)
        return StretchKind.CUT if is_gone else StretchKind.UNFINISHED, run.node.last


def _run_name(run: NodeRun) -> str:
    """A run as its node counts it."""
    number = "" if run.run is None else f" {run.run}"
    token = "" if run.token is None else f", token {run.token}"
    begun = ", begun before the trace" if run.is_from_before else ""
    return f"run{number} on {run.node.name}{token}{begun}"
