"""Targets matched with runs: the checker of another kind, on small traces by hand. Times are in seconds."""

from itertools import chain
from typing import Any

import msgspec
import pytest

from duly.verify.targets import Account, account_of

Line = dict[str, Any]
HEADER = {"ev": "Header", "v": 1, "tz": "UTC"}
NODE = {**HEADER, "node": "a", "failover_ms": 10_000}


def at(seconds: float, ev: str, **facts: Any) -> Line:
    return {"ev": ev, "t": seconds * 1000, **facts}


def opened(cron: str = "0-30 * * * *", delay_s: float = 20, seconds: float = -10, **facts: Any) -> list[Line]:
    regs = [["x", cron, delay_s * 1000]]
    return [at(seconds, "InitStart", call=1, regs=regs, **facts), at(seconds, "InitEnd", call=1, ok=True)]


def run(seconds: float, number: int = 1, *, lasts_s: float = 1, ok: bool = True) -> list[Line]:
    ended = at(seconds + lasts_s, "RunEnd", id="x", run=number, ok=ok)
    return [at(seconds, "RunStart", id="x", run=number), ended]


def account(*files: list[Line]) -> Account:
    return account_of(msgspec.json.encode(line) + b"\n" for line in chain.from_iterable(files))


def test_every_target_and_every_run() -> None:
    """Three dues, three starts in time: all matched, and nothing left over."""
    seen = account([HEADER, *opened(), *run(0.1), *run(60.1, 2), *run(120.1, 3), at(130, "End")])
    assert seen.is_right
    assert seen.sentences() == [
        "targets 3: 3 matched, 0 excused, 0 missed",
        "runs 3: 3 for a due, 0 unaccounted for",
    ]


def test_a_missed_target() -> None:
    """A due without a start in its window is named, late or not at all."""
    seen = account([HEADER, *opened(), *run(0.1), *run(125, 2), at(190, "End")])
    assert [seen.targets, seen.matched, seen.excused.total()] == [4, 2, 1]
    assert seen.missed == [
        "'x' was due at 1970-01-01 00:01:00.000+00:00, and it started at 1970-01-01 00:02:05.000+00:00"
    ]
    seen = account([HEADER, *opened(cron="0 * * * *"), at(100, "End")])
    assert seen.missed == ["'x' was due at 1970-01-01 00:00:00.000+00:00, and it did not start"]


def test_a_run_too_many() -> None:
    """A second start for the same due is not accounted for."""
    seen = account([HEADER, *opened(), *run(0.1), *run(5, 2), at(30, "End")])
    assert seen.unaccounted == ["'x' started at 1970-01-01 00:00:05.000+00:00 for no reason that can be seen"]
    assert not seen.is_right


def test_two_at_once() -> None:
    """A start while the run before goes on is not accounted for, even if there is a due."""
    seen = account([HEADER, *opened(), *run(0.1, lasts_s=90), *run(60.1, 2), at(95, "End")])
    assert [line for line in seen.unaccounted if "while its run of" in line]


def test_a_retry() -> None:
    """A failure explains one more start, once its delay has passed."""
    assert account([HEADER, *opened(), *run(0.1, ok=False), *run(21.2, 2), at(30, "End")]).is_right
    assert not account([HEADER, *opened(), *run(0.1, ok=False), *run(11, 2), at(30, "End")]).is_right


def test_dues_during_a_run() -> None:
    """What comes due while the task runs is excused, and answered afterwards by one start."""
    lines = [HEADER, *opened(), *run(0.1, lasts_s=190), *run(190.2, 2), at(200, "End")]
    seen = account(lines)
    assert seen.is_right
    assert seen.excused == {"running": 2}


def test_nobody_was_there() -> None:
    """While everything is stopped nothing is missed."""
    stop = [at(5, "StopStart", call=2), at(6, "StopEnd", call=2)]
    seen = account(
        [HEADER, *opened(), *run(0.1), *stop, *opened(seconds=200), *run(200.1, 2), at(210, "End")]
    )
    assert seen.is_right
    assert seen.excused == {"nobody was up": 2}


def test_an_interruption() -> None:
    """A run that died with its process explains one more start, in whatever file."""
    dead = [NODE, *opened(proc="p"), at(0.1, "RunStart", id="x", run=1), at(5, "Crash")]
    other = [{**NODE, "node": "b"}, *opened(proc="q"), *run(13), at(50, "Tick")]
    seen = account(dead, other)
    assert seen.is_right
    assert seen.causes == {"for a due": 1, "after an interruption": 1}
    other = [{**NODE, "node": "b"}, *opened(proc="q"), *run(13), *run(20, 2), at(50, "Tick")]
    assert len(account(dead, other).unaccounted) == 1


