"""The configuration of the daemon: one schema, one validator, two forms (spec/timers.md 2).

```
file --loading--> text --lines, python_file--> Document (what was written, and where)
     --checking, values, calendars--> each entry by itself --checking--> entries among each other
     --warnings--> Config (what can be used, what is invalid, what may surprise)
```

The invariant: a `Config` holds checked values only, and no bad entry harms another. The file as a whole is
refused (`ConfigError`) only when it is not clear what its author wanted. Whatever is wrong has one reason
and, where it is certain, a line. A file may be hostile: each step takes linear time and memory.
"""

from duly.config.loading import config_of, load
from duly.config.schema import Calendar, Config, ConfigError, Dashboard, Job, Service, Settings, Timer

__all__ = [
    "Calendar",
    "Config",
    "ConfigError",
    "Dashboard",
    "Job",
    "Service",
    "Settings",
    "Timer",
    "config_of",
    "load",
]
