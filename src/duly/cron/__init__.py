"""POSIX cron: text to expression to instants, exact across DST in every zone. Pure."""

from duly.cron.expression import CronExpression

__all__ = ["CronExpression"]