def test_an_end_that_was_not_written() -> None:
    """An end that came just before its node was killed explains one more start, an older one does not."""
    other = [{**NODE, "node": "b"}, *opened(proc="q"), *run(13), at(50, "Tick")]
    dead = [NODE, *opened(proc="p"), *run(0.1), at(1.3, "Tick")]
    assert account(dead, other).causes == {"for a due": 1, "after an interruption": 1}
    assert len(account([*dead, at(3, "Tick")], other).unaccounted) == 1


def test_a_failover_takes_its_time() -> None:
    """A due that comes as a node dies is answered late, and excused; without a death it is missed."""
    facts = {"delta_ms": 1_000}
    dead = [{**NODE, **facts}, *opened(proc="p"), at(-1, "Crash")]
    other = [{**NODE, **facts, "node": "b"}, *opened(proc="q"), *run(8), at(50, "Tick")]
    seen = account(dead, other)
    assert (seen.is_right, seen.excused) == (True, {"failover": 1})
    alive = [*dead[:-1], at(50, "Tick")]
    assert account(alive, other).missed


def test_a_loss() -> None:
    """What a node lost with its trust it does not end, and another may make again."""
    one = [NODE, *opened(proc="p"), *run(0.1)[:1], at(5, "TrustLost", runs=["x"]), *run(0.1)[1:]]
    one[-1] = {**one[-1], "t": 5_100, "ok": False}
    other = [{**NODE, "node": "b"}, *opened(proc="q"), *run(7), at(50, "Tick")]
    assert account([*one, at(50, "Tick")], other).causes["after an interruption"] == 1


def test_a_database_that_is_away() -> None:
    """While nobody can reach the database nothing is missed."""
    away = [at(59, "Unreachable"), at(190, "Reachable")]
    seen = account([NODE, *opened(), *run(0.1), *away, *run(200, 2), at(210, "Tick")])
    assert (seen.is_right, seen.excused) == (True, {"database away": 2})


def test_lists_come_and_go() -> None:
    """A list that came within a due minute has a target there; a task in no list has none."""
    regs = [["x", "0 * * * *", 0]]
    list_again = [at(30, "InitStart", call=2, regs=regs), at(30, "InitEnd", call=2, ok=True)]
    gone = [at(40, "InitStart", call=3, regs=[]), at(40, "InitEnd", call=3, ok=True)]
    seen = account([HEADER, *opened(), *run(0.1), *list_again, *run(30.1, 2), *gone, at(300, "End")])
    assert (seen.is_right, seen.targets, seen.matched) == (True, 2, 2)


def test_hours_that_come_twice() -> None:
    """A minute that the clocks show twice is due once, when it is first shown; one skipped is never due."""
    header = {**HEADER, "tz": "Europe/Berlin"}
    back, forward = 1_792_886_400, 1_774_746_000  # 2026-10-25 02:00 and 2026-03-29 02:00, there
    seen = account([header, *opened("30 2 * * *", seconds=back), *run(back + 1800.1), at(back + 9000, "End")])
    assert (seen.is_right, seen.targets) == (True, 1)
    seen = account([header, *opened("30 2 * * *", seconds=forward), at(forward + 9000, "End")])
    assert (seen.is_right, seen.targets) == (True, 0)


@pytest.mark.parametrize(
    ("cron", "dues"),
    [
        ("0,30 * * * *", 3),
        ("5-7 0 * * *", 3),
        ("0 * 2 * 4", 2),
        ("0 * 2 * *", 0),
        ("0 * * * 5", 0),
        ("0 1 1 1 *", 1),
    ],
)
def test_fields_of_a_cron_text(cron: str, dues: int) -> None:
    """Lists, ranges, and days by date or weekday; the first day of 1970 was a Thursday."""
    assert account([HEADER, *opened(cron), at(3601, "End")]).targets == dues


def test_a_clock_that_was_set() -> None:
    """Where the clock was set nothing is said."""
    seen = account([HEADER, *opened(), at(3600, "ClockStep", **{"from": 10_000}), at(3601, "End")])
    assert seen.sentences() == ["targets: the clock was set, and this check knows one clock only"]
    assert seen.is_right


def test_a_past_that_is_not_known() -> None:
    """Over a store that may remember things, a start before the first due needs no reason."""
    lines = [*opened(cron="5 * * * *"), *run(1), at(30, "End")]
    assert account([{**HEADER, "store": "unknown"}, *lines]).causes == {"of before the trace": 1}
    assert not account([HEADER, *lines]).is_right
