"""The configuration of the daemon: one schema, one validator, two forms (TOML and Python). TIMERS.md 2."""

from duly.config.assembly import config_of
from duly.config.errors import ConfigError, FileFault
from duly.config.loading import load
from duly.config.plan import Changed, Defined, Kept, KeyChange, Named, Plan, changes
from duly.config.schema import (
    Calendar,
    Config,
    Dashboard,
    Database,
    Invalid,
    PingUrl,
    Service,
    Settings,
    Timer,
    Warned,
    database_of,
    socket_path,
    starts_at_boot,
    store_path,
)

__all__ = [
    "Calendar",
    "Changed",
    "Config",
    "ConfigError",
    "Dashboard",
    "Database",
    "Defined",
    "FileFault",
    "Invalid",
    "Kept",
    "KeyChange",
    "Named",
    "PingUrl",
    "Plan",
    "Service",
    "Settings",
    "Timer",
    "Warned",
    "changes",
    "config_of",
    "database_of",
    "load",
    "socket_path",
    "starts_at_boot",
    "store_path",
]
