"""Celery tasks as callbacks: send one, wait for its result, and find it again after a crash.

`task("reports.build", timeout=...)` is a callback for a registration. A run sends the Celery task under an id
that is made of the run's identity (`duly.integrations.current`). If this program dies, or another node of
the cluster takes over, the run is started again, finds what it had sent, and waits for that.
docs/guides/celery.md says what is guaranteed when.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid5

from duly.events import described
from duly.formatting import error_text
from duly.instant import SECOND_US, back_off
from duly.integrations import RunIdentity, current, is_overdue
from duly.integrations.celery_connection import CeleryConnection, Order, Sent, connection_to
from duly.integrations.celery_slips import READY, Meta, Slip
from duly.integrations.errors import (
    CeleryIgnoredError,
    CeleryNotSentError,
    CeleryRevokedError,
    CeleryTaskError,
    CeleryTimeoutError,
    IntegrationMissingError,
    NoRunError,
    PartTakenError,
)

if TYPE_CHECKING:
    from duly.integrations.celery_beat import BeatScheduler

__all__ = ["BeatScheduler", "CeleryTask", "task"]

_PAUSE_FIRST_S = 0.2
_PAUSE_LIMIT_S = 5.0
_LAST_LOOK_S = 5.0
_KEEP_LEAST_S = 24 * 60 * 60.0
_OURS = frozenset({"task_id", "ignore_result", "connection", "producer", "retry", "add_to_parent"})

_sent_by_run: ContextVar[tuple[int, set[str]] | None] = ContextVar("duly_celery_sent", default=None)


class CeleryTask:
    """A callback that sends the Celery task *name* and waits for its result, which awaiting a call gives.

    *timeout* is counted from the sending; the run then fails, and the Celery task is revoked (and, with
    *terminate*, killed in its worker). *app* is the current Celery app unless given. *options* go to Celery's
    `send_task`: queue, priority, headers and so on; `expires` is *timeout* unless given. One run that sends
    the same task more than once tells them apart by *part*.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: timedelta,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        app: Any = None,
        part: str = "",
        terminate: bool = False,
        **options: Any,
    ) -> None:
        kwargs = kwargs or {}
        _check(name, timeout, args, kwargs, options)
        self._name = name
        self._timeout_s = timeout.total_seconds()
        self._args = tuple(args)
        self._kwargs = dict(kwargs)
        self._app = app
        self._part = part
        self._terminate = terminate
        self._options = options

    def __repr__(self) -> str:
        return f"duly.integrations.celery.task({self._name!r})"

    async def __call__(self) -> Any:
        """Send the task and wait for its result. Raises an IntegrationError if there is none."""
        run = current()
        if run is None:
            raise NoRunError(task=self._name)
        task_id = celery_id(run, self._name, self._part)
        _note(run, task_id, self._name, self._part)
        with connection_to(_app(self._app)) as connection:
            try:
                return self._outcome(task_id, await self._meta(connection, run, task_id))
            except asyncio.CancelledError:
                # Over its run_timeout: it failed, and a retry sends another. Any other cancellation is like a
                # crash: the task goes on, and the run that carries on this one waits for it.
                if is_overdue():
                    connection.revoke(task_id, terminate=self._terminate)
                raise

    async def _meta(self, connection: CeleryConnection, run: RunIdentity, task_id: str) -> Meta:
        """What Celery says of the task when it is done. Raises if that takes too long."""
        begun_s = asyncio.get_running_loop().time()
        sent = await self._send_until_taken(connection, run, task_id, begun_s + self._timeout_s)
        # A task that an earlier run has sent has used some of its time already.
        deadline_s = begun_s + remaining_s(run, sent.slip, self._timeout_s)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await connection.result(task_id)
        except TimeoutError:
            return await self._late(connection, task_id, sent)

    async def _send_until_taken(
        self, connection: CeleryConnection, run: RunIdentity, task_id: str, deadline_s: float
    ) -> Sent:
        """Send the task, again and again until the broker has taken it, if it was not sent before."""
        given_up, reason = threading.Event(), "the broker or the result backend does not answer"
        pause_s, left_s = _PAUSE_FIRST_S, self._timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                while True:
                    try:
                        order = self._order(connection.expires_s, run, task_id, left_s)
                        sent = await connection.send(order, given_up)
                    except Exception as error:
                        if not connection.is_outage(error):
                            raise
                        reason = error_text(error)
                    else:
                        assert sent is not None
                        return sent
                    # The scheduler's clock is not ours to ask, and an outage passes in real time.
                    await asyncio.sleep(pause_s)  # noqa: TID251
                    pause_s = back_off(pause_s, _PAUSE_LIMIT_S)
                    left_s = deadline_s - asyncio.get_running_loop().time()
        except TimeoutError as error:
            # It may be under way in the thread at this very moment.
            connection.revoke(task_id, terminate=False)
            raise CeleryNotSentError(
                task=self._name, task_id=task_id, timeout_s=self._timeout_s, reason=reason
            ) from error
        finally:
            # A send that still waits for its turn in the thread must not go out after we gave up.
            given_up.set()

    def _order(self, expires_s: float, run: RunIdentity, task_id: str, left_s: float) -> Order:
        return Order(
            task=self._name,
            task_id=task_id,
            args=self._args,
            kwargs=self._kwargs,
            options={"expires": max(left_s, 0.001), **self._options},
            scheduler_id=run.scheduler_id,
            origin_us=run.origin_us,
            slip=Slip(run.called_us, run.started_us),
            is_continuation=run.is_continuation,
            keep_s=max(_KEEP_LEAST_S, 2 * self._timeout_s, expires_s),
        )

    async def _late(self, connection: CeleryConnection, task_id: str, sent: Sent) -> Meta:
        """The last look at a task that took too long: it may be done after all."""
        meta, slip, trouble = None, sent.slip, connection.trouble
        try:
            async with asyncio.timeout(_LAST_LOOK_S):
                meta, slip = await connection.look(task_id)
        except Exception as error:
            trouble = str(error) or "it does not answer"
        if meta is not None and meta["status"] in READY:
            return meta
        connection.revoke(task_id, terminate=self._terminate)
        state = "PENDING" if meta is None else str(meta["status"])
        raise CeleryTimeoutError(
            task=self._name,
            task_id=task_id,
            timeout_s=self._timeout_s,
            state=what_is_known(state, sent, trouble, is_slip_there=slip is not None),
        )

    def _outcome(self, task_id: str, meta: Meta) -> Any:
        state, result = meta["status"], meta["result"]
        if state == "SUCCESS":
            return result
        error = described(result) if isinstance(result, BaseException) else str(result)
        if state == "FAILURE":
            trace = meta.get("traceback")
            raise CeleryTaskError(
                task=self._name,
                task_id=task_id,
                error=error,
                remote_traceback=None if trace is None else str(trace),
            )
        if state == "REVOKED":
            raise CeleryRevokedError(task=self._name, task_id=task_id, error=error)
        raise CeleryIgnoredError(task=self._name, task_id=task_id, state=state)


