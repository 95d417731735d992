"""What the peers are asked, and how their firings become words.

A question is a cron text, a zone and a stretch of time; the answer is worked out from the firings in it and
from nothing else. Whatever a peer raises becomes the answer, so that no cell of the table is ever typed.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from tools.peers.adapters import Asked, NotApplicableError, Peer

_BERLIN, _LORD_HOWE, _UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("UTC")
_MOST = 2000
"""More firings than any question is after."""
_PATIENCE_S = 5.0


class StuckError(Exception):
    """A firing that is not later than the one before."""


class SlowError(Exception):
    """No answer in time."""


@dataclass(frozen=True, slots=True)
class Firing:
    """A firing as a peer names it. One without a zone can only mean the clocks of the zone asked for."""

    told: datetime
    zone: ZoneInfo

    @property
    def at(self) -> datetime:
        """When it really is."""
        aware = self.told if self.told.tzinfo is not None else self.told.replace(tzinfo=self.zone)
        return aware.astimezone(UTC)

    @property
    def face(self) -> datetime:
        """What the peer calls that time."""
        own = self.told.astimezone(self.zone) if self.told.tzinfo not in {None, self.zone} else self.told
        return own.replace(tzinfo=None, fold=0)

    @property
    def is_shown(self) -> bool:
        """Whether a clock shows what the peer calls it."""
        return self.at.astimezone(self.zone).replace(tzinfo=None, fold=0) == self.face

    @property
    def words(self) -> str:
        """The time, with the offset that tells the two times of a fold apart."""
        shown = self.at.astimezone(self.zone)
        if not self.is_shown and self.told.tzinfo is None:
            return f"{self.face:%H:%M}, which no clock shows"
        offset = f"{shown:%z}"
        told = "" if self.is_shown else f" (called {self.face:%H:%M})"
        return f"{shown:%H:%M} {offset[:3]}{'' if offset.endswith('00') else ':' + offset[3:]}{told}"


Words = Callable[[Sequence[Firing]], str]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: the firings of *text* after *after*, up to and with *until*, put in *words*."""

    topic: str
    says: str
    text: str
    after: datetime
    until: datetime
    words: Words

    def answer(self, peer: Peer) -> str:
        """The words for what *peer* does."""
        assert isinstance(self.after.tzinfo, ZoneInfo)
        try:
            with _patience():
                try:
                    asked = peer.read(self.text, self.after.tzinfo)
                except SlowError:
                    raise
                except NotApplicableError:
                    return "-"
                except Exception as error:
                    return f"refused: {type(error).__name__}"
                return self.words(self._firings(asked))
        except SlowError:
            return f"no answer in {_PATIENCE_S:.0f} s"
        except Exception as error:
            return f"raises {type(error).__name__}"

    def _firings(self, asked: Asked) -> list[Firing]:
        zone = self.after.tzinfo
        assert isinstance(zone, ZoneInfo)
        firings: list[Firing] = []
        last = Firing(self.after, zone)
        for told in asked(self.after, self.until):
            firing = Firing(told, zone)
            if firing.at > self.until.astimezone(UTC) or len(firings) == _MOST:
                break
            if firing.at <= last.at and firing.face <= last.face:
                raise StuckError
            last = firing
            firings.append(firing)
        return firings


@contextmanager
def _patience() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise SlowError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def faces(firings: Sequence[Firing]) -> str:
    """When it fires, as the clocks show it."""
    return ", ".join(firing.words for firing in firings) or "never"


def number(firings: Sequence[Firing]) -> str:
    """How often it fires."""
    unreal = sum(not firing.is_shown for firing in firings)
    return f"{len(firings)} times" + (f", {unreal} at a time that no clock shows" if unreal else "")


def minutes(firings: Sequence[Firing]) -> str:
    """At which minutes of an hour it fires."""
    found = sorted({firing.face.minute for firing in firings})
    if len(found) == 60:
        return "every minute"
    if len(found) > 6:
        return f"{len(found)} minutes: {_spelled(found[:3])} ..."
    return _spelled(found) or "never"


def _spelled(found: list[int]) -> str:
    return " ".join(f":{minute:02}" for minute in found)


def days(**meanings: Callable[[date], bool]) -> Words:
    """Which of *meanings* names exactly the days on which it fires, by name with _ for a space."""

    def words(firings: Sequence[Firing]) -> str:
        found = {firing.face.date() for firing in firings}
        for name, holds in meanings.items():
            if found == {day for day in _january_to_april() if holds(day)}:
                return name.replace("_", " ")
        first = f", first {min(found)}" if found else ""
        return f"{len(found)} days{first}" if found else "never"

    return words


def _january_to_april() -> Iterator[date]:
    return (date(2026, 1, 1) + timedelta(days=day) for day in range(120))


def sixth(firings: Sequence[Firing]) -> str:
    """What `0 0 * * * *` fires at, and so what the sixth field is."""
    found = [(firing.face.hour, firing.face.minute, firing.face.second) for firing in firings]
    meanings: Mapping[str, list[tuple[int, int, int]]] = {
        "seconds come first": [(hour, 0, 0) for hour in range(24)],
        "seconds come last": [(0, 0, second) for second in range(60)],
        "the year comes last": [(0, 0, 0)],
    }
    for name, expected in meanings.items():
        if found == expected:
            return name
    return f"{len(found)} firings a day"


