"""The backend: keeps the items of a scheduler, and says which of them start now.

The poller asks its backend for claimed starts and hands it the ends of runs. It does not know where the items
are: all in memory, with a store that this process alone writes (`engine.local`), or as rows of a database
that many nodes share. So these rules are what the durability claim rests on (spec/scheduler.md 3.4):

- What `claim` returns is durable already. Only then is a callback called.
- Every start that `claim` returned is answered by exactly one of `give_back` and `on_begun`. Every run that
  was begun is answered by exactly one of `on_call_off` and `on_end`, unless it is dropped as in a crash.
- Only `claim` waits. Everything else answers at once, also while a claim is under way: runs end meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Protocol

from duly.clock import Step
from duly.core.registration import Callback
from duly.engine.rules import Begin, T
from duly.engine.runs import ActiveRun
from duly.instant import Instant


class Backend(Protocol[T]):
    """Keeps the items of a scheduler, and says which of them start now."""

    # --- what the poller asks ---

    @property
    def writing(self) -> asyncio.Lock:
        """Held by the poller from asking for starts until their runs have begun, so that `end` cuts no write.

        Others hold it to change what the backend keeps. The end of a run never waits for it.
        """

    @property
    def zone(self) -> tzinfo:
        """The zone in which events give the time."""

    @property
    def count(self) -> int:
        """How many items it knows. The poller does not begin while there are none."""

    @property
    def is_faulty(self) -> bool:
        """Whether the store has failed, and has not been seen to work since."""

    def may_call(self) -> bool:
        """Whether anything may start here at all."""

    def has_more(self) -> bool:
        """Whether the last claim left starts behind for want of room: the poller asks again at once."""

    def next_us(self) -> Instant | None:
        """When to ask again if nothing else happens; None: not for a reason of time.

        After a claim with no room it must not be an instant that has passed: the end of a run wakes the
        poller anyway.
        While nothing may start the poller ignores it, unless the backend is faulty.
        """

    # --- starts ---

    async def claim(
        self, now_us: Instant, at_most: int, on_look: Callable[[int], None]
    ) -> Sequence[Begin[T]]:
        """Write the ends that came in, and claim the starts to make now, *at_most* so many.

        With 0 only ends are written. *on_look* is called once with the number of items that
        are looked at, if there are any, before any event about them.
        A fault of the store is announced and not raised: then nothing is returned. If anything is raised,
        also by a cancellation, what was not returned is still owed.
        """

    def give_back(self, starts: Sequence[Begin[T]]) -> None:
        """Take back starts that were claimed and have not begun: what was owed is owed still."""

    def callback_of(self, start: Begin[T]) -> Callback:
        """What to call."""

    def on_begun(self, start: Begin[T], run: ActiveRun[T]) -> None:
        """Note that *run* is the run of *start*. Its callback will be called soon, or it is called off."""

    def look_again(self) -> None:
        """Forget which items need no look: something raised that should not, perhaps half-way."""

    # --- runs, and the clock ---

    def on_call(self, run: ActiveRun[T]) -> bool:
        """Note that the callback is about to be called: it answers a minute that began since the claim.

        Whether the start is still ours to make and anything may start; if not, it is called off.
        """

    def on_call_off(self, run: ActiveRun[T]) -> None:
        """Take back a start that was claimed and whose callback was not called: it is owed still."""

    def on_end(self, run: ActiveRun[T], error: BaseException | None) -> T | None:
        """Note the end of a run, for the next claim to write. The item after it; None: not registered."""

    def on_step(self, step: Step) -> None:
        """Note that the wall clock was stepped."""
