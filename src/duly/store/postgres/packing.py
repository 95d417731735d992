"""Tasks and timers as PostgreSQL gets them: columns in arrays, texts escaped; and back.

A column is one value bound to a statement, written as PostgreSQL writes arrays. For numbers, nulls, and
printable ASCII that is JSON in other brackets, which makes packing ten thousand rows a matter of
milliseconds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from duly.core.record import COLUMNS, STATE_COLUMNS, record_of, state_of
from duly.store.board import Request, Row, Stored, TimerRow, shard_of

_encoded = msgspec.json.Encoder().encode

_PUT_COLUMNS = (*COLUMNS, "shard", "digest", "run_by")
_SAVE_COLUMNS = ("id", *STATE_COLUMNS, "run_by")
_TIMER_COLUMNS = ("id", "name", "record", "run_by")


def escaped(text: str) -> str:
    """Any text in printable ASCII; plain text stays as it is."""
    return text.encode("unicode_escape").decode("ascii")


def unescaped(text: str) -> str:
    """The text that `escaped` was given."""
    return text.encode("ascii").decode("unicode_escape") if "\\" in text else text


def array(values: Iterable[object]) -> str:
    """Numbers, truth values, nulls and escaped texts, as PostgreSQL writes an array."""
    return "{" + _encoded(list(values)).decode()[1:-1] + "}"


def digest_of(name: str) -> str:
    """What stands for a name in the index of names, however long the name is."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def packed_whole(rows: Sequence[Row], shards: int) -> Mapping[str, str]:
    """All columns of *rows*, on a board of so many *shards*."""
    return _packed(_PUT_COLUMNS, [_put(row, shards) for row in rows])


def packed_state(rows: Sequence[Row]) -> Mapping[str, str]:
    """The columns of *rows* that running changes."""
    return _packed(_SAVE_COLUMNS, [(row.task.id, *state_of(row.task), row.run_by) for row in rows])


def packed_timers(rows: Sequence[TimerRow]) -> Mapping[str, str]:
    """The columns of *rows* of timers, all in one shard."""
    return _packed(_TIMER_COLUMNS, [_timer(row) for row in rows])


def timer_from(row: Sequence[Any]) -> TimerRow:
    """A row of a timer as it came from the database, where anybody may have edited it."""
    shard, timer_id, name, text, run_by = row
    key, record = (timer_id, _name_in(name)), _record_in(text)
    return TimerRow(shard, record if record[:2] == key else key, run_by)


def request_from(row: Sequence[Any]) -> Request:
    """A request as it came from the database."""
    request_id, shard, timer, verb, asker, until_us = row
    return Request(request_id, shard, unescaped(timer), unescaped(verb), unescaped(asker), until_us)


def stored_from(row: Sequence[Any]) -> Stored:
    """A row as it came from the database."""
    width = len(COLUMNS)
    task_id, name, cron, *state, scheduler_id = row[:width]
    record = (task_id, unescaped(name), unescaped(cron), *state, unescaped(scheduler_id))
    return Stored(record, *row[width:])


def _timer(row: TimerRow) -> tuple[object, ...]:
    timer_id, name, *_ = row.record
    # Not ensure_ascii: two lone surrogates would come back as one character.
    text = json.dumps(list(row.record), ensure_ascii=False, separators=(",", ":"))
    return timer_id, escaped(name), escaped(text), row.run_by


def _name_in(text: str) -> str:
    try:
        return unescaped(text)
    except UnicodeError:
        return text


def _record_in(text: str) -> tuple[Any, ...]:
    """The record in *text*, or an empty one if there is none in it."""
    try:
        record = json.loads(unescaped(text))
    except (ValueError, RecursionError):
        return ()
    return tuple(record) if isinstance(record, list) else ()


def _put(row: Row, shards: int) -> tuple[object, ...]:
    task = row.task
    task_id, name, cron, *state, scheduler_id = record_of(task)
    return (
        task_id,
        escaped(str(name)),
        escaped(str(cron)),
        *state,
        escaped(str(scheduler_id)),
        shard_of(task.name, shards),
        digest_of(task.name),
        row.run_by,
    )


def _packed(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Mapping[str, str]:
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    return {column: array(of_it) for column, of_it in zip(columns, values, strict=True)}
