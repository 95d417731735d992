"""What one task's state may be, as far as a trace can tell (spec/model.md 8).

A world is one possible state; a task has a set of them, nearly always of one (docs/decisions/0011). A world
never changes: what happens makes new worlds of it. Times decide what stands: a due stands once `next_us` has
come, a retry once `retry_us` has. So nothing has to be done when time merely passes.
"""

from collections.abc import Callable, Iterable
from datetime import tzinfo

import msgspec
from msgspec.structs import replace

from duly.verify.dues import NEVER_US, Dues, minute_start_us
from duly.verify.trace import EntryDeclared, OptionsDeclared, micros

TOLERATED_US = 300_000_000
"""A step back of up to this much brings no minute a second time (spec/model.md 9.1)."""

LONG_AGO_US = -NEVER_US
DEFAULT = OptionsDeclared()
_MOST_DOUBLINGS = 64
"""Nobody waits for longer than that, and a float must not overflow."""


class TaskConfig(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A configuration c: schedule, retry delay and options. One object for each, so identity is equality."""

    cron: str
    """The text of its schedule."""
    delay_us: int
    dues: Dues
    options: OptionsDeclared = DEFAULT
    is_first_after: bool = False
    """Whether the first due comes after the registration, and never in the minute before it."""
    window_us: int = NEVER_US
    """A due that is older than this is not made up for."""
    entry: EntryDeclared | None = None
    """It is one that was added at run time: no list changes it, but its kind says how it is retried."""
    is_waiting: bool = False
    """Its kind is not known, and nothing starts it."""
    is_plain: bool = False
    """Whether it is enabled, and no due of it is ever too old."""

    def is_of(self, other: "TaskConfig | None") -> bool:
        """Whether both are one registration: options come and go with a list, and renew nothing."""
        if other is None or self.cron != other.cron or (self.entry is None) != (other.entry is None):
            return False
        return self.entry is not None or self.delay_us == other.delay_us

    def delay_after_us(self, retries: int) -> int:
        """How long a run waits that failed after so many *retries*; NEVER_US if it is given up."""
        options = self.options
        if options.attempts is not None and retries + 1 >= options.attempts:
            return NEVER_US
        delay_us = self.delay_us
        if options.retry_factor != 1:
            delay_us = int(min(delay_us * options.retry_factor ** min(retries, _MOST_DOUBLINGS), NEVER_US))
        return delay_us if options.max_delay_ms is None else min(delay_us, micros(options.max_delay_ms))

    @property
    def is_counting_retries(self) -> bool:
        return self.options.attempts is not None or self.options.retry_factor != 1


class World(msgspec.Struct, frozen=True, gc=False):
    """One possible state of a task; without a configuration it is not registered."""

    config: TaskConfig | None = None
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
    late_us: int = 0
    """The first due comes at `next_us`, or up to so much later: it is owed only then."""
    anchor_us: int = 0
    """What an interval counts from; it lies up to `slack_us` later."""
    slack_us: int = 0
    retries: int = 0
    """How many retries the latest run makes; -1 if that is not known."""
    requested: bool = False
    paused: bool = False
    cancelled: bool = False
    """The run in flight was cancelled: if it fails, it arms no retry."""

    # --- what it is owed ---

    def allowed_us(self, now_us: int, grace_us: int = 0) -> int:
        """Since when a start is allowed at *now_us*; in the future if one will be, NEVER_US if none.

        A due may be older than its window by *grace_us*: what is written early may be called late.
        """
        return self._cause_us(self.next_us, now_us, grace_us)

    def owed_us(self, now_us: int) -> int:
        """Since when a start is owed at *now_us*; in the future if one will be, NEVER_US if none."""
        return self._cause_us(self.next_us + self.late_us, now_us, 0)

    def _cause_us(self, due_us: int, now_us: int, grace_us: int) -> int:
        config = self.config
        if config is None or self.paused or config.is_waiting:
            return NEVER_US
        if config.is_plain and not (self.interrupted or self.requested or self.stands):
            return min(due_us, self.retry_us)
        is_enabled = config.options.enabled
        if self.interrupted or self.requested or (self.stands and is_enabled):
            return LONG_AGO_US
        if not is_enabled:
            due_us = NEVER_US
        elif due_us <= now_us and config.window_us < NEVER_US:
            due_us = self.due_after(max(self.next_us, now_us - config.window_us - grace_us) - 1)[0]
        return min(due_us, self.retry_us)

    def due_after(self, at_us: int) -> tuple[int, int]:
        """The earliest instant at which the first due after *at_us* may come, and how much later it may."""
        config, slack_us = self.config, self.slack_us
        if config is None:
            return NEVER_US, 0
        first_us = config.dues.after(at_us, self.anchor_us)
        if not slack_us:
            return first_us, 0
        last_us = config.dues.after(max(at_us, self.anchor_us + slack_us), self.anchor_us + slack_us)
        if first_us <= last_us < NEVER_US and last_us - first_us == slack_us:
            return first_us, slack_us
        if first_us == last_us == NEVER_US:
            return NEVER_US, 0
        # One anchor has a due right after that instant; another one has had its own just before.
        return at_us + 1, NEVER_US if config.dues.is_from_end else config.dues.length_us

    def with_due_after(self, at_us: int) -> "World":
        next_us, late_us = self.due_after(at_us)
        return replace(self, next_us=next_us, late_us=late_us)

    # --- runs ---

    def after_start(self, at_us: int, *, is_alone: bool) -> "Worlds":
        """A start answers every cause. *is_alone*: no other run of the task is in flight."""
        config, next_us, late_us = self.config, self.next_us, self.late_us
        if config is None:
            return (World(fresh_at=0 if is_alone else self.fresh_at),)
        if next_us <= at_us or self.is_adrift:
            next_us, late_us = self.due_after(at_us)
        # Past that instant the minutes are new again.
        had_us = self.had_us if self.had_us >= at_us else LONG_AGO_US
        after = World(
            config,
            next_us,
            fresh_at=0 if is_alone else self.fresh_at,
            had_us=had_us,
            late_us=late_us,
            anchor_us=self.anchor_us,
            slack_us=self.slack_us,
        )
        # Only a start for the retry alone counts as another attempt. A due starts over with the first.
        if self.retry_us > at_us or not config.is_counting_retries:
            return (after,)
        if self.interrupted or self.requested or self.stands:
            return (after,)
        again = replace(after, retries=self.retries + 1 if self.retries >= 0 else -1)
        # With a due that came between the write of the start and the call, it is a retry all the same.
        return (again,) if self.next_us > at_us or not config.options.enabled else (after, again)

    def after_end(self, at_us: int, begun_at: int, *, is_ok: bool) -> "Worlds":
        """A run that began at position *begun_at* has ended. A retry that stands, stands."""
        config = self.config
        if config is None or begun_at < self.fresh_at:
            return (self,)
        world = self
        if config.dues.is_from_end:
            world = replace(self, anchor_us=at_us, slack_us=0).with_due_after(at_us)
        if is_ok or self.retry_us <= at_us:
            return (world,)
        delay_us = NEVER_US if self.cancelled else config.delay_after_us(max(self.retries, 0))
        armed = replace(world, retry_us=min(at_us + delay_us, NEVER_US))
        is_number_known = self.retries >= 0 or not config.is_counting_retries
        return (armed,) if is_number_known else (armed, replace(world, retry_us=NEVER_US))

    def after_cut(self) -> "World":
        """A run was cut off: if the task is registered, it was interrupted, and nothing was armed."""
        return self if self.config is None else replace(self, interrupted=True, retry_us=NEVER_US)

    def after_miss(self, due_us: int) -> "World":
        """The scheduler has said that it did not run what was due at *due_us*."""
        return self if self.config is None or self.next_us > due_us else self.with_due_after(due_us)

    def after_control(self, control: str) -> "World":
        """A control of the task took effect."""
        match control:
            case "run" if self.config is not None:
                return replace(self, requested=True)
            case "pause" | "resume" if self.config is not None:
                return replace(self, paused=control == "pause")
            case "remove":
                return UNREGISTERED
            case "cancel":
                return replace(self, cancelled=True)
            case _:
                return self

    def is_too_old(self, due_us: int, now_us: int) -> bool:
        """Whether a due need not be made up for any more."""
        return self.config is not None and now_us - due_us > self.config.window_us

    # --- lists ---

    def after_list(
        self, config: TaskConfig, commit_us: int, position: int, zone: tzinfo, slack_us: int = 0
    ) -> "World":
        """A list with the task in it took effect at *commit_us*; for an interval, up to *slack_us* later."""
        if config.is_of(self.config):
            world = self if self.config is config else replace(self, config=config)
            return world.with_dues_from(commit_us, slack_us)
        is_from_minute = config.dues.is_by_minute and not config.is_first_after
        since_us = minute_start_us(commit_us, zone) - 1 if is_from_minute else commit_us
        world = World(
            config,
            interrupted=self.interrupted,
            fresh_at=position,
            requested=self.requested,
            paused=self.paused,
        )
        if config.dues.is_from_anchor:
            world = replace(world, anchor_us=commit_us, slack_us=slack_us)
        return world.with_due_after(since_us)

    def after_other_list(self, entry_config: Callable[[EntryDeclared], TaskConfig]) -> "World":
        """A list without the task took effect: only an entry stays, as its kind now says."""
        if self.config is None or self.config.entry is None:
            return UNREGISTERED
        return replace(self, config=entry_config(self.config.entry))

    def with_dues_from(self, commit_us: int, slack_us: int = 0) -> "World":
        """Dues count from here on, if they did not yet."""
        if not self.is_adrift or self.config is None:
            return self
        return (
            replace(self, is_adrift=False).with_anchor_by(commit_us, slack_us).with_due_after(commit_us - 1)
        )

    def with_anchor_by(self, at_us: int, slack_us: int = 0) -> "World":
        """An interval counts from before *at_us*, or up to *slack_us* later: nothing waits for the future."""
        if self.config is None or not self.config.dues.is_from_anchor:
            return self
        first_us = min(self.anchor_us, at_us - 1)
        last_us = min(self.anchor_us + self.slack_us, at_us + slack_us)
        return replace(self, anchor_us=first_us, slack_us=last_us - first_us)

    def is_ahead(self, config: TaskConfig, commit_us: int) -> bool:
        """Whether to a list that takes effect at *commit_us* the store looks written under a clock far ahead.

        It does so if steps back that were small one by one add up; who opens it cannot tell them from a large
        one.
        """
        return config.is_of(self.config) and self.had_us > commit_us + TOLERATED_US

    def counting_afresh(self, commit_us: int, answered_us: int = LONG_AGO_US) -> "World":
        """A list took the store for one from far ahead; a start came at *answered_us* meanwhile."""
        assert self.config is not None
        retry_us = NEVER_US
        if self.retry_us < NEVER_US:
            delay_us = self.config.delay_after_us(self.retries)
            retry_us = min(self.retry_us, commit_us + (delay_us if delay_us < NEVER_US else 0))
        world = replace(self, retry_us=retry_us, is_adrift=False, had_us=LONG_AGO_US)
        return world.with_anchor_by(commit_us).with_due_after(max(commit_us - 1, answered_us))

    def with_unknown_past(self, at_us: int, *, is_paused: bool) -> "Worlds":
        """What a task may be, at *at_us*, that the store may have known before the trace began."""
        if self.config is None:
            return (self,)
        known = replace(self, fresh_at=0, had_us=LONG_AGO_US)
        answered = known
        if self.config.dues.is_from_anchor:  # nobody knows since when
            length_us = self.config.dues.length_us
            known = replace(known, anchor_us=self.anchor_us - length_us, slack_us=self.slack_us + length_us)
            known = known.with_due_after(at_us)
        if self.config.is_counting_retries:
            known = replace(known, retries=-1)
            answered = replace(known, retry_us=LONG_AGO_US)
        # Of unknown kind: it may be an interruption, which outlasts a change of the registration.
        owed = replace(known, interrupted=True)
        worlds = (self, owed, known.with_due_after(at_us), answered)
        return one_of_each(replace(world, paused=is_paused) for world in worlds)

    # --- the clock set back ---

    def after_step_back(self, before_us: int, after_us: int, *, is_far: bool = False) -> "Worlds":
        """The scheduler noticed a step back; *is_far*: and took it for a large one, whatever its size."""
        is_far |= before_us - after_us > TOLERATED_US
        return one_of_each(
            world if world.config is None or not is_far else world.counting_afresh(after_us)
            for world in self._with_no_minute_again(before_us, after_us)
        )

    def _with_no_minute_again(self, before_us: int, after_us: int) -> "Worlds":
        """After a step back that brings no minute a second time; what stood stands, a due or a retry."""
        if self.config is None:
            return (self,)
        # A retry whose time had come stays due: set back, it must not have to wait again.
        retry_us = min(self.retry_us, after_us) if self.retry_us <= before_us else self.retry_us
        world = replace(self, retry_us=retry_us, had_us=max(self.had_us, before_us))
        if self.next_us > before_us:
            return (world,)
        world = world.with_due_after(before_us)
        stood = replace(world, stands=True)
        is_open = self.late_us or self.config.window_us < NEVER_US
        return (world, stood) if is_open else (stood,)

    def after_unnoticed_step(self, before_us: int, after_us: int) -> "Worlds":
        """The clock was set back while nobody was there to notice it."""
        if self.config is None:
            return (self,)
        forgetful = replace(self, stands=False, had_us=LONG_AGO_US)
        afresh = replace(forgetful, is_adrift=False).with_due_after(after_us - 1)
        adrift = replace(forgetful, next_us=NEVER_US, late_us=0, is_adrift=True)
        kept = self._with_no_minute_again(before_us, after_us)
        # A store ahead of the clock by the sum of several small steps is taken for one after a large step.
        near = self.after_step_back(before_us, after_us)
        far = self.after_step_back(before_us, after_us, is_far=True)
        stored = replace(self, had_us=kept[0].had_us)
        worlds = one_of_each((*near, *far, *kept, afresh, adrift, stored))
        if not self.config.dues.is_from_anchor:
            return worlds
        # Nobody knows which instant an interval counts from now.
        first_us = min(self.anchor_us, after_us) - self.config.dues.length_us
        slack_us = max(self.anchor_us + self.slack_us, before_us) - first_us
        loose = (replace(world, anchor_us=first_us, slack_us=slack_us) for world in worlds)
        return one_of_each(
            world if world.is_adrift else world.with_due_after(after_us - 1) for world in loose
        )


Worlds = tuple[World, ...]
UNREGISTERED = World()


def owed_us(worlds: Worlds, now_us: int) -> int:
    """Since when, or from when on, a start is owed in every world."""
    return worlds[0].owed_us(now_us) if len(worlds) == 1 else max(world.owed_us(now_us) for world in worlds)


def allowed_us(worlds: Worlds, now_us: int, grace_us: int = 0) -> int:
    """Since when, or from when on, a start is allowed in some world."""
    if len(worlds) == 1:
        return worlds[0].allowed_us(now_us, grace_us)
    return min(world.allowed_us(now_us, grace_us) for world in worlds)


def one_of_each(worlds: Iterable[World]) -> Worlds:
    return tuple(dict.fromkeys(worlds))


def each_way(worlds: Worlds, ways: Callable[[World], Worlds]) -> Worlds:
    """What becomes of *worlds* if each goes on in several *ways*."""
    return one_of_each(other for world in worlds for other in ways(world))


def after_start(worlds: Worlds, at_us: int, *, is_alone: bool) -> Worlds:
    """What *worlds* become with a start; *is_alone*: no other run of the task is in flight."""
    if len(worlds) == 1:
        return worlds[0].after_start(at_us, is_alone=is_alone)
    return each_way(worlds, lambda world: world.after_start(at_us, is_alone=is_alone))


def after_end(worlds: Worlds, at_us: int, begun_at: int, *, is_ok: bool) -> Worlds:
    """What *worlds* become with the end of a run that began at position *begun_at*."""
    return each_way(worlds, lambda world: world.after_end(at_us, begun_at, is_ok=is_ok))


def after_step_back(worlds: Worlds, before_us: int, after_us: int, *, is_noticed: bool) -> Worlds:
    """What *worlds* become when the clock is set back, while somebody is there to notice it or not."""
    if is_noticed:
        return each_way(worlds, lambda world: world.after_step_back(before_us, after_us))
    return each_way(worlds, lambda world: world.after_unnoticed_step(before_us, after_us))
