"""Opening a board: is the database fit, is the schema ours, and making the tables where there are none.

Nothing is written before the schema is known to be empty or ours, and not newer. Members that open an
empty database at the same time wait for each other under a lock that ends with the transaction.
"""

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from duly.errors import StoreError
from duly.store.postgres.line import Line
from duly.store.postgres.packing import escaped, unescaped
from duly.store.postgres.scripts import Scripts, migrations

_LOCK = 0x64756C79 << 32  # "duly"


class Identity(NamedTuple):
    """What the board is, for as long as it exists."""

    scheduler_id: str
    shards: int


class _Sight(NamedTuple):
    """What a look at the database shows."""

    is_standby: bool
    is_there: bool
    is_ours: bool
    is_used: bool
    role: str


class StandbyError(StoreError):
    """The server only repeats what another one does."""

    def __init__(self, *, store: str) -> None:
        super().__init__(store=store, reason="is in recovery: a standby; use the address of the primary")


def opened(line: Line, scripts: Scripts, name: str, new: Identity) -> Identity:
    """The identity of the board, which is *new* if there was none and that has a name. Raises StoreError."""
    sight = _seen(line, scripts, name)
    if sight.is_ours:
        version, identity = _identified(line, scripts, name)
        if version == len(migrations()):
            _check_rights(line, scripts, name, sight.role)
            return identity
    if not new.scheduler_id:
        reason = (
            "is of an older duly"
            if sight.is_ours
            else f"has no tables of duly in its schema {scripts.schema!r}"
        )
        raise StoreError(store=name, reason=f"{reason}; start a scheduler on it first")
    return _migrated(line, scripts, name, new)


def _seen(line: Line, scripts: Scripts, name: str) -> _Sight:
    sight = _Sight(*line.ask(scripts.of("look"), _places(scripts))[-1][0])
    if sight.is_standby:
        raise StandbyError(store=name)
    if sight.is_used and not sight.is_ours:
        reason = f"has a schema {scripts.schema!r} that is not ours; choose another database or schema"
        raise StoreError(store=name, reason=reason)
    return sight


def _identified(line: Line, scripts: Scripts, name: str) -> tuple[int, Identity]:
    rows = line.ask(scripts.of("identify"), {})[-1]
    if len(rows) != 1:
        raise StoreError(store=name, reason=f"its table {scripts.meta} is damaged; restore it from a copy")
    version, scheduler_id, shards = rows[0]
    known = len(migrations())
    if version > known:
        reason = f"has format {version}, written by a newer duly; this one knows up to {known}. Upgrade duly"
        raise StoreError(store=name, reason=reason)
    return version, Identity(unescaped(scheduler_id), shards)


def _check_rights(line: Line, scripts: Scripts, name: str, role: str) -> None:
    if lacking := [right for (right,) in line.ask(scripts.of("rights"), _places(scripts))[-1]]:
        reason = (
            f"lacks rights: the role {role!r} needs {', '.join(lacking)}; grant them, or use another role"
        )
        raise StoreError(store=name, reason=reason)


def _migrated(line: Line, scripts: Scripts, name: str, new: Identity) -> Identity:
    lock = _LOCK | zlib.crc32(scripts.schema.encode(errors="surrogatepass"))
    begin = "BEGIN;\n" + scripts.of() + "SELECT pg_advisory_xact_lock(%(lock)s)"
    line.ask(begin, {"lock": lock})
    # Another member may have been quicker, so look again.
    sight = _seen(line, scripts, name)
    version, identity = _identified(line, scripts, name) if sight.is_ours else (0, new)
    if not sight.is_there:
        line.ask(scripts.make_schema, {})
    for number in range(version + 1, len(migrations()) + 1):
        line.ask(scripts.migration(number), {})
        if number == 1:
            line.ask(scripts.of("found"), {"scheduler_id": escaped(new.scheduler_id), "shards": new.shards})
    line.ask(scripts.of("format"), {"format": len(migrations())})
    line.ask("COMMIT", {})
    return identity


def _places(scripts: Scripts) -> Mapping[str, Any]:
    return {"schema_name": scripts.schema, "meta": scripts.meta}
