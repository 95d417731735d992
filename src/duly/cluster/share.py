"""The share: the tasks that a member holds for now, and what becomes of them as the board changes.

It stands between the engine's book and what was read off the board, and touches neither the board nor the
lease: whoever calls it holds the poller's `writing`. Tasks are admitted with the shards that were taken, and
dismissed with those that are lost (their runs are cut off) or given away (their runs go on here, and their
ends are noted for a report).
"""

from collections.abc import Iterable, Sequence

import msgspec

from duly.cluster.finding import Found, Knowledge, change_by, claim_by, ended, found, up_to
from duly.cluster.holdings import TaskHoldings
from duly.cluster.listing import Listing
from duly.core.reconciliation import Reconciliation
from duly.core.record import COLUMNS, task_from
from duly.core.registration import Callback
from duly.core.schedule import Schedules, minute_begun
from duly.core.task import Task, cut_off, registered, released
from duly.engine.book import Book, Entry
from duly.engine.custody import tasks_read
from duly.engine.poller import Poller
from duly.engine.runs import Run
from duly.errors import TaskTryDeserializeError
from duly.events import Announcer, described
from duly.instant import Instant
from duly.marks import mark
from duly.store.board import AwayEnd, Change, Reported, Row, Stored, Taken, View, shard_of

_ID, _NAME = COLUMNS.index("id"), COLUMNS.index("name")


