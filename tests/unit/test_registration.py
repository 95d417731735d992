"""Every row of the error table that `initialize` can raise for its argument, and in which order."""

import asyncio
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

import duly
from duly import Scheduler
from duly.events import Event

MINUTE = timedelta(minutes=1)


async def callback() -> None:
    """Do nothing."""


def blocking() -> None:
    """Do nothing, in the way of everybody."""


def refused(registrations: Any) -> duly.SchedulerError:
    with pytest.raises(duly.SchedulerError) as raised:
        Scheduler(":memory:").initialize(registrations).close()
    return raised.value


@pytest.mark.parametrize(
    "argument", [None, 7, "text", {}, {"a": 1}, set(), iter([]), object(), b""], ids=type
)
def test_not_a_list(argument: object) -> None:
    """Anything but a list or tuple is refused at the call."""
    error = refused(argument)
    assert type(error) is duly.RegistrationsNotArrayError
    assert error.message == str(error) == "Registrations must be an array"
    assert error.details == {}


SHAPES = [
    None,
    "name",
    (),
    ("a", "* * * * *", callback),
    ("a", "* * * * *", callback, MINUTE, 1),
    (1, "* * * * *", callback, MINUTE),
    (None, "* * * * *", callback, MINUTE),
    (b"a", "* * * * *", callback, MINUTE),
    ("a", None, callback, MINUTE),
    ("a", 5, callback, MINUTE),
    ("a", "* * * * *", None, MINUTE),
    ("a", "* * * * *", "callback", MINUTE),
    ("a", "* * * * *", callback(), MINUTE),
    ("a", "* * * * *", callback, 60),
    ("a", "* * * * *", callback, None),
    ("a", "* * * * *", callback, "PT1M"),
    {"name": "a", "cron": "* * * * *", "callback": callback, "delay": MINUTE},
]


