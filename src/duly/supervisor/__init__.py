"""Services: started stage by stage, kept up, reloaded and stopped. Knows nothing of timers.

    supervisor      one call at a time: adopt, start, reload; `stop` interrupts them
    adoption        runs that a dead daemon left open: their processes are ended first
    stages          the order of start-up and shutdown
    services        the state of a service and what changes it; pure
    controller      one service: its run in flight, and its restart after an end
    execution       one run: process, time limit, stop, result
    run_registry    the runs in flight and how those before them ended
    results         results, reasons and refusals, as values

    stopped -> waiting -> starting -> running -> done | failed | stopped
                             ^           |
                             |           v
                             +----- backing off (simple services)

The invariant: a service has at most one run at a time, and the processes of the last run are gone before the
next one starts. A run begins only in `ServiceController.begin`. One service's trouble is never another's.

Order: the row of a run is in the history before its process is made, so that the next daemon finds the
process whenever this one dies. A disk that hangs delays that by one second at most.

Locks: `Supervisor._turn` is held by start, reload and adoption, never by `run`, `start_service` or `stop`.
What fails: a command that cannot be started ends its run with `spawn-error`; a fault of ours ends it as
`interrupted` and kills the process; a process that cannot be killed blocks its service, and is reported.
"""
