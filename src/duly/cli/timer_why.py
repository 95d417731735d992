"""The part of `duly why` that is about the timers of a daemon, from its history or from its store."""

from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import msgspec
import tzlocal

from duly.cli.output import print_answer, times_are_those_of
from duly.cli.proxy import DaemonProxy, say_disabled
from duly.cli.timers import timer_in
from duly.config.schema import ConfigError, Timer, config_zone
from duly.daemon.slots import SlotAnswer, SlotKind, TimerPast, why, why_latest
from duly.daemon.views import run_json
from duly.formatting import printable, spelled_length
from duly.instant import SECOND_US, Instant, instant_of, time_of
from duly.store.history import MissRow, RunRow
from duly.timers.calendar import CalendarCache, zone_of
from duly.verify.reasons.answers import Words

_PAGE = 500
_MOST_PAGES = 20
_COLOURS = {
    SlotKind.FIRED: "green",
    SlotKind.MERGED: "yellow",
    SlotKind.MISSED: "red",
    SlotKind.PENDING: "yellow",
}


def has_timer(daemon: DaemonProxy, timer_id: str) -> bool:
    """Whether the file of a daemon has a timer of that name, valid or not."""
    try:
        config = daemon.loaded()
    except ConfigError:
        return False
    assert config is not None
    invalid = {bad.id for bad in config.invalid if bad.is_of("timer")}
    return timer_id in {timer.id for timer in config.timers} | invalid


def why_timer(daemon: DaemonProxy, timer_id: str, at: datetime | None, count: int | None) -> None:
    record = _record(daemon, timer_id, at)
    answers = [why(record, at)] if count is None else why_latest(record, count, at)
    shown = [_as_dict(answer, record) for answer in answers]
    facts = {
        "timer": timer_id,
        "source": "daemon" if record.is_live else "store",
        "timezone": str(record.zone),
        "next_run_at": time_of(record.next_us, record.zone),
    }
    print_answer(
        facts | ({"answers": shown} if count is not None else shown[0]),
        _lines(answers[0], record) if count is None else _table(answers, record),
        ensure_ascii=True,
    )


def _record(daemon: DaemonProxy, timer_id: str, at: datetime | None) -> TimerPast:
    response = daemon.read("timers")
    if response["status"] == "disabled":
        say_disabled(response["message"])
    state = timer_in(response, timer_id)
    timer, default = _definition(daemon, timer_id)
    zone = zone_of(timer, default)
    since_us = None if at is None else instant_of(at if at.tzinfo is not None else at.replace(tzinfo=zone))
    runs = _runs(daemon, timer_id, since_us)
    misses = daemon.read("history", timer=timer_id, limit=1000)["misses"]
    return TimerPast(
        timer_id,
        CalendarCache(default).of(timer),
        zone,
        _instant(response["at"]) or 0,
        _instant(state["registered_at"]),
        _instant(state["answered_until"]),
        runs,
        [MissRow(timer_id, _instant(miss["at"]) or 0, miss["reason"]) for miss in misses],
        is_live=not daemon.is_down,
        schedule=state["schedule"],
        next_us=_instant(state["next_run_at"]),
    )


def _definition(daemon: DaemonProxy, timer_id: str) -> tuple[Timer, tzinfo]:
    """The timer as the daemon runs it, or as its file has it; and the zone of those that give none."""
    if daemon.is_down:
        config = daemon.loaded()
        assert config is not None
        return next(timer for timer in config.timers if timer.id == timer_id), config_zone(config)
    response = daemon.read("definitions")
    found = next(timer for timer in response["timers"] if timer["id"] == timer_id)
    zone: tzinfo
    try:
        zone = ZoneInfo(response["timezone"])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = tzlocal.get_localzone()  # the daemon's host, which is ours, has a zone without a name
    return msgspec.convert(found, Timer), zone


def _runs(daemon: DaemonProxy, timer_id: str, since_us: Instant | None) -> list[RunRow]:
    """The runs of a timer, newest first, back to before *since_us*."""
    runs: dict[tuple[str | None, int], RunRow] = {}
    before: int | None = None
    for _ in range(_MOST_PAGES):
        response = daemon.read("history", timer=timer_id, limit=_PAGE, before=before)
        # A run of another machine may be on two pages.
        runs |= {(run.get("machine"), run["id"]): _row_of(run) for run in response["runs"]}
        here = [_row_of(run) for run in response["runs"] if run.get("machine") is None]
        if not response["more"] or not here or (since_us is not None and here[-1].started_us < since_us):
            break
        before = here[-1].id
    return list(runs.values())


def _row_of(run: dict[str, Any]) -> RunRow:
    known: dict[str, Any] = {key: run[key] for key in ("id", "service", "timer", "reason", "result")}
    known |= {f"{key}_us": _instant(run[f"{key}_at"]) for key in ("scheduled", "started", "ended")}
    lasted_s = run["duration_s"]
    return RunRow(**known, lasted_us=None if lasted_s is None else round(lasted_s * SECOND_US))


def _instant(text: str | None) -> Instant | None:
    return None if text is None else instant_of(datetime.fromisoformat(text))


# --- the answer ---


def _lines(answer: SlotAnswer, record: TimerPast) -> Iterator[str]:
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
    yield times_are_those_of(str(record.zone))


def _table(answers: list[SlotAnswer], record: TimerPast) -> Iterator[str]:
    words = Words(record.zone)
    if not answers:
        yield from _lines(why(record), record)
        return
    for answer in answers:
        assert answer.slot_us is not None
        kind = click.style(f"{answer.kind:<14}", fg=_COLOURS.get(answer.kind))
        run = f"run {answer.run.id}" if answer.run else ""
        late = spelled_length(answer.late_us) if answer.late_us is not None else ""
        reason = answer.miss.reason if answer.miss else answer.run.reason if answer.run else ""
        yield f"{words.time(answer.slot_us)}  {kind}  {run:<12}  {late:<10}  {reason}".rstrip()
    yield times_are_those_of(str(record.zone))


def _as_dict(answer: SlotAnswer, record: TimerPast) -> dict[str, Any]:
    zone = record.zone
    miss = answer.miss
    return {
        "kind": str(answer.kind),
        "sentence": answer.sentence,
        "slot": time_of(answer.slot_us, zone),
        "run": _run_as_dict(answer.run, zone) if answer.run else None,
        "late_s": None if answer.late_us is None else answer.late_us / SECOND_US,
        "miss": {"at": time_of(miss.at_us, zone), "reason": miss.reason} if miss else None,
        "runs": [_run_as_dict(run, zone) for run in answer.runs],
    }


def _run_as_dict(run: RunRow, zone: tzinfo) -> dict[str, Any]:
    shown = msgspec.structs.asdict(run_json(run, zone))
    return {key: shown[key] for key in ("id", "reason", "started_at", "ended_at", "result", "scheduled_at")}
