"""A verification as one page: the verdict, the properties, time lines, and each violation with its own.

Of a cluster it has the members, too, and who of them held what.

The page needs nothing but itself: no network, no script, no font. Its own policy forbids all three, so that
even a mistake in the escaping of a task's name could load and run nothing. The style is in page.html.
"""

from collections.abc import Iterator
from importlib.resources import files
from string import Template

from duly.verify.properties import Verdict
from duly.verify.reporting.members import Biography
from duly.verify.reporting.members_svg import COLOURS
from duly.verify.reporting.paper import safe
from duly.verify.reporting.report import (
    MOST_SHOWN,
    Finding,
    Report,
    caveats,
    counted,
    exhibits,
    groups,
    instant_text,
    summary,
)
from duly.verify.reporting.svg import svg
from duly.verify.reporting.timeline import Picture, Pictures

_OVERVIEW_LANE_PX, _CLUSTER_LANE_PX, _MEMBER_LANE_PX, _ZOOM_LANE_PX = 30, 34, 44, 46
_MOST_BIOGRAPHIES = 40
_SECOND_US = 1_000_000
_RUNS = {
    "due": '<path class="due" d="M11 0v14"/>',
    "run that succeeded": '<rect class="ok" y="2" width="22" height="10"/>',
    "run that failed": '<path class="failed" d="M0 2h20v10h-20z"/><path class="failure" d="M20 0v14"/>',
    "run that was cut off": '<rect class="cut" x="1" y="2" width="20" height="10"/>',
    "run not ended in the trace": '<rect class="unfinished" y="2" width="22" height="10"/>',
    "retry, or again after it was cut off": '<path class="again" d="M11 12l-5 -8h10z"/>',
    "several runs": '<rect class="ok many" y="2" width="22" height="10"/>',
}
_LEGEND = {
    **_RUNS,
    "initialize": '<rect class="initialize" x="8" y="2" width="5" height="10"/>',
    "stop": '<rect class="stop" x="8" y="2" width="5" height="10"/>',
    "crash": '<g class="crash"><path d="M11 0v14"/></g>',
    "clock set": '<g class="step"><path d="M11 0v14"/></g>',
    "clocks of the zone change": '<g class="dst"><path d="M11 0v14"/></g>',
    "not active": '<rect class="ground" width="22" height="14"/><rect class="down" width="22" height="14"/>',
}
_CLUSTER_LEGEND = {
    **_RUNS,
    "by whom it was run": (
        '<rect class="ok" y="2" width="22" height="10"/><rect class="cap m0" y="2" width="22" height="3"/>'
    ),
    "who held its shard": '<rect class="hold m0" y="5" width="22" height="4"/>',
    "a member died": '<g class="crash"><path d="M11 0v14"/></g>',
    "edition: a list takes effect": '<g class="edition"><path d="M11 0v14"/></g>',
}
_HOLDERS_LEGEND = {
    "shards held": '<rect class="band m0" y="4" width="22" height="10"/><path class="steps m0" d="M0 4h22"/>',
    "shards without a living holder": (
        '<rect class="band free" y="4" width="22" height="10"/><path class="steps free" d="M0 4h22"/>'
    ),
    "failover": '<g class="failover"><path d="M11 0v8"/><path class="head" d="M11 14l-5 -7h10z"/></g>',
    "died": '<g class="death"><path d="M6 2l10 10m0 -10l-10 10"/></g>',
    "told to stop": '<rect class="stop" x="7" y="3" width="8" height="8"/>',
    "board out of reach": '<rect class="unreachable" width="22" height="14"/>',
    "silent": '<rect class="silent" width="22" height="14"/>',
    "its clock was set": '<g class="step"><path d="M11 0v14"/></g>',
    "edition: a list takes effect": '<g class="edition"><path d="M11 0v14"/></g>',
}


def page(report: Report, pictures: Pictures) -> str:
    """The whole page."""
    template = Template(files("duly.verify.reporting").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=f"duly verify: {report.verdict.value}",
        verdict=report.verdict.value,
        headline=safe(_headline(report)),
        summary=safe(f"{summary(report)}. {_source(report)}"),
        caveats="\n".join(f"<p>{safe(caveat)}</p>" for caveat in caveats(report)),
        body="\n".join(_body(report, pictures)),
    )


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


def _body(report: Report, pictures: Pictures) -> Iterator[str]:
    yield "<h2>Properties</h2>"
    yield from _properties(report)
    yield from _account(report)
    if pictures.holders is not None:
        yield "<h2>Members</h2>"
        yield from _members(report, pictures)
        yield "<h2>Who held what</h2>"
        yield from _holders(report, pictures.holders)
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