task = CeleryTask


def __getattr__(name: str) -> Any:
    if name != "BeatScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duly.integrations.celery_beat import BeatScheduler  # noqa: PLC0415 - Celery is an extra

    return BeatScheduler


def celery_id(run: RunIdentity, name: str, part: str = "") -> str:
    """The id under which *run* sends the Celery task *name*."""
    return str(uuid5(run.id, ascii((name, part))))


def remaining_s(run: RunIdentity, slip: Slip | None, timeout_s: float) -> float:
    """How long a task may yet take that was sent when its *slip* says, or else when the run began."""
    sent_us = run.origin_us if slip is None or slip.at_us == 0 else slip.at_us
    # Neither more than all of it nor less than nothing, whatever was done to the clock meanwhile.
    return min(max(timeout_s - (run.called_us - sent_us) / SECOND_US, 0.0), timeout_s)


def what_is_known(state: str, sent: Sent, trouble: str, *, is_slip_there: bool) -> str:
    """Why there is no result, as far as anybody can tell."""
    if trouble:
        return f"the result backend cannot be read ({trouble})"
    if state != "PENDING":
        return f"it is in state {state}"
    if not is_slip_there:
        return "the result backend has lost what it held, perhaps the result too"
    if sent.doubt:
        return sent.doubt
    return "no worker has reported of it; is one running, on that queue, with that task?"


def _check(name: object, timeout: object, args: object, kwargs: object, options: Mapping[str, Any]) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a Celery task has a name, such as 'reports.build'; this is {name!r}")
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        raise TypeError(f"timeout must be a timedelta above zero, not {timeout!r}")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a list or a tuple, not {type(args).__name__}")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, not {type(kwargs).__name__}")
    if taken := _OURS & options.keys():
        raise TypeError(f"{', '.join(sorted(taken))} cannot be given: duly sets it")


def _app(app: Any) -> Any:
    try:
        import celery  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise IntegrationMissingError(engine="Celery", extra="celery") from error
    return celery.current_app._get_current_object() if app is None else app  # noqa: SLF001 (no other way)


def _note(run: RunIdentity, task_id: str, name: str, part: str) -> None:
    """Remember what this run has sent. Raises PartTakenError."""
    noted = _sent_by_run.get()
    if noted is None or noted[0] != run.started_us:
        noted = (run.started_us, set())
        _sent_by_run.set(noted)
    if task_id in noted[1]:
        raise PartTakenError(task=name, part=part)
    noted[1].add(task_id)
