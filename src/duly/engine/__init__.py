"""The engine: sleeps, decides, writes, calls. It starts items (tasks or timers) and never asks why.

    scheduler      `initialize` and `stop`, one call at a time (calls)
       |
    task_backend   takes a list in: opens the store, reconciles, hands over
       |
    poller ------- Backend.claim ----> local: book (items in memory), journal (writes them), rules (decide)
       |                               or a node of a cluster (`duly.cluster`)
    runs           one asyncio task for each callback; limits cancel the ones that take too long
    task_runs      the history: a row for each run that has ended, written beside the work
    loop_watch     names the callback that blocks the event loop

One cycle of the poller is the durability claim (spec/scheduler.md 3.4): look, decide, write, then call. What
`claim` returns is on disk. If the write fails, nothing has started and the same is owed a little later. A
burst is several cycles: one wave is called while the next one is written (docs/decisions/0034-waves.md).

Locks: first the turn of the call (`calls.Turns`), then `writing` of the backend. The poller holds `writing`
from the claim until the runs have begun; `initialize` holds it while it changes the list. The end of a run
takes no lock: it changes the book at once, and the next write carries it to disk.

What happens when a part fails:
    the store      nothing starts; ends stay in memory; asked again after 1, 2, 4 ... 16 s (journal)
    a callback     its run fails, whatever it raises; nobody else notices (runs)
    the clock      the poller pauses a second of loop time and asks again (poller)
    our own code   announced as PollFailed; all items are looked at again (poller)
    the loop       cancelled tasks are restarted (`duly.background`); a shutdown releases the store
    a fork         the child ends when it comes back into our code (`duly.forks`)
"""
