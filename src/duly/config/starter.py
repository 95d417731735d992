"""The files that `duly init` writes: small, complete, commented, and free of warnings."""

STARTER_TOML = """\
# What duly runs here. Check it with `duly check`, start it with `duly run`.

[supervisor]
timers = true              # timers are switched off unless this says so
# timezone = "Europe/Berlin"    # for all timers; the host's own if not given
# store = "duly.db"             # where history and state are kept
# shutdown_timeout_sec = 30

# A simple service is kept running: restarted when it ends.
[[service]]
id = "web"
command = ["python3", "-m", "http.server", "8080", "--bind", "127.0.0.1"]
enabled = false            # set to true to start it
restart = "always"         # "always", "on-failure" or "no"
# stage = 3                     # 1 to 4: earlier stages start first
# requires = ["database"]       # does not start without it
# after = ["cache"]             # starts later than it, whatever becomes of it
# env = { LOG_LEVEL = "info" }
# cwd = "site"                  # seen from this file

# A oneshot runs to its end: at start-up, or when a timer says so.
# No shell is involved; for pipes and the like write ["/bin/sh", "-c", "..."].
[[service]]
id = "backup"
type = "oneshot"
command = ["echo", "replace this with your backup"]
timeout_sec = 3600         # then it is told to end, and soon killed

[[timer]]
id = "nightly-backup"
target = "backup"
on_calendar = { hour = 3, minute = 30 }      # every day at 03:30
# on_calendar = { day_of_week = [1, 2, 3, 4, 5], hour = 9, minute = 0 }    # 0 is Sunday
# on_startup_sec = 60                        # a minute after every start
# on_unit_active_sec = 900                   # a quarter of an hour after its last run
# retry_intervals_sec = [30, 120, 600]       # after a failure; [] for no retries
# catch_up_window_sec = 86400                # how late a missed run is still made up for; 0 for never
"""

STARTER_PY = '''\
"""What duly runs here. Check it with `duly check`, start it with `duly run`."""

from duly.config import Service, Timer

SUPERVISOR = {
    "timers": True,  # timers are switched off unless this says so
    # "timezone": "Europe/Berlin",  # for all timers; the host's own if not given
    # "store": "duly.db",  # where history and state are kept
    # "shutdown_timeout_sec": 30,
}

SERVICES = [
    # A simple service is kept running: restarted when it ends.
    Service(
        id="web",
        command=["python3", "-m", "http.server", "8080", "--bind", "127.0.0.1"],
        enabled=False,  # set to True to start it
        restart="always",  # "always", "on-failure" or "no"
        # stage=3,  # 1 to 4: earlier stages start first
        # requires=["database"],  # does not start without it
        # after=["cache"],  # starts later than it, whatever becomes of it
        # env={"LOG_LEVEL": "info"},
        # cwd="site",  # seen from this file
    ),
    # A oneshot runs to its end: at start-up, or when a timer says so.
    # No shell is involved; for pipes and the like write ["/bin/sh", "-c", "..."].
    Service(
        id="backup",
        type="oneshot",
        command=["echo", "replace this with your backup"],
        timeout_sec=3600,  # then it is told to end, and soon killed
    ),
]

TIMERS = [
    Timer(
        id="nightly-backup",
        target="backup",
        on_calendar={"hour": 3, "minute": 30},  # every day at 03:30
        # on_calendar={"day_of_week": [1, 2, 3, 4, 5], "hour": 9, "minute": 0},  # 0 is Sunday
        # on_startup_sec=60,  # a minute after every start
        # on_unit_active_sec=900,  # a quarter of an hour after its last run
        # retry_intervals_sec=[30, 120, 600],  # after a failure; [] for no retries
        # catch_up_window_sec=86400,  # how late a missed run is still made up for; 0 for never
    ),
]
'''

STARTERS = {".toml": STARTER_TOML, ".py": STARTER_PY}
