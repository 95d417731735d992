"""How close the minutes of an expression lie together, and how far apart. Pure.

Only arithmetic on fields, on a clock that is never changed: no zone, no DST.
"""

from datetime import date, timedelta
from functools import lru_cache, reduce
from itertools import pairwise
from operator import and_, or_
from typing import NamedTuple

from duly.cron.fields import values_of

# Every combination of date, weekday and leap year comes in 28 years, as long as no century is left out.
_FIRST_DATE, _DATES = date(2001, 1, 1), 28 * 365 + 7
_DAY_MINUTES = 24 * 60


class Gaps(NamedTuple):
    """The least and the longest time between two minutes that follow each other."""

    least_s: int
    longest_s: int


@lru_cache(maxsize=16_384)
def gaps(masks: tuple[int, ...], *, either_day: bool = False) -> Gaps | None:
    """The gaps of an expression; None if it never comes.

    In the mask of days bit 0 stands for the last day of a month. With *either_day* a date may match the days
    or the weekdays.
    """
    minutes, hours, *named = map(values_of, masks)
    day, month, weekday = (
        sum(dates[value] for value in values) for dates, values in zip(_dates(), named, strict=True)
    )
    dates = month & reduce(or_ if either_day else and_, (day, weekday))
    if not dates:
        return None
    times = [60 * hour + minute for hour in hours for minute in minutes]
    # The zeros between two ones are the dates between two that match.
    apart = [len(zeros) for zeros in f"{dates:b}".rstrip("0").split("1")[1:-1]] or [_DATES - 1]
    over_night = times[0] - times[-1]
    within = [later - earlier for earlier, later in pairwise(times)]
    nights = [_DAY_MINUTES * (days + 1) + over_night for days in (min(apart), max(apart))]
    return Gaps(60 * min(nights + within), 60 * max(nights + within))


@lru_cache(maxsize=1)
def _dates() -> tuple[list[int], list[int], list[int]]:
    """For each day (0: the last one), month and weekday the dates that have it, as the bits of a number.

    A file can hold thousands of calendars. With these masks each takes microseconds.
    """
    of_day, of_month, of_weekday = [0] * 32, [0] * 13, [0] * 7
    for number in range(_DATES):
        each = _FIRST_DATE + timedelta(days=number)
        for masks, value in ((of_day, each.day), (of_month, each.month), (of_weekday, each.isoweekday() % 7)):
            masks[value] |= 1 << number
        if (each + timedelta(days=1)).day == 1:
            of_day[0] |= 1 << number
    return of_day, of_month, of_weekday
