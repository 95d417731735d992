"""Tasks as PostgreSQL gets them: columns in arrays, texts escaped; and back.

A column is one value bound to a statement, written as PostgreSQL writes arrays. For numbers, nulls, and
printable ASCII that is JSON in other brackets, which makes packing ten thousand rows a matter of
milliseconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from duly.core.record import COLUMNS, STATE_COLUMNS, record_of, state_of
from duly.store.board import Row, Stored, shard_of

_encoded = msgspec.json.Encoder().encode

_PUT_COLUMNS = (*COLUMNS, "shard", "digest", "run_by")
_SAVE_COLUMNS = ("id", *STATE_COLUMNS, "run_by")


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


def stored_from(row: Sequence[Any]) -> Stored:
    """A row as it came from the database."""
    width = len(COLUMNS)
    task_id, name, cron, *state, scheduler_id = row[:width]
    record = (task_id, unescaped(name), unescaped(cron), *state, unescaped(scheduler_id))
    return Stored(record, *row[width:])


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
