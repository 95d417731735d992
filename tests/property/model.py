"""The model (MODEL.md) as a small judge of what a scheduler did, sharing no code with its decisions.

It is told what happens at the boundary (calls, returns, callbacks, crashes, steps of the clock), works out
the dues itself minute by minute, and objects when a start is not allowed or an obligation is not met. What is
allowed and what is owed differ only where a write may have been lost.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime

MINUTE_S = 60
TOLERATED_S = 300
BOUND_S = 60


class ViolationError(AssertionError):
    """The scheduler did what it must not, or failed to do what it must."""


def is_due(cron: str, minute: int) -> bool:
    """Whether *cron* (numbers, commas and stars only) names the UTC minute with this number."""
    face = datetime.fromtimestamp(minute * MINUTE_S, UTC)
    values = (face.minute, face.hour)
    return all(
        word == "*" or value in map(int, word.split(","))
        for word, value in zip(cron.split()[:2], values, strict=True)
    )


@dataclass
class Known:
    """What the judge knows of one registered task."""

    cron: str
    delay_s: float
    counted: int
    """The latest minute of which it is known whether it was due. A clock set back a little repeats none."""
    is_due: bool = False
    retry_at_s: float | None = None
    is_interrupted: bool = False
    may_be_interrupted: bool = False
    owed_since_s: float | None = None
    started_s: float = 0.0


@dataclass
class Judge:
    """Follows one trace. Times are seconds on the scheduler's clock."""

    now_s: float
    tasks: dict[str, Known] = field(default_factory=dict)
    running: dict[str, bool] = field(default_factory=dict)
    """Running tasks, and whether the run began under the present registration."""
    is_active: bool = False
    is_faulty: bool = False
    unwritten: set[str] = field(default_factory=set)
    """Tasks whose last end may not have been written."""
    starts: int = 0

    # --- time ---

    def reaches(self, now_s: float) -> None:
        """Time passes, or jumps forward, to *now_s*."""
        self.now_s = now_s
        minute = int(now_s // MINUTE_S)
        for known in self.tasks.values():
            known.is_due |= any(is_due(known.cron, passed) for passed in range(known.counted + 1, minute + 1))
            known.counted = max(known.counted, minute)
        self._note_obligations()

    def rested(self) -> None:
        """Everything has come to rest: whatever has been owed for too long is a violation."""
        self._note_obligations()
        for name, known in self.tasks.items():
            if known.owed_since_s is not None and self.now_s - known.owed_since_s > BOUND_S:
                raise ViolationError(f"L1: {name} owed since {known.owed_since_s}, now {self.now_s}")

    def stepped(self, to_s: float) -> None:
        """The clock is set to *to_s*."""
        before_s, self.now_s = self.now_s, to_s
        for known in self.tasks.values():
            if known.owed_since_s is not None:
                known.owed_since_s = to_s
        if to_s >= before_s:
            self.reaches(to_s)
        elif before_s - to_s > TOLERATED_S:
            for known in self.tasks.values():
                self._count_afresh(known)
            self.reaches(to_s)

    def _count_afresh(self, known: Known) -> None:
        known.counted = int(-(-self.now_s // MINUTE_S)) - 1  # a minute that begins right now counts
        known.started_s = min(known.started_s, self.now_s)
        if known.retry_at_s is not None:
            known.retry_at_s = min(known.retry_at_s, self.now_s + known.delay_s)

    def _note_obligations(self) -> None:
        for name, known in self.tasks.items():
            retry = known.retry_at_s is not None and known.retry_at_s <= self.now_s
            owed = known.is_due or retry or known.is_interrupted
            if not owed or not self.is_active or self.is_faulty or name in self.running:
                known.owed_since_s = None
            elif known.owed_since_s is None:
                known.owed_since_s = self.now_s

    # --- what happens at the boundary ---

    def initialized(self, registrations: dict[str, tuple[str, float]]) -> None:
        """`initialize` returned: this list holds."""
        before, self.tasks = self.tasks, {}
        for name, (cron, delay_s) in registrations.items():
            known = before.get(name)
            if known is None or (known.cron, known.delay_s) != (cron, delay_s):
                was = known
                minute = int(self.now_s // MINUTE_S)
                known = Known(cron, delay_s, minute, is_due=is_due(cron, minute), started_s=self.now_s)
                if was is not None:
                    known.is_interrupted = was.is_interrupted
                    known.may_be_interrupted = was.may_be_interrupted
                if name in self.running:
                    self.running[name] = False
            elif not self.is_active and known.started_s > self.now_s + TOLERATED_S:
                self._count_afresh(known)  # what the store says was written under a clock far ahead
            self.tasks[name] = known
        for name in self.running:
            if name not in self.tasks:
                self.running[name] = False
        self.is_active = True
        self._note_obligations()

    def failed_to_initialize(self) -> None:
        """`initialize` raised for the store's sake: nothing runs."""
        self._goes_down()

    def stop_requested(self) -> None:
        """`stop` was called: nothing may start."""
        self.is_active = False

    def stopped(self) -> None:
        """`stop` returned, or raised."""
        if self.running:
            raise ViolationError(f"S3: stop returned while {sorted(self.running)} ran")
        self._goes_down()

    def crashed(self) -> None:
        """The process died."""
        for name in self.running:
            if name in self.tasks:
                self.tasks[name].is_interrupted = True
        self.running.clear()
        self._goes_down()

    def _goes_down(self) -> None:
        self.is_active = False
        for name in self.unwritten & self.tasks.keys():
            self.tasks[name].may_be_interrupted = True
        self.written()
        self._note_obligations()

    def written(self) -> None:
        """The store works: all there was to write has been written, or is lost."""
        self.unwritten.clear()

    def started(self, name: str) -> None:
        """A callback was called."""
        known = self.tasks.get(name)
        if not self.is_active:
            raise ViolationError(f"S1a: {name} started while not active")
        if known is None:
            raise ViolationError(f"S1b: {name} started and is not registered")
        if name in self.running:
            raise ViolationError(f"S1c: {name} started while it ran")
        retry = known.retry_at_s is not None and known.retry_at_s <= self.now_s
        if not (known.is_due or retry or known.is_interrupted or known.may_be_interrupted):
            raise ViolationError(f"S1d: {name} started at {self.now_s} without a cause")
        known.is_due = known.is_interrupted = known.may_be_interrupted = False
        known.retry_at_s = known.owed_since_s = None
        known.started_s = max(known.started_s, self.now_s)
        self.running[name] = True
        self.unwritten.discard(name)
        self.starts += 1

    def ended(self, name: str, *, ok: bool) -> None:
        """A callback returned or raised."""
        is_present = self.running.pop(name)
        known = self.tasks.get(name)
        if self.is_faulty:
            self.unwritten.add(name)
        if known is not None and is_present:
            known.retry_at_s = None if ok else self.now_s + known.delay_s
        self._note_obligations()
