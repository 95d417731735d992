"""What the checker says: each reason in one plain sentence, times as the clocks of the zone show them."""

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING

from duly.verify.dues import NEVER_US, face_at
from duly.verify.trace import InitEnd, Position, RunEnd, RunStart, StopStart
from duly.verify.worlds import LONG_AGO_US, Worlds

if TYPE_CHECKING:
    from duly.verify.calls import Calls, Init


_NEVER_MEANT_US = 100 * 365 * 86_400_000_000
"""A retry that is due in a hundred years is no retry."""


def seconds(duration_us: int) -> str:
    """A length of time in seconds, as short as it can be said."""
    return f"{duration_us / 1e6:g} s"


class Wording:
    """The sentences of one trace."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone

    def time(self, at_us: int) -> str:
        """An instant as people write it."""
        if at_us <= LONG_AGO_US:
            return "before the trace began"
        return face_at(at_us, self._zone).isoformat(sep=" ", timespec="milliseconds").replace(".000", "")

    def _start(self, item: Position) -> str:
        assert isinstance(item.event, RunStart | RunEnd)
        return f"{item.event.id!r} started at {self.time(item.at_us)}"

    # --- starts ---

    def not_active(self, item: Position, calls: "Calls") -> str:
        """S1a."""
        return f"{self._start(item)}, and {self._why_not_active(calls.decisive)}"

    def _why_not_active(self, decisive: Position | None) -> str:
        if decisive is None:
            return "no initialize had succeeded before it"
        at = self.time(decisive.at_us)
        if isinstance(decisive.event, StopStart):
            return f"stop had been called at {at}"
        if isinstance(decisive.event, InitEnd):
            if decisive.event.ok:
                return f"a stop was outstanding when initialize returned at {at}"
            return f"the initialize that ended at {at} had failed"
        return f"the process had died at {at}, and no initialize had succeeded since"

    def not_registered(self, item: Position) -> str:
        """S1b."""
        return f"{self._start(item)}, and it is not in the latest list that took effect"

    def overlap(self, item: Position, runs: Mapping[int, tuple[int, Position]]) -> str:
        """S1c, T2."""
        _, begun = next(iter(runs.values()))
        return f"{self._start(item)} while its run of {self.time(begun.at_us)} had not ended"

    def no_cause(self, item: Position, begun: Position | None, ended: Position | None, worlds: Worlds) -> str:
        """S1d."""
        known = [world for world in worlds if world.config is not None]
        if not known:
            return f"{self._start(item)} for no cause: it is not registered"
        parts = [self._last_run(begun, ended)]
        next_us = min(world.next_us for world in known)
        parts.append(
            f"its next due is {self.time(next_us)}" if next_us < NEVER_US else "it has no due to come"
        )
        retry_us = min(world.retry_us for world in known)
        if retry_us < item.at_us + _NEVER_MEANT_US:
            parts.append(f"its retry is due at {self.time(retry_us)}")
        return f"{self._start(item)} for no cause: {', '.join(part for part in parts if part)}"

    def _last_run(self, begun: Position | None, ended: Position | None) -> str:
        if begun is None:
            return "it had not run before"
        said = f"its run of {self.time(begun.at_us)} answered everything up to there"
        if ended is None or not isinstance(ended.event, RunEnd) or ended.at_us < begun.at_us:
            return said
        return f"{said} and {'succeeded' if ended.event.ok else 'failed'} at {self.time(ended.at_us)}"

    # --- liveness ---

    def not_started(self, task_id: str, worlds: Worlds, onset_us: int, bound_us: int) -> str:
        """L1."""
        why = self._cause(worlds, onset_us)
        return (
            f"{task_id!r} was owed a start at {self.time(onset_us)} ({why}) and did not start "
            f"within {seconds(bound_us)}"
        )

    def declared(self, task_id: str, due_us: int) -> str:
        """L1, by the scheduler's own word."""
        return (
            f"{task_id!r} was due at {self.time(due_us)}, and the scheduler itself says that it did not run"
        )

    def _cause(self, worlds: Worlds, onset_us: int) -> str:
        world = worlds[0]
        if world.interrupted:
            return "a crash had cut it off"
        if world.stands or world.next_us <= onset_us:
            return "a due stood" if world.stands else f"due {self.time(world.next_us)}"
        return f"its retry was due at {self.time(world.retry_us)}"

    def initialize_hangs(self, init: "Init") -> str:
        """L2."""
        called = self.time(init.start.at_us)
        return f"initialize, called at {called}, did not return within {seconds(init.bound_us)}"

    def stop_hangs(self, since_us: int, bound_us: int) -> str:
        """L3."""
        since = self.time(since_us)
        return f"nothing was running from {since} on, and stop did not return within {seconds(bound_us)}"

    def not_restarted(self, task_id: str, since_us: int, bound_us: int) -> str:
        """T6."""
        return (
            f"{task_id!r} was cut off by a crash, and did not start again within {seconds(bound_us)} "
            f"of {self.time(since_us)}"
        )

    # --- calls ---

    def still_running(self, tasks: Sequence[str], item: Position) -> str:
        """S3."""
        others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        return f"stop returned at {self.time(item.at_us)} while {tasks[0]!r}{others} was running"

    def invalid_list(self, init: "Init", item: Position) -> str:
        """S4."""
        return (
            f"initialize succeeded at {self.time(item.at_us)} with a list that is not valid: {init.invalid}"
        )

    def initialize_not_awaited(self, init: "Init", item: Position) -> str:
        """S5."""
        return (
            f"stop returned at {self.time(item.at_us)} while the initialize of "
            f"{self.time(init.start.at_us)}, which came before it, was in progress"
        )

    # --- theorems ---

    def down(self, item: Position) -> str:
        """T1."""
        return f"{self._start(item)} after a crash or a stop, before any initialize had succeeded"

    def nothing_between(self, item: Position, begun: Position | None) -> str:
        """T3."""
        since = f" since its start at {self.time(begun.at_us)}" if begun is not None else ""
        return (
            f"{self._start(item)}, and{since} there was no due, no failure, no crash and no new registration"
        )

    def second_success(self, item: Position, begun: Position) -> str:
        """T4."""
        assert isinstance(item.event, RunEnd)
        return (
            f"{item.event.id!r} succeeded a second time in one due period, "
            f"by its run of {self.time(begun.at_us)}"
        )

    def ended_after_stop(self, item: Position, begun: Position) -> str:
        """T5."""
        assert isinstance(item.event, RunEnd)
        return (
            f"the run of {item.event.id!r} of {self.time(begun.at_us)} ended at {self.time(item.at_us)}, "
            "after a stop had returned"
        )

    def identical_list(self, item: Position) -> str:
        """T7."""
        return f"{self._start(item)} after an initialize that changed nothing, and for no other cause"

    def ended_after_crash(self, item: Position, begun: Position) -> str:
        """T8."""
        assert isinstance(item.event, RunEnd)
        return (
            f"the run of {item.event.id!r} of {self.time(begun.at_us)} was cut off by a crash, "
            f"and yet ended at {self.time(item.at_us)}"
        )

    # --- faults of the trace ---

    def time_goes_back(self, item: Position, before_us: int) -> str:
        """An event before its predecessor."""
        return (
            f"time goes back from {self.time(before_us)} to {self.time(item.at_us)} without a ClockStep; "
            "is the trace reordered?"
        )

    def step_from_the_past(self, from_us: int, now_us: int) -> str:
        """A step that begins before the event before it."""
        return f"the clock is stepped from {self.time(from_us)} when it is {self.time(now_us)} already"
