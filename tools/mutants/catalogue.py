"""Every mutant there is."""

from tools.mutants import in_app, in_core, in_cron, in_engine, in_shell
from tools.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *in_core.OF_TASKS,
    *in_core.OF_CAUSES,
    *in_core.OF_LISTS,
    *in_core.OF_RECORDS,
    *in_cron.OF_CRON,
    *in_engine.OF_POLLER,
    *in_engine.OF_JOURNAL,
    *in_engine.OF_BOOK,
    *in_engine.OF_RUNS,
    *in_shell.OF_LIFECYCLE,
    *in_shell.OF_STORES,
    *in_app.OF_SCHEDULES,
    *in_app.OF_CONTROLS,
    *in_app.OF_CANCELS,
    *in_app.OF_OPTIONS,
    *in_app.OF_ENTRIES,
    *in_app.OF_LIMITS,
)
"""In the order of the table."""
