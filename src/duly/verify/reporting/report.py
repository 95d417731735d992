"""What a verification shows, as lines of text for people.

Everything here is a pure function of the outcome, the header and the names of the files. A line of text is a
row of pieces, each with a role. The printer decides on colours, and escapes every piece: the names of tasks
come from the trace and may hold anything. Nothing here knows a terminal.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from duly.formatting import counted
from duly.verify import trace
from duly.verify.dues import face_at
from duly.verify.properties import LIVENESS, Outcome, Verdict, Violation, instant_text
from duly.verify.targets import Account
from duly.verify.trace import Header, Position, TraceEvent, micros, zone_of
from duly.verify.worlds import LONG_AGO_US

MOST_SHOWN = 10
"""Violations of one property, and faults of the trace, that are shown in full."""

GROUPS = {
    "S": "Safety: what must never happen",
    "L": "Liveness: what must happen in time",
    "T": "Theorems: what follows from these, checked apart",
    "V": "Timers: what a daemon owes them",
    "C": "Cluster: what its members must not do to each other",
}


class TextRole(StrEnum):
    """What a piece of text is for."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    FAINT = "faint"
    STRONG = "strong"


ROLES = {Verdict.HOLDS: TextRole.GOOD, Verdict.VIOLATED: TextRole.BAD, Verdict.INCONCLUSIVE: TextRole.UNSURE}


class Piece(NamedTuple):
    text: str
    role: TextRole = TextRole.PLAIN


TextLine = tuple[Piece, ...]


class LinePlace(NamedTuple):
    """Where a line stands: in which file, and there at which number."""

    file: str
    line: int


@dataclass(slots=True)
class Chain:
    """The files that were read one after the other, as if they were one; *unit* is what a line is called."""

    unit: str = "line"
    names: list[str] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)

    def begin(self, name: str, first_line: int) -> None:
        """The next file is *name*; its first line has the number *first_line* in the whole."""
        self.names.append(name)
        self._firsts.append(first_line)

    def place(self, line: int) -> LinePlace:
        """Where the line with number *line* in the whole stands."""
        index = max(bisect_right(self._firsts, line) - 1, 0)
        return (
            LinePlace(self.names[index], line - self._firsts[index] + 1)
            if self.names
            else LinePlace("", line)
        )

    def words(self, line: int) -> str:
        """The same, to be read; the file is named only where there are several."""
        place = self.place(line)
        words = f"{self.unit} {place.line}"
        return f"{place.file} {words}" if len(self.names) > 1 else words


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """One thing that went wrong, with its number in the report; often several properties object to it."""

    number: int
    violations: list[Violation]

    @property
    def task(self) -> str | None:
        return self.violations[0].task

    @property
    def at_us(self) -> int:
        return self.violations[0].at_us

    @property
    def evidence(self) -> list[Position]:
        """The events that show it, each once."""
        by_line = {position.line: position for each in self.violations for position in each.evidence}
        return [by_line[line] for line in sorted(by_line)]

    @property
    def is_liveness(self) -> bool:
        """Whether it is about something that did not happen in time."""
        return any(each.property in LIVENESS for each in self.violations)

    @property
    def objections(self) -> list[tuple[str, str]]:
        """The properties and what each says; those that say the same stand together."""
        names: dict[str, list[str]] = {}
        for each in self.violations:
            names.setdefault(each.reason, []).append(each.property)
        return [(", ".join(properties), reason) for reason, properties in names.items()]


