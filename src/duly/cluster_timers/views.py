"""What a machine shows of shared timers: the rows, and the runs that have ended, of all machines.

Rows are as they were when the database was last asked.
"""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from duly.cluster.store import Link, stored_rows
from duly.cluster.table import PastRun, ReadBuckets, ReadRuns, TaskView
from duly.cluster_timers.rows import TimerCodec
from duly.instant import Instant
from duly.store.history import RemoteRun, Result, RunBucket, Span, WantedRuns
from duly.timers.record import TimerRecordError
from duly.timers.timer import TimerState


class ShownTimers:
    """The timers of the list as *codec* reads them."""

    def __init__(self, codec: TimerCodec) -> None:
        self._codec = codec
        self._views: dict[str, TaskView] = {}
        self.timers: list[TimerState] = []
        """In order of declaration; one whose row is damaged is not among them."""

    async def refresh(self, link: Link) -> None:
        """Ask the database. Raises StoreError, and then all is shown as before."""
        self._views = await stored_rows(link)
        self.timers = []
        for name in self._codec.listed:
            if (view := self._views.get(name)) is not None:
                with suppress(TimerRecordError):
                    self.timers.append(self._shown(view))

    def runs_on(self, name: str) -> str:
        """The machine that runs a timer; empty if none does."""
        view = self._views.get(name)
        return "" if view is None else view.run_by or ""

    def _shown(self, view: TaskView) -> TimerState:
        timer = self._codec.timer(view.name, view.state, enabled=view.enabled)
        if view.started_us is None:
            return timer
        return msgspec.structs.replace(
            timer, running_run=0, running_since_us=view.started_us, last_run_us=view.started_us
        )


async def past_runs(link: Link, name: str, wanted: WantedRuns, ahead_us: int) -> list[RemoteRun]:
    """Runs on all nodes, newest first; this one is called *name*. Raises StoreError.

    The time of the database is *ahead_us* of this host's. What is given and answered is in this host's time.
    """

    def there(at_us: Instant | None) -> Instant | None:
        return None if at_us is None else at_us + ahead_us

    found: list[PastRun] = []
    for timer in (None,) if wanted.timers is None else wanted.timers:
        request = ReadRuns(
            name=timer,
            run=None if wanted.run is None else (wanted.run[0], str(wanted.run[1])),
            before=wanted.before,
            before_us=there(wanted.before_us),
            since_us=there(wanted.since_us),
            limit=wanted.limit,
            with_output=wanted.with_output,
        )
        page = await link.do(request)
        found += page
    found.sort(key=lambda past: (past.started_us, past.id), reverse=True)
    runs = [_remote_run(past, name, ahead_us) for past in found[: wanted.limit]]
    if wanted.before_us is None:
        return runs
    return [run for run in runs if run.started_us < wanted.before_us]  # it starts a moment after its claim


async def past_buckets(link: Link, timers: Sequence[str], span: Span, ahead_us: int) -> list[RunBucket]:
    """The runs of these timers in the parts of *span*, of all nodes. Times as in `past_runs`."""
    request = ReadBuckets(
        names=timers,
        from_us=span.from_us + ahead_us,
        to_us=span.to_us + ahead_us,
        width_us=span.width_us,
    )
    return [
        RunBucket(
            found.name,
            found.part,
            found.result,
            found.number,
            int(found.run_id or 0),
            found.first_us - ahead_us,
            found.last_us - ahead_us,
            found.node,
        )
        for found in await link.do(request)
    ]


def _remote_run(past: PastRun, name: str, ahead_us: int) -> RemoteRun:
    run = past.run
    return RemoteRun(
        id=int(run.run_id),
        machine=past.node,
        shared_id=past.id,
        is_here=past.node == name,
        service=past.name,
        timer=past.name,
        reason=run.cause,
        scheduled_us=run.scheduled_us,
        started_us=run.called_us - ahead_us,
        ended_us=run.ended_us - ahead_us,
        result=run.result,
        exit_code=0 if run.result == Result.SUCCESS else None,
        message=run.error or "",
        output=run.output or "",
    )