def _on_a_day(says: str, text: str, words: Words, zone: ZoneInfo, day: date) -> Question:
    """From the first minute of a day to the last, as the clocks of *zone* count."""
    eve = day - timedelta(days=1)
    after = datetime(eve.year, eve.month, eve.day, 23, 59, tzinfo=zone)
    until = datetime(day.year, day.month, day.day, 23, 59, tzinfo=zone)
    return Question("clocks", says, text, after, until, words)


def _in_four_months(says: str, text: str, words: Words) -> Question:
    """From 1 January to 30 April."""
    after = datetime(2025, 12, 31, 23, 59, tzinfo=_UTC)
    return Question("days", says, text, after, datetime(2026, 4, 30, 23, 59, tzinfo=_UTC), words)


def _in_an_hour(says: str, text: str) -> Question:
    """From 10:00 to 10:59."""
    after = datetime(2026, 1, 5, 9, 59, tzinfo=_UTC)
    return Question("syntax", says, text, after, datetime(2026, 1, 5, 10, 59, tzinfo=_UTC), minutes)


def _is(weekday: int) -> Callable[[date], bool]:
    return lambda day: day.isoweekday() == weekday


_WEEKDAY = days(Sunday=_is(7), Monday=_is(1), Saturday=_is(6), every_day=lambda _: True)
QUESTIONS: Sequence[Question] = (
    _on_a_day("02:30, which is skipped (Berlin, 29 March)", "30 2 * * *", faces, _BERLIN, date(2026, 3, 29)),
    _on_a_day(
        "02:30, which comes twice (Berlin, 25 October)", "30 2 * * *", faces, _BERLIN, date(2026, 10, 25)
    ),
    Question(
        "clocks",
        "every minute of the two hours from the first 02:00 to 03:00 (Berlin, 25 October)",
        "* * * * *",
        datetime(2026, 10, 25, 1, 59, tzinfo=_BERLIN),
        datetime(2026, 10, 25, 2, 59, fold=1, tzinfo=_BERLIN),
        number,
    ),
    _on_a_day("every hour of that day, which has 25", "0 * * * *", number, _BERLIN, date(2026, 10, 25)),
    _on_a_day(
        "every hour of a day that has 23 (Berlin, 29 March)", "0 * * * *", number, _BERLIN, date(2026, 3, 29)
    ),
    _on_a_day(
        "every half hour while half an hour comes twice (Lord Howe, 5 April)",
        "0,30 * * * *",
        number,
        _LORD_HOWE,
        date(2026, 4, 5),
    ),
    _on_a_day(
        "every half hour while half an hour is skipped (Lord Howe, 4 October)",
        "0,30 * * * *",
        number,
        _LORD_HOWE,
        date(2026, 10, 4),
    ),
    _on_a_day(
        "01:45, which comes twice (Lord Howe, 5 April)", "45 1 * * *", faces, _LORD_HOWE, date(2026, 4, 5)
    ),
    _on_a_day(
        "02:15, which is skipped (Lord Howe, 4 October)", "15 2 * * *", faces, _LORD_HOWE, date(2026, 10, 4)
    ),
    _in_four_months(
        "day and weekday both given",
        "0 0 13 * 1",
        days(
            the_13th_or_a_Monday=lambda day: day.day == 13 or day.isoweekday() == 1,
            Monday_the_13th=lambda day: day.day == 13 and day.isoweekday() == 1,
            Tuesday_the_13th=lambda day: day.day == 13 and day.isoweekday() == 2,
        ),
    ),
    _in_four_months("weekday 0", "0 0 * * 0", _WEEKDAY),
    _in_four_months("weekday 1", "0 0 * * 1", days(Monday=_is(1), Tuesday=_is(2), Sunday=_is(7))),
    _in_four_months("weekday 7", "0 0 * * 7", _WEEKDAY),
    _in_four_months("a weekday by name", "0 0 * * mon", _WEEKDAY),
    _in_four_months("a month by name", "0 0 * jan *", days(January=lambda day: day.month == 1)),
    _in_four_months("a day that never comes", "0 0 30 2 *", days()),
    _in_an_hour("steps", "*/15 * * * *"),
    _in_an_hour("steps from a number", "5/15 * * * *"),
    _in_an_hour("steps of a range", "10-30/10 * * * *"),
    _in_an_hour("a step of nothing", "*/0 * * * *"),
    _in_an_hour("a number too large", "60 * * * *"),
    _in_an_hour("a range that runs backwards", "5-1 * * * *"),
    Question(
        "syntax",
        "six fields",
        "0 0 * * * *",
        datetime(2026, 1, 4, 23, 59, 59, tzinfo=_UTC),
        datetime(2026, 1, 5, 23, 59, 59, tzinfo=_UTC),
        sixth,
    ),
    _in_an_hour("four fields", "5 * * *"),
    _in_an_hour("an empty element", "5,,10 * * * *"),
    _in_an_hour("an empty element at the end", "5, * * * *"),
    _in_an_hour("Arabic-Indic digits", "\u0665 * * * *"),
    _in_an_hour("a sign", "+5 * * * *"),
    _in_an_hour("an underscore", "1_0 * * * *"),
    _in_an_hour("spaces around", "  5 * * * *  "),
    _in_an_hour("two spaces between", "5  * * * *"),
    _in_an_hour("a tab between", "5\t* * * *"),
    _in_an_hour("a newline at the end", "5 * * * *\n"),
    _in_an_hour("a no-break space between", "5\u00a0* * * *"),
)
"""In the order of the rows."""
