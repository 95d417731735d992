"""Where a store is: a file, memory, or a database; and texts that hold a password, which are never repeated.

SQLite opens a file of any name. So whatever looks like the address of a database, but is not written as one,
is refused before anything is opened: otherwise its password would become the name of a file. A message about
such a text does not quote it.
"""

import re
from enum import Enum
from urllib.parse import parse_qsl

DATABASE_SCHEMES = ("postgresql://", "postgres://")
_ADDRESS = "postgresql://host/database"
_SECRETS = frozenset({"password", "sslpassword"})

_WORDS = (
    "dbname|database|host|hostaddr|server|port|user|username|uid|"
    "passfile|passwd|password|pwd|service|servicefile|sslkey|sslmode|sslpassword"
)
_KEY_VALUE = re.compile(rf"(?:^|[\s;])(?:{_WORDS})\s*=", re.IGNORECASE)
"""A connection string of libpq, or one of the kind that others separate by semicolons."""
_SCHEME = re.compile(r"""[\s"']*(?:jdbc:)?(?:postgres|postgresql|pgsql|psql)(?:\+\w+)?:""", re.IGNORECASE)
_USER_AND_PASSWORD = re.compile(r"(?:\s*//)?[^/:]+:.*@", re.DOTALL)
_PLAIN_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")

_BEFORE_AT = re.compile(r"""[A-Za-z][\w+.-]*:/{0,2}[^\s/:@]*:[^\n]*@|[^\s/:@'"(]+:(?!//)[^\s'"]*@""")
_AFTER_KEY = re.compile(
    r"""((?:ssl)?password|passwd|pwd)(\s*(?:=|%3D)\s*)('(?:[^'\\]|\\.)*'?|[^\s&;'"]+)""", re.IGNORECASE
)
_OPTIONS = re.compile(r"""(postgres(?:ql)?://[^\s?'"]*\?)[^\s'")]+""")


class StoreKind(Enum):
    """What a place is."""

    FILE = "file"
    MEMORY = "memory"
    DATABASE = "database"


class PlaceError(ValueError):
    """A text that says no place for a store. The message does not repeat it: it may hold a password."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class UnknownSchemeError(PlaceError):
    """An address of something that duly has no store for."""

    def __init__(self, scheme: str) -> None:
        known = _PLAIN_SCHEME.fullmatch(scheme) is not None
        what = f"{scheme}:// addresses" if known else "such addresses"
        super().__init__(f"no store is known for {what}; use a path to a SQLite file")


class UnclearPlaceError(PlaceError):
    """A text that was probably meant as the address of a database."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this looks like {what}; write an address as {_ADDRESS}, and a file of that name with its "
            "directory (./ for this one)"
        )


def kind_of(place: str) -> StoreKind:
    """What *place* is. Raises PlaceError."""
    if place == ":memory:":
        return StoreKind.MEMORY
    if not place or "\0" in place:
        raise PlaceError("a store needs a path, such as 'state.db', or ':memory:'")
    if place.startswith(DATABASE_SCHEMES):
        return StoreKind.DATABASE
    if _SCHEME.match(place):
        raise UnclearPlaceError("an address of PostgreSQL that does not begin with postgresql://")
    if _KEY_VALUE.search(place):
        raise UnclearPlaceError("a connection string of libpq")
    if "://" in place:
        raise UnknownSchemeError(place.partition("://")[0])
    if _USER_AND_PASSWORD.match(place):
        raise UnclearPlaceError("an address without its beginning")
    return StoreKind.FILE


def has_password(url: str) -> bool:
    """Whether the address of a database holds a password, before its host or among its options."""
    authority, _, options = url.partition("://")[2].partition("?")
    is_before_host = ":" in authority.rpartition("@")[0].partition("/")[0]
    return is_before_host or any(name in _SECRETS for name, _ in parse_qsl(options))


def without_secrets(text: str) -> str:
    """A message with what looks like a password in it taken out: the last resort for texts of others."""
    return _AFTER_KEY.sub(r"\1\2…", _OPTIONS.sub(r"\1…", _BEFORE_AT.sub("…@", text)))
