"""Open faults, derived from events; each is cleared by its recovery event."""

from collections.abc import Callable

from duly.config.schema import Config
from duly.events import Event

_FAULTS = {"StoreFault", "PollFailed", "ConfigurationRefused", "ListenerFault"}
_RECOVERIES = {
    "StoreRecovered": "StoreFault",
    "PollRecovered": "PollFailed",
    "ConfigurationReloaded": "ConfigurationRefused",
    "ListenerRecovered": "ListenerFault",
}


def announce_config_faults(config: Config, announce: Callable[..., object]) -> None:
    """Tell what is wrong with a configuration that is run nevertheless."""
    for bad in config.invalid:
        file = {} if bad.file is None else {"file": bad.file}
        announce("EntryInvalid", kind=bad.kind, id=bad.id, reason=bad.reason, line=bad.line, **file)
    if config.exposed:
        announce("ConfigurationExposed", reason=config.exposed)


class OpenFaults:
    """The open faults, a sentence for each."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], str] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(self._open.values())

    def listener(self, event: Event) -> None:
        # Each listener fails and recovers on its own; of the others there is one.
        which = event.fields.get("listener", "")
        if event.name in _FAULTS:
            self._open[event.name, which] = event.fields["error"]
        elif event.name in _RECOVERIES:
            self._open.pop((_RECOVERIES[event.name], which), None)
