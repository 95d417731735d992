"""Processes of the host: how they are made, read, ended, and found again after a crash.

    spawn             makes a process, or says in one sentence why it cannot
    options           variables of a file, user, group, umask, niceness and limits of a process
    process           one process and its group: exit, signals, TERM - grace - KILL
    output            the last bytes that it wrote, kept and followed
    children          which exits are ours to take; orphans that we inherit; the reaper
    procfs, tokens    which process a pid means; which run a process can prove to belong to
    leftovers         processes that a dead daemon left, found and ended
    watchdog          a second process that kills runs when this one is dead, stuck or untrusted
    pauses            lengths of time on a clock that may be set meanwhile

The invariant: a signal is sent only to a process whose identity is certain. A pid is given again once its
exit was taken, so an identity is pid, start time and boot. Until its exit is taken a child keeps its pid;
each exit is taken by one owner (`HostProcess`, the watchdog, or the reaper for all others).

What belongs to a run: its process, the group and session that the process leads, and every process that
carries the run's token in its environment (`DULY_RUN_TOKEN`, signed with the key of the store).

    spawn -> running -> exited -> group empty -> (orphans gone) -> pipe closed

What fails, and what happens then:

- The program cannot be loaded: `SpawnError`, with a reason for people.
- No pidfd: a thread waits for that one pid. No /proc: groups are asked with signal 0, leftovers are not
  found.
- The daemon dies: the next one finds leftovers by row, group or token, and ends them before anything starts.
- The daemon hangs while another node may start the same job: the watchdog process kills its runs.
- A process cannot be killed (it waits for a disk): it is reported, and its service is not started again.

Locks: `Watchdog` has one, for any thread, and never waits while it holds it. All else is on the event loop.
This package knows neither services nor timers.
"""
