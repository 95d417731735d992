"""Who is the first machine of a cluster: nobody who is leaving counts, and elders are waited for."""

import pytest

from duly.cluster.balance import first_of
from duly.store.board import Seat, View


def seat(member: int, *, edition: int = 0, is_alive: bool = True, is_leaving: bool = False) -> Seat:
    """A member that joined in the order of its number."""
    return Seat(member, "host", edition, is_alive, member, member, 0, is_leaving)


@pytest.mark.parametrize(
    ("others", "is_first"),
    [
        ([], True),
        ([seat(1)], None),
        ([seat(1, edition=1)], False),
        ([seat(1, edition=1, is_alive=False)], True),
        ([seat(1, edition=1, is_leaving=True)], True),
        ([seat(1, is_leaving=True)], True),
        ([seat(3)], True),
        ([seat(3, edition=1)], False),
    ],
)
def test_first(others: list[Seat], is_first: bool | None) -> None:
    """Whoever lives and has a list was there before; an elder without one may yet be the first."""
    assert first_of(View(0, 1, [*others, seat(2)], []), 2) is is_first
