"""`[[job]]`: one entry that stands for a oneshot service and a timer with the same id.

A job is split into the two before anything is checked, so each key means what it means there and nothing
after this module knows of jobs. A job is valid or not as a whole: one mistake takes both its parts out.
`[defaults]` are keys that each job has unless it says otherwise; of `env`, each variable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from duly.config.checking import (
    DEFAULT_VALUES,
    SERVICE_ALIASES,
    SERVICE_KEYS,
    TIMER_ALIASES,
    TIMER_KEYS,
    Checked,
    Checker,
    each_checked,
    written_names,
)
from duly.config.excluding import dates
from duly.config.lines import Written
from duly.config.schema import EntryFault, Service, Timer
from duly.formatting import did_you_mean

_OF_BOTH = frozenset(["id", "description"])
NOT_OF_JOBS = frozenset(["type", "restart", "target"])
# A job says what it is, and its target, by being one: each of these keys goes to the part that refuses it.
_OF_SERVICE = frozenset(written_names(SERVICE_KEYS)) - {"type", "enabled"} | {"target"}
_OF_TIMER = frozenset(written_names(TIMER_KEYS)) - {"target", "lock"} | {"type"}
_ALIASES = {**SERVICE_ALIASES, **TIMER_ALIASES}


DEFAULT_KEYS = (*DEFAULT_VALUES, "exclude")
"""What `[defaults]` may say."""


def split_jobs(jobs: Sequence[Written], defaults: Mapping[str, Any]) -> tuple[list[Written], list[Written]]:
    """The services and the timers that jobs stand for; something that is no table is both."""
    parts = [
        _split(job.value, defaults) if isinstance(job.value, Mapping) else (job.value,) * 2 for job in jobs
    ]
    services, timers = (
        [replace(job, value=part[which]) for job, part in zip(jobs, parts, strict=True)] for which in (0, 1)
    )
    return services, timers


def _split(job: Mapping[Any, Any], defaults: Mapping[str, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    given = dict(job)
    for key, value in defaults.items():
        if key == "env" and isinstance(given.get("env", {}), Mapping):
            given["env"] = {**value, **given.get("env", {})}
        elif not any(name in given for name in written_names((key,))):
            given[key] = value
    service: dict[Any, Any] = {"type": "oneshot"}
    timer: dict[Any, Any] = {}
    for key, value in given.items():
        # A key that nobody knows goes where it comes close to one, so that the message can say so.
        is_of_timer = key in _OF_TIMER or (key not in _OF_SERVICE and _comes_close(key))
        if key in _OF_BOTH or not is_of_timer:
            service[key] = value
        if is_of_timer:
            timer[key] = value
    if "id" in given:
        timer["target"] = given["id"]
    return service, timer


def _comes_close(key: object) -> bool:
    return isinstance(key, str) and bool(did_you_mean(key, _OF_TIMER, TIMER_ALIASES))


def checked_defaults(written: object, folder: Path) -> tuple[dict[str, Any], list[EntryFault]]:
    """The keys of `[defaults]` that can be used, and everything that is wrong with the others."""
    checkers: dict[str, Checker] = {**DEFAULT_VALUES, "exclude": partial(dates, folder=folder)}
    return each_checked(written, _ALIASES, checkers, "defaults: ")


def joined_parts(
    services: list[Checked[Service]], timers: list[Checked[Timer]], jobs: int
) -> tuple[list[Checked[Service]], list[Checked[Timer]]]:
    """The parts again, each without an entry if the other one of its job has none.

    The jobs are the last in both lists.
    """
    for at in range(-jobs, 0):
        service, timer = services[at], timers[at]
        reported = {fault.reason for fault in service.faults}
        # What is wrong with the id of a job is wrong with the target that its timer has from it.
        known = {"target", *(fault.key for fault in service.faults if fault.key == "id")}
        more = [each for each in timer.faults if each.reason not in reported and each.key not in known]
        services[at] = service.with_faults(more)
        timers[at] = replace(timer, faults=services[at].faults)
    return services, timers
