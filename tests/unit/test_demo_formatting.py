from datetime import timedelta

import pytest
from examples.demo.formatting import ago, amount, joined, length, length_ahead, seconds


@pytest.mark.parametrize(
    ("span_s", "seen"),
    [(-3, "0s"), (0, "0s"), (8.9, "8s"), (60, "1m"), (72, "1m 12s"), (11_100, "3h 5m"), (187_200, "2d 4h")],
)
def test_length_has_two_units_at_most(span_s: float, seen: str) -> None:
    """A length of time is told in the two greatest units that are not zero."""
    assert length(timedelta(seconds=span_s)) == seen


@pytest.mark.parametrize(
    ("span_s", "seen"),
    [(-1, "0s ago"), (0.9, "0s ago"), (1, "1s ago"), (119, "1m ago"), (7300, "2h ago")],
)
def test_ago_has_one_unit(span_s: float, seen: str) -> None:
    """How long ago something was is told in one unit."""
    assert ago(timedelta(seconds=span_s)) == seen


@pytest.mark.parametrize(("span_s", "seen"), [(-1, "now"), (0, "now"), (0.2, "in 1s"), (61, "in 1m 1s")])
def test_what_is_ahead_is_rounded_up(span_s: float, seen: str) -> None:
    """What is still ahead is never told as zero seconds ahead."""
    assert length_ahead(timedelta(seconds=span_s)) == seen


@pytest.mark.parametrize(("duration_ms", "seen"), [(0.4, "0.0s"), (1_049, "1.0s"), (75_000.5, "1m 15s")])
def test_a_measured_duration_has_tenths_below_a_minute(duration_ms: float, seen: str) -> None:
    """A duration below a minute is told with tenths, a longer one in units."""
    assert seconds(duration_ms) == seen


def test_numbers_and_names_read_as_in_a_sentence() -> None:
    """Nouns follow their number, and names are joined by commas and one "and"."""
    assert [amount(count, "due", "dues") for count in (1, 2)] == ["1 due", "2 dues"]
    assert [joined(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
