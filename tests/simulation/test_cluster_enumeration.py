"""Two members and one task: every single thing that can go wrong, and pairs of them."""

import pytest

from duly.testing.simulation.cluster.enumeration import (
    WORLDS,
    every_wrong,
    spelled,
    visited,
    wrongs_from,
    wrongs_of,
)
from duly.testing.simulation.cluster.plan import Crash, Fate, Harm


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_everything_goes_wrong_once(world: str) -> None:
    """Each fate of each message and a death at each turn is survived, and so are hundreds of pairs."""
    for visit in every_wrong(WORLDS[world], pairs=500):
        assert visit.life.is_sound, f"{spelled(visit.wrongs)}: {visit.life.faults[0]}"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("fate", Fate)
def test_fates_of_messages(world: str, fate: Fate) -> None:
    """Every fourth message has each of its fates."""
    plan = WORLDS[world]
    wrongs = [wrong for wrong in wrongs_of(plan) if isinstance(wrong, Harm) and wrong.fate is fate]
    for wrong in wrongs[::4]:
        visit = visited(plan, [wrong])
        assert visit.life.is_sound, f"{spelled(visit.wrongs)}: {visit.life.faults[0]}"


@pytest.mark.parametrize("world", WORLDS)
def test_deaths_at_turns(world: str) -> None:
    """A program dies at every sixth turn of its loop."""
    plan = WORLDS[world]
    for wrong in [wrong for wrong in wrongs_of(plan) if isinstance(wrong, Crash)][::6]:
        visit = visited(plan, [wrong])
        assert visit.life.is_sound, f"{spelled(visit.wrongs)}: {visit.life.faults[0]}"


def test_spelling() -> None:
    """What goes wrong can be written down and read back."""
    plan = WORLDS["handover"]
    spelling = "0:12:request-late,1:30:crash"
    assert spelled(wrongs_from(plan, spelling)) == spelling
    for nonsense in ("0:12", "0:x:crash", "7:1:crash", "0:1:dance"):
        with pytest.raises(ValueError, match="0:12:request-lost"):
            wrongs_from(plan, nonsense)
