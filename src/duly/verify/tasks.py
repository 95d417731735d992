"""What the judge keeps of tasks: the lists that it has read, what is known of each id, the deadlines of L1.

Lists are read as spec/model.md 5 does: valid or not, and what each task's configuration is. A configuration
that is seen again is the same object, however often the list is repeated. So is the due table of a cron text,
however many tasks share it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from duly.verify.dues import NEVER_US, Dues, ScheduleTextError
from duly.verify.trace import ControlStart, EntryDeclared, KindDeclared, OptionsDeclared, Position, micros
from duly.verify.worlds import DEFAULT, LONG_AGO_US, UNREGISTERED, TaskConfig, Worlds

_LONGEST_MS = 2**50
NO_OPTIONS: Mapping[str, OptionsDeclared] = {}


class ParsedList(NamedTuple):
    """What a list says; *configs* is None, and *reason* says why, if the list is not valid."""

    configs: dict[str, TaskConfig] | None
    reason: str
    size: int


class TraceLists:
    """Every configuration that a trace has shown."""

    def __init__(self, zone: tzinfo, *, is_first_after: bool = False) -> None:
        self._zone = zone
        self._is_first_after = is_first_after
        self._configs: dict[tuple[object, ...], TaskConfig] = {}
        self._dues: dict[str, Dues] = {}

    def read(
        self, regs: Sequence[tuple[str, str, float]], options: Mapping[str, OptionsDeclared] = NO_OPTIONS
    ) -> ParsedList:
        configs: dict[str, TaskConfig] = {}
        for task_id, cron, delay_ms in regs:
            if task_id in configs:
                return ParsedList(None, f"it has {task_id!r} twice", len(regs))
            if not delay_ms >= 0:  # NaN neither
                reason = f"of {task_id!r}: its retry delay of {delay_ms} ms is below zero"
                return ParsedList(None, reason, len(regs))
            try:
                configs[task_id] = self._config(cron, delay_ms, options.get(task_id, DEFAULT))
            except ScheduleTextError as error:
                reason = f'of {task_id!r}: its schedule "{cron[:80]}" is not valid: {error}'
                return ParsedList(None, reason, len(regs))
        return ParsedList(configs, "", len(regs))

    def of_entry(self, entry: EntryDeclared, kinds: Mapping[str, KindDeclared]) -> TaskConfig:
        """The configuration of an entry, whose kind may be unknown. Raises ScheduleTextError."""
        kind = kinds.get(entry.kind)
        if kind is None:
            return self._config(entry.schedule, 0, DEFAULT, entry, is_waiting=True)
        options = kind.options if entry.enabled else msgspec.structs.replace(kind.options, enabled=False)
        return self._config(entry.schedule, kind.delay_ms, options, entry)

    def _config(
        self,
        cron: str,
        delay_ms: float,
        options: OptionsDeclared,
        entry: EntryDeclared | None = None,
        *,
        is_waiting: bool = False,
    ) -> TaskConfig:
        key = cron, delay_ms, options, entry, is_waiting
        config = self._configs.get(key)
        if config is None:
            if cron not in self._dues:
                self._dues[cron] = Dues(cron, self._zone)
            dues, window_us = self._dues[cron], NEVER_US
            # The due that follows the end of a run is never too old: no other comes until it has run.
            if options.catch_up_ms is not None and not dues.is_from_end:
                window_us = _micros(options.catch_up_ms)
            is_plain = options.enabled and window_us == NEVER_US
            config = TaskConfig(
                cron,
                _micros(delay_ms),
                dues,
                options,
                self._is_first_after,
                window_us,
                entry,
                is_waiting,
                is_plain,
            )
            self._configs[key] = config
        return config


def _micros(length_ms: float) -> int:
    return micros(_LONGEST_MS if math.isinf(length_ms) else min(length_ms, _LONGEST_MS))


@dataclass(slots=True, eq=False)
class TraceTask:
    """What is known of one task id."""

    id: str
    worlds: Worlds = (UNREGISTERED,)
    runs: dict[int, tuple[int, Position]] = field(default_factory=dict)
    """Runs in flight by number: the position and event of their start."""
    idle_us: int = LONG_AGO_US
    """Since when nothing of it is running."""
    listed_us: int = NEVER_US
    """When a list with it first took effect."""
    controls: dict[int, ControlStart] = field(default_factory=dict)
    """The outstanding calls that control it."""
    stirred_at: int = 0
    """The latest position at which a start, a list or a control may have undone what such a call did."""
    missed_us: int = LONG_AGO_US
    """Up to when everything that was owed and did not start has been objected to."""
    version: int = 0
    """Which of its deadlines counts: every start and end makes the older ones void."""
    started: Position | None = None
    started_at: int = 0
    ended: Position | None = None
    ended_at: int = 0

    @property
    def may_be_registered(self) -> bool:
        for world in self.worlds:  # noqa: SIM110 (asked for every run, and twice as fast as `any`)
            if world.config is not None:
                return True
        return False

    @property
    def counts_from_end(self) -> bool:
        """Whether its next due may depend on the end of its last run."""
        for world in self.worlds:  # noqa: SIM110 (likewise)
            if world.config is not None and world.config.dues.is_from_end:
                return True
        return False


class Deadlines:
    """By when each task must have started, the soonest first (L1).

    A start or an end makes the deadlines of its task void (`TraceTask.version`). Void ones are left in the
    heap, and thrown out when they come to its top, or when there are too many of them.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, TraceTask, int]] = []
        """(deadline, order, onset, task, version)."""
        self._order = 0

    def add(self, task: TraceTask, onset_us: int, bound_us: int, *, tasks: int) -> None:
        """*task* must start within *bound_us* of *onset_us*; so many *tasks* there are in all."""
        task.version += 1
        self._order += 1
        heappush(self._heap, (onset_us + bound_us, self._order, onset_us, task, task.version))
        if len(self._heap) > 2 * tasks + 64:
            self._heap = [entry for entry in self._heap if entry[3].version == entry[4]]
            heapify(self._heap)

    @property
    def soonest_us(self) -> int:
        """No deadline comes before this."""
        return self._heap[0][0] if self._heap else NEVER_US

    def clear(self) -> None:
        self._heap = []

    def take_passed(self, at_us: int) -> Iterator[tuple[TraceTask, int]]:
        """Take out those that lie before *at_us*: the task, and since when its start was owed."""
        while self._heap and self._heap[0][0] < at_us:
            _, _, onset_us, task, version = heappop(self._heap)
            if task.version == version:
                task.version += 1
                yield task, onset_us

    def open_count(self, now_us: int) -> int:
        """How many are owed by now, and not late."""
        return sum(
            onset_us <= now_us for _, _, onset_us, task, version in self._heap if task.version == version
        )
