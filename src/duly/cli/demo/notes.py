"""Events in plain words: a short sentence for each that a watcher cares about, none for the others. Pure."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from duly.cli.demo.words import length, length_ahead, seconds
from duly.events import Event, one_line


class Tone(StrEnum):
    """How something is to be felt; a terminal shows it as a colour."""

    PLAIN = "plain"
    QUIET = "quiet"
    BUSY = "busy"
    GOOD = "good"
    BAD = "bad"
    LOUD = "loud"


class Note(NamedTuple):
    """What happened, when, and to which task ("" for none)."""

    time: datetime
    task: str
    text: str
    tone: Tone


def note_of(event: Event, *, retry_count: int) -> Note | None:
    """The note of *event*; *retry_count* says which retry a start is, if it is one."""
    told = None
    if event.name == "TaskRunStarted":
        told = _started(event.fields, retry_count)
    elif event.name in _TOLD:
        told = _TOLD[event.name](event.fields, event.time)
    if told is None:
        return None
    text, tone = told
    return Note(event.time, event.fields.get("taskName", ""), one_line(text), tone)


_Told = tuple[str, Tone]
_Fields = Mapping[str, Any]


def _started(fields: _Fields, retry_count: int) -> _Told:
    scheduled = datetime.fromisoformat(fields["scheduledTime"])
    lag = datetime.fromisoformat(fields["actualTime"]) - scheduled
    match fields.get("cause"):
        case "interrupted":
            return "was interrupted → restarted", Tone.LOUD
        case "retry":
            return f"started: retry {retry_count}", Tone.BUSY
        case "startup":
            return "started: it is new, and this is its minute", Tone.BUSY
        case "cron" if lag > timedelta(seconds=2):
            return f"started: it was due at {scheduled:%H:%M}, {length(lag)} ago", Tone.BUSY
        case _:
            return "started: it is due", Tone.BUSY


def _completed(fields: _Fields, _time: datetime) -> _Told:
    return f"ended well after {seconds(fields['duration'])}", Tone.GOOD


def _failed(fields: _Fields, time: datetime) -> _Told:
    text = f"failed after {seconds(fields['duration'])}: {fields['error']}"
    if "nextRetryAt" in fields:
        text += f"; retry {length_ahead(datetime.fromisoformat(fields['nextRetryAt']) - time)}"
    return text, Tone.BAD


def _skipped(fields: _Fields, _time: datetime) -> _Told | None:
    if "running" not in fields["reason"]:
        return None
    return "is due while it still runs: the due stands until the run ends", Tone.QUIET


def _preempted(_fields: _Fields, _time: datetime) -> _Told:
    return "is due before its retry: one run answers both", Tone.BUSY


def _added(fields: _Fields, _time: datetime) -> _Told:
    return f"is new: {fields['cronExpression']}", Tone.QUIET


def _overridden(_fields: _Fields, _time: datetime) -> _Told:
    return "has a new configuration: it begins afresh", Tone.PLAIN


def _stepped(fields: _Fields, _time: datetime) -> _Told:
    before, now = (datetime.fromisoformat(fields[key]) for key in ("before", "after"))
    return f"the clock was set from {before:%H:%M:%S} to {now:%H:%M:%S}", Tone.LOUD


def _fault(fields: _Fields, _time: datetime) -> _Told:
    return f"the store cannot be written: {fields['error']}", Tone.BAD


def _recovered(_fields: _Fields, _time: datetime) -> _Told:
    return "the store can be written again, nothing was lost", Tone.GOOD


def _poll_failed(fields: _Fields, _time: datetime) -> _Told:
    return f"scheduling fails, and is tried again: {fields['error']}", Tone.BAD


def _poll_recovered(_fields: _Fields, _time: datetime) -> _Told:
    return "scheduling goes on", Tone.GOOD


def _restarted(fields: _Fields, _time: datetime) -> _Told:
    return f"the poller was ended from outside and is restarted: {fields['error']}", Tone.BAD


def _stopping(_fields: _Fields, _time: datetime) -> _Told:
    return "stopping: no new runs; those in flight may end", Tone.LOUD


def _stopped(_fields: _Fields, _time: datetime) -> _Told:
    return "stopped: every result is recorded", Tone.GOOD


_TOLD: Mapping[str, Callable[[_Fields, datetime], _Told | None]] = {
    "TaskAdded": _added,
    "TaskOverridden": _overridden,
    "TaskSkipped": _skipped,
    "TaskRetryPreempted": _preempted,
    "TaskRunCompleted": _completed,
    "TaskRunFailed": _failed,
    "ClockStepped": _stepped,
    "StoreFault": _fault,
    "StoreRecovered": _recovered,
    "PollFailed": _poll_failed,
    "PollRecovered": _poll_recovered,
    "PollerRestarted": _restarted,
    "SchedulerStopRequested": _stopping,
    "SchedulerStopped": _stopped,
}
