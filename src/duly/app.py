"""App: functions with schedules, on the engine of `Scheduler`.

    app = App("state.db")

    @app.task(every("30s"))
    def ping() -> None: ...

    app.run()

An app collects declared tasks and hands them to a scheduler as one list. So everything that holds for a
scheduler holds here: a start is on disk before the function is called, a restart reconciles the list with
what the store remembers, and the same trace is recorded and checked. The app adds what programs need around
that: plain functions in threads, options for each task, requests (`run_now`, `pause`), and ways to run inside
of another program.
"""

import asyncio
import inspect
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, tzinfo
from functools import wraps
from itertools import chain
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_type_hints,
    overload,
)

import msgspec
import tzlocal

from duly.background import retrieve_outcome
from duly.bodies import Run, current_run, surrounded
from duly.clock import Clock
from duly.cluster.store import ClusterStore
from duly.cluster.tasks import ClusterTasks, place_of
from duly.core.entries import NewEntry, entry_text
from duly.core.task import Task
from duly.core.timing import in_words, parts_of
from duly.declarations import (
    Declarations,
    EntryOptions,
    F,
    P,
    PlainBody,
    Retry,
    RunOptions,
    TaskOptions,
    check_number,
    zone_of,
)
from duly.engine.task_backend import RunAnswer
from duly.engine.task_runs import HistoryLimits, TaskRun, task_run
from duly.errors import (
    ForeignEventLoopError,
    NoSuchTaskError,
    SchedulerError,
    ScheduleTaskError,
    StoreError,
    StoreInUseError,
)
from duly.events import Event, Listener, described
from duly.formatting import close_names, counted
from duly.instant import EARLIEST_US, LATEST_US, NEVER_US, SECOND_US, Instant, datetime_at, instant_of
from duly.scheduler import Scheduler, SchedulerState
from duly.schedules import Length, Schedule, length_of
from duly.sockets import SocketPathError
from duly.standby import ControlServer, asked, end_of_run, raised
from duly.store import SQLiteStore, Store
from duly.store.history import WantedTaskRuns

__all__ = ["App", "BackgroundApp", "Retry", "Run", "RunHandle", "TaskRun", "TaskStatus", "current_run"]

ResultName = Literal["success", "failure", "timeout", "cancelled", "interrupted"]

A = TypeVar("A")
Q = ParamSpec("Q")

_STANDBY_S = 0.5
"""How often a standby asks whether the store is free."""
_LOOK_S = 0.5
"""How often a process looks whether another one has ended a run that was asked for."""

_MOST_RUNS = 1_000_000_000

