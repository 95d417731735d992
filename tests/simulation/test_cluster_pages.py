"""Whatever the traces of a cluster say, right or wrong, there is a page that shows it."""

import re
from itertools import chain
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from duly.verify.cluster import judged_together
from duly.verify.reporting.cluster import cluster_pictures
from duly.verify.reporting.drawing import GUTTER, RIGHT, WIDTH
from duly.verify.reporting.page import page
from duly.verify.reporting.report import Report
from duly.verify.trace import header_of
from tests.simulation.cluster import ClusterFaults, cluster_drawn, cluster_recorded

SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 100))]


def drawn(files: list[list[dict[str, Any]]]) -> tuple[str, int]:
    """The page, and how many runs its time lines show."""
    lines = [msgspec.json.encode(line) + b"\n" for line in chain.from_iterable(files)]
    report = Report(judged_together(lines), header_of(1, lines[0]))
    pictures = cluster_pictures(report, lines)
    assert pictures.overview is not None
    assert not pictures.overview.lanes_left_out
    runs = sum(run.count for lane in pictures.overview.lanes.values() for run in lane.runs)
    return page(report, pictures), runs


def check(text: str) -> None:
    """Every drawing is well-formed, and everything in it lies on its paper."""
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


@pytest.mark.parametrize("seed", SEEDS)
def test_right_histories_are_drawn(seed: int) -> None:
    """Of a right history every run is drawn, once."""
    files = cluster_recorded(cluster_drawn(seed, 3, ClusterFaults(clock=False)))
    text, runs = drawn(files)
    check(text)
    assert runs == sum(line["ev"] == "RunStart" for line in chain.from_iterable(files)) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_torn_histories_are_drawn(seed: int) -> None:
    """So is what is left of one when lines are lost, doubled, exchanged, and dated by other clocks."""
    random, files = Random(seed), cluster_recorded(cluster_drawn(seed, 3, ClusterFaults(clock=False)))
    for lines in files:
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
                    lines[at] = {
                        **lines[at],
                        "t": lines[at]["t"] + random.choice((-1, 1)) * 10.0 ** random.randrange(8),
                    }
    text, runs = drawn(files)
    check(text)
    assert runs == sum(line["ev"] == "RunStart" for line in chain.from_iterable(files))
