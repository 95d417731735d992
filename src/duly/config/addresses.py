"""Addresses in a configuration: where the dashboard listens, what is pinged on success, where the store is.

The path of a URL to ping is as good as a password, so a `PingUrl` shows, compares and stores its host alone;
the address of a database may hold one, and a `Database` shows the rest. No message of a checker repeats what
was written.
"""

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from duly.config.errors import EntryFault
from duly.config.schema import Database, PingUrl
from duly.config.values import host_text, path_text, plain
from duly.config.words import quoted, shown
from duly.errors import StoreError
from duly.places import Kind, PlaceError, UnknownSchemeError, kind_of

_LONGEST_URL = 2000
_LONGEST_UNIX_PATH = 107
_MOST_HOSTS = 100
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_UNIX = "unix:"


class Address(NamedTuple):
    """Where to listen: a host and a port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def ping_url(value: object, key: str) -> PingUrl:
    """A URL that can be pinged."""
    if isinstance(value, PingUrl):
        value = value.secret
    if not isinstance(value, str):
        raise EntryFault(f"{key} must be text, not {shown(value)}", key)
    url = plain(value)
    if len(url) > _LONGEST_URL:
        raise EntryFault(f"{key} is {len(url)} characters long; at most {_LONGEST_URL} are allowed", key)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise EntryFault(f"{key} must be plain ASCII without spaces; write anything else as %XX", key)
    return PingUrl.of(_host_of(url, key), url)


def _host_of(url: str, key: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise EntryFault(f"{key} is not a URL", key) from error
    if parts.scheme not in {"http", "https"}:
        raise EntryFault(f"{key} must begin with https:// or http://", key)
    if not host:
        raise EntryFault(f"{key} names no host", key)
    if parts.username is not None or parts.password is not None:
        raise EntryFault(f"{key} must not hold a user name or password", key)
    if parts.fragment:
        raise EntryFault(f"{key} must not hold a # part, which no server would see", key)
    shown_host = f"[{host}]" if ":" in host else host
    return shown_host if port is None else f"{shown_host}:{port}"


def store(value: object, key: str) -> str | Database:
    """The path of a file, or the address of a database that several machines share."""
    text = value.secret if isinstance(value, Database) else path_text(value, key)
    try:
        if kind_of(text) is not Kind.DATABASE:
            return text
    except UnknownSchemeError as error:
        raise EntryFault(
            f"{key} must be the path of a SQLite file or begin with postgresql://", key
        ) from error
    except PlaceError as error:
        raise EntryFault(f"{key} cannot be used: {error.reason}", key) from error
    try:
        from duly.store.postgres.address import address_of  # noqa: PLC0415 (not every user has psycopg)

        return Database.of(address_of(text).name, text)
    except ImportError as error:
        raise EntryFault(f"{key} needs psycopg: pip install 'duly[postgres]'", key) from error
    except StoreError as error:
        raise EntryFault(f"{key} {error.details['reason']}", key) from error


def listen(value: object, key: str) -> str:
    """Where to listen, in its one form."""
    return str(address(host_text(value, key, key), key))


def address(text: str, key: str = "listen") -> Address:
    """The address that a text names. Raises EntryFault."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path:
            raise EntryFault(f"{key} names no path; write unix:/path/of/socket", key)
        if len(path.encode()) > _LONGEST_UNIX_PATH:
            most = f"a unix socket may have {_LONGEST_UNIX_PATH}"
            raise EntryFault(f"{key} has a path of {len(path.encode())} bytes; {most}", key)
        return Address(path=path)
    host, colon, digits = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host):
        form = "a host and a port (127.0.0.1:8787, [::1]:8787) or unix:/path"
        raise EntryFault(f"{key} must be {form}, not {quoted(text)}", key)
    if not digits.isdecimal() or not digits.isascii() or len(digits) > 5 or int(digits) > 65_535:
        raise EntryFault(f"{key} must end in a port from 0 to 65535, not {quoted(digits)}", key)
    return Address(host.strip("[]"), int(digits))


def hosts(value: object, key: str) -> tuple[str, ...]:
    """Names under which a server answers, without ports, each once."""
    if isinstance(value, str):
        raise EntryFault(f"{key} must be a list of host names; write [{quoted(value)}]", key)
    if not isinstance(value, list | tuple):
        raise EntryFault(f"{key} must be a list of host names, not {shown(value)}", key)
    if len(value) > _MOST_HOSTS:
        raise EntryFault(f"{key} has {len(value)} elements; at most {_MOST_HOSTS} are allowed", key)
    found: dict[str, None] = {}
    for item in value:
        if not isinstance(item, str) or not _HOST.fullmatch(item):
            reason = "write names such as duly.example.org, without a port"
            raise EntryFault(f"{key} must be a list of host names, and {shown(item)} is none; {reason}", key)
        found[plain(item).lower()] = None
    return tuple(found)
