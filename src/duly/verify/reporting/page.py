"""A verification as one page: the verdict, the properties, time lines, and each violation with its own.

The page needs nothing but itself: no network, no script, no font. Its own policy forbids all three, so that
even a mistake in the escaping of a task's name could load and run nothing. The style is in page.html.
"""

from collections.abc import Iterator
from importlib.resources import files
from string import Template

from duly.verify.properties import Verdict
from duly.verify.reporting.report import (
    MOST_SHOWN,
    Finding,
    Report,
    caveats,
    counted,
    exhibits,
    groups,
    summary,
)
from duly.verify.reporting.svg import safe, svg
from duly.verify.reporting.timeline import Picture, Pictures

_OVERVIEW_LANE_PX, _ZOOM_LANE_PX = 30, 46
_LEGEND = {
    "due": '<path class="due" d="M11 0v14"/>',
    "run that succeeded": '<rect class="ok" y="2" width="22" height="10"/>',
    "run that failed": '<path class="failed" d="M0 2h20v10h-20z"/><path class="failure" d="M20 0v14"/>',
    "run cut off by a crash": '<rect class="cut" x="1" y="2" width="20" height="10"/>',
    "run not ended in the trace": '<rect class="unfinished" y="2" width="22" height="10"/>',
    "retry, or again after a crash": '<path class="again" d="M11 12l-5 -8h10z"/>',
    "several runs": '<rect class="ok many" y="2" width="22" height="10"/>',
    "initialize": '<rect class="initialize" x="8" y="2" width="5" height="10"/>',
    "stop": '<rect class="stop" x="8" y="2" width="5" height="10"/>',
    "crash": '<g class="crash"><path d="M11 0v14"/></g>',
    "clock set": '<g class="step"><path d="M11 0v14"/></g>',
    "clocks of the zone change": '<g class="dst"><path d="M11 0v14"/></g>',
    "not active": '<rect class="ground" width="22" height="14"/><rect class="down" width="22" height="14"/>',
}


def page(report: Report, pictures: Pictures) -> str:
    """The whole page."""
    outcome = report.outcome
    template = Template(files("duly.verify.reporting").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=f"duly verify: {outcome.overall.value}",
        verdict=outcome.overall.value,
        headline=safe(_headline(report)),
        summary=safe(f"{summary(report)}. {_source(report)}"),
        caveats="\n".join(f"<p>{safe(caveat)}</p>" for caveat in caveats(report)),
        body="\n".join(_body(report, pictures)),
    )


def _headline(report: Report) -> str:
    broken = [name for name in report.outcome.properties if report.outcome.tallies[name].violated]
    match report.outcome.overall:
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


def _body(report: Report, pictures: Pictures) -> Iterator[str]:
    yield "<h2>Properties</h2>"
    yield from _properties(report)
    if pictures.overview is not None:
        yield "<h2>Time line</h2>"
        yield from _overview(report, pictures.overview)
    if report.shown:
        yield "<h2>Violations</h2>"
    for finding in report.shown:
        yield from _finding(report, finding, pictures.zooms.get(finding.number))
    if report.untold:
        more = ", ".join(f"{count:,} of {name}" for name, count in report.untold.items())
        yield f"<p>More violations, not told here: {more}.</p>"
    yield from _faults(report)


def _properties(report: Report) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr><th></th><th>verdict</th><th class="number">checked</th>'
    yield '<th class="number">open</th><th class="number">violated</th><th>in words</th></tr></thead><tbody>'
    for title, names in groups(report.outcome):
        yield f'<tr><th colspan="6">{safe(title)}</th></tr>'
        for name in names:
            yield _property(report, name)
    yield "</tbody></table></div>"


def _property(report: Report, name: str) -> str:
    tally, verdict = report.outcome.tallies[name], report.outcome.verdict(name).value
    numbers = "".join(
        f'<td class="number">{count:,}</td>' for count in (tally.checked, tally.open, tally.violated)
    )
    badge = f'<span class="badge {verdict}">{verdict}</span>'
    words = safe(report.outcome.properties[name])
    return f'<tr><td class="id">{name}</td><td>{badge}</td>{numbers}<td>{words}</td></tr>'


def _overview(report: Report, picture: Picture) -> Iterator[str]:
    notes = ["Point at a mark to read what it is."]
    if report.shown:
        notes.append("A number leads to its violation.")
    if picture.lanes_left_out:
        shown = counted(len(picture.lanes), "task")
        notes.append(
            f"Shown are {shown}: first those with violations, then the others in the order of their "
            f"registration; {picture.lanes_left_out:,} more are left out."
        )
    notes += _notes(picture)
    yield '<div class="card">'
    yield _figure(report, picture, "The whole trace", notes, _OVERVIEW_LANE_PX)
    items = (
        f'<li><svg viewBox="0 0 22 14" aria-hidden="true">{mark}</svg>{words}</li>'
        for words, mark in _LEGEND.items()
    )
    yield f'<ul class="legend">{"".join(items)}</ul></div>'


def _notes(picture: Picture) -> list[str]:
    """What is not drawn one by one."""
    notes = []
    if picture.is_thinned:
        notes.append("Marks of one kind that lie close together are drawn as one, which says how many it is.")
    if crowded := sum(lane.dues is None for lane in picture.lanes.values()):
        notes.append(f"The dues of {counted(crowded, 'task')} lie too close together to be drawn.")
    return notes


def _figure(report: Report, picture: Picture, label: str, notes: list[str], lane_px: int) -> str:
    drawing = svg(picture, report.zone, label=label, lane_px=lane_px)
    return f"<figure>{drawing}<figcaption>{safe(' '.join(notes))}</figcaption></figure>"


def _finding(report: Report, finding: Finding, picture: Picture | None) -> Iterator[str]:
    number = finding.number
    yield f'<section class="card" id="v{number}"><div class="finding"><span class="mark">{number}</span><div>'
    for names, reason in finding.objections:
        yield f"<h3>{safe(reason)}</h3>"
        against = "; ".join(f"{name}, {report.outcome.properties[name]}" for name in names.split(", "))
        yield f'<p class="soft">against {safe(against)}</p>'
    yield "</div></div>"
    yield from _evidence(report, finding)
    if picture is not None:
        yield _figure(report, picture, f"Around violation {number}", _notes(picture), _ZOOM_LANE_PX)
    yield "</section>"


def _evidence(report: Report, finding: Finding) -> Iterator[str]:
    yield '<div class="scroll"><table class="evidence"><tbody>'
    for where, when, what, is_decisive in exhibits(report, finding):
        style = ' class="decisive"' if is_decisive else ""
        cells = "".join(f"<td>{safe(cell)}</td>" for cell in (where, when, what))
        yield f"<tr{style}>{cells}</tr>"
    yield "</tbody></table></div>"


def _faults(report: Report) -> Iterator[str]:
    outcome = report.outcome
    if not outcome.fault_count:
        return
    yield "<h2>Faults of the trace itself</h2><p class='soft'>No scheduler is to blame for these.</p><ul>"
    for fault in outcome.faults[:MOST_SHOWN]:
        yield f"<li>{safe(report.chain.words(fault.line))}: {safe(fault.reason)}</li>"
    yield "</ul>"
    if (more := outcome.fault_count - len(outcome.faults[:MOST_SHOWN])) > 0:
        yield f"<p>And {more:,} more.</p>"