TaskState = Literal["waiting", "running", "retrying", "paused", "disabled", "waiting for its kind"]


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as `App.tasks` shows it."""

    name: str
    schedule: str
    """In words."""
    text: str
    """As it is stored."""
    timezone: str
    state: TaskState
    last_start: datetime | None
    last_success: datetime | None
    last_failure: datetime | None
    next_due: datetime | None
    """When it is due or tried again; in the past if that is owed."""
    tags: tuple[str, ...] = ()
    kind: str | None = None
    """Of an entry: what it is an entry of."""
    args: Mapping[str, Any] | None = None
    """Of an entry: what its function is called with."""

    @property
    def last_result(self) -> Literal["success", "failure"] | None:
        """How the last run ended that has ended."""
        if self.last_failure is None:
            return None if self.last_success is None else "success"
        return "failure" if self.last_success is None or self.last_success < self.last_failure else "success"


class RunHandle:
    """A run that was asked for. Await it for its end; it raises what the run has raised."""

    def __init__(self, task: str, ended: "asyncio.Future[None]") -> None:
        self.task = task
        self._ended = ended

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self._ended).__await__()


_RUN_EVENTS = ("TaskRunStarted", "TaskRunCompleted", "TaskRunFailed")
_CONTROLS: list[str] = []
"""What a standby may ask for."""


def _control(
    method: Callable[Concatenate["App", Q], Coroutine[Any, Any, A]],
) -> Callable[Concatenate["App", Q], Coroutine[Any, Any, A]]:
    """A control that the process which holds the store carries out, if this one stands by."""
    signature, name = inspect.signature(method), method.__name__

    @wraps(method)
    async def control(self: "App", /, *args: Q.args, **kwargs: Q.kwargs) -> A:
        store = self._shared
        if store is None or not self._is_standing_by():
            return await method(self, *args, **kwargs)
        params = signature.bind(self, *args, **kwargs).arguments
        del params["self"]
        found = await asked(_socket_of(store), store.name, name, params, is_waiting=self._is_standing_by)
        if found is None:  # it has taken over meanwhile
            return await method(self, *args, **kwargs)
        # The answer is JSON: the annotation of the control says what it means.
        value, reader, writer = found
        kind: Any = get_type_hints(method)["return"]
        if kind is RunHandle:
            ended = asyncio.ensure_future(end_of_run(reader, writer, store.name))
            self._elsewhere.add(ended)
            ended.add_done_callback(self._elsewhere.discard)
            # Nobody need await a request. Without this asyncio would log a failure that nobody looked at.
            ended.add_done_callback(retrieve_outcome)
            return cast("A", RunHandle(params["name"], ended))
        writer.close()
        return cast("A", _in_zone(msgspec.convert(value, kind), self._zone))

    _CONTROLS.append(name)
    return control


def _socket_of(store: SQLiteStore) -> str:
    return f"{store.path}.sock"


def _in_zone(value: Any, zone: tzinfo) -> Any:
    """What came as JSON, with its times in *zone*."""
    if isinstance(value, list):
        return [_in_zone(each, zone) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(
        value,
        **{name: at.astimezone(zone) for name, at in found.items() if isinstance(at, datetime)},
    )


class App:
    """Tasks of one program. *store* is a path, ":memory:", "sqlite:///jobs.db" or "postgresql://...".

    *limits* gives names to limits: so many runs of tasks with that limit are in flight in this process at
    once. With *standby* a second process waits while the first holds the store, and takes over when that
    ends. Of each task at most *history_count* runs are remembered, for *history_age*.
    """

    def __init__(
        self,
        store: "str | os.PathLike[str] | Store | ClusterStore",
        *,
        timezone: str | tzinfo | None = None,
        listeners: Iterable[Listener] = (),
        clock: Clock | None = None,
        max_concurrent_runs: int | None = None,
        limits: Mapping[str, int] | None = None,
        standby: bool = False,
        history_age: Length = "30d",
        history_count: int = 1_000,
    ) -> None:
        kept = HistoryLimits(length_of("App(history_age=...)", history_age), history_count)
        check_number("App(history_count=...)", history_count, 1, None, of=int)
        if isinstance(store, str) and store.startswith("sqlite:///"):
            store = store.removeprefix("sqlite:///") or ":memory:"
        self._zone = zone_of("App(timezone=...)", timezone) or tzlocal.get_localzone()
        self._place = place = place_of(store)
        if callable(listeners):
            raise TypeError("App(listeners=...) needs a list of functions, such as [on_event]")
        self._scheduler = Scheduler(
            place,
            clock=clock,
            timezone=self._zone,
            listeners=listeners,
            max_concurrent_runs=max_concurrent_runs,
        )
        # Of no other events: a list of 100,000 tasks has two events for each.
        self._backend = self._scheduler._backend  # noqa: SLF001
        self._backend.remember_runs(kept)
        self._announce = self._scheduler._announce  # noqa: SLF001
        self._is_standby_allowed = standby
        self._declarations = Declarations(self._zone, {} if limits is None else limits, self._body)
        self._backend.allow(self._declarations.kinds, self._declarations.limits)
        self._shared = place if standby and isinstance(place, SQLiteStore) else None
        """The store that other processes wait for, or this one."""
        self._server: ControlServer | None = None
        self._watches: set[asyncio.Task[None]] = set()
        """Each looks for the end of a run that was asked for, and that another process may run."""
        self._elsewhere: set[asyncio.Future[None]] = set()
        """Runs that the process that holds the store was asked for."""
        self._is_listening = False
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Requests whose run has not begun, by task."""
        self._running: dict[str, list[asyncio.Future[None]]] = {}
        self._standing_by: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it runs or stands by."""

    # --- declaring ---

    @overload
    def task(self, schedule: Schedule | str, **options: Unpack[TaskOptions]) -> Callable[[P], P]: ...
    @overload
    def task(
        self,
        schedule: Schedule | str,
        *,
        args: Sequence[object],
        kwargs: Mapping[str, object] = ...,
        **options: Unpack[TaskOptions],
    ) -> Callable[[F], F]: ...
    @overload
    def task(
        self, schedule: Schedule | str, *, kwargs: Mapping[str, object], **options: Unpack[TaskOptions]
    ) -> Callable[[F], F]: ...
    def task(self, schedule: Any, **options: Any) -> Callable[[F], F]:
        """Declare the decorated function as a task, with the options of `declare`.

        It stays a function: call it as before.
        """
        if callable(schedule):
            name = getattr(schedule, "__name__", schedule)
            raise TypeError(f"task {name!r} has no schedule; write @app.task(every('5m'))")

        def declare(function: F) -> F:
            self.declare(function, schedule, **options)
            return function

        return declare

    @overload
    def declare(
        self, function: PlainBody, schedule: Schedule | str, **options: Unpack[TaskOptions]
    ) -> None: ...
    @overload
    def declare(
        self,
        function: Callable[..., object],
        schedule: Schedule | str,
        *,
        args: Sequence[object],
        kwargs: Mapping[str, object] = ...,
        **options: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def declare(
        self,
        function: Callable[..., object],
        schedule: Schedule | str,
        *,
        kwargs: Mapping[str, object],
        **options: Unpack[TaskOptions],
    ) -> None: ...
    def declare(
        self,
        function: Callable[..., object],
        schedule: Schedule | str,
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        """Declare a task without a decorator: a bound method, or one function with several arguments.

        A parameter that is annotated with `Run` gets the run. A plain function runs in a thread. *args* and
        *kwargs* are what the function is called with. The options are name, timezone, spread, timeout, retry,
        catch_up, limit, enabled and tags (`TaskOptions`).
        """
        if self._loop is not None:
            name = options.get("name") or getattr(function, "__name__", function)
            raise RuntimeError(
                f"task {name!r} is declared while the app runs; declare it before, or add an entry (app.add)"
            )
        self._declarations.add_task(function, schedule, args, kwargs or {}, options)

    def kind(self, **options: Unpack[RunOptions]) -> Callable[[F], F]:
        """Declare the decorated function as a kind: entries of it are added at run time (`add`).

        The options are name, timeout, retry, catch_up, limit and tags; they hold for all its entries.
        """

        def declare(function: F) -> F:
            self._declarations.add_kind(function, options)
            return function

        return declare

    def around(self) -> AbstractContextManager[object]:
        """What each body runs in, such as a session; a subclass may say. Entered in the body's thread."""
        return nullcontext()

    def _body(self, function: Callable[..., object]) -> Callable[..., object]:
        is_surrounded = type(self).around is not App.around and callable(function)
        return surrounded(function, self.around) if is_surrounded else function

    # --- running ---

    async def start(self) -> None:
        """Start what is declared. With *standby*, return at once if another process holds the store."""
        try:
            await self._take_over()
            self._loop = asyncio.get_running_loop()
        except StoreInUseError as error:
            if not self._is_standby_allowed:
                error.add_note("or let this one wait for the other with App(..., standby=True)")
                raise
            self._loop = asyncio.get_running_loop()
            self._standing_by = self._loop.create_task(self._stand_by())

    async def stop(self) -> None:
        """Start nothing more, wait for the runs in flight, and let go of the store."""
        self._loop = None
        if self._server is not None:
            self._server.close()  # while this process holds the store still: its socket is not another's
            self._server = None
        for watch in self._watches:
            watch.cancel()
        # Before the scheduler is stopped: else it might take over just now, and start everything again.
        standing_by, self._standing_by = self._standing_by, None
        if standing_by is not None:
            standing_by.cancel()
            with suppress(asyncio.CancelledError):
                await standing_by
        await self._scheduler.stop()
        # For a start that took the file and then failed. A store that was opened is unlocked by now.
        if self._shared is not None:
            self._shared.leave()
        elsewhere = set(self._elsewhere)
        for ended in (*chain(*self._waiting.values()), *chain(*self._running.values()), *elsewhere):
            ended.cancel()  # nobody is left to say how these went on
        if elsewhere:
            await asyncio.wait(elsewhere)
        self._waiting.clear()
        self._running.clear()

    async def _bring(self) -> None:
        try:
            await self._scheduler._bring(list(self._declarations.tasks.values()))  # noqa: SLF001 (one engine, two faces)
        except ScheduleTaskError as error:
            if isinstance(error.__cause__, StoreError):
                raise error.__cause__ from None  # the contract of Scheduler blames the first task of the list
            raise

    async def _take_over(self) -> None:
        """Start, unless another process has the store: then raise StoreInUseError and announce nothing."""
        if self._shared is not None:
            # First the lock of the file, and nothing else: a process that stands by tries this twice a
            # second, and must not announce a fault each time.
            self._shared.take()
        await self._bring()
        if self._shared is None or self._server is not None:
            return
        # After the store is ours: only its holder may replace the socket that a dead holder left.
        self._server = ControlServer(
            _socket_of(self._shared), {name: getattr(self, name) for name in _CONTROLS}
        )
        try:
            await self._server.open()
        except SocketPathError as error:
            self._announce(
                "StoreFault", error=f"a standby has no controls: {_socket_of(self._shared)}: {error}"
            )

    async def _stand_by(self) -> None:
        while True:
            await asyncio.sleep(_STANDBY_S)  # noqa: TID251 (the other process lives by the host's time)
            try:
                await self._take_over()
            except StoreInUseError:
                continue
            except SchedulerError as error:  # such as a full disk: the other process may still be at work
                self._announce("StoreFault", error=described(error))
            else:
                return

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def run(self) -> None:
        """Run until SIGTERM or Ctrl-C. Runs in flight are waited for; a second Ctrl-C cuts them off."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("app.run() needs the main thread, for its signals; use app.background() here")
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 (the public one raises)
            raise RuntimeError("app.run() cannot run in an event loop; write `async with app:` there")
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, asked)
        try:
            async with self:
                await asked.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _on_signal(self, asked: asyncio.Event) -> None:
        if asked.is_set():
            os._exit(130)  # what runs is interrupted, and starts again in the next life
        names = self._backend.poller.runs.names()
        if names:
            print(  # noqa: T201 (who pressed Ctrl-C looks here)
                f"duly: waiting for {counted(len(names), 'run')} ({', '.join(names[:5])}); "
                "press Ctrl-C again to cut them off",
                file=sys.stderr,
                flush=True,
            )
        asked.set()

    @contextmanager
    def background(self) -> "Iterator[BackgroundApp]":
        """Run in a thread of its own, for programs without an event loop; the controls block there."""
        background = BackgroundApp(self)
        background._begin()  # noqa: SLF001 (two halves of one thing)
        try:
            yield background
        finally:
            background._end()  # noqa: SLF001

    def dashboard(
        self, *, token: str | None = None, viewer_token: str | None = None, is_open: bool = False
    ) -> Callable[..., Awaitable[None]]:
        """The dashboard of this app, to be mounted: `api.mount("/jobs", jobs.dashboard(token=...))`.

        It is an ASGI application, and needs `pip install 'duly[web]'`. Who has the *token* may act, and who
        has the *viewer_token* may look. Without either it serves this machine alone; with *is_open* it serves
        everybody who gets there, because the program around it has a login of its own.
        """
        from duly.web.embedded import EmbeddedApp, dashboard_of  # noqa: PLC0415 - not every user has starlette

        place = self._place
        controls = (self.cancel, self.pause, self.resume, self.remove)
        shown = EmbeddedApp(
            name=place.name,
            path=place.path if isinstance(place, SQLiteStore) else None,
            nodes=self._backend.nodes if isinstance(self._backend, ClusterTasks) else None,
            zone=self._zone,
            is_at_work=lambda: self._scheduler.state is SchedulerState.RUNNING or self._is_standing_by(),
            backend=self._backend,
            tags_of=self._declarations.tags_of,
            controls={"run": self.run_now, **{control.__name__: control for control in controls}},
            announce=self._announce,
        )
        return dashboard_of(shown, token=token, viewer_token=viewer_token, is_open=is_open)

    # --- control ---

    def _is_standing_by(self) -> bool:
        return self._standing_by is not None and not self._standing_by.done()

    @_control
    async def tasks(self) -> list[TaskStatus]:
        """All tasks as they are now: those that are declared, then the entries."""
        self._check_running()
        return [self._status(task) for task in await self._backend.tasks()]

    @_control
    async def history(
        self,
        name: str | None = None,
        *,
        result: ResultName | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> list[TaskRun]:
        """The runs that have ended, newest first: of one task or all, started since and before *until*."""
        self._check_running()
        if result is not None and result not in (results := get_args(ResultName)):
            raise ValueError(f"there is no result {result!r}; there is {', '.join(results)}")
        check_number("history(limit=...)", limit, 0, _MOST_RUNS, of=int)
        wanted = WantedTaskRuns(
            name,
            result,
            EARLIEST_US if since is None else _instant("since", since),
            LATEST_US if until is None else _instant("until", until),
            limit,
        )
        return [task_run(row, self._zone) for row in await self._backend.past_runs(wanted)]

    @_control
    async def run_now(self, name: str) -> RunHandle:
        """Ask for a run, which begins as soon as the task is free. The request survives a crash."""
        self._check_running()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(retrieve_outcome)
        # Before the request is written: its run may start before the answer is here.
        if not self._is_listening:
            # Only now: an event costs as much as the run that it reports, and nobody has waited for one.
            self._is_listening = True
            self._scheduler._announcer.listen(self._on_event, _RUN_EVENTS)  # noqa: SLF001
        self._waiting.setdefault(name, []).append(ended)
        try:
            with self._naming(name):
                answer = await self._backend.request(name)
        except BaseException:
            self._waiting[name].remove(ended)
            raise
        self._announce("TaskRequested", taskName=name)
        if answer is not None:
            watch = asyncio.ensure_future(self._watch(name, answer, ended))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
        return RunHandle(name, ended)

    async def _watch(self, name: str, answer: RunAnswer, ended: "asyncio.Future[None]") -> None:
        """Settle a request whose run another process has ended."""
        while not (await asyncio.wait([ended], timeout=_LOOK_S))[0]:
            if ended not in self._waiting.get(name, ()):
                continue  # its run is here
            try:
                with self._naming(name):
                    run = await answer()
            except StoreError:
                continue  # an event has reported it
            except NoSuchTaskError as removed:
                ended.set_exception(removed)
                return
            if run is not None and not ended.done():
                self._waiting[name].remove(ended)
                error, _, message = run.message.partition(": ")
                ended.set_exception(raised(error, message)) if error else ended.set_result(None)

    @_control
    async def pause(self, name: str) -> None:
        """Let a task rest until `resume`, also across restarts. What is due meanwhile then runs once."""
        await self._set_paused(name, paused=True)

    @_control
    async def resume(self, name: str) -> None:
        """Let a paused task go on."""
        await self._set_paused(name, paused=False)

    @_control
    async def cancel(self, name: str) -> bool:
        """Cancel the run of a task: it has failed, and is not tried again. Whether there was one.

        A function in a thread goes on until it returns. On PostgreSQL the run may be on any node; that one
        is notified at once, or with its next heartbeat behind a pooler.
        """
        self._check_running()
        with self._naming(name):
            return await self._backend.cancel(name)

    async def add(
        self,
        name: str,
        *,
        kind: Callable[..., object] | str,
        schedule: Schedule | str,
        args: Mapping[str, object] | None = None,
        **options: Unpack[EntryOptions],
    ) -> None:
        """Add a task of a declared *kind*, or change the entry of that name.

        *args* is JSON; the function gets it as keyword arguments. The entry stays, across restarts and
        deploys, until `remove`. With the same schedule as before it keeps its state. A kind may be named that
        this program does not declare: then the entry waits for a program that does. The options are timezone,
        spread and enabled.
        """
        await self._add(self._declarations.entry(name, kind, schedule, args or {}, options))

    @_control
    async def _add(self, entry: NewEntry) -> None:
        self._check_running()
        await self._backend.add(entry)

    @_control
    async def remove(self, name: str) -> None:
        """Remove an entry. A run of it goes on to its end."""
        self._check_running()
        with self._naming(name):
            await self._backend.remove(name)

    async def _set_paused(self, name: str, *, paused: bool) -> None:
        self._check_running()
        with self._naming(name):
            await self._backend.set_paused(name, paused=paused)
        self._announce("TaskPaused" if paused else "TaskResumed", taskName=name)

    def _check_running(self) -> None:
        if self._scheduler.state is not SchedulerState.RUNNING:
            raise RuntimeError("the app is not running: start it first")
        if self._loop is not asyncio.get_running_loop():
            error = ForeignEventLoopError()
            error.add_note("of an app in the background call the controls that background() gives")
            raise error

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Say in Python terms that there is no task of that name."""
        if not isinstance(name, str):
            raise TypeError(f"a control needs the name of a task, such as 'ping', not {name!r}")
        try:
            yield
        except KeyError:
            raise NoSuchTaskError(name=name, close=close_names(name, self._declarations.tasks)) from None

    def _status(self, task: Task) -> TaskStatus:
        zone = parts_of(task.schedule.text).zone or self._zone

        def shown(at_us: int | None) -> datetime | None:
            return None if at_us is None or at_us >= NEVER_US else datetime_at(at_us, zone)

        entry = None if task.entry is None else entry_text(task.entry)
        due_us = task.due_us if task.options.enabled else NEVER_US
        next_us = min(due_us, NEVER_US if task.retry_at_us is None else task.retry_at_us)
        return TaskStatus(
            name=task.name,
            schedule=in_words(task.schedule.text),
            text=task.schedule.text,
            timezone=str(zone),
            state=_state(task),
            last_start=shown(task.last_attempt_us),
            last_success=shown(task.last_success_us),
            last_failure=shown(task.last_failure_us),
            next_due=shown(next_us),
            tags=self._declarations.tags_of(task),
            kind=None if entry is None else entry.kind,
            args=None if entry is None else entry.args,
        )

    def _on_event(self, event: Event) -> None:
        """Settle the requests whose runs have begun or ended."""
        name = event.fields["taskName"]
        # A start answers all requests that stand, so it takes all who wait. A request that comes while the
        # run is going on waits for the next.
        if event.name == "TaskRunStarted":
            self._running.setdefault(name, []).extend(self._waiting.pop(name, []))
        else:
            for ended in self._running.pop(name, []):
                if ended.done():
                    continue
                if event.name == "TaskRunCompleted":
                    ended.set_result(None)
                else:
                    ended.set_exception(_raisable(event.exception))


