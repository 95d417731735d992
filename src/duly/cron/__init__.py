"""POSIX cron: text to expression to instants, exact across DST in every zone. Pure.

    fields -> expression -> instants        civil: the spans of a zone, where DST is decided
    spelling, english, notes                what to tell people about a text and its firings

The invariant: a civil minute that the clock skips never occurs, and one that it shows twice is due when it is
first shown (spec/scheduler.md 2.2). Expressions and time lines are cached; that changes no answer.
"""

from duly.cron.expression import CronExpression

__all__ = ["CronExpression"]
