"""Slips: what duly leaves in Celery's result backend so that it never sends a task twice.

Celery cannot tell a task that was never sent from one that nobody has begun. So before a task is sent a slip
is put beside its result, which says so. A run that finds a slip sends nothing and waits. Where the backend
can do it, putting is atomic: of two who want to send, one is refused.

A backend may lose what it held (a Redis without a disk, restarted). The slip of an *era* shows: it is as old
as the memory of the backend. A slip that is missing means "never sent" only if the era is older than the run.

Everything here blocks, and belongs into a thread.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import msgspec

from duly.instant import Instant
from duly.integrations.errors import IntegrationSetupError

Meta = Mapping[str, Any]
"""What Celery's backend holds of a task: `status`, `result`, `traceback`."""

READY = frozenset({"SUCCESS", "FAILURE", "REVOKED", "IGNORED", "REJECTED"})
"""The states after which nothing more comes."""

_STATE = "SUCCESS"
"""Of slips that are kept as results: a state whose results Celery cleans up in due time."""
_AT_ONCE = 1_000
_MISSING: Meta = {"status": "PENDING", "result": None}


class Slip(msgspec.Struct, frozen=True):
    """That a task was sent, or was about to be."""

    at_us: Instant
    """When, by the scheduler's clock; for an era, since when the backend remembers."""
    by_us: Instant
    """The start of the run that did it: which of a chain of runs."""


UNREADABLE = Slip(0, 0)
"""A slip that is there and does not say more."""


class Slips:
    """The slips in one backend. Here each is the result of a task of its own, which every backend can hold.

    Claiming is atomic only in the subclasses.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def claim(self, key: str, slip: Slip, keep_s: float) -> Slip | None:  # noqa: ARG002 (as `kept_s` says)
        """Put *slip* unless there is one already, which is the answer then; it may be `UNREADABLE`."""
        if (found := self.read(key)) is not None:
            return found
        self._store(key, slip)
        return None

    def put(self, key: str, slip: Slip, keep_s: float) -> None:  # noqa: ARG002 (as `kept_s` says)
        if self.read(key) is not None:
            self._backend.forget(key)  # Celery does not overwrite a success
        self._store(key, slip)

    def read(self, key: str) -> Slip | None:
        meta = self._backend.get_task_meta(key, cache=False)
        return _slip(meta["result"]) if meta["status"] == _STATE else None

    def kept_s(self, keep_s: float) -> float:  # noqa: ARG002 (as above)
        """For how long a slip is kept that was to be kept for *keep_s*: as long as results are."""
        expires = self._backend.expires
        if isinstance(expires, timedelta):
            expires = expires.total_seconds()
        return float(expires or math.inf)

    def sending(self, task_id: str) -> AbstractContextManager[None]:  # noqa: ARG002 (others need it)
        """What Celery does to the backend when a task is sent, done before the sending and undone after."""
        return nullcontext()

    def _store(self, key: str, slip: Slip) -> None:
        self._backend.store_result(key, msgspec.to_builtins(slip), _STATE)

    def metas(self, task_ids: Sequence[str]) -> dict[str, Meta]:
        """What is known of the tasks; nothing of one that is not there."""
        found: dict[str, Meta] = {}
        for first in range(0, len(task_ids), _AT_ONCE):
            found |= self._many(task_ids[first : first + _AT_ONCE])
        return {task_id: meta for task_id, meta in found.items() if meta["status"] != "PENDING"}

    def _many(self, task_ids: Sequence[str]) -> dict[str, Meta]:
        return {task_id: self._backend.get_task_meta(task_id, cache=False) for task_id in task_ids}


class RedisSlips(Slips):
    """Slips in Redis, each a key of its own beside that of the result."""

    def claim(self, key: str, slip: Slip, keep_s: float) -> Slip | None:
        client, name, value = self._backend.client, self._name(key), msgspec.json.encode(slip)
        while not client.set(name, value, nx=True, px=_milliseconds(keep_s)):
            # Refused, and yet nothing there: it expired in between. Then it is tried again.
            if (found := client.get(name)) is not None:
                return _slip_of(found)
        return None

    def put(self, key: str, slip: Slip, keep_s: float) -> None:
        self._backend.client.set(self._name(key), msgspec.json.encode(slip), px=_milliseconds(keep_s))

    def read(self, key: str) -> Slip | None:
        found = self._backend.client.get(self._name(key))
        return None if found is None else _slip_of(found)

    def kept_s(self, keep_s: float) -> float:
        return keep_s

    @contextmanager
    def sending(self, task_id: str) -> Iterator[None]:
        """Celery subscribes to the result of what it sends, for ever; we look for results ourselves.

        Were it left to the sending, nobody could tell a failure of it from one of the sending.
        """
        self._backend.on_task_call(None, task_id)
        try:
            yield
        finally:
            # Whatever becomes of the subscription, it was sent or it was not.
            with suppress(Exception):
                self._backend.result_consumer.cancel_for(task_id)

    def _name(self, key: str) -> Any:
        return self._backend.get_key_for_task(key)

    def _many(self, task_ids: Sequence[str]) -> dict[str, Meta]:
        values = self._backend.mget([self._name(task_id) for task_id in task_ids])
        found = zip(task_ids, values, strict=True)
        return {task_id: _MISSING if value is None else self._meta(value) for task_id, value in found}

    def _meta(self, value: Any) -> Meta:
        try:
            meta: Meta = self._backend.decode_result(value)
        except Exception as error:
            # One result that cannot be read (a serializer that is not accepted) must not hide the others.
            return {"status": "FAILURE", "result": error, "traceback": None}
        return meta


class DatabaseSlips(Slips):
    """Slips as rows of Celery's own table, where a task has one row at most."""

    def claim(self, key: str, slip: Slip, keep_s: float) -> Slip | None:  # noqa: ARG002 (as `kept_s` says)
        from sqlalchemy.exc import IntegrityError  # noqa: PLC0415 - an extra of Celery's

        session = self._backend.ResultSession()
        try:
            session.add(self._backend.task_cls(key))  # of two who claim, only one can add the row
            session.commit()
        except IntegrityError:
            session.rollback()
            return self.read(key) or UNREADABLE
        finally:
            session.close()
        # After the row, in a second step: one who reads in between finds a row without a slip (`UNREADABLE`).
        self._store(key, slip)
        return None


def slips_in(app: Any, task: str = "") -> Slips:
    """The slips in the result backend of *app*. Raises IntegrationSetupError if it can hold none."""
    backend = app.backend
    kinds = {kind.__module__: kind for kind in type(backend).__mro__}
    if "celery.backends.rpc" in kinds:
        reason = "results in rpc:// can be read only by the process that sent the task. Set result_backend "
        raise IntegrationSetupError(task=task, reason=reason + "to Redis or a database")
    if type(backend).__name__ == "DisabledBackend":
        raise IntegrationSetupError(
            task=task, reason="the app has no result_backend; set it to Redis or a database"
        )
    if "celery.backends.redis" in kinds:
        return RedisSlips(backend)
    if "celery.backends.database" in kinds:
        return DatabaseSlips(backend)
    return Slips(backend)


def _slip(value: Any) -> Slip:
    try:
        return msgspec.convert(value, Slip)
    except msgspec.ValidationError:
        return UNREADABLE


def _slip_of(value: bytes) -> Slip:
    try:
        return msgspec.json.decode(value, type=Slip)
    except msgspec.MsgspecError:
        return UNREADABLE


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)
