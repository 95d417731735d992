"""Schedules, options and controls of an App by their smallest violation and its nearest neighbour."""

from typing import Any

import msgspec
import pytest

from duly.verify import judged
from duly.verify.trace import event_in

BEGIN_MS = 1_781_784_000_000  # 2026-06-18 12:00 UTC
Row = dict[str, Any]


def at(seconds: float, ev: str, **facts: Any) -> Row:
    return {"t": BEGIN_MS + seconds * 1000, "ev": ev, **facts}


def listed(
    schedule: str, seconds: float = 0, *, call: int = 1, delay_s: float = 10, **options: Any
) -> list[Row]:
    begin = at(seconds, "InitStart", call=call, regs=[["x", schedule, delay_s * 1000]])
    return [
        begin | {"options": {"x": options} if options else {}},
        at(seconds, "InitEnd", call=call, ok=True),
    ]


def run(seconds: float, *, lasts: float = 0, ok: bool = True) -> list[Row]:
    return [at(seconds, "RunStart", id="x"), at(seconds + lasts, "RunEnd", id="x", ok=ok)]


def control(
    seconds: float, what: str, *, until: float | None = None, ok: bool = True, call: int = 50
) -> list[Row]:
    begin = at(seconds, "ControlStart", call=call, control=what, id="x")
    return [begin, at(seconds if until is None else until, "ControlEnd", call=call, ok=ok)]


def violated(*events: Row | list[Row], until: float = 4000, **header: Any) -> list[str]:
    """The properties that a trace violates, in the order of the report."""
    rows = [row for each in events for row in (each if isinstance(each, list) else [each])]
    lines = [{"ev": "Header", "v": 1, "tz": "UTC", **header}, *rows, at(until, "End")]
    for row in rows:
        event_in(msgspec.json.encode(row))
    outcome = judged([msgspec.json.encode(line) + b"\n" for line in lines])
    assert not outcome.faults
    return [name for name, tally in outcome.tallies.items() if tally.violated]


EVERY = "@every 1000s"


@pytest.mark.parametrize(
    ("schedule", "starts", "until", "wrong"),
    [
        (EVERY, [1000, 2000], 2900, []),
        (EVERY, [1000, 2999], 3010, ["L1"]),
        (EVERY, [1000, 1999], 2010, ["S1d", "T3", "T4"]),
        ("+250s @every 1000s", [250, 1250], 2200, []),
        ("+250s @every 1000s", [1000], 1200, ["L1"]),
        ("+250s @every 1000s", [249], 250, ["S1d"]),
        ("@after 600s", [600, 1200], 1700, []),
        ("@after 600s", [600, 1199], 1210, ["S1d", "T3", "T4"]),
        ("@after 600s", [600], 1300, ["L1"]),
        ("@at 2026-06-18T12:20:00Z", [1200], 90_000, []),
        ("@at 2026-06-18T12:20:00Z", [], 1300, ["L1"]),
        ("@at 2026-06-18T12:20:00Z", [1200, 1300], 90_000, ["S1d", "T3", "T4"]),
        ("@at 2026-06-18T11:59:00Z", [], 90_000, []),
        ("TZ=Asia/Tokyo 10 21 * * *", [600], 4000, []),
        ("10 21 * * *", [600], 4000, ["S1d"]),
        ("+60s 10 12 * * *", [660], 4000, []),
        ("@last 12:00", [12 * 86_400], 13 * 86_400, []),
        ("@last 12:00", [11 * 86_400], 11 * 86_400 + 1, ["S1d"]),
    ],
)
def test_schedules(schedule: str, starts: list[float], until: float, wrong: list[str]) -> None:
    """Every schedule is due when it says, and at no other time."""
    runs = [run(start) for start in starts]
    assert violated(listed(schedule), *runs, until=until) == wrong


def test_an_interval_outlasts_a_restart_of_the_process() -> None:
    """The anchor is the first registration; an identical list does not move it."""
    again = [at(1500, "Crash"), *listed(EVERY, 1600, call=2)]
    assert violated(listed(EVERY), run(1000), again, run(2000), until=2900) == []
    assert "S1d" in violated(listed(EVERY), run(1000), again, run(1600), until=1700)


def test_an_interval_that_took_effect_somewhere_in_a_slow_call() -> None:
    """Nobody is accused for an anchor that lies anywhere between the call and its return."""
    slow = [*listed(EVERY)]
    slow[1] = at(50, "InitEnd", call=1, ok=True)
    for anchor in (0, 13, 50):
        request = control(anchor + 999, "run", until=anchor + 999)
        assert (
            violated(slow, request, run(anchor + 999), run(anchor + 1000), run(anchor + 2000), until=2900)
            == []
        )
    assert violated(slow, until=1100) == []
    assert violated(slow, until=1111) == ["L1"]
    assert "S1d" in violated(slow, run(999), until=1000)


