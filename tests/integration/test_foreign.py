"""The recorder for APScheduler 3, around a real APScheduler whose clock and executor the test holds."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly.verify.dues import Dues, instant_us
from duly.verify.foreign import APSchedulerRecorder
from duly.verify.foreign.apscheduler import NotCronError, cron_text_of
from duly.verify.judge import judged
from duly.verify.properties import Outcome
from duly.verify.trace import Fault, InitEnd, InitStart, Missed, Position, RunEnd, RunStart, Trace

pytest.importorskip("apscheduler", minversion="3", reason="a peer, which is not installed here")

import apscheduler.executors.base
import apscheduler.schedulers.base
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

TEN = datetime(2026, 1, 1, 10, tzinfo=UTC)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


def lines_in(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


class HeldClock:
    """A clock that reads what the test says."""

    def __init__(self, reads: datetime) -> None:
        self.reads = reads

    def now(self) -> datetime:
        """What it reads."""
        return self.reads

    async def sleep_until(self, moment: datetime, /) -> None:
        """Jump there."""
        self.reads = max(self.reads, moment)


class HeldExecutor(BaseExecutor):  # type: ignore[misc]
    """An executor that runs what was submitted when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Any, list[datetime]]] = []

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        self.waiting.append((job, run_times))

    def run(self) -> None:
        """Run the first that waits, and report it."""
        job, run_times = self.waiting.pop(0)
        events = run_job(job, job._jobstore_alias, run_times, self._logger.name)
        self._run_job_success(job.id, events)


class HeldScheduler(BaseScheduler):  # type: ignore[misc]
    """A scheduler that looks at its jobs when the test says so."""

    def wakeup(self) -> None:
        """Not by itself."""

    def shutdown(self, wait: bool = True) -> None:
        """As the others do."""
        super().shutdown(wait)


class Stage:
    """A recorded scheduler, its clock, its executor and its trace."""

    def __init__(self, path: Path, clock: HeldClock, executor: BaseExecutor, **recorder: Any) -> None:
        self.path = path
        self.clock = clock
        self.executor = executor
        self.scheduler = HeldScheduler(timezone=UTC, executors={"default": executor})
        self.recorder = APSchedulerRecorder(path, clock=clock, proc="p", **recorder)
        self.recorder.attach(self.scheduler)

    def add(
        self, name: str, text: str = "* * * * *", work: Callable[[], object] = int, **options: Any
    ) -> None:
        """Add a job with a cron text."""
        self.scheduler.add_job(work, CronTrigger.from_crontab(text, UTC), id=name, **options)

    def go(self, to: datetime) -> None:
        """Let the time become *to*, and the scheduler look at its jobs."""
        self.clock.reads = to
        self.scheduler._process_jobs()

    def told(self) -> list[tuple[Any, ...]]:
        """The trace so far: what, whom or how, and seconds since ten o'clock."""
        return [_told(item) for item in Trace(lines_in(self.path))]

    def judged(self) -> Outcome:
        """What the checker says of the trace."""
        self.recorder.close()
        return judged(lines_in(self.path))


