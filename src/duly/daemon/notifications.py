"""Notifications: messages about jobs, and their delivery, which survives a restart.

    events ─────┐
                ├── outage_after   decides; pure ── rows of `outage` ── a sender for each [[notify]]
    each minute ┘                                    (SQLite)            digest, retries, back-off

For each notify and job there is at most one `Outage`. It opens with the first trouble and ends when the job
is well again, so there is one message for each, whatever else happens meanwhile. What is not yet delivered
stays in its row: a restart neither loses nor repeats it. Events report failures, misses and successes at
once. Once a minute the health of each job shows the rest: what hangs, is silent, or changed while the daemon
was down.

What fails: a receiver is tried again, with pauses up to five minutes, and is a fault in the status meanwhile.
A store that cannot write holds no message back. A crash between a delivery and the write that notes it
sends the message again, with the same id. Nothing here is waited for by a run; what blocks is in threads.
"""

import asyncio
import hashlib
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import tzinfo
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

import msgspec

from duly.clock import Clock, pause
from duly.config.schema import Config, Notify, Service
from duly.daemon.backend import ReadBackend
from duly.daemon.health import CRASH_LOOP, FAILING, HUNG, NEVER_SUCCEEDED, STEADY_US, EntryState, HealthJudge
from duly.daemon.protocol import OperationError
from duly.daemon.views import MISSES, last_lines
from duly.errors import StoreError
from duly.events import Announcer, Event, described
from duly.formatting import counted, length
from duly.instant import SECOND_US, Instant, back_off, instant_of, iso
from duly.observe.delivery import DeliveryError, Message, deliver
from duly.supervisor.services import ServiceView
from duly.threads import Worker

_GATHER_S = 1.0
_PERIOD_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2, 300
_GRACE_S = 2.0
"""How long the end of the daemon waits for deliveries under way."""
_MOST_NOTICES = 10
"""Of one outage; the last takes the place of what came before it."""
_MOST_ALONE, _MOST_LISTED = 5, 50
_LINES, _MOST_OUTPUT = 20, 3_000
_AT_ONCE = 250
_TROUBLES = (FAILING, NEVER_SUCCEEDED, CRASH_LOOP)


class Notice(msgspec.Struct, frozen=True):
    """Something to tell."""

    event: str
    at_us: Instant
    text: str
    run: int | None = None


class Outage(msgspec.Struct, frozen=True):
    """The trouble of a job, as one notify has it: `notices` are those that are not delivered yet."""

    since_us: Instant
    is_over: bool = False
    notices: tuple[Notice, ...] = ()


class JobNews(NamedTuple):
    """What was found out about a job."""

    event: str
    text: str
    run: int | None = None
    failed: int = 1
    """How often in a row."""


def outage_after(outage: Outage | None, found: JobNews, notify: Notify, now_us: Instant) -> Outage | None:
    """The outage of a job after something was found out about it; None if there is none."""
    notices = () if outage is None else outage.notices
    notice = Notice(found.event, now_us, found.text, found.run)
    if outage is not None and not outage.is_over:
        if found.event != "recovery":
            return outage
        if "recovery" in notify.on:
            lasted = length(max(now_us - outage.since_us, 0) / SECOND_US)
            text = f"{found.text}, after {lasted}"
            notices = (*notices[: _MOST_NOTICES - 1], msgspec.structs.replace(notice, text=text))
        return Outage(outage.since_us, True, notices) if notices else None
    if found.event != "silence" and found.event not in notify.on:
        return outage
    if found.event == "recovery" or (found.event == "failure" and found.failed < notify.failures):
        return outage
    return Outage(now_us, notices=(*notices[: _MOST_NOTICES - 1], notice))


