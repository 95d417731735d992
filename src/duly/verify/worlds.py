"""What one task's state may be, as far as a trace can tell: the checker's reading of the macros of MODEL.md.

A world is one possible state; a task has a set of them, nearly always of one (docs/decisions/0011). Every
function here answers with new worlds and changes none. Times decide what stands: a due stands once `next_us`
has come, a retry once `retry_us` has. So nothing has to be done when time merely passes.
"""

from collections.abc import Iterable
from datetime import tzinfo

import msgspec

from duly.verify.dues import NEVER_US, Dues, minute_start_us

TOLERATED_US = 300_000_000
"""A step back of up to this much brings no minute a second time (MODEL.md, clock steps)."""

LONG_AGO_US = -NEVER_US


class Config(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A configuration c: cron text and retry delay. There is one object for each, so identity is equality."""

    cron: str
    delay_us: int
    dues: Dues
    is_first_after: bool = False
    """Whether the first due comes after the registration, and never in the minute before it."""


class World(msgspec.Struct, frozen=True, gc=False):
    """One possible state of a task; without a configuration it is not registered."""

    config: Config | None = None
    next_us: int = NEVER_US
    """The first due not yet counted. It stands once it has come."""
    stands: bool = False
    """A due, or a cause of unknown kind, stands already."""
    retry_us: int = NEVER_US
    """When the retry is due that the latest failure armed."""
    interrupted: bool = False
    fresh_at: int = 0
    """The position at which this registration began: runs from before it arm no retry."""
    is_adrift: bool = False
    """The clock was set back while nobody was there; dues count from the next list on."""
    had_us: int = LONG_AGO_US
    """Up to when no minute counts again, because the clock was set back from there."""


Worlds = tuple[World, ...]
UNREGISTERED = World()


def cause_us(world: World) -> int:
    """Since when a cause stands; in the future if one will, NEVER_US if none."""
    if world.stands or world.interrupted:
        return LONG_AGO_US
    return min(world.next_us, world.retry_us)


def owed_us(worlds: Worlds) -> int:
    """Since when, or from when on, a start is owed in every world."""
    if len(worlds) == 1:
        return cause_us(worlds[0])
    return max(cause_us(world) for world in worlds)


def allowed_us(worlds: Worlds) -> int:
    """Since when, or from when on, a start is allowed in some world."""
    if len(worlds) == 1:
        return cause_us(worlds[0])
    return min(cause_us(world) for world in worlds)


def one_of_each(worlds: Iterable[World]) -> Worlds:
    """The different ones among *worlds*, in order."""
    return tuple(dict.fromkeys(worlds))


# --- runs ---


def started(world: World, at_us: int, *, is_alone: bool) -> World:
    """After a start, which answers every cause. *is_alone*: no other run of the task is in flight."""
    config, next_us = world.config, world.next_us
    if config is not None and (next_us <= at_us or world.is_adrift):
        next_us = config.dues.after(at_us)
    had_us = world.had_us if world.had_us >= at_us else LONG_AGO_US
    fresh_at = 0 if is_alone else world.fresh_at
    return World(config, next_us, False, NEVER_US, False, fresh_at, had_us=had_us)


def failed(world: World, at_us: int, begun_at: int) -> World:
    """After the failure of a run that began at position *begun_at*."""
    config = world.config
    if config is None or begun_at < world.fresh_at or world.retry_us <= at_us:  # a retry that stands, stands
        return world
    return msgspec.structs.replace(world, retry_us=at_us + config.delay_us)


def cut_off(world: World) -> World:
    """After a crash during a run: if the task is registered, it was interrupted, and nothing was armed."""
    if world.config is None:
        return world
    return msgspec.structs.replace(world, interrupted=True, retry_us=NEVER_US)


def passed_over(world: World, due_us: int) -> World:
    """After the scheduler has said that it did not run what was due at *due_us*."""
    if world.config is None or world.next_us > due_us:
        return world
    return msgspec.structs.replace(world, next_us=world.config.dues.after(due_us))


# --- lists ---


def listed(world: World, config: Config, commit_us: int, position: int, zone: tzinfo) -> World:
    """After a list with the task in it took effect at *commit_us*: preserved, or fresh."""
    if world.config is config:
        return moored(world, commit_us)
    since_us = commit_us if config.is_first_after else minute_start_us(commit_us, zone) - 1
    next_us = config.dues.after(since_us)
    return World(config, next_us, interrupted=world.interrupted, fresh_at=position)


def moored(world: World, commit_us: int) -> World:
    """Dues count from here on, if they did not yet."""
    if not world.is_adrift or world.config is None:
        return world
    return msgspec.structs.replace(world, next_us=world.config.dues.after(commit_us - 1), is_adrift=False)


def is_ahead(world: World, config: Config, commit_us: int) -> bool:
    """Whether to a list that takes effect at *commit_us* the store looks written under a clock far ahead.

    It does so if steps back that were small one by one add up; whoever opens it cannot tell them from a large
    one.
    """
    return world.config is config and world.had_us > commit_us + TOLERATED_US


def counting_afresh(world: World, commit_us: int, answered_us: int = LONG_AGO_US) -> World:
    """After a list that took the store for one from far ahead; a start came at *answered_us* meanwhile."""
    config = world.config
    assert config is not None
    next_us = config.dues.after(max(commit_us - 1, answered_us))
    retry_us = min(world.retry_us, commit_us + config.delay_us) if world.retry_us < NEVER_US else NEVER_US
    return msgspec.structs.replace(
        world, next_us=next_us, retry_us=retry_us, is_adrift=False, had_us=LONG_AGO_US
    )


def removed(_world: World) -> World:
    """After a list without the task took effect."""
    return UNREGISTERED


def of_unknown_past(world: World, at_us: int) -> Worlds:
    """The worlds, at *at_us*, of a task that the store may have known before the trace began."""
    if world.config is None:
        return (world,)
    # Of unknown kind: it may be an interruption, which outlasts a change of the registration.
    owed = msgspec.structs.replace(world, interrupted=True, fresh_at=0, had_us=LONG_AGO_US)
    next_us = world.config.dues.after(at_us)
    answered = msgspec.structs.replace(world, next_us=next_us, fresh_at=0, had_us=LONG_AGO_US)
    return one_of_each((world, owed, answered))


# --- the clock set back ---


def set_back(world: World, before_us: int, after_us: int, *, is_far: bool = False) -> World:
    """After a step back that the scheduler noticed; *is_far*: and took for a large one, whatever its size."""
    kept = not_repeated(world, before_us, after_us)
    if kept.config is None or (before_us - after_us <= TOLERATED_US and not is_far):
        return kept
    return counting_afresh(kept, after_us)


def not_repeated(world: World, before_us: int, after_us: int) -> World:
    """After a step back that brings no minute a second time; what stood stands, a due or a retry."""
    config, next_us, stands = world.config, world.next_us, world.stands
    if config is None:
        return world
    if next_us <= before_us:
        stands, next_us = True, config.dues.after(before_us)
    retry_us = min(world.retry_us, after_us) if world.retry_us <= before_us else world.retry_us
    had_us = max(world.had_us, before_us)
    return msgspec.structs.replace(world, next_us=next_us, stands=stands, retry_us=retry_us, had_us=had_us)


def unnoticed(world: World, before_us: int, after_us: int) -> Worlds:
    """The worlds after a step back while nobody was there to notice it."""
    if world.config is None:
        return (world,)
    next_us = world.config.dues.after(after_us - 1)
    forgetful = msgspec.structs.replace(world, stands=False, had_us=LONG_AGO_US)
    afresh = msgspec.structs.replace(forgetful, next_us=next_us, is_adrift=False)
    adrift = msgspec.structs.replace(forgetful, next_us=NEVER_US, is_adrift=True)
    kept = not_repeated(world, before_us, after_us)
    # A store ahead of the clock by the sum of several small steps is taken for one after a large step.
    far = set_back(world, before_us, after_us, is_far=True)
    stored = msgspec.structs.replace(world, had_us=kept.had_us)
    return one_of_each((set_back(world, before_us, after_us), far, kept, afresh, adrift, stored))
