"""How long a run lasted: as it was measured, wherever it is told, whatever the wall clock did meanwhile."""

from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.config.schema import Calendar, Timer
from duly.daemon import views
from duly.daemon.slots import TimerPast, why_latest
from duly.instant import SECOND_US
from duly.store.history import RunRow, Span, length_us
from duly.timers.calendar import CalendarCache
from duly.web.formatting import Moment
from duly.web.runs import plot_of, run_facts, run_title
from duly.web.task_store import GrowingTrace
from tests.worlds.histories import LooseHistory
from tests.worlds.supervisor import SECOND, World, at, oneshot, world_of

UTC = ZoneInfo("UTC")
STEPS = pytest.mark.parametrize("step_s", [3600, -3600])


async def _run_over(step_s: int) -> RunRow:
    """A job of a minute; the clock was set in the middle of it."""
    world = world_of(lasts={"job": 60})
    await world.start(oneshot("job"), boot=set())
    run = await world.do(world.supervisor.run("job", reason="schedule", timer="t", scheduled_us=at(0)))
    await world.after(30)
    world.clock.step(timedelta(seconds=step_s))
    await world.after(30)
    assert run.done()
    (row,) = await world.runs()
    await world.stop()
    return row


@STEPS
async def test_length_is_measured(step_s: int) -> None:
    """A run of a minute lasted a minute in its row, the API, the pages and the time line."""
    row = await _run_over(step_s)
    assert (row.ended_us, row.lasted_us) == (at(60 + step_s), 60 * SECOND_US)
    assert length_us(row) == 60 * SECOND_US
    assert views.run_json(row, UTC).duration_s == 60
    now = Moment(at(2 * 3600), UTC)
    assert run_facts(row, now.now_us).lasted_us == 60 * SECOND_US
    assert "success after 1m" in run_title(row, now)
    plot = plot_of([row], now)
    assert plot is not None
    assert (plot.longest, plot.lines[0][1]) == ("1m", "p50 1m")
    rows = LooseHistory()
    await rows.put([row], [])
    (bucket,) = await rows.buckets(["job"], Span(at(0), at(3600), SECOND_US))
    assert bucket.last_us == bucket.first_us + 60 * SECOND_US


@STEPS
async def test_length_that_why_tells_is_measured(step_s: int) -> None:
    """The answer to why a timer fired tells the measured length."""
    row = await _run_over(step_s)
    calendars = CalendarCache(UTC).of(Timer("t", "job", on_calendar=(Calendar(minute=(0,)),)))
    record = TimerPast("t", calendars, UTC, at(59), at(-3600), at(59), [row], [])
    (answer,) = why_latest(record, 1)
    assert answer.sentence.endswith("and ended with success after 1 min.")


async def test_step_after_its_process_ended_changes_no_length() -> None:
    """While what is left of its group is being ended, a step of the clock is none of the run's time."""
    world = world_of(kill_grace_sec=10)
    world.processes.script("job", lasts=5 * SECOND, leaves_behind=True)
    await world.start(oneshot("job"), boot=set())
    await world.do(world.supervisor.run("job", reason="schedule"))
    await world.after(6)
    assert world.state("job") == "running"
    world.clock.step(timedelta(hours=-1))
    await world.after(20)
    (row,) = await world.runs()
    assert (row.ended_us, row.lasted_us) == (at(5), 5 * SECOND_US)
    await world.stop()


async def test_length_of_a_run_that_its_daemon_left_is_unknown() -> None:
    """Nobody measured a run that a crash cut off; the wall clock is then all there is to go by."""
    rows = LooseHistory()
    await rows.put([RunRow(id=4, service="web", reason="boot", started_us=at(-70), pid=77)], [])
    world = World(database=rows.database)
    await world.do(world.supervisor.adopt())
    row = await world.history.run(4)
    assert row is not None
    assert (row.result, row.lasted_us, length_us(row)) == ("interrupted", None, 70 * SECOND_US)
    await world.stop()


def test_length_of_a_run_that_goes_on() -> None:
    """A run that goes on has lasted until now; without a now, nobody can say."""
    row = RunRow(id=1, service="a", reason="boot", started_us=10)
    assert (length_us(row, 17), length_us(row, 3), length_us(row)) == (7, 0, None)


@STEPS
def test_length_in_a_trace_is_without_its_steps(step_s: int, tmp_path: Path) -> None:
    """What a trace tells of a run's length leaves out by how much the clock was set."""
    begun_ms = at(0) // 1000
    step_ms = step_s * 1000
    lines: list[dict[str, object]] = [
        {"ev": "Header", "v": 1, "tz": "UTC"},
        {"ev": "RunStart", "t": begun_ms, "id": "a"},
        {"ev": "RunStart", "t": begun_ms + 10_000, "id": "b"},
        {"ev": "ClockStep", "t": begun_ms + 20_000 + step_ms, "from": begun_ms + 20_000},
        {"ev": "RunEnd", "t": begun_ms + 30_000 + step_ms, "id": "a", "ok": True},
        {"ev": "RunEnd", "t": begun_ms + 31_000 + step_ms, "id": "b", "ok": False},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    following = GrowingTrace(trace)
    following.look()
    assert following.fault is None
    following.close()
    assert [length_us(row) for row in following.latest] == [30 * SECOND_US, 21 * SECOND_US]
