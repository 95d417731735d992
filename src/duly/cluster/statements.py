"""The SQL of a cluster, from `cluster/sql`, put together for one schema; and values as PostgreSQL gets them.

A database may have any encoding, and no text of it may hold NUL. So every text is stored in printable ASCII
(`escaped`). A column of many rows is one value, written as PostgreSQL writes arrays. For numbers, nulls and
printable ASCII that is JSON in other brackets, so packing ten thousand rows takes milliseconds.
"""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

import msgspec

_encode = msgspec.json.Encoder().encode


class AsIs(str):
    """A text that is not to be escaped: an array, or a name in PostgreSQL's own catalogue."""

    __slots__ = ()


def array(values: Iterable[object]) -> AsIs:
    """Numbers, truth values, nulls and texts."""
    plain = [escaped(value) if isinstance(value, str) else value for value in values]
    return AsIs("{" + _encode(plain).decode()[1:-1] + "}")


def escaped(text: str) -> str:
    """Any text in printable ASCII; plain text stays as it is."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return text.encode("unicode_escape").decode("ascii")


def unescaped(text: str) -> str:
    """The text that `escaped` was given."""
    return text.encode("ascii").decode("unicode_escape") if "\\" in text else text


class Statements:
    """The statements for one *schema*. Every name is qualified: behind a pooler there is no search path."""

    def __init__(self, schema: str) -> None:
        if not schema or "\0" in schema:
            raise ValueError("a schema needs a name")
        self.schema = schema
        self.quoted = '"' + schema.replace('"', '""') + '"'
        self.meta = f"{self.quoted}.meta"
        self._in_statements = self.quoted.replace("%", "%%")
        self.create_schema = f"CREATE SCHEMA {self._in_statements}"

    def of(self, *names: str, **parts: str) -> str:
        """One script of several, in front of them what every transaction begins with."""
        text = "\n".join(map(script_file, ("settings", *names)))
        for part, value in {
            "cut_off": script_file("cut_off"),
            **_PARTS,
            **parts,
            "schema": self._in_statements,
        }.items():
            text = text.replace(f"{{{part}}}", value)
        return text

    def claim(
        self,
        *,
        has_ends: bool,
        is_looking_again: bool,
        is_claiming: bool,
        has_also: bool,
        has_wanted: bool,
        has_but: bool,
    ) -> str:
        which = {"ends": has_ends, "look_again": is_looking_again, "claim": is_claiming}
        names = ["me", *(name for name, is_wanted in which.items() if is_wanted), "after_claim"]
        wanted = _WANTED if has_wanted else dict.fromkeys(_WANTED, "")
        is_listed = "(gen <= %(gen)s OR id = ANY(%(also)s::bigint[]))" if has_also else "gen <= %(gen)s"
        but = " AND name <> ALL(%(but)s::text[])" if has_but else ""
        is_mine = f"{is_listed} AND (kind IS NULL OR kind = ANY(%(kinds)s::text[])){but}"
        return self.of(*names, **wanted, **_MATCH_ID, is_mine=is_mine)

    def come_back(self) -> str:
        """The script that gives up ids and goes on under a new one."""
        return self.of("come_back", "join", "restore", "ends", "relabel", "forgotten", **_MATCH_NAME)

    def fence(self) -> str:
        """The script that declares a node dead."""
        return self.of("fence", is_cut="task.run_by = %(node)s AND node.fenced_us IS NOT NULL")


_PARTS = {
    "owner": "fenced_us IS NULL AND server = {schema}.server()",
    "is_open": """NOT EXISTS (SELECT FROM {schema}.node AS other WHERE other.namespace = %(namespace)s
            AND other.fenced_us IS NULL AND other.server <> {schema}.server())
        AND EXISTS (SELECT FROM {schema}.namespace AS space WHERE space.name = %(namespace)s
            AND space.timeline = {schema}.timeline())""",
}
_WANTED = {
    "wanted": """, wanted AS MATERIALIZED (
    SELECT id FROM {schema}.task
    WHERE namespace = %(namespace)s AND name = ANY(%(wanted)s::text[]) AND run_by IS NULL AND NOT removed
        AND {is_mine} AND EXISTS (SELECT FROM ready)
    FOR UPDATE SKIP LOCKED
)""",
    "or_wanted": "UNION ALL SELECT id FROM wanted",
}
_MATCH_ID = {"match": "task.id = given.id", "rows": "task.id = ANY(%(ids)s::bigint[])"}
_MATCH_NAME = {
    "match": "task.name = given.name",
    "rows": "task.namespace = %(namespace)s AND task.name = ANY(%(names)s::text[])",
    "owner": "fenced_us IS NULL",
    "is_cut": "task.namespace = %(namespace)s AND task.run_by = ANY(%(before)s::bigint[])"
    " AND (task.name, task.token) IN"
    " (SELECT * FROM unnest(%(cut_names)s::text[], %(cut_tokens)s::bigint[]))",
    "has_forgotten": "EXISTS (SELECT FROM {schema}.node"
    " WHERE id = (%(before)s::bigint[])[1] AND seq < %(acked)s)",
}


@cache
def script_file(name: str) -> str:
    return files("duly.cluster").joinpath("sql", f"{name}.sql").read_text()
