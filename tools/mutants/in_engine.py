"""Mutants of the engine: the order of writing and calling, what a fault leaves, runs that outlive their task."""

from tools.mutants.mutant import Edit, Mutant, mutant

POLLER, LOCAL = "engine/poller.py", "engine/local.py"
JOURNAL, BOOK = "engine/journal.py", "engine/book.py"
RUNS, TURNS, TASKS = "engine/runs.py", "engine/calls.py", "engine/tasks.py"

_WRITE = "            is_written = await self._journal.write([start.after for start in owed])\n"
_PUT_BACK = "            self.give_back(owed)\n            owed = ()\n"
_CLAIM = "        starts = await self._backend.claim("

OF_POLLER: tuple[Mutant, ...] = (
    mutant(
        "claim-after-start",
        LOCAL,
        _WRITE,
        "            self.begin_early(owed)\n" + _WRITE,
        wrong="The callback is called first and its start is written afterwards.",
        also=(
            Edit(POLLER, _CLAIM, "        self._backend.begin_early = self._begin_runs\n" + _CLAIM),
            Edit(POLLER, "        self._begin_runs(starts)\n", ""),
        ),
    ),
    mutant(
        "next-wave-not-begun",
        POLLER,
        "        if has_more:\n            self.wake()\n",
        "",
        wrong="Of a burst only the first wave starts, until something else wakes the poller.",
    ),
    mutant(
        "start-not-put-back",
        LOCAL,
        _PUT_BACK,
        "            owed = ()\n",
        wrong="A start whose write failed is forgotten.",
    ),
    mutant(
        "lost-acknowledgement-runs-twice",
        LOCAL,
        _PUT_BACK,
        "            pass\n",
        wrong="A start whose write was not acknowledged is carried out, and owed all the same.",
        also=(
            Edit(
                POLLER,
                "        self._begin_runs(starts)\n",
                "        self._begin_runs(starts)\n"
                "        for start in starts if self._backend.is_faulty else ():\n"
                "            self._backend.book.entries[start.before.name].task = start.before\n",
            ),
        ),
    ),
    mutant(
        "start-written-as-ended",
        LOCAL,
        "self._journal.write([start.after for start in owed])",
        "self._journal.write([self._rules.released(start.after) for start in owed])",
        wrong="The store does not know that a run is under way, so a crash before its end loses the due.",
    ),
    mutant(
        "minute-between-write-and-call-repeated",
        LOCAL,
        "            entry.task = task\n            self.book.look_at(entry)\n",
        "            self.book.look_at(entry)\n",
        wrong="A minute that begins between the writing of a start and its call is answered once more.",
    ),
    mutant(
        "stop-does-not-close",
        POLLER,
        "        if self.is_closed or not self._backend.on_call(run):",
        "        if not self._backend.on_call(run):",
        wrong="A start that is already written is carried out although a stop has been called.",
    ),
    mutant(
        "called-off-start-forgotten",
        LOCAL,
        "        self.book.change(entry, run.before)\n",
        "        self.book.change(entry, self._rules.released(entry.task))\n",
        wrong="A start that a stop called off counts as if it had been carried out.",
    ),
    mutant(
        "end-lost",
        LOCAL,
        "        self.book.change(entry, task)\n        self.book.look_at(entry)\n",
        "        entry.task = task\n        self.book.look_at(entry)\n",
        wrong="The end of a run is not written.",
    ),
    mutant(
        "due-while-running-lost",
        LOCAL,
        "        self.book.change(entry, task)\n        self.book.look_at(entry)\n",
        "        self.book.change(entry, task)\n",
        wrong="A due that came while the task was running is not looked at when the run ends.",
    ),
    mutant(
        "cancelled-run-counts-as-success",
        TASKS,
        "        if error is None:\n            return succeeded(task, run.ended_us)\n",
        "        if not isinstance(error, Exception):\n            return succeeded(task, run.ended_us)\n",
        wrong="A callback that exits or is cancelled counts as having succeeded.",
    ),
    mutant(
        "superseded-run-arms-retry",
        TASKS,
        "        if run.is_superseded:\n            return released(task)\n",
        "",
        wrong="A run from before an override that fails arms a retry under the new configuration.",
    ),
    mutant(
        "steps-back-unnoticed",
        LOCAL,
        "        if self._rules.minds(step):\n            self._since_step.append(step)\n",
        "",
        wrong="Nobody accounts for a clock that was set back.",
    ),
    mutant(
        "no-second-attempt-to-write",
        LOCAL,
        "        if (resume_us := self._journal.resume_us) is not None:\n            return resume_us\n",
        "        if self._journal.resume_us is not None:\n            return None\n",
        wrong="After a fault of the store nobody asks it again.",
    ),
)

