"""What is on disk and on the wire is renamed only on purpose."""

from difflib import unified_diff
from pathlib import Path

from tests.unit.frozen import frozen

FROZEN = Path(__file__).with_name("frozen_names.txt")


def test_names_on_disk_and_on_the_wire_stay() -> None:
    """Events, columns, JSON keys, exit codes, CLI words, config keys and metrics are those of the list."""
    changes = unified_diff(
        FROZEN.read_text().splitlines(), frozen().splitlines(), "accepted", "now", n=0, lineterm=""
    )
    seen = "\n".join(changes)
    assert not seen, f"{seen}\n\nIf you mean it: python -m tests.unit.frozen > tests/unit/frozen_names.txt"
