"""Registrations: what a user hands to `initialize`, checked before anything happens.

Checks run left to right over the list and, inside one item, in the order shape, name, callback,
duplicate, cron, delay. The first fault is the one raised (spec/scheduler.md 1.3).
"""

import functools
import gc
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import FunctionType
from typing import Any, NamedTuple

from duly.core.options import DEFAULT, Options
from duly.core.timing import ScheduleText
from duly.cron import CronExpression
from duly.cron.spelling import spelling_hint
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

_ARRAYS = (list, tuple)
_NO_TIME = timedelta(0)
_shared_us = functools.lru_cache(maxsize=1024)(duration_us)
"""One number for all tasks with the same delay: a million of them would be 32 MB."""


class Registration(NamedTuple):
    """One checked registration."""

    name: str
    expression: CronExpression | ScheduleText
    callback: Callback
    retry_delay_us: int
    options: Options = DEFAULT


def validated(registrations: object) -> list[Registration]:
    """The registrations of a user's list. Raises the error of the first fault."""
    if not isinstance(registrations, list | tuple):
        raise RegistrationsNotArrayError
    seen: set[str] = set()
    is_collecting = gc.isenabled()
    gc.disable()  # nothing here becomes garbage, and a collection looks at the whole list of the caller
    try:
        return [_validated_item(index, item, seen) for index, item in enumerate(registrations)]
    finally:
        if is_collecting:
            gc.enable()


def _validated_item(index: int, item: Any, seen: set[str]) -> Registration:
    if not _has_shape(item):
        raise RegistrationShapeError(index=index, received=item)
    name, cron, callback, retry_delay = item
    if type(name) is not str or type(cron) is not str:
        name, cron = str.__str__(name), str.__str__(cron)  # of a subclass, which a store could not write
    if not name or not name.isascii():
        _check_name(name)
    _check_callback(callback)
    if name in seen:
        raise ScheduleDuplicateTaskError(task_name=name)
    seen.add(name)
    try:
        expression = CronExpression.parse(cron)
    except InvalidCronExpressionError as error:
        invalid = CronExpressionInvalidError(error)
        if (hint := spelling_hint(cron)) is not None:
            invalid.add_note(hint)  # not in the message, which is part of the contract
        raise invalid from error
    if retry_delay < _NO_TIME:
        raise NegativeRetryDelayError(retry_delay_ms=milliseconds(duration_us(retry_delay)))
    return Registration(name, expression, callback, _shared_us(retry_delay))


def _has_shape(item: Any) -> bool:
    return (
        isinstance(item, _ARRAYS)
        and len(item) == 4
        and isinstance(item[0], str)
        and isinstance(item[1], str)
        and callable(item[2])
        and isinstance(item[3], timedelta)
    )


def _check_name(name: str) -> None:
    if not name:
        raise InvalidRegistrationError(field="name", value=name, reason="must not be empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        reason = "must be storable text, without lone surrogates"
        raise InvalidRegistrationError(field="name", value=name, reason=reason) from None


def _check_callback(callback: object) -> None:
    if not is_async_callable(callback):
        reason = "must be async; wrap a blocking function as duly.in_thread(fn)"
        raise InvalidRegistrationError(field="callback", value=callback, reason=reason)
    if not takes_nothing(callback):
        reason = "must take no arguments; bind them with functools.partial(fn, ...)"
        raise InvalidRegistrationError(field="callback", value=callback, reason=reason)


def takes_nothing(callback: Any) -> bool:
    """Whether *callback* can be called without arguments, as far as its signature says."""
    if type(callback) is FunctionType and not callback.__code__.co_kwonlyargcount:
        return callback.__code__.co_argcount <= len(callback.__defaults__ or ())
    if type(callback) is functools.partial and not callback.keywords:
        function, bound = callback.func, len(callback.args)
        if type(function) is FunctionType and not function.__code__.co_kwonlyargcount:
            count = function.__code__.co_argcount
            if bound <= count:
                return count - len(function.__defaults__ or ()) <= bound
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
        (type(callback) is FunctionType and bool(callback.__code__.co_flags & inspect.CO_COROUTINE))
        or inspect.iscoroutinefunction(callback)
        or inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004
        # The mark that unittest.mock.AsyncMock and asyncio's own helpers carry.
        or type(getattr(callback, "_is_coroutine", None)) is object
    )
