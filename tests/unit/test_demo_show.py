import asyncio
import io
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result
from examples.demo.__main__ import demo
from examples.demo.output import DemoOutput, Lines, Terminal, output_for
from examples.demo.show import CUT_OFF_CODE, NO_READER_CODE, Show
from examples.demo.tasks import new_demo_tasks
from examples.demo.view import DemoPhase, began

from duly import Scheduler
from duly.testing import VirtualClock

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True


class Rehearsal:
    """A show in virtual time and memory."""

    def __init__(self, output: DemoOutput) -> None:
        self.clock = VirtualClock(NOON)
        self.codes: list[int] = []
        self.demo_tasks = new_demo_tasks(self.clock, block=lambda _length_s: None)
        view = began(
            self.demo_tasks, [], store=":memory:", zone=UTC, process_id=7, story=("once upon a time",)
        )
        self.show = Show(view, output, self.clock, leave=self.codes.append)

    async def play(self, length: timedelta) -> None:
        """Begin, let *length* pass, stop gracefully."""
        performance = asyncio.create_task(self.show.perform(self.demo_tasks, length_s=None))
        await self.clock.advance(length)
        self.show.interrupt()
        await self.clock.advance(timedelta(minutes=2))
        await performance


def test_five_minutes_of_the_show() -> None:
    """Flaky fails two times in three, slow never rests, report waits for its minute, the others end well."""
    rehearsal = Rehearsal(Lines(io.StringIO()))
    asyncio.run(rehearsal.play(timedelta(minutes=5, seconds=50)))
    counts = {task.name: (task.ok, task.failed) for task in rehearsal.show.view.tasks.values()}
    assert counts == {
        "steady": (6, 0),
        "flaky": (6, 12),
        "slow": (5, 0),
        "report": (2, 0),
        "blocking": (6, 0),
        "important": (6, 0),
    }
    assert rehearsal.show.view.phase is DemoPhase.STOPPED


def test_plain_lines_tell_the_show() -> None:
    """Without a terminal each thing that happens is one line, beginning with the story so far."""
    stream = io.StringIO()
    asyncio.run(Rehearsal(Lines(stream)).play(timedelta(seconds=10)))
    lines = stream.getvalue().splitlines()
    assert lines[:3] == [
        "duly demo: store :memory:, zone UTC, process 7",
        "once upon a time",
        "12:00:00 steady: is new: * * * * *",
    ]
    assert "12:00:01 flaky: failed after 1.0s: TimeoutError: no answer; retry in 5s" in lines
    assert "12:00:06 flaky: started: retry 1" in lines
    assert lines[-3:] == [
        "12:00:40 important: ended well after 40.0s",
        "12:01:15 slow: ended well after 1m 15s",
        "12:01:15 stopped: every result is recorded",
    ]
    assert not any("\x1b" in line for line in lines)


def test_a_terminal_is_redrawn_every_second_and_left_usable() -> None:
    """Each frame hides the cursor, begins at the top and shows the cursor again; the clock on it moves."""
    stream = Tty()
    asyncio.run(Rehearsal(Terminal(stream, has_colour=True)).play(timedelta(seconds=5)))
    frames = stream.getvalue().split("\x1b[?25l\x1b[H")[1:]
    assert all(frame.endswith("\x1b[J\x1b[?25h") for frame in frames)
    assert all(any(f"12:00:0{second} UTC" in frame for frame in frames) for second in range(5))
    assert "waiting for slow (1m 10s) to end" in "".join(frames)
    assert "\x1b[31m" in frames[-1]


def test_a_second_interrupt_leaves_at_once() -> None:
    """A second Ctrl-C names what it cuts off and leaves with the code of an interrupt."""
    stream = io.StringIO()
    rehearsal = Rehearsal(Lines(stream))
    rehearsal.show.interrupt()
    assert rehearsal.codes == []
    rehearsal.show.interrupt()
    assert rehearsal.codes == [CUT_OFF_CODE]
    assert stream.getvalue() == "nothing was running. Run it again: the story goes on.\n"


