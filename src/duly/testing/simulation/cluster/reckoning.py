"""The reckoning: what was seen of a cluster, judged task by task against SCHEDULER.md 3, by brute force.

It goes through the history once, in the world's own order, and keeps for each task what a person would: up
to where its dues are answered, whether its last run failed and when, whether it was cut off. Each call must
have a cause, and each cause must be answered in time: within a lease, a beat and some grace after it arose
and after the last trouble was over. It shares nothing with the scheduler but the words.
"""

from dataclasses import dataclass, field
from typing import assert_never

from duly.instant import MINUTE_US, SECOND_US, Instant
from duly.testing.simulation.cluster.plan import ClusterPlan
from duly.testing.simulation.cluster.witness import (
    Called,
    Edition,
    Ended,
    Forgotten,
    History,
    Run,
    Seen,
    Served,
    Stopped,
)
from duly.testing.simulation.plan import Item, Items

_GRACE_US = 3 * SECOND_US
_HOUR = 60


def matches(cron: str, at_us: Instant) -> bool:
    """Whether the minute that begins at *at_us* is due; only expressions whose minutes are restricted."""
    minutes, rest = cron.split(" ", 1)
    assert rest == "* * * *"
    return minutes == "*" or at_us // MINUTE_US % _HOUR in map(int, minutes.split(","))


