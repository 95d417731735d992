"""The table of what cron libraries do: its machinery, and that its page tells the truth about duly."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from tools.peers import questions
from tools.peers.adapters import PEERS, Asked, NotApplicableError, Peer, Read
from tools.peers.page import PAGE, page, shown
from tools.peers.questions import QUESTIONS, Question, SlowError

BERLIN = ZoneInfo("Europe/Berlin")
BY_TEXT = {question.text: question for question in QUESTIONS}
HOUR = timedelta(hours=1)


def peer_that(read: Read) -> Peer:
    return Peer("none", read)


def telling(*firings: datetime) -> Peer:
    """A peer that fires at just these moments, whatever it is asked."""

    def asked(after: datetime, until: datetime) -> Iterator[datetime]:
        return iter(firings)

    return peer_that(lambda text, zone: asked)


def raising(error: Exception) -> Read:
    def read(text: str, zone: ZoneInfo) -> Asked:
        raise error

    return read


def raising_when_asked(error: Exception) -> Read:
    def asked(after: datetime, until: datetime) -> Iterator[datetime]:
        raise error

    return lambda text, zone: asked


def asks(words: questions.Words, after: datetime, until: datetime, text: str = "* * * * *") -> Question:
    return Question("clocks", "?", text, after, until, words)


SKIPPED = asks(
    questions.faces,
    datetime(2026, 3, 29, tzinfo=BERLIN),
    datetime(2026, 3, 29, 23, tzinfo=BERLIN),
    "30 2 * * *",
)


def cells(name: str) -> list[str]:
    """What the page says about a library, row by row."""
    rows = [
        line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")
    ]
    return [
        row[row_of_names.index(name)] for row_of_names, row in _with_names(rows) if row is not row_of_names
    ]


def _with_names(rows: list[list[str]]) -> Iterator[tuple[list[str], list[str]]]:
    names: list[str] = []
    for row in rows:
        names = row if row[0] == "asked" else names
        yield names, row


def test_the_page_is_true_of_duly() -> None:
    """The column of duly in the page is what is measured now."""
    assert cells("duly") == [question.answer(PEERS["duly"]) for question in QUESTIONS]


def test_the_page_has_a_cell_for_everything() -> None:
    """Every library has an answer to every question in the page."""
    for name in PEERS:
        assert len(cells(name)) == len(QUESTIONS)
        assert all(cells(name))


def test_a_page_is_read_as_it_was_written() -> None:
    """What is measured is what the tables hold, in the order of the questions."""
    answers = {name: ["1.0", *[f"{name}{index}" for index in range(len(QUESTIONS))]] for name in ("a", "b")}
    lines = [line for line in "".join(page(answers)).splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[-1] for line in lines if "asked" not in line] == [
        f"b{index} |" for index in range(len(QUESTIONS))
    ]


@pytest.mark.parametrize(
    "name",
    ["duly", "cronsim", pytest.param("croniter", marks=pytest.mark.heavy)],  # its import asks `file`
)
def test_plain_things_are_the_same_for_all(name: str) -> None:
    """On what nobody disputes, the adapters agree."""
    peer = PEERS[name]
    assert BY_TEXT["0 0 13 * 1"].answer(peer) == "the 13th or a Monday"
    assert BY_TEXT["0 0 * * 0"].answer(peer) == "Sunday"
    assert BY_TEXT["  5 * * * *  "].answer(peer) == ":05"


def test_disputed_things_differ() -> None:
    """The table shows a difference where there is one: a time that is skipped."""
    assert SKIPPED.answer(PEERS["duly"]) == "never"
    assert SKIPPED.answer(PEERS["cronsim"]) == "03:00 +02"


def test_errors_become_answers() -> None:
    """A text that is refused, an error later on, a hang and a thing that cannot be said are told apart."""
    assert SKIPPED.answer(peer_that(raising(KeyError()))) == "refused: KeyError"
    assert SKIPPED.answer(peer_that(raising(NotApplicableError()))) == "-"
    assert SKIPPED.answer(peer_that(raising(SlowError()))) == "no answer in 5 s"
    assert SKIPPED.answer(peer_that(raising_when_asked(KeyError()))) == "raises KeyError"
    assert SKIPPED.answer(peer_that(raising_when_asked(SlowError()))) == "no answer in 5 s"


def test_a_peer_that_goes_back_is_stuck() -> None:
    """The same firing twice is an error, and not a loop without end."""
    again = datetime(2026, 3, 29, 5, tzinfo=BERLIN)
    assert SKIPPED.answer(telling(again, again)) == "raises StuckError"


def test_times_that_no_clock_shows_are_told() -> None:
    """A skipped time is told as such; with a zone, so is the moment that it really is."""
    face = datetime(2026, 3, 29, 2, 30)  # noqa: DTZ001 (as a peer answers)
    assert SKIPPED.answer(telling(face)) == "02:30, which no clock shows"
    assert SKIPPED.answer(telling(face.replace(tzinfo=BERLIN))) == "03:30 +02 (called 02:30)"
    counted = asks(questions.number, SKIPPED.after, SKIPPED.until)
    assert counted.answer(telling(face, face + HOUR)) == "2 times, 1 at a time that no clock shows"


def test_both_times_of_a_fold_are_told() -> None:
    """Times that come twice are told apart by their offset, in whatever zone a peer answers."""
    after = datetime(2026, 10, 25, tzinfo=BERLIN)
    twice = asks(questions.faces, after, after + 12 * HOUR)
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert twice.answer(telling(first, first + HOUR)) == "02:30 +02, 02:30 +01"


def test_minutes_are_put_shortly() -> None:
    """A few minutes are named, many are counted, all are every one."""
    after = datetime(2026, 1, 5, 9, 59, tzinfo=BERLIN)
    asked = asks(questions.minutes, after, after + HOUR)
    hour = [after + timedelta(minutes=minute) for minute in range(1, 61)]
    assert asked.answer(telling(*hour[5:7])) == ":05 :06"
    assert asked.answer(telling(*hour[:59])) == "59 minutes: :00 :01 :02 ..."
    assert asked.answer(telling(*hour)) == "every minute"
    assert asked.answer(telling()) == "never"


def test_unknown_days_are_counted() -> None:
    """Days that have no name are told by their number and the first."""
    question = BY_TEXT["0 0 * * 0"]
    assert question.answer(telling(datetime(2026, 1, 7, tzinfo=UTC))) == "1 days, first 2026-01-07"


def test_texts_are_shown_so_that_spaces_are_seen() -> None:
    """Only texts in which something would be lost are in quotes."""
    assert shown("5 * * * *") == "5 * * * *"
    assert shown("5\t* * * *") == "'5\\t* * * *'"
    assert shown(" 5 * * * *") == "' 5 * * * *'"
