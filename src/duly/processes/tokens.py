"""Run tokens: how a process proves which run it belongs to, and which daemon started it.

All processes of a run inherit `DULY_RUN_TOKEN` in their environment. But any process of any user can have any
environment. So a token counts only if its last field is the HMAC of the other fields under the key of the
store. Only the daemon, which runs as the owner of the store, knows that key. A job that has dropped its
privileges knows the tokens of its own user's runs and can make no other: it cannot claim to belong to another
run, to a run that never was, or to another daemon.

    DULY_RUN_TOKEN=<scheduler>:<run>:<start of the daemon>:<code>
"""

import hmac
import os
from typing import NamedTuple

_CODE_DIGITS = 32


class TokenClaim(NamedTuple):
    """What a genuine token says."""

    run_id: int
    daemon_started: int
    """When the daemon started, in clock ticks since boot; 0 if unknown.

    Not its pid: another pid namespace has another number for the same process.
    """


class RunTokens:
    """Makes and checks the tokens of one store, for the daemon that started at *daemon_started*."""

    def __init__(self, key: bytes, scheduler_id: str, daemon_started: int) -> None:
        self._key = key
        self._scheduler_id = scheduler_id
        self._daemon_started = daemon_started

    def run_name(self, run_id: int) -> str:
        """The name of a run among all runs of all schedulers; it is no secret."""
        return f"{self._scheduler_id}:{run_id}"

    def token_of(self, run_id: int) -> str:
        """The token of a run of this daemon."""
        fields = f"{self.run_name(run_id)}:{self._daemon_started}"
        return f"{fields}:{self._code_of(fields)}"

    def claim_in(self, token: str) -> TokenClaim | None:
        """What *token* says, or None if this store has not made it."""
        fields, _, code = token.rpartition(":")
        # Bytes: texts are compared only if they are ASCII.
        if not hmac.compare_digest(os.fsencode(code), self._code_of(fields).encode()):
            return None
        # Nothing was parsed before this line: only our own digits are read as numbers.
        _, run_id, daemon_started = fields.rsplit(":", 2)
        return TokenClaim(int(run_id), int(daemon_started))

    def _code_of(self, fields: str) -> str:
        return hmac.new(self._key, os.fsencode(fields), "sha256").hexdigest()[:_CODE_DIGITS]
