"""A board in PostgreSQL: races that are staged, lines that break, and servers with odd settings."""

import asyncio
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from duly.core.record import COLUMNS, record_of
from duly.core.task import started
from duly.errors import StoreError
from duly.instant import SECOND_US, Instant
from duly.store.board import (
    SHARDS,
    Change,
    Hold,
    Row,
    ShardsLostError,
    Stored,
    SupersededError,
    TimerRow,
    shard_of,
)
from duly.store.postgres import PostgresBoard
from duly.store.postgres.scripts import Scripts
from duly.testing.conformance import NOW_US, sample_task
from tests.postgres import PostgresServer, until
from tests.proxy import Proxy, through

TTL_US = 60 * SECOND_US
TASK = sample_task(1)
SHARD = shard_of(TASK.name, SHARDS)
OTHER_SHARD = (SHARD + 1) % SHARDS
TIMER = TimerRow(SHARD, (1, "timer", "{}", NOW_US), 1)
LOCK = 0x64756C79 << 32 | zlib.crc32(b"duly")
"""What members wait for that found a board at the same time."""
BEGUN = Row(started(TASK, NOW_US, is_retry=False), 1)

Boards = Callable[..., PostgresBoard]


@pytest.fixture
def boards(postgres_url: str) -> Iterator[Boards]:
    """Makes boards on one database, and closes them."""
    made: list[PostgresBoard] = []

    def make(url: str = postgres_url, *, patience_s: float = 20.0) -> PostgresBoard:
        made.append(PostgresBoard(url, patience_s=patience_s))
        return made[-1]

    yield make

    async def close() -> None:
        await asyncio.gather(*(board.close() for board in made))

    asyncio.run(close())


