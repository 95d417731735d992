"""What an answer to "why" is, in words and for machines, and what can be said of a civil minute by itself.

Whether the clocks showed a minute at all, or twice, and whether a cron text names it, needs no trace. The
rest is worked out in `why.py`, from a trace, or less precisely from a store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from duly.formatting import close_names, counted, spelled_length
from duly.instant import EARLIEST_US
from duly.verify.dues import (
    NEVER_US,
    AnchoredDues,
    Dues,
    face_at,
    instant_us,
    minute_start_us,
    offset_change_us,
)
from duly.verify.reasons.chronicle import MOST_COUNTED, CauseKind, StartCause, TracedRun, latest

_LOOK_BACK_US = 30 * 366 * 86_400_000_000
"""No cron text is due less often than this."""


class Kind(StrEnum):
    """What there is to say of a minute."""

    ANSWERED = "answered"
    MERGED = "merged"
    DOWN = "down"
    PENDING = "pending"
    CLEARED = "cleared"
    NOT_REGISTERED = "not registered"
    REPEATED = "repeated"
    SKIPPED = "skipped"
    NOT_DUE = "not due"
    AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one minute. *reason* is a word for machines; the rest of it is in the *sentence*."""

    kind: Kind
    task: str
    sentence: str
    minute_us: int | None
    """None for a minute that the clocks skipped."""
    reason: str = ""
    cron: str | None = None
    run: TracedRun | None = None
    late_us: int | None = None
    dues_answered: int = 0
    details: tuple[str, ...] = ()
    """More sentences."""
    runs: Sequence[TracedRun] = ()
    """What started within the minute."""
    times: Mapping[str, int] = field(default_factory=dict)
    """The instants that the sentence speaks of."""
    is_perhaps: bool = False
    is_from_store: bool = False

    @property
    def is_due(self) -> bool:
        return self.kind in {Kind.ANSWERED, Kind.MERGED, Kind.DOWN, Kind.PENDING, Kind.CLEARED}


class UnknownTaskError(ValueError):
    def __init__(self, task: str, known: Sequence[str]) -> None:
        self.task = task
        self.close = close_names(task, known)
        super().__init__(f"nothing is known of a task {task!r}")


# --- words ---


