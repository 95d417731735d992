"""Which processes a dead daemon left behind: read from a /proc that the test writes."""

from pathlib import Path

import msgspec
import pytest

from duly.processes.leftovers import Leftover, is_alive, leftovers
from duly.processes.procfs import (
    Identity,
    Stat,
    boot_id,
    identity_of,
    inherited_by,
    parsed_stat,
    stat_of,
    stats,
    token_in,
)
from duly.processes.tokens import RunTokens, TokenClaim

KEY = b"the key of this store"
TOKENS = RunTokens(KEY, "s", 900)


def token_for(marker: str, daemon: int) -> str:
    """The token of a run ("scheduler:run") of the daemon that started then; each scheduler has a key."""
    scheduler, _, run_id = marker.partition(":")
    key = KEY if scheduler == "s" else b"the key of another store"
    return RunTokens(key, scheduler, daemon).token_of(int(run_id))


class Row(msgspec.Struct):
    """A run without an end."""

    id: int
    pid: int | None = None
    pid_started: int | None = None
    boot: str = "this boot"


def runs_of(*rows: Row) -> dict[int, Identity | None]:
    """The runs of *rows*, each with its process, if both its pid and its start were noted."""
    return {
        row.id: None
        if row.pid is None or row.pid_started is None
        else Identity(row.pid, row.pid_started, row.boot)
        for row in rows
    }


