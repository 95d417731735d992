"""What to write instead of a refused text, and where there is nothing to write."""

from datetime import UTC, datetime
from itertools import islice

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from duly.cron import CronExpression
from duly.cron.spelling import posix_spelling


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # steps
        ("*/15 * * * *", "0,15,30,45 * * * *"),
        ("10-40/10 * * * *", "10,20,30,40 * * * *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("*/1 * * * *", "* * * * *"),
        ("*/59 * * * *", "0,59 * * * *"),
        ("*/60 * * * *", "0 * * * *"),
        ("0 */6 * * *", "0 0,6,12,18 * * *"),
        ("0 0 */10 * *", "0 0 1,11,21,31 * *"),
        ("0 0 1 */3 *", "0 0 1 1,4,7,10 *"),
        ("0 0 * * */2", "0 0 * * 0,2,4,6"),
        ("0 0 1 1/6 *", "0 0 1 1,7 *"),
        ("1-3,*/30 * * * *", "0-3,30 * * * *"),
        ("*/015 * * * *", "0,15,30,45 * * * *"),
        # names
        ("0 9 * * mon-fri", "0 9 * * 1-5"),
        ("0 9 * * MON,Wed,fri", "0 9 * * 1,3,5"),
        ("0 9 * * Monday-Friday", "0 9 * * 1-5"),
        ("0 0 1 jan *", "0 0 1 1 *"),
        ("0 0 1 jan,JUL *", "0 0 1 1,7 *"),
        ("0 0 1 January-March *", "0 0 1 1-3 *"),
        ("0 0 * may mon-5", "0 0 * 5 1-5"),
        ("0 0 * * sun-sat", "0 0 * * *"),
        # Sunday is 7
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 5-7", "0 0 * * 0,5,6"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * 7-3", "0 0 * * 0-3"),
        ("0 0 * * 1-7", "0 0 * * *"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 6,7", "0 0 * * 0,6"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("0 0 * * 1-7/2", "0 0 * * 0,1,3,5"),
        # ranges across the end
        ("0 22-2 * * *", "0 0-2,22-23 * * *"),
        ("50-10 * * * *", "0-10,50-59 * * * *"),
        ("0 22-4/2 * * *", "0 0,2,4,22 * * *"),
        ("0 0 28-3 * *", "0 0 1-3,28-31 * *"),
        ("0 0 1 11-2 *", "0 0 1 1,2,11,12 *"),
        ("0 0 * * fri-mon", "0 0 * * 0,1,5,6"),
        ("0 0 * * sat-sun", "0 0 * * 0,6"),
        # ?
        ("0 0 ? * *", "0 0 * * *"),
        ("0 0 1 * ?", "0 0 1 * *"),
        ("0 0 ? * mon-fri", "0 0 * * 1-5"),
        # macros
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        (" @Daily ", "0 0 * * *"),
        # white space that is not blank or tab
        ("0 0 * * *\n", "0 0 * * *"),
        ("0\xa09\xa0*\xa0*\xa01-5", "0 9 * * 1-5"),
        # a star in a list
        ("*,5 * * * *", "* * * * *"),
        # fields that need no change keep their own text
        ("*/30 09 01,15 * 1-5", "0,30 09 01,15 * 1-5"),
        ("*/30 8-9,9-10 * * *", "0,30 8-9,9-10 * * *"),
    ],
)
def test_spelling(text: str, expected: str) -> None:
    """A text of another dialect is spelled the POSIX way."""
    assert posix_spelling(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Neither begins with a star: either is enough, here as there.
        ("0 0 1 * mon", "0 0 1 * 1"),
        ("0 0 1-31/2 * mon", "0 0 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 * 1"),
        ("0 0 1 * mon-sun", "0 0 1 * 0-6"),
        ("*/5 0 1-31 * 1", "0,5,10,15,20,25,30,35,40,45,50,55 0 1-31 * 1"),
        ("0 0 1-31/1 * mon", "0 0 1-31 * 1"),
        # One begins with a star, the other is unrestricted in fact.
        ("0 0 */15 * *", "0 0 1,16,31 * *"),
        ("0 0 */15 * 0-6", "0 0 1,16,31 * *"),
        ("0 0 */15 * ?", "0 0 1,16,31 * *"),
        ("0 0 */1 * mon", "0 0 * * 1"),
        ("0 0 1-31 * */3", "0 0 * * 0,3,6"),
        # One begins with a star, both restrict: both must match there, and no POSIX text says so.
        ("0 0 */2 * 1", None),
        ("0 0 */2 * mon-fri", None),
        ("0 0 1 * */2", None),
        ("0 0 */2 * */2", None),
    ],
)
def test_day_and_weekday(text: str, expected: str | None) -> None:
    """Steps in the day fields keep their meaning next to a restricted other field, or have no spelling."""
    assert posix_spelling(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "@reboot",
        "@every 5m",
        "@",
        "* * * *",
        "0 * * * * *",
        "0 0 12 * * ? 2026",
        "*/0 * * * *",
        "*/100 * * * *",
        "/5 * * * *",
        "*/ * * * *",
        "*/-5 * * * *",
        "*/5/5 * * * *",
        "? * * * *",
        "0 0 ?,1 * *",
        "0 0 ?/2 * *",
        "0 0 ? * 2-6",
        "0 0 * * 1/2",
        "0 0 L * *",
        "0 0 LW * *",
        "0 0 15W * *",
        "0 0 * * 5L",
        "0 0 * * 1#2",
        "0 0 * * mon#2",
        "0 0 l * *",
        "mon * * * *",
        "0 0 mon * *",
        "0 0 * mon *",
        "0 0 * * jan",
        "0 0 * * mo",
        "0 0 * * mondays",
        "0 0 30 feb *",
        "0 0 31 4-jun/2 *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 * * 8",
        "0-60 * * * *",
        "+5 * * * *",
        "-5 * * * *",
        "1.5 * * * *",
        "0x5 * * * *",
        "1e1 * * * *",
        "\u0663 * * * *",
        "\xb2 * * * *",
        "1, * * * *",
        "H * * * *",
        "9" * 500 + " * * * *",
        "*/15 * * * *" + " " * 1_000_000,
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_no_spelling(text: str) -> None:
    """What means nothing, means something else in each dialect, or has no POSIX words is left alone."""
    assert posix_spelling(text) is None


def _dialect_field(lowest: int, highest: int, names: tuple[str, ...] = ("1",)) -> st.SearchStrategy[str]:
    numbers = st.integers(lowest, highest)
    tokens = numbers.map(str) | st.sampled_from(names)
    ranges = st.tuples(tokens, tokens).map("-".join)
    # Two values at least: cronsim takes a step on a range of one for a step to the end.
    longer_ranges = st.tuples(numbers, numbers).filter(lambda at: at[0] < at[1]).map("{0[0]}-{0[1]}".format)
    stepped = st.tuples(longer_ranges | st.just("*") | tokens, st.integers(1, 31).map(str)).map("/".join)
    lists = st.lists(tokens | ranges | stepped, min_size=1, max_size=3).map(",".join)
    return st.just("*") | stepped | lists


dialect_texts = st.tuples(
    _dialect_field(0, 59),
    _dialect_field(0, 23),
    _dialect_field(1, 31),
    _dialect_field(1, 12, ("jan", "FEB", "Dec")),
    _dialect_field(0, 7, ("sun", "MON", "Fri")),
).map(" ".join)


@given(st.text() | dialect_texts | st.text(alphabet="0123456789*/-,?LW#@ monjan\t\n", max_size=40))
def test_offered_text_parses(text: str) -> None:
    """Whatever is put in, what comes out is valid, and offers nothing new when put in again."""
    spelled = posix_spelling(text)
    if spelled is not None:
        CronExpression.parse(spelled)
        assert posix_spelling(spelled) == spelled


@settings(max_examples=300)
@given(dialect_texts)
def test_offered_text_means_the_same(text: str) -> None:
    """What is offered is due when cronsim, which knows the other dialect, says the refused text is due."""
    spelled = posix_spelling(text)
    assume(spelled is not None)
    assert spelled is not None
    try:
        theirs = CronSim(text, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError:  # It has no ranges across the end.
        assume(False)
    note(f"{text!r} is spelled {spelled!r}")
    ours = CronExpression.parse(spelled).upcoming(datetime(2026, 1, 1, tzinfo=UTC), 50)
    assert ours == list(islice(theirs, 50))