class Notifications:
    """The messages of all `[[notify]]`. *view* shows a service; *loading* is entered to call a command."""

    def __init__(
        self,
        backend: ReadBackend,
        view: Callable[[str], ServiceView | None],
        clock: Clock,
        announcer: Announcer,
        *,
        zone: tzinfo,
        loading: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._backend, self._view, self._clock, self._zone = backend, view, clock, zone
        self._announce, self._loading = announcer.announce, loading
        announcer.listen(self._on_event, ("ServiceRunEnded", "TimerMissed"))
        self._plan = _Plan(backend.config)
        self._outages: dict[tuple[str, str], Outage] = {}
        self._unsaved: set[tuple[str, str]] = set()
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._workers: dict[str, Worker] = {}
        """A thread each: a receiver that hangs keeps no other waiting."""
        self._sent_us: dict[str, deque[Instant]] = {}
        """When the newest messages were sent."""
        self._delivering: set[str] = set()
        self._faults: dict[str, str] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_closing = False

    # --- life ---

    async def open(self) -> None:
        """Read the messages that are not delivered yet. Raises StoreError."""
        for notify_id, job, state in await self._backend.history.outages():
            with suppress(msgspec.MsgspecError):  # damaged: it is found out again
                self._outages[notify_id, job] = msgspec.json.decode(state, type=Outage)

    def start(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look_on(), name="duly notifications")

    async def close(self) -> None:
        self._is_closing = True
        if self._looking is not None:
            self._looking.cancel()
        busy = [self._senders[notify_id] for notify_id in self._delivering]
        if busy:
            await asyncio.wait(busy, timeout=_GRACE_S)
        for sender in self._senders.values():
            sender.cancel()
        for worker in self._workers.values():
            worker.end()
        await self._save()

    def faults(self) -> list[str]:
        return list(self._faults.values())

    # --- what happens ---

    def _current_plan(self) -> "_Plan":
        if self._plan.config is not self._backend.config:
            self._plan = _Plan(self._backend.config)
        return self._plan

    def _on_event(self, event: Event) -> None:
        plan, fields = self._current_plan(), event.fields
        if not plan.config.notify:
            return
        if event.name == "TimerMissed":
            timer = plan.timers.get(fields["timer"])
            reason = fields["reason"]
            is_owed = timer is not None and (timer.persistent or reason != "shutdown")
            if timer is not None and is_owed and not reason.startswith("disabled"):
                text = f"timer {timer.id} missed a slot: {MISSES.get(reason, reason)}"
                self._find(timer.target, JobNews("missed", text))
            return
        service = plan.services.get(fields["service"])
        if service is None or not plan.notified(service.id):
            return
        if fields["result"] == "success" and service.type == "oneshot":
            self._find(service.id, _recovery(service))
        elif fields["result"] not in {"success", "interrupted"} and (view := self._view(service.id)):
            states = HealthJudge(self._now_us(), self._zone, plan.config, None).states(service, view)
            for found in _failures(states, view, fields["runId"]):
                self._find(service.id, found)

    def _find(self, job: str, found: JobNews, notify: Notify | None = None) -> None:
        for each in self._current_plan().notified(job) if notify is None else (notify,):
            key = (each.id, job)
            before = self._outages.get(key)
            after = outage_after(before, found, each, self._now_us())
            if after is before:
                continue
            if after is None:
                del self._outages[key]
            else:
                self._outages[key] = after
            self._unsaved.add(key)
            self._send_soon(each.id)

    # --- once a minute ---

    async def _look_on(self) -> None:
        for notify_id, _ in self._outages:
            self._send_soon(notify_id)
        while True:
            try:
                await self._look()
            except Exception as error:  # a fault of ours must be seen, and ends nothing
                self._faults[""] = f"notifications do not see what hangs: {described(error)}"
            await pause(self._clock, _PERIOD_S)

    async def _look(self) -> None:
        plan = self._current_plan()
        # What is invalid was not removed.
        known = {*plan.notify, *plan.services, *(bad.id for bad in plan.config.invalid)}
        for key in list(self._outages):
            if not known.issuperset(key):
                del self._outages[key]
                self._unsaved.add(key)
        if plan.config.notify:
            with suppress(OperationError):  # a database that is away: as far as this machine knows
                await self._backend.refresh()
            judge = HealthJudge(self._now_us(), self._zone, plan.config, self._backend.timers())
            for number, service in enumerate(plan.config.services):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
                # Seen now: an end that came meanwhile has been reported.
                if (notified := plan.notified(service.id)) and (view := self._view(service.id)) is not None:
                    self._look_at(judge, service, view, notified)
        await self._save()

    def _look_at(
        self, judge: HealthJudge, service: Service, view: ServiceView, notified: Sequence[Notify]
    ) -> None:
        states = list(judge.states(service, view))
        run = None if view.last_run is None or view.run_id is not None else view.last_run.id
        found = [*_failures(states, view, run)]
        found += [JobNews("hung", state.message, view.run_id) for state in states if state.state == HUNG]
        success_us, silent_us = judge.last_success_us(service.id, view), judge.silent_us(service, view)
        now_us = self._now_us()
        for notify in notified:
            each = list(found)
            if notify.silence is not None and (silent_us or 0) > notify.silence * SECOND_US:
                text = f"service {service.id} has not succeeded for {length((silent_us or 0) / SECOND_US)}"
                each.append(JobNews("silence", text))
            outage = self._outages.get((notify.id, service.id))
            if not each and outage is not None:
                is_up = view.run_id is not None and now_us - (view.since_us or now_us) >= STEADY_US
                has_succeeded = (success_us or 0) > outage.since_us
                if is_up or view.state == "done" if service.type == "simple" else has_succeeded:
                    each.append(_recovery(service))
            for finding in each:
                self._find(service.id, finding, notify)

    # --- delivery ---

    def _send_soon(self, notify_id: str) -> None:
        sender = self._senders.get(notify_id)
        if (sender is None or sender.done()) and not self._is_closing:
            task = asyncio.get_running_loop().create_task(self._send(notify_id), name="duly notify")
            self._senders[notify_id] = task

    async def _send(self, notify_id: str) -> None:
        await self._save()
        pause_s = _FIRST_PAUSE_S
        sent_us = self._sent_us.setdefault(notify_id, deque(maxlen=_MOST_ALONE))
        while not self._is_closing:
            # Many that fail together, or one after the other, become one message.
            is_busy = len(sent_us) == _MOST_ALONE and self._now_us() - sent_us[0] < _PERIOD_S * SECOND_US
            await pause(self._clock, _PERIOD_S if is_busy else _GATHER_S)
            notify = self._current_plan().notify.get(notify_id)
            waiting = self._waiting(notify_id)
            if notify is None or not waiting:
                self._faults.pop(notify_id, None)
                return
            notices = waiting if len(waiting) > _MOST_ALONE else waiting[:1]
            message = await self._message(notify, notices)
            if (fault := await self._fault_of(notify, message, notices[0][1].at_us)) is None:
                self._faults.pop(notify_id, None)
                pause_s = _FIRST_PAUSE_S
                sent_us.append(self._now_us())
                self._forget(notify_id, notices)
                self._announce("NotificationSent", notify=notify_id, about=message.event, jobs=message.jobs)
                await self._save()
                continue
            if notify_id not in self._faults:
                self._announce("NotificationFailed", notify=notify_id, reason=fault)
            self._faults[notify_id] = f"notify {notify_id} cannot deliver: {fault}"
            await pause(self._clock, pause_s)
            pause_s = back_off(pause_s, _LONGEST_PAUSE_S)

    async def _fault_of(self, notify: Notify, message: Message, at_us: Instant) -> str | None:
        """Deliver a message; what went wrong, if anything did."""
        worker = self._workers.setdefault(notify.id, Worker(f"duly notify {notify.id}"))
        self._delivering.add(notify.id)
        try:
            # The reaper must leave the exit of a command to us.
            with self._loading() if notify.command else nullcontext():
                await worker.do(partial(deliver, notify, message, at_us))
        except DeliveryError as error:
            return str(error)
        except Exception as error:
            return type(error).__name__  # what it says may hold a secret
        finally:
            self._delivering.discard(notify.id)
        return None

    def _waiting(self, notify_id: str) -> list[tuple[str, Notice]]:
        """The notices that wait, oldest first, each with its job."""
        found = [
            (job, notice)
            for (name, job), outage in self._outages.items()
            if name == notify_id
            for notice in outage.notices
        ]
        return sorted(found, key=lambda each: each[1].at_us)

    def _forget(self, notify_id: str, notices: Sequence[tuple[str, Notice]]) -> None:
        for job, notice in notices:
            if (outage := self._outages.get((notify_id, job))) is None:
                continue
            left = tuple(each for each in outage.notices if each != notice)
            if outage.is_over and not left:
                del self._outages[notify_id, job]
            else:
                self._outages[notify_id, job] = msgspec.structs.replace(outage, notices=left)
            self._unsaved.add((notify_id, job))

    async def _message(self, notify: Notify, notices: Sequence[tuple[str, Notice]]) -> Message:
        _, notice = notices[0]
        seed = "\0".join(f"{notify.id}\0{job}\0{notice.event}\0{notice.at_us}" for job, notice in notices)
        jobs = list(dict.fromkeys(job for job, _ in notices))
        message = Message(
            id=hashlib.blake2s(seed.encode(errors="replace"), digest_size=16).hexdigest(),
            notify=notify.id,
            event=notice.event,
            jobs=jobs,
            host=socket.gethostname(),
            at=iso(notice.at_us, self._zone),
            text=notice.text,
            run=notice.run,
        )
        if len(notices) == 1:
            return msgspec.structs.replace(message, output=await self._output(notice.run))
        lines = [f"{counted(len(notices), 'message')} about {counted(len(jobs), 'job')}:"]
        lines += [f"- {each.text}" for _, each in notices[:_MOST_LISTED]]
        lines += [f"and {len(notices) - _MOST_LISTED:,} more"] if len(notices) > _MOST_LISTED else []
        return msgspec.structs.replace(message, event="digest", text="\n".join(lines), run=None)

    async def _output(self, run: int | None) -> str:
        if run is None:
            return ""
        if (tail := self._backend.output(run)) is not None:
            return last_lines(tail.text(), _LINES)[-_MOST_OUTPUT:]
        with suppress(StoreError):
            row = await self._backend.history.run(run)
            return "" if row is None else last_lines(row.output, _LINES)[-_MOST_OUTPUT:]
        return ""

    async def _save(self) -> None:
        changed, self._unsaved = self._unsaved, set()
        rows = [(*key, _text_of(self._outages.get(key))) for key in changed]
        try:
            if rows:
                await self._backend.history.put_outages(rows)
        except StoreError:  # the history reports it; written with the next change
            self._unsaved |= changed

    def _now_us(self) -> Instant:
        return instant_of(self._clock.now())


class _Plan:
    """A configuration, looked up by id."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.services = {service.id: service for service in config.services}
        self.timers = {timer.id: timer for timer in config.timers}
        self.notify = {notify.id: notify for notify in config.notify}
        self._names: dict[str, list[str]] = {}
        for timer in config.timers:
            self._names.setdefault(timer.target, []).append(timer.id)
        self._notified: dict[str, list[Notify]] = {}

    def notified(self, service_id: str) -> list[Notify]:
        """Who wants to know of a service, by its own id or that of a timer that fires it."""
        if service_id not in self._notified:
            names = [service_id, *self._names.get(service_id, ())]
            self._notified[service_id] = [
                notify
                for notify in self.config.notify
                if any(fnmatchcase(name, pattern) for name in names for pattern in notify.jobs)
            ]
        return self._notified[service_id]


def _failures(states: Iterable[EntryState], view: ServiceView, run: int | None) -> Iterator[JobNews]:
    for state in states:
        if state.state in _TROUBLES:
            yield JobNews("failure", state.message, run, max(view.past.failed, 1))


def _text_of(outage: Outage | None) -> str | None:
    return None if outage is None else msgspec.json.encode(outage).decode()


def _recovery(service: Service) -> JobNews:
    return JobNews("recovery", f"service {service.id} is well again")
