"""The daemon as a site: what it shows and does, and the faults it hears of."""

from collections.abc import Callable, Sequence

from duly.daemon.backend import Backend
from duly.events import Event
from duly.web.live import Live
from duly.web.site import Exposition, Verdict

_FAULTS = {"StoreFault": "the store cannot be written", "PollFailed": "scheduling fails"}
_RECOVERIES = {"StoreRecovered": "StoreFault", "PollRecovered": "PollFailed"}


class DaemonSite:
    """A site over a daemon. It listens to the daemon's events: hand `listener` to it."""

    is_read_only = False

    def __init__(
        self,
        name: str,
        live: Live,
        *,
        metrics: Exposition | None = None,
        verification: Callable[[], Sequence[Verdict] | None] | None = None,
    ) -> None:
        self.name = name
        self.live = live
        self.metrics = metrics
        self._verification = verification
        self.unwatched = ""
        self._backend: Backend | None = None
        self._faults: dict[str, str] = {}

    @property
    def backend(self) -> Backend:
        """The daemon."""
        assert self._backend is not None, "nothing is served before there is a daemon"
        return self._backend

    def serve(self, backend: Backend) -> None:
        """Show *backend* from now on."""
        self._backend = backend

    def show(
        self,
        metrics: Exposition | None,
        verification: Callable[[], Sequence[Verdict] | None],
        unwatched: str = "",
    ) -> None:
        """Show these numbers and verdicts from now on, and what is *unwatched*."""
        self.metrics, self._verification, self.unwatched = metrics, verification, unwatched

    def listener(self, event: Event) -> None:
        """Hear what happens."""
        if event.name in _FAULTS:
            self._faults[event.name] = f"{_FAULTS[event.name]}: {event.fields.get('error', 'unknown')}"
        elif event.name in _RECOVERIES:
            self._faults.pop(_RECOVERIES[event.name], None)
        self.live.listener(event)

    def verification(self) -> Sequence[Verdict] | None:
        """What the online monitor says of each property."""
        return None if self._verification is None else self._verification()

    def unready(self) -> str | None:
        """Why the daemon cannot be relied on at this moment."""
        state = self.backend.standing().state
        if state != "running":
            return state
        return next(iter(self._faults.values()), None)
