"""What is told of a verification, as one object for machines (`duly verify --json`)."""

from datetime import tzinfo
from typing import Any

import msgspec

from duly.verify.dues import face_at
from duly.verify.properties import Outcome, Violation
from duly.verify.reporting.report import Report, caveats, decisive
from duly.verify.trace import Edition, Event, InitStart
from duly.verify.worlds import LONG_AGO_US


def as_dict(report: Report) -> dict[str, Any]:
    """The whole report for machines.

    - verdict: holds, violated or inconclusive, the worst of all; exit_code: that of the command
    - files: as read; impl, timezone: as the header has them
    - events, starts, crashes: how many; from, to: the first and the last time, ISO 8601 in the zone, or null
    - properties: in the model's order: id, words, verdict, checked, open (deadlines beyond the end),
      violated, doubtful (objections after a fault of the trace, not held against the scheduler)
    - violations: at most a hundred of each property: property, task (or null), at, reason, file and line at
      which it became certain, evidence: file, line, at, decisive, event (as in the trace; a list is counted)
    - gaps: when nothing was recorded: from, to, each ISO 8601 in the zone, or null where that is not known
    - faults: at most a hundred: file, line, reason, unknown_event; fault_count: how many there are
    - caveats: why the verdict says less than it could, as sentences
    - targets: null, or how the dues and the runs could be matched: targets, matched, excused (by reason),
      missed (at most a hundred sentences), runs, causes (how many runs for each), unaccounted (sentences),
      refused (or empty), dues (how many were owed a run: ran, lost and cut_off together), ran, lost, cut_off
    """
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


def _event_dict(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    if isinstance(event, InitStart | Edition):  # the list may be long, and stands in the trace
        del fields["regs"]
        fields["tasks"] = len(event.regs)
    return fields


def _place_dict(report: Report, line: int) -> dict[str, Any]:
    return report.chain.place(line)._asdict()


def _moment(at_us: int | None, zone: tzinfo) -> str | None:
    return None if at_us is None or at_us <= LONG_AGO_US else face_at(at_us, zone).isoformat()
