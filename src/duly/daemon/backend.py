"""What operations need of the daemon, and nothing else of it: the narrow face that `Daemon` brings.

Tests bring a small fake of it, so operations and the socket are tested without a process or a timer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from duly.cluster.table import Nodes
from duly.config.schema import Config
from duly.daemon import json_types, views
from duly.events import Event
from duly.processes.output import Tail
from duly.store.history import History, RemoteRun, RunBucket, Span, WantedRuns


class Reloaded(json_types.JsonStruct):
    """What a reload made of a changed file: the ids, as `kind id`."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    unchanged: int
    invalid: list[json_types.InvalidJson]
    need_restart: list[str]
    """Settings that were changed, and take effect when the daemon is restarted."""


class ReadBackend(Protocol):
    """What can be looked at: a daemon, or the store of an embedded scheduler. Raises OperationError."""

    @property
    def config(self) -> Config: ...

    @property
    def history(self) -> History: ...

    def daemon_status(self) -> views.DaemonStatus: ...

    def services(self) -> Sequence[views.ServiceSnapshot]: ...

    def timers(self) -> Mapping[str, views.TimerSnapshot] | None:
        """How its timers are; None while they are off."""
        ...

    async def refresh(self) -> None:
        """Have `timers` show how timers are now, also those of other machines."""
        ...

    async def past_runs(self, wanted: WantedRuns, /) -> Sequence[RemoteRun]:
        """Runs of shared timers that have ended, on whatever machine, newest first."""
        ...

    async def past_buckets(self, timers: Sequence[str], span: Span, /) -> Sequence[RunBucket] | None:
        """The runs of shared timers that have ended, in the parts of *span*, each called as its timer.

        On whatever machine, this one too. None if the timers are not shared.
        """
        ...

    async def nodes(self) -> Nodes | None:
        """The machines that share the timers; None if none does, or the timers are off here."""
        ...

    def output(self, run_id: int, /) -> Tail | None: ...

    async def ended(self, run_id: int, /) -> None:
        """Return once a run has ended, at once if it is not under way."""
        ...


class DaemonBackend(ReadBackend, Protocol):
    """The daemon, as far as operations need it: it can also be changed. Raises OperationError."""

    async def start_service(self, service_id: str, /) -> int:
        """Start a service; the id of the run. Returns when its process is there."""
        ...

    async def stop_service(self, service_id: str, /) -> None: ...

    async def trigger(self, timer_id: str, /) -> int:
        """Fire a timer by hand; the id of the run."""
        ...

    async def switch_timer(self, timer_id: str, /, *, enabled: bool) -> None: ...

    async def set_timer_switch(self, *, is_open: bool) -> None: ...

    async def reload(self, *, allow_empty: bool = False) -> Reloaded: ...

    def shut_down(self) -> None: ...

    def emit_action(self, action: str, id: str | None, who: str, /) -> None: ...  # noqa: A002 (the word for it)


@dataclass(frozen=True, slots=True)
class PropertyVerdict:
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
        """The content type for a client with this Accept header."""
        ...

    def taken(self, now: float, accept: str = "", /) -> Callable[[], bytes]: ...


class Observed(Protocol):
    """What the watchers of a daemon found out; `watching.Watch` is one."""

    @property
    def metrics(self) -> Exposition | None:
        """The numbers for Prometheus; None if they are not kept."""
        ...

    def verification(self) -> Sequence[PropertyVerdict] | None:
        """What the online monitor says of each property; None if nobody watches."""
        ...

    @property
    def unwatched(self) -> str:
        """What that monitor does not see, in a few sentences; empty if there is nothing to say."""
        ...


class DashboardHost(DaemonBackend, Protocol):
    """A daemon that has a dashboard."""

    def set_dashboard(self, url: str = "", *, fault: str = "") -> None:
        """Report where the dashboard is, or why there is none."""
        ...

    def emit_shortage(self, listener: str, error: OSError | None, /) -> None:
        """Report that connections of a *listener* have to wait, or that they no longer have to."""
        ...


class DashboardServer(Protocol):
    """The dashboard, as the daemon knows it. The command line makes it, so the daemon imports no web."""

    async def start(self) -> None:
        """Open. What it raises keeps the daemon from starting."""
        ...

    async def close(self) -> None: ...

    def attach(self, daemon: DashboardHost, observed: Observed, /) -> None:
        """Show *daemon* as soon as it runs."""
        ...

    def listener(self, event: Event, /) -> None: ...
