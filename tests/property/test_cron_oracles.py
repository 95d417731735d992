"""`duly.cron` against cronsim and croniter, on days when no clock changes.

On the other days the three disagree on purpose (both peers move skipped minutes, and run frequent tasks in a
repeated hour again), so there the walker is the judge. Here all must say the same.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterBadDateError, croniter
from cronsim import CronSim
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from duly.cron import CronExpression
from tests.property.strategies import ZONES, far_from_transitions, texts
from tests.property.walker import transitions

TEXTS = (
    "* * * * *",
    "0 * * * *",
    "59 23 * * *",
    "0,15,30,45 * * * *",
    "0-29 8-17 * * 1-5",
    "0 9 * * 1-5",
    "30 4 1,15 * 5",
    "0 0 1 1 *",
    "0 0 29 2 *",
    "0 0 31 * *",
    "0 0 30,31 * *",
    "0 0 31 4 1",
    "0 0 13 * 5",
    "0 0 * * 0",
    "0 0 * * 6,0",
    "5 4 1-7 * 0",
    "0 12 1-31 * 1",
    "0 12 1 * 0-6",
    "0 22 * 12 1-5",
    "23 0-20,22 * * *",
)
ORIGINS = (
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2000, 2, 28, 23, 59, tzinfo=UTC),
    datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2026, 7, 15, 12, 30, 30, tzinfo=UTC),
    datetime(2037, 12, 31, 23, 0, tzinfo=UTC),
)
checked = settings(max_examples=250)
instants = st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants naive bounds


def by_cronsim(text: str, origin: datetime) -> Iterator[datetime]:
    return cast("Iterator[datetime]", CronSim(text, origin))


def by_croniter(text: str, origin: datetime) -> Iterator[datetime]:
    # To croniter a range such as 0-0 of weekdays means all seven.
    text = re.sub(r"\b(\d+)-\1\b", r"\1", text)
    return cast("Iterator[datetime]", croniter(text, origin, ret_type=datetime))


def is_understood(peer: "Peer", text: str) -> bool:
    """Croniter gives up on a day that its months never have, even when weekdays would do (`0 0 31 4 1`)."""
    if peer is by_cronsim:
        return True
    try:
        next(by_croniter(" ".join([*text.split()[:4], "*"]), ORIGINS[0]))
    except CroniterBadDateError:
        return False
    return True


Peer = Callable[[str, datetime], Iterator[datetime]]
each_peer = pytest.mark.parametrize("peer", [by_cronsim, by_croniter])


@pytest.mark.parametrize(
    ("peer", "text"),
    [(peer, text) for peer in (by_cronsim, by_croniter) for text in TEXTS if is_understood(peer, text)],
)
def test_known_texts(peer: Peer, text: str) -> None:
    """Texts as people write them are due when the peers say they are."""
    for origin in ORIGINS:
        assert CronExpression.parse(text).upcoming(origin, 20) == list(islice(peer(text, origin), 20))


@each_peer
@checked
@given(text=texts(), origin=instants)
def test_any_text_in_utc(peer: Peer, text: str, origin: datetime) -> None:
    """Any POSIX text is due in UTC when the peers say it is."""
    assume(is_understood(peer, text))
    note(f"CronExpression.parse({text!r}).upcoming(datetime.fromisoformat({origin.isoformat()!r}), 3)")
    assert CronExpression.parse(text).upcoming(origin, 3) == list(islice(peer(text, origin), 3))


@pytest.mark.heavy
@each_peer
@checked
@given(text=texts(), key=st.sampled_from(ZONES), origin=instants)
def test_any_text_between_clock_changes(peer: Peer, text: str, key: str, origin: datetime) -> None:
    """Any POSIX text is due in any zone when the peers say it is, until the clocks are about to change."""
    note(f"{text!r} in {key} after {origin.isoformat()}")
    assume(is_understood(peer, text) and far_from_transitions(key, origin))
    changes = (change.instant for change in transitions(key) if change.instant > origin)
    quiet_until = next(changes, origin + timedelta(days=3650)) - timedelta(days=2)
    moment = origin.astimezone(ZoneInfo(key))

    def until_change(found: Iterator[datetime]) -> list[datetime]:
        return list(islice(takewhile(lambda due: due.astimezone(UTC) < quiet_until, found), 3))

    ours = until_change(iter(CronExpression.parse(text).upcoming(moment, 3)))
    assert ours == until_change(peer(text, moment))


@checked
@given(text=texts(), origin=instants)
def test_backwards_in_utc(text: str, origin: datetime) -> None:
    """Looking back finds what cronsim finds when it runs in reverse."""
    note(f"{text!r} at or before {origin.isoformat()}")
    # Cronsim looks strictly before its origin; one minute on, that is at or before ours.
    minute_after = origin.replace(second=0, microsecond=0) + timedelta(minutes=1)
    expected = next(CronSim(text, minute_after, reverse=True))
    assert CronExpression.parse(text).previous_at_or_before(origin) == expected
