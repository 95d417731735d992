"""What the web shows: one `Site`. A daemon fills it, or the store of an embedded scheduler (`dashboard`).

Pages, API and probes know a `Site` and nothing else of where it comes from.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from duly.daemon.backend import Observed, ReadBackend
from duly.web.live import Live
from duly.web.task_store import TaskStore

READ_ONLY = "read_only"
"""The code of the OperationError with which a site that is only looked at refuses actions."""


@dataclass(slots=True)
class Site:
    """What there is to show, and the backend that makes changes."""

    name: str
    """In titles."""
    backend: ReadBackend
    """Performs operations."""
    live: Live
    observed: Observed
    """Metrics, and what is said of each property."""
    unready: Callable[[], str | None]
    """Why it cannot be relied on at this moment, in a few words; None if it can."""
    tasks: TaskStore | None = None
    """The tasks of an embedded scheduler: these are shown instead of services, timers and runs."""
    act: Callable[[str, str, str], Awaitable[None]] | None = None
    """Does something to one of those tasks: what, to which, and who asks for it."""

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be changed here, by nobody."""
        return self.tasks is not None and self.act is None
