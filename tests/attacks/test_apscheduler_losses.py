"""What APScheduler loses ends as lost in the verdict: silence, its own word, and nothing from before it."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duly.cli.verify import verify
from duly.verify.foreign import APSchedulerRecorder
from duly.verify.judge import judged

pytest.importorskip("apscheduler", minversion="3", reason="a peer, which is not installed here")

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from tests.integration.test_foreign import (
    MINUTE,
    SECOND,
    TEN,
    HeldClock,
    HeldExecutor,
    Stage,
    clock,  # noqa: F401 - a fixture
    lines_in,
)


@pytest.fixture
def stage(tmp_path: Path, clock: HeldClock) -> Iterator[Stage]:  # noqa: F811 - the fixture imported above
    """A recorded scheduler with a minutely job, started at one second past ten."""
    stage = Stage(tmp_path / "t.jsonl", clock, HeldExecutor())
    stage.add("a")
    clock.reads = TEN + SECOND
    stage.scheduler.start()
    yield stage
    stage.recorder.close()


def run_at(stage: Stage, minute: int) -> None:
    stage.go(TEN + minute * MINUTE)
    stage.executor.run()


def verified(path: Path, *options: str) -> Result:
    done = CliRunner().invoke(verify, [str(path), *options])
    assert done.exit_code != 70, done.stderr
    return done


def test_ran_lost_and_cut_off(stage: Stage) -> None:
    """The report begins with one line that says what became of every due, also after a kill."""
    for minute in range(1, 7):
        run_at(stage, minute)
    # It hangs for two minutes: one due is dropped in silence, the other is declared missed.
    stage.go(TEN + 8 * MINUTE + 40 * SECOND)
    stage.executor.run()
    # The process dies in the run of 10:09: neither an end nor the end of the recording is written.
    stage.go(TEN + 9 * MINUTE)
    stage.recorder.tick()
    stage.clock.reads += SECOND
    stage.recorder.tick()
    done = verified(stage.path)
    assert done.stdout.splitlines()[0] == "9 dues, 6 ran, 2 lost, 1 cut off"
    assert done.exit_code == 1


def test_silence_is_visible(stage: Stage) -> None:
    """A scheduler that hangs until its process dies has lost dues, and the heartbeat shows it."""
    run_at(stage, 1)
    stage.clock.reads += timedelta(seconds=59)
    assert not judged(lines_in(stage.path)).violations
    for _ in range(20):
        stage.clock.reads += 5 * SECOND
        stage.recorder.tick()
    done = verified(stage.path)
    assert done.exit_code == 1
    assert done.stdout.startswith("3 dues, 1 ran, 2 lost, 0 cut off\n")


def test_heartbeat_of_a_real_scheduler(tmp_path: Path) -> None:
    """With the host's clock the heartbeat comes by itself, until the recorder is closed."""
    path, scheduler = tmp_path / "t.jsonl", BackgroundScheduler()
    recorder = APSchedulerRecorder(path, tick_s=0.001)
    recorder.attach(scheduler)
    scheduler.start()
    while path.read_bytes().count(b'"Tick"') < 3:
        pass  # nothing else happens here; without a heartbeat this never ends, and the suite's timeout does
    scheduler.shutdown()
    recorder.close()
    written = path.read_bytes()
    assert written.rstrip().splitlines()[-1].startswith(b'{"ev":"End"')
    assert not judged(lines_in(path)).faults


def test_what_is_declared_missed_is_lost(stage: Stage) -> None:
    """A due that APScheduler gives up is lost, although the run of the next minute comes in time."""
    run_at(stage, 1)
    stage.go(TEN + 2 * MINUTE + 5 * SECOND)  # its grace is one second
    stage.executor.run()
    run_at(stage, 3)
    stage.recorder.close()
    done = verified(stage.path)
    assert done.stdout.startswith("3 dues, 2 ran, 1 lost, 0 cut off\n")
    assert "the scheduler itself says that it did not run" in done.stdout
    assert done.exit_code == 1


def test_every_loss_is_counted_once(tmp_path: Path, clock: HeldClock) -> None:  # noqa: F811
    """Without coalescing each due of a hang is declared missed by itself, and counted once."""
    stage = Stage(tmp_path / "t.jsonl", clock, DebugExecutor())
    stage.add("a", coalesce=False)
    clock.reads = TEN + SECOND
    stage.scheduler.start()
    for seconds in range(5, 240, 5):
        clock.reads = TEN + seconds * SECOND
        stage.recorder.tick()
    stage.go(TEN + 4 * MINUTE - SECOND)
    stage.recorder.close()
    outcome = judged(lines_in(stage.path))
    assert outcome.tallies["L1"].violated == 3
    assert verified(stage.path).stdout.startswith("3 dues, 0 ran, 3 lost, 0 cut off\n")


@pytest.mark.parametrize("options", [(), ("--targets",)])
def test_nothing_is_owed_from_before(
    tmp_path: Path,
    clock: HeldClock,  # noqa: F811
    options: tuple[str, ...],
) -> None:
    """A job that is registered within a due minute is not owed that minute, at the start or later."""
    stage = Stage(tmp_path / "t.jsonl", clock, DebugExecutor())
    stage.add("early", "0 * * * *")
    clock.reads = TEN + 30 * SECOND
    stage.scheduler.start()
    clock.reads = TEN + 5 * MINUTE + 30 * SECOND
    stage.add("later", "5 * * * *")
    stage.go(TEN + 8 * MINUTE)
    stage.recorder.close()
    done = verified(stage.path, *options)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "0 dues, 0 ran, 0 lost, 0 cut off")


def test_losses_from_before_are_not_held_against_it(tmp_path: Path, clock: HeldClock) -> None:  # noqa: F811
    """What a job store still had to run from before the recording is missed, and nobody's loss here."""
    stage = Stage(tmp_path / "t.jsonl", clock, DebugExecutor())
    stage.add("a", "0 * * * *", next_run_time=TEN - 60 * MINUTE)
    clock.reads = TEN + 30 * SECOND
    stage.scheduler.start()
    stage.go(TEN + MINUTE)
    stage.recorder.close()
    assert b'"Missed"' in stage.path.read_bytes()
    done = verified(stage.path)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "0 dues, 0 ran, 0 lost, 0 cut off")


def test_foreign_trace_from_a_pipe(stage: Stage) -> None:
    """The dues of another scheduler are counted also where the trace can be read only once."""
    run_at(stage, 1)
    stage.recorder.close()
    command = [sys.executable, "-m", "duly", "verify", "-"]
    done = subprocess.run(command, input=stage.path.read_bytes(), capture_output=True, check=True)
    assert done.stdout.startswith(b"1 due, 1 ran, 0 lost, 0 cut off\n")
