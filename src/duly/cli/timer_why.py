"""The part of `duly why` that is about the timers of a daemon, from its history or from its store."""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import msgspec
import tzlocal

from duly.cli.finding import Failure, Place, default_config
from duly.cli.offline import zone_of
from duly.cli.refusals import printable
from duly.cli.slots import Fired, Kind, Missed, Record, SlotAnswer, why, why_latest
from duly.cli.talking import Talk, say_disabled
from duly.config.errors import ConfigError
from duly.config.schema import Timer
from duly.instant import SECOND_US, Instant, datetime_at, instant_of
from duly.timers.calendar import CalendarShelf
from duly.timers.calendar import zone_of as zone_of_timer
from duly.verify.reasons.answers import Words, length_text

_PAGE = 500
_MOST_PAGES = 20
_COLOURS = {Kind.FIRED: "green", Kind.MERGED: "yellow", Kind.MISSED: "red", Kind.PENDING: "yellow"}


def default_place_with(timer_id: str) -> Place | None:
    """The configuration in the current directory, if it has a timer of that name."""
    path = default_config()
    if path is None:
        return None
    place = Place(path)
    try:
        config = place.loaded()
    except ConfigError:
        return None
    assert config is not None
    named = {timer.id for timer in config.timers} | {bad.id for bad in config.invalid if bad.kind == "timer"}
    return place if timer_id in named else None


def why_timer(place: Place, timer_id: str, at: datetime | None, count: int | None, *, as_json: bool) -> None:
    """Answer for a timer."""
    talk = Talk(place, as_json=as_json)
    record = _record(talk, timer_id, at)
    answers = [why(record, at)] if count is None else why_latest(record, count, at)
    if as_json:
        shown = [_as_dict(answer, record) for answer in answers]
        facts = {
            "timer": timer_id,
            "source": "daemon" if record.is_live else "store",
            "timezone": str(record.zone),
            "next_run_at": _time(record.next_us, record.zone),
        }
        click.echo(json.dumps(facts | ({"answers": shown} if count is not None else shown[0]), indent=2))
        return
    for line in _lines(answers[0], record) if count is None else _table(answers, record):
        click.echo(line)


def _record(talk: Talk, timer_id: str, at: datetime | None) -> Record:
    told = talk.read("timers")
    if told["status"] == "disabled":
        say_disabled(told["message"], as_json=talk.as_json)
    state = next((timer for timer in told["timers"] if timer["id"] == timer_id), None)
    if state is None:
        raise _unknown(told, timer_id, as_json=talk.as_json)
    timer, default = _definition(talk, timer_id)
    zone = zone_of_timer(timer, default)
    since_us = None if at is None else instant_of(at if at.tzinfo is not None else at.replace(tzinfo=zone))
    runs = _runs(talk, timer_id, since_us)
    misses = talk.read("history", timer=timer_id, limit=1000)["misses"]
    return Record(
        timer_id,
        CalendarShelf(default).of(timer),
        zone,
        _instant(told["at"]) or 0,
        _instant(state["registered_at"]),
        _instant(state["answered_until"]),
        runs,
        [Missed(_instant(miss["at"]) or 0, miss["reason"]) for miss in misses],
        is_live=not talk.is_down,
        schedule=state["schedule"],
        next_us=_instant(state["next_run_at"]),
    )


def _definition(talk: Talk, timer_id: str) -> tuple[Timer, tzinfo]:
    """The timer as the daemon runs it, or as its file has it; and the zone of those that give none."""
    if talk.is_down:
        config = talk.place.loaded()
        assert config is not None
        return next(timer for timer in config.timers if timer.id == timer_id), zone_of(config)
    told = talk.read("definitions")
    found = next(timer for timer in told["timers"] if timer["id"] == timer_id)
    return msgspec.convert(found, Timer), _zone(told["timezone"])


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return tzlocal.get_localzone()  # the daemon's host, which is ours, has a zone without a name


