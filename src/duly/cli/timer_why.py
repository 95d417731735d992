"""The part of `duly why` that is about the timers of a daemon: asked of it, or of its store."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import tzlocal

from duly.cli.output import print_answer, times_are_those_of
from duly.cli.proxy import DaemonProxy
from duly.config.schema import ConfigError
from duly.daemon.slots import SlotKind
from duly.formatting import printable, spelled_length
from duly.instant import SECOND_US, instant_of
from duly.verify.reasons.answers import Words

_COLOURS: dict[str, str] = {
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
    asked: dict[str, Any] = {"id": timer_id, "at": None if at is None else at.isoformat()}
    response = daemon.read("why", **asked, **({} if count is None else {"count": count}))
    if count is None:
        lines = _lines(response)
    elif response["answers"]:
        lines = _table(response)
    else:  # it has no slots: why, in a sentence
        lines = _lines(daemon.read("why", id=timer_id))
    print_answer(response, lines, ensure_ascii=True)


def _lines(response: dict[str, Any]) -> Iterator[str]:
    words = _words(response)
    yield click.style(printable(response["sentence"]), bold=True)
    if response["runs"]:
        yield ""
        yield "Its latest runs:" if response["slot"] is None else "Started in that minute all the same:"
        for run in response["runs"]:
            began = f"{_time(run['started_at'], words)}  run {run['id']}"
            yield f"  {began} ({run['reason']}): {run['result'] or 'running'}"
    yield ""
    if response["next_run_at"] is not None:
        yield f"Next: {_time(response['next_run_at'], words)}."
    yield from _last_lines(response)


def _table(response: dict[str, Any]) -> Iterator[str]:
    words = _words(response)
    for answer in response["answers"]:
        kind = click.style(f"{answer['kind']:<14}", fg=_COLOURS.get(answer["kind"]))
        run = f"run {answer['run']['id']}" if answer["run"] else ""
        late = "" if answer["late_s"] is None else spelled_length(round(answer["late_s"] * SECOND_US))
        reason = (answer["miss"] or answer["run"] or {"reason": ""})["reason"]
        yield f"{_time(answer['slot'], words)}  {kind}  {run:<12}  {late:<10}  {reason}".rstrip()
    yield from _last_lines(response)


def _last_lines(response: dict[str, Any]) -> Iterator[str]:
    if response["fault"]:
        yield click.style(printable(f"Not complete: {response['fault']}"), "yellow")
    yield times_are_those_of(response["timezone"])


def _words(response: dict[str, Any]) -> Words:
    try:
        return Words(ZoneInfo(response["timezone"]))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return Words(tzlocal.get_localzone())  # the daemon's host, which is ours, has a zone without a name


def _time(text: str, words: Words) -> str:
    return words.time(instant_of(datetime.fromisoformat(text)))
