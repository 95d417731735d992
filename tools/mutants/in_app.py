"""Mutants of what an App adds: other schedules, options, pauses, requests, entries and named limits."""

from tools.mutants.mutant import Edit, Mutant, mutant

TASK, CAUSES, TIMETABLE, OPTIONS = "core/task.py", "core/causes.py", "core/timetable.py", "core/options.py"
ENTRIES, LISTS, LIMITS = "core/entries.py", "core/reconciliation.py", "engine/limits.py"

OF_SCHEDULES: tuple[Mutant, ...] = (
    mutant(
        "interval-from-last-start",
        TASK,
        "        return task.registered_us\n",
        "        return task.last_attempt_us or task.registered_us\n",
        wrong="A fixed rate counts from the latest start, so each late start moves all that follow.",
    ),
    mutant(
        "interval-from-midnight",
        TIMETABLE,
        "        due_us = instant_us + self.period_us - (instant_us - anchor_us) % self.period_us\n",
        "        due_us = instant_us + self.period_us - instant_us % self.period_us\n",
        wrong="A fixed rate counts from 1970 instead of from the registration.",
    ),
    mutant(
        "fixed-delay-from-start",
        TASK,
        "    return max(task.registered_us, task.last_success_us or EARLIEST_US, task.last_failure_us or EARLIEST_US)",
        "    return max(task.registered_us, task.last_attempt_us or EARLIEST_US)",
        wrong="A fixed delay counts from the start of the last run instead of its end.",
    ),
    mutant(
        "once-every-day",
        TIMETABLE,
        "        return self.at_us if instant_us < self.at_us else NEVER_US\n",
        "        return self.at_us if instant_us < self.at_us else instant_us + 86_400_000_000\n",
        wrong="What is due once is due again a day later.",
    ),
    mutant(
        "zone-of-task-ignored",
        TIMETABLE,
        "    base = _base(text, parts, parts.zone or zone)\n",
        "    base = _base(text, parts, zone)\n",
        wrong="A task with a zone of its own runs by the zone of the scheduler.",
    ),
    mutant(
        "spread-ignored",
        TIMETABLE,
        "Shifted(text, base, parts.offset_us)\n",
        "Shifted(text, base, 0)\n",
        wrong="Tasks whose dues are spread out start all together.",
    ),
    mutant(
        "last-days",
        TIMETABLE,
        "+ _DAY).day == 1\n",
        "+ _DAY).day in {1, 31}\n",
        wrong="What is due on the last day of a month is also due a day before, if the month has 31.",
    ),
)

OF_CONTROLS: tuple[Mutant, ...] = (
    mutant(
        "pause-ignored",
        CAUSES,
        "    if task.paused or task.options.is_of_unknown_kind:\n        return None\n",
        "    if task.options.is_of_unknown_kind:\n        return None\n",
        wrong="A paused task starts all the same.",
        also=(Edit(TASK, "    if task.paused or task.options", "    if task.options"),),
    ),
    mutant(
        "pause-ended-by-override",
        TASK,
        "        paused=before is not None and before.paused,\n",
        "        paused=False,\n",
        wrong="A paused task goes on when its schedule is changed.",
    ),
    mutant(
        "request-lost",
        TASK,
        "    return _replace(task, requested_us=now_us) if task.requested_us is None else task\n",
        "    return task\n",
        wrong="A run that is asked for never comes.",
    ),
    mutant(
        "request-twice",
        TASK,
        "        task.paused,\n        None,\n",
        "        task.paused,\n        task.requested_us if task.due_us <= now_us else None,\n",
        wrong="A start for a due leaves the request standing that it answers, too.",
    ),
    mutant(
        "request-lost-by-restart",
        TASK,
        "    if task.running_since_us is None:\n        return task\n    return _replace(task, running_since_us=None, interrupted=True)\n",
        "    if task.running_since_us is None:\n        return _replace(task, requested_us=None)\n"
        "    return _replace(task, running_since_us=None, interrupted=True)\n",
        wrong="A run that is asked for is forgotten when the process ends before it has begun.",
    ),
)

OF_CANCELS: tuple[Mutant, ...] = (
    mutant(
        "cancelled-run-is-retried",
        "engine/tasks.py",
        "is_given_up=run.is_cancelled",
        "is_given_up=False",
        wrong="A run that somebody has cancelled is tried again.",
    ),
)