def test_a_request_is_answered_once() -> None:
    """A run that was asked for is owed, and no second one is allowed; also over a crash."""
    asked = control(100, "run")
    assert violated(listed(EVERY), asked, run(101), until=900) == []
    assert violated(listed(EVERY), asked, until=900) == ["L1"]
    assert violated(listed(EVERY), asked, run(101), run(102), until=900) == ["S1d", "T3", "T4"]
    assert violated(listed(EVERY), run(99), until=900) == ["S1d"]
    crash = [at(100, "Crash"), *listed(EVERY, 200, call=2)]
    assert violated(listed(EVERY), asked, crash, run(201), until=900) == []
    assert violated(listed(EVERY), asked, crash, until=900) == ["L1"]


def test_a_request_that_failed_is_open() -> None:
    """What raised, or was cut off by a crash, may have been written or not."""
    failed = control(100, "run", ok=False)
    cut = [control(100, "run")[0], at(101, "Crash"), *listed(EVERY, 200, call=2)]
    for asked in (failed, cut):
        assert violated(listed(EVERY), asked, until=900) == []
        assert violated(listed(EVERY), asked, run(201), until=900) == []


def test_a_start_during_a_request_may_come_before_it() -> None:
    """A start between call and return answers the request, or is followed by another one."""
    asked = control(999, "run", until=1002)
    assert violated(listed(EVERY), asked[0], run(1000), asked[1], until=1900) == []
    assert violated(listed(EVERY), asked[0], run(1000), asked[1], run(1003), until=1900) == []


def test_a_paused_task_rests() -> None:
    """Nothing starts a paused task, and nothing is owed; when it goes on, one start answers all."""
    pause, resume = control(10, "pause"), control(3010, "resume", call=51)
    assert violated(listed(EVERY), pause, until=3000) == []
    assert "S1d" in violated(listed(EVERY), pause, run(1000), until=1100)
    assert violated(listed(EVERY), pause, resume, run(3010), until=3500) == []
    assert violated(listed(EVERY), pause, resume, until=3500) == ["L1"]
    crash = [at(100, "Crash"), *listed(EVERY, 200, call=2)]
    assert violated(listed(EVERY), pause, crash, until=3000) == []


def test_an_old_store_says_what_is_paused() -> None:
    """Over an unknown store a task is paused only if the return of `initialize` says so."""
    lines = listed("0 * * * *")
    assert violated(lines, run(0), until=3700, store="unknown") == ["L1"]
    lines[1]["paused"] = ["x"]
    assert violated(lines, until=3700, store="unknown") == []


def test_attempts_and_back_off() -> None:
    """Each retry waits as long as it should, and no longer; after the last one there is none."""
    tries = [run(1000, ok=False), run(1010, ok=False), run(1030, ok=False)]
    options = {"retry_factor": 2, "attempts": 3}
    assert violated(listed(EVERY, **options), *tries, until=1990) == []
    assert "S1d" in violated(listed(EVERY, **options), *tries, run(1070), until=1990)
    assert violated(listed(EVERY, **options), *tries[:2], until=1990) == ["L1"]
    assert "S1d" in violated(listed(EVERY, retry_factor=2), *tries[:2], run(1029), until=1031)
    assert (
        violated(listed(EVERY, retry_factor=2, max_delay_ms=15_000), *tries[:2], run(1025), until=1900) == []
    )
    # A run for another cause starts over.
    assert violated(listed(EVERY, attempts=2), *tries[:2], run(2000, ok=False), run(2010), until=2900) == []


def test_a_cancelled_run_arms_no_retry() -> None:
    """A run that was cancelled is not tried again; one that fails by itself is."""
    begin, end = run(1000, lasts=20, ok=False)
    cancel = control(1010, "cancel")
    assert violated(listed(EVERY), begin, cancel, end, until=1990) == []
    assert "S1d" in violated(listed(EVERY), begin, cancel, end, run(1030), until=1990)
    assert violated(listed(EVERY), begin, end, until=1990) == ["L1"]
    miss = control(990, "cancel")
    miss[1]["hit"] = False
    assert violated(listed(EVERY), miss, begin, end, run(1030), until=1990) == []


def test_a_window_for_old_dues() -> None:
    """A due in its window is made up for, an older one is not; the scheduler may say so."""
    options = {"catch_up_ms": 300_000}
    down = [at(500, "StopStart", call=2), at(500, "StopEnd", call=2)]
    soon, late = listed(EVERY, 1200, call=3, **options), listed(EVERY, 1500, call=3, **options)
    assert violated(listed(EVERY, **options), down, soon, run(1201), until=1900) == []
    assert violated(listed(EVERY, **options), down, soon, until=1900) == ["L1"]
    assert violated(listed(EVERY, **options), down, late, until=1900) == []
    assert violated(listed(EVERY, **options), down, late, run(1501), until=1900) == ["S1d"]
    missed = at(1500, "Missed", id="x", due=BEGIN_MS + 1_000_000)
    assert violated(listed(EVERY, **options), down, late, missed, run(2000), until=2900) == []
    early = at(1250, "Missed", id="x", due=BEGIN_MS + 1_000_000)
    assert violated(listed(EVERY, **options), down, soon, early, until=1900) == ["L1"]


