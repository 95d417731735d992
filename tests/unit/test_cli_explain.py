"""`duly explain`, as it is called from a shell."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duly.cli import main
from duly.cli.cron import hints, values_text
from duly.cron import CronExpression
from duly.cron.fields import HOUR, MINUTE, MONTH, WEEKDAY, Field, parse_field

EITHER = (
    "day and weekday are both restricted, so either is enough: it is due on days that match only one of them;"
    " write * in one of the fields to let the other decide"
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


def test_page() -> None:
    """Words, fields, the next three firings, and the hint, on one page."""
    result = run("0 0 1,15 * 1", "--tz", "Europe/Berlin", "--from", "2026-03-20")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "At 00:00, on the 1st and 15th of the month and on every Monday (either is enough)",
        "",
        "  minute   0                        0",
        "  hour     0                        0",
        "  day      1,15                     1, 15",
        "  month    *                        every month",
        "  weekday  1                        Monday",
        "",
        "Next in Europe/Berlin:",
        "  Mon 2026-03-23 00:00 +01:00   2026-03-22 23:00 UTC   in 3d",
        "    clocks go forward by 1 h at 02:00 on 2026-03-29; offset is now +02:00",
        "  Mon 2026-03-30 00:00 +02:00   2026-03-29 22:00 UTC   in 9d 23h",
        "  Wed 2026-04-01 00:00 +02:00   2026-03-31 22:00 UTC   in 11d 23h",
        "",
        f"hint: {EITHER}",
    ]


def test_json() -> None:
    """Machines get the same facts as one object."""
    result = run("0 9\t* * 1-5", "--tz", "UTC", "--from", "2026-01-02T10:00", "--json")
    found: Any = json.loads(result.stdout)
    assert list(found) == [
        *("expression", "words", "fields", "either_day", "hints", "timezone", "from", "firings"),
    ]
    assert found["expression"] == "0 9\t* * 1-5"
    assert found["words"] == "At 09:00, Monday to Friday"
    assert found["either_day"] is False
    assert found["hints"] == []
    assert found["fields"][0] == {"name": "minute", "text": "0", "values": [0]}
    assert found["fields"][4] == {"name": "weekday", "text": "1-5", "values": [1, 2, 3, 4, 5]}
    assert [firing["local"] for firing in found["firings"]] == [
        "2026-01-05T09:00:00+00:00",
        "2026-01-06T09:00:00+00:00",
        "2026-01-07T09:00:00+00:00",
    ]


def test_long_field_is_shortened() -> None:
    """A field too long for its column is cut short, its values are not."""
    minutes = ",".join(map(str, range(0, 60, 7)))
    result = run(f"{minutes} * * * *", "--tz", "UTC")
    assert "  minute   0,7,14,21,28,35,42,49,5… 0, 7, 14, 21, 28, 35, 42, 49, 56" not in result.stdout
    assert "  minute   0,7,14,21,28,35,42,49,56 0, 7, 14, 21, 28, 35, 42, 49, 56" in result.stdout
    result = run("1,2,3,4,5,6,7,8,9,11,13,45 * * * *", "--tz", "UTC")
    assert "  minute   1,2,3,4,5,6,7,8,9,11,13… 1 to 9, 11, 13, 45" in result.stdout


@pytest.mark.parametrize(
    ("field", "text", "shown"),
    [
        (MINUTE, "*", "every minute"),
        (MINUTE, "0-59", "every minute"),
        (HOUR, "9-17", "9 to 17"),
        (HOUR, "9,10", "9, 10"),
        (MONTH, "1,6-8", "January, June to August"),
        (WEEKDAY, "0,6", "Sunday, Saturday"),
        (WEEKDAY, "1-5", "Monday to Friday"),
    ],
)
def test_values(field: Field, text: str, shown: str) -> None:
    """The values of a field are shown with names where people use names."""
    assert values_text(field, parse_field(field, text)) == shown


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("* * * * *", None),
        ("0 0 1 * *", None),
        ("0 0 * * 1", None),
        ("0 0 28,31 * *", None),
        ("0 0 30 4,6 *", None),
        ("0 0 31 1,3 *", "months without a 31st are left out; no cron text means the last day of a month"),
        ("0 0 31 * *", "months without a 31st are left out; no cron text means the last day of a month"),
        ("0 0 30,31 * *", "months without a 30th are left out; no cron text means the last day of a month"),
        ("0 0 29 2 *", "the 29th of February comes in leap years only"),
    ],
)
def test_day_hints(text: str, hint: str | None) -> None:
    """Days that some months lack are pointed out."""
    assert list(hints(CronExpression.parse(text))) == ([] if hint is None else [hint])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0 0 13 * 5", "it is due on days that match only one of them"),
        ("0 0 1-31 * 5", "one of them names every day"),
        ("0 0 13 * 0-6", "one of them names every day"),
    ],
)
def test_either_day_hints(text: str, part: str) -> None:
    """Day and weekday as alternatives are pointed out, more so when that makes it every day."""
    [hint] = hints(CronExpression.parse(text))
    assert part in hint


def test_refusal() -> None:
    """A refused expression is shown as `duly next` shows it."""
    result = run("0 0 * * 7")
    assert result.exit_code == 2
    assert "write: 0 0 * * 0" in result.stderr
