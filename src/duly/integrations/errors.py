"""What can go wrong with work that runs elsewhere. Each of these ends a run as a failure; retries follow."""

from duly.errors import SchedulerError


class IntegrationError(SchedulerError):
    """The base of all errors of integrations."""


class IntegrationMissingError(IntegrationError, ImportError):
    """The engine is not installed."""

    def __init__(self, *, engine: str, extra: str) -> None:
        super().__init__(
            f"{engine} is not installed; install it with: pip install 'duly[{extra}]'", {"engine": engine}
        )


class IntegrationSetupError(IntegrationError):
    """The engine is set up in a way that cannot work."""

    def __init__(self, *, task: str, reason: str) -> None:
        super().__init__(f"The Celery task {task!r} cannot be waited for: {reason}", {"task": task})


class NoRunError(IntegrationError):
    """A callback was called by somebody else than a scheduler."""

    def __init__(self, *, task: str) -> None:
        super().__init__(
            f"The Celery task {task!r} was called outside of a run; register it, or await it in a callback",
            {"task": task},
        )


class BeatScheduleError(IntegrationError, ValueError):
    """An entry of `beat_schedule` cannot be translated."""

    def __init__(self, *, entry: str, schedule: str, reason: str) -> None:
        super().__init__(
            f"The entry {entry!r} of beat_schedule, {schedule}, cannot be kept by duly: {reason}",
            {"entry": entry, "schedule": schedule},
        )


class PartTakenError(IntegrationError):
    """One run sends the same task twice."""

    def __init__(self, *, task: str, part: str) -> None:
        super().__init__(
            f"This run has sent the Celery task {task!r} already; tell the two apart with part=..., "
            f"which is {part!r} in both",
            {"task": task, "part": part},
        )


class CeleryTaskError(IntegrationError):
    """The Celery task failed."""

    def __init__(self, *, task: str, task_id: str, error: str, remote_traceback: str | None) -> None:
        super().__init__(
            f"The Celery task {task!r} failed: {error}",
            {"task": task, "task_id": task_id, "error": error, "traceback": remote_traceback},
        )
        if remote_traceback:
            self.add_note(f"In the worker:\n{remote_traceback}")


class CeleryRevokedError(IntegrationError):
    """The Celery task was called off before it was done."""

    def __init__(self, *, task: str, task_id: str, error: str) -> None:
        super().__init__(
            f"The Celery task {task!r} was revoked ({error}): by somebody, or because no worker had begun it "
            "in time",
            {"task": task, "task_id": task_id},
        )


class CeleryIgnoredError(IntegrationError):
    """The worker says that there will be no result."""

    def __init__(self, *, task: str, task_id: str, state: str) -> None:
        super().__init__(
            f"The Celery task {task!r} ended as {state}: it says neither success nor failure",
            {"task": task, "task_id": task_id, "state": state},
        )


class CeleryNotSentError(IntegrationError, TimeoutError):
    """The Celery task could not be sent in time; it certainly was not."""

    def __init__(self, *, task: str, task_id: str, timeout_s: float, reason: str) -> None:
        super().__init__(
            f"The Celery task {task!r} could not be sent within {timeout_s:g} s: {reason}. "
            "Check that the broker and the result backend are up, and their addresses",
            {"task": task, "task_id": task_id, "reason": reason},
        )


class CeleryTimeoutError(IntegrationError, TimeoutError):
    """The Celery task gave no result in time."""

    def __init__(self, *, task: str, task_id: str, timeout_s: float, state: str) -> None:
        super().__init__(
            f"The Celery task {task!r} gave no result within {timeout_s:g} s and was revoked: {state}",
            {"task": task, "task_id": task_id, "state": state},
        )
