"""The connection to one Celery app: tasks are sent over it, results come back over it.

All that blocks is done in two threads, one that sends and one that looks for results, however many tasks are
waited for. The looker asks for many results in one round trip, and asks for each the less often the longer
it has been waited for. The threads and the connection end when nobody waits any more.

Nothing is sent twice: the slip is put when the broker is known to be there and just before the task goes out.
If the broker is lost in that very moment nobody knows whether it has the task; then it counts as sent.
"""

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from duly.formatting import error_text
from duly.instant import SECOND_US, Instant
from duly.integrations.celery_slips import READY, Meta, Slip, Slips, slips_in
from duly.threads import Worker

_log = logging.getLogger("duly.integrations.celery")

_LOOK_FIRST_S = 0.05
_LOOK_LIMIT_S = 1.0
_LOOK_SHARE = 0.1
"""A task that has been waited for so long is looked for again after this share of it."""
_FRESH_S = 1.0
"""A connection that was idle for longer is not trusted: what is written to a dead one is lost unnoticed."""
_CONNECT_S = 4.0


class Order(NamedTuple):
    """What is to be sent, on whose behalf."""

    task: str
    task_id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    scheduler_id: str
    origin_us: Instant
    slip: Slip
    is_continuation: bool
    keep_s: float
    """For how long slips are kept."""


class Sent(NamedTuple):
    """A task that is to be waited for."""

    slip: Slip | None
    """What its slip says; None if there is none and yet it may have been sent."""
    doubt: str = ""
    """Why it may not have reached the broker."""


def slip_key(task_id: str) -> str:
    return f"{task_id}-duly"


def era_key(scheduler_id: str) -> str:
    """The key of the slip that is as old as what the backend remembers."""
    return f"{scheduler_id}-duly-era"


def is_certainly_unsent(order: Order, era: Slip | None, kept_s: float) -> bool:
    """Whether a task without a slip was certainly never sent, where slips are kept for so long."""
    if not order.is_continuation:
        return True
    if era is None or era.at_us > order.origin_us:
        return False  # the backend lost its memory since
    return order.slip.at_us - order.origin_us < kept_s * SECOND_US


@dataclass(slots=True, eq=False)
class _Waiter:
    """One who waits for the result of a task."""

    task_id: str
    since_s: float
    next_s: float
    future: asyncio.Future[Meta]
    seen: str = "PENDING"

    @property
    def pace_s(self) -> float:
        return min(max((self.next_s - self.since_s) * _LOOK_SHARE, _LOOK_FIRST_S), _LOOK_LIMIT_S)


