"""Celery's beat on duly: `celery -A proj beat -S duly.integrations.celery:BeatScheduler`.

Beat's own loop only sleeps. An App in the background has one task for each entry of `beat_schedule`, and a
run of it sends the Celery task. So what holds for every task of an App holds here: missed sends are made up
for once, DST is that of cron, a broker that is down is tried again, and of several beats only one sends.

A run sends under its own id (`Run.id`). If a crash comes between the sending and the record of its end, the
run starts again and sends the same id again: the only case in which a task is sent twice.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from copy import copy
from datetime import timedelta, tzinfo
from typing import Any

from celery.beat import Scheduler as CeleryScheduler
from celery.schedules import BaseSchedule
from celery.schedules import crontab as celery_crontab
from celery.schedules import schedule as celery_interval
from celery.utils.log import get_logger

from duly.app import App, BackgroundApp, Retry
from duly.bodies import Run
from duly.cron.fields import FIELDS
from duly.cron.spelling import compact
from duly.integrations.errors import BeatScheduleError
from duly.schedules import Schedule, crontab, every

__all__ = ["BeatScheduler"]

_log = get_logger("celery.beat")
_STORE = "celerybeat-duly.db"
_RETRY = Retry("1s", factor=2, max_delay="1m")


class BeatScheduler(CeleryScheduler):  # type: ignore[misc] # Celery has no types
    """A scheduler for `celery beat -S`. The setting `duly_store` says where it keeps its state."""

    controls: BackgroundApp
    """The blocking controls of what was declared, once beat runs."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        conf, zone = self.app.conf, self.app.timezone
        self._jobs = App(conf.get("duly_store", _STORE), timezone=zone, standby=True)
        declare(self._jobs, self.schedule.values(), self._send, zone, conf.beat_cron_starting_deadline)
        self._running: AbstractContextManager[BackgroundApp] | None = None

    def tick(self, *_args: object, **_kwargs: object) -> float:
        """Start at the first call, which comes after beat has forked; how long to sleep."""
        if self._running is None:
            running = self._jobs.background()
            self.controls = running.__enter__()
            self._running = running
        return float(self.max_interval)

    def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)
        super().close()

    @property
    def info(self) -> str:
        """What beat shows when it starts."""
        return f"    . store -> {self.app.conf.get('duly_store', _STORE)}"

    def _send(self, entry: Any, run: Run) -> None:
        _log.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        # A copy: beat keeps the entry, which must not carry the id of this run.
        sent = copy(entry)
        sent.options = {"task_id": str(run.id), **entry.options}
        self.apply_async(sent, advance=False)


def declare(
    jobs: App,
    entries: Iterable[Any],
    send: Callable[[Any, Run], None],
    zone: tzinfo,
    deadline_s: float | None = None,
) -> None:
    """Declare a task for each entry. Raises BeatScheduleError for a schedule that duly does not have.

    *zone* is that of the app. A crontab that was missed by more than *deadline_s* is not sent.
    """
    for entry in entries:
        schedule = entry.schedule
        is_cron = isinstance(schedule, celery_crontab)
        try:
            jobs.declare(
                _sending(entry, send),
                schedule_of(schedule),
                name=entry.name,
                timezone=schedule.tz if is_cron and str(schedule.tz) != str(zone) else None,
                retry=_RETRY,
                catch_up=timedelta(seconds=deadline_s) if is_cron and deadline_s else "once",
            )
        except ValueError as error:
            raise BeatScheduleError(entry=entry.name, schedule=repr(schedule), reason=str(error)) from error


def _sending(entry: Any, send: Callable[[Any, Run], None]) -> Callable[[Run], None]:
    def body(run: Run) -> None:
        send(entry, run)

    return body


def schedule_of(schedule: BaseSchedule) -> Schedule:
    """The schedule of duly that means the same. Raises ValueError if there is none."""
    if schedule.nowfun is not None:
        raise ValueError("it has a clock of its own (nowfun); set the timezone of the Celery app")
    if isinstance(schedule, celery_crontab):
        return _cron(schedule)
    if type(schedule) is not celery_interval:
        raise ValueError(f"duly has no {type(schedule).__name__} schedules; crontab and intervals will do")
    if schedule.relative:
        raise ValueError("an interval cannot be relative; write a crontab, such as crontab(minute=0)")
    return every(schedule.run_every)


def _cron(schedule: Any) -> Schedule:
    """Celery has parsed the fields already. Unlike POSIX it wants day and weekday both to match."""
    values = (
        schedule.minute,
        schedule.hour,
        schedule.day_of_month,
        schedule.month_of_year,
        schedule.day_of_week,
    )
    words = [
        "*" if len(set(each)) == field.highest - field.lowest + 1 else compact(set(each))
        for field, each in zip(FIELDS, values, strict=True)
    ]
    if "*" not in {words[2], words[4]}:
        raise ValueError(
            "it names days of the month and of the week, and Celery wants both to match; "
            "name one of them here, and look at the other in the task"
        )
    return crontab(" ".join(words))
