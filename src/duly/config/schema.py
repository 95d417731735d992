"""What a configuration is made of: services, timers, settings, and what is wrong with them.

The classes take what people write (lists, a command as one text, a calendar as a mapping) and check nothing;
`checking` turns that into entries with tuples and argv, or into an `Invalid`. What a `Config` holds is always
checked, so nobody after it looks at a type again. Knows nothing of files, processes or clocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

Kind = Literal["service", "timer", "supervisor"]
Table = Literal["service", "timer", "supervisor", "dashboard"]
"""The tables of a file. What is wrong with the dashboard is wrong with the settings of the supervisor."""
ServiceType = Literal["oneshot", "simple"]
Restart = Literal["always", "on-failure", "no"]

RETRY_INTERVALS_SEC = (30, 120, 600)
CATCH_UP_WINDOW_SEC = 86_400


@dataclass(frozen=True, slots=True)
class Calendar:
    """Minutes of civil time: those that match every field. None stands for `"*"`, every value."""

    minute: tuple[int, ...] | None = None
    hour: tuple[int, ...] | None = None
    day_of_month: tuple[int, ...] | None = None
    month: tuple[int, ...] | None = None
    day_of_week: tuple[int, ...] | None = None
    """0 is Sunday."""

    if TYPE_CHECKING:

        def __init__(
            self,
            minute: "FieldAsWritten" = None,
            hour: "FieldAsWritten" = None,
            day_of_month: "FieldAsWritten" = None,
            month: "FieldAsWritten" = None,
            day_of_week: "FieldAsWritten" = None,
        ) -> None: ...


if TYPE_CHECKING:
    FieldAsWritten = int | Sequence[int] | Literal["*"] | None
    CalendarAsWritten = Calendar | Mapping[str, Any]


class _Hidden:
    """An address that holds secrets: no field, so whatever writes out a configuration does not see it."""

    __slots__ = ("_secret",)

    @property
    def secret(self) -> str:
        """The address itself, for whoever opens the connection; empty where only its name is known."""
        return str(getattr(self, "_secret", ""))


@dataclass(frozen=True, slots=True)
class PingUrl(_Hidden):
    """A URL to ping. Only the host is ever shown, compared or stored."""

    host: str

    @classmethod
    def of(cls, host: str, url: str) -> "PingUrl":
        """A URL and the host in it."""
        made = cls(host)
        object.__setattr__(made, "_secret", url)
        return made


@dataclass(frozen=True, slots=True)
class Database(_Hidden):
    """A database that several machines share. Its address is shown without password and options."""

    name: str

    @classmethod
    def of(cls, name: str, url: str) -> "Database":
        """An address and what to call it."""
        made = cls(name)
        object.__setattr__(made, "_secret", url)
        return made


@dataclass(frozen=True, slots=True)
class Service:
    """A program to supervise: kept running (`simple`), or run to its end (`oneshot`)."""

    id: str
    command: tuple[str, ...]
    _: KW_ONLY
    type: ServiceType = "simple"
    enabled: bool = True
    stage: int = 3
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    cwd: str | None = None
    timeout_sec: float | None = None
    restart: Restart = "always"
    at_startup: bool | None = None
    ping_url: PingUrl | None = None
    """Pinged after each success, so that something outside notices silence."""
    description: str = ""

    if TYPE_CHECKING:

        def __init__(
            self,
            id: str,  # noqa: A002 - the name of the key
            command: str | Sequence[str],
            *,
            type: ServiceType = "simple",  # noqa: A002 - the name of the key
            enabled: bool = True,
            stage: int = 3,
            after: Sequence[str] = (),
            requires: Sequence[str] = (),
            env: Mapping[str, str] = ...,
            cwd: str | None = None,
            timeout_sec: float | None = None,
            restart: Restart | bool = "always",
            at_startup: bool | None = None,
            ping_url: PingUrl | str | None = None,
            description: str = "",
        ) -> None: ...


@dataclass(frozen=True, slots=True)
class Timer:
    """When to run a oneshot service."""

    id: str
    target: str
    _: KW_ONLY
    enabled: bool = True
    persistent: bool = True
    on_calendar: tuple[Calendar, ...] = ()
    on_startup_sec: float | None = None
    on_unit_active_sec: float | None = None
    retry_intervals_sec: tuple[float, ...] = RETRY_INTERVALS_SEC
    catch_up_window_sec: float = CATCH_UP_WINDOW_SEC
    timezone: str | None = None
    description: str = ""

    if TYPE_CHECKING:

        def __init__(
            self,
            id: str,  # noqa: A002 - the name of the key
            target: str,
            *,
            enabled: bool = True,
            persistent: bool = True,
            on_calendar: "CalendarAsWritten | Sequence[CalendarAsWritten]" = (),
            on_startup_sec: float | None = None,
            on_unit_active_sec: float | None = None,
            retry_intervals_sec: Sequence[float] = RETRY_INTERVALS_SEC,
            catch_up_window_sec: float = CATCH_UP_WINDOW_SEC,
            timezone: str | None = None,
            description: str = "",
        ) -> None: ...


SHORTEST_LEASE_SEC = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The table `[supervisor]`: what holds for all services and timers."""

    enabled: bool = True
    timers: bool = False
    """The gate (TIMERS.md 7)."""
    store: str | Database | None = None
    """A file; or a database, by which several machines share their timers (then the file beside the
    configuration keeps what is this machine's own)."""
    lease_sec: float = 6
    """How long a machine of those may be silent before others take its timers."""
    socket: str | None = None
    timezone: str | None = None
    shutdown_timeout_sec: float = 30
    kill_grace_sec: float = 10
    history_days: float = 90
    history_runs: int = 1000
    """Kept for each service."""
    output_kib: int = 64
    """The tail that is kept of each run."""