@dataclass(frozen=True)
class Report:
    """An outcome, and what is needed to put it into words."""

    outcome: Outcome
    header: Header
    chain: Chain = field(default_factory=Chain)
    account: Account | None = None
    """What came of matching targets and runs, if that was done."""

    @cached_property
    def zone(self) -> tzinfo:
        return zone_of(self.header.tz)

    @cached_property
    def shown(self) -> list[ReportFinding]:
        """The violations shown in full, as they became certain; those of one event are one finding."""
        counts: Counter[str] = Counter()
        findings: dict[tuple[int, str | None, int], ReportFinding] = {}
        order = {name: index for index, name in enumerate(self.outcome.properties)}
        for violation in sorted(self.outcome.violations, key=lambda each: (each.line, order[each.property])):
            counts[violation.property] += 1
            if counts[violation.property] <= MOST_SHOWN:
                key = violation.line, violation.task, violation.at_us
                # One event may break several properties: they are shown together, under one number.
                findings.setdefault(key, ReportFinding(len(findings) + 1, [])).violations.append(violation)
        return list(findings.values())

    @cached_property
    def not_shown(self) -> dict[str, int]:
        shown = Counter(each.property for finding in self.shown for each in finding.violations)
        counts = {name: self.outcome.tallies[name].violated - shown[name] for name in self.outcome.properties}
        return {name: count for name, count in counts.items() if count > 0}

    @property
    def verdict(self) -> Verdict:
        """The worst of all, the matching of targets included."""
        is_whole = not self.outcome.fault_count and not self.outcome.gaps
        is_blamed = self.account is not None and not self.account.is_right and is_whole
        return Verdict.VIOLATED if is_blamed else self.outcome.overall

    @property
    def exit_code(self) -> int:
        """0: nothing against the scheduler; 1: a violation; 2: the trace has a fault, a gap or no event."""
        if self.verdict is Verdict.VIOLATED:
            return 1
        return 2 if self.outcome.fault_count or self.outcome.gaps or not self.outcome.events else 0


def event_text(event: TraceEvent, zone: tzinfo) -> str:
    """An event in a few words: its name in the trace, and what sets it apart."""
    name = type(event).__name__
    match event:
        case trace.RunStart(id=task, run=run):
            return f"{name} {task}{_run(run)}"
        case trace.RunEnd(id=task, run=run, ok=ok):
            return f"{name} {task}{_run(run)}: {'succeeded' if ok else 'failed'}"
        case trace.Missed(id=task, due=due):
            return f"{name} {task}, due {instant_text(micros(due), zone)}"
        case trace.InitStart(call=call, regs=regs):
            return f"{name} call {call}, {counted(len(regs), 'task')}"
        case trace.InitEnd(call=call, ok=ok, void=void) | trace.StopEnd(call=call, ok=ok, void=void):
            return f"{name} call {call}: {'given up' if void else 'returned' if ok else 'raised'}"
        case trace.StopStart(call=call):
            return f"{name} call {call}"
        case trace.TrustLost(runs=runs):
            return f"{name}: {counted(len(runs), 'run')} cut off"
        case trace.ListReconciled(generation=generation):
            return f"{name} generation {generation}"
        case trace.ClockStep(origin=origin):
            return f"{name} from {instant_text(micros(origin), zone)}"
        case _:
            return name


def _run(number: int | None) -> str:
    return "" if number is None else f", run {number}"


def decisive(violation: Violation) -> Position | None:
    """The event at which a violation became certain, if it is one of those that show it."""
    return next((position for position in violation.evidence if position.line == violation.line), None)


class Exhibit(NamedTuple):
    where: str
    when: str
    what: str
    is_decisive: bool


def exhibits(report: Report, finding: ReportFinding) -> Iterator[Exhibit]:
    """The evidence for a finding. What did not happen is shown by the line at which it was too late."""
    line = finding.violations[0].line
    for position in finding.evidence:
        when, what = instant_text(position.at_us, report.zone), event_text(position.event, report.zone)
        yield Exhibit(report.chain.words(position.line), when, what, position.line == line)
    if all(position.line != line for position in finding.evidence):
        what = "by then it was too late" if finding.is_liveness else "by then it was certain"
        yield Exhibit(report.chain.words(line), "", what, is_decisive=True)


