"""The screen of the demo as lines of toned text, fitted to a width and a height. Pure.

A line is a list of spans; colour comes last (`painted`), so a width is always a count of what is seen.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from examples.demo.formatting import ago, joined, length, length_ahead
from examples.demo.notes import DemoNote, Tone
from examples.demo.view import DemoEnding, DemoPhase, DemoTaskView, DemoView

from duly.core.causes import Cause
from duly.formatting import one_line

NOTES_SHOWN = 10
_GAP = "  "


class StyledText(NamedTuple):
    """Some text and how it is to be felt."""

    text: str
    tone: Tone = Tone.PLAIN
    is_bold: bool = False


Line = Sequence[StyledText]


class _Column(NamedTuple):
    title: str
    width: int
    cell: Callable[[DemoTaskView, datetime, DemoView], StyledText]
    worth: int
    """Columns worth least go first when the terminal is narrow."""
    is_number: bool = False


def screen_of(view: DemoView, now: datetime, *, width: int, height: int) -> list[Line]:
    """The lines to show at *now*: no wider than *width*, no more than *height*."""
    now = now.astimezone(UTC)
    top = [_header(view, now), *_story(view, width), [], *_table(view, now, width), []]
    bottom = [[], *_advice(view, now)]
    room = min(NOTES_SHOWN, height - len(top) - len(bottom))
    notes = [_note_line(note, view) for note in view.notes[-room:]] if room > 0 else []
    blank: list[Line] = [[] for _ in range(room - len(notes))]
    return [fitted(line, width) for line in [*top, *notes, *blank, *bottom][: max(height, 0)]]


def fitted(line: Line, width: int) -> Line:
    """The line cut to *width*, with a sign that it was."""
    if sum(len(span.text) for span in line) <= width:
        return line
    kept, left = [], max(width - 1, 0)
    for span in line:
        kept.append(span._replace(text=span.text[:left]))
        left -= len(kept[-1].text)
    return [*kept, StyledText("…"[:width], Tone.QUIET)]


def text_of(line: Line) -> str:
    """What is seen of a line."""
    return "".join(span.text for span in line)


_CODES = {
    Tone.PLAIN: "",
    Tone.QUIET: "2",
    Tone.BUSY: "36",
    Tone.GOOD: "32",
    Tone.BAD: "31",
    Tone.LOUD: "33",
}


def painted(line: Line) -> str:
    """The line with the colours of a terminal."""
    return "".join(_painted(span) for span in line)


def _painted(span: StyledText) -> str:
    codes = ";".join(code for code in ("1" if span.is_bold else "", _CODES[span.tone]) if code)
    return f"\x1b[{codes}m{span.text}\x1b[0m" if codes and span.text else span.text


# --- the parts of the screen ---


def _header(view: DemoView, now: datetime) -> Line:
    return [
        StyledText("duly demo", is_bold=True),
        StyledText(f"{_GAP}{now.astimezone(view.zone):%H:%M:%S} {view.zone}"),
        StyledText(f"{_GAP}store {one_line(view.store)}{_GAP}process {view.process_id}", Tone.QUIET),
    ]


def _story(view: DemoView, width: int) -> list[Line]:
    """The story in as few lines as hold it."""
    lines: list[str] = []
    for sentence in view.story:
        if lines and len(lines[-1]) + len(sentence) + 2 <= width:
            lines[-1] += f"; {sentence}"
        else:
            lines.append(sentence)
    return [[StyledText(line, Tone.LOUD)] for line in lines]


def _table(view: DemoView, now: datetime, width: int) -> list[Line]:
    columns = _columns_within(width)
    titles = [_padded(StyledText(column.title, Tone.QUIET), column) for column in columns]
    rows = [
        [_mark(task), *_spaced([_padded(column.cell(task, now, view), column) for column in columns])]
        for task in view.tasks.values()
    ]
    return [[StyledText("  "), *_spaced(titles)], *rows]


def _columns_within(width: int) -> list[_Column]:
    columns = list(_COLUMNS)
    while len(columns) > 1 and 2 + sum(column.width + len(_GAP) for column in columns) - len(_GAP) > width:
        columns.remove(min(columns, key=lambda column: column.worth))
    return columns


def _spaced(spans: list[StyledText]) -> list[StyledText]:
    return [part for span in spans for part in (span, StyledText(_GAP))][:-1]


def _padded(span: StyledText, column: _Column) -> StyledText:
    align = str.rjust if column.is_number else str.ljust
    return span._replace(text=align(span.text, column.width))


def _mark(task: DemoTaskView) -> StyledText:
    if task.running_since is not None:
        return StyledText("● ", Tone.BUSY)
    if task.is_interrupted:
        return StyledText("! ", Tone.LOUD)
    if task.retry_at is not None:
        return StyledText("↻ ", Tone.BAD)
    return StyledText("○ ", Tone.QUIET)


def _name(task: DemoTaskView, _now: datetime, _view: DemoView) -> StyledText:
    return StyledText(task.name, is_bold=True)


def _schedule(task: DemoTaskView, _now: datetime, _view: DemoView) -> StyledText:
    return StyledText(task.schedule)


def _state(task: DemoTaskView, now: datetime, _view: DemoView) -> StyledText:
    if task.running_since is not None:
        lasted = _lasted(task, now)
        match task.cause:
            case Cause.INTERRUPTED:
                return StyledText(f"restarted {lasted}", Tone.LOUD)
            case Cause.RETRY:
                return StyledText(f"retry {task.retry_count}, {lasted}", Tone.BUSY)
        return StyledText(f"running {lasted}", Tone.BUSY)
    if task.is_interrupted:
        return StyledText("interrupted", Tone.LOUD)
    if task.retry_at is not None:
        return StyledText(f"retry {length_ahead(task.retry_at - now)}", Tone.BAD)
    return StyledText("waiting", Tone.QUIET)


def _lasted(task: DemoTaskView, now: datetime) -> str:
    return "" if task.running_since is None else length(now - task.running_since)


_ENDING_TONES = {DemoEnding.OK: Tone.GOOD, DemoEnding.FAILED: Tone.BAD, DemoEnding.INTERRUPTED: Tone.LOUD}


def _last(task: DemoTaskView, now: datetime, _view: DemoView) -> StyledText:
    if task.last is None:
        return StyledText("–", Tone.QUIET)
    when = "" if task.last.at is None else f" {ago(now - task.last.at)}"
    return StyledText(f"{task.last.ending}{when}", _ENDING_TONES[task.last.ending])


def _ok(task: DemoTaskView, _now: datetime, _view: DemoView) -> StyledText:
    return StyledText(str(task.ok), Tone.GOOD if task.ok else Tone.QUIET)


def _failed(task: DemoTaskView, _now: datetime, _view: DemoView) -> StyledText:
    return StyledText(str(task.failed), Tone.BAD if task.failed else Tone.QUIET)


def _next_due(task: DemoTaskView, now: datetime, view: DemoView) -> StyledText:
    if task.has_due_standing:
        return StyledText("after run", Tone.LOUD)
    local = now.astimezone(view.zone)
    return StyledText(length_ahead(task.expression.next_after(local) - now))


def _about(task: DemoTaskView, _now: datetime, _view: DemoView) -> StyledText:
    return StyledText(task.about, Tone.QUIET)


_COLUMNS = (
    _Column("task", 9, _name, 9),
    _Column("schedule", 11, _schedule, 2),
    _Column("state", 16, _state, 8),
    _Column("last result", 14, _last, 6),
    _Column("ok", 3, _ok, 5, is_number=True),
    _Column("fail", 4, _failed, 4, is_number=True),
    _Column("next due", 9, _next_due, 7),
    _Column("what it does", 42, _about, 1),
)


def _note_line(note: DemoNote, view: DemoView) -> Line:
    time = StyledText(f"{note.time.astimezone(view.zone):%H:%M:%S}{_GAP}", Tone.QUIET)
    name = f"{one_line(note.task):9}{_GAP}" if note.task else ""
    return [time, StyledText(name, is_bold=True), StyledText(note.text, note.tone)]


def _advice(view: DemoView, now: datetime) -> list[Line]:
    """What to try next."""
    match view.phase:
        case DemoPhase.RUNNING:
            cut = f"Ctrl-C twice, or kill -9 {view.process_id}"
            return [
                _trial("Ctrl-C".ljust(len(cut)), "stop gracefully: wait for the runs"),
                _trial(cut, "cut the runs off", ""),
                _trial("and run it again".ljust(len(cut)), "the story goes on", ""),
            ]
        case DemoPhase.STOPPING:
            runs = [f"{task.name} ({_lasted(task, now)})" for task in view.running]
            told = f"waiting for {joined(runs)} to end" if runs else "writing the last results"
            stopping = StyledText(f"stopping: {told}", Tone.LOUD, is_bold=True)
            return [[stopping], _trial("Ctrl-C again", "cut the runs off"), []]
        case DemoPhase.STOPPED:
            return [_trial("run it again", "the story goes on"), [], []]


def _trial(what: str, outcome: str, label: str = "try") -> Line:
    return [
        StyledText(f"{label:5}", Tone.QUIET),
        StyledText(what, is_bold=True),
        StyledText(f"{_GAP}{outcome}"),
    ]
