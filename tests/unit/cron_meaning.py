"""Whether two cron expressions mean the same, however they are written."""

from duly.cron import CronExpression
from duly.cron.expression import _LONGEST_MONTHS


def are_equivalent(one: CronExpression, other: CronExpression) -> bool:
    """Whether both are due at exactly the same times."""
    return _meaning(one) == _meaning(other)


def _meaning(expression: CronExpression) -> tuple[object, ...]:
    minutes, hours, _, months, _ = expression.masks
    days = tuple(
        tuple(mask & (2 << _LONGEST_MONTHS[month]) - 1 for mask in expression._rest.day_masks)
        for month in range(1, 13)
        if months >> month & 1
    )
    return minutes, hours, months, days
