"""What the store knows of timers, as a list of them is taken up; and what of it is kept for later.

Two kinds of rows are not put to work. One cannot be read: it is left as it is, and its timer does not run.
The other belongs to a timer whose definition is invalid for now: it is kept until that is repaired. Then its
slots are owed as after any other time of rest; a start-up trigger that came meanwhile is not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from duly.config.schema import Timer
from duly.core.record import Record
from duly.timers.reconciliation import (
    ReconciliationContext,
    TimerReconciliation,
    reconciliation_of,
    resumed_timer,
)
from duly.timers.record import (
    DeclaredTimer,
    TimerRecordError,
    TimerRow,
    name_in,
    record_of,
    row_from,
    state_from,
)
from duly.timers.timer import TimerState

OutcomeOfRun = Callable[[int, str], str | None]
"""What became of a run of a timer (`rules.Targets.outcome`)."""

_ORPHAN = DeclaredTimer(Timer(id="", target=""), (), "")


class StoredTimers:
    """What is known of timers that are not at work."""

    def __init__(self, outcome: OutcomeOfRun) -> None:
        self._outcome = outcome
        self._damaged: dict[str, tuple[int, TimerRecordError]] = {}
        """The ids of rows that cannot be read, and what is wrong with them, by name."""
        self._aside: dict[str, TimerRow] = {}
        """The rows of timers whose definition is invalid for now, by name."""

    def load(
        self,
        declared: list[DeclaredTimer],
        records: Sequence[Record],
        context: ReconciliationContext,
        invalid: Collection[str],
    ) -> TimerReconciliation:
        """What *declared* makes of the stored timers, at the beginning."""
        places = {item.definition.id: (item, order) for order, item in enumerate(declared)}
        known: dict[str, TimerState] = {}
        stored: dict[str, tuple[object, ...]] = {}
        for record in records:
            name = name_in(record)
            try:
                row = row_from(record)
            except TimerRecordError as error:
                self._damaged[name] = record[0], error
                continue
            if name in invalid and name not in places:
                self._aside[name] = row
                continue
            timer = state_from(row, *places.get(name, (_ORPHAN, 0)))
            stored[name] = record_of(timer)
            known[name] = resumed_timer(timer, self._outcome, context) if name in places else timer
        outcome = self.reconciliation(declared, known, context)
        outcome.touched.extend(timer for timer in outcome.kept if record_of(timer) != stored.get(timer.name))
        return outcome

    def reconciliation(
        self, declared: list[DeclaredTimer], known: Mapping[str, TimerState], context: ReconciliationContext
    ) -> TimerReconciliation:
        """What *declared* makes of the *known* timers; those whose row is damaged do not run."""
        sound = [item for item in declared if item.definition.id not in self._damaged]
        outcome = reconciliation_of(sound, known, context)
        names = {item.definition.id for item in declared}
        outcome.unreadable.extend(error for name, (_, error) in self._damaged.items() if name in names)
        return outcome

    def restored_timers(
        self, declared: list[DeclaredTimer], context: ReconciliationContext
    ) -> dict[str, TimerState]:
        """Those of *declared* that the store has known since before their definition was invalid."""
        places = {item.definition.id: (item, order) for order, item in enumerate(declared)}
        return {
            name: resumed_timer(state_from(row, *places[name]), self._outcome, context)
            for name, row in self._aside.items()
            if name in places
        }

    def names_gone(self, named: Collection[str]) -> set[str]:
        """Those that are in no list any more, valid or not, of those that are *named* now."""
        return (self._damaged.keys() | self._aside.keys()) - set(named)

    def ids_of(self, names: Collection[str]) -> list[int]:
        """The ids of the rows of these."""
        damaged = {name: row_id for name, (row_id, _) in self._damaged.items()}
        ids = damaged | {name: row.id for name, row in self._aside.items()}
        return [ids[name] for name in names]

    def forget(self, gone: Collection[str], at_work: Collection[str]) -> None:
        """The rows of *gone* are no more, and those of timers *at_work* are not kept aside."""
        for name in gone:
            self._damaged.pop(name, None)
        for name in {*gone, *at_work}:
            self._aside.pop(name, None)
