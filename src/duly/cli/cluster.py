"""`duly cluster`: the members of a cluster, who holds what, how late each is, and the last failover."""

import asyncio
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from duly.cli.finding import Failure
from duly.cli.relative import relative
from duly.cli.tables import Cell, Column, Row, table, terminal_width
from duly.cli.words import untried
from duly.errors import SchedulerError
from duly.instant import datetime_at
from duly.places import PlaceError

if TYPE_CHECKING:
    from duly.store.board import Board, Place, Seat, View

_MEMBERS = (
    Column("name", "member", least=12),
    Column("state", "state"),
    Column("shards", "shards", right=True),
    Column("edition", "edition", rank=3, right=True),
    Column("lag", "lag", rank=1, right=True),
    Column("beat", "last beat", rank=2),
    Column("joined", "joined", rank=4),
)
_SHARDS = (
    Column("shard", "shard", right=True),
    Column("holder", "held by", least=12),
    Column("term", "term", right=True),
    Column("since", "since", rank=1),
    Column("lost", "last failover", rank=2, least=12),
)


@click.command("cluster")
@click.argument("store", envvar="DULY_STORE", metavar="STORE")
@click.option(
    "--shards", "with_shards", is_flag=True, help="List the shards too, with their holders and terms."
)
@click.option("--task", "task_name", metavar="NAME", help="Say which shard a task is in, and who holds it.")
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")
def cluster(*, store: str, with_shards: bool, task_name: str | None, as_json: bool) -> None:
    """Show the members of the cluster on STORE, an address such as postgresql://host/database.

    STORE may also be the file of a daemon (duly.toml, duly.py) whose store is such an address. It can be
    given in the environment, as DULY_STORE. Others can see a password in an argument (ps), but neither one
    in the environment nor one that PostgreSQL finds itself, in PGPASSWORD or in a password file.

    \b
        duly cluster postgresql://db.example/app
        duly cluster duly.toml
        duly cluster --task "nightly report" postgresql://db.example/app
        DULY_STORE=postgresql://db.example/app duly cluster --shards
    """  # noqa: D301 (click's mark for lines to keep)
    view = asyncio.run(_seen(store, as_json=as_json))
    if as_json:
        click.echo(msgspec.json.encode(shape(view, task_name)).decode())
        return
    for line in lines(view, terminal_width(), with_shards=with_shards, task_name=task_name):
        click.echo(line)


async def _seen(store: str, *, as_json: bool) -> "View":
    from duly.store import Board, store_for  # noqa: PLC0415 - not for --help

    try:
        board = _board_of_daemon(Path(store)) if store.endswith((".toml", ".py")) else store_for(store)
        if not isinstance(board, Board):
            raise Failure(
                "no-cluster",
                # It is not repeated: it may be an address with a password that lacks its beginning.
                "a file belongs to one scheduler at a time; give an address such as postgresql://host/database",
                exit_code=2,
                as_json=as_json,
            )
        try:
            await board.open("")
            return await board.view()
        finally:
            await board.close()
    except PlaceError as error:
        raise Failure("no-cluster", error.reason, exit_code=2, as_json=as_json) from error
    except (SchedulerError, ValueError, ImportError) as error:
        raise Failure("unreachable", untried(error), exit_code=69, as_json=as_json) from error


def _board_of_daemon(path: Path) -> "Board | None":
    """The board by which a daemon shares its timers; None if it keeps them in a file."""
    from duly.config.loading import load_to_run  # noqa: PLC0415 - not for --help
    from duly.daemon.sharing import sharing_of  # noqa: PLC0415

    sharing = sharing_of(load_to_run(path))
    return None if sharing is None else sharing.new_board()


def shape(view: "View", task_name: str | None) -> dict[str, Any]:
    """The cluster as JSON."""
    names = _names(view)
    told: dict[str, Any] = {
        "at": datetime_at(view.now_us, UTC).isoformat(),
        "edition": view.edition,
        "members": [
            {
                "name": seat.name,
                "alive": seat.is_alive,
                "leaving": seat.is_leaving,
                "edition": seat.edition,
                "shards": _held(view)[seat.member],
                "lag_ms": seat.lag_ms,
                "last_beat": datetime_at(seat.beaten_us, UTC).isoformat(),
                "joined": datetime_at(seat.joined_us, UTC).isoformat(),
            }
            for seat in _ordered(view)
        ],
        "shards": [
            {
                "shard": place.shard,
                "term": place.term,
                "holder": names.get(place.holder) if place.holder is not None else None,
                "taken": datetime_at(place.taken_us, UTC).isoformat(),
                "last_failover": None
                if place.lost_us is None
                else {
                    "at": datetime_at(place.lost_us, UTC).isoformat(),
                    "from": names.get(place.lost_by, "a member that is gone"),
                },
            }
            for place in view.places
        ],
    }
    if task_name is not None:
        told["task"] = {"name": task_name, "shard": _place_of(view, task_name).shard}
    return told


