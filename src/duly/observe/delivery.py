"""Delivers one message of a notification: to a URL, by e-mail or through a command. Blocks.

Whatever goes wrong is a `DeliveryError` that names no secret. Nothing is tried twice here.
"""

import json
import os
import signal
import smtplib
import socket
import ssl
import subprocess
from contextlib import suppress
from datetime import UTC
from email.header import Header
from email.message import EmailMessage
from email.utils import format_datetime
from ipaddress import ip_address
from tempfile import TemporaryFile
from urllib.parse import unquote, urlsplit

import msgspec

from duly.config.schema import Notify
from duly.formatting import one_line, shortened
from duly.instant import Instant, datetime_at
from duly.observe.deadman import PingError, ping

_TIMEOUT_S = 10.0
_COMMAND_TIMEOUT_S = 60.0
_LONGEST_TITLE = 200
_ALARMING = {"failure", "hung", "missed", "silence", "digest"}


class DeliveryError(Exception):
    """A message was not delivered; says why, in one sentence."""


class Message(msgspec.Struct, kw_only=True):
    """The text of a notification. As JSON it is what a webhook and a command get."""

    id: str
    """The same each time that this message is tried."""
    notify: str
    event: str
    """failure, hung, missed, silence, recovery; digest of several, or test."""
    jobs: list[str]
    host: str
    at: str
    text: str
    output: str = ""
    """The last lines of the run, if there is one."""
    run: int | None = None

    @property
    def title(self) -> str:
        """The first line, and of which host it is: many write to the same people."""
        first, *_ = self.text.split("\n", 1)
        return shortened(one_line(f"{self.host}: {first}"), _LONGEST_TITLE)

    @property
    def body(self) -> str:
        return f"{self.text}\n\n{self.output}" if self.output else self.text


def deliver(notify: Notify, message: Message, at_us: Instant) -> None:
    """Deliver *message*, which is about *at_us*. Raises DeliveryError."""
    try:
        if notify.webhook is not None:
            body, headers = _posted(notify.format, message)
            ping(notify.webhook.secret, body=body, headers=headers, timeout_s=_TIMEOUT_S)
        elif notify.email:
            _mail(notify, message, at_us)
        else:
            _call(notify.command, message)
    except PingError as error:
        assert notify.webhook is not None
        raise DeliveryError(f"{notify.webhook.host}: {error}") from None


def _posted(kind: str, message: Message) -> tuple[bytes, dict[str, str]]:
    if kind == "ntfy":
        is_alarm = message.event in _ALARMING
        headers = {
            "Title": Header(message.title, "utf-8" if not message.title.isascii() else None, 9999).encode(),
            "Priority": "high" if is_alarm else "default",
            "Tags": "rotating_light" if is_alarm else "white_check_mark",
        }
        return message.body.encode(), headers
    if kind == "slack":
        # A fence in the output must not end ours; <, > and & are Slack's own.
        output = message.output.replace("```", "'''")
        fenced = f"\n```\n{output}\n```" if output else ""
        text = (
            f"{message.host}: {message.text}{fenced}".replace("&", "&amp;")
            .replace("<", "&lt;")
            .replace(">", "&gt;")
        )
        return json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
    return msgspec.json.encode(message), {"Content-Type": "application/json"}


def _mail(notify: Notify, message: Message, at_us: Instant) -> None:
    parts = urlsplit("smtp://localhost" if notify.smtp is None else notify.smtp.secret)
    host, context = parts.hostname or "", ssl.create_default_context()
    mail = EmailMessage()
    mail["From"] = notify.sender or f"duly@{socket.getfqdn()}"
    mail["To"] = ", ".join(notify.email)
    mail["Subject"] = f"[duly] {message.title}"
    mail["Date"] = format_datetime(datetime_at(at_us, UTC))
    mail["Message-ID"] = f"<{message.id}@duly.{message.host}>"
    mail.set_content(message.body)
    try:
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                host, parts.port or 465, timeout=_TIMEOUT_S, context=context
            )
        else:
            server = smtplib.SMTP(host, parts.port or (25 if _is_here(host) else 587), timeout=_TIMEOUT_S)
        with server:
            server.ehlo()
            # Only a server on this host may do without: anybody between could take the password.
            if parts.scheme == "smtp" and (not _is_here(host) or server.has_extn("starttls")):
                server.starttls(context=context)
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(mail)
    except smtplib.SMTPResponseException as error:
        said = one_line(str(error.smtp_error, "utf-8", "replace") if error.smtp_error else "")  # type: ignore[arg-type]
        raise DeliveryError(f"{host}: answered with {error.smtp_code} {said}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
        raise DeliveryError(f"{host}: {one_line(str(said))}") from None


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _call(command: tuple[str, ...], message: Message) -> None:
    env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    env |= {"DULY_EVENT": message.event, "DULY_JOBS": " ".join(message.jobs), "DULY_TITLE": message.title}
    # Files, not pipes: what it leaves in the background may hold a pipe open for ever.
    with TemporaryFile() as given, TemporaryFile() as errors:
        given.write(msgspec.json.encode(message))
        given.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - the command is the operator's own
                command, env=env, stdin=given, stdout=errors, stderr=errors, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise DeliveryError(f"{command[0]}: {getattr(error, 'strerror', None) or error}") from None
        try:
            # This blocks a thread that delivers one message after the other: a command may not hang in it.
            code = process.wait(_COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise DeliveryError(f"{command[0]}: did not end within {_COMMAND_TIMEOUT_S:g} seconds") from None
        if code:
            errors.seek(-min(errors.seek(0, os.SEEK_END), 1000), os.SEEK_END)
            last = one_line(errors.read().decode(errors="replace").strip().rpartition("\n")[2])
            raise DeliveryError(f"{command[0]}: exited with code {code}{f': {last}' if last else ''}")
