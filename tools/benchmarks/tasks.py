"""The tasks that every contestant is given: names, cron texts, and a callback that does nothing."""

from datetime import UTC, datetime, timedelta
from itertools import combinations, islice
from typing import Any

DUE = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
"""The minute in which the tasks made here with *due* are all due; a Monday."""

BEFORE_DUE = DUE - timedelta(seconds=30)

_RETRY_DELAY = timedelta(minutes=5)
_SHARED_TEXTS = 50

Registration = tuple[str, str, Any, timedelta]


async def idle() -> None:
    """Do nothing, as a callback."""


def registrations(
    n: int, *, distinct: bool = False, due: bool = False, callback: Any = idle
) -> list[Registration]:
    """*n* registrations: fifty cron texts between them, or one each; all due at `DUE`, or none near it."""
    texts = cron_texts(n if distinct else _SHARED_TEXTS, due=due)
    return [(f"task-{i:06}", texts[i % len(texts)], callback, _RETRY_DELAY) for i in range(n)]


def cron_texts(count: int, *, due: bool) -> list[str]:
    """That many different daily cron texts. None matches the minute before `DUE`."""
    first, hours = ("0,", "9") if due else ("", "3")
    size = 1
    texts: list[str] = []
    while len(texts) < count:
        subsets = islice(combinations(range(1, 59), size), count - len(texts))
        texts.extend(f"{first}{','.join(map(str, subset))} {hours} * * *" for subset in subsets)
        size += 1
    return texts
