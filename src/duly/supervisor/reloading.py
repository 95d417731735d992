"""What a reload means for one service: whether it is stopped, and whether it is started.

Unchanged services are not touched. A changed oneshot is not run again; its new definition holds from its next
run on. A changed simple service is restarted only if the change concerns its process: nobody wants a database
to go down because its description was corrected. One that was stopped by hand stays down.
"""

from typing import NamedTuple

from duly.config.schema import Service


class Turn(NamedTuple):
    """What happens to a service."""

    is_stopped: bool
    is_started: bool


_UNTOUCHED = Turn(is_stopped=False, is_started=False)


def turn_of(
    before: Service | None, after: Service | None, *, is_boot: bool, is_up: bool, is_held_down: bool
) -> Turn:
    """What becomes of a service; *is_boot*: start-up would start it, *is_up*: it runs or is coming back."""
    if after is None:
        return Turn(is_stopped=True, is_started=False)
    if before is None:
        return Turn(is_stopped=False, is_started=is_boot and after.enabled)
    if before == after or (before.type == after.type == "oneshot"):
        return _UNTOUCHED
    if after.type == "oneshot" or not after.enabled:
        return Turn(is_stopped=True, is_started=False)
    if is_up and _makes_same_process(before, after):
        return _UNTOUCHED
    return Turn(is_stopped=True, is_started=(is_up or is_boot) and not is_held_down)


def _makes_same_process(before: Service, after: Service) -> bool:
    return (before.type, before.command, before.env, before.cwd) == (
        after.type,
        after.command,
        after.env,
        after.cwd,
    )
