"""The JSON of what the daemon shows: a contract. Keys are added, never renamed or removed.

Times are ISO 8601 with an offset, or null for none.
"""

from datetime import tzinfo
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from duly.daemon.protocol import Source
from duly.instant import time_of


class JsonStruct(msgspec.Struct, kw_only=True):
    """Something that becomes JSON, its keys in the order in which they are declared."""


J = TypeVar("J", bound=JsonStruct)


def json_of(kind: type[J], source: Any, zone: tzinfo, **more: Any) -> J:
    """A *kind* with the fields of *source* that have its names: `x_at` is made of `x_us`. *more* is added."""
    found: dict[str, Any] = {}
    given: Any = type(source)
    for name, column, is_time in _columns(kind, given):
        value = getattr(source, column)
        found[name] = time_of(value, zone) if is_time else value
    return kind(**found | more)


@lru_cache(maxsize=64)
def _columns(kind: type[JsonStruct], source: type) -> list[tuple[str, str, bool]]:
    """The fields of *kind* that *source* has, each with its name there and whether it is a time."""
    columns = []
    for name in kind.__struct_fields__:
        time = f"{name.removesuffix('_at')}_us"
        if hasattr(source, name):
            columns.append((name, name, False))
        elif name.endswith("_at") and hasattr(source, time):
            columns.append((name, time, True))
    return columns


class RunJson(JsonStruct):
    """One run of a service."""

    id: int
    service: str
    timer: str | None
    reason: str
    scheduled_at: str | None
    started_at: str
    ended_at: str | None
    duration_s: float | None
    running: bool
    result: str | None
    exit_code: int | None
    signal: int | None
    message: str
    pid: int | None
    machine: str | None = None
    """Where it ran, if not on the machine that was asked. Its number is of that machine."""


class MissJson(JsonStruct):
    """One due of a timer that no run answered."""

    timer: str
    at: str
    reason: str


class InvalidJson(JsonStruct):
    """An entry of the configuration that cannot be used, and why."""

    kind: str
    id: str | None
    index: int
    reason: str
    line: int | None
    file: str | None = None
    """The included file that it stands in; null for the file itself."""


class TimerJson(JsonStruct):
    """One timer."""

    id: str
    target: str
    enabled: bool
    schedule: str
    description: str
    running: bool
    last_run_at: str | None
    next_run_at: str | None
    last_result: str | None
    last_exit: int | None
    last_missed_at: str | None
    last_miss_reason: str | None
    last_success_at: str | None
    last_failure_at: str | None
    retry_attempt: int
    retry_next_at: str | None
    startup_triggered: bool
    registered_at: str | None
    answered_until: str | None
    member: str | None
    """Which machine holds it, if timers are shared."""
    fault: str | None = None
    """Why it does not run, and what to do, if its stored state cannot be read; then nothing else is known."""


class TimersJson(JsonStruct):
    """All timers."""

    status: str
    source: Source
    at: str
    timers: list[TimerJson]
    invalid: list[InvalidJson]
    fault: str | None = None
    """Why shared timers may have changed since, if so."""


class DisabledJson(JsonStruct):
    """What there is to see of timers while they are off: that they are off."""

    status: str
    message: str


class ServiceJson(JsonStruct):
    """One service."""

    id: str
    type: str
    enabled: bool
    stage: int
    state: str
    reason: str
    since: str | None
    pid: int | None
    restarts: int
    description: str
    last_run: RunJson | None


class ServicesJson(JsonStruct):
    """All services."""

    source: Source
    at: str
    services: list[ServiceJson]
    invalid: list[InvalidJson]


class PlaceJson(JsonStruct):
    """Where a list of runs goes on: numbers of the last runs so far, on this machine and in the database."""

    before: int | None
    shared: int | None


class HistoryJson(JsonStruct):
    """Runs, newest first; and the misses among them, newest first."""

    source: Source
    at: str
    runs: list[RunJson]
    misses: list[MissJson]
    more: bool
    """Whether older runs were left out."""
    older: PlaceJson | None = None
    """What to ask for to get those."""
    fault: str | None = None
    """Why runs of other machines are not among them, if they should be."""


class LineTimeJson(JsonStruct):
    """When a line of an output came, and those after it, up to the next such line."""

    line: int
    """0 is the first."""
    at: str


class LogJson(JsonStruct):
    """The output of one run, as far as it is kept."""

    source: Source
    run: RunJson
    output: str
    lost_bytes: int
    fault: str | None = None
    """Why a run of another machine was not looked for, if it should have been."""
    times: list[LineTimeJson] = []
    """When its lines came, to the second; nothing where that is not known."""


class OutputsJson(JsonStruct):
    """The outputs of several runs, newest first."""

    source: Source
    logs: list[LogJson]
    more: bool
    """Whether there are older ones."""


class FiringJson(JsonStruct):
    """What comes next."""

    timer: str
    at: str


class FiringsJson(JsonStruct):
    """What comes next, in order."""

    source: Source
    at: str
    firings: list[FiringJson]


class MissesJson(JsonStruct):
    """Dues that no run answered, newest first; of those that this machine has noted."""

    source: Source
    at: str
    misses: list[MissJson]
    more: bool
    """Whether there are older ones: ask again with a larger `skip`."""


class SlotJson(JsonStruct):
    """What became of one slot of a timer."""

    kind: str
    sentence: str
    """The answer, for people."""
    slot: str | None
    run: RunJson | None
    """The run that answered it."""
    late_s: float | None
    miss: MissJson | None
    runs: list[RunJson]
    """What else the timer started within that minute; its latest runs, if it has no slots."""


class WhyJson(SlotJson):
    """What became of one slot of a timer, and what comes next."""

    timer: str
    source: Source
    timezone: str
    next_run_at: str | None
    fault: str | None = None
    """Why runs of other machines are not looked at, if they should be."""


class WhyListJson(JsonStruct):
    """What became of the latest slots of a timer, newest last."""

    timer: str
    source: Source
    timezone: str
    next_run_at: str | None
    answers: list[SlotJson]
    fault: str | None = None
    """As above."""


class EntryStateJson(JsonStruct):
    """A service or a timer that is not simply well: its state, since when, and a sentence."""

    kind: str
    id: str
    state: str
    """hung, failing, never succeeded, crash loop, missing runs; or disabled, which is no alarm."""
    since: str | None
    message: str


class HealthJson(JsonStruct):
    """Whether all is well, and if not, why; and what is worth a look though nothing is broken."""

    ok: bool
    reasons: list[str]
    warnings: list[str] = []
    states: list[EntryStateJson] = []


class StatusJson(JsonStruct):
    """The daemon at a glance."""

    source: Source
    at: str
    version: str
    state: str
    pid: int | None
    started_at: str | None
    uptime_s: float | None
    timers: str
    timers_message: str
    counts: dict[str, int]
    health: HealthJson
    next_firing: FiringJson | None
    config: str
    store: str
    socket: str
    dashboard: str = ""
    """Where it is, or why it is not there; empty if there is none."""
