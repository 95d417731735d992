"""A server without a network: it stays up until it is told to end, and says so."""

import signal
import sys
from types import FrameType


def close(_number: int, _frame: FrameType | None) -> None:
    """End in order."""
    print("closing; nothing was lost", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, close)
print("open", flush=True)
while True:
    signal.pause()
