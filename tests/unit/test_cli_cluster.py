"""What `duly cluster` shows of a board, to people and to machines."""

import json
from typing import Any

import click
import pytest

from duly.cli.cluster import lines, shape
from duly.instant import SECOND_US
from duly.store.board import Place, Seat, View, shard_of

NOW_US = 1_800_000_000 * SECOND_US
SHARDS = 8


def seat(member: int, **changes: Any) -> Seat:
    """A member that joined a minute ago and beat a second ago."""
    fields: dict[str, Any] = {
        "member": member,
        "name": f"host{member}:{member}00",
        "edition": 2,
        "is_alive": True,
        "joined_us": NOW_US - 60 * SECOND_US,
        "beaten_us": NOW_US - SECOND_US,
        "lag_ms": 0,
        "is_leaving": False,
    }
    return Seat(**{**fields, **changes})


def seen(*seats: Seat, holders: list[int | None], lost: dict[int, tuple[int, int]] | None = None) -> View:
    """A board with these members and holders; the shards *lost* were so by whom, how many seconds ago."""
    places = []
    for number, holder in enumerate(holders):
        by, ago_s = (lost or {}).get(number, (None, None))
        lost_us = None if ago_s is None else NOW_US - ago_s * SECOND_US
        places.append(Place(number, number + 1, holder, NOW_US - 30 * SECOND_US, by, lost_us))
    return View(NOW_US, 2, list(seats), places)


def told(view: View, *, wide: int | None = None, with_shards: bool = False, task: str | None = None) -> str:
    """The text for people."""
    return click.unstyle("\n".join(lines(view, wide, with_shards=with_shards, task_name=task)))


def test_members_at_rest() -> None:
    """Two members that share: one line in sum, and one for each, with no word of failovers."""
    text = told(seen(seat(1, lag_ms=7), seat(2), holders=[1, 2] * 4))
    first, blank, head, *rows = text.splitlines()
    assert first == "2 members, 8 shards, edition 2."
    assert blank == ""
    assert head.lower().split() == ["member", "state", "shards", "edition", "lag", "last", "beat", "joined"]
    assert [row.split()[:6] for row in rows] == [
        ["host1:100", "alive", "4", "2", "7", "ms"],
        ["host2:200", "alive", "4", "2", "0", "ms"],
    ]


def test_nobody_there() -> None:
    """A board on which nobody has ever been."""
    assert told(seen(holders=[None] * SHARDS)) == "0 members, 8 shards, edition 2; 8 shards held by nobody."


def test_one_of_each_is_counted_in_the_singular() -> None:
    """One member, one shard."""
    assert told(seen(seat(1), holders=[1])).startswith("1 member, 1 shard, edition 2.")


def test_states() -> None:
    """Silent members come last; what they hold is nobody's; an older list and a leave are told."""
    view = seen(
        seat(1, is_alive=False, beaten_us=NOW_US - 3_600 * SECOND_US),
        seat(2, edition=1),
        seat(3, is_leaving=True),
        seat(4),
        holders=[1, 1, 4, 4, 4, 4, 3, None],
    )
    first, _, _, *rows = told(view).splitlines()
    assert first == "3 members, 8 shards, edition 2; 3 shards held by nobody; 1 member on an older list."
    words = [row.split() for row in rows]
    assert [word[0] for word in words] == ["host2:200", "host3:300", "host4:400", "host1:100"]
    assert words[0][1:3] == ["older", "list"]
    assert [word[1] for word in words[1:]] == ["leaving", "alive", "silent"]


def test_shards() -> None:
    """Each shard with its holder, term, since when, and its last failover."""
    view = seen(seat(1), holders=[1, None, 9], lost={2: (7, 90)})
    table = told(view, with_shards=True).splitlines()[4:]
    assert table[1].lower().split() == ["shard", "held", "by", "term", "since", "last", "failover"]
    assert "host1:100" in table[2]
    assert "nobody" in table[3]
    assert "a member that is gone" in table[4]


def test_last_failover() -> None:
    """The latest failover is told: how many, from whom, and who has them now."""
    lost = {0: (9, 500), 1: (1, 30), 2: (1, 30), 3: (1, 30)}
    view = seen(seat(1), seat(2), holders=[1, 2, 1, 2], lost=lost)
    last = told(view).splitlines()[-1]
    assert last.startswith("Last failover ")
    assert last.endswith(": 3 shards of host1:100, held now by host1:100, host2:200.")
    gone = told(seen(seat(1), holders=[1], lost={0: (9, 5)})).splitlines()[-1]
    assert "1 shard of a member that is gone" in gone


@pytest.mark.parametrize("name", ["nightly report", "", "Grüße\n🎉"])
def test_task(name: str) -> None:
    """Where a task is, by its name alone: it need not be there."""
    view = seen(seat(1), seat(2), holders=[1, 2] * 4)
    number = shard_of(name, SHARDS)
    last = told(view, task=name).splitlines()[-1]
    assert last.startswith(f"{name!r} is in shard {number}, held by host{1 + number % 2}:")
    assert last.endswith(f"term {number + 1}.")
    assert shape(view, name)["task"] == {"name": name, "shard": number}


def test_shape() -> None:
    """Machines get everything: all members, all shards."""
    view = seen(seat(1), seat(2, is_alive=False), holders=[1, 2, None], lost={1: (9, 5)})
    answer = json.loads(json.dumps(shape(view, None)))
    assert answer["at"] == "2027-01-15T08:00:00+00:00"
    assert answer["edition"] == 2
    assert "task" not in answer
    assert answer["members"][0] == {
        "name": "host1:100",
        "alive": True,
        "leaving": False,
        "edition": 2,
        "shards": 1,
        "lag_ms": 0,
        "last_beat": "2027-01-15T07:59:59+00:00",
        "joined": "2027-01-15T07:59:00+00:00",
    }
    assert [each["holder"] for each in answer["shards"]] == ["host1:100", "host2:200", None]
    assert answer["shards"][1]["last_failover"] == {
        "at": "2027-01-15T07:59:55+00:00",
        "from": "a member that is gone",
    }


def test_narrow_terminal() -> None:
    """What is too wide loses columns, not lines."""
    rows = told(seen(seat(1, name="a" * 60), holders=[1]), wide=40).splitlines()
    assert all(len(row) <= 40 for row in rows[1:])
    assert len(rows) == 4