OF_OPTIONS: tuple[Mutant, ...] = (
    mutant(
        "disabled-ignored",
        CAUSES,
        "    if task.due_us <= now_us and task.options.enabled:\n",
        "    if task.due_us <= now_us:\n",
        wrong="A disabled task starts when it is due.",
        also=(
            Edit(
                TASK,
                "    due_us = task.due_us if task.options.enabled else NEVER_US\n",
                "    due_us = task.due_us\n",
            ),
        ),
    ),
    mutant(
        "options-of-first-list",
        TASK,
        "    return task if task.options is options or task.options == options else _replace(task, options=options)\n",
        "    return task\n",
        wrong="A list that changes only the options of a task has no effect.",
    ),
    mutant(
        "attempts-ignored",
        OPTIONS,
        "    if options.attempts is not None and retries + 1 >= options.attempts:\n        return None\n",
        "",
        wrong="A run that fails is tried again for ever.",
    ),
    mutant(
        "one-attempt-too-many",
        OPTIONS,
        "retries + 1 >= options.attempts",
        "retries >= options.attempts",
        wrong="A run that fails is tried once more than it may be.",
    ),
    mutant(
        "back-off-ignored",
        OPTIONS,
        "    if options.retry_factor != 1:\n",
        "    if options.retry_factor < 1:\n",
        wrong="Retries do not wait longer and longer.",
    ),
    mutant(
        "longest-delay-ignored",
        OPTIONS,
        "    if options.retry_longest_us is not None:\n        delay_us = min(delay_us, options.retry_longest_us)\n",
        "",
        wrong="Retries wait longer than the longest delay.",
    ),
    mutant(
        "catch-up-window-ignored",
        CAUSES,
        "    return answered(task, now_us)\n",
        "    return task\n",
        wrong="A due that is too old is made up for.",
    ),
    mutant(
        "young-dues-dropped",
        CAUSES,
        "    if now_us - task.schedule.due_at_or_before(now_us, anchor_us(task)) <= window_us:\n",
        "    if now_us - task.due_us <= window_us:\n",
        wrong="With the first of the dues that passed a younger one is given up, too.",
    ),
)

OF_ENTRIES: tuple[Mutant, ...] = (
    mutant(
        "entry-of-unknown-kind-starts",
        CAUSES,
        "    if task.paused or task.options.is_of_unknown_kind:\n",
        "    if task.paused:\n",
        wrong="An entry starts though its kind is not declared.",
        also=(
            Edit(TASK, "    if task.paused or task.options.is_of_unknown_kind:\n", "    if task.paused:\n"),
        ),
    ),
    mutant(
        "changed-entry-begins-anew",
        LISTS,
        "    if before is not None and before.schedule.text == new.schedule:\n",
        "    if before is not None and before.entry == new.text and before.schedule.text == new.schedule:\n",
        wrong="An entry that is changed loses its state, though its schedule is the same.",
    ),
    mutant(
        "schedule-of-entry-stays",
        LISTS,
        "    if before is not None and before.schedule.text == new.schedule:\n",
        "    if before is not None:\n",
        wrong="An entry keeps its schedule when it gets another.",
    ),
    mutant(
        "list-orphans-entries",
        LISTS,
        "        if task.entry is None:\n            outcome.orphaned.append(task)\n            continue\n",
        "        outcome.orphaned.append(task)\n        continue\n",
        wrong="A list forgets the entries, as they are not in it.",
    ),
    mutant(
        "declared-task-stays-entry",
        LISTS,
        "            and before.entry is None\n",
        "",
        wrong="A declared task with the name and schedule of an entry goes on as that entry.",
    ),
    mutant(
        "retry-delay-of-kind-ignored",
        ENTRIES,
        "    return msgspec.structs.replace(task, retry_delay_us=kind.retry_delay_us, options=options)\n",
        "    return msgspec.structs.replace(task, options=options)\n",
        wrong="A run of an entry that fails is tried again without the delay of its kind.",
    ),
    mutant(
        "disabled-entry-starts",
        ENTRIES,
        "    options = kind.options if entry.enabled else msgspec.structs.replace(kind.options, enabled=False)\n",
        "    options = kind.options\n",
        wrong="An entry that is disabled starts when it is due.",
    ),
)

OF_LIMITS: tuple[Mutant, ...] = (
    mutant(
        "one-run-over-the-limit",
        LIMITS,
        "        return max(self._room[limit] - self._others[limit], 0)\n",
        "        return max(self._room[limit] + 1 - self._others[limit], 0)\n",
        wrong="One run more than a named limit allows is in flight.",
    ),
    mutant(
        "room-never-given-back",
        "engine/local.py",
        "            # Whether or not its item is still there: it is the run that took the room.\n"
        "            self.named.free(self._rules.limit_of(run.before))\n",
        "            pass\n",
        wrong="A run that has ended counts in its named limit for ever.",
    ),
    mutant(
        "room-of-called-off-start-stays-taken",
        "engine/local.py",
        '        mark("start called off")\n        self.named.free(self._rules.limit_of(run.before))\n',
        '        mark("start called off")\n',
        wrong="A start that is called off before it is carried out counts in its named limit for ever.",
    ),
    mutant(
        "first-to-ask-gets-the-room",
        LIMITS,
        "(since_us, next(self._order), name)",
        "(0, next(self._order), name)",
        wrong="Room in a named limit goes to the first who found none, not to the oldest due.",
    ),
    mutant(
        "latest-due-gets-the-room",
        LIMITS,
        "(since_us, next(self._order), name)",
        "(-since_us, next(self._order), name)",
        wrong="Room in a named limit goes to the latest due.",
    ),
    mutant(
        "waits-for-room-once",
        LIMITS,
        "        self._waiting.difference_update(names)\n",
        "",
        wrong="A task that has waited for room once is forgotten when it has to wait again.",
    ),
)
