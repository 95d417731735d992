"""What a configuration is made of: services, timers, settings, and what is wrong with them or with a file.

The classes take what people write (lists, a command as one text, a calendar as a mapping) and check nothing;
`checking` turns that into entries with tuples and argv, or into an `Invalid`. What a `Config` holds is always
checked, so nobody after it looks at a type again. Knows nothing of files, processes or clocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from duly.cron import CronExpression
from duly.cron.fields import FIELDS
from duly.errors import SchedulerError

EntryTable = Literal["service", "timer", "job", "notify", "supervisor"]
Table = Literal["service", "timer", "job", "notify", "supervisor", "dashboard", "defaults"]
"""The tables of a file. What is wrong with the dashboard or the defaults is wrong with the settings of the
supervisor."""
ServiceType = Literal["oneshot", "simple"]
Restart = Literal["always", "on-failure", "no"]
RepeatedHour = Literal["once", "both"]
Overlap = Literal["skip", "queue", "replace"]

RETRY_INTERVALS_SEC = (30, 120, 600)
LAST_DAYS = (28, 29, 30, 31)
"""The days that can be the last of a month."""
CATCH_UP_WINDOW_SEC = 86_400


@dataclass(frozen=True, slots=True)
class Calendar:
    """Minutes of civil time: those that match every field. None stands for `"*"`, every value."""

    minute: tuple[int, ...] | None = None
    hour: tuple[int, ...] | None = None
    day_of_month: tuple[int, ...] | Literal["last"] | None = None
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
    FieldAsWritten = int | str | Sequence[int | str] | None
    Length = float | str | timedelta
    CalendarAsWritten = Calendar | Mapping[str, Any]


class _Hidden:
    """An address that holds secrets: no field, so whatever writes out a configuration does not see it."""

    __slots__ = ("_secret",)

    @property
    def secret(self) -> str:
        """The address itself, to open a connection with; empty where only its name is known."""
        return str(getattr(self, "_secret", ""))

    @classmethod
    def of(cls, shown: str, secret: str) -> Self:
        """An address, and what is shown of it."""
        made = cls(shown)  # type: ignore[call-arg] # each subclass has one field
        object.__setattr__(made, "_secret", secret)
        return made


@dataclass(frozen=True, slots=True)
class PingUrl(_Hidden):
    """A URL to ping, or to tell something. Only the host is ever shown, compared or stored."""

    host: str


@dataclass(frozen=True, slots=True)
class Database(_Hidden):
    """A database that several machines share. Its address is shown without password and options."""

    name: str


@dataclass(frozen=True, slots=True)
class Service:
    """A program to supervise: kept running (`simple`), or run to its end (`oneshot`)."""

    id: str
    command: tuple[str, ...]
    _: KW_ONLY
    shell: bool = False
    """The command was one text for /bin/sh, and is the argv of that by now."""
    type: ServiceType = "simple"
    enabled: bool = True
    stage: int = 3
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    env_file: str | None = None
    cwd: str | None = None
    user: str | None = None
    group: str | None = None
    umask: str | None = None
    nice: int | None = None
    memory_max: int | None = None
    """In bytes."""
    nofile: int | None = None
    lock: str | None = None
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
            shell: bool = False,
            type: ServiceType = "simple",  # noqa: A002 - the name of the key
            enabled: bool = True,
            stage: int = 3,
            after: Sequence[str] = (),
            requires: Sequence[str] = (),
            env: Mapping[str, str] = ...,
            env_file: str | None = None,
            cwd: str | None = None,
            user: str | None = None,
            group: str | None = None,
            umask: str | None = None,
            nice: int | None = None,
            memory_max: int | str | None = None,
            nofile: int | None = None,
            lock: str | None = None,
            timeout_sec: "Length | None" = None,
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
    overlap: Overlap = "skip"
    on_calendar: tuple[Calendar, ...] = ()
    cron: str | None = None
    """As it is written; so is `daily`. A checked timer has calendars instead."""
    daily: str | None = None
    at: str | None = None
    """An ISO time; without an offset it is meant in the zone of the timer."""
    every: float | None = None
    """Seconds: at the registration of the timer plus every multiple of it."""
    after_end: bool = False
    """As it is written, `every` counts from the end of the last run. A checked timer has that as its
    `on_unit_active_sec`, which then counts from the registration as long as there was no run."""
    on_startup_sec: float | None = None
    on_unit_active_sec: float | None = None
    random_delay_sec: float = 0
    exclude: tuple[str, ...] = ()
    """Dates on which it has no slot. A checked timer has those of the files it names, too."""
    dst: RepeatedHour = "once"
    lock: str | None = None
    """In a `Config` that of the target, if it gives none."""
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
            overlap: Overlap = "skip",
            on_calendar: "CalendarAsWritten | Sequence[CalendarAsWritten]" = (),
            cron: str | None = None,
            daily: str | None = None,
            at: datetime | str | None = None,
            every: "Length | None" = None,
            after_end: bool = False,
            on_startup_sec: "Length | None" = None,
            on_unit_active_sec: "Length | None" = None,
            random_delay_sec: "Length" = 0,
            exclude: str | Sequence[str | date] = (),
            dst: RepeatedHour = "once",
            lock: str | None = None,
            retry_intervals_sec: "Sequence[Length]" = RETRY_INTERVALS_SEC,
            catch_up_window_sec: "Length" = CATCH_UP_WINDOW_SEC,
            timezone: str | None = None,
            description: str = "",
        ) -> None: ...


class Job(dict[str, Any]):
    """A oneshot service and its timer in one entry (`[[job]]`): the keys of both."""

    def __init__(self, id: str, command: str | Sequence[str], **keys: Any) -> None:  # noqa: A002 - as above
        super().__init__(id=id, command=command, **keys)


NotifyOn = Literal["failure", "hung", "missed", "recovery"]


@dataclass(frozen=True, slots=True)
class Notify:
    """Who gets a message when a job fails: a URL, people by e-mail, or a command."""

    id: str
    _: KW_ONLY
    webhook: PingUrl | None = None
    format: Literal["json", "slack", "ntfy"] = "json"
    email: tuple[str, ...] = ()
    smtp: PingUrl | None = None
    sender: str | None = None
    command: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ("*",)
    """Ids of services and timers, with wildcards."""
    on: tuple[NotifyOn, ...] = ("failure", "hung", "recovery")
    failures: int = 1
    """How many in a row make an outage."""
    silence: float | None = None
    """After so many seconds without a success, too."""


SHORTEST_LEASE_SEC = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The table `[supervisor]`: what holds for all services and timers."""

    enabled: bool = True
    timers: bool = False
    """The timer switch (spec/timers.md 7)."""
    store: str | Database | None = None
    """A file; or a database, by which several machines share their timers (then the file beside the
    configuration keeps what is this machine's own)."""
    lease_sec: float = 6
    """How long a machine of those may be silent before others take its timers."""
    socket: str | None = None
    timezone: str | None = None
    include: tuple[str, ...] = ()
    """Files with more entries, as seen from the file: `conf.d/*.toml`."""
    watch: bool = False
    """Whether a change of the files is a wish to reload."""
    shutdown_timeout_sec: float = 30
    kill_grace_sec: float = 10
    history_days: float = 90
    history_runs: int = 1000
    """Kept for each service."""
    output_kib: int = 64
    """The tail that is kept of each run."""
    output_mib: int = 64
    """Kept for each service, of its newest runs."""


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
    trusted_proxies: tuple[str, ...] = ()
    """Addresses, or networks, of proxies whose word of where a request came from is taken."""


