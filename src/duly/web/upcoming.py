"""What only timers know: the slots that come, and what became of those that were. Pure.

Imported when the timers are on, and not before (spec/timers.md 7).
"""

from collections.abc import Sequence
from typing import NamedTuple

from duly.config.schema import Timer
from duly.daemon.slots import SlotAnswer, record_of, slots_of, why_latest
from duly.daemon.views import TimerSnapshot
from duly.instant import Instant
from duly.store.history import MissRow, RunRow
from duly.web import formatting
from duly.web.formatting import Mark, Moment
from duly.web.models import TimerEntry, instants_after


class ShownSlot(NamedTuple):
    mark: Mark
    sentence: str
    run: RunRow | None


def slots_ahead(
    timer: Timer, snapshot: TimerSnapshot, moment: Moment, until_us: Instant, most: int
) -> list[Instant]:
    following = slots_of(timer, moment.zone, snapshot.registered_us)
    return instants_after(following, moment.now_us, until_us, most)


def slots_answered(
    entry: TimerEntry, runs: Sequence[RunRow], misses: Sequence[MissRow], moment: Moment, count: int
) -> list[ShownSlot]:
    """What became of a timer's latest slots, newest first; what `duly why` would say of each.

    Of a shared timer only what is on record: another machine may run it now, or have noted a miss.
    """
    record = record_of(entry.timer, entry.snapshot, moment.zone, moment.now_us, runs=runs, misses=misses)
    return [
        ShownSlot(_mark(answer), answer.sentence, answer.run)
        for answer in reversed(why_latest(record, count))
        if entry.snapshot.member is None or _is_on_record(answer)
    ]


def _is_on_record(answer: SlotAnswer) -> bool:
    if answer.run is not None:
        return answer.run.scheduled_us == answer.slot_us
    return answer.miss is not None and answer.miss.at_us == answer.slot_us


def _mark(answer: SlotAnswer) -> Mark:
    kind = str(answer.kind)
    mark = formatting.SLOTS.get(kind, Mark("calm", "none", kind.replace("-", " ")))
    if answer.run is not None and answer.run.result not in {None, "success"} and mark.tone == "good":
        return mark._replace(tone="warn")
    return mark