class Proc:
    """A /proc of a test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/kernel/random").mkdir(parents=True)
        (root / "sys/kernel/random/boot_id").write_text("this boot\n")
        (root / "self").mkdir()

    def add(
        self,
        pid: int,
        *,
        started: int,
        group: int | None = None,
        session: int | None = None,
        state: str = "S",
        marker: str | None = None,
        daemon: int = 0,
        parent: int = 1,
    ) -> None:
        """A process."""
        (self.root / str(pid)).mkdir()
        group = group or pid
        line = (
            f"{pid} (a) b (c) {state} {parent} {group} {session or group} 0 -1 4194560 "
            + "0 " * 12
            + f"{started} 0 0"
        )
        (self.root / str(pid) / "stat").write_text(line)
        token = "" if marker is None else token_for(marker, daemon)
        environ = b"HOME=/\0NOT_DULY_RUN_TOKEN=x\0" + (f"DULY_RUN_TOKEN={token}\0".encode() if token else b"")
        (self.root / str(pid) / "environ").write_bytes(environ)

    def left(self, *rows: Row, last_id: int = 99) -> list[tuple[int, int]]:
        """The run and the pid of each leftover."""
        found = leftovers(runs_of(*rows), TOKENS, last_id=last_id, proc_root=self.root)
        assert all(isinstance(each, Leftover) for each in found)
        return sorted((each.run_id, each.pid) for each in found)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """An empty /proc."""
    return Proc(tmp_path)


@pytest.mark.parametrize("name", ["sh", "a b", "a) S 1 1 1", "((", "))", ") (", "a\nb", "\udcff", ""])
def test_names_do_not_confuse(name: str) -> None:
    """A program may be called anything, and its line is still read right."""
    fields = "T 2 3 4 " + "0 " * 15 + "77 0 0"
    line = f"1 ({name}) {fields}".encode(errors="surrogateescape")
    assert parsed_stat(line) == Stat(pid=1, state="T", parent=2, group=3, session=4, started=77)


@pytest.mark.parametrize(
    "line", [b"", b"1", b"1 (sh", b"1 (sh) S 1 2", b"x (sh) S " + b"1 " * 20, b")", b"(" * 9]
)
def test_no_line_is_no_process(line: bytes) -> None:
    """What is not a line of /proc/PID/stat is no process, and no error."""
    assert parsed_stat(line) is None


def test_no_proc_is_no_process(tmp_path: Path) -> None:
    """On a system without /proc nothing is found, and nothing raises."""
    nowhere = tmp_path / "nowhere"
    assert list(stats(nowhere)) == []
    assert boot_id(nowhere) == ""
    assert stat_of(1, nowhere) is None
    assert identity_of(7, nowhere) == Identity(7, 0, "")
    assert not is_alive(Identity(7, 0, ""), nowhere)
    assert leftovers(runs_of(Row(1, 7, 0, "")), TOKENS, last_id=1, proc_root=nowhere) == []


def test_token_is_read_whole() -> None:
    """Only the variable of that very name counts, wherever it stands."""
    assert token_in(b"A=1\0DULY_RUN_TOKEN=s:1\0B=2\0") == "s:1"
    assert token_in(b"DULY_RUN_TOKEN=s:1") == "s:1"
    assert token_in(b"XDULY_RUN_TOKEN=s:1\0DULY_RUN_TOKENS=s:1\0A=DULY_RUN_TOKEN=s:1\0") is None
    assert token_in(b"") is None


def test_alive_needs_pid_start_and_boot(proc: Proc) -> None:
    """The same number with another start, in another boot, or dead and unburied, is not that process."""
    proc.add(10, started=500)
    proc.add(11, started=500, state="Z")
    assert is_alive(Identity(10, 500, "this boot"), proc.root)
    assert not is_alive(Identity(10, 501, "this boot"), proc.root)
    assert not is_alive(Identity(10, 500, "another boot"), proc.root)
    assert not is_alive(Identity(11, 500, "this boot"), proc.root)
    assert not is_alive(Identity(12, 500, "this boot"), proc.root)


def test_process_of_the_row_is_found(proc: Proc) -> None:
    """The process that a row names is a leftover while it lives."""
    proc.add(10, started=500)
    proc.add(20, started=500, state="Z")
    assert proc.left(Row(1, 10, 500), Row(2, 20, 500), Row(3, 30, 500)) == [(1, 10)]


def test_reused_number_is_never_touched(proc: Proc) -> None:
    """Neither who got the number again, nor its group, nor anything of another boot is a leftover."""
    proc.add(10, started=900)
    proc.add(11, started=901, group=10)
    proc.add(20, started=500)
    assert proc.left(Row(1, 10, 500), Row(2, 20, 500, "another boot"), Row(3, 20, None), Row(4)) == []


def test_group_outlives_its_leader(proc: Proc) -> None:
    """What is left in the group of a process that is gone belongs to its run."""
    proc.add(11, started=510, group=10)
    proc.add(12, started=499, group=10)  # older than its supposed leader
    proc.add(13, started=510, group=10, session=9)  # not of the session that the leader opened
    proc.add(14, started=510, group=14, session=10)  # not in the group
    assert proc.left(Row(1, 10, 500)) == [(1, 11)]


def test_dead_leader_still_vouches_for_its_group(proc: Proc) -> None:
    """A leader that nobody has buried holds its number, so its group is its own."""
    proc.add(10, started=500, state="Z")
    proc.add(11, started=510, group=10)
    proc.add(20, started=900, state="Z")  # this one got the number of another
    proc.add(21, started=910, group=20)
    assert proc.left(Row(1, 10, 500), Row(2, 20, 500)) == [(1, 11)]


def test_marker_finds_what_was_never_noted(proc: Proc) -> None:
    """A process that carries the run in its environment is found without its pid, in whatever group."""
    proc.add(10, started=500, marker="s:1")
    proc.add(11, started=510, group=11, session=10, marker="s:1")
    proc.add(12, started=510, marker="s:12")
    proc.add(13, started=510, marker="other:1")
    assert proc.left(Row(1)) == [(1, 10), (1, 11)]


def test_marker_of_another_run_wins_over_the_group(proc: Proc) -> None:
    """A process that says it belongs to another run is not taken for one of this row."""
    proc.add(11, started=510, group=10, marker="s:2")
    assert proc.left(Row(1, 10, 500)) == []
    assert proc.left(Row(1, 10, 500), Row(2)) == [(2, 11)]


def test_we_are_no_leftover(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that a leftover started carries its marker, and spares itself and its group."""
    monkeypatch.setattr("os.getpid", lambda: 10)
    proc.add(10, started=500, group=9, marker="s:1")
    proc.add(11, started=500, group=9, marker="s:1")
    proc.add(12, started=500, group=1, marker="s:1")
    proc.add(13, started=500, marker="s:1")
    assert proc.left(Row(1)) == [(1, 13)]


def test_marker_above_the_last_row_is_of_a_run_that_was_never_written(proc: Proc) -> None:
    """A run without a row has leftovers; one whose row has ended, or one of another scheduler, has none."""
    proc.add(10, started=500, marker="s:8")
    proc.add(11, started=500, marker="s:7")
    proc.add(12, started=500, marker="other:8")
    assert proc.left(last_id=7) == [(8, 10)]
    assert proc.left(Row(7), last_id=7) == [(7, 11), (8, 10)]


def kept(proc: Proc, *rows: Row) -> dict[int, int]:
    """The daemon that looks after each process, by pid; 0 where nobody does."""
    found = leftovers(runs_of(*rows), TOKENS, last_id=99, proc_root=proc.root)
    return {each.pid: each.daemon for each in found}


