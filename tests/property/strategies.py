"""What the property tests draw from: valid POSIX texts, odd zones, and instants where clocks misbehave."""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from tests.property.walker import LONGEST_REPEAT, transitions

# Ordinary zones, and one of every oddity: half hours, two hours, skipped and repeated days, midnight changes,
# offsets with seconds, Ramadan, no changes at all.
ZONES = (
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Africa/Monrovia",
    "Africa/Niamey",
    "America/Caracas",
    "America/Havana",
    "America/Los_Angeles",
    "America/New_York",
    "America/Nuuk",
    "America/Sao_Paulo",
    "America/St_Johns",
    "America/Toronto",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Manila",
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Atlantic/Azores",
    "Australia/Eucla",
    "Australia/Lord_Howe",
    "Europe/Amsterdam",
    "Europe/Berlin",
    "Europe/Dublin",
    "Europe/Lisbon",
    "Europe/London",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Pacific/Kwajalein",
    "UTC",
)
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _field(lowest: int, highest: int) -> st.SearchStrategy[str]:
    numbers = st.integers(lowest, highest).map(str)
    ranges = st.tuples(st.integers(lowest, highest), st.integers(lowest, highest)).map(
        lambda bounds: f"{min(bounds)}-{max(bounds)}"
    )
    lists = st.lists(numbers | ranges, min_size=1, max_size=4).map(",".join)
    return st.just("*") | lists


def _has_a_date(words: tuple[str, ...]) -> bool:
    """Whether the text is not refused for naming only days that its months do not have."""
    day, month, weekday = words[2:]
    if "*" in (day, weekday):
        earliest = 1 if day == "*" else min(int(part.split("-")[0]) for part in day.split(","))
        if month == "*":
            return True
        bounds = ([int(bound) for bound in part.split("-")] for part in month.split(","))
        months = (number for bound in bounds for number in range(bound[0], bound[-1] + 1))
        return any(earliest <= _LONGEST_MONTHS[number - 1] for number in months)
    return True


def texts() -> st.SearchStrategy[str]:
    """Any valid POSIX text."""
    fields = st.tuples(_field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12), _field(0, 6))
    return fields.filter(_has_a_date).map(" ".join)


def frequent_texts() -> st.SearchStrategy[str]:
    """Texts that are due every few days at least, so that a walker meets an occurrence soon."""
    days = st.just("* *") | st.sampled_from(["* 1-12", "1-28 *", "10-31 *"])
    fields = st.tuples(_field(0, 59), st.just("*") | _field(0, 23), days, st.just("*") | _field(0, 6))
    return fields.map(" ".join)


@st.composite
def near_transitions(draw: st.DrawFn, key: str) -> datetime:
    """An instant (UTC) in the neighbourhood of a clock change of the zone, to the second or finer."""
    changes = transitions(key)
    if not changes:
        return draw(st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis wants naive bounds
    change = draw(st.sampled_from(changes))
    span_s = int((abs(change.shift) + timedelta(hours=2)).total_seconds())
    seconds = draw(
        st.integers(-90, 90)
        | st.integers(-span_s, span_s)
        | st.integers(-span_s // 60, span_s // 60).map((60.0).__mul__)
    )
    fraction = draw(st.sampled_from([0, 0, 0, 1, 999_999]))
    return change.instant + timedelta(seconds=seconds, microseconds=fraction)


def far_from_transitions(key: str, instant: datetime) -> bool:
    """Whether no clock change of the zone lies within two days of an instant."""
    return all(abs(change.instant - instant) > LONGEST_REPEAT * 2 for change in transitions(key))