@pytest.mark.parametrize("item", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.filterwarnings("ignore:coroutine")
def test_wrong_shape(item: object) -> None:
    """A registration of the wrong length or types is refused with its index and itself."""
    error = refused([("fine", "* * * * *", callback, MINUTE), item])
    assert type(error) is duly.RegistrationShapeError
    assert error.message == "Invalid registration shape: expected [string, string, function, Duration]"
    assert error.details == {"registrationIndex": 1, "received": item}


@pytest.mark.parametrize("kind", [tuple, list])
def test_tuples_and_lists_are_fine(kind: Callable[[Any], Any]) -> None:
    """Registrations may be lists or tuples, in a list or tuple."""
    item = kind(["a", "* * * * *", callback, MINUTE])
    Scheduler(":memory:").initialize(kind([item])).close()


def test_empty_name() -> None:
    """An empty name is refused."""
    error = refused([("", "* * * * *", callback, MINUTE)])
    assert type(error) is duly.InvalidRegistrationError
    assert error.details == {"field": "name", "value": "", "reason": "must not be empty"}


def test_name_that_cannot_be_stored() -> None:
    """A name with a lone surrogate is refused: no store could keep it."""
    error = refused([("bad \ud800", "* * * * *", callback, MINUTE)])
    assert type(error) is duly.InvalidRegistrationError
    assert error.details["field"] == "name"


@pytest.mark.parametrize("name", [" ", "\n", "\0", "🗓️", "\u202e", "x" * 1_000_000])
def test_odd_names_are_fine(name: str) -> None:
    """Any other text is a name."""
    Scheduler(":memory:").initialize([(name, "* * * * *", callback, MINUTE)]).close()


@pytest.mark.parametrize("function", [blocking, print, len, lambda: None, int, Scheduler], ids=range(6))
def test_blocking_callback(function: object) -> None:
    """A plain function is refused with the name of the wrapper to use."""
    error = refused([("a", "* * * * *", function, MINUTE)])
    assert type(error) is duly.InvalidRegistrationError
    assert error.details["field"] == "callback"
    assert "duly.in_thread" in error.message


async def needs_one(argument: int) -> None:
    """Cannot be called without an argument."""


async def needs_a_keyword(*, argument: int) -> None:
    """Cannot be called without an argument."""


class Callbacks:
    """Async in its instances only."""

    async def __call__(self) -> None:
        """Do nothing."""

    async def needs_one(self, argument: int) -> None:
        """Cannot be called without an argument."""


@pytest.mark.parametrize(
    "function", [needs_one, needs_a_keyword, Callbacks, Callbacks().needs_one, MagicMock()], ids=range(5)
)
def test_callback_that_cannot_be_called(function: object) -> None:
    """What needs arguments, or gives nothing to await, is refused when it is registered."""
    error = refused([("a", "* * * * *", function, MINUTE)])
    assert type(error) is duly.InvalidRegistrationError
    assert error.details["field"] == "callback"


@pytest.mark.parametrize(
    "function",
    [
        Callbacks(),
        functools.partial(needs_one, 1),
        functools.partial(needs_a_keyword, argument=1),
        AsyncMock(),
    ],
    ids=range(4),
)
def test_callback_that_can_be_called(function: Any) -> None:
    """Bound arguments, callable objects and mocks are fine."""
    Scheduler(":memory:").initialize([("a", "* * * * *", function, MINUTE)]).close()


def test_text_of_a_subclass_is_plain_text() -> None:
    """A name or cron text of a subclass of str, such as an enumeration, is taken as the text it is."""

    class Text(str):
        __slots__ = ()

    async def story() -> None:
        added: list[Event] = []
        scheduler = Scheduler(":memory:", listeners=[added.append])
        await scheduler.initialize([(Text("a"), Text("0 3 * * *"), callback, MINUTE)])
        fields = next(event.fields for event in added if event.name == "TaskAdded")
        assert [type(fields[field]) for field in ("taskName", "cronExpression")] == [str, str]
        await scheduler.stop()

    asyncio.run(story())


def test_async_generator_is_no_callback() -> None:
    """An async generator function cannot be awaited, and is refused."""

    async def generator() -> Any:
        yield 1

    assert type(refused([("a", "* * * * *", generator, MINUTE)])) is duly.InvalidRegistrationError


def test_duplicate_name() -> None:
    """The second of two tasks with one name is refused."""
    error = refused([("a", "* * * * *", callback, MINUTE), ("a", "0 * * * *", callback, MINUTE)])
    assert type(error) is duly.ScheduleDuplicateTaskError
    assert error.message == 'Task with name "a" is already scheduled'
    assert error.details == {"taskName": "a"}


def test_bad_cron() -> None:
    """A refused cron text is wrapped, with the parser's error as its cause."""
    error = refused([("a", "*/15 * * * *", callback, MINUTE)])
    assert type(error) is duly.CronExpressionInvalidError
    assert error.message.startswith('Invalid cron expression "*/15 * * * *": minute field ')
    assert set(error.details) == {"expression", "field", "reason"}
    assert (error.details["expression"], error.details["field"]) == ("*/15 * * * *", "minute")
    assert isinstance(error.__cause__, duly.InvalidCronExpressionError)
    assert isinstance(error.__cause__.__cause__, duly.FieldParseError)
    assert error.__cause__.__cause__.details == {"fieldValue": "*/15", "fieldName": "minute"}


def test_negative_delay() -> None:
    """A delay below zero is refused, in milliseconds."""
    error = refused([("a", "* * * * *", callback, timedelta(seconds=-1.5))])
    assert type(error) is duly.NegativeRetryDelayError
    assert error.message == "Retry delay must be non-negative"
    assert error.details == {"retryDelayMs": -1500}


def test_faults_in_order() -> None:
    """Inside one item: shape, name, callback, duplicate, cron, delay; the first fault is the one raised."""
    fine: Any = ("a", "* * * * *", callback, MINUTE)
    minus = timedelta(seconds=-1)
    for item, kind in [
        (("", "bad", blocking, "no delay"), duly.RegistrationShapeError),
        (("", "bad", blocking, minus), duly.InvalidRegistrationError),
        (("a", "bad", blocking, minus), duly.InvalidRegistrationError),
        (("a", "bad", callback, minus), duly.ScheduleDuplicateTaskError),
        (("b", "bad", callback, minus), duly.CronExpressionInvalidError),
        (("b", "* * * * *", callback, minus), duly.NegativeRetryDelayError),
    ]:
        assert type(refused([fine, item, None])) is kind
    assert refused([fine, ("", "bad", blocking, minus)]).details["field"] == "name"
    assert refused([fine, ("a", "bad", blocking, minus)]).details["field"] == "callback"


def test_faults_left_to_right() -> None:
    """The fault of the first bad item is raised, however bad the later ones are."""
    assert type(refused([("a", "bad", callback, MINUTE), None])) is duly.CronExpressionInvalidError


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"store": 5}, TypeError),
        ({"store": ""}, ValueError),
        ({"store": "a\0b"}, ValueError),
        ({"store": "postgresql://localhost:port/x"}, duly.StoreError),
        ({"store": "mysql://localhost/x"}, ValueError),
        ({"timezone": "Europe/Berlin"}, TypeError),
        ({"max_concurrent_runs": 0}, ValueError),
        ({"max_concurrent_runs": True}, ValueError),
        ({"max_concurrent_runs": 1.5}, ValueError),
        ({"run_timeout": 5}, ValueError),
        ({"run_timeout": timedelta(0)}, ValueError),
        ({"clock": object()}, TypeError),
        ({"listeners": [5]}, TypeError),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value.__name__,
)
def test_bad_options(arguments: dict[str, Any], kind: type[Exception]) -> None:
    """An option that cannot be used is refused when the scheduler is made."""
    with pytest.raises(kind):
        Scheduler(**{"store": ":memory:", **arguments})