@pytest.fixture
def other(postgres_url: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """A connection of another program, in whose transactions it does what it likes."""
    with psycopg.connect(postgres_url) as connection:
        yield connection


async def holding(board: PostgresBoard, member: int = 1) -> dict[int, Hold]:
    """Join, publish one task, and take everything."""
    await board.open("id")
    await board.join(member, "host", ttl_us=TTL_US)
    await board.publish(member, "list", lambda *_: Change([Row(TASK)], ()))
    return {hold.shard: hold for hold in (await board.take(member, range(SHARDS))).holds}


async def expired(board: PostgresBoard, member: int) -> None:
    """Let the lease of *member* run out at once."""
    await board.beat(member, ttl_us=0)


class Race:
    """Another program's transaction that is in the way of a board, and the calls that wait behind it."""

    def __init__(
        self, connection: "psycopg.Connection[tuple[object, ...]]", server: PostgresServer, database: str
    ) -> None:
        self._server = server
        self._database = database
        self.execute = connection.execute
        self.commit = connection.commit
        self.rollback = connection.rollback

    def lock(self, shard: int) -> None:
        """Lock a shard until the transaction ends."""
        self.execute("SELECT FROM duly.shard WHERE shard = %s FOR UPDATE", [shard])

    async def waited_for(self, number: int = 1) -> None:
        """Return when so many calls wait for a lock."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"

        def look() -> None:
            until(
                lambda: self._server.value(query, self._database) == number,
                f"{number} calls wait for a lock",
            )

        await asyncio.to_thread(look)


@pytest.fixture
def race(
    other: "psycopg.Connection[tuple[object, ...]]", postgres: PostgresServer, postgres_database: str
) -> Race:
    """A transaction that is in the way."""
    return Race(other, postgres, postgres_database)


@contextmanager
def proxied(server: PostgresServer, database: str) -> Iterator[tuple[Proxy, str]]:
    """A cable to a database, and its address at this end."""
    with Proxy(server.port) as proxy:
        yield proxy, through(server.url(database), proxy.port)


# --- races ---


async def test_members_found_the_board_together(boards: Boards) -> None:
    """Members that open an empty database at the same time all succeed, and agree on the identifier."""
    several = [boards() for _ in range(6)]
    identifiers = await asyncio.gather(*(board.open(f"id {n}") for n, board in enumerate(several)))
    assert len(set(identifiers)) == 1
    assert len((await several[0].view()).places) == SHARDS


async def test_members_join_one_after_the_other(boards: Boards, race: Race) -> None:
    """A join that is under way is waited for: whoever sees no elder is the eldest, and stays so."""
    board = boards()
    await board.open("id")
    elder = {"member": 1, "name": "host", "ttl_us": TTL_US, "forgotten_us": TTL_US}
    patience = {"patience_ms": "60000", "thinking_ms": "60000"}
    for statement in Scripts("duly").of("join").split(";\n")[:-1]:
        race.execute(statement, elder | patience)
    joining = asyncio.create_task(board.join(2, "host", ttl_us=TTL_US))
    waiting = asyncio.create_task(race.waited_for())
    await asyncio.wait({joining, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not joining.done()
    race.commit()
    await asyncio.gather(joining, waiting)
    seats = (await board.beat(2, ttl_us=TTL_US)).seats
    assert [seat.member for seat in sorted(seats, key=lambda seat: seat.joined_us)] == [1, 2]


async def test_take_sees_the_last_write(
    boards: Boards,
    race: Race,
) -> None:
    """A take that waits for a write of the dead holder gives the rows as that write left them."""
    first, second = boards(), boards()
    await holding(first)
    await expired(first, 1)
    await second.open("id")
    await second.join(2, "host", ttl_us=TTL_US)
    race.lock(SHARD)  # what follows is the write of member 1, under way
    race.execute("UPDATE duly.task SET running_since_us = 5, run_by = 1")
    take = asyncio.create_task(second.take(2, [SHARD]))
    await race.waited_for()
    race.commit()
    (stored,) = (await take).stored
    assert (stored.record[COLUMNS.index("running_since_us")], stored.run_by) == (5, 1)
    assert not stored.is_runner_alive


async def test_write_is_judged_after_its_wait(
    boards: Boards,
    race: Race,
) -> None:
    """A write that waits while its shard is taken is refused, though it was right when it began to wait."""
    board = boards()
    holds = await holding(board)
    race.lock(SHARD)
    race.execute("UPDATE duly.shard SET holder = 2, term = term + 1, number = 0 WHERE shard = %s", [SHARD])
    fence = {holds[SHARD]: 1, holds[OTHER_SHARD]: 1}
    write = asyncio.create_task(board.write(1, fence, rows=[BEGUN]))
    await race.waited_for()
    race.commit()
    with pytest.raises(ShardsLostError) as refused:
        await write
    assert refused.value.shards == {SHARD}
    await board.write(1, {holds[OTHER_SHARD]: 1}, rows=[])


async def test_beat_first_saves_the_lease(
    boards: Boards,
    race: Race,
) -> None:
    """A take that meets a renewal under way waits for it, and then takes nothing."""
    first, second = boards(), boards()
    await holding(first)
    await expired(first, 1)
    await second.open("id")
    await second.join(2, "host", ttl_us=TTL_US)
    race.execute("UPDATE duly.member SET lease_us = duly.now_us() + 60000000 WHERE member = 1")
    take = asyncio.create_task(second.take(2, range(SHARDS)))
    await race.waited_for()
    race.commit()
    assert list((await take).holds) == []


async def test_newcomer_keeps_what_it_took(
    boards: Boards,
    race: Race,
) -> None:
    """A take that waits while a shard goes to a member that has just joined does not take it for dead."""
    board = boards()
    await board.open("id")
    await board.join(2, "host", ttl_us=TTL_US)
    race.lock(SHARD)
    take = asyncio.create_task(board.take(2, [SHARD]))
    await race.waited_for()
    race.execute(
        "INSERT INTO duly.member SELECT 3, 'new', 0, n, n, n + 60000000, 0, false FROM duly.now_us() AS n"
    )
    race.execute("UPDATE duly.shard SET holder = 3, term = term + 1 WHERE shard = %s", [SHARD])
    race.commit()
    assert list((await take).holds) == []
    assert (await board.view()).places[SHARD].holder == 3


async def test_beat_behind_a_take_sees_it(
    boards: Boards,
    race: Race,
) -> None:
    """A renewal that waits for a take under way shows the shards as lost."""
    board = boards()
    await holding(board)
    race.lock(SHARD)
    race.execute("SELECT FROM duly.member WHERE member = 1 FOR SHARE")
    beat = asyncio.create_task(board.beat(1, ttl_us=TTL_US))
    await race.waited_for()
    race.execute("UPDATE duly.shard SET holder = 2, term = term + 1 WHERE shard = %s", [SHARD])
    race.commit()
    assert (await beat).places[SHARD].holder == 2


async def test_timers_are_judged_after_their_wait(boards: Boards, race: Race) -> None:
    """A write of timers that waits while its shard is taken is refused, and the taker's rows stand."""
    board = boards()
    holds = await holding(board)
    await board.write_timers(1, holds[SHARD], 1, put=[TIMER], removed=())
    race.lock(SHARD)
    race.execute("UPDATE duly.shard SET holder = 2, term = term + 1, number = 0 WHERE shard = %s", [SHARD])
    race.execute("UPDATE duly.timer SET run_by = 2")
    write = asyncio.create_task(board.write_timers(1, holds[SHARD], 2, put=[], removed=[TIMER.record[0]]))
    await race.waited_for()
    race.commit()
    with pytest.raises(ShardsLostError):
        await write
    assert await board.timers([SHARD]) == [TIMER._replace(run_by=2)]


async def test_timers_wait_for_a_list(boards: Boards, race: Race) -> None:
    """A write of timers that meets a list under way waits for it, and by the older list begins nothing."""
    first, second = boards(), boards()
    holds = await holding(first)
    await second.open("id")
    await second.join(2, "host", ttl_us=TTL_US)
    deciding, decided = threading.Event(), threading.Event()

    def decide(*_: object) -> Change:
        deciding.set()
        assert decided.wait(20)
        return Change((), ())

    publish = asyncio.create_task(second.publish(2, "newer", decide, displaces=False))
    assert await asyncio.to_thread(deciding.wait, 20)
    write = asyncio.create_task(first.write_timers(1, holds[SHARD], 1, put=[TIMER], removed=(), edition=1))
    await race.waited_for()
    decided.set()
    assert (await publish).edition == 2
    with pytest.raises(SupersededError):
        await write
    assert await first.timers() == []
    await first.write_timers(1, holds[SHARD], 1, put=[TIMER], removed=(), edition=2)


async def test_damaged_timers_are_told_by_name(
    boards: Boards, postgres: PostgresServer, postgres_database: str
) -> None:
    """Of a row whose record somebody has broken the id and the name come back; the others are whole."""
    board = boards()
    holds = await holding(board)
    rows = [TimerRow(SHARD, (number, f"naïve {number}", None)) for number in range(7)]
    await board.write_timers(1, holds[SHARD], 1, put=rows, removed=())
    for number, record in enumerate(["", "{}", "[", "[2]", '[9,"x",1]', "[" * 100_000]):
        postgres.rows(
            "UPDATE duly.timer SET record = %s WHERE id = %s", record, number, database=postgres_database
        )
    postgres.rows("UPDATE duly.timer SET name = 'ä\\' WHERE id = 0", database=postgres_database)
    names = ["ä\\", *(row.record[1] for row in rows[1:-1])]
    assert await board.timers() == [
        *(TimerRow(SHARD, (number, name)) for number, name in enumerate(names)),
        rows[-1],
    ]


async def test_list_stops_writes_but_no_beats(boards: Boards, race: Race) -> None:
    """While somebody publishes, writes wait and are refused after it, and leases are renewed all the same."""
    first, second = boards(), boards()
    holds = await holding(first)
    await second.open("id")
    await second.join(2, "host", ttl_us=TTL_US)
    deciding, decided = threading.Event(), threading.Event()

    def decide(stored: Sequence[Stored], _now_us: Instant, _id: str) -> Change:
        assert [tuple(row.record) for row in stored] == [record_of(TASK)]
        deciding.set()
        assert decided.wait(20)
        return Change((), ())

    publish = asyncio.create_task(second.publish(2, "newer", decide))
    assert await asyncio.to_thread(deciding.wait, 20)
    write = asyncio.create_task(first.write(1, {holds[SHARD]: 1}, rows=[BEGUN]))
    await race.waited_for()
    for board, member in ((first, 1), (second, 2)):
        view = await board.beat(member, ttl_us=TTL_US)
        assert (view.edition, view.places[SHARD].holder) == (1, 1)
    decided.set()
    assert (await publish).edition == 2
    with pytest.raises(ShardsLostError):
        await write


async def test_list_ends_with_its_connection(
    boards: Boards, postgres: PostgresServer, postgres_database: str
) -> None:
    """A list whose connection is lost while it is decided upon is not written by another connection."""
    first, second = boards(), boards()
    holds = await holding(first)
    await second.open("id")
    await second.join(2, "host", ttl_us=TTL_US)

    def decide(*_: object) -> Change:
        ended = (
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = %s AND state = %s"
        )
        assert postgres.rows(ended, postgres_database, "idle in transaction") == [(True,)]
        return Change([Row(sample_task(2))], [1])

    with pytest.raises(StoreError, match=r"is being shut down|cannot be reached"):
        await second.publish(2, "newer", decide)
    assert (await first.view()).edition == 1
    await first.write(1, {holds[SHARD]: 1}, rows=[BEGUN])


async def test_deadlock_is_tried_again(
    boards: Boards,
    race: Race,
) -> None:
    """A call that the server sacrificed to end a deadlock is made again, and nobody hears of it."""
    board = boards()
    holds = await holding(board)
    low, high = sorted((SHARD, OTHER_SHARD))
    race.execute("SET deadlock_timeout = '20s'")  # it is not the other that gives way
    race.lock(high)
    write = asyncio.create_task(board.write(1, {holds[low]: 1, holds[high]: 1}, rows=[BEGUN]))
    await race.waited_for()
    await asyncio.to_thread(race.lock, low)
    race.commit()
    await write
    assert (await board.view()).places[SHARD].holder == 1
    with pytest.raises(ShardsLostError):
        await board.write(1, {holds[low]: 1}, rows=[])


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_isolation_of_the_server_does_not_matter(
    boards: Boards, postgres: PostgresServer, postgres_database: str, isolation: str
) -> None:
    """Where transactions are stricter by default, ours are not, and members still agree."""
    postgres.rows(f"ALTER DATABASE {postgres_database} SET default_transaction_isolation = '{isolation}'")
    several = [boards() for _ in range(4)]
    for member, board in enumerate(several):
        await board.open("id")
        await board.join(member, "host", ttl_us=TTL_US)
    for _ in range(5):
        taken = await asyncio.gather(*(b.take(n, range(SHARDS)) for n, b in enumerate(several)))
        assert sum(len(one.holds) for one in taken) == SHARDS
        await asyncio.gather(*(b.give(n, taken[n].holds) for n, b in enumerate(several)))


async def test_defaults_of_the_server_do_not_reach_us(
    boards: Boards, postgres: PostgresServer, postgres_database: str
) -> None:
    """Our transactions are durable and read committed, whatever the default; for others it stays as it is."""
    do = partial(postgres.rows, database=postgres_database)
    do(f"ALTER DATABASE {postgres_database} SET synchronous_commit = off")
    do(f"ALTER DATABASE {postgres_database} SET default_transaction_isolation = 'repeatable read'")
    board = boards()
    await board.open("id")
    do("CREATE TABLE public.seen (commit text, isolation text)")
    do(
        "CREATE OR REPLACE FUNCTION duly.now_us() RETURNS bigint LANGUAGE sql AS $$ "
        "INSERT INTO public.seen VALUES (current_setting('synchronous_commit'), "
        "current_setting('transaction_isolation')); SELECT 1::bigint $$"
    )
    await board.join(1, "host", ttl_us=TTL_US)
    await board.beat(1, ttl_us=TTL_US)
    await board.take(1, [0])
    await board.publish(1, "list", lambda *_: Change((), ()))
    assert do("SELECT DISTINCT * FROM public.seen") == [("on", "read committed")]
    assert do("SHOW synchronous_commit") == [("off",)]


# --- lines ---


async def test_long_write_delays_no_beat(
    boards: Boards,
    race: Race,
) -> None:
    """While a write waits leases are renewed, and it is done even when nobody waits for it any more."""
    board = boards()
    holds = await holding(board)
    race.lock(SHARD)
    write = asyncio.create_task(board.write(1, {holds[SHARD]: 1}, rows=[BEGUN]))
    await race.waited_for()
    await board.beat(1, ttl_us=TTL_US)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    race.commit()
    (stored,) = (await board.take(1, [SHARD])).stored
    assert tuple(stored.record) == record_of(BEGUN.task)


async def test_foreign_lock_is_not_waited_for_without_end(boards: Boards, race: Race) -> None:
    """A call that another program's lock holds up gives up in time, says so, and changes nothing."""
    board = boards(patience_s=1.0)
    holds = await holding(board)
    race.lock(SHARD)
    with pytest.raises(StoreError, match="did not finish in time"):
        await board.write(1, {holds[SHARD]: 1}, rows=[BEGUN])
    race.rollback()
    await board.write(1, {holds[SHARD]: 1}, rows=[BEGUN])


async def test_paused_publisher_is_not_waited_for_without_end(boards: Boards) -> None:
    """The server ends the transaction of one who stands still in the middle of a list: others go on."""
    first, second = boards(), boards(patience_s=0.2)
    holds = await holding(first)
    await first.join(2, "host", ttl_us=TTL_US)
    await second.open("id")
    reached, resumed = threading.Event(), threading.Event()

    def stand_still(*_: object) -> Change:
        reached.set()
        assert resumed.wait(30)
        return Change((), [TASK.id])

    publishing = asyncio.create_task(second.publish(2, "other", stand_still))
    assert await asyncio.to_thread(reached.wait, 30)
    await first.write(1, {holds[SHARD]: 1}, rows=[BEGUN])
    assert not publishing.done()
    resumed.set()
    with pytest.raises(StoreError, match="stood still for too long"):
        await publishing
    assert (await first.view()).edition == 1
    (stored,) = (await first.take(1, [SHARD])).stored
    assert tuple(stored.record) == record_of(BEGUN.task)
    assert (await second.publish(2, "other", lambda *_: Change((), ()))).is_new


async def test_silent_server_is_given_up(
    boards: Boards, postgres: PostgresServer, postgres_database: str
) -> None:
    """When nothing comes back any more every call ends in time, and goes on when the cable is mended."""
    with proxied(postgres, postgres_database) as (proxy, address):
        board = boards(address, patience_s=1.0)
        holds = await holding(board)
        await board.beat(1, ttl_us=TTL_US)
        proxy.swallow()
        async with asyncio.timeout(30):
            for _ in range(2):  # on the old connections, and when connecting
                answers = await asyncio.gather(
                    board.beat(1, ttl_us=TTL_US),
                    board.write(1, {holds[SHARD]: 1}, rows=[BEGUN]),
                    return_exceptions=True,
                )
                assert [type(answer) for answer in answers] == [StoreError] * 2
        proxy.heal()
        assert (await board.beat(1, ttl_us=TTL_US)).places[SHARD].holder == 1
        await board.write(1, {holds[SHARD]: 2}, rows=[BEGUN])


async def test_lost_answer_leaves_the_outcome_open(
    boards: Boards, postgres: PostgresServer, postgres_database: str
) -> None:
    """A write whose answer is lost raises and is done; its repetition with the same number is refused."""
    with proxied(postgres, postgres_database) as (proxy, address):
        board = boards(address, patience_s=1.0)
        holds = await holding(board)
        proxy.swallow_answers()
        with pytest.raises(StoreError, match="has not answered for 1 s"):
            await board.write(1, {holds[SHARD]: 1}, rows=[BEGUN])
        proxy.wait_until_held()
        proxy.heal()
        with pytest.raises(ShardsLostError):
            await board.write(1, {holds[SHARD]: 1}, rows=[Row(TASK)])
        (stored,) = (await board.take(1, [SHARD])).stored
        assert tuple(stored.record) == record_of(BEGUN.task)


async def test_cut_line_is_made_anew(
    boards: Boards, postgres: PostgresServer, postgres_database: str
) -> None:
    """After a line was cut calls fail, and the first call after it is mended works."""
    with proxied(postgres, postgres_database) as (proxy, address):
        board = boards(address)
        await holding(board)
        proxy.cut()
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be reached"):
                await board.beat(1, ttl_us=TTL_US)
        proxy.heal()
        assert (await board.beat(1, ttl_us=TTL_US)).places[SHARD].holder == 1


async def test_ended_connections_are_noticed_before_they_are_used(
    boards: Boards, postgres: PostgresServer, postgres_database: str
) -> None:
    """Connections that the server ended while they were idle cost no call."""
    board = boards()
    holds = await holding(board)
    await board.beat(1, ttl_us=TTL_US)
    gone = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'duly'"
    assert len(postgres.rows(gone, postgres_database)) == 2
    postgres.rows(f"SELECT pg_terminate_backend(pid, 20000) FROM ({gone}) AS ours", postgres_database)
    await board.beat(1, ttl_us=TTL_US)
    await board.write(1, {holds[SHARD]: 1}, rows=[BEGUN])


async def test_restarted_server_is_found_again(own_postgres: PostgresServer) -> None:
    """While the server is down calls fail with a sentence; when it is back they work, and nothing is lost."""
    board = PostgresBoard(own_postgres.url())
    await holding(board)
    own_postgres.stop()
    with pytest.raises(StoreError, match="cannot be reached"):
        await board.beat(1, ttl_us=TTL_US)
    own_postgres.start()
    assert (await board.beat(1, ttl_us=TTL_US)).places[SHARD].holder == 1
    own_postgres.kill()
    with pytest.raises(StoreError):
        await board.view()
    own_postgres.start()
    assert (await board.view()).places[SHARD].holder == 1
    await board.close()


async def test_cancelled_opening_leaves_it_closed(
    boards: Boards,
    race: Race,
    postgres: PostgresServer,
    postgres_database: str,
) -> None:
    """A cancelled opening ends at once and in the end leaves no connection; the board can be opened again."""
    board = boards()
    await holding(board)
    await board.close()
    race.execute("LOCK TABLE duly.meta IN ACCESS EXCLUSIVE MODE")
    opening = asyncio.create_task(board.open("id"))
    await race.waited_for()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await race.waited_for()  # nobody has interrupted it
    for call in (board.view, board.timers):
        with pytest.raises(StoreError, match="is not open"):
            await call()
    race.rollback()
    ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name = 'duly'"
    gone = lambda: postgres.value(ours, postgres_database) == 0  # noqa: E731
    await asyncio.to_thread(until, gone, "the connection is closed")
    assert await board.open("id") == "id"


async def test_board_is_opened_beside_a_cancelled_opening(boards: Boards, race: Race) -> None:
    """What a cancelled opening still does, and how it ends, does not touch the opening that follows."""
    board = boards()
    race.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
    first = asyncio.create_task(board.open("first"))
    await race.waited_for()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(board.open("second"))
    await race.waited_for(2)
    race.rollback()
    assert await second in {"first", "second"}
    await board.join(1, "host", ttl_us=TTL_US)
    assert len((await board.view()).seats) == 1


def test_columns_are_those_of_records() -> None:
    """Every column of a record is stored, read and written, and in the order that records have."""
    scripts = Scripts("duly")
    for script in (scripts.of("load"), scripts.of("take"), scripts.put):
        words = script.replace("task.name", "name").replace("\n", " ").split()
        assert ", ".join(COLUMNS) in " ".join(words)
    for column in COLUMNS[4:-1]:
        assert f"{column} = new.{column}" in " ".join(scripts.of("write").split())
        assert f"{column} = excluded.{column}" in scripts.put