class Words:
    """Times and lengths as people say them, by the clocks of one zone."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone

    def time(self, at_us: int) -> str:
        """An instant; with its offset only where the clocks show it twice."""
        face = face_at(at_us, self.zone)
        text = face_text(face.replace(tzinfo=None))
        is_twice = face.replace(fold=0).utcoffset() != face.replace(fold=1).utcoffset()
        return f"{text} {face.strftime('%z')}" if is_twice else text

    def clock(self, at_us: int, by_us: int) -> str:
        """An instant; without its date if that is the date of *by_us*."""
        text = self.time(at_us)
        is_near = face_at(at_us, self.zone).date() == face_at(by_us, self.zone).date()
        return text[11:] if is_near else text


def face_text(face: datetime) -> str:
    """A civil time, as short as it can be said."""
    if face.microsecond:
        return face.isoformat(" ", "milliseconds")
    return face.isoformat(" ", "seconds" if face.second else "minutes")


def count_text(count: int, noun: str = "due") -> str:
    if count > MOST_COUNTED:
        return f"more than {MOST_COUNTED:,} {noun}s"
    return counted(count, noun)


def cause_text(cause: StartCause, words: Words, by_us: int) -> str:
    """Why a run started, as the end of a sentence."""
    at = words.clock(cause.at_us, by_us)
    match cause.kind:
        case CauseKind.DUE if cause.count == 1:
            said = f"it was due at {at}"
        case CauseKind.DUE:
            said = f"of {count_text(cause.count)} from {at} to {words.clock(cause.last_us, by_us)}"
        case CauseKind.REGISTRATION:
            said = f"it was registered within the minute of {at}, which its cron text names"
        case CauseKind.RETRY:
            said = f"a retry was due after the failure at {at}"
        case CauseKind.REQUEST:
            said = f"it was asked for at {at}"
        case CauseKind.INTERRUPTED:
            said = f"a run was cut off by the crash at {at}"
        case CauseKind.BEFORE:
            said = f"something from before the trace, which begins at {at}, was left to do"
    return f"perhaps {said}" if cause.is_perhaps else said


def run_text(run: TracedRun, words: Words) -> str:
    """A run: what became of it, and why it started."""
    because = "; also ".join(cause_text(cause, words, run.started_us) for cause in run.causes)
    ending: str = run.ending
    if run.ended_us is not None and run.ended_us >= run.started_us:
        ending += f" after {spelled_length(run.ended_us - run.started_us)}"
    return f"{ending}; {f'because {because}' if because else 'for no cause that the trace shows'}"


# --- the civil minute ---


@dataclass(frozen=True, slots=True)
class Skip:
    """A civil minute that the clocks never showed: at *at_us* they went from *before* to *after*."""

    face: datetime
    at_us: int
    before: datetime
    after: datetime


def minute_of(moment: datetime, zone: tzinfo) -> int | Skip:
    """The minute that is meant: one without an offset by the clocks of *zone*, where they show it first."""
    if moment.tzinfo is not None:
        return minute_start_us(instant_us(moment), zone)
    face = moment.replace(second=0, microsecond=0, fold=0)
    at_us = instant_us(face.replace(tzinfo=zone))
    if face_at(at_us, zone).replace(tzinfo=None, fold=0) == face:
        return at_us
    return _skip(face, zone)


def _skip(face: datetime, zone: tzinfo) -> Skip:
    # Read with the offset after the change the face lies before it, and with the one before it, after.
    low_us, high_us = (instant_us(face.replace(tzinfo=zone, fold=fold)) for fold in (1, 0))
    at_us, old = offset_change_us(low_us, high_us, zone), face_at(low_us, zone).utcoffset()
    assert old is not None
    at = face_at(at_us, UTC).replace(tzinfo=None)
    return Skip(face, at_us, at + old, face_at(at_us, zone).replace(tzinfo=None, fold=0))


def first_shown_us(minute_us: int, zone: tzinfo) -> int | None:
    """When the clocks showed this minute before; None if they had not."""
    face = face_at(minute_us, zone)
    return instant_us(face.replace(fold=0)) if face.fold else None


def neighbours(dues: Dues | AnchoredDues, minute_us: int) -> dict[str, int]:
    before = latest(dues, max(minute_us - _LOOK_BACK_US, EARLIEST_US), minute_us - 1)
    after_us = dues.after(minute_us)
    found = {"before": before[-1]} if before else {}
    return found | ({"after": after_us} if after_us < NEVER_US else {})


def neighbours_text(times: Mapping[str, int], words: Words) -> tuple[str, ...]:
    said = [f"{name} it at {words.time(times[name])}" for name in ("before", "after") if name in times]
    return (f"It is due {' and '.join(said)}.",) if said else ()


def skipped_answer(skip: Skip, task: str, cron: str | None, zone: tzinfo) -> Answer:
    words = Words(zone)
    sentence = (
        f'"{task}" was not due at {face_text(skip.face)}: that minute did not occur, '
        f"the clocks went from {skip.before:%H:%M} to {skip.after:%H:%M}."
    )
    times: dict[str, int] = {"clocks_changed": skip.at_us}
    details: tuple[str, ...] = ()
    # By the clocks of this zone: it does not matter to a task with another one.
    body = "" if cron is None else cron.removeprefix(f"TZ={zone} ")
    if cron is not None and not body.startswith("TZ=") and not Dues(body, UTC).is_from_anchor:
        names_it = Dues(body, UTC).has(instant_us(skip.face.replace(tzinfo=UTC)))
        around = neighbours(Dues(cron, zone), skip.at_us)
        details = (f'Its cron text "{cron}" {"names" if names_it else "does not name"} it.',)
        details += neighbours_text(around, words)
        times |= around
    return Answer(
        Kind.SKIPPED, task, sentence, None, "clocks went forward", cron=cron, times=times, details=details
    )


def no_due(task: str, cron: str, minute_us: int, zone: tzinfo) -> Answer | None:
    """The answer for a minute that is no due of *cron*; None if it is one."""
    words, dues = Words(zone), Dues(cron, zone)
    at, first_us = words.time(minute_us), first_shown_us(minute_us, zone)
    if dues.is_from_anchor:
        sentence = f'"{task}" was not due at {at}: its schedule "{cron}" has no due in that minute.'
        return Answer(Kind.NOT_DUE, task, sentence, minute_us, "not named", cron=cron)
    if dues.has(minute_us):
        return None
    around = neighbours(dues, minute_us)
    if first_us is not None and dues.has(first_us):
        sentence = (
            f'"{task}" was not due at {at}: the clocks showed that minute a second time, '
            f"and it was due the first time, at {words.time(first_us)}."
        )
        times = {"first_shown": first_us} | around
        return Answer(Kind.REPEATED, task, sentence, minute_us, "second showing", cron=cron, times=times)
    sentence = f'"{task}" was not due at {at}: its cron text "{cron}" does not name that minute.'
    details = neighbours_text(around, words)
    return Answer(
        Kind.NOT_DUE, task, sentence, minute_us, "not named", cron=cron, times=around, details=details
    )