@dataclass(frozen=True, slots=True)
class _Finding:
    kind: EntryTable
    id: str | None
    index: int
    reason: str
    line: int | None = None
    file: str | None = None
    """Where it stands, if that is not the file itself but one that it includes."""


class Warned(_Finding):
    """An entry that can be used, and does perhaps not mean what its author meant."""


class Invalid(_Finding):
    """An entry that cannot be used, and the one reason why."""

    def is_of(self, kind: str) -> bool:
        """Whether it takes the place of an entry of *kind*: a job is a service and a timer."""
        return self.kind in (kind, "job")


@dataclass(frozen=True, slots=True)
class Config:
    """A file that was read: the entries that can be used, in the order of declaration, and the rest."""

    path: Path
    settings: Settings = Settings()
    services: tuple[Service, ...] = ()
    timers: tuple[Timer, ...] = ()
    invalid: tuple[Invalid, ...] = ()
    faults: tuple[Invalid, ...] = ()
    """Everything that is wrong with these, the one reason of each included, in the order of the file."""
    warnings: tuple[Warned, ...] = ()
    exposed: str = ""
    """Which secret in it everybody on this host can read; empty if none. It is among the warnings, too."""
    dashboard: Dashboard = Dashboard()
    notify: tuple[Notify, ...] = ()
    is_listen_given: bool = False
    """Whether the file says where the dashboard listens; if not, that it cannot listen there is no reason to
    refuse a start."""
    targets: frozenset[str] = frozenset()
    """What timers name as their target, also those that are invalid: a mistake in a timer does not make its
    job one that runs at every start."""
    files: tuple[Path, ...] = ()
    """What else was read: the calendar files that its timers name."""


