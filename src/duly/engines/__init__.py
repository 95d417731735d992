"""Engines: work that runs elsewhere than in the scheduler's own process.

A callback that sets work going elsewhere and waits for it needs to find that work again after a crash of this
program. `current` gives the identity of the run, which stays the same through crashes; `duly.engines.celery`
is an engine built on it.
"""

from duly.engines.identity import RunIdentity, current

__all__ = ["RunIdentity", "current"]