def test_nobody_left_to_see_it_ends_the_show() -> None:
    """When the reader of the pipe is gone the show leaves instead of playing to nobody."""

    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    rehearsal = Rehearsal(Lines(Broken()))
    asyncio.run(rehearsal.play(timedelta(seconds=1)))
    assert set(rehearsal.codes) == {NO_READER_CODE}


@pytest.mark.parametrize(
    ("stream", "environment", "kind"),
    [
        (io.StringIO(), {"TERM": "xterm"}, Lines),
        (Tty(), {"TERM": "xterm"}, Terminal),
        (Tty(), {"TERM": "dumb"}, Lines),
        (Tty(), {}, Lines),
    ],
)
def test_the_output_suits_the_stream(
    stream: io.StringIO, environment: Mapping[str, str], kind: type[object]
) -> None:
    """Only a terminal that knows more than lines is redrawn."""
    assert isinstance(output_for(stream, environment), kind)


def test_no_color_is_heeded() -> None:
    """With NO_COLOR set a terminal is drawn without colours."""
    stream = Tty()
    output = output_for(stream, {"TERM": "xterm", "NO_COLOR": "1"})
    output.draw(Rehearsal(output).show.view, NOON)
    assert "steady" in stream.getvalue()
    assert "m" not in {part[:3].lstrip("0123456789;")[:1] for part in stream.getvalue().split("\x1b[")[1:]}


def test_a_poor_stream_gets_question_marks() -> None:
    """A stream that cannot write an arrow gets a replacement, not an error."""
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    output_for(stream).say("→")
    assert buffer.getvalue() == b"?\n"


# --- the command ---


def run(*arguments: str) -> Result:
    return CliRunner().invoke(demo, [*arguments, "--for", "0.1", "--pace", "0"])


def refused(result: Result) -> str:
    """The one line with which the command refused."""
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return str(line)


def test_the_command_plays_and_continues(tmp_path: Path) -> None:
    """A first session begins a new story; the next one on the same file comes back to it."""
    store = str(tmp_path / "demo.db")
    first, second = run("--store", store), run("--store", store)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "a new story begins" in first.stdout
    assert "welcome back: last seen" in second.stdout


def test_the_store_is_demo_db_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --store the file is demo.db in the current directory."""
    monkeypatch.chdir(tmp_path)
    assert run().exit_code == 0
    assert (tmp_path / "demo.db").is_file()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """A text file is named, refused in one line, and left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary" * 100)
    assert "notes.txt: is not a SQLite database" in refused(run("--store", str(path)))
    assert path.read_text() == "dear diary" * 100


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    """A store of a newer format is refused in one line."""
    path = tmp_path / "new.db"
    apsw.Connection(str(path)).execute("PRAGMA user_version = 999")
    assert "new.db: has format 999, written by a newer duly" in refused(run("--store", str(path)))


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A path in a directory that is not there is refused in one line."""
    line = refused(run("--store", str(tmp_path / "none" / "demo.db")))
    assert "is its directory there and writable?" in line


def test_an_address_without_a_store_is_refused() -> None:
    """An address that means no store of this version is refused in one line."""
    assert "no store is known for ftp://" in refused(run("--store", "ftp://host/demo.db"))


def test_a_store_of_other_tasks_is_refused(tmp_path: Path) -> None:
    """The demo does not take a store in which somebody keeps tasks: it would make orphans of them."""
    path = tmp_path / "state.db"

    async def nothing() -> None: ...

    async def register() -> None:
        scheduler = Scheduler(path)
        tasks = [(f"backup {number}", "0 0 1 1 *", nothing, timedelta()) for number in range(4)]
        await scheduler.initialize(tasks)
        await scheduler.stop()

    asyncio.run(register())
    line = refused(run("--store", str(path)))
    assert "holds tasks that are not the demo's: 'backup 0', 'backup 1', 'backup 2' and others" in line
