"""What operations need of the daemon, and nothing else of it: the narrow face that `Daemon` brings.

Tests bring a small fake of it, so operations and the socket are tested without a process or a timer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from duly.config.schema import Config
from duly.daemon import shapes, views
from duly.instant import Instant
from duly.store.history import MissRow, RunRow


class Output(Protocol):
    """The output of a run under way; `supervisor.output.Tail` is one."""

    @property
    def lost_bytes(self) -> int:
        """How many bytes came before what is kept."""
        ...

    def text(self) -> str:
        """What is kept."""
        ...

    def watch(self, callback: Callable[[bytes], None], /) -> Callable[[], None]:
        """Call back with whatever comes from now on; the answer ends that."""
        ...


class Rows(Protocol):
    """Where runs and misses are looked up; `store.history.History` is one."""

    async def runs(
        self,
        *,
        service: str | None = None,
        timer: str | None = None,
        before: int | None = None,
        limit: int,
        with_output: bool = True,
    ) -> list[RunRow]:
        """Runs, newest first."""
        ...

    async def next_id(self, service: str, after: int, /) -> int | None:
        """The next run of a service after one; None if that is its newest."""
        ...

    async def runs_between(self, from_us: Instant, to_us: Instant, /, limit: int) -> list[RunRow]:
        """Runs that started then, or before and have not ended; newest first, without their output."""
        ...

    async def trend(self, service: str, /, *, limit: int) -> list[RunRow]:
        """The newest runs of a service that have ended, newest first, without their output."""
        ...

    async def counts(self, since_us: Instant, /) -> dict[str | None, int]:
        """How many runs that started since then ended how; None for those that have not."""
        ...

    async def run(self, run_id: int, /) -> RunRow | None:
        """One run."""
        ...

    async def misses(self, *, timer: str | None = None, limit: int) -> list[MissRow]:
        """Misses, newest first."""
        ...


class Reloaded(shapes.Shape):
    """What a reload made of a changed file: the ids, as `kind id`."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    unchanged: int
    invalid: list[shapes.InvalidShape]
    need_restart: list[str]
    """Settings that were changed, and take effect when the daemon is started anew."""


class Begun(NamedTuple):
    """A run that was asked for has begun: its id, and on which machine, unless it is this one."""

    run: int | None
    member: str | None = None


class Backend(Protocol):
    """The daemon, as far as operations need it. Its methods raise OperationError."""

    @property
    def config(self) -> Config:
        """What it runs by."""
        ...

    @property
    def history(self) -> Rows:
        """What ran."""
        ...

    def standing(self) -> views.Standing:
        """How it is, at this moment."""
        ...

    def services(self) -> Sequence[views.ServiceReading]:
        """How its services are."""
        ...

    def timers(self) -> Mapping[str, views.TimerReading] | None:
        """How its timers are; None while their gate is closed."""
        ...

    def output(self, run_id: int, /) -> Output | None:
        """The output of a run under way."""
        ...

    async def ended(self, run_id: int, /) -> None:
        """Return once a run has ended, at once if it is not under way."""
        ...

    async def start_service(self, service_id: str, /) -> int:
        """Start a service; the id of the run. Returns when its process is there."""
        ...

    async def stop_service(self, service_id: str, /) -> None:
        """Stop a service, and return when it has stopped."""
        ...

    async def trigger(self, timer_id: str, /) -> Begun:
        """Fire a timer by hand."""
        ...

    async def switch_timer(self, timer_id: str, /, *, enabled: bool) -> None:
        """Enable or disable a timer at run time."""
        ...

    async def switch_gate(self, *, is_open: bool) -> None:
        """Switch the timer subsystem on or off."""
        ...

    async def reload(self) -> Reloaded:
        """Read the configuration again, and apply it."""
        ...

    def shut_down(self) -> None:
        """Begin to end the daemon."""
        ...

    def note_action(self, action: str, id: str | None, who: str, /) -> None:  # noqa: A002 (the word for it)
        """Tell that somebody did something."""
        ...


class Door(Protocol):
    """A way in besides the socket, such as the dashboard."""

    async def start(self) -> None:
        """Open. What it raises keeps the daemon from starting."""
        ...

    async def close(self) -> None:
        """Close."""
        ...
