"""The time line: what ran in each part of a span and what is due in it, lane by lane. Pure.

The browser says which span, and which lanes it has room for. The history counts the runs of each part of the
span, so a lane has a bounded number of shapes, however much ran. `timeline.js` draws them, and writes the
same into a table, for those who do not see the picture.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

import msgspec

from duly.daemon.views import MISSES
from duly.instant import DAY_US, MINUTE_US, Instant, instant_of
from duly.store.history import MissBucket, RunBucket, Span
from duly.verify.reporting.axis import TimeAxis
from duly.web import formatting, models
from duly.web.formatting import Moment
from duly.web.source import Buckets, Lane, Picture

MOST_LANES = 60
"""Lanes of one answer."""
_MOST_PARTS = 600
_MOST_DUES = 120
"""Of a lane; if there are more, they are a band."""
_LEAST_US, _MOST_US = MINUTE_US, 400 * DAY_US
_TONES: Mapping[str | None, str] = {
    None: "busy",
    "success": "good",
    "interrupted": "warn",
    "cancelled": "warn",
}


class TickJson(msgspec.Struct):
    at_us: int
    label: str
    kind: str
    """hour, day or dst."""


class RunsJson(msgspec.Struct):
    """The runs of one part of a lane that ended alike."""

    tone: str
    count: int
    first_us: int
    last_us: int
    word: str
    href: str
    """The page of the only run, or a list of them."""


class LaneMissesJson(msgspec.Struct):
    count: int
    first_us: int
    word: str


class LaneJson(msgspec.Struct, kw_only=True):
    id: str
    href: str
    tone: str
    word: str
    """Its state."""
    why_href: str
    usual_us: int | None
    """How long a run takes: the 50th percentile, and the 95th."""
    long_us: int | None
    runs: list[RunsJson]
    misses: list[LaneMissesJson]
    dues: list[int]
    is_often: bool = False
    """Whether there are more dues than those."""
    summary: str


class TimelineJson(msgspec.Struct, kw_only=True):
    from_us: int
    to_us: int
    now_us: int
    first: int
    """Which lane is the first of these."""
    total: int
    """Lanes there are, without the quiet ones unless those were asked for."""
    quiet: int
    """Services that simply run."""
    ticks: list[TickJson]
    lanes: list[LaneJson]
    fault: str | None


def span_of(query: Mapping[str, str], now_us: Instant) -> Span:
    """The span that a query asks for: from then to then, or of so many microseconds around *now_us*.

    If that makes no sense, a day before and after.
    """
    from_us, to_us, width_us = (
        formatting.whole_number(query.get(name, "")) for name in ("from", "to", "span")
    )
    if from_us is None or to_us is None:
        half_us = (2 * DAY_US if width_us is None else width_us) // 2
        from_us, to_us = now_us - half_us, now_us + half_us
    if not _LEAST_US <= to_us - from_us <= _MOST_US:
        from_us, to_us = now_us - DAY_US, now_us + DAY_US
    parts = formatting.whole_number(query.get("parts", "")) or 0
    return Span(from_us, to_us, max((to_us - from_us) // (min(parts, _MOST_PARTS) or 240), 1))


def lanes_of(picture: Picture, query: Mapping[str, str]) -> tuple[int, Sequence[Lane], int, int]:
    """The number of the first lane that is asked for, those lanes, how many there are, how many are quiet."""
    lanes = picture.lanes()
    quiet = sum(lane.is_quiet for lane in lanes)
    if "all" not in query:
        lanes = [lane for lane in lanes if not lane.is_quiet] or lanes
    text = query.get("q", "").casefold()
    lanes = [lane for lane in lanes if text in lane.id.casefold()] if text else lanes
    first = min(formatting.whole_number(query.get("first", "")) or 0, max(len(lanes) - 1, 0))
    count = min(formatting.whole_number(query.get("count", "")) or 30, MOST_LANES)
    return first, lanes[first : first + count], len(lanes), quiet


def timeline_of(
    picture: Picture,
    span: Span,
    shown: tuple[int, Sequence[Lane], int, int],
    found: Buckets,
) -> TimelineJson:
    first, lanes, total, quiet = shown
    lane_of = {timer: lane.id for lane in lanes for timer in lane.timers}
    runs: dict[str, list[RunBucket]] = {lane.id: [] for lane in lanes}
    misses: dict[str, list[MissBucket]] = {lane.id: [] for lane in lanes}
    for bucket in found.runs:
        runs[bucket.service].append(bucket)
    for miss in found.misses:
        misses[lane_of[miss.timer]].append(miss)
    return TimelineJson(
        from_us=span.from_us,
        to_us=span.to_us,
        now_us=picture.moment.now_us,
        first=first,
        total=total,
        quiet=quiet,
        ticks=list(_ticks(TimeAxis(span.from_us, span.to_us, picture.moment.zone))),
        lanes=[_lane(picture, lane, span, runs[lane.id], misses[lane.id]) for lane in lanes],
        fault=found.fault,
    )


def _lane(
    picture: Picture, lane: Lane, span: Span, runs: Sequence[RunBucket], misses: Sequence[MissBucket]
) -> LaneJson:
    moment = picture.moment
    ahead = span._replace(from_us=max(span.from_us, moment.now_us))
    dues = picture.dues(lane.id, ahead, _MOST_DUES + 1) if span.to_us > moment.now_us else []
    usual_us, long_us = models.usual_lengths(lane.lengths_us)
    return LaneJson(
        id=formatting.visible(lane.id),
        href=lane.href,
        tone=lane.mark.tone,
        word=lane.mark.word,
        why_href=lane.why_href,
        usual_us=usual_us,
        long_us=long_us,
        runs=[_runs(bucket, span, moment) for bucket in sorted(runs, key=lambda one: one.first_us)],
        misses=[
            LaneMissesJson(miss.number, miss.first_us, MISSES.get(miss.reason, miss.reason))
            for miss in misses
        ],
        dues=dues[:_MOST_DUES],
        is_often=len(dues) > _MOST_DUES,
        summary=_summary(runs, misses, dues),
    )


def _runs(bucket: RunBucket, span: Span, moment: Moment) -> RunsJson:
    is_running = bucket.last_us is None
    mark = formatting.result_mark(bucket.result, is_running=is_running)
    part_us = span.from_us + bucket.part * span.width_us
    query = {"service": bucket.service, "from": part_us, "to": part_us + span.width_us}
    if bucket.number == 1:
        href = formatting.run_href(bucket.run, bucket.machine)
    else:
        href = formatting.with_query("/runs", query | {"result": bucket.result or "running"})
    return RunsJson(
        _TONES.get(bucket.result, "bad"),
        bucket.number,
        bucket.first_us,
        moment.now_us if bucket.last_us is None else max(bucket.last_us, bucket.first_us),
        mark.word,
        href,
    )


def _summary(runs: Iterable[RunBucket], misses: Iterable[MissBucket], dues: Sequence[Instant]) -> str:
    ran = sum(bucket.number for bucket in runs)
    failed = sum(bucket.number for bucket in runs if _TONES.get(bucket.result, "bad") == "bad")
    missed = sum(miss.number for miss in misses)
    parts = [f"{ran:,} ran"]
    parts += [f"{failed:,} failed"] if failed else []
    parts += [f"{missed:,} missed"] if missed else []
    often = f"more than {_MOST_DUES}" if len(dues) > _MOST_DUES else str(len(dues))
    parts += [f"{often} due"] if dues else []
    return ", ".join(parts)


def _ticks(axis: TimeAxis) -> Iterator[TickJson]:
    for face in axis.ticks():
        is_day = face.hour == face.minute == face.second == 0
        label = f"{face:%a} {face.day} {face:%b}" if is_day else f"{face:%H:%M:%S}".removesuffix(":00")
        yield TickJson(instant_of(face), label, "day" if is_day else "hour")
    for at_us, by in axis.clock_changes():
        length = formatting.length(abs(by) // timedelta(microseconds=1))
        yield TickJson(at_us, f"clocks {'+' if by > timedelta(0) else '−'}{length}", "dst")