def test_a_disabled_task_runs_by_request_only() -> None:
    """Dues of a disabled task start nothing; when a list enables it, one start answers them."""
    off = listed(EVERY, enabled=False)
    assert violated(off, until=3900) == []
    assert "S1d" in violated(off, run(1000), until=1900)
    assert violated(off, control(10, "run"), run(11), until=3900) == []
    assert violated(off, listed(EVERY, 3500, call=2), run(3500), until=3900) == []
    assert violated(off, listed(EVERY, 3500, call=2), until=3900) == ["L1"]


def entry(schedule: str, *, kind: str = "k") -> Row:
    return {"entry": {"schedule": schedule, "kind": kind}}


def added(seconds: float, schedule: str = EVERY, *, call: int = 60, ok: bool = True) -> list[Row]:
    begin, end = control(seconds, "add", ok=ok, call=call)
    return [begin | entry(schedule), end]


def kinds(seconds: float = 0, *, call: int = 1, **options: Any) -> list[Row]:
    """An empty list, and a kind of entries."""
    begin = at(
        seconds, "InitStart", call=call, regs=[], kinds={"k": {"delay_ms": 10_000, "options": options}}
    )
    return [begin, at(seconds, "InitEnd", call=call, ok=True)]


def test_an_entry_is_owed_until_it_is_removed() -> None:
    """An entry is due from when it was added, over restarts, and not after it was removed."""
    again = [at(1500, "Crash"), *kinds(1600, call=2)]
    assert violated(kinds(), added(500), run(1500), until=2400) == []
    assert violated(kinds(), added(500), until=1600) == ["L1"]
    assert violated(kinds(), added(500), again, run(1600), run(2500), until=3400) == []
    assert violated(kinds(), added(500), again, until=1700) == ["L1"]
    assert violated(kinds(), added(500), control(600, "remove"), until=3000) == []
    assert "S1b" in violated(kinds(), added(500), control(600, "remove"), run(1500), until=3000)
    assert "S1b" in violated(kinds(), run(1500), until=3000)
    assert violated(kinds(), added(500, ok=False), until=3000) == []


def test_an_entry_that_is_changed_begins_anew() -> None:
    """Another schedule is another registration; the same one keeps the anchor."""
    assert violated(kinds(), added(500), added(900, call=61), run(1500), until=2400) == []
    other = added(900, "@every 2000s", call=61)
    assert violated(kinds(), added(500), other, run(2900), until=3400) == []
    assert "S1d" in violated(kinds(), added(500), other, run(1500), until=2400)


def test_an_entry_has_the_options_of_its_kind() -> None:
    """The latest list says how entries are retried; without its kind an entry waits."""
    failed = run(1500, ok=False)
    assert violated(kinds(attempts=2), added(500), failed, run(1510), until=2400) == []
    assert violated(kinds(attempts=2), added(500), failed, until=2400) == ["L1"]
    assert violated(kinds(attempts=1), added(500), failed, until=2400) == []
    gone = [at(1400, "InitStart", call=2, regs=[]), at(1400, "InitEnd", call=2, ok=True)]
    assert violated(kinds(), added(500), gone, until=3000) == []
    assert violated(kinds(), added(500), gone, kinds(3100, call=3), until=3200) == ["L1"]


def test_an_old_store_says_which_entries_there_are() -> None:
    """Over an unknown store the return of `initialize` tells of the entries."""
    lines = kinds()
    lines[1]["entries"] = {"x": entry("0 * * * *")["entry"]}
    assert violated(lines, run(0), run(3600), until=3700, store="unknown") == []
    assert violated(lines, run(0), until=3700, store="unknown") == ["L1"]


def test_a_limit_is_not_exceeded() -> None:
    """So many runs of tasks with one limit are in flight at once, and no more."""
    regs = [[name, "@every 1000s", 0] for name in "xyz"]
    limited = {name: {"limit": "db"} for name in "xyz"}
    lists = [at(0, "InitStart", call=1, regs=regs, options=limited, limits={"db": 2})]
    lists += [at(0, "InitEnd", call=1, ok=True)]
    starts = [at(1000, "RunStart", id=name) for name in "xyz"]
    ends = [at(1010, "RunEnd", id=name, ok=True) for name in "xyz"]
    assert violated(lists, starts, ends, until=1900) == ["S6"]
    assert (
        violated(lists, starts[:2], ends[0], starts[2] | {"t": BEGIN_MS + 1_010_000}, ends[1:], until=1900)
        == []
    )