def lines(view: "View", wide: int | None, *, with_shards: bool, task_name: str | None) -> list[str]:
    """The cluster for people."""
    now = datetime_at(view.now_us, UTC)
    told = [_summary(view)]
    if view.seats:
        told += ["", *table(_MEMBERS, [_member_row(view, seat) for seat in _ordered(view)], wide)]
    if with_shards:
        told += ["", *table(_SHARDS, [_shard_row(view, place) for place in view.places], wide)]
    lost = [place for place in view.places if place.lost_us is not None]
    if lost:
        last_us = max(place.lost_us or 0 for place in lost)
        shards = [place for place in lost if place.lost_us == last_us]
        from_whom = _names(view).get(shards[0].lost_by, "a member that is gone")
        to_whom = ", ".join(sorted({_holder(view, place) for place in shards}))
        when = relative(datetime_at(last_us, UTC), now)
        told += [
            "",
            f"Last failover {when}: {_counted(len(shards), 'shard')} of {from_whom}, held now by {to_whom}.",
        ]
    if task_name is not None:
        place = _place_of(view, task_name)
        told += [
            "",
            f"{task_name!r} is in shard {place.shard}, held by {_holder(view, place)}, term {place.term}.",
        ]
    return told


def _summary(view: "View") -> str:
    alive = [seat for seat in view.seats if seat.is_alive]
    orphans = [place for place in view.places if place.holder not in {seat.member for seat in alive}]
    behind = sum(seat.edition != view.edition for seat in alive)
    parts = [
        f"{_counted(len(alive), 'member')}, {_counted(len(view.places), 'shard')}, edition {view.edition}"
    ]
    if orphans:
        parts.append(f"{_counted(len(orphans), 'shard')} held by nobody")
    if behind:
        parts.append(f"{_counted(behind, 'member')} on an older list")
    return "; ".join(parts) + "."


def _member_row(view: "View", seat: "Seat") -> Row:
    now = datetime_at(view.now_us, UTC)
    state = "leaving" if seat.is_leaving else "alive" if seat.is_alive else "silent"
    colour = {"alive": "green", "silent": "red"}.get(state)
    if seat.is_alive and seat.edition != view.edition:
        state, colour = "older list", "yellow"
    return {
        "name": Cell(seat.name, dim=not seat.is_alive),
        "state": Cell(state, colour),
        "shards": str(_held(view)[seat.member]),
        "edition": str(seat.edition),
        "lag": f"{seat.lag_ms} ms",
        "beat": relative(datetime_at(seat.beaten_us, UTC), now),
        "joined": relative(datetime_at(seat.joined_us, UTC), now),
    }


def _shard_row(view: "View", place: "Place") -> Row:
    now = datetime_at(view.now_us, UTC)
    lost = "-"
    if place.lost_us is not None:
        from_whom = _names(view).get(place.lost_by, "a member that is gone")
        lost = f"{relative(datetime_at(place.lost_us, UTC), now)}, from {from_whom}"
    return {
        "shard": str(place.shard),
        "holder": _holder(view, place),
        "term": str(place.term),
        "since": relative(datetime_at(place.taken_us, UTC), now) if place.term else "-",
        "lost": lost,
    }


def _ordered(view: "View") -> list["Seat"]:
    return sorted(view.seats, key=lambda seat: (not seat.is_alive, seat.name, seat.member))


def _held(view: "View") -> Counter[int | None]:
    return Counter(place.holder for place in view.places)


def _names(view: "View") -> dict[int | None, str]:
    return {seat.member: seat.name for seat in view.seats}


def _holder(view: "View", place: "Place") -> str:
    return "nobody" if place.holder is None else _names(view).get(place.holder, "a member that is gone")


def _place_of(view: "View", task_name: str) -> "Place":
    from duly.store.board import shard_of  # noqa: PLC0415 - not for --help

    return view.places[shard_of(task_name, len(view.places))]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