def _runs(talk: Talk, timer_id: str, since_us: Instant | None) -> list[Fired]:
    """The runs of a timer, newest first, back to before *since_us*."""
    runs: list[Fired] = []
    before: int | None = None
    for _ in range(_MOST_PAGES):
        told = talk.read("history", timer=timer_id, limit=_PAGE, before=before)
        runs += [_fired(run) for run in told["runs"]]
        if not told["more"] or (since_us is not None and runs[-1].started_us < since_us):
            break
        before = runs[-1].id
    return runs


def _fired(run: dict[str, Any]) -> Fired:
    started_us = _instant(run["started_at"])
    assert started_us is not None
    return Fired(
        run["id"],
        run["reason"],
        started_us,
        _instant(run["ended_at"]),
        run["result"],
        _instant(run["scheduled_at"]),
        None if run["duration_s"] is None else round(run["duration_s"] * SECOND_US),
    )


def _instant(text: str | None) -> Instant | None:
    return None if text is None else instant_of(datetime.fromisoformat(text))


def _unknown(told: dict[str, Any], timer_id: str, *, as_json: bool) -> Failure:
    for bad in told["invalid"]:
        if bad["id"] == timer_id:
            message = f"timer {timer_id} is invalid: {bad['reason']}"
            return Failure("invalid_configuration", message, exit_code=4, as_json=as_json, id=timer_id)
    close = get_close_matches(timer_id[:100], [timer["id"] for timer in told["timers"]])
    hint = f"did you mean {' or '.join(map(printable, close))}?" if close else ""
    message = f"there is no timer {timer_id[:200]}"
    return Failure("not_found", message, exit_code=3, as_json=as_json, hint=hint, id=timer_id, close=close)


# --- the answer ---


def _lines(answer: SlotAnswer, record: Record) -> Iterator[str]:
    words = Words(record.zone)
    yield click.style(printable(answer.sentence), bold=True)
    if answer.runs:
        yield ""
        yield "Its latest runs:" if answer.slot_us is None else "Started in that minute all the same:"
        for run in answer.runs:
            yield f"  {words.time(run.started_us)}  run {run.id} ({run.reason}): {run.result or 'running'}"
    yield ""
    if record.next_us is not None:
        yield f"Next: {words.time(record.next_us)}."
    yield click.style(f"Times are those of {printable(str(record.zone))}.", dim=True)


def _table(answers: list[SlotAnswer], record: Record) -> Iterator[str]:
    words = Words(record.zone)
    if not answers:
        yield from _lines(why(record), record)
        return
    for answer in answers:
        assert answer.slot_us is not None
        kind = click.style(f"{answer.kind:<14}", fg=_COLOURS.get(answer.kind))
        run = f"run {answer.run.id}" if answer.run else ""
        late = length_text(answer.late_us) if answer.late_us is not None else ""
        reason = answer.miss.reason if answer.miss else answer.run.reason if answer.run else ""
        yield f"{words.time(answer.slot_us)}  {kind}  {run:<12}  {late:<10}  {reason}".rstrip()
    yield click.style(f"Times are those of {printable(str(record.zone))}.", dim=True)


def _as_dict(answer: SlotAnswer, record: Record) -> dict[str, Any]:
    zone = record.zone
    return {
        "kind": str(answer.kind),
        "sentence": answer.sentence,
        "slot": _time(answer.slot_us, zone),
        "run": _run_as_dict(answer.run, zone) if answer.run else None,
        "late_s": None if answer.late_us is None else answer.late_us / SECOND_US,
        "miss": {"at": _time(answer.miss.at_us, zone), "reason": answer.miss.reason} if answer.miss else None,
        "runs": [_run_as_dict(run, zone) for run in answer.runs],
    }


def _run_as_dict(run: Fired, zone: tzinfo) -> dict[str, Any]:
    return {
        "id": run.id,
        "reason": run.reason,
        "started_at": _time(run.started_us, zone),
        "ended_at": _time(run.ended_us, zone),
        "result": run.result,
        "scheduled_at": _time(run.scheduled_us, zone),
    }


def _time(at_us: Instant | None, zone: tzinfo) -> str | None:
    return None if at_us is None else datetime_at(at_us, zone).isoformat()
