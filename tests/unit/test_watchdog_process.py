"""What the watchdog process decides: which runs have expired, and which processes belong to a run."""

import os
from itertools import permutations

import pytest

from duly.processes import procfs, watchdog_process
from duly.processes.watchdog_process import (
    UNMADE,
    UNNAMED,
    PidAndStart,
    ProcStat,
    WatchedRuns,
    belonging,
    sweep,
)


def runs_after(*records: str) -> WatchedRuns:
    runs = WatchedRuns()
    for record in records:
        runs.read(record.encode())
    return runs


@pytest.mark.parametrize(
    ("records", "expired"),
    [
        (["0 until 100", "1 watch 0 0 a"], {}),
        (["0 until 100", "1 watch 0 0 a", "99 until 200"], {}),
        (["0 until 100", "1 watch 0 0 a", "100 until 200", "101 watch 0 0 b"], {"a": UNMADE}),
        (["0 until 100", "1 watch 0 0 a", "100 until 200", "101 watch 7 1 a"], {"a": (7, 1)}),
        (["0 until 100", "1 watch 7 1 a", "100 forget a"], {"a": (7, 1)}),
        (["0 until 100", "1 watch 0 0 a", "100 forget a"], {"a": UNNAMED}),
        (["0 until 100", "1 watch 7 1 a", "99 forget a", "100 until 200"], {}),
        (["0 until 100", "1 watch 0 0 a", "2 until 0", "3 watch 0 0 b"], {"a": UNMADE}),
        (["0 watch 0 0 a", "1 until 100", "2 watch 0 0 b"], {"a": UNMADE}),
        (
            ["0 until 100", "1 watch 7 1 id with spaces:1", "2 until 0", "3 until 9"],
            {"id with spaces:1": (7, 1)},
        ),
    ],
)
def test_expired_runs(records: list[str], expired: dict[str, PidAndStart]) -> None:
    """A run that is watched when the deadline passes has expired, and no later record saves it."""
    assert runs_after(*records).expired == {entry.encode(): run for entry, run in expired.items()}


def test_deadline_by_the_clock() -> None:
    """Runs expire when the clock shows the deadline, and not before."""
    runs = runs_after("0 until 100", "1 watch 0 0 a")
    runs.expire(99)
    assert (list(runs.live), list(runs.expired)) == ([b"a"], [])
    runs.expire(100)
    assert (list(runs.live), list(runs.expired)) == ([], [b"a"])


def stat(pid: int, parent: int, group: int, session: int, started: int, *, state: str = "S") -> ProcStat:
    return ProcStat(f"{pid} (a) b) {state} {parent} {group} {session} {'0 ' * 15}{started} 0".encode())


INIT, DAEMON, US = stat(1, 0, 1, 1, 0), stat(50, 1, 50, 50, 1), stat(60, 50, 60, 60, 2)
LEADER, CHILD, OTHER_GROUP = (
    stat(100, 50, 100, 100, 10),
    stat(101, 100, 100, 100, 11),
    stat(102, 100, 102, 100, 12),
)
OTHER_SESSION, ORPHAN = stat(103, 101, 103, 103, 13), stat(104, 1, 104, 104, 14)
GRANDCHILD, SIBLING, LAST = (
    stat(105, 104, 105, 105, 15),
    stat(106, 1, 106, 104, 16),
    stat(107, 105, 107, 107, 17),
)
ALL = [INIT, DAEMON, US, LEADER, CHILD, OTHER_GROUP, OTHER_SESSION, ORPHAN, GRANDCHILD, SIBLING, LAST]


@pytest.mark.parametrize(
    ("run", "sessions", "processes", "found"),
    [
        ((100, 10), set(), ALL, [100, 101, 102, 103]),
        ((100, 9), set(), ALL, []),
        ((100, 10), {104}, ALL, [100, 101, 102, 103, 104, 105, 106, 107]),
        (UNMADE, {104}, ALL, [104, 105, 106, 107]),
        (UNMADE, {1, 50, 60}, ALL, []),
        (UNNAMED, set(), ALL, []),
        ((100, 10), set(), [DAEMON, US, CHILD, OTHER_GROUP], [101, 102]),
        ((100, 12), set(), [DAEMON, US, CHILD, OTHER_GROUP], [102]),
        ((60, 2), {1, 60}, [INIT, US], []),
        ((1, 0), set(), [INIT], []),
        ((100, 10), set(), [stat(100, 50, 100, 100, 10, state="Z"), CHILD], [101]),
    ],
)
def test_who_belongs_to_a_run(
    run: PidAndStart, sessions: set[int], processes: list[ProcStat], found: list[int]
) -> None:
    """Session, group and descent tell who belongs to a run, oldest first; a pid given again tells nothing."""
    for several in (processes, processes[::-1]):
        assert [each.pid for each in belonging(several, [run], sessions, {0, 1, 50, 60})] == found


@pytest.mark.parametrize(("session", "is_killed"), [(5, False), (7, True)])
def test_process_that_was_just_forked(
    session: int, *, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was in the daemon's session when it was first looked at is killed once it is in its own."""
    runs, lines = (
        runs_after("0 watch 0 0 RUN=a", "1 until 9"),
        [stat(7, 5, 5, 5, 9), stat(7, 5, 7, session, 9)],
    )
    killed = list[tuple[int, int]]()
    monkeypatch.setattr(os, "listdir", lambda _: ["7", "self"])
    monkeypatch.setattr(os, "kill", lambda _pid, _number: None)
    monkeypatch.setattr(os, "killpg", lambda *sent: killed.append(sent))
    monkeypatch.setattr(watchdog_process, "_stat", lambda _: [lines.pop(0)])
    monkeypatch.setattr(watchdog_process, "_file", lambda _pid, _name: b"X=1\0RUN=a\0")
    assert (sweep(runs, {0, 1, 5}), killed) == (({7}, [(7, 9)]) if is_killed else (set(), []))
    assert runs.expired == {b"RUN=a": UNNAMED if is_killed else UNMADE}


def test_lines_are_read_as_elsewhere() -> None:
    """The process, which can import nothing of ours, reads the process table as `procfs` does."""
    for name, state in permutations(["a) b) (c", "a\n(b", "Z", "S", "x"], 2):
        line = f"7 ({name}) {state[0]} 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0".encode()
        ours, expected = ProcStat(line), procfs.parsed_stat(line)
        for field in ProcStat.__slots__:
            assert getattr(ours, field) == getattr(expected, field)
