"""The daemon: `duly run`, and everything that can be asked of it.

    foreground          the process: signals, systemd, output
      daemon.Daemon     one store, one supervisor, one timer switch, one socket, and their order
        timer_switch    the only way to the package `timers`
        server          the socket; `client` is the other end, `protocol` is what both know
      watching.Watch    metrics, spans, pings and the monitor: listeners to events
    operations          what can be asked: one table, for the socket and for HTTP
      backend           what operations need of a daemon
      views, json_types the answers: pure functions, and the types that are a contract
      slots, remote     what became of each slot; runs of other machines
    acceptor            connections, also when no descriptor is left; `web` uses it, too
    echo, pruner        output of services on stdout; the old rows of the history
    sharing             the database of shared timers

**States**: starting (the store is held, services come up), running (start-up is complete, timers are at
work), stopping. The socket answers in all of them.

**Invariant**: the store is held before anything starts and is released after everything has ended. So of two
daemons on one store the second does nothing, and what a dead daemon left running is ended first.

**Lock order**: the turn of the daemon (start-up, reload, timer switch), then that of the supervisor, or
`writing` of the timers. What only reads takes none.

**When a part fails**: a store that cannot be written keeps timers from starting and is tried again; services
run on, and the history waits in memory. A database of shared timers that does not answer costs a sentence in
the answer. A client that hangs costs a task and a time-out. A listener that raises is reported.
A dashboard that cannot listen at its default address is left out, and `status` says so.
"""
