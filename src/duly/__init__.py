"""duly: a scheduler that can say "it ran, once, when it was due"."""

from typing import TYPE_CHECKING

from duly import errors as _errors
from duly.errors import *  # noqa: F403 (errors.__all__ is the list)
from duly.lazy import lazy_names
from duly.version import __version__ as __version__

if TYPE_CHECKING:
    from duly.app import App, Retry
    from duly.bodies import Run, current_run
    from duly.events import Event
    from duly.scheduler import Scheduler, SchedulerState
    from duly.schedules import Schedule, crontab, daily, every, monthly, once, weekly
    from duly.threads import in_thread

__all__ = [
    "App",
    "Event",
    "Retry",
    "Run",
    "Schedule",
    "Scheduler",
    "SchedulerState",
    "crontab",
    "current_run",
    "daily",
    "every",
    "in_thread",
    "monthly",
    "once",
    "weekly",
]
__all__ += _errors.__all__

_HOMES = {
    **dict.fromkeys(("App", "Retry"), "app"),
    **dict.fromkeys(("Run", "current_run"), "bodies"),
    **dict.fromkeys(("Schedule", "crontab", "daily", "every", "monthly", "once", "weekly"), "schedules"),
    **dict.fromkeys(("Scheduler", "SchedulerState"), "scheduler"),
    "Event": "events",
    "in_thread": "threads",
}


# A command that only talks to a daemon needs neither loop nor database.
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