def due_after(cron: str, after_us: Instant) -> Instant:
    """The first due later than *after_us*."""
    at_us = (after_us // MINUTE_US + 1) * MINUTE_US
    while not matches(cron, at_us):
        at_us += MINUTE_US
    return at_us


def allowance_us(plan: ClusterPlan) -> int:
    """How long after its cause, and after the last trouble, a start may come."""
    return plan.ttl_us + plan.beat_us + plan.patience_us + _GRACE_US


@dataclass(slots=True)
class _Account:
    """What a person would keep of one task."""

    item: Item
    answered_us: Instant
    idle_us: Instant
    """Since when it is not running, by the board."""
    failed_us: Instant | None = None
    cut_us: Instant | None = None
    run: Run | None = None
    cut: Run | None = None
    """The run that was cut off."""
    is_superseded: bool = False
    """The run in flight belongs to an older registration."""
    is_vague: bool = False
    is_told: bool = False
    """That it is late has been said."""
    since: int = 0
    """How much had been seen when it was registered."""

    def owed_us(self) -> Instant | None:
        """Since when it is, or will be, owed a start."""
        if self.run is not None or self.is_vague:
            return None
        times = [due_after(self.item.cron, self.answered_us)]
        if self.cut_us is not None:
            times.append(self.cut_us)
        if self.failed_us is not None:
            times.append(self.failed_us + self.item.delay_us)
        return max(min(times), self.idle_us)

    def has_cause(self, now_us: Instant) -> bool:
        """Whether a start at *now_us* has a cause."""
        is_retry = self.failed_us is not None and self.failed_us + self.item.delay_us <= now_us
        is_due = due_after(self.item.cron, self.answered_us) <= now_us
        return is_due or is_retry or self.cut_us is not None or self.is_vague


@dataclass(slots=True)
class Reckoning:
    """What is wrong, and how much was looked at."""

    faults: list[str] = field(default_factory=list)
    starts: int = 0
    owed: int = 0
    """Starts that were owed, and could be judged to have come in time."""
    slowest_us: int = 0
    """The longest that a start was owed while nothing was wrong."""


class _Reckoner:
    def __init__(self, plan: ClusterPlan, history: History, end_us: Instant) -> None:
        self._plan = plan
        self._history = history
        self._end_us = end_us
        self._accounts: dict[str, _Account] = {}
        self._before: dict[str, _Account | None] = {}
        """What a task was before the last list."""
        self._departed: dict[str, Run] = {}
        """Runs of tasks that a list has removed, until they end."""
        self._cut: set[str] = set()
        """Those of them that were cut off: whoever believes that their member is alive waits for them."""
        self._forgot_us: Instant | None = None
        self._served = _spans(history, end_us)
        self._troubles: dict[Item, list[tuple[Instant, Instant]]] = {}
        self.result = Reckoning()
        self._at = 0

    def reckoned(self) -> Reckoning:
        """Go through it."""
        for at, (now_us, seen) in enumerate(self._history.seen):
            self._at = at
            self._take(now_us, seen)
        for account in self._accounts.values():
            self._check_late(account, self._end_us)
        return self.result

    def _take(self, now_us: Instant, seen: Seen) -> None:
        match seen:
            case Called():
                self._on_called(now_us, seen.run)
            case Ended():
                self._on_ended(now_us, seen.run)
            case Stopped():
                self._on_stopped(now_us, seen.run)
            case Edition():
                self._on_edition(now_us, seen)
            case Forgotten():
                self._on_forgotten(now_us, seen)
            case Served():
                pass
            case _:
                assert_never(seen)

    def _on_called(self, now_us: Instant, run: Run) -> None:
        self.result.starts += 1
        account = self._accounts.get(run.name)
        is_older = account is None or run.committed <= account.since
        if is_older and run.name in self._before:
            # It came onto the board before the last list did: it was owed under the list before.
            older = self._before[run.name]
            if older is not None:
                self._check_cause(older, now_us, run)
            if account is not None:
                account.run, account.is_superseded = run, True
            else:
                self._depart(run)
            return
        if account is None:
            if self._forgot_us is None:
                self._object(now_us, run, "which no list has")
            return
        if account.run is not None:
            account.run, account.cut_us, account.idle_us = None, now_us, now_us
        self._check_late(account, now_us)
        self._check_cause(account, now_us, run)
        account.answered_us = max(account.answered_us, run.started_us, run.called_us)
        account.run, account.is_superseded = run, False
        account.failed_us = account.cut_us = None
        account.is_vague = account.is_told = False

    def _check_cause(self, account: _Account, now_us: Instant, run: Run) -> None:
        if not (account.has_cause(max(run.started_us, run.called_us)) or run.is_vague):
            self._object(now_us, run, "for no cause")

    def _on_stopped(self, now_us: Instant, run: Run) -> None:
        account = self._accounts.get(run.name)
        if account is not None and account.run is run:
            account.run, account.cut, account.cut_us, account.idle_us = None, run, now_us, now_us
            # If it was forgotten before its task was registered anew, nobody knows of it but its member.
            account.is_vague = account.is_vague or (account.is_superseded and run.is_forgotten)
        if self._departed.get(run.name) is run:
            self._cut.add(run.name)

    def _on_ended(self, now_us: Instant, run: Run) -> None:
        account = self._accounts.get(run.name)
        if self._departed.get(run.name) is run:
            del self._departed[run.name]
        if account is None or account.run is not run:
            return
        account.run, account.idle_us = None, now_us
        if not account.is_superseded:
            assert run.ended_us is not None
            account.failed_us = None if run.ok else run.ended_us

    def _on_edition(self, now_us: Instant, edition: Edition) -> None:
        new = {item.name: item for item in edition.items}
        for name in {*self._accounts, *new}:
            before = self._accounts.get(name)
            if before is not None and new.get(name) == before.item:
                self._before.pop(name, None)
                continue
            self._before[name] = before
            self._accounts.pop(name, None)
            if name not in new:
                if before is not None and before.run is not None:
                    self._depart(before.run)
                elif before is not None and before.cut is not None and before.cut_us is not None:
                    self._departed[name] = before.cut
                    self._cut.add(name)
                continue
            left = self._departed.pop(name, None)
            if left is not None and left.member not in edition.alive and not left.is_forgotten:
                left = None
            is_cut = left is not None and name in self._cut
            minute_us = edition.now_us // MINUTE_US * MINUTE_US
            self._accounts[name] = _Account(
                new[name],
                answered_us=minute_us - 1,
                idle_us=now_us,
                cut_us=None if before is None else before.cut_us,
                run=before.run if before is not None else None if is_cut else left,
                is_superseded=True,
                is_vague=is_cut if before is None else before.is_vague,
                since=self._at,
            )

    def _depart(self, run: Run) -> None:
        self._departed[run.name] = run
        self._cut.discard(run.name)

    def _on_forgotten(self, now_us: Instant, forgotten: Forgotten) -> None:
        self._forgot_us = now_us
        accounts, self._accounts, self._before = self._accounts, {}, {}
        departed = self._departed
        # It is told again what runs: whoever brings back a task that it has forgotten waits for its run.
        kept = {item.name for item in forgotten.items}
        self._departed = departed | {
            name: account.run
            for name, account in accounts.items()
            if account.run is not None and name not in kept
        }
        for item in forgotten.items:
            account = accounts.get(item.name)
            self._accounts[item.name] = _Account(
                item,
                answered_us=now_us if account is None else account.answered_us,
                idle_us=now_us,
                run=departed.get(item.name) if account is None else account.run,
                is_vague=True,
                since=self._at,
            )

    def _check_late(self, account: _Account, now_us: Instant) -> None:
        owed_us = account.owed_us()
        if owed_us is None or owed_us > now_us or account.is_told:
            return
        calm_us = self._calm_us(account.item, owed_us)
        self.result.owed += 1
        self.result.slowest_us = max(self.result.slowest_us, now_us - calm_us)
        if now_us > calm_us + allowance_us(self._plan):
            account.is_told = True
            self.result.faults.append(
                f"late: {account.item.name} was owed a start since {self._offset(owed_us)}, nothing was "
                f"wrong since {self._offset(calm_us)}, and it had none until {self._offset(now_us)}"
            )

    def _calm_us(self, item: Item, owed_us: Instant) -> Instant:
        """When the last trouble was over that could delay a start of *item* owed since *owed_us*."""
        troubles = self._troubles.get(item)
        if troubles is None:
            unserved = [
                (since_us, until_us)
                for since_us, until_us, items in self._served
                if items is None or item not in items
            ]
            troubles = self._troubles[item] = sorted([*self._history.troubles, *unserved])
        calm_us, allowance = owed_us, allowance_us(self._plan)
        for since_us, until_us in troubles:
            if since_us > calm_us + allowance:
                break
            calm_us = max(calm_us, until_us)
        return calm_us

    def _object(self, now_us: Instant, run: Run, why: str) -> None:
        self.result.faults.append(
            f"cause: {run.program.name} called {run.name} {why}, at {self._offset(now_us)}"
        )

    def _offset(self, at_us: Instant) -> str:
        return f"{(at_us - self._plan.start_us) / SECOND_US:.3f} s"


def _spans(history: History, end_us: Instant) -> list[tuple[Instant, Instant, Items | None]]:
    """From when until when which list was served."""
    changes = [(at_us, seen.items) for at_us, seen in history.seen if isinstance(seen, Served)]
    if not changes:
        return [(0, end_us, None)]
    spans: list[tuple[Instant, Instant, Items | None]] = [(0, changes[0][0], None)]
    for (since_us, items), (until_us, _) in zip(changes, [*changes[1:], (end_us, None)], strict=True):
        spans.append((since_us, until_us, items))
    return spans


def reckoned(plan: ClusterPlan, history: History, end_us: Instant) -> Reckoning:
    """The judgement of a history that ended at *end_us*, by the board."""
    return _Reckoner(plan, history, end_us).reckoned()
