"""A recorder for another scheduler: APScheduler 3, through the events that it gives to listeners.

A listener is called when a run is submitted to an executor: that is the event nearest to its start. It is
called again when the executor reports the end. Jobs are recorded if their trigger means
exactly what a five-field cron text means; every other one is left out and named in the log. Pausing is
recorded as an `initialize` that failed, since that, too, ends all starting and forgets nothing. What
APScheduler itself declares missed is recorded as that. It must never harm the scheduler: it changes nothing
there, and when it cannot write, it says so and goes on.

A heartbeat in a thread of its own dates the silence: a scheduler that hangs emits nothing, and
without a heartbeat the time in which it ran nothing would not be in the trace.
"""

import functools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from importlib.metadata import version
from itertools import count, groupby
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from duly.clock import Clock, HostClock
from duly.events import described, warn_operator
from duly.instant import instant_of, milliseconds
from duly.verify import trace
from duly.verify.dues import Dues, ScheduleTextError
from duly.verify.foreign.table import NO_RETRY_MS
from duly.verify.writer import Carried, TraceWriter, header_for, zone_name

_log = logging.getLogger("duly.verify")

_SETTLING_MS = 1000
"""Changes of the jobs within this time are written as one list."""

_DELTA_MS = 30_000
"""How late a start may be. Less than a minute: APScheduler starts nothing for two dues at once, so the start
of one minute must not be taken for a late answer to the minute before."""

_STATE_RUNNING = 1


Key = tuple[str, datetime]
"""How APScheduler identifies a run: the job's id, and the time for which it was scheduled."""
Handler = Callable[["_JobTrace", Any], None]


