"""A list of registrations as a cluster knows it: what is in it, and its fingerprint.

Two members have the same list if their fingerprints are equal: the same names, cron texts, retry delays and
zone, in whatever order. Callbacks are no part of it; each member brings its own.
"""

import hashlib
from collections.abc import Sequence
from datetime import tzinfo

import msgspec

from duly.core.registration import Callback, Registration
from duly.core.task import Task


class Listing:
    """A list and the callbacks of this process for it."""

    def __init__(self, registrations: Sequence[Registration], zone: tzinfo) -> None:
        self.registrations = registrations
        self._by_name = {item.name: item for item in registrations}
        rows = sorted((item.name, item.expression.text, item.retry_delay_us) for item in registrations)
        text = msgspec.json.encode([str(zone), [[_bytes(name), *rest] for name, *rest in rows]])
        self.fingerprint = hashlib.sha256(text).hexdigest()

    def callback_for(self, task: Task) -> Callback | None:
        """The callback for a task exactly as it is registered here; None if it is not, or otherwise."""
        item = self._by_name.get(task.name)
        if item is None or (item.expression.text, item.retry_delay_us) != (
            task.schedule.text,
            task.retry_delay_us,
        ):
            return None
        return item.callback


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogatepass")