def _blocking(
    method: Callable[Concatenate[App, Q], Coroutine[Any, Any, A]],
) -> Callable[Concatenate["BackgroundApp", Q], A]:
    """The same control for a program without an event loop."""

    @wraps(method)
    def control(self: "BackgroundApp", /, *args: Q.args, **kwargs: Q.kwargs) -> A:
        # By name: a subclass of App may have a control of its own.
        own: Callable[Q, Coroutine[Any, Any, A]] = getattr(self._app, method.__name__)
        return self._done(lambda: own(*args, **kwargs))

    return control


class BackgroundApp:
    """An app in a thread of its own; every control blocks until it is done."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    tasks = _blocking(App.tasks)
    history = _blocking(App.history)
    pause = _blocking(App.pause)
    resume = _blocking(App.resume)
    cancel = _blocking(App.cancel)
    add = _blocking(App.add)
    remove = _blocking(App.remove)

    def run_now(self, name: str, *, timeout: Length | None = None) -> None:
        """Run a task now and wait for its end, or at most for *timeout*. Raises what the run has raised.

        After TimeoutError the run goes on, or is still to begin.
        """
        limit_s = None if timeout is None else length_of("run_now(timeout=...)", timeout) / SECOND_US

        async def run() -> None:
            async with asyncio.timeout(limit_s):
                await (await self._app.run_now(name))

        self._done(run)

    def _done(self, work: Callable[[], Coroutine[Any, Any, A]]) -> A:
        if self._loop is None:
            raise RuntimeError("the app is not running: the block of background() has ended")
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def _begin(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgets to leave the `with` can still end. The store is then as after a
        # crash.
        self._thread = threading.Thread(target=self._loop.run_forever, name="duly app", daemon=True)
        self._thread.start()
        try:
            self._done(self._app.start)
        except BaseException:
            self._close()
            raise

    def _end(self) -> None:
        try:
            self._done(self._app.stop)
        finally:
            self._close()

    def _close(self) -> None:
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        # As `asyncio.run` does it. The thread is joined before the loop is closed, because it runs the
        # loop.
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        self._loop = self._thread = None


def _instant(what: str, moment: object) -> Instant:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"history({what}=...) needs a datetime with a time zone, not {moment!r}")
    return instant_of(moment)


def _state(task: Task) -> TaskState:
    if task.running_since_us is not None:
        return "running"
    if task.options.is_of_unknown_kind:
        return "waiting for its kind"
    if task.paused:
        return "paused"
    if not task.options.enabled:
        return "disabled"
    return "waiting" if task.retry_at_us is None else "retrying"


def _raisable(error: BaseException | None) -> Exception:
    """The exception of a run for those who await it: one task's exit or cancellation is not the caller's."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the run ended with {error!r}")