def test_what_its_daemon_looks_after_is_no_leftover(proc: Proc) -> None:
    """A process below the living daemon that started it is that one's, however far below, marked or not."""
    proc.add(1, started=1)
    proc.add(50, started=400)
    proc.add(10, started=500, marker="s:1", daemon=400, parent=50)
    proc.add(11, started=510, group=10, parent=10)
    proc.add(12, started=510, marker="s:1", daemon=400, parent=11)
    assert kept(proc, Row(1, 10, 500)) == {10: 50, 11: 50, 12: 50}


def test_a_daemon_by_another_number_is_the_same(proc: Proc) -> None:
    """Seen from another pid namespace the daemon has another number, and the same start."""
    proc.add(1, started=1)
    proc.add(5050, started=400)
    proc.add(10, started=500, marker="s:1", daemon=400, parent=5050)
    assert kept(proc, Row(1)) == {10: 5050}


@pytest.mark.parametrize("daemon", [400, 0])
def test_what_a_dead_daemon_left_is_a_leftover(proc: Proc, daemon: int) -> None:
    """A process that has inherited another, or got the number of its daemon, does not look after it."""
    proc.add(1, started=1)
    proc.add(50, started=401)
    proc.add(10, started=500, marker="s:1", daemon=daemon, parent=1)
    proc.add(11, started=500, marker="s:1", daemon=daemon, parent=50)
    assert kept(proc, Row(1)) == {10: 0, 11: 0}


def test_what_we_look_after_is_a_leftover(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier daemon in this very process left is ours to end."""
    monkeypatch.setattr("os.getpid", lambda: 50)
    proc.add(50, started=400)
    proc.add(10, started=500, marker="s:1", daemon=400, parent=50)
    assert kept(proc, Row(1)) == {10: 0}


def test_parents_in_a_circle(proc: Proc) -> None:
    """/proc is read one process after the other, and may say what was never so at one time."""
    proc.add(10, started=500, marker="s:1", daemon=400, parent=11)
    proc.add(11, started=501, parent=10)
    assert kept(proc, Row(1)) == {10: 0}


def test_a_token_says_which_run_and_which_daemon() -> None:
    """A token is read by every daemon on the same store, also by a later one."""
    later = RunTokens(KEY, "s", 900)
    assert later.claim_in(RunTokens(KEY, "s", 400).token_of(17)) == TokenClaim(17, 400)


GENUINE = RunTokens(KEY, "s", 400).token_of(17)
CODE = GENUINE.rpartition(":")[2]


@pytest.mark.parametrize(
    "token",
    [
        "",
        ":",
        "s:17",
        "s:17:400",
        "s:17:400:",
        f"s:18:400:{CODE}",
        f"s:17:401:{CODE}",
        f"t:17:400:{CODE}",
        f"s:{'9' * 5000}:400:{CODE}",
        f"s:{2**63 - 2}:400:{CODE}",
        f"s:17:400:{CODE.upper()}x",
        f"s:17:400:{CODE[:-1]}",
        f"s:17:400:{CODE}\udcff",
        f"s:\udcff:400:{CODE}",
        RunTokens(b"another key", "s", 400).token_of(17),
    ],
    ids=repr,
)
def test_a_token_that_the_store_has_not_made_says_nothing(token: str) -> None:
    """Whatever is changed in a token, nothing of it counts, and nothing raises."""
    assert TOKENS.claim_in(token) is None


def test_a_process_without_a_genuine_token_is_known_by_its_group(proc: Proc) -> None:
    """A forged token neither makes a process a leftover nor hides it in the group of one."""
    proc.add(10, started=500)
    proc.add(11, started=510, group=10)
    proc.add(20, started=510)
    for pid in (11, 20):
        (proc.root / str(pid) / "environ").write_bytes(f"DULY_RUN_TOKEN=s:2:0:{CODE}\0".encode())
    assert proc.left(Row(1, 10, 500), Row(2)) == [(1, 10), (1, 11)]


def test_orphans_are_among_the_children_of_the_main_thread(proc: Proc) -> None:
    """A process inherits as its main thread; a kernel that lists no children is asked for every parent."""
    assert inherited_by(10, proc.root) == frozenset()
    proc.add(10, started=500)
    for thread, children in ((10, "11 12 "), (20, "13")):
        (proc.root / f"10/task/{thread}").mkdir(parents=True)
        (proc.root / f"10/task/{thread}/children").write_text(children)
    assert inherited_by(10, proc.root) == {11, 12}
    (proc.root / "10/task/10/children").unlink()
    proc.add(14, started=501, parent=10)
    proc.add(15, started=501, parent=14)
    assert inherited_by(10, proc.root) == {14}
