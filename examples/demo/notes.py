"""Events in plain words: a short sentence for each that a watcher cares about, none for the others. Pure."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from examples.demo.formatting import length, length_ahead, seconds

from duly.core.causes import MEANINGS, Cause
from duly.events import Event
from duly.formatting import one_line


class Tone(StrEnum):
    """How something is to be felt; a terminal shows it as a colour."""

    PLAIN = "plain"
    QUIET = "quiet"
    BUSY = "busy"
    GOOD = "good"
    BAD = "bad"
    LOUD = "loud"


class DemoNote(NamedTuple):
    """What happened, when, and to which task ("" for none)."""

    time: datetime
    task: str
    text: str
    tone: Tone


def note_of(event: Event, *, retry_count: int) -> DemoNote | None:
    """The note of *event*; *retry_count* says which retry a start is, if it is one."""
    text_and_tone = None
    if event.name == "TaskRunStarted":
        text_and_tone = _started(event.fields, retry_count)
    elif event.name in _NOTED_EVENTS:
        text_and_tone = _NOTED_EVENTS[event.name](event.fields, event.time)
    if text_and_tone is None:
        return None
    text, tone = text_and_tone
    return DemoNote(event.time, event.fields.get("taskName", ""), one_line(text), tone)


_TextAndTone = tuple[str, Tone]
_Fields = Mapping[str, Any]


def _started(fields: _Fields, retry_count: int) -> _TextAndTone:
    scheduled = datetime.fromisoformat(fields["scheduledTime"])
    lag = datetime.fromisoformat(fields["actualTime"]) - scheduled
    match cause := Cause(fields["cause"]):
        case Cause.INTERRUPTED:
            return "was interrupted → restarted", Tone.LOUD
        case Cause.RETRY:
            return f"started: retry {retry_count}", Tone.BUSY
        case Cause.CRON if lag > timedelta(seconds=2):
            return f"started: it was due at {scheduled:%H:%M}, {length(lag)} ago", Tone.BUSY
        case _:
            return f"started: {MEANINGS[cause]}", Tone.BUSY


def _completed(fields: _Fields, _time: datetime) -> _TextAndTone:
    return f"ended well after {seconds(fields['duration'])}", Tone.GOOD


def _failed(fields: _Fields, time: datetime) -> _TextAndTone:
    text = f"failed after {seconds(fields['duration'])}: {fields['error']}"
    if "nextRetryAt" in fields:
        text += f"; retry {length_ahead(datetime.fromisoformat(fields['nextRetryAt']) - time)}"
    return text, Tone.BAD


def _skipped(fields: _Fields, _time: datetime) -> _TextAndTone | None:
    if "running" not in fields["reason"]:
        return None
    return "is due while it still runs: the due stands until the run ends", Tone.QUIET


def _preempted(_fields: _Fields, _time: datetime) -> _TextAndTone:
    return "is due before its retry: one run answers both", Tone.BUSY


def _added(fields: _Fields, _time: datetime) -> _TextAndTone:
    return f"is new: {fields['cronExpression']}", Tone.QUIET


def _overridden(_fields: _Fields, _time: datetime) -> _TextAndTone:
    return "has a new configuration: it begins again", Tone.PLAIN


def _stepped(fields: _Fields, _time: datetime) -> _TextAndTone:
    before, now = (datetime.fromisoformat(fields[key]) for key in ("before", "after"))
    return f"the clock was set from {before:%H:%M:%S} to {now:%H:%M:%S}", Tone.LOUD


def _fault(fields: _Fields, _time: datetime) -> _TextAndTone:
    return f"the store cannot be written: {fields['error']}", Tone.BAD


def _recovered(_fields: _Fields, _time: datetime) -> _TextAndTone:
    return "the store can be written again, nothing was lost", Tone.GOOD


def _poll_failed(fields: _Fields, _time: datetime) -> _TextAndTone:
    return f"scheduling fails, and is tried again: {fields['error']}", Tone.BAD


def _poll_recovered(_fields: _Fields, _time: datetime) -> _TextAndTone:
    return "scheduling goes on", Tone.GOOD


def _restarted(fields: _Fields, _time: datetime) -> _TextAndTone:
    return f"the poller was ended from outside and is restarted: {fields['error']}", Tone.BAD


def _stopping(_fields: _Fields, _time: datetime) -> _TextAndTone:
    return "stopping: no new runs; those in flight may end (Ctrl-C again cuts them off)", Tone.LOUD


def _stopped(_fields: _Fields, _time: datetime) -> _TextAndTone:
    return "stopped: every result is recorded", Tone.GOOD


_NOTED_EVENTS: Mapping[str, Callable[[_Fields, datetime], _TextAndTone | None]] = {
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
