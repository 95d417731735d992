"""The page that `make performance` writes, and its charts."""

from pathlib import Path
from xml.etree import ElementTree as ET

from tools.benchmarks import burst, initialize, memory, restart
from tools.benchmarks.case import Case, Results
from tools.benchmarks.page import write_page
from tools.benchmarks.plot import chart

_SVG = "{http://www.w3.org/2000/svg}"


def test_chart_has_a_line_for_each_name() -> None:
    """A chart shows every point, names every line, and is lower where the value is larger."""
    drawn = ET.fromstring(
        chart({"a & b": [(100, 1), (1_000, 20)], "c": [(100, 5)]}, x_title="x", y_title="y")
    )
    circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in drawn.iter(f"{_SVG}circle")]
    assert len(circles) == 3
    (left_x, low_y), (right_x, high_y) = min(circles), max(circles)
    assert left_x < right_x
    assert high_y < low_y
    assert {"a & b", "c", "x", "y"} <= {text.text for text in drawn.iter(f"{_SVG}text")}


def test_page_shows_what_was_measured(tmp_path: Path) -> None:
    """The page has each number of duly with its goal and its peers, and nothing that was not measured."""
    bursts, memories, nothing = Results(), Results(), Results()
    bursts.add(Case("duly", 10_000, "shared"), {"p50_ms": 20.0, "p99_ms": 61.0, "max_ms": 70.0})
    bursts.add(Case("aiocron", 10_000), {"p50_ms": 200.0, "p99_ms": 610.0, "max_ms": 700.0})
    memories.add(Case("duly", 100_000, "shared resident"), {"bytes": 650.0})
    write_page(
        {"burst": bursts, "memory": memories},
        {
            "burst": burst.rows(bursts),
            "memory": memory.rows(memories),
            "initialize": initialize.rows(nothing),
            "restart": restart.rows(nothing),
        },
        tmp_path,
    )
    page = (tmp_path / "performance.md").read_text()
    assert "| 10,000 due in one minute, lag p99 | 61.00 ms | 60 ms: missed | 610.0 ms |" in page
    assert "| memory per task, shared cron texts, resident set | 650.0 B | 700 B: met |" in page
    assert "1,000 tasks" not in page
    drawn = (tmp_path / "performance-lag.svg").read_text()
    assert "duly" in drawn
    assert "schedule" not in drawn
