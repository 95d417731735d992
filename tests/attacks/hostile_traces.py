"""Traces that no recorder would write: valid ones, damaged in bytes, in lines or in fields.

Everything follows from a number: `hostile(seed)` is the same command line with the same files, always.
"""

import copy
import gzip
import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, NamedTuple

from tests.property.traces import random_trace
from tests.simulation.cluster import cluster_drawn, cluster_recorded

Line = dict[str, Any]

TIMES: tuple[Any, ...] = (
    0,
    -1,
    -62_135_424_000_000,
    -62_135_596_800_000,
    253_402_128_000_000,
    253_402_300_799_999,
    253_402_300_800_000,
    1e15,
    2**63,
    -(2**63),
    2**64,
    10**400,
    1.5e308,
    1e-300,
    1781784240000.0005,
    4_102_444_800_000,
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "\x00",
    "\ud800",
    "\u202e\u2066x",
    "é" * 40,
    "x" * 20_000,
    [],
    {},
    [[]],
    [None],
    "NaN",
    "0",
    -1,
    0.5,
    *TIMES,
)
CRONS = (
    "",
    "* * * *",
    "0-3000000000 * * * *",
    "0-59,0-59 0-23 1-31 1-12 0-6",
    "a b c d e",
    "*/5 * * * *",
    "59-0 * * * *",
    "0 0 31 2 *",
    "0 0 29 2 *",
    "0 0 30 2,4 1",
    "* * * * 7",
    "1,,2 * * * *",
    "- * * * *",
    "00000000000000000000000000000005 * * * *",
    "0" * 5000 + " * * * *",
    "²  * * * *",
    "\t0\t0\t*\t*\t*\t",
    "0\n0 * * *",
    ",".join(["1"] * 5000) + " * * * *",
)
ZONES = (
    "UTC",
    "Pacific/Apia",
    "Africa/Casablanca",
    "America/St_Johns",
    "Europe",
    "../etc/passwd",
    "",
    "x" * 999,
)
NAMES: tuple[str, ...] = (
    "tick_ms",
    "shards",
    "failover_ms",
    "member",
    "store",
    "running",
    "follows",
    "persist_window_ms",
    "v",
)
NAMES += ("delta_ms", "delta_per_task_ms", "delta_stop_ms", "first_due", "dst", "boot", "impl")
KINDS: tuple[str, ...] = (
    "InitStart",
    "InitEnd",
    "StopStart",
    "StopEnd",
    "RunStart",
    "RunEnd",
    "Crash",
    "ClockStep",
    "Tick",
    "End",
)
KINDS += ("Taken", "Given", "Lost", "Edition", "Unreachable", "Reachable", "Missed", "Header", "Nap")


class Attack(NamedTuple):
    """A command line for `duly verify`; each name that is also in *files* is to be written first."""

    files: dict[str, bytes]
    arguments: list[str]


def hostile(seed: int) -> Attack:
    """The attack with this number."""
    random = Random(f"hostile {seed}")
    return _tables(random) if seed % 8 == 7 else _traces(random, seed)


# --- traces ---


def _traces(random: Random, seed: int) -> Attack:
    recordings = _cluster(random, seed) if seed % 8 in {3, 6} else _single(random, seed)
    files = {f"{number}.jsonl": _damaged(random, lines) for number, lines in enumerate(recordings)}
    names = list(files)
    if random.random() < 0.1:
        names.append(random.choice(names))
    if random.random() < 0.2:
        random.shuffle(names)
    options = [option for option in ("--targets", "--json") if random.random() < 0.5]
    if random.random() < 0.5:
        options += ["--html", "page.html"]
    return Attack(files, [*names, *options])


def _single(random: Random, seed: int) -> list[list[Line]]:
    lines = random_trace(seed)
    if random.random() < 0.2:
        lines[0]["first_due"] = "after"
    if random.random() < 0.2:
        lines = _with_losses(random, lines)
    if random.random() < 0.2:  # rotated, or recorded again
        at = random.randrange(1, len(lines) + 1)
        header = {**lines[0], "follows": random.random() < 0.7, "store": "unknown"}
        return [lines[:at], [header, *lines[at:]]]
    return [lines]


