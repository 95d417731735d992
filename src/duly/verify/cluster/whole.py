"""The cluster as a whole: who held which shard, in the order of terms, and which list was in effect when.

The next holder of a shard knows things that the one before it cannot tell: that its lease had run out, or
that it was silent for ever after. From both together follows how each tenure ended.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from duly.verify.cluster.lives import (
    TOLERANCE_US,
    Activity,
    Ending,
    Life,
    Published,
    Recording,
    Run,
    Tenure,
    by_task,
)
from duly.verify.trace import Crash, Header, Position, TraceError, micros, zone_of
from duly.verify.wording import Wording


class Whole:
    """All recordings of one cluster."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        headers = [recording.header for recording in recordings]
        _check_agreement(recordings)
        self.tz, self.shards = headers[0].tz, headers[0].shards
        self.words = Wording(zone_of(self.tz))
        self.failover_us = micros(max(header.failover_ms for header in headers))
        ticks_us = [micros(header.tick_ms) for header in headers]
        self.tick_us = max(ticks_us) if all(ticks_us) else None
        """How long a member may be frozen, at most, without anybody noticing; None if that is not known."""
        self.lives = [life for recording in recordings for life in recording.lives]
        self.horizon_us = max((life.last.at_us for life in self.lives), default=0)
        self.activities: list[Activity] = [each for recording in recordings for each in recording.activities]
        self._rank_servers()
        self.tenures = self._tenures()
        self.editions = self._editions()
        self.gaps = self._gaps()
        """How many terms before a tenure are in no trace although no list explains them."""
        self.anew = self._anew()
        """Tenures from which on each task begins anew: what became of it before cannot be known."""
        self.is_partial = bool(self.gaps) and len({header.member for header in headers}) == 1
        """Whether others must have been there whose traces are not here."""
        self.runs: dict[str, list[Run]] = defaultdict(list)
        for recording in recordings:
            for run in recording.runs:
                self.runs[run.task].append(run)

    @property
    def tasks(self) -> list[str]:
        """Every task that was ever in a list, or ran."""
        listed = (task for edition in self.editions for task in edition.regs)
        return list(dict.fromkeys((*listed, *self.runs)))

    @property
    def dead(self) -> set[Life]:
        """The lives that ended in a death: told, or silent for ever while others took what they held."""
        silent = {
            tenure.life
            for tenures in self.tenures.values()
            for tenure in tenures
            if tenure.next is not None
            and tenure.ending is Ending.OPEN
            and not tenure.life.is_heard_after(tenure.next.taken.at_us)
        }
        return silent | {life for life in self.lives if life.died is not None}

    def edition(self, key: tuple[int, int]) -> Published | None:
        """The list with this key; the latest, if there are several."""
        return next((each for each in reversed(self.editions) if each.key == key), None)

    def is_list_in_doubt(self, task: str, tenure: Tenure) -> bool:
        """Whether nobody knows if there was a newer list than *tenure*'s, in which *task* is another.

        Those who have the older list leave it alone then. Nobody recorded that list, or another server
        answers, and may have forgotten it, or not.
        """
        if tenure in self.doubtful:
            return True
        own = self.edition(tenure.list_key)
        if own is None or own.is_told:
            return False
        return any(
            each.reign < own.reign and each.number > own.number and each.regs.get(task) != own.regs.get(task)
            for each in self.editions
        )

    def _rank_servers(self) -> None:
        """Put the servers that answered into their order, by when each was first heard of."""
        tenures = [each for recording in self.recordings for each in recording.tenures]
        editions = [each for recording in self.recordings for each in recording.editions]
        heard = [(each.taken.at_us, each.server) for each in tenures]
        heard += [(each.position.at_us, each.server) for each in editions]
        heard.sort()
        servers = list(dict.fromkeys(server for _, server in heard))
        for tenure in tenures:
            tenure.reign = servers.index(tenure.server)
        for edition in editions:
            edition.reign = servers.index(edition.server)
        self.reigns = len(servers)
        first_us = {server: at_us for at_us, server in reversed(heard)}
        last_us = {server: at_us for at_us, server in heard}
        self._server_changes = [
            (min(last_us[old], first_us[new]), first_us[new]) for old, new in pairwise(servers)
        ]
        """When each server came to answer: after the first of these times, and before the second."""

    def _tenures(self) -> dict[int, list[Tenure]]:
        shards: dict[int, list[Tenure]] = defaultdict(list)
        for recording in self.recordings:
            for tenure in recording.tenures:
                shards[tenure.shard].append(tenure)
        for tenures in shards.values():
            tenures.sort(key=lambda each: (each.reign, each.term, each.taken.at_us))
            for tenure, following in pairwise(tenures):
                tenure.next, following.before = following, tenure
            for tenure in tenures:
                tenure.cut_us = self._cut_us(tenure)
        return shards

    def _gaps(self) -> dict[Tenure, int]:
        gaps: dict[Tenure, int] = {}
        for tenures in self.tenures.values():
            term, edition = 0, 0
            for tenure in tenures:
                missing = tenure.term - term - 1 - max(tenure.edition - edition, 0)
                if missing > 0 and not tenure.is_anew:
                    gaps[tenure] = missing
                term, edition = tenure.term, tenure.edition
        return gaps

    def _anew(self) -> set[Tenure]:
        """Where another server answers, or a list was in effect of which no trace tells.

        Whoever brought that list did not live to hear of it, or its call failed for want of an answer.
        """
        anew: set[Tenure] = set()
        self.doubtful: set[Tenure] = set()
        """Those of an older list, of which nobody knows what the newest had."""
        known = {each.key for each in self.editions}
        for tenures in self.tenures.values():
            for tenure in tenures:
                before = tenure.before
                newest = max((number for reign, number in known if reign == tenure.reign), default=0)
                is_untold = any((tenure.reign, n) not in known for n in range(tenure.edition + 1, newest))
                is_older = before in self.doubtful and before.list_key == tenure.list_key
                if (is_untold or self._is_told_late(tenure)) and (tenure in self.gaps or is_older):
                    self.doubtful.add(tenure)
                first = before.edition + 1 if before is not None else tenure.edition
                is_after = any((tenure.reign, n) not in known for n in range(first, tenure.edition))
                if tenure.is_anew or tenure in self.doubtful or (before is not None and is_after):
                    anew.add(tenure)
        return anew

    def _is_told_late(self, tenure: Tenure) -> bool:
        """Whether a newer list may have been in effect, known only from those who took by it later."""
        return any(
            each.key > tenure.list_key
            and each.reign == tenure.reign
            and not each.is_told
            and each.called_us is not None
            and each.called_us - TOLERANCE_US <= tenure.taken.at_us <= each.position.at_us
            for each in self.editions
        )

    def _cut_us(self, tenure: Tenure) -> int | None:
        """When *tenure* was cut off; None if it was given away, taken by a newer list, or goes on."""
        following, life = tenure.next, tenure.life
        latest_us = following.taken.at_us if following is not None else self.horizon_us
        if tenure.ending in {Ending.LOST, Ending.DIED}:
            assert tenure.ended is not None
            if tenure.ending is Ending.LOST and _is_let_go(tenure, awake_us(life, tenure.ended.at_us)):
                return None  # its runs went on away, up to the loss
            ended_us = min(tenure.ended.at_us, latest_us)
            return ended_us if tenure.ending is Ending.DIED else awake_us(life, ended_us)
        if following is None:
            return None
        if tenure.ending is Ending.GIVEN and tenure.reign != following.reign:
            return None  # another server may have forgotten by whom it was held, and that it was given up
        is_silent = tenure.ending is Ending.OPEN and not life.is_heard_after(latest_us)
        if following.origin != "lost" and not (is_silent and following.life is not life):
            return None
        if not is_silent:
            return awake_us(life, latest_us)
        # Nobody knows how long it lived on in silence. It may have written a start that it never made, so
        # it counts as alive for as long as that is no offence; and how its last runs ended may be lost.
        silence_us = micros(life.header.tick_ms) + TOLERANCE_US if life.header.tick_ms else self.delta_us
        return max(min(life.last.at_us + min(silence_us, self.delta_us), latest_us), life.last.at_us)

    def _editions(self) -> list[Published]:
        """The lists that were in effect: as told, or as those had them who took shards under them."""
        told = [each for recording in self.recordings for each in recording.editions]
        keys = {each.key for each in told}
        for tenures in self.tenures.values():
            for tenure in tenures:
                if not tenure.edition:
                    tenure.edition = _edition_by_list(tenure, told)
                if tenure.list_key not in keys:
                    keys.add(tenure.list_key)
                    regs, called_us = by_task(tenure.regs), self._called_us(tenure)
                    untold = Published(
                        tenure.edition, regs, tenure.taken, called_us, tenure.life, is_told=False
                    )
                    untold.server, untold.reign = tenure.server, tenure.reign
                    told.append(untold)
        return sorted(told, key=lambda each: (each.key, each.position.at_us))

    def _called_us(self, tenure: Tenure) -> int | None:
        """When the first call began that may have brought *tenure*'s list and did not live to tell of it."""
        calls = (each for recording in self.recordings for each in recording.unanswered)
        regs = by_task(tenure.regs)
        return min((at_us for at_us, brought in calls if brought == regs), default=None)

    def silent_us(self, life: Life) -> int | None:
        """Since when *life* was surely dead, by its silence; None if that cannot be said."""
        if life.died is not None:
            is_seen = isinstance(life.last.event, Crash)
            if is_seen or life.header.tick_ms:
                return life.last.at_us + (0 if is_seen else micros(life.header.tick_ms))
            return None
        if life.is_closed or life.is_stopped or not life.header.tick_ms:
            return None
        return life.last.at_us + micros(life.header.tick_ms) + TOLERANCE_US

    def is_out_of_sight(self, life: Life, at_us: int) -> bool:
        """Whether others may have taken *life* for dead at that time: it is, or it could not be heard."""
        if not life.is_heard_after(at_us):
            return not life.is_closed
        if any(
            from_us <= at_us and (to_us is None or at_us <= to_us) for from_us, to_us in life.out_of_touch
        ):
            return True
        awake_us = life.next_time_us(at_us)
        return any(loss.at_us >= at_us and loss.at_us - awake_us <= TOLERANCE_US for loss in life.losses)

    def is_cut_off_about(self, life: Life, end: Position, start_us: int, *, is_away: bool) -> bool:
        """Whether *life* may have failed to tell of *end* before somebody started at *start_us*.

        *is_away*: it did not hold the shard any more by then, and had to report it.
        """
        if life.failed_stop is not None and life.failed_stop.line > end.line:
            return True
        from_us, to_us = end.at_us - self.failover_us, end.at_us + max(self.failover_us, self.persist_us)
        if any(from_us <= loss.at_us <= to_us for loss in life.losses):
            return True
        if any(span_from <= to_us and (to is None or to >= from_us) for span_from, to in life.out_of_touch):
            return True
        if start_us > to_us + self.failover_us or life.is_closed:
            return False
        if is_away and not life.is_heard_after(end.at_us + self.failover_us):
            return True
        sign_us = life.next_sign_us(end.line)
        return sign_us is None or sign_us > start_us

    def is_forgotten(self, life: Life, end: Position, start_us: int) -> bool:
        """Whether another server may have forgotten that *life* told of *end*, before a start at *start_us*.

        It came to answer when *life* was gone, and whoever holds the shard had not heard of the end yet.
        """
        from_us, to_us = max(end.at_us, life.last.at_us) - TOLERANCE_US, end.at_us + self.failover_us
        if start_us > to_us + self.failover_us:
            return False
        return any(
            max(after_us, from_us) <= min(before_us, to_us, start_us)
            for after_us, before_us in self._server_changes
        )

    def header(self, store: Literal["fresh", "unknown"], window_us: int) -> Header:
        """The header of a trace of one task."""
        headers = [recording.header for recording in self.recordings]
        per_task_ms = max(header.delta_per_task_ms for header in headers)
        most = max((len(edition.regs) for edition in self.editions), default=1)
        return Header(
            v=headers[0].v,
            tz=self.tz,
            store=store,
            delta_ms=max(header.delta_ms for header in headers) + per_task_ms * max(most - 1, 0),
            delta_per_task_ms=per_task_ms,
            persist_window_ms=window_us / 1000,
        )

    @property
    def delta_us(self) -> int:
        """How long what is owed may take."""
        return micros(min(recording.header.delta_ms for recording in self.recordings))

    @property
    def persist_us(self) -> int:
        """How long the end of a run may take to be written."""
        return micros(max(recording.header.persist_window_ms for recording in self.recordings))

    @property
    def store(self) -> Literal["fresh", "unknown"]:
        """Whether the cluster is known to have had no tasks before."""
        return "fresh" if any(each.header.store == "fresh" for each in self.recordings) else "unknown"


