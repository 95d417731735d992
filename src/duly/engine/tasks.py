"""Tasks for the engine: the rules of `core`, and what is told when they apply."""

from collections.abc import Sequence
from datetime import tzinfo

from duly.clock import Step
from duly.core.causes import Start, starts_owed
from duly.core.task import Task, called, failed, released, set_back, succeeded, wakes_us
from duly.engine.rules import Begin, Look
from duly.engine.runs import Run
from duly.engine.telling import tell_end, tell_start
from duly.events import Announcer
from duly.instant import Instant


class TaskRules:
    """What is owed to tasks."""

    def looked_at(self, tasks: Sequence[Task], now_us: Instant) -> Look[Task]:
        """The starts that *tasks* are owed at *now_us*."""
        return Look(starts_owed(tasks, now_us))

    # The functions themselves: these two are asked several times for each run.
    wakes_us = staticmethod(wakes_us)
    called = staticmethod(called)

    def ended(self, task: Task, run: Run[Task], error: BaseException | None) -> Task:
        """What the end of *run* makes of its task."""
        if run.is_superseded:
            return released(task)
        return succeeded(task, run.ended_us) if error is None else failed(task, run.ended_us)

    def released(self, task: Task) -> Task:
        """The task without a run."""
        return released(task)

    def minds(self, step: Step) -> bool:
        """Only steps back: after one forward, what was passed over is due like everything else."""
        return step.after_us < step.before_us

    def stepped(self, task: Task, step: Step) -> Task:
        """The task after the clock was set back."""
        return set_back(task, step.before_us, step.after_us)

    def tell_starts(self, announcer: Announcer, starts: Sequence[Begin[Task]], zone: tzinfo) -> None:
        """Tell of runs that begin."""
        if announcer.wants("TaskRunStarted"):
            for start in starts:
                assert isinstance(start, Start)
                tell_start(announcer, start, zone)

    def tell_changed(self, announcer: Announcer, before: Task, after: Task, zone: tzinfo) -> None:
        """Not called: a task that is looked at is started or left as it is."""
        raise NotImplementedError

    def tell_end(
        self,
        announcer: Announcer,
        task: Task | None,
        run: Run[Task],
        error: BaseException | None,
        zone: tzinfo,
    ) -> None:
        """Tell of a run that ended."""
        if error is None and not announcer.wants("TaskRunCompleted"):
            return
        tell_end(
            announcer,
            run.name,
            duration_us=max(run.ended_us - run.called_us, 0),
            error=error,
            retry_at_us=None if task is None or error is None else task.retry_at_us,
            zone=zone,
        )

    def tell_skipped(self, announcer: Announcer, name: str, reason: str) -> None:
        """Tell that a task was not started."""
        announcer.announce("TaskSkipped", taskName=name, reason=reason)
