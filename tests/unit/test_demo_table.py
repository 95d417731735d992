from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from examples.demo.notes import DemoNote, Tone
from examples.demo.table import NOTES_SHOWN, StyledText, fitted, painted, screen_of, text_of
from examples.demo.tasks import new_demo_tasks
from examples.demo.view import DemoEnding, DemoPhase, DemoTaskView, DemoView, LastRun, began

from duly.testing import VirtualClock

NOW = datetime(2026, 5, 4, 12, 0, 40, tzinfo=UTC)
EARLIER = NOW - timedelta(seconds=72)
STORY = ("welcome back: last seen 2m ago", "nothing was missed")


def view_of(**changes: object) -> DemoView:
    view = began(
        [*new_demo_tasks(VirtualClock(NOW))], [], store="demo.db", zone=UTC, process_id=7, story=STORY
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def view_with(name: str, **changes: object) -> DemoView:
    view = view_of()
    task: DemoTaskView = replace(view.tasks[name], **changes)  # type: ignore[arg-type]
    return replace(view, tasks={**view.tasks, name: task})


def seen(view: DemoView, *, width: int = 80, height: int = 24) -> list[str]:
    return [text_of(line).rstrip() for line in screen_of(view, NOW, width=width, height=height)]


def row(name: str, view: DemoView, width: int = 80) -> str:
    return next(line for line in seen(view, width=width) if line[2:].startswith(name))


def test_the_whole_screen() -> None:
    """Header, story, table, notes and advice stand in their places."""
    running = view_with("slow", running_since=EARLIER, has_due_standing=True, ok=3)
    view = replace(
        running, notes=(DemoNote(NOW, "slow", "started: it is due", Tone.BUSY),), zone=ZoneInfo("Asia/Tokyo")
    )
    assert seen(view, height=19) == [
        "duly demo  21:00:40 Asia/Tokyo  store demo.db  process 7",
        "welcome back: last seen 2m ago; nothing was missed",
        "",
        "  task       schedule     state             last result      ok  fail  next due",
        "○ steady     each minute  waiting           –                 0     0  in 20s",
        "○ flaky      each minute  waiting           –                 0     0  in 20s",
        "● slow       each minute  running 1m 12s    –                 3     0  after run",
        "○ report     every 5 min  waiting           –                 0     0  in 4m 20s",
        "○ blocking   each minute  waiting           –                 0     0  in 20s",
        "○ important  each minute  waiting           –                 0     0  in 20s",
        "",
        "21:00:40  slow       started: it is due",
        "",
        "",
        "",
        "",
        "try  Ctrl-C                      stop gracefully: wait for the runs",
        "     Ctrl-C twice, or kill -9 7  cut the runs off",
        "     and run it again            the story goes on",
    ]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"running_since": EARLIER, "cause": "cron"}, "● steady     running 1m 12s"),
        ({"running_since": EARLIER, "cause": "interrupted"}, "● steady     restarted 1m 12s"),
        ({"running_since": EARLIER, "cause": "retry", "retry_count": 2}, "● steady     retry 2, 1m 12s"),
        ({"is_interrupted": True}, "! steady     interrupted"),
        ({"retry_at": NOW + timedelta(seconds=2.5)}, "↻ steady     retry in 3s"),
        ({"retry_at": EARLIER}, "↻ steady     retry now"),
        ({}, "○ steady     waiting"),
    ],
)
def test_states(changes: dict[str, object], state: str) -> None:
    """Each state of a task has its mark and its words."""
    line = row("steady", view_with("steady", **changes)).replace("each minute  ", "")
    assert line.startswith(f"{state}  ")


@pytest.mark.parametrize(
    ("last", "emitted"),
    [
        (LastRun(DemoEnding.OK, EARLIER), "ok 1m ago"),
        (LastRun(DemoEnding.FAILED, NOW), "failed 0s ago"),
        (LastRun(DemoEnding.INTERRUPTED), "interrupted"),
    ],
)
def test_last_results(last: LastRun, emitted: str) -> None:
    """The last result says how it ended and how long ago that was."""
    assert f"  {emitted}  " in row("steady", view_with("steady", last=last))


def test_a_wide_terminal_says_what_each_task_does() -> None:
    """With room to spare every task says what it is there for."""
    assert row("slow", view_of(), 130).endswith("works 75s, so its next due has to stand")


def test_a_narrow_terminal_leaves_out_what_matters_least() -> None:
    """Columns go one by one; the state of a task stays."""
    assert row("steady", view_of(), 60).split() == ["○", "steady", "waiting", "–", "in", "20s"]
    assert row("steady", view_of(), 30).split() == ["○", "steady", "waiting"]


@pytest.mark.parametrize("width", [0, 1, 10, 79, 80, 81, 130])
@pytest.mark.parametrize("height", [-1, 0, 1, 5, 15, 24, 60])
@pytest.mark.parametrize("phase", list(DemoPhase))
def test_the_screen_keeps_to_its_size(width: int, height: int, phase: DemoPhase) -> None:
    """No line is wider than the terminal, and there are no more lines than it has rows."""
    notes = tuple(DemoNote(NOW, "important", "x" * 200, Tone.BAD) for _ in range(50))
    lines = screen_of(view_of(notes=notes, phase=phase), NOW, width=width, height=height)
    assert len(lines) <= max(height, 0)
    assert all(len(text_of(line)) <= width for line in lines)


def test_the_latest_notes_are_shown() -> None:
    """Of many notes the last ten are on the screen."""
    notes = tuple(DemoNote(NOW, "", f"note {number}.", Tone.PLAIN) for number in range(30))
    shown = [line for line in seen(view_of(notes=notes), height=60) if "note" in line]
    assert [line.split()[-1] for line in shown] == [f"{number}." for number in range(20, 30)]
    assert len(shown) == NOTES_SHOWN


def test_a_stop_shows_what_it_waits_for() -> None:
    """While stopping, the runs that are waited for are named with their time."""
    view = replace(view_with("slow", running_since=EARLIER), phase=DemoPhase.STOPPING)
    assert "stopping: waiting for slow (1m 12s) to end" in seen(view)
    assert "stopping: writing the last results" in seen(view_of(phase=DemoPhase.STOPPING))
    assert "try  run it again  the story goes on" in seen(view_of(phase=DemoPhase.STOPPED))


def test_a_strange_store_name_stays_on_its_line() -> None:
    """A path with control characters cannot move the cursor."""
    assert r"store a\x1b[2J.db" in seen(view_of(store="a\x1b[2J.db"))[0]


def test_a_cut_line_says_so() -> None:
    """A line that does not fit ends in an ellipsis."""
    line = [StyledText("abc"), StyledText("def")]
    assert [text_of(fitted(line, width)) for width in (6, 5, 2, 1, 0)] == ["abcdef", "abcd…", "a…", "…", ""]


def test_colour_is_only_paint() -> None:
    """Paint adds codes around the text and is taken off after each span."""
    assert painted([StyledText("a"), StyledText("b", Tone.BAD, is_bold=True)]) == "a\x1b[1;31mb\x1b[0m"


def test_columns_hold_what_a_day_brings() -> None:
    """The widest things that a day of running shows still stand under their titles."""
    widest = view_with(
        "steady",
        running_since=EARLIER,
        cause="interrupted",
        last=LastRun(DemoEnding.FAILED, NOW - timedelta(minutes=59)),
        ok=999,
        failed=9999,
        has_due_standing=True,
    )
    assert row("steady", widest) == (
        "● steady     each minute  restarted 1m 12s  failed 59m ago  999  9999  after run"
    )
