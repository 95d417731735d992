"""Our statements, from `store/sql/postgres`, for one schema of a database.

Every name in them is qualified: the search path is the session's, and behind a pooler there is no session.
"""

from functools import cache, cached_property
from importlib.resources import files


class Scripts:
    """The statements for *schema*."""

    def __init__(self, schema: str) -> None:
        if not schema or "\0" in schema:
            raise ValueError("a schema needs a name")
        self.schema = schema
        quoted = '"' + schema.replace('"', '""') + '"'
        self.meta = f"{quoted}.meta"
        """The table by which we know that a schema is ours."""
        self._quoted = quoted.replace("%", "%%")  # a single one would be the place of a value

    def of(self, *names: str) -> str:
        """One script of several, in front of them what every transaction begins with."""
        return "\n".join(self._of(name) for name in ("settings", *names))

    @cached_property
    def write_whole(self) -> str:
        """The script that puts tasks if the fence lets it."""
        put = self._of("put").replace("{gate}", ", gate WHERE is_open")
        return self.of("server", "lock") + "\n" + self._of("write_whole").replace("{put}", put)

    @cached_property
    def put(self) -> str:
        """The script that puts tasks in a transaction that has begun."""
        return self._of("displace") + self._of("put").replace("{gate}", " WHERE true")

    @cached_property
    def make_schema(self) -> str:
        """The script that makes the schema."""
        return f"CREATE SCHEMA {self._quoted}"

    def migration(self, number: int) -> str:
        """The step to format *number*, as it is executed: without values."""
        return migrations()[number - 1].replace("{schema}", self._quoted)

    def _of(self, name: str) -> str:
        return _text(f"{name}.sql").replace("{schema}", self._quoted)


@cache
def migrations() -> tuple[str, ...]:
    """The steps from an empty schema to the present format."""
    folder = files("duly.store").joinpath("sql", "postgres")
    return tuple(map(_text, sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())))


@cache
def _text(file: str) -> str:
    return files("duly.store").joinpath("sql", "postgres", file).read_text()
