"""Bodies of tasks: a function as a callback of the engine, and the run as its body sees it."""

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import lru_cache, partial, wraps
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, get_type_hints
from uuid import UUID

from duly.core.causes import Start, scheduled_us
from duly.core.registration import Callback, is_async_callable, takes_nothing
from duly.engine.runs import current_run as active_run
from duly.engine.task_runs import this_node
from duly.engine.tasks import run_id_of
from duly.instant import datetime_at
from duly.threads import in_thread

A = TypeVar("A")


class Run(NamedTuple):
    """One run, for its body. A parameter with this annotation receives it."""

    id: UUID
    """The same for a run and for those that carry it on after a crash; of no other run, ever."""
    task: str
    due: datetime
    """What the run answers: its due, its retry time, or when it was asked for; in UTC."""
    attempt: int
    """1, and one more with each retry."""
    cause: str
    token: int | None
    """In a cluster a number that grows with every start of the task; None on a store of one's own."""
    node: str
    """The host and the process that run it, as the history has it."""


def current_run() -> Run | None:
    """The run whose body is executing here, also in what it awaits; None outside of one.

    In a thread only if it got the context, as by `asyncio.to_thread`: Python gives none to other threads.
    """
    active = active_run.get()
    start = None if active is None else active.start
    if active is None or not isinstance(start, Start):
        return None
    return Run(
        run_id_of(start.before, active.started_us),
        active.name,
        datetime_at(scheduled_us(start), UTC),
        start.after.retry_count + 1,
        start.cause.value,
        active.token,
        this_node(os.getpid()),
    )


def surrounded(
    function: Callable[..., object], around: Callable[[], AbstractContextManager[object]]
) -> Callable[..., object]:
    """The function within *around*, which is entered where it runs: on the loop or in a thread."""
    if is_async_callable(function):

        @wraps(function)
        async def run_async(*args: object, **kwargs: object) -> object:
            with around():
                result: Any = function(*args, **kwargs)
                return await result

        return run_async

    @wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        with around():
            return function(*args, **kwargs)

    return run


def callback_of(
    where: str, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> Callback:
    """The callback that calls *function* with its arguments, and with the run where it asks for one.

    A plain function is called in a thread. If that returns a coroutine, as a lambda may, it is awaited.
    Raises TypeError that names *where* it is declared.
    """
    body = Body(where, function)
    body.check(where, *args, **kwargs)
    return partial(body, *args, **kwargs) if args or kwargs else body.callback


class Body:
    """A function as the body of runs. Raises TypeError that names *where* it is declared."""

    def __init__(self, where: str, function: Callable[..., object]) -> None:
        if not callable(function):
            raise TypeError(f"{where}: expected a function, got {type(function).__name__}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{where}: {_name_of(function)} is a generator: a call of it runs nothing")
        self._function = function
        self._run_parameters = _run_parameters(function)
        self._is_async = is_async_callable(function)

    @property
    def callback(self) -> Callback:
        """What calls it without arguments: the function itself if it can be awaited."""
        if self._is_async and not self._run_parameters:
            return self._function  # type: ignore[return-value]
        return self.__call__

    async def __call__(self, /, *args: object, **kwargs: object) -> object:
        run = current_run() if self._run_parameters else None
        # By name: the run may be any of its parameters.
        bound = partial(self._function, *args, **kwargs, **dict.fromkeys(self._run_parameters, run))
        if self._is_async:
            result: Any = bound()
            return await result
        # A plain function may return a coroutine, such as a lambda around an async function. It is awaited
        # on the loop, not in the thread.
        return await _result_of(await in_thread(bound)())

    def check(self, where: str, /, *args: object, **kwargs: object) -> None:
        """Raise TypeError that names *where* if the function does not take these arguments."""
        if not (args or kwargs or self._run_parameters) and takes_nothing(self._function):
            return
        signature = _signature_of(self._function)
        if signature is None:
            return  # some builtins have none
        try:
            signature.bind(*args, **kwargs, **dict.fromkeys(self._run_parameters))
        except TypeError as error:
            name = _name_of(self._function)
            raise TypeError(f"{where}: {error} of {name}{signature}; arguments come from args=...") from None


def _name_of(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", function))


async def _result_of(result: object) -> object:
    return await result if isinstance(result, Awaitable) else result


def _kept(look: Callable[[Callable[..., object]], A]) -> Callable[[Callable[..., object]], A]:
    """A look at a function that is not repeated when one function is declared under a thousand names."""
    cached = lru_cache(maxsize=16)(look)

    def kept(function: Callable[..., object]) -> A:
        try:
            return cached(function)
        except TypeError:  # it cannot be hashed
            return look(function)

    return kept


@_kept
def _signature_of(function: Callable[..., object]) -> inspect.Signature | None:
    with suppress(TypeError, ValueError):
        return inspect.signature(function)
    return None


@_kept
def _run_parameters(function: Callable[..., object]) -> Sequence[str]:
    """The names of the parameters that are annotated with `Run` or `Run | None`."""
    described: Any = function
    while isinstance(described, partial):
        described = described.func
    described = inspect.unwrap(described)
    if not inspect.isroutine(described) and not isinstance(described, type):
        described = described.__call__
    hints = getattr(described, "__annotations__", {})
    names = [name for name in hints if name != "return" and _is_run(hints[name], described)]
    if not names or described is function:
        return names
    signature = _signature_of(function)  # of a partial: what it has bound is not ours to fill
    return [name for name in names if signature is None or name in signature.parameters]


def _is_run(hint: object, function: Any) -> bool:
    """Whether an annotation means `Run`. Each is read alone: another may have a name that is not there."""
    # By its name also where it is imported for type checkers only.
    names = {"Run": Run, **getattr(function, "__globals__", {})}
    with suppress(Exception):  # an annotation that cannot be resolved is not ours
        meant = get_type_hints(SimpleNamespace(__annotations__={"run": hint}), names)["run"]
        return bool(meant in (Run, Run | None))
    return False