class CeleryConnection:
    """The connection of one event loop to one app; `connection_to` lends it out."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._sender = Worker("duly celery sender")
        self._looker = Worker("duly celery looker")
        self._connection: Any = None
        self._used_s = 0.0
        self._eras: dict[str, float] = {}
        self.users = 0
        self._waiters: set[_Waiter] = set()
        self._watch: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self.trouble = ""
        """Why the backend could not be asked when it was last tried."""

    def close(self) -> None:
        """Use it no more. Its threads end when they have done what they were given."""
        if self._watch is not None:
            self._watch.cancel()
        # In the sender's thread: connections of kombu are not made for several.
        self._sender.post(self._disconnect)
        self._sender.end()
        self._looker.end()

    @property
    def expires_s(self) -> float:
        """For how long the backend keeps results; 0: for ever, or nobody knows."""
        expires = self._app.conf.result_expires
        if isinstance(expires, timedelta):
            return expires.total_seconds()
        return float(expires or 0)

    def is_outage(self, error: Exception) -> bool:
        """Whether *error* says that the broker or the backend is not there now, which may pass."""
        if isinstance(error, OSError):
            return True
        from kombu.exceptions import KombuError, OperationalError  # noqa: PLC0415 - an extra

        if isinstance(error, OperationalError):
            return True
        return not isinstance(error, KombuError) and self._app.backend.exception_safe_to_retry(error) is True

    async def send(self, order: Order, given_up: threading.Event) -> Sent | None:
        """Send a task, unless it was or may have been sent before.

        Raises what the broker or the backend says if it certainly was not sent. None if *given_up* was set
        before its turn came; once begun, the sending is brought to its end.
        """
        return await self._sender.do(partial(self._send, order, given_up))

    def revoke(self, task_id: str, *, terminate: bool) -> None:
        self._sender.post(partial(self._revoke, task_id, terminate=terminate))

    async def look(self, task_id: str) -> tuple[Meta | None, Slip | None]:
        """What the backend has of a task now: its meta, and its slip."""
        return await self._looker.do(partial(self._look_once, task_id))

    async def result(self, task_id: str) -> Meta:
        """What the backend has of a task, once it is done."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        waiter = _Waiter(task_id, now_s, now_s, loop.create_future())
        self._waiters.add(waiter)
        if self._watch is None or self._watch.done():
            self._watch = loop.create_task(self._watch_all(), name="duly celery watch")
        self._woken.set()
        try:
            return await waiter.future
        finally:
            self._waiters.discard(waiter)

    # --- on the loop ---

    async def _watch_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Cleared before the look: one who comes while it is under way is seen in the next turn.
            self._woken.clear()
            if self._waiters:
                now_s = loop.time()
                # Those that are nearly due go along: one round trip costs the same for many.
                due = [each for each in self._waiters if each.next_s - each.pace_s / 2 <= now_s]
                if due:
                    await self._look_for(due)
            until_s = min((each.next_s for each in self._waiters), default=None)
            with suppress(TimeoutError):
                # Without waiters there is no time limit: only a new one wakes it.
                async with asyncio.timeout_at(until_s):
                    await self._woken.wait()

    async def _look_for(self, due: Sequence[_Waiter]) -> None:
        try:
            metas = await self._looker.do(partial(self._look, [each.task_id for each in due]))
        except Exception as error:
            if not self.trouble:
                _log.warning("Celery's results cannot be read, trying on: %s", error_text(error))
            self.trouble = error_text(error)
            metas = {}
        else:
            self.trouble = ""
        now_s = asyncio.get_running_loop().time()
        for waiter in due:
            waiter.next_s = now_s
            waiter.next_s = now_s + waiter.pace_s
            meta = metas.get(waiter.task_id)
            if meta is not None and meta["status"] in READY and not waiter.future.done():
                waiter.future.set_result(meta)

    # --- in the threads ---

    def _look(self, task_ids: Sequence[str]) -> dict[str, Meta]:
        return slips_in(self._app).metas(task_ids)

    def _look_once(self, task_id: str) -> tuple[Meta | None, Slip | None]:
        slips = slips_in(self._app)
        return slips.metas([task_id]).get(task_id), slips.read(slip_key(task_id))

    def _send(self, order: Order, given_up: threading.Event) -> Sent | None:
        slips = slips_in(self._app, order.task)
        key = slip_key(order.task_id)
        if given_up.is_set():
            return None
        if order.is_continuation:
            slip = slips.read(key)
            if slip is not None and slip.by_us != order.slip.by_us:
                return Sent(slip)
            if slip is None and not self._is_unsent(slips, order):
                return Sent(None)
        self._remember_era(slips, order)
        # Before the slip is put: a slip for a task that could not go out would have later runs wait for
        # nothing.
        self._connect()
        # Asked again: the connection may have taken seconds. From the slip on the task counts as sent.
        if given_up.is_set():
            return None
        with slips.sending(order.task_id):
            found = slips.claim(key, order.slip, order.keep_s)
            if found is not None and found.by_us != order.slip.by_us:
                return Sent(found)
            return self._publish(order)

    def _is_unsent(self, slips: Slips, order: Order) -> bool:
        if slips.metas([order.task_id]):
            return False
        era = slips.read(era_key(order.scheduler_id))
        return is_certainly_unsent(order, era, slips.kept_s(order.keep_s))

    def _remember_era(self, slips: Slips, order: Order) -> None:
        """See to it that the backend says since when it remembers."""
        now_s = time.monotonic()
        if now_s < self._eras.get(order.scheduler_id, 0):
            return
        key = era_key(order.scheduler_id)
        # One that begins with a continuation must not vouch for what was before.
        era = Slip(order.slip.at_us if order.is_continuation else order.origin_us, order.slip.by_us)
        if (found := slips.claim(key, era, order.keep_s)) is not None:
            slips.put(key, found, order.keep_s)  # the same, for longer
        self._eras[order.scheduler_id] = now_s + order.keep_s / 4

    def _publish(self, order: Order) -> Sent:
        from kombu.exceptions import EncodeError, OperationalError  # noqa: PLC0415 - an extra

        try:
            self._app.send_task(
                order.task,
                args=tuple(order.args),
                kwargs=dict(order.kwargs),
                task_id=order.task_id,
                connection=self._connection,
                ignore_result=False,
                # Celery's own retry may publish a second time; ours looks at the slip first.
                retry=False,
                add_to_parent=False,
                **order.options,
            )
        except EncodeError:
            raise
        except (OperationalError, *self._connection.connection_errors) as error:
            self._disconnect()
            _log.warning(
                "The broker was lost while %s was being sent as %s; waiting for it all the same: %s",
                order.task,
                order.task_id,
                error_text(error),
            )
            return Sent(order.slip, f"the broker was lost while it was being sent ({error_text(error)})")
        self._used_s = time.monotonic()
        return Sent(order.slip)

    def _connect(self) -> None:
        """Have a connection to the broker that is there. Raises what the broker says."""
        if self._connection is not None and time.monotonic() - self._used_s > _FRESH_S:
            self._disconnect()
        if self._connection is None:
            connection = self._app.connection_for_write(connect_timeout=_CONNECT_S)
            try:
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=_CONNECT_S)
            except BaseException:
                connection.release()
                raise
            self._connection, self._used_s = connection, time.monotonic()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.release()

    def _revoke(self, task_id: str, *, terminate: bool) -> None:
        try:
            self._connect()
            self._app.control.revoke(task_id, terminate=terminate, connection=self._connection)
        except Exception as error:
            self._disconnect()
            _log.warning("The Celery task %s could not be revoked: %s", task_id, error_text(error))


_connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, CeleryConnection]] = (
    weakref.WeakKeyDictionary()
)


@contextmanager
def connection_to(app: Any) -> Iterator[CeleryConnection]:
    """The connection of the running event loop to *app*: all who use it at the same time share one."""
    connections = _connections.setdefault(asyncio.get_running_loop(), {})
    # By id: the connection keeps its app alive, so the number means no other one meanwhile.
    connection = connections.setdefault(id(app), CeleryConnection(app))
    connection.users += 1
    try:
        yield connection
    finally:
        connection.users -= 1
        if connection.users == 0:
            del connections[id(app)]
            connection.close()
