"""What a list of timers makes of the rows of a cluster, and what a start-up means for them.

A start-up is that of the first node. Its start-up triggers come on whichever node claims the rows then.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from duly.cluster.node import Node
from duly.cluster.store import Link
from duly.cluster.table import Ask, ReadNodes, TaskView
from duly.cluster_timers.rows import PASSED, STARTUP, TimerCodec, TimerList
from duly.config.schema import Timer
from duly.errors import ListRefusedError
from duly.instant import Instant
from duly.timers.reconciliation import ReconciliationContext, TimerReconciliation, reconciliation_of
from duly.timers.record import DeclaredTimer, TimerRecordError
from duly.timers.timer import TimerState, span_us

_NO_TIMER = DeclaredTimer(Timer(id="", target=""), (), "")


def outcome_of(
    listed: TimerList,
    names: Sequence[str],
    stored: Mapping[str, TaskView],
    codec: TimerCodec,
    context: ReconciliationContext,
) -> TimerReconciliation:
    """What *listed* makes of the stored timers; *names* are new in it, or declared in another way.

    A row that cannot be read is left alone. Whatever is not in the list is there as removed.
    """
    known: dict[str, TimerState] = {}
    unreadable: list[TimerRecordError] = []
    for name in names:
        if (view := stored.get(name)) is not None:
            try:
                known[name] = codec.before(view, listed[name])
            except TimerRecordError as error:
                unreadable.append(error)
    damaged = {error.name for error in unreadable}
    outcome = reconciliation_of([listed[name] for name in names if name not in damaged], known, context)
    outcome.unreadable.extend(unreadable)
    for name, view in stored.items():
        if name not in listed:
            with suppress(TimerRecordError):
                outcome.removed.append(codec.before(view, _NO_TIMER))
    return outcome


def start_up_asks(
    listed: TimerList, fresh: Collection[str], at_us: Instant, now_us: Instant, *, is_start_up: bool
) -> Iterator[Ask]:
    """What to tell timers of a start-up at *at_us*; those in *fresh* know of it.

    If it *is_start_up* all triggers are to come. Else the timers were switched on later, and some have
    passed.
    """
    coming: list[str] = []
    passed: list[str] = []
    for name, item in listed.items():
        after_sec = item.definition.on_startup_sec
        if after_sec is not None and name not in fresh:
            is_coming = is_start_up or at_us + span_us(after_sec) > now_us
            (coming if is_coming else passed).append(name)
    if coming:
        yield Ask(names=coming, text=f"{STARTUP} {at_us}")
    if passed:
        yield Ask(names=passed, text=f"{PASSED} {now_us}")


async def is_first(link: Link, node: Node, pause: Callable[[], Awaitable[bool]]) -> bool:
    """Whether no living node joined before *node*. Raises StoreError.

    One that has sent no heartbeat since the first look may be dead. It is waited for: either it sends one, or
    it is fenced. No more if *pause* answers that there is no need to know.
    """
    first_seen: dict[int, int] | None = None
    while True:
        nodes = (await link.do(ReadNodes())).all
        mine = next((each for each in nodes if each.node == node.id), None)
        if mine is None:
            return False
        older = {
            each.node: each.beat
            for each in nodes
            if each.fenced_us is None and (each.joined_us, each.node) < (mine.joined_us, mine.node)
        }
        if not older:
            return True
        first_seen = older if first_seen is None else first_seen
        if any(first_seen.get(number) != beat for number, beat in older.items()) or not await pause():
            return False


def refusal_text(error: ListRefusedError) -> str:
    """Why a list is refused that would remove all timers of other machines."""
    nodes = ", ".join(error.details["nodes"])
    return (
        f"has the timers of {nodes}, and this file has none of them. Of another application? Then give "
        "this daemon a namespace of its own (?namespace=NAME in its address), or stop the others first"
    )
