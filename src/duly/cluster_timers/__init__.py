"""Timers shared by the daemons of a cluster: each is a row, and a node claims it when it is due.

The rules are those of `duly.timers`; nodes, claims and fencing are those of `duly.cluster`. This package
joins the two, and is the only one that knows both.

    timers        `ClusterTimers`: the same interface as `timers.local.LocalTimers`
    backend       claims rows, and takes the target of a timer before it starts
    rows          a timer as a row, and back
    lists         what a list of timers changes in the rows, and what a start-up changes in them
    views         what people see: the rows and the past runs of all machines

A due is claimed, decided, and its target is taken: three messages in this order. A timer that is only looked
at must not keep another from firing, so the target comes last. A run may go on as long as this node is
trusted. When trust ends the watchdog kills its processes, and the node comes back once they are gone: a
return gives the rows to others.
"""
