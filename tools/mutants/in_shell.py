"""Mutants of the outermost shell and of the stores: lifecycle calls, commits, syncs, rows."""

from tools.mutants.mutant import Mutant, mutant

TASK_BACKEND = "engine/task_backend.py"
SCHEDULER, SCHEMA, SQLITE, MEMORY = ("scheduler.py", "store/schema.py", "store/sqlite.py", "store/memory.py")

OF_LIFECYCLE: tuple[Mutant, ...] = (
    mutant(
        "failed-list-stays-active",
        SCHEDULER,
        "            self._shut_down_in_time()\n            self._state = SchedulerState.UNINITIALIZED\n",
        "            self._state = SchedulerState.UNINITIALIZED\n",
        wrong="A scheduler whose re-initialize failed goes on starting tasks.",
    ),
    mutant(
        "returns-before-commit",
        TASK_BACKEND,
        "            await self._store.replace(put=put, removed=removed)\n",
        "            __import__('asyncio').ensure_future(self._store.replace(put=put, removed=removed))\n",
        wrong="A list takes effect, and initialize returns, before it is written.",
    ),
    mutant(
        "stop-waits-for-no-run",
        SCHEDULER,
        "        await self._poller.runs.wait_for_ends(but_waiting=but_waiting)\n",
        "",
        wrong="Stop returns while callbacks are still running.",
    ),
    mutant(
        "stop-waits-for-no-initialize",
        SCHEDULER,
        "            async with self._turns.of(number):\n                self._is_stop_served = True\n",
        "            if True:\n                self._is_stop_served = True\n",
        wrong="Stop does not wait for an initialize that was called before it.",
    ),
    mutant(
        "stop-does-not-write-ends",
        TASK_BACKEND,
        "            await self._backend.flush()\n",
        "            self._book.unsaved.clear()\n",
        wrong="Ends that came in during a stop are not written.",
    ),
    mutant(
        "store-kept-after-failure",
        TASK_BACKEND,
        "            await self._end_history(is_written=False)\n            await self._store.close()\n            raise\n",
        "            await self._end_history(is_written=False)\n            raise\n",
        wrong="A first initialize that fails keeps the store locked.",
    ),
    mutant(
        "unreadable-task-begins-anew",
        TASK_BACKEND,
        "            if name in crons or record[-1] is not None:",
        "            if not name:",
        wrong="A registered task whose row cannot be read silently loses its past.",
    ),
)

OF_STORES: tuple[Mutant, ...] = (
    mutant(
        "sync-dropped",
        SQLITE,
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = OFF",
        wrong="Nothing is synced to the disk.",
    ),
    mutant(
        "sync-at-checkpoints-only",
        SQLITE,
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        wrong="A commit is acknowledged before it is synced.",
    ),
    mutant(
        "log-in-memory",
        SQLITE,
        "PRAGMA journal_mode = WAL",
        "PRAGMA journal_mode = MEMORY",
        wrong="What is needed to undo half a write is not on the disk.",
    ),
    mutant(
        "no-transaction",
        SCHEMA,
        '    connection.execute("BEGIN IMMEDIATE")\n    try:\n        change(connection)\n        connection.execute("COMMIT")\n',
        "    try:\n        change(connection)\n",
        wrong="A new list is written statement by statement, and a crash leaves half of it.",
    ),
    mutant(
        "commit-too-early",
        SQLITE,
        '                connection.execute(sql("remove"), (_encoded(removed).decode(),))\n',
        '                connection.execute(sql("remove"), (_encoded(removed).decode(),))\n'
        '                connection.execute("COMMIT")\n                connection.execute("BEGIN IMMEDIATE")\n',
        wrong="The removals of a list are committed before its additions.",
    ),
    mutant(
        "lock-not-released",
        SQLITE,
        "        self._disconnect()\n        self._lock.release()\n",
        "        self._disconnect()\n",
        wrong="A store that was closed cannot be opened again.",
    ),
    mutant(
        "interruption-never-cleared",
        SCHEMA,
        "zip(STATE_COLUMNS, values[1:], strict=False)]\n",
        'zip(STATE_COLUMNS, values[1:], strict=False) if column != "interrupted"]\n',
        wrong="An interruption stays in the store after it has been answered.",
    ),
    mutant(
        "end-not-in-row",
        SCHEMA,
        '[f"{column} = {value}" for',
        '[f"{column} = coalesce({value}, {column})" if column == "running_since_us"'
        ' else f"{column} = {value}" for',
        wrong="A run that has ended is still under way as far as the store knows.",
    ),
    mutant(
        "memory-store-keeps-orphans",
        MEMORY,
        "            self.records.pop(task_id, None)\n",
        "            self.records.get(task_id)\n",
        wrong="The store in memory does not remove tasks.",
    ),
)
