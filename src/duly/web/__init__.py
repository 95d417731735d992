"""The dashboard: pages, a JSON API, live events, probes and metrics. One site, of a daemon or of a store.

        browser ── server ── guard ─┬─ pages ── rendering ── templates
                  (limits)  (who,   ├─ api ──── openapi
                             csrf)  └─ probes, metrics (app)
                                          │
                             site: backend, live events, observed, tasks
                                          │
       DaemonDashboard, in `duly run`;  TaskStore, in `duly dashboard`;  AppTasks, in a program

- `site.Site` is all that pages and API know of where things come from. A daemon brings services, timers and
  runs; a store brings the tasks of an embedded scheduler, and is read-only. In the program itself
  (`embedded`) its App brings them, with its controls.
- Pages are written for the root of a site. Where another program mounts them under a path, the guard moves
  their addresses below it (`guard.mounted`), and the scripts theirs (`root_path`).
- Pages ask a `source.Source` alone, which `daemon_source` and `task_source` fill. What is shown are entries
  (`models`): a name, a state, a schedule, the latest run, the next one. There is one list, one page of an
  entry, one overview and one time line, whatever keeps the entries.
- What is wrong is decided by `daemon.health`. Pages show each of its causes once, as a link.
- A picture of many runs is counted in SQL (`store/sql`), never made of single rows, and only of the lanes
  that somebody sees. So its cost does not grow with the history.
- Nothing is changed but by an operation of the daemon's table, or a control of an App (`acting`). A button of
  a page and a POST of the API do the same.
- Every request passes the guard, which refuses before anything is read or done. `security` decides, without
  state; `authentication` keeps sessions and counts wrong tokens.
- A page costs the scheduler little: it is made once for all who look, in a thread, between the minutes at
  which timers fire (`rendering`). `live` reports to browsers that something happened; they then ask again.
- When the history cannot be read, pages say so and show the rest. When the default address is taken, the
  daemon runs without a dashboard. When a reader does not read, its connection is closed.
"""