@dataclass(frozen=True, slots=True)
class FileFault:
    """One thing that makes a file unusable, and its line if that is known."""

    reason: str
    line: int | None = None


class ConfigError(SchedulerError):
    """Nothing of a configuration file can be used; says where and why."""

    def __init__(self, path: Path, faults: Sequence[FileFault]) -> None:
        first = faults[0]
        where = f"{path}:{first.line}" if first.line is not None else str(path)
        details = {"path": str(path), "line": first.line, "reason": first.reason}
        super().__init__(f"{where}: {first.reason}", details)
        self.path = path
        self.faults = tuple(faults)
        self.line = first.line
        self.reason = first.reason


class EntryFault(Exception):  # noqa: N818 - it is a fault of the entry, not an error of ours
    """One fault of an entry, and the key it lies in. In this package only: it becomes an `Invalid`."""

    def __init__(self, reason: str, key: str | None = None, others: Sequence["EntryFault"] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = key
        self.others = others
        """What else is wrong in the same value."""


def expression_of(calendar: Calendar) -> CronExpression:
    """A calendar as an expression whose day and weekday must both match.

    That of a last day names all days that can be one.
    """
    days = LAST_DAYS if calendar.day_of_month == "last" else calendar.day_of_month
    given = (calendar.minute, calendar.hour, days, calendar.month, calendar.day_of_week)
    minute, hour, day, month, weekday = (
        field.every if values is None else sum(1 << value for value in set(values))
        for field, values in zip(FIELDS, given, strict=True)
    )
    text = " ".join("*" if values is None else ",".join(map(str, values)) for values in given)
    return CronExpression.of_masks(text, (minute, hour, day, month, weekday))


def has_slots(timer: Timer) -> bool:
    """Whether it has times that are known ahead, which can be later or left out."""
    return bool(timer.on_calendar) or timer.at is not None or timer.every is not None


# --- what a configuration says by default ---


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


def config_zone(config: Config) -> tzinfo:
    """The zone of timers that give none: as configured, or the host's own."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - a configuration loads without it

    import tzlocal  # noqa: PLC0415 - as above

    name = config.settings.timezone
    return tzlocal.get_localzone() if name is None else ZoneInfo(name)


def _beside(path: Path, configured: str | None, suffix: str) -> Path:
    return path.absolute().parent / (configured or f"{path.stem}{suffix}")


def starts_at_boot(service: Service, targets: Iterable[str]) -> bool:
    """Whether a start of the supervisor starts it: as it says, or unless it is the job of a timer."""
    if service.at_startup is not None:
        return service.at_startup
    return not (service.type == "oneshot" and service.id in targets)
