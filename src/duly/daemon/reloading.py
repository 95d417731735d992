"""What a changed file makes of what runs: pure.

An entry that has become invalid is not an entry that was removed. What ran under its old definition goes on
doing so until the file says clearly what is wanted.
"""

from dataclasses import replace

from duly.config.plan import Plan
from duly.config.schema import Config
from duly.daemon import views
from duly.daemon.backend import Reloaded

_FIXED = ("store", "lease_sec", "socket", "timezone")
"""Settings that only a new start can change."""


def merged(before: Config, after: Config, plan: Plan) -> Config:
    """The configuration to run by, after the file has changed from *before* to *after*."""
    kept = {(each.kind, each.id) for each in plan.kept}
    fixed = {name: getattr(before.settings, name) for name in _FIXED}
    return replace(
        after,
        services=(*after.services, *(each for each in before.services if ("service", each.id) in kept)),
        timers=(*after.timers, *(each for each in before.timers if ("timer", each.id) in kept)),
        settings=replace(after.settings, **fixed),
        dashboard=before.dashboard,
    )


def settings_that_wait(before: Config, after: Config) -> list[str]:
    """The settings that were changed and take effect only when the daemon is started anew."""
    changed = [name for name in _FIXED if getattr(before.settings, name) != getattr(after.settings, name)]
    return changed if before.dashboard == after.dashboard else [*changed, "dashboard"]


def reloaded(plan: Plan, config: Config, *, waiting: list[str]) -> Reloaded:
    """What to tell of a reload."""
    return Reloaded(
        added=[f"{each.kind} {each.id}" for each in plan.added],
        changed=[f"{each.kind} {each.id}" for each in plan.changed],
        removed=[f"{each.kind} {each.id}" for each in plan.removed],
        unchanged=len(plan.unchanged),
        invalid=views.invalid_shapes(config),
        need_restart=waiting,
    )
