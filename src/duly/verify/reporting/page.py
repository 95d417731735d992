"""A verification as one page: the verdict, the properties, time lines, and each violation with its own.

Of a cluster it has a table of the nodes, too. The page needs nothing but itself: no network, no script, no
font. Its own policy forbids all three, so that even a mistake in the escaping of a task's name could load and
run nothing. What it looks like is in the template, page.html, which needs jinja2.
"""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from duly.formatting import counted, printable
from duly.instant import SECOND_US
from duly.verify.properties import Verdict, instant_text
from duly.verify.reporting import drawing
from duly.verify.reporting.drawing import Drawing
from duly.verify.reporting.report import (
    MOST_SHOWN,
    Report,
    caveats,
    exhibits,
    groups,
    summary,
)
from duly.verify.reporting.timeline import Pictures, TimeWindow

_OVERVIEW_LANE_PX, _ZOOM_LANE_PX = 30, 46
_MOST_NODES = 40


def page(report: Report, pictures: Pictures) -> str:
    def figure(picture: TimeWindow, label: str, lane_px: int) -> Drawing:
        return Drawing(picture, report.zone, report.chain, label=label, lane_px=lane_px)

    def shown_time(at_us: int) -> str:
        return instant_text(at_us // SECOND_US * SECOND_US, report.zone)

    overview, zooms = pictures.overview, pictures.zooms
    return _template().render(
        report=report,
        headline=_headline(report),
        summary=f"{summary(report)}. {_source(report)}",
        caveats=caveats(report),
        groups=groups(report.outcome),
        nodes=pictures.nodes[:_MOST_NODES],
        more_nodes=len(pictures.nodes) - _MOST_NODES,
        shown_time=shown_time,
        overview=overview and figure(overview, "The whole trace", _OVERVIEW_LANE_PX),
        overview_notes=overview and [*_hints(report, overview), *_notes(overview)],
        is_cluster=overview is not None and overview.nodes is not None,
        findings=[(each, list(exhibits(report, each)), zooms.get(each.number)) for each in report.shown],
        zoomed=lambda number: figure(zooms[number], f"Around violation {number}", _ZOOM_LANE_PX),
        notes=_notes,
        most_faults=MOST_SHOWN,
        **{
            name: getattr(drawing, name) for name in ("WIDTH", "GUTTER", "RIGHT", "TOP", "FLAG_PX", "COLOURS")
        },
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("duly.verify", "reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    return environment.get_template("page.html")


def _visible(value: Any) -> Any:
    """What a template writes: of text, what cannot be seen in escaped form; markup is escaped after this."""
    if type(value) is str:  # and not Markup, which was looked at when it was made
        return printable(value)
    return f"{value:g}" if isinstance(value, float) else value


def _headline(report: Report) -> str:
    broken = [name for name in report.outcome.properties if report.outcome.tallies[name].violated]
    match report.verdict:
        case Verdict.VIOLATED if not broken:
            return "Violated: not every due and every run can be accounted for"
        case Verdict.VIOLATED:
            total = sum(report.outcome.tallies[name].violated for name in broken)
            return f"Violated: {counted(total, 'violation')} of {', '.join(broken)}"
        case Verdict.HOLDS:
            return "Holds: every property, throughout the trace"
        case Verdict.INCONCLUSIVE:
            return "Inconclusive: no violation, but not everything could be decided"


def _source(report: Report) -> str:
    header = report.header
    made = f"Recorded by {header.impl}. " if header.impl else ""
    read = f"Read from {', '.join(report.chain.names)}. " if report.chain.names else ""
    return f"{made}Times are those of {header.tz}. {read}"


def _hints(report: Report, picture: TimeWindow) -> list[str]:
    hints = ["Point at a mark to read what it is."]
    if report.shown:
        hints.append("A number leads to its violation.")
    if picture.lanes_left_out:
        ran = "those that the most nodes ran"
        others = "the others in the order of their registration" if picture.nodes is None else ran
        hints.append(
            f"Shown are {counted(len(picture.lanes), 'task')}: first those with violations, then {others}; "
            f"{picture.lanes_left_out:,} more are left out."
        )
    return hints


def _notes(picture: TimeWindow) -> list[str]:
    """What is not drawn one by one."""
    notes = []
    if picture.is_thinned:
        notes.append("Marks of one kind that lie close together are drawn as one, which says how many it is.")
    if crowded := sum(lane.dues is None for lane in picture.lanes.values()):
        notes.append(f"The dues of {counted(crowded, 'task')} lie too close together to be drawn.")
    return notes
