"""Registrations: what a user hands to `initialize`, checked before anything happens.

Checks run left to right over the list and, inside one item, in the order shape, name, callback,
duplicate, cron, delay. The first fault is the one raised (SCHEDULER.md 6).
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import FunctionType
from typing import Any, NamedTuple

from duly.cron import CronExpression
from duly.errors import (
    CronExpressionInvalidError,
    InvalidCronExpressionError,
    InvalidRegistrationError,
    NegativeRetryDelayError,
    RegistrationShapeError,
    RegistrationsNotArrayError,
    ScheduleDuplicateTaskError,
)
from duly.instant import duration_us, milliseconds

Callback = Callable[[], Awaitable[object]]
"""An async callable without arguments. What it returns is ignored; what it raises is a failure."""

_NO_TIME = timedelta(0)


class Registration(NamedTuple):
    """One checked registration."""

    name: str
    expression: CronExpression
    callback: Callback
    retry_delay_us: int


def validated(registrations: object) -> list[Registration]:
    """The registrations of a user's list. Raises the error of the first fault."""
    if not isinstance(registrations, list | tuple):
        raise RegistrationsNotArrayError
    seen: set[str] = set()
    return [_validated_item(index, item, seen) for index, item in enumerate(registrations)]


def _validated_item(index: int, item: Any, seen: set[str]) -> Registration:
    if not _has_shape(item):
        raise RegistrationShapeError(index=index, received=item)
    name, cron, callback, retry_delay = item
    name, cron = _plain(name), _plain(cron)
    _check_name(name)
    _check_callback(callback)
    if name in seen:
        raise ScheduleDuplicateTaskError(task_name=name)
    seen.add(name)
    try:
        expression = CronExpression.parse(cron)
    except InvalidCronExpressionError as error:
        raise CronExpressionInvalidError(error) from error
    if retry_delay < _NO_TIME:
        raise NegativeRetryDelayError(retry_delay_ms=milliseconds(duration_us(retry_delay)))
    return Registration(name, expression, callback, duration_us(retry_delay))


def _has_shape(item: Any) -> bool:
    return (
        isinstance(item, list | tuple)
        and len(item) == 4
        and isinstance(item[0], str)
        and isinstance(item[1], str)
        and callable(item[2])
        and isinstance(item[3], timedelta)
    )


def _check_name(name: str) -> None:
    if not name:
        raise InvalidRegistrationError(field="name", value=name, reason="must not be empty")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            reason = "must be storable text, without lone surrogates"
            raise InvalidRegistrationError(field="name", value=name, reason=reason) from None


def _plain(text: str) -> str:
    """The text itself, of a subclass of str too, which a store could not write."""
    return text if type(text) is str else str.__str__(text)


def _check_callback(callback: object) -> None:
    if not is_async_callable(callback):
        reason = "must be async; wrap a blocking function as duly.in_thread(fn)"
        raise InvalidRegistrationError(field="callback", value=callback, reason=reason)
    if not _takes_nothing(callback):
        reason = "must take no arguments; bind them with functools.partial(fn, ...)"
        raise InvalidRegistrationError(field="callback", value=callback, reason=reason)


def _takes_nothing(callback: Any) -> bool:
    """Whether *callback* can be called without arguments, as far as can be told."""
    if type(callback) is FunctionType and not callback.__code__.co_kwonlyargcount:
        return callback.__code__.co_argcount <= len(callback.__defaults__ or ())
    try:
        inspect.signature(callback).bind()
    except TypeError:
        return False
    except ValueError:  # it does not say
        return True
    return True


def is_async_callable(callback: object) -> bool:
    """Whether calling *callback* gives something to await."""
    if isinstance(callback, type):
        return False
    if type(callback) is FunctionType:  # nearly always, and inspect is slow at a hundred thousand
        return bool(callback.__code__.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(
            callback
        )
    while isinstance(callback, functools.partial):
        callback = callback.func
    return (
        inspect.iscoroutinefunction(callback)
        or inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004
        # The mark that unittest.mock.AsyncMock and asyncio's own helpers carry.
        or type(getattr(callback, "_is_coroutine", None)) is object
    )
