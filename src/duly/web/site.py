"""What the web shows: a site. The daemon is one, and so is the store of an embedded scheduler, read-only.

Pages, API and probes know a `Site` and nothing else of where it comes from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from duly.daemon.backend import Backend
from duly.web.live import Live

READ_ONLY = "read_only"
"""The code of the OperationError with which a site that is only looked at refuses actions."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the online monitor says of one property."""

    property: str
    verdict: str
    """holds, violated, or unknown."""
    count: int
    """Of violations."""
    words: str


class Exposition(Protocol):
    """Where the numbers for Prometheus come from; `observe.metrics.Metrics` is one."""

    def content_type(self, accept: str, /) -> str:
        """The type of what is told to somebody who accepts *accept*."""
        ...

    def taken(self, now: float, accept: str = "", /) -> Callable[[], bytes]:
        """What makes a text of the numbers at *now* (seconds since the epoch), in whatever thread."""
        ...


class Site(Protocol):
    """What there is to show, and whom to ask for a change."""

    @property
    def name(self) -> str:
        """What it is called, in titles."""
        ...

    @property
    def backend(self) -> Backend:
        """Whom operations are asked of."""
        ...

    @property
    def live(self) -> Live:
        """What happens, as it happens."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be changed here, by nobody."""
        ...

    @property
    def metrics(self) -> Exposition | None:
        """The numbers for Prometheus; None if they are not kept."""
        ...

    def verification(self) -> Sequence[Verdict] | None:
        """What the online monitor says of each property; None if nobody watches."""
        ...

    @property
    def unwatched(self) -> str:
        """What that monitor does not see, in a few sentences; empty if there is nothing to say."""
        ...

    def unready(self) -> str | None:
        """Why it cannot be relied on at this moment, in a few words; None if it can."""
        ...
