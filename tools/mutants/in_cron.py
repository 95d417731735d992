"""Mutants of the calendar: clock changes, months, and the two ways to name a day."""

from tools.mutants.mutant import Mutant, mutant

CIVIL, EXPRESSION = "cron/civil.py", "cron/expression.py"

OF_CRON: tuple[Mutant, ...] = (
    mutant(
        "second-occurrence-runs",
        CIVIL,
        "            lo, hi = max(max(begin, start) + offset, shown_until), min(instant, end) + offset\n",
        "            lo, hi = max(begin, start) + offset, min(instant, end) + offset\n",
        wrong="When the clocks are put back, a minute that is shown twice is due twice.",
    ),
    mutant(
        "only-second-occurrence-runs",
        CIVIL,
        "            lo, hi = max(max(begin, start) + offset, shown_until), min(instant, end) + offset\n",
        "            lo = max(begin, start) + offset\n"
        "            hi = min(instant, end) + min(offset, self._offset(instant))\n",
        wrong="When the clocks are put back, a minute that is shown twice is due when it is shown again.",
    ),
    mutant(
        "skipped-minute-runs-after-gap",
        EXPRESSION,
        "                found = self._face_at_or_after(max(found, span.lo))\n",
        "                found = max(found, span.lo)\n",
        wrong="A minute that the clocks skip is due when they have been put forward.",
    ),
    mutant(
        "clock-change-not-looked-up",
        EXPRESSION,
        "                    hour, minute = rest.hour_from[0], self._first_minute\n"
        "                    found = datetime(moment.year, month, day, hour, minute, 0, 0, zone)\n"
        "                    return (\n"
        "                        found if found < hi or line.shows_once(found) else self._searched_after(line, moment)\n"
        "                    )\n",
        "                    hour, minute = rest.hour_from[0], self._first_minute\n"
        "                    return datetime(moment.year, month, day, hour, minute, 0, 0, zone)\n",
        wrong="A due on a later day is not checked against a change of the clocks in between.",
    ),
    mutant(
        "span-end-included",
        EXPRESSION,
        "            while not span.lo <= found < span.hi:\n                span = next(line.at_or_after(found))",
        "            while not span.lo <= found <= span.hi:\n                span = next(line.at_or_after(found))",
        wrong="The first minute that the clocks skip counts as shown: `<=` for `<`.",
    ),
    mutant(
        "day-and-weekday-both",
        EXPRESSION,
        "        return tuple([days | weeks >> shift & _EVERY_DAY for shift in _SHIFTS])\n",
        "        return tuple([days & weeks >> shift & _EVERY_DAY for shift in _SHIFTS])\n",
        wrong="An expression with a day and a weekday is due when both match instead of either.",
    ),
    mutant(
        "week-begins-on-monday",
        EXPRESSION,
        "_SHIFTS = (1, 2, 3, 4, 5, 6, 0)\n",
        "_SHIFTS = (0, 1, 2, 3, 4, 5, 6)\n",
        wrong="Weekday 0 is taken for Monday.",
    ),
    mutant(
        "months-of-28-days",
        EXPRESSION,
        "                if day <= 28 or day <= _month(moment.year, month)[1]:\n",
        "                if day <= 28:\n",
        wrong="Days after the 28th are skipped.",
    ),
    mutant(
        "minute-kept-in-later-hour",
        EXPRESSION,
        "                    hour = rest.hour_from[hour + 1]\n                    minute = self._first_minute\n",
        "                    hour = rest.hour_from[hour + 1]\n                    minute = moment.minute\n",
        wrong="The first due of a later hour is sought at the minute of the hour before.",
    ),
    mutant(
        "hour-field-ignored",
        EXPRESSION,
        "later = self._minutes >> minute + 1 if rest.hour_from[hour] == hour else 0\n",
        "later = self._minutes >> minute + 1\n",
        wrong="On a day that matches, the hours that do not are due as well.",
    ),
)