class APSchedulerRecorder:
    """Records an APScheduler 3 scheduler into a trace file.

    *crons* gives the cron text of jobs, by id; it is taken at its word, and their triggers are not asked.
    *clock* is the clock that the scheduler reads, the host's unless it was replaced. *tick_s* is the interval
    of the heartbeat; None turns it off. With a *clock* there is no heartbeat: only its owner knows
    when its time passes. Call `tick` instead.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        crons: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        proc: str | None = None,
        tick_s: float | None = 5.0,
    ) -> None:
        self._path = path
        self._crons = dict(crons or {})
        for job_id, text in self._crons.items():
            try:
                Dues(text, UTC)
            except ScheduleTextError as error:
                reason = f'the cron text "{text[:80]}" for job "{job_id}" cannot be judged: {error}'
                raise ValueError(reason) from error
        self._clock = clock
        self._proc = proc or uuid.uuid4().hex[:8]  # noqa: TID251 (which process this is)
        self._tick_s = tick_s if clock is None else None
        self._heartbeat: threading.Thread | None = None
        self._closing = threading.Event()
        self._scheduler: Any = None
        self._job_trace: _JobTrace | None = None
        self._zone: tzinfo = UTC
        self._left_out: set[str] = set()
        self._graces_s: dict[str, float | None] = {}
        self._handlers: dict[int, Handler] = {}

    def attach(self, scheduler: Any) -> None:
        """Record *scheduler* from now on, whether it has been started or not."""
        if self._scheduler is not None:
            raise RuntimeError("this recorder has a scheduler already; a trace is of one only")
        self._zone = _zone_to_trace(scheduler.timezone)
        header = msgspec.structs.replace(
            header_for(self._zone, "unknown", 0, is_durable=False),
            impl=f"APScheduler {version('apscheduler')}",
            first_due="after",
            delta_ms=_DELTA_MS,
        )
        self._scheduler = scheduler
        self._job_trace = _JobTrace(self._path, header, self._proc, self._clock)
        self._handlers = self._handlers_by_code()
        scheduler.add_listener(self._on_job_event, sum(self._handlers))
        if scheduler.state == _STATE_RUNNING:
            self._on_started(self._job_trace, None)
        if self._tick_s is not None:
            arguments = (self._job_trace, self._tick_s)
            self._heartbeat = threading.Thread(
                target=self._beat, args=arguments, name="duly-recorder", daemon=True
            )
            self._heartbeat.start()

    def tick(self) -> None:
        if self._job_trace is not None:
            self._job_trace.tick()

    def _beat(self, job_trace: "_JobTrace", tick_s: float) -> None:
        while not self._closing.wait(tick_s):
            job_trace.tick()

    def close(self) -> None:
        """End the recording. The scheduler is not touched."""
        self._closing.set()
        if self._heartbeat is not None:  # it takes no lock but the trace's, so that this cannot wait for ever
            self._heartbeat.join()
        if self._job_trace is not None:
            self._scheduler.remove_listener(self._on_job_event)
            self._job_trace.close()
            self._job_trace = None

    def _handlers_by_code(self) -> dict[int, Handler]:
        from apscheduler import events  # noqa: PLC0415 (a peer: present only where it is used)

        return {
            events.EVENT_SCHEDULER_STARTED: self._on_started,
            events.EVENT_SCHEDULER_RESUMED: self._on_started,
            events.EVENT_SCHEDULER_PAUSED: lambda job_trace, _: job_trace.pause(),
            events.EVENT_SCHEDULER_SHUTDOWN: lambda job_trace, _: job_trace.stop(),
            events.EVENT_JOBSTORE_ADDED: self._on_jobs,
            events.EVENT_JOBSTORE_REMOVED: self._on_jobs,
            events.EVENT_ALL_JOBS_REMOVED: self._on_jobs,
            events.EVENT_JOB_ADDED: self._on_job,
            events.EVENT_JOB_MODIFIED: self._on_job,
            events.EVENT_JOB_REMOVED: self._on_job_removed,
            events.EVENT_JOB_SUBMITTED: self._on_submitted,
            events.EVENT_JOB_EXECUTED: functools.partial(self._on_outcome, ok=True),
            events.EVENT_JOB_ERROR: functools.partial(self._on_outcome, ok=False),
            events.EVENT_JOB_MISSED: functools.partial(self._on_outcome, ok=None),
            events.EVENT_JOB_MAX_INSTANCES: self._on_skipped,
        }

    def _on_job_event(self, event: Any) -> None:
        job_trace = self._job_trace  # None: another thread has closed the recording
        if job_trace is not None:
            self._handlers[event.code](job_trace, event)

    # The jobs are asked for before the trace's lock is taken, never after: a thread that changes jobs holds
    # APScheduler's lock while it calls its listeners.

    def _on_started(self, job_trace: "_JobTrace", _: Any) -> None:
        if self._scheduler.state == _STATE_RUNNING:  # else: started paused
            job_trace.begin(self._texts())

    def _on_jobs(self, job_trace: "_JobTrace", _: Any) -> None:
        if self._scheduler.state == _STATE_RUNNING:
            job_trace.change(self._texts())

    def _on_job(self, job_trace: "_JobTrace", event: Any) -> None:
        if self._scheduler.state == _STATE_RUNNING:
            job = self._scheduler.get_job(event.job_id, event.jobstore)
            job_trace.change_one(event.job_id, self._text(job) if job is not None else None)

    def _on_job_removed(self, job_trace: "_JobTrace", event: Any) -> None:
        job_trace.change_one(event.job_id, None)

    def _on_submitted(self, job_trace: "_JobTrace", event: Any) -> None:
        if event.job_id not in self._left_out:
            grace_s = self._graces_s.get(event.job_id)
            job_trace.submit(event.job_id, event.scheduled_run_times, grace_s)

    def _on_outcome(self, job_trace: "_JobTrace", event: Any, *, ok: bool | None) -> None:
        if event.job_id not in self._left_out:
            job_trace.finish((event.job_id, event.scheduled_run_time), ok=ok)

    def _on_skipped(self, job_trace: "_JobTrace", event: Any) -> None:
        if event.job_id not in self._left_out:
            job_trace.skip(event.job_id, event.scheduled_run_times)

    def _texts(self) -> dict[str, str]:
        texts = {job.id: self._text(job) for job in self._scheduler.get_jobs()}
        return {job_id: text for job_id, text in texts.items() if text is not None}

    def _text(self, job: Any) -> str | None:
        """The cron text of a job; None while it is paused, or if it has none."""
        try:
            text = self._crons.get(job.id) or cron_text_of(job.trigger, self._zone)
        except NotCronError as error:
            self._leave_out(job.id, error.reason)
            return None
        self._left_out.discard(job.id)
        self._graces_s[job.id] = job.misfire_grace_time
        return text if job.next_run_time is not None else None

    def _leave_out(self, job_id: str, reason: str) -> None:
        if job_id not in self._left_out:
            self._left_out.add(job_id)
            _log.warning(
                'job "%s" is not recorded: %s; if it has a cron text, give it in crons', job_id, reason
            )


class _JobTrace:
    """Dates the events, puts it into an order that a trace may have, writes it. Any thread may call."""

    def __init__(self, path: str | os.PathLike[str], header: Any, proc: str, clock: Clock | None) -> None:
        # Listeners are called by several threads. A line is dated and written under the lock, so that lines
        # are in the order of their times.
        self._lock = threading.Lock()
        self._proc = proc
        self._clock = clock or HostClock()
        # Only the host's clock can be compared with the steady one.
        self._steady_s: Callable[[], float] | None = time.monotonic if clock is None else None
        self._writer = TraceWriter(path, header, carried=self._carried_over)
        self._writer.open()
        self._last_us: int | None = self._writer.last_us
        self._looked_s: float | None = None
        self._calls, self._runs = count(1), count(1)
        self._texts: dict[str, str] = {}
        self._is_active = False
        self._unwritten_us: tuple[int, int] | None = None
        """When the first and the last change came that no written list has."""
        self._submitted: dict[Key, int | None] = {}
        """Runs without an outcome: their number if they are written as started."""
        self._early: set[Key] = set()
        """Runs that are over, and whose submission was not reported yet."""
        self._is_complained_of = False

    def begin(self, texts: dict[str, str]) -> None:
        """All of *texts* are scheduled from now on."""
        with self._lock:
            now_us = self._now_us()
            self._texts, self._is_active = dict(texts), True
            self._write_list(now_us, ok=True)

    def pause(self) -> None:
        """Nothing is scheduled from now on, and nothing forgotten."""
        with self._lock:
            now_us = self._settled_us()
            self._is_active = False
            self._write_list(now_us, ok=False)

    def stop(self) -> None:
        """It was shut down. No event says when that began."""
        with self._lock:
            now_us = self._settled_us()
            self._is_active = False
            call = next(self._calls)
            self._write(trace.StopStart, now_us, call=call)
            self._write(trace.StopEnd, now_us, call=call)

    def change(self, texts: dict[str, str]) -> None:
        with self._lock:
            self._before_change(is_change=texts != self._texts)
            self._texts = dict(texts)

    def change_one(self, job_id: str, text: str | None) -> None:
        """One job was added, changed or (None) taken away."""
        with self._lock:
            self._before_change(is_change=self._texts.get(job_id) != text)
            if text is None:
                self._texts.pop(job_id, None)
            else:
                self._texts[job_id] = text

    def submit(self, job_id: str, run_times: list[datetime], grace_s: float | None) -> None:
        """Runs were handed to an executor: the first begins now, the others one after the other."""
        with self._lock:
            now_us = self._settled_us()
            for number, run_time in enumerate(run_times):
                key = (job_id, run_time)
                if key in self._early:
                    self._early.remove(key)
                    continue
                self._submitted[key] = None
                # An executor gives up a run that is too late already; of the rest only the first begins.
                is_late = grace_s is not None and instant_of(run_time + timedelta(seconds=grace_s)) < now_us
                if number == 0 and not is_late:
                    self._start(key, now_us)

    def finish(self, key: Key, *, ok: bool | None) -> None:
        """A run has ended, well or not, or (None) APScheduler has declared it missed: it was never called."""
        with self._lock:
            if key not in self._submitted:
                # An executor's thread may be done before the scheduler's has reported the submission.
                self._early.add(key)
                self._submitted[key] = None
            self._finish(key, self._settled_us(), ok=ok)

    def skip(self, job_id: str, run_times: list[datetime]) -> None:
        """APScheduler has dropped these runs, because the job is running already (`max_instances`)."""
        with self._lock:
            now_us = self._settled_us()
            for run_time in run_times:
                self._write(trace.Missed, now_us, id=job_id, due=milliseconds(instant_of(run_time)))

    def tick(self) -> None:
        with self._lock:
            self._write(trace.Tick, self._settled_us())

    def close(self) -> None:
        with self._lock:
            self._write(trace.End, self._settled_us())
            self._writer.close()

    def _start(self, key: Key, now_us: int) -> int:
        run = self._submitted[key] = next(self._runs)
        self._write(trace.RunStart, now_us, id=key[0], run=run)
        return run

    def _finish(self, key: Key, now_us: int, *, ok: bool | None) -> None:
        run = self._submitted[key]
        if ok is None:
            del self._submitted[key]
            self._write(trace.Missed, now_us, id=key[0], due=milliseconds(instant_of(key[1])), run=run)
            return
        run = self._start(key, now_us) if run is None else run
        del self._submitted[key]
        self._write(trace.RunEnd, now_us, id=key[0], run=run, ok=ok)

    def _before_change(self, *, is_change: bool) -> None:
        """Note the time of a change; lists that have settled are written first."""
        if not self._is_active or not is_change:
            return
        now_us = self._now_us()
        if self._unwritten_us is not None and now_us - self._unwritten_us[0] > _SETTLING_MS * 1000:
            self._settle()
        first_us = self._unwritten_us[0] if self._unwritten_us is not None else now_us
        self._unwritten_us = first_us, now_us

    def _settle(self) -> None:
        """Write the list as it is, at the time at which it became so."""
        if self._unwritten_us is not None:
            _, at_us = self._unwritten_us
            self._unwritten_us = None
            self._write_list(at_us, ok=True)

    def _settled_us(self) -> int:
        """The present time, everything before it written."""
        now_us = self._now_us()
        self._settle()
        return now_us

    def _write_list(self, at_us: int, *, ok: bool) -> None:
        self._unwritten_us = None
        call = next(self._calls)
        self._write(trace.InitStart, at_us, call=call, regs=self._regs())
        self._write(trace.InitEnd, at_us, call=call, ok=ok)

    def _regs(self) -> trace.Regs:
        # APScheduler has no retries.
        return [(job_id, text, NO_RETRY_MS) for job_id, text in self._texts.items()]

    def _now_us(self) -> int:
        """The present time. A step of the clock since the last look is written first."""
        now_us = instant_of(self._clock.now())
        expected_us = self._expected_us(now_us)
        if self._last_us is not None and (now_us < self._last_us or now_us > expected_us):
            self._settle()
            self._write(
                trace.ClockStep, now_us, origin=milliseconds(max(self._last_us, min(expected_us, now_us)))
            )
        self._last_us = now_us
        return now_us

    def _expected_us(self, now_us: int) -> int:
        """The latest that the clock can read without having been set: a thousandth and a second fast."""
        if self._steady_s is None:
            return now_us
        looked_s, self._looked_s = self._looked_s, self._steady_s()
        if looked_s is None or self._last_us is None:
            return now_us
        return self._last_us + round((self._looked_s - looked_s) * 1_001_000) + 1_000_000

    def _write(self, kind: type[Any], at_us: int, **facts: Any) -> None:
        self._put(kind(t=milliseconds(at_us), proc=self._proc, **facts))

    def _put(self, event: Any) -> None:
        try:
            is_well = self._writer.write(event)
        except OSError as error:
            if not self._is_complained_of:
                warn_operator(
                    f"duly: the trace cannot be written and has a gap from here: {described(error)}"
                )
            self._is_complained_of = True
        else:
            self._is_complained_of &= not is_well

    def _carried_over(self) -> Carried | None:
        if not self._is_active or self._last_us is None:
            return None
        at_ms = milliseconds(self._last_us)
        begun = trace.InitStart(t=at_ms, proc=self._proc, call=0, regs=self._regs())
        events = (begun, trace.InitEnd(t=at_ms, proc=self._proc, call=0, ok=True))
        return Carried(events, [(key[0], run) for key, run in self._submitted.items() if run is not None])


def _zone_to_trace(zone: Any) -> tzinfo:
    """The zone of a scheduler as one that a trace can name; pytz has its own kind."""
    name = getattr(zone, "zone", None)
    found = ZoneInfo(name) if name is not None else zone
    zone_name(found)
    return found if isinstance(found, tzinfo) else UTC


# Triggers as cron text. APScheduler counts weekdays from Monday, has seconds, weeks and years, and wants day
# and weekday to match both; cron counts from Sunday, has none of these, and wants either once both are
# restricted. What five fields cannot say is refused with its reason, never approximated.


_BOUNDS = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23)}
_BOUNDS |= {"day": (1, 31), "month": (1, 12), "day_of_week": (0, 6)}
_UNSAYABLE = ("year", "week")
_ORDINARY = ("AllExpression", "RangeExpression", "MonthRangeExpression", "WeekdayRangeExpression")


class NotCronError(ValueError):
    """A trigger that no five-field cron text means exactly."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def cron_text_of(trigger: Any, zone: tzinfo) -> str:
    """The cron text that in *zone* means what *trigger* does. Raises NotCronError if there is none."""
    if type(trigger).__name__ != "CronTrigger":
        raise NotCronError(f"its trigger is {type(trigger).__name__}, not CronTrigger")
    _require_plain(trigger, zone)
    fields = {field.name: field for field in trigger.fields}
    for name in _UNSAYABLE:
        if str(fields[name]) != "*":
            raise NotCronError(f"cron has no field {name}")
    numbers = {name: _numbers(fields[name], *bounds) for name, bounds in _BOUNDS.items()}
    if numbers["second"] != {0}:
        raise NotCronError("it fires at seconds other than 0")
    text = _text(numbers)
    try:
        Dues(text, UTC)
    except ScheduleTextError as error:
        raise NotCronError(f'as cron text it is "{text}", and {error}') from error
    return text


