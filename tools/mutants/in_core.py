"""Mutants of the decisions: what a task remembers, what it is owed, what a list makes of it."""

from tools.mutants.mutant import Edit, Mutant, mutant

TASK, CAUSES, RECORD = "core/task.py", "core/causes.py", "core/record.py"
RECONCILIATION, SCHEDULE, AGENDA = "core/reconciliation.py", "core/timetable.py", "core/agenda.py"

_FRESH_OVERRIDE = "                outcome.overridden.append(Override(before, task))"
_STRUCTS = Edit(
    RECONCILIATION,
    "from dataclasses import dataclass, field\n",
    "from dataclasses import dataclass, field\nfrom msgspec.structs import replace\n",
)

OF_TASKS: tuple[Mutant, ...] = (
    mutant(
        "startup-match-ignored",
        TASK,
        "    answered_us = minute_us - 1 if schedule.is_by_minute else now_us\n",
        "    answered_us = now_us\n",
        wrong="A task registered in a minute that it matches waits for the next match.",
    ),
    mutant(
        "startup-always",
        TASK,
        "        due_us=schedule.due_after(answered_us, now_us),\n",
        "        due_us=now_us,\n",
        wrong="A new task starts at once, whether or not the minute matches.",
    ),
    mutant(
        "make-up-for-each-missed-due",
        TASK,
        "    answered_us = max(task.answered_us, now_us)\n    return Task(\n",
        "    answered_us = max(task.answered_us, min(task.due_us, now_us))\n    return Task(\n",
        wrong="A start answers only the oldest of the dues that stand, so a downtime is made up for many times.",
        also=(
            Edit(
                TASK,
                "    answered_us = max(task.answered_us, now_us)\n    return _replace(task",
                "    answered_us = max(task.answered_us, min(task.due_us, now_us))\n    return _replace(task",
            ),
        ),
    ),
    mutant(
        "small-step-back-repeats-minutes",
        TASK,
        "    answered_us = max(task.answered_us, now_us)\n    return Task(\n",
        "    answered_us = now_us\n    return Task(\n",
        wrong="A start after a small step back forgets that later minutes have been answered.",
    ),
    mutant(
        "retry-survives-success",
        TASK,
        "        None,\n        task.retry_count + 1 if is_retry else 0,",
        "        task.retry_at_us,\n        task.retry_count + 1 if is_retry else 0,",
        wrong="A run that pre-empts a retry and succeeds leaves the retry pending.",
        also=(
            Edit(
                TASK,
                "last_success_us=now_us, retry_at_us=None, retry_count=0)",
                "last_success_us=now_us, retry_count=0)",
            ),
        ),
    ),
    mutant(
        "retry-without-delay",
        TASK,
        "    at_us = None if is_given_up else retry_at_us(task.options, task.retry_delay_us, task.retry_count, now_us)\n",
        "    at_us = now_us\n",
        wrong="A failed run is retried at once.",
    ),
    mutant(
        "retry-delay-from-start",
        TASK,
        "    at_us = None if is_given_up else retry_at_us(task.options, task.retry_delay_us, task.retry_count, now_us)\n",
        "    at_us = (task.last_attempt_us or now_us) + task.retry_delay_us\n",
        wrong="The retry delay is counted from the start of the failed run instead of its end.",
    ),
    mutant(
        "retried-once-only",
        TASK,
        "last_failure_us=now_us, retry_at_us=at_us)",
        "last_failure_us=now_us, retry_at_us=None if task.retry_count else at_us)",
        wrong="A retry that fails is not retried.",
    ),
    mutant(
        "retry-deadline-not-watched",
        TASK,
        "    return due_us if task.retry_at_us is None else min(due_us, retry_ready_us(task))\n",
        "    return due_us\n",
        wrong="Nobody wakes up for a retry; it waits for the next due.",
    ),
    mutant(
        "interrupted-not-restarted",
        TASK,
        "running_since_us=None, interrupted=True)",
        "running_since_us=None)",
        wrong="A run that a crash cut off is forgotten.",
    ),
    mutant(
        "interrupted-twice",
        TASK,
        "        False,\n        False,\n        now_us,",
        "        task.interrupted and not is_retry and task.retry_count == 0,\n        False,\n        now_us,",
        wrong="A start for an interrupted run does not use up the interruption.",
    ),
    mutant(
        "step-of-five-minutes-is-large",
        TASK,
        "    if before_us - after_us > STEP_TOLERATED_US:",
        "    if before_us - after_us >= STEP_TOLERATED_US:",
        wrong="A step back of exactly five minutes brings minutes a second time.",
    ),
    mutant(
        "large-step-back-waits",
        TASK,
        "    if before_us - after_us > STEP_TOLERATED_US:",
        "    if before_us - after_us > 24 * 3600 * SECOND_US:",
        wrong="After the clock is set back by hours nothing is due until it has caught up.",
    ),
    mutant(
        "due-lost-at-step-back",
        TASK,
        "    due_stands = task.due_stands or task.due_us <= before_us\n",
        "    due_stands = task.due_stands\n",
        wrong="A due that stood when the clock was set back is forgotten.",
    ),
    mutant(
        "retry-waits-for-wrong-future",
        TASK,
        "        pending_us = min(pending_us, to_us if delayed_us is None else delayed_us)\n",
        "",
        wrong="After a large step back a retry waits until the clock has caught up.",
    ),
)

