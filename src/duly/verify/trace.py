"""The trace, format version 1: what happened at the boundary of a scheduler, one JSON object a line.

The format is documented in docs/trace-format.md. Reading is forgiving where a crash may have been at work
(a torn last line) and strict elsewhere: what cannot be understood becomes a `Fault` that names its line, and
is never skipped in silence. Times are milliseconds in the file and whole microseconds everywhere else.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Union
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

VERSION = 1
CARRIED_CALL = 0
"""The number of the call that says, at the beginning of a rotated file, which list is in effect."""
TimestampMs = Annotated[float, msgspec.Meta(ge=-62_135_424_000_000, le=253_402_128_000_000)]
"""Epoch milliseconds, a little more than a day inside what datetime can hold: no offset overflows it."""
DurationMs = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]
"""Milliseconds."""
StoreKnown = Literal["fresh", "unknown"]
"""Whether the store is known to hold no tasks when a trace begins."""


class TraceError(ValueError):
    """The input is not a trace that this version can judge at all."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class Header(msgspec.Struct, omit_defaults=False, kw_only=True):
    """The first line: what the rest means."""

    ev: str = "Header"
    v: int
    tz: str
    dst: Literal["first"] = "first"
    store: StoreKnown = "fresh"
    delta_ms: DurationMs = 60_000
    delta_per_task_ms: DurationMs = 6
    delta_stop_ms: DurationMs = 60_000
    persist_window_ms: DurationMs = 0
    impl: str = ""
    tzdata: str = ""
    boot: str = ""
    """Which start of the host wrote it: after another one the end of the file may be lost."""
    running: list[tuple[str, int]] = []
    """Runs in flight where a rotated file begins: (id, run)."""
    follows: bool = False
    """Whether this file goes on exactly where the one before it ends."""
    gap: tuple[TimestampMs | None, TimestampMs | None] | None = None
    """From when to when nothing was recorded, if the recording begins again here; null: not known."""
    node: str = ""
    """The name of the cluster node that wrote it; empty where there is no cluster."""
    failover_ms: DurationMs = 0
    """How long a cluster may take to notice that a node is gone, and to release its runs."""
    tick_ms: DurationMs = 0
    """After how long a silence a Tick is written; 0 if that is not known."""
    kind: Literal["tasks", "timers"] = "tasks"
    """What it is about: the "tasks" of a scheduler, or the "timers" of a daemon."""
    first_due: Literal["minute", "after"] = "minute"
    """Which due of a task is its first: that of the "minute" in which it is registered, or one "after" it."""


class TraceEvent(
    msgspec.Struct, tag_field="ev", tag=lambda name: name, kw_only=True, omit_defaults=True, gc=False
):
    """What every event has: *t*, the scheduler's clock; who wrote it; steady time."""

    t: TimestampMs
    proc: str | None = None
    m: float | None = None