DEFAULT_LISTEN = "127.0.0.1:8787"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The table `[dashboard]`: where the pages are, and who may see them."""

    enabled: bool = True
    listen: str = DEFAULT_LISTEN
    token_file: str | None = None
    """Holds the token of operators. In a `Config` this path and the next are absolute."""
    viewer_token_file: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Names under which it answers, besides those of this host."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """An entry that cannot be used, and the one reason why."""

    kind: Kind
    id: str | None
    index: int
    reason: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Warned:
    """An entry that can be used, and does perhaps not mean what its author meant."""

    kind: Kind
    id: str | None
    index: int
    reason: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """A file that was read: the entries that can be used, in the order of declaration, and the rest."""

    path: Path
    settings: Settings = Settings()
    services: tuple[Service, ...] = ()
    timers: tuple[Timer, ...] = ()
    invalid: tuple[Invalid, ...] = ()
    warnings: tuple[Warned, ...] = ()
    exposed: str = ""
    """Which secret in it everybody on this host can read; empty if none. It is among the warnings, too."""
    dashboard: Dashboard = Dashboard()
    is_listen_given: bool = False
    """Whether the file says where the dashboard listens; if not, that it cannot listen there is no reason to
    refuse a start."""
    targets: frozenset[str] = frozenset()
    """What timers name as their target, also those that are invalid: a mistake in a timer does not make its
    job one that runs at every start."""


def store_path(config: Config) -> Path:
    """Where this machine's state is kept: as configured, or beside the file and named after it."""
    store = config.settings.store
    return _beside(config.path, store if isinstance(store, str) else None, ".db")


def database_of(config: Config) -> Database | None:
    """The database by which the timers are shared with other machines, if they are."""
    store = config.settings.store
    return store if isinstance(store, Database) else None


def socket_path(config: Config) -> Path:
    """Where the daemon listens: as configured, or beside the file and named after it."""
    return _beside(config.path, config.settings.socket, ".sock")


def _beside(path: Path, configured: str | None, suffix: str) -> Path:
    return path.absolute().parent / (configured or f"{path.stem}{suffix}")


def starts_at_boot(service: Service, targets: Iterable[str]) -> bool:
    """Whether a start of the supervisor starts it: as it says, or unless it is the job of a timer."""
    if service.at_startup is not None:
        return service.at_startup
    return not (service.type == "oneshot" and service.id in targets)
