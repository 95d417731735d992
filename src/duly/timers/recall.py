"""What the store knows of timers, as a list of them is taken up; and what of it is kept for later.

Two kinds of rows are not put to work. One cannot be read: it is left as it is, and its timer does not run.
The other belongs to a timer whose definition is invalid for now: it is kept aside until that is mended. Then
its slots are owed as after any other time of rest; a start-up trigger that came meanwhile is not.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from duly.config.schema import Timer
from duly.core.record import Record
from duly.instant import Instant
from duly.timers.calendar import CalendarShelf
from duly.timers.reconciliation import Reconciliation, Surroundings, found, reconciled
from duly.timers.record import (
    COLUMNS,
    Declared,
    Row,
    TimerRecordError,
    declared_in,
    name_in,
    record_of,
    row_from,
    state_from,
)
from duly.timers.timer import TimerState, let_pass, released

Outcome = Callable[[int, str], str | None]
"""What became of a run of a timer (`targets.Targets.outcome`)."""

_TEXT = COLUMNS.index("definition")

_ORPHAN = Declared(Timer(id="", target=""), (), "")


class Recall:
    """What is known of timers that are not at work."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._damaged: dict[str, tuple[int, TimerRecordError]] = {}
        """The ids of rows that cannot be read, and what is wrong with them, by name."""
        self._aside: dict[str, Row] = {}
        """The rows of timers whose definition is invalid for now, by name."""

    def found(
        self,
        declared: list[Declared],
        records: Sequence[Record],
        around: Surroundings,
        invalid: Collection[str],
        moved: Mapping[str, TimerState],
    ) -> Reconciliation:
        """What *declared* makes of the stored timers, and those that *moved* here, at the beginning."""
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
            known[name] = found(timer, self._outcome, around) if name in places else timer
        outcome = self.reconciled(declared, newest(known, moved), around)
        outcome.touched.extend(timer for timer in outcome.kept if record_of(timer) != stored.get(timer.name))
        return outcome

    def reconciled(
        self, declared: list[Declared], known: Mapping[str, TimerState], around: Surroundings
    ) -> Reconciliation:
        """What *declared* makes of the *known* timers; those whose row is damaged do not run."""
        sound = [item for item in declared if item.definition.id not in self._damaged]
        outcome = reconciled(sound, known, around)
        names = {item.definition.id for item in declared}
        outcome.unreadable.extend(error for name, (_, error) in self._damaged.items() if name in names)
        return outcome

    def recalled(self, declared: list[Declared], around: Surroundings) -> dict[str, TimerState]:
        """Those of *declared* that the store has known since before their definition was invalid."""
        places = {item.definition.id: (item, order) for order, item in enumerate(declared)}
        around = around._replace(opened_us=around.now_us)
        return {
            name: let_pass(found(state_from(row, *places[name]), self._outcome, around), around.now_us)
            for name, row in self._aside.items()
            if name in places
        }

    def settled(self, calendars: CalendarShelf, now_us: Instant) -> list[TimerState]:
        """Those kept aside that have a start-up trigger, for whoever has them next: it came by now or not."""
        told = [(row, declared_in(row, calendars)) for row in self._aside.values()]
        return [
            let_pass(state_from(row, declared, 0), now_us)
            for row, declared in told
            if declared is not None and declared.definition.on_startup_sec is not None
        ]

    def gone(self, named: Collection[str]) -> set[str]:
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


def told_of(declared: Sequence[Declared], records: Iterable[Record]) -> dict[str, TimerState]:
    """Those of *declared* that *records* tell of, as they are there; damaged ones are left out."""
    places = {item.definition.id: (item, order) for order, item in enumerate(declared)}
    told: dict[str, TimerState] = {}
    for record in records:
        if (name := name_in(record)) in places:
            with suppress(TimerRecordError):  # whoever has it tells of it
                told[name] = state_from(row_from(record), *places[name])
    return told


def left_as_they_were(declared: Iterable[Declared], records: Iterable[Record]) -> set[str]:
    """The names of those of *declared* whose definition is the one that *records* were written with."""
    texts = {name_in(record): record[_TEXT] for record in records if len(record) > _TEXT}
    return {item.definition.id for item in declared if texts.get(item.definition.id) == item.text}


def moved_here(
    declared: Sequence[Declared], records: Iterable[Record], next_id: int
) -> dict[str, TimerState]:
    """Those of *declared* that were kept in another place so far, as *records*, with ids from *next_id* on.

    What runs of them runs there, and ends there.
    """
    told = enumerate(told_of(declared, records).items(), next_id)
    return {name: msgspec.structs.replace(released(timer), id=number) for number, (name, timer) in told}


def newest(known: Mapping[str, TimerState], moved: Mapping[str, TimerState]) -> dict[str, TimerState]:
    """What is known of each timer: here, or elsewhere if it was declared there since and is idle here."""
    chosen = dict(known)
    for name, timer in moved.items():
        here = known.get(name)
        if here is None:
            chosen[name] = timer
        elif here.registered_us < timer.registered_us and here.running_run is None:
            chosen[name] = msgspec.structs.replace(timer, id=here.id)
    return chosen