OF_CAUSES: tuple[Mutant, ...] = (
    mutant(
        "due-strictly-before-now",
        CAUSES,
        "    if task.due_us <= now_us and task.options.enabled:",
        "    if task.due_us < now_us and task.options.enabled:",
        wrong="A task is not due at the very instant of its due: `<` for `<=`.",
    ),
    mutant(
        "standing-due-ignored",
        CAUSES,
        "    if task.due_stands and task.options.enabled:\n        return Cause.CRON\n",
        "",
        wrong="A due that stands since before a step back is remembered and never answered.",
    ),
    mutant(
        "overlapping-runs",
        CAUSES,
        "        if task.running_since_us is None and (cause",
        "        if (cause",
        wrong="A task that is running is started again when it is due.",
        also=(Edit("engine/local.py", "        assert entry.run is None\n", ""),),
    ),
    mutant(
        "due-asked-at-itself",
        SCHEDULE,
        "        if self._from_us <= instant_us < self._next_us:",
        "        if self._from_us <= instant_us <= self._next_us:",
        wrong="The due after a due is that due itself, if it is still remembered: `<=` for `<`.",
    ),
    mutant(
        "startup-lost-within-second",
        SCHEDULE,
        "    return instant_us - face.second * 1_000_000 - face.microsecond\n",
        "    return instant_us - face.second * 1_000_000\n",
        wrong="The beginning of a minute is wrong by a fraction of a second, and a startup match may lie before it.",
    ),
    mutant(
        "one-task-an-instant",
        AGENDA,
        "        else:\n            bucket[name] = None\n",
        "",
        wrong="Of the tasks that are due at the same instant only one is looked at.",
    ),
)

OF_LISTS: tuple[Mutant, ...] = (
    mutant(
        "missed-due-forgotten-at-restart",
        RECONCILIATION,
        "        task = moved_back(before, now_us) if is_ahead else before\n",
        "        task = moved_back(before, now_us) if is_ahead else called(before, now_us) if is_restart else before\n",
        wrong="Dues that came while the program was down are skipped.",
        also=(
            Edit(RECONCILIATION, "import Task, cut_off, is_ahead", "import Task, called, cut_off, is_ahead"),
        ),
    ),
    mutant(
        "override-keeps-retry",
        RECONCILIATION,
        _FRESH_OVERRIDE,
        "                task = replace(task, retry_at_us=before.retry_at_us)\n" + _FRESH_OVERRIDE,
        wrong="A retry that was pending under the old configuration is still pending under the new one.",
        also=(_STRUCTS,),
    ),
    mutant(
        "override-keeps-timestamps",
        RECONCILIATION,
        _FRESH_OVERRIDE,
        "                due_us = task.schedule.due_after(before.answered_us)\n"
        "                task = replace(task, answered_us=before.answered_us, due_us=due_us)\n"
        + _FRESH_OVERRIDE,
        wrong="An overridden task counts its dues from where the old configuration had come to.",
        also=(_STRUCTS,),
    ),
    mutant(
        "override-forgets-interruption",
        "core/task.py",
        "interrupted=before is not None and before.interrupted,",
        "interrupted=False,",
        wrong="A task that a crash cut off and whose configuration then changed is not restarted.",
    ),
    mutant(
        "identical-list-registers-anew",
        RECONCILIATION,
        "            and before.schedule.text",
        "            and is_restart\n            and before.schedule.text",
        wrong="Handing in the same list again registers every task again.",
    ),
    mutant(
        "changed-delay-ignored",
        RECONCILIATION,
        "            and before.retry_delay_us == retry_delay_us\n",
        "",
        wrong="A list that changes only a retry delay changes nothing.",
    ),
    mutant(
        "run-in-flight-taken-for-interrupted",
        RECONCILIATION,
        "        return before if before.name in live else cut_off(before)",
        "        return cut_off(before)",
        wrong="A list handed in while a task runs takes its run for one that a crash cut off.",
    ),
    mutant(
        "orphans-kept",
        RECONCILIATION,
        "            outcome.orphaned.append(task)\n            continue\n",
        "            continue\n",
        wrong="Tasks that are no longer in the list stay in the store.",
    ),
    mutant(
        "row-of-another-taken",
        RECONCILIATION,
        "    next_id = max((task.id for task in known.values()), default=0) + 1\n",
        "    next_id = len(known) + 1\n",
        wrong="A new task may be given the id, and so the row, of another.",
    ),
)

OF_RECORDS: tuple[Mutant, ...] = (
    mutant(
        "retry-forgotten-at-restart",
        RECORD,
        "        task.retry_at_us,\n        task.retry_count,\n        int(",
        "        None,\n        task.retry_count,\n        int(",
        wrong="A pending retry is not written, so a restart forgets it.",
    ),
    mutant(
        "answers-forgotten-at-restart",
        RECORD,
        "        task.registered_us,\n        task.answered_us,\n        task.last_attempt_us,\n        task.last_success_us",
        "        task.registered_us,\n        task.registered_us,\n        task.last_attempt_us,\n        task.last_success_us",
        wrong="What has been answered is not written, so a restart makes up for what was not missed.",
    ),
    mutant(
        "interruption-forgotten-at-restart",
        RECORD,
        "        int(task.interrupted),\n",
        "        0,\n",
        wrong="An interruption that was found is written as none, and a second crash forgets it.",
    ),
)