class Share:
    """What one member holds, in the book of its *poller*."""

    def __init__(
        self, book: Book[Task], poller: Poller[Task], holdings: TaskHoldings, announcer: Announcer
    ) -> None:
        self._book = book
        self._poller = poller
        self._holdings = holdings
        self._announce = announcer.announce
        self.schedules = Schedules(book.zone)
        self.listing = Listing([], book.zone)
        self.known = Knowledge()
        self._server = ""
        """Which server of the board answered last."""
        self._superseded: dict[str, Instant] = {}
        """When the run began that was under way as a task came here, if it was registered anew since."""

    # --- what the board shows ---

    def heed(self, view: View) -> bool:
        """Account for what others did; whether runs had to be cut off for it. Hold `writing`."""
        self._note_server(view.server)
        is_cut = self._note_gone(view)
        self._note_ends(view.reported)
        alive = {seat.member for seat in view.seats if seat.is_alive}
        for name, (runner, _) in list(self._holdings.away.items()):
            if runner not in alive:
                self._note_death(name)
        return is_cut

    def _note_server(self, server: str) -> None:
        """Have ends reported again if another server answers: whoever waits for a run may do so for ever."""
        if self._server not in {"", server} and self.known.reported:
            mark("ends reported again")
            again = {(name, end.started_us): end for name, end in self.known.reported.items()}
            self.known.ends = again | self.known.ends
        self._server = server

    def _note_gone(self, view: View) -> bool:
        gone = self._holdings.gone(view)
        if not gone:
            return False
        # While the lease is good only a newer list can take shards away; its runs go on. Anything else
        # means that the board has forgotten, and others may run what we run.
        is_cut = view.edition == self._holdings.newest
        mark("shards gone")
        self.dismiss((hold.shard for hold in gone), is_cut=is_cut)
        reason = "they are held by another member" if is_cut else "a newer list took effect"
        event = "ShardsLost" if is_cut else "ShardsGiven"
        self._announce(event, shards=[list(hold) for hold in gone], reason=reason)
        self._poller.hasten()
        return is_cut

    def _note_ends(self, reported: Sequence[Reported]) -> None:
        ends = {(report.run_by, report.end.task_id, report.end.started_us): report.end for report in reported}
        for name, (runner, run) in list(self._holdings.away.items()) if ends else ():
            entry = self._book.entries[name]
            if (end := ends.get((runner, entry.task.id, run.started_us))) is not None:
                mark("away run ended")
                del self._holdings.away[name]
                after = ended(entry.task, run.started_us, end.ended_us, is_failed=end.is_failed)
                self._poller.change(entry, after)

    def _note_death(self, name: str) -> None:
        mark("away run cut off")
        del self._holdings.away[name]
        entry = self._book.entries[name]
        self._poller.change(entry, cut_off(entry.task))

    # --- lists ---

    def change_by(
        self, listing: Listing, stored: list[Stored], scheduler_id: str
    ) -> tuple[Reconciliation, Change]:
        """What *listing*, as a new edition, makes of all rows of the board."""
        records = [row.record for row in stored if not row.is_removed]
        tasks, unreadable = tasks_read(records, listing.registrations, self.schedules, "the database")
        rows = {row.record[_NAME]: row for row in stored}
        now_us = self._poller.now_us()
        return change_by(
            listing.registrations,
            rows,
            tasks,
            unreadable,
            member=self._holdings.member,
            known=self.known,
            now_us=now_us,
            minute_us=minute_begun(now_us, self._book.zone),
            schedule_of=self.schedules.of,
            scheduler_id=scheduler_id,
        )

    def claim_by(self, stored: Sequence[Stored]) -> Change:
        """What we know better than the rows of tasks that we do not hold, if the board has forgotten."""
        departed = self._book.departed
        names = (departed.keys() | self.known.remembered.keys()) - self._book.entries.keys()
        member = self._holdings.member
        ours = [row for row in stored if row.record[_NAME] in names or row.run_by == member]
        rows = [row for row in ours if not row.is_removed]
        tasks = [task for row in rows if (task := self._read(row)) is not None]
        return claim_by(
            stored,
            {task.name: task for task in tasks},
            [run.before for run in departed.values()],
            member=member,
            known=self.known,
        )

    def rename(self, stored: Iterable[Stored], put: Iterable[Row]) -> None:
        """Note under which ids the board has the tasks of runs that go on here: their ends are told by id."""
        ids = {row.record[_NAME]: row.record[_ID] for row in stored} | {
            row.task.name: row.task.id for row in put
        }
        in_flight = {name: entry.run for name, entry in self._book.entries.items()} | self._book.departed
        for name, run in in_flight.items():
            if run is not None and name in ids:
                run.before = msgspec.structs.replace(run.before, id=ids[name])

    def preserved(self, listing: Listing) -> Reconciliation:
        """What to tell of a list that was in effect already."""
        now_us = self._poller.now_us()
        tasks = [
            registered(
                id=0,
                name=item.name,
                schedule=self.schedules.of(item.expression.text),
                retry_delay_us=item.retry_delay_us,
                now_us=now_us,
                minute_us=now_us,
            )
            for item in listing.registrations
        ]
        return Reconciliation(tasks=tasks, preserved=tasks)

    # --- shards ---

    def admit(self, taken: Taken) -> None:
        """Take in the tasks of shards that were just taken."""
        self.note_running()
        for hold in taken.holds:
            self._holdings.terms[hold.shard] = hold.term
        came = {stored.record[_NAME] for stored in taken.stored if self._admit(stored)}
        self.known.ends = {key: end for key, end in self.known.ends.items() if key[0] not in came}

    def _admit(self, stored: Stored) -> bool:
        """Take in one task, unless it is not ours to run."""
        task = self._read(stored)
        if task is None:
            return False
        callback = self.listing.callback_for(task)
        if callback is None:
            mark("superseded task left alone")
            self._announce("TaskSkipped", taskName=task.name, reason="a newer list changed or removed it")
            return False
        find = found(stored, task, self._holdings.member, self.known)
        now = up_to(find.task, self._poller.now_us())
        entry = self._book.admit(now, callback, self._run_of(find, callback))
        if entry.run is not None and entry.run.started_us < now.registered_us:
            entry.run.is_superseded = True
            self._superseded[task.name] = entry.run.started_us
        if now is not task:
            self._book.change(entry, now)
        self.known.remembered.pop(task.name, None)
        self.known.put_back.pop(task.name, None)
        return True

    def _read(self, stored: Stored) -> Task | None:
        """The task in a row; None if it cannot be read."""
        try:
            return task_from(stored.record, self.schedules.of)
        except TaskTryDeserializeError as error:
            mark("unreadable row left alone")
            name = stored.record[_NAME]
            self._announce("StoreFault", error=f"task {name} is left alone: {described(error)}")
            return None

    def _run_of(self, find: Found, callback: Callback) -> Run[Task] | None:
        """The run under way: None if there is none, or if it is among those that departed from here."""
        task = find.task
        if find.runner in {None, self._holdings.member}:
            return None
        assert task.running_since_us is not None
        run = Run(task.name, callback, released(task), task.running_since_us)
        self._holdings.away[task.name] = (find.runner or 0, run)
        return run

    def dismiss(self, shards: Iterable[int], *, is_cut: bool) -> None:
        """Let go of the tasks in these shards: cut their runs off, or let them go on. Hold `writing`."""
        leaving = set(shards)
        names = (
            [name for name in self._book.entries if shard_of(name, self._holdings.shards) in leaving]
            if leaving
            else []
        )
        for name in names:
            self._note_unwritten(self._book.entries[name])
            self._superseded.pop(name, None)
            entry = self._book.dismiss(name)
            assert entry is not None
            self.known.remembered[name] = entry.task
            self._book.put_back.pop(name, None)
            is_away = self._holdings.away.pop(name, None) is not None
            if entry.run is None or is_away:
                continue
            if is_cut:
                self._abandon(entry.run)
            else:
                self._book.departed[name] = entry.run
        for shard in leaving:
            self._holdings.terms.pop(shard, None)

    def let_go(self, reason: str) -> None:
        """Dismiss everything; its runs go on. Hold `writing`."""
        if held := self._holdings.holds:
            self.dismiss((hold.shard for hold in held), is_cut=False)
            self._announce("ShardsGiven", shards=[list(hold) for hold in held], reason=reason)
            self._poller.hasten()

    def note_running(self) -> None:
        """Say what runs here, for the rows that name us as their runner."""
        running = {name: run.started_us for name, run in self._book.departed.items()}
        running |= {
            name: entry.run.started_us
            for name, entry in self._book.entries.items()
            if entry.run is not None and name not in self._holdings.away
        }
        self.known.running = running

    def note_called(self) -> None:
        """Have it written what runs have answered since their starts were written. Hold `writing`.

        If a minute began before the call, only we know that the call answered it.
        """
        for name, entry in self._book.entries.items():
            run = None if name in self._holdings.away else entry.run
            if run is not None and entry.task.answered_us > run.started_us:
                self._book.change(entry, entry.task)

    # --- ends ---

    def abandon_departed(self) -> None:
        """Cut off the runs of tasks that are not ours any more. Hold `writing`."""
        for run in self._book.departed.values():
            self._abandon(run)
        self._book.departed.clear()

    def _abandon(self, run: Run[Task]) -> None:
        self._poller.runs.abandon([run])
        if not run.ended_us:
            # If others believe us alive they would wait for it.
            self._note(run.name, AwayEnd.cut(run.before.id, run.started_us))

    def _note_unwritten(self, entry: Entry[Task]) -> None:
        """Note what became of a run, if the board does not know it and may have it as running here still."""
        task = entry.task
        if entry.run is not None or task.id not in self._book.unsaved:
            return
        if (put_back_us := self._book.put_back.get(task.name)) is not None:
            self.known.put_back[task.name] = put_back_us
            self._note(task.name, AwayEnd.cut(task.id, put_back_us))
        if (began_us := self._superseded.get(task.name)) is not None:
            # Nothing in the task tells of it; whoever holds it next is to know that it is over, no more.
            self._note(task.name, AwayEnd(task.id, began_us, began_us, is_failed=False))
        if task.running_since_us is None and task.last_attempt_us is not None:
            succeeded_us, failed_us = task.last_success_us or 0, task.last_failure_us or 0
            ended_us = max(succeeded_us, failed_us, task.last_attempt_us)
            is_failed = failed_us > succeeded_us
            self._note(task.name, AwayEnd(task.id, task.last_attempt_us, ended_us, is_failed=is_failed))

    def _note(self, name: str, end: AwayEnd) -> None:
        self.known.ends.setdefault((name, end.started_us), end)

    def note_parted(self, run: Run[Task], error: BaseException | None) -> None:
        """Note the end of a run whose task is not ours any more, to report it."""
        # A clock that was set back does not make it one that has no end.
        ended_us = max(run.ended_us, run.started_us)
        self._note(run.name, AwayEnd(run.before.id, run.started_us, ended_us, is_failed=error is not None))
