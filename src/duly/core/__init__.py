"""Tasks, causes and decisions: pure functions over small frozen values. Nothing here does anything.

    registration       what a user hands to `initialize`, checked
    options, entries   what a list says besides; tasks that are added at run time, and their kinds
    reconciliation     what a list changes: tasks new, preserved, overridden, orphaned
    task               a task, and what a start, a call, an end or a clock step makes of it
    causes             which cause stands, and so which starts are owed
    timing, timetable  the text of a schedule; its dues in a zone
    agenda             which tasks need a look when
    record             a task as a store keeps it; the one list of its columns

The invariant: every due up to `answered_us` of a task was answered by a start, or came before the task was
registered. Only a clock that was set back far moves it back (spec/scheduler.md 2.4 and 3.3). Causes are
worked out from times; only `interrupted` and `due_stands` are flags.

Nothing here awaits, reads a clock or knows a database: `now_us` is always an argument. So the same decisions
run in production, under a virtual clock, in the simulation and on every node of a cluster.
"""