def _require_plain(trigger: Any, zone: tzinfo) -> None:
    if trigger.jitter:
        raise NotCronError("it fires at random within its jitter")
    if trigger.start_date is not None or trigger.end_date is not None:
        raise NotCronError("it is limited by start_date or end_date")
    if _name(trigger.timezone) != _name(zone):
        raise NotCronError(f"its zone is {trigger.timezone}, and the scheduler's {zone}")


def _name(zone: Any) -> str:
    """What identifies a zone: the name of ZoneInfo's and pytz's, or else the offset, which never changes."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    return str(name) if name else datetime(2000, 1, 1, tzinfo=zone).strftime("%Z")


def _text(numbers: dict[str, set[int]]) -> str:
    weekdays = {(weekday + 1) % 7 for weekday in numbers["day_of_week"]}
    day, weekday = _field(numbers["day"], 1, 31), _field(weekdays, 0, 6)
    if day != "*" != weekday:
        raise NotCronError("it restricts both day and weekday; cron fires when either matches")
    minute, hour = _field(numbers["minute"], 0, 59), _field(numbers["hour"], 0, 23)
    return f"{minute} {hour} {day} {_field(numbers['month'], 1, 12)} {weekday}"


def _numbers(field: Any, low: int, high: int) -> set[int]:
    named: set[int] = set()
    for expression in field.expressions:
        if type(expression).__name__ not in _ORDINARY:
            raise NotCronError(f'cron cannot say "{expression}" in the field {field.name}')
        first = getattr(expression, "first", low)
        last = getattr(expression, "last", None)
        named.update(range(first, (high if last is None else last) + 1, expression.step or 1))
    return named


def _field(numbers: set[int], low: int, high: int) -> str:
    """Numbers as a cron field: `*` for all, or else ranges."""
    if len(numbers) == high - low + 1:
        return "*"
    # Numbers that follow each other are equally far ahead of their places in the order.
    groups = groupby(enumerate(sorted(numbers)), lambda each: each[1] - each[0])
    ranges = ([number for _, number in group] for _, group in groups)
    return ",".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else f"{each[0]}" for each in ranges)
