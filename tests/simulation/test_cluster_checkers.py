"""Both checkers of traces, and the page of them, on simulated clusters: right ones, and wrong ones."""

import re
from collections.abc import Callable
from itertools import chain
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from duly.verify.cluster import judged_together
from duly.verify.properties import Outcome
from duly.verify.reporting.cluster import cluster_pictures
from duly.verify.reporting.drawing import GUTTER, RIGHT, WIDTH
from duly.verify.reporting.page import page
from duly.verify.reporting.report import Report
from duly.verify.targets import account_of
from duly.verify.trace import header_of
from tests.simulation.cluster import ClusterFaults, cluster_drawn, cluster_recorded

Files = list[list[dict[str, Any]]]


def encoded(files: Files) -> list[bytes]:
    return [msgspec.json.encode(line) + b"\n" for line in chain.from_iterable(files)]


def verdict(files: Files) -> Outcome:
    outcome = judged_together(encoded(files))
    assert not outcome.fault_count, outcome.faults
    return outcome


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200))]
)
def test_right_histories_hold(seed: int) -> None:
    """Whatever happens to a right cluster, nobody objects to all of its traces, or to any one of them.

    There is a page of them, also when lines are lost, doubled, exchanged, and dated by other clocks.
    """
    # A clock that was set back unseen makes times that tell no order.
    files = cluster_recorded(cluster_drawn(seed, 1 + seed % 4, ClusterFaults(clock=False)))
    account, outcome = account_of(encoded(files)), verdict(files)
    assert account.is_right, account.sentences()
    assert account.refused or account.runs == outcome.starts
    for lines in files:
        alone = verdict([lines])
        assert not alone.violations, alone.violations
    check_page(files)
    for lines in files:
        if len(lines) > 1:
            tear(lines, Random(seed))
    check_page(files)


def tear(lines: list[dict[str, Any]], random: Random) -> None:
    """Harm a trace here and there."""
    for _ in range(max(len(lines) // 20, 1)):
        at, other = random.randrange(1, len(lines)), random.randrange(1, len(lines))
        match random.randrange(4):
            case 0 if len(lines) > 3:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                off = random.choice((-1, 1)) * 10.0 ** random.randrange(8)
                lines[at] = {**lines[at], "t": lines[at]["t"] + off}


def check_page(files: Files) -> None:
    """Every run is drawn once. Every drawing is well-formed, and everything in it lies on its paper."""
    lines = encoded(files)
    report = Report(judged_together(lines), header_of(1, lines[0]))
    pictures = cluster_pictures(report, lines)
    assert pictures.overview is not None
    assert not pictures.overview.lanes_left_out
    runs = sum(run.count for lane in pictures.overview.lanes.values() for run in lane.runs)
    assert runs == sum(line["ev"] == "RunStart" for line in chain.from_iterable(files))
    text = page(report, pictures)
    drawings = re.findall(r"<svg viewBox=.0 0 1100.*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) == text.count("<figure>") >= 1
    for drawing in drawings:
        svg = ET.fromstring(drawing)
        height = float(svg.attrib["viewBox"].split()[3])
        for rect in svg.iter("rect"):
            x, y, width, tall = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert GUTTER - 4 <= x <= x + width <= WIDTH - RIGHT + 5
            assert 0 <= y <= y + tall <= height
        for path in svg.iter("path"):
            assert re.fullmatch(r"[MLHVhvlmz\d. -]+", path.attrib["d"])


def doubled(files: Files, random: Random) -> None:
    """Two nodes claim the same row, with one token: both runs go on at once."""
    lines, at = chosen(files, "RunStart", random)
    other = random.choice([each for each in files if each is not lines])
    start = lines[at]
    end = next(line for line in lines[at:] if (line["ev"], line.get("id")) == ("RunEnd", "a"))
    lines.remove(end)
    again = {"run": 99, "proc": other[-1]["proc"]}
    place(other, {**start, **again})
    place(other, {**end, **again, "t": start["t"] + 6_000})
    place(lines, {**end, "t": start["t"] + 5_000})


def repeated(files: Files, random: Random) -> None:
    """A run that has ended well starts once more, with a token of its own."""
    lines, at = chosen(files, "RunEnd", random)
    end = lines[at]
    token = next(line for line in lines if line["ev"] == "RunStart" and line["run"] == end["run"])["token"]
    again = {**end, "ev": "RunStart", "run": 99, "token": token + 1, "t": end["t"] + 3_000}
    del again["ok"]
    place(lines, again)
    place(lines, {**end, "run": 99, "t": end["t"] + 3_500})


def lost(files: Files, _random: Random) -> None:
    """A task never starts any more."""
    for lines in files:
        lines[:] = [line for line in lines if line.get("id") != "a" or not line["ev"].startswith("Run")]


def stale(files: Files, random: Random) -> None:
    """A claim has a smaller token than the one before it."""
    lines, at = chosen(files, "RunStart", random)
    lines[at]["token"] -= 600_000_000


def chosen(files: Files, event: str, random: Random) -> tuple[list[dict[str, Any]], int]:
    """An event of the task "a", not its first, and the trace that it is in."""
    found = [
        (line["t"], number, at)
        for number, lines in enumerate(files)
        for at, line in enumerate(lines)
        if (line["ev"], line.get("id")) == (event, "a")
    ]
    _, number, at = random.choice(sorted(found)[1:-1])
    return files[number], at


def place(lines: list[dict[str, Any]], line: dict[str, Any]) -> None:
    lines.append(line)
    lines[1:] = sorted(lines[1:], key=lambda each: each["t"])


@pytest.mark.parametrize(
    ("change", "found_by"),
    [(doubled, {"C1", "C4"}), (repeated, {"S1d"}), (lost, {"L1"}), (stale, {"C2"})],
)
def test_a_wrong_line_is_found(change: Callable[[Files, Random], None], found_by: set[str]) -> None:
    """Of a sound life, one thing that did not happen is objected to, by the property that it breaks."""
    for seed in range(6):
        files = cluster_recorded(cluster_drawn(seed, 2, ClusterFaults.only()))
        assert not verdict(files).violations
        change(files, Random(seed))
        assert found_by <= {each.property for each in verdict(files).violations}
        if change in {repeated, lost}:
            assert not account_of(encoded(files)).is_right