def _with_losses(random: Random, lines: list[Line]) -> list[Line]:
    """The trace with some dues that its scheduler says it did not run."""
    seen = list(lines)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(1, len(seen) + 1)
        t = seen[at - 1].get("t", 0)
        lost: Line = {"ev": "Missed", "t": t, "id": random.choice("abc"), "due": t // 60_000 * 60_000}
        if random.random() < 0.4:
            lost["run"] = random.randint(1, 5)
        seen.insert(at, lost)
    return seen


def _cluster(random: Random, seed: int) -> list[list[Line]]:
    files = copy.deepcopy(_sound_cluster(random.randrange(12)))
    if random.random() < 0.2:
        files = files[: random.randint(1, len(files))]
    if random.random() < 0.3:  # a node's trace that tells of no list
        files = [[line for line in lines if line["ev"] != "ListReconciled"] for lines in files]
    if random.random() < 0.1:
        files.append(random_trace(seed))
    return files


@cache
def _sound_cluster(seed: int) -> list[list[Line]]:
    return cluster_recorded(cluster_drawn(seed, 2 + seed % 2))


# --- damage ---


def _damaged(random: Random, lines: list[Line]) -> bytes:
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        lines = random.choice(_BY_FIELD)(random, lines) if lines else lines
    written = [_encoded(line) for line in lines]
    for _ in range(random.choice((0, 0, 1, 1, 2))):
        written = random.choice(_BY_LINE)(random, written) if written else written
    content = b"".join(written)
    if random.random() < 0.3:
        content = random.choice(_BY_BYTE)(random, content)
    return (
        gzip.compress(content, mtime=0)[: random.choice((None, None, -9))]
        if random.random() < 0.05
        else content
    )


def _encoded(line: Any) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _odd(random: Random) -> Any:
    return random.choice(ODD)


def _change_field(random: Random, lines: list[Line]) -> list[Line]:
    at = random.randrange(len(lines))
    line = dict(lines[at])
    key = random.choice([*line, "proc", "run", "m", "void", "shard", "term"])
    line[key] = _odd(random)
    return [*lines[:at], line, *lines[at + 1 :]]


def _drop_field(random: Random, lines: list[Line]) -> list[Line]:
    at = random.randrange(len(lines))
    key = random.choice(list(lines[at]) or ["ev"])
    return [*lines[:at], {name: value for name, value in lines[at].items() if name != key}, *lines[at + 1 :]]


def _change_header(random: Random, lines: list[Line]) -> list[Line]:
    header = {**lines[0], random.choice(NAMES): random.choice((_odd(random), random.randint(0, 10**6)))}
    if random.random() < 0.2:
        header["tz"] = random.choice(ZONES)
    if random.random() < 0.1:
        header["running"] = [["a", random.randint(1, 3)], ["x" * 9, 2**62]]
    return [header, *lines[1:]]


def _change_time(random: Random, lines: list[Line]) -> list[Line]:
    """One line, or all from there on, at another time; the last one far away."""
    at = random.choice((random.randrange(len(lines)), len(lines) - 1))
    moved = list(lines)
    far, time = random.random() < 0.5, random.choice(TIMES)
    by = random.choice((10**9, 3 * 10**10, 4 * 10**12, -(10**9), 86_400_000, -86_400_000))
    for index in range(at, len(lines) if random.random() < 0.5 else at + 1):
        if isinstance(moved[index].get("t"), int | float):
            moved[index] = {**moved[index], "t": time if far else moved[index]["t"] + by}
    return moved


def _change_list(random: Random, lines: list[Line]) -> list[Line]:
    changed = []
    for line in lines:
        regs = line.get("regs")
        if not isinstance(regs, list) or not regs or random.random() < 0.3:
            changed.append(line)
            continue
        regs = [list(reg) for reg in regs if isinstance(reg, list)] or [["a", "* * * * *", 0]]
        reg = random.choice(regs)
        place = random.randrange(max(len(reg), 1))
        if reg:
            reg[place] = random.choice(CRONS) if place == 1 else _odd(random)
        if random.random() < 0.1:
            regs += [["many" + str(number), "* * * * *", 0] for number in range(300)]
        changed.append({**line, "regs": regs})
    return changed


def _change_kind(random: Random, lines: list[Line]) -> list[Line]:
    at = random.randrange(len(lines))
    facts = {
        "call": 1,
        "regs": [],
        "ok": True,
        "id": "a",
        "shard": 0,
        "term": 1,
        "edition": 1,
        "from": 0,
        "due": 0,
    }
    return [*lines[:at], {**facts, **lines[at], "ev": random.choice(KINDS)}, *lines[at + 1 :]]


def _step_clock(random: Random, lines: list[Line]) -> list[Line]:
    """The clock is set, again and again."""
    at = random.randrange(1, len(lines) + 1)
    t = lines[at - 1].get("t", 0)
    t = t if isinstance(t, int | float) else 0
    by = random.choice((-1, -1000, -90_000, -400_000, -(10**7), 10**5, 10**9))
    steps = [{"ev": "ClockStep", "t": t + by, "from": t} for _ in range(random.choice((1, 3, 30)))]
    return [*lines[:at], *steps, *lines[at:]]


def _nest(random: Random, lines: list[Line]) -> list[Line]:
    at = random.randrange(len(lines))
    deep: Any = 0
    for _ in range(random.choice((10, 400))):
        deep = [deep] if random.random() < 0.5 else {"x": deep}
    return [*lines[:at], {**lines[at], random.choice(("regs", "extra", "id")): deep}, *lines[at + 1 :]]


_BY_FIELD: tuple[Callable[[Random, list[Line]], list[Line]], ...] = (
    _change_field,
    _change_field,
    _drop_field,
    _change_header,
    _change_header,
    _change_time,
    _change_time,
    _change_list,
    _change_kind,
    _step_clock,
    _nest,
)


def _drop_line(random: Random, lines: list[bytes]) -> list[bytes]:
    at = random.randrange(len(lines))
    return lines[:at] + lines[at + random.choice((1, 1, 3)) :]


def _double_line(random: Random, lines: list[bytes]) -> list[bytes]:
    at = random.randrange(len(lines))
    return lines[:at] + [lines[at]] * random.choice((2, 2, 40)) + lines[at + 1 :]


def _swap_lines(random: Random, lines: list[bytes]) -> list[bytes]:
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    swapped = list(lines)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    return swapped


def _insert_line(random: Random, lines: list[bytes]) -> list[bytes]:
    odd = (
        b"\n",
        b"7\n",
        b"null\n",
        b"[]\n",
        b"\xff\xfe\n",
        b"{" * 3000 + b"\n",
        b"[" * 100_000 + b"\n",
        b" \t\r\n",
    )
    at = random.randrange(len(lines) + 1)
    return [*lines[:at], random.choice(odd), *lines[at:]]


def _put_number(random: Random, lines: list[bytes]) -> list[bytes]:
    """A number that JSON has not, or that nobody can hold."""
    at = random.randrange(len(lines))
    odd = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" * 5000, b"0x10", b"01", b"-")
    head, colon, tail = lines[at].partition(b'"t": ')
    changed = head + colon + random.choice(odd) + b"," + tail.partition(b",")[2] if colon else lines[at]
    return [*lines[:at], changed, *lines[at + 1 :]]


_BY_LINE = (_drop_line, _double_line, _swap_lines, _insert_line, _put_number)


def _cut(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _flip(random: Random, content: bytes) -> bytes:
    flipped = bytearray(content)
    for _ in range(random.choice((1, 1, 5)) if content else 0):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def _tear(random: Random, content: bytes) -> bytes:
    """A last line without its end."""
    odd = (
        b"7",
        b'"',
        b"{",
        b"\xff",
        b'{"ev":"Tick","t":1,"x":"\xc3',
        b'{"ev":"Tick","t":1,"x":"\xff"}',
        b'{"ev":"Tick"}',
    )
    return content + random.choice(
        (*odd, b"null", b"[]", b'{"ev":"Header"}', b'{"ev":"RunEnd","t":1,"id":"a","ok":1}')
    )


def _insert_bytes(random: Random, content: bytes) -> bytes:
    at = random.randrange(len(content) + 1)
    return (
        content[:at]
        + random.choice((b"\x00", b"\xff\xff", b"\n", b"\r", b"\xef\xbb\xbf", b"}", b'"'))
        + content[at:]
    )


_BY_BYTE = (_cut, _cut, _flip, _tear, _tear, _insert_bytes, lambda _, content: b"\xef\xbb\xbf" + content)


# --- tables ---

_CELLS: tuple[str, ...] = (
    "",
    "a",
    "b",
    "yes",
    "no",
    "x" * 500,
    "é",
    "\x00",
    '"',
    "1e5",
    "99999999999999999999",
    "-1",
    "nan",
    "0001-01-01",
)
_CELLS += ("9999-12-31T23:59", "2026-03-29T02:30:00", "2026-10-25T02:30:00", "2026-13-01", "253402128000000")
_TABLE_TIMES = ("2026-06-18T10:00:00", "2026-06-18T10:01:00+02:00", "1781784240000", "2026-06-18T12:00:05.5Z")


def _tables(random: Random) -> Attack:
    tasks = [["task", "cron", "retry_delay"], ["a", "* * * * *", ""], ["b", "0,30 * * * *", "60"]]
    runs = [["task", "start", "end", "ok"]]
    for _ in range(random.randint(0, 6)):
        times = sorted(random.choice(_TABLE_TIMES) for _ in range(2))
        runs.append([random.choice("ab"), *times, random.choice(("", "yes", "no"))])
    for table in (tasks, runs):
        for _ in range(random.choice((0, 0, 1, 2))):
            row = random.choice(table)
            row[random.randrange(len(row))] = random.choice((*_CELLS, *CRONS))
    files = {"runs.csv": _csv(runs), "tasks.csv": _csv(tasks)}
    for name, content in files.items():
        if random.random() < 0.2:
            files[name] = random.choice(_BY_BYTE)(random, content)
    arguments = [
        "runs.csv",
        "--csv-tasks",
        "tasks.csv",
        "--tz",
        random.choice(("UTC", "Europe/Berlin", *ZONES)),
    ]
    for option in ("--from", "--until"):
        if random.random() < 0.4:
            arguments += [option, random.choice((*_TABLE_TIMES, *_CELLS[9:]))]
    arguments += [option for option in ("--targets", "--json") if random.random() < 0.5]
    return Attack(files, arguments + (["--html", "page.html"] if random.random() < 0.5 else []))


def _csv(rows: list[list[str]]) -> bytes:
    quoted = (",".join(f'"{cell}"' if "," in cell else cell for cell in row) for row in rows)
    return "\n".join(quoted).encode() + b"\n"