def _account(report: Report) -> Iterator[str]:
    if report.account is not None:
        yield "<h2>Dues and runs</h2>"
        if not report.account.refused:
            yield f"<p><strong>{safe(report.account.headline())}</strong></p>"
        yield from (f"<p>{safe(sentence)}</p>" for sentence in report.account.sentences())


def _members(report: Report, pictures: Pictures) -> Iterator[str]:
    yield '<div class="scroll"><table class="members"><thead><tr><th>member</th>'
    yield "<th>from</th><th>to</th><th>then</th>"
    titles = ("processes", "starts", "shards at most", "taken over")
    yield "".join(f'<th class="number">{title}</th>' for title in titles)
    yield "</tr></thead><tbody>"
    told = pictures.biographies[:_MOST_BIOGRAPHIES]
    for number, biography in enumerate(told):
        yield _member(report, biography, number)
    yield "</tbody></table></div>"
    if more := len(pictures.biographies) - len(told):
        yield f"<p>And {counted(more, 'more member')}, not told here.</p>"


def _member(report: Report, biography: Biography, number: int) -> str:
    square = f'<rect class="cap m{number % COLOURS}" width="10" height="10"/>'
    name = f'<svg viewBox="0 0 10 10" aria-hidden="true">{square}</svg>{safe(biography.member)}'
    times_us = (each // _SECOND_US * _SECOND_US for each in (biography.from_us, biography.to_us))
    from_, to = (instant_text(each, report.zone) for each in times_us)
    counts = (biography.processes, biography.starts, biography.most_shards, biography.taken_over)
    words = "".join(f"<td>{safe(each)}</td>" for each in (from_, to, biography.ending))
    numbers = "".join(f'<td class="number">{count:,}</td>' for count in counts)
    return f'<tr><td class="who">{name}</td>{words}{numbers}</tr>'


def _holders(report: Report, picture: Picture) -> Iterator[str]:
    members = picture.members
    assert members is not None
    notes = [f"Each row shows how many of {counted(members.shards, 'shard')} a member held."]
    notes += _hints(report)
    if members.lanes_left_out:
        notes.append(
            f"Shown are {counted(len(members.lanes), 'member')}: those with violations, then those that held "
            f"most; {members.lanes_left_out:,} more are left out."
        )
    if members.failovers_left_out:
        notes.append(f"The largest failovers are drawn; {members.failovers_left_out:,} more are not.")
    yield from _card(report, picture, "Who held what", notes + _notes(picture), _HOLDERS_LEGEND)


def _overview(report: Report, picture: Picture) -> Iterator[str]:
    is_cluster = picture.members is not None
    notes = _hints(report)
    if picture.lanes_left_out:
        shown = counted(len(picture.lanes), "task")
        others = "the others in the order of their registration"
        order = "those that the most members ran" if is_cluster else others
        notes.append(
            f"Shown are {shown}: first those with violations, then {order}; "
            f"{picture.lanes_left_out:,} more are left out."
        )
    legend = _CLUSTER_LEGEND if is_cluster else _LEGEND
    yield from _card(report, picture, "The whole trace", notes + _notes(picture), legend)


def _hints(report: Report) -> list[str]:
    hints = ["Point at a mark to read what it is."]
    return [*hints, "A number leads to its violation."] if report.shown else hints


def _card(
    report: Report, picture: Picture, label: str, notes: list[str], legend: dict[str, str]
) -> Iterator[str]:
    """A picture of the whole time with its legend."""
    yield '<div class="card">'
    yield _figure(report, picture, label, notes, _lane_px(picture))
    items = (
        f'<li><svg viewBox="0 0 22 14" aria-hidden="true">{mark}</svg>{words}</li>'
        for words, mark in legend.items()
    )
    yield f'<ul class="legend">{"".join(items)}</ul></div>'


def _lane_px(picture: Picture) -> int:
    if picture.members is None:
        return _OVERVIEW_LANE_PX
    return _MEMBER_LANE_PX if picture.members.lanes else _CLUSTER_LANE_PX


def _notes(picture: Picture) -> list[str]:
    """What is not drawn one by one."""
    notes = []
    if picture.is_thinned:
        notes.append("Marks of one kind that lie close together are drawn as one, which says how many it is.")
    if crowded := sum(lane.dues is None for lane in picture.lanes.values()):
        notes.append(f"The dues of {counted(crowded, 'task')} lie too close together to be drawn.")
    return notes


def _figure(report: Report, picture: Picture, label: str, notes: list[str], lane_px: int) -> str:
    drawing = svg(picture, report.zone, label=label, lane_px=lane_px, chain=report.chain)
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
