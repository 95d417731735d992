"""What is wrong with a configuration: with the file as a whole, or with one entry of it.

`ConfigError` is for callers: nothing of the file can be used. `EntryFault` stays inside this package: it ends
the check of one entry at its first fault, and becomes an `Invalid`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duly.errors import SchedulerError


@dataclass(frozen=True, slots=True)
class FileFault:
    """One thing that makes a file unusable, and its line if that is known."""

    reason: str
    line: int | None = None


class ConfigError(SchedulerError):
    """A configuration file that cannot be used at all; says where and why."""

    def __init__(self, path: Path, faults: Sequence[FileFault]) -> None:
        first = faults[0]
        where = f"{path}:{first.line}" if first.line is not None else str(path)
        super().__init__(
            f"{where}: {first.reason}",
            {"path": str(path), "line": first.line, "reason": first.reason},
        )
        self.path = path
        self.faults = tuple(faults)
        self.line = first.line
        self.reason = first.reason


class EntryFault(Exception):  # noqa: N818 - it is a fault of the entry, not an error of ours
    """The first fault of an entry, and the key it lies in."""

    def __init__(self, reason: str, key: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = key