def _told(item: Position | Fault) -> tuple[Any, ...]:
    if isinstance(item, Fault):
        return ("Fault", item.reason)
    event = item.event
    facts: list[Any] = [event.id] if isinstance(event, RunStart | RunEnd | Missed) else []
    if isinstance(event, Missed) and event.run is not None:
        facts.append(event.run)
    if isinstance(event, InitEnd | RunEnd):
        facts.append(event.ok)
    if isinstance(event, InitStart):
        facts.append([name for name, _, _ in event.regs])
    return (type(event).__name__, *facts, (item.at_us - instant_us(TEN)) / 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    """The clock that both APScheduler and the recorder read."""
    clock = HeldClock(TEN)

    class HeldDatetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return clock.reads.astimezone(tz)

    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", HeldDatetime)
    monkeypatch.setattr(apscheduler.executors.base, "datetime", HeldDatetime)
    return clock


@pytest.fixture
def stage(tmp_path: Path, clock: HeldClock) -> Iterator[Stage]:
    """A recorded scheduler whose runs begin when the test says so."""
    stage = Stage(tmp_path / "t.jsonl", clock, HeldExecutor())
    yield stage
    stage.recorder.close()


def test_runs_are_recorded(stage: Stage) -> None:
    """A run is recorded from its submission to its end, well or not."""
    stage.add("a")
    stage.add("b", "1 10 * * *", work=lambda: 1 // 0)
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.go(TEN + MINUTE)
    stage.executor.run()
    stage.clock.reads += SECOND / 2
    stage.executor.run()
    stage.scheduler.shutdown()
    stage.recorder.close()
    assert stage.told() == [
        ("InitStart", ["a", "b"], 1),
        ("InitEnd", True, 1),
        ("RunStart", "a", 60),
        ("RunStart", "b", 60),
        ("RunEnd", "a", True, 60),
        ("RunEnd", "b", False, 60.5),
        ("StopStart", 60.5),
        ("StopEnd", 60.5),
        ("End", 60.5),
    ]


def test_outcomes_may_come_first(tmp_path: Path, clock: HeldClock) -> None:
    """An executor that is done before the submission is told of still makes a start and then an end."""
    stage = Stage(tmp_path / "t.jsonl", clock, DebugExecutor())
    stage.add("a")
    clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.go(TEN + MINUTE)
    assert stage.told()[2:] == [("RunStart", "a", 60), ("RunEnd", "a", True, 60)]
    stage.recorder.close()


def test_a_healthy_scheduler_holds(tmp_path: Path, clock: HeldClock) -> None:
    """An APScheduler that runs everything in time violates nothing."""
    stage = Stage(tmp_path / "t.jsonl", clock, DebugExecutor())
    stage.add("a")
    stage.add("b", "1-59/2 * * * *")
    clock.reads = TEN + SECOND
    stage.scheduler.start()
    for minute in range(1, 10):
        stage.go(TEN + minute * MINUTE + SECOND / 100)
    stage.scheduler.shutdown()
    outcome = stage.judged()
    assert not outcome.violations
    assert not outcome.faults
    assert outcome.starts == 14


def test_a_run_given_up_at_once_is_no_start(stage: Stage) -> None:
    """A run submitted later than its grace is not recorded as started, but as missed."""
    stage.add("a", "1 * * * *")
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.go(TEN + MINUTE + 5 * SECOND)
    stage.executor.run()
    assert [told[0] for told in stage.told()] == ["InitStart", "InitEnd", "Missed"]
    stage.clock.reads += 5 * MINUTE
    outcome = stage.judged()
    assert {violation.property for violation in outcome.violations if violation.property[0] in "SL"} == {"L1"}


def test_a_run_given_up_later_is_taken_back(stage: Stage) -> None:
    """A run recorded as started that is then not called is recorded as missed, and its due is lost."""
    stage.add("a")
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.go(TEN + MINUTE)
    stage.clock.reads += 5 * SECOND
    stage.executor.run()
    assert stage.told()[2:] == [("RunStart", "a", 60), ("Missed", "a", 1, 65)]
    outcome = stage.judged()
    assert {violation.property for violation in outcome.violations} == {"L1"}
    assert not outcome.faults


def test_every_run_of_a_batch_is_recorded(stage: Stage) -> None:
    """Without coalescing missed runs come one after the other, and only the first has a cause."""
    stage.add("a", coalesce=False, misfire_grace_time=None)
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.go(TEN + 3 * MINUTE)
    stage.executor.run()
    assert [told[:2] for told in stage.told()[2:]] == [("RunStart", "a"), ("RunEnd", "a")] * 3
    assert "S1d" in {violation.property for violation in stage.judged().violations}


def test_overlaps_are_found(stage: Stage) -> None:
    """A job that may run twice at a time is recorded doing so."""
    stage.add("a", max_instances=2)
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.go(TEN + MINUTE)
    stage.go(TEN + 2 * MINUTE)
    stage.executor.run()
    stage.executor.run()
    assert "S1c" in {violation.property for violation in stage.judged().violations}


def test_a_skipped_run_is_missed(stage: Stage) -> None:
    """A run that is dropped because the last one is still going is a lost due, and no start."""
    stage.add("a")
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.go(TEN + MINUTE)
    stage.go(TEN + 2 * MINUTE)
    assert stage.told()[2:] == [("RunStart", "a", 60), ("Missed", "a", 120)]
    assert {violation.property for violation in stage.judged().violations} == {"L1"}


def test_pausing_ends_starting(stage: Stage) -> None:
    """A pause is an initialize that failed, and resuming one that succeeded."""
    stage.add("a")
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start(paused=True)
    stage.add("b")
    assert stage.told() == []
    stage.scheduler.resume()
    stage.go(TEN + MINUTE)
    stage.scheduler.pause()
    stage.clock.reads += SECOND
    stage.scheduler.resume()
    stage.executor.run()
    assert stage.told() == [
        ("InitStart", ["a", "b"], 1),
        ("InitEnd", True, 1),
        ("RunStart", "a", 60),
        ("RunStart", "b", 60),
        ("InitStart", ["a", "b"], 60),
        ("InitEnd", False, 60),
        ("InitStart", ["a", "b"], 61),
        ("InitEnd", True, 61),
        ("RunEnd", "a", True, 61),
    ]


def test_changes_of_jobs_are_lists(stage: Stage) -> None:
    """Jobs added, paused and removed make new lists, one for all changes within a second."""
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    for name in ("a", "b", "c"):
        stage.clock.reads += SECOND / 10
        stage.add(name)
    stage.clock.reads = TEN + 10 * SECOND
    stage.scheduler.pause_job("b")
    stage.clock.reads = TEN + 20 * SECOND
    stage.scheduler.remove_job("a")
    stage.clock.reads = TEN + 30 * SECOND
    stage.scheduler.resume_job("b")
    stage.clock.reads = TEN + 40 * SECOND
    stage.scheduler.remove_all_jobs()
    stage.recorder.close()
    assert [told for told in stage.told() if told[0] == "InitStart"] == [
        ("InitStart", [], 1),
        ("InitStart", ["a", "b", "c"], 1.3),
        ("InitStart", ["a", "c"], 10),
        ("InitStart", ["c"], 20),
        ("InitStart", ["c", "b"], 30),
        ("InitStart", [], 40),
    ]


def test_a_clock_set_back_is_a_step(stage: Stage) -> None:
    """A time earlier than the last is recorded as a step of the clock."""
    stage.add("a")
    stage.clock.reads = TEN + SECOND
    stage.scheduler.start()
    stage.clock.reads = TEN - SECOND
    stage.scheduler.pause()
    assert stage.told()[2:4] == [("ClockStep", -1), ("InitStart", ["a"], -1)]


def test_a_running_scheduler_can_be_recorded(tmp_path: Path, clock: HeldClock) -> None:
    """A recorder that comes late begins with the jobs that there are."""
    scheduler = HeldScheduler(timezone=ZoneInfo("Europe/Berlin"), executors={"default": HeldExecutor()})
    scheduler.start()
    scheduler.add_job(int, "cron", minute=5, id="a")
    recorder = APSchedulerRecorder(tmp_path / "t.jsonl", clock=clock)
    recorder.attach(scheduler)
    with pytest.raises(RuntimeError, match="one only"):
        recorder.attach(scheduler)
    recorder.close()
    recorder.close()
    trace = Trace(lines_in(tmp_path / "t.jsonl"))
    assert (trace.header.tz, trace.header.store) == ("Europe/Berlin", "unknown")
    assert trace.header.impl.startswith("APScheduler 3.")
    assert [_told(item)[0] for item in trace] == ["InitStart", "InitEnd", "End"]


def test_other_jobs_are_left_out_by_name(
    tmp_path: Path, clock: HeldClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A job without a cron text is named in the log and not recorded, unless the text is given."""
    stage = Stage(tmp_path / "t.jsonl", clock, DebugExecutor(), crons={"given": "* * * * *"})
    for name in ("given", "fast"):
        stage.scheduler.add_job(int, IntervalTrigger(seconds=60, start_date=TEN, timezone=UTC), id=name)
    stage.scheduler.start()
    stage.go(TEN + MINUTE)
    stage.recorder.close()
    assert [told[:2] for told in stage.told()[:3]] == [
        ("InitStart", ["given"]),
        ("InitEnd", True),
        ("RunStart", "given"),
    ]
    assert caplog.text.count('job "fast" is not recorded: its trigger is IntervalTrigger') == 1


def test_given_texts_are_checked_at_once() -> None:
    """A cron text that no checker could read is refused before anything is recorded."""
    with pytest.raises(ValueError, match='for job "a" cannot be judged'):
        APSchedulerRecorder("never-written.jsonl", {"a": "*/5 * * * *"})


def test_threads_are_recorded(tmp_path: Path) -> None:
    """A scheduler with threads of its own, on the host's clock, is recorded without a fault."""
    path, done = tmp_path / "t.jsonl", threading.Event()
    scheduler = BackgroundScheduler(timezone=UTC)
    recorder = APSchedulerRecorder(path)
    recorder.attach(scheduler)
    scheduler.add_listener(lambda _: done.set(), EVENT_JOB_EXECUTED)
    scheduler.start()
    scheduler.add_job(int, CronTrigger.from_crontab("0 0 1 1 *", UTC), id="a", misfire_grace_time=None)
    scheduler.modify_job("a", next_run_time=datetime(2026, 1, 1, tzinfo=UTC))
    assert done.wait(60)
    scheduler.shutdown()
    recorder.close()
    kinds = [_told(item)[0] for item in Trace(lines_in(path))]
    assert [kind for kind in kinds if kind.startswith("Run")] == ["RunStart", "RunEnd"]
    assert kinds[-3:] == ["StopStart", "StopEnd", "End"]
    assert "Fault" not in kinds


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"minute": "*/15"}, "0,15,30,45 * * * *"),
        ({"minute": "5/20", "hour": "8-17"}, "5,25,45 8-17 * * *"),
        ({"hour": 0, "day_of_week": "mon-fri"}, "0 0 * * 1-5"),
        ({"hour": 0, "day_of_week": "0"}, "0 0 * * 1"),
        ({"hour": 0, "day_of_week": "6,sat"}, "0 0 * * 0,6"),
        ({"hour": 0, "month": "jan,mar-may"}, "0 0 * 1,3-5 *"),
        ({"day": "*/10"}, "0 0 1,11,21,31 * *"),
        ({"day": "1-31", "hour": 0, "day_of_week": "*"}, "0 0 * * *"),
        ({"month": 7}, "0 0 1 7 *"),
        ({"second": 0}, "* * * * *"),
    ],
)
def test_triggers_become_cron_text(fields: dict[str, Any], text: str) -> None:
    """A trigger becomes the text that is due at exactly the times at which it fires."""
    trigger = CronTrigger(**fields, timezone=UTC)
    assert cron_text_of(trigger, UTC) == text
    dues, moment = Dues(text, UTC), TEN
    for _ in range(60):
        following = trigger.get_next_fire_time(moment, moment)
        assert instant_us(following) == dues.after(instant_us(moment))
        moment = following


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"second": "*/10"}, "seconds other than 0"),
        ({"day": "13", "day_of_week": "fri"}, "both day and weekday"),
        ({"year": "2026"}, "no field year"),
        ({"week": "1"}, "no field week"),
        ({"day": "last"}, 'cannot say "last"'),
        ({"day": "2nd fri"}, 'cannot say "2nd fri"'),
        ({"hour": 3, "jitter": 10}, "jitter"),
        ({"hour": 3, "end_date": TEN}, "end_date"),
        ({"hour": 3, "timezone": "Europe/Berlin"}, "its zone is Europe/Berlin"),
        ({"month": 2, "day": 30}, "no month has such a day"),
    ],
)
def test_other_triggers_are_refused(fields: dict[str, Any], reason: str) -> None:
    """A trigger that five fields cannot say is refused with the reason."""
    trigger = CronTrigger(**{"timezone": UTC, **fields})
    with pytest.raises(NotCronError, match=reason):
        cron_text_of(trigger, UTC)


def test_many_threads_are_recorded(tmp_path: Path) -> None:
    """Jobs that threads add while others run make a trace without a fault, in which every run is once."""
    path, done = tmp_path / "t.jsonl", threading.Semaphore(0)
    scheduler = BackgroundScheduler(timezone=UTC)
    recorder = APSchedulerRecorder(path)
    recorder.attach(scheduler)
    scheduler.add_listener(lambda _: done.release(), EVENT_JOB_EXECUTED)
    scheduler.start()

    def add(name: str) -> None:
        trigger = CronTrigger.from_crontab("0 0 1 1 *", UTC)
        options = {"misfire_grace_time": None, "next_run_time": datetime(2026, 1, 1, tzinfo=UTC)}
        for number in range(25):
            scheduler.add_job(int, trigger, id=f"{name}{number}", **options)

    threads = [threading.Thread(target=add, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for _ in range(100):
        assert done.acquire(timeout=60)
    scheduler.shutdown()
    recorder.close()
    outcome = judged(lines_in(path))
    assert (outcome.starts, outcome.fault_count) == (100, 0)
    # Nothing was due: that, and nothing else, is found.
    assert {violation.property for violation in outcome.violations} <= {"S1d", "T3"}
