"""What keeps a daemon from being well, as its events tell: each fault stands until its opposite is told."""

from duly.events import Event

_FAULTS = {"StoreFault", "BoardFault", "ConfigurationRefused"}
_MENDED = {
    "StoreRecovered": "StoreFault",
    "BoardRecovered": "BoardFault",
    "ConfigurationReloaded": "ConfigurationRefused",
}


class Faults:
    """The faults that stand, a sentence for each."""

    def __init__(self) -> None:
        self._standing: dict[str, str] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        """What stands now."""
        return tuple(self._standing.values())

    def listener(self, event: Event) -> None:
        """Hear of what happens."""
        if event.name in _FAULTS:
            self._standing[event.name] = event.fields["error"]
        elif event.name in _MENDED:
            self._standing.pop(_MENDED[event.name], None)
