"""Whether everybody on this host can read a secret in a configuration file.

A secret is the password in the address of the store, the URL of a ping, and a variable of a service whose
name says that it is one. A Python file may take them from elsewhere, so there the text must hold the secret.
"""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from duly.config.schema import Config, database_of
from duly.config.words import quoted
from duly.places import has_password

_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|API_?KEY", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
"""A URL with a password."""


def exposed_secret(config: Config, text: str) -> str:
    """What everybody can read in the file, whose *text* this is, and what to do; empty if nothing."""
    is_literal = config.path.suffix.lower() == ".toml"
    found = next((name for name, secret in _secrets(config) if is_literal or secret in text), None)
    if found is None or not _is_readable_by_all(config.path):
        return ""
    remedy = f"chmod o-r {quoted(str(config.path))}"
    return f"the file holds {found}, and every user of this host can read it; {remedy}"


def _secrets(config: Config) -> Iterator[tuple[str, str]]:
    """The secrets of a file: what to call each, and its text."""
    database = database_of(config)
    if database is not None and has_password(database.secret):
        yield "the password of its store", database.secret
    for service in config.services:
        if service.ping_url is not None:
            yield f"the ping_url of service {quoted(service.id)}", service.ping_url.secret
        for name, value in service.env.items():
            if value and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)):
                yield f"{quoted(name)} in the env of service {quoted(service.id)}", value


def _is_readable_by_all(path: Path) -> bool:
    """Whether the mode of the file, and of every directory above it, lets everybody read it."""
    try:
        real = path.resolve()
        is_readable = bool(real.stat().st_mode & stat.S_IROTH)
        return is_readable and all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)
    except OSError:
        return False