def _edition_by_list(tenure: Tenure, told: Sequence[Published]) -> int:
    """Under which edition a shard was taken by a member that does not say: the latest with its list."""
    regs, by_us = by_task(tenure.regs), tenure.taken.at_us + TOLERANCE_US
    same = [
        each.number
        for each in told
        if each.position.at_us <= by_us and each.regs == regs and each.reign == tenure.reign
    ]
    return max(same, default=0)


def _is_let_go(tenure: Tenure, by_us: int) -> bool:
    """Whether the shard was free before that time, and another member took it: only its runs were lost.

    A newer list had taken it, or its own member let go of it, without a word, to bring another list.
    """
    following = tenure.next
    if following is None or following.origin == "lost":
        return False
    is_free = following.list_key > tenure.list_key or tenure.is_list_left
    return is_free and following.taken.at_us < by_us


def awake_us(life: Life, at_us: int) -> int:
    """When *life*, cut off at *at_us*, could last do anything: what is frozen does not even tick."""
    sign_us, tick_us = life.last_sign_us(at_us), micros(life.header.tick_ms)
    return sign_us if tick_us and at_us - sign_us > tick_us + TOLERANCE_US else at_us


def _check_agreement(recordings: Sequence[Recording]) -> None:
    first = recordings[0].header
    for recording in recordings:
        header, line = recording.header, recording.first_line
        if header.tz != first.tz:
            reason = f'member "{header.member}" has the zone {header.tz}, and "{first.member}" {first.tz}'
            raise TraceError(line, f"{reason}: are they of one cluster?")
        if header.shards != first.shards:
            reason = (
                f'member "{header.member}" has {header.shards} shards, and "{first.member}" {first.shards}'
            )
            raise TraceError(line, f"{reason}: are they of one cluster?")
