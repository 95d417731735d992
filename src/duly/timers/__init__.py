"""Timers over oneshot services of one machine, behind their switch (spec/timers.md 3 to 7).

    calendar          `on_calendar` as schedules: the slots of a timer
    timer             the state of a timer and how it changes; pure
    dues              what a timer is owed at a moment: a run, a miss, or nothing; pure
    reconciliation    what a list of declared timers makes of the known ones; pure
    record, loading   a timer as the store keeps it; rows that are not put to work
    rules             timers for the engine: dues meet the state of the targets
    local             `LocalTimers`: the engine's poller and local backend, over one list
    requests          what people ask: refusals, and who waits for a triggered run

The invariant: every slot up to `answered_us` was fired, missed, or came before the timer was declared. So a
slot is answered once, whatever the clock and the daemon do. The start of a run is in the store before its
target is started; if that cannot be written, nothing starts and the slot stays owed.

Timers that share a target exclude each other: a target that a timer is about to start counts as active at
once (`TimerRules.target_state`). Lock order: `writing` of the backend, then nothing. What fails: a target
that cannot be started is a miss with its reason; a damaged row is left alone and its timer does not run.
"""
