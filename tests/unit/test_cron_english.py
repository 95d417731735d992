"""Cron expressions in English."""

from itertools import product

import pytest
from hypothesis import given, settings

from duly.cron import CronExpression
from duly.cron.english import in_english
from tests.property.strategies import texts
from tests.unit.cron_meaning import are_equivalent


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # minutes
        ("* * * * *", "Every minute"),
        ("0,30 * * * *", "Every 30 minutes"),
        ("0,15,30,45 * * * *", "Every 15 minutes"),
        ("0,5,10,15,20,25,30,35,40,45,50,55 * * * *", "Every 5 minutes"),
        ("1,16,31,46 * * * *", "Every 15 minutes, from 1 minute past the hour"),
        ("5,35 * * * *", "Every 30 minutes, from 5 minutes past the hour"),
        ("0 * * * *", "Every hour"),
        ("1 * * * *", "At 1 minute past every hour"),
        ("30 * * * *", "At 30 minutes past every hour"),
        ("5,10 * * * *", "At minutes 5 and 10 past every hour"),
        ("0-29,45 * * * *", "At minutes 0 to 29 and 45 past every hour"),
        ("0,7,14,21,28,35,42,49,56 * * * *", "At every 7th minute from 0 to 56 past every hour"),
        ("1-59 * * * *", "At minutes 1 to 59 past every hour"),
        # minutes of some hours
        ("* 9 * * *", "Every minute from 09:00 to 09:59, every day"),
        ("* 9-17 * * *", "Every minute from 09:00 to 17:59, every day"),
        ("* 9,17 * * *", "Every minute of the hours 9 and 17, every day"),
        ("0,15,30,45 9-17 * * *", "Every 15 minutes from 09:00 to 17:45, every day"),
        ("5,35 9-17 * * *", "Every 30 minutes from 09:05 to 17:35, every day"),
        ("0,30 0-2,22-23 * * *", "Every 30 minutes of the hours 0 to 2, 22 and 23, every day"),
        (
            "5,35 0-2,22-23 * * *",
            "Every 30 minutes, from 5 minutes past the hours 0 to 2, 22 and 23, every day",
        ),
        ("0-29 8 * * *", "Every minute from 08:00 to 08:29, every day"),
        ("0-29 8-17 * * *", "At minutes 0 to 29 past the hours 8 to 17, every day"),
        ("1,2,4,8,16 8 * * *", "At minutes 1, 2, 4, 8 and 16 past the hour 8, every day"),
        (
            "1,2 0,2,4,6,8,10,12,14,16,18,20,22 * * *",
            "At minutes 1 and 2 past every 2nd hour from 0 to 22, every day",
        ),
        # hours
        ("0 9 * * *", "At 09:00, every day"),
        ("30 8,20 * * *", "At 08:30 and 20:30, every day"),
        ("15,45 8,20 * * *", "At 08:15, 08:45, 20:15 and 20:45, every day"),
        ("0 0,6,12,18 * * *", "At 00:00, 06:00, 12:00 and 18:00, every day"),
        ("0 0,2,4,6,8,10,12,14,16,18,20,22 * * *", "Every 2 hours from 00:00 to 22:00, every day"),
        ("30 1,3,5,7,9 * * *", "Every 2 hours from 01:30 to 09:30, every day"),
        ("0 9-17 * * *", "Every hour from 09:00 to 17:00, every day"),
        ("30 9-17 * * *", "Every hour from 09:30 to 17:30, every day"),
        ("0 1,2,4,8,16 * * *", "At 01:00, 02:00, 04:00, 08:00 and 16:00, every day"),
        # weekdays
        ("0 9 * * 1-5", "At 09:00, Monday to Friday"),
        ("0 9 * * 1", "At 09:00, every Monday"),
        ("0 9 * * 0", "At 09:00, every Sunday"),
        ("0 9 * * 0,6", "At 09:00, every Saturday and Sunday"),
        ("0 9 * * 0,5,6", "At 09:00, Friday to Sunday"),
        ("0 9 * * 1,3,5", "At 09:00, every Monday, Wednesday and Friday"),
        ("0 9 * * 0-2", "At 09:00, every Monday, Tuesday and Sunday"),
        ("0 9 * * 0-6", "At 09:00, every day"),
        ("* * * * 1-5", "Every minute, Monday to Friday"),
        ("0 9 * 12 1-5", "At 09:00, Monday to Friday, in December"),
        # days
        ("0 0 1 * *", "At 00:00, on the 1st of the month"),
        ("0 0 2,3 * *", "At 00:00, on the 2nd and 3rd of the month"),
        ("0 0 11,12,13 * *", "At 00:00, on the 11th to 13th of the month"),
        ("0 0 1-7,15,22 * *", "At 00:00, on the 1st to 7th, 15th and 22nd of the month"),
        ("0 0 31 * *", "At 00:00, on the 31st of the month"),
        ("0 0 1,11,21,31 * *", "At 00:00, on the 1st, 11th, 21st and 31st of the month"),
        (
            "0 0 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 * *",
            "At 00:00, on every 2nd day from the 1st to the 31st of the month",
        ),
        ("0 0 1-31 * *", "At 00:00, every day"),
        ("* * 1 * *", "Every minute, on the 1st of the month"),
        # months
        ("0 0 1 1 *", "At 00:00, on the 1st of January"),
        ("0 0 1 1,7 *", "At 00:00, on the 1st of January and July"),
        ("0 0 1 6-8 *", "At 00:00, on the 1st of June to August"),
        ("0 0 29 2 *", "At 00:00, on the 29th of February"),
        ("0 9 * 1 *", "At 09:00, every day in January"),
        ("* * * 1,2,12 *", "Every minute, every day in January, February and December"),
        # either is enough
        (
            "0 0 1,15 * 1",
            "At 00:00, on the 1st and 15th of the month and on every Monday (either is enough)",
        ),
        (
            "0 0 1 * 1-5",
            "At 00:00, on the 1st of the month and on every day from Monday to Friday (either is enough)",
        ),
        ("0 0 1 5 1", "At 00:00, on the 1st of the month and on every Monday (either is enough), in May"),
        ("0 0 1-31 * 1", "At 00:00, every day"),
        ("0 0 1 * 0-6", "At 00:00, every day"),
        ("0 0 1 5 0-6", "At 00:00, every day in May"),
    ],
)
def test_words(text: str, words: str) -> None:
    """An expression is said as a person would say it."""
    assert in_english(CronExpression.parse(text)) == words


