"""Every property of spec/model.md 5 to 7 by its smallest violation and its nearest neighbour, by formulas.

A story is a table: the time (UTC, of the day named), the short name of the event, its arguments. Task h is
due at every full hour, z too but retries at once, m every minute, d at 02:30; h/30 is h at half past. Tasks p
and q are due like h, and only one of them may run at a time.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from duly.verify.properties import PROPERTIES, Outcome, Verdict
from tests.reference.formal.formulas import evaluated
from tests.reference.formal.model import Truths, since, yesterday

CONFIGS = {
    "h": ("h", "0 * * * *", 300_000),
    "h/30": ("h", "30 * * * *", 300_000),
    "h/0": ("h", "0 * * * *", 0),
    "z": ("z", "0 * * * *", 0),
    "m": ("m", "* * * * *", 300_000),
    "d": ("d", "30 2 * * *", 300_000),
    "p": ("p", "0 * * * *", 300_000),
    "q": ("q", "0 * * * *", 300_000),
    "bad": ("bad", "60 * * * *", 0),
    "negative": ("negative", "* * * * *", -1),
}


def _instant_ms(day: str, clock: str) -> float:
    return datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC).timestamp() * 1000


def _event(day: str, row: str) -> dict[str, Any]:
    clock, name, *words = row.split()
    at_ms = _instant_ms(day, clock)
    match name, words:
        case "IS", [call, *tasks]:
            return {
                "t": at_ms,
                "ev": "InitStart",
                "call": int(call),
                "regs": [CONFIGS[task] for task in tasks],
                "options": {task: {"limit": "one"} for task in tasks if task in {"p", "q"}},
                "limits": {"one": 1},
            }
        case "IE", [call, result]:
            flags = {"ok": result == "ok", "void": result == "void"}
            return {"t": at_ms, "ev": "InitEnd", "call": int(call), **flags}
        case "SS", [call]:
            return {"t": at_ms, "ev": "StopStart", "call": int(call)}
        case "SE", [call, *result]:
            flags = {"ok": result != ["raised"], "void": result == ["void"]}
            return {"t": at_ms, "ev": "StopEnd", "call": int(call), **flags}
        case "RS", [task, *number]:
            return {"t": at_ms, "ev": "RunStart", "id": task, "run": int(number[0]) if number else None}
        case "RE", [task, result, *number]:
            run = int(number[0]) if number else None
            return {"t": at_ms, "ev": "RunEnd", "id": task, "ok": result == "ok", "run": run}
        case "Step", [origin]:
            return {"t": at_ms, "ev": "ClockStep", "from": _instant_ms(day, origin)}
        case _:
            return {"t": at_ms, "ev": name, **({"proc": words[0]} if words else {})}


def told(story: str, *, day: str = "2026-06-18", tz: str = "UTC", **header: Any) -> Outcome:
    """What the formulas say of a story."""
    rows = [row.split("#")[0].strip() for row in story.strip().splitlines()]
    lines = [{"ev": "Header", "v": 1, "tz": tz, **header}, *(_event(day, row) for row in rows if row)]
    return evaluated([msgspec.json.encode(line) + b"\n" for line in lines])


def violated(story: str, **header: Any) -> list[str]:
    """The properties that a story violates, in the order of the report."""
    outcome = told(story, **header)
    assert not outcome.faults
    return [name for name in PROPERTIES if outcome.verdict(name) is Verdict.VIOLATED]


def onsets(outcome: Outcome, name: str) -> list[str]:
    """When each violation of a property began, as a clock shows it."""
    moments = [each.at_us for each in outcome.violations if each.property == name]
    return [datetime.fromtimestamp(at_us / 1e6, UTC).time().isoformat() for at_us in moments]


UP = """
11:30:00 IS 1 h
11:30:00 IE 1 ok
"""

PAIRS = {
    "S1a": (
        """
        11:30:00 IS 1 h
        11:30:00 IE 1 ok
        12:00:00 SS 2
        12:00:00 RS h
        """,
        """
        11:30:00 IS 1 h
        11:30:00 IE 1 ok
        12:00:00 RS h
        12:00:00 SS 2
        """,
    ),
    "S1b": (
        """
        11:30:00 IS 1 h z
        11:30:00 IE 1 ok
        12:00:00 IS 2 z
        12:00:00 IE 2 ok
        12:00:00 RS h
        """,
        """
        11:30:00 IS 1 h z
        11:30:00 IE 1 ok
        12:00:00 IS 2 z h
        12:00:00 IE 2 ok
        12:00:00 RS h
        """,
    ),
    "S1c": (
        UP
        + """
        12:00:00 RS h 1
        13:00:00 RS h 2
        """,
        UP
        + """
        12:00:00 RS h 1
        13:00:00 RE h ok 1
        13:00:00 RS h 2
        """,
    ),
    "S1d": (
        UP + "11:59:59.999 RS h",
        UP + "12:00:00 RS h",
    ),
    "S3": (
        UP
        + """
        12:00:00 RS h
        12:00:01 SS 2
        12:00:02 SE 2
        """,
        UP
        + """
        12:00:00 RS h
        12:00:01 SS 2
        12:00:02 RE h ok
        12:00:02 SE 2
        """,
    ),
    "S4": (
        """
        11:30:00 IS 1 h h
        11:30:00 IE 1 ok
        """,
        """
        11:30:00 IS 1 h h
        11:30:00 IE 1 raised
        """,
    ),
    "S5": (
        """
        11:30:00 IS 1 h
        11:30:00 SS 2
        11:30:01 SE 2
        11:30:02 IE 1 ok
        """,
        """
        11:30:00 IS 1 h
        11:30:00 SS 2
        11:30:01 IE 1 ok
        11:30:02 SE 2
        """,
    ),
    "S6": (
        """
        11:30:00 IS 1 p q
        11:30:00 IE 1 ok
        12:00:00 RS p
        12:00:01 RS q
        12:00:02 RE p ok
        """,
        """
        11:30:00 IS 1 p q
        11:30:00 IE 1 ok
        12:00:00 RS p
        12:00:01 RE p ok
        12:00:02 RS q
        """,
    ),
    "L1": (
        UP
        + """
        12:01:00.007 RS h
        """,
        UP
        + """
        12:01:00.006 RS h
        """,
    ),
    "L2": (
        """
        11:30:00     IS 1 h z
        11:31:00.013 IE 1 ok
        """,
        """
        11:30:00     IS 1 h z
        11:31:00.012 IE 1 ok
        """,
    ),
    "L3": (
        UP
        + """
        12:00:00     RS h
        12:00:10     SS 2
        12:00:20     RE h ok
        12:01:20.001 SE 2
        """,
        UP
        + """
        12:00:00     RS h
        12:00:10     SS 2
        12:00:20     RE h ok
        12:01:20     SE 2
        """,
    ),
    "T1": (
        UP
        + """
        12:00:00 Crash
        12:00:00 RS h
        """,
        UP
        + """
        12:00:00 Crash
        12:00:00 IS 2 h
        12:00:00 IE 2 ok
        12:00:00 RS h
        """,
    ),
    "T2": (
        UP
        + """
        12:00:00 RS h
        13:00:00 RS h
        """,
        UP
        + """
        12:00:00 RS h
        13:00:00 RE h ok
        13:00:00 RS h
        """,
    ),
    "T3": (
        UP
        + """
        12:00:00 RS h
        12:00:01 RE h ok
        12:00:02 RS h
        """,
        UP
        + """
        12:00:00 RS h
        12:00:01 RE h failed
        12:05:01 RS h
        """,
    ),
    "T4": (
        UP
        + """
        12:00:00 RS h
        12:00:01 RE h ok
        12:00:02 Crash
        12:00:03 IS 2 h
        12:00:03 IE 2 ok
        12:00:04 RS h
        12:00:05 RE h ok
        """,
        UP
        + """
        12:00:00 RS h
        12:00:02 Crash
        12:00:03 IS 2 h
        12:00:03 IE 2 ok
        12:00:04 RS h
        12:00:05 RE h ok
        """,
    ),
    "T5": (
        UP
        + """
        12:00:00 RS h
        12:00:01 SS 2
        12:00:02 SE 2
        12:00:03 RE h ok
        """,
        UP
        + """
        12:00:00 RS h
        12:00:01 SS 2
        12:00:02 RE h ok
        12:00:02 SE 2
        """,
    ),
    "T6": (
        UP
        + """
        12:00:00     RS h
        12:00:02     Crash
        12:00:03     IS 2 h
        12:00:03     IE 2 ok
        12:01:03.007 RS h
        """,
        UP
        + """
        12:00:00     RS h
        12:00:02     Crash
        12:00:03     IS 2 h
        12:00:03     IE 2 ok
        12:01:03.006 RS h
        """,
    ),
    "T7": (
        UP
        + """
        12:00:00 RS h
        12:00:01 RE h ok
        12:00:02 IS 2 h
        12:00:02 IE 2 ok
        12:00:03 RS h
        """,
        UP
        + """
        12:00:00 RS h
        12:00:01 RE h ok
        12:00:02 IS 2 h/0
        12:00:02 IE 2 ok
        12:00:03 RS h
        """,
    ),
    "T8": (
        UP
        + """
        12:00:00 RS h 1
        12:00:01 Crash
        12:00:02 RE h ok 1
        """,
        UP
        + """
        12:00:00 RS h 1
        12:00:01 RE h ok 1
        12:00:02 Crash
        """,
    ),
}


def test_every_property_has_a_pair() -> None:
    """No property is left without its smallest violation."""
    assert PAIRS.keys() == PROPERTIES.keys()


@pytest.mark.parametrize("name", PAIRS)
def test_smallest_violation(name: str) -> None:
    """The smallest violation of a property is found."""
    assert name in violated(PAIRS[name][0])


@pytest.mark.parametrize("name", PAIRS)
def test_nearest_neighbour(name: str) -> None:
    """A story that differs in one thing from the smallest violation violates nothing at all."""
    assert violated(PAIRS[name][1]) == []


def test_a_safety_violation_names_its_event() -> None:
    """An objection to a start tells the task, the instant and the line of that start."""
    (first, *_) = told(PAIRS["S1d"][0]).violations
    assert (first.property, first.task, first.line) == ("S1d", "h", 4)
    assert onsets(told(PAIRS["S1d"][0]), "S1d") == ["11:59:59.999000"]


def test_counterexample_to_the_old_theorem() -> None:
    """A list that takes effect while `stop` is in progress does not make the scheduler active."""
    story = """
        11:59:00 IS 1 h
        11:59:01 SS 2
        11:59:02 IE 1 ok
        11:59:03 SE 2
        12:00:00 RS h
        """
    assert violated(story) == ["S1a"]


def test_initialize_after_the_stop_began_makes_active() -> None:
    """A list that takes effect after `stop` returned makes active, though it was called before."""
    story = """
        11:59:01 SS 1
        11:59:02 IS 2 h
        11:59:03 SE 1
        11:59:04 IE 2 ok
        12:00:00 RS h
        """
    assert violated(story) == []


def test_two_stops_at_once() -> None:
    """While one of two stops is outstanding no list makes active, and each may take its time."""
    story = """
        11:59:00 IS 1 h
        11:59:00 IE 1 ok
        11:59:01 SS 2
        11:59:02 SS 3
        11:59:03 SE 2
        11:59:04 IS 4 h
        11:59:05 IE 4 ok
        {}
        12:00:00 RS h
        """
    assert violated(story.format("12:00:00 SE 3")) == ["S1a"]
    assert violated(story.replace("11:59:04", "12:00:00").replace("11:59:05", "12:00:00").format("")) == [
        "S1a"
    ]


def test_init_at_stop_is_kept_per_call() -> None:
    """A stop waits for the calls of `initialize` that were in progress when it began, and for no others."""
    story = """
        11:30:00 IS 1 h
        11:30:01 SS 2
        11:30:02 IE 1 ok
        11:30:03 IS 3 h
        11:30:04 SS 4
        11:30:05 SE {}
        11:30:06 IE 3 ok
        11:30:07 SE {}
        """
    assert violated(story.format(2, 4)) == []
    assert violated(story.format(4, 2)) == ["S5"]


def test_a_failed_initialize_ends_activity() -> None:
    """An `initialize` that raised for a valid list ends all activity, one for an invalid list does not."""
    assert violated(UP + "11:31:00 IS 2 h/30\n11:31:00 IE 2 raised\n12:00:00 RS h") == ["S1a"]
    assert violated(UP + "11:31:00 IS 2 h bad\n11:31:00 IE 2 raised\n12:00:00 RS h") == []
    assert violated(UP + "11:31:00 IS 2 negative\n11:31:00 IE 2 raised\n12:00:00 RS h") == []
    assert violated(UP + "11:31:00 IS 2 h/30\n11:31:00 IE 2 void\n12:00:00 RS h") == []


def test_dues_count_once() -> None:
    """Any number of dues that were missed allow one start."""
    story = """
        11:30:00 IS 1 h
        11:30:00 IE 1 ok
        11:31:00 SS 2
        11:31:00 SE 2
        14:30:00 IS 3 h
        14:30:00 IE 3 ok
        14:30:01 RS h
        14:30:02 RE h ok
        """
    assert violated(story) == []
    assert violated(story + "14:30:03 RS h") == ["S1d", "T3"]


def test_deadline_at_the_horizon_is_open() -> None:
    """A deadline exactly at the end of the trace is open; a moment later it is missed."""
    open_story, missed = told(UP + "12:01:00.006 End"), told(UP + "12:01:00.007 End")
    assert open_story.tallies["L1"].open == 1
    assert open_story.overall is Verdict.INCONCLUSIVE
    assert onsets(missed, "L1") == ["12:00:00"]


def test_an_answered_initialize_opens_the_deadline_anew() -> None:
    """What is owed when a list is answered is owed from there on; what was missed is told once for each."""
    answered = UP + "12:00:30 IS 2 h\n12:00:30 IE 2 ok\n"
    assert violated(answered + "12:01:30.006 RS h") == []
    assert onsets(told(answered + "12:01:30.007 End"), "L1") == ["12:00:30"]
    twice = UP + "12:02:00 IS 2 h\n12:02:00 IE 2 ok\n12:04:00 End"
    assert onsets(told(twice), "L1") == ["12:00:00", "12:02:00"]


def test_a_missed_start_is_told_once() -> None:
    """A task that never starts is told once, not once for every due."""
    assert onsets(told(UP + "18:30:00 End"), "L1") == ["12:00:00"]


def test_owed_only_from_the_end_of_a_run() -> None:
    """A due that comes during a run is owed from the end of that run on."""
    story = UP + "12:00:00 RS h 1\n13:00:30 RE h ok 1\n"
    assert violated(story + "13:01:30.006 RS h 2") == []
    assert onsets(told(story + "13:01:30.007 RS h 2"), "L1") == ["13:00:30"]


RETRY = UP + "12:00:00 RS h\n12:00:10 RE h failed\n"


def test_retry_at_its_delay_and_not_before() -> None:
    """A retry may start exactly when its delay has passed, and not a moment earlier."""
    assert violated(RETRY + "12:05:10 RS h") == []
    assert violated(RETRY + "12:05:09.999 RS h") == ["S1d"]
    assert onsets(told(RETRY + "12:07:00 End"), "L1") == ["12:05:10"]


def test_retry_survives_a_crash() -> None:
    """A task that failed before a crash is retried once its delay has passed, and not before."""
    story = RETRY + "12:01:00 Crash\n12:02:00 IS 2 h\n12:02:00 IE 2 ok\n"
    assert violated(story + "12:05:10 RS h") == []
    assert violated(story + "12:05:00 RS h") == ["S1d"]


def test_due_pre_empts_retry() -> None:
    """A start for a due uses up the retry that was pending, whether it had come or not."""
    story = UP + "12:00:00 RS h\n12:58:00 RE h failed\n13:00:00 RS h\n13:00:01 RE h ok\n"
    assert violated(story + "13:03:00 RS h") == ["S1d", "T3"]
    assert violated(story + "13:59:59 End") == []


def test_retry_delay_of_zero() -> None:
    """With a delay of zero the retry is due right after the failure, at the same instant."""
    story = """
        11:30:00 IS 1 z
        11:30:00 IE 1 ok
        12:00:00 RS z
        12:00:00 RE z failed
        12:00:00 RS z
        12:00:00 RE z ok
        """
    assert violated(story) == []
    assert violated(story.replace("failed", "ok")) == ["S1d", "T3", "T4"]
    assert onsets(told(story.replace("RE z ok", "RE z failed") + "12:02:00 End"), "L1") == ["12:00:00"]


def test_registered_in_its_minute() -> None:
    """A new or changed task is due at once if the present minute is one of its own."""
    assert violated("12:00:59.999 IS 1 h\n12:00:59.999 IE 1 ok\n12:00:59.999 RS h") == []
    assert violated("12:01:00 IS 1 h\n12:01:00 IE 1 ok\n12:01:00 RS h") == ["S1d"]
    changed = UP + "12:00:00 RS h\n12:00:01 RE h ok\n12:00:02 IS 2 {}\n12:00:02 IE 2 ok\n12:00:03 RS h"
    assert violated(changed.format("h/0")) == []
    assert violated(changed.format("h/30")) == ["S1d"]
    assert violated(changed.format("h")) == ["S1d", "T3", "T7"]


def test_override_during_a_run() -> None:
    """A run begun under an older registration arms no retry, and what is due waits for its end."""
    story = UP + "12:00:00 RS h 1\n12:00:10 IS 2 h/0\n12:00:10 IE 2 ok\n12:00:20 RE h failed 1\n"
    assert violated(story + "12:00:20 RS h 2") == []
    later = UP + "12:00:00 RS h 1\n12:01:10 IS 2 h/0\n12:01:10 IE 2 ok\n12:01:20 RE h failed 1\n"
    assert violated(later + "12:01:20 RS h 2") == ["S1d"]
    assert violated(later + "12:59:00 End") == []


def test_removed_task_crashes() -> None:
    """A run that outlived its task and was cut off by a crash makes nothing interrupted."""
    story = (
        UP
        + """
        12:00:00 RS h
        12:01:00 IS 2 {}
        12:01:00 IE 2 ok
        12:01:01 Crash
        12:01:02 IS 3 h z
        12:01:02 IE 3 ok
        """
    )
    assert violated(story.format("z") + "12:01:03 RS h") == ["S1d"]
    assert violated(story.format("z") + "12:03:00 End") == []
    assert violated(story.format("h z") + "12:01:03 RS h") == []
    assert violated(story.format("h z") + "12:03:00 End") == ["L1", "T6"]


def test_interruption_survives_an_override_and_not_a_removal() -> None:
    """An interrupted run is owed under a changed registration too, and forgotten with the task."""
    story = UP + "12:00:00 RS h\n12:01:00 Crash\n12:02:00 IS 2 {}\n12:02:00 IE 2 ok\n"
    assert violated(story.format("h/30") + "12:02:01 RS h") == []
    back = "12:03:00 IS 3 h\n12:03:00 IE 3 ok\n12:03:01 RS h"
    assert violated(story.format("z") + back) == ["S1d"]


# May and must.


def test_initialize_over_a_minute_boundary() -> None:
    """A minute in which `initialize` was under way may count for a new task, but need not."""
    story = "12:00:30 IS 1 h m\n12:01:00 IE 1 ok\n{}12:01:01 RS m\n12:01:02 RE m ok\n"
    assert violated(story.format("12:01:01 RS h\n")) == []
    assert violated(story.format("") + "12:01:59 End") == []
    within = "11:59:59 IS 1 h\n12:00:00 IE 1 ok\n12:02:00 End"
    assert onsets(told(within), "L1") == ["12:00:00"]


def test_start_before_its_list_took_effect() -> None:
    """A task of a new list may start when `initialize` has returned, and not while it is under way."""
    story = "11:30:00 IS 1 z\n11:30:00 IE 1 ok\n12:00:00 IS 2 z h\n12:00:01 RS z\n{}12:00:02 IE 2 ok\n{}"
    assert violated(story.format("", "12:00:02 RS h")) == []
    assert violated(story.format("12:00:01 RS h\n", "")) == ["S1b", "S1d"]


def test_start_while_an_override_is_under_way() -> None:
    """A start between call and return of an override may have answered the minute: no second one is owed."""
    story = UP + "12:00:01 IS 2 h/0\n{}12:00:04 IE 2 ok\n12:02:00 End"
    assert violated(story.format("12:00:02 RS h\n12:00:03 RE h ok\n")) == []
    assert violated(story.format("")) == ["L1"]


def test_start_written_and_not_called() -> None:
    """A crash when a start was owed may have come between its record and its call."""
    story = UP + "12:00:00 {}\n12:02:00 IS 3 h/30\n12:02:00 IE 3 ok\n"
    assert violated(story.format("Crash") + "12:02:01 RS h") == []
    assert violated(story.format("Crash") + "12:29:00 End") == []
    assert violated(story.format("SS 2\n12:00:00 Crash") + "12:02:01 RS h") == []
    assert violated(story.format("SS 2\n12:00:00 SE 2\n12:00:00 Crash") + "12:02:01 RS h") == ["S1d"]


def test_stop_that_was_given_up() -> None:
    """A stop given up before its turn holds starts back until then, and changes nothing."""
    story = UP + "11:59:40 SS 2\n12:00:30 SE 2 void\n{}"
    assert violated(story.format("12:01:30.006 RS h")) == []
    assert onsets(told(story.format("12:01:30.007 RS h")), "L1") == ["12:00:30"]
    assert "S1a" in violated(UP + "11:59:00 SS 2\n12:00:00 RS h\n12:00:30 SE 2 void")


def test_stop_that_raised() -> None:
    """Ends within the persist window before a stop that raised may not have been written."""
    story = UP + "12:00:00 RS h\n12:00:01 RE h ok\n12:00:01 SS 2\n12:00:{} SE 2 raised\n"
    again = "12:01:00 IS 3 h\n12:01:00 IE 3 ok\n12:01:01 RS h\n12:01:02 RE h ok"
    assert violated(story.format("01.999") + again, persist_window_ms=1000) == []
    assert violated(story.format("02.000") + again, persist_window_ms=1000) == ["S1d", "T4"]


def test_crash_inside_initialize() -> None:
    """A list that a crash cut off may have taken effect or not: an old task is allowed, and not owed."""
    story = (
        UP
        + """
        12:00:00 RS h
        12:00:01 RE h ok
        12:00:10 IS 2 h/0
        12:00:20 Crash
        12:00:30 IS 3 h
        12:00:30 IE 3 ok
        """
    )
    assert violated(story + "12:00:40 RS h") == []
    assert violated(story + "12:59:00 End") == []
    assert violated(story.replace("IS 2 h/0", "IS 2 h") + "12:00:40 RS h") == ["S1d"]


def test_overlapping_initializes_cut_off() -> None:
    """Lists of calls that a crash cut off took effect in call order: none, the first, both."""
    story = UP + "12:00:00 RS h\n12:00:01 RE h ok\n12:00:10 IS 2 {}\n12:00:10 IS 3 {}\n12:00:20 Crash\n"
    again = "12:00:30 IS 4 h\n12:00:30 IE 4 ok\n12:00:40 RS h"
    assert violated(story.format("z", "h") + again) == []
    assert violated(story.format("h", "h") + again) == ["S1d"]


def test_end_lost_in_the_persist_window() -> None:
    """A run that ended just before a crash may start again, need not, and only within the window."""
    story = UP + "12:00:00 RS h\n12:00:01 RE h ok\n12:00:{} Crash\n12:00:03 IS 2 h\n12:00:03 IE 2 ok\n"
    assert violated(story.format("01.999") + "12:00:04 RS h\n12:00:05 RE h ok", persist_window_ms=1000) == []
    assert violated(story.format("01.999") + "12:59:00 End", persist_window_ms=1000) == []
    late = story.format("02.000") + "12:00:04 RS h\n12:00:05 RE h ok"
    assert violated(late, persist_window_ms=1000) == ["S1d", "T4"]


def test_failure_lost_in_the_persist_window() -> None:
    """If a failure may be lost, a start is allowed at once; it is owed when its retry would be."""
    story = UP + "12:00:00 RS h\n12:00:01 RE h failed\n12:00:01 Crash\n12:00:03 IS 2 h\n12:00:03 IE 2 ok\n"
    assert violated(story + "12:00:04 RS h", persist_window_ms=1000) == []
    assert onsets(told(story + "12:30:00 End", persist_window_ms=1000), "L1") == ["12:05:01"]


def test_unknown_store() -> None:
    """Over an unknown store a task may start before its first due, once, and is owed nothing until then."""
    story = "12:00:30 IS 1 h\n12:00:30 IE 1 ok\n"
    assert violated(story + "12:59:00 End", store="unknown") == []
    assert violated(story.replace("12:00", "12:10") + "12:10:40 RS h", store="unknown") == []
    once = story.replace("12:00", "12:10") + "12:10:40 RS h\n12:10:41 RE h ok\n12:10:42 RS h"
    assert violated(once, store="unknown") == ["S1d", "T3"]
    assert onsets(told(story + "13:30:00 End", store="unknown"), "L1") == ["13:00:00"]


# Clock steps.


def test_forward_step() -> None:
    """Dues that were jumped over stand when the clock has jumped, and the deadline runs from there."""
    story = UP + "12:40:00 Step 11:40:00\n"
    assert violated(story + "12:40:00 RS h") == []
    assert violated(story + "12:41:00.006 RS h") == []
    assert onsets(told(story + "12:42:00 End"), "L1") == ["12:40:00"]
    assert violated(RETRY + "12:40:00 Step 12:01:00\n12:40:00 RS h") == []


def test_small_step_back() -> None:
    """A step back of up to five minutes brings no minute a second time."""
    story = UP + "12:00:00 RS h\n12:00:01 RE h ok\n11:56:00 Step 12:01:00\n12:00:00 RS h"
    assert violated(story) == ["S1d", "T3"]
    assert violated(story.replace("11:56:00 Step 12:01:00", "11:55:59.999 Step 12:01:00")) == []


def test_a_due_that_stood_stands_after_a_step_back() -> None:
    """A due that stood before the clock was set back stands after it, and is owed from there."""
    for back in ("11:58:00", "10:58:00"):
        story = UP + f"{back} Step 12:00:30\n"
        assert violated(story + f"{back} RS h") == []
        assert onsets(told(story + f"{back[:3]}59:30 End"), "L1") == [back]


def test_large_step_back_shortens_a_retry() -> None:
    """After a large step back a retry is due its delay after the new time at the latest."""
    story = RETRY + "11:01:00 Step 12:01:00\n"
    assert violated(story + "11:06:00 RS h") == []
    assert violated(story + "11:05:59 RS h") == ["S1d"]
    small = RETRY + "11:58:00 Step 12:01:00\n"
    assert violated(small + "12:03:00 RS h") == ["S1d"]
    assert violated(small + "12:05:10 RS h") == []


def test_a_retry_that_had_come_stands_after_a_step_back() -> None:
    """A retry that was due before a step back is due after it; if nobody noticed that, it is not owed."""
    late = RETRY + "12:05:11 {}12:04:00 Step 12:05:12\n{}"
    assert violated(late.format("Tick\n", "12:04:01 RS h")) == []
    assert onsets(told(late.format("Tick\n", "12:05:05 End")), "L1") == ["12:04:00"]
    back = "12:04:01 IS 2 h\n12:04:01 IE 2 ok\n"
    assert violated(late.format("Crash\n", back + "12:04:02 RS h")) == []
    assert violated(late.format("Crash\n", back + "12:05:09 End")) == []


def test_step_back_while_down() -> None:
    """Whether a step back was noticed while nobody was there is open: repeated dues are allowed, not owed."""
    story = (
        UP
        + """
        12:00:00 RS h
        12:00:01 RE h ok
        12:00:02 Crash
        10:30:00 Step 12:30:00
        10:31:00 IS 2 h
        10:31:00 IE 2 ok
        {}
        12:40:00 End
        """
    )
    assert violated(story.format("11:00:00 RS h")) == []
    assert violated(story.format("")) == []
    assert violated(story.format("10:59:00 RS h")) == ["S1d"]
    assert violated(story.format("").replace("12:40:00", "13:40:00")) == ["L1"]


def test_a_step_opens_the_deadlines_of_calls_anew() -> None:
    """After a step the deadlines of `initialize` and `stop` run from the new time."""
    initialize = "11:30:00 IS 1 h\n11:35:00 Step 11:30:30\n"
    assert violated(initialize + "11:36:00.006 IE 1 ok") == []
    assert onsets(told(initialize + "11:36:00.007 IE 1 ok"), "L2") == ["11:35:00"]
    stop = UP + "11:40:00 SS 2\n11:35:00 Step 11:40:30\n"
    assert violated(stop + "11:36:00 SE 2") == []
    assert onsets(told(stop + "11:36:00.001 SE 2"), "L3") == ["11:35:00"]


# Civil time. Berlin: 2026-03-29 02:00 -> 03:00 (01:00 UTC), 2026-10-25 03:00 -> 02:00 (01:00 UTC).


def test_a_minute_that_the_clocks_skip() -> None:
    """A time of day that the clocks skip is due not at all on that day."""
    #   UTC    00:30  00:59  01:00  01:30
    #   Berlin 01:30  01:59  03:00  03:30
    story = "00:10:00 IS 1 d\n00:10:00 IE 1 ok\n{}\n"
    spring = {"day": "2026-03-29", "tz": "Europe/Berlin"}
    assert violated(story.format("23:00:00 End"), **spring) == []
    for clock in ("00:30:00", "01:00:00", "01:30:00"):
        assert violated(story.format(f"{clock} RS d"), **spring) == ["S1d"]


def test_a_minute_that_the_clocks_show_twice() -> None:
    """A time of day that the clocks show twice is due the first time only."""
    #   UTC    00:30  00:59  01:00  01:30
    #   Berlin 02:30  02:59  02:00  02:30
    autumn = {"day": "2026-10-25", "tz": "Europe/Berlin"}
    story = "00:10:00 IS 1 d\n00:10:00 IE 1 ok\n00:30:00 RS d\n00:30:01 RE d ok\n"
    assert violated(story + "22:00:00 End", **autumn) == []
    assert violated(story + "01:30:00 RS d", **autumn) == ["S1d", "T3"]
    assert violated("01:30:10 IS 1 d\n01:30:10 IE 1 ok\n01:30:11 RS d", **autumn) == ["S1d"]


def test_every_minute_of_the_hour_that_comes_twice() -> None:
    """A task that is due every minute is not due in the hour that the clocks show again."""
    autumn = {"day": "2026-10-25", "tz": "Europe/Berlin"}
    story = "00:59:00 IS 1 m\n00:59:00 IE 1 ok\n00:59:00 RS m\n00:59:01 RE m ok\n"
    assert violated(story + "01:00:00 RS m", **autumn) == ["S1d", "T3"]
    assert violated(story + "02:00:00 RS m", **autumn) == []


# Environment.


@pytest.mark.parametrize(
    "story",
    [
        UP + "11:29:59 Tick",
        UP + "12:00:00 RE h ok",
        UP + "12:00:00 RS h 1\n12:00:01 RE h ok 2",
        UP + "12:00:00 IE 1 ok",
        UP + "12:00:00 SE 2",
        "11:30:00 IS 1 h\n11:30:00 IS 1 h",
        "11:30:00 Tick p1\n11:31:00 Tick p2\n11:32:00 Tick p1",
    ],
)
def test_faults_of_the_trace(story: str) -> None:
    """What no scheduler is to blame for is told with its line, and nothing after it is held against one."""
    outcome = told(story + "\n23:00:00 RS nobody")
    assert [fault.line for fault in outcome.faults] == [story.strip().count("\n") + 2]
    assert outcome.tallies["S1b"].doubtful == 1
    assert outcome.overall is Verdict.INCONCLUSIVE


def test_an_unknown_event_excuses_nothing() -> None:
    """After an unknown event violations stand, and nothing is better than inconclusive."""
    assert told(UP + "11:31:00 Nap\n11:32:00 RS h").verdict("S1d") is Verdict.VIOLATED
    assert told(UP + "11:31:00 Nap").overall is Verdict.INCONCLUSIVE


def test_a_crash_is_inferred_where_the_process_changes() -> None:
    """A process that is followed by another without having stopped has crashed at its last event."""
    story = "11:30:00 Tick p1\n" + UP + "12:00:00 RS h\n12:10:00 Tick p2\n12:10:00 IS 2 h\n12:10:00 IE 2 ok\n"
    assert told(story).crashes == 1
    assert violated(story + "12:10:01 RS h") == []
    stopped = story.replace("12:10:00 Tick", "12:00:01 RE h ok\n12:00:02 SS 9\n12:00:02 SE 9\n12:10:00 Tick")
    assert told(stopped).crashes == 0
    assert violated(stopped + "12:10:01 RS h") == ["S1d", "T3", "T7"]


def test_ends_without_numbers() -> None:
    """An end without a number ends the oldest run there is."""
    story = UP + "12:00:00 RS h\n13:00:00 RS h\n13:00:01 RE h ok\n14:00:00 SS 2\n14:00:00 SE 2"
    assert violated(story) == ["S1c", "S3", "T2"]


def test_operators() -> None:
    """`Y` looks one position back; `p S q` holds from q on, as long as p does."""
    p, q = Truths([True, True, False, True, True]), Truths([False, True, False, False, True])
    assert since(p, q) == (False, True, False, False, True)
    assert yesterday(p) == (False, True, True, False, True)
