"""What a changed file makes of what runs: pure.

An entry that has become invalid is not an entry that was removed. What ran under its old definition goes on
doing so until the file says clearly what is wanted.
"""

from dataclasses import replace

from duly.config.plan import ConfigPlan
from duly.config.schema import Config
from duly.daemon import views
from duly.daemon.backend import Reloaded

_FIXED = ("store", "lease_sec", "socket", "timezone")
"""Settings that only a new start can change."""


def merged_config(before: Config, after: Config, plan: ConfigPlan) -> Config:
    """The configuration to run by, after the file has changed from *before* to *after*."""
    kept = {(each.kind, each.id) for each in plan.kept}
    fixed = {name: getattr(before.settings, name) for name in _FIXED}
    return replace(
        after,
        services=(*after.services, *(each for each in before.services if ("service", each.id) in kept)),
        timers=(*after.timers, *(each for each in before.timers if ("timer", each.id) in kept)),
        notify=(*after.notify, *(each for each in before.notify if each.id in _invalid_notify(after))),
        settings=replace(after.settings, **fixed),
        dashboard=before.dashboard,
    )


def _invalid_notify(config: Config) -> set[str | None]:
    return {bad.id for bad in config.invalid if bad.kind == "notify"}


def settings_that_wait(before: Config, after: Config) -> list[str]:
    """The settings that were changed and take effect only when the daemon is started anew."""
    changed = [name for name in _FIXED if getattr(before.settings, name) != getattr(after.settings, name)]
    return changed if before.dashboard == after.dashboard else [*changed, "dashboard"]


def reload_answer(plan: ConfigPlan, config: Config, *, waiting: list[str]) -> Reloaded:
    return Reloaded(
        added=[f"{each.kind} {each.id}" for each in plan.added],
        changed=[f"{each.kind} {each.id}" for each in plan.changed],
        removed=[f"{each.kind} {each.id}" for each in plan.removed],
        unchanged=len(plan.unchanged),
        invalid=views.invalid_json(config),
        need_restart=waiting,
    )