@settings(max_examples=300)
@given(texts())
def test_any_expression_has_words(text: str) -> None:
    """Every expression can be said, in one tidy line that depends on its meaning and not on its blanks."""
    words = in_english(CronExpression.parse(text))
    assert words[0].isupper()
    assert words == " ".join(words.split())
    assert in_english(CronExpression.parse(text.replace(" ", " \t"))) == words


MINUTES = [
    "*",
    "0",
    "1",
    "5",
    "0,30",
    "5,35",
    "5,10",
    "0-29",
    "1-59",
    "0-29,45",
    "0,20,40",
    "10,30,50",
    "0,15,30,45",
    "0,7,14,21,28,35,42,49,56",
]
HOURS = ["*", "0", "9", "9-17", "9,17", "0-2,22-23", "0,6,12,18", "0,2,4,6,8,10,12,14,16,18,20,22", "1-23"]
DAYS = ["*", "1", "1,15", "1-7", "1-31", "31", "1,8,15,22,29"]
MONTHS = ["*", "1", "1,7", "6-8"]
WEEKDAYS = ["*", "0", "1", "1-5", "0,6", "0-6", "1,3,5"]


def test_same_words_same_meaning() -> None:
    """Of twenty thousand expressions, two that are said alike are due alike."""
    said: dict[str, CronExpression] = {}
    for fields in product(MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS):
        expression = CronExpression.parse(" ".join(fields))
        first = said.setdefault(in_english(expression), expression)
        assert are_equivalent(first, expression), (first, expression)
