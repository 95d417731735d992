"""Options of a task: what a program says of it besides when it is due. They decide and remember nothing.

Options come with every list and are not stored: another time limit makes no other task of it.
"""

from typing import Final

import msgspec

from duly.instant import LATEST_US, Instant


class Options(msgspec.Struct, frozen=True, gc=False):
    """What holds for the runs of one task. Tasks with equal options share one object."""

    enabled: bool = True
    """Whether its dues start it. A run can be asked for all the same."""
    timeout_us: int | None = None
    """After so long a run is cancelled, and has failed."""
    retry_factor: float = 1
    """So many times longer each retry waits than the one before."""
    retry_longest_us: int | None = None
    attempts: int | None = None
    """So often a run is tried, the first time included; None: until it succeeds."""
    catch_up_us: int | None = None
    """A due that is older than this is not made up for; None: however old it is, once."""
    limit: str | None = None
    """The named limit that its runs count in."""
    is_of_unknown_kind: bool = False
    """An entry whose function is not known here: nothing starts it, and what is due stands."""


DEFAULT: Final = Options()
"""The contract's: no time limit, retries without end after a fixed delay, misses made up for once."""
UNKNOWN_KIND: Final = Options(is_of_unknown_kind=True)
"""Those of every entry whose kind is not known here."""


def retry_at_us(options: Options, delay_us: int, retries: int, failed_us: Instant) -> Instant | None:
    """When a run that failed after so many *retries* is tried again; None: it is given up."""
    if options.attempts is not None and retries + 1 >= options.attempts:
        return None
    if options.retry_factor != 1:
        # The exponent is bounded: nobody waits for more than LATEST_US, and a float must not overflow.
        delay_us = int(min(delay_us * options.retry_factor ** min(retries, 64), LATEST_US))
    if options.retry_longest_us is not None:
        delay_us = min(delay_us, options.retry_longest_us)
    return min(failed_us + delay_us, LATEST_US)
