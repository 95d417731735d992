"""The show: a scheduler, a clock, two signals and an output, put together.

It learns everything from events and decides nothing about tasks. SIGINT and SIGTERM ask for a graceful stop;
a SIGINT after that ends the process on the spot, as a crash would, and leaves something to recover from.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta

from examples.demo.formatting import joined
from examples.demo.output import DemoOutput
from examples.demo.tasks import DemoTask
from examples.demo.view import DemoView, after

from duly.clock import Clock
from duly.events import Event
from duly.scheduler import Scheduler
from duly.verify import Recorder

CUT_OFF_CODE = 128 + signal.SIGINT
NO_READER_CODE = 128 + signal.SIGPIPE
_TICK = timedelta(seconds=1)
_BEFORE_THE_STORE_IS_OURS = frozenset({"SchedulerInitializationStarted", "SchedulerInitializationFailed"})


class Show:
    """One session of the demo."""

    def __init__(
        self, view: DemoView, output: DemoOutput, clock: Clock, *, leave: Callable[[int], object] = os._exit
    ) -> None:
        self.view = view
        self._output = output
        self._clock = clock
        self._leave = leave
        self._is_open = False
        self._stop_requested = asyncio.Event()

    async def perform(
        self, demo_tasks: Sequence[DemoTask], *, length_s: float | None, trace: str | None = None
    ) -> None:
        """Run the demo tasks until somebody asks to stop, or for *length_s* seconds; record it in *trace*."""
        # Failures are on the screen; without any handler, logging would write them across it as well.
        logging.getLogger("duly").addHandler(logging.NullHandler())
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        loop.add_signal_handler(signal.SIGTERM, self.request_stop)
        scheduler = Scheduler(
            self.view.store, clock=self._clock, timezone=self.view.zone, listeners=[self.hear]
        )
        if trace is not None:
            scheduler = Recorder(trace).wrap(scheduler)
        background = [asyncio.create_task(self._tick())]
        try:
            await scheduler.initialize([part.registration for part in demo_tasks])
            if length_s is not None:
                background.append(asyncio.create_task(self._request_stop_after(length_s)))
            await self._stop_requested.wait()
            await scheduler.stop()
            if trace is not None:
                self._seen(lambda: self._output.say(f"All of it is in {trace}: duly verify {trace}"))
        finally:
            for task in background:
                task.cancel()

    def hear(self, event: Event) -> None:
        """Take in an event of the scheduler."""
        if event.name in _BEFORE_THE_STORE_IS_OURS:
            return
        before, self.view = self.view, after(self.view, event)
        if not self._is_open:
            self._is_open = True
            self._seen(lambda: self._output.begin(self.view))
        if self.view.notes != before.notes:
            self._seen(lambda: self._output.tell(self.view.notes[-1], self.view))
        if self.view is not before:
            self._draw()

    def request_stop(self) -> None:
        """Stop gracefully."""
        self._stop_requested.set()

    def interrupt(self) -> None:
        """Stop gracefully; asked again, leave everything as it lies."""
        if not self._stop_requested.is_set():
            self.request_stop()
            return
        names = [task.name for task in self.view.running]
        told = f"{joined(names)} cut off" if names else "nothing was running"
        self._seen(lambda: self._output.say(f"{told}. Run it again: the story goes on."))
        self._leave(CUT_OFF_CODE)

    async def _tick(self) -> None:
        while True:
            self._draw()
            now = self._clock.now()
            await self._clock.sleep_until(now.replace(microsecond=0) + _TICK)

    async def _request_stop_after(self, length_s: float) -> None:
        await self._clock.sleep_until(self._clock.now() + timedelta(seconds=length_s))
        self.request_stop()

    def _draw(self) -> None:
        if self._is_open:
            self._seen(lambda: self._output.draw(self.view, self._clock.now()))

    def _seen(self, show: Callable[[], None]) -> None:
        """Show something; when nobody is left to see it (`| head`), leave as any program would."""
        try:
            show()
        except OSError:
            self._leave(NO_READER_CODE)