_WHOLE = (
    "                changes = {entry.task.id: entry.task for entry in book.entries.values()} | changes\n"
)

OF_JOURNAL: tuple[Mutant, ...] = (
    mutant(
        "fault-taken-for-success",
        JOURNAL,
        '            mark("write failed")\n            self.emit_fault(error)\n            return False\n',
        '            mark("write failed")\n            self.emit_fault(error)\n            return True\n',
        wrong="Starts are carried out although writing them failed.",
    ),
    mutant(
        "ends-dropped-at-fault",
        JOURNAL,
        "            book.unsaved = ended | book.unsaved\n",
        "",
        wrong="Ends that could not be written are dropped.",
        also=(Edit(JOURNAL, _WHOLE, ""),),
    ),
    mutant(
        "pause-grows-for-ever",
        JOURNAL,
        "_LONGEST_PAUSE_US = 16 * SECOND_US\n",
        "_LONGEST_PAUSE_US = 3600 * SECOND_US\n",
        wrong="The pauses between attempts to write grow to an hour.",
    ),
)

OF_BOOK: tuple[Mutant, ...] = (
    mutant(
        "overridden-run-not-superseded",
        BOOK,
        '                mark("run outlives its registration")\n                entry.run.is_superseded = True\n',
        '                mark("run outlives its registration")\n',
        wrong="A run in flight when its task is overridden counts for the new configuration.",
    ),
    mutant(
        "run-of-removed-task-forgotten",
        BOOK,
        "            self.orphaned_runs[name] = entry.run\n",
        "",
        wrong="A removed task that comes back is started although its old run is still in flight.",
    ),
    mutant(
        "removed-task-written-again",
        BOOK,
        "        self.unsaved.pop(entry.task.id, None)\n        if entry.run is not None:\n",
        "        if entry.run is not None:\n",
        wrong="A task is written once more after a list has removed it.",
    ),
    mutant(
        "override-written-over",
        BOOK,
        "            entry.task = task\n            self.unsaved.pop(task.id, None)\n",
        "            entry.task = task\n",
        wrong="What the old configuration had yet to write is written over the new one.",
    ),
    mutant(
        "end-during-list-lost",
        BOOK,
        "        elif task.id not in self.unsaved:\n",
        "        elif task.id not in self.unsaved or self.unsaved.pop(task.id):\n",
        wrong="A run that ends while a list is being written never ended.",
    ),
    mutant(
        "interrupted-waits-for-due",
        "core/task.py",
        "    if task.interrupted or is_due or task.requested_us is not None:\n",
        "    if task.requested_us is not None:\n",
        wrong="What was interrupted is not looked at before the next due.",
    ),
    mutant(
        "removed-task-stays",
        BOOK,
        "        before, self.entries = self.entries, {}\n",
        "        before, self.entries = self.entries, dict(self.entries)\n",
        wrong="A task that a list removes goes on running.",
    ),
    mutant(
        "agenda-not-set-back",
        BOOK,
        "                self.change(entry, task)\n        self.set_agenda()\n",
        "                self.change(entry, task)\n",
        wrong="After a large step back tasks are looked at when they would have been without it.",
    ),
    mutant(
        "run-forgotten-by-failed-list",
        BOOK,
        "        self.orphaned_runs |= {name: entry.run for name, entry in in_flight.items() if entry.run is not None}\n",
        "",
        wrong="A run in flight when a list fails is forgotten, and its task started beside it.",
    ),
)

OF_RUNS: tuple[Mutant, ...] = (
    mutant(
        "run-never-over",
        RUNS,
        "            self._live.discard(run)\n            self._waiting.pop(run, None)\n            if not",
        "            if error is None:\n                self._live.discard(run)\n            if not",
        wrong="A run that failed is waited for for ever.",
    ),
    mutant(
        "stop-from-inside-waits-for-itself",
        "scheduler.py",
        "            await self._poller.runs.wait_for_ends(but_waiting=True)\n",
        "            await self._poller.runs.wait_for_ends(but_waiting=False)\n",
        wrong="A callback that calls stop waits for its own end.",
    ),
    mutant(
        "turns-not-exclusive",
        TURNS,
        "            while self._serving or self._begun[0] != number:",
        "            while self._begun[0] != number:",
        wrong="A second lifecycle call is served while the first still is.",
    ),
    mutant(
        "last-come-first-served",
        TURNS,
        "            while self._serving or self._begun[0] != number:",
        "            while self._serving or self._begun[-1] != number:",
        wrong="Of the lifecycle calls that wait, the latest is served first.",
    ),
)
