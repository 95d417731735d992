"""Addresses of databases: what the user wrote, and the name for it that holds no secret.

libpq quotes the whole address when it cannot parse it, and parts of a password when a character in it was
not escaped and split it. So nothing that libpq says of an address is repeated, and an address that may
have been split in the wrong place is refused before libpq sees it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from duly.errors import StoreError
from duly.places import DATABASE_SCHEMES

_UNNAMED = "postgresql://…"
_ESCAPES = "write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"


class Address(NamedTuple):
    """Where a database is, and how to say so."""

    name: str
    """For messages: no password, no options."""
    parameters: Mapping[str, Any]
    """For libpq."""

    def __repr__(self) -> str:
        return self.name


def address_of(url: str) -> Address:
    """The address that *url* is. Raises StoreError."""
    scheme = next((scheme for scheme in DATABASE_SCHEMES if url.startswith(scheme)), None)
    if scheme is None:
        raise _unusable("is no address of a database; one begins with postgresql://")
    _check_split(url.removeprefix(scheme))
    try:
        parameters = conninfo_to_dict(url)
    except (ProgrammingError, UnicodeError):
        raise _unusable(
            f"is an address that cannot be read; it goes postgresql://user:password@host:port/database, and "
            f"in a user or password {_ESCAPES}"
        ) from None
    ports = str(parameters.get("port") or "").split(",")
    if not all(_is_port(port) for port in ports):
        raise _unusable(f"has a port that is no number from 1 to 65535; in a user or password {_ESCAPES}")
    if "\0" in "".join(map(str, parameters.values())):
        raise _unusable("has a NUL character in its address")
    if "=" in str(parameters.get("dbname") or ""):
        # Part of the name, and perhaps a connection string with a password.
        raise _unusable("has a = in the name of its database, which duly does not support")
    return Address(_name_of(parameters), parameters)


def _check_split(rest: str) -> None:
    """Refuse what a password with characters that mean something would look like."""
    ends = [found for mark in "/?#" if (found := rest.find(mark)) >= 0]
    authority = rest[: min(ends, default=len(rest))]
    if authority.count("@") != rest.count("@") or authority.count("@") > 1 or "#" in rest:
        raise _unusable(f"is an address that can be read in two ways; in a user or password {_ESCAPES}")


def _is_port(port: str) -> bool:
    return not port or (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535)


def _name_of(parameters: Mapping[str, Any]) -> str:
    user = f"{quote(str(parameters['user']), safe='')}@" if parameters.get("user") else ""
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    ports = str(parameters.get("port") or "").split(",")
    database = quote(str(parameters.get("dbname") or ""), safe="")
    if any(host.startswith(("/", "@")) for host in hosts):
        port = f"&port={','.join(ports)}" if any(ports) else ""
        return f"postgresql://{user}/{database}?host={quote(','.join(hosts), safe='/,')}{port}"
    if len(ports) == 1:
        ports *= len(hosts)
    places = ",".join(
        f"{_bracketed(host)}:{port}" if port else _bracketed(host)
        for host, port in zip(hosts, ports, strict=False)
    )
    return f"postgresql://{user}{places}/{database}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")


def _unusable(reason: str) -> StoreError:
    return StoreError(store=_UNNAMED, reason=reason)
