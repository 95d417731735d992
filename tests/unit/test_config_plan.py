"""Plans: what a new file adds, changes and removes, and what it does not remove."""

from pathlib import Path

from duly.config import Service, Timer, config_of
from duly.config.plan import ConfigPlan, Defined, KeyChange, PlannedEntry, changes
from duly.config.schema import Invalid

A = Service("a", ("run",), type="oneshot")
B = Service("b", ("run",))
T = Timer("t", "a", on_startup_sec=5)


def test_nothing_changes() -> None:
    """The same definitions are no change, whatever order they come in."""
    plan = changes(Defined([A, B], [T]), Defined([B, A], [T]))
    assert plan.is_empty
    assert plan.unchanged == (
        PlannedEntry("service", "b"),
        PlannedEntry("service", "a"),
        PlannedEntry("timer", "t"),
    )


def test_all_at_once() -> None:
    """Added, changed with old and new values, and removed ones are told apart."""
    slower = Service("a", ("run", "-v"), type="oneshot", timeout_sec=9)
    plan = changes(Defined([A, B], [T]), Defined([slower], [T, Timer("u", "a", on_startup_sec=1)]))
    assert not plan.is_empty
    assert plan == ConfigPlan(
        added=(PlannedEntry("timer", "u"),),
        changed=(
            PlannedEntry(
                "service",
                "a",
                (KeyChange("command", ("run",), ("run", "-v")), KeyChange("timeout_sec", None, 9)),
            ),
        ),
        removed=(PlannedEntry("service", "b"),),
        unchanged=(PlannedEntry("timer", "t"),),
    )


def test_ids_of_services_and_timers_are_apart() -> None:
    """A timer may be called like a service; one does not stand in for the other."""
    plan = changes(Defined([A]), Defined([], [Timer("a", "a", on_startup_sec=1)]))
    assert (plan.added, plan.removed) == ((PlannedEntry("timer", "a"),), (PlannedEntry("service", "a"),))


def test_invalid_entries_are_not_removed() -> None:
    """What a new file defines wrongly is kept, and why is said."""
    after = config_of(Path("duly.toml"), [{"id": "a", "command": []}])
    plan = changes(Defined([A, B], [T]), after, after.invalid)
    assert plan.kept == (
        PlannedEntry("service", "a", reason="its new definition is invalid: command is empty"),
    )
    assert plan.removed == (PlannedEntry("service", "b"), PlannedEntry("timer", "t"))
    assert plan.is_empty is False


def test_unnamed_invalid_entries_may_be_anything() -> None:
    """While an entry has no readable id, nothing of its kind is removed."""
    unnamed = Invalid("service", None, 0, "has no id")
    plan = changes(Defined([A, B], [T]), Defined(), [unnamed])
    assert [each.id for each in plan.kept] == ["a", "b"]
    assert plan.removed == (PlannedEntry("timer", "t"),)
    assert changes(Defined([A]), Defined(), [unnamed]).is_empty
