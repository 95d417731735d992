"""A cron expression in plain English.

Exact before elegant: two expressions get the same sentence only when they are due at the same times. A
pattern that people recognise (every 15 minutes, Monday to Friday, the 1st to 7th) gets its name; whatever
has no name is listed in full.
"""

from duly.cron.expression import CronExpression
from duly.cron.fields import MONTH_NAMES, WEEKDAY_NAMES, runs_of, values_of
from duly.formatting import counted, joined

MONTHS = tuple(map(str.capitalize, MONTH_NAMES))
# Monday first, so that a weekend is a run of two and Friday to Sunday a run of three.
WEEKDAYS = tuple(map(str.capitalize, (*WEEKDAY_NAMES[1:], WEEKDAY_NAMES[0])))
_MOST_LISTED_TIMES = 4
_SHORTEST_PATTERN = 5


def in_english(expression: CronExpression) -> str:
    """When *expression* is due, as one would say it: "At 09:00, Monday to Friday"."""
    minutes, hours, days, months, weekdays = map(values_of, expression.masks)
    dates = _dates(days, months, weekdays, either=expression.either_day)
    if not dates and len(hours) < 24:
        dates = "every day"
    return ", ".join(filter(None, (_times(minutes, hours), dates)))


# --- times of the day ---


def _times(minutes: list[int], hours: list[int]) -> str:
    if len(minutes) * len(hours) <= _MOST_LISTED_TIMES:
        return "At " + _and([_clock(hour, minute) for hour in hours for minute in minutes])
    if pace := _pace_around_the_hour(minutes):
        return _pace_text(pace, minutes, hours)
    if len(minutes) == 1:
        return _once_an_hour(minutes[0], hours)
    if len(hours) == 1 and _is_run(minutes):
        return f"Every minute from {_clock(hours[0], minutes[0])} to {_clock(hours[0], minutes[-1])}"
    if step := _step(minutes):
        past = f"At every {_ordinal(step)} minute from {minutes[0]} to {minutes[-1]}"
    else:
        past = f"At minutes {_numbers(minutes)}"
    return f"{past} past {_hours(hours)}"


def _pace_around_the_hour(minutes: list[int]) -> int:
    """Every how many minutes, when the pace goes on from one hour into the next; otherwise 0."""
    pace = 60 // len(minutes)
    return (
        pace if len(minutes) > 1 and minutes == list(range(minutes[0], 60, pace)) and minutes[0] < pace else 0
    )


def _pace_text(pace: int, minutes: list[int], hours: list[int]) -> str:
    every = "Every minute" if pace == 1 else f"Every {pace} minutes"
    if len(hours) == 24:
        return every if minutes[0] == 0 else f"{every}, from {counted(minutes[0], 'minute')} past the hour"
    if _is_run(hours):
        return f"{every} from {_clock(hours[0], minutes[0])} to {_clock(hours[-1], minutes[-1])}"
    beginning = f", from {counted(minutes[0], 'minute')}" if minutes[0] else ""
    return f"{every}{beginning} past {_hours(hours)}" if beginning else f"{every} of {_hours(hours)}"


def _once_an_hour(minute: int, hours: list[int]) -> str:
    if len(hours) == 24:
        return "Every hour" if minute == 0 else f"At {counted(minute, 'minute')} past every hour"
    first_to_last = f"from {_clock(hours[0], minute)} to {_clock(hours[-1], minute)}"
    if _is_run(hours):
        return f"Every hour {first_to_last}"
    if step := _step(hours):
        return f"Every {step} hours {first_to_last}"
    return "At " + _and([_clock(hour, minute) for hour in hours])


def _hours(hours: list[int]) -> str:
    if len(hours) == 24:
        return "every hour"
    if step := _step(hours):
        return f"every {_ordinal(step)} hour from {hours[0]} to {hours[-1]}"
    return f"the {'hours' if len(hours) > 1 else 'hour'} {_numbers(hours)}"


# --- dates ---


def _dates(days: list[int], months: list[int], weekdays: list[int], *, either: bool) -> str:
    """Which days; empty for all of them."""
    any_day, any_weekday = len(days) == 31, len(weekdays) == 7
    in_months = "" if len(months) == 12 else f"in {_names_text(months, MONTHS, first=1)}"
    if (any_day or any_weekday) if either else (any_day and any_weekday):
        return f"every day {in_months}" if in_months else ""
    if either:
        both = f"on {_days(days)} of the month and on {_either_weekdays(weekdays)} (either is enough)"
        return ", ".join(filter(None, (both, in_months)))
    if not any_day and not any_weekday:
        both = f"on {_days(days)} of {in_months.removeprefix('in ') or 'the month'}"
        return f"{both} if that is {_one_of_weekdays(weekdays)}"
    if any_weekday:
        return f"on {_days(days)} of {in_months.removeprefix('in ') or 'the month'}"
    return ", ".join(filter(None, (_weekdays(weekdays), in_months)))


def _days(days: list[int]) -> str:
    if step := _step(days):
        return f"every {_ordinal(step)} day from the {_ordinal(days[0])} to the {_ordinal(days[-1])}"
    return "the " + _and(_with_ranges([_ordinal(day) for day in range(32)], days))


def _weekdays(weekdays: list[int]) -> str:
    since_monday = sorted((weekday - 1) % 7 for weekday in weekdays)
    names = _names_text(since_monday, WEEKDAYS, first=0)
    return names if _is_run(since_monday) and len(since_monday) > 2 else f"every {names}"


def _either_weekdays(weekdays: list[int]) -> str:
    names = _weekdays(weekdays)
    return names if names.startswith("every ") else f"every day from {names}"


def _one_of_weekdays(weekdays: list[int]) -> str:
    return joined([f"a {WEEKDAYS[day]}" for day in sorted((weekday - 1) % 7 for weekday in weekdays)])


# --- lists ---


def _names_text(values: list[int], names: tuple[str, ...], *, first: int) -> str:
    return _and(_with_ranges(names, [value - first for value in values]))


def _numbers(values: list[int]) -> str:
    return _and(_with_ranges([str(value) for value in range(60)], values))


def _with_ranges(names: list[str] | tuple[str, ...], values: list[int]) -> list[str]:
    """The names of the values, runs of three and more as "first to last"."""
    shortened: list[str] = []
    for run in runs_of(values):
        if len(run) > 2:
            shortened.append(f"{names[run[0]]} to {names[run[-1]]}")
        else:
            shortened += [names[value] for value in run]
    return shortened


def _and(items: list[str]) -> str:
    return joined(items, "and")


def _step(values: list[int]) -> int:
    """The distance between values that are evenly spread, when they are many and apart; otherwise 0."""
    if len(values) < _SHORTEST_PATTERN:
        return 0
    step = values[1] - values[0]
    return step if step > 1 and values == list(range(values[0], values[-1] + 1, step)) else 0


def _is_run(values: list[int]) -> bool:
    return values[-1] - values[0] == len(values) - 1


def _clock(hour: int, minute: int) -> str:
    return f"{hour:02}:{minute:02}"


def _ordinal(number: int) -> str:
    ending = "th" if 11 <= number <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
