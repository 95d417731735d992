"""How long the imports of duly take: `python tools/import_time.py`. Exits with 1 if one is over its limit.

Each import runs in new processes, and the fastest one counts: whatever else the machine does only adds. What
Python itself needs to start is not counted. pytest is imported first for its plug-in, as in a session.
"""

import subprocess
import sys

ROUNDS = 10
LIMITS_MS = {
    "import duly": 30,
    "from duly import App": 250,
    "import duly.testing.plugin": 30,
}


def import_ms(statement: str) -> float:
    """The time of one import in a process of its own."""
    program = f"import pytest; {_TIMED}" if "plugin" in statement else _TIMED
    command = [sys.executable, "-c", program.format(statement=statement)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


_TIMED = "from time import perf_counter as t; a = t(); {statement}; print((t() - a) * 1000)"


def main() -> int:
    """Measure, print, and compare with the limits."""
    is_too_slow = False
    for statement, limit_ms in LIMITS_MS.items():
        best_ms = min(import_ms(statement) for _ in range(ROUNDS))
        is_too_slow |= best_ms > limit_ms
        print(f"{statement:28} {best_ms:6.1f} ms, limit {limit_ms} ms")  # noqa: T201 (the result)
    return is_too_slow


if __name__ == "__main__":
    sys.exit(main())
