"""The strict face: a durable task, every minute, until Ctrl-C."""

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta

from duly import Scheduler
from duly.verify import Recorder


async def backup() -> None:
    """Do the work."""
    print("backing up")


async def main() -> None:
    """Run until cancelled, then stop in good order."""
    scheduler = Scheduler("state.db")
    if "--trace" in sys.argv:  # then: duly verify trace.jsonl
        scheduler = Recorder("trace.jsonl").wrap(scheduler)
    await scheduler.initialize([("backup", "* * * * *", backup, timedelta(minutes=5))])
    try:
        await asyncio.Event().wait()
    finally:
        await scheduler.stop()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
