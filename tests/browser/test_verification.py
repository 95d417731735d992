"""The page that `duly verify` writes of a cluster, in a real browser: it shows, and it does nothing else."""

from pathlib import Path

import pytest

from duly.verify.reporting.page import page
from tests.browser.conftest import Opening, grave_findings
from tests.unit.test_cluster_page import drawn, failover, nasty, overlap


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("is_violated", [False, True], ids=["good", "violated"])
def test_page_of_a_cluster(opened: Opening, tmp_path: Path, scheme: str, *, is_violated: bool) -> None:
    """All its pictures can be seen, by everybody; names are only text, a number leads to its violation."""
    target = tmp_path / "page.html"
    files = overlap() if is_violated else [nasty(file) for file in failover()]
    target.write_text(page(*drawn(*files)), encoding="utf-8")
    shown = opened(target.as_uri(), is_live=False, color_scheme=scheme)
    figures = shown.locator("figure > svg")
    assert figures.count() == (3 if is_violated else 1)  # the time line, and each violation told in full
    for figure in figures.all():
        box = figure.bounding_box()
        assert min(box["width"], box["height"]) > 80
    assert shown.locator("script").count() == 0
    assert grave_findings(shown) == []
    colours = {
        each.evaluate("each => getComputedStyle(each).fill") for each in shown.locator("figure .cap").all()
    }
    assert len(colours) == (2 if is_violated else 1)  # both nodes have one name in the other
    if is_violated:
        shown.locator("a.flag circle").first.click()
        assert shown.url.endswith("#v1")
    else:
        assert "<script>alert(1)</script>\\u202e" in shown.locator("td.who").first.inner_text()
