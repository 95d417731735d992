"""What a guardian decides: who must end, and who belongs to whom."""

from itertools import permutations

import pytest

from duly.supervisor import procfs
from duly.supervisor.guardian import Run, Runs, Stat, belonging, groups_of, marked, parsed_stat


def runs_after(*records: str) -> Runs:
    runs = Runs()
    for record in records:
        runs.heed(record.encode())
    return runs


@pytest.mark.parametrize(
    ("records", "doomed"),
    [
        (["0 until 100", "1 expect a"], []),
        (["0 until 100", "1 expect a", "99 until 200"], []),
        (["0 until 100", "1 expect a", "100 until 200"], ["a"]),
        (["0 until 100", "1 expect a", "100 until 200", "101 expect b"], ["a"]),
        (["0 until 100", "1 expect a", "2 hold 7 1 a", "100 release a"], ["a"]),
        (["0 until 100", "1 expect a", "2 hold 7 1 a", "99 release a", "100 until 200"], []),
        (["0 until 100", "1 expect a", "2 cut", "3 expect b"], ["a"]),
        (["0 until 100", "1 expect a", "2 cut", "3 expect b", "4 until 200"], ["a", "b"]),
        (["0 expect a", "1 cut", "2 until 100", "3 expect b"], ["a"]),
        (["0 until 100", "1 hold 7 1 id with spaces:1", "2 cut"], ["id with spaces:1"]),
    ],
)
def test_what_is_said_too_late_dooms(records: list[str], doomed: list[str]) -> None:
    """Whatever is on the leash when its time has passed must end, and nothing that is said later saves it."""
    assert sorted(runs_after(*records).doomed) == [entry.encode() for entry in doomed]


def test_time_dooms_by_itself() -> None:
    """A look at the clock dooms when the time has come, and not before."""
    runs = runs_after("0 until 100", "1 expect a")
    runs.look(99)
    assert not runs.doomed
    runs.look(100)
    assert runs.doomed


def test_what_was_announced_is_waited_for() -> None:
    """The doomed are forgotten once they were seen, held or released; the announced may still come."""
    runs = runs_after(
        "0 until 100", "1 expect a", "1 expect b", "1 expect c", "1 hold 7 1 c", "1 expect d", "2 cut"
    )
    runs.heed(b"3 release b")
    runs.doomed[b"d"].is_seen = True
    runs.bury()
    assert list(runs.doomed) == [b"a"]
    runs.heed(b"4 hold 8 1 a")
    runs.bury()
    assert not runs.doomed


def test_an_unknown_word_is_an_error() -> None:
    """A guardian that does not understand its daemon does not pretend to."""
    with pytest.raises(ValueError, match="sit"):
        Runs().heed(b"0 sit a")


def held(pid: int, started: int) -> Run:
    run = Run()
    run.pid, run.started = pid, started
    return run


#                 pid parent group session started
LEADER = Stat(100, 50, 100, 100, 10)
CHILD = Stat(101, 100, 100, 100, 11)
OTHER_GROUP = Stat(102, 100, 102, 100, 12)
OTHER_SESSION = Stat(103, 101, 103, 103, 13)
ORPHAN = Stat(104, 1, 104, 104, 14)
GRANDCHILD = Stat(105, 104, 105, 105, 15)
SIBLING = Stat(106, 1, 106, 104, 16)
GREAT_GRANDCHILD = Stat(107, 105, 107, 107, 17)
DAEMON = Stat(50, 1, 50, 50, 1)
US = Stat(60, 50, 60, 60, 2)
INIT = Stat(1, 0, 1, 1, 0)
EVERYBODY = [
    INIT,
    DAEMON,
    US,
    LEADER,
    CHILD,
    OTHER_GROUP,
    OTHER_SESSION,
    ORPHAN,
    GRANDCHILD,
    SIBLING,
    GREAT_GRANDCHILD,
]


@pytest.mark.parametrize(
    ("run", "marked", "processes", "found"),
    [
        (held(100, 10), set(), EVERYBODY, [100, 101, 102, 103]),
        (held(100, 9), set(), EVERYBODY, []),
        (held(100, 10), {104}, EVERYBODY, [100, 101, 102, 103, 104, 105, 106, 107]),
        (Run(), {104}, EVERYBODY, [104, 105, 106, 107]),
        (Run(), {50, 60}, EVERYBODY, []),
        (Run(), set(), EVERYBODY, []),
        (held(100, 10), set(), [DAEMON, US, CHILD, OTHER_GROUP], [101, 102]),
        (held(100, 12), set(), [DAEMON, US, CHILD, OTHER_GROUP], [102]),
        (held(60, 2), {1, 60}, [INIT, US], []),
        (held(1, 0), set(), [INIT], []),
        (held(100, 10), set(), [Stat(100, 50, 100, 100, 10, is_dead=True), CHILD], [101]),
    ],
)
def test_who_belongs_to_a_run(run: Run, marked: set[int], processes: list[Stat], found: list[int]) -> None:
    """Session, group, marker and descent tell who belongs to a run; a number given again tells nothing."""
    assert sorted(stat.pid for stat in belonging(processes, [run], marked, shielded={0, 1, 50, 60})) == found


def test_a_job_is_killed_before_what_it_has_started() -> None:
    """The group of a job goes before those of its children, in whatever order they are found."""
    for several in permutations([LEADER, CHILD, OTHER_GROUP, OTHER_SESSION]):
        assert groups_of(list(several)) == [100, 102, 103]


@pytest.mark.parametrize(
    "line",
    [
        b"7 (a) b) (c) S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0",
        b"7 (a\n(b) Z 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0",
        b"7 (a) S 1 2 3",
        b"7 (a) S 1 x 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0",
        b"",
        b"7 gone",
    ],
)
def test_lines_are_read_as_elsewhere(line: bytes) -> None:
    """The guardian, which can import nothing of ours, reads the table of processes as the daemon does."""
    stat, expected = parsed_stat(line), procfs.parsed_stat(line)
    if stat is None or expected is None:
        assert (stat, expected) == (None, None)
        return
    for name in ("pid", "parent", "group", "session", "started", "is_dead"):
        assert getattr(stat, name) == getattr(expected, name)


@pytest.mark.parametrize(("session", "is_own"), [(5, False), (7, True)])
def test_a_process_that_was_just_forked(session: int, *, is_own: bool) -> None:
    """One that was in a shielded session when it was first looked at is seen once it is in its own."""
    doomed = {b"RUN=a": Run()}
    files = {"environ": b"X=1\0RUN=a\0", "stat": b"7 (job) S 1 7 %d " % session + b"0 " * 15 + b"100 0"}
    found = marked([Stat(7, 1, 5, 5, 100)], doomed, {5}, lambda _pid, name: files[name])
    assert [stat.session for stat in found] == [7] * is_own
    assert doomed[b"RUN=a"].is_seen is is_own
