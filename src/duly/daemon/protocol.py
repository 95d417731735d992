"""How a client and the daemon talk: one JSON object a line, over a unix socket that only its owner may open.

A request is `{"op": ..., "params": {...}}`. The answer is `{"ok": true, "result": ...}`, or
`{"ok": false, "error": {"code": ..., "message": ...}}`. A streaming operation answers with several lines,
each with `"more": true`, and then with one without. A connection may carry one request after the other. Both
sides import this module, so it knows no loop and no database.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

LONGEST_REQUEST = 64 * 1024
"""Bytes; nothing that one asks for is longer."""

LONGEST_PATH = 107
"""Bytes that the address of a unix socket has room for."""

NOT_FOUND = "not_found"
FAILED = "failed"
INVALID_CONFIGURATION = "invalid_configuration"
DISABLED = "disabled"
BAD_REQUEST = "bad_request"
BUSY = "busy"
UNREACHABLE = "unreachable"

EXITS: Mapping[str, int] = {
    NOT_FOUND: 3,
    FAILED: 1,
    INVALID_CONFIGURATION: 4,
    DISABLED: 0,
    BAD_REQUEST: 2,
    BUSY: 1,
    UNREACHABLE: 69,
}
"""What a command ends with for each code of an error."""


ABSENT: Mapping[str, str] = {
    "down": "the daemon is not running",
    "silent": "the daemon says nothing; is it stopped or overloaded?",
    "closed": "the daemon's socket is another user's, so nothing is known of the daemon",
}
"""The states of a daemon that does not answer."""


class OperationError(Exception):
    """An operation was refused or failed: a code for machines, a sentence for people, and the facts."""

    def __init__(self, code: str, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = facts


class UnreachableError(Exception):
    """No daemon answers at the socket.

    *state*: what can be said of it (`ABSENT`). *is_asked*: it has the request, and may yet act on it.
    """

    def __init__(self, path: str, reason: str, *, state: str = "down", is_asked: bool = False) -> None:
        super().__init__(f"no daemon answers at {path}: {reason}")
        self.path = path
        self.reason = reason
        self.state = state
        self.is_asked = is_asked


class PathTooLongError(Exception):
    """The path of a socket does not fit into its address."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the path of the socket has {len(os.fsencode(path))} bytes and may have {LONGEST_PATH}: {path};"
            " set a shorter one with socket = under [supervisor]"
        )
        self.path = path


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """What a client asks."""

    op: str
    params: dict[str, Any] = {}


class Response(msgspec.Struct, omit_defaults=True):
    """What it gets: the result, or an error. *more*: other lines follow."""

    ok: bool
    result: Any = None
    error: dict[str, Any] | None = None
    more: bool = False


# What a fact of an error holds is not always plain: another error, a path.
_encoder = msgspec.json.Encoder(enc_hook=str)
_requests = msgspec.json.Decoder(Request)
_answers = msgspec.json.Decoder(Response)


def checked_path(path: str) -> str:
    """The path, if it fits into the address of a socket. Raises PathTooLongError."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise PathTooLongError(path)
    return path


def request_line(op: str, params: Mapping[str, Any]) -> bytes:
    return _line(Request(op, dict(params)))


def request_from(line: bytes) -> Request:
    try:
        return _requests.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"not a request: {error}; send one JSON object a line, with op and params"
        raise OperationError(BAD_REQUEST, message) from error


def result_line(result: Any, *, more: bool = False) -> bytes:
    return _line(Response(ok=True, result=result, more=more))


def error_line(error: OperationError) -> bytes:
    facts = {**error.facts, "code": error.code, "message": error.message}
    return _line(Response(ok=False, error=facts))


def _line(said: Request | Response) -> bytes:
    try:
        return _encoder.encode(said) + b"\n"
    except UnicodeEncodeError:
        # A path or an argument may hold bytes that are no text, and may be in any answer.
        return _encoder.encode(sayable(msgspec.to_builtins(said, enc_hook=str))) + b"\n"


def sayable(value: Any) -> Any:
    """The same, with whatever is no text escaped."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {sayable(key): sayable(item) for key, item in value.items()}
    return [sayable(item) for item in value] if isinstance(value, list | tuple) else value


def answer_from(line: bytes) -> Response:
    """The answer in a line. Raises OperationError if there is an error in it, or no answer at all."""
    try:
        answer = _answers.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OperationError(FAILED, f"what answered is no duly daemon: {error}") from error
    if answer.ok:
        return answer
    facts = dict(answer.error or {})
    code, message = str(facts.pop("code", FAILED)), str(facts.pop("message", "no reason was given"))
    raise OperationError(code, message, **facts)


Source = Literal["daemon", "store"]
"""Where an answer comes from: a live daemon, or the store that it left."""