class OptionsDeclared(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a list says of a task besides its schedule and its retry delay."""

    enabled: bool = True
    """Whether its dues start it."""
    retry_factor: float = 1
    """So many times longer each retry waits than the one before, but not longer than *max_delay_ms*."""
    max_delay_ms: float | None = None
    attempts: int | None = None
    """So often a run is tried, the first time included."""
    catch_up_ms: float | None = None
    """A due that is older is not made up for."""
    limit: str | None = None
    """The named limit that its runs count in."""


class KindDeclared(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a list says of the entries of one kind."""

    delay_ms: float
    options: OptionsDeclared = OptionsDeclared()


class EntryDeclared(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A task that was added at run time, and belongs to no list."""

    schedule: str
    kind: str
    enabled: bool = True


Regs = list[tuple[str, str, float]]
"""A list: (id, schedule, retry delay in milliseconds)."""


class InitStart(TraceEvent):
    """`initialize` was called with the list *regs*."""

    call: int
    regs: Regs
    options: dict[str, OptionsDeclared] = {}
    """Of the tasks that have any."""
    kinds: dict[str, KindDeclared] = {}
    limits: dict[str, int] = {}
    """How many runs may be in flight in each named limit."""


class InitEnd(TraceEvent):
    """`initialize` returned, or raised. *void*: it was given up before it began, and changed nothing."""

    call: int
    ok: bool
    void: bool = False
    paused: list[str] = []
    """Tasks that are paused, if the store is unknown."""
    entries: dict[str, EntryDeclared] = {}
    """Entries that there are, if the store is unknown."""


class ControlStart(TraceEvent):
    """A control of one task was called: "run", "pause", "resume", "cancel", "add" or "remove"."""

    call: int
    control: str
    id: str
    entry: EntryDeclared | None = None
    """What is added."""


class ControlEnd(TraceEvent):
    """It returned. Not *ok*: it raised, and may have taken effect or not.

    *hit*: whether a "cancel" has cancelled a run.
    """

    call: int
    ok: bool
    hit: bool = True


class StopStart(TraceEvent):
    """`stop` was called."""

    call: int


class StopEnd(TraceEvent):
    """`stop` returned. *void*: it was given up before it began, and changed nothing.

    Not *ok*: it raised, so that the latest ends may not have been written.
    """

    call: int
    ok: bool = True
    void: bool = False


class RunStart(TraceEvent):
    """A callback was called."""

    id: str
    run: int | None = None
    token: int | None = None
    """On a cluster: the token of the claim."""
    run_id: str | None = None
    """On a cluster: the same for every restart of one run."""


class RunEnd(TraceEvent):
    """A callback returned, or raised."""

    id: str
    ok: bool
    run: int | None = None


class Missed(TraceEvent):
    """The scheduler itself says that the due of a task at *due* did not run. *run*: nor did that start."""

    id: str
    due: TimestampMs
    run: int | None = None


class Crash(TraceEvent):
    """The process died."""


class ClockStep(TraceEvent):
    """The wall clock jumped from *origin* to *t*, or the host slept."""

    origin: TimestampMs = msgspec.field(name="from")


class Tick(TraceEvent):
    """Time passed, and nothing else happened."""


class End(TraceEvent):
    """The recording ends here."""


class NodeJoined(TraceEvent):
    """The node has joined its cluster under the id *node*."""

    node: int | str
    namespace: str = ""
    lease_ms: float = 0


class NodeReturned(TraceEvent):
    """The node goes on under the new id *node*; what its old id had claimed and does not run is released."""

    node: int | str


class NodeFenced(TraceEvent):
    """It has fenced the node with the id *node*, which was silent for its lease."""

    node: int | str
    name: str = ""


class TrustLost(TraceEvent):
    """The node cannot trust its lease any more. The runs of the tasks *runs* are cut off here."""

    runs: list[str]


class ServerChanged(TraceEvent):
    """Another server of the database answers. *forgot*: it lacks commits that the one before had."""

    server: str = ""
    forgot: bool = False


class ListReconciled(TraceEvent):
    """The list of this node has become the list of the cluster, with this *generation*."""

    generation: int


class TaskInterruptedAgain(TraceEvent):
    """A task was interrupted so often that it is not started before *retry*, a time like `t`."""

    id: str
    retry: TimestampMs


class CalendarDeclared(msgspec.Struct, omit_defaults=True):
    """A calendar of a timer; None stands for every value."""

    minute: list[int] | None = None
    hour: list[int] | None = None
    day_of_month: list[int] | str | None = None
    month: list[int] | None = None
    day_of_week: list[int] | None = None


class TimerDeclared(msgspec.Struct, omit_defaults=True):
    """A timer as its daemon has it, by the names of the configuration."""

    id: str
    target: str
    persistent: bool
    on_calendar: list[CalendarDeclared]
    on_startup_sec: float | None
    on_unit_active_sec: float | None
    retry_intervals_sec: list[float]
    catch_up_window_sec: float
    zone: str = ""
    # From its row in the store: nobody here has seen what came before it was put to work, and after the clock
    # was set back that comes a second time. They say what was written, not what is to be done about it.
    answered_us: int | None = None
    """Every slot up to here was fired for, missed, or came before the timer was declared; None: unknown."""
    missed_us: int | None = None
    """The last that was reported as missed; None: nothing, or unknown."""
    registered_us: int | None = None
    """What a fixed rate counts from; None: unknown."""
    every: float | None = None
    at: str | None = None
    random_delay_sec: float = 0
    exclude: list[str] = []
    dst: str = "once"


class Timers(TraceEvent):
    """These are the timers of the daemon from now on."""

    timers: list[TimerDeclared]


class Told(TraceEvent):
    """The daemon has emitted an event of its own: its name, and its fields."""

    name: str
    fields: dict[str, Any]


class Unreachable(TraceEvent):
    """The node cannot reach the database."""


class Reachable(TraceEvent):
    """It can again."""


EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in TraceEvent.__subclasses__()}
event_in: Callable[[bytes], TraceEvent] = msgspec.json.Decoder(Union[tuple(EVENTS.values())]).decode  # noqa: UP007 (of a list)
"""The event in a line. Raises `UNREADABLE` errors."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in the trace that no scheduler is to blame for.

    After an unknown event nothing is better than inconclusive; after a fault nothing is worse, either.
    """

    line: int
    reason: str
    is_unknown_event: bool = False


class Position(NamedTuple):
    """One event and where it stands."""

    line: int
    at_us: int
    event: TraceEvent


def micros(milliseconds: float) -> int:
    """Milliseconds of a trace as whole microseconds."""
    return milliseconds * 1000 if type(milliseconds) is int else round(milliseconds * 1000)


class Trace:
    """A trace being read: `header` at once, then the positions and faults in order, once."""

    def __init__(self, lines: Iterable[bytes], *, first_line: int = 1, kind: str = "tasks") -> None:
        self.first_line = first_line
        self._lines = enumerate(lines, start=first_line)
        self.header = self._header()
        if self.header.kind != kind:
            reason = f"this is a trace of {self.header.kind}, and one of {kind} is needed here"
            raise TraceError(first_line, reason)
        self._is_carried = False
        """Whether what comes now is repeated, for readers of a later part alone."""
        self.torn_line: int | None = None
        """The number of the last line, if a crash has torn it; known when all is read."""

    def _header(self) -> Header:
        for number, line in self._lines:
            if line.strip():
                return header_of(number, line)
        raise TraceError(1, "the file is empty; a trace begins with a Header")

    def __iter__(self) -> Iterator[Position | Fault]:
        """The rest of the trace. A last line without its end, torn by a crash, is left out."""
        torn: Fault | None = None
        for number, line in self._lines:
            if torn is not None:
                yield torn
                torn = self.torn_line = None
            try:
                event = event_in(line)
            except UNREADABLE as error:
                if not line.strip():
                    continue
                fault = self._fault(number, line, str(error))
                if line.endswith(b"\n"):
                    if fault is not None:
                        yield fault
                else:
                    torn, self.torn_line = fault, number  # an error only if something follows
                continue
            if self._is_carried:
                if isinstance(event, InitStart | InitEnd) and event.call == CARRIED_CALL:
                    continue
                self._is_carried = False
            yield Position(number, micros(event.t), event)

    def _fault(self, number: int, line: bytes, error: str) -> Fault | None:
        """Why *line* is not an event; None if it is the header of a part that follows the one before it."""
        try:
            raw = msgspec.json.decode(line)
        except UNREADABLE:
            return Fault(number, f"not a JSON object: {_excerpt(line)}")
        if not isinstance(raw, dict) or not isinstance(raw.get("ev"), str):
            return Fault(number, f'not an event, which has a name under "ev": {_excerpt(line)}')
        name = raw["ev"]
        if name == "Header":
            return self._next_part(number, line)
        if name not in EVENTS:
            return Fault(number, f'unknown event "{name[:80]}"', is_unknown_event=True)
        return Fault(number, f"this {name} cannot be read: {error}")

    def _next_part(self, number: int, line: bytes) -> Fault | None:
        """A header in the middle: of a rotated file, or of a recording that starts over."""
        try:
            header = header_of(number, line)
        except TraceError as error:
            return Fault(number, error.reason)
        if header.follows and header.tz == self.header.tz:
            self._is_carried = True
            return None
        if header.gap is not None:
            return Fault(number, "nothing was recorded for a while before this line")
        reason = "a recording begins here that does not follow the one before it"
        return Fault(number, f"{reason}; give the oldest file first, or verify it by itself")


def recordings_in(
    lines: Iterable[bytes], is_another: Callable[[Header], bool] | None = None, *, kind: str = "tasks"
) -> Iterator[Trace]:
    """The recordings in *lines*. Read each to its end before the next.

    Another one begins after each gap, or with each header for which *is_another* answers True. A header after
    a gap says all that is needed to judge what follows by itself.
    """
    numbered = enumerate(lines, start=1)
    ahead = next(numbered, None)

    def begins(line: bytes) -> bool:
        try:
            header = header_of(1, line)
        except TraceError:
            return False  # the reader of that part says why
        return header.gap is not None if is_another is None else is_another(header)

    def recording() -> Iterator[bytes]:
        nonlocal ahead
        is_begun = False
        while ahead is not None:
            line = ahead[1]
            if b'"Header"' in line and begins(line) and is_begun:
                return
            is_begun = is_begun or bool(line.strip())
            ahead = next(numbered, None)
            yield line

    yield Trace(recording(), kind=kind)  # which refuses to be read if it is empty
    while ahead is not None:
        yield Trace(recording(), first_line=ahead[0], kind=kind)


def header_of(number: int, line: bytes) -> Header:
    """The header in *line*. Raises TraceError when there is none, or one of another version."""
    line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    try:
        raw = msgspec.json.decode(line)
    except UNREADABLE as error:
        raise TraceError(
            number, f"not a trace: expected a Header as one JSON object, got {_excerpt(line)}"
        ) from error
    if not isinstance(raw, dict) or raw.get("ev") != "Header":
        raise TraceError(
            number, 'not a trace: the first line must be a Header, {"ev":"Header","v":1,"tz":...}'
        )
    if (version := raw.get("v")) != VERSION:
        raise TraceError(
            number, f"trace format {version!r} is not known here; this duly reads version {VERSION}"
        )
    try:
        header = msgspec.convert(raw, Header)
    except msgspec.ValidationError as error:
        raise TraceError(number, f"the Header is not usable: {error}") from error
    zone_of(header.tz, number)
    return header


def zone_of(name: str, number: int = 1) -> ZoneInfo:
    """The zone called *name*. Raises TraceError when there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: "Europe" is a folder
        raise TraceError(number, f'there is no time zone "{name[:80]}" here; is tzdata installed?') from error


def _excerpt(line: bytes) -> str:
    return ascii(line[:60].decode(errors="replace").strip())
