"""Rules: what the engine must know of the kind of thing that it starts.

The engine wakes, writes, calls and waits; it does not know why anything is owed a start. That is what rules
say, as pure answers over frozen items: for tasks with a cron expression (`engine.tasks`) and for timers over
services. An item is a value; whatever happens to it makes a new one, and the store is given whole items.
"""

from collections.abc import Sequence
from datetime import tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from duly.clock import Step
from duly.events import Announcer
from duly.instant import Instant

if TYPE_CHECKING:
    from duly.engine.runs import ActiveRun


class Item(Protocol):
    """Something that can be started."""

    @property
    def id(self) -> int:
        """What the store knows it by."""

    @property
    def name(self) -> str:
        """What people know it by."""

    @property
    def running_since_us(self) -> Instant | None:
        """When the run under way began."""

    @property
    def last_attempt_us(self) -> Instant | None:
        """When its last run began."""


T = TypeVar("T", bound=Item)
T_co = TypeVar("T_co", bound=Item, covariant=True)


class Begin(Protocol[T_co]):
    """One start that is owed: the item before it, the item after it, and why."""

    @property
    def before(self) -> T_co:
        """The item without the run."""

    @property
    def after(self) -> T_co:
        """The item with the run begun, as it is written before the callback is called."""

    @property
    def cause(self) -> StrEnum:
        """Why."""


class Look(NamedTuple, Generic[T]):
    """What came of looking at some items."""

    starts: Sequence[Begin[T]]
    changed: Sequence[tuple[T, T]] = ()
    """Items that are different now and are not started, such as a timer that missed its slot."""


class Rules(Protocol[T]):
    """What is owed to items of one kind, and what becomes of them."""

    def looked_at(self, items: Sequence[T], now_us: Instant, /) -> Look[T]:
        """What *items* are owed at *now_us*."""

    def wakes_us(self, item: T, /) -> Instant:
        """When the item next needs a look, if nothing else happens to it."""

    def called(self, item: T, now_us: Instant, /) -> T:
        """The item at the moment its callback is called, a little after its start was written."""

    def ended(self, item: T, run: "ActiveRun[T]", error: BaseException | None, /) -> T:
        """The item after its run."""

    def released(self, item: T, /) -> T:
        """The item after the end of a run that says nothing of it any more."""

    def redefined(self, item: T, like: T, /) -> T:
        """The item with the definition of *like*, which is the same item in an older state."""

    def timeout_us(self, item: T, /) -> int | None:
        """How long a run of the item may take; None: as long as all may."""
        ...

    def limit_of(self, item: T, /) -> str | None:
        """The named limit that runs of the item count in."""
        ...

    def minds(self, step: Step, /) -> bool:
        """Whether a step of the clock changes anything beyond what is due by then."""

    def stepped(self, item: T, step: Step, /) -> T:
        """The item after the clock was stepped."""

    def emit_starts(self, announcer: Announcer, starts: Sequence[Begin[T]], zone: tzinfo, /) -> None:
        """Emit starts whose callbacks are about to be called."""

    def emit_changed(self, announcer: Announcer, before: T, after: T, zone: tzinfo, /) -> None:
        """Emit a look that changed an item and did not start it."""

    def emit_end(
        self,
        announcer: Announcer,
        item: T | None,
        run: "ActiveRun[T]",
        error: BaseException | None,
        zone: tzinfo,
        /,
    ) -> None:
        """Emit the end of a run; the item is None when it is not registered any more."""

    def emit_skipped(self, announcer: Announcer, name: str, reason: str, /) -> None:
        """Emit that nothing was started, and why."""