def caveats(report: Report) -> list[str]:
    outcome = report.outcome
    said = []
    if unfinished := sum(tally.open for tally in outcome.tallies.values()):
        lie, it = ("lies", "it") if unfinished == 1 else ("lie", "them")
        said.append(
            f"{counted(unfinished, 'deadline')} {lie} at or beyond the end of the trace; "
            f"a longer recording decides {it}."
        )
    if doubtful := sum(tally.doubtful for tally in outcome.tallies.values()):
        are = "is" if doubtful == 1 else "are"
        said.append(
            f"{counted(doubtful, 'objection')} after the first fault of the trace {are} not held against "
            "the scheduler."
        )
    if outcome.forgettings:
        said.append(
            "A server of the database answered that may have forgotten commits; what that can explain is not "
            "held against the scheduler."
        )
    if unknown := sum(tally.unknown for tally in outcome.tallies.values()):
        said.append(
            f"{counted(unknown, 'question')} cannot be answered by these traces: the trace of a node is "
            "missing or ends early, or the database forgot commits or had its clock set."
        )
    said += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in gap_sentences(report)]
    if not outcome.events:
        said.append("There is no event in the trace, so nothing can be said.")
    if outcome.torn_line is not None:
        place = report.chain.words(outcome.torn_line)
        said.append(f"The last line, {place}, is torn, as by a crash of its writer; it is left out.")
    if outcome.fault_count:
        said.append("The trace itself has faults, so no property is better than inconclusive.")
    return said


def gap_sentences(report: Report) -> list[str]:
    """When nothing was recorded, without full stops; the longest lists are cut."""
    gaps = report.outcome.gaps
    sentences = []
    for from_us, to_us in gaps[:MOST_SHOWN]:
        begin = " from an unknown time" if from_us is None else f" from {instant_text(from_us, report.zone)}"
        end = " to the end" if to_us is None else f" to {instant_text(to_us, report.zone)}"
        sentences.append(f"nothing was recorded{begin}{end}")
    if more := len(gaps) - len(sentences):
        sentences.append(f"nor in {counted(more, 'other gap')}")
    return sentences


def summary(report: Report) -> str:
    outcome = report.outcome
    parts = [
        counted(outcome.events, "event"),
        counted(outcome.starts, "start"),
        counted(outcome.crashes, "crash", "crashes"),
    ]
    if outcome.first_us is not None and outcome.last_us is not None:
        begin, end = (instant_text(each, report.zone) for each in (outcome.first_us, outcome.last_us))
        parts.append(f"from {begin} to {end}")
    return ", ".join(parts)


def text_lines(report: Report) -> Iterator[TextLine]:
    if report.account is not None and not report.account.refused:
        yield (Piece(report.account.headline(), TextRole.STRONG),)
    yield from _properties(report)
    for finding in report.shown:
        yield ()
        yield from _finding(report, finding)
    if report.not_shown:
        yield ()
        more = ", ".join(f"{count:,} of {name}" for name, count in report.not_shown.items())
        yield (Piece(f"More violations, not shown here: {more}."),)
    yield from _faults(report)
    yield ()
    for caveat in caveats(report):
        yield (Piece(caveat, TextRole.UNSURE),)
    overall = report.verdict
    yield from _account(report)
    yield (Piece(f"{summary(report)}: "), Piece(overall.value, ROLES[overall]), *_why_unsure(report))


def _why_unsure(report: Report) -> TextLine:
    if report.verdict is not Verdict.INCONCLUSIVE or not report.outcome.gaps:
        return ()
    return (Piece(f": {', '.join(gap_sentences(report))}", TextRole.UNSURE),)


def groups(outcome: Outcome) -> Iterator[tuple[str, list[str]]]:
    for initial, title in GROUPS.items():
        if names := [name for name in outcome.properties if name.startswith(initial)]:
            yield title, names


def _account(report: Report) -> Iterator[TextLine]:
    if report.account is not None:
        role = TextRole.PLAIN if report.account.is_right else TextRole.BAD
        for sentence in report.account.sentences():
            yield (Piece(sentence, role),)


def _properties(report: Report) -> Iterator[TextLine]:
    yield (Piece(f"{'':18}{'checked':>12}{'open':>8}{'violated':>10}", TextRole.FAINT),)
    for title, names in groups(report.outcome):
        yield (Piece(title, TextRole.STRONG),)
        for name in names:
            yield _property(report.outcome, name, report.outcome.properties[name])


