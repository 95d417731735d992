"""What the web is started with: where it listens, the tokens, the names it answers to, and its limits.

Tokens come from files that only their owner may read, or from the environment; whatever is wrong with them is
a WebRefusedError, and nothing listens.
"""

import os
import socket
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path

from duly.config.schema import DEFAULT_LISTEN, Config, store_path
from duly.config.values import ListenAddress, address
from duly.errors import SchedulerError

SHORTEST_TOKEN = 16
_LONGEST_TOKEN = 1024
_OPERATOR, _VIEWER = "DULY_OPERATOR_TOKEN", "DULY_VIEWER_TOKEN"


Network = IPv4Network | IPv6Network


class WebRefusedError(SchedulerError):
    """The dashboard does not start as it is configured; says why, and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The dashboard cannot start: {reason}", {"reason": reason})


@dataclass(frozen=True, slots=True)
class WebLimits:
    connections: int = 512
    header_bytes: int = 16 * 1024
    url_bytes: int = 4 * 1024
    body_bytes: int = 64 * 1024
    request_s: float = 10.0
    """For the head of a request, and again for its body, to arrive."""
    idle_s: float = 15.0
    """Between two requests of one connection."""
    write_s: float = 20.0
    """For a reader to take anything at all of what was written to it."""
    failures: int = 10
    """Wrong tokens from one address within a minute."""


@dataclass(frozen=True, slots=True)
class WebSettings:
    listen: str = DEFAULT_LISTEN
    is_listen_given: bool = False
    operator_token: str | None = field(default=None, repr=False)
    viewer_token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[Network, ...] = ()
    """Whose word of where a request came from is taken (X-Forwarded-For)."""
    is_embedded: bool = False
    """Whether another program serves it, under a path of its own (`embedded`)."""
    is_open: bool = False
    """Whether everybody who gets here may act: that program has a login of its own."""
    sessions_path: Path | None = field(default=None, repr=False)
    """Where to remember what was logged out of; without it all sessions end with the process."""
    limits: WebLimits = WebLimits()

    @property
    def address(self) -> ListenAddress:
        return address(self.listen)

    @property
    def is_local(self) -> bool:
        """Whether nobody outside this machine can reach it."""
        if self.address.path is not None or self.address.host == "localhost":
            return True
        try:
            return ip_address(self.address.host).is_loopback
        except ValueError:
            return False


def checked_settings(settings: WebSettings) -> WebSettings:
    """The settings, if one may listen with them. Raises WebRefusedError."""
    if not settings.is_local and settings.operator_token is None:
        raise WebRefusedError(
            f"it is to listen at {settings.listen}, where others can reach it, and there is no token; name a"
            f" file that holds one with token_file = under [dashboard], or set {_OPERATOR}"
        )
    if settings.operator_token is not None and settings.operator_token == settings.viewer_token:
        raise WebRefusedError("viewers and operators have the same token; give each their own")
    return settings


def settings_from(config: Config, environ: MutableMapping[str, str]) -> WebSettings:
    """What a configuration and the environment say. Raises WebRefusedError.

    The tokens are taken out of the environment, so that services do not inherit them.
    """
    dashboard = config.dashboard
    operator = _from_environment(environ, _OPERATOR)
    viewer = _from_environment(environ, _VIEWER)
    return checked_settings(
        WebSettings(
            listen=dashboard.listen,
            is_listen_given=config.is_listen_given,
            operator_token=operator if dashboard.token_file is None else token_in(Path(dashboard.token_file)),
            viewer_token=(
                viewer if dashboard.viewer_token_file is None else token_in(Path(dashboard.viewer_token_file))
            ),
            allowed_hosts=(*dashboard.allowed_hosts, socket.gethostname().lower()),
            trusted_proxies=tuple(ip_network(each) for each in dashboard.trusted_proxies),
            sessions_path=Path(f"{store_path(config)}.sessions"),
        )
    )


def token_in(path: Path) -> str:
    """The token in a file that only its owner may read. Raises WebRefusedError."""
    try:
        # Not following a link at the last step would forbid what secret mounts do; the file itself is judged.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise WebRefusedError(f"the token file {path} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise WebRefusedError(f"the token file {path} is not a file")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise WebRefusedError(f"others may read the token file {path} (mode {mode:04o}); chmod 600 it")
        if status.st_uid not in {0, os.geteuid()}:
            raise WebRefusedError(f"the token file {path} belongs to another user")
        return usable_token(os.read(descriptor, _LONGEST_TOKEN + 2), f"the token file {path}")
    finally:
        os.close(descriptor)


def _from_environment(environ: MutableMapping[str, str], name: str) -> str | None:
    value = environ.pop(name, None)
    return None if value is None else usable_token(os.fsencode(value), name)


def usable_token(read: bytes, where: str) -> str:
    """The token in some bytes. Raises WebRefusedError."""
    token = read.strip()
    if not token:
        raise WebRefusedError(f"{where} holds no token")
    if len(token) < SHORTEST_TOKEN:
        raise WebRefusedError(
            f"the token in {where} is shorter than {SHORTEST_TOKEN} characters and could be guessed; make one"
            " with python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    if len(token) > _LONGEST_TOKEN or not all(0x21 <= byte <= 0x7E for byte in token):
        raise WebRefusedError(f"the token in {where} is too long, or not plain ASCII in one line")
    return token.decode("ascii")