def _property(outcome: Outcome, name: str, words: str) -> TextLine:
    tally, verdict = outcome.tallies[name], outcome.verdict(name)
    numbers = f"{tally.checked:>11,}{tally.open:>8,}{tally.violated:>10,}"
    return (
        Piece(f"  {name:4}"),
        Piece(f"{verdict.value:12} ", ROLES[verdict]),
        Piece(f"{numbers}  "),
        Piece(words, TextRole.FAINT if verdict is Verdict.HOLDS else TextRole.PLAIN),
    )


def _finding(report: Report, finding: ReportFinding) -> Iterator[TextLine]:
    label = f"{finding.number}. "
    for names, reason in finding.objections:
        yield Piece(f"{label}{names}: ", TextRole.BAD), Piece(reason)
        label = " " * len(label)
    rows = list(exhibits(report, finding))
    widest_where = max(len(row.where) for row in rows)
    widest_when = max(len(row.when) for row in rows)
    for where, when, what, is_decisive in rows:
        text = f"   {'>' if is_decisive else ' '} {where:{widest_where}}  {when:{widest_when}}  {what}"
        yield (Piece(text, TextRole.STRONG if is_decisive else TextRole.PLAIN),)


def _faults(report: Report) -> Iterator[TextLine]:
    outcome = report.outcome
    if not outcome.fault_count:
        return
    yield ()
    yield (Piece("Faults of the trace itself, for which no scheduler is to blame", TextRole.STRONG),)
    shown = outcome.faults[:MOST_SHOWN]
    for fault in shown:
        yield (Piece(f"  {report.chain.words(fault.line)}: ", TextRole.UNSURE), Piece(fault.reason))
    if more := outcome.fault_count - len(shown):
        yield (Piece(f"  and {more:,} more"),)


def as_dict(report: Report) -> dict[str, Any]:
    """The whole report for machines; docs/trace-format.md says what each key means."""
    outcome, header = report.outcome, report.header
    return {
        "verdict": report.verdict.value,
        "exit_code": report.exit_code,
        "files": report.chain.names,
        "impl": header.impl,
        "timezone": header.tz,
        "events": outcome.events,
        "starts": outcome.starts,
        "crashes": outcome.crashes,
        "from": _moment(outcome.first_us, report.zone),
        "to": _moment(outcome.last_us, report.zone),
        "properties": [_property_dict(outcome, name) for name in outcome.properties],
        "violations": [_violation_dict(report, violation) for violation in outcome.violations],
        "gaps": [
            {"from": _moment(gap.from_us, report.zone), "to": _moment(gap.to_us, report.zone)}
            for gap in outcome.gaps
        ],
        "faults": [
            {
                **_place_dict(report, fault.line),
                "reason": fault.reason,
                "unknown_event": fault.is_unknown_event,
            }
            for fault in outcome.faults
        ],
        "fault_count": outcome.fault_count,
        "caveats": caveats(report),
        "targets": None if report.account is None else report.account.as_dict(),
    }


def _property_dict(outcome: Outcome, name: str) -> dict[str, Any]:
    tally = outcome.tallies[name]
    return {
        "id": name,
        "words": outcome.properties[name],
        "verdict": outcome.verdict(name).value,
        "checked": tally.checked,
        "open": tally.open,
        "violated": tally.violated,
        "doubtful": tally.doubtful,
    }


def _violation_dict(report: Report, violation: Violation) -> dict[str, Any]:
    marked = decisive(violation)
    return {
        "property": violation.property,
        "task": violation.task,
        "at": _moment(violation.at_us, report.zone),
        "reason": violation.reason,
        **_place_dict(report, violation.line),
        "evidence": [
            {
                **_place_dict(report, position.line),
                "at": _moment(position.at_us, report.zone),
                "decisive": position is marked,
                "event": _event_dict(position.event),
            }
            for position in violation.evidence
        ],
    }


def _event_dict(event: TraceEvent) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    if isinstance(event, trace.InitStart):  # the list may be long, and stands in the trace
        del fields["regs"]
        fields["tasks"] = len(event.regs)
    return fields


def _place_dict(report: Report, line: int) -> dict[str, Any]:
    return report.chain.place(line)._asdict()


def _moment(at_us: int | None, zone: tzinfo) -> str | None:
    return None if at_us is None or at_us <= LONG_AGO_US else face_at(at_us, zone).isoformat()
